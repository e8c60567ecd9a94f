//! The kernel's lock on a file or directory (`flock`), which excludes other processes.

use std::fs::{File, TryLockError};

/// A file or directory that this process has locked. Dropping it unlocks it.
///
/// Closing the file is not enough. A process that another thread has just forked still has the file open, and
/// with it the lock, until it calls `exec`.
#[derive(Debug)]
pub struct FileLock(File);

impl FileLock {
    /// Locks `file`. Does not wait.
    ///
    /// # Errors
    /// [`TryLockError::WouldBlock`] if another process holds the lock; else the kernel's error.
    pub(crate) fn take(file: File) -> Result<FileLock, TryLockError> {
        file.try_lock()?;
        Ok(FileLock(file))
    }

    /// The locked file.
    pub(crate) fn file(&self) -> &File {
        &self.0
    }
}

impl Drop for FileLock {
    fn drop(&mut self) {
        // An error is ignored, because the kernel also unlocks the file when the last process closes it.
        let _ = self.0.unlock();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dropping_unlocks_although_another_process_still_has_the_file_open() {
        let path = tempfile::NamedTempFile::new().expect("a file").into_temp_path();
        let open = || File::open(&path).expect("the file");
        // Shares the lock, as the copy in a forked process does.
        let lock = FileLock::take(open()).expect("free");
        let copy = lock.file().try_clone().expect("a copy");
        assert!(matches!(FileLock::take(open()), Err(TryLockError::WouldBlock)));
        drop(lock);
        FileLock::take(open()).expect("free again");
        drop(copy);

        // Twin: to close the file leaves it locked.
        let closed = open();
        closed.try_lock().expect("free");
        let copy = closed.try_clone().expect("a copy");
        drop(closed);
        assert!(matches!(FileLock::take(open()), Err(TryLockError::WouldBlock)));
        drop(copy);
    }
}
