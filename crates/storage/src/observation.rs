//! An engine's metrics as plain data, so that no code above storage depends on the engine.
//!
//! The housekeeping thread, which may wait, takes an observation (`LocalDisk::housekeeping`). The admin thread, which
//! must not wait, reads the latest one. The latest observation is therefore up to one housekeeping interval old;
//! [`Observation::taken`] is its time. The engines make observations, and `admin` reads them.

use std::time::Instant;

use crate::operation::Error;
use klad_base::metrics::text::{Kind, Page};

/// The state of an engine at one moment.
#[derive(Clone, Debug, Default)]
pub struct Observation {
    /// The time of the observation. `None` if the engine has no housekeeping, or if its first housekeeping has not run
    /// yet.
    pub taken: Option<Instant>,
    /// Metric families for `/metrics`. Each name occurs once.
    pub measures: Vec<Measure>,
    /// The engine's memory by purpose. The parts do not overlap.
    pub memory: Vec<MemoryUse>,
}

/// One metric family.
#[derive(Clone, Debug, PartialEq)]
pub struct Measure {
    /// The name in Prometheus style: `klad_`, the area, the quantity, the unit.
    pub name: &'static str,
    /// The help text, one sentence.
    pub help: &'static str,
    /// Counter or gauge.
    pub kind: Kind,
    /// The samples, at least one. They differ in the label's value.
    pub samples: Vec<Sample>,
}

/// One sample of a metric family.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// The label's name and value, if the family has a label.
    pub label: Option<(&'static str, String)>,
    /// The value in the unit that the family's name ends in.
    pub value: f64,
}

/// The engine's memory for one purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryUse {
    /// The purpose, such as `block_cache`.
    pub name: &'static str,
    /// The size as the engine counts it.
    pub bytes: u64,
}

/// One readiness check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// The name, such as `disk-space`.
    pub name: &'static str,
    /// The reason why the check fails; `None` if it passes.
    pub fault: Option<String>,
}

impl Check {
    /// Makes a check that passes if `result` is ok, and otherwise fails with the error's message.
    #[must_use]
    pub fn of(name: &'static str, result: Result<(), Error>) -> Check {
        Check { name, fault: result.err().map(|error| error.to_string()) }
    }
}

impl Measure {
    /// Makes a family with one sample and no label.
    #[must_use]
    pub fn one(name: &'static str, kind: Kind, help: &'static str, value: f64) -> Measure {
        Measure { name, help, kind, samples: vec![Sample { label: None, value }] }
    }

    /// Makes a family with one sample for each value of `label`.
    #[must_use]
    pub fn each<L: ToString>(
        name: &'static str,
        kind: Kind,
        help: &'static str,
        label: &'static str,
        values: impl IntoIterator<Item = (L, f64)>,
    ) -> Measure {
        let sample = |(label_value, value): (L, f64)| Sample { label: Some((label, label_value.to_string())), value };
        Measure { name, help, kind, samples: values.into_iter().map(sample).collect() }
    }
}

impl Observation {
    /// Writes the metric families to a page.
    pub fn write(&self, page: &mut Page) {
        for measure in &self.measures {
            let mut family = page.family(measure.name, measure.kind, measure.help);
            for sample in &measure.samples {
                match &sample.label {
                    Some((name, value)) => family.sample(&[(name, value)], sample.value),
                    None => family.sample(&[], sample.value),
                };
            }
        }
    }
}

/// Converts a count or a number of bytes to the number type of Prometheus. Exact up to 2^53.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "Prometheus itself holds every value as a double")]
pub fn number(value: u64) -> f64 {
    value as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measures_become_families() {
        let levels = Measure::each("klad_a_bytes", Kind::Gauge, "Size of each level.", "level", [(0, 1.0), (6, 2.5)]);
        let observation = Observation {
            measures: vec![Measure::one("klad_b_total", Kind::Counter, "Total count.", number(7)), levels],
            ..Observation::default()
        };
        let mut page = Page::new();
        observation.write(&mut page);
        let text = page.finish();
        for line in ["klad_b_total 7", r#"klad_a_bytes{level="0"} 1"#, r#"klad_a_bytes{level="6"} 2.5"#] {
            assert!(text.lines().any(|found| found == line), "{line} is missing in:\n{text}");
        }
    }

    #[test]
    fn a_failed_check_contains_the_error_message() {
        assert_eq!(Check::of("storage", Ok(())).fault, None);
        let fault = Check::of("storage", Err(Error::Stalled)).fault.expect("an error");
        assert_eq!(fault, Error::Stalled.to_string());
    }
}
