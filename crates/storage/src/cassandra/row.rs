//! The two columns of a stored key. `docs/cluster-model.md` describes them too; change both together.
//!
//! ```text
//!   head   8 bytes    version, big-endian, so that the larger version has the larger bytes (see `versions`)
//!          1 byte     bit 7: the payload is in `value`; bits 0..4: the number n of earlier versions
//!          n x 8      the versions that this value replaced by conditional writes, the newest first
//!          4 bytes    length of the payload, big-endian (with bit 7)
//!          the rest   a record as the engines on disk store it (`disk::record`), without its payload if bit 7 is set
//!   value  empty, or  8 bytes version and the payload (with bit 7)
//! ```
//!
//! Small payloads are in `head`, so that one step of a scan reads entries of bounded size and needs no second read.
//! Only this file knows the layout.

use bytes::{BufMut as _, Bytes, BytesMut};

use crate::disk::record::{self, Record};
use crate::operation::{Attributes, Error, Value, Version};

/// The largest payload that `head` holds, bytes.
pub(super) const PAYLOAD_IN_HEAD_MAX: usize = 512;

/// The number of earlier versions that a row keeps. They let a klad decide whether its conditional write with an
/// unknown outcome took effect, even if others have overwritten the value since.
pub(super) const EARLIER_MAX: usize = 15;

const BESIDE: u8 = 1 << 7;
const EARLIER: u8 = 0x0F;

/// A decoded head.
#[derive(Clone, Debug)]
pub(super) struct Head {
    /// All bytes of the head.
    pub(super) raw: Bytes,
    pub(super) version: Version,
    pub(super) attributes: Option<Box<Attributes>>,
    payload: Payload,
}

#[derive(Clone, Debug)]
enum Payload {
    Here(Bytes),
    /// In the column `value`, with this length in bytes.
    Beside(usize),
}

impl Head {
    /// Decodes the column `head`.
    pub(super) fn decode(raw: Bytes) -> Result<Head, Error> {
        let cut = || unreadable("the head of a row is cut short");
        let (version, rest) = raw.split_first_chunk::<8>().ok_or_else(cut)?;
        let version = Version::new(u64::from_be_bytes(*version));
        let (&kind, rest) = rest.split_first().ok_or_else(cut)?;
        if kind & !(BESIDE | EARLIER) != 0 {
            return Err(unreadable("the head of a row has an unknown flag; a newer klad may have written it"));
        }
        let (_, rest) = rest.split_at_checked(usize::from(kind & EARLIER) * 8).ok_or_else(cut)?;
        if kind & BESIDE == 0 {
            let stored = Record::decode(rest)?;
            let payload = Payload::Here(raw.slice_ref(stored.payload));
            return Ok(Head { version, attributes: stored.attributes(), payload, raw });
        }
        let (length, rest) = rest.split_first_chunk::<4>().ok_or_else(cut)?;
        let length = u32::from_be_bytes(*length) as usize;
        let attributes = Record::decode(rest)?.attributes();
        Ok(Head { version, attributes, payload: Payload::Beside(length), raw })
    }

    /// The versions that this value replaced, the newest first.
    pub(super) fn earlier(&self) -> impl Iterator<Item = u64> {
        let count = usize::from(self.raw[8] & EARLIER);
        self.raw[9..9 + count * 8].chunks_exact(8).map(|bytes| u64::from_be_bytes(bytes.try_into().expect("8 bytes")))
    }

    /// The length of the payload.
    pub(super) fn payload_bytes(&self) -> usize {
        match &self.payload {
            Payload::Here(payload) => payload.len(),
            Payload::Beside(length) => *length,
        }
    }

    /// The size of the payload and the metadata.
    pub(super) fn bytes(&self) -> usize {
        self.payload_bytes() + self.attributes.as_ref().map_or(0, |own| own.metadata.len())
    }

    /// The value; `None` if its payload is in the column `value`.
    pub(super) fn value(&self) -> Option<Value> {
        match &self.payload {
            Payload::Here(payload) => Some(Value { payload: payload.clone(), attributes: self.attributes.clone() }),
            Payload::Beside(_) => None,
        }
    }

    /// The value without its payload.
    pub(super) fn without_payload(&self) -> Value {
        Value { payload: Bytes::new(), attributes: self.attributes.clone() }
    }

    /// The value. If the head does not have the payload, the payload comes from `beside`, the column `value`.
    pub(super) fn value_with(&self, beside: &Bytes) -> Result<Value, Error> {
        if let Some(value) = self.value() {
            return Ok(value);
        }
        let (version, _) = beside.split_first_chunk::<8>().ok_or_else(|| unreadable("a value is missing"))?;
        if u64::from_be_bytes(*version) != self.version.get() || beside.len() - 8 != self.payload_bytes() {
            return Err(unreadable("the columns of a row are of different writes"));
        }
        Ok(Value { payload: beside.slice(8..), attributes: self.attributes.clone() })
    }

    /// Whether the value counts as absent at `now_ms`.
    pub(super) fn expired(&self, now_ms: u64) -> bool {
        let expiry = self.attributes.as_ref().and_then(|own| own.expires_at_ms);
        expiry.is_some_and(|expiry| expiry.get() <= now_ms)
    }
}

/// Encodes both columns of a value. `replaced` has the versions that a conditional write replaces, the newest first; a
/// plain write passes none.
pub(super) fn encode(version: Version, value: &Value, replaced: &[u64]) -> (Bytes, Bytes) {
    let replaced = &replaced[..replaced.len().min(EARLIER_MAX)];
    let beside = value.payload.len() > PAYLOAD_IN_HEAD_MAX;
    let mut fields = Vec::new();
    record::write_head(version, value, &mut fields);
    let here = if beside { 4 } else { value.payload.len() };
    let mut head = BytesMut::with_capacity(9 + replaced.len() * 8 + fields.len() + here);
    head.put_u64(version.get());
    let earlier = u8::try_from(replaced.len()).expect("at most EARLIER_MAX");
    head.put_u8(earlier | if beside { BESIDE } else { 0 });
    for version in replaced {
        head.put_u64(*version);
    }
    if !beside {
        head.extend_from_slice(&fields);
        head.extend_from_slice(&value.payload);
        return (head.freeze(), Bytes::new());
    }
    head.put_u32(u32::try_from(value.payload.len()).expect("--value-max is far below 4 GiB"));
    head.extend_from_slice(&fields);
    let mut column = BytesMut::with_capacity(8 + value.payload.len());
    column.put_u64(version.get());
    column.extend_from_slice(&value.payload);
    (head.freeze(), column.freeze())
}

fn unreadable(why: &str) -> Error {
    Error::Unreadable { why: why.to_owned() }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_value_survives(
            version in 1..u64::MAX,
            payload in prop_oneof![vec(any::<u8>(), 0..20), vec(any::<u8>(), 500..530)],
            metadata in vec(any::<u8>(), 0..20),
            expiry in 0_u64..3,
            replaced in vec(any::<u64>(), 0..20),
        ) {
            let own = Attributes { modified_ms: NonZeroU64::new(9), expires_at_ms: NonZeroU64::new(expiry), metadata: metadata.into() };
            let value = Value { payload: payload.into(), attributes: Some(Box::new(own)) };
            let (head, beside) = encode(Version::new(version), &value, &replaced);
            let decoded = Head::decode(head).expect("just encoded");
            prop_assert_eq!(decoded.version, Version::new(version));
            prop_assert_eq!(decoded.payload_bytes(), value.payload.len());
            prop_assert_eq!(decoded.bytes(), value.bytes());
            prop_assert_eq!(beside.is_empty(), value.payload.len() <= PAYLOAD_IN_HEAD_MAX);
            prop_assert_eq!(decoded.value_with(&beside).expect("of one write"), value);
            prop_assert!(decoded.earlier().eq(replaced.iter().copied().take(EARLIER_MAX)));
        }

        #[test]
        fn no_bytes_make_the_decoder_panic(bytes in vec(any::<u8>(), 0..60)) {
            if let Ok(head) = Head::decode(bytes.into()) {
                let _ = (head.earlier().count(), head.value_with(&Bytes::new()));
            }
        }

        /// Cassandra keeps the larger bytes of each column if two writes have one timestamp.
        #[test]
        fn of_two_writes_all_columns_keep_the_same(
            versions in (1..u64::MAX, 1..u64::MAX),
            payloads in (0_usize..1_200, 0_usize..1_200),
            earlier in (vec(any::<u64>(), 0..3), vec(any::<u64>(), 0..3)),
        ) {
            prop_assume!(versions.0 != versions.1);
            let value = |length, byte| Value::from(Bytes::from(vec![byte; length]));
            let (one, other) = (value(payloads.0, b'x'), value(payloads.1, b'y'));
            let one_columns = encode(Version::new(versions.0), &one, &earlier.0);
            let other_columns = encode(Version::new(versions.1), &other, &earlier.1);
            let (head, beside) = (one_columns.0.max(other_columns.0), one_columns.1.max(other_columns.1));
            let kept = Head::decode(head).expect("one of them");
            let expected = if versions.0 > versions.1 { one } else { other };
            prop_assert_eq!(kept.value_with(&beside).expect("of one write"), expected);
        }
    }
}
