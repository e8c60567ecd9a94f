//! Command line of the client commands. Completions and manual pages are generated from it.

#![expect(
    clippy::doc_markdown,
    rustdoc::bare_urls,
    reason = "the command line prints these comments as help, without markup"
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
    /// Prints the version and the durability of the write. Exit codes: 0 stored; 1 failed, nothing was stored; 2
    /// wrong usage; 3 undetermined: the connection failed after the whole request was sent, or the server does not know
    /// the outcome; the value may or may not be stored.
    Put(PutArgs),
    /// Print the value of a key of a running server, byte for byte.
    ///
    /// Exit codes: 0 printed; 1 failed; 2 wrong usage; 4 the key does not exist.
    Get(GetArgs),
    /// Remove a key from a running server. A key that does not exist is not an error.
    ///
    /// Prints the version and the durability of the removal. Exit codes: 0 removed; 1 failed, nothing was removed; 2
    /// wrong usage; 3 undetermined, as with put.
    Del(DelArgs),
    /// List keys and values of a running server, in the order of the keys' bytes.
    ///
    /// Prints a line for each entry: key, tab, value. It writes a backslash, and each byte that is not part of a
    /// printable character, as \\, \n, \r, \t or \xHH. printf '%b' restores the bytes. The output is the same on a
    /// terminal and in a pipe.
    ///
    /// Exit codes: 0 listed to the end or to --limit; 1 failed, perhaps after part of the list; 2 wrong usage.
    Scan(ScanArgs),
    /// Ask the admin address of a running server whether it accepts requests.
    ///
    /// Exit codes: 0 yes; 1 no, or no answer; 2 wrong usage.
    Health(HealthArgs),
    /// Take a profile of a running server: where it spends CPU time, memory or waiting time.
    ///
    /// Without --output it prints the facts needed to judge the profile, and the most expensive functions, by
    /// themselves and including the functions that they call.
    ///
    /// Exit codes: 0 taken; 1 failed, for example while another profile is being taken; 2 wrong usage.
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
    /// First key to list [default: the first key of the store]. An empty key means the default.
    #[arg(value_name = "START")]
    pub start: Option<OsString>,
    /// Key at which the list ends; this key is not listed [default: list to the last key].
    #[arg(value_name = "END")]
    pub end: Option<OsString>,
    /// List only keys that begin with these bytes.
    #[arg(long, value_name = "KEY", conflicts_with_all = ["start", "end"])]
    pub prefix: Option<OsString>,
    /// Print only keys. The server sends the values too.
    #[arg(long = "keys")]
    pub keys_only: bool,
    /// Stop after this number of entries.
    #[arg(long, value_name = "N")]
    pub limit: Option<u64>,
    /// Print one JSON object per line for each entry, with "key" and "value" if the bytes are UTF-8, otherwise
    /// "key64" and "value64" with the bytes in base64.
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
    /// Check only that the process is alive (/livez), not that it accepts requests (/readyz).
    #[arg(long)]
    pub live: bool,
    /// Print nothing on success.
    #[arg(short, long)]
    pub quiet: bool,
    #[command(flatten)]
    #[expect(missing_docs, reason = "it would become the help of the group")]
    pub transport: TransportArgs,
}

/// Options of `klad put` and `klad del`.
#[derive(Args, Debug)]
pub struct WriteArgs {
    /// Durability that the write must have before the server answers [default: the server's].
    #[arg(long, value_enum, value_name = "WORD")]
    pub durability: Option<Durability>,
    /// Print nothing on success.
    #[arg(short, long)]
    pub quiet: bool,
}

/// Values of `--durability`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Durability {
    /// The write survives a crash of the machine.
    Sync,
    /// The write survives a crash of the server process.
    Async,
}

/// Options that say how keys are written on the command line. Without one, the argument's bytes are the key.
#[derive(Args, Clone, Copy, Debug, Default)]
#[group(multiple = false)]
pub struct KeyForm {
    /// Keys are hexadecimal digits, two for each byte.
    #[arg(long, help_heading = "Keys")]
    pub key_hex: bool,
    /// Keys are base64, in either alphabet, with or without = at the end.
    #[arg(long, help_heading = "Keys")]
    pub key_base64: bool,
    /// %XX in a key stands for a byte, as in URLs. All other characters, also +, stand for themselves.
    #[arg(long, help_heading = "Keys")]
    pub percent: bool,
}

/// Options that select a server.
#[derive(Args, Debug)]
pub struct ServerArgs {
    /// The server [default: KLAD_URL, or http://127.0.0.1:8080].
    ///
    /// The scheme is http:// or https://. A path in the URL is put before the path of the request, for servers behind
    /// a proxy.
    #[arg(long, value_name = "URL", help_heading = "Connection", value_hint = clap::ValueHint::Url)]
    pub url: Option<String>,
    #[command(flatten)]
    #[expect(missing_docs, reason = "it would become the help of the group")]
    pub transport: TransportArgs,
}

/// Options of the connection to a server.
#[derive(Args, Debug)]
pub struct TransportArgs {
    /// File with the token to send [default: KLAD_TOKEN_FILE, or no token].
    ///
    /// The file contains the token alone, or it is the token file of the server. From the latter klad sends the first
    /// token that may write, or the first token if none may.
    #[arg(long, value_name = "FILE", help_heading = "Connection", value_hint = clap::ValueHint::FilePath)]
    pub token_file: Option<PathBuf>,
    /// File with the certificates (PEM) that https:// trusts [default: SSL_CERT_FILE, or those of the system].
    #[arg(long, value_name = "FILE", help_heading = "Connection", value_hint = clap::ValueHint::FilePath)]
    pub ca: Option<PathBuf>,
    /// Maximum time of the whole command, from 1ms to 1h [default: no limit, but the command fails after 30s without
    /// a byte].
    ///
    /// klad also sends this time, less a tenth, to the server (Klad-Timeout), so that the server's answer that
    /// nothing was done arrives in time.
    #[arg(long, value_name = "TIME", help_heading = "Connection", value_parser = timeout)]
    pub timeout: Option<Duration>,
}

fn timeout(text: &str) -> Result<Duration, String> {
    let range = Duration::from_millis(1)..=Duration::from_hours(1);
    match humantime::parse_duration(text) {
        Ok(time) if range.contains(&time) => Ok(time),
        Ok(_) => Err("must be from 1ms to 1h".to_owned()),
        Err(error) => Err(format!("{error}; use for example 500ms or 10s")),
    }
}
