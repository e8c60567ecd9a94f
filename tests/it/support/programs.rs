//! Finds programs that `tools/setup.sh` installs or unpacks, and compiles libraries for preloading.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns the program that `tools/setup.sh` has unpacked, or else the installed one.
pub(crate) fn program(name: &str) -> PathBuf {
    let cache =
        std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).or_else(|| Some(std::env::home_dir()?.join(".cache")));
    let unpacked = cache.map(|cache| cache.join("klad/tools").join(name)).filter(|path| path.exists());
    // A user's PATH may lack the directory of servers.
    let server = Some(Path::new("/usr/sbin").join(name)).filter(|path| path.exists());
    unpacked.or(server).unwrap_or_else(|| PathBuf::from(name))
}

/// Compiles a C file of this directory to a library.
///
/// # Panics
/// It does not compile.
pub(crate) fn compile_library(source: &str, library: &Path) {
    let compiled = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o"])
        .arg(library)
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/support").join(source))
        .arg("-ldl")
        .status()
        .expect("a C compiler, which is also needed to build klad");
    assert!(compiled.success(), "{source} does not compile");
}
