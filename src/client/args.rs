//! What was typed after `klad put` and its like. Completions and manual pages are made from these definitions.

#![expect(
    clippy::doc_markdown,
    rustdoc::bare_urls,
    reason = "the command line shows its help as it stands here, without markup"
)]

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};

use crate::client::profile_args::ProfileArgs;

/// The commands that speak to a server.
#[derive(Debug, Subcommand)]
pub enum ClientCommand {
    /// Store a value under a key of a running server.
    ///
    /// Prints the version of the write and what it has survived. Exit codes: 0 stored, 1 failed and nothing has happened, 2
    /// wrong usage, 3 undetermined: the connection ended after the whole request was sent, and the value may or may not be
    /// stored.
    Put(PutArgs),
    /// Print the value of a key of a running server, byte for byte.
    ///
    /// Exit codes: 0 printed, 1 failed, 2 wrong usage, 4 there is no such key.
    Get(GetArgs),
    /// Remove a key from a running server, whether it is there or not.
    ///
    /// Prints the version of the removal and what it has survived. Exit codes: 0 removed, 1 failed and nothing has happened,
    /// 2 wrong usage, 3 undetermined, as with put.
    Del(DelArgs),
    /// List keys and values of a running server, in the order of the keys' bytes.
    ///
    /// Prints a line for each entry: key, tab, value. A backslash, and each byte that is no part of a printable character,
    /// stands there as \\, \n, \r, \t or \xHH, on a terminal and in a pipe alike, so that printf '%b' gives the bytes back.
    ///
    /// Exit codes: 0 listed to the end or to --limit, 1 failed, also in the middle, 2 wrong usage.
    Scan(ScanArgs),
    /// Ask a running server's admin address whether it takes requests.
    ///
    /// Exit codes: 0 yes, 1 no or no answer, 2 wrong usage.
    Health(HealthArgs),
    /// Take a profile of a running server: where its CPU time, its memory or its waits go.
    ///
    /// Without --output it prints what must be known to judge the profile, and the functions that cost most, by themselves and
    /// with all that they call.
    ///
    /// Exit codes: 0 taken, 1 failed or refused, as while another profile is being taken, 2 wrong usage.
    Profile(ProfileArgs),
}

/// Options of `klad put`.
#[derive(Args, Debug)]
pub struct PutArgs {
    /// The key, as the argument's own bytes.
    #[arg(value_name = "KEY")]
    pub key: OsString,
    /// The value, as the argument's own bytes; `-`, or no value, reads it from the standard input.
    #[arg(value_name = "VALUE", allow_negative_numbers = true)]
    pub value: Option<OsString>,
    /// Read the value from a file.
    #[arg(short, long, value_name = "FILE", conflicts_with = "value", value_hint = clap::ValueHint::FilePath)]
    pub file: Option<PathBuf>,
    #[command(flatten)]
    #[expect(missing_docs, reason = "it would become the help of the group")]
    pub write: WriteArgs,
    #[command(flatten)]
    #[expect(missing_docs, reason = "it would become the help of the group")]
    pub keys: KeyForm,
    #[command(flatten)]
    #[expect(missing_docs, reason = "it would become the help of the group")]
    pub server: ServerArgs,
}

/// Options of `klad get`.
#[derive(Args, Debug)]
pub struct GetArgs {
    /// The key, as the argument's own bytes.
    #[arg(value_name = "KEY")]
    pub key: OsString,
    /// Write the value to a file, which is replaced only when the value has arrived whole.
    #[arg(short, long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    pub output: Option<PathBuf>,
    #[command(flatten)]
    #[expect(missing_docs, reason = "it would become the help of the group")]
    pub keys: KeyForm,
    #[command(flatten)]
    #[expect(missing_docs, reason = "it would become the help of the group")]
    pub server: ServerArgs,
}

/// Options of `klad del`.
#[derive(Args, Debug)]
pub struct DelArgs {
    /// The key, as the argument's own bytes.
    #[arg(value_name = "KEY")]
    pub key: OsString,
    #[command(flatten)]
    #[expect(missing_docs, reason = "it would become the help of the group")]
    pub write: WriteArgs,
    #[command(flatten)]
    #[expect(missing_docs, reason = "it would become the help of the group")]
    pub keys: KeyForm,
    #[command(flatten)]
    #[expect(missing_docs, reason = "it would become the help of the group")]
    pub server: ServerArgs,
}

/// Options of `klad scan`.
#[derive(Args, Debug)]
pub struct ScanArgs {
    /// First key that is listed; without it, or when it is empty, the very first one.
    #[arg(value_name = "START")]
    pub start: Option<OsString>,
    /// First key that is no longer listed; without it the list goes to the last key.
    #[arg(value_name = "END")]
    pub end: Option<OsString>,
    /// List the keys that begin with these bytes.
    #[arg(long, value_name = "KEY", conflicts_with_all = ["start", "end"])]
    pub prefix: Option<OsString>,
    /// Print keys only; the values come over the network all the same.
    #[arg(long = "keys")]
    pub keys_only: bool,
    /// Stop after so many entries.
    #[arg(long, value_name = "N")]
    pub limit: Option<u64>,
    /// Print a JSON object for each entry, on a line of its own: "key" and "value" where the bytes are UTF-8, else "key64" and
    /// "value64" with the bytes as base64.
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    #[expect(missing_docs, reason = "it would become the help of the group")]
    pub keys: KeyForm,
    #[command(flatten)]
    #[expect(missing_docs, reason = "it would become the help of the group")]
    pub server: ServerArgs,
}

/// Options of `klad health`.
#[derive(Args, Debug)]
pub struct HealthArgs {
    /// The server's admin address [default: KLAD_ADMIN_URL, or http://127.0.0.1:8081].
    #[arg(long, value_name = "URL", help_heading = "Connection", value_hint = clap::ValueHint::Url)]
    pub url: Option<String>,
    /// Ask only whether the process lives (/livez), not whether it takes requests (/readyz).
    #[arg(long)]
    pub live: bool,
    /// Print nothing when all is well.
    #[arg(short, long)]
    pub quiet: bool,
    #[command(flatten)]
    #[expect(missing_docs, reason = "it would become the help of the group")]
    pub transport: TransportArgs,
}

/// What put and del have in common.
#[derive(Args, Debug)]
pub struct WriteArgs {
    /// What the write must have survived when it is answered [default: what the server says].
    #[arg(long, value_enum, value_name = "WORD")]
    pub durability: Option<Durability>,
    /// Print nothing when all is well.
    #[arg(short, long)]
    pub quiet: bool,
}

/// Durabilities to ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Durability {
    /// The end of the machine.
    Sync,
    /// The end of the server's process.
    Async,
}

/// How keys are written on the command line; literally, unless one of these is given.
#[derive(Args, Clone, Copy, Debug, Default)]
#[group(multiple = false)]
pub struct KeyForm {
    /// Keys are written in hexadecimal digits, two for each byte.
    #[arg(long, help_heading = "Keys")]
    pub key_hex: bool,
    /// Keys are written in base64, of either alphabet, with or without the = at the end.
    #[arg(long, help_heading = "Keys")]
    pub key_base64: bool,
    /// %XX in keys is a byte, as in URLs; everything else, also +, is itself.
    #[arg(long, help_heading = "Keys")]
    pub percent: bool,
}

/// Which server, and the way to it.
#[derive(Args, Debug)]
pub struct ServerArgs {
    /// The server [default: KLAD_URL, or http://127.0.0.1:8080].
    ///
    /// Either http:// or https://. A path is put before that of the request, for servers behind a proxy.
    #[arg(long, value_name = "URL", help_heading = "Connection", value_hint = clap::ValueHint::Url)]
    pub url: Option<String>,
    #[command(flatten)]
    #[expect(missing_docs, reason = "it would become the help of the group")]
    pub transport: TransportArgs,
}

/// The way to a server.
#[derive(Args, Debug)]
pub struct TransportArgs {
    /// File with the token to send [default: KLAD_TOKEN_FILE, or no token].
    ///
    /// Either the token alone, or the server's own file, of whose tokens the first that may write is sent, else the first.
    #[arg(long, value_name = "FILE", help_heading = "Connection", value_hint = clap::ValueHint::FilePath)]
    pub token_file: Option<PathBuf>,
    /// File with the certificates (PEM) that https:// trusts, instead of the system's.
    #[arg(long, value_name = "FILE", help_heading = "Connection", value_hint = clap::ValueHint::FilePath)]
    pub ca: Option<PathBuf>,
    /// Longest time for the whole command, from 1ms to 1h [default: none, but 30s without a byte end it].
    ///
    /// The server is told as well (Klad-Timeout), with a tenth less, so that its answer that nothing has happened arrives
    /// before this end.
    #[arg(long, value_name = "TIME", help_heading = "Connection", value_parser = timeout)]
    pub timeout: Option<Duration>,
}

fn timeout(text: &str) -> Result<Duration, String> {
    let range = Duration::from_millis(1)..=Duration::from_hours(1);
    match humantime::parse_duration(text) {
        Ok(time) if range.contains(&time) => Ok(time),
        Ok(_) => Err("is from 1ms to 1h".to_owned()),
        Err(error) => Err(format!("{error}; use for example 500ms or 10s")),
    }
}
