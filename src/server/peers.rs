//! Counts the connections of each peer address, and answers those that are one too many. Called by `accept`.
//!
//! An address is the whole of it, of IPv6 too. Behind a proxy all clients have the proxy's.

use std::collections::HashMap;
use std::io::Write as _;
use std::net::{IpAddr, TcpStream};
use std::sync::Arc;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::limits::{REFUSED_LINGER_TIMEOUT, REFUSED_LINGERING_MAX};
use crate::sync::Mutex;

/// Said where hyper has no say: the connection gets no further.
const TOO_MANY: &[u8] = concat!(
    "HTTP/1.1 503 Service Unavailable\r\n",
    "connection: close\r\n",
    "retry-after: 1\r\n",
    "content-type: application/problem+json\r\n",
    "content-length: 138\r\n\r\n",
    r#"{"code":"too-many-connections","detail":"this address has as many connections as it may have","#,
    r#""status":503,"title":"Service Unavailable"}"#,
    "\n"
)
.as_bytes();

/// A connection's place among all, and among its peer's; free again when dropped.
pub(super) struct Place {
    pub(super) _of_all: OwnedSemaphorePermit,
    pub(super) _of_peer: Option<PeerPlace>,
}

/// The connections of each peer.
#[derive(Debug)]
pub(super) struct Peers {
    /// No longer than there are connections: those without are removed.
    counts: Mutex<HashMap<IpAddr, usize>>,
    limit: usize,
}

/// One connection of a peer.
#[derive(Debug)]
pub(super) struct PeerPlace {
    peers: Arc<Peers>,
    address: IpAddr,
}

impl Peers {
    /// At most `limit` connections each.
    pub(super) fn new(limit: usize) -> Arc<Peers> {
        Arc::new(Peers { counts: Mutex::default(), limit })
    }

    /// A place for a connection from `address`, if it has one left.
    pub(super) fn take(self: &Arc<Peers>, address: IpAddr) -> Option<PeerPlace> {
        // The same client, whether the listener speaks IPv4 or both.
        let address = address.to_canonical();
        let mut counts = self.counts.lock();
        let count = counts.entry(address).or_insert(0);
        if *count >= self.limit {
            return None;
        }
        *count += 1;
        Some(PeerPlace { peers: self.clone(), address })
    }
}

impl Drop for PeerPlace {
    fn drop(&mut self) {
        let mut counts = self.peers.counts.lock();
        let count = counts.get_mut(&self.address).expect("its own connection is counted");
        *count -= 1;
        if *count == 0 {
            counts.remove(&self.address);
        }
    }
}

/// Said instead where clients speak TLS: an alert in clear, fatal, 80 (`internal_error`). A handshake only to refuse would cost
/// more than most requests do.
const TOO_MANY_IN_TLS: &[u8] = &[21, 3, 3, 0, 2, 2, 80];

/// Answers connections that are one too many.
pub(super) struct Refuser {
    lingering: Arc<Semaphore>,
    answer: &'static [u8],
}

impl Refuser {
    pub(super) fn new(in_tls: bool) -> Refuser {
        let answer = if in_tls { TOO_MANY_IN_TLS } else { TOO_MANY };
        Refuser { lingering: Arc::new(Semaphore::new(REFUSED_LINGERING_MAX)), answer }
    }

    /// Answers, and closes when the client has, but soon: if its request met a closed socket, the kernel would answer with a
    /// reset, and the client might lose the answer.
    pub(super) fn refuse(&self, mut stream: TcpStream) {
        // It fits the empty send buffer of a new connection, or the client has gone.
        let _ = stream.write(self.answer);
        let Ok(place) = self.lingering.clone().try_acquire_owned() else { return };
        tokio::task::spawn_local(async move {
            let read_to_end = async {
                let Ok(mut stream) = tokio::net::TcpStream::from_std(stream) else { return };
                if stream.shutdown().await.is_ok() {
                    let mut scratch = [0; 4 << 10];
                    while let Ok(1..) = stream.read(&mut scratch).await {}
                }
            };
            let _ = tokio::time::timeout(REFUSED_LINGER_TIMEOUT, read_to_end).await;
            drop(place);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_refusal_says_its_length() {
        let text = std::str::from_utf8(TOO_MANY).expect("text");
        let (head, body) = text.split_once("\r\n\r\n").expect("a head");
        assert!(head.ends_with(&format!("content-length: {}", body.len())), "{head} {}", body.len());
    }

    #[test]
    fn each_address_has_its_own_places() {
        let peers = Peers::new(2);
        let one: IpAddr = [192, 0, 2, 1].into();
        let first = peers.take(one).expect("free");
        let mapped = std::net::Ipv4Addr::new(192, 0, 2, 1).to_ipv6_mapped().into();
        let second = peers.take(mapped).expect("free");
        assert!(peers.take(one).is_none());
        assert!(peers.take([192, 0, 2, 2].into()).is_some(), "another address");
        drop(first);
        assert!(peers.take(one).is_some());
        drop(second);
        assert!(peers.counts.lock().is_empty(), "who has none is forgotten");
    }
}
