//! Runs an experiment: what is run in which order, and what becomes of what fails. Called by `mod`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant, UNIX_EPOCH};

use anyhow::{Context as _, anyhow, ensure};

use super::args::RunArgs;
use super::load::{self, Load};
use super::process::{Running, since, split};
use super::result::{CoresUsed, Failed, LabResult, SCHEMA, StageResult, TakenProfile, VariantResult};
use super::scenario::{Data, ProfileKind, Scenario, Stage, Start, Variant};
use super::served::{Served, Settings};
use super::shipped;
use crate::bench::interrupt::{self, Watch};
use crate::bench::machine::{self, CpuTimes};
use crate::bench::progress::Note;
use crate::bench::result::Started;
use crate::bench::runner::Error;
use crate::clock;

/// A stage is no shorter than this, whatever `--scale` says.
const DURATION_MIN: Duration = Duration::from_secs(1);

/// Nor its warm-up, unless it is shorter by itself.
const WARM_UP_MIN: Duration = Duration::from_millis(500);

/// No fewer keys than these.
const KEYS_MIN: u64 = 1_000;

/// A capacity is the best of so many closed loads: what others take of the machine meanwhile makes it look smaller, never larger.
const CAPACITY_LOADS: u32 = 3;

/// Together they are no longer than this.
const CAPACITY_MAX: Duration = Duration::from_secs(12);

/// The load that a profile is taken under is no longer than this.
const PROFILED_MAX: Duration = Duration::from_secs(15);

/// Of the capacity, where the rate of a stage is beyond it.
const BELOW_CAPACITY: f64 = 0.7;

/// For a compaction of filled data.
const COMPACTION_MAX: Duration = Duration::from_hours(2);

/// An experiment under way.
pub(super) struct Experiment {
    scenario: Scenario,
    scale: f64,
    repeats: usize,
    profiles: bool,
    out: PathBuf,
    data: PathBuf,
    /// Databases that are filled, by what their files depend on.
    filled: BTreeMap<String, PathBuf>,
    /// This program.
    program: PathBuf,
    cores: Option<CoresUsed>,
    watch: Watch,
    note: Note,
    failures: Vec<Failed>,
    began: Instant,
    steps: Steps,
}

/// How far it is.
#[derive(Debug, Default)]
struct Steps {
    done: usize,
    of: usize,
}

impl Steps {
    /// How long the rest takes, if it takes as long as what is done.
    fn left(&self, since: Duration) -> Duration {
        let count = |steps: usize| u32::try_from(steps).unwrap_or(u32::MAX);
        since / count(self.done.max(1)) * count(self.of.saturating_sub(self.done))
    }
}

/// A stage as it is run.
struct Planned {
    stage: Stage,
    name: String,
    rate_per_s: Option<f64>,
    capacity_per_s: Option<f64>,
    share_of_capacity: Option<f64>,
}

impl Experiment {
    /// Reads the scenario and makes the directories.
    ///
    /// # Errors
    /// When the scenario is none, or a directory cannot be made or holds a report already.
    pub(super) fn new(args: &RunArgs) -> Result<Experiment, Error> {
        let mut scenario = scenario(&args.scenario).map_err(Error::Usage)?;
        choose(&mut scenario, args).map_err(Error::Usage)?;
        scenario.data.keys = args.keys.unwrap_or_else(|| scaled_keys(scenario.data.keys, args.scale));
        let program = std::env::current_exe().context("cannot tell where klad is")?;
        let out = &args.out;
        if out.join("lab.json").exists() {
            return Err(Error::Usage(anyhow!("{} holds a report already: give another directory", out.display())));
        }
        let data = args.data.clone().unwrap_or_else(|| out.join("data"));
        for directory in [out, &out.join("runs"), &out.join("profiles"), &out.join("logs"), &data] {
            std::fs::create_dir_all(directory).with_context(|| format!("cannot make {}", directory.display()))?;
        }
        let repeats = args.repeats.map_or(scenario.repeats, usize::from);
        Ok(Experiment {
            cores: split(scenario.pin),
            scale: args.scale,
            repeats,
            profiles: !args.no_profiles,
            out: out.clone(),
            data,
            filled: BTreeMap::new(),
            program,
            watch: interrupt::watch()?,
            note: Note::new(args.progress),
            failures: Vec::new(),
            began: clock::now(),
            steps: Steps::default(),
            scenario,
        })
    }

    /// All of it. What fails is noted, and the rest goes on; a signal ends it, and what was run until then is reported.
    pub(super) fn run(mut self) -> anyhow::Result<LabResult> {
        let started = Started {
            utc: humantime::format_rfc3339_millis(UNIX_EPOCH + Duration::from_millis(clock::unix_ms())).to_string(),
            monotonic_ns: clock::monotonic_ns(),
        };
        let cpu_before = CpuTimes::read();
        let stages = self.scenario.stages.clone();
        self.steps.of = stages.iter().map(|stage| self.steps_of(stage)).sum();
        let mut results = Vec::new();
        for stage in &stages {
            for planned in self.plan(stage) {
                if interrupt::asked() {
                    break;
                }
                results.push(self.stage(&planned));
            }
        }
        if interrupt::asked() {
            self.fail("", "", "all that follows", "interrupted");
        }
        for directory in self.filled.values() {
            remove(directory)?;
        }
        remove(&self.empty())?;
        // It may be somebody else's, with more in it.
        let _ = std::fs::remove_dir(&self.data);
        let steal = CpuTimes::read().zip(cpu_before).and_then(|(now, before)| now.steal_percent_since(before));
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Ok(LabResult {
            schema: SCHEMA.to_owned(),
            klad_version: env!("CARGO_PKG_VERSION").to_owned(),
            command: std::env::args().collect(),
            started,
            took_s: since(self.began).as_secs_f64(),
            scale: self.scale,
            repeats: self.repeats,
            machine: machine::describe(cores, steal),
            cores: self.cores,
            scenario: self.scenario,
            stages: results,
            failures: self.failures,
        })
    }

    /// Runs and profiles of a stage.
    fn steps_of(&self, stage: &Stage) -> usize {
        let profiles = if self.profiles { stage.profiles.len() * self.scenario.profiled(stage).count() } else { 0 };
        self.scenario.variants_of(stage).count() * self.repeats + profiles
    }

    /// The stage, and what is run beside it, by what the first variant can do.
    fn plan(&mut self, stage: &Stage) -> Vec<Planned> {
        let planned = |name: &str, rate_per_s, capacity_per_s, share_of_capacity| Planned {
            stage: stage.clone(),
            name: name.to_owned(),
            rate_per_s,
            capacity_per_s,
            share_of_capacity,
        };
        if stage.rate.is_none() && stage.of_capacity.is_none() {
            return vec![planned(&stage.name, None, None, None)];
        }
        let capacity = match self.capacity(stage) {
            Ok(capacity) => Some(capacity),
            Err(why) => {
                let first = self.first_of(stage).name;
                self.fail(&stage.name, &first, "capacity", &format!("{why:#}"));
                None
            }
        };
        if let Some(share) = stage.of_capacity {
            // Without a capacity there is no rate.
            let rate = |capacity: f64| planned(&stage.name, Some(capacity * share), Some(capacity), Some(share));
            return capacity.map(rate).into_iter().collect();
        }
        let mut all = vec![planned(&stage.name, stage.rate, capacity, None)];
        if let (Some(rate), Some(capacity)) = (stage.rate, capacity)
            && rate > capacity
            && stage.also_below_capacity
        {
            self.steps.of += self.steps_of(stage);
            let name = format!("{}-at-70", stage.name);
            all.push(planned(&name, Some(capacity * BELOW_CAPACITY), Some(capacity), Some(BELOW_CAPACITY)));
        }
        all
    }

    fn first_of(&self, stage: &Stage) -> Variant {
        self.scenario.variants_of(stage).next().cloned().expect("a stage is for one variant at least")
    }

    /// Good answers per second of a closed load on the first variant, at its best.
    fn capacity(&mut self, stage: &Stage) -> anyhow::Result<f64> {
        let variant = self.first_of(stage);
        let duration =
            (self.scaled(stage.duration.0, DURATION_MIN).min(CAPACITY_MAX) / CAPACITY_LOADS).max(DURATION_MIN);
        let name = format!("{}-capacity", stage.name);
        let file = format!("runs/{name}.json");
        let capacity = self.with(stage, &variant, &name, |experiment, served| {
            let load = Load { duration, ..experiment.load(stage, None) };
            let mut best: f64 = 0.0;
            for _ in 0..CAPACITY_LOADS {
                let run = load.run(served, &experiment.out.join(&file), &experiment.watch)?;
                best = best.max(run.measured.goodput_per_s);
            }
            Ok(best)
        })?;
        ensure!(capacity > 0.0, "nothing was answered");
        self.note.say(&format!("{}: {} can do {capacity:.0}/s in a closed load", stage.name, variant.name));
        Ok(capacity)
    }

    /// One stage: all repeats of all variants in turn, then the profiles.
    fn stage(&mut self, planned: &Planned) -> StageResult {
        let stage = &planned.stage;
        let variants: Vec<Variant> = self.scenario.variants_of(stage).cloned().collect();
        let mut results: Vec<VariantResult> = variants
            .iter()
            .map(|variant| VariantResult { name: variant.name.clone(), ..VariantResult::default() })
            .collect();
        for repeat in 1..=self.repeats {
            for (variant, result) in variants.iter().zip(&mut results) {
                if let Some(run) = self.once(planned, variant, &format!("run {repeat}"), |experiment, served| {
                    let file = format!("runs/{}-{}-{repeat}.json", planned.name, variant.name);
                    let load = experiment.load(stage, planned.rate_per_s);
                    load.observed(served, &experiment.out, &file, &experiment.watch)
                }) {
                    result.runs.push(run);
                }
            }
        }
        let kinds: &[ProfileKind] = if self.profiles { &stage.profiles } else { &[] };
        for kind in kinds {
            for (variant, result) in variants.iter().zip(&mut results) {
                if stage.profiled.as_ref().is_some_and(|some| !some.contains(&variant.name)) {
                    continue;
                }
                result.profiles.extend(self.profile(planned, variant, *kind));
            }
        }
        StageResult {
            name: planned.name.clone(),
            of: stage.name.clone(),
            about: stage.about.clone(),
            rate_per_s: planned.rate_per_s,
            capacity_per_s: planned.capacity_per_s,
            share_of_capacity: planned.share_of_capacity,
            connections: stage.connections,
            duration_s: self.scaled(stage.duration.0, DURATION_MIN).as_secs_f64(),
            variants: results,
        }
    }

    fn profile(&mut self, planned: &Planned, variant: &Variant, kind: ProfileKind) -> Option<TakenProfile> {
        self.once(planned, variant, &format!("profile {}", kind.name()), |experiment, served| {
            let file = format!("profiles/{}-{}-{}.pb.gz", planned.name, variant.name, kind.name());
            let load = experiment.load(&planned.stage, planned.rate_per_s);
            let load = Load { duration: load.duration.min(PROFILED_MAX), ..load };
            load.profiled(served, &experiment.out, kind, &file, &experiment.watch)
        })
    }

    /// One run of a variant, or of a profile; a failure is noted.
    fn once<T>(
        &mut self,
        planned: &Planned,
        variant: &Variant,
        what: &str,
        work: impl FnOnce(&mut Experiment, &Served) -> anyhow::Result<T>,
    ) -> Option<T> {
        if interrupt::asked() {
            return None;
        }
        let log = format!("{} {} {what}", planned.name, variant.name).replace(' ', "-");
        let begin = clock::now();
        let done = self.with(&planned.stage, variant, &log, work);
        self.steps.done += 1;
        let left = self.steps.left(since(self.began));
        self.note.say(&format!(
            "[{:>3}/{}] {} {} {what}: {}; about {} left",
            self.steps.done,
            self.steps.of,
            planned.name,
            variant.name,
            if done.is_ok() { format!("{:.1} s", since(begin).as_secs_f64()) } else { "failed".to_owned() },
            humantime::format_duration(Duration::from_secs(left.as_secs()))
        ));
        match done {
            Ok(done) => Some(done),
            Err(why) => {
                self.fail(&planned.name, &variant.name, what, &format!("{why:#}"));
                None
            }
        }
    }

    /// Starts a variant on the data that the stage wants, works with it, and stops it.
    fn with<T>(
        &mut self,
        stage: &Stage,
        variant: &Variant,
        log: &str,
        work: impl FnOnce(&mut Experiment, &Served) -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        ensure!(!interrupt::asked(), "interrupted");
        let data = match stage.data {
            Start::Empty => {
                remove(&self.empty())?;
                self.empty()
            }
            Start::Filled if self.forgets(variant) => self.empty(),
            Start::Filled => self.filled(variant)?,
        };
        let cores = self.cores.as_ref().map_or(&[][..], |cores| &cores.server);
        let served = self.serve(variant, &data, log, cores)?;
        if stage.data == Start::Filled && self.forgets(variant) {
            self.fill(&served, "memory")?;
        }
        let done = work(self, &served);
        // What was done counts more than how the server has stopped, but a crash is a failure.
        served.stop()?;
        done
    }

    fn serve(&self, variant: &Variant, data: &Path, log: &str, cores: &[usize]) -> anyhow::Result<Served> {
        let settings = Settings {
            program: variant.program.as_deref().unwrap_or(&self.program),
            options: self.scenario.options_of(variant),
            data,
            log: self.out.join("logs").join(format!("{log}.log")),
            cores,
        };
        Served::start(&settings, &self.watch)
    }

    fn load<'l>(&'l self, stage: &'l Stage, rate_per_s: Option<f64>) -> Load<'l> {
        Load {
            program: &self.program,
            cores: self.load_cores(),
            stage,
            data: &self.scenario.data,
            rate_per_s,
            duration: self.scaled(stage.duration.0, DURATION_MIN),
            warm_up: self.scaled(stage.warm_up.0, WARM_UP_MIN),
        }
    }

    fn load_cores(&self) -> &[usize] {
        self.cores.as_ref().map_or(&[], |cores| &cores.load)
    }

    /// The directory of a database with all keys, of the variant's engine.
    fn filled(&mut self, variant: &Variant) -> anyhow::Result<PathBuf> {
        let kind = kind_of_files(&self.scenario.options_of(variant));
        if let Some(directory) = self.filled.get(&kind) {
            return Ok(directory.clone());
        }
        let directory = self.data.join(format!("filled-{kind}"));
        remove(&directory)?;
        let Data { keys, .. } = self.scenario.data;
        self.note.say(&format!("filling {keys} keys for {kind}"));
        // Nobody measures this: wherever there is a core.
        let served = self.serve(variant, &directory, &format!("fill-{kind}"), &[])?;
        self.fill(&served, &kind)?;
        served.stop()?;
        self.compact(variant, &directory)?;
        self.filled.insert(kind, directory.clone());
        Ok(directory)
    }

    /// Whether its data ends with its process, and has to be filled for each run.
    fn forgets(&self, variant: &Variant) -> bool {
        value_of(&self.scenario.options_of(variant), "--engine") == Some("memory")
    }

    fn fill(&self, served: &Served, kind: &str) -> anyhow::Result<()> {
        let file = self.out.join(format!("runs/fill-{kind}.json"));
        load::fill(&self.program, &self.scenario.data, served, &file, &self.watch)
    }

    /// All that was filled on its last level, or the first runs would be beside what the fill has left to do. Engines that have no
    /// such thing begin as they are.
    fn compact(&self, variant: &Variant, directory: &Path) -> anyhow::Result<()> {
        if !directory.join("rocksdb").is_dir() {
            return Ok(());
        }
        let options = self.scenario.options_of(variant);
        let mut command = Command::new(&self.program);
        command.args(["compact", "--data"]).arg(directory);
        if let Some(compression) = value_of(&options, "--compression") {
            command.args(["--compression", compression]);
        }
        let log = self.out.join("logs/compact.log");
        let log = std::fs::File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
        command.stdout(log.try_clone()?).stderr(log);
        let mut running = Running::start(command, &[], &self.watch)?;
        let status = running.wait(COMPACTION_MAX)?.context("klad compact has not ended")?;
        ensure!(status.success(), "klad compact has failed, {status}: see logs/compact.log");
        Ok(())
    }

    fn empty(&self) -> PathBuf {
        self.data.join("empty")
    }

    fn scaled(&self, time: Duration, least: Duration) -> Duration {
        time.mul_f64(self.scale).max(time.min(least))
    }

    fn fail(&mut self, stage: &str, variant: &str, what: &str, why: &str) {
        self.note.say(&format!("failed: {stage} {variant}, {what}: {why}"));
        let [stage, variant, what, why] = [stage, variant, what, why].map(str::to_owned);
        self.failures.push(Failed { stage, variant, what, why });
    }
}

/// One that comes along, or a file.
fn scenario(given: &str) -> anyhow::Result<Scenario> {
    if let Some(text) = shipped::text(given) {
        return Scenario::parse(given, text);
    }
    let path = Path::new(given);
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("{given} is neither a scenario that comes along (klad lab list) nor a file"))?;
    let name = path.file_stem().map_or(given.into(), |stem| stem.to_string_lossy());
    Scenario::parse(&name, &text)
}

/// Leaves out what was not asked for.
fn choose(scenario: &mut Scenario, args: &RunArgs) -> anyhow::Result<()> {
    let unknown =
        |wanted: &[String], there: &[&str]| wanted.iter().find(|name| !there.contains(&name.as_str())).cloned();
    let variants: Vec<&str> = scenario.variants.iter().map(|variant| variant.name.as_str()).collect();
    if let Some(name) = unknown(&args.variants, &variants) {
        anyhow::bail!("there is no variant {name}; there are {}", variants.join(", "));
    }
    let stages: Vec<&str> = scenario.stages.iter().map(|stage| stage.name.as_str()).collect();
    if let Some(name) = unknown(&args.stages, &stages) {
        anyhow::bail!("there is no stage {name}; there are {}", stages.join(", "));
    }
    if !args.stages.is_empty() {
        scenario.stages.retain(|stage| args.stages.contains(&stage.name));
    }
    if !args.variants.is_empty() {
        let is_wanted = |name: &String| args.variants.contains(name);
        scenario.variants.retain(|variant| is_wanted(&variant.name));
        for stage in &mut scenario.stages {
            if let Some(some) = &mut stage.variants {
                some.retain(is_wanted);
            }
        }
        scenario.stages.retain(|stage| stage.variants.as_ref().is_none_or(|some| !some.is_empty()));
        ensure!(!scenario.stages.is_empty(), "no stage is for these variants");
    }
    Ok(())
}

#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "numbers of keys"
)]
fn scaled_keys(keys: u64, scale: f64) -> u64 {
    ((keys as f64 * scale) as u64).max(keys.min(KEYS_MIN))
}

/// What the files of a database depend on: engine and compression.
fn kind_of_files(options: &[&str]) -> String {
    let words = ["--engine", "--compression"].map(|name| value_of(options, name).unwrap_or("default"));
    words.join("-")
}

/// The last value of an option.
fn value_of<'o>(options: &[&'o str], name: &str) -> Option<&'o str> {
    let pairs = options.windows(2).filter(|pair| pair[0] == name).map(|pair| pair[1]);
    let joined = options.iter().filter_map(|option| option.strip_prefix(name)?.strip_prefix('='));
    pairs.chain(joined).last()
}

fn remove(directory: &Path) -> anyhow::Result<()> {
    match std::fs::remove_dir_all(directory) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", directory.display()))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variants_that_share_files_are_told_from_those_that_do_not() {
        let of = |options: &str| kind_of_files(&options.split(' ').collect::<Vec<_>>());
        assert_eq!(of("--execution inline --engine rocksdb"), of("--engine rocksdb --execution pool"));
        assert_ne!(of("--engine rocksdb"), of("--engine=fjall"));
        assert_ne!(of("--compression none"), of("--compression zstd"));
        assert_eq!(value_of(&["--a", "1", "--a", "2"], "--a"), Some("2"), "the last one counts");
    }

    #[test]
    fn keys_are_scaled_and_stay_enough() {
        assert_eq!([scaled_keys(0, 0.1), scaled_keys(500, 0.1), scaled_keys(5_000, 0.1)], [0, 500, 1_000]);
        assert_eq!([scaled_keys(1_000_000, 0.1), scaled_keys(1_000_000, 1.0)], [100_000, 1_000_000]);
    }
}
