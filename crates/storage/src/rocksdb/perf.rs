//! Measures RocksDB's work for one operation with its perf context, which belongs to the calling thread.
//!
//! Counters are free, because RocksDB always updates them. Timers cost a clock read of 25 to 75 ns at each step:
//!
//! * A point read or a synced batch has about a dozen steps. The clock reads take little time compared with a disk
//!   access, so all steps are timed. `read_cached`, which never reads the disk, is not measured.
//! * For a batch without a sync, timing all steps would take 10 % of the time, so only waits are timed.
//! * A range read has several steps for each entry, so its times stay unknown.
//!
//! Called by `rocksdb`.

use rust_rocksdb::perf::{PerfContext, PerfMetric, PerfStatsLevel, set_perf_stats, with_thread_local};

use crate::perf::{Figure, Perf};

/// The kind of an operation. It selects the figures to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    /// A read of one key.
    Read,
    /// One step of a range read.
    Scan,
    /// A batch of this number of writes, with a sync.
    SyncedBatch(usize),
    /// A batch of this number of writes, without a sync.
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

/// The figures of a scan step. Block reads are missing, because a scan reads many blocks ahead at once, and RocksDB
/// does not count those reads.
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

/// The figures of a batch without a sync. RocksDB's level for timing waits includes the time to fill the memtable.
const BATCH: &[(Figure, PerfMetric)] =
    &[(Figure::MemtableWriteTime, PerfMetric::WriteMemtableTime), (Figure::WriteDelayTime, PerfMetric::WriteDelayTime)];

/// The entries that RocksDB's iterators have passed on this thread since the operation began: returned, removed,
/// overwritten, or newer than the snapshot. A removed entry may count twice.
pub(super) struct Passed<'p>(&'p PerfContext);

impl Passed<'_> {
    pub(super) fn count(&self) -> u64 {
        const PASSED: [PerfMetric; 3] = [
            PerfMetric::InternalDeleteSkippedCount,
            PerfMetric::InternalKeySkippedCount,
            PerfMetric::InternalRecentSkippedCount,
        ];
        PASSED.into_iter().map(|metric| self.0.metric(metric)).sum()
    }
}

/// Runs `operation`, which calls RocksDB on this thread, and measures it. `operation` must not call this function.
pub(super) fn measure<T>(work: Work, operation: impl FnOnce() -> T) -> (T, Perf) {
    measure_with(work, |_| operation())
}

/// As [`measure`], but `operation` may also ask how many entries it has passed.
pub(super) fn measure_with<T>(work: Work, operation: impl FnOnce(&Passed<'_>) -> T) -> (T, Perf) {
    let shared_by = |writes| u32::try_from(writes).unwrap_or(u32::MAX);
    let (level, shared_by, figures) = match work {
        Work::Read => (PerfStatsLevel::EnableTimeExceptForMutex, 1, READ),
        Work::Scan => (PerfStatsLevel::EnableCount, 1, SCAN),
        Work::SyncedBatch(writes) => (PerfStatsLevel::EnableTime, shared_by(writes), SYNCED_BATCH),
        Work::Batch(writes) => (PerfStatsLevel::EnableWait, shared_by(writes), BATCH),
    };
    set_perf_stats(level);
    let measured = with_thread_local(|context| {
        let result = operation(&Passed(context));
        let add = |perf: Perf, (figure, metric): &(Figure, PerfMetric)| perf.with(*figure, context.metric(*metric));
        (result, figures.iter().fold(Perf::new(shared_by), add))
    });
    // Other calls of this thread must not pay for timers.
    set_perf_stats(PerfStatsLevel::EnableCount);
    measured
}
