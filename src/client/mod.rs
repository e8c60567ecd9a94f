//! The client commands: `klad put`, `get`, `del`, `add`, `expire`, `scan`, `batch`, `watch`, `export`, `import`,
//! `health`, `profile` and `top`.
//!
//! ```text
//!   one request    commands, profile ─────────────────┬─▶ exchange (one request, one answer) ─▶ connection (socket,
//!   many requests  scan, export ─▶ list ──────────────┤      └── answer (framing: head, length, chunks)      TLS, time)
//!                  batch, import ─▶ upload ─▶ bounds ─┤
//!                  watch, top ────────────────────────┘
//!   no request     export, import ─▶ directory, load ─▶ the engine of a data directory that no process serves
//!   the items of an answer or a file: items (where one ends) ─▶ entry (JSON), cbor
//!   output without loss, for people and programs: show
//! ```
//!
//! Each request has its own connection; there is no pool, and only `top` starts a thread. Only `export`, `import`,
//! `watch` and `top` repeat a request, because the repetition has no further effect. (`klad profile diff` sends none.)
//! The HTTP code is shared neither with the server nor with the load tester. Shared code would have the same mistake in
//! framing at both ends, and no test would notice the mistake. For the same reason, the code for the forms of entries
//! is not shared. If the outcome of a write is unknown, the command must say so, with an exit code of its own. Called
//! by `main`.

mod answer;
pub mod args;
mod batch;
mod bounds;
mod cbor;
mod commands;
mod connection;
mod directory;
mod entry;
mod exchange;
mod export;
mod import;
mod import_state;
mod items;
mod key;
pub(crate) mod limits;
mod list;
pub mod list_args;
mod load;
mod output;
mod patience;
mod problem;
mod profile;
pub mod profile_args;
mod profile_table;
mod progress;
mod replace;
mod scan;
mod show;
mod tls;
mod token;
mod top;
mod upload;
mod url;
mod watch;
mod write_headers;

use std::io::Write as _;
use std::process::ExitCode;

use crate::disk;
use args::ClientCommand;

/// Environment variables of these commands: the server, its admin address, the file with the token to send. `klad
/// serve` does not reject these variables, so that it can start from a shell that has them.
pub const VARIABLES: [&str; 3] = [URL_VARIABLE, ADMIN_URL_VARIABLE, TOKEN_FILE_VARIABLE];

const URL_VARIABLE: &str = "KLAD_URL";
const ADMIN_URL_VARIABLE: &str = "KLAD_ADMIN_URL";
const TOKEN_FILE_VARIABLE: &str = "KLAD_TOKEN_FILE";

/// Why a command failed. The message is one line.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The arguments are invalid.
    #[error("{0}")]
    Usage(String),
    /// The key does not exist.
    #[error("not-found: the key does not exist")]
    NotFound,
    /// The condition of a write does not hold, or items of a batch failed.
    #[error("{0}")]
    Unmet(String),
    /// The server, or a proxy, rejected the request. Nothing has happened.
    #[error("{0}")]
    Refused(String),
    /// There was no usable answer. Nothing has happened.
    #[error("{0}")]
    Failed(String),
    /// A write was sent completely, and its outcome is unknown.
    #[error("undetermined: {0}; the write may or may not have happened")]
    Undetermined(String),
    /// A local file could not be read or written.
    #[error("{what}: {why}")]
    File {
        /// The failed action and its object.
        what: String,
        /// The error of the system.
        why: std::io::Error,
    },
    /// The data directory of `--data` or `--into` did not open. `exit` has the exit codes.
    #[error(transparent)]
    Directory(#[from] disk::OpenError),
    /// The reader closed the standard output, as `head` does.
    #[error("the output was closed")]
    OutputClosed,
}

/// Runs a command. Messages go to the standard error output. docs/command-line.md promises that the exit codes do not
/// change.
///
/// # Errors
/// The data directory of `--data` or `--into` did not open. The caller prints the message.
pub fn run(command: &ClientCommand) -> Result<ExitCode, disk::OpenError> {
    let (name, ended) = match command {
        ClientCommand::Put(args) => ("put", commands::put(args)),
        ClientCommand::Get(args) => ("get", commands::get(args)),
        ClientCommand::Del(args) => ("del", commands::del(args)),
        ClientCommand::Add(args) => ("add", commands::add(args)),
        ClientCommand::Expire(args) => ("expire", commands::expire(args)),
        ClientCommand::Scan(args) => ("scan", scan::run(args)),
        ClientCommand::Batch(args) => ("batch", batch::run(args)),
        ClientCommand::Watch(args) => ("watch", watch::run(args)),
        ClientCommand::Export(args) => ("export", export::run(args)),
        ClientCommand::Import(args) => ("import", import::run(args)),
        ClientCommand::Health(args) => ("health", commands::health(args)),
        ClientCommand::Profile(args) => ("profile", profile::run(args)),
        ClientCommand::Top(args) => ("top", top::run(args)),
    };
    let Err(error) = ended else { return Ok(ExitCode::SUCCESS) };
    let code = match error {
        Error::Directory(error) => return Err(error),
        Error::OutputClosed => return Ok(ExitCode::SUCCESS),
        Error::Refused(_) | Error::Failed(_) | Error::File { .. } => 1,
        Error::Usage(_) => 2,
        Error::Undetermined(_) => 3,
        Error::NotFound => 4,
        Error::Unmet(_) => 5,
    };
    // A message may contain text of the server, which must not control the terminal.
    let message = show::printable(&error.to_string());
    let _ = writeln!(std::io::stderr(), "klad {name}: {message}");
    Ok(ExitCode::from(code))
}
