//! Plain requests on a connection, one after the other, without hyper: whatever is not plain is left to it, from its first byte on.
//!
//! A connection that waits for a request holds no buffer here: the worker has one to read into and one to write from, as only
//! one connection at a time is being read or written. Only what a client does not take at once is copied.

use std::cell::{Cell, RefCell};
use std::future::{Future as _, poll_fn};
use std::io::{self, Write as _};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::{Duration, UNIX_EPOCH};

use bytes::{Buf as _, Bytes};
use tokio::io::{AsyncRead as _, AsyncWrite as _, ReadBuf};

use crate::connection::io::Io;
use crate::connection::worker::Worker;
use crate::connection::{Connection, End};
use crate::exchange::Verdict;
use crate::http::answer::{Answer, Date};
use crate::http::body::ResponseBody;
use crate::http::plain;
use crate::http::service::Begun;
use crate::net::stream::Stream;
use klad_base::clock;
use klad_base::limits::PLAIN_REQUEST_BYTES_MAX;

/// What the connections of a worker read into and write from.
pub(crate) struct Workspace {
    request: RefCell<Vec<u8>>,
    answer: RefCell<Vec<u8>>,
    date: Cell<Date>,
    /// Of `date`, since 1970.
    second: Cell<u64>,
}

impl Workspace {
    pub(crate) fn new() -> Workspace {
        let workspace = Workspace {
            request: RefCell::new(vec![0; PLAIN_REQUEST_BYTES_MAX]),
            answer: RefCell::default(),
            date: Cell::new([0; 29]),
            second: Cell::new(0),
        };
        workspace.tick();
        workspace
    }

    /// Looks what day it is; at least once a second.
    pub(crate) fn tick(&self) {
        let second = clock::unix_ms() / 1_000;
        if self.second.replace(second) != second {
            let date = httpdate::HttpDate::from(UNIX_EPOCH + Duration::from_secs(second));
            let mut text = [b' '; 29];
            write!(&mut text[..], "{date}").expect("every date is as long");
            self.date.set(text);
        }
    }
}

/// Why there are no more plain requests now.
enum Over {
    /// Something else stands in the connection's bytes.
    ForHyper,
    End(End),
}

impl Connection {
    /// Answers plain requests until there is something else. `None`: it is for hyper, and nothing of it is lost.
    pub(super) async fn serve_plain(&self, worker: &Worker, io: &mut Io, stream: &RefCell<Stream>) -> Option<End> {
        loop {
            let begun = match poll_fn(|context| self.poll_plain(worker, io, stream, context)).await {
                Ok(begun) => begun,
                Err(Over::ForHyper) => return None,
                Err(Over::End(end)) => return Some(end),
            };
            let mut answer = if let Begun::Answered(answer) = begun {
                answer
            } else {
                let mut answering = pin!(worker.service.end(begun, &self.exchange));
                match poll_fn(|context| self.poll_unless(context, |context| answering.as_mut().poll(context))).await {
                    Ok(answer) => answer,
                    Err(end) => return Some(end),
                }
            };
            answer.fields.closes |= worker.draining().is_some();
            let closes = answer.fields.closes;
            let mut sending = Sending::new(answer);
            match poll_fn(|context| self.poll_unless(context, |context| sending.poll(worker, io, context))).await {
                Ok(Ok(())) if !closes => {}
                Ok(sent) => return Some(End::Finished { by_error: sent.is_err() }),
                Err(end) => return Some(end),
            }
        }
    }

    /// Waits for a request, and begins it if it is plain.
    fn poll_plain(
        &self,
        worker: &Worker,
        io: &mut Io,
        stream: &RefCell<Stream>,
        context: &mut Context<'_>,
    ) -> Poll<Result<Begun, Over>> {
        self.remember(context.waker());
        match self.exchange.take_verdict() {
            // There is nothing here that nobody has looked at.
            None | Some(Verdict::Look) => {}
            Some(Verdict::Leave) if self.is_wanted(&stream.borrow()) => self.exchange.set_closed(None),
            Some(Verdict::Finish) => return Poll::Ready(Err(Over::End(End::Finished { by_error: false }))),
            Some(verdict) => return Poll::Ready(Err(Over::End(End::Verdict(verdict)))),
        }
        let mut budget = worker.workspace.request.borrow_mut();
        let mut buffer = ReadBuf::new(&mut budget);
        let read = ready!(Pin::new(&mut *io).poll_read(context, &mut buffer));
        let bytes = buffer.filled();
        if read.is_err() || bytes.is_empty() {
            // Between two requests a client may leave as it likes.
            return Poll::Ready(Err(Over::End(End::Finished { by_error: false })));
        }
        let Some(request) = plain::read(bytes, worker.head_bytes_max()) else {
            io.put_back(Bytes::copy_from_slice(bytes));
            return Poll::Ready(Err(Over::ForHyper));
        };
        worker.count_plain();
        Poll::Ready(Ok(worker.service.begin_plain(&request, &self.exchange)))
    }

    /// Goes on with a request, unless the sweep has decided that the connection ends.
    fn poll_unless<T>(
        &self,
        context: &mut Context<'_>,
        poll: impl FnOnce(&mut Context<'_>) -> Poll<T>,
    ) -> Poll<Result<T, End>> {
        self.remember(context.waker());
        match self.exchange.take_verdict() {
            Some(verdict @ (Verdict::Close | Verdict::HeadTimedOut)) => Poll::Ready(Err(End::Verdict(verdict))),
            // Those are for connections that wait for a request; the sweep comes back.
            Some(Verdict::Finish | Verdict::Leave | Verdict::Look) | None => poll(context).map(Ok),
        }
    }
}

/// An answer on its way out.
struct Sending {
    answer: Option<Answer>,
    /// What was handed over and the client has not taken.
    left: Bytes,
    /// The rest of a large value, with its room.
    body: Option<ResponseBody>,
}

impl Sending {
    fn new(answer: Answer) -> Sending {
        Sending { answer: Some(answer), left: Bytes::new(), body: None }
    }

    fn poll(&mut self, worker: &Worker, io: &mut Io, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if let Some(answer) = self.answer.take() {
            let mut out = worker.workspace.answer.borrow_mut();
            self.begin(answer, &worker.workspace.date.get(), &mut out);
            let sent = match io.poll_send(context, &out) {
                Poll::Ready(sent) => sent?,
                Poll::Pending => 0,
            };
            if sent < out.len() {
                self.left = Bytes::copy_from_slice(&out[sent..]);
            }
        }
        loop {
            while !self.left.is_empty() {
                let sent = ready!(io.poll_send(context, &self.left))?;
                self.left.advance(sent);
            }
            let Some(body) = &mut self.body else { break };
            self.left = body.take_frame();
            if body.length() == 0 {
                // A frame of a value holds all of its memory, and the room for that ends here.
                self.left = Bytes::copy_from_slice(&self.left);
                self.body = None;
            }
        }
        Pin::new(io).poll_flush(context)
    }

    /// Head and value as one run of bytes, or the first frame of a large one. What has been handed over whole holds no room any more.
    fn begin(&mut self, mut answer: Answer, date: &Date, out: &mut Vec<u8>) {
        out.clear();
        answer.write_head(answer.body.length(), date, out);
        out.extend_from_slice(&answer.body.take_frame());
        if answer.body.length() > 0 {
            self.body = Some(answer.body);
        }
    }
}
