//! A queue with controlled delay. A standing queue, which has not been empty for some time, rejects operations that
//! have waited too long, and serves the newest first.
//!
//! ```text
//!   empty within QUEUE_STANDING_AFTER   oldest first, nothing is rejected
//!   otherwise: standing                 newest first; operations that have waited --queue-target are rejected
//!   not standing, but it was within     treated as standing, for one take
//!   QUEUE_STANDING_MEMORY, and the
//!   oldest operation has waited for
//!   QUEUE_STANDING_AGAIN_TARGETS times --queue-target
//! ```
//!
//! In every state, [`DelayQueue::expire`] rejects operations that have waited longer than `--queue-age-max`.
//!
//! A moment without arrivals empties a queue although the overload continues. If the queue did not remember the
//! overload, operations would wait up to `QUEUE_STANDING_AFTER` again after each such moment. The queue remembers the
//! overload for as long as the controller of RFC 8289 remembers its drops.
//!
//! A short queue absorbs bursts. A standing queue only adds delay. If it served the oldest operations first, it would
//! serve clients that are about to give up. The rules follow RFC 8289 and B. Maurer, "Fail at Scale" (ACM Queue 13,
//! 2015). The queue never rejects steps of ranges or of change feeds in progress. While both operations and steps wait,
//! every fourth task that a thread takes is a step. `adaptive` calls this.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::execution::Queues;
use crate::execution::task::Task;
use crate::limits::{QUEUE_STANDING_AFTER, QUEUE_STANDING_AGAIN_TARGETS, QUEUE_STANDING_MEMORY};
use klad_base::clock;
use klad_base::sync::{Cause, Condvar, Mutex, MutexGuard, PushError};

/// While both operations and steps (of ranges or change feeds) wait, one in this many tasks that a thread takes is a
/// step.
const STEP_EVERY: u64 = 4;

/// A queue of operations that wait for storage.
pub(super) struct DelayQueue {
    state: Mutex<State>,
    not_empty: Condvar,
    capacity: usize,
}

struct State {
    /// Operations with their time of arrival, the oldest first.
    waiting: VecDeque<(Instant, Task)>,
    steps: VecDeque<Task>,
    /// When `waiting` was last empty.
    emptied: Instant,
    /// When klad last found that the queue had not been empty for [`QUEUE_STANDING_AFTER`]. If the queue counts as
    /// standing only because klad remembers this time, the time does not change.
    stood: Option<Instant>,
    taken: u64,
    /// The number of threads that wait for work. If it is 0, a producer makes no system call.
    idle: usize,
    /// How long operations may wait. `None`: the oldest operation is always next, and nothing is rejected.
    control: Option<Queues>,
    closed: bool,
}

impl DelayQueue {
    /// Creates an empty queue for at most `capacity` operations (at least 1).
    pub(super) fn new(capacity: usize, control: Option<Queues>) -> DelayQueue {
        assert!(capacity >= 1, "a queue needs at least one place");
        let state = State {
            waiting: VecDeque::new(),
            steps: VecDeque::new(),
            emptied: clock::now(),
            stood: None,
            taken: 0,
            idle: 0,
            control,
            closed: false,
        };
        DelayQueue { state: Mutex::new(state), not_empty: Condvar::new(), capacity }
    }

    /// Changes how long operations may wait.
    pub(super) fn set_control(&self, control: Option<Queues>) {
        self.state.lock().control = control;
    }

    /// Appends `task`. The error returns the task, and says why it was not appended.
    pub(super) fn push(&self, task: Task) -> Result<(), PushError<Task>> {
        let mut state = self.state.lock();
        state.admits(self.capacity, task).map(|task| state.append(clock::now(), task))?;
        self.wake(state);
        Ok(())
    }

    /// Moves as many of `tasks` as fit to the end of the queue, and leaves the rest in `tasks`.
    pub(super) fn push_all(&self, tasks: &mut Vec<Task>) {
        let now = clock::now();
        let mut state = self.state.lock();
        let fit = if state.closed { 0 } else { self.capacity.saturating_sub(state.waiting.len()).min(tasks.len()) };
        for task in tasks.drain(..fit) {
            state.append(now, task);
        }
        self.wake(state);
    }

    fn wake(&self, state: MutexGuard<'_, State>) {
        let wake = state.idle > 0;
        drop(state);
        if wake {
            self.not_empty.notify_one();
        }
    }

    /// Waits for a task and takes it. Moves rejected tasks into `rejected`. `None`: the queue is closed and empty.
    pub(super) fn pop(&self, rejected: &mut Vec<Task>) -> Option<Task> {
        let mut state = self.wait_for_work()?;
        let step_is_due = state.waiting.is_empty() || state.taken.is_multiple_of(STEP_EVERY);
        state.taken += 1;
        if step_is_due && let Some(step) = state.steps.pop_front() {
            return Some(step);
        }
        let now = clock::now();
        let standing = state.standing(now);
        let task = state.take(standing.is_some());
        if let Some(control) = standing {
            state.reject(now, control.target, rejected);
        }
        state.note_emptiness(now);
        task
    }

    /// Waits for tasks. Takes at least one task into `batch`, and more as long as `batch` has at most `max` tasks with
    /// at most `cost_max` bytes together. Moves rejected tasks into `rejected`. A queue that fits into one batch does
    /// not count as standing. `false`: the queue is closed and empty.
    pub(super) fn pop_batch(
        &self,
        max: usize,
        cost_max: usize,
        batch: &mut Vec<Task>,
        rejected: &mut Vec<Task>,
    ) -> bool {
        let Some(mut state) = self.wait_for_work() else { return false };
        let now = clock::now();
        let standing = if state.fits(max, cost_max) { None } else { state.standing(now) };
        let mut cost = 0;
        while batch.len() < max
            && let Some(next) = state.peek(standing.is_some())
        {
            cost += next.write_bytes();
            if cost > cost_max && !batch.is_empty() {
                break;
            }
            batch.extend(state.take(standing.is_some()));
        }
        if let Some(control) = standing {
            state.reject(now, control.target, rejected);
        }
        state.note_emptiness(now);
        true
    }

    /// Waits until there is a task, and then `delay` longer, unless the queue is closed. Takes nothing. Only for a
    /// queue with one consumer.
    pub(super) fn wait_for_more(&self, delay: Duration) {
        let Some(mut state) = self.wait_for_work() else { return };
        let until = clock::now() + delay;
        while !state.closed {
            let left = until.saturating_duration_since(clock::now());
            if left.is_zero() {
                return;
            }
            state = self.not_empty.wait_timeout(state, left, Cause::Idle);
        }
    }

    /// Moves operations that have waited longer than [`Queues::age_max`] into `rejected`, and other operations whose
    /// deadline has passed into `late`. Steps of ranges and feeds stay in the queue. This works even if no thread
    /// serves the queue.
    pub(super) fn expire(&self, rejected: &mut Vec<Task>, late: &mut Vec<Task>) {
        let mut state = self.state.lock();
        if let Some(control) = state.control {
            state.reject(clock::now(), control.age_max, rejected);
        }
        late.extend(state.take_late());
    }

    /// The number of waiting tasks.
    pub(super) fn len(&self) -> usize {
        let state = self.state.lock();
        state.waiting.len() + state.steps.len()
    }

    /// The number of waiting operations, the number of waiting steps, and how long the oldest operation has waited.
    pub(super) fn figures(&self) -> (usize, usize, Duration) {
        let now = clock::now();
        let state = self.state.lock();
        let oldest = state.waiting.front().map(|(since, _)| now.saturating_duration_since(*since));
        (state.waiting.len(), state.steps.len(), oldest.unwrap_or_default())
    }

    /// Rejects new operations from now on. Consumers get the remaining tasks, then the end.
    pub(super) fn close(&self) {
        self.state.lock().closed = true;
        self.not_empty.notify_all();
    }

    fn wait_for_work(&self) -> Option<MutexGuard<'_, State>> {
        let mut state = self.state.lock();
        while state.waiting.is_empty() && state.steps.is_empty() {
            if state.closed {
                return None;
            }
            state.idle += 1;
            state = self.not_empty.wait(state, Cause::Idle);
            state.idle -= 1;
        }
        Some(state)
    }
}

impl State {
    fn admits(&self, capacity: usize, task: Task) -> Result<Task, PushError<Task>> {
        if self.closed {
            Err(PushError::Closed(task))
        } else if !task.is_scan() && self.waiting.len() >= capacity {
            // Each range or change feed has at most one step, and other limits apply to ranges and feeds.
            Err(PushError::Full(task))
        } else {
            Ok(task)
        }
    }

    fn append(&mut self, now: Instant, task: Task) {
        if task.is_scan() {
            return self.steps.push_back(task);
        }
        if self.waiting.is_empty() {
            self.emptied = now;
        }
        self.waiting.push_back((now, task));
    }

    /// Returns the limits to apply if the queue counts as standing; otherwise `None`. Remembers `now` if the queue has
    /// not been empty for [`QUEUE_STANDING_AFTER`].
    fn standing(&mut self, now: Instant) -> Option<Queues> {
        let control = self.control?;
        let since = |then: Instant| now.saturating_duration_since(then);
        let oldest = self.waiting.front().map_or(Duration::ZERO, |(arrived, _)| since(*arrived));
        if since(self.emptied) > QUEUE_STANDING_AFTER {
            self.stood = Some(now);
            return Some(control);
        }
        // This does not set `stood`. Otherwise, with slow calls or bursts, the queue would count as standing for ever.
        let again = self.stood.is_some_and(|stood| since(stood) < QUEUE_STANDING_MEMORY)
            && oldest > control.target.saturating_mul(QUEUE_STANDING_AGAIN_TARGETS);
        again.then_some(control)
    }

    /// Whether all tasks fit into one batch.
    fn fits(&self, max: usize, cost_max: usize) -> bool {
        self.waiting.len() <= max && self.waiting.iter().map(|(_, task)| task.write_bytes()).sum::<usize>() <= cost_max
    }

    fn peek(&self, newest: bool) -> Option<&Task> {
        let next = if newest { self.waiting.back() } else { self.waiting.front() };
        next.map(|(_, task)| task)
    }

    fn take(&mut self, newest: bool) -> Option<Task> {
        let next = if newest { self.waiting.pop_back() } else { self.waiting.pop_front() };
        next.map(|(_, task)| task)
    }

    fn reject(&mut self, now: Instant, age: Duration, rejected: &mut Vec<Task>) {
        while self.waiting.front().is_some_and(|(since, _)| now.saturating_duration_since(*since) > age) {
            rejected.extend(self.take(false));
        }
    }

    fn take_late(&mut self) -> Vec<Task> {
        if !self.waiting.iter().any(|(_, task)| task.is_late()) {
            return Vec::new();
        }
        let (late, waiting) = std::mem::take(&mut self.waiting).into_iter().partition(|(_, task)| task.is_late());
        self.waiting = waiting;
        let late: VecDeque<(Instant, Task)> = late;
        late.into_iter().map(|(_, task)| task).collect()
    }

    fn note_emptiness(&mut self, now: Instant) {
        if self.waiting.is_empty() {
            self.emptied = now;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::execution::admission::Slots;
    use crate::execution::pending_operation::{PendingOperation, Permits};
    use klad_storage::operation::{Consistency, Operation};

    const QUEUES: Queues = Queues { target: Duration::from_millis(5), age_max: Duration::from_secs(1) };

    fn read(name: &'static str) -> Task {
        read_by(name, None)
    }

    fn read_by(name: &'static str, deadline: Option<Instant>) -> Task {
        let permits = Permits::new(Slots::new(1).take(0).expect("free"), None);
        let pending = PendingOperation::new(permits, deadline, clock::now(), Arc::default(), true, None);
        Task {
            operation: Operation::Get {
                key: bytes::Bytes::from_static(name.as_bytes()),
                consistency: Consistency::Default,
            },
            pending,
        }
    }

    fn names(tasks: &[Task]) -> String {
        let name = |task: &Task| match &task.operation {
            Operation::Get { key, .. } => String::from_utf8_lossy(key).into_owned(),
            other => unreachable!("only reads are queued here, not {other:?}"),
        };
        tasks.iter().map(name).collect::<Vec<_>>().join(" ")
    }

    fn both(taken: &[Task], rejected: &[Task]) -> String {
        format!("{}|{}", names(taken), names(rejected))
    }

    /// Creates a queue that stands, or that does not stand however long the test pauses. Its reads have waited for the
    /// given ms.
    fn queue(control: Option<Queues>, stands: bool, waited_ms: &[(&'static str, u64)]) -> DelayQueue {
        let queue = DelayQueue::new(8, control);
        let now = clock::now();
        let before = |ms| now.checked_sub(Duration::from_millis(ms)).expect("the machine has run for longer");
        {
            let mut state = queue.state.lock();
            for (name, ms) in waited_ms {
                state.append(before(*ms), read(name));
            }
            state.emptied = if stands { before(500) } else { now + Duration::from_hours(1) };
        }
        queue
    }

    fn pop_one(queue: &DelayQueue) -> String {
        let mut rejected = Vec::new();
        let taken: Vec<Task> = queue.pop(&mut rejected).into_iter().collect();
        both(&taken, &rejected)
    }

    const BURST: bool = false;
    const STANDS: bool = true;
    const THREE: [(&str, u64); 3] = [("old", 400), ("middle", 300), ("new", 1)];

    #[test]
    fn a_burst_is_served_in_order_and_nothing_is_rejected() {
        let queue = queue(Some(QUEUES), BURST, &THREE);
        assert_eq!(pop_one(&queue), "old|");
        assert_eq!(pop_one(&queue), "middle|");
    }

    #[test]
    fn a_standing_queue_serves_the_newest_and_rejects_what_waited_too_long() {
        let queue = queue(Some(QUEUES), STANDS, &THREE);
        assert_eq!(pop_one(&queue), "new|old middle");
        queue.push(read("a")).ok().expect("it fits");
        // The queue was emptied, so new operations are a burst again. Another test checks the memory.
        let mut state = queue.state.lock();
        state.stood = None;
        // At the arrival, because the queue stands if the test pauses after it.
        let arrived = state.waiting[0].0;
        assert!(state.standing(arrived).is_none());
    }

    #[test]
    fn a_queue_is_standing_again_as_soon_as_its_oldest_has_waited_long() {
        let start = clock::now();
        let at = |ms| start + Duration::from_millis(ms);
        let queue = DelayQueue::new(8, Some(QUEUES));
        let mut state = queue.state.lock();
        let controlled = |state: &mut State, ms| state.standing(at(ms)).is_some();
        state.append(at(0), read("first"));
        assert!(!controlled(&mut state, 100) && controlled(&mut state, 101), "not emptied for 100 ms");
        // A moment without arrivals empties it, then operations arrive again.
        let emptied = |state: &mut State, ms| {
            state.waiting.clear();
            state.append(at(ms), read("next"));
        };
        emptied(&mut state, 120);
        assert!(!controlled(&mut state, 140) && controlled(&mut state, 141), "four targets of 5 ms");
        // Standing by memory is not remembered, so the memory ends.
        emptied(&mut state, 1_675);
        assert!(controlled(&mut state, 1_700), "1.6 s after 101 ms have not passed");
        emptied(&mut state, 1_690);
        assert!(!controlled(&mut state, 1_720), "they have");
        emptied(&mut state, 1_800);
        assert!(!controlled(&mut state, 1_900) && controlled(&mut state, 1_901), "as at first");
    }

    #[test]
    fn a_queue_that_fits_into_a_batch_is_not_remembered_as_standing() {
        let waited = [("old", 400), ("new", 1)];
        let remembers = |max| {
            let queue = queue(Some(QUEUES), STANDS, &waited);
            assert!(queue.pop_batch(max, usize::MAX, &mut Vec::new(), &mut Vec::new()));
            queue.state.lock().stood.is_some()
        };
        assert!(remembers(1) && !remembers(2));
    }

    #[test]
    fn without_control_the_oldest_is_next_for_ever() {
        let queue = queue(None, STANDS, &THREE);
        assert_eq!(pop_one(&queue), "old|");
        let mut rejected = Vec::new();
        queue.expire(&mut rejected, &mut Vec::new());
        assert!(rejected.is_empty());
    }

    #[test]
    fn a_batch_that_takes_all_rejects_nothing() {
        let (mut batch, mut rejected) = (Vec::new(), Vec::new());
        assert!(queue(Some(QUEUES), STANDS, &THREE).pop_batch(3, usize::MAX, &mut batch, &mut rejected));
        assert_eq!(both(&batch, &rejected), "old middle new|");
        batch.clear();
        assert!(queue(Some(QUEUES), STANDS, &THREE).pop_batch(2, usize::MAX, &mut batch, &mut rejected));
        assert_eq!(both(&batch, &rejected), "new middle|old");
    }

    #[test]
    fn what_is_not_served_is_rejected_at_its_age() {
        let queues = Queues { age_max: Duration::from_secs(30), ..QUEUES };
        let queue = queue(Some(queues), BURST, &[("old", 31_000), ("new", 9_000)]);
        let now = clock::now();
        queue.push(read_by("late", Some(now))).ok().expect("it fits");
        queue.push(read_by("patient", now.checked_add(Duration::from_mins(1)))).ok().expect("it fits");
        let (waiting, steps, oldest) = queue.figures();
        assert!((waiting, steps) == (4, 0) && oldest > Duration::from_secs(30), "{oldest:?}");
        let (mut rejected, mut late) = (Vec::new(), Vec::new());
        queue.expire(&mut rejected, &mut late);
        assert_eq!((both(&rejected, &late), queue.len()), ("old|late".to_owned(), 2));
    }

    #[test]
    fn a_full_queue_and_a_closed_one_take_nothing() {
        let queue = DelayQueue::new(1, Some(QUEUES));
        assert!(queue.push(read("a")).is_ok());
        assert!(matches!(queue.push(read("b")), Err(PushError::Full(_))));
        queue.close();
        assert!(matches!(queue.push(read("b")), Err(PushError::Closed(_))));
        let mut left = vec![read("c")];
        queue.push_all(&mut left);
        assert_eq!(names(&left), "c");
        assert_eq!(pop_one(&queue), "a|");
        assert!(queue.pop(&mut Vec::new()).is_none());
    }

    #[test]
    fn waiting_for_more_gathers_writes_and_a_stop_ends_the_wait() {
        let queue = Arc::new(queue(None, BURST, &[("a", 0)]));
        queue.wait_for_more(Duration::from_millis(1));
        assert_eq!(queue.len(), 1, "it takes nothing itself");
        let waiter = {
            let queue = queue.clone();
            klad_base::sync::spawn_thread("test-waits", move || queue.wait_for_more(Duration::from_hours(1)))
        };
        queue.push_all(&mut vec![read("b"), read("c")]);
        queue.close();
        waiter.join().expect("no panic");
        let mut batch = Vec::new();
        assert!(queue.pop_batch(9, usize::MAX, &mut batch, &mut Vec::new()));
        assert_eq!(names(&batch), "a b c");
        queue.wait_for_more(Duration::from_hours(1));
    }
}
