//! Reads all items of a batch before anything happens, in slices between which the worker's other requests run.
//! `batch` calls this.

use std::num::NonZeroU64;

use bytes::Bytes;

use crate::execution::admission::BodyPermit;
use crate::http::api_error::ApiError;
use crate::http::authorization;
use crate::http::v1::batch::item::Op;
use crate::http::v1::batch::{Format, cbor, ndjson};
use crate::http::v1::{self, Context};
use crate::limits::{BATCH_ITEM_BYTES, BATCH_SLICE_BYTES, BATCH_SLICE_ITEMS};
use klad_storage::ChangeKind;
use klad_storage::operation::{Attributes, Change, ChangeResult, Effect};

const _: () = assert!(size_of::<Change>() + size_of::<Attributes>() + size_of::<ChangeResult>() < BATCH_ITEM_BYTES);

/// The items of a batch.
#[derive(Default)]
pub(super) struct Items {
    /// What each item does.
    pub(super) ops: Vec<Op>,
    /// The change of each item.
    pub(super) changes: Vec<Change>,
    /// The number of gets.
    pub(super) gets: usize,
    /// The permits for the memory that the items need in addition to the body.
    pub(super) permits: Vec<BodyPermit>,
}

/// Reads all items of `body`.
///
/// # Errors
/// The error of the first item that is malformed, or that the token or the state of storage does not allow.
pub(super) async fn all(context: &Context<'_>, format: Format, body: &Bytes) -> Result<Items, ApiError> {
    let mut reader = Reader { context, format, body, from: 0, now: v1::now(), checked: Vec::new() };
    let mut items = Items::default();
    while reader.slice(&mut items)? {
        tokio::task::yield_now().await;
    }
    Ok(items)
}

struct Reader<'r> {
    context: &'r Context<'r>,
    format: Format,
    body: &'r Bytes,
    /// Where the next item begins.
    from: usize,
    /// The time of the changes.
    now: Option<NonZeroU64>,
    /// The kinds of changes that were checked and are allowed.
    checked: Vec<ChangeKind>,
}

impl Reader<'_> {
    /// Reads the next items. Returns whether there may be more.
    fn slice(&mut self, items: &mut Items) -> Result<bool, ApiError> {
        let (before, begin) = (items.ops.len(), self.from);
        let mut copied = 0;
        let mut more = true;
        while more && items.ops.len() - before < BATCH_SLICE_ITEMS && self.from - begin < BATCH_SLICE_BYTES {
            let item = items.ops.len();
            match self.next().map_err(|error| ApiError::Item { item, error: Box::new(error) })? {
                Some((op, change)) => {
                    self.allow(op)?;
                    let limit = self.context.options.batch_items_max;
                    if item as u64 >= limit {
                        return Err(ApiError::BatchTooLarge { limit, of: "items" });
                    }
                    copied += self.copied_bytes(&change);
                    items.gets += usize::from(op == Op::Get);
                    items.ops.push(op);
                    items.changes.push(change);
                }
                None => more = false,
            }
        }
        let bytes = (items.ops.len() - before) * BATCH_ITEM_BYTES + copied;
        if bytes > 0 {
            items.permits.push(self.context.reserve(bytes, "request body")?);
        }
        Ok(more)
    }

    fn next(&mut self) -> Result<Option<(Op, Change)>, ApiError> {
        let next = match self.format {
            Format::Ndjson => ndjson::next(self.body, self.from)?,
            Format::Cbor => cbor::next(self.body, self.from)?,
        };
        let Some((members, end)) = next else { return Ok(None) };
        self.from = end;
        members.into_change(&self.context.options, self.now).map(Some)
    }

    /// Checks whether the token and the state of storage allow an item with this `op`.
    fn allow(&mut self, op: Op) -> Result<(), ApiError> {
        let Some(kind) = op.change_kind() else { return Ok(()) };
        if !self.checked.contains(&kind) {
            authorization::may(self.context.access, true)?;
            self.context.worker.executor().writable(kind)?;
            self.checked.push(kind);
        }
        Ok(())
    }

    /// Returns how many bytes of a change are copies, not slices of the body.
    fn copied_bytes(&self, change: &Change) -> usize {
        let body = self.body.as_ptr_range();
        let copied = |bytes: &Bytes| if body.contains(&bytes.as_ptr()) { 0 } else { bytes.len() };
        let of = |own: &Option<Box<Attributes>>| own.as_ref().map_or(0, |own| own.metadata.len());
        copied(&change.key)
            + match &change.effect {
                Effect::Put(value) => copied(&value.payload) + of(&value.attributes),
                Effect::Add { created, .. } => of(created),
                Effect::Delete | Effect::Expire(_) | Effect::Read => 0,
            }
    }
}
