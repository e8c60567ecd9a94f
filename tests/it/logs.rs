//! Log lines: their content, what they never contain, and that logging never blocks klad.

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::support::metrics::Metrics;
use super::support::planted::{self, Defect};
use super::support::server::{addresses, keep};
use super::support::{Client, PATIENCE, Server, ServerBuilder, wait_until};

const KEY: &str = "/v0/entity?id=my-secret-key";
const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

fn json(engine: &str) -> ServerBuilder {
    ServerBuilder::new(engine).arg("--log-format", "json")
}

/// Returns the lines with this message. Every line must be JSON.
fn lines(log: &str, message: &str) -> Vec<Value> {
    let parsed = log.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")));
    parsed.filter(|line: &Value| line["message"] == message).collect()
}

/// Waits for this number of lines with this message.
fn wait_for(server: &Server, message: &str, count: usize) -> Vec<Value> {
    wait_until("the lines are logged", || lines(&server.log(), message).len() >= count);
    lines(&server.log(), message)
}

#[test]
fn lines_are_json_if_stderr_is_not_a_terminal_and_the_first_has_the_main_facts() {
    let mut server = ServerBuilder::new("memory").arg("--log-format", "auto").arg("--slow-request", "5s").start();
    server.signal(Signal::TERM);
    assert_eq!(server.wait().code(), Some(0));
    let serving = lines(&server.log(), "serving").remove(0);
    assert_eq!(serving["level"], "INFO");
    let timestamp = serving["timestamp"].as_str().unwrap();
    assert!(timestamp.ends_with('Z') && humantime::parse_rfc3339(timestamp).is_ok(), "{timestamp}");
    assert_eq!(serving["listen"], server.address.to_string());
    for (field, value) in [("engine", "memory"), ("durability", "none"), ("log_level", "info"), ("slow_request", "5s")]
    {
        assert_eq!(serving[field], value, "{serving}");
    }
    for field in ["version", "admin", "data", "execution", "memory", "cache", "threads", "pid", "connections_max"] {
        assert!(!serving[field].is_null(), "{field} is missing in {serving}");
    }
}

#[test]
fn the_level_filters_lines_except_those_of_the_access_log() {
    let kept = keep(SocketAddr::from(([127, 0, 0, 1], 0)));
    let address = kept.local_addr().unwrap().as_socket().unwrap();
    let arguments = [
        "--log-level",
        "error",
        "--access-log",
        "on",
        "--admin-listen",
        "127.0.0.1:0",
        "--engine",
        "memory",
        "--listen",
    ];
    let mut child = Command::new(env!("CARGO_BIN_EXE_klad"))
        .arg("serve")
        .args(arguments)
        .arg(address.to_string())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut client = None;
    wait_until("klad serves", || {
        client = Client::try_connect(address).ok();
        client.is_some()
    });
    assert_eq!(client.unwrap().get(KEY).status, 404);
    let (sender, said) = mpsc::channel();
    let stderr = BufReader::new(child.stderr.take().unwrap());
    std::thread::spawn(move || stderr.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
    // Before the stop, because a stopping klad waits for its log only for a limited time.
    let first = said.recv_timeout(PATIENCE).expect("a line of the access log");
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(lines(&first, "request").len(), 1, "{first}");
    assert_eq!(said.recv().ok(), None, "no other line has this level");
}

#[test]
fn the_access_log_has_the_request_without_key_and_value() {
    let server = json("memory").arg("--access-log", "on").start();
    let mut client = server.client();
    let trace = format!("00-{TRACE}-00f067aa0ba902b7-01");
    let headers = [("X-Request-Id", "order-7"), ("traceparent", trace.as_str())];
    assert_eq!(client.request("PUT", KEY, &headers, Some(b"my-secret-value")).status, 201);
    let unnamed = client.get(KEY);
    assert_eq!(client.get("/v0/nothing?token=my-secret-token").status, 400);
    for stranger in ["/v0/my-secret-key", "/my-secret-key", "/v0/entity/my-secret-key", "/"] {
        assert_eq!(client.get(stranger).status, 400);
    }
    let peer = client.stream.local_addr().unwrap().to_string();
    let found = wait_for(&server, "request", 7);
    let put = &found[0];
    for (field, value) in [
        ("op", "put"),
        ("method", "PUT"),
        ("path", "/v0/entity"),
        ("outcome", "ok"),
        ("durability", "none"),
        ("request_id", "order-7"),
        ("trace_id", TRACE),
        ("peer", &peer),
        ("level", "INFO"),
    ] {
        assert_eq!(put[field], value, "{field} in {put}");
    }
    for (field, value) in [("status", 201), ("key_bytes", 13), ("received_bytes", 15), ("sent_bytes", 0)] {
        assert_eq!(put[field], value, "{field} in {put}");
    }
    assert!(put["total_ms"].as_f64().unwrap() > 0.0, "{put}");
    assert_eq!(found[1]["request_id"], unnamed.header("x-request-id").expect("klad assigns an id and returns it"));
    assert_eq!((&found[1]["status"], &found[1]["sent_bytes"]), (&200.into(), &15.into()));
    assert_eq!((&found[2]["outcome"], &found[2]["path"]), (&"client_error".into(), &"/v0/…".into()));
    let strangers: Vec<_> = found[3..].iter().map(|line| line["path"].as_str().unwrap()).collect();
    assert_eq!(strangers, ["/v0/…", "/…", "/v0/…", "/…"], "an unknown path may contain a key");
    assert!(!server.log().contains("my-secret"), "{}", server.log());
}

#[test]
fn without_the_access_log_a_request_has_no_line() {
    // Longer than a busy machine delays a request.
    let mut server = json("memory").arg("--slow-request", "1m").start();
    let mut client = server.client();
    for _ in 0..20 {
        client.request("GET", KEY, &[("X-Request-Id", "7")], None);
    }
    server.signal(Signal::TERM);
    assert_eq!(server.wait().code(), Some(0));
    assert!(lines(&server.log(), "request").is_empty() && lines(&server.log(), "slow request").is_empty());
}

#[test]
fn a_slow_request_has_a_line_with_the_time_of_each_phase() {
    let server = json("memory/pool").arg("--engine-delay", "200ms").arg("--slow-request", "150ms").start();
    let mut client = server.client();
    assert_eq!(client.request("GET", KEY, &[("X-Request-Id", "slow-1")], None).status, 404);
    let line = wait_for(&server, "slow request", 1).remove(0);
    for (field, value) in [("level", "WARN"), ("op", "get"), ("outcome", "not_found"), ("request_id", "slow-1")] {
        assert_eq!(line[field], value, "{field} in {line}");
    }
    let time = |field: &str| line[field].as_f64().unwrap_or_else(|| panic!("no {field} in {line}"));
    let phases = ["receive_ms", "queue_ms", "engine_ms", "sync_ms", "write_ms"].map(time);
    assert!(time("engine_ms") >= 200.0 && time("total_ms") >= time("engine_ms"), "{line}");
    assert!(phases.iter().sum::<f64>() <= time("total_ms") + 1.0, "{line}");
    assert_eq!(lines(&server.log(), "slow request").len(), 1);
    assert_eq!(Metrics::scrape(&server).count("klad_slow_requests_total", &[]), 1);
    // Off, and longer than a busy machine delays a request.
    for limit in ["0s", "1m"] {
        let server = json("memory/pool").arg("--engine-delay", "200ms").arg("--slow-request", limit).start();
        assert_eq!(server.client().get(KEY).status, 404);
        wait_until("the request has ended", || Metrics::scrape(&server).in_flight() == 0);
        assert_eq!(Metrics::scrape(&server).count("klad_slow_requests_total", &[]), 0, "{limit}");
    }
}

#[test]
fn some_of_many_slow_requests_have_lines_and_the_others_are_counted() {
    // So many that even a busy machine serves more than ten in some second.
    const REQUESTS: u64 = 200;
    let server = json("memory").arg("--engine-delay", "1ms").arg("--slow-request", "1ms").start();
    let mut client = server.client();
    for _ in 0..REQUESTS {
        client.get(KEY);
    }
    let all = || -> u64 {
        let log = server.log();
        let held_back: u64 =
            lines(&log, "more slow requests than klad logs in a second; /debug/slow shows the slowest")
                .iter()
                .map(|line| line["requests"].as_u64().unwrap())
                .sum();
        lines(&log, "slow request").len() as u64 + held_back
    };
    wait_until("each has a line or is counted in one", || all() >= REQUESTS);
    let counted = Metrics::scrape(&server).count("klad_slow_requests_total", &[]);
    assert_eq!((all(), counted), (REQUESTS, REQUESTS));
    let said = lines(&server.log(), "slow request").len() as u64;
    assert!(said < REQUESTS, "{said} lines");
}

/// Sends requests while no process reads stderr, with more log lines than a pipe holds. Requests must be answered,
/// lost lines must be counted, and klad must be able to stop.
fn serves_without_a_reader(defect: Option<Defect>) -> Result<(), String> {
    const REQUESTS: usize = 8_000;
    let arguments = [
        "serve",
        "--engine",
        "memory",
        "--access-log",
        "on",
        "--listen",
        "127.0.0.1:0",
        "--admin-listen",
        "127.0.0.1:0",
    ];
    let arguments = arguments.map(str::to_owned);
    let mut command = match defect {
        None => Command::new(env!("CARGO_BIN_EXE_klad")),
        Some(defect) => planted::command(defect, &arguments),
    };
    if defect.is_none() {
        command.args(&arguments);
    }
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    // Read up to the line with the addresses. Then the pipe stays open without a reader.
    let mut stderr = BufReader::with_capacity(1, child.stderr.take().unwrap());
    let (address, admin) = loop {
        let mut line = String::new();
        assert_ne!(stderr.read_line(&mut line).unwrap(), 0, "it ended");
        if let Some(found) = addresses(&line) {
            break found;
        }
    };
    let mut client = Client::connect(address);
    // klad with the defect never answers.
    client.stream.set_read_timeout(Some(if defect.is_some() { Duration::from_secs(2) } else { PATIENCE })).unwrap();
    let served =
        (0..REQUESTS).all(|_| client.try_request("GET", KEY, &[], None).is_ok_and(|answer| answer.status == 404));
    let dropped = served.then(|| {
        let text = Client::connect(admin).get("/metrics").text();
        let line = text.lines().find_map(|line| line.strip_prefix("klad_log_lines_dropped_total "));
        line.unwrap().parse::<u64>().unwrap()
    });
    kill_process(Pid::from_child(&child), if served { Signal::TERM } else { Signal::KILL }).unwrap();
    let mut status = None;
    wait_until("klad has ended", || {
        status = child.try_wait().unwrap();
        status.is_some()
    });
    match dropped {
        None => Err("a request was not answered".to_owned()),
        Some(0) => Err("no line was dropped".to_owned()),
        Some(_) => {
            assert_eq!(status.unwrap().code(), Some(0));
            Ok(())
        }
    }
}

#[test]
fn a_blocked_stderr_does_not_stop_serving_or_stopping() {
    serves_without_a_reader(None).unwrap();
}

#[test]
fn twin_a_log_that_blocks_klad_is_noticed() {
    let found = serves_without_a_reader(Some(Defect::LogsSynchronously)).expect_err("planted");
    assert!(found.contains("not answered"), "{found}");
}

#[test]
fn the_message_of_a_panic_comes_after_all_logged_lines() {
    let mut server = json("memory").arg("--access-log", "on").defect(Some(Defect::Panics)).start();
    let mut client = server.client();
    for _ in 0..50 {
        assert_eq!(client.get(KEY).status, 404);
    }
    client.send("PUT", "/v0/entity?id=panic", &[], Some(b"v")).unwrap();
    assert_eq!(server.wait().signal(), Some(Signal::ABORT.as_raw()));
    wait_until("the last line is written", || server.log().contains("planted panic"));
    let log = server.log();
    // The process is the test binary. Its harness prints only to stdout.
    let log: String = log.lines().filter(|line| line.starts_with('{')).map(|line| line.to_owned() + "\n").collect();
    assert_eq!(lines(&log, "request").len(), 50);
    let last = lines(&log, "klad has a defect and ends now; please report this line").remove(0);
    assert_eq!(last["level"], "ERROR");
    assert!(last["panic"].as_str().unwrap().contains("planted panic"), "{last}");
}
