//! Gives out versions from blocks that are reserved on disk.
//!
//! klad never gives out a version twice, even if a crash of the machine lost unsynced writes. Before klad uses the
//! first version of a block, it writes the end of the block to the file `KLAD` and syncs the file. After a start, klad
//! continues at that end and skips the unused rest of the block; 2^64 versions are enough for that.
//!
//! Called by the engines on disk.

use crate::disk::directory::{self, DataDirectory};
use klad_base::sync::Mutex;

/// The number of versions in one block. At 1,000,000 writes per second a block lasts 16 seconds. klad reserves the next
/// block when half of the current block is left.
const BLOCK: u64 = 1 << 24;

/// The versions of one data directory.
#[derive(Debug)]
pub struct Versions {
    directory: DataDirectory,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// The next version to give out.
    next: u64,
    /// The first version that is not reserved on disk.
    reserved_until: u64,
}

impl Versions {
    /// Continues after all versions that were ever reserved in `directory`.
    #[must_use]
    pub fn new(directory: DataDirectory) -> Versions {
        let next = directory.versions_reserved_until().max(1);
        Versions { directory, state: Mutex::new(State { next, reserved_until: next }) }
    }

    /// Gives out `count` consecutive versions (at least one) and returns the first. Only the commit section calls it,
    /// so the order of versions is the order of commits.
    ///
    /// # Errors
    /// A new block was needed and could not be reserved on disk. No version was given out.
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

    /// As [`Versions::take`], but returns `None` if a new block would have to be reserved first.
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

    /// Reserves the next block if at most half of the current one is left, so that `take` seldom has to wait for the
    /// disk.
    ///
    /// # Errors
    /// The block could not be reserved on disk. The versions that were reserved before stay usable.
    pub fn reserve_ahead(&self) -> Result<(), directory::Error> {
        let (next, reserved_until) = {
            let state = self.state.lock();
            (state.next, state.reserved_until)
        };
        // There was no write since the start, or enough versions are left.
        if reserved_until == next || reserved_until - next > BLOCK / 2 {
            return Ok(());
        }
        // `reserve` waits for the disk while the lock is free. If a `take` reserves a block meanwhile, the larger end
        // counts.
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
    pub fn last_and_reserved(&self) -> (u64, u64) {
        let state = self.state.lock();
        (state.next - 1, state.reserved_until - 1)
    }

    /// The data directory.
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
            versions.reserve_ahead().expect("reserved");
        }
    }

    #[test]
    fn a_start_without_a_write_reserves_nothing() {
        let temporary = tempfile::tempdir().expect("a temporary directory");
        for _ in 0..3 {
            open(temporary.path()).reserve_ahead().expect("nothing to do");
        }
        assert_eq!(open(temporary.path()).take(1).expect("reserved"), 1);
    }
}
