//! Checkpoints and compactions on the admin listener. This module turns a request into a job of
//! `execution::maintenance`, and the outcome of the job into an answer.
//!
//! ```text
//!   POST   /checkpoint?name=N     201 made, 202 still in progress
//!   DELETE /checkpoint?name=N     200 removed, 202 still in progress
//!   GET    /checkpoints           200 the list, and the running job
//!   POST   /compact?bottommost=B  202 begun
//!   GET    /compact               200 the running job
//!   DELETE /compact               202 the compaction ends when its current piece of tables is compacted
//! ```
//!
//! `admin` calls this. A request may wait for its job, but the disk never blocks the admin thread.

use hyper::body::Incoming;
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue, LOCATION};
use hyper::{Method, Request, Response, StatusCode};

use crate::execution::maintenance::{Error, JobOutcome, JobReply, Maintenance};
use crate::http::api_error::ApiError;
use crate::http::query;
use crate::limits::MAINTENANCE_ANSWER_TIMEOUT;
use klad_storage::maintenance;

/// Whether [`answer`] answers this path.
#[must_use]
pub(super) fn is_path(path: &str) -> bool {
    matches!(path, "/checkpoint" | "/checkpoints" | "/compact")
}

/// Answers a request for a path that [`is_path`] accepts.
pub(super) async fn answer(
    maintenance: &Maintenance,
    request: &Request<Incoming>,
) -> Result<Response<String>, ApiError> {
    let path = request.uri().path();
    let parameter = |name: &'static str| {
        query::first(request.uri().query().unwrap_or(""), name).map_err(|_| ApiError::BadEscape(name))
    };
    let answered = match (path, request.method()) {
        ("/checkpoint", &Method::POST) => {
            let name = parameter("name")?;
            wait(maintenance.checkpoint(name.as_deref())).await
        }
        ("/checkpoint", &Method::DELETE) => {
            let name = parameter("name")?.ok_or(ApiError::MissingParameter("name"))?;
            wait(maintenance.remove(&name)).await
        }
        ("/checkpoints", &Method::GET) => {
            // While a job runs, the answer has the list from before the job.
            let _ = wait(maintenance.list()).await;
            Ok(json(StatusCode::OK, &maintenance.status()))
        }
        ("/compact", &Method::POST) => {
            let bottommost = match parameter("bottommost")?.as_deref() {
                None | Some(b"false") => false,
                Some(b"true") => true,
                Some(_) => {
                    let detail = "parameter bottommost must be true or false";
                    return Ok(problem(StatusCode::BAD_REQUEST, "bad-parameter", detail));
                }
            };
            maintenance.compact(bottommost).map(|_| json(StatusCode::ACCEPTED, &maintenance.status()))
        }
        ("/compact", &Method::GET) => Ok(json(StatusCode::OK, &maintenance.status())),
        ("/compact", &Method::DELETE) => {
            maintenance.cancel_compaction().map(|()| json(StatusCode::ACCEPTED, &maintenance.status()))
        }
        ("/checkpoint", _) => return Ok(not_allowed("POST, DELETE")),
        ("/checkpoints", _) => return Ok(not_allowed("GET")),
        _ => return Ok(not_allowed("GET, POST, DELETE")),
    };
    Ok(answered.unwrap_or_else(|error| error_answer(&error)))
}

/// Waits for the end of a job and answers with its outcome. If the job takes longer than
/// [`MAINTENANCE_ANSWER_TIMEOUT`], answers 202, and the job continues.
async fn wait(asked: Result<JobReply, Error>) -> Result<Response<String>, Error> {
    let Ok(ended) = tokio::time::timeout(MAINTENANCE_ANSWER_TIMEOUT, asked?).await else {
        return Ok(json(StatusCode::ACCEPTED, &serde_json::json!({ "running": true, "see": "/checkpoints" })));
    };
    // The sender is dropped without an answer only if its thread has ended.
    let done = ended.unwrap_or(Err(Error::Stopping))?;
    let status = if matches!(done, JobOutcome::Checkpoint { .. }) { StatusCode::CREATED } else { StatusCode::OK };
    let mut answer = json(status, &done);
    if status == StatusCode::CREATED {
        answer.headers_mut().insert(LOCATION, HeaderValue::from_static("/checkpoints"));
    }
    Ok(answer)
}

fn json(status: StatusCode, value: &impl serde::Serialize) -> Response<String> {
    let text = serde_json::to_string_pretty(value).expect("numbers, words and lists of them");
    typed(status, "application/json", format!("{text}\n"))
}

fn typed(status: StatusCode, content_type: &'static str, body: String) -> Response<String> {
    let mut answer = Response::new(body);
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    answer
}

fn not_allowed(allow: &'static str) -> Response<String> {
    let mut answer =
        problem(StatusCode::METHOD_NOT_ALLOWED, "method-not-allowed", &format!("this path accepts only {allow}"));
    answer.headers_mut().insert(ALLOW, HeaderValue::from_static(allow));
    answer
}

/// Returns an error answer with a problem document, in the same format as all other errors.
fn problem(status: StatusCode, code: &str, detail: &str) -> Response<String> {
    let document = serde_json::json!({
        "title": status.canonical_reason(),
        "status": status.as_u16(),
        "code": code,
        "detail": detail,
    });
    typed(status, "application/problem+json", format!("{document}\n"))
}

/// Returns the answer with the status and code of an error.
fn error_answer(error: &Error) -> Response<String> {
    use maintenance::Error as M;
    let (status, code) = match error {
        Error::BadName => (StatusCode::BAD_REQUEST, "bad-name"),
        Error::Unknown { .. } => (StatusCode::NOT_FOUND, "no-such-checkpoint"),
        Error::NotACheckpoint { .. } => (StatusCode::CONFLICT, "not-a-checkpoint"),
        Error::Served { .. } => (StatusCode::CONFLICT, "checkpoint-in-use"),
        Error::Busy { .. } => (StatusCode::CONFLICT, "busy"),
        Error::Idle => (StatusCode::CONFLICT, "idle"),
        Error::Stopping => (StatusCode::SERVICE_UNAVAILABLE, "stopping"),
        Error::Maintenance(error) => match error {
            M::NotSupported { .. } => (StatusCode::NOT_IMPLEMENTED, "not-supported-by-engine"),
            M::NotWritable(error) => {
                let api_error = ApiError::Operation(error.clone());
                (api_error.status(), api_error.code())
            }
            M::NoSpace { .. } => (StatusCode::INSUFFICIENT_STORAGE, "no-space"),
            M::Shared { .. } => (StatusCode::CONFLICT, "busy"),
            M::Exists { .. } => (StatusCode::CONFLICT, "checkpoint-exists"),
            M::Io { cause, .. } if cause.kind() == std::io::ErrorKind::StorageFull => {
                (StatusCode::INSUFFICIENT_STORAGE, "no-space")
            }
            M::Cancelled => (StatusCode::CONFLICT, "cancelled"),
            M::NotWhole { .. } | M::Io { .. } | M::Directory(_) | M::Engine { .. } => {
                (StatusCode::INTERNAL_SERVER_ERROR, "maintenance-failed")
            }
        },
    };
    problem(status, code, &error.to_string())
}
