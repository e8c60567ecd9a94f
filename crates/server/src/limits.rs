//! Limits of the server, and the defaults and bounds of options. Each comment gives the unit, the reason, and what klad
//! does at the limit. The program's `config` reads the options.

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

/// Default of `--key-max`: bytes of a key after decoding. klad answers a longer key with 414. Keys are usually short:
/// S3 takes keys of up to 1 KiB. etcd has no separate limit for keys. A file path fits into 4 KiB.
pub const KEY_BYTES_MAX: u64 = 4 << 10;

/// The largest `--key-max`, bytes. The percent-encoded key must fit into a URI, which the `http` crate limits to 65,534
/// bytes.
pub const KEY_BYTES_CEILING: u64 = klad_storage::limits::KEY_BYTES_CEILING as u64;

/// Default of `--value-max`: bytes of a value. klad answers a larger body with 413. klad holds each value that it reads
/// or writes completely in memory. Workers KV takes 25 MiB, etcd 1.5 MiB.
pub const VALUE_BYTES_MAX: u64 = 16 << 20;

/// The largest `--value-max`, bytes. 1 GiB is safely below RocksDB's limit: a value must fit into one block, and a
/// block must be smaller than 4 GiB. RocksDB recommends values of at most about 10 MiB, but klad leaves this choice to
/// the operator.
pub const VALUE_BYTES_CEILING: u64 = 1 << 30;

/// The maximum of headers of one request; klad answers a request with more headers with 431. 100 is hyper's default.
/// `--head-max` limits the bytes of the headers.
pub const HEADERS_MAX: usize = 100;

/// The maximum size of hyper's read buffer of one connection, bytes, and the level at which hyper flushes its write
/// buffer. With hyper's default of about 400 KiB, 10,000 connections could hold 4 GB.
pub const CONNECTION_BUFFER_BYTES_MAX: usize = 64 << 10;

/// A worker reads a request of at most this many bytes without hyper, if the request arrives in one piece. The worker
/// reads the request into its own buffer of this size. hyper reads larger requests.
pub const PLAIN_REQUEST_BYTES_MAX: usize = 16 << 10;

/// A request is plain only if its head has at most this many bytes. hyper reads a request with a longer head.
pub const PLAIN_HEAD_BYTES_MAX: usize = 4 << 10;

/// A request is plain only if it has at most this many headers. Browsers send about 15.
pub const PLAIN_HEADERS_MAX: usize = 32;

/// After hyper has read a request of a connection, it reads the next requests too, until it has read this many.
/// Otherwise klad would create hyper's state again for each request of a client that sends no plain requests.
pub const HYPER_REQUESTS_MIN: u32 = 16;

/// The maximum of pipelined requests that the fast path answers before the worker continues with its other connections.
/// That many GETs from memory take about 0.1 ms.
pub const PIPELINE_REQUESTS_MAX: usize = 128;

/// A read of storage on the worker counts as this many requests towards [`PIPELINE_REQUESTS_MAX`].
pub const STORAGE_READ_REQUESTS: usize = 8;

/// klad writes a value in pieces of at most this many bytes, with hyper and without. hyper's flat write buffer keeps
/// the capacity to which it has grown, so larger pieces would take memory for as long as the connection lives.
pub const RESPONSE_FRAME_BYTES_MAX: usize = 64 << 10;

/// What the memory budget charges for one idle connection, bytes. hyper's two initial buffers have 8 KiB each; hyper's
/// state and the task come on top. Small requests touch only a part of this memory. Measured: 2,000 connections, each
/// after one small request, together add 19 to 26 MiB of resident memory, 10 to 13 KiB each. A connection that has sent
/// only plain requests has no buffer, but is charged the same, because its next request may not be plain.
pub const CONNECTION_BYTES: u64 = 16 << 10;

/// What the memory budget charges for a TLS connection in addition to [`CONNECTION_BYTES`], bytes: keys and state of
/// the session, and a buffer for one read (4 KiB).
/// Measured: 400 TLS connections after one small request each add 20 KB of resident memory each; connections without
/// TLS add 10 to 13 KiB. `tests/measure/memory.rs` checks the sum of both limits.
pub const TLS_CONNECTION_BYTES: u64 = 12 << 10;

/// Default of `--connections-max`, if the memory budget allows it. At the limit klad stops accepting until a
/// connection closes.
pub const CONNECTIONS_MAX: u64 = 10_000;

/// The longest time that an option may set. klad adds such times to clock readings, and the sums must not overflow.
pub const OPTION_TIME_MAX: Duration = Duration::from_hours(24 * 365);

/// The largest `--connections-max`.
pub const CONNECTIONS_CEILING: usize = 1_000_000;

/// The times that a client may set with `Klad-Timeout`. klad answers other values with 400. With less than a
/// millisecond, no time would be left after klad has read the head. No client waits longer than an hour.
pub const TIMEOUT_RANGE: std::ops::RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_hours(1);

/// Default of `--pool-threads`, for `--execution pool` and `stealing`.
pub const POOL_THREADS: u64 = 4;

/// Default of `--queue-limit`: the number of operations that may wait in `--execution pool` and `stealing`. klad
/// answers a further operation with 503. 1,024 is the largest of the queue sizes that a published report about such a
/// pool compares.
pub const QUEUE_LIMIT: u64 = 1_024;

/// The largest `--queue-limit`.
pub const QUEUE_LIMIT_CEILING: usize = 1_000_000;

/// The largest `--scans-max`.
pub const SCANS_CEILING: usize = 10_000;

/// The number of operation slots with `--admission off`. It has no effect as a limit, because there can never be so
/// many connections.
pub const SLOTS_CEILING: usize = 1 << 30;

/// Default of `--operations-max`: the number of operations that wait for the engine or run in it. klad answers a
/// further operation with 503. At 50,000 writes a second, 4,096 operations are a queue of 80 ms.
pub const OPERATIONS_MAX: u64 = 4_096;

/// Default of `--scans-max`: the number of ranges in progress. klad answers a further range with 503. Each range may
/// hold one page of entries in klad, and a copy of the page in hyper's write buffer.
pub const SCANS_MAX: u64 = 64;

/// Default of `--watchers-max`: the number of change feeds in progress. klad answers a further feed with 503. A feed
/// without changes holds some hundred bytes in addition to its connection.
pub const WATCHERS_MAX: u64 = 1_000;

/// Default of `--changes-heartbeat`: a feed without changes sends a heartbeat after this time. Proxies and clients
/// close a connection as broken if no bytes arrive for some time, commonly 30 s or 60 s.
pub const CHANGES_HEARTBEAT: Duration = Duration::from_secs(15);

/// The maximum of bytes of changes that one step (one read) of a feed returns. A step returns a larger change alone.
pub const FEED_STEP_BYTES_MAX: usize = 16 << 10;

/// The assumed size of encoded changes, as a multiple of the size of the changes. Base64 takes a third more, and
/// escaped text seldom takes twice as much.
pub const FEED_ENCODED_FACTOR: usize = 2;

/// The maximum of steps of feeds that one worker does at a time. A commit wakes all feeds. Feeds beyond this number
/// wait, and meanwhile hold neither memory nor a place in the queue of the storage threads.
pub const FEED_STEPS_PER_WORKER: usize = 8;

/// A feed that has read all changes reads again after this time at the earliest. This pause bounds the cost of a feed
/// during many small commits. It does not delay a change that comes after a longer time without changes.
pub const FEED_PAUSE: Duration = Duration::from_millis(5);

/// Default of `--storage-threads`: the number of threads for reads and scan steps, which may wait for the disk.
pub const STORAGE_THREADS: u64 = 4;

/// The maximum of entries that one scan step returns.
pub const SCAN_STEP_ENTRIES_MAX: usize = 256;

/// The maximum of writes in one group commit. It is a quarter of the default `--operations-max`, so that under the
/// heaviest load klad answers the first writes of a burst well before the last ones.
pub const COMMIT_WRITES_MAX: usize = 1_024;

/// A worker writes the `async` writes of one loop iteration itself only if their keys and values have at most this many
/// bytes together. A larger batch would delay the worker's other connections. At 1 GB/s, 256 KiB take a quarter of a
/// millisecond.
pub const ITERATION_COMMIT_BYTES_MAX: usize = 256 << 10;

/// A storage queue that has not been empty for this long is a standing queue: more operations arrive than klad serves.
/// This is `CoDel`'s interval (RFC 8289, 100 ms).
pub const QUEUE_STANDING_AFTER: Duration = Duration::from_millis(100);

/// For this long after a queue was standing, klad treats the queue as standing again as soon as its oldest operation
/// has waited for [`QUEUE_STANDING_AGAIN_TARGETS`] times `--queue-target`. `CoDel` also remembers its drops for 16
/// intervals (RFC 8289).
pub const QUEUE_STANDING_MEMORY: Duration = QUEUE_STANDING_AFTER.saturating_mul(16);

/// Within [`QUEUE_STANDING_MEMORY`], klad treats a queue as standing again when the oldest operation has waited for
/// this many times `--queue-target`. `docs/decisions/2026-11-22-queues-remember.md` shows the cost of this rule near
/// the capacity, and the gain beyond the capacity. With a target of 25 ms or more, the rule has no effect: four targets
/// are then no shorter than [`QUEUE_STANDING_AFTER`].
pub const QUEUE_STANDING_AGAIN_TARGETS: u32 = 4;

const _: () =
    assert!(QUEUE_TARGET.saturating_mul(QUEUE_STANDING_AGAIN_TARGETS).as_nanos() < QUEUE_STANDING_AFTER.as_nanos());

/// Default of `--queue-target`: klad rejects an operation that has waited longer than this in a standing queue. 5 ms is
/// `CoDel`'s target (RFC 8289) and Facebook's setting.
pub const QUEUE_TARGET: Duration = Duration::from_millis(5);

/// Default of `--queue-age-max`. With `--execution adaptive`, klad answers 503 to an operation that has waited longer
/// than this in a storage queue, for example to a write that waits behind a stalled disk. Steps of ranges may wait
/// longer.
pub const QUEUE_AGE_MAX: Duration = Duration::from_secs(1);

/// Default of `--iteration-max`. A loop iteration is one pass of a worker over all tasks that are ready, and a request
/// may wait for a whole iteration. If clients are impatient, the worker's gate closes after an iteration that is longer
/// than this. Each iteration then admits only as many requests as the worker serves in [`ITERATION_TARGET`]. 50 ms are
/// about 4,000 requests of 12 µs on one core, and a fifth of the 250 ms that an impatient client waits.
pub const ITERATION_MAX: Duration = Duration::from_millis(50);

/// While the gate is closed, it admits as many requests in each loop iteration as the worker serves in this time. A
/// worker is strained while its gate is closed and, if clients are impatient, after an iteration that is longer than
/// this. A strained worker gets new connections only if all workers are strained. Measured on a fifth of a core, one
/// run each, with targets of 5, 10 and 20 ms: under a load of twice the capacity, klad served 93, 82 and 86 % of the
/// capacity; under a load of five times the capacity, it served 99, 90 and 78 %.
pub const ITERATION_TARGET: Duration = Duration::from_millis(5);

/// A loop iteration with fewer requests than this is no sign of load, however long it takes. Such an iteration does not
/// close the worker's gate, and does not make the worker strained (see [`ITERATION_TARGET`]).
pub const ITERATION_REQUESTS_MIN: u32 = 32;

/// While the gate is closed, klad admits requests that have waited for this long and the newest requests alternately.
/// Less patient clients have left after this time.
pub const REQUEST_AGED: Duration = Duration::from_secs(1);

/// While all gates are closed, the acceptor checks this often whether one has opened. While klad stops, the acceptor
/// checks this often for new connections. While the acceptor limits its rate, this is its shortest pause between two
/// batches of connections.
pub const ACCEPT_PAUSE: Duration = Duration::from_millis(2);

/// The lowest rate limit of the acceptor, connections a second. While the gates of all workers are closed, the acceptor
/// accepts none.
pub const ACCEPTS_MIN: u32 = 8;

/// When the acceptor has doubled its rate limit up to this many connections a second, it removes the limit.
pub const ACCEPTS_MAX: u32 = 32_768;

/// The first rate limit of the acceptor, connections a second. The acceptor sets this limit when all workers are
/// strained (see [`ITERATION_TARGET`]). From then on, it halves or doubles the limit every [`ACCEPT_STEP`].
pub const ACCEPTS_CAUTIOUS: u32 = 256;

/// How often the acceptor halves or doubles its rate limit. After an overload, the way from the lowest limit to no
/// limit takes twelve steps (600 ms).
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

/// One part in this many (an eighth) of the body budget is reserved for small bodies. Larger bodies and large answers
/// share the rest, so that they cannot use up the memory for small bodies. At `--memory 1GiB` an eighth of the budget
/// is 16 MiB: 4,096 small bodies, as many as the default number of operation slots.
pub const SMALL_BODY_BUDGET_PARTS: u64 = 8;

/// Default of `--body-rate-min`: the lowest average rate of a request's body and of an answer, bytes a second. klad
/// answers 408 if a body takes longer than `--body-timeout` and its rate is lower. klad closes the connection if all
/// waits for the client during an answer together exceed `--write-timeout` and the rate over these waits is lower. A
/// modem of 1995 is three times as fast. nginx has no such limit; Apache's `mod_reqtimeout` requires 500.
pub const BODY_RATE_BYTES_MIN: u64 = 1 << 10;

/// A body or answer that is not small ([`SMALL_BODY_BYTES`]) must leave a part of the budget free: as many bytes as it
/// takes, but at most one part in this many of the budget. At `--memory 1GiB`, one part is 2 MiB, enough for 128 values
/// of 16 KiB when uploads have taken the rest of the budget.
pub const LARGE_BODY_LEAVES_PARTS: u64 = 64;

/// The largest `--body-rate-min`, bytes a second. At a higher rate klad would measure the kernel's buffers instead of
/// the client.
pub const BODY_RATE_BYTES_CEILING: u64 = 1 << 20;

/// When the body budget runs out, klad ends a request only if it has waited for the request's client for at least this
/// long. Before that, the client's rate is not known.
pub const EVICTION_AGE_MIN: Duration = Duration::from_secs(1);

/// When the body budget runs out, klad does not end an upload that brings more bytes a second than this. This is half a
/// megabit a second. At this rate, an upload of the default `--value-max` takes four minutes.
pub const EVICTION_RATE_BYTES_MAX: u64 = 64 << 10;

/// When the body budget runs out, every worker at first ends only uploads that bring at most this many bytes a second,
/// and answers of which the client takes nothing now.
pub const EVICTION_RATE_FIRST_BYTES_MAX: u64 = BODY_RATE_BYTES_MIN;

/// When this time has passed after the first of several rejections for lack of body budget, klad also ends requests
/// that are less slow, up to [`EVICTION_RATE_BYTES_MAX`]. Every worker has looked for very slow requests by then.
pub const BODY_BUDGET_SHORTAGE_LASTS: Duration = Duration::from_millis(125);

/// klad remembers for this long how much budget a rejected request lacked. In this time every worker looks for very
/// slow requests, and then for all slow ones.
pub const BODY_BUDGET_SHORTAGE_LIFETIME: Duration = Duration::from_millis(250);

/// After a rejection klad reads and discards up to this many bytes of the body, so that the connection can continue.
/// If the body is longer, klad closes the connection after the answer.
pub const DRAIN_BYTES_MAX: u64 = 64 << 10;

/// When klad closes a connection whose client still sends, it first reads from the client for at most this long, so
/// that the client sees the answer instead of a reset.
pub const LINGER_TIMEOUT: Duration = Duration::from_secs(2);

/// The maximum of bytes that klad reads and discards before it closes a connection whose client still sends.
pub const LINGER_BYTES_MAX: usize = 4 << 20;

/// Default of `--head-timeout`: the maximum time from the first byte of a head to the last. After this time, klad
/// answers 408. This is also the maximum time of a TLS handshake. nginx waits 60 s, hyper 30 s.
pub const HEAD_TIMEOUT: Duration = Duration::from_secs(10);

/// Default of `--idle-timeout`: the maximum time between two requests. After this time, klad closes the connection
/// without an answer. The default is longer than the 60 s for which load balancers commonly keep connections.
pub const IDLE_TIMEOUT: Duration = Duration::from_secs(75);

/// klad closes an idle connection after this time if hyper's buffers of the connection have grown beyond what
/// [`CONNECTION_BYTES`] charges. Only closing frees that memory.
pub const GROWN_IDLE_TIMEOUT: Duration = Duration::from_secs(2);

/// hyper's buffers of a connection count as grown when one read has brought more than this many bytes, or hyper has
/// offered more than this many bytes in one write.
pub const GROWN_BYTES: usize = 16 << 10;

/// Default of `--body-timeout`. klad answers 408 if no byte of an expected body arrives for this time, or if the body
/// takes longer than this time and its average rate is below `--body-rate-min`.
pub const BODY_TIMEOUT: Duration = Duration::from_secs(10);

/// Default of `--write-timeout`. klad closes the connection if the client takes no byte of an answer for this time, or
/// if all waits for the client during an answer together exceed this time and the average rate over these waits is
/// below `--body-rate-min`.
pub const WRITE_TIMEOUT: Duration = Duration::from_secs(30);

/// How often the sweep checks deadlines, which is also the precision of deadlines.
pub const SWEEP_INTERVAL: Duration = Duration::from_millis(100);

/// One sweep counts at most this much time against clients. If the process was stopped or the worker had no CPU time,
/// the rest is not the clients' fault.
pub const SWEEP_COUNTS_MAX: Duration = Duration::from_millis(200);

/// Bytes of one connection that the kernel may hold unsent before klad must wait (`TCP_NOTSENT_LOWAT`). With this
/// limit, klad can write again soon after a client has read something. Without the limit, the kernel reports progress
/// only when a good part of a send buffer of megabytes is free, and a slow reader looks like a client that reads
/// nothing.
pub const NOT_SENT_BYTES_MAX: u32 = 128 << 10;

/// hyper's write buffer keeps the capacity of the largest range entry that was copied into it. If klad has offered a
/// connection more than this many bytes at once, it closes the connection after the answer, because only that frees
/// the memory.
pub const OVERSIZED_BYTES: usize = 1 << 20;

/// How often a range, scan or change feed that waits for body budget tries again.
pub const BODY_BUDGET_RETRY: Duration = Duration::from_millis(10);

/// How long a range or scan waits for body budget for a large entry, and a change feed for its next changes. After this
/// time, klad answers 503 if it has not begun the response, and otherwise ends the response early.
pub const BODY_BUDGET_TIMEOUT: Duration = Duration::from_secs(5);

/// How long an admin connection may live. A profile extends this time, and so does an answer of the console while its
/// client takes bytes. After this time klad gives the request in progress as much time again, and then closes the
/// connection. Other admin answers are small, and a client that reads nothing must not keep its place.
pub const ADMIN_CONNECTION_TIMEOUT: Duration = Duration::from_secs(30);

/// The maximum of bytes of log lines that wait until stderr takes them. klad drops and counts lines beyond that. 1 MiB
/// is about 4,000 lines: the reader of stderr may pause for a while. If the reader never reads, klad uses twice this
/// memory, because the thread that writes has a second buffer.
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
/// allocations of one kilobyte. For 64 MiB of such allocations, it has 32 samples, and estimates the 64 MiB within 18 %
/// (1/√32). With jemalloc's default of 512 KiB, GETs took 1.7 % more CPU time.
pub const HEAP_SAMPLE_BYTES: u64 = 2 << 20;

/// The smallest `--heap-sample` other than 0 (off), bytes. With a smaller value, jemalloc would record a stack for most
/// allocations, and each stack takes some microseconds.
pub const HEAP_SAMPLE_BYTES_MIN: u64 = 4 << 10;

/// The largest `--heap-sample`, bytes. With a larger value, a usual profile would have almost no samples.
pub const HEAP_SAMPLE_BYTES_CEILING: u64 = 1 << 30;

/// Default of `--slow-request`. People notice a second. On a healthy machine a point operation takes less: a sync takes
/// some ms. A request that takes longer has waited for something, is a long range, or has a slow client. By default
/// etcd warns at 100 ms, `MySQL` at 10 s, `PostgreSQL` never.
pub const SLOW_REQUEST: Duration = Duration::from_secs(1);

/// `/debug/slow` keeps the slowest requests of each op, separately for each of the last [`SLOWEST_WINDOWS`] windows of
/// this length. Together the windows last a minute, so a person who was alerted has enough time to ask for the
/// requests. Because a window lasts only 10 s, a burst does not hide the requests that come after the burst.
pub const SLOWEST_WINDOW: Duration = Duration::from_secs(10);

/// The number of windows for which `/debug/slow` keeps the slowest requests; see [`SLOWEST_WINDOW`].
pub const SLOWEST_WINDOWS: usize = 6;

/// The number of slow requests that each worker keeps for each op and window: enough to see a pattern. A slower request
/// replaces the fastest kept request. At about 500 bytes each, all kept requests of a worker take at most half a MiB.
pub const SLOWEST_KEPT: usize = 16;

/// The number of requests that `/debug/slow` shows by default.
pub const SLOWEST_SHOWN: usize = 32;

/// The largest number of requests that a client can ask `/debug/slow` for.
pub const SLOWEST_SHOWN_MAX: usize = 1_000;

/// The maximum of log lines about slow requests in one second. klad counts further slow requests and reports their
/// number in one line. Ten lines are enough to see a pattern, and do not fill a disk: ten lines of 400 bytes in
/// each second are 350 MB a day.
pub const SLOW_REQUEST_LINES_MAX: u64 = 10;

/// The longest `X-Request-Id` that klad accepts, bytes. klad ignores a longer id, because log lines contain the id. A
/// UUID has 36 bytes, AWS's trace header 35 to 100.
pub const REQUEST_ID_BYTES_MAX: usize = 128;

/// Default of `--async-sync-interval`: how often klad syncs `async` writes.
pub const ASYNC_SYNC_INTERVAL: Duration = Duration::from_secs(1);

/// When klad stops, operations may still wait for answers of an engine across a network. klad waits for these answers
/// for at most this long, because the network may have lost some of them. Then klad stops without them.
pub const LATE_ANSWERS_TIMEOUT: Duration = Duration::from_secs(10);

/// The smallest `--memory`, bytes, with which klad uses transparent huge pages. They cost about 25 MiB, a twentieth of
/// this budget.
pub const HUGE_PAGES_MEMORY_MIN: u64 = 512 << 20;

/// Default of `--disk-reserve`, bytes. If less space than this is free, klad answers PUTs with 507. If less than half
/// of this is free, klad answers DELETEs with 507 too. RocksDB needs the reserve for the compactions that free space.
pub const DISK_RESERVE_BYTES: u64 = 256 << 20;

/// How often klad reads the allocator's figures. Each reading takes all of the allocator's locks one after the other,
/// which takes about 100 µs in all.
pub const ALLOCATOR_READ_INTERVAL: Duration = Duration::from_secs(1);

/// If housekeeping has not finished a round for this long, klad concludes that storage does not answer, and reports
/// that it is not ready. Even a very busy disk needs less time than this for one write, if the disk works.
pub const HOUSEKEEPING_LATE: Duration = Duration::from_secs(15);

/// The largest configuration file, bytes; a larger one is an error. A file with all options and their comments has
/// about 10 KiB.
pub const CONFIG_FILE_BYTES_MAX: u64 = 1 << 20;

/// Default of `--drain-timeout`: how long requests in flight may take to finish when klad stops.
pub const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// While klad stops, it waits this long for the rest of a TLS handshake or head, for the next byte of a body, and for
/// the client to take the next byte of an answer. After this time, klad answers 408 or closes the connection. This is
/// longer than the time after which a client's kernel repeats a lost segment (200 ms and more).
pub const DRAIN_PATIENCE: Duration = Duration::from_secs(1);

/// While klad stops, it closes a connection that has had no request for this long since the stop began. klad still
/// answers a request that arrives in this time, with `Connection: close`. After this answer, klad waits for at most the
/// same time until the client closes the connection. This is longer than most network round trips.
pub const DRAIN_IDLE_PATIENCE: Duration = Duration::from_millis(300);

/// While klad stops, it still accepts for this long the connections that clients have begun to open, because the last
/// segment of their handshakes is on its way. [`DRAIN_IDLE_PATIENCE`] has the same value.
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

/// The highest sample rate of a CPU profile that a client can ask for, samples a second. klad answers a
/// higher one with 400. The kernel takes at most one sample per tick, and has 250 to 1,000 ticks a second.
pub const PROFILE_HZ_MAX: u32 = 1_000;

/// Default length of a CPU profile. It gives about 3,000 samples of each busy core.
pub const CPU_PROFILE_SECONDS: Duration = Duration::from_secs(30);

/// Default length of a lock profile.
pub const LOCK_PROFILE_SECONDS: Duration = Duration::from_secs(10);

/// Default threshold of a lock profile. klad counts shorter waits, but does not record their stacks. If a thread must
/// sleep and be woken up, its wait is longer than this.
pub const LOCK_PROFILE_THRESHOLD: Duration = Duration::from_micros(10);

/// The highest threshold of a lock profile; klad answers a higher one with 400.
pub const LOCK_PROFILE_THRESHOLD_MAX: Duration = Duration::from_secs(1);

/// The shortest length of a profile; klad answers a shorter one with 400.
pub const PROFILE_WINDOW_MIN: Duration = Duration::from_millis(1);
/// The longest length of a profile; klad answers a longer one with 400.
pub const PROFILE_WINDOW_MAX: Duration = Duration::from_mins(5);

/// The maximum of profiles of one kind at a time. klad answers a further profile with 409, code `profile-busy`.
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

/// How long klad waits for a checkpoint or its removal before it answers 202. It is shorter than
/// [`ADMIN_CONNECTION_TIMEOUT`], after which klad would close the connection without an answer.
pub const MAINTENANCE_ANSWER_TIMEOUT: Duration = Duration::from_secs(25);

/// The smallest `--memory`, bytes. With less the caches are too small to be useful.
pub const MEMORY_BYTES_MIN: u64 = 64 << 20;

/// The largest `--memory`, bytes. The body budget, an eighth of `--memory`, must be below 4 TiB, because klad counts it
/// in KiB in 32 bits.
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

/// The longest wait that klad gives in `Retry-After`. klad also gives this wait if only an operator can end the
/// condition.
pub const RETRY_AFTER_MAX: Duration = Duration::from_secs(30);

/// The shortest wait that klad gives in `Klad-Retry-After-Ms`. With 0 the client would try again at once.
pub const RETRY_AFTER_MIN: Duration = Duration::from_millis(1);

/// The wait that klad gives in `Retry-After` if klad has measured no wait.
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
