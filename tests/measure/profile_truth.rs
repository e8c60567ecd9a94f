//! Profiles of a whole server have the right values: shares of CPU time, bytes allocated and kept, and time waited.
//! Each is compared with what planted functions (`support/plants.rs`) counted themselves, with a tolerance of a
//! tenth.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use klad_profile::{collapsed, pprof};
use serde_json::Value;

use super::profiles::{
    Profile, amount_faults, as_f64, ratio_faults, share_faults, top_faults, top_shares, total_faults,
};
use super::support::planted::Defect;
use super::support::plants::PIECE_BYTES;
use super::support::{Answer, Client, Server, ServerBuilder, random, tools, wait_until};

/// jemalloc's settings, as built into klad: sampling can be enabled, on average every 512 KiB.
const MALLOC_CONF: &str = "prof:true,prof_active:false,prof_accum:true,lg_prof_sample:19";

/// Bytes that are allocated, and that are kept, in one step. 2 GiB are 4,096 samples at 512 KiB, so the average error
/// is 1/√4096, or 1.6 %; the tolerance is six times that. No code writes to these bytes, so they take address space
/// and no memory.
const VOLUME_BYTES: i64 = 2 << 30;

/// The functions that wait. The profile of all waits has all of them.
const WAITERS: &[&str] = &[
    "planted_waiter_mutex",
    #[cfg(feature = "posix-locks")]
    "planted_waiter_pthread",
    "planted_waiter_condition",
];

fn server(defect: Defect) -> Server {
    // No request may be rejected because a read takes long.
    let builder = ServerBuilder::new("memory").arg("--threads", "1").arg("--admission", "off");
    builder.defect(Some(defect)).env("MALLOC_CONF", MALLOC_CONF).start()
}

/// Returns what the plants counted after a read of `key`.
fn truth(client: &mut Client, key: &str) -> Value {
    let answer = client.get(&format!("/v0/entity?id={key}"));
    assert_eq!(answer.status, 200, "{}", answer.text());
    serde_json::from_slice(&answer.body).unwrap()
}

fn number(truth: &Value, function: &str) -> i64 {
    truth[function].as_i64().unwrap()
}

/// Runs `work` while the profile `target` is taken. Returns the profile, and whether `work` ended before it. The
/// profile `other` is rejected while `target` is taken, which shows that it has begun.
fn during(server: &Server, target: &str, other: &str, work: impl FnOnce()) -> (Answer, bool) {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let taking = scope.spawn(|| {
            let mut taken = server.admin(target);
            // A short profile `other` may be in progress.
            while taken.status == 409 {
                taken = server.admin(target);
            }
            over.store(true, Ordering::SeqCst);
            assert_eq!(taken.status, 200, "{target}: {}", taken.text());
            taken
        });
        wait_until("the profile has begun", || over.load(Ordering::SeqCst) || server.admin(other).status == 409);
        work();
        let in_time = !over.load(Ordering::SeqCst);
        (taking.join().unwrap(), in_time)
    })
}

/// Returns the CPU time of all threads of a process so far.
fn cpu_ns(process: u32) -> i64 {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task")).unwrap().flatten();
    let times = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("schedstat")).ok());
    times.map(|text| text.split(' ').next().unwrap().parse::<i64>().unwrap()).sum()
}

#[test]
fn a_cpu_profile_has_the_right_shares() {
    let server = server(Defect::Plants);
    let (mut client, mut random) = (server.client(), random());
    let window = Duration::from_secs(12);
    let (mut known, mut all) = (Vec::new(), 0.0);
    let other = "/debug/pprof/profile?seconds=0.001&hz=98";
    let (taken, _) = during(&server, "/debug/pprof/profile?seconds=12&hz=99", other, || {
        let (begun, before, cpu_before) = (Instant::now(), truth(&mut client, "truth"), cpu_ns(server.process()));
        let (mut now, mut longest) = (before.clone(), Duration::ZERO);
        // Each piece has ten samples or more, so that its error is less than one, and a length that is never in step
        // with the sampling. All pieces end within the window, because later work would be counted and not sampled.
        while begun.elapsed() + longest * 2 < window {
            let pair = Instant::now();
            let (a, b) = (random.u64(240_000..360_000), random.u64(80_000..120_000));
            truth(&mut client, &format!("busy-a:{a}"));
            now = truth(&mut client, &format!("busy-b:{b}"));
            longest = longest.max(pair.elapsed());
        }
        all = as_f64(cpu_ns(server.process()) - cpu_before);
        for function in ["planted_busy_a", "planted_busy_b"] {
            known.push((function, as_f64(number(&now, function) - number(&before, function)) / all));
        }
    });
    let profile = Profile::parse(&collapsed::write(&pprof::decode(&taken.body).unwrap())).unwrap();
    println!("known {known:?}, {} stacks, {:?}", profile.stacks.len(), profile.facts);
    assert_eq!(total_faults(&profile, all), Vec::<String>::new());
    assert_eq!(share_faults(&profile, &known), Vec::<String>::new());
    assert_eq!(ratio_faults(&profile, known[0].0, known[1].0, known[0].1 / known[1].1), Vec::<String>::new());
    let shares = top_shares(&tools::top(&taken.body).unwrap());
    assert_eq!(top_faults(&shares, &known), Vec::<String>::new(), "in go tool pprof: {shares:?}");
}

#[test]
fn allocation_profiles_show_who_allocates_and_who_keeps() {
    let server = server(Defect::Plants);
    let mut client = server.client();
    let profile = |what: &str| {
        let taken = server.admin(&format!("/debug/pprof/{what}format=collapsed"));
        assert_eq!(taken.status, 200, "{}", taken.text());
        Profile::parse(&taken.text()).unwrap()
    };
    let pieces = VOLUME_BYTES / i64::try_from(PIECE_BYTES).unwrap();
    let alloc = |client: &mut Client| number(&truth(client, &format!("alloc:{pieces}")), "planted_allocation");
    let allocated = alloc(&mut client);
    assert_eq!(amount_faults(&profile("allocs?"), &[("planted_allocation", allocated)]), Vec::<String>::new());
    let kept = number(&truth(&mut client, &format!("keep:{pieces}")), "planted_keeping");
    let heap = profile("heap?");
    assert_eq!(amount_faults(&heap, &[("planted_keeping", kept)]), Vec::<String>::new());
    assert!(heap.amount("planted_allocation") < VOLUME_BYTES / 100, "freed memory is not in the heap profile");
    // A difference contains only allocations within its time.
    let (allocated, difference) = allocated_within(&server, &mut client, pieces);
    assert_eq!(amount_faults(&difference, &[("planted_allocation", allocated)]), Vec::<String>::new());
    assert_eq!(difference.amount("planted_keeping"), 0, "nothing was kept within the time");
    // Planted defect: half of it is missing.
    let more = [("planted_allocation", allocated * 2)];
    assert_eq!(amount_faults(&difference, &more).len(), 1);
}

/// Returns the bytes allocated within a difference of two profiles, and that difference.
fn allocated_within(server: &Server, client: &mut Client, pieces: i64) -> (i64, Profile) {
    // Repeated with a longer time on a busy machine: the first profile must be complete a second before the
    // allocations.
    for seconds in [4, 12, 36] {
        let begun = Instant::now();
        let target = format!("/debug/pprof/allocs?seconds={seconds}&format=collapsed");
        let (allocated, taken) = std::thread::scope(|scope| {
            let taken = scope.spawn(|| server.admin(&target));
            std::thread::sleep(Duration::from_secs(1));
            let before = number(&truth(client, "truth"), "planted_allocation");
            let now = number(&truth(client, &format!("alloc:{pieces}")), "planted_allocation");
            let in_time = begun.elapsed() < Duration::from_secs(seconds);
            (in_time.then_some(now - before), taken.join().unwrap())
        });
        assert_eq!(taken.status, 200, "{}", taken.text());
        if let Some(allocated) = allocated {
            return (allocated, Profile::parse(&taken.text()).unwrap());
        }
    }
    panic!("allocating 2 GiB in small pieces takes more than 35 s");
}

/// Returns what is wrong with the profiles of waits of a server with these plants.
fn wait_faults(defect: Defect) -> Vec<String> {
    let server = server(defect);
    // A condition counts as a lock only where the code says so.
    let kinds = [("mutex", &WAITERS[..WAITERS.len() - 1]), ("block", WAITERS)];
    kinds.into_iter().flat_map(|(kind, waiters)| wait_faults_of(&server, kind, waiters)).collect()
}

/// The same for one kind of profile, which sees the waits of these functions.
fn wait_faults_of(server: &Server, kind: &str, waiters: &[&'static str]) -> Vec<String> {
    let other = format!("/debug/pprof/{kind}?seconds=0.001&threshold=20us");
    // Repeated with a longer time on a busy machine, until all waits are within the window.
    for seconds in [4, 12, 36] {
        let mut known = Value::Null;
        let target = format!("/debug/pprof/{kind}?seconds={seconds}&threshold=10us&format=collapsed");
        let before = truth(&mut server.client(), "truth");
        let (taken, in_time) = during(server, &target, &other, || known = truth(&mut server.client(), "waits"));
        if in_time {
            let waited = |function: &&'static str| (*function, number(&known, function) - number(&before, function));
            let known: Vec<_> = waiters.iter().map(waited).collect();
            println!("{kind}: known {known:?}");
            return amount_faults(&Profile::parse(&taken.text()).unwrap(), &known);
        }
    }
    panic!("some seconds of waits do not fit into 36 s");
}

#[test]
fn lock_profiles_show_who_waits_and_how_long() {
    assert_eq!(wait_faults(Defect::Plants), Vec::<String>::new());
}

#[test]
fn twin_waits_that_are_not_recorded_are_noticed() {
    let faults = wait_faults(Defect::PlantsHookOff);
    assert_eq!(faults.len(), 2 * WAITERS.len() - 1, "all in one profile, and all but one in the other: {faults:?}");
}

const RECORDED: &str = "\
# events: 100
# rate: 99 Hz
klad-worker-0;start;measure::support::plants::planted_busy_a 60
klad-worker-0;start;measure::support::plants::planted_busy_a;clock_gettime 12
klad-worker-0;start;measure::support::plants::planted_busy_b 24
klad-worker-0;start;klad_server::connection::worker::run 4
";

#[test]
fn twin_wrong_shares_and_missing_stacks_are_noticed() {
    let right = Profile::parse(RECORDED).unwrap();
    let known = [("planted_busy_a", 0.73), ("planted_busy_b", 0.24)];
    let ratio = |profile: &Profile| ratio_faults(profile, "planted_busy_a", "planted_busy_b", 3.0);
    assert!(share_faults(&right, &known).is_empty() && ratio(&right).is_empty());
    assert!(total_faults(&right, 105.0).is_empty() && !total_faults(&right, 120.0).is_empty());
    for (wrong, replaced) in [("planted_busy_b 24", "planted_busy_b 30"), ("planted_busy_a 60", "other 60")] {
        let wrong = Profile::parse(&RECORDED.replace(wrong, replaced)).unwrap();
        assert!(!share_faults(&wrong, &known).is_empty() && !ratio(&wrong).is_empty(), "{replaced}");
    }
    let empty = Profile::parse("# events: 0\n").unwrap();
    assert!(!share_faults(&empty, &known).is_empty() && !ratio(&empty).is_empty());
    assert_eq!(amount_faults(&right, &[("planted_busy_a", 72), ("planted_busy_b", 26)]), Vec::<String>::new());
    assert_eq!(amount_faults(&right, &[("planted_busy_a", 90), ("planted_waiter_mutex", 1)]).len(), 2);
    assert!(Profile::parse("klad-worker-0;start\n").is_err());
}

#[test]
fn twin_the_output_of_go_is_checked_too() {
    let text = "File: measure\nType: cpu\nShowing nodes accounting for 9.90s, 99.00% of 10s total\n      flat  flat%   sum%        cum   cum%\n\
                     \x20        0     0%     0%     9.90s 99.00%  std::thread::start\n     7.20s 72.00% 72.00%      7.30s 73.00%  measure::support::plants::planted_busy_a (inline)\n\
                     \x20    2.40s 24.00% 96.00%      2.40s 24.00%  measure::support::plants::planted_busy_b\n";
    let shares = top_shares(text);
    assert_eq!(shares.len(), 3, "{shares:?}");
    assert!(top_faults(&shares, &[("planted_busy_a", 0.72), ("planted_busy_b", 0.25)]).is_empty());
    assert_eq!(top_faults(&shares, &[("planted_busy_a", 0.5), ("planted_busy_c", 0.25)]).len(), 2);
}
