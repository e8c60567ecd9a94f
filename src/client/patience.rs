//! Waits between repetitions of a request that the server rejects with 503. Called by `list` and `upload`.

use std::time::Duration;

use crate::client::Error;
use crate::client::exchange::Session;
use crate::client::limits::CLIENT_PATIENCE;
use crate::client::problem::Problem;
use klad_base::sync::Signal;

/// How long a command waits while the server rejects its request with 503.
pub(super) struct Patience<'s> {
    session: &'s Session<'s>,
    left: Duration,
}

impl<'s> Patience<'s> {
    /// Starts with the whole time, or with none if `patient` is not set.
    pub(super) fn new(session: &'s Session<'s>, patient: bool) -> Patience<'s> {
        Patience { session, left: if patient { CLIENT_PATIENCE } else { Duration::ZERO } }
    }

    /// Waits for the time that the server asks for.
    ///
    /// # Errors
    /// The answer is not 503, or less time is left than the server asks for.
    pub(super) fn wait_after(&mut self, problem: Problem, is_write: bool) -> Result<(), Error> {
        if problem.status == 503 && self.wait(problem.pause()) { Ok(()) } else { Err(problem.into_error(is_write)) }
    }

    /// Waits for `pause`. Returns `false` at once if less time is left.
    pub(super) fn wait(&mut self, pause: Duration) -> bool {
        if pause > self.left || !self.session.has_time_for(pause) {
            return false;
        }
        self.left -= pause;
        Signal::default().wait_timeout(pause);
        true
    }
}
