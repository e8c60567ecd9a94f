//! The slowest requests of the last minute, each with the times of its phases, for `/debug/slow`.
//!
//! ```text
//!   worker ── a request has ended ──▶ slower than the fastest that is kept? ── no ──▶ nothing
//!                                                     └─ yes ─▶ kept in the window, with others of its op
//!
//!   windows   now │ before │ … │ a minute ago        each keeps the slowest few requests of each op
//! ```
//!
//! Each worker has its own windows, so a request that is not slow costs one comparison. Each op has its own places,
//! so that ranges do not displace reads. Each window has its own places, so that a burst does not displace what comes
//! after it. Keys and values are never kept. `observe` calls this on the worker, and `admin` on its own thread.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::execution::AnsweredBy;
use crate::limits::{SLOWEST_KEPT, SLOWEST_WINDOW, SLOWEST_WINDOWS};
use crate::request_metrics::{EndedRequest, Op};
use klad_base::clock;
use klad_base::sync::Mutex;
use klad_storage::Perf;

/// One of the slowest requests.
#[derive(Clone, Debug)]
pub struct SlowRequest {
    /// The request's op, outcome and times.
    pub ended: EndedRequest,
    /// When the request ended.
    pub ended_at: Instant,
    /// When the request began, milliseconds since 1970.
    pub started_unix_ms: u64,
    /// The status of the answer. 0: the connection ended before there was an answer.
    pub status: u16,
    /// The length of the request's key, or of the start of its range, bytes.
    pub key_bytes: usize,
    /// What has answered the request's last operation, if there was one.
    pub answered_by: Option<AnsweredBy>,
    /// The engine's measurements, if there are any.
    pub perf: Option<Perf>,
    /// The client's address.
    pub peer: Option<SocketAddr>,
    /// The client's request id, or the one in the request's log line.
    pub request_id: Option<String>,
    /// The client's trace id.
    pub trace_id: Option<String>,
    /// The number of the worker that served the request.
    pub worker: usize,
}

/// How many requests are kept, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// The length of a window.
    pub window: Duration,
    /// The number of windows whose requests are shown, at least 1.
    pub windows: usize,
    /// The number of requests that are kept for each op in each window, at least 1.
    pub kept: usize,
}

impl Retention {
    /// The values that klad uses.
    pub const DEFAULT: Retention = Retention { window: SLOWEST_WINDOW, windows: SLOWEST_WINDOWS, kept: SLOWEST_KEPT };

    /// How long `/debug/slow` shows a request.
    #[must_use]
    pub fn lifetime(&self) -> Duration {
        self.window * u32::try_from(self.windows).unwrap_or(u32::MAX)
    }
}

const OPS: usize = Op::ALL.len();

/// The requests of one window.
#[derive(Debug, Default)]
struct Window {
    number: u64,
    /// The kept requests of each op, in no order.
    kept: [Vec<SlowRequest>; OPS],
}

/// The slowest requests of one worker. Only the worker writes.
#[derive(Debug)]
pub struct WorkerSlowest {
    retention: Retention,
    began: Instant,
    /// The threshold of each op, nanoseconds. klad does not keep a request of the current window that took no longer
    /// than this.
    thresholds_ns: [AtomicU64; OPS],
    /// The number of the window that the thresholds belong to.
    number: AtomicU64,
    /// One window more than [`Retention::windows`], because the lifetime can begin in the middle of the oldest window
    /// and end in the middle of the newest. Each window has its own lock, so that a reader delays the worker by one
    /// copy of a few requests at most.
    windows: Vec<Mutex<Window>>,
}

impl WorkerSlowest {
    fn new(retention: Retention, began: Instant) -> WorkerSlowest {
        assert!(retention.windows >= 1 && retention.kept >= 1 && !retention.window.is_zero(), "nothing could be kept");
        WorkerSlowest {
            retention,
            began,
            thresholds_ns: [const { AtomicU64::new(0) }; OPS],
            number: AtomicU64::new(0),
            windows: (0..=retention.windows).map(|_| Mutex::default()).collect(),
        }
    }

    /// Whether a request of `op` that took `total_ns` is among the slowest of the current window so far.
    #[inline]
    #[must_use]
    pub fn is_among(&self, op: Op, total_ns: u64) -> bool {
        total_ns > self.thresholds_ns[op as usize].load(Ordering::Relaxed)
    }

    /// Begins a new window if it is time for one. Called regularly, so that [`WorkerSlowest::is_among`] need not read
    /// the time. A request that ends in a new window before this call is compared with the requests of the previous
    /// window.
    pub fn tick(&self, now: Instant) {
        let number = self.number_at(now);
        if self.number.load(Ordering::Relaxed) != number {
            self.number.store(number, Ordering::Relaxed);
            for threshold in &self.thresholds_ns {
                threshold.store(0, Ordering::Relaxed);
            }
        }
    }

    /// Keeps `request` if it is among the slowest of its window.
    pub fn keep(&self, request: SlowRequest) {
        self.tick(request.ended_at);
        let op = request.ended.op as usize;
        let number = self.number_at(request.ended_at);
        let mut window = self.place(number).lock();
        if window.number != number {
            window.number = number;
            // `clear` keeps the memory, so that later requests need no allocation.
            window.kept.iter_mut().for_each(Vec::clear);
        }
        let kept = &mut window.kept[op];
        if kept.len() < self.retention.kept {
            kept.push(request);
        } else if let Some(least) = kept.iter_mut().min_by_key(|kept| kept.ended.total_ns)
            && least.ended.total_ns < request.ended.total_ns
        {
            *least = request;
        }
        if kept.len() == self.retention.kept {
            let least = kept.iter().map(|kept| kept.ended.total_ns).min().unwrap_or(0);
            self.thresholds_ns[op].store(least, Ordering::Relaxed);
        }
    }

    /// Adds the requests of `op`, or of all ops, that ended within the lifetime before `now` to `found`.
    fn collect(&self, now: Instant, op: Option<Op>, found: &mut Vec<SlowRequest>) {
        let lifetime = self.retention.lifetime();
        let recent = |request: &&SlowRequest| now.saturating_duration_since(request.ended_at) <= lifetime;
        for window in &self.windows {
            for kept in Op::ALL.iter().filter(|one| op.is_none_or(|op| op == **one)) {
                found.extend(window.lock().kept[*kept as usize].iter().filter(recent).cloned());
            }
        }
    }

    fn number_at(&self, now: Instant) -> u64 {
        let past_ns = clock::nanoseconds_between(self.began, now);
        past_ns / u64::try_from(self.retention.window.as_nanos()).unwrap_or(u64::MAX)
    }

    fn place(&self, number: u64) -> &Mutex<Window> {
        let places = self.windows.len() as u64;
        &self.windows[usize::try_from(number % places).expect("it is below a length")]
    }
}

/// The slowest requests of all workers.
#[derive(Debug)]
pub struct Slowest {
    workers: Vec<WorkerSlowest>,
    retention: Retention,
}

impl Slowest {
    /// Creates empty windows for `workers` workers.
    #[must_use]
    pub fn new(workers: usize, retention: Retention) -> Slowest {
        Slowest::since(workers, retention, clock::now())
    }

    fn since(workers: usize, retention: Retention, began: Instant) -> Slowest {
        Slowest { workers: (0..workers).map(|_| WorkerSlowest::new(retention, began)).collect(), retention }
    }

    /// The windows of worker `number`. Only that worker may add to them.
    #[must_use]
    pub fn worker(&self, number: usize) -> &WorkerSlowest {
        &self.workers[number]
    }

    /// How many requests are kept, and for how long.
    #[must_use]
    pub fn retention(&self) -> Retention {
        self.retention
    }

    /// Returns the kept requests of `op`, or of all ops, that ended within the lifetime before `now`: at most `limit`,
    /// the slowest first.
    #[must_use]
    pub fn recent(&self, now: Instant, op: Option<Op>, limit: usize) -> Vec<SlowRequest> {
        let mut found = Vec::new();
        for worker in &self.workers {
            worker.collect(now, op, &mut found);
        }
        found.sort_by_key(|request| std::cmp::Reverse(request.ended.total_ns));
        found.truncate(limit);
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request_metrics::{Outcome, Phase};

    const RETENTION: Retention = Retention { window: Duration::from_secs(10), windows: 6, kept: 4 };

    /// A clock that the test sets.
    struct Simulated {
        slowest: Slowest,
        began: Instant,
        now: Instant,
    }

    impl Simulated {
        fn new(retention: Retention) -> Simulated {
            let began = clock::now();
            Simulated { slowest: Slowest::since(1, retention, began), began, now: began }
        }

        fn at(&mut self, seconds: u64) -> &mut Simulated {
            self.now = self.began + Duration::from_secs(seconds);
            self.slowest.worker(0).tick(self.now);
            self
        }

        /// Ends a request. Returns whether the first comparison kept it.
        fn ends(&mut self, op: Op, total_ms: u64) -> bool {
            let total_ns = total_ms * 1_000_000;
            let worker = self.slowest.worker(0);
            let among = worker.is_among(op, total_ns);
            if among {
                worker.keep(request(op, total_ns, self.now));
            }
            among
        }

        fn shown(&self, op: Option<Op>) -> Vec<u64> {
            let recent = self.slowest.recent(self.now, op, usize::MAX);
            recent.iter().map(|request| request.ended.total_ns / 1_000_000).collect()
        }
    }

    fn request(op: Op, total_ns: u64, ended_at: Instant) -> SlowRequest {
        let ended = EndedRequest {
            op,
            outcome: Outcome::Ok,
            durability: None,
            total_ns,
            phases_ns: [0; Phase::ALL.len()],
            received_bytes: 0,
            sent_bytes: 0,
        };
        SlowRequest {
            ended,
            ended_at,
            started_unix_ms: 0,
            status: 200,
            key_bytes: 1,
            answered_by: None,
            perf: None,
            peer: None,
            request_id: None,
            trace_id: None,
            worker: 0,
        }
    }

    #[test]
    fn fast_requests_do_not_push_slow_ones_out() {
        let mut clock = Simulated::new(RETENTION);
        assert!(clock.ends(Op::Get, 900) && clock.ends(Op::Get, 5));
        let taken = (0..1_000).filter(|number| clock.ends(Op::Get, number % 7)).count();
        assert_eq!(clock.shown(None), [900, 6, 6, 6]);
        assert!(taken < 20, "{taken} of 1,000 fast requests passed the first comparison");
        assert!(!clock.ends(Op::Get, 6), "not slower than the fastest that is kept");
    }

    #[test]
    fn each_op_has_its_own_places() {
        let mut clock = Simulated::new(RETENTION);
        clock.ends(Op::Get, 1);
        for _ in 0..100 {
            clock.ends(Op::Range, 3_000);
        }
        assert_eq!(clock.shown(Some(Op::Get)), [1]);
        assert_eq!(clock.shown(None).len(), 5);
        assert_eq!(clock.slowest.recent(clock.now, None, 2).len(), 2, "as many as were asked for");
    }

    /// Returns what is wrong with how long requests are kept.
    fn wrong_with_age(retention: Retention) -> Option<String> {
        let mut clock = Simulated::new(retention);
        for _ in 0..10 {
            clock.at(3).ends(Op::Put, 5_000);
        }
        clock.at(12).ends(Op::Put, 2);
        if clock.shown(None) != [5_000, 5_000, 5_000, 5_000, 2] {
            return Some(format!("a burst hides what comes after it: {:?}", clock.shown(None)));
        }
        for second in [40, 62, 63] {
            if clock.at(second).shown(None).len() != 5 {
                return Some(format!("after {second} s some are missing"));
            }
        }
        if clock.at(64).shown(None) != [2] {
            return Some("the burst is shown too long".to_owned());
        }
        // Much later, the place of its window is used again.
        clock.at(73).ends(Op::Put, 1);
        (clock.shown(None) != [1]).then(|| format!("the old requests were replaced by {:?}", clock.shown(None)))
    }

    #[test]
    fn requests_are_shown_for_their_lifetime() {
        assert_eq!(wrong_with_age(RETENTION), None);
    }

    #[test]
    fn twin_a_wrong_lifetime_is_noticed() {
        let long = wrong_with_age(Retention { window: Duration::from_secs(100), ..RETENTION }).expect("planted");
        assert!(long.contains("hides"), "{long}");
        let few = wrong_with_age(Retention { windows: 2, ..RETENTION }).expect("planted");
        assert!(few.contains("some are missing"), "{few}");
        let many = wrong_with_age(Retention { windows: 9, ..RETENTION }).expect("planted");
        assert!(many.contains("too long"), "{many}");
    }
}
