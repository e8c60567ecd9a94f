//! The body of a change feed: steps of the engine's feed, each encoded as one chunk. `changes` creates it; hyper polls
//! it through `body`.

use std::cell::Cell;
use std::future::Future;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context as TaskContext, Poll, ready};
use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::exchange::Exchange;
use crate::execution::admission::BodyPermit;
use crate::execution::{WatchPermit, WorkerContext};
use crate::http::api_error::ApiError;
use crate::http::v1::Context;
use crate::http::v1::changes::encode::{self, Tail};
use crate::http::v1::changes::{Format, Request};
use crate::http::v1::parameters::bad;
use crate::limits::{
    BODY_BUDGET_TIMEOUT, FEED_ENCODED_FACTOR, FEED_PAUSE, FEED_STEP_BYTES_MAX, RESPONSE_FRAME_BYTES_MAX,
};
use klad_base::clock;
use klad_storage::changes::{Changed, ChangesPage, ChangesStep, Position};
use klad_storage::operation::{Error, Outcome};

/// The body of a feed's answer.
pub struct FeedBody {
    feed: Rc<Feed>,
    /// What is left of the current chunk.
    rest: Bytes,
    /// The large value that follows `rest`.
    tail: Option<Tail>,
    /// The memory of the current chunk.
    held: Option<BodyPermit>,
    position: Position,
    next: Option<Pin<Box<dyn Future<Output = Chunk>>>>,
    ended: bool,
}

struct Feed {
    worker_context: Rc<WorkerContext>,
    exchange: Rc<Exchange>,
    permit: WatchPermit,
    prefix: Bytes,
    values: bool,
    format: Format,
    heartbeat: Duration,
    /// The earliest time of the next step, if the last step has read all changes.
    pause_until: Cell<Option<Instant>>,
}

/// Bytes for the client.
struct Chunk {
    bytes: Bytes,
    tail: Option<Tail>,
    permit: Option<BodyPermit>,
    position: Position,
    /// Whether the feed ends after these bytes.
    is_last: bool,
}

/// What a step has found.
enum Step {
    Changes {
        changes: Vec<Changed>,
        permit: BodyPermit,
        next: Position,
    },
    /// There is no change for this feed. `more` says whether there are more changes to read.
    Nothing {
        next: Position,
        more: bool,
    },
}

impl FeedBody {
    /// Begins a feed and does its first step, so that an error in this step still gets a status.
    pub(super) async fn begin(context: &Context<'_>, request: Request) -> Result<FeedBody, ApiError> {
        let Request { prefix, from, values, format } = request;
        let executor = context.worker.executor();
        let last = executor.last_version()?;
        let permit = executor.begin_watch()?;
        if from.is_some_and(|from| from > last) {
            return Err(bad("from", "a version that was given out"));
        }
        let feed = Rc::new(Feed {
            worker_context: context.worker.clone(),
            exchange: context.exchange.clone(),
            permit,
            prefix: prefix.into(),
            values,
            format,
            heartbeat: context.options.heartbeat,
            pause_until: Cell::new(None),
        });
        // This step returns no changes, but says whether klad still keeps the changes after `position`.
        let position = Position::after(from.unwrap_or(last));
        feed.check(position).await?;
        // The client learns the position at once, even if no change comes before it leaves.
        let rest = feed.heartbeat(position);
        Ok(FeedBody { feed, rest, tail: None, held: None, position, next: None, ended: false })
    }

    /// Returns how many bytes of the body budget this body holds now.
    pub(in crate::http) fn permit_bytes(&self) -> u64 {
        self.held.as_ref().map_or(0, BodyPermit::bytes)
    }

    /// Returns the next bytes. Returns `None` after the event that says why the feed ends.
    pub(in crate::http) fn poll_frame(&mut self, context: &mut TaskContext<'_>) -> Poll<Option<Bytes>> {
        loop {
            if !self.rest.is_empty() {
                let count = self.rest.len().min(RESPONSE_FRAME_BYTES_MAX);
                return Poll::Ready(Some(self.rest.split_to(count)));
            }
            if let Some(tail) = &mut self.tail {
                let mut piece = Vec::new();
                if tail.write(&mut piece) {
                    self.tail = None;
                }
                self.rest = piece.into();
                continue;
            }
            self.held = None;
            if self.ended {
                return Poll::Ready(None);
            }
            let next = self.next.get_or_insert_with(|| {
                let (feed, position) = (self.feed.clone(), self.position);
                Box::pin(async move { feed.next(position).await })
            });
            let chunk = ready!(next.as_mut().poll(context));
            self.next = None;
            (self.rest, self.tail) = (chunk.bytes, chunk.tail);
            (self.held, self.position) = (chunk.permit, chunk.position);
            self.ended = chunk.is_last;
        }
    }
}

impl Feed {
    /// Waits for the next bytes: changes, a heartbeat, or the end.
    async fn next(&self, position: Position) -> Chunk {
        let mut position = position;
        match self.next_or_error(&mut position).await {
            Ok(chunk) => chunk,
            Err(error) => {
                tracing::debug!(code = error.code(), "a change feed ends");
                self.exchange.request().rejected(error.code());
                let mut bytes = Vec::new();
                encode::end(&mut bytes, self.format, error);
                Chunk { bytes: bytes.into(), tail: None, permit: None, position, is_last: true }
            }
        }
    }

    async fn next_or_error(&self, position: &mut Position) -> Result<Chunk, ApiError> {
        let beat_at = clock::now() + self.heartbeat;
        loop {
            // Without this pause, every commit would cause a step of each feed under load.
            if let Some(until) = self.pause_until.take() {
                tokio::time::sleep_until(until.into()).await;
            }
            // `changed` is armed before the step, so that a commit that the step does not see completes `changed`.
            let mut changed = pin!(self.worker_context.changed());
            changed.as_mut().enable();
            // Check only now, because a stop during the pause would not complete `changed`.
            if self.worker_context.is_stopping() {
                return Err(Error::Stopping.into());
            }
            self.worker_context.arm_changes();
            match self.step(*position, FEED_STEP_BYTES_MAX).await? {
                Step::Changes { changes, permit, next } => {
                    return Ok(self.chunk(&changes, permit, next));
                }
                Step::Nothing { next, more } => {
                    *position = next;
                    if clock::now() >= beat_at {
                        let bytes = self.heartbeat(next);
                        return Ok(Chunk { bytes, tail: None, permit: None, position: next, is_last: false });
                    }
                    if more {
                        continue;
                    }
                }
            }
            // When it is time for the heartbeat, the next step returns the position for it.
            let _ = tokio::time::timeout_at(beat_at.into(), changed).await;
        }
    }

    /// Fails if klad no longer keeps all changes after `position`.
    async fn check(&self, position: Position) -> Result<(), ApiError> {
        // With a limit of 0 bytes nothing fits, so the step reads no value.
        match self.read(position, 0).await? {
            ChangesPage::Gone { oldest } => Err(ApiError::VersionGone { oldest }),
            ChangesPage::Changes { .. } | ChangesPage::TooLarge { .. } => Ok(()),
        }
    }

    async fn step(&self, position: Position, bytes_max: usize) -> Result<Step, ApiError> {
        let (mut position, mut bytes_max) = (position, bytes_max);
        loop {
            let _permit = self.worker_context.feed_permit().await;
            let permit = self.reserve(bytes_max).await?;
            match self.read(position, bytes_max).await? {
                ChangesPage::Gone { oldest } => return Err(ApiError::VersionGone { oldest }),
                ChangesPage::TooLarge { at, bytes } => (position, bytes_max) = (at, bytes),
                ChangesPage::Changes { changes, next, more } => {
                    self.pause_until.set((!more).then(|| clock::now() + FEED_PAUSE));
                    return Ok(if changes.is_empty() {
                        Step::Nothing { next, more }
                    } else {
                        Step::Changes { changes, permit, next }
                    });
                }
            }
        }
    }

    async fn read(&self, position: Position, bytes_max: usize) -> Result<ChangesPage, ApiError> {
        let step = ChangesStep { position, prefix: self.prefix.clone(), values: self.values, bytes_max };
        match self.worker_context.read_changes(&self.permit, step, self.exchange.phases()).await? {
            Outcome::Changes(page) => Ok(page),
            other => unreachable!("a step of a feed returns a page, not {other:?}"),
        }
    }

    /// Reserves memory for the changes of a step, and for their encoded form. A large value is encoded in pieces, so
    /// a value of the maximum size fits into the smallest budget.
    async fn reserve(&self, bytes_max: usize) -> Result<BodyPermit, ApiError> {
        let budget = self.worker_context.executor().budget();
        let bytes = (bytes_max + bytes_max.min(FEED_STEP_BYTES_MAX) * FEED_ENCODED_FACTOR) as u64;
        if let Some(permit) = budget.try_take(bytes) {
            return Ok(permit);
        }
        let waited = tokio::time::timeout(BODY_BUDGET_TIMEOUT, budget.take(bytes)).await;
        waited.map_err(|_| ApiError::NoRoom { bytes, of: "change feed" })
    }

    fn chunk(&self, changes: &[Changed], mut permit: BodyPermit, position: Position) -> Chunk {
        let (mut bytes, mut tail) = (Vec::new(), None::<Tail>);
        for changed in changes {
            // A change with a large value is normally the last of its page. If another change follows, its value comes
            // first.
            if let Some(mut before) = tail.take() {
                while !before.write(&mut bytes) {}
            }
            tail = encode::change(&mut bytes, self.format, changed, self.values);
        }
        permit.shrink((bytes.len() + tail.as_ref().map_or(0, Tail::len)) as u64);
        Chunk { bytes: bytes.into(), tail, permit: Some(permit), position, is_last: false }
    }

    fn heartbeat(&self, position: Position) -> Bytes {
        let mut bytes = Vec::new();
        encode::heartbeat(&mut bytes, self.format, position.after);
        bytes.into()
    }
}
