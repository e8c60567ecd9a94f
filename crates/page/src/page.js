// Draws the charts (with uPlot) and heat maps of a page from the data in its figures, which charts.rs writes. If a
// chart cannot be drawn, a message takes its place. At the end, the attribute data-drawn of <html> has the number of
// drawn figures. Plain ES2017.
(function () {
"use strict";

const root = document.documentElement;
const schemes = window.matchMedia("(prefers-color-scheme: dark)");
const NARROW = 560; // px; narrower charts have the phone layout
const NBSP = "\u00a0";

// Number formats, the same as in numbers.rs.

function plain(value) {
    return String(Number(value.toPrecision(6)));
}

function grouped(digits) {
    return digits.replace(/\B(?=(\d{3})+(?!\d))/g, ",");
}

function threeDigits(value) {
    const size = Math.abs(value);
    return size < 9.995 ? value.toFixed(2) : size < 99.95 ? value.toFixed(1) : grouped(value.toFixed(0));
}

function elapsed(seconds, span) {
    if (span <= 120) return plain(seconds) + NBSP + "s";
    const two = (number) => String(number).padStart(2, "0");
    const whole = Math.floor(seconds + 1e-6);
    const [hours, minutes, rest] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60, two(whole % 60)];
    return span < 3600 ? minutes + ":" + rest : hours + ":" + two(minutes) + ":" + rest;
}

const TIMES = [[1e6, "s"], [1e3, "ms"], [1, "µs"], [0, "ns"]];

function time(micros, write) {
    if (micros === 0) return "0" + NBSP + "µs";
    const [size, unit] = TIMES.find(([from]) => Math.abs(micros) >= from * 0.9995);
    return write(micros / (size || 1e-3)) + NBSP + unit;
}

function thousands(value) {
    const size = Math.abs(value);
    return size >= 1e6 ? plain(value / 1e6) + "M" : size >= 1e3 ? plain(value / 1e3) + "k" : plain(value);
}

function rate(value) {
    return value < 999.95 ? value.toFixed(1).replace(/\.0$/, "") : grouped(value.toFixed(0));
}

// The formats of each unit: at a tick, and at the cursor. `span` is the visible range of the axis.
const UNITS = {
    elapsed: { tick: elapsed, exact: elapsed },
    micros: { tick: (value) => time(value, plain), exact: (value) => time(value, threeDigits) },
    per_second: { tick: (value) => thousands(value) + "/s", exact: (value) => rate(value) + "/s" },
    count: { tick: thousands, exact: (value) => grouped(value.toFixed(0)) },
    percent: { tick: (value) => plain(value) + NBSP + "%", exact: (value) => threeDigits(value) + NBSP + "%" },
    plain: { tick: thousands, exact: threeDigits },
};

// `position` is 1 / (1 - quantile).
function percentile(position, samples) {
    if (position > samples) return "max";
    const decades = Math.log10(position);
    const digits = Number.isInteger(decades) ? decades - 2 : Math.ceil(decades) - 1;
    return (100 - 100 / position).toFixed(Math.max(0, digits)) + NBSP + "%";
}

function formatted(axis, value, form, span) {
    return axis.scale.kind === "percentile" ? percentile(value, axis.scale.samples) : UNITS[axis.unit][form](value, span);
}

// Scales: the range and the ticks of each axis.

const SECONDS = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400];

function isLog(axis, state) {
    return axis.scale.kind === "percentile" || (axis.switch && state ? state.log : axis.scale.kind === "log");
}

// Rounds a value to 1, 2, 5 or 10 times a power of ten: down (`direction` -1) or up (1).
function round(value, direction) {
    const power = Math.pow(10, Math.floor(Math.log10(value) + 1e-9));
    const steps = [1, 2, 5, 10].map((step) => step * power);
    return direction > 0
        ? steps.find((step) => step >= value * (1 - 1e-9))
        : steps.reverse().find((step) => step <= value * (1 + 1e-9));
}

function logTicks(from, to) {
    const decades = Math.log10(to / from);
    const steps = decades <= 1.2 ? [1, 2, 3, 5, 7] : decades <= 3.2 ? [1, 2, 5] : [1];
    const ticks = [];
    for (let power = Math.floor(Math.log10(from)); power <= Math.log10(to); power += 1) {
        for (const step of steps) {
            const tick = Number((step * Math.pow(10, power)).toPrecision(1));
            if (tick >= from * (1 - 1e-9) && tick <= to * (1 + 1e-9)) ticks.push(tick);
        }
    }
    return ticks;
}

// Returns the position of 0 on a logarithmic axis: below all positive values. `null` if no value is 0.
function footOf(values) {
    if (!values.some((value) => value === 0)) return null;
    const least = values.reduce((least, value) => (value > 0 && value < least ? value : least), Infinity);
    return least === Infinity ? 1 : round(least, -1) / 3;
}

function percentileTicks(to, samples, width) {
    const decadeWidth = width / Math.log10(to); // px for each additional 9
    const ticks = decadeWidth >= 110 ? [1, 2] : [1];
    const every = Math.max(1, Math.ceil(64 / decadeWidth));
    for (let power = every; Math.pow(10, power) <= samples; power += every) ticks.push(Math.pow(10, power));
    return ticks;
}

function xRange(axis, places) {
    const [first, last] = [places[0], places[places.length - 1]];
    const whole = axis.range || (first < last ? [first, last] : isLog(axis) ? [first / 2, first * 2] : [first - 0.5, first + 0.5]);
    // A range within the data is a part that the reader has selected.
    return (u, from, to) => (from == null || places.length < 2 || (from <= first && to >= last) ? whole : [from, to]);
}

function yRange(axis, rules, log, foot) {
    if (axis.range) return axis.range;
    return (u, from, to) => {
        const values = [from, to].concat(rules.map((rule) => rule.at));
        const known = values.filter((value) => value != null && Number.isFinite(value) && (!log || value > 0));
        if (known.length === 0) return log ? [1, 10] : [0, 1];
        const [least, most] = [Math.min(...known), Math.max(...known)];
        if (!log) return [Math.min(0, least * 1.05), most > 0 ? most * 1.05 : 1];
        const [low, high] = [foot == null ? round(least, -1) : foot, round(most, 1)];
        return low < high ? [low, high] : [low / 2, high * 2];
    };
}

// Colours come from colours.css, which has them as light-dark(#..., #...).

function colour(name) {
    const both = getComputedStyle(root).getPropertyValue("--" + name).match(/#[0-9a-f]+/g);
    return both[schemes.matches ? 1 : 0];
}

function mixedColour(stops, part) {
    const place = part * (stops.length - 1);
    const index = Math.min(Math.floor(place), stops.length - 2);
    const channel = (stop, at) => parseInt(stops[stop].slice(1 + 2 * at, 3 + 2 * at), 16);
    const channels = [0, 1, 2].map((at) => {
        const [from, to] = [channel(index, at), channel(index + 1, at)];
        return Math.round(from + (to - from) * (place - index));
    });
    return "rgb(" + channels.join() + ")";
}

function ramp() {
    return [1, 2, 3, 4, 5, 6].map((step) => colour("heat" + step));
}

// The elements around a chart.

function element(name, attributes, ...children) {
    const made = document.createElement(name);
    for (const key of Object.keys(attributes)) made.setAttribute(key, attributes[key]);
    made.append(...children);
    return made;
}

function swatch(kind, background) {
    const made = element("i", { class: "swatch " + kind });
    made.style.setProperty("--own", background);
    return made;
}

function focus(state, buttons, index) {
    const button = state.figure.querySelectorAll(buttons)[index];
    if (button) button.focus({ preventScroll: true });
}

function bandKeys(data) {
    const labels = Array.from(new Set(data.bands.map((band) => band.label)));
    return labels.map((label) => element("span", { class: "key" }, swatch("band", colour("band")), label));
}

// Groups the series that share a key in the legend: adjacent thin series of one name.
function groupedSeries(all) {
    return all.reduce((groups, series, index) => {
        const before = all[index - 1];
        const same = before && series.style === "thin" && before.style === "thin" && before.name === series.name;
        if (same) groups[groups.length - 1].push(index);
        else groups.push([index]);
        return groups;
    }, []);
}

// Makes the legend: a key for each group of series, which hides or shows it, and the values at the cursor.
function lineLegend(state) {
    const { data, legend } = state;
    const at = element("span", { class: "at" });
    const groups = groupedSeries(data.series);
    const values = groups.map(() => element("b", { class: "value" }));
    const keys = groups.map((indexes, group) => {
        const series = data.series[indexes[0]];
        const kind = series.style === "points" ? "points" : series.style === "dashed" ? "dashed" : "line";
        const shown = !state.hidden.has(indexes[0]);
        const key = element("button", { type: "button", class: "key", "aria-pressed": String(shown) },
            swatch(kind, colour(series.colour)), element("span", {}, series.name), values[group]);
        key.addEventListener("click", () => {
            for (const index of indexes) {
                if (shown) state.hidden.add(index);
                else state.hidden.delete(index);
            }
            build(state);
            // The keys are new elements, so a keyboard user's focus must be restored.
            focus(state, "button.key", group);
        });
        return key;
    });
    legend.replaceChildren(...keys, ...bandKeys(data), at);
    return (u) => {
        const index = u.cursor.idx;
        const span = u.scales.x.max - u.scales.x.min;
        at.textContent = index == null ? "" : formatted(data.x, data.at[index], "exact", span);
        groups.forEach(([first], group) => {
            const series = data.series[first];
            const value = index == null ? null : series.values[index];
            const isEmpty = index == null || series.style === "thin";
            values[group].textContent = isEmpty ? "" : value == null ? "–" : formatted(data.y, value, "exact", 0);
        });
    };
}

function heatLegend(state, most) {
    const { data, legend } = state;
    const bar = element("i", { class: "ramp" });
    bar.style.background = "linear-gradient(to right, " + ramp().join() + ")";
    const at = element("span", { class: "at" });
    const scale = most > 1 ? ["1", bar, UNITS.count.exact(most)] : [bar, "1"];
    legend.replaceChildren(element("span", { class: "key" }, ...scale, " " + data.counted), ...bandKeys(data), at);
    return (u) => {
        const { left, top } = u.cursor;
        if (left == null || left < 0) {
            at.textContent = "";
            return;
        }
        const column = bucket(data.x_edges, u.posToVal(left, "x"));
        // If the cursor is in another chart, only its time is known here, but not its y position.
        const row = top == null || top < 0 || !u.over.matches(":hover") ? null : bucket(data.y_edges, u.posToVal(top, "y"));
        const span = u.scales.x.max - u.scales.x.min;
        const words = (axis, edges, index) => {
            const [from, to] = [edges[index], edges[index + 1]].map((value) => formatted(axis, value, "exact", span));
            return from + " – " + to;
        };
        const parts = column == null ? [] : [words(data.x, data.x_edges, column)];
        if (column != null && row != null) {
            const [first, counts] = data.columns[column];
            const count = counts[row - first] || 0;
            parts.push(words(data.y, data.y_edges, row), UNITS.count.exact(count) + " " + data.counted);
        }
        at.textContent = parts.join(", ");
    };
}

function bucket(edges, value) {
    if (!(value >= edges[0] && value < edges[edges.length - 1])) return null;
    let [low, high] = [0, edges.length - 1];
    while (high - low > 1) {
        const middle = (low + high) >> 1;
        if (edges[middle] <= value) low = middle;
        else high = middle;
    }
    return low;
}

function scaleSwitch(state) {
    const place = state.figure.querySelector(".switch");
    if (!state.data.y.switch) return;
    const choice = (name, log, index) => {
        const button = element("button", { type: "button", "aria-pressed": String(state.log === log) }, name);
        button.addEventListener("click", () => {
            state.log = log;
            build(state);
            focus(state, ".switch button", index);
        });
        return button;
    };
    place.replaceChildren(choice("linear", false, 0), choice("log", true, 1));
}

// Charts.

function axes(data, state, width) {
    const narrow = width < NARROW;
    const font = (narrow ? 11 : 12) + "px system-ui, sans-serif";
    const common = {
        font,
        stroke: colour("muted"),
        grid: { stroke: colour("grid"), width: 1, filter: (u, splits) => splits },
        ticks: { show: false },
        filter: (u, splits) => splits,
    };
    const x = Object.assign({}, common, { size: 26, gap: 6, space: narrow ? 64 : 80 });
    x.values = (u, splits) => splits.map((value) => formatted(data.x, value, "tick", u.scales.x.max - u.scales.x.min));
    if (data.x.unit === "elapsed") x.incrs = SECONDS;
    if (data.x.scale.kind === "percentile") x.splits = (u, axis, from, to) => percentileTicks(to, data.x.scale.samples, u.width - 76);
    else if (isLog(data.x)) x.splits = (u, axis, from, to) => logTicks(from, to);
    const y = Object.assign({}, common, { size: narrow ? 52 : 64, gap: 6, space: 36 });
    y.values = (u, splits) => splits.map((value) => formatted(data.y, value, "tick", 0));
    if (isLog(data.y, state)) y.splits = (u, axis, from, to) => logTicks(from, to);
    if (isLog(data.y, state) && state.foot != null) {
        y.splits = (u, axis, from, to) => [state.foot].concat(logTicks(from * 2.5, to));
        y.values = (u, splits) => splits.map((value) => formatted(data.y, value === state.foot ? 0 : value, "tick", 0));
    }
    return [x, y];
}

// Draws the highlighted ranges of x below everything else.
function drawBands(data) {
    return (u) => {
        const { left, top, width, height } = u.bbox;
        u.ctx.save();
        u.ctx.fillStyle = colour("band");
        for (const band of data.bands) {
            const ends = [band.from, band.to].map((at) => u.valToPos(at, "x", true));
            const [from, to] = ends.map((end) => Math.min(Math.max(end, left), left + width));
            u.ctx.fillRect(from, top, to - from, height);
        }
        u.ctx.restore();
    };
}

// Draws the marks on x and the reference values on y.
function drawMarks(data) {
    return (u) => {
        const { left, top, width, height } = u.bbox;
        const size = uPlot.pxRatio;
        const { ctx } = u;
        ctx.save();
        ctx.beginPath();
        ctx.rect(left, top, width, height);
        ctx.clip();
        ctx.font = 11 * size + "px system-ui, sans-serif";
        ctx.strokeStyle = ctx.fillStyle = colour("muted");
        ctx.lineWidth = size;
        ctx.textAlign = "left";
        const line = (fromX, fromY, toX, toY) => {
            ctx.setLineDash([4 * size, 4 * size]);
            ctx.beginPath();
            ctx.moveTo(fromX, fromY);
            ctx.lineTo(toX, toY);
            ctx.stroke();
        };
        const places = data.marks.map((mark) => Math.round(u.valToPos(mark.at, "x", true)));
        data.marks.forEach((mark, index) => {
            const place = places[index];
            line(place, top, place, top + height);
            const space = (index + 1 < places.length ? places[index + 1] : left + width) - place;
            if (ctx.measureText(mark.label).width + 8 * size < space) {
                ctx.textBaseline = "top";
                ctx.fillText(mark.label, place + 4 * size, top + 3 * size);
            }
        });
        for (const rule of data.rules || []) {
            const place = Math.round(u.valToPos(rule.at, "y", true));
            line(left, place, left + width, place);
            ctx.textBaseline = place - top < 18 * size ? "top" : "bottom";
            ctx.textAlign = "right";
            ctx.fillText(rule.label, left + width - 4 * size, place + (ctx.textBaseline === "top" ? 3 : -3) * size);
        }
        ctx.restore();
    };
}

// Returns the indexes of the values that are drawn as points: all of them if there are few, otherwise only those
// without a neighbour to draw a line to.
function pointsOf(values, style, weakFrom) {
    const all = [];
    const alone = [];
    values.forEach((value, index) => {
        if (value == null) return;
        if (weakFrom == null || index >= weakFrom) all.push(index);
        if (values[index - 1] == null && values[index + 1] == null) alone.push(index);
    });
    return style === "points" || weakFrom != null || (style !== "thin" && all.length <= 12) ? all : alone;
}

function uPlotSeries(series, values, hidden, weakFrom) {
    const thin = series.style === "thin";
    const stroke = colour(series.colour) + (thin ? "70" : "");
    const points = pointsOf(values, series.style, weakFrom);
    const dashed = series.style === "dashed" || weakFrom != null;
    const options = {
        show: !hidden,
        stroke,
        width: thin ? 1 : 2,
        points: {
            show: () => false,
            filter: () => (points.length > 0 ? points : null),
            size: 5, width: 0, fill: stroke, stroke,
        },
    };
    if (series.style === "points") options.paths = () => null;
    if (series.style === "area") options.fill = stroke + "22";
    if (dashed) options.dash = [6, 4];
    return options;
}

function lines(state, width, height) {
    const { data } = state;
    const log = isLog(data.y, state);
    state.foot = log ? footOf([].concat(...data.series.map((line) => line.values))) : null;
    const series = [{}];
    const columns = [data.at];
    const add = (line, values, hidden, weakFrom) => {
        series.push(uPlotSeries(line, values, hidden, weakFrom));
        columns.push(values);
    };
    data.series.forEach((line, index) => {
        const values = line.values.map((value) => (log && value === 0 ? state.foot : log && value < 0 ? null : value));
        const hidden = state.hidden.has(index);
        const weak = line.weak_from;
        if (weak == null) {
            add(line, values, hidden);
            return;
        }
        add(line, values.map((value, at) => (at < weak ? value : null)), hidden);
        add(line, values.map((value, at) => (at >= weak - 1 ? value : null)), hidden, weak);
    });
    if (!columns.slice(1).some((values) => values.some((value) => value != null))) return null;
    const xLog = isLog(data.x);
    return new uPlot({
        width, height,
        padding: [10, 14, 0, 0],
        legend: { show: false },
        cursor: cursor(data),
        scales: {
            x: { time: false, distr: xLog ? 3 : 1, range: xRange(data.x, data.at) },
            y: { distr: log ? 3 : 1, range: yRange(data.y, data.rules, log, state.foot) },
        },
        axes: axes(data, state, width),
        series,
        hooks: { drawClear: [drawBands(data)], draw: [drawMarks(data)], setCursor: [lineLegend(state)] },
    }, columns, state.plot);
}

function cursor(data) {
    const shared = data.x.unit === "elapsed" ? { sync: { key: "elapsed", setSeries: false } } : {};
    return Object.assign({ y: false, drag: { x: true, y: false, dist: 8 }, points: { size: 7 } }, shared);
}

function drawHeat(data, most) {
    return (u) => {
        const stops = ramp();
        const colours = new Map();
        const { left, top, width, height } = u.bbox;
        const xs = data.x_edges.map((edge) => Math.round(u.valToPos(edge, "x", true)));
        const ys = data.y_edges.map((edge) => Math.round(u.valToPos(edge, "y", true)));
        u.ctx.save();
        u.ctx.beginPath();
        u.ctx.rect(left, top, width, height);
        u.ctx.clip();
        data.columns.forEach(([first, counts], column) => {
            const across = Math.max(1, xs[column + 1] - xs[column]);
            counts.forEach((count, above) => {
                if (count === 0) return;
                if (!colours.has(count)) colours.set(count, mixedColour(stops, most > 1 ? Math.log(count) / Math.log(most) : 1));
                u.ctx.fillStyle = colours.get(count);
                const row = first + above;
                u.ctx.fillRect(xs[column], ys[row + 1], across, Math.max(1, ys[row] - ys[row + 1]));
            });
        });
        u.ctx.restore();
    };
}

function heat(state, width, height) {
    const { data } = state;
    const most = data.columns.reduce((most, [, counts]) => counts.reduce((a, b) => Math.max(a, b), most), 0);
    if (most === 0) return null;
    const ends = [data.x_edges, data.y_edges].map((edges) => [edges[0], edges[edges.length - 1]]);
    return new uPlot({
        width, height,
        padding: [10, 14, 0, 0],
        legend: { show: false },
        cursor: Object.assign(cursor(data), { y: true, points: { show: false } }),
        scales: {
            x: { time: false, distr: isLog(data.x) ? 3 : 1, range: xRange(data.x, ends[0]) },
            y: { distr: isLog(data.y, state) ? 3 : 1, range: ends[1] },
        },
        axes: axes(data, state, width),
        // uPlot requires a series. It draws nothing here; `drawHeat` draws the cells.
        series: [{}, { paths: () => null, points: { show: false } }],
        hooks: {
            drawClear: [drawBands(data)],
            draw: [drawHeat(data, most), drawMarks(data)],
            setCursor: [heatLegend(state, most)],
        },
    }, [ends[0], [null, null]], state.plot);
}

function heightFor(width) {
    return width < NARROW ? 230 : 280;
}

function showMessage(state, outcome, words) {
    state.plot.replaceChildren(element("p", { class: outcome, role: outcome === "failed" ? "alert" : "note" }, words));
    state.legend.replaceChildren();
    state.outcome = outcome;
}

// Draws a figure, or shows a message in its place.
function build(state) {
    if (state.chart) state.chart.destroy();
    state.chart = null;
    try {
        if (typeof uPlot !== "function") throw new Error("uPlot is not in this page");
        if (!state.data) {
            state.data = JSON.parse(state.figure.querySelector("script.data").textContent);
            state.log = state.data.y.scale.kind === "log";
        }
        state.plot.replaceChildren();
        const width = Math.max(200, Math.floor(state.plot.clientWidth));
        const draw = { lines, heat }[state.figure.dataset.kind];
        scaleSwitch(state);
        state.chart = draw(state, width, heightFor(width));
        state.width = width;
        if (state.chart) state.outcome = "drawn";
        else showMessage(state, "empty", "There is nothing to draw: no value was recorded.");
    } catch (error) {
        showMessage(state, "failed", "This chart could not be drawn: " + error.message);
    }
    state.figure.dataset.state = state.outcome;
}

function count(states) {
    root.dataset.drawn = String(states.filter((state) => state.outcome === "drawn").length);
}

const states = Array.from(document.querySelectorAll("figure.chart")).map((figure) => ({
    figure,
    plot: figure.querySelector(".plot"),
    legend: figure.querySelector(".legend"),
    hidden: new Set(),
}));
states.forEach(build);
count(states);

schemes.addEventListener("change", () => {
    states.forEach(build);
    count(states);
});

// The width changes with the window, and when a phone is rotated.
const observer = new ResizeObserver(() => {
    for (const state of states) {
        const width = Math.max(200, Math.floor(state.plot.clientWidth));
        if (!state.chart || width === state.width) continue;
        // A change between the narrow and the wide layout also changes ticks and fonts.
        if (width < NARROW === state.width < NARROW) state.chart.setSize({ width, height: heightFor(width) });
        else build(state);
        state.width = width;
    }
});
states.forEach((state) => observer.observe(state.plot));
}());
