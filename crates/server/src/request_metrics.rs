//! What became of requests: how many, how they ended, how long they took and where. One set of counters for each worker,
//! written by that worker alone, summed when somebody scrapes.
//!
//! A request that spent nothing in a phase is not recorded there on its way: at a scrape the difference between the requests
//! that have ended and those that were recorded goes into the phase's first bucket. So each phase counts every request, and a
//! read that memory answered pays for one histogram and not for six.
//!
//! Written by `http` and `server`; read by whoever builds `/metrics`.

use klad_base::metrics::text::{Kind, Page, SECONDS_OF_NS};
use klad_base::metrics::{Counter, Histogram, Snapshot, Source};

/// Words of a label, in the order of the values of its enum.
macro_rules! label {
    ($(#[$about:meta])* $name:ident { $($(#[$doc:meta])* $value:ident = $word:literal,)+ }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name { $($(#[$doc])* $value,)+ }

        impl $name {
            /// All, in order.
            pub const ALL: &'static [$name] = &[$($name::$value,)+];

            /// As it stands in labels and log lines.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $($name::$value => $word,)+ }
            }
        }
    };
}

label! {
    /// What a request asks for.
    Op {
        /// One key is read.
        Get = "get",
        /// One key is written.
        Put = "put",
        /// One key is removed.
        Delete = "delete",
        /// A range is read.
        Range = "range",
        /// Nothing: is anybody there?
        Status = "status",
        /// What klad does not know.
        Other = "other",
    }
}

label! {
    /// How a request ended.
    Outcome {
        /// It was done.
        Ok = "ok",
        /// There is no such key.
        NotFound = "not_found",
        /// 4xx: the request is at fault, or its client was too slow. Nothing has happened.
        ClientError = "client_error",
        /// 503 and 507: klad would not, for now. Nothing has happened.
        Refused = "refused",
        /// 504: its deadline passed before it was begun. Nothing has happened.
        Deadline = "deadline",
        /// 500, or a range that was cut in its middle.
        Error = "error",
        /// The connection ended before the whole answer was taken; what was asked for may have been done.
        Aborted = "aborted",
    }
}

label! {
    /// Where a request's time goes. What is left of the total is the worker's own work and the way between threads.
    Phase {
        /// Waiting for the client to send the body.
        Receive = "receive",
        /// Waiting for storage to begin; at the gate, where a worker has more than it can serve.
        Queue = "queue",
        /// In storage, but for the sync.
        Engine = "engine",
        /// In the log write with sync, which all writes of a batch share.
        Sync = "sync",
        /// Waiting for the client to take the answer.
        Write = "write",
    }
}

/// Durabilities of writes that were done, as their answers name them.
const DURABILITIES: [&str; 3] = ["sync", "async", "none"];

const OPS: usize = Op::ALL.len();
const OUTCOMES: usize = Outcome::ALL.len();
const PHASES: usize = Phase::ALL.len();

/// Reasons that are told apart; a constant, so that counters need no allocation. What is beyond counts as `other`.
const REASONS_MAX: usize = 64;

/// A request that has ended.
#[derive(Clone, Copy, Debug)]
pub struct Ended {
    /// What it asked for.
    pub op: Op,
    /// How it ended.
    pub outcome: Outcome,
    /// Of a write that was done: `sync`, `async` or `none`.
    pub durability: Option<&'static str>,
    /// From its head's arrival to the last byte of its answer, ns.
    pub total_ns: u64,
    /// Of it, in each phase, ns.
    pub phases_ns: [u64; PHASES],
    /// Bytes of its body.
    pub received_bytes: u64,
    /// Bytes of its answer's body.
    pub sent_bytes: u64,
}

/// The counters of one worker.
#[derive(Debug)]
pub struct WorkerRequests {
    begun: Counter,
    ended: [[Histogram<21>; OUTCOMES]; OPS],
    /// Of puts, then of deletes, that were done.
    written: [[Histogram<21>; DURABILITIES.len()]; 2],
    phases: [[Histogram<21>; PHASES]; OPS],
    received_bytes: [Counter; OPS],
    sent_bytes: [Counter; OPS],
    slow: Counter,
    refused: [Counter; REASONS_MAX + 1],
    reasons: &'static [&'static str],
}

impl WorkerRequests {
    fn new(reasons: &'static [&'static str]) -> WorkerRequests {
        assert!(reasons.len() <= REASONS_MAX, "more reasons than counters: raise REASONS_MAX");
        WorkerRequests {
            begun: Counter::new(),
            ended: [const { [const { Histogram::times() }; OUTCOMES] }; OPS],
            written: [const { [const { Histogram::times() }; DURABILITIES.len()] }; 2],
            phases: [const { [const { Histogram::times() }; PHASES] }; OPS],
            received_bytes: [const { Counter::new() }; OPS],
            sent_bytes: [const { Counter::new() }; OPS],
            slow: Counter::new(),
            refused: [const { Counter::new() }; REASONS_MAX + 1],
            reasons,
        }
    }

    /// A request's head has come. On the worker only, as all that follows.
    pub fn begins(&self) {
        self.begun.add_owned(1);
    }

    /// It has ended; once for each that has begun.
    pub fn ends(&self, ended: &Ended) {
        let op = ended.op as usize;
        let durability = ended.durability.and_then(|word| DURABILITIES.iter().position(|known| *known == word));
        let histogram = match (ended.op, ended.outcome, durability) {
            (Op::Put, Outcome::Ok, Some(durability)) => &self.written[0][durability],
            (Op::Delete, Outcome::Ok, Some(durability)) => &self.written[1][durability],
            _ => &self.ended[op][ended.outcome as usize],
        };
        histogram.record_owned(ended.total_ns);
        if ended.phases_ns != [0; PHASES] {
            for (phase, time_ns) in self.phases[op].iter().zip(ended.phases_ns) {
                if time_ns > 0 {
                    phase.record_owned(time_ns);
                }
            }
        }
        if ended.received_bytes > 0 {
            self.received_bytes[op].add_owned(ended.received_bytes);
        }
        if ended.sent_bytes > 0 {
            self.sent_bytes[op].add_owned(ended.sent_bytes);
        }
    }

    /// A request was refused, or what came was none; `reason` is the problem document's code where there is one.
    pub fn refused(&self, reason: &str) {
        let index = self.reasons.iter().position(|known| *known == reason).unwrap_or(REASONS_MAX);
        self.refused[index].add_owned(1);
    }

    /// A request took longer than `--slow-request`.
    pub fn was_slow(&self) {
        self.slow.add_owned(1);
    }

    /// All that have ended, of one op.
    fn ended_of(&self, op: usize) -> u64 {
        let written = match Op::ALL[op] {
            Op::Put => &self.written[0][..],
            Op::Delete => &self.written[1][..],
            Op::Get | Op::Range | Op::Status | Op::Other => &[],
        };
        self.ended[op].iter().chain(written).map(|histogram| histogram.snapshot().count()).sum()
    }
}

/// The counters of all workers.
#[derive(Debug)]
pub struct Requests {
    workers: Vec<WorkerRequests>,
    reasons: &'static [&'static str],
    /// Connections refused by the acceptor, which alone writes it.
    too_many_connections: Counter,
}

/// What a connection is refused for before it has a worker.
const TOO_MANY_CONNECTIONS: &str = "too-many-connections";

impl Requests {
    /// For so many workers; requests are refused for `reasons`.
    #[must_use]
    pub fn new(workers: usize, reasons: &'static [&'static str]) -> Requests {
        Requests {
            workers: (0..workers).map(|_| WorkerRequests::new(reasons)).collect(),
            reasons,
            too_many_connections: Counter::new(),
        }
    }

    /// The counters of worker `number`, which it alone may write.
    #[must_use]
    pub fn worker(&self, number: usize) -> &WorkerRequests {
        &self.workers[number]
    }

    /// A connection was refused because its address has too many; on the acceptor only.
    pub fn too_many_connections(&self) {
        self.too_many_connections.add_owned(1);
    }

    fn sum(&self, of: impl Fn(&WorkerRequests) -> u64) -> u64 {
        self.workers.iter().map(of).sum()
    }

    fn sum_of(&self, of: impl Fn(&WorkerRequests) -> &Histogram<21>) -> Snapshot {
        let mut sum = Histogram::times().snapshot();
        for worker in &self.workers {
            sum.add(&of(worker).snapshot());
        }
        sum
    }

    fn write_durations(&self, page: &mut Page) {
        let mut family = page.family(
            "klad_http_request_duration_seconds",
            Kind::Histogram,
            "Time from a request's head to the last byte of its answer.",
        );
        for op in Op::ALL {
            let written = match op {
                Op::Put => Some(0),
                Op::Delete => Some(1),
                Op::Get | Op::Range | Op::Status | Op::Other => None,
            };
            for outcome in Outcome::ALL {
                let labels = [("op", op.as_str()), ("outcome", outcome.as_str()), ("durability", "")];
                if let (Some(written), Outcome::Ok) = (written, outcome) {
                    for (index, durability) in DURABILITIES.iter().enumerate() {
                        let labels = [labels[0], labels[1], ("durability", durability)];
                        let sum = self.sum_of(|worker| &worker.written[written][index]);
                        family.histogram(&labels, &sum, SECONDS_OF_NS);
                    }
                } else {
                    let sum = self.sum_of(|worker| &worker.ended[*op as usize][*outcome as usize]);
                    family.histogram(&labels[..2], &sum, SECONDS_OF_NS);
                }
            }
        }
    }

    fn write_phases(&self, page: &mut Page) {
        let mut family = page.family(
            "klad_http_request_phase_seconds",
            Kind::Histogram,
            "Time of a request in each phase; the rest of its duration is the worker's.",
        );
        for op in Op::ALL {
            for phase in Phase::ALL {
                let mut sum = self.sum_of(|worker| &worker.phases[*op as usize][*phase as usize]);
                let ended = self.sum(|worker| worker.ended_of(*op as usize));
                // Ended, and not recorded here: it spent nothing in this phase. Some may have ended since the first look.
                sum.counts[0] += ended.saturating_sub(sum.count());
                family.histogram(&[("op", op.as_str()), ("phase", phase.as_str())], &sum, SECONDS_OF_NS);
            }
        }
    }

    fn write_counts(&self, page: &mut Page) {
        // Ended first: what begins meanwhile is in flight, and nothing is negative.
        let ended = self.sum(|worker| (0..OPS).map(|op| worker.ended_of(op)).sum());
        let begun = self.sum(|worker| worker.begun.get());
        #[expect(clippy::cast_precision_loss, reason = "there are no more than connections")]
        let in_flight = begun.saturating_sub(ended) as f64;
        page.gauge("klad_http_requests_in_flight", "Requests whose answer has not been taken yet.", in_flight);
        let slow = self.sum(|worker| worker.slow.get());
        page.counter("klad_slow_requests_total", "Requests that took longer than --slow-request.", slow);
        let late = self.sum(|worker| {
            worker.ended.iter().map(|outcomes| outcomes[Outcome::Deadline as usize].snapshot().count()).sum()
        });
        page.counter("klad_deadline_dropped_total", "Requests whose deadline passed before they were begun.", late);
        let mut family = page.family(
            "klad_http_request_body_bytes_total",
            Kind::Counter,
            "Bytes of request bodies, without framing.",
        );
        for op in Op::ALL {
            let bytes = self.sum(|worker| worker.received_bytes[*op as usize].get());
            family.whole(&[("op", op.as_str())], bytes);
        }
        let mut family = page.family(
            "klad_http_response_body_bytes_total",
            Kind::Counter,
            "Bytes of answers' bodies, without framing.",
        );
        for op in Op::ALL {
            family.whole(&[("op", op.as_str())], self.sum(|worker| worker.sent_bytes[*op as usize].get()));
        }
        let mut family =
            page.family("klad_refused_total", Kind::Counter, "Requests and connections refused, by the answer's code.");
        for (index, reason) in self.reasons.iter().enumerate() {
            family.whole(&[("reason", reason)], self.sum(|worker| worker.refused[index].get()));
        }
        family.whole(&[("reason", TOO_MANY_CONNECTIONS)], self.too_many_connections.get());
        family.whole(&[("reason", "other")], self.sum(|worker| worker.refused[REASONS_MAX].get()));
    }
}

impl Source for Requests {
    fn write(&self, page: &mut Page) {
        self.write_durations(page);
        self.write_phases(page);
        self.write_counts(page);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(op: Op, outcome: Outcome, durability: Option<&'static str>, phases_ns: [u64; PHASES]) -> Ended {
        Ended { op, outcome, durability, total_ns: 20_000_000, phases_ns, received_bytes: 3, sent_bytes: 5 }
    }

    #[test]
    fn what_one_worker_counts_is_summed_with_the_others() {
        let requests = Requests::new(2, &["overloaded"]);
        for number in 0..2 {
            let worker = requests.worker(number);
            worker.begins();
            worker.begins();
            worker.ends(&ended(Op::Put, Outcome::Ok, Some("sync"), [0, 7_000_000, 0, 9_000_000, 0]));
        }
        requests.worker(0).begins();
        requests.worker(0).ends(&ended(Op::Put, Outcome::Refused, None, [0; PHASES]));
        requests.worker(0).refused("overloaded");
        requests.worker(1).refused("new in this version");
        let mut page = Page::new();
        requests.write(&mut page);
        let text = page.finish();
        for line in [
            r#"klad_http_request_duration_seconds_count{op="put",outcome="ok",durability="sync"} 2"#,
            r#"klad_http_request_duration_seconds_count{op="put",outcome="ok",durability="async"} 0"#,
            r#"klad_http_request_duration_seconds_sum{op="put",outcome="refused"} 0.02"#,
            r#"klad_http_request_phase_seconds_count{op="put",phase="queue"} 3"#,
            r#"klad_http_request_phase_seconds_sum{op="put",phase="sync"} 0.018000000000000002"#,
            r#"klad_http_request_phase_seconds_bucket{op="put",phase="engine",le="0.00001"} 3"#,
            r#"klad_http_request_phase_seconds_bucket{op="put",phase="sync",le="0.00001"} 1"#,
            "klad_http_requests_in_flight 2",
            r#"klad_http_request_body_bytes_total{op="put"} 9"#,
            r#"klad_refused_total{reason="overloaded"} 1"#,
            r#"klad_refused_total{reason="other"} 1"#,
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is missing in:\n{text}");
        }
    }
}
