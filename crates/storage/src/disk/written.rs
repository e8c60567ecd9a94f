//! A batch that the commit section of an engine has written, and what is told to whoever asked for its members. Called by
//! the engines that have a commit section.

use std::time::{Duration, Instant};

use crate::operation::{Error, Outcome, Version};
use crate::{Pending, Perf};

/// A batch that was written.
pub(crate) struct Written {
    /// The version of its first member.
    pub(crate) first: u64,
    /// When it was.
    pub(crate) now: Instant,
    /// How long the write took, where it was one with sync.
    pub(crate) sync_time: Duration,
    /// What it took.
    pub(crate) perf: Option<Perf>,
}

/// Tells each of `writes` how it ended.
pub(crate) fn answer(writes: &[Pending], written: Result<Written, Error>) {
    match written {
        Ok(Written { first, now, sync_time, perf }) => {
            for (Pending { write, reply }, version) in writes.iter().zip(first..) {
                reply.clocked(now, sync_time);
                if let Some(perf) = &perf {
                    reply.measured(perf);
                }
                let (version, durability) = (Version::new(version), write.durability);
                reply.complete(Ok(Outcome::Written { version, durability }));
            }
        }
        Err(error) => writes.iter().for_each(|one| one.reply.complete(Err(error.clone()))),
    }
}
