//! The parts of a run's page that are not charts: the verdict, key figures, tables and facts.

use maud::{Markup, html};

use crate::page::charts::words;
use crate::recorder::Outcome;
use crate::result::{Distribution, Load, RunResult, Section, Stage};
use crate::schedule::Mode;
use crate::text;
use klad_page::numbers::{bound_micros, bytes, count, micros, per_second, seconds, share};
use klad_page::parts::{Cell, Column, Tile, Tone, banner, facts, table};

/// Returns the banners at the top of the page: first the validity of the figures, then warnings, then the objectives.
#[must_use]
pub fn verdict(result: &RunResult) -> Markup {
    let failed: Vec<_> = result.checks.iter().filter(|check| !check.passed).collect();
    let mut reasons: Vec<_> = failed.iter().map(|check| format!("{}: {}", check.name, check.detail)).collect();
    reasons.push("The figures below are not reliable.".to_owned());
    let held = format!("All {} checks passed.", result.checks.len());
    html! {
        @if result.valid { (banner(Tone::Good, "Valid", &[held])) } @else { (banner(Tone::Bad, "NOT VALID", &reasons)) }
        @if let Some(warning) = text::unserved(&result.measured) { (banner(Tone::Warning, "WARNING", &[warning])) }
        @if let Some(at) = result.interrupted_s {
            (banner(Tone::Warning, "Ended early", &[format!("{} after the start of the schedule.", seconds(at))]))
        }
        @if let Some(slo) = &result.slo {
            @let objectives: Vec<_> = slo.objectives.iter().map(|one| {
                let verdict = if one.met { "met" } else { "MISSED" };
                format!("{}: {verdict}, {}", one.text, one.measured.as_deref().unwrap_or("nothing was measured"))
            }).collect();
            (banner(Tone::of(slo.met), if slo.met { "SLO met" } else { "SLO missed" }, &objectives))
        }
    }
}

/// Returns the notes that a reader needs to understand the figures.
#[must_use]
pub fn notes(result: &RunResult) -> Markup {
    let measured = &result.measured;
    let mut notes = Vec::new();
    if result.load.mode == Mode::Closed {
        notes.push("Closed load: latency counts from the send, so it suffers from coordinated omission.".to_owned());
    }
    if result.target.same_machine {
        notes.push(format!("Generator and server share this machine ({}).", cores(result.machine.cores)));
    }
    if let Some(steal) = result.machine.steal_percent.filter(|steal| *steal >= 1.0) {
        notes.push(format!("The hypervisor gave {steal:.1} % of the CPU time to others."));
    }
    let open = outcome(measured, Outcome::Unfinished);
    if open > 0 {
        notes.push(format!(
            "Unfinished at the end: {} in flight, {} never sent; they count with their age, the least time that they would have taken.",
            count(measured.in_flight_at_end),
            count(open.saturating_sub(measured.in_flight_at_end))
        ));
    }
    html! { @if !notes.is_empty() { ul.notes { @for note in &notes { li { (note) } } } } }
}

fn outcome(section: &Section, outcome: Outcome) -> u64 {
    section.outcomes.get(&outcome).copied().unwrap_or(0)
}

/// Returns the most important figures, as tiles.
#[must_use]
pub fn key_figures(result: &RunResult) -> Vec<Tile> {
    let measured = &result.measured;
    let tile = |name: &str, value: String, note: String| Tile { name: name.to_owned(), value, note, tone: Tone::Plain };
    let scheduled = match result.load.mode {
        Mode::Open => format!("of {} scheduled", per_second(measured.scheduled_per_s)),
        Mode::Closed => "closed load".to_owned(),
    };
    let good = format!("good within {}", bound_micros(measured.good_within_us));
    let mut tiles = vec![
        tile("Answered", per_second(measured.answered_per_s), scheduled),
        tile("Goodput", per_second(measured.goodput_per_s), good),
    ];
    for (name, percentile) in [("p50", 50.0), ("p99", 99.0), ("p99.9", 99.9), ("Max", 100.0)] {
        let enough = measured.response.at(percentile).is_none_or(|point| point.enough);
        let service = format!("service {}", at(&measured.service, percentile));
        let note = if enough { service } else { "fewer than 10 samples above".to_owned() };
        tiles.push(tile(name, at(&measured.response, percentile), note));
    }
    let of_all = |name: &str, outcomes: &[Outcome], tone: Tone| {
        let those = outcomes.iter().map(|one| outcome(measured, *one)).sum();
        let tone = if those == 0 { Tone::Plain } else { tone };
        Tile { tone, ..tile(name, share(those, measured.scheduled), format!("{} requests", count(those))) }
    };
    tiles.push(of_all("Refused", &[Outcome::Refused], Tone::Warning));
    tiles.push(of_all("Failed", &[Outcome::Failed], Tone::Bad));
    tiles.push(of_all("Without an answer", &[Outcome::TimedOut, Outcome::Unfinished], Tone::Bad));
    tiles.push(tile("Longest silence", micros(result.longest_gap_s * 1e6), "without a good answer".to_owned()));
    tiles
}

/// Formats a percentile of a distribution for a page. Without samples, returns `–`.
#[must_use]
pub fn at(distribution: &Distribution, percentile: f64) -> String {
    distribution.at(percentile).map_or_else(|| "–".to_owned(), |point| micros(point.value_us))
}

/// The table of percentiles: response time, service time and send lag.
#[must_use]
pub fn percentiles(section: &Section) -> Markup {
    let columns = [
        Column::Figures("Percentile"),
        Column::Figures("Response time"),
        Column::Figures("Service time"),
        Column::Figures("Send lag"),
        Column::Figures("Samples above"),
        Column::Words("Remark"),
    ];
    let rows: Vec<Vec<Cell>> = section
        .response
        .percentiles
        .iter()
        .map(|point| {
            vec![
                format!("{}\u{a0}%", point.percentile).into(),
                micros(point.value_us).into(),
                at(&section.service, point.percentile).into(),
                at(&section.send_lag, point.percentile).into(),
                count(point.samples_above).into(),
                if point.enough { "" } else { "* single requests" }.into(),
            ]
        })
        .collect();
    html! {
        @if rows.is_empty() {
            p { "No request was served, not found, timed out or unfinished." }
        } @else {
            (table("Percentiles", &columns, &rows))
            @if section.response.percentiles.iter().any(|point| !point.enough) {
                p { "* fewer than 10 samples lie above: the value depends on single requests." }
            }
        }
    }
}

/// The table of operations and outcomes.
#[must_use]
pub fn outcomes(section: &Section) -> Markup {
    let columns = [
        Column::Words("Operation"),
        Column::Words("Outcome"),
        Column::Figures("Count"),
        Column::Figures("Share"),
        Column::Figures("p50"),
        Column::Figures("p99"),
        Column::Figures("p99.9"),
        Column::Figures("Max"),
    ];
    let rows: Vec<Vec<Cell>> = section
        .cells
        .iter()
        .map(|cell| {
            let response = &cell.response;
            let mut row: Vec<Cell> = vec![
                cell.operation.name().into(),
                words(cell.outcome).into(),
                count(response.count).into(),
                share(response.count, section.scheduled).into(),
            ];
            row.extend([50.0, 99.0, 99.9, 100.0].map(|percentile| Cell::from(at(response, percentile))));
            row
        })
        .collect();
    let statuses: Vec<_> =
        section.statuses.iter().map(|(status, number)| format!("{status}: {}", count(*number))).collect();
    let failures: Vec<_> = section.errors.iter().map(|(name, number)| format!("{name}: {}", count(*number))).collect();
    html! {
        (table("Outcomes", &columns, &rows))
        @if !statuses.is_empty() { p { "Statuses: " (statuses.join(", ")) } }
        @if !failures.is_empty() { p { "Failures: " (failures.join(", ")) } }
    }
}

/// Returns the table with a row for the warm-up, each stage, and the whole measured part. Returns `None` if the run has
/// no warm-up and only one stage.
#[must_use]
pub fn stages(result: &RunResult) -> Option<Markup> {
    let mut parts: Vec<(String, &Section)> = Vec::new();
    parts.extend(result.warm_up.as_ref().map(|section| ("warm-up (not included)".to_owned(), section)));
    for (index, section) in result.stages.iter().enumerate() {
        let rate = result.load.stages.get(index).map_or_else(String::new, |stage| format!(": {}", rate(stage)));
        parts.push((format!("stage {}{rate}", index + 1), section));
    }
    parts.push(("whole measured part".to_owned(), &result.measured));
    let columns = [
        Column::Words("Part"),
        Column::Figures("Length"),
        Column::Figures("Scheduled"),
        Column::Figures("Answered"),
        Column::Figures("Goodput"),
        Column::Figures("p50"),
        Column::Figures("p99"),
        Column::Figures("p99.9"),
        Column::Figures("Max"),
    ];
    let row = |(name, section): &(String, &Section)| {
        let rates = [section.scheduled_per_s, section.answered_per_s, section.goodput_per_s].map(per_second);
        let times = [50.0, 99.0, 99.9, 100.0].map(|percentile| at(&section.response, percentile));
        let first = [name.clone(), seconds(section.duration_s)];
        first.into_iter().chain(rates).chain(times).map(Cell::from).collect()
    };
    let rows: Vec<Vec<Cell>> = parts.iter().map(row).collect();
    (rows.len() > 1).then(|| table("Warm-up and stages", &columns, &rows))
}

/// The table of the generator's checks of its own run.
#[must_use]
pub fn checks(result: &RunResult) -> Markup {
    let columns = [Column::Words("Check"), Column::Words("Verdict"), Column::Words("Figures")];
    let verdict = |passed| Cell::toned(Tone::of(passed), if passed { "passed" } else { "FAILED" });
    let row = |(name, passed, detail): (&str, bool, &str)| vec![name.into(), verdict(passed), detail.into()];
    let checks = result.checks.iter().map(|check| (check.name.as_str(), check.passed, check.detail.as_str()));
    table("Checks", &columns, &checks.map(row).collect::<Vec<_>>())
}

/// Facts about the load, the server and the machine.
#[must_use]
pub fn run_facts(result: &RunResult) -> Markup {
    let (load, machine, measured) = (&result.load, &result.machine, &result.measured);
    let steal = machine.steal_percent.map_or_else(|| "not known".to_owned(), |steal| format!("{steal:.1} %"));
    let connections = if load.connections_max > load.connections {
        format!("{}, on demand up to {}", count(load.connections as u64), count(load.connections_max as u64))
    } else {
        count(load.connections as u64)
    };
    let warm_up = if load.warm_up_s > 0.0 { seconds(load.warm_up_s) } else { "none".to_owned() };
    let command: Vec<_> = result.command.iter().map(|word| quoted(word)).collect();
    html! {
        (facts(&[
            ("Target", result.target.url.clone()),
            ("Address", result.target.address.clone()),
            ("Load", load_in_words(load)),
            ("Requests", load.workload.clone()),
            ("Warm-up", warm_up),
            ("Connections", connections),
            ("Deadline", seconds(load.timeout_s)),
            ("Drain", seconds(load.drain_s)),
            ("Threads", load.threads.to_string()),
            ("Seed", load.seed.to_string()),
            ("Sent", bytes(measured.bytes_sent)),
            ("Received", bytes(measured.bytes_received)),
            ("Started", result.started.utc.clone()),
            ("Host", machine.host.clone()),
            ("CPU", format!("{}, {}", machine.cpu, cores(machine.cores))),
            ("Memory", bytes(machine.memory_bytes)),
            ("Kernel", machine.kernel.clone()),
            ("Stolen CPU time", steal),
            ("Generator", format!("klad {}", result.klad_version)),
        ]))
        pre { (command.join(" ")) }
    }
}

/// Describes the load in one line.
#[must_use]
pub fn load_in_words(load: &Load) -> String {
    match load.mode {
        Mode::Closed => format!("closed load, {} for {}", connections(load), seconds(load.duration_s)),
        Mode::Open => {
            let arrival = load.arrival.as_deref().unwrap_or("constant");
            let stages: Vec<_> =
                load.stages.iter().map(|stage| format!("{} for {}", rate(stage), seconds(stage.duration_s))).collect();
            format!("open load, {arrival} arrivals, {}", stages.join(", then "))
        }
    }
}

fn connections(load: &Load) -> String {
    format!("{} connection{}", count(load.connections as u64), if load.connections == 1 { "" } else { "s" })
}

fn cores(number: usize) -> String {
    format!("{number} core{}", if number == 1 { "" } else { "s" })
}

fn rate(stage: &Stage) -> String {
    match (stage.from_per_s, stage.to_per_s) {
        (Some(from), Some(to)) if (from - to).abs() > f64::EPSILON => {
            format!("{} to {}", per_second(from), per_second(to))
        }
        (Some(from), _) => per_second(from),
        _ => "as answers come".to_owned(),
    }
}

/// Quotes a word for a shell if necessary.
fn quoted(word: &str) -> String {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "-_./:=,@%+".contains(letter);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::testing::result;

    #[test]
    fn a_command_can_be_pasted_into_a_shell() {
        let words = ["klad", "http://h/{key}", "p99<5ms,refused<1%", "it's", ""].map(quoted);
        assert_eq!(words.join(" "), r"klad 'http://h/{key}' 'p99<5ms,refused<1%' 'it'\''s' ''");
    }

    #[test]
    fn stages_are_listed_if_there_is_more_than_the_measured_part() {
        let mut run = result(2);
        assert!(stages(&run).is_none());
        run.warm_up = Some(Section::default());
        let table = stages(&run).expect("two parts").into_string();
        assert!(table.contains("warm-up (not included)") && table.contains("whole measured part"), "{table}");
    }

    #[test]
    fn loads_are_described_in_words() {
        let mut load = result(2).load;
        assert_eq!(load_in_words(&load).replace('\u{a0}', " "), "open load, constant arrivals, 10/s for 2 s");
        load.stages[0].to_per_s = Some(2_000.0);
        assert!(load_in_words(&load).contains("10/s to 2,000/s"));
        load.mode = Mode::Closed;
        assert_eq!(load_in_words(&load).replace('\u{a0}', " "), "closed load, 64 connections for 2 s");
    }
}
