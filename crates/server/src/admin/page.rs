//! The body of an admin answer.
//!
//! `admin` creates it.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};

use crate::admin::console::{Events, Forwarded};

/// The body of an answer of the admin listener.
pub enum Page {
    /// A body that is complete before klad sends it.
    Whole(Bytes),
    /// The console's stream of samples.
    Events(Box<Events>),
    /// An answer of the data plane.
    Forwarded(Forwarded),
}

impl<B: Into<Bytes>> From<B> for Page {
    fn from(bytes: B) -> Page {
        Page::Whole(bytes.into())
    }
}

impl Body for Page {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        match self.get_mut() {
            Page::Whole(bytes) => {
                let all = std::mem::take(bytes);
                Poll::Ready((!all.is_empty()).then(|| Ok(Frame::data(all))))
            }
            Page::Events(events) => events.poll_next(context).map(|event| Some(Ok(Frame::data(event)))),
            Page::Forwarded(body) => Pin::new(body).poll_frame(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Page::Whole(bytes) => bytes.is_empty(),
            Page::Events(_) => false,
            Page::Forwarded(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Page::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Page::Events(_) => SizeHint::default(),
            Page::Forwarded(body) => body.size_hint(),
        }
    }
}
