//! Formats numbers for the tables and sentences of reports. `page.js` uses the formats of [`micros`], [`per_second`]
//! and [`count`] for values at the cursor. A non-breaking space comes before the unit, except before `/s`. Called by
//! `klad-bench`, `klad-lab` and `xtask`.

/// Formats with two decimals below 10, one decimal below 100, and no decimals from 100 on: `0.35`, `1.05`, `12.3`,
/// `1,234`.
fn three_digits(value: f64) -> String {
    match value.abs() {
        ..9.995 => format!("{value:.2}"),
        ..99.95 => format!("{value:.1}"),
        _ => grouped(&format!("{value:.0}")),
    }
}

/// Formats `1234567` as `1,234,567`.
fn grouped(digits: &str) -> String {
    let (sign, digits) = digits.strip_prefix('-').map_or(("", digits), |digits| ("-", digits));
    let groups: Vec<_> = digits.as_bytes().rchunks(3).rev().map(String::from_utf8_lossy).collect();
    format!("{sign}{}", groups.join(","))
}

/// Formats microseconds: `350 µs`, `1.05 ms`.
#[must_use]
pub fn micros(value: f64) -> String {
    let (value, unit) = match value {
        ..0.9995 => (value * 1e3, "ns"),
        ..999.5 => (value, "µs"),
        ..999_500.0 => (value / 1e3, "ms"),
        _ => (value / 1e6, "s"),
    };
    if value == 0.0 { "0\u{a0}µs".to_owned() } else { format!("{}\u{a0}{unit}", three_digits(value)) }
}

/// Formats a configured bound in microseconds without trailing zeros: `2 ms`, `1.5 s`, `30 s`.
#[must_use]
pub fn bound_micros(value: f64) -> String {
    let text = micros(value);
    let (digits, unit) = text.split_once('\u{a0}').unwrap_or((&text, ""));
    let digits = if digits.contains('.') { digits.trim_end_matches('0').trim_end_matches('.') } else { digits };
    format!("{digits}\u{a0}{unit}")
}

/// Formats a duration in seconds: `30 s`, `1.5 s`, `1 h 30 min`.
#[must_use]
pub fn seconds(value: f64) -> String {
    if value < 60.0 {
        let text = format!("{value:.3}");
        return format!("{}\u{a0}s", text.trim_end_matches('0').trim_end_matches('.'));
    }
    let value = value.round();
    let (hours, minutes, rest) = (value / 3600.0, value % 3600.0 / 60.0, value % 60.0);
    let parts = [(hours.floor(), "h"), (minutes.floor(), "min"), (rest, "s")];
    let parts: Vec<_> = parts.iter().filter(|(count, _)| *count > 0.0).collect();
    parts.iter().map(|(count, unit)| format!("{count}\u{a0}{unit}")).collect::<Vec<_>>().join(" ")
}

/// Formats a rate: `12,345/s`. Below 1,000 the rate has one decimal, unless this decimal is 0: `0.2/s`, `100/s`.
#[must_use]
pub fn per_second(value: f64) -> String {
    if value == 0.0 {
        return "0/s".to_owned();
    }
    let text = if value < 999.95 { format!("{value:.1}") } else { grouped(&format!("{value:.0}")) };
    format!("{}/s", text.strip_suffix(".0").unwrap_or(&text))
}

/// Formats a count: `1,234,567`.
#[must_use]
pub fn count(value: u64) -> String {
    grouped(&value.to_string())
}

/// Formats the share of `part` in `whole` in percent, with three decimals. Only a part of 0 is shown as `0 %`, and only
/// the whole as `100 %`. If `whole` is 0, returns `–`.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "counts")]
pub fn share(part: u64, whole: u64) -> String {
    if whole == 0 {
        return "–".to_owned();
    }
    let percent = part as f64 / whole as f64 * 100.0;
    match percent {
        _ if part == 0 => "0\u{a0}%".to_owned(),
        _ if part == whole => "100\u{a0}%".to_owned(),
        ..0.001 => "<\u{a0}0.001\u{a0}%".to_owned(),
        99.999.. => ">\u{a0}99.999\u{a0}%".to_owned(),
        _ => format!("{percent:.3}\u{a0}%"),
    }
}

/// Formats bytes: `1.50 GiB`.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "only three digits are shown")]
pub fn bytes(value: u64) -> String {
    let bytes = value as f64;
    let (value, unit) = match bytes {
        ..1024.0 => return format!("{value}\u{a0}B"),
        ..1_048_576.0 => (bytes / 1024.0, "KiB"),
        ..1_073_741_824.0 => (bytes / 1_048_576.0, "MiB"),
        _ => (bytes / 1_073_741_824.0, "GiB"),
    };
    format!("{}\u{a0}{unit}", three_digits(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(text: &str) -> String {
        text.replace('\u{a0}', " ")
    }

    #[test]
    fn times_have_three_digits_and_a_suitable_unit() {
        let cases = [
            (0.0, "0 µs"),
            (0.35, "350 ns"),
            (0.9996, "1.00 µs"),
            (12.34, "12.3 µs"),
            (999.6, "1.00 ms"),
            (1_050.0, "1.05 ms"),
            (999_600.0, "1.00 s"),
            (1_234_000_000.0, "1,234 s"),
        ];
        for (value, expected) in cases {
            assert_eq!(plain(&micros(value)), expected);
        }
        let bounds = [2_000.0, 1_500_000.0, 30e6, 100_000.0].map(|bound| plain(&bound_micros(bound)));
        assert_eq!(bounds, ["2 ms", "1.5 s", "30 s", "100 ms"]);
        let lengths = [
            (0.5, "500 ms"),
            (30.0, "30 s"),
            (90.0, "1 min 30 s"),
            (119.6, "2 min"),
            (86_400.0, "24 h"),
            (3_660.0, "1 h 1 min"),
        ];
        for (value, expected) in &lengths[1..] {
            assert_eq!(plain(&seconds(*value)), *expected);
        }
        assert_eq!(plain(&seconds(lengths[0].0)), "0.5 s");
    }

    #[test]
    fn counts_are_grouped_and_small_rates_have_decimals() {
        assert_eq!((count(0), count(999), count(1_234_567)), ("0".into(), "999".into(), "1,234,567".into()));
        let rates = [0.0, 0.25, 100.0, 999.96, 19_999.6].map(per_second);
        assert_eq!(rates, ["0/s", "0.2/s", "100/s", "1,000/s", "20,000/s"]);
        assert_eq!(plain(&bytes(512)), "512 B");
        assert_eq!(plain(&bytes(3 << 29)), "1.50 GiB");
    }

    #[test]
    fn only_exact_shares_are_shown_as_0_or_100_percent() {
        let cases = [
            ((0, 10), "0 %"),
            ((10, 10), "100 %"),
            ((1, 10), "10.000 %"),
            ((1, 1_000_000), "< 0.001 %"),
            ((999_999, 1_000_000), "> 99.999 %"),
            ((0, 0), "–"),
        ];
        for ((part, whole), expected) in cases {
            assert_eq!(plain(&share(part, whole)), expected);
        }
    }
}
