//! Limits of what all crates share: open files, threads. Each has its unit, its reason, and what klad does when it is
//! reached. The limits of the server and of storage are in their crates.

/// The number of connections beyond `--connections-per-peer` that klad keeps for `REFUSED_LINGER_TIMEOUT`, so that
/// their clients see the answer. klad closes more of them at once.
pub const REFUSED_LINGERING_MAX: usize = 64;

/// Descriptors that are reserved for everything but client connections, if the limit of open files allows it: some
/// 800 for the engine's files (32 MiB each, so 25 GiB of data), and the rest for klad itself.
pub const DESCRIPTORS_KEPT: u64 = 1_024;

/// How the process ends if it cannot start a thread: exit code (`EX_OSERR` of `sysexits.h`) and word.
pub const TOO_FEW_THREADS_EXIT: (u8, &str) = (71, "too-few-threads");

/// Address space of the stack of a thread that the C library starts, bytes. Only the used part takes memory.
pub const STACK_BYTES: usize = 8 << 20;

/// The number of descriptors that klad has open before it serves, without its workers: measured 29 with RocksDB, which
/// has the most. The rest is for files that klad opens for a short time: logs, outputs of flushes and compactions,
/// checkpoints, and the kernel's files that profiles read.
pub const DESCRIPTORS_OWN: u64 = 48;

/// The number of descriptors of each worker: measured 4.
pub const DESCRIPTORS_OF_WORKER: u64 = 4;

/// The number of files that an engine needs to open: about 24 tables of level 0, and one table of each other level.
pub const ENGINE_FILES_MIN: u64 = 32;

/// RocksDB's number for "all files" (`db/table_cache.h`).
pub const ENGINE_FILES_MAX: u64 = 0x40_0000;

/// The number of connections of the admin listener, if the limit of open files allows it. klad closes more at once.
/// People and one scraper use it.
pub const ADMIN_CONNECTIONS_MAX: usize = 64;
