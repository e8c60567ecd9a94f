//! The connections of one thread: which are free, which have a request under way and since when.
//!
//! A fixed number of connections takes turns, the longest idle first, so that all stay in use and the server's threads get
//! equal shares; a closed one is opened anew when its turn comes. Connections opened on demand are used like a stack, so
//! that no more are open than are needed. Called by `generator`.

use std::collections::VecDeque;

use crate::response::Reader;
use crate::schedule::{Nanos, Start};
use crate::workload::Request;

/// State of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Link {
    /// There is none.
    Closed,
    /// It is being made.
    Connecting,
    /// It is made.
    Open,
}

/// A request under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Current {
    pub(super) intended: Nanos,
    pub(super) phase: usize,
    pub(super) request: Request,
    /// When its first byte was sent; `None`: the connection is being made.
    pub(super) sent: Option<Nanos>,
    /// Answers that came, of several.
    pub(super) answered: u32,
    /// The worst status of these; 0 before the first.
    pub(super) status: u16,
}

impl Current {
    pub(super) fn new(start: Start, request: Request) -> Current {
        Current { intended: start.intended, phase: start.phase, request, sent: None, answered: 0, status: 0 }
    }
}

/// One connection.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) link: Link,
    pub(super) reader: Reader,
    /// A request that the connection has not taken whole, and how much of it it has.
    pub(super) unsent: Vec<u8>,
    pub(super) taken: usize,
    pub(super) current: Option<Current>,
    /// Since when it has had nothing to do.
    pub(super) free_since: Nanos,
    /// Neighbours among those under way.
    before: Option<usize>,
    after: Option<usize>,
}

/// All of them.
#[derive(Debug)]
pub(super) struct Slots {
    all: Vec<Slot>,
    /// Free ones. In a stack the next is at the back; one that is given back closed goes to the front.
    free: VecDeque<usize>,
    stack: bool,
    /// Whether answers are kept.
    keep: bool,
    /// The list of those under way, by intended start: all have the same time, so the first is the first to be too late.
    oldest: Option<usize>,
    newest: Option<usize>,
}

impl Slots {
    /// `count` free, closed connections; `stack`: more may come; `keep`: answers are kept until the next.
    pub(super) fn new(count: usize, stack: bool, keep: bool) -> Slots {
        let mut slots = Slots { all: Vec::new(), free: VecDeque::new(), stack, keep, oldest: None, newest: None };
        for _ in 0..count {
            let slot = slots.add();
            slots.free.push_back(slot);
        }
        slots
    }

    /// One more, closed and not among the free.
    pub(super) fn add(&mut self) -> usize {
        self.all.push(Slot {
            link: Link::Closed,
            reader: if self.keep { Reader::keeping() } else { Reader::new() },
            unsent: Vec::new(),
            taken: 0,
            current: None,
            free_since: 0,
            before: None,
            after: None,
        });
        self.all.len() - 1
    }

    /// How many there are, free or not.
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    /// Whether `take` would find one.
    pub(super) fn has_free(&self) -> bool {
        !self.free.is_empty()
    }

    /// Takes a free one.
    pub(super) fn take(&mut self) -> Option<usize> {
        if self.stack { self.free.pop_back() } else { self.free.pop_front() }
    }

    /// Gives one back that has nothing to do since `now`.
    pub(super) fn give_back(&mut self, slot: usize, now: Nanos) {
        self.all[slot].free_since = now;
        if self.stack && self.all[slot].link == Link::Closed {
            self.free.push_front(slot);
        } else {
            self.free.push_back(slot);
        }
    }

    /// Gives a request to a slot that was taken.
    pub(super) fn begin(&mut self, slot: usize, current: Current) {
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

    /// Takes the request of a slot, if it has one.
    pub(super) fn end(&mut self, slot: usize) -> Option<Current> {
        let own = &mut self.all[slot];
        let current = own.current.take()?;
        // What a large request has grown goes with it: connections would add up to the memory of one each.
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

    /// The slot whose request was intended first, of those under way.
    pub(super) fn oldest(&self) -> Option<(usize, Nanos)> {
        let slot = self.oldest?;
        Some((slot, self.all[slot].current.expect("it is under way").intended))
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

    fn current(intended: Nanos) -> Current {
        let request = Request { operation: Operation::Get, key: 0, answers: 1, bodiless: 0 };
        Current::new(Start { intended, phase: 0 }, request)
    }

    #[test]
    fn those_under_way_are_in_order_whichever_ends_first() {
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
    fn a_fixed_number_takes_turns_and_a_stack_reuses_the_last_open_one() {
        let mut turns = Slots::new(3, false, false);
        let first = turns.take().expect("free");
        turns.give_back(first, 5);
        assert_eq!(turns.take(), Some(1));
        let mut stack = Slots::new(2, true, false);
        stack[0].link = Link::Open;
        stack[1].link = Link::Open;
        let top = stack.take().expect("free");
        stack.give_back(top, 5);
        assert_eq!(stack.take(), Some(top));
        stack[top].link = Link::Closed;
        stack.give_back(top, 5);
        assert_eq!(stack.take(), Some(0), "an open one before a closed one");
    }
}
