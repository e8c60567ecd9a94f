//! Profiles of every kind under loads whose truth is known: what burns is what leads, what waits is what is named.

use klad::profile::{Name, Profile, pprof};

use super::support::bencher::Bencher;
use super::support::tools::top;
use super::support::{Server, ServerBuilder};

/// A kind that takes its time, with words of which each must be in what Go says of it under [`loaded`].
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
        names: &["klad::", "rocksdb::DBImpl::Write"],
    },
    Timed {
        path: "/debug/pprof/mutex?seconds=3&threshold=1us",
        title: "Waits for locks",
        values: [("contentions", "count"), ("delay", "nanoseconds")],
        names: &[],
    },
    Timed {
        path: "/debug/pprof/block?seconds=3&threshold=1us",
        title: "Waits",
        values: [("contentions", "count"), ("delay", "nanoseconds")],
        names: &["klad::", "rocksdb::"],
    },
];

/// What `path` answers while PUTs come in as fast as they are answered: of a trickle there would be a handful of samples.
fn loaded(server: &Server, path: &str) -> Vec<u8> {
    let options = "--workload put --keys 1000 --value-size 1KiB --closed --connections 16 --duration 6s";
    std::thread::scope(|scope| {
        let bench = scope.spawn(|| Bencher::new(&format!("http://{}", server.address), options).run());
        let answer = server.admin(path);
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
        bench.join().unwrap();
        answer.body
    })
}

fn server() -> Server {
    ServerBuilder::new(if cfg!(feature = "rocksdb") { "rocksdb" } else { "memory" }).start()
}

/// What is not as it should be in `bytes`.
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
            return Some(format!("{} does not say its {fact}: {:?}", kind.title, profile.facts));
        }
    }
    let said = match top(bytes) {
        Ok(said) => said,
        Err(why) => return Some(format!("go does not read it: {why}")),
    };
    let has_to_be = |name: &str| cfg!(feature = "rocksdb") || !name.starts_with("rocksdb::");
    let missing = kind.names.iter().find(|name| !said.contains(*name) && has_to_be(name))?;
    Some(format!("no {missing} in {said}"))
}

#[test]
fn go_reads_every_kind_that_takes_its_time() {
    let server = server();
    for kind in KINDS {
        assert_eq!(wrong_with(&loaded(&server, kind.path), kind), None, "{}", kind.path);
    }
}

/// Whether threads that have nothing to do are in a profile of waits, with the call that they wait in as the first frame.
fn idle_threads(profile: &Profile<Name>) -> Result<(), String> {
    let own = ("klad::sync::Condvar::wait", "klad::");
    let engine = cfg!(feature = "rocksdb").then_some(("pthread_cond_wait", "rocksdb::"));
    for (call, function) in std::iter::once(own).chain(engine) {
        let waits = |sample: &klad::profile::Sample<Name>| {
            sample.frames.first().is_some_and(|first| &**first == call)
                && sample.frames[1..].iter().any(|frame| frame.contains(function))
        };
        if !profile.samples.iter().any(waits) {
            return Err(format!("nothing of {function} waits in {call}: {:#?}", profile.samples));
        }
    }
    let machinery = profile.samples.iter().find(|sample| sample.frames.iter().any(|f| f.contains("klad::sampling")));
    machinery.map_or(Ok(()), |sample| Err(format!("{sample:#?}")))
}

/// Nothing comes in, so nobody begins or ends to wait within the window.
#[test]
fn threads_that_wait_since_before_are_in_block() {
    let server = server();
    let answer = server.admin("/debug/pprof/block?seconds=0.2");
    assert_eq!(answer.status, 200, "{}", answer.text());
    let profile = pprof::decode(&answer.body).unwrap();
    assert_eq!(idle_threads(&profile), Ok(()));
    // The planted defects: what the machinery has left, and waits that are not seen.
    let mut more = profile.clone();
    for sample in &mut more.samples {
        sample.frames.insert(0, Name::from("klad::sampling::waits::timed"));
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
    assert!(wrong_with(&pprof::encode(&nameless), &KINDS[0]).unwrap().starts_with("no klad::"));
}

/// CPU time of the threads whose names begin with `thread`, and of all.
fn cpu_of(profile: &Profile<Name>, thread: &str) -> (i64, i64) {
    let time = |samples: &mut dyn Iterator<Item = &klad::profile::Sample<Name>>| {
        samples.map(|sample| sample.values[profile.shown]).sum::<i64>()
    };
    let of_it = time(&mut profile.samples.iter().filter(|sample| sample.thread.starts_with(thread)));
    (of_it, time(&mut profile.samples.iter()))
}

#[test]
fn the_threads_that_work_lead_a_cpu_profile() {
    let server = server();
    let profile = pprof::decode(&loaded(&server, KINDS[0].path)).unwrap();
    let (admin, all) = cpu_of(&profile, "klad-admin");
    assert!(all > 0 && admin * 10 < all, "{admin} of {all} ns are the admin thread's, which does nothing");
    // Functions stand under the threads that run them. How much it is depends on what else the machine does, and some of it is
    // in functions of the C library that lose their callers.
    let has = |sample: &&klad::profile::Sample<Name>| {
        sample.frames.iter().any(|frame| frame.contains("klad::server::worker::Worker::serve"))
    };
    let serving: Vec<&str> = profile.samples.iter().filter(has).map(|sample| sample.thread.as_str()).collect();
    assert!(!serving.is_empty() && serving.iter().all(|thread| thread.starts_with("klad-worker-")), "{serving:?}");
    let of = |thread| cpu_of(&profile, thread).0;
    let served = of("klad-worker-") + of("klad-commit") + of("klad-storage") + of("rocksdb:");
    assert!(served * 2 > all && of("klad-worker-") > admin, "{served} of {all} ns, admin {admin}");
}

#[test]
fn cpu_profiles_of_two_rates_exclude_each_other() {
    let server = server();
    std::thread::scope(|scope| {
        // The short ones of another rate keep it out, too, for as long as they take: it tries again.
        let long = scope.spawn(|| {
            loop {
                let answer = server.admin("/debug/pprof/profile?seconds=3&hz=99");
                if answer.status != 409 {
                    return answer;
                }
            }
        });
        super::support::wait_until("another rate is refused", || {
            server.admin("/debug/pprof/profile?seconds=0.001&hz=98").status == 409
        });
        assert_eq!(server.admin("/debug/pprof/profile?seconds=0.01&hz=99").status, 200, "the same rate is shared");
        assert_eq!(long.join().unwrap().status, 200);
    });
}
