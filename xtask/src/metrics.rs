//! What klad counts, as its admin address shows it. Called by the chores.

use std::net::SocketAddr;

use anyhow::{Context as _, Result, ensure};

use crate::http::Connection;

/// One look at all metrics.
pub(crate) struct Metrics(String);

impl Metrics {
    /// Asks the admin address.
    pub(crate) fn scrape(admin: SocketAddr) -> Result<Metrics> {
        let mut connection = Connection::open(admin)?;
        let answer = connection.get("/metrics")?;
        answer.expect(200)?;
        Ok(Metrics(String::from_utf8(answer.body.to_vec()).context("the metrics are no text")?))
    }

    /// The sum over all series that begin so: a name alone, or one with its first label, `name{label="value"`.
    pub(crate) fn sum(&self, series: &str) -> Result<f64> {
        let of_series =
            |line: &&str| line.strip_prefix(series).is_some_and(|rest| rest.starts_with(['{', ' ', ',', '}']));
        let mut values = self.0.lines().filter(of_series).filter_map(|line| line.rsplit(' ').next()).peekable();
        ensure!(values.peek().is_some(), "klad has no metric {series}");
        values.map(|value| value.parse::<f64>().with_context(|| format!("{series} is {value}"))).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_are_summed_and_must_be_there() {
        let text = "# HELP a_total b\na_total{state=\"x\",of=\"z\"} 1.5\na_total{state=\"y\"} 2\na_total_more 7\nb 3\n";
        let metrics = Metrics(text.to_owned());
        let of = |series: &str| metrics.sum(series).expect("there").to_string();
        assert_eq!([of("a_total"), of("a_total{state=\"x\""), of("b")], ["3.5", "1.5", "3"]);
        assert!(metrics.sum("c").is_err());
        assert!(metrics.sum("a_total{state=\"w\"").is_err());
    }
}
