//! Failures of Cassandra nodes and of a klad under load: no acknowledged write is missing, and no read is stale.
//!
//! Method: each client writes keys of its own through one klad, reads them through another one, and keeps a journal of
//! what it sent and what was acknowledged. A read must return the last acknowledged value or a later one that was sent.
//! Values are numbers that grow, so the journal of a key is two numbers.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::support::cassandra::{self, Klads, NODES};
use super::support::history::History;
use super::support::{Client, Over, random, wait_until};

const CLIENTS: usize = 6;
const KEYS: usize = 10;

/// The time between a client's read and its next write.
const PAUSE: Duration = Duration::from_millis(40);

/// What the clients have seen in the present phase.
#[derive(Default)]
struct Seen {
    /// The number of the phase.
    phase: u64,
    /// The number of answers with each status to requests of this phase. 0 stands for a connection that ended or could
    /// not be opened.
    statuses: BTreeMap<u16, u64>,
    longest: Duration,
    wrong: Vec<String>,
    /// The number of successes of each client since its last failure.
    in_a_row: [u64; CLIENTS],
}

/// What the clients share with the test.
struct Shared {
    klads: Vec<SocketAddr>,
    /// Parameters of each request.
    more: &'static str,
    seen: Mutex<Seen>,
    over: AtomicBool,
}

/// One client. The journal of a key: the last acknowledged write, and the last one sent.
struct Journal<'s> {
    shared: &'s Shared,
    number: usize,
    connections: [Option<Client>; NODES],
    keys: [(u64, u64); KEYS],
}

impl Journal<'_> {
    /// Writes and reads until the test is over.
    fn run(&mut self) {
        for write in 1.. {
            if self.shared.over.load(Ordering::SeqCst) {
                return;
            }
            // Nodes that start need most of the CPU time.
            std::thread::sleep(PAUSE);
            let key = usize::try_from(write).unwrap() % KEYS;
            self.keys[key].1 = write;
            let answer = self.ask(self.number, "PUT", key, Some(write.to_string().as_bytes()));
            if answer.is_some_and(|(status, _)| status == 201) {
                self.keys[key].0 = write;
            }
            let read = self.ask(self.number + 1, "GET", key, None);
            let found = match read {
                Some((200, text)) => text.parse().unwrap(),
                Some((404, _)) => 0,
                _ => continue,
            };
            let (acknowledged, sent) = self.keys[key];
            if !(acknowledged..=sent).contains(&found) {
                let wrong = format!("client {}: {found} was read, {acknowledged} acknowledged", self.number);
                self.shared.seen.lock().unwrap().wrong.push(wrong);
            }
        }
    }

    /// Sends a request to a klad, on a new connection if the last one has ended. Returns status and body.
    fn ask(&mut self, klad: usize, method: &str, key: usize, body: Option<&[u8]>) -> Option<(u16, String)> {
        let (klad, shared) = (klad % NODES, self.shared);
        let target = format!("/v0/entity?id=client{}key{key}{}", self.number, shared.more);
        let began = Instant::now();
        let phase = shared.seen.lock().unwrap().phase;
        let connection = self.connections[klad].take().or_else(|| Client::try_connect(shared.klads[klad]).ok());
        let answer = connection.and_then(|mut connection| {
            let answer = connection.try_request(method, &target, &[], body).ok()?;
            self.connections[klad] = Some(connection);
            Some((answer.status, answer.text()))
        });
        let mut seen = shared.seen.lock().unwrap();
        // A request that began before the phase may have the answer of an earlier one.
        if seen.phase == phase {
            *seen.statuses.entry(answer.as_ref().map_or(0, |(status, _)| *status)).or_default() += 1;
            seen.longest = seen.longest.max(began.elapsed());
        }
        let succeeded = answer.as_ref().is_some_and(|(status, _)| SUCCESS.contains(status));
        seen.in_a_row[self.number] = if succeeded { seen.in_a_row[self.number] + 1 } else { 0 };
        drop(seen);
        if answer.is_none() {
            std::thread::sleep(Duration::from_millis(10));
        }
        answer
    }
}

impl Shared {
    fn new(klads: &Klads, more: &'static str) -> Shared {
        let klads = (0..NODES).map(|klad| klads.address(klad)).collect();
        Shared { klads, more, seen: Mutex::default(), over: AtomicBool::new(false) }
    }

    /// Waits for `count` further answers with one of `statuses`.
    fn wait_for(&self, statuses: &[u16], count: u64) {
        let answers = || {
            statuses
                .iter()
                .map(|status| self.seen.lock().unwrap().statuses.get(status).copied().unwrap_or(0))
                .sum::<u64>()
        };
        let before = answers();
        wait_until("the clients have these answers", || answers() >= before + count);
    }

    /// Waits until each client has had [`SOME`] successes one after the other.
    fn wait_for_calm(&self) {
        self.seen.lock().unwrap().in_a_row = [0; CLIENTS];
        wait_until("each client has only successes", || {
            self.seen.lock().unwrap().in_a_row.iter().all(|row| *row >= SOME)
        });
    }

    /// Ends a phase: prints what the clients have seen, and checks that they have seen only `allowed` statuses.
    fn ends(&self, phase: &str, allowed: &[u16]) {
        let mut seen = self.seen.lock().unwrap();
        let next = Seen { phase: seen.phase + 1, ..Seen::default() };
        let Seen { statuses, longest, wrong, .. } = std::mem::replace(&mut *seen, next);
        drop(seen);
        println!("{phase}: statuses {statuses:?}, longest request {longest:?}");
        assert!(statuses.keys().all(|status| allowed.contains(status)), "{phase}: {statuses:?}");
        assert_eq!(wrong, Vec::<String>::new(), "{phase}");
    }
}

/// The answers of requests that succeed.
const SUCCESS: [u16; 3] = [200, 201, 404];

/// Some answers of a phase.
const SOME: u64 = 300;

#[test]
fn no_acknowledged_write_is_missing_through_failures_of_nodes_and_a_klad() {
    let Some(cluster) = cassandra::alone() else { return };
    let mut klads = Klads::start(&cluster);
    let shared = Shared::new(&klads, "");
    std::thread::scope(|scope| {
        let _over = Over(&shared.over);
        for number in 0..CLIENTS {
            let shared = &shared;
            scope.spawn(move || {
                Journal { shared, number, connections: [const { None }; NODES], keys: [(0, 0); KEYS] }.run();
            });
        }
        // A node asks a second copy only once it has measured reads. The measurement begins one read timeout after the
        // table was made.
        std::thread::sleep(cassandra::READ_TIMEOUT);
        shared.wait_for(&[201], SOME);
        shared.ends("all nodes up", &SUCCESS);

        cluster.freeze(0);
        shared.wait_for(&[201], SOME);
        shared.ends("one node frozen", &SUCCESS);
        cluster.thaw(0);
        shared.wait_for(&[201], SOME);
        shared.ends("thawed", &SUCCESS);

        cluster.kill(2);
        shared.wait_for(&[201], SOME);
        shared.ends("one node killed", &SUCCESS);

        cluster.kill(1);
        shared.wait_for(&[504], 30);
        shared.ends("two nodes killed", &[200, 201, 404, 504]);
        cluster.restart(&[1, 2]);
        shared.wait_for_calm();
        shared.ends("two nodes started", &[200, 201, 404, 504]);
        shared.wait_for(&[201], SOME);
        shared.ends("all nodes up again", &SUCCESS);

        for node in 0..NODES {
            cluster.kill(node);
        }
        shared.wait_for(&[504], 30);
        cluster.restart(&[0, 1, 2]);
        shared.wait_for_calm();
        shared.ends("all nodes killed and started", &[200, 201, 404, 504]);
        shared.wait_for(&[201], SOME);
        shared.ends("all nodes up a last time", &SUCCESS);

        klads.kill_last();
        shared.wait_for(&[201], SOME);
        shared.ends("a klad killed", &[0, 200, 201, 404]);
    });
}

/// The clients ask one copy where the test above asks a majority.
#[test]
fn twin_stale_reads_are_noticed() {
    let Some(cluster) = cassandra::alone() else { return };
    let klads = Klads::start(&cluster);
    let shared = Shared::new(&klads, "&ack=1&from=3");
    std::thread::scope(|scope| {
        let _over = Over(&shared.over);
        for number in 0..CLIENTS {
            let shared = &shared;
            scope.spawn(move || {
                Journal { shared, number, connections: [const { None }; NODES], keys: [(0, 0); KEYS] }.run();
            });
        }
        wait_until("a read is stale", || !shared.seen.lock().unwrap().wrong.is_empty());
    });
}

/// Conditional writes, counters and reads of few keys through all klads, while a node is killed.
#[test]
fn conditional_writes_are_linearizable_through_a_killed_node() {
    let Some(cluster) = cassandra::alone() else { return };
    let klads = Klads::start(&cluster);
    let (mut history, mut random, sent) = (History::new(), random(), AtomicUsize::new(0));
    let mut clients: Vec<_> =
        (0..CLIENTS).map(|number| history.recorder(number, random.fork()).conditional()).collect();
    std::thread::scope(|scope| {
        for (number, client) in clients.iter_mut().enumerate() {
            let (address, sent) = (klads.address(number % NODES), &sent);
            scope.spawn(move || client.run(address, 100, sent));
        }
        wait_until("some requests were sent", || sent.load(Ordering::Relaxed) > 150);
        cluster.kill(2);
    });
    for client in clients {
        history.add(client);
    }
    println!("{} requests, {} with an unknown outcome", history.len(), history.unknown());
    history.check().unwrap_or_else(|found| panic!("{found}"));
}
