//! The configuration of a running klad, on the admin listener.
//!
//! `admin` calls this. The program implements [`Control`], because it knows the names of options.

use std::future::poll_fn;
use std::pin::Pin;

use bytes::Bytes;
use hyper::Response;
use hyper::body::{Body as _, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use serde_json::{Map, Value};

use crate::http::api_error::ApiError;
use crate::limits::ADMIN_BODY_BYTES_MAX;
use klad_base::metrics::Source;

/// The configuration of a running klad.
pub trait Control: Source {
    /// Returns each option with its value, its source, whether the option can change now, and, if there is one, the new
    /// value that takes effect at a restart.
    fn config(&self) -> Value;

    /// Changes the options in `wanted`, a map from names to values. Changes all of them or none. Returns a list of the
    /// changes.
    ///
    /// # Errors
    /// [`Refused`]. In this case no option has changed.
    fn change(&self, wanted: &Map<String, Value>) -> Result<Value, Refused>;

    /// Reads the configuration, the tokens and the certificates again from their sources, and applies what can change
    /// while klad runs. Returns the changed options, and the options that only a restart can change.
    ///
    /// # Errors
    /// [`Refused`] if the configuration, the tokens or the certificates are unusable. klad keeps the old version of
    /// each unusable part, and replaces the other parts.
    fn reload(&self) -> Result<Value, Refused>;
}

/// Why the configuration was not changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// A value is invalid. The text names the option.
    #[error("{0}")]
    Wrong(String),
    /// The request asks to change these options, which only a restart can change.
    #[error("only a restart changes {}; nothing was changed", .0.join(", "))]
    NeedsRestart(Vec<String>),
}

impl From<Refused> for ApiError {
    fn from(refused: Refused) -> ApiError {
        match refused {
            Refused::Wrong(_) => ApiError::BadConfiguration(refused.to_string()),
            Refused::NeedsRestart(_) => ApiError::NeedsRestart(refused.to_string()),
        }
    }
}

/// Makes the changes in `body`, a JSON object of options. Answers with a list of the changes.
pub(super) async fn change(control: &dyn Control, body: &mut Incoming) -> Result<Response<String>, ApiError> {
    let text = read(body).await?;
    let wanted = serde_json::from_slice(&text)
        .map_err(|error| ApiError::BadConfiguration(format!("the body is not a JSON object of options: {error}")))?;
    Ok(json(&control.change(&wanted)?))
}

/// Returns a JSON document, indented for people.
pub(super) fn json(document: &Value) -> Response<String> {
    let mut answer = Response::new(format!("{document:#}\n"));
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    answer
}

/// Reads a body of at most [`ADMIN_BODY_BYTES_MAX`] bytes completely.
async fn read(body: &mut Incoming) -> Result<Vec<u8>, ApiError> {
    let mut whole = Vec::new();
    while let Some(data) = poll_fn(|context| Pin::new(&mut *body).poll_frame(context)).await {
        let frame = data.map_err(|error| ApiError::BodyBroken(error.to_string()))?;
        let data: Bytes = frame.into_data().unwrap_or_default();
        whole.extend_from_slice(&data);
        if whole.len() > ADMIN_BODY_BYTES_MAX {
            return Err(ApiError::ValueTooLarge { limit_bytes: ADMIN_BODY_BYTES_MAX as u64 });
        }
    }
    Ok(whole)
}
