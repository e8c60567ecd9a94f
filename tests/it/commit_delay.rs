//! `--commit-delay`: a batch waits for more writes.

use std::time::{Duration, Instant};

use super::support::ServerBuilder;

const DELAY: Duration = Duration::from_millis(60);

/// Makes up to `writes` synced writes, one after the other. Returns whether one was faster than [`DELAY`].
fn some_write_is_faster(delay: Duration, writes: u32) -> bool {
    let builder = ServerBuilder::new("rocksdb").arg("--threads", "1").arg("--memory", "64MiB");
    let server = builder.arg("--commit-delay", &format!("{}ms", delay.as_millis())).start();
    let mut client = server.client();
    (0..writes).any(|number| {
        let begin = Instant::now();
        assert_eq!(client.put(&format!("/v0/entity?id={number}"), b"value").status, 201);
        begin.elapsed() < DELAY
    })
}

/// A busy machine only makes writes slower.
#[test]
fn no_write_is_faster_than_the_delay() {
    assert!(!some_write_is_faster(DELAY, 20));
}

#[test]
fn twin_without_the_delay_some_write_is_faster() {
    assert!(some_write_is_faster(Duration::ZERO, 1_000), "one of a thousand is fast on a busy machine too");
}
