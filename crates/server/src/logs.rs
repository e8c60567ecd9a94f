//! Log lines. Any thread formats a line, and one thread writes all lines, so that no thread waits for the reader of
//! the log.
//!
//! ```text
//!   any thread ─tracing─▶ one formatted line ─▶ buffer (LOG_BYTES_MAX, else dropped and counted) ─▶ klad-log ─▶ stderr
//! ```
//!
//! A pipe that is never read blocks klad-log and no other thread. Settings that may change while klad runs are atomics
//! here: the level, the access log, and the threshold of the slow-request log. `main` sets up the log. All modules use
//! the log through `tracing`, and `observe` asks this module which requests need a line.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::io::{self, IsTerminal as _, Write as _};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use tracing::Metadata;
use tracing_subscriber::filter::dynamic_filter_fn;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::{Layer as _, SubscriberExt as _};
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::limits::{LOG_BYTES_MAX, LOG_BYTES_RESERVED, LOG_FLUSH_TIMEOUT, SLOW_REQUEST_LINES_MAX};
use klad_base::clock;
use klad_base::metrics::Counter;
use klad_base::metrics::text::Page;
use klad_base::sync::{self, Cause, Condvar, Mutex, Signal};

/// The `tracing` target of the access log's lines. These lines have their own option, and ignore the level.
pub const ACCESS: &str = "klad::access";

/// The format of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Text on a terminal, JSON elsewhere.
    Auto,
    /// A line for people, with fields as `name=value`.
    Text,
    /// One JSON object in each line, with fields beside `timestamp`, `level` and `message`.
    Json,
}

/// The log level. Each level includes those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Errors: an operator must act.
    Error,
    /// Also warnings: what an operator should know.
    Warn,
    /// Also messages about what klad does.
    Info,
    /// Also details for finding causes.
    Debug,
}

impl Level {
    /// The word for `--log-level`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Level::Error => "error",
            Level::Warn => "warn",
            Level::Info => "info",
            Level::Debug => "debug",
        }
    }

    const ALL: [Level; 4] = [Level::Error, Level::Warn, Level::Info, Level::Debug];

    /// Returns klad's level of an event. `None`: klad never logs it. The CQL driver's lines about each node and
    /// connection have the level debug, because only the search for a fault needs them.
    fn of(metadata: &Metadata<'_>) -> Option<Level> {
        match *metadata.level() {
            tracing::Level::INFO if metadata.target().starts_with("scylla") => Some(Level::Debug),
            tracing::Level::DEBUG if metadata.target().starts_with("scylla") => None,
            tracing::Level::ERROR => Some(Level::Error),
            tracing::Level::WARN => Some(Level::Warn),
            tracing::Level::INFO => Some(Level::Info),
            tracing::Level::DEBUG => Some(Level::Debug),
            tracing::Level::TRACE => None,
        }
    }
}

static LEVEL: AtomicU8 = AtomicU8::new(Level::Info as u8);
static ACCESS_LOG: AtomicBool = AtomicBool::new(false);
static SLOW_REQUEST_NS: AtomicU64 = AtomicU64::new(0);

/// Changes the level.
pub fn set_level(level: Level) {
    LEVEL.store(level as u8, Ordering::Relaxed);
}

/// The current level.
#[must_use]
pub fn level() -> Level {
    Level::ALL[usize::from(LEVEL.load(Ordering::Relaxed))]
}

/// Turns the access log, which has a line for each request, on or off.
pub fn set_access_log(on: bool) {
    ACCESS_LOG.store(on, Ordering::Relaxed);
}

/// Whether the access log is on.
#[must_use]
pub fn access_log() -> bool {
    ACCESS_LOG.load(Ordering::Relaxed)
}

/// Sets the threshold of the slow-request log. Zero turns it off.
pub fn set_slow_request(time: Duration) {
    SLOW_REQUEST_NS.store(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
}

/// The threshold of the slow-request log. `None`: it is off.
#[must_use]
pub fn slow_request() -> Option<Duration> {
    let time_ns = SLOW_REQUEST_NS.load(Ordering::Relaxed);
    (time_ns > 0).then(|| Duration::from_nanos(time_ns))
}

/// Whether a request that took `total_ns` is slow: the slow-request log is on, and the time reaches its threshold.
#[must_use]
pub fn is_slow(total_ns: u64) -> bool {
    let limit_ns = SLOW_REQUEST_NS.load(Ordering::Relaxed);
    limit_ns > 0 && total_ns >= limit_ns
}

/// The settings of a process's log. All but the format may change while the process runs.
#[derive(Clone, Debug)]
pub struct Options {
    /// The format of lines.
    pub format: Format,
    /// The level.
    pub level: Level,
    /// Whether the access log is on.
    pub access_log: bool,
    /// The threshold of the slow-request log. Zero turns it off.
    pub slow_request: Duration,
}

/// Applies all settings that may change.
pub fn change(options: &Options) {
    set_level(options.level);
    set_access_log(options.access_log);
    set_slow_request(options.slow_request);
}

/// Begins to write log lines to stderr. Later calls change all settings but the format, because a process has one log.
pub fn start(options: &Options) {
    change(options);
    if LINES.set(Lines::default()).is_err() {
        return;
    }
    let lines = lines().expect("it was just set");
    // The thread is not joined, because it may be blocked in stderr. `flush` waits for its lines.
    drop(sync::spawn_thread("klad-log", || lines.write_all()));
    let terminal = io::stderr().is_terminal();
    let wanted = dynamic_filter_fn(|metadata, _| {
        Level::of(metadata).is_some_and(|own| own <= level()) || metadata.target() == ACCESS
    });
    let layer = tracing_subscriber::fmt::layer().with_writer(Writer(lines)).with_target(false);
    let json = match options.format {
        Format::Auto => !terminal,
        Format::Text => false,
        Format::Json => true,
    };
    if json {
        let layer = layer.json().flatten_event(true).with_current_span(false).with_span_list(false);
        tracing_subscriber::registry().with(layer.with_filter(wanted)).init();
    } else {
        tracing_subscriber::registry().with(layer.with_ansi(terminal).with_filter(wanted)).init();
    }
}

/// Waits until all log lines have been written, for at most `timeout`. Returns whether all lines were written. If not,
/// another write to stderr would probably wait too.
#[must_use]
pub fn flush(timeout: Duration) -> bool {
    lines().is_none_or(|lines| lines.wait_until_written(timeout))
}

/// Makes a panic end the process. A server that has lost a thread would answer some requests and not others, while a
/// new start recovers everything that was acknowledged. Before the end, klad writes the waiting log lines, and a line
/// about the panic. A blocked stderr does not prevent the end.
pub fn end_the_process_on_panic() {
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        // Ends the process even if the following steps block.
        drop(sync::try_spawn_thread("klad-abort", || {
            Signal::default().wait_timeout(2 * LOG_FLUSH_TIMEOUT);
            std::process::abort();
        }));
        if lines().is_none() {
            print(info);
        } else {
            let backtrace = Backtrace::capture();
            let backtrace =
                (backtrace.status() == BacktraceStatus::Captured).then(|| tracing::field::display(backtrace));
            let thread = std::thread::current();
            tracing::error!(
                thread = thread.name(), panic = %info, backtrace,
                "klad has a defect and ends now; please report this line"
            );
            let _ = flush(LOG_FLUSH_TIMEOUT);
        }
        std::process::abort();
    }));
}

/// Writes the log's own metrics.
pub fn write(page: &mut Page) {
    let dropped = lines().map_or(0, |lines| lines.dropped.get());
    page.counter(
        "klad_log_lines_dropped_total",
        "Log lines that klad dropped because stderr took them too slowly.",
        dropped,
    );
}

static LINES: OnceLock<Lines> = OnceLock::new();

fn lines() -> Option<&'static Lines> {
    LINES.get()
}

/// Lines on their way to stderr.
#[derive(Debug, Default)]
struct Lines {
    state: Mutex<State>,
    /// Signals that there is something to write.
    not_empty: Condvar,
    /// Signals that everything has been written.
    written: Condvar,
    dropped: Counter,
}

#[derive(Debug, Default)]
struct State {
    waiting: Vec<u8>,
    lines: u64,
    writing: bool,
}

impl Lines {
    /// Adds a line to the buffer, or drops and counts the line if it does not fit. An `urgent` line may use the
    /// reserved part of the buffer.
    fn push(&self, line: &[u8], urgent: bool) {
        let limit = if urgent { LOG_BYTES_MAX } else { LOG_BYTES_MAX - LOG_BYTES_RESERVED };
        let mut state = self.state.lock();
        if state.waiting.len() + line.len() > limit {
            drop(state);
            self.dropped.add(1);
            return;
        }
        state.waiting.extend_from_slice(line);
        state.lines += 1;
        drop(state);
        self.not_empty.notify_one();
    }

    /// The function of the thread klad-log: writes lines for ever.
    fn write_all(&self) {
        let (mut bytes, mut reported) = (Vec::new(), 0);
        loop {
            let count = self.take(&mut bytes);
            let written = io::stderr().write_all(&bytes).is_ok();
            if !written {
                self.dropped.add(count);
            }
            bytes.clear();
            let dropped = self.dropped.get();
            if written && dropped > reported {
                // The next round writes this line.
                tracing::warn!(
                    lines = dropped - reported,
                    "klad dropped log lines because stderr took them too slowly"
                );
                reported = dropped;
            }
        }
    }

    /// Waits for lines and moves them into `bytes`, which must be empty. Returns the number of lines. The buffer and
    /// `bytes` swap their memory, so that klad allocates none.
    fn take(&self, bytes: &mut Vec<u8>) -> u64 {
        let mut state = self.state.lock();
        state.writing = false;
        while state.waiting.is_empty() {
            self.written.notify_all();
            state = self.not_empty.wait(state, Cause::Idle);
        }
        state.writing = true;
        std::mem::swap(&mut state.waiting, bytes);
        std::mem::take(&mut state.lines)
    }

    fn wait_until_written(&self, timeout: Duration) -> bool {
        let deadline = clock::now() + timeout;
        let mut state = self.state.lock();
        while state.writing || !state.waiting.is_empty() {
            let left = deadline.saturating_duration_since(clock::now());
            if left.is_zero() {
                return false;
            }
            state = self.written.wait_timeout(state, left, Cause::Others);
        }
        true
    }
}

/// Creates a [`Line`] for each event.
struct Writer(&'static Lines);

/// Puts one event into the buffer. `tracing` passes the whole event in one `write`.
struct Line {
    lines: &'static Lines,
    urgent: bool,
}

impl<'w> MakeWriter<'w> for Writer {
    type Writer = Line;

    fn make_writer(&'w self) -> Line {
        Line { lines: self.0, urgent: false }
    }

    fn make_writer_for(&'w self, metadata: &Metadata<'_>) -> Line {
        Line { lines: self.0, urgent: Level::of(metadata).is_some_and(|level| level <= Level::Warn) }
    }
}

impl io::Write for Line {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.lines.push(line, self.urgent);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Allows [`SLOW_REQUEST_LINES_MAX`] lines in each second, and counts the others.
#[derive(Debug)]
pub struct RateLimit {
    second: AtomicU64,
    lines: AtomicU64,
    held_back: AtomicU64,
}

/// The rate limit for lines about slow requests, of all workers together.
pub static SLOW_REQUESTS: RateLimit = RateLimit::new();

impl RateLimit {
    const fn new() -> RateLimit {
        RateLimit { second: AtomicU64::new(0), lines: AtomicU64::new(0), held_back: AtomicU64::new(0) }
    }

    /// Whether one more line may be written in this second. If not, counts the line. If two threads make the first call
    /// of a new second at the same time, this may allow a few lines more.
    pub fn allows(&self) -> bool {
        self.allows_in(now_s())
    }

    fn allows_in(&self, second: u64) -> bool {
        if self.second.swap(second, Ordering::Relaxed) != second {
            self.lines.store(0, Ordering::Relaxed);
        }
        let allowed = self.lines.fetch_add(1, Ordering::Relaxed) < SLOW_REQUEST_LINES_MAX;
        if !allowed {
            self.held_back.fetch_add(1, Ordering::Relaxed);
        }
        allowed
    }

    /// Returns how many lines were not allowed since the last call, and resets the count. `None`: all lines were
    /// allowed, or the second of the last line is not over.
    pub fn take_held_back(&self) -> Option<u64> {
        if self.held_back.load(Ordering::Relaxed) == 0 || self.second.load(Ordering::Relaxed) == now_s() {
            return None;
        }
        Some(self.held_back.swap(0, Ordering::Relaxed)).filter(|count| *count > 0)
    }
}

fn now_s() -> u64 {
    clock::monotonic_ns() / 1_000_000_000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_beyond_the_limit_are_dropped_and_urgent_lines_use_the_reserve() {
        let lines = Lines::default();
        let line = [b'x'; 1 << 10];
        let fits = (LOG_BYTES_MAX - LOG_BYTES_RESERVED) / line.len();
        for _ in 0..fits + 3 {
            lines.push(&line, false);
        }
        assert_eq!(lines.dropped.get(), 3);
        lines.push(&line, true);
        assert_eq!(lines.dropped.get(), 3);
        let mut bytes = Vec::new();
        assert_eq!(lines.take(&mut bytes), fits as u64 + 1);
        assert_eq!(bytes.len(), (fits + 1) * line.len());
        assert!(!lines.wait_until_written(Duration::from_millis(1)), "it is being written");
    }

    #[test]
    fn lines_beyond_the_limit_of_a_second_are_counted() {
        let limit = RateLimit::new();
        let allowed = (0..SLOW_REQUEST_LINES_MAX + 5).filter(|_| limit.allows_in(7)).count();
        assert_eq!(allowed as u64, SLOW_REQUEST_LINES_MAX);
        assert!(limit.allows_in(8), "another second");
        assert_eq!(limit.take_held_back(), Some(5));
        assert_eq!(limit.take_held_back(), None);
    }
}
