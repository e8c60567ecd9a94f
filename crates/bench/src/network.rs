//! What the generator needs from its environment: numbered connections, readiness, and a clock. There are two
//! implementations: the kernel's sockets (`socket`), and in tests a simulated server with a simulated clock
//! (`simulated`). The tests therefore run the same generator as a real run.

use crate::recorder::Failure;
use crate::schedule::Nanos;

/// An event of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadyEvent {
    /// The number of the connection.
    pub connection: usize,
    /// Bytes, an end or an error can be read.
    pub readable: bool,
    /// The connection was made, takes bytes again, or is broken.
    pub writable: bool,
    /// An end or an error is among what can be read.
    pub ended: bool,
}

/// The result of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadOutcome {
    /// This many bytes. If the buffer is full, there may be more.
    Bytes(usize),
    /// No bytes now.
    Nothing,
    /// The peer will send no more bytes.
    End,
    /// The connection is broken.
    Broken,
}

/// Connections to one server, and a clock.
pub trait Network {
    /// The time since the start of the schedule.
    fn now(&mut self) -> Nanos;

    /// Begins to open a connection; `true` if it is open at once. Otherwise [`Network::wait`] reports an event when the
    /// connection is open or has failed.
    ///
    /// # Errors
    /// If the connection cannot be begun.
    fn connect(&mut self, connection: usize) -> Result<bool, Failure>;

    /// Whether a connection that has become ready is open; `false` if it is still being opened.
    ///
    /// # Errors
    /// If the connection has failed.
    fn connected(&mut self, connection: usize) -> Result<bool, Failure>;

    /// Sends as many bytes as the connection takes, possibly none, and returns their number.
    ///
    /// # Errors
    /// If the connection is broken. Earlier bytes of the server may still be readable.
    fn send(&mut self, connection: usize, bytes: &[u8]) -> Result<usize, Failure>;

    /// Reads the bytes that have arrived, without waiting.
    fn read(&mut self, connection: usize, into: &mut [u8]) -> ReadOutcome;

    /// Closes a connection; its number can be used again.
    fn close(&mut self, connection: usize);

    /// Waits until a connection is ready, or until `until`. Empties `ready` and fills it with events. May return
    /// earlier without an event.
    fn wait(&mut self, until: Nanos, ready: &mut Vec<ReadyEvent>);
}
