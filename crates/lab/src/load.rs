//! A load on a serving variant: one `klad bench`, and what is seen of the server meanwhile. Called by `runner`.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use rustix::process::Signal;

use crate::process::RunningProcess;
use crate::result::{LabRun, TakenProfile};
use crate::scenario::{Data, ProfileKind, Stage, Start};
use crate::seen::served;
use crate::server::RunningServer;
use klad_base::clock;
use klad_base::sync::spawn_thread;
use klad_bench::admin::{PATIENCE, QueueSampler};
use klad_bench::interrupt::{self, Watch};
use klad_bench::result::RunResult;
use klad_profile::pprof;

/// Beyond its length, before a load is given up: connections, the drain, the file.
const PATIENCE_MAX: Duration = Duration::from_mins(2);

/// And for each key that is filled.
const FILL_OF_A_KEY_MAX: Duration = Duration::from_micros(200);

/// Between two looks whether somebody has had enough.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);

/// Least and longest profile.
const PROFILE_MIN: Duration = Duration::from_millis(500);
const PROFILE_MAX: Duration = Duration::from_secs(30);

/// What a load is, and where it comes from.
#[derive(Clone, Debug)]
pub(super) struct Load<'l> {
    /// This program.
    pub(super) program: &'l Path,
    /// Where it runs; anywhere when there are none.
    pub(super) cores: &'l [usize],
    /// What is asked for.
    pub(super) stage: &'l Stage,
    /// Of the scenario, with as many keys as there are.
    pub(super) data: &'l Data,
    /// Requests per second; `None`: closed.
    pub(super) rate_per_s: Option<f64>,
    /// Length of the measured part.
    pub(super) duration: Duration,
    /// Before it.
    pub(super) warm_up: Duration,
}

impl Load<'_> {
    fn arguments(&self, served: &RunningServer) -> Vec<String> {
        let Load { stage, data, .. } = self;
        let mut arguments = vec!["bench".to_owned(), served.url()];
        arguments.extend(stage.options.iter().cloned());
        let mut add = |name: &str, value: Option<String>| {
            // What the stage says itself goes before.
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
        add("--duration", Some(precisely(self.duration)));
        add("--warm-up", Some(precisely(self.warm_up)));
        add("--rate", self.rate_per_s.map(|rate| format!("{rate:.3}/s")));
        if !open {
            arguments.push("--closed".to_owned());
        }
        arguments
    }

    /// Makes the load, and writes its result into `file`.
    pub(super) fn run(&self, served: &RunningServer, file: &Path, watch: &Watch) -> anyhow::Result<RunResult> {
        let whole = self.duration + self.warm_up;
        run_bench(self.program, self.arguments(served), self.cores, file, whole, watch)
    }

    /// The same, with what is seen of the server meanwhile; and what could not be seen.
    pub(super) fn observed(
        &self,
        served: &RunningServer,
        out: &Path,
        file: &str,
        repeat: usize,
        watch: &Watch,
    ) -> anyhow::Result<(LabRun, Vec<String>)> {
        let looking = served.admin.as_ref().map(QueueSampler::start);
        let (cpu_before, compactions_before) = (served.cpu(), served.compactions());
        let run = self.run(served, &out.join(file), watch);
        let (cpu, compactions) = (served.cpu(), served.compactions());
        let (queues, mut unseen) = looking.map(QueueSampler::end).unwrap_or_default();
        let run = run?;
        let slowest = served.slowest().unwrap_or_else(|error| {
            unseen.push(format!("no slowest requests: {error:#}"));
            Vec::new()
        });
        let observed = LabRun {
            repeat,
            file: file.to_owned(),
            server_cpu_us_per_served: cpu_per_served(cpu_before, cpu, &run),
            server_memory_max_bytes: served.memory_max(),
            compactions: compactions.zip(compactions_before).map(|(after, before)| after.saturating_sub(before)),
            start_s: served.start.as_secs_f64(),
            queues,
            slowest,
            bench: Some(Box::new(run)),
        };
        Ok((observed, unseen))
    }

    /// The same load, and a profile of most of its measured part.
    pub(super) fn profiled(
        &self,
        served: &RunningServer,
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
        let admin = served.admin.clone().context("only klad gives profiles")?;
        let begins = clock::now() + self.warm_up;
        let taking = spawn_thread("klad-lab-prof", move || {
            interrupt::sleep(begins.saturating_duration_since(clock::now()));
            admin.get(&target, length + PATIENCE)
        });
        let cpu_before = served.cpu();
        let path = out.join(file);
        let run = self.run(served, &path.with_extension("json"), watch);
        let cpu = served.cpu();
        let taken = taking.join().expect("a panic ends the process");
        let (run, taken) = (run?, taken.context("no profile")?);
        let profile = pprof::decode(&taken).with_context(|| format!("{file} is no profile"))?;
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

/// PUTs all keys of `data`.
pub(super) fn fill(
    program: &Path,
    data: &Data,
    served: &RunningServer,
    connections: usize,
    file: &Path,
    watch: &Watch,
) -> anyhow::Result<()> {
    let (url, keys) = (served.url(), data.keys.to_string());
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

/// Runs `klad bench`, and reads what it has written into `file`. A result that is not valid is one, too.
pub fn run_bench(
    program: &Path,
    arguments: Vec<String>,
    cores: &[usize],
    file: &Path,
    length: Duration,
    watch: &Watch,
) -> anyhow::Result<RunResult> {
    let words = file.with_extension("log");
    let log = std::fs::File::create(&words).with_context(|| format!("cannot write {}", words.display()))?;
    let mut command = Command::new(program);
    command.args(arguments).args(["--progress", "never", "--json"]).arg(file).stdout(log.try_clone()?).stderr(log);
    let deadline = clock::now() + length + PATIENCE_MAX;
    let mut running = RunningProcess::start(command, cores, watch)?;
    let status = loop {
        if let Some(status) = running.wait(LOOK_INTERVAL)? {
            break status;
        }
        ensure!(clock::now() < deadline, "klad bench has not ended");
        if interrupt::asked() {
            running.signal(Signal::INT);
            running.wait(PATIENCE_MAX)?;
            bail!("interrupted");
        }
    };
    // 3 and 4: an objective was missed, or the run was not valid; both are told by the result.
    if !matches!(status.code(), Some(0 | 3 | 4)) {
        let said = std::fs::read_to_string(&words).unwrap_or_default();
        bail!("klad bench has failed, {status}: {}", said.trim());
    }
    let text = std::fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
    serde_json::from_slice(&text).with_context(|| format!("{} is no result", file.display()))
}

#[expect(clippy::cast_precision_loss, reason = "counts of requests")]
fn cpu_per_served(before: Option<Duration>, after: Option<Duration>, run: &RunResult) -> Option<f64> {
    let used = after?.checked_sub(before?)?;
    let all = served(&run.measured) + run.warm_up.as_ref().map_or(0, served);
    (all > 0).then(|| used.as_secs_f64() * 1e6 / all as f64)
}

fn precisely(time: Duration) -> String {
    format!("{}ms", time.as_millis())
}
