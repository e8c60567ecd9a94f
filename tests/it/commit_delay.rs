//! `--commit-delay`: a batch waits for more writes.

use std::time::{Duration, Instant};

use super::support::ServerBuilder;

const DELAY: Duration = Duration::from_millis(60);

/// Returns the shortest time of 20 synced writes, made one after the other.
fn shortest_write(delay: Duration) -> Duration {
    let builder = ServerBuilder::new("rocksdb").arg("--threads", "1").arg("--memory", "64MiB");
    let server = builder.arg("--commit-delay", &format!("{}ms", delay.as_millis())).start();
    let mut client = server.client();
    let times = (0..20).map(|number| {
        let begin = Instant::now();
        assert_eq!(client.put(&format!("/v0/entity?id={number}"), b"value").status, 201);
        begin.elapsed()
    });
    times.min().unwrap()
}

/// A busy machine only makes writes slower.
#[test]
fn no_write_is_faster_than_the_delay() {
    assert!(shortest_write(DELAY) >= DELAY);
}

#[test]
fn twin_without_the_delay_some_write_is_faster() {
    assert!(shortest_write(Duration::ZERO) < DELAY);
}
