//! Mutexes, condition variables, a bounded queue, and threads. All of klad's Rust code takes its locks and threads from
//! this module, so that a lock profile sees every wait for a lock, and every thread has a name.
//!
//! Every lock operation first tries the lock without waiting. If another thread holds the lock, `sampling::waits` shows
//! and times the wait. A free lock costs one load more than the standard type. During a lock profile, acquisitions are
//! counted.
//!
//! The fast path is inlined. The waiting path is a function that is not inlined, such as `lock_contended`, so the
//! function's name is on the stack; `profile::locks` shows it as `lock`.
//!
//! A panic ends the process (see `main.rs`), so no caller can meet a poisoned lock. `clippy.toml` forbids the standard
//! types elsewhere.

#![expect(clippy::disallowed_types, reason = "the wrappers of the types that are forbidden elsewhere")]

use std::collections::VecDeque;
use std::hint::black_box;
use std::io::Write as _;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, TryLockError};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::limits::{STACK_BYTES, TOO_FEW_THREADS_EXIT};
use crate::sampling::waits::{count_acquisition, is_profiling, timed};
use crate::sampling::{Family, Kind};

pub use std::sync::{MutexGuard, RwLockReadGuard, RwLockWriteGuard};

/// A mutex. `lock` cannot fail.
#[derive(Debug, Default)]
pub struct Mutex<T>(std::sync::Mutex<T>);

impl<T> Mutex<T> {
    /// Returns a mutex that holds `value`.
    pub const fn new(value: T) -> Self {
        Mutex(std::sync::Mutex::new(value))
    }

    /// Takes the lock. Waits until no other thread holds it.
    #[inline]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        if is_profiling() {
            count_acquisition(Family::Own);
        }
        match self.try_lock() {
            Some(guard) => guard,
            None => self.lock_contended(),
        }
    }

    /// Waits for the lock. `black_box` runs after the call, so the compiler keeps this frame, and this function's name,
    /// on the stack. The same holds for the other `…_contended` functions.
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

/// A readers-writer lock. Taking it cannot fail.
#[derive(Debug, Default)]
pub struct RwLock<T>(std::sync::RwLock<T>);

impl<T> RwLock<T> {
    /// Returns a lock that holds `value`.
    pub const fn new(value: T) -> Self {
        RwLock(std::sync::RwLock::new(value))
    }

    /// Takes the lock for reading. Waits until no thread writes.
    #[inline]
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        if is_profiling() {
            count_acquisition(Family::Own);
        }
        match self.0.try_read() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => self.read_contended(),
        }
    }

    /// Takes the lock for writing. Waits until no other thread reads or writes.
    #[inline]
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        if is_profiling() {
            count_acquisition(Family::Own);
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

/// Why a thread waits for a condition. The profile `mutex` leaves out idle waits, the profile `block` shows all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The thread has nothing to do.
    Idle,
    /// The thread needs the result of another thread.
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
    /// Returns a condition variable without waiters.
    #[must_use]
    pub const fn new() -> Self {
        Condvar(std::sync::Condvar::new())
    }

    /// Releases the lock, waits for a notification, and takes the lock again. Spurious wake-ups are possible. The
    /// function is not inlined, so that the stacks in profiles contain its name.
    #[inline(never)]
    pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>, cause: Cause) -> MutexGuard<'a, T> {
        if is_profiling() {
            count_acquisition(Family::Own);
        }
        // The wait ends when the lock is taken again: a woken thread waits for the lock too.
        black_box(timed(cause.into(), || self.0.wait(guard).unwrap_or_else(PoisonError::into_inner)))
    }

    /// Waits as `wait` does, for at most `timeout`. Does not tell whether the time is over: the caller checks that.
    #[inline(never)]
    pub fn wait_timeout<'a, T>(&self, guard: MutexGuard<'a, T>, timeout: Duration, cause: Cause) -> MutexGuard<'a, T> {
        if is_profiling() {
            count_acquisition(Family::Own);
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

/// A bounded first-in, first-out queue for any number of producer and consumer threads.
#[derive(Debug)]
pub struct BoundedQueue<T> {
    state: Mutex<QueueState<T>>,
    not_empty: Condvar,
    capacity: usize,
    /// A copy of the queue's length that can be read without the lock.
    len: AtomicUsize,
}

#[derive(Debug)]
struct QueueState<T> {
    items: VecDeque<T>,
    /// The number of consumers inside `wait`. If it is 0, a producer makes no system call.
    waiting: usize,
    /// Whether a woken consumer has not run yet. That consumer wakes the next one if it leaves items in the queue, so
    /// no other thread has to.
    waking: bool,
    closed: bool,
}

/// Why an item was not queued, with the item.
#[derive(Debug, PartialEq, Eq)]
pub enum PushError<T> {
    /// The queue already holds the maximum of items.
    Full(T),
    /// The queue is closed.
    Closed(T),
}

impl<T> BoundedQueue<T> {
    /// Returns an empty queue for at most `capacity` items.
    ///
    /// # Panics
    /// If `capacity` is 0.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        assert!(capacity >= 1, "a queue needs a capacity of at least 1");
        let state = QueueState { items: VecDeque::new(), waiting: 0, waking: false, closed: false };
        BoundedQueue { state: Mutex::new(state), not_empty: Condvar::new(), capacity, len: AtomicUsize::new(0) }
    }

    /// Appends an item without waiting.
    ///
    /// # Errors
    /// [`PushError`] if the queue is full or closed.
    pub fn push(&self, item: T) -> Result<(), PushError<T>> {
        self.push_below(self.capacity, item)
    }

    /// Appends an item without waiting, if fewer than `limit` items are in the queue and the queue is not full.
    ///
    /// # Errors
    /// [`PushError`], as for `push`.
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

    /// Releases the lock. Wakes a waiting consumer if there is an item, unless a consumer was woken that has not run
    /// yet.
    fn wake_one(&self, mut state: MutexGuard<'_, QueueState<T>>) {
        self.len.store(state.items.len(), Ordering::Relaxed);
        let wake = state.waiting > 0 && !state.waking && !state.items.is_empty();
        state.waking |= wake;
        drop(state);
        if wake {
            self.not_empty.notify_one();
        }
    }

    /// Waits until there is an item, and takes the oldest. Returns `None` if the queue is closed and empty.
    pub fn pop(&self) -> Option<T> {
        let state = self.wait_for_items()?;
        self.pop_front(state)
    }

    /// Takes the oldest item as `pop` does, but polls for up to `spin` before it sleeps, because an item reaches a
    /// running thread at a lower cost. Polling takes no lock.
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

    /// Returns the number of items in the queue. Without the lock this is only an estimate.
    pub fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }

    /// Returns whether the queue is empty: an estimate, as [`BoundedQueue::len`] is.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Rejects new items from now on. Consumers still get the items that are left.
    pub fn close(&self) {
        self.state.lock().closed = true;
        self.not_empty.notify_all();
    }
}

/// A value that a thread can replace as a whole while other threads read it. Code that runs for each request keeps its
/// own copy of the `Arc`, and refreshes the copy from time to time.
#[derive(Debug)]
pub struct Live<T>(RwLock<Arc<T>>);

impl<T> Live<T> {
    /// Returns a shared `value`.
    pub fn new(value: T) -> Arc<Live<T>> {
        Arc::new(Live(RwLock::new(Arc::new(value))))
    }

    /// Returns the current value.
    pub fn get(&self) -> Arc<T> {
        self.0.read().clone()
    }

    /// Replaces the value.
    pub fn set(&self, value: T) {
        *self.0.write() = Arc::new(value);
    }
}

/// A flag that is raised once, and that threads can wait for.
#[derive(Debug, Default)]
pub struct Signal {
    raised: Mutex<bool>,
    changed: Condvar,
}

impl Signal {
    /// Raises the flag. It stays raised.
    pub fn raise(&self) {
        *self.raised.lock() = true;
        self.changed.notify_all();
    }

    /// Waits until the flag is raised, for at most `timeout`. Returns whether the flag is raised. Threads call this to
    /// pause, so a lock profile counts the wait as idle.
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

/// Starts a thread with a name, which profiles and `top -H` show. Linux keeps at most 15 bytes of the name.
///
/// If the machine cannot start another thread, this prints a message and ends the process with exit code 71, because
/// klad cannot run without the thread.
///
/// # Panics
/// If `name` is longer than 15 bytes.
pub fn spawn_thread<T: Send + 'static>(name: &str, run: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    try_spawn_thread(name, run).unwrap_or_else(|error| {
        let (code, word) = TOO_FEW_THREADS_EXIT;
        let _ = writeln!(std::io::stderr(), "klad: cannot start thread {name}: {error} [{word}]");
        std::process::exit(code.into())
    })
}

/// Checks that the machine can start `count` more threads with the stack size of [`STACK_BYTES`]: starts them and ends
/// them again. C++ code that cannot start a thread ends the process without a message, so klad checks first.
///
/// # Errors
/// The system's error if it cannot start that many threads.
pub fn try_threads(count: usize) -> std::io::Result<()> {
    let before = threads_now();
    let enough = Arc::<Signal>::default();
    let start = |_| {
        let enough = enough.clone();
        let wait = move || while !enough.wait_timeout(Duration::from_secs(1)) {};
        #[expect(clippy::disallowed_methods, reason = "these threads need the C library's stack size, not klad's")]
        std::thread::Builder::new().name("klad-try".to_owned()).stack_size(STACK_BYTES).spawn(wait)
    };
    let mut started = Vec::new();
    let tried = (0..count).map(start).try_for_each(|thread| thread.map(|thread| started.push(thread)));
    enough.raise();
    for thread in started {
        thread.join().expect("the thread only waits");
    }
    // The kernel still counts a thread for a moment after it was joined.
    let never = Signal::default();
    for _ in 0..1_000 {
        if threads_now() <= before {
            break;
        }
        never.wait_timeout(Duration::from_millis(1));
    }
    tried
}

/// Returns the number of threads of the process, or 0 if the system does not show it.
fn threads_now() -> usize {
    std::fs::read_dir("/proc/self/task").map_or(0, Iterator::count)
}

/// Starts a thread as [`spawn_thread`] does, for callers that can go on without the thread.
///
/// # Errors
/// The system's error if it cannot start another thread.
///
/// # Panics
/// If `name` is longer than 15 bytes.
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
