//! Small experiments of `klad lab`.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;

use super::bencher::{Ended, Running};

/// A directory for a scenario and its report.
pub(crate) struct Place(tempfile::TempDir);

impl Place {
    pub(crate) fn new(scenario: &str) -> Place {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("own.toml"), scenario).unwrap();
        Place(directory)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub(crate) fn start(&self, options: &str) -> Running {
        let (scenario, out) = (self.path("own.toml"), self.path("out"));
        let fixed = ["lab", "run", scenario.to_str().unwrap(), "--out", out.to_str().unwrap()];
        Running::start(fixed.into_iter().chain(options.split_whitespace()))
    }

    pub(crate) fn run(&self, options: &str) -> Ended {
        self.start(options).wait_for(Duration::from_mins(5))
    }

    pub(crate) fn has_databases(&self) -> bool {
        let mut entries = std::fs::read_dir(self.path("out")).unwrap();
        entries.any(|entry| entry.unwrap().file_name().to_string_lossy().contains("databases"))
    }

    pub(crate) fn text(&self, name: &str) -> String {
        std::fs::read_to_string(self.path("out").join(name)).unwrap()
    }

    pub(crate) fn result(&self) -> Value {
        serde_json::from_str(&self.text("lab.json")).unwrap()
    }
}

/// No operation of a test is delayed.
pub(crate) const NEVER: u32 = 1_000_000;

/// Two variants on the memory engine. The second sleeps for 400 ms in one of `every` operations.
pub(crate) fn two(every: u32, duration: &str) -> String {
    format!(
        r#"
        title = "Two"
        pin = "none"
        repeats = 5
        [server]
        options = ["--engine", "memory", "--execution", "pool", "--pool-threads", "32", "--engine-delay", "400ms"]
        [[variant]]
        name = "as-it-was"
        options = ["--engine-delay-every", "1000000"]
        [[variant]]
        name = "changed"
        options = ["--engine-delay-every", "{every}"]
        [data]
        keys = 1_000
        [[stage]]
        name = "get"
        data = "filled"
        options = ["--workload", "get", "--lag-max", "10s", "--drain", "10s"]
        rate = 100.0
        also-below-capacity = false
        connections = 64
        duration = "{duration}"
        warm-up = "200ms"
        "#
    )
}

/// Returns the runs of the first stage, as file and variant.
pub(crate) fn order(result: &Value) -> Vec<(String, String)> {
    let mut runs = Vec::new();
    for variant in result["stages"][0]["variants"].as_array().unwrap() {
        for run in variant["runs"].as_array().unwrap() {
            runs.push((run["file"].as_str().unwrap().to_owned(), variant["name"].as_str().unwrap().to_owned()));
        }
    }
    runs
}
