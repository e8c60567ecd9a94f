//! What the generator needs of the world: connections by number, readiness, and a clock. Two things stand behind it: the
//! kernel (`socket`) and, in tests, a simulated server on a simulated clock (`simulated`), so that what is tested is the
//! generator that runs.

use crate::recorder::Failure;
use crate::schedule::Nanos;

/// Which connection has something to tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ready {
    /// Its number.
    pub connection: usize,
    /// There are bytes, an end or an error to be read.
    pub readable: bool,
    /// It is made, or takes bytes again.
    pub writable: bool,
    /// Its end or an error is among what can be read.
    pub ended: bool,
}

/// What reading gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Read {
    /// So many bytes; more may be there when the buffer is full.
    Bytes(usize),
    /// Nothing for now.
    Nothing,
    /// The other side will send no more.
    End,
    /// The connection is broken.
    Broken,
}

/// Connections to one server.
pub trait Network {
    /// Time since the start of the schedule.
    fn now(&mut self) -> Nanos;

    /// Begins to connect; `true`: it is connected already. Else the connection becomes writable when it is, or readable when
    /// it has failed.
    ///
    /// # Errors
    /// When it cannot even begin.
    fn connect(&mut self, connection: usize) -> Result<bool, Failure>;

    /// Whether a connection that has become ready is made.
    ///
    /// # Errors
    /// When it has failed.
    fn connected(&mut self, connection: usize) -> Result<bool, Failure>;

    /// Sends what the connection takes, which may be nothing.
    ///
    /// # Errors
    /// When it is broken; what the server said before may still be read.
    fn send(&mut self, connection: usize, bytes: &[u8]) -> Result<usize, Failure>;

    /// Reads what is there.
    fn read(&mut self, connection: usize, into: &mut [u8]) -> Read;

    /// Closes; the number can be connected again.
    fn close(&mut self, connection: usize);

    /// Waits for connections to become ready, until `until`, and puts them in `ready`, which it empties first.
    fn wait(&mut self, until: Nanos, ready: &mut Vec<Ready>);
}
