//! Records a klad under load at the last good and the first bad rate: a CPU profile, and its queues once a second,
//! from its admin port.
//!
//! The records are made in separate runs after the search, because recording costs the server time and would change the
//! result. If nothing can be recorded, the report says so, and the search is still successful. Called by `knee`.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};

use crate::admin::{Admin, PATIENCE, QueueSampler, StopSignal};
use crate::knee::args::KneeArgs;
use crate::knee::result::{Evidence, Level, SearchResult};
use crate::runner::Error;
use crate::url::Url;
use klad_base::clock;
use klad_base::sync::spawn_thread;

/// The longest CPU profile.
const PROFILE_MAX: Duration = Duration::from_secs(30);

/// A metric that every klad has.
const KLAD: &[u8] = b"klad_build_info{";

/// Takes CPU profiles and queue figures from the admin port, and writes the profiles to files. Without `--admin` it
/// does nothing.
#[derive(Debug)]
pub(super) struct EvidenceRecorder {
    source: Option<Arc<Admin>>,
    directory: Option<PathBuf>,
    warm_up: Duration,
    level: Duration,
}

impl EvidenceRecorder {
    /// Reads the metrics of the admin port once, so that a wrong address is found before the search. Creates the
    /// directory of `--evidence`.
    pub(super) fn new(args: &KneeArgs) -> Result<EvidenceRecorder, Error> {
        let source = match &args.admin {
            None => None,
            Some(url) => {
                let url = url.parse::<Url>().map_err(|why| Error::Usage(anyhow::anyhow!("--admin: {why}")))?;
                let token = args.admin_token_file.as_deref().map(token).transpose()?;
                let admin = Admin { url, token };
                let metrics = admin.get("/metrics", PATIENCE).context("the address of --admin does not answer")?;
                if !metrics.windows(KLAD.len()).any(|window| window == KLAD) {
                    return Err(Error::Failed(anyhow::anyhow!(
                        "the address of --admin is not a klad: its metrics lack klad_build_info"
                    )));
                }
                Some(Arc::new(admin))
            }
        };
        if let Some(directory) = &args.evidence {
            std::fs::create_dir_all(directory).with_context(|| format!("cannot create {}", directory.display()))?;
        }
        Ok(EvidenceRecorder { source, directory: args.evidence.clone(), warm_up: args.warm_up, level: args.level })
    }

    /// Runs the last good and the first bad rate once more, and records the server meanwhile. Does nothing without
    /// `--admin`.
    pub(super) fn gather(
        &self,
        found: &mut SearchResult,
        mut run: impl FnMut(f64) -> Result<Level, Error>,
    ) -> Result<Vec<Evidence>, Error> {
        let Some(admin) = &self.source else { return Ok(Vec::new()) };
        let mut all = Vec::new();
        for (good, edge) in [(true, found.good), (false, found.bad)] {
            let Some(edge) = edge else { continue };
            let sampler = QueueSampler::start(admin);
            let profiling = {
                let (admin, stop) = (admin.clone(), sampler.stop_signal());
                let (warm_up, length) = (self.warm_up, self.level.min(PROFILE_MAX));
                spawn_thread("klad-bench-prof", move || profile(&admin, &stop, warm_up, length))
            };
            let level = run(edge.rate_per_s);
            let (queues, mut missing) = sampler.end();
            let profiled = profiling.join().expect("a panic ends the process");
            let level = match level {
                Ok(level) => level,
                Err(Error::Failed(why)) => {
                    // Only the runs for evidence end early; the search is complete.
                    found.broken_off = Some(format!("in the runs for evidence, at {:.1}/s: {why:#}", edge.rate_per_s));
                    break;
                }
                Err(error) => return Err(error),
            };
            let profile_bytes =
                profiled.map_err(|why| missing.push(format!("no CPU profile: {why:#}"))).unwrap_or_default();
            let profile = if profile_bytes.is_empty() { None } else { self.keep(good, &profile_bytes)? };
            all.push(Evidence { good, level, profile, queues, missing, profile_bytes });
        }
        Ok(all)
    }

    /// Writes a profile to the directory of `--evidence`, and returns its path; `None` without that option.
    fn keep(&self, good: bool, profile: &[u8]) -> anyhow::Result<Option<String>> {
        let Some(directory) = &self.directory else { return Ok(None) };
        let name = if good { "last-good.cpu.pb.gz" } else { "first-bad.cpu.pb.gz" };
        let path = directory.join(name);
        std::fs::write(&path, profile).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Some(path.display().to_string()))
    }
}

fn token(path: &Path) -> anyhow::Result<String> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let token = text.trim().to_owned();
    ensure!(!token.is_empty() && !token.contains(char::is_whitespace), "{} does not contain a token", path.display());
    Ok(token)
}

/// Takes a CPU profile of the measured part, at most of its first 30 seconds. The measured part follows `warm_up`.
fn profile(admin: &Admin, stop: &StopSignal, warm_up: Duration, length: Duration) -> anyhow::Result<Vec<u8>> {
    ensure!(!stop.wait_until(clock::now() + warm_up), "the run ended in its warm-up");
    let seconds = length.as_secs_f64().max(0.001);
    admin.get(&format!("/debug/pprof/profile?seconds={seconds:.3}"), length + PATIENCE)
}
