//! The threads of an engine's own get what requests leave of a core, and a share where they would leave nothing. Called by the engines
//! that have some.
//!
//! ```text
//!   klad-background: does one of them want a core ─▶ did it get its part since the last look? ─▶ yes: what others leave (SCHED_IDLE)
//!   looks every 100 ms       ─▶ no: windows, half a millisecond of each four with a weight of its own (nice 10), for a while
//!                            ─▶ not even so, or requests wait for it: that weight all the time
//! ```
//!
//! A thread with a weight keeps a core until the kernel's next tick, up to 4 ms, when whoever wakes up has had more of the core
//! than its share; and a worker that is busy has. A compaction kept requests waiting so for a fourteenth of its time
//! (docs/decisions/2026-11-24-what-requests-leave.md). From a thread that takes what others leave they take the core at once.
//! But a core that is always wanted leaves nothing: then compactions would fall behind until writes are held up, and who
//! waits for a lock of such a thread's would wait as long. So klad looks.
//!
//! With its weight for longer a thread that was starved takes what it is owed in one piece, up to the tick: seven eighths of all stretches of
//! more than 1.5 ms came so. A window ends such a piece (docs/decisions/2026-11-25-windows-and-an-idle-helper.md).
//!
//! Where klad may not give a thread its weight back (sched(7): that needs `CAP_SYS_NICE`, or an `RLIMIT_NICE` of 10, as `deploy/klad.service` has it),
//! all keep it: a tenth of a core that is wanted, instead of the half that they would take of one untouched.
//! RocksDB itself can only take its threads to the lowest weight of all, which is a seventieth.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Pid, getpriority_process, setpriority_process};

use crate::clock;
use crate::scheduler::{self, Policy, set_policy};
use crate::sync::{Signal, try_spawn_thread};

/// `nice` value: the kernel's weight is 110, and 1024 for one of 0 (Linux, `kernel/sched/core.c`, `sched_prio_to_weight`).
const NICE: i32 = 10;

/// Between two looks, while one of the threads has something to do. Each costs three system calls a thread.
const LOOK: Duration = Duration::from_millis(100);

/// And while none has. What begins after such a look has what others leave for as long, and until one more look has found it so.
const QUIET_LOOK: Duration = Duration::from_millis(200);

/// Of the time between two looks, a thread that wanted a core all the time has to get one part in so many.
const PARTS: u32 = 25;

/// For so many looks at most all have windows before they are tried with less again.
const SPELL_MAX: u32 = 16;

/// So many looks in a row windows may be too little before all have their weight.
const IN_VAIN_MAX: u32 = 2;

/// So long a thread has its weight,
const WINDOW: Duration = Duration::from_micros(500);

/// then it has what others leave for as long as this: an eighth, as with a weight of a tenth it could not have more in the long run.
const BETWEEN_WINDOWS: Duration = Duration::from_micros(3_500);

/// Once in so many looks threads are met that have come later, as RocksDB has some after an error.
const LOOKS_A_SEARCH: u32 = 16;

/// The threads of one database, until it is dropped.
pub(super) struct Background {
    shared: Arc<Shared>,
    watch: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    stop: Signal,
    /// Requests wait for what these threads do.
    awaited: AtomicBool,
}

impl Background {
    /// So many threads, whose names begin with one of `names`. A thread that is not there yet, or has no name yet, is met when it has.
    pub(super) fn new(names: &'static [&'static str], threads: usize) -> Background {
        let shared = Arc::<Shared>::default();
        let watched = Arc::clone(&shared);
        let watch = cfg!(target_os = "linux")
            .then(|| try_spawn_thread("klad-background", move || watch(names, threads, &watched)));
        let watch = watch.and_then(|thread| {
            // Without it they have what every thread has.
            thread.inspect_err(|error| tracing::debug!(%error, "an engine's threads do not make way")).ok()
        });
        Background { shared, watch }
    }

    /// Whether writes are held up, or slowed down, until these threads have done what they have to: they have their weight then.
    pub(super) fn set_awaited(&self, awaited: bool) {
        self.shared.awaited.store(awaited, Ordering::Relaxed);
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.shared.stop.raise();
        if let Some(watch) = self.watch.take() {
            // Nothing is lost if it has panicked.
            let _ = watch.join();
        }
    }
}

/// The calling thread makes way, too: for good, with a weight.
pub(super) fn make_way_here() {
    #[cfg(target_os = "linux")]
    make_way(rustix::thread::gettid());
}

/// A thread may always have less than it has; answers whether it has.
fn make_way(thread: Pid) -> bool {
    // A whole klad may have been given less.
    let own = getpriority_process(None).unwrap_or(0);
    setpriority_process(Some(thread), NICE.max(own)).is_ok()
}

/// Until it is stopped; or until all have their weight, where there is nothing more to do.
fn watch(names: &[&str], threads: usize, shared: &Shared) {
    // Another thread, as one that may not return is left with what others leave.
    let may_return = try_spawn_thread("klad-may-return", may_return).is_ok_and(|tried| tried.join().unwrap_or(false));
    tracing::debug!(may_return, "whether an engine's threads get their weight back from taking what others leave");
    // It has little to do, and ends a window that another thread may be waiting for the end of.
    scheduler::shorten_turns();
    let mut pool = Pool::default();
    for look in 0_u32.. {
        let complete = pool.threads.len() >= threads;
        if complete && !may_return {
            return;
        }
        if !complete || look.is_multiple_of(LOOKS_A_SEARCH) {
            pool.find(names);
        }
        let awaited = shared.awaited.load(Ordering::Relaxed);
        let (busy, portion) = if may_return { pool.look(clock::now(), awaited) } else { (false, Portion::Weight) };
        let stopped = match portion {
            Portion::Windows => pool.open_windows(LOOK, &shared.stop),
            Portion::Leftovers | Portion::Weight => shared.stop.wait_timeout(if busy { LOOK } else { QUIET_LOOK }),
        };
        if stopped {
            break;
        }
    }
    if may_return {
        // They may be there for longer than the database.
        pool.give(Policy::Ordinary);
    }
}

/// Whether a thread of this process gets its weight back, and can be seen to need it. Tried on the calling one, which may be left with
/// what others leave.
fn may_return() -> bool {
    make_way_here();
    #[cfg(target_os = "linux")]
    {
        let here = rustix::thread::gettid();
        // Whoever has chosen another policy for all of klad knows why.
        scheduler::is_ordinary()
            // Of the process' first thread, which has run for long enough to be seen.
            && Seen::of(Path::new("/proc/self"), clock::now()).is_some_and(|seen| !seen.ran.is_zero())
            && set_policy(here, Policy::Leftovers).is_ok()
            && set_policy(here, Policy::Ordinary).is_ok()
    }
    #[cfg(not(target_os = "linux"))]
    false
}

/// The threads that were met.
#[derive(Default)]
struct Pool {
    threads: Vec<Watched>,
    share: Share,
    given: Option<Policy>,
    /// What could be given before no longer can be; it was said.
    failed: bool,
}

/// One of them, as it was at the last look.
struct Watched {
    thread: Pid,
    task: PathBuf,
    seen: Option<Seen>,
}

/// What the kernel says of a thread.
#[derive(Clone, Copy, Debug)]
struct Seen {
    at: Instant,
    /// Has a core, or waits for one.
    wants: bool,
    /// CPU time that it has had.
    ran: Duration,
}

impl Pool {
    /// Those that were not there before get their weight.
    fn find(&mut self, names: &[&str]) {
        let Ok(tasks) = std::fs::read_dir("/proc/self/task") else { return };
        for task in tasks.flatten() {
            let id = task.file_name().to_str().and_then(|text| text.parse().ok()).and_then(Pid::from_raw);
            let Some(thread) = id else { continue };
            let known = self.threads.iter().any(|watched| watched.thread == thread);
            if !known && is_background(&task.path(), names) && make_way(thread) {
                self.threads.push(Watched { thread, task: task.path(), seen: None });
                self.given = None;
            }
        }
    }

    /// Gives all of them what they should have from now on; answers whether one has something to do, and what they should have.
    /// `awaited`: what they do must not wait for others.
    fn look(&mut self, now: Instant, awaited: bool) -> (bool, Portion) {
        let (mut busy, mut starved) = (awaited, false);
        self.threads.retain(|watched| watched.task.exists());
        for watched in &mut self.threads {
            let seen = Seen::of(&watched.task, now);
            let before = std::mem::replace(&mut watched.seen, seen);
            busy |= seen.is_none_or(|seen| seen.wants || before.is_none_or(|before| before.ran < seen.ran));
            starved |= is_starved(before, seen);
        }
        let portion = self.share.next(starved, awaited);
        self.give(if portion == Portion::Weight { Policy::Ordinary } else { Policy::Leftovers });
        (busy, portion)
    }

    /// For `time`, or until `stop` is raised, which it answers.
    fn open_windows(&mut self, time: Duration, stop: &Signal) -> bool {
        let deadline = clock::now() + time;
        while clock::now() < deadline {
            if stop.wait_timeout(BETWEEN_WINDOWS) {
                return true;
            }
            self.give(Policy::Ordinary);
            let stopped = stop.wait_timeout(WINDOW);
            self.give(Policy::Leftovers);
            if stopped {
                return true;
            }
        }
        false
    }

    fn give(&mut self, policy: Policy) {
        if self.given == Some(policy) {
            return;
        }
        for watched in &self.threads {
            // One that has ended needs nothing.
            if let Err(error) = set_policy(watched.thread, policy)
                && watched.task.exists()
                && !self.failed
            {
                self.failed = true;
                tracing::warn!(%error, ?policy, "a thread of an engine's keeps another policy than it should have");
            }
        }
        self.given = Some(policy);
    }
}

impl Seen {
    /// `None`: there is no such thread any more, or a kernel that does not tell.
    fn of(task: &Path, at: Instant) -> Option<Seen> {
        let read = |file| std::fs::read_to_string(task.join(file)).ok();
        // The third field; the second is a name in parentheses.
        let wants = read("stat")?.rsplit_once(") ")?.1.starts_with('R');
        let ran = read("schedstat")?.split(' ').next()?.parse().ok().map(Duration::from_nanos)?;
        Some(Seen { at, wants, ran })
    }
}

/// Whether a thread wanted a core from one look to the next, and had less of it than its part. What cannot be seen is taken for it.
fn is_starved(before: Option<Seen>, now: Option<Seen>) -> bool {
    let Some(now) = now else { return true };
    let Some(before) = before else { return false };
    let (passed, ran) = (now.at.saturating_duration_since(before.at), now.ran.saturating_sub(before.ran));
    before.wants && now.wants && ran < passed / PARTS
}

/// What an engine's threads have of a core that is always wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Portion {
    /// Hardly anything.
    Leftovers,
    /// Up to an eighth, in small pieces.
    Windows,
    /// A tenth.
    Weight,
}

/// Who goes first, from look to look.
#[derive(Debug, Default)]
struct Share {
    /// So many looks with windows are left,
    left: u32,
    /// of so many, of which the next spell has twice as many.
    spell: u32,
    /// Looks in a row that found windows too little.
    in_vain: u32,
}

impl Share {
    /// Each time that what others leave was too little, right after it was tried, the spell is twice as long: where cores are
    /// always wanted, little time goes into trying.
    fn next(&mut self, starved: bool, awaited: bool) -> Portion {
        // In spite of windows: several others want the core, and each has more of it than these have.
        self.in_vain = if self.left > 0 && starved { self.in_vain + 1 } else { 0 };
        if self.left > 0 {
            self.left -= 1;
        } else if starved || awaited {
            self.spell = (self.spell * 2).clamp(1, SPELL_MAX);
            self.left = self.spell;
        } else {
            self.spell /= 2;
        }
        match self.left {
            _ if awaited || self.in_vain > IN_VAIN_MAX => Portion::Weight,
            0 => Portion::Leftovers,
            _ => Portion::Windows,
        }
    }
}

fn is_background(task: &Path, names: &[&str]) -> bool {
    let name = std::fs::read_to_string(task.join("comm")).unwrap_or_default();
    names.iter().any(|wanted| name.starts_with(wanted))
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::sync::mpsc;

    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

    use super::*;
    use crate::sync::spawn_thread;

    const SCHED_OTHER: u32 = 0;
    const SCHED_IDLE: u32 = 5;

    fn seen(at: Instant, wants: bool, ran_ms: u64) -> Seen {
        Seen { at, wants, ran: Duration::from_millis(ran_ms) }
    }

    #[test]
    fn starved_is_who_wanted_a_core_all_the_time_and_had_less_than_its_part() {
        let then = clock::now();
        let now = then + LOOK;
        let part = u64::try_from((LOOK / PARTS).as_millis()).expect("few");
        assert!(is_starved(Some(seen(then, true, 7)), Some(seen(now, true, 7 + part - 1))));
        assert!(!is_starved(Some(seen(then, true, 7)), Some(seen(now, true, 7 + part))), "it had its part");
        assert!(
            !is_starved(Some(seen(then, false, 7)), Some(seen(now, true, 7))),
            "it wants a core since a moment ago"
        );
        assert!(!is_starved(Some(seen(then, true, 7)), Some(seen(now, false, 7))), "it waits for something else");
        assert!(!is_starved(None, Some(seen(now, true, 7))), "the first look");
        assert!(is_starved(Some(seen(then, true, 7)), None), "what cannot be seen has a weight");
    }

    #[test]
    fn where_nothing_is_left_again_and_again_little_time_goes_into_trying() {
        let mut share = Share::default();
        // Windows are enough, and what others leave is not.
        let mut last = Portion::Leftovers;
        let given: Vec<Portion> = (0..200)
            .map(|_| {
                last = share.next(last == Portion::Leftovers, false);
                last
            })
            .collect();
        let tries = given[100..].iter().filter(|portion| **portion == Portion::Leftovers).count();
        assert_eq!((given[0], share.spell), (Portion::Windows, SPELL_MAX));
        assert!((1..=100 / usize::try_from(SPELL_MAX).expect("few")).contains(&tries), "{tries}");
        assert!(!given.contains(&Portion::Weight));
        // And where enough is left again, spells are short soon.
        let calm: Vec<Portion> = (0..40).map(|_| share.next(false, false)).collect();
        assert_eq!((calm[39], share.spell), (Portion::Leftovers, 0));
        assert_eq!(
            [share.next(true, false), share.next(false, false), share.next(false, false)],
            [Portion::Windows, Portion::Leftovers, Portion::Leftovers]
        );
    }

    #[test]
    fn where_windows_are_too_little_or_requests_wait_all_have_their_weight() {
        let mut share = Share::default();
        let given: Vec<Portion> = (0..64).map(|_| share.next(true, false)).collect();
        let first = given.iter().position(|portion| *portion == Portion::Weight);
        assert!(first.is_some_and(|first| first > 2 && first < 16), "{given:?}");
        assert!(given[32..].iter().filter(|portion| **portion == Portion::Weight).count() > 16, "{given:?}");
        assert_eq!(Share::default().next(false, true), Portion::Weight);
    }

    /// Ends the threads that spin, whatever a test comes to.
    #[derive(Default)]
    struct Stop(Arc<AtomicBool>);

    impl Drop for Stop {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    /// A thread with a name, on one core, that wants it until `stop`; its id.
    fn wants_core(name: &str, core: usize, stop: &Arc<AtomicBool>) -> (Pid, JoinHandle<Duration>) {
        let (sender, receiver) = mpsc::channel();
        let stop = Arc::clone(stop);
        let thread = spawn_thread(name, move || {
            let mut cores = CpuSet::new();
            cores.set(core);
            sched_setaffinity(None, &cores).expect("one of those that were allowed");
            sender.send(rustix::thread::gettid()).expect("somebody listens");
            while !stop.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
            Duration::from_nanos(clock::thread_cpu_ns())
        });
        (receiver.recv().expect("started"), thread)
    }

    /// Looks now and then.
    fn wait_until(what: impl Fn() -> bool) {
        wait(LOOK, what);
    }

    /// Looks often enough to see a window.
    fn wait_until_soon(what: impl Fn() -> bool) {
        wait(WINDOW / 4, what);
    }

    fn wait(pause: Duration, what: impl Fn() -> bool) {
        let (deadline, never) = (clock::now() + Duration::from_mins(1), Signal::default());
        while !what() {
            assert!(clock::now() < deadline, "it has not come");
            never.wait_timeout(pause);
        }
    }

    /// The 41st field of its `stat`.
    fn policy_of(thread: Pid) -> u32 {
        let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat")).expect("it runs");
        let fields = stat.rsplit_once(") ").expect("a name").1;
        fields.split(' ').nth(38).expect("41 fields").parse().expect("a number")
    }

    /// What a thread of an engine's gets of a core that another wants all the time, in hundredths; `None` where klad may not give it
    /// its weight back. `look`: somebody looks after it.
    fn percent_beside_a_hog(names: &'static [&'static str], look: bool) -> Option<f64> {
        if !spawn_thread("test-may", may_return).join().expect("no panic") {
            return None;
        }
        let allowed = sched_getaffinity(None).expect("some cores");
        let core = (0..CpuSet::MAX_CPU).find(|core| allowed.is_set(*core)).expect("at least one");
        let stop = Stop::default();
        let (thread, engines) = wants_core(names[0], core, &stop.0);
        let background = look.then(|| Background::new(names, 1));
        if look {
            // With the core for itself it never has less than its part, though it may first have to be met.
            wait_until(|| policy_of(thread) == SCHED_IDLE);
        } else {
            set_policy(thread, Policy::Leftovers).expect("anybody may");
        }
        let ran =
            |thread: Pid| Seen::of(Path::new(&format!("/proc/self/task/{thread}")), clock::now()).expect("it runs").ran;
        let (hog, hogs) = wants_core("test-hog", core, &stop.0);
        wait_until(|| !ran(hog).is_zero());
        let before = (ran(thread), ran(hog));
        wait_until(|| ran(hog) >= before.1 + Duration::from_secs(2));
        let (mine, all) = (ran(thread).saturating_sub(before.0), ran(hog).saturating_sub(before.1));
        drop(background);
        let last = policy_of(thread);
        drop(stop);
        let _ = (engines.join().expect("no panic"), hogs.join().expect("no panic"));
        assert_eq!(
            last,
            if look { SCHED_OTHER } else { SCHED_IDLE },
            "nobody is left with less when the database is closed"
        );
        Some(100.0 * mine.as_secs_f64() / (mine + all).as_secs_f64())
    }

    #[test]
    fn a_core_that_is_always_wanted_still_carries_compactions() {
        let Some(percent) = percent_beside_a_hog(&["test-engine"], true) else { return };
        assert!(percent > 2.0, "{percent}");
    }

    #[test]
    fn twin_without_looking_compactions_would_stand_still() {
        let Some(percent) = percent_beside_a_hog(&["test-left"], false) else { return };
        assert!(percent < 2.0, "{percent}");
    }

    #[test]
    fn windows_open_and_close_until_it_is_told_to_stop() {
        if !spawn_thread("test-may-too", may_return).join().expect("no panic") {
            return;
        }
        let stop = Stop::default();
        let allowed = sched_getaffinity(None).expect("some cores");
        let core = (0..CpuSet::MAX_CPU).find(|core| allowed.is_set(*core)).expect("at least one");
        let (thread, engine) = wants_core("test-window", core, &stop.0);
        let (closed, watched) = (Arc::<Signal>::default(), ["test-window"]);
        let mut pool = Pool::default();
        wait_until(|| is_background(Path::new(&format!("/proc/self/task/{thread}")), &watched));
        pool.find(&watched);
        let close = Arc::clone(&closed);
        let windows = spawn_thread("test-opens", move || pool.open_windows(Duration::from_mins(1), &close));
        for _ in 0..3 {
            wait_until_soon(|| policy_of(thread) == SCHED_OTHER);
            wait_until_soon(|| policy_of(thread) == SCHED_IDLE);
        }
        closed.raise();
        assert!(windows.join().expect("no panic"), "it was told to stop");
        assert_eq!(policy_of(thread), SCHED_IDLE, "closed");
        drop(stop);
        let _ = engine.join().expect("no panic");
    }
}
