//! Requests that somebody else writes: what the generator asks of a script, and knows of it.
//!
//! Each thread of the generator has an author of its own, as each thread of wrk has a script of its own. Nothing of Lua is known
//! here, so that the generator can be tested, and built, without. Called by `generator` and `threads`; `script` is the one that
//! there is.

use std::fmt::Debug;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::schedule::Nanos;
use klad_base::sync::Mutex;

/// Writes the requests of one thread, and may read their answers.
pub trait Author: Send + Debug {
    /// Appends what is sent for the next start: one request, or several that follow each other at once. `None`: nothing, as it
    /// has stopped.
    ///
    /// # Errors
    /// When it fails, in words.
    fn next(&mut self, into: &mut Vec<u8>) -> Result<Option<Written>, String>;

    /// How long a connection rests before its next request, where the author has a say in that.
    ///
    /// # Errors
    /// When it fails, in words.
    fn delay(&mut self) -> Result<Option<Nanos>, String>;

    /// Whether [`Author::answered`] is to be called.
    fn wants_answers(&self) -> bool;

    /// An answer came: its status, the bytes of its head, and its body.
    ///
    /// # Errors
    /// When it fails, in words.
    fn answered(&mut self, status: u16, head: &[u8], body: &[u8]) -> Result<(), String>;

    /// Whether it has had enough: its thread starts nothing more.
    fn has_stopped(&self) -> bool;

    /// Where its thread connects to.
    fn address(&self) -> SocketAddr;
}

/// What an author has written for one start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    /// Requests, each of which has an answer; at least 1.
    pub requests: u32,
    /// Which of the first 64 are HEAD, whose answers have no body; bit 0 is the first.
    pub bodiless: u64,
}

/// The authors of a run's threads; none where klad makes the requests itself.
#[derive(Debug, Default)]
pub struct Authors {
    waiting: Mutex<Vec<Option<Box<dyn Author>>>>,
    /// Threads whose authors have not stopped.
    writing: AtomicUsize,
}

impl Authors {
    /// One for each thread, in order.
    #[must_use]
    pub fn new(authors: Vec<Box<dyn Author>>) -> Authors {
        let writing = AtomicUsize::new(authors.len());
        Authors { waiting: Mutex::new(authors.into_iter().map(Some).collect()), writing }
    }

    /// Hands a thread its own.
    pub fn take(&self, thread: usize) -> Option<Box<dyn Author>> {
        self.waiting.lock().get_mut(thread)?.take()
    }

    /// Where a thread that has not taken its author yet connects to, if it has one.
    pub fn address(&self, thread: usize) -> Option<SocketAddr> {
        self.waiting.lock().get(thread)?.as_ref().map(|author| author.address())
    }

    /// One has stopped; `true`: it was the last.
    pub fn stopped(&self) -> bool {
        self.writing.fetch_sub(1, Ordering::AcqRel) == 1
    }
}
