//! What the yardstick has measured, as a table, Markdown, JSON and a picture, and whether it is within its bounds. Called by
//! `mod`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::process::Command;

use anyhow::Result;
use serde_json::json;

use super::subjects::Subject;
use super::wrk::Seen;
use crate::Verdict;
use crate::median::Median;
use crate::text::{grouped, mebibytes};

/// One slice.
#[derive(Clone, Debug)]
pub(crate) struct Sample {
    pub(crate) subject: Subject,
    pub(crate) connections: u64,
    pub(crate) seen: Seen,
    /// CPU time of a request, microseconds.
    pub(crate) cost_us: f64,
    /// The echo's, before and after.
    pub(crate) echo_us: f64,
}

/// One round of a server with a protocol of its own.
#[derive(Clone, Debug)]
pub(crate) struct Beside {
    pub(crate) name: &'static str,
    pub(crate) connections: u64,
    pub(crate) rate: f64,
    pub(crate) latency_us: [f64; 3],
    pub(crate) cost_us: f64,
}

/// A line of the table.
struct Row {
    name: &'static str,
    connections: u64,
    rate: Median,
    latency_us: [f64; 3],
    cost_us: Median,
    /// Of CPU time, to the echo's.
    ratio: Option<Median>,
    ratio_max: Option<f64>,
    resident: Option<u64>,
    slices: usize,
}

/// Everything.
pub(crate) struct Report {
    keys: u64,
    rows: Vec<Row>,
    machine: Vec<(&'static str, String)>,
}

fn median(figures: impl Iterator<Item = f64>) -> Median {
    Median::of(figures.collect())
}

impl Report {
    /// Of all slices and rounds; `resident` is the memory of each server at the end, bytes.
    pub(crate) fn new(keys: u64, samples: &[Sample], beside: &[Beside], resident: Vec<(Subject, u64)>) -> Report {
        let resident: BTreeMap<Subject, u64> = resident.into_iter().collect();
        let mut by: BTreeMap<(u64, Subject), Vec<&Sample>> = BTreeMap::new();
        for sample in samples {
            by.entry((sample.connections, sample.subject)).or_default().push(sample);
        }
        let row = |((connections, subject), samples): ((u64, Subject), Vec<&Sample>)| Row {
            name: subject.name(),
            connections,
            rate: median(samples.iter().map(|sample| sample.seen.rate)),
            latency_us: [0, 1, 2].map(|at| median(samples.iter().map(|sample| sample.seen.latency_us[at])).middle),
            cost_us: median(samples.iter().map(|sample| sample.cost_us)),
            ratio: Some(median(samples.iter().map(|sample| sample.cost_us / sample.echo_us))),
            ratio_max: subject.ratio_max().filter(|_| connections == 64),
            resident: resident.get(&subject).copied(),
            slices: samples.len(),
        };
        let mut rows: Vec<Row> = by.into_iter().map(row).collect();
        let mut others: BTreeMap<(u64, &'static str), Vec<&Beside>> = BTreeMap::new();
        for round in beside {
            others.entry((round.connections, round.name)).or_default().push(round);
        }
        rows.extend(others.into_iter().map(|((connections, name), rounds)| Row {
            name,
            connections,
            rate: median(rounds.iter().map(|round| round.rate)),
            latency_us: [0, 1, 2].map(|at| median(rounds.iter().map(|round| round.latency_us[at])).middle),
            cost_us: median(rounds.iter().map(|round| round.cost_us)),
            ratio: None,
            ratio_max: None,
            resident: None,
            slices: rounds.len(),
        }));
        rows.sort_by_key(|row| row.connections);
        Report { keys, rows, machine: machine() }
    }

    /// For a terminal.
    pub(crate) fn table(&self) -> String {
        let mut text = String::new();
        for row in &self.rows {
            let ratio = row.ratio.map_or_else(String::new, |ratio| {
                format!("{:.3} ({:.3} to {:.3})", ratio.middle, ratio.least, ratio.most)
            });
            let verdict = verdict(row).map_or("", Verdict::word);
            let _ = writeln!(
                text,
                "{:<38}{:>5}{:>10}/s {:>8.2} µs {:>24} {:>7.2} {:>7.2} {:>7.2} ms {:>11}  {verdict}",
                row.name,
                row.connections,
                whole(row.rate.middle),
                row.cost_us.middle,
                ratio,
                row.latency_us[0] / 1e3,
                row.latency_us[1] / 1e3,
                row.latency_us[2] / 1e3,
                row.resident.map_or_else(String::new, mebibytes),
            );
        }
        if let Some((durable, words)) = self.durable() {
            let _ = writeln!(text, "{words}: {}", durable.word());
        }
        text
    }

    /// For `docs/performance.md`.
    pub(crate) fn markdown(&self) -> String {
        let mut text = String::new();
        for (name, value) in &self.machine {
            let _ = writeln!(text, "* {name}: {value}");
        }
        let _ = writeln!(text, "* {} keys, values of 100 bytes\n", grouped(self.keys));
        text.push_str(
            "| Server and request | Connections | Requests/s | CPU µs each | CPU / echo's (95 % of the median) | Bound | p50 ms | p99 ms | \
             p99.9 ms | Memory | Slices | Core busy |\n|---|---|---|---|---|---|---|---|---|---|---|---|\n",
        );
        for row in &self.rows {
            let ratio = row.ratio.map_or_else(
                || "-".to_owned(),
                |ratio| format!("{:.2} ({:.2} to {:.2})", ratio.middle, ratio.least, ratio.most),
            );
            let bound = match (row.ratio_max, verdict(row)) {
                (Some(most), Some(verdict)) => format!("{most:.2}: {}", verdict.word()),
                _ => "-".to_owned(),
            };
            let [p50, p99, p999] = row.latency_us.map(|us| us / 1e3);
            let _ = writeln!(
                text,
                "| {} | {} | {} ({} to {}) | {:.2} | {ratio} | {bound} | {p50:.2} | {p99:.2} | {p999:.2} | {} | {} | {:.0} % |",
                row.name,
                row.connections,
                whole(row.rate.middle),
                whole(row.rate.least),
                whole(row.rate.most),
                row.cost_us.middle,
                row.resident.map_or_else(|| "-".to_owned(), mebibytes),
                row.slices,
                // Where it is not whole, the client was the limit: a server that idles has more wake-ups for each request.
                row.cost_us.middle * row.rate.middle / 1e4,
            );
        }
        if let Some((durable, words)) = self.durable() {
            let _ = writeln!(text, "\n{words}: {}.", durable.word());
        }
        text
    }

    /// All medians with their intervals.
    pub(crate) fn json(&self) -> Result<String> {
        let interval = |median: &Median| json!({ "median": median.middle, "least": median.least, "most": median.most });
        let rows: Vec<_> = self
            .rows
            .iter()
            .map(|row| {
                json!({
                    "name": row.name,
                    "connections": row.connections,
                    "slices": row.slices,
                    "per_s": interval(&row.rate),
                    "cpu_us": interval(&row.cost_us),
                    "ratio_to_echo": row.ratio.as_ref().map(interval),
                    "ratio_max": row.ratio_max,
                    "latency_us": { "p50": row.latency_us[0], "p99": row.latency_us[1], "p99.9": row.latency_us[2] },
                    "resident_bytes": row.resident,
                })
            })
            .collect();
        let machine: serde_json::Map<String, serde_json::Value> =
            self.machine.iter().map(|(name, value)| ((*name).to_owned(), json!(value))).collect();
        let all = json!({ "schema": "klad-yardstick/1", "machine": machine, "keys": self.keys, "rows": rows });
        Ok(serde_json::to_string_pretty(&all)? + "\n")
    }

    /// A bar for each ratio at 64 connections, with its interval and its bound.
    pub(crate) fn picture(&self) -> String {
        let rows: Vec<(&Row, Median)> =
            self.rows.iter().filter(|row| row.connections == 64).filter_map(|row| Some((row, row.ratio?))).collect();
        let largest = rows.iter().map(|(row, ratio)| ratio.most.max(row.ratio_max.unwrap_or(0.0))).fold(1.0, f64::max);
        let scale = 440.0 / largest;
        let height = 62 + rows.len() * 30;
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"800\" height=\"{height}\" viewBox=\"0 0 800 {height}\" \
             font-family=\"sans-serif\" font-size=\"13\">\n<rect width=\"800\" height=\"{height}\" fill=\"#ffffff\"/>\n\
             <text x=\"12\" y=\"24\" font-size=\"15\">CPU time of a request, as a multiple of the bare echo's; 64 connections</text>\n\
             <text x=\"12\" y=\"42\" fill=\"#555555\">bars: medians; thin lines: 95 % of the median; red: what was aimed at</text>\n"
        );
        for (at, (row, ratio)) in rows.iter().enumerate() {
            let y = 56 + at * 30;
            let colour = if row.name.starts_with("klad") { "#6ec878" } else { "#c8ccd4" };
            let (width, least, most) = (ratio.middle * scale, 260.0 + ratio.least * scale, 260.0 + ratio.most * scale);
            let _ = writeln!(
                svg,
                "<text x=\"12\" y=\"{}\">{}</text><rect x=\"260\" y=\"{y}\" width=\"{width:.1}\" height=\"20\" fill=\"{colour}\"/>\
                 <path d=\"M{least:.1} {m}H{most:.1}\" stroke=\"#222222\"/><text x=\"{:.1}\" y=\"{}\">{:.2}</text>",
                y + 15,
                row.name,
                most + 8.0,
                y + 15,
                ratio.middle,
                m = y + 10,
            );
            if let Some(bound) = row.ratio_max {
                let x = 260.0 + bound * scale;
                let _ = writeln!(svg, "<path d=\"M{x:.1} {y}v20\" stroke=\"#cc0000\" stroke-width=\"2\"/>");
            }
        }
        svg.push_str("</svg>\n");
        svg
    }

    /// Whether klad's durable PUTs are as many as Redis' SETs at 64 connections, in words, if both were measured.
    fn durable(&self) -> Option<(Verdict, String)> {
        let rate = |name: &str| {
            let mut rows = self.rows.iter().filter(|row| row.connections == 64);
            rows.find(|row| row.name == name).map(|row| row.rate.middle)
        };
        let (own, theirs) = (rate(Subject::PutSync.name())?, rate("Redis SET, appendfsync always")?);
        let words =
            format!("{} durable PUTs a second, Redis {} SETs with appendfsync always", whole(own), whole(theirs));
        Some((Verdict::of(own >= theirs), words))
    }

    /// Of all that has a bound.
    pub(crate) fn judge(&self) -> Verdict {
        let rows = self.rows.iter().filter_map(verdict);
        Verdict::of(rows.chain(self.durable().map(|(verdict, _)| verdict)).all(|verdict| verdict == Verdict::Within))
    }
}

/// By the median, as the bound is said of one run.
fn verdict(row: &Row) -> Option<Verdict> {
    Some(Verdict::of(row.ratio?.middle <= row.ratio_max?))
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a rate")]
fn whole(rate: f64) -> String {
    grouped(rate.round() as u64)
}

/// What it was measured on.
fn machine() -> Vec<(&'static str, String)> {
    let said = |program: &str, arguments: &[&str]| {
        let output = Command::new(program).args(arguments).output().ok()?;
        let all = [output.stdout, output.stderr].concat();
        String::from_utf8_lossy(&all).lines().next().map(|line| line.trim().to_owned())
    };
    let cpus = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpus.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": ").map(|(_, name)| name));
    let cores = cpus.lines().filter(|line| line.starts_with("processor")).count();
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut machine = vec![
        ("processor", format!("{cores} × {}", model.unwrap_or("unknown"))),
        ("kernel", kernel.trim().to_owned()),
        ("command", format!("cargo xtask {}", std::env::args().skip(1).collect::<Vec<_>>().join(" "))),
    ];
    let versions: [(&'static str, &str, &[&str]); 4] = [
        ("commit", "git", &["describe", "--always", "--dirty", "--abbrev=10"]),
        ("wrk", "wrk", &["-v"]),
        ("nginx", "nginx", &["-v"]),
        ("redis", "redis-server", &["--version"]),
    ];
    machine
        .extend(versions.into_iter().filter_map(|(name, program, arguments)| Some((name, said(program, arguments)?))));
    machine
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(subject: Subject, cost_us: f64) -> Sample {
        let seen = Seen { requests: 1000.0, rate: 60_000.0, latency_us: [900.0, 2000.0, 3000.0] };
        Sample { subject, connections: 64, seen, cost_us, echo_us: 10.0 }
    }

    fn redis(rate: f64) -> Beside {
        let name = "Redis SET, appendfsync always";
        Beside { name, connections: 64, rate, latency_us: [1.0; 3], cost_us: 10.0 }
    }

    fn report(get: f64, redis_rate: f64) -> Report {
        let samples = [sample(Subject::Echo, 10.0), sample(Subject::Get, get), sample(Subject::PutSync, 19.0)];
        Report::new(2_000_000, &samples, &[redis(redis_rate)], vec![(Subject::Get, 5 << 20)])
    }

    #[test]
    fn a_dear_request_and_a_faster_redis_exceed() {
        assert_eq!(report(13.4, 50_000.0).judge(), Verdict::Within);
        assert_eq!(report(13.6, 50_000.0).judge(), Verdict::Exceeded);
        assert_eq!(report(13.4, 70_000.0).judge(), Verdict::Exceeded);
    }

    #[test]
    fn every_form_has_every_server() {
        let report = report(13.4, 50_000.0);
        let json: serde_json::Value = serde_json::from_str(&report.json().expect("figures")).expect("JSON");
        assert_eq!(json["rows"].as_array().expect("rows").len(), 4);
        for name in ["hyper echo", "klad, GET", "klad, PUT sync"] {
            for form in [report.table(), report.markdown(), report.picture()] {
                assert!(form.contains(name), "{name} is missing in {form}");
            }
        }
        assert!(
            report.table().contains("Redis SET")
                && report.markdown().contains("| 1.34 (1.34 to 1.34) | 1.35: within |")
        );
    }
}
