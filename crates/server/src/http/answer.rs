//! An answer before it is bytes: status, what its head says, body. The few headers that klad's answers have stand here as what they
//! mean, so that nothing is gathered in a map only to be written out of it.
//!
//! Made by `service`; `server` gives it to hyper or writes it.

use hyper::header::{CONNECTION, CONTENT_TYPE, ETAG, HeaderName, HeaderValue};
use hyper::{HeaderMap, Response, StatusCode};

use crate::http::body::ResponseBody;
use crate::http::route::DURABILITY_HEADER;
use klad_storage::operation::{Durability, Version};

/// The version of a removal, which leaves nothing that could have an `ETag`.
pub const VERSION_HEADER: &str = "klad-version";

/// A `Date`, as long as every one is (RFC 9110, 5.6.7).
pub type Date = [u8; 29];

/// An answer to one request.
pub struct Answer {
    /// Its status.
    pub status: StatusCode,
    /// What its head says.
    pub fields: Fields,
    /// What it carries; tells the connection when that was handed over.
    pub body: ResponseBody,
}

/// What the head of an answer says, in the order in which it is written.
#[derive(Debug, Default)]
pub struct Fields {
    /// It carries a value or entries, whose type klad does not know.
    pub octets: bool,
    /// Of a write.
    pub durability: Option<Durability>,
    /// Of what is there now.
    pub tag: Option<Version>,
    /// Of a removal.
    pub removal: Option<Version>,
    /// What few answers have.
    pub others: Option<Box<HeaderMap>>,
    /// The connection ends after it.
    pub closes: bool,
}

const OCTETS: &str = "application/octet-stream";

impl Answer {
    /// As hyper takes it.
    #[must_use]
    pub fn into_response(self) -> Response<ResponseBody> {
        let Answer { status, fields, body } = self;
        let mut response = Response::new(body);
        *response.status_mut() = status;
        *response.headers_mut() = fields.into_map();
        response
    }

    /// Appends its head, for a body of `length` bytes, as hyper writes it.
    pub fn write_head(&self, length: usize, date: &Date, out: &mut Vec<u8>) {
        match self.status {
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
        self.fields.write(out);
        out.extend_from_slice(b"content-length: ");
        out.extend_from_slice(Digits::of(length as u64).as_bytes());
        out.extend_from_slice(b"\r\ndate: ");
        out.extend_from_slice(date);
        out.extend_from_slice(b"\r\n\r\n");
    }
}

impl Fields {
    fn write(&self, out: &mut Vec<u8>) {
        if self.octets {
            write_field(out, CONTENT_TYPE.as_str(), OCTETS.as_bytes());
        }
        if let Some(durability) = self.durability {
            write_field(out, DURABILITY_HEADER, durability.as_str().as_bytes());
        }
        if let Some(version) = self.tag {
            write_field(out, ETAG.as_str(), Digits::quoted(version.get()).as_bytes());
        }
        if let Some(version) = self.removal {
            write_field(out, VERSION_HEADER, Digits::of(version.get()).as_bytes());
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
        let value = |bytes: &[u8]| HeaderValue::from_bytes(bytes).expect("digits and quotes are a header value");
        if octets {
            map.insert(CONTENT_TYPE, HeaderValue::from_static(OCTETS));
        }
        if let Some(durability) = durability {
            map.insert(HeaderName::from_static(DURABILITY_HEADER), HeaderValue::from_static(durability.as_str()));
        }
        if let Some(version) = tag {
            map.insert(ETAG, value(Digits::quoted(version.get()).as_bytes()));
        }
        if let Some(version) = removal {
            map.insert(HeaderName::from_static(VERSION_HEADER), value(Digits::of(version.get()).as_bytes()));
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

fn write_field(out: &mut Vec<u8>, name: &str, value: &[u8]) {
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

/// A number as text. Without `format!`, whose buffer grows digit by digit: it was a thirtieth of a GET from memory.
struct Digits {
    /// Ends with the last digit, and the quote behind it.
    text: [u8; 22],
    first: usize,
    end: usize,
}

impl Digits {
    fn of(number: u64) -> Digits {
        let mut text = [b'"'; 22];
        let (mut first, mut left) = (text.len() - 1, number);
        loop {
            first -= 1;
            text[first] = b'0' + u8::try_from(left % 10).expect("a digit");
            left /= 10;
            if left == 0 {
                break;
            }
        }
        Digits { text, first, end: text.len() - 1 }
    }

    /// Between quotes.
    fn quoted(number: u64) -> Digits {
        let Digits { text, first, end } = Digits::of(number);
        Digits { text, first: first - 1, end: end + 1 }
    }

    fn as_bytes(&self) -> &[u8] {
        &self.text[self.first..self.end]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_in_digits_and_tags_in_quotes() {
        for number in [0, 7, 10, 65_536, 1_700_000_000_000_000, u64::MAX] {
            assert_eq!(Digits::of(number).as_bytes(), number.to_string().as_bytes());
            assert_eq!(Digits::quoted(number).as_bytes(), format!("\"{number}\"").as_bytes());
        }
    }

    #[test]
    fn what_is_written_is_what_hyper_is_given() {
        let all = || Fields {
            octets: true,
            durability: Some(Durability::Async),
            tag: Some(Version::new(7)),
            removal: Some(Version::new(8)),
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
