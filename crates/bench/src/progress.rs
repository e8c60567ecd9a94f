//! Shows progress on stderr: a bar if stderr is a terminal, otherwise one line for each interval if `--progress` is
//! `always`. With `--progress never`, shows nothing. Called by `runner`, `knee` and `klad_lab`.

use std::io::{IsTerminal as _, Write as _};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::args::When;
use crate::recorder::Outcome;
use crate::result::Interval;
use crate::text::time_us;

/// A bar, lines, or nothing.
#[derive(Debug)]
pub enum Progress {
    /// A bar, if stderr is a terminal.
    Bar(ProgressBar),
    /// Lines, with `--progress always` if stderr is not a terminal.
    Lines,
    /// Nothing.
    Hidden,
}

/// The largest number of redraws per second. It is small, because the generator needs the CPU.
const DRAWS_PER_SECOND: u8 = 5;

impl Progress {
    /// Creates the display of `length` steps. `name` and `template`, in indicatif's syntax, are for the bar.
    #[must_use]
    pub fn new(when: When, length: u64, name: &'static str, template: &str) -> Progress {
        match (when, std::io::stderr().is_terminal()) {
            (When::Auto | When::Always, true) => {
                let target = ProgressDrawTarget::stderr_with_hz(DRAWS_PER_SECOND);
                let style =
                    ProgressStyle::with_template(template).expect("the templates are constants").progress_chars("=> ");
                Progress::Bar(ProgressBar::with_draw_target(Some(length), target).with_style(style).with_prefix(name))
            }
            (When::Always, false) => Progress::Lines,
            _ => Progress::Hidden,
        }
    }

    /// Creates the display for a run of this length.
    #[must_use]
    pub fn of_run(when: When, length: Duration) -> Progress {
        let progress = Progress::new(when, length.as_secs(), "run", "{prefix} [{bar:20}] {pos}/{len}s {msg}");
        if let Progress::Bar(bar) = &progress {
            bar.tick();
        }
        progress
    }

    /// Creates the display for a fill with this number of keys.
    #[must_use]
    pub fn of_fill(when: When, keys: u64) -> Progress {
        Progress::new(
            when,
            keys,
            "fill",
            "{prefix} [{bar:20}] {human_pos}/{human_len} keys, {per_sec}, {eta} left {msg}",
        )
    }

    /// Shows an interval of a run.
    pub fn show(&self, interval: &Interval) {
        let words = words(interval);
        match self {
            Progress::Bar(bar) => {
                bar.set_position(position(interval));
                bar.set_message(words);
            }
            Progress::Lines => {
                let end = interval.start_s + interval.length_s;
                let _ = writeln!(std::io::stderr(), "{end:>7.1}s {words}");
            }
            Progress::Hidden => {}
        }
    }

    /// Shows how many keys have been filled.
    pub fn filled(&self, keys: u64) {
        match self {
            Progress::Bar(bar) => bar.set_position(keys),
            Progress::Lines => {
                let _ = writeln!(std::io::stderr(), "filled {keys} keys");
            }
            Progress::Hidden => {}
        }
    }

    /// Ends the display and clears the bar.
    pub fn finish(&self) {
        if let Progress::Bar(bar) = self {
            bar.finish_and_clear();
        }
    }
}

/// Writes lines about the current work on stderr, if the user wants them.
#[derive(Debug)]
pub struct Note {
    shown: bool,
}

impl Note {
    /// Creates a writer. It writes lines if stderr is a terminal, or with `--progress always`.
    #[must_use]
    pub fn new(when: When) -> Note {
        let shown = match when {
            When::Auto => std::io::stderr().is_terminal(),
            When::Always => true,
            When::Never => false,
        };
        Note { shown }
    }

    /// Writes one line.
    pub fn say(&self, words: &str) {
        if self.shown {
            let _ = writeln!(std::io::stderr(), "{words}");
        }
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "whole seconds of a run")]
fn position(interval: &Interval) -> u64 {
    (interval.start_s + interval.length_s).round() as u64
}

#[expect(clippy::cast_precision_loss, reason = "counts of requests")]
fn words(interval: &Interval) -> String {
    let answered: u64 = interval.outcomes.values().sum();
    let rate = answered as f64 / interval.length_s.max(1e-3);
    let mut words = vec![format!("{rate:.0}/s")];
    if interval.warm_up {
        words.insert(0, "warm-up".to_owned());
    }
    if let Some(response) = &interval.response {
        let [p50, p99, max] = [response.p50_us, response.p99_us, response.max_us].map(time_us);
        words.push(format!("p50 {p50} p99 {p99} max {max}"));
    }
    for outcome in [Outcome::Refused, Outcome::Failed, Outcome::TimedOut] {
        if let Some(count) = interval.outcomes.get(&outcome) {
            words.push(format!("{} {count}", outcome.name()));
        }
    }
    if let Some(lag) = &interval.send_lag {
        words.push(format!("lag {}", time_us(lag.p999_us)));
    }
    words.join(" ")
}
