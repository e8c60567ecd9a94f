//! RocksDB's options, each with its reason. Unless a comment names another source, the source is RocksDB 11.12,
//! `include/rocksdb/options.h`, `advanced_options.h` and `table.h`. Called by `rocksdb` and `rocksdb::check`.

use rust_rocksdb::compaction_filter::Decision;
use rust_rocksdb::{
    BlockBasedIndexType, BlockBasedOptions, BlockBasedPinningTier, Cache, DBCompressionType, DBRecoveryMode,
    DataBlockIndexType, Env, Options as RocksDbOptions, ReadOptions, SstFileManager, WriteBufferManager,
};

use crate::Compression;
use crate::disk::record;
use crate::limits::{
    EXPIRED_KEPT_MAX, LEVEL_0_FILES, MEMTABLE_BYTES_MAX, MEMTABLES, MEMTABLES_A_FLUSH, SCAN_STEP_BYTES_MAX, TABLE_BYTES,
};
use crate::rocksdb::Options;
use klad_base::clock;

/// How long RocksDB searches the cache for blocks of a deleted table. With this value, the search ends when fewer than
/// 5 % of the blocks that RocksDB looks up are in the cache. RocksDB names this value as its future default
/// (`options.h`).
const UNCACHE_AGGRESSIVENESS: u32 = 300;

/// The maximum size of one write to a table in bytes, unless a block is larger. With RocksDB's default of 1 MiB, one
/// write occupies a core for 2.5 ms (docs/decisions/tail-latency.md).
const TABLE_WRITE_BYTES: u64 = 64 << 10;

/// How long RocksDB keeps old logs: a hundred years, so that only klad deletes them.
const ARCHIVE_SECONDS: u64 = 100 * 365 * 24 * 3_600;

/// RocksDB's caches, which klad reads metrics from.
pub(super) struct SharedMemory {
    pub(super) cache: Cache,
    pub(super) memtables: WriteBufferManager,
}

impl SharedMemory {
    pub(super) fn new(options: &Options) -> SharedMemory {
        let cache = cache(options);
        // Memtables are charged to the block cache, so that its capacity bounds both. The manager's own stall is off,
        // because `commit` would wait in it.
        let total = to_usize(options.memtable_bytes);
        let memtables = WriteBufferManager::new_write_buffer_manager_with_cache(total, false, cache.clone());
        SharedMemory { cache, memtables }
    }
}

/// The options of the database.
pub(super) fn database(options: &Options, shared: &SharedMemory) -> RocksDbOptions {
    let mut db = RocksDbOptions::default();
    files_and_threads(&mut db, options);
    memtables(&mut db, options, &shared.memtables);
    log(&mut db, options.changes.bytes > 0);
    levels(&mut db, options.compression);
    // A bulk load compacts its tables itself at the end.
    db.set_disable_auto_compactions(options.bulk_load);
    db.set_block_based_table_factory(&tables(&shared.cache));
    db
}

/// The options of tables that are written outside of the database. They are the same as for a compaction into the last
/// level.
pub(super) fn tables_outside(compression: Compression) -> RocksDbOptions {
    let mut options = RocksDbOptions::default();
    levels(&mut options, compression);
    // A table writer reads no blocks, so the cache stays empty.
    options.set_block_based_table_factory(&tables(&Cache::new_hyper_clock_cache(1 << 20, 0)));
    options
}

/// As `database`, but RocksDB reads and checks all filters and indexes of a table when it opens the table. Few tables
/// are open at a time.
pub(super) fn database_with_pinned_filters(options: &Options) -> RocksDbOptions {
    let shared = SharedMemory::new(options);
    let mut db = database(options, &shared);
    db.set_max_open_files(64);
    let mut tables = tables(&shared.cache);
    tables.set_partition_pinning_tier(BlockBasedPinningTier::All);
    db.set_block_based_table_factory(&tables);
    db
}

/// Makes the block cache. HyperClockCache takes no lock on a hit; `cache.h` calls it "now generally recommended over
/// `LRUCache`". With an estimated charge of 0, the hash table of the cache grows automatically. The dummy entries that
/// stand for the memtables need this.
fn cache(options: &Options) -> Cache {
    Cache::new_hyper_clock_cache(to_usize(options.cache_bytes), 0)
}

fn files_and_threads(db: &mut RocksDbOptions, options: &Options) {
    db.set_use_direct_reads(options.direct_reads);
    // A read that must not wait (ReadTier::BlockCache) opens no table; klad repeats it on a storage thread.
    db.set_max_open_files(i32::try_from(options.open_files_max).unwrap_or(i32::MAX));
    // A start collects no statistics over all tables, so opening a table reads only its footer.
    db.set_skip_stats_update_on_db_open(true);
    let threads = i32::try_from(options.background_threads).expect("few threads").max(1);
    db.set_max_background_jobs(threads + 1);
    let mut env = Env::new().expect("the default environment is always there");
    env.set_low_priority_background_threads(threads);
    env.set_high_priority_background_threads(1);
    // Compactions run at `nice` 19, so requests have priority. Flushes keep the normal priority. With a lower priority,
    // memtables filled up on a busy core, and klad rejected up to 3 % of the writes.
    env.lower_thread_pool_cpu_priority();
    env.lower_thread_pool_io_priority();
    db.set_env(&env);
    // With few cores, a compaction split in two would only compete more with the workers.
    db.set_max_subcompactions(1);
    // RocksDB deletes files and frees memtables on background threads, not during a request.
    db.set_avoid_unnecessary_blocking_io(true);
    // RocksDB writes table files back to the disk steadily. Otherwise the log's sync would wait behind a burst of such
    // writes. The log itself has no such setting: wal_bytes_per_sync can leave holes that recovery does not accept
    // (RocksDB's own crash test keeps it off).
    db.set_bytes_per_sync(1 << 20);
    // A kernel without preemption copies all bytes of one write call before another thread gets the core, whatever the
    // writer's CPU priority.
    db.set_writable_file_max_buffer_size(TABLE_WRITE_BYTES);
    if options.compaction_rate_bytes > 0 {
        // These are RocksDB's defaults: a refill every 100 ms, and one in ten refills serves compactions before
        // flushes.
        db.set_ratelimiter(i64::try_from(options.compaction_rate_bytes).unwrap_or(i64::MAX), 100_000, 10);
    }
    if options.delete_rate_bytes > 0 {
        let files = SstFileManager::new();
        files.set_delete_rate_bytes_per_second(i64::try_from(options.delete_rate_bytes).unwrap_or(i64::MAX));
        db.set_sst_file_manager(&files);
    }
    // klad has its own metrics, so RocksDB need not write statistics to its LOG every 600 s.
    db.set_stats_dump_period_sec(0);
    db.set_stats_persist_period_sec(0);
    // These two bound RocksDB's own LOG files.
    db.set_max_log_file_size(16 << 20);
    db.set_keep_log_file_num(4);
    // After a failed log write the engine takes no writes until the next start (mod.rs), so RocksDB must not resume by
    // itself.
    db.set_max_bgerror_resume_count(0);
}

fn memtables(db: &mut RocksDbOptions, options: &Options, shared: &WriteBufferManager) {
    db.set_write_buffer_manager(shared);
    db.set_write_buffer_size(to_usize((options.memtable_bytes / MEMTABLES).min(MEMTABLE_BYTES_MAX)));
    db.set_max_write_buffer_number(i32::try_from(MEMTABLES).expect("small"));
    // A small memtable fits in the core's CPU cache, where an insertion costs less. A flush merges several memtables
    // and leaves out overwritten entries. The larger file on level 0 saves compactions.
    db.set_min_write_buffer_number_to_merge(i32::try_from(MEMTABLES_A_FLUSH).expect("small"));
    // With a filter, a miss in a memtable costs a hash instead of a search in the skip list. The filter takes 5 % of
    // the memtable.
    db.set_memtable_prefix_bloom_ratio(0.05);
    db.set_memtable_whole_key_filtering(true);
    // Only one thread writes at a time, so concurrent insertion and spinning for a batch leader have no benefit.
    db.set_allow_concurrent_memtable_write(false);
    db.set_enable_write_thread_adaptive_yield(false);
}

fn log(db: &mut RocksDbOptions, keeps_old: bool) {
    if keeps_old {
        // RocksDB moves old logs to `archive` and never deletes them. klad deletes them (`change_log`), because RocksDB
        // would check only every ten minutes whether there are too many logs.
        db.set_wal_ttl_seconds(ARCHIVE_SECONDS);
    }
    // `open.rs` first tries a stricter mode. After a crash of the machine the unsynced end of the log may have holes.
    // The writes before the first hole are the prefix of the commit order that `async` promises.
    db.set_wal_recovery_mode(DBRecoveryMode::PointInTime);
    // Before klad serves, a start writes the recovered writes into tables. These writes need at most the memtables'
    // share of --memory. Without the tables, they would be only in the old log, which RocksDB would never sync again.
    // Then `async` writes from before a kill would be unsynced, while later `sync` writes are synced. RocksDB also does
    // not notice writes that are missing between two logs.
    db.set_avoid_flush_during_recovery(false);
    // A stop need not write tables, because the log contains all writes.
    db.set_avoid_flush_during_shutdown(true);
}

fn levels(db: &mut RocksDbOptions, compression: Compression) {
    // RocksDB derives the level sizes from the last level. The space amplification is about 1.1 for any size of the
    // data.
    db.set_level_compaction_dynamic_level_bytes(true);
    let (between, last) = match compression {
        Compression::None => (DBCompressionType::None, DBCompressionType::None),
        // ZSTD for the last level would take half of the CPU time of compactions, because ZSTD builds its tables anew
        // for each block of 4 KiB.
        Compression::Lz4 => (DBCompressionType::Lz4, DBCompressionType::Lz4),
        // The last level contains 90 % of the data and is written least often.
        Compression::Zstd => (DBCompressionType::Lz4, DBCompressionType::Zstd),
    };
    // Level 0 is not compressed, because its files are short-lived, and writes may wait for the flush that writes these
    // files.
    let mut per_level = [between; 7];
    per_level[0] = DBCompressionType::None;
    db.set_compression_per_level(&per_level);
    db.set_bottommost_compression_type(last);
    if compression == Compression::Zstd {
        // ZSTD uses its lowest regular compression level, 1, because with few cores compactions compete with requests.
        db.set_bottommost_compression_options(-14, 1, 0, 0, true);
    }
    // The more files of level 0 a compaction takes, the less of level 1 it rewrites per file. With eight files,
    // compactions cost less than half as much as with four (docs/decisions/2026-11-21-puts.md). But each file is one
    // more filter to check for a read that memory cannot answer.
    db.set_level_zero_file_num_compaction_trigger(i32::try_from(LEVEL_0_FILES).expect("few"));
    // Level 1 has the total size of the files of level 0 that start a compaction, as RocksDB's tuning guide recommends.
    db.set_max_bytes_for_level_base(LEVEL_0_FILES * MEMTABLES_A_FLUSH * MEMTABLE_BYTES_MAX);
    db.set_target_file_size_base(TABLE_BYTES);
    // RocksDB removes the blocks of deleted tables from the cache. No read uses them again, but HyperClockCache would
    // keep them until other blocks replace them, and klad's memory would grow to its budget even with little data.
    db.set_uncache_aggressiveness(UNCACHE_AGGRESSIVENESS);
    // A compaction drops expired entries, also those that a snapshot sees, because they count as absent there too.
    db.set_compaction_filter("klad-expiry", |_, _, stored| {
        if record::is_expired(stored, clock::unix_ms) { Decision::Remove } else { Decision::Keep }
    });
    // Without new writes no compaction would run, so RocksDB rewrites each file at this age.
    db.set_periodic_compaction_seconds(EXPIRED_KEPT_MAX.as_secs());
}

/// The options of the tables.
fn tables(cache: &Cache) -> BlockBasedOptions {
    let mut tables = BlockBasedOptions::default();
    tables.set_block_cache(cache);
    // A point read searches a small block faster. 4 KiB is also one page of the disk.
    tables.set_block_size(4 << 10);
    tables.set_format_version(6);
    // With 10 bits per key, 1 % of the reads of an absent key search the table. All levels have filters, because reads
    // of absent keys must be cheap too.
    tables.set_bloom_filter(10.0, false);
    tables.set_optimize_filters_for_memory(true);
    // Indexes and filters are in the cache, and so in the memory budget. They are partitioned, and only the top level
    // is pinned. For a table of small entries they take megabytes, which the cache would otherwise load and evict as a
    // whole if there is more data than memory.
    tables.set_index_type(BlockBasedIndexType::TwoLevelIndexSearch);
    tables.set_partition_filters(true);
    tables.set_metadata_block_size(4 << 10);
    tables.set_cache_index_and_filter_blocks(true);
    tables.set_cache_index_and_filter_blocks_with_high_priority(true);
    tables.set_pin_top_level_index_and_filter(true);
    tables.set_pin_l0_filter_and_index_blocks_in_cache(true);
    // A hash table in each block finds a key without binary search. It saves 20 % of the CPU time of the block's seek
    // and needs 5 % more space (RocksDB blog, 2018-08-23).
    tables.set_data_block_index_type(DataBlockIndexType::BinaryAndHash);
    tables
}

/// The read options of one scan step of at most `entries_max` entries.
pub(super) fn scan(from: &[u8], end: Option<&[u8]>, entries_max: usize) -> ReadOptions {
    let mut options = ReadOptions::default();
    options.set_iterate_lower_bound(from);
    if let Some(end) = end {
        options.set_iterate_upper_bound(end);
    }
    // A large scan must not evict the blocks of point reads.
    options.fill_cache(false);
    // Each step reads ahead in each table of the range, and most tables have few entries of the step. 128 bytes are
    // about the size of a small entry.
    options.set_readahead_size((entries_max.saturating_mul(128)).clamp(16 << 10, SCAN_STEP_BYTES_MAX));
    options
}

fn to_usize(bytes: u64) -> usize {
    usize::try_from(bytes).expect("klad is built for 64-bit machines")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rust_rocksdb::{BottommostLevelCompaction, CompactOptions, DB, LogLevel};

    use super::*;

    fn options() -> Options {
        Options {
            cache_bytes: 64 << 20,
            memtable_bytes: 32 << 20,
            compression: Compression::None,
            ..Options::default()
        }
    }

    /// Compacts and reads all data three times. Returns the bytes in the cache after the first time and after the last.
    fn cached(uncache_aggressiveness: u32) -> (usize, usize) {
        const KEYS: u32 = 10_000;
        let directory = tempfile::tempdir().expect("a directory");
        let (options, mut rewriting) = (options(), CompactOptions::default());
        rewriting.set_bottommost_level_compaction(BottommostLevelCompaction::Force);
        let shared = SharedMemory::new(&options);
        let mut with = database(&options, &shared);
        with.create_if_missing(true);
        if uncache_aggressiveness != UNCACHE_AGGRESSIVENESS {
            with.set_uncache_aggressiveness(uncache_aggressiveness);
        }
        let db = DB::open(&with, directory.path()).expect("opened");
        for key in 0..KEYS {
            db.put(key.to_be_bytes(), [7; 500]).expect("written");
        }
        let rewrite_and_read = || {
            db.compact_range_opt(None::<&[u8]>, None::<&[u8]>, &rewriting);
            assert!((0..KEYS).all(|key| db.get(key.to_be_bytes()).expect("read").is_some()));
            shared.cache.get_usage()
        };
        let first = rewrite_and_read();
        rewrite_and_read();
        rewrite_and_read();
        // The compaction thread removes tables after it has reported the end of the compaction.
        db.cancel_all_background_work(true);
        (first, shared.cache.get_usage())
    }

    /// Returns the average size in bytes of a write call while a database with a large log is opened. The opening
    /// thread then writes the tables itself, so its counters are not mixed with those of other tests, as a flush
    /// thread's would be.
    fn table_write_bytes(max: u64) -> u64 {
        let written = || {
            let io = std::fs::read_to_string("/proc/thread-self/io").expect("the kernel counts");
            let count = |name: &str| {
                let line = io.lines().find_map(|line| line.strip_prefix(name)).expect("counted");
                line.trim().parse::<u64>().expect("a number")
            };
            (count("wchar:"), count("syscw:"))
        };
        let directory = tempfile::tempdir().expect("a directory");
        let options = Options { memtable_bytes: 256 << 20, ..options() };
        let shared = SharedMemory::new(&options);
        let mut with = database(&options, &shared);
        with.create_if_missing(true);
        // All data is only in the log until the database is opened again.
        with.set_write_buffer_size(64 << 20);
        with.set_avoid_flush_during_shutdown(true);
        // Each line of RocksDB's LOG would be a write call too.
        with.set_log_level(LogLevel::Fatal);
        if max != TABLE_WRITE_BYTES {
            with.set_writable_file_max_buffer_size(max);
        }
        let db = DB::open(&with, directory.path()).expect("opened");
        for key in 0..16_000_u32 {
            db.put(key.to_be_bytes(), [7; 1000]).expect("written");
        }
        drop(db);
        let before = written();
        let db = DB::open(&with, directory.path()).expect("opened");
        let after = written();
        assert!(db.get(0_u32.to_be_bytes()).expect("read").is_some());
        assert!(after.0 - before.0 > 15 << 20, "the tables are written");
        (after.0 - before.0) / (after.1 - before.1)
    }

    #[test]
    fn tables_are_written_in_small_writes() {
        assert!(table_write_bytes(TABLE_WRITE_BYTES) <= TABLE_WRITE_BYTES);
    }

    #[test]
    fn twin_a_larger_write_buffer_makes_larger_writes() {
        assert!(table_write_bytes(1 << 20) > TABLE_WRITE_BYTES);
    }

    /// Returns whether tables that a compaction has removed still wait for their deletion.
    fn removed_tables_wait(delete_rate_bytes: u64) -> bool {
        let directory = tempfile::tempdir().expect("a directory");
        let options = Options { delete_rate_bytes, ..options() };
        let mut with = database(&options, &SharedMemory::new(&options));
        with.create_if_missing(true);
        let db = DB::open(&with, directory.path()).expect("opened");
        for key in 0..4_u32 {
            db.put(key.to_be_bytes(), [7; 500]).expect("written");
            db.flush().expect("flushed");
        }
        db.compact_range(None::<&[u8]>, None::<&[u8]>);
        // The compaction thread removes tables after it has reported the end of the compaction.
        db.cancel_all_background_work(true);
        let mut files = std::fs::read_dir(directory.path()).expect("a directory").flatten();
        files.any(|file| file.path().extension().is_some_and(|extension| extension == "trash"))
    }

    #[test]
    fn the_delete_rate_delays_deletions() {
        assert!(removed_tables_wait(1));
        assert!(!removed_tables_wait(0), "twin: without a rate limit no table waits");
    }

    /// Makes up to `rounds` flushes of 512 KiB. Returns whether one took less than 200 ms.
    fn some_flush_is_faster(compaction_rate_bytes: u64, rounds: u32) -> bool {
        let directory = tempfile::tempdir().expect("a directory");
        let options = Options { compaction_rate_bytes, ..options() };
        let mut with = database(&options, &SharedMemory::new(&options));
        with.create_if_missing(true);
        let db = DB::open(&with, directory.path()).expect("opened");
        let flush = |round: u32| {
            for key in 0..512_u32 {
                db.put([round.to_be_bytes(), key.to_be_bytes()].concat(), [7; 1_024]).expect("written");
            }
            let begun = clock::now();
            db.flush().expect("flushed");
            clock::now() - begun
        };
        (0..rounds).any(|round| flush(round) < Duration::from_millis(200))
    }

    /// A busy machine can only make a flush slower, so the lower bound always holds.
    #[test]
    fn the_compaction_rate_delays_flushes() {
        assert!(!some_flush_is_faster(1 << 20, 3));
        assert!(some_flush_is_faster(0, 100), "twin: without a rate limit some flush is faster");
    }

    #[test]
    fn blocks_of_deleted_tables_leave_the_cache() {
        let (first, last) = cached(UNCACHE_AGGRESSIVENESS);
        assert!(first > 4 << 20, "{first}: all data is in the cache");
        assert!(last < first / 4 * 5, "{last} after {first}");
    }

    #[test]
    fn twin_without_uncaching_blocks_of_deleted_tables_stay() {
        let (first, last) = cached(0);
        assert!(last > first * 2, "{last} after {first}");
    }
}
