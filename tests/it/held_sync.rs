//! Durability of synced writes, with a log whose syncs are held or fail.

use std::time::Duration;

#[cfg(feature = "rocksdb")]
use rustix::process::Signal;

use super::support::planted::Defect;
use super::support::shim::Shim;
use super::support::{DURABLE_ENGINES, PATIENCE, ServerBuilder, durable_setups, wait_until};

const KEY: &str = "/v0/entity?id=k";

/// While the sync of the log is held, no `sync` write is answered and none can be read. Both happen after it.
fn waits_for_the_sync(setup: &str, defect: Option<Defect>) -> Result<(), String> {
    let shim = Shim::new();
    // One worker for each client, because `inline` blocks those of the writers.
    let server = shim.preload(ServerBuilder::new(setup).arg("--threads", "4").defect(defect)).start();
    let mut reader = server.client();
    assert_eq!(reader.put(KEY, b"old").status, 201);
    wait_until("the first write has reached the log; a defective server may have answered it", || {
        reader.get(KEY).body == b"old"
    });
    shim.hold();
    let mut writer = server.client();
    writer.send("PUT", KEY, &[], Some(b"new")).unwrap();
    shim.wait_until_held();
    let mut remover = server.client();
    remover.send("DELETE", "/v0/entity?id=other", &[], None).unwrap();
    // With this defect the answer arrives, however late on a busy machine.
    let answers = defect == Some(Defect::AcknowledgesBeforeSync);
    let time = if answers { PATIENCE } else { Duration::from_millis(300) };
    let silent = writer.is_silent_for(time) && remover.is_silent_for(Duration::from_millis(100));
    let seen = reader.get(KEY).body;
    shim.pass();
    if !silent {
        return Err("a write was answered before its sync".to_owned());
    }
    if seen != b"old" {
        return Err("a write could be read before its sync".to_owned());
    }
    assert_eq!(writer.answer().unwrap().status, 201);
    assert_eq!(remover.answer().unwrap().status, 202);
    assert_eq!(reader.get(KEY).body, b"new");
    Ok(())
}

#[test]
fn a_write_is_answered_and_visible_only_after_its_sync() {
    for setup in durable_setups() {
        waits_for_the_sync(setup, None).unwrap_or_else(|found| panic!("{setup}: {found}"));
    }
}

#[test]
fn twin_an_acknowledgement_before_the_sync_is_noticed() {
    // `adaptive` answers a batch only after the whole commit, which would hide this defect.
    for engine in DURABLE_ENGINES {
        let setup = format!("{engine}/pool");
        let found = waits_for_the_sync(&setup, Some(Defect::AcknowledgesBeforeSync)).expect_err("planted");
        assert!(found.contains("answered before"), "{setup}: {found}");
    }
}

#[test]
fn twin_a_value_visible_before_the_sync_is_noticed() {
    for engine in DURABLE_ENGINES {
        let found = waits_for_the_sync(engine, Some(Defect::VisibleBeforeSync)).expect_err("planted");
        assert!(found.contains("read before"), "{engine}: {found}");
    }
}

/// After a failed log write or sync: the write is 500, all later writes are rejected without effect, reads continue,
/// `/readyz` has the reason, and a new start works.
fn failure_is_final(setup: &str, fail: fn(&Shim), defect: Option<Defect>) -> Result<(), String> {
    let shim = Shim::new();
    let data = tempfile::tempdir().unwrap();
    let builder = ServerBuilder::new(setup).data(data.path()).defect(defect);
    let server = shim.preload(builder.clone()).start();
    let mut client = server.client();
    assert_eq!(client.put(KEY, b"old").status, 201);
    fail(&shim);
    let failed = client.put("/v0/entity?id=undetermined", b"v");
    if failed.status != 500 {
        return Err(format!("a write with a failed log got {}", failed.status));
    }
    // The disk works again, but the state of the kernel's dirty pages is unknown.
    shim.pass();
    for target in ["/v0/entity?id=later", "/v0/entity?id=later&durability=async"] {
        let later = [client.put(target, b"v"), client.delete(target)];
        for answer in later {
            if answer.status != 503 {
                return Err(format!("a write after the failure got {}", answer.status));
            }
            assert_eq!(answer.header("retry-after"), Some("30"));
            assert!(answer.text().contains("writes-stopped"), "{}", answer.text());
        }
    }
    assert_eq!(client.get(KEY).body, b"old");
    assert_eq!(client.get("/v0/entities?start=k&end=l").chunks.unwrap(), [b"k\nold"]);
    let ready = server.admin("/readyz");
    assert!(ready.status == 503 && ready.text().contains("Input/output error"), "{}", ready.text());
    assert_eq!(server.admin("/livez").status, 200);
    server.kill();
    let server = builder.defect(None).start();
    let mut client = server.client();
    assert_eq!(client.get(KEY).body, b"old");
    assert_eq!(client.get("/v0/entity?id=later").status, 404, "a rejected write has no effect");
    assert_eq!(client.put("/v0/entity?id=later", b"v").status, 201);
    Ok(())
}

#[test]
fn a_failed_sync_is_final() {
    for setup in durable_setups() {
        failure_is_final(setup, Shim::fail_syncs, None).unwrap_or_else(|found| panic!("{setup}: {found}"));
    }
}

#[test]
fn a_failed_log_write_is_final() {
    for setup in durable_setups() {
        failure_is_final(setup, Shim::fail_writes, None).unwrap_or_else(|found| panic!("{setup}: {found}"));
    }
}

#[test]
fn twin_a_forgotten_failure_is_noticed() {
    for engine in DURABLE_ENGINES {
        failure_is_final(engine, Shim::fail_syncs, Some(Defect::ForgetsFailure)).expect_err("planted");
    }
}

#[test]
fn a_failed_sync_of_async_writes_is_final_too() {
    for engine in DURABLE_ENGINES {
        a_failed_sync_is_final_for_async_writes(engine);
    }
}

fn a_failed_sync_is_final_for_async_writes(engine: &str) {
    let shim = Shim::new();
    let server = shim.preload(ServerBuilder::new(engine).arg("--async-sync-interval", "20ms")).start();
    let mut client = server.client();
    // The sync must not fail before the write is acknowledged.
    shim.hold();
    assert_eq!(client.put("/v0/entity?id=k&durability=async", b"v").status, 201);
    shim.fail_syncs();
    wait_until("the sync has failed", || server.admin("/readyz").status == 503);
    shim.pass();
    assert_eq!(client.put("/v0/entity?id=k&durability=async", b"v2").status, 503);
    assert_eq!(client.get(KEY).body, b"v");
}

#[test]
fn async_writes_are_synced_within_the_interval() {
    for engine in DURABLE_ENGINES {
        let shim = Shim::new();
        let server = shim.preload(ServerBuilder::new(engine).arg("--async-sync-interval", "20ms")).start();
        let mut client = server.client();
        shim.hold();
        // Answered although no sync can end.
        assert_eq!(client.put("/v0/entity?id=k&durability=async", b"v").status, 201, "{engine}");
        assert_eq!(client.get(KEY).body, b"v", "{engine}");
        shim.wait_until_held();
        shim.pass();
    }
}

#[test]
fn operations_beyond_the_maximum_are_503_and_have_no_effect() {
    for engine in DURABLE_ENGINES {
        one_operation_too_many_is_rejected(engine);
    }
}

fn one_operation_too_many_is_rejected(engine: &str) {
    let shim = Shim::new();
    let server = shim.preload(ServerBuilder::new(engine).arg("--operations-max", "2")).start();
    let mut reader = server.client();
    assert_eq!(reader.put(KEY, b"old").status, 201);
    shim.hold();
    let mut writers: Vec<_> = (0..3).map(|n| (n, server.client())).collect();
    for (n, writer) in &mut writers {
        writer.send("PUT", &format!("/v0/entity?id=w{n}"), &[], Some(b"v")).unwrap();
    }
    shim.wait_until_held();
    // Two operations have the places and wait for the sync. The last one is rejected.
    let mut refused = None;
    wait_until("one is answered", || {
        refused = writers.iter_mut().position(|(_, writer)| !writer.is_silent_for(Duration::from_millis(20)));
        refused.is_some()
    });
    let (number, mut client) = writers.remove(refused.unwrap());
    let answer = client.answer().unwrap();
    assert!(answer.status == 503 && answer.header("retry-after").is_some(), "{answer:?}");
    if engine == "rocksdb" {
        assert_eq!(reader.get(KEY).body, b"old", "a read from memory needs no place");
    } else {
        assert_eq!(reader.get(KEY).status, 503, "fjall does not know which values are in memory");
    }
    shim.pass();
    for (_, writer) in &mut writers {
        assert_eq!(writer.answer().unwrap().status, 201);
    }
    let key = format!("/v0/entity?id=w{number}");
    assert_eq!(reader.get(&key).status, 404, "a rejected write has no effect");
    assert_eq!(reader.put(&key, b"v").status, 201, "the places are free again");
}

/// Thirty-two clients write at the same time while each sync is slow. Writes that wait share the next sync.
fn shares_syncs(engine: &str, defect: Option<Defect>) -> Result<(), String> {
    const CLIENTS: u64 = 32;
    const WRITES: u64 = 8;
    let shim = Shim::new();
    let server = shim.preload(ServerBuilder::new(engine).defect(defect)).start();
    shim.slow();
    let before = shim.syncs();
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            let server = &server;
            scope.spawn(move || {
                let mut connection = server.client();
                for n in 0..WRITES {
                    assert_eq!(connection.put(&format!("/v0/entity?id={client}-{n}"), b"v").status, 201);
                }
            });
        }
    });
    let syncs = shim.syncs() - before;
    println!("{syncs} syncs for {} writes", CLIENTS * WRITES);
    assert!(syncs >= WRITES, "each client waited for a sync of each of its writes");
    if syncs > CLIENTS * WRITES / 4 {
        return Err(format!("{syncs} syncs are more than a quarter of the writes"));
    }
    Ok(())
}

#[test]
fn writes_that_arrive_together_share_a_sync() {
    for engine in DURABLE_ENGINES {
        // On a busy machine few clients may have sent their next write when a sync begins.
        assert!((0..5).any(|_| shares_syncs(engine, None).is_ok()), "{engine}: too many syncs");
    }
}

#[test]
fn twin_a_sync_for_each_write_is_noticed() {
    for engine in DURABLE_ENGINES {
        shares_syncs(engine, Some(Defect::SyncsEachWrite)).expect_err("planted");
    }
}

/// A sync that begins while a write is in progress does not cover the write, so another one must follow.
#[test]
fn an_async_write_is_synced_even_if_a_sync_overtakes_it() {
    for engine in DURABLE_ENGINES {
        a_sync_follows_each_async_write(engine);
    }
}

fn a_sync_follows_each_async_write(engine: &str) {
    let shim = Shim::new();
    let server = shim.preload(ServerBuilder::new(engine).arg("--async-sync-interval", "50ms")).start();
    let mut client = server.client();
    shim.slow_writes();
    // The sync of the last writes may come just before the count is taken, so one attempt of many is enough. A server
    // without this sync fails each time.
    let followed = (0..20).any(|n| {
        assert_eq!(client.put(&format!("/v0/entity?id={n}&durability=async"), b"v").status, 201);
        let before = shim.syncs();
        let deadline = std::time::Instant::now() + Duration::from_secs(5);
        while shim.syncs() == before && std::time::Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(2));
        }
        shim.syncs() > before
    });
    assert!(followed, "{engine}: no sync followed the writes");
}

/// A write is in progress while the sync of earlier writes fails: it must not be acknowledged either. With fjall no
/// sync begins while a write is in progress.
#[cfg(feature = "rocksdb")]
#[test]
fn nothing_is_acknowledged_after_a_failed_sync() {
    // On a busy machine the sync may begin only after the write. A server that acknowledges such a write does so each
    // time.
    assert!((0..5).any(|_| a_write_during_a_failing_sync_fails()), "no write failed after one that was acknowledged");
}

/// Returns whether the write failed, and checks the end of a server that could not sync all writes.
#[cfg(feature = "rocksdb")]
fn a_write_during_a_failing_sync_fails() -> bool {
    let shim = Shim::new();
    let mut server = shim.preload(ServerBuilder::new("rocksdb").arg("--async-sync-interval", "50ms")).start();
    let mut client = server.client();
    shim.slow_writes_and_fail_syncs();
    let first = client.put("/v0/entity?id=first&durability=async", b"v").status;
    let second = client.put("/v0/entity?id=second&durability=async", b"v").status;
    if first != 201 || second == 201 {
        // On a busy machine the sync may also fail before the first write is acknowledged.
        assert!(matches!((first, second), (201, 201) | (500, 503)), "{first} {second}");
        return false;
    }
    assert!(matches!(second, 500 | 503), "{second}");
    shim.pass();
    server.signal(Signal::TERM);
    assert_eq!(server.wait().code(), Some(70), "some writes are not synced");
    wait_until("the last line is written", || server.log().trim_end().ends_with("[sync-failed]"));
    true
}
