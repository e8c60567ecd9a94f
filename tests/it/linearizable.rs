//! Conditional changes, counters, removals and reads of single keys are linearizable, also through SIGKILL.
//!
//! Method: several clients send requests for few keys at the same time, and write down when each request began, when
//! its answer came, and what it was. Porcupine then looks for one order of all requests that explains every answer and
//! contradicts no time. A request whose answer never came may have happened at any later moment, or never.

use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::json;

use super::support::history::History;
use super::support::planted::Defect;
use super::support::{DURABLE_ENGINES, SETUPS, ServerBuilder, durable_setups, random, wait_until};

const CLIENTS: usize = 6;

/// Runs all clients against one server. Returns the history.
fn run(builder: &ServerBuilder, requests: usize) -> History {
    let server = builder.start();
    let (mut history, mut random, sent) = (History::new(), random(), AtomicUsize::new(0));
    let mut clients: Vec<_> = (0..CLIENTS).map(|number| history.recorder(number, random.fork())).collect();
    std::thread::scope(|scope| {
        for client in &mut clients {
            let (address, sent) = (server.address, &sent);
            scope.spawn(move || client.run(address, requests, sent));
        }
    });
    for client in clients {
        history.add(client);
    }
    assert!(history.len() > CLIENTS, "hardly a request was answered");
    history
}

/// Runs all clients, and kills and starts the server `kills` times meanwhile.
fn run_with_kills(setup: &str, kills: usize) -> History {
    let data = tempfile::tempdir().unwrap();
    let builder = ServerBuilder::new(setup).data(data.path());
    let (mut history, mut random) = (History::new(), random());
    for round in 0..=kills {
        let server = builder.start();
        let (address, sent) = (server.address, AtomicUsize::new(0));
        let mut clients: Vec<_> =
            (0..CLIENTS).map(|number| history.recorder(round * CLIENTS + number, random.fork())).collect();
        // The last round is short, and reads what the others have left.
        let requests = if round == kills { 20 } else { usize::MAX };
        let enough = random.usize(60..400);
        std::thread::scope(|scope| {
            for client in &mut clients {
                let sent = &sent;
                scope.spawn(move || client.run(address, requests, sent));
            }
            if round < kills {
                wait_until("enough is sent", || sent.load(Ordering::Relaxed) >= enough);
                server.kill();
            }
        });
        for client in clients {
            history.add(client);
        }
    }
    history
}

#[test]
fn concurrent_changes_are_linearizable_in_every_setup() {
    for setup in SETUPS {
        let history = run(&ServerBuilder::new(setup), 100);
        history.check().unwrap_or_else(|found| panic!("{setup}: {found}"));
    }
}

#[test]
fn concurrent_changes_are_linearizable_through_kills() {
    for engine in DURABLE_ENGINES {
        let history = run_with_kills(engine, 6);
        println!("{engine}: {} requests, {} of them with an unknown outcome", history.len(), history.unknown());
        assert!(history.unknown() > 0, "no request was under way at a kill");
        history.check().unwrap_or_else(|found| panic!("{engine}: {found}"));
    }
}

#[test]
fn concurrent_changes_are_linearizable_through_kills_with_every_strategy() {
    for setup in durable_setups().filter(|setup| setup.contains('/')) {
        let history = run_with_kills(setup, 2);
        history.check().unwrap_or_else(|found| panic!("{setup}: {found}"));
    }
}

/// Several threads commit with this strategy, so that two changes can be between check and commit.
const TWIN: &str = "memory/pool";

#[test]
fn twin_a_condition_that_is_checked_outside_the_commit_section_is_noticed() {
    let history = run(&ServerBuilder::new(TWIN).defect(Some(Defect::ChecksConditionsEarly)), 300);
    let found = history.check().expect_err("planted");
    assert!(found.starts_with("not linearizable"), "{found}");
}

#[test]
fn twin_a_counter_that_forgets_an_addition_is_noticed() {
    let history = run(&ServerBuilder::new(TWIN).defect(Some(Defect::ForgetsAdditions)), 300);
    let found = history.check().expect_err("planted");
    assert!(found.starts_with("not linearizable"), "{found}");
}

/// Checks a history of requests for one key. Each is given by its beginning, its end (0 if there is none) and itself.
fn check(requests: &[(u64, u64, serde_json::Value)]) -> Result<(), String> {
    let mut history = History::new();
    for (client, (call, end, request)) in requests.iter().enumerate() {
        let mut request = request.clone();
        request["client"] = client.into();
        request["key"] = "k".into();
        (request["call"], request["return"]) = ((*call).into(), (*end).into());
        history.push(request);
    }
    history.check()
}

#[test]
fn the_checker_accepts_what_can_have_happened_and_nothing_else() {
    let put = |value: &str, etag: &str, status: u16| json!({"op": "put", "value": value, "etag": etag, "version": etag, "status": status});
    let get = |value: &str, etag: &str| json!({"op": "get", "found": value, "etag": etag, "status": 200});
    let set = |value: &str, condition: &str, etag: &str, status: u16| json!({"op": "put", "value": value, "condition": condition, "etag": etag, "version": etag, "status": status});
    let add = |by: i64, sum: &str, etag: &str| json!({"op": "add", "by": by, "found": sum, "etag": etag, "version": etag, "status": 200});
    let lost = |request: serde_json::Value| {
        let mut request = request;
        (request["status"], request["etag"], request["version"]) = (0.into(), "".into(), "".into());
        request
    };
    let first = || (1, 2, put("1", "a", 201));
    let cases = [
        (true, vec![first(), (3, 4, get("1", "a"))]),
        (false, vec![first(), (3, 4, json!({"op": "get", "status": 404}))]),
        (false, vec![first(), (3, 4, get("1", "b"))]),
        (false, vec![first(), (3, 4, put("2", "b", 201))]),
        // Of two that replace the same value at the same time, one must fail.
        (false, vec![first(), (3, 9, set("2", "a", "b", 204)), (3, 9, set("3", "a", "c", 204))]),
        (true, vec![first(), (3, 9, set("2", "a", "b", 204)), (3, 9, set("3", "a", "b", 412))]),
        (false, vec![first(), (3, 4, set("2", "a", "a", 412))]),
        (false, vec![first(), (3, 4, set("2", "absent", "b", 201))]),
        // Two creations.
        (false, vec![(1, 9, set("1", "absent", "a", 201)), (1, 9, set("2", "absent", "b", 201))]),
        // An addition is neither lost nor done twice.
        (true, vec![(1, 9, add(1, "1", "a")), (1, 9, add(2, "3", "b")), (10, 11, get("3", "b"))]),
        (false, vec![(1, 9, add(1, "1", "a")), (1, 9, add(2, "2", "b"))]),
        (false, vec![(1, 2, add(1, "1", "a")), (3, 4, get("2", "a"))]),
        // A request without an answer may have happened, at any moment after its beginning, once.
        (true, vec![first(), (3, 0, lost(put("2", "", 0))), (5, 6, get("1", "a")), (7, 8, get("2", "b"))]),
        (true, vec![first(), (3, 0, lost(put("2", "", 0))), (5, 6, get("1", "a"))]),
        (false, vec![first(), (7, 0, lost(put("2", "", 0))), (3, 4, get("2", "b"))]),
        (false, vec![first(), (3, 0, lost(put("2", "", 0))), (5, 6, get("2", "b")), (7, 8, get("1", "a"))]),
        (false, vec![first(), (3, 0, lost(put("2", "", 0))), (5, 6, get("2", "b")), (7, 8, get("2", "c"))]),
        (false, vec![(1, 0, lost(add(1, "", ""))), (3, 4, get("1", "a")), (5, 6, get("2", "b"))]),
        (false, vec![first(), (3, 0, lost(set("2", "x", "", 0))), (5, 6, get("2", "b"))]),
    ];
    for (number, (expected, requests)) in cases.iter().enumerate() {
        let found = check(requests);
        assert_eq!(found.is_ok(), *expected, "case {number}: {requests:?} {found:?}");
    }
    let repeated = check(&[first(), (3, 4, put("2", "a", 204))]).expect_err("the same version");
    assert!(repeated.contains("assigned twice"), "{repeated}");
}
