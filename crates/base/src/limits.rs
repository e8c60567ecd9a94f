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

/// A request of up to so many bytes that comes in one piece is read without hyper: what the worker reads at once, in a buffer
/// of its own. More, and it is hyper's.
pub const PLAIN_REQUEST_BYTES_MAX: usize = 16 << 10;

/// The same for the head of such a request; a longer one is hyper's.
pub const PLAIN_HEAD_BYTES_MAX: usize = 4 << 10;

/// The same for the number of its headers. Browsers send some 15.
pub const PLAIN_HEADERS_MAX: usize = 32;

/// Once a request of a connection was hyper's, so are those behind it, until there were so many: hyper is not made anew for each
/// request of a client that sends no others.
pub const HYPER_REQUESTS_MIN: u32 = 16;

/// A response body goes to hyper in frames of at most so many bytes: a flat write buffer keeps the capacity it has grown to.
pub const RESPONSE_FRAME_BYTES_MAX: usize = 64 << 10;

/// A value of at most so many bytes is answered on the worker when it is in memory; a larger one is copied on a storage
/// thread. At 6 GB/s 64 KiB take 11 µs, which is what a whole request costs.
pub const CACHED_VALUE_BYTES_MAX: usize = 64 << 10;

/// What one idle connection is charged in the memory budget, bytes: hyper's two initial buffers of 8 KiB, its state and the
/// task, of which small requests touch only a part. Measured (`cargo xtask memory`): 2,000 connections after one small
/// request each add 19 to 26 MiB of resident memory, 10 to 13 KiB each. One that has had only plain requests holds no buffer, and is
/// charged the same: the next may not be plain.
pub const CONNECTION_BYTES: u64 = 16 << 10;

/// What TLS adds to [`CONNECTION_BYTES`], bytes: keys and state of the session, and a buffer of one read (4 KiB). Measured
/// (`tests/it/tls.rs`, which also checks it): 400 connections after one small request each add 20 KB of resident memory each,
/// where those in clear add 10 to 13.
pub const TLS_CONNECTION_BYTES: u64 = 12 << 10;

/// Default of `--connections-max`, where the memory budget allows it; at the limit klad stops accepting until one closes.
pub const CONNECTIONS_MAX: u64 = 10_000;

/// No time that an option sets may be longer: a clock that much was added to must not overflow.
pub const OPTION_TIME_MAX: Duration = Duration::from_hours(24 * 365);

/// No `--connections-max` may be larger.
pub const CONNECTIONS_CEILING: usize = 1_000_000;

/// Times that `Klad-Timeout` may ask for; others are answered 400. Below a millisecond nothing would be left when the head
/// is read, and an hour is beyond what any client waits.
pub const TIMEOUT_RANGE: std::ops::RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_hours(1);

/// Default of `--pool-threads`, for `--execution pool` and `stealing`.
pub const POOL_THREADS: u64 = 4;

/// Default of `--queue-limit`: operations that may wait in `--execution pool` and `stealing`; one more is answered 503. The
/// largest of the sizes that the published report compares.
pub const QUEUE_LIMIT: u64 = 1_024;

/// No `--queue-limit` may be larger.
pub const QUEUE_LIMIT_CEILING: usize = 1_000_000;

/// No `--scans-max` may be larger.
pub const SCANS_CEILING: usize = 10_000;

/// Operation slots where nothing bounds them (`--admission off`): far more than there can be connections.
pub const SLOTS_CEILING: usize = 1 << 30;

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

/// `async` writes that one turn of a worker has gathered are written by the worker itself up to so many bytes of keys and
/// values; more would hold up its other connections. At 1 GB/s 256 KiB take a quarter of a millisecond.
pub const TURN_COMMIT_BYTES_MAX: usize = 256 << 10;

/// A queue for storage that has not been empty for so long stands: what comes is more than what is served. As `CoDel`'s
/// interval (RFC 8289, 100 ms).
pub const QUEUE_STANDS: Duration = Duration::from_millis(100);

/// For so long after a queue has stood, it is treated so as soon as its oldest has waited [`QUEUE_STANDS_AGAIN`] targets: the 16
/// intervals for which `CoDel` remembers how often it had to drop (RFC 8289).
pub const QUEUE_REMEMBERS: Duration = QUEUE_STANDS.saturating_mul(16);

/// So many `--queue-target`s. What this costs near the capacity, and gives beyond it, is in
/// `docs/decisions/2026-11-22-queues-remember.md`. From a target of 25 ms on the memory changes nothing.
pub const QUEUE_STANDS_AGAIN: u32 = 4;

const _: () = assert!(QUEUE_TARGET.saturating_mul(QUEUE_STANDS_AGAIN).as_nanos() < QUEUE_STANDS.as_nanos());

/// Default of `--queue-target`: in a queue that stands, what has waited longer is refused. As `CoDel`'s target (RFC 8289)
/// and Facebook's setting.
pub const QUEUE_TARGET: Duration = Duration::from_millis(5);

/// Default of `--queue-age-max`: nothing waits longer for storage, whatever storage does: a write that waits behind a stalled disk is refused, 503.
pub const QUEUE_AGE_MAX: Duration = Duration::from_secs(1);

/// Default of `--turn-max`. A worker's turn, from a request to the end of the pass over all tasks that were ready with it, is what a request waits for
/// the worker. After a longer one requests are let in by the gate. At 12 µs each some 4,000 requests on one core; a fifth of
/// the 250 ms that an impatient client waits.
pub const TURN_MAX: Duration = Duration::from_millis(50);

/// While the gate is closed, as many requests are let in at a turn as this time serves; and when clients are in a hurry, a
/// worker whose turns are longer gets few new connections. Tried at a fifth of a core, in one run each: 5, 10 and 20 ms served
/// 93, 82 and 86 % of the capacity at twice of it, 99, 90 and 78 % at five times.
pub const TURN_TARGET: Duration = Duration::from_millis(5);

/// A turn with fewer requests says nothing about load, however long it was.
pub const TURN_REQUESTS_MIN: u32 = 32;

/// A request that has waited at the gate for so long is let in by turns with the newest. Clients with shorter patience have
/// gone by then.
pub const REQUEST_AGED: Duration = Duration::from_secs(1);

/// While all gates are closed the acceptor looks so often whether one has opened.
pub const ACCEPT_PAUSE: Duration = Duration::from_millis(2);

/// The fewest connections a second that the acceptor takes while a worker can do more.
pub const ACCEPTS_MIN: u32 = 8;

/// From so many connections a second on, what the acceptor takes has no bound.
pub const ACCEPTS_MAX: u32 = 32_768;

/// The first bound under strain, connections a second: it grows or shrinks from there.
pub const ACCEPTS_CAUTIOUS: u32 = 256;

/// The bound is halved or doubled so often: after overload it is gone within twelve of these, 600 ms.
pub const ACCEPT_STEP: Duration = Duration::from_millis(50);

/// A client that has named a deadline, or has left before its answer, means that clients are in a hurry for so long.
pub const HURRY: Duration = Duration::from_secs(1);

/// Service rates are measured, and queues looked at for their age, so often.
pub const PACE_INTERVAL: Duration = Duration::from_millis(100);

/// Body room is counted in units of so many bytes.
pub const ROOM_UNIT_BYTES: u64 = 1 << 10;

/// Bodies up to so many bytes count as small: most values are, and the room of 1,000 of them is that of one large upload.
pub const SMALL_BODY_BYTES: u64 = 4 << 10;

/// One part in so many of the body room is kept for small bodies; the larger ones and large answers share the rest, so that
/// they never refuse a small one. An eighth of the room at `--memory 1GiB` is 16 MiB: 4,096 small bodies, as many as there
/// are operation slots by default.
pub const SMALL_BODY_ROOM_PARTS: u64 = 8;

/// Default of `--body-rate-min`, bytes a second: a client that sends a body or takes an answer more slowly for
/// `--body-timeout` or `--write-timeout` is ended. A modem of 1995 does three times as much; nginx has no such bound, Apache's
/// `mod_reqtimeout` asks for 500.
pub const BODY_RATE_BYTES_MIN: u64 = 1 << 10;

/// A larger body or answer leaves as much of the room free as it takes, up to one part in so many: 2 MiB at `--memory 1GiB`,
/// in which 128 values of 16 KiB find their place when uploads have taken all else.
pub const LARGE_BODY_LEAVES_PARTS: u64 = 64;

/// No `--body-rate-min` may be larger, bytes a second: beyond it the kernel's buffers, not the client, are what is measured.
pub const BODY_RATE_BYTES_CEILING: u64 = 1 << 20;

/// Whoever has held room for less time is not ended when room runs out: until then nothing can be said of its rate.
pub const EVICTION_AGE_MIN: Duration = Duration::from_secs(1);

/// Whoever sends more bytes a second than this is not ended when room runs out. Half a megabit: the largest value by default
/// takes four minutes at it.
pub const EVICTION_RATE_BYTES_MAX: u64 = 64 << 10;

/// When room runs out, those who send no more bytes a second than this are ended first, whichever worker has them.
pub const EVICTION_RATE_FIRST_BYTES_MAX: u64 = BODY_RATE_BYTES_MIN;

/// After a lack of room has stood for so long, every worker has looked for the very slow among its connections, and all that
/// are slow may be ended.
pub const ROOM_LACK_STANDS: Duration = Duration::from_millis(125);

/// What a refused request lacked is remembered for so long: every worker looks for the very slow, and then for all slow ones.
pub const ROOM_LACK_LIFETIME: Duration = Duration::from_millis(250);

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

/// An idle connection whose buffers in hyper have grown beyond what [`CONNECTION_BYTES`] charges is closed after so long: only
/// closing it gives the memory back.
pub const GROWN_IDLE_TIMEOUT: Duration = Duration::from_secs(2);

/// Buffers count as grown when one read or write has carried more than so many bytes.
pub const GROWN_BYTES: usize = 16 << 10;

/// Default of `--body-timeout`: without a byte of an expected body, or below `--body-rate-min`; then 408.
pub const BODY_TIMEOUT: Duration = Duration::from_secs(10);

/// Default of `--write-timeout`: without the peer taking a byte of an answer, or below `--body-rate-min`; then the connection
/// closes.
pub const WRITE_TIMEOUT: Duration = Duration::from_secs(30);

/// Deadlines are looked at so often, hence kept to so much.
pub const SWEEP_INTERVAL: Duration = Duration::from_millis(100);

/// One look at them counts for at most so much time: what a process was stopped for, or a worker had no time for, is not the client's.
pub const SWEEP_COUNTS_MAX: Duration = Duration::from_millis(200);

/// Unsent bytes that the kernel holds of one connection before klad must wait (`TCP_NOTSENT_LOWAT`): a reader that takes some
/// lets klad write again soon. Without it the kernel says so only when a good part of a send buffer of megabytes is free,
/// and a slow reader looks like one that takes nothing.
pub const NOT_SENT_BYTES_MAX: u32 = 128 << 10;

/// hyper's write buffer keeps the capacity of the largest entry of a range that it has copied; a connection that was offered
/// more than so many bytes at once is closed after the answer, because only that gives the memory back.
pub const OVERSIZED_BYTES: usize = 1 << 20;

/// A range that waits for room looks for it so often.
pub const ROOM_RETRY: Duration = Duration::from_millis(10);

/// A range waits so long for room for a large entry: the first step is then answered 503, a later one cut.
pub const ROOM_TIMEOUT: Duration = Duration::from_secs(5);

/// An admin connection lives at most so long: its answers are small, and a client that reads none must not keep its place.
pub const ADMIN_CONNECTION_TIMEOUT: Duration = Duration::from_secs(30);

/// Bytes of log lines that wait for stderr to take them; what finds no room is dropped and counted. 1 MiB is some 4,000 lines:
/// a reader may pause for a while, and a stuck one costs no more memory than this, twice (one part is being written).
pub const LOG_BYTES_MAX: usize = 1 << 20;

/// Of them, kept for warnings and errors: an access log that is not read must not hide them.
pub const LOG_BYTES_RESERVED: usize = 64 << 10;

/// When klad ends, stderr has so long to take the last lines; whoever does not read must not keep it from ending.
pub const LOG_FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// Default of `--value-cache`. What it takes from the blocks costs a store that does not fit some of its hits; what it gives a
/// store whose busy keys fit is half of a read's CPU time (docs/decisions/2026-11-21-value-cache.md).
pub const VALUE_CACHE_PERCENT: u64 = 25;

/// Default of `--heap-sample`, bytes: always on, so it must cost next to nothing. `TCMalloc` has the same. An allocation of a
/// kilobyte is sampled once in 2,000 times; 64 MiB of them are found within 18 % (1/√32). With jemalloc's own default of 512 KiB
/// GETs took 1.7 % more CPU time (`cargo xtask profile-cost`).
pub const HEAP_SAMPLE_BYTES: u64 = 2 << 20;

/// The same while a profile of a time is taken where nothing is sampled otherwise: jemalloc's own default.
pub const HEAP_WINDOW_SAMPLE_BYTES: u64 = 512 << 10;

/// The least of `--heap-sample` beside 0, bytes: below it most allocations have a stack taken, each some microseconds.
pub const HEAP_SAMPLE_BYTES_MIN: u64 = 4 << 10;

/// The most of `--heap-sample`, bytes: above it a process of any size has no sample.
pub const HEAP_SAMPLE_BYTES_CEILING: u64 = 1 << 30;

/// Default of `--slow-request`. A second is what no request takes on a healthy machine (a sync is some ms, and nothing waits
/// longer than `--queue-age-max` for storage), and where people begin to wait. etcd warns at 100 ms, `PostgreSQL` and `MySQL`, by
/// default, at nothing and at 10 s.
pub const SLOW_REQUEST: Duration = Duration::from_secs(1);

/// What `/debug/slow` keeps: the slowest of each op in a window of so long, and of so many windows. A minute is as long as whoever
/// was called needs to ask; 10 s is short enough that a burst does not hide what came after it.
pub const SLOWEST_WINDOW: Duration = Duration::from_secs(10);

/// See [`SLOWEST_WINDOW`].
pub const SLOWEST_WINDOWS: usize = 6;

/// So many of each op in each window, on each worker: enough to see a pattern. At about 500 bytes each all of a worker's are a third
/// of a MiB at the most; further ones replace the least slow.
pub const SLOWEST_KEPT: usize = 16;

/// Requests that one answer of `/debug/slow` shows, unless it is asked for another number.
pub const SLOWEST_SHOWN: usize = 32;

/// At most so many.
pub const SLOWEST_SHOWN_MAX: usize = 1_000;

/// Lines about slow requests in one second; more are counted and said in one. Enough to see a pattern, too few to fill a disk:
/// at 400 bytes each 350 MB a day.
pub const SLOW_REQUEST_LINES_MAX: u64 = 10;

/// An `X-Request-Id` of more bytes is not taken: it would be in every line. A UUID has 36, AWS's trace header 35 to 100.
pub const REQUEST_ID_BYTES_MAX: usize = 128;

/// Default of `--async-sync-interval`.
pub const ASYNC_SYNC_INTERVAL: Duration = Duration::from_secs(1);

/// How long a stop waits for what an engine has been given and has not answered: one across a network may have lost it.
pub const LATE_ANSWERS_TIMEOUT: Duration = Duration::from_secs(10);

/// From this budget on the allocator uses huge pages, bytes: they cost some 25 MiB, a twentieth of it.
pub const HUGE_PAGES_MEMORY_MIN: u64 = 512 << 20;

/// Memtables of one store: one that fills, [`MEMTABLES_A_FLUSH`] that are being flushed, and four of room before writes must
/// wait.
pub const MEMTABLES: u64 = 8;

/// So many memtables become one file of level 0.
pub const MEMTABLES_A_FLUSH: u64 = 3;

/// So many files of level 0 are compacted into the next level. See `docs/decisions/2026-11-21-puts.md`.
pub const LEVEL_0_FILES: u64 = 10;

/// No memtable is larger, bytes: what is in memtables is what a start after a kill has to read again from the log, and
/// small entries in random order cost 2.4 µs each there. See `docs/decisions/2026-11-21-small-memtables.md`.
pub const MEMTABLE_BYTES_MAX: u64 = 4 << 20;

/// Default of `--disk-reserve`, bytes: below so much free space writes are answered 507. RocksDB needs room for the
/// compactions that will win space back.
pub const DISK_RESERVE_BYTES: u64 = 256 << 20;

/// Free space and version blocks are looked after so often. A disk that takes 1 GB a second takes 250 MB in this time, which is
/// below the default reserve.
pub const UPKEEP_INTERVAL: Duration = Duration::from_millis(250);

/// What of the engine costs time for each of its files is looked at so often at the most: a thousand tables (30 GiB) are about
/// a millisecond.
pub const SLOW_LOOK_INTERVAL: Duration = Duration::from_secs(2);

/// The allocator is asked for its figures so often: each time takes all of its locks in turn, some 100 µs together.
pub const ALLOCATOR_LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// When upkeep has not come to its end for so long, storage does not answer: klad is not ready. Longer than a disk that works
/// takes for one write, however busy it is.
pub const UPKEEP_LATE: Duration = Duration::from_secs(15);
/// No file of options is larger, bytes; a larger one is an error. All options with their comments are some 10 KiB.
pub const CONFIG_FILE_BYTES_MAX: u64 = 1 << 20;

/// Default of `--drain-timeout`: requests in flight when klad is asked to stop have so long to finish.
pub const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// While klad stops, a client has so long for the next byte of what it has begun: a head, a body, taking an answer. Then it
/// gets 408, or is closed. Longer than the kernel of a client waits before it repeats a lost segment (200 ms and more).
pub const DRAIN_PATIENCE: Duration = Duration::from_secs(1);

/// While klad stops, a connection without a request is kept for so long before it is closed: a client that sends its next
/// one within this time is answered, and told that the connection closes; and one that was told so has as long to close it.
/// More than the time from here to anywhere and back.
pub const DRAIN_IDLE_PATIENCE: Duration = Duration::from_millis(300);

/// While klad stops, connections whose opening has begun are accepted for so long: the client's last segment of it is under
/// way. As [`DRAIN_IDLE_PATIENCE`].
pub const DRAIN_ACCEPT_PATIENCE: Duration = Duration::from_millis(300);

/// While klad stops, deadlines are looked at so often.
pub const DRAIN_SWEEP_INTERVAL: Duration = Duration::from_millis(10);

/// Connections that the kernel holds until they are accepted; the kernel's own limit (`somaxconn`) is 4,096 today.
pub const LISTEN_BACKLOG: u32 = 4_096;

/// The same while connections are accepted cautiously: what waits longer than its client is of no use to anyone, and the
/// kernel keeps it for us at no cost beyond. Enough for what is accepted in [`ACCEPT_PAUSE`] at the largest bounded rate.
pub const LISTEN_BACKLOG_CAUTIOUS: u32 = 32;

/// Connections beyond `--connections-per-peer` that are kept for [`REFUSED_LINGER_TIMEOUT`], so that their client sees the
/// answer; more are closed at once.
pub const REFUSED_LINGERING_MAX: usize = 64;

/// A connection beyond `--connections-per-peer` is closed after so long, or when its client has closed.
pub const REFUSED_LINGER_TIMEOUT: Duration = Duration::from_secs(1);

/// Descriptors that are kept for all but connections, where the limit allows it: the engine's files (32 MiB each, so 25 GiB of
/// data), and klad's own.
pub const DESCRIPTORS_KEPT: u64 = 1_024;

/// How the process ends where a thread cannot be started: code (`EX_OSERR` of `sysexits.h`) and word.
pub const TOO_FEW_THREADS_EXIT: (u8, &str) = (71, "too-few-threads");

/// Address space of the stack of a thread that the C library starts, bytes; only what is used of it is memory.
pub const STACK_BYTES: usize = 8 << 20;

/// Threads that klad may have beside its workers, what compacts for each, and those of its execution: measured 19 at the most, and 20
/// while RocksDB is opened. A few are for profiles.
pub const THREADS_OWN: usize = 24;

/// What klad has open before it serves anybody, without its workers: measured 29 with RocksDB, which has the most. The rest is for
/// what comes and goes: logs, what flushes and compactions write, checkpoints, and what profiles read of the kernel.
pub const DESCRIPTORS_OWN: u64 = 48;

/// The same of each worker: measured 4.
pub const DESCRIPTORS_OF_WORKER: u64 = 4;

/// Files that an engine needs to be let open: the tables of level 0, of which there may be 24 or so, and one of each level.
pub const ENGINE_FILES_MIN: u64 = 32;

/// RocksDB's own number for "all of them" (`db/table_cache.h`).
pub const ENGINE_FILES_MAX: u64 = 0x40_0000;

/// Samples of a CPU profile for each second of CPU time, where nothing is asked for: not a divisor of anything that happens a
/// hundred times a second, so that the two do not stay in step.
pub const PROFILE_HZ: u32 = 99;

/// The most that may be asked for; more is answered 400. The kernel's clock of threads gives 250 to 1,000.
pub const PROFILE_HZ_MAX: u32 = 1_000;

/// A CPU profile takes so long where nothing is asked for: 3,000 samples of each core that is busy.
pub const CPU_PROFILE_SECONDS: Duration = Duration::from_secs(30);

/// A profile of waits takes so long where nothing is asked for.
pub const LOCK_PROFILE_SECONDS: Duration = Duration::from_secs(10);

/// Shorter waits are counted, not kept, where nothing is asked for: a thread that is put to sleep and woken takes longer.
pub const LOCK_PROFILE_THRESHOLD: Duration = Duration::from_micros(10);

/// The most that may be asked for; more is answered 400.
pub const LOCK_PROFILE_THRESHOLD_MAX: Duration = Duration::from_secs(1);

/// The shortest time of a profile, and the longest; others are answered 400.
pub const PROFILE_WINDOW_MIN: Duration = Duration::from_millis(1);
/// See [`PROFILE_WINDOW_MIN`].
pub const PROFILE_WINDOW_MAX: Duration = Duration::from_mins(5);

/// Profiles of a kind that are taken at a time; one more is answered 409, with the code profile-busy.
pub const PROFILES_OF_A_KIND_MAX: usize = 4;

/// What a connection lives longer for a profile, beside the time that it takes: for symbols, names and drawing, which wait for
/// those of others.
pub const PROFILE_MAKING_TIMEOUT: Duration = Duration::from_secs(30);

/// Connections of the admin listener, where the limit of open files allows it; more are closed at once. It serves people and one scraper.
pub const ADMIN_CONNECTIONS_MAX: usize = 64;

/// The largest body that the admin listener takes, bytes; more is answered 413. A change of every option fits four times.
pub const ADMIN_BODY_BYTES_MAX: usize = 16 << 10;
/// Versions that a checkpoint leaves free above those that may have been given out when it was made: served later, it gives
/// none that a client has met since, unless more writes came than this. 2^40 are 12 days at 1,000,000 a second, 348 years at
/// 100; there are 2^24 times as many.
pub const CHECKPOINT_VERSIONS_AHEAD: u64 = 1 << 40;

/// Bytes of a checkpoint's name. Letters, digits, dots, dashes and underscores; anything else is answered 400.
pub const CHECKPOINT_NAME_BYTES_MAX: usize = 64;

/// A checkpoint or its removal is waited for so long, then the answer is 202: below [`ADMIN_CONNECTION_TIMEOUT`], which would
/// end the connection without an answer.
pub const CARE_ANSWER_TIMEOUT: Duration = Duration::from_secs(25);

/// A compaction of everything goes in pieces of at least so many bytes of tables, and can be cancelled between two: some
/// seconds on a disk that does 100 MB a second.
pub const COMPACTION_PIECE_BYTES: u64 = 256 << 20;

/// A compaction of everything is refused where fewer bytes are free beside the reserve than all tables have, or than this:
/// RocksDB rewrites at most 25 tables of 32 MiB in one step before it deletes the old ones.
pub const COMPACTION_ROOM_BYTES: u64 = 2 << 30;

/// At a start, logs of fewer bytes together are first read with nothing changed, and compared with what was synced: a log that
/// was emptied or removed is noticed before RocksDB moves on without it. 1 MiB of small entries is read in some 20 ms.
pub const LOG_BYTES_READ_TWICE: u64 = 1 << 20;

/// `klad check` prints so many findings, and counts the rest.
pub const CHECK_FINDINGS_MAX: usize = 20;

/// Block cache and memtables of `klad check` and `klad compact`, bytes.
pub const OFFLINE_CACHE_BYTES: u64 = 128 << 20;

/// The smallest `--memory`, bytes: below it the caches are too small to be of use.
pub const MEMORY_BYTES_MIN: u64 = 64 << 20;

/// No `--memory` may be larger, bytes: body room is counted in 32 bits of KiB.
pub const MEMORY_BYTES_CEILING: u64 = 16 << 40;

/// The shortest token that a token file may hold, characters; a shorter one is refused at start. 16 characters of base64 are
/// 96 bits, which nobody guesses over a network.
pub const TOKEN_BYTES_MIN: usize = 16;

/// The longest token, characters: a longer one in the file is refused at start, a longer one in a request is not looked for. Room
/// for what other programs make (JSON web tokens apart, which klad does not read); hashing it takes a microsecond.
pub const TOKEN_BYTES_MAX: usize = 512;

/// Tokens of one file; more are refused at start. Each costs every request some ten nanoseconds.
pub const TOKENS_MAX: usize = 256;

/// Bytes of a token file; a larger one is refused at start.
pub const TOKEN_FILE_BYTES_MAX: u64 = 1 << 20;

/// Bytes of a file of certificates or of a key; a larger one is refused at start. All authorities that browsers trust are a
/// quarter of it.
pub const TLS_FILE_BYTES_MAX: u64 = 1 << 20;

/// Handshakes that a worker or the admin thread takes one step further at a time: then all else that is ready has its turn. A
/// step costs up to a millisecond (a signature by RSA), which is what a flood of them may delay a request by.
pub const HANDSHAKE_STEPS_MAX: usize = 1;

/// klad warns at start, and whenever certificates are reloaded, when less than this is left of one. Two thirds of the 90 days
/// that automatic certificates live for have passed long before.
pub const CERTIFICATE_EXPIRES_SOON: Duration = Duration::from_hours(14 * 24);

/// The longest wait that `Retry-After` tells, and what it tells where only an operator can help.
pub const RETRY_AFTER_MAX: Duration = Duration::from_secs(30);

/// The shortest wait that `Klad-Retry-After-Ms` tells: 0 would be an invitation to try again at once.
pub const RETRY_AFTER_MIN: Duration = Duration::from_millis(1);

/// The wait that is told where none was measured.
pub const RETRY_AFTER_UNKNOWN: Duration = Duration::from_secs(1);

/// `klad get` and its like: one address of a server is tried for so long, then the next. Three attempts of the kernel.
pub const CLIENT_CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// `klad get` and its like end, with a failure, when no byte has come or gone for so long. Twice klad's own
/// [`HEAD_TIMEOUT`] and more than any wait for a queue, so that the server's answer comes first.
pub const CLIENT_IDLE_TIMEOUT: Duration = Duration::from_secs(30);

/// `klad put` waits so long for `100 Continue`, then sends the value all the same: not everything that stands before a
/// server passes it on.
pub const CLIENT_EXPECT_TIMEOUT: Duration = Duration::from_secs(1);

/// `klad put` reads so much of a value whose length it does not know before it speaks to the server: whoever writes it may be
/// slow, a person or a program, and a server does not wait for long. As much as a value may have by default; what goes beyond is
/// sent as it is read.
pub const CLIENT_READ_AHEAD_BYTES: u64 = VALUE_BYTES_MAX;

/// Longest head of an answer that `klad get` and its like take, bytes; klad's own are below 300. A longer one is a failure.
pub const CLIENT_HEAD_BYTES_MAX: usize = 64 << 10;

/// Most bytes of a refusal that are read for its reason; klad's own are below 1,000. What is cut off is then no reason.
pub const CLIENT_PROBLEM_BYTES_MAX: usize = 64 << 10;

/// Largest profile that `klad profile` takes from a server or a file, bytes as they come; busy servers' are below 1 MiB. It is held in memory as a whole;
/// a longer one is a failure.
pub const CLIENT_PROFILE_BYTES_MAX: usize = 64 << 20;

/// Longest entry that `klad scan` takes, bytes: it is held in memory until it is whole. The largest value, line feed and key
/// that a server could be set up for; a longer one is a failure.
pub const CLIENT_ENTRY_BYTES_MAX: u64 = VALUE_BYTES_CEILING + 1 + KEY_BYTES_CEILING;

// The encoded key must fit the head with room for headers.
const _: () = assert!(3 * KEY_BYTES_MAX + (8 << 10) <= HEAD_BYTES_MAX);
const _: () = assert!(KEY_BYTES_MAX <= KEY_BYTES_CEILING && 3 * KEY_BYTES_CEILING < 65_534);
const _: () = assert!(VALUE_BYTES_MAX <= VALUE_BYTES_CEILING);
// hyper's buffer must hold a whole head.
const _: () = assert!(HEAD_BYTES_MAX <= CONNECTION_BUFFER_BYTES_MAX as u64);
// Between two looks at the disk less than the reserve can be written, at 1 GB/s.
const _: () = assert!(UPKEEP_INTERVAL.as_millis() * 1_000_000 <= DISK_RESERVE_BYTES as u128);
const _: () = assert!(GROWN_BYTES as u64 <= CONNECTION_BYTES);
// A connection is not taken for one whose buffers have grown by what it reads without any.
const _: () = assert!(PLAIN_REQUEST_BYTES_MAX <= GROWN_BYTES && PLAIN_HEAD_BYTES_MAX <= PLAIN_REQUEST_BYTES_MAX);
// Every worker looks at least once before a lack of room stands, and once more before it is forgotten.
const _: () = assert!(SWEEP_INTERVAL.as_millis() < ROOM_LACK_STANDS.as_millis());
const _: () = assert!(SWEEP_INTERVAL.as_millis() + ROOM_LACK_STANDS.as_millis() <= ROOM_LACK_LIFETIME.as_millis());
const _: () = assert!(LOG_BYTES_RESERVED < LOG_BYTES_MAX);
const _: () = assert!(CARE_ANSWER_TIMEOUT.as_millis() < ADMIN_CONNECTION_TIMEOUT.as_millis());
const _: () = assert!(EVICTION_RATE_FIRST_BYTES_MAX <= EVICTION_RATE_BYTES_MAX);
// A small body is drained when it is refused, and its connection lives on.
const _: () = assert!(SMALL_BODY_BYTES <= DRAIN_BYTES_MAX && SMALL_BODY_ROOM_PARTS > 1);
const _: () = assert!(LARGE_BODY_LEAVES_PARTS.is_multiple_of(SMALL_BODY_ROOM_PARTS));
const _: () = assert!(TOKEN_BYTES_MIN < TOKEN_BYTES_MAX && TOKEN_BYTES_MAX as u64 <= HEAD_BYTES_MAX / 8);
const _: () = assert!((ADMIN_CONNECTIONS_MAX + REFUSED_LINGERING_MAX) as u64 <= DESCRIPTORS_KEPT / 4);
// A stop without clients in mid-request takes less than a second.
const _: () = assert!(DRAIN_ACCEPT_PATIENCE.as_millis() + DRAIN_IDLE_PATIENCE.as_millis() < 1_000);
const _: () = assert!(DRAIN_PATIENCE.as_millis() < DRAIN_TIMEOUT.as_millis());
