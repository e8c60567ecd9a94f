//! Plain requests: HTTP/1.1 requests for one entity that are completely in the buffer, and whose head does not change
//! the framing of the request or of its answer. Other requests may follow in the buffer (a pipeline).
//!
//! Most requests are plain. Reading them here costs a third of what a general library needs. hyper gets every other
//! request, from its first byte on. This module never decides about malformed, unusual or incomplete requests.
//! `connection` calls it.

use std::mem::MaybeUninit;

use hyper::header::{HeaderName, HeaderValue};
use hyper::{HeaderMap, Method};

use crate::http::route::Head;
use crate::limits::{PLAIN_HEAD_BYTES_MAX, PLAIN_HEADERS_MAX};

/// A complete request.
#[derive(Debug)]
pub struct PlainRequest<'b> {
    method: Method,
    query: &'b str,
    /// The headers, without those that this module uses or ignores.
    headers: HeaderMap,
    /// The body of a PUT; otherwise empty.
    pub body: &'b [u8],
    /// The length of head and body. What follows belongs to the next request.
    pub bytes: usize,
}

impl PlainRequest<'_> {
    /// The request's head.
    #[must_use]
    pub fn head(&self) -> Head<'_> {
        Head { method: &self.method, path: PATH, query: self.query, headers: &self.headers }
    }

    /// Whether the request is a PUT or a DELETE.
    #[must_use]
    pub fn writes(&self) -> bool {
        self.method != Method::GET
    }
}

const PATH: &str = "/v0/entity";

/// Reads the first request of `bytes`. Returns `None` if the request is not plain, or if its head has more than
/// `head_bytes_max` bytes.
#[must_use]
pub fn read(bytes: &[u8], head_bytes_max: usize) -> Option<PlainRequest<'_>> {
    let method = match bytes {
        [b'G', b'E', b'T', b' ', ..] => Method::GET,
        [b'P', b'U', b'T', b' ', ..] => Method::PUT,
        [b'D', b'E', b'L', b'E', b'T', b'E', b' ', ..] => Method::DELETE,
        _ => return None,
    };
    let mut headers = [const { MaybeUninit::uninit() }; PLAIN_HEADERS_MAX];
    let mut request = httparse::Request::new(&mut []);
    let parsed = request.parse_with_uninit_headers(bytes, &mut headers);
    let Ok(httparse::Status::Complete(head_bytes)) = parsed else { return None };
    if request.version != Some(1) || head_bytes > head_bytes_max.min(PLAIN_HEAD_BYTES_MAX) {
        return None;
    }
    let query = request.path?.strip_prefix(PATH)?.strip_prefix('?')?;
    if !query.bytes().all(is_plain) {
        return None;
    }
    let (headers, length) = read_headers(request.headers)?;
    let length = length.unwrap_or(0);
    if length > 0 && method != Method::PUT {
        return None;
    }
    let body = bytes.get(head_bytes..head_bytes + length)?;
    Some(PlainRequest { method, query, headers, body, bytes: head_bytes + length })
}

/// Whether a byte of a query is allowed by RFC 3986, and means the same to every program.
fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=:@/?%".contains(&byte)
}

/// Returns the headers except those that this module uses or ignores, and the body's length. Returns `None` if a header
/// makes the request not plain.
fn read_headers(headers: &[httparse::Header<'_>]) -> Option<(HeaderMap, Option<usize>)> {
    let (mut others, mut length, mut hosts) = (HeaderMap::new(), None, 0);
    for header in headers {
        let is = |name: &str| header.name.eq_ignore_ascii_case(name);
        if is("host") {
            hosts += 1;
            continue;
        }
        if IGNORED.into_iter().any(is) {
            continue;
        }
        if is("content-length") {
            if length.is_some() {
                return None;
            }
            length = Some(read_length(header.value)?);
        } else if is("connection") {
            if !header.value.eq_ignore_ascii_case(b"keep-alive") {
                return None;
            }
        } else if FRAMING.into_iter().any(is) {
            return None;
        } else {
            let name = HeaderName::from_bytes(header.name.as_bytes()).ok()?;
            others.append(name, HeaderValue::from_bytes(header.value).ok()?);
        }
    }
    (hosts == 1).then_some((others, length))
}

/// Headers that most clients send, and that klad does not use for `/v0/entity`.
const IGNORED: [&str; 5] = ["user-agent", "accept", "content-type", "accept-encoding", "accept-language"];

/// Headers that change how a request is read, or what is sent before its answer.
const FRAMING: [&str; 5] = ["transfer-encoding", "expect", "upgrade", "trailer", "te"];

/// Parses at most nine digits, which is enough for any request in one read.
fn read_length(value: &[u8]) -> Option<usize> {
    let digits = (1..=9).contains(&value.len()) && value.iter().all(u8::is_ascii_digit);
    digits.then(|| value.iter().fold(0, |length, digit| length * 10 + usize::from(digit - b'0')))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Formats what is read from `bytes`: method, query, headers, body, and what follows.
    fn summary(bytes: &[u8]) -> Option<String> {
        let plain = read(bytes, PLAIN_HEAD_BYTES_MAX)?;
        let head = plain.head();
        let headers: Vec<_> = head.headers.iter().map(|(name, value)| format!("{name}={value:?}")).collect();
        let [body, rest] = [plain.body, &bytes[plain.bytes..]].map(String::from_utf8_lossy);
        let rest = if rest.is_empty() { String::new() } else { format!(" | {rest}") };
        Some(format!("{} {}?{} [{}] {body}{rest}", head.method, head.path, head.query, headers.join(" ")))
    }

    fn of(line: &str, headers: &str, body: &str) -> Option<String> {
        summary(format!("{line}\r\nHost: a\r\n{headers}\r\n{body}").as_bytes())
    }

    #[test]
    fn requests_of_common_clients_are_plain() {
        let get = "GET /v0/entity?id=a%20b HTTP/1.1";
        assert_eq!(of(get, "", "").as_deref(), Some("GET /v0/entity?id=a%20b [] "));
        assert_eq!(of(get, "Accept: */*\r\nUser-Agent: curl\r\nConnection: Keep-Alive\r\n", ""), of(get, "", ""));
        let put = "PUT /v0/entity?id=k HTTP/1.1";
        assert_eq!(of(put, "content-LENGTH: 5\r\n", "value").as_deref(), Some("PUT /v0/entity?id=k [] value"));
        assert_eq!(of(put, "", "").as_deref(), Some("PUT /v0/entity?id=k [] "));
        assert_eq!(of(put, "Content-Length: 4\r\n", "value").as_deref(), Some("PUT /v0/entity?id=k [] valu | e"));
        assert_eq!(of(put, "", "value").as_deref(), Some("PUT /v0/entity?id=k []  | value"));
        assert_eq!(of(get, "", get).as_deref(), Some(&*format!("GET /v0/entity?id=a%20b []  | {get}")));
        let delete = of("DELETE /v0/entity?id=k HTTP/1.1", "Klad-Durability:  async \r\nContent-Length: 0\r\n", "");
        assert_eq!(delete.as_deref(), Some("DELETE /v0/entity?id=k [klad-durability=\"async\"] "));
        let twice = of(get, "Authorization: a\r\nX-Own: 1\r\nAUTHORIZATION: b\r\n", "");
        assert_eq!(
            twice.as_deref(),
            Some("GET /v0/entity?id=a%20b [authorization=\"a\" authorization=\"b\" x-own=\"1\"] ")
        );
    }

    #[test]
    fn other_requests_are_not_plain() {
        for line in [
            "GET /v0/entity HTTP/1.1",
            "GET /v0/entities?start=a HTTP/1.1",
            "GET /v0/status HTTP/1.1",
            "HEAD /v0/entity?id=k HTTP/1.1",
            "POST /v0/entity?id=k HTTP/1.1",
            "get /v0/entity?id=k HTTP/1.1",
            "GET /v0/entity?id=k HTTP/1.0",
            "GET http://a/v0/entity?id=k HTTP/1.1",
            "GET  /v0/entity?id=k HTTP/1.1",
            "GET /v0/entity?id=k#part HTTP/1.1",
            "GET /v0/entity?id=\"k\" HTTP/1.1",
            "GET /v0/entity?id=\u{e9} HTTP/1.1",
            "\r\nGET /v0/entity?id=k HTTP/1.1",
        ] {
            assert_eq!(of(line, "", ""), None, "{line}");
        }
        for headers in [
            "Content-Length: 6\r\n",
            "Content-Length: 5\r\nContent-Length: 5\r\n",
            "Content-Length: 5, 5\r\n",
            "Content-Length: +5\r\n",
            "Content-Length: 0x5\r\n",
            "Content-Length: \r\n",
            "Content-Length: 0000000005\r\n",
            "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
            "Content-Length: 5\r\nExpect: 100-continue\r\n",
            "Content-Length: 5\r\nConnection: close\r\n",
            "Content-Length: 5\r\nConnection: keep-alive, upgrade\r\n",
            "Content-Length: 5\r\nUpgrade: h2c\r\n",
            "Content-Length: 5\r\nTE: trailers\r\n",
            "Content-Length : 5\r\n",
            "Content-Length: 5\r\n folded: x\r\n",
        ] {
            assert_eq!(of("PUT /v0/entity?id=k HTTP/1.1", headers, "value"), None, "{headers}");
            assert_eq!(of("GET /v0/entity?id=k HTTP/1.1", headers, "value"), None, "{headers}");
        }
        let many = |count| "X: y\r\n".repeat(count);
        let get = "GET /v0/entity?id=k HTTP/1.1";
        assert!(of(get, &many(PLAIN_HEADERS_MAX - 1), "").is_some());
        assert_eq!(of(get, &many(PLAIN_HEADERS_MAX), ""), None);
        let long = |bytes| format!("X: {}\r\n", "y".repeat(bytes));
        assert!(of(get, &long(PLAIN_HEAD_BYTES_MAX - 100), "").is_some());
        assert_eq!(of(get, &long(PLAIN_HEAD_BYTES_MAX), ""), None);
        assert_eq!(of(get, "Host: b\r\n", ""), None, "two hosts");
        assert_eq!(summary(format!("{get}\r\n\r\n").as_bytes()), None, "none");
        let head = format!("{get}\r\nHost: a\r\n\r\n");
        assert!(read(head.as_bytes(), head.len()).is_some());
        assert!(read(head.as_bytes(), head.len() - 1).is_none(), "longer than --head-max");
    }

    proptest! {
        /// A part of a request is never plain. What follows a request does not change it.
        #[test]
        fn only_a_whole_request_is_plain(value in proptest::collection::vec(any::<u8>(), 0..40), cut in 1_usize..50) {
            let head = "PUT /v0/entity?id=k HTTP/1.1\r\nHost: a\r\nContent-Length:";
            let mut request = format!("{head} {}\r\n\r\n", value.len()).into_bytes();
            request.extend_from_slice(&value);
            prop_assert_eq!(read(&request, 4_096).map(|plain| plain.body), Some(&value[..]));
            prop_assert!(read(&request[..request.len() - cut], 4_096).is_none());
            let whole = request.len();
            request.resize(whole + cut, b'\n');
            let plain = read(&request, 4_096);
            prop_assert_eq!(plain.map(|plain| (plain.body, plain.bytes)), Some((&value[..], whole)));
        }
    }
}
