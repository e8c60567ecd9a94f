//! Where versions come from: a counter inside the commit section, drawing on blocks that were made durable before use.
//!
//! A version that was given out is never given out again, not even after the machine died and took unsynced writes with
//! it: the end of the current block is on disk, synced, before its first version is used, and a start begins at that end.
//! What is left of a block when the process ends is skipped; 2^64 versions suffice for that.
//!
//! Called by the embedded engines.

use crate::disk::directory::{self, DataDirectory};
use klad_base::sync::Mutex;

/// Versions in one block. At 1,000,000 writes a second a block lasts 16 seconds, and it is topped up at half.
const BLOCK: u64 = 1 << 24;

/// The source of versions of one data directory.
#[derive(Debug)]
pub struct Versions {
    directory: DataDirectory,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// The next to be given out.
    next: u64,
    /// The first that is not reserved on disk.
    reserved_until: u64,
}

impl Versions {
    /// Starts behind everything that was ever reserved in `directory`.
    #[must_use]
    pub fn new(directory: DataDirectory) -> Versions {
        let next = directory.versions_reserved_until().max(1);
        Versions { directory, state: Mutex::new(State { next, reserved_until: next }) }
    }

    /// Gives out `count` versions in a row (at least one) and answers the first. Only the commit section asks, so the order
    /// of versions is the order of commits.
    ///
    /// # Errors
    /// When a new block was needed and could not be made durable; nothing was given out.
    pub fn take(&self, count: usize) -> Result<u64, directory::Error> {
        let mut state = self.state.lock();
        let first = state.next;
        let end = first + count as u64;
        if end > state.reserved_until {
            state.reserved_until = self.reserve(end)?;
        }
        state.next = end;
        Ok(first)
    }

    /// As [`Versions::take`], unless that would have to make a block durable first.
    #[must_use]
    pub fn try_take(&self, count: usize) -> Option<u64> {
        let mut state = self.state.lock();
        let first = state.next;
        let end = first + count as u64;
        (end <= state.reserved_until).then(|| {
            state.next = end;
            first
        })
    }

    /// Reserves the next block while half of the current one is left, so that `take` seldom has to.
    ///
    /// # Errors
    /// When the block could not be made durable; what was reserved before is still there.
    pub fn top_up(&self) -> Result<(), directory::Error> {
        let (next, reserved_until) = {
            let state = self.state.lock();
            (state.next, state.reserved_until)
        };
        // Nothing was written since the start, or enough is left.
        if reserved_until == next || reserved_until - next > BLOCK / 2 {
            return Ok(());
        }
        // The disk is waited for without the lock; a `take` that overtakes reserves more, and the larger end wins.
        let end = self.reserve(reserved_until)?;
        let mut state = self.state.lock();
        state.reserved_until = state.reserved_until.max(end);
        Ok(())
    }

    fn reserve(&self, from: u64) -> Result<u64, directory::Error> {
        let end = from + BLOCK;
        self.directory.reserve_versions_until(end)?;
        Ok(end)
    }

    /// The last version that was given out, and the last that is reserved on disk. May wait for a reservation.
    #[must_use]
    pub fn look(&self) -> (u64, u64) {
        let state = self.state.lock();
        (state.next - 1, state.reserved_until - 1)
    }

    /// The directory that the blocks are kept in.
    #[must_use]
    pub fn directory(&self) -> &DataDirectory {
        &self.directory
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(path: &std::path::Path) -> Versions {
        Versions::new(DataDirectory::open(path, "rocksdb").expect("the directory opens"))
    }

    #[test]
    fn versions_start_at_one_and_grow() {
        let temporary = tempfile::tempdir().expect("a temporary directory");
        let versions = open(temporary.path());
        assert_eq!(versions.take(3).expect("reserved"), 1);
        assert_eq!(versions.take(1).expect("reserved"), 4);
    }

    #[test]
    fn no_version_is_given_out_twice_over_restarts() {
        let temporary = tempfile::tempdir().expect("a temporary directory");
        let mut last = 0;
        for _ in 0..4 {
            let versions = open(temporary.path());
            let first = versions.take((1 << 24) - 1).expect("reserved");
            assert!(first > last, "{first} was given out before, up to {last}");
            last = versions.take(100).expect("reserved") + 99;
            versions.top_up().expect("reserved");
        }
    }

    #[test]
    fn a_start_without_a_write_reserves_nothing() {
        let temporary = tempfile::tempdir().expect("a temporary directory");
        for _ in 0..3 {
            open(temporary.path()).top_up().expect("nothing to do");
        }
        assert_eq!(open(temporary.path()).take(1).expect("reserved"), 1);
    }
}
