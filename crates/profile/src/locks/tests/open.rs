//! Tests of waits that begin before a window and end after it, and of the first frames of stacks.

use std::cell::RefCell;

use crate::cpu_tests::in_own_process;
use crate::locks::tests::*;
use crate::symbols::Symbols;

/// Returns whether a thread sleeps in the kernel.
fn sleeps(tid: u64) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/self/task/{tid}/stat")).unwrap_or_default();
    stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('S'))
}

/// Returns the profiles of a window inside one wait of the plant.
fn profiles_during_wait(plant: Plant) -> LockProfiles {
    let (wait, seen) = (RefCell::new(Some(plant.wait)), RefCell::new(None));
    let waiter = RefCell::new(None);
    (plant.hold)(&|| {
        let tid = Arc::new(AtomicU64::new(0));
        let (its_tid, wait) = (tid.clone(), wait.take().expect("the lock is held once"));
        *waiter.borrow_mut() = Some(spawn_thread(plant.thread, move || {
            let own = rustix::thread::gettid().as_raw_nonzero().get();
            its_tid.store(u64::from(own.unsigned_abs()), Ordering::SeqCst);
            planted(&*wait);
        }));
        until(&tid, 1);
        while !sleeps(tid.load(Ordering::SeqCst)) {
            std::thread::yield_now();
        }
        let window = Window::start(THRESHOLD).expect("all tests use this threshold");
        pause(HELD);
        *seen.borrow_mut() = Some(window.finish());
    });
    waiter.take().expect("the waiter was started").join().expect("no panic");
    seen.take().expect("the lock was held")
}

/// Checks that the planted wait covers exactly the whole window.
fn covers_window(profile: &Profile<Address>, thread: &str) -> Result<(), String> {
    let (count, ns) = found(profile, thread);
    let right = count == 1 && u128::try_from(ns) == Ok(profile.duration.as_nanos());
    if right { Ok(()) } else { Err(format!("{thread}: {count}, {ns} ns of {:?}", profile.duration)) }
}

/// Checks that at least one of the thread's stacks begins with the called function, and that none of them contains a
/// frame of the recording code.
fn begins_with_call(profile: &Profile<Name>, thread: &str, leaf: &str) -> Result<(), String> {
    let mut stacks = profile.samples.iter().filter(|sample| sample.thread == thread).map(|sample| &sample.frames);
    let right = stacks.clone().any(|frames| frames.first().is_some_and(|first| &**first == leaf))
        && !stacks.any(|frames| frames.iter().any(|frame| frame.contains("klad_base::sampling")));
    let frames = || profile.samples.iter().filter(|sample| sample.thread == thread).map(|sample| &sample.frames);
    if right { Ok(()) } else { Err(format!("{thread}: not {leaf}: {:#?}", frames().collect::<Vec<_>>())) }
}

#[test]
fn waits_that_span_the_window_cover_all_of_it() {
    let _alone = alone();
    for plant in own_plants().into_iter().chain(posix_locks()) {
        let thread = plant.thread;
        let seen = profiles_during_wait(plant);
        assert_eq!(covers_window(&seen.block, thread), Ok(()));
        assert_eq!(covers_window(&seen.mutex, thread), Ok(()));
    }
    for plant in posix_conditions() {
        let thread = plant.thread;
        let seen = profiles_during_wait(plant);
        assert_eq!(covers_window(&seen.block, thread), Ok(()));
        assert_eq!(covers_window(&seen.conditions, thread), Ok(()));
    }
    let seen = profiles_during_wait(idle_plant());
    assert_eq!(covers_window(&seen.block, "own-queue"), Ok(()));
    assert_eq!(found(&seen.mutex, "own-queue"), (0, 0), "an idle wait is not contention");
}

#[test]
fn twin_open_waits_past_the_hooks_are_not_found() {
    let _alone = alone();
    for plant in unwatched_plants() {
        let thread = plant.thread;
        assert!(covers_window(&profiles_during_wait(plant).block, thread).is_err(), "{thread}");
    }
}

#[test]
fn stacks_begin_with_the_called_function() {
    let _alone = alone();
    let symbols = Symbols::of_this_process().expect("there is /proc");
    let plants = own_plants().into_iter().chain([idle_plant()]).chain(posix_locks());
    for plant in plants.chain(posix_conditions()) {
        let (thread, leaf) = (plant.thread, plant.leaf);
        // This checks the stacks of an open wait and of finished waits.
        let window = Window::start(THRESHOLD).expect("all tests use this threshold");
        let amid = profiles_during_wait(plant).named(|profile| symbols.name(profile));
        let all = window.finish().named(|profile| symbols.name(profile));
        for profile in [amid.block, all.block] {
            assert_eq!(begins_with_call(&profile, thread, leaf), Ok(()));
            // The planted defects: a frame of the recording code, and a missing call.
            let (mut more, mut less) = (profile.clone(), profile);
            for sample in more.samples.iter_mut().chain(&mut less.samples) {
                sample.frames.insert(0, "klad_base::sampling::waits::timed".into());
            }
            assert!(begins_with_call(&more, thread, leaf).is_err());
            for sample in &mut less.samples {
                sample.frames.drain(..2);
            }
            assert!(begins_with_call(&less, thread, leaf).is_err());
        }
    }
}

/// More threads than there are slots.
const CROWD: usize = 1100;

#[test]
fn waits_without_a_slot_are_counted() {
    let test = "waits_without_a_slot_are_counted";
    if in_own_process(module_path!(), test) {
        return;
    }
    let fact = |seen: &LockProfiles| -> usize {
        let mut facts = seen.block.facts.iter();
        let fact = facts.find(|(name, _)| name == "waits that could not be seen before their end");
        fact.expect("the fact is present").1.parse().expect("a number")
    };
    assert_eq!(fact(&profiles_of(|| {})), 0, "few threads wait");
    let (signal, waiting) = (Arc::new((Mutex::new(false), Condvar::new())), Arc::new(AtomicU64::new(0)));
    let threads: Vec<_> = (0..CROWD)
        .map(|_| {
            let (signal, waiting) = (signal.clone(), waiting.clone());
            spawn_thread("crowd", move || {
                let mut raised = signal.0.lock();
                // This runs under the lock, which the wait releases.
                waiting.fetch_add(1, Ordering::SeqCst);
                while !*raised {
                    raised = signal.1.wait(raised, Cause::Idle);
                }
            })
        })
        .collect();
    until(&waiting, CROWD as u64);
    drop(signal.0.lock());
    // These waits began before the window and have not ended.
    let amid = fact(&profiles_of(|| {}));
    assert!(amid >= CROWD - 1024, "{amid}");
    *signal.0.lock() = true;
    signal.1.notify_all();
    for thread in threads {
        thread.join().expect("no panic");
    }
    assert_eq!(fact(&profiles_of(|| {})), 0, "all waits have ended");
}
