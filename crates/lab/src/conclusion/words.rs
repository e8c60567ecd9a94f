//! Figures and differences in words. Called by the other modules of `conclusion`, and by `report` for the cells of
//! tables.

use crate::conclusion::comparison::{Comparison, Difference, Judgement, Unit};
use klad_page::numbers;

/// From this difference on, sentences say "times" instead of percent.
const TIMES_FROM_PERCENT: f64 = 100.0;

/// Above this ratio in percent, which is 999.99 times, sentences say "over 1,000 times".
const PERCENT_SHOWN_MAX: f64 = 99_999.0;

/// The figures that sentences name, besides the CPU time per served request. Tables have all figures.
const NAMED: [&str; 10] =
    ["p50", "p90", "p99", "p99.9", "p99.99", "goodput", "refused", "failed", "timed_out", "unfinished"];

/// Replaces no-break spaces, which terminals and Markdown do not need.
pub(super) fn plain(text: &str) -> String {
    text.replace('\u{a0}', " ")
}

/// Writes a time in microseconds.
pub(super) fn time(micros: f64) -> String {
    numbers::micros(micros)
}

/// Writes a share, 0 to 1, as percent.
pub(crate) fn percent(share: f64) -> String {
    let percent = share * 100.0;
    match percent {
        0.0 => "0 %".to_owned(),
        ..0.001 => "< 0.001 %".to_owned(),
        ..0.1 => format!("{percent:.3} %"),
        ..10.0 => format!("{percent:.2} %").replace(".00 %", " %"),
        _ => format!("{percent:.1} %"),
    }
}

/// Writes a value in its unit.
pub(crate) fn value(unit: Unit, value: f64) -> String {
    match unit {
        Unit::Time | Unit::Cpu => time(value),
        Unit::Rate => numbers::per_second(value),
        Unit::Share => percent(value),
    }
}

/// Writes the name of a figure for a sentence: with spaces instead of `_`.
pub(super) fn figure(name: &str) -> String {
    name.replace('_', " ")
}

/// Writes a figure and its difference: `p99 3.1 times as long (2.8 to 3.4 times)`, `goodput 5.0 % less (4.0 to 6.0 %)`.
pub(super) fn phrase(difference: &Difference) -> String {
    format!("{} {}", figure(&difference.figure), by(difference, true))
}

/// Writes the size of a difference, with its confidence interval if `interval`.
pub(super) fn by(difference: &Difference, interval: bool) -> String {
    let (percent, ends) = (difference.percent, difference.low_percent.zip(difference.high_percent));
    let Some(percent) = percent else { return format!("{} by an unknown amount", more(difference.unit)) };
    let ends = ends.filter(|_| interval);
    if difference.unit == Unit::Share {
        let way = if percent < 0.0 { "points less" } else { "points more" };
        let ends = ends.map_or_else(String::new, |(low, high)| {
            let (low, high) = sorted(low.abs(), high.abs());
            format!(" ({low:.2} to {high:.2})")
        });
        return format!("{:.2} {way}{ends}", percent.abs());
    }
    if percent >= TIMES_FROM_PERCENT {
        let times = |percent: f64| digits(1.0 + percent / 100.0);
        let ends = ends.map_or_else(String::new, |(low, high)| format!(" ({} to {} times)", times(low), times(high)));
        return format!("{} times {}{ends}", times(percent), as_much(difference.unit));
    }
    let way = if percent < 0.0 { less(difference.unit) } else { more(difference.unit) };
    let ends = ends.map_or_else(String::new, |(low, high)| {
        let (low, high) = sorted(low.abs(), high.abs());
        format!(" ({low:.1} to {high:.1} %)")
    });
    format!("{:.1} % {way}{ends}", percent.abs())
}

fn sorted(one: f64, other: f64) -> (f64, f64) {
    (one.min(other), one.max(other))
}

/// Writes a ratio.
pub(crate) fn times(ratio: f64) -> String {
    match ratio {
        ..0.1 => format!("{ratio:.3}"),
        ..10.0 => format!("{ratio:.2}"),
        _ => digits(ratio),
    }
}

fn digits(times: f64) -> String {
    match times {
        ..10.0 => format!("{times:.1}"),
        ..100.0 => format!("{times:.0}"),
        _ if times * 100.0 > PERCENT_SHOWN_MAX => "over 1,000".to_owned(),
        _ => format!("{times:.0}"),
    }
}

fn more(unit: Unit) -> &'static str {
    if unit == Unit::Time { "longer" } else { "more" }
}

fn less(unit: Unit) -> &'static str {
    if unit == Unit::Time { "shorter" } else { "less" }
}

fn as_much(unit: Unit) -> &'static str {
    if unit == Unit::Time { "as long" } else { "as much" }
}

/// Writes a comparison as a sentence.
pub(super) fn comparison(comparison: &Comparison) -> String {
    let (first, other) = (&comparison.first, &comparison.other);
    if let Some(why) = &comparison.not_judged {
        return format!("{other} against {first}: not judged, because {why}.");
    }
    let named = |judgement: Judgement| {
        let is_named = move |difference: &&Difference| {
            difference.judgement == judgement
                && (difference.unit == Unit::Cpu || NAMED.contains(&difference.figure.as_str()))
        };
        comparison.differences.iter().filter(is_named)
    };
    let (better, worse) = (named(Judgement::Better).count(), named(Judgement::Worse).count());
    let differ: Vec<_> = named(Judgement::Worse).chain(named(Judgement::Better)).map(phrase).collect();
    let same: Vec<_> = named(Judgement::NoDifference).map(|difference| figure(&difference.figure)).collect();
    let open: Vec<_> = named(Judgement::NotJudged)
        .map(|difference| format!("{} ({})", difference.figure, difference.why_not.as_deref().unwrap_or("no reason")))
        .collect();
    let relation = match (better, worse) {
        (0, 0) => "against",
        (_, 0) => "is better than",
        (0, _) => "is worse than",
        _ => "is better in some figures and worse in others than",
    };
    let mut parts = Vec::new();
    if !differ.is_empty() {
        parts.push(differ.join(", "));
    }
    if !same.is_empty() {
        parts.push(format!("no difference beyond the noise at {}", same.join(", ")));
    }
    if !open.is_empty() {
        parts.push(format!("not judged: {}", open.join(", ")));
    }
    format!("{other} {relation} {first}: {}.", parts.join("; "))
}

/// Joins words to a list: `a`, `a and b`, `a, b and c`.
pub(super) fn listed(words: &[String]) -> String {
    match words {
        [] => String::new(),
        [one] => one.clone(),
        [all @ .., last] => format!("{} and {last}", all.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn difference(unit: Unit, [percent, low, high]: [f64; 3]) -> Difference {
        Difference {
            figure: "it".to_owned(),
            unit,
            first: Some(1.0),
            other: Some(2.0),
            percent: Some(percent),
            low_percent: Some(low),
            high_percent: Some(high),
            judgement: Judgement::Worse,
            why_not: None,
        }
    }

    #[test]
    fn differences_are_written_by_size_direction_and_unit() {
        for (unit, by, words) in [
            (Unit::Time, [12.34, 10.0, 14.0], "it 12.3 % longer (10.0 to 14.0 %)"),
            (Unit::Time, [-30.0, -35.0, -25.0], "it 30.0 % shorter (25.0 to 35.0 %)"),
            (Unit::Time, [210.0, 180.0, 240.0], "it 3.1 times as long (2.8 to 3.4 times)"),
            (Unit::Rate, [-5.0, -6.0, -4.0], "it 5.0 % less (4.0 to 6.0 %)"),
            (Unit::Share, [1.5, 1.25, 1.75], "it 1.50 points more (1.25 to 1.75)"),
            (Unit::Cpu, [1_900.0, 1_500.0, 2_400.0], "it 20 times as much (16 to 25 times)"),
        ] {
            assert_eq!(phrase(&difference(unit, by)), words);
        }
        let unbounded = Difference { percent: None, ..difference(Unit::Time, [0.0; 3]) };
        assert_eq!(phrase(&unbounded), "it longer by an unknown amount");
    }

    #[test]
    fn shares_have_enough_digits() {
        let shares = [0.0, 0.000_001, 0.000_346, 0.001, 0.0308, 0.5].map(percent);
        assert_eq!(shares, ["0 %", "< 0.001 %", "0.035 %", "0.10 %", "3.08 %", "50.0 %"]);
        let lists = [&["a"][..], &["a", "b"], &["a", "b", "c"]];
        let listed = lists.map(|words| listed(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>()));
        assert_eq!(listed, ["a", "a and b", "a, b and c"]);
    }
}
