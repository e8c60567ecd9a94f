//! Data care while klad serves: checkpoints and compactions, one at a time, on a thread of their own.
//!
//! ```text
//!   klad-admin ── ask ──▶ one job, one listing ──▶ klad-care ──▶ LocalDisk::checkpoint, LocalDisk::compact, files of checkpoints
//!              ◀── oneshot ───────────────────┘
//! ```
//!
//! Nothing here is on the path of a request: neither the admin thread nor a worker waits for a disk. Names of checkpoints come
//! from clients, paths never do. Started and stopped by `server`, called by `http::maintenance`.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, UNIX_EPOCH};

use serde::Serialize;
use tokio::sync::oneshot;

use klad_base::clock;
use klad_base::limits::CHECKPOINT_NAME_BYTES_MAX;
use klad_base::sync::{self, BoundedQueue, Mutex, Signal};
use klad_storage::disk::directory::{self, DataDirectory};
use klad_storage::maintenance::{self, Checkpoint, Compaction};
use klad_storage::{Engine, LocalDisk, PARTIAL};

/// Why something was not done.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Not the name of a checkpoint.
    #[error(
        "a name has 1 to {CHECKPOINT_NAME_BYTES_MAX} letters, digits, dots, dashes and underscores, and begins with none of the last three"
    )]
    BadName,
    /// No checkpoint of that name.
    #[error("there is no checkpoint {name}")]
    Unknown {
        /// As asked for.
        name: String,
    },
    /// Something of that name that is not to be removed.
    #[error(
        "{} is not a checkpoint, or has been served since it was made: klad removes only what has the file CHECKPOINT",
        path.display()
    )]
    NotACheckpoint {
        /// What is there.
        path: PathBuf,
    },
    /// Another process uses the checkpoint.
    #[error("checkpoint {name} is in use by another process (process id {process})")]
    Served {
        /// The checkpoint.
        name: String,
        /// Who.
        process: String,
    },
    /// One at a time.
    #[error("a {what} is in progress; one at a time")]
    Busy {
        /// What is being done.
        what: &'static str,
    },
    /// Nothing is being compacted.
    #[error("no compaction is in progress")]
    Idle,
    /// klad is about to stop.
    #[error("the server is stopping")]
    Stopping,
    /// The engine said no, or failed.
    #[error(transparent)]
    Maintenance(#[from] maintenance::Error),
}

/// What was done.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub enum Done {
    /// A checkpoint was made.
    Checkpoint {
        /// Its name.
        name: String,
        /// What it is.
        #[serde(flatten)]
        checkpoint: Checkpoint,
        /// How long it took.
        seconds: f64,
    },
    /// A checkpoint was removed.
    Removed {
        /// Its name.
        removed: String,
    },
    /// All was compacted.
    Compaction {
        /// What it came to.
        #[serde(flatten)]
        compaction: Compaction,
        /// How long it took.
        seconds: f64,
    },
    /// The list was read again.
    Listed,
}

/// A checkpoint that lies there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Listed {
    /// Its name.
    pub name: String,
    /// Where.
    pub path: PathBuf,
    /// Bytes of its files, those that it shares included.
    pub bytes: u64,
    /// When it was made.
    pub made: String,
}

/// How things stand.
#[derive(Clone, Debug, Serialize)]
pub struct Status {
    /// Where checkpoints are made.
    pub directory: PathBuf,
    /// Those that are there.
    pub checkpoints: Vec<Listed>,
    /// What is being done.
    pub running: Option<Running>,
    /// How the last one ended, in words; none since the start.
    pub last: Option<String>,
}

/// Something that is being done.
#[derive(Clone, Debug, Serialize)]
pub struct Running {
    /// `checkpoint`, `removal`, `compaction`.
    pub what: &'static str,
    /// For how long.
    pub seconds: f64,
    /// Pieces that are done, of a compaction.
    pub pieces_done: u64,
    /// Of how many.
    pub pieces: u64,
}

/// Where the end of a job is told.
pub type Answer = oneshot::Receiver<Result<Done, Error>>;

/// Takes care of an engine's data.
pub struct Maintenance {
    engine: Arc<dyn Engine>,
    directory: PathBuf,
    /// Never holds more than the one job and the one listing that `state` knows of.
    queue: BoundedQueue<Job>,
    state: Mutex<State>,
    /// The compaction that runs is to end.
    cancelled: AtomicBool,
    pieces_done: AtomicU64,
    pieces: AtomicU64,
}

#[derive(Default)]
struct State {
    /// The job that was taken, and when.
    running: Option<(&'static str, Instant)>,
    /// The list is being read. It is no job: a client that only looks must keep nobody from a checkpoint.
    listing: bool,
    stopping: bool,
    listed: Vec<Listed>,
    last: Option<String>,
}

struct Job {
    work: Work,
    reply: oneshot::Sender<Result<Done, Error>>,
}

enum Work {
    Checkpoint(String),
    Remove(String),
    Compact { bottommost: bool },
    List,
}

impl Work {
    fn name(&self) -> &'static str {
        match self {
            Work::Checkpoint(_) => "checkpoint",
            Work::Remove(_) => "removal",
            Work::Compact { .. } => "compaction",
            Work::List => "listing",
        }
    }
}

/// The thread, to be stopped and waited for.
pub struct MaintenanceThread {
    maintenance: Arc<Maintenance>,
    thread: JoinHandle<()>,
}

impl Maintenance {
    /// Takes care of `engine`; checkpoints are made in `directory`, which is made with the first of them.
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
        let thread = sync::spawn_thread("klad-care", {
            let maintenance = maintenance.clone();
            move || maintenance.run()
        });
        (maintenance.clone(), MaintenanceThread { maintenance, thread })
    }

    /// Begins a checkpoint; without a name it is called after the time.
    ///
    /// # Errors
    /// [`Error`], with nothing begun.
    pub fn checkpoint(&self, name: Option<&[u8]>) -> Result<Answer, Error> {
        let name = match name {
            Some(name) => valid_name(name)?.to_owned(),
            None => name_of(clock::unix_ms()),
        };
        self.ask(Work::Checkpoint(name))
    }

    /// Begins to remove a checkpoint.
    ///
    /// # Errors
    /// [`Error`], with nothing begun.
    pub fn remove(&self, name: &[u8]) -> Result<Answer, Error> {
        self.ask(Work::Remove(valid_name(name)?.to_owned()))
    }

    /// Begins to compact all; with `bottommost` also what lies on the last level already.
    ///
    /// # Errors
    /// [`Error`], with nothing begun.
    pub fn compact(&self, bottommost: bool) -> Result<Answer, Error> {
        self.ask(Work::Compact { bottommost })
    }

    /// Begins to read the list of checkpoints again; a job that is asked for meanwhile begins behind it.
    ///
    /// # Errors
    /// [`Error::Busy`]: the list is as it was before what is in progress.
    pub fn list(&self) -> Result<Answer, Error> {
        let mut state = self.state.lock();
        if let Some(what) = state.running.map(|(what, _)| what).or(state.listing.then_some("listing")) {
            return Err(Error::Busy { what });
        }
        let answer = self.push(&state, Work::List)?;
        state.listing = true;
        Ok(answer)
    }

    /// Lets the compaction that is in progress end before its next piece.
    ///
    /// # Errors
    /// [`Error::Idle`].
    pub fn cancel_compaction(&self) -> Result<(), Error> {
        let state = self.state.lock();
        if state.running.is_none_or(|(what, _)| what != "compaction") {
            return Err(Error::Idle);
        }
        self.cancelled.store(true, Ordering::Release);
        Ok(())
    }

    /// How things stand; does not wait for a disk.
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

    fn ask(&self, work: Work) -> Result<Answer, Error> {
        let mut state = self.state.lock();
        if let Some((what, _)) = state.running {
            return Err(Error::Busy { what });
        }
        let running = Some((work.name(), clock::now()));
        let answer = self.push(&state, work)?;
        state.running = running;
        self.cancelled.store(false, Ordering::Release);
        self.pieces_done.store(0, Ordering::Relaxed);
        self.pieces.store(0, Ordering::Relaxed);
        Ok(answer)
    }

    /// `state` is held, so that the thread does not report the end before the beginning is written down.
    fn push(&self, state: &State, work: Work) -> Result<Answer, Error> {
        if state.stopping {
            return Err(Error::Stopping);
        }
        let (reply, answer) = oneshot::channel();
        self.queue.push(Job { work, reply }).map_err(|_| Error::Stopping)?;
        Ok(answer)
    }

    fn run(&self) {
        self.remove_leftovers();
        self.read_list();
        while let Some(Job { work, reply }) = self.queue.pop() {
            let what = work.name();
            let begun = clock::now();
            let done = if self.state.lock().stopping { Err(Error::Stopping) } else { self.work(work) };
            self.read_list();
            let seconds = clock::now().duration_since(begun).as_secs_f64();
            let mut state = self.state.lock();
            if what == "listing" {
                state.listing = false;
            } else {
                match &done {
                    Ok(_) => tracing::info!(what, seconds, "data care: done"),
                    Err(error) => tracing::warn!(what, seconds, %error, "data care: not done"),
                }
                let ended = done.as_ref().map_or_else(|error| format!("not done: {error}"), |_| "done".to_owned());
                state.last = Some(format!("{what} at {}: {ended}", time(clock::unix_ms())));
                state.running = None;
            }
            drop(state);
            // Whoever asked may have gone.
            let _ = reply.send(done);
        }
    }

    fn work(&self, work: Work) -> Result<Done, Error> {
        let begun = clock::now();
        let seconds = || clock::now().duration_since(begun).as_secs_f64();
        match work {
            Work::Checkpoint(name) => {
                self.remove_leftovers();
                let checkpoint = self.disk("checkpoints")?.checkpoint(&self.directory.join(&name))?;
                Ok(Done::Checkpoint { name, checkpoint, seconds: seconds() })
            }
            Work::Remove(name) => self.remove_now(name),
            Work::Compact { bottommost } => {
                let compaction = self.disk("compactions")?.compact(bottommost, &|done, pieces| {
                    self.pieces_done.store(done, Ordering::Relaxed);
                    self.pieces.store(pieces, Ordering::Relaxed);
                    !self.cancelled.load(Ordering::Acquire)
                })?;
                Ok(Done::Compaction { compaction, seconds: seconds() })
            }
            Work::List => Ok(Done::Listed),
        }
    }

    /// Only an engine on a local disk has `what`.
    fn disk(&self, what: &'static str) -> Result<&dyn LocalDisk, maintenance::Error> {
        let engine = self.engine.name();
        self.engine.local_disk().ok_or(maintenance::Error::NotSupported { engine, what })
    }

    /// Renamed first, so that a crash in the middle leaves nothing that could be taken for a checkpoint.
    fn remove_now(&self, name: String) -> Result<Done, Error> {
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
        // Again, now that it is held: somebody may have served it and gone.
        if !directory::is_checkpoint(&path) {
            return Err(Error::NotACheckpoint { path });
        }
        let partial = self.directory.join(format!("{PARTIAL}{name}"));
        let failed = |cause| maintenance::Error::Io { action: "remove", path: path.clone(), cause };
        fs::rename(&path, &partial).map_err(failed)?;
        fs::remove_dir_all(&partial).map_err(failed)?;
        Ok(Done::Removed { removed: name })
    }

    /// What a crash in the middle of making or removing a checkpoint has left. While another klad is at work in the directory
    /// it stays: it may be what that one is making.
    fn remove_leftovers(&self) {
        if !self.directory.is_dir() {
            return;
        }
        let _alone = match maintenance::lock_checkpoints(&self.directory) {
            Ok(alone) => alone,
            Err(error) => {
                tracing::info!(%error, "unfinished checkpoints, if there are any, are left where they are");
                return;
            }
        };
        for path in entries(&self.directory) {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            if !name.starts_with(PARTIAL) {
                continue;
            }
            match fs::remove_dir_all(&path) {
                Ok(()) => tracing::info!(path = %path.display(), "removed what was left of an unfinished checkpoint"),
                Err(error) => tracing::warn!(path = %path.display(), %error, "cannot remove an unfinished checkpoint"),
            }
        }
    }

    fn read_list(&self) {
        let mut listed: Vec<_> = entries(&self.directory).iter().filter_map(|path| look_at(path)).collect();
        listed.sort_by(|one, other| (&one.made, &one.name).cmp(&(&other.made, &other.name)));
        self.state.lock().listed = listed;
    }
}

impl MaintenanceThread {
    /// Takes no more, and lets a compaction end before its next piece; does not wait.
    pub fn close(&self) {
        self.maintenance.state.lock().stopping = true;
        self.maintenance.cancelled.store(true, Ordering::Release);
        self.maintenance.queue.close();
    }

    /// After [`MaintenanceThread::close`]: ends a compaction at once, and waits up to `patience` for a checkpoint that is being made.
    ///
    /// What has not ended by then is left to end with the process, which no disk may hold up: the engine stays open for it,
    /// and what it leaves is removed at the next start.
    pub fn stop(self, patience: Duration) {
        let begun = clock::now();
        // It may be about to begin a piece of a compaction when it is interrupted: hence again.
        let never = Signal::default();
        while !self.thread.is_finished() {
            if clock::now().duration_since(begun) >= patience {
                let what = self.maintenance.state.lock().running.map_or("listing", |(what, _)| what);
                tracing::warn!(what, "data care: not ended in time for the stop, and given up");
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

/// Only what can be one name in a directory, and means nothing to a shell.
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

/// What a checkpoint is called after: `2026-11-21T090000.123Z`. One takes longer than a millisecond.
fn name_of(unix_ms: u64) -> String {
    humantime::format_rfc3339_millis(UNIX_EPOCH + Duration::from_millis(unix_ms)).to_string().replace(':', "")
}

/// Milliseconds since 1970 as `2026-11-21T09:00:00Z`.
fn time(unix_ms: u64) -> String {
    humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_millis(unix_ms)).to_string()
}

/// What is in a directory; nothing, where there is none.
fn entries(directory: &Path) -> Vec<PathBuf> {
    let found = fs::read_dir(directory).map(|entries| entries.flatten().map(|entry| entry.path()).collect());
    found.unwrap_or_default()
}

fn look_at(path: &Path) -> Option<Listed> {
    let name = path.file_name()?.to_str().filter(|name| !name.starts_with('.'))?.to_owned();
    if !directory::is_checkpoint(path) {
        return None;
    }
    let made = path.join("KLAD").metadata().and_then(|found| found.modified()).ok()?;
    let made = humantime::format_rfc3339_seconds(made).to_string();
    let files = entries(path).into_iter().chain(entries(&path.join("rocksdb")));
    let bytes =
        files.filter_map(|file| file.metadata().ok()).filter(fs::Metadata::is_file).map(|file| file.len()).sum();
    Some(Listed { name, path: path.to_owned(), bytes, made })
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
