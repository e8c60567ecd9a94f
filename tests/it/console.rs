//! The console's part of the server: its files, its stream of samples, the way to the data, and who may use it.
//! `console_page` tests the page in a browser.

use std::io::Write as _;
use std::net::SocketAddr;

use flate2::write::GzDecoder;
use serde_json::Value;

#[cfg(target_os = "linux")]
use super::support::clock::Clock;
use super::support::scrape::Scrape;
use super::support::tls::Authority;
use super::support::token_file::{READER, WRITER, both};
use super::support::{Answer, Client, ENGINES, Server, ServerBuilder, wait_until};

type Found = Result<(), String>;

/// Sends a request with exactly these headers.
fn ask(address: SocketAddr, method: &str, target: &str, headers: &[(&str, &str)], body: &str) -> Answer {
    let mut head = format!("{method} {target} HTTP/1.1\r\n");
    for (name, value) in headers {
        head += &format!("{name}: {value}\r\n");
    }
    let mut client = Client::connect(address);
    client.send_raw(format!("{head}Content-Length: {}\r\n\r\n{body}", body.len()));
    client.answer().expect("an answer")
}

fn code(answer: &Answer) -> String {
    let document: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
    document["code"].as_str().unwrap_or_default().to_owned()
}

/// A stream of events.
struct Stream {
    client: Client,
    unread: String,
    /// The series, as the last event about them says.
    names: Vec<Value>,
}

impl Stream {
    fn open(server: &Server) -> Result<Stream, u16> {
        let mut client = Client::connect(server.admin);
        client.send("GET", "/console/events", &[], None).unwrap();
        let (status, headers) = client.head().unwrap();
        if status != 200 {
            return Err(status);
        }
        assert!(headers.contains(&("content-type".to_owned(), "text/event-stream".to_owned())), "{headers:?}");
        Ok(Stream { client, unread: String::new(), names: Vec::new() })
    }

    /// Returns the name and the data of the next event.
    fn next(&mut self) -> (String, Value) {
        while !self.unread.contains("\n\n") {
            let chunk = self.client.chunk().unwrap().expect("a stream without an end");
            self.unread += std::str::from_utf8(&chunk).unwrap();
        }
        let (event, rest) = self.unread.split_once("\n\n").unwrap();
        let (name, data) = event.split_once('\n').unwrap();
        let data = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
        let event = (name.strip_prefix("event: ").unwrap().to_owned(), data);
        self.unread = rest.to_owned();
        event
    }
}

/// Returns the names and the latest values of a stream, after `samples` samples.
fn figures(stream: &mut Stream, samples: usize) -> Vec<(String, Value)> {
    let (mut values, mut seen) = (Vec::new(), 0);
    while seen < samples {
        let (event, data) = stream.next();
        match event.as_str() {
            "series" => stream.names.clone_from(data["series"].as_array().unwrap()),
            "sample" => {
                values = data.as_array().unwrap()[2..].to_vec();
                seen += 1;
            }
            _ => {}
        }
    }
    assert_eq!(stream.names.len(), values.len());
    stream.names.iter().map(|name| name.as_str().unwrap().to_owned()).zip(values).collect()
}

/// The headers of the page's files, and those of data: what each must contain.
const FILE_HEADERS: [(&str, &str); 10] = [
    ("content-security-policy", "default-src 'none';"),
    ("content-security-policy", "script-src 'self';"),
    ("content-security-policy", "connect-src 'self';"),
    ("content-security-policy", "base-uri 'none';"),
    ("content-security-policy", "frame-ancestors 'none'"),
    ("x-frame-options", "DENY"),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cache-control", "no-cache"),
];

const DATA_HEADERS: [(&str, &str); 5] = [
    ("content-security-policy", "default-src 'none'; sandbox"),
    ("content-disposition", "attachment"),
    ("x-content-type-options", "nosniff"),
    ("cross-origin-resource-policy", "same-origin"),
    ("cache-control", "no-store"),
];

/// Returns the headers that are missing or do not contain what they must.
fn wrong_headers(answer: &Answer, wanted: &[(&str, &str)]) -> Vec<String> {
    let is_wrong = |(name, part): &&(&str, &str)| !answer.header(name).is_some_and(|value| value.contains(part));
    let unsafe_rule = answer.header("content-security-policy").filter(|policy| policy.contains("unsafe"));
    let missing = wanted.iter().filter(is_wrong).map(|(name, part)| format!("{name}: {part}"));
    missing.chain(unsafe_rule.map(str::to_owned)).collect()
}

#[test]
fn twin_answers_without_these_headers_are_noticed() {
    let server = ServerBuilder::new("memory").start();
    server.client().put("/v1/kv/k", b"<script>");
    assert_eq!(wrong_headers(&server.admin("/metrics"), &FILE_HEADERS).len(), FILE_HEADERS.len());
    assert_eq!(wrong_headers(&server.client().get("/v1/kv/k"), &DATA_HEADERS).len(), DATA_HEADERS.len());
}

#[test]
fn the_page_is_served_without_a_token_and_with_its_headers() {
    let server = both().builder("memory").start();
    let plain = server.admin("/console");
    assert_eq!((plain.status, plain.header("content-type")), (200, Some("text/html; charset=utf-8")));
    assert_eq!(wrong_headers(&plain, &FILE_HEADERS), Vec::<String>::new());
    let ask =
        |method, target, headers: &[(&str, &str)]| Client::connect(server.admin).request(method, target, headers, None);
    let gzipped = ask("GET", "/console", &[("Accept-Encoding", "br, gzip")]);
    assert_eq!(gzipped.header("content-encoding"), Some("gzip"));
    let mut decoder = GzDecoder::new(Vec::new());
    decoder.write_all(&gzipped.body).unwrap();
    assert_eq!(decoder.finish().unwrap(), plain.body);
    let etag = plain.header("etag").unwrap();
    let known = ask("GET", "/console", &[("If-None-Match", etag)]);
    assert_eq!((known.status, known.body.len()), (304, 0));
    assert_eq!(ask("GET", "/console/charts.json", &[]).header("content-type"), Some("application/json"));
    assert_eq!(ask("GET", "/console/uPlot.iife.min.js", &[]).status, 200);
    for (method, target, status) in
        [("GET", "/console/nothing.js", 401), ("GET", "/console/../Cargo.toml", 401), ("GET", "/console/session", 401)]
    {
        assert_eq!(ask(method, target, &[]).status, status, "{method} {target}");
    }
}

#[test]
fn a_browser_is_led_to_the_console_and_curl_gets_the_list_of_paths() {
    let server = ServerBuilder::new("memory").start();
    let ask = |accept| Client::connect(server.admin).request("GET", "/", &[("Accept", accept)], None);
    let led = ask("text/html,application/xhtml+xml,*/*;q=0.8");
    assert_eq!((led.status, led.header("location")), (303, Some("/console")));
    assert!(ask("*/*").text().contains("/console "), "curl");
    assert!(server.log().contains(&format!("console=http://{}/console", server.admin)), "{}", server.log());
}

#[test]
fn the_session_says_what_the_client_may_do() {
    let server = both().builder("memory").start();
    let session = |token: &str| {
        let bearer = format!("Bearer {token}");
        let answer = ask(server.admin, "GET", "/console/session", &[("Host", "klad"), ("Authorization", &bearer)], "");
        serde_json::from_slice::<Value>(&answer.body).unwrap()
    };
    let (reader, writer) = (session(READER), session(WRITER));
    assert_eq!((&reader["access"], &writer["access"]), (&"read-only".into(), &"read-write".into()));
    assert_eq!((&reader["tokens"], &reader["engine"], &reader["data"]), (&true.into(), &"memory".into(), &true.into()));
    let open = ServerBuilder::new("memory").start();
    let data = |host| {
        let answer = ask(open.admin, "GET", "/console/session", &[("Host", host)], "");
        serde_json::from_slice::<Value>(&answer.body).unwrap()["data"].clone()
    };
    assert_eq!((data("localhost:1"), data("klad.example")), (true.into(), false.into()));
}

#[test]
fn the_stream_has_the_figures_of_the_metrics() {
    for engine in ENGINES {
        let server = ServerBuilder::new(engine).start();
        for number in 0..7 {
            assert_eq!(server.client().put(&format!("/v1/kv/{number}"), b"v").status, 201);
        }
        let mut stream = Stream::open(&server).unwrap();
        assert_eq!(stream.next().0, "series");
        let (event, help) = stream.next();
        let scrape = Scrape::of(&server);
        assert_eq!(event, "help");
        for (family, text) in help.as_object().unwrap() {
            assert_eq!(text.as_str().unwrap(), scrape.families[family].help, "{family}");
        }
        // A new stream begins with what the server has kept.
        let mut stream = Stream::open(&server).unwrap();
        let puts = |figures: &[(String, Value)]| {
            let of_puts = figures.iter().filter(|(name, _)| {
                name.starts_with("klad_http_request_duration_seconds_count{") && name.contains("op=\"put\"")
            });
            of_puts.map(|(_, value)| value.as_u64().unwrap()).sum::<u64>()
        };
        let mut first = Vec::new();
        wait_until("the writes are counted", || {
            first = figures(&mut stream, 2);
            puts(&first) == 7
        });
        assert!(first.len() < 576, "{engine} has {} series: some may be left out", first.len());
        server.client().put("/v1/kv/more", b"v");
        let mut last = Stream::open(&server).unwrap();
        wait_until("the next write is counted", || puts(&figures(&mut last, 3)) == 8);
    }
}

/// Returns which process a new stream is of, and the times of its first samples: wall clock and uptime.
fn times(server: &Server) -> (u64, Vec<(u64, u64)>) {
    let mut stream = Stream::open(server).unwrap();
    let (mut started_ms, mut times) = (0, Vec::new());
    loop {
        let (event, data) = stream.next();
        let samples = match event.as_str() {
            "series" => {
                started_ms = data["started_ms"].as_u64().unwrap();
                continue;
            }
            "history" => data["samples"].as_array().unwrap().clone(),
            "sample" => vec![data],
            _ => continue,
        };
        times.extend(samples.iter().map(|sample| (sample[0].as_u64().unwrap(), sample[1].as_u64().unwrap())));
        if event == "sample" {
            return (started_ms, times);
        }
    }
}

#[cfg(target_os = "linux")]
#[test]
fn the_uptime_grows_when_the_clock_is_set_back_and_another_process_has_another_start() {
    let clock = Clock::new();
    let directory = tempfile::tempdir().unwrap();
    let builder = clock.preload(ServerBuilder::new("memory").data(directory.path()));
    let server = builder.start();
    let (started_ms, before) = times(&server);
    clock.set_minutes(-120);
    let mut after = Vec::new();
    wait_until("there is a sample of the new time", || {
        after = times(&server).1;
        after.last().unwrap().0 < before[0].0
    });
    assert!(after.is_sorted_by(|one, next| one.1 < next.1), "{after:?}");
    assert_eq!((after[0], times(&server).0), (before[0], started_ms));
    let session: Value = serde_json::from_slice(&server.admin("/console/session").body).unwrap();
    assert_eq!(session["started_ms"], started_ms);
    server.kill();
    assert!(times(&builder.start()).0 < started_ms, "it has started again, after the clock was set back");
}

#[test]
fn a_stream_that_has_ended_leaves_its_place_to_others() {
    let server = ServerBuilder::new("memory").start();
    let streams: Vec<Stream> = (0..16).map(|_| Stream::open(&server).unwrap()).collect();
    assert_eq!(Stream::open(&server).err(), Some(503));
    drop(streams);
    wait_until("places are free again", || Stream::open(&server).is_ok());
}

#[test]
fn the_console_reads_and_writes_as_a_client_of_the_data_listener_does() {
    for engine in ENGINES {
        let server = ServerBuilder::new(engine).start();
        let mut console = Client::connect(server.admin);
        let mut client = server.client();
        let put =
            console.request("PUT", "/console/data/v1/kv/a%2Fb", &[("Content-Type", "text/html")], Some(b"<script>"));
        assert_eq!((put.status, put.version()), (201, client.get("/v1/kv/a%2Fb").version()));
        let (seen, direct) = (console.get("/console/data/v1/kv/a%2Fb"), client.get("/v1/kv/a%2Fb"));
        assert_eq!((seen.status, &seen.body, seen.header("etag")), (200, &direct.body, direct.header("etag")));
        // A browser must not run it as a page of the console.
        assert_eq!(seen.header("content-type"), Some("text/html"));
        assert_eq!(wrong_headers(&seen, &DATA_HEADERS), Vec::<String>::new());
        let large = vec![7; 3 << 20];
        assert_eq!(console.request("PUT", "/console/data/v1/kv/large", &[], Some(&large)).status, 201);
        assert_eq!(console.get("/console/data/v1/kv/large").body, large);
        let stale = [("If-Match", "\"99\"")];
        let conflict = console.request("PUT", "/console/data/v1/kv/a%2Fb", &stale, Some(b"v"));
        assert_eq!((conflict.status, code(&conflict)), (412, "precondition-failed".to_owned()));
        let (list, direct) = (console.get("/console/data/v1/kv?prefix=a"), client.get("/v1/kv?prefix=a"));
        assert_eq!((list.status, &list.body), (200, &direct.body));
        assert_eq!(console.request("DELETE", "/console/data/v1/kv/a%2Fb", &[], None).status, 204);
        assert_eq!(client.get("/v1/kv/a%2Fb").status, 404);
        for path in ["/console/data/v0/status", "/console/data/", "/console/data/metrics", "/console/data//v1/kv"] {
            assert_eq!(console.get(path).status, 404, "{path}");
        }
    }
}

#[test]
fn the_data_plane_decides_what_a_token_allows() {
    let server = both().builder("memory").start();
    let status = |method, token: &str| {
        let bearer = format!("Bearer {token}");
        let headers: [(&str, &str); 2] = [("Host", "klad.example"), ("Authorization", &bearer)];
        ask(server.admin, method, "/console/data/v1/kv/k", &headers, "v").status
    };
    assert_eq!((status("PUT", WRITER), status("GET", READER), status("PUT", READER)), (201, 200, 403));
    assert_eq!(status("GET", "unknown-0123456789"), 401);
    assert_eq!(server.admin("/console/data/v1/kv/k").status, 401);
}

#[test]
fn the_console_needs_no_tls_between_the_listeners() {
    let server = Authority::new().server_of("memory").arg("--admin-tls", "off").start();
    assert_eq!(Client::connect(server.admin).request("PUT", "/console/data/v1/kv/k", &[], Some(b"v")).status, 201);
}

#[test]
fn a_listener_that_asks_for_no_certificate_gives_no_data() {
    let authority = Authority::new();
    let authorities = authority.path("ca.pem");
    let builder = authority.server_of("memory").arg("--tls-client-ca", authorities.to_str().unwrap());
    let server = builder.arg("--admin-tls", "off").start();
    assert_eq!(server.admin("/console/data/v1/kv/k").status, 404);
    assert!(server.admin("/console/session").text().contains("\"data\": false"));
}

/// Sends changes that only a page of another site sends, with `origin` as the name of the header that tells it.
fn changes_of_other_sites_are_rejected(origin: &str) -> Found {
    let server = ServerBuilder::new("memory").start();
    let own = server.admin.to_string();
    let own_page = format!("http://{own}");
    let rebound = format!("evil.example:{}", server.admin.port());
    let rebound_page = format!("http://{rebound}");
    let cases: [(&str, &str, &str, &str); 5] = [
        (&own, "http://evil.example", "cross-site", "cross-origin"),
        (&own, "null", "cross-site", "cross-origin"),
        (&own, "http://127.0.0.1:1", "same-site", "cross-origin"),
        (&own, &own_page, "cross-site", "cross-origin"),
        (&rebound, &rebound_page, "same-origin", "untrusted-host"),
    ];
    for (method, path) in [
        ("PATCH", "/config"),
        ("POST", "/reload"),
        ("POST", "/checkpoint?name=a"),
        ("DELETE", "/compact"),
        ("PUT", "/console/data/v1/kv/k"),
        ("DELETE", "/console/data/v1/kv/k"),
    ] {
        for (host, page, site, expected) in cases {
            let answer =
                ask(server.admin, method, path, &[("Host", host), (origin, page), ("Sec-Fetch-Site", site)], "{}");
            if (answer.status, code(&answer).as_str()) != (403, expected) {
                return Err(format!("{method} {path} from {page} to {host}: {} {}", answer.status, answer.text()));
            }
        }
        let headers: [(&str, &str); 3] = [("Host", &own), (origin, &own_page), ("Sec-Fetch-Site", "same-origin")];
        let answer = ask(server.admin, method, path, &headers, "{}");
        assert_ne!(answer.status, 403, "{method} {path} of the console: {}", answer.text());
    }
    Ok(())
}

#[test]
fn only_the_console_itself_can_change_something_from_a_browser() {
    changes_of_other_sites_are_rejected("Origin").unwrap();
}

#[test]
fn twin_a_server_that_does_not_see_the_origin_is_noticed() {
    let found = changes_of_other_sites_are_rejected("X-Origin").expect_err("the requests look like curl's");
    assert!(found.starts_with("PATCH /config from http://evil.example to 127.0.0.1"), "{found}");
}

/// Reads a value as the page of a site can whose name was made to lead to this server.
fn a_rebound_name_reads_nothing(server: &Server, token: &str) -> Found {
    let bearer = format!("Bearer {token}");
    for target in ["/console/data/v1/kv/k", "/console/data/v1/kv"] {
        let headers: [(&str, &str); 2] = [("Host", "evil.example"), ("Authorization", &bearer)];
        let answer = ask(server.admin, "GET", target, &headers, "");
        if (answer.status, code(&answer).as_str()) != (403, "untrusted-host") {
            return Err(format!("{target}: {} {}", answer.status, answer.text()));
        }
    }
    Ok(())
}

#[test]
fn without_tokens_data_is_not_for_a_name_that_can_lead_anywhere() {
    a_rebound_name_reads_nothing(&ServerBuilder::new("memory").start(), "").unwrap();
}

#[test]
fn twin_data_for_a_foreign_name_is_noticed() {
    // With tokens the name does not matter: the site has no token.
    let server = both().builder("memory").start();
    let found = a_rebound_name_reads_nothing(&server, READER).expect_err("the token allows it");
    assert!(found.starts_with("/console/data/v1/kv/k: 404"), "{found}");
}

#[test]
fn an_open_console_does_not_delay_a_stop() {
    let server = ServerBuilder::new("memory").arg("--drain-timeout", "1h").start();
    let mut stream = Stream::open(&server).unwrap();
    assert_eq!(stream.next().0, "series");
    let mut console = Client::connect(server.admin);
    assert_eq!(console.get("/console/data/v1/kv?prefix=a").status, 200);
    // Waits for the end, with a limit far below the drain timeout.
    assert!(server.stop().success());
}
