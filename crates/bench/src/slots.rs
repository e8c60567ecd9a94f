//! The connections of one thread: which are free, and which have a request in flight, since when.
//!
//! A fixed number of connections is used in turn, the longest idle first. So all stay in use, and the server's
//! threads get equal shares. A closed connection is opened again when it is used. Connections on demand are used like
//! a stack, so that no more are open than necessary. Called by `generator`.

use std::collections::VecDeque;

use crate::response::Reader;
use crate::schedule::{Nanos, Start};
use crate::workload::Request;

/// The state of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConnectionState {
    /// Not open.
    Closed,
    /// Being opened.
    Connecting,
    /// Open.
    Open,
}

/// A request in flight.
#[derive(Clone, Copy, Debug)]
pub(super) struct InFlight {
    pub(super) intended: Nanos,
    pub(super) phase: usize,
    pub(super) request: Request,
    /// When the request was sent, or its first part; `None` while the connection is being opened.
    pub(super) sent: Option<Nanos>,
    /// The number of answers to the request that have arrived.
    pub(super) answered: u32,
    /// The highest status among the answers that have arrived; 0 before the first.
    pub(super) status: u16,
}

impl InFlight {
    pub(super) fn new(start: Start, request: Request) -> InFlight {
        InFlight { intended: start.intended, phase: start.phase, request, sent: None, answered: 0, status: 0 }
    }
}

/// One connection.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) state: ConnectionState,
    pub(super) reader: Reader,
    /// The bytes of a request that the connection has not taken completely; empty if there is no such request. The
    /// connection has taken the first `taken` of these bytes. Bytes that it took earlier may be left out.
    pub(super) unsent: Vec<u8>,
    pub(super) taken: usize,
    pub(super) current: Option<InFlight>,
    /// When the connection became free.
    pub(super) free_since: Nanos,
    /// Neighbours in the list of requests in flight.
    before: Option<usize>,
    after: Option<usize>,
}

/// All connections of a thread.
#[derive(Debug)]
pub(super) struct Slots {
    all: Vec<Slot>,
    /// Free connections. For a stack, the next one is at the back, and a closed one is put at the front.
    free: VecDeque<usize>,
    stack: bool,
    /// Whether readers store answers.
    keep: bool,
    /// The connections at both ends of the list of requests in flight. The list has the requests in the order in which
    /// they were begun. All have the same timeout, so the oldest one reaches its deadline first.
    oldest: Option<usize>,
    newest: Option<usize>,
}

impl Slots {
    /// Creates `count` free, closed connections. `stack`: more may be added. `keep`: each answer is stored until the
    /// next one.
    pub(super) fn new(count: usize, stack: bool, keep: bool) -> Slots {
        let mut slots = Slots { all: Vec::new(), free: VecDeque::new(), stack, keep, oldest: None, newest: None };
        for _ in 0..count {
            let slot = slots.add();
            slots.free.push_back(slot);
        }
        slots
    }

    /// Adds a connection, which is closed and not free.
    pub(super) fn add(&mut self) -> usize {
        self.all.push(Slot {
            state: ConnectionState::Closed,
            reader: if self.keep { Reader::storing() } else { Reader::new() },
            unsent: Vec::new(),
            taken: 0,
            current: None,
            free_since: 0,
            before: None,
            after: None,
        });
        self.all.len() - 1
    }

    /// The number of connections, free or not.
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    /// Whether there is a free connection.
    pub(super) fn has_free(&self) -> bool {
        !self.free.is_empty()
    }

    /// Takes a free connection; `None` if all are busy.
    pub(super) fn take(&mut self) -> Option<usize> {
        if self.stack { self.free.pop_back() } else { self.free.pop_front() }
    }

    /// Puts a connection that has been idle since `now` back among the free ones.
    pub(super) fn release(&mut self, slot: usize, now: Nanos) {
        self.all[slot].free_since = now;
        if self.stack && self.all[slot].state == ConnectionState::Closed {
            self.free.push_front(slot);
        } else {
            self.free.push_back(slot);
        }
    }

    /// Assigns a request to a connection that was taken.
    pub(super) fn begin(&mut self, slot: usize, current: InFlight) {
        let newest = self.newest.replace(slot);
        match newest {
            Some(newest) => self.all[newest].after = Some(slot),
            None => self.oldest = Some(slot),
        }
        let own = &mut self.all[slot];
        assert!(own.current.is_none(), "a connection carries one request at a time");
        own.current = Some(current);
        (own.before, own.after) = (newest, None);
    }

    /// Removes and returns the request of a connection, if it has one.
    pub(super) fn end(&mut self, slot: usize) -> Option<InFlight> {
        let own = &mut self.all[slot];
        let current = own.current.take()?;
        // The memory of a large request is freed. Otherwise each connection would in time hold this much memory.
        (own.unsent, own.taken) = (Vec::new(), 0);
        let (before, after) = (own.before.take(), own.after.take());
        match before {
            Some(before) => self.all[before].after = after,
            None => self.oldest = after,
        }
        match after {
            Some(after) => self.all[after].before = before,
            None => self.newest = before,
        }
        Some(current)
    }

    /// The connection of the oldest request in flight, and the intended start of that request.
    pub(super) fn oldest(&self) -> Option<(usize, Nanos)> {
        let slot = self.oldest?;
        Some((slot, self.all[slot].current.expect("it has a request").intended))
    }
}

impl std::ops::Index<usize> for Slots {
    type Output = Slot;

    fn index(&self, slot: usize) -> &Slot {
        &self.all[slot]
    }
}

impl std::ops::IndexMut<usize> for Slots {
    fn index_mut(&mut self, slot: usize) -> &mut Slot {
        &mut self.all[slot]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recorder::Operation;

    fn current(intended: Nanos) -> InFlight {
        let request = Request { operation: Operation::Get, key: 0, answers: 1, bodiless: 0 };
        InFlight::new(Start { intended, phase: 0 }, request)
    }

    #[test]
    fn the_oldest_request_is_known_whichever_ends_first() {
        let mut slots = Slots::new(4, false, false);
        for intended in 1..=4 {
            let slot = slots.take().expect("free");
            slots.begin(slot, current(intended));
        }
        assert!(!slots.has_free());
        assert_eq!(slots.oldest(), Some((0, 1)));
        for (ends, oldest) in [(1, Some((0, 1))), (0, Some((2, 3))), (3, Some((2, 3))), (2, None)] {
            assert!(slots.end(ends).is_some());
            assert_eq!(slots.oldest(), oldest);
        }
        assert!(slots.end(2).is_none());
        slots.begin(1, current(9));
        assert_eq!(slots.oldest(), Some((1, 9)));
    }

    #[test]
    fn a_fixed_number_is_used_in_turn_and_a_stack_reuses_the_last_open_one() {
        let mut turns = Slots::new(3, false, false);
        let first = turns.take().expect("free");
        turns.release(first, 5);
        assert_eq!(turns.take(), Some(1));
        let mut stack = Slots::new(2, true, false);
        stack[0].state = ConnectionState::Open;
        stack[1].state = ConnectionState::Open;
        let top = stack.take().expect("free");
        stack.release(top, 5);
        assert_eq!(stack.take(), Some(top));
        stack[top].state = ConnectionState::Closed;
        stack.release(top, 5);
        assert_eq!(stack.take(), Some(0), "an open connection before a closed one");
    }
}
