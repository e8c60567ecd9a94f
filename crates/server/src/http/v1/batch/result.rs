//! The result of one item. Converts what storage returns to what a format writes. `batch` calls this.

use bytes::Bytes;
use hyper::StatusCode;

use crate::http::api_error::ApiError;
use crate::http::v1::batch::item::Op;
use crate::http::v1::expiry;
use crate::http::v1::metadata::Metadata;
use klad_storage::operation::{ChangeResult, Value, Version};

/// The result of one item.
#[derive(Debug)]
pub(super) struct ItemResult {
    pub(super) status: u16,
    /// The version of the value that the item has stored or read.
    pub(super) etag: Option<Version>,
    pub(super) answered: Answered,
}

/// What a result has in addition to its status and its `ETag`.
#[derive(Debug)]
pub(super) enum Answered {
    Nothing,
    /// The new value of a counter.
    Number(i64),
    /// The value that a get has found.
    Value(Found),
    /// The item has failed.
    Failed(&'static str),
    /// The condition of the item does not hold.
    ConditionFailed {
        code: &'static str,
        /// The version of the present value.
        current: Option<Version>,
    },
}

/// A value with its attributes.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) payload: Bytes,
    pub(super) metadata: Bytes,
    pub(super) left_s: Option<f64>,
}

impl ItemResult {
    /// Makes the result of an item that does `op`.
    pub(super) fn new(op: Op, result: ChangeResult) -> ItemResult {
        match result {
            ChangeResult::Done { version, number, .. } => {
                let status = match op {
                    Op::Put | Op::Add | Op::Get => StatusCode::OK,
                    Op::Delete | Op::Expire => StatusCode::NO_CONTENT,
                };
                // A removal has no ETag, because it leaves no value.
                let etag = (op != Op::Delete).then_some(version);
                ItemResult {
                    status: status.as_u16(),
                    etag,
                    answered: number.map_or(Answered::Nothing, Answered::Number),
                }
            }
            ChangeResult::Read(Some((version, value))) => ItemResult {
                status: StatusCode::OK.as_u16(),
                etag: Some(version),
                answered: Answered::Value(Found::new(value)),
            },
            ChangeResult::Read(None) => ItemResult::failed(&ApiError::NotFound),
            ChangeResult::Failed(error) => ItemResult::failed(&error.into()),
        }
    }

    fn failed(error: &ApiError) -> ItemResult {
        let answered = match error {
            ApiError::PreconditionFailed { current } => {
                Answered::ConditionFailed { code: error.code(), current: *current }
            }
            error => Answered::Failed(error.code()),
        };
        ItemResult { status: error.status().as_u16(), etag: None, answered }
    }
}

impl Found {
    fn new(value: Value) -> Found {
        let left_s = expiry::left_s(&value);
        let metadata = value.attributes.map(|own| own.metadata).unwrap_or_default();
        Found { payload: value.payload, metadata, left_s }
    }

    /// Returns the metadata that is stored with the value.
    pub(super) fn metadata(&self) -> Metadata<'_> {
        Metadata::read(&self.metadata)
    }
}
