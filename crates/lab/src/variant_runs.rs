//! The runs of a variant that its figures are made from. Called by `conclusion` and `report`, which must use the same
//! runs.
//!
//! A run that fails a check of the load tester on itself is left out, unless all runs do. A run that fails only the
//! check `rate` stays: all connections were busy, as on an overloaded server. Requests that could not be sent count
//! in its response times at their age.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::result::{LabRun, StageResult, VariantResult};
use klad_bench::compare::figures::{Figure, Observed};
use klad_bench::compare::sides::{Run, Side};
use klad_bench::recorder::{Operation, Outcome, histogram};
use klad_bench::result::{Distribution, RunResult, Section};

/// A tick of the CPU time in /proc, microseconds.
const TICK_US: f64 = 10_000.0;

/// The check that fails when the server is too slow.
const RATE: &str = "rate";

/// How far figures can be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Validity {
    /// All runs that the figures are made from passed the load tester's checks on itself.
    Valid,
    /// Some requests could not be sent, because all connections were busy. They count in the response times with their
    /// age.
    Overloaded,
    /// No run is valid. The figures are those of all runs, and must not be trusted.
    NotValid,
    /// There is no run with a result that can be read.
    NotMeasured,
}

/// The runs of a variant in a stage.
pub(super) struct VariantRuns<'r> {
    /// All runs.
    pub(super) result: &'r VariantResult,
    /// The runs that are used, in order.
    pub(super) used: Vec<(&'r LabRun, &'r RunResult)>,
    /// The figures of each used run.
    pub(super) repeats: Vec<Observed>,
    /// The figures of all used runs together.
    pub(super) pooled: Observed,
    /// The used runs, in the form of `bench compare`.
    pub(super) side: Side,
    /// How far the figures can be trusted.
    pub(super) validity: Validity,
    /// Sentences that name the runs that are not used, and why.
    pub(super) left_out: Vec<String>,
}

impl<'r> VariantRuns<'r> {
    /// Selects the runs of each variant of a stage.
    pub(super) fn of_stage(stage: &'r StageResult) -> Vec<VariantRuns<'r>> {
        stage.variants.iter().map(VariantRuns::of).collect()
    }

    pub(super) fn of(result: &'r VariantResult) -> VariantRuns<'r> {
        let (mut readable, mut left_out) = (Vec::new(), BTreeMap::<String, Vec<usize>>::new());
        for run in &result.runs {
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
        let any_valid = readable.iter().any(|(_, bench, _)| generator_faults(bench).is_empty());
        let mut runs = VariantRuns {
            result,
            used: Vec::new(),
            repeats: Vec::new(),
            pooled: Observed::nothing(),
            side: Side { runs: Vec::new() },
            validity: if readable.is_empty() { Validity::NotMeasured } else { Validity::NotValid },
            left_out: Vec::new(),
        };
        for (run, bench, observed) in readable {
            let faults = generator_faults(bench);
            if any_valid && !faults.is_empty() {
                left_out.entry(format!("not valid ({})", faults.join(", "))).or_default().push(run.repeat);
                continue;
            }
            runs.pooled.add(&observed);
            runs.repeats.push(observed);
            runs.used.push((run, bench));
            runs.side.runs.push(Run { path: PathBuf::from(&run.file), result: bench.clone() });
        }
        let sentence = |(why, repeats): (String, Vec<usize>)| left_out_sentence(&result.name, &repeats, &why);
        runs.left_out = left_out.into_iter().map(sentence).collect();
        if any_valid {
            let all_sent = runs.used.iter().all(|(_, bench)| bench.valid);
            runs.validity = if all_sent { Validity::Valid } else { Validity::Overloaded };
        }
        runs
    }

    /// Returns the name of the variant.
    pub(super) fn name(&self) -> &'r str {
        &self.result.name
    }

    /// Returns why the runs of the variant cannot be compared; `None` if they can.
    pub(super) fn why_not_judged(&self) -> Option<String> {
        let name = self.name();
        match (self.validity, self.used.len()) {
            (Validity::NotMeasured, _) => Some(format!("{name} has no run")),
            (Validity::NotValid, _) => {
                let faults: BTreeSet<&str> = self.used.iter().flat_map(|(_, bench)| generator_faults(bench)).collect();
                let faults: Vec<&str> = faults.into_iter().collect();
                Some(format!("no run of {name} is valid ({})", faults.join(", ")))
            }
            (_, 1) => Some(format!("{name} has only one usable run, and the noise is unknown with fewer than two")),
            _ => None,
        }
    }

    /// Returns a figure of all used runs together.
    pub(super) fn figure(&self, figure: Figure) -> Option<f64> {
        if self.used.is_empty() { None } else { figure.value(&self.pooled) }
    }

    /// Returns a figure of each used run.
    pub(super) fn per_run(&self, figure: Figure) -> Vec<f64> {
        self.repeats.iter().filter_map(|repeat| figure.value(repeat)).collect()
    }

    /// Returns the CPU time of the server per served request, for each used run that has it, microseconds.
    pub(super) fn cpu(&self) -> Vec<f64> {
        self.used.iter().filter_map(|(run, _)| run.server_cpu_us_per_served).collect()
    }

    /// Returns one kernel tick as a share of the server's CPU time in a run; the largest share of all used runs. The
    /// kernel counts CPU time in ticks, so this is the resolution of [`Self::cpu`].
    #[expect(clippy::cast_precision_loss, reason = "counts of requests")]
    pub(super) fn cpu_resolution(&self) -> f64 {
        let used =
            |(run, bench): &(&LabRun, &RunResult)| Some(run.server_cpu_us_per_served? * served(&bench.measured) as f64);
        let used = self.used.iter().filter_map(used);
        used.map(|used| TICK_US / used.max(TICK_US)).fold(0.0, f64::max)
    }

    /// Returns p99.9 of the send lag in the worst of the used runs, microseconds. The send lag is the time from the
    /// moment when a request was due and a connection was free to the moment when it was sent.
    pub(super) fn send_lag(&self) -> Option<f64> {
        let lags = self.used.iter().filter_map(|(_, bench)| Some(bench.measured.send_lag.at(99.9)?.value_us));
        lags.reduce(f64::max)
    }

    /// Returns the number of requests with these outcomes, of all used runs together.
    pub(super) fn count(&self, outcomes: &[Outcome]) -> u64 {
        let of = |bench: &RunResult| {
            let counts = outcomes.iter().filter_map(|outcome| bench.measured.outcomes.get(outcome));
            counts.sum::<u64>()
        };
        self.used.iter().map(|(_, bench)| of(bench)).sum()
    }

    /// Returns the response times of each operation, of all used runs together, without refused and failed requests.
    pub(super) fn operations(&self) -> BTreeMap<Operation, Distribution> {
        let mut all = BTreeMap::new();
        for cell in self.used.iter().flat_map(|(_, bench)| &bench.measured.cells) {
            let counts = !matches!(cell.outcome, Outcome::Refused | Outcome::Failed);
            // A histogram that cannot be read is left out.
            if let Some(response) = cell.response.to_histogram().ok().filter(|response| counts && !response.is_empty())
            {
                let _ = all.entry(cell.operation).or_insert_with(histogram).add(response);
            }
        }
        all.into_iter().map(|(operation, response)| (operation, Distribution::of(&response))).collect()
    }

    /// Returns p99.9 of each measured interval of all used runs, microseconds. It is infinite for an interval in
    /// which no request ended, or in which all requests that ended were refused or failed.
    pub(super) fn interval_p999(&self) -> Vec<f64> {
        let intervals = self.used.iter().flat_map(|(_, bench)| &bench.intervals).filter(|interval| !interval.warm_up);
        intervals.map(|interval| interval.response.as_ref().map_or(f64::INFINITY, |found| found.p999_us)).collect()
    }

    /// Returns the mean of a figure over the used runs.
    pub(super) fn mean(&self, of: impl Fn(&RunResult) -> f64) -> Option<f64> {
        mean(&self.used.iter().map(|(_, bench)| of(bench)).collect::<Vec<_>>())
    }

    /// Returns the run with the median p99, which charts show: neither the best nor the worst run is typical.
    pub(super) fn median_run(&self) -> Option<(&'r LabRun, &'r RunResult)> {
        let p99 = |index: &usize| Figure::Percentile(99.0).value(&self.repeats[*index]).unwrap_or(0.0);
        let mut order: Vec<usize> = (0..self.used.len()).collect();
        order.sort_by(|one, other| p99(one).total_cmp(&p99(other)));
        order.get(order.len().saturating_sub(1) / 2).map(|index| self.used[*index])
    }
}

/// Returns a sentence such as `runs 1, 2 of inline: not valid (send_lag)`.
fn left_out_sentence(variant: &str, repeats: &[usize], why: &str) -> String {
    let word = if repeats.len() == 1 { "run" } else { "runs" };
    let numbers: Vec<_> = repeats.iter().map(ToString::to_string).collect();
    format!("{word} {} of {variant}: {why}", numbers.join(", "))
}

/// Returns the names of the failed checks that concern the load tester and not the server.
pub(super) fn generator_faults(bench: &RunResult) -> Vec<&str> {
    let failed = bench.checks.iter().filter(|check| !check.passed).map(|check| check.name.as_str());
    let faults: Vec<_> = failed.filter(|name| *name != RATE).collect();
    let unnamed = !bench.valid && bench.checks.iter().all(|check| check.passed);
    if unnamed { vec!["for an unknown reason"] } else { faults }
}

/// Returns the number of served requests; a 404 is one of them.
pub(super) fn served(section: &Section) -> u64 {
    let counts = [Outcome::Served, Outcome::NotFound].into_iter().filter_map(|outcome| section.outcomes.get(&outcome));
    counts.sum()
}

/// Returns the mean; `None` without values.
#[expect(clippy::cast_precision_loss, reason = "a handful of runs")]
pub(super) fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{FakeServer, variant};
    use klad_bench::result::Check;

    fn fail(bench: Option<&mut Box<RunResult>>, name: &str) {
        let bench = bench.expect("every fake run has one");
        bench.valid = false;
        bench.checks = vec![Check { name: name.to_owned(), passed: false, detail: "why".to_owned() }];
    }

    #[test]
    fn runs_of_a_late_load_tester_are_left_out_unless_all_are_late() {
        let mut result = variant("a", &FakeServer::default(), 3);
        assert_eq!(VariantRuns::of(&result).validity, Validity::Valid);
        fail(result.runs[1].bench.as_mut(), "send_lag");
        let runs = VariantRuns::of(&result);
        assert_eq!((runs.used.len(), runs.validity, runs.why_not_judged()), (2, Validity::Valid, None));
        assert_eq!(runs.left_out, ["run 2 of a: not valid (send_lag)"]);
        fail(result.runs[0].bench.as_mut(), "send_lag");
        assert_eq!(VariantRuns::of(&result).left_out, ["runs 1, 2 of a: not valid (send_lag)"]);
        for run in [0, 2] {
            fail(result.runs[run].bench.as_mut(), "send_lag");
        }
        let runs = VariantRuns::of(&result);
        assert_eq!((runs.used.len(), runs.validity), (3, Validity::NotValid));
        assert!(runs.why_not_judged().is_some_and(|why| why.contains("no run of a is valid")));
    }

    #[test]
    fn runs_of_an_overloaded_server_are_used() {
        let mut result = variant("a", &FakeServer::default(), 3);
        for run in &mut result.runs {
            fail(run.bench.as_mut(), RATE);
        }
        let runs = VariantRuns::of(&result);
        assert_eq!((runs.used.len(), runs.validity, runs.why_not_judged()), (3, Validity::Overloaded, None));
    }

    #[test]
    fn runs_that_cannot_be_read_are_left_out_and_reported() {
        let mut result = variant("a", &FakeServer::default(), 2);
        result.runs[0].bench = None;
        result.runs[1].bench.as_mut().expect("there").measured.response.histogram = Some("!".to_owned());
        let runs = VariantRuns::of(&result);
        assert_eq!((runs.used.len(), runs.left_out.len(), runs.validity), (0, 2, Validity::NotMeasured));
        assert!(runs.median_run().is_none() && runs.figure(Figure::Goodput).is_none());
    }
}
