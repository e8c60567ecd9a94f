//! Whether writes are taken: what an engine on a disk asks before each write, and the one state that lasts until a restart.
//!
//! A log write or sync that failed closes the gate for ever: the kernel may have dropped the dirty pages, so that trying
//! again could succeed without the data. A stall and a full disk pass by themselves. Asked on the path of a request, so that
//! nothing here waits but [`WriteGate::look_at_free_space`] and [`WriteGate::look_whether_still_there`]. Called by the engines
//! that keep files.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::ChangeKind;
use crate::disk::directory::DataDirectory;
use crate::observation::{Check, Measure, number};
use crate::operation::Error;
use klad_base::metrics::text::Kind;
use klad_base::sync::RwLock;

/// What writes of one engine have to pass.
pub(crate) struct WriteGate {
    /// Why no write is taken any more, once one has failed.
    stopped: RwLock<Option<String>>,
    /// Raised with `stopped`; read on the path of a request.
    is_stopped: AtomicBool,
    /// The engine takes no writes until it has flushed or compacted.
    stalled: AtomicBool,
    /// As of the last look; the greatest number until there was one.
    free_bytes: AtomicU64,
    reserve_bytes: AtomicU64,
}

/// What the gate does not know of what is kept, for [`WriteGate::measures`].
pub(crate) struct Kept {
    /// Writes that are in the log and not synced.
    pub(crate) unsynced: u64,
    /// The last version that was given out.
    pub(crate) version_last: u64,
    /// The last that is reserved on disk.
    pub(crate) version_reserved: u64,
}

impl WriteGate {
    /// Open, and closed for puts below so many free bytes.
    pub(crate) fn new(reserve_bytes: u64) -> WriteGate {
        WriteGate {
            stopped: RwLock::new(None),
            is_stopped: AtomicBool::new(false),
            stalled: AtomicBool::new(false),
            free_bytes: AtomicU64::new(u64::MAX),
            reserve_bytes: AtomicU64::new(reserve_bytes),
        }
    }

    /// Whether the gate is closed for ever.
    pub(crate) fn is_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::Acquire)
    }

    pub(crate) fn check_stopped(&self) -> Result<(), Error> {
        if !self.is_stopped() {
            return Ok(());
        }
        let why = self.stopped.read().clone().unwrap_or_default();
        Err(Error::WritesStopped { why })
    }

    /// Closes the gate until the next start; the first reason stays.
    pub(crate) fn stop(&self, why: &str) {
        let mut stopped = self.stopped.write();
        if stopped.is_none() {
            tracing::error!(why, "no write is taken any more until klad is started again; reads go on");
            *stopped = Some(why.to_owned());
            self.is_stopped.store(true, Ordering::Release);
        }
    }

    /// As [`WriteGate::stop`], in the words of a write that may or may not have happened.
    pub(crate) fn undetermined(&self, why: String) -> Error {
        self.stop(&why);
        Error::Undetermined { why }
    }

    pub(crate) fn set_stalled(&self, stalled: bool) {
        self.stalled.store(stalled, Ordering::Relaxed);
    }

    fn check_stalled(&self) -> Result<(), Error> {
        if self.stalled.load(Ordering::Relaxed) { Err(Error::Stalled) } else { Ok(()) }
    }

    /// Whether there is room for it.
    pub(crate) fn check_space(&self, change: ChangeKind) -> Result<(), Error> {
        let free_bytes = self.free_bytes.load(Ordering::Relaxed);
        // Removing is how space is won back, so it may use the upper half of the reserve.
        let whole = self.reserve_bytes();
        let reserve_bytes = match change {
            ChangeKind::Put => whole,
            ChangeKind::Delete => whole / 2,
        };
        if free_bytes < reserve_bytes { Err(Error::NoSpace { free_bytes, reserve_bytes }) } else { Ok(()) }
    }

    /// All of it, as [`Engine::writable`](crate::Engine::writable) asks.
    pub(crate) fn check(&self, change: ChangeKind) -> Result<(), Error> {
        self.check_stopped()?;
        self.check_stalled()?;
        self.check_space(change)
    }

    /// Each with its name.
    pub(crate) fn checks(&self) -> Vec<Check> {
        vec![
            Check::of("log", self.check_stopped()),
            Check::of("write-stall", self.check_stalled()),
            Check::of("disk-space", self.check_space(ChangeKind::Put)),
        ]
    }

    pub(crate) fn set_reserve_bytes(&self, bytes: u64) {
        self.reserve_bytes.store(bytes, Ordering::Relaxed);
    }

    pub(crate) fn reserve_bytes(&self) -> u64 {
        self.reserve_bytes.load(Ordering::Relaxed)
    }

    /// Asks the kernel.
    pub(crate) fn look_at_free_space(&self, directory: &DataDirectory) {
        match rustix::fs::statvfs(directory.path()) {
            Ok(space) => self.free_bytes.store(space.f_bavail.saturating_mul(space.f_frsize), Ordering::Relaxed),
            Err(error) => tracing::warn!(%error, "cannot read the free space of the data directory"),
        }
    }

    /// What is written into deleted files is gone with the process, so nothing may be acknowledged into them: closes the gate
    /// for ever when `directory`, or the engine's `file` in it, is not there any more.
    pub(crate) fn look_whether_still_there(&self, directory: &DataDirectory, file: &str) {
        if self.is_stopped() {
            return;
        }
        let gone = directory.still_there().err().or_else(|| {
            let path = directory.path().join(file);
            let missing = std::fs::metadata(&path).is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound);
            missing.then(|| format!("{} was deleted while klad serves it", path.display()))
        });
        if let Some(why) = gone {
            self.stop(&format!(
                "{why}; reads go on: copy what is needed by GET before klad is stopped, or put the directory back first"
            ));
        }
    }

    /// What every engine on a disk says of itself.
    pub(crate) fn measures(&self, kept: &Kept) -> Vec<Measure> {
        let free_bytes = self.free_bytes.load(Ordering::Relaxed);
        let gauge = |name, help, value| Measure::one(name, Kind::Gauge, help, value);
        vec![
            gauge(
                "klad_storage_disk_free_bytes",
                "Free space where the data directory is.",
                // Unknown until it was read once.
                if free_bytes == u64::MAX { f64::NAN } else { number(free_bytes) },
            ),
            gauge(
                "klad_storage_disk_reserve_bytes",
                "With less free space than this, --disk-reserve, writes are answered 507.",
                number(self.reserve_bytes()),
            ),
            gauge(
                "klad_storage_writes_stopped",
                "1 when a log write or sync has failed and no write is taken until klad is started again.",
                f64::from(u8::from(self.is_stopped())),
            ),
            gauge(
                "klad_storage_unsynced_writes",
                "Writes that are in the log and not yet synced: async ones, as of the last look.",
                number(kept.unsynced),
            ),
            gauge("klad_storage_version_last", "The last version that was given out.", number(kept.version_last)),
            gauge(
                "klad_storage_version_reserved",
                "The last version that is reserved on disk; a start goes on behind it.",
                number(kept.version_reserved),
            ),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_stopped_stays_stopped_with_the_first_reason() {
        let gate = WriteGate::new(0);
        gate.check(ChangeKind::Put).expect("open");
        gate.stop("the first");
        gate.stop("the second");
        gate.set_stalled(false);
        let why = gate.check(ChangeKind::Delete).expect_err("closed").to_string();
        assert!(why.contains("the first") && !why.contains("the second"), "{why}");
        assert!(gate.checks().iter().any(|check| check.name == "log" && check.fault.is_some()));
    }

    #[test]
    fn removals_may_use_the_upper_half_of_the_reserve() {
        let gate = WriteGate::new(100);
        for (free_bytes, put, delete) in [(100, true, true), (99, false, true), (50, false, true), (49, false, false)] {
            gate.free_bytes.store(free_bytes, Ordering::Relaxed);
            assert_eq!(gate.check(ChangeKind::Put).is_ok(), put, "{free_bytes}");
            assert_eq!(gate.check(ChangeKind::Delete).is_ok(), delete, "{free_bytes}");
        }
    }
}
