//! Requests of `/v1` for one key, and what their tests share.

use super::{Answer, Client, Server, ServerBuilder, encode};

/// Runs `check` against a new server of each setup.
pub(crate) fn each(setups: &[&str], check: impl Fn(&Server, &mut Client)) {
    for setup in setups {
        println!("setup {setup}");
        let server = ServerBuilder::new(setup).start();
        let mut client = server.client();
        check(&server, &mut client);
    }
}

/// Returns the target with `key` in its path; every byte is percent-encoded.
pub(crate) fn by_path(key: &[u8]) -> String {
    format!("/v1/kv/{}", encode(key))
}

/// Returns the target with `key` in `key64`.
pub(crate) fn by_key64(key: &[u8]) -> String {
    format!("/v1/kv?key64={}", base64url(key))
}

/// Encodes as base64url without padding (RFC 4648, section 5).
pub(crate) fn base64url(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut text = String::new();
    for three in bytes.chunks(3) {
        let at = |index: usize| u32::from(three.get(index).copied().unwrap_or(0));
        let bits = at(0) << 16 | at(1) << 8 | at(2);
        for digit in 0..=three.len() {
            text.push(char::from(DIGITS[(bits >> (18 - 6 * digit)) as usize & 63]));
        }
    }
    text
}

/// Returns the problem document of an answer.
pub(crate) fn document(answer: &Answer) -> serde_json::Value {
    assert_eq!(answer.header("content-type"), Some("application/problem+json"), "{answer:?}");
    let document: serde_json::Value = serde_json::from_slice(&answer.body).expect("a document");
    assert_eq!(document["status"].as_u64(), Some(u64::from(answer.status)), "{document}");
    assert!(document["detail"].is_string() && document["title"].is_string(), "{document}");
    document
}

/// Returns status and code of an answer; the code is empty without a problem document.
pub(crate) fn verdict(answer: &Answer) -> (u16, String) {
    let code = if answer.status < 400 { String::new() } else { document(answer)["code"].as_str().unwrap().to_owned() };
    (answer.status, code)
}

/// Checks that `answer` is the error `code`, which a repetition of the same request cannot mend.
///
/// # Panics
/// It is another answer.
pub(crate) fn assert_rejected(answer: &Answer, status: u16, code: &str, request: &str) {
    assert_eq!(verdict(answer), (status, code.to_owned()), "{request}: {}", answer.text());
    assert_eq!(document(answer)["retryable"], false, "{request}");
}

/// Sends a HEAD request. Its answer has no body, whatever its `Content-Length`.
pub(crate) fn head(client: &mut Client, target: &str, headers: &[(&str, &str)]) -> Answer {
    client.send("HEAD", target, headers, None).unwrap();
    let (status, headers) = client.head().unwrap();
    Answer { status, headers, body: Vec::new(), chunks: None }
}
