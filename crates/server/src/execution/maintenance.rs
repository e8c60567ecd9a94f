//! Maintenance while klad serves: checkpoints and compactions, one at a time, on their own thread.
//!
//! ```text
//!   klad-admin ── request ──▶ one job, one listing ──▶ klad-maint ──▶ LocalDisk::checkpoint, LocalDisk::compact, files
//!              ◀── oneshot ────────────────────────────┘
//! ```
//!
//! The jobs never run on the admin thread or on a worker, so neither waits for the disk because of them. Clients choose
//! names of checkpoints, never paths. `Server` starts and stops this, `admin::maintenance` calls it.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, UNIX_EPOCH};

use serde::Serialize;
use tokio::sync::oneshot;

use crate::limits::CHECKPOINT_NAME_BYTES_MAX;
use klad_base::clock;
use klad_base::sync::{self, BoundedQueue, Mutex, Signal};
use klad_storage::disk::directory::{self, DataDirectory};
use klad_storage::maintenance::{self, Checkpoint, Compaction};
use klad_storage::{Engine, LocalDisk, PARTIAL};

/// Why a job was rejected or failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The text is not a valid name of a checkpoint.
    #[error(
        "a checkpoint's name must have 1 to {CHECKPOINT_NAME_BYTES_MAX} letters, digits, dots, dashes and underscores, \
         and begin with a letter or digit"
    )]
    BadName,
    /// There is no checkpoint with that name.
    #[error("there is no checkpoint {name:?}")]
    Unknown {
        /// The name.
        name: String,
    },
    /// A file or directory has that name, but it is not a checkpoint that klad may remove.
    #[error(
        "{} is not a checkpoint, or a klad has served it: klad removes only directories with the file CHECKPOINT",
        path.display()
    )]
    NotACheckpoint {
        /// The path of the file or directory.
        path: PathBuf,
    },
    /// Another process uses the checkpoint.
    #[error("checkpoint {name} is in use by another process (process id {process})")]
    Served {
        /// The name of the checkpoint.
        name: String,
        /// The process id of the other process.
        process: String,
    },
    /// Another job is in progress.
    #[error("a {what} is in progress; try again when it has ended")]
    Busy {
        /// The kind of the other job, such as `checkpoint`.
        what: &'static str,
    },
    /// No compaction is in progress.
    #[error("no compaction is in progress")]
    Idle,
    /// klad is stopping.
    #[error("the server is stopping")]
    Stopping,
    /// The engine rejected the job, or the job failed.
    #[error(transparent)]
    Maintenance(#[from] maintenance::Error),
}

/// The outcome of a job that has succeeded.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub enum JobOutcome {
    /// A checkpoint was made.
    Checkpoint {
        /// The checkpoint's name.
        name: String,
        /// The checkpoint's properties.
        #[serde(flatten)]
        checkpoint: Checkpoint,
        /// How long the checkpoint took, seconds.
        seconds: f64,
    },
    /// A checkpoint was removed.
    Removed {
        /// The name of the removed checkpoint.
        removed: String,
    },
    /// A full compaction has ended.
    Compaction {
        /// The figures of the compaction.
        #[serde(flatten)]
        compaction: Compaction,
        /// How long the compaction took, seconds.
        seconds: f64,
    },
    /// The list of checkpoints was read again. [`Status`] has the list.
    Listed,
}

/// A checkpoint in the list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CheckpointEntry {
    /// The checkpoint's name.
    pub name: String,
    /// The checkpoint's directory.
    pub path: PathBuf,
    /// The total size of the checkpoint's files, bytes, including files that the data directory also links.
    pub bytes: u64,
    /// When the checkpoint was made, in RFC 3339.
    pub made: String,
}

/// The state of maintenance.
#[derive(Clone, Debug, Serialize)]
pub struct Status {
    /// The directory of the checkpoints.
    pub directory: PathBuf,
    /// The checkpoints in `directory`, as of the last reading of the list.
    pub checkpoints: Vec<CheckpointEntry>,
    /// The running job. `None`: no job runs.
    pub running: Option<Running>,
    /// How the last job ended, as text. `None`: no job has ended since the start.
    pub last: Option<String>,
}

/// A running job.
#[derive(Clone, Debug, Serialize)]
pub struct Running {
    /// The kind of the job: `checkpoint`, `removal` or `compaction`.
    pub what: &'static str,
    /// How long the job has run, seconds.
    pub seconds: f64,
    /// The number of completed pieces of a compaction.
    pub pieces_done: u64,
    /// The number of all pieces of the compaction; 0 for other jobs.
    pub pieces: u64,
}

/// Receives the outcome of a job, or its error, when the job ends.
pub type JobReply = oneshot::Receiver<Result<JobOutcome, Error>>;

/// Runs maintenance jobs on an engine.
pub struct Maintenance {
    engine: Arc<dyn Engine>,
    directory: PathBuf,
    /// The submitted jobs: at most the one job and the one listing that `state` shows.
    queue: BoundedQueue<Job>,
    state: Mutex<State>,
    /// Whether the running compaction must end.
    cancelled: AtomicBool,
    pieces_done: AtomicU64,
    pieces: AtomicU64,
}

#[derive(Default)]
struct State {
    /// The running job, and when it began.
    running: Option<(&'static str, Instant)>,
    /// Whether the list is being read. A listing is not a job, because a client that only reads the list must not block
    /// a checkpoint.
    listing: bool,
    stopping: bool,
    listed: Vec<CheckpointEntry>,
    last: Option<String>,
}

struct Job {
    kind: JobKind,
    reply: oneshot::Sender<Result<JobOutcome, Error>>,
}

enum JobKind {
    Checkpoint(String),
    Remove(String),
    Compact { bottommost: bool },
    List,
}

impl JobKind {
    fn name(&self) -> &'static str {
        match self {
            JobKind::Checkpoint(_) => "checkpoint",
            JobKind::Remove(_) => "removal",
            JobKind::Compact { .. } => "compaction",
            JobKind::List => "listing",
        }
    }
}

/// The thread that runs maintenance jobs. The owner must call `close`, then `stop`.
pub struct MaintenanceThread {
    maintenance: Arc<Maintenance>,
    thread: JoinHandle<()>,
}

impl Maintenance {
    /// Starts the thread that runs maintenance jobs on `engine`. The first checkpoint creates the directory.
    #[must_use]
    pub fn start(engine: Arc<dyn Engine>, directory: PathBuf) -> (Arc<Maintenance>, MaintenanceThread) {
        let maintenance = Arc::new(Maintenance {
            engine,
            directory,
            queue: BoundedQueue::new(2),
            state: Mutex::new(State::default()),
            cancelled: AtomicBool::new(false),
            pieces_done: AtomicU64::new(0),
            pieces: AtomicU64::new(0),
        });
        let thread = sync::spawn_thread("klad-maint", {
            let maintenance = maintenance.clone();
            move || maintenance.run()
        });
        (maintenance.clone(), MaintenanceThread { maintenance, thread })
    }

    /// Begins a checkpoint. If `name` is `None`, the name is made from the current time.
    ///
    /// # Errors
    /// [`Error`] if the job could not begin.
    pub fn checkpoint(&self, name: Option<&[u8]>) -> Result<JobReply, Error> {
        let name = match name {
            Some(name) => valid_name(name)?.to_owned(),
            None => name_of(clock::unix_ms()),
        };
        self.submit(JobKind::Checkpoint(name))
    }

    /// Begins to remove a checkpoint.
    ///
    /// # Errors
    /// [`Error`] if the job could not begin.
    pub fn remove(&self, name: &[u8]) -> Result<JobReply, Error> {
        self.submit(JobKind::Remove(valid_name(name)?.to_owned()))
    }

    /// Begins a full compaction. With `bottommost` it also rewrites data that is already on the last level.
    ///
    /// # Errors
    /// [`Error`] if the job could not begin.
    pub fn compact(&self, bottommost: bool) -> Result<JobReply, Error> {
        self.submit(JobKind::Compact { bottommost })
    }

    /// Begins to read the list of checkpoints again. A job that is requested during the reading begins after it.
    ///
    /// # Errors
    /// [`Error::Busy`] if a job or a listing is in progress. The list in [`Status`] is then from before the beginning
    /// of that job or listing. [`Error::Stopping`] if klad is stopping.
    pub fn list(&self) -> Result<JobReply, Error> {
        let mut state = self.state.lock();
        if let Some(what) = state.running.map(|(what, _)| what).or(state.listing.then_some("listing")) {
            return Err(Error::Busy { what });
        }
        let answer = self.push(&state, JobKind::List)?;
        state.listing = true;
        Ok(answer)
    }

    /// Ends the running compaction at the end of the current piece (some 256 MiB of tables).
    ///
    /// # Errors
    /// [`Error::Idle`] if no compaction is running.
    pub fn cancel_compaction(&self) -> Result<(), Error> {
        let state = self.state.lock();
        if state.running.is_none_or(|(what, _)| what != "compaction") {
            return Err(Error::Idle);
        }
        self.cancelled.store(true, Ordering::Release);
        Ok(())
    }

    /// Returns the state of maintenance. Does not wait for a disk.
    #[must_use]
    pub fn status(&self) -> Status {
        let state = self.state.lock();
        Status {
            directory: self.directory.clone(),
            checkpoints: state.listed.clone(),
            running: state.running.map(|(what, begun)| Running {
                what,
                seconds: clock::now().duration_since(begun).as_secs_f64(),
                pieces_done: self.pieces_done.load(Ordering::Relaxed),
                pieces: self.pieces.load(Ordering::Relaxed),
            }),
            last: state.last.clone(),
        }
    }

    fn submit(&self, kind: JobKind) -> Result<JobReply, Error> {
        let mut state = self.state.lock();
        if let Some((what, _)) = state.running {
            return Err(Error::Busy { what });
        }
        let running = Some((kind.name(), clock::now()));
        let answer = self.push(&state, kind)?;
        state.running = running;
        self.cancelled.store(false, Ordering::Release);
        self.pieces_done.store(0, Ordering::Relaxed);
        self.pieces.store(0, Ordering::Relaxed);
        Ok(answer)
    }

    /// Puts a job into the queue. The caller holds the lock of `state`, so that the thread cannot report the end of the
    /// job before the caller has recorded its beginning.
    fn push(&self, state: &State, kind: JobKind) -> Result<JobReply, Error> {
        if state.stopping {
            return Err(Error::Stopping);
        }
        let (reply, answer) = oneshot::channel();
        self.queue.push(Job { kind, reply }).map_err(|_| Error::Stopping)?;
        Ok(answer)
    }

    fn run(&self) {
        self.remove_leftovers();
        self.read_list();
        while let Some(Job { kind, reply }) = self.queue.pop() {
            let what = kind.name();
            let begun = clock::now();
            let done = if self.state.lock().stopping { Err(Error::Stopping) } else { self.run_job(kind) };
            self.read_list();
            let seconds = clock::now().duration_since(begun).as_secs_f64();
            let mut state = self.state.lock();
            if what == "listing" {
                state.listing = false;
            } else {
                match &done {
                    Ok(_) => tracing::info!(what, seconds, "maintenance job done"),
                    Err(error) => {
                        tracing::warn!(what, seconds, %error, "maintenance job failed; klad serves as before");
                    }
                }
                let ended = done.as_ref().map_or_else(|error| format!("not done: {error}"), |_| "done".to_owned());
                state.last = Some(format!("{what} at {}: {ended}", time(clock::unix_ms())));
                state.running = None;
            }
            drop(state);
            // The client may have left.
            let _ = reply.send(done);
        }
    }

    fn run_job(&self, kind: JobKind) -> Result<JobOutcome, Error> {
        let begun = clock::now();
        let seconds = || clock::now().duration_since(begun).as_secs_f64();
        match kind {
            JobKind::Checkpoint(name) => {
                self.remove_leftovers();
                let checkpoint = self.disk("checkpoints")?.checkpoint(&self.directory.join(&name))?;
                Ok(JobOutcome::Checkpoint { name, checkpoint, seconds: seconds() })
            }
            JobKind::Remove(name) => self.remove_now(name),
            JobKind::Compact { bottommost } => {
                let compaction = self.disk("compactions")?.compact(bottommost, &|done, pieces| {
                    self.pieces_done.store(done, Ordering::Relaxed);
                    self.pieces.store(pieces, Ordering::Relaxed);
                    !self.cancelled.load(Ordering::Acquire)
                })?;
                Ok(JobOutcome::Compaction { compaction, seconds: seconds() })
            }
            JobKind::List => Ok(JobOutcome::Listed),
        }
    }

    /// Returns the engine's disk, or an error if the engine has none. `what` names the feature for the error.
    fn disk(&self, what: &'static str) -> Result<&dyn LocalDisk, maintenance::Error> {
        let engine = self.engine.name();
        self.engine.local_disk().ok_or(maintenance::Error::NotSupported { engine, what })
    }

    /// Removes a checkpoint. Renames it first, so that a crash leaves nothing that looks like a checkpoint.
    fn remove_now(&self, name: String) -> Result<JobOutcome, Error> {
        let path = self.directory.join(&name);
        if fs::symlink_metadata(&path).is_err() {
            return Err(Error::Unknown { name });
        }
        if !directory::is_checkpoint(&path) {
            return Err(Error::NotACheckpoint { path });
        }
        let _alone = maintenance::lock_checkpoints(&self.directory)?;
        let held = DataDirectory::open_existing(&path, self.engine.name());
        if let Err(directory::Error::InUse { process, .. }) = held {
            return Err(Error::Served { name, process });
        }
        // Checks again under the lock, because another process may have served the checkpoint meanwhile.
        if !directory::is_checkpoint(&path) {
            return Err(Error::NotACheckpoint { path });
        }
        let partial = self.directory.join(format!("{PARTIAL}{name}"));
        let failed = |cause| maintenance::Error::Io { action: "remove", path: path.clone(), cause };
        fs::rename(&path, &partial).map_err(failed)?;
        fs::remove_dir_all(&partial).map_err(failed)?;
        Ok(JobOutcome::Removed { removed: name })
    }

    /// Removes what a crash has left of checkpoints that were being made or removed. Does nothing while another klad
    /// works in the directory, because an unfinished checkpoint may be that klad's.
    fn remove_leftovers(&self) {
        if !self.directory.is_dir() {
            return;
        }
        let _alone = match maintenance::lock_checkpoints(&self.directory) {
            Ok(alone) => alone,
            Err(error) => {
                tracing::info!(%error, "klad does not remove unfinished checkpoints now");
                return;
            }
        };
        for path in entries(&self.directory) {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            if !name.starts_with(PARTIAL) {
                continue;
            }
            match fs::remove_dir_all(&path) {
                Ok(()) => tracing::info!(path = %path.display(), "removed an unfinished checkpoint"),
                Err(error) => tracing::warn!(path = %path.display(), %error, "cannot remove an unfinished checkpoint"),
            }
        }
    }

    fn read_list(&self) {
        let mut listed: Vec<_> = entries(&self.directory).iter().filter_map(|path| checkpoint_at(path)).collect();
        listed.sort_by(|one, other| (&one.made, &one.name).cmp(&(&other.made, &other.name)));
        self.state.lock().listed = listed;
    }
}

impl MaintenanceThread {
    /// Makes maintenance reject new jobs, and ends a compaction at the end of its current piece. Does not wait for that
    /// end.
    pub fn close(&self) {
        self.maintenance.state.lock().stopping = true;
        self.maintenance.cancelled.store(true, Ordering::Release);
        self.maintenance.queue.close();
    }

    /// Interrupts a running compaction, and waits for up to `patience` until the running job has finished. Call
    /// [`MaintenanceThread::close`] first.
    ///
    /// If the job is not finished by then, the process exits without waiting for it, because a slow disk must not delay
    /// the exit. The engine stays open for the job. The next start of klad removes the job's unfinished files.
    pub fn stop(self, patience: Duration) {
        let begun = clock::now();
        // Interrupts repeatedly, because a compaction may just be beginning its next piece.
        let never = Signal::default();
        while !self.thread.is_finished() {
            if clock::now().duration_since(begun) >= patience {
                let what = self.maintenance.state.lock().running.map_or("listing", |(what, _)| what);
                tracing::warn!(what, "a maintenance job has not ended in time; klad stops without it");
                return;
            }
            if let Some(disk) = self.maintenance.engine.local_disk() {
                disk.interrupt_compaction();
            }
            never.wait_timeout(Duration::from_millis(5));
        }
        self.thread.join().expect("a thread that panics ends the process");
    }
}

/// Returns the name as text if it is allowed: a single file name, without `/`, that is harmless in a shell.
fn valid_name(name: &[u8]) -> Result<&str, Error> {
    let letter = |byte: &u8| byte.is_ascii_alphanumeric() || b"._-".contains(byte);
    let valid = (1..=CHECKPOINT_NAME_BYTES_MAX).contains(&name.len())
        && name[0].is_ascii_alphanumeric()
        && name.iter().all(letter);
    if !valid {
        return Err(Error::BadName);
    }
    std::str::from_utf8(name).map_err(|_| Error::BadName)
}

/// Returns the default name of a checkpoint, such as `2026-11-21T090000.123Z`. A checkpoint takes longer than a
/// millisecond, so two checkpoints have different names.
fn name_of(unix_ms: u64) -> String {
    humantime::format_rfc3339_millis(UNIX_EPOCH + Duration::from_millis(unix_ms)).to_string().replace(':', "")
}

/// Formats a time, in milliseconds since 1970, such as `2026-11-21T09:00:00Z`.
fn time(unix_ms: u64) -> String {
    humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_millis(unix_ms)).to_string()
}

/// Returns the paths of a directory's entries; an empty list if the directory cannot be read.
fn entries(directory: &Path) -> Vec<PathBuf> {
    let found = fs::read_dir(directory).map(|entries| entries.flatten().map(|entry| entry.path()).collect());
    found.unwrap_or_default()
}

fn checkpoint_at(path: &Path) -> Option<CheckpointEntry> {
    let name = path.file_name()?.to_str().filter(|name| !name.starts_with('.'))?.to_owned();
    if !directory::is_checkpoint(path) {
        return None;
    }
    let made = path.join("KLAD").metadata().and_then(|found| found.modified()).ok()?;
    let made = humantime::format_rfc3339_seconds(made).to_string();
    let files = entries(path).into_iter().chain(entries(&path.join("rocksdb")));
    let bytes =
        files.filter_map(|file| file.metadata().ok()).filter(fs::Metadata::is_file).map(|file| file.len()).sum();
    Some(CheckpointEntry { name, path: path.to_owned(), bytes, made })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_name_in_a_directory() {
        for good in ["a", "before-upgrade", "2026-11-21T090000Z", "v1.2_x"] {
            assert!(valid_name(good.as_bytes()).is_ok(), "{good}");
        }
        assert_eq!(name_of(1_795_251_600_123), "2026-11-21T090000.123Z");
        assert_eq!(valid_name(name_of(1_795_251_600_123).as_bytes()).ok(), Some("2026-11-21T090000.123Z"));
        let long = "x".repeat(CHECKPOINT_NAME_BYTES_MAX + 1);
        for bad in ["", ".", "..", "../x", "a/b", "/etc", ".partial-x", "-rf", "a b", "a\0", "é", "a\n", &long] {
            assert!(valid_name(bad.as_bytes()).is_err(), "{bad:?}");
        }
    }
}
