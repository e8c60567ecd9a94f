//! Histories of requests for single keys, and their check by Porcupine. The Go program `tests/porcupine` has the model.

use std::io::Write as _;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use serde_json::{Value, json};

use super::Client;

/// The keys that all clients share: few, so that requests meet.
const KEYS: usize = 3;

/// Requests that clients send at the same time, in the form that the checker reads.
pub(crate) struct History {
    began: Instant,
    requests: Vec<Value>,
}

/// One client of a history.
pub(crate) struct Recorder {
    number: usize,
    began: Instant,
    random: fastrand::Rng,
    /// The last `ETag` that this client has seen of each key.
    seen: [Option<String>; KEYS],
    requests: Vec<Value>,
}

/// A request that a recorder has chosen.
struct Chosen {
    key: usize,
    op: &'static str,
    method: &'static str,
    query: String,
    condition: String,
    value: String,
    by: i64,
}

impl History {
    pub(crate) fn new() -> History {
        History { began: Instant::now(), requests: Vec::new() }
    }

    /// Returns a client whose requests [`History::add`] adds.
    pub(crate) fn recorder(&self, number: usize, random: fastrand::Rng) -> Recorder {
        Recorder { number, began: self.began, random, seen: [const { None }; KEYS], requests: Vec::new() }
    }

    pub(crate) fn add(&mut self, recorder: Recorder) {
        self.requests.extend(recorder.requests);
    }

    /// Adds a request that a test has written down.
    pub(crate) fn push(&mut self, request: Value) {
        self.requests.push(request);
    }

    pub(crate) fn len(&self) -> usize {
        self.requests.len()
    }

    /// Returns the number of requests whose outcome is unknown.
    pub(crate) fn unknown(&self) -> usize {
        self.requests.iter().filter(|request| request["status"] == 0).count()
    }

    /// Checks the history. The error says what is wrong.
    pub(crate) fn check(&self) -> Result<(), String> {
        self.check_versions()?;
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/porcupine");
        let mut child = Command::new("go")
            .args(["run", "-mod=readonly", "."])
            .current_dir(directory)
            .env("GO111MODULE", "on")
            .env("GOTOOLCHAIN", "local")
            .env("GOFLAGS", "-buildvcs=false")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("go cannot be run ({error}): tools/setup.sh installs it"));
        let lines: String = self.requests.iter().map(|request| format!("{request}\n")).collect();
        let mut stdin = child.stdin.take().unwrap();
        // The program reads everything before it prints anything. If it cannot, its stderr says why.
        let _ = stdin.write_all(lines.as_bytes());
        drop(stdin);
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        if said.trim() == "linearizable" { Ok(()) } else { Err(said) }
    }

    /// Checks that no two changes have the same version.
    fn check_versions(&self) -> Result<(), String> {
        let mut seen = std::collections::HashSet::new();
        let changes =
            self.requests.iter().filter(|one| one["op"] != "get" && matches!(one["status"].as_u64(), Some(200..=204)));
        for change in changes {
            let version = change["version"].as_str().unwrap_or_default();
            if !version.is_empty() && !seen.insert(version) {
                return Err(format!("version {version} was assigned twice"));
            }
        }
        Ok(())
    }
}

impl Recorder {
    /// Sends `count` requests, or fewer if the server is killed. Counts them in `sent`.
    pub(crate) fn run(&mut self, address: SocketAddr, count: usize, sent: &AtomicUsize) {
        let Ok(mut client) = Client::try_connect(address) else { return };
        for _ in 0..count {
            let chosen = self.choose();
            let headers: Vec<(&str, &str)> = match &*chosen.condition {
                "" => Vec::new(),
                "absent" => vec![("If-None-Match", "*")],
                tag => vec![("If-Match", tag)],
            };
            let target = format!("/v1/kv/key{}{}", chosen.key, chosen.query);
            let body = (chosen.op == "put").then_some(chosen.value.as_bytes());
            let call = self.now();
            let answer = client.try_request(chosen.method, &target, &headers, body);
            let answered = self.now();
            sent.fetch_add(1, Ordering::Relaxed);
            let mut request = json!({
                "client": self.number, "key": format!("key{}", chosen.key), "op": chosen.op, "call": call,
                "condition": chosen.condition, "value": chosen.value, "by": chosen.by, "status": 0,
            });
            match answer {
                // A rejected request has had no effect, and a read that ended early has told nothing.
                Ok(answer) if answer.status == 503 || (answer.status == 504 && chosen.op == "get") => continue,
                Err(_) if chosen.op == "get" => return,
                // The outcome of a change is unknown, and its end open.
                Err(_) => {
                    self.requests.push(request);
                    return;
                }
                Ok(answer) if matches!(answer.status, 500 | 504) && chosen.op != "get" => {}
                Ok(answer) => {
                    assert!(matches!(answer.status, 200 | 201 | 204 | 404 | 409 | 412), "{answer:?}");
                    let tag = answer.header("etag").map(str::to_owned);
                    request["status"] = answer.status.into();
                    request["return"] = answered.into();
                    request["etag"] = tag.clone().unwrap_or_default().into();
                    request["version"] = answer
                        .header("klad-version")
                        .map_or_else(|| tag.clone(), |version| Some(version.to_owned()))
                        .into();
                    request["found"] = if answer.status == 200 { answer.text().into() } else { "".into() };
                    if let Some(tag) = tag {
                        self.seen[chosen.key] = Some(tag);
                    }
                }
            }
            self.requests.push(request);
        }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_nanos()).expect("a test is short") + 1
    }

    fn choose(&mut self) -> Chosen {
        let key = self.random.usize(..KEYS);
        let durability = if self.random.bool() { "sync" } else { "async" };
        let condition = match self.random.usize(..6) {
            0 | 1 => String::new(),
            2 => "*".to_owned(),
            _ => self.seen[key].clone().unwrap_or_else(|| "\"1\"".to_owned()),
        };
        let mut chosen = Chosen {
            key,
            op: "get",
            method: "GET",
            query: String::new(),
            condition: String::new(),
            value: String::new(),
            by: 0,
        };
        match self.random.usize(..20) {
            0..=4 => return chosen,
            5..=9 => {
                (chosen.op, chosen.method) = ("put", "PUT");
                chosen.query = format!("?durability={durability}");
                // A number, so that counters can go on, and one that no other request stores.
                chosen.value = (self.number * 1_000_000_000 + self.random.usize(..1_000_000_000)).to_string();
            }
            10..=11 => {
                (chosen.op, chosen.method) = ("delete", "DELETE");
                chosen.query = format!("?durability={durability}");
            }
            12..=13 => {
                (chosen.op, chosen.method) = ("touch", "POST");
                chosen.query = format!("?op=expire&ttl=1h&durability={durability}");
            }
            _ => {
                (chosen.op, chosen.method) = ("add", "POST");
                chosen.by = self.random.i64(-9..=9);
                chosen.query = format!("?op=add&by={}&durability={durability}", chosen.by);
            }
        }
        chosen.condition = if matches!(chosen.op, "put" | "add") && self.random.usize(..8) == 0 {
            "absent".to_owned()
        } else {
            condition
        };
        chosen
    }
}
