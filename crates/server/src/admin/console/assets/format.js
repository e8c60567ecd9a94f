// Numbers, times and bytes as text: the same forms as in klad's reports.

const NBSP = "\u00a0";

/** A number with at most three significant digits and no superfluous zeros. From 1,000 on, a whole number. */
export function plain(value) {
    const size = Math.abs(value);
    if (size >= 1000) return grouped(value);
    return String(Number(value.toPrecision(size >= 100 ? 3 : 2)));
}

export function grouped(value) {
    return Math.round(value)
        .toString()
        .replace(/\B(?=(\d{3})+(?!\d))/g, ",");
}

function scaled(value, steps) {
    const size = Math.abs(value);
    const [from, unit] = steps.find(([from]) => size >= from * 0.9995) || steps[steps.length - 1];
    const shown = value / from;
    return (Math.abs(shown) < 99.95 ? String(Number(shown.toPrecision(3))) : grouped(shown)) + unit;
}

export function seconds(value) {
    if (value === 0) return "0" + NBSP + "s";
    if (Math.abs(value) >= 120) return duration(value);
    return scaled(value, [
        [1, NBSP + "s"],
        [1e-3, NBSP + "ms"],
        [1e-6, NBSP + "µs"],
        [1e-9, NBSP + "ns"],
    ]);
}

/** Formats a time, typically of minutes to days. `value` is in seconds. */
export function duration(value) {
    const [days, hours, minutes] = [
        Math.floor(value / 86400),
        Math.floor(value / 3600) % 24,
        Math.floor(value / 60) % 60,
    ];
    const parts =
        days > 0
            ? [days + " d", hours + " h"]
            : hours > 0
              ? [hours + " h", minutes + " min"]
              : value >= 60
                ? [minutes + " min", Math.floor(value % 60) + " s"]
                : [Math.round(value) + " s"];
    return parts.join(" ").replaceAll(" ", NBSP);
}

/** Formats the time that is left until something happens, given in seconds. */
export function until(left) {
    return left < 60 ? seconds(left) : duration(left);
}

export function bytes(value) {
    if (Math.abs(value) < 1024) return Math.round(value) + NBSP + "B";
    const steps = [
        [2 ** 40, "TiB"],
        [2 ** 30, "GiB"],
        [2 ** 20, "MiB"],
        [2 ** 10, "KiB"],
    ];
    return scaled(
        value,
        steps.map(([from, unit]) => [from, NBSP + unit]),
    );
}

export function count(value) {
    return Math.abs(value) >= 1e5
        ? scaled(value, [
              [1e9, "G"],
              [1e6, "M"],
              [1e3, "k"],
          ])
        : plain(value);
}

export function share(value) {
    return plain(value * 100) + NBSP + "%";
}

export const UNITS = {
    seconds,
    bytes,
    count,
    share,
    cores: plain,
    waiting: plain,
    per_second: (value) => count(value) + "/s",
    bytes_per_second: (value) => bytes(value) + "/s",
};

/** The local time of day of a Unix time in ms. */
export function clock(at) {
    const date = new Date(at);
    return [date.getHours(), date.getMinutes(), date.getSeconds()]
        .map((part) => String(part).padStart(2, "0"))
        .join(":");
}

export function dateTime(at) {
    const date = new Date(at);
    const two = (part) => String(part).padStart(2, "0");
    return date.getFullYear() + "-" + two(date.getMonth() + 1) + "-" + two(date.getDate()) + " " + clock(at);
}
