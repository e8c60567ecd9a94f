//! `klad put`, `get`, `del`, `scan`, `health` and `profile`: a server's keys, values and profiles from a command line.
//!
//! ```text
//!     commands ──▶ exchange (one request, one answer) ──▶ connection (socket, TLS, deadlines)
//!         │              └── answer (framing: head, length, chunks)
//!         └── show (what a person and a program can read back without loss)
//! ```
//!
//! One command is one request on one connection of its own: no retries, no pool, no thread. It shares no code with the server
//! nor with the load tester, so that a mistake in framing cannot cancel out. It must never claim that a write has happened,
//! or has not, where that cannot be known: that is an exit code of its own. Called by `main`.

mod answer;
pub mod args;
mod commands;
mod connection;
mod exchange;
mod key;
mod profile;
pub mod profile_args;
mod profile_table;
mod replace;
mod show;
mod tls;
mod token;
mod url;

use std::io::Write as _;
use std::process::ExitCode;

use args::ClientCommand;

/// What the environment may say to these commands: the server, its admin address, the file with the token to send. `klad serve`
/// knows them too, so that it can be started from a shell that has them.
pub const VARIABLES: [&str; 3] = [URL_VARIABLE, ADMIN_URL_VARIABLE, TOKEN_FILE_VARIABLE];

const URL_VARIABLE: &str = "KLAD_URL";
const ADMIN_URL_VARIABLE: &str = "KLAD_ADMIN_URL";
const TOKEN_FILE_VARIABLE: &str = "KLAD_TOKEN_FILE";

/// Why a command did not do what it was asked to do. The message is one line.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// What was typed cannot be meant.
    #[error("{0}")]
    Usage(String),
    /// The server has no such key.
    #[error("not-found: there is no such key")]
    NotFound,
    /// The server has refused, or something before it has; nothing has happened.
    #[error("{0}")]
    Refused(String),
    /// The request did not get as far as an answer; nothing has happened.
    #[error("{0}")]
    Failed(String),
    /// A write that was sent whole, and whose outcome nobody can tell.
    #[error("undetermined: {0}; the write may or may not have happened")]
    Undetermined(String),
    /// A local file could not be read or written.
    #[error("{what}: {why}")]
    File {
        /// What was tried.
        what: String,
        /// What the system says.
        why: std::io::Error,
    },
    /// The reader of the standard output has gone: it has what it wanted.
    #[error("the output was closed")]
    OutputClosed,
}

impl Error {
    /// For scripts; docs/command-line.md has the table, and it does not change.
    fn exit_code(&self) -> u8 {
        match self {
            Error::OutputClosed => 0,
            Error::Refused(_) | Error::Failed(_) | Error::File { .. } => 1,
            Error::Usage(_) => 2,
            Error::Undetermined(_) => 3,
            Error::NotFound => 4,
        }
    }
}

/// Does what was asked for; messages go to the standard error output.
#[must_use]
pub fn run(command: &ClientCommand) -> ExitCode {
    let (name, ended) = match command {
        ClientCommand::Put(args) => ("put", commands::put(args)),
        ClientCommand::Get(args) => ("get", commands::get(args)),
        ClientCommand::Del(args) => ("del", commands::del(args)),
        ClientCommand::Scan(args) => ("scan", commands::scan(args)),
        ClientCommand::Health(args) => ("health", commands::health(args)),
        ClientCommand::Profile(args) => ("profile", profile::run(args)),
    };
    let Err(error) = ended else { return ExitCode::SUCCESS };
    if !matches!(error, Error::OutputClosed) {
        // What a server says goes to a terminal too, and must not steer it.
        let message = show::printable(&error.to_string());
        let _ = writeln!(std::io::stderr(), "klad {name}: {message}");
    }
    ExitCode::from(error.exit_code())
}
