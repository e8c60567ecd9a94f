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
    // Its turn in the group of writers, or the end of the group's write.
    "rocksdb::WriteThread::BlockingAwaitState",
    "rocksdb::WriteThread::AwaitState",
];

/// Whether a wait for a condition with these names on its stack, in any order, keeps the thread from its work: it waits for
/// what another thread has or does. Idle: the contrary.
pub fn is_contention<'a>(mut names: impl Iterator<Item = &'a str>) -> bool {
    names.any(|name| FOR_OTHERS.iter().any(|function| is_of(name, function)))
}

/// `function` with or without its parameters and what follows them, not one whose name only begins so.
fn is_of(name: &str, function: &str) -> bool {
    name.strip_prefix(function).is_some_and(|rest| !rest.starts_with(|next: char| next.is_alphanumeric() || next == '_'))
}
