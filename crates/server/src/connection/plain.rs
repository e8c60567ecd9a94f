//! The fast path: answers plain requests of a connection without hyper. hyper gets each request that is not plain, from
//! its first byte on.
//!
//! klad answers requests that have arrived together (a pipeline) in one time slice, with one read and one write of the
//! socket. A slice ends after a request that the worker cannot answer at once, before a write that follows other
//! requests of the slice, after [`PIPELINE_REQUESTS_MAX`] requests, and after [`RESPONSE_FRAME_BYTES_MAX`] bytes of
//! answers. Then the worker serves the other connections. Consecutive writes become one write of storage
//! ([`WriteRun`]).
//!
//! A connection that waits for a request has no buffer here. Each worker has one read buffer and one write buffer,
//! because a worker reads or writes only one connection at a time. If the client does not take the whole answer at
//! once, the connection gets a copy of the rest.

use std::cell::{Cell, RefCell};
use std::future::{Future as _, poll_fn};
use std::io::{self, Write as _};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::{Duration, UNIX_EPOCH};

use bytes::{Buf as _, Bytes};
use tokio::io::{AsyncWrite as _, ReadBuf};

use crate::connection::io::Io;
use crate::connection::worker::Worker;
use crate::connection::{Connection, End};
use crate::exchange::Verdict;
use crate::execution::AnsweredBy;
use crate::http::answer::{Answer, Date};
use crate::http::body::ResponseBody;
use crate::http::plain;
use crate::http::service::StartedRequest;
use crate::http::write_run::WriteRun;
use crate::limits::{PIPELINE_REQUESTS_MAX, PLAIN_REQUEST_BYTES_MAX, RESPONSE_FRAME_BYTES_MAX, STORAGE_READ_REQUESTS};
use crate::net::stream::Stream;
use klad_base::clock;

/// The buffers of one worker, and the date for its answers.
pub(crate) struct Workspace {
    request: RefCell<Vec<u8>>,
    answer: RefCell<Vec<u8>>,
    date: Cell<Date>,
    /// The time of `date`, in whole seconds since 1970.
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

/// The work that remains after a time slice.
struct Slice {
    /// The part of the slice's answers that the client has not taken. `None`: the client has taken everything.
    rest: Option<Rest>,
    next: Next,
}

enum Next {
    /// All requests of the slice are answered. The next request may begin.
    Request,
    /// The connection ends after the answers.
    Close,
    /// The last request of the slice has no answer yet, or an answer that does not fit into the slice's write.
    Started(StartedRequest),
    /// The slice ends with these writes, which storage has not done yet.
    Writes(WriteRun),
}

impl Connection {
    /// Answers plain requests until something else arrives or the connection ends. `None`: a request is not plain, so
    /// hyper must continue. The bytes of this request were put back into `io`.
    pub(super) async fn serve_plain(&self, worker: &Worker, io: &mut Io, stream: &RefCell<Stream>) -> Option<End> {
        loop {
            match self.serve_slice(worker, io, stream).await {
                // The next requests have arrived. The worker serves the other connections first.
                Ok(()) if io.has_unread() => tokio::task::yield_now().await,
                Ok(()) => {}
                Err(FastPathEnd::ForHyper) => return None,
                Err(FastPathEnd::End(end)) => return Some(end),
            }
        }
    }

    async fn serve_slice(&self, worker: &Worker, io: &mut Io, stream: &RefCell<Stream>) -> Result<(), FastPathEnd> {
        let Slice { rest, next } = poll_fn(|context| self.poll_slice(worker, io, stream, context)).await?;
        if let Some(mut rest) = rest {
            self.finish(|context| rest.poll(io, context)).await?;
            // The next request has waited for the client, not for storage.
            self.exchange.phases().go_on(clock::now());
        }
        match next {
            Next::Request => Ok(()),
            Next::Close => Err(FastPathEnd::End(End::Finished { by_error: false })),
            Next::Started(started) => {
                let mut answer = if let StartedRequest::Answered(answer) = started {
                    answer
                } else {
                    let mut answering = pin!(worker.service.end(started, &self.exchange));
                    poll_fn(|context| self.poll_unless(context, |context| answering.as_mut().poll(context))).await?
                };
                answer.fields.closes |= worker.draining().is_some();
                let closes = answer.fields.closes;
                self.send(worker, io, closes, |out| begin(answer, &worker.workspace.date.get(), out)).await
            }
            Next::Writes(mut run) => {
                let written = {
                    let mut writing = pin!(worker.service.execute_run(&mut run));
                    poll_fn(|context| self.poll_unless(context, |context| writing.as_mut().poll(context))).await?
                };
                let closes = worker.draining().is_some();
                let write = |out: &mut Vec<u8>| {
                    run.answers(&written, closes, &worker.workspace.date.get(), out);
                    None
                };
                self.send(worker, io, closes, write).await
            }
        }
    }

    /// Sends the bytes that `write` appends, and then the body that `write` returns. If `closes`, the connection ends
    /// after that.
    async fn send(
        &self,
        worker: &Worker,
        io: &mut Io,
        closes: bool,
        write: impl FnOnce(&mut Vec<u8>) -> Option<ResponseBody>,
    ) -> Result<(), FastPathEnd> {
        let (mut write, mut rest) = (Some(write), Rest::default());
        let sent = |context: &mut Context<'_>| {
            if let Some(write) = write.take() {
                let mut out = worker.workspace.answer.borrow_mut();
                out.clear();
                rest.body = write(&mut out);
                rest.begin(io, context, &out)?;
            }
            rest.poll(io, context)
        };
        self.finish(sent).await?;
        if closes { Err(FastPathEnd::End(End::Finished { by_error: false })) } else { Ok(()) }
    }

    /// Waits until `poll` has sent everything.
    async fn finish(&self, mut poll: impl FnMut(&mut Context<'_>) -> Poll<io::Result<()>>) -> Result<(), End> {
        let sent = poll_fn(|context| self.poll_unless(context, &mut poll)).await?;
        sent.map_err(|_| End::Finished { by_error: true })
    }

    /// Waits for requests, and begins those that are plain. Sends the answers that the worker has at once.
    fn poll_slice(
        &self,
        worker: &Worker,
        io: &mut Io,
        stream: &RefCell<Stream>,
        context: &mut Context<'_>,
    ) -> Poll<Result<Slice, FastPathEnd>> {
        self.remember(context.waker());
        match self.exchange.take_verdict() {
            // There is nothing to check: the fast path holds no bytes of a half-read request.
            None | Some(Verdict::CheckHead) => {}
            Some(Verdict::CloseIfIdle) if self.is_wanted(&stream.borrow()) => self.exchange.set_close_reason(None),
            // The unread bytes may be whole requests. If they are not, hyper gets them, and the sweep decides again.
            Some(Verdict::HeadTimedOut) if io.has_unread() => self.exchange.set_close_reason(None),
            Some(Verdict::FinishRequest) => {
                return Poll::Ready(Err(FastPathEnd::End(End::Finished { by_error: false })));
            }
            Some(verdict) => return Poll::Ready(Err(FastPathEnd::End(End::Verdict(verdict)))),
        }
        let mut space = worker.workspace.request.borrow_mut();
        let mut buffer = ReadBuf::new(&mut space);
        let read = ready!(io.poll_fill(context, &mut buffer));
        let bytes = buffer.filled();
        if read.is_err() || bytes.is_empty() {
            // A client may leave between two requests.
            return Poll::Ready(Err(FastPathEnd::End(End::Finished { by_error: false })));
        }
        let mut out = worker.workspace.answer.borrow_mut();
        out.clear();
        let (begun, next) = self.begin_all(worker, bytes, io.has_unread(), &mut out);
        if begun == 0 {
            io.put_back(bytes);
            return Poll::Ready(Err(FastPathEnd::ForHyper));
        }
        if begun < bytes.len() && !matches!(next, Next::Close) {
            io.put_back(&bytes[begun..]);
        }
        let mut rest = Rest::default();
        let sent = if out.is_empty() {
            Poll::Ready(Ok(()))
        } else {
            match rest.begin(io, context, &out) {
                Ok(()) => rest.poll(io, context),
                Err(error) => Poll::Ready(Err(error)),
            }
        };
        Poll::Ready(match sent {
            Poll::Ready(Ok(())) => Ok(Slice { rest: None, next }),
            Poll::Ready(Err(_)) => Err(FastPathEnd::End(End::Finished { by_error: true })),
            Poll::Pending => Ok(Slice { rest: Some(rest), next }),
        })
    }

    /// Begins the plain requests of `bytes`, and appends the answers that the worker has at once to `out`. `more`:
    /// further bytes have arrived. Returns the length of the requests that were begun, and what the connection must do
    /// next.
    fn begin_all(&self, worker: &Worker, bytes: &[u8], more: bool, out: &mut Vec<u8>) -> (usize, Next) {
        // Some clients send an empty line after a body (RFC 9112, 2.2). This line does not begin a request.
        let is_end = |at: usize| !more && bytes[at..].iter().all(|byte| b"\r\n".contains(byte));
        let (mut at, mut begun) = (0, 0);
        while at < bytes.len() && begun < PIPELINE_REQUESTS_MAX && out.len() < RESPONSE_FRAME_BYTES_MAX {
            let Some(request) = plain::read(&bytes[at..], worker.head_bytes_max()) else { break };
            if request.writes() && !out.is_empty() {
                // klad sends the earlier answers before it begins the write. Otherwise the write would hold memory for
                // as long as the client does not take those answers.
                break;
            }
            if request.writes()
                && at + request.bytes < bytes.len()
                && let Some(run) = worker.service.begin_run(&bytes[at..], worker.head_bytes_max(), &self.exchange)
            {
                at += run.bytes;
                worker.count_plain(run.requests());
                if !is_end(at) {
                    self.exchange.next_has_begun();
                }
                return (at, Next::Writes(run));
            }
            at += request.bytes;
            begun += 1;
            worker.count_plain(1);
            let started = worker.service.begin_plain(&request, &self.exchange);
            if !is_end(at) {
                self.exchange.next_has_begun();
            }
            match started {
                StartedRequest::Answered(mut answer)
                    if out.len() + answer.body.length() <= RESPONSE_FRAME_BYTES_MAX =>
                {
                    answer.fields.closes |= worker.draining().is_some();
                    let closes = answer.fields.closes;
                    begin(answer, &worker.workspace.date.get(), out);
                    if closes {
                        return (at, Next::Close);
                    }
                    if self.exchange.phases().answered_by() == Some(AnsweredBy::Storage) {
                        begun += STORAGE_READ_REQUESTS - 1;
                    }
                }
                started => return (at, Next::Started(started)),
            }
        }
        (at, Next::Request)
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

impl From<End> for FastPathEnd {
    fn from(end: End) -> FastPathEnd {
        FastPathEnd::End(end)
    }
}

/// The part of one or several answers that the client has not taken.
#[derive(Default)]
struct Rest {
    left: Bytes,
    /// The rest of a large value, with its memory permit.
    body: Option<ResponseBody>,
}

impl Rest {
    /// Sends as much of `out` as the client takes now, and keeps the rest.
    fn begin(&mut self, io: &mut Io, context: &mut Context<'_>, out: &[u8]) -> io::Result<()> {
        let sent = match io.poll_send(context, out) {
            Poll::Ready(sent) => sent?,
            Poll::Pending => 0,
        };
        if sent < out.len() {
            self.left = Bytes::copy_from_slice(&out[sent..]);
        }
        Ok(())
    }

    fn poll(&mut self, io: &mut Io, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            while !self.left.is_empty() {
                let sent = ready!(io.poll_send(context, &self.left))?;
                self.left.advance(sent);
            }
            let Some(body) = &mut self.body else { break };
            self.left = body.take_frame();
            if body.length() == 0 {
                // The last frame is copied, because it shares the memory of the whole value, and the value's permit
                // ends here.
                self.left = Bytes::copy_from_slice(&self.left);
                self.body = None;
            }
        }
        Pin::new(io).poll_flush(context)
    }
}

/// Writes the head of an answer and its small value, or the first frame of a large value, to `out`. Returns the rest of
/// a large value. From then on, only this rest holds a memory permit.
fn begin(mut answer: Answer, date: &Date, out: &mut Vec<u8>) -> Option<ResponseBody> {
    answer.write_head(answer.body.length(), date, out);
    out.extend_from_slice(&answer.body.take_frame());
    (answer.body.length() > 0).then_some(answer.body)
}
