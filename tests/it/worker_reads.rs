//! Workers read storage themselves while it is quick, and stop when it is slow.

use super::support::ServerBuilder;
use super::support::metrics::Metrics;

/// One call of the engine in this many is slow.
const SLOW_EVERY: usize = 500;

/// Reads until a worker reads itself, and then until storage has been slow. Returns how many of the reads after that
/// were on the worker. With `slow`, one call in [`SLOW_EVERY`] takes so long that a worker owes it for minutes.
fn reads_on_worker_after_a_slow_one(slow: bool) -> u64 {
    let (delay, every) = (if slow { "800ms" } else { "1ns" }, SLOW_EVERY.to_string());
    let builder = ServerBuilder::new("rocksdb").arg("--threads", "1").arg("--engine-delay", delay);
    let server = builder.arg("--engine-delay-every", &every).start();
    let mut client = server.client();
    assert_eq!(client.put("/v0/entity?id=small", b"value").status, 201);
    assert_eq!(client.put("/v0/entity?id=large", &vec![7; 100_000]).status, 201);
    let on_worker = || Metrics::scrape(&server).count("klad_worker_storage_reads_total", &[]);
    let mut read = |key: &str, times: usize| {
        for _ in 0..times {
            assert_eq!(client.get(&format!("/v0/entity?id={key}")).status, 200);
        }
    };
    let begins = |read: &mut dyn FnMut(&str, usize)| {
        (0..100).any(|_| {
            read("small", 20);
            on_worker() > 0
        })
    };
    assert!(begins(&mut read), "storage was never quick");
    if !slow {
        let before = on_worker();
        read("large", 10);
        assert_eq!(on_worker(), before, "storage threads read large values");
    }
    // On the worker or on a storage thread, one of them is slow.
    read("small", SLOW_EVERY);
    let before = on_worker();
    read("small", SLOW_EVERY / 2);
    on_worker() - before
}

#[test]
fn workers_stop_reading_when_storage_is_slow() {
    // If a storage thread had the slow read, workers go on until the next one.
    assert!((0..10).any(|_| reads_on_worker_after_a_slow_one(true) == 0));
}

#[test]
fn twin_workers_that_go_on_reading_are_noticed() {
    assert!((0..10).any(|_| reads_on_worker_after_a_slow_one(false) > 0));
}
