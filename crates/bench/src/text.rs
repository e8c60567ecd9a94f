//! The result as text. It has the parts of wrk2's output, in wrk2's order and formats, so that programs that read
//! wrk2's output can read it. Before and between wrk2's parts it has lines that wrk2 does not print. It lacks wrk2's
//! lines about the calibration of threads.
//!
//! wrk2's parts are the head, `Thread Stats`, `Latency Distribution`, `Detailed Percentile spectrum`, and the lines
//! at the end. Their formats come from wrk2's source. Called by `runner`.

use std::fmt::Write as _;

use hdrhistogram::Histogram;

use crate::collector::Spectrum;
use crate::recorder::Outcome;
use crate::result::{Distribution, Interval, RunResult, Section, micros, value_at};
use crate::schedule::Mode;

/// Appends a formatted line to a string.
macro_rules! line {
    ($text:expr, $($arguments:tt)*) => {
        writeln!($text, $($arguments)*).expect("a string takes every character")
    };
}
pub(crate) use line;

/// The percentiles that wrk2 prints.
const WRK2_PERCENTILES: [f64; 8] = [50.0, 75.0, 90.0, 99.0, 99.9, 99.99, 99.999, 100.0];

/// The points of the spectrum for each halving of the distance to 100 %, as in wrk2.
const TICKS_PER_HALF_DISTANCE: u32 = 5;

/// Formats microseconds as wrk2 does, such as `1.05ms`.
#[must_use]
pub fn time_us(micros: f64) -> String {
    let (value, unit) = match micros {
        ..1e3 => (micros, "us"),
        ..1e6 => (micros / 1e3, "ms"),
        ..60e6 => (micros / 1e6, "s"),
        ..3600e6 => (micros / 60e6, "m"),
        _ => (micros / 3600e6, "h"),
    };
    format!("{value:.2}{unit}")
}

/// Formats a percentile of a distribution; `-` without samples.
#[must_use]
pub fn time_at(distribution: &Distribution, percentile: f64) -> String {
    distribution.at(percentile).map_or_else(|| "-".to_owned(), |point| time_us(point.value_us))
}

fn binary(bytes: f64) -> String {
    let (value, unit) = match bytes {
        ..1024.0 => return format!("{bytes:.2}"),
        ..1_048_576.0 => (bytes / 1024.0, "K"),
        ..1_073_741_824.0 => (bytes / 1_048_576.0, "M"),
        _ => (bytes / 1_073_741_824.0, "G"),
    };
    format!("{value:.2}{unit}")
}

fn metric(count: f64) -> String {
    let (value, unit) = match count {
        ..1e3 => (count, ""),
        ..1e6 => (count / 1e3, "k"),
        _ => (count / 1e6, "M"),
    };
    format!("{value:.2}{unit}")
}

/// Returns the whole text.
#[must_use]
pub fn report(result: &RunResult, spectrum: &Spectrum) -> String {
    let mut text = String::new();
    for check in result.checks.iter().filter(|check| !check.passed) {
        line!(text, "NOT VALID: {}: {}", check.name, check.detail);
    }
    if !result.valid {
        line!(text, "The figures below are not reliable.\n");
    }
    if let Some(warning) = unserved(&result.measured) {
        line!(text, "WARNING: {warning}\n");
    }
    head(&mut text, result);
    thread_stats(&mut text, result, &spectrum.response);
    latency_distribution(&mut text, &spectrum.response);
    line!(text, "\n  Detailed Percentile spectrum:");
    text.push_str(&percentile_spectrum(&spectrum.response));
    line!(text, "----------------------------------------------------------");
    percentiles(&mut text, &result.measured);
    outcomes(&mut text, &result.measured);
    let gap = time_us(result.longest_gap_s * 1e6);
    line!(text, "  Longest time without a good answer (served or not found within that time): {gap}");
    stages(&mut text, result);
    judgement(&mut text, result);
    totals(&mut text, &result.measured, result.load.requests_per_start);
    text
}

/// Returns a warning if no request was served, so that the figures say nothing about the server.
#[must_use]
pub fn unserved(section: &Section) -> Option<String> {
    let count = |outcome| section.outcomes.get(&outcome).copied().unwrap_or(0);
    let (served, not_found) = (count(Outcome::Served), count(Outcome::NotFound));
    if served > 0 || section.scheduled == 0 {
        return None;
    }
    let statuses: Vec<_> = section.statuses.keys().map(u16::to_string).collect();
    Some(match not_found {
        0 => format!(
            "no request was served (statuses: {})",
            if statuses.is_empty() { "none".into() } else { statuses.join(", ") }
        ),
        _ => "nothing was found: is the path correct, and do the keys exist (--fill)?".to_owned(),
    })
}

fn head(text: &mut String, result: &RunResult) {
    let load = &result.load;
    if let Some(interrupted) = result.interrupted_s {
        line!(text, "Ended early, {interrupted:.3}s after the start");
    }
    line!(text, "Running {} test @ {}", seconds(load.duration_s), result.target.url);
    line!(text, "  {} threads and {} connections", load.threads, load.connections);
    if load.connections_max > load.connections {
        line!(text, "  Connections on demand, up to {}", load.connections_max);
    }
    match load.mode {
        Mode::Open => {
            let stages: Vec<_> = load
                .stages
                .iter()
                .map(|stage| {
                    let (from, to) = (stage.from_per_s.unwrap_or(0.0), stage.to_per_s.unwrap_or(0.0));
                    let ramp = if (from - to).abs() < f64::EPSILON { String::new() } else { format!("..{to}") };
                    format!("{from}{ramp}/s for {}", seconds(stage.duration_s))
                })
                .collect();
            let arrival = load.arrival.as_deref().unwrap_or_default();
            line!(text, "  Open load, {arrival} arrivals: {}; seed {}", stages.join(", "), load.seed);
            line!(text, "  Latency counts from the intended start of each request: no coordinated omission");
        }
        Mode::Closed => {
            line!(text, "  Closed load: latency counts from the send, so it suffers from coordinated omission");
        }
    }
    line!(text, "  {}", load.workload);
    if load.requests_per_start > 1 {
        let each = load.requests_per_start;
        line!(
            text,
            "  Each start sends {each} requests in a pipeline and ends with the last answer; Requests/sec counts all requests"
        );
    }
    if let Some(warm_up) = &result.warm_up {
        let at = |percentile| time_at(&warm_up.response, percentile);
        line!(
            text,
            "  Warm-up {}, reported separately: {} requests, p50 {}, p99 {}, max {}",
            seconds(warm_up.duration_s),
            warm_up.scheduled,
            at(50.0),
            at(99.0),
            at(100.0)
        );
    }
}

fn seconds(seconds: f64) -> String {
    if seconds.fract() == 0.0 { format!("{seconds}s") } else { format!("{seconds:.3}s") }
}

fn thread_stats(text: &mut String, result: &RunResult, response: &Histogram<u64>) {
    let cell = |value: String, width: usize| {
        // As in wrk: units of one letter are padded, so that the digits are aligned.
        let letters = value.chars().rev().take_while(char::is_ascii_alphabetic).count();
        format!(
            "{:>width$}{}",
            value,
            "  ".get(letters.min(2)..).unwrap_or_default(),
            width = width - (2 - letters.min(2))
        )
    };
    line!(text, "  Thread Stats{:>6}{:>11}{:>8}{:>12}", "Avg", "Stdev", "Max", "+/- Stdev");
    let mut row = |name: &str, format: fn(f64) -> String, [mean, stdev, max, within]: [f64; 4]| {
        let (mean, stdev, max) = (cell(format(mean), 8), cell(format(stdev), 10), cell(format(max), 9));
        line!(text, "    {name:<10}{mean}{stdev}{max}{within:>8.2}%");
    };
    row("Latency", time_us, spread_of_histogram(response));
    // The intervals of the drain are left out, because they have only a few answers.
    let end = result.load.warm_up_s + result.load.duration_s;
    let measured = |row: &&Interval| !row.warm_up && row.start_s < end;
    let rates: Vec<f64> = result.intervals.iter().filter(measured).map(rate).collect();
    let threads = f64::from(u32::try_from(result.load.threads).unwrap_or(1));
    row("Req/Sec", metric, spread(&rates.iter().map(|rate| rate / threads).collect::<Vec<_>>()));
}

#[expect(clippy::cast_precision_loss, reason = "counts of requests")]
fn rate(row: &Interval) -> f64 {
    row.outcomes.values().sum::<u64>() as f64 / row.length_s
}

/// Mean, standard deviation and maximum in microseconds, and the percentage of values within one standard deviation
/// of the mean.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "counts, and times that are not negative"
)]
fn spread_of_histogram(histogram: &Histogram<u64>) -> [f64; 4] {
    if histogram.is_empty() {
        return [0.0; 4];
    }
    let (mean, stdev) = (histogram.mean(), histogram.stdev());
    let within = histogram.count_between((mean - stdev).max(0.0) as u64, (mean + stdev) as u64);
    [mean / 1e3, stdev / 1e3, micros(histogram.max()), within as f64 / histogram.len() as f64 * 100.0]
}

#[expect(clippy::cast_precision_loss, reason = "a number of seconds")]
fn spread(values: &[f64]) -> [f64; 4] {
    if values.is_empty() {
        return [0.0; 4];
    }
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let stdev = (values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / count).sqrt();
    let within = values.iter().filter(|value| (**value - mean).abs() <= stdev).count() as f64;
    [mean, stdev, values.iter().copied().fold(0.0, f64::max), within / count * 100.0]
}

fn latency_distribution(text: &mut String, response: &Histogram<u64>) {
    line!(text, "  Latency Distribution (HdrHistogram - Recorded Latency)");
    for percentile in WRK2_PERCENTILES {
        let value = micros(value_at(response, percentile));
        line!(text, "{percentile:>7.3}%  {:>8}", time_us(value));
    }
}

/// Returns wrk2's `Detailed Percentile spectrum`, in milliseconds. It is also the content of `.hgrm` files.
#[must_use]
pub fn percentile_spectrum(histogram: &Histogram<u64>) -> String {
    let mut text = String::new();
    line!(text, "{:>12} {:>12} {:>12} {:>14}\n", "Value", "Percentile", "TotalCount", "1/(1-Percentile)");
    let mut through = 0;
    for point in histogram.iter_quantiles(TICKS_PER_HALF_DISTANCE) {
        through += point.count_since_last_iteration();
        let value = micros(point.value_iterated_to().min(histogram.max())) / 1e3;
        let quantile = point.quantile_iterated_to();
        let inverse = if quantile < 1.0 { format!("{:.2}", 1.0 / (1.0 - quantile)) } else { "inf".to_owned() };
        line!(text, "{value:>12.3} {quantile:>12.6} {through:>12} {inverse:>14}");
    }
    let (mean, stdev) =
        if histogram.is_empty() { (0.0, 0.0) } else { (histogram.mean() / 1e6, histogram.stdev() / 1e6) };
    line!(text, "#[Mean    = {mean:>12.3}, StdDeviation   = {stdev:>12.3}]");
    line!(text, "#[Max     = {:>12.3}, Total count    = {:>12}]", micros(histogram.max()) / 1e3, histogram.len());
    line!(text, "#[Buckets = {:>12}, SubBuckets     = {:>12}]", buckets(histogram), 2048);
    text
}

/// The number of buckets of 2,048 values in a histogram of three digits. Each bucket is twice as wide as the previous
/// one.
fn buckets(histogram: &Histogram<u64>) -> u32 {
    (u64::BITS - histogram.high().leading_zeros()).saturating_sub(11) + 1
}

fn percentiles(text: &mut String, section: &Section) {
    line!(text, "\n  Percentile      Response       Service      Send lag  Samples above");
    let mut marked = false;
    for point in &section.response.percentiles {
        let mark = if point.enough { "" } else { " *" };
        marked |= !point.enough;
        line!(
            text,
            "  {:>9}% {:>13} {:>13} {:>13} {:>14}{mark}",
            point.percentile,
            time_us(point.value_us),
            time_at(&section.service, point.percentile),
            time_at(&section.send_lag, point.percentile),
            point.samples_above
        );
    }
    if section.response.count == 0 {
        line!(text, "  no request was served, not found, timed out or unfinished");
    }
    if marked {
        line!(text, "  * fewer than 10 samples above: the value depends on single requests");
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts of requests")]
fn outcomes(text: &mut String, section: &Section) {
    line!(text, "\n  Outcome                  Count     Share         p50         p99       p99.9         Max");
    for cell in &section.cells {
        let name = format!("{} {}", cell.operation.name(), cell.outcome.name());
        let share = cell.response.count as f64 / section.scheduled.max(1) as f64 * 100.0;
        let at = |percentile| time_at(&cell.response, percentile);
        line!(
            text,
            "  {name:<18} {:>11} {share:>8.3}% {:>11} {:>11} {:>11} {:>11}",
            cell.response.count,
            at(50.0),
            at(99.0),
            at(99.9),
            at(100.0)
        );
    }
    if !section.statuses.is_empty() {
        let all: Vec<_> = section.statuses.iter().map(|(status, count)| format!("{status} {count}")).collect();
        line!(text, "  Statuses: {}", all.join(", "));
    }
    if !section.errors.is_empty() {
        let all: Vec<_> = section.errors.iter().map(|(name, count)| format!("{name} {count}")).collect();
        line!(text, "  Failures: {}", all.join(", "));
    }
    let open = section.outcomes.get(&Outcome::Unfinished).copied().unwrap_or(0);
    if open > 0 {
        line!(
            text,
            "  Unfinished at the end: {} in flight, {} never sent; they count with their age, the least time that they would have taken",
            section.in_flight_at_end,
            open.saturating_sub(section.in_flight_at_end)
        );
    }
    line!(
        text,
        "  Scheduled {:.2}/s, sent {:.2}/s, answered {:.2}/s, goodput {:.2}/s (served or not found within {})",
        section.scheduled_per_s,
        section.sent_per_s,
        section.answered_per_s,
        section.goodput_per_s,
        time_us(section.good_within_us)
    );
}

fn stages(text: &mut String, result: &RunResult) {
    if result.stages.is_empty() {
        return;
    }
    line!(
        text,
        "\n  Stage            Scheduled/s      Sent/s   Goodput/s         p50         p99       p99.9         Max"
    );
    for (index, stage) in result.stages.iter().enumerate() {
        let at = |percentile| time_at(&stage.response, percentile);
        line!(
            text,
            "  {:<16} {:>11.1} {:>11.1} {:>11.1} {:>11} {:>11} {:>11} {:>11}",
            format!("{} ({})", index + 1, seconds(stage.duration_s)),
            stage.scheduled_per_s,
            stage.sent_per_s,
            stage.goodput_per_s,
            at(50.0),
            at(99.0),
            at(99.9),
            at(100.0)
        );
    }
}

fn judgement(text: &mut String, result: &RunResult) {
    text.push('\n');
    for check in &result.checks {
        line!(text, "  {} {}: {}", if check.passed { "ok    " } else { "FAILED" }, check.name, check.detail);
    }
    if result.target.same_machine {
        line!(text, "  note   generator and server share the {} cores of this machine", result.machine.cores);
    }
    if let Some(steal) = result.machine.steal_percent.filter(|steal| *steal >= 1.0) {
        line!(text, "  note   the hypervisor gave {steal:.1}% of the CPU time to others");
    }
    if let Some(slo) = &result.slo {
        for objective in &slo.objectives {
            let verdict = if objective.met { "met   " } else { "MISSED" };
            let measured = objective.measured.as_deref().unwrap_or("nothing was measured");
            line!(text, "  {verdict} {}: {measured}", objective.text);
        }
    }
}

/// Writes wrk2's last lines. The number and the rate of answered requests count each request of a pipeline. The errors
/// and the other responses count starts: one for each pipeline.
#[expect(clippy::cast_precision_loss, reason = "counts of bytes")]
fn totals(text: &mut String, section: &Section, requests_per_start: u32) {
    let answered = section.statuses.values().sum::<u64>() * u64::from(requests_per_start);
    line!(text, "  {answered} requests in {:.2}s, {}B read", section.duration_s, binary(section.bytes_received as f64));
    let error = |names: &[&str]| names.iter().filter_map(|name| section.errors.get(*name)).sum::<u64>();
    let connect = error(&["connect", "no_port_left", "no_descriptor_left"]);
    let read = error(&["reset", "closed", "malformed"]);
    let timeouts = section.timeouts_without_answer();
    if connect + read + timeouts > 0 {
        line!(text, "  Socket errors: connect {connect}, read {read}, write 0, timeout {timeouts}");
    }
    let others: u64 = section.statuses.iter().filter(|(status, _)| !(200..400).contains(*status)).map(|(_, n)| n).sum();
    if others > 0 {
        line!(text, "  Non-2xx or 3xx responses: {others}");
    }
    line!(text, "Requests/sec: {:>9.2}", section.answered_per_s * f64::from(requests_per_start));
    let received = if section.duration_s > 0.0 { section.bytes_received as f64 / section.duration_s } else { 0.0 };
    line!(text, "Transfer/sec: {:>10}B", binary(received));
}
