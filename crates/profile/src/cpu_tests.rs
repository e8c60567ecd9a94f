//! Tests of CPU profiles and thread captures in this process: the values are true, and nothing stays behind.

use std::hint::black_box;
use std::ops::Range;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::cpu::Window;
use crate::{Address, Error, Profile, tasks, threads};
use klad_base::clock::{now, thread_cpu_ns};
use klad_base::sampling::walk;
use klad_base::sync::{BoundedQueue, Mutex, MutexGuard, Signal, spawn_thread};

/// Returns a guard that one test holds at a time. The sampling rate belongs to the process, so tests that start CPU
/// profiles must not overlap.
pub(crate) fn exclusive() -> MutexGuard<'static, ()> {
    static EXCLUSIVE: Mutex<()> = Mutex::new(());
    EXCLUSIVE.lock()
}

/// A rate whose period, 1.003 ms, is about the shortest tick of a kernel (1 ms).
const HZ: u32 = 997;

// The constants of the two functions differ, so that the compiler does not merge them.
#[inline(never)]
fn spin_three(mut state: u64) -> u64 {
    for _ in 0..20_000 {
        state = black_box(state.wrapping_mul(3).rotate_left(7));
    }
    state
}

#[inline(never)]
fn spin_one(mut state: u64) -> u64 {
    for _ in 0..20_000 {
        state = black_box(state.wrapping_mul(5).rotate_left(9));
    }
    state
}

/// Uses `time` of CPU time on this thread. Returns how much it used, in nanoseconds.
#[inline(never)]
fn burn(spin: fn(u64) -> u64, time: Duration) -> u64 {
    let begin = thread_cpu_ns();
    let mut state = 1;
    loop {
        state = black_box(spin(state));
        let used = thread_cpu_ns() - begin;
        if u128::from(used) >= time.as_nanos() {
            return used;
        }
    }
}

/// Returns the addresses of the function: up to the next of the two functions, and at most 256 bytes.
fn code_of(function: fn(u64) -> u64) -> Range<u64> {
    let begin = |function: fn(u64) -> u64| (function as *const ()).addr() as u64;
    let own = begin(function);
    let others = [spin_three as fn(u64) -> u64, spin_one].map(begin);
    let end = others.into_iter().filter(|other| *other > own).min().unwrap_or(u64::MAX);
    own..end.min(own + 256)
}

/// Returns the CPU time of `thread` in the stacks that `which` selects, in nanoseconds.
fn cpu_ns(profile: &Profile<Address>, thread: &str, which: impl Fn(&[Address]) -> bool) -> u64 {
    let own = profile.samples.iter().filter(|sample| sample.thread == thread && which(&sample.frames));
    own.map(|sample| sample.values[1].cast_unsigned()).sum()
}

fn fact<'p>(profile: &'p Profile<Address>, name: &str) -> &'p str {
    let fact = profile.facts.iter().find(|(its, _)| its == name);
    fact.map_or_else(|| panic!("no fact {name}: {:?}", profile.facts), |(_, value)| value)
}

const BURNER: &str = "test-burner";

/// Returns a profile of a thread that splits its time three to one between two functions, and the true times of both
/// by the thread's own clock.
fn three_to_one() -> (Profile<Address>, [u64; 2]) {
    let window = Window::start(HZ).expect("the test environment allows profiles");
    let burner = spawn_thread(BURNER, || {
        // A thread that begins within a window has no timer for up to 100 ms, and longer if the collector waits for a
        // core. That time would be missing only in the profile.
        wait_for_own_timer();
        let mut truth = [0; 2];
        for _ in 0..4 {
            truth[0] += burn(spin_three, Duration::from_millis(900));
            truth[1] += burn(spin_one, Duration::from_millis(300));
        }
        truth
    });
    let truth = burner.join().expect("no panic");
    (window.finish(), truth)
}

/// Sleeps until the kernel lists a timer that signals the calling thread.
fn wait_for_own_timer() {
    let own = format!("/tid.{}\n", rustix::thread::gettid().as_raw_nonzero());
    let (pause, deadline) = (Signal::default(), now() + Duration::from_mins(1));
    while !std::fs::read_to_string("/proc/self/timers").expect("the kernel lists timers").contains(&own) {
        assert!(now() < deadline, "no timer");
        pause.wait_timeout(Duration::from_millis(1));
    }
}

/// Burns CPU time from the moment at which this thread is sampled. Returns it.
fn burn_when_sampled(time: Duration) -> u64 {
    wait_for_own_timer();
    burn(spin_one, time)
}

/// Returns whether the error is at most a third. The kernel samples at its ticks, so on a busy machine the error may
/// exceed a tenth. `tests/measure` checks a tenth.
fn is_within_a_third(seen: u64, truth: u64) -> bool {
    seen.abs_diff(truth) * 3 <= truth
}

/// Checks that the samples in which one of the two functions is running add up to its true time, for each of the two.
fn check(profile: &Profile<Address>, truth: [u64; 2]) -> Result<(), String> {
    let leaf = |function| {
        let code = code_of(function);
        cpu_ns(profile, BURNER, |frames| frames.first().is_some_and(|frame| code.contains(frame)))
    };
    let seen = [leaf(spin_three), leaf(spin_one)];
    let all = cpu_ns(profile, BURNER, |_| true);
    let right = is_within_a_third(seen[0], truth[0])
        && is_within_a_third(seen[1], truth[1])
        && is_within_a_third(all, truth[0] + truth[1]);
    if right { Ok(()) } else { Err(format!("seen {seen:?} of {all}, truth {truth:?}, {:?}", profile.facts)) }
}

#[test]
fn cpu_time_is_given_to_the_functions_that_used_it() {
    let _exclusive = exclusive();
    let (profile, truth) = three_to_one();
    assert_eq!(check(&profile, truth), Ok(()));
    let events: u64 = fact(&profile, "events").parse().expect("a number");
    assert!(events >= 100, "{events}");
    assert_eq!(fact(&profile, "lost samples"), "0");
    assert_eq!(fact(&profile, "sampling rate"), "997 Hz");
    // Stacks without callers would have two frames.
    let deep = cpu_ns(&profile, BURNER, |frames| frames.len() >= 4);
    assert!(is_within_a_third(deep, truth[0] + truth[1]), "{deep} of {truth:?}");

    // The planted defects, in the same profile.
    let mut leafless = profile.clone();
    for sample in &mut leafless.samples {
        sample.frames.remove(0);
    }
    assert!(check(&leafless, truth).is_err(), "a walk without the running function is noticed");
    let mut unweighted = profile.clone();
    let period = profile.period.as_ref().expect("the profile has a period").1;
    let events = i64::try_from(events).expect("few");
    let periods: i64 = profile.samples.iter().map(|sample| sample.values[0]).sum();
    for sample in &mut unweighted.samples {
        // As if each event were one period.
        sample.values[1] = sample.values[0] * events * period / periods;
    }
    let tick = klad_base::clock::kernel_tick();
    if tick >= Duration::from_millis(2) {
        assert!(check(&unweighted, truth).is_err(), "missing overruns are noticed");
    }
}

#[test]
fn a_thread_that_starts_during_a_profile_is_sampled() {
    let _exclusive = exclusive();
    let window = Window::start(HZ).expect("started");
    burn(spin_one, Duration::from_millis(20));
    let late = spawn_thread("test-late", || burn_when_sampled(Duration::from_millis(800)));
    let truth = late.join().expect("no panic");
    let profile = window.finish();
    let seen = cpu_ns(&profile, "test-late", |_| true);
    assert!(seen <= truth * 4 / 3 && seen >= truth / 10, "{seen} of {truth}");
}

#[test]
fn windows_share_a_rate_and_each_has_its_own_time() {
    let _exclusive = exclusive();
    let outer = Window::start(HZ).expect("started");
    let busy = Window::start(99);
    assert!(matches!(busy, Err(Error::Busy(_))), "{busy:?}");
    let first = spawn_thread("test-first", || burn_when_sampled(Duration::from_millis(400)));
    first.join().expect("no panic");
    let inner = Window::start(HZ).expect("started");
    let second = spawn_thread("test-second", || burn_when_sampled(Duration::from_millis(400)));
    second.join().expect("no panic");
    let (inner, outer) = (inner.finish(), outer.finish());
    let used = |profile, thread| cpu_ns(profile, thread, |_| true);
    assert_eq!(used(&inner, "test-first"), 0);
    assert!(used(&outer, "test-first") > 0);
    assert!(used(&inner, "test-second") > 0);
    assert_eq!(used(&inner, "test-second"), used(&outer, "test-second"));
    // After the last window, another rate is possible.
    drop(Window::start(99).expect("started"));
}

#[test]
fn every_thread_answers_with_its_stack() {
    #[inline(never)]
    fn waits_here(signal: &Signal) -> bool {
        black_box(black_box(signal).wait_timeout(Duration::from_mins(1)))
    }
    let signal = Arc::new(Signal::default());
    let started = Arc::new(Signal::default());
    let (own, own_started) = (signal.clone(), started.clone());
    let waiting = spawn_thread("test-waiting", move || {
        own_started.raise();
        waits_here(&own)
    });
    assert!(started.wait_timeout(Duration::from_mins(1)));
    let begin = (waits_here as *const ()).addr() as u64;
    let deadline = now() + Duration::from_mins(1);
    loop {
        let threads = threads::capture().expect("the test environment allows profiles");
        let found = threads.iter().find(|thread| thread.name == "test-waiting").expect("the thread is listed");
        let own = rustix::thread::gettid().as_raw_nonzero().get();
        let this = threads.iter().find(|thread| thread.tid == own).expect("the calling thread is listed");
        // The thread may not have reached the wait yet, and after a stall a capture does not wait for answers.
        let waits = found.state == 'S' && found.frames.iter().any(|frame| (begin..begin + 128).contains(frame));
        if waits && this.frames.len() > 3 && this.cpu_time > Duration::ZERO {
            break;
        }
        assert!(now() < deadline, "{found:x?} {this:x?}");
    }
    signal.raise();
    assert!(waiting.join().expect("no panic"), "the wait must end with the signal");
}

/// Performs each kind of work that waits in the kernel: sockets, files and their syncs, sleeps. Ends some
/// time after `stop` was set, or at the first error.
fn blocking_work(stop: &AtomicBool) -> std::io::Result<()> {
    use std::io::{Read as _, Write as _};
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    let mut client = std::net::TcpStream::connect(listener.local_addr()?)?;
    let (mut server, _) = listener.accept()?;
    let echo = spawn_thread("test-echo", move || -> std::io::Result<()> {
        let mut bytes = [0; 1000];
        while server.read_exact(&mut bytes).is_ok() {
            server.write_all(&bytes)?;
        }
        Ok(())
    });
    let mut file = tempfile::tempfile()?;
    let pause = Signal::default();
    let mut rounds = 0;
    while rounds <= 10 || !stop.load(Ordering::Relaxed) {
        let mut bytes = [7; 1000];
        client.write_all(&bytes)?;
        client.read_exact(&mut bytes)?;
        file.write_all(&bytes)?;
        if rounds % 16 == 0 {
            file.sync_data()?;
            pause.wait_timeout(Duration::from_millis(1));
        }
        rounds += 1;
    }
    drop(client);
    echo.join().expect("no panic")?;
    Ok(())
}

#[test]
fn signals_to_threads_cause_no_errors() {
    let _exclusive = exclusive();
    let stop = Arc::new(AtomicBool::new(false));
    let threads: Vec<_> = (0..2)
        .map(|_| {
            let stop = stop.clone();
            spawn_thread("test-works", move || blocking_work(&stop))
        })
        .collect();
    let window = Window::start(HZ).expect("started");
    // A thread does not answer while it waits for the disk.
    let mut answered = 0;
    while answered <= 100 {
        let threads = threads::capture().expect("captured");
        answered += threads.iter().filter(|thread| thread.name == "test-works" && !thread.frames.is_empty()).count();
    }
    drop(window);
    stop.store(true, Ordering::Relaxed);
    for thread in threads {
        thread.join().expect("no panic").expect("no call ends with an error");
    }
}

/// The resources that a profile could leave behind.
#[derive(Debug, PartialEq, Eq)]
struct Remains {
    timers: usize,
    descriptors: usize,
    threads: usize,
}

fn remains() -> Remains {
    // Without the kernel's list of timers this test could not fail.
    let timers = std::fs::read_to_string("/proc/self/timers").expect("the kernel lists timers");
    let entries = |directory| std::fs::read_dir(directory).expect("there is /proc").count();
    Remains {
        timers: timers.lines().filter(|line| line.starts_with("ID:")).count(),
        descriptors: entries("/proc/self/fd"),
        threads: entries("/proc/self/task"),
    }
}

/// Runs the test of this name in `module` in a process of its own, because it counts resources of the process.
/// Returns `false` in that process.
pub(crate) fn in_own_process(module: &str, test: &str) -> bool {
    const INSIDE: &str = "KLAD_TEST_INSIDE";
    if std::env::var_os(INSIDE).is_some() {
        return false;
    }
    let module = module.split_once("::").expect("klad::…").1;
    let mut command = Command::new(std::env::current_exe().expect("there is /proc"));
    let name = format!("{module}::{test}");
    let output = command.args(["--exact", &name, "--nocapture"]).env(INSIDE, "1").output().expect("it can be started");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{said}{}", String::from_utf8_lossy(&output.stderr));
    true
}

/// Starts threads that allocate, lock, use CPU time, and start short threads, until `stop` is set.
fn load(stop: &Arc<AtomicBool>) -> Vec<std::thread::JoinHandle<()>> {
    let queue = Arc::new(BoundedQueue::new(16));
    let shared = Arc::new(Mutex::new(0_u64));
    let until = |stop: &Arc<AtomicBool>, mut work: Box<dyn FnMut() + Send>| {
        let stop = stop.clone();
        spawn_thread("test-load", move || {
            while !stop.load(Ordering::Relaxed) {
                work();
            }
        })
    };
    let (pushing, popping) = (queue.clone(), queue);
    let locks = [shared.clone(), shared];
    let mut threads: Vec<_> = locks
        .into_iter()
        .map(|lock| until(stop, Box::new(move || *lock.lock() += black_box(spin_one(1)) & 1)))
        .collect();
    threads
        .push(until(stop, Box::new(|| drop(black_box((0..50).map(|size| vec![1_u8; size * 97]).collect::<Vec<_>>())))));
    threads.push(until(stop, Box::new(move || drop(pushing.push(vec![0_u64; 100])))));
    threads.push(until(stop, Box::new(move || drop(popping.try_pop()))));
    threads.push(until(
        stop,
        Box::new(|| {
            let brief = spawn_thread("test-brief", || black_box(spin_three(1)));
            let _ = black_box(brief.join().expect("no panic"));
        }),
    ));
    threads
}

#[test]
fn a_thousand_profiles_under_load_leave_nothing_behind() {
    if in_own_process(module_path!(), "a_thousand_profiles_under_load_leave_nothing_behind") {
        return;
    }
    // The first profile creates what stays: the handler and the rings. Neither is counted here.
    drop(Window::start(HZ).expect("started"));
    wait_for_profiler();
    let before = remains();
    let stop = Arc::new(AtomicBool::new(false));
    let threads = load(&stop);
    let seen = Arc::new(AtomicU64::new(0));
    let takers: Vec<_> = (0..2)
        .map(|taker| {
            let seen = seen.clone();
            spawn_thread("test-taker", move || {
                let pause = Signal::default();
                for cycle in 0..500_u64 {
                    let window = Window::start(HZ).expect("started");
                    pause.wait_timeout(Duration::from_millis(cycle % 8));
                    if cycle % 3 == taker {
                        drop(window);
                    } else {
                        seen.fetch_add(window.finish().samples.len() as u64, Ordering::Relaxed);
                    }
                    if cycle % 25 == 0 {
                        assert!(threads::capture().expect("captured").len() > 6);
                    }
                }
            })
        })
        .collect();
    for taker in takers {
        taker.join().expect("no panic");
    }
    stop.store(true, Ordering::Relaxed);
    for thread in threads {
        thread.join().expect("no panic");
    }
    // Windows last at most 7 ms, and other tests may use most of the cores.
    let seen = seen.load(Ordering::Relaxed);
    assert!(seen > 50, "the profiles have samples of the load: {seen}");
    wait_for(&before);
    // The planted defect: a window that is never ended.
    std::mem::forget(Window::start(HZ).expect("started"));
    assert_ne!(remains(), before, "a window that stays open is noticed");
}

/// Waits until the kernel no longer lists klad-profiler, which has ended. It may list a joined thread for a moment
/// longer.
fn wait_for_profiler() {
    let deadline = now() + Duration::from_secs(30);
    let is_listed = |tid| tasks::name(tid).is_some_and(|name| name == "klad-profiler");
    while tasks::all().expect("there is /proc").into_iter().any(is_listed) {
        assert!(now() < deadline, "klad-profiler has not ended");
        std::thread::yield_now();
    }
}

/// Waits until only `before` remains. The kernel may list a joined thread for a moment longer.
fn wait_for(before: &Remains) {
    let deadline = now() + Duration::from_secs(30);
    while remains() != *before {
        assert!(now() < deadline, "{:?} is left of {before:?}", remains());
        std::thread::yield_now();
    }
}

/// Denies `process_vm_readv` to the calling thread, as the system call filter of a container does.
#[expect(unsafe_code, reason = "only a system call installs a filter")]
fn deny_reads() {
    let step = |code: u32, k: u32, jt: u8, jf: u8| libc::sock_filter {
        code: u16::try_from(code).expect("a small constant"),
        jt,
        jf,
        k,
    };
    let number = u32::try_from(libc::SYS_process_vm_readv).expect("a small number");
    let mut filter = [
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, number, 0, 1),
        step(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ERRNO | libc::EPERM.cast_unsigned(), 0, 0),
        step(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW, 0, 0),
    ];
    let program = libc::sock_fprog { len: 4, filter: filter.as_mut_ptr() };
    // SAFETY: the program and its four steps live until the kernel has copied them.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program), 0);
    }
}

#[test]
fn a_denied_read_is_an_error_at_the_start() {
    let _exclusive = exclusive();
    let refused = spawn_thread("test-refused", || {
        deny_reads();
        let error = walk::check().expect_err("the read is denied");
        assert_eq!(error.raw_os_error(), Some(libc::EPERM));
        assert_eq!(walk::Stack::here(0).frames().len(), 0, "the walk does not read memory directly instead");
        let window = Window::start(99).expect_err("a profile needs stacks");
        let captured = threads::capture().expect_err("a capture needs stacks");
        (window.to_string(), captured.to_string())
    });
    let (window, captured) = refused.join().expect("no panic");
    assert!(window.contains("process_vm_readv") && window.contains("not permitted"), "{window}");
    assert_eq!(window, captured);
}
