//! Decides whether a thread polls at the end of a wait instead of sleeping, and measures the cost of polling.
//!
//! A sleep ends about 20 µs late. Many short sleeps also cost up to a third of a core, because each needs a timer, a
//! context switch and a wake-up, and in a virtual machine each of these leaves the guest. A thread therefore polls the
//! kernel during the last part of a timed wait, if no other thread wants the core. To know this, it reads from the
//! kernel how long it has run, and how long it was ready to run but had to wait. Called by `socket`.
//!
//! ```text
//!            half a second without competition        others wanted the core
//!   sleeps ─────────────────────────────────▶ polls ─────────────────────────▶ sleeps for 10 s, then 20 s, … 640 s
//! ```

use std::fs::File;
use std::os::unix::fs::FileExt as _;

use crate::schedule::{Nanos, SECOND};

/// The length of the part at the end of a wait in which a thread polls. Timers are late by less than this (4 to 27 µs
/// on a free core).
pub(super) const POLL_MAX: Nanos = 50_000;

/// The largest time that one poll without an event adds to the cost, nanoseconds. Such a poll takes a third of this. If
/// it takes longer, the time includes work of an interrupt or of another thread.
const POLL_COST_MAX: Nanos = 2_000;

/// The shortest time between two readings of the scheduler's times, nanoseconds.
const LOOK_INTERVAL: Nanos = SECOND / 2;

/// Polling is allowed while the thread waits for the core during at most one part in this many (8 %) of the time in
/// which it wants to run. The thread waits 0 to 5 % of that time if only the kernel's own threads compete (Linux 6.18,
/// two virtual cores), 25 % or more beside a server on the same core, and 10 % beside a thread at `nice` 10.
const WAITED_PARTS: u64 = 12;

/// Waits for the core are ignored if they take at most one part in this many (0.5 %) of all time, because a thread that
/// wakes up seldom waits a little each time.
const NOTHING_PARTS: u64 = 200;

/// After other threads have wanted the core, a thread does not poll for at least this long, nanoseconds. If other
/// threads want the core again within one [`LOOK_INTERVAL`] after the pause, the next pause is twice as long, up to
/// [`PAUSE_MAX`]. One such interval of undisturbed polling resets the pause to this minimum.
const PAUSE_MIN: Nanos = 10 * SECOND;
const PAUSE_MAX: Nanos = 640 * SECOND;

/// The times that the scheduler has counted for a thread so far, nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct SchedTimes {
    ran: Nanos,
    /// Time in which the thread was ready to run, but other threads ran on its core.
    waited: Nanos,
}

/// A source of the scheduler's times of a thread. They are `None` if the kernel does not give them.
pub(super) trait RunQueue {
    fn times(&mut self) -> Option<SchedTimes>;
}

/// The kernel's schedstat file of the thread that opened it.
#[derive(Debug)]
pub(super) struct Schedstat(Option<File>);

impl Schedstat {
    /// Opens the file of the calling thread.
    pub(super) fn of_this_thread() -> Schedstat {
        Schedstat(File::open("/proc/thread-self/schedstat").ok())
    }
}

impl RunQueue for Schedstat {
    fn times(&mut self) -> Option<SchedTimes> {
        let mut text = [0; 64];
        let count = self.0.as_ref()?.read_at(&mut text, 0).ok()?;
        parse_times(std::str::from_utf8(&text[..count]).ok()?)
    }
}

/// Parses three numbers: the time on a core, the time waiting for a core, and the number of time slices. Returns `None`
/// if the number of time slices is 0: a kernel without these statistics reports 0 even for a running thread. The time
/// on a core may be 0, because the time of the first slice is known only when the slice ends.
fn parse_times(text: &str) -> Option<SchedTimes> {
    let mut numbers = text.split_ascii_whitespace().map(str::parse);
    let (ran, waited, turns): (Nanos, Nanos, u64) =
        (numbers.next()?.ok()?, numbers.next()?.ok()?, numbers.next()?.ok()?);
    (turns > 0).then_some(SchedTimes { ran, waited })
}

/// Decides for one thread whether it polls, and counts the cost of polling.
#[derive(Debug)]
pub(super) struct Polling<Q> {
    queue: Q,
    /// The time of the last reading of the scheduler's times, and the times that were read.
    last_look: Option<(Nanos, Option<SchedTimes>)>,
    /// Whether the thread may poll at all (`--poll`).
    allowed: bool,
    polls: bool,
    /// The end of the current pause of polling.
    resumes: Nanos,
    pause: Nanos,
    /// CPU time in polls that found nothing.
    empty_poll_ns: Nanos,
}

impl<Q: RunQueue> Polling<Q> {
    pub(super) fn new(queue: Q, allowed: bool) -> Polling<Q> {
        Polling { queue, last_look: None, allowed, polls: false, resumes: 0, pause: PAUSE_MIN, empty_poll_ns: 0 }
    }

    /// Returns `true` if the thread is to poll at the end of a wait that begins `now`.
    pub(super) fn polls_now(&mut self, now: Nanos) -> bool {
        if !self.allowed {
            return false;
        }
        if self.last_look.is_none_or(|(then, _)| now.saturating_sub(then) >= LOOK_INTERVAL) {
            self.look(now);
        }
        self.polls
    }

    /// Reads the scheduler's times, and decides again whether the thread polls.
    fn look(&mut self, now: Nanos) {
        let times = self.queue.times();
        let Some((then, before)) = self.last_look.replace((now, times)) else { return };
        let (Some(times), Some(before)) = (times, before) else {
            self.polls = false;
            return;
        };
        let waited = times.waited.saturating_sub(before.waited);
        let wanted = times.ran.saturating_sub(before.ran) + waited;
        let quiet = waited.saturating_mul(WAITED_PARTS) <= wanted
            || waited.saturating_mul(NOTHING_PARTS) <= now.saturating_sub(then);
        match (self.polls, quiet) {
            (true, true) => self.pause = PAUSE_MIN,
            (true, false) => {
                self.polls = false;
                self.resumes = now.saturating_add(self.pause);
                self.pause = (self.pause * 2).min(PAUSE_MAX);
            }
            (false, quiet) => self.polls = quiet && now >= self.resumes,
        }
    }

    /// Forgets what was measured about other threads. Called when the clock's origin changes.
    pub(super) fn reset(&mut self) {
        (self.last_look, self.polls, self.resumes, self.pause) = (None, false, 0, PAUSE_MIN);
    }

    /// Records a poll from `begin` to `end` that found nothing, in a wait until `until`.
    pub(super) fn add_empty_poll(&mut self, begin: Nanos, end: Nanos, until: Nanos) {
        self.empty_poll_ns += end.min(until).saturating_sub(begin).min(POLL_COST_MAX);
    }

    /// Returns the CPU time of polls that found nothing. The thread could have slept in this time.
    pub(super) fn empty_poll_ns(&self) -> Nanos {
        self.empty_poll_ns
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// A scheduler whose times the test sets.
    struct FakeRunQueue<'c>(&'c Cell<Option<SchedTimes>>);

    impl RunQueue for FakeRunQueue<'_> {
        fn times(&mut self) -> Option<SchedTimes> {
            self.0.get()
        }
    }

    fn times(ran: Nanos, waited: Nanos) -> SchedTimes {
        SchedTimes { ran, waited }
    }

    /// Returns the seconds of `length` in which a thread polls. The thread wants `wants` percent of a core, and other
    /// threads take `others(second)` percent of that.
    fn polled(length: u64, wants: u64, others: impl Fn(u64) -> u64) -> Vec<u64> {
        const STEP: Nanos = SECOND / 100;
        let said = Cell::new(Some(times(1, 0)));
        let mut polling = Polling::new(FakeRunQueue(&said), true);
        let mut seconds = Vec::new();
        for now in (0..length * SECOND).step_by(usize::try_from(STEP).expect("small")) {
            let second = now / SECOND;
            if polling.polls_now(now) && seconds.last() != Some(&second) {
                seconds.push(second);
            }
            let SchedTimes { ran, waited } = said.get().expect("set above");
            let (wanted, part) = (STEP * wants / 100, others(second));
            said.set(Some(times(ran + wanted * (100 - part) / 100, waited + wanted * part / 100)));
        }
        seconds
    }

    #[test]
    fn a_free_core_is_polled_on_after_a_quiet_half_second() {
        let all: Vec<u64> = (0..20).collect();
        assert_eq!(polled(20, 100, |_| 0), all);
        assert_eq!(polled(20, 100, |_| 8), all, "the kernel's own threads need some of every core");
        assert_eq!(polled(20, 1, |_| 40), all, "too little to matter");
    }

    #[test]
    fn a_thread_without_permission_never_polls() {
        let said = Cell::new(Some(times(1, 0)));
        let polls = |allowed| {
            let mut polling = Polling::new(FakeRunQueue(&said), allowed);
            (0..20).any(|half| polling.polls_now(half * LOOK_INTERVAL))
        };
        assert!(polls(true) && !polls(false));
    }

    #[test]
    fn a_core_that_others_want_is_never_polled_on() {
        assert_eq!(polled(2000, 100, |_| 30), [0; 0]);
        assert_eq!(polled(2000, 5, |_| 30), [0; 0]);
        assert_eq!(polled(2000, 100, |_| 10), [0; 0], "a thread at nice 10");
    }

    #[test]
    fn a_competitor_stops_polling_and_each_retry_comes_later() {
        // The core is free while this thread sleeps, and wanted while it polls: another thread yields to it.
        let said = Cell::new(Some(times(1, 0)));
        let mut polling = Polling::new(FakeRunQueue(&said), true);
        let mut began = Vec::new();
        let mut polls = false;
        for half in 0..4000 {
            let before = std::mem::replace(&mut polls, polling.polls_now(half * LOOK_INTERVAL));
            if polls && !before {
                began.push(half / 2);
            }
            let SchedTimes { ran, waited } = said.get().expect("set above");
            said.set(Some(times(ran + LOOK_INTERVAL / 2, waited + if polls { LOOK_INTERVAL / 2 } else { 0 })));
        }
        // It polls for half a second each time, then pauses for 10 s, 20 s and so on, at most 640 s.
        assert_eq!(began, [0, 11, 31, 72, 152, 313, 633, 1274, 1914]);
        assert_eq!(
            polled(40, 100, |second| if second == 5 { 50 } else { 0 }).len(),
            40 - 9,
            "one pause, then polling as before"
        );
    }

    #[test]
    fn nothing_is_polled_without_the_scheduler_s_times() {
        let said = Cell::new(None);
        let mut polling = Polling::new(FakeRunQueue(&said), true);
        assert!((0..10).all(|half| !polling.polls_now(half * LOOK_INTERVAL)));
        assert_eq!(parse_times("0 0 0\n"), None, "the kernel keeps no statistics");
        assert_eq!(parse_times("12 3 4\n"), Some(times(12, 3)));
        assert_eq!(parse_times("0 3 1\n"), Some(times(0, 3)), "the first time slice has just begun");
        assert_eq!(parse_times("12 3\n"), None);
    }

    #[test]
    fn a_new_origin_of_times_restarts_the_measurement() {
        let said = Cell::new(Some(times(1, 0)));
        let mut polling = Polling::new(FakeRunQueue(&said), true);
        polling.polls_now(60 * SECOND);
        assert!(polling.polls_now(61 * SECOND));
        polling.reset();
        assert!(!polling.polls_now(0));
        said.set(Some(times(LOOK_INTERVAL / 2, LOOK_INTERVAL / 2)));
        assert!(!polling.polls_now(LOOK_INTERVAL), "others had half of the core");
    }

    #[test]
    fn empty_polls_count_up_to_the_end_of_the_wait_and_without_interruptions() {
        let mut polling = Polling::new(Schedstat(None), true);
        polling.add_empty_poll(1_000, 1_400, 9_000);
        polling.add_empty_poll(2_000, 8_000, 9_000);
        assert_eq!(polling.empty_poll_ns(), 400 + POLL_COST_MAX);
        polling.add_empty_poll(8_900, 9_500, 9_000);
        polling.add_empty_poll(9_100, 9_500, 9_000);
        assert_eq!(polling.empty_poll_ns(), 400 + POLL_COST_MAX + 100);
    }

    #[test]
    fn the_kernel_s_times_are_read_if_it_keeps_them() {
        let keeps = std::fs::read_to_string("/proc/self/schedstat").is_ok_and(|text| parse_times(&text).is_some());
        assert_eq!(Schedstat::of_this_thread().times().is_some(), keeps);
    }
}
