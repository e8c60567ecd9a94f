//! The fast path answers like hyper, byte for byte: a klad with it and one with `--fast-path off` get the same bytes.

use std::cell::Cell;
use std::io::{Read as _, Write as _};
use std::net::Shutdown;
use std::thread::sleep;
use std::time::Duration;

use super::support::metrics::Metrics;
use super::support::{Server, ServerBuilder, random};

/// Returns everything up to the end of the connection, without the parts that vary. `cut`: send this number of bytes
/// first, and the rest a moment later.
pub(crate) fn reply(server: &Server, request: &[u8], cut: Option<usize>) -> String {
    let mut stream = server.client().stream;
    let request = cut.map_or(request, |cut| {
        let (begin, rest) = request.split_at(cut);
        let _ = stream.write_all(begin);
        sleep(Duration::from_millis(1));
        rest
    });
    // A server that rejects a head may close before all of it is sent.
    let _ = stream.write_all(request);
    let _ = stream.shutdown(Shutdown::Write);
    let mut reply = Vec::new();
    let end = stream.read_to_end(&mut reply).map_or_else(|error| format!("{:?}", error.kind()), |_| "end".to_owned());
    let lines = String::from_utf8_lossy(&reply).into_owned();
    let varies = |line: &&str| ["date: ", "etag: ", "klad-version: "].into_iter().any(|name| line.starts_with(name));
    let lines =
        lines.split('\n').map(|line| if varies(&line) { line.split_once(' ').expect("a name").0 } else { line });
    lines.chain([end.as_str()]).collect::<Vec<_>>().join("\n")
}

pub(crate) fn plain(server: &Server) -> u64 {
    Metrics::scrape(server).count("klad_worker_plain_requests_total", &[])
}

/// Returns one of `all`; the first one is as likely as all others together.
fn one<'a>(random: &mut fastrand::Rng, all: &[&'a str]) -> &'a str {
    if random.bool() { all[0] } else { all[random.usize(..all.len())] }
}

/// Returns a request that clients could send, or an almost valid one.
pub(crate) fn request(random: &mut fastrand::Rng) -> Vec<u8> {
    let method = one(random, &["GET", "PUT", "DELETE", "PUT", "HEAD", "POST", "get"]);
    let id =
        one(random, &["kept", "new", "", "a%20b", "%zz", "a+b", "%6bept", "k\u{e9}", "\"k\"", "k#part", "k&id=kept"]);
    let replicas = one(random, &["", "", "&ack=1&from=1", "&ack=2", "&replicas=2/3", "&%61ck=0", "&ack=%zz"]);
    let durability = one(random, &["", "", "&durability=async", "&durability=sync", "&durability=never", "&"]);
    let path =
        one(random, &["/v0/entity?id=", "/v0/entity", "/v0/entity?", "http://a/v0/entity?id=", "/v0/entities?start="]);
    let version = one(random, &["HTTP/1.1", "HTTP/1.1", "HTTP/1.0", "HTTP/1.2", "http/1.1"]);
    let end = one(random, &["\r\n", "\r\n", "\n"]);
    let mut head = format!("{method} {path}{id}{replicas}{durability} {version}{end}");
    // One Host header in most cases.
    for _ in 0..[1, 1, 1, 1, 1, 1, 0, 2][random.usize(..8)] {
        head += &format!("{}: localhost{end}", one(random, &["Host", "host", "HOST"]));
    }
    for _ in 0..random.usize(..4) {
        let others = [
            ("Accept", "*/*"),
            ("User-Agent", "curl/8"),
            ("Connection", "keep-alive"),
            ("Connection", "close"),
            ("Klad-Durability", "async"),
            ("Klad-Durability", "never"),
            ("Klad-Consistency", "all"),
            ("Klad-Consistency", "most"),
            ("Klad-Timeout", "soon"),
            ("Klad-Timeout", "10s"),
            ("X-Request-Id", "a-b_c"),
            ("X-Request-Id", "no good"),
            ("Traceparent", "00-0-0-0"),
            ("Expect", "100-continue"),
            ("Upgrade", "h2c"),
            ("TE", "trailers"),
            ("Authorization", "Bearer x"),
            ("X-Own", "\u{e4} x"),
            ("Bad Name", "x"),
            ("Bad-Value", "\u{1}"),
        ];
        let (name, value) = others[random.usize(..others.len())];
        let mut another = random.fork();
        let name = one(&mut another, &[name, &name.to_lowercase(), &name.to_uppercase()]).to_owned();
        head += &format!("{name}:{}{value}{end}", one(&mut another, &[" ", "", "\t  "]));
    }
    let body = "x".repeat(random.usize(..300));
    if method == "PUT" || random.u8(..8) == 0 {
        let length = body.len();
        let lengths =
            [length.to_string(), (length + 1).to_string(), format!("{length}, {length}"), format!("+{length}")];
        let lengths = [&lengths[0][..], &lengths[0], &lengths[0], &lengths[1], &lengths[2], &lengths[3], "0", "-1"];
        head += &format!("Content-Length: {}{end}", one(random, &lengths));
        if random.u8(..8) == 0 {
            head += &format!(
                "{}: {}{end}",
                one(random, &["Content-Length", "Transfer-Encoding"]),
                one(random, &["chunked", "0"])
            );
        }
        head +=
            &format!("{end}{body}{}", one(random, &["", "", "", "\r\n", "GET /v0/status HTTP/1.1\r\nHost: h\r\n\r\n"]));
    } else {
        head += end;
    }
    head.into_bytes()
}

/// Returns one request in most cases, otherwise several that are sent together.
fn requests(random: &mut fastrand::Rng) -> Vec<u8> {
    let count = if random.u8(..4) == 0 { random.usize(2..4) } else { 1 };
    (0..count).flat_map(|_| request(random)).collect()
}

/// Sends what `requests` returns to both servers, `count` times. Returns the number of requests that took the fast
/// path, and those with different answers. `spoil` changes what hyper gets, `heard` what both answer.
pub(crate) fn differences(
    setup: &str,
    count: usize,
    requests: impl Fn(&mut fastrand::Rng) -> Vec<u8>,
    spoil: impl Fn(Vec<u8>) -> Vec<u8>,
    heard: impl Fn(String) -> String,
) -> (u64, Vec<String>) {
    let [with, without] = ["on", "off"].map(|switch| ServerBuilder::new(setup).arg("--fast-path", switch).start());
    let mut random = random();
    let (mut differences, rounds) = (Vec::new(), Cell::new(0));
    let before = plain(&with);
    for _ in 0..count {
        let request = requests(&mut random);
        let cut = (random.u8(..8) == 0).then(|| random.usize(1..request.len()));
        let ask = || {
            [(&with, request.clone()), (&without, spoil(request.clone()))].map(|(server, request)| {
                // Written on another connection with plain requests.
                assert_eq!(server.client().put("/v0/entity?id=kept", b"old").status, 201);
                rounds.set(rounds.get() + 1);
                heard(reply(server, &request, cut.map(|cut| cut.min(request.len()))))
            })
        };
        // Whether hyper still answers bytes behind the last request depends on when the client's end arrives.
        let [fast, by_hyper] = (0..5).map(|_| ask()).find(|[fast, by_hyper]| fast == by_hyper).unwrap_or_else(ask);
        if fast != by_hyper {
            let request = String::from_utf8_lossy(&request).into_owned();
            differences.push(format!("{request:?}\n  fast: {fast:?}\n  by hyper: {by_hyper:?}"));
        }
    }
    assert_eq!(plain(&without), 0, "--fast-path off: hyper reads everything");
    (plain(&with) - before - rounds.get() / 2, differences)
}

#[test]
fn requests_get_the_same_answers_with_and_without_hyper() {
    let (plain, differences) = differences("memory", 400, requests, |request| request, |reply| reply);
    assert!(differences.is_empty(), "{}", differences.join("\n"));
    assert!(plain > 10, "{plain} of 400 were plain: too few to say anything");
}

#[test]
fn twin_an_ignored_header_is_noticed() {
    let (_, differences) = differences(
        "memory",
        300,
        requests,
        |request| {
            let mut text = String::from_utf8_lossy(&request).into_owned();
            for name in ["Klad-", "klad-", "KLAD-", "X-Request-", "x-request-", "X-REQUEST-"] {
                text = text.replace(name, "Other-");
            }
            text.into_bytes()
        },
        |reply| reply,
    );
    assert!(!differences.is_empty());
}

/// A connection returns from hyper to the fast path, and no bytes that arrived together are lost.
#[test]
fn a_connection_switches_between_fast_path_and_hyper_without_losing_a_request() {
    let server = ServerBuilder::new("memory").start();
    let mut client = server.client();
    let put = |value: &str| {
        format!("PUT /v0/entity?id=k HTTP/1.1\r\nHost: h\r\nContent-Length: {}\r\n\r\n{value}", value.len())
    };
    let get = "GET /v0/entity?id=k HTTP/1.1\r\nHost: h\r\n\r\n";
    for round in 0..100 {
        let value = format!("value {round}");
        // Alone or together: plain. In pieces: hyper.
        client.send_raw(put(&value));
        assert_eq!(client.answer().expect("an answer").status, 201);
        client.send_raw([put(&value), get.to_owned()].concat());
        assert_eq!(client.answer().expect("an answer").status, 201);
        assert_eq!(client.answer().expect("an answer").text(), value);
        let (first, second) = get.split_at(1 + round % (get.len() - 1));
        client.send_raw(first);
        sleep(Duration::from_millis(1));
        client.send_raw(second);
        assert_eq!(client.answer().expect("an answer").text(), value);
        assert_eq!(client.get("/v0/status").status, 200);
    }
    let plain = plain(&server);
    // After hyper returns a connection, the next request may be plain. Of 400 requests that only hyper serves, this
    // holds at least for every sixteenth.
    assert!((5..400).contains(&plain), "{plain} of 500 were read by the worker itself");
}

/// Values of any size arrive completely, however slowly the client reads.
#[test]
fn large_values_arrive_completely_at_a_slow_client() {
    let server = ServerBuilder::new("memory").start();
    for bytes in [1, 16 << 10, 64 << 10, (64 << 10) + 1, 3_000_000] {
        let value: Vec<u8> = (0_u8..251).cycle().take(bytes).collect();
        let mut client = server.client();
        assert_eq!(client.put("/v0/entity?id=k", &value).status, 201);
        for _ in 0..3 {
            client.send("GET", "/v0/entity?id=k", &[], None).expect("the server reads");
            sleep(Duration::from_millis(20));
            assert_eq!(client.answer().expect("an answer").body, value, "{bytes} bytes");
        }
    }
}

/// Bytes after an answer with Connection: close are not a request, in both implementations.
#[test]
fn the_body_of_a_refused_request_is_never_taken_for_requests() {
    let server = ServerBuilder::new("memory").arg("--value-max", "1KiB").start();
    let hidden = "DELETE /v0/entity?id=kept HTTP/1.1\r\nHost: h\r\n\r\n";
    let body = hidden.repeat(4_000);
    for before in [0, 1, 14, 15, 16, 17, 40] {
        server.client().put("/v0/entity?id=kept", b"kept");
        let mut client = server.client();
        for _ in 0..before {
            assert_eq!(client.get("/v0/status").status, 200);
        }
        let length = body.len();
        client.send_raw(format!("PUT /v0/entity?id=large HTTP/1.1\r\nHost: h\r\nContent-Length: {length}\r\n\r\n"));
        assert_eq!(client.answer().expect("an answer").status, 413, "{before} requests before");
        let _ = client.try_send_raw(body.as_bytes());
        assert!(client.is_closed_silently(), "{before} requests before");
        assert_eq!(server.client().get("/v0/entity?id=kept").text(), "kept", "{before} requests before");
    }
}

/// Both implementations count the bytes of requests and answers alike, also of rejected ones.
#[test]
fn bytes_are_counted_the_same_with_and_without_hyper() {
    let server = ServerBuilder::new("memory").start();
    let counts = |requests: &dyn Fn(&mut super::support::Client)| {
        let all = |metrics: &Metrics| {
            ["klad_http_request_body_bytes_total", "klad_http_response_body_bytes_total"]
                .map(|name| metrics.count(name, &[]))
        };
        let before = all(&Metrics::scrape(&server));
        requests(&mut server.client());
        let after = all(&Metrics::scrape(&server));
        [after[0] - before[0], after[1] - before[1]]
    };
    let carry = |client: &mut super::support::Client| {
        assert_eq!(client.put("/v0/entity?id=k", &[b'v'; 1_000]).status, 201);
        assert_eq!(client.put("/v0/entity?id=k&durability=never", &[b'v'; 500]).status, 400);
        assert_eq!(client.get("/v0/entity?id=k").body.len(), 1_000);
        assert_eq!(client.get("/v0/entity?id=none").status, 404);
    };
    let alone = plain(&server);
    let without = counts(&carry);
    assert_eq!(plain(&server) - alone, 4);
    let with = counts(&|client| {
        assert_eq!(client.get("/v0/status").status, 200);
        carry(client);
    });
    assert_eq!(plain(&server) - alone, 4);
    assert_eq!(without, with);
    assert_eq!(without[0], 1_500);
}
