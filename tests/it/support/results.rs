//! Checks that every result of `klad bench` must pass, whatever the server has done. Each function returns the faults
//! it found.

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::OnceLock;

use base64::Engine as _;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::Deserializer;
use hdrhistogram::serialization::interval_log::{IntervalLogIterator, LogEntry};
use jsonschema::Validator;
use serde_json::Value;

use super::wrk2::{self, Wrk2};

/// The outcomes by their names in JSON.
const OUTCOMES: [&str; 6] = ["served", "not_found", "refused", "failed", "timed_out", "unfinished"];

/// The outcomes in the latency distribution.
const LATENCY_OUTCOMES: [&str; 4] = ["served", "not_found", "timed_out", "unfinished"];

/// Returns the faults of a result.
pub(crate) fn faults(result: &Value) -> Vec<String> {
    let mut faults = schema_faults(result);
    if !faults.is_empty() {
        // The other checks need a result of the correct shape.
        return faults;
    }
    let failed = result["checks"].as_array().unwrap().iter().any(|check| check["passed"] == false);
    if result["schema"] != "klad.bench/1" || result["valid"] == failed {
        faults.push(format!("{} or {} is not what it should be", result["schema"], result["valid"]));
    }
    section_faults("measured", &result["measured"], &mut faults);
    if !result["warm_up"].is_null() {
        section_faults("warm_up", &result["warm_up"], &mut faults);
    }
    let stages = result["stages"].as_array().unwrap();
    for (index, stage) in stages.iter().enumerate() {
        section_faults(&format!("stage {index}"), stage, &mut faults);
    }
    for pointer in ["/scheduled", "/sent", "/unsent", "/bytes_sent", "/bytes_received"] {
        let sum: u64 = stages.iter().map(|stage| count(stage, pointer)).sum();
        if !stages.is_empty() && sum != count(&result["measured"], pointer) {
            faults.push(format!("the stages have {sum} as {pointer}"));
        }
    }
    interval_faults(result, &mut faults);
    piece_faults(result, &mut faults);
    faults
}

/// Returns the violations of the program's own schema.
pub(crate) fn schema_faults(result: &Value) -> Vec<String> {
    static VALIDATOR: OnceLock<Validator> = OnceLock::new();
    let validator = VALIDATOR.get_or_init(|| {
        let printed = Command::new(env!("CARGO_BIN_EXE_klad")).args(["bench", "--json-schema"]).output().unwrap();
        jsonschema::validator_for(&serde_json::from_slice(&printed.stdout).unwrap()).unwrap()
    });
    validator.iter_errors(result).map(|error| format!("{}: {error}", error.instance_path())).collect()
}

/// Returns a count by its JSON pointer; 0 for an absent status or kind of error.
pub(crate) fn count(value: &Value, pointer: &str) -> u64 {
    let optional = ["/statuses/", "/errors/"].iter().any(|part| pointer.contains(part));
    match value.pointer(pointer) {
        Some(count) => count.as_u64().unwrap_or_else(|| panic!("{pointer} is {count}")),
        None if optional => 0,
        None => panic!("{pointer} is not there"),
    }
}

/// The sum of all counts of an object.
fn sum(object: &Value) -> u64 {
    object.as_object().unwrap().values().map(|count| count.as_u64().unwrap()).sum()
}

fn section_faults(name: &str, section: &Value, faults: &mut Vec<String>) {
    let own = |pointer: &str| count(section, pointer);
    let outcome = |outcome: &str| own(&format!("/outcomes/{outcome}"));
    let mut same = |what: &str, left: u64, right: u64| {
        if left != right {
            faults.push(format!("{name}: {what}: {left}, not {right}"));
        }
    };
    same("outcomes", section["outcomes"].as_object().unwrap().len() as u64, 6);
    same("outcomes and scheduled requests", OUTCOMES.into_iter().map(outcome).sum(), own("/scheduled"));
    let unmade: u64 =
        ["connect", "no_port_left", "no_descriptor_left"].map(|kind| own(&format!("/errors/{kind}"))).iter().sum();
    same("sent and unsent requests", own("/sent") + own("/unsent") + unmade, own("/scheduled"));
    let own_timeouts = outcome("timed_out") - own("/statuses/504");
    let ended = sum(&section["statuses"]) + sum(&section["errors"]) + own_timeouts + outcome("unfinished");
    same("statuses, errors and requests without an end", ended, own("/scheduled"));
    same("the latency distribution", own("/response/count"), LATENCY_OUTCOMES.into_iter().map(outcome).sum());
    let cells = section["cells"].as_array().unwrap();
    for outcome in OUTCOMES {
        let of_outcome = cells.iter().filter(|cell| cell["outcome"] == outcome);
        same(
            outcome,
            of_outcome.map(|cell| count(cell, "/response/count")).sum(),
            own(&format!("/outcomes/{outcome}")),
        );
    }
    same("service times", cells.iter().map(|cell| count(cell, "/service/count")).sum(), own("/sent"));
    let open_at_most = outcome("timed_out") + outcome("unfinished");
    if own("/unsent") > open_at_most || own("/in_flight_at_end") > outcome("unfinished") {
        faults.push(format!("{name}: more requests are unsent or in flight than timed out or were unfinished"));
    }
    let lags = own("/send_lag/count");
    if lags < own("/sent") || lags > own("/scheduled") {
        faults.push(format!("{name}: {lags} send lags"));
    }
    for pointer in ["/response", "/service", "/send_lag"] {
        distribution_faults(&format!("{name}{pointer}"), section.pointer(pointer).unwrap(), faults);
        for cell in cells.iter().filter(|_| pointer != "/send_lag") {
            let name = format!("{name}: {} {}{pointer}", cell["operation"], cell["outcome"]);
            distribution_faults(&name, cell.pointer(pointer).unwrap(), faults);
        }
    }
}

/// Decodes the histogram of a distribution.
pub(crate) fn histogram(distribution: &Value) -> Histogram<u64> {
    let Some(text) = distribution["histogram"].as_str() else { return Histogram::new(3).unwrap() };
    decode(text)
}

fn decode(text: &str) -> Histogram<u64> {
    let bytes = base64::engine::general_purpose::STANDARD.decode(text).unwrap();
    Deserializer::new().deserialize(&mut bytes.as_slice()).unwrap()
}

/// Compares a table of percentiles with its histogram, by counting samples.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "percent and nanoseconds")]
fn distribution_faults(name: &str, distribution: &Value, faults: &mut Vec<String>) {
    let histogram = histogram(distribution);
    let total = count(distribution, "/count");
    let points = distribution["percentiles"].as_array().unwrap();
    if histogram.len() != total || points.len() != if total == 0 { 0 } else { 9 } {
        faults.push(format!("{name}: {total} samples, {} in the histogram, {} points", histogram.len(), points.len()));
        return;
    }
    for point in points {
        let [percent, value_us] = ["percentile", "value_us"].map(|field| point[field].as_f64().unwrap());
        // Exact, because percentiles have at most three decimals.
        let thousandths = (percent * 1e3).round() as u64;
        let rank = (total * thousandths).div_ceil(100_000);
        let mut below = 0;
        let at_rank = histogram.iter_recorded().find(|step| {
            below += step.count_at_value();
            below >= rank
        });
        let expected = histogram.highest_equivalent(at_rank.unwrap().value_iterated_to()).min(histogram.max());
        let above = total - rank;
        let enough = above >= 10 || thousandths == 100_000;
        if (value_us * 1e3).round() as u64 != expected || point["samples_above"] != above || point["enough"] != enough {
            faults.push(format!("{name}: {point} does not follow from its histogram, which has {expected} ns there"));
        }
    }
}

fn interval_faults(result: &Value, faults: &mut Vec<String>) {
    let intervals = result["intervals"].as_array().unwrap();
    let of_both = |pointer: &str| {
        let warm_up = Some(&result["warm_up"]).filter(|warm_up| !warm_up.is_null());
        count(&result["measured"], pointer) + warm_up.map_or(0, |warm_up| count(warm_up, pointer))
    };
    let sent: u64 = intervals.iter().map(|interval| count(interval, "/sent")).sum();
    if sent != of_both("/sent") {
        faults.push(format!("the intervals have sent {sent}"));
    }
    for outcome in OUTCOMES {
        let all: u64 = intervals.iter().filter_map(|interval| interval["outcomes"][outcome].as_u64()).sum();
        let expected = of_both(&format!("/outcomes/{outcome}"));
        if all != expected {
            faults.push(format!("the intervals have {all} {outcome}, not {expected}"));
        }
    }
    let starts = intervals.iter().map(|interval| interval["start_s"].as_f64().unwrap());
    if !starts.is_sorted_by(|a, b| a < b) {
        faults.push("the intervals do not follow each other".to_owned());
    }
}

/// Returns the faults of the text, compared with its result.
pub(crate) fn text_faults(text: &str, result: &Value) -> Vec<String> {
    let read = match wrk2::read(text) {
        Ok(read) => read,
        Err(why) => return vec![why],
    };
    let mut faults = Vec::new();
    let mut demand = |holds: bool, what: &str| {
        if !holds {
            faults.push(what.to_owned());
        }
    };
    let measured = &result["measured"];
    demand(text.starts_with("NOT VALID: ") != result["valid"].as_bool().unwrap(), "whether it is valid");
    let total = count(measured, "/response/count");
    demand(read.total_count == total, "the total count");
    // wrk counts requests. If a script sends pipelines, a start has several of them.
    let each = count(result, "/load/requests_per_start");
    demand(read.requests == sum(&measured["statuses"]) * each, "the requests");
    let rate = measured["answered_per_s"].as_f64().unwrap() * f64::from(u32::try_from(each).unwrap());
    demand((read.requests_per_s - rate).abs() < 0.006, "the rate");
    let others = measured["statuses"].as_object().unwrap().iter().filter(|(status, _)| !status.starts_with(['2', '3']));
    let others: u64 = others.map(|(_, count)| count.as_u64().unwrap()).sum();
    demand(read.others_than_2xx_and_3xx == (others > 0).then_some(others), "the other answers");
    let own_timeouts = count(measured, "/outcomes/timed_out") - count(measured, "/statuses/504");
    let errors = sum(&measured["errors"]);
    let counted = read.socket_errors.map(|counted| (counted.connect + counted.read + counted.write, counted.timeout));
    demand(counted == (errors + own_timeouts > 0).then_some((errors, own_timeouts)), "the socket errors");
    for (percent, time) in &read.latencies {
        let points = measured["response"]["percentiles"].as_array().unwrap();
        let point = points.iter().find(|point| (point["percentile"].as_f64().unwrap() - percent).abs() < 1e-9);
        let expected = point.map_or(0.0, |point| point["value_us"].as_f64().unwrap());
        demand((time.micros - expected).abs() <= time.resolution_micros * 0.51, &format!("the value at {percent}%"));
    }
    let left_open = count(measured, "/outcomes/unfinished") > 0;
    demand(text.contains("  Unfinished at the end: ") == left_open, "the unfinished requests");
    faults.extend(spectrum_faults(&read));
    faults
}

#[expect(clippy::cast_precision_loss, reason = "counts of short runs")]
fn spectrum_faults(read: &Wrk2) -> Vec<String> {
    let mut faults = Vec::new();
    for pair in read.spectrum.windows(2) {
        let [before, after] = pair else { unreachable!() };
        let rises = before.value_ms <= after.value_ms
            && before.quantile <= after.quantile
            && before.count <= after.count
            && before.inverse <= after.inverse;
        if !rises {
            faults.push(format!("the spectrum falls from {before:?} to {after:?}"));
        }
    }
    for point in &read.spectrum {
        // The text has percentiles with six decimals.
        if (point.count as f64) < (point.quantile - 1e-6) * read.total_count as f64 || point.inverse.is_nan() {
            faults.push(format!("{point:?} counts too few"));
        }
    }
    let ends_well = read.spectrum.last().is_none_or(|last| {
        last.inverse.is_infinite() && last.count == read.total_count && (last.value_ms - read.max_ms).abs() < 1e-9
    });
    if !ends_well || read.spectrum.is_empty() != (read.total_count == 0) {
        faults.push(format!("the spectrum ends with {:?}", read.spectrum.last()));
    }
    faults
}

/// Checks that each piece contains what its intervals contain.
fn piece_faults(result: &Value, faults: &mut Vec<String>) {
    let number = |value: &Value, pointer: &str| value.pointer(pointer).unwrap().as_f64().unwrap();
    let (intervals, pieces) = (result["intervals"].as_array().unwrap(), result["pieces"].as_array().unwrap());
    let warm_up = number(result, "/load/warm_up_s");
    let mut last = None;
    for (index, piece) in pieces.iter().enumerate() {
        let (start, length) = (number(piece, "/start_s"), number(piece, "/length_s"));
        let begins_well = last.map_or(start >= warm_up, |(end, before): (f64, f64)| {
            (start - end).abs() < 1e-9 && (length - before).abs() < 1e-9
        });
        let own = intervals.iter().filter(|interval| {
            let at = number(interval, "/start_s") + 1e-9;
            start < at && at < start + length
        });
        let own: Vec<_> = own.collect();
        let of_intervals = |outcome: &str| own.iter().filter_map(|row| row["outcomes"][outcome].as_u64()).sum::<u64>();
        let of_piece = |outcome: &str| piece["outcomes"][outcome].as_u64().unwrap_or(0);
        // Requests that were never sent are counted after the intervals are closed, so they may be in the next
        // interval.
        let unsent = count(result, "/measured/unsent") > 0;
        let differs = |outcome: &str| {
            of_intervals(outcome) != of_piece(outcome) && !(unsent && ["timed_out", "unfinished"].contains(&outcome))
        };
        let timed: u64 = LATENCY_OUTCOMES.into_iter().map(of_piece).sum();
        let good: f64 = own.iter().map(|row| number(row, "/good")).sum();
        if !begins_well
            || OUTCOMES.into_iter().any(differs)
            || timed != count(piece, "/response/count")
            || (good / length - number(piece, "/goodput_per_s")).abs() > 1e-6
        {
            faults.push(format!("piece {index} differs from its {} intervals", own.len()));
        }
        distribution_faults(&format!("piece {index}"), &piece["response"], faults);
        last = Some((start + length, length));
    }
    let end = warm_up + number(result, "/load/duration_s");
    if pieces.len() > 10 || last.is_some_and(|(last, _)| last > end + 1e-9) {
        faults.push(format!("{} pieces, up to {last:?}", pieces.len()));
    }
}

/// Returns the faults of an interval log: each tag must have the histogram of the result's cells, including the
/// warm-up.
pub(crate) fn log_faults(log: &[u8], result: &Value) -> Vec<String> {
    let mut logged: BTreeMap<String, Histogram<u64>> = BTreeMap::new();
    for entry in IntervalLogIterator::new(log) {
        match entry {
            Ok(LogEntry::Interval(entry)) => {
                let Some(tag) = entry.tag() else { return vec!["a line has no tag".to_owned()] };
                let sum = logged.entry(tag.as_str().to_owned()).or_insert_with(|| Histogram::new(3).unwrap());
                sum.add(decode(entry.encoded_histogram())).unwrap();
            }
            Ok(_) => {}
            Err(why) => return vec![format!("the log cannot be read: {why:?}")],
        }
    }
    let mut expected: BTreeMap<String, Histogram<u64>> = BTreeMap::new();
    for section in [&result["measured"], &result["warm_up"]] {
        for cell in section["cells"].as_array().into_iter().flatten() {
            let tag = format!("{}.{}", cell["operation"].as_str().unwrap(), cell["outcome"].as_str().unwrap());
            let sum = expected.entry(tag).or_insert_with(|| Histogram::new(3).unwrap());
            sum.add(histogram(&cell["response"])).unwrap();
        }
    }
    let tags: std::collections::BTreeSet<_> = logged.keys().chain(expected.keys()).collect();
    let counted = |all: &BTreeMap<_, Histogram<u64>>, tag| all.get(tag).map_or(0, Histogram::len);
    tags.into_iter()
        .filter(|tag| logged.get(*tag) != expected.get(*tag))
        .map(|tag| {
            format!("the log has {} of {tag}, but the result {}", counted(&logged, tag), counted(&expected, tag))
        })
        .collect()
}
