//! The values of `/metrics`.

use super::Server;

/// The samples of one scrape.
pub(crate) struct Metrics(Vec<Sample>);

struct Sample {
    name: String,
    labels: Vec<(String, String)>,
    value: f64,
}

impl Metrics {
    pub(crate) fn scrape(server: &Server) -> Metrics {
        let answer = server.admin("/metrics");
        assert_eq!(
            (answer.status, answer.header("content-type")),
            (200, Some("text/plain; version=0.0.4; charset=utf-8"))
        );
        let text = answer.text();
        Metrics(text.lines().filter(|line| !line.starts_with('#')).map(parse).collect())
    }

    /// Returns the sum of all samples of this name with these labels; 0 if there is none.
    pub(crate) fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let has = |sample: &Sample, (name, value): &(&str, &str)| {
            sample.labels.iter().any(|(own, its)| own == name && its == value)
        };
        let samples = self.0.iter().filter(|sample| sample.name == name);
        samples.filter(|sample| labels.iter().all(|label| has(sample, label))).map(|sample| sample.value).sum()
    }

    /// Like [`Metrics::sum`], for a counter.
    pub(crate) fn count(&self, name: &str, labels: &[(&str, &str)]) -> u64 {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "counters are whole")]
        let count = self.sum(name, labels) as u64;
        count
    }

    /// Returns the number of requests with this outcome.
    pub(crate) fn requests(&self, op: &str, outcome: &str) -> u64 {
        self.count("klad_http_request_duration_seconds_count", &[("op", op), ("outcome", outcome)])
    }

    /// Returns the seconds that all requests together spent in a phase.
    pub(crate) fn phase(&self, op: &str, phase: &str) -> f64 {
        self.sum("klad_http_request_phase_seconds_sum", &[("op", op), ("phase", phase)])
    }

    /// Returns the number of requests without an answer.
    pub(crate) fn in_flight(&self) -> u64 {
        self.count("klad_http_requests_in_flight", &[])
    }

    /// Returns the number of rejections for this reason.
    pub(crate) fn refused(&self, reason: &str) -> u64 {
        self.count("klad_refused_total", &[("reason", reason)])
    }
}

fn parse(line: &str) -> Sample {
    let (series, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("no value in {line}"));
    let (name, labels) = series.split_once('{').unwrap_or((series, "}"));
    let label = |label: &str| {
        let (name, value) = label.split_once('=').unwrap();
        (name.to_owned(), value.trim_matches('"').to_owned())
    };
    let labels = labels.strip_suffix('}').unwrap();
    let labels = labels.split(',').filter(|label| !label.is_empty()).map(label).collect();
    Sample { name: name.to_owned(), labels, value: value.parse().unwrap() }
}
