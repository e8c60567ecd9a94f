//! A Redis server to compare klad with, loaded by Redis's own load tester.

use std::fs::{self, File};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use klad_lab::process::RunningProcess;

use crate::setup::Setup;
use crate::yardstick::{CACHED_KEYS, PATIENCE};

/// A running `redis-server`. Dropping it kills it.
pub(super) struct Redis<'a> {
    setup: &'a Setup,
    port: String,
    /// The file that the load tester writes its output to.
    said: PathBuf,
    _server: RunningProcess,
}

impl Redis<'_> {
    /// Starts a Redis on the cores for servers, with snapshots off, and waits until it accepts connections.
    pub(super) fn start<'s>(setup: &'s Setup, name: &str, options: &[&str]) -> Result<Redis<'s>> {
        let directory = setup.directory().join(format!("redis-{name}"));
        fs::create_dir(&directory)?;
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port().to_string();
        let mut command = Command::new("redis-server");
        command.args(["--port", &port, "--bind", "127.0.0.1", "--save", "", "--dir"]).arg(&directory).args(options);
        command.stdout(File::create(directory.join("log"))?);
        let mut server = setup
            .start_on(&setup.server_cores, command)
            .context("install redis (Debian: redis-server, redis-tools)")?;
        for _ in 0..100 {
            if TcpStream::connect(format!("127.0.0.1:{port}")).is_ok() {
                return Ok(Redis { setup, port, said: directory.join("said"), _server: server });
            }
            let ended = server.wait(Duration::from_millis(50))?;
            ensure!(ended.is_none(), "redis-server ended: see {}", directory.join("log").display());
        }
        anyhow::bail!("redis-server accepts no connection")
    }

    /// Sends `requests` requests in pipelines of 16. Returns how many requests Redis answered per second.
    pub(super) fn requests_per_s(&self, test: &str, requests: u64) -> Result<f64> {
        let mut command = Command::new("redis-benchmark");
        command.args(["-p", &self.port, "-t", test, "-n", &requests.to_string(), "-r", &CACHED_KEYS.to_string()]);
        command.args(["-P", "16", "-c", "64", "-d", "100", "--csv"]).stdout(File::create(&self.said)?);
        let status = self.setup.start_on(&self.setup.load_cores, command)?.wait(PATIENCE)?;
        let status = status.context("redis-benchmark does not end")?;
        let said = fs::read_to_string(&self.said)?;
        // The first line is "test","rps",…, the second "GET","1234.50",….
        let rate = said.lines().nth(1).and_then(|line| line.split(',').nth(1)?.trim_matches('"').parse().ok());
        rate.filter(|_| status.success()).with_context(|| format!("redis-benchmark: {status}: {said}"))
    }
}
