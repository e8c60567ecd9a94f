//! The result of a search as an HTML page: the offered rate against goodput and response times, every level, and the
//! queues and CPU profiles at the last good and the first bad rate. Called by `knee`.

use std::collections::BTreeMap;

use maud::{Markup, html};

use crate::knee::result::{Evidence, KneeResult, Level, Outcome, Purpose, StopReason};
use crate::knee::text::conclusion;
use crate::page::tables;
use crate::recorder;
use klad_page::parts::{Cell, Column, Tile, Tone};
use klad_page::{Axis, Band, Chart, Colour, Page, Series, Style, Unit, numbers, parts};
use klad_profile::{picture, pprof};

/// The metrics that are drawn: for each chart, the prefix of the metrics' names, the title, and the unit.
const QUEUES: [(&str, &str, Unit); 4] = [
    ("klad_http_requests_in_flight", "Requests in flight", Unit::Count),
    ("klad_operations_in_use", "Operations in flight in storage", Unit::Count),
    ("klad_queue_depth", "Waiting operations", Unit::Count),
    ("klad_queue_oldest_seconds", "Wait of the oldest operation, seconds", Unit::Plain),
];

/// The colours of the lines of one chart.
const COLOURS: [Colour; 6] = [Colour::Blue, Colour::Orange, Colour::Green, Colour::Purple, Colour::Red, Colour::Yellow];

/// Returns the page.
pub(super) fn html(result: &KneeResult) -> String {
    let all = by_rate(&result.levels);
    let levels: Vec<_> = all.iter().copied().filter(|level| level.counted).collect();
    let mut page = Page::new(format!("klad bench knee: {}", result.target.url))
        .with(html! {
            header {
                p.kind { "klad bench knee · " (result.started.utc) }
                h1 { (result.target.url) }
                p { (result.load.workload) "; objective " code { (result.slo) } }
            }
            (verdict(result))
            (parts::tiles(&tiles(result)))
        })
        .section("Offered rate", &html! { (goodput(result, &levels)) (latency(result, &levels)) (shares(&levels)) })
        .section("Levels", &table(&all));
    if !result.evidence.is_empty() {
        page = page.section("The server at the last good and the first bad rate", &evidence(result));
    }
    page.section("The search", &facts(result)).into_html()
}

/// Sorts levels by rate. Levels with the same rate stay in the order of their runs.
fn by_rate(levels: &[Level]) -> Vec<&Level> {
    let mut all: Vec<_> = levels.iter().collect();
    all.sort_by(|one, other| one.rate_per_s.total_cmp(&other.rate_per_s));
    all
}

fn verdict(result: &KneeResult) -> Markup {
    let mut lines = conclusion(result).into_iter().map(|line| line.trim().to_owned());
    let word = lines.next().unwrap_or_default();
    let tone = match result.found.outcome {
        _ if result.stopped_by().contains(&StopReason::Generator) => Tone::Warning,
        Outcome::Found | Outcome::NotReached => Tone::Good,
        Outcome::NoneGood => Tone::Bad,
        Outcome::Unsteady | Outcome::BrokenOff => Tone::Warning,
    };
    parts::banner(tone, &word, &lines.collect::<Vec<_>>())
}

fn tiles(result: &KneeResult) -> Vec<Tile> {
    let edge = |name: &str, edge: Option<crate::knee::result::Edge>, tone: Tone| {
        let value = edge.map_or_else(|| "none".to_owned(), |edge| numbers::per_second(edge.rate_per_s));
        let note = edge.map_or_else(String::new, |edge| format!("{} good, {} bad", edge.good_runs, edge.bad_runs));
        Tile { name: name.to_owned(), value, note, tone }
    };
    let names: Vec<_> = result.stopped_by().iter().map(|stop| stop.name()).collect();
    let stopped = if names.is_empty() { "nothing".to_owned() } else { names.join(", ") };
    vec![
        edge("Last good", result.found.good, Tone::Good),
        edge("First bad", result.found.bad, Tone::Bad),
        Tile { name: "Stopped by".to_owned(), value: stopped, ..Tile::default() },
        Tile { name: "Levels".to_owned(), value: result.levels.len().to_string(), ..Tile::default() },
    ]
}

/// Returns the rates of `levels`, which are sorted by rate, each rate once.
fn rates(levels: &[&Level]) -> Vec<f64> {
    let mut rates: Vec<_> = levels.iter().map(|level| level.rate_per_s).collect();
    rates.dedup_by(|one, other| one.total_cmp(other).is_eq());
    rates
}

/// Returns, for each rate, the median of a figure over the runs that have the figure.
fn medians(levels: &[&Level], figure: impl Fn(&Level) -> Option<f64>) -> Vec<Option<f64>> {
    let median = |rate: f64| {
        let runs = levels.iter().filter(|level| level.rate_per_s.total_cmp(&rate).is_eq());
        let mut values: Vec<f64> = runs.filter_map(|level| figure(level)).collect();
        values.sort_by(f64::total_cmp);
        values.get(values.len() / 2).copied()
    };
    rates(levels).into_iter().map(median).collect()
}

/// Returns the coloured band of the rates above the last good rate.
fn beyond(result: &KneeResult, levels: &[&Level]) -> Vec<Band> {
    let last = levels.last().map_or(0.0, |level| level.rate_per_s);
    let from = result.found.good.map_or(0.0, |edge| edge.rate_per_s);
    let band = Band { from, to: last, label: "objective missed".to_owned() };
    if last > from { vec![band] } else { Vec::new() }
}

fn goodput(result: &KneeResult, levels: &[&Level]) -> Chart {
    let at = rates(levels);
    let offered = at.iter().copied().map(Some).collect();
    Chart::new("goodput", "Goodput", Axis::linear(Unit::PerSecond), Axis::linear(Unit::PerSecond), at)
        .caption(
            "The offered rate, and the rates of answers and of good answers; the median over the runs of each rate.",
        )
        .with(Series::line("answered", Colour::Orange, medians(levels, |level| Some(level.measured.answered_per_s))))
        .with(Series::line("offered", Colour::Grey, offered).styled(Style::Dashed))
        .with(Series::line("goodput", Colour::Blue, medians(levels, |level| Some(level.measured.goodput_per_s))))
        .set_apart(&beyond(result, levels), &[])
}

fn latency(result: &KneeResult, levels: &[&Level]) -> Chart {
    let at = |percentile| {
        medians(levels, move |level: &Level| level.measured.response.at(percentile).map(|point| point.value_us))
    };
    Chart::new("latency", "Response time", Axis::linear(Unit::PerSecond), Axis::log(Unit::Micros), rates(levels))
        .caption("Response time counts from the intended start of each request; the median over the runs of each rate.")
        .with(Series::line("p50", Colour::Step1, at(50.0)))
        .with(Series::line("p99", Colour::Step3, at(99.0)))
        .with(Series::line("p99.9", Colour::Step5, at(99.9)))
        .set_apart(&beyond(result, levels), &[])
}

fn shares(levels: &[&Level]) -> Chart {
    use recorder::Outcome::{Failed, Refused, TimedOut, Unfinished};
    let share =
        |outcomes: &'static [recorder::Outcome]| medians(levels, move |level| Some(level.share_of(outcomes) * 100.0));
    Chart::new("shares", "Not served", Axis::linear(Unit::PerSecond), Axis::linear(Unit::Percent), rates(levels))
        .caption("Shares of all scheduled requests.")
        .with(Series::line("refused", Colour::Orange, share(&[Refused])))
        .with(Series::line("failed, timed out, unfinished", Colour::Red, share(&[Failed, TimedOut, Unfinished])))
}

fn table(levels: &[&Level]) -> Markup {
    use recorder::Outcome::{Failed, Refused, TimedOut, Unfinished};
    let columns = [
        Column::Figures("Offered"),
        Column::Figures("Goodput"),
        Column::Figures("p50"),
        Column::Figures("p99"),
        Column::Figures("p99.9"),
        Column::Figures("Refused"),
        Column::Figures("Failed"),
        Column::Words("Run"),
        Column::Words("Verdict"),
    ];
    let rows: Vec<Vec<Cell>> = levels
        .iter()
        .map(|level| {
            let at = |percentile| tables::at(&level.measured.response, percentile);
            let percent = |outcomes| format!("{:.3} %", level.share_of(outcomes) * 100.0);
            let verdict = level.verdict();
            vec![
                numbers::per_second(level.rate_per_s).into(),
                numbers::per_second(level.measured.goodput_per_s).into(),
                at(50.0).into(),
                at(99.0).into(),
                at(99.9).into(),
                percent(&[Refused]).into(),
                percent(&[Failed, TimedOut, Unfinished]).into(),
                level.purpose.name().into(),
                Cell::toned(Tone::of(level.good), verdict),
            ]
        })
        .collect();
    parts::table("Levels", &columns, &rows)
}

fn evidence(result: &KneeResult) -> Markup {
    html! {
        p {
            "These are separate runs, which do not count in the search, because recording costs the server time. Click on a profile \
             to open it."
        }
        @for one in &result.evidence { (one_evidence(one)) }
        (difference(&result.evidence))
    }
}

fn which(evidence: &Evidence) -> &'static str {
    if evidence.good { "Last good" } else { "First bad" }
}

fn one_evidence(evidence: &Evidence) -> Markup {
    let name = which(evidence);
    let rate = numbers::per_second(evidence.level.rate_per_s);
    html! {
        h3 { (name) ": " (rate) }
        @for missing in &evidence.missing { (parts::banner(Tone::Warning, "Missing", std::slice::from_ref(missing))) }
        @for (prefix, title, unit) in QUEUES { (queues(evidence, prefix, title, unit)) }
        @if let Ok(profile) = pprof::decode(&evidence.profile_bytes) {
            (embedded(&format!("CPU profile at {rate}"), &picture::flame_graph(&profile)))
        }
    }
}

fn queues(evidence: &Evidence, prefix: &str, title: &str, unit: Unit) -> Markup {
    let samples = &evidence.queues;
    let mut names: BTreeMap<&str, f64> = BTreeMap::new();
    for (name, value) in samples.iter().flat_map(|sample| &sample.values).filter(|(name, _)| name.starts_with(prefix)) {
        let most = names.entry(name).or_insert(0.0);
        *most = most.max(*value);
    }
    // Sort by the largest value, because an execution model may have more queues than there are colours.
    let mut names: Vec<_> = names.into_iter().collect();
    names.sort_by(|one, other| other.1.total_cmp(&one.1));
    if names.is_empty() || samples.is_empty() {
        return html! {};
    }
    let at: Vec<f64> = samples.iter().map(|sample| sample.at_s).collect();
    let id = format!("{prefix}-{}", if evidence.good { "good" } else { "bad" });
    let end = at.last().copied().unwrap_or(0.0);
    let mut chart = Chart::new(&id, title, Axis::time(0.0, end), Axis::linear(unit), at);
    for ((name, _), colour) in names.iter().zip(COLOURS) {
        let values = samples.iter().map(|sample| sample.values.get(*name).copied()).collect();
        let short = name.split('"').nth(1).unwrap_or(name);
        chart = chart.with(Series::line(short, colour, values));
    }
    html! { (chart) }
}

/// Returns the difference between the two profiles, which shows where the server spends more or less time at the first
/// bad rate.
fn difference(all: &[Evidence]) -> Markup {
    let [good, bad] = all else { return html! {} };
    let (Ok(before), Ok(after)) = (pprof::decode(&good.profile_bytes), pprof::decode(&bad.profile_bytes)) else {
        return html! {};
    };
    if let Ok(page) = picture::difference_page(&before, &after, ["last good", "first bad"], true) {
        embedded("Difference of the profiles: red takes more time at the first bad rate", &page)
    } else {
        html! {}
    }
}

/// Embeds another page in this page. The browser lays the embedded page out only when the user opens it.
fn embedded(title: &str, page: &str) -> Markup {
    html! {
        details.embedded {
            summary { (title) }
            iframe title=(title) srcdoc=(page) loading="lazy" style="width: 100%; height: 75vh; border: 0" {}
        }
    }
}

fn facts(result: &KneeResult) -> Markup {
    let load = &result.load;
    let repeats = result.levels.iter().filter(|level| level.purpose == Purpose::Repeat).count();
    parts::facts(&[
        ("Levels", format!("{}, {repeats} of them repeats", result.levels.len())),
        (
            "Each",
            format!("{} after {} of warm-up", numbers::seconds(load.duration_s), numbers::seconds(load.warm_up_s)),
        ),
        ("Connections", format!("{} to {}", load.connections, load.connections_max)),
        ("Precision", format!("{} %", result.precision * 100.0)),
        ("Machine", format!("{}, {} cores, {}", result.machine.cpu, result.machine.cores, result.machine.kernel)),
        ("Command", result.command.join(" ")),
        ("klad", result.klad_version.clone()),
    ])
}
