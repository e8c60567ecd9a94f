//! Decides by the names on the stack which waits of RocksDB need the work of another thread.
//!
//! The list comes from the source of RocksDB 11.12: every function that waits for a condition. Functions that are not
//! in the list are idle or sleep on purpose: `ThreadPoolImpl::Impl::BGThread` (no job), `Timer::Run` and
//! `RepeatableThread` (the next round), `DeleteScheduler::BackgroundEmptyTrash` (nothing to delete, or its rate
//! limit), `SstFileManagerImpl::ClearError` and `ErrorHandler::RecoverFromRetryableBGIOError` (the next attempt), and
//! the readers of its work queues.
//!
//! Called by `locks`.

/// Functions of RocksDB in which a thread waits for other threads. Names are without parameters, which [`is_of`]
/// ignores.
const FOR_OTHERS: &[&str] = &[
    // The position in the group of writers, the end of the group's write, or the end of a stall.
    "rocksdb::WriteThread::BlockingAwaitState",
    "rocksdb::WriteThread::AwaitState",
    "rocksdb::WriteThread::LinkOne",
    "rocksdb::WriteThread::WaitForStallEndedCount",
    // Stalls of writers, because compactions are behind or memory is short.
    "rocksdb::DBImpl::DelayWrite",
    "rocksdb::DBImpl::WriteBufferManagerStallWrites",
    "rocksdb::DBImpl::WBMStallInterface::Block",
    "rocksdb::DBImpl::WBMStallInterface::BlockFor",
    "rocksdb::FlushInitiator::WaitForPendingFlushHandoff",
    "rocksdb::DBImpl::WaitForPendingWrites",
    "rocksdb::DBImpl::WaitUntilFlushWouldNotStallWrites",
    // Another thread syncs the log, or prepares the next one.
    "rocksdb::DBImpl::PreprocessWrite",
    "rocksdb::DBImpl::SyncWalImpl",
    "rocksdb::DBImpl::WaitForAsyncWALPrecreate",
    // Another thread writes the manifest, or installs a flush.
    "rocksdb::VersionSet::LogAndApply",
    "rocksdb::DBImpl::AtomicFlushMemTablesToOutputFiles",
    // Flushes and compactions that a thread waits for.
    "rocksdb::DBImpl::WaitForFlushMemTables",
    "rocksdb::DBImpl::WaitForCompact",
    "rocksdb::DBImpl::WaitForIngestFile",
    "rocksdb::DBImpl::RunManualCompaction",
    "rocksdb::DBImpl::DisableManualCompaction",
    "rocksdb::DBImpl::AbortAllCompactions",
    "rocksdb::DBImpl::PauseBackgroundWork",
    "rocksdb::DBImpl::WaitForBackgroundWork",
    "rocksdb::DBImpl::WaitForAsyncFileOpen",
    "rocksdb::DBImpl::GetSortedWalFilesImpl",
    "rocksdb::DBImpl::ResumeImpl",
    "rocksdb::DBImpl::CloseHelper",
    "rocksdb::DeleteScheduler::WaitForEmptyTrash",
    "rocksdb::DeleteScheduler::WaitForEmptyTrashInDirectory",
    "rocksdb::DeleteScheduler::WaitForEmptyTrashBucket",
    // A rate limit that other threads use up.
    "rocksdb::GenericRateLimiter::RequestImpl",
    "rocksdb::GenericRateLimiter::Request",
];

/// Returns whether a wait for a condition keeps the thread from its work, because it needs what another thread holds
/// or does. `names` are the names on the stack in any order. Otherwise the thread is idle.
pub fn is_contention<'a>(mut names: impl Iterator<Item = &'a str>) -> bool {
    names.any(|name| FOR_OTHERS.iter().any(|function| is_of(name, function)))
}

/// Returns whether `name` is `function`, with or without parameters and what follows them. A name that only begins
/// with `function` is another one.
fn is_of(name: &str, function: &str) -> bool {
    name.strip_prefix(function)
        .is_some_and(|rest| !rest.starts_with(|next: char| next.is_alphanumeric() || next == '_'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writers_that_wait_for_others_are_contention_and_idle_threads_are_not() {
        let wait = "pthread_cond_wait";
        assert!(is_contention(
            [wait, "rocksdb::WriteThread::BlockingAwaitState(rocksdb::WriteThread::Writer*)"].into_iter()
        ));
        assert!(is_contention(
            [wait, "rocksdb::InstrumentedCondVar::Wait()", "rocksdb::DBImpl::DelayWrite"].into_iter()
        ));
        assert!(!is_contention([wait, "rocksdb::ThreadPoolImpl::Impl::BGThread(unsigned long)"].into_iter()));
        assert!(!is_contention([wait, "rocksdb::Timer::Run()"].into_iter()));
        assert!(!is_contention(std::iter::empty()));
    }

    #[test]
    fn twin_a_name_with_the_same_beginning_is_another_function() {
        assert!(!is_contention(["rocksdb::DBImpl::DelayWriteNever()"].into_iter()));
        assert!(!is_contention(["klad::rocksdb::DBImpl::DelayWrite"].into_iter()));
    }
}
