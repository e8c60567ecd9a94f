//! The data directory: who may use it, what is in it, and the two facts that must outlive everything else.
//!
//! ```text
//!   data/KLAD       format, engine and reserved versions; replaced as a whole, synced
//!   data/LOCK       held by the process that serves the directory
//!   data/CHECKPOINT says that it is a checkpoint that nobody has served; only those are listed and removed
//!   data/SYNCED     how far the log is synced (high_water.rs)
//!   data/rocksdb/   the engine's own files; data/fjall/ with that engine
//! ```
//!
//! A directory is never taken from under whoever serves it without a word: [`DataDirectory::still_there`] tells when it was
//! moved or deleted. `docs/storage-format.md` describes `KLAD`. Called by `versions` and by the engines that keep files.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use klad_base::sync::Mutex;

/// The layout that this klad writes, and the only one that it reads.
pub const FORMAT: u32 = 1;

const MANIFEST: &str = "KLAD";
const LOCK: &str = "LOCK";

/// The file that tells a checkpoint from the data of a klad: what has it may be removed when a client asks for that.
pub const CHECKPOINT: &str = "CHECKPOINT";

/// A data directory that this process holds; the lock ends with the last clone.
#[derive(Clone, Debug)]
pub struct DataDirectory(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    path: PathBuf,
    manifest: Mutex<Manifest>,
    /// Locked by the kernel for as long as it is open, whatever way the process ends.
    lock: File,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Manifest {
    engine: String,
    versions_reserved_until: u64,
}

/// Why a data directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel said no.
    #[error("cannot {action} {}: {cause}{}", path.display(), advice(cause))]
    Io {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// The kernel's answer.
        cause: io::Error,
    },
    /// Another process serves the directory.
    #[error("{} is in use by another process (process id {process})", path.display())]
    InUse {
        /// The directory.
        path: PathBuf,
        /// As that process wrote it down.
        process: String,
    },
    /// Something else has the directory's name.
    #[error("{} is not a directory: give --data a directory, or the name of one that klad may make", path.display())]
    NotADirectory {
        /// What is there.
        path: PathBuf,
    },
    /// A link to nothing has the directory's name.
    #[error("{} is a link to {}, and nothing is there: mount or make that first, or give --data another directory", path.display(), target.display())]
    DanglingLink {
        /// The link.
        path: PathBuf,
        /// What it names.
        target: PathBuf,
    },
    /// There is nothing to look at.
    #[error("{} holds no {MANIFEST} file: it is not a klad data directory", path.display())]
    Missing {
        /// As given.
        path: PathBuf,
    },
    /// The directory holds something, but not klad's data.
    #[error("{} is not empty and holds no {MANIFEST} file: it is not a klad data directory", path.display())]
    NotKlad {
        /// The directory.
        path: PathBuf,
    },
    /// Written by a newer klad.
    #[error("{} has format {format}, this klad reads format {FORMAT}: use the klad that wrote it, or a newer one", path.display())]
    NewerFormat {
        /// The manifest.
        path: PathBuf,
        /// What it says.
        format: String,
    },
    /// Written by another engine.
    #[error("{} was written by --engine {found}, it cannot be opened with --engine {asked}", path.display())]
    OtherEngine {
        /// The directory.
        path: PathBuf,
        /// What the manifest says.
        found: String,
        /// What was asked for.
        asked: String,
    },
    /// The manifest is not one.
    #[error("{} is damaged: {why}", path.display())]
    Damaged {
        /// The manifest.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
}

impl DataDirectory {
    /// Takes `path` for this process and `engine`, and makes it when it is missing or empty.
    ///
    /// # Errors
    /// [`Error`]; nobody else's directory was changed then.
    pub fn open(path: &Path, engine: &str) -> Result<DataDirectory, Error> {
        create_durably(path)?;
        let manifest_path = path.join(MANIFEST);
        // Before anything is written into it.
        if !manifest_path.exists() {
            refuse_foreign(path)?;
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
        let held = DataDirectory::held(path, engine, manifest, lock)?;
        // From now on it holds what nothing else may hold: no checkpoint any more.
        unmark_checkpoint(path)?;
        Ok(held)
    }

    /// Takes `path` for this process without making or changing anything in it but the process id in `LOCK`; a directory
    /// that cannot be written, as on a medium that is read-only, is taken too.
    ///
    /// # Errors
    /// [`Error`]; [`Error::Missing`] when there is no data directory.
    pub fn open_existing(path: &Path, engine: &str) -> Result<DataDirectory, Error> {
        let manifest_path = path.join(MANIFEST);
        let text = match fs::read_to_string(&manifest_path) {
            Ok(text) => text,
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                return Err(Error::Missing { path: path.to_owned() });
            }
            Err(cause) => return Err(Error::io("read", &manifest_path, cause)),
        };
        let lock = match take_lock(path) {
            Err(Error::Io { cause, .. }) if is_write_protected(&cause) => take_lock_unwritten(path)?,
            taken => taken?,
        };
        DataDirectory::held(path, engine, Manifest::parse(&text, &manifest_path)?, lock)
    }

    fn held(path: &Path, engine: &str, manifest: Manifest, lock: File) -> Result<DataDirectory, Error> {
        if manifest.engine != engine {
            let (found, asked) = (manifest.engine, engine.to_owned());
            return Err(Error::OtherEngine { path: path.to_owned(), found, asked });
        }
        Ok(DataDirectory(Arc::new(Inner { path: path.to_owned(), manifest: Mutex::new(manifest), lock })))
    }

    /// Whether the directory that was opened still is what its path names: `LOCK` the same file as the one that is held,
    /// and `KLAD` beside it.
    ///
    /// # Errors
    /// What is missing, in words.
    pub fn still_there(&self) -> Result<(), String> {
        let inner = &*self.0;
        let gone = |what: &str| format!("the data directory {} was {what} while klad serves it", inner.path.display());
        let held = inner.lock.metadata().map_err(|error| error.to_string())?;
        match fs::metadata(inner.path.join(LOCK)) {
            Ok(found) if (found.dev(), found.ino()) == (held.dev(), held.ino()) => {}
            Ok(_) => return Err(gone("replaced by another one")),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(gone("moved or deleted")),
            // The kernel cannot tell now, which is no proof.
            Err(_) => return Ok(()),
        }
        match fs::metadata(inner.path.join(MANIFEST)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(gone("emptied (KLAD is gone)")),
            _ => Ok(()),
        }
    }

    /// Makes `target`, an existing directory, a data directory of the same engine, in which all versions below `end` count
    /// as used; durable on return.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn found_copy(&self, target: &Path, end: u64) -> Result<(), Error> {
        let lock = target.join(LOCK);
        File::create(&lock).map_err(|cause| Error::io("create", &lock, cause))?;
        Manifest { engine: self.0.manifest.lock().engine.clone(), versions_reserved_until: end }.store(target)
    }

    /// The directory itself.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// Makes the engine's own directory inside, where it is not there yet.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn subdirectory(&self, name: &str) -> Result<PathBuf, Error> {
        let path = self.0.path.join(name);
        create_durably(&path)?;
        Ok(path)
    }

    /// Every version below was reserved, and perhaps used, before this start.
    #[must_use]
    pub fn versions_reserved_until(&self) -> u64 {
        self.0.manifest.lock().versions_reserved_until
    }

    /// Makes durable that all versions below `end` may be used; never goes back.
    ///
    /// # Errors
    /// [`Error::Io`]; the reservation must then be taken as not made.
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
        // The format first: what a newer klad wrote behind it may mean anything.
        let format = field("format")?;
        if format != FORMAT.to_string() {
            return Err(Error::NewerFormat { path: path.to_owned(), format: format.to_owned() });
        }
        let reserved = field("versions_reserved_until")?;
        let versions_reserved_until =
            reserved.parse().map_err(|error| damaged(format!("versions_reserved_until = {reserved}: {error}")))?;
        Ok(Manifest { engine: field("engine")?.to_owned(), versions_reserved_until })
    }

    /// Writes the manifest beside the old one, syncs it, puts it in place, syncs the directory: after a power cut either
    /// the old or the new one is there, whole.
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

/// Makes a directory, and those above it, so that they are still there after a power cut: a new name is durable when the
/// directory that holds it is synced.
pub(crate) fn create_durably(path: &Path) -> Result<(), Error> {
    if path.is_dir() {
        return Ok(());
    }
    // Asked again: it may have come since.
    if path.exists() && !path.is_dir() {
        return Err(Error::NotADirectory { path: path.to_owned() });
    }
    // To make what it names would be to guess: a disk may not be mounted yet.
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
        // Another klad has, since this one looked: two may share the directory of their checkpoints.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => {}
        made => made.map_err(|cause| Error::io("create", path, cause))?,
    }
    File::open(parent).and_then(|parent| parent.sync_all()).map_err(|cause| Error::io("sync", parent, cause))
}

/// Says of `directory`, a data directory, that it is a checkpoint; durable on return.
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

/// Whether `directory` is a checkpoint: not the data of a klad that serves it, or has served it.
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

fn take_lock(directory: &Path) -> Result<File, Error> {
    let path = directory.join(LOCK);
    let mut options = OpenOptions::new();
    let mut file = options
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(&path)
        .map_err(|cause| Error::io("open", &path, cause))?;
    lock_file(&mut file, directory)?;
    // Only for the message above, so a failure is no reason not to serve.
    let _ = file.set_len(0).and_then(|()| file.rewind()).and_then(|()| writeln!(file, "{}", std::process::id()));
    Ok(file)
}

/// The same where nothing can be written: nobody can serve the directory from here then, but perhaps from elsewhere.
fn take_lock_unwritten(directory: &Path) -> Result<File, Error> {
    let path = directory.join(LOCK);
    match File::open(&path) {
        Ok(mut file) => lock_file(&mut file, directory).map(|()| file),
        // Never served under this name, and never will be: the directory itself stands for the lock.
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            File::open(directory).map_err(|cause| Error::io("open", directory, cause))
        }
        Err(cause) => Err(Error::io("open", &path, cause)),
    }
}

fn lock_file(file: &mut File, directory: &Path) -> Result<(), Error> {
    match file.try_lock() {
        Ok(()) => Ok(()),
        Err(TryLockError::WouldBlock) => {
            let mut process = String::new();
            let _ = file.read_to_string(&mut process);
            let process = if process.trim().is_empty() { "unknown" } else { process.trim() };
            Err(Error::InUse { path: directory.to_owned(), process: process.to_owned() })
        }
        Err(TryLockError::Error(cause)) => Err(Error::io("lock", &directory.join(LOCK), cause)),
    }
}

fn is_write_protected(cause: &io::Error) -> bool {
    matches!(cause.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem)
}

/// What to do about the kernel's answer, where that can be said.
fn advice(cause: &io::Error) -> String {
    match cause.kind() {
        io::ErrorKind::PermissionDenied => format!(
            "; klad runs as user {}: let that user read and write it, or give another --data",
            rustix::process::geteuid().as_raw()
        ),
        io::ErrorKind::ReadOnlyFilesystem => {
            "; its file system is read-only: mount it writable, or give another --data".to_owned()
        }
        io::ErrorKind::StorageFull => "; its file system is full: make room, and start again".to_owned(),
        _ => String::new(),
    }
}

/// Refuses a directory in which somebody else's files lie. What an interrupted first start may leave is no reason.
fn refuse_foreign(path: &Path) -> Result<(), Error> {
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
    fn a_directory_that_another_makes_meanwhile_is_there_for_both() {
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
    fn second_owner_is_told_who_the_first_is() {
        let temporary = tempfile::tempdir().expect("a temporary directory");
        let first = DataDirectory::open(temporary.path(), "rocksdb").expect("free");
        let second = DataDirectory::open(temporary.path(), "rocksdb").expect_err("taken");
        assert!(second.to_string().contains(&std::process::id().to_string()), "{second}");
        drop(first);
        DataDirectory::open(temporary.path(), "rocksdb").expect("free again");
    }

    #[test]
    fn foreign_and_newer_directories_are_refused() {
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
    fn another_engine_is_refused() {
        let temporary = tempfile::tempdir().expect("a temporary directory");
        drop(DataDirectory::open(temporary.path(), "rocksdb").expect("free"));
        let error = DataDirectory::open(temporary.path(), "fjall").expect_err("another engine");
        assert!(matches!(error, Error::OtherEngine { .. }), "{error}");
    }
}
