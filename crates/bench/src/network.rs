//! What the generator needs from its environment: numbered connections, readiness, and a clock. There are two
//! implementations: the kernel's sockets (`socket`) and, for tests, a simulated server with a simulated clock
//! (`simulated`). With the second one, tests run the same generator as a real run.

use crate::recorder::Failure;
use crate::schedule::Nanos;

/// An event of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadyEvent {
    /// The number of the connection.
    pub connection: usize,
    /// Whether bytes, an end or an error can be read.
    pub readable: bool,
    /// Whether the connection was made, takes bytes again, or is broken.
    pub writable: bool,
    /// Whether an end or an error can be read, possibly after bytes.
    pub ended: bool,
}

/// The result of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadOutcome {
    /// This many bytes were read. If they fill the buffer, more bytes may be readable.
    Bytes(usize),
    /// No bytes can be read now.
    Nothing,
    /// The peer will send no more bytes.
    End,
    /// The connection is broken.
    Broken,
}

/// Connections to one server, and a clock.
pub trait Network {
    /// Returns the time since the start of the schedule.
    fn now(&mut self) -> Nanos;

    /// Begins to open a connection. Returns `true` if the connection is open at once. Otherwise [`Network::wait`]
    /// reports an event when the connection is open or has failed.
    ///
    /// # Errors
    /// If the connection cannot be begun.
    fn connect(&mut self, connection: usize) -> Result<bool, Failure>;

    /// Returns `true` if a connection that has become ready is open, and `false` if it is still being opened.
    ///
    /// # Errors
    /// If the connection has failed.
    fn connected(&mut self, connection: usize) -> Result<bool, Failure>;

    /// Sends as many bytes as the connection takes, possibly none. Returns the number of sent bytes.
    ///
    /// # Errors
    /// If the connection is broken. Earlier bytes of the server may still be readable.
    fn send(&mut self, connection: usize, bytes: &[u8]) -> Result<usize, Failure>;

    /// Reads the bytes that have arrived, without waiting.
    fn read(&mut self, connection: usize, into: &mut [u8]) -> ReadOutcome;

    /// Closes a connection. Its number can be used for a new connection.
    fn close(&mut self, connection: usize);

    /// Waits for events until the time `until`. Replaces the content of `ready` by the events. May return earlier
    /// without an event.
    fn wait(&mut self, until: Nanos, ready: &mut Vec<ReadyEvent>);
}
