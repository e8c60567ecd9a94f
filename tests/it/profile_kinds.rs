//! Profiles of every kind under known loads: the most expensive functions come first, and waits have the right names.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use klad_profile::{Name, Profile, pprof};

use super::support::bencher::Bencher;
#[cfg(feature = "rocksdb")]
use super::support::profiles::as_f64;
use super::support::tools::top;
use super::support::{Client, Over, Server, ServerBuilder};

/// A kind of profile with a duration, and words that Go's output for it must contain under [`loaded`].
struct Timed {
    path: &'static str,
    title: &'static str,
    values: [(&'static str, &'static str); 2],
    names: &'static [&'static str],
}

const KINDS: &[Timed] = &[
    Timed {
        path: "/debug/pprof/profile?seconds=3&hz=199",
        title: "CPU time",
        values: [("samples", "count"), ("cpu", "nanoseconds")],
        names: &["klad_", "rocksdb::DBImpl::Write"],
    },
    Timed {
        path: "/debug/pprof/mutex?seconds=3&threshold=1us",
        title: "Waits for locks",
        values: [("contentions", "count"), ("delay", "nanoseconds")],
        names: &["klad_storage::", "rocksdb::DBImpl::"],
    },
    Timed {
        path: "/debug/pprof/block?seconds=3&threshold=1us",
        title: "Waits",
        values: [("contentions", "count"), ("delay", "nanoseconds")],
        names: &["klad_", "rocksdb::"],
    },
];

/// Returns the answer of `path` under a load of PUTs at the maximum rate: a low rate would give only a few samples.
fn loaded(server: &Server, path: &str) -> Vec<u8> {
    let options = "--workload put --keys 1000 --value-size 1KiB --closed --connections 16 --duration 6s";
    let taken = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let over = Over(&taken);
        let bench = scope.spawn(|| Bencher::new(&format!("http://{}", server.address), options).run());
        // Flushes keep RocksDB's threads busy, and cause waits for its locks.
        let care = scope.spawn(|| {
            while cfg!(feature = "rocksdb") && !taken.load(Ordering::Relaxed) {
                Client::connect(server.admin).request("POST", "/compact", &[], None);
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        let answer = server.admin(path);
        drop(over);
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
        bench.join().unwrap();
        care.join().unwrap();
        answer.body
    })
}

/// Starts a server with the strategy `pool`, whose threads wait for each other.
fn contended() -> Server {
    ServerBuilder::new(if cfg!(feature = "rocksdb") { "rocksdb/pool" } else { "memory/pool" })
        .arg("--pool-threads", "4")
        .start()
}

fn server() -> Server {
    ServerBuilder::new(if cfg!(feature = "rocksdb") { "rocksdb" } else { "memory" }).start()
}

/// Returns what is wrong with a profile.
fn wrong_with(bytes: &[u8], kind: &Timed) -> Option<String> {
    let profile = match pprof::decode(bytes) {
        Ok(profile) => profile,
        Err(error) => return Some(error.to_string()),
    };
    let values: Vec<(&str, &str)> =
        profile.values.iter().map(|value| (value.kind.as_str(), value.unit.as_str())).collect();
    if values != kind.values {
        return Some(format!("{values:?}"));
    }
    for fact in ["duration", "version"] {
        if !profile.facts.iter().any(|(name, _)| name == fact) {
            return Some(format!("{} lacks the fact {fact}: {:?}", kind.title, profile.facts));
        }
    }
    let said = match top(bytes) {
        Ok(said) => said,
        Err(why) => return Some(format!("go does not read it: {why}")),
    };
    // With the memory engine the lock of a shard is held too short for a wait.
    let has_to_be = |name: &str| cfg!(feature = "rocksdb") || name == "klad_";
    let missing = kind.names.iter().find(|name| !said.contains(*name) && has_to_be(name))?;
    Some(format!("no {missing} in {said}"))
}

#[test]
fn go_reads_every_kind_that_takes_its_time() {
    let server = contended();
    for kind in KINDS {
        assert_eq!(wrong_with(&loaded(&server, kind.path), kind), None, "{}", kind.path);
    }
}

/// Checks that a profile of waits contains idle threads, with the call in which they wait as the first frame.
fn idle_threads(profile: &Profile<Name>) -> Result<(), String> {
    let own = ("klad_base::sync::Condvar::wait", "klad_");
    let engine = cfg!(all(feature = "rocksdb", feature = "posix-locks")).then_some(("pthread_cond_wait", "rocksdb::"));
    for (call, function) in std::iter::once(own).chain(engine) {
        let waits = |sample: &klad_profile::Sample<Name>| {
            sample.frames.first().is_some_and(|first| &**first == call)
                && sample.frames[1..].iter().any(|frame| frame.contains(function))
        };
        if !profile.samples.iter().any(waits) {
            return Err(format!("no stack of {function} waits in {call}: {:#?}", profile.samples));
        }
    }
    let machinery =
        profile.samples.iter().find(|sample| sample.frames.iter().any(|f| f.contains("klad_base::sampling")));
    machinery.map_or(Ok(()), |sample| Err(format!("{sample:#?}")))
}

/// There are no requests, so no wait begins or ends within the window.
#[test]
fn waits_that_began_before_the_profile_are_in_block() {
    let server = server();
    let answer = server.admin("/debug/pprof/block?seconds=0.2");
    assert_eq!(answer.status, 200, "{}", answer.text());
    let profile = pprof::decode(&answer.body).unwrap();
    assert_eq!(idle_threads(&profile), Ok(()));
    // Planted defects: frames of the machinery, and missing waits.
    let mut more = profile.clone();
    for sample in &mut more.samples {
        sample.frames.insert(0, Name::from("klad_base::sampling::waits::timed"));
    }
    assert!(idle_threads(&more).is_err());
    let nothing = Profile { samples: Vec::new(), ..profile };
    assert!(idle_threads(&nothing).is_err());
}

#[test]
fn twin_a_profile_of_another_kind_is_noticed() {
    let bytes = loaded(&server(), KINDS[0].path);
    assert!(wrong_with(&bytes, &KINDS[1]).unwrap().contains("cpu"));
    let mut nameless = pprof::decode(&bytes).unwrap();
    for sample in &mut nameless.samples {
        sample.frames = vec![Name::from("f")];
    }
    assert!(wrong_with(&pprof::encode(&nameless), &KINDS[0]).unwrap().starts_with("no klad_"));
}

/// Returns the CPU time of the threads whose names begin with `thread`, and of all threads.
fn cpu_of(profile: &Profile<Name>, thread: &str) -> (i64, i64) {
    let time = |samples: &mut dyn Iterator<Item = &klad_profile::Sample<Name>>| {
        samples.map(|sample| sample.values[profile.shown]).sum::<i64>()
    };
    let of_it = time(&mut profile.samples.iter().filter(|sample| sample.thread.starts_with(thread)));
    (of_it, time(&mut profile.samples.iter()))
}

#[test]
fn the_busiest_threads_come_first_in_a_cpu_profile() {
    let server = server();
    let profile = pprof::decode(&loaded(&server, KINDS[0].path)).unwrap();
    let (admin, all) = cpu_of(&profile, "klad-admin");
    assert!(all > 0 && admin * 10 < all, "{admin} of {all} ns are the admin thread's, which does nothing");
    // Functions are under the threads that run them. The amount depends on the load of the machine.
    let has = |sample: &&klad_profile::Sample<Name>| {
        sample.frames.iter().any(|frame| frame.contains("klad_server::connection::worker::Worker::serve"))
    };
    let serving: Vec<&str> = profile.samples.iter().filter(has).map(|sample| sample.thread.as_str()).collect();
    assert!(!serving.is_empty() && serving.iter().all(|thread| thread.starts_with("klad-worker-")), "{serving:?}");
    let of = |thread| cpu_of(&profile, thread).0;
    let served = of("klad-worker-") + of("klad-commit") + of("klad-storage") + of("rocksdb:");
    assert!(served * 2 > all && of("klad-worker-") > admin, "{served} of {all} ns, admin {admin}");
}

/// Returns a fault if `function` has less than this share of the threads whose names begin with `thread`.
#[cfg(feature = "rocksdb")]
fn wrong_lead(profile: &Profile<Name>, thread: &str, function: &str, least: f64) -> Option<String> {
    let figure = |sample: &klad_profile::Sample<Name>| sample.values[profile.shown];
    let of_thread: Vec<_> = profile.samples.iter().filter(|sample| sample.thread.starts_with(thread)).collect();
    let has = |sample: &&&klad_profile::Sample<Name>| sample.frames.iter().any(|frame| frame.starts_with(function));
    let (all, its): (i64, i64) =
        (of_thread.iter().map(|s| figure(s)).sum(), of_thread.iter().filter(has).map(|s| figure(s)).sum());
    let share = as_f64(its) / as_f64(all);
    // The share is NaN if there are no samples of the thread.
    (share.is_nan() || share < least).then(|| format!("{function} has {share:.2} of {thread}, not {least} and more"))
}

/// Minimum shares under synced PUTs: less than half of the shares on a busy machine. `send` and `recv` of the C
/// library lose their callers, so `serve` has 0.14 to 0.32 of a worker.
#[cfg(feature = "rocksdb")]
const LEADERS: [(&str, &str, f64); 4] = [
    ("klad-commit", "klad_storage::rocksdb::RocksDbEngine::commit", 0.5),
    ("klad-commit", "rocksdb::DBImpl::WriteImpl", 0.35),
    ("klad-commit", "rocksdb::DBImpl::WriteGroupToWAL", 0.25),
    ("klad-worker-", "klad_server::connection::worker::Worker::serve", 0.07),
];

#[cfg(feature = "rocksdb")]
#[test]
fn the_busiest_functions_lead_their_threads() {
    // On a busy machine three seconds may give only a few dozen samples of a thread, which is too few.
    let mut wrong = Vec::new();
    let right = (0..3).map(|_| pprof::decode(&loaded(&server(), KINDS[0].path)).unwrap()).find(|profile| {
        let of = LEADERS.iter().filter_map(|(thread, function, least)| wrong_lead(profile, thread, function, *least));
        wrong = of.collect();
        wrong.is_empty()
    });
    let profile = right.unwrap_or_else(|| panic!("three profiles were wrong, the last in {wrong:?}"));
    for (thread, function, least) in LEADERS {
        // Planted defect: the right time under the wrong thread.
        let mut swapped = profile.clone();
        for sample in &mut swapped.samples {
            sample.thread = if sample.thread.starts_with(thread) { "klad-admin" } else { thread }.to_owned();
        }
        assert!(wrong_lead(&swapped, thread, function, least).is_some());
    }
}

/// One thread of the pool writes and the others wait for it. This wait must come first, as a wait for klad's own lock.
#[cfg(feature = "rocksdb")]
#[test]
fn the_commit_section_leads_a_lock_profile_of_a_pool() {
    let profile = pprof::decode(&loaded(&contended(), KINDS[1].path)).unwrap();
    let leader = ("klad-pool-", "klad_storage::rocksdb::RocksDbEngine::commit", 0.5);
    assert_eq!(wrong_lead(&profile, leader.0, leader.1, leader.2), None);
    let whole = wrong_lead(&profile, "", leader.1, leader.2);
    assert_eq!(whole, None, "not in all of the profile");
    // Twin: if only one thread writes, no thread waits for it.
    let alone = pprof::decode(&loaded(&server(), KINDS[1].path)).unwrap();
    assert!(wrong_lead(&alone, leader.0, leader.1, leader.2).is_some());
}

#[test]
fn cpu_profiles_of_two_rates_exclude_each_other() {
    let server = server();
    std::thread::scope(|scope| {
        // A short profile of another rate rejects this one too, so it tries again.
        let long = scope.spawn(|| {
            loop {
                let answer = server.admin("/debug/pprof/profile?seconds=3&hz=99");
                if answer.status != 409 {
                    return answer;
                }
            }
        });
        super::support::wait_until("another rate is rejected", || {
            server.admin("/debug/pprof/profile?seconds=0.001&hz=98").status == 409
        });
        assert_eq!(server.admin("/debug/pprof/profile?seconds=0.01&hz=99").status, 200, "the same rate is shared");
        assert_eq!(long.join().unwrap().status, 200);
    });
}
