//! The ends of waits without sleep: whether there may be any, and what they cost.
//!
//! A sleep ends some 20 µs late, and where there are many, each with its timer, its switch and its wake-up, they cost a third of a
//! core: in a virtual machine each of these is a way out of it and back. So the last part of a wait for a time is spent asking the
//! kernel, if the core is not wanted by others. That is looked at: the kernel says how long this thread has run, and how long it was
//! ready to run and did not. Called by `socket`.
//!
//! ```text
//!            a quiet half second, after the rest          others wanted the core
//!   asleep ─────────────────────────────────────▶ polls ─────────────────────────▶ asleep, for 10 s, 20, ... 640
//! ```

use std::fs::File;
use std::os::unix::fs::FileExt as _;

use crate::schedule::{Nanos, SECOND};

/// The last part of a wait, which is polled: longer than timers end late (4 to 27 µs, with a core to spare).
pub(super) const POLL_MAX: Nanos = 50_000;

/// A poll that finds nothing takes a third of this; what takes longer has done something else as well: an interrupt's work,
/// or another thread's.
const POLL_COST_MAX: Nanos = 2_000;

/// The run queue is looked at so often.
const LOOK_INTERVAL: Nanos = SECOND / 2;

/// To wait for the core for one part in so many of the time in which it is wanted is usual where only the kernel's own threads want
/// it too (0 to 5 %, Linux 6.18, two virtual cores); beside a server on the same core it is a quarter and more, beside a thread at
/// `nice` 10 a tenth.
const WAITED_PARTS: u64 = 12;

/// So small a part of all time is nothing: who wakes up seldom needs some time for each.
const NOTHING_PARTS: u64 = 200;

/// After others have wanted the core, waits are slept through for so long; twice as long each time, up to the longest.
const REST_MIN: Nanos = 10 * SECOND;
const REST_MAX: Nanos = 640 * SECOND;

/// What a thread has had of a core so far, nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Account {
    ran: Nanos,
    /// Ready to run, while others did.
    waited: Nanos,
}

/// What says so; `None`: nothing does.
pub(super) trait RunQueue {
    fn account(&mut self) -> Option<Account>;
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
    fn account(&mut self) -> Option<Account> {
        let mut text = [0; 64];
        let count = self.0.as_ref()?.read_at(&mut text, 0).ok()?;
        account_of(std::str::from_utf8(&text[..count]).ok()?)
    }
}

/// Three numbers: time on a core, time waiting for one, turns. A kernel that keeps no account says 0 of the turns, too, of a thread
/// that has one; the time of the first is known when it ends.
fn account_of(text: &str) -> Option<Account> {
    let mut numbers = text.split_ascii_whitespace().map(str::parse);
    let (ran, waited, turns): (Nanos, Nanos, u64) =
        (numbers.next()?.ok()?, numbers.next()?.ok()?, numbers.next()?.ok()?);
    (turns > 0).then_some(Account { ran, waited })
}

/// Decides for one thread, and counts.
#[derive(Debug)]
pub(super) struct Polling<Q> {
    queue: Q,
    /// When the run queue was looked at, and what it said.
    looked: Option<(Nanos, Option<Account>)>,
    /// `--poll`: else waits are slept through.
    allowed: bool,
    polls: bool,
    /// Not before.
    resumes: Nanos,
    rest: Nanos,
    /// Time in polls that found nothing.
    fruitless: Nanos,
}

impl<Q: RunQueue> Polling<Q> {
    pub(super) fn new(queue: Q, allowed: bool) -> Polling<Q> {
        Polling { queue, looked: None, allowed, polls: false, resumes: 0, rest: REST_MIN, fruitless: 0 }
    }

    /// Whether the end of a wait that begins `now` is polled.
    pub(super) fn may(&mut self, now: Nanos) -> bool {
        if !self.allowed {
            return false;
        }
        if self.looked.is_none_or(|(then, _)| now.saturating_sub(then) >= LOOK_INTERVAL) {
            self.look(now);
        }
        self.polls
    }

    /// Looks at the run queue.
    fn look(&mut self, now: Nanos) {
        let account = self.queue.account();
        let Some((then, before)) = self.looked.replace((now, account)) else { return };
        let (Some(account), Some(before)) = (account, before) else {
            self.polls = false;
            return;
        };
        let waited = account.waited.saturating_sub(before.waited);
        let wanted = account.ran.saturating_sub(before.ran) + waited;
        let quiet = waited.saturating_mul(WAITED_PARTS) <= wanted
            || waited.saturating_mul(NOTHING_PARTS) <= now.saturating_sub(then);
        match (self.polls, quiet) {
            (true, true) => self.rest = REST_MIN,
            (true, false) => {
                self.polls = false;
                self.resumes = now.saturating_add(self.rest);
                self.rest = (self.rest * 2).min(REST_MAX);
            }
            (false, quiet) => self.polls = quiet && now >= self.resumes,
        }
    }

    /// Times count from another moment from now on.
    pub(super) fn forget_times(&mut self) {
        (self.looked, self.polls, self.resumes, self.rest) = (None, false, 0, REST_MIN);
    }

    /// A poll from `begin` to `end` has found nothing, in a wait until `until`.
    pub(super) fn found_nothing(&mut self, begin: Nanos, end: Nanos, until: Nanos) {
        self.fruitless += end.min(until).saturating_sub(begin).min(POLL_COST_MAX);
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
    struct Said<'c>(&'c Cell<Option<Account>>);

    impl RunQueue for Said<'_> {
        fn account(&mut self) -> Option<Account> {
            self.0.get()
        }
    }

    fn account(ran: Nanos, waited: Nanos) -> Account {
        Account { ran, waited }
    }

    /// In which seconds of `length` it polls, on a core of which others take `others(second)` parts in a hundred of what is
    /// wanted; the thread wants `wants` parts in a hundred of it.
    fn polled(length: u64, wants: u64, others: impl Fn(u64) -> u64) -> Vec<u64> {
        const STEP: Nanos = SECOND / 100;
        let said = Cell::new(Some(account(1, 0)));
        let mut polling = Polling::new(Said(&said), true);
        let mut seconds = Vec::new();
        for now in (0..length * SECOND).step_by(usize::try_from(STEP).expect("small")) {
            let second = now / SECOND;
            if polling.may(now) && seconds.last() != Some(&second) {
                seconds.push(second);
            }
            let Account { ran, waited } = said.get().expect("set above");
            let (wanted, part) = (STEP * wants / 100, others(second));
            said.set(Some(account(ran + wanted * (100 - part) / 100, waited + wanted * part / 100)));
        }
        seconds
    }

    #[test]
    fn a_core_of_its_own_is_polled_on_after_a_quiet_half_second() {
        let all: Vec<u64> = (0..20).collect();
        assert_eq!(polled(20, 100, |_| 0), all);
        assert_eq!(polled(20, 100, |_| 8), all, "a kernel's threads need some of every core");
        assert_eq!(polled(20, 1, |_| 40), all, "so little that nobody misses it");
    }

    #[test]
    fn a_thread_that_may_not_never_polls() {
        let said = Cell::new(Some(account(1, 0)));
        let polls = |allowed| {
            let mut polling = Polling::new(Said(&said), allowed);
            (0..20).any(|half| polling.may(half * LOOK_INTERVAL))
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
    fn who_comes_later_is_made_way_for_and_looked_for_less_and_less() {
        // Quiet as long as it sleeps, and not when it polls: somebody who makes way for it.
        let said = Cell::new(Some(account(1, 0)));
        let mut polling = Polling::new(Said(&said), true);
        let mut began = Vec::new();
        let mut polls = false;
        for half in 0..4000 {
            let before = std::mem::replace(&mut polls, polling.may(half * LOOK_INTERVAL));
            if polls && !before {
                began.push(half / 2);
            }
            let Account { ran, waited } = said.get().expect("set above");
            said.set(Some(account(ran + LOOK_INTERVAL / 2, waited + if polls { LOOK_INTERVAL / 2 } else { 0 })));
        }
        // Half a second each, then 10 s, 20 and so on, and never more than 640.
        assert_eq!(began, [0, 11, 31, 72, 152, 313, 633, 1274, 1914]);
        assert_eq!(
            polled(40, 100, |second| if second == 5 { 50 } else { 0 }).len(),
            40 - 9,
            "one time, then as before"
        );
    }

    #[test]
    fn nothing_is_polled_where_the_kernel_does_not_say_who_waits() {
        let said = Cell::new(None);
        let mut polling = Polling::new(Said(&said), true);
        assert!((0..10).all(|half| !polling.may(half * LOOK_INTERVAL)));
        assert_eq!(account_of("0 0 0\n"), None, "no account is kept");
        assert_eq!(account_of("12 3 4\n"), Some(account(12, 3)));
        assert_eq!(account_of("0 3 1\n"), Some(account(0, 3)), "it has just begun");
        assert_eq!(account_of("12 3\n"), None);
    }

    #[test]
    fn times_that_count_anew_are_looked_at_anew() {
        let said = Cell::new(Some(account(1, 0)));
        let mut polling = Polling::new(Said(&said), true);
        polling.may(60 * SECOND);
        assert!(polling.may(61 * SECOND));
        polling.forget_times();
        assert!(!polling.may(0));
        said.set(Some(account(LOOK_INTERVAL / 2, LOOK_INTERVAL / 2)));
        assert!(!polling.may(LOOK_INTERVAL), "others had half of the core");
    }

    #[test]
    fn polls_that_find_nothing_are_counted_up_to_the_end_of_the_wait_but_not_what_interrupted_them() {
        let mut polling = Polling::new(Schedstat(None), true);
        polling.found_nothing(1_000, 1_400, 9_000);
        polling.found_nothing(2_000, 8_000, 9_000);
        assert_eq!(polling.fruitless(), 400 + POLL_COST_MAX);
        polling.found_nothing(8_900, 9_500, 9_000);
        polling.found_nothing(9_100, 9_500, 9_000);
        assert_eq!(polling.fruitless(), 400 + POLL_COST_MAX + 100);
    }

    #[test]
    fn the_kernel_accounts_for_this_thread_if_it_does_for_any() {
        let keeps = std::fs::read_to_string("/proc/self/schedstat").is_ok_and(|text| account_of(&text).is_some());
        assert_eq!(Schedstat::of_this_thread().account().is_some(), keeps);
    }
}
