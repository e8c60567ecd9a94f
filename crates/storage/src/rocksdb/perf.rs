//! What RocksDB had to do for an operation, from its perf context, which is the calling thread's.
//!
//! Counts cost what they always cost: RocksDB keeps them anyway. Times cost it a look at the clock, 25 to 75 ns, at each step: a
//! point read or a batch has a dozen, which is little beside a disk, and is asked only where there may be one. Of a batch
//! without a sync it would be a tenth, so only waits are timed. A range has some for each entry, so its times stay unknown.
//! Called by `rocksdb.rs`.

use rust_rocksdb::perf::{PerfMetric, PerfStatsLevel, set_perf_stats, with_thread_local};

use crate::perf::{Figure, Perf};

/// What is done, which says what of it is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    /// A read of one key.
    Read,
    /// A step of a range.
    Scan,
    /// A batch of so many writes, with a sync.
    SyncedBatch(usize),
    /// One without.
    Batch(usize),
}

const READ: &[(Figure, PerfMetric)] = &[
    (Figure::BlockCacheHits, PerfMetric::BlockCacheHitCount),
    (Figure::BlockReads, PerfMetric::BlockReadCount),
    (Figure::BlockReadBytes, PerfMetric::BlockReadByte),
    (Figure::BlockReadTime, PerfMetric::BlockReadTime),
    (Figure::DecompressTime, PerfMetric::BlockDecompressTime),
    (Figure::FiltersUseful, PerfMetric::BloomSstMissCount),
    (Figure::FiltersPassed, PerfMetric::BloomSstHitCount),
    (Figure::MemtablesAsked, PerfMetric::GetFromMemtableCount),
    (Figure::MemtableReadTime, PerfMetric::GetFromMemtableTime),
    (Figure::TableReadTime, PerfMetric::GetFromOutputFilesTime),
];

/// Without the blocks: they are read ahead, many at once, and RocksDB does not count those.
const SCAN: &[(Figure, PerfMetric)] = &[
    (Figure::BlockCacheHits, PerfMetric::BlockCacheHitCount),
    (Figure::EntriesPassed, PerfMetric::InternalKeySkippedCount),
    (Figure::RemovalsSkipped, PerfMetric::InternalDeleteSkippedCount),
];

const SYNCED_BATCH: &[(Figure, PerfMetric)] = &[
    (Figure::LogWriteTime, PerfMetric::WriteWalTime),
    (Figure::MemtableWriteTime, PerfMetric::WriteMemtableTime),
    (Figure::WriteDelayTime, PerfMetric::WriteDelayTime),
    (Figure::MutexWaitTime, PerfMetric::DbMutexLockNanos),
    (Figure::ConditionWaitTime, PerfMetric::DbConditionWaitNanos),
];

/// RocksDB counts filling the memtable among the waits.
const BATCH: &[(Figure, PerfMetric)] =
    &[(Figure::MemtableWriteTime, PerfMetric::WriteMemtableTime), (Figure::WriteDelayTime, PerfMetric::WriteDelayTime)];

/// Does `work`, which calls RocksDB on this thread and never this function, and says what it took.
pub(super) fn measured<T>(what: Work, work: impl FnOnce() -> T) -> (T, Perf) {
    let shared_by = |writes| u32::try_from(writes).unwrap_or(u32::MAX);
    let (level, shared_by, figures) = match what {
        Work::Read => (PerfStatsLevel::EnableTimeExceptForMutex, 1, READ),
        Work::Scan => (PerfStatsLevel::EnableCount, 1, SCAN),
        Work::SyncedBatch(writes) => (PerfStatsLevel::EnableTime, shared_by(writes), SYNCED_BATCH),
        Work::Batch(writes) => (PerfStatsLevel::EnableWait, shared_by(writes), BATCH),
    };
    set_perf_stats(level);
    let both = with_thread_local(|context| {
        let done = work();
        let said = |perf: Perf, (figure, metric): &(Figure, PerfMetric)| perf.with(*figure, context.metric(*metric));
        (done, figures.iter().fold(Perf::new(shared_by), said))
    });
    // What else this thread asks of RocksDB is not to be slower.
    set_perf_stats(PerfStatsLevel::EnableCount);
    both
}
