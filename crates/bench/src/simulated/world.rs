//! The simulated server, its wires and the clock, and the run that scenarios are made of. Called by the tests in `simulated`
//! and in `compare`.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize};

use crate::author::Authors;
use crate::collector::{Collector, interval_of};
use crate::generator::{Generator, NEVER, Returned, Shared};
use crate::keys::{Keys, Names, Order};
use crate::network::{Network, Read, Ready};
use crate::recorder::{Failure, Operation, Recorder};
use crate::result::Section;
use crate::schedule::{Arrival, Nanos, Phase, Phases, SECOND, Schedule, Source};
use crate::simulated::Planted;
use crate::workload::{Template, Values, Workload};
use klad_base::sync::Mutex;

/// What the server does with a request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Reply {
    /// An answer, whole at this time.
    Answer {
        /// When.
        at: Nanos,
        /// Its status.
        status: u16,
    },
    /// The end of the connection.
    Reset {
        /// When.
        at: Nanos,
    },
    /// Nothing.
    Never,
}

/// Decides by the request's number, from 0, and the time of its arrival.
pub(crate) trait Script: Fn(u64, Nanos) -> Reply + Clone {}

impl<S: Fn(u64, Nanos) -> Reply + Clone> Script for S {}

/// What becomes ready at a time: bytes, or the end of a connection.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Happening {
    Connected,
    Bytes(Vec<u8>),
    Broken,
}

/// Time, order of making, connection, its life, and what happens.
type Planned = (Nanos, u64, usize, u64, Happening);

#[derive(Debug, Default)]
struct Connection {
    /// Counts the connections that had this number: what was on its way to an earlier one is lost.
    life: u64,
    inbox: Vec<u8>,
    broken: bool,
}

/// The server, the wires and the clock.
struct Simulated<S> {
    now: Nanos,
    script: S,
    requests: u64,
    connections: Vec<Connection>,
    /// By time, then by order of their making.
    happenings: BinaryHeap<Reverse<Planned>>,
    made: u64,
    stall: Option<(Nanos, Nanos)>,
}

impl<S: Script> Simulated<S> {
    fn new(script: S) -> Simulated<S> {
        Simulated {
            now: 0,
            script,
            requests: 0,
            connections: Vec::new(),
            happenings: BinaryHeap::new(),
            made: 0,
            stall: None,
        }
    }

    fn happen(&mut self, at: Nanos, connection: usize, happening: Happening) {
        self.made += 1;
        let life = self.connections[connection].life;
        self.happenings.push(Reverse((at, self.made, connection, life, happening)));
    }
}

impl<S: Script> Network for Simulated<S> {
    fn now(&mut self) -> Nanos {
        self.now
    }

    fn connect(&mut self, connection: usize) -> Result<bool, Failure> {
        if self.connections.len() <= connection {
            self.connections.resize_with(connection + 1, Connection::default);
        }
        // As over loopback: sometimes at once, sometimes with the next wait.
        if connection.is_multiple_of(2) {
            return Ok(true);
        }
        self.happen(self.now, connection, Happening::Connected);
        Ok(false)
    }

    fn connected(&mut self, _: usize) -> Result<bool, Failure> {
        Ok(true)
    }

    fn send(&mut self, connection: usize, bytes: &[u8]) -> Result<usize, Failure> {
        assert!(bytes.ends_with(b"\r\n\r\n"), "a whole GET");
        let reply = (self.script)(self.requests, self.now);
        self.requests += 1;
        match reply {
            Reply::Answer { at, status } => {
                // In two segments.
                let head = format!("HTTP/1.1 {status} X\r\nContent-Length: 5\r\n\r\n").into_bytes();
                self.happen(at, connection, Happening::Bytes(head));
                self.happen(at, connection, Happening::Bytes(b"hello".to_vec()));
            }
            Reply::Reset { at } => self.happen(at, connection, Happening::Broken),
            Reply::Never => {}
        }
        Ok(bytes.len())
    }

    fn read(&mut self, connection: usize, into: &mut [u8]) -> Read {
        let connection = &mut self.connections[connection];
        let bytes = std::mem::take(&mut connection.inbox);
        if bytes.is_empty() {
            return if connection.broken { Read::Broken } else { Read::Nothing };
        }
        into[..bytes.len()].copy_from_slice(&bytes);
        Read::Bytes(bytes.len())
    }

    fn close(&mut self, connection: usize) {
        if let Some(connection) = self.connections.get_mut(connection) {
            *connection = Connection { life: connection.life + 1, ..Connection::default() };
        }
    }

    fn wait(&mut self, until: Nanos, ready: &mut Vec<Ready>) {
        ready.clear();
        if let Some((_, length)) = self.stall.take_if(|(at, _)| *at <= self.now) {
            self.now += length;
        }
        let Some(Reverse((at, ..))) = self.happenings.peek().filter(|Reverse((at, ..))| *at <= until) else {
            self.now = self.now.max(until);
            return;
        };
        self.now = self.now.max(*at);
        let Some(Reverse((_, _, number, life, happening))) = self.happenings.pop() else { return };
        let connection = &mut self.connections[number];
        if connection.life != life {
            return;
        }
        let (readable, ended) = (happening != Happening::Connected, happening == Happening::Broken);
        match happening {
            Happening::Connected => {}
            Happening::Bytes(bytes) => connection.inbox.extend_from_slice(&bytes),
            Happening::Broken => connection.broken = true,
        }
        ready.push(Ready { connection: number, readable, writable: true, ended });
    }
}

/// A run: 2 s of warm-up and 20 s at 1,000 a second.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scenario<S> {
    /// What the server does.
    pub(crate) script: S,
    /// Connections at the start.
    pub(crate) connections: usize,
    /// Connections on demand, at the most.
    pub(crate) connections_max: Option<usize>,
    /// Deadline of each request.
    pub(crate) timeout: Nanos,
    /// When somebody ends the run.
    pub(crate) interrupted: Nanos,
    /// The generator's thread is not run for so long from then on.
    pub(crate) stall: Option<(Nanos, Nanos)>,
    /// The mistake that the generator makes.
    pub(crate) planted: Option<Planted>,
}

/// Requests per second.
pub(crate) const RATE: u64 = 1_000;
/// Length of the warm-up.
pub(crate) const WARM_UP: Nanos = 2 * SECOND;
/// End of the schedule.
pub(crate) const END: Nanos = 22 * SECOND;
/// How long open requests are waited for.
pub(crate) const DRAIN: Nanos = SECOND;

impl<S: Script> Scenario<S> {
    /// With connections that are all made before the start.
    pub(crate) fn fixed(script: S) -> Scenario<S> {
        Scenario {
            script,
            connections: 64,
            connections_max: None,
            timeout: 60 * SECOND,
            interrupted: NEVER,
            stall: None,
            planted: None,
        }
    }

    /// With a connection for each request that needs one.
    pub(crate) fn on_demand(script: S) -> Scenario<S> {
        Scenario { connections: 1, connections_max: Some(100_000), ..Scenario::fixed(script) }
    }

    /// The warm-up, and what was measured.
    pub(crate) fn run(self) -> (Section, Section) {
        let (phases, source) = source();
        let collector = self.run_source(phases, source);
        (collector.warm_up().expect("there is one"), collector.measured().0)
    }

    /// What the threads of a run share.
    pub(crate) fn shared(&self, phases: Phases, source: Source) -> Shared {
        let workload = Workload {
            weights: vec![(Operation::Get, 1.0)],
            template: Template { target: vec![b"/".to_vec(), Vec::new()], headers: b"Host: h\r\n".to_vec() },
            fixed: None,
            keys: Keys::new(Names::Format("{}".parse().expect("valid")), Order::Sequential, 0, None),
            zipf_exponent: 1.0,
            values: Values::Format("{}".parse().expect("valid")),
            seed: 1,
        };
        Shared {
            interval: interval_of(phases.end()),
            phases,
            source,
            workload: Arc::new(workload),
            timeout: self.timeout,
            drain: DRAIN,
            polls: true,
            good_within: self.timeout,
            connections_max: self.connections_max,
            connections: AtomicUsize::new(self.connections),
            interrupted: AtomicU64::new(self.interrupted),
            returned: Returned::default(),
            authors: Authors::default(),
            failure: Mutex::new(None),
            planted: self.planted,
        }
    }

    /// Another run, and all that was recorded of it.
    pub(crate) fn run_source(self, phases: Phases, source: Source) -> Collector {
        let shared = self.shared(phases, source);
        self.run_threads(shared, 1)
    }

    /// A run of several threads, which have the same start one after the other, each on a clock and with connections of its own.
    pub(crate) fn run_threads(self, shared: Shared, threads: usize) -> Collector {
        let shared = Arc::new(shared);
        let mut collector =
            Collector::new(shared.phases.clone(), shared.mode(), threads, shared.interval, shared.good_within);
        for thread in 0..threads {
            let deliver = |interval, recorder: &mut Recorder| {
                collector.add(thread, interval, recorder);
                recorder.clear();
            };
            let network = Simulated { stall: self.stall, ..Simulated::new(self.script.clone()) };
            let mut generator = Generator::new(shared.clone(), network, thread, self.connections, deliver);
            let (connected, failure) = generator.connect(SECOND);
            assert_eq!((connected, failure), (self.connections, None));
            generator.run();
        }
        let mut rest = Recorder::new(shared.phases.all().len());
        shared.record_rest(&mut rest);
        collector.add_rest(&rest);
        collector
    }
}

/// The run that scenarios are made of.
pub(crate) fn source() -> (Phases, Source) {
    let rate = 1e3;
    let phases = Phases::new(WARM_UP, &[Phase { from: rate, to: rate, length: END - WARM_UP }]);
    let source = Source::Open(Mutex::new(Schedule::new(phases.clone(), Arrival::Constant, 1)));
    (phases, source)
}
