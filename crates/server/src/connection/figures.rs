//! The figures that the acceptor and the workers keep about connections, loop iterations and gates, and their lines on
//! the metrics page.
//!
//! Each figure has one writer, the acceptor's thread or a worker's thread. Only the number of a worker's connections
//! has several writers: the acceptor, the worker, and the admin thread, which opens connections for the console. The
//! admin thread reads the figures. `Server` creates them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::connection::gate::GateStatus;
use crate::exchange::CloseReason;
use klad_base::metrics::text::{Kind, Page, SECONDS_OF_NS};
use klad_base::metrics::{Counter, Histogram, Source};

/// All reasons for the end of a connection, with their label values.
const CLOSE_REASONS: [(CloseReason, &str); 9] = [
    (CloseReason::ByClient, "client"),
    (CloseReason::Error, "error"),
    (CloseReason::HeadTimeout, "head_timeout"),
    (CloseReason::BodyTimeout, "body_timeout"),
    (CloseReason::WriteTimeout, "write_timeout"),
    (CloseReason::Idle, "idle"),
    (CloseReason::Grown, "grown_buffers"),
    (CloseReason::Evicted, "evicted"),
    (CloseReason::Stopping, "stopping"),
];

/// The figures of one worker.
#[derive(Debug)]
pub(crate) struct WorkerFigures {
    /// The number of the worker's open connections, including those on their way to the worker.
    pub(crate) connections: AtomicUsize,
    pub(crate) gate_status: Arc<GateStatus>,
    pub(crate) iterations: Histogram<21>,
    /// The number of requests that were read without hyper.
    pub(crate) plain: Counter,
    /// CPU time of the worker's thread in nanoseconds, as of the worker's last sweep.
    pub(crate) cpu_ns: Counter,
    closed: [Counter; CLOSE_REASONS.len()],
}

impl WorkerFigures {
    pub(crate) fn new(gate_status: Arc<GateStatus>) -> Arc<WorkerFigures> {
        Arc::new(WorkerFigures {
            connections: AtomicUsize::new(0),
            gate_status,
            iterations: Histogram::times(),
            plain: Counter::new(),
            cpu_ns: Counter::new(),
            closed: [const { Counter::new() }; CLOSE_REASONS.len()],
        })
    }

    /// Counts a connection that has ended. Only the worker's thread calls this.
    pub(crate) fn count_closed(&self, why: CloseReason) {
        self.closed[why as usize].add_owned(1);
    }
}

/// The figures of the acceptor.
#[derive(Debug, Default)]
pub(crate) struct AcceptFigures {
    /// The number of connections handed to a worker.
    pub(crate) accepted: Counter,
    /// The number of connections that klad rejected because their address had too many connections.
    pub(crate) rejected: Counter,
    /// The number of clients that had left before klad accepted them. klad counts them only while the acceptor limits
    /// its rate.
    pub(crate) left: Counter,
    /// Whether the acceptor limits its rate, because all workers are strained (their loop iterations are too long) or
    /// recently were.
    pub(crate) is_cautious: AtomicBool,
}

/// The figures of the acceptor and all workers.
pub(crate) struct Figures {
    pub(crate) workers: Vec<Arc<WorkerFigures>>,
    pub(crate) accept: Arc<AcceptFigures>,
    /// Returns the current limit of open connections.
    pub(crate) connections_max: Box<dyn Fn() -> usize + Send + Sync>,
}

impl Figures {
    /// Returns the number of open connections of all workers together.
    pub(crate) fn open(&self) -> usize {
        self.workers.iter().map(|worker| worker.connections.load(Ordering::Relaxed)).sum()
    }

    fn write_connections(&self, page: &mut Page) {
        let mut gauge = |name, help, value: usize| {
            page.family(name, Kind::Gauge, help).whole(&[], value as u64);
        };
        gauge("klad_connections_open", "Open client connections.", self.open());
        let help = "The limit of open connections, --connections-max; at the limit klad stops accepting.";
        gauge("klad_connections_limit", help, (self.connections_max)());
        page.counter("klad_connections_accepted_total", "Connections handed to a worker.", self.accept.accepted.get());
        page.counter(
            "klad_connections_refused_total",
            "Connections rejected with 503 or a TLS alert because their address already had --connections-per-peer.",
            self.accept.rejected.get(),
        );
        page.counter(
            "klad_connections_abandoned_total",
            "Connections whose client had left before klad accepted them; counted only under strain.",
            self.accept.left.get(),
        );
        let mut closed =
            page.family("klad_connections_closed_total", Kind::Counter, "Connections that have ended, by reason.");
        for (why, word) in CLOSE_REASONS {
            closed
                .whole(&[("reason", word)], self.workers.iter().map(|worker| worker.closed[why as usize].get()).sum());
        }
        page.gauge(
            "klad_accept_cautious",
            "1 while klad accepts connections slowly because all workers are strained.",
            f64::from(u8::from(self.accept.is_cautious.load(Ordering::Relaxed))),
        );
    }

    fn write_workers(&self, page: &mut Page) {
        let mut each = |name, kind, help, value: &dyn Fn(&WorkerFigures) -> u64| {
            let mut family = page.family(name, kind, help);
            for (number, worker) in self.workers.iter().enumerate() {
                family.whole(&[("worker", &number.to_string())], value(worker));
            }
        };
        each("klad_worker_connections", Kind::Gauge, "Connections of each worker.", &|worker| {
            worker.connections.load(Ordering::Relaxed) as u64
        });
        let help = "1 while a worker's gate limits how many requests the worker reads, newest first.";
        each("klad_worker_gate_closed", Kind::Gauge, help, &|worker| u64::from(worker.gate_status.is_closed()));
        let help = "Connections with a request that wait at a worker's gate.";
        each("klad_worker_gate_waiting", Kind::Gauge, help, &|worker| worker.gate_status.waiting() as u64);
        let help = "Times that a worker's gate has closed.";
        each("klad_worker_gate_closings_total", Kind::Counter, help, &|worker| worker.gate_status.closings());
        let help = "1 while a worker's loop iterations are so long that it gets few new connections.";
        each("klad_worker_strained", Kind::Gauge, help, &|worker| u64::from(worker.gate_status.is_strained()));
        let help = "Requests that arrived in one piece and used only common features: read without hyper.";
        each("klad_worker_plain_requests_total", Kind::Counter, help, &|worker| worker.plain.get());
        let mut cpu = page.family("klad_worker_cpu_seconds_total", Kind::Counter, "CPU time of each worker's thread.");
        for (number, worker) in self.workers.iter().enumerate() {
            let time = std::time::Duration::from_nanos(worker.cpu_ns.get());
            cpu.sample(&[("worker", &number.to_string())], time.as_secs_f64());
        }
        let mut iterations = self.workers.iter().map(|worker| worker.iterations.snapshot());
        if let Some(mut all) = iterations.next() {
            iterations.for_each(|more| all.add(&more));
            page.family(
                "klad_worker_iteration_seconds",
                Kind::Histogram,
                "Length of workers' loop iterations; a request may wait that long for its worker.",
            )
            .histogram(&[], &all, SECONDS_OF_NS);
        }
    }
}

impl Source for Figures {
    fn write(&self, page: &mut Page) {
        self.write_connections(page);
        self.write_workers(page);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_has_its_own_word_and_counter() {
        let figures = Figures {
            workers: vec![WorkerFigures::new(Arc::default()), WorkerFigures::new(Arc::default())],
            accept: Arc::default(),
            connections_max: Box::new(|| 10),
        };
        for (position, (why, _)) in CLOSE_REASONS.into_iter().enumerate() {
            assert_eq!(why as usize, position, "the table is in the order of the enum");
            figures.workers[position % 2].count_closed(why);
        }
        figures.workers[0].count_closed(CloseReason::Idle);
        let mut page = Page::new();
        figures.write(&mut page);
        let text = page.finish();
        assert!(text.contains("klad_connections_closed_total{reason=\"idle\"} 2\n"), "{text}");
        assert!(text.contains("klad_connections_closed_total{reason=\"evicted\"} 1\n"), "{text}");
    }
}
