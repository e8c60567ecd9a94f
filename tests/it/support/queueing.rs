//! A server of known capacity, for the tests of `klad bench knee`. It serves one request after the other, each for
//! the same time, independent of the number of connections and of the speed of the machine.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// The settings of the server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Queueing {
    /// The capacity, requests per second.
    pub(crate) capacity: f64,
    /// The longest wait of a request. A request that would wait longer gets 503 at once.
    pub(crate) patience: Duration,
}

/// A running server; dropping it closes its listener.
pub(crate) struct QueueingServer {
    pub(crate) address: SocketAddr,
    ended: Arc<AtomicBool>,
}

impl Queueing {
    pub(crate) fn start(self) -> QueueingServer {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let ended = Arc::<AtomicBool>::default();
        let server = QueueingServer { address, ended: ended.clone() };
        // The time at which the server will have served all requests so far.
        let free_at = Arc::new(Mutex::new(Instant::now()));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if ended.load(Ordering::Relaxed) {
                    return;
                }
                let (stream, free_at) = (stream.unwrap(), free_at.clone());
                std::thread::spawn(move || self.serve(stream, &free_at));
            }
        });
        server
    }

    fn serve(self, mut stream: TcpStream, free_at: &Mutex<Instant>) {
        let _ = stream.set_nodelay(true);
        let mut request = Vec::new();
        let mut buffer = [0; 4096];
        loop {
            while !request.ends_with(b"\r\n\r\n") {
                match stream.read(&mut buffer) {
                    Ok(0) | Err(_) => return,
                    Ok(count) => request.extend_from_slice(&buffer[..count]),
                }
            }
            request.clear();
            let now = Instant::now();
            let served_at = {
                let mut free_at = free_at.lock().unwrap();
                let begins = (*free_at).max(now);
                (begins - now <= self.patience).then(|| {
                    *free_at = begins + Duration::from_secs_f64(1.0 / self.capacity);
                    *free_at
                })
            };
            let status = if let Some(served_at) = served_at {
                std::thread::sleep(served_at.saturating_duration_since(Instant::now()));
                "200 OK"
            } else {
                "503 Service Unavailable"
            };
            if stream.write_all(format!("HTTP/1.1 {status}\r\nContent-Length: 2\r\n\r\nok").as_bytes()).is_err() {
                return;
            }
        }
    }
}

impl Drop for QueueingServer {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        // Wakes the accepting thread.
        let _ = TcpStream::connect(self.address);
    }
}
