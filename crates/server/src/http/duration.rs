//! Times such as `250ms` from requests. `service`, `v1` and the admin listener call this.

use std::time::Duration;

/// The longest text of a time.
const TEXT_BYTES_MAX: usize = 64;

/// The largest number of digits in one number. A time with a longer number is beyond every limit, or is given more
/// precisely than anyone measures.
const DIGITS_MAX: usize = 10;

/// Parses a time with units. Rejects numbers of more than `DIGITS_MAX` digits, because humantime panics at sums near
/// 2^64 seconds. Also rejects numbers with blanks inside, because humantime joins their digits.
#[must_use]
pub fn parse(text: &str) -> Option<Duration> {
    let digits = |text: &str| text.bytes().filter(u8::is_ascii_digit).count();
    let numbers = || text.split(|letter: char| !letter.is_ascii_digit() && !letter.is_whitespace());
    let joined = numbers().any(|number| number.split_whitespace().count() > 1);
    if text.len() > TEXT_BYTES_MAX || joined || numbers().any(|number| digits(number) > DIGITS_MAX) {
        return None;
    }
    humantime::parse_duration(text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units() {
        assert_eq!(parse("250ms"), Some(Duration::from_millis(250)));
        assert_eq!(parse("1h 30m"), Some(Duration::from_mins(90)));
        assert_eq!(parse("1000000000ns"), Some(Duration::from_secs(1)));
    }

    #[test]
    fn numbers_at_which_the_library_panics_are_rejected() {
        for bad in ["18446744073709551615s 1000ms", "1 8446744073709551615s", "99999999999years", "1 000s", ""] {
            assert_eq!(parse(bad), None, "{bad}");
        }
        // The largest sums that get through do not overflow.
        assert!(parse(&"9999999999years".repeat(4)).is_none_or(|time| time.as_secs() > 0));
        assert_eq!(parse(&"1s".repeat(33)), None);
    }
}
