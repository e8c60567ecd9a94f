//! `klad bench knee`: it names the reason of the limit, and records a klad at the last good and the first bad rate.
//! `tests/measure/capacity.rs` checks that it finds a known capacity.

use std::net::TcpStream;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::support::bencher::{Ended, Running};
use super::support::queueing::{Queueing, QueueingServer};
use super::support::server::keep;
use super::support::{ServerBuilder, wait_until};

/// The capacity of the scripted server, requests per second.
const CAPACITY: f64 = 500.0;

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

#[test]
fn rejections_end_the_search_as_refusals() {
    let server = Queueing { capacity: 200.0, patience: Duration::from_millis(100) }.start();
    let options = "--slo refused<5% --from 100/s --to 800/s --level 1s --warm-up 200ms --precision 50% --repeats 1";
    let ended = knee(&format!("http://{}/", server.address), options);
    let result = result(&ended);
    let bad = result["levels"].as_array().unwrap().iter().find(|level| level["good"] == false).unwrap();
    assert_eq!(bad["stopped_by"], serde_json::json!(["refusals"]), "{bad:#}");
}

#[test]
fn a_search_for_answers_begins_above_the_demanded_number() {
    let server = Queueing { capacity: CAPACITY, patience: Duration::from_mins(1) }.start();
    let url = format!("http://{}/", server.address);
    let options = "--from 10/s --level 1s --warm-up 500ms --precision 20% --repeats 1";
    // Whether a rate is good depends on the machine.
    let found = result(&knee(&url, &format!("--slo goodput>200/s,p50<100ms {options}")));
    assert!((number(&found, "/levels/0/rate_per_s") - 210.0).abs() < 1e-9, "{found:#}");
    // More than the server can do: no rate is good, and no lower rate is tried.
    let more = knee(&url, &format!("--slo goodput>=900/s {options}"));
    assert_eq!(more.code, Some(3), "{}", more.stderr);
    let rates: Vec<f64> =
        result(&more)["levels"].as_array().unwrap().iter().map(|level| number(level, "/rate_per_s")).collect();
    assert!(rates.iter().all(|rate| *rate >= 900.0), "{rates:?}");
    let refused = knee(&url, "--slo goodput>200/s --to 200/s");
    assert_eq!(refused.code, Some(2), "{}", refused.stderr);
    assert!(refused.stderr.contains("more answers than 200 requests a second"), "{}", refused.stderr);
}

/// Starts a search that does not end by itself, and waits for its first levels.
fn under_way(server: &QueueingServer) -> Running {
    let url = format!("http://{}/", server.address);
    let options = "--slo p50<10s --from 10/s --precision 1% --repeats 20 --level 1s --warm-up 0s --progress always";
    let fixed = ["bench", "knee", &url, "--lag-max", "10s", "--to", "20/s", "--json", "-"];
    let running = Running::start(fixed.into_iter().chain(options.split(' ')));
    wait_until("there are some levels", || running.said().lines().count() >= 2);
    running
}

fn is_broken_off(ended: &Ended, why: &str) {
    assert_eq!(ended.code, Some(4), "{}", ended.stderr);
    let result = result(ended);
    assert_eq!(result["found"]["outcome"], "broken_off", "{result:#}");
    assert!(result["found"]["broken_off"].as_str().unwrap().contains(why), "{}", result["found"]);
    assert!(result["levels"].as_array().unwrap().len() >= 2 && result["found"]["good"].is_object(), "{result:#}");
}

#[test]
fn an_interrupted_search_reports_its_levels_and_uses_one_signal_thread() {
    let server = Queueing { capacity: 1e6, patience: Duration::from_mins(1) }.start();
    let running = under_way(&server);
    let tasks = std::fs::read_dir(format!("/proc/{}/task", running.child.id())).unwrap();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.unwrap().path().join("comm")).ok());
    let names: Vec<_> = names.filter(|name| name.trim() == "klad-signals").collect();
    assert_eq!(names.len(), 1, "one thread for all levels");
    kill_process(Pid::from_child(&running.child), Signal::INT).unwrap();
    is_broken_off(&running.wait(), "interrupted");
}

#[test]
fn a_search_whose_server_disappears_reports_its_levels() {
    let server = Queueing { capacity: 1e6, patience: Duration::from_mins(1) }.start();
    let running = under_way(&server);
    let address = server.address;
    drop(server);
    wait_until("the port is closed", || TcpStream::connect(address).is_err());
    let _kept = keep(address);
    wait_until("the search tries again", || running.said().contains("trying again in 1 s"));
    is_broken_off(&running.wait(), "cannot connect to");
}

#[test]
fn each_end_of_the_search_has_its_text_and_exit_code() {
    let server = Queueing { capacity: 1e6, patience: Duration::from_mins(1) }.start();
    let url = format!("http://{}/", server.address);
    let short = "--level 200ms --warm-up 0s --repeats 1";
    let args = |rest: &str| {
        let fixed = ["bench", "knee", &url, "--lag-max", "10s"];
        Running::start(fixed.into_iter().chain(short.split(' ')).chain(rest.split_whitespace())).wait()
    };
    let not_reached = args("--slo p50<10s --from 100/s --to 200/s");
    assert_eq!(not_reached.code, Some(0), "{}", not_reached.stderr);
    assert!(not_reached.stdout.contains("above the highest allowed rate"), "{}", not_reached.stdout);
    let none = args("--slo p50<1ns --from 100/s");
    assert_eq!(none.code, Some(3), "{}", none.stderr);
    assert!(none.stdout.contains("No rate meets the objective"), "{}", none.stdout);
    assert!(none.stdout.contains("Stopped by: latency"), "{}", none.stdout);
    let late = args("--slo p50<10s --from 100/s --lag-max 1ns");
    assert_eq!(late.code, Some(2), "the option is given twice");
    let fixed = ["bench", "knee", &url, "--slo", "p50<10s", "--from", "100/s", "--lag-max", "1ns"];
    let late = Running::start(fixed.into_iter().chain(short.split(' '))).wait();
    assert_eq!(late.code, Some(4), "{}", late.stderr);
    assert!(late.stdout.contains("The generator was the limit"), "{}", late.stdout);
    // Each rate is repeated twice before it counts.
    let (repeated, counted) =
        (late.stdout.matches("run again: send_lag").count(), late.stdout.matches("  send_lag").count());
    assert!(counted > 0 && repeated == 2 * counted, "{repeated} and {counted}: {}", late.stdout);
    let wrong = args("--slo p50<1zs");
    assert_eq!(wrong.code, Some(2));
    assert!(wrong.stderr.contains("    p50<1zs\n") && wrong.stderr.contains("        ^"), "{}", wrong.stderr);
    assert_eq!(args("--slo p50<1s --closed").code, Some(2), "a search has no option for closed load");
}

/// Seconds of a level. On a busy machine a record may begin after the end of a short level, and then lacks something.
/// The search is then made again with longer levels.
const LEVELS: [u32; 3] = [1, 4, 16];

/// Makes a search that records a klad.
fn recorded(url: &str, options: &str) -> Value {
    let is_complete = |result: &Value| {
        let evidence = &result["evidence"][0];
        println!("missing: {}, queues: {}", evidence["missing"], evidence["queues"]);
        evidence["missing"] == serde_json::json!([]) && evidence["queues"] != serde_json::json!([])
    };
    let search = |seconds| result(&knee(url, &format!("{options} --level {seconds}s")));
    LEVELS.into_iter().map(search).find(is_complete).expect("a complete record")
}

#[test]
fn a_klad_is_recorded_at_the_last_good_and_the_first_bad_rate() {
    let server = ServerBuilder::new("memory").start();
    let directory = tempfile::tempdir().unwrap();
    let admin = format!("http://{}", server.admin);
    let (url, evidence) = (format!("http://{}", server.address), directory.path().join("of/it"));
    // No server answers in a nanosecond, and every server has a rate with a median below an hour.
    for (slo, outcome, file) in
        [("p50<1h", "not_reached", "last-good.cpu.pb.gz"), ("p50<1ns", "none_good", "first-bad.cpu.pb.gz")]
    {
        let options = format!("--workload put --slo {slo} --from 20/s --to 200/s --warm-up 0s --repeats 1");
        let options = format!("{options} --admin {admin} --evidence {}", evidence.display());
        let result = recorded(&url, &options);
        assert_eq!(result["found"]["outcome"], outcome);
        let evidence_of = &result["evidence"][0];
        let path = evidence.join(file);
        assert_eq!(evidence_of["profile"], path.to_str().unwrap());
        let profile = klad_profile::pprof::decode(&std::fs::read(path).unwrap()).unwrap();
        assert!(!profile.samples.is_empty() || profile.title.contains("CPU"), "{}", profile.title);
        let queues = evidence_of["queues"].as_array().unwrap();
        let names: Vec<_> = queues[0]["values"].as_object().unwrap().keys().collect();
        assert!(names.iter().any(|name| name.starts_with("klad_http_requests_in_flight")), "{names:?}");
        assert_eq!(evidence_of["level"]["purpose"], "evidence");
    }
}

/// The charts on the page of a search that has recorded a klad with the memory engine, which has no queues.
#[cfg(target_os = "linux")]
const FIGURES: [&str; 5] =
    ["goodput", "latency", "shares", "klad_http_requests_in_flight-good", "klad_operations_in_use-good"];

#[cfg(target_os = "linux")]
#[test]
fn the_page_of_a_search_has_its_charts_and_profiles() {
    use super::support::loaded::loaded;
    use super::support::pages::{faults, look};
    let server = ServerBuilder::new("memory").start();
    let file = tempfile::NamedTempFile::new().unwrap();
    let admin = format!("http://{}", server.admin);
    let options = "--workload put --slo p50<1h --from 100/s --to 400/s --warm-up 0s --repeats 1";
    let options = format!("{options} --admin {admin} --html {}", file.path().display());
    let attempt = |seconds| {
        let options = format!("{options} --level {seconds}s");
        // Other clients load the klad too: the search itself may cost it too little time for a sample of the profile.
        let ended = loaded(&server, Duration::ZERO, || knee(&format!("http://{}", server.address), &options));
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        std::fs::read_to_string(file.path()).unwrap()
    };
    // On a busy machine klad may also not run during the profile.
    let has_all = |page: &String| FIGURES.iter().all(|id| page.contains(id)) && page.matches("&lt;rect").count() > 3;
    let page = LEVELS.into_iter().map(attempt).find(has_all).expect("a page with a record");
    for dark in [false, true] {
        assert_eq!(faults(&look(&page, dark), dark, &FIGURES), Vec::<String>::new(), "dark: {dark}");
    }
    assert!(page.contains("above the highest allowed rate"));
    // As if a reader opened the profile and scrolled to it.
    let open = page
        .replace("<details class=\"embedded\">", "<details class=\"embedded\" open>")
        .replace("loading=\"lazy\"", "");
    for seen in look(&open, false) {
        assert_eq!((&seen["errors"], &seen["refused"]), (&serde_json::json!([]), &serde_json::json!([])));
        let rects: Vec<_> = seen["embedded"].as_array().unwrap().iter().map(|count| count.as_i64().unwrap()).collect();
        assert!(rects.len() == 1 && rects[0] > 3, "a flame graph has its frames: {rects:?}");
    }
    let empty = open.replace("&lt;rect", "&lt;g");
    for seen in look(&empty, false) {
        assert_eq!(seen["embedded"][0], 0, "twin: a flame graph without frames is noticed");
    }
}

#[test]
fn a_wrong_admin_address_is_found_before_the_search() {
    let server = Queueing { capacity: 1e6, patience: Duration::from_mins(1) }.start();
    let url = format!("http://{}/", server.address);
    let ended = knee(&url, &format!("--slo p50<1s --from 100/s --admin {url}"));
    assert_eq!(ended.code, Some(1), "{}", ended.stderr);
    assert!(ended.stderr.contains("--admin is not a klad"), "{}", ended.stderr);
}
