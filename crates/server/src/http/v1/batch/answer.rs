//! The body of an answer to a batch: the results in the order of the items.
//!
//! A short answer has a length. A long answer is a stream. klad encodes a slice of the stream only after it has handed
//! over the slice before, so only one slice is in memory besides the values. `batch` creates the body; `body` reads it.

use std::task::{Context, Poll};
use std::vec::IntoIter;

use bytes::Bytes;

use crate::execution::admission::BodyPermit;
use crate::http::body::Content;
use crate::http::v1::batch::item::Op;
use crate::http::v1::batch::result::ItemResult;
use crate::http::v1::batch::{Format, Results};
use crate::limits::{BATCH_SLICE_BYTES, BATCH_SLICE_ITEMS, RESPONSE_FRAME_BYTES_MAX};
use klad_storage::operation::{ChangeResult, Version};

/// The results that have not been encoded yet.
struct Writer {
    format: Format,
    ops: IntoIter<Op>,
    results: IntoIter<ChangeResult>,
    /// The version of the next item, if there are no `results` because all changes have taken effect.
    version: u64,
}

/// The body of a long answer, of which the client has taken a part.
pub(in crate::http) struct ResultsBody {
    /// Encoded bytes that were not handed over yet.
    slice: Bytes,
    writer: Writer,
    permit: BodyPermit,
    /// Whether the worker's other requests have not run since the last slice.
    others_wait: bool,
}

/// Encodes the results until they are complete or fill a slice. The client gets the rest as a stream. `permit` covers
/// the values in `results` and their encoded form.
pub(super) async fn content(format: Format, ops: Vec<Op>, results: Results, mut permit: BodyPermit) -> Content {
    let count = ops.len();
    let (results, version) = match results {
        Results::Each(results) => (results.into_iter(), 0),
        Results::AllDone(first) => (Vec::new().into_iter(), first.get()),
    };
    let mut writer = Writer { format, ops: ops.into_iter(), results, version };
    let mut out = Vec::with_capacity(count * 48);
    while !writer.has_ended() {
        if out.len() >= BATCH_SLICE_BYTES {
            let slice = out.into();
            return Content::Results(Box::new(ResultsBody { slice, writer, permit, others_wait: true }));
        }
        writer.write_slice(&mut out);
        tokio::task::yield_now().await;
    }
    out.shrink_to_fit();
    permit.shrink(out.len() as u64);
    Content::Bytes { rest: out.into(), permit: Some(permit) }
}

impl Writer {
    fn has_ended(&self) -> bool {
        self.ops.len() == 0
    }

    fn write_slice(&mut self, out: &mut Vec<u8>) {
        let begin = out.len();
        for op in self.ops.by_ref().take(BATCH_SLICE_ITEMS) {
            let result = self.results.next().unwrap_or_else(|| {
                let version = Version::new(self.version);
                self.version = self.version.saturating_add(1);
                ChangeResult::Done { version, existed: None, number: None }
            });
            self.format.write(&ItemResult::new(op, result), out);
            if out.len() - begin >= BATCH_SLICE_BYTES {
                return;
            }
        }
    }
}

impl ResultsBody {
    /// Takes the next bytes, at most [`RESPONSE_FRAME_BYTES_MAX`]. Returns `None` at the end.
    pub(in crate::http) fn poll_frame(&mut self, context: &Context<'_>) -> Poll<Option<Bytes>> {
        if self.slice.is_empty() && !self.writer.has_ended() {
            self.others_wait = !self.others_wait;
            if !self.others_wait {
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            let mut out = Vec::new();
            self.writer.write_slice(&mut out);
            self.slice = out.into();
        }
        let frame = self.slice.split_to(self.slice.len().min(RESPONSE_FRAME_BYTES_MAX));
        Poll::Ready((!frame.is_empty()).then_some(frame))
    }

    /// Whether all results were handed over.
    pub(in crate::http) fn has_ended(&self) -> bool {
        self.slice.is_empty() && self.writer.has_ended()
    }

    /// Returns how many bytes of the body budget this body holds.
    pub(in crate::http) fn permit_bytes(&self) -> u64 {
        self.permit.bytes()
    }
}
