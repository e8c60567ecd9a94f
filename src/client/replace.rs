//! Replaces files atomically: a file contains the whole result, or its previous content. Called by `commands`,
//! `import_state` and `profile`.
//!
//! ```text
//!   unnamed file (O_TMPFILE) ── written, linked ──▶ .NAME.PID.part ── renamed ──▶ NAME
//! ```
//!
//! The file has no name while it is written, so that nothing is left if the command is interrupted. If the file
//! system does not support this, the file has the name `.NAME.PID.part` from the beginning.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Seek as _, Write};
use std::path::{Path, PathBuf};

use crate::client::Error;
use crate::client::output::CopyError;

/// Maximum length of a chain of symbolic links, as in Linux.
const LINKS_MAX: usize = 40;

/// Replaces the content of `path` with `bytes`, as a whole or not at all, with the exceptions of [`write_file`].
///
/// # Errors
/// [`Error::File`].
pub(super) fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    write_file(path, |file, failed| file.write_all(bytes).map_err(|why| CopyError::Sink(failed(why))))
}

/// Replaces the content of `path` with what `copy` writes, as a whole or not at all.
///
/// * A file that is not regular, such as /dev/null or a pipe, is written directly.
/// * A symbolic link stays: its target is replaced.
/// * A file that is a mount point, as in a container, is overwritten in place, and readers may see a part meanwhile.
///
/// # Errors
/// [`Error::File`], or the error of `copy`.
pub(super) fn write_file(
    path: &Path,
    copy: impl FnOnce(&mut dyn Write, &dyn Fn(io::Error) -> Error) -> Result<(), CopyError>,
) -> Result<(), Error> {
    let failed = |why| Error::File { what: format!("cannot write {}", path.display()), why };
    let path = &resolve_links(path).map_err(failed)?;
    if std::fs::metadata(path).is_ok_and(|facts| !facts.is_file()) {
        let mut file = File::options().write(true).open(path).map_err(failed)?;
        return copy(&mut file, &failed).map_err(Error::from);
    }
    let mut part = Part::beside(path).map_err(failed)?;
    copy(&mut part.file, &failed).map_err(Error::from)?;
    part.replace(path).map_err(failed)
}

/// The new file that will replace the old one. Dropping it deletes the new file, unless it has replaced the old one.
struct Part {
    file: File,
    /// The temporary name, before the new file replaces the old one.
    name: PathBuf,
    /// Whether the new file has this name now.
    has_name: bool,
}

impl Part {
    fn beside(path: &Path) -> io::Result<Part> {
        // With the process id, so that two processes do not use the same name.
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
            // The caller reports an earlier error.
            let _ = std::fs::remove_file(&self.name);
        }
    }
}

/// Returns the target of the symbolic links at `path`, whether or not it exists.
fn resolve_links(path: &Path) -> io::Result<PathBuf> {
    let mut path = path.to_owned();
    for _ in 0..LINKS_MAX {
        match std::fs::read_link(&path) {
            // The kernel resolves links in the directories of the path, and `..` after them.
            Ok(target) => path = path.parent().unwrap_or(Path::new("")).join(target),
            // Not a link, or it does not exist.
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

    /// Creates an unnamed file in the directory of `path`. `None` if the file system has no unnamed files, or if
    /// /proc, which is needed to name it, is missing.
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
        unreachable!("`create` returns no file")
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
    fn a_file_has_no_name_before_it_is_complete() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("out");
        std::fs::write(&path, "before").expect("written");
        for text in ["one", "other"] {
            write_file(&path, |file, _| {
                file.write_all(text.as_bytes()).expect("free space");
                if unnamed::create(&path).is_some() {
                    assert_eq!(names(directory.path()), ["out"]);
                }
                assert_ne!(std::fs::read_to_string(&path).expect("present"), text);
                Ok(())
            })
            .expect("replaced");
            assert_eq!(std::fs::read_to_string(&path).expect("present"), text);
        }
        let stopped = write_file(&path, |file, failed| {
            file.write_all(b"half").expect("free space");
            Err(CopyError::Sink(failed(io::Error::other("stopped"))))
        });
        assert!(stopped.is_err());
        assert_eq!(std::fs::read_to_string(&path).expect("present"), "other");
        assert_eq!(names(directory.path()), ["out"]);
    }

    #[test]
    fn a_named_partial_file_is_deleted_as_well() {
        let directory = tempfile::tempdir().expect("a directory");
        let name = directory.path().join(".out.1.part");
        let file = File::create(&name).expect("free space");
        let part = Part { file, name: name.clone(), has_name: true };
        drop(part);
        assert_eq!(names(directory.path()), Vec::<String>::new());
        let file = File::create(&name).expect("free space");
        Part { file, name, has_name: true }.replace(&directory.path().join("out")).expect("replaced");
        assert_eq!(names(directory.path()), ["out"]);
    }
}
