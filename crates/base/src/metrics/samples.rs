//! The current values of chosen families as numbers: what the console draws.
//!
//! ```text
//!   the lines of a page                                     with the choice klad_a_total, by op
//!   klad_a_total{op="get",outcome="ok"} 5                   klad_a_total{op="get"} 7
//!   klad_a_total{op="get",outcome="late"} 2
//! ```
//!
//! Lines that differ only in labels that the choice does not keep become one series, with their sum. `text::Page`
//! passes the lines to [`Samples`], so each metric is described only once, for the metrics page and for the console.

use std::collections::{BTreeMap, HashMap};

use crate::metrics::text::write_series;

/// A family whose values are collected.
#[derive(Clone, Debug)]
pub struct Choice {
    /// The name of the family, or of one part of a histogram: `NAME_bucket`, `NAME_sum` or `NAME_count`.
    pub name: String,
    /// The labels to keep. `le` is always kept.
    pub by: Vec<String>,
}

/// The values of the chosen families. To get the current values, call [`Samples::begin`], and let the sources write to
/// a page from [`Page::sampling`](crate::metrics::text::Page::sampling).
#[derive(Debug)]
pub struct Samples {
    choices: Vec<Choice>,
    series_max: usize,
    series: Vec<String>,
    positions: HashMap<String, usize>,
    values: Vec<f64>,
    help: BTreeMap<String, String>,
    left_out: bool,
    /// The series of the current line. This buffer is reused, so that a known series needs no allocation.
    current: String,
}

impl Samples {
    /// Returns an empty set of samples. It keeps at most `series_max` series, because a source may have any number of
    /// series, for example one for each node of a cluster. [`Samples::left_out`] says whether there were more.
    #[must_use]
    pub fn new(choices: Vec<Choice>, series_max: usize) -> Samples {
        let (series, positions, values, help, left_out, current) = Default::default();
        Samples { choices, series_max, series, positions, values, help, left_out, current }
    }

    /// Marks all values as unknown. The known series remain.
    pub fn begin(&mut self) {
        self.values.fill(f64::NAN);
    }

    /// All series that were seen so far, as in the text of a page, in the order of [`Samples::values`]. New series are
    /// added at the end.
    #[must_use]
    pub fn series(&self) -> &[String] {
        &self.series
    }

    /// The values. NaN: the series had no value.
    #[must_use]
    pub fn values(&self) -> &[f64] {
        &self.values
    }

    /// Whether a line was ever left out, because there are too many series. Once true, this stays true, because the
    /// kept series remain.
    #[must_use]
    pub fn left_out(&self) -> bool {
        self.left_out
    }

    /// The description of each chosen family that was seen.
    #[must_use]
    pub fn help(&self) -> &BTreeMap<String, String> {
        &self.help
    }

    /// Begins a family. Returns whether any of its lines is wanted.
    pub(super) fn family(&mut self, name: &str, help: &str) -> bool {
        let wanted = self.choices.iter().any(|choice| {
            let part = choice.name.strip_prefix(name);
            part.is_some_and(|part| ["", "_bucket", "_sum", "_count"].contains(&part))
        });
        if wanted && !self.help.contains_key(name) {
            self.help.insert(name.to_owned(), help.to_owned());
        }
        wanted
    }

    /// Adds the value of a line to its series, if the line is wanted.
    pub(super) fn add(&mut self, name: &str, suffix: &str, labels: &[(&str, &str)], bound: Option<&str>, value: f64) {
        let is_chosen =
            |choice: &&Choice| choice.name.strip_prefix(name).is_some_and(|part| ["", suffix].contains(&part));
        let Some(choice) = self.choices.iter().find(is_chosen) else { return };
        self.current.clear();
        let kept = labels.iter().copied().filter(|(label, _)| choice.by.iter().any(|by| by == label));
        write_series(&mut self.current, name, suffix, kept, bound);
        if let Some(position) = self.positions.get(&self.current) {
            let sum = &mut self.values[*position];
            *sum = if sum.is_nan() { value } else { *sum + value };
        } else if self.series.len() < self.series_max {
            self.positions.insert(self.current.clone(), self.series.len());
            self.series.push(self.current.clone());
            self.values.push(value);
        } else {
            self.left_out = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Histogram;
    use crate::metrics::text::{Kind, Page};

    fn choice(name: &str, by: &[&str]) -> Choice {
        Choice { name: name.to_owned(), by: by.iter().map(|&by| by.to_owned()).collect() }
    }

    fn take(samples: &mut Samples, gets: u64) -> Vec<(String, f64)> {
        let histogram = Histogram::counts();
        histogram.record_owned(2);
        samples.begin();
        let mut page = Page::sampling(samples);
        let mut family = page.family("klad_a_total", Kind::Counter, "Events.");
        family.whole(&[("op", "get"), ("outcome", "ok")], gets).whole(&[("op", "get"), ("outcome", "late")], 2);
        if gets > 5 {
            family.whole(&[("op", "put"), ("outcome", "ok")], 1);
        }
        page.gauge("klad_a", "Not chosen: only the beginning of a chosen name.", 9.0);
        for name in ["klad_b", "klad_c"] {
            page.family(name, Kind::Histogram, "Sizes.").histogram(&[("op", "get")], &histogram.snapshot(), 1.0);
        }
        samples.series().iter().cloned().zip(samples.values().iter().copied()).collect()
    }

    #[test]
    fn values_are_summed_over_labels_that_are_not_kept() {
        let mut samples = Samples::new(
            vec![choice("klad_a_total", &["op"]), choice("klad_b_count", &[]), choice("klad_c", &["op"])],
            100,
        );
        let first = take(&mut samples, 5);
        assert_eq!(first[..2], [("klad_a_total{op=\"get\"}".to_owned(), 7.0), ("klad_b_count".to_owned(), 1.0)]);
        let of_c: Vec<_> = first[2..].iter().filter(|(name, _)| name.starts_with("klad_c")).collect();
        assert_eq!(of_c.len(), 11 + 1 + 2, "all parts of the histogram and nothing else");
        assert_eq!(*of_c[1], ("klad_c_bucket{op=\"get\",le=\"2\"}".to_owned(), 1.0));
        assert_eq!(samples.help()["klad_b"], "Sizes.");
        assert!(!samples.help().contains_key("klad_a"));
        let second = take(&mut samples, 6);
        assert_eq!(second.len(), first.len() + 1);
        assert_eq!(
            (second[0].1, second.last().expect("the new one")),
            (8.0, &("klad_a_total{op=\"put\"}".to_owned(), 1.0))
        );
        assert!(take(&mut samples, 5).last().expect("it remains").1.is_nan(), "a series without a value");
    }

    #[test]
    fn the_number_of_series_is_bounded() {
        let mut samples = Samples::new(vec![choice("klad_a_total", &["op", "outcome"])], 1);
        assert!(!samples.left_out());
        assert_eq!(take(&mut samples, 6), [("klad_a_total{op=\"get\",outcome=\"ok\"}".to_owned(), 6.0)]);
        assert!(samples.left_out());
        samples.begin();
        assert!(samples.left_out(), "the charts of the time before lack series too");
    }
}
