//! Profiles under known loads: the most expensive threads and functions come first.

use klad_profile::{Name, Profile, pprof};

use super::profiles::as_f64;
use super::support::loaded::{contended_server, profile_under_load, server};

const CPU: &str = "/debug/pprof/profile?seconds=3&hz=199";
const LOCKS: &str = "/debug/pprof/mutex?seconds=3&threshold=1us";

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
    let profile = pprof::decode(&profile_under_load(&server, CPU)).unwrap();
    let (admin, all) = cpu_of(&profile, "klad-admin");
    assert!(all > 0 && admin * 10 < all, "{admin} of {all} ns are the admin thread's, which does nothing");
    let of = |thread| cpu_of(&profile, thread).0;
    let served = of("klad-worker-") + of("klad-commit") + of("klad-storage") + of("rocksdb:");
    assert!(served * 2 > all && of("klad-worker-") > admin, "{served} of {all} ns, admin {admin}");
}

/// Returns a fault if `function` has less than this share of the threads whose names begin with `thread`.
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
const LEADERS: [(&str, &str, f64); 4] = [
    ("klad-commit", "klad_storage::rocksdb::RocksDbEngine::commit", 0.5),
    ("klad-commit", "rocksdb::DBImpl::WriteImpl", 0.35),
    ("klad-commit", "rocksdb::DBImpl::WriteGroupToWAL", 0.25),
    ("klad-worker-", "klad_server::connection::worker::Worker::serve", 0.07),
];

#[test]
fn the_busiest_functions_lead_their_threads() {
    // On a busy machine three seconds may give only a few dozen samples of a thread, which is too few.
    let mut wrong = Vec::new();
    let right = (0..3).map(|_| pprof::decode(&profile_under_load(&server(), CPU)).unwrap()).find(|profile| {
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
#[test]
fn the_commit_section_leads_a_lock_profile_of_a_pool() {
    let profile = pprof::decode(&profile_under_load(&contended_server(), LOCKS)).unwrap();
    let leader = ("klad-pool-", "klad_storage::rocksdb::RocksDbEngine::commit", 0.5);
    assert_eq!(wrong_lead(&profile, leader.0, leader.1, leader.2), None);
    let whole = wrong_lead(&profile, "", leader.1, leader.2);
    assert_eq!(whole, None, "not in all of the profile");
    // Twin: if only one thread writes, no thread waits for it.
    let alone = pprof::decode(&profile_under_load(&server(), LOCKS)).unwrap();
    assert!(wrong_lead(&alone, leader.0, leader.1, leader.2).is_some());
}
