//! Reports the state of klad to the supervisor that started it: systemd with `Type=notify`, or another program with
//! the same protocol (`NOTIFY_SOCKET`, see `sd_notify(3)`). Does nothing without a supervisor.
//!
//! ```text
//!   READY=1                      klad serves: the data is open, the addresses are bound
//!   RELOADING=1, then READY=1    around a reload
//!   STOPPING=1                   with the time that the shutdown may take
//!   WATCHDOG=1                   twice in each WATCHDOG_USEC, if every worker completed a loop iteration
//! ```
//!
//! klad does not ask for more time while it opens the data. A start takes less than a second by design, RocksDB does
//! not report its progress, and extensions would hide a start that hangs. Use `TimeoutStartSec` instead.
//!
//! klad logs a warning and continues if it cannot notify the supervisor. Called by `main`.

use std::io;
#[cfg(target_os = "linux")]
use std::io::Write as _;
use std::os::unix::ffi::OsStringExt as _;
#[cfg(target_os = "linux")]
use std::os::unix::net::UnixDatagram;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use sd_notify::NotifyState;

use klad_base::sync::{self, Signal};

/// Time that a shutdown needs beyond the drain, for the last sync and the last answers.
const STOP_MARGIN: Duration = Duration::from_secs(10);

/// Reports that klad serves, after the start and after a reload. `status` is one line for people.
pub fn ready(status: &str) {
    notify(&[NotifyState::Ready, NotifyState::Status(status)]);
}

/// Reports that a reload begins. Call [`ready`] after it, even if it fails.
pub fn reloading() {
    // systemd distinguishes reloads by their time.
    match NotifyState::monotonic_usec_now() {
        Ok(now) => notify(&[NotifyState::Reloading, now, NotifyState::Status("reloading")]),
        Err(error) => tracing::warn!(%error, "cannot notify the supervisor of the reload"),
    }
}

/// Reports that a shutdown has begun. `drain` is the longest time that klad may still serve requests.
pub fn stopping(drain: Duration) {
    let time = u32::try_from((drain + STOP_MARGIN).as_micros()).unwrap_or(u32::MAX);
    notify(&[
        NotifyState::Stopping,
        NotifyState::ExtendTimeoutUsec(time),
        NotifyState::Status("stopping: finishing requests in flight"),
    ]);
}

fn notify(states: &[NotifyState<'_>]) {
    let result = match abstract_socket() {
        Some(name) => notify_abstract(&name, states),
        None => sd_notify::notify(states),
    };
    if let Err(error) = result {
        tracing::warn!(%error, "cannot notify the supervisor");
    }
}

/// Returns the name of the supervisor's socket if it is in the abstract namespace, which `NOTIFY_SOCKET` marks with an
/// `@`. The crate sd-notify would take such a name for a path.
fn abstract_socket() -> Option<Vec<u8>> {
    let socket = std::env::var_os("NOTIFY_SOCKET")?.into_vec();
    socket.strip_prefix(b"@").map(<[u8]>::to_vec)
}

#[cfg(target_os = "linux")]
fn notify_abstract(name: &[u8], states: &[NotifyState<'_>]) -> io::Result<()> {
    use std::os::linux::net::SocketAddrExt as _;
    let mut message = Vec::new();
    for state in states {
        writeln!(message, "{state}")?;
    }
    let address = std::os::unix::net::SocketAddr::from_abstract_name(name)?;
    UnixDatagram::unbound()?.send_to_addr(&message, &address).map(drop)
}

#[cfg(not(target_os = "linux"))]
fn notify_abstract(_: &[u8], _: &[NotifyState<'_>]) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// The thread that notifies the supervisor's watchdog.
pub struct Watchdog {
    stop: Arc<Signal>,
    thread: Option<JoinHandle<()>>,
}

impl Watchdog {
    /// Starts the thread. It calls `alive` twice in each period of the watchdog, and notifies the supervisor if
    /// `alive` returns true. Does nothing if the supervisor has no watchdog.
    #[must_use]
    pub fn start(mut alive: impl FnMut() -> bool + Send + 'static) -> Watchdog {
        let stop = Arc::<Signal>::default();
        let thread = sd_notify::watchdog_enabled().map(|time| {
            let stop = stop.clone();
            sync::spawn_thread("klad-watchdog", move || {
                while !stop.wait_timeout(time / 2) {
                    if alive() {
                        notify(&[NotifyState::Watchdog]);
                    } else {
                        tracing::error!(
                            "a worker completed no loop iteration for {:?}: klad does not notify the watchdog",
                            time / 2
                        );
                    }
                }
            })
        });
        Watchdog { stop, thread }
    }

    /// Stops the thread.
    pub fn stop(self) {
        self.stop.raise();
        if let Some(thread) = self.thread {
            thread.join().expect("a thread that panics ends the process");
        }
    }
}
