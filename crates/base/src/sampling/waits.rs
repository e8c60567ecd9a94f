//! Records the waits of threads. The waiting thread itself does it.
//!
//! A thread that finds a lock taken, or waits for a condition, fills a slot for as long as it waits, even without a
//! profile. So a lock profile also shows waits that began long before the profile. During a lock profile, a finished
//! wait that was not shorter than the profile's threshold also goes to a ring, and acquisitions are counted. A free
//! lock costs one relaxed load more than without this module. A wait, which takes microseconds anyway, costs a clock
//! read and a slot; during a profile it also costs a second clock read, and a walk of the stack if it was long.
//!
//! ```text
//!   sync, pthread ── taken? ──▶ slot: kind, since, frame ──▶ the real wait ──▶ profiling and long? ring ──▶ slot free
//!                                  │ read at any time                              │ drained
//!                                  └────────────▶ profile::locks (open waits) ◀────┘
//! ```
//!
//! A thread may call this module before `main`, and while it holds any lock of the process, including the
//! allocator's. So this code must not allocate, take a lock, use a thread-local with lazy initialisation or a
//! destructor, or ask for the bounds of a stack. The stack is walked by checked reads. For the same reason the
//! allocator's mutexes need no special case: this code never enters the allocator, so it cannot wait for a lock of
//! the allocator.
//!
//! A slot belongs to a wait, not to a thread, so a thread that ends leaves no slot behind. The slot holds the address
//! of the waiting thread's frame, not the stack: most waits are short, and they do not pay for a walk. The reader of
//! a slot walks the stack, which does not change during the wait. The slot's sequence tells the reader whether the
//! wait ended meanwhile.
//!
//! Limits: a wait that finds no slot is counted, but is not visible before it ends. A thread that is cancelled during
//! a wait would leave its slot behind; klad cancels no threads.
//!
//! Called by `sync` and `pthread` for each wait, and by `profile::locks`, which reads the records.

use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};

use crate::sampling::ring::Ring;
use crate::sampling::walk::{Stack, now_ns, own_frame, thread_name};
use crate::sampling::{Family, Kind};

/// The number of waits that the ring holds. The ring is drained 20 times a second, so it takes 80,000 waits a second.
/// Each wait takes about 1 kB of memory.
const RING_CAPACITY: usize = 4096;

/// The number of threads that can wait at the same time and be visible, including idle threads. klad has tens of
/// threads.
const SLOTS: usize = 1024;

/// The number of slots that a thread tries before it waits without one.
const PROBES: u32 = 64;

/// The number of [`Shard`]s over which the counters are spread. If there are more threads, some share a shard.
const SHARDS: usize = 64;

static ON: AtomicBool = AtomicBool::new(false);
static THRESHOLD_NS: AtomicU64 = AtomicU64::new(0);
static RING: OnceLock<Ring<Wait>> = OnceLock::new();
static OPEN: [Slot; SLOTS] = [const { Slot::new() }; SLOTS];
static COUNTS: [Shard; SHARDS] = [const { Shard::new() }; SHARDS];
static THREADS: AtomicU32 = AtomicU32::new(0);

thread_local! {
    /// The thread's number, which decides its shard and the first slot that it tries; 0 before first use.
    static NUMBER: Cell<u32> = const { Cell::new(0) };
    /// The kernel's number of the thread; 0 before first use.
    static TID: Cell<u32> = const { Cell::new(0) };
    /// Whether the thread is recording a wait. Recording itself does not wait. If it did, this flag would prevent that
    /// the inner wait is recorded too.
    static RECORDING: Cell<bool> = const { Cell::new(false) };
}

/// A finished wait.
#[derive(Clone, Copy, Debug)]
pub struct Wait {
    /// What the thread waited for.
    pub kind: Kind,
    /// The kernel's number of the thread.
    pub tid: u32,
    /// The thread's name, padded with zeros.
    pub thread: [u8; 16],
    /// The start of the wait on the monotonic clock, in nanoseconds.
    pub began_ns: u64,
    /// The end of the wait on the monotonic clock, in nanoseconds.
    pub ended_ns: u64,
    /// The stack of the waiting thread.
    pub stack: Stack,
}

/// A wait that has not ended.
#[derive(Clone, Copy, Debug)]
pub struct OpenWait {
    /// What the thread waits for.
    pub kind: Kind,
    /// The kernel's number of the thread.
    pub tid: u32,
    /// The start of the wait on the monotonic clock, in nanoseconds.
    pub began_ns: u64,
    /// The stack of the waiting thread.
    pub stack: Stack,
}

/// Counters since process start. `unseen` and `unseen_ended` are always counted, the others only during a lock
/// profile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Locks of `sync` taken, and conditions of `sync` waited for.
    pub own: u64,
    /// POSIX locks taken, and POSIX conditions waited for.
    pub pthread: u64,
    /// Waits shorter than the threshold of the profile.
    pub below: u64,
    /// Waits that found no slot. They are recorded, but not visible before they end.
    pub unseen: u64,
    /// The waits of `unseen` that have ended.
    pub unseen_ended: u64,
    /// Waits that were lost because the ring was full.
    pub lost: u64,
}

/// The counters of one or a few threads. A shard has two cache lines of its own, because processors fetch lines in
/// pairs.
#[repr(align(128))]
struct Shard {
    own: AtomicU64,
    pthread: AtomicU64,
    below: AtomicU64,
    unseen: AtomicU64,
    unseen_ended: AtomicU64,
}

/// A wait in progress. An odd sequence means that the slot is taken. The other fields are valid once `since_ns` is
/// not 0.
#[repr(align(128))]
struct Slot {
    sequence: AtomicU64,
    since_ns: AtomicU64,
    kind: AtomicU32,
    tid: AtomicU32,
    frame: AtomicU64,
}

/// Returns whether a lock profile is being taken.
#[inline]
#[must_use]
pub fn is_profiling() -> bool {
    ON.load(Ordering::Relaxed)
}

/// Counts an acquisition, or a wait for a condition, which ends with an acquisition. Only called during a lock profile.
/// Not inlined, so that the fast path of a free lock stays short.
#[cold]
#[inline(never)]
pub fn count_acquisition(family: Family) {
    let shard = Shard::mine();
    let counter = match family {
        Family::Own => &shard.own,
        Family::Pthread => &shard.pthread,
    };
    counter.fetch_add(1, Ordering::Relaxed);
}

/// Calls `wait`, and returns its result. Makes the wait visible while it lasts, and during a profile also after it has
/// ended. The caller is the innermost recorded frame. So the caller must not be inlined, and must do something after
/// this call; otherwise the caller's name is not on the stack.
#[cold]
#[inline(never)]
pub fn timed<R>(kind: Kind, wait: impl FnOnce() -> R) -> R {
    let frame = own_frame();
    let began = begin(kind, frame);
    let result = wait();
    if let Some(began) = began {
        end(kind, &began, frame);
    }
    result
}

/// Starts recording. Waits shorter than `threshold_ns` are only counted. Discards what an earlier profile has left in
/// the ring. Two threads must not call this at the same time.
pub fn start(threshold_ns: u64) {
    let ring = RING.get_or_init(|| Ring::new(RING_CAPACITY));
    ring.drain(|| false, drop);
    THRESHOLD_NS.store(threshold_ns, Ordering::Relaxed);
    ON.store(true, Ordering::SeqCst);
}

/// Stops recording.
pub fn stop() {
    ON.store(false, Ordering::SeqCst);
}

/// Takes the finished waits out of the ring. The arguments and the result are those of [`Ring::drain`]. Only one thread
/// may call this at a time.
pub fn drain(again: impl FnMut() -> bool, seen: impl FnMut(Wait)) -> u64 {
    RING.get().map_or(0, |ring| ring.drain(again, seen))
}

/// Calls `seen` for each wait that has not ended.
pub fn for_each_open(mut seen: impl FnMut(OpenWait)) {
    for slot in &OPEN {
        if let Some(wait) = slot.read() {
            seen(wait);
        }
    }
}

/// Returns the counters, summed over all threads.
#[must_use]
pub fn counts() -> Counts {
    let mut all = Counts { lost: RING.get().map_or(0, Ring::lost), ..Counts::default() };
    for shard in &COUNTS {
        all.own += shard.own.load(Ordering::Relaxed);
        all.pthread += shard.pthread.load(Ordering::Relaxed);
        all.below += shard.below.load(Ordering::Relaxed);
        all.unseen += shard.unseen.load(Ordering::Relaxed);
        all.unseen_ended += shard.unseen_ended.load(Ordering::Relaxed);
    }
    all
}

struct StartedWait {
    slot: Option<&'static Slot>,
    at_ns: u64,
}

fn begin(kind: Kind, frame: u64) -> Option<StartedWait> {
    if RECORDING.replace(true) {
        return None;
    }
    let at_ns = now_ns();
    let slot = Slot::claim(kind, at_ns, frame);
    if slot.is_none() {
        Shard::mine().unseen.fetch_add(1, Ordering::Relaxed);
    }
    RECORDING.set(false);
    Some(StartedWait { slot, at_ns })
}

fn end(kind: Kind, began: &StartedWait, frame: u64) {
    if is_profiling() && !RECORDING.replace(true) {
        record(kind, began.at_ns, frame);
        RECORDING.set(false);
    }
    // The slot is released after the push to the ring, so that a reader that sees the slot free finds the wait in the
    // ring.
    match began.slot {
        Some(slot) => slot.release(),
        None => _ = Shard::mine().unseen_ended.fetch_add(1, Ordering::Relaxed),
    }
}

/// Simulates a thread that is preempted at the end of its wait, after the push to the ring and before the release of
/// its slot: `meanwhile` runs in between. For tests.
#[doc(hidden)]
#[inline(never)]
pub fn preempted(kind: Kind, wait: impl FnOnce(), meanwhile: impl FnOnce()) {
    let frame = own_frame();
    let began = begin(kind, frame).expect("this thread records nothing else");
    wait();
    record(kind, began.at_ns, frame);
    meanwhile();
    began.slot.expect("there are more slots than threads").release();
}

#[inline(never)]
fn record(kind: Kind, began_ns: u64, frame: u64) {
    let ended_ns = now_ns();
    if ended_ns.saturating_sub(began_ns) < THRESHOLD_NS.load(Ordering::Relaxed) {
        Shard::mine().below.fetch_add(1, Ordering::Relaxed);
    } else if let Some(ring) = RING.get() {
        ring.push(Wait { kind, tid: tid(), thread: thread_name(), began_ns, ended_ns, stack: Stack::above(frame) });
    }
}

fn number() -> u32 {
    let known = NUMBER.get();
    if known != 0 {
        return known;
    }
    let new = THREADS.fetch_add(1, Ordering::Relaxed).wrapping_add(1).max(1);
    NUMBER.set(new);
    new
}

fn tid() -> u32 {
    let known = TID.get();
    if known != 0 {
        return known;
    }
    // This makes one system call and nothing else.
    let new = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
    TID.set(new);
    new
}

impl Shard {
    const fn new() -> Shard {
        Shard {
            own: AtomicU64::new(0),
            pthread: AtomicU64::new(0),
            below: AtomicU64::new(0),
            unseen: AtomicU64::new(0),
            unseen_ended: AtomicU64::new(0),
        }
    }

    fn mine() -> &'static Shard {
        &COUNTS[number() as usize % SHARDS]
    }
}

impl Slot {
    const fn new() -> Slot {
        Slot {
            sequence: AtomicU64::new(0),
            since_ns: AtomicU64::new(0),
            kind: AtomicU32::new(0),
            tid: AtomicU32::new(0),
            frame: AtomicU64::new(0),
        }
    }

    fn claim(kind: Kind, since_ns: u64, frame: u64) -> Option<&'static Slot> {
        let first = number();
        let slot = (0..PROBES).map(|step| &OPEN[first.wrapping_add(step) as usize % SLOTS]).find(|slot| slot.take())?;
        slot.kind.store(kind as u32, Ordering::Relaxed);
        slot.tid.store(tid(), Ordering::Relaxed);
        slot.frame.store(frame, Ordering::Relaxed);
        slot.since_ns.store(since_ns, Ordering::Release);
        Some(slot)
    }

    fn take(&self) -> bool {
        let sequence = self.sequence.load(Ordering::Relaxed);
        let taken = sequence.is_multiple_of(2)
            && self.sequence.compare_exchange(sequence, sequence + 1, Ordering::Acquire, Ordering::Relaxed).is_ok();
        if taken {
            // The store above comes before the stores to the fields, so a reader that sees one of them sees that the
            // slot was taken.
            fence(Ordering::Release);
        }
        taken
    }

    fn release(&self) {
        self.since_ns.store(0, Ordering::Relaxed);
        self.sequence.fetch_add(1, Ordering::Release);
    }

    fn read(&self) -> Option<OpenWait> {
        let before = self.sequence.load(Ordering::Acquire);
        let began_ns = self.since_ns.load(Ordering::Acquire);
        if before.is_multiple_of(2) || began_ns == 0 {
            return None;
        }
        let kind = Kind::of(self.kind.load(Ordering::Relaxed));
        let tid = self.tid.load(Ordering::Relaxed);
        let stack = Stack::above(self.frame.load(Ordering::Relaxed));
        // The loads above come before the load below.
        fence(Ordering::Acquire);
        (self.sequence.load(Ordering::Relaxed) == before).then_some(OpenWait { kind, tid, began_ns, stack })
    }
}

impl Kind {
    fn of(number: u32) -> Kind {
        let all = [Kind::Mutex, Kind::RwLockRead, Kind::RwLockWrite, Kind::Idle, Kind::Work, Kind::Foreign];
        all.into_iter().find(|kind| *kind as u32 == number).unwrap_or(Kind::Foreign)
    }
}
