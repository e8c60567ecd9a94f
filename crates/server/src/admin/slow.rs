//! `/debug/slow`: the slowest requests of the last minute, each with the times of its phases and the engine's
//! measurements.
//!
//! `admin` calls this.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::time::{Duration, UNIX_EPOCH};

use hyper::body::Incoming;
use hyper::{Request, Response};
use serde_json::{Map, Value, json};

use crate::admin::{Admin, of_type, text, wants_text};
use crate::execution::AnsweredBy;
use crate::http::api_error::ApiError;
use crate::http::query;
use crate::limits::{SLOWEST_SHOWN, SLOWEST_SHOWN_MAX};
use crate::observe::slowest::{Retention, SlowRequest};
use crate::request_metrics::{Op, Phase};
use klad_base::clock;
use klad_storage::perf::{Figure, Perf, Unit};

/// The parameters of a request for `/debug/slow`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SlowQuery {
    /// The op whose requests are shown. `None`: all ops.
    op: Option<Op>,
    limit: usize,
}

impl SlowQuery {
    /// Parses a query. Rejects unknown parameters, so that a client with a typing error does not get a wrong list.
    fn read(query: &str) -> Result<SlowQuery, ApiError> {
        let mut read = SlowQuery { op: None, limit: SLOWEST_SHOWN };
        let bad = |what: String| Err(ApiError::BadParameter(what));
        for given in query.split('&').filter(|given| !given.is_empty()) {
            let (name, value) = given.split_once('=').unwrap_or((given, ""));
            let value = query::decode(value.as_bytes()).map(Cow::into_owned).unwrap_or_default();
            let value = String::from_utf8_lossy(&value);
            match name {
                "op" => {
                    read.op = Op::ALL.iter().copied().find(|op| op.as_str() == value);
                    if read.op.is_none() {
                        let words: Vec<_> = Op::ALL.iter().map(|op| op.as_str()).collect();
                        return bad(format!("op must be one of: {}", words.join(", ")));
                    }
                }
                "limit" => match value.parse() {
                    Ok(limit @ 1..=SLOWEST_SHOWN_MAX) => read.limit = limit,
                    _ => return bad(format!("limit must be a whole number from 1 to {SLOWEST_SHOWN_MAX}")),
                },
                "format" if ["json", "text"].contains(&&*value) => {}
                "format" => return bad("format must be json or text".to_owned()),
                _ => return bad(format!("unknown parameter {name}; the parameters are op, limit, format")),
            }
        }
        Ok(read)
    }
}

impl Admin {
    /// Answers `/debug/slow` as JSON, or as text for people.
    pub(super) fn slow_answer(&self, request: &Request<Incoming>) -> Result<Response<String>, ApiError> {
        let query = SlowQuery::read(request.uri().query().unwrap_or_default())?;
        let slowest = self.slowest.recent(clock::now(), query.op, query.limit);
        let retention = self.slowest.retention();
        Ok(if wants_text(request) {
            text(table(&slowest, retention))
        } else {
            of_type("application/json", format!("{}\n", whole(&slowest, retention)))
        })
    }
}

/// Returns the time of each phase of a request in ns, and as `worker` the rest of the request's time. The sum is the
/// total time.
fn phases(request: &SlowRequest) -> [(&'static str, u64); Phase::ALL.len() + 1] {
    let mut parts = [("worker", 0); Phase::ALL.len() + 1];
    let mut left_ns = request.ended.total_ns;
    for ((part, phase), time_ns) in parts.iter_mut().zip(Phase::ALL).zip(request.ended.phases_ns) {
        // Without this limit the sum could exceed the total, because klad read the clock at different moments.
        let time_ns = time_ns.min(left_ns);
        left_ns -= time_ns;
        *part = (phase.as_str(), time_ns);
    }
    parts[Phase::ALL.len()].1 = left_ns;
    parts
}

/// Returns the name of the phase that took the longest. The rest, `worker`, counts as a phase.
fn mostly(request: &SlowRequest) -> &'static str {
    phases(request).into_iter().max_by_key(|(_, time_ns)| *time_ns).map_or("worker", |(name, _)| name)
}

fn milliseconds(time_ns: u64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "times are short")]
    let microseconds = (time_ns / 1_000) as f64;
    microseconds / 1e3
}

fn started(request: &SlowRequest) -> String {
    let at = UNIX_EPOCH + Duration::from_millis(request.started_unix_ms);
    humantime::format_rfc3339_millis(at).to_string()
}

fn whole(slowest: &[SlowRequest], retention: Retention) -> Value {
    json!({
        "recent_s": retention.lifetime().as_secs(),
        "window_s": retention.window.as_secs(),
        "kept_by_each_worker_of_each_op_in_each_window": retention.kept,
        "requests": slowest.iter().map(one).collect::<Vec<_>>(),
    })
}

fn one(request: &SlowRequest) -> Value {
    let ended = &request.ended;
    let phases: Map<String, Value> = phases(request)
        .into_iter()
        .map(|(name, time_ns)| (format!("{name}_ms"), milliseconds(time_ns).into()))
        .collect();
    json!({
        "started": started(request),
        "op": ended.op.as_str(),
        "status": request.status,
        "outcome": ended.outcome.as_str(),
        "durability": ended.durability,
        "total_ms": milliseconds(ended.total_ns),
        "mostly": mostly(request),
        "phases": phases,
        "answered_by": request.answered_by.map(AnsweredBy::as_str),
        "storage": request.perf.as_ref().map(storage),
        "key_bytes": request.key_bytes,
        "received_bytes": ended.received_bytes,
        "sent_bytes": ended.sent_bytes,
        "worker": request.worker,
        "peer": request.peer.map(|peer| peer.to_string()),
        "request_id": request.request_id,
        "trace_id": request.trace_id,
    })
}

/// Returns a figure's name with its unit, and its value.
fn figure((figure, value): (Figure, u64)) -> (String, Value) {
    match figure.unit() {
        Unit::Count => (figure.name().to_owned(), value.into()),
        Unit::Bytes => (format!("{}_bytes", figure.name()), value.into()),
        Unit::Time => (format!("{}_ms", figure.name()), milliseconds(value).into()),
    }
}

fn storage(perf: &Perf) -> Value {
    let mut figures: Map<String, Value> = perf.figures().map(figure).collect();
    figures.insert("shared_by".to_owned(), perf.shared_by.into());
    Value::Object(figures)
}

/// Formats the engine's measurements that are not zero as one line, for people.
fn storage_line(perf: &Perf) -> String {
    let known = perf.figures().filter(|(_, value)| *value > 0).map(figure);
    let mut figures: Vec<String> = known.map(|(name, value)| format!("{name} {value}")).collect();
    if perf.shared_by > 1 {
        figures.push(format!("shared by {} writes", perf.shared_by));
    }
    figures.join(", ")
}

fn table(slowest: &[SlowRequest], retention: Retention) -> String {
    let mut lines = format!(
        "the slowest requests of the last {} s; times in ms; of each op every worker keeps {} in {} s\n\n",
        retention.lifetime().as_secs(),
        retention.kept,
        retention.window.as_secs(),
    );
    let _ = write!(lines, "{:<24}  {:<6}  {:>10}", "started", "op", "total");
    for name in Phase::ALL.iter().map(|phase| phase.as_str()).chain(["worker"]) {
        let _ = write!(lines, "  {name:>10}");
    }
    let _ = writeln!(lines, "  {:<7}  {:<12}  {:>9}  {:>9}  {:<7}  request", "mostly", "outcome", "in", "out", "by");
    for request in slowest {
        let ended = &request.ended;
        let total = milliseconds(ended.total_ns);
        let _ = write!(lines, "{:<24}  {:<6}  {total:>10.3}", started(request), ended.op.as_str());
        for (_, time_ns) in phases(request) {
            let _ = write!(lines, "  {:>10.3}", milliseconds(time_ns));
        }
        let by = request.answered_by.map_or("-", AnsweredBy::as_str);
        let outcome = ended.durability.unwrap_or(ended.outcome.as_str());
        let _ = writeln!(
            lines,
            "  {:<7}  {outcome:<12}  {:>9}  {:>9}  {by:<7}  {}",
            mostly(request),
            ended.received_bytes,
            ended.sent_bytes,
            request.request_id.as_deref().unwrap_or("-"),
        );
        if let Some(perf) = &request.perf {
            let _ = writeln!(lines, "    {}", storage_line(perf));
        }
    }
    if slowest.is_empty() {
        lines.push_str("none\n");
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_or_malformed_parameters_are_rejected() {
        let read = |query: &str| SlowQuery::read(query).ok();
        assert_eq!(read(""), Some(SlowQuery { op: None, limit: SLOWEST_SHOWN }));
        assert_eq!(read("op=put&limit=7&format=text"), Some(SlowQuery { op: Some(Op::Put), limit: 7 }));
        for bad in ["op=post", "op", "limit=0", "limit=1001", "limit=a", "format=xml", "ops=get", "op=%zz"] {
            assert!(matches!(SlowQuery::read(bad), Err(ApiError::BadParameter(_))), "{bad}");
        }
    }
}
