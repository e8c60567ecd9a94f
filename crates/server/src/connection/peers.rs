//! Counts the connections of each peer address, and answers those that are one too many. Called by `accept`.
//!
//! An address is the whole of it, of IPv6 too. Behind a proxy all clients have the proxy's.

use std::collections::HashMap;
use std::io::Write as _;
use std::net::{IpAddr, TcpStream};
use std::sync::Arc;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::Semaphore;

use crate::connection::places::OpenPlace;
use crate::http::api_error::ApiError;
use klad_base::limits::REFUSED_LINGER_TIMEOUT;
use klad_base::sync::Mutex;

/// A connection's place among all, and among its peer's; free again when dropped.
pub(crate) struct Place {
    pub(crate) _of_all: OpenPlace,
    pub(crate) _of_peer: PeerPlace,
}

/// The connections of each peer.
#[derive(Debug)]
pub(crate) struct Peers {
    /// No longer than there are connections: those without are removed.
    counts: Mutex<HashMap<IpAddr, usize>>,
}

/// One connection of a peer.
#[derive(Debug)]
pub(crate) struct PeerPlace {
    peers: Arc<Peers>,
    address: IpAddr,
}

impl Peers {
    /// Nobody has a connection.
    pub(crate) fn new() -> Arc<Peers> {
        Arc::new(Peers { counts: Mutex::default() })
    }

    /// A place for a connection from `address`, if it has fewer than `limit`. Counted without a limit too: one may be set
    /// while klad serves.
    pub(crate) fn take(self: &Arc<Peers>, address: IpAddr, limit: Option<usize>) -> Option<PeerPlace> {
        // The same client, whether the listener speaks IPv4 or both.
        let address = address.to_canonical();
        let mut counts = self.counts.lock();
        let count = counts.entry(address).or_insert(0);
        if limit.is_some_and(|limit| *count >= limit) {
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
pub(crate) struct Refuser {
    lingering: Arc<Semaphore>,
    /// Said where hyper has no say: the connection gets no further.
    words: Vec<u8>,
}

impl Refuser {
    pub(crate) fn new(in_tls: bool, lingering_max: u64) -> Refuser {
        let words = if in_tls { TOO_MANY_IN_TLS.to_vec() } else { ApiError::TooManyConnections.into_last_words() };
        Refuser { lingering: Arc::new(Semaphore::new(usize::try_from(lingering_max).expect("few"))), words }
    }

    /// Answers, and closes when the client has, but soon: if its request met a closed socket, the kernel would answer with a
    /// reset, and the client might lose the answer.
    pub(crate) fn refuse(&self, mut stream: TcpStream) {
        // It fits the empty send buffer of a new connection, or the client has gone.
        let _ = stream.write(&self.words);
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
    fn each_address_has_its_own_places() {
        let peers = Peers::new();
        let one: IpAddr = [192, 0, 2, 1].into();
        let first = peers.take(one, Some(2)).expect("free");
        let mapped = std::net::Ipv4Addr::new(192, 0, 2, 1).to_ipv6_mapped().into();
        let second = peers.take(mapped, Some(2)).expect("free");
        assert!(peers.take(one, Some(2)).is_none());
        assert!(peers.take([192, 0, 2, 2].into(), Some(2)).is_some(), "another address");
        drop(first);
        assert!(peers.take(one, Some(2)).is_some());
        drop(second);
        assert!(peers.counts.lock().is_empty(), "who has none is forgotten");
    }
}
