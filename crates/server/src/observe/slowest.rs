//! The slowest requests of the last minute, each with where its time went: what `/debug/slow` shows.
//!
//! ```text
//!   worker ──a request has ended──▶ longer than the shortest that is kept? ──no──▶ nothing more
//!                                                 └─yes─▶ into its op's places of the window
//!
//!   windows   now │ before │ … │ a minute ago        in each: for each op the slowest few
//! ```
//!
//! Every worker has its own, so that a request that is not slow costs one comparison. Every op has its own places, or ranges
//! would hide reads; every window too, or a burst would hide what came after it. Keys and values are never kept, as in log
//! lines. Called by `observe`, on the worker, and by `admin`, on its own thread.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::execution::AnsweredBy;
use crate::request_metrics::{Ended, Op};
use klad_base::clock;
use klad_base::limits::{SLOWEST_KEPT, SLOWEST_WINDOW, SLOWEST_WINDOWS};
use klad_base::sync::Mutex;
use klad_storage::Perf;

/// One of the slowest requests.
#[derive(Clone, Debug)]
pub struct SlowRequest {
    /// What it was, how it ended and where its time went.
    pub ended: Ended,
    /// When it ended.
    pub ended_at: Instant,
    /// When it began, milliseconds since 1970.
    pub started_unix_ms: u64,
    /// 0: the connection ended before there was one.
    pub status: u16,
    /// Of its key, or of a range's first.
    pub key_bytes: usize,
    /// Who answered, where there was something to be asked.
    pub answered_by: Option<AnsweredBy>,
    /// What the engine had to do for it, where it has said so.
    pub perf: Option<Perf>,
    /// The other end of its connection.
    pub peer: Option<SocketAddr>,
    /// The client's, or what the request's log line says.
    pub request_id: Option<String>,
    /// The client's.
    pub trace_id: Option<String>,
    /// The number of its worker.
    pub worker: usize,
}

/// How much is kept, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// How long a window is.
    pub window: Duration,
    /// So many windows are shown, at least 1.
    pub windows: usize,
    /// Of each op in each window, at least 1.
    pub kept: usize,
}

impl Extent {
    /// What klad keeps.
    pub const USUAL: Extent = Extent { window: SLOWEST_WINDOW, windows: SLOWEST_WINDOWS, kept: SLOWEST_KEPT };

    /// After so long a request is shown no more.
    #[must_use]
    pub fn lifetime(&self) -> Duration {
        self.window * u32::try_from(self.windows).unwrap_or(u32::MAX)
    }
}

const OPS: usize = Op::ALL.len();

/// What was kept in one window.
#[derive(Debug, Default)]
struct Window {
    number: u64,
    /// In no order.
    kept: [Vec<SlowRequest>; OPS],
}

/// What one worker keeps; it alone writes.
#[derive(Debug)]
pub struct WorkerSlowest {
    extent: Extent,
    began: Instant,
    /// Of each op: what ended in this window and took no longer is not kept.
    thresholds_ns: [AtomicU64; OPS],
    /// The window that the thresholds are for.
    number: AtomicU64,
    /// One more than is shown: the one that is being filled. Each has a lock of its own, so that whoever reads holds up the
    /// worker for one copy of a few requests at the most.
    windows: Vec<Mutex<Window>>,
}

impl WorkerSlowest {
    fn new(extent: Extent, began: Instant) -> WorkerSlowest {
        assert!(extent.windows >= 1 && extent.kept >= 1 && !extent.window.is_zero(), "nothing could be kept");
        WorkerSlowest {
            extent,
            began,
            thresholds_ns: [const { AtomicU64::new(0) }; OPS],
            number: AtomicU64::new(0),
            windows: (0..=extent.windows).map(|_| Mutex::default()).collect(),
        }
    }

    /// Whether a request of `op` that took so long is among the slowest of its window, as far as that has come.
    #[inline]
    #[must_use]
    pub fn is_among(&self, op: Op, total_ns: u64) -> bool {
        total_ns > self.thresholds_ns[op as usize].load(Ordering::Relaxed)
    }

    /// Begins a new window if it is time for one; called now and then, so that [`WorkerSlowest::is_among`] need not ask. What
    /// ends in a new window before that is compared with those of the old one.
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
            // Their memory stays: nothing is allocated when the next minute's requests come.
            window.kept.iter_mut().for_each(Vec::clear);
        }
        let kept = &mut window.kept[op];
        if kept.len() < self.extent.kept {
            kept.push(request);
        } else if let Some(least) = kept.iter_mut().min_by_key(|kept| kept.ended.total_ns)
            && least.ended.total_ns < request.ended.total_ns
        {
            *least = request;
        }
        if kept.len() == self.extent.kept {
            let least = kept.iter().map(|kept| kept.ended.total_ns).min().unwrap_or(0);
            self.thresholds_ns[op].store(least, Ordering::Relaxed);
        }
    }

    /// Adds those that ended not too long before `now` to `found`.
    fn collect(&self, now: Instant, op: Option<Op>, found: &mut Vec<SlowRequest>) {
        let lifetime = self.extent.lifetime();
        let recent = |request: &&SlowRequest| now.saturating_duration_since(request.ended_at) <= lifetime;
        for window in &self.windows {
            for kept in Op::ALL.iter().filter(|one| op.is_none_or(|op| op == **one)) {
                found.extend(window.lock().kept[*kept as usize].iter().filter(recent).cloned());
            }
        }
    }

    fn number_at(&self, now: Instant) -> u64 {
        let past_ns = clock::nanoseconds_between(self.began, now);
        past_ns / u64::try_from(self.extent.window.as_nanos()).unwrap_or(u64::MAX)
    }

    fn place(&self, number: u64) -> &Mutex<Window> {
        let places = self.windows.len() as u64;
        &self.windows[usize::try_from(number % places).expect("it is below a length")]
    }
}

/// What all workers keep.
#[derive(Debug)]
pub struct Slowest {
    workers: Vec<WorkerSlowest>,
    extent: Extent,
}

impl Slowest {
    /// For so many workers.
    #[must_use]
    pub fn new(workers: usize, extent: Extent) -> Slowest {
        Slowest::since(workers, extent, clock::now())
    }

    fn since(workers: usize, extent: Extent, began: Instant) -> Slowest {
        Slowest { workers: (0..workers).map(|_| WorkerSlowest::new(extent, began)).collect(), extent }
    }

    /// What worker `number` keeps, which it alone may add to.
    #[must_use]
    pub fn worker(&self, number: usize) -> &WorkerSlowest {
        &self.workers[number]
    }

    /// How much is kept.
    #[must_use]
    pub fn extent(&self) -> Extent {
        self.extent
    }

    /// The slowest requests that are not too old at `now`, of `op` or of all, the slowest first; `limit` at most.
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

    const EXTENT: Extent = Extent { window: Duration::from_secs(10), windows: 6, kept: 4 };

    /// A clock that goes where the test wants it to.
    struct Simulated {
        slowest: Slowest,
        began: Instant,
        now: Instant,
    }

    impl Simulated {
        fn new(extent: Extent) -> Simulated {
            let began = clock::now();
            Simulated { slowest: Slowest::since(1, extent, began), began, now: began }
        }

        fn at(&mut self, seconds: u64) -> &mut Simulated {
            self.now = self.began + Duration::from_secs(seconds);
            self.slowest.worker(0).tick(self.now);
            self
        }

        /// A request ends; whether more than a comparison was needed.
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
        let ended = Ended {
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
        let mut clock = Simulated::new(EXTENT);
        assert!(clock.ends(Op::Get, 900) && clock.ends(Op::Get, 5));
        let taken = (0..1_000).filter(|number| clock.ends(Op::Get, number % 7)).count();
        assert_eq!(clock.shown(None), [900, 6, 6, 6]);
        assert!(taken < 20, "{taken} of 1,000 fast ones were not put off by a comparison");
        assert!(!clock.ends(Op::Get, 6), "no slower than the least");
    }

    #[test]
    fn each_op_has_its_own_places() {
        let mut clock = Simulated::new(EXTENT);
        clock.ends(Op::Get, 1);
        for _ in 0..100 {
            clock.ends(Op::Range, 3_000);
        }
        assert_eq!(clock.shown(Some(Op::Get)), [1]);
        assert_eq!(clock.shown(None).len(), 5);
        assert_eq!(clock.slowest.recent(clock.now, None, 2).len(), 2, "as many as were asked for");
    }

    /// What is wrong with how long requests stay.
    fn wrong_with_age(extent: Extent) -> Option<String> {
        let mut clock = Simulated::new(extent);
        for _ in 0..10 {
            clock.at(3).ends(Op::Put, 5_000);
        }
        clock.at(12).ends(Op::Put, 2);
        if clock.shown(None) != [5_000, 5_000, 5_000, 5_000, 2] {
            return Some(format!("a burst hides what comes after it: {:?}", clock.shown(None)));
        }
        for second in [40, 62, 63] {
            if clock.at(second).shown(None).len() != 5 {
                return Some(format!("after {second} s some have gone"));
            }
        }
        if clock.at(64).shown(None) != [2] {
            return Some("the burst is shown after its time".to_owned());
        }
        // Its window's place is used again, long after.
        clock.at(73).ends(Op::Put, 1);
        (clock.shown(None) != [1]).then(|| format!("in place of what is old there is {:?}", clock.shown(None)))
    }

    #[test]
    fn requests_go_after_their_time_and_not_before() {
        assert_eq!(wrong_with_age(EXTENT), None);
    }

    #[test]
    fn twin_windows_of_another_length_are_noticed() {
        let long = wrong_with_age(Extent { window: Duration::from_secs(100), ..EXTENT }).expect("planted");
        assert!(long.contains("hides"), "{long}");
        let few = wrong_with_age(Extent { windows: 2, ..EXTENT }).expect("planted");
        assert!(few.contains("some have gone"), "{few}");
        let many = wrong_with_age(Extent { windows: 9, ..EXTENT }).expect("planted");
        assert!(many.contains("after its time"), "{many}");
    }
}
