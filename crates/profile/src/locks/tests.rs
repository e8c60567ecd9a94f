//! Planted waits are found at their place, and with the duration that the waiting thread measures itself.

#[cfg(feature = "posix-locks")]
mod answers;
mod load;
mod open;
mod over;
#[cfg(feature = "posix-locks")]
mod posix;

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::locks::*;
use klad_base::sync::{BoundedQueue, Cause, Condvar, RwLock, Signal, spawn_thread};

const THRESHOLD: Duration = Duration::from_micros(10);

/// The time for which a holder keeps a lock in each round.
const HELD: Duration = Duration::from_millis(5);
/// The number of rounds.
const ROUNDS: u64 = 30;

type Hold = Box<dyn Fn(&dyn Fn()) + Send>;

/// A lock that one thread holds while it calls the given function, and that another thread waits for.
struct Plant {
    /// The waiting thread's name.
    thread: &'static str,
    /// The name that a profile shows for the function in which this thread waits. Empty if no profile shows the wait.
    leaf: &'static str,
    hold: Hold,
    wait: Box<dyn Fn() + Send>,
}

/// The function that the tests look for on the stack.
#[inline(never)]
fn planted(wait: &dyn Fn()) {
    wait();
    // Without this, the call above would be a tail call, and this frame would be missing.
    black_box(());
}

fn pause(time: Duration) {
    Signal::default().wait_timeout(time);
}

fn until(now: &AtomicU64, value: u64) {
    while now.load(Ordering::SeqCst) < value {
        std::thread::yield_now();
    }
}

/// How long the waiting thread has waited by its own clock, in all rounds together.
#[derive(Clone, Copy, Debug, Default)]
struct Truth {
    whole: Duration,
    /// Each round counts at most four times [`HELD`]: a thread that stalls may do so outside the wait that a profile
    /// sees.
    least: Duration,
}

/// Runs the plant.
fn run(plant: Plant) -> Truth {
    let (held, done) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let (its_held, its_done) = (held.clone(), done.clone());
    let waiter = spawn_thread(plant.thread, move || {
        let mut truth = Truth::default();
        for round in 1..=ROUNDS {
            until(&its_held, round);
            let began = clock::monotonic_ns();
            planted(&*plant.wait);
            let waited = Duration::from_nanos(clock::monotonic_ns() - began);
            truth.whole += waited;
            truth.least += waited.min(4 * HELD);
            its_done.store(round, Ordering::SeqCst);
        }
        truth
    });
    for round in 1..=ROUNDS {
        (plant.hold)(&|| {
            held.store(round, Ordering::SeqCst);
            pause(HELD);
        });
        until(&done, round);
    }
    waiter.join().expect("no panic")
}

/// Returns the waits of the planted function on that thread: count and nanoseconds.
fn found(profile: &Profile<Address>, thread: &str) -> (i64, i64) {
    let start = planted as *const () as Address;
    let is_planted = |frame: &Address| (start..start + 64).contains(frame);
    let of = profile.samples.iter().filter(|sample| sample.thread == thread && sample.frames.iter().any(is_planted));
    of.fold((0, 0), |(count, ns), sample| (count + sample.values[0], ns + sample.values[1]))
}

/// Checks that the wait in the profile is at least two thirds of `least` and at most four thirds of `whole`. On a busy
/// machine the waiting thread may lose its core after the test has read the clock and before the hook reads it.
/// `tests/measure` checks that the error is below a tenth.
fn check(profile: &Profile<Address>, thread: &str, truth: Truth) -> Result<(), String> {
    let (count, ns) = found(profile, thread);
    let seen = Duration::from_nanos(ns.unsigned_abs());
    if seen * 3 >= truth.least * 2 && seen * 3 <= truth.whole * 4 {
        Ok(())
    } else {
        Err(format!("{thread}: {count}: {seen:?} of {truth:?}"))
    }
}

/// Lets one test with plants run at a time: a profile is of the whole process, and their threads have the same names.
#[expect(clippy::disallowed_types, reason = "a lock that no profile sees")]
fn alone() -> std::sync::MutexGuard<'static, ()> {
    static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());
    ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn profiles_of(run: impl FnOnce()) -> LockProfiles {
    let window = Window::start(THRESHOLD).expect("all tests use this threshold");
    run();
    window.finish()
}

/// Returns plants of klad's own locks and conditions.
fn own_plants() -> [Plant; 4] {
    let (mutex, its_mutex) = both(Mutex::new(()));
    let (read, its_read) = both(RwLock::new(()));
    let (write, its_write) = both(RwLock::new(()));
    let (work, its_work) = both((Mutex::new(false), Condvar::new()));
    [
        Plant {
            thread: "own-mutex",
            leaf: "klad_base::sync::Mutex::lock",
            hold: Box::new(move |pause| {
                let _held = mutex.lock();
                pause();
            }),
            wait: Box::new(move || drop(its_mutex.lock())),
        },
        Plant {
            thread: "own-read",
            leaf: "klad_base::sync::RwLock::read",
            hold: Box::new(move |pause| {
                let _held = read.write();
                pause();
            }),
            wait: Box::new(move || drop(its_read.read())),
        },
        Plant {
            thread: "own-write",
            leaf: "klad_base::sync::RwLock::write",
            hold: Box::new(move |pause| {
                let _held = write.read();
                pause();
            }),
            wait: Box::new(move || drop(its_write.write())),
        },
        Plant {
            thread: "own-work",
            leaf: "klad_base::sync::Condvar::wait",
            hold: Box::new(move |pause| {
                pause();
                *work.0.lock() = true;
                work.1.notify_one();
            }),
            wait: Box::new(move || {
                let mut done = its_work.0.lock();
                while !*done {
                    done = its_work.1.wait(done, Cause::Others);
                }
                *done = false;
            }),
        },
    ]
}

fn idle_plant() -> Plant {
    let (queue, its_queue) = both(BoundedQueue::new(1));
    Plant {
        thread: "own-queue",
        leaf: "klad_base::sync::Condvar::wait",
        hold: Box::new(move |pause| {
            pause();
            queue.push(()).expect("the queue is not full");
        }),
        wait: Box::new(move || its_queue.pop().expect("the queue stays open")),
    }
}

/// Returns plants that bypass klad's locks and the POSIX hooks.
fn unwatched_plants() -> Vec<Plant> {
    #[expect(clippy::disallowed_types, reason = "a lock that no profile sees")]
    let (mutex, its_mutex) = both(std::sync::Mutex::new(()));
    let own = Plant {
        thread: "std-mutex",
        leaf: "",
        hold: Box::new(move |pause| {
            let _held = mutex.lock().expect("no panic");
            pause();
        }),
        wait: Box::new(move || drop(its_mutex.lock().expect("no panic"))),
    };
    #[cfg(feature = "posix-locks")]
    let posix = {
        let calls = posix::Calls::unwatched();
        posix::locks(calls).into_iter().chain(posix::conditions(calls))
    };
    #[cfg(not(feature = "posix-locks"))]
    let posix = std::iter::empty();
    posix.chain([own]).collect()
}

/// Returns plants of POSIX locks, if this build sees them.
fn posix_locks() -> impl Iterator<Item = Plant> {
    #[cfg(feature = "posix-locks")]
    return posix::locks(posix::Calls::watched()).into_iter();
    #[cfg(not(feature = "posix-locks"))]
    std::iter::empty()
}

/// Returns plants of POSIX conditions, if this build sees them.
fn posix_conditions() -> impl Iterator<Item = Plant> {
    #[cfg(feature = "posix-locks")]
    return posix::conditions(posix::Calls::watched()).into_iter();
    #[cfg(not(feature = "posix-locks"))]
    std::iter::empty()
}

fn both<T>(value: T) -> (Arc<T>, Arc<T>) {
    let value = Arc::new(value);
    (value.clone(), value)
}

#[test]
fn waits_for_klads_locks_have_their_place_and_time() {
    let _alone = alone();
    for plant in own_plants() {
        let (thread, mut truth) = (plant.thread, Truth::default());
        let seen = profiles_of(|| truth = run(plant));
        assert_eq!(check(&seen.mutex, thread, truth), Ok(()));
        assert_eq!(check(&seen.block, thread, truth), Ok(()));
    }
}

#[test]
fn idle_waits_are_in_block_and_not_in_mutex() {
    let _alone = alone();
    let mut truth = Truth::default();
    let seen = profiles_of(|| truth = run(idle_plant()));
    assert_eq!(check(&seen.block, "own-queue", truth), Ok(()));
    assert_eq!(found(&seen.mutex, "own-queue"), (0, 0));
    assert_eq!(found(&seen.conditions, "own-queue"), (0, 0));
}

#[test]
fn waits_for_posix_locks_have_their_place_and_time() {
    let _alone = alone();
    for plant in posix_locks() {
        let (thread, mut truth) = (plant.thread, Truth::default());
        let seen = profiles_of(|| truth = run(plant));
        assert_eq!(check(&seen.block, thread, truth), Ok(()));
        assert_eq!(check(&seen.mutex, thread, truth), Ok(()));
    }
    for plant in posix_conditions() {
        let (thread, mut truth) = (plant.thread, Truth::default());
        let seen = profiles_of(|| truth = run(plant));
        assert_eq!(check(&seen.block, thread, truth), Ok(()));
        assert_eq!(check(&seen.conditions, thread, truth), Ok(()));
        // The wait includes taking the mutex again. Taking the mutex the first time may also wait, but hardly ever.
        assert!(check(&seen.mutex, thread, truth).is_err());
    }
}

#[test]
fn twin_waits_past_the_hooks_are_not_found() {
    let _alone = alone();
    for plant in unwatched_plants() {
        let (thread, mut truth) = (plant.thread, Truth::default());
        let seen = profiles_of(|| truth = run(plant));
        assert!(check(&seen.block, thread, truth).is_err(), "{thread}");
    }
}

#[test]
fn open_waits_count_from_the_start_of_the_window_to_its_end() {
    let (mutex, its_mutex) = both(Mutex::new(()));
    let held = mutex.lock();
    let first = Window::start(THRESHOLD).expect("all tests use this threshold");
    let waiter = spawn_thread("open-wait", move || planted(&|| drop(its_mutex.lock())));
    let is_seen = || {
        let window = Window::start(THRESHOLD).expect("all tests use this threshold");
        found(&window.finish().mutex, "open-wait").0 == 1
    };
    while !is_seen() {
        std::thread::yield_now();
    }
    let second = Window::start(THRESHOLD).expect("all tests use this threshold");
    pause(4 * HELD);
    let second = second.finish().mutex;
    let (count, second_ns) = found(&second, "open-wait");
    assert_eq!((count, u128::try_from(second_ns)), (1, Ok(second.duration.as_nanos())), "exactly the whole window");
    assert!(second.facts.iter().any(|(name, value)| name == "still waiting at the end" && value != "0"));
    drop(held);
    waiter.join().expect("no panic");
    // Now the wait has ended, and counts once.
    let (count, first_ns) = found(&first.finish().mutex, "open-wait");
    assert_eq!(count, 1);
    assert!(first_ns > second_ns, "it began before the second window");
}

#[test]
fn a_wait_that_began_before_the_window_counts_from_its_start() {
    let (queue, its_queue) = both(BoundedQueue::new(1));
    let waiter = spawn_thread("late-wait", move || planted(&|| its_queue.pop().expect("the queue stays open")));
    let is_seen = || {
        let window = Window::start(THRESHOLD).expect("all tests use this threshold");
        found(&window.finish().block, "late-wait").0 == 1
    };
    while !is_seen() {
        std::thread::yield_now();
    }
    let window = Window::start(THRESHOLD).expect("all tests use this threshold");
    pause(4 * HELD);
    queue.push(()).expect("the queue is not full");
    waiter.join().expect("no panic");
    let block = window.finish().block;
    let (count, ns) = found(&block, "late-wait");
    assert_eq!(count, 1);
    assert!(
        u128::try_from(ns).is_ok_and(|ns| ns <= block.duration.as_nanos()),
        "time before the window does not count"
    );
    assert!(Duration::from_nanos(ns.unsigned_abs()) >= 3 * HELD, "{ns} ns");
}

#[test]
fn windows_share_a_threshold_and_another_one_is_an_error() {
    let window = Window::start(THRESHOLD).expect("all tests use this threshold");
    let other = Window::start(THRESHOLD).expect("all tests use this threshold");
    assert!(matches!(Window::start(2 * THRESHOLD), Err(Error::Busy(why)) if why.contains("10 µs")));
    drop(window);
    let mutex = Mutex::new(());
    for _ in 0..1000 {
        drop(mutex.lock());
    }
    let facts = other.finish().mutex.facts;
    let (name, waits) = &facts[0];
    let (_, acquisitions) = waits.split_once(" waits above 10 µs among ").expect("the documented format");
    let acquisitions: u64 = acquisitions.strip_suffix(" acquisitions").and_then(|n| n.parse().ok()).expect("a number");
    assert!(name == "waits" && acquisitions >= 1000, "{waits}");
    let names: Vec<_> = facts.iter().map(|(name, _)| name.as_str()).collect();
    for name in ["threshold", "waits below", "still waiting at the end", "lost", "clock", "version", "duration"] {
        assert!(names.contains(&name), "{name} is missing");
    }
}

#[test]
fn times_are_formatted_in_a_unit_without_a_fraction() {
    let micros = Duration::from_micros;
    let said = [
        Duration::ZERO,
        micros(2_000_000),
        micros(1_500_000),
        micros(1500),
        micros(10),
        Duration::from_nanos(1_000_001),
    ];
    assert_eq!(said.map(text_of), ["0 s", "2 s", "1500 ms", "1500 µs", "10 µs", "1000001 ns"]);
}
