//! The body of a range: a series of scan steps, each an ordinary operation.
//!
//! Between two steps klad holds only the next key, a memory permit after a large entry, and, for an engine without
//! snapshots, rows that the engine has read ahead. So a slow reader holds no storage thread and no memtable, and a
//! range of any size needs constant memory. `service` creates the body; hyper polls it through the module `body`.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;

use crate::exchange::Exchange;
use crate::execution::admission::BodyPermit;
use crate::execution::{ScanPermit, WorkerContext};
use crate::limits::{BODY_BUDGET_TIMEOUT, SCAN_STEP_ENTRIES_MAX};
use klad_storage::limits::SCAN_STEP_BYTES_MAX;
use klad_storage::operation::{Consistency, Entry, Error, Outcome, Page, ScanStep, Snapshot, View};

/// The body of a range's answer.
pub(super) struct RangeBody {
    scan: Rc<Scan>,
    entries: std::vec::IntoIter<Entry>,
    next: Option<Bytes>,
    /// The memory permit for the largest entry so far. The body keeps this permit to its end, because hyper's buffer
    /// has grown to the size of that entry and stays so large.
    held: Option<EntryPermit>,
    step: Option<RunningStep>,
    ended: bool,
}

/// A step in progress.
type RunningStep = Pin<Box<dyn Future<Output = Result<Step, Error>>>>;

struct Scan {
    worker_context: Rc<WorkerContext>,
    exchange: Rc<Exchange>,
    permit: ScanPermit,
    end: Option<Bytes>,
    consistency: Consistency,
    /// The entries that an engine without snapshots has read ahead. An engine with snapshots takes none here, because a
    /// snapshot would keep old values for as long as the client reads.
    ahead: RefCell<Option<Snapshot>>,
}

struct Step {
    entries: Vec<Entry>,
    next: Option<Bytes>,
    held: Option<EntryPermit>,
}

/// A memory permit, and the number of bytes that were asked for.
struct EntryPermit {
    permit: BodyPermit,
    bytes: u64,
}

impl RangeBody {
    /// Begins the range and does its first step, so that an error in this step still gets a status.
    pub(super) async fn begin(
        worker_context: Rc<WorkerContext>,
        exchange: Rc<Exchange>,
        start: Bytes,
        end: Option<Bytes>,
        consistency: Consistency,
    ) -> Result<RangeBody, Error> {
        let permit = worker_context.executor().begin_scan()?;
        let scan = Rc::new(Scan { worker_context, exchange, permit, end, consistency, ahead: RefCell::default() });
        let first = scan.step(start, None).await?;
        let entries = first.entries.into_iter();
        Ok(RangeBody { scan, entries, next: first.next, held: first.held, step: None, ended: false })
    }

    /// Whether the client has been given the last entry and the end.
    pub(super) fn has_ended(&self) -> bool {
        self.ended
    }

    /// Returns how many bytes of the body budget this body holds now.
    pub(super) fn permit_bytes(&self) -> u64 {
        self.held.as_ref().map_or(0, |held| held.permit.bytes())
    }

    /// Returns the next entry. After an error the connection closes without the final chunk, so that no client mistakes
    /// a part of the range for the whole.
    pub(super) fn poll_entry(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Entry, Error>>> {
        loop {
            if let Some(entry) = self.entries.next() {
                return Poll::Ready(Some(Ok(entry)));
            }
            if let Some(step) = &mut self.step {
                let ended = ready!(step.as_mut().poll(context));
                self.step = None;
                match ended {
                    Ok(step) => {
                        self.entries = step.entries.into_iter();
                        self.next = step.next;
                        self.held = step.held;
                    }
                    Err(error) => {
                        tracing::warn!(%error, "a range ended early; klad closes its connection");
                        return Poll::Ready(Some(Err(error)));
                    }
                }
                continue;
            }
            let Some(from) = self.next.take() else {
                self.ended = true;
                return Poll::Ready(None);
            };
            let (scan, held) = (self.scan.clone(), self.held.take());
            self.step = Some(Box::pin(async move { scan.step(from, held).await }));
        }
    }
}

impl Scan {
    async fn step(&self, from: Bytes, mut held: Option<EntryPermit>) -> Result<Step, Error> {
        let view = match self.ahead.borrow().clone() {
            Some(ahead) => View::At(ahead),
            None if self.worker_context.executor().capabilities().snapshots => View::Latest,
            None => View::Take,
        };
        let mut step = ScanStep {
            from,
            end: self.end.clone(),
            entries_max: SCAN_STEP_ENTRIES_MAX,
            bytes_max: SCAN_STEP_BYTES_MAX,
            reverse: false,
            keys_only: false,
            view,
            consistency: self.consistency,
        };
        loop {
            match self.worker_context.scan(&self.permit, step.clone(), None, self.exchange.phases()).await? {
                Outcome::Page(Page::Entries { entries, next, snapshot }) => {
                    *self.ahead.borrow_mut() = snapshot;
                    return Ok(Step { entries, next, held });
                }
                Outcome::Page(Page::TooLarge { bytes }) => {
                    // The entry is in memory twice: as it was read, and in hyper's write buffer.
                    let needed = 2 * bytes as u64;
                    if held.as_ref().is_none_or(|held| held.bytes < needed) {
                        // Release first: two ranges that hold budget would wait for each other until the timeout.
                        drop(held.take());
                        let wait = tokio::time::timeout(
                            BODY_BUDGET_TIMEOUT,
                            self.worker_context.executor().budget().take(needed),
                        );
                        let limit = self.worker_context.executor().budget().bytes();
                        let what = "not enough memory for a large entry of the range";
                        let permit = wait.await.map_err(|_| Error::Overloaded { what, limit, retry_after: None })?;
                        held = Some(EntryPermit { permit, bytes: needed });
                    }
                    step.bytes_max = bytes;
                }
                other => unreachable!("a scan step returns a page, not {other:?}"),
            }
        }
    }
}
