//! The fast path: answers plain requests of a connection one after the other, without hyper. hyper gets each request
//! that is not plain, from its first byte on.
//!
//! A connection that waits for a request holds no buffer here. The worker has one buffer to read into and one to write
//! from, because it reads or writes only one connection at a time. If the client does not take the whole answer at
//! once, the connection gets a copy of the rest.

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
use crate::http::service::StartedRequest;
use crate::limits::PLAIN_REQUEST_BYTES_MAX;
use crate::net::stream::Stream;
use klad_base::clock;

/// The buffers of one worker, and the date for its answers.
pub(crate) struct Workspace {
    request: RefCell<Vec<u8>>,
    answer: RefCell<Vec<u8>>,
    date: Cell<Date>,
    /// The second of `date`, since 1970.
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

    /// Updates the date of the answers. The worker calls this several times a second.
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

/// Why the fast path ends.
enum FastPathEnd {
    /// The connection has bytes that are not a plain request.
    ForHyper,
    End(End),
}

impl Connection {
    /// Answers plain requests until something else arrives or the connection ends. `None`: a request is not plain, and
    /// hyper must continue; its bytes were put back into `io`.
    pub(super) async fn serve_plain(&self, worker: &Worker, io: &mut Io, stream: &RefCell<Stream>) -> Option<End> {
        loop {
            let started = match poll_fn(|context| self.poll_plain(worker, io, stream, context)).await {
                Ok(started) => started,
                Err(FastPathEnd::ForHyper) => return None,
                Err(FastPathEnd::End(end)) => return Some(end),
            };
            let mut answer = if let StartedRequest::Answered(answer) = started {
                answer
            } else {
                let mut answering = pin!(worker.service.end(started, &self.exchange));
                match poll_fn(|context| self.poll_unless(context, |context| answering.as_mut().poll(context))).await {
                    Ok(answer) => answer,
                    Err(end) => return Some(end),
                }
            };
            answer.fields.closes |= worker.draining().is_some();
            let closes = answer.fields.closes;
            let mut writer = AnswerWriter::new(answer);
            match poll_fn(|context| self.poll_unless(context, |context| writer.poll(worker, io, context))).await {
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
    ) -> Poll<Result<StartedRequest, FastPathEnd>> {
        self.remember(context.waker());
        match self.exchange.take_verdict() {
            // The fast path holds no bytes of a half-read request.
            None | Some(Verdict::CheckHead) => {}
            Some(Verdict::CloseIfIdle) if self.is_wanted(&stream.borrow()) => self.exchange.set_close_reason(None),
            Some(Verdict::FinishRequest) => {
                return Poll::Ready(Err(FastPathEnd::End(End::Finished { by_error: false })));
            }
            Some(verdict) => return Poll::Ready(Err(FastPathEnd::End(End::Verdict(verdict)))),
        }
        let mut space = worker.workspace.request.borrow_mut();
        let mut buffer = ReadBuf::new(&mut space);
        let read = ready!(Pin::new(&mut *io).poll_read(context, &mut buffer));
        let bytes = buffer.filled();
        if read.is_err() || bytes.is_empty() {
            // A client may leave between two requests.
            return Poll::Ready(Err(FastPathEnd::End(End::Finished { by_error: false })));
        }
        let Some(request) = plain::read(bytes, worker.head_bytes_max()) else {
            io.put_back(Bytes::copy_from_slice(bytes));
            return Poll::Ready(Err(FastPathEnd::ForHyper));
        };
        worker.count_plain();
        Poll::Ready(Ok(worker.service.begin_plain(&request, &self.exchange)))
    }

    /// Calls `poll`, which advances a request, unless the sweep has decided that the connection ends.
    fn poll_unless<T>(
        &self,
        context: &mut Context<'_>,
        poll: impl FnOnce(&mut Context<'_>) -> Poll<T>,
    ) -> Poll<Result<T, End>> {
        self.remember(context.waker());
        match self.exchange.take_verdict() {
            Some(verdict @ (Verdict::Close | Verdict::HeadTimedOut)) => Poll::Ready(Err(End::Verdict(verdict))),
            // These verdicts are for connections that wait for a request. The sweep will decide again.
            Some(Verdict::FinishRequest | Verdict::CloseIfIdle | Verdict::CheckHead) | None => poll(context).map(Ok),
        }
    }
}

/// Writes one answer.
struct AnswerWriter {
    answer: Option<Answer>,
    /// Bytes that the client has not taken yet.
    left: Bytes,
    /// The rest of a large value, with its memory permit.
    body: Option<ResponseBody>,
}

impl AnswerWriter {
    fn new(answer: Answer) -> AnswerWriter {
        AnswerWriter { answer: Some(answer), left: Bytes::new(), body: None }
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
                // A frame shares the memory of the whole value, whose permit ends here.
                self.left = Bytes::copy_from_slice(&self.left);
                self.body = None;
            }
        }
        Pin::new(io).poll_flush(context)
    }

    /// Writes the head and a small value, or the first frame of a large one, to `out`. After this, only a large value
    /// holds a memory permit.
    fn begin(&mut self, mut answer: Answer, date: &Date, out: &mut Vec<u8>) {
        out.clear();
        answer.write_head(answer.body.length(), date, out);
        out.extend_from_slice(&answer.body.take_frame());
        if answer.body.length() > 0 {
            self.body = Some(answer.body);
        }
    }
}
