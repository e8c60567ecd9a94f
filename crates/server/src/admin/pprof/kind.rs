//! The kinds of profiles: their names, costs and parameters.
//!
//! `pprof` calls this, and begins and ends profiles on threads that may wait.

use std::fmt::Write as _;
use std::time::Duration;

use crate::admin::pprof::parameters::Parameters;
use klad_base::clock;
use klad_profile::heap::{self, Heap, View};
use klad_profile::symbols::Symbols;
use klad_profile::threads::Thread;
use klad_profile::{Address, Error, Name, Profile, Sample, ValueType, cpu, locks};

/// A kind of profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Cpu,
    Heap,
    Allocs,
    Mutex,
    Block,
    Threads,
}

/// A profile that has begun.
pub(super) enum Window {
    Cpu(cpu::Window),
    /// A `heap` or `allocs` profile without `seconds`. Unless `--heap-sample` is 0, jemalloc takes samples from the
    /// start of klad on, so there was nothing to begin.
    Heap(View),
    Allocations(heap::Window),
    /// A lock profile. The kind decides whether idle waits are included.
    Locks(locks::Window, Kind),
}

/// A profile that has ended, with addresses instead of the names of functions.
pub(super) enum Recording {
    Stacks(Profile<Address>),
    Waits(Box<locks::LockProfiles>, Kind),
}

impl Kind {
    /// All kinds, in the order of the index page.
    pub(super) const ALL: [Kind; 6] = [Kind::Cpu, Kind::Heap, Kind::Allocs, Kind::Mutex, Kind::Block, Kind::Threads];

    /// The last part of the kind's path.
    pub(super) fn name(self) -> &'static str {
        match self {
            Kind::Cpu => "profile",
            Kind::Heap => "heap",
            Kind::Allocs => "allocs",
            Kind::Mutex => "mutex",
            Kind::Block => "block",
            Kind::Threads => "threads",
        }
    }

    pub(super) fn named(name: &str) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// The names of the query parameters that this kind accepts.
    pub(super) fn parameters(self) -> &'static [&'static str] {
        match self {
            Kind::Cpu => &["seconds", "hz", "format", "debug"],
            Kind::Heap | Kind::Allocs => &["seconds", "format", "debug"],
            Kind::Mutex | Kind::Block => &["seconds", "threshold", "format", "debug"],
            Kind::Threads => &["format", "debug"],
        }
    }

    /// Whether a profile of this kind takes a default time if the request has no `seconds`.
    pub(super) fn has_default_window(self) -> bool {
        matches!(self, Kind::Cpu | Kind::Mutex | Kind::Block)
    }

    pub(super) fn about(self) -> &'static str {
        match self {
            Kind::Cpu => "CPU time of all threads: <code>seconds</code> (30), <code>hz</code> (99).",
            Kind::Heap => "Memory in use, by the stacks that allocated it; with <code>seconds</code> the difference.",
            Kind::Allocs => {
                "All memory that was allocated, including freed memory; with <code>seconds</code> the difference."
            }
            Kind::Mutex => {
                "Waits for locks that another thread holds: <code>seconds</code> (10), <code>threshold</code> (10us)."
            }
            Kind::Block => {
                "All waits of threads, including idle ones: <code>seconds</code> (10), <code>threshold</code> (10us)."
            }
            Kind::Threads => "Each thread's name, state and stack now.",
        }
    }

    pub(super) fn cost(self) -> &'static str {
        match self {
            Kind::Cpu => "Costs a signal of some microseconds for each sample.",
            Kind::Heap | Kind::Allocs => {
                "Always sampled (<code>--heap-sample</code>); a request costs some milliseconds."
            }
            Kind::Mutex | Kind::Block => "Costs a clock reading and a stack for each wait above the threshold.",
            Kind::Threads => "Interrupts each thread once.",
        }
    }

    /// Begins a profile.
    pub(super) fn start(self, parameters: &Parameters) -> Result<Window, Error> {
        let view = if self == Kind::Heap { View::Live } else { View::Allocated };
        Ok(match self {
            Kind::Cpu => Window::Cpu(cpu::Window::start(parameters.hz)?),
            Kind::Heap | Kind::Allocs if parameters.seconds.is_some() => {
                Window::Allocations(heap::Window::start(view)?)
            }
            Kind::Heap | Kind::Allocs => Window::Heap(view),
            Kind::Mutex | Kind::Block => Window::Locks(locks::Window::start(parameters.threshold)?, self),
            Kind::Threads => unreachable!("a list of threads has no window"),
        })
    }
}

impl Window {
    /// Ends the profile.
    pub(super) fn end(self) -> Result<Recording, Error> {
        Ok(match self {
            Window::Cpu(window) => Recording::Stacks(window.finish()),
            Window::Heap(view) => Recording::Stacks(Heap::now(view)?),
            Window::Allocations(window) => Recording::Stacks(window.finish()?),
            Window::Locks(window, kind) => Recording::Waits(Box::new(window.finish()), kind),
        })
    }
}

impl Recording {
    /// Replaces the addresses by the names of functions.
    pub(super) fn named(self, symbols: &Symbols) -> Profile<Name> {
        match self {
            Recording::Stacks(profile) => symbols.name(profile),
            Recording::Waits(seen, kind) => {
                let named = seen.named(|profile| symbols.name(profile));
                if kind == Kind::Mutex { named.mutex } else { named.block }
            }
        }
    }
}

/// Returns a profile of the stacks of all threads, in which each thread counts one.
pub(super) fn of_threads(all: &[Thread], symbols: &Symbols) -> Profile<Name> {
    let sample = |thread: &Thread| Sample {
        thread: thread.name.clone(),
        frames: thread.frames.iter().map(|address| symbols.function(*address)).collect(),
        values: vec![1],
    };
    Profile {
        title: "Threads".to_owned(),
        values: vec![ValueType::new("threads", "count")],
        shown: 0,
        samples: all.iter().map(sample).collect(),
        period: None,
        began_unix_ns: clock::unix_ms().saturating_mul(1_000_000),
        duration: Duration::ZERO,
        facts: vec![("events".to_owned(), format!("{} threads", all.len()))],
    }
}

/// Returns the list of threads for people.
pub(super) fn list_of_threads(all: &[Thread], symbols: &Symbols) -> String {
    let mut list = format!("{} threads\n", all.len());
    for thread in all {
        let state = match thread.state {
            'R' => "running",
            'S' => "sleeping",
            'D' => "waiting for a disk",
            'T' | 't' => "stopped",
            _ => "?",
        };
        let cpu = thread.cpu_time.as_secs_f64();
        let _ = writeln!(list, "\n{} {} ({state}), {cpu:.2} s of CPU time", thread.tid, thread.name);
        for address in &thread.frames {
            let _ = writeln!(list, "    {}", symbols.function(*address));
        }
    }
    list
}
