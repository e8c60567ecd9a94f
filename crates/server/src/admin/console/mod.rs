//! The console: a page for people, at `/console`. It shows the metrics of `/metrics` as charts, and browses the data.
//!
//! ```text
//!   /console, /console/NAME     the page and its files, without a token: they contain no data
//!   /console/session            what this client may do
//!   /console/events             a sample each second, and those of the last 15 minutes
//!   /console/data/v1/...        the same as /v1/... on the data listener
//! ```
//!
//! A request for data waits for a worker's answer, but neither storage nor a worker blocks the admin thread. klad takes
//! a sample each second, also while no console is open, so that a page can show what happened before it was opened.
//! `admin` calls this; `listener` starts the sampling.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, Response};
use serde::Deserialize;
use serde_json::json;
use tokio::sync::Semaphore;
use tokio::time::MissedTickBehavior;

use crate::admin::deadline::Deadline;
use crate::admin::page::Page;
use crate::admin::{Admin, control, origin};
use crate::connection::worker::ConsoleHandles;
use crate::http::api_error::ApiError;
use crate::limits::{CONSOLE_DATA_REQUESTS_MAX, CONSOLE_SAMPLE_INTERVAL, CONSOLE_SERIES_MAX, CONSOLE_STREAMS_MAX};
use crate::tokens::Access;
use klad_base::clock;
use klad_base::metrics::text::Page as MetricsPage;
use klad_base::metrics::{Choice, Samples};
use ring::Ring;

mod assets;
mod data;
mod events;
mod ring;

pub use data::Forwarded;
pub use events::Events;

pub(super) use assets::is_path as is_file;
pub(super) use data::is_path as is_data;

/// What the console needs in addition to the other fields of [`Admin`].
pub struct Console {
    ring: RefCell<Ring>,
    streams: Arc<Semaphore>,
    data_requests: Arc<Semaphore>,
    workers: ConsoleHandles,
    /// Whether the console gives access to the data. `false` if the data listener would reject clients that the admin
    /// listener accepts.
    has_data: bool,
    started: Instant,
}

/// The part of `charts.json` that the server needs.
#[derive(Deserialize)]
struct Charts {
    families: Vec<ChartFamily>,
}

#[derive(Deserialize)]
struct ChartFamily {
    name: String,
    by: Vec<String>,
}

impl Console {
    pub(crate) fn new(workers: ConsoleHandles, has_data: bool) -> Console {
        let charts: Charts = serde_json::from_str(assets::CHARTS).expect("a part of the program, which tests read");
        let choices = charts.families.into_iter().map(|family| Choice { name: family.name, by: family.by });
        Console {
            ring: RefCell::new(Ring::new(Samples::new(choices.collect(), CONSOLE_SERIES_MAX), clock::unix_ms())),
            streams: Arc::new(Semaphore::new(CONSOLE_STREAMS_MAX)),
            data_requests: Arc::new(Semaphore::new(CONSOLE_DATA_REQUESTS_MAX)),
            workers,
            has_data,
            started: clock::now(),
        }
    }
}

/// Whether [`Admin::console_answer`] answers this path.
pub(super) fn is_path(path: &str) -> bool {
    path == "/console" || path.starts_with("/console/")
}

impl Admin {
    /// Takes a sample each second. Never returns.
    pub(super) async fn take_samples(&self) {
        let mut ticks = tokio::time::interval(CONSOLE_SAMPLE_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut is_told = false;
        loop {
            ticks.tick().await;
            let fill = |samples: &mut Samples| self.write_metrics(&mut MetricsPage::sampling(samples));
            let uptime = clock::now() - self.console.started;
            let uptime_ms = u64::try_from(uptime.as_millis()).unwrap_or(u64::MAX);
            let mut ring = self.console.ring.borrow_mut();
            ring.take(clock::unix_ms(), uptime_ms, fill);
            if ring.latest().left_out() && !is_told {
                let max = CONSOLE_SERIES_MAX;
                tracing::warn!(max, "too many series: the console shows only some; /metrics has all");
                is_told = true;
            }
        }
    }

    /// Answers a request that [`Admin::admit`] has admitted.
    pub(super) async fn console_answer(
        self: &Rc<Self>,
        request: Request<Incoming>,
        deadline: &Deadline,
    ) -> Result<Response<Page>, ApiError> {
        let place =
            |places: &Arc<Semaphore>, busy| places.clone().try_acquire_owned().map_err(|_| ApiError::ConsoleBusy(busy));
        let path = request.uri().path();
        if is_data(path) {
            if !self.console.has_data {
                return Err(ApiError::UnknownPath);
            }
            let place = place(&self.console.data_requests, "too many requests of consoles are in progress")?;
            return data::answer(&self.console.workers, request, deadline, place).await;
        }
        let reads = matches!(*request.method(), Method::GET | Method::HEAD);
        match (path, reads) {
            ("/console/session", true) => Ok(control::json(&self.session(&request)?).map(Page::from)),
            ("/console/events", true) => {
                let place = place(&self.console.streams, "too many consoles are open")?;
                let events = Events::new(self.clone(), deadline.clone(), place);
                let mut answer = Response::new(Page::Events(Box::new(events)));
                answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
                Ok(answer)
            }
            ("/console/session" | "/console/events", false) => Err(ApiError::MethodNotAllowed("GET, HEAD")),
            (path, false) if is_file(path) => Err(ApiError::MethodNotAllowed("GET, HEAD")),
            _ => assets::answer(&request).ok_or(ApiError::UnknownPath),
        }
    }

    /// Returns what the page needs to know before it draws, such as what the client may do.
    fn session(&self, request: &Request<Incoming>) -> Result<serde_json::Value, ApiError> {
        let access = match self.authorization.grant(request.headers())? {
            Access::ReadWrite => "read-write",
            Access::ReadOnly => "read-only",
        };
        let tokens = self.authorization.needs_token();
        Ok(json!({
            "access": access,
            "tokens": tokens,
            "engine": self.executor.engine_name(),
            "execution": self.executor.strategy_name(),
            "version": env!("CARGO_PKG_VERSION"),
            "started_ms": self.console.ring.borrow().started_ms(),
            // Without tokens, klad allows `/console/data` only if the URL has an IP address or `localhost`.
            "data": self.console.has_data && (tokens || origin::is_trusted_host(request.headers())),
        }))
    }
}
