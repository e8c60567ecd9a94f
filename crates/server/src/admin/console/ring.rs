//! The samples of the last 15 minutes. `console` takes one each second; each stream of events reads them.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::ops::Range;
use std::task::Waker;

use klad_base::metrics::Samples;

use crate::limits::{CONSOLE_SAMPLES, CONSOLE_SERIES_MAX};

/// The samples, oldest first. They are numbered 0, 1, 2 and so on since the start of klad.
pub(super) struct Ring {
    /// The latest sample, and the names of all series.
    latest: Samples,
    rows: VecDeque<Row>,
    /// The values of all samples. Sample N has the slot N modulo `CONSOLE_SAMPLES`. The vector is one allocation, whose
    /// pages take memory only when they are first used.
    values: Vec<f64>,
    taken: u64,
    waiting: Vec<Waker>,
    /// When klad started, Unix ms. A different value means that klad was restarted, and that its counters began again.
    started_ms: u64,
}

/// What the ring stores of a sample in addition to its values.
#[derive(Clone, Copy)]
struct Row {
    unix_ms: u64,
    /// The monotonic time since the start of klad. Unlike Unix time, it only grows.
    uptime_ms: u64,
    /// The number of values of this sample.
    known: usize,
}

impl Ring {
    pub(super) fn new(samples: Samples, started_ms: u64) -> Ring {
        let rows = VecDeque::with_capacity(CONSOLE_SAMPLES);
        let values = vec![0.0; CONSOLE_SAMPLES * CONSOLE_SERIES_MAX];
        Ring { latest: samples, rows, values, taken: 0, waiting: Vec::new(), started_ms }
    }

    /// Takes a sample, which `fill` writes, and wakes the streams.
    pub(super) fn take(&mut self, unix_ms: u64, uptime_ms: u64, fill: impl FnOnce(&mut Samples)) {
        self.latest.begin();
        fill(&mut self.latest);
        if self.rows.len() == CONSOLE_SAMPLES {
            self.rows.pop_front();
        }
        let values = self.latest.values();
        self.values[slot(self.taken)][..values.len()].copy_from_slice(values);
        self.rows.push_back(Row { unix_ms, uptime_ms, known: values.len() });
        self.taken += 1;
        self.waiting.drain(..).for_each(Waker::wake);
    }

    /// Wakes `waker` at the next sample.
    pub(super) fn wait(&mut self, waker: &Waker) {
        if !self.waiting.iter().any(|waiting| waiting.will_wake(waker)) {
            self.waiting.push(waker.clone());
        }
    }

    pub(super) fn started_ms(&self) -> u64 {
        self.started_ms
    }

    /// The number of the next sample.
    pub(super) fn taken(&self) -> u64 {
        self.taken
    }

    /// The number of the oldest sample that is kept.
    pub(super) fn oldest(&self) -> u64 {
        self.taken - self.rows.len() as u64
    }

    /// The names of the series, and the descriptions of their families.
    pub(super) fn latest(&self) -> &Samples {
        &self.latest
    }

    /// Appends a sample as JSON: `[unix_ms,uptime_ms,value,...]`, with `null` where the value is unknown.
    ///
    /// # Panics
    /// If the ring does not have the sample.
    pub(super) fn write(&self, json: &mut String, number: u64) {
        let position = usize::try_from(number - self.oldest()).expect("few are kept");
        // Series that appeared after this sample are at the end of the list, so they are written as `null`.
        let Row { unix_ms, uptime_ms, known } = self.rows[position];
        let _ = write!(json, "[{unix_ms},{uptime_ms}");
        for value in &self.values[slot(number)][..known] {
            json.push(',');
            write_value(json, *value);
        }
        for _ in known..self.latest.series().len() {
            json.push_str(",null");
        }
        json.push(']');
    }
}

/// Appends a value as JSON. Almost all values are whole numbers, and `itoa` writes one in a tenth of the time of a
/// float. This matters because a page that opens gets half a million values.
fn write_value(json: &mut String, value: f64) {
    #[expect(clippy::cast_possible_truncation, reason = "the comparison finds out")]
    let whole = value as i64;
    #[expect(clippy::cast_precision_loss, clippy::float_cmp, reason = "only an exact one is written so")]
    if whole as f64 == value {
        json.push_str(itoa::Buffer::new().format(whole));
    } else if value.is_finite() {
        let _ = write!(json, "{value}");
    } else {
        // JSON has no infinity.
        json.push_str("null");
    }
}

/// Returns where the values of a sample are in `values`.
fn slot(number: u64) -> Range<usize> {
    let slot = usize::try_from(number % CONSOLE_SAMPLES as u64).expect("few");
    slot * CONSOLE_SERIES_MAX..(slot + 1) * CONSOLE_SERIES_MAX
}

#[cfg(test)]
mod tests {
    use super::*;
    use klad_base::metrics::Choice;
    use klad_base::metrics::text::{Kind, Page};

    fn take(ring: &mut Ring, second: u64, labels: &[&str]) {
        ring.take(second * 1_000, second, |samples| {
            let mut page = Page::sampling(samples);
            let mut family = page.family("klad_x", Kind::Gauge, "Help.");
            for label in labels {
                family.sample(&[("a", label)], 0.5);
            }
        });
    }

    #[test]
    fn values_are_written_exactly() {
        let text = |value| {
            let mut json = String::new();
            write_value(&mut json, value);
            json
        };
        let values = [0.0, -3.0, 0.00001, 9_007_199_254_740_992.0, 1e300, f64::NAN, f64::INFINITY, f64::NEG_INFINITY];
        for value in values {
            assert_eq!(text(value).parse::<f64>().ok(), Some(value).filter(|value| value.is_finite()), "{value}");
        }
        assert_eq!((text(7.0), text(f64::NAN)), ("7".to_owned(), "null".to_owned()));
    }

    #[test]
    fn the_ring_keeps_the_latest_samples_and_marks_unknown_values() {
        let choices = vec![Choice { name: "klad_x".to_owned(), by: vec!["a".to_owned()] }];
        let mut ring = Ring::new(Samples::new(choices, 10), 0);
        let text = |ring: &Ring, number| {
            let mut json = String::new();
            ring.write(&mut json, number);
            json
        };
        take(&mut ring, 1, &["one"]);
        take(&mut ring, 2, &["two"]);
        assert_eq!((text(&ring, 0), text(&ring, 1)), ("[1000,1,0.5,null]".to_owned(), "[2000,2,null,0.5]".to_owned()));
        for second in 0..CONSOLE_SAMPLES as u64 {
            take(&mut ring, 3 + second, &["one"]);
        }
        assert_eq!((ring.oldest(), ring.taken()), (2, CONSOLE_SAMPLES as u64 + 2));
        assert_eq!(text(&ring, 2), "[3000,3,0.5,null]");
    }
}
