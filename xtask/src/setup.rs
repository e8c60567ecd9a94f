//! What every measurement needs: the klad to measure, a directory that is removed at the end, cores, and functions
//! that start servers and loads.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use klad_bench::interrupt::{Watch, watch};
use klad_bench::result::RunResult;
use klad_lab::load::run_bench;
use klad_lab::process::{RunningProcess, split_cores};
use klad_lab::scenario::Pin;
use klad_lab::server::{RunningServer, ServerKind, ServerSpec};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tempfile::TempDir;

/// The option that all measurements have.
#[derive(clap::Args, Debug)]
pub(crate) struct ProgramArgs {
    /// The klad program to measure [default: the one in xtask's directory].
    #[arg(long, value_name = "PATH")]
    klad: Option<PathBuf>,
}

/// The program, the directory and the cores of a measurement.
pub(crate) struct Setup {
    program: PathBuf,
    directory: TempDir,
    /// Cores of servers, and of loads. Both are empty if the machine has only one core, and after [`Setup::unpinned`].
    pub(crate) server_cores: Vec<usize>,
    pub(crate) load_cores: Vec<usize>,
    watch: Watch,
}

impl Setup {
    /// Finds klad, makes the directory and raises the limit of open files, which servers and loads inherit.
    pub(crate) fn new(args: &ProgramArgs) -> Result<Setup> {
        let beside = || Ok::<_, std::io::Error>(std::env::current_exe()?.with_file_name("klad"));
        let program = args.klad.clone().map_or_else(beside, Ok).context("cannot tell where xtask is")?;
        ensure!(program.is_file(), "there is no klad at {}: run `make build` first", program.display());
        let limit = getrlimit(Resource::Nofile);
        // If the hard limit is too low, opening a connection later fails with a message.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
        let directory = tempfile::Builder::new().prefix("klad-xtask-").tempdir().context("no temporary directory")?;
        let (server_cores, load_cores) =
            split_cores(Pin::Split).map_or_else(Default::default, |cores| (cores.server, cores.load));
        Ok(Setup { program, directory, server_cores, load_cores, watch: watch()? })
    }

    /// As [`Setup::new`], but servers and loads share all cores.
    pub(crate) fn unpinned(args: &ProgramArgs) -> Result<Setup> {
        Ok(Setup { server_cores: Vec::new(), load_cores: Vec::new(), ..Setup::new(args)? })
    }

    /// The klad to measure.
    pub(crate) fn program(&self) -> &Path {
        &self.program
    }

    /// The directory of the measurement.
    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Starts a program on all cores. Dropping the returned process kills it.
    pub(crate) fn start(&self, command: Command) -> Result<RunningProcess> {
        self.start_on(&[], command)
    }

    /// Starts a program on `cores`. Dropping the returned process kills it.
    pub(crate) fn start_on(&self, cores: &[usize], command: Command) -> Result<RunningProcess> {
        RunningProcess::start(command, cores, &self.watch)
    }

    /// Makes a command that runs klad, with `arguments` split at spaces.
    pub(crate) fn klad(&self, arguments: &str) -> Command {
        let mut command = Command::new(&self.program);
        command.args(arguments.split_whitespace());
        command
    }

    /// Runs klad with these arguments, and waits until it ends.
    pub(crate) fn run(&self, arguments: &[&str]) -> Result<()> {
        let output = Command::new(&self.program).args(arguments).output().context("cannot run klad")?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "klad {} failed: {}", arguments.join(" "), said.trim());
        Ok(())
    }

    /// Starts `klad serve` on the data directory `name`, and waits until it is ready.
    pub(crate) fn serve(&self, name: &str, options: &[&str]) -> Result<RunningServer> {
        self.serve_with(&self.program, name, options)
    }

    /// As [`Setup::serve`], with another klad program.
    pub(crate) fn serve_with(&self, program: &Path, name: &str, options: &[&str]) -> Result<RunningServer> {
        self.serve_kind(ServerKind::Klad { program, options: options.to_vec() }, name)
    }

    /// Starts a server on the data directory `name`, and waits until it is ready.
    pub(crate) fn serve_kind(&self, kind: ServerKind<'_>, name: &str) -> Result<RunningServer> {
        let (data, log) = (self.directory.path().join(name), self.directory.path().join(format!("{name}.log")));
        RunningServer::start(&ServerSpec { kind, data: &data, log, cores: &self.server_cores }, &self.watch)
    }

    /// Runs `klad bench` against `url`. Kills it, and fails, if it takes longer than `time` plus two minutes. Also
    /// returns results that klad bench calls not valid.
    pub(crate) fn bench(&self, name: &str, url: &str, options: &str, time: Duration) -> Result<RunResult> {
        let file = self.directory.path().join(format!("{name}.json"));
        let arguments = ["bench", url].into_iter().chain(options.split_whitespace()).map(str::to_owned).collect();
        run_bench(&self.program, arguments, &self.load_cores, &file, time, &self.watch)
    }

    /// Starts `klad bench`, whose result is not used. Dropping the returned process kills it.
    pub(crate) fn start_bench(&self, url: &str, options: &str) -> Result<RunningProcess> {
        let mut command = Command::new(&self.program);
        command.args(["bench", url, "--progress", "never"]).args(options.split_whitespace());
        command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
        RunningProcess::start(command, &self.load_cores, &self.watch)
    }
}

/// Formats a count in groups of three digits: `5,000,000`.
pub(crate) fn grouped(count: u64) -> String {
    klad_page::numbers::count(count)
}

/// Formats bytes in MiB: `345.6 MiB`.
#[expect(clippy::cast_precision_loss, reason = "one digit after the point")]
pub(crate) fn mebibytes(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}
