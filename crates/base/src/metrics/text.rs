//! The Prometheus text format, version 0.0.4. klad writes the lines itself, because Prometheus's libraries keep
//! counters behind locks, and klad has its own counters. A test checks the lines with `promtool check metrics`. The
//! same sources can fill [`Samples`] instead of a text.
//!
//! ```text
//!   # HELP klad_fsync_seconds Time of one sync of the log.
//!   # TYPE klad_fsync_seconds histogram
//!   klad_fsync_seconds_bucket{le="0.001"} 12
//! ```

use std::fmt::{Display, Formatter, Write as _};

use crate::metrics::{Samples, Snapshot};

/// The value of the `Content-Type` header of the metrics page.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The factor from nanoseconds to seconds, the unit of Prometheus.
pub const SECONDS_OF_NS: f64 = 1e-9;

/// The type of a family's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A value that only grows. The name of the family ends in `_total`.
    Counter,
    /// A value that goes up and down.
    Gauge,
    /// Buckets, sum and count.
    Histogram,
}

/// A metrics page under construction: a list of families.
#[derive(Debug)]
pub struct Page<'s>(Target<'s>);

/// Where the lines of a page go.
#[derive(Debug)]
enum Target<'s> {
    Text(String),
    Samples(&'s mut Samples),
}

/// One family of the page: samples that differ in their labels.
#[derive(Debug)]
pub struct Family<'p, 's> {
    /// `None`: the samples do not need the family's lines.
    target: Option<&'p mut Target<'s>>,
    name: &'p str,
}

/// The value of a line.
#[derive(Clone, Copy, Debug)]
enum Value {
    /// A whole number, with all its digits: a double would round a number above 2^53.
    Whole(u64),
    Number(f64),
}

impl<'s> Page<'s> {
    /// Returns an empty page of text.
    #[must_use]
    pub fn new() -> Page<'s> {
        Page(Target::Text(String::new()))
    }

    /// Returns a page whose values are added to `samples`. It has no text.
    pub fn sampling(samples: &'s mut Samples) -> Page<'s> {
        Page(Target::Samples(samples))
    }

    /// Writes the description and type of a family. Returns the family, to which the caller adds samples. A page has at
    /// most one family of each name.
    pub fn family<'p>(&'p mut self, name: &'p str, kind: Kind, help: &str) -> Family<'p, 's> {
        debug_assert!(!help.contains(['\n', '\\']) && name.starts_with("klad_") || name.starts_with("process_"));
        let word = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        };
        let is_wanted = match &mut self.0 {
            Target::Text(text) => writeln!(text, "# HELP {name} {help}\n# TYPE {name} {word}").is_ok(),
            Target::Samples(samples) => samples.family(name, help),
        };
        Family { target: is_wanted.then_some(&mut self.0), name }
    }

    /// Writes a counter without labels.
    pub fn counter(&mut self, name: &str, help: &str, value: u64) {
        self.family(name, Kind::Counter, help).whole(&[], value);
    }

    /// Writes a gauge without labels.
    pub fn gauge(&mut self, name: &str, help: &str, value: f64) {
        self.family(name, Kind::Gauge, help).sample(&[], value);
    }

    /// Returns the text of the page.
    #[must_use]
    pub fn finish(self) -> String {
        match self.0 {
            Target::Text(text) => text,
            Target::Samples(_) => String::new(),
        }
    }
}

impl Default for Page<'_> {
    fn default() -> Self {
        Page::new()
    }
}

impl Family<'_, '_> {
    /// Writes one sample of a counter or gauge. Returns the family, for the next sample.
    pub fn sample(&mut self, labels: &[(&str, &str)], value: f64) -> &mut Self {
        self.line("", labels, None, Value::Number(value))
    }

    /// Writes one sample that is a whole number, with all its digits: `sample` would round a number above 2^53.
    pub fn whole(&mut self, labels: &[(&str, &str)], value: u64) -> &mut Self {
        self.line("", labels, None, Value::Whole(value))
    }

    /// Writes the samples of a histogram. `unit` is the factor from the recorded values to the unit in the family's
    /// name.
    pub fn histogram(&mut self, labels: &[(&str, &str)], snapshot: &Snapshot, unit: f64) -> &mut Self {
        let mut cumulative = 0;
        for (bound, count) in snapshot.bounds.iter().zip(&snapshot.counts) {
            cumulative += count;
            #[expect(clippy::cast_precision_loss, reason = "bounds are round numbers")]
            let bound = *bound as f64 * unit;
            // The multiplication leaves rounding errors in the last digits.
            let bound = (bound * 1e9).round() / 1e9;
            self.line("_bucket", labels, Some(&bound.to_string()), Value::Whole(cumulative));
        }
        let count = snapshot.count();
        #[expect(clippy::cast_precision_loss, reason = "a sum is read as a rate")]
        let sum = snapshot.sum as f64 * unit;
        self.line("_bucket", labels, Some("+Inf"), Value::Whole(count));
        self.line("_sum", labels, None, Value::Number(sum));
        self.line("_count", labels, None, Value::Whole(count))
    }

    fn line(&mut self, suffix: &str, labels: &[(&str, &str)], bound: Option<&str>, value: Value) -> &mut Self {
        match &mut self.target {
            Some(Target::Text(text)) => {
                write_series(text, self.name, suffix, labels.iter().copied(), bound);
                let _ = writeln!(text, " {value}");
            }
            Some(Target::Samples(samples)) => samples.add(self.name, suffix, labels, bound, value.as_number()),
            None => {}
        }
        self
    }
}

impl Value {
    #[expect(clippy::cast_precision_loss, reason = "Prometheus itself holds every value as a double")]
    fn as_number(self) -> f64 {
        match self {
            Value::Whole(value) => value as f64,
            Value::Number(value) => value,
        }
    }
}

impl Display for Value {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> std::fmt::Result {
        match self {
            Value::Whole(value) => write!(formatter, "{value}"),
            Value::Number(value) if value.is_infinite() => {
                write!(formatter, "{}Inf", if *value > 0.0 { '+' } else { '-' })
            }
            Value::Number(value) => write!(formatter, "{value}"),
        }
    }
}

/// Writes the name of a series: the family's name, the part of a histogram, the labels, and the bound of a bucket.
pub(super) fn write_series<'l>(
    text: &mut String,
    name: &str,
    suffix: &str,
    labels: impl Iterator<Item = (&'l str, &'l str)>,
    bound: Option<&'l str>,
) {
    text.push_str(name);
    text.push_str(suffix);
    let mut opening = '{';
    for (label, value) in labels.chain(bound.map(|bound| ("le", bound))) {
        let _ = write!(text, "{opening}{label}=\"");
        for character in value.chars() {
            match character {
                '\\' => text.push_str("\\\\"),
                '"' => text.push_str("\\\""),
                '\n' => text.push_str("\\n"),
                other => text.push(other),
            }
        }
        text.push('"');
        opening = ',';
    }
    if opening == ',' {
        text.push('}');
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Histogram;

    #[test]
    fn a_page_reads_as_the_format_says() {
        let histogram = Histogram::times();
        histogram.record_owned(10_000);
        histogram.record_owned(2_000_000);
        let mut page = Page::new();
        page.family("klad_a_total", Kind::Counter, "Events.").whole(&[("op", "get"), ("word", "a\"b")], 1 << 60);
        page.gauge("klad_b", "A half.", 0.5);
        page.gauge("klad_d", "No end.", f64::INFINITY);
        page.family("klad_c_seconds", Kind::Histogram, "Times.").histogram(&[], &histogram.snapshot(), SECONDS_OF_NS);
        let text = page.finish();
        for line in [
            "# HELP klad_a_total Events.",
            "# TYPE klad_a_total counter",
            r#"klad_a_total{op="get",word="a\"b"} 1152921504606846976"#,
            "klad_b 0.5",
            "klad_d +Inf",
            r#"klad_c_seconds_bucket{le="0.00001"} 1"#,
            r#"klad_c_seconds_bucket{le="0.001"} 1"#,
            r#"klad_c_seconds_bucket{le="0.0025"} 2"#,
            r#"klad_c_seconds_bucket{le="+Inf"} 2"#,
            "klad_c_seconds_count 2",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is missing in:\n{text}");
        }
    }
}
