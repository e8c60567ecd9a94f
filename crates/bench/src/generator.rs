//! The generator: starts requests when they are due, reads answers, and records both ends against the schedule.
//!
//! ```text
//!     schedule ──▶ start ──▶ connection ──▶ server
//!        │           │ send lag               │
//!        │           ▼                        ▼
//!        └─────▶ recorder ◀── response ── answer, failure, deadline, end of the run
//!                    │        (from the intended start; service: from the send)
//!                    └──▶ collector, once for each interval
//! ```
//!
//! One of these runs on each thread, on a [`Network`]. A thread takes a start from the schedule only when it has a
//! connection free for it, and waits for its time with it in hand; so starts are not late because another thread sleeps, and
//! threads do not wake for each other's. What is due while every connection is busy waits, and its time counts.
//! Called by `runner`, and by the tests in `simulated`.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use crate::gap;
use crate::network::{Network, Read, Ready};
use crate::recorder::{Ended, Failure, Outcome, Recorder};
use crate::response::Answer;
use crate::schedule::{Mode, Nanos, Start};
pub use crate::shared::{NEVER, Returned, Shared};
use crate::slots::{Current, Link, Slots};
use crate::workload::Requests;

/// Bytes that are read at a time; bodies are forgotten, so one buffer serves all connections of a thread.
const READ_BYTES: usize = 64 << 10;

/// The generator looks at the clock at least so often.
const TICK: Nanos = 5_000_000;

/// Less is the ordinary business of a machine that does other things too.
const STALL_MIN: Nanos = 500_000;

/// How long a connection that could not be made rests in closed mode, where nothing else would bound the attempts.
const RETRY_PAUSE: Nanos = 10_000_000;

/// One thread's generator. `deliver` is called with the number of an interval and the recorder that was filled in it, and
/// leaves an empty one.
pub struct Generator<N, D> {
    shared: Arc<Shared>,
    network: N,
    deliver: D,
    requests: Requests,
    recorder: Recorder,
    slots: Slots,
    /// Connections that rest until the time: after they could not be made, or because a script wants it.
    paused: BinaryHeap<Reverse<(Nanos, usize)>>,
    /// The start in hand.
    next: Option<Start>,
    /// No more starts: the schedule is at its end, or the run is, or the script has stopped.
    over: bool,
    /// The script of this thread has stopped.
    stopped: bool,
    /// Starts are being made.
    starting: bool,
    interval: u64,
    /// When the clock was last read, and the last time in which it should have been and was not.
    seen: Nanos,
    stall: std::ops::Range<Nanos>,
    buffer: Box<[u8]>,
    request: Vec<u8>,
}

impl<N: Network, D: FnMut(u64, &mut Recorder)> Generator<N, D> {
    /// With `connections` connections, closed as yet.
    pub fn new(shared: Arc<Shared>, network: N, thread: usize, connections: usize, deliver: D) -> Self {
        let mut requests = Requests::new(shared.workload.clone(), thread).by(shared.authors.take(thread));
        let keep = requests.author().is_some_and(|author| author.wants_answers());
        Generator {
            network,
            deliver,
            requests,
            recorder: Recorder::new(shared.phases.all().len()),
            slots: Slots::new(connections, shared.connections_max.is_some(), keep),
            paused: BinaryHeap::new(),
            next: None,
            over: false,
            stopped: false,
            starting: false,
            interval: 0,
            seen: 0,
            stall: 0..0,
            buffer: vec![0; READ_BYTES].into(),
            request: Vec::new(),
            shared,
        }
    }

    /// What was recorded and could not be delivered.
    pub fn into_recorder(self) -> Recorder {
        self.recorder
    }

    /// The network, to set its clock between [`Generator::connect`] and [`Generator::run`].
    pub fn network(&mut self) -> &mut N {
        &mut self.network
    }

    /// Makes all connections, before the run, for `patience` at the most. Returns how many are made, and why another is not.
    pub fn connect(&mut self, patience: Nanos) -> (usize, Option<Failure>) {
        let deadline = self.network.now().saturating_add(patience);
        let mut failure = None;
        let mut open = 0;
        let mut connecting = 0;
        for slot in 0..self.slots.len() {
            match self.network.connect(slot) {
                Ok(true) => {
                    self.slots[slot].link = Link::Open;
                    open += 1;
                }
                Ok(false) => {
                    self.slots[slot].link = Link::Connecting;
                    connecting += 1;
                }
                Err(why) => failure = Some(why),
            }
        }
        let mut ready = Vec::new();
        while connecting > 0 && self.network.now() < deadline {
            self.network.wait(deadline, &mut ready);
            for event in &ready {
                if self.slots[event.connection].link != Link::Connecting {
                    continue;
                }
                match self.network.connected(event.connection) {
                    Ok(false) => continue,
                    Ok(true) => {
                        self.slots[event.connection].link = Link::Open;
                        open += 1;
                    }
                    Err(why) => {
                        self.close(event.connection);
                        failure = Some(why);
                    }
                }
                connecting -= 1;
            }
        }
        for slot in 0..self.slots.len() {
            if self.slots[slot].link == Link::Connecting {
                self.close(slot);
                failure = failure.or(Some(Failure::Connect));
            }
        }
        (open, failure)
    }

    /// Makes the load, from time 0 to the end of the schedule and the drain after it.
    pub fn run(&mut self) {
        let mut ready = Vec::new();
        self.rest_first();
        loop {
            let end = self.shared.end();
            let now = self.now();
            self.turn_interval(now);
            self.expire(now);
            self.start_due(now);
            if now >= end {
                // Whatever is due and has no connection by now is left unsent.
                self.over = true;
                let drained = now >= end.saturating_add(self.shared.drain) || self.shared.was_interrupted_in_drain();
                if drained || self.slots.oldest().is_none() {
                    break;
                }
            }
            let none_follow = self.stopped || self.shared.mode() == Mode::Closed;
            if self.over && none_follow && self.slots.oldest().is_none() {
                break;
            }
            let until = self.next_event(now, end);
            self.network.wait(until, &mut ready);
            let woken = self.network.now();
            self.look_for_stall(until, woken);
            for event in &ready {
                self.on_ready(*event);
            }
        }
        self.finish();
    }

    /// Reads the clock, which is done for every event: what lies between two readings is time in which this thread was not
    /// there.
    fn now(&mut self) -> Nanos {
        let now = self.network.now();
        self.look_for_stall(self.seen, now);
        now
    }

    /// The clock should have been read soon after `due`, and was read at `now`.
    fn look_for_stall(&mut self, due: Nanos, now: Nanos) {
        #[cfg(test)]
        let now_seen = if self.shared.planted == Some(crate::simulated::Planted::StallsUnseen) { due } else { now };
        #[cfg(not(test))]
        let now_seen = now;
        if now_seen.saturating_sub(due) > STALL_MIN {
            self.stall = due..now;
        }
        self.seen = now;
    }

    /// When there is something to do that no connection tells of.
    fn next_event(&self, now: Nanos, end: Nanos) -> Nanos {
        // Often enough to know whether this thread is run when it should be.
        let mut until = (self.interval + 1).saturating_mul(self.shared.interval).min(now.saturating_add(TICK));
        until = until.min(if now < end { end } else { end.saturating_add(self.shared.drain) });
        if let Some((_, intended)) = self.slots.oldest() {
            until = until.min(intended.saturating_add(self.shared.timeout));
        }
        if let Some(start) = self.next.filter(|_| !self.over && (self.slots.has_free() || self.shared.can_grow())) {
            until = until.min(start.intended);
        }
        if let Some(Reverse((resumes, _))) = self.paused.peek() {
            until = until.min(*resumes);
        }
        until
    }

    fn turn_interval(&mut self, now: Nanos) {
        let interval = now / self.shared.interval;
        if interval > self.interval {
            (self.deliver)(self.interval, &mut self.recorder);
            self.interval = interval;
        }
        while let Some(Reverse((resumes, slot))) = self.paused.peek().copied().filter(|rest| rest.0.0 <= now) {
            self.paused.pop();
            // Free since it could be, not since it was looked at: that would hide how late this thread is.
            self.slots.give_back(slot, resumes);
        }
    }

    /// Ends requests whose deadline has passed, and their connections with them: an answer could still come.
    fn expire(&mut self, now: Nanos) {
        while let Some((slot, intended)) = self.slots.oldest() {
            if intended.saturating_add(self.shared.timeout) > now {
                break;
            }
            self.close(slot);
            self.ended(slot, Outcome::TimedOut, now);
            self.give_back(slot, now);
        }
    }

    /// Starts what is due.
    fn start_due(&mut self, now: Nanos) {
        // A start that meets a broken connection may free one, which ends here again: the loop that is running goes on.
        if !std::mem::replace(&mut self.starting, true) {
            self.start_all_due(now);
            self.starting = false;
        }
    }

    fn start_all_due(&mut self, mut now: Nanos) {
        while !self.over {
            let Some(start) = self.next.or_else(|| self.take_start(now)) else { return };
            self.next = Some(start);
            if start.intended > now || start.intended >= self.shared.end() {
                return;
            }
            if now - start.intended >= self.shared.timeout {
                self.next = None;
                let operation = self.requests.operation();
                let (phase, response) = (start.phase, self.shared.timeout);
                let ended = Ended { phase, operation, outcome: Outcome::TimedOut, response, service: None };
                self.recorder.record(&ended, self.shared.good_within);
                continue;
            }
            let Some(slot) = self.take_slot() else { return };
            self.next = None;
            self.start(slot, start, now);
            if !self.slots.has_free() && !self.shared.can_grow() {
                return;
            }
            now = self.now();
        }
    }

    /// The next start of the schedule, if there is a connection for it.
    fn take_start(&mut self, now: Nanos) -> Option<Start> {
        if !self.slots.has_free() && !self.shared.can_grow() {
            return None;
        }
        let start = self.shared.take_start(now);
        self.over |= start.is_none();
        start
    }

    fn take_slot(&mut self) -> Option<usize> {
        if let Some(slot) = self.slots.take() {
            return Some(slot);
        }
        self.shared.grow().then(|| self.slots.add())
    }

    fn start(&mut self, slot: usize, start: Start, now: Nanos) {
        self.request.clear();
        let request = match self.requests.next(&mut self.request) {
            Ok(Some(request)) => request,
            Ok(None) => {
                self.slots.give_back(slot, now);
                if self.shared.mode() == Mode::Open {
                    self.shared.return_start(start);
                }
                return self.look_for_stop(now);
            }
            Err(why) => {
                self.slots.give_back(slot, now);
                return self.give_up(why);
            }
        };
        self.look_for_stop(now);
        self.slots.begin(slot, Current::new(start, request));
        let could = start.intended.max(self.slots[slot].free_since);
        // What fell due while this thread was not there is late by the rest of that time, even if all connections were busy
        // with answers that nobody read.
        let missed = if self.stall.contains(&start.intended) { self.stall.end - start.intended } else { 0 };
        let lag = &mut self.recorder.phase(start.phase).counters.send_lag;
        lag.record(now.saturating_sub(could).max(missed)).expect("the histogram grows");
        if self.slots[slot].link == Link::Open {
            let request = std::mem::take(&mut self.request);
            let sent = self.send(slot, &request, now);
            if sent < request.len() && self.slots[slot].current.is_some() {
                self.slots[slot].unsent = request[sent..].to_vec();
            }
            self.request = request;
            return;
        }
        self.slots[slot].unsent.clone_from(&self.request);
        match self.network.connect(slot) {
            Ok(true) => self.on_connected(slot, now),
            Ok(false) => self.slots[slot].link = Link::Connecting,
            Err(why) => self.fail(slot, why, now),
        }
    }

    fn on_connected(&mut self, slot: usize, now: Nanos) {
        self.slots[slot].link = Link::Open;
        self.send_rest(slot, now);
    }

    /// Sends what a connection has not taken yet.
    fn send_rest(&mut self, slot: usize, now: Nanos) {
        let unsent = std::mem::take(&mut self.slots[slot].unsent);
        let taken = self.slots[slot].taken;
        let sent = self.send(slot, &unsent[taken..], now);
        let whole = taken + sent == unsent.len();
        // The request may be over: the answer came before it was sent, or the connection broke.
        if self.slots[slot].current.is_some() && !whole {
            self.slots[slot].unsent = unsent;
            self.slots[slot].taken = taken + sent;
        } else {
            self.slots[slot].taken = 0;
        }
    }

    /// Sends a request, or what is left of it, and returns how much of it the connection has taken.
    fn send(&mut self, slot: usize, bytes: &[u8], now: Nanos) -> usize {
        let Some(current) = &mut self.slots[slot].current else { return 0 };
        let counters = &mut self.recorder.phase(current.phase).counters;
        counters.sent += u64::from(current.sent.is_none());
        current.sent.get_or_insert(now);
        match self.network.send(slot, bytes) {
            Ok(sent) => {
                counters.bytes_sent += sent as u64;
                sent
            }
            Err(why) => {
                // A server that refuses a body answers before it closes, and the answer may still be there.
                self.read(slot, true);
                if self.slots[slot].current.is_some() {
                    self.fail(slot, why, now);
                }
                0
            }
        }
    }

    fn on_ready(&mut self, event: Ready) {
        let slot = event.connection;
        match self.slots[slot].link {
            Link::Closed => return,
            Link::Connecting => {
                let now = self.now();
                match self.network.connected(slot) {
                    Ok(false) => return,
                    Ok(true) => self.on_connected(slot, now),
                    Err(why) => return self.fail(slot, why, now),
                }
            }
            Link::Open => {}
        }
        if event.readable && self.slots[slot].link == Link::Open {
            self.read(slot, event.ended);
        }
        if event.writable && self.slots[slot].link == Link::Open && !self.slots[slot].unsent.is_empty() {
            let now = self.now();
            self.send_rest(slot, now);
        }
    }

    /// Reads what is there. A read that does not fill the buffer has emptied the connection, unless its end is known to
    /// follow.
    fn read(&mut self, slot: usize, ended: bool) {
        loop {
            let read = self.network.read(slot, &mut self.buffer);
            let now = self.now();
            match (read, self.slots[slot].current) {
                (Read::Nothing, _) => return,
                (Read::Bytes(count), Some(current)) => {
                    self.recorder.phase(current.phase).counters.bytes_received += count as u64;
                    match self.feed(slot, count) {
                        Ok((taken, Some(answer))) => {
                            return self.answered(slot, answer, !ended && taken == count, now);
                        }
                        Ok((_, None)) if count == self.buffer.len() || ended => {}
                        Ok((_, None)) => return,
                        Err(why) => return self.fail(slot, why, now),
                    }
                }
                (Read::End, Some(current)) => {
                    let last = self.slots[slot].reader.end();
                    return match last.and_then(|answer| self.note(slot, current, answer)) {
                        Some(answer) => self.answered(slot, answer, false, now),
                        None => self.fail(slot, Failure::Closed, now),
                    };
                }
                (Read::Broken, Some(_)) => return self.fail(slot, Failure::Reset, now),
                // Nothing was asked for: the server has closed an idle connection, or says something that is no answer. The
                // connection stays among the free, and is made anew when its turn comes.
                (Read::Bytes(_) | Read::End | Read::Broken, None) => return self.close(slot),
            }
        }
    }

    /// Takes the first `count` bytes of the buffer, as far as they are of answers to the slot's request. Returns how many these
    /// are, and the last answer when all have come.
    fn feed(&mut self, slot: usize, count: usize) -> Result<(usize, Option<Answer>), Failure> {
        let mut taken = 0;
        while let Some(current) = self.slots[slot].current.filter(|_| taken < count) {
            let bodiless = current.request.is_bodiless(current.answered);
            let fed = self.slots[slot].reader.feed(&self.buffer[taken..count], bodiless);
            let (more, answer) = fed.map_err(|_| Failure::Malformed)?;
            taken += more;
            let Some(answer) = answer else { break };
            if let Some(last) = self.note(slot, current, answer) {
                return Ok((taken, Some(last)));
            }
            if !answer.keep_alive {
                return Err(Failure::Closed);
            }
        }
        Ok((taken, None))
    }

    /// Notes one answer of those that a request has, and shows it to the script that wants it; the answer that stands for all
    /// of them when it was the last.
    fn note(&mut self, slot: usize, current: Current, answer: Answer) -> Option<Answer> {
        let (answered, status) = (current.answered + 1, current.status.max(answer.status));
        if let Some(current) = &mut self.slots[slot].current {
            (current.answered, current.status) = (answered, status);
        }
        if let (Some(author), Some(kept)) = (self.requests.author(), self.slots[slot].reader.kept())
            && let Err(why) = author.answered(answer.status, &kept.head, &kept.body)
        {
            self.give_up(why);
        }
        (answered == current.request.answers).then_some(Answer { status, ..answer })
    }

    fn answered(&mut self, slot: usize, answer: Answer, reusable: bool, now: Nanos) {
        // An answer before the request was sent to its end leaves a connection that no other request can follow on.
        if !reusable || !answer.keep_alive || !self.slots[slot].unsent.is_empty() {
            self.close(slot);
        }
        if let Some(current) = self.ended(slot, Outcome::of_status(answer.status), now) {
            self.recorder.phase(current.phase).counters.count_status(answer.status);
            if now < self.shared.end() {
                self.recorder.phase(self.shared.phases.at(now)).counters.answered += 1;
            }
        }
        self.look_for_stop(now);
        self.give_back(slot, now);
        self.start_due(now);
    }

    /// A connection has nothing to do, and may have to rest.
    fn give_back(&mut self, slot: usize, now: Nanos) {
        let delay = match self.requests.author() {
            Some(author) => author.delay(),
            None => Ok(None),
        };
        match delay {
            Ok(Some(delay)) if delay > 0 => self.paused.push(Reverse((now.saturating_add(delay), slot))),
            Ok(_) => self.slots.give_back(slot, now),
            Err(why) => {
                self.slots.give_back(slot, now);
                self.give_up(why);
            }
        }
    }

    /// A script that has a say in when connections rest has it before the first requests too.
    fn rest_first(&mut self) {
        if self.requests.author().is_some() {
            let free: Vec<_> = std::iter::from_fn(|| self.slots.take()).collect();
            for slot in free {
                self.give_back(slot, 0);
            }
        }
    }

    /// Ends the run: its script has failed.
    fn give_up(&mut self, why: String) {
        self.over = true;
        self.shared.give_up(why);
    }

    fn look_for_stop(&mut self, now: Nanos) {
        if !self.stopped && self.requests.author().is_some_and(|author| author.has_stopped()) {
            (self.stopped, self.over) = (true, true);
            // The start in hand is another thread's to send. In closed mode there is none: it would be one of this thread's own.
            if let Some(start) = self.next.take().filter(|_| self.shared.mode() == Mode::Open) {
                self.shared.return_start(start);
            }
            self.shared.thread_stopped(now);
        }
    }

    fn fail(&mut self, slot: usize, why: Failure, now: Nanos) {
        self.close(slot);
        if let Some(current) = self.ended(slot, Outcome::Failed, now) {
            self.recorder.phase(current.phase).counters.count_failure(why);
        }
        let unmade = matches!(why, Failure::Connect | Failure::Ports | Failure::Descriptors);
        if unmade && self.shared.mode() == Mode::Closed {
            self.paused.push(Reverse((now + RETRY_PAUSE, slot)));
        } else {
            self.give_back(slot, now);
        }
    }

    fn close(&mut self, slot: usize) {
        self.network.close(slot);
        let slot = &mut self.slots[slot];
        slot.link = Link::Closed;
        slot.reader.restart();
    }

    /// Records the end of a slot's request.
    fn ended(&mut self, slot: usize, outcome: Outcome, now: Nanos) -> Option<Current> {
        let current = self.slots.end(slot)?;
        let ended = Ended {
            phase: current.phase,
            operation: current.request.operation,
            outcome,
            response: now.saturating_sub(current.intended),
            service: current.sent.map(|sent| now.saturating_sub(sent)),
        };
        #[cfg(test)]
        let Some(ended) = crate::simulated::Planted::apply(self.shared.planted, ended) else { return Some(current) };
        if self.recorder.record(&ended, self.shared.good_within) && now < self.shared.end() {
            let counters = &mut self.recorder.phase(self.shared.phases.at(now)).counters;
            counters.good += 1;
            counters.good_pieces |= gap::piece(now, self.shared.interval);
        }
        self.requests.settle(current.request);
        Some(current)
    }

    /// Records what the end of the run has left open, at its age.
    fn finish(&mut self) {
        let now = self.now();
        while let Some((slot, _)) = self.slots.oldest() {
            self.close(slot);
            if let Some(current) = self.ended(slot, Outcome::Unfinished, now) {
                self.recorder.phase(current.phase).counters.in_flight += u64::from(current.sent.is_some());
            }
        }
        if let Some(start) = self.next.take().filter(|start| start.intended < self.shared.end()) {
            let unsent = self.shared.unsent(start, &mut self.requests);
            self.recorder.record(&unsent, self.shared.good_within);
        }
        (self.deliver)(self.interval, &mut self.recorder);
    }
}
