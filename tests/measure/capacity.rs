//! `klad bench knee` finds a known capacity of a server.

use std::time::Duration;

use serde_json::Value;

use super::support::bencher::{Ended, Running};
use super::support::queueing::Queueing;

/// The capacity of the scripted server, requests per second.
const CAPACITY: f64 = 500.0;

/// The largest relative error of the knee.
const TOLERANCE: f64 = 0.05;

fn knee(url: &str, options: &str) -> Ended {
    let fixed = ["bench", "knee", url, "--lag-max", "10s", "--drain", "100ms", "--json", "-"];
    Running::start(fixed.into_iter().chain(options.split_whitespace())).wait_for(Duration::from_mins(5))
}

fn result(ended: &Ended) -> Value {
    serde_json::from_str(&ended.stdout).unwrap_or_else(|error| panic!("{error}: {} {}", ended.stdout, ended.stderr))
}

fn number(result: &Value, pointer: &str) -> f64 {
    result.pointer(pointer).and_then(Value::as_f64).unwrap_or_else(|| panic!("no {pointer} in {result:#}"))
}

/// Whether the last good rate is near `capacity`, and the first bad one above it.
fn is_near(result: &Value, capacity: f64) -> Result<(), String> {
    let (good, bad) = (number(result, "/found/good/rate_per_s"), number(result, "/found/bad/rate_per_s"));
    if (good / capacity - 1.0).abs() <= TOLERANCE && bad > good && bad / good <= 1.021 {
        Ok(())
    } else {
        Err(format!("good at {good}, bad at {bad}, and the capacity is {capacity}"))
    }
}

/// A level is bad only if half of its requests wait in a queue of 100 ms. A machine that stalls for a few ten
/// milliseconds does not cause that, but a load 4 % above the capacity does.
#[test]
fn the_capacity_of_a_server_is_found_within_five_percent() {
    let server = Queueing { capacity: CAPACITY, patience: Duration::from_mins(1) }.start();
    let options = "--slo p50<100ms --from 300/s --level 4s --warm-up 1s";
    // If the machine stalls for a fifth of a second, the server has a lower capacity, and the search is right to
    // report it.
    let mut searches = (0..3).map(|_| {
        let ended = knee(&format!("http://{}/", server.address), options);
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        let result = result(&ended);
        is_near(&result, CAPACITY).map(|()| result)
    });
    let mut found = Vec::new();
    let right = searches.find_map(|search| search.map_err(|wrong| found.push(wrong)).ok());
    let result = right.unwrap_or_else(|| panic!("three searches have not found the capacity: {found:?}"));
    for wrong in [CAPACITY * 0.9, CAPACITY * 1.1] {
        is_near(&result, wrong).expect_err("twin: another capacity");
    }
    assert_eq!((&result["schema"], &result["found"]["outcome"]), (&"klad.knee/1".into(), &"found".into()));
    let levels = result["levels"].as_array().unwrap();
    let bad = levels.iter().find(|level| level["good"] == false).unwrap();
    assert_eq!(bad["stopped_by"], serde_json::json!(["latency"]));
    assert!(bad["reasons"][0].as_str().unwrap().starts_with("p50<100ms: "), "{bad:#}");
    for (edge, count) in [("good", "good_runs"), ("bad", "bad_runs")] {
        let edge = &result["found"][edge];
        let runs = edge["good_runs"].as_u64().unwrap() + edge["bad_runs"].as_u64().unwrap();
        assert!(runs >= 3 && edge[count].as_u64().unwrap() * 2 >= runs, "{edge}");
    }
}

#[test]
fn the_capacity_is_found_with_a_minimum_of_answers() {
    let server = Queueing { capacity: CAPACITY, patience: Duration::from_mins(1) }.start();
    let url = format!("http://{}/", server.address);
    let options = "--slo goodput>200/s,p50<100ms --from 10/s --level 1s --warm-up 500ms --precision 20% --repeats 1";
    let found = (0..3).any(|_| {
        let found = result(&knee(&url, options));
        let good = found.pointer("/found/good/rate_per_s").and_then(Value::as_f64);
        good.is_some_and(|good| (CAPACITY * 0.7..CAPACITY * 1.2).contains(&good))
    });
    assert!(found, "three searches have not found the capacity");
}
