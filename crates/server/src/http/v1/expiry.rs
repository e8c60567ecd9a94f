//! How long a value lives. Converts `?ttl=`, `Klad-TTL` or a member of a batch item to a time of the machine's clock,
//! and this time back to the seconds that are left. `route`, `point`, `batch` and `scan` call this.

use std::num::NonZeroU64;
use std::time::Duration;

use crate::http::api_error::ApiError;
use crate::http::duration;
use crate::limits::TTL_RANGE;
use klad_base::clock;
use klad_storage::operation::Value;

/// The header with a time to live. A write says how long the value is to live, and a read how much time is left.
pub const TTL_HEADER: &str = "klad-ttl";

/// Reads a time such as `60`, `0.5`, `60s` or `1h 30m`.
pub(super) fn parse(text: &str) -> Result<Duration, ApiError> {
    match text.parse() {
        Ok(seconds) => from_seconds(seconds),
        Err(_) => checked(duration::parse(text)),
    }
}

/// Reads a number of seconds.
pub(super) fn from_seconds(seconds: f64) -> Result<Duration, ApiError> {
    checked(Duration::try_from_secs_f64(seconds).ok())
}

fn checked(ttl: Option<Duration>) -> Result<Duration, ApiError> {
    ttl.filter(|ttl| TTL_RANGE.contains(ttl)).ok_or(ApiError::BadTtl)
}

/// Returns the time at which a value expires that lives for `ttl` from now on, in milliseconds since 1970.
pub(super) fn at(ttl: Duration) -> Option<NonZeroU64> {
    NonZeroU64::new(clock::unix_ms().saturating_add(u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX)))
}

/// Returns how many seconds a value has left, if it expires. Returns at least one millisecond, because the value still
/// exists.
pub(super) fn left_s(value: &Value) -> Option<f64> {
    let expiry = value.attributes.as_ref()?.expires_at_ms?;
    let left_ms = expiry.get().saturating_sub(clock::unix_ms()).max(1);
    Some(Duration::from_millis(left_ms).as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_to_live() {
        let ms = |text| parse(text).map(|ttl| ttl.as_millis()).map_err(|error| error.code());
        for (text, expected) in [("60s", 60_000), ("60", 60_000), ("0.25", 250), ("1ms", 1), ("1h 30m", 5_400_000)] {
            assert_eq!(ms(text), Ok(expected), "{text}");
        }
        for bad in ["", "0", "0s", "-1", "1 parsec", "nan", "inf", "1e300", "101years", "500us"] {
            assert_eq!(ms(bad), Err("bad-ttl"), "{bad}");
        }
    }
}
