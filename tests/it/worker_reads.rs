//! Workers read storage themselves while it is quick, and stop when it is slow.

use super::support::metrics::Metrics;
use super::support::{Client, Server, ServerBuilder};

/// One call of the engine in this many is slow.
const SLOW_EVERY: usize = 500;

/// Reads until a worker reads itself, and then until storage has been slow. Returns how many of the reads after that
/// were on the worker. With `slow`, one call in [`SLOW_EVERY`] takes so long that a worker owes it for minutes. `None`:
/// no worker ever read itself, because the machine was too busy.
fn reads_on_worker_after_a_slow_one(slow: bool) -> Option<u64> {
    let (delay, every) = (if slow { "800ms" } else { "1ns" }, SLOW_EVERY.to_string());
    let builder = ServerBuilder::new("rocksdb").arg("--threads", "1").arg("--engine-delay", delay);
    let server = builder.arg("--engine-delay-every", &every).start();
    let mut reader = Reader::new(&server);
    if !reader.begins_on_worker() {
        return None;
    }
    // On the worker or on a storage thread, one of them is slow.
    reader.read("small", SLOW_EVERY);
    let before = reader.on_worker();
    reader.read("small", SLOW_EVERY / 2);
    Some(reader.on_worker() - before)
}

struct Reader<'s> {
    server: &'s Server,
    client: Client,
}

impl Reader<'_> {
    fn new(server: &Server) -> Reader<'_> {
        let mut client = server.client();
        assert_eq!(client.put("/v0/entity?id=small", b"value").status, 201);
        assert_eq!(client.put("/v0/entity?id=large", &vec![7; 100_000]).status, 201);
        Reader { server, client }
    }

    fn read(&mut self, key: &str, times: usize) {
        for _ in 0..times {
            assert_eq!(self.client.get(&format!("/v0/entity?id={key}")).status, 200);
        }
    }

    fn on_worker(&self) -> u64 {
        Metrics::scrape(self.server).count("klad_worker_storage_reads_total", &[])
    }

    /// Reads until the worker reads itself. `false`: it never does.
    fn begins_on_worker(&mut self) -> bool {
        let before = self.on_worker();
        (0..100).any(|_| {
            self.read("small", 20);
            self.on_worker() > before
        })
    }
}

#[test]
fn workers_stop_reading_when_storage_is_slow() {
    // If a storage thread had the slow read, workers go on until the next one.
    assert!((0..50).any(|_| reads_on_worker_after_a_slow_one(true) == Some(0)));
}

#[test]
fn twin_workers_that_go_on_reading_are_noticed() {
    assert!((0..50).any(|_| reads_on_worker_after_a_slow_one(false) > Some(0)));
}

#[test]
fn a_large_value_is_read_by_a_storage_thread_and_ends_reads_on_workers() {
    // With a delay, however seldom, memory answers no read.
    let builder = ServerBuilder::new("rocksdb").arg("--threads", "1").arg("--engine-delay", "1ns");
    let server = builder.arg("--engine-delay-every", "1000000").start();
    let mut reader = Reader::new(&server);
    let tried = (0..50).any(|_| {
        if !reader.begins_on_worker() {
            return false;
        }
        let before = reader.on_worker();
        reader.read("large", 10);
        assert_eq!(reader.on_worker(), before, "storage threads read large values");
        // Storage threads do these reads, too, unless enough reads in a row were quick.
        reader.read("small", 20);
        reader.on_worker() == before
    });
    assert!(tried);
}
