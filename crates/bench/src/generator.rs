//! The generator: starts requests when they are due, reads answers, and records their times against the schedule.
//!
//! ```text
//!     schedule ──▶ start ──▶ connection ──▶ server
//!        │           │ send lag               │
//!        │           ▼                        ▼
//!        └─────▶ recorder ◀── response ── answer, failure, deadline, end of the run
//!                    │        (response time: from the intended start; service time: from the send)
//!                    └──▶ collector, once for each interval
//! ```
//!
//! Each thread runs one generator on a [`Network`]. It takes a start from the schedule only when it has a connection
//! for it, and then waits until the start is due. So no start is late because another thread sleeps, and no thread has
//! to wake another. If all connections are busy, a due request waits, and the wait counts. Used by `threads`.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use crate::gap;
use crate::network::{Network, ReadOutcome, ReadyEvent};
use crate::recorder::{Failure, Outcome, Recorder, RequestEnd};
use crate::response::Answer;
use crate::schedule::{Mode, Nanos, Start};
pub use crate::shared::{NEVER, ReturnedStarts, Shared};
use crate::slots::{ConnectionState, InFlight, Slots};
use crate::workload::Requests;

/// The size of the read buffer, bytes. All connections of a thread share it, because it keeps nothing between reads.
const READ_BYTES: usize = 64 << 10;

/// The longest wait. A thread therefore reads the clock at least this often, so that it notices when it did not run.
const TICK: Nanos = 5_000_000;

/// The shortest stall: a time in which the generator's thread should have run but did not. Other work on the machine
/// causes shorter delays, which do not count.
const STALL_MIN: Nanos = 500_000;

/// In closed mode, the pause after a failed attempt to open a connection. Nothing else limits the number of attempts.
const RETRY_PAUSE: Nanos = 10_000_000;

/// The generator of one thread. After each interval and at the end, the generator calls `deliver` with the number of
/// the interval and the recorder. `deliver` empties the recorder, or leaves the records for the next call.
pub struct Generator<N, D> {
    shared: Arc<Shared>,
    network: N,
    deliver: D,
    requests: Requests,
    recorder: Recorder,
    slots: Slots,
    /// The pausing connections, each with the end of its pause. They could not be opened, or a script delays them.
    paused: BinaryHeap<Reverse<(Nanos, usize)>>,
    /// The next start, which was taken from the schedule. It is not due yet, or no connection is free.
    next: Option<Start>,
    /// Whether there are no more starts: the schedule or the run has ended, or the script has stopped.
    over: bool,
    /// Whether the script of this thread has stopped.
    stopped: bool,
    /// Whether `start_all_due` is running, because it must not call itself.
    starting: bool,
    interval: u64,
    /// When the clock was last read.
    seen: Nanos,
    /// The last stall: a time during which this thread should have read the clock but did not run.
    stall: std::ops::Range<Nanos>,
    buffer: Box<[u8]>,
    request: Vec<u8>,
}

impl<N: Network, D: FnMut(u64, &mut Recorder)> Generator<N, D> {
    /// Creates a generator with `connections` connections, which are closed at first.
    pub fn new(shared: Arc<Shared>, network: N, thread: usize, connections: usize, deliver: D) -> Self {
        let mut requests = Requests::new(shared.workload.clone(), thread).with_author(shared.authors.take(thread));
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

    /// Returns the recorder, with the records that `deliver` has not taken.
    pub fn into_recorder(self) -> Recorder {
        self.recorder
    }

    /// Returns the network. The caller sets its clock between [`Generator::connect`] and [`Generator::run`].
    pub fn network(&mut self) -> &mut N {
        &mut self.network
    }

    /// Opens all connections before the run, for at most `patience`. Returns the number of open connections, and why
    /// the others are not open (`None` if all are open).
    pub fn connect(&mut self, patience: Nanos) -> (usize, Option<Failure>) {
        let deadline = self.network.now().saturating_add(patience);
        let mut failure = None;
        let mut open = 0;
        let mut connecting = 0;
        for slot in 0..self.slots.len() {
            match self.network.connect(slot) {
                Ok(true) => {
                    self.slots[slot].state = ConnectionState::Open;
                    open += 1;
                }
                Ok(false) => {
                    self.slots[slot].state = ConnectionState::Connecting;
                    connecting += 1;
                }
                Err(why) => failure = Some(why),
            }
        }
        let mut ready = Vec::new();
        while connecting > 0 && self.network.now() < deadline {
            self.network.wait(deadline, &mut ready);
            for event in &ready {
                if self.slots[event.connection].state != ConnectionState::Connecting {
                    continue;
                }
                match self.network.connected(event.connection) {
                    Ok(false) => continue,
                    Ok(true) => {
                        self.slots[event.connection].state = ConnectionState::Open;
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
            if self.slots[slot].state == ConnectionState::Connecting {
                self.close(slot);
                failure = failure.or(Some(Failure::Connect));
            }
        }
        (open, failure)
    }

    /// Makes the load from time 0 to the end of the schedule and of its drain.
    pub fn run(&mut self) {
        let mut ready = Vec::new();
        self.rest_first();
        loop {
            let end = self.shared.end();
            let now = self.now();
            self.end_interval(now);
            self.expire(now);
            self.start_due(now);
            if now >= end {
                // Requests that are due but have no connection by now remain unsent.
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

    /// Reads the clock. This happens at every event. A long time between two readings means that the thread did not
    /// run.
    fn now(&mut self) -> Nanos {
        let now = self.network.now();
        self.look_for_stall(self.seen, now);
        now
    }

    /// Records a stall if the clock should have been read at `due` but was read much later, at `now`.
    fn look_for_stall(&mut self, due: Nanos, now: Nanos) {
        #[cfg(test)]
        let now_seen =
            if self.shared.planted == Some(crate::simulated::GeneratorDefect::StallsUnseen) { due } else { now };
        #[cfg(not(test))]
        let now_seen = now;
        if now_seen.saturating_sub(due) > STALL_MIN {
            self.stall = due..now;
        }
        self.seen = now;
    }

    /// Returns the next time at which the thread has work to do even if no connection becomes ready.
    fn next_event(&self, now: Nanos, end: Nanos) -> Nanos {
        // Wake up at least every TICK, to notice when this thread does not run.
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

    fn end_interval(&mut self, now: Nanos) {
        let interval = now / self.shared.interval;
        if interval > self.interval {
            (self.deliver)(self.interval, &mut self.recorder);
            self.interval = interval;
        }
        while let Some(Reverse((resumes, slot))) = self.paused.peek().copied().filter(|rest| rest.0.0 <= now) {
            self.paused.pop();
            // The connection counts as free since the end of its pause. To use the present time would hide how late
            // this thread is.
            self.slots.release(slot, resumes);
        }
    }

    /// Ends requests that have passed their deadline, and closes their connections, because the answers may still
    /// arrive.
    fn expire(&mut self, now: Nanos) {
        while let Some((slot, intended)) = self.slots.oldest() {
            if intended.saturating_add(self.shared.timeout) > now {
                break;
            }
            self.close(slot);
            self.ended(slot, Outcome::TimedOut, now);
            self.release(slot, now);
        }
    }

    /// Starts the requests that are due, as long as there are connections for them.
    fn start_due(&mut self, now: Nanos) {
        // A start on a broken connection may read an answer, free the connection, and call this function again. That
        // call does nothing: the loop of the first call goes on.
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
                let ended = RequestEnd { phase, operation, outcome: Outcome::TimedOut, response, service: None };
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

    /// Takes the next start of the schedule, if there is a connection for it.
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
        self.shared.try_grow().then(|| self.slots.add())
    }

    fn start(&mut self, slot: usize, start: Start, now: Nanos) {
        self.request.clear();
        let request = match self.requests.next(&mut self.request) {
            Ok(Some(request)) => request,
            Ok(None) => {
                self.slots.release(slot, now);
                if self.shared.mode() == Mode::Open {
                    self.shared.return_start(start);
                }
                return self.look_for_stop(now);
            }
            Err(why) => {
                self.slots.release(slot, now);
                return self.abort(why);
            }
        };
        self.look_for_stop(now);
        self.slots.begin(slot, InFlight::new(start, request));
        let could = start.intended.max(self.slots[slot].free_since);
        // A request that became due during a stall is late by the rest of the stall, even if all connections were busy,
        // because their answers may have been waiting to be read.
        let missed = if self.stall.contains(&start.intended) { self.stall.end - start.intended } else { 0 };
        let lag = &mut self.recorder.phase(start.phase).counters.send_lag;
        lag.record(now.saturating_sub(could).max(missed)).expect("the histogram grows");
        if self.slots[slot].state == ConnectionState::Open {
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
            Ok(false) => self.slots[slot].state = ConnectionState::Connecting,
            Err(why) => self.fail(slot, why, now),
        }
    }

    fn on_connected(&mut self, slot: usize, now: Nanos) {
        self.slots[slot].state = ConnectionState::Open;
        self.send_rest(slot, now);
    }

    /// Sends the bytes that a connection has not taken yet.
    fn send_rest(&mut self, slot: usize, now: Nanos) {
        let unsent = std::mem::take(&mut self.slots[slot].unsent);
        let taken = self.slots[slot].taken;
        let sent = self.send(slot, &unsent[taken..], now);
        let whole = taken + sent == unsent.len();
        // The request may have ended already, if the answer came before the end of the request, or if the connection
        // broke.
        if self.slots[slot].current.is_some() && !whole {
            self.slots[slot].unsent = unsent;
            self.slots[slot].taken = taken + sent;
        } else {
            self.slots[slot].taken = 0;
        }
    }

    /// Sends a request or the rest of it. Returns the number of bytes that the connection has taken.
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
                // A server that rejects a body sends an answer and closes the connection. The answer may still be
                // readable.
                self.read(slot, true);
                if self.slots[slot].current.is_some() {
                    self.fail(slot, why, now);
                }
                0
            }
        }
    }

    fn on_ready(&mut self, event: ReadyEvent) {
        let slot = event.connection;
        match self.slots[slot].state {
            ConnectionState::Closed => return,
            ConnectionState::Connecting => {
                let now = self.now();
                match self.network.connected(slot) {
                    Ok(false) => return,
                    Ok(true) => self.on_connected(slot, now),
                    Err(why) => return self.fail(slot, why, now),
                }
            }
            ConnectionState::Open => {}
        }
        if event.readable && self.slots[slot].state == ConnectionState::Open {
            self.read(slot, event.ended);
        }
        if event.writable && self.slots[slot].state == ConnectionState::Open && !self.slots[slot].unsent.is_empty() {
            let now = self.now();
            self.send_rest(slot, now);
        }
    }

    /// Reads all available bytes. A read that does not fill the buffer was the last, unless the connection has `ended`:
    /// then the end must still be read.
    fn read(&mut self, slot: usize, ended: bool) {
        loop {
            let read = self.network.read(slot, &mut self.buffer);
            let now = self.now();
            match (read, self.slots[slot].current) {
                (ReadOutcome::Nothing, _) => return,
                (ReadOutcome::Bytes(count), Some(current)) => {
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
                (ReadOutcome::End, Some(current)) => {
                    let last = self.slots[slot].reader.end();
                    return match last.and_then(|answer| self.note(slot, current, answer)) {
                        Some(answer) => self.answered(slot, answer, false, now),
                        None => self.fail(slot, Failure::Closed, now),
                    };
                }
                (ReadOutcome::Broken, Some(_)) => return self.fail(slot, Failure::Reset, now),
                // No request is in flight: the server has closed an idle connection, or has sent bytes that are not
                // an answer. The connection stays in the free list, and is opened again for its next request.
                (ReadOutcome::Bytes(_) | ReadOutcome::End | ReadOutcome::Broken, None) => return self.close(slot),
            }
        }
    }

    /// Reads the answers to the request of `slot` (one, or several for a pipeline) from the buffer's first `count`
    /// bytes. Returns the number of bytes used and, after the last answer, that answer with the highest status of all.
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

    /// Counts one of a request's answers, and gives it to the script if the script wants answers. After the last
    /// answer, returns that answer with the highest status of all.
    fn note(&mut self, slot: usize, current: InFlight, answer: Answer) -> Option<Answer> {
        let (answered, status) = (current.answered + 1, current.status.max(answer.status));
        if let Some(current) = &mut self.slots[slot].current {
            (current.answered, current.status) = (answered, status);
        }
        if let (Some(author), Some(stored)) = (self.requests.author(), self.slots[slot].reader.stored())
            && let Err(why) = author.answered(answer.status, &stored.head, &stored.body)
        {
            self.abort(why);
        }
        (answered == current.request.answers).then_some(Answer { status, ..answer })
    }

    fn answered(&mut self, slot: usize, answer: Answer, reusable: bool, now: Nanos) {
        // After an answer that came before the end of the request, the connection cannot carry another request.
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
        self.release(slot, now);
        self.start_due(now);
    }

    /// Makes a connection free, or pauses it first if the script demands a delay.
    fn release(&mut self, slot: usize, now: Nanos) {
        let delay = match self.requests.author() {
            Some(author) => author.delay(),
            None => Ok(None),
        };
        match delay {
            Ok(Some(delay)) if delay > 0 => self.paused.push(Reverse((now.saturating_add(delay), slot))),
            Ok(_) => self.slots.release(slot, now),
            Err(why) => {
                self.slots.release(slot, now);
                self.abort(why);
            }
        }
    }

    /// Lets the script delay the first request of each connection, too.
    fn rest_first(&mut self) {
        if self.requests.author().is_some() {
            let free: Vec<_> = std::iter::from_fn(|| self.slots.take()).collect();
            for slot in free {
                self.release(slot, 0);
            }
        }
    }

    /// Ends the run because its script has failed.
    fn abort(&mut self, why: String) {
        self.over = true;
        self.shared.abort(why);
    }

    fn look_for_stop(&mut self, now: Nanos) {
        if !self.stopped && self.requests.author().is_some_and(|author| author.has_stopped()) {
            (self.stopped, self.over) = (true, true);
            // Another thread can use the next start. In closed mode no other thread needs it, because each makes its
            // own starts.
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
            self.release(slot, now);
        }
    }

    fn close(&mut self, slot: usize) {
        self.network.close(slot);
        let slot = &mut self.slots[slot];
        slot.state = ConnectionState::Closed;
        slot.reader.restart();
    }

    /// Records the end of a slot's request, and returns the request; `None` if the slot has none.
    fn ended(&mut self, slot: usize, outcome: Outcome, now: Nanos) -> Option<InFlight> {
        let current = self.slots.end(slot)?;
        let ended = RequestEnd {
            phase: current.phase,
            operation: current.request.operation,
            outcome,
            response: now.saturating_sub(current.intended),
            service: current.sent.map(|sent| now.saturating_sub(sent)),
        };
        #[cfg(test)]
        let Some(ended) = crate::simulated::GeneratorDefect::apply(self.shared.planted, ended) else {
            return Some(current);
        };
        if self.recorder.record(&ended, self.shared.good_within) && now < self.shared.end() {
            let counters = &mut self.recorder.phase(self.shared.phases.at(now)).counters;
            counters.good += 1;
            counters.good_hundredths |= gap::hundredth(now, self.shared.interval);
        }
        self.requests.settle(current.request);
        Some(current)
    }

    /// At the end of the run, records the requests without an answer, with their age as response time.
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
