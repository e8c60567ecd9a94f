//! The data directory: its lock, its identity (format and engine), and the reserved versions.
//!
//! ```text
//!   data/KLAD       format, engine and reserved versions; replaced as a whole, synced
//!   data/LOCK       locked by the process that serves the directory
//!   data/CHECKPOINT marks a checkpoint that klad has never served; klad lists and removes only these
//!   data/SYNCED     how far the log is synced (high_water.rs)
//!   data/rocksdb/   the engine's own files; data/fjall/ with that engine
//! ```
//!
//! [`DataDirectory::still_there`] detects that the directory was moved or deleted while klad serves it.
//! `docs/storage-format.md` describes `KLAD`. Called by `versions` and by the engines on disk.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Seek as _, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::disk::file_lock::FileLock;
use klad_base::sync::Mutex;

/// The format of the directory that this klad writes, and the only one that it reads.
pub const FORMAT: u32 = 1;

const MANIFEST: &str = "KLAD";
const LOCK: &str = "LOCK";

/// The file that marks a checkpoint. klad removes a directory on a client's request only if it contains this file.
pub const CHECKPOINT: &str = "CHECKPOINT";

/// A data directory that this process has locked. Dropping the last clone unlocks it.
#[derive(Clone, Debug)]
pub struct DataDirectory(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    path: PathBuf,
    manifest: Mutex<Manifest>,
    /// The lock ends with the process, even after a crash.
    lock: FileLock,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Manifest {
    engine: String,
    versions_reserved_until: u64,
}

/// Why a data directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel returned an error.
    #[error("cannot {action} {}: {cause}{}", path.display(), advice(cause))]
    Io {
        /// The failed action.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The kernel's error.
        cause: io::Error,
    },
    /// Another process serves the directory.
    #[error("{} is in use by another process (process id {process})", path.display())]
    InUse {
        /// The directory.
        path: PathBuf,
        /// The id of the other process, as `LOCK` contains it.
        process: String,
    },
    /// The path is not a directory.
    #[error("{} is not a directory: give --data a directory, or a path at which klad can create one", path.display())]
    NotADirectory {
        /// The path.
        path: PathBuf,
    },
    /// The path is a symbolic link to a path that does not exist.
    #[error(
        "{} is a link to {}, and nothing is there: mount or create the target first, or give --data another directory",
        path.display(), target.display()
    )]
    DanglingLink {
        /// The link.
        path: PathBuf,
        /// The target of the link.
        target: PathBuf,
    },
    /// There is no data directory.
    #[error("{} holds no {MANIFEST} file: it is not a klad data directory", path.display())]
    Missing {
        /// The path.
        path: PathBuf,
    },
    /// The directory contains other files, but no manifest.
    #[error("{} is not empty and holds no {MANIFEST} file: it is not a klad data directory", path.display())]
    NotKlad {
        /// The directory.
        path: PathBuf,
    },
    /// A newer klad wrote the directory.
    #[error(
        "{} has format {format}, but this klad reads format {FORMAT}: use the klad that wrote it, or a newer one",
        path.display()
    )]
    NewerFormat {
        /// The manifest.
        path: PathBuf,
        /// The format in the manifest.
        format: String,
    },
    /// Another engine wrote the directory.
    #[error("{} was written by --engine {found}, it cannot be opened with --engine {asked}", path.display())]
    OtherEngine {
        /// The directory.
        path: PathBuf,
        /// The engine in the manifest.
        found: String,
        /// The engine that was asked to open the directory.
        asked: String,
    },
    /// The manifest cannot be parsed.
    #[error("{} is damaged: {why}", path.display())]
    Damaged {
        /// The manifest.
        path: PathBuf,
        /// The defect.
        why: String,
    },
}

impl DataDirectory {
    /// Locks `path` for this process and `engine`. Creates the data directory if `path` is missing or empty.
    ///
    /// # Errors
    /// [`Error`]. After an error, a directory of another program is unchanged.
    pub fn open(path: &Path, engine: &str) -> Result<DataDirectory, Error> {
        create_durably(path)?;
        let manifest_path = path.join(MANIFEST);
        // This check comes before any write into the directory.
        if !manifest_path.exists() {
            reject_foreign(path)?;
        }
        let lock = take_lock(path)?;
        let manifest = match fs::read_to_string(&manifest_path) {
            Ok(text) => Manifest::parse(&text, &manifest_path)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let manifest = Manifest { engine: engine.to_owned(), versions_reserved_until: 0 };
                manifest.store(path)?;
                manifest
            }
            Err(cause) => return Err(Error::io("read", &manifest_path, cause)),
        };
        let directory = DataDirectory::new(path, engine, manifest, lock)?;
        // From now on the directory may contain data that no other directory contains, so klad must not remove it as a
        // checkpoint.
        unmark_checkpoint(path)?;
        Ok(directory)
    }

    /// Locks the existing data directory `path` for this process. Changes nothing in it except the process id in
    /// `LOCK`. A directory on a read-only file system is accepted too.
    ///
    /// # Errors
    /// [`Error`]. It is [`Error::Missing`] if there is no data directory.
    pub fn open_existing(path: &Path, engine: &str) -> Result<DataDirectory, Error> {
        let (manifest_path, text) = read_manifest(path)?;
        let lock = match take_lock(path) {
            Err(Error::Io { cause, .. }) if is_write_protected(&cause) => take_lock_read_only(path)?,
            taken => taken?,
        };
        DataDirectory::new(path, engine, Manifest::parse(&text, &manifest_path)?, lock)
    }

    fn new(path: &Path, engine: &str, manifest: Manifest, lock: FileLock) -> Result<DataDirectory, Error> {
        if manifest.engine != engine {
            let (found, asked) = (manifest.engine, engine.to_owned());
            return Err(Error::OtherEngine { path: path.to_owned(), found, asked });
        }
        Ok(DataDirectory(Arc::new(Inner { path: path.to_owned(), manifest: Mutex::new(manifest), lock })))
    }

    /// Checks that the path still leads to the directory that was opened: `LOCK` is the locked file, and `KLAD` exists.
    ///
    /// # Errors
    /// A message that says what is missing.
    pub fn still_there(&self) -> Result<(), String> {
        let inner = &*self.0;
        let gone = |what: &str| format!("the data directory {} was {what} while klad serves it", inner.path.display());
        let held = inner.lock.file().metadata().map_err(|error| error.to_string())?;
        match fs::metadata(inner.path.join(LOCK)) {
            Ok(found) if (found.dev(), found.ino()) == (held.dev(), held.ino()) => {}
            Ok(_) => return Err(gone("replaced by another one")),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(gone("moved or deleted")),
            // Any other error does not prove that the directory is gone.
            Err(_) => return Ok(()),
        }
        match fs::metadata(inner.path.join(MANIFEST)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(gone("emptied (KLAD is gone)")),
            _ => Ok(()),
        }
    }

    /// Makes the existing directory `target` a data directory of the same engine. All versions below `end` count as
    /// reserved in `target`. The change is durable on return.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn initialize_copy(&self, target: &Path, end: u64) -> Result<(), Error> {
        let lock = target.join(LOCK);
        File::create(&lock).map_err(|cause| Error::io("create", &lock, cause))?;
        Manifest { engine: self.0.manifest.lock().engine.clone(), versions_reserved_until: end }.store(target)
    }

    /// The path of the directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// Creates the engine's subdirectory if it does not exist, and returns its path.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn subdirectory(&self, name: &str) -> Result<PathBuf, Error> {
        let path = self.0.path.join(name);
        create_durably(&path)?;
        Ok(path)
    }

    /// The end of the reserved versions, exclusive. Any version below it may have been used.
    #[must_use]
    pub fn versions_reserved_until(&self) -> u64 {
        self.0.manifest.lock().versions_reserved_until
    }

    /// Reserves all versions below `end` on disk. A smaller `end` than before has no effect.
    ///
    /// # Errors
    /// [`Error::Io`]. The caller must then not use the new versions.
    pub fn reserve_versions_until(&self, end: u64) -> Result<(), Error> {
        let mut manifest = self.0.manifest.lock();
        if end <= manifest.versions_reserved_until {
            return Ok(());
        }
        let next = Manifest { engine: manifest.engine.clone(), versions_reserved_until: end };
        next.store(&self.0.path)?;
        *manifest = next;
        Ok(())
    }
}

impl Manifest {
    fn parse(text: &str, path: &Path) -> Result<Manifest, Error> {
        let damaged = |why: String| Error::Damaged { path: path.to_owned(), why };
        let field = |name: &'static str| {
            let prefix = format!("{name} = ");
            text.lines()
                .find_map(|line| line.strip_prefix(&prefix))
                .ok_or_else(|| damaged(format!("it has no line {prefix:?}")))
        };
        // The format is read first, because the other lines of a newer format may have another meaning.
        let format = field("format")?;
        if format != FORMAT.to_string() {
            return Err(Error::NewerFormat { path: path.to_owned(), format: format.to_owned() });
        }
        let reserved = field("versions_reserved_until")?;
        let versions_reserved_until =
            reserved.parse().map_err(|error| damaged(format!("versions_reserved_until = {reserved}: {error}")))?;
        Ok(Manifest { engine: field("engine")?.to_owned(), versions_reserved_until })
    }

    /// Replaces the manifest atomically: writes a new file, syncs it, renames it, and syncs the directory. After a
    /// power cut either the old or the new manifest is there.
    fn store(&self, directory: &Path) -> Result<(), Error> {
        let path = directory.join(MANIFEST);
        let temporary = directory.join(format!("{MANIFEST}.new"));
        let text = format!(
            "# The identity of a klad data directory; see docs/storage-format.md. Do not edit.\n\
             format = {FORMAT}\nengine = {}\nversions_reserved_until = {}\n",
            self.engine, self.versions_reserved_until
        );
        let write = || {
            let mut file = File::create(&temporary)?;
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            fs::rename(&temporary, &path)?;
            File::open(directory)?.sync_all()
        };
        write().map_err(|cause| Error::io("write", &path, cause))
    }
}

/// The name of the engine that wrote the data directory `path`. Does not lock the directory.
///
/// # Errors
/// [`Error`]. It is [`Error::Missing`] if there is no data directory.
pub fn engine_of(path: &Path) -> Result<String, Error> {
    let (manifest_path, text) = read_manifest(path)?;
    Manifest::parse(&text, &manifest_path).map(|manifest| manifest.engine)
}

/// Reads the manifest of the data directory `path`. Returns the path of the manifest and its text.
fn read_manifest(path: &Path) -> Result<(PathBuf, String), Error> {
    let manifest_path = path.join(MANIFEST);
    match fs::read_to_string(&manifest_path) {
        Ok(text) => Ok((manifest_path, text)),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            Err(Error::Missing { path: path.to_owned() })
        }
        Err(cause) => Err(Error::io("read", &manifest_path, cause)),
    }
}

/// Creates a directory and its parents durably: after each creation it syncs the parent directory, which contains the
/// new name.
pub(crate) fn create_durably(path: &Path) -> Result<(), Error> {
    if path.is_dir() {
        return Ok(());
    }
    // `is_dir` is checked again because another process may have created the directory since the first check.
    if path.exists() && !path.is_dir() {
        return Err(Error::NotADirectory { path: path.to_owned() });
    }
    // The target of a dangling link is not created: it may be on a disk that is not mounted yet.
    if let Ok(target) = path.read_link()
        && !path.exists()
    {
        return Err(Error::DanglingLink { path: path.to_owned(), target });
    }
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    if parent != path {
        create_durably(parent)?;
    }
    match fs::create_dir(path) {
        // Another klad has created the directory meanwhile: two klads may have the same directory of checkpoints.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => {}
        made => made.map_err(|cause| Error::io("create", path, cause))?,
    }
    File::open(parent).and_then(|parent| parent.sync_all()).map_err(|cause| Error::io("sync", parent, cause))
}

/// Marks the data directory `directory` as a checkpoint; durable on return.
///
/// # Errors
/// [`Error::Io`].
#[cfg(feature = "rocksdb")]
pub(crate) fn mark_checkpoint(directory: &Path) -> Result<(), Error> {
    let path = directory.join(CHECKPOINT);
    let text = "This is a checkpoint that klad made; klad removes this file when it serves the directory.\n";
    let write = || {
        let mut file = File::create(&path)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        File::open(directory)?.sync_all()
    };
    write().map_err(|cause| Error::io("write", &path, cause))
}

/// Returns whether `directory` is a checkpoint that klad has never served.
#[must_use]
pub fn is_checkpoint(directory: &Path) -> bool {
    directory.join(CHECKPOINT).is_file() && directory.join(MANIFEST).is_file()
}

fn unmark_checkpoint(directory: &Path) -> Result<(), Error> {
    let path = directory.join(CHECKPOINT);
    match fs::remove_file(&path) {
        Ok(()) => File::open(directory)
            .and_then(|opened| opened.sync_all())
            .map_err(|cause| Error::io("sync", directory, cause)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(cause) => Err(Error::io("remove", &path, cause)),
    }
}

fn take_lock(directory: &Path) -> Result<FileLock, Error> {
    let path = directory.join(LOCK);
    let mut options = OpenOptions::new();
    let file = options
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(&path)
        .map_err(|cause| Error::io("open", &path, cause))?;
    let lock = lock_file(file, directory)?;
    let mut file = lock.file();
    // The process id is only used in the message of `Error::InUse`, so a failure to write it is ignored.
    let _ = file.set_len(0).and_then(|()| file.rewind()).and_then(|()| writeln!(file, "{}", std::process::id()));
    Ok(lock)
}

/// As `take_lock`, but writes nothing, for a directory that this process cannot write to. The lock still excludes a
/// process that can write to the directory.
fn take_lock_read_only(directory: &Path) -> Result<FileLock, Error> {
    let path = directory.join(LOCK);
    let file = match File::open(&path) {
        // There is no lock file if klad has never served the directory. klad then locks the directory itself.
        Err(error) if error.kind() == io::ErrorKind::NotFound => File::open(directory),
        opened => opened,
    };
    lock_file(file.map_err(|cause| Error::io("open", &path, cause))?, directory)
}

fn lock_file(file: File, directory: &Path) -> Result<FileLock, Error> {
    match FileLock::take(file) {
        Ok(lock) => Ok(lock),
        Err(TryLockError::WouldBlock) => {
            let process = fs::read_to_string(directory.join(LOCK)).unwrap_or_default();
            let process = if process.trim().is_empty() { "unknown" } else { process.trim() };
            Err(Error::InUse { path: directory.to_owned(), process: process.to_owned() })
        }
        Err(TryLockError::Error(cause)) => Err(Error::io("lock", &directory.join(LOCK), cause)),
    }
}

fn is_write_protected(cause: &io::Error) -> bool {
    matches!(cause.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem)
}

/// The advice for some of the kernel's errors, appended to the message.
fn advice(cause: &io::Error) -> String {
    match cause.kind() {
        io::ErrorKind::PermissionDenied => format!(
            "; klad runs as user {}: let that user read and write it, or give another --data",
            rustix::process::geteuid().as_raw()
        ),
        io::ErrorKind::ReadOnlyFilesystem => {
            "; its file system is read-only: mount it writable, or give another --data".to_owned()
        }
        io::ErrorKind::StorageFull => "; its file system is full: free disk space, and start again".to_owned(),
        _ => String::new(),
    }
}

/// Rejects a directory with files of other programs. Files that an interrupted first start may leave are accepted.
fn reject_foreign(path: &Path) -> Result<(), Error> {
    let entries = fs::read_dir(path).map_err(|cause| Error::io("read", path, cause))?;
    for entry in entries {
        let name = entry.map_err(|cause| Error::io("read", path, cause))?.file_name();
        let ours = [LOCK, "KLAD.new", "lost+found"];
        if !ours.iter().any(|own| name == *own) {
            return Err(Error::NotKlad { path: path.to_owned() });
        }
    }
    Ok(())
}

impl Error {
    fn io(action: &'static str, path: &Path, cause: io::Error) -> Error {
        Error::Io { action, path: path.to_owned(), cause }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_threads_can_create_the_same_directory() {
        let place = tempfile::tempdir().expect("a directory");
        for round in 0..200 {
            let path = place.path().join(format!("{round}/deep"));
            std::thread::scope(|scope| {
                let makers: Vec<_> = (0..4).map(|_| scope.spawn(|| create_durably(&path))).collect();
                for maker in makers {
                    maker.join().expect("no panic").expect("it is there");
                }
            });
            assert!(path.is_dir());
        }
    }

    #[test]
    fn the_error_of_a_second_process_names_the_first() {
        let temporary = tempfile::tempdir().expect("a temporary directory");
        let first = DataDirectory::open(temporary.path(), "rocksdb").expect("free");
        let second = DataDirectory::open(temporary.path(), "rocksdb").expect_err("taken");
        assert!(second.to_string().contains(&std::process::id().to_string()), "{second}");
        drop(first);
        DataDirectory::open(temporary.path(), "rocksdb").expect("free again");
    }

    #[test]
    fn foreign_and_newer_directories_are_rejected() {
        let temporary = tempfile::tempdir().expect("a temporary directory");
        fs::write(temporary.path().join("holiday.jpg"), b"").expect("written");
        let error = DataDirectory::open(temporary.path(), "rocksdb").expect_err("foreign");
        assert!(matches!(error, Error::NotKlad { .. }), "{error}");
        assert_eq!(fs::read_dir(temporary.path()).expect("there").count(), 1, "nothing was added");

        fs::write(temporary.path().join(MANIFEST), "format = 2\nsomething = new\n").expect("written");
        let error = DataDirectory::open(temporary.path(), "rocksdb").expect_err("newer");
        assert!(matches!(error, Error::NewerFormat { .. }), "{error}");

        fs::write(temporary.path().join(MANIFEST), "format = 1\n").expect("written");
        let error = DataDirectory::open(temporary.path(), "rocksdb").expect_err("damaged");
        assert!(matches!(error, Error::Damaged { .. }), "{error}");
    }

    #[test]
    fn a_directory_of_another_engine_is_rejected() {
        let temporary = tempfile::tempdir().expect("a temporary directory");
        drop(DataDirectory::open(temporary.path(), "rocksdb").expect("free"));
        let error = DataDirectory::open(temporary.path(), "fjall").expect_err("another engine");
        assert!(matches!(error, Error::OtherEngine { .. }), "{error}");
    }
}
