//! Other programs that read profiles: Go's pprof, and a browser.

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Runs `go` with `arguments` in `directory`. Returns its output; the error is its output too.
pub(crate) fn go(arguments: &[&str], directory: &Path) -> Result<String, String> {
    let output = Command::new("go")
        .args(arguments)
        .current_dir(directory)
        .env("PPROF_TMPDIR", directory)
        .env("GOFLAGS", "-mod=mod")
        .env("GO111MODULE", "off")
        .stdin(Stdio::null())
        .output()
        .unwrap_or_else(|error| panic!("go cannot be run ({error}): tools/setup.sh installs it"));
    let said = [&output.stdout, &output.stderr].map(|said| String::from_utf8_lossy(said).into_owned()).concat();
    if output.status.success() { Ok(said) } else { Err(said) }
}

/// Returns the complete output of `go tool pprof -top` for `profile`, sorted by cumulative value.
pub(crate) fn top(profile: &[u8]) -> Result<String, String> {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("profile"), profile).unwrap();
    let all = ["tool", "pprof", "-top", "-cum", "-nodefraction=0", "-edgefraction=0", "-nodecount=100000", "profile"];
    go(&all, directory.path())
}

/// Returns the browser's program. Debian's Chromium without windows starts with a third of the CPU time. (The script of
/// that name in `/usr/bin` is no substitute: who ends the script does not end the browser.)
pub(crate) fn chromium() -> &'static str {
    let shell = "/usr/lib/chromium/chromium-headless-shell";
    if Path::new(shell).exists() { shell } else { "/usr/bin/chromium" }
}

/// Returns the document at `address` after a browser has run its scripts; `dark`: with the dark colour scheme.
pub(crate) fn browse(address: &str, dark: bool) -> String {
    let profile = tempfile::tempdir().unwrap();
    let scheme = format!("--blink-settings=preferredColorScheme={}", i32::from(!dark));
    let mut child = Command::new(chromium())
        .args(["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"])
        .args(["--virtual-time-budget=5000", "--window-size=1200,900", &scheme, "--dump-dom"])
        .arg(format!("--user-data-dir={}", profile.path().display()))
        .arg(address)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("chromium cannot be run ({error}): tools/setup.sh installs it"));
    let (stdout, stderr) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
    let read = |mut from: Box<dyn std::io::Read + Send>| {
        std::thread::spawn(move || {
            let mut all = Vec::new();
            let _ = from.read_to_end(&mut all);
            all
        })
    };
    let (stdout, stderr) = (read(Box::new(stdout)), read(Box::new(stderr)));
    let late = Instant::now() + super::PATIENCE + super::PATIENCE;
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if Instant::now() > late {
            let _ = child.kill();
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    let output = Output { status, stdout: stdout.join().unwrap(), stderr: stderr.join().unwrap() };
    let page = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && !page.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    page
}
