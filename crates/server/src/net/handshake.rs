//! From a new connection to one in TLS. One for each thread that serves.
//!
//! ```text
//!   first byte ──a letter──▶ 400 in clear: plain HTTP
//!       │
//!       └─ turnstile: one step of one handshake, then all else that is ready, then the next step ──▶ TLS
//! ```
//!
//! A step costs what many requests cost. A thousand of them at once would keep every served connection waiting for as long as
//! they all take; so they wait for each other, and nobody waits for more than one of them at a time. Who has sent nothing holds no
//! place in this. Called by `connection` and `admin`, which keep the deadline.

use std::future::{Future as _, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::ready;

use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;

use crate::net::stream::{Socket, Stream};
use crate::net::tls::TlsSettings;
use klad_base::limits::HANDSHAKE_STEPS_MAX;

/// Said in clear to whoever speaks plain HTTP to a port of TLS; what it is, is seen from its first byte.
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

/// Makes connections in TLS, for one thread.
pub(crate) struct Handshaker {
    settings: Arc<TlsSettings>,
    turnstile: Arc<Semaphore>,
}

/// How a handshake ended.
pub(crate) enum Shaken {
    /// It may be served.
    Done(Stream),
    /// The client was told why not, and may not have read it yet.
    Refused(TcpStream),
    /// The client has left.
    Gone,
}

impl Handshaker {
    pub(crate) fn new(settings: Arc<TlsSettings>) -> Handshaker {
        Handshaker { settings, turnstile: Arc::new(Semaphore::new(HANDSHAKE_STEPS_MAX)) }
    }

    /// Shakes hands. Takes as long as the client does: the caller keeps the deadline.
    pub(crate) async fn shake(&self, tcp: TcpStream) -> Shaken {
        let mut first = [0];
        match tcp.peek(&mut first).await {
            Ok(0) | Err(_) => return Shaken::Gone,
            // Every method begins with one; a record of TLS, with its type, which is a small number.
            Ok(_) if first[0].is_ascii_alphabetic() => {
                let _ = tcp.try_write(PLAIN_HTTP);
                self.settings.handshakes.failed.add(1);
                return Shaken::Refused(tcp);
            }
            Ok(_) => {}
        }
        let accept = TlsAcceptor::from(self.settings.current()).accept(Socket::new(tcp));
        let mut accept = pin!(accept.into_fallible());
        let mut iteration = None;
        let accepted = poll_fn(|context| {
            // Whatever the wake was for, the step is made behind the turnstile, and in this poll: no wake is missed.
            let next = iteration.get_or_insert_with(|| Box::pin(self.turnstile.clone().acquire_owned()));
            let permit = ready!(Pin::new(next).poll(context)).expect("the semaphore is never closed");
            iteration = None;
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
                Shaken::Done(Stream::Tls(Box::new(tls)))
            }
            Err((error, socket)) => {
                self.settings.handshakes.failed.add(1);
                tracing::debug!(%error, "a handshake failed");
                // rustls has sent the alert that says why.
                Shaken::Refused(socket.into_tcp())
            }
        }
    }

    /// The caller has given up.
    pub(crate) fn late(&self) {
        self.settings.handshakes.late.add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_refusal_says_its_length() {
        let text = std::str::from_utf8(PLAIN_HTTP).expect("text");
        let (head, body) = text.split_once("\r\n\r\n").expect("a head");
        assert!(head.ends_with(&format!("content-length: {}", body.len())), "{head} {}", body.len());
    }
}
