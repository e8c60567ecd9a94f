//! The admin listener: health, metrics, memory, configuration, profiles, and requests for maintenance. The listener has
//! its own thread, which storage never blocks. So the listener answers even when the data plane does not.
//!
//! `server` creates [`Admin`]; `listener` calls it.

use std::cell::Cell;
use std::fmt::Write as _;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use hyper::body::Incoming;
use hyper::header::{ACCEPT, CACHE_CONTROL, CONNECTION, CONTENT_TYPE, HeaderValue, LOCATION, ORIGIN};
use hyper::{Method, Request, Response, StatusCode};

use crate::admin::console::Console;
use crate::admin::control::Control;
use crate::admin::deadline::Deadline;
use crate::execution::Executor;
use crate::execution::maintenance::Maintenance;
use crate::http::api_error::ApiError;
use crate::http::authorization::{self, Authorization};
use crate::http::framing;
use crate::observe::slowest::Slowest;
use klad_base::metrics::Source;
use klad_base::metrics::text::CONTENT_TYPE as METRICS_CONTENT_TYPE;

pub mod console;
pub mod control;
mod deadline;
pub mod listener;
mod maintenance;
mod memory;
mod metrics;
mod origin;
mod page;
#[cfg(target_os = "linux")]
mod pprof;
pub mod process;
mod ready;
mod slow;
mod thread_groups;

pub use memory::{AllocatorFigures, Shares};
pub use page::Page;
#[cfg(target_os = "linux")]
pub use pprof::Profiler;

/// The paths and their descriptions. klad lists them in its answers to `/` and to an unknown path.
const INDEX: &[(&str, &str)] = &[
    ("/livez", "200 while the process lives; /healthz is the same"),
    ("/readyz", "200 while klad accepts reads and writes, else 503 and the reason; ?verbose shows each check"),
    ("/console", "a page for a browser: what klad does now, why it is slow, the data, and maintenance"),
    ("/config", "every option with its source; PATCH changes options that can change now"),
    ("/drain", "POST lets /readyz answer 503 while klad serves as before; DELETE ends this"),
    ("/reload", "POST reads the configuration again, like SIGHUP"),
    ("/metrics", "all metrics, for Prometheus"),
    ("/checkpoint", "POST makes a checkpoint, ?name=; DELETE removes it; /checkpoints lists them"),
    ("/compact", "POST compacts everything; GET shows its progress, DELETE cancels it"),
    ("/debug/memory", "where the memory is, as JSON; ?format=text for people"),
    (
        "/debug/slow",
        "the slowest requests of the last minute and where their time went, as JSON; ?format=text for people",
    ),
    #[cfg(target_os = "linux")]
    ("/debug/pprof/", "CPU, memory and lock profiles, for go tool pprof and for people"),
];

/// Answers the requests of the admin listener. The fields are the sources of the answers.
pub struct Admin {
    /// Runs operations, and knows the queues and storage.
    pub executor: Arc<Executor>,
    /// `true` from the moment when klad is asked to stop.
    pub stopping: Arc<AtomicBool>,
    /// `true` while an operator wants `/readyz` to answer 503, so that load balancers send no requests.
    pub draining: Cell<bool>,
    /// Returns the current shares of the memory budget.
    pub shares: Box<dyn Fn() -> Shares + Send>,
    /// The allocator's latest figures.
    pub allocator: Arc<AllocatorFigures>,
    /// The slowest requests.
    pub slowest: Arc<Slowest>,
    /// The sources of metrics that have no field of their own in this struct.
    pub sources: Vec<Arc<dyn Source>>,
    /// Returns the number of open connections.
    pub connections: Box<dyn Fn() -> usize + Send>,
    /// Checkpoints and compactions.
    pub maintenance: Arc<Maintenance>,
    /// The configuration.
    pub control: Arc<dyn Control>,
    /// Decides which requests are allowed.
    pub authorization: Authorization,
    /// The console's samples and streams.
    pub console: Console,
    /// When klad began to serve.
    pub started: Instant,
    /// Takes profiles of this process.
    #[cfg(target_os = "linux")]
    pub profiler: Profiler,
}

impl Admin {
    /// Answers one request. If the answer takes long, postpones `deadline`, the end of the connection.
    pub async fn answer(self: &Rc<Self>, mut request: Request<Incoming>, deadline: &Deadline) -> Response<Page> {
        let framed = framing::check(request.version(), request.headers());
        let ends = framed.is_err();
        let answered = match framed.and_then(|()| self.admit(&request)) {
            #[cfg(target_os = "linux")]
            Ok(()) if pprof::is_path(request.uri().path()) => {
                if matches!(*request.method(), Method::GET | Method::HEAD) {
                    self.profiler.answer(&request, deadline).await
                } else {
                    Err(ApiError::MethodNotAllowed("GET, HEAD"))
                }
            }
            Ok(()) if console::is_path(request.uri().path()) => self.console_answer(request, deadline).await,
            Ok(()) => self.route(&mut request).await.map(|answer| answer.map(Page::from)),
            Err(api_error) => Err(api_error),
        };
        let mut answer = match answered {
            Ok(answer) => answer,
            Err(ApiError::UnknownPath) => {
                let mut answer =
                    text(format!("there is nothing at this path; the paths are:\n{}", index())).map(Page::from);
                *answer.status_mut() = StatusCode::NOT_FOUND;
                answer
            }
            Err(api_error) => {
                let (parts, document) = api_error.into_parts();
                Response::from_parts(parts, Page::from(document))
            }
        };
        if ends {
            answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        // A cached answer would be out of date, which is worse here than no answer. Answers that set their own
        // `Cache-Control`, such as the console's files, keep it.
        answer.headers_mut().entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
        answer
    }

    /// Checks whether the client may make the request. The check runs before the request is routed, so that no route
    /// can lack it, and it treats every method except GET and HEAD as a change. Health checks need no token, because
    /// load balancers and supervisors have none. The console's files, and the redirect to them, need no token, because
    /// they show the login.
    fn admit(&self, request: &Request<Incoming>) -> Result<(), ApiError> {
        let path = request.uri().path();
        if matches!(path, "/livez" | "/healthz" | "/readyz") || console::is_file(path) || leads_to_console(request) {
            return Ok(());
        }
        let headers = request.headers();
        let changes = !matches!(*request.method(), Method::GET | Method::HEAD);
        if changes && origin::is_foreign(headers) {
            return Err(ApiError::CrossOrigin);
        }
        let is_from_page = changes && headers.contains_key(ORIGIN);
        let host_matters = is_from_page || console::is_data(path);
        if host_matters && !self.authorization.needs_token() && !origin::is_trusted_host(headers) {
            return Err(ApiError::UntrustedHost);
        }
        let access = self.authorization.grant(headers)?;
        // For `/console/data`, the data plane decides what the token allows. For example, a batch is a POST but may
        // only read.
        authorization::may(access, changes && !console::is_data(path))
    }

    async fn route(&self, request: &mut Request<Incoming>) -> Result<Response<String>, ApiError> {
        let reads = matches!(*request.method(), Method::GET | Method::HEAD);
        match (request.uri().path(), reads) {
            ("/", true) if leads_to_console(request) => Ok(to_console()),
            ("/", true) => Ok(text(index())),
            ("/livez" | "/healthz", true) => Ok(text("ok\n".to_owned())),
            ("/readyz", true) if asks_for(request, "verbose") => Ok(self.ready_verbosely()),
            ("/readyz", true) => self.ready(),
            ("/metrics", true) => Ok(of_type(METRICS_CONTENT_TYPE, self.metrics())),
            ("/debug/memory", true) => self.memory_answer(request),
            ("/debug/slow", true) => self.slow_answer(request),
            ("/config", true) => Ok(control::json(&self.control.config())),
            ("/config", false) if request.method() == Method::PATCH => {
                control::change(&*self.control, request.body_mut()).await
            }
            ("/config", false) => Err(ApiError::MethodNotAllowed("GET, HEAD, PATCH")),
            ("/drain", true) => Ok(self.drain_answer()),
            ("/drain", false) if matches!(*request.method(), Method::POST | Method::DELETE) => {
                Ok(self.drain(request.method() == Method::POST))
            }
            ("/drain", false) => Err(ApiError::MethodNotAllowed("GET, HEAD, POST, DELETE")),
            ("/reload", false) if request.method() == Method::POST => Ok(control::json(&self.control.reload()?)),
            ("/reload", _) => Err(ApiError::MethodNotAllowed("POST")),
            (path, _) if maintenance::is_path(path) => maintenance::answer(&self.maintenance, request).await,
            ("/" | "/livez" | "/healthz" | "/readyz" | "/metrics" | "/debug/memory" | "/debug/slow", false) => {
                Err(ApiError::MethodNotAllowed("GET, HEAD"))
            }
            _ => Err(ApiError::UnknownPath),
        }
    }

    fn memory_answer(&self, request: &Request<Incoming>) -> Result<Response<String>, ApiError> {
        let as_text = wants_text(request);
        let written = self.memory(as_text).map_err(|error| ApiError::NotReady(error.to_string()))?;
        Ok(if as_text { text(written) } else { of_type("application/json", written) })
    }
}

/// Whether the client wants text instead of JSON.
fn wants_text(request: &Request<Incoming>) -> bool {
    let accepts = |kind| accept(request).is_some_and(|accept| accept.contains(kind));
    asks_for(request, "format=text")
        || (accepts("text/plain") && !accepts("application/json") && !asks_for(request, "format=json"))
}

/// Whether the query has `parameter`. `verbose=…` counts as `verbose`, whatever the value.
fn asks_for(request: &Request<Incoming>, parameter: &str) -> bool {
    let query = request.uri().query().unwrap_or_default();
    query.split('&').any(|given| given == parameter || given.split('=').next() == Some(parameter))
}

fn accept(request: &Request<Incoming>) -> Option<&str> {
    request.headers().get(ACCEPT)?.to_str().ok()
}

/// Whether a browser asks for `/`. klad redirects browsers to the console. Other clients get the list of paths.
fn leads_to_console(request: &Request<Incoming>) -> bool {
    let reads = matches!(*request.method(), Method::GET | Method::HEAD);
    reads && request.uri().path() == "/" && accept(request).is_some_and(|accept| accept.contains("text/html"))
}

fn to_console() -> Response<String> {
    let mut answer = text("the console is at /console\n".to_owned());
    *answer.status_mut() = StatusCode::SEE_OTHER;
    answer.headers_mut().insert(LOCATION, HeaderValue::from_static("/console"));
    answer
}

fn index() -> String {
    let width = INDEX.iter().map(|(path, _)| path.len()).max().unwrap_or_default();
    INDEX.iter().fold(String::new(), |mut lines, (path, what)| {
        let _ = writeln!(lines, "{path:<width$}  {what}");
        lines
    })
}

fn text(text: String) -> Response<String> {
    of_type("text/plain; charset=utf-8", text)
}

fn of_type(content_type: &'static str, body: String) -> Response<String> {
    let mut answer = Response::new(body);
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    answer
}
