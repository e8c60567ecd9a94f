//! What every thread does now: its name, state and stack.
//!
//! Each thread is sent SIGPROF and answers with its stack; see `sampling::signal`. One that waits in the kernel for what no
//! signal ends, such as a disk, does not answer, and neither does one that takes no signals. Answers are not of one instant:
//! they come within milliseconds of each other. Called by `http::admin`.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::{Address, Error, tasks};
use klad_base::clock;
use klad_base::sampling::signal;
use klad_base::sampling::walk;
use klad_base::sync::{Mutex, Signal};

/// Whoever has not answered after so long is shown without a stack.
const PATIENCE: Duration = Duration::from_millis(80);

/// Answers are looked for so often.
const LOOK: Duration = Duration::from_millis(1);

/// Whoever has not answered is asked again after so many looks: a thread holds one SIGPROF at a time, and a CPU profile
/// sends them as well.
const LOOKS_BEFORE_ASKING_AGAIN: u32 = 20;

/// So many threads are asked at a time: their answers find room.
const ASKED_MAX: usize = signal::STACKS_MAX / 2;

/// A thread at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Thread {
    /// Its number, as `top -H` shows it.
    pub tid: i32,
    /// Its name.
    pub name: String,
    /// Its state, as `ps` has it: `R` runs or could, `S` waits, `D` waits for a disk.
    pub state: char,
    /// What it has used.
    pub cpu_time: Duration,
    /// The running function first; empty when it did not answer.
    pub frames: Vec<Address>,
}

/// One at a time.
static CAPTURING: Mutex<()> = Mutex::new(());

/// Captures are numbered. 0 is nobody's.
static NUMBERS: AtomicU64 = AtomicU64::new(1);

/// All threads of the process, by number. Takes some milliseconds, and 100 for each 128 threads when some do not answer: not
/// for a worker.
///
/// # Errors
/// [`Error::Refused`] when the system lets klad have no handler, no list of its threads or no look at its own stacks.
pub fn capture() -> Result<Vec<Thread>, Error> {
    walk::check().map_err(|error| Error::Refused(format!("process_vm_readv of klad's own memory: {error}")))?;
    signal::install().map_err(|error| Error::Refused(format!("a handler for SIGPROF: {error}")))?;
    let _one = CAPTURING.lock();
    let tids = tasks::all().map_err(|error| Error::Refused(format!("/proc/self/task: {error}")))?;
    // States first: a thread that is asked runs to answer.
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

/// Asks these for their stacks, and waits for them.
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
            // Whoever has ended is not waited for.
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
    // What comes too late finds nobody.
    while answers.pop().is_some() {}
}
