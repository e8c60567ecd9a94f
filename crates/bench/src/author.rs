//! The interface between the generator and a script that writes its requests.
//!
//! A script is a Lua script for wrk (`--script`). In a run with a script, each generator thread has its own [`Author`],
//! as each thread of wrk has its own Lua state. This module does not depend on Lua, so the generator can be built and
//! tested without Lua. Called by `generator`, `workload`, `shared` and `threads`. `script` implements [`Author`].

use std::fmt::Debug;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::schedule::Nanos;
use klad_base::sync::Mutex;

/// The running script of one generator thread. It writes the requests of the thread, and can read their answers.
pub trait Author: Send + Debug {
    /// Appends the bytes to send next to `into`: one request, or a pipeline of several. Returns `None` if the script
    /// makes no request because it has stopped its thread (`wrk.thread:stop()`).
    ///
    /// # Errors
    /// A message, if the script fails.
    fn next(&mut self, into: &mut Vec<u8>) -> Result<Option<Pipeline>, String>;

    /// Asks the Lua script for the pause of a connection before its next request, nanoseconds. Returns `None` if the
    /// script does not define a pause.
    ///
    /// # Errors
    /// A message, if the script fails.
    fn delay(&mut self) -> Result<Option<Nanos>, String>;

    /// Returns `true` if the script wants the answers, so that the generator must call [`Author::answered`] for each.
    fn wants_answers(&self) -> bool;

    /// Gives the script an answer: the status, the bytes of the head, and the body.
    ///
    /// # Errors
    /// A message, if the script fails.
    fn answered(&mut self, status: u16, head: &[u8], body: &[u8]) -> Result<(), String>;

    /// Returns `true` if the script has stopped its thread, which then starts no more requests.
    fn has_stopped(&self) -> bool;

    /// Returns the address to which the script's thread connects.
    fn address(&self) -> SocketAddr;
}

/// The requests that a script has written at once, to be sent together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pipeline {
    /// The number of requests, at least 1. Each has one answer.
    pub requests: u32,
    /// A bit mask of the first 64 requests. A bit is 1 for a HEAD request, whose answer has no body. Bit 0 is the first
    /// request.
    pub bodiless: u64,
}

/// The running scripts of all threads, one [`Author`] for each. Empty if the run has no script.
#[derive(Debug, Default)]
pub struct Authors {
    waiting: Mutex<Vec<Option<Box<dyn Author>>>>,
    /// The number of threads whose scripts have not stopped.
    writing: AtomicUsize,
}

impl Authors {
    /// Stores `authors`, the running scripts of all threads, in the order of the threads.
    #[must_use]
    pub fn new(authors: Vec<Box<dyn Author>>) -> Authors {
        let writing = AtomicUsize::new(authors.len());
        Authors { waiting: Mutex::new(authors.into_iter().map(Some).collect()), writing }
    }

    /// Removes and returns the running script of `thread`. Returns `None` if the run has no script, or if the script
    /// was taken before.
    pub fn take(&self, thread: usize) -> Option<Box<dyn Author>> {
        self.waiting.lock().get_mut(thread)?.take()
    }

    /// Returns the address to which `thread` connects, if the thread has a script and has not taken it yet.
    pub fn address(&self, thread: usize) -> Option<SocketAddr> {
        self.waiting.lock().get(thread)?.as_ref().map(|author| author.address())
    }

    /// Records that the script of one thread has stopped. Returns `true` if no script is left running.
    pub fn stopped(&self) -> bool {
        self.writing.fetch_sub(1, Ordering::AcqRel) == 1
    }
}
