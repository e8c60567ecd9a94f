//! Which waits of RocksDB are for somebody else's work, by the names on the stack.
//!
//! From RocksDB 11.12's source: every function that waits for a condition. What is not in the list is idle, or sleeps by
//! its own decision: `ThreadPoolImpl::Impl::BGThread` (no job), `Timer::Run` and `RepeatableThread` (the next round),
//! `DeleteScheduler::BackgroundEmptyTrash` (nothing to delete, or its pace), `SstFileManagerImpl::ClearError` and
//! `ErrorHandler::RecoverFromRetryableBGIOError` (the next attempt), and the readers of its work queues.
//!
//! Called by `locks`.

/// Functions on whose behalf a thread waits for others. Parameters and what is inlined around them do not matter.
const FOR_OTHERS: &[&str] = &[
    // Its turn in the group of writers, the end of the group's write, the end of a stall.
    "rocksdb::WriteThread::BlockingAwaitState",
    "rocksdb::WriteThread::AwaitState",
    "rocksdb::WriteThread::LinkOne",
    "rocksdb::WriteThread::WaitForStallEndedCount",
    // Stalls of writers: compactions are behind, or memory is short.
    "rocksdb::DBImpl::DelayWrite",
    "rocksdb::DBImpl::WriteBufferManagerStallWrites",
    "rocksdb::DBImpl::WBMStallInterface::Block",
    "rocksdb::DBImpl::WBMStallInterface::BlockFor",
    "rocksdb::FlushInitiator::WaitForPendingFlushHandoff",
    "rocksdb::DBImpl::WaitForPendingWrites",
    "rocksdb::DBImpl::WaitUntilFlushWouldNotStallWrites",
    // Another thread syncs the log, or prepares the next.
    "rocksdb::DBImpl::PreprocessWrite",
    "rocksdb::DBImpl::SyncWalImpl",
    "rocksdb::DBImpl::WaitForAsyncWALPrecreate",
    // Another thread writes the manifest, or installs a flush.
    "rocksdb::VersionSet::LogAndApply",
    "rocksdb::DBImpl::AtomicFlushMemTablesToOutputFiles",
    // Flushes and compactions that somebody waits for.
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
    // Its share of a limited rate, which others use up.
    "rocksdb::GenericRateLimiter::RequestImpl",
    "rocksdb::GenericRateLimiter::Request",
];

/// Whether a wait for a condition with these names on its stack, in any order, keeps the thread from its work: it waits for
/// what another thread has or does. Idle: the contrary.
pub fn is_contention<'a>(mut names: impl Iterator<Item = &'a str>) -> bool {
    names.any(|name| FOR_OTHERS.iter().any(|function| is_of(name, function)))
}

/// `function` with or without its parameters and what follows them, not one whose name only begins so.
fn is_of(name: &str, function: &str) -> bool {
    name.strip_prefix(function)
        .is_some_and(|rest| !rest.starts_with(|next: char| next.is_alphanumeric() || next == '_'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writers_that_wait_for_their_turn_are_kept_and_idle_threads_are_not() {
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
    fn twin_a_name_that_only_begins_so_is_another() {
        assert!(!is_contention(["rocksdb::DBImpl::DelayWriteNever()"].into_iter()));
        assert!(!is_contention(["klad::rocksdb::DBImpl::DelayWrite"].into_iter()));
    }
}
