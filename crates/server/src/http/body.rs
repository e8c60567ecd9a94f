//! Bodies of answers: empty, a value in frames, a range, a scan, a change feed, or the results of a batch.
//!
//! hyper copies each frame as a whole into the connection's write buffer, and asks for the next one while the buffer is
//! below its limit. A large value in one frame would exceed that limit, so a body gives it in pieces. `service` creates
//! a body; the connection, or hyper, reads it.

use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use hyper::body::{Body, Frame, SizeHint};

use crate::exchange::Exchange;
use crate::execution::admission::BodyPermit;
use crate::http::range::RangeBody;
use crate::http::v1::{FeedBody, ResultsBody, ScanBody};
use crate::limits::RESPONSE_FRAME_BYTES_MAX;
use crate::request_metrics::Outcome;
use klad_storage::operation;

/// The content of a body.
pub(super) enum Content {
    /// A value or a problem document. Empty means no body.
    Bytes {
        /// The bytes that have not been handed over yet.
        rest: Bytes,
        /// The memory permit of a large value, until the value has been handed over.
        permit: Option<BodyPermit>,
    },
    /// A range in progress.
    Range(RangeBody),
    /// A scan of `/v1` in progress.
    Scan(Box<ScanBody>),
    /// A change feed.
    Feed(Box<FeedBody>),
    /// The results of a batch.
    Results(Box<ResultsBody>),
}

impl Content {
    pub(super) fn bytes(rest: impl Into<Bytes>) -> Content {
        Content::Bytes { rest: rest.into(), permit: None }
    }

    /// Returns how many bytes of the body budget this content holds now.
    fn permit_bytes(&self) -> u64 {
        match self {
            Content::Bytes { permit, .. } => permit.as_ref().map_or(0, BodyPermit::bytes),
            Content::Range(range) => range.permit_bytes(),
            Content::Scan(scan) => scan.permit_bytes(),
            Content::Feed(feed) => feed.permit_bytes(),
            Content::Results(results) => results.permit_bytes(),
        }
    }
}

/// The body of an answer. Dropping the body tells the connection that the answer was handed over.
pub struct ResponseBody {
    content: Content,
    /// Whether a part of the body was handed over.
    begun: bool,
    exchange: Rc<Exchange>,
}

impl ResponseBody {
    pub(super) fn new(content: Content, exchange: Rc<Exchange>) -> ResponseBody {
        exchange.set_body_permit(content.permit_bytes());
        ResponseBody { content, begun: false, exchange }
    }
}

impl ResponseBody {
    /// Returns the number of bytes that are left. Only for a connection that sends the answer without hyper.
    ///
    /// # Panics
    /// If the body has an unknown length.
    #[must_use]
    pub fn length(&self) -> usize {
        match &self.content {
            Content::Bytes { rest, .. } => rest.len(),
            Content::Range(_) | Content::Scan(_) | Content::Feed(_) | Content::Results(_) => {
                unreachable!("only requests for one entity are plain")
            }
        }
    }

    /// Takes the next bytes, at most [`RESPONSE_FRAME_BYTES_MAX`]. The memory permit of a large value is released with
    /// the body, not with these bytes.
    ///
    /// # Panics
    /// If the body has an unknown length.
    #[must_use]
    pub fn take_frame(&mut self) -> Bytes {
        self.begun = true;
        match &mut self.content {
            Content::Bytes { rest, .. } => {
                let frame = rest.split_to(rest.len().min(RESPONSE_FRAME_BYTES_MAX));
                self.exchange.request().sent(frame.len());
                frame
            }
            Content::Range(_) | Content::Scan(_) | Content::Feed(_) | Content::Results(_) => {
                unreachable!("only requests for one entity are plain")
            }
        }
    }
}

impl Drop for ResponseBody {
    fn drop(&mut self) {
        let whole = match &self.content {
            // If no byte of the body was read, the client did not want it: it is the answer to HEAD, or the client has
            // left.
            Content::Bytes { rest, .. } => rest.is_empty() || !self.begun,
            Content::Range(range) => range.has_ended(),
            Content::Scan(scan) => scan.has_ended() || !self.begun,
            // A feed counts as complete at any time, because its client decides when to leave.
            Content::Feed(_) => true,
            Content::Results(results) => results.has_ended() || !self.begun,
        };
        if !whole {
            self.exchange.request().cut(Outcome::Aborted);
        }
        self.exchange.answered();
    }
}

impl Body for ResponseBody {
    type Data = Piece;
    type Error = operation::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Piece>, operation::Error>>> {
        let this = &mut *self;
        this.begun = true;
        match &mut this.content {
            Content::Bytes { rest, .. } => {
                if rest.is_empty() {
                    return Poll::Ready(None);
                }
                Poll::Ready(Some(Ok(Frame::data(Piece::Bytes(this.take_frame())))))
            }
            Content::Range(range) => {
                let polled = range.poll_entry(context);
                this.exchange.set_body_permit(range.permit_bytes());
                polled.map(|entry| {
                    let mut record = this.exchange.request();
                    match &entry {
                        Some(Ok(entry)) => record.sent(entry.key.len() + 1 + entry.value_bytes),
                        Some(Err(_)) => record.cut(Outcome::Error),
                        None => {}
                    }
                    entry.map(|entry| entry.map(|entry| Frame::data(Piece::entry(entry.key, entry.value.payload))))
                })
            }
            Content::Scan(scan) => {
                let polled = scan.poll_bytes(context);
                this.exchange.set_body_permit(scan.permit_bytes());
                polled.map(|frame| {
                    let mut record = this.exchange.request();
                    match &frame {
                        Some(Ok(frame)) => record.sent(frame.len()),
                        Some(Err(_)) => record.cut(Outcome::Error),
                        None => {}
                    }
                    frame.map(|frame| frame.map(|frame| Frame::data(Piece::Bytes(frame))))
                })
            }
            Content::Feed(feed) => {
                let polled = feed.poll_frame(context);
                this.exchange.set_body_permit(feed.permit_bytes());
                polled.map(|frame| {
                    let frame = frame?;
                    this.exchange.request().sent(frame.len());
                    Some(Ok(Frame::data(Piece::Bytes(frame))))
                })
            }
            Content::Results(results) => results.poll_frame(context).map(|frame| {
                let frame = frame?;
                this.exchange.request().sent(frame.len());
                Some(Ok(Frame::data(Piece::Bytes(frame))))
            }),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.content {
            Content::Bytes { rest, .. } => rest.is_empty(),
            // klad does not know whether these bodies are empty before it polls them. An empty range is an empty
            // chunked body.
            Content::Range(_) | Content::Scan(_) | Content::Feed(_) | Content::Results(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.content {
            Content::Bytes { rest, .. } => SizeHint::with_exact(rest.len() as u64),
            Content::Range(_) | Content::Scan(_) | Content::Feed(_) | Content::Results(_) => SizeHint::default(),
        }
    }
}

/// The bytes of one frame, which becomes one chunk. The parts of an entry are not copied into one buffer.
pub enum Piece {
    /// Bytes in one piece.
    Bytes(Bytes),
    /// A key, a line feed and a value.
    Entry {
        /// The part of the key that is left.
        key: Bytes,
        /// The part of the line feed that is left.
        separator: &'static [u8],
        /// The part of the value that is left.
        value: Bytes,
    },
}

impl Piece {
    fn entry(key: Bytes, value: Bytes) -> Piece {
        Piece::Entry { key, separator: b"\n", value }
    }
}

impl Buf for Piece {
    fn remaining(&self) -> usize {
        match self {
            Piece::Bytes(bytes) => bytes.len(),
            Piece::Entry { key, separator, value } => key.len() + separator.len() + value.len(),
        }
    }

    fn chunk(&self) -> &[u8] {
        match self {
            Piece::Bytes(bytes) => bytes,
            Piece::Entry { key, separator, value } => {
                if !key.is_empty() {
                    key
                } else if !separator.is_empty() {
                    separator
                } else {
                    value
                }
            }
        }
    }

    fn advance(&mut self, mut count: usize) {
        match self {
            Piece::Bytes(bytes) => bytes.advance(count),
            Piece::Entry { key, separator, value } => {
                let of_key = count.min(key.len());
                key.advance(of_key);
                count -= of_key;
                let of_separator = count.min(separator.len());
                separator.advance(of_separator);
                value.advance(count - of_separator);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_reads_as_one_run_however_it_is_taken() {
        for step in 1..8 {
            let mut piece = Piece::entry(Bytes::from_static(b"key"), Bytes::from_static(b"value"));
            let mut read = Vec::new();
            while piece.has_remaining() {
                let take = piece.chunk().len().min(step);
                read.extend_from_slice(&piece.chunk()[..take]);
                piece.advance(take);
            }
            assert_eq!(read, b"key\nvalue");
        }
        let mut piece = Piece::entry(Bytes::from_static(b"key"), Bytes::from_static(b"value"));
        piece.advance(5);
        assert_eq!(piece.chunk(), b"alue");
    }
}
