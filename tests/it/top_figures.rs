//! `klad top` and the console show the same figures of the same samples.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;

use serde_json::{Value, json};

use super::console_page::open;
use super::support::ServerBuilder;
use super::support::command::Klad;
use super::support::webdriver::Browser;

/// Counters, with their increase in the last ten seconds.
const COUNTERS: [(&str, f64); 15] = [
    ("klad_http_request_duration_seconds_bucket{op=\"get\",le=\"0.001\"}", 100.),
    ("klad_http_request_duration_seconds_bucket{op=\"get\",le=\"0.002\"}", 196.),
    ("klad_http_request_duration_seconds_bucket{op=\"get\",le=\"0.012\"}", 200.),
    ("klad_http_request_duration_seconds_bucket{op=\"get\",le=\"+Inf\"}", 200.),
    ("klad_http_request_duration_seconds_bucket{op=\"changes\",le=\"0.001\"}", 0.),
    ("klad_http_request_duration_seconds_bucket{op=\"changes\",le=\"+Inf\"}", 10.),
    ("klad_http_request_duration_seconds_count{op=\"get\",outcome=\"ok\"}", 150.),
    ("klad_http_request_duration_seconds_count{op=\"get\",outcome=\"refused\"}", 50.),
    ("klad_http_request_duration_seconds_count{op=\"changes\",outcome=\"ok\"}", 10.),
    ("klad_http_request_duration_seconds_sum{op=\"get\"}", 2.),
    ("klad_http_request_duration_seconds_sum{op=\"changes\"}", 1000.),
    ("klad_http_request_phase_seconds_sum{op=\"get\",phase=\"engine\"}", 0.4),
    ("klad_http_request_phase_seconds_sum{op=\"get\",phase=\"sync\"}", 0.4),
    ("klad_http_request_phase_seconds_sum{op=\"changes\",phase=\"engine\"}", 0.),
    ("klad_http_request_phase_seconds_sum{op=\"changes\",phase=\"write\"}", 900.),
];

/// Returns the events of 13 seconds: the counters grow in the first two, and then only once, seven seconds ago.
fn events() -> String {
    let names: Vec<&str> = COUNTERS.iter().map(|(name, _)| *name).collect();
    let sample = |second: u32| {
        let grown = |increase: f64| f64::from(second.min(2)) * 1e6 + if second > 5 { increase } else { 0.0 };
        // The clock was set back.
        let times = [json!(1_800_000_000_000_u64 - u64::from(second) * 1000), json!(second * 1000)];
        times.into_iter().chain(COUNTERS.map(|(_, increase)| json!(grown(increase)))).collect::<Vec<Value>>()
    };
    let series = json!({ "started_ms": 1, "interval_ms": 1000, "series": names });
    let history = json!({ "samples": (0..=12).map(sample).collect::<Vec<_>>() });
    format!("event: series\ndata: {series}\n\nevent: history\ndata: {history}\n\n")
}

/// Returns what `klad top --once` prints of the events, a word each.
fn top() -> Vec<String> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let lines = BufReader::new(stream.try_clone().unwrap()).lines();
        lines.map_while(Result::ok).take_while(|line| !line.is_empty()).for_each(drop);
        let events = events();
        write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{events}", events.len()).unwrap();
    });
    let text = String::from_utf8(Klad::new("top --once").arg(url).succeeds()).unwrap();
    text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ").replace(".0 ", " ")).collect()
}

#[test]
fn klad_top_and_the_console_compute_the_same_figures() {
    let lines = top();
    for line in [
        "get 20 5 1 ms 7 ms 11.5 ms",
        "changes 1 0 > 1 ms > 1 ms > 1 ms",
        "all 21 5 1 ms 7 ms 11.5 ms",
        "engine 0.04 20 % 2 ms",
        "sync 0.04 20 % 2 ms",
        "write 0.00 0 % 0 µs",
        "worker 0.12 60 % 6 ms",
    ] {
        assert!(lines.iter().any(|own| own == line), "{line} is missing in {lines:#?}");
    }
    let server = ServerBuilder::new("memory").start();
    let browser = Browser::start();
    browser.before_each_page(&format!(
        "const real = window.fetch; window.fetch = async (to, options) => \
         to === '/console/events' ? new Response({}) : real(to, options);",
        json!(events())
    ));
    open(&browser, &server, "now");
    browser.wait("document.querySelector('.tiles')");
    let text = "document.querySelector('main').innerText.replace(/\\s+/g, ' ')";
    let shown = browser.run(&format!("return {text}")).as_str().unwrap().to_lowercase();
    for part in ["requests 21/s", "p50 1 ms", "p99 7 ms", "p99.9 11.5 ms", "rejected 5/s", "(60 %) goes to the workers"]
    {
        assert!(shown.contains(part), "{part} is missing in {shown}");
    }
}
