//! The body of a scan's answer: frames of about 64 KiB with many entries each, made while the client takes them.
//!
//! A stream reads one step ahead, so that a storage thread reads while the worker encodes. The worker returns to its
//! other connections after each step. A slow client holds two steps at most, and the snapshot only for as long as a
//! scan may take. `scan` creates the body; hyper polls it through the module `body`.

use std::cell::RefCell;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use tokio::task::AbortHandle;

use crate::execution::admission::BodyPermit;
use crate::http::v1::scan::cursor;
use crate::http::v1::scan::encode::Encoder;
use crate::http::v1::scan::keys::Range;
use crate::http::v1::scan::pages::{Item, Scan, Step, StepLimits, Tried};
use crate::limits::{RESPONSE_FRAME_BYTES_MAX, SCAN_STREAM_STEP_ENTRIES_MAX};
use klad_storage::limits::SCAN_STEP_BYTES_MAX;
use klad_storage::operation::Error;

/// A frame ends with the entry that reaches this length, so that most frames are not longer than
/// [`RESPONSE_FRAME_BYTES_MAX`].
const FRAME_BYTES: usize = RESPONSE_FRAME_BYTES_MAX - (8 << 10);

/// The body of a scan's answer.
pub(in crate::http) struct ScanBody {
    encoder: Encoder,
    /// Encoded bytes that were not handed over yet. They may be longer than a frame.
    frame: Bytes,
    items: std::vec::IntoIter<Item>,
    /// The memory permit of the entries in `items`.
    permit: Option<BodyPermit>,
    then: Then,
    ended: bool,
}

/// What follows the items of a body.
enum Then {
    /// The rest of a JSON page.
    Text(Vec<u8>),
    /// More steps.
    Steps(Box<Steps>),
    Nothing,
}

/// The steps of a stream.
struct Steps {
    scan: Rc<Scan>,
    /// The number of items that the stream may still return.
    left: u64,
    /// The keys after those of `items`.
    rest: Option<Range>,
    ahead: Rc<Ahead>,
    /// Whether the worker has served other connections since the last step.
    yielded: bool,
    /// The task that drops the snapshot when the scan's time is over.
    watch: Option<AbortHandle>,
}

/// The step that the stream reads ahead. A task shares this step and drops it when the scan's time is over, because the
/// result of the step holds the snapshot.
#[derive(Default)]
struct Ahead {
    step: RefCell<Option<AheadStep>>,
}

enum AheadStep {
    Running(Pin<Box<dyn Future<Output = Result<Tried, Error>>>>),
    Ended(Result<Tried, Error>),
}

impl ScanBody {
    /// Creates the body of a JSON page: `items`, and the text after them.
    pub(super) fn page(encoder: Encoder, items: Vec<Item>, behind: Vec<u8>, permit: Option<BodyPermit>) -> ScanBody {
        let items = items.into_iter();
        ScanBody { encoder, frame: Bytes::new(), items, permit, then: Then::Text(behind), ended: false }
    }

    /// Creates a stream that begins with the items of `first`, and may return `left` items after them.
    pub(super) fn stream(encoder: Encoder, scan: Rc<Scan>, first: Step, left: u64) -> ScanBody {
        if first.rest.is_none() {
            scan.drop_snapshot();
        }
        let ahead = Rc::<Ahead>::default();
        let watch = (first.rest.is_some() && scan.has_snapshot()).then(|| watch_time(&scan, &ahead));
        let Step { items, rest, permit } = first;
        let steps = Steps { scan, left, rest, ahead, yielded: true, watch };
        let then = Then::Steps(Box::new(steps));
        ScanBody { encoder, frame: Bytes::new(), items: items.into_iter(), permit, then, ended: false }
    }

    /// Whether the whole body was handed over.
    pub(in crate::http) fn has_ended(&self) -> bool {
        self.ended
    }

    /// Returns how many bytes of the body budget this body holds now.
    pub(in crate::http) fn permit_bytes(&self) -> u64 {
        self.permit.as_ref().map_or(0, BodyPermit::bytes)
    }

    /// Takes the whole body if it fits into one frame.
    pub(super) fn take_whole(&mut self) -> Option<Bytes> {
        let Then::Text(behind) = &self.then else { return None };
        let behind = behind.len();
        if !self.encode() || self.encoder.len() + behind > RESPONSE_FRAME_BYTES_MAX {
            return None;
        }
        self.next_text();
        Some(self.encoder.take())
    }

    /// Returns the next frame. After an error the connection closes without the final chunk, so that no client mistakes
    /// a part of the scan for the whole.
    pub(in crate::http) fn poll_bytes(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Bytes, Error>>> {
        loop {
            if !self.frame.is_empty() {
                let frame = self.frame.split_to(self.frame.len().min(RESPONSE_FRAME_BYTES_MAX));
                return Poll::Ready(Some(Ok(frame)));
            }
            self.encode();
            if self.encoder.len() > 0 {
                self.frame = self.encoder.take();
                continue;
            }
            match &mut self.then {
                Then::Nothing => {
                    self.ended = true;
                    return Poll::Ready(None);
                }
                Then::Text(_) => self.next_text(),
                Then::Steps(steps) => {
                    // The entries that the permit covers were handed over.
                    self.permit = None;
                    match ready!(steps.poll_next(context)) {
                        Some(Ok(step)) => {
                            self.items = step.items.into_iter();
                            self.permit = step.permit;
                            // Only read ahead without a permit, because a step that waits for memory must not hold any.
                            if self.permit.is_none() {
                                steps.read_ahead(context);
                            }
                        }
                        Some(Err(error)) => {
                            tracing::warn!(%error, "a scan ended early; klad closes its connection");
                            return Poll::Ready(Some(Err(error)));
                        }
                        None => {
                            let next = steps.rest.take().map(|rest| cursor::encode(&steps.scan.keys, &rest));
                            self.encoder.end(next.as_deref());
                            self.then = Then::Nothing;
                        }
                    }
                }
            }
        }
    }

    /// Encodes items until a frame is full. Returns whether all were encoded.
    fn encode(&mut self) -> bool {
        while self.encoder.value(FRAME_BYTES) {
            if self.encoder.len() >= FRAME_BYTES {
                return self.items.as_slice().is_empty();
            }
            match self.items.next() {
                Some(item) => self.encoder.item(item),
                None => return true,
            }
        }
        false
    }

    fn next_text(&mut self) {
        if let Then::Text(behind) = std::mem::replace(&mut self.then, Then::Nothing) {
            self.encoder.raw(&behind);
        }
    }
}

impl Steps {
    /// Waits for the next step. Returns `None` if the stream ends before `rest`.
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Step, Error>>> {
        if self.rest.is_none() || self.left == 0 || self.scan.is_over() {
            self.ahead.step.take();
            return Poll::Ready(None);
        }
        // Unlike a task that wakes itself, `yield_now` also lets the worker look for new requests.
        if !std::mem::replace(&mut self.yielded, true) && pin!(tokio::task::yield_now()).poll(context).is_pending() {
            return Poll::Pending;
        }
        let step = match ready!(self.poll_ahead(context)) {
            Ok(Tried::Step(step)) => step,
            Ok(Tried::TooLarge(_)) => {
                self.begin(true);
                return self.poll_next(context);
            }
            Err(error) => return Poll::Ready(Some(Err(error))),
        };
        self.yielded = false;
        self.left -= step.items.len() as u64;
        let Step { items, rest, permit } = step;
        self.rest = rest;
        Poll::Ready(Some(Ok(Step { items, rest: None, permit })))
    }

    /// Begins the next step, if the stream goes on.
    fn read_ahead(&mut self, context: &mut Context<'_>) {
        if self.rest.is_some()
            && self.left > 0
            && let Poll::Ready(ended) = self.poll_ahead(context)
        {
            *self.ahead.step.borrow_mut() = Some(AheadStep::Ended(ended));
        }
    }

    /// Waits for the next step, and begins it if it has not begun.
    fn poll_ahead(&mut self, context: &mut Context<'_>) -> Poll<Result<Tried, Error>> {
        if self.ahead.step.borrow().is_none() {
            self.begin(false);
        }
        let mut ahead = self.ahead.step.borrow_mut();
        let ended = match ahead.take() {
            Some(AheadStep::Ended(ended)) => ended,
            Some(AheadStep::Running(mut step)) => match step.as_mut().poll(context) {
                Poll::Ready(ended) => ended,
                Poll::Pending => {
                    *ahead = Some(AheadStep::Running(step));
                    return Poll::Pending;
                }
            },
            None => unreachable!("the step has begun"),
        };
        Poll::Ready(ended)
    }

    /// Begins the next step. If `large` is true, the step waits for memory if its first entry needs it.
    fn begin(&mut self, large: bool) {
        let rest = self.rest.clone().expect("keys are left");
        let (scan, limits) = (self.scan.clone(), step_limits(self.left));
        *self.ahead.step.borrow_mut() = Some(AheadStep::Running(Box::pin(async move {
            if large {
                scan.step(rest, limits, None).await.map(Tried::Step)
            } else {
                scan.try_step(&rest, limits, None).await
            }
        })));
    }
}

/// Starts a task that drops the snapshot when the scan's time is over. The body cannot do this itself, because hyper
/// does not poll it while the client takes nothing.
fn watch_time(scan: &Rc<Scan>, ahead: &Rc<Ahead>) -> AbortHandle {
    let (until, scan, ahead) = (scan.until(), Rc::downgrade(scan), Rc::downgrade(ahead));
    let watch = tokio::task::spawn_local(async move {
        tokio::time::sleep_until(until.into()).await;
        if let (Some(scan), Some(ahead)) = (scan.upgrade(), ahead.upgrade()) {
            scan.drop_snapshot();
            ahead.step.take();
        }
    });
    watch.abort_handle()
}

impl Drop for Steps {
    fn drop(&mut self) {
        if let Some(watch) = &self.watch {
            watch.abort();
        }
    }
}

/// The limits of a stream's step that may return `left` items.
pub(super) fn step_limits(left: u64) -> StepLimits {
    let entries_max = usize::try_from(left).unwrap_or(usize::MAX).min(SCAN_STREAM_STEP_ENTRIES_MAX);
    StepLimits { entries_max, bytes_max: SCAN_STEP_BYTES_MAX }
}
