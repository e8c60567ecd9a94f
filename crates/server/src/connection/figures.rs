//! What the acceptor and the workers count of connections, turns and gates, and how it looks on the metrics page.
//!
//! Each figure has one writer, the acceptor's thread or the worker's; the admin thread reads. Made by `server`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::connection::gate::Sign;
use crate::exchange::Closed;
use klad_base::metrics::text::{Kind, Page, SECONDS_OF_NS};
use klad_base::metrics::{Counter, Histogram, Source};

/// All of them, with their words in the label.
const CLOSED: [(Closed, &str); 9] = [
    (Closed::ByClient, "client"),
    (Closed::Error, "error"),
    (Closed::HeadTimeout, "head_timeout"),
    (Closed::BodyTimeout, "body_timeout"),
    (Closed::WriteTimeout, "write_timeout"),
    (Closed::Idle, "idle"),
    (Closed::Grown, "grown_buffers"),
    (Closed::Evicted, "evicted"),
    (Closed::Stopping, "stopping"),
];

/// What one worker shows.
#[derive(Debug)]
pub(crate) struct WorkerFigures {
    /// Connections that it has, those on their way included.
    pub(crate) connections: AtomicUsize,
    pub(crate) sign: Arc<Sign>,
    pub(crate) iterations: Histogram<21>,
    /// Requests that were read without hyper.
    pub(crate) plain: Counter,
    /// CPU time of the worker's thread, nanoseconds, as of its last sweep.
    pub(crate) cpu_ns: Counter,
    closed: [Counter; CLOSED.len()],
}

impl WorkerFigures {
    pub(crate) fn new(sign: Arc<Sign>) -> Arc<WorkerFigures> {
        Arc::new(WorkerFigures {
            connections: AtomicUsize::new(0),
            sign,
            iterations: Histogram::times(),
            plain: Counter::new(),
            cpu_ns: Counter::new(),
            closed: [const { Counter::new() }; CLOSED.len()],
        })
    }

    /// A connection has ended; on the worker's thread.
    pub(crate) fn count_closed(&self, why: Closed) {
        self.closed[why as usize].add_owned(1);
    }
}

/// What the acceptor shows.
#[derive(Debug, Default)]
pub(crate) struct AcceptFigures {
    /// Handed to a worker.
    pub(crate) accepted: Counter,
    /// Its address had as many as it may have: 503.
    pub(crate) refused: Counter,
    /// The client had left before it was accepted.
    pub(crate) left: Counter,
    /// Few connections a second are accepted, because workers are strained.
    pub(crate) is_cautious: AtomicBool,
}

/// All of it.
pub(crate) struct Figures {
    pub(crate) workers: Vec<Arc<WorkerFigures>>,
    pub(crate) accept: Arc<AcceptFigures>,
    /// How many there may be now.
    pub(crate) connections_max: Box<dyn Fn() -> usize + Send + Sync>,
}

impl Figures {
    /// Connections that workers have.
    pub(crate) fn open(&self) -> usize {
        self.workers.iter().map(|worker| worker.connections.load(Ordering::Relaxed)).sum()
    }

    fn write_connections(&self, page: &mut Page) {
        let mut gauge = |name, help, value: usize| {
            page.family(name, Kind::Gauge, help).whole(&[], value as u64);
        };
        gauge("klad_connections_open", "Open connections of clients.", self.open());
        let help = "As many there may be, --connections-max; then klad stops accepting.";
        gauge("klad_connections_limit", help, (self.connections_max)());
        page.counter(
            "klad_connections_accepted_total",
            "Connections that were given to a worker.",
            self.accept.accepted.get(),
        );
        page.counter(
            "klad_connections_refused_total",
            "Connections that were answered 503, because their address had --connections-per-peer already.",
            self.accept.refused.get(),
        );
        page.counter(
            "klad_connections_abandoned_total",
            "Connections whose client had left before they were accepted; looked at only under strain.",
            self.accept.left.get(),
        );
        let mut closed =
            page.family("klad_connections_closed_total", Kind::Counter, "Connections that have ended, by why.");
        for (why, word) in CLOSED {
            closed
                .whole(&[("reason", word)], self.workers.iter().map(|worker| worker.closed[why as usize].get()).sum());
        }
        page.gauge(
            "klad_accept_cautious",
            "1 while connections are accepted slowly, because all workers are strained.",
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
        let help = "1 while requests of a worker's connections are let in one by one, newest first.";
        each("klad_worker_gate_closed", Kind::Gauge, help, &|worker| u64::from(worker.sign.is_closed()));
        let help = "Connections with a request that wait at a worker's gate.";
        each("klad_worker_gate_waiting", Kind::Gauge, help, &|worker| worker.sign.waiting() as u64);
        let help = "Times that a worker's gate has closed.";
        each("klad_worker_gate_closings_total", Kind::Counter, help, &|worker| worker.sign.closings());
        let help = "1 while a worker's turns are so long that it gets few new connections.";
        each("klad_worker_strained", Kind::Gauge, help, &|worker| u64::from(worker.sign.is_strained()));
        let help =
            "Requests that came in one piece and asked for nothing unusual, so that the worker read them by itself.";
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
                "klad_worker_turn_seconds",
                Kind::Histogram,
                "Length of workers' turns, which is what a request waits for its worker.",
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
        for (position, (why, _)) in CLOSED.into_iter().enumerate() {
            assert_eq!(why as usize, position, "the table is in the order of the enum");
            figures.workers[position % 2].count_closed(why);
        }
        figures.workers[0].count_closed(Closed::Idle);
        let mut page = Page::new();
        figures.write(&mut page);
        let text = page.finish();
        assert!(text.contains("klad_connections_closed_total{reason=\"idle\"} 2\n"), "{text}");
        assert!(text.contains("klad_connections_closed_total{reason=\"evicted\"} 1\n"), "{text}");
    }
}
