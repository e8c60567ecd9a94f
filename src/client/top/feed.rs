//! Reads the stream of samples (`/console/events`), and connects again when it ends. Called by `top`.

use std::io::{BufRead as _, BufReader, Read as _};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::client::answer::AnswerBody;
use crate::client::args::TransportArgs;
use crate::client::exchange::{Request, exchange};
use crate::client::problem::rejection;
use crate::client::top::figures::{Figures, Sample, Series};
use crate::client::url::Url;
use crate::client::{Error, show};
use klad_base::clock;
use klad_base::sync::{Mutex, Signal};

/// Time between two attempts to connect.
const PAUSE: Duration = Duration::from_secs(1);

/// Maximum length of one line, bytes. The longest lines have 30 samples.
const LINE_BYTES_MAX: u64 = 4 << 20;

/// What the stream has brought so far.
#[derive(Clone, Debug, Default)]
pub(super) struct State {
    pub(super) figures: Figures,
    /// Why there is no stream now, and since when (Unix time, ms). `None` if there is a stream.
    pub(super) lost: Option<(String, u64)>,
    /// When the last event came, by the clock of this machine. The server's clock may differ.
    pub(super) heard: Option<Instant>,
}

/// The server, and how to reach it.
pub(super) struct Feed<'a> {
    pub(super) url: &'a Url,
    pub(super) transport: &'a TransportArgs,
}

/// The lines of an open stream.
pub(super) type Lines = BufReader<AnswerBody>;

impl Feed<'_> {
    /// Opens a stream.
    ///
    /// # Errors
    /// The server does not answer, or rejects the request.
    pub(super) fn open(&self) -> Result<Lines, Error> {
        let request = Request { method: "GET", target: "/console/events".to_owned(), headers: Vec::new(), body: None };
        let (mut connection, mut answer) = exchange(self.url, self.transport, request)?;
        if answer.status != 200 {
            return Err(rejection(&mut connection, &mut answer, false));
        }
        Ok(BufReader::new(AnswerBody { connection, answer }))
    }

    /// Reads `lines` to the end, then opens and reads further streams. Never returns.
    pub(super) fn follow(&self, lines: Lines, state: &Mutex<State>) {
        let mut lines = Some(lines);
        loop {
            let why = match lines.take().map_or_else(|| self.open(), Ok) {
                Ok(lines) => read(lines, state),
                Err(error) => error.to_string(),
            };
            let mut state = state.lock();
            let since_ms = state.lost.as_ref().map_or_else(clock::unix_ms, |(_, since_ms)| *since_ms);
            state.lost = Some((show::printable(&why), since_ms));
            drop(state);
            Signal::default().wait_timeout(PAUSE);
        }
    }
}

/// Reads a stream to its end. Returns why it has ended.
fn read(mut lines: Lines, state: &Mutex<State>) -> String {
    loop {
        match event(&mut lines) {
            Ok(Some((name, data))) => {
                let mut state = state.lock();
                (state.lost, state.heard) = (None, Some(clock::now()));
                take(&mut state.figures, &name, &data);
            }
            Ok(None) => return "the server has ended the stream".to_owned(),
            Err(error) => return error.to_string(),
        }
    }
}

/// Reads an event: its name and its data. `None`: the stream has ended.
///
/// # Errors
/// The connection is lost.
pub(super) fn event(lines: &mut Lines) -> std::io::Result<Option<(String, Value)>> {
    let (mut name, mut data) = (String::new(), Value::Null);
    loop {
        let mut line = String::new();
        if lines.take(LINE_BYTES_MAX).read_line(&mut line)? == 0 {
            return Ok(None);
        }
        match line.trim_end_matches(['\r', '\n']).split_once(": ") {
            Some(("event", text)) => text.clone_into(&mut name),
            Some(("data", text)) => data = serde_json::from_str(text).map_err(std::io::Error::other)?,
            Some(_) => {}
            None => return Ok(Some((name, data))),
        }
    }
}

/// Adds an event to the figures. Ignores unknown events, which are for other clients.
pub(super) fn take(figures: &mut Figures, name: &str, data: &Value) {
    match name {
        "series" => {
            let names = data["series"].as_array().into_iter().flatten().filter_map(Value::as_str);
            figures.set_series(data["started_ms"].as_u64(), names.map(Series::parse).collect());
        }
        "history" => {
            data["samples"].as_array().into_iter().flatten().filter_map(sample).for_each(|sample| figures.push(sample));
        }
        "sample" => sample(data).into_iter().for_each(|sample| figures.push(sample)),
        _ => {}
    }
}

fn sample(data: &Value) -> Option<Sample> {
    let [unix_ms, uptime_ms, values @ ..] = data.as_array()?.as_slice() else { return None };
    let values = values.iter().map(Value::as_f64).collect();
    Some(Sample { unix_ms: unix_ms.as_u64()?, uptime_ms: uptime_ms.as_u64()?, values })
}
