//! Tokens: what each allows on both listeners, and that a request without one learns nothing.

use std::collections::BTreeSet;

use rustix::process::Signal;

use super::support::bencher::Bencher;
use super::support::token_file::{READER, TokenFile, WRITER, both};
use super::support::{Answer, Client, Server, ServerBuilder, encode, wait_until};

type Found = Result<(), String>;

fn with(client: &mut Client, method: &str, target: &str, token: &str, body: Option<&[u8]>) -> Answer {
    client.request(method, target, &[("Authorization", &format!("Bearer {token}"))], body)
}

fn code(answer: &Answer) -> String {
    let document: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
    assert_eq!(document["status"].as_u64(), Some(u64::from(answer.status)));
    document["code"].as_str().unwrap().to_owned()
}

const METHODS: [&str; 7] = ["GET", "PUT", "DELETE", "POST", "HEAD", "PATCH", "OPTIONS"];

/// Every path of the data listener, with the status of each of [`METHODS`] for a read-only and for a read-write token.
const DATA: [(&str, [u16; 7], [u16; 7]); 4] = [
    ("/v0/entity?id=k", [200, 403, 403, 405, 405, 405, 405], [200, 201, 202, 405, 405, 405, 405]),
    ("/v0/entities?start=k", [200, 405, 405, 405, 405, 405, 405], [200, 405, 405, 405, 405, 405, 405]),
    ("/v0/status", [200, 405, 405, 405, 405, 405, 405], [200, 405, 405, 405, 405, 405, 405]),
    ("/nothing", [400, 400, 400, 400, 400, 400, 400], [400, 400, 400, 400, 400, 400, 400]),
];

/// Every path of the admin listener with its methods, and who may use each: everyone, readers, or writers.
const ADMIN: [(&str, &str, For); 28] = [
    ("/livez", "GET", For::Everybody),
    ("/healthz", "GET", For::Everybody),
    ("/readyz", "GET", For::Everybody),
    ("/", "GET", For::Readers),
    ("/metrics", "GET", For::Readers),
    ("/console", "GET", For::Everybody),
    ("/console/", "GET", For::Everybody),
    ("/console/session", "GET", For::Readers),
    ("/console/events", "GET", For::Readers),
    ("/console/data/v1/kv/k", "GET", For::Readers),
    ("/console/data/v1/kv/k", "PUT", For::Writers),
    ("/debug/memory", "GET", For::Readers),
    ("/debug/slow", "GET", For::Readers),
    ("/debug/pprof/", "GET", For::Readers),
    ("/config", "GET", For::Readers),
    ("/config", "PATCH", For::Writers),
    ("/drain", "GET", For::Readers),
    ("/drain", "POST", For::Writers),
    ("/drain", "DELETE", For::Writers),
    ("/reload", "POST", For::Writers),
    ("/checkpoints", "GET", For::Readers),
    ("/checkpoint?name=a", "POST", For::Writers),
    ("/checkpoint?name=a", "DELETE", For::Writers),
    ("/compact", "GET", For::Readers),
    ("/compact", "POST", For::Writers),
    ("/compact", "DELETE", For::Writers),
    ("/nothing", "GET", For::Readers),
    ("/nothing", "POST", For::Writers),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum For {
    Everybody,
    Readers,
    Writers,
}

/// Returns every quoted string of `source` that begins with `/`, up to its first quotation mark.
pub(crate) fn quoted_paths(source: &str) -> BTreeSet<String> {
    let code = source.split("#[cfg(test)]").next().unwrap();
    let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
    let words = lines.flat_map(|line| line.split('"').skip(1).step_by(2));
    words.filter(|word| word.starts_with('/')).map(str::to_owned).collect()
}

#[test]
fn every_path_is_in_these_tables() {
    let data: BTreeSet<String> = DATA.iter().map(|(target, ..)| target.split('?').next().unwrap().to_owned()).collect();
    let mut routed = quoted_paths(include_str!("../../crates/server/src/http/route.rs"));
    routed.insert("/nothing".to_owned());
    assert_eq!(routed, data, "a path is missing in DATA");
    let admin: BTreeSet<String> = ADMIN.iter().map(|(path, ..)| path.split('?').next().unwrap().to_owned()).collect();
    let mut routed = quoted_paths(include_str!("../../crates/server/src/admin/mod.rs"));
    routed.extend(quoted_paths(include_str!("../../crates/server/src/admin/maintenance.rs")));
    routed.extend(quoted_paths(include_str!("../../crates/server/src/admin/console/mod.rs")));
    // Each path of the data listener, where the data plane decides.
    routed.insert("/console/data/v1/kv/k".to_owned());
    routed.insert("/nothing".to_owned());
    assert_eq!(routed, admin, "a path of the admin listener is missing in ADMIN");
}

#[test]
fn twin_a_path_that_is_not_in_the_tables_is_noticed() {
    let source = "match path {\n  // \"/old\"\n  \"/livez\" => a,\n  (\"/checkpoint\", &Method::POST) => b,\n}";
    assert_eq!(quoted_paths(source).into_iter().collect::<Vec<_>>(), ["/checkpoint", "/livez"]);
}

/// Compares the statuses of requests with `token` on the data listener with a column of the table.
fn data_statuses(server: &Server, token: &str, expected: impl Fn(usize, usize) -> u16) -> Found {
    for (row, (target, ..)) in DATA.iter().enumerate() {
        for (column, method) in METHODS.iter().enumerate() {
            // A value to read, and one to remove.
            assert_eq!(with(&mut server.client(), "PUT", "/v0/entity?id=k", WRITER, Some(b"v")).status, 201);
            let mut client = server.client();
            let headers = [("Authorization", format!("Bearer {token}"))];
            let headers: Vec<_> = headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
            let body = (*method == "PUT").then_some(&b"new"[..]);
            client.send(method, target, &headers, body).unwrap();
            let (status, _) = client.head().unwrap();
            if status != expected(row, column) {
                return Err(format!("{method} {target}: {status}, not {}", expected(row, column)));
            }
            if !(200..300).contains(&status) {
                assert_eq!(with(&mut server.client(), "GET", "/v0/entity?id=k", WRITER, None).body, b"v");
            }
        }
    }
    Ok(())
}

#[test]
fn each_token_has_its_rights_on_every_path_with_every_method() {
    for setup in super::support::ENGINES {
        let file = both();
        let server = file.builder(setup).start();
        data_statuses(&server, READER, |row, column| DATA[row].1[column]).unwrap();
        data_statuses(&server, WRITER, |row, column| DATA[row].2[column]).unwrap();
        data_statuses(&server, "unknown-0123456789", |_, _| 401).unwrap();
    }
}

#[test]
fn twin_a_reader_that_may_write_is_noticed() {
    let file = TokenFile::new(&format!("read-write {WRITER}\nread-write {READER}\n"));
    let server = file.builder("memory").start();
    let found = data_statuses(&server, READER, |row, column| DATA[row].1[column]).expect_err("the token may write");
    assert_eq!(found, "PUT /v0/entity?id=k: 201, not 403");
}

#[test]
fn on_the_admin_listener_only_health_needs_no_token() {
    let file = both();
    let server = file.builder("memory").start();
    let ask = |method: &str, path: &str, token: Option<&str>| {
        let mut client = Client::connect(server.admin);
        let value = format!("Bearer {}", token.unwrap_or_default());
        let headers: &[(&str, &str)] = if token.is_some() { &[("Authorization", &value)] } else { &[] };
        client.send(method, path, headers, None).unwrap();
        client.head().unwrap().0
    };
    for (path, method, whom) in ADMIN {
        let may = |status| !matches!(status, 401 | 403);
        assert_eq!(may(ask(method, path, None)), whom == For::Everybody, "{method} {path} without a token");
        assert_eq!(may(ask(method, path, Some(READER))), whom != For::Writers, "{method} {path} for a reader");
        assert!(may(ask(method, path, Some(WRITER))), "{method} {path} for a writer");
    }
    // Also for paths that do not exist: clients without a token must not learn which exist.
    for path in ["/nothing", "/", "/livez/", "/livez/x", "//livez", "/metrics"] {
        for method in ["GET", "POST", "PUT", "DELETE", "HEAD"] {
            assert_eq!(ask(method, path, None), 401, "{method} {path}");
            assert_eq!(ask(method, path, Some("unknown-0123456789")), 401, "{method} {path}");
            let asks = matches!(method, "GET" | "HEAD");
            assert_eq!(ask(method, path, Some(READER)) == 403, !asks, "{method} {path} for a reader");
            assert!(!matches!(ask(method, path, Some(WRITER)), 401 | 403), "{method} {path} for a writer");
        }
    }
    // Without --token-file no token is required.
    let server = ServerBuilder::new("memory").start();
    assert_eq!(server.admin("/nothing").status, 404);
}

/// Only a complete token is accepted; `also` is added to the token file.
fn only_whole_tokens(also: &str) -> Found {
    let file = TokenFile::new(&format!("read-write {WRITER}\n{also}"));
    let server = file.builder("memory").start();
    let mut client = server.client();
    let mut wrong: Vec<String> = (0..WRITER.len()).map(|length| WRITER[..length].to_owned()).collect();
    wrong.extend([format!("{WRITER}x"), WRITER.to_uppercase(), format!("x{WRITER}"), "a".repeat(10_000)]);
    for token in wrong {
        let answer = with(&mut client, "GET", "/v0/status", &token, None);
        if answer.status != 401 {
            return Err(format!("{} of {} characters: {}", token.len(), WRITER.len(), answer.status));
        }
        assert_eq!(answer.header("www-authenticate"), Some(r#"Bearer realm="klad""#));
        assert_eq!(code(&answer), "unauthorized");
        assert!(token.len() < 4 || !answer.text().contains(&token), "the answer contains the token");
    }
    for value in ["", "Bearer", WRITER, &format!("Basic {WRITER}"), &format!("Bearer{WRITER}")] {
        assert_eq!(client.request("GET", "/v0/status", &[("Authorization", value)], None).status, 401, "{value}");
    }
    let bearer = format!("Bearer {WRITER}");
    let twice = [("Authorization", bearer.as_str()), ("Authorization", "Bearer unknown-0123456789")];
    assert_eq!(client.request("GET", "/v0/status", &twice, None).status, 401, "two headers are invalid");
    let lower = format!("bearer  {WRITER}");
    assert_eq!(client.request("GET", "/v0/status", &[("authorization", &lower)], None).status, 200);
    Ok(())
}

#[test]
fn only_a_complete_token_is_accepted() {
    only_whole_tokens("").unwrap();
}

#[test]
fn twin_an_accepted_prefix_of_a_token_is_noticed() {
    let found = only_whole_tokens(&format!("read-only {}\n", &WRITER[..20])).expect_err("the prefix is a token");
    assert_eq!(found, "20 of 23 characters: 200");
}

#[test]
fn without_a_token_a_client_learns_nothing_and_gets_no_permit() {
    let file = both();
    // The memory budget has space for one body of 7 MiB.
    let server = file.builder("memory").arg("--memory", "64MiB").arg("--value-max", "7MiB").start();
    let mut client = server.client();
    assert_eq!(with(&mut client, "PUT", "/v0/entity?id=known", WRITER, Some(b"v")).status, 201);
    let long = format!("/v0/entity?id={}", encode(&[b'k'; 5_000]));
    let answers: Vec<Answer> =
        ["/v0/entity?id=known", "/v0/entity?id=unknown", "/v0/entity", "/v0/entity?id=%zz", "/nothing", &long]
            .iter()
            .map(|target| client.get(target))
            .collect();
    for answer in &answers {
        let date = |(name, _): &&(String, String)| name != "date";
        let headers = |answer: &Answer| answer.headers.iter().filter(date).cloned().collect::<Vec<_>>();
        assert_eq!((answer.status, &answer.body, headers(answer)), (401, &answers[0].body, headers(&answers[0])));
    }
    // The body of a rejected PUT is discarded before the next request, or the connection ends with the answer.
    assert_eq!(client.put("/v0/entity?id=known", &[1; 1_000]).status, 401);
    assert_eq!(with(&mut client, "GET", "/v0/entity?id=known", WRITER, None).body, b"v");
    let mut waiting = server.client();
    let head = "PUT /v0/entity?id=k HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\n";
    waiting.send_raw(format!("{head}Content-Length: 7000000\r\n\r\n"));
    assert_eq!(waiting.any_answer().unwrap().status, 401, "without 100 Continue");
    // Requests without a token hold no permit: the one upload for which there is space succeeds.
    let mut halves: Vec<Client> = (0..10).map(|_| server.client()).collect();
    for half in &mut halves {
        half.send_raw("PUT /v0/entity?id=k HTTP/1.1\r\nHost: localhost\r\nContent-Length: 60000\r\n\r\nabc");
        half.send_raw([1; 10_000]);
    }
    let mut holder = server.client();
    holder.send_raw(format!("{head}Authorization: Bearer {WRITER}\r\nContent-Length: 7000000\r\n\r\n"));
    assert_eq!(holder.any_answer().unwrap().status, 100, "it has its permit");
    // A client without a token does not learn that there is no space.
    let mut late = server.client();
    late.send_raw(format!("{head}Content-Length: 7000000\r\n\r\n"));
    assert_eq!(late.any_answer().unwrap().status, 401);
    late = server.client();
    late.send_raw(format!("{head}Authorization: Bearer {READER}\r\nContent-Length: 7000000\r\n\r\n"));
    assert_eq!(late.any_answer().unwrap().status, 403);
}

#[test]
fn a_reader_is_rejected_with_its_code_and_its_connection_stays_open() {
    let file = both();
    let server = file.builder("memory").start();
    let mut client = server.client();
    for (method, body) in [("PUT", Some(&[1; 1_000][..])), ("DELETE", None)] {
        let answer = with(&mut client, method, "/v0/entity?id=k", READER, body);
        assert_eq!((answer.status, code(&answer).as_str()), (403, "read-only-token"));
    }
    assert_eq!(with(&mut client, "GET", "/v0/entity?id=k", READER, None).status, 404);
}

/// Changes the tokens in the file. After the signal the new ones must be valid, also on open connections.
fn tokens_change(signal: Option<Signal>) -> Found {
    let file = both();
    let server = file.builder("memory").arg("--threads", "2").start();
    let mut clients: Vec<Client> = (0..6).map(|_| server.client()).collect();
    let statuses = |clients: &mut Vec<Client>, token: &str| -> BTreeSet<u16> {
        clients.iter_mut().map(|client| with(client, "GET", "/v0/status", token, None).status).collect()
    };
    assert_eq!(statuses(&mut clients, READER), [200].into());
    let fresh = "fresh-0123456789abcdef";
    file.write(&format!("read-write {WRITER}\nread-only {fresh}\n"));
    let Some(signal) = signal else {
        let statuses = statuses(&mut clients, fresh);
        return if statuses == [200].into() { Ok(()) } else { Err(format!("{statuses:?}")) };
    };
    server.signal(signal);
    wait_until("the new token is valid", || statuses(&mut clients, fresh) == [200].into());
    assert_eq!(statuses(&mut clients, READER), [401].into());
    assert_eq!(statuses(&mut clients, WRITER), [200].into());
    // A file with an error changes nothing. The log has the line number and no token.
    file.write(&format!("read-write {WRITER}\nreadonly {READER}\n"));
    server.signal(signal);
    wait_until("it is logged", || server.log().contains("line 2"));
    assert!(server.log().contains("cannot reload the tokens"));
    assert_eq!(statuses(&mut clients, fresh), [200].into());
    assert_eq!(statuses(&mut clients, READER), [401].into());
    assert!(![WRITER, READER, fresh].iter().any(|token| server.log().contains(token)));
    Ok(())
}

#[test]
fn tokens_are_reloaded_on_hangup() {
    tokens_change(Some(Signal::HUP)).unwrap();
}

#[test]
fn twin_tokens_that_are_not_reloaded_are_noticed() {
    assert_eq!(tokens_change(None).expect_err("there was no signal"), "{401}");
}

#[test]
fn the_load_tester_sends_a_token_and_does_not_print_it() {
    let file = both();
    let server = file.builder("memory").start();
    let bencher = Bencher::new(&format!("http://{}", server.address), "--workload put --value-size 10B");
    let run = bencher.arg("-H", format!("Authorization: Bearer {WRITER}")).run();
    run.assert_all_served();
    assert!(run.measured("statuses/201") > 0);
    let said = format!("{}{}{}", run.result, run.ended.stdout, run.ended.stderr);
    assert!(!said.contains(WRITER), "{said}");
}
