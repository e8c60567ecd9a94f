//! SIGTERM under load: every request on an open connection is answered, no acknowledged write is lost, and klad exits
//! with 0.
//!
//! Method: clients of all kinds load a klad whose limit of connections is below their number, so that some always
//! wait to be accepted. klad is stopped after a random number of answers and some more time. The clients continue
//! until they are rejected. Then klad starts again on the same directory, and every client checks what was
//! acknowledged. `cargo xtask stops` does this a hundred times with the same clients. `draining` tests single requests
//! at given moments.

use std::sync::atomic::Ordering;
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::support::load::{Client, KINDS, Round};
use super::support::planted::Defect;
use super::support::{SETUPS, ServerBuilder, keeps_nothing, random, wait_until};

/// Number of clients of each kind.
const CLIENTS: usize = 4;

fn survives_stops(setup: &str, rounds: usize, defect: Option<Defect>) -> Result<(), String> {
    let mut random = random();
    let kinds = KINDS.repeat(CLIENTS);
    let waiting = 2;
    let data = tempfile::tempdir().unwrap();
    let connections_max = (kinds.len() - waiting).to_string();
    let builder = ServerBuilder::new(setup).data(data.path()).arg("--connections-max", &connections_max);
    let builder = builder.arg("--drain-timeout", "30s").defect(defect);
    let mut clients = Client::all(&kinds, &mut random);
    let (mut answered, mut longest) = (0, Duration::ZERO);
    for number in 0..rounds {
        let mut server = builder.start();
        for client in &mut clients {
            if setup.starts_with("memory") {
                client.forget();
            }
            client.compare(server.address)?;
        }
        // A number of answers and then some time, so that the stop finds a load and happens at any stage of a request.
        let (answers, then) = (random.u64(20..500), Duration::from_micros(random.u64(0..10_000)));
        let (address, round) = (server.address, Round::default());
        let (found, code, took) = std::thread::scope(|scope| {
            let run = |client: &'_ mut Client| client.run(address, &round);
            let running: Vec<_> = clients.iter_mut().map(|client| scope.spawn(move || run(client))).collect();
            // A client ends early only if it has found something.
            wait_until("enough is answered", || {
                round.answered.load(Ordering::Relaxed) >= answers || running.iter().any(ScopedJoinHandle::is_finished)
            });
            std::thread::sleep(then);
            round.stopping.store(true, Ordering::SeqCst);
            let asked = Instant::now();
            server.signal(Signal::TERM);
            let code = server.wait().code();
            let took = asked.elapsed();
            let found: Result<(), String> = running.into_iter().try_for_each(|thread| thread.join().unwrap());
            (found, code, took)
        });
        found.map_err(|found| format!("stop {number}: {found}"))?;
        if code != Some(0) {
            return Err(format!("stop {number}: exit code {code:?}\n{}", server.log()));
        }
        longest = longest.max(took);
        answered += round.answered.into_inner();
    }
    let server = builder.start();
    if !keeps_nothing(setup) {
        clients.iter().try_for_each(|client| client.compare(server.address))?;
    }
    let refused: u64 = clients.iter().map(|client| client.refused).sum();
    println!("{setup}: {rounds} stops, {answered} requests, {refused} of them refused, longest stop {longest:?}");
    Ok(())
}

#[test]
fn a_stop_under_load_fails_no_request_and_loses_no_write() {
    for setup in SETUPS {
        let rounds = if *setup == SETUPS[0] { 4 } else { 1 };
        survives_stops(setup, rounds, None).unwrap_or_else(|found| panic!("{setup}: {found}"));
    }
}

#[test]
fn twin_connections_closed_at_once_are_noticed() {
    let found = survives_stops("memory", 20, Some(Defect::ClosesIdleAtOnce)).expect_err("planted");
    println!("{found}");
    assert!(["no answer", "reset", "cannot send"].iter().any(|words| found.contains(words)), "{found}");
}

#[test]
fn twin_dropped_unaccepted_connections_are_noticed() {
    let found = survives_stops("memory", 20, Some(Defect::DropsUnacceptedConnections)).expect_err("planted");
    println!("{found}");
    assert!(found.contains("no answer") || found.contains("reset"), "{found}");
}

#[cfg(feature = "rocksdb")]
#[test]
fn twin_writes_lost_at_a_stop_are_noticed() {
    let found = survives_stops("rocksdb", 20, Some(Defect::LosesWrites)).expect_err("planted");
    println!("{found}");
    assert!(found.contains("is lost"), "{found}");
}
