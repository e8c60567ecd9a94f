//! The Prometheus text format, version 0.0.4. Prometheus's libraries keep counters behind locks, and klad has its own
//! counters, so klad writes the lines itself. A test checks them with `promtool check metrics`.
//!
//! ```text
//!   # HELP klad_fsync_seconds Time of one sync of the log.
//!   # TYPE klad_fsync_seconds histogram
//!   klad_fsync_seconds_bucket{le="0.001"} 12
//! ```

use std::fmt::Write as _;

use crate::metrics::Snapshot;

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
#[derive(Debug, Default)]
pub struct Page(String);

/// One family of the page: samples that differ in their labels.
#[derive(Debug)]
pub struct Family<'p> {
    page: &'p mut String,
    name: &'p str,
}

impl Page {
    /// Returns an empty page.
    #[must_use]
    pub fn new() -> Page {
        Page::default()
    }

    /// Writes the description and type of a family. Returns the family, to which the caller adds samples. A page has at
    /// most one family of each name.
    pub fn family<'p>(&'p mut self, name: &'p str, kind: Kind, help: &str) -> Family<'p> {
        debug_assert!(!help.contains(['\n', '\\']) && name.starts_with("klad_") || name.starts_with("process_"));
        let word = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        };
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {word}");
        Family { page: &mut self.0, name }
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
        self.0
    }
}

impl Family<'_> {
    /// Writes one sample of a counter or gauge. Returns the family, for the next sample.
    pub fn sample(&mut self, labels: &[(&str, &str)], value: f64) -> &mut Self {
        if value.is_infinite() {
            self.line("", labels, None, format_args!("{}Inf", if value > 0.0 { '+' } else { '-' }));
        } else {
            self.line("", labels, None, format_args!("{value}"));
        }
        self
    }

    /// Writes one sample that is a whole number, with all its digits: `sample` would round one above 2^53.
    pub fn whole(&mut self, labels: &[(&str, &str)], value: u64) -> &mut Self {
        self.line("", labels, None, format_args!("{value}"));
        self
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
            self.line("_bucket", labels, Some(&bound.to_string()), format_args!("{cumulative}"));
        }
        let count = snapshot.count();
        #[expect(clippy::cast_precision_loss, reason = "a sum is read as a rate")]
        let sum = snapshot.sum as f64 * unit;
        self.line("_bucket", labels, Some("+Inf"), format_args!("{count}"));
        self.line("_sum", labels, None, format_args!("{sum}"));
        self.line("_count", labels, None, format_args!("{count}"));
        self
    }

    fn line(&mut self, suffix: &str, labels: &[(&str, &str)], bound: Option<&str>, value: std::fmt::Arguments<'_>) {
        let page = &mut *self.page;
        let _ = write!(page, "{}{suffix}", self.name);
        let mut opening = '{';
        for (name, value) in labels.iter().copied().chain(bound.map(|bound| ("le", bound))) {
            let _ = write!(page, "{opening}{name}=\"{}\"", escaped(value));
            opening = ',';
        }
        let _ = writeln!(page, "{} {value}", if opening == ',' { "}" } else { "" });
    }
}

fn escaped(value: &str) -> String {
    value.replace('\\', r"\\").replace('"', "\\\"").replace('\n', r"\n")
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
