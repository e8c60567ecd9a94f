//! Every mutex, condition variable, queue and thread of klad's own comes from here, so that a lock profile sees all waits
//! and no queue is without a bound.
//!
//! A lock is tried first; if another thread is in the way, the wait is seen as long as it lasts, and timed (`sampling::waits`).
//! One that is free costs one load more than the standard type, and acquisitions are counted while somebody looks.
//!
//! Who takes a free lock calls no function for it. Who waits does, and that one's name is on the stack: `lock_contended` and
//! its like, which `profile::locks` shows as `lock`.
//!
//! A thread that panics ends the process (see `main.rs`), so a lock is never met poisoned by a caller that lives on.
//! Called by all modules; `clippy.toml` forbids the standard types elsewhere.

#![expect(clippy::disallowed_types, reason = "the wrappers of the types that are forbidden elsewhere")]

use std::collections::VecDeque;
use std::hint::black_box;
use std::io::Write as _;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, TryLockError};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::limits::{STACK_BYTES, TOO_FEW_THREADS_EXIT};
use crate::sampling::waits::{count, on, timed};
use crate::sampling::{Family, Kind};

pub use std::sync::{MutexGuard, RwLockReadGuard, RwLockWriteGuard};

/// A mutex; `lock` cannot fail.
#[derive(Debug, Default)]
pub struct Mutex<T>(std::sync::Mutex<T>);

impl<T> Mutex<T> {
    /// Holds `value`.
    pub const fn new(value: T) -> Self {
        Mutex(std::sync::Mutex::new(value))
    }

    /// Waits until no other thread holds the lock.
    #[inline]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        if on() {
            count(Family::Own);
        }
        match self.try_lock() {
            Some(guard) => guard,
            None => self.lock_contended(),
        }
    }

    /// What comes after the call keeps this frame, and with it this name, on the stack. The same of those below.
    #[cold]
    #[inline(never)]
    fn lock_contended(&self) -> MutexGuard<'_, T> {
        black_box(timed(Kind::Mutex, || self.0.lock().unwrap_or_else(PoisonError::into_inner)))
    }

    /// Takes the lock if no thread holds it.
    #[inline]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        match self.0.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

/// A readers-writer lock; taking it cannot fail.
#[derive(Debug, Default)]
pub struct RwLock<T>(std::sync::RwLock<T>);

impl<T> RwLock<T> {
    /// Holds `value`.
    pub const fn new(value: T) -> Self {
        RwLock(std::sync::RwLock::new(value))
    }

    /// Waits until no thread writes.
    #[inline]
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        if on() {
            count(Family::Own);
        }
        match self.0.try_read() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => self.read_contended(),
        }
    }

    /// Waits until no other thread reads or writes.
    #[inline]
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        if on() {
            count(Family::Own);
        }
        match self.0.try_write() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => self.write_contended(),
        }
    }

    #[cold]
    #[inline(never)]
    fn read_contended(&self) -> RwLockReadGuard<'_, T> {
        black_box(timed(Kind::RwLockRead, || self.0.read().unwrap_or_else(PoisonError::into_inner)))
    }

    #[cold]
    #[inline(never)]
    fn write_contended(&self) -> RwLockWriteGuard<'_, T> {
        black_box(timed(Kind::RwLockWrite, || self.0.write().unwrap_or_else(PoisonError::into_inner)))
    }
}

/// Why a thread waits for a condition: a lock profile shows what keeps threads from their work, and a thread that has none
/// is not kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// It has nothing to do.
    Idle,
    /// It cannot go on before another thread has done something.
    Others,
}

impl From<Cause> for Kind {
    fn from(cause: Cause) -> Kind {
        match cause {
            Cause::Idle => Kind::Idle,
            Cause::Others => Kind::Work,
        }
    }
}

/// A condition variable for [`Mutex`].
#[derive(Debug, Default)]
pub struct Condvar(std::sync::Condvar);

impl Condvar {
    /// No one waits yet.
    #[must_use]
    pub const fn new() -> Self {
        Condvar(std::sync::Condvar::new())
    }

    /// Gives up the lock until woken; may wake without being. Not inlined: its name is the innermost of the stack.
    #[inline(never)]
    pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>, cause: Cause) -> MutexGuard<'a, T> {
        if on() {
            count(Family::Own);
        }
        // Until the lock is back: whoever was woken waits for that too.
        black_box(timed(cause.into(), || self.0.wait(guard).unwrap_or_else(PoisonError::into_inner)))
    }

    /// As `wait`, for `timeout` at most.
    #[inline(never)]
    pub fn wait_timeout<'a, T>(&self, guard: MutexGuard<'a, T>, timeout: Duration, cause: Cause) -> MutexGuard<'a, T> {
        if on() {
            count(Family::Own);
        }
        let wait = || self.0.wait_timeout(guard, timeout).unwrap_or_else(PoisonError::into_inner).0;
        black_box(timed(cause.into(), wait))
    }

    /// Wakes one waiter.
    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    /// Wakes all waiters.
    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}

/// A first-in, first-out queue with a bound, between any number of producers and consumer threads.
#[derive(Debug)]
pub struct BoundedQueue<T> {
    state: Mutex<QueueState<T>>,
    not_empty: Condvar,
    capacity: usize,
    /// As long as the queue, for whoever looks without the lock.
    len: AtomicUsize,
}

#[derive(Debug)]
struct QueueState<T> {
    items: VecDeque<T>,
    /// Consumers inside `wait`: a producer that finds none makes no system call.
    waiting: usize,
    /// One of them was woken and is on its way: it wakes the next if it leaves something, so nobody else need.
    waking: bool,
    closed: bool,
}

/// Why an item was not queued; the item comes back.
#[derive(Debug, PartialEq, Eq)]
pub enum PushError<T> {
    /// The queue holds `capacity` items.
    Full(T),
    /// The queue was closed.
    Closed(T),
}

impl<T> BoundedQueue<T> {
    /// Holds at most `capacity` items (at least 1).
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        assert!(capacity >= 1, "a queue without room could never pass anything on");
        let state = QueueState { items: VecDeque::new(), waiting: 0, waking: false, closed: false };
        BoundedQueue { state: Mutex::new(state), not_empty: Condvar::new(), capacity, len: AtomicUsize::new(0) }
    }

    /// Appends, without waiting.
    ///
    /// # Errors
    /// [`PushError`] when the queue is full or closed.
    pub fn push(&self, item: T) -> Result<(), PushError<T>> {
        self.push_below(self.capacity, item)
    }

    /// As `push`, where fewer than `limit` items wait.
    ///
    /// # Errors
    /// As `push`.
    pub fn push_below(&self, limit: usize, item: T) -> Result<(), PushError<T>> {
        let mut state = self.state.lock();
        if state.closed {
            return Err(PushError::Closed(item));
        }
        if state.items.len() >= limit.min(self.capacity) {
            return Err(PushError::Full(item));
        }
        state.items.push_back(item);
        self.wake_one(state);
        Ok(())
    }

    /// Wakes a consumer if there is something for it and none is on its way.
    fn wake_one(&self, mut state: MutexGuard<'_, QueueState<T>>) {
        self.len.store(state.items.len(), Ordering::Relaxed);
        let wake = state.waiting > 0 && !state.waking && !state.items.is_empty();
        state.waking |= wake;
        drop(state);
        if wake {
            self.not_empty.notify_one();
        }
    }

    /// Takes the oldest item, waiting for one. `None`: the queue is closed and empty.
    pub fn pop(&self) -> Option<T> {
        let state = self.wait_for_items()?;
        self.pop_front(state)
    }

    /// As `pop`, looking again for `spin` before it sleeps: a hand-over to a thread that is awake costs less. The looks
    /// take no lock.
    pub fn pop_spinning(&self, spin: Duration) -> Option<T> {
        if !spin.is_zero() && self.len.load(Ordering::Relaxed) == 0 {
            let until = crate::clock::now() + spin;
            while self.len.load(Ordering::Relaxed) == 0 && crate::clock::now() < until {
                std::hint::spin_loop();
            }
        }
        self.pop()
    }

    /// Takes the oldest item if there is one, without waiting.
    pub fn try_pop(&self) -> Option<T> {
        let state = self.state.lock();
        self.pop_front(state)
    }

    fn pop_front(&self, mut state: MutexGuard<'_, QueueState<T>>) -> Option<T> {
        let item = state.items.pop_front();
        self.wake_one(state);
        item
    }

    fn wait_for_items(&self) -> Option<MutexGuard<'_, QueueState<T>>> {
        let mut state = self.state.lock();
        while state.items.is_empty() {
            if state.closed {
                return None;
            }
            state.waiting += 1;
            state = self.not_empty.wait(state, Cause::Idle);
            state.waiting -= 1;
            state.waking = false;
        }
        Some(state)
    }

    /// How many items wait; of use only as an estimate.
    pub fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }

    /// Whether none waits; as exact as [`BoundedQueue::len`].
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Refuses new items from now on; consumers get what is left, then the end.
    pub fn close(&self) {
        self.state.lock().closed = true;
        self.not_empty.notify_all();
    }
}

/// A value that may change as a whole while others read it. Readers on the path of a request keep their own copy and look
/// here now and then.
#[derive(Debug)]
pub struct Live<T>(RwLock<Arc<T>>);

impl<T> Live<T> {
    /// `value`, until it is changed.
    pub fn new(value: T) -> Arc<Live<T>> {
        Arc::new(Live(RwLock::new(Arc::new(value))))
    }

    /// What it is now.
    pub fn get(&self) -> Arc<T> {
        self.0.read().clone()
    }

    /// Changes it.
    pub fn set(&self, value: T) {
        *self.0.write() = Arc::new(value);
    }
}

/// A flag that is raised once, with threads waiting for it.
#[derive(Debug, Default)]
pub struct Signal {
    raised: Mutex<bool>,
    changed: Condvar,
}

impl Signal {
    /// Raises the flag, for good.
    pub fn raise(&self) {
        *self.raised.lock() = true;
        self.changed.notify_all();
    }

    /// Waits for the flag, for `timeout` at most; `true` when it is raised. That is a sleep between two rounds of work for
    /// all who call it, so a lock profile takes it for one.
    pub fn wait_timeout(&self, timeout: Duration) -> bool {
        let deadline = crate::clock::now() + timeout;
        let mut raised = self.raised.lock();
        while !*raised {
            let left = deadline.saturating_duration_since(crate::clock::now());
            if left.is_zero() {
                return false;
            }
            raised = self.changed.wait_timeout(raised, left, Cause::Idle);
        }
        true
    }
}

/// Starts a thread with a name: profiles and `top -H` show it. At most 15 bytes are kept by Linux.
///
/// Where the machine can start no more threads the process ends, with a line that says so: there is no way on without it.
pub fn spawn_thread<T: Send + 'static>(name: &str, run: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    try_spawn_thread(name, run).unwrap_or_else(|error| {
        let (code, word) = TOO_FEW_THREADS_EXIT;
        let _ = writeln!(std::io::stderr(), "klad: cannot start thread {name}: {error} [{word}]");
        std::process::exit(code.into())
    })
}

/// Whether the machine lets so many threads be started at once, with stacks as the C library's threads have them by default: starts
/// them, and ends them again. What starts threads in C++ ends the process without a word where it cannot.
///
/// # Errors
/// When it does not.
pub fn try_threads(count: usize) -> std::io::Result<()> {
    let before = threads_now();
    let enough = Arc::<Signal>::default();
    let start = |_| {
        let enough = enough.clone();
        let wait = move || while !enough.wait_timeout(Duration::from_secs(1)) {};
        #[expect(clippy::disallowed_methods, reason = "another stack than klad's threads have")]
        std::thread::Builder::new().name("klad-try".to_owned()).stack_size(STACK_BYTES).spawn(wait)
    };
    let mut started = Vec::new();
    let tried = (0..count).map(start).try_for_each(|thread| thread.map(|thread| started.push(thread)));
    enough.raise();
    for thread in started {
        thread.join().expect("it does nothing");
    }
    // A thread counts until the kernel has put it away, a moment after it was joined.
    let never = Signal::default();
    for _ in 0..1_000 {
        if threads_now() <= before {
            break;
        }
        never.wait_timeout(Duration::from_millis(1));
    }
    tried
}

/// 0 where nobody can tell.
fn threads_now() -> usize {
    std::fs::read_dir("/proc/self/task").map_or(0, Iterator::count)
}

/// As [`spawn_thread`], where there is a way on without it.
///
/// # Errors
/// When the machine can start no more threads.
pub fn try_spawn_thread<T: Send + 'static>(
    name: &str,
    run: impl FnOnce() -> T + Send + 'static,
) -> std::io::Result<JoinHandle<T>> {
    assert!(name.len() <= 15, "Linux would cut the thread name {name:?}");
    #[expect(clippy::disallowed_methods, reason = "this is the one place, and the thread has a name")]
    std::thread::Builder::new().name(name.to_owned()).spawn(run)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queue_refuses_at_its_bound_and_keeps_order() {
        let queue = BoundedQueue::new(2);
        assert_eq!(queue.push(1), Ok(()));
        assert_eq!(queue.push(2), Ok(()));
        assert_eq!(queue.push(3), Err(PushError::Full(3)));
        assert_eq!((queue.try_pop(), queue.try_pop(), queue.try_pop()), (Some(1), Some(2), None));
    }

    #[test]
    fn closed_queue_gives_what_is_left_then_ends() {
        let queue = BoundedQueue::new(2);
        assert_eq!(queue.push(1), Ok(()));
        queue.close();
        assert_eq!(queue.push(2), Err(PushError::Closed(2)));
        assert_eq!(queue.pop(), Some(1));
        assert_eq!(queue.pop(), None);
    }

    #[test]
    fn waiting_consumer_is_woken() {
        let queue = Arc::new(BoundedQueue::new(1));
        let consumer = {
            let queue = queue.clone();
            spawn_thread("test-consumer", move || queue.pop())
        };
        queue.push(7).expect("there is room");
        assert_eq!(consumer.join().expect("no panic"), Some(7));
    }
}
