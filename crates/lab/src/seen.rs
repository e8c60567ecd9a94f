//! What of a variant's runs the figures are made from. Called by `conclusion` and `report`, which must not differ in it.
//!
//! A run that fails a check of the generator on itself is left out as long as another is there. One that fails `rate` alone
//! stays: all connections were busy, which is what an overloaded server does; requests that could not be sent are in its
//! response times at their age.

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::result::{LabRun, StageResult, VariantResult};
use klad_bench::compare::figures::{Figure, Observed};
use klad_bench::compare::sides::{Run, Side};
use klad_bench::recorder::{Operation, Outcome, histogram};
use klad_bench::result::{Distribution, RunResult, Section};

/// A tick of the CPU time in /proc, microseconds.
const TICK_US: f64 = 10_000.0;

/// The check that a server can fail.
const RATE: &str = "rate";

/// How far figures can be believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trust {
    /// The runs are valid.
    Valid,
    /// Some of their requests could not be sent, because all connections were busy.
    Overloaded,
    /// No run is valid; figures are those of all.
    NotValid,
    /// There is no run.
    NotMeasured,
}

/// A variant in a stage.
pub(super) struct Seen<'r> {
    /// What came of it.
    pub(super) variant: &'r VariantResult,
    /// The runs that count, in order.
    pub(super) used: Vec<(&'r LabRun, &'r RunResult)>,
    /// What each of them has observed.
    pub(super) repeats: Vec<Observed>,
    /// All of them together.
    pub(super) all: Observed,
    /// The same, as the judge wants them.
    pub(super) side: Side,
    /// How far they can be believed.
    pub(super) trust: Trust,
    /// Runs that were left out, or whose figures cannot be read, and why.
    pub(super) left_out: Vec<String>,
}

impl<'r> Seen<'r> {
    /// Of each variant of a stage.
    pub(super) fn of_stage(stage: &'r StageResult) -> Vec<Seen<'r>> {
        stage.variants.iter().map(Seen::of).collect()
    }

    pub(super) fn of(variant: &'r VariantResult) -> Seen<'r> {
        let (mut readable, mut left_out) = (Vec::new(), BTreeMap::<String, Vec<usize>>::new());
        for run in &variant.runs {
            let bench = run.bench.as_deref().ok_or_else(|| format!("{} was not read", run.file));
            let observed = bench.and_then(|bench| {
                let observed = Observed::of_section(&bench.measured).map_err(|error| format!("{error:#}"))?;
                Ok((bench, observed))
            });
            match observed {
                Ok((bench, observed)) => readable.push((run, bench, observed)),
                Err(why) => left_out.entry(why).or_default().push(run.repeat),
            }
        }
        let believable = readable.iter().any(|(_, bench, _)| wrong_checks(bench).is_empty());
        let mut seen = Seen {
            variant,
            used: Vec::new(),
            repeats: Vec::new(),
            all: Observed::nothing(),
            side: Side { runs: Vec::new() },
            trust: if readable.is_empty() { Trust::NotMeasured } else { Trust::NotValid },
            left_out: Vec::new(),
        };
        for (run, bench, observed) in readable {
            let wrong = wrong_checks(bench);
            if believable && !wrong.is_empty() {
                left_out.entry(format!("not valid ({})", wrong.join(", "))).or_default().push(run.repeat);
                continue;
            }
            seen.all.add(&observed);
            seen.repeats.push(observed);
            seen.used.push((run, bench));
            seen.side.runs.push(Run { path: PathBuf::from(&run.file), result: bench.clone() });
        }
        seen.left_out = left_out.into_iter().map(|(why, runs)| told(&variant.name, &runs, &why)).collect();
        if believable {
            let all_sent = seen.used.iter().all(|(_, bench)| bench.valid);
            seen.trust = if all_sent { Trust::Valid } else { Trust::Overloaded };
        }
        seen
    }

    pub(super) fn name(&self) -> &'r str {
        &self.variant.name
    }

    /// Why nothing can be judged by its runs.
    pub(super) fn lacks(&self) -> Option<String> {
        let name = self.name();
        match (self.trust, self.used.len()) {
            (Trust::NotMeasured, _) => Some(format!("{name} has no run")),
            (Trust::NotValid, _) => Some(format!("no run of {name} is valid")),
            (_, 1) => Some(format!("{name} has one run that counts, and noise is told by two at least")),
            _ => None,
        }
    }

    /// A figure of all its runs together.
    pub(super) fn figure(&self, figure: Figure) -> Option<f64> {
        if self.used.is_empty() { None } else { figure.value(&self.all) }
    }

    /// A figure of each run.
    pub(super) fn each(&self, figure: Figure) -> Vec<f64> {
        self.repeats.iter().filter_map(|repeat| figure.value(repeat)).collect()
    }

    /// CPU time of the server by served requests, of each run that has it, microseconds.
    pub(super) fn cpu(&self) -> Vec<f64> {
        self.used.iter().filter_map(|(run, _)| run.server_cpu_us_per_served).collect()
    }

    /// How exactly that is known, as a part of it: the kernel counts CPU time in ticks.
    #[expect(clippy::cast_precision_loss, reason = "counts of requests")]
    pub(super) fn cpu_resolution(&self) -> f64 {
        let used =
            |(run, bench): &(&LabRun, &RunResult)| Some(run.server_cpu_us_per_served? * served(&bench.measured) as f64);
        let used = self.used.iter().filter_map(used);
        used.map(|used| TICK_US / used.max(TICK_US)).fold(0.0, f64::max)
    }

    /// How late the latest in a thousand of its requests were sent, in the worst of its runs, microseconds.
    pub(super) fn send_lag(&self) -> Option<f64> {
        let lags = self.used.iter().filter_map(|(_, bench)| Some(bench.measured.send_lag.at(99.9)?.value_us));
        lags.reduce(f64::max)
    }

    /// Requests of some outcomes.
    pub(super) fn count(&self, outcomes: &[Outcome]) -> u64 {
        let of = |bench: &RunResult| {
            let counts = outcomes.iter().filter_map(|outcome| bench.measured.outcomes.get(outcome));
            counts.sum::<u64>()
        };
        self.used.iter().map(|(_, bench)| of(bench)).sum()
    }

    /// The response times of each operation, of all runs together, without refusals and failures.
    pub(super) fn operations(&self) -> BTreeMap<Operation, Distribution> {
        let mut all = BTreeMap::new();
        for cell in self.used.iter().flat_map(|(_, bench)| &bench.measured.cells) {
            let counts = !matches!(cell.outcome, Outcome::Refused | Outcome::Failed);
            // One that cannot be read is left out.
            if let Some(response) = cell.response.to_histogram().ok().filter(|response| counts && !response.is_empty())
            {
                let _ = all.entry(cell.operation).or_insert_with(histogram).add(response);
            }
        }
        all.into_iter().map(|(operation, response)| (operation, Distribution::of(&response))).collect()
    }

    /// p99.9 of each measured interval of all runs, microseconds; infinite where nothing ended in one.
    pub(super) fn interval_p999(&self) -> Vec<f64> {
        let intervals = self.used.iter().flat_map(|(_, bench)| &bench.intervals).filter(|interval| !interval.warm_up);
        intervals.map(|interval| interval.response.as_ref().map_or(f64::INFINITY, |found| found.p999_us)).collect()
    }

    /// Mean over the runs of what each has.
    pub(super) fn mean(&self, of: impl Fn(&RunResult) -> f64) -> Option<f64> {
        mean(&self.used.iter().map(|(_, bench)| of(bench)).collect::<Vec<_>>())
    }

    /// The run in the middle by its p99: neither the best nor the worst is what a variant looks like.
    pub(super) fn middle(&self) -> Option<(&'r LabRun, &'r RunResult)> {
        let p99 = |index: &usize| Figure::Percentile(99.0).value(&self.repeats[*index]).unwrap_or(0.0);
        let mut order: Vec<usize> = (0..self.used.len()).collect();
        order.sort_by(|one, other| p99(one).total_cmp(&p99(other)));
        order.get(order.len().saturating_sub(1) / 2).map(|index| self.used[*index])
    }
}

/// Runs that were left out for one reason.
fn told(variant: &str, runs: &[usize], why: &str) -> String {
    let word = if runs.len() == 1 { "run" } else { "runs" };
    let numbers: Vec<_> = runs.iter().map(ToString::to_string).collect();
    format!("{word} {} of {variant}: {why}", numbers.join(", "))
}

/// Checks that failed and that say something of the generator.
pub(super) fn wrong_checks(bench: &RunResult) -> Vec<&str> {
    let failed = bench.checks.iter().filter(|check| !check.passed).map(|check| check.name.as_str());
    let wrong: Vec<_> = failed.filter(|name| *name != RATE).collect();
    let unnamed = !bench.valid && bench.checks.iter().all(|check| check.passed);
    if unnamed { vec!["for no reason that is told"] } else { wrong }
}

/// Requests that were served: a 404 is an answer like another.
pub(super) fn served(section: &Section) -> u64 {
    let counts = [Outcome::Served, Outcome::NotFound].into_iter().filter_map(|outcome| section.outcomes.get(&outcome));
    counts.sum()
}

/// `None` of nothing.
#[expect(clippy::cast_precision_loss, reason = "a handful of runs")]
pub(super) fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Load, variant};
    use klad_bench::result::Check;

    fn fail(bench: Option<&mut Box<RunResult>>, name: &str) {
        let bench = bench.expect("made up with one");
        bench.valid = false;
        bench.checks = vec![Check { name: name.to_owned(), passed: false, detail: "why".to_owned() }];
    }

    #[test]
    fn runs_of_a_late_generator_are_left_out_as_long_as_there_are_others() {
        let mut made = variant("a", &Load::default(), 3);
        assert_eq!(Seen::of(&made).trust, Trust::Valid);
        fail(made.runs[1].bench.as_mut(), "send_lag");
        let seen = Seen::of(&made);
        assert_eq!((seen.used.len(), seen.trust, seen.lacks()), (2, Trust::Valid, None));
        assert_eq!(seen.left_out, ["run 2 of a: not valid (send_lag)"]);
        fail(made.runs[0].bench.as_mut(), "send_lag");
        assert_eq!(Seen::of(&made).left_out, ["runs 1, 2 of a: not valid (send_lag)"]);
        for run in [0, 2] {
            fail(made.runs[run].bench.as_mut(), "send_lag");
        }
        let seen = Seen::of(&made);
        assert_eq!((seen.used.len(), seen.trust), (3, Trust::NotValid));
        assert!(seen.lacks().is_some_and(|why| why.contains("no run of a is valid")));
    }

    #[test]
    fn runs_of_a_server_that_was_too_busy_stay() {
        let mut made = variant("a", &Load::default(), 3);
        for run in &mut made.runs {
            fail(run.bench.as_mut(), RATE);
        }
        let seen = Seen::of(&made);
        assert_eq!((seen.used.len(), seen.trust, seen.lacks()), (3, Trust::Overloaded, None));
    }

    #[test]
    fn what_cannot_be_read_is_said() {
        let mut made = variant("a", &Load::default(), 2);
        made.runs[0].bench = None;
        made.runs[1].bench.as_mut().expect("there").measured.response.histogram = Some("!".to_owned());
        let seen = Seen::of(&made);
        assert_eq!((seen.used.len(), seen.left_out.len(), seen.trust), (0, 2, Trust::NotMeasured));
        assert!(seen.middle().is_none() && seen.figure(Figure::Goodput).is_none());
    }
}
