//! SIGKILL amid atomic batches and removals of ranges: after the next start each is whole or absent, and there if it
//! was acknowledged.
//!
//! Method: each client repeats numbered steps on its own keys, and the state of the keys says which step was the last.
//! The server is killed at a random moment and started again on the same directory. The keys must then be in the state
//! after the last acknowledged step, or after the next one, which was sent and not answered.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde_json::{Value, json};

use super::support::batches::{NDJSON, lines};
use super::support::planted::Defect;
use super::support::scanning::{Format, Listed, scan_all};
use super::support::{Client, DURABLE_ENGINES, ServerBuilder, durable_setups, random, wait_until};

/// The keys of a client, and their values.
type State = BTreeMap<String, String>;

/// What a client does.
#[derive(Clone, Copy, Debug)]
enum Kind {
    /// Atomic batches, each of which changes all keys of the client.
    Batches,
    /// Stores a group of keys, removes their range, and stores one of them again. Then the next group.
    Removals,
    /// Stores one key.
    Puts,
}

/// A request without its durability.
struct Request {
    method: &'static str,
    target: String,
    body: Vec<u8>,
}

/// The keys of a batch, and of a group.
const KEYS: usize = 40;

/// The number of batches that the keys of a client show, beside the last one.
const REMEMBERED: usize = 50;

/// The value that step `step` stores under one key. Every fourth step stores large values, so that its log write has
/// several parts, and memtables fill.
fn value(step: usize, key: usize) -> String {
    format!("{step}.{}", "x".repeat(if step.is_multiple_of(4) { 4_000 } else { step * key % 300 }))
}

/// The keys around a range that is removed. They stay.
fn neighbours(group: &str) -> [String; 2] {
    [format!("{group}."), format!("{group}0")]
}

/// The key in which a batch leaves its number, so that a lost one is noticed although later ones replace its values.
fn mark(prefix: &str, step: usize) -> String {
    format!("{prefix}mark{:02}", step % REMEMBERED)
}

impl Kind {
    /// The keys after `steps` steps of the client with this prefix.
    fn state(self, prefix: &str, steps: usize) -> State {
        let mut state = State::new();
        match self {
            Kind::Batches if steps > 0 => {
                let stored = (0..KEYS).filter(|key| !(steps + key).is_multiple_of(5));
                state.extend(stored.map(|key| (format!("{prefix}{key:02}"), value(steps, key))));
                let remembered = (steps.saturating_sub(REMEMBERED) + 1)..=steps;
                state.extend(remembered.map(|step| (mark(prefix, step), step.to_string())));
                // Only batches with an even number have the counter, and so depend on what is stored.
                if steps >= 2 {
                    state.insert(format!("{prefix}count"), (steps / 2).to_string());
                }
            }
            Kind::Puts if steps > 0 => drop(state.insert(format!("{prefix}k"), value(steps, 1))),
            Kind::Batches | Kind::Puts => {}
            Kind::Removals => {
                for number in 0..steps.div_ceil(3) {
                    let (first, group) = (3 * number + 1, format!("{prefix}{number:05}"));
                    state.extend(neighbours(&group).map(|key| (key, value(first, 1))));
                    match steps - first {
                        0 => state.extend((0..KEYS).map(|key| (format!("{group}/{key:02}"), value(first, key)))),
                        1 => {}
                        _ => drop(state.insert(format!("{group}/05"), value(first + 2, 5))),
                    }
                }
            }
        }
        state
    }

    fn request(self, prefix: &str, step: usize) -> Request {
        let put = |key: String, value: String| json!({"op": "put", "key": key, "value": value});
        let atomic = |items: &[Value]| {
            let target = "/v1/batch?atomic=true".to_owned();
            Request { method: "POST", target, body: lines(items) }
        };
        match self {
            Kind::Batches => {
                let after = self.state(prefix, step);
                let change = |key: String| match after.get(&key) {
                    Some(value) => put(key, value.clone()),
                    None => json!({"op": "delete", "key": key}),
                };
                let mut items: Vec<_> = (0..KEYS).map(|key| change(format!("{prefix}{key:02}"))).collect();
                items.push(put(mark(prefix, step), step.to_string()));
                if step.is_multiple_of(2) {
                    let add = json!({"op": "add", "key": format!("{prefix}count"), "by": 1});
                    items.insert(step % items.len(), add);
                }
                atomic(&items)
            }
            Kind::Puts => {
                Request { method: "PUT", target: format!("/v1/kv/{prefix}k?"), body: value(step, 1).into_bytes() }
            }
            Kind::Removals => {
                let (number, phase) = ((step - 1) / 3, (step - 1) % 3);
                let group = format!("{prefix}{number:05}");
                match phase {
                    0 => {
                        let inside = (0..KEYS).map(|key| put(format!("{group}/{key:02}"), value(step, key)));
                        atomic(
                            &inside.chain(neighbours(&group).map(|key| put(key, value(step, 1)))).collect::<Vec<_>>(),
                        )
                    }
                    1 => {
                        let range = if number.is_multiple_of(2) {
                            format!("prefix={group}/")
                        } else {
                            format!("start={group}/&end={group}0")
                        };
                        Request { method: "DELETE", target: format!("/v1/kv?{range}"), body: Vec::new() }
                    }
                    _ => {
                        let target = format!("/v1/kv/{group}/05?");
                        Request { method: "PUT", target, body: value(step, 5).into_bytes() }
                    }
                }
            }
        }
    }
}

/// A client, and what the server must have of it.
struct Steps {
    kind: Kind,
    /// The prefix of its keys.
    prefix: String,
    acknowledged: usize,
    sent: usize,
}

impl Steps {
    /// Does steps until the server is killed.
    fn run(&mut self, address: SocketAddr, mut random: fastrand::Rng, done: &AtomicU64) {
        let Ok(mut client) = Client::try_connect(address) else { return };
        loop {
            let Request { method, target, body } = self.kind.request(&self.prefix, self.acknowledged + 1);
            let durability = if random.bool() { "sync" } else { "async" };
            let headers = [("Content-Type", NDJSON)];
            self.sent = self.acknowledged + 1;
            let target = format!("{target}&durability={durability}");
            let Ok(answer) = client.try_request(method, &target, &headers, Some(&body)) else { return };
            if answer.status == 503 {
                // On a busy machine RocksDB stalls writes. A rejected request has had no effect.
                std::thread::sleep(Duration::from_millis(10));
                continue;
            }
            assert!(matches!(answer.status, 200 | 201 | 204), "{target}: {} {}", answer.status, answer.text());
            self.acknowledged = self.sent;
            done.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Compares with what the server has. The next steps begin from there.
    fn compare(&mut self, client: &mut Client) -> Result<(), String> {
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        let mut found = State::new();
        for entry in scan_all(client, &format!("prefix={}", self.prefix), Format::Page)?.0 {
            let Listed::Entry(key, Ok(value)) = entry else { panic!("an entry with its value") };
            found.insert(text(key), text(value));
        }
        let Some(step) = (self.acknowledged..=self.sent).find(|step| self.kind.state(&self.prefix, *step) == found)
        else {
            let Steps { kind, prefix, acknowledged, sent } = self;
            let expected = kind.state(prefix, *sent);
            let short = |value: Option<&String>| value.map(|value| value.trim_end_matches('x').to_owned());
            let differs = |key: &&String| found.get(*key) != expected.get(*key);
            let differences: Vec<_> = (found.keys().chain(expected.keys().filter(|key| !found.contains_key(*key))))
                .filter(differs)
                .map(|key| (key, short(found.get(key)), short(expected.get(key))))
                .collect();
            return Err(format!(
                "{kind:?} {prefix}: {acknowledged} acknowledged, {sent} sent, but what is there differs from {sent} in \
                 {differences:?}"
            ));
        };
        (self.acknowledged, self.sent) = (step, step);
        Ok(())
    }
}

/// Kills a server `kills` times while one client of each of `kinds` writes, and checks the data.
fn survives_kills(setup: &str, kinds: &[Kind], kills: usize, defect: Option<Defect>) -> Result<(), String> {
    let mut random = random();
    let data = tempfile::tempdir().unwrap();
    // Small memtables, so that some kills happen during flushes.
    let builder = ServerBuilder::new(setup).data(data.path()).arg("--memory", "64MiB").defect(defect);
    let steps =
        |(number, kind): (usize, &Kind)| Steps { kind: *kind, prefix: format!("c{number}/"), acknowledged: 0, sent: 0 };
    let mut clients: Vec<Steps> = kinds.iter().enumerate().map(steps).collect();
    for kill in 0..=kills {
        let server = builder.start();
        for steps in &mut clients {
            steps.compare(&mut server.client())?;
        }
        if kill == kills {
            break;
        }
        let (done, address) = (AtomicU64::new(0), server.address);
        // A number of steps and then some time, so that the kill happens at any stage of a write.
        let (enough, then) = (random.u64(1..300), Duration::from_micros(random.u64(0..3_000)));
        std::thread::scope(|scope| {
            for steps in &mut clients {
                let (random, done) = (random.fork(), &done);
                scope.spawn(move || steps.run(address, random, done));
            }
            wait_until("enough is done", || done.load(Ordering::Relaxed) >= enough);
            std::thread::sleep(then);
            server.kill();
        });
    }
    let acknowledged: usize = clients.iter().map(|steps| steps.acknowledged).sum();
    println!("{setup}: {acknowledged} steps over {kills} kills");
    Ok(())
}

const BATCHES: &[Kind] = &[Kind::Batches, Kind::Batches, Kind::Batches, Kind::Batches, Kind::Batches, Kind::Puts];

const REMOVALS: &[Kind] =
    &[Kind::Removals, Kind::Removals, Kind::Removals, Kind::Removals, Kind::Batches, Kind::Puts, Kind::Puts];

#[test]
fn atomic_batches_are_whole_or_absent_after_kills() {
    for engine in DURABLE_ENGINES {
        survives_kills(engine, BATCHES, 12, None).unwrap_or_else(|found| panic!("{engine}: {found}"));
    }
}

#[test]
fn removals_of_ranges_are_whole_or_absent_after_kills() {
    for engine in DURABLE_ENGINES {
        survives_kills(engine, REMOVALS, 12, None).unwrap_or_else(|found| panic!("{engine}: {found}"));
    }
}

#[test]
fn batches_and_removals_survive_kills_with_every_strategy() {
    for setup in durable_setups().filter(|setup| setup.contains('/')) {
        survives_kills(setup, REMOVALS, 3, None).unwrap_or_else(|found| panic!("{setup}: {found}"));
    }
}

#[test]
fn twin_half_a_batch_after_a_kill_is_noticed() {
    for engine in DURABLE_ENGINES {
        let found = survives_kills(engine, BATCHES, 20, Some(Defect::SplitsBatches)).expect_err("planted");
        assert!(found.starts_with("Batches"), "{engine}: {found}");
    }
}

#[test]
fn twin_half_a_removal_after_a_kill_is_noticed() {
    for engine in DURABLE_ENGINES {
        let found = survives_kills(engine, REMOVALS, 20, Some(Defect::SplitsRemovals)).expect_err("planted");
        assert!(found.starts_with("Removals"), "{engine}: {found}");
    }
}

#[test]
fn twin_a_lost_batch_is_noticed() {
    for engine in DURABLE_ENGINES {
        survives_kills(engine, BATCHES, 10, Some(Defect::LosesWrites)).expect_err("planted");
    }
}
