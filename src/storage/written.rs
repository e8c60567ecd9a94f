//! A batch that the commit section of an engine has written, and what is told to whoever asked for its members. Called by
//! the engines that have a commit section.

use std::time::{Duration, Instant};

use super::{Perf, Write};
use crate::operation::{Error, Outcome, Version};

/// A batch that was written.
pub(super) struct Written {
    /// The version of its first member.
    pub(super) first: Version,
    /// When it was.
    pub(super) now: Instant,
    /// How long the write took, where it was one with sync.
    pub(super) sync_time: Duration,
    /// What it took.
    pub(super) perf: Option<Perf>,
}

/// Tells each of `writes` how it ended.
pub(super) fn answer(writes: Vec<Write>, written: Result<Written, Error>) {
    match written {
        Ok(Written { first, now, sync_time, perf }) => {
            for (write, version) in writes.into_iter().zip(first.0..) {
                let version = Version(version);
                write.reply.clocked(now, sync_time);
                if let Some(perf) = &perf {
                    write.reply.measured(perf);
                }
                write.reply.complete(Ok(Outcome::Written { version, durability: write.durability }));
            }
        }
        Err(error) => {
            for write in writes {
                write.reply.complete(Err(error.clone()));
            }
        }
    }
}
