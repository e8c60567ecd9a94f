//! Profiles of waits for locks, queues and conditions.

use std::time::Duration;

use super::{Address, Error, Profile};

/// A profile of waits that is being taken; dropping it ends it. Any number at a time.
#[derive(Debug)]
pub struct Window(());

/// What a window saw.
#[derive(Debug)]
pub struct Seen {
    /// Waits for locks, and for conditions that stand for one: somebody else has what the thread needs. Values `contentions`
    /// (count) and `delay` (nanoseconds).
    pub mutex: Profile<Address>,
    /// All waits, idle ones too; the same values.
    pub block: Profile<Address>,
}

impl Window {
    /// Begins; waits shorter than `threshold` are counted, not kept.
    ///
    /// # Errors
    /// [`Error::Busy`] when one of another threshold is being taken, [`Error::Refused`].
    pub fn start(_threshold: Duration) -> Result<Window, Error> {
        Err(Error::Refused("not yet".to_owned()))
    }

    /// Ends, and says what was seen; what still waits counts until now.
    #[must_use]
    pub fn finish(self) -> Seen {
        unreachable!("none has begun")
    }
}
