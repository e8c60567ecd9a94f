//! klad as a user without rights, whoever runs the tests.

use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Output};

/// Runs klad with `arguments` to its end; the binary is where that user can reach it.
pub(crate) fn klad_without_rights(arguments: &[&OsStr]) -> Output {
    let place = tempfile::Builder::new().permissions(Permissions::from_mode(0o755)).tempdir().unwrap();
    let program = place.path().join("klad");
    fs::copy(env!("CARGO_BIN_EXE_klad"), &program).unwrap();
    let mut command = Command::new(&program);
    command.args(arguments);
    if rustix::process::geteuid().is_root() {
        command.uid(65_534).gid(65_534);
    }
    command.current_dir("/").output().unwrap()
}
