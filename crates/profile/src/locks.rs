//! Profiles of waits for locks, queues and conditions.
//!
//! ```text
//!   threads that wait ──▶ sampling::waits ──▶ ring ─ every 50 ms ──▶ totals of each window ─▶ mutex, block, conditions
//!                                       └──▶ slots ─ at a window's end: open waits ──────────┘
//! ```
//!
//! A wait that began before the window, or has not ended at its end, counts only with its part inside the window.
//!
//! Only threads appear here. An operation in a queue of the executor is not a thread: it has no stack, and metrics
//! show how long it waited. A worker that waits for its sockets does not wait for a lock, so it does not appear, nor
//! do the profiler's own threads.
//!
//! Called by the admin listener of `klad-server`, not on a worker.

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

/// The prefix of the names of threads that take profiles: the collector, and the threads that serve a request for a
/// profile. None of their waits is in a profile.
const PROFILERS: &str = "klad-profile";

/// If [`State::last_ended`] has more entries, the next drain of the ring removes the entry of each thread whose slot no
/// longer shows the remembered wait. So at most as many entries stay as there are slots.
const REMEMBERED_MAX: usize = 4096;

/// A lock profile that is being taken. Dropping it ends it. Any number can be taken at a time, with the same
/// threshold.
#[derive(Debug)]
pub struct Window {
    id: u64,
    registration: Option<Registration>,
}

/// The profiles of a window. Whether `conditions` belong to `mutex` depends on names: see [`LockProfiles::named`].
#[derive(Debug)]
pub struct LockProfiles {
    /// Waits for locks, and for klad's own conditions that need another thread's work. Values: `contentions` (count)
    /// and `delay` (nanoseconds). It does not contain waits of `conditions`.
    pub mutex: Profile<Address>,
    /// All waits, including idle ones and `conditions`, with the same values.
    pub block: Profile<Address>,
    /// Waits for conditions of RocksDB and of the C++ library. [`LockProfiles::named`] adds those to `mutex` for which
    /// [`is_contention`] is true.
    pub conditions: Profile<Address>,
    acquisitions: u64,
    threshold: Duration,
}

/// The profiles of a window, with names.
#[derive(Debug)]
pub struct NamedLockProfiles {
    /// Waits as in [`LockProfiles::mutex`], and RocksDB's conditions that need another thread's work.
    pub mutex: Profile<Name>,
    /// All waits, as in [`LockProfiles::block`].
    pub block: Profile<Name>,
}

/// The class of a wait, stored as a key's kind.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
enum Class {
    Contention,
    Idle,
    Undecided,
}

/// An open window, to which waits are added.
struct OpenWindow {
    id: u64,
    began_ns: u64,
    began_unix_ns: u64,
    counts: Counts,
    /// The number of waits that began before the window. Their acquisitions were not counted in the window.
    earlier: u64,
    totals: Totals<Key>,
}

struct State {
    threshold: Duration,
    last_id: u64,
    open: Vec<OpenWindow>,
    /// For each thread, by its number: the start of its last wait that came out of the ring. A thread puts its wait
    /// into the ring before it frees its slot. If it is preempted in between, the slot shows a wait that was already
    /// added.
    last_ended: BTreeMap<u32, u64>,
}

static STATE: Mutex<State> =
    Mutex::new(State { threshold: Duration::ZERO, last_id: 0, open: Vec::new(), last_ended: BTreeMap::new() });

impl Window {
    /// Starts a profile. Waits shorter than `threshold` are only counted.
    ///
    /// # Errors
    /// [`Error::Busy`] if a profile with another threshold is being taken; [`Error::Refused`] if the system does not
    /// let klad read its own stacks or start a thread.
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
        state.open.push(OpenWindow {
            id,
            began_ns: clock::monotonic_ns(),
            began_unix_ns: clock::unix_ns(),
            counts: waits::counts(),
            earlier: 0,
            totals: Totals::of_stacks(),
        });
        drop(state);
        // From here on, dropping the window closes it after any error.
        let mut window = Window { id, registration: None };
        window.registration = Some(collector::register(Box::new(|| STATE.lock().drain()))?);
        Ok(window)
    }

    /// Ends the profile. Waits that have not ended count until now.
    #[must_use]
    pub fn finish(self) -> LockProfiles {
        let mut state = STATE.lock();
        state.drain();
        let ended_ns = clock::monotonic_ns();
        // This first reads the open waits, then the ring again. A wait that ends in between is in both, and one of
        // the two is left out. In the other order it could be in neither. A wait that came out of the ring before has
        // ended, even if its slot is not free yet.
        let mut still = Vec::new();
        waits::for_each_open(|wait| still.push(wait));
        still.retain(|wait| state.last_ended.get(&wait.tid) != Some(&wait.began_ns));
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
        // After `finish` the window is already closed.
        drop(STATE.lock().close(self.id));
        drop(self.registration.take());
    }
}

impl State {
    fn drain(&mut self) {
        waits::drain(|| false, |wait| self.add(&wait));
        if self.last_ended.len() > REMEMBERED_MAX {
            let mut slots = HashSet::new();
            waits::for_each_open(|wait| _ = slots.insert((wait.tid, wait.began_ns)));
            self.last_ended.retain(|tid, began_ns| slots.contains(&(*tid, *began_ns)));
        }
    }

    fn add(&mut self, wait: &Wait) {
        self.last_ended.insert(wait.tid, wait.began_ns);
        for window in &mut self.open {
            window.add(wait.kind, wait.thread, (wait.began_ns, wait.ended_ns), wait.stack.frames());
        }
    }

    fn close(&mut self, id: u64) -> Option<OpenWindow> {
        let position = self.open.iter().position(|window| window.id == id)?;
        let window = self.open.swap_remove(position);
        if self.open.is_empty() {
            waits::stop();
            self.last_ended.clear();
        }
        Some(window)
    }
}

impl OpenWindow {
    /// Adds the part of the wait that lies in the window, if any.
    fn add(&mut self, kind: Kind, thread: [u8; 16], (wait_began_ns, ended_ns): (u64, u64), frames: &[Address]) {
        let began_ns = wait_began_ns.max(self.began_ns);
        if ended_ns <= began_ns || thread.starts_with(PROFILERS.as_bytes()) {
            return;
        }
        self.earlier += u64::from(wait_began_ns < self.began_ns);
        let key = Key { thread, kind: Class::of(kind) as u32, frames: frames.into() };
        self.totals.add(key, [1, ended_ns - began_ns]);
    }

    /// Adds an open wait. Returns `false` if it is still below the threshold, or belongs to a profiler thread.
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

    fn seen(self, ended_ns: u64, counts: Counts, threshold: Duration, still: usize) -> LockProfiles {
        let before = self.counts;
        let acquisitions = (counts.own - before.own) + (counts.pthread - before.pthread) + self.earlier;
        let [beyond, _] = self.totals.beyond();
        let facts = [
            ("threshold", text_of(threshold)),
            ("waits below", (counts.below - before.below).to_string()),
            ("still waiting at the end", still.to_string()),
            ("lost", (counts.lost - before.lost).to_string()),
            // All that were open when the window began, and all that began in it.
            ("waits that could not be seen before their end", (counts.unseen - before.unseen_ended).to_string()),
            ("waits from before", self.earlier.to_string()),
            ("waits with stacks beyond the limit", beyond.to_string()),
            ("acquisitions of klad's own locks", (counts.own - before.own).to_string()),
            (
                "acquisitions of POSIX locks",
                if cfg!(feature = "posix-locks") {
                    (counts.pthread - before.pthread).to_string()
                } else {
                    "not recorded, nor are waits for them: klad was built without the feature posix-locks".to_owned()
                },
            ),
            // A failed try is not a wait. Counting tries would need another counter for each try.
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
        LockProfiles {
            mutex: profile("Waits for locks", |class| class == Class::Contention),
            block: profile("All waits", |_| true),
            conditions: profile("Waits for conditions", |class| class == Class::Undecided),
            acquisitions,
            threshold,
        }
    }
}

impl LockProfiles {
    /// Names all addresses by `name`, and adds those waits of `conditions` to `mutex` whose names show contention.
    /// Each stack begins with the function that the thread has called.
    pub fn named(self, mut name: impl FnMut(Profile<Address>) -> Profile<Name>) -> NamedLockProfiles {
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
        NamedLockProfiles { mutex, block }
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

/// Returns the samples of the classes that belong to the profile: one for each stack of each thread.
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

/// Formats a time in the largest unit without a fraction.
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
