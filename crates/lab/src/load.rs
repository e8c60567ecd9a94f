//! A load on a server: one `klad bench`, with what the server reports during the run. Called by `runner`; `run_bench`
//! also by the project's measurements (`xtask`).

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use rustix::process::Signal;

use crate::process::RunningProcess;
use crate::result::{LabRun, TakenProfile};
use crate::scenario::{Data, ProfileKind, Stage, Start};
use crate::server::RunningServer;
use crate::variant_runs::served;
use klad_base::clock;
use klad_base::sync::spawn_thread;
use klad_bench::admin::{PATIENCE, QueueSampler};
use klad_bench::interrupt::{self, Watch};
use klad_bench::result::RunResult;
use klad_profile::pprof;

/// The time that a load may take beyond its length: for its connections, its drain and its result.
const OVERTIME_MAX: Duration = Duration::from_mins(2);

/// The time that a fill may take for each key, in addition to [`OVERTIME_MAX`].
const FILL_OF_A_KEY_MAX: Duration = Duration::from_micros(200);

/// The time between two looks whether a signal has interrupted the experiment.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// The shortest profile.
const PROFILE_MIN: Duration = Duration::from_millis(500);
/// The longest profile.
const PROFILE_MAX: Duration = Duration::from_secs(30);

/// A load.
#[derive(Clone, Debug)]
pub(super) struct Load<'l> {
    /// The klad whose `bench` makes the load.
    pub(super) program: &'l Path,
    /// The cores that the load may use; empty for all.
    pub(super) cores: &'l [usize],
    /// The stage of the scenario.
    pub(super) stage: &'l Stage,
    /// The keys and values, with the number of keys after `--scale`.
    pub(super) data: &'l Data,
    /// Requests per second; `None` for a closed load.
    pub(super) rate_per_s: Option<f64>,
    /// The length of the measured part.
    pub(super) duration: Duration,
    /// The length of the warm-up.
    pub(super) warm_up: Duration,
}

impl Load<'_> {
    fn arguments(&self, server: &RunningServer) -> Vec<String> {
        let Load { stage, data, .. } = self;
        let mut arguments = vec!["bench".to_owned(), server.url()];
        arguments.extend(stage.options.iter().cloned());
        let mut add = |name: &str, value: Option<String>| {
            // Options of the stage replace those of the lab.
            let given = |option: &String| option == name || option.starts_with(&format!("{name}="));
            if let Some(value) = value.filter(|_| !stage.options.iter().any(given)) {
                arguments.extend([name.to_owned(), value]);
            }
        };
        add("--key-format", Some(data.key_format.clone()));
        let own_value = stage.options.iter().any(|option| option.starts_with("--value-"));
        add("--value-format", data.value_format.clone().filter(|_| !own_value));
        add("--value-size", data.value_size.clone().filter(|_| !own_value));
        add("--keys", (stage.data != Start::Empty).then(|| data.keys.to_string()));
        add("--connections", Some(stage.connections.to_string()));
        let open = self.rate_per_s.is_some();
        add("--connections-max", stage.connections_max.filter(|_| open).map(|max| max.to_string()));
        add("--duration", Some(milliseconds(self.duration)));
        add("--warm-up", Some(milliseconds(self.warm_up)));
        add("--rate", self.rate_per_s.map(|rate| format!("{rate:.3}/s")));
        if !open {
            arguments.push("--closed".to_owned());
        }
        arguments
    }

    /// Runs the load, and writes its result into `file`.
    pub(super) fn run(&self, server: &RunningServer, file: &Path, watch: &Watch) -> anyhow::Result<RunResult> {
        let whole = self.duration + self.warm_up;
        run_bench(self.program, self.arguments(server), self.cores, file, whole, watch)
    }

    /// Runs the load, and collects what the server reports during it. Returns the run, and a sentence for each thing
    /// that could not be collected.
    pub(super) fn run_observed(
        &self,
        server: &RunningServer,
        out: &Path,
        file: &str,
        repeat: usize,
        watch: &Watch,
    ) -> anyhow::Result<(LabRun, Vec<String>)> {
        let looking = server.admin.as_ref().map(QueueSampler::start);
        let (cpu_before, compactions_before) = (server.cpu(), server.compactions());
        let run = self.run(server, &out.join(file), watch);
        let (cpu, compactions) = (server.cpu(), server.compactions());
        let (queues, mut missing) = looking.map(QueueSampler::end).unwrap_or_default();
        let run = run?;
        let slowest = server.slowest().unwrap_or_else(|error| {
            missing.push(format!("no slowest requests: {error:#}"));
            Vec::new()
        });
        let observed = LabRun {
            repeat,
            file: file.to_owned(),
            server_cpu_us_per_served: cpu_per_served(cpu_before, cpu, &run),
            server_memory_max_bytes: server.memory_max(),
            compactions: compactions.zip(compactions_before).map(|(after, before)| after.saturating_sub(before)),
            start_s: server.start.as_secs_f64(),
            queues,
            slowest,
            bench: Some(Box::new(run)),
        };
        Ok((observed, missing))
    }

    /// Runs the load, and takes a profile of the first 80 % of its measured part, at least [`PROFILE_MIN`] and at most
    /// [`PROFILE_MAX`]. Writes the profile into `file`, and the load's result beside it.
    pub(super) fn run_profiled(
        &self,
        server: &RunningServer,
        out: &Path,
        kind: ProfileKind,
        file: &str,
        watch: &Watch,
    ) -> anyhow::Result<TakenProfile> {
        let length = self.duration.mul_f64(0.8).clamp(PROFILE_MIN, PROFILE_MAX);
        let query = match kind {
            ProfileKind::Cpu => "profile",
            ProfileKind::Alloc => "allocs",
            ProfileKind::Lock => "mutex",
        };
        let target = format!("/debug/pprof/{query}?seconds={:.3}", length.as_secs_f64());
        let admin = server.admin.clone().context("only klad gives profiles")?;
        let begins = clock::now() + self.warm_up;
        let taking = spawn_thread("klad-lab-prof", move || {
            interrupt::sleep(begins.saturating_duration_since(clock::now()));
            admin.get(&target, length + PATIENCE)
        });
        let cpu_before = server.cpu();
        let path = out.join(file);
        let run = self.run(server, &path.with_extension("json"), watch);
        let cpu = server.cpu();
        let taken = taking.join().expect("a panic ends the process");
        let (run, taken) = (run?, taken.context("klad gave no profile")?);
        let profile = pprof::decode(&taken).with_context(|| format!("{file} is not a profile"))?;
        let counts = profile.samples.iter().filter_map(|sample| sample.values.first());
        let events = counts.map(|count| u64::try_from(*count).unwrap_or(0)).sum();
        std::fs::write(&path, taken).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(TakenProfile {
            kind,
            file: file.to_owned(),
            events,
            goodput_per_s: run.measured.goodput_per_s,
            p99_us: run.measured.response.at(99.0).map(|point| point.value_us),
            server_cpu_us_per_served: cpu_per_served(cpu_before, cpu, &run),
        })
    }
}

/// Stores all keys of `data` through the server. The load's result is written into `file`.
pub(super) fn fill(
    program: &Path,
    data: &Data,
    server: &RunningServer,
    connections: usize,
    file: &Path,
    watch: &Watch,
) -> anyhow::Result<()> {
    let (url, keys) = (server.url(), data.keys.to_string());
    let connections = connections.to_string();
    let fixed = ["bench", &url, "--workload", "get", "--closed", "--duration", "100ms", "--warm-up", "0s"];
    let mut arguments: Vec<&str> = fixed.to_vec();
    arguments.extend(["--fill", &keys, "--key-format", &data.key_format, "--connections", &connections]);
    if let Some(format) = &data.value_format {
        arguments.extend(["--value-format", format]);
    }
    if let Some(size) = &data.value_size {
        arguments.extend(["--value-size", size]);
    }
    let keys = u32::try_from(data.keys).unwrap_or(u32::MAX);
    let arguments = arguments.into_iter().map(str::to_owned).collect();
    run_bench(program, arguments, &[], file, FILL_OF_A_KEY_MAX * keys, watch).map(drop)
}

/// Runs `klad bench`, and reads its result from `file`. A result that is not valid is returned as well.
///
/// # Errors
/// When the run cannot be made, does not end within `length` and 2 minutes, or is interrupted.
pub fn run_bench(
    program: &Path,
    arguments: Vec<String>,
    cores: &[usize],
    file: &Path,
    length: Duration,
    watch: &Watch,
) -> anyhow::Result<RunResult> {
    let log_path = file.with_extension("log");
    let log = std::fs::File::create(&log_path).with_context(|| format!("cannot write {}", log_path.display()))?;
    let mut command = Command::new(program);
    command.args(arguments).args(["--progress", "never", "--json"]).arg(file).stdout(log.try_clone()?).stderr(log);
    let deadline = clock::now() + length + OVERTIME_MAX;
    let mut running = RunningProcess::start(command, cores, watch)?;
    let status = loop {
        if let Some(status) = running.wait(POLL_INTERVAL)? {
            break status;
        }
        ensure!(clock::now() < deadline, "klad bench did not end in time");
        if interrupt::asked() {
            running.signal(Signal::INT);
            running.wait(OVERTIME_MAX)?;
            bail!("interrupted");
        }
    };
    // 3: an objective was missed; 4: the run is not valid. The result says both.
    if !matches!(status.code(), Some(0 | 3 | 4)) {
        let log = std::fs::read_to_string(&log_path).unwrap_or_default();
        bail!("klad bench failed, {status}: {}", log.trim());
    }
    let text = std::fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
    serde_json::from_slice(&text).with_context(|| format!("{} is not a result of klad bench", file.display()))
}

#[expect(clippy::cast_precision_loss, reason = "counts of requests")]
fn cpu_per_served(before: Option<Duration>, after: Option<Duration>, run: &RunResult) -> Option<f64> {
    let used = after?.checked_sub(before?)?;
    let all = served(&run.measured) + run.warm_up.as_ref().map_or(0, served);
    (all > 0).then(|| used.as_secs_f64() * 1e6 / all as f64)
}

fn milliseconds(time: Duration) -> String {
    format!("{}ms", time.as_millis())
}
