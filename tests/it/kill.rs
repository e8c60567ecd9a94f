//! SIGKILL under load: every acknowledged write is present, and versions neither repeat nor decrease.
//!
//! Method: eight clients write and remove their own keys, and each keeps a journal of what it sent and what was
//! acknowledged. The server is killed at a random moment and started again on the same directory. Each key must then
//! have its last acknowledged value or a later one that was sent and not acknowledged. The next round begins with the
//! values found. Each value is written only once, so a value identifies the write that stored it.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use super::support::planted::Defect;
use super::support::{Client, DURABLE_ENGINES, ServerBuilder, durable_setups, random, wait_until};

const CLIENTS: usize = 8;
const KEYS: usize = 40;

/// The allowed values of a key: the value of the last acknowledged write and of every write sent after it; `None` is
/// a removal.
type Allowed = HashMap<String, Vec<Option<String>>>;

/// What one client did.
struct Journal {
    allowed: Allowed,
    /// Versions of acknowledged writes, in the order of the answers.
    versions: Vec<u64>,
}

/// A server that will be killed.
struct Killed {
    address: SocketAddr,
    /// Set just before the kill.
    is_killed: AtomicBool,
}

impl Journal {
    /// Writes to the server until it is killed.
    fn run(&mut self, number: usize, at: &Killed, round: usize, mut random: fastrand::Rng, done: &AtomicU64) {
        let Ok(mut client) = Client::try_connect(at.address) else { return };
        for n in 0.. {
            let key = format!("c{number}k{}", random.usize(0..KEYS));
            // One in four values is large, so that memtables fill within a round.
            let padding = if random.usize(0..4) == 0 { random.usize(10_000..30_000) } else { 0 };
            let value = (random.usize(0..5) > 0).then(|| format!("{number}-{round}-{n}-{}", "x".repeat(padding)));
            let durability = if random.bool() { "sync" } else { "async" };
            let target = format!("/v0/entity?id={key}&durability={durability}");
            let allowed = self.allowed.entry(key).or_insert_with(|| vec![None]);
            allowed.push(value.clone());
            let answer = match &value {
                Some(value) => client.try_request("PUT", &target, &[], Some(value.as_bytes())),
                None => client.try_request("DELETE", &target, &[], None),
            };
            let Ok(answer) = answer else {
                // Another process may get the port of the killed server.
                if at.is_killed.load(Ordering::SeqCst) {
                    return;
                }
                // klad has closed the connection, because this thread paused for seconds.
                let Ok(again) = Client::try_connect(at.address) else { return };
                client = again;
                continue;
            };
            if answer.status == 503 {
                // On a busy machine RocksDB stalls writes. A rejected write has had no effect.
                allowed.pop();
                std::thread::sleep(Duration::from_millis(10));
                continue;
            }
            assert!(matches!(answer.status, 201 | 202), "{}", answer.status);
            *allowed = vec![value];
            self.versions.push(answer.version());
            done.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Compares with the values on the server, which become the only allowed ones.
    fn compare(&mut self, client: &mut Client) -> Result<(), String> {
        for (key, allowed) in &mut self.allowed {
            let answer = client.get(&format!("/v0/entity?id={key}"));
            let found = (answer.status == 200).then(|| answer.text());
            if !allowed.contains(&found) {
                let allowed: Vec<_> = allowed.iter().map(|value| short(value.as_ref())).collect();
                return Err(format!("{key} has {:?}, allowed are {allowed:?}", short(found.as_ref())));
            }
            *allowed = vec![found];
        }
        Ok(())
    }
}

/// Returns the part of a value that identifies its write.
fn short(value: Option<&String>) -> Option<&str> {
    value.map(|value| value.trim_end_matches('x'))
}

/// Returns the number of memtables written to tables: with RocksDB since the last start, by its log; with fjall since
/// the first start, by the numbers of its tables.
fn flushes(data: &std::path::Path) -> usize {
    if let Ok(log) = std::fs::read_to_string(data.join("rocksdb/LOG")) {
        return log.matches("flush_finished").count();
    }
    let tables = std::fs::read_dir(data.join("fjall/keyspaces/1/tables")).unwrap();
    let numbers = tables.map(|table| table.unwrap().file_name().to_str().unwrap().parse::<usize>().unwrap() + 1);
    numbers.max().unwrap_or(0)
}

fn check_versions(journals: &[Journal]) -> Result<(), String> {
    let mut seen = HashSet::new();
    for journal in journals {
        for (position, version) in journal.versions.iter().enumerate() {
            if !seen.insert(*version) {
                return Err(format!("version {version} was assigned twice"));
            }
            if position > 0 && journal.versions[position - 1] >= *version {
                return Err(format!("version {version} follows {}", journal.versions[position - 1]));
            }
        }
    }
    Ok(())
}

/// Kills a server `kills` times under load and checks the data.
fn survives_kills(setup: &str, kills: usize, defect: Option<Defect>) -> Result<(), String> {
    let mut random = random();
    let data = tempfile::tempdir().unwrap();
    // Small memtables, so that some kills happen during flushes and compactions.
    let mut builder = ServerBuilder::new(setup).data(data.path()).arg("--memory", "64MiB").defect(defect);
    if setup.starts_with("rocksdb/") {
        // Off by default, but it must survive kills too.
        builder = builder.arg("--log-preallocation", "on");
    }
    let mut journals: Vec<Journal> =
        (0..CLIENTS).map(|_| Journal { allowed: Allowed::new(), versions: Vec::new() }).collect();
    let (mut acknowledged, mut flushed) = (0, 0);
    for round in 0..kills {
        let server = builder.start();
        let mut client = server.client();
        for journal in &mut journals {
            journal.compare(&mut client)?;
        }
        let done = AtomicU64::new(0);
        let at = Killed { address: server.address, is_killed: AtomicBool::new(false) };
        // A number of writes and then some time, so that the kill happens at any stage of a write.
        let (writes, then) = (random.u64(1..1_500), Duration::from_micros(random.u64(0..3_000)));
        std::thread::scope(|scope| {
            for (number, journal) in journals.iter_mut().enumerate() {
                let (random, at, done) = (random.fork(), &at, &done);
                scope.spawn(move || journal.run(number, at, round, random, done));
            }
            wait_until("enough is written", || done.load(Ordering::Relaxed) >= writes);
            std::thread::sleep(then);
            at.is_killed.store(true, Ordering::SeqCst);
            server.kill();
        });
        acknowledged += done.load(Ordering::Relaxed);
        flushed += flushes(data.path());
        check_versions(&journals)?;
    }
    let server = builder.start();
    for journal in &mut journals {
        journal.compare(&mut server.client())?;
    }
    println!("{acknowledged} acknowledged writes over {kills} kills, {flushed} flushes");
    assert!(flushed > 0 || kills < 20, "no flush happened");
    Ok(())
}

#[test]
fn acknowledged_writes_survive_twenty_kills() {
    for engine in DURABLE_ENGINES {
        survives_kills(engine, 20, None).unwrap_or_else(|found| panic!("{engine}: {found}"));
    }
}

#[test]
fn acknowledged_writes_survive_kills_with_every_strategy() {
    for setup in durable_setups().filter(|setup| setup.contains('/')) {
        survives_kills(setup, 4, None).unwrap_or_else(|found| panic!("{setup}: {found}"));
    }
}

#[test]
fn twin_lost_writes_are_noticed() {
    for engine in DURABLE_ENGINES {
        let found = survives_kills(engine, 3, Some(Defect::LosesWrites)).expect_err("planted");
        assert!(found.contains("allowed are"), "{engine}: {found}");
    }
}

#[test]
fn twin_repeated_versions_are_noticed() {
    for engine in DURABLE_ENGINES {
        let found = survives_kills(engine, 3, Some(Defect::RepeatsVersions)).expect_err("planted");
        assert!(found.contains("version"), "{engine}: {found}");
    }
}
