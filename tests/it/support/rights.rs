//! Runs klad as a user without rights, even if root runs the tests.

use std::ffi::OsStr;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, Output};

use tempfile::TempDir;

/// User and group id of `nobody`.
pub(crate) const USER: u32 = 65_534;

/// Copies the binary into a directory that this user can read.
pub(crate) fn reachable() -> (TempDir, PathBuf) {
    let place = tempfile::Builder::new().permissions(Permissions::from_mode(0o755)).tempdir().unwrap();
    let program = place.path().join("klad");
    // A process that another test starts meanwhile would inherit a file that this process writes. A file that is open
    // for writing cannot be run.
    let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_klad")).arg(&program).status().unwrap();
    assert!(copied.success());
    (place, program)
}

/// Runs klad with `arguments` and waits for its end.
pub(crate) fn klad_without_rights(arguments: &[&OsStr]) -> Output {
    let (_place, program) = reachable();
    let mut command = Command::new(&program);
    command.args(arguments);
    if rustix::process::geteuid().is_root() {
        command.uid(USER).gid(USER);
    }
    command.current_dir("/").output().unwrap()
}
