//! Programs that tests run: Prometheus's `promtool`, which checks klad's metrics and the files for Prometheus, and
//! `schemathesis`, which tests the `OpenAPI` document against a server. `tools/setup.sh` installs them. Also compiles
//! libraries for preloading.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Runs `promtool` with `arguments` and `input`. Returns its output; the error is its output too.
pub(crate) fn promtool(arguments: &[&str], input: &str) -> Result<String, String> {
    let mut child = Command::new(program("promtool"))
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("promtool cannot be run ({error}): tools/setup.sh installs it"));
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = [output.stdout, output.stderr].map(|said| String::from_utf8_lossy(&said).into_owned()).concat();
    if output.status.success() { Ok(said) } else { Err(said) }
}

/// Runs `schemathesis` with its configuration and `arguments`, in `directory`, where it may leave files. Returns its
/// output; the error is its output too.
pub(crate) fn schemathesis(arguments: &[&str], directory: &Path) -> Result<String, String> {
    let configuration = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/schemathesis");
    let output = Command::new(program("schemathesis/bin/schemathesis"))
        .args(["--config-file", &format!("{configuration}/schemathesis.toml")])
        .args(arguments)
        .env("SCHEMATHESIS_HOOKS", format!("{configuration}/hooks.py"))
        .current_dir(directory)
        .stdin(Stdio::null())
        .output()
        .unwrap_or_else(|error| panic!("schemathesis cannot be run ({error}): tools/setup.sh test installs it"));
    let said = [output.stdout, output.stderr].map(|said| String::from_utf8_lossy(&said).into_owned()).concat();
    if output.status.success() { Ok(said) } else { Err(said) }
}

/// Returns the one that `tools/setup.sh` has put into its directory, or else the installed one.
pub(crate) fn program(name: &str) -> PathBuf {
    let cache =
        std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).or_else(|| Some(std::env::home_dir()?.join(".cache")));
    let unpacked = cache.map(|cache| cache.join("klad/tools").join(name)).filter(|path| path.exists());
    let name = name.rsplit('/').next().expect("a name");
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
