//! How many copies must answer: `ack` and `from`, `replicas`, and `Klad-Consistency`. Engines with one copy reject what
//! one copy cannot do.

use super::support::metrics::Metrics;
use super::support::one_key::{assert_rejected, document};
use super::support::planted::Defect;
use super::support::{Answer, Client, ENGINES, SETUPS, Server, ServerBuilder};

const LEVELS: [&str; 5] = ["one", "quorum", "local_quorum", "all", "serial"];

/// Runs `check` against a new server of each setup with one copy.
fn each(setups: &[&str], check: impl Fn(&Server, &mut Client)) {
    for setup in setups {
        println!("setup {setup}");
        let server = ServerBuilder::new(setup).start();
        check(&server, &mut server.client());
    }
}

/// The requests that read and write a key, each with its target up to the parameters that a test adds.
const REQUESTS: [(&str, &str, Option<&[u8]>); 12] = [
    ("PUT", "/v0/entity?id=k", Some(b"v")),
    ("GET", "/v0/entity?id=k", None),
    ("GET", "/v0/entities?start=k", None),
    ("DELETE", "/v0/entity?id=k", None),
    ("PUT", "/v1/kv/k?durability=async", Some(b"1")),
    ("PUT", "/v1/kv?key64=aw", Some(b"1")),
    ("GET", "/v1/kv/k?", None),
    ("HEAD", "/v1/kv/k?", None),
    ("GET", "/v1/kv?key64=aw", None),
    ("POST", "/v1/kv/k?op=add&by=1", None),
    ("POST", "/v1/batch?atomic=false", Some(br#"{"op":"put","key":"k","value":"1"}"#)),
    ("DELETE", "/v1/kv/k?", None),
];

fn ask(server: &Server, request: (&str, &str, Option<&[u8]>), more: &str, level: Option<&str>) -> Answer {
    let (method, target, body) = request;
    let mut headers = vec![("Content-Type", "application/x-ndjson")];
    headers.extend(level.map(|level| ("Klad-Consistency", level)));
    let mut client = server.client();
    client.send(method, &format!("{target}{more}"), &headers, body).unwrap();
    if method == "HEAD" {
        let (status, headers) = client.head().unwrap();
        return Answer { status, headers, body: Vec::new(), chunks: None };
    }
    client.answer().unwrap()
}

/// What needs more than one copy, and what is no number.
const IMPOSSIBLE: [&str; 14] = [
    "&ack=2&from=2",
    "&from=2&ack=1",
    "&ack=2",
    "&from=3",
    "&ack=0&from=1",
    "&ack=2&from=1",
    "&ack=x&from=1",
    "&ack=&from=1",
    "&ack=1&from=",
    "&ack=-1",
    "&replicas=2/3",
    "&replicas=1",
    "&replicas=0/1",
    "&replicas=1/1&ack=1",
];

/// Sends requests that one copy cannot serve. Returns those that the server does not reject.
fn confirmed(server: &Server) -> Vec<String> {
    let mut found = Vec::new();
    for request in REQUESTS {
        for more in IMPOSSIBLE {
            let answer = ask(server, request, more, None);
            let (method, target, _) = request;
            let told = answer.status == 400
                && (method == "HEAD" || {
                    let document = document(&answer);
                    document["code"] == "bad-replicas" && document["limit"] == 1
                });
            if !told {
                found.push(format!("{method} {target}{more}: {} {}", answer.status, answer.text()));
            }
        }
    }
    found
}

fn is_absent(client: &mut Client) -> bool {
    client.get("/v0/entity?id=k").status == 404
}

#[test]
fn more_than_one_copy_is_rejected_where_one_is_kept() {
    each(SETUPS, |server, client| {
        assert_eq!(confirmed(server), Vec::<String>::new());
        assert!(is_absent(client), "nothing was stored");
    });
}

#[test]
fn twin_a_write_to_two_copies_that_one_confirms_is_noticed() {
    let server = ServerBuilder::new("memory").defect(Some(Defect::ClaimsCopies)).start();
    let found = confirmed(&server);
    assert!(found.iter().any(|one| one.starts_with("PUT /v0/entity?id=k&ack=2&from=2: 201")), "{found:?}");
}

#[test]
fn one_of_one_is_the_default() {
    each(SETUPS, |server, _| {
        for more in ["", "&ack=1&from=1", "&ack=1", "&from=1", "&replicas=1/1", "&%61ck=1", "&ack=1&ack=2"] {
            for request in REQUESTS {
                if more == "&ack=1&ack=2" && request.1.starts_with("/v1") {
                    assert_rejected(
                        &ask(server, ("GET", "/v1/kv/k?", None), more, None),
                        400,
                        "repeated-parameter",
                        more,
                    );
                    continue;
                }
                let answer = ask(server, request, more, None);
                assert!(answer.status < 300, "{request:?} {more}: {answer:?}");
                assert_eq!(answer.header("klad-consistency"), None, "{request:?}");
            }
        }
    });
}

#[test]
fn each_level_is_repeated_in_the_answer() {
    each(SETUPS, |server, client| {
        for level in LEVELS {
            for request in
                REQUESTS.into_iter().chain([("GET", "/v1/kv?prefix=k", None), ("DELETE", "/v1/kv?prefix=x", None)])
            {
                let answer = ask(server, request, "", Some(level));
                assert!(answer.status < 300, "{request:?} {level}: {answer:?}");
                assert_eq!(answer.header("klad-consistency"), Some(level), "{request:?}");
            }
            // An error repeats the level, too.
            let absent = client.request("GET", "/v1/kv/absent", &[("Klad-Consistency", level)], None);
            assert_eq!((absent.status, absent.header("klad-consistency")), (404, Some(level)));
        }
        assert_eq!(client.get("/v0/entity?id=absent").header("klad-consistency"), None, "of another request");
    });
}

#[test]
fn an_unknown_level_is_rejected() {
    each(ENGINES, |server, client| {
        for level in ["", "QUORUM", "two", "each_quorum"] {
            for request in REQUESTS.into_iter().chain([("GET", "/v0/status", None), ("GET", "/v1/kv?prefix=k", None)]) {
                let answer = ask(server, request, "", Some(level));
                assert_eq!(answer.status, 400, "{request:?} {level}");
                if request.0 != "HEAD" {
                    assert_rejected(&answer, 400, "bad-consistency", level);
                }
            }
        }
        assert!(is_absent(client), "nothing was stored");
        // A request may have the parameters or the header, but not both.
        let put = ("PUT", "/v0/entity?id=k", Some(&b"v"[..]));
        assert_rejected(&ask(server, put, "&ack=1&from=1", Some("one")), 400, "bad-consistency", "both");
    });
}

#[test]
fn scans_and_removals_of_ranges_take_a_level_and_no_numbers() {
    each(ENGINES, |server, _| {
        for more in ["&ack=1", "&from=1", "&replicas=1/1"] {
            for request in [("GET", "/v1/kv?prefix=k", None), ("DELETE", "/v1/kv?prefix=k", None)] {
                assert_rejected(&ask(server, request, more, None), 400, "unknown-parameter", more);
            }
        }
    });
}

#[test]
fn too_few_copies_are_504_with_both_numbers() {
    let server = ServerBuilder::new("memory").defect(Some(Defect::MissesCopies)).start();
    let limits: serde_json::Value = serde_json::from_str(&server.client().get("/v1/limits").text()).unwrap();
    assert_eq!(limits["copies"], 3);
    let too_few = |request: (&str, &str, Option<&[u8]>), more: &str, level: Option<&str>, asked: u32| {
        let answer = ask(&server, request, more, level);
        assert_eq!(answer.status, 504, "{request:?} {more} {level:?}");
        assert_eq!(answer.header("klad-consistency"), level);
        if request.0 != "HEAD" {
            let document = document(&answer);
            assert_eq!(document["code"], "not-enough-replicas", "{document}");
            assert_eq!((&document["answered"], &document["asked"]), (&1.into(), &asked.into()), "{document}");
            assert_eq!(document["retryable"], true);
        }
    };
    for request in REQUESTS {
        too_few(request, "", None, 2);
        for (more, asked) in [("&ack=2&from=3", 2), ("&from=3", 2), ("&replicas=3/3", 3), ("&ack=3", 3), ("&from=2", 2)]
        {
            too_few(request, more, None, asked);
        }
        for (level, asked) in [("quorum", 2), ("local_quorum", 2), ("all", 3), ("serial", 2)] {
            too_few(request, "", Some(level), asked);
        }
        // A majority, because the copies that answer need not be those that answer another request.
        too_few(request, "&ack=1&from=2", None, 2);
    }
    too_few(("GET", "/v1/kv?prefix=k", None), "", Some("all"), 3);
    too_few(("DELETE", "/v1/kv?prefix=k", None), "", Some("all"), 3);
    assert!(!is_absent(&mut server.client()), "not even that is known");
    let metrics = Metrics::scrape(&server);
    assert!(metrics.refused("not-enough-replicas") > 0);
    assert_eq!(metrics.count("klad_deadline_dropped_total", &[]), 0, "no deadline has passed");
    for (more, level) in [("&ack=1&from=3", None), ("&replicas=1/3", None), ("", Some("one"))] {
        for request in REQUESTS {
            let answer = ask(&server, request, more, level);
            assert!(answer.status < 300, "{request:?} {more} {level:?}: {answer:?}");
        }
    }
}
