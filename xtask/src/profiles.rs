//! Profiles as klad gives them over its admin listener, and what of their text chores read. Called by the `profile_*` chores.

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

use crate::http::{Connection, Framing};

/// From asking for a profile until it is being taken, at most.
const BEGIN_MAX: Duration = Duration::from_secs(5);

/// A profile as text: `# name: value` lines, then `root;…;leaf N`.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Collapsed {
    /// Name and value.
    pub(crate) facts: Vec<(String, String)>,
    /// Root first, the thread as the root. Figures of what has changed may be below zero.
    pub(crate) stacks: Vec<(Vec<String>, i64)>,
}

/// Asks for `target` on a connection of its own; answers the status and the whole body.
pub(crate) fn take(admin: SocketAddr, target: &str) -> Result<(u16, Vec<u8>)> {
    let mut connection = Connection::open(admin)?;
    connection.send_get(target)?;
    let head = connection.head()?;
    let mut body = Vec::new();
    match head.framing {
        Framing::Length(length) => connection.read_exactly(usize::try_from(length)?, &mut body)?,
        Framing::Chunked => {
            while let Some(chunk) = connection.chunk()? {
                body.extend_from_slice(chunk);
            }
        }
    }
    Ok((head.status, body))
}

/// The same, again while another profile is in the way; nothing but 200 will do.
pub(crate) fn take_when_free(admin: SocketAddr, target: &str) -> Result<Vec<u8>> {
    let asked = Instant::now();
    loop {
        match take(admin, target)? {
            (200, body) => return Ok(body),
            (409, _) if asked.elapsed() < BEGIN_MAX => thread::sleep(Duration::from_millis(5)),
            (status, body) => bail!("{target} was answered {status}: {}", String::from_utf8_lossy(&body).trim()),
        }
    }
}

/// Waits until a profile is being taken of which another like `other` cannot be taken beside it: until that is answered 409.
/// `other` is short, so that it does little harm when it comes first.
pub(crate) fn wait_until_busy(admin: SocketAddr, other: &str) -> Result<()> {
    let asked = Instant::now();
    while asked.elapsed() < BEGIN_MAX {
        match take(admin, other)? {
            (409, _) => return Ok(()),
            (200, _) => thread::sleep(Duration::from_millis(20)),
            (status, body) => bail!("{other} was answered {status}: {}", String::from_utf8_lossy(&body).trim()),
        }
    }
    bail!("no profile has begun in {BEGIN_MAX:?}")
}

impl Collapsed {
    /// Reads the text.
    ///
    /// # Errors
    /// When a line is neither a fact nor a stack.
    pub(crate) fn parse(text: &str) -> Result<Collapsed> {
        let mut profile = Collapsed::default();
        for line in text.lines() {
            if let Some(fact) = line.strip_prefix("# ") {
                let (name, value) = fact.split_once(": ").with_context(|| format!("no fact: {line}"))?;
                profile.facts.push((name.to_owned(), value.to_owned()));
                continue;
            }
            let (stack, count) = line.rsplit_once(' ').with_context(|| format!("no stack: {line}"))?;
            let count = count.parse().with_context(|| format!("no count: {line}"))?;
            profile.stacks.push((stack.split(';').map(str::to_owned).collect(), count));
        }
        ensure!(!profile.facts.is_empty(), "a profile without a word about itself");
        Ok(profile)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_and_stacks_are_told_apart() {
        let text =
            "# events: 3\n# waits: 1,204 waits above 10 µs among 88,000 acquisitions\nklad-commit;main;a b 7\nx;y -5\n";
        let profile = Collapsed::parse(text).expect("a profile");
        assert_eq!(profile.facts[0], ("events".to_owned(), "3".to_owned()));
        assert_eq!(profile.stacks[0], (["klad-commit", "main", "a b"].map(str::to_owned).to_vec(), 7));
    }

    #[test]
    fn what_is_no_profile_is_an_error() {
        for text in ["", "a;b 3\n", "# fact\n", "# events: 1\na;b\n", "# events: 1\na;b three\n"] {
            assert!(Collapsed::parse(text).is_err(), "{text:?}");
        }
    }
}
