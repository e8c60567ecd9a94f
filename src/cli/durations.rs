//! Durations as values of options, and their limits.

use std::time::Duration;

use klad_server::limits;

pub(super) fn duration(text: &str) -> Result<Duration, String> {
    match humantime::parse_duration(text) {
        // The limit is far more than any use needs, and far less than what overflows a clock.
        Ok(duration) if duration > limits::OPTION_TIME_MAX => Err("must be at most 365 days".to_owned()),
        Ok(duration) => Ok(duration),
        Err(error) => Err(format!("{error}; use for example 500ms or 10s")),
    }
}

pub(super) fn positive_duration(text: &str) -> Result<Duration, String> {
    match duration(text) {
        Ok(Duration::ZERO) => Err("must be more than 0s".to_owned()),
        parsed => parsed,
    }
}

/// The longest `--changes-heartbeat`: half of the time after which client commands take a connection for broken.
const CHANGES_HEARTBEAT_MAX: Duration = Duration::from_secs(15);

pub(super) fn changes_heartbeat(text: &str) -> Result<Duration, String> {
    positive_duration(text).and_then(|time| at_most(time, CHANGES_HEARTBEAT_MAX))
}

/// The longest `--commit-delay`. With a longer one, writers would wait mostly for the delay and not for the disk.
const COMMIT_DELAY_MAX: Duration = Duration::from_millis(100);

pub(super) fn commit_delay(text: &str) -> Result<Duration, String> {
    duration(text).and_then(|time| at_most(time, COMMIT_DELAY_MAX))
}

fn at_most(time: Duration, max: Duration) -> Result<Duration, String> {
    if time > max { Err(format!("must be at most {max:?}")) } else { Ok(time) }
}
