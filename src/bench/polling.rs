//! Short waits without sleep: whether there may be any, and what they cost.
//!
//! To sleep for some 20 µs costs a thread a timer, a switch and a wake-up; in a virtual machine each of these is a way out of
//! it and back, which at tens of thousands of starts a second is a third of a core, and the wake-up is late. Asking the kernel
//! until the time has come costs neither, if nobody else wants the core. So that is looked at: the kernel says how long this
//! thread has been ready to run and was not. Called by `socket`.

use std::fs::File;
use std::os::unix::fs::FileExt as _;

use super::schedule::{Nanos, SECOND};

/// Waits up to this are polled. Longer ones are worth a sleep: timers end 4 to 20 µs late, with a core to spare.
const POLL_MAX: Nanos = 50_000;

/// A poll that finds nothing takes a third of this; what takes longer has done something else as well: an interrupt's work,
/// or another thread's.
const POLL_COST_MAX: Nanos = 2_000;

/// The run queue is looked at so often while waits are polled.
const LOOK_INTERVAL: Nanos = SECOND / 10;

/// To wait for the core for one part in so many is usual where only the kernel's own threads want it too.
const WAITED_PARTS: u64 = 10;

/// After others have wanted the core, waits are slept through for so long; twice as long each time, up to the longest.
const REST_MIN: Nanos = 10 * SECOND;
const REST_MAX: Nanos = 640 * SECOND;

/// What says for how many nanoseconds the calling thread has waited for a core so far; `None`: nothing does.
pub(super) trait RunQueue {
    fn waited(&mut self) -> Option<Nanos>;
}

/// The kernel's account of the thread that opened it.
#[derive(Debug)]
pub(super) struct Schedstat(Option<File>);

impl Schedstat {
    /// Of the calling thread.
    pub(super) fn of_this_thread() -> Schedstat {
        Schedstat(File::open("/proc/thread-self/schedstat").ok())
    }
}

impl RunQueue for Schedstat {
    fn waited(&mut self) -> Option<Nanos> {
        // Three numbers: time on a core, time waiting for one, turns.
        let mut text = [0; 64];
        let count = self.0.as_ref()?.read_at(&mut text, 0).ok()?;
        std::str::from_utf8(&text[..count]).ok()?.split_ascii_whitespace().nth(1)?.parse().ok()
    }
}

/// Decides for one thread, and counts.
#[derive(Debug)]
pub(super) struct Polling<Q> {
    queue: Q,
    /// When the run queue was looked at, and what it said.
    looked: Option<(Nanos, Nanos)>,
    /// Not before.
    resumes: Nanos,
    rest: Nanos,
    /// Time in polls that found nothing.
    fruitless: Nanos,
}

impl<Q: RunQueue> Polling<Q> {
    pub(super) fn new(queue: Q) -> Polling<Q> {
        Polling { queue, looked: None, resumes: 0, rest: REST_MIN, fruitless: 0 }
    }

    /// Whether to poll at `now` in a wait until `until`.
    pub(super) fn may(&mut self, now: Nanos, until: Nanos) -> bool {
        if until.saturating_sub(now) > POLL_MAX || now < self.resumes {
            return false;
        }
        match self.looked {
            Some((then, _)) if now.saturating_sub(then) < LOOK_INTERVAL => true,
            last => self.look(now, last),
        }
    }

    /// Looks at the run queue.
    fn look(&mut self, now: Nanos, last: Option<(Nanos, Nanos)>) -> bool {
        let Some(waited) = self.queue.waited() else {
            self.resumes = Nanos::MAX;
            return false;
        };
        self.looked = Some((now, waited));
        let Some((then, before)) = last else { return true };
        if waited.saturating_sub(before).saturating_mul(WAITED_PARTS) <= now.saturating_sub(then) {
            self.rest = REST_MIN;
            return true;
        }
        self.resumes = now.saturating_add(self.rest);
        self.rest = (self.rest * 2).min(REST_MAX);
        self.looked = None;
        false
    }

    /// Times count from another moment from now on.
    pub(super) fn forget_times(&mut self) {
        (self.looked, self.resumes) = (None, 0);
    }

    /// A poll from `begin` to `end` has found nothing.
    pub(super) fn found_nothing(&mut self, begin: Nanos, end: Nanos) {
        self.fruitless += end.saturating_sub(begin).min(POLL_COST_MAX);
    }

    /// CPU time that was spent where others would have slept.
    pub(super) fn fruitless(&self) -> Nanos {
        self.fruitless
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// What the kernel would say.
    struct Said<'c>(&'c Cell<Option<Nanos>>);

    impl RunQueue for Said<'_> {
        fn waited(&mut self) -> Option<Nanos> {
            self.0.get()
        }
    }

    /// How many of a thousand waits of `wait` are polled in `length`, on a core of which others take `others` parts in a
    /// hundred.
    fn polled(others: u64, length: Nanos, wait: Nanos) -> u64 {
        let said = Cell::new(Some(0));
        let mut polling = Polling::new(Said(&said));
        let (mut now, mut polled) = (0, 0);
        while now < length {
            polled += u64::from(polling.may(now, now + wait));
            now += wait;
            said.set(Some(now * others / 100));
        }
        polled * 1000 / (length / wait)
    }

    #[test]
    fn a_core_of_its_own_is_polled_on_and_a_shared_one_hardly_ever() {
        assert_eq!(polled(0, 20 * SECOND, 20_000), 1000);
        assert_eq!(polled(9, 20 * SECOND, 20_000), 1000, "a kernel's threads need some of every core");
        let shared = polled(40, 120 * SECOND, 20_000);
        assert!((1..10).contains(&shared), "{shared} in a thousand");
    }

    #[test]
    fn long_waits_are_slept_through() {
        assert_eq!(polled(0, 5 * SECOND, POLL_MAX), 1000);
        assert_eq!(polled(0, 5 * SECOND, POLL_MAX + 1), 0);
    }

    #[test]
    fn a_clock_that_is_set_back_is_no_reason_to_poll_unseen() {
        let said = Cell::new(Some(0));
        let mut polling = Polling::new(Said(&said));
        assert!(polling.may(60 * SECOND, 60 * SECOND));
        polling.forget_times();
        assert!(polling.may(0, 0));
        said.set(Some(LOOK_INTERVAL / 2));
        assert!(!polling.may(LOOK_INTERVAL, LOOK_INTERVAL), "others had half of the core");
    }

    #[test]
    fn nothing_is_polled_where_the_kernel_does_not_say_who_waits() {
        assert!(!Polling::new(Said(&Cell::new(None))).may(0, 1000));
    }

    #[test]
    fn polls_that_find_nothing_are_counted_but_not_what_interrupted_them() {
        let mut polling = Polling::new(Schedstat(None));
        polling.found_nothing(1_000, 1_400);
        polling.found_nothing(2_000, 9_000);
        assert_eq!(polling.fruitless(), 400 + POLL_COST_MAX);
    }

    #[test]
    fn the_kernel_accounts_for_this_thread() {
        assert!(Schedstat::of_this_thread().waited().is_some(), "/proc/thread-self/schedstat");
    }
}
