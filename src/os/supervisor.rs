//! Tells the supervisor that started klad how it does: systemd with `Type=notify`, or whoever speaks its protocol
//! (`NOTIFY_SOCKET`, see `sd_notify(3)`). Without one all of this is nothing.
//!
//! ```text
//!   READY=1                      klad serves; the data is open, the addresses are known
//!   RELOADING=1, then READY=1    around a reload
//!   STOPPING=1                   with as much time as the drain may take
//!   WATCHDOG=1                   twice in each WATCHDOG_USEC in which every worker has turned
//! ```
//!
//! While the data is being opened no time is asked for: a start takes less than a second by design, how far RocksDB is cannot
//! be seen, and to ask for more and more would only hide a start that hangs. `TimeoutStartSec` is for that.
//!
//! A supervisor that cannot be told is logged and is no reason to stop serving. Called by `main`.

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

/// What klad needs beyond the drain to stop: the last sync, the last answers.
const STOP_MARGIN: Duration = Duration::from_secs(10);

/// klad serves: after the start, and after a reload. `status` is one line for people.
pub fn ready(status: &str) {
    tell(&[NotifyState::Ready, NotifyState::Status(status)]);
}

/// A reload begins; [`ready`] must follow, whatever becomes of it.
pub fn reloading() {
    // systemd tells this reload from others by its time.
    match NotifyState::monotonic_usec_now() {
        Ok(now) => tell(&[NotifyState::Reloading, now, NotifyState::Status("reloading")]),
        Err(error) => tracing::warn!(%error, "the supervisor cannot be told about the reload"),
    }
}

/// klad has begun to stop, and will have ended `drain` from now, as far as its clients are concerned.
pub fn stopping(drain: Duration) {
    let time = u32::try_from((drain + STOP_MARGIN).as_micros()).unwrap_or(u32::MAX);
    tell(&[
        NotifyState::Stopping,
        NotifyState::ExtendTimeoutUsec(time),
        NotifyState::Status("stopping: finishing requests in flight"),
    ]);
}

fn tell(states: &[NotifyState<'_>]) {
    let told = match abstract_socket() {
        Some(name) => tell_at(&name, states),
        None => sd_notify::notify(states),
    };
    if let Err(error) = told {
        tracing::warn!(%error, "the supervisor cannot be told");
    }
}

/// The name of a supervisor's socket that is no file, which `NOTIFY_SOCKET` marks with an `@` and sd-notify takes for a path.
fn abstract_socket() -> Option<Vec<u8>> {
    let socket = std::env::var_os("NOTIFY_SOCKET")?.into_vec();
    socket.strip_prefix(b"@").map(<[u8]>::to_vec)
}

#[cfg(target_os = "linux")]
fn tell_at(name: &[u8], states: &[NotifyState<'_>]) -> io::Result<()> {
    use std::os::linux::net::SocketAddrExt as _;
    let mut message = Vec::new();
    for state in states {
        writeln!(message, "{state}")?;
    }
    let address = std::os::unix::net::SocketAddr::from_abstract_name(name)?;
    UnixDatagram::unbound()?.send_to_addr(&message, &address).map(drop)
}

#[cfg(not(target_os = "linux"))]
fn tell_at(_: &[u8], _: &[NotifyState<'_>]) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// The thread that keeps the supervisor's watchdog quiet.
pub struct Watchdog {
    stop: Arc<Signal>,
    thread: Option<JoinHandle<()>>,
}

impl Watchdog {
    /// Tells the supervisor that klad is alive, twice in the time that it has set, while `alive` answers true: it is asked
    /// each time. Does nothing if the supervisor has set none.
    #[must_use]
    pub fn start(mut alive: impl FnMut() -> bool + Send + 'static) -> Watchdog {
        let stop = Arc::<Signal>::default();
        let thread = sd_notify::watchdog_enabled().map(|time| {
            let stop = stop.clone();
            sync::spawn_thread("klad-watchdog", move || {
                while !stop.wait_timeout(time / 2) {
                    if alive() {
                        tell(&[NotifyState::Watchdog]);
                    } else {
                        tracing::error!(
                            "a worker has not turned for {:?}: the watchdog is not told that klad lives",
                            time / 2
                        );
                    }
                }
            })
        });
        Watchdog { stop, thread }
    }

    /// No more of it: klad has ended.
    pub fn stop(self) {
        self.stop.raise();
        if let Some(thread) = self.thread {
            thread.join().expect("a thread that panics ends the process");
        }
    }
}
