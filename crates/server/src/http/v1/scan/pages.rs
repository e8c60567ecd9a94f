//! The steps of one scan: a series of operations that see one state of the store, if the engine has snapshots.
//!
//! Between two steps klad holds the bounds of the keys that are left, the snapshot, and, with a large entry, a memory
//! permit. A step may return nothing although keys are left, because the engine limits how many removed entries one
//! step passes. `scan` and `stream` call this.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Instant;

use bytes::Bytes;

use crate::exchange::Exchange;
use crate::execution::admission::BodyPermit;
use crate::execution::{Deadline, ScanPermit, WorkerContext};
use crate::http::v1::Context;
use crate::http::v1::scan::keys::{Keys, Range};
use crate::limits::{BODY_BUDGET_TIMEOUT, SCAN_GROUP_STEP_ENTRIES_MAX};
use klad_base::clock;
use klad_storage::operation::{Consistency, Entry, Error, Outcome, Page, ScanStep, Snapshot, View};

/// A scan in progress.
pub(super) struct Scan {
    worker_context: Rc<WorkerContext>,
    exchange: Rc<Exchange>,
    permit: ScanPermit,
    pub(super) keys: Keys,
    keys_only: bool,
    consistency: Consistency,
    /// The state that all steps read. The first step takes it. After the first step, `None` means that the engine has
    /// no snapshots, or that klad has dropped the snapshot.
    snapshot: RefCell<Option<Snapshot>>,
    /// When the scan must end.
    until: Instant,
}

/// What a scan lists.
pub(super) enum Item {
    /// A key that is not part of a group.
    Entry(Entry),
    /// All keys that begin with this.
    Prefix(Bytes),
}

/// The result of a step.
pub(super) struct Step {
    /// The items, in the order of the scan.
    pub(super) items: Vec<Item>,
    /// The keys that are left.
    pub(super) rest: Option<Range>,
    /// The memory permit of a large entry.
    pub(super) permit: Option<BodyPermit>,
}

/// The limits of a step.
#[derive(Clone, Copy)]
pub(super) struct StepLimits {
    pub(super) entries_max: usize,
    pub(super) bytes_max: usize,
}

/// What [`Scan::try_step`] has found.
pub(super) enum Tried {
    Step(Step),
    /// The first entry alone exceeds the limits. The number is its size in bytes.
    TooLarge(usize),
}

impl Scan {
    /// Begins a scan, and takes one of the limited places for scans.
    ///
    /// # Errors
    /// [`Error::Overloaded`] if too many scans and ranges are in progress.
    pub(super) fn begin(context: &Context<'_>, keys: Keys, keys_only: bool) -> Result<Rc<Scan>, Error> {
        Ok(Rc::new(Scan {
            permit: context.worker.executor().begin_scan()?,
            worker_context: context.worker.clone(),
            exchange: context.exchange.clone(),
            consistency: context.consistency,
            keys,
            keys_only,
            snapshot: RefCell::default(),
            until: clock::now() + context.options.scan_time_max,
        }))
    }

    /// Whether the scan must end, because it has taken as long as a scan may.
    pub(super) fn is_over(&self) -> bool {
        clock::now() >= self.until
    }

    /// Drops the snapshot, because no step will read it any more.
    pub(super) fn drop_snapshot(&self) {
        self.snapshot.take();
    }

    /// Whether the scan holds a snapshot.
    pub(super) fn has_snapshot(&self) -> bool {
        self.snapshot.borrow().is_some()
    }

    /// When the scan must end.
    pub(super) fn until(&self) -> Instant {
        self.until
    }

    /// Does one step. Waits for memory if the first entry is large.
    pub(super) async fn step(&self, rest: Range, mut limits: StepLimits, deadline: Deadline) -> Result<Step, Error> {
        let mut permit: Option<BodyPermit> = None;
        loop {
            match self.try_step(&rest, limits, deadline).await? {
                Tried::Step(step) => return Ok(Step { permit, ..step }),
                Tried::TooLarge(bytes) => {
                    // Release first: two scans that hold budget would wait for each other until the timeout.
                    drop(permit.take());
                    let budget = self.worker_context.executor().budget();
                    let wait = tokio::time::timeout(BODY_BUDGET_TIMEOUT, budget.take(bytes as u64));
                    let (what, limit) = ("not enough memory for a large entry of the scan", budget.bytes());
                    let taken = wait.await.map_err(|_| Error::Overloaded { what, limit, retry_after: None })?;
                    permit = Some(taken);
                    limits.bytes_max = bytes;
                }
            }
        }
    }

    /// Does one step, unless its first entry is larger than the limits.
    pub(super) async fn try_step(&self, rest: &Range, limits: StepLimits, deadline: Deadline) -> Result<Tried, Error> {
        let StepLimits { entries_max, bytes_max } = limits;
        // Read fewer entries of a group in a step, because most of them are not returned.
        let grouped_max = if self.keys.delimiter.is_empty() { usize::MAX } else { SCAN_GROUP_STEP_ENTRIES_MAX };
        let view = self.snapshot.borrow().clone().map_or(View::Take, View::At);
        let takes = matches!(view, View::Take);
        let step = ScanStep {
            from: rest.from.clone(),
            end: rest.end.clone(),
            reverse: self.keys.reverse,
            keys_only: self.keys_only,
            entries_max: entries_max.min(grouped_max),
            bytes_max,
            view,
            consistency: self.consistency,
        };
        let outcome = self.worker_context.scan(&self.permit, step, deadline, self.exchange.phases()).await?;
        match outcome {
            Outcome::Page(Page::Entries { entries, next, snapshot }) => {
                if takes && !self.is_over() {
                    *self.snapshot.borrow_mut() = snapshot;
                }
                let (items, rest) = self.group(entries, next, rest);
                Ok(Tried::Step(Step { items, rest, permit: None }))
            }
            Outcome::Page(Page::TooLarge { bytes }) => Ok(Tried::TooLarge(bytes)),
            other => unreachable!("a scan step returns a page, not {other:?}"),
        }
    }

    /// Replaces neighbouring entries that have the same common prefix by one item for this prefix. Also returns what is
    /// left of `rest`. If the step ends within a group, the scan continues after the group.
    fn group(&self, entries: Vec<Entry>, next: Option<Bytes>, rest: &Range) -> (Vec<Item>, Option<Range>) {
        let left = next.and_then(|bound| self.keys.left(rest, bound));
        if self.keys.delimiter.is_empty() {
            return (entries.into_iter().map(Item::Entry).collect(), left);
        }
        let mut items = Vec::new();
        for entry in entries {
            match (self.keys.common_prefix(&entry.key), items.last()) {
                (Some(common), Some(Item::Prefix(last))) if *common == **last => {}
                // A copy, because a slice would keep the memory of the whole entry.
                (Some(common), _) => items.push(Item::Prefix(Bytes::copy_from_slice(common))),
                (None, _) => items.push(Item::Entry(entry)),
            }
        }
        let left = match (left, items.last()) {
            (Some(_), Some(Item::Prefix(common))) => self.keys.left_behind(rest, common),
            (left, _) => left,
        };
        (items, left)
    }
}
