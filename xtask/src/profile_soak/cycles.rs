//! Profiles of one kind, one short one after the other, every answer looked at. Called by `profile_soak`.

use std::io::Write as _;
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use anyhow::{Context as _, Result, ensure};

use crate::profiles::{self, Collapsed};

/// One profile in so many is unpacked, by gzip: a process each time.
const UNPACKED: u64 = 50;

/// What is profiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// CPU time. At a high rate, or the windows would be empty.
    Cpu,
    /// Waits, by turns those for locks and all.
    Locks,
    /// Allocations, by turns living and all.
    Heap,
}

/// All kinds.
pub(crate) const KINDS: [Kind; 3] = [Kind::Cpu, Kind::Locks, Kind::Heap];

/// In which form it is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Pprof,
    Collapsed,
    Flamegraph,
}

/// What the profiles of one kind held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    /// Profiles.
    pub(crate) profiles: u64,
    /// Of those that came as text.
    pub(crate) texts: u64,
    /// Of them, those with a stack in them.
    pub(crate) filled: u64,
}

impl Kind {
    /// The word in reports.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Kind::Cpu => "CPU",
            Kind::Locks => "lock",
            Kind::Heap => "heap",
        }
    }

    fn target(self, cycle: u64) -> (String, Format) {
        let (format, word) = match cycle % 10 {
            9 => (Format::Flamegraph, "flamegraph"),
            1 | 3 | 5 | 7 => (Format::Collapsed, "collapsed"),
            _ => (Format::Pprof, "pprof"),
        };
        // Formats and halves of a kind are mixed: cycles 0 and 1 are of the one, 2 and 3 of the other.
        let second = (cycle / 2).is_multiple_of(2);
        let what = match (self, second) {
            (Kind::Cpu, _) => "profile?seconds=0.005&hz=997",
            (Kind::Locks, false) => "mutex?seconds=0.005&threshold=10us",
            (Kind::Locks, true) => "block?seconds=0.005&threshold=10us",
            (Kind::Heap, false) => "heap?seconds=0.005",
            (Kind::Heap, true) => "allocs?seconds=0.005",
        };
        (format!("/debug/pprof/{what}&format={word}"), format)
    }

    /// Takes profiles for as long as `go_on` says, counting them in `pulse`.
    ///
    /// # Errors
    /// The first answer that is not a profile.
    pub(crate) fn run(self, admin: SocketAddr, go_on: impl Fn() -> bool, pulse: &AtomicU64) -> Result<Seen> {
        let mut seen = Seen::default();
        for cycle in (0..).take_while(|_| go_on()) {
            let (target, format) = self.target(cycle);
            let (status, body) = profiles::take(admin, &target).with_context(|| target.clone())?;
            let words = || String::from_utf8_lossy(&body[..body.len().min(300)]).into_owned();
            ensure!(status == 200, "{target} was answered {status}: {}", words());
            let stacks = check(format, &body, cycle.is_multiple_of(UNPACKED)).with_context(|| target.clone())?;
            seen.profiles += 1;
            seen.texts += u64::from(stacks.is_some());
            seen.filled += u64::from(stacks.is_some_and(|stacks| stacks > 0));
            pulse.fetch_add(1, Ordering::Relaxed);
        }
        Ok(seen)
    }
}

/// Whether an answer is what it should be; of a text, how many stacks it has.
fn check(format: Format, body: &[u8], unpack: bool) -> Result<Option<usize>> {
    match format {
        Format::Collapsed => return Ok(Some(Collapsed::parse(str::from_utf8(body)?)?.stacks.len())),
        Format::Flamegraph => {
            let text = str::from_utf8(body)?;
            // One in which nothing was seen has no picture in it.
            ensure!(text.starts_with("<!DOCTYPE html>") && text.trim_end().ends_with("</html>"), "this is no page");
        }
        Format::Pprof => {
            // Ten bytes of head, eight of length and checksum.
            ensure!(body.len() > 18 && body.starts_with(&[0x1f, 0x8b, 8]), "this is not gzipped");
            if unpack {
                // Sample types, the first field of each profile, as a message of a length.
                ensure!(unzip(body)?.first() == Some(&0x0a), "this is no profile");
            }
        }
    }
    Ok(None)
}

/// By a program that shares nothing with klad.
fn unzip(bytes: &[u8]) -> Result<Vec<u8>> {
    let mut command = Command::new("gzip");
    command.arg("-dc").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().context("cannot run gzip")?;
    let mut input = child.stdin.take().context("it was asked for")?;
    let output = thread::scope(|scope| {
        // Beside the reading: a full pipe would hold both.
        scope.spawn(move || input.write_all(bytes));
        child.wait_with_output()
    })?;
    ensure!(output.status.success(), "gzip does not take it: {}", output.status);
    Ok(output.stdout)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_is_asked_for_in_every_form() {
        for kind in KINDS {
            let targets: std::collections::BTreeSet<_> = (0..40).map(|cycle| kind.target(cycle).0).collect();
            assert_eq!(targets.len(), if kind == Kind::Cpu { 3 } else { 6 }, "{targets:?}");
        }
    }

    #[test]
    fn what_is_no_profile_is_noticed() {
        let problem = b"{\"title\":\"busy\"}";
        for format in [Format::Pprof, Format::Collapsed, Format::Flamegraph] {
            assert!(check(format, problem, true).is_err(), "{format:?}");
            assert!(check(format, b"", true).is_err(), "{format:?}");
        }
        // `printf ab | gzip -n`: well packed, and no profile.
        let packed = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3, 0x4b, 0x4c, 2, 0, 0x6d, 0x48, 0x83, 0x9e, 2, 0, 0, 0];
        assert!(check(Format::Pprof, &packed, false).is_ok());
        assert!(check(Format::Pprof, &packed, true).is_err());
        assert_eq!(check(Format::Collapsed, b"# events: 0\n", false).expect("a profile"), Some(0));
    }
}
