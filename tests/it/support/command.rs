//! `klad put` and its like as processes of their own.

use std::io::Write as _;
use std::net::SocketAddr;
use std::process::{Command, Stdio};

/// A command to be run.
pub(crate) struct Klad {
    command: Command,
    input: Vec<u8>,
}

/// How it has ended.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: String,
}

impl Klad {
    /// `klad` with arguments that are separated by spaces, and nothing of what the environment says to klad.
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

    /// An argument as it stands.
    pub(crate) fn arg(mut self, argument: impl AsRef<std::ffi::OsStr>) -> Klad {
        self.command.arg(argument);
        self
    }

    pub(crate) fn env(mut self, name: &str, value: impl AsRef<std::ffi::OsStr>) -> Klad {
        self.command.env(name, value);
        self
    }

    /// The server, through the environment.
    pub(crate) fn at(self, address: SocketAddr) -> Klad {
        self.env("KLAD_URL", format!("http://{address}"))
    }

    pub(crate) fn input(mut self, input: &[u8]) -> Klad {
        self.input = input.to_vec();
        self
    }

    pub(crate) fn run(mut self) -> Said {
        self.command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = self.command.spawn().unwrap();
        let mut input = child.stdin.take().unwrap();
        // A command that does not read all of it closes the pipe.
        let writer = std::thread::spawn(move || drop(input.write_all(&self.input)));
        let output = child.wait_with_output().unwrap();
        writer.join().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        Said { code: output.status.code(), stdout: output.stdout, stderr }
    }

    /// Runs it, demands exit code 0 and silence on the error output, and gives what it has printed.
    pub(crate) fn succeeds(self) -> Vec<u8> {
        let said = self.run();
        assert_eq!((said.code, said.stderr.as_str()), (Some(0), ""), "{said:?}");
        said.stdout
    }

    /// Runs it, demands an exit code and one line on the error output alone, and gives the line.
    pub(crate) fn fails(self, code: i32) -> String {
        let said = self.run();
        assert_eq!((said.code, said.stdout.as_slice()), (Some(code), &b""[..]), "{said:?}");
        assert_eq!(said.stderr.lines().count(), 1, "{said:?}");
        assert!(said.stderr.ends_with('\n'), "{said:?}");
        said.stderr
    }
}
