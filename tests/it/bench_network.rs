//! `klad bench` against servers that answer in every way that HTTP allows, wrongly, late or not at all.

use rustix::process::{Pid, Signal, kill_process};

use super::support::bencher::{Bencher, Run, together};
use super::support::scripted::{NeverAccepts, Script, Scripted};
use super::support::server::keep;
use super::support::{ServerBuilder, wait_until};

/// Makes a run against a server with each of the scripts, all at the same time.
fn at_each(scripts: &[Script], options: &str) -> Vec<(Scripted, Run)> {
    let servers: Vec<_> = scripts.iter().map(|script| Scripted::start(*script)).collect();
    let runs: Vec<_> = servers.iter().map(|server| Bencher::new(&server.url("/"), options)).collect();
    servers.into_iter().zip(together(&runs)).collect()
}

fn at(script: Script, options: &str) -> (Scripted, Run) {
    at_each(&[script], options).pop().unwrap()
}

/// Scheduled requests by outcome, in the order of the documentation.
fn outcomes(run: &Run) -> [u64; 6] {
    ["served", "not_found", "refused", "failed", "timed_out", "unfinished"]
        .map(|outcome| run.measured(&format!("outcomes/{outcome}")))
}

/// The longest time without a good answer, seconds.
fn longest_gap_s(run: &Run) -> f64 {
    run.result["longest_gap_s"].as_f64().unwrap()
}

#[test]
fn every_framing_of_an_answer_is_read() {
    let scripts = [Script::Answers, Script::Chunked, Script::ByteByByte, Script::InterimFirst];
    for script in scripts {
        let server = Scripted::start(script);
        // With a schedule, a busy machine may leave the last requests without a free connection.
        let run = Bencher::new(&server.url("/"), "--connections 20 --closed")
            .run_until("the connections are used again", || server.record().requests.len() > 200);
        run.assert_all_served();
        let sent = run.measured("sent");
        assert_eq!((run.measured("statuses/200"), run.measured("errors/closed")), (sent, 0), "{script:?}");
        let record = server.record();
        assert_eq!((record.accepted, record.too_early), (20, 0), "{script:?}: the connections stay open");
        assert_eq!(record.requests.len() as u64, sent);
    }
}

#[test]
fn a_connection_that_ends_with_its_answer_is_opened_again_without_a_failure() {
    let scripts = [
        Script::AnnouncesClose,
        Script::ClosesWhenIdle,
        Script::UntilClose,
        Script::Http10,
        Script::AnswersTwice,
        Script::AnswersWith(204),
    ];
    let attempt = |_| at_each(&scripts, "--connections 25 --rate 10/s --duration 5s");
    // After a stall of seconds, more requests are due than there are connections.
    let runs = (0..5).map(attempt).find(|runs| runs.iter().all(|(_, run)| longest_gap_s(run) < 1.0));
    for ((server, run), script) in runs.expect("runs with a good answer in each second").iter().zip(scripts) {
        run.assert_all_served();
        assert_eq!(
            run.result["measured"]["statuses"].as_object().unwrap().len(),
            1,
            "{script:?}: a second answer does not count"
        );
        let accepted = server.record().accepted;
        // 25 connections before the start, and one for each request after the first 25.
        assert_eq!(accepted, 50, "{script:?}");
    }
}

#[test]
fn rejections_and_not_found_are_distinguished_and_only_the_latter_is_a_response() {
    let scripts = [Script::RefusesEveryTenth, Script::AnswersWith(404), Script::AnswersWith(429)];
    let runs = at_each(&scripts, "");
    let found: Vec<_> = runs.iter().map(|(_, run)| (outcomes(run), run.measured("response/count"))).collect();
    assert_eq!(
        found,
        [([45, 0, 5, 0, 0, 0], 45), ([0, 50, 0, 0, 0, 0], 50), ([0, 0, 50, 0, 0, 0], 0)],
        "503 for every tenth, 404, 429"
    );
    assert_eq!((runs[0].1.measured("statuses/503"), runs[0].1.measured("statuses/200")), (5, 45));
    for (_, run) in &runs {
        run.assert_failed_checks(&[]);
        assert!(run.ended.stdout.contains("  Non-2xx or 3xx responses: "), "{}", run.ended.stdout);
    }
}

#[test]
fn other_statuses_have_the_documented_outcome() {
    let statuses = [299, 301, 400, 500, 504];
    let runs = at_each(&statuses.map(Script::AnswersWith), "--duration 200ms --connections 2");
    let found: Vec<_> =
        runs.iter().map(|(_, run)| outcomes(run).iter().position(|count| *count > 0).unwrap()).collect();
    let (served, failed, timed_out) = (0, 3, 4);
    assert_eq!(found, [served, served, failed, failed, timed_out]);
    for (status, (_, run)) in statuses.iter().zip(&runs) {
        // On a busy machine some requests are not sent in time.
        let unfinished = outcomes(run)[5];
        assert_eq!(run.measured(&format!("statuses/{status}")) + unfinished, run.measured("scheduled"), "{status}");
    }
}

#[test]
fn a_status_beyond_599_is_counted() {
    let (_, run) = at(Script::AnswersWith(700), "");
    assert_eq!(outcomes(&run), [0, 0, 0, 50, 0, 0]);
}

#[test]
fn goodput_counts_answers_within_the_given_time() {
    let run = |within: &str| {
        let options = format!("--rate 20/s --duration 2500ms --timeout 1h --good-within {within}");
        let (_, run) = at(Script::RefusesEveryTenth, &options);
        ["goodput_per_s", "answered_per_s"].map(|name| run.result["measured"][name].as_f64().unwrap() * 2.5)
    };
    let [good, answered] = run("1h");
    // On a busy machine some answers come after the end, and count in neither rate.
    let late = 50.0 - answered;
    assert!(good < 45.0 + 1e-6 && good > 45.0 - late - 1e-6, "{good} of {answered}; 45 of 50 if none is late");
    assert!(run("1ns")[0].abs() < 1e-6);
}

#[test]
fn an_incomplete_or_malformed_answer_is_a_failure_of_its_kind() {
    let scripts = [Script::ResetsEveryTenth, Script::ClosesInTheMiddle, Script::Garbage];
    let runs = at_each(&scripts, "--connections 50 --rate 20/s --duration 2500ms");
    let kinds = ["reset", "closed", "malformed"];
    for (((_, run), kind), failed) in runs.iter().zip(kinds).zip([5, 50, 50]) {
        assert_eq!(outcomes(run), [50 - failed, 0, 0, failed, 0, 0], "{kind}");
        assert_eq!(run.measured(&format!("errors/{kind}")), failed, "{}", run.ended.stdout);
        assert_eq!(run.measured("response/count"), 50 - failed, "a failure is no response");
        assert!(run.ended.stdout.contains(&format!("  Socket errors: connect 0, read {failed}, ")));
        run.assert_failed_checks(&[]);
    }
}

/// Asserts that the server soon has accepted this many connections, and no more.
fn assert_accepts(server: &Scripted, connections: usize) {
    wait_until("connections are accepted", || server.record().accepted >= connections);
    assert_eq!(server.record().accepted, connections);
}

#[test]
fn a_silent_server_does_not_delay_the_end_of_a_run() {
    let servers = (Scripted::start(Script::Silent), NeverAccepts::start(128));
    // Only the drain can end it.
    let options = "--connections 3 --drain 200ms --timeout 1h";
    let runs = together(&[
        Bencher::new(&servers.0.url("/"), options),
        Bencher::new(&format!("http://{}/", servers.1.address), options),
    ]);
    for run in &runs {
        assert_eq!(outcomes(run), [0, 0, 0, 0, 0, 50]);
        let left = ["sent", "in_flight_at_end", "unsent", "response/count"].map(|name| run.measured(name));
        assert_eq!(left, [3, 3, 47, 50], "unanswered requests are in the distribution");
        run.assert_failed_checks(&["rate"]);
        assert!(run.ended.stdout.starts_with("NOT VALID: rate: 3 of 50 "), "{}", run.ended.stdout);
        assert!(run.ended.stdout.contains("--connections-max"), "the text names a remedy");
        assert!(
            run.ended.stdout.contains("  Unfinished at the end: 3 in flight, 47 never sent"),
            "{}",
            run.ended.stdout
        );
    }
    assert_accepts(&servers.0, 3);
}

#[test]
fn connections_on_demand_reach_a_silent_server_up_to_their_limit() {
    let options = ["--connections-max 80", "--connections-max 50 --rate 200/s"];
    let servers = options.map(|_| Scripted::start(Script::Silent));
    let runs: Vec<_> = options
        .iter()
        .zip(&servers)
        .map(|(options, server)| {
            Bencher::new(&server.url("/"), &format!("--connections 2 --drain 8s --timeout 1h {options}"))
        })
        .collect();
    let runs = together(&runs);
    // There is a connection for each of the 50 requests.
    assert_eq!((outcomes(&runs[0]), runs[0].measured("in_flight_at_end")), ([0, 0, 0, 0, 0, 50], 50));
    assert_accepts(&servers[0], 50);
    runs[0].assert_failed_checks(&[]);
    // There is a connection for half of the 100 requests.
    let left = ["outcomes/unfinished", "in_flight_at_end", "unsent"].map(|name| runs[1].measured(name));
    assert_eq!(left, [100, 50, 50]);
    assert_accepts(&servers[1], 50);
    runs[1].assert_failed_checks(&["rate"]);
    assert!(runs[1].ended.stdout.contains("as many as --connections-max allows"), "{}", runs[1].ended.stdout);
}

#[test]
fn connections_on_demand_are_not_opened_without_need() {
    let (server, run) = at(Script::Answers, "--connections 2 --connections-max 50 --rate 50/s --duration 1s");
    run.assert_all_served();
    // Two connections are enough, and during a stall of the machine one for each request that is due.
    let accepted = f64::from(u32::try_from(server.record().accepted).unwrap());
    assert!(accepted < 5.0 + 50.0 * longest_gap_s(&run), "{accepted}");
}

#[test]
fn requests_whose_connection_is_never_made_are_unfinished() {
    // With this backlog the kernel accepts one or two connections, and the others wait.
    let server = NeverAccepts::start(0);
    let run = Bencher::new(
        &format!("http://{}/", server.address),
        "--connections 1 --connections-max 20 --drain 200ms --timeout 1h",
    )
    .run();
    assert_eq!(outcomes(&run), [0, 0, 0, 0, 0, 50]);
    let (sent, in_flight) = (run.measured("sent"), run.measured("in_flight_at_end"));
    assert!(sent == in_flight && sent < 20, "{sent} {in_flight}");
    assert!(run.ended.stdout.contains(&format!(" {sent} in flight, {} never sent", 50 - sent)), "{}", run.ended.stdout);
    run.assert_failed_checks(&["rate"]);
}

#[test]
fn a_deadline_counts_from_the_intended_start_even_if_the_request_was_never_sent() {
    let server = Scripted::start(Script::Silent);
    // The five connections are closed every 200 ms, and opened again.
    let run = Bencher::new(&server.url("/"), "--connections 5 --timeout 200ms")
        .run_until("connections are opened again", || server.record().accepted > 50);
    let [.., timed_out, unfinished] = outcomes(&run);
    // The last requests may be unfinished at the end instead.
    assert_eq!(timed_out + unfinished, run.measured("scheduled"));
    // At 100 requests per second, twenty are younger than their timeout.
    assert!(timed_out >= 45 && unfinished <= 25, "{timed_out} {unfinished}");
    let at_most_us = run.result["measured"]["response"]["percentiles"][0]["value_us"].as_f64().unwrap();
    assert!(at_most_us >= 190_000.0, "{at_most_us}");
    assert!(run.measured("unsent") > 0 && run.measured("sent") >= 5);
    let accepted = server.record().accepted as u64;
    assert!(accepted <= 5 + run.measured("scheduled"), "{accepted}");
    run.assert_failed_checks(&["rate"]);
}

#[test]
fn closed_load_sends_the_next_request_after_the_answer() {
    let server = Scripted::start(Script::Answers);
    let run = Bencher::new(&server.url("/"), "--closed --connections 3")
        .run_until("the connections are used again", || server.record().requests.len() > 30);
    let record = server.record();
    assert_eq!((record.accepted, record.too_early), (3, 0));
    assert_eq!(run.measured("sent"), record.requests.len() as u64);
    assert_eq!(run.measured("outcomes/served"), run.measured("scheduled"));
    assert_eq!(run.result["load"]["mode"], "closed");
    assert!(run.ended.stdout.contains("Closed load: "), "{}", run.ended.stdout);
}

#[test]
fn large_requests_arrive_complete_at_a_server_that_reads_slowly() {
    let (fixed, random) = (Scripted::start(Script::ReadsSlowly), Scripted::start(Script::ReadsSlowly));
    let mut body = vec![0; 8 << 20];
    super::support::random().fill(&mut body);
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), &body).unwrap();
    let options = "--rate 6/s --connections 3 --drain 1m --timeout 2m";
    let runs = together(&[
        Bencher::new(&fixed.url("/"), options)
            .arg("--method", "PUT")
            .arg("--body", format!("@{}", file.path().display())),
        Bencher::new(&random.url(""), &format!("{options} --workload put --value-size 8MiB")),
    ]);
    runs.iter().for_each(Run::assert_all_served);
    let record = fixed.record();
    assert_eq!(record.requests.len(), 3);
    assert!(record.requests.iter().all(|request| request.ends_with(&body)), "a body has arrived damaged");
    let sent: usize = record.requests.iter().map(Vec::len).sum();
    assert_eq!(runs[0].measured("bytes_sent"), sent as u64);
    let record = random.record();
    let tails: Vec<_> = record.requests.iter().map(|request| &request[request.len() - (8 << 20)..]).collect();
    assert_eq!(tails.len(), 3);
    assert!(tails.windows(2).all(|pair| pair[0] != pair[1]));
}

#[test]
fn a_rejection_before_the_body_was_sent_counts_as_a_rejection() {
    let server = Scripted::start(Script::RefusesBeforeTheBody);
    let run = Bencher::new(&server.url(""), "--workload put --value-size 8MiB --rate 20/s --connections 10").run();
    assert_eq!(outcomes(&run), [0, 0, 10, 0, 0, 0], "{}", run.ended.stdout);
}

#[test]
fn a_killed_server_causes_failures_and_its_earlier_answers_count() {
    let server = ServerBuilder::new("memory").start();
    let address = server.address;
    let file = tempfile::NamedTempFile::new().unwrap();
    let options = "--workload put --connections 5 --duration 1h --progress always";
    let running = Bencher::new(&format!("http://{address}"), options).arg("--json", file.path()).start();
    wait_until("some keys are there", || server.client().get("/v0/entity?id=key19").status == 200);
    server.kill();
    let _kept = keep(address);
    // In the first second with failures, these may all be of requests in flight.
    wait_until("no connection is made", || running.said().matches(" failed ").count() >= 2);
    kill_process(Pid::from_child(&running.child), Signal::INT).unwrap();
    let run = Run::read(running.wait(), file.path());
    let [served, .., failed, _, _] = outcomes(&run);
    assert!(served >= 10 && failed > 0 && run.measured("errors/connect") > 0, "{}", run.ended.stdout);
    assert!(!run.ended.stdout.contains("all connections were busy"), "{}", run.ended.stdout);
    run.assert_failed_checks(&["rate"]);
}
