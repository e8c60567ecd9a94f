//! Objectives such as `p99<5ms,refused<0.1%`.
//!
//! ```text
//!     objectives = objective *( "," objective )
//!     objective  = figure ( "<" / "<=" / ">" / ">=" ) bound
//!     figure     = "p" percent / "mean" / "max"                              response time; bound is a time
//!                / "served" / "not_found" / "refused" / "failed"
//!                / "timed_out" / "unfinished"                                share of requests; bound ends in "%"
//!                / "rate" / "goodput"                                        answers, good answers; bound is a rate
//! ```
//!
//! Called by `args` and `knee` (parse), and by `runner` (judges).

use std::fmt;
use std::str::FromStr;

use hdrhistogram::Histogram;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::recorder::Outcome;
use crate::result::{self, Section, micros, value_at};
use crate::text::time_us;
use crate::units::{Rate, duration, plain_number};

/// All objectives of a run, as given.
#[derive(Clone, Debug, PartialEq)]
pub struct Objectives {
    text: String,
    all: Vec<Objective>,
}

#[derive(Clone, Debug, PartialEq)]
struct Objective {
    text: String,
    figure: Figure,
    comparison: Comparison,
    /// In microseconds, percent, or per second.
    bound: f64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Figure {
    Percentile(f64),
    Mean,
    Max,
    Share(Outcome),
    Rate,
    Goodput,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Comparison {
    Less,
    LessOrEqual,
    More,
    MoreOrEqual,
}

/// The aspect of the server that an objective is about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Concern {
    /// Response times.
    #[default]
    Latency,
    /// The share of requests that were refused.
    Refusals,
    /// Shares of all other outcomes: failed, timed out, unfinished, not found, served.
    Failures,
    /// Answers or good answers per second.
    Throughput,
}

impl Figure {
    fn concern(self) -> Concern {
        match self {
            Figure::Percentile(_) | Figure::Mean | Figure::Max => Concern::Latency,
            Figure::Share(Outcome::Refused) => Concern::Refusals,
            Figure::Share(_) => Concern::Failures,
            Figure::Rate | Figure::Goodput => Concern::Throughput,
        }
    }
}

impl Objectives {
    /// The largest number of answers per second that an objective demands as a minimum; `None` if no objective does.
    #[must_use]
    pub fn answers_wanted(&self) -> Option<f64> {
        let wanted = self.all.iter().filter(|objective| {
            objective.figure.concern() == Concern::Throughput
                && matches!(objective.comparison, Comparison::More | Comparison::MoreOrEqual)
        });
        wanted.map(|objective| objective.bound).reduce(f64::max)
    }
}

impl fmt::Display for Objectives {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.text)
    }
}

/// A parse error at a position of the text.
struct ParseError {
    at: usize,
    why: String,
}

impl FromStr for Objectives {
    type Err = String;

    fn from_str(text: &str) -> Result<Objectives, String> {
        let mut all = Vec::new();
        let mut at = 0;
        for part in text.split(',') {
            let indent = part.len() - part.trim_start().len();
            let objective = parse(part.trim(), at + indent).map_err(|ParseError { at, why }| {
                let column = text[..at.min(text.len())].chars().count();
                format!("{why}\n    {text}\n    {:column$}^", "")
            })?;
            all.push(objective);
            at += part.len() + 1;
        }
        Ok(Objectives { text: text.to_owned(), all })
    }
}

fn parse(text: &str, at: usize) -> Result<Objective, ParseError> {
    let Some(sign) = text.find(['<', '>']) else {
        let why = "an objective is a figure, one of < <= > >=, and a bound, such as p99<5ms".to_owned();
        return Err(ParseError { at: at + text.len(), why });
    };
    let name = text[..sign].trim();
    let figure = parse_figure(name).map_err(|why| ParseError { at, why })?;
    let rest = &text[sign..];
    let (comparison, after) = match rest.as_bytes() {
        [b'<', b'=', ..] => (Comparison::LessOrEqual, 2),
        [b'<', ..] => (Comparison::Less, 1),
        [b'>', b'=', ..] => (Comparison::MoreOrEqual, 2),
        _ => (Comparison::More, 1),
    };
    let bound_text = rest[after..].trim_start();
    let at_bound = at + text.len() - bound_text.len();
    let bound = parse_bound(figure, bound_text).map_err(|why| ParseError { at: at_bound, why })?;
    Ok(Objective { text: text.to_owned(), figure, comparison, bound })
}

fn parse_figure(name: &str) -> Result<Figure, String> {
    if let Some(outcome) = Outcome::ALL.into_iter().find(|outcome| outcome.name() == name) {
        return Ok(Figure::Share(outcome));
    }
    match name {
        "mean" => return Ok(Figure::Mean),
        "max" => return Ok(Figure::Max),
        "rate" => return Ok(Figure::Rate),
        "goodput" => return Ok(Figure::Goodput),
        _ => {}
    }
    let known = "p50, p99.9 and other percentiles, mean, max, served, not_found, refused, failed, timed_out, unfinished, rate, goodput";
    let percent = name.strip_prefix('p').ok_or_else(|| format!("{name:?} is not a figure; the figures are {known}"))?;
    match plain_number(percent) {
        Some(percent) if percent > 0.0 && percent <= 100.0 => Ok(Figure::Percentile(percent)),
        _ => Err(format!("{name:?} is not a percentile above 0 and up to 100")),
    }
}

fn parse_bound(figure: Figure, text: &str) -> Result<f64, String> {
    match figure {
        Figure::Percentile(_) | Figure::Mean | Figure::Max => duration(text)
            .map(|bound| bound.as_secs_f64() * 1e6)
            .map_err(|why| format!("{text:?} is not a time: {why}")),
        Figure::Share(_) => {
            let number = text.strip_suffix('%').ok_or_else(|| format!("{text:?} is not a percentage, such as 0.1%"))?;
            match plain_number(number) {
                Some(share) if share <= 100.0 => Ok(share),
                _ => Err(format!("{text:?} is not a percentage from 0% to 100%")),
            }
        }
        Figure::Rate | Figure::Goodput => text.parse::<Rate>().map(|rate| rate.0),
    }
}

impl Objectives {
    /// Judges the measured part by its section and its response times, which are in nanoseconds.
    #[must_use]
    pub fn judge(&self, section: &Section, response: &Histogram<u64>) -> result::Slo {
        let objectives: Vec<_> = self.all.iter().map(|objective| objective.judge(section, response)).collect();
        let met = objectives.iter().all(|objective| objective.met);
        result::Slo { text: self.text.clone(), met, objectives }
    }
}

impl Objective {
    fn judge(&self, section: &Section, response: &Histogram<u64>) -> result::Objective {
        let measured = self.measured(section, response);
        let met = measured.is_some_and(|measured| match self.comparison {
            Comparison::Less => measured < self.bound,
            Comparison::LessOrEqual => measured <= self.bound,
            Comparison::More => measured > self.bound,
            Comparison::MoreOrEqual => measured >= self.bound,
        });
        let measured = measured.map(|measured| match self.figure {
            Figure::Percentile(_) | Figure::Mean | Figure::Max => time_us(measured),
            Figure::Share(_) => format!("{measured:.3}%"),
            Figure::Rate | Figure::Goodput => format!("{measured:.1}/s"),
        });
        result::Objective { text: self.text.clone(), concern: self.figure.concern(), measured, met }
    }

    /// The measured value in the unit of the bound; `None` without requests.
    #[expect(clippy::cast_precision_loss, reason = "counts of requests")]
    fn measured(&self, section: &Section, response: &Histogram<u64>) -> Option<f64> {
        let timed = |value: f64| (!response.is_empty()).then_some(value);
        match self.figure {
            Figure::Percentile(percent) => timed(micros(value_at(response, percent))),
            Figure::Mean => timed(response.mean() / 1e3),
            Figure::Max => timed(micros(response.max())),
            Figure::Share(outcome) => {
                let count = section.outcomes.get(&outcome).copied().unwrap_or(0);
                (section.scheduled > 0).then(|| count as f64 / section.scheduled as f64 * 100.0)
            }
            Figure::Rate => Some(section.answered_per_s),
            Figure::Goodput => Some(section.goodput_per_s),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(text: &str) -> Vec<bool> {
        let mut response = crate::recorder::histogram();
        for millis in 1..=100 {
            response.record(millis * 1_000_000).expect("in range");
        }
        let mut section =
            Section { scheduled: 1000, answered_per_s: 500.0, goodput_per_s: 400.0, ..Section::default() };
        section.outcomes.insert(Outcome::Refused, 1);
        let slo = text.parse::<Objectives>().expect("valid").judge(&section, &response);
        assert_eq!(slo.met, slo.objectives.iter().all(|objective| objective.met));
        slo.objectives.iter().map(|objective| objective.met).collect()
    }

    #[test]
    fn each_figure_is_compared_with_its_bound() {
        assert_eq!(judged("p99<100ms, p99<98ms,mean<51ms,max>1s"), [true, false, true, false]);
        assert_eq!(judged("refused<0.1%,refused<=0.1%,refused<0.2%,failed<=0%"), [false, true, true, true]);
        assert_eq!(judged("rate>=500/s,goodput>0.5k/s"), [true, false]);
    }

    #[test]
    fn without_measurements_no_objective_is_met() {
        let objectives: Objectives = "p99<1h".parse().expect("valid");
        assert!(!objectives.judge(&Section::default(), &crate::recorder::histogram()).met);
    }

    #[test]
    fn an_error_points_at_its_position() {
        let pointed = |text: &str| {
            let error = text.parse::<Objectives>().expect_err("wrong");
            error.lines().last().expect("a line").find('^').expect("a mark") - 4
        };
        assert_eq!(pointed("p99<5ms,p98"), 11);
        assert_eq!(pointed("p99<5ms, slow<3%"), 9);
        assert_eq!(pointed("p99<5"), 4);
        assert_eq!(pointed("refused<0.1"), 8);
        assert_eq!(pointed("p99<=-5ms"), 5);
        assert_eq!(pointed("p101<5ms"), 0);
        assert_eq!(pointed("failed<nan%"), 7);
    }
}
