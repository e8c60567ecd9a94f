//! What the engine counts, and its metrics.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::Observation;
use crate::observation::{Measure, number};
use crate::operation::Error;
use klad_base::metrics::text::Kind;

/// A number that only grows.
#[derive(Debug, Default)]
pub(super) struct Counter(AtomicU64);

impl Counter {
    pub(super) fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    fn get(&self) -> f64 {
        number(self.0.load(Ordering::Relaxed))
    }
}

/// The counters of one klad.
#[derive(Debug, Default)]
pub(super) struct Counters {
    /// Further tries of conditional writes, each after a try that has not taken effect.
    pub(super) conditional_retries: Counter,
    /// Conditional writes whose outcome Cassandra did not report.
    pub(super) conditional_unknown: Counter,
    not_enough_replicas: Counter,
    undetermined: Counter,
    read_failed: Counter,
}

impl Counters {
    /// Counts an error, and returns it.
    pub(super) fn failed(&self, error: &Error) -> Error {
        match error {
            Error::NotEnoughReplicas { .. } => self.not_enough_replicas.add(1),
            Error::Undetermined { .. } => self.undetermined.add(1),
            Error::ReadFailed { .. } => self.read_failed.add(1),
            _ => {}
        }
        error.clone()
    }

    /// The current metrics, with those of [`Traffic`](crate::cassandra::traffic::Traffic).
    pub(super) fn observe(&self, traffic: Vec<Measure>) -> Observation {
        let errors = [
            ("not-enough-replicas", self.not_enough_replicas.get()),
            ("undetermined", self.undetermined.get()),
            ("read-failed", self.read_failed.get()),
        ];
        let one = |name, help, value| Measure::one(name, Kind::Counter, help, value);
        let mut measures = vec![
            Measure::each(
                "klad_cluster_errors_total",
                Kind::Counter,
                "Requests to the cluster that failed, by the error that klad made of it.",
                "error",
                errors,
            ),
            one(
                "klad_cluster_conditional_retries_total",
                "Conditional writes that were tried again, because a try had not taken effect.",
                self.conditional_retries.get(),
            ),
            one(
                "klad_cluster_conditional_unknown_total",
                "Conditional writes whose outcome klad had to find out by a serial read.",
                self.conditional_unknown.get(),
            ),
        ];
        measures.extend(traffic);
        Observation { measures, ..Observation::default() }
    }
}
