//! The comparison as an HTML page (`--html`): the verdict, both distributions with their repeats, the differences
//! with their intervals, and the table. The page shows the finding and makes no judgement of its own. Called by
//! `compare`.

use hdrhistogram::Histogram;
use maud::{Markup, html};

use crate::compare::figures::{Observed, PERCENTILES, percentile_name};
use crate::compare::finding::{FigureFound, Finding, Judgement, Source, Verdict};
use crate::compare::repeats::Repeats;
use crate::compare::text;
use crate::result::Percentile;
use klad_page::parts::{self, Cell, Column, Tile, Tone};
use klad_page::{Axis, Chart, Colour, Page, Series, Style, Unit};

/// The number of points of the percentile plot for each halving of the distance to 100 %, such as from 90 % to 95 %.
const POINTS_PER_HALF_DISTANCE: f64 = 4.0;

/// The figures at the top of the page.
const KEY_FIGURES: [&str; 4] = ["p50", "p99", "p99.9", "goodput"];

/// Returns the page. `together` has all requests of A, and all requests of B. `repeats` has the repeats of both sides.
#[must_use]
pub fn html(finding: &Finding, together: (&Observed, &Observed), repeats: &Repeats) -> String {
    let title = format!("{} against {}", name(&finding.b), name(&finding.a));
    Page::new(format!("klad bench compare: {title}"))
        .with(html! {
            header {
                p.kind { "klad bench compare" }
                h1 { (title) }
                p { (finding.repeats.note) }
            }
            (banners(finding))
            (parts::tiles(&tiles(finding)))
        })
        .section("Latency", &html! { (latency(together, repeats)) })
        .section("Differences", &html! { (differences(finding, together)) (table(finding)) })
        .section("What was compared", &facts(finding))
        .into_html()
}

fn name(runs: &[Source]) -> String {
    match runs {
        [one] => one.path.clone(),
        [one, ..] => format!("{} and {} more", one.path, runs.len() - 1),
        [] => String::new(),
    }
}

fn banners(finding: &Finding) -> Markup {
    let (tone, word) = match finding.verdict {
        Verdict::Faster => (Tone::Good, "B is faster"),
        Verdict::Slower => (Tone::Bad, "B is slower"),
        Verdict::Mixed => (Tone::Bad, "Mixed"),
        Verdict::NoDifference => (Tone::Good, "No difference beyond the noise"),
        Verdict::NotJudged => (Tone::Warning, "The sides cannot be compared"),
    };
    let mut sentences = vec![finding.sentence.clone()];
    if let Some(smallest) = finding.smallest_at_p99_percent {
        sentences.push(text::smallest(smallest));
    }
    html! {
        @if !finding.valid { (parts::banner(Tone::Bad, "NOT VALID", &finding.not_valid)) }
        (parts::banner(tone, word, &sentences))
        @if !finding.warnings.is_empty() { (parts::banner(Tone::Warning, "WARNING", &finding.warnings)) }
    }
}

fn tone(figure: &FigureFound) -> Tone {
    match figure.verdict {
        Judgement::Better => Tone::Good,
        Judgement::Worse => Tone::Bad,
        Judgement::NoDifference | Judgement::NotJudged => Tone::Plain,
    }
}

fn tiles(finding: &Finding) -> Vec<Tile> {
    let tile = |figure: &FigureFound| Tile {
        name: figure.figure.clone(),
        value: text::difference(figure),
        note: match figure.verdict {
            Judgement::NotJudged => "not judged".to_owned(),
            _ => text::interval(figure),
        },
        tone: tone(figure),
    };
    KEY_FIGURES.iter().filter_map(|name| finding.figure(name)).map(tile).collect()
}

/// Returns the chart of the response times of A and B: a line for all requests of a side together, and one for each
/// repeat.
fn latency((a, b): (&Observed, &Observed), repeats: &Repeats) -> Chart {
    let samples = a.response.len().max(b.response.len());
    let at = places(samples);
    let line = |name: &str, colour: Colour, histogram: &Histogram<u64>| {
        let points: Vec<_> = at.iter().map(|place| point(histogram, *place)).collect();
        let weak = points.iter().position(|point| point.as_ref().is_some_and(|point| !point.enough));
        let values = points.iter().map(|point| Some(point.as_ref()?.value_us)).collect();
        (Series::line(name, colour, values), weak)
    };
    let caption = "Response times by percentile: all requests of a side together, and each repeat as a thin line. \
                   Dashed: fewer than 10 samples above, so the values depend on single requests.";
    let axes = (Axis::percentile(samples), Axis::log(Unit::Micros).switched());
    let mut chart = Chart::new("percentiles", "Latency by percentile", axes.0, axes.1, at.clone()).caption(caption);
    let sides = [("A", Colour::Blue, a, &repeats.a), ("B", Colour::Orange, b, &repeats.b)];
    for (name, colour, _, repeats) in sides {
        for repeat in repeats {
            let (series, _) = line(&format!("each repeat of {name}"), colour, &repeat.response);
            chart = chart.with(series.styled(Style::Thin));
        }
    }
    for (name, colour, all, _) in sides {
        let (series, weak) = line(name, colour, &all.response);
        chart = chart.with(series.weak_from(weak));
    }
    chart
}

/// Returns the positions of the points on the axis, as 1 ÷ (1 − quantile), up to the last position with a sample above
/// it.
#[expect(clippy::cast_precision_loss, reason = "counts of requests")]
fn places(samples: u64) -> Vec<f64> {
    let halvings = (0_u32..).map(|step| 2_f64.powf(f64::from(step) / POINTS_PER_HALF_DISTANCE));
    halvings.take_while(|place| *place < samples as f64).collect()
}

#[expect(clippy::cast_precision_loss, reason = "counts of requests")]
fn point(histogram: &Histogram<u64>, place: f64) -> Option<Percentile> {
    let there = place < histogram.len() as f64;
    there.then(|| Percentile::of(histogram, 100.0 - 100.0 / place))
}

/// Returns the chart of the difference at each judged percentile, with the confidence interval of the difference.
fn differences(finding: &Finding, (a, b): (&Observed, &Observed)) -> Chart {
    let samples = a.response.len().max(b.response.len());
    let judged = PERCENTILES.iter().filter_map(|percentile| {
        let figure = finding.figure(&percentile_name(*percentile))?;
        figure.difference_percent.map(|_| (100.0 / (100.0 - percentile), figure))
    });
    let judged: Vec<_> = judged.collect();
    let values = |of: fn(&FigureFound) -> Option<f64>| judged.iter().map(|(_, figure)| of(figure)).collect();
    let confidence = &finding.confidence;
    let caption = format!(
        "How much longer B takes than A, by the mean over the repeats. All intervals together hold at {:.0} %.",
        confidence.together_percent
    );
    let at = judged.iter().map(|(place, _)| *place).collect();
    let axes = (Axis::percentile(samples), Axis::linear(Unit::Percent));
    Chart::new("differences", "Difference by percentile", axes.0, axes.1, at)
        .caption(caption)
        .with(Series::line("upper end", Colour::Grey, values(|figure| figure.high_percent)).styled(Style::Dashed))
        .with(Series::line("difference", Colour::Blue, values(|figure| figure.difference_percent)))
        .with(Series::line("lower end", Colour::Grey, values(|figure| figure.low_percent)).styled(Style::Dashed))
        .rule(0.0, "no difference")
}

fn table(finding: &Finding) -> Markup {
    let columns = [
        Column::Words("Figure"),
        Column::Figures("A"),
        Column::Figures("B"),
        Column::Figures("Difference"),
        Column::Figures("Interval"),
        Column::Words("Verdict"),
    ];
    let row = |figure: &FigureFound| {
        vec![
            Cell::from(figure.figure.as_str()),
            text::value(figure, figure.a).into(),
            text::value(figure, figure.b).into(),
            text::difference(figure).into(),
            text::interval(figure).into(),
            Cell::toned(tone(figure), text::verdict(figure)),
        ]
    };
    let rows: Vec<_> = finding.figures.iter().map(row).collect();
    html! {
        (parts::table("Differences", &columns, &rows))
        p { "A and B: all requests together. Difference: mean over the repeats, as percent of A; for shares, percentage points (pt)." }
    }
}

fn facts(finding: &Finding) -> Markup {
    let confidence = &finding.confidence;
    let runs = |runs: &[Source]| {
        let run =
            |run: &Source| format!("{} ({}, {} requests to {})", run.path, run.started_utc, run.requests, run.url);
        runs.iter().map(run).collect::<Vec<_>>().join(", ")
    };
    let loads = |runs: &[Source]| runs.first().map_or_else(String::new, |run| run.load.clone());
    parts::facts(&[
        ("A", runs(&finding.a)),
        ("Load of A", loads(&finding.a)),
        ("B", runs(&finding.b)),
        ("Load of B", loads(&finding.b)),
        ("Figures judged", confidence.figures.to_string()),
        ("Confidence", format!("{:.0} % together, {:.2} % each", confidence.together_percent, confidence.each_percent)),
        (
            "Ignored",
            format!(
                "up to {} %, for shares {} points",
                confidence.tolerance_percent, confidence.share_tolerance_points
            ),
        ),
        ("Compared by", format!("klad {}", finding.klad_version)),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recorder::histogram;

    #[test]
    fn a_line_ends_where_no_sample_lies_above() {
        let mut few = histogram();
        few.record_n(1_000_000, 100).expect("in range");
        let at = places(1_000);
        assert!(at.is_sorted() && at[0] <= 1.0 && at[at.len() - 1] < 1_000.0);
        let drawn = at.iter().filter(|place| point(&few, **place).is_some()).count();
        assert_eq!(drawn, at.iter().filter(|place| **place < 100.0).count());
        assert!(places(0).is_empty() && point(&histogram(), 1.0).is_none());
    }
}
