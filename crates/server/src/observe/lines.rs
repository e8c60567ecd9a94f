//! The two kinds of log lines about requests: the warning about a slow request, and the line of the access log.
//!
//! `observe` calls this.

use std::net::SocketAddr;

use crate::request_metrics::{EndedRequest, Phase};

/// The contents of a line about one request.
pub(super) struct RequestLine<'l> {
    pub(super) ended: &'l EndedRequest,
    pub(super) peer: Option<SocketAddr>,
    pub(super) status: u16,
    pub(super) method: Option<&'l str>,
    pub(super) path: Option<&'l str>,
    pub(super) key_bytes: usize,
    pub(super) request_id: &'l str,
    pub(super) trace_id: Option<&'l str>,
}

/// The fields of both lines. The lines differ in level, target and message.
macro_rules! request_line {
    ($line:expr, $level:expr, $target:literal, $message:literal) => {{
        let RequestLine { ended, peer, status, method, path, key_bytes, request_id, trace_id } = $line;
        let milliseconds = |time_ns: u64| (time_ns / 1_000) as f64 / 1e3;
        let phase = |phase: Phase| milliseconds(ended.phases_ns[phase as usize]);
        tracing::event!(
            target: $target,
            $level,
            op = ended.op.as_str(),
            method,
            path,
            status,
            outcome = ended.outcome.as_str(),
            durability = ended.durability,
            total_ms = milliseconds(ended.total_ns),
            receive_ms = phase(Phase::Receive),
            queue_ms = phase(Phase::Queue),
            engine_ms = phase(Phase::Engine),
            sync_ms = phase(Phase::Sync),
            write_ms = phase(Phase::Write),
            key_bytes,
            received_bytes = ended.received_bytes,
            sent_bytes = ended.sent_bytes,
            peer = peer.map(tracing::field::display),
            request_id,
            trace_id,
            $message
        );
    }};
}

impl RequestLine<'_> {
    #[expect(clippy::cast_precision_loss, reason = "times are short")]
    pub(super) fn write_slow(&self) {
        request_line!(self, tracing::Level::WARN, "klad::slow", "slow request");
    }

    #[expect(clippy::cast_precision_loss, reason = "times are short")]
    pub(super) fn write_access(&self) {
        request_line!(self, tracing::Level::INFO, "klad::access", "request");
    }
}

/// Returns `path` as log lines show it. Paths of `/v1` contain keys. An unknown path may contain a key too, for example
/// if the client takes klad for another store. So log lines show only the beginning of such paths.
pub(super) fn logged_path(path: &str) -> &'static str {
    const KNOWN: [&str; 9] = [
        "/v0/entity",
        "/v0/entities",
        "/v0/status",
        "/v1/kv",
        "/v1/batch",
        "/v1/changes",
        "/v1/limits",
        "/v1/openapi.json",
        "/v1/docs",
    ];
    const BEGINNINGS: [(&str, &str); 4] = [("/v1/kv/", "/v1/kv/…"), ("/v1/", "/v1/…"), ("/v0/", "/v0/…"), ("", "/…")];
    let known = KNOWN.into_iter().find(|known| *known == path);
    let begins = || BEGINNINGS.into_iter().find(|(beginning, _)| path.starts_with(beginning));
    known.or_else(|| begins().map(|(_, shown)| shown)).unwrap_or_default()
}
