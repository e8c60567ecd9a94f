//! Limits of the engines. Each has its unit, its reason, and what klad does when it is reached.

use std::time::Duration;

/// A worker answers a GET itself if the value is in memory and has at most this many bytes. A storage thread copies a
/// larger value. At 6 GB/s, 64 KiB take 11 µs, which is the cost of a whole request.
pub const CACHED_VALUE_BYTES_MAX: usize = 64 << 10;

/// The largest `--key-max`, bytes: no key is longer. The percent-encoded key must fit into a request line, which the
/// `http` crate limits to 65,534 bytes.
pub const KEY_BYTES_CEILING: usize = 16 << 10;

/// Bytes of keys and values of one scan step. A larger entry is a step by itself.
pub const SCAN_STEP_BYTES_MAX: usize = 64 << 10;

/// Bytes of keys and values in one batch. Only a single write may be larger.
pub const COMMIT_BYTES_MAX: usize = 4 << 20;

/// The number of memtables: one that is being filled, [`MEMTABLES_A_FLUSH`] that are being flushed, and four spare
/// ones before writes must wait.
pub const MEMTABLES: u64 = 8;

/// The number of memtables that one flush merges into one file of level 0.
pub const MEMTABLES_A_FLUSH: u64 = 3;

/// The number of files of level 0 at which RocksDB compacts them into the next level. See
/// `docs/decisions/2026-11-21-puts.md`.
pub const LEVEL_0_FILES: u64 = 10;

/// The largest memtable, bytes. A start after a kill reads the contents of all memtables from the log again, and
/// inserting small entries in random order costs 2.4 µs each. See `docs/decisions/2026-11-21-puts.md`.
pub const MEMTABLE_BYTES_MAX: u64 = 4 << 20;

/// How often klad checks free space and version blocks. A disk that writes 1 GB a second writes 250 MB in this time,
/// which is less than the default reserve.
pub const HOUSEKEEPING_INTERVAL: Duration = Duration::from_millis(250);

/// The shortest interval between two readings of engine figures that cost time for each file. For a thousand tables
/// (30 GiB) they take about a millisecond.
pub const SLOW_LOOK_INTERVAL: Duration = Duration::from_secs(2);

/// The number of versions that a checkpoint skips. A store that is started from a checkpoint gives out versions from this
/// far above the last one of the checkpoint. The original store may have given out versions after the checkpoint was
/// made; they are not used again, as long as it made fewer writes than this. 2^40 versions last for 12 days at 1,000,000
/// writes a second, and for 348 years at 100. All 2^64 versions suffice for 2^24 such jumps.
pub const CHECKPOINT_VERSIONS_AHEAD: u64 = 1 << 40;

/// A full compaction compacts at least this many bytes of tables in one piece. It can be cancelled between two pieces:
/// after some seconds on a disk that does 100 MB a second.
pub const COMPACTION_PIECE_BYTES: u64 = 256 << 20;

/// klad rejects a full compaction if the free space beyond the reserve is smaller than all tables, or smaller than
/// this. RocksDB rewrites at most 25 tables of 32 MiB in one step before it deletes the old ones.
pub const COMPACTION_ROOM_BYTES: u64 = 2 << 30;

/// At a start, klad first reads logs of fewer bytes together without changing anything, and compares them with what
/// was synced. So it detects an emptied or removed log before RocksDB continues without it. Reading 1 MiB of small
/// entries takes about 20 ms.
pub const LOG_BYTES_READ_TWICE: u64 = 1 << 20;

/// The number of findings that `klad check` prints. It counts the rest.
pub const CHECK_FINDINGS_MAX: usize = 20;

/// Bytes of block cache and memtables of `klad check` and `klad compact`.
pub const OFFLINE_CACHE_BYTES: u64 = 128 << 20;

/// A scan step passes at most this many removed entries without meeting another one, then it tries a smaller range.
/// Passing one takes 0.3 to 2.5 µs, so this takes at most some 10 ms. A step also ends after as many expired entries.
pub const REMOVED_PER_ATTEMPT_MAX: u64 = 4_096;

/// Beyond this bit of a key a scan step does not look for a nearer bound, but passes all removed entries: they share
/// the first 256 bytes of their keys.
pub const SCAN_REACH_MAX: u32 = 8 * 256;

/// A scan step ends when it has passed this many entries, removed ones included. Its page may then be short or empty,
/// and the scan continues behind them. Only the search for a first bound may pass some more.
pub const PASSED_PER_STEP_MAX: u64 = 8 * REMOVED_PER_ATTEMPT_MAX;

/// A scan step also ends after this time, because a slow disk may take much longer for as many entries.
pub const SCAN_STEP_TIME_MAX: Duration = Duration::from_millis(20);

/// RocksDB rewrites a table of this age, so that expired entries leave the disk even if nothing is written.
pub const EXPIRED_KEPT_MAX: Duration = Duration::from_hours(24 * 7);

/// Bytes of the log that one step of a change feed reads, and at most one batch more. At 1 GB/s that takes a
/// millisecond.
pub const CHANGES_LOG_BYTES_PER_STEP: u64 = 1 << 20;

/// The default of `--changes-bytes`, bytes: a million changes of 250 bytes.
pub const CHANGES_BYTES: u64 = 256 << 20;

/// The default of `--changes-time`.
pub const CHANGES_TIME: Duration = Duration::from_hours(24);

/// The size at which compactions and bulk loads begin another table, bytes.
pub const TABLE_BYTES: u64 = 32 << 20;

/// The threads that write the tables of a bulk load: more would exceed what a disk takes.
pub const LOAD_THREADS_MAX: usize = 8;

/// The least entries for a further thread of a bulk load: writing them takes some 10 ms.
pub const LOAD_PART_ENTRIES_MIN: usize = 64 << 10;
