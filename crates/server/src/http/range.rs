//! A range on its way out: a series of scan steps, each an ordinary operation.
//!
//! Between steps only the next key is held, so a slow reader holds no storage thread and pins no memtable, and a range over
//! more data than memory goes out at constant memory. Called by `service`; polled by hyper through `body`.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;

use crate::exchange::Exchange;
use crate::execution::admission::BodyPermit;
use crate::execution::{ScanPermit, WorkerContext};
use klad_base::limits::{BODY_BUDGET_TIMEOUT, SCAN_STEP_BYTES_MAX, SCAN_STEP_ENTRIES_MAX};
use klad_storage::operation::{Entry, Error, Outcome, Page, ScanStep};

/// The body of a range's answer.
pub(super) struct RangeBody {
    scan: Rc<Scan>,
    entries: std::vec::IntoIter<Entry>,
    next: Option<Bytes>,
    /// Held for the largest entry so far, to the end: hyper's buffer has grown to it and keeps that capacity.
    budget: Option<HeldRoom>,
    step: Option<RunningStep>,
    ended: bool,
}

/// A step that has not ended yet.
type RunningStep = Pin<Box<dyn Future<Output = Result<Step, Error>>>>;

struct Scan {
    worker_context: Rc<WorkerContext>,
    exchange: Rc<Exchange>,
    permit: ScanPermit,
    end: Option<Bytes>,
}

struct Step {
    entries: Vec<Entry>,
    next: Option<Bytes>,
    budget: Option<HeldRoom>,
}

/// Room, and for how many bytes it was taken.
struct HeldRoom {
    permit: BodyPermit,
    bytes: u64,
}

impl RangeBody {
    /// Begins the range and does its first step, so that what is wrong from the start still gets a status.
    pub(super) async fn begin(
        worker_context: Rc<WorkerContext>,
        exchange: Rc<Exchange>,
        start: Bytes,
        end: Option<Bytes>,
    ) -> Result<RangeBody, Error> {
        let permit = worker_context.executor().begin_scan()?;
        let scan = Rc::new(Scan { worker_context, exchange, permit, end });
        let first = scan.step(start, None).await?;
        let entries = first.entries.into_iter();
        Ok(RangeBody { scan, entries, next: first.next, budget: first.budget, step: None, ended: false })
    }

    /// Whether the last entry was given out, and that it was the last.
    pub(super) fn has_ended(&self) -> bool {
        self.ended
    }

    /// Bytes of room that it holds now.
    pub(super) fn permit_bytes(&self) -> u64 {
        self.budget.as_ref().map_or(0, |held| held.permit.bytes())
    }

    /// The next entry. After an error the connection is cut without the final chunk, so that no client takes a part for
    /// the whole.
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
                        self.budget = step.budget;
                    }
                    Err(error) => {
                        tracing::warn!(%error, "a range is cut in its middle");
                        return Poll::Ready(Some(Err(error)));
                    }
                }
                continue;
            }
            let Some(from) = self.next.take() else {
                self.ended = true;
                return Poll::Ready(None);
            };
            let (scan, budget) = (self.scan.clone(), self.budget.take());
            self.step = Some(Box::pin(async move { scan.step(from, budget).await }));
        }
    }
}

impl Scan {
    async fn step(&self, from: Bytes, mut budget: Option<HeldRoom>) -> Result<Step, Error> {
        let mut step = ScanStep {
            from,
            end: self.end.clone(),
            entries_max: SCAN_STEP_ENTRIES_MAX,
            bytes_max: SCAN_STEP_BYTES_MAX,
        };
        loop {
            match self.worker_context.scan(&self.permit, step.clone(), self.exchange.phases()).await? {
                Outcome::Page(Page::Entries { entries, next }) => return Ok(Step { entries, next, budget }),
                Outcome::Page(Page::TooLarge { bytes }) => {
                    // Once as it was read, once in hyper's write buffer.
                    let needed = 2 * bytes as u64;
                    if budget.as_ref().is_none_or(|held| held.bytes < needed) {
                        // Given back first: two that wait for each other's room would wait for ever.
                        drop(budget.take());
                        let wait = tokio::time::timeout(
                            BODY_BUDGET_TIMEOUT,
                            self.worker_context.executor().budget().take(needed),
                        );
                        let limit = self.worker_context.executor().budget().bytes();
                        let what = "no room for a large entry of the range";
                        let permit = wait.await.map_err(|_| Error::Overloaded { what, limit, retry_after: None })?;
                        budget = Some(HeldRoom { permit, bytes: needed });
                    }
                    step.bytes_max = bytes;
                }
                Outcome::Found { .. } | Outcome::NotFound | Outcome::Written { .. } => {
                    unreachable!("a scan step is answered with a page")
                }
            }
        }
    }
}
