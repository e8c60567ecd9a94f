//! CPU profiles: where threads use CPU time.
//!
//! ```text
//!   start ──▶ a timer on each thread's CPU time ──SIGPROF──▶ sampling::signal ──ring──▶ collect, every 50 ms
//!                ▲                                                                        │       │
//!                └────────── threads that have begun and ended, every 100 ms ◀────────────┘       ▼
//!                                                                                    the totals of each window
//! ```
//!
//! A thread is sampled at the first kernel tick after it has used one period of CPU time, in klad or in the kernel on
//! its behalf. If it has used several periods by then, one sample stands for all of them. A thread that waits costs
//! nothing and does not appear. Threads of RocksDB are sampled too, and so is klad-profiler under its own name: a
//! profile shows its own cost. A thread that blocks SIGPROF (jemalloc's) is not sampled, nor is a new thread before
//! the next search for new threads.
//!
//! Overlapping windows share the timers, and so the rate; each window has its own totals. After the end of the last
//! window no timer is left. The thread klad-profiler ends too, unless a lock profile needs it. The signal handler and
//! the ring stay.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::collector::{self, Registration};
use crate::totals::{Key, Totals};
use crate::{Address, Error, Profile, Sample, ValueType, tasks};
use klad_base::clock;
use klad_base::sampling::timer::ThreadTimer;
use klad_base::sampling::{signal, walk};
use klad_base::sync::Mutex;

/// The highest sampling rate, Hz. The kernel checks timers once per tick, at most 1,000 times a second.
pub const HZ_MAX: u32 = 1000;

/// The largest number of CPU profiles ([`Window`]) at a time. One more is [`Error::Busy`]. Each holds up to 16 MiB of
/// stacks.
pub const WINDOWS_MAX: usize = 8;

/// The collector empties the ring every 50 ms. After this many times it also looks for new threads, so every 100 ms.
const COLLECTIONS_PER_SEARCH: u32 = 2;

/// A CPU profile that is being taken. Dropping it ends it.
#[derive(Debug)]
pub struct Window {
    /// The window's number, or `None` once it has ended.
    number: Option<u64>,
    hz: u32,
    began: Instant,
    began_unix_ns: u64,
}

/// The sampler that all windows share. It exists while there is a window.
static SAMPLER: Mutex<Option<Sampler>> = Mutex::new(None);

/// The next number of a session or window. 0 means no session.
static NUMBERS: AtomicU64 = AtomicU64::new(1);

struct Sampler {
    hz: u32,
    /// The session that the signals of its timers carry. Signals of an earlier session are not counted.
    session: u64,
    timers: BTreeMap<i32, ThreadTimer>,
    /// The number of timers that this sampler has started, including those that were removed.
    timers_started: u64,
    /// The number of threads without a timer at the last search.
    threads_without: u64,
    collections: u32,
    windows: Vec<OpenWindow>,
    registration: Option<Registration>,
}

/// An open window.
struct OpenWindow {
    number: u64,
    /// For each stack, the number of sampling periods and the number of samples.
    totals: Totals<Key>,
    lost_before: u64,
    started_before: u64,
    /// The largest number of threads without a timer at one time.
    threads_without: u64,
}

/// The results of a window.
struct ClosedWindow {
    /// The time just before the ring was emptied for the last time. Samples after that emptying are not included.
    ended: Instant,
    totals: Totals<Key>,
    lost: u64,
    threads: u64,
    threads_without: u64,
}

impl Window {
    /// Starts a profile at `hz`, 1 to [`HZ_MAX`]. Profiles that are taken at the same time have the same rate.
    ///
    /// # Errors
    /// [`Error::Busy`] if a profile with another rate, or [`WINDOWS_MAX`] profiles, are being taken.
    /// [`Error::Refused`] if the system does not let klad create any timer, set the signal handler, list the threads,
    /// start a thread, or read its own stacks.
    ///
    /// # Panics
    /// If `hz` is out of range.
    pub fn start(hz: u32) -> Result<Window, Error> {
        assert!((1..=HZ_MAX).contains(&hz), "{hz} Hz");
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        let mut sampler = SAMPLER.lock();
        if sampler.is_none() {
            *sampler = Some(Sampler::start(hz)?);
        }
        let Some(running) = &mut *sampler else { unreachable!("the sampler was started above") };
        if running.hz != hz {
            return Err(Error::Busy(format!("a CPU profile at {} Hz", running.hz)));
        }
        if running.windows.len() >= WINDOWS_MAX {
            return Err(Error::Busy(format!("{WINDOWS_MAX} CPU profiles at a time")));
        }
        // The samples until now belong only to the other windows.
        running.empty_ring(|| false);
        running.windows.push(OpenWindow {
            number,
            totals: Totals::of_stacks(),
            lost_before: signal::samples().lost(),
            started_before: running.timers_started - running.timers.len() as u64,
            threads_without: running.threads_without,
        });
        Ok(Window { number: Some(number), hz, began: clock::now(), began_unix_ns: clock::unix_ns() })
    }

    /// Ends the profile. Returns it with the values `samples` (count) and `cpu` (nanoseconds).
    #[must_use]
    pub fn finish(mut self) -> Profile<Address> {
        let number = self.number.take().expect("a window ends only here or when it is dropped");
        let taken = end(number);
        self.profile(&taken, taken.ended.saturating_duration_since(self.began))
    }

    fn profile(&self, taken: &ClosedWindow, duration: Duration) -> Profile<Address> {
        let period_ns = 1_000_000_000 / u64::from(self.hz);
        let figures = |[periods, _]: [u64; 2]| vec![signed(periods), signed(periods.saturating_mul(period_ns))];
        let mut samples: Vec<_> = taken
            .totals
            .iter()
            .map(|(key, seen)| Sample {
                thread: walk::text_of(key.thread),
                frames: key.frames.to_vec(),
                values: figures(seen),
            })
            .collect();
        samples.sort_by(|one, other| other.values.cmp(&one.values).then_with(|| one.frames.cmp(&other.frames)));
        if taken.totals.beyond() != [0; 2] {
            let thread = "(stacks beyond the limit)".to_owned();
            samples.push(Sample { thread, frames: Vec::new(), values: figures(taken.totals.beyond()) });
        }
        Profile {
            title: "CPU time".to_owned(),
            values: vec![ValueType::new("samples", "count"), ValueType::new("cpu", "nanoseconds")],
            shown: 1,
            samples,
            period: Some((ValueType::new("cpu", "nanoseconds"), signed(period_ns))),
            began_unix_ns: self.began_unix_ns,
            duration,
            facts: self.facts(taken, duration),
        }
    }

    fn facts(&self, taken: &ClosedWindow, duration: Duration) -> Vec<(String, String)> {
        let c_library = tasks::c_library();
        let is_cut = |frames: &[Address]| {
            let reaches_root = frames.last().is_some_and(|last| c_library.iter().any(|range| range.contains(last)));
            frames.len() == 1 || frames.len() >= walk::FRAMES_MAX || !reaches_root
        };
        let [mut periods, mut events] = taken.totals.beyond();
        let mut cut = 0_u64;
        for (key, [its_periods, its_events]) in taken.totals.iter() {
            periods += its_periods;
            events += its_events;
            cut += if is_cut(&key.frames) { its_events } else { 0 };
        }
        // This fact is short, because it is under the title of the flame graph.
        let clock = format!("CPU time of each thread, {} ms ticks", clock::kernel_tick().as_secs_f64() * 1e3);
        let facts = [
            ("events", events.to_string()),
            ("sampling rate", format!("{} Hz", self.hz)),
            ("lost samples", taken.lost.to_string()),
            ("clock", clock),
            ("version", concat!("klad ", env!("CARGO_PKG_VERSION")).to_owned()),
            ("duration", format!("{:.3} s", duration.as_secs_f64())),
            ("periods", format!("{periods}, of which {} have no sample of their own", periods - events)),
            ("cut stacks", format!("{cut} of {events}")),
            ("threads", taken.threads.to_string()),
            ("threads without a timer", taken.threads_without.to_string()),
            ("stacks beyond the limit", taken.totals.beyond()[1].to_string()),
        ];
        facts.map(|(name, value)| (name.to_owned(), value)).to_vec()
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        if let Some(number) = self.number.take() {
            drop(end(number));
        }
    }
}

/// Ends the window with this number, and returns its results. With the last window, ends all sampling.
fn end(number: u64) -> ClosedWindow {
    let mut sampler = SAMPLER.lock();
    let running = sampler.as_mut().expect("the sampler exists while there is a window");
    let ended = clock::now();
    let behind = running.empty_ring(collector::patience());
    let index = running.windows.iter().position(|window| window.number == number).expect("a window ends once");
    let window = running.windows.swap_remove(index);
    let taken = ClosedWindow {
        ended,
        totals: window.totals,
        lost: signal::samples().lost() - window.lost_before + behind,
        threads: running.timers_started - window.started_before,
        threads_without: window.threads_without,
    };
    let ended = if running.windows.is_empty() { sampler.take() } else { None };
    if ended.is_some() {
        signal::take_samples_of(0);
    }
    drop(sampler);
    // This waits for the collector, which may wait for the lock, so the lock is released first.
    drop(ended);
    taken
}

/// Adds the samples in the ring to the open windows, and every second time looks for new threads. The collector calls
/// this function every 50 ms.
fn collect() {
    if let Some(sampler) = &mut *SAMPLER.lock() {
        sampler.empty_ring(|| false);
        sampler.collections = sampler.collections.wrapping_add(1);
        if sampler.collections.is_multiple_of(COLLECTIONS_PER_SEARCH) {
            // Without /proc, the known threads stay. At the start this is an error.
            let _ = sampler.search();
        }
    }
}

impl Sampler {
    fn start(hz: u32) -> Result<Sampler, Error> {
        walk::check().map_err(|error| Error::Refused(format!("process_vm_readv of klad's own memory: {error}")))?;
        signal::install().map_err(|error| Error::Refused(format!("a handler for SIGPROF: {error}")))?;
        let _ = signal::samples();
        let mut sampler = Sampler {
            hz,
            session: NUMBERS.fetch_add(1, Ordering::Relaxed),
            timers: BTreeMap::new(),
            timers_started: 0,
            threads_without: 0,
            collections: 0,
            windows: Vec::new(),
            registration: None,
        };
        signal::take_samples_of(sampler.session);
        let refused = sampler.search().map_err(|error| Error::Refused(format!("/proc/self/task: {error}")));
        // This comes last, and cannot be followed by an error: the registration must not be dropped under the lock
        // that `collect` takes.
        let registered = refused.and_then(|refused| match refused {
            Some(why) if sampler.timers.is_empty() => Err(Error::Refused(format!("a timer of CPU time: {why}"))),
            _ => collector::register(Box::new(collect)),
        });
        match registered {
            Ok(registration) => sampler.registration = Some(registration),
            Err(error) => {
                signal::take_samples_of(0);
                return Err(error);
            }
        }
        Ok(sampler)
    }

    /// Gives a timer to each thread that has none, and removes the timers of threads that have ended. Returns the
    /// last error of a timer that could not be started.
    fn search(&mut self) -> std::io::Result<Option<std::io::Error>> {
        let threads: BTreeSet<i32> = tasks::all()?.into_iter().collect();
        self.timers.retain(|tid, timer| threads.contains(tid) && timer.is_live());
        let period = Duration::from_nanos(1_000_000_000 / u64::from(self.hz));
        let (mut without, mut refused) = (0, None);
        for tid in threads {
            if self.timers.contains_key(&tid) {
                continue;
            }
            if !tasks::takes_sigprof(tid) {
                without += 1;
                continue;
            }
            match ThreadTimer::start(tid, part_of(period, tid, self.timers_started), period, self.session) {
                Ok(timer) => {
                    self.timers.insert(tid, timer);
                    self.timers_started += 1;
                }
                // The thread has ended meanwhile.
                Err(error) if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::ESRCH)) => {}
                Err(error) => {
                    without += 1;
                    refused = Some(error);
                }
            }
        }
        self.threads_without = without;
        for window in &mut self.windows {
            window.threads_without = window.threads_without.max(without);
        }
        Ok(refused)
    }

    /// Adds the samples in the ring to each window. Returns how many samples it could not take, although it retried
    /// while `again` returned `true`.
    fn empty_ring(&mut self, again: impl FnMut() -> bool) -> u64 {
        signal::samples().drain(again, |sample| {
            if sample.session != self.session {
                return;
            }
            for window in &mut self.windows {
                let frames = sample.stack.frames().into();
                window.totals.add(Key { thread: sample.thread, kind: 0, frames }, [sample.periods, 1]);
            }
        })
    }
}

/// Returns the CPU time to a thread's first sample: a pseudo-random part of a period, greater than 0. So a thread that
/// uses half a period is sampled with a probability of one half, and threads that work in step are not sampled in step.
fn part_of(period: Duration, tid: i32, number: u64) -> Duration {
    // This is the finalizer of SplitMix64.
    let seed = clock::monotonic_ns() ^ (u64::from(tid.cast_unsigned()) << 32) ^ number;
    let mut mixed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^= mixed >> 31;
    let period_ns = u64::try_from(period.as_nanos()).unwrap_or(u64::MAX).max(1);
    Duration::from_nanos(1 + mixed % period_ns)
}

fn signed(figure: u64) -> i64 {
    i64::try_from(figure).unwrap_or(i64::MAX)
}
