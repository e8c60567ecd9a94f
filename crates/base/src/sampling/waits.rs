//! Waits of threads, recorded by the thread that waits. A thread that finds a lock taken, or waits for a condition, says so
//! in a slot as long as it waits, always: who hangs since an hour ago is why somebody looks now. While somebody looks, what
//! has waited also goes to a ring, and acquisitions are counted. A lock that is free costs one relaxed load more than without
//! all this, and a wait, which costs microseconds in any case, two looks at the clock and a slot.
//!
//! ```text
//!   sync, pthread ── taken? ──▶ slot: kind, since, frame ──▶ the real wait ──▶ on, long? ring: from, to, stack ──▶ slot free
//!                                  │ read at any time                                 │ drained
//!                                  └────────────▶ profile::locks (open waits) ◀───────┘
//! ```
//!
//! A thread may come here with any lock of the process in its hands, the allocator's own too, and before `main`. So nothing
//! here may allocate, take a lock, use a thread-local that is made lazily or has a destructor, or ask for the bounds of a
//! stack: the stack is walked by checked reads. That is also why the allocator's mutexes need no exception: what cannot
//! come back to the allocator cannot wait for what it holds.
//!
//! A slot belongs to a wait, not to a thread, so a thread that ends leaves none behind. It holds where the waiting thread's
//! frame is, not the stack: short waits, which are most, pay for no walk, and whoever reads slots walks the stack itself,
//! which stands still as long as the wait lasts. The slot's sequence says whether it did.
//!
//! What is not seen before it ends: a wait that finds no slot, which is counted. A thread that is cancelled while it waits, as
//! none of klad's is, would leave its slot behind.
//!
//! Called by `sync` and `pthread` for each wait, and by `profile::locks`, which reads.

use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};

use crate::sampling::ring::Ring;
use crate::sampling::walk::{Stack, now_ns, own_frame, thread_name};
use crate::sampling::{Family, Kind};

/// Waits that the ring holds until they are drained, 20 times a second: 80,000 waits a second. About 1 kB each.
const RING_CAPACITY: usize = 4096;

/// Threads that can wait at one time and be seen before they have waited, the idle ones too. klad has tens.
const SLOTS: usize = 1024;

/// Slots that a thread tries before it goes without one.
const PROBES: u32 = 64;

/// Counters are spread over so many cache lines; more threads than processors share one.
const SHARDS: usize = 64;

static ON: AtomicBool = AtomicBool::new(false);
static THRESHOLD_NS: AtomicU64 = AtomicU64::new(0);
static RING: OnceLock<Ring<Wait>> = OnceLock::new();
static OPEN: [Slot; SLOTS] = [const { Slot::new() }; SLOTS];
static COUNTS: [Shard; SHARDS] = [const { Shard::new() }; SHARDS];
static THREADS: AtomicU32 = AtomicU32::new(0);

thread_local! {
    /// Where the thread looks for its shard and its slot; 0 before the first time.
    static NUMBER: Cell<u32> = const { Cell::new(0) };
    /// The kernel's number of the thread; 0 before the first time.
    static TID: Cell<u32> = const { Cell::new(0) };
    /// The thread is recording. Nothing that it calls then comes here again; if something did, it would go by unseen.
    static RECORDING: Cell<bool> = const { Cell::new(false) };
}

/// A wait that is over.
#[derive(Clone, Copy, Debug)]
pub struct Wait {
    /// What for.
    pub kind: Kind,
    /// The kernel's number of the thread.
    pub tid: u32,
    /// The thread's name, padded with zeros.
    pub thread: [u8; 16],
    /// When it began, on the monotonic clock.
    pub began_ns: u64,
    /// When it ended.
    pub ended_ns: u64,
    /// Where.
    pub stack: Stack,
}

/// A wait that is not over.
#[derive(Clone, Copy, Debug)]
pub struct OpenWait {
    /// What for.
    pub kind: Kind,
    /// The kernel's number of the thread.
    pub tid: u32,
    /// When it began, on the monotonic clock.
    pub began_ns: u64,
    /// Where.
    pub stack: Stack,
}

/// What was counted since the process began: waits without a slot always, the rest while anybody looked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Locks of `sync` taken, and conditions waited for.
    pub own: u64,
    /// The same of POSIX's.
    pub pthread: u64,
    /// Waits below the threshold.
    pub below: u64,
    /// Waits that found no slot: they are recorded, but cannot be seen before they end.
    pub unseen: u64,
    /// Those of `unseen` that have ended.
    pub unseen_ended: u64,
    /// Waits that found no room in the ring.
    pub lost: u64,
}

/// On a cache line of its own; two, as processors fetch them in pairs.
#[repr(align(128))]
struct Shard {
    own: AtomicU64,
    pthread: AtomicU64,
    below: AtomicU64,
    unseen: AtomicU64,
    unseen_ended: AtomicU64,
}

/// Odd sequence: taken. The fields hold what they say once `since_ns` is not 0.
#[repr(align(128))]
struct Slot {
    sequence: AtomicU64,
    since_ns: AtomicU64,
    kind: AtomicU32,
    tid: AtomicU32,
    frame: AtomicU64,
}

/// Whether anybody looks.
#[inline]
#[must_use]
pub fn on() -> bool {
    ON.load(Ordering::Relaxed)
}

/// Counts an acquisition, or a wait for a condition, whose lock is acquired at its end. Not inlined: it would be in the way
/// of whoever takes a free lock while nobody looks.
#[cold]
#[inline(never)]
pub fn count(family: Family) {
    let shard = Shard::mine();
    let counter = match family {
        Family::Own => &shard.own,
        Family::Pthread => &shard.pthread,
    };
    counter.fetch_add(1, Ordering::Relaxed);
}

/// Waits by `wait`, and lets that be seen: as long as it lasts, and when it is over. The caller is the innermost frame that
/// is recorded, so it must not be inlined, and must have something to do after this call, or its name is not seen.
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

/// Begins to look; waits shorter than `threshold_ns` are counted, not kept. What an earlier look has left is thrown away.
/// Not for two callers at a time.
pub fn start(threshold_ns: u64) {
    let ring = RING.get_or_init(|| Ring::new(RING_CAPACITY));
    ring.drain(|| false, drop);
    THRESHOLD_NS.store(threshold_ns, Ordering::Relaxed);
    ON.store(true, Ordering::SeqCst);
}

/// Looks no more.
pub fn stop() {
    ON.store(false, Ordering::SeqCst);
}

/// Takes the waits that are over and were not taken yet; see [`Ring::drain`]. One caller at a time.
pub fn drain(again: impl FnMut() -> bool, seen: impl FnMut(Wait)) -> u64 {
    RING.get().map_or(0, |ring| ring.drain(again, seen))
}

/// Calls `seen` for each wait that is not over.
pub fn look(mut seen: impl FnMut(OpenWait)) {
    for slot in &OPEN {
        if let Some(wait) = slot.read() {
            seen(wait);
        }
    }
}

/// What was counted so far.
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

struct Began {
    slot: Option<&'static Slot>,
    at_ns: u64,
}

fn begin(kind: Kind, frame: u64) -> Option<Began> {
    if RECORDING.replace(true) {
        return None;
    }
    let at_ns = now_ns();
    let slot = Slot::claim(kind, at_ns, frame);
    if slot.is_none() {
        Shard::mine().unseen.fetch_add(1, Ordering::Relaxed);
    }
    RECORDING.set(false);
    Some(Began { slot, at_ns })
}

fn end(kind: Kind, began: &Began, frame: u64) {
    if on() && !RECORDING.replace(true) {
        record(kind, began.at_ns, frame);
        RECORDING.set(false);
    }
    // After the ring has it: whoever sees the slot free finds the wait there.
    match began.slot {
        Some(slot) => slot.release(),
        None => _ = Shard::mine().unseen_ended.fetch_add(1, Ordering::Relaxed),
    }
}

/// A wait as of a thread that is preempted at its end, when the ring has it and its slot is not free yet. What is given frees it.
/// For tests.
#[doc(hidden)]
#[inline(never)]
pub fn preempted(kind: Kind, wait: impl FnOnce()) -> impl FnOnce() {
    let frame = own_frame();
    let began = begin(kind, frame).expect("this thread records nothing else");
    wait();
    record(kind, began.at_ns, frame);
    move || began.slot.expect("there are more slots than threads").release()
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
    // One system call, and nothing else.
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
            // The store above comes before those of the fields: who reads one of them sees that the slot was taken.
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
        // The loads above come before the one below.
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
