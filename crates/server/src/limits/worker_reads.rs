//! The limits of reads of storage on workers. Called by `execution::worker_reads`.

use std::time::Duration;

/// A read of storage that takes less than this is quick: about twice what a hand-over to a storage thread and back
/// costs.
pub const QUICK_READ_MAX: Duration = Duration::from_micros(50);

/// After this many quick reads of storage threads in a row, workers do reads of storage themselves.
pub const QUICK_READS_MIN: u32 = 64;

/// A read of storage that takes less than this did not wait for a disk. A read from the kernel's page cache takes some
/// 10 µs.
pub const CACHED_READ_MAX: Duration = Duration::from_micros(15);

/// A worker that reads storage itself looks in memory before each read only if at least this share of its looks has
/// found the answer. A look that does not find it costs a quarter of a read from the page cache.
pub const LOOKS_FOUND_MIN: f32 = 0.25;

/// If fewer looks find the answer, the worker looks in memory before one read in this many.
pub const LOOK_EVERY: u32 = 8;

/// The share of [`LOOKS_FOUND_MIN`] is an average of about this many looks.
pub const LOOKS_AVERAGED: f32 = 32.0;

/// After this many reads in a row on a worker that were not quick, the worker hands reads over to storage threads
/// again. Such reads need more CPU time than a hand-over, for example because of many tables on level 0.
pub const SLOW_READS_MAX: u32 = 8;

/// A read that sleeps and takes less than this has slept for a short time. A short sleep hardly delays the worker's
/// other answers. It occurs when a quick disk reads a page that the page cache lacks.
pub const SHORT_SLEEP_MAX: Duration = Duration::from_micros(500);

/// A worker that reads storage itself sleeps when a read must wait for the disk. It has two budgets for these sleeps,
/// one for short sleeps and one for longer ones, and this is the size of each. When a budget is used up, the worker
/// hands its reads over to storage threads again.
pub const WORKER_READ_SLEEP_MAX: Duration = Duration::from_millis(5);

/// In the long run, short sleeps may take one part in this many of the time, because their budget grows by that part of
/// the elapsed time. A worker that does nothing but reads of storage loses less time by these sleeps than by handing
/// the reads over.
pub const SHORT_SLEEP_PARTS: u32 = 10;

/// In the long run, longer sleeps may take one part in this many of the time.
pub const LONG_SLEEP_PARTS: u32 = 500;

// A read that sleeps is not quick, the budget allows some short sleeps, and less of the longer ones.
const _: () = assert!(QUICK_READ_MAX.as_nanos() < SHORT_SLEEP_MAX.as_nanos());
const _: () = assert!(SHORT_SLEEP_MAX.as_nanos() * 4 < WORKER_READ_SLEEP_MAX.as_nanos());
const _: () = assert!(1 < SHORT_SLEEP_PARTS && SHORT_SLEEP_PARTS < LONG_SLEEP_PARTS);
