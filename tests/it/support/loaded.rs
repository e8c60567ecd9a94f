//! Keeps a server under load while a test does something else.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::{Over, Server, wait_until};

/// The number of clients. Each sends a request as soon as the previous one is answered.
const CLIENTS: u64 = 8;

/// The number of answered requests before the test continues.
const BEFORE: u64 = 200;

/// Runs `work` while clients write and read values.
pub(crate) fn loaded<T>(server: &Server, work: impl FnOnce() -> T) -> T {
    let (over, answered) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let _over = Over(&over);
        for client in 0..CLIENTS {
            let (over, answered) = (&over, &answered);
            scope.spawn(move || {
                let mut connection = server.client();
                let mut number = 0;
                while !over.load(Ordering::Relaxed) {
                    let target = format!("/v0/entity?id={client}-{}", number % 1_000);
                    assert_eq!(connection.put(&target, &[7; 1_024]).status, 201);
                    assert_eq!(connection.get(&target).status, 200);
                    number += 1;
                    answered.fetch_add(2, Ordering::Relaxed);
                }
            });
        }
        wait_until("requests are answered", || answered.load(Ordering::Relaxed) >= BEFORE);
        work()
    })
}
