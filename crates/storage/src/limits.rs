//! Limits of the engines. Each comment states the unit, the reason, and what klad does when the limit is reached.

use std::time::Duration;

/// A worker answers a GET itself if the value is in memory and has at most this many bytes. A storage thread copies a
/// larger value. At 6 GB/s, copying 64 KiB takes 11 µs, which is the cost of a whole request.
pub const CACHED_VALUE_BYTES_MAX: usize = 64 << 10;

/// The largest `--key-max`, bytes, so no key is longer. The percent-encoded key must fit into a request's URI, which
/// the `http` crate limits to 65,534 bytes.
pub const KEY_BYTES_CEILING: usize = 16 << 10;

/// The maximum size of the keys and values of one scan step, bytes. A larger entry is a step by itself.
pub const SCAN_STEP_BYTES_MAX: usize = 64 << 10;

/// The maximum size of the keys and values in one batch, bytes. Only a single write may be larger.
pub const COMMIT_BYTES_MAX: usize = 4 << 20;

/// The number of memtables: one that is being filled, [`MEMTABLES_A_FLUSH`] that are being flushed, and four spare
/// ones. RocksDB delays writes when all but one are full, and stops writes when all are full.
pub const MEMTABLES: u64 = 8;

/// The number of memtables that one flush merges into one file of level 0.
pub const MEMTABLES_A_FLUSH: u64 = 3;

/// The number of files of level 0 at which RocksDB compacts them into the next level. See
/// `docs/decisions/2026-11-21-puts.md`.
pub const LEVEL_0_FILES: u64 = 10;

/// The largest memtable, bytes. A start after a kill reads the contents of all memtables from the log again, and
/// inserting small entries in random order costs 2.4 µs each. See `docs/decisions/2026-11-21-puts.md`.
pub const MEMTABLE_BYTES_MAX: u64 = 4 << 20;

/// How often klad checks free space and version blocks. A disk of 1 GB/s writes 250 MB in this time, which is less than
/// the default disk reserve.
pub const HOUSEKEEPING_INTERVAL: Duration = Duration::from_millis(250);

/// Some engine figures take longer to read the more files there are: with a thousand tables (30 GiB), about a
/// millisecond. This is the shortest interval between two such readings.
pub const SLOW_LOOK_INTERVAL: Duration = Duration::from_secs(2);

/// The number of versions that a checkpoint skips. A store that is started from a checkpoint gives out versions from
/// this far above the last one of the checkpoint. The original store may have given out versions after the checkpoint
/// was made. The new store does not use these versions again, as long as the original store made fewer writes than
/// this. 2^40 versions last for 12 days at 1,000,000 writes per second, and for 348 years at 100 writes per second. All
/// 2^64 versions suffice for 2^24 such jumps.
pub const CHECKPOINT_VERSIONS_AHEAD: u64 = 1 << 40;

/// A full compaction compacts at least this many bytes of tables in each piece except the last. A cancelled compaction
/// stops at the end of the current piece, which takes some seconds on a disk of 100 MB/s.
pub const COMPACTION_PIECE_BYTES: u64 = 256 << 20;

/// klad rejects a full compaction if the free space beyond the reserve is smaller than this and smaller than the total
/// size of all tables. RocksDB rewrites at most 25 tables of 32 MiB in one step before it deletes the old ones.
pub const COMPACTION_ROOM_BYTES: u64 = 2 << 30;

/// If all logs together have fewer bytes than this at a start, klad first reads them without changing anything, and
/// compares them with the mark of what was synced. So klad detects an emptied or removed log before RocksDB continues
/// without it. Reading 1 MiB of small entries takes about 20 ms.
pub const LOG_BYTES_READ_TWICE: u64 = 1 << 20;

/// The maximum number of findings that `klad check` prints. It only counts further ones.
pub const CHECK_FINDINGS_MAX: usize = 20;

/// The size of block cache and memtables together, bytes, in commands that open a data directory without a server, such
/// as `klad check` and `klad compact`.
pub const OFFLINE_CACHE_BYTES: u64 = 128 << 20;

/// With RocksDB, a scan step passes at most this many removed entries in a row, then it tries a smaller range. Passing
/// a removed entry takes 0.3 to 2.5 µs, so this takes at most about 10 ms. With the other engines, a step ends after
/// this many expired entries.
pub const REMOVED_PER_ATTEMPT_MAX: u64 = 4_096;

/// The last bit of a key at which a scan step looks for a nearer bound. If the removed entries share the first 256
/// bytes of their keys, no bound is near enough, and the step passes all of them.
pub const SCAN_REACH_MAX: u32 = 8 * 256;

/// A scan step ends when it has passed this many entries, removed ones included. Its page may then be short or empty,
/// and the scan continues behind these entries. Only the search for a first bound may pass some more entries.
pub const PASSED_PER_STEP_MAX: u64 = 8 * REMOVED_PER_ATTEMPT_MAX;

/// A scan step that has to try smaller ranges also ends at the end of one of them once this time has passed, because a
/// slow disk may take much longer for [`PASSED_PER_STEP_MAX`] entries.
pub const SCAN_STEP_TIME_MAX: Duration = Duration::from_millis(20);

/// RocksDB rewrites a table of this age, so that expired entries leave the disk even if nothing is written.
pub const EXPIRED_KEPT_MAX: Duration = Duration::from_hours(24 * 7);

/// The maximum number of bytes of the log that one step of a change feed reads. Only the last batch of the step may
/// reach beyond this limit. At 1 GB/s, reading this many bytes takes a millisecond.
pub const CHANGES_LOG_BYTES_PER_STEP: u64 = 1 << 20;

/// The default of `--changes-bytes`, bytes. This is enough for a million changes of 250 bytes.
pub const CHANGES_BYTES: u64 = 256 << 20;

/// The default of `--changes-time`.
pub const CHANGES_TIME: Duration = Duration::from_hours(24);

/// The size at which compactions and bulk loads begin another table, bytes.
pub const TABLE_BYTES: u64 = 32 << 20;

/// The maximum number of threads that write the tables of a bulk load. More threads would be faster than the disk.
pub const LOAD_THREADS_MAX: usize = 8;

/// The minimum number of entries that each thread of a bulk load writes. Only the last thread may have fewer. So a
/// small load uses fewer threads. Writing this many entries takes about 10 ms.
pub const LOAD_PART_ENTRIES_MIN: usize = 64 << 10;
