//! `klad profile`: requests a profile from the admin listener of a server and prints or draws it. Called by
//! `client::run`.
//!
//! ```text
//!     target (path and query of the profile) ──▶ exchange ──▶ pprof ──▶ table, picture or file
//!     two files (pprof or collapsed stacks) ──▶ difference ──▶ table, picture or file
//! ```
//!
//! The command requests the protobuf for every output, because the protobuf has all the data, and the drawing then does
//! not depend on the version of the server. Only the list of threads is requested as text. The command checks all
//! arguments before the request, because a profile takes time.

use std::fs::File;
use std::io::{self, IsTerminal as _, Read as _, Write as _};
use std::path::Path;
use std::time::Duration;

use crate::client::answer::{Answer, AnswerError};
use crate::client::connection::Connection;
use crate::client::exchange::{AnswerWait, Request, exchange_with, url_from};
use crate::client::limits::{CLIENT_IDLE_TIMEOUT, CLIENT_PROFILE_BYTES_MAX};
use crate::client::output::{CopyError, write_out};
use crate::client::problem::rejection;
use crate::client::profile_args::{DiffArgs, Event, Format, OutArgs, ProfileArgs, ProfileCommand};
use crate::client::profile_table::{collapsed_difference, difference, summary};
use crate::client::replace::write_whole;
use crate::client::{ADMIN_URL_VARIABLE, Error, show};
use klad_profile::{Name, Profile, collapsed, picture, pprof};
use klad_server::limits::PROFILE_MAKING_TIMEOUT;

/// Default of `--duration`.
const DURATION: Duration = Duration::from_secs(10);

/// Default number of CPU samples per second. A rate of 100 would be in step with work that runs every 10 ms.
const HZ: u64 = 99;

/// Minimum interval of CPU samples: kernels check their timers 100 to 1,000 times a second.
const INTERVAL_MIN: Duration = Duration::from_millis(1);

const SECOND_NS: u128 = 1_000_000_000;

/// Takes a profile, or compares two.
///
/// # Errors
/// [`Error`].
pub(super) fn run(args: &ProfileArgs) -> Result<(), Error> {
    match &args.command {
        Some(ProfileCommand::Diff(args)) => diff(args),
        None => take(args),
    }
}

fn take(args: &ProfileArgs) -> Result<(), Error> {
    let format = format(&args.out)?;
    let (target, duration) = target(args, format.is_some())?;
    if let Some(timeout) = args.transport.timeout.filter(|timeout| *timeout <= duration) {
        let (timeout, duration) = (humantime::format_duration(timeout), humantime::format_duration(duration));
        return Err(Error::Usage(format!("--timeout {timeout} would end a profile of {duration}: it must be longer")));
    }
    let url = url_from(args.url.as_deref(), ADMIN_URL_VARIABLE, "http://127.0.0.1:8081")?;
    let request = Request { method: "GET", target, headers: Vec::new(), body: None };
    let progress = Progress { shown: io::stderr().is_terminal() && !duration.is_zero() };
    let mut show = |waited| progress.show(duration, waited);
    let mut answer_wait = AnswerWait { silence_max: silence_max(duration), each_second: &mut show };
    let exchanged = exchange_with(&url, &args.transport, request, &mut answer_wait);
    progress.clear();
    let (mut connection, mut answer) = exchanged?;
    if answer.status != 200 {
        return Err(no_profile(&mut connection, &mut answer));
    }
    let bytes = body(&mut connection, &mut answer)?;
    if args.event == Event::Threads && format.is_none() {
        return write_out(lines(&bytes).as_bytes());
    }
    let malformed = |error| Error::Failed(format!("the profile from the server cannot be read: {error}"));
    let profile = pprof::decode(&bytes).map_err(malformed)?;
    let Some((path, format)) = format else { return write_out(summary(&profile).as_bytes()) };
    let drawn = match format {
        // Unchanged, so that fields which this version of klad does not know are kept.
        Format::Pprof => bytes,
        Format::Html => picture::flame_graph(&profile).into_bytes(),
        Format::Svg => picture::svg(&profile).into_bytes(),
        Format::Collapsed => collapsed::write(&profile).into_bytes(),
    };
    put(path, &drawn)
}

/// Returns how long the server may be silent: the length of the profile, the time in which the server resolves
/// symbols, and the usual limit, added up.
fn silence_max(duration: Duration) -> Duration {
    duration + PROFILE_MAKING_TIMEOUT + CLIENT_IDLE_TIMEOUT
}

/// Returns text of a server without characters that control a terminal.
fn lines(text: &[u8]) -> String {
    String::from_utf8_lossy(text).lines().map(|line| show::printable(line) + "\n").collect()
}

/// Returns path and query of the request, and how long the server takes the profile. With `is_drawn`, the request for
/// threads asks for a profile instead of a list for people.
fn target(args: &ProfileArgs, is_drawn: bool) -> Result<(String, Duration), Error> {
    let usage = |text: &str| Err(Error::Usage(text.to_owned()));
    let duration = args.duration.unwrap_or(DURATION);
    let seconds = duration.as_secs_f64();
    let target = match (args.event, args.interval) {
        (Event::Alloc | Event::Heap, Some(_)) => {
            return usage("--interval is for cpu, lock and block; the server's --heap-sample sets that of allocations");
        }
        (Event::Threads, Some(_)) => {
            return usage("--interval is for cpu, lock and block; threads are sampled at once");
        }
        (Event::Heap | Event::Threads, None) if args.duration.is_some() => {
            return usage("--duration is for cpu, alloc, lock and block; heap and threads show the current moment");
        }
        (Event::Heap, None) => return Ok(("/debug/pprof/heap".to_owned(), Duration::ZERO)),
        (Event::Threads, None) => {
            let format = if is_drawn { "?format=pprof" } else { "" };
            return Ok((format!("/debug/pprof/threads{format}"), Duration::ZERO));
        }
        (Event::Alloc, None) => format!("/debug/pprof/allocs?seconds={seconds}"),
        (Event::Cpu, interval) => format!("/debug/pprof/profile?seconds={seconds}&hz={}", hz(interval)?),
        (Event::Lock, interval) => format!("/debug/pprof/mutex?seconds={seconds}{}", threshold(interval)?),
        (Event::Block, interval) => format!("/debug/pprof/block?seconds={seconds}{}", threshold(interval)?),
    };
    Ok((target, duration))
}

fn hz(interval: Option<Duration>) -> Result<u64, Error> {
    let Some(interval) = interval else { return Ok(HZ) };
    if interval > Duration::from_secs(1) {
        return Err(Error::Usage("--interval with --event cpu must be 1s at most".to_owned()));
    }
    if interval < INTERVAL_MIN {
        let _ = writeln!(io::stderr(), "klad profile: --interval for CPU time is at least 1ms; it is taken as 1ms");
    }
    let interval = interval.max(INTERVAL_MIN);
    // The server takes a whole number of samples a second: the nearest one.
    let hz = (SECOND_NS + interval.as_nanos() / 2) / interval.as_nanos();
    Ok(u64::try_from(hz).expect("at most a thousand"))
}

fn threshold(interval: Option<Duration>) -> Result<String, Error> {
    match interval {
        None => Ok(String::new()),
        Some(wait) if wait <= Duration::from_secs(1) && wait.subsec_nanos().is_multiple_of(1000) => {
            Ok(format!("&threshold={}us", wait.as_micros()))
        }
        Some(_) => Err(Error::Usage(
            "--interval with --event lock and block must be 0s to 1s, in whole microseconds".to_owned(),
        )),
    }
}

/// Returns path and format of the output; `None`: print a table.
fn format(out: &OutArgs) -> Result<Option<(&Path, Format)>, Error> {
    let Some(path) = out.output.as_deref() else { return Ok(None) };
    let to_stdout = path == Path::new("-");
    let format = match out.format {
        Some(format) => format,
        None if to_stdout => Format::Pprof,
        None => by_extension(path).ok_or_else(|| {
            let extensions = ".html, .svg, .pb.gz, .pprof, .collapsed, .folded, .txt";
            Error::Usage(format!(
                "{} has none of the extensions {extensions}; choose the format with --format",
                path.display()
            ))
        })?,
    };
    if to_stdout && format == Format::Pprof && io::stdout().is_terminal() {
        return Err(Error::Usage("pprof is binary and not for a terminal; use --format collapsed".to_owned()));
    }
    Ok(Some((path, format)))
}

fn by_extension(path: &Path) -> Option<Format> {
    let name = path.file_name()?.to_str()?.to_ascii_lowercase();
    let extensions = [
        (".html", Format::Html),
        (".svg", Format::Svg),
        (".pb.gz", Format::Pprof),
        (".pprof", Format::Pprof),
        (".collapsed", Format::Collapsed),
        (".folded", Format::Collapsed),
        (".txt", Format::Collapsed),
    ];
    extensions.into_iter().find(|(extension, _)| name.ends_with(extension)).map(|(_, format)| format)
}

fn put(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    if path == Path::new("-") { write_out(bytes) } else { write_whole(path, bytes) }
}

/// Returns the error for an answer without a profile: the server's text, with advice for 404 and 409.
fn no_profile(connection: &mut Connection, answer: &mut Answer) -> Error {
    let status = answer.status;
    match rejection(connection, answer, false) {
        Error::Refused(text) if status == 404 => Error::Refused(format!(
            "{text}: the server is an older version without such profiles, or this is not its admin address"
        )),
        Error::Refused(text) if status == 409 => {
            Error::Refused(format!("{text}; try again when the current profile has ended"))
        }
        error => error,
    }
}

fn body(connection: &mut Connection, answer: &mut Answer) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    let result = answer.copy_body::<CopyError>(connection, |piece| {
        bytes.extend_from_slice(piece);
        if bytes.len() <= CLIENT_PROFILE_BYTES_MAX {
            return Ok(());
        }
        let text = format!("the profile has more than {} MiB", CLIENT_PROFILE_BYTES_MAX >> 20);
        Err(CopyError::Sink(Error::Failed(text)))
    });
    match result {
        Ok(()) => Ok(bytes),
        Err(CopyError::Answer(error)) => Err(incomplete(&error)),
        Err(CopyError::Sink(error)) => Err(error),
    }
}

fn incomplete(error: &AnswerError) -> Error {
    Error::Failed(format!("{error}; the profile is incomplete"))
}

/// The remaining time, shown on a terminal.
struct Progress {
    shown: bool,
}

impl Progress {
    fn show(&self, duration: Duration, waited: Duration) {
        if self.shown {
            let left = duration.saturating_sub(waited).as_secs_f64().ceil();
            let text = if left > 0.0 { format!("{left} s left") } else { "the server resolves names".to_owned() };
            let _ = write!(io::stderr(), "\r\x1b[Kklad profile: {text}");
        }
    }

    fn clear(&self) {
        if self.shown {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

fn diff(args: &DiffArgs) -> Result<(), Error> {
    let format = format(&args.out)?;
    if matches!(format, Some((_, Format::Pprof))) {
        return Err(Error::Usage("a difference can be written as .html, .svg or .collapsed".to_owned()));
    }
    let (before, after) = (read(&args.before)?, read(&args.after)?);
    let names = [args.before.to_string_lossy(), args.after.to_string_lossy()];
    let names = [names[0].as_ref(), names[1].as_ref()];
    let failed = |error| Error::Failed(format!("the profiles cannot be compared: {error}"));
    before.check_comparable(&after, names, args.normalize).map_err(failed)?;
    let Some((path, format)) = format else {
        return write_out(difference(&before, &after, args.normalize).as_bytes());
    };
    let drawn = match format {
        Format::Html => picture::difference_page(&before, &after, names, args.normalize).map_err(failed)?,
        Format::Svg => picture::difference(&before, &after, names, args.normalize).map_err(failed)?,
        Format::Collapsed | Format::Pprof => collapsed_difference(&before, &after, args.normalize),
    };
    put(path, drawn.as_bytes())
}

/// Reads a profile from a file: pprof, with or without gzip, or collapsed stacks. The content determines the format,
/// not the name.
fn read(path: &Path) -> Result<Profile<Name>, Error> {
    let failed = |why| Error::File { what: format!("cannot read {}", path.display()), why };
    let mut bytes = Vec::new();
    let limit = CLIENT_PROFILE_BYTES_MAX as u64 + 1;
    File::open(path).and_then(|file| file.take(limit).read_to_end(&mut bytes)).map_err(failed)?;
    if bytes.len() > CLIENT_PROFILE_BYTES_MAX {
        let text = format!("{} has more than {} MiB", path.display(), CLIENT_PROFILE_BYTES_MAX >> 20);
        return Err(Error::Failed(text));
    }
    let is_gzip = bytes.starts_with(&[0x1f, 0x8b]);
    let profile = match std::str::from_utf8(&bytes) {
        // A protobuf has control characters in its first fields. Text has only line ends and tabs.
        Ok(text) if !is_gzip && !text.contains(|c: char| c.is_control() && !"\n\r\t".contains(c)) => {
            collapsed::read(text)
        }
        _ => pprof::decode(&bytes),
    };
    profile.map_err(|error| Error::Failed(format!("{}: {error}", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use klad_server::limits::PROFILE_WINDOW_MAX;

    #[test]
    fn a_server_may_be_silent_while_it_samples_and_resolves_names() {
        for duration in [Duration::ZERO, Duration::from_millis(1), Duration::from_secs(31), PROFILE_WINDOW_MAX] {
            let silence = silence_max(duration);
            assert!(silence > duration + PROFILE_MAKING_TIMEOUT, "the limit of the server comes first: {silence:?}");
            assert!(silence >= duration + CLIENT_IDLE_TIMEOUT, "{silence:?}");
        }
    }

    #[test]
    fn text_of_a_server_cannot_control_a_terminal() {
        assert_eq!(lines(b"2 threads\n\n7 a\x1b[2J\r\n    f\xff"), "2 threads\n\n7 a?[2J\n    f\u{fffd}\n");
    }
}
