//! Functions with known amounts of CPU time, allocation and waiting, for tests of profiles. Reads of certain keys
//! call them, and each counts what it did.
//!
//! ```text
//!   busy-a:MICROSECONDS, busy-b:…    CPU time, by the thread's own clock
//!   alloc:PIECES, keep:PIECES        allocations of 1,024 bytes each, a size class of jemalloc; freed, kept
//!   waits                            another thread waits for locks and a condition, and measures its waits
//!   truth                            all sums so far, as JSON
//! ```
//!
//! Each function does something after its inner call, because a tail call would leave no frame. The two busy
//! functions differ in a number, so that the linker does not merge them. Called by `planted`.

use std::hint::black_box;
use std::mem::MaybeUninit;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use klad_base::sync;
use klad_storage::Result;
use klad_storage::operation::{Outcome, Version};
use rustix::time::{ClockId, clock_gettime};
use serde_json::json;

/// Size of each allocation, bytes: a size class, so that jemalloc does not round it up.
pub(crate) const PIECE_BYTES: usize = 1024;

/// Number of waits for each lock.
const ROUNDS: u32 = 20;

/// Time for which a lock is held.
const HELD: Duration = Duration::from_millis(20);

static BUSY_A_NS: AtomicU64 = AtomicU64::new(0);
static BUSY_B_NS: AtomicU64 = AtomicU64::new(0);
static ALLOCATED: AtomicU64 = AtomicU64::new(0);
static KEPT: AtomicU64 = AtomicU64::new(0);
static MUTEX_NS: AtomicU64 = AtomicU64::new(0);
static PTHREAD_NS: AtomicU64 = AtomicU64::new(0);
static CONDITION_NS: AtomicU64 = AtomicU64::new(0);

/// Executes `key` if it is one of these keys. `hook_off`: disable the recording of waits.
pub(crate) fn answer(key: &[u8], hook_off: bool) -> Option<Result> {
    let key = std::str::from_utf8(key).ok()?;
    let (name, amount) = key.split_once(':').unwrap_or((key, "0"));
    let amount: u64 = amount.parse().ok()?;
    match name {
        "busy-a" => add(&BUSY_A_NS, Duration::from_nanos(planted_busy_a(amount * 1000))),
        "busy-b" => add(&BUSY_B_NS, Duration::from_nanos(planted_busy_b(amount * 1000))),
        "alloc" => {
            planted_allocation(amount);
            ALLOCATED.fetch_add(amount * PIECE_BYTES as u64, Ordering::Relaxed);
        }
        "keep" => {
            let mut kept = Vec::with_capacity(usize::try_from(amount).expect("fits"));
            planted_keeping(amount, &mut kept);
            KEPT.fetch_add(amount * PIECE_BYTES as u64, Ordering::Relaxed);
            std::mem::forget(kept);
        }
        "waits" => wait(hook_off),
        "truth" => {}
        _ => return None,
    }
    let value = bytes::Bytes::from(truth().to_string());
    Some(Ok(Outcome::Found { version: Version::new(1), value: value.into() }))
}

fn add(sum: &AtomicU64, time: Duration) {
    sum.fetch_add(u64::try_from(time.as_nanos()).expect("short"), Ordering::Relaxed);
}

fn truth() -> serde_json::Value {
    let read = |sum: &AtomicU64| sum.load(Ordering::Relaxed);
    json!({
        "planted_busy_a": read(&BUSY_A_NS),
        "planted_busy_b": read(&BUSY_B_NS),
        "planted_allocation": read(&ALLOCATED),
        "planted_keeping": read(&KEPT),
        "planted_waiter_mutex": read(&MUTEX_NS),
        "planted_waiter_pthread": read(&PTHREAD_NS),
        "planted_waiter_condition": read(&CONDITION_NS),
    })
}

/// Returns the CPU time of this thread, nanoseconds.
fn used_ns() -> u64 {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}

#[inline(never)]
fn planted_busy_a(amount_ns: u64) -> u64 {
    let begun = used_ns();
    let mut number = 1_u64;
    while used_ns() - begun < amount_ns {
        // About a millisecond, so that reading the clock takes a small part of it.
        for _ in 0..400_000 {
            number = black_box(number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
        }
    }
    used_ns() - begun
}

#[inline(never)]
fn planted_busy_b(amount_ns: u64) -> u64 {
    let begun = used_ns();
    let mut number = 1_u64;
    while used_ns() - begun < amount_ns {
        for _ in 0..400_000 {
            number = black_box(number.wrapping_mul(3_935_559_000_370_003_845).wrapping_add(7));
        }
    }
    used_ns() - begun
}

type Piece = Box<MaybeUninit<[u8; PIECE_BYTES]>>;

fn piece() -> Piece {
    let mut piece = Box::<[u8; PIECE_BYTES]>::new_uninit();
    // Otherwise the compiler would remove the allocation.
    black_box(piece.as_mut_ptr());
    piece
}

#[inline(never)]
fn planted_allocation(pieces: u64) {
    for _ in 0..pieces {
        drop(black_box(piece()));
    }
}

/// `kept` must have enough capacity: its growth would be counted here.
#[inline(never)]
fn planted_keeping(pieces: u64, kept: &mut Vec<Piece>) {
    for _ in 0..pieces {
        kept.push(piece());
    }
    black_box(kept);
}

/// Makes all kinds of waits, one after the other.
fn wait(hook_off: bool) {
    if hook_off {
        // Disables the recording even while a profile is taken.
        klad_base::sampling::waits::stop();
    }
    let lock = sync::Mutex::new(());
    let held = |hold: &dyn Fn()| {
        let _guard = lock.lock();
        hold();
    };
    add(&MUTEX_NS, contend(held, || planted_waiter_mutex(|| drop(lock.lock()))));
    let lock = pthread::Lock::new();
    add(&PTHREAD_NS, contend(|hold| lock.hold(hold), || planted_waiter_pthread(&lock)));
    let (flag, changed) = (sync::Mutex::new(false), sync::Condvar::new());
    let set = |hold: &dyn Fn()| {
        hold();
        *flag.lock() = true;
        changed.notify_all();
    };
    let waited = contend(set, || {
        planted_waiter_condition(|| {
            let mut set = flag.lock();
            while !*set {
                set = changed.wait(set, sync::Cause::Idle);
            }
            *set = false;
        })
    });
    add(&CONDITION_NS, waited);
}

/// Runs `holder`, which does the given work while it holds what `waiter` waits for. Returns the sum of all waits. The
/// barriers are those of std, which no profile sees.
fn contend(holder: impl Fn(&dyn Fn()), waiter: impl Fn() -> Duration + Sync) -> Duration {
    let barrier = Barrier::new(2);
    thread::scope(|scope| {
        let waiting = || {
            let round = |_| {
                barrier.wait();
                let waited = waiter();
                barrier.wait();
                waited
            };
            (0..ROUNDS).map(round).sum()
        };
        let waiting = thread::Builder::new().name("planted-wait".to_owned()).spawn_scoped(scope, waiting).unwrap();
        for _ in 0..ROUNDS {
            holder(&|| {
                barrier.wait();
                thread::sleep(HELD);
            });
            barrier.wait();
        }
        waiting.join().unwrap()
    })
}

#[inline(never)]
fn planted_waiter_mutex(lock: impl Fn()) -> Duration {
    let begun = Instant::now();
    lock();
    begun.elapsed()
}

#[inline(never)]
fn planted_waiter_pthread(lock: &pthread::Lock) -> Duration {
    let begun = Instant::now();
    lock.hold(&|| {});
    begun.elapsed()
}

#[inline(never)]
fn planted_waiter_condition(wait: impl Fn()) -> Duration {
    let begun = Instant::now();
    wait();
    begun.elapsed()
}

/// A mutex of the C library.
mod pthread {
    #![expect(unsafe_code, reason = "tests the interface of C")]

    use std::cell::UnsafeCell;

    /// Never moved while held, because all users borrow it.
    pub(super) struct Lock {
        mutex: Box<UnsafeCell<libc::pthread_mutex_t>>,
    }

    // SAFETY: a mutex is made for use by several threads, and there is no other content.
    unsafe impl Sync for Lock {}

    impl Lock {
        pub(super) fn new() -> Lock {
            Lock { mutex: Box::new(UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER)) }
        }

        /// Runs `work` with the lock held.
        pub(super) fn hold(&self, work: &dyn Fn()) {
            // SAFETY: the mutex is initialised and does not move, and this thread does not hold it.
            let taken = unsafe { libc::pthread_mutex_lock(self.mutex.get()) };
            assert_eq!(taken, 0);
            work();
            // SAFETY: this thread holds it.
            let given_back = unsafe { libc::pthread_mutex_unlock(self.mutex.get()) };
            assert_eq!(given_back, 0);
        }
    }
}
