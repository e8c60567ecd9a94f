//! The limits of one batch, from the server's `/v1/limits`. Called by `batch` and `upload`.

use std::io::Read as _;

use crate::client::Error;
use crate::client::answer::AnswerBody;
use crate::client::exchange::{Request, Session};
use crate::client::limits::{CLIENT_BATCH_BYTES, CLIENT_BATCH_ITEMS, CLIENT_JSON_BYTES_MAX};
use crate::client::problem::rejection;

/// The largest batch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// Items that the server takes in one batch.
    pub(super) items_max: u64,
    /// Bytes that the server takes in the body of one batch.
    pub(super) bytes_max: u64,
}

impl Bounds {
    /// Asks the server.
    ///
    /// # Errors
    /// [`Error`].
    pub(super) fn ask(session: &Session<'_>) -> Result<Bounds, Error> {
        let target = "/v1/limits".to_owned();
        let mut body = session.send(Request { method: "GET", target, headers: Vec::new(), body: None })?;
        if body.answer.status != 200 {
            return Err(rejection(&mut body.connection, &mut body.answer, false));
        }
        let document = read_json(body)?;
        let number = |name: &str| {
            let missing = || Error::Failed(format!("/v1/limits has no {name}: is this server klad?"));
            document[name].as_u64().filter(|number| *number > 0).ok_or_else(missing)
        };
        Ok(Bounds { items_max: number("batch_items_max")?, bytes_max: number("batch_bytes_max")? })
    }

    /// Returns whether a further item of `length` bytes would make a batch larger than the server takes.
    pub(super) fn excludes(&self, items: u64, bytes: u64, length: u64) -> bool {
        items >= self.items_max || bytes + length > self.bytes_max
    }

    /// Like [`Bounds::excludes`], but also applies the client's own limits. An empty batch is never enough.
    pub(super) fn is_enough(&self, items: u64, bytes: u64, length: u64) -> bool {
        items > 0
            && (self.excludes(items, bytes, length)
                || items >= CLIENT_BATCH_ITEMS
                || bytes + length > CLIENT_BATCH_BYTES)
    }
}

/// Reads the body of an answer as JSON.
///
/// # Errors
/// The body cannot be read, or is not JSON.
pub(super) fn read_json(body: AnswerBody) -> Result<serde_json::Value, Error> {
    let mut bytes = Vec::new();
    let read = body.take(CLIENT_JSON_BYTES_MAX as u64).read_to_end(&mut bytes);
    read.map_err(|error| Error::Failed(format!("{error}; the answer is incomplete")))?;
    serde_json::from_slice(&bytes).map_err(|error| Error::Failed(format!("the answer is not valid JSON: {error}")))
}
