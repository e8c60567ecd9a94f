//! RocksDB's options, each with its reason. Source, where none is named: RocksDB 11.12, `include/rocksdb/options.h`,
//! `advanced_options.h` and `table.h`. Called by `rocksdb.rs` and `rocksdb_check.rs`.

use rust_rocksdb::{
    BlockBasedIndexType, BlockBasedOptions, BlockBasedPinningTier, Cache, DBCompressionType, DBRecoveryMode,
    DataBlockIndexType, Env, Options as RocksDbOptions, ReadOptions, SstFileManager, WriteBufferManager,
};

use crate::Compression;
use crate::rocksdb::Options;
use klad_base::limits::{LEVEL_0_FILES, MEMTABLE_BYTES_MAX, MEMTABLES, MEMTABLES_A_FLUSH};

/// A table's blocks are looked for in the cache until fewer than one in twenty is there. RocksDB's own figure for the day on which
/// it makes this the default (`options.h`).
const UNCACHE_AGGRESSIVENESS: u32 = 300;

/// Of one write to a table, at most, if its blocks are no larger. RocksDB's own figure, 1 MiB, is 2.5 ms without a break
/// (docs/decisions/2026-11-26-tables-are-written-in-small-pieces.md).
const TABLE_WRITE_BYTES: u64 = 64 << 10;

/// What RocksDB keeps in memory, and can be asked about.
pub(super) struct Shared {
    pub(super) cache: Cache,
    pub(super) memtables: WriteBufferManager,
}

impl Shared {
    pub(super) fn new(options: &Options) -> Shared {
        let cache = cache(options);
        // Charged to the block cache, so that the cache's capacity bounds both. No stall of its own: `commit` would wait in it.
        let total = to_usize(options.memtable_bytes);
        let memtables = WriteBufferManager::new_write_buffer_manager_with_cache(total, false, cache.clone());
        Shared { cache, memtables }
    }
}

/// All options of the database.
pub(super) fn database(options: &Options, shared: &Shared) -> RocksDbOptions {
    let mut db = RocksDbOptions::default();
    files_and_threads(&mut db, options);
    memtables(&mut db, options, &shared.memtables);
    log(&mut db);
    levels(&mut db, options.compression);
    db.set_block_based_table_factory(&tables(&shared.cache));
    db
}

/// As `database`, but each table's filters and indexes are read whole, and checked, when it is opened; few are open at a
/// time.
pub(super) fn reading_filters(options: &Options) -> RocksDbOptions {
    let shared = Shared::new(options);
    let mut db = database(options, &shared);
    db.set_max_open_files(64);
    let mut tables = tables(&shared.cache);
    tables.set_partition_pinning_tier(BlockBasedPinningTier::All);
    db.set_block_based_table_factory(&tables);
    db
}

/// HyperClockCache has no lock on a hit, and `cache.h` calls it "now generally recommended over `LRUCache`". An estimated
/// charge of 0 makes its table grow by itself, which the dummy entries of the memtables' charge need.
fn cache(options: &Options) -> Cache {
    Cache::new_hyper_clock_cache(to_usize(options.cache_bytes), 0)
}

fn files_and_threads(db: &mut RocksDbOptions, options: &Options) {
    db.set_use_direct_reads(options.direct_reads);
    // A read that must not wait (ReadTier::BlockCache) opens no table, and goes to a storage thread where that is needed.
    db.set_max_open_files(i32::try_from(options.open_files_max).unwrap_or(i32::MAX));
    // Opening a table then reads only its footer: no statistics are gathered over all tables at start.
    db.set_skip_stats_update_on_db_open(true);
    let threads = i32::try_from(options.background_threads).expect("few threads").max(1);
    db.set_max_background_jobs(threads + 1);
    let mut env = Env::new().expect("the default environment is always there");
    env.set_low_priority_background_threads(threads);
    env.set_high_priority_background_threads(1);
    // Requests go before compactions, by `nice` 19. Not before flushes: on a core that requests want all of, memtables would fill
    // up and writes be refused, up to 3 of 100.
    env.lower_thread_pool_cpu_priority();
    env.lower_thread_pool_io_priority();
    db.set_env(&env);
    // On few cores one compaction split in two would only take the workers' cores.
    db.set_max_subcompactions(1);
    // Deleting files and freeing memtables happens on background threads, not under a request.
    db.set_avoid_unnecessary_blocking_io(true);
    // Table files are pushed out steadily, or the log's sync would queue behind a burst of them. Not for the log itself:
    // wal_bytes_per_sync can leave holes that recovery does not pass (RocksDB's own crash test keeps it off).
    db.set_bytes_per_sync(1 << 20);
    // A kernel without preemption copies what one call writes before anybody else has the core, however little weight the writer has.
    db.set_writable_file_max_buffer_size(TABLE_WRITE_BYTES);
    if options.compaction_rate_bytes > 0 {
        // Refilled every 100 ms; one in ten refills serves compactions before flushes: both are RocksDB's own figures.
        db.set_ratelimiter(i64::try_from(options.compaction_rate_bytes).unwrap_or(i64::MAX), 100_000, 10);
    }
    if options.delete_rate_bytes > 0 {
        let files = SstFileManager::new();
        files.set_delete_rate_bytes_per_second(i64::try_from(options.delete_rate_bytes).unwrap_or(i64::MAX));
        db.set_sst_file_manager(&files);
    }
    // klad has its own observation; a dump every 600 s is work and log lines that no one asked for.
    db.set_stats_dump_period_sec(0);
    db.set_stats_persist_period_sec(0);
    // RocksDB's own LOG files: bounded.
    db.set_max_log_file_size(16 << 20);
    db.set_keep_log_file_num(4);
    // An error of the log is final until restart (see rocksdb.rs): RocksDB must not resume behind klad's back.
    db.set_max_bgerror_resume_count(0);
}

fn memtables(db: &mut RocksDbOptions, options: &Options, shared: &WriteBufferManager) {
    db.set_write_buffer_manager(shared);
    db.set_write_buffer_size(to_usize((options.memtable_bytes / MEMTABLES).min(MEMTABLE_BYTES_MAX)));
    db.set_max_write_buffer_number(i32::try_from(MEMTABLES).expect("small"));
    // A small memtable stays in the core's cache, where an insertion costs less; a file of level 0 that holds several
    // spares compactions. A flush merges them, and leaves out what was overwritten.
    db.set_min_write_buffer_number_to_merge(i32::try_from(MEMTABLES_A_FLUSH).expect("small"));
    // A miss in a memtable costs a hash instead of a search through the skip list; a twentieth of it holds the bits.
    db.set_memtable_prefix_bloom_ratio(0.05);
    db.set_memtable_whole_key_filtering(true);
    // One thread writes: nothing to gain from concurrent insertion, and no spinning for a leader.
    db.set_allow_concurrent_memtable_write(false);
    db.set_enable_write_thread_adaptive_yield(false);
}

fn log(db: &mut RocksDbOptions) {
    // Whoever opens asks for a log that is whole first (rocksdb_open.rs), and then for this: after the death of the machine the unsynced end of the log may have holes; what is before the first is the prefix of
    // commit order that `async` promises.
    db.set_wal_recovery_mode(DBRecoveryMode::PointInTime);
    // A start writes what the log gave back into tables, at most --memory's share of memtables, before it serves. A log that
    // was kept instead would never be synced again: what was `async` before a kill would lie behind what is `sync` after it. And
    // of several logs RocksDB does not notice what is missing between two.
    db.set_avoid_flush_during_recovery(false);
    // A stop need not write tables either: the log has everything.
    db.set_avoid_flush_during_shutdown(true);
}

fn levels(db: &mut RocksDbOptions, compression: Compression) {
    // Levels sized from the last one up: space amplification of about 1.1 whatever the size of the store.
    db.set_level_compaction_dynamic_level_bytes(true);
    let (between, last) = match compression {
        Compression::None => (DBCompressionType::None, DBCompressionType::None),
        // Half of what compactions cost is ZSTD, where the last level has it: for blocks of 4 KiB its tables are made anew.
        Compression::Lz4 => (DBCompressionType::Lz4, DBCompressionType::Lz4),
        // The last level holds nine tenths of the data and is written least often.
        Compression::Zstd => (DBCompressionType::Lz4, DBCompressionType::Zstd),
    };
    // Level 0 lives shortly and is written by the flush that writes may wait for: not compressed.
    let mut per_level = [between; 7];
    per_level[0] = DBCompressionType::None;
    db.set_compression_per_level(&per_level);
    db.set_bottommost_compression_type(last);
    if compression == Compression::Zstd {
        // Effort 1, the least of ZSTD's regular ones: on few cores compactions compete with requests.
        db.set_bottommost_compression_options(-14, 1, 0, 0, true);
    }
    // What a compaction out of level 0 rewrites beside its files is the less for each of them the more they are: with
    // eight it cost less than half of what it did with four (docs/decisions/2026-11-21-puts.md). Each is one more filter to ask for a read that memory does not answer.
    db.set_level_zero_file_num_compaction_trigger(i32::try_from(LEVEL_0_FILES).expect("few"));
    // As much as these files hold, as RocksDB's tuning guide has it.
    db.set_max_bytes_for_level_base(LEVEL_0_FILES * MEMTABLES_A_FLUSH * MEMTABLE_BYTES_MAX);
    db.set_target_file_size_base(32 << 20);
    // Blocks of a table that a compaction has removed leave the cache with it. Nobody asks for them again, yet this kind of cache
    // would keep them until others push them out, so that klad grows towards its budget however little it holds.
    db.set_uncache_aggressiveness(UNCACHE_AGGRESSIVENESS);
}

/// Of each table.
fn tables(cache: &Cache) -> BlockBasedOptions {
    let mut tables = BlockBasedOptions::default();
    tables.set_block_cache(cache);
    // A small block is less to search for a point read; 4 KiB is also what one page of the disk holds.
    tables.set_block_size(4 << 10);
    tables.set_format_version(6);
    // 10 bits a key: one read in a hundred of an absent key looks further. On all levels, because 404 must be cheap too.
    tables.set_bloom_filter(10.0, false);
    tables.set_optimize_filters_for_memory(true);
    // Index and filters are in the cache, hence in the budget. In pieces, of which only the top stays for good: whole ones
    // of a table with small entries are megabytes, and a store larger than memory would swap them.
    tables.set_index_type(BlockBasedIndexType::TwoLevelIndexSearch);
    tables.set_partition_filters(true);
    tables.set_metadata_block_size(4 << 10);
    tables.set_cache_index_and_filter_blocks(true);
    tables.set_cache_index_and_filter_blocks_with_high_priority(true);
    tables.set_pin_top_level_index_and_filter(true);
    tables.set_pin_l0_filter_and_index_blocks_in_cache(true);
    // A hash table in each block finds a key without binary search: a fifth less CPU in the block's seek for 5 % more space
    // (RocksDB blog, 2018-08-23).
    tables.set_data_block_index_type(DataBlockIndexType::BinaryAndHash);
    tables
}

/// Options of one scan step.
pub(super) fn scan(end: Option<&[u8]>) -> ReadOptions {
    let mut options = ReadOptions::default();
    if let Some(end) = end {
        options.set_iterate_upper_bound(end);
    }
    // A scan over everything must not throw out what point reads use.
    options.fill_cache(false);
    // What a step reads at the most, in one piece.
    options.set_readahead_size(klad_base::limits::SCAN_STEP_BYTES_MAX);
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
    use klad_base::clock;

    fn options() -> Options {
        Options {
            cache_bytes: 64 << 20,
            memtable_bytes: 32 << 20,
            value_cache_percent: 0,
            background_threads: 1,
            disk_reserve_bytes: 0,
            compression: Compression::None,
            direct_reads: false,
            iterator_reads: false,
            log_preallocation: false,
            compaction_rate_bytes: 0,
            delete_rate_bytes: 0,
            open_files_max: klad_base::limits::ENGINE_FILES_MAX,
        }
    }

    /// What the cache holds when all of a store has been read, bytes: as it was filled, and after it was rewritten twice.
    fn cached(uncache_aggressiveness: u32) -> (usize, usize) {
        const KEYS: u32 = 10_000;
        let directory = tempfile::tempdir().expect("a directory");
        let (options, mut rewriting) = (options(), CompactOptions::default());
        rewriting.set_bottommost_level_compaction(BottommostLevelCompaction::Force);
        let shared = Shared::new(&options);
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
        // Tables are removed by the thread that compacts, after it has said that it is done.
        db.cancel_all_background_work(true);
        (first, shared.cache.get_usage())
    }

    /// Bytes of one write, on average, while a store is opened that has much in its log: the thread that opens it writes the tables. Those of
    /// flushes are other tests', too.
    fn table_write_bytes(max: u64) -> u64 {
        let written = || {
            let io = std::fs::read_to_string("/proc/thread-self/io").expect("the kernel counts");
            let of = |name: &str| {
                let line = io.lines().find_map(|line| line.strip_prefix(name)).expect("counted");
                line.trim().parse::<u64>().expect("a number")
            };
            (of("wchar:"), of("syscw:"))
        };
        let directory = tempfile::tempdir().expect("a directory");
        let options = Options { memtable_bytes: 256 << 20, ..options() };
        let shared = Shared::new(&options);
        let mut with = database(&options, &shared);
        with.create_if_missing(true);
        // All of it is in the log alone until it is opened again.
        with.set_write_buffer_size(64 << 20);
        with.set_avoid_flush_during_shutdown(true);
        // Each line of RocksDB's own log would be a write as well.
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
    fn tables_are_written_in_small_pieces() {
        assert!(table_write_bytes(TABLE_WRITE_BYTES) <= TABLE_WRITE_BYTES);
    }

    #[test]
    fn twin_tables_that_are_written_in_large_pieces_are_noticed() {
        assert!(table_write_bytes(1 << 20) > TABLE_WRITE_BYTES);
    }

    /// Whether tables that a compaction has removed are still there.
    fn removed_tables_wait(delete_rate_bytes: u64) -> bool {
        let directory = tempfile::tempdir().expect("a directory");
        let options = Options { delete_rate_bytes, ..options() };
        let mut with = database(&options, &Shared::new(&options));
        with.create_if_missing(true);
        let db = DB::open(&with, directory.path()).expect("opened");
        for key in 0..4_u32 {
            db.put(key.to_be_bytes(), [7; 500]).expect("written");
            db.flush().expect("flushed");
        }
        db.compact_range(None::<&[u8]>, None::<&[u8]>);
        // Tables are removed by the thread that compacts, after it has said that it is done.
        db.cancel_all_background_work(true);
        let mut files = std::fs::read_dir(directory.path()).expect("a directory").flatten();
        files.any(|file| file.path().extension().is_some_and(|extension| extension == "trash"))
    }

    #[test]
    fn the_delete_rate_holds_back_what_is_removed() {
        assert!(removed_tables_wait(1));
        assert!(!removed_tables_wait(0), "twin: without it nothing is");
    }

    /// The shortest of some flushes of half a MiB.
    fn shortest_flush(compaction_rate_bytes: u64) -> Duration {
        let directory = tempfile::tempdir().expect("a directory");
        let options = Options { compaction_rate_bytes, ..options() };
        let mut with = database(&options, &Shared::new(&options));
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
        (0..3).map(flush).min().expect("some")
    }

    /// Nothing that holds up the machine makes a flush quicker than its rate.
    #[test]
    fn the_compaction_rate_holds_back_what_is_written() {
        let least = Duration::from_millis(200);
        assert!(shortest_flush(1 << 20) >= least);
        assert!(shortest_flush(0) < least, "twin: without it some flush is quicker");
    }

    #[test]
    fn blocks_of_tables_that_are_gone_leave_the_cache() {
        let (first, last) = cached(UNCACHE_AGGRESSIVENESS);
        assert!(first > 4 << 20, "{first}: all of it is there");
        assert!(last < first / 4 * 5, "{last} after {first}");
    }

    #[test]
    fn twin_a_cache_that_keeps_them_is_noticed() {
        let (first, last) = cached(0);
        assert!(last > first * 2, "{last} after {first}");
    }
}
