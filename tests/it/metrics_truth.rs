//! Metrics have the right values: tests do something and compare.

#![allow(clippy::float_cmp, reason = "counts, which doubles represent exactly")]

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;

use super::support::batches::batch;
use super::support::planted::Defect;
use super::support::scrape::Scrape;
use super::support::shim::Shim;
use super::support::{Answer, Client, PATIENCE, Server, ServerBuilder, resident_bytes, wait_until};

fn entity(key: impl std::fmt::Display) -> String {
    format!("/v0/entity?id={key}")
}

fn asynchronous(key: impl std::fmt::Display) -> String {
    format!("/v0/entity?durability=async&id={key}")
}

/// Waits for a page that satisfies `condition`, and prints the last page on a timeout.
fn wait_for_page(server: &Server, what: &str, condition: impl Fn(&Scrape) -> bool) -> Scrape {
    let mut page = Scrape::of(server);
    wait_until(what, || {
        if !condition(&page) {
            page = Scrape::of(server);
        }
        condition(&page)
    });
    page
}

/// Number of entries of 4 KiB in the store.
const ENTRIES: u32 = 8_000;

/// The time in which the twin looks for a change: many times the age of an observation of the engine.
const LOOKED: Duration = Duration::from_secs(3);

/// Fills a store and checks the metrics of log, memtables, tables, keys and versions.
fn fill_is_visible(defect: Option<Defect>) -> Result<(), String> {
    let server = ServerBuilder::new("rocksdb").arg("--memory", "96MiB").defect(defect).start();
    let before = Scrape::of(&server);
    let mut client = server.client();
    for number in 0..ENTRIES {
        let value: Vec<u8> = (0..4096_u32).map(|at| (at.wrapping_mul(number + 7) >> 3).to_le_bytes()[0]).collect();
        client.store(&asynchronous(number), &value);
    }
    let written = f64::from(ENTRIES) * 4096.0;
    let entries = f64::from(ENTRIES);
    let fault = |page: &Scrape| {
        let (rise, now) = (|name: &str| page.value(name) - before.value(name), |name: &str| page.value(name));
        let checks = [
            // A batch that had to be written again took versions too.
            ("versions", rise("klad_storage_version_last") >= entries),
            ("keys", (rise("klad_rocksdb_keys_estimated") - entries).abs() < entries / 20.0),
            ("flushes", rise("klad_rocksdb_flushes_total") >= 1.0),
            ("files", rise("klad_rocksdb_level_files") >= 1.0),
            ("levels", now("klad_rocksdb_level_bytes") == now("klad_rocksdb_table_bytes")),
            ("log", now("klad_rocksdb_wal_bytes") > 0.0),
            ("synced", now("klad_storage_unsynced_writes") == 0.0),
            // Values of this pattern can be compressed a little. What is not in a table is in a memtable.
            ("memory", now("klad_rocksdb_memtable_bytes") + 8.0 * now("klad_rocksdb_table_bytes") > written),
            ("limit", now("klad_rocksdb_memtable_bytes") <= 1.5 * now("klad_rocksdb_memtable_limit_bytes")),
            ("entries", page.sum("klad_rocksdb_memtable_entries", &[("state", "active")]) < entries),
            ("reserved", now("klad_storage_version_reserved") >= now("klad_storage_version_last")),
        ];
        checks.into_iter().find(|(_, holds)| !holds).map(|(name, _)| name)
    };
    let deadline = Instant::now() + if defect.is_some() { LOOKED } else { PATIENCE };
    loop {
        let page = Scrape::of(&server);
        match fault(&page) {
            None => return Ok(()),
            Some(name) if Instant::now() > deadline => {
                println!("{}", page.text);
                return Err(format!("{name} has not changed"));
            }
            Some(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}

#[test]
fn written_data_is_visible_where_it_is() {
    fill_is_visible(None).unwrap();
}

#[test]
fn twin_metrics_that_do_not_change_are_noticed() {
    let found = fill_is_visible(Some(Defect::FrozenObservation)).expect_err("planted");
    assert!(found.starts_with("versions"), "{found}");
}

#[test]
fn reads_are_counted_by_their_source() {
    let server = ServerBuilder::new("rocksdb").start();
    let mut client = server.client();
    client.put(&entity("small"), b"v");
    client.put(&entity("large"), &vec![1; 100_000]);
    for _ in 0..10 {
        assert_eq!(client.get(&entity("small")).status, 200);
        assert_eq!(client.get(&entity("absent")).status, 404);
    }
    for _ in 0..3 {
        // Too large to be copied on the worker.
        assert_eq!(client.get(&entity("large")).status, 200);
    }
    let page = wait_for_page(&server, "each request was in a loop iteration", |page| {
        page.value("klad_worker_iteration_seconds_count") >= 25.0
    });
    let reads = |by: &str| page.sum("klad_reads_total", &[("answered_by", by)]);
    assert_eq!((reads("memory"), reads("storage")), (20.0, 3.0));
}

#[test]
fn permits_are_visible_while_they_are_held() {
    // On most machines the memory is not a round number.
    let server = ServerBuilder::new("memory").arg("--memory", "1000001537").start();
    let mut clients = [server.client(), server.client()];
    clients[0].send_raw("PUT /v0/entity?id=k HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1048576\r\n\r\nv");
    clients[1].send_raw("PUT /v0/entity?id=k HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2048\r\n\r\nv");
    let used = |page: &Scrape, share: &str| page.sum("klad_body_budget_used_bytes", &[("share", share)]);
    let page = wait_for_page(&server, "both bodies have permits", |page| used(page, "all") == 1_050_624.0);
    assert_eq!(used(&page, "large"), 1_048_576.0, "only the large body counts");
    let limit = |share: &str| page.sum("klad_body_budget_limit_bytes", &[("share", share)]);
    assert_eq!(limit("all"), page.sum("klad_memory_budget_bytes", &[("part", "body_budget")]));
    assert!(limit("large") < limit("all"));
    drop(clients);
    wait_for_page(&server, "all permits are free", |page| used(page, "all") == 0.0);
}

/// Queues two reads in `queue` of a server with `setup`, where one runs at a time, and checks its metrics.
fn queued_operations_are_visible(setup: &str, queue: &str, more: &[(&str, &str)]) {
    let builder = ServerBuilder::new(setup).arg("--engine-delay", "1s").arg("--threads", "2");
    let builder = more.iter().fold(builder, |builder, (name, value)| builder.arg(name, value));
    let server = builder.start();
    let mut clients: Vec<Client> = (0..3).map(|_| server.client()).collect();
    let depth = |page: &Scrape| page.sum("klad_queue_depth", &[("queue", queue)]);
    let in_use = |page: &Scrape| page.value("klad_operations_in_use");
    // On a busy machine this thread may look only after the first read.
    let seen = (0..5).any(|_| {
        for client in &mut clients {
            client.send("GET", &entity("k"), &[], None).unwrap();
        }
        let mut seen = false;
        wait_until("two wait behind one, or one is answered", || {
            let page = Scrape::of(&server);
            // A depth of two alone is not enough: the first two may be there, and none taken yet.
            seen = depth(&page) == 2.0 && in_use(&page) == 3.0;
            seen || !clients[0].is_silent_for(Duration::from_millis(1))
        });
        for client in &mut clients {
            assert_eq!(client.answer().unwrap().status, 404);
        }
        seen
    });
    assert!(seen, "{setup}: no page shows two reads that wait behind one");
    let page = wait_for_page(&server, "the queue is empty", |page| depth(page) == 0.0);
    assert_eq!(in_use(&page), 0.0, "{setup}");
    assert_eq!(page.value("klad_queue_refused_total"), 0.0);
}

#[test]
fn waiting_operations_are_visible_in_their_queue() {
    // No operation is rejected here because of overload or age.
    let patient = [("--storage-threads", "1"), ("--queue-target", "1m"), ("--queue-age-max", "1m")];
    // Each waits, so they run side by side.
    std::thread::scope(|scope| {
        scope.spawn(|| queued_operations_are_visible("memory/pool", "pool", &[("--pool-threads", "1")]));
        scope.spawn(|| queued_operations_are_visible("memory/stealing", "stealing", &[("--pool-threads", "1")]));
        queued_operations_are_visible("memory", "reads", &patient);
    });
}

#[test]
fn rejections_by_queues_are_counted_by_reason() {
    let slow = |setup| ServerBuilder::new(setup).arg("--engine-delay", "300ms").arg("--threads", "1");
    let refused = |server: &Server, reason| {
        // If this thread pauses between two of them, those before or those after the pause are still too many.
        let mut clients: Vec<Client> = (0..12).map(|_| server.client()).collect();
        for client in &mut clients {
            client.send("GET", &entity("k"), &[], None).unwrap();
        }
        let refused =
            clients.iter_mut().filter_map(|client| client.answer().ok()).filter(|answer| answer.status == 503);
        let refused = u32::try_from(refused.count()).unwrap();
        let page = Scrape::of(server);
        assert!(refused > 0, "{}", page.text);
        assert_eq!(page.value("klad_queue_refused_total"), f64::from(refused), "{}", page.text);
        assert_eq!(page.sum("klad_queue_refused_total", &[("reason", reason)]), f64::from(refused), "{}", page.text);
    };
    refused(&slow("memory/pool").arg("--pool-threads", "1").arg("--queue-limit", "2").start(), "full");
    refused(&slow("memory/stealing").arg("--pool-threads", "1").arg("--queue-limit", "2").start(), "full");
    let adaptive = slow("memory").arg("--storage-threads", "1");
    refused(&adaptive.clone().arg("--queue-target", "1m").arg("--queue-age-max", "100ms").start(), "age");
    refused(&adaptive.arg("--queue-target", "1ms").arg("--queue-age-max", "1m").start(), "delay");
}

#[test]
fn connections_are_counted_exactly_and_their_descriptors_become_free() {
    let server = ServerBuilder::new("memory").arg("--connections-per-peer", "5").arg("--threads", "2").start();
    // A worker that has answered has started.
    let first = [server.client(), server.client()].map(|mut client| client.get("/v0/status").status);
    assert_eq!(first, [200, 200]);
    let before = wait_for_page(&server, "they are closed", |page| page.value("klad_connections_closed_total") == 2.0);
    let rise = |page: &Scrape, name: &str| page.value(name) - before.value(name);
    let mut clients: Vec<Client> = (0..5).map(|_| server.client()).collect();
    for client in &mut clients {
        assert_eq!(client.get("/v0/status").status, 200);
    }
    let page = Scrape::of(&server);
    assert_eq!(page.value("klad_connections_open"), 5.0);
    assert_eq!(rise(&page, "klad_connections_accepted_total"), 5.0);
    assert_eq!(page.value("klad_worker_connections"), 5.0);
    assert_eq!(server.client().answer().unwrap().status, 503, "one too many");
    clients.truncate(3);
    let closed = |page: &Scrape| page.sum("klad_connections_closed_total", &[("reason", "client")]);
    let page = wait_for_page(&server, "two more are closed", |page| {
        closed(page) == 4.0 && page.value("klad_connections_open") == 3.0
    });
    assert_eq!(page.value("klad_connections_refused_total"), 1.0);
    assert_eq!(page.value("klad_connections_closed_total"), 4.0, "for no other reason");
    let descriptors = || Scrape::of(&server).value("process_open_fds");
    let before = descriptors();
    for _ in 0..40 {
        drop(server.client());
    }
    let ended = |page: &Scrape| ["closed", "refused"].map(|how| page.value(&format!("klad_connections_{how}_total")));
    wait_for_page(&server, "forty more have ended", |page| ended(page).iter().sum::<f64>() == 45.0);
    // On a busy machine klad may open a few others at the same time.
    wait_until("their descriptors are free", || descriptors() < before + 20.0);
}

#[test]
fn connections_are_counted_by_the_reason_of_their_end() {
    let server = ServerBuilder::new("memory").arg("--head-timeout", "1s").arg("--body-timeout", "1s").start();
    let mut head = server.client();
    head.send_raw("GET /v0");
    let mut body = server.client();
    body.send_raw("PUT /v0/entity?id=k HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nv");
    let mut broken = server.client();
    broken.send_raw("this is no request\r\n\r\n");
    let mut idle = server.client();
    assert_eq!(idle.get("/v0/status").status, 200);
    assert_eq!((head.answer().unwrap().status, body.answer().unwrap().status), (408, 408));
    assert_eq!(broken.answer().unwrap().status, 400);
    drop((head, body, broken));
    // Only now, so that on a busy machine no other connection was idle for too long.
    let change = Some(&br#"{"idle-timeout": "200ms"}"#[..]);
    assert_eq!(Client::connect(server.admin).request("PATCH", "/config", &[], change).status, 200);
    assert!(idle.is_closed_silently());
    let page = wait_for_page(&server, "all have ended", |page| page.value("klad_connections_open") == 0.0);
    for reason in ["head_timeout", "body_timeout", "idle", "error"] {
        assert_eq!(page.sum("klad_connections_closed_total", &[("reason", reason)]), 1.0, "{reason}: {}", page.text);
    }
}

#[test]
fn ranges_in_progress_are_counted() {
    let server = ServerBuilder::new("memory").start();
    let mut client = server.client();
    for number in 0..64 {
        client.put(&entity(number), &vec![b'v'; 1 << 20]);
    }
    // Far more than the kernel buffers.
    let mut reader = server.client();
    reader.send("GET", "/v0/entities?start=0", &[], None).unwrap();
    wait_for_page(&server, "one is in progress", |page| page.value("klad_scans_in_use") == 1.0);
    drop(reader);
    wait_for_page(&server, "its client is gone", |page| page.value("klad_scans_in_use") == 0.0);
}

#[test]
fn a_stall_is_visible_while_it_lasts_and_counted() {
    let shim = Shim::new();
    let server = shim.preload(small_memtables()).start();
    assert_eq!(stall(&Scrape::of(&server), "s_total"), 0.0);
    // No flush ends, so memtables fill up.
    shim.hold_tables();
    while_values_come(&server, asynchronous, || {
        let stopped = |page: &Scrape| {
            let full = page.value("klad_rocksdb_memtables_immutable");
            stall(page, "") == 1.0 && stall(page, "s_total") == 1.0 && full >= 1.0
        };
        let begun = wait_for_page(&server, "writes are stopped", stopped);
        wait_until("klad is not ready", || server.admin("/readyz?verbose").text().contains("[-]write-stall failed: "));
        let seconds = stall(&begun, "_seconds_total");
        let later = wait_for_page(&server, "its time is counted", |page| stall(page, "_seconds_total") > seconds + 0.2);
        assert_eq!(later.sum("klad_ready_check", &[("check", "write-stall")]), 0.0, "{}", later.text);
        assert_eq!(later.value("klad_ready"), 0.0);
        shim.pass();
        let after =
            wait_for_page(&server, "writes go on", |page| stall(page, "") == 0.0 && page.value("klad_ready") == 1.0);
        assert!(stall(&after, "_seconds_total") >= stall(&later, "_seconds_total"));
    });
}

/// Batches, and removals of ranges, while RocksDB has stopped writes.
#[test]
fn what_a_stall_rejects_is_503_and_has_no_effect() {
    let shim = Shim::new();
    let server = shim.preload(small_memtables()).start();
    let mut client = server.client();
    client.store("/v0/entity?id=kept", b"v");
    shim.hold_tables();
    let rejected = |answer: &Answer| {
        let document: serde_json::Value = serde_json::from_slice(&answer.body).unwrap_or_default();
        let told = (answer.status, document["code"].as_str(), document["retryable"].as_bool());
        assert_eq!(told, (503, Some("stalled"), Some(true)), "{document}");
        assert!(answer.header("retry-after").is_some(), "{answer:?}");
    };
    let puts: Vec<_> = (0..3).map(|number| json!({"op": "put", "key": format!("b{number}"), "value": "v"})).collect();
    while_values_come(&server, asynchronous, || {
        // A page may show the stop before klad rejects writes.
        wait_until("klad is not ready", || server.admin("/readyz?verbose").text().contains("[-]write-stall failed: "));
        for query in ["", "?atomic=true", "?durability=async"] {
            rejected(&batch(&mut client, query, &puts));
        }
        rejected(&client.delete("/v1/kv?prefix=kept"));
        assert_eq!(client.get("/v1/kv/b0").status, 404);
        assert_eq!(client.get("/v1/kv/kept").status, 200);
        shim.pass();
        wait_until("batches are stored again", || batch(&mut client, "?atomic=true", &puts).status == 200);
    });
}

/// RocksDB reports a stop only after its end if the write that causes it then waits for the end.
#[test]
fn a_stall_caused_by_a_waiting_write_is_visible_while_it_lasts_and_counted() {
    // klad may notice a stop before the next write, and reject it: then no write waits in RocksDB, and its wait and the
    // count are not checked. Which of the two is first depends on the machine.
    for _ in 0..3 {
        if a_write_waits_in_the_stall_that_it_causes() {
            break;
        }
    }
}

/// Returns whether a write has waited in RocksDB.
fn a_write_waits_in_the_stall_that_it_causes() -> bool {
    let shim = Shim::new();
    let server = shim.preload(small_memtables()).start();
    shim.hold_tables();
    let held = Instant::now();
    let synced = |number| format!("/v0/entity?durability=sync&id={number}");
    let mut has_waited = false;
    while_values_come(&server, synced, || {
        wait_for_page(&server, "writes are stopped", |page| stall(page, "") == 1.0);
        wait_for_page(&server, "its time is counted", |page| stall(page, "_seconds_total") > 0.2);
        wait_until("klad is not ready", || server.admin("/readyz?verbose").text().contains("[-]write-stall failed: "));
        shim.pass();
        let after =
            wait_for_page(&server, "writes go on", |page| stall(page, "") == 0.0 && page.value("klad_ready") == 1.0);
        let waited_s = after.value("klad_rocksdb_write_wait_seconds_total");
        has_waited = waited_s > 0.2;
        let most = held.elapsed();
        assert!(waited_s < most.as_secs_f64(), "one writer, in {most:?}: {}", after.text);
        if has_waited {
            wait_for_page(&server, "the stop is counted", |page| stall(page, "s_total") >= 1.0);
        }
    });
    has_waited
}

fn small_memtables() -> ServerBuilder {
    ServerBuilder::new("rocksdb").arg("--memory", "64MiB").arg("--value-max", "1MiB")
}

/// Returns the metric of stopped writes.
fn stall(page: &Scrape, name: &str) -> f64 {
    page.sum(&format!("klad_rocksdb_write_stall{name}"), &[("state", "stopped")])
}

/// Runs `work` while a client writes values of 64 KiB to targets from `target`.
fn while_values_come(server: &Server, target: impl Fn(u32) -> String + Sync, work: impl FnOnce()) {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut writer = server.client();
            for number in 0.. {
                // Also if the test fails.
                if stop.load(Ordering::Relaxed) || std::thread::panicking() {
                    break;
                }
                let status = writer.put(&target(number), &vec![7; 64 << 10]).status;
                assert!([201, 503].contains(&status), "{status}");
            }
        });
        let _stops = Raises(&stop);
        work();
    });
}

/// Sets a flag when dropped.
struct Raises<'f>(&'f AtomicBool);

impl Drop for Raises<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn permanently_stopped_writes_are_visible() {
    let shim = Shim::new();
    let server = shim.preload(ServerBuilder::new("rocksdb")).start();
    assert_eq!(Scrape::of(&server).value("klad_storage_writes_stopped"), 0.0);
    shim.fail_syncs();
    assert_eq!(server.client().put(&entity("k"), b"v").status, 500);
    let page = wait_for_page(&server, "writes are stopped", |page| page.value("klad_storage_writes_stopped") == 1.0);
    assert_eq!(page.value("klad_ready"), 0.0);
    assert_eq!(page.sum("klad_ready_check", &[("check", "log")]), 0.0);
    assert_eq!(page.sum("klad_ready_check", &[("check", "disk-space")]), 1.0);
    let verbose = server.admin("/readyz?verbose");
    assert!(verbose.status == 503 && verbose.text().contains("[-]log failed: "), "{}", verbose.text());
    assert!(verbose.text().contains("Input/output error"), "{}", verbose.text());
}

#[test]
fn unsynced_writes_are_counted_until_they_are_synced() {
    let shim = Shim::new();
    let server = shim.preload(ServerBuilder::new("rocksdb").arg("--async-sync-interval", "20ms")).start();
    assert_eq!(server.client().put(&entity("k"), b"v").status, 201);
    shim.hold();
    let mut client = server.client();
    for number in 0..7 {
        assert_eq!(client.put(&asynchronous(number), b"v").status, 201);
    }
    wait_for_page(&server, "seven writes are unsynced", |page| page.value("klad_storage_unsynced_writes") == 7.0);
    shim.pass();
    wait_for_page(&server, "none waits", |page| page.value("klad_storage_unsynced_writes") == 0.0);
}

#[test]
fn the_process_metrics_match_the_kernel() {
    let now_s = || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs_f64();
    let before_s = now_s();
    let server = ServerBuilder::new("rocksdb").start();
    let process = server.process();
    let mut page = Scrape::of(&server);
    // klad may release memory between the two readings.
    wait_until("the resident memory is the same", || {
        page = Scrape::of(&server);
        let kernel = f64::from(u32::try_from(resident_bytes(process) >> 10).unwrap()) * 1024.0;
        (page.value("process_resident_memory_bytes") - kernel).abs() < 8e6
    });
    let listed = |what: &str| std::fs::read_dir(format!("/proc/{process}/{what}")).unwrap().count();
    wait_until("the threads are as many", || {
        Scrape::of(&server).value("process_threads") == f64::from(u32::try_from(listed("task")).unwrap())
    });
    // The connection of the request is one of them, and it is gone when the kernel is asked.
    wait_until("the descriptors are as many", || {
        Scrape::of(&server).value("process_open_fds") == f64::from(u32::try_from(listed("fd")).unwrap()) + 1.0
    });
    let limits = std::fs::read_to_string(format!("/proc/{process}/limits")).unwrap();
    let line = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    let soft: f64 = line.split_whitespace().nth(3).unwrap().parse().unwrap();
    assert_eq!(page.value("process_max_fds"), soft);
    // The kernel counts in ticks from its own start, which it knows to a second.
    let (started_s, after_s) = (page.value("process_start_time_seconds"), now_s());
    assert!((before_s - 2.0..after_s + 2.0).contains(&started_s), "{started_s} is not in {before_s} to {after_s}");
    let uptime_s = page.value("klad_uptime_seconds");
    assert!(uptime_s >= 0.0 && uptime_s < after_s - started_s + 2.0, "{uptime_s}");
    wait_until("CPU time grows", || {
        Scrape::of(&server).value("process_cpu_seconds_total") > page.value("process_cpu_seconds_total")
    });
    let labels = [("version", env!("CARGO_PKG_VERSION")), ("engine", "rocksdb"), ("execution", "adaptive")];
    assert_eq!(page.sum("klad_build_info", &labels), 1.0);
}
