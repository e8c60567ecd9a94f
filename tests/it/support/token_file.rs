//! Token files of tests.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use super::ServerBuilder;

/// A token that may read and write.
pub(crate) const WRITER: &str = "writer-0123456789abcdef";

/// A token that may only read.
pub(crate) const READER: &str = "reader-0123456789abcdef";

/// A token file that a test changes.
pub(crate) struct TokenFile {
    path: PathBuf,
    _directory: tempfile::TempDir,
}

impl TokenFile {
    pub(crate) fn new(text: &str) -> TokenFile {
        let directory = tempfile::tempdir().unwrap();
        let file = TokenFile { path: directory.path().join("tokens"), _directory: directory };
        file.write(text);
        std::fs::set_permissions(&file.path, PermissionsExt::from_mode(0o600)).unwrap();
        file
    }

    pub(crate) fn write(&self, text: &str) {
        std::fs::write(&self.path, text).unwrap();
    }

    pub(crate) fn builder(&self, setup: &str) -> ServerBuilder {
        ServerBuilder::new(setup).arg("--token-file", self.path.to_str().unwrap())
    }
}

/// A file with both tokens.
pub(crate) fn both() -> TokenFile {
    TokenFile::new(&format!("read-write {WRITER} writer\nread-only {READER}\n"))
}
