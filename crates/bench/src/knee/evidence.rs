//! What a klad says of itself while a level runs: a CPU profile, and its queues once a second, from its admin address.
//!
//! Taken in runs of their own after the search, because looking costs the server time that the search must not pay for. That it
//! cannot be had is said, and is no failure of the search. Called by `knee`.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};

use crate::admin::{Admin, Looking, Over, PATIENCE};
use crate::knee::args::KneeArgs;
use crate::knee::result::{Evidence, Found, Level};
use crate::runner::Error;
use crate::url::Url;
use klad_base::clock;
use klad_base::sync::spawn_thread;

/// Longest CPU profile.
const PROFILE_MAX: Duration = Duration::from_secs(30);

/// What every klad says of itself.
const KLAD: &[u8] = b"klad_build_info{";

/// Where evidence comes from and goes to; nothing when it was not asked for.
#[derive(Debug)]
pub(super) struct Witness {
    source: Option<Arc<Admin>>,
    directory: Option<PathBuf>,
    warm_up: Duration,
    level: Duration,
}

impl Witness {
    /// Asks the admin address for its metrics once, so that a wrong one is known before the search.
    pub(super) fn new(args: &KneeArgs) -> Result<Witness, Error> {
        let source = match &args.admin {
            None => None,
            Some(url) => {
                let url = url.parse::<Url>().map_err(|why| Error::Usage(anyhow::anyhow!("--admin: {why}")))?;
                let token = args.admin_token_file.as_deref().map(token).transpose()?;
                let admin = Admin { url, token };
                let metrics = admin.get("/metrics", PATIENCE).context("--admin does not answer")?;
                if !metrics.windows(KLAD.len()).any(|window| window == KLAD) {
                    return Err(Error::Failed(anyhow::anyhow!("--admin is no klad: its metrics do not say so")));
                }
                Some(Arc::new(admin))
            }
        };
        if let Some(directory) = &args.evidence {
            std::fs::create_dir_all(directory).with_context(|| format!("cannot make {}", directory.display()))?;
        }
        Ok(Witness { source, directory: args.evidence.clone(), warm_up: args.warm_up, level: args.level })
    }

    /// Runs the last good and the first bad rate once more, and looks at the server meanwhile.
    pub(super) fn gather(
        &self,
        found: &mut Found,
        mut run: impl FnMut(f64) -> Result<Level, Error>,
    ) -> Result<Vec<Evidence>, Error> {
        let Some(admin) = &self.source else { return Ok(Vec::new()) };
        let mut all = Vec::new();
        for (good, edge) in [(true, found.good), (false, found.bad)] {
            let Some(edge) = edge else { continue };
            let looking = Looking::start(admin);
            let profiling = {
                let (admin, over) = (admin.clone(), looking.over());
                let (warm_up, length) = (self.warm_up, self.level.min(PROFILE_MAX));
                spawn_thread("klad-bench-prof", move || profile(&admin, &over, warm_up, length))
            };
            let level = run(edge.rate_per_s);
            let (queues, mut missing) = looking.end();
            let profiled = profiling.join().expect("a panic ends the process");
            let level = match level {
                Ok(level) => level,
                Err(Error::Failed(why)) => {
                    // The search itself is whole.
                    found.broken_off = Some(format!("the runs for evidence, at {:.1}/s: {why:#}", edge.rate_per_s));
                    break;
                }
                Err(error) => return Err(error),
            };
            let taken = profiled.map_err(|why| missing.push(format!("no CPU profile: {why:#}"))).unwrap_or_default();
            let profile = if taken.is_empty() { None } else { self.keep(good, &taken)? };
            all.push(Evidence { good, level, profile, queues, missing, taken });
        }
        Ok(all)
    }

    /// Writes a profile, and says where.
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
    ensure!(!token.is_empty() && !token.contains(char::is_whitespace), "{} holds no token", path.display());
    Ok(token)
}

/// A profile of the measured part, or of most of it.
fn profile(admin: &Admin, over: &Over, warm_up: Duration, length: Duration) -> anyhow::Result<Vec<u8>> {
    ensure!(!over.by(clock::now() + warm_up), "the run ended in its warm-up");
    let seconds = length.as_secs_f64().max(0.001);
    admin.get(&format!("/debug/pprof/profile?seconds={seconds:.3}"), length + PATIENCE)
}
