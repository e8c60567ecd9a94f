//! A clock that a test steps: a preloaded library, compiled from `clock.c`, gives one process another wall clock. Its
//! other clocks stay the real ones. (libfaketime does the same, but not in a process with jemalloc.)

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;

use tempfile::TempDir;

use super::ServerBuilder;
use super::programs::compile_library;

/// The wall clock of the servers that it is preloaded into.
pub(crate) struct Clock {
    directory: TempDir,
    /// The offset, which the library maps into memory.
    file: File,
}

impl Clock {
    /// A clock that shows the real time.
    pub(crate) fn new() -> Clock {
        let directory = tempfile::tempdir().unwrap();
        compile_library("clock.c", &directory.path().join("clock.so"));
        let file = File::create(directory.path().join("offset")).unwrap();
        let clock = Clock { directory, file };
        clock.set_minutes(0);
        clock
    }

    /// Returns `builder` with this clock.
    pub(crate) fn preload(&self, builder: ServerBuilder) -> ServerBuilder {
        let path = |name: &str| self.path(name).to_str().unwrap().to_owned();
        builder.preload(&path("clock.so")).env("KLAD_TEST_CLOCK", &path("offset"))
    }

    /// Steps the clock to the real time plus so many minutes.
    pub(crate) fn set_minutes(&self, offset: i64) {
        self.file.write_all_at(&(offset * 60 * 1_000_000_000).to_ne_bytes(), 0).unwrap();
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }
}
