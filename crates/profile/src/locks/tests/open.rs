//! Waits that began before anybody looked and are not over when nobody looks any more, and what their stacks begin with.

use std::cell::RefCell;

use crate::cpu_tests::in_a_process_of_its_own;
use crate::locks::tests::*;
use crate::symbols::Symbols;

/// Whether a thread sleeps in the kernel.
fn sleeps(tid: u64) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/self/task/{tid}/stat")).unwrap_or_default();
    stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('S'))
}

/// A window in the middle of one wait of the plant.
fn seen_amid(plant: Plant) -> Seen {
    let (wait, seen) = (RefCell::new(Some(plant.wait)), RefCell::new(None));
    let waiter = RefCell::new(None);
    (plant.hold)(&|| {
        let tid = Arc::new(AtomicU64::new(0));
        let (its_tid, wait) = (tid.clone(), wait.take().expect("it is held once"));
        *waiter.borrow_mut() = Some(spawn_thread(plant.thread, move || {
            let own = rustix::thread::gettid().as_raw_nonzero().get();
            its_tid.store(u64::from(own.unsigned_abs()), Ordering::SeqCst);
            planted(&*wait);
        }));
        until(&tid, 1);
        while !sleeps(tid.load(Ordering::SeqCst)) {
            std::thread::yield_now();
        }
        let window = Window::start(THRESHOLD).expect("nobody has another threshold");
        pause(HELD);
        *seen.borrow_mut() = Some(window.finish());
    });
    waiter.take().expect("it was started").join().expect("no panic");
    seen.take().expect("it was held")
}

/// Whether all of the window, and not more, is the planted wait's.
fn is_all_of_it(profile: &Profile<Address>, thread: &str) -> Result<(), String> {
    let (count, ns) = found(profile, thread);
    let right = count == 1 && u128::try_from(ns) == Ok(profile.duration.as_nanos());
    if right { Ok(()) } else { Err(format!("{thread}: {count}, {ns} ns of {:?}", profile.duration)) }
}

/// Whether stacks of the thread begin with what it has called, and nothing of the machinery is on them.
fn begins_with_its_call(profile: &Profile<Name>, thread: &str, leaf: &str) -> Result<(), String> {
    let mut stacks = profile.samples.iter().filter(|sample| sample.thread == thread).map(|sample| &sample.frames);
    let right = stacks.clone().any(|frames| frames.first().is_some_and(|first| &**first == leaf))
        && !stacks.any(|frames| frames.iter().any(|frame| frame.contains("klad_base::sampling")));
    let frames = || profile.samples.iter().filter(|sample| sample.thread == thread).map(|sample| &sample.frames);
    if right { Ok(()) } else { Err(format!("{thread}: not {leaf}: {:#?}", frames().collect::<Vec<_>>())) }
}

#[test]
fn waits_from_before_to_after_the_window_are_all_of_it() {
    for plant in own_plants().into_iter().chain(posix_locks()) {
        let thread = plant.thread;
        let seen = seen_amid(plant);
        assert_eq!(is_all_of_it(&seen.block, thread), Ok(()));
        assert_eq!(is_all_of_it(&seen.mutex, thread), Ok(()));
    }
    for plant in posix_conditions() {
        let thread = plant.thread;
        let seen = seen_amid(plant);
        assert_eq!(is_all_of_it(&seen.block, thread), Ok(()));
        assert_eq!(is_all_of_it(&seen.conditions, thread), Ok(()));
    }
    let seen = seen_amid(idle_plant());
    assert_eq!(is_all_of_it(&seen.block, "own-queue"), Ok(()));
    assert_eq!(found(&seen.mutex, "own-queue"), (0, 0), "nobody keeps it");
}

#[test]
fn twin_waits_past_the_hooks_are_missing() {
    for plant in unwatched_plants() {
        let thread = plant.thread;
        assert!(is_all_of_it(&seen_amid(plant).block, thread).is_err(), "{thread}");
    }
}

#[test]
fn stacks_begin_with_what_was_called() {
    let symbols = Symbols::of_this_process().expect("there is /proc");
    let plants = own_plants().into_iter().chain([idle_plant()]).chain(posix_locks());
    for plant in plants.chain(posix_conditions()) {
        let (thread, leaf) = (plant.thread, plant.leaf);
        // While it waits, and when it has waited.
        let window = Window::start(THRESHOLD).expect("nobody has another threshold");
        let amid = seen_amid(plant).named(|profile| symbols.name(profile));
        let all = window.finish().named(|profile| symbols.name(profile));
        for profile in [amid.block, all.block] {
            assert_eq!(begins_with_its_call(&profile, thread, leaf), Ok(()));
            // The planted defects: a frame of the machinery, and a call that is not there.
            let (mut more, mut less) = (profile.clone(), profile);
            for sample in more.samples.iter_mut().chain(&mut less.samples) {
                sample.frames.insert(0, "klad_base::sampling::waits::timed".into());
            }
            assert!(begins_with_its_call(&more, thread, leaf).is_err());
            for sample in &mut less.samples {
                sample.frames.drain(..2);
            }
            assert!(begins_with_its_call(&less, thread, leaf).is_err());
        }
    }
}

/// More threads than slots.
const CROWD: usize = 1100;

#[test]
fn waits_without_a_slot_are_counted() {
    let test = "waits_without_a_slot_are_counted";
    if in_a_process_of_its_own(module_path!(), test) {
        return;
    }
    let fact = |seen: &Seen| -> usize {
        let mut facts = seen.block.facts.iter();
        let fact = facts.find(|(name, _)| name == "waits that could not be seen before their end");
        fact.expect("it is there").1.parse().expect("a number")
    };
    assert_eq!(fact(&seen_while(|| {})), 0, "few threads wait");
    let (signal, waiting) = (Arc::new((Mutex::new(false), Condvar::new())), Arc::new(AtomicU64::new(0)));
    let threads: Vec<_> = (0..CROWD)
        .map(|_| {
            let (signal, waiting) = (signal.clone(), waiting.clone());
            spawn_thread("crowd", move || {
                let mut raised = signal.0.lock();
                // Under the lock, which the wait gives up.
                waiting.fetch_add(1, Ordering::SeqCst);
                while !*raised {
                    raised = signal.1.wait(raised, Cause::Idle);
                }
            })
        })
        .collect();
    until(&waiting, CROWD as u64);
    drop(signal.0.lock());
    // They began before, and have not ended.
    let amid = fact(&seen_while(|| {}));
    assert!(amid >= CROWD - 1024, "{amid}");
    *signal.0.lock() = true;
    signal.1.notify_all();
    for thread in threads {
        thread.join().expect("no panic");
    }
    assert_eq!(fact(&seen_while(|| {})), 0, "all are over");
}
