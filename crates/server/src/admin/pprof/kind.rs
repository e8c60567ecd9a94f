//! The profiles that there are: what each is called, costs and takes.
//!
//! Called by `pprof`, on threads that may wait.

use std::fmt::Write as _;
use std::time::Duration;

use crate::admin::pprof::parameters::Parameters;
use klad_base::clock;
use klad_profile::heap::{self, Heap, View};
use klad_profile::symbols::Symbols;
use klad_profile::threads::Thread;
use klad_profile::{Address, Error, Name, Profile, Sample, ValueType, cpu, locks};

/// What can be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Cpu,
    Heap,
    Allocs,
    Mutex,
    Block,
    Threads,
}

/// One that has begun.
pub(super) enum Window {
    Cpu(cpu::Window),
    /// The whole until now: there is nothing to begin.
    Heap(View),
    Allocations(heap::Window),
    /// And whether idle waits are asked for as well.
    Locks(locks::Window, Kind),
}

/// What one has seen that has ended.
pub(super) enum Seen {
    Stacks(Profile<Address>),
    Waits(Box<locks::LockProfiles>, Kind),
}

impl Kind {
    /// In the order of the index.
    pub(super) const ALL: [Kind; 6] = [Kind::Cpu, Kind::Heap, Kind::Allocs, Kind::Mutex, Kind::Block, Kind::Threads];

    /// The last part of its path.
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

    /// Those that make sense.
    pub(super) fn parameters(self) -> &'static [&'static str] {
        match self {
            Kind::Cpu => &["seconds", "hz", "format", "debug"],
            Kind::Heap | Kind::Allocs => &["seconds", "format", "debug"],
            Kind::Mutex | Kind::Block => &["seconds", "threshold", "format", "debug"],
            Kind::Threads => &["format", "debug"],
        }
    }

    /// Whether it looks for a while when nothing is said.
    pub(super) fn has_default_window(self) -> bool {
        matches!(self, Kind::Cpu | Kind::Mutex | Kind::Block)
    }

    pub(super) fn about(self) -> &'static str {
        match self {
            Kind::Cpu => "CPU time of all threads: <code>seconds</code> (30), <code>hz</code> (99).",
            Kind::Heap => {
                "Memory in use, by the stacks that have allocated it; with <code>seconds</code> the difference."
            }
            Kind::Allocs => {
                "All memory that was allocated, also what is freed again; with <code>seconds</code> the difference."
            }
            Kind::Mutex => {
                "Waits for locks that another thread holds: <code>seconds</code> (10), <code>threshold</code> (10us)."
            }
            Kind::Block => {
                "All waits of threads, idle ones too: <code>seconds</code> (10), <code>threshold</code> (10us)."
            }
            Kind::Threads => "Each thread's name, state and stack now.",
        }
    }

    pub(super) fn cost(self) -> &'static str {
        match self {
            Kind::Cpu => "Costs a signal of some microseconds for each sample.",
            Kind::Heap | Kind::Allocs => {
                "Sampled all the time (<code>--heap-sample</code>); asking costs some milliseconds."
            }
            Kind::Mutex | Kind::Block => "Costs a clock and a stack for each wait above the threshold.",
            Kind::Threads => "Interrupts each thread once.",
        }
    }

    /// Begins.
    pub(super) fn start(self, parameters: &Parameters) -> Result<Window, Error> {
        let view = if self == Kind::Heap { View::Live } else { View::Allocated };
        Ok(match self {
            Kind::Cpu => Window::Cpu(cpu::Window::start(parameters.hz)?),
            Kind::Heap | Kind::Allocs if parameters.seconds.is_some() => {
                Window::Allocations(heap::Window::start(view)?)
            }
            Kind::Heap | Kind::Allocs => Window::Heap(view),
            Kind::Mutex | Kind::Block => Window::Locks(locks::Window::start(parameters.threshold)?, self),
            Kind::Threads => unreachable!("they are looked at in one moment"),
        })
    }
}

impl Window {
    /// Ends.
    pub(super) fn end(self) -> Result<Seen, Error> {
        Ok(match self {
            Window::Cpu(window) => Seen::Stacks(window.finish()),
            Window::Heap(view) => Seen::Stacks(Heap::now(view)?),
            Window::Allocations(window) => Seen::Stacks(window.finish()?),
            Window::Locks(window, kind) => Seen::Waits(Box::new(window.finish()), kind),
        })
    }
}

impl Seen {
    /// With the names of functions.
    pub(super) fn named(self, symbols: &Symbols) -> Profile<Name> {
        match self {
            Seen::Stacks(profile) => symbols.name(profile),
            Seen::Waits(seen, kind) => {
                let named = seen.named(|profile| symbols.name(profile));
                if kind == Kind::Mutex { named.mutex } else { named.block }
            }
        }
    }
}

/// The threads as a profile: each counts one.
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

/// The threads as people read them.
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
