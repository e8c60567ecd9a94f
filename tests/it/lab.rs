//! `klad lab`: small experiments with real servers, from the scenario to the report: other servers than klad, failures,
//! interruptions. `tests/measure/lab_verdicts.rs` checks what it computes of a planted regression and of two equal
//! variants.

use std::path::Path;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::support::bencher::klad;
use super::support::lab::{NEVER, Place, order, two};
use super::support::wait_until;

fn started(place: &Place, file: &str) -> String {
    let bench: Value = serde_json::from_str(&place.text(file)).unwrap();
    bench["started"]["utc"].as_str().unwrap().to_owned()
}

#[test]
fn variants_take_turns_and_each_run_has_its_evidence() {
    let place = Place::new(&two(NEVER, "1s"));
    let ended = place.run("--repeats 2");
    assert_eq!(ended.code, Some(0), "{}{}", ended.stdout, ended.stderr);
    let result = place.result();
    let mut runs: Vec<_> =
        order(&result).into_iter().map(|(file, variant)| (started(&place, &file), variant)).collect();
    runs.sort();
    let turns: Vec<&str> = runs.iter().map(|(_, variant)| variant.as_str()).collect();
    assert_eq!(turns, ["as-it-was", "changed"].repeat(2));
    assert!(place.text("report.md").contains("as-it-was") && place.text("report.html").contains("as-it-was"));
    assert!(!place.has_databases(), "databases are left");
    let variants = result["stages"][0]["variants"].as_array().unwrap();
    let runs: Vec<&Value> = variants.iter().flat_map(|variant| variant["runs"].as_array().unwrap()).collect();
    for run in &runs {
        assert!(run["server_memory_max_bytes"].as_u64().unwrap() > 1_000_000, "{run:#}");
        assert!(run["slowest"][0]["parts"][0]["us"].as_f64().unwrap() > 0.0, "{run:#}");
    }
    // A short run may cost less than a tick of CPU time, and on a busy machine it may end before the first sample.
    assert!(runs.iter().any(|run| run["server_cpu_us_per_served"].as_f64() > Some(0.0)), "{runs:#?}");
    assert!(runs.iter().any(|run| run["queues"][0].is_object()), "{runs:#?}");
}

/// One of two variants cannot start. The stage has a profile, and a rate above the capacity of any server.
const IN_PART: &str = r#"
    title = "One variant does not start"
    pin = "none"
    repeats = 1
    [server]
    options = ["--engine", "memory"]
    [[variant]]
    name = "well"
    [[variant]]
    name = "ill"
    options = ["--threads", "many"]
    [[stage]]
    name = "put"
    options = ["--workload", "put", "--keys", "1000", "--lag-max", "10s"]
    rate = 10_000_000.0
    connections = 2
    duration = "1s"
    warm-up = "100ms"
    profiles = ["cpu"]
"#;

#[test]
fn a_variant_that_fails_is_named_and_the_others_are_reported() {
    let attempt = |_| {
        let place = Place::new(IN_PART);
        let ended = place.run("--progress always");
        assert_eq!(ended.code, Some(3), "{}{}", ended.stdout, ended.stderr);
        let result = place.result();
        (place, ended, result)
    };
    // The second stage needs a capacity, and on a busy machine a measurement of it, or of the stage, may fail.
    let is_measured = |result: &Value| {
        let well = &result["stages"][1]["variants"][0];
        well["runs"][0].is_object() && well["profiles"][0].is_object()
    };
    let (place, ended, result) = (0..5).map(attempt).find(|(.., result)| is_measured(result)).expect("two stages");
    assert!(ended.stdout.contains("Failed: put, ill, run 1: klad ended during its start"), "{}", ended.stdout);
    assert!(ended.stderr.contains("left"), "no progress: {}", ended.stderr);
    let stages: Vec<&str> =
        result["stages"].as_array().unwrap().iter().map(|stage| stage["name"].as_str().unwrap()).collect();
    assert_eq!(stages, ["put", "put-at-70"]);
    let below = &result["stages"][1];
    let (rate, capacity) = (below["rate_per_s"].as_f64().unwrap(), below["capacity_per_s"].as_f64().unwrap());
    assert!((rate / capacity - 0.7).abs() < 1e-9, "{rate} of {capacity}");
    let [well, ill] = [0, 1].map(|variant| &below["variants"][variant]);
    assert_eq!(well["runs"].as_array().unwrap().len(), 1);
    assert!(ill["runs"].as_array().unwrap().is_empty() && ill["profiles"].as_array().unwrap().is_empty());
    let profile = place.path("out").join(well["profiles"][0]["file"].as_str().unwrap());
    klad_profile::pprof::decode(&std::fs::read(profile).unwrap()).unwrap();
    // On a busy machine a measurement of the other variant may fail, too.
    let failures = result["failures"].as_array().unwrap();
    assert_eq!(failures.iter().filter(|failure| failure["variant"] == "ill").count(), 4, "{failures:#?}");
    let conclusion: Value = serde_json::from_str(&place.text("report.json")).unwrap();
    assert_eq!(conclusion["conclusion"]["stages"][1]["standings"][0]["variant"], "well");
    for document in [&result, &conclusion] {
        assert!(fits_the_schema(document), "{document:#}");
    }
    // The report is written again from the figures.
    let before = place.text("report.md");
    std::fs::remove_file(place.path("out/report.md")).unwrap();
    let again = klad(&["lab", "report", place.path("out").to_str().unwrap()]);
    assert_eq!(again.code, Some(3), "{}", again.stderr);
    assert_eq!(place.text("report.md"), before);
}

/// klad beside other servers: one that works, one that is not installed, and one that ends at its start.
const PEERS: &str = r#"
    title = "Peers"
    pin = "none"
    repeats = 1
    [server]
    # With admission, klad would take a stall for an overload, and reject requests.
    options = ["--engine", "memory", "--admission", "off"]
    [[variant]]
    name = "own"
    [[variant]]
    name = "echo"
    [variant.peer]
    command = ["{klad}", "lab", "echo", "--listen", "{address}"]
    path = "/any/{key}"
    [[variant]]
    name = "absent"
    [variant.peer]
    command = ["no-such-server-of-klads-tests", "{port}"]
    [[variant]]
    name = "ends"
    [variant.peer]
    command = ["sh", "{data}/script"]
    files.script = "echo last words; exit 7"
    [data]
    keys = 1_000
    [[stage]]
    name = "mixed"
    data = "filled"
    options = ["--workload", "mixed:50/50", "--lag-max", "10s", "--drain", "10s"]
    rate = 200.0
    also-below-capacity = false
    # One for each request: with fewer, the requests of the warm-up would use all of them after a stall.
    connections = 220
    duration = "1s"
    warm-up = "100ms"
    profiles = ["cpu"]
"#;

#[test]
fn peers_are_loaded_beside_klad_and_those_that_are_not_installed_are_left_out() {
    let place = Place::new(PEERS);
    let ended = place.run("");
    assert_eq!(ended.code, Some(3), "{}{}", ended.stdout, ended.stderr);
    let left_out = "Left out: absent, because the program no-such-server-of-klads-tests is not installed.";
    assert!(ended.stdout.contains(left_out), "{}", ended.stdout);
    let failed = "Failed: mixed, ends, run 1: sh ended during its start, exit status: 7: last words";
    assert!(ended.stdout.contains(failed), "{}", ended.stdout);
    let result = place.result();
    assert!(fits_the_schema(&result), "{result:#}");
    let variants = result["stages"][0]["variants"].as_array().unwrap();
    let names: Vec<&str> = variants.iter().map(|variant| variant["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["own", "echo", "ends"]);
    let profiles: Vec<usize> = variants.iter().map(|variant| variant["profiles"].as_array().unwrap().len()).collect();
    assert_eq!(profiles, [1, 0, 0], "only klad gives profiles");
    for variant in &variants[..2] {
        let run = &variant["runs"][0];
        let bench: Value = serde_json::from_str(&place.text(run["file"].as_str().unwrap())).unwrap();
        assert!(bench["measured"]["outcomes"]["served"].as_u64() > Some(0), "{bench:#}");
        assert!(run["server_cpu_us_per_served"].as_f64().is_some(), "{run:#}");
    }
    let echo = &variants[1]["runs"][0];
    assert_eq!((&echo["queues"], &echo["slowest"]), (&serde_json::json!([]), &serde_json::json!([])));
    let report = place.text("report.md");
    for line in ["| echo | get |", "| own | put |", "echo: not klad: {klad} lab echo --listen {address}"] {
        assert!(report.contains(line), "{line} in {report}");
    }
}

/// Whether a document is valid by `klad lab schema`.
fn fits_the_schema(document: &Value) -> bool {
    let schema = klad(&["lab", "schema"]);
    jsonschema::validator_for(&serde_json::from_str(&schema.stdout).unwrap()).unwrap().is_valid(document)
}

#[test]
fn twin_documents_without_their_figures_do_not_fit_the_schema() {
    assert!(!fits_the_schema(&serde_json::json!({"schema": "klad.lab/1"})));
    assert!(!fits_the_schema(&serde_json::json!({"schema": "klad.lab.report/1", "title": "Two"})));
}

/// Filled data that is read, copied data that is written, and shares of the capacity. Without a warm-up, the first
/// requests count even if a stall of the machine takes the rest of the run.
#[cfg(feature = "rocksdb")]
const ON_DISK: &str = r#"
    title = "Filled and copied"
    pin = "none"
    repeats = 2
    [server]
    # With admission, klad would take a stall for an overload, and reject requests.
    options = ["--memory", "64MiB", "--durability", "async", "--admission", "off"]
    [[variant]]
    name = "ill"
    options = ["--threads", "many"]
    [[variant]]
    name = "well"
    [data]
    keys = 20_000
    [[stage]]
    name = "read"
    data = "filled"
    options = ["--workload", "get", "--lag-max", "10s", "--drain", "10s"]
    of-capacity = 0.1
    connections = 4
    duration = "10s"
    warm-up = "0s"
    [[stage]]
    name = "write"
    data = "copied"
    options = ["--workload", "delete", "--lag-max", "10s", "--drain", "10s"]
    of-capacity = 0.1
    connections = 4
    duration = "10s"
    warm-up = "0s"
    [[stage]]
    name = "read-again"
    data = "filled"
    options = ["--workload", "get", "--lag-max", "10s", "--drain", "10s"]
    of-capacity = 0.2
    connections = 4
    duration = "10s"
    warm-up = "0s"
"#;

#[cfg(feature = "rocksdb")]
#[test]
fn all_runs_read_the_same_data_and_the_second_variant_gives_the_capacity_where_the_first_fails() {
    let place = Place::new(ON_DISK);
    let ended = place.run("--scale 0.1 --variants ill,well");
    assert_eq!(ended.code, Some(3), "{}{}", ended.stdout, ended.stderr);
    let result = place.result();
    assert_eq!(result["keys"], 2_000);
    let mut capacities = Vec::new();
    for stage in result["stages"].as_array().unwrap() {
        assert_eq!(stage["capacity_of"], "well", "{stage:#}");
        capacities.push(stage["capacity_per_s"].as_f64().unwrap());
        let runs = stage["variants"][1]["runs"].as_array().unwrap();
        assert_eq!(runs.len(), 2, "{:#}", result["failures"]);
        for run in runs {
            let bench: Value = serde_json::from_str(&place.text(run["file"].as_str().unwrap())).unwrap();
            let outcomes = bench["measured"]["outcomes"].as_object().unwrap();
            // Deletions were made in a copy.
            assert!(outcomes["not_found"] == 0 || stage["name"] == "write", "{outcomes:?}");
            assert!(outcomes["served"].as_u64() > Some(0), "{outcomes:?}");
        }
    }
    assert_eq!(capacities[0].to_bits(), capacities[2].to_bits(), "the same requests have the same capacity");
    assert!(ended.stdout.contains("Changed by options: --variants ill,well."), "{}", ended.stdout);
    assert!(ended.stdout.contains("Goodput of well: "), "{}", ended.stdout);
    assert!(!place.has_databases(), "databases are left");
}

/// A killed lab leaves the results of its complete stages.
#[test]
fn what_was_found_before_the_end_is_on_the_disk() {
    let place = Place::new(&format!("{}\n{}", two(NEVER, "1s"), SECOND));
    let running = place.start("--progress always --repeats 1");
    wait_until("the first stage is over", || running.said().contains("get changed run 1"));
    wait_until("a server and a load run", || children_of(running.child.id()).len() == 2);
    let lab = Pid::from_child(&running.child);
    // It starts no further processes, which this test would leave running.
    kill_process(lab, Signal::STOP).unwrap();
    let children = children_of(running.child.id());
    kill_process(lab, Signal::KILL).unwrap();
    running.wait();
    for child in children {
        let pid = child.parse().ok().and_then(Pid::from_raw).unwrap();
        // It may have ended by itself.
        let _ = kill_process(pid, Signal::KILL);
    }
    let report = klad(&["lab", "report", place.path("out").to_str().unwrap()]);
    assert_eq!(report.code, Some(3), "{}", report.stderr);
    assert!(report.stdout.contains("did not finish"), "{}", report.stdout);
    assert_eq!(place.result()["stages"].as_array().unwrap().len(), 1);
}

const SECOND: &str = r#"
    [[stage]]
    name = "again"
    data = "filled"
    options = ["--workload", "get", "--lag-max", "10s"]
    rate = 100.0
    also-below-capacity = false
    connections = 8
    duration = "60s"
    warm-up = "200ms"
"#;

fn children_of(pid: u32) -> Vec<String> {
    let path = format!("/proc/{pid}/task/{pid}/children");
    std::fs::read_to_string(path).unwrap_or_default().split_whitespace().map(str::to_owned).collect()
}

#[test]
fn an_interrupted_experiment_reports_what_it_has_and_leaves_no_process() {
    let place = Place::new(&two(NEVER, "1s"));
    let running = place.start("--progress always");
    wait_until("two runs are done", || running.said().contains("changed run 1"));
    let mut children = Vec::new();
    wait_until("a server runs", || {
        children = children_of(running.child.id());
        !children.is_empty()
    });
    kill_process(Pid::from_child(&running.child), Signal::INT).unwrap();
    let ended = running.wait();
    assert_eq!(ended.code, Some(3), "{}{}", ended.stdout, ended.stderr);
    assert!(ended.stdout.contains("interrupted"), "{}", ended.stdout);
    let runs = order(&place.result()).len();
    assert!((2..10).contains(&runs), "{runs}");
    for child in children {
        let status = std::fs::read_to_string(format!("/proc/{child}/comm")).unwrap_or_default();
        assert!(!status.starts_with("klad"), "process {child} is left");
    }
    assert!(!place.has_databases(), "databases are left");
}

#[test]
fn what_makes_no_sense_costs_no_run() {
    let place = Place::new(&two(NEVER, "1s"));
    let out = place.path("elsewhere");
    let run = |scenario: &str, more: &[&str]| {
        klad(&[&["lab", "run", scenario, "--out", out.to_str().unwrap()], more].concat())
    };
    let own = place.path("own.toml");
    let own = own.to_str().unwrap();
    for (scenario, more, why) in [
        ("seed-007", &[][..], "neither a built-in scenario"),
        (own, &["--variants", "as-it-was,other"], "there is no variant other; there are as-it-was, changed"),
        (own, &["--stages", "put"], "there is no stage put; there are get"),
        (own, &["--scale", "2"], "above 0 and at most 1"),
    ] {
        let ended = run(scenario, more);
        assert_eq!(ended.code, Some(2), "{scenario} {more:?}: {}", ended.stderr);
        assert!(ended.stderr.contains(why), "{scenario} {more:?}: {}", ended.stderr);
    }
    std::fs::create_dir_all(&out).unwrap();
    std::fs::write(out.join("lab.json"), "{}").unwrap();
    let ended = run(own, &[]);
    assert_eq!(ended.code, Some(2), "{}", ended.stderr);
    assert!(ended.stderr.contains("holds a report already"), "{}", ended.stderr);
}

#[test]
fn built_in_scenarios_are_listed_and_shown() {
    let listed = klad(&["lab", "list"]);
    assert_eq!(listed.code, Some(0), "{}", listed.stderr);
    for name in ["quick", "seed-000", "seed-004", "overload", "durability", "cold", "tail", "yardstick"] {
        assert!(listed.stdout.lines().any(|line| line.starts_with(&format!("{name} "))), "{}", listed.stdout);
        let shown = klad(&["lab", "show", name]);
        klad_lab::scenario::Scenario::parse(name, &shown.stdout).unwrap();
    }
    assert_eq!(klad(&["lab", "show", "seed-007"]).code, Some(2));
}

#[test]
fn documents_name_every_scenario() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/lab.md");
    let text = std::fs::read_to_string(path).unwrap();
    for (name, _) in klad_lab::shipped::SHIPPED {
        assert!(text.contains(&format!("| `{name}` |")), "docs/lab.md does not name {name}");
    }
}

#[test]
fn built_in_scenarios_have_valid_options() {
    for (name, text) in klad_lab::shipped::SHIPPED {
        let scenario = klad_lab::scenario::Scenario::parse(name, text).unwrap_or_else(|error| panic!("{error:#}"));
        assert_eq!(scenario.name, name);
        for variant in &scenario.variants {
            // A build without RocksDB does not accept its name; the other options are checked.
            let mut options = scenario.options_of(variant).into_iter();
            let mut known = Vec::new();
            while let Some(option) = options.next() {
                if option == "--engine" {
                    options.next();
                } else {
                    known.push(option);
                }
            }
            let parsed = <klad::cli::Cli as clap::Parser>::try_parse_from(["klad", "serve"].into_iter().chain(known));
            parsed.unwrap_or_else(|error| panic!("{name}, {}: {error}", variant.name));
        }
        for stage in &scenario.stages {
            let fixed = ["klad", "bench", "http://127.0.0.1:1", "--rate", "1/s"];
            let parsed = <klad::cli::Cli as clap::Parser>::try_parse_from(
                fixed.into_iter().chain(stage.options.iter().map(String::as_str)),
            );
            parsed.unwrap_or_else(|error| panic!("{name}, {}: {error}", stage.name));
        }
    }
}
