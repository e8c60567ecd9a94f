//! The charts of a stage. Each shows all variants. Called by `page`.

use crate::conclusion::Frontier;
use crate::result::LabRun;
use crate::variant_runs::VariantRuns;
use klad_bench::compare::figures::Observed;
use klad_bench::result::{Interval, Percentile};
use klad_page::{Axis, Band, Chart, Colour, Series, Style, Unit};

/// The colours of lines. If a chart has more lines than colours, the further lines repeat the colours and are dashed.
const COLOURS: [Colour; 6] = [Colour::Blue, Colour::Orange, Colour::Green, Colour::Purple, Colour::Red, Colour::Yellow];

/// The number of points of the spectrum for each halving of the distance to 100 %.
const POINTS_PER_HALF_DISTANCE: f64 = 4.0;

/// Up to this number of variants, the lines of single runs are drawn. With more variants they would hide other lines.
const SINGLE_RUNS_FOR: usize = 3;

/// The largest number of points of a line over time.
const POINTS_MAX: usize = 600;

/// Returns the colour and style of the variant with this index.
fn line_style(index: usize) -> (Colour, Style) {
    (COLOURS[index % COLOURS.len()], if index < COLOURS.len() { Style::Line } else { Style::Dashed })
}

/// Draws the response times of all variants by percentile; `None` if there are none.
pub(super) fn spectrum(id: &str, variants: &[VariantRuns]) -> Option<Chart> {
    let samples = variants.iter().map(|one| one.pooled.response.len()).max().filter(|samples| *samples > 0)?;
    let at = places(samples);
    let points = |observed: &Observed| at.iter().map(|place| point(observed, *place)).collect::<Vec<_>>();
    let values = |points: &[Option<Percentile>]| points.iter().map(|point| Some(point.as_ref()?.value_us)).collect();
    let mut chart = Chart::new(
        id,
        "Latency by percentile",
        Axis::percentile(samples),
        Axis::log(Unit::Micros).switched(),
        at.clone(),
    );
    let thin = variants.len() <= SINGLE_RUNS_FOR && variants.iter().any(|one| one.repeats.len() > 1);
    let caption = "Response times from the intended start of each request, of all runs of a variant together";
    let repeats = if thin { "; thin lines are single runs" } else { "" };
    chart = chart.caption(format!(
        "{caption}{repeats}. The dashed end of a line has fewer than 10 samples above it: these are single requests."
    ));
    if thin {
        for (index, one) in variants.iter().enumerate() {
            for repeat in &one.repeats {
                let name = format!("single runs of {}", one.name());
                chart =
                    chart.with(Series::line(name, line_style(index).0, values(&points(repeat))).styled(Style::Thin));
            }
        }
    }
    for (index, one) in variants.iter().enumerate().filter(|(_, one)| !one.used.is_empty()) {
        let points = points(&one.pooled);
        let weak = points.iter().position(|point| point.as_ref().is_some_and(|point| !point.enough));
        let (colour, style) = line_style(index);
        chart = chart.with(Series::line(one.name(), colour, values(&points)).styled(style).weak_from(weak));
    }
    Some(chart)
}

/// Returns places on the axis, as 1 ÷ (1 − quantile), up to the last place with a sample above it.
#[expect(clippy::cast_precision_loss, reason = "counts of requests")]
fn places(samples: u64) -> Vec<f64> {
    let halvings = (0_u32..).map(|step| 2_f64.powf(f64::from(step) / POINTS_PER_HALF_DISTANCE));
    halvings.take_while(|place| *place < samples as f64).collect()
}

#[expect(clippy::cast_precision_loss, reason = "counts of requests")]
fn point(observed: &Observed, place: f64) -> Option<Percentile> {
    let there = place < observed.response.len() as f64;
    there.then(|| Percentile::of(&observed.response, 100.0 - 100.0 / place))
}

/// Draws p99 over time, of the run of each variant with the median p99.
pub(super) fn latency(id: &str, variants: &[VariantRuns]) -> Option<Chart> {
    let caption = "p99 of the requests that ended in each interval, of the run of each variant with the median p99.";
    let p99 = |intervals: &[Interval]| {
        let all = intervals.iter().filter_map(|interval| Some(interval.response.as_ref()?.p99_us));
        all.reduce(f64::max)
    };
    over_time([id, "p99 over time", caption], Axis::log(Unit::Micros).switched(), variants, p99)
}

/// Draws good answers per second over time, of the run of each variant with the median p99.
pub(super) fn goodput(id: &str, variants: &[VariantRuns]) -> Option<Chart> {
    let caption = "Good answers over time, of the same runs.";
    #[expect(clippy::cast_precision_loss, reason = "counts of requests")]
    let good = |intervals: &[Interval]| {
        let length: f64 = intervals.iter().map(|interval| interval.length_s).sum();
        let good: u64 = intervals.iter().map(|interval| interval.good).sum();
        (length > 0.0).then(|| good as f64 / length)
    };
    over_time([id, "Goodput over time", caption], Axis::linear(Unit::PerSecond), variants, good)
}

fn over_time(
    [id, title, caption]: [&str; 3],
    y: Axis,
    variants: &[VariantRuns],
    value: impl Fn(&[Interval]) -> Option<f64>,
) -> Option<Chart> {
    let runs: Vec<_> = variants.iter().map(|one| Some(one.median_run()?.1)).collect();
    let longest =
        runs.iter().flatten().max_by_key(|run| run.intervals.len()).filter(|run| !run.intervals.is_empty())?;
    let together = longest.intervals.len().div_ceil(POINTS_MAX);
    let middle = |some: &[Interval]| {
        let last = &some[some.len() - 1];
        f64::midpoint(some[0].start_s, last.start_s + last.length_s)
    };
    let at: Vec<f64> = longest.intervals.chunks(together).map(middle).collect();
    let schedule = longest.load.warm_up_s + longest.load.duration_s;
    let last = longest.intervals.last().map_or(schedule, |last| last.start_s + last.length_s).max(schedule);
    let bands = [(0.0, longest.load.warm_up_s, "warm-up"), (schedule, last, "after the schedule")];
    let bands = bands.into_iter().filter(|(from, to, _)| to - from > 1e-9);
    let bands: Vec<_> = bands.map(|(from, to, label)| Band { from, to, label: label.to_owned() }).collect();
    let places = at.len();
    let thinned = if together > 1 { format!(" Each point is {together} intervals.") } else { String::new() };
    let chart = Chart::new(id, title, Axis::time(0.0, last), y, at);
    let mut chart = chart.caption(format!("{caption}{thinned}")).set_apart(&bands, &[]);
    for (index, (one, run)) in variants.iter().zip(&runs).enumerate() {
        let Some(run) = run else { continue };
        let mut values: Vec<_> = run.intervals.chunks(together).map(&value).collect();
        values.resize(places, None);
        let (colour, style) = line_style(index);
        chart = chart.with(Series::line(one.name(), colour, values).styled(style));
    }
    Some(chart)
}

/// Draws the share of refused requests against p99.9, a point for each size of the queue; `None` where all refuse the
/// same share.
pub(super) fn frontier(id: &str, frontier: &Frontier, variants: &[VariantRuns]) -> Option<Chart> {
    let mut at: Vec<f64> = frontier.points.iter().map(|point| point.refused_share * 100.0).collect();
    at.sort_by(f64::total_cmp);
    at.dedup_by(|one, other| one.total_cmp(other).is_eq());
    if at.len() < 2 {
        return None;
    }
    let caption = "The cost of each size of the queue: the share of refused requests, and p99.9 of the others. Down and to the left is better.";
    let axes = (Axis::linear(Unit::Percent), Axis::log(Unit::Micros).switched());
    let mut chart = Chart::new(id, "Share of refused requests and p99.9", axes.0, axes.1, at.clone()).caption(caption);
    for point in &frontier.points {
        // The variant's colour in the other charts.
        let index = variants.iter().position(|one| one.name() == point.variant).unwrap_or(0);
        let own = point.refused_share * 100.0;
        let value = |place: &f64| place.total_cmp(&own).is_eq().then_some(point.p999_us);
        let recommended = if frontier.recommended.as_ref() == Some(&point.variant) { ", recommended" } else { "" };
        let name = format!("{}: queue of {}{recommended}", point.variant, point.queue);
        chart =
            chart.with(Series::line(name, line_style(index).0, at.iter().map(value).collect()).styled(Style::Points));
    }
    Some(chart)
}

/// A chart of the server's queues: which metrics, how those of all queues are combined, and how they are shown.
struct QueueChart {
    id: &'static str,
    prefix: &'static str,
    title: &'static str,
    caption: &'static str,
    unit: Unit,
    add: fn(f64, f64) -> f64,
    scale: f64,
}

const QUEUE_CHARTS: [QueueChart; 2] = [
    QueueChart {
        id: "waiting",
        prefix: "klad_queue_depth",
        title: "Waiting operations",
        caption: "The sum of all queues of the server, once a second, of the run of each variant with the median p99.",
        unit: Unit::Count,
        add: |one, other| one + other,
        scale: 1.0,
    },
    QueueChart {
        id: "oldest",
        prefix: "klad_queue_oldest_seconds",
        title: "Age of the oldest waiting operation",
        caption: "The largest of all queues, once a second, of the same runs.",
        unit: Unit::Micros,
        add: f64::max,
        scale: 1e6,
    },
];

/// Draws the queues, if an operation ever waited in one.
pub(super) fn queues(prefix: &str, variants: &[VariantRuns]) -> Vec<Chart> {
    let runs: Vec<_> = variants.iter().map(|one| Some(one.median_run()?.0)).collect();
    let chart = |waiting: &QueueChart| {
        let lines: Vec<Vec<Option<f64>>> =
            runs.iter().map(|run| run.map_or_else(Vec::new, |run| line(run, waiting))).collect();
        let anything = lines.iter().flatten().flatten().any(|value| *value > 0.0);
        let length = lines.iter().map(Vec::len).max().filter(|_| anything)?;
        let at: Vec<f64> = (0..u32::try_from(length).ok()?).map(f64::from).collect();
        let axis = Axis::time(0.0, at.last().copied()?.max(1.0));
        let id = format!("{prefix}-{}", waiting.id);
        let mut chart = Chart::new(&id, waiting.title, axis, Axis::linear(waiting.unit), at).caption(waiting.caption);
        for (index, (one, mut values)) in variants.iter().zip(lines).enumerate() {
            values.resize(length, None);
            let (colour, style) = line_style(index);
            chart = chart.with(Series::line(one.name(), colour, values).styled(style));
        }
        Some(chart)
    };
    QUEUE_CHARTS.iter().filter_map(chart).collect()
}

/// Returns the value of each second of a run; `None` for a second without a sample. Runs are sampled at different
/// moments, so the moments are rounded to seconds.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "seconds of a run")]
fn line(run: &LabRun, waiting: &QueueChart) -> Vec<Option<f64>> {
    let mut values = Vec::new();
    for sample in &run.queues {
        let second = sample.at_s.clamp(0.0, 1e6).round() as usize;
        let own = sample.values.iter().filter(|(name, _)| name.starts_with(waiting.prefix)).map(|(_, value)| *value);
        if values.len() <= second {
            values.resize(second + 1, None);
        }
        values[second] = own.reduce(waiting.add).map(|value| value * waiting.scale);
    }
    values
}
