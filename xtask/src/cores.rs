//! Which core a thread, or a process that it starts, keeps to. Called by the chores that measure `klad bench`.

use std::thread;

use anyhow::{Context as _, Result};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// A core each: neither client nor server waits for the other to leave the processor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cores {
    /// The server's.
    pub(crate) server: usize,
    /// The client's.
    pub(crate) client: usize,
}

impl Cores {
    /// The first two that this process may use.
    pub(crate) fn choose() -> Result<Cores> {
        let allowed = sched_getaffinity(None).context("cannot tell which cores there are")?;
        let mut cores = (0..CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core));
        match (cores.next(), cores.next()) {
            (Some(server), Some(client)) => Ok(Cores { server, client }),
            _ => anyhow::bail!("client and server need a core each, and there is only one"),
        }
    }
}

/// Does `work` on a thread that keeps to `core`. The threads and processes that it starts inherit that, which is why
/// there is no call of `taskset`.
pub(crate) fn on<T: Send>(core: usize, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    let pinned = || {
        let mut only = CpuSet::new();
        only.set(core);
        sched_setaffinity(None, &only).with_context(|| format!("cannot keep to core {core}"))?;
        work()
    };
    thread::scope(|scope| scope.spawn(pinned).join().ok().context("a thread that keeps to a core has panicked")?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_that_are_started_on_a_core_keep_to_it() {
        let core = (0..CpuSet::MAX_CPU).rfind(|core| sched_getaffinity(None).expect("known").is_set(*core));
        let core = core.expect("this thread runs on one");
        let inherited = on(core, || thread::spawn(|| sched_getaffinity(None)).join().ok().context("panicked"));
        let inherited = inherited.expect("pinned").expect("known");
        assert_eq!((inherited.count(), inherited.is_set(core)), (1, true));
    }
}
