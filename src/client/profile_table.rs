//! Tables of a profile, and of the difference of two, as text for a terminal. Called by `profile`.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::client::show::printable;
use klad_profile::{Name, Profile};

/// Maximum number of rows of a table. A screen shows them together with the facts.
const ROWS: usize = 20;

/// Returns the facts needed to judge the profile, and the most expensive functions.
pub(super) fn summary(profile: &Profile<Name>) -> String {
    let unit = unit(profile);
    let sum = profile.sum();
    let mut text = String::new();
    let _ = writeln!(text, "{}: {} in {} stacks", printable(&profile.title), amount(sum, unit), profile.samples.len());
    for (name, value) in &profile.facts {
        let _ = writeln!(text, "{}: {}", printable(name), printable(value));
    }
    let top = profile.top();
    let by_total = {
        let mut rows: Vec<_> = top.iter().collect();
        rows.sort_by(|one, other| (other.total, &one.name).cmp(&(one.total, &other.name)));
        rows
    };
    for (heading, rows) in [("by their own cost", top.iter().collect()), ("by their cost with callees", by_total)] {
        let rows: Vec<_> = rows;
        let _ = writeln!(text, "\nfunctions {heading}, the first {} of {}\n", rows.len().min(ROWS), rows.len());
        let _ = writeln!(text, "{:>12} {:>7} {:>12} {:>7}  function", "self", "", "total", "");
        for row in rows.into_iter().take(ROWS) {
            let (own, total) = (amount(row.own, unit), amount(row.total, unit));
            let (own_share, total_share) = (share(row.own, sum), share(row.total, sum));
            let name = printable(&row.name);
            let _ = writeln!(text, "{own:>12} {own_share:>7} {total:>12} {total_share:>7}  {name}");
        }
    }
    text
}

/// Returns the functions that changed most. A plus means more in `after`.
pub(super) fn difference(before: &Profile<Name>, after: &Profile<Name>, normalize: bool) -> String {
    let unit = unit(after);
    let changes = before.changes(after, normalize);
    let mut text = String::new();
    let scaled = if normalize { ", and scaled to that of AFTER" } else { "" };
    let _ = writeln!(text, "BEFORE: {}{scaled}", amount(before.sum(), unit));
    let _ = writeln!(text, "AFTER: {}", amount(after.sum(), unit));
    let shown = changes.len().min(ROWS);
    let _ = writeln!(text, "\nfunctions that changed, + is more in AFTER, the first {shown} of {}\n", changes.len());
    let _ = writeln!(text, "{:>13} {:>13}  function", "self", "total");
    for change in changes.into_iter().take(ROWS) {
        let (own, total) = (signed(change.own, unit), signed(change.total, unit));
        let _ = writeln!(text, "{own:>13} {total:>13}  {}", printable(&change.name));
    }
    text
}

/// Returns each stack with its two values, in the format of tools for differential flame graphs.
pub(super) fn collapsed_difference(before: &Profile<Name>, after: &Profile<Name>, normalize: bool) -> String {
    let mut stacks: BTreeMap<String, [i128; 2]> = BTreeMap::new();
    for (side, profile) in [before, after].into_iter().enumerate() {
        for sample in &profile.samples {
            let thread = Some(sample.thread.as_str()).filter(|thread| !thread.is_empty());
            let frames = sample.frames.iter().rev().map(AsRef::as_ref);
            let names: Vec<String> =
                thread.into_iter().chain(frames).map(|name| printable(name).replace(';', ":")).collect();
            let value = sample.values.get(profile.shown).copied().unwrap_or_default();
            stacks.entry(names.join(";")).or_default()[side] += i128::from(value);
        }
    }
    let (from, to) = before.scale(after, normalize);
    let mut text = String::new();
    for (stack, [old, new]) in stacks {
        let old = old * i128::from(to) / i128::from(from);
        let _ = writeln!(text, "{stack} {old} {new}");
    }
    text
}

fn unit(profile: &Profile<Name>) -> &str {
    profile.values.get(profile.shown).map_or("", |value| value.unit.as_str())
}

/// Returns `value` with two decimals in a unit that suits its size.
#[expect(clippy::cast_precision_loss, reason = "for people")]
fn amount(value: i64, unit: &str) -> String {
    let steps: &[(f64, &str)] = match unit {
        "nanoseconds" => &[(1e9, " s"), (1e6, " ms"), (1e3, " us"), (1.0, " ns")],
        "bytes" => &[(1_073_741_824.0, " GiB"), (1_048_576.0, " MiB"), (1024.0, " KiB"), (1.0, " B")],
        _ => &[],
    };
    let size = value as f64;
    match steps.iter().find(|(step, _)| size.abs() >= *step) {
        Some((1.0, name)) => format!("{value}{name}"),
        Some((step, name)) => format!("{:.2}{name}", size / step),
        None => value.to_string(),
    }
}

fn signed(value: i64, unit: &str) -> String {
    if value > 0 { format!("+{}", amount(value, unit)) } else { amount(value, unit) }
}

#[expect(clippy::cast_precision_loss, reason = "for people")]
fn share(value: i64, sum: i64) -> String {
    if sum == 0 { "-".to_owned() } else { format!("{:.1}%", 100.0 * value as f64 / sum as f64) }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use klad_profile::{Sample, ValueType};

    fn profile(stacks: &[(&str, i64)]) -> Profile<Name> {
        let sample = |(stack, value): &(&str, i64)| Sample {
            thread: "klad-worker".to_owned(),
            frames: stack.split_whitespace().map(Name::from).collect(),
            values: vec![*value],
        };
        Profile {
            title: "CPU time".to_owned(),
            values: vec![ValueType::new("cpu", "nanoseconds")],
            shown: 0,
            samples: stacks.iter().map(sample).collect(),
            period: None,
            began_unix_ns: 0,
            duration: Duration::from_secs(1),
            facts: vec![("lost samples".to_owned(), "0\u{1b}[2J".to_owned())],
        }
    }

    #[test]
    fn the_summary_has_facts_and_shares_and_nothing_that_steers_a_terminal() {
        let text = summary(&profile(&[("read main", 30_000_000), ("main", 10_000_000)]));
        assert!(text.starts_with("CPU time: 40.00 ms in 2 stacks\nlost samples: 0?[2J\n"), "{text}");
        assert!(text.contains("30.00 ms   75.0%     30.00 ms   75.0%  read\n"), "{text}");
        assert!(text.contains("10.00 ms   25.0%     40.00 ms  100.0%  main\n"), "{text}");
        let totals = text.split("by their cost with callees").nth(1).expect("the second table");
        assert!(totals.find("main").expect("main") < totals.find("read").expect("read"), "{text}");
    }

    #[test]
    fn a_difference_has_signs_and_swapping_turns_them() {
        let (before, after) = (profile(&[("a", 1_000)]), profile(&[("a", 4_000)]));
        assert!(difference(&before, &after, false).contains("+3.00 us      +3.00 us  a\n"));
        assert!(difference(&after, &before, false).contains("-3.00 us      -3.00 us  a\n"));
        assert!(difference(&before, &after, true).contains("the first 0 of 0"));
        assert_eq!(collapsed_difference(&before, &after, false), "klad-worker;a 1000 4000\n");
        assert_eq!(collapsed_difference(&before, &after, true), "klad-worker;a 4000 4000\n");
    }

    #[test]
    fn amounts_suit_their_size() {
        let amounts =
            [(1_500_000_000, "nanoseconds"), (999, "nanoseconds"), (-2048, "bytes"), (0, "bytes"), (7, "count")];
        let texts: Vec<_> = amounts.iter().map(|(value, unit)| amount(*value, unit)).collect();
        assert_eq!(texts, ["1.50 s", "999 ns", "-2.00 KiB", "0", "7"]);
    }
}
