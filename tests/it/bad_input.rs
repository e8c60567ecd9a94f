//! Bad input from clients: each gets one clear line for people and a code for programs, and changes nothing.

use super::support::{Client, ENGINES, Server, ServerBuilder, wait_until};

const KEPT: &str = "/v0/entity?id=kept";

/// Returns requests, each with the status and code of its answer.
fn cases() -> Vec<(Vec<u8>, u16, &'static str)> {
    let put = |headers: &str, body: &str| {
        format!("PUT /v0/entity?id=kept HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n\r\n{body}").into_bytes()
    };
    let get = |target: &str| format!("GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n").into_bytes();
    vec![
        // Malformed heads.
        (b"GARBAGE\r\n\r\n".to_vec(), 400, "malformed-head"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n".to_vec(), 400, "malformed-head"),
        (b"GET /v0/status HTTP/9.9\r\n\r\n".to_vec(), 400, "malformed-head"),
        (b"GET /v0/status HTTP/1.1\r\nna me: value\r\n\r\n".to_vec(), 400, "malformed-head"),
        (b"GET /v0/status HTTP/1.1\r\nname: val\0ue\r\n\r\n".to_vec(), 400, "malformed-head"),
        ([b"GET /v0/status HTTP/1.1\r\nname: ", "x".repeat(70_000).as_bytes()].concat(), 431, "head-too-large"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec(), 400, "malformed-head"),
        (b"GET /v0/status HTTP/1.1\r\n\r\n".to_vec(), 400, "bad-host"),
        (b"PUT /v0/entity?id=kept HTTP/1.1\r\nContent-Length: 3\r\n\r\nnew".to_vec(), 400, "bad-host"),
        (put("Host: other\r\nContent-Length: 3", "new"), 400, "bad-host"),
        // Bytes that no target may contain (RFC 3986): they must be escaped.
        (get("/v0/entity?id=a\"b"), 400, "malformed-head"),
        (get("/v0/entity?id=a<b"), 400, "malformed-head"),
        (get("/v0/entity?id=a>b"), 400, "malformed-head"),
        (b"GET /v0/entity?id=\xff HTTP/1.1\r\nHost: a\r\n\r\n".to_vec(), 400, "malformed-head"),
        // Bad escapes.
        (get("/v0/entity?id=%"), 400, "bad-escape"),
        (get("/v0/entity?id=%4"), 400, "bad-escape"),
        (get("/v0/entities?start=a&end=%zz"), 400, "bad-escape"),
        // Lengths that contradict each other, or that are invalid.
        (put("Content-Length: 3\r\nContent-Length: 4", "new"), 400, "malformed-head"),
        (put("Content-Length: 3, 4", "new"), 400, "malformed-head"),
        (put("Content-Length: -3", "new"), 400, "malformed-head"),
        (put("Content-Length: three", "new"), 400, "malformed-head"),
        (put("Content-Length: 99999999999999999999999", "new"), 400, "malformed-head"),
        (put("Transfer-Encoding: gzip", "new"), 400, "malformed-head"),
        (put("Transfer-Encoding: gzip, chunked", "3\r\nnew\r\n0\r\n\r\n"), 400, "bad-transfer-encoding"),
        (put("Transfer-Encoding: foo, chunked", "3\r\nnew\r\n0\r\n\r\n"), 400, "bad-transfer-encoding"),
        (put("Transfer-Encoding: chunked, chunked", "3\r\nnew\r\n0\r\n\r\n"), 400, "bad-transfer-encoding"),
        (put("Transfer-Encoding: identity, chunked", "3\r\nnew\r\n0\r\n\r\n"), 400, "bad-transfer-encoding"),
        (put("Transfer-Encoding: chunked", "zz\r\nnew\r\n0\r\n\r\n"), 400, "body-broken"),
        (put("Transfer-Encoding: chunked", "3\r\nnewer\r\n0\r\n\r\n"), 400, "body-broken"),
        (put("Transfer-Encoding: chunked", "ffffffffffffffff0\r\nnew\r\n0\r\n\r\n"), 400, "body-broken"),
        // Requests that cannot be fulfilled.
        (put("Klad-Durability: forever\r\nContent-Length: 3", "new"), 400, "bad-durability"),
        (put("Klad-Timeout: soon\r\nContent-Length: 3", "new"), 400, "bad-timeout"),
        (put("Content-Length: 99999999999", "new"), 413, "value-too-large"),
    ]
}

fn code_of(document: &str) -> String {
    let document: serde_json::Value = serde_json::from_str(document).unwrap_or_default();
    document["code"].as_str().unwrap_or_default().to_owned()
}

/// Sends each case to `server` and returns what was wrong.
fn complaints(server: &Server) -> Vec<String> {
    let mut complaints = Vec::new();
    let kept = server.client().put(KEPT, b"old").version();
    for (sent, status, code) in cases() {
        let shown = String::from_utf8_lossy(&sent[..sent.len().min(120)]).into_owned();
        let mut client = server.client();
        client.send_raw(&sent);
        match client.answer() {
            Ok(answer) => {
                let text = answer.text();
                let found = (answer.status, code_of(&text));
                if found != (status, code.to_owned()) {
                    complaints.push(format!("{shown:?}: {found:?} instead of {status} {code}"));
                }
                if text.trim_end().lines().count() != 1 {
                    complaints.push(format!("{shown:?}: not one line: {text:?}"));
                }
            }
            Err(error) => complaints.push(format!("{shown:?}: no answer: {error}")),
        }
        let answer = server.client().get(KEPT);
        if (answer.body.as_slice(), answer.version()) != (b"old", kept) {
            complaints.push(format!("{shown:?}: the value has changed"));
        }
    }
    complaints
}

#[test]
fn bad_input_gets_a_clear_error_and_changes_nothing() {
    for setup in ENGINES {
        let server = ServerBuilder::new(setup).start();
        assert_eq!(complaints(&server), Vec::<String>::new(), "{setup}");
    }
}

#[test]
fn an_answer_before_a_bad_head_arrives_completely() {
    let server = ServerBuilder::new("memory").start();
    let mut client = server.client();
    client.put(KEPT, b"old");
    client.send_raw(format!("GET {KEPT} HTTP/1.1\r\nHost: localhost\r\n\r\nGARBAGE\r\n\r\n"));
    assert_eq!(client.answer().unwrap().body, b"old");
    assert_eq!(client.answer().unwrap().status, 400);
    assert!(client.is_closed_silently());
}

/// The rest of a body never arrives: nothing is stored, and the permit for it is free again.
#[test]
fn clients_that_disappear_during_a_body_leave_nothing_behind() {
    for setup in ENGINES {
        let server = ServerBuilder::new(setup).arg("--memory", "64MiB").arg("--value-max", "4MiB").start();
        let kept = server.client().put(KEPT, b"old").version();
        for framing in ["Content-Length: 4000000", "Transfer-Encoding: chunked"] {
            // More than the memory budget allows at the same time.
            for _ in 0..20 {
                let mut client = server.client();
                client.send_raw(format!("PUT {KEPT} HTTP/1.1\r\nHost: localhost\r\n{framing}\r\n\r\n5\r\nnewer\r\n"));
                vanish(&client);
            }
        }
        wait_until("all permits are free again", || {
            server.client().put("/v0/entity?id=large", &vec![1; 4_000_000]).status == 201
        });
        let answer = server.client().get(KEPT);
        assert_eq!((answer.body.as_slice(), answer.version()), (b"old".as_slice(), kept), "{setup}");
    }
}

/// Closes with a reset, like a process that is killed with unread bytes.
fn vanish(client: &Client) {
    let socket = socket2::SockRef::from(&client.stream);
    socket.set_linger(Some(std::time::Duration::ZERO)).unwrap();
}
