//! The metrics of requests: how many there were, how they ended, and how long they took in all and in each phase. Each
//! worker writes its own counters; a scrape adds them up.
//!
//! A request that spent no time in a phase is not recorded in that phase's histogram. A scrape adds the difference
//! between ended requests and recorded requests to the phase's first bucket. So each phase counts every request, but a
//! read from memory writes one histogram and not six.
//!
//! `observe` and `connection` write, `admin` reads.

use klad_base::metrics::text::{Kind, Page, SECONDS_OF_NS};
use klad_base::metrics::{Counter, Histogram, Snapshot, Source};

/// Defines an enum with a label value for each variant.
macro_rules! label {
    ($(#[$about:meta])* $name:ident { $($(#[$doc:meta])* $value:ident = $word:literal,)+ }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name { $($(#[$doc])* $value,)+ }

        impl $name {
            /// All variants in order.
            pub const ALL: &'static [$name] = &[$($name::$value,)+];

            /// The value in labels and log lines.
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
        /// Reads one key.
        Get = "get",
        /// Writes one key.
        Put = "put",
        /// Removes one key.
        Delete = "delete",
        /// Changes one key in place: adds to a counter, or sets an expiry.
        Update = "update",
        /// Changes and reads many keys.
        Batch = "batch",
        /// Removes a range.
        RemoveRange = "remove_range",
        /// Reads a range.
        Range = "range",
        /// Watches changes.
        Changes = "changes",
        /// Asks whether the server is up.
        Status = "status",
        /// Anything else.
        Other = "other",
    }
}

label! {
    /// How a request ended.
    Outcome {
        /// The request was carried out.
        Ok = "ok",
        /// 404: the key has no value, or `/v1` has nothing at the path. Nothing has happened.
        NotFound = "not_found",
        /// Another 4xx: the request is wrong, its condition does not hold, or its client was too slow. Nothing has
        /// happened.
        ClientError = "client_error",
        /// 503 and 507: klad rejected the request for now. Nothing has happened.
        Refused = "refused",
        /// 504: the deadline passed before the operation began, and nothing has happened. Or too few copies answered
        /// (`not-enough-replicas`), and a write may have taken effect.
        Deadline = "deadline",
        /// 500, another 5xx, or a range that ended early because of an error.
        Error = "error",
        /// The connection ended before the socket took the whole answer. The request may have been carried out.
        Aborted = "aborted",
    }
}

label! {
    /// The phases of a request. The rest of the request's time is the worker's own work, and hand-overs between
    /// threads.
    Phase {
        /// Waits for the client to send the body.
        Receive = "receive",
        /// Waits until storage begins the operation, or waits at the gate of an overloaded worker.
        Queue = "queue",
        /// In storage, without the sync.
        Engine = "engine",
        /// Waits for the log write with sync, which all writes of a group commit share.
        Sync = "sync",
        /// Waits for the client to take the answer.
        Write = "write",
    }
}

/// The durabilities of completed writes, as in their answers.
const DURABILITIES: [&str; 4] = ["sync", "async", "none", "replicated"];

const OPS: usize = Op::ALL.len();
const OUTCOMES: usize = Outcome::ALL.len();
const PHASES: usize = Phase::ALL.len();

/// The maximum number of reasons for rejections that have counters of their own ([`Requests::new`] gets the list). It
/// is a constant, so that the counters need no allocation. A rejection for another reason counts as `other`.
const REASONS_MAX: usize = 64;

/// A request that has ended.
#[derive(Clone, Copy, Debug)]
pub struct EndedRequest {
    /// What the request asked for.
    pub op: Op,
    /// How the request ended.
    pub outcome: Outcome,
    /// The durability of a completed write: `sync`, `async`, `none` or `replicated`.
    pub durability: Option<&'static str>,
    /// The time from the arrival of the request's head, or from the beginning of its wait at the gate, until the socket
    /// took the last byte of the answer, ns.
    pub total_ns: u64,
    /// The time in each phase, in the order of [`Phase::ALL`], ns.
    pub phases_ns: [u64; PHASES],
    /// Bytes of the request's body.
    pub received_bytes: u64,
    /// Bytes of the answer's body.
    pub sent_bytes: u64,
}

/// The ops whose completed requests are counted by durability.
const WRITES: [Op; 5] = [Op::Put, Op::Delete, Op::Update, Op::Batch, Op::RemoveRange];

fn written_index(op: Op) -> Option<usize> {
    WRITES.iter().position(|write| *write == op)
}

/// The counters of one worker.
#[derive(Debug)]
pub struct WorkerRequests {
    begun: Counter,
    ended: [[Histogram<21>; OUTCOMES]; OPS],
    /// Completed requests of [`WRITES`], by durability.
    written: [[Histogram<21>; DURABILITIES.len()]; WRITES.len()],
    phases: [[Histogram<21>; PHASES]; OPS],
    received_bytes: [Counter; OPS],
    sent_bytes: [Counter; OPS],
    batch_items: Counter,
    slow: Counter,
    rejected: [Counter; REASONS_MAX + 1],
    reasons: &'static [&'static str],
}

impl WorkerRequests {
    fn new(reasons: &'static [&'static str]) -> WorkerRequests {
        assert!(reasons.len() <= REASONS_MAX, "more reasons than counters: raise REASONS_MAX");
        WorkerRequests {
            begun: Counter::new(),
            ended: [const { [const { Histogram::times() }; OUTCOMES] }; OPS],
            written: [const { [const { Histogram::times() }; DURABILITIES.len()] }; WRITES.len()],
            phases: [const { [const { Histogram::times() }; PHASES] }; OPS],
            received_bytes: [const { Counter::new() }; OPS],
            sent_bytes: [const { Counter::new() }; OPS],
            batch_items: Counter::new(),
            slow: Counter::new(),
            rejected: [const { Counter::new() }; REASONS_MAX + 1],
            reasons,
        }
    }

    /// Counts a request whose head has arrived. Only the worker calls this and the other methods that write.
    pub fn begins(&self) {
        self.begun.add_owned(1);
    }

    /// Counts the end of a request.
    pub fn ends(&self, ended: &EndedRequest) {
        let op = ended.op as usize;
        let durability = ended.durability.and_then(|word| DURABILITIES.iter().position(|known| *known == word));
        let histogram = match (written_index(ended.op), ended.outcome, durability) {
            (Some(written), Outcome::Ok, Some(durability)) => &self.written[written][durability],
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

    /// Counts an error of a request. `reason` is the code in the answer's problem document.
    pub fn rejected(&self, reason: &str) {
        let index = self.reasons.iter().position(|known| *known == reason).unwrap_or(REASONS_MAX);
        self.rejected[index].add_owned(1);
    }

    /// Counts the items of a batch that was carried out.
    pub fn batch_items(&self, items: usize) {
        self.batch_items.add_owned(items as u64);
    }

    /// Counts a request that took at least `--slow-request`.
    pub fn was_slow(&self) {
        self.slow.add_owned(1);
    }

    /// The number of ended requests of one op.
    fn ended_of(&self, op: usize) -> u64 {
        let written = written_index(Op::ALL[op]).map_or(&[][..], |index| &self.written[index]);
        self.ended[op].iter().chain(written).map(|histogram| histogram.snapshot().count()).sum()
    }
}

/// The counters of all workers.
#[derive(Debug)]
pub struct Requests {
    workers: Vec<WorkerRequests>,
    reasons: &'static [&'static str],
    /// Connections that the acceptor has rejected. Only the acceptor's thread writes this.
    too_many_connections: Counter,
}

/// The reason for rejecting a connection before it has a worker.
const TOO_MANY_CONNECTIONS: &str = "too-many-connections";

/// The code in an answer to a request whose deadline passed before its operation began.
const DEADLINE_PASSED: &str = "deadline-passed";

impl Requests {
    /// Creates the counters of `workers` workers; `reasons` are the known reasons for a rejection.
    #[must_use]
    pub fn new(workers: usize, reasons: &'static [&'static str]) -> Requests {
        Requests {
            workers: (0..workers).map(|_| WorkerRequests::new(reasons)).collect(),
            reasons,
            too_many_connections: Counter::new(),
        }
    }

    /// The counters of worker `number`. Only that worker may write them.
    #[must_use]
    pub fn worker(&self, number: usize) -> &WorkerRequests {
        &self.workers[number]
    }

    /// Counts a connection that was rejected because its address has too many. Only the acceptor calls this.
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
            "Time from the arrival of a request's head to the last byte of its answer.",
        );
        for op in Op::ALL {
            let written = written_index(*op);
            for outcome in Outcome::ALL {
                let labels = [("op", op.as_str()), ("outcome", outcome.as_str()), ("durability", "")];
                if let (Some(written), Outcome::Ok) = (written, outcome) {
                    for (index, durability) in DURABILITIES.iter().enumerate() {
                        let labels = [labels[0], labels[1], ("durability", durability)];
                        let sum = self.sum_of(|worker| &worker.written[written][index]);
                        family.histogram(&labels, &sum, SECONDS_OF_NS);
                    }
                }
                // A batch may only read. Its answer then has no durability.
                if written.is_none() || *op == Op::Batch || *outcome != Outcome::Ok {
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
            "Time of a request in each phase; the rest of its duration is the worker's own work.",
        );
        for op in Op::ALL {
            for phase in Phase::ALL {
                let mut sum = self.sum_of(|worker| &worker.phases[*op as usize][*phase as usize]);
                let ended = self.sum(|worker| worker.ended_of(*op as usize));
                // A request that ended but is not recorded here spent no time in this phase. A few requests may also
                // have ended between the two readings.
                sum.counts[0] += ended.saturating_sub(sum.count());
                family.histogram(&[("op", op.as_str()), ("phase", phase.as_str())], &sum, SECONDS_OF_NS);
            }
        }
    }

    fn write_counts(&self, page: &mut Page) {
        // Read the ended requests first, so that the difference cannot be negative.
        let ended = self.sum(|worker| (0..OPS).map(|op| worker.ended_of(op)).sum());
        let begun = self.sum(|worker| worker.begun.get());
        #[expect(clippy::cast_precision_loss, reason = "there are no more than connections")]
        let in_flight = begun.saturating_sub(ended) as f64;
        page.gauge(
            "klad_http_requests_in_flight",
            "Requests whose answer the client has not completely taken.",
            in_flight,
        );
        let slow = self.sum(|worker| worker.slow.get());
        page.counter(
            "klad_slow_requests_total",
            "Requests that took --slow-request or longer, except change feeds.",
            slow,
        );
        // Not the outcome `deadline`: it also has the requests that too few copies have answered.
        let passed = self.reasons.iter().position(|reason| *reason == DEADLINE_PASSED);
        let late = passed.map_or(0, |index| self.sum(|worker| worker.rejected[index].get()));
        page.counter(
            "klad_deadline_dropped_total",
            "Requests whose deadline passed before their operation began.",
            late,
        );
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
            "Bytes of response bodies, without framing.",
        );
        for op in Op::ALL {
            family.whole(&[("op", op.as_str())], self.sum(|worker| worker.sent_bytes[*op as usize].get()));
        }
        page.counter(
            "klad_batch_items_total",
            "Items of batches that klad has carried out, also items that failed alone.",
            self.sum(|worker| worker.batch_items.get()),
        );
        let mut family = page.family(
            "klad_refused_total",
            Kind::Counter,
            "Rejected requests and connections, by the code in the answer.",
        );
        for (index, reason) in self.reasons.iter().enumerate() {
            family.whole(&[("reason", reason)], self.sum(|worker| worker.rejected[index].get()));
        }
        family.whole(&[("reason", TOO_MANY_CONNECTIONS)], self.too_many_connections.get());
        family.whole(&[("reason", "other")], self.sum(|worker| worker.rejected[REASONS_MAX].get()));
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

    fn ended(op: Op, outcome: Outcome, durability: Option<&'static str>, phases_ns: [u64; PHASES]) -> EndedRequest {
        EndedRequest { op, outcome, durability, total_ns: 20_000_000, phases_ns, received_bytes: 3, sent_bytes: 5 }
    }

    #[test]
    fn the_counters_of_all_workers_are_added_up() {
        let requests = Requests::new(2, &["overloaded"]);
        for number in 0..2 {
            let worker = requests.worker(number);
            worker.begins();
            worker.begins();
            worker.ends(&ended(Op::Put, Outcome::Ok, Some("sync"), [0, 7_000_000, 0, 9_000_000, 0]));
        }
        requests.worker(0).begins();
        requests.worker(0).ends(&ended(Op::Put, Outcome::Refused, None, [0; PHASES]));
        requests.worker(0).rejected("overloaded");
        requests.worker(1).rejected("new in this version");
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
