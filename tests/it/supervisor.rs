//! Notifications to the supervisor, and signals.

use std::io::{BufRead as _, BufReader};
use std::os::unix::net::UnixDatagram;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process, prlimit};

use super::support::metrics::Metrics;
use super::support::{Client, ENGINES, PATIENCE, ServerBuilder, wait_until};

/// The supervisor's side: the socket to which klad sends notifications.
struct Supervisor {
    socket: UnixDatagram,
    directory: tempfile::TempDir,
}

impl Supervisor {
    fn new() -> Supervisor {
        let directory = tempfile::tempdir().unwrap();
        let socket = UnixDatagram::bind(directory.path().join("notify")).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        Supervisor { socket, directory }
    }

    fn supervise(&self, builder: ServerBuilder) -> ServerBuilder {
        builder.env("NOTIFY_SOCKET", self.directory.path().join("notify").to_str().unwrap())
    }

    /// Returns the next notification that is not for the watchdog.
    fn next(&self) -> String {
        loop {
            let message = self.any();
            if message != "WATCHDOG=1\n" {
                return message;
            }
        }
    }

    fn any(&self) -> String {
        let mut bytes = [0; 4096];
        let count = self.socket.recv(&mut bytes).expect("a notification");
        String::from_utf8(bytes[..count].to_vec()).unwrap()
    }

    /// Drops the notifications that have arrived.
    fn forget(&self) {
        self.socket.set_nonblocking(true).unwrap();
        while self.socket.recv(&mut [0; 4096]).is_ok() {}
        self.socket.set_nonblocking(false).unwrap();
    }

    /// Returns the number of watchdog notifications within `time`.
    fn watchdogs_within(&self, time: Duration) -> usize {
        let end = Instant::now() + time;
        let mut count = 0;
        while let Some(left) = end.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
            self.socket.set_read_timeout(Some(left)).unwrap();
            count += usize::from(self.socket.recv(&mut [0; 64]).is_ok());
        }
        self.socket.set_read_timeout(Some(PATIENCE)).unwrap();
        count
    }
}

#[test]
fn the_supervisor_is_notified_when_klad_is_ready_alive_and_stopping() {
    for engine in ENGINES {
        let supervisor = Supervisor::new();
        let builder = supervisor.supervise(ServerBuilder::new(engine)).env("WATCHDOG_USEC", "400000");
        let mut server = builder.arg("--drain-timeout", "7s").start();
        let ready = supervisor.any();
        assert!(ready.starts_with("READY=1\nSTATUS=serving "), "{ready}");
        assert!(ready.contains(&server.address.to_string()), "{ready}");
        for _ in 0..3 {
            assert_eq!(supervisor.any(), "WATCHDOG=1\n");
        }
        server.signal(Signal::HUP);
        let reloading = supervisor.next();
        let lines: Vec<_> = reloading.lines().collect();
        assert!(lines[0] == "RELOADING=1" && lines[1].starts_with("MONOTONIC_USEC="), "{reloading}");
        assert_eq!(supervisor.next(), ready, "as before");
        server.signal(Signal::TERM);
        let stopping = supervisor.next();
        assert!(stopping.starts_with("STOPPING=1\nEXTEND_TIMEOUT_USEC=17000000\nSTATUS="), "{stopping}");
        // If the stop takes long, its notifications would fill the socket, and klad would wait for a reader.
        drop(supervisor);
        assert_eq!(server.wait().code(), Some(0));
    }
}

#[test]
fn the_watchdog_is_not_notified_while_a_worker_is_blocked() {
    let supervisor = Supervisor::new();
    let builder = supervisor.supervise(ServerBuilder::new("memory/inline")).env("WATCHDOG_USEC", "400000");
    let server = builder.arg("--threads", "1").arg("--engine-delay", "4s").start();
    let delay = Duration::from_secs(4);
    supervisor.next();
    assert_eq!(supervisor.any(), "WATCHDOG=1\n");
    let mut client = server.client();
    let during = (0..5).find_map(|_| {
        let asked = Instant::now();
        client.send("GET", "/v0/entity?id=k", &[], None).unwrap();
        wait_until("the worker waits", || Metrics::scrape(&server).in_flight() == 1 || asked.elapsed() > delay);
        supervisor.forget();
        let during = supervisor.watchdogs_within(Duration::from_millis(2_500));
        // Later the worker may run again, so this attempt says nothing.
        let is_blocked = asked.elapsed() < delay;
        assert_eq!(client.answer().unwrap().status, 404);
        is_blocked.then_some(during)
    });
    // The worker may have completed iterations since the last check, and before the request arrived.
    let during = during.expect("one of the attempts is in time");
    assert!(during <= 2, "the only worker waits for storage, but the watchdog was notified {during} times");
    assert_eq!(supervisor.any(), "WATCHDOG=1\n", "the worker runs again");
}

#[test]
fn a_missing_supervisor_does_not_prevent_serving() {
    let server = ServerBuilder::new("memory").env("NOTIFY_SOCKET", "/nowhere/at/all").start();
    assert_eq!(server.client().get("/v0/status").status, 200);
    wait_until("it is logged", || server.log().contains("cannot notify the supervisor"));
    assert_eq!(server.stop().code(), Some(0));
}

#[test]
fn other_signals_do_not_stop_klad() {
    let mut server = ServerBuilder::new("memory").start();
    for signal in [Signal::HUP, Signal::USR1, Signal::USR2, Signal::PIPE, Signal::XFSZ, Signal::HUP] {
        server.signal(signal);
        assert_eq!(server.client().get("/v0/status").status, 200);
    }
    wait_until("they are logged", || {
        let log = server.log();
        ["the configuration was reloaded", "SIGUSR1", "SIGUSR2"].iter().all(|name| log.contains(name))
    });
    server.signal(Signal::INT);
    assert_eq!(server.wait().code(), Some(0));
}

#[test]
fn a_second_signal_ends_klad_at_once() {
    for (first, second) in [(Signal::TERM, Signal::TERM), (Signal::INT, Signal::TERM), (Signal::TERM, Signal::INT)] {
        let mut server = ServerBuilder::new(ENGINES[0]).arg("--drain-delay", "1h").start();
        server.signal(first);
        wait_until("klad is not ready", || server.admin("/readyz").status == 503);
        assert_eq!(server.client().get("/v0/status").status, 200);
        server.signal(second);
        assert_eq!(server.wait().code(), Some(1), "{}", server.log());
        wait_until("the last line is written", || server.log().contains("second signal to stop"));
    }
}

#[test]
fn klad_stops_in_order_with_a_blocked_stderr() {
    let data = tempfile::tempdir().unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_klad"))
        .args(["serve", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--disk-reserve", "1MiB"])
        .args(["--log-format", "text", "--queue-age-max", "1m", "--data"])
        .arg(data.path())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut log = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    while !line.contains("listen=") {
        line.clear();
        assert!(log.read_line(&mut line).unwrap() > 0, "klad has ended");
    }
    drop(log);
    let address = line.split_once("listen=").unwrap().1.split_whitespace().next().unwrap().parse().unwrap();
    for signal in [Signal::USR1, Signal::TERM] {
        let mut client = Client::connect(address);
        assert_eq!(client.put("/v0/entity?id=k", b"v").status, 201);
        kill_process(Pid::from_child(&child), signal).unwrap();
    }
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

/// RocksDB's log reaches the file size limit of the process: the kernel sends SIGXFSZ, whose default action ends the
/// process.
#[cfg(feature = "rocksdb")]
#[test]
fn reaching_the_file_size_limit_is_an_error_and_not_the_end_of_the_process() {
    let data = tempfile::tempdir().unwrap();
    let builder = ServerBuilder::new("rocksdb").data(data.path());
    let mut server = builder.start();
    let mut client = server.client();
    assert_eq!(client.put("/v0/entity?id=before", b"kept").status, 201);
    let process = Pid::from_raw(i32::try_from(server.process()).unwrap());
    prlimit(process, Resource::Fsize, Rlimit { current: Some(64 << 10), maximum: None }).unwrap();
    let value = vec![b'v'; 10 << 10];
    let statuses: Vec<u16> = (0..20).map(|n| client.put(&format!("/v0/entity?id={n}"), &value).status).collect();
    let stored = statuses.iter().take_while(|status| **status == 201).count();
    assert!(statuses[stored..].iter().all(|status| matches!(status, 500 | 503 | 507)), "{statuses:?}");
    assert!(stored < statuses.len(), "the limit was not reached");
    assert_eq!(client.get("/v0/entity?id=before").body, b"kept");
    let readiness = server.admin("/readyz");
    assert_eq!(readiness.status, 503, "{}", readiness.text());
    server.signal(Signal::TERM);
    server.wait();
    let server = builder.start();
    let mut client = server.client();
    assert_eq!(client.get("/v0/entity?id=before").body, b"kept");
    for n in 0..stored {
        assert_eq!(client.get(&format!("/v0/entity?id={n}")).body, value, "write {n} was acknowledged");
    }
}
