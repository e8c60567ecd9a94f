//! The parameters of a request for a profile.
//!
//! `pprof` calls this.

use std::borrow::Cow;
use std::time::Duration;

use crate::admin::pprof::form::Form;
use crate::admin::pprof::kind::Kind;
use crate::http::api_error::ApiError;
use crate::http::duration;
use crate::http::query;
use crate::limits::{
    CPU_PROFILE_SECONDS, LOCK_PROFILE_SECONDS, LOCK_PROFILE_THRESHOLD, LOCK_PROFILE_THRESHOLD_MAX, PROFILE_HZ,
    PROFILE_HZ_MAX, PROFILE_WINDOW_MAX, PROFILE_WINDOW_MIN,
};

/// Parameters that every kind accepts and ignores, because flame graphs and Go's tools send them.
const TOLERATED: &[&str] = &["s", "x", "y", "gc"];

/// The parameters of a request for a profile. Those that the request lacks have their defaults.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Parameters {
    /// The length of the profile, if the request has `seconds`.
    pub(super) seconds: Option<Duration>,
    pub(super) hz: u32,
    pub(super) threshold: Duration,
    pub(super) form: Form,
    /// Whether the client asked for a format.
    pub(super) form_given: bool,
}

impl Parameters {
    /// Parses a query. `known` has the names of the parameters that the kind accepts. Rejects other parameters, so that
    /// a typing error does not give a profile that the client did not want.
    pub(super) fn read(query: &str, known: &[&str]) -> Result<Parameters, ApiError> {
        let mut parameters = Parameters {
            seconds: None,
            hz: PROFILE_HZ,
            threshold: LOCK_PROFILE_THRESHOLD,
            form: Form::Pprof,
            form_given: false,
        };
        let bad = |what: String| Err(ApiError::BadParameter(what));
        for given in query.split('&').filter(|given| !given.is_empty()) {
            let (name, value) = given.split_once('=').unwrap_or((given, ""));
            let Ok(value) = query::decode(value.as_bytes()).map(Cow::into_owned) else {
                return bad(format!("parameter {name} contains a % that is not followed by two hexadecimal digits"));
            };
            let value = String::from_utf8_lossy(&value);
            if TOLERATED.contains(&name) {
                continue;
            }
            if !known.contains(&name) {
                return bad(format!("unknown parameter {name}; the parameters are {}", known.join(", ")));
            }
            match name {
                "seconds" => parameters.seconds = Some(seconds(&value)?),
                "hz" => match value.parse() {
                    Ok(hz @ 1..=PROFILE_HZ_MAX) => parameters.hz = hz,
                    _ => return bad(format!("hz must be a whole number from 1 to {PROFILE_HZ_MAX}")),
                },
                "threshold" => match duration::parse(&value) {
                    Some(threshold) if threshold <= LOCK_PROFILE_THRESHOLD_MAX => parameters.threshold = threshold,
                    _ => return bad("threshold must be a time from 0s to 1s, such as 10us or 1ms".to_owned()),
                },
                "format" => {
                    let words = "format must be pprof, flamegraph or collapsed";
                    parameters.form = Form::named(&value).ok_or_else(|| ApiError::BadParameter(words.to_owned()))?;
                    parameters.form_given = true;
                }
                // Go's parameter that asks for text.
                "debug" => match &*value {
                    "0" => {}
                    "1" | "2" if parameters.form_given => {}
                    "1" | "2" => parameters.form = Form::Collapsed,
                    _ => return bad("debug must be 0, 1 or 2".to_owned()),
                },
                _ => unreachable!("`known` has only the names above"),
            }
        }
        Ok(parameters)
    }

    /// Returns the length of a profile of `kind`: what the client asked for, or the default. Zero means that the
    /// profile shows one moment, or everything since the start of klad.
    pub(super) fn window(&self, kind: Kind) -> Duration {
        self.seconds.unwrap_or(match kind {
            Kind::Cpu => CPU_PROFILE_SECONDS,
            Kind::Mutex | Kind::Block => LOCK_PROFILE_SECONDS,
            Kind::Heap | Kind::Allocs | Kind::Threads => Duration::ZERO,
        })
    }
}

/// Parses a decimal number of seconds.
fn seconds(text: &str) -> Result<Duration, ApiError> {
    let plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let parsed = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    let bounds = PROFILE_WINDOW_MIN..=PROFILE_WINDOW_MAX;
    let fits = parsed.filter(|window| plain && bounds.contains(window));
    fits.ok_or_else(|| {
        ApiError::BadParameter("seconds must be a number from 0.001 to 300, such as 5 or 0.5".to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_have_defaults_and_bounds() {
        let known = ["seconds", "hz", "threshold", "format", "debug"];
        let read = |query: &str| Parameters::read(query, &known);
        let default = read("").expect("nothing is asked for");
        assert_eq!((default.window(Kind::Cpu), default.hz), (Duration::from_secs(30), 99));
        assert_eq!(
            (default.window(Kind::Mutex), default.threshold),
            (Duration::from_secs(10), Duration::from_micros(10))
        );
        assert_eq!((default.window(Kind::Heap), default.form), (Duration::ZERO, Form::Pprof));
        let all =
            read("seconds=0.5&hz=997&threshold=1%20ms&format=flamegraph&gc=1&s=a.*&x=1&y=2").expect("all are good");
        assert_eq!((all.window(Kind::Heap), all.hz), (Duration::from_millis(500), 997));
        assert_eq!((all.threshold, all.form), (Duration::from_millis(1), Form::FlameGraph));
        assert_eq!(read("debug=1").expect("Go's").form, Form::Collapsed);
        assert_eq!(read("debug=0").expect("Go's").form, Form::Pprof);
        assert_eq!(read("format=pprof&debug=1").expect("both").form, Form::Pprof);
        let bad = [
            "seconds=0",
            "seconds=0.0001",
            "seconds=301",
            "seconds=",
            "seconds",
            "seconds=-1",
            "seconds=1e1",
            "seconds=nan",
            "seconds=inf",
            "seconds=5s",
            "seconds=1.2.3",
            "hz=0",
            "hz=1001",
            "hz=9.5",
            "hz=",
            "threshold=2s",
            "threshold=5",
            "threshold=-1s",
            "format=svg",
            "format=",
            "debug=3",
            "second=5",
            "seconds=%zz",
        ];
        for query in bad {
            let api_error = read(query).expect_err(query);
            assert_eq!(api_error.code(), "bad-parameter", "{query}");
        }
        assert!(Parameters::read("hz=99", &["seconds"]).is_err(), "it makes no sense there");
    }
}
