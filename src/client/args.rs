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

use crate::client::list_args::{BatchArgs, ExportArgs, ImportArgs, ScanArgs, WatchArgs};
use crate::client::profile_args::ProfileArgs;
use klad_server::limits::TTL_RANGE;

/// The commands that speak to a server.
#[derive(Debug, Subcommand)]
pub enum ClientCommand {
    /// Store a value under a key of a running server.
    ///
    /// Prints the version and the durability of the write. Exit codes: 0 stored; 1 failed, nothing was stored; 2 wrong
    /// usage; 3 undetermined: the value may or may not be stored, because the connection failed after the whole request
    /// was sent, or because the server does not know the outcome; 5 the condition does not hold, nothing was stored.
    Put(PutArgs),
    /// Print the value of a key of a running server, byte for byte.
    ///
    /// Exit codes: 0 printed; 1 failed; 2 wrong usage; 4 the key does not exist.
    Get(GetArgs),
    /// Remove a key from a running server. A key that does not exist is not an error.
    ///
    /// Prints the version and the durability of the removal, or that the key was absent. Exit codes: 0 removed, or
    /// absent; 1 failed, nothing was removed; 2 wrong usage; 3 undetermined: the key may or may not be removed; 5 the
    /// condition does not hold.
    Del(DelArgs),
    /// Add a number to a counter of a running server (a value that is a decimal number), and print the sum.
    ///
    /// A counter that does not exist is created and starts at 0. Exit codes: 0 added; 1 failed, nothing was added, for
    /// example because the value is not a number or the sum would overflow; 2 wrong usage; 3 undetermined: the number
    /// may or may not be added; 5 the condition does not hold.
    Add(AddArgs),
    /// Change when a value of a running server expires, without changing the value.
    ///
    /// Prints the version and the durability of the change. Exit codes: 0 changed; 1 failed, nothing was changed; 2
    /// wrong usage; 3 undetermined: the expiry may or may not be changed; 4 the key does not exist; 5 the condition
    /// does not hold.
    Expire(ExpireArgs),
    /// List keys and values of a running server, in the order of the keys' bytes.
    ///
    /// Prints a line for each entry: key, tab, value. The command writes a backslash, and each byte that is not part of
    /// a printable character, as \\, \n, \r, \t or \xHH. In bash, printf '%b' restores the bytes. The output is the
    /// same on a terminal and in a pipe.
    ///
    /// Exit codes: 0 listed to the end or to --limit; 1 failed, perhaps after part of the list; 2 wrong usage.
    Scan(ScanArgs),
    /// Send many puts, gets, removals and other changes to a running server, and print their results.
    ///
    /// The input has one JSON object on each line, as docs/http-api.md describes, for example
    /// {"op":"put","key":"a","value":"1"}. The output has one line for each item, in the order of the items.
    ///
    /// Exit codes: 0 every item was done or, without --atomic, found no value at its key; 1 failed, perhaps after some
    /// of the items; 2 wrong usage; 3 undetermined: some items may or may not have been done; 5 some items failed, such
    /// as those whose condition does not hold.
    Batch(BatchArgs),
    /// Print the changes of a running server as they happen.
    ///
    /// Prints a line for each change: version, tab, operation, tab, key. If the connection is lost, the command tries
    /// for up to a minute to connect again, and continues after the last change. Exit codes: 0 after --limit changes; 1
    /// failed, or the server ended the stream; 2 wrong usage.
    Watch(WatchArgs),
    /// Write the entries of a running server, or of a data directory, to a file or to the standard output.
    ///
    /// Without START, END and --prefix the command writes all entries. Values, content types, metadata and expiry are
    /// kept byte for byte. The last line says that the export is complete. Exit codes: 0 complete; 1 failed, perhaps
    /// after a part, from which --resume continues; 2 wrong usage; with --data also those of klad serve, such as 75: a
    /// process serves the directory.
    Export(ExportArgs),
    /// Store the entries of an export in a running server or in a data directory.
    ///
    /// An import may be repeated, because it then stores the same values again. Exit codes: 0 all entries were
    /// stored; 1 failed, perhaps after some of them; 2 wrong usage; with --data and --into also those of klad serve,
    /// such as 75: a process serves the directory.
    Import(ImportArgs),
    /// Ask the admin address of a running server whether it accepts requests.
    ///
    /// Exit codes: 0 yes; 1 no, or no answer; 2 wrong usage.
    Health(HealthArgs),
    /// Take a profile of a running server: where it spends CPU time, memory or waiting time.
    ///
    /// Without --output it prints the facts needed to judge the profile, and the most expensive functions, by
    /// themselves and including the functions that they call.
    ///
    /// Exit codes: 0 taken; 1 failed, for example while the server takes four other profiles of this kind; 2 wrong
    /// usage.
    Profile(ProfileArgs),
    /// Show on the terminal what a running server does: requests, queues, commits, memory, CPU time.
    ///
    /// Keys: 1 to 3 choose a view, p pauses, ? shows help, q quits. The figures are those of the console, a page at the
    /// path /console of the admin address. NO_COLOR switches colours off.
    ///
    /// Exit codes: 0 ended by the user, or printed; 1 failed; 2 wrong usage.
    Top(TopArgs),
}

impl ClientCommand {
    /// Whether the command opens a data directory in this process.
    #[must_use]
    pub fn opens_data(&self) -> bool {
        match self {
            ClientCommand::Export(args) => args.data.is_some(),
            ClientCommand::Import(args) => args.data.is_some() || args.into.is_some(),
            _ => false,
        }
    }
}

/// Options of `klad put`.
#[derive(Args, Debug)]
pub struct PutArgs {
    /// The key, as the argument's own bytes.
    #[arg(value_name = "KEY")]
    pub key: OsString,
    /// The value, as the argument's own bytes. If it is missing or `-`, klad reads the value from the standard input.
    #[arg(value_name = "VALUE", allow_negative_numbers = true)]
    pub value: Option<OsString>,
    /// Read the value from a file.
    #[arg(short, long, value_name = "FILE", conflicts_with = "value", value_hint = clap::ValueHint::FilePath)]
    pub file: Option<PathBuf>,
    /// Remove the value after this time, such as 90s, 1h or a number of seconds [default: the value stays].
    #[arg(long, value_name = "TIME", value_parser = ttl)]
    pub ttl: Option<Duration>,
    /// Content type of the value, which the server gives back with it [default: none].
    #[arg(long, value_name = "TYPE")]
    pub content_type: Option<String>,
    /// Content encoding of the value, such as gzip, which the server gives back with it [default: none].
    ///
    /// klad does not compress the value: it sends and stores the bytes as they are.
    #[arg(long, value_name = "CODING")]
    pub content_encoding: Option<String>,
    /// An entry of metadata, which the server gives back with the value. The option may be repeated.
    #[arg(long, value_name = "NAME=VALUE")]
    pub meta: Vec<OsString>,
    #[command(flatten)]
    #[expect(missing_docs, reason = "it would become the help of the group")]
    pub condition: ConditionArgs,
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
    /// Write the value to FILE. klad replaces an existing file only when the whole value has arrived.
    #[arg(short, long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    pub output: Option<PathBuf>,
    /// Print the headers of the answer before the value: version (ETag), type, metadata and remaining time.
    ///
    /// An empty line follows the headers. With --output, klad prints only the headers.
    #[arg(short = 'i', long)]
    pub headers: bool,
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
    pub condition: MatchArgs,
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

/// Options of `klad add`.
#[derive(Args, Debug)]
pub struct AddArgs {
    /// The key, as the argument's own bytes.
    #[arg(value_name = "KEY")]
    pub key: OsString,
    /// The number to add, from -9223372036854775808 to 9223372036854775807.
    #[arg(value_name = "BY", allow_negative_numbers = true)]
    pub by: i64,
    /// If the command creates the counter, remove the counter after this time, such as 90s, 1h or a number of seconds.
    #[arg(long, value_name = "TIME", value_parser = ttl)]
    pub ttl: Option<Duration>,
    #[command(flatten)]
    #[expect(missing_docs, reason = "it would become the help of the group")]
    pub condition: ConditionArgs,
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

/// Options of `klad expire`.
#[derive(Args, Debug)]
pub struct ExpireArgs {
    /// The key, as the argument's own bytes.
    #[arg(value_name = "KEY")]
    pub key: OsString,
    /// The time after which the server removes the value, such as 90s, 1h or a number of seconds; none: the value
    /// stays.
    #[arg(value_name = "TTL", value_parser = ttl_or_none)]
    pub ttl: Lifetime,
    #[command(flatten)]
    #[expect(missing_docs, reason = "it would become the help of the group")]
    pub condition: MatchArgs,
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

/// How long a value stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lifetime {
    /// For this time.
    Ends(Duration),
    /// Until it is removed.
    Unlimited,
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

/// Options of `klad top`.
#[derive(Args, Debug)]
pub struct TopArgs {
    /// The server's admin address [default: KLAD_ADMIN_URL, or http://127.0.0.1:8081].
    #[arg(value_name = "URL", value_hint = clap::ValueHint::Url)]
    pub url: Option<String>,
    /// Print the figures once, as text.
    #[arg(long)]
    pub once: bool,
    #[command(flatten)]
    #[expect(missing_docs, reason = "it would become the help of the group")]
    pub transport: TransportArgs,
}

/// Conditions of a write that may create a key.
#[derive(Args, Debug, Default)]
#[group(multiple = false)]
pub struct ConditionArgs {
    /// Write only if the key has this version (ETAG with or without quotes), or with * only if the key exists.
    #[arg(long, value_name = "ETAG")]
    pub if_match: Option<String>,
    /// Write only if the key does not exist.
    #[arg(long)]
    pub if_absent: bool,
}

/// Condition of a write that needs a value.
#[derive(Args, Debug)]
pub struct MatchArgs {
    /// Write only if the key has this version (ETAG with or without quotes), or with * only if the key exists.
    #[arg(long, value_name = "ETAG")]
    pub if_match: Option<String>,
}

/// Options of commands that write.
#[derive(Args, Debug)]
pub struct WriteArgs {
    /// Durability that the write must have before the server answers [default: the server's setting].
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
#[derive(Args, Clone, Debug)]
pub struct TransportArgs {
    /// File with the token to send [default: KLAD_TOKEN_FILE, or no token].
    ///
    /// The file contains the token alone, or it is the token file of the server. From the server's file klad sends the
    /// first token that may write, or the first token if none may.
    #[arg(long, value_name = "FILE", help_heading = "Connection", value_hint = clap::ValueHint::FilePath)]
    pub token_file: Option<PathBuf>,
    /// File with the certificates (PEM) that https:// trusts [default: SSL_CERT_FILE, or those of the system].
    #[arg(long, value_name = "FILE", help_heading = "Connection", value_hint = clap::ValueHint::FilePath)]
    pub ca: Option<PathBuf>,
    /// Maximum time of the whole command, from 1ms to 1h [default: no limit, but the command fails after 30s without
    /// a byte].
    ///
    /// With each request klad tells the server nine tenths of the time that is left (Klad-Timeout), so that the
    /// server's answer that nothing was done arrives before the command ends. klad profile waits for a byte for the
    /// length of the profile and 60s more.
    #[arg(long, value_name = "TIME", help_heading = "Connection", value_parser = timeout)]
    pub timeout: Option<Duration>,
}

fn ttl(text: &str) -> Result<Duration, String> {
    let seconds = || text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    match seconds().map_or_else(|| humantime::parse_duration(text), Ok) {
        Ok(ttl) if TTL_RANGE.contains(&ttl) => Ok(ttl),
        Ok(_) => Err("must be from 1ms to 100 years".to_owned()),
        Err(error) => Err(format!("{error}; use for example 90s or 1h")),
    }
}

fn ttl_or_none(text: &str) -> Result<Lifetime, String> {
    if text == "none" { Ok(Lifetime::Unlimited) } else { ttl(text).map(Lifetime::Ends) }
}

fn timeout(text: &str) -> Result<Duration, String> {
    let range = Duration::from_millis(1)..=Duration::from_hours(1);
    match humantime::parse_duration(text) {
        Ok(time) if range.contains(&time) => Ok(time),
        Ok(_) => Err("must be from 1ms to 1h".to_owned()),
        Err(error) => Err(format!("{error}; use for example 500ms or 10s")),
    }
}
