//! Runs an experiment: the order of the runs, and what happens when one fails. Called by `klad lab run`.
//!
//! `plan` finds the rates; `databases` provides the data. The runner writes `lab.json` after each stage, so that a
//! later crash loses no figures.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, UNIX_EPOCH};

use anyhow::{Context as _, anyhow, ensure};
use tempfile::TempDir;

use self::plan::{Capacity, StagePlan};
use crate::args::RunArgs;
use crate::load::Load;
use crate::process::{since, split_cores};
use crate::result::{CoresUsed, Failure, LabResult, LabRun, SCHEMA, StageResult, TakenProfile, VariantResult};
use crate::scenario::{Data, ProfileKind, Scenario, Stage, Start, Variant};
use crate::server::{RunningServer, ServerKind, ServerSpec, is_installed};
use crate::shipped;
use klad_base::clock;
use klad_bench::interrupt::{self, Watch};
use klad_bench::machine::{self, CpuTimes};
use klad_bench::progress::Note;
use klad_bench::result::{Machine, Started};
use klad_bench::runner::Error;

mod databases;

mod plan;

/// The shortest measured part of a stage after `--scale`, unless the scenario's is shorter.
const DURATION_MIN: Duration = Duration::from_secs(1);

/// The shortest warm-up after `--scale`, unless the scenario's is shorter.
const WARM_UP_MIN: Duration = Duration::from_millis(500);

/// The smallest number of keys after `--scale`, unless the scenario's is smaller.
const KEYS_MIN: u64 = 1_000;

/// The number of connections of a fill, if the filled server is the one that is loaded afterwards. It is so small that
/// even a short queue refuses no request.
const FEW_CONNECTIONS: usize = 4;

/// A server with a resident set above this many bytes leaves the kernel work after its end; see [`SETTLING_TIME`].
const LARGE_BYTES: u64 = 128 << 20;

/// The least time between the end of a server and the next load, from the first large server on, so that all later
/// runs have the same conditions. Linux reports freed memory to the hypervisor two and four seconds later
/// (`mm/page_reporting.c`, `PAGE_REPORTING_DELAY`), which delays a load tester.
const SETTLING_TIME: Duration = Duration::from_secs(5);

/// The longest measured part of a load under which a profile is taken.
const PROFILED_MAX: Duration = Duration::from_secs(15);

/// A running experiment.
pub(super) struct Experiment {
    /// The figures so far.
    result: LabResult,
    profiles: bool,
    out: PathBuf,
    /// The directory of all databases, removed at the end.
    databases: TempDir,
    /// The keys and values, with the number of keys after `--scale`.
    data: Data,
    /// The directories of filled databases, or why the fill failed. The key is what their files depend on: see
    /// `files_key`.
    filled: BTreeMap<String, Result<PathBuf, String>>,
    /// Measured capacities. The key is what they depend on, such as the options of the load.
    capacities: BTreeMap<String, Capacity>,
    /// This program, which serves and loads.
    program: PathBuf,
    watch: Watch,
    note: Note,
    cpu_before: Option<CpuTimes>,
    began: Instant,
    /// The end of the last server, from the first large one on.
    ended: Option<Instant>,
    steps: Steps,
}

/// The progress of the experiment. A step is a run or a profile.
#[derive(Debug, Default)]
struct Steps {
    done: usize,
    of: usize,
    /// The time that the finished steps took.
    spent: Duration,
}

impl Steps {
    /// The estimated time of the remaining steps: each takes the mean of the finished ones.
    fn left(&self) -> Duration {
        let count = |steps: usize| u32::try_from(steps).unwrap_or(u32::MAX);
        self.spent / count(self.done.max(1)) * count(self.of.saturating_sub(self.done))
    }
}

impl Experiment {
    /// Reads the scenario and makes the directories.
    ///
    /// # Errors
    /// When the scenario is not valid, or a directory cannot be made or holds a report already.
    pub(super) fn new(args: &RunArgs) -> Result<Experiment, Error> {
        let mut scenario = scenario(&args.scenario).map_err(Error::Usage)?;
        choose(&mut scenario, args).map_err(Error::Usage)?;
        let missing = leave_out_missing_peers(&mut scenario).map_err(Error::Usage)?;
        let scaled =
            if scenario.data.scaled { scaled_keys(scenario.data.keys, args.scale) } else { scenario.data.keys };
        let data = Data { keys: args.keys.unwrap_or(scaled), ..scenario.data.clone() };
        let out = &args.out;
        if out.join("lab.json").exists() {
            return Err(Error::Usage(anyhow!("{} holds a report already: choose another directory", out.display())));
        }
        let data_directory = args.data.as_ref().unwrap_or(out);
        for directory in [out, &out.join("runs"), &out.join("profiles"), &out.join("logs"), data_directory] {
            std::fs::create_dir_all(directory).with_context(|| format!("cannot make {}", directory.display()))?;
        }
        let databases = tempfile::Builder::new().prefix("klad-lab-databases-").tempdir_in(data_directory);
        let databases =
            databases.with_context(|| format!("cannot make a directory in {}", data_directory.display()))?;
        let cores = split_cores(scenario.pin);
        let result = LabResult {
            schema: SCHEMA.to_owned(),
            klad_version: env!("CARGO_PKG_VERSION").to_owned(),
            command: std::env::args().collect(),
            started: Started {
                utc: humantime::format_rfc3339_millis(UNIX_EPOCH + Duration::from_millis(clock::unix_ms())).to_string(),
                monotonic_ns: clock::monotonic_ns(),
            },
            took_s: 0.0,
            finished: false,
            scale: args.scale,
            repeats: args.repeats.map_or(scenario.repeats, usize::from),
            keys: data.keys,
            machine: describe(None),
            file_system: databases::file_system(databases.path()),
            remarks: missing.into_iter().chain(remarks(&scenario, args, cores.as_ref())).collect(),
            cores,
            scenario,
            stages: Vec::new(),
            failures: Vec::new(),
        };
        Ok(Experiment {
            result,
            profiles: !args.no_profiles,
            out: out.clone(),
            databases,
            data,
            filled: BTreeMap::new(),
            capacities: BTreeMap::new(),
            program: std::env::current_exe().context("cannot find the path of this program")?,
            watch: interrupt::watch()?,
            note: Note::new(args.progress),
            cpu_before: CpuTimes::read(),
            began: clock::now(),
            ended: None,
            steps: Steps::default(),
        })
    }

    /// Runs all stages. A failure is noted, and the other parts are run. After a signal the figures so far are
    /// returned.
    ///
    /// # Errors
    /// When `lab.json` cannot be written at the end.
    pub(super) fn run(mut self) -> anyhow::Result<LabResult> {
        let stages = self.result.scenario.stages.clone();
        self.steps.of = stages.iter().map(|stage| self.steps_of(stage)).sum();
        'stages: for stage in &stages {
            for plan in self.plan(stage) {
                if interrupt::asked() {
                    break 'stages;
                }
                let stage = self.stage(&plan);
                self.result.stages.push(stage);
                // Only the last call may fail the experiment.
                if let Err(error) = self.save() {
                    self.note.say(&format!("{error:#}"));
                }
            }
            if interrupt::asked() {
                break;
            }
        }
        if interrupt::asked() {
            self.fail("", "", "all later runs", "interrupted");
        }
        if let Err(error) = std::fs::remove_dir_all(self.databases.path()) {
            let why = format!("cannot remove {}: {error}", self.databases.path().display());
            self.fail("", "", "databases", &why);
        }
        self.result.finished = true;
        self.save()?;
        Ok(self.result)
    }

    /// Writes the figures so far.
    fn save(&mut self) -> anyhow::Result<()> {
        let steal = CpuTimes::read().zip(self.cpu_before).and_then(|(now, before)| now.steal_percent_since(before));
        self.result.machine = describe(steal);
        self.result.took_s = since(self.began).as_secs_f64();
        let (path, new) = (self.out.join("lab.json"), self.out.join("lab.json.new"));
        let written = std::fs::write(&new, self.result.json()).and_then(|()| std::fs::rename(&new, &path));
        written.with_context(|| format!("cannot write {}", path.display()))
    }

    /// Returns the number of runs and profiles of a stage.
    fn steps_of(&self, stage: &Stage) -> usize {
        let scenario = &self.result.scenario;
        let profiles = if self.profiles { stage.profiles.len() * scenario.profiled(stage).count() } else { 0 };
        scenario.variants_of(stage).count() * self.result.repeats + profiles
    }

    /// Runs a stage: all repeats, with the variants in turn, then the profiles.
    fn stage(&mut self, plan: &StagePlan) -> StageResult {
        let stage = &plan.stage;
        let variants: Vec<Variant> = self.result.scenario.variants_of(stage).cloned().collect();
        let mut results: Vec<VariantResult> = variants
            .iter()
            .map(|variant| VariantResult { name: variant.name.clone(), ..VariantResult::default() })
            .collect();
        for repeat in 1..=self.result.repeats {
            for (variant, result) in variants.iter().zip(&mut results) {
                result.runs.extend(self.observe(plan, variant, repeat));
            }
        }
        let profiled: Vec<Variant> = self.result.scenario.profiled(stage).cloned().collect();
        let kinds: &[ProfileKind] = if self.profiles { &stage.profiles } else { &[] };
        for kind in kinds {
            for variant in &profiled {
                let taken = self.profile(plan, variant, *kind);
                if let Some(result) = results.iter_mut().find(|result| result.name == variant.name) {
                    result.profiles.extend(taken);
                }
            }
        }
        StageResult {
            name: plan.name.clone(),
            of: stage.name.clone(),
            about: stage.about.clone(),
            rate_per_s: plan.rate_per_s,
            capacity_per_s: plan.capacity.as_ref().map(|capacity| capacity.per_s),
            capacity_of: plan.capacity.as_ref().map(|capacity| capacity.variant.clone()),
            share_of_capacity: plan.share_of_capacity,
            connections: stage.connections,
            duration_s: self.scaled(stage.duration.0, DURATION_MIN).as_secs_f64(),
            variants: results,
        }
    }

    /// Makes a run. Returns `None` if the run failed, which is noted, or if the experiment was interrupted.
    fn observe(&mut self, plan: &StagePlan, variant: &Variant, repeat: usize) -> Option<LabRun> {
        let what = format!("run {repeat}");
        let (run, missing) = self.step(plan, variant, &what, |experiment, server| {
            let file = experiment.file("runs", plan, &format!("{}-{repeat}.json", variant.name))?;
            let load = experiment.load(&plan.stage, plan.rate_per_s);
            load.run_observed(server, &experiment.out, &file, repeat, &experiment.watch)
        })?;
        for why in missing {
            self.fail(&plan.name, &variant.name, &what, &why);
        }
        Some(run)
    }

    /// Returns the path of a file in the directory of the stage, relative to the report's directory. Makes the
    /// directory of the stage.
    fn file(&self, directory: &str, plan: &StagePlan, name: &str) -> anyhow::Result<String> {
        let directory = format!("{directory}/{}", plan.name);
        std::fs::create_dir_all(self.out.join(&directory)).with_context(|| format!("cannot make {directory}"))?;
        Ok(format!("{directory}/{name}"))
    }

    /// Takes a profile. Returns `None` if that failed, which is noted, or if the experiment was interrupted.
    fn profile(&mut self, plan: &StagePlan, variant: &Variant, kind: ProfileKind) -> Option<TakenProfile> {
        self.step(plan, variant, &format!("profile {}", kind.name()), |experiment, server| {
            let file = experiment.file("profiles", plan, &format!("{}-{}.pb.gz", variant.name, kind.name()))?;
            let load = experiment.load(&plan.stage, plan.rate_per_s);
            let load = Load { duration: load.duration.min(PROFILED_MAX), ..load };
            load.run_profiled(server, &experiment.out, kind, &file, &experiment.watch)
        })
    }

    /// Does a run or a profile, and reports progress. Returns `None` if that failed, which is noted, or if the
    /// experiment was interrupted.
    fn step<T>(
        &mut self,
        plan: &StagePlan,
        variant: &Variant,
        what: &str,
        work: impl FnOnce(&mut Experiment, &RunningServer) -> anyhow::Result<T>,
    ) -> Option<T> {
        if interrupt::asked() {
            return None;
        }
        let log = format!("{}/{} {what}", plan.name, variant.name).replace(' ', "-");
        let begin = clock::now();
        let done = self.with_server(&plan.stage, variant, &log, work);
        self.steps.done += 1;
        self.steps.spent += since(begin);
        let left = self.steps.left();
        self.note.say(&format!(
            "[{:>3}/{}] {} {} {what}: {}; about {} left",
            self.steps.done,
            self.steps.of,
            plan.name,
            variant.name,
            if done.is_ok() { format!("{:.1} s", since(begin).as_secs_f64()) } else { "failed".to_owned() },
            humantime::format_duration(Duration::from_secs(left.as_secs()))
        ));
        match done {
            Ok(done) => Some(done),
            Err(why) => {
                self.fail(&plan.name, &variant.name, what, &format!("{why:#}"));
                None
            }
        }
    }

    /// Starts a variant on the data of the stage, calls `work`, and stops the server.
    fn with_server<T>(
        &mut self,
        stage: &Stage,
        variant: &Variant,
        log: &str,
        work: impl FnOnce(&mut Experiment, &RunningServer) -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        ensure!(!interrupt::asked(), "interrupted");
        let data = self.database(stage, variant)?;
        let cores = self.result.cores.as_ref().map_or(&[][..], |cores| &cores.server);
        let mut server = self.serve(variant, &self.result.scenario.options_of(variant), &data, log, cores)?;
        server
            .keeps_running_for(self.ended.map_or(Duration::ZERO, |ended| SETTLING_TIME.saturating_sub(since(ended))))?;
        ensure!(!interrupt::asked(), "interrupted");
        let stores = variant.peer.as_ref().is_none_or(|peer| peer.fill);
        let fill = stage.data != Start::Empty && self.is_filled_per_run(variant) && stores;
        let filled = if fill { self.fill(&server, &variant.name, FEW_CONNECTIONS) } else { Ok(()) };
        let done = filled.and_then(|()| work(self, &server));
        let stopped = self.stop(server);
        // A server that crashed fails the run, even if the work is done.
        match (done, stopped) {
            (done, Ok(())) => done,
            (Ok(_), Err(how)) => Err(how),
            (Err(why), Err(how)) => Err(why.context(format!("{how:#}"))),
        }
    }

    /// Stops a server. From the first large server on, also remembers the time.
    fn stop(&mut self, server: RunningServer) -> anyhow::Result<()> {
        let was_large = self.ended.is_some() || server.memory_max().is_none_or(|bytes| bytes > LARGE_BYTES);
        let stopped = server.stop();
        self.ended = was_large.then(clock::now);
        stopped
    }

    fn serve(
        &self,
        variant: &Variant,
        options: &[&str],
        data: &Path,
        log: &str,
        cores: &[usize],
    ) -> anyhow::Result<RunningServer> {
        let log = self.out.join("logs").join(format!("{log}.log"));
        let directory = log.parent().unwrap_or(&self.out);
        std::fs::create_dir_all(directory).with_context(|| format!("cannot make {}", directory.display()))?;
        let program = variant.program.as_deref().unwrap_or(&self.program);
        let of_klad = || ServerKind::Klad { program, options: options.to_vec() };
        let kind = variant.peer.as_ref().map_or_else(of_klad, |peer| ServerKind::Peer { peer, klad: &self.program });
        RunningServer::start(&ServerSpec { kind, data, log, cores }, &self.watch)
    }

    fn load<'l>(&'l self, stage: &'l Stage, rate_per_s: Option<f64>) -> Load<'l> {
        Load {
            program: &self.program,
            cores: self.load_cores(),
            stage,
            data: &self.data,
            rate_per_s,
            duration: self.scaled(stage.duration.0, DURATION_MIN),
            warm_up: self.scaled(stage.warm_up.0, WARM_UP_MIN),
        }
    }

    fn load_cores(&self) -> &[usize] {
        self.result.cores.as_ref().map_or(&[], |cores| &cores.load)
    }

    fn scaled(&self, time: Duration, least: Duration) -> Duration {
        time.mul_f64(self.result.scale).max(time.min(least))
    }

    fn fail(&mut self, stage: &str, variant: &str, what: &str, why: &str) {
        let [stage, variant, what, why] = [stage, variant, what, why].map(str::to_owned);
        let failure = Failure { stage, variant, what, why };
        self.note.say(&format!("failed: {failure}"));
        self.result.failures.push(failure);
    }
}

/// Reads a built-in scenario or a file.
fn scenario(given: &str) -> anyhow::Result<Scenario> {
    if let Some(text) = shipped::text(given) {
        return Scenario::parse(given, text);
    }
    let path = Path::new(given);
    let text = std::fs::read_to_string(path).with_context(|| {
        format!("{given} is neither a built-in scenario (klad lab list) nor a file that can be read")
    })?;
    let name = path.file_stem().map_or(given.into(), |stem| stem.to_string_lossy());
    Scenario::parse(&name, &text)
}

/// Keeps the variants and stages that the command line names.
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
        scenario.retain_variants(|name| args.variants.iter().any(|wanted| wanted == name));
        ensure!(!scenario.stages.is_empty(), "no stage has these variants");
    }
    Ok(())
}

/// Leaves out the peers whose programs are not installed. Returns a remark for each.
fn leave_out_missing_peers(scenario: &mut Scenario) -> anyhow::Result<Vec<String>> {
    let is_missing = |variant: &&Variant| variant.peer.as_ref().is_some_and(|peer| !is_installed(peer));
    let missing: Vec<Variant> = scenario.variants.iter().filter(is_missing).cloned().collect();
    scenario.retain_variants(|name| !missing.iter().any(|variant| variant.name == name));
    let program = |variant: &Variant| variant.peer.as_ref().map_or_else(String::new, |peer| peer.command[0].clone());
    let remark = |variant: &Variant| {
        format!("Left out: {}, because the program {} is not installed.", variant.name, program(variant))
    };
    let remarks: Vec<String> = missing.iter().map(remark).collect();
    ensure!(!scenario.stages.is_empty() && !scenario.variants.is_empty(), "{}", remarks.join(" "));
    Ok(remarks)
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

/// Returns remarks on how the experiment is run.
fn remarks(scenario: &Scenario, args: &RunArgs, cores: Option<&CoresUsed>) -> Vec<String> {
    let changes = [
        args.keys.map(|keys| format!("--keys {keys}")),
        args.repeats.map(|repeats| format!("--repeats {repeats}")),
        (!args.variants.is_empty()).then(|| format!("--variants {}", args.variants.join(","))),
        (!args.stages.is_empty()).then(|| format!("--stages {}", args.stages.join(","))),
        args.no_profiles.then(|| "--no-profiles".to_owned()),
    ];
    let changes: Vec<_> = changes.into_iter().flatten().collect();
    let mut remarks = Vec::new();
    if !changes.is_empty() {
        remarks.push(format!("Changed by options: {}.", changes.join(", ")));
    }
    let Some(CoresUsed { server, .. }) = cores else { return remarks };
    let threads = |variant: &Variant| {
        let options = scenario.options_of(variant);
        let counts = ["--threads", "--pool-threads"].map(|name| value_of(&options, name)?.parse::<usize>().ok());
        counts.into_iter().flatten().max()
    };
    let more = scenario.variants.iter().filter(|variant| threads(variant) > Some(server.len()));
    let more: Vec<_> = more.map(|variant| variant.name.as_str()).collect();
    if !more.is_empty() {
        let cores = if server.len() == 1 { "one core".to_owned() } else { format!("{} cores", server.len()) };
        remarks.push(format!(
            "The server had {cores}: these figures do not show what {} would gain from more threads at the same time.",
            more.join(", ")
        ));
    }
    remarks
}

fn describe(steal_percent: Option<f64>) -> Machine {
    machine::describe(std::thread::available_parallelism().map_or(1, usize::from), steal_percent)
}

/// Returns the value that `options` has for the option `name`: that of the last `NAME=VALUE`, or, if there is none,
/// that of the last `NAME VALUE`.
fn value_of<'o>(options: &[&'o str], name: &str) -> Option<&'o str> {
    let pairs = options.windows(2).filter(|pair| pair[0] == name).map(|pair| pair[1]);
    let joined = options.iter().filter_map(|option| option.strip_prefix(name)?.strip_prefix('='));
    pairs.chain(joined).last()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_value_of_an_option_counts() {
        assert_eq!(value_of(&["--a", "1", "--a", "2"], "--a"), Some("2"));
        assert_eq!(value_of(&["--a=3", "--ab", "2"], "--a"), Some("3"));
    }

    #[test]
    fn scaled_keys_do_not_fall_below_the_minimum() {
        assert_eq!([scaled_keys(0, 0.1), scaled_keys(500, 0.1), scaled_keys(5_000, 0.1)], [0, 500, 1_000]);
        assert_eq!([scaled_keys(1_000_000, 0.1), scaled_keys(1_000_000, 1.0)], [100_000, 1_000_000]);
    }

    #[test]
    fn the_time_left_is_estimated_from_the_finished_steps() {
        let steps = Steps { done: 2, of: 5, spent: Duration::from_secs(8) };
        assert_eq!(steps.left(), Duration::from_secs(12));
        assert_eq!(Steps::default().left(), Duration::ZERO);
    }

    #[test]
    fn changes_by_options_and_more_threads_than_cores_are_remarked_on() {
        use clap::Parser as _;
        #[derive(clap::Parser)]
        struct Cli {
            #[command(subcommand)]
            command: crate::args::LabCommand,
        }
        let scenario = shipped::text("seed-001").expect("built in");
        let scenario = Scenario::parse("seed-001", scenario).expect("valid");
        let of = |line: &str, server: Vec<usize>| {
            let command = Cli::try_parse_from(line.split(' ')).expect("a command").command;
            let crate::args::LabCommand::Run(args) = command else { panic!("{line}") };
            remarks(&scenario, &args, Some(&CoresUsed { server, load: vec![9] }))
        };
        let found = of("lab run seed-001 --out x --keys 5 --no-profiles", vec![0]);
        assert_eq!(found[0], "Changed by options: --keys 5, --no-profiles.");
        assert!(
            found[1].starts_with("The server had one core: these figures do not show what pool-32, pool-32-spin, "),
            "{found:?}"
        );
        assert_eq!(of("lab run seed-001 --out x", vec![0, 1, 2, 3]), Vec::<String>::new());
    }
}
