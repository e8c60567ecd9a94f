//! Words of the command line that are figures: rates, stages, sizes, counts, times.

use std::str::FromStr;
use std::time::Duration;

use bytesize::ByteSize;

use crate::schedule::{Phase, nanos};

/// Requests per second, more than 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate(pub f64);

/// Fastest rate that is taken, per second: beyond what any generator sends, and few enough that the starts which were not
/// sent are counted in little time.
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
    let hint = || format!("{text:?} is no rate; use for example 500/s, 20k/s or 1.5M/s");
    // Only digits and a point: "inf", "nan" and "1e9" are numbers to the parser below, and no rates.
    if number.is_empty() || !number.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') {
        return Err(hint());
    }
    let rate = number.parse::<f64>().map_err(|_| hint())? * factor;
    if rate > RATE_MAX { Err(format!("{text:?} is more than {RATE_MAX} per second")) } else { Ok(rate) }
}

/// A share from its percent: `2%`, more than 0 and up to 100.
///
/// # Errors
/// When it is something else.
pub fn share(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').unwrap_or(text);
    let plain = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    match number.parse::<f64>() {
        Ok(percent) if plain && percent > 0.0 && percent <= 100.0 => Ok(percent / 100.0),
        _ => Err(format!("{text:?} is no percentage above 0 and up to 100; use for example 2%")),
    }
}

/// Steps and ramps: `5k/s:10s,5k/s..20k/s:30s`.
#[derive(Clone, Debug, PartialEq)]
pub struct Stages(pub Vec<Phase>);

/// Stages have their own histograms, so their number is bounded.
const STAGES_MAX: usize = 100;

impl FromStr for Stages {
    type Err = String;

    fn from_str(text: &str) -> Result<Stages, String> {
        let stages = text.split(',').map(|stage| parse_stage(stage.trim())).collect::<Result<Vec<_>, _>>()?;
        if stages.len() > STAGES_MAX {
            return Err(format!("{} stages are more than {STAGES_MAX}", stages.len()));
        }
        Ok(Stages(stages))
    }
}

fn parse_stage(text: &str) -> Result<Phase, String> {
    let hint = "use RATE:TIME or RATE..RATE:TIME, for example 5k/s:10s,5k/s..20k/s:30s";
    let (rates, length) = text.split_once(':').ok_or_else(|| format!("{text:?} is no stage; {hint}"))?;
    let (from, to) = rates.split_once("..").unwrap_or((rates, rates));
    let (from, to) = (rate_or_zero(from)?, rate_or_zero(to)?);
    if from <= 0.0 && to <= 0.0 {
        return Err(format!("stage {text:?} asks for no request at all"));
    }
    Ok(Phase { from, to, length: nanos(duration(length)?) })
}

/// Longest time that an option takes: a day. HdrHistogram's range in wrk2, and far from where nanoseconds would overflow.
const TIME_MAX: Duration = Duration::from_hours(24);

/// A time of more than nothing.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    let duration = duration_or_zero(text)?;
    if duration.is_zero() { Err("must be longer than nothing".to_owned()) } else { Ok(duration) }
}

/// A time.
///
/// # Errors
/// No time with a unit, or more than a day.
pub fn duration_or_zero(text: &str) -> Result<Duration, String> {
    let duration = humantime::parse_duration(text).map_err(|error| format!("{error}; use for example 500ms or 30s"))?;
    if duration > TIME_MAX { Err("must be a day at most".to_owned()) } else { Ok(duration) }
}

/// A number of at least 1; `10k` and `5M` are understood.
pub(super) fn count(text: &str) -> Result<u64, String> {
    let count = count_or_zero(text)?;
    if count == 0 { Err("must be at least 1".to_owned()) } else { Ok(count) }
}

/// A number of at least 0.
pub(super) fn count_or_zero(text: &str) -> Result<u64, String> {
    let hint = || format!("{text:?} is no count; use for example 1000, 64k or 5M");
    let (number, factor) = match text.char_indices().next_back() {
        Some((at, 'k' | 'K')) => (&text[..at], 1_000),
        Some((at, 'M')) => (&text[..at], 1_000_000),
        _ => (text, 1),
    };
    let number: u64 = number.parse().map_err(|_| hint())?;
    number.checked_mul(factor).ok_or_else(hint)
}

/// An exponent of a Zipf distribution.
pub(super) fn exponent(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(exponent) if (0.0..=10.0).contains(&exponent) => Ok(exponent),
        _ => Err("must be a number from 0 to 10".to_owned()),
    }
}

/// Sizes, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SizeRange {
    /// Smallest, bytes.
    pub min: usize,
    /// Largest, bytes.
    pub max: usize,
}

/// Largest value that the generator sends, bytes: a request is built in memory, whole, for each connection that is sending.
const VALUE_BYTES_MAX: u64 = 64 << 20;

impl FromStr for SizeRange {
    type Err = String;

    fn from_str(text: &str) -> Result<SizeRange, String> {
        let (min, max) = text.split_once("..").unwrap_or((text, text));
        let (min, max) = (size(min)?, size(max)?);
        if min > max { Err(format!("{text:?} ends before it begins")) } else { Ok(SizeRange { min, max }) }
    }
}

fn size(text: &str) -> Result<usize, String> {
    let size: ByteSize =
        text.parse().map_err(|_| format!("{text:?} is no size; use for example 100B, 4KiB, 1..4KiB"))?;
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
    fn counts_may_be_short() {
        assert_eq!(count("2M"), Ok(2_000_000));
        assert_eq!(count_or_zero("0"), Ok(0));
        assert!(count("0").is_err());
        assert!(count("99999999999999999999").is_err());
    }
}
