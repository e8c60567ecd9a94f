//! Completed operations on their way back to the worker that asked for them.
//!
//! Waking a task of another thread's runtime costs a system call. So a thread that completes operations puts the
//! tasks' wakers here, and wakes the worker's loop iteration once for all of them. The iteration wakes the tasks,
//! which costs nothing on their own thread. `pending_operation`, `worker_context` and the strategies call this.

use std::task::Waker;

use klad_base::sync::Mutex;

/// The wakers of one worker's tasks whose operations have completed.
#[derive(Debug, Default)]
pub(super) struct CompletionQueue(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    ended: Vec<Waker>,
    /// Wakes the worker's loop iteration.
    iteration: Option<Waker>,
    /// The task of the loop iteration was woken, and has not run yet.
    announced: bool,
    /// Whether the engine's bell, which reports a commit to change feeds, has rung since the last loop iteration.
    rung: bool,
}

impl CompletionQueue {
    /// Sets the waker of the worker's loop iteration.
    pub(super) fn set_iteration(&self, iteration: &Waker) {
        self.0.lock().iteration = Some(iteration.clone());
    }

    /// Adds a task's waker. [`CompletionQueue::announce`] must follow.
    pub(super) fn push(&self, ended: Waker) {
        self.0.lock().ended.push(ended);
    }

    /// Wakes the worker's loop iteration, unless it was woken already or the queue has no waker.
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

    /// Wakes the worker's loop iteration, because there are changes for feeds.
    pub(super) fn ring(&self) {
        let iteration = {
            let mut state = self.0.lock();
            state.rung = true;
            if std::mem::replace(&mut state.announced, true) {
                return;
            }
            state.iteration.clone()
        };
        if let Some(iteration) = iteration {
            iteration.wake();
        }
    }

    /// Whether the worker was woken and has not run yet.
    pub(super) fn is_announced(&self) -> bool {
        self.0.lock().announced
    }

    /// Wakes all tasks whose operations have completed. Only the worker's thread calls this. `scratch` is empty before
    /// and after, and keeps its memory. Returns whether the bell has rung since the last call.
    pub(super) fn wake_all(&self, scratch: &mut Vec<Waker>) -> bool {
        let rung = {
            let mut state = self.0.lock();
            state.announced = false;
            std::mem::swap(&mut state.ended, scratch);
            std::mem::take(&mut state.rung)
        };
        for ended in scratch.drain(..) {
            ended.wake();
        }
        rung
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
    fn an_iteration_is_woken_once_for_all_completions_before_it_runs() {
        let (iteration, task) = (Arc::new(Counter::default()), Arc::new(Counter::default()));
        let completions = CompletionQueue::default();
        completions.set_iteration(&iteration.clone().into());
        completions.announce();
        assert_eq!(iteration.0.load(Ordering::Relaxed), 0, "nothing has completed");
        assert!(!completions.is_announced());
        for _ in 0..3 {
            completions.push(task.clone().into());
            completions.announce();
        }
        assert_eq!(iteration.0.load(Ordering::Relaxed), 1);
        assert!(completions.is_announced());
        completions.wake_all(&mut Vec::new());
        assert!(!completions.is_announced());
        assert_eq!(task.0.load(Ordering::Relaxed), 3);
        completions.push(task.into());
        completions.announce();
        assert_eq!(iteration.0.load(Ordering::Relaxed), 2, "it has run meanwhile");
    }
}
