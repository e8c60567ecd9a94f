//! Profiles of waits for locks, queues and conditions.
//!
//! ```text
//!   threads that wait ──▶ sampling::waits ──▶ ring ── every 50 ms ──▶ each open window's totals ──▶ Seen: mutex, block, conditions
//!                                       └──▶ slots ── at a window's end: who still waits ──────────┘
//! ```
//!
//! A wait that began before the window, or is not over at its end, counts with what of it lies in the window.
//!
//! Only threads wait here. An operation in a queue of the executor is not a thread: it has no stack, and how long it waited
//! is in the metrics. A worker that waits for its sockets is not kept by a lock, and not shown either; nor is what the
//! profiler's own threads do.
//!
//! Called by `http::admin`, not on a worker.

mod judge;
mod leaf;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use crate::collector::{self, Registration};
use crate::totals::{Key, Totals};
use crate::{Address, Error, Name, Profile, Sample, ValueType};
use klad_base::clock;
#[cfg(feature = "posix-locks")]
use klad_base::sampling::pthread;
use klad_base::sampling::waits::{self, Counts, OpenWait, Wait};
use klad_base::sampling::{Kind, walk};
use klad_base::sync::Mutex;

pub use judge::is_contention;

/// What the names of threads begin with that take profiles: the collector's, and those that work for a request for one. That
/// they wait for each other is not klad's business.
const PROFILERS: &str = "klad-profile";

/// Threads whose last wait is kept in mind; above that, those are forgotten whose wait is known to be over. Hence never more than
/// so many and what the ring holds.
const REMEMBERED_MAX: usize = 4096;

/// A profile of waits that is being taken; dropping it ends it. Any number at a time, of one threshold.
#[derive(Debug)]
pub struct Window {
    id: u64,
    registration: Option<Registration>,
}

/// What a window saw. `conditions` waits for its names: [`Seen::named`] puts it where it belongs.
#[derive(Debug)]
pub struct Seen {
    /// Waits for locks, and for klad's own conditions that stand for one: somebody else has what the thread needs. Values
    /// `contentions` (count) and `delay` (nanoseconds). Without what `conditions` has to add.
    pub mutex: Profile<Address>,
    /// All waits, idle ones and `conditions` too; the same values.
    pub block: Profile<Address>,
    /// Waits for conditions of RocksDB and of the C++ library; those whose names [`is_contention`] are `mutex`'s as well.
    pub conditions: Profile<Address>,
    acquisitions: u64,
    threshold: Duration,
}

/// What a window saw, named.
#[derive(Debug)]
pub struct Named {
    /// As [`Seen::mutex`], with RocksDB's conditions that are waits for somebody else.
    pub mutex: Profile<Name>,
    /// As [`Seen::block`].
    pub block: Profile<Name>,
}

/// What is a wait's part in the profiles, as a key's kind.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
enum Class {
    Contention,
    Idle,
    Undecided,
}

/// A window's side that waits are added to.
struct Open {
    id: u64,
    began_ns: u64,
    began_unix_ns: u64,
    counts: Counts,
    /// Waits that began before the window: nobody has counted their acquisitions.
    earlier: u64,
    totals: Totals<Key>,
}

struct State {
    threshold: Duration,
    last_id: u64,
    open: Vec<Open>,
    /// When the last wait of each thread began that came out of the ring. A thread puts its wait there before it frees its slot,
    /// and can be preempted in between: then the slot shows a wait that was added already.
    over: BTreeMap<u32, u64>,
}

static STATE: Mutex<State> =
    Mutex::new(State { threshold: Duration::ZERO, last_id: 0, open: Vec::new(), over: BTreeMap::new() });

impl Window {
    /// Begins; waits shorter than `threshold` are counted, not kept.
    ///
    /// # Errors
    /// [`Error::Busy`] when one of another threshold is being taken, [`Error::Refused`].
    pub fn start(threshold: Duration) -> Result<Window, Error> {
        walk::check().map_err(|error| Error::Refused(format!("process_vm_readv: {error}")))?;
        #[cfg(feature = "posix-locks")]
        pthread::prepare();
        let mut state = STATE.lock();
        if state.open.is_empty() {
            state.threshold = threshold;
            waits::start(nanoseconds(threshold));
        } else if state.threshold != threshold {
            return Err(Error::Busy(format!("its threshold is {}", text_of(state.threshold))));
        }
        state.last_id += 1;
        let id = state.last_id;
        state.open.push(Open {
            id,
            began_ns: clock::monotonic_ns(),
            began_unix_ns: clock::unix_ns(),
            counts: waits::counts(),
            earlier: 0,
            totals: Totals::of_stacks(),
        });
        drop(state);
        // Whatever fails from here on, the window's end closes what was opened.
        let mut window = Window { id, registration: None };
        window.registration = Some(collector::register(Box::new(|| STATE.lock().drain()))?);
        Ok(window)
    }

    /// Ends, and says what was seen; what still waits counts until now.
    #[must_use]
    pub fn finish(self) -> Seen {
        let mut state = STATE.lock();
        state.drain();
        let ended_ns = clock::monotonic_ns();
        // First who still waits, then the ring again: who stops waiting in between is in both, and one of both is left out. The
        // other way round it could be in neither. Whose wait came out of the ring before, it is over, slot or not.
        let mut still = Vec::new();
        waits::for_each_open(|wait| still.push(wait));
        still.retain(|wait| state.over.get(&wait.tid) != Some(&wait.began_ns));
        let mut window = state.close(self.id).expect("a window is open until it ends or is dropped");
        let both: HashSet<_> = still.iter().map(|wait| (wait.tid, wait.began_ns)).collect();
        let behind = waits::drain(collector::patience(), |wait| {
            state.add(&wait);
            if !both.contains(&(wait.tid, wait.began_ns)) {
                let ended_ns = wait.ended_ns.min(ended_ns);
                window.add(wait.kind, wait.thread, (wait.began_ns, ended_ns), wait.stack.frames());
            }
        });
        let (threshold, mut counts) = (state.threshold, waits::counts());
        counts.lost += behind;
        drop(state);
        let still = still.iter().filter(|wait| window.add_open(wait, ended_ns, threshold)).count();
        window.seen(ended_ns, counts, threshold, still)
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // Whoever has finished has closed it.
        drop(STATE.lock().close(self.id));
        drop(self.registration.take());
    }
}

impl State {
    fn drain(&mut self) {
        waits::drain(|| false, |wait| self.add(&wait));
        if self.over.len() > REMEMBERED_MAX {
            let mut slots = HashSet::new();
            waits::for_each_open(|wait| _ = slots.insert((wait.tid, wait.began_ns)));
            self.over.retain(|tid, began_ns| slots.contains(&(*tid, *began_ns)));
        }
    }

    fn add(&mut self, wait: &Wait) {
        self.over.insert(wait.tid, wait.began_ns);
        for window in &mut self.open {
            window.add(wait.kind, wait.thread, (wait.began_ns, wait.ended_ns), wait.stack.frames());
        }
    }

    fn close(&mut self, id: u64) -> Option<Open> {
        let position = self.open.iter().position(|window| window.id == id)?;
        let window = self.open.swap_remove(position);
        if self.open.is_empty() {
            waits::stop();
            self.over.clear();
        }
        Some(window)
    }
}

impl Open {
    /// What of the wait lies in the window, if anything does.
    fn add(&mut self, kind: Kind, thread: [u8; 16], (wait_began_ns, ended_ns): (u64, u64), frames: &[Address]) {
        let began_ns = wait_began_ns.max(self.began_ns);
        if ended_ns <= began_ns || thread.starts_with(PROFILERS.as_bytes()) {
            return;
        }
        self.earlier += u64::from(wait_began_ns < self.began_ns);
        let key = Key { thread, kind: Class::of(kind) as u32, frames: frames.into() };
        self.totals.add(key, [1, ended_ns - began_ns]);
    }

    /// `false`: it is below the threshold yet, or the profiler's.
    fn add_open(&mut self, wait: &OpenWait, now_ns: u64, threshold: Duration) -> bool {
        let name = std::fs::read(format!("/proc/self/task/{}/comm", wait.tid)).unwrap_or_default();
        let mut thread = [0; 16];
        let name = name.strip_suffix(b"\n").unwrap_or(&name);
        let len = name.len().min(thread.len() - 1);
        thread[..len].copy_from_slice(&name[..len]);
        if now_ns.saturating_sub(wait.began_ns) < nanoseconds(threshold) || name.starts_with(PROFILERS.as_bytes()) {
            return false;
        }
        self.add(wait.kind, thread, (wait.began_ns, now_ns), wait.stack.frames());
        true
    }

    fn seen(self, ended_ns: u64, counts: Counts, threshold: Duration, still: usize) -> Seen {
        let before = self.counts;
        let acquisitions = (counts.own - before.own) + (counts.pthread - before.pthread) + self.earlier;
        let [beyond, _] = self.totals.beyond();
        let facts = [
            ("threshold", text_of(threshold)),
            ("waits below", (counts.below - before.below).to_string()),
            ("still waiting at the end", still.to_string()),
            ("lost", (counts.lost - before.lost).to_string()),
            // All that were not over when the window began, and those that came.
            ("waits that could not be seen before their end", (counts.unseen - before.unseen_ended).to_string()),
            ("waits from before", self.earlier.to_string()),
            ("waits with stacks beyond the limit", beyond.to_string()),
            ("acquisitions of klad's own locks", (counts.own - before.own).to_string()),
            (
                "acquisitions of POSIX locks",
                if cfg!(feature = "posix-locks") {
                    (counts.pthread - before.pthread).to_string()
                } else {
                    "not seen, nor waits for them: built without the feature posix-locks".to_owned()
                },
            ),
            // A lock that is only tried is nobody's wait, and its price would be another counter at each try.
            ("acquisitions not counted", "tries (trylock)".to_owned()),
            ("clock", "CLOCK_MONOTONIC".to_owned()),
            ("version", concat!("klad ", env!("CARGO_PKG_VERSION")).to_owned()),
            (
                "duration",
                format!("{:.3} s", Duration::from_nanos(ended_ns.saturating_sub(self.began_ns)).as_secs_f64()),
            ),
        ];
        let profile = |title: &str, belongs: fn(Class) -> bool| {
            let samples = samples(&self.totals, belongs);
            let facts = facts.iter().map(|(name, value)| ((*name).to_owned(), value.clone()));
            let waits = ("waits".to_owned(), text_of_waits(&samples, threshold, acquisitions));
            Profile {
                title: title.to_owned(),
                values: vec![ValueType::new("contentions", "count"), ValueType::new("delay", "nanoseconds")],
                shown: 1,
                samples,
                period: Some((ValueType::new("contentions", "count"), 1)),
                began_unix_ns: self.began_unix_ns,
                duration: Duration::from_nanos(ended_ns.saturating_sub(self.began_ns)),
                facts: std::iter::once(waits).chain(facts).collect(),
            }
        };
        Seen {
            mutex: profile("Waits for locks", |class| class == Class::Contention),
            block: profile("All waits", |_| true),
            conditions: profile("Waits for conditions", |class| class == Class::Undecided),
            acquisitions,
            threshold,
        }
    }
}

impl Seen {
    /// Names all addresses by `name`, and adds to `mutex` what the names of `conditions` say. What a thread has called is
    /// the first name of each stack.
    pub fn named(self, mut name: impl FnMut(Profile<Address>) -> Profile<Name>) -> Named {
        let mut name = |addresses| leaf::as_called(name(addresses));
        let (mut mutex, block) = (name(self.mutex), name(self.block));
        let conditions = name(self.conditions).samples;
        mutex
            .samples
            .extend(conditions.into_iter().filter(|sample| is_contention(sample.frames.iter().map(AsRef::as_ref))));
        let waits = text_of_waits(&mutex.samples, self.threshold, self.acquisitions);
        if let Some((_, value)) = mutex.facts.first_mut() {
            *value = waits;
        }
        Named { mutex, block }
    }
}

impl Class {
    fn of(kind: Kind) -> Class {
        match kind {
            Kind::Mutex | Kind::RwLockRead | Kind::RwLockWrite | Kind::Work => Class::Contention,
            Kind::Idle => Class::Idle,
            Kind::Foreign => Class::Undecided,
        }
    }

    fn is(self, key: &Key) -> bool {
        key.kind == self as u32
    }
}

/// Each stack of each thread once, whatever it waited for.
fn samples(totals: &Totals<Key>, belongs: fn(Class) -> bool) -> Vec<Sample<Address>> {
    let classes = [Class::Contention, Class::Idle, Class::Undecided];
    let mut all: HashMap<(&[u8; 16], &[Address]), [u64; 2]> = HashMap::new();
    for (key, [count, delay_ns]) in totals.iter() {
        if classes.into_iter().any(|class| class.is(key) && belongs(class)) {
            let sum = all.entry((&key.thread, &key.frames)).or_default();
            *sum = [sum[0] + count, sum[1] + delay_ns];
        }
    }
    let figure = |figure| i64::try_from(figure).unwrap_or(i64::MAX);
    all.into_iter()
        .map(|((thread, frames), values)| Sample {
            thread: walk::text_of(*thread),
            frames: frames.to_vec(),
            values: values.map(figure).to_vec(),
        })
        .collect()
}

fn text_of_waits<F>(samples: &[Sample<F>], threshold: Duration, acquisitions: u64) -> String {
    let waits: i64 = samples.iter().map(|sample| sample.values[0]).sum();
    format!("{waits} waits above {} among {acquisitions} acquisitions", text_of(threshold))
}

/// In the largest unit that leaves no fraction.
fn text_of(time: Duration) -> String {
    match time.as_nanos() {
        0 => "0 s".to_owned(),
        ns if ns % 1_000_000_000 == 0 => format!("{} s", ns / 1_000_000_000),
        ns if ns % 1_000_000 == 0 => format!("{} ms", ns / 1_000_000),
        ns if ns % 1000 == 0 => format!("{} µs", ns / 1000),
        ns => format!("{ns} ns"),
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
