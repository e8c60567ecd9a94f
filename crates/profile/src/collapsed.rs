//! The collapsed text format: one stack per line, for `flamegraph.pl`, speedscope and grep.
//!
//! ```text
//!   # title: CPU time
//!   # value: cpu nanoseconds
//!   # root: thread
//!   # sampling rate: 99 Hz
//!   klad-worker-0;main;f;g 10101010
//! ```
//!
//! It contains only the shown value. Called by the admin listener of `klad-server`, and by code that reads such
//! files.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::time::Duration;

use crate::{Error, Name, Profile, Sample, ValueType};

/// The longest line that is read, bytes: 16,384 frames with names of 256 bytes.
const LINE_BYTES_MAX: usize = 4 << 20;

/// Returns a profile in this format. Stacks whose shown value is 0 are left out.
#[must_use]
pub fn write(profile: &Profile<Name>) -> String {
    let mut text = String::new();
    let _ = writeln!(text, "# title: {}", one_line(&profile.title));
    if let Some(value) = profile.values.get(profile.shown) {
        let _ = writeln!(text, "# value: {} {}", one_line(&value.kind), one_line(&value.unit));
    }
    let threads = profile.samples.iter().any(|sample| !sample.thread.is_empty());
    if threads {
        // Without this line a reader could not tell a thread's name from a function's.
        let _ = writeln!(text, "# root: thread");
    }
    for (name, value) in &profile.facts {
        let _ = writeln!(text, "# {}: {}", one_line(name), one_line(value));
    }
    for sample in &profile.samples {
        let value = sample.values.get(profile.shown).copied().unwrap_or_default();
        // For example a stack whose allocations were all freed, in a profile of memory in use.
        if value == 0 {
            continue;
        }
        let thread = threads.then_some(if sample.thread.is_empty() { "?" } else { &sample.thread });
        let frames = sample.frames.iter().rev().map(|frame| &**frame);
        let words: Vec<String> = thread.into_iter().chain(frames).map(frame).collect();
        // An unknown stack must still have a name.
        let stack = if words.is_empty() { "[unknown]".to_owned() } else { words.join(";") };
        let _ = writeln!(text, "{stack} {value}");
    }
    text
}

/// Reads the output of [`write`], and files that other programs write in this format.
///
/// # Errors
/// [`Error::Malformed`] for a line that is neither a fact nor a stack with a value, for a line above 4 MiB, and if the
/// sum of the values exceeds 63 bits.
pub fn read(text: &str) -> Result<Profile<Name>, Error> {
    let mut profile = Profile {
        title: "profile".to_owned(),
        values: vec![ValueType::new("samples", "count")],
        shown: 0,
        samples: Vec::new(),
        period: None,
        began_unix_ns: 0,
        duration: Duration::ZERO,
        facts: Vec::new(),
    };
    let mut threads = false;
    let mut names: HashSet<Name> = HashSet::new();
    for (number, line) in text.lines().enumerate() {
        let malformed = |why: &str| Error::Malformed(format!("line {}: {why}", number + 1));
        if line.len() > LINE_BYTES_MAX {
            return Err(malformed("the line is too long"));
        }
        if let Some(fact) = line.strip_prefix("# ") {
            match fact.split_once(": ") {
                Some(("title", title)) => title.clone_into(&mut profile.title),
                Some(("value", value)) => {
                    let (kind, unit) = value.split_once(' ').unwrap_or((value, "count"));
                    profile.values = vec![ValueType::new(kind, unit)];
                }
                Some(("root", "thread")) => threads = true,
                Some((name, value)) => profile.facts.push((name.to_owned(), value.to_owned())),
                None => profile.facts.push(("comment".to_owned(), fact.to_owned())),
            }
            continue;
        }
        if line.trim().is_empty() || line.starts_with('#') {
            continue;
        }
        let (stack, value) = line.rsplit_once(' ').ok_or_else(|| malformed("the value is missing"))?;
        let value = value.parse().map_err(|_| malformed("the value is not a number"))?;
        let (thread, stack) = if threads { stack.split_once(';').unwrap_or((stack, "")) } else { ("", stack) };
        let mut one = |frame: &str| -> Name {
            if let Some(known) = names.get(frame) {
                return known.clone();
            }
            let name = Name::from(frame);
            names.insert(name.clone());
            name
        };
        let frames = stack.split(';').rev().filter(|frame| !frame.is_empty()).map(&mut one).collect();
        let thread = if thread == "?" { "" } else { thread }.to_owned();
        profile.samples.push(Sample { thread, frames, values: vec![value] });
    }
    profile.check_sums()?;
    Ok(profile)
}

/// Replaces characters with a meaning in this format: `;` ends a frame, and the last space ends the stack.
fn frame(name: &str) -> String {
    name.chars()
        .map(|letter| match letter {
            ';' => ':',
            letter if letter.is_whitespace() || letter.is_control() => '_',
            letter => letter,
        })
        .collect()
}

fn one_line(text: &str) -> String {
    text.chars().map(|letter| if letter.is_control() { ' ' } else { letter }).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::{any_profile, example};

    #[test]
    fn the_text_is_as_documented() {
        let text = write(&example());
        let expected = "# title: CPU time\n# value: cpu nanoseconds\n# root: thread\n# events: 3\n# sampling rate: 99 Hz\n\
                        worker;main;f 20000\nworker;main;g<T,_[u8:_8]> 10000\n";
        assert_eq!(text, expected);
    }

    #[test]
    fn files_of_other_programs_can_be_read() {
        let read_back = read("a;b c;d 5\n\n#x\na 7\n").expect("well formed");
        assert_eq!(read_back.samples.len(), 2);
        let frames: Vec<&str> = read_back.samples[0].frames.iter().map(|frame| &**frame).collect();
        assert_eq!((frames, read_back.samples[0].values[0]), (vec!["d", "b c", "a"], 5));
        for bad in ["a;b", "a;b x", "a;b 1.5"] {
            assert!(matches!(read(bad), Err(Error::Malformed(_))), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn a_written_profile_is_read_back(profile in any_profile()) {
            let read_back = read(&write(&profile)).expect("well formed");
            prop_assert_eq!(&read_back.title, &profile.title);
            prop_assert_eq!(&read_back.facts, &profile.facts);
            prop_assert_eq!(&read_back.values[0], &profile.values[profile.shown]);
            prop_assert_eq!(read_back.samples.len(), profile.samples.len());
            for (read_back, written) in read_back.samples.iter().zip(&profile.samples) {
                prop_assert_eq!(&read_back.thread, &written.thread);
                prop_assert_eq!(&read_back.frames, &written.frames);
                prop_assert_eq!(read_back.values[0], written.values[profile.shown]);
            }
        }

        #[test]
        fn no_text_makes_the_reader_panic(text in "(# |[a-z;: ]|[0-9]|\n){0,200}") {
            let _ = read(&text);
        }
    }
}
