//! Runs `klad bench` as a process, with the built binary. Every result is checked by `results` before a test sees it.

use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::{PATIENCE, results, wait_until};

/// The end of a process.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// A run that has not been started.
#[derive(Clone, Debug)]
pub(crate) struct Bencher {
    arguments: Vec<String>,
    /// The arguments after `--`.
    last: Vec<String>,
}

/// A finished run.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) ended: Ended,
    /// The result that `--json` has written.
    pub(crate) result: Value,
}

/// A running process; dropping it kills the process.
pub(crate) struct Running {
    pub(crate) child: Child,
    directory: tempfile::TempDir,
}

/// Default options of tests: short, and with checks that do not depend on the load of the machine.
const DEFAULTS: [(&str, &str, &[&str]); 5] = [
    ("--rate", "100/s", &["--rate", "--stages", "--closed"]),
    ("--duration", "500ms", &["--duration", "--stages"]),
    ("--warm-up", "0s", &["--warm-up"]),
    // The drain ends with the last answer. It is only this long on a machine that stalls.
    ("--drain", "10s", &["--drain"]),
    ("--lag-max", "10s", &["--lag-max"]),
];

impl Bencher {
    /// `klad bench URL` with options that are separated by spaces.
    pub(crate) fn new(url: &str, options: &str) -> Bencher {
        let arguments = ["bench", url].into_iter().chain(options.split_whitespace()).map(str::to_owned).collect();
        Bencher { arguments, last: Vec::new() }
    }

    /// Adds an argument for a script.
    pub(crate) fn last(mut self, argument: &str) -> Bencher {
        self.last.push(argument.to_owned());
        self
    }

    /// Adds an option whose value is a path or contains a space.
    pub(crate) fn arg(mut self, name: &str, value: impl AsRef<std::ffi::OsStr>) -> Bencher {
        let value = value.as_ref().to_str().unwrap().to_owned();
        self.arguments.extend([name.to_owned(), value]);
        self
    }

    /// Starts the run with the default options, without `--json`.
    pub(crate) fn start(&self) -> Running {
        let given = |names: &[&str]| self.arguments.iter().any(|argument| names.contains(&argument.as_str()));
        let missing = DEFAULTS.iter().filter(|(_, _, names)| !given(names));
        let options =
            self.arguments.iter().map(String::as_str).chain(missing.flat_map(|(name, value, _)| [*name, value]));
        let separator = (!self.last.is_empty()).then_some("--");
        Running::start(options.chain(separator).chain(self.last.iter().map(String::as_str)))
    }

    /// Starts a run without an end of its own, and interrupts it when the condition holds. Checks its result.
    pub(crate) fn run_until(&self, what: &str, enough: impl FnMut() -> bool) -> Run {
        let file = tempfile::NamedTempFile::new().unwrap();
        let running = self.clone().arg("--duration", "1h").arg("--json", file.path()).start();
        wait_until(what, enough);
        kill_process(Pid::from_child(&running.child), Signal::INT).unwrap();
        Run::read(running.wait(), file.path())
    }

    /// Makes the run, and checks its result.
    pub(crate) fn run(&self) -> Run {
        let file = tempfile::NamedTempFile::new().unwrap();
        let ended = self.clone().arg("--json", file.path()).start().wait();
        Run::read(ended, file.path())
    }
}

impl Run {
    /// Reads the result in `json`, and checks it.
    pub(crate) fn read(ended: Ended, json: &Path) -> Run {
        assert!(matches!(ended.code, Some(0 | 3 | 4)), "no run was made: {ended:?}");
        let result: Value = serde_json::from_str(&std::fs::read_to_string(json).unwrap()).unwrap();
        assert_eq!(results::faults(&result), Vec::<String>::new(), "{}", ended.stdout);
        assert_eq!(results::text_faults(&ended.stdout, &result), Vec::<String>::new(), "{}", ended.stdout);
        Run { ended, result }
    }

    /// A count in the result, by its JSON pointer; 0 for an absent status or kind of error.
    pub(crate) fn count(&self, pointer: &str) -> u64 {
        results::count(&self.result, pointer)
    }

    /// A count in the measured part.
    pub(crate) fn measured(&self, pointer: &str) -> u64 {
        self.count(&format!("/measured/{pointer}"))
    }

    /// Asserts that exactly the checks with these names have failed.
    pub(crate) fn assert_failed_checks(&self, expected: &[&str]) {
        let checks = self.result["checks"].as_array().unwrap();
        let failed: Vec<_> =
            checks.iter().filter(|check| check["passed"] == false).map(|check| &check["name"]).collect();
        assert_eq!(failed, expected, "{}", self.ended.stdout);
        assert_eq!(self.ended.code == Some(4), !expected.is_empty(), "{}", self.ended.stdout);
    }

    /// Asserts that there were scheduled requests and that all of them were served.
    pub(crate) fn assert_all_served(&self) {
        assert!(self.measured("scheduled") > 0);
        assert_eq!(self.measured("outcomes/served"), self.measured("scheduled"), "{}", self.ended.stdout);
        self.assert_failed_checks(&[]);
    }
}

/// Makes several runs at the same time, because each of them sleeps most of its time.
pub(crate) fn together(runs: &[Bencher]) -> Vec<Run> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = runs.iter().map(|run| scope.spawn(|| run.run())).collect();
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(|why| std::panic::resume_unwind(why))).collect()
    })
}

/// Runs `klad` with exactly these arguments.
pub(crate) fn klad(arguments: &[&str]) -> Ended {
    Running::start(arguments.iter().copied()).wait()
}

impl Running {
    pub(crate) fn start<'a>(arguments: impl Iterator<Item = &'a str>) -> Running {
        // Output goes to files: a pipe that is not read could block the process.
        let directory = tempfile::tempdir().unwrap();
        let file = |name: &str| Stdio::from(File::create(directory.path().join(name)).unwrap());
        let mut command = Command::new(env!("CARGO_BIN_EXE_klad"));
        command.args(arguments).stdin(Stdio::null()).stdout(file("stdout")).stderr(file("stderr"));
        let child = command.spawn().unwrap();
        Running { child, directory }
    }

    /// The standard error until now.
    pub(crate) fn said(&self) -> String {
        std::fs::read_to_string(self.directory.path().join("stderr")).unwrap()
    }

    /// Waits for the end of the process.
    pub(crate) fn wait(self) -> Ended {
        self.wait_for(PATIENCE)
    }

    /// Waits for the end of the process with another time limit.
    pub(crate) fn wait_for(mut self, patience: Duration) -> Ended {
        let asked = Instant::now();
        let status = loop {
            let status = self.child.try_wait().unwrap();
            if status.is_some() {
                break status;
            }
            assert!(asked.elapsed() < patience, "klad bench has not ended");
            std::thread::sleep(Duration::from_millis(5));
        };
        let said = |name: &str| std::fs::read_to_string(self.directory.path().join(name)).unwrap();
        Ended { code: status.unwrap().code(), stdout: said("stdout"), stderr: said("stderr") }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
