//! The command line of `klad bench`: exit codes, messages, output streams, schedules.

use std::net::SocketAddr;

use serde_json::Value;

use super::support::bencher::{Bencher, klad, together};
use super::support::scripted::{Script, Scripted};
use super::support::server::keep;

#[test]
fn a_valid_run_has_exit_code_0_and_one_that_misses_its_objectives_3() {
    // Each run has its own server, so that exactly a tenth of its requests is rejected.
    let servers = [(); 3].map(|()| Scripted::start(Script::RefusesEveryTenth));
    let objectives = ["p99<1h,refused<=10%,refused>9%,failed<=0%", "p99<1ns", "p50<1h,refused<10%"];
    let runs = servers.iter().zip(objectives);
    let runs: Vec<_> = runs.map(|(server, slo)| Bencher::new(&server.url("/"), "").arg("--slo", slo)).collect();
    let runs = together(&runs);
    let codes: Vec<_> = runs.iter().map(|run| run.ended.code).collect();
    assert_eq!(codes, [Some(0), Some(3), Some(3)]);
    let met: Vec<_> = runs.iter().map(|run| run.result["slo"]["met"].as_bool().unwrap()).collect();
    assert_eq!(met, [true, false, false]);
    assert!(runs[0].ended.stdout.contains("  met    refused>9%: 10.000%"), "{}", runs[0].ended.stdout);
    assert!(runs[1].ended.stdout.contains("  MISSED p99<1ns: "), "{}", runs[1].ended.stdout);
    let each: Vec<_> = runs[2].result["slo"]["objectives"].as_array().unwrap().iter().map(|one| &one["met"]).collect();
    assert_eq!(each, [true, false]);
}

#[test]
fn an_invalid_run_says_so_first_and_has_exit_code_4_whatever_its_objectives_say() {
    let server = Scripted::start(Script::Answers);
    // No generator is punctual to a nanosecond.
    for objective in ["p50<1ns", "p50<1h"] {
        let run = Bencher::new(&server.url("/"), "--lag-max 1ns --duration 100ms").arg("--slo", objective).run();
        run.assert_failed_checks(&["send_lag"]);
        assert!(run.ended.stdout.starts_with("NOT VALID: send_lag: "), "{}", run.ended.stdout);
        assert_eq!(run.result["valid"], false);
    }
}

#[cfg(not(feature = "scripts"))]
#[test]
fn without_lua_a_script_is_rejected_with_the_reason() {
    let ended = klad(&["bench", "http://127.0.0.1:1", "--rate", "10/s", "--script", "some.lua"]);
    assert_eq!(ended.code, Some(2));
    assert!(ended.stderr.contains("without Lua"), "{}", ended.stderr);
}

#[test]
fn a_run_that_cannot_be_made_has_exit_code_1() {
    let kept = keep(SocketAddr::from(([127, 0, 0, 1], 0)));
    let closed = kept.local_addr().unwrap().as_socket().unwrap().to_string();
    let ended = klad(&["bench", &format!("http://{closed}"), "--rate", "10/s"]);
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(1), ""));
    assert!(ended.stderr.contains(&closed) && ended.stderr.contains("refused"), "{}", ended.stderr);

    let refusing = Scripted::start(Script::AnswersWith(503));
    let ended = klad(&["bench", &refusing.url(""), "--rate", "10/s", "--workload", "get", "--fill", "5"]);
    assert_eq!(ended.code, Some(1));
    assert!(ended.stderr.contains("0 of 5 keys") && ended.stderr.contains("503"), "{}", ended.stderr);

    let ended = klad(&["bench", "http://name.invalid", "--rate", "10/s"]);
    assert_eq!(ended.code, Some(1));
    assert!(ended.stderr.contains("name.invalid"), "{}", ended.stderr);
}

#[test]
fn a_file_that_cannot_be_written_is_found_before_the_run() {
    let server = Scripted::start(Script::Answers);
    for option in ["--hlog", "--hgrm", "--json", "--html"] {
        let bencher = Bencher::new(&server.url("/"), "--duration 100ms").arg(option, "/nowhere/at/all");
        let ended = bencher.start().wait();
        assert_eq!(ended.code, Some(1), "{option}");
        assert!(ended.stderr.contains("/nowhere/at/all"), "{}", ended.stderr);
        assert_eq!(server.record().requests.len(), 0, "{option}: a run was made although its result cannot be written");
    }
}

#[test]
fn wrong_usage_has_exit_code_2_and_names_the_problem() {
    let url = "http://127.0.0.1:1";
    let keyless = "http://127.0.0.1:1/kv";
    for (arguments, words) in [
        (&[url][..], "--rate"),
        (&["--rate", "1/s"], "URL"),
        (&[url, "--rate", "fast"], "fast"),
        (&[url, "--rate", "0/s"], "more than 0"),
        (&[url, "--rate", "1/s", "--colour", "red"], "--colour"),
        (&[url, "--rate", "1/s", "--closed"], "--closed"),
        (&[url, "--rate", "1/s", "--workload", "ycsb-z"], "ycsb-z"),
        (&[url, "--rate", "1/s", "--workload", "put", "--body", "x"], "--body"),
        (&[url, "--rate", "1/s", "--connections", "0"], "at least 1"),
        (&[url, "--rate", "1/s", "--connections", "9", "--connections-max", "8"], "--connections-max 8"),
        (&[url, "--rate", "1/s", "--duration", "0s"], "more than 0"),
        (&[url, "--rate", "1/s", "--key-format", "key"], "{:07}"),
        (&[url, "--rate", "1/s", "-H", "nothing"], "nothing"),
        (&[url, "--rate", "1/s", "-H", "Content-Length: 5"], "Content-Length"),
        (&[url, "--rate", "1/s", "--method", "G T"], "G T"),
        (&[url, "--stages", "5/s"], "5/s"),
        (&[keyless, "--rate", "1/s", "--workload", "get"], "{key}"),
        (&["https://127.0.0.1", "--rate", "1/s"], "https"),
        (&["127.0.0.1:1", "--rate", "1/s"], "127.0.0.1:1"),
    ] {
        let ended = klad(&[&["bench"], arguments].concat());
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(2), ""), "{arguments:?}: {}", ended.stderr);
        assert!(ended.stderr.contains(words), "{arguments:?}: {}", ended.stderr);
    }
}

#[test]
fn the_largest_key_number_is_accepted() {
    let server = Scripted::start(Script::Answers);
    for order in ["sequential", "uniform", "latest"] {
        let options = "--workload put --keys 10 --key-start 18446744073709551615 --duration 100ms";
        let ended = Bencher::new(&server.url(""), options).arg("--key-order", order).start().wait();
        assert!(matches!(ended.code, Some(0 | 2)), "{order}: {ended:?}");
    }
}

#[test]
fn an_error_in_an_objective_is_marked() {
    for (text, wrong) in [("p99<5ms,slow<3%", "slow"), ("p99<5ms, refused<1", "1"), ("é<1%,p99<5", "é"), ("p99", "")]
    {
        let ended = klad(&["bench", "http://127.0.0.1:1", "--rate", "1/s", "--slo", text]);
        assert_eq!(ended.code, Some(2));
        let lines: Vec<_> = ended.stderr.lines().collect();
        let caret = lines.iter().position(|line| line.trim() == "^").unwrap_or_else(|| panic!("{}", ended.stderr));
        assert_eq!(lines[caret - 1].trim(), text);
        let column = lines[caret].chars().count() - 1;
        let pointed: String = lines[caret - 1].chars().skip(column).collect();
        assert!(pointed.starts_with(wrong) && pointed.len() <= text.len(), "{text}: at {pointed:?}");
        assert_eq!(wrong.is_empty(), pointed.is_empty(), "{}", ended.stderr);
    }
}

#[test]
fn json_is_alone_on_the_standard_output() {
    let server = Scripted::start(Script::Answers);
    let ended = Bencher::new(&server.url("/"), "--duration 100ms --json -").start().wait();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let result: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(super::support::results::faults(&result), Vec::<String>::new());
    assert!(ended.stdout.ends_with("}\n"));
    assert_eq!(ended.stderr, "", "there is no progress without a terminal");
}

#[test]
fn progress_goes_to_stderr_with_a_line_for_each_second_if_requested() {
    let server = Scripted::start(Script::RefusesEveryTenth);
    let options = ["--progress always", "--progress never", "--progress auto"];
    let runs = options.map(|when| Bencher::new(&server.url("/"), &format!("--duration 2s {when}")));
    let runs = together(&runs);
    let lines: Vec<_> = runs[0].ended.stderr.lines().collect();
    assert_eq!(lines.len(), runs[0].result["intervals"].as_array().unwrap().len());
    assert!(lines.len() >= 2, "{lines:?}");
    for (second, line) in lines.iter().enumerate() {
        assert!(line.trim_start().starts_with(&format!("{}.0s ", second + 1)), "{line:?}");
    }
    assert!(lines.iter().any(|line| line.contains("/s p50 ") && line.contains("refused ")), "{lines:?}");
    assert_eq!((runs[1].ended.stderr.as_str(), runs[2].ended.stderr.as_str()), ("", ""));
}

#[test]
fn stages_have_their_own_sections_with_the_calculated_counts() {
    let server = Scripted::start(Script::Answers);
    // A connection for each request, so that none is left without one on a busy machine.
    let options = "--stages 100/s:300ms,100..200/s:400ms,200/s:200ms --warm-up 200ms --connections 150";
    let run = Bencher::new(&server.url("/"), options).run();
    run.assert_all_served();
    let scheduled = [0, 1, 2].map(|stage| run.count(&format!("/stages/{stage}/scheduled")));
    assert_eq!(scheduled, [30, 60, 40]);
    assert_eq!((run.measured("scheduled"), run.count("/warm_up/scheduled")), (130, 20));
    let text = &run.ended.stdout;
    assert!(text.contains("100/s for 0.300s, 100..200/s for 0.400s, 200/s for 0.200s"), "{text}");
    for row in [
        "  1 (0.300s)             100.0       100.0",
        "  2 (0.400s)             150.0",
        "  3 (0.200s)             200.0",
    ] {
        assert!(text.contains(row), "{row:?} is not in {text}");
    }
    let one = Bencher::new(&server.url("/"), "--stages 100/s:100ms").run();
    assert_eq!(
        (one.measured("scheduled"), &one.result["stages"]),
        (10, &Value::Array(Vec::new())),
        "a single stage has no section of its own"
    );
}

#[test]
fn a_seed_repeats_poisson_arrivals_and_another_seed_does_not() {
    let server = Scripted::start(Script::Answers);
    let seeds = [1, 1, 2, 3, 4, 4];
    let runs = seeds.map(|seed| {
        Bencher::new(&server.url("/"), &format!("--arrival poisson --seed {seed} --rate 400/s --warm-up 100ms"))
    });
    let runs = together(&runs);
    let counts: Vec<_> = runs.iter().map(|run| (run.count("/warm_up/scheduled"), run.measured("scheduled"))).collect();
    assert_eq!((counts[0], counts[4]), (counts[1], counts[5]));
    assert!(counts[1..5].windows(2).any(|pair| pair[0] != pair[1]), "{counts:?}");
    // Five standard deviations around 200 requests.
    assert!(counts.iter().all(|(_, measured)| (130..270).contains(measured)), "{counts:?}");
    assert_eq!(runs[0].result["load"]["arrival"], "poisson");
}

#[test]
fn an_interrupt_ends_the_schedule_and_the_run_is_reported() {
    // The schedule alone takes longer than a test waits.
    let server = Scripted::start(Script::Answers);
    // A connection for each request of six seconds, so that none is left without one on a busy machine.
    let bencher = Bencher::new(&server.url("/"), "--warm-up 50ms --connections 600");
    let run = bencher.run_until("the warm-up is over", || server.record().requests.len() > 20);
    run.assert_all_served();
    assert!(run.result["interrupted_s"].as_f64().unwrap() > 0.0);
    assert!(run.ended.stdout.starts_with("Ended early, "), "{}", run.ended.stdout);
    assert_eq!(run.measured("sent") + run.count("/warm_up/sent"), server.record().requests.len() as u64);
}
