//! What a klad says of itself while a level runs: a CPU profile, and its queues once a second, from its admin address.
//!
//! Taken in runs of their own after the search, because looking costs the server time that the search must not pay for. That it
//! cannot be had is said, and is no failure of the search. Called by `knee`.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};

use super::super::response::Reader;
use super::super::runner::Error;
use super::super::url::Url;
use super::args::KneeArgs;
use super::result::{Evidence, Found, Level, QueueSample};
use crate::clock;
use crate::sync::{Cause, Condvar, Mutex, spawn_thread};

/// Longest CPU profile.
const PROFILE_MAX: Duration = Duration::from_secs(30);

/// For an answer of the admin address, beside the time that a profile takes.
const PATIENCE: Duration = Duration::from_secs(10);

/// Between two looks at the queues.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// What every klad says of itself.
const KLAD: &[u8] = b"klad_build_info{";

/// What the series begin with that say what waits, what is under way, and what is refused.
const QUEUES: [&str; 5] = [
    "klad_queue_",
    "klad_operations_in_use",
    "klad_http_requests_in_flight",
    "klad_body_room_used_bytes",
    "klad_refused_total",
];

/// Where evidence comes from and goes to; nothing when it was not asked for.
#[derive(Debug)]
pub(super) struct Witness {
    source: Option<Arc<Admin>>,
    directory: Option<PathBuf>,
    warm_up: Duration,
    level: Duration,
}

#[derive(Debug)]
struct Admin {
    url: Url,
    token: Option<String>,
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
        found: &Found,
        mut run: impl FnMut(f64) -> Result<Level, Error>,
    ) -> Result<Vec<Evidence>, Error> {
        let Some(admin) = &self.source else { return Ok(Vec::new()) };
        let mut all = Vec::new();
        for (good, edge) in [(true, found.good), (false, found.bad)] {
            let Some(edge) = edge else { continue };
            let over = Arc::<Over>::default();
            let looking = {
                let (admin, over) = (admin.clone(), over.clone());
                spawn_thread("klad-bench-look", move || look(&admin, &over))
            };
            let profiling = {
                let (admin, over) = (admin.clone(), over.clone());
                let (warm_up, length) = (self.warm_up, self.level.min(PROFILE_MAX));
                spawn_thread("klad-bench-prof", move || profile(&admin, &over, warm_up, length))
            };
            let level = run(edge.rate_per_s);
            over.tell();
            let profiled = profiling.join().expect("a panic ends the process");
            let (queues, mut missing) = looking.join().expect("a panic ends the process");
            let level = level?;
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

/// The queues, until the run is over; and why there are none.
fn look(admin: &Admin, over: &Over) -> (Vec<QueueSample>, Vec<String>) {
    let (mut samples, mut missing) = (Vec::new(), Vec::new());
    let begin = clock::now();
    let mut due = begin;
    while !over.by(due) {
        match admin.get("/metrics", PATIENCE) {
            Ok(metrics) => {
                let at_s = clock::now().saturating_duration_since(begin).as_secs_f64();
                samples.push(QueueSample { at_s, values: queues(&metrics) });
            }
            Err(why) if missing.is_empty() => missing.push(format!("no metrics: {why:#}")),
            Err(_) => {}
        }
        due += LOOK_INTERVAL;
    }
    (samples, missing)
}

/// A profile of the measured part, or of most of it.
fn profile(admin: &Admin, over: &Over, warm_up: Duration, length: Duration) -> anyhow::Result<Vec<u8>> {
    ensure!(!over.by(clock::now() + warm_up), "the run ended in its warm-up");
    let seconds = length.as_secs_f64().max(0.001);
    admin.get(&format!("/debug/pprof/profile?seconds={seconds:.3}"), length + PATIENCE)
}

/// Whether a run is over.
#[derive(Debug, Default)]
struct Over {
    is: Mutex<bool>,
    told: Condvar,
}

impl Over {
    fn tell(&self) {
        *self.is.lock() = true;
        self.told.notify_all();
    }

    /// Waits until it is, or until `due`; says whether it is.
    fn by(&self, due: Instant) -> bool {
        let mut is = self.is.lock();
        loop {
            let left = due.saturating_duration_since(clock::now());
            if *is || left.is_zero() {
                return *is;
            }
            is = self.told.wait_timeout(is, left, Cause::Others);
        }
    }
}

/// Series of queues in the text format of Prometheus.
fn queues(metrics: &[u8]) -> BTreeMap<String, f64> {
    let text = String::from_utf8_lossy(metrics);
    let wanted = text.lines().filter(|line| QUEUES.iter().any(|prefix| line.starts_with(prefix)));
    let series = wanted.filter_map(|line| {
        let (name, value) = line.rsplit_once(' ')?;
        Some((name.to_owned(), value.parse().ok()?))
    });
    series.filter(|(_, value): &(String, f64)| value.is_finite()).collect()
}

impl Admin {
    /// The body of a 200.
    fn get(&self, target: &str, patience: Duration) -> anyhow::Result<Vec<u8>> {
        let deadline = clock::now() + patience;
        let mut stream = TcpStream::connect_timeout(&self.url.reach()?, patience)?;
        let token = self.token.as_ref().map_or_else(String::new, |token| format!("Authorization: Bearer {token}\r\n"));
        let host = &self.url.authority;
        stream.set_write_timeout(Some(patience))?;
        write!(stream, "GET {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{token}\r\n")?;
        let mut reader = Reader::keeping();
        let mut buffer = vec![0; 64 << 10];
        let answer = loop {
            stream.set_read_timeout(Some(left(deadline)?))?;
            let count = stream.read(&mut buffer)?;
            if count == 0 {
                break reader.end().context("the connection was closed before the answer was whole")?;
            }
            if let (_, Some(answer)) = reader.feed(&buffer[..count], false)? {
                break answer;
            }
        };
        let body = reader.kept().map(|kept| kept.body.clone()).unwrap_or_default();
        if answer.status != 200 {
            let said = String::from_utf8_lossy(&body[..body.len().min(300)]).trim().to_owned();
            bail!("{target} is answered {}: {said}", answer.status);
        }
        Ok(body)
    }
}

fn left(deadline: Instant) -> anyhow::Result<Duration> {
    let left = deadline.saturating_duration_since(clock::now());
    ensure!(!left.is_zero(), "no answer in time");
    Ok(left)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_are_found_among_metrics() {
        let metrics =
            b"# HELP klad_queue_depth x\n# TYPE klad_queue_depth gauge\nklad_queue_depth{queue=\"reads\"} 3\n\
            klad_requests_total 7\nklad_queue_oldest_seconds{queue=\"reads\"} 0.25\nklad_queue_wait_seconds NaN\n";
        let found = queues(metrics);
        let expected =
            [("klad_queue_depth{queue=\"reads\"}", 3.0), ("klad_queue_oldest_seconds{queue=\"reads\"}", 0.25)];
        assert_eq!(found, BTreeMap::from(expected.map(|(name, value)| (name.to_owned(), value))));
    }
}
