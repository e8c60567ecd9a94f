//! Captures the name, state and stack of every thread.
//!
//! This module sends SIGPROF to each thread that does not block it. The thread answers with its stack; see
//! `sampling::signal`. A thread that waits in the kernel uninterruptibly, for example for a disk, does not answer. The
//! stacks do not show one instant: most answers come within milliseconds of each other. Called by the admin listener of
//! `klad-server`.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::{Address, Error, tasks};
use klad_base::clock;
use klad_base::sampling::signal;
use klad_base::sampling::walk;
use klad_base::sync::{Mutex, Signal};

/// A thread that has not answered within this time is shown without a stack.
const PATIENCE: Duration = Duration::from_millis(80);

/// The interval at which answers are read.
const LOOK: Duration = Duration::from_millis(1);

/// Each time klad has read the answers this many times, it asks again those threads that have not answered. A thread
/// can have only one pending SIGPROF, so a request is lost if one from a CPU profile is pending.
const LOOKS_BEFORE_ASKING_AGAIN: u32 = 20;

/// The number of threads that are asked at a time, so that their answers fit into the ring.
const ASKED_MAX: usize = signal::STACKS_MAX / 2;

/// The state of a thread at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Thread {
    /// Its number, as `top -H` shows it.
    pub tid: i32,
    /// Its name.
    pub name: String,
    /// Its state, as `ps` shows it: `R` runs or is ready to run, `S` sleeps, `D` waits for a disk.
    pub state: char,
    /// The CPU time that it has used.
    pub cpu_time: Duration,
    /// Its stack, the running function first. Empty if it did not answer.
    pub frames: Vec<Address>,
}

/// Captures run one at a time.
static CAPTURING: Mutex<()> = Mutex::new(());

/// The next number for a group of threads that are asked together. 0 means that no answer is wanted.
static NUMBERS: AtomicU64 = AtomicU64::new(1);

/// Returns all threads of the process, sorted by number. This takes some milliseconds. klad asks 128 threads at a time.
/// If one of them does not answer, these take 80 ms, so a worker must not call this function.
///
/// # Errors
/// [`Error::Refused`] if the system denies the signal handler, the list of threads, or reading klad's own stacks.
pub fn capture() -> Result<Vec<Thread>, Error> {
    walk::check().map_err(|error| Error::Refused(format!("process_vm_readv of klad's own memory: {error}")))?;
    signal::install().map_err(|error| Error::Refused(format!("a handler for SIGPROF: {error}")))?;
    let _one = CAPTURING.lock();
    let tids = tasks::all().map_err(|error| Error::Refused(format!("/proc/self/task: {error}")))?;
    // States are read before threads are asked, because a thread runs to answer.
    let mut threads: BTreeMap<i32, Thread> = tids
        .into_iter()
        .filter_map(|tid| {
            let (state, cpu_time) = tasks::state(tid)?;
            Some((tid, Thread { tid, name: tasks::name(tid)?, state, cpu_time, frames: Vec::new() }))
        })
        .collect();
    let asked: Vec<i32> = threads.keys().copied().filter(|tid| tasks::takes_sigprof(*tid)).collect();
    for some in asked.chunks(ASKED_MAX) {
        ask(some, &mut threads);
    }
    Ok(threads.into_values().collect())
}

/// Asks the threads `tids` for their stacks, and writes the answers into `threads`. Waits for answers for at most
/// [`PATIENCE`].
fn ask(tids: &[i32], threads: &mut BTreeMap<i32, Thread>) {
    let capture = NUMBERS.fetch_add(1, Ordering::Relaxed);
    let answers = signal::answers();
    signal::take_answers_of(capture);
    let mut open: Vec<i32> = tids.to_vec();
    let deadline = clock::now() + PATIENCE;
    let pause = Signal::default();
    let mut looks = 0;
    loop {
        if looks % LOOKS_BEFORE_ASKING_AGAIN == 0 {
            // A thread that has ended is not waited for.
            open.retain(|tid| {
                let asked = signal::ask(*tid, capture);
                !asked.is_err_and(|error| error.raw_os_error() == Some(libc::ESRCH))
            });
        }
        looks += 1;
        while let Some(answer) = answers.pop() {
            if answer.capture == capture
                && let Some(thread) = threads.get_mut(&answer.tid)
            {
                thread.frames = answer.stack.frames().to_vec();
                open.retain(|tid| *tid != answer.tid);
            }
        }
        if open.is_empty() || clock::now() >= deadline {
            break;
        }
        pause.wait_timeout(LOOK);
    }
    signal::take_answers_of(0);
    // Late answers are discarded.
    while answers.pop().is_some() {}
}
