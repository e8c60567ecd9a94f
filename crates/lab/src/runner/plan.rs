//! What is run of a stage, at which rates. Called by `runner`.

use std::time::Duration;

use anyhow::ensure;

use crate::load::Load;
use crate::runner::{DURATION_MIN, Experiment};
use crate::scenario::{BELOW_SUFFIX, Stage, Variant};
use crate::seen::wrong_checks;
use klad_bench::interrupt;

/// A capacity is the best of so many closed loads, each of a server of its own: what others take of the machine meanwhile makes it look smaller, never larger.
const CAPACITY_LOADS: u32 = 3;

/// Together they are no longer than this.
const CAPACITY_MAX: Duration = Duration::from_secs(12);

/// Of the capacity, where the rate of a stage is beyond it.
const BELOW_CAPACITY: f64 = 0.7;

/// What a variant can do.
#[derive(Clone, Debug)]
pub(super) struct Capacity {
    /// Good answers per second of a closed load, at its best.
    pub(super) per_s: f64,
    /// The variant.
    pub(super) variant: String,
}

/// A stage as it is run.
#[derive(Debug)]
pub(super) struct Planned {
    /// As the scenario has it.
    pub(super) stage: Stage,
    /// Its name, or that of what is run beside it.
    pub(super) name: String,
    /// Requests per second; `None`: a closed load.
    pub(super) rate_per_s: Option<f64>,
    /// Where it was measured.
    pub(super) capacity: Option<Capacity>,
    /// Of that, where the rate follows from it.
    pub(super) share_of_capacity: Option<f64>,
}

impl Experiment {
    /// The stage, and what is run beside it, by what its variants can do.
    pub(super) fn plan(&mut self, stage: &Stage) -> Vec<Planned> {
        let planned = |name: &str, rate_per_s, capacity: Option<&Capacity>, share_of_capacity| Planned {
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
            // Without a capacity there is no rate.
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

    /// Of the first variant that has one: what fails is noted. The same of all stages with the same requests.
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
                    self.note.say(&format!("{}: {} can do {per_s:.0}/s in a closed load", stage.name, variant.name));
                    let capacity = Capacity { per_s, variant: variant.name.clone() };
                    self.capacities.insert(depends_on, capacity.clone());
                    return Some(capacity);
                }
                // That is said once, of all.
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
        let (mut best, mut doubts): (f64, Vec<String>) = (0.0, Vec::new());
        for number in 1..=CAPACITY_LOADS {
            let name = format!("{}/capacity-{}-{number}", stage.name, variant.name);
            // A server of its own, as each run has: the second load of one finds its caches warm.
            let run = self.with(stage, variant, &name, |experiment, served| {
                let load = Load { duration, ..experiment.load(stage, None) };
                load.run(served, &experiment.out.join(format!("runs/{name}.json")), &experiment.watch)
            })?;
            if run.measured.goodput_per_s > best {
                best = run.measured.goodput_per_s;
                doubts = wrong_checks(&run).into_iter().map(str::to_owned).collect();
            }
        }
        ensure!(best > 0.0, "nothing was answered");
        if !doubts.is_empty() {
            self.result.remarks.push(format!(
                "The capacity of {} in {}, {best:.0}/s, may be larger: the load tester did not pass {}.",
                variant.name,
                stage.name,
                doubts.join(", ")
            ));
        }
        Ok(best)
    }
}
