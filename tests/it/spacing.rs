//! Batches keep apart where syncs are held up now and then.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use super::support::metrics::Metrics;
use super::support::{Over, ServerBuilder, wait_until};

/// More than one batch's worth of them.
const CLIENTS: usize = 16;

#[test]
fn batches_keep_apart_where_several_in_a_second_are_held_up() {
    // In memory, where there is such a place: a thousand syncs a second are more than some disks do.
    let memory = Path::new("/dev/shm");
    let data = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() }.unwrap();
    let builder = ServerBuilder::new("rocksdb").data(data.path()).arg("--threads", "1").arg("--memory", "64MiB");
    let server = builder.arg("--engine-delay", "9ms").arg("--engine-delay-every", "100").start();
    let spacing = || Metrics::scrape(&server).sum("klad_commit_spacing_seconds", &[]);
    assert!(spacing().abs() < f64::EPSILON, "nothing was held up yet");
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _over = Over(&over);
        for number in 0..CLIENTS {
            let mut client = server.client();
            let over = &over;
            scope.spawn(move || {
                while !over.load(Ordering::SeqCst) {
                    assert_eq!(client.put(&format!("/v0/entity?id={number}"), b"value").status, 201);
                }
            });
        }
        wait_until("batches keep apart", || spacing() > 0.0);
    });
    assert!(server.log().contains("they begin so far apart"), "{}", server.log());
}
