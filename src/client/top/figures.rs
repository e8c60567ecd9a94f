//! Figures of a time window: rates, quantiles and current values, from two samples of the server. Called by `views`.
//! `figures.js` of the console computes the same: change both.

use std::collections::VecDeque;

/// The window: ten seconds. The server takes a sample each second, or a little later.
const WINDOW_MS: u64 = 10_200;

/// The name of a series, as in the text of Prometheus.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Series {
    pub(super) name: String,
    labels: Vec<(String, String)>,
}

impl Series {
    /// Parses `name{label="value",...}`. Ignores all text that is not a label.
    pub(super) fn parse(text: &str) -> Series {
        let (name, mut rest) = text.split_once('{').unwrap_or((text, ""));
        let mut labels = Vec::new();
        while let Some((label, after)) = rest.split_once("=\"") {
            let mut value = String::new();
            let mut characters = after.chars();
            while let Some(character) = characters.next().filter(|character| *character != '"') {
                value.extend(if character == '\\' { characters.next() } else { Some(character) });
            }
            labels.push((label.trim_start_matches(',').to_owned(), value));
            rest = characters.as_str();
        }
        Series { name: name.to_owned(), labels }
    }

    /// The value of a label; empty if there is none.
    pub(super) fn label(&self, label: &str) -> &str {
        self.labels.iter().find(|(own, _)| own == label).map_or("", |(_, value)| value)
    }
}

/// One sample: its times, and a value for each series, `None` if it is unknown.
#[derive(Clone, Debug)]
pub(super) struct Sample {
    pub(super) unix_ms: u64,
    /// The time since the start of the server, which only grows.
    pub(super) uptime_ms: u64,
    pub(super) values: Vec<Option<f64>>,
}

/// A quantile of a histogram.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Quantile {
    At(f64),
    /// It is in the last bucket, whose lower bound this is.
    Above(f64),
}

/// The latest samples.
#[derive(Clone, Debug, Default)]
pub(super) struct Figures {
    /// When the server process that sent the samples was started.
    started_ms: Option<u64>,
    series: Vec<Series>,
    samples: VecDeque<Sample>,
}

impl Figures {
    /// Sets the names of the series. If the server has started again, its counters have restarted, so the old samples
    /// are dropped.
    pub(super) fn set_series(&mut self, started_ms: Option<u64>, series: Vec<Series>) {
        if started_ms != self.started_ms {
            self.samples.clear();
        }
        (self.started_ms, self.series) = (started_ms, series);
    }

    pub(super) fn push(&mut self, sample: Sample) {
        if self.samples.back().is_some_and(|last| last.uptime_ms >= sample.uptime_ms) {
            // On a new connection, the server sends the samples that it has kept once more.
            return;
        }
        self.samples.retain(|one| one.uptime_ms + WINDOW_MS >= sample.uptime_ms);
        self.samples.push_back(sample);
    }

    /// The time of the latest sample.
    pub(super) fn unix_ms(&self) -> Option<u64> {
        self.samples.back().map(|sample| sample.unix_ms)
    }

    /// Whether there are rates: they need two samples.
    pub(super) fn has_rates(&self) -> bool {
        self.samples.len() > 1
    }

    /// The length of the window, seconds.
    pub(super) fn seconds(&self) -> f64 {
        let (Some(first), Some(last)) = (self.samples.front(), self.samples.back()) else { return 0.0 };
        std::time::Duration::from_millis(last.uptime_ms - first.uptime_ms).as_secs_f64()
    }

    /// The values that the label has in the series of this name, in the order of the server.
    pub(super) fn words(&self, name: &str, label: &str) -> Vec<String> {
        let mut words: Vec<String> = Vec::new();
        for series in self.series.iter().filter(|series| series.name == name) {
            let word = series.label(label);
            if !words.iter().any(|known| known == word) {
                words.push(word.to_owned());
            }
        }
        words
    }

    /// The sum of the current values of the series of this name that `chosen` accepts. `None`: there is no such value.
    pub(super) fn value(&self, name: &str, chosen: impl Fn(&Series) -> bool) -> Option<f64> {
        self.sum(name, chosen, |position| *self.samples.back()?.values.get(position)?)
    }

    /// The increase per second of the counters of this name that `chosen` accepts. `None` if it is unknown.
    pub(super) fn rate(&self, name: &str, chosen: impl Fn(&Series) -> bool) -> Option<f64> {
        let (grown, seconds) = (self.growth(name, chosen)?, self.seconds());
        (seconds > 0.0).then(|| grown / seconds)
    }

    /// The value below which the fraction `quantile` of the window's events lies, as Prometheus estimates it: linear
    /// within its bucket. `None`: there was no event.
    pub(super) fn quantile(&self, family: &str, quantile: f64, chosen: impl Fn(&Series) -> bool) -> Option<Quantile> {
        let name = format!("{family}_bucket");
        let mut counts: Vec<(f64, f64)> = Vec::new();
        for bound in self.words(&name, "le") {
            let count = self.growth(&name, |series| series.label("le") == bound && chosen(series));
            counts.extend(count.map(|count| (bound.parse().unwrap_or(f64::INFINITY), count)));
        }
        let wanted = counts.last().filter(|(_, all)| *all > 0.0)?.1 * quantile;
        let (mut lower, mut below) = (0.0, 0.0);
        for (upper, count) in counts {
            if upper == f64::INFINITY {
                break;
            }
            if count > below && wanted <= count {
                return Some(Quantile::At(lower + (upper - lower) * (wanted - below) / (count - below)));
            }
            (lower, below) = (upper, below.max(count));
        }
        Some(Quantile::Above(lower))
    }

    /// The increase over the window of the counters of this name that `chosen` accepts.
    fn growth(&self, name: &str, chosen: impl Fn(&Series) -> bool) -> Option<f64> {
        let [first, last] = [self.samples.front()?, self.samples.back()?];
        let of = |sample: &Sample| self.sum(name, &chosen, |position| *sample.values.get(position)?);
        Some(of(last)? - of(first)?).filter(|grown| *grown >= 0.0)
    }

    fn sum(&self, name: &str, chosen: impl Fn(&Series) -> bool, value: impl Fn(usize) -> Option<f64>) -> Option<f64> {
        let of_name = self.series.iter().enumerate().filter(|(_, series)| series.name == name && chosen(series));
        of_name.filter_map(|(position, _)| value(position)).reduce(|sum, value| sum + value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_series_is_parsed_with_its_escapes() {
        let series = Series::parse(r#"klad_x_bucket{op="a\"b\\,c",le="0.1"}"#);
        assert_eq!(
            (series.name.as_str(), series.label("op"), series.label("le")),
            ("klad_x_bucket", r#"a"b\,c"#, "0.1")
        );
        assert_eq!(Series::parse("klad_y").label("op"), "");
        assert!(Series::parse("klad_y{op=\"").labels.len() <= 1, "a name that is cut");
    }

    #[test]
    fn rates_and_quantiles_are_of_the_window() {
        let mut figures = Figures::default();
        let names =
            ["a{op=\"get\"}", "a{op=\"put\"}", "b_bucket{le=\"0.1\"}", "b_bucket{le=\"1\"}", "b_bucket{le=\"+Inf\"}"];
        figures.set_series(Some(1), names.map(Series::parse).into());
        // The clock is set back between the samples.
        let sample = |uptime_ms, values: [f64; 5]| Sample {
            unix_ms: 9_000 - uptime_ms,
            uptime_ms,
            values: values.map(Some).into(),
        };
        figures.push(sample(1_000, [10.0, 5.0, 7.0, 7.0, 7.0]));
        assert_eq!((figures.rate("a", |_| true), figures.has_rates()), (None, false));
        figures.push(sample(3_000, [30.0, 6.0, 7.0, 106.0, 107.0]));
        figures.push(sample(2_000, [0.0; 5]));
        assert_eq!(figures.rate("a", |series| series.label("op") == "get"), Some(10.0));
        assert_eq!(figures.rate("a", |_| true), Some(10.5));
        assert_eq!((figures.value("a", |_| true), figures.value("c", |_| true)), (Some(36.0), None));
        assert_eq!(figures.quantile("b", 0.495, |_| true), Some(Quantile::At(0.55)), "half of the way from 0.1 to 1");
        assert_eq!(figures.quantile("b", 0.999, |_| true), Some(Quantile::Above(1.0)), "in the last bucket");
        assert_eq!(figures.words("a", "op"), ["get", "put"]);
        figures.set_series(Some(1), names.map(Series::parse).into());
        assert!(figures.has_rates(), "another stream of the same process");
        figures.set_series(Some(2), names.map(Series::parse).into());
        figures.push(sample(500, [1.0; 5]));
        assert_eq!((figures.rate("a", |_| true), figures.has_rates()), (None, false), "another process");
    }
}
