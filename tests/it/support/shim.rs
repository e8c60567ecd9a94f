//! A preloaded library between klad and the kernel. It delays or fails the syncs and writes of an engine's log, and
//! can delay the syncs of RocksDB's tables and of checkpoints. The test that uses it compiles it from `shim.c`.

use std::path::PathBuf;

use tempfile::TempDir;

use super::programs::compile_library;
use super::{ServerBuilder, wait_until};

/// Controls the library with files, which it reads at each call.
pub(crate) struct Shim {
    directory: TempDir,
}

impl Shim {
    pub(crate) fn new() -> Shim {
        let directory = tempfile::tempdir().unwrap();
        compile_library("shim.c", &directory.path().join("shim.so"));
        let shim = Shim { directory };
        shim.pass();
        shim
    }

    /// Returns `builder` with the library preloaded.
    pub(crate) fn preload(&self, builder: ServerBuilder) -> ServerBuilder {
        let path = |name: &str| self.path(name).to_str().unwrap().to_owned();
        builder.preload(&path("shim.so")).env("KLAD_TEST_SHIM", self.directory.path().to_str().unwrap())
    }

    /// Makes syncs wait until the mode changes.
    pub(crate) fn hold(&self) {
        self.set("hold");
    }

    /// Makes syncs of tables wait until the mode changes, so that no flush ends.
    pub(crate) fn hold_tables(&self) {
        self.set("hold-tables");
    }

    /// Makes each sync take 5 ms longer.
    pub(crate) fn slow(&self) {
        self.set("slow");
    }

    /// Returns the number of syncs so far.
    pub(crate) fn syncs(&self) -> u64 {
        std::fs::metadata(self.path("syncs")).map_or(0, |file| file.len())
    }

    /// Makes each write take 300 ms longer.
    pub(crate) fn slow_writes(&self) {
        self.set("slow-write");
    }

    /// Makes each write take 300 ms longer, and syncs fail with EIO.
    pub(crate) fn slow_writes_and_fail_syncs(&self) {
        self.set("slow-write-fail-sync");
    }

    /// Makes syncs fail with EIO.
    pub(crate) fn fail_syncs(&self) {
        self.set("fail-sync");
    }

    /// Makes writes fail with EIO.
    pub(crate) fn fail_writes(&self) {
        self.set("fail-write");
    }

    /// Makes writes write a part of their bytes and then fail with ENOSPC.
    pub(crate) fn fill_disk(&self) {
        self.set("full-disk");
    }

    /// Makes syncs of a checkpoint in progress wait until the mode changes.
    pub(crate) fn hold_checkpoints(&self) {
        self.set("hold-checkpoint");
    }

    /// Passes all calls to the kernel unchanged.
    pub(crate) fn pass(&self) {
        self.set("pass");
    }

    /// Waits until a sync is held.
    pub(crate) fn wait_until_held(&self) {
        wait_until("a sync is held", || self.path("held").exists());
    }

    fn set(&self, mode: &str) {
        let _ = std::fs::remove_file(self.path("held"));
        // Replaced atomically, so that the library never reads a part of a word.
        std::fs::write(self.path("mode.new"), mode).unwrap();
        std::fs::rename(self.path("mode.new"), self.path("mode")).unwrap();
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }
}
