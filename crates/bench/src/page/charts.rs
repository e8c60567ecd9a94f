//! The charts of a run. If a run has more intervals than a chart has points, neighbouring intervals are merged into one
//! point. The point has the mean of their rates and the maximum of their times, so that no peak of a time is lost.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;

use crate::collector::Spectrum;
use crate::page::heat::HeatCounts;
use crate::recorder::Outcome;
use crate::result::{Interval, Percentile, RunResult, SAMPLES_ABOVE_MIN, Summary, micros};
use klad_page::numbers;
use klad_page::{Axis, Band, Chart, Colour, HeatMap, Mark, Series, Style, Unit};

/// The largest number of points of a line. A chart is less than 1,200 CSS pixels wide.
const POINTS_MAX: usize = 1_200;

/// The number of points of the percentile plot for each halving of the distance to 100 %, such as from 90 % to 95 %.
const POINTS_PER_HALF_DISTANCE: f64 = 8.0;

/// A line of a chart: the name, the colour, and the function that reads its value from a [`Summary`].
type Figure = (&'static str, Colour, fn(&Summary) -> f64);

/// The data of the charts over time.
#[derive(Debug)]
pub struct Timeline<'a> {
    result: &'a RunResult,
    points: Vec<Point>,
    /// A sentence for captions that says how many intervals are merged into a point. Empty if no intervals are merged.
    thinned: String,
    end_s: f64,
}

/// A point in time of the charts: one interval, or several merged neighbours.
#[derive(Debug)]
struct Point {
    at_s: f64,
    scheduled_per_s: Option<f64>,
    ended_per_s: f64,
    good_per_s: f64,
    outcomes_per_s: BTreeMap<Outcome, f64>,
    response: Option<Summary>,
    send_lag: Option<Summary>,
}

impl Point {
    #[expect(clippy::cast_precision_loss, reason = "counts of requests")]
    fn of(intervals: &[Interval]) -> Point {
        let (first, last) = (&intervals[0], &intervals[intervals.len() - 1]);
        let length: f64 = intervals.iter().map(|one| one.length_s).sum();
        let per_second = |count: u64| count as f64 / length;
        let mut outcomes = BTreeMap::new();
        for (outcome, count) in intervals.iter().flat_map(|one| &one.outcomes) {
            *outcomes.entry(*outcome).or_insert(0.0) += per_second(*count);
        }
        let scheduled: Option<f64> = intervals.iter().map(|one| Some(one.scheduled_per_s? * one.length_s)).sum();
        Point {
            at_s: f64::midpoint(first.start_s, last.start_s + last.length_s),
            scheduled_per_s: scheduled.map(|count| count / length),
            ended_per_s: outcomes.values().sum(),
            good_per_s: per_second(intervals.iter().map(|one| one.good).sum()),
            outcomes_per_s: outcomes,
            response: largest(intervals.iter().filter_map(|one| one.response.as_ref())),
            send_lag: largest(intervals.iter().filter_map(|one| one.send_lag.as_ref())),
        }
    }
}

fn largest<'a>(summaries: impl Iterator<Item = &'a Summary>) -> Option<Summary> {
    summaries.cloned().reduce(|a, b| Summary {
        p50_us: a.p50_us.max(b.p50_us),
        p90_us: a.p90_us.max(b.p90_us),
        p99_us: a.p99_us.max(b.p99_us),
        p999_us: a.p999_us.max(b.p999_us),
        max_us: a.max_us.max(b.max_us),
    })
}

impl Timeline<'_> {
    /// Creates the data of the charts from the result of a run.
    #[must_use]
    pub fn new(result: &RunResult) -> Timeline<'_> {
        let intervals = &result.intervals;
        let merged = intervals.len().div_ceil(POINTS_MAX).max(1);
        let points = intervals.chunks(merged).map(Point::of).collect();
        let schedule = result.load.warm_up_s + result.load.duration_s;
        let end_s = intervals.last().map_or(0.0, |last| last.start_s + last.length_s).max(schedule);
        let each = intervals.first().map_or(0.0, |first| first.length_s);
        let thinned = if merged == 1 {
            String::new()
        } else {
            format!(
                " Each point is {merged} intervals of {}: rates are means, times are maxima.",
                numbers::seconds(each)
            )
        };
        Timeline { result, points, thinned, end_s }
    }

    fn axis(&self) -> Axis {
        Axis::time(0.0, self.end_s)
    }

    fn bands(&self) -> Vec<Band> {
        let load = &self.result.load;
        let schedule = load.warm_up_s + load.duration_s;
        let parts = [(0.0, load.warm_up_s, "warm-up"), (schedule, self.end_s, "after the schedule")];
        let parts = parts.into_iter().filter(|(from, to, _)| to - from > 1e-9);
        parts.map(|(from, to, label)| Band { from, to, label: label.to_owned() }).collect()
    }

    /// Returns a mark at the beginning of each stage. Empty if there is only one stage.
    fn marks(&self) -> Vec<Mark> {
        let load = &self.result.load;
        let mut at = load.warm_up_s;
        let mut marks = Vec::new();
        for (index, stage) in load.stages.iter().enumerate() {
            marks.push(Mark { at, label: format!("stage {}", index + 1) });
            at += stage.duration_s;
        }
        marks.retain(|mark| mark.at < self.end_s);
        if load.stages.len() > 1 { marks } else { Vec::new() }
    }

    fn chart(&self, id: &str, title: &str, y: Axis, caption: &str) -> Chart {
        let at = self.points.iter().map(|point| point.at_s).collect();
        Chart::new(id, title, self.axis(), y, at)
            .caption(format!("{caption}{}", self.thinned))
            .set_apart(&self.bands(), &self.marks())
    }

    fn series(&self, name: &str, colour: Colour, value: impl Fn(&Point) -> Option<f64>) -> Series {
        Series::line(name, colour, self.points.iter().map(value).collect())
    }

    /// Returns the chart of the rates of scheduled requests, ended requests and goodput.
    #[must_use]
    pub fn rate(&self) -> Chart {
        let caption = "Scheduled requests, requests that were answered or ended otherwise, and good answers.";
        let ended = self.series("answered or ended", Colour::Blue, |point| Some(point.ended_per_s)).styled(Style::Area);
        let good = self.series("goodput", Colour::Green, |point| Some(point.good_per_s));
        let chart = self.chart("rate", "Rate", Axis::linear(Unit::PerSecond), caption).with(ended).with(good);
        if self.points.iter().all(|point| point.scheduled_per_s.is_none()) {
            return chart;
        }
        let scheduled = self.series("scheduled", Colour::Orange, |point| point.scheduled_per_s);
        chart.with(scheduled.styled(Style::Dashed))
    }

    /// Returns the chart of the percentiles of response times.
    #[must_use]
    pub fn latency(&self) -> Chart {
        let caption =
            "Response times, from the intended start of each request, by the time at which the request ended.";
        let chart = self.chart("latency", "Latency", Axis::log(Unit::Micros).switched(), caption);
        let figures: [Figure; 5] = [
            ("p50", Colour::Step1, |summary| summary.p50_us),
            ("p90", Colour::Step2, |summary| summary.p90_us),
            ("p99", Colour::Step3, |summary| summary.p99_us),
            ("p99.9", Colour::Step4, |summary| summary.p999_us),
            ("max", Colour::Step5, |summary| summary.max_us),
        ];
        self.with_figures(chart, &figures, |point| point.response.as_ref())
    }

    /// Adds `figures` to `chart` as lines. The last one is dashed, because it is the maximum, a single request.
    fn with_figures(&self, chart: Chart, figures: &[Figure], of: fn(&Point) -> Option<&Summary>) -> Chart {
        figures.iter().enumerate().fold(chart, |chart, (index, (name, colour, value))| {
            let style = if index + 1 == figures.len() { Style::Dashed } else { Style::Line };
            chart.with(self.series(name, *colour, |point| of(point).map(value)).styled(style))
        })
    }

    /// Returns the chart of the rates of all outcomes that occurred.
    #[must_use]
    pub fn outcomes(&self) -> Chart {
        let occurs = |outcome: &Outcome| self.points.iter().any(|point| point.outcomes_per_s.contains_key(outcome));
        let occurring: Vec<_> = Outcome::ALL.into_iter().filter(occurs).collect();
        // On a logarithmic axis, a few requests are visible beside many thousands.
        let y = if occurring.len() > 1 { Axis::log(Unit::PerSecond) } else { Axis::linear(Unit::PerSecond) };
        let caption = "Outcomes of requests, by the time at which the request ended.";
        occurring.into_iter().fold(self.chart("outcomes", "Outcomes", y.switched(), caption), |chart, outcome| {
            let value = |point: &Point| Some(point.outcomes_per_s.get(&outcome).copied().unwrap_or(0.0));
            chart.with(self.series(&words(outcome), colour(outcome), value))
        })
    }

    /// Returns the chart of the send lag: how late the generator itself was. `bound_us` is the largest allowed send
    /// lag.
    #[must_use]
    pub fn send_lag(&self, bound_us: f64) -> Chart {
        let caption = "Lateness of the generator: from the moment at which a request could be sent to the send.";
        let chart = self.chart("send-lag", "Send lag", Axis::log(Unit::Micros).switched(), caption);
        let bound = format!("limit for 99.9 %: {}", numbers::bound_micros(bound_us));
        let figures: [Figure; 3] = [
            ("p50", Colour::Step1, |summary| summary.p50_us),
            ("p99.9", Colour::Step4, |summary| summary.p999_us),
            ("max", Colour::Step5, |summary| summary.max_us),
        ];
        self.with_figures(chart.rule(bound_us, bound), &figures, |point| point.send_lag.as_ref())
    }

    /// Returns the heat map of response times, from the counts in `heat`.
    #[must_use]
    pub fn heat(&self, heat: &HeatCounts) -> HeatMap {
        let caption = "The colour of a cell is the number of requests that ended at that time with that response time.";
        heat.figure(self.axis()).caption(caption).set_apart(&self.bands(), &self.marks())
    }
}

/// Returns the name of an outcome for people, with spaces.
#[must_use]
pub fn words(outcome: Outcome) -> String {
    outcome.name().replace('_', " ")
}

fn colour(outcome: Outcome) -> Colour {
    match outcome {
        Outcome::Served => Colour::Blue,
        Outcome::NotFound => Colour::Yellow,
        Outcome::Refused => Colour::Orange,
        Outcome::Failed => Colour::Red,
        Outcome::TimedOut => Colour::Purple,
        Outcome::Unfinished => Colour::Grey,
    }
}

/// Returns the chart of response and service times by percentile, with the axis of `HdrHistogram`'s plots.
#[must_use]
pub fn percentiles(spectrum: &Spectrum) -> Chart {
    let samples = spectrum.response.len();
    let at = places(samples);
    let line = |name: &str, colour: Colour, histogram: &Histogram<u64>| {
        let points: Vec<_> = at.iter().map(|place| point(histogram, *place, samples)).collect();
        let weak = points.iter().position(|point| point.as_ref().is_some_and(|point| !point.enough));
        let values = points.iter().map(|point| Some(point.as_ref()?.value_us)).collect();
        Series::line(name, colour, values).weak_from(weak)
    };
    let response = line("response time", Colour::Blue, &spectrum.response);
    let service = line("service time", Colour::Orange, &spectrum.service);
    let caption = "Response time counts from the intended start of each request, service time from its send. \
                   Dashed: fewer than 10 samples above, so the values depend on single requests.";
    Chart::new(
        "percentiles",
        "Latency by percentile",
        Axis::percentile(samples),
        Axis::log(Unit::Micros).switched(),
        at,
    )
    .caption(caption)
    .with(service)
    .with(response)
}

/// Returns the positions of the points on the axis for `samples` samples, as 1 ÷ (1 − quantile). The positions are
/// evenly spaced on the logarithmic axis while at least ten samples lie above. Each of the last ten samples has a
/// position, and so has the maximum, in the middle of the last sample's share.
#[expect(clippy::cast_precision_loss, reason = "counts of requests")]
fn places(samples: u64) -> Vec<f64> {
    if samples == 0 {
        return Vec::new();
    }
    let all = samples as f64;
    let last = SAMPLES_ABOVE_MIN.min(samples.saturating_sub(1));
    let even = (0_u32..).map(|step| 2_f64.powf(f64::from(step) / POINTS_PER_HALF_DISTANCE));
    let mut places: Vec<f64> = even.take_while(|place| *place < all / last.max(1) as f64).collect();
    places.extend((1..=last).rev().map(|above| all / above as f64));
    places.push(2.0 * all);
    places
}

#[expect(clippy::cast_precision_loss, reason = "counts of requests")]
fn point(histogram: &Histogram<u64>, place: f64, samples: u64) -> Option<Percentile> {
    if histogram.is_empty() {
        return None;
    }
    if place > samples as f64 {
        let maximum = Percentile::of(histogram, 100.0);
        return Some(Percentile { value_us: micros(histogram.max()), enough: false, ..maximum });
    }
    Some(Percentile::of(histogram, 100.0 - 100.0 / place))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::testing::result;

    fn summary(value: f64) -> Summary {
        Summary { p50_us: value, p90_us: value, p99_us: value, p999_us: value, max_us: value }
    }

    /// A run with this many intervals, of which one has a peak and a failure.
    fn run(intervals: u32, peak: usize) -> RunResult {
        let mut result = result(intervals);
        for row in &mut result.intervals {
            row.response = Some(summary(100.0));
        }
        result.intervals[peak].response = Some(summary(5_000.0));
        result.intervals[peak].outcomes = BTreeMap::from([(Outcome::Served, 40), (Outcome::Failed, 1)]);
        result
    }

    /// The features of a run made by [`run`] that merging has lost.
    fn lost(points: &[Point], intervals: u32) -> Vec<&'static str> {
        let mut lost = Vec::new();
        let max = points.iter().filter_map(|point| point.response.as_ref()).map(|one| one.max_us).fold(0.0, f64::max);
        if max < 5_000.0 {
            lost.push("the peak");
        }
        if !points.iter().any(|point| point.outcomes_per_s.contains_key(&Outcome::Failed)) {
            lost.push("the failure");
        }
        let length = f64::from(intervals);
        let ended: f64 = points.iter().map(|point| point.ended_per_s).sum::<f64>() * length;
        let expected = f64::from(10 * (intervals - 1) + 41);
        // Means of equal intervals add up to the total; the last point may cover fewer intervals.
        if (ended / expected / f64::from(u32::try_from(points.len()).expect("few")) - 1.0).abs() > 0.01 {
            lost.push("requests");
        }
        if points.len() > POINTS_MAX || points.is_empty() {
            lost.push("the bound");
        }
        lost
    }

    #[test]
    fn merging_keeps_maxima_rare_outcomes_and_rates() {
        for (intervals, peak) in [(1, 0), (1_200, 7), (1_201, 1_200), (3_600, 1_801)] {
            let run = run(intervals, peak);
            let timeline = Timeline::new(&run);
            assert_eq!(lost(&timeline.points, intervals), Vec::<&str>::new(), "{intervals} intervals");
            assert_eq!(timeline.thinned.is_empty(), intervals <= 1_200);
        }
    }

    #[test]
    fn twin_merging_by_omission_is_noticed() {
        let run = run(3_600, 1_801);
        let every_third: Vec<_> = run.intervals.chunks(3).map(|three| Point::of(&three[..1])).collect();
        assert_eq!(lost(&every_third, 3_600), ["the peak", "the failure"]);
        let all: Vec<_> = run.intervals.chunks(1).map(Point::of).collect();
        assert_eq!(lost(&all, 3_600), ["the bound"]);
    }

    #[test]
    fn parts_outside_the_measured_part_are_shaded() {
        let mut run = result(12);
        (run.load.warm_up_s, run.load.duration_s) = (2.0, 9.0);
        let bands: Vec<_> =
            Timeline::new(&run).bands().into_iter().map(|band| (band.from, band.to, band.label)).collect();
        assert_eq!(bands, [(0.0, 2.0, "warm-up".to_owned()), (11.0, 12.0, "after the schedule".to_owned())]);
        assert!(Timeline::new(&run).marks().is_empty(), "one stage needs no mark");
        let mut stage = run.load.stages[0].clone();
        stage.duration_s = 4.5;
        run.load.stages = vec![stage.clone(), stage];
        assert_eq!(Timeline::new(&run).marks().len(), 2);
    }

    #[test]
    fn percentiles_end_with_the_maximum_and_mark_values_with_few_samples() {
        let mut histogram = Histogram::new(3).expect("3 digits");
        histogram.record_n(1_000_000, 1_000).expect("in range");
        histogram.record(7_000_000).expect("in range");
        let places = places(histogram.len());
        let points: Vec<_> = places.iter().filter_map(|place| point(&histogram, *place, 1_001)).collect();
        assert_eq!(points.len(), places.len());
        assert!((points[0].percentile, points[0].value_us) <= (0.0, 1_000.5));
        assert!((points[points.len() - 1].value_us - 7_000.0).abs() < 4.0);
        assert!(points[points.len() - 2].value_us < 1_001.0, "one sample lies above the last but one position");
        let weak = points.iter().position(|point| !point.enough).expect("the last positions have few samples");
        assert!((places[weak] - 1_001.0 / 9.0).abs() < 1e-9, "{}", places[weak]);
        assert!(points[weak..].iter().all(|point| !point.enough));
        assert!(super::places(0).is_empty());
        assert_eq!(super::places(1), [2.0]);
    }
}
