//! CPU profiles: where threads use CPU time.
//!
//! ```text
//!   start ──▶ a timer on each thread's CPU time ──SIGPROF──▶ sampling::signal ──ring──▶ look, every 50 ms ──▶ each window's totals
//!                ▲                                                                      │
//!                └────────── threads that have come and gone, every 100 ms ◀────────────┘
//! ```
//!
//! A thread is asked where it is each time it has used a period of CPU time, in klad or in the kernel on its behalf; one that
//! waits costs nothing and shows nowhere. All threads are seen, those of RocksDB too, and klad-profiler itself under its name,
//! so that what profiling costs can be read off the profile. Not seen are threads that take no signals (jemalloc's).
//!
//! Windows that overlap share the timers, hence the rate; each adds up for itself. When the last one ends, no timer, thread or
//! descriptor is left; the handler and the ring stay.

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

/// No higher rate, Hz: the kernel looks at timers once in its tick, of which it has 1,000 a second at most.
pub const HZ_MAX: u32 = 1000;

/// Windows at a time; one more is answered that they are busy. Each holds up to 16 MiB.
pub const WINDOWS_MAX: usize = 8;

/// Threads are looked for each second time that the collector comes by, hence every 100 ms.
const LOOKS_FOR_EACH_SEARCH: u32 = 2;

/// A CPU profile that is being taken; dropping it ends it.
#[derive(Debug)]
pub struct Window {
    /// `None` once it has ended.
    number: Option<u64>,
    hz: u32,
    began: Instant,
    began_unix_ns: u64,
}

/// What is common to all windows: there is one while there is a window.
static SAMPLER: Mutex<Option<Sampler>> = Mutex::new(None);

/// Sessions and windows are numbered in one row. 0 is nobody's.
static NUMBERS: AtomicU64 = AtomicU64::new(1);

struct Sampler {
    hz: u32,
    /// What its timers' signals carry: those of an earlier one are not counted.
    session: u64,
    timers: BTreeMap<i32, ThreadTimer>,
    /// Timers that were ever started.
    timers_started: u64,
    /// So many had none when they were looked for last.
    threads_without: u64,
    looks: u32,
    windows: Vec<Taking>,
    registration: Option<Registration>,
}

/// A window while it is open.
struct Taking {
    number: u64,
    /// Of each stack the periods and the events.
    totals: Totals<Key>,
    lost_before: u64,
    started_before: u64,
    /// At most so many threads had none at one time.
    threads_without: u64,
}

/// What a window has seen.
struct Taken {
    /// Under the lock, when the ring was emptied: what came later is not in it.
    ended: Instant,
    totals: Totals<Key>,
    lost: u64,
    threads: u64,
    threads_without: u64,
}

impl Window {
    /// Begins, at `hz` of 1 to [`HZ_MAX`]. Two at a time share one rate.
    ///
    /// # Errors
    /// [`Error::Busy`] when one of another rate is being taken, or [`WINDOWS_MAX`] are; [`Error::Refused`] when the system
    /// lets klad have no timer, no handler or no look at its own stacks.
    ///
    /// # Panics
    /// When `hz` is out of its range.
    pub fn start(hz: u32) -> Result<Window, Error> {
        assert!((1..=HZ_MAX).contains(&hz), "{hz} Hz");
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        let mut sampler = SAMPLER.lock();
        if sampler.is_none() {
            *sampler = Some(Sampler::start(hz)?);
        }
        let Some(running) = &mut *sampler else { unreachable!("it was started above") };
        if running.hz != hz {
            return Err(Error::Busy(format!("a CPU profile at {} Hz", running.hz)));
        }
        if running.windows.len() >= WINDOWS_MAX {
            return Err(Error::Busy(format!("{WINDOWS_MAX} CPU profiles at a time")));
        }
        // What was seen until now is of the other windows only.
        running.empty_ring(|| false);
        running.windows.push(Taking {
            number,
            totals: Totals::of_stacks(),
            lost_before: signal::samples().lost(),
            started_before: running.timers_started - running.timers.len() as u64,
            threads_without: running.threads_without,
        });
        Ok(Window { number: Some(number), hz, began: clock::now(), began_unix_ns: clock::unix_ns() })
    }

    /// Ends, and says what was seen: values `samples` (count) and `cpu` (nanoseconds).
    #[must_use]
    pub fn finish(mut self) -> Profile<Address> {
        let number = self.number.take().expect("only this and dropping end it");
        let taken = end(number);
        self.profile(&taken, taken.ended.saturating_duration_since(self.began))
    }

    fn profile(&self, taken: &Taken, duration: Duration) -> Profile<Address> {
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

    fn facts(&self, taken: &Taken, duration: Duration) -> Vec<(String, String)> {
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
        // Short: it stands under the picture's title.
        let clock = format!("CPU time of each thread, {} ms ticks", clock::kernel_tick().as_secs_f64() * 1e3);
        let facts = [
            ("events", events.to_string()),
            ("sampling rate", format!("{} Hz", self.hz)),
            ("lost samples", taken.lost.to_string()),
            ("clock", clock),
            ("version", concat!("klad ", env!("CARGO_PKG_VERSION")).to_owned()),
            ("duration", format!("{:.3} s", duration.as_secs_f64())),
            ("periods", format!("{periods}, of which {} passed between two looks", periods - events)),
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

/// Ends the window of this number, and all sampling with the last one.
fn end(number: u64) -> Taken {
    let mut sampler = SAMPLER.lock();
    let running = sampler.as_mut().expect("there is one while there is a window");
    let ended = clock::now();
    let behind = running.empty_ring(collector::patience());
    let index = running.windows.iter().position(|window| window.number == number).expect("it was not ended before");
    let window = running.windows.swap_remove(index);
    let taken = Taken {
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
    // Without the lock, which the collector may wait for: it is waited for here.
    drop(ended);
    taken
}

/// What the collector calls.
fn look() {
    if let Some(sampler) = &mut *SAMPLER.lock() {
        sampler.empty_ring(|| false);
        sampler.looks = sampler.looks.wrapping_add(1);
        if sampler.looks.is_multiple_of(LOOKS_FOR_EACH_SEARCH) {
            // Without /proc those threads stay that are known; at the start that was an error.
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
            looks: 0,
            windows: Vec::new(),
            registration: None,
        };
        signal::take_samples_of(sampler.session);
        let refused = sampler.search().map_err(|error| Error::Refused(format!("/proc/self/task: {error}")));
        // Last, and nothing fails after it: it must not be dropped under the lock that `look` takes.
        let registered = refused.and_then(|refused| match refused {
            Some(why) if sampler.timers.is_empty() => Err(Error::Refused(format!("a timer of CPU time: {why}"))),
            _ => collector::register(Box::new(look)),
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

    /// Gives a timer to each thread that has none, and takes it from those that have ended. Why the last one that could have
    /// none was refused it.
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
                // It has ended since.
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

    /// Adds what waits in the ring to each window. How many could not be had, though `again` let them be waited for.
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

/// A part of a period, more than nothing, different for each thread: a thread that lives for half a period is seen every
/// second time, and threads that work in step are not seen in step.
fn part_of(period: Duration, tid: i32, number: u64) -> Duration {
    // The finalizer of SplitMix64.
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
