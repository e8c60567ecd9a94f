//! Counts the connections of each peer address, and rejects those beyond the limit. `accept` calls this.
//!
//! The limit applies to a single IP address, without the port. With IPv6 too, it applies to an address and not to a
//! network. Behind a proxy all clients have the proxy's address.

use std::collections::HashMap;
use std::io::Write as _;
use std::net::{IpAddr, TcpStream};
use std::sync::Arc;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::Semaphore;

use crate::connection::places::OpenPlace;
use crate::http::api_error::ApiError;
use crate::limits::REFUSED_LINGER_TIMEOUT;
use klad_base::sync::Mutex;

/// A connection's place among all connections, and its place among those of its peer. Dropping this frees both places.
pub(crate) struct Place {
    pub(crate) _of_all: OpenPlace,
    pub(crate) _of_peer: PeerPlace,
}

/// The number of connections of each peer.
#[derive(Debug)]
pub(crate) struct Peers {
    /// Has only addresses with at least one connection, so it has at most as many entries as there are connections.
    counts: Mutex<HashMap<IpAddr, usize>>,
}

/// One connection of a peer.
#[derive(Debug)]
pub(crate) struct PeerPlace {
    peers: Arc<Peers>,
    address: IpAddr,
}

impl Peers {
    /// Creates an empty count.
    pub(crate) fn new() -> Arc<Peers> {
        Arc::new(Peers { counts: Mutex::default() })
    }

    /// Takes a place for a connection from `address`, if the address has fewer than `limit` connections. Without a
    /// limit the connection is counted too, because a limit may be set while klad serves.
    pub(crate) fn take(self: &Arc<Peers>, address: IpAddr, limit: Option<usize>) -> Option<PeerPlace> {
        // An IPv4 client is the same client whether the listener speaks IPv4 or both.
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

/// The bytes of a rejection if clients speak TLS: the fatal alert 80 (`internal_error`), not encrypted. A handshake
/// only for a rejection would cost more than most requests.
const TOO_MANY_IN_TLS: &[u8] = &[21, 3, 3, 0, 2, 2, 80];

/// Rejects connections of peers that already have the maximum of connections.
pub(crate) struct PeerRejecter {
    lingering: Arc<Semaphore>,
    /// The bytes that klad sends to a rejected client.
    answer: Vec<u8>,
}

impl PeerRejecter {
    pub(crate) fn new(in_tls: bool, lingering_max: u64) -> PeerRejecter {
        let answer =
            if in_tls { TOO_MANY_IN_TLS.to_vec() } else { ApiError::TooManyConnections.into_closing_response() };
        PeerRejecter { lingering: Arc::new(Semaphore::new(usize::try_from(lingering_max).expect("few"))), answer }
    }

    /// Sends the rejection. Then waits until the client has closed the connection, for at most
    /// [`REFUSED_LINGER_TIMEOUT`], and closes it. The wait is for the client's request: if the request arrived at a
    /// closed socket, the kernel would answer with a reset, and the client might lose the rejection. If too many
    /// rejected connections are still open, closes this one immediately.
    pub(crate) fn reject(&self, mut stream: TcpStream) {
        // The write fails only if the client has left, because the answer fits into the empty send buffer of a new
        // connection.
        let _ = stream.write(&self.answer);
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
        assert!(peers.counts.lock().is_empty(), "an address without connections is removed");
    }
}
