//! The rates of a stage, and the stage that is added below the capacity. Called by `runner`.

use std::time::Duration;

use anyhow::ensure;

use crate::load::Load;
use crate::runner::{DURATION_MIN, Experiment};
use crate::scenario::{BELOW_SUFFIX, Stage, Variant};
use crate::variant_runs::generator_faults;
use klad_bench::interrupt;

/// The number of closed loads, each on a server of its own, of which the best is the capacity: other load on the
/// machine makes a capacity look smaller, never larger.
const CAPACITY_LOADS: u32 = 3;

/// The longest time for the measured parts of all [`CAPACITY_LOADS`] together. Each lasts at least [`DURATION_MIN`].
const CAPACITY_MAX: Duration = Duration::from_secs(12);

/// The share of the capacity that an added stage offers.
const BELOW_CAPACITY: f64 = 0.7;

/// The capacity of a variant.
#[derive(Clone, Debug)]
pub(super) struct Capacity {
    /// Good answers per second of the best closed load.
    pub(super) per_s: f64,
    /// The variant.
    pub(super) variant: String,
}

/// How a stage is run.
#[derive(Debug)]
pub(super) struct StagePlan {
    /// The stage of the scenario.
    pub(super) stage: Stage,
    /// Its name; that of an added stage ends in `-at-70`.
    pub(super) name: String,
    /// Requests per second; `None` for a closed load.
    pub(super) rate_per_s: Option<f64>,
    /// The capacity, where it was measured.
    pub(super) capacity: Option<Capacity>,
    /// The rate as a share of the capacity, where the rate follows from it.
    pub(super) share_of_capacity: Option<f64>,
}

impl Experiment {
    /// Returns how the stage is run. If its rate is beyond the capacity and the scenario allows it, also returns the
    /// stage that is added below the capacity. Empty if the rate follows from a capacity that could not be measured.
    pub(super) fn plan(&mut self, stage: &Stage) -> Vec<StagePlan> {
        let planned = |name: &str, rate_per_s, capacity: Option<&Capacity>, share_of_capacity| StagePlan {
            stage: stage.clone(),
            name: name.to_owned(),
            rate_per_s,
            capacity: capacity.cloned(),
            share_of_capacity,
        };
        if stage.rate.is_none() && stage.of_capacity.is_none() {
            return vec![planned(&stage.name, None, None, None)];
        }
        let capacity = self.capacity(stage);
        if let Some(share) = stage.of_capacity {
            let Some(capacity) = &capacity else {
                self.steps.of -= self.steps_of(stage);
                return Vec::new();
            };
            return vec![planned(&stage.name, Some(capacity.per_s * share), Some(capacity), Some(share))];
        }
        let mut all = vec![planned(&stage.name, stage.rate, capacity.as_ref(), None)];
        if let (Some(rate), Some(capacity)) = (stage.rate, &capacity)
            && rate > capacity.per_s
            && stage.also_below_capacity
        {
            self.steps.of += self.steps_of(stage);
            let name = format!("{}{BELOW_SUFFIX}", stage.name);
            let rate = Some(capacity.per_s * BELOW_CAPACITY);
            all.push(planned(&name, rate, Some(capacity), Some(BELOW_CAPACITY)));
        }
        all
    }

    /// Returns the capacity of the stage's first variant that can be loaded; failures are noted. Stages with the same
    /// requests, data, connections and variants share it.
    fn capacity(&mut self, stage: &Stage) -> Option<Capacity> {
        let Stage { options, data, connections, connections_max, .. } = stage;
        let variants: Vec<Variant> = self.result.scenario.variants_of(stage).cloned().collect();
        let names: Vec<&str> = variants.iter().map(|variant| variant.name.as_str()).collect();
        let depends_on = format!("{options:?} {data:?} {connections} {connections_max:?} {names:?}");
        if let Some(known) = self.capacities.get(&depends_on) {
            return Some(known.clone());
        }
        for variant in &variants {
            match self.capacity_of(stage, variant) {
                Ok(per_s) => {
                    self.note.say(&format!("{}: the capacity of {} is {per_s:.0}/s", stage.name, variant.name));
                    let capacity = Capacity { per_s, variant: variant.name.clone() };
                    self.capacities.insert(depends_on, capacity.clone());
                    return Some(capacity);
                }
                // The experiment notes the interruption once.
                Err(_) if interrupt::asked() => return None,
                Err(why) => self.fail(&stage.name, &variant.name, "capacity", &format!("{why:#}")),
            }
        }
        None
    }

    fn capacity_of(&mut self, stage: &Stage, variant: &Variant) -> anyhow::Result<f64> {
        let duration =
            (self.scaled(stage.duration.0, DURATION_MIN).min(CAPACITY_MAX) / CAPACITY_LOADS).max(DURATION_MIN);
        std::fs::create_dir_all(self.out.join("runs").join(&stage.name))?;
        let (mut best, mut faults): (f64, Vec<String>) = (0.0, Vec::new());
        for number in 1..=CAPACITY_LOADS {
            let name = format!("{}/capacity-{}-{number}", stage.name, variant.name);
            // A new server for each load, as for each run: a second load would find warm caches.
            let run = self.with_server(stage, variant, &name, |experiment, server| {
                let load = Load { duration, ..experiment.load(stage, None) };
                load.run(server, &experiment.out.join(format!("runs/{name}.json")), &experiment.watch)
            })?;
            if run.measured.goodput_per_s > best {
                best = run.measured.goodput_per_s;
                faults = generator_faults(&run).into_iter().map(str::to_owned).collect();
            }
        }
        ensure!(best > 0.0, "nothing was answered");
        if !faults.is_empty() {
            self.result.remarks.push(format!(
                "The capacity of {} in {} may be larger than {best:.0}/s: the load tester failed its check {}.",
                variant.name,
                stage.name,
                faults.join(", ")
            ));
        }
        Ok(best)
    }
}
