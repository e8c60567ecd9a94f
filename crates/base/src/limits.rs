//! Bounds that are not options. Each comment gives the unit, what klad does when the bound is reached, and the source
//! of the value. Options are in `cli.rs`; their defaults are here.
//!
//! Read by all modules.

use std::time::Duration;

/// Default of `--head-max`, bytes: the request line and the headers together. A longer head is answered 431. A key of
/// 4 KiB with every byte percent-encoded (12 KiB) and 20 KiB of headers fit. nginx takes 32 KiB.
pub const HEAD_BYTES_MAX: u64 = 32 << 10;

/// Default of `--key-max`, bytes after decoding. A longer key is answered 414. S3 takes 1 KiB, etcd has no limit of its
/// own; 4 KiB is enough for a path.
pub const KEY_BYTES_MAX: u64 = 4 << 10;

/// The largest `--key-max`, bytes. The `http` crate bounds a request line, with the percent-encoded key, at 65,534
/// bytes.
pub const KEY_BYTES_CEILING: u64 = 16 << 10;

/// Default of `--value-max`, bytes. A larger body is answered 413. klad holds a value in memory as a whole, several
/// times during a request. Workers KV takes 25 MiB, etcd 1.5 MiB.
pub const VALUE_BYTES_MAX: u64 = 16 << 20;

/// The largest `--value-max`, bytes. RocksDB advises against more than some ten MiB and limits blocks to 4 GiB.
pub const VALUE_BYTES_CEILING: u64 = 1 << 30;

/// The number of headers in a request. More are answered 431. It is hyper's default; [`HEAD_BYTES_MAX`] bounds them
/// too.
pub const HEADERS_MAX: usize = 100;

/// hyper's read buffer of one connection, and the level at which hyper flushes its write buffer, bytes. With hyper's
/// default of about 400 KiB, 10,000 connections could hold 4 GB.
pub const CONNECTION_BUFFER_BYTES_MAX: usize = 64 << 10;

/// The largest request that klad parses without hyper, bytes. It must arrive in one piece: this is what a worker reads
/// at once, into a buffer of its own. hyper handles larger requests.
pub const PLAIN_REQUEST_BYTES_MAX: usize = 16 << 10;
/// The largest head of a request that klad parses without hyper, bytes.
pub const PLAIN_HEAD_BYTES_MAX: usize = 4 << 10;
/// The largest number of headers of a request that klad parses without hyper. Browsers send some 15.
pub const PLAIN_HEADERS_MAX: usize = 32;

/// After one request of a connection needed hyper, hyper handles at least this many of its requests. So klad does not
/// set up hyper again for each request of a client that sends only such requests.
pub const HYPER_REQUESTS_MIN: u32 = 16;

/// The largest frame of a response body for hyper, bytes. hyper's flat write buffer never shrinks.
pub const RESPONSE_FRAME_BYTES_MAX: usize = 64 << 10;

/// The largest value that a worker copies itself, bytes. A storage thread copies larger ones. At 6 GB/s 64 KiB take
/// 11 µs, as long as a whole request.
pub const CACHED_VALUE_BYTES_MAX: usize = 64 << 10;

/// The charge of an idle connection in the memory budget, bytes: hyper's two initial buffers of 8 KiB, its state, and
/// the task. Small requests touch only a part of these. Measured (`cargo xtask memory`): 2,000 connections after one
/// small request each add 19 to 26 MiB of resident memory, 10 to 13 KiB each. A connection that has had only requests
/// without hyper holds no buffer, but has the same charge, because its next request may need hyper.
pub const CONNECTION_BYTES: u64 = 16 << 10;

/// What TLS adds to [`CONNECTION_BYTES`], bytes: keys and state of the session, and a buffer for one read (4 KiB).
/// Measured (`tests/it/tls.rs`, which also checks it): 400 connections after one small request each add 20 KB of
/// resident memory each; connections without TLS add 10 to 13.
pub const TLS_CONNECTION_BYTES: u64 = 12 << 10;

/// Default of `--connections-max`, if the memory budget allows it. At the limit klad stops accepting until one closes.
pub const CONNECTIONS_MAX: u64 = 10_000;

/// The longest time that an option can have. Adding it to a clock must not overflow.
pub const OPTION_TIME_MAX: Duration = Duration::from_hours(24 * 365);

/// The largest `--connections-max`.
pub const CONNECTIONS_CEILING: usize = 1_000_000;

/// The range of `Klad-Timeout`. Other values are answered 400. A shorter time would be over when the head is read, and
/// no client waits longer.
pub const TIMEOUT_RANGE: std::ops::RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_hours(1);

/// Default of `--pool-threads`, for `--execution pool` and `stealing`.
pub const POOL_THREADS: u64 = 4;

/// Default of `--queue-limit`: the number of operations that may wait in `--execution pool` and `stealing`. One more is
/// answered 503. This is the largest size that the published report compares.
pub const QUEUE_LIMIT: u64 = 1_024;
/// The largest `--queue-limit`.
pub const QUEUE_LIMIT_CEILING: usize = 1_000_000;

/// The largest `--scans-max`.
pub const SCANS_CEILING: usize = 10_000;

/// The number of operation slots with `--admission off`: far more than there can be connections.
pub const SLOTS_CEILING: usize = 1 << 30;

/// Default of `--operations-max`: operations that wait for the engine or are in it. One more is answered 503. At 50,000
/// writes a second 4,096 are 80 ms of queue.
pub const OPERATIONS_MAX: u64 = 4_096;

/// Default of `--scans-max`: the number of range scans in progress. One more is answered 503. Each holds at most a
/// page.
pub const SCANS_MAX: u64 = 64;

/// Default of `--storage-threads`: the threads that may wait for the disk in reads and scan steps.
pub const STORAGE_THREADS: u64 = 4;

/// The number of entries in one scan step.
pub const SCAN_STEP_ENTRIES_MAX: usize = 256;
/// The bytes of keys and values in one scan step. A larger entry gets a step of its own.
pub const SCAN_STEP_BYTES_MAX: usize = 64 << 10;

/// The number of writes in one batch of the commit thread. It is a quarter of the default `--operations-max`, so that
/// under the heaviest load the first write of a burst is answered well before the last.
pub const COMMIT_WRITES_MAX: usize = 1_024;
/// The bytes of keys and values in one batch, unless a single write is larger.
pub const COMMIT_BYTES_MAX: usize = 4 << 20;

/// The largest batch of `async` writes that a worker commits itself in one loop iteration, bytes of keys and values. A
/// larger batch would delay the worker's other connections. At 1 GB/s 256 KiB take a quarter of a millisecond.
pub const ITERATION_COMMIT_BYTES_MAX: usize = 256 << 10;

/// A storage queue that has not been empty for this time is a standing queue: more arrives than is served. `CoDel`'s
/// interval (RFC 8289, 100 ms).
pub const QUEUE_STANDS: Duration = Duration::from_millis(100);

/// For this time after a standing queue, the queue counts as standing again once its oldest operation has waited
/// [`QUEUE_STANDS_AGAIN`] targets. `CoDel` remembers for 16 intervals how often it had to drop (RFC 8289).
pub const QUEUE_REMEMBERS: Duration = QUEUE_STANDS.saturating_mul(16);

/// A multiple of `--queue-target`. Its cost near the capacity and its gain above it are in
/// `docs/decisions/2026-11-22-queues-remember.md`. With a target of 25 ms or more, [`QUEUE_REMEMBERS`] has no effect.
pub const QUEUE_STANDS_AGAIN: u32 = 4;

const _: () = assert!(QUEUE_TARGET.saturating_mul(QUEUE_STANDS_AGAIN).as_nanos() < QUEUE_STANDS.as_nanos());

/// Default of `--queue-target`. In a standing queue, klad rejects operations that have waited longer. It is `CoDel`'s
/// target (RFC 8289) and Facebook's setting.
pub const QUEUE_TARGET: Duration = Duration::from_millis(5);

/// Default of `--queue-age-max`: the longest wait for storage, for example for a stalled disk; then 503.
pub const QUEUE_AGE_MAX: Duration = Duration::from_secs(1);

/// Default of `--turn-max`. A loop iteration of a worker lasts from a request to the end of the pass over all tasks
/// that were ready with it; a request waits that long for the worker. After a longer iteration the gate closes and
/// admits requests in portions. At 12 µs each, 50 ms are some 4,000 requests on one core, and a fifth of the 250 ms
/// that an impatient client waits.
pub const ITERATION_MAX: Duration = Duration::from_millis(50);

/// While the gate is closed, each loop iteration admits as many requests as take this time. When clients are in a
/// hurry, a worker with longer iterations gets few new connections. Measured at a fifth of a core, in one run each: 5,
/// 10 and 20 ms served 93, 82 and 86 % of the capacity at twice the capacity, and 99, 90 and 78 % at five times.
pub const ITERATION_TARGET: Duration = Duration::from_millis(5);

/// A loop iteration with fewer requests does not count as a sign of load, however long it took.
pub const ITERATION_REQUESTS_MIN: u32 = 32;

/// A request that has waited at the gate for this time is admitted alternately with the newest one. Impatient clients
/// have given up by then.
pub const REQUEST_AGED: Duration = Duration::from_secs(1);

/// While all gates are closed, the acceptor checks this often whether one has opened.
pub const ACCEPT_PAUSE: Duration = Duration::from_millis(2);

/// The lowest rate of the acceptor while a worker has capacity left, connections a second.
pub const ACCEPTS_MIN: u32 = 8;
/// From this rate on the acceptor is not limited, connections a second.
pub const ACCEPTS_MAX: u32 = 32_768;
/// The first rate limit of the acceptor under overload, connections a second. It grows or shrinks from there.
pub const ACCEPTS_CAUTIOUS: u32 = 256;

/// The rate limit is halved or doubled at this interval. After overload it is gone within twelve of them, 600 ms.
pub const ACCEPT_STEP: Duration = Duration::from_millis(50);

/// Clients count as being in a hurry for this time after one of them has sent a deadline or has left before its answer.
pub const HURRY: Duration = Duration::from_secs(1);

/// The interval at which klad measures service rates and checks the age of queues.
pub const PACE_INTERVAL: Duration = Duration::from_millis(100);

/// The unit of the body memory (the memory budget for bodies), bytes.
pub const BODY_BUDGET_UNIT_BYTES: u64 = 1 << 10;

/// The largest small body, bytes. Most values are small, and 1,000 of them take the memory of one large upload.
pub const SMALL_BODY_BYTES: u64 = 4 << 10;

/// One part in this many of the body memory is reserved for small bodies. Larger bodies and large answers share the
/// rest, so they never cause a small one to be rejected. At `--memory 1GiB` the eighth is 16 MiB: 4,096 small bodies,
/// as many as there are operation slots by default.
pub const SMALL_BODY_ROOM_PARTS: u64 = 8;

/// Default of `--body-rate-min`, bytes a second. klad closes a connection whose client sends a body, or reads an
/// answer, more slowly for `--body-timeout` or `--write-timeout`. A modem of 1995 is three times as fast. nginx has no
/// such bound; Apache's `mod_reqtimeout` requires 500.
pub const BODY_RATE_BYTES_MIN: u64 = 1 << 10;

/// A larger body or answer must leave as much body memory free as it takes, up to one part in this many. At
/// `--memory 1GiB` this is 2 MiB: 128 values of 16 KiB still fit when uploads have taken the rest.
pub const LARGE_BODY_LEAVES_PARTS: u64 = 64;

/// The largest `--body-rate-min`, bytes a second. At higher rates klad would measure the kernel's buffers.
pub const BODY_RATE_BYTES_CEILING: u64 = 1 << 20;

/// When body memory runs out, klad does not evict connections that have held memory for less time: their rate is
/// unknown.
pub const EVICTION_AGE_MIN: Duration = Duration::from_secs(1);

/// When body memory runs out, klad does not evict connections with a higher rate, bytes a second. It is half a megabit:
/// the default `--value-max` takes four minutes at this rate.
pub const EVICTION_RATE_BYTES_MAX: u64 = 64 << 10;
/// When body memory runs out, klad first evicts connections with at most this rate, on all workers, bytes a second.
pub const EVICTION_RATE_FIRST_BYTES_MAX: u64 = BODY_RATE_BYTES_MIN;

/// When body memory has been short for this time, every worker has looked for very slow connections; now klad may evict
/// all slow ones.
pub const BODY_BUDGET_LACK_STANDS: Duration = Duration::from_millis(125);
/// How long klad remembers a shortage of body memory. Workers first look for very slow connections, then for all slow
/// ones.
pub const BODY_BUDGET_LACK_LIFETIME: Duration = Duration::from_millis(250);

/// klad reads and discards at most this much of a rejected request's body, bytes, so that the connection can stay open.
/// With a longer body it closes the connection after the answer.
pub const DRAIN_BYTES_MAX: u64 = 64 << 10;

/// When klad closes a connection whose client still sends, it keeps reading for this time, so that the client sees the
/// answer instead of a reset.
pub const LINGER_TIMEOUT: Duration = Duration::from_secs(2);
/// While lingering, klad reads and discards at most this much, bytes.
pub const LINGER_BYTES_MAX: usize = 4 << 20;

/// Default of `--head-timeout`: from the first byte of a head to its last; then 408. nginx waits 60 s, hyper 30 s.
pub const HEAD_TIMEOUT: Duration = Duration::from_secs(10);

/// Default of `--idle-timeout`: the time between two requests; then klad closes the connection without an answer. It is
/// longer than the 60 s for which load balancers usually keep connections.
pub const IDLE_TIMEOUT: Duration = Duration::from_secs(75);

/// An idle connection whose buffers in hyper have grown beyond the charge of [`CONNECTION_BYTES`] is closed after this
/// time. Only closing it frees the memory.
pub const GROWN_IDLE_TIMEOUT: Duration = Duration::from_secs(2);

/// Buffers count as grown when one read or write has carried more than this, bytes.
pub const GROWN_BYTES: usize = 16 << 10;

/// Default of `--body-timeout`: the time without a byte of an expected body, or below `--body-rate-min`; then 408.
pub const BODY_TIMEOUT: Duration = Duration::from_secs(10);

/// Default of `--write-timeout`: the time in which the client takes no byte of an answer, or less than
/// `--body-rate-min`; then klad closes the connection.
pub const WRITE_TIMEOUT: Duration = Duration::from_secs(30);

/// The interval at which workers check deadlines, and so the precision of deadlines.
pub const SWEEP_INTERVAL: Duration = Duration::from_millis(100);

/// The most time that one check of deadlines counts. Longer gaps come from a busy worker or a stopped process, not from
/// the client.
pub const SWEEP_COUNTS_MAX: Duration = Duration::from_millis(200);

/// The unsent bytes of one connection that the kernel holds before klad must wait (`TCP_NOTSENT_LOWAT`). With this
/// limit, klad can write again soon after a slow reader has read something. Without it the kernel waits until a good
/// part of a send buffer of megabytes is free, and a slow reader looks like one that reads nothing.
pub const NOT_SENT_BYTES_MAX: u32 = 128 << 10;

/// The largest single write to hyper after which a connection stays open, bytes. hyper's write buffer keeps the
/// capacity of the largest entry of a range, and only closing the connection frees it.
pub const OVERSIZED_BYTES: usize = 1 << 20;

/// The interval at which a range scan that waits for body memory tries again.
pub const BODY_BUDGET_RETRY: Duration = Duration::from_millis(10);
/// The longest wait of a range scan for the memory of a large entry. Then klad answers 503, or cuts an answer in
/// progress.
pub const BODY_BUDGET_TIMEOUT: Duration = Duration::from_secs(5);

/// The lifetime of an admin connection. Answers are small; a client that reads none must not block a connection.
pub const ADMIN_CONNECTION_TIMEOUT: Duration = Duration::from_secs(30);

/// The bytes of log lines that wait for stderr: some 4,000 lines, so a reader may pause for a while. More are dropped
/// and counted. A blocked reader costs at most twice this memory, because one part is being written.
pub const LOG_BYTES_MAX: usize = 1 << 20;
/// The bytes of [`LOG_BYTES_MAX`] that are reserved for warnings and errors. An unread access log must not displace
/// them.
pub const LOG_BYTES_RESERVED: usize = 64 << 10;

/// The time that stderr has for the last lines when klad ends. A blocked reader must not keep klad from ending.
pub const LOG_FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// Default of `--value-cache`. The value cache takes memory from the block cache, so a store that does not fit in
/// memory loses some hits. If the busy keys of a store fit, the value cache saves half of a read's CPU time
/// (`cargo xtask yardstick`).
pub const VALUE_CACHE_PERCENT: u64 = 25;

/// Default of `--heap-sample`, bytes. Sampling is always on, so it must be cheap. `TCMalloc` has the same default. One
/// in 2,000 allocations of a kilobyte is sampled; the estimate of 64 MiB of them is within 18 % (1/√32). With
/// jemalloc's own default of 512 KiB, GETs took 1.7 % more CPU time (`cargo xtask profile-cost`).
pub const HEAP_SAMPLE_BYTES: u64 = 2 << 20;

/// The sampling interval during an allocation profile if `--heap-sample` is off, bytes: jemalloc's own default.
pub const HEAP_WINDOW_SAMPLE_BYTES: u64 = 512 << 10;
/// The smallest `--heap-sample` other than 0, bytes. With less, most allocations are sampled, at some microseconds
/// each.
pub const HEAP_SAMPLE_BYTES_MIN: u64 = 4 << 10;
/// The largest `--heap-sample`, bytes. Above it a process of any size has no sample.
pub const HEAP_SAMPLE_BYTES_CEILING: u64 = 1 << 30;

/// Default of `--slow-request`. On a healthy machine no request takes a second: a sync takes some ms, and an operation
/// waits for storage at most `--queue-age-max`. It is also the time from which people notice a wait. etcd warns at
/// 100 ms; by default `PostgreSQL` never warns and `MySQL` warns at 10 s.
pub const SLOW_REQUEST: Duration = Duration::from_secs(1);

/// The window of `/debug/slow`, which keeps the slowest requests of each operation type in each of [`SLOWEST_WINDOWS`]
/// windows. A minute in total is enough time for an operator to ask, and 10 s are short enough that a burst does not
/// hide later requests.
pub const SLOWEST_WINDOW: Duration = Duration::from_secs(10);
/// The number of windows of `/debug/slow`. See [`SLOWEST_WINDOW`].
pub const SLOWEST_WINDOWS: usize = 6;

/// The number of slow requests that each worker keeps for each operation type and window: enough to show a pattern. At
/// about 500 bytes each, a worker keeps at most a third of a MiB. A slower request replaces the fastest one kept.
pub const SLOWEST_KEPT: usize = 16;

/// The default number of requests in one answer of `/debug/slow`.
pub const SLOWEST_SHOWN: usize = 32;
/// The largest number of requests in one answer of `/debug/slow`.
pub const SLOWEST_SHOWN_MAX: usize = 1_000;

/// The number of log lines about slow requests in one second; one more line gives the number of the others. This is
/// enough to show a pattern and does not fill a disk: at 400 bytes each, 350 MB a day.
pub const SLOW_REQUEST_LINES_MAX: u64 = 10;

/// The longest accepted `X-Request-Id`, bytes. klad ignores a longer one, because the id is in every line about the
/// request. A UUID has 36, AWS's trace header 35 to 100.
pub const REQUEST_ID_BYTES_MAX: usize = 128;

/// Default of `--async-sync-interval`.
pub const ASYNC_SYNC_INTERVAL: Duration = Duration::from_secs(1);

/// How long a stop waits for operations that an engine has not answered. An engine behind a network may have lost them.
pub const LATE_ANSWERS_TIMEOUT: Duration = Duration::from_secs(10);

/// The memory budget from which on the allocator uses huge pages, bytes. They cost some 25 MiB, a twentieth of it.
pub const HUGE_PAGES_MEMORY_MIN: u64 = 512 << 20;

/// The memtables of a store: one that fills, [`MEMTABLES_A_FLUSH`] that are being flushed, and four in reserve before
/// writes must wait.
pub const MEMTABLES: u64 = 8;
/// The number of memtables that become one file of level 0.
pub const MEMTABLES_A_FLUSH: u64 = 3;

/// The number of files in level 0 that start a compaction into the next level. See `docs/decisions/2026-11-21-puts.md`.
pub const LEVEL_0_FILES: u64 = 10;

/// The largest memtable, bytes. After a kill, a start must read the contents of the memtables from the log again, which
/// takes 2.4 µs for each small entry in random order. See `docs/decisions/2026-11-21-puts.md`.
pub const MEMTABLE_BYTES_MAX: u64 = 4 << 20;

/// Default of `--disk-reserve`, bytes. With less free space, writes are answered 507. RocksDB needs it for compactions.
pub const DISK_RESERVE_BYTES: u64 = 256 << 20;

/// The interval of checks of free space and version blocks. A disk that takes 1 GB a second takes 250 MB in this time,
/// which is below the default reserve.
pub const HOUSEKEEPING_INTERVAL: Duration = Duration::from_millis(250);

/// The shortest interval between reads of engine figures that cost time per file; 1,000 tables (30 GiB) take about
/// 1 ms.
pub const SLOW_LOOK_INTERVAL: Duration = Duration::from_secs(2);

/// The interval of reads of the allocator's figures. A read takes each of the allocator's locks, some 100 µs in total.
pub const ALLOCATOR_LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// If maintenance does not finish within this time, storage does not respond, and klad reports that it is not ready. A
/// working disk takes less time for one write, however busy it is.
pub const HOUSEKEEPING_LATE: Duration = Duration::from_secs(15);

/// The largest configuration file, bytes. A larger one is an error. All options with their comments are some 10 KiB.
pub const CONFIG_FILE_BYTES_MAX: u64 = 1 << 20;

/// Default of `--drain-timeout`: the time that requests in flight have to finish when klad is stopped.
pub const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// During a stop, the time that a client has for the next byte of a head, a body, or an answer; then klad answers 408
/// or closes the connection. A client's kernel repeats a lost segment earlier (after 200 ms and more).
pub const DRAIN_PATIENCE: Duration = Duration::from_secs(1);

/// During a stop, how long a connection without a request stays open. A request that arrives within this time is
/// answered, and the answer says that the connection closes; the client then has the same time to close it. It is
/// longer than a round trip to any place on earth.
pub const DRAIN_IDLE_PATIENCE: Duration = Duration::from_millis(300);

/// During a stop, how long klad accepts connections whose TCP handshake has begun. As [`DRAIN_IDLE_PATIENCE`].
pub const DRAIN_ACCEPT_PATIENCE: Duration = Duration::from_millis(300);

/// The interval at which workers check deadlines during a stop.
pub const DRAIN_SWEEP_INTERVAL: Duration = Duration::from_millis(10);

/// The connections that the kernel holds until klad accepts them. The kernel's own limit (`somaxconn`) is 4,096 today.
pub const LISTEN_BACKLOG: u32 = 4_096;
/// The listen backlog while the acceptor is rate-limited. A connection that waits longer than its client is useless.
/// Beyond the backlog the kernel drops a client's opening packet, and the client repeats it, at no cost for klad. The
/// value is enough for the connections accepted in [`ACCEPT_PAUSE`] at the highest limited rate.
pub const LISTEN_BACKLOG_CAUTIOUS: u32 = 32;

/// The connections beyond `--connections-per-peer` that stay open for [`REFUSED_LINGER_TIMEOUT`], so that their clients
/// see the answer. More are closed at once.
pub const REFUSED_LINGERING_MAX: usize = 64;

/// How long a connection beyond `--connections-per-peer` stays open, unless its client closes it earlier.
pub const REFUSED_LINGER_TIMEOUT: Duration = Duration::from_secs(1);

/// The descriptors reserved for all uses but connections, if the limit allows it: the engine's files (32 MiB each, so
/// 25 GiB of data), and klad's own.
pub const DESCRIPTORS_KEPT: u64 = 1_024;

/// The exit code (`EX_OSERR` of `sysexits.h`) and error code of a process that cannot start a thread.
pub const TOO_FEW_THREADS_EXIT: (u8, &str) = (71, "too-few-threads");

/// The address space for the stack of a thread that the C library starts, bytes. Only the used part takes memory.
pub const STACK_BYTES: usize = 8 << 20;

/// The threads of klad without its workers, compaction and execution threads. Measured: at most 19, and 20 while
/// RocksDB is opened. The rest is for profiles.
pub const THREADS_OWN: usize = 24;

/// The descriptors that klad has open before it serves a client, without its workers. Measured: 29 with RocksDB, which
/// has the most. The rest is for temporary files: logs, flushes, compactions, checkpoints, kernel files that profiles
/// read.
pub const DESCRIPTORS_OWN: u64 = 48;
/// The descriptors of each worker. Measured: 4.
pub const DESCRIPTORS_OF_WORKER: u64 = 4;

/// The files that an engine needs at least: some 24 tables of level 0, and one of each level.
pub const ENGINE_FILES_MIN: u64 = 32;
/// RocksDB's own number for "all files" (`db/table_cache.h`).
pub const ENGINE_FILES_MAX: u64 = 0x40_0000;

/// The default sampling rate of a CPU profile, samples per second of CPU time. It differs from 100, so that sampling
/// does not stay in step with activities that happen 100 times a second.
pub const PROFILE_HZ: u32 = 99;
/// The largest sampling rate; a higher one is answered 400. The kernel's clock of threads gives 250 to 1,000.
pub const PROFILE_HZ_MAX: u32 = 1_000;

/// The default duration of a CPU profile: 3,000 samples of each busy core.
pub const CPU_PROFILE_SECONDS: Duration = Duration::from_secs(30);

/// The default duration of a lock profile.
pub const LOCK_PROFILE_SECONDS: Duration = Duration::from_secs(10);

/// The default threshold of a lock profile. Shorter waits are only counted. A sleep and a wake-up take longer.
pub const LOCK_PROFILE_THRESHOLD: Duration = Duration::from_micros(10);
/// The largest threshold of a lock profile; a larger one is answered 400.
pub const LOCK_PROFILE_THRESHOLD_MAX: Duration = Duration::from_secs(1);

/// The shortest duration of a profile; a shorter one is answered 400.
pub const PROFILE_WINDOW_MIN: Duration = Duration::from_millis(1);
/// The longest duration of a profile; a longer one is answered 400.
pub const PROFILE_WINDOW_MAX: Duration = Duration::from_mins(5);

/// The number of profiles of one kind at a time. One more is answered 409, with the code profile-busy.
pub const PROFILES_OF_A_KIND_MAX: usize = 4;

/// The time that a connection has for a profile's symbols, names and drawing, in addition to the profile's duration.
/// These may wait for other profiles.
pub const PROFILE_MAKING_TIMEOUT: Duration = Duration::from_secs(30);

/// The connections of the admin listener (people and one scraper), if the open-file limit allows it. More are closed.
pub const ADMIN_CONNECTIONS_MAX: usize = 64;

/// The largest body for the admin listener, bytes; then 413. A change of every option fits four times.
pub const ADMIN_BODY_BYTES_MAX: usize = 16 << 10;

/// The number of versions that a checkpoint skips above those that may have been given out when it was made. A server
/// that starts from the checkpoint gives out no version that a client has seen since, unless more writes than this
/// followed. 2^40 are 12 days at 1,000,000 writes a second, or 348 years at 100; there are 2^24 times as many versions.
pub const CHECKPOINT_VERSIONS_AHEAD: u64 = 1 << 40;

/// The longest name of a checkpoint, bytes: letters, digits, dots, dashes and underscores. Others are answered 400.
pub const CHECKPOINT_NAME_BYTES_MAX: usize = 64;

/// How long an answer waits for a checkpoint or its removal; then it is 202. It is shorter than
/// [`ADMIN_CONNECTION_TIMEOUT`], which would close the connection without an answer.
pub const MAINTENANCE_ANSWER_TIMEOUT: Duration = Duration::from_secs(25);

/// The smallest piece of a compaction of everything, bytes of tables. The compaction can be cancelled between two
/// pieces: a piece takes some seconds on a disk that does 100 MB a second.
pub const COMPACTION_PIECE_BYTES: u64 = 256 << 20;

/// The least free space for a compaction of everything, bytes. klad rejects the compaction if less is free beyond the
/// reserve than the size of all tables, or than this, whichever is smaller: RocksDB rewrites at most 25 tables of
/// 32 MiB in one step before it deletes the old ones.
pub const COMPACTION_ROOM_BYTES: u64 = 2 << 30;

/// The size of all logs together below which a start first reads them without a change, bytes, and compares them with
/// what was synced. So klad notices an emptied or removed log before RocksDB goes on without it. 1 MiB of small entries
/// is read in some 20 ms.
pub const LOG_BYTES_READ_TWICE: u64 = 1 << 20;

/// The number of findings that `klad check` prints. It counts the rest.
pub const CHECK_FINDINGS_MAX: usize = 20;

/// The block cache and memtables of `klad check` and `klad compact`, bytes.
pub const OFFLINE_CACHE_BYTES: u64 = 128 << 20;

/// The smallest `--memory`, bytes. Below it the caches are too small to be useful.
pub const MEMORY_BYTES_MIN: u64 = 64 << 20;
/// The largest `--memory`, bytes. klad counts the body memory as a 32-bit number of KiB.
pub const MEMORY_BYTES_CEILING: u64 = 16 << 40;

/// The shortest token in a token file, characters. klad does not start with a shorter one. 16 characters of base64 are
/// 96 bits, which cannot be guessed over a network.
pub const TOKEN_BYTES_MIN: usize = 16;
/// The longest token, characters. klad does not start with a longer one in the file, and does not look up a longer one
/// of a request. Generated tokens fit, but not JSON web tokens, which klad does not read. Hashing it takes a
/// microsecond.
pub const TOKEN_BYTES_MAX: usize = 512;

/// The number of tokens in a file. klad does not start with more. Each token costs every request some ten nanoseconds.
pub const TOKENS_MAX: usize = 256;

/// The largest token file, bytes. klad does not start with a larger one.
pub const TOKEN_FILE_BYTES_MAX: u64 = 1 << 20;

/// The largest file of certificates or of a key, bytes. klad does not start with a larger one. All authorities that
/// browsers trust take a quarter of it.
pub const TLS_FILE_BYTES_MAX: u64 = 1 << 20;

/// The number of handshake steps that a worker or the admin thread takes before it serves all other ready tasks. A step
/// takes up to a millisecond (an RSA signature); a flood of handshakes delays a request by no more than that.
pub const HANDSHAKE_STEPS_MAX: usize = 1;

/// klad warns at start and at each reload if a certificate expires within this time. Certificates of automatic issuers
/// live for 90 days and are usually renewed after two thirds of them, so long before this warning.
pub const CERTIFICATE_EXPIRES_SOON: Duration = Duration::from_hours(14 * 24);

/// The longest wait in `Retry-After`, also used where only an operator can help.
pub const RETRY_AFTER_MAX: Duration = Duration::from_secs(30);
/// The shortest wait in `Klad-Retry-After-Ms`: 0 would invite an immediate retry.
pub const RETRY_AFTER_MIN: Duration = Duration::from_millis(1);
/// The wait in `Retry-After` if none was measured.
pub const RETRY_AFTER_UNKNOWN: Duration = Duration::from_secs(1);

/// How long the client commands (`klad get` and others) try one address of a server: three attempts of the kernel.
pub const CLIENT_CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The client commands (`klad get` and others) fail if no byte has arrived or been sent for this time. It is longer
/// than twice klad's own [`HEAD_TIMEOUT`] and than any wait for a queue, so that the server's answer comes first.
pub const CLIENT_IDLE_TIMEOUT: Duration = Duration::from_secs(30);

/// How long `klad put` waits for `100 Continue`. Then it sends the value anyway: some proxies do not forward the
/// answer.
pub const CLIENT_EXPECT_TIMEOUT: Duration = Duration::from_secs(1);

/// How much of a value of unknown length `klad put` reads before it connects to the server, bytes: the default size
/// limit of a value. The source of the value may be slow, and a server does not wait for long. The rest is sent as it
/// is read.
pub const CLIENT_READ_AHEAD_BYTES: u64 = VALUE_BYTES_MAX;

/// The longest response head that the client commands accept, bytes. klad's own are below 300. A longer one is a
/// failure.
pub const CLIENT_HEAD_BYTES_MAX: usize = 64 << 10;

/// The bytes of an error response that the client commands read for its reason. klad's own are below 1,000.
pub const CLIENT_PROBLEM_BYTES_MAX: usize = 64 << 10;

/// The largest profile that `klad profile` reads from a server or a file, bytes as transferred. It is held in memory as
/// a whole; a larger one is a failure. Busy servers' profiles are below 1 MiB.
pub const CLIENT_PROFILE_BYTES_MAX: usize = 64 << 20;

/// The longest entry that `klad scan` accepts, bytes: the largest value, line feed and key that a server can be
/// configured for. It is held in memory until it is complete; a longer one is a failure.
pub const CLIENT_ENTRY_BYTES_MAX: u64 = VALUE_BYTES_CEILING + 1 + KEY_BYTES_CEILING;

// The encoded key must fit in the head, together with other headers.
const _: () = assert!(3 * KEY_BYTES_MAX + (8 << 10) <= HEAD_BYTES_MAX);
const _: () = assert!(KEY_BYTES_MAX <= KEY_BYTES_CEILING && 3 * KEY_BYTES_CEILING < 65_534);
const _: () = assert!(VALUE_BYTES_MAX <= VALUE_BYTES_CEILING);
// hyper's buffer must hold a whole head.
const _: () = assert!(HEAD_BYTES_MAX <= CONNECTION_BUFFER_BYTES_MAX as u64);
// Between two checks of free space, less than the reserve can be written at 1 GB/s.
const _: () = assert!(HOUSEKEEPING_INTERVAL.as_millis() * 1_000_000 <= DISK_RESERVE_BYTES as u128);
const _: () = assert!(GROWN_BYTES as u64 <= CONNECTION_BYTES);
// A read without hyper must not mark a connection's buffers as grown.
const _: () = assert!(PLAIN_REQUEST_BYTES_MAX <= GROWN_BYTES && PLAIN_HEAD_BYTES_MAX <= PLAIN_REQUEST_BYTES_MAX);
// Every worker checks at least once before a shortage counts as standing, and once more before it is forgotten.
const _: () = assert!(SWEEP_INTERVAL.as_millis() < BODY_BUDGET_LACK_STANDS.as_millis());
const _: () =
    assert!(SWEEP_INTERVAL.as_millis() + BODY_BUDGET_LACK_STANDS.as_millis() <= BODY_BUDGET_LACK_LIFETIME.as_millis());
const _: () = assert!(LOG_BYTES_RESERVED < LOG_BYTES_MAX);
const _: () = assert!(MAINTENANCE_ANSWER_TIMEOUT.as_millis() < ADMIN_CONNECTION_TIMEOUT.as_millis());
const _: () = assert!(EVICTION_RATE_FIRST_BYTES_MAX <= EVICTION_RATE_BYTES_MAX);
// A rejected small body is discarded, and its connection stays open.
const _: () = assert!(SMALL_BODY_BYTES <= DRAIN_BYTES_MAX && SMALL_BODY_ROOM_PARTS > 1);
const _: () = assert!(LARGE_BODY_LEAVES_PARTS.is_multiple_of(SMALL_BODY_ROOM_PARTS));
const _: () = assert!(TOKEN_BYTES_MIN < TOKEN_BYTES_MAX && TOKEN_BYTES_MAX as u64 <= HEAD_BYTES_MAX / 8);
const _: () = assert!((ADMIN_CONNECTIONS_MAX + REFUSED_LINGERING_MAX) as u64 <= DESCRIPTORS_KEPT / 4);
// A stop without requests in progress takes less than a second.
const _: () = assert!(DRAIN_ACCEPT_PATIENCE.as_millis() + DRAIN_IDLE_PATIENCE.as_millis() < 1_000);
const _: () = assert!(DRAIN_PATIENCE.as_millis() < DRAIN_TIMEOUT.as_millis());
