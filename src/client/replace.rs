//! Files that hold all of a result, or what they held before. Called by `commands` and `profile`.
//!
//! ```text
//!   a file without a name ── written ──▶ .NAME.PID.part ── renamed ──▶ NAME
//! ```
//!
//! The file has no name while it is written, so that nothing of it is left when the command is ended in between, as by Ctrl-C.
//! Where the file system knows no such files, it has its name from the beginning.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Seek as _, Write};
use std::path::{Path, PathBuf};

use crate::client::Error;
use crate::client::commands::Ending;

/// As many symbolic links, one behind the other, as Linux itself follows.
const LINKS_MAX: usize = 40;

/// Writes `bytes` to `path`, which holds all of them or what it held before.
///
/// # Errors
/// [`Error::File`].
pub(super) fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    write_file(path, |file, failed| file.write_all(bytes).map_err(|why| Ending::Sink(failed(why))))
}

/// Has `copy` write what `path` is to hold: all of it, or what it held before. What is no regular file, as /dev/null or a pipe,
/// is written as it is. A symbolic link stays one: the file that it names is the one that is written. Where a file is mounted at
/// `path`, as into a container, its bytes are replaced, and whoever reads meanwhile may see a part.
///
/// # Errors
/// [`Error::File`], and what `copy` says.
pub(super) fn write_file(
    path: &Path,
    copy: impl FnOnce(&mut dyn Write, &dyn Fn(io::Error) -> Error) -> Result<(), Ending>,
) -> Result<(), Error> {
    let failed = |why| Error::File { what: format!("cannot write {}", path.display()), why };
    let path = &behind_links(path).map_err(failed)?;
    if std::fs::metadata(path).is_ok_and(|facts| !facts.is_file()) {
        let mut file = File::options().write(true).open(path).map_err(failed)?;
        return copy(&mut file, &failed).map_err(Error::from);
    }
    let mut part = Part::beside(path).map_err(failed)?;
    copy(&mut part.file, &failed).map_err(Error::from)?;
    part.replace(path).map_err(failed)
}

/// What is to replace a file. Dropping it takes it away.
struct Part {
    file: File,
    /// What it is called before it replaces the other.
    name: PathBuf,
    /// Whether it is called so by now.
    has_name: bool,
}

impl Part {
    fn beside(path: &Path) -> io::Result<Part> {
        // It carries the process: two at once do not meet.
        let mut name = OsStr::new(".").to_owned();
        name.push(path.file_name().unwrap_or_default());
        name.push(format!(".{}.part", std::process::id()));
        let name = path.with_file_name(name);
        if let Some(file) = unnamed::create(path) {
            return Ok(Part { file, name, has_name: false });
        }
        let file = File::options().read(true).write(true).create_new(true).open(&name)?;
        Ok(Part { file, name, has_name: true })
    }

    fn replace(mut self, path: &Path) -> io::Result<()> {
        if !self.has_name {
            unnamed::name(&self.file, &self.name)?;
            self.has_name = true;
        }
        match std::fs::rename(&self.name, path) {
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => self.copy_into(path),
            Err(error) => Err(error),
            Ok(()) => {
                self.has_name = false;
                Ok(())
            }
        }
    }

    fn copy_into(&mut self, path: &Path) -> io::Result<()> {
        self.file.rewind()?;
        let mut file = File::options().write(true).truncate(true).open(path)?;
        io::copy(&mut self.file, &mut file).map(drop)
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        if self.has_name {
            // The error that is reported is the one that came first.
            let _ = std::fs::remove_file(&self.name);
        }
    }
}

/// The name at the end of the symbolic links that `path` names, whether or not there is a file of that name.
fn behind_links(path: &Path) -> io::Result<PathBuf> {
    let mut path = path.to_owned();
    for _ in 0..LINKS_MAX {
        match std::fs::read_link(&path) {
            // Links of directories on the way are the kernel's to follow, as is what `..` means behind one.
            Ok(target) => path = path.parent().unwrap_or(Path::new("")).join(target),
            // No link, or nothing at all.
            Err(_) => return Ok(path),
        }
    }
    Err(rustix::io::Errno::LOOP.into())
}

#[cfg(target_os = "linux")]
mod unnamed {
    use std::fs::File;
    use std::io;
    use std::os::fd::AsRawFd as _;
    use std::os::unix::fs::OpenOptionsExt as _;
    use std::path::Path;

    use rustix::fs::{AtFlags, CWD};

    /// A file in the directory of `path`. `None` where the file system has none of them, or where it could get no name.
    pub(super) fn create(path: &Path) -> Option<File> {
        let directory = path.parent().filter(|directory| !directory.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let file = File::options().read(true).write(true).custom_flags(libc::O_TMPFILE).open(directory).ok()?;
        Path::new(&itself(&file)).exists().then_some(file)
    }

    pub(super) fn name(file: &File, name: &Path) -> io::Result<()> {
        rustix::fs::linkat(CWD, itself(file), CWD, name, AtFlags::SYMLINK_FOLLOW).map_err(io::Error::from)
    }

    fn itself(file: &File) -> String {
        format!("/proc/self/fd/{}", file.as_raw_fd())
    }
}

#[cfg(not(target_os = "linux"))]
mod unnamed {
    use std::fs::File;
    use std::io;
    use std::path::Path;

    pub(super) fn create(_: &Path) -> Option<File> {
        None
    }

    pub(super) fn name(_: &File, _: &Path) -> io::Result<()> {
        unreachable!("there is none")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(directory: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(directory).expect("a directory");
        entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("text")).collect()
    }

    #[test]
    fn nothing_has_a_name_before_it_is_whole() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("out");
        std::fs::write(&path, "before").expect("it is written");
        for text in ["one", "other"] {
            write_file(&path, |file, _| {
                file.write_all(text.as_bytes()).expect("there is room");
                if unnamed::create(&path).is_some() {
                    assert_eq!(names(directory.path()), ["out"]);
                }
                assert_ne!(std::fs::read_to_string(&path).expect("it is there"), text);
                Ok(())
            })
            .expect("it is replaced");
            assert_eq!(std::fs::read_to_string(&path).expect("it is there"), text);
        }
        let stopped = write_file(&path, |file, failed| {
            file.write_all(b"half").expect("there is room");
            Err(Ending::Sink(failed(io::Error::other("stopped"))))
        });
        assert!(stopped.is_err());
        assert_eq!(std::fs::read_to_string(&path).expect("it is there"), "other");
        assert_eq!(names(directory.path()), ["out"]);
    }

    #[test]
    fn a_file_that_has_its_name_from_the_beginning_is_taken_away_as_well() {
        let directory = tempfile::tempdir().expect("a directory");
        let name = directory.path().join(".out.1.part");
        let file = File::create(&name).expect("there is room");
        let part = Part { file, name: name.clone(), has_name: true };
        drop(part);
        assert_eq!(names(directory.path()), Vec::<String>::new());
        let file = File::create(&name).expect("there is room");
        Part { file, name, has_name: true }.replace(&directory.path().join("out")).expect("it is replaced");
        assert_eq!(names(directory.path()), ["out"]);
    }
}
