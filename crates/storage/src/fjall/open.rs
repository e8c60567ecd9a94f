//! Opens fjall after checks that prevent fjall from destroying data in a damaged directory.
//!
//! fjall truncates a journal at the first entry that it cannot read, without an error. It treats a directory without
//! `version` as a new one. It removes a keyspace that it does not know or whose `current` is missing, with all its
//! tables (fjall 3.1.13, `src/recovery.rs`). klad therefore first checks the files and compares the journals with the
//! mark of what was synced, and changes nothing until the checks have passed. Called by `fjall`.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use fjall::{Database, Keyspace, LsmError};

use crate::disk::directory::{self, DataDirectory};
use crate::disk::high_water::{self, HighWater};
use crate::fjall::journal::{self, JournalDefect, JournalScan};
use crate::fjall::options;
use crate::fjall::{FILES, MARK_KEY, Options};

/// The only keyspace that klad uses.
const KEYSPACE: &str = "data";

/// The keyspace in which fjall stores the names and options of the others.
const META_KEYSPACE: &str = "0";

/// Why the engine could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The data directory cannot be used.
    #[error(transparent)]
    Directory(#[from] directory::Error),
    /// Writes that were synced are missing.
    #[error(transparent)]
    HighWater(#[from] high_water::Error),
    /// fjall or the kernel returned an error.
    #[error("fjall cannot open {}: {why}", path.display())]
    Fjall {
        /// fjall's directory.
        path: PathBuf,
        /// The error message.
        why: String,
    },
    /// A required file is damaged or missing.
    #[error("{} is damaged: {why}. Restore the data from a copy", path.display())]
    Damaged {
        /// fjall's directory.
        path: PathBuf,
        /// The defect.
        why: String,
    },
}

/// An open database.
pub(super) struct Opened {
    pub(super) db: Database,
    pub(super) keyspace: Keyspace,
    pub(super) high_water: HighWater,
    /// The version of the last recovered write.
    pub(super) last_version: u64,
}

/// The message of a fjall error: the kernel's message if the kernel caused it.
pub(super) fn message(error: &fjall::Error) -> String {
    match error {
        fjall::Error::Io(cause) | fjall::Error::Storage(LsmError::Io(cause)) => cause.to_string(),
        fjall::Error::Poisoned => "one of fjall's own threads has failed".to_owned(),
        other => other.to_string(),
    }
}

fn from_fjall(files: &Path, error: &fjall::Error) -> OpenError {
    let (path, why) = (files.to_owned(), message(error));
    match error {
        fjall::Error::Io(cause) | fjall::Error::Storage(LsmError::Io(cause)) if !is_damage(cause) => {
            OpenError::Fjall { path, why }
        }
        fjall::Error::Locked | fjall::Error::Poisoned => OpenError::Fjall { path, why },
        _ => OpenError::Damaged { path, why },
    }
}

/// Whether an error means that a file is missing, too short or invalid.
fn is_damage(cause: &io::Error) -> bool {
    use io::ErrorKind::{InvalidData, NotFound, UnexpectedEof};
    matches!(cause.kind(), NotFound | UnexpectedEof | InvalidData)
}

/// Opens the database for writing. Then compares the high-water mark with the recovered writes, and opens the mark.
pub(super) fn open(directory: &DataDirectory, options: &Options) -> Result<Opened, OpenError> {
    let data = directory.path();
    let files = directory.subdirectory(FILES)?;
    let unreadable = |cause: io::Error| OpenError::Fjall { path: files.clone(), why: cause.to_string() };
    let scan = journal::scan(&files, MARK_KEY).map_err(unreadable)?;
    if directory.versions_reserved_until() > 0 {
        check(data, &files, &scan)?;
        truncate_torn_tail(&scan).map_err(unreadable)?;
    } else {
        clear_interrupted_start(&files, &scan)?;
    }
    let failed = |error: fjall::Error| from_fjall(&files, &error);
    let db = options::database(&files, options).open().map_err(failed)?;
    let keyspace = db.keyspace(KEYSPACE, || options::keyspace(options)).map_err(failed)?;
    // fjall syncs the contents of a new keyspace's directory, but not the parent directory with its name.
    File::open(files.join("keyspaces")).and_then(|opened| opened.sync_all()).map_err(unreadable)?;
    let mark = keyspace.get(MARK_KEY).map_err(failed)?;
    let last_version = match mark.as_deref().map(<[u8; 8]>::try_from) {
        None => 0,
        Some(Ok(version)) => u64::from_le_bytes(version),
        Some(Err(_)) => {
            let why = "the entry with the version of the last write is not a version".to_owned();
            return Err(OpenError::Damaged { path: files, why });
        }
    };
    let high_water = HighWater::check(data, last_version)?;
    Ok(Opened { db, keyspace, high_water, last_version })
}

/// Checks that the journals contain all synced writes, and that no file is missing whose absence fjall would not
/// notice. Changes nothing.
fn check(data: &Path, files: &Path, scan: &JournalScan) -> Result<(), OpenError> {
    let damaged = |why: String| Err(OpenError::Damaged { path: files.to_owned(), why });
    let mut needed = vec![PathBuf::from("version"), Path::new("keyspaces").join(META_KEYSPACE).join("current")];
    for keyspace in keyspaces(files).unwrap_or_default() {
        needed.push(keyspace.join("current"));
    }
    if let Some(missing) = needed.iter().find(|file| !files.join(file).is_file()) {
        return damaged(format!("{} is missing", missing.display()));
    }
    if needed.len() < 3 {
        return damaged("the keyspace that everything is in is missing".to_owned());
    }
    if scan.journals == 0 {
        return damaged("there is no journal".to_owned());
    }
    match &scan.defect {
        Some(JournalDefect::Missing { number }) => return damaged(format!("journal {number}.jnl is missing")),
        Some(JournalDefect::Broken { journal, position }) => {
            return damaged(format!("the journal {} cannot be read from byte {position} on", journal.display()));
        }
        None => {}
    }
    // If a torn journal has no complete batch, only fjall could tell whether the tables contain all synced writes, and
    // fjall would truncate the journal first. klad rejects this state for safety, although a power cut soon after the
    // start of a new journal leaves this state too.
    let synced = high_water::read(data).ok().flatten().unwrap_or(0);
    let recovered = scan.last_mark.or(scan.torn_tail.is_some().then_some(0));
    if let Some(recovered) = recovered.filter(|recovered| *recovered < synced) {
        let path = data.join(high_water::FILE);
        return Err(high_water::Error::LogIsShort { recovered, synced, path }.into());
    }
    Ok(())
}

/// The paths of all keyspaces except the meta keyspace, relative to fjall's directory.
fn keyspaces(files: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(files.join("keyspaces"))? {
        let entry = entry?;
        if entry.file_name() != *META_KEYSPACE && entry.file_type()?.is_dir() {
            found.push(Path::new("keyspaces").join(entry.file_name()));
        }
    }
    Ok(found)
}

/// Truncates the last journal after its last complete batch. The rest was not synced, and fjall fails to open some
/// kinds of torn journals.
fn truncate_torn_tail(scan: &JournalScan) -> io::Result<()> {
    let Some(torn_tail) = &scan.torn_tail else { return Ok(()) };
    tracing::warn!(
        journal = %torn_tail.journal.display(),
        position = torn_tail.position,
        "the journal ends in an incomplete write; klad truncates it there; all writes that were synced are before it"
    );
    torn_tail.truncate()
}

/// Deletes the files of an interrupted first start, because fjall cannot open them. Called only if klad has never
/// completed a start with this directory, so the files should contain no writes. If they do, the function deletes
/// nothing and returns [`OpenError::Damaged`].
fn clear_interrupted_start(files: &Path, scan: &JournalScan) -> Result<(), OpenError> {
    let tables = keyspaces(files).unwrap_or_default().into_iter().any(|keyspace| {
        let tables = fs::read_dir(files.join(keyspace).join("tables"));
        tables.is_ok_and(|mut tables| tables.next().is_some())
    });
    if tables || scan.last_mark.is_some() || scan.torn_tail.is_some() {
        let why = "it contains writes, but KLAD says that there was none".to_owned();
        return Err(OpenError::Damaged { path: files.to_owned(), why });
    }
    let clear = || {
        fs::remove_dir_all(files)?;
        fs::create_dir(files)?;
        // klad syncs the parent directory, which has the new name; fjall syncs the contents.
        File::open(files.parent().unwrap_or(files))?.sync_all()
    };
    clear().map_err(|cause: io::Error| OpenError::Fjall { path: files.to_owned(), why: cause.to_string() })
}
