//! Progress of `klad export` and `klad import`, on a terminal only. Called by both.

use std::io::{self, IsTerminal as _};

use bytesize::ByteSize;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Entries between two changes of the shown text.
const STEP: u64 = 1_000;

/// Counts entries and bytes, and shows them.
pub(super) struct Progress {
    bar: Option<ProgressBar>,
    pub(super) entries: u64,
    bytes: u64,
}

impl Progress {
    /// Starts with both counts at 0.
    pub(super) fn start(word: &'static str) -> Progress {
        let bar = io::stderr().is_terminal().then(|| {
            let style = ProgressStyle::with_template("{prefix} {elapsed} {human_pos} entries, {msg}")
                .expect("the template is ours");
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr()).with_style(style);
            bar.set_prefix(word);
            bar
        });
        Progress { bar, entries: 0, bytes: 0 }
    }

    /// Counts an entry of `bytes` bytes.
    pub(super) fn add(&mut self, bytes: usize) {
        self.entries += 1;
        self.bytes += bytes as u64;
        if let Some(bar) = &self.bar
            && (self.entries.is_multiple_of(STEP) || bytes as u64 > STEP)
        {
            bar.set_position(self.entries);
            bar.set_message(ByteSize(self.bytes).to_string());
        }
    }

    /// Clears the line, and returns the counts in words.
    pub(super) fn finish(self) -> String {
        let Progress { ref bar, entries, bytes } = self;
        if let Some(bar) = bar {
            bar.finish_and_clear();
        }
        format!("{entries} {}, {}", if entries == 1 { "entry" } else { "entries" }, ByteSize(bytes))
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
