//! The verdicts of `klad lab` on real runs of a planted regression and of two equal variants, and the pause between
//! loads.

use std::time::Duration;

use serde_json::Value;

use super::support::bencher::Ended;
use super::support::lab::{NEVER, Place, order, two};

/// Returns p90 of each run of a variant, microseconds.
fn p90s(place: &Place, result: &Value, variant: &str) -> Vec<f64> {
    let of_variant = order(result).into_iter().filter(|(_, name)| name == variant);
    of_variant.map(|(file, _)| p90(&serde_json::from_str(&place.text(&file)).unwrap())).collect()
}

fn p90(bench: &Value) -> f64 {
    let points = bench["measured"]["response"]["percentiles"].as_array().unwrap();
    let point = points.iter().find(|point| point["percentile"] == 90.0).unwrap();
    point["value_us"].as_f64().unwrap()
}

/// Returns the judgement of a figure of the second variant.
fn judgement(place: &Place, figure: &str) -> String {
    let report: Value = serde_json::from_str(&place.text("report.json")).unwrap();
    let differences = report["conclusion"]["stages"][0]["comparisons"][0]["differences"].as_array().unwrap();
    let found = differences.iter().find(|difference| difference["figure"] == figure).unwrap();
    found["judgement"].as_str().unwrap().to_owned()
}

/// Returns the largest value divided by the smallest.
fn spread(values: &[f64]) -> f64 {
    values.iter().copied().fold(0.0, f64::max) / values.iter().copied().fold(f64::INFINITY, f64::min)
}

/// Runs the experiment with the regression. Returns also whether its runs are alike enough for 400 ms to be detected:
/// on a busy machine some or all runs may be slow. The unit tests of `klad_lab::conclusion` plant 2 ms in every
/// hundredth request.
fn regression() -> (Place, Ended, bool) {
    let place = Place::new(&two(5, "3s"));
    let ended = place.run("");
    assert_eq!(ended.code, Some(0), "{}{}", ended.stdout, ended.stderr);
    let result = place.result();
    let [before, after] = ["as-it-was", "changed"].map(|variant| p90s(&place, &result, variant));
    assert!(after.iter().all(|p90| *p90 >= 400e3), "the planted delay is missing: {after:?}");
    println!("p90, microseconds: {before:?} and {after:?}");
    let in_time = before.iter().all(|p90| *p90 < 20e3);
    (place, ended, in_time && spread(&before) < 3.0 && spread(&after) < 1.5)
}

#[test]
fn a_planted_regression_is_found_at_its_percentile() {
    let (mut place, mut ended, mut quiet) = regression();
    for _ in 0..2 {
        if !quiet {
            (place, ended, quiet) = regression();
        }
    }
    assert!(quiet, "this machine was too unsteady for a judgement, three times: repeat it on a quiet one");
    assert_eq!(judgement(&place, "p90"), "worse", "{}", ended.stdout);
}

#[test]
fn equal_variants_are_called_equal() {
    // By chance, about one experiment in a hundred finds a difference; three in a row do not.
    let is_equal = |_| {
        let place = Place::new(&two(NEVER, "3s"));
        let ended = place.run("");
        assert_eq!(ended.code, Some(0), "{}{}", ended.stdout, ended.stderr);
        let said = ended.stdout.lines().filter(|line| line.contains("changed")).collect::<Vec<_>>().join("\n");
        eprintln!("{said}");
        said.contains("no difference") && !said.contains("worse") && !said.contains("better")
    };
    assert!((0..3).any(is_equal));
}

/// Returns the shortest time between the starts of two loads of 1.2 s, where each server holds 1,000 values of this
/// size.
fn shortest_gap(value_size: &str) -> Duration {
    let place = Place::new(&format!(
        r#"
        title = "Large"
        pin = "none"
        repeats = 5
        [server]
        options = ["--engine", "memory"]
        [[variant]]
        name = "only"
        [data]
        keys = 1_000
        value-size = "{value_size}"
        [[stage]]
        name = "get"
        data = "filled"
        options = ["--workload", "get", "--lag-max", "10s"]
        rate = 100.0
        also-below-capacity = false
        duration = "1s"
        warm-up = "200ms"
        "#
    ));
    let ended = place.run("");
    assert_eq!(ended.code, Some(0), "{}{}", ended.stdout, ended.stderr);
    let start = |(file, _): &(String, String)| {
        let bench: Value = serde_json::from_str(&place.text(file)).unwrap();
        Duration::from_nanos(bench["started"]["monotonic_ns"].as_u64().unwrap())
    };
    let mut starts: Vec<Duration> = order(&place.result()).iter().map(start).collect();
    starts.sort_unstable();
    assert_eq!(starts.len(), 5);
    starts.windows(2).map(|pair| pair[1].saturating_sub(pair[0])).min().unwrap()
}

#[test]
fn no_load_begins_within_five_seconds_of_the_end_of_a_large_server() {
    let gap = shortest_gap("256KiB");
    assert!(gap >= Duration::from_millis(6_200), "{gap:?}");
}

#[test]
fn twin_a_load_that_begins_at_once_has_a_shorter_gap() {
    let gap = shortest_gap("100B");
    assert!(gap < Duration::from_millis(6_200), "{gap:?}");
}
