//! Prometheus's `promtool`, which checks klad's metrics and the files for Prometheus.

use std::io::Write as _;
use std::process::{Command, Stdio};

use super::programs::program;

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
