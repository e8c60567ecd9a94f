//! Ends of operations on their way back to the worker that asked.
//!
//! Waking a task of another thread's runtime costs a system call each. So whoever ends operations leaves the tasks' wakers
//! here and wakes the worker's turn once for all; the turn wakes the tasks, which on their own thread costs nothing.
//! Called by `pending`, `worker_context` and the strategies.

use std::task::Waker;

use klad_base::sync::Mutex;

/// The wakers of the tasks of one worker whose operations have ended.
#[derive(Debug, Default)]
pub(super) struct CompletionQueue(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    ended: Vec<Waker>,
    /// The worker's turn.
    iteration: Option<Waker>,
    /// The turn was woken and has not looked yet.
    announced: bool,
}

impl CompletionQueue {
    /// Whom to wake.
    pub(super) fn set_iteration(&self, iteration: &Waker) {
        self.0.lock().iteration = Some(iteration.clone());
    }

    /// Leaves a task's waker; [`CompletionQueue::announce`] must follow.
    pub(super) fn leave(&self, ended: Waker) {
        self.0.lock().ended.push(ended);
    }

    /// Wakes the worker's turn, unless there is nothing for it, or it knows.
    pub(super) fn announce(&self) {
        let iteration = {
            let mut state = self.0.lock();
            if state.announced || state.ended.is_empty() {
                return;
            }
            state.announced = true;
            state.iteration.clone()
        };
        if let Some(iteration) = iteration {
            iteration.wake();
        }
    }

    /// Whether the worker was told and has not looked yet.
    pub(super) fn is_announced(&self) -> bool {
        self.0.lock().announced
    }

    /// Wakes all tasks whose operations have ended; on the worker's thread. `scratch` is empty before and after, and keeps
    /// its memory.
    pub(super) fn wake_ended(&self, scratch: &mut Vec<Waker>) {
        {
            let mut state = self.0.lock();
            state.announced = false;
            std::mem::swap(&mut state.ended, scratch);
        }
        for ended in scratch.drain(..) {
            ended.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Counter(AtomicUsize);

    impl Wake for Counter {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_turn_is_woken_once_for_all_that_ended_before_it_looked() {
        let (iteration, task) = (Arc::new(Counter::default()), Arc::new(Counter::default()));
        let completions = CompletionQueue::default();
        completions.set_iteration(&iteration.clone().into());
        completions.announce();
        assert_eq!(iteration.0.load(Ordering::Relaxed), 0, "nothing has ended");
        assert!(!completions.is_announced());
        for _ in 0..3 {
            completions.leave(task.clone().into());
            completions.announce();
        }
        assert_eq!(iteration.0.load(Ordering::Relaxed), 1);
        assert!(completions.is_announced());
        completions.wake_ended(&mut Vec::new());
        assert!(!completions.is_announced());
        assert_eq!(task.0.load(Ordering::Relaxed), 3);
        completions.leave(task.into());
        completions.announce();
        assert_eq!(iteration.0.load(Ordering::Relaxed), 2, "it has looked meanwhile");
    }
}
