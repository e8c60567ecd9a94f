//! Bounds that are not options: each with its unit, what happens when it is reached, and where the value comes from. Bounds
//! that an operator may set are in `config.rs`, with their defaults here.
//!
//! Read by all modules.

use std::time::Duration;

/// Default of `--head-max`, bytes. Request line and headers together; more is answered 431.
/// Room for a key of 4 KiB with every byte percent-encoded (12 KiB) and for 20 KiB of headers; nginx takes 32 KiB.
pub const HEAD_BYTES_MAX: u64 = 32 << 10;

/// Default of `--key-max`, bytes after decoding; a longer key is answered 414. As in S3 (1 KiB) and etcd (no limit of its
/// own), keys are short; 4 KiB leaves room for a path.
pub const KEY_BYTES_MAX: u64 = 4 << 10;

/// No `--key-max` may be larger, bytes: the key, percent-encoded, must fit in a request line, which the `http` crate bounds at
/// 65,534 bytes.
pub const KEY_BYTES_CEILING: u64 = 16 << 10;

/// Default of `--value-max`, bytes; a larger body is answered 413. A value is held in memory whole, several times over on
/// its way; Workers KV takes 25 MiB, etcd 1.5 MiB.
pub const VALUE_BYTES_MAX: u64 = 16 << 20;

/// No `--value-max` may be larger, bytes: RocksDB advises against values beyond some ten MiB, and its blocks are bounded by
/// 4 GiB.
pub const VALUE_BYTES_CEILING: u64 = 1 << 30;

/// Headers of one request; more are answered 431. hyper's default; the head's bytes are bounded anyway.
pub const HEADERS_MAX: usize = 100;

/// hyper's read buffer and the level at which its write buffer is flushed, bytes, of one connection. Without it, 10,000
/// connections could hold 4 GB (hyper's default is about 400 KiB).
pub const CONNECTION_BUFFER_BYTES_MAX: usize = 64 << 10;

/// A response body goes to hyper in frames of at most so many bytes: a flat write buffer keeps the capacity it has grown to.
pub const RESPONSE_FRAME_BYTES_MAX: usize = 64 << 10;

/// A value of at most so many bytes is answered on the worker when it is in memory; a larger one is copied on a storage
/// thread. At 6 GB/s 64 KiB take 11 µs, which is what a whole request costs.
pub const CACHED_VALUE_BYTES_MAX: usize = 64 << 10;

/// What one idle connection is charged in the memory budget, bytes: hyper's two initial buffers of 8 KiB, its state and the
/// task, of which small requests touch only a part. Measured (`cargo xtask memory`): 2,000 connections after one small
/// request each add 19 to 26 MiB of resident memory, 10 to 13 KiB each.
pub const CONNECTION_BYTES: u64 = 16 << 10;

/// Default of `--connections-max`, where the memory budget allows it; at the limit klad stops accepting until one closes.
pub const CONNECTIONS_MAX: u64 = 10_000;

/// Default of `--operations-max`: operations that wait for or are in the engine; one more is answered 503. At 50,000
/// writes a second 4,096 are 80 ms of queue.
pub const OPERATIONS_MAX: u64 = 4_096;

/// Default of `--scans-max`: ranges in progress; one more is answered 503. Each holds at most one page.
pub const SCANS_MAX: u64 = 64;

/// Default of `--storage-threads`: threads that may wait for the disk under reads and scan steps.
pub const STORAGE_THREADS: u64 = 4;

/// Entries of one scan step.
pub const SCAN_STEP_ENTRIES_MAX: usize = 256;

/// Bytes of keys and values of one scan step; a larger entry gets a step of its own.
pub const SCAN_STEP_BYTES_MAX: usize = 64 << 10;

/// Writes in one batch of the commit section: a quarter of the default `--operations-max`, so that under the heaviest load
/// the first of a burst is answered well before the last.
pub const COMMIT_WRITES_MAX: usize = 1_024;

/// Bytes of keys and values in one batch, unless one write alone is larger.
pub const COMMIT_BYTES_MAX: usize = 4 << 20;

/// Body room is counted in units of so many bytes.
pub const ROOM_UNIT_BYTES: u64 = 1 << 10;

/// A refused request's body is read and thrown away up to so many bytes, so that the connection lives on; beyond, the
/// connection is closed after the answer.
pub const DRAIN_BYTES_MAX: u64 = 64 << 10;

/// A connection that is closed while its client still sends is read from for so long, so that the client sees the answer
/// instead of a reset.
pub const LINGER_TIMEOUT: Duration = Duration::from_secs(2);

/// While lingering, at most so many bytes are read and thrown away.
pub const LINGER_BYTES_MAX: usize = 4 << 20;

/// Default of `--head-timeout`: from the first byte of a head to its last; then 408. nginx waits 60 s, hyper 30 s.
pub const HEAD_TIMEOUT: Duration = Duration::from_secs(10);

/// Default of `--idle-timeout`: between two requests; then the connection closes silently. Longer than the 60 s that load
/// balancers commonly keep connections for.
pub const IDLE_TIMEOUT: Duration = Duration::from_secs(75);

/// An idle connection whose buffers have grown beyond what [`CONNECTION_BYTES`] charges is closed after so long: only
/// closing it gives the memory back.
pub const GROWN_IDLE_TIMEOUT: Duration = Duration::from_secs(2);

/// Buffers count as grown when one read or write has carried more than so many bytes.
pub const GROWN_BYTES: usize = 16 << 10;

/// Default of `--body-timeout`: without a byte of an expected body; then 408.
pub const BODY_TIMEOUT: Duration = Duration::from_secs(10);

/// Default of `--write-timeout`: without the peer taking a byte of an answer; then the connection closes.
pub const WRITE_TIMEOUT: Duration = Duration::from_secs(30);

/// Deadlines are looked at so often, hence kept to so much.
pub const SWEEP_INTERVAL: Duration = Duration::from_millis(100);

/// Unsent bytes that the kernel holds of one connection before klad must wait (`TCP_NOTSENT_LOWAT`): a reader that takes some
/// lets klad write again soon. Without it the kernel says so only when a good part of a send buffer of megabytes is free,
/// and a slow reader looks like one that takes nothing.
pub const NOT_SENT_BYTES_MAX: u32 = 128 << 10;

/// hyper's write buffer keeps the capacity of the largest entry of a range that it has copied; a connection that was offered
/// more than so many bytes at once is closed after the answer, because only that gives the memory back.
pub const OVERSIZED_BYTES: usize = 1 << 20;

/// A range waits so long for room for a large entry: the first step is then answered 503, a later one cut.
pub const ROOM_TIMEOUT: Duration = Duration::from_secs(5);

/// An admin connection lives at most so long: its answers are small, and a client that reads none must not keep its place.
pub const ADMIN_CONNECTION_TIMEOUT: Duration = Duration::from_secs(30);

/// Default of `--async-sync-interval`: the longest that an `async` write stays unsynced.
pub const ASYNC_SYNC_INTERVAL: Duration = Duration::from_secs(1);

/// Memtables of one store: one that fills, one or two that are being flushed, and one of room before writes must wait.
pub const MEMTABLES: u64 = 4;

/// No memtable is larger, bytes: what is in memtables is what a start after a kill has to read again from the log, and
/// small entries in random order cost 2.4 µs each there. See `docs/decisions/2026-11-21-small-memtables.md`.
pub const MEMTABLE_BYTES_MAX: u64 = 8 << 20;

/// Default of `--disk-reserve`, bytes: below so much free space writes are answered 507. RocksDB needs room for the
/// compactions that will win space back.
pub const DISK_RESERVE_BYTES: u64 = 256 << 20;

/// Free space and version blocks are looked after so often. A disk that takes 1 GB a second takes 250 MB in this time, which is
/// below the default reserve.
pub const UPKEEP_INTERVAL: Duration = Duration::from_millis(250);

/// Default of `--drain-timeout`: requests in flight when klad is asked to stop have so long to finish.
pub const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// Connections that the kernel holds until they are accepted; the kernel's own limit (`somaxconn`) is 4,096 today.
pub const LISTEN_BACKLOG: u32 = 4_096;

/// Connections of the admin listener; more are closed at once. It serves people and one scraper.
pub const ADMIN_CONNECTIONS_MAX: usize = 64;

/// The smallest `--memory`, bytes: below it the caches are too small to be of use.
pub const MEMORY_BYTES_MIN: u64 = 64 << 20;

/// No `--memory` may be larger, bytes: body room is counted in 32 bits of KiB.
pub const MEMORY_BYTES_CEILING: u64 = 16 << 40;

/// `Retry-After` in seconds where no wait can be estimated, and the longest that is ever told.
pub const RETRY_AFTER_SECONDS_MAX: u64 = 30;

// The encoded key must fit the head with room for headers.
const _: () = assert!(3 * KEY_BYTES_MAX + (8 << 10) <= HEAD_BYTES_MAX);
const _: () = assert!(KEY_BYTES_MAX <= KEY_BYTES_CEILING && 3 * KEY_BYTES_CEILING < 65_534);
const _: () = assert!(VALUE_BYTES_MAX <= VALUE_BYTES_CEILING);
// hyper's buffer must hold a whole head.
const _: () = assert!(HEAD_BYTES_MAX <= CONNECTION_BUFFER_BYTES_MAX as u64);
// Between two looks at the disk less than the reserve can be written, at 1 GB/s.
const _: () = assert!(UPKEEP_INTERVAL.as_millis() * 1_000_000 <= DISK_RESERVE_BYTES as u128);
const _: () = assert!(GROWN_BYTES as u64 <= CONNECTION_BYTES);
