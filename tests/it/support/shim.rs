//! A preloaded library between klad and the kernel that holds or fails the syncs and writes of an engine's log, or holds the
//! syncs of RocksDB's tables, and nothing else; compiled from `shim.c` for the test that uses it.

use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use super::{ServerBuilder, wait_until};

/// Controls the library through files, which it reads at each call.
pub(crate) struct Shim {
    directory: TempDir,
}

impl Shim {
    pub(crate) fn new() -> Shim {
        let directory = tempfile::tempdir().unwrap();
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/support/shim.c");
        let compiled = Command::new("cc")
            .args(["-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o"])
            .arg(directory.path().join("shim.so"))
            .arg(source)
            .arg("-ldl")
            .status()
            .expect("a C compiler, which building klad needs anyway");
        assert!(compiled.success(), "the shim does not compile");
        let shim = Shim { directory };
        shim.pass();
        shim
    }

    /// `builder`, under the shim.
    pub(crate) fn preload(&self, builder: ServerBuilder) -> ServerBuilder {
        let path = |name: &str| self.path(name).to_str().unwrap().to_owned();
        builder.env("LD_PRELOAD", &path("shim.so")).env("KLAD_TEST_SHIM", self.directory.path().to_str().unwrap())
    }

    /// Syncs wait until the mode changes.
    pub(crate) fn hold(&self) {
        self.set("hold");
    }

    /// Syncs of tables wait until the mode changes: no flush ends.
    pub(crate) fn hold_tables(&self) {
        self.set("hold-tables");
    }

    /// Each sync takes 5 ms longer.
    pub(crate) fn slow(&self) {
        self.set("slow");
    }

    /// Syncs that were asked for so far.
    pub(crate) fn syncs(&self) -> u64 {
        std::fs::metadata(self.path("syncs")).map_or(0, |file| file.len())
    }

    /// Each write takes 300 ms longer.
    pub(crate) fn slow_writes(&self) {
        self.set("slow-write");
    }

    /// Each write takes 300 ms longer, and syncs fail with EIO.
    pub(crate) fn slow_writes_and_fail_syncs(&self) {
        self.set("slow-write-fail-sync");
    }

    /// Syncs fail with EIO.
    pub(crate) fn fail_syncs(&self) {
        self.set("fail-sync");
    }

    /// Writes fail with EIO.
    pub(crate) fn fail_writes(&self) {
        self.set("fail-write");
    }

    /// Writes take a part of what they are given, and fail with ENOSPC in the end.
    pub(crate) fn fill_disk(&self) {
        self.set("full-disk");
    }

    /// Syncs of a checkpoint that is being made wait until the mode changes.
    pub(crate) fn hold_checkpoints(&self) {
        self.set("hold-checkpoint");
    }

    /// Everything goes to the kernel.
    pub(crate) fn pass(&self) {
        self.set("pass");
    }

    /// Waits until a sync is being held.
    pub(crate) fn wait_until_held(&self) {
        wait_until("a sync is held", || self.path("held").exists());
    }

    fn set(&self, mode: &str) {
        let _ = std::fs::remove_file(self.path("held"));
        // Replaced as a whole, so that the library never reads half a word.
        std::fs::write(self.path("mode.new"), mode).unwrap();
        std::fs::rename(self.path("mode.new"), self.path("mode")).unwrap();
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }
}
