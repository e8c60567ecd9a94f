//! The interface between the generator and a script that writes its requests.
//!
//! In a run with a script, each generator thread has its own [`Author`], as each thread of wrk has its own Lua state.
//! This module does not depend on Lua, so the generator can be built and tested without Lua. Called by `generator`,
//! `workload`, `shared` and `threads`. `script` implements [`Author`].

use std::fmt::Debug;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::schedule::Nanos;
use klad_base::sync::Mutex;

/// Writes the requests of one thread, and can read their answers.
pub trait Author: Send + Debug {
    /// Appends the bytes to send for the next start: one request, or a pipeline of several. Returns `None` if there is
    /// no request, because the author has stopped.
    ///
    /// # Errors
    /// A message, if the script fails.
    fn next(&mut self, into: &mut Vec<u8>) -> Result<Option<Pipeline>, String>;

    /// Returns how long a connection rests before its next request, nanoseconds; `None` if the author does not control
    /// that.
    ///
    /// # Errors
    /// A message, if the script fails.
    fn delay(&mut self) -> Result<Option<Nanos>, String>;

    /// Whether the generator must call [`Author::answered`].
    fn wants_answers(&self) -> bool;

    /// Receives an answer: its status, the bytes of its head, and its body.
    ///
    /// # Errors
    /// A message, if the script fails.
    fn answered(&mut self, status: u16, head: &[u8], body: &[u8]) -> Result<(), String>;

    /// Whether the author has stopped: its thread starts no more requests.
    fn has_stopped(&self) -> bool;

    /// The address to which the author's thread connects.
    fn address(&self) -> SocketAddr;
}

/// The requests that an author has written for one start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pipeline {
    /// The number of requests, at least 1. Each has one answer.
    pub requests: u32,
    /// A bit mask of the HEAD requests among the first 64, whose answers have no body; bit 0 is the first request.
    pub bodiless: u64,
}

/// The authors of all threads of a run; empty if the generator makes the requests itself.
#[derive(Debug, Default)]
pub struct Authors {
    waiting: Mutex<Vec<Option<Box<dyn Author>>>>,
    /// The number of threads whose authors have not stopped.
    writing: AtomicUsize,
}

impl Authors {
    /// Takes one author for each thread, in the order of the threads.
    #[must_use]
    pub fn new(authors: Vec<Box<dyn Author>>) -> Authors {
        let writing = AtomicUsize::new(authors.len());
        Authors { waiting: Mutex::new(authors.into_iter().map(Some).collect()), writing }
    }

    /// Removes and returns the author of `thread`; `None` if there is none, or if it was taken before.
    pub fn take(&self, thread: usize) -> Option<Box<dyn Author>> {
        self.waiting.lock().get_mut(thread)?.take()
    }

    /// The address to which `thread` connects, if it has an author and has not taken it yet.
    pub fn address(&self, thread: usize) -> Option<SocketAddr> {
        self.waiting.lock().get(thread)?.as_ref().map(|author| author.address())
    }

    /// Counts an author that has stopped. Returns `true` if it was the last one.
    pub fn stopped(&self) -> bool {
        self.writing.fetch_sub(1, Ordering::AcqRel) == 1
    }
}
