//! The body of an admin answer, which is complete before klad sends it.
//!
//! `admin` creates it.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};

/// A complete body.
#[derive(Debug, Default)]
pub struct Page(Bytes);

impl<B: Into<Bytes>> From<B> for Page {
    fn from(bytes: B) -> Page {
        Page(bytes.into())
    }
}

impl Body for Page {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let all = std::mem::take(&mut self.0);
        Poll::Ready((!all.is_empty()).then(|| Ok(Frame::data(all))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0.len() as u64)
    }
}
