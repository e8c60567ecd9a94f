//! The simulated server, network and clock, and the run that scenarios are based on. Called by the tests in
//! `simulated` and `compare`.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize};

use crate::author::Authors;
use crate::collector::{Collector, interval_length};
use crate::generator::{Generator, NEVER, ReturnedStarts, Shared};
use crate::keys::{KeyNames, Keys, Order};
use crate::network::{Network, ReadOutcome, ReadyEvent};
use crate::recorder::{Failure, Operation, Recorder};
use crate::result::Section;
use crate::schedule::{Arrival, Nanos, Phase, Phases, SECOND, Schedule, Source};
use crate::simulated::GeneratorDefect;
use crate::workload::{Template, Values, Workload};
use klad_base::sync::Mutex;

/// How the server reacts to a request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Reply {
    /// The server sends an answer.
    Answer {
        /// When the answer is complete.
        at: Nanos,
        /// The status of the answer.
        status: u16,
    },
    /// The server resets the connection.
    Reset {
        /// When the connection is reset.
        at: Nanos,
    },
    /// The server sends nothing.
    Never,
}

/// A function that chooses the server's reaction to a request, from the request's number (from 0) and its time of
/// arrival.
pub(crate) trait ServerBehaviour: Fn(u64, Nanos) -> Reply + Clone {}

impl<S: Fn(u64, Nanos) -> Reply + Clone> ServerBehaviour for S {}

/// An event of the network.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum NetworkEvent {
    Connected,
    Bytes(Vec<u8>),
    Broken,
}

/// Time, order of creation, connection, generation of the connection, and event.
type Planned = (Nanos, u64, usize, u64, NetworkEvent);

#[derive(Debug, Default)]
struct Connection {
    /// Counts the earlier connections with this number. Their events are dropped.
    life: u64,
    received: Vec<u8>,
    broken: bool,
}

/// The network with its server and clock.
struct SimulatedNetwork<S> {
    now: Nanos,
    behaviour: S,
    requests: u64,
    connections: Vec<Connection>,
    /// Future events, by time and then by order of creation.
    events: BinaryHeap<Reverse<Planned>>,
    made: u64,
    stall: Option<(Nanos, Nanos)>,
}

impl<S: ServerBehaviour> SimulatedNetwork<S> {
    fn new(behaviour: S) -> SimulatedNetwork<S> {
        SimulatedNetwork {
            now: 0,
            behaviour,
            requests: 0,
            connections: Vec::new(),
            events: BinaryHeap::new(),
            made: 0,
            stall: None,
        }
    }

    fn schedule_event(&mut self, at: Nanos, connection: usize, event: NetworkEvent) {
        self.made += 1;
        let life = self.connections[connection].life;
        self.events.push(Reverse((at, self.made, connection, life, event)));
    }
}

impl<S: ServerBehaviour> Network for SimulatedNetwork<S> {
    fn now(&mut self) -> Nanos {
        self.now
    }

    fn connect(&mut self, connection: usize) -> Result<bool, Failure> {
        if self.connections.len() <= connection {
            self.connections.resize_with(connection + 1, Connection::default);
        }
        // As over loopback: some connections are open at once, others after the next wait.
        if connection.is_multiple_of(2) {
            return Ok(true);
        }
        self.schedule_event(self.now, connection, NetworkEvent::Connected);
        Ok(false)
    }

    fn connected(&mut self, _: usize) -> Result<bool, Failure> {
        Ok(true)
    }

    fn send(&mut self, connection: usize, bytes: &[u8]) -> Result<usize, Failure> {
        assert!(bytes.ends_with(b"\r\n\r\n"), "a complete GET");
        let reply = (self.behaviour)(self.requests, self.now);
        self.requests += 1;
        match reply {
            Reply::Answer { at, status } => {
                // The answer arrives in two segments.
                let head = format!("HTTP/1.1 {status} X\r\nContent-Length: 5\r\n\r\n").into_bytes();
                self.schedule_event(at, connection, NetworkEvent::Bytes(head));
                self.schedule_event(at, connection, NetworkEvent::Bytes(b"hello".to_vec()));
            }
            Reply::Reset { at } => self.schedule_event(at, connection, NetworkEvent::Broken),
            Reply::Never => {}
        }
        Ok(bytes.len())
    }

    fn read(&mut self, connection: usize, into: &mut [u8]) -> ReadOutcome {
        let connection = &mut self.connections[connection];
        let bytes = std::mem::take(&mut connection.received);
        if bytes.is_empty() {
            return if connection.broken { ReadOutcome::Broken } else { ReadOutcome::Nothing };
        }
        into[..bytes.len()].copy_from_slice(&bytes);
        ReadOutcome::Bytes(bytes.len())
    }

    fn close(&mut self, connection: usize) {
        if let Some(connection) = self.connections.get_mut(connection) {
            *connection = Connection { life: connection.life + 1, ..Connection::default() };
        }
    }

    fn wait(&mut self, until: Nanos, ready: &mut Vec<ReadyEvent>) {
        ready.clear();
        if let Some((_, length)) = self.stall.take_if(|(at, _)| *at <= self.now) {
            self.now += length;
        }
        let Some(Reverse((at, ..))) = self.events.peek().filter(|Reverse((at, ..))| *at <= until) else {
            self.now = self.now.max(until);
            return;
        };
        self.now = self.now.max(*at);
        let Some(Reverse((_, _, number, life, event))) = self.events.pop() else { return };
        let connection = &mut self.connections[number];
        if connection.life != life {
            return;
        }
        let (readable, ended) = (event != NetworkEvent::Connected, event == NetworkEvent::Broken);
        match event {
            NetworkEvent::Connected => {}
            NetworkEvent::Bytes(bytes) => connection.received.extend_from_slice(&bytes),
            NetworkEvent::Broken => connection.broken = true,
        }
        ready.push(ReadyEvent { connection: number, readable, writable: true, ended });
    }
}

/// A run of the simulated server; with [`source`], 2 s of warm-up and 20 s of measurement at 1,000 requests per second.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scenario<S> {
    /// How the server reacts.
    pub(crate) behaviour: S,
    /// The number of connections at the start.
    pub(crate) connections: usize,
    /// The largest number of connections on demand; `None`: the number is fixed.
    pub(crate) connections_max: Option<usize>,
    /// The deadline of each request.
    pub(crate) timeout: Nanos,
    /// When the run is interrupted; [`NEVER`] if it is not.
    pub(crate) interrupted: Nanos,
    /// When the generator's thread stops running, and for how long; `None`: it always runs.
    pub(crate) stall: Option<(Nanos, Nanos)>,
    /// The planted defect.
    pub(crate) planted: Option<GeneratorDefect>,
}

/// Requests per second.
pub(crate) const RATE: u64 = 1_000;
/// Length of the warm-up.
pub(crate) const WARM_UP: Nanos = 2 * SECOND;
/// End of the schedule.
pub(crate) const END: Nanos = 22 * SECOND;
/// How long the run waits for requests in flight.
pub(crate) const DRAIN: Nanos = SECOND;

impl<S: ServerBehaviour> Scenario<S> {
    /// A fixed number of connections, all made before the start.
    pub(crate) fn fixed(behaviour: S) -> Scenario<S> {
        Scenario {
            behaviour,
            connections: 64,
            connections_max: None,
            timeout: 60 * SECOND,
            interrupted: NEVER,
            stall: None,
            planted: None,
        }
    }

    /// A new connection for each request that needs one.
    pub(crate) fn on_demand(behaviour: S) -> Scenario<S> {
        Scenario { connections: 1, connections_max: Some(100_000), ..Scenario::fixed(behaviour) }
    }

    /// Makes the run; returns the warm-up and the measured part.
    pub(crate) fn run(self) -> (Section, Section) {
        let (phases, source) = source();
        let collector = self.run_source(phases, source);
        (collector.warm_up().expect("there is one"), collector.measured().0)
    }

    /// The shared state of the run.
    pub(crate) fn shared(&self, phases: Phases, source: Source) -> Shared {
        let workload = Workload {
            weights: vec![(Operation::Get, 1.0)],
            template: Template { target: vec![b"/".to_vec(), Vec::new()], headers: b"Host: h\r\n".to_vec() },
            fixed: None,
            batch: None,
            pipeline: 1,
            keys: Keys::new(KeyNames::Format("{}".parse().expect("valid")), Order::Sequential, 0, None),
            zipf_exponent: 1.0,
            values: Values::Format("{}".parse().expect("valid")),
            seed: 1,
        };
        Shared {
            interval: interval_length(phases.end()),
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
            returned: ReturnedStarts::default(),
            authors: Authors::default(),
            failure: Mutex::new(None),
            planted: self.planted,
        }
    }

    /// Makes a run with other phases and another source.
    pub(crate) fn run_source(self, phases: Phases, source: Source) -> Collector {
        let shared = self.shared(phases, source);
        self.run_threads(shared, 1)
    }

    /// Makes a run of several threads, one after the other. Each has its own clock and its own connections.
    pub(crate) fn run_threads(self, shared: Shared, threads: usize) -> Collector {
        let shared = Arc::new(shared);
        let mut collector =
            Collector::new(shared.phases.clone(), shared.mode(), threads, shared.interval, shared.good_within);
        for thread in 0..threads {
            let deliver = |interval, recorder: &mut Recorder| {
                collector.add(thread, interval, recorder);
                recorder.clear();
            };
            let network = SimulatedNetwork { stall: self.stall, ..SimulatedNetwork::new(self.behaviour.clone()) };
            let mut generator = Generator::new(shared.clone(), network, thread, self.connections, deliver);
            let (connected, failure) = generator.connect(SECOND);
            assert_eq!((connected, failure), (self.connections, None));
            generator.run();
        }
        let mut rest = Recorder::new(shared.phases.all().len());
        shared.record_untaken_starts(&mut rest);
        collector.add_undelivered(&rest);
        collector
    }
}

/// The phases and the source of starts that scenarios are based on.
pub(crate) fn source() -> (Phases, Source) {
    let rate = 1e3;
    let phases = Phases::new(WARM_UP, &[Phase { from: rate, to: rate, length: END - WARM_UP }]);
    let source = Source::Open(Mutex::new(Schedule::new(phases.clone(), Arrival::Constant, 1)));
    (phases, source)
}
