//! `klad profile`: has a server's admin listener take a profile, and draws it here. Called by `mod`.
//!
//! ```text
//!     target (what was asked for, as the server takes it) ──▶ exchange, patiently ──▶ pprof ──▶ table | picture | file
//!                                                        two files ──▶ pprof, collapsed ──▶ difference ─────────┘
//! ```
//!
//! It always fetches the protobuf: that one has everything, and what is drawn from it does not depend on the server's version.
//! Everything that was typed is checked before the server is asked, as a profile takes its time.

use std::fs::File;
use std::io::{self, IsTerminal as _, Read as _, Write as _};
use std::path::Path;
use std::time::Duration;

use crate::client::answer::{Answer, Broken};
use crate::client::commands::{Ending, refused, write_out};
use crate::client::connection::Connection;
use crate::client::exchange::{Patience, Request, exchange_patiently, url_from};
use crate::client::profile_args::{DiffArgs, Event, Form, OutArgs, ProfileArgs, ProfileCommand};
use crate::client::profile_table::{collapsed_difference, difference, summary};
use crate::client::replace::write_whole;
use crate::client::{ADMIN_URL_VARIABLE, Error, show};
use klad_base::limits::{CLIENT_IDLE_TIMEOUT, CLIENT_PROFILE_BYTES_MAX, PROFILE_MAKING_TIMEOUT};
use klad_profile::{Name, Profile, collapsed, picture, pprof};

/// Without `--duration`.
const DURATION: Duration = Duration::from_secs(10);

/// Without `--interval`. A hundred would beat with what runs each 10 ms.
const HZ: u64 = 99;

/// Of looks at a thread: kernels check their timers 100 to 1,000 times a second.
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
    let form = form(&args.out)?;
    let (target, duration) = target(args, form.is_some())?;
    if let Some(timeout) = args.transport.timeout.filter(|timeout| *timeout <= duration) {
        let (timeout, duration) = (humantime::format_duration(timeout), humantime::format_duration(duration));
        return Err(Error::Usage(format!("--timeout {timeout} would end a profile of {duration}: it must be longer")));
    }
    let url = url_from(args.url.as_deref(), ADMIN_URL_VARIABLE, "http://127.0.0.1:8081")?;
    let request = Request { method: "GET", target, headers: Vec::new(), body: None };
    let progress = Progress { shown: io::stderr().is_terminal() && !duration.is_zero() };
    let mut show = |waited| progress.show(duration, waited);
    let mut patience = Patience { silence: silence_max(duration), each_second: &mut show };
    let exchanged = exchange_patiently(&url, &args.transport, request, &mut patience);
    progress.clear();
    let (mut connection, mut answer) = exchanged?;
    if answer.status != 200 {
        return Err(no_profile(&mut connection, &mut answer));
    }
    let bytes = body(&mut connection, &mut answer)?;
    if args.event == Event::Threads && form.is_none() {
        return write_out(lines(&bytes).as_bytes());
    }
    let malformed = |error| Error::Failed(format!("what the server has sent cannot be read: {error}"));
    let profile = pprof::decode(&bytes).map_err(malformed)?;
    let Some((path, form)) = form else { return write_out(summary(&profile).as_bytes()) };
    let drawn = match form {
        // As it came: nothing is lost that this klad does not know.
        Form::Pprof => bytes,
        Form::Html => picture::flame_graph(&profile).into_bytes(),
        Form::Svg => picture::svg(&profile).into_bytes(),
        Form::Collapsed => collapsed::write(&profile).into_bytes(),
    };
    put(path, &drawn)
}

/// How long nothing need come: while the profile is taken, while the server names what it has seen, and then as long as from
/// any other server.
fn silence_max(duration: Duration) -> Duration {
    duration + PROFILE_MAKING_TIMEOUT + CLIENT_IDLE_TIMEOUT
}

/// A server's text, of which nothing but its line ends steers a terminal.
fn lines(text: &[u8]) -> String {
    String::from_utf8_lossy(text).lines().map(|line| show::printable(line) + "\n").collect()
}

/// Path and query, and how long the profile takes. Whether it is drawn counts for threads: there is a list of them for people.
fn target(args: &ProfileArgs, is_drawn: bool) -> Result<(String, Duration), Error> {
    let usage = |text: &str| Err(Error::Usage(text.to_owned()));
    let duration = args.duration.unwrap_or(DURATION);
    let seconds = duration.as_secs_f64();
    let target = match (args.event, args.interval) {
        (Event::Alloc | Event::Heap, Some(_)) => {
            return usage(
                "--interval is for cpu, lock and block; how much is allocated between two looks is the server's --heap-sample",
            );
        }
        (Event::Threads, Some(_)) => return usage("--interval is for cpu, lock and block; threads are looked at once"),
        (Event::Heap | Event::Threads, None) if args.duration.is_some() => {
            return usage("--duration is for cpu, alloc, lock and block; heap and threads are about this moment");
        }
        (Event::Heap, None) => return Ok(("/debug/pprof/heap".to_owned(), Duration::ZERO)),
        (Event::Threads, None) => {
            let form = if is_drawn { "?format=pprof" } else { "" };
            return Ok((format!("/debug/pprof/threads{form}"), Duration::ZERO));
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
        return Err(Error::Usage("--interval with --event cpu is 1s at most".to_owned()));
    }
    if interval < INTERVAL_MIN {
        let _ =
            writeln!(io::stderr(), "klad profile: CPU time is sampled each 1ms at most, so --interval is taken as 1ms");
    }
    let interval = interval.max(INTERVAL_MIN);
    // The server takes whole looks a second: the nearest.
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
            "--interval with --event lock and block is a wait of 0s to 1s, in whole microseconds".to_owned(),
        )),
    }
}

/// Where to, and how; `None`: a table.
fn form(out: &OutArgs) -> Result<Option<(&Path, Form)>, Error> {
    let Some(path) = out.output.as_deref() else { return Ok(None) };
    let to_stdout = path == Path::new("-");
    let form = match out.format {
        Some(form) => form,
        None if to_stdout => Form::Pprof,
        None => by_ending(path).ok_or_else(|| {
            let endings = ".html, .svg, .pb.gz, .pprof, .collapsed, .folded, .txt";
            Error::Usage(format!(
                "{} has none of the endings {endings}; --format says which form is meant",
                path.display()
            ))
        })?,
    };
    if to_stdout && form == Form::Pprof && io::stdout().is_terminal() {
        return Err(Error::Usage("pprof is no text for a terminal; --format collapsed is".to_owned()));
    }
    Ok(Some((path, form)))
}

fn by_ending(path: &Path) -> Option<Form> {
    let name = path.file_name()?.to_str()?.to_ascii_lowercase();
    let endings = [
        (".html", Form::Html),
        (".svg", Form::Svg),
        (".pb.gz", Form::Pprof),
        (".pprof", Form::Pprof),
        (".collapsed", Form::Collapsed),
        (".folded", Form::Collapsed),
        (".txt", Form::Collapsed),
    ];
    endings.into_iter().find(|(ending, _)| name.ends_with(ending)).map(|(_, form)| form)
}

fn put(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    if path == Path::new("-") { write_out(bytes) } else { write_whole(path, bytes) }
}

/// Why the answer is no profile. What busy (409) and impossible (501, 503) mean, the server's own words say best.
fn no_profile(connection: &mut Connection, answer: &mut Answer) -> Error {
    let status = answer.status;
    match refused(connection, answer, false) {
        Error::Refused(text) if status == 404 => Error::Refused(format!(
            "{text}: this klad takes no such profiles, as it is an older one, or this is not its admin address"
        )),
        Error::Refused(text) if status == 409 => {
            Error::Refused(format!("{text}; try again when the profile that is being taken has ended"))
        }
        error => error,
    }
}

fn body(connection: &mut Connection, answer: &mut Answer) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    let copied = answer.copy_body::<Ending>(connection, |piece| {
        bytes.extend_from_slice(piece);
        if bytes.len() <= CLIENT_PROFILE_BYTES_MAX {
            return Ok(());
        }
        let text = format!("the profile has more than {} MiB", CLIENT_PROFILE_BYTES_MAX >> 20);
        Err(Ending::Sink(Error::Failed(text)))
    });
    match copied {
        Ok(()) => Ok(bytes),
        Err(Ending::Broken(broken)) => Err(broken_off(&broken)),
        Err(Ending::Sink(error)) => Err(error),
    }
}

fn broken_off(broken: &Broken) -> Error {
    Error::Failed(format!("{broken}; the profile is not whole"))
}

/// How long it still takes, for somebody who waits at a terminal.
struct Progress {
    shown: bool,
}

impl Progress {
    fn show(&self, duration: Duration, waited: Duration) {
        if self.shown {
            let left = duration.saturating_sub(waited).as_secs_f64().ceil();
            let text =
                if left > 0.0 { format!("{left} s left") } else { "the server names what it has seen".to_owned() };
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
    let form = form(&args.out)?;
    if matches!(form, Some((_, Form::Pprof))) {
        return Err(Error::Usage("a difference is written as .html, .svg or .collapsed".to_owned()));
    }
    let (before, after) = (read(&args.before)?, read(&args.after)?);
    let names = [args.before.to_string_lossy(), args.after.to_string_lossy()];
    let names = [names[0].as_ref(), names[1].as_ref()];
    let failed = |error| Error::Failed(format!("the profiles cannot be compared: {error}"));
    before.check_comparable(&after, names, args.normalize).map_err(failed)?;
    let Some((path, form)) = form else {
        return write_out(difference(&before, &after, args.normalize).as_bytes());
    };
    let drawn = match form {
        Form::Html => picture::difference_page(&before, &after, names, args.normalize).map_err(failed)?,
        Form::Svg => picture::difference(&before, &after, names, args.normalize).map_err(failed)?,
        Form::Collapsed | Form::Pprof => collapsed_difference(&before, &after, args.normalize),
    };
    put(path, drawn.as_bytes())
}

/// A profile from a file, of whichever form it is: its bytes tell, not its name.
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
        // A protobuf has bytes below the blank in its first fields, and text has none but its line ends.
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
    use klad_base::limits::PROFILE_WINDOW_MAX;

    #[test]
    fn a_server_may_be_silent_for_the_whole_profile_and_while_it_is_named() {
        for duration in [Duration::ZERO, Duration::from_millis(1), Duration::from_secs(31), PROFILE_WINDOW_MAX] {
            let silence = silence_max(duration);
            assert!(silence > duration + PROFILE_MAKING_TIMEOUT, "the server's own end comes first: {silence:?}");
            assert!(silence >= duration + CLIENT_IDLE_TIMEOUT, "{silence:?}");
        }
    }

    #[test]
    fn what_a_server_says_of_its_threads_steers_no_terminal() {
        assert_eq!(lines(b"2 threads\n\n7 a\x1b[2J\r\n    f\xff"), "2 threads\n\n7 a?[2J\n    f\u{fffd}\n");
    }
}
