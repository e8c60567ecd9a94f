//! Runs `klad` commands as processes.

use std::io::Write as _;
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};

/// A command to run.
pub(crate) struct Klad {
    command: Command,
    input: Vec<u8>,
}

/// The result of a command.
#[derive(Debug)]
pub(crate) struct Output {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: String,
}

impl Klad {
    /// `klad` with arguments separated by spaces, and without klad's variables from the environment.
    pub(crate) fn new(arguments: &str) -> Klad {
        let mut command = Command::new(env!("CARGO_BIN_EXE_klad"));
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("KLAD_") {
                command.env_remove(name);
            }
        }
        command.args(arguments.split_whitespace());
        Klad { command, input: Vec::new() }
    }

    /// Adds an argument unchanged.
    pub(crate) fn arg(mut self, argument: impl AsRef<std::ffi::OsStr>) -> Klad {
        self.command.arg(argument);
        self
    }

    pub(crate) fn env(mut self, name: &str, value: impl AsRef<std::ffi::OsStr>) -> Klad {
        self.command.env(name, value);
        self
    }

    /// Sets the server in the environment.
    pub(crate) fn at(self, address: SocketAddr) -> Klad {
        self.env("KLAD_URL", format!("http://{address}"))
    }

    pub(crate) fn input(mut self, input: &[u8]) -> Klad {
        self.input = input.to_vec();
        self
    }

    /// Starts the command. Its input and its outputs are pipes.
    pub(crate) fn spawn(&mut self) -> Child {
        self.command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    pub(crate) fn run(mut self) -> Output {
        let mut child = self.spawn();
        let mut input = child.stdin.take().unwrap();
        // A command that does not read all its input closes the pipe.
        let writer = std::thread::spawn(move || drop(input.write_all(&self.input)));
        let output = child.wait_with_output().unwrap();
        writer.join().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        Output { code: output.status.code(), stdout: output.stdout, stderr }
    }

    /// Runs the command, requires exit code 0 and no error output, and returns the output.
    pub(crate) fn succeeds(self) -> Vec<u8> {
        let said = self.run();
        assert_eq!((said.code, said.stderr.as_str()), (Some(0), ""), "{said:?}");
        said.stdout
    }

    /// Runs the command, requires this exit code, no output and one line of error output, and returns the line.
    pub(crate) fn fails(self, code: i32) -> String {
        let said = self.run();
        assert_eq!((said.code, said.stdout.as_slice()), (Some(code), &b""[..]), "{said:?}");
        assert_eq!(said.stderr.lines().count(), 1, "{said:?}");
        assert!(said.stderr.ends_with('\n'), "{said:?}");
        said.stderr
    }
}
