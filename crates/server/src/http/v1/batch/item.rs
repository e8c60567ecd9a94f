//! One item of a batch. Checks the members that a format has read, and makes a change from them. `read` calls this; the
//! formats fill in [`Members`].

use std::borrow::Cow;
use std::num::NonZeroU64;

use bytes::Bytes;

use crate::http::api_error::ApiError;
use crate::http::service::Options;
use crate::http::v1::{self, condition, expiry, metadata};
use crate::limits::METADATA_ENTRIES_MAX;
use klad_storage::ChangeKind;
use klad_storage::operation::{Attributes, Change, Condition, Effect, Value};

/// What an item does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Op {
    /// Stores a value.
    Put,
    /// Reads a value.
    Get,
    /// Removes a value.
    Delete,
    /// Adds to a counter.
    Add,
    /// Changes the expiry of a value.
    Expire,
}

impl Op {
    pub(super) const ALL: [Op; 5] = [Op::Put, Op::Get, Op::Delete, Op::Add, Op::Expire];

    /// The word in the member `op`.
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Op::Put => "put",
            Op::Get => "get",
            Op::Delete => "delete",
            Op::Add => "add",
            Op::Expire => "expire",
        }
    }

    /// Reads the member `op`.
    pub(super) fn from_word(word: &str) -> Result<Op, ApiError> {
        let op = Op::ALL.into_iter().find(|op| op.as_str() == word);
        op.ok_or_else(|| bad("op must be put, get, delete, add or expire"))
    }

    /// The kind of change that storage must allow. `None` if the item only reads.
    pub(super) const fn change_kind(self) -> Option<ChangeKind> {
        match self {
            Op::Put | Op::Add | Op::Expire => Some(ChangeKind::Put),
            Op::Delete => Some(ChangeKind::Delete),
            Op::Get => None,
        }
    }

    /// The members that an item takes in addition to `op` and its key.
    const fn members(self) -> &'static str {
        match self {
            Op::Put => "a put takes a value, content_type, content_encoding, meta, ttl, and if_match or if_none_match",
            Op::Get => "a get takes only a key",
            Op::Delete => "a delete takes only a key and if_match",
            Op::Add => "an add takes by, ttl, and if_match or if_none_match",
            Op::Expire => "an expire takes ttl, and if_match or if_none_match",
        }
    }
}

/// The time to live, in the form in which an item gives it.
#[derive(Debug, PartialEq)]
pub(super) enum Ttl<'m> {
    /// For ever.
    Never,
    /// A number of seconds.
    Seconds(f64),
    /// A text such as `60s`.
    Text(Cow<'m, str>),
}

/// The names and values of an item's user metadata.
pub(super) type Meta<'m> = Vec<(Cow<'m, str>, Cow<'m, [u8]>)>;

/// The members of an item.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Members<'m> {
    pub(super) op: Option<Op>,
    pub(super) key: Option<Bytes>,
    pub(super) value: Option<Bytes>,
    pub(super) content_type: Option<Cow<'m, str>>,
    pub(super) content_encoding: Option<Cow<'m, str>>,
    pub(super) meta: Option<Meta<'m>>,
    pub(super) ttl: Option<Ttl<'m>>,
    pub(super) by: Option<i64>,
    pub(super) if_match: Option<Cow<'m, str>>,
    pub(super) if_none_match: Option<Cow<'m, str>>,
}

/// Adds an entry of user metadata to `meta`.
pub(super) fn add_meta<'m>(meta: &mut Meta<'m>, name: Cow<'m, str>, value: Cow<'m, [u8]>) -> Result<(), &'static str> {
    if meta.len() == METADATA_ENTRIES_MAX {
        return Err("there are too many entries of metadata");
    }
    if meta.iter().any(|(before, _)| *before == name) {
        return Err("a name of the metadata is given twice");
    }
    meta.push((name, value));
    Ok(())
}

/// The error for an item that is malformed.
pub(super) fn bad(why: impl Into<String>) -> ApiError {
    let mut why = why.into();
    // The text may quote the item, which can be long.
    if why.len() > 300 {
        why.truncate(why.floor_char_boundary(300));
        why.push('…');
    }
    ApiError::BadItem(why)
}

impl Members<'_> {
    /// Checks the members and makes the change that they describe. `now` is the time of the batch.
    pub(super) fn into_change(self, options: &Options, now: Option<NonZeroU64>) -> Result<(Op, Change), ApiError> {
        let op = self.op.ok_or_else(|| bad("op is missing: put, get, delete, add or expire"))?;
        self.check_members(op)?;
        let condition = self.condition(op)?;
        let key = self.key.filter(|key| !key.is_empty()).ok_or_else(|| bad("the key is missing or empty"))?;
        if key.len() as u64 > options.key_bytes_max {
            return Err(ApiError::KeyTooLong { limit_bytes: options.key_bytes_max });
        }
        let lives = |ttl| match ttl {
            None | Some(Ttl::Never) => Ok(None),
            Some(Ttl::Seconds(seconds)) => expiry::from_seconds(seconds).map(expiry::at),
            Some(Ttl::Text(text)) => expiry::parse(&text).map(expiry::at),
        };
        let effect = match op {
            Op::Put => {
                let payload = self.value.ok_or_else(|| bad("a put needs a value"))?;
                if payload.len() as u64 > options.value_bytes_max {
                    return Err(ApiError::ValueTooLarge { limit_bytes: options.value_bytes_max });
                }
                if self.ttl == Some(Ttl::Never) {
                    return Err(bad("the ttl of a put is a text or a number; without a ttl the value does not expire"));
                }
                let metadata = encode(
                    self.content_type.as_deref(),
                    self.content_encoding.as_deref(),
                    self.meta.as_deref().unwrap_or_default(),
                )?;
                let attributes = Attributes { modified_ms: now, expires_at_ms: lives(self.ttl)?, metadata };
                Effect::Put(Value { payload, attributes: Some(Box::new(attributes)) })
            }
            Op::Get => Effect::Read,
            Op::Delete => Effect::Delete,
            Op::Add => {
                if self.ttl == Some(Ttl::Never) {
                    return Err(bad("the ttl of an add is a text or a number"));
                }
                v1::add(self.by.ok_or_else(|| bad("an add needs by"))?, lives(self.ttl)?)
            }
            Op::Expire => {
                let ttl = self.ttl.ok_or_else(|| bad("an expire needs a ttl; null removes the expiry"))?;
                Effect::Expire(lives(Some(ttl))?)
            }
        };
        Ok((op, Change { key, condition, effect, reports_existence: false }))
    }

    /// Checks that the item has no members that its op does not use.
    fn check_members(&self, op: Op) -> Result<(), ApiError> {
        let described = self.content_type.is_some() || self.content_encoding.is_some() || self.meta.is_some();
        let value = self.value.is_some() || described;
        let (ttl, by) = (self.ttl.is_some(), self.by.is_some());
        let condition = self.if_match.is_some() || self.if_none_match.is_some();
        let useless = match op {
            Op::Put => by,
            Op::Get => value || ttl || by || condition,
            Op::Delete => value || ttl || by || self.if_none_match.is_some(),
            Op::Add => value,
            Op::Expire => value || by,
        };
        if useless { Err(bad(op.members())) } else { Ok(()) }
    }

    fn condition(&self, op: Op) -> Result<Option<Condition>, ApiError> {
        match (&self.if_match, &self.if_none_match) {
            (None, None) => Ok(None),
            (Some(tag), None) => condition::if_match(tag.as_bytes()).map(Some),
            (None, Some(tag)) if tag == "*" && op != Op::Delete => Ok(Some(Condition::Absent)),
            (None, Some(_)) => Err(ApiError::BadCondition("if_none_match must be *")),
            (Some(_), Some(_)) => Err(ApiError::BadCondition("if_match and if_none_match exclude each other")),
        }
    }
}

/// Encodes the metadata that klad stores with the value of a put.
fn encode(
    content_type: Option<&str>,
    content_encoding: Option<&str>,
    meta: &[(Cow<'_, str>, Cow<'_, [u8]>)],
) -> Result<Bytes, ApiError> {
    let mut encoder = metadata::Encoder::default();
    if let Some(content_type) = content_type {
        encoder.content_type(content_type.as_bytes())?;
    }
    if let Some(content_encoding) = content_encoding {
        encoder.content_encoding(content_encoding.as_bytes())?;
    }
    for (name, value) in meta {
        encoder.user(name, value)?;
    }
    Ok(encoder.finish())
}
