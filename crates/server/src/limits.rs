//! Limits of the server, and the defaults and bounds of options. Each has its unit, its reason, and what klad does when
//! it is reached. The program's `config` reads the options.

use std::time::Duration;

use klad_base::limits::{ADMIN_CONNECTIONS_MAX, DESCRIPTORS_KEPT, REFUSED_LINGERING_MAX};

use klad_storage::limits::HOUSEKEEPING_INTERVAL;

mod console;
mod v1;
mod worker_reads;

pub use console::*;
pub use v1::*;
pub use worker_reads::*;

/// Default of `--head-max`: bytes of the request line and the headers together. klad answers a longer head with 431.
/// 32 KiB hold a key of 4 KiB with every byte percent-encoded (12 KiB) and 20 KiB of headers; nginx takes 32 KiB.
pub const HEAD_BYTES_MAX: u64 = 32 << 10;

/// Default of `--key-max`: bytes of a key after decoding. klad answers a longer key with 414. Keys are short, as in S3
/// (1 KiB); etcd has no separate limit. A path fits into 4 KiB.
pub const KEY_BYTES_MAX: u64 = 4 << 10;

/// The largest `--key-max`, bytes. The percent-encoded key must fit into a URI, which the `http` crate limits to 65,534
/// bytes.
pub const KEY_BYTES_CEILING: u64 = klad_storage::limits::KEY_BYTES_CEILING as u64;

/// Default of `--value-max`: bytes of a value. klad answers a larger body with 413. klad holds each value that it reads
/// or writes in memory as a whole. Workers KV takes 25 MiB, etcd 1.5 MiB.
pub const VALUE_BYTES_MAX: u64 = 16 << 20;

/// The largest `--value-max`, bytes. RocksDB advises against values larger than about ten MiB, and its blocks must be
/// smaller than 4 GiB.
pub const VALUE_BYTES_CEILING: u64 = 1 << 30;

/// The maximum of headers of one request; klad answers more with 431. This is hyper's default. `--head-max` limits the
/// bytes of the headers.
pub const HEADERS_MAX: usize = 100;

/// The maximum size of hyper's read buffer of one connection, bytes, and the level at which hyper flushes its write
/// buffer. With hyper's default of about 400 KiB, 10,000 connections could hold 4 GB.
pub const CONNECTION_BUFFER_BYTES_MAX: usize = 64 << 10;

/// A worker reads a request of at most this many bytes without hyper, if it arrives in one piece. The worker reads it
/// into its own buffer of this size. hyper reads a larger request.
pub const PLAIN_REQUEST_BYTES_MAX: usize = 16 << 10;

/// A request is plain only if its head has at most this many bytes. hyper reads a request with a longer head.
pub const PLAIN_HEAD_BYTES_MAX: usize = 4 << 10;

/// A request is plain only if it has at most this many headers. Browsers send about 15.
pub const PLAIN_HEADERS_MAX: usize = 32;

/// After hyper has read a request of a connection, it reads the next requests too, until it has read this many.
/// Otherwise klad would create hyper's state again for each request of a client that sends no plain requests.
pub const HYPER_REQUESTS_MIN: u32 = 16;

/// The maximum of pipelined requests that the fast path answers before the other connections of its worker have a turn:
/// some 0.1 ms of GETs from memory.
pub const PIPELINE_REQUESTS_MAX: usize = 128;

/// A read of storage on the worker counts as this many requests of [`PIPELINE_REQUESTS_MAX`].
pub const STORAGE_READ_REQUESTS: usize = 8;

/// The maximum of bytes of a value that klad writes in one piece, with or without hyper. hyper's flat write buffer
/// keeps the capacity to which it has grown, so a larger piece would take memory for as long as the connection lives.
pub const RESPONSE_FRAME_BYTES_MAX: usize = 64 << 10;

/// What the memory budget charges for one idle connection, bytes. hyper's two initial buffers have 8 KiB each; its
/// state and the task come on top. Small requests touch only a part of all that. Measured: 2,000 connections, each
/// after one small request, together add 19 to 26 MiB of resident memory, 10 to 13 KiB each. A connection that has
/// sent only plain requests has no buffer, but is charged the same, because its next request may not be plain.
pub const CONNECTION_BYTES: u64 = 16 << 10;

/// What the memory budget charges for a TLS connection in addition to [`CONNECTION_BYTES`], bytes: keys and state of
/// the session, and a buffer for one read (4 KiB).
/// Measured: 400 TLS connections after one small request each add 20 KB of resident memory each; connections without
/// TLS add 10 to 13 KiB. `tests/measure/memory.rs` checks the sum of both limits.
pub const TLS_CONNECTION_BYTES: u64 = 12 << 10;

/// Default of `--connections-max`, if the memory budget allows it. At the limit klad stops accepting until a
/// connection closes.
pub const CONNECTIONS_MAX: u64 = 10_000;

/// The longest time that an option may set. klad adds such times to clock readings, which must not overflow.
pub const OPTION_TIME_MAX: Duration = Duration::from_hours(24 * 365);

/// The largest `--connections-max`.
pub const CONNECTIONS_CEILING: usize = 1_000_000;

/// The times that a client may set with `Klad-Timeout`. klad answers other values with 400. With less than a
/// millisecond, no time would be left after klad has read the head. No client waits longer than an hour.
pub const TIMEOUT_RANGE: std::ops::RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_hours(1);

/// Default of `--pool-threads`, for `--execution pool` and `stealing`.
pub const POOL_THREADS: u64 = 4;

/// Default of `--queue-limit`: the number of operations that may wait in `--execution pool` and `stealing`. klad
/// answers one more with 503. It is the largest of the queue sizes that a published report about such a pool compares.
pub const QUEUE_LIMIT: u64 = 1_024;

/// The largest `--queue-limit`.
pub const QUEUE_LIMIT_CEILING: usize = 1_000_000;

/// The largest `--scans-max`.
pub const SCANS_CEILING: usize = 10_000;

/// The number of operation slots with `--admission off`. It is no limit in effect: there can never be as many
/// connections.
pub const SLOTS_CEILING: usize = 1 << 30;

/// Default of `--operations-max`: the number of operations that wait for the engine or run in it. klad answers one
/// more with 503. At 50,000 writes a second, 4,096 operations are 80 ms of queue.
pub const OPERATIONS_MAX: u64 = 4_096;

/// Default of `--scans-max`: the number of ranges in progress. klad answers one more with 503. Each range may hold one
/// page of entries in klad, and a copy of it in hyper's write buffer.
pub const SCANS_MAX: u64 = 64;

/// Default of `--watchers-max`: the number of change feeds in progress. klad answers one more with 503. Without changes
/// a feed holds some hundred bytes beside its connection.
pub const WATCHERS_MAX: u64 = 1_000;

/// Default of `--changes-heartbeat`: a feed without changes sends something after this time. Proxies and clients take a
/// connection without any bytes for broken; 30 s and 60 s are common.
pub const CHANGES_HEARTBEAT: Duration = Duration::from_secs(15);

/// Bytes of the changes that one step of a feed returns. A larger change is a step by itself.
pub const FEED_STEP_BYTES_MAX: usize = 16 << 10;

/// The size of encoded changes as a multiple of the changes themselves: base64 takes a third more, and escaped text
/// seldom twice as much.
pub const FEED_ENCODED_FACTOR: usize = 2;

/// The number of steps of feeds that one worker does at a time. A commit wakes all feeds; the others wait, and hold
/// neither memory nor a place in the queue of the storage threads.
pub const FEED_STEPS_PER_WORKER: usize = 8;

/// A feed that has read all changes reads at most once in this time. It bounds what a feed costs beside many small
/// commits. A change after a longer time without changes is not delayed.
pub const FEED_PAUSE: Duration = Duration::from_millis(5);

/// Default of `--storage-threads`: the number of threads for reads and scan steps, which may wait for the disk.
pub const STORAGE_THREADS: u64 = 4;

/// The maximum of entries that one scan step returns.
pub const SCAN_STEP_ENTRIES_MAX: usize = 256;

/// The maximum of writes in one batch. It is a quarter of the default `--operations-max`, so that under the heaviest
/// load klad answers the first writes of a burst well before the last.
pub const COMMIT_WRITES_MAX: usize = 1_024;

/// A worker writes the `async` writes of one loop iteration itself if their keys and values have at most this many
/// bytes together. A larger batch would delay its other connections. At 1 GB/s, 256 KiB take a quarter of a
/// millisecond.
pub const ITERATION_COMMIT_BYTES_MAX: usize = 256 << 10;

/// A storage queue that has not been empty for this long is a standing queue: more operations arrive than klad serves.
/// This is `CoDel`'s interval (RFC 8289, 100 ms).
pub const QUEUE_STANDING_AFTER: Duration = Duration::from_millis(100);

/// For this long after a standing queue, klad treats a queue as standing as soon as its oldest operation has waited
/// for [`QUEUE_STANDING_AGAIN_TARGETS`] targets. `CoDel` remembers its drops for 16 intervals as well (RFC 8289).
pub const QUEUE_STANDING_MEMORY: Duration = QUEUE_STANDING_AFTER.saturating_mul(16);

/// Within [`QUEUE_STANDING_MEMORY`], klad treats a queue as standing again when the oldest operation has waited for
/// this many times `--queue-target`. `docs/decisions/2026-11-22-queues-remember.md` has the cost near the capacity and
/// the gain beyond it. With a target of 25 ms or more this rule has no effect.
pub const QUEUE_STANDING_AGAIN_TARGETS: u32 = 4;

const _: () =
    assert!(QUEUE_TARGET.saturating_mul(QUEUE_STANDING_AGAIN_TARGETS).as_nanos() < QUEUE_STANDING_AFTER.as_nanos());

/// Default of `--queue-target`: klad rejects operations of a standing queue that have waited longer. This is `CoDel`'s
/// target (RFC 8289), and Facebook's setting.
pub const QUEUE_TARGET: Duration = Duration::from_millis(5);

/// Default of `--queue-age-max`. With `--execution adaptive`, klad answers 503 to an operation that has waited longer
/// in a storage queue, for example to a write that waits behind a stalled disk. Steps of ranges may wait longer.
pub const QUEUE_AGE_MAX: Duration = Duration::from_secs(1);

/// Default of `--turn-max`. A request may wait for its worker as long as one loop iteration takes: one pass of the
/// worker over all tasks that are ready. After a longer iteration, if clients are impatient, the gate closes and admits
/// only as many requests as the worker serves in [`ITERATION_TARGET`]. 50 ms are about 4,000 requests of 12 µs on one
/// core, and a fifth of the 250 ms that an impatient client waits.
pub const ITERATION_MAX: Duration = Duration::from_millis(50);

/// While the gate is closed, it admits as many requests in each loop iteration as the worker serves in this time. If
/// clients are impatient, a worker whose iterations take longer gets few new connections. Measured on a fifth of a
/// core, one run each: with a load of twice the capacity, klad served 93, 82 and 86 % of the capacity with targets of
/// 5, 10 and 20 ms; with a load of five times the capacity, 99, 90 and 78 %.
pub const ITERATION_TARGET: Duration = Duration::from_millis(5);

/// A loop iteration with fewer requests than this neither strains a worker nor closes its gate, however long it takes:
/// it is no sign of load.
pub const ITERATION_REQUESTS_MIN: u32 = 32;

/// While the gate is closed, requests that have waited for this long alternate with the newest. Less patient clients
/// have left by then.
pub const REQUEST_AGED: Duration = Duration::from_secs(1);

/// While all gates are closed, the acceptor checks this often whether one has opened. It is also the acceptor's pause
/// between batches of connections when it limits its rate, and between looks for connections while klad stops.
pub const ACCEPT_PAUSE: Duration = Duration::from_millis(2);

/// The lowest rate limit of the acceptor, connections a second. While the gates of all workers are closed, the acceptor
/// accepts none.
pub const ACCEPTS_MIN: u32 = 8;

/// When the rate limit of the acceptor has doubled to this, connections a second, the acceptor removes the limit.
pub const ACCEPTS_MAX: u32 = 32_768;

/// The first rate limit of the acceptor when all workers are strained, connections a second. The acceptor then halves
/// or doubles it.
pub const ACCEPTS_CAUTIOUS: u32 = 256;

/// How often the acceptor halves or doubles its rate limit. From the lowest limit, it needs twelve steps, 600 ms, after
/// an overload to remove the limit.
pub const ACCEPT_STEP: Duration = Duration::from_millis(50);

/// klad considers clients impatient for this long after a client has sent a deadline or has left before its answer.
pub const IMPATIENCE_LIFETIME: Duration = Duration::from_secs(1);

/// How often klad updates the average service times of the queues, and rejects operations that have waited too long.
pub const QUEUE_CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// The body budget counts in units of this many bytes.
pub const BODY_BUDGET_UNIT_BYTES: u64 = 1 << 10;

/// Bodies of at most this many bytes count as small. Most values are small, and 1,000 small bodies need no more budget
/// (4 MiB) than one large upload.
pub const SMALL_BODY_BYTES: u64 = 4 << 10;

/// One part in this many of the body budget, an eighth, is reserved for small bodies. Larger bodies and large answers
/// share the rest, so that they do not take all of the budget from small bodies. At `--memory 1GiB` an eighth of the
/// budget is 16 MiB: 4,096 small bodies, as many as the default number of operation slots.
pub const SMALL_BODY_BUDGET_PARTS: u64 = 8;

/// Default of `--body-rate-min`, bytes a second. klad ends a request whose client sends a body for longer than
/// `--body-timeout`, or lets klad wait during an answer for longer than `--write-timeout`, at a lower average rate. A
/// modem of 1995 is three times as fast. nginx has no such limit; Apache's `mod_reqtimeout` requires 500.
pub const BODY_RATE_BYTES_MIN: u64 = 1 << 10;

/// A body or answer that is not small ([`SMALL_BODY_BYTES`]) must leave as many bytes of the budget free as it takes,
/// up to one part in this many of the budget. At `--memory 1GiB` that part is 2 MiB: enough for 128 values of 16 KiB
/// when uploads have taken the rest.
pub const LARGE_BODY_LEAVES_PARTS: u64 = 64;

/// The largest `--body-rate-min`, bytes a second. At a higher rate klad would measure the kernel's buffers instead of
/// the client.
pub const BODY_RATE_BYTES_CEILING: u64 = 1 << 20;

/// When the body budget runs out, klad does not end a request for whose client it has waited for less time: the
/// client's rate is not known yet.
pub const EVICTION_AGE_MIN: Duration = Duration::from_secs(1);

/// When the body budget runs out, klad does not end an upload that brings more bytes a second than this. It is half a
/// megabit a second: at this rate the largest value by default takes four minutes.
pub const EVICTION_RATE_BYTES_MAX: u64 = 64 << 10;

/// When the body budget runs out, every worker at first ends only uploads that bring at most this many bytes a second,
/// and answers whose clients take nothing.
pub const EVICTION_RATE_FIRST_BYTES_MAX: u64 = BODY_RATE_BYTES_MIN;

/// After a lack of body budget has lasted this long, every worker has looked for very slow requests among its
/// connections. klad may then also end requests that are less slow, up to [`EVICTION_RATE_BYTES_MAX`].
pub const BODY_BUDGET_SHORTAGE_LASTS: Duration = Duration::from_millis(125);

/// klad remembers for this long how much budget a rejected request lacked. In this time every worker looks for very
/// slow requests, and then for all slow ones.
pub const BODY_BUDGET_SHORTAGE_LIFETIME: Duration = Duration::from_millis(250);

/// After a rejection klad reads and discards up to this many bytes of the body, so that the connection can continue.
/// If the body is longer, klad closes the connection after the answer.
pub const DRAIN_BYTES_MAX: u64 = 64 << 10;

/// When klad closes a connection whose client still sends, it reads for at most this long, so that the client sees the
/// answer instead of a reset.
pub const LINGER_TIMEOUT: Duration = Duration::from_secs(2);

/// The maximum of bytes that klad reads and discards before it closes a connection whose client still sends.
pub const LINGER_BYTES_MAX: usize = 4 << 20;

/// Default of `--head-timeout`: the maximum time from the first byte of a head to the last; then klad answers 408. Also
/// the maximum time of a TLS handshake. nginx waits 60 s, hyper 30 s.
pub const HEAD_TIMEOUT: Duration = Duration::from_secs(10);

/// Default of `--idle-timeout`: the maximum time between two requests; then klad closes the connection without an
/// answer. This is longer than the 60 s for which load balancers commonly keep connections.
pub const IDLE_TIMEOUT: Duration = Duration::from_secs(75);

/// klad closes an idle connection after this time if its buffers in hyper have grown beyond what [`CONNECTION_BYTES`]
/// charges. Only closing frees that memory.
pub const GROWN_IDLE_TIMEOUT: Duration = Duration::from_secs(2);

/// hyper's buffers of a connection count as grown when one read has brought more than this many bytes, or hyper has
/// offered more than this many bytes in one write.
pub const GROWN_BYTES: usize = 16 << 10;

/// Default of `--body-timeout`. klad answers 408 if no byte of an expected body arrives for this time, or if the body
/// takes longer than this time and its average rate is below `--body-rate-min`.
pub const BODY_TIMEOUT: Duration = Duration::from_secs(10);

/// Default of `--write-timeout`. klad closes the connection if the client takes no byte of an answer for this time, or
/// if all waits for the client during an answer together exceed this time and the average rate over them is below
/// `--body-rate-min`.
pub const WRITE_TIMEOUT: Duration = Duration::from_secs(30);

/// How often the sweep checks deadlines, which is also the precision of deadlines.
pub const SWEEP_INTERVAL: Duration = Duration::from_millis(100);

/// One sweep counts at most this much time against clients. If the process was stopped or the worker had no CPU time,
/// the rest is not the clients' fault.
pub const SWEEP_COUNTS_MAX: Duration = Duration::from_millis(200);

/// Bytes of one connection that the kernel may hold unsent before klad must wait (`TCP_NOTSENT_LOWAT`). With it, klad
/// can write again soon after a client has read something. Without it, the kernel reports progress only when a good
/// part of a send buffer of megabytes is free, and a slow reader looks like a client that reads nothing.
pub const NOT_SENT_BYTES_MAX: u32 = 128 << 10;

/// hyper's write buffer keeps the capacity of the largest range entry that was copied into it. If klad has offered a
/// connection more than this many bytes at once, it closes the connection after the answer, because only that frees
/// the memory.
pub const OVERSIZED_BYTES: usize = 1 << 20;

/// How often a range that waits for body budget tries again.
pub const BODY_BUDGET_RETRY: Duration = Duration::from_millis(10);

/// How long a range waits for budget for a large entry. Then klad answers 503 if it is the first step, and ends the
/// response early if it is a later one.
pub const BODY_BUDGET_TIMEOUT: Duration = Duration::from_secs(5);

/// How long an admin connection may live. After this time klad gives the request in progress as much time again, and
/// then closes the connection. Admin answers are small, and a client that reads nothing must not keep its place.
pub const ADMIN_CONNECTION_TIMEOUT: Duration = Duration::from_secs(30);

/// The maximum of bytes of log lines that wait until stderr takes them. klad drops and counts lines beyond that. 1 MiB
/// is about 4,000 lines: the reader of stderr may pause for a while. If it never reads, klad uses twice this memory,
/// because the thread that writes has a second buffer.
pub const LOG_BYTES_MAX: usize = 1 << 20;

/// Bytes of [`LOG_BYTES_MAX`] that are reserved for warnings and errors, so that an access log without a reader does
/// not displace them.
pub const LOG_BYTES_RESERVED: usize = 64 << 10;

/// When klad ends, it waits this long for stderr to take the last lines. A reader that does not read must not block
/// the end.
pub const LOG_FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// Default of `--value-cache`: the percentage of the cache's memory that holds values instead of blocks. A smaller
/// block cache has fewer hits if the data does not fit into memory. If the hot keys fit into the value cache, it saves
/// half of a read's CPU time (docs/decisions/2026-11-21-value-cache.md).
pub const VALUE_CACHE_PERCENT: u64 = 25;

/// Default of `--heap-sample`, bytes: jemalloc takes on average one sample for this many allocated bytes. Sampling is
/// always on, so it must cost almost nothing. `TCMalloc` has the same default. jemalloc samples one of about 2,000
/// allocations of one kilobyte, and estimates 64 MiB of such allocations within 18 % (1/√32). With jemalloc's default
/// of 512 KiB, GETs took 1.7 % more CPU time.
pub const HEAP_SAMPLE_BYTES: u64 = 2 << 20;

/// The smallest `--heap-sample` other than 0, bytes. Below it jemalloc would record a stack for most allocations,
/// which takes some microseconds each.
pub const HEAP_SAMPLE_BYTES_MIN: u64 = 4 << 10;

/// The largest `--heap-sample`, bytes. Above it a process of any size has no sample.
pub const HEAP_SAMPLE_BYTES_CEILING: u64 = 1 << 30;

/// Default of `--slow-request`. People notice a second. On a healthy machine a point operation takes less: a sync takes
/// some ms. A request that takes longer has waited for something, is a long range, or has a slow client. By default
/// etcd warns at 100 ms, `MySQL` at 10 s, `PostgreSQL` never.
pub const SLOW_REQUEST: Duration = Duration::from_secs(1);

/// `/debug/slow` keeps the slowest requests of each op, separately for each of the last [`SLOWEST_WINDOWS`] windows of
/// this length. Together they are a minute, enough for a person who was alerted to ask for the requests. With windows
/// of 10 s, a burst does not hide what comes after it.
pub const SLOWEST_WINDOW: Duration = Duration::from_secs(10);

/// The number of windows for which `/debug/slow` keeps the slowest requests; see [`SLOWEST_WINDOW`].
pub const SLOWEST_WINDOWS: usize = 6;

/// The number of slow requests that each worker keeps for each op and window: enough to see a pattern. A slower request
/// replaces the fastest one that was kept. At about 500 bytes each, all kept requests of a worker take at most a third
/// of a MiB.
pub const SLOWEST_KEPT: usize = 16;

/// The number of requests that `/debug/slow` shows by default.
pub const SLOWEST_SHOWN: usize = 32;

/// The largest number of requests that a client can ask `/debug/slow` for.
pub const SLOWEST_SHOWN_MAX: usize = 1_000;

/// The maximum of log lines about slow requests in one second. klad counts further slow requests and reports their
/// number in one line. Ten lines are enough to see a pattern, and do not fill a disk: ten lines of 400 bytes in
/// each second are 350 MB a day.
pub const SLOW_REQUEST_LINES_MAX: u64 = 10;

/// The longest `X-Request-Id` that klad accepts, bytes. klad ignores a longer one, because log lines contain it. A UUID
/// has 36 bytes, AWS's trace header 35 to 100.
pub const REQUEST_ID_BYTES_MAX: usize = 128;

/// Default of `--async-sync-interval`: how often klad syncs `async` writes.
pub const ASYNC_SYNC_INTERVAL: Duration = Duration::from_secs(1);

/// How long klad, when it stops, waits for answers of an engine that answers later. An engine across a network may have
/// lost them.
pub const LATE_ANSWERS_TIMEOUT: Duration = Duration::from_secs(10);

/// The smallest `--memory`, bytes, with which klad uses transparent huge pages. They cost about 25 MiB, a twentieth of
/// this budget.
pub const HUGE_PAGES_MEMORY_MIN: u64 = 512 << 20;

/// Default of `--disk-reserve`, bytes. If less space is free, klad answers PUTs with 507; if less than half of it is
/// free, DELETEs too. RocksDB needs the reserve for the compactions that free space.
pub const DISK_RESERVE_BYTES: u64 = 256 << 20;

/// How often klad reads the allocator's figures. Each reading takes all of the allocator's locks one after the other,
/// which takes about 100 µs in all.
pub const ALLOCATOR_READ_INTERVAL: Duration = Duration::from_secs(1);

/// If housekeeping has not finished a round for this long, klad concludes that storage does not answer, and is not
/// ready. A working disk takes less time for one write, however busy it is.
pub const HOUSEKEEPING_LATE: Duration = Duration::from_secs(15);

/// The largest configuration file, bytes; a larger one is an error. A file with all options and their comments has
/// about 10 KiB.
pub const CONFIG_FILE_BYTES_MAX: u64 = 1 << 20;

/// Default of `--drain-timeout`: how long requests in flight may take to finish when klad stops.
pub const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// While klad stops, it waits this long for the next byte of a head or a body, and for the client to take the next
/// byte of an answer. Then it answers 408 or closes the connection. It is longer than a client's kernel waits before
/// it repeats a lost segment (200 ms and more).
pub const DRAIN_PATIENCE: Duration = Duration::from_secs(1);

/// While klad stops, it keeps a connection without a request for this long. If the client sends a request in this
/// time, klad answers it with `Connection: close`. After such an answer klad waits as long for the client to close.
/// This is longer than any network round trip.
pub const DRAIN_IDLE_PATIENCE: Duration = Duration::from_millis(300);

/// While klad stops, it still accepts for this long connections that clients have begun to open, because the client's
/// last segment is on its way. Same value as [`DRAIN_IDLE_PATIENCE`].
pub const DRAIN_ACCEPT_PATIENCE: Duration = Duration::from_millis(300);

/// How often a worker checks deadlines while klad stops.
pub const DRAIN_SWEEP_INTERVAL: Duration = Duration::from_millis(10);

/// The maximum of connections that the kernel holds until klad accepts them. The kernel's own limit (`somaxconn`) is
/// 4,096 by default.
pub const LISTEN_BACKLOG: u32 = 4_096;

/// The maximum of connections that the kernel holds while the acceptor limits its rate. A longer backlog would hold
/// connections whose clients have given up. If the backlog is full, the client's kernel tries again, at no cost for
/// klad. The length is enough for the connections that klad accepts in [`ACCEPT_PAUSE`] at its highest rate limit
/// (16,384 a second).
pub const LISTEN_BACKLOG_CAUTIOUS: u32 = 32;

/// klad closes a connection beyond `--connections-per-peer` after this time, or earlier when the client has closed it.
/// On the admin listener, the same holds for a client whose TLS handshake has failed.
pub const REFUSED_LINGER_TIMEOUT: Duration = Duration::from_secs(1);

/// The number of threads that klad may need in addition to its workers, the compaction threads for each worker, and the
/// threads of its execution strategy. Measured: at most 19, and 20 while RocksDB opens. The rest is for profiles.
pub const THREADS_OWN: usize = 24;

/// Default sample rate of a CPU profile: samples for each second of CPU time of a thread. It is not 100, so that
/// sampling does not stay in step with something that happens a hundred times a second.
pub const PROFILE_HZ: u32 = 99;

/// The highest sample rate of a CPU profile that a client can ask for, samples a second; klad answers more with 400.
/// The kernel takes at most one sample per tick, and has 250 to 1,000 ticks a second.
pub const PROFILE_HZ_MAX: u32 = 1_000;

/// Default length of a CPU profile. It gives about 3,000 samples of each busy core.
pub const CPU_PROFILE_SECONDS: Duration = Duration::from_secs(30);

/// Default length of a lock profile.
pub const LOCK_PROFILE_SECONDS: Duration = Duration::from_secs(10);

/// Default threshold of a lock profile. klad only counts shorter waits, and does not record their stacks. Putting a
/// thread to sleep and waking it up takes longer than this.
pub const LOCK_PROFILE_THRESHOLD: Duration = Duration::from_micros(10);

/// The highest threshold of a lock profile; klad answers more with 400.
pub const LOCK_PROFILE_THRESHOLD_MAX: Duration = Duration::from_secs(1);

/// The shortest length of a profile; klad answers a shorter one with 400.
pub const PROFILE_WINDOW_MIN: Duration = Duration::from_millis(1);
/// The longest length of a profile; klad answers a longer one with 400.
pub const PROFILE_WINDOW_MAX: Duration = Duration::from_mins(5);

/// The maximum of profiles of one kind at a time. klad answers one more with 409, code `profile-busy`.
pub const PROFILES_OF_A_KIND_MAX: usize = 4;

/// How long an admin connection may live for a profile, in addition to [`ADMIN_CONNECTION_TIMEOUT`] and the profile's
/// length. In this time klad resolves symbols and writes the result, for one profile after the other.
pub const PROFILE_MAKING_TIMEOUT: Duration = Duration::from_secs(30);

/// The largest request body on the admin listener, bytes; klad answers a larger one with 413. A request that changes
/// every option needs a quarter of this.
pub const ADMIN_BODY_BYTES_MAX: usize = 16 << 10;

/// The longest name of a checkpoint, bytes. klad answers a longer name with 400, and also a name that does not begin
/// with a letter or digit, or that has other characters than letters, digits, dots, dashes and underscores.
pub const CHECKPOINT_NAME_BYTES_MAX: usize = 64;

/// How long klad waits for a checkpoint or its removal before it answers 202. It is less than
/// [`ADMIN_CONNECTION_TIMEOUT`], which would end the connection without an answer.
pub const MAINTENANCE_ANSWER_TIMEOUT: Duration = Duration::from_secs(25);

/// The smallest `--memory`, bytes. With less the caches are too small to be useful.
pub const MEMORY_BYTES_MIN: u64 = 64 << 20;

/// The largest `--memory`, bytes. The body budget, an eighth of it, is counted in KiB in 32 bits, which reach 4 TiB.
pub const MEMORY_BYTES_CEILING: u64 = 16 << 40;

/// The shortest token that a token file may have, characters; klad rejects a file with a shorter one. 16 characters of
/// base64 are 96 bits, which an attacker cannot guess over a network.
pub const TOKEN_BYTES_MIN: usize = 16;

/// The longest token, characters. klad rejects a file with a longer one, and treats a longer one in a request as
/// unknown. Tokens of other programs fit (except JSON web tokens, which klad does not read). Hashing a token of this
/// length takes a microsecond.
pub const TOKEN_BYTES_MAX: usize = 512;

/// The maximum of tokens in one file; klad rejects a file with more. Each token costs every request about ten
/// nanoseconds.
pub const TOKENS_MAX: usize = 256;

/// The largest token file, bytes; klad rejects a larger one.
pub const TOKEN_FILE_BYTES_MAX: u64 = 1 << 20;

/// The largest file of certificates or of a key, bytes; klad rejects a larger one. A file with the certificates of all
/// authorities that browsers trust is a quarter as large.
pub const TLS_FILE_BYTES_MAX: u64 = 1 << 20;

/// The number of TLS handshakes that a worker or the admin thread advances by one step before it runs its other ready
/// tasks. A step takes up to a millisecond (an RSA signature), so a flood of handshakes delays a request by that time.
pub const HANDSHAKE_STEPS_MAX: usize = 1;

/// klad warns at the start, and when it reloads certificates, if a certificate expires within this time. Automatic
/// certificates live for 90 days and are renewed after two thirds of that.
pub const CERTIFICATE_EXPIRES_SOON: Duration = Duration::from_hours(14 * 24);

/// The longest wait that klad gives in `Retry-After`. klad also gives it if only an operator can end the condition.
pub const RETRY_AFTER_MAX: Duration = Duration::from_secs(30);

/// The shortest wait that klad gives in `Klad-Retry-After-Ms`. With 0 the client would try again at once.
pub const RETRY_AFTER_MIN: Duration = Duration::from_millis(1);

/// The wait that klad gives in `Retry-After` if it has measured no wait.
pub const RETRY_AFTER_UNKNOWN: Duration = Duration::from_secs(1);

// The encoded key must fit into the head, together with headers.
const _: () = assert!(3 * KEY_BYTES_MAX + (8 << 10) <= HEAD_BYTES_MAX);
const _: () = assert!(KEY_BYTES_MAX <= KEY_BYTES_CEILING && 3 * KEY_BYTES_CEILING < 65_534);
const _: () = assert!(VALUE_BYTES_MAX <= VALUE_BYTES_CEILING);
// hyper's buffer must hold a whole head.
const _: () = assert!(HEAD_BYTES_MAX <= CONNECTION_BUFFER_BYTES_MAX as u64);
// At 1 GB/s, the disk cannot use up the reserve between two checks of free space.
const _: () = assert!(HOUSEKEEPING_INTERVAL.as_millis() * 1_000_000 <= DISK_RESERVE_BYTES as u128);
const _: () = assert!(GROWN_BYTES as u64 <= CONNECTION_BYTES);
// A read without hyper must not count as grown buffers.
const _: () = assert!(PLAIN_REQUEST_BYTES_MAX <= GROWN_BYTES && PLAIN_HEAD_BYTES_MAX <= PLAIN_REQUEST_BYTES_MAX);
// Every worker must sweep at least once before a lack of budget counts as lasting, and once more before klad forgets
// it.
const _: () = assert!(SWEEP_INTERVAL.as_millis() < BODY_BUDGET_SHORTAGE_LASTS.as_millis());
const _: () = assert!(
    SWEEP_INTERVAL.as_millis() + BODY_BUDGET_SHORTAGE_LASTS.as_millis() <= BODY_BUDGET_SHORTAGE_LIFETIME.as_millis()
);
const _: () = assert!(LOG_BYTES_RESERVED < LOG_BYTES_MAX);
const _: () = assert!(MAINTENANCE_ANSWER_TIMEOUT.as_millis() < ADMIN_CONNECTION_TIMEOUT.as_millis());
const _: () = assert!(EVICTION_RATE_FIRST_BYTES_MAX <= EVICTION_RATE_BYTES_MAX);
// klad must read and discard a rejected small body, so that its connection can continue.
const _: () = assert!(SMALL_BODY_BYTES <= DRAIN_BYTES_MAX && SMALL_BODY_BUDGET_PARTS > 1);
const _: () = assert!(LARGE_BODY_LEAVES_PARTS.is_multiple_of(SMALL_BODY_BUDGET_PARTS));
const _: () = assert!(TOKEN_BYTES_MIN < TOKEN_BYTES_MAX && TOKEN_BYTES_MAX as u64 <= HEAD_BYTES_MAX / 8);
const _: () = assert!((ADMIN_CONNECTIONS_MAX + REFUSED_LINGERING_MAX) as u64 <= DESCRIPTORS_KEPT / 4);
// A stop takes less than a second if no request is in progress.
const _: () = assert!(DRAIN_ACCEPT_PATIENCE.as_millis() + DRAIN_IDLE_PATIENCE.as_millis() < 1_000);
const _: () = assert!(DRAIN_PATIENCE.as_millis() < DRAIN_TIMEOUT.as_millis());
