//! Execution strategies: where operations run, the limits of their queues, and deadlines.

use std::time::{Duration, Instant};

use rustix::process::Signal;

#[cfg(feature = "rocksdb")]
use super::support::ROCKSDB_SETUPS;
use super::support::metrics::Metrics;
use super::support::planted::Defect;
use super::support::shim::Shim;
use super::support::{
    Client, DURABLE_ENGINES, ENGINES, PATIENCE, Server, ServerBuilder, durable_strategies, wait_until,
};

/// The setups in which a worker never waits for the disk.
fn waiting_setups() -> impl Iterator<Item = &'static str> {
    durable_strategies().filter(|setup| !setup.ends_with("/inline"))
}

fn entity(key: &str) -> String {
    format!("/v0/entity?id={key}")
}

/// Returns clients that have each sent a PUT and have no answer yet.
fn put_without_answer(server: &Server, keys: &[&str]) -> Vec<Client> {
    keys.iter()
        .map(|key| {
            let mut client = server.client();
            client.send("PUT", &entity(key), &[], Some(b"v")).unwrap();
            client
        })
        .collect()
}

/// With one thread and two places, of four writes one runs, two wait, and the last one is rejected.
fn rejects_beyond_the_queue(setup: &str) {
    let shim = Shim::new();
    let builder = ServerBuilder::new(setup).arg("--pool-threads", "1").arg("--queue-limit", "2");
    let server = shim.preload(builder).start();
    shim.hold();
    let first = put_without_answer(&server, &["w0"]);
    shim.wait_until_held();
    let mut others = put_without_answer(&server, &["w1", "w2", "w3"]);
    let mut refused = None;
    wait_until("one is answered", || {
        refused = others.iter_mut().position(|client| !client.is_silent_for(Duration::from_millis(20)));
        refused.is_some()
    });
    let refused = refused.unwrap();
    let answer = others[refused].answer().unwrap();
    assert_eq!((answer.status, answer.header("retry-after")), (503, Some("1")));
    assert!(answer.text().contains("overloaded") && answer.text().contains("limit 2"), "{}", answer.text());
    shim.pass();
    let mut clients: Vec<_> = first.into_iter().chain(others).collect();
    // All answers before the reads: while a write waits, a read may find the queue full.
    for (number, client) in clients.iter_mut().enumerate() {
        if number != refused + 1 {
            assert_eq!(client.answer().unwrap().status, 201);
        }
    }
    for (number, mut client) in clients.into_iter().enumerate() {
        let mut reader = server.client();
        let target = entity(&format!("w{number}"));
        if number == refused + 1 {
            assert_eq!(reader.get(&target).status, 404, "a rejected write has no effect");
            assert_eq!(client.put(&target, b"v").status, 201, "the connection stays open, and the queue has places");
        } else {
            assert_eq!(reader.get(&target).status, 200);
        }
    }
}

#[test]
fn a_full_queue_rejects_operations_without_effect() {
    waiting_setups().filter(|setup| setup.contains('/')).for_each(rejects_beyond_the_queue);
}

/// A write that waits behind a held sync past its deadline is 504 and absent. A write that has begun is awaited.
fn keeps_deadlines(setup: &str, defect: Option<Defect>) -> Result<(), String> {
    let shim = Shim::new();
    let builder = ServerBuilder::new(setup).arg("--pool-threads", "1").arg("--threads", "4").defect(defect);
    let server = shim.preload(builder).start();
    let put = |client: &mut Client, key: &str, timeout: &str| {
        client.send("PUT", &entity(key), &[("Klad-Timeout", timeout)], Some(b"v")).unwrap();
    };
    let (mut under_way, mut waiting, mut patient) = (server.client(), server.client(), server.client());
    shim.hold();
    let (syncs_before, mut late) = (shim.syncs(), 0);
    put(&mut under_way, "under-way", "1s");
    wait_until("the write has begun", || {
        // On a busy machine the deadline may pass before that. Then the write is sent again.
        if !under_way.is_silent_for(Duration::from_millis(2)) {
            assert_eq!(under_way.answer().unwrap().status, 504);
            late += 1;
            put(&mut under_way, "under-way", "1s");
        }
        shim.syncs() > syncs_before
    });
    shim.wait_until_held();
    put(&mut waiting, "waiting", "50ms");
    put(&mut patient, "patient", "60s");
    if !setup.contains('/') && defect.is_none() {
        // In every state of the disk.
        assert_eq!(waiting.answer().unwrap().status, 504);
        late += 1;
        waiting.send("GET", &entity("waiting"), &[], None).unwrap();
        assert_eq!(waiting.answer().unwrap().status, 404);
        put(&mut waiting, "waiting", "50ms");
    }
    wait_until("all three have arrived", || {
        let metrics = Metrics::scrape(&server);
        metrics.count("klad_operations_in_use", &[]) + metrics.refused("deadline-passed") >= 3 + late
    });
    assert!(under_way.is_silent_for(Duration::from_millis(1_200)), "no answer while the outcome is open");
    shim.pass();
    let mut reader = server.client();
    for (key, mut client, expected) in
        [("under-way", under_way, 201), ("patient", patient, 201), ("waiting", waiting, 504)]
    {
        let answer = client.answer().unwrap();
        if answer.status == 504 && reader.get(&entity(key)).status != 404 {
            return Err(format!("{key} was rejected and has happened"));
        }
        assert_eq!(answer.status, expected, "{key}: {}", answer.text());
    }
    Ok(())
}

#[test]
fn a_deadline_that_passes_in_the_queue_is_504_without_effect() {
    // Each waits, so they run side by side.
    std::thread::scope(|scope| {
        for setup in waiting_setups() {
            scope.spawn(move || keeps_deadlines(setup, None).unwrap_or_else(|found| panic!("{setup}: {found}")));
        }
    });
}

#[test]
fn twin_a_rejected_write_that_happened_is_noticed() {
    for engine in DURABLE_ENGINES {
        let found = keeps_deadlines(engine, Some(Defect::RejectsExecutedWrites)).expect_err("planted");
        assert!(found.contains("has happened"), "{engine}: {found}");
    }
}

#[test]
fn an_invalid_timeout_is_400() {
    let server = ServerBuilder::new("memory").start();
    for wrong in ["", "0ms", "-1s", "soon", "2h", "500us", "250"] {
        let answer = server.client().request("GET", &entity("k"), &[("Klad-Timeout", wrong)], None);
        assert_eq!((answer.status, answer.text().contains("bad-timeout")), (400, true), "{wrong}: {}", answer.text());
    }
    // Longer than a busy machine needs.
    assert_eq!(server.client().request("GET", &entity("k"), &[("Klad-Timeout", "250000ms")], None).status, 404);
}

/// With one worker, a read that waits for the disk must not delay another connection.
fn worker_is_never_blocked(setup: &str, defect: Defect) -> Result<(), String> {
    let server = ServerBuilder::new(setup).arg("--threads", "1").defect(Some(defect)).start();
    let mut slow = server.client();
    let mut other = server.client();
    assert_eq!(other.get("/v0/status").status, 200);
    slow.send("GET", &entity("k"), &[], None).unwrap();
    // The worker reads the slow request first, because it arrived first.
    assert_eq!(other.get("/v0/status").status, 200);
    // A worker that has waited hands the slow read only now to a thread. A busy machine may delay that thread.
    if !slow.is_silent_for(Duration::from_millis(100)) {
        return Err("another connection was answered only after the slow read".to_owned());
    }
    assert_eq!(slow.answer().unwrap().status, 404);
    Ok(())
}

#[test]
fn reads_from_the_disk_do_not_block_a_worker() {
    for setup in waiting_setups() {
        // A busy machine may delay the other connection for longer than the read takes. A worker that waits delays it
        // each time.
        let mut found = Vec::new();
        let free =
            (0..5).any(|_| worker_is_never_blocked(setup, Defect::SlowDisk).map_err(|why| found.push(why)).is_ok());
        assert!(free, "{setup}: {found:?}");
    }
}

#[test]
fn twin_a_storage_call_that_blocks_a_worker_is_noticed() {
    // If the machine is not too busy, a worker that never waits passes this check each time.
    let noticed = |setup: &str, defect| (0..5).any(|_| worker_is_never_blocked(setup, defect).is_err());
    for engine in DURABLE_ENGINES {
        assert!(noticed(engine, Defect::SlowCachedReads), "{engine}: planted");
        assert!(noticed(&format!("{engine}/inline"), Defect::SlowDisk), "{engine}: inline waits for the disk");
    }
}

/// With one worker, a write, also an `async` one, must not delay another connection while the sync is held.
fn writes_block_no_worker(engine: &str, defect: Option<Defect>) -> Result<(), String> {
    let shim = Shim::new();
    let server = shim.preload(ServerBuilder::new(engine).arg("--threads", "1").defect(defect)).start();
    let (mut quick, mut other) = (server.client(), server.client());
    for client in [&mut quick, &mut other] {
        assert_eq!(client.get("/v0/status").status, 200);
    }
    shim.hold();
    let mut synced = put_without_answer(&server, &["synced"]);
    shim.wait_until_held();
    quick.send("PUT", "/v0/entity?id=quick&durability=async", &[], Some(b"v")).unwrap();
    // The worker reads the write first, because it arrived first.
    other.stream.set_read_timeout(Some(if defect.is_some() { Duration::from_secs(1) } else { PATIENCE })).unwrap();
    let served = (0..10).all(|_| other.try_request("GET", "/v0/status", &[], None).is_ok());
    shim.pass();
    assert_eq!(synced[0].answer().unwrap().status, 201);
    assert_eq!(quick.answer().unwrap().status, 201);
    if served { Ok(()) } else { Err("another connection waits for a write".to_owned()) }
}

#[test]
fn writes_do_not_block_a_worker() {
    for engine in DURABLE_ENGINES {
        writes_block_no_worker(engine, None).unwrap_or_else(|found| panic!("{engine}: {found}"));
    }
}

#[test]
fn twin_a_write_that_blocks_a_worker_is_noticed() {
    writes_block_no_worker(DURABLE_ENGINES[0], Some(Defect::WaitsOnWorker)).expect_err("planted");
}

/// Clients that disconnect before their answer free their places.
fn frees_places(setup: &str, defect: Option<Defect>) -> Result<(), String> {
    let shim = Shim::new();
    let builder = ServerBuilder::new(setup).arg("--operations-max", "4").arg("--pool-threads", "4").defect(defect);
    let server = shim.preload(builder).start();
    let mut client = server.client();
    shim.hold();
    let leaving = put_without_answer(&server, &["leak", "a", "b"]);
    shim.wait_until_held();
    drop(leaving);
    shim.pass();
    wait_until("their operations are done", || {
        ["leak", "a", "b"].iter().all(|key| client.get(&entity(key)).status == 200)
    });
    if defect.is_none() {
        // A value can be read before the operation has ended.
        wait_until("their places are free", || Metrics::scrape(&server).count("klad_operations_in_use", &[]) == 0);
    }
    // All four places must be free at the same time.
    shim.hold();
    let mut all = put_without_answer(&server, &["w0", "w1", "w2", "w3"]);
    shim.wait_until_held();
    // None may be answered. With the defect one is, however late on a busy machine.
    let end = Instant::now() + if defect.is_some() { PATIENCE } else { Duration::from_millis(400) };
    let mut refused = false;
    while !refused && Instant::now() < end {
        refused = all.iter_mut().any(|client| !client.is_silent_for(Duration::from_millis(10)));
    }
    shim.pass();
    if refused {
        return Err("a place is missing".to_owned());
    }
    for mut client in all {
        assert_eq!(client.answer().unwrap().status, 201);
    }
    Ok(())
}

#[test]
fn clients_that_disconnect_free_their_places() {
    for setup in waiting_setups() {
        frees_places(setup, None).unwrap_or_else(|found| panic!("{setup}: {found}"));
    }
}

#[test]
fn twin_a_leaked_slot_is_noticed() {
    frees_places(DURABLE_ENGINES[0], Some(Defect::LosesReplies)).expect_err("planted");
}

#[cfg(feature = "rocksdb")]
#[test]
fn reads_through_an_iterator_agree_with_gets() {
    for setup in ROCKSDB_SETUPS {
        let server = ServerBuilder::new(setup).arg("--point-reads", "iterator").start();
        let mut client = server.client();
        for key in ["a", "b", "bb", "d"] {
            assert_eq!(client.put(&entity(key), key.as_bytes()).status, 201);
        }
        assert_eq!(client.delete(&entity("bb")).status, 202);
        for (key, status) in [("", 400), ("a", 200), ("b", 200), ("bb", 404), ("c", 404), ("d", 200), ("e", 404)] {
            assert_eq!(client.get(&entity(key)).status, status, "{setup}: {key}");
        }
        assert_eq!(client.get(&entity("b")).body, b"b");
    }
}

/// A write that waits behind a hanging disk is rejected at its maximum age, without effect.
fn rejects_old_operations(engine: &str, admission: &str, patience: Duration) -> Result<(), String> {
    let shim = Shim::new();
    let server = shim.preload(ServerBuilder::new(engine).arg("--admission", admission)).start();
    let set_age_max = |time: &str| {
        let change = format!("{{\"queue-age-max\": \"{time}\"}}");
        let answer = Client::connect(server.admin).request("PATCH", "/config", &[], Some(change.as_bytes()));
        assert_eq!(answer.status, 200, "{}", answer.text());
    };
    shim.hold();
    let mut under_way = put_without_answer(&server, &["under-way"]);
    shim.wait_until_held();
    // Only for this write: on a busy machine the others may wait longer.
    set_age_max("300ms");
    let mut waiting = put_without_answer(&server, &["waiting"]);
    let silent = waiting[0].is_silent_for(patience);
    let refused = if silent { None } else { Some(waiting[0].answer().unwrap()) };
    set_age_max("1m");
    shim.pass();
    assert_eq!(under_way[0].answer().unwrap().status, 201, "an operation that has begun is awaited");
    let Some(refused) = refused else { return Err("the write waits as long as the disk hangs".to_owned()) };
    assert_eq!(refused.status, 503, "{}", refused.text());
    let seconds: u64 = refused.header("retry-after").unwrap().parse().unwrap();
    let milliseconds: u64 = refused.header("klad-retry-after-ms").unwrap().parse().unwrap();
    assert!((1..=30).contains(&seconds) && seconds == milliseconds.div_ceil(1_000), "{seconds} s, {milliseconds} ms");
    let mut client = server.client();
    assert_eq!(client.put(&entity("later"), b"v").status, 201);
    assert_eq!(client.get(&entity("waiting")).status, 404, "a rejected write has no effect");
    Ok(())
}

#[test]
fn a_write_that_waits_too_long_for_the_disk_is_rejected() {
    for engine in DURABLE_ENGINES {
        rejects_old_operations(engine, "on", PATIENCE).unwrap_or_else(|found| panic!("{engine}: {found}"));
    }
}

#[test]
fn twin_a_queue_without_a_maximum_age_is_noticed() {
    rejects_old_operations(DURABLE_ENGINES[0], "off", Duration::from_secs(3)).expect_err("nothing is rejected");
}

/// Sends more requests at once than fit into one loop iteration of a worker, twice on the same connections. Returns
/// the versions in the order in which the requests were sent.
fn versions_of_many_requests(admission: &str) -> [Vec<u64>; 2] {
    let builder = ServerBuilder::new("memory").arg("--threads", "1").arg("--iteration-max", "1us");
    let server = builder.arg("--admission", admission).start();
    let mut clients: Vec<Client> = (0..2_500).map(|_| server.client()).collect();
    for client in &mut clients {
        assert_eq!(client.get(&entity("k")).status, 404);
    }
    [(); 2].map(|()| {
        // All of them are in the kernel's buffers when the server reads.
        server.signal(Signal::STOP);
        for client in &mut clients {
            // The gate closes only while clients show haste.
            client.send("PUT", &entity("other"), &[("Klad-Timeout", "60s")], Some(b"v")).unwrap();
        }
        server.signal(Signal::CONT);
        let version = |client: &mut Client| {
            let answer = client.answer().unwrap();
            assert_eq!(answer.status, 201, "every client is answered");
            answer.header("etag").unwrap().trim_matches('"').parse().unwrap()
        };
        clients.iter_mut().map(version).collect()
    })
}

/// Returns the number of requests that were served before the one sent just before them.
fn overtaken(versions: &[u64]) -> usize {
    versions.windows(2).filter(|pair| pair[0] > pair[1]).count()
}

#[test]
fn a_closed_gate_admits_the_newest_first_and_answers_every_client() {
    let rounds = versions_of_many_requests("on");
    let most = rounds.iter().map(|versions| overtaken(versions)).max().unwrap();
    assert!(most > 200, "the gate did not close: only {most} of 2,500 requests overtook older ones");
}

#[test]
fn twin_without_a_gate_the_oldest_is_first() {
    let rounds = versions_of_many_requests("off");
    let most = rounds.iter().map(|versions| overtaken(versions)).max().unwrap();
    assert!(most < 50, "{most} of 2,500 came before those that were there before");
}

/// `--engine-delay` slows down only operations that call the engine.
#[test]
fn an_engine_delay_delays_its_operations_and_no_worker() {
    let check = |setup: &str| {
        let server = ServerBuilder::new(setup).arg("--threads", "1").arg("--engine-delay", "2s").start();
        let mut slow = server.client();
        let mut other = server.client();
        assert_eq!(other.get("/v0/status").status, 200);
        // On a busy machine this thread may look only after the delay. A delayed worker answers the write first each
        // time.
        let delayed = (0..5).any(|_| {
            slow.send("PUT", &entity("k"), &[], Some(b"v")).unwrap();
            assert_eq!(other.get("/v0/status").status, 200);
            let silent = slow.is_silent_for(Duration::from_millis(1));
            assert_eq!(slow.answer().unwrap().status, 201);
            silent
        });
        assert!(delayed, "{setup}: it took no time, or it delayed the worker");
        assert_eq!(slow.get(&entity("k")).body, b"v");
    };
    // Each waits, so they run side by side.
    std::thread::scope(|scope| {
        for engine in ENGINES {
            scope.spawn(move || check(engine));
        }
    });
}
