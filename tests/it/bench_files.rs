//! All forms of a result agree: JSON with its schema, wrk2's text, `.hgrm`, `.hlog`, and the histograms in the JSON.
//! Every test that makes a run applies the checks of `support::results`; the twins here show that those checks can
//! fail.

use std::sync::OnceLock;

use serde_json::{Value, json};

use super::support::bencher::{Bencher, Run};
use super::support::results::{self, faults, log_faults, text_faults};
use super::support::scripted::{Script, Scripted};
use super::support::wrk2;

/// Makes a run, and returns it with its `.hgrm` and `.hlog`.
fn run_with_files(script: Script, options: &str) -> (Run, String, Vec<u8>) {
    let server = Scripted::start(script);
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str| directory.path().join(name);
    let bencher = Bencher::new(&server.url(""), options).arg("--hgrm", file("hgrm")).arg("--hlog", file("hlog"));
    let run = bencher.run();
    (run, std::fs::read_to_string(file("hgrm")).unwrap(), std::fs::read(file("hlog")).unwrap())
}

/// A run with a warm-up and two stages, in two intervals, in which every tenth of 160 requests is rejected.
fn sample() -> &'static (Run, String, Vec<u8>) {
    static SAMPLE: OnceLock<(Run, String, Vec<u8>)> = OnceLock::new();
    let options = "--workload mixed:50/50 --keys 10 --stages 100/s:600ms,200/s:400ms --warm-up 200ms --threads 2 \
                   --connections 160";
    SAMPLE.get_or_init(|| run_with_files(Script::RefusesEveryTenth, options))
}

#[test]
fn all_forms_of_a_result_agree() {
    let (run, hgrm, hlog) = sample();
    let refused = run.measured("outcomes/refused") + run.count("/warm_up/outcomes/refused");
    assert_eq!((run.measured("scheduled"), run.count("/warm_up/scheduled"), refused), (140, 20, 16));
    assert!(hgrm.starts_with("       Value   Percentile") && run.ended.stdout.contains(hgrm), "{hgrm}");
    assert_eq!(log_faults(hlog, &run.result), Vec::<String>::new());
    let read = wrk2::read(&run.ended.stdout).unwrap();
    assert_eq!(read.requests, 140);
    assert_eq!(read.total_count + read.others_than_2xx_and_3xx.unwrap(), 140);
    assert!(read.spectrum.len() > 10, "{read:?}");
    assert!(run.result["intervals"].as_array().unwrap().len() >= 2, "1.2 seconds");
}

#[test]
fn the_interval_log_contains_requests_that_were_never_sent() {
    let (run, _, hlog) = run_with_files(Script::Silent, "--connections 3 --drain 100ms");
    assert_eq!((run.measured("outcomes/unfinished"), run.measured("unsent")), (50, 47));
    assert_eq!(log_faults(&hlog, &run.result), Vec::<String>::new());
}

#[test]
fn a_run_without_a_response_has_an_empty_distribution_in_every_form() {
    let (run, hgrm, hlog) = run_with_files(Script::AnswersWith(503), "");
    assert_eq!(run.measured("outcomes/refused"), 50);
    assert!(run.result["measured"]["response"]["mean_us"].is_null());
    assert!(hgrm.contains("Total count    =            0]"), "{hgrm}");
    assert_eq!(log_faults(&hlog, &run.result), Vec::<String>::new());
}

/// Returns `result` with another value at `pointer`.
fn changed(result: &Value, pointer: &str, value: Value) -> Value {
    let mut result = result.clone();
    *result.pointer_mut(pointer).unwrap_or_else(|| panic!("{pointer}")) = value;
    result
}

/// Returns `result` without the field at `pointer`.
fn without(result: &Value, pointer: &str) -> Value {
    let mut result = result.clone();
    let (object, field) = pointer.rsplit_once('/').unwrap();
    let object = result.pointer_mut(object).unwrap().as_object_mut().unwrap();
    object.remove(field).unwrap_or_else(|| panic!("{pointer}"));
    result
}

#[test]
fn twin_a_result_of_another_shape_violates_the_schema() {
    let (run, _, _) = sample();
    let result = &run.result;
    assert_eq!(results::schema_faults(result), Vec::<String>::new());
    for (pointer, value) in [
        ("/schema", json!(1)),
        ("/valid", json!("yes")),
        ("/measured/sent", json!("many")),
        ("/measured/sent", json!(-1)),
        ("/measured/scheduled", json!(1.5)),
        ("/measured/response/mean_us", json!("NaN")),
        ("/measured/response/percentiles/0/enough", json!(1)),
        ("/measured/cells/0/operation", json!("scan")),
        ("/measured/outcomes/served", Value::Null),
        ("/load/mode", json!("ajar")),
        ("/warm_up", json!([])),
        ("/checks/0/passed", Value::Null),
    ] {
        assert!(!results::schema_faults(&changed(result, pointer, value.clone())).is_empty(), "{pointer}: {value}");
    }
    for pointer in ["/machine", "/measured/response", "/measured/statuses", "/intervals/0/start_s"] {
        assert!(!results::schema_faults(&without(result, pointer)).is_empty(), "without {pointer}");
    }
}

#[test]
fn twin_contradicting_figures_are_noticed() {
    let (run, _, hlog) = sample();
    let result = &run.result;
    let histogram = result["measured"]["send_lag"]["histogram"].clone();
    // How many rejected requests belong to the warm-up, and whether the run is valid, depends on the machine.
    let other = |pointer: &str| json!(run.count(pointer) - 1);
    // If the machine stalled, no request ended in some intervals.
    let intervals = result["intervals"].as_array().unwrap();
    let number = intervals.iter().position(|interval| interval["outcomes"]["served"].is_u64()).unwrap();
    let served = format!("/intervals/{number}/outcomes/served");
    let cases = [
        ("/schema", json!("klad.bench/2")),
        ("/valid", json!(!result["valid"].as_bool().unwrap())),
        ("/measured/scheduled", json!(141)),
        ("/measured/sent", json!(139)),
        ("/measured/unsent", json!(1)),
        ("/measured/in_flight_at_end", json!(1)),
        ("/measured/outcomes/served", other("/measured/outcomes/served")),
        ("/measured/statuses/200", other("/measured/statuses/200")),
        ("/measured/response/count", other("/measured/response/count")),
        ("/measured/response/histogram", histogram.clone()),
        ("/measured/response/percentiles/0/value_us", json!(1.0)),
        ("/measured/response/percentiles/8/value_us", json!(1.0)),
        ("/measured/service/percentiles/2/samples_above", json!(1)),
        ("/measured/send_lag/percentiles/6/enough", json!(true)),
        ("/measured/cells/0/outcome", json!("not_found")),
        ("/measured/cells/0/response/count", json!(1)),
        ("/warm_up/scheduled", json!(21)),
        ("/stages/1/sent", json!(81)),
        ("/intervals/0/sent", json!(run.count("/intervals/0/sent") + 1)),
        (served.as_str(), other(&served)),
        ("/intervals/1/start_s", json!(0.0)),
    ];
    for (pointer, value) in cases {
        let doctored = changed(result, pointer, value);
        assert_eq!(results::schema_faults(&doctored), Vec::<String>::new(), "{pointer}: the shape is still correct");
        assert!(!faults(&doctored).is_empty(), "{pointer}");
    }
    for pointer in ["/measured/cells/0/response/histogram", "/warm_up/cells/0/response/histogram"] {
        assert!(!log_faults(hlog, &changed(result, pointer, histogram.clone())).is_empty(), "{pointer}");
    }
    let half = &hlog[..hlog.iter().rposition(|byte| *byte == b'=').unwrap() - 200];
    assert!(!log_faults(half, result).is_empty());
}

#[test]
fn twin_a_text_that_differs_from_its_result_is_noticed() {
    let (run, _, _) = sample();
    let text = &run.ended.stdout;
    assert_eq!(text_faults(text, &run.result), Vec::<String>::new());
    // If the machine stalled, the sample itself is not valid: then the test removes the warning instead of adding it.
    let served = format!("Total count    = {:>12}", run.measured("response/count"));
    let one_more = format!("Total count    = {:>12}", run.measured("response/count") + 1);
    let rate = text.lines().find(|line| line.starts_with("Requests/sec:")).unwrap();
    let refused = format!("  Non-2xx or 3xx responses: {}\n", run.measured("outcomes/refused"));
    let refused_more = format!("  Non-2xx or 3xx responses: {}\n", run.measured("outcomes/refused") + 1);
    let warning = if run.result["valid"] == true { ("Running", "NOT VALID: Running") } else { ("NOT VALID: ", "") };
    for (from, to) in [
        warning,
        ("  Latency Distribution (HdrHistogram - Recorded Latency)", "  Latency Distribution"),
        (" 90.000%", " 90.00%"),
        ("  Detailed Percentile spectrum:", ""),
        ("TotalCount", "Count"),
        ("inf\n", "1.00\n"),
        ("#[Mean", "#[Average"),
        (&served, &one_more),
        ("#[Buckets", "#[Bins"),
        ("140 requests in", "141 requests in"),
        ("B read", "B"),
        (rate, "Requests/sec:    999.00"),
        ("Transfer/sec:", "Transfer:"),
        (&refused, &refused_more),
        (&refused, ""),
        ("  Non-2xx or 3xx", "  Socket errors: connect 0, read 1, write 0, timeout 0\n  Non-2xx or 3xx"),
    ] {
        assert!(text.contains(from), "{from:?} is not in {text}");
        assert!(!text_faults(&text.replacen(from, to, 1), &run.result).is_empty(), "{from:?} as {to:?}");
    }
    let p99 = run.result.pointer("/measured/response/percentiles/4/value_us").unwrap().as_f64().unwrap();
    let doctored = changed(&run.result, "/measured/response/percentiles/4/value_us", json!(p99 * 2.0 + 1.0));
    assert!(!text_faults(text, &doctored).is_empty());
}
