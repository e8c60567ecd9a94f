//! What an engine says of itself: plain data, so that nothing above storage knows which engine it is.
//!
//! An observation is taken where waiting is allowed (`Engine::housekeeping`) and read where it is not (the admin thread), so it is
//! as old as the last upkeep; [`Observation::taken`] says when that was. Made by the engines, read by `http`.

use std::time::Instant;

use crate::operation::Error;
use klad_base::metrics::text::{Kind, Page};

/// What an engine knew of itself at one moment.
#[derive(Clone, Debug, Default)]
pub struct Observation {
    /// When; `None`: nothing was ever looked at, because the engine has no upkeep, or has had none yet.
    pub taken: Option<Instant>,
    /// For the metrics page. Each name is there once.
    pub measures: Vec<Measure>,
    /// What the engine holds in memory, without overlap.
    pub memory: Vec<Holding>,
}

/// One family of the metrics page.
#[derive(Clone, Debug, PartialEq)]
pub struct Measure {
    /// As Prometheus wants it: `klad_`, the area, what it is, the unit.
    pub name: &'static str,
    /// One sentence.
    pub help: &'static str,
    /// Counter or gauge.
    pub kind: Kind,
    /// At least one, which differ in the label's value.
    pub samples: Vec<Sample>,
}

/// One value of a family.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// Name and value, if the family has a label.
    pub label: Option<(&'static str, String)>,
    /// In the unit that the family's name ends in.
    pub value: f64,
}

/// Memory that the engine holds for one purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holding {
    /// A word, such as `block_cache`.
    pub name: &'static str,
    /// As the engine counts them.
    pub bytes: u64,
}

/// One condition of being ready.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// A word, such as `disk-space`.
    pub name: &'static str,
    /// Why it is not met.
    pub fault: Option<String>,
}

impl Check {
    /// A condition that is met unless `result` is an error, in the error's words.
    #[must_use]
    pub fn of(name: &'static str, result: Result<(), Error>) -> Check {
        Check { name, fault: result.err().map(|error| error.to_string()) }
    }
}

impl Measure {
    /// A family with one sample.
    #[must_use]
    pub fn one(name: &'static str, kind: Kind, help: &'static str, value: f64) -> Measure {
        Measure { name, help, kind, samples: vec![Sample { label: None, value }] }
    }

    /// A family with a sample for each value of `label`.
    #[must_use]
    pub fn each<L: ToString>(
        name: &'static str,
        kind: Kind,
        help: &'static str,
        label: &'static str,
        values: impl IntoIterator<Item = (L, f64)>,
    ) -> Measure {
        let sample = |(of, value): (L, f64)| Sample { label: Some((label, of.to_string())), value };
        Measure { name, help, kind, samples: values.into_iter().map(sample).collect() }
    }
}

impl Observation {
    /// Puts the measures on a page.
    pub fn write(&self, page: &mut Page) {
        for measure in &self.measures {
            let mut family = page.family(measure.name, measure.kind, measure.help);
            for sample in &measure.samples {
                match &sample.label {
                    Some((name, of)) => family.sample(&[(name, of)], sample.value),
                    None => family.sample(&[], sample.value),
                };
            }
        }
    }
}

/// A count or a number of bytes as Prometheus reads numbers: exact up to 2^53.
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
        let levels = Measure::each("klad_a_bytes", Kind::Gauge, "Of levels.", "level", [(0, 1.0), (6, 2.5)]);
        let observation = Observation {
            measures: vec![Measure::one("klad_b_total", Kind::Counter, "Of all.", number(7)), levels],
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
    fn a_check_says_what_is_wrong() {
        assert_eq!(Check::of("room", Ok(())).fault, None);
        let fault = Check::of("room", Err(Error::Stalled)).fault.expect("an error");
        assert_eq!(fault, Error::Stalled.to_string());
    }
}
