//! Checkpoints contain everything acknowledged before they began, appear as a whole or not at all, and do not disturb
//! requests. Compactions over the admin listener.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use super::support::planted::Defect;
use super::support::shim::Shim;
use super::support::stores::{check, klad};
use super::support::{Answer, Client, Over, PATIENCE, Server, ServerBuilder, wait_until};

const WRITERS: usize = 4;

fn json(answer: &Answer) -> serde_json::Value {
    serde_json::from_slice(&answer.body).unwrap_or_else(|error| panic!("{error}: {}", answer.text()))
}

fn make(server: &Server, name: &str) -> PathBuf {
    let answer = server.ask_admin("POST", &format!("/checkpoint?name={name}"));
    assert_eq!(answer.status, 201, "{}", answer.text());
    json(&answer)["path"].as_str().unwrap().into()
}

fn names(server: &Server) -> Vec<String> {
    let listed = json(&server.admin("/checkpoints"));
    listed["checkpoints"].as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap().to_owned()).collect()
}

/// What one writer knows: the number of the last acknowledged write of each key, and the last version.
type Acknowledged = Mutex<(HashMap<String, u64>, u64)>;

/// Writes numbers one after the other, with repeated keys, until `stop` is set.
fn write(address: SocketAddr, writer: usize, stop: &AtomicBool, acknowledged: &Acknowledged) {
    let mut client = Client::connect(address);
    for number in 1_u64.. {
        if stop.load(Ordering::Acquire) {
            return;
        }
        let durability = if number % 3 == 0 { "sync" } else { "async" };
        let key = format!("w{writer}k{}", number % 5_000);
        let value = format!("{number:08}{}", "x".repeat(300));
        let answer = client.put(&format!("/v0/entity?id={key}&durability={durability}"), value.as_bytes());
        // RocksDB accepts no writes while its flushes are far behind.
        if answer.status == 503 {
            continue;
        }
        assert_eq!(answer.status, 201, "{}", answer.text());
        let mut acknowledged = acknowledged.lock().unwrap();
        acknowledged.0.insert(key, number);
        acknowledged.1 = answer.version();
    }
}

/// Makes a checkpoint under load. Returns it, and what had been acknowledged before the request.
fn make_under_load(server: &Server, acknowledged: &[Acknowledged]) -> (PathBuf, HashMap<String, u64>) {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _over = Over(&stop);
        for (writer, acknowledged) in acknowledged.iter().enumerate() {
            let (address, stop) = (server.address, &stop);
            scope.spawn(move || write(address, writer, stop, acknowledged));
        }
        wait_until("enough is written", || acknowledged.iter().all(|one| one.lock().unwrap().0.len() > 1_500));
        let before = acknowledged.iter().flat_map(|one| one.lock().unwrap().0.clone()).collect();
        (make(server, "under-load"), before)
    })
}

/// Makes a checkpoint under load and serves it; `tamper` may change it before.
fn contains_acknowledged_writes(defect: Option<Defect>, tamper: fn(&Path)) -> Result<(), String> {
    let data = tempfile::tempdir().unwrap();
    let server = ServerBuilder::new("rocksdb").data(data.path()).arg("--memory", "64MiB").defect(defect).start();
    let acknowledged: Vec<_> = (0..WRITERS).map(|_| Acknowledged::default()).collect();
    let (made, before) = make_under_load(&server, &acknowledged);
    tamper(&made);
    let ran = check(&made);
    if ran.code != Some(0) {
        return Err(format!("the checkpoint is not sound: {}", ran.out));
    }
    // Served while the original server runs.
    let copy = ServerBuilder::new("rocksdb").data(&made).start();
    let mut client = copy.client();
    for (key, number) in &before {
        let answer = client.get(&format!("/v0/entity?id={key}"));
        let stored: u64 = answer.text().get(..8).and_then(|digits| digits.parse().ok()).unwrap_or(0);
        if answer.status != 200 || stored < *number {
            return Err(format!("{key} was acknowledged as {number} and is {stored} ({})", answer.status));
        }
    }
    // Versions that the original server has assigned since must not be assigned to other values.
    let largest = acknowledged.iter().map(|one| one.lock().unwrap().1).max().unwrap();
    let next = client.put("/v0/entity?id=new", b"v").version();
    if next <= largest {
        return Err(format!("version {next} was given out again, up to {largest} were"));
    }
    assert_eq!(server.client().get("/v0/entity?id=new").status, 404, "the two are two stores");
    Ok(())
}

#[test]
fn a_checkpoint_under_load_serves_all_acknowledged_writes() {
    contains_acknowledged_writes(None, |_| {}).unwrap();
}

#[test]
fn twin_lost_writes_are_missing_in_the_checkpoint() {
    let found = contains_acknowledged_writes(Some(Defect::LosesWrites), |_| {}).expect_err("planted");
    assert!(found.contains("was acknowledged as"), "{found}");
}

#[test]
fn twin_a_checkpoint_that_begins_at_its_last_version_repeats_versions() {
    let found = contains_acknowledged_writes(None, |made| {
        let report = klad(made, &["check", "--json"]).json();
        let end = report["version_max"].as_u64().unwrap() + 1;
        let text = format!("format = 1\nengine = rocksdb\nversions_reserved_until = {end}\n");
        std::fs::write(made.join("KLAD"), text).unwrap();
    });
    let found = found.expect_err("planted");
    assert!(found.contains("given out again"), "{found}");
}

#[test]
fn checkpoints_are_named_listed_served_and_removed() {
    let data = tempfile::tempdir().unwrap();
    let server = ServerBuilder::new("rocksdb").data(data.path()).start();
    assert_eq!(names(&server), Vec::<String>::new());
    assert_eq!(server.client().put("/v0/entity?id=k", b"one").status, 201);
    let first = make(&server, "first");
    assert!(first.starts_with(data.path()) && first.join("KLAD").exists());
    // Nothing was written between the two.
    let second = make(&server, "second");
    assert_eq!(server.client().put("/v0/entity?id=k", b"two").status, 201);
    assert_eq!(names(&server), ["first", "second"]);
    for path in [&first, &second] {
        assert_eq!(check(path).code, Some(0));
        let copy = ServerBuilder::new("rocksdb").data(path).start();
        assert_eq!(copy.client().get("/v0/entity?id=k").body, b"one");
        assert_eq!(copy.client().put("/v0/entity?id=k", b"three").status, 201);
        // A directory that a klad serves or has served is not a checkpoint any more: it may contain unique data.
        let name = path.file_name().unwrap().to_str().unwrap();
        for copy in [Some(copy), None] {
            assert!(!names(&server).contains(&name.to_owned()));
            let refused = server.ask_admin("DELETE", &format!("/checkpoint?name={name}"));
            assert!(refused.status == 409 && refused.text().contains("not-a-checkpoint"), "{}", refused.text());
            drop(copy);
        }
        assert_eq!(check(path).code, Some(0));
    }
    let third = make(&server, "third");
    assert_eq!(names(&server), ["third"]);
    let lock = std::fs::File::open(third.join("LOCK")).unwrap();
    lock.lock().unwrap();
    let refused = server.ask_admin("DELETE", "/checkpoint?name=third");
    assert!(refused.status == 409 && refused.text().contains("checkpoint-in-use"), "{}", refused.text());
    // Not by closing it: a process that another test starts just now has the open file too, for a moment.
    lock.unlock().unwrap();
    let removed = server.ask_admin("DELETE", "/checkpoint?name=third");
    assert_eq!(removed.status, 200, "{}", removed.text());
    assert!(!third.exists());
    assert_eq!(names(&server), Vec::<String>::new());
    // The default name is the time.
    let unnamed = server.ask_admin("POST", "/checkpoint");
    assert_eq!(unnamed.status, 201, "{}", unnamed.text());
    let name = json(&unnamed)["name"].as_str().unwrap().to_owned();
    assert!(name.starts_with("20") && name.ends_with('Z'), "{name}");
    assert_eq!(server.client().get("/v0/entity?id=k").body, b"two");
    assert_eq!(server.stop().code(), Some(0));
    assert_eq!(check(&second).code, Some(0));
}

#[test]
fn impossible_checkpoints_are_rejected_with_a_code() {
    let place = tempfile::tempdir().unwrap();
    let server = ServerBuilder::new("rocksdb").data(&place.path().join("data")).start();
    make(&server, "taken");
    for (method, target, status, code) in [
        ("POST", "/checkpoint?name=taken", 409, "checkpoint-exists"),
        ("POST", "/checkpoint?name=..%2Fup", 400, "bad-name"),
        ("POST", "/checkpoint?name=%2Ftmp%2Fx", 400, "bad-name"),
        ("POST", "/checkpoint?name=.hidden", 400, "bad-name"),
        ("POST", "/checkpoint?name=", 400, "bad-name"),
        ("POST", "/checkpoint?name=%zz", 400, "bad-escape"),
        ("DELETE", "/checkpoint?name=absent", 404, "no-such-checkpoint"),
        ("DELETE", "/checkpoint?name=..", 400, "bad-name"),
        ("DELETE", "/checkpoint", 400, "missing-parameter"),
        ("GET", "/checkpoint", 405, "method-not-allowed"),
        ("POST", "/checkpoints", 405, "method-not-allowed"),
        ("PUT", "/compact", 405, "method-not-allowed"),
        ("DELETE", "/compact", 409, "idle"),
        ("POST", "/compact?bottommost=0", 400, "bad-parameter"),
        ("POST", "/compact?bottommost=", 400, "bad-parameter"),
    ] {
        let answer = server.ask_admin(method, target);
        assert_eq!((answer.status, json(&answer)["code"].as_str()), (status, Some(code)), "{method} {target}");
    }
    assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 1, "nothing beside the data directory");
    let memory = ServerBuilder::new("memory").start();
    let answer = memory.ask_admin("POST", "/checkpoint");
    assert_eq!(
        (answer.status, json(&answer)["code"].as_str()),
        (501, Some("not-supported-by-engine")),
        "{}",
        answer.text()
    );
    assert_eq!(memory.ask_admin("POST", "/compact").status, 202);
    wait_until("the compaction is rejected", || {
        memory.admin("/compact").text().contains("not done: --engine memory has no compactions")
    });
    std::os::unix::fs::symlink(place.path(), place.path().join("link")).unwrap();
    for (data, wrong) in [
        ("data", ""),
        ("data", "rocksdb"),
        ("data", "rocksdb/checkpoints"),
        // Directories above the data: by name, by a link, and one that does not exist yet.
        ("data", ".."),
        ("link/data", "../.."),
        ("link/new/data", "../../new"),
    ] {
        let data = place.path().join(data);
        let builder = ServerBuilder::new("memory").data(&data).arg("--checkpoints", data.join(wrong).to_str().unwrap());
        let failed = builder.try_start().err().expect("does not start");
        assert!(failed.log.contains("--checkpoints") && failed.log.contains("another directory"), "{}", failed.log);
    }
}

#[test]
fn below_the_reserve_and_after_a_failed_sync_there_are_no_checkpoints() {
    let data = tempfile::tempdir().unwrap();
    let server = ServerBuilder::new("rocksdb").data(data.path()).arg("--disk-reserve", "1000000GiB").start();
    let answer = server.ask_admin("POST", "/checkpoint?name=x");
    assert_eq!((answer.status, json(&answer)["code"].as_str()), (507, Some("no-space")), "{}", answer.text());
    drop(server);
    let shim = Shim::new();
    let server = shim.preload(ServerBuilder::new("rocksdb").data(data.path())).start();
    shim.fail_syncs();
    assert_eq!(server.client().put("/v0/entity?id=k", b"v").status, 500);
    let answer = server.ask_admin("POST", "/checkpoint?name=x");
    assert_eq!((answer.status, json(&answer)["code"].as_str()), (503, Some("writes-stopped")), "{}", answer.text());
    assert_eq!(names(&server), Vec::<String>::new());
}

/// Checks that everything with the name of a checkpoint can be served.
fn all_are_complete(checkpoints: &Path) -> Result<(), String> {
    for entry in std::fs::read_dir(checkpoints).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        let ran = if name.starts_with('.') { continue } else { check(&path) };
        if ran.code != Some(0) {
            return Err(format!("{name}: {ran:?}"));
        }
    }
    Ok(())
}

/// Holds a checkpoint in the middle. Only one runs at a time, and requests continue. Then the process is killed:
/// nothing is left that could be served, and the next start removes the rest.
#[test]
fn an_interrupted_checkpoint_leaves_nothing_that_can_be_served() {
    let data = tempfile::tempdir().unwrap();
    let shim = Shim::new();
    let builder = ServerBuilder::new("rocksdb").data(data.path());
    let server = shim.preload(builder.clone()).start();
    let mut client = server.client();
    assert_eq!(client.put("/v0/entity?id=k", b"v").status, 201);
    shim.hold_checkpoints();
    let mut asking = Client::connect(server.admin);
    asking.send("POST", "/checkpoint?name=half", &[], None).unwrap();
    shim.wait_until_held();
    for _ in 0..100 {
        assert_eq!(client.put("/v0/entity?id=k", b"w").status, 201);
        assert_eq!(client.get("/v0/entity?id=k").body, b"w");
    }
    for target in ["/livez", "/readyz"] {
        assert_eq!(server.admin(target).status, 200);
    }
    let other = server.ask_admin("POST", "/checkpoint?name=other");
    assert_eq!((other.status, json(&other)["code"].as_str()), (409, Some("busy")), "{}", other.text());
    let state = json(&server.admin("/checkpoints"));
    assert_eq!(state["running"]["what"], "checkpoint", "{state}");
    server.kill();
    let checkpoints = data.path().join("checkpoints");
    let left = || {
        let found = std::fs::read_dir(&checkpoints).unwrap();
        found.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(left(), [".partial-half"]);
    all_are_complete(&checkpoints).unwrap();
    // The twin: a partial checkpoint under its final name is noticed.
    std::fs::rename(checkpoints.join(".partial-half"), checkpoints.join("half")).unwrap();
    all_are_complete(&checkpoints).expect_err("incomplete");
    std::fs::rename(checkpoints.join("half"), checkpoints.join(".partial-half")).unwrap();
    let server = builder.start();
    wait_until("the rest is removed", || left().is_empty());
    assert_eq!(server.client().get("/v0/entity?id=k").body, b"w");
    make(&server, "half");
    assert_eq!(names(&server), ["half"]);
}

/// Other data in the directory of checkpoints is never listed and never removed.
#[test]
fn only_checkpoints_are_listed_and_removed() {
    let place = tempfile::tempdir().unwrap();
    let beside = place.path().join("beside");
    std::fs::create_dir(&beside).unwrap();
    let server = ServerBuilder::new("rocksdb")
        .data(&place.path().join("data"))
        .arg("--checkpoints", beside.to_str().unwrap())
        .start();
    let other = ServerBuilder::new("rocksdb").data(&beside.join("other")).start();
    assert_eq!(other.client().put("/v0/entity?id=k", b"v").status, 201);
    std::fs::create_dir(beside.join("photos")).unwrap();
    let refused = |name: &str| {
        let answer = server.ask_admin("DELETE", &format!("/checkpoint?name={name}"));
        assert_eq!((answer.status, json(&answer)["code"].as_str()), (409, Some("not-a-checkpoint")), "{name}");
    };
    refused("other");
    refused("photos");
    assert_eq!(other.stop().code(), Some(0));
    refused("other");
    assert_eq!(names(&server), Vec::<String>::new());
    assert_eq!(check(&beside.join("other")).code, Some(0));
}

/// Two klads with the same directory of checkpoints do not remove each other's checkpoints, and their answers are true.
#[test]
fn two_klads_with_one_directory_make_complete_checkpoints_or_none() {
    let place = tempfile::tempdir().unwrap();
    let shared = place.path().join("shared");
    let start = |name: &str| {
        ServerBuilder::new("rocksdb")
            .data(&place.path().join(name))
            .arg("--checkpoints", shared.to_str().unwrap())
            .start()
    };
    let servers = [start("one"), start("two")];
    let made: Vec<usize> = std::thread::scope(|scope| {
        let loops = servers.iter().enumerate().map(|(number, server)| {
            scope.spawn(move || {
                let (mut made, deadline) = (0, Instant::now() + PATIENCE);
                // A rejected request returns at once, so it is repeated many times while the other klad makes a slow
                // checkpoint.
                for round in 0_u64.. {
                    if made == 10 || Instant::now() > deadline {
                        break;
                    }
                    assert_eq!(server.client().put(&format!("/v0/entity?id={round}"), b"v").status, 201);
                    let answer = server.ask_admin("POST", &format!("/checkpoint?name=s{number}r{round}"));
                    if answer.status == 201 {
                        made += 1;
                    } else {
                        let code = json(&answer)["code"].as_str().map(str::to_owned);
                        assert_eq!((answer.status, code.as_deref()), (409, Some("busy")), "{}", answer.text());
                    }
                }
                made
            })
        });
        let loops: Vec<_> = loops.collect();
        loops.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(made.iter().all(|made| *made == 10), "{made:?}");
    assert_eq!(names(&servers[0]).len(), made.iter().sum::<usize>());
    all_are_complete(&shared).unwrap();
}

/// A klad that starts does not touch the checkpoint that another one is making, and its own checkpoints are rejected
/// meanwhile.
#[test]
fn a_checkpoint_in_progress_is_not_removed_by_another_klad() {
    let place = tempfile::tempdir().unwrap();
    let shared = place.path().join("shared");
    let builder = |name: &str| {
        ServerBuilder::new("rocksdb").data(&place.path().join(name)).arg("--checkpoints", shared.to_str().unwrap())
    };
    let shim = Shim::new();
    let one = shim.preload(builder("one")).start();
    shim.hold_checkpoints();
    let mut asking = Client::connect(one.admin);
    asking.send("POST", "/checkpoint?name=slow", &[], None).unwrap();
    shim.wait_until_held();
    let two = builder("two").start();
    let refused = two.ask_admin("POST", "/checkpoint?name=x");
    assert_eq!((refused.status, json(&refused)["code"].as_str()), (409, Some("busy")), "{}", refused.text());
    assert!(refused.text().contains("another klad"), "{}", refused.text());
    assert!(shared.join(".partial-slow").exists());
    shim.pass();
    wait_until("the checkpoint is complete", || names(&one) == ["slow"]);
    all_are_complete(&shared).unwrap();
    make(&two, "x");
}

#[test]
fn listing_checkpoints_does_not_block_making_one() {
    let data = tempfile::tempdir().unwrap();
    let server = ServerBuilder::new("rocksdb").data(data.path()).start();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let over = Over(&stop);
        scope.spawn(|| {
            while !stop.load(Ordering::Acquire) {
                names(&server);
            }
        });
        let asked: Vec<_> =
            (0..20).map(|number| server.ask_admin("POST", &format!("/checkpoint?name=n{number}"))).collect();
        drop(over);
        for answer in asked {
            assert_eq!(answer.status, 201, "{}", answer.text());
        }
    });
    assert_eq!(names(&server).len(), 20);
}

#[test]
fn a_stop_waits_for_a_checkpoint_for_a_limited_time() {
    let data = tempfile::tempdir().unwrap();
    let shim = Shim::new();
    let builder = ServerBuilder::new("rocksdb").data(data.path()).arg("--drain-timeout", "1s");
    let mut server = shim.preload(builder.clone()).start();
    assert_eq!(server.client().put("/v0/entity?id=k&durability=async", b"v").status, 201);
    shim.hold_checkpoints();
    let mut asking = Client::connect(server.admin);
    asking.send("POST", "/checkpoint?name=held", &[], None).unwrap();
    shim.wait_until_held();
    server.signal(rustix::process::Signal::TERM);
    // The shim still holds the sync.
    assert_eq!(server.wait().code(), Some(0), "{}", server.log());
    wait_until("the last line is logged", || server.log().contains("klad stops without it"));
    let partial = data.path().join("checkpoints/.partial-held");
    assert!(partial.exists());
    let server = builder.start();
    wait_until("the rest is removed", || !partial.exists());
    assert_eq!(server.client().get("/v0/entity?id=k").body, b"v");
    assert_eq!(names(&server), Vec::<String>::new());
}

#[test]
fn a_stop_waits_for_a_checkpoint_in_progress() {
    let data = tempfile::tempdir().unwrap();
    let shim = Shim::new();
    let builder = ServerBuilder::new("rocksdb").data(data.path()).arg("--drain-timeout", "5m");
    let mut server = shim.preload(builder).start();
    assert_eq!(server.client().put("/v0/entity?id=k", b"v").status, 201);
    shim.hold_checkpoints();
    let mut asking = Client::connect(server.admin);
    asking.send("POST", "/checkpoint?name=last", &[], None).unwrap();
    shim.wait_until_held();
    server.signal(rustix::process::Signal::TERM);
    wait_until("klad is stopping", || server.log().contains("stopping"));
    shim.pass();
    assert_eq!(server.wait().code(), Some(0), "{}", server.log());
    assert_eq!(check(&data.path().join("checkpoints/last")).code, Some(0));
}

#[test]
fn checkpoints_elsewhere_and_compactions_online() {
    let (data, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let checkpoints = elsewhere.path().join("made/with the first");
    let builder = ServerBuilder::new("rocksdb")
        .data(data.path())
        .arg("--memory", "64MiB")
        .arg("--checkpoints", checkpoints.to_str().unwrap());
    let server = builder.start();
    let mut client = server.client();
    for n in 0..2_000 {
        let target = format!("/v0/entity?id={n}&durability=async");
        assert_eq!(client.put(&target, &[b'v'; 1_000]).status, 201);
    }
    let full = make(&server, "full");
    assert!(full.starts_with(&checkpoints));
    for n in 1..2_000 {
        assert_eq!(client.delete(&format!("/v0/entity?id={n}&durability=async")).status, 202);
    }
    let begun = server.ask_admin("POST", "/compact?bottommost=true");
    assert_eq!(begun.status, 202, "{}", begun.text());
    wait_until("all is compacted", || json(&server.admin("/compact"))["running"].is_null());
    let state = json(&server.admin("/compact"));
    assert!(state["last"].as_str().unwrap().ends_with("done"), "{state}");
    assert!(client.get("/v0/entity?id=0").status == 200 && client.get("/v0/entity?id=1").status == 404);
    let bytes = |path: &Path| klad(path, &["check", "--json"]).json()["table_bytes"].as_u64().unwrap();
    let before = bytes(&full);
    assert_eq!(server.stop().code(), Some(0));
    assert!(bytes(data.path()) * 5 < before, "{} of {before}", bytes(data.path()));
}
