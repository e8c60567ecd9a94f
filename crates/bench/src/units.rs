//! Parses the figures of the command line: rates, stages, sizes, counts, times. Called by clap, and by `slo` and
//! `klad_lab`.

use std::str::FromStr;
use std::time::Duration;

use bytesize::ByteSize;

use crate::schedule::{Phase, nanos};

/// Requests per second, more than 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate(pub f64);

/// The largest rate that is accepted, requests per second. It is more than a generator can send. The starts that were
/// not sent are counted one by one at the end, which is still quick at this rate.
const RATE_MAX: f64 = 1e7;

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Rate, String> {
        let rate = rate_or_zero(text)?;
        if rate > 0.0 { Ok(Rate(rate)) } else { Err("must be more than 0".to_owned()) }
    }
}

fn rate_or_zero(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix("/s").unwrap_or(text);
    let (number, factor) = match number.char_indices().next_back() {
        Some((at, 'k' | 'K')) => (&number[..at], 1e3),
        Some((at, 'M')) => (&number[..at], 1e6),
        _ => (number, 1.0),
    };
    let hint = || format!("{text:?} is not a rate, such as 500/s, 20k/s or 1.5M/s");
    let rate = plain_number(number).ok_or_else(hint)? * factor;
    if rate > RATE_MAX { Err(format!("{text:?} is more than {RATE_MAX} per second")) } else { Ok(rate) }
}

/// Parses a number that has only digits and a point; `None` for other text. Parsing as `f64` alone also accepts "inf",
/// "nan", "-1" and "1e9".
pub(super) fn plain_number(text: &str) -> Option<f64> {
    let plain = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    text.parse().ok().filter(|_| plain)
}

/// Parses a percentage above 0 and up to 100, such as `2%`, to a share from 0 to 1.
///
/// # Errors
/// If the text is something else.
pub fn share(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').unwrap_or(text);
    match plain_number(number) {
        Some(percent) if percent > 0.0 && percent <= 100.0 => Ok(percent / 100.0),
        _ => Err(format!("{text:?} is not a percentage above 0 and up to 100, such as 2%")),
    }
}

/// Steps and ramps, such as `5k/s:10s,5k/s..20k/s:30s`.
#[derive(Clone, Debug, PartialEq)]
pub struct Stages(pub Vec<Phase>);

/// The largest number of stages: each stage has its own histograms.
const STAGES_MAX: usize = 100;

impl FromStr for Stages {
    type Err = String;

    fn from_str(text: &str) -> Result<Stages, String> {
        let stages = text.split(',').map(|stage| parse_stage(stage.trim())).collect::<Result<Vec<_>, _>>()?;
        if stages.len() > STAGES_MAX {
            return Err(format!("{} stages are more than the limit of {STAGES_MAX}", stages.len()));
        }
        Ok(Stages(stages))
    }
}

fn parse_stage(text: &str) -> Result<Phase, String> {
    let hint = "use RATE:TIME or RATE..RATE:TIME, for example 5k/s:10s,5k/s..20k/s:30s";
    let (rates, length) = text.split_once(':').ok_or_else(|| format!("{text:?} is not a stage; {hint}"))?;
    let (from, to) = rates.split_once("..").unwrap_or((rates, rates));
    let (from, to) = (rate_or_zero(from)?, rate_or_zero(to)?);
    if from <= 0.0 && to <= 0.0 {
        return Err(format!("stage {text:?} has no requests: a rate must be more than 0"));
    }
    Ok(Phase { from, to, length: nanos(duration(length)?) })
}

/// The longest time that an option accepts: a day. It is the range of wrk2's histogram, and far below an overflow of
/// nanoseconds.
const TIME_MAX: Duration = Duration::from_hours(24);

/// Parses a time of more than 0.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    let duration = duration_or_zero(text)?;
    if duration.is_zero() { Err("must be more than 0".to_owned()) } else { Ok(duration) }
}

/// Parses a time.
///
/// # Errors
/// If the text is not a time with a unit, or more than a day.
pub fn duration_or_zero(text: &str) -> Result<Duration, String> {
    let duration = humantime::parse_duration(text).map_err(|error| format!("{error}; use for example 500ms or 30s"))?;
    if duration > TIME_MAX { Err("must be at most a day".to_owned()) } else { Ok(duration) }
}

/// Parses a number of at least 1; `10k` and `5M` are accepted.
///
/// # Errors
/// If the text is not such a number.
pub fn count(text: &str) -> Result<u64, String> {
    let count = count_or_zero(text)?;
    if count == 0 { Err("must be at least 1".to_owned()) } else { Ok(count) }
}

/// Parses a number of at least 0.
pub(super) fn count_or_zero(text: &str) -> Result<u64, String> {
    let hint = || format!("{text:?} is not a count, such as 1000, 64k or 5M");
    let (number, factor) = match text.char_indices().next_back() {
        Some((at, 'k' | 'K')) => (&text[..at], 1_000),
        Some((at, 'M')) => (&text[..at], 1_000_000),
        _ => (text, 1),
    };
    let number: u64 = number.parse().map_err(|_| hint())?;
    number.checked_mul(factor).ok_or_else(hint)
}

/// Parses an exponent of a Zipf distribution, from 0 to 10.
pub(super) fn exponent(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(exponent) if (0.0..=10.0).contains(&exponent) => Ok(exponent),
        _ => Err("must be a number from 0 to 10".to_owned()),
    }
}

/// A range of sizes, including both ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SizeRange {
    /// The smallest size, bytes.
    pub min: usize,
    /// The largest size, bytes.
    pub max: usize,
}

/// The largest size of a value that the generator sends, bytes. Each connection that sends holds a whole request in
/// memory.
const VALUE_BYTES_MAX: u64 = 64 << 20;

impl FromStr for SizeRange {
    type Err = String;

    fn from_str(text: &str) -> Result<SizeRange, String> {
        let (min, max) = text.split_once("..").unwrap_or((text, text));
        let (min, max) = (size(min)?, size(max)?);
        if min > max { Err(format!("{text:?} ends below its beginning")) } else { Ok(SizeRange { min, max }) }
    }
}

fn size(text: &str) -> Result<usize, String> {
    let size: ByteSize = text.parse().map_err(|_| format!("{text:?} is not a size, such as 100B, 4KiB or 1..4KiB"))?;
    if size.0 > VALUE_BYTES_MAX {
        return Err(format!("{text:?} is more than {}", ByteSize(VALUE_BYTES_MAX)));
    }
    usize::try_from(size.0).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::SECOND;

    #[test]
    fn rates_have_units() {
        assert_eq!("20k/s".parse(), Ok(Rate(20_000.0)));
        assert_eq!("1.5M/s".parse(), Ok(Rate(1_500_000.0)));
        assert_eq!("150".parse(), Ok(Rate(150.0)));
        for wrong in ["", "k/s", "nan", "inf/s", "1e9", "-5", "0/s", "20 k/s", "5/m", "1.2.3", "11M/s"] {
            assert!(wrong.parse::<Rate>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn stages_are_steps_and_ramps() {
        let stages: Stages = "5k/s:10s,5k..20k/s:500ms".parse().expect("valid");
        assert_eq!(stages.0[0], Phase { from: 5e3, to: 5e3, length: 10 * SECOND });
        assert_eq!(stages.0[1], Phase { from: 5e3, to: 2e4, length: SECOND / 2 });
        for wrong in ["", "5k/s", "5k/s:", "0:10s", "5k/s:0s", "a:1s", "1..2..3:4s"] {
            assert!(wrong.parse::<Stages>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn sizes_are_fixed_or_a_range() {
        assert_eq!("100B".parse(), Ok(SizeRange { min: 100, max: 100 }));
        assert_eq!("0..4KiB".parse(), Ok(SizeRange { min: 0, max: 4096 }));
        assert!("2KiB..1KiB".parse::<SizeRange>().is_err());
        assert!("1GiB".parse::<SizeRange>().is_err());
    }

    #[test]
    fn counts_may_have_suffixes() {
        assert_eq!(count("2M"), Ok(2_000_000));
        assert_eq!(count_or_zero("0"), Ok(0));
        assert!(count("0").is_err());
        assert!(count("99999999999999999999").is_err());
    }
}
