//! How far apart batches with a sync begin, on a disk that bears only so many of them.
//!
//! Rented machines, or their disks, are often held to so much a second: who has used up a moment's share waits for the next
//! one, here 10 to 20 ms at a time, and every write with it. Each sync takes some of it, however little it writes, so fewer of them
//! with more in each get there less often. A disk that is not held up, or takes long for every sync, is left alone:
//!
//! ```text
//!   two seconds of ten with a thousand batches, two writes in each, three of 8 ms ─▶ 1 ms apart ─▶ still so: 2 ms
//!   ten seconds without                                                        ─▶ the step before is tried; where that was too
//!                                                                                 little, twice as many the next time
//!   at 2 ms more than one second in three is still so                           ─▶ compared: five seconds so, five with none, and again
//!   less time is lost at 2 ms than with none, by a quarter                      ─▶ kept; compared again after five minutes
//!   otherwise                                                                   ─▶ it is something else: given up for five minutes
//! ```
//!
//! Nobody waits for nothing: a batch begins as soon as as many wait as the largest of the last held, which may be all that there are
//! clients, and when [`SLICE`] has brought no other. Called by `adaptive`, on the commit thread
//! (docs/decisions/2026-11-25-batches-keep-apart-on-a-limited-disk.md).

use std::time::{Duration, Instant};

/// How far apart, step by step.
const STEPS: [Duration; 3] = [Duration::ZERO, Duration::from_millis(1), Duration::from_millis(2)];

/// So many writes need not wait for more.
const ENOUGH_WRITES: usize = 32;

/// A part in so many of the largest batch is forgotten with each that follows.
const FORGOTTEN: usize = 16;

/// Between two looks at what has come meanwhile.
const SLICE: Duration = Duration::from_micros(250);

/// A batch that took so long was held up. A thread that shares a core waits for it up to 4 ms, a tick of the kernel's, now and then.
const HELD_UP: Duration = Duration::from_millis(8);

/// In this time
const WINDOW: Duration = Duration::from_secs(1);

/// so many of them are too many,
const HELD_UP_MAX: u32 = 2;

/// if there were so many batches: who commits less often cannot be too much for a disk that is worth the name.
const BATCHES_MIN: u32 = 1_000;

/// Fewer writes in each would gain nothing.
const WRITES_A_BATCH_MIN: usize = 2;

/// Windows without until less is tried, and at the most.
const CALM: u32 = 10;
const CALM_MAX: u32 = 320;

/// Of the windows at the last step those that are held up count twice against the others; beyond this it is compared with none.
const DOUBT_MAX: u32 = 20;

/// Windows of each part of a comparison, and parts: those with an even number keep batches apart.
const PART: u32 = 5;
const PARTS: u32 = 4;

/// Of the time that is lost without, at most so many of four parts are lost with batches apart where that helps.
const HELPS: u32 = 3;

/// Of one commit thread.
#[derive(Debug)]
pub(super) struct Spacing {
    step: usize,
    /// Windows in which nothing was held up, and how many it takes.
    calm: u32,
    calm_needed: u32,
    /// Windows since one was held up.
    since_held_up: u32,
    /// Less is tried.
    lowered: bool,
    /// Grows while batches are held up however far apart they are.
    doubt: u32,
    state: State,
    /// Whether it helps, by the time that was lost with batches apart and without.
    helps: fn(Duration, Duration) -> bool,
    window: Window,
    /// The last batch.
    began: Instant,
    writes: usize,
    /// Of the largest of late, in sixteenths.
    most: usize,
}

/// What to wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wait {
    /// So many writes,
    pub(super) enough: usize,
    /// for so long.
    pub(super) time: Duration,
}

/// Whether it helps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Not doubted.
    Believed,
    /// The last step is compared with none; windows so far, and the time that was lost in those with and without.
    Compared { windows: u32, with: Duration, without: Duration },
    /// It does, and is not doubted for so many windows.
    Kept(u32),
    /// It does not: for so many windows batches are not kept apart, whatever holds them up.
    GivenUp(u32),
}

#[derive(Debug)]
struct Window {
    since: Instant,
    batches: u32,
    writes: usize,
    /// Batches that were held up, or waits for the next, and their time.
    held_up: u32,
    lost: Duration,
}

impl Window {
    fn new(since: Instant) -> Window {
        Window { since, batches: 0, writes: 0, held_up: 0, lost: Duration::ZERO }
    }

    fn took(&mut self, time: Duration) {
        if time >= HELD_UP {
            self.held_up += 1;
            self.lost += time;
        }
    }
}

impl Spacing {
    pub(super) fn new(now: Instant) -> Spacing {
        Spacing {
            step: 0,
            calm: 0,
            calm_needed: CALM,
            since_held_up: CALM,
            lowered: false,
            doubt: 0,
            state: State::Believed,
            helps,
            window: Window::new(now),
            began: now,
            writes: 0,
            most: 0,
        }
    }

    /// How far apart batches begin at least.
    pub(super) fn apart(&self) -> Duration {
        STEPS[self.step]
    }

    /// Whether to wait before the next batch, while `waiting` writes are there, and `before` were when it was last asked.
    pub(super) fn wait(&self, now: Instant, waiting: usize, before: Option<usize>) -> Option<Wait> {
        let left = (self.began + self.apart()).saturating_duration_since(now);
        // A client that is alone has nobody to wait for.
        let alone = self.writes < WRITES_A_BATCH_MIN;
        let enough = self.most.div_ceil(FORGOTTEN).clamp(WRITES_A_BATCH_MIN, ENOUGH_WRITES);
        let comes = before.is_none_or(|before| waiting > before || waiting == 0);
        (!left.is_zero() && !alone && waiting < enough && comes).then(|| Wait { enough, time: left.min(SLICE) })
    }

    /// A wait of `asked` at most has taken `took`: a machine that stands still does so for whoever waits, too. Not counted it would seem to
    /// do so less often where batches are apart.
    pub(super) fn waited(&mut self, asked: Duration, took: Duration) {
        self.window.took(took.saturating_sub(asked));
    }

    /// A batch was written; `true`: batches are to keep another distance from now on.
    pub(super) fn committed(&mut self, writes: usize, began: Instant, ended: Instant) -> bool {
        (self.began, self.writes) = (began, writes);
        self.most = (writes * FORGOTTEN).max(self.most - self.most / FORGOTTEN);
        self.window.batches += 1;
        self.window.writes += writes;
        self.window.took(ended.saturating_duration_since(began));
        let passed = ended.saturating_duration_since(self.window.since);
        if passed < WINDOW {
            return false;
        }
        let window = std::mem::replace(&mut self.window, Window::new(ended));
        // Of a longer one, in which little has happened, nothing is known.
        let busy = passed < 2 * WINDOW && window.writes >= WRITES_A_BATCH_MIN * window.batches as usize;
        let often = self.step > 0 || window.batches >= BATCHES_MIN;
        let step = self.step;
        match &mut self.state {
            State::Compared { .. } if !busy => self.believe(0),
            State::Compared { windows, with, without } => {
                let part = *windows / PART;
                *(if part.is_multiple_of(2) { with } else { without }) += window.lost;
                *windows += 1;
                self.compare();
            }
            State::GivenUp(0) => self.believe(0),
            State::GivenUp(left) => *left -= 1,
            State::Believed | State::Kept(_) => {
                if let State::Kept(left) = &mut self.state {
                    *left -= 1;
                    if *left == 0 {
                        self.state = State::Believed;
                    }
                }
                if window.held_up > HELD_UP_MAX && busy && often {
                    self.held_up();
                } else {
                    self.calm();
                }
            }
        }
        self.step != step
    }

    fn held_up(&mut self) {
        // One in a while, as with each compaction, changes nothing, and does not make all calm ones count for nothing.
        let alone = std::mem::take(&mut self.since_held_up) >= CALM;
        self.calm = self.calm.saturating_sub(CALM / 2);
        if alone {
            return;
        }
        if self.lowered && self.calm < CALM {
            self.calm_needed = (self.calm_needed * 2).min(CALM_MAX);
        }
        self.lowered = false;
        if self.step + 1 < STEPS.len() {
            self.step += 1;
        } else if self.state == State::Believed {
            self.doubt += 2;
            if self.doubt > DOUBT_MAX {
                self.state = State::Compared { windows: 0, with: Duration::ZERO, without: Duration::ZERO };
            }
        }
    }

    /// After a window of a comparison.
    fn compare(&mut self) {
        let State::Compared { windows, with, without } = self.state else { return };
        let last = STEPS.len() - 1;
        if windows < PART * PARTS {
            self.step = if (windows / PART).is_multiple_of(2) { last } else { 0 };
        } else if (self.helps)(with, without) {
            self.believe(last);
            self.state = State::Kept(CALM_MAX);
        } else {
            // It is something else: a processor that is held to so much, say.
            self.believe(0);
            self.state = State::GivenUp(CALM_MAX);
        }
    }

    fn believe(&mut self, step: usize) {
        (self.step, self.calm, self.doubt, self.state) = (step, 0, 0, State::Believed);
    }

    fn calm(&mut self) {
        self.calm = self.calm.saturating_add(1);
        self.since_held_up = self.since_held_up.saturating_add(1);
        self.doubt = self.doubt.saturating_sub(1);
        if self.step > 0 && self.calm >= self.calm_needed {
            self.step -= 1;
            self.calm = 0;
            self.lowered = true;
        } else if self.step == 0 && self.calm >= CALM {
            self.calm_needed = CALM;
        }
    }
}

fn helps(with: Duration, without: Duration) -> bool {
    with * 4 < without * HELPS
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;

    const QUICK: Duration = Duration::from_micros(300);
    const SLOW: Duration = Duration::from_millis(15);

    /// A second of batches one after the other: so many are held up, the others quick, as many as there is time for.
    fn second(spacing: &mut Spacing, now: &mut Instant, held_up: u32, writes: usize, quick: Duration) {
        let end = *now + WINDOW;
        for batch in 0_u32.. {
            let took = if batch < held_up { SLOW } else { quick };
            let began = *now;
            *now += took.max(spacing.apart());
            spacing.committed(writes, began, began + took);
            if *now >= end {
                return;
            }
        }
    }

    fn after(seconds: u32, held_up: u32, writes: usize, quick: Duration) -> Duration {
        let mut now = clock::now();
        let mut spacing = Spacing::new(now);
        for _ in 0..seconds {
            second(&mut spacing, &mut now, held_up, writes, quick);
        }
        spacing.apart()
    }

    #[test]
    fn batches_keep_apart_where_many_of_them_meet_a_disk_that_is_held_up_now_and_then() {
        assert_eq!(after(1, 10, 5, QUICK), Duration::ZERO, "one in a while");
        assert_eq!(after(2, 10, 5, QUICK), STEPS[1]);
        assert_eq!(after(5, 10, 5, QUICK), STEPS[2]);
        assert_eq!(after(5, HELD_UP_MAX, 5, QUICK), Duration::ZERO, "too seldom");
        assert_eq!(after(5, 10, 1, QUICK), Duration::ZERO, "there is nothing to gather");
        assert_eq!(after(5, 0, 5, Duration::from_millis(10)), Duration::ZERO, "a disk that takes long for each");
    }

    #[test]
    fn less_is_tried_again_and_seldom_where_it_is_too_little() {
        let mut now = clock::now();
        let mut spacing = Spacing::new(now);
        // Held up whenever batches are less than 1 ms apart.
        let mut run = |seconds: u32| {
            let mut held_up = 0;
            for _ in 0..seconds {
                let limited = spacing.apart() < STEPS[1];
                held_up += u32::from(limited);
                second(&mut spacing, &mut now, if limited { 10 } else { 0 }, 5, QUICK);
            }
            (held_up, spacing.apart())
        };
        assert_eq!(run(2), (2, STEPS[1]));
        let (tried, _) = run(1_000);
        assert!((2..=20).contains(&tried), "{tried} of 1,000 seconds were held up");
    }

    #[test]
    fn a_disk_that_is_no_longer_held_up_is_left_alone() {
        let mut now = clock::now();
        let mut spacing = Spacing::new(now);
        for _ in 0..5 {
            second(&mut spacing, &mut now, 10, 5, QUICK);
        }
        assert_eq!(spacing.apart(), STEPS[2]);
        // A window may end a moment after its second.
        for _ in 0..2 * CALM + 2 {
            second(&mut spacing, &mut now, 0, 5, QUICK);
        }
        assert_eq!(spacing.apart(), Duration::ZERO);
    }

    #[test]
    fn what_does_not_help_is_given_up() {
        let mut now = clock::now();
        let mut spacing = Spacing::new(now);
        let mut apart = 0;
        for _ in 0..400 {
            second(&mut spacing, &mut now, 10, 5, QUICK);
            apart += u32::from(!spacing.apart().is_zero());
        }
        assert!((1..60).contains(&apart), "{apart} of 400 seconds");
    }

    /// Of 2,000 seconds on a machine that holds up so many batches of each second with batches apart, and without, those with.
    fn seconds_apart(with: u32, without: u32, helps: fn(Duration, Duration) -> bool) -> u32 {
        let mut now = clock::now();
        let mut spacing = Spacing { helps, ..Spacing::new(now) };
        let mut apart = 0;
        for _ in 0..2_000 {
            let held_up = if spacing.apart().is_zero() { without } else { with };
            second(&mut spacing, &mut now, held_up, 5, QUICK);
            apart += u32::from(!spacing.apart().is_zero());
        }
        apart
    }

    #[test]
    fn what_helps_a_little_is_kept_and_what_does_not_is_given_up() {
        assert!(seconds_apart(10, 20, helps) > 1_800);
        assert!(seconds_apart(10, 11, helps) < 200);
    }

    #[test]
    fn twin_who_does_not_compare_is_wrong_once() {
        assert!(seconds_apart(10, 20, |_, _| false) < 200);
        assert!(seconds_apart(10, 11, |_, _| true) > 1_800);
    }

    /// A machine that stands still for 15 ms every 0.1 s, whatever klad does, `waits`: also what waits meanwhile is counted.
    fn seconds_apart_on_a_machine_that_stands_still(waits: bool) -> u32 {
        let mut now = clock::now();
        let mut spacing = Spacing::new(now);
        let mut apart = 0;
        for _ in 0..1_000 {
            let (end, mut next) = (now + WINDOW, now + WINDOW / 20);
            while now < end {
                let began = now;
                now += QUICK;
                if now >= next {
                    (now, next) = (now + SLOW, next + WINDOW / 10);
                }
                spacing.committed(5, began, now);
                let wait = (began + spacing.apart()).saturating_duration_since(now);
                let asked_at = now;
                now += wait;
                if !wait.is_zero() && now >= next {
                    (now, next) = (now + SLOW, next + WINDOW / 10);
                }
                if waits {
                    spacing.waited(wait, now - asked_at);
                }
            }
            apart += u32::from(!spacing.apart().is_zero());
        }
        apart
    }

    #[test]
    fn a_machine_that_stands_still_is_seen_from_waits_too() {
        let apart = seconds_apart_on_a_machine_that_stands_still(true);
        assert!(apart < 100, "{apart} of 1,000 seconds");
    }

    #[test]
    fn twin_who_counts_batches_only_believes_that_it_helps() {
        let apart = seconds_apart_on_a_machine_that_stands_still(false);
        assert!(apart > 500, "{apart} of 1,000 seconds");
    }

    #[test]
    fn what_comes_with_each_compaction_keeps_none_apart_for_good() {
        let mut now = clock::now();
        let mut spacing = Spacing::new(now);
        // Less was tried in vain so often that it takes as long as it can.
        for _ in 0..1_000 {
            let limited = spacing.apart() < STEPS[1];
            second(&mut spacing, &mut now, if limited { 10 } else { 0 }, 5, QUICK);
        }
        assert!(spacing.calm_needed > 8 * CALM, "{}", spacing.calm_needed);
        let mut apart = 0;
        for number in 0..2_000 {
            let held_up = if number % 20 == 0 { 3 } else { 0 };
            second(&mut spacing, &mut now, held_up, 5, QUICK);
            apart += u32::from(!spacing.apart().is_zero());
        }
        assert!(apart < 1_800, "{apart} of 2,000 seconds");
    }

    #[test]
    fn nobody_waits_for_nothing() {
        let mut now = clock::now();
        let mut spacing = Spacing::new(now);
        assert_eq!(spacing.wait(now, 1, None), None, "no disk was held up");
        second(&mut spacing, &mut now, 10, 9, QUICK);
        second(&mut spacing, &mut now, 10, 9, QUICK);
        let apart = spacing.apart();
        spacing.committed(5, now, now + QUICK);
        let soon = now + QUICK;
        let wait = |time| Some(Wait { enough: 9, time });
        assert_eq!(spacing.wait(soon, 3, None), wait(SLICE));
        assert_eq!(spacing.wait(soon, 0, Some(0)), wait(SLICE), "the first is on its way");
        assert_eq!(spacing.wait(soon, 4, Some(3)), wait(SLICE));
        assert_eq!(spacing.wait(soon, 4, Some(4)), None, "no other has come");
        assert_eq!(spacing.wait(soon, 9, Some(3)), None, "there may be no more clients than that");
        let late = apart.checked_sub(SLICE / 2).expect("longer");
        assert_eq!(spacing.wait(now + late, 4, Some(3)), wait(SLICE / 2));
        assert_eq!(spacing.wait(now + apart, 4, Some(3)), None, "it has kept apart");
        for _ in 0..4 * FORGOTTEN {
            spacing.committed(3, now, now + QUICK);
        }
        assert_eq!(spacing.wait(soon, 3, None), None, "the largest is long ago");
        spacing.committed(100, now, now + QUICK);
        assert_eq!(spacing.wait(soon, ENOUGH_WRITES, None), None);
        spacing.committed(1, now, now + QUICK);
        assert_eq!(spacing.wait(soon, 1, None), None, "a client that is alone");
    }
}
