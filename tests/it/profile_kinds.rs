//! Profiles of every kind under load: other programs read them, and functions and waits have the right names and
//! threads. `tests/measure/profile_shares.rs` checks how much time they have.

use std::sync::atomic::{AtomicBool, Ordering};

use klad_profile::{Name, Profile, pprof};

use super::support::loaded::{contended_server, profile_under_load, server};
use super::support::tools::top;
use super::support::{Over, wait_until};

/// A kind of profile with a duration, and words that Go's output for it must contain under load.
struct Timed {
    path: &'static str,
    title: &'static str,
    values: [(&'static str, &'static str); 2],
    names: &'static [&'static str],
}

const KINDS: &[Timed] = &[
    Timed {
        path: "/debug/pprof/profile?hz=199",
        title: "CPU time",
        values: [("samples", "count"), ("cpu", "nanoseconds")],
        names: &["klad_", "rocksdb::DBImpl::Write"],
    },
    Timed {
        path: "/debug/pprof/mutex?threshold=1us",
        title: "Waits for locks",
        values: [("contentions", "count"), ("delay", "nanoseconds")],
        names: &["klad_storage::", "rocksdb::DBImpl::"],
    },
    Timed {
        path: "/debug/pprof/block?threshold=1us",
        title: "Waits",
        values: [("contentions", "count"), ("delay", "nanoseconds")],
        names: &["klad_", "rocksdb::"],
    },
];

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
    let server = contended_server();
    for kind in KINDS {
        // A short profile of a busy machine may lack a name.
        let mut wrong = None;
        let right = [1, 4, 16].into_iter().any(|seconds| {
            let path = format!("{}&seconds={seconds}", kind.path);
            wrong = wrong_with(&profile_under_load(&server, &path), kind);
            wrong.is_none()
        });
        assert!(right, "{}: {wrong:?}", kind.path);
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
    let bytes = profile_under_load(&server(), &format!("{}&seconds=1", KINDS[0].path));
    assert!(wrong_with(&bytes, &KINDS[1]).unwrap().contains("cpu"));
    let mut nameless = pprof::decode(&bytes).unwrap();
    for sample in &mut nameless.samples {
        sample.frames = vec![Name::from("f")];
    }
    assert!(wrong_with(&pprof::encode(&nameless), &KINDS[0]).unwrap().starts_with("no klad_"));
}

#[test]
fn functions_are_under_the_threads_that_run_them() {
    let server = server();
    let has = |sample: &&klad_profile::Sample<Name>| {
        sample.frames.iter().any(|frame| frame.contains("klad_server::connection::worker::Worker::serve"))
    };
    let mut serving: Vec<String> = Vec::new();
    // A short profile of a busy machine may have no sample of a worker.
    for seconds in [1, 4, 16] {
        let path = format!("{}&seconds={seconds}", KINDS[0].path);
        let profile = pprof::decode(&profile_under_load(&server, &path)).unwrap();
        serving.extend(profile.samples.iter().filter(has).map(|sample| sample.thread.clone()));
        if !serving.is_empty() {
            break;
        }
    }
    assert!(!serving.is_empty() && serving.iter().all(|thread| thread.starts_with("klad-worker-")), "{serving:?}");
}

#[test]
fn cpu_profiles_of_two_rates_exclude_each_other() {
    let server = server();
    let is_seen = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let seen = Over(&is_seen);
        // A short profile of another rate rejects this one too, so it tries again. It also does so until the rejection
        // is seen: on a busy machine it may end before another rate is asked for.
        let long = scope.spawn(|| {
            loop {
                let status = server.admin("/debug/pprof/profile?seconds=1&hz=99").status;
                if status != 409 && (status != 200 || is_seen.load(Ordering::SeqCst)) {
                    return status;
                }
            }
        });
        wait_until("another rate is rejected", || {
            server.admin("/debug/pprof/profile?seconds=0.001&hz=98").status == 409
        });
        assert_eq!(server.admin("/debug/pprof/profile?seconds=0.01&hz=99").status, 200, "the same rate is shared");
        drop(seen);
        assert_eq!(long.join().unwrap(), 200);
    });
}
