//! Decides whether an engine on disk takes writes.
//!
//! A failed log write or sync closes the gate until the next start. klad does not retry the write or sync, because the
//! kernel may have dropped the dirty pages, so a retry could succeed without the data. A stall or a full disk closes
//! the gate only as long as it lasts.
//!
//! Requests call the checks, so the checks never wait. Only [`WriteGate::update_free_space`] and
//! [`WriteGate::check_directory`] may wait. Called by the engines on disk.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::ChangeKind;
use crate::disk::directory::DataDirectory;
use crate::observation::{Check, Measure, number};
use crate::operation::Error;
use klad_base::metrics::text::Kind;
use klad_base::sync::RwLock;

/// The write gate of one engine.
pub(crate) struct WriteGate {
    /// The reason why the engine takes no writes until the next start.
    stopped: RwLock<Option<String>>,
    /// Whether `stopped` has a reason; requests read this flag without the lock.
    is_stopped: AtomicBool,
    /// Whether the engine takes no writes until its flushes or compactions catch up.
    stalled: AtomicBool,
    /// The free disk space at the last check; `u64::MAX` before the first.
    free_bytes: AtomicU64,
    reserve_bytes: AtomicU64,
}

/// The figures that an engine adds to [`WriteGate::measures`].
pub(crate) struct WriteProgress {
    /// The number of writes that are in the log and not synced.
    pub(crate) unsynced: u64,
    /// The last version that was given out.
    pub(crate) version_last: u64,
    /// The last version that is reserved on disk.
    pub(crate) version_reserved: u64,
}

impl WriteGate {
    /// Makes an open gate. It closes for puts while fewer than `reserve_bytes` are free.
    pub(crate) fn new(reserve_bytes: u64) -> WriteGate {
        WriteGate {
            stopped: RwLock::new(None),
            is_stopped: AtomicBool::new(false),
            stalled: AtomicBool::new(false),
            free_bytes: AtomicU64::new(u64::MAX),
            reserve_bytes: AtomicU64::new(reserve_bytes),
        }
    }

    /// Whether the gate is closed until the next start.
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

    /// Closes the gate until the next start. If the gate is closed already, the first reason stays.
    pub(crate) fn stop(&self, why: &str) {
        let mut stopped = self.stopped.write();
        if stopped.is_none() {
            tracing::error!(why, "no write is taken any more until klad is started again; reads go on");
            *stopped = Some(why.to_owned());
            self.is_stopped.store(true, Ordering::Release);
        }
    }

    /// Closes the gate as [`WriteGate::stop`] does, and returns the error for a write that may or may not have
    /// happened.
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

    /// Checks that enough disk space is free for `change`.
    pub(crate) fn check_space(&self, change: ChangeKind) -> Result<(), Error> {
        let free_bytes = self.free_bytes.load(Ordering::Relaxed);
        // Removals free disk space in the end, so they may use the upper half of the reserve.
        let reserve_bytes = match change {
            ChangeKind::Put => self.reserve_bytes(),
            ChangeKind::Delete => self.reserve_bytes() / 2,
        };
        if free_bytes < reserve_bytes { Err(Error::NoSpace { free_bytes, reserve_bytes }) } else { Ok(()) }
    }

    /// All checks together, for [`Engine::writable`](crate::Engine::writable).
    pub(crate) fn check(&self, change: ChangeKind) -> Result<(), Error> {
        self.check_stopped()?;
        // This check comes before the check for stalls, because stalls end by themselves.
        self.check_space(change)?;
        self.check_stalled()
    }

    /// Each check with its name, for [`Engine::checks`](crate::Engine::checks).
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

    /// Reads the free disk space.
    pub(crate) fn update_free_space(&self, directory: &DataDirectory) {
        match rustix::fs::statvfs(directory.path()) {
            Ok(space) => self.free_bytes.store(space.f_bavail.saturating_mul(space.f_frsize), Ordering::Relaxed),
            Err(error) => {
                tracing::warn!(%error, "cannot read the free space of the data directory; the last value stays in use");
            }
        }
    }

    /// Closes the gate until the next start if `directory`, or the engine's `file` in it, was moved or deleted. Data in
    /// deleted files is lost when the process ends, so klad must not acknowledge writes into them.
    pub(crate) fn check_directory(&self, directory: &DataDirectory, file: &str) {
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

    /// The metrics that all engines on disk have.
    pub(crate) fn measures(&self, progress: &WriteProgress) -> Vec<Measure> {
        let free_bytes = self.free_bytes.load(Ordering::Relaxed);
        let gauge = |name, help, value| Measure::one(name, Kind::Gauge, help, value);
        vec![
            gauge(
                "klad_storage_disk_free_bytes",
                "Free space on the file system of the data directory.",
                // The value is unknown before the first check.
                if free_bytes == u64::MAX { f64::NAN } else { number(free_bytes) },
            ),
            gauge(
                "klad_storage_disk_reserve_bytes",
                "The disk reserve (--disk-reserve): with less free space PUTs are answered 507.",
                number(self.reserve_bytes()),
            ),
            gauge(
                "klad_storage_writes_stopped",
                "1 after a write or sync of storage has failed, or the data directory is gone: klad takes no writes \
                 until it is started again.",
                f64::from(u8::from(self.is_stopped())),
            ),
            gauge(
                "klad_storage_unsynced_writes",
                "Number of async writes that are in the log and not yet synced.",
                number(progress.unsynced),
            ),
            gauge("klad_storage_version_last", "The last version that was given out.", number(progress.version_last)),
            gauge(
                "klad_storage_version_reserved",
                "The last version that is reserved on disk; the next start continues after it.",
                number(progress.version_reserved),
            ),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stopped_gate_stays_stopped_with_the_first_reason() {
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
