//! Opens and closes windows while threads allocate, lock, wait, begin and end.

use std::sync::atomic::AtomicBool;

use crate::locks::tests::*;

const CYCLES: usize = 1000;

/// Allocates and frees memory of sizes for which threads compete: large ones come from the allocator's shared
/// extents.
fn allocate(round: usize) {
    let held: Vec<Vec<u8>> = (0..16).map(|step| Vec::with_capacity(1 << (6 + (round + step) % 15))).collect();
    black_box(held);
}

/// POSIX locks, if this build sees them.
struct Posix {
    #[cfg(feature = "posix-locks")]
    locks: Arc<posix::Locks>,
}

impl Posix {
    fn new() -> Posix {
        Posix {
            #[cfg(feature = "posix-locks")]
            locks: posix::Locks::new(posix::Calls::watched()),
        }
    }

    fn take_each(&self, run: &dyn Fn()) {
        #[cfg(feature = "posix-locks")]
        {
            self.locks.with_mutex(run);
            self.locks.reading(&|| {});
            self.locks.writing(&|| {});
        }
        #[cfg(not(feature = "posix-locks"))]
        run();
    }
}

fn churn(stop: &AtomicBool, mutex: &Mutex<u64>, posix: &Posix, queue: &BoundedQueue<usize>) {
    let mut round = 0;
    while !stop.load(Ordering::Relaxed) {
        round += 1;
        allocate(round);
        *mutex.lock() += 1;
        posix.take_each(&|| allocate(round));
        // Each thread adds an item and takes one, so the threads compete for the queue's lock.
        let _ = queue.push(round);
        let _ = queue.try_pop();
        if round.is_multiple_of(64) {
            spawn_thread("churn-short", move || allocate(round)).join().expect("no panic");
        }
    }
}

#[test]
fn a_thousand_windows_under_load_end() {
    let (stop, mutex) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(0)));
    let (locks, queue) = (Arc::new(Posix::new()), Arc::new(BoundedQueue::new(4)));
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let (stop, mutex, locks, queue) = (stop.clone(), mutex.clone(), locks.clone(), queue.clone());
            spawn_thread("churn", move || churn(&stop, &mutex, &locks, &queue))
        })
        .collect();
    for cycle in 0..CYCLES {
        let window = Window::start(THRESHOLD).expect("all tests use this threshold");
        std::thread::yield_now();
        if cycle.is_multiple_of(3) {
            drop(window);
        } else {
            black_box(window.finish());
        }
    }
    stop.store(true, Ordering::Relaxed);
    for thread in threads {
        thread.join().expect("no panic");
    }
}
