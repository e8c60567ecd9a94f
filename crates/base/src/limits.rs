//! Limits of open files and threads. Each comment gives the unit, the reason, and what klad does at the limit. The
//! other limits of the server and of storage are in their crates.

/// klad rejects connections beyond `--connections-per-peer`. It keeps at most this number of rejected connections, of
/// all clients together, open for up to `REFUSED_LINGER_TIMEOUT`, so that their clients see the rejection. It closes
/// further ones immediately. With a low limit of open files, klad keeps fewer of them open.
pub const REFUSED_LINGERING_MAX: usize = 64;

/// The number of descriptors that are reserved for everything but client connections, if the limit of open files allows
/// it: some 800 for the engine's files (32 MiB each, so 25 GiB of data), and the rest for klad itself.
pub const DESCRIPTORS_KEPT: u64 = 1_024;

/// How the process ends if it cannot start a thread: the exit code (`EX_OSERR` of `sysexits.h`), and the word in
/// brackets at the end of its message.
pub const TOO_FEW_THREADS_EXIT: (u8, &str) = (71, "too-few-threads");

/// The usual stack size of a thread that C or C++ code starts, bytes of address space. Only the used part takes memory.
pub const STACK_BYTES: usize = 8 << 20;

/// The number of descriptors that are reserved for klad itself, without its workers. Before it serves, klad has at most
/// 29 of them open (measured; RocksDB needs the most). The rest is for files that klad opens for a short time: logs,
/// outputs of flushes and compactions, checkpoints, and the kernel's files that profiles read.
pub const DESCRIPTORS_OWN: u64 = 48;

/// The number of descriptors that each worker has open, without those of its connections (measured).
pub const DESCRIPTORS_OF_WORKER: u64 = 4;

/// The smallest number of files that an engine must be able to keep open: about 24 tables of level 0, and one table of
/// each other level.
pub const ENGINE_FILES_MIN: u64 = 32;

/// The largest number of files that klad lets the engine keep open. RocksDB itself uses this number for "all files"
/// (`db/table_cache.h`).
pub const ENGINE_FILES_MAX: u64 = 0x40_0000;

/// The maximum of open connections of the admin listener, if the limit of open files allows it. klad closes a further
/// one immediately. Only people and one scraper use this listener.
pub const ADMIN_CONNECTIONS_MAX: usize = 64;
