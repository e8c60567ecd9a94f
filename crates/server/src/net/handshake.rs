//! Does TLS handshakes. Each thread that serves TLS connections has one [`Handshaker`].
//!
//! ```text
//!   first byte ── a letter ──▶ 400 in clear: plain HTTP
//!       │
//!       └─ one step of one handshake, then all other ready tasks, then the next step ──▶ TLS
//! ```
//!
//! A step takes as much time as many requests. If a thread did a thousand steps one after the other, all of its
//! connections would wait for the sum of their times. So steps wait for each other, and a request waits for one step at
//! most. A handshake whose client has sent nothing takes no step. `connection` and `admin` call this, and check the
//! deadline.

use std::future::{Future as _, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::ready;

use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;

use crate::limits::HANDSHAKE_STEPS_MAX;
use crate::net::stream::{Socket, Stream};
use crate::net::tls::TlsSettings;

/// The answer in clear to a client that speaks plain HTTP to a TLS port. klad recognizes it by the first byte.
const PLAIN_HTTP: &[u8] = concat!(
    "HTTP/1.1 400 Bad Request\r\n",
    "connection: close\r\n",
    "content-type: application/problem+json\r\n",
    "content-length: 122\r\n\r\n",
    r#"{"code":"plain-http","detail":"this port speaks TLS: use https:// instead of http://","#,
    r#""status":400,"title":"Bad Request"}"#,
    "\n"
)
.as_bytes();

/// Does the TLS handshakes of one thread.
pub(crate) struct Handshaker {
    settings: Arc<TlsSettings>,
    step_permits: Arc<Semaphore>,
}

/// How a handshake ended.
pub(crate) enum HandshakeOutcome {
    /// The handshake has succeeded.
    Done(Stream),
    /// The handshake has failed. klad has told the client why, and the client may not have read this yet.
    Rejected(TcpStream),
    /// The client has left.
    Gone,
}

impl Handshaker {
    pub(crate) fn new(settings: Arc<TlsSettings>) -> Handshaker {
        Handshaker { settings, step_permits: Arc::new(Semaphore::new(HANDSHAKE_STEPS_MAX)) }
    }

    /// Does one handshake. It has no time limit of its own, so the caller must check the deadline.
    pub(crate) async fn handshake(&self, tcp: TcpStream) -> HandshakeOutcome {
        let mut first = [0];
        match tcp.peek(&mut first).await {
            Ok(0) | Err(_) => return HandshakeOutcome::Gone,
            // The first byte of an HTTP request is a letter. The first byte of a TLS record is its type, a small
            // number.
            Ok(_) if first[0].is_ascii_alphabetic() => {
                let _ = tcp.try_write(PLAIN_HTTP);
                self.settings.handshakes.failed.add(1);
                return HandshakeOutcome::Rejected(tcp);
            }
            Ok(_) => {}
        }
        let accept = TlsAcceptor::from(self.settings.current()).accept(Socket::new(tcp));
        let mut accept = pin!(accept.into_fallible());
        let mut next_step = None;
        let accepted = poll_fn(|context| {
            // Each step waits for a permit and runs in the same poll, so no wake-up is lost.
            let next = next_step.get_or_insert_with(|| Box::pin(self.step_permits.clone().acquire_owned()));
            let permit = ready!(Pin::new(next).poll(context)).expect("the semaphore is never closed");
            next_step = None;
            tokio::task::spawn_local(async move {
                tokio::task::yield_now().await;
                drop(permit);
            });
            accept.as_mut().poll(context)
        })
        .await;
        match accepted {
            Ok(tls) => {
                self.settings.handshakes.done.add(1);
                HandshakeOutcome::Done(Stream::Tls(Box::new(tls)))
            }
            Err((error, socket)) => {
                self.settings.handshakes.failed.add(1);
                tracing::debug!(%error, "a handshake failed");
                // rustls has sent an alert with the reason.
                HandshakeOutcome::Rejected(socket.into_tcp())
            }
        }
    }

    /// Counts a handshake that the caller has given up because it took too long.
    pub(crate) fn count_late(&self) {
        self.settings.handshakes.late.add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rejection_has_the_right_length() {
        let text = std::str::from_utf8(PLAIN_HTTP).expect("text");
        let (head, body) = text.split_once("\r\n\r\n").expect("a head");
        assert!(head.ends_with(&format!("content-length: {}", body.len())), "{head} {}", body.len());
    }
}
