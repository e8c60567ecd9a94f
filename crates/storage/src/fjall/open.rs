//! Opens fjall without its doing any harm: to a directory whose files are gone, or whose journal is damaged.
//!
//! fjall alone cuts a journal at the first thing that it cannot read and says nothing. It takes a directory without `version` for a new
//! one, and removes a keyspace that it does not know or whose `current` is missing, tables and all (fjall 3.1.13,
//! `src/recovery.rs`). So all of it is looked at first, and what was synced is compared with what can be read, while nothing is
//! changed. Called by `fjall.rs`.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use fjall::{Database, Keyspace, LsmError};

use crate::disk::directory::{self, DataDirectory};
use crate::disk::high_water::{self, HighWater};
use crate::fjall::journal::{self, Looked, Oddity};
use crate::fjall::options;
use crate::fjall::{FILES, MARK_KEY, Options};

/// The keyspace that everything is in.
const KEYSPACE: &str = "data";

/// The keyspace in which fjall keeps names and options of the others.
const OWN_KEYSPACE: &str = "0";

/// Why the engine could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The directory itself.
    #[error(transparent)]
    Directory(#[from] directory::Error),
    /// Writes that were synced are missing.
    #[error(transparent)]
    HighWater(#[from] high_water::Error),
    /// fjall's words, or the kernel's.
    #[error("fjall cannot open {}: {why}", path.display())]
    Fjall {
        /// Where.
        path: PathBuf,
        /// In words.
        why: String,
    },
    /// Files that must be there are damaged or missing.
    #[error("{} is damaged: {why}. Bring the data back from a copy", path.display())]
    Damaged {
        /// fjall's directory.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
}

/// An open database.
pub(super) struct Opened {
    pub(super) db: Database,
    pub(super) keyspace: Keyspace,
    pub(super) high_water: HighWater,
    /// The last version whose write is in there.
    pub(super) last_version: u64,
}

/// An error of fjall's, in words that name the kernel's where it is to blame.
pub(super) fn words(error: &fjall::Error) -> String {
    match error {
        fjall::Error::Io(cause) | fjall::Error::Storage(LsmError::Io(cause)) => cause.to_string(),
        fjall::Error::Poisoned => "one of fjall's own threads has failed".to_owned(),
        other => other.to_string(),
    }
}

fn from_fjall(files: &Path, error: &fjall::Error) -> OpenError {
    let (path, why) = (files.to_owned(), words(error));
    match error {
        fjall::Error::Io(cause) | fjall::Error::Storage(LsmError::Io(cause)) if !is_damage(cause) => {
            OpenError::Fjall { path, why }
        }
        fjall::Error::Locked | fjall::Error::Poisoned => OpenError::Fjall { path, why },
        _ => OpenError::Damaged { path, why },
    }
}

/// A file that is gone, or shorter than it says.
fn is_damage(cause: &io::Error) -> bool {
    use io::ErrorKind::{InvalidData, NotFound, UnexpectedEof};
    matches!(cause.kind(), NotFound | UnexpectedEof | InvalidData)
}

/// Opens the database to be written, and the mark of what was synced, which it has been compared with.
pub(super) fn open(directory: &DataDirectory, options: &Options) -> Result<Opened, OpenError> {
    let data = directory.path();
    let files = directory.subdirectory(FILES)?;
    let unreadable = |cause: io::Error| OpenError::Fjall { path: files.clone(), why: cause.to_string() };
    let looked = journal::look(&files, MARK_KEY).map_err(unreadable)?;
    if directory.versions_reserved_until() > 0 {
        check(data, &files, &looked)?;
        cut(&looked).map_err(unreadable)?;
    } else {
        start_anew(&files, &looked)?;
    }
    let failed = |error: fjall::Error| from_fjall(&files, &error);
    let db = options::database(&files, options).open().map_err(failed)?;
    let keyspace = db.keyspace(KEYSPACE, || options::keyspace(options)).map_err(failed)?;
    // fjall syncs what is in a new keyspace's directory, and not its name.
    File::open(files.join("keyspaces")).and_then(|opened| opened.sync_all()).map_err(unreadable)?;
    let mark = keyspace.get(MARK_KEY).map_err(failed)?;
    let last_version = match mark.as_deref().map(<[u8; 8]>::try_from) {
        None => 0,
        Some(Ok(version)) => u64::from_le_bytes(version),
        Some(Err(_)) => {
            let why = "what it says of the last write is no version".to_owned();
            return Err(OpenError::Damaged { path: files, why });
        }
    };
    let high_water = HighWater::check(data, last_version)?;
    Ok(Opened { db, keyspace, high_water, last_version })
}

/// Everything is there that fjall would not miss. Changes nothing.
fn check(data: &Path, files: &Path, looked: &Looked) -> Result<(), OpenError> {
    let damaged = |why: String| Err(OpenError::Damaged { path: files.to_owned(), why });
    let mut needed = vec![PathBuf::from("version"), own("current")];
    for keyspace in keyspaces(files).unwrap_or_default() {
        needed.push(keyspace.join("current"));
    }
    if let Some(missing) = needed.iter().find(|file| !files.join(file).is_file()) {
        return damaged(format!("{} is missing", missing.display()));
    }
    if needed.len() < 3 {
        return damaged("the keyspace that everything is in is missing".to_owned());
    }
    if looked.journals == 0 {
        return damaged("there is no journal".to_owned());
    }
    match &looked.oddity {
        Some(Oddity::Missing { number }) => return damaged(format!("journal {number}.jnl is missing")),
        Some(Oddity::Broken { journal, position }) => {
            return damaged(format!("the journal {} cannot be read from byte {position} on", journal.display()));
        }
        None => {}
    }
    // Where no whole batch is left, whether tables hold what was synced only fjall can tell, and it would cut the journal off
    // first. A journal that was begun just before a power cut looks like that as well, and is refused for safety.
    let synced = high_water::read(data).ok().flatten().unwrap_or(0);
    let recovered = looked.last_mark.or(looked.torn.is_some().then_some(0));
    if let Some(recovered) = recovered.filter(|recovered| *recovered < synced) {
        let path = data.join(high_water::FILE);
        return Err(high_water::Error::LogIsShort { recovered, synced, path }.into());
    }
    Ok(())
}

/// Paths of all keyspaces but fjall's own, below its directory.
fn keyspaces(files: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(files.join("keyspaces"))? {
        let entry = entry?;
        if entry.file_name() != *OWN_KEYSPACE && entry.file_type()?.is_dir() {
            found.push(Path::new("keyspaces").join(entry.file_name()));
        }
    }
    Ok(found)
}

fn own(file: &str) -> PathBuf {
    Path::new("keyspaces").join(OWN_KEYSPACE).join(file)
}

/// Takes away what is behind the last whole batch, which nobody was promised: fjall refuses to open some of it.
fn cut(looked: &Looked) -> io::Result<()> {
    let Some(torn) = &looked.torn else { return Ok(()) };
    tracing::warn!(
        journal = %torn.journal.display(),
        position = torn.position,
        "the journal ends in a write that is not whole, and is cut off there; everything that was synced is before it"
    );
    torn.cut()
}

/// No version was ever given out, so that nothing was written: what an interrupted first start has left is taken away, because
/// fjall does not go on with it.
fn start_anew(files: &Path, looked: &Looked) -> Result<(), OpenError> {
    let tables = keyspaces(files).unwrap_or_default().into_iter().any(|keyspace| {
        let tables = fs::read_dir(files.join(keyspace).join("tables"));
        tables.is_ok_and(|mut tables| tables.next().is_some())
    });
    if tables || looked.last_mark.is_some() || looked.torn.is_some() {
        let why = "there are writes in it, and KLAD says that there was none".to_owned();
        return Err(OpenError::Damaged { path: files.to_owned(), why });
    }
    let clear = || {
        fs::remove_dir_all(files)?;
        fs::create_dir(files)?;
        // The new directory's name; its contents fjall syncs.
        File::open(files.parent().unwrap_or(files))?.sync_all()
    };
    clear().map_err(|cause: io::Error| OpenError::Fjall { path: files.to_owned(), why: cause.to_string() })
}
