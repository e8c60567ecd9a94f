//! The comparison as text, and the sentences of the finding. Called by `compare`, `page` and `judge`.

use std::fmt::Write as _;

use crate::compare::finding::{FigureFound, Finding, Judgement, Source, Verdict};
use crate::compare::repeats::{Kind, Repeats};
use crate::text::{line, time_us};

/// The largest number of files of a side that are named. Of further files, only the number is shown.
const FILES_SHOWN: usize = 4;

/// Returns the whole text of a comparison.
#[must_use]
pub fn report(finding: &Finding) -> String {
    let mut text = String::new();
    for run in &finding.not_valid {
        line!(text, "NOT VALID: {run}");
    }
    if !finding.valid {
        line!(text, "The figures of these runs are not reliable.\n");
    }
    for warning in &finding.warnings {
        line!(text, "WARNING: {warning}");
    }
    if !finding.warnings.is_empty() {
        text.push('\n');
    }
    side(&mut text, "A", &finding.a);
    side(&mut text, "B", &finding.b);
    line!(text, "  {}", finding.repeats.note);
    confidence(&mut text, finding);
    table(&mut text, &finding.figures);
    line!(text, "\n{}", finding.sentence);
    if let Some(smallest) = finding.smallest_at_p99_percent {
        line!(text, "{}", self::smallest(smallest));
    }
    text
}

fn side(text: &mut String, name: &str, runs: &[Source]) {
    let paths: Vec<_> = runs.iter().take(FILES_SHOWN).map(|run| run.path.as_str()).collect();
    let others = runs.len() - paths.len();
    let others = if others > 0 { format!(" and {others} more") } else { String::new() };
    let requests: u64 = runs.iter().map(|run| run.requests).sum();
    let count = match runs.len() {
        1 => "1 run".to_owned(),
        count => format!("{count} runs"),
    };
    let (from, load) = (&runs[0].started_utc, &runs[0].load);
    line!(text, "{name} {}{others}", paths.join(", "));
    line!(text, "  {count} from {from} on, {requests} requests, {load}, {}", runs[0].url);
}

fn confidence(text: &mut String, finding: &Finding) {
    let confidence = &finding.confidence;
    if confidence.figures == 0 {
        return;
    }
    line!(
        text,
        "  The intervals of all {} figures together hold at {:.0} % ({:.2} % each). Differences up to {} % ({} points for shares) are ignored",
        confidence.figures,
        confidence.together_percent,
        confidence.each_percent,
        confidence.tolerance_percent,
        confidence.share_tolerance_points
    );
    line!(text, "  A and B: all requests together. Difference: mean over the repeats, as percent of A");
}

/// Returns a sentence about the repeats, and about what repeats of this kind cannot show.
#[must_use]
pub fn repeats_note(repeats: &Repeats) -> String {
    let (a, b) = (repeats.a.len(), repeats.b.len());
    let together = match (repeats.kind, repeats.paired) {
        (Kind::Runs, true) => ", in pairs: the runs were made in turn, so drift of the machine cancels",
        (Kind::Pieces, true) => ", in pairs: the load changes, and pieces at the same position have the same load",
        (_, false) => "",
    };
    match repeats.kind {
        _ if repeats.missing.is_some() => "Repeats: none".to_owned(),
        Kind::Runs => format!("Repeats: {a} runs of A and {b} of B{together}"),
        Kind::Pieces => format!(
            "Repeats: {a} pieces of A's run and {b} of B's{together}. Pieces do not show how two starts of a server differ; \
             several runs of each side do"
        ),
    }
}

fn table(text: &mut String, figures: &[FigureFound]) {
    line!(text, "\n  Figure                A            B   Difference   Interval              Verdict");
    for figure in figures {
        line!(
            text,
            "  {:<10} {:>12} {:>12} {:>12}   {:<21} {}",
            figure.figure,
            value(figure, figure.a),
            value(figure, figure.b),
            difference(figure),
            interval(figure),
            verdict(figure)
        );
    }
}

/// Formats a value of a figure with its unit.
#[must_use]
pub fn value(figure: &FigureFound, value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| written(figure, value))
}

/// Formats the difference of a figure.
#[must_use]
pub fn difference(figure: &FigureFound) -> String {
    figure.difference_percent.map_or_else(|| "-".to_owned(), |by| signed(figure, by))
}

/// Formats the confidence interval of a figure.
#[must_use]
pub fn interval(figure: &FigureFound) -> String {
    match (figure.low_percent, figure.high_percent) {
        (Some(low), Some(high)) => format!("{} to {}", bare(figure, low), signed(figure, high)),
        (None, None) => "-".to_owned(),
        _ => "too few repeats".to_owned(),
    }
}

/// Returns the verdict on a figure, or the reason why it was not judged.
#[must_use]
pub fn verdict(figure: &FigureFound) -> String {
    match &figure.why_not {
        Some(why) => format!("not judged: {why}"),
        None => word(figure).to_owned(),
    }
}

/// Returns a sentence about the smallest difference that these runs could show.
#[must_use]
pub fn smallest(percent: f64) -> String {
    format!("At p99 these runs could show a difference of {percent:.1} % or more.")
}

/// Formats a value with its unit.
fn written(figure: &FigureFound, value: f64) -> String {
    match figure.unit {
        "us" => time_us(value),
        "per_s" => format!("{value:.1}/s"),
        _ => format!("{:.3} %", value * 100.0),
    }
}

/// The largest percentage that is shown; a larger one is shown as `over 9999`.
const PERCENT_SHOWN_MAX: f64 = 9_999.0;

fn bare(figure: &FigureFound, percent: f64) -> String {
    if percent > PERCENT_SHOWN_MAX {
        return format!("over {PERCENT_SHOWN_MAX}");
    }
    if figure.unit == "share" { format!("{percent:+.2}") } else { format!("{percent:+.1}") }
}

fn signed(figure: &FigureFound, percent: f64) -> String {
    format!("{} {}", bare(figure, percent), if figure.unit == "share" { "pt" } else { "%" })
}

/// Returns the verdict on a figure in words that fit its unit, such as `slower` for times.
fn word(figure: &FigureFound) -> &'static str {
    match (figure.verdict, figure.unit) {
        (Judgement::Better, "us") => "faster",
        (Judgement::Worse, "us") => "slower",
        (Judgement::Better, "per_s") => "better: more",
        (Judgement::Worse, "per_s") => "worse: less",
        (Judgement::Better, _) => "better: fewer",
        (Judgement::Worse, _) => "worse: more",
        (Judgement::NoDifference, _) => "no difference",
        (Judgement::NotJudged, _) => "not judged",
    }
}

/// Returns the verdict in words. `missing` says why there are no repeats.
#[must_use]
pub fn sentence(finding: &Finding, missing: Option<&str>) -> String {
    let named = |judgement| {
        let all = finding.figures.iter().filter(|figure| figure.verdict == judgement);
        all.map(phrase).collect::<Vec<_>>().join(", ")
    };
    let (better, worse) = (named(Judgement::Better), named(Judgement::Worse));
    match finding.verdict {
        Verdict::Slower => format!("B is slower: {worse}."),
        Verdict::Faster => format!("B is faster: {better}."),
        Verdict::Mixed => format!("Mixed: B is slower: {worse}; and faster: {better}."),
        Verdict::NoDifference => "No difference beyond the noise.".to_owned(),
        Verdict::NotJudged => missing.unwrap_or("no figure has enough samples in every repeat").to_owned(),
    }
}

/// Describes a difference, such as `p99 10.1 % (8.9 to 11.3 %)`.
fn phrase(figure: &FigureFound) -> String {
    let (by, low, high) = (figure.difference_percent, figure.low_percent, figure.high_percent);
    // The difference and both ends of its interval have the same sign: otherwise the figure would not count as
    // different.
    let [by, low, high] = [by, low, high].map(|percent| percent.map(f64::abs));
    let shares = figure.unit == "share";
    let digits = |percent: f64| match shares {
        _ if percent > PERCENT_SHOWN_MAX => format!("over {PERCENT_SHOWN_MAX}"),
        true => format!("{percent:.2}"),
        false => format!("{percent:.1}"),
    };
    let unit = if shares { "points" } else { "%" };
    let more = match (figure.unit, figure.difference_percent) {
        ("us", _) => "",
        (_, Some(..0.0)) => " less",
        _ => " more",
    };
    let ends = match (low, high) {
        (Some(low), Some(high)) => format!(" ({} to {} {unit})", digits(low.min(high)), digits(low.max(high))),
        _ => String::new(),
    };
    let by = by.map_or_else(|| "more than can be shown".to_owned(), |by| format!("{} {unit}", digits(by)));
    format!("{} {by}{more}{ends}", figure.figure)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(unit: &'static str, verdict: Judgement, [by, low, high]: [f64; 3]) -> FigureFound {
        FigureFound {
            figure: "it".to_owned(),
            unit,
            a: Some(1.0),
            b: Some(2.0),
            difference_percent: Some(by),
            low_percent: Some(low),
            high_percent: Some(high),
            verdict,
            why_not: None,
        }
    }

    #[test]
    fn differences_are_described_by_size_and_direction() {
        let phrase_of = |unit, verdict, by| phrase(&figure(unit, verdict, by));
        assert_eq!(phrase_of("us", Judgement::Worse, [10.12, 8.91, 11.34]), "it 10.1 % (8.9 to 11.3 %)");
        assert_eq!(phrase_of("us", Judgement::Better, [-10.0, -12.0, -8.0]), "it 10.0 % (8.0 to 12.0 %)");
        assert_eq!(phrase_of("per_s", Judgement::Worse, [-50.0, -51.0, -49.0]), "it 50.0 % less (49.0 to 51.0 %)");
        assert_eq!(phrase_of("per_s", Judgement::Better, [5.0, 4.0, 6.0]), "it 5.0 % more (4.0 to 6.0 %)");
        assert_eq!(
            phrase_of("share", Judgement::Worse, [1.5, 1.25, 1.75]),
            "it 1.50 points more (1.25 to 1.75 points)"
        );
        assert_eq!(
            phrase_of("share", Judgement::Better, [-1.5, -1.75, -1.25]),
            "it 1.50 points less (1.25 to 1.75 points)"
        );
        assert_eq!(phrase_of("us", Judgement::Worse, [20_000.0, 300.0, 2e9]), "it over 9999 % (300.0 to over 9999 %)");
    }

    #[test]
    fn columns_are_aligned() {
        let mut text = String::new();
        let judged = figure("us", Judgement::NoDifference, [0.5, -1.0, 2.0]);
        let not = FigureFound { why_not: Some("why".to_owned()), a: None, difference_percent: None, ..judged.clone() };
        let unbounded = FigureFound { high_percent: None, ..judged.clone() };
        table(&mut text, &[judged, not, unbounded]);
        let lines: Vec<_> = text.lines().skip(1).collect();
        let at = |line: &str, word: &str| line.find(word).expect("the line has it") + word.len();
        assert_eq!(at(lines[0], " A"), at(lines[1], "1.00us"), "{text}");
        assert_eq!(at(lines[0], "Difference"), at(lines[1], "+0.5 %"), "{text}");
        assert_eq!(lines[0].find("Interval"), lines[1].find("-1.0 to +2.0 %"), "{text}");
        assert_eq!(lines[0].find("Verdict"), lines[1].find("no difference"), "{text}");
        assert_eq!(lines[0].find("Verdict"), lines[2].find("not judged: why"), "{text}");
        assert!(lines[3].contains("too few repeats"), "{text}");
    }
}
