//! How many copies must answer a request: the header `Klad-Consistency`, and the parameters `ack`, `from` and
//! `replicas`. In a request for keys, klad never ignores them. If the store cannot do what they ask, klad answers 400.
//! `service` calls this.

use crate::http::api_error::ApiError;
use crate::http::query;
use crate::http::route::Head;
use crate::observe::CONSISTENCY_HEADER;
use klad_storage::operation::Consistency;

/// Returns the consistency level that the header asks for.
///
/// # Errors
/// [`ApiError::BadConsistency`] if the level is unknown.
pub fn level(head: &Head<'_>) -> Result<Consistency, ApiError> {
    match head.headers.get(CONSISTENCY_HEADER) {
        None => Ok(Consistency::Default),
        Some(header) => header.to_str().ok().and_then(Consistency::from_request).ok_or(ApiError::BadConsistency),
    }
}

/// Returns how many copies must answer a request for keys. The header says this, or the parameters `ack=A` and
/// `from=F`, also written `replicas=A/F`: A of F copies. `copies` returns the number of copies that the store keeps.
///
/// # Errors
/// [`ApiError::BadConsistency`], [`ApiError::BadReplicas`], [`ApiError::BadEscape`].
pub fn of_keys(head: &Head<'_>, copies: impl FnOnce() -> u8) -> Result<Consistency, ApiError> {
    let level = level(head)?;
    // Most requests have one parameter, the key, or none.
    if !head.query.contains('&') && !head.path.starts_with("/v1/") {
        return Ok(level);
    }
    let [ack, from, both] = query::first_of_each(head.query, ["ack", "from", "replicas"])?;
    if ack.is_none() && from.is_none() && both.is_none() {
        return Ok(level);
    }
    if level != Consistency::Default {
        return Err(ApiError::BadConsistency);
    }
    let copies = copies();
    let wrong = || ApiError::BadReplicas { copies };
    let number = |text: &[u8]| std::str::from_utf8(text).ok().and_then(|text| text.parse().ok()).ok_or_else(wrong);
    let (ack, from) = match both.as_deref() {
        None => (ack.as_deref().map(number).transpose()?, from.as_deref().map(number).transpose()?),
        Some(_) if ack.is_some() || from.is_some() => return Err(wrong()),
        Some(both) => {
            let mut parts = both.splitn(2, |byte| *byte == b'/');
            let mut next = || parts.next().ok_or_else(wrong).and_then(number).map(Some);
            (next()?, next()?)
        }
    };
    let from = from.unwrap_or(copies);
    let ack = ack.unwrap_or(majority(from));
    if !(1..=from).contains(&ack) || from > copies {
        return Err(wrong());
    }
    // The engine asks all copies of a key, not `from` particular copies. So it waits for at least a majority of all
    // copies. Then a read meets each write that it must see.
    Ok(Consistency::Acks(if from < copies { ack.max(majority(copies)) } else { ack }))
}

fn majority(copies: u8) -> u8 {
    copies / 2 + 1
}

#[cfg(test)]
mod tests {
    use hyper::header::{HeaderName, HeaderValue};
    use hyper::{HeaderMap, Method};

    use super::*;

    fn of(query: &str, level: Option<&'static str>, copies: u8) -> Result<Consistency, &'static str> {
        let mut headers = HeaderMap::new();
        if let Some(level) = level {
            headers.insert(HeaderName::from_static(CONSISTENCY_HEADER), HeaderValue::from_static(level));
        }
        let head = Head { method: &Method::GET, path: "/v0/entity", query, headers: &headers };
        of_keys(&head, || copies).map_err(|error| error.code())
    }

    #[test]
    fn the_default_is_a_majority_of_all_copies() {
        for (copies, ack) in [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3)] {
            assert_eq!(of("id=k&from=", None, copies), Err("bad-replicas"));
            assert_eq!(of(&format!("id=k&from={copies}"), None, copies), Ok(Consistency::Acks(ack)));
            assert_eq!(of("id=k&x=1", None, copies), Ok(Consistency::Default));
        }
        assert_eq!(of("id=k&ack=3", None, 3), Ok(Consistency::Acks(3)));
    }

    #[test]
    fn what_the_store_cannot_do_is_an_error() {
        for (query, copies) in [
            ("ack=0&from=3", 3),
            ("ack=4&from=3", 3),
            ("ack=2&from=1", 3),
            ("ack=1&from=4", 3),
            ("ack=x&from=3", 3),
            ("ack=&from=3", 3),
            ("ack=1&from=0", 3),
            ("ack=257&from=3", 3),
            ("ack=-1&from=3", 3),
            ("ack=2&from=2", 1),
            ("ack=2", 1),
            ("replicas=2/2", 1),
            ("replicas=0/3", 3),
            ("replicas=3", 3),
            ("replicas=2/3/3", 3),
            ("replicas=", 3),
            ("replicas=2/3&ack=2", 3),
            ("ack=0&from=3&ack=2", 3),
        ] {
            assert_eq!(of(&format!("id=k&{query}"), None, copies), Err("bad-replicas"), "{query} of {copies}");
            assert_eq!(of(&format!("{query}&id=k"), None, copies), Err("bad-replicas"), "{query} of {copies}");
        }
        assert_eq!(of("id=k&ack=%zz", None, 3), Err("bad-escape"));
        assert_eq!(of("id=k&replicas=2/3", Some("quorum"), 3), Err("bad-consistency"));
        for level in ["", "QUORUM", "each_quorum", "2"] {
            assert_eq!(of("id=k", Some(level), 3), Err("bad-consistency"), "{level}");
        }
    }

    #[test]
    fn names_and_values_are_decoded() {
        assert_eq!(of("id=k&%61ck=2&fr%6fm=3", None, 3), Ok(Consistency::Acks(2)));
        assert_eq!(of("id=k&replicas=2%2f3", None, 3), Ok(Consistency::Acks(2)));
        assert_eq!(of("id=k&replicas=1/3&replicas=9/9", None, 3), Ok(Consistency::Acks(1)));
        assert_eq!(of("id=k", Some("local_quorum"), 3), Ok(Consistency::LocalQuorum));
    }

    /// A read of A2 of F sees a write to A1 of F if A1 + A2 > F.
    #[test]
    fn writes_and_reads_overlap() {
        let acks = |ack, from, copies| match of(&format!("id=k&ack={ack}&from={from}"), None, copies) {
            Ok(Consistency::Acks(acks)) => acks,
            other => panic!("{other:?}"),
        };
        for copies in 1..=5 {
            for from in 1..=copies {
                for (write, read) in (1..=from).flat_map(|write| (1..=from).map(move |read| (write, read))) {
                    let overlap = acks(write, from, copies) + acks(read, from, copies) > copies;
                    assert!(overlap || write + read <= from, "{write} and {read} of {from} of {copies}");
                }
            }
        }
    }
}
