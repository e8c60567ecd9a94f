//! An answer that klad has not written yet: its status, the fields of its head, and its body. Few headers occur in
//! klad's answers, so they are typed fields here and need no header map.
//!
//! `service` creates an answer. A connection writes it, or gives it to hyper.

use hyper::header::{CONNECTION, CONTENT_TYPE, ETAG, HeaderName, HeaderValue};
use hyper::{HeaderMap, Response, StatusCode};

use crate::http::body::{Content, ResponseBody};
use crate::http::route::DURABILITY_HEADER;
use klad_storage::operation::{Durability, Version};

/// The header with the version of a removal. A removal has no `ETag`, because it leaves no value.
pub const VERSION_HEADER: &str = "klad-version";

/// The text of a `Date` header, which always has this length (RFC 9110, 5.6.7).
pub type Date = [u8; 29];

/// The answer to one request.
pub struct Answer {
    /// The status code.
    pub status: StatusCode,
    /// The fields of the head.
    pub fields: Fields,
    /// The body. Dropping the body tells the connection that the answer was handed over.
    pub body: ResponseBody,
}

/// An answer that does not belong to a connection yet.
pub(super) struct Reply {
    pub(super) status: StatusCode,
    pub(super) fields: Fields,
    pub(super) content: Content,
}

impl Reply {
    pub(super) fn new(status: StatusCode, content: Content) -> Reply {
        Reply { status, fields: Fields::default(), content }
    }

    pub(super) fn with(self, fields: Fields) -> Reply {
        Reply { fields, ..self }
    }
}

/// The fields of an answer's head, in the order in which they are written.
#[derive(Debug, Default)]
pub struct Fields {
    /// Whether the body is a value or entries. klad does not know their type, and sends them as octets.
    pub octets: bool,
    /// The durability of a write.
    pub durability: Option<Durability>,
    /// The version of the value that is stored now.
    pub tag: Option<Version>,
    /// The version of a removal.
    pub removal: Option<Version>,
    /// Headers that few answers have.
    pub others: Option<Box<HeaderMap>>,
    /// Whether the connection ends after the answer.
    pub closes: bool,
}

const OCTETS: &str = "application/octet-stream";

impl Answer {
    /// Converts the answer for hyper.
    #[must_use]
    pub fn into_response(self) -> Response<ResponseBody> {
        let Answer { status, fields, body } = self;
        let mut response = Response::new(body);
        *response.status_mut() = status;
        *response.headers_mut() = fields.into_map();
        response
    }

    /// Appends the head for a body of `length` bytes, as hyper would write it.
    pub fn write_head(&self, length: usize, date: &Date, out: &mut Vec<u8>) {
        self.fields.write_head(self.status, length, date, out);
    }
}

impl Fields {
    /// Returns the status and the head fields for a write that has taken effect: a PUT if `put` is true, otherwise a
    /// DELETE.
    pub(super) fn of_write(put: bool, version: Version, durability: Durability) -> (StatusCode, Fields) {
        let fields = Fields { durability: Some(durability), ..Fields::default() };
        if put {
            (StatusCode::CREATED, Fields { tag: Some(version), ..fields })
        } else {
            (StatusCode::ACCEPTED, Fields { removal: Some(version), ..fields })
        }
    }

    /// Appends the head for a body of `length` bytes, as hyper would write it.
    pub(super) fn write_head(&self, status: StatusCode, length: usize, date: &Date, out: &mut Vec<u8>) {
        match status {
            StatusCode::OK => out.extend_from_slice(b"HTTP/1.1 200 OK\r\n"),
            StatusCode::CREATED => out.extend_from_slice(b"HTTP/1.1 201 Created\r\n"),
            status => {
                out.extend_from_slice(b"HTTP/1.1 ");
                out.extend_from_slice(status.as_str().as_bytes());
                out.push(b' ');
                out.extend_from_slice(status.canonical_reason().unwrap_or("<none>").as_bytes());
                out.extend_from_slice(b"\r\n");
            }
        }
        self.write(out);
        write_field(out, "content-length", itoa::Buffer::new().format(length).as_bytes());
        out.extend_from_slice(b"date: ");
        out.extend_from_slice(date);
        out.extend_from_slice(b"\r\n\r\n");
    }

    fn write(&self, out: &mut Vec<u8>) {
        if self.octets {
            write_field(out, CONTENT_TYPE.as_str(), OCTETS.as_bytes());
        }
        if let Some(durability) = self.durability {
            match durability.acks() {
                None => write_field(out, DURABILITY_HEADER, durability.as_str().as_bytes()),
                Some(acks) => write_field(out, DURABILITY_HEADER, replicated(acks).as_bytes()),
            }
        }
        if let Some(version) = self.tag {
            out.extend_from_slice(b"etag: \"");
            out.extend_from_slice(itoa::Buffer::new().format(version.get()).as_bytes());
            out.extend_from_slice(b"\"\r\n");
        }
        if let Some(version) = self.removal {
            write_field(out, VERSION_HEADER, itoa::Buffer::new().format(version.get()).as_bytes());
        }
        for (name, value) in self.others.iter().flat_map(|others| &**others) {
            write_field(out, name.as_str(), value.as_bytes());
        }
        if self.closes {
            write_field(out, CONNECTION.as_str(), b"close");
        }
    }

    fn into_map(self) -> HeaderMap {
        let Fields { octets, durability, tag, removal, others, closes } = self;
        let mut map = HeaderMap::new();
        if octets {
            map.insert(CONTENT_TYPE, HeaderValue::from_static(OCTETS));
        }
        if let Some(durability) = durability {
            let value = match durability.acks() {
                None => HeaderValue::from_static(durability.as_str()),
                Some(acks) => HeaderValue::try_from(replicated(acks)).expect("words and digits are valid"),
            };
            map.insert(HeaderName::from_static(DURABILITY_HEADER), value);
        }
        if let Some(version) = tag {
            let tag = HeaderValue::try_from(format!("\"{}\"", version.get())).expect("digits and quotes are valid");
            map.insert(ETAG, tag);
        }
        if let Some(version) = removal {
            map.insert(HeaderName::from_static(VERSION_HEADER), HeaderValue::from(version.get()));
        }
        if let Some(others) = others {
            map.extend(*others);
        }
        if closes {
            map.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        map
    }
}

/// Describes the durability of a write that `acks` copies have acknowledged.
fn replicated(acks: u8) -> String {
    format!("{}; acks={acks}", Durability::Replicated(acks).as_str())
}

fn write_field(out: &mut Vec<u8>, name: &str, value: &[u8]) {
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_written_as_hyper_would_write_it() {
        let all = || Fields {
            octets: true,
            durability: Some(Durability::Async),
            tag: Some(Version::new(7)),
            removal: Some(Version::new(u64::MAX)),
            others: Some(Box::new(
                [(HeaderName::from_static("x-request-id"), HeaderValue::from_static("a"))].into_iter().collect(),
            )),
            closes: true,
        };
        let mut written = Vec::new();
        all().write(&mut written);
        let mut given = Vec::new();
        for (name, value) in &all().into_map() {
            write_field(&mut given, name.as_str(), value.as_bytes());
        }
        assert_eq!(String::from_utf8(written), String::from_utf8(given));
    }
}
