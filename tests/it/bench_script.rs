//! Scripts of wrk: `klad bench --script` sends the same bytes as wrk, except for the order of headers, which is that
//! of a Lua table. The tests run wrk itself against the same recording server.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use super::support::bencher::Bencher;
use super::support::scripted::{Script, Scripted};
use super::support::wait_until;

/// Sets only method, body and headers.
const FIXED: &str = r#"
wrk.method = "PUT"
wrk.body = "the value"
wrk.headers["Content-Type"] = "application/octet-stream"
wrk.headers["X-Empty"] = ""
"#;

/// `setup` numbers the threads, `init` reads arguments, `request` counts.
const COUNTER: &str = r#"
local number = 0
local threads = {}
function setup(thread)
    thread:set("id", number)
    table.insert(threads, thread)
    number = number + 1
end
function init(args)
    sent, seen, prefix = 0, 0, args[1]
    wrk.headers["X-Path"] = wrk.path
end
function request()
    sent = sent + 1
    local path = "/" .. prefix .. "/" .. id .. "/" .. sent
    if sent % 3 == 0 then return wrk.format("DELETE", path) end
    return wrk.format("POST", path, { ["X-Sent"] = sent }, string.rep("x", sent % 7))
end
function response(status, headers, body)
    if status == 200 and body == "hello" then seen = seen + 1 end
end
function done(summary, latency, requests)
    local sum = 0
    for _, thread in ipairs(threads) do sum = sum + thread:get("seen") end
    print(string.format("seen %d of %d, bytes %d, errors %d, ordered %s, threads %d", sum, summary.requests, summary.bytes,
        summary.errors.status + summary.errors.read, tostring(latency.min <= latency:percentile(50)), #threads))
end
"#;

/// Sends a token from an answer with every later request.
const TOKEN: &str = r#"
function request()
    return wrk.format("GET", token and "/resource" or "/authenticate")
end
function response(status, headers, body)
    if status == 201 and not token then
        token = headers["X-Token"]
        wrk.headers["X-Token"] = token
    end
end
"#;

/// Sends three requests at once.
const PIPELINE: &str = r#"
function init()
    local all = {}
    for _, path in ipairs({ "/1", "/2", "/3" }) do table.insert(all, wrk.format("GET", path)) end
    together = table.concat(all)
end
function request() return together end
"#;

/// A request with its headers in alphabetical order.
#[derive(Clone, Debug, PartialEq, Eq)]
struct SentRequest {
    line: String,
    headers: Vec<String>,
    body: Vec<u8>,
}

impl SentRequest {
    fn of(request: &[u8]) -> SentRequest {
        let end = request.windows(4).position(|four| four == b"\r\n\r\n").unwrap();
        let head = std::str::from_utf8(&request[..end]).unwrap();
        let mut lines = head.split("\r\n").map(str::to_owned);
        let line = lines.next().unwrap();
        let mut headers: Vec<_> = lines.collect();
        headers.sort();
        SentRequest { line, headers, body: request[end + 4..].to_vec() }
    }
}

/// What a load tester has sent, by thread and in order (the paths tell the threads apart), and what it printed.
struct Recording {
    sent: BTreeMap<String, Vec<SentRequest>>,
    printed: String,
}

/// The second part of a path of four parts, which is the thread; empty for other paths.
fn thread_of(sent: &SentRequest) -> String {
    let path = sent.line.split(' ').nth(1).unwrap();
    let parts: Vec<_> = path.split('/').collect();
    if parts.len() == 4 { parts[2].to_owned() } else { String::new() }
}

fn recorded(server: &Scripted, printed: String) -> Recording {
    Recording { sent: sent(server), printed }
}

/// What a server has received, by the thread that has sent it.
fn sent(server: &Scripted) -> BTreeMap<String, Vec<SentRequest>> {
    let port = server.address.port().to_string();
    let mut sent: BTreeMap<String, Vec<SentRequest>> = BTreeMap::new();
    for request in &server.record().requests {
        let mut request = SentRequest::of(request);
        // The two servers differ only in their ports.
        request.headers.iter_mut().for_each(|header| *header = header.replace(&port, "PORT"));
        sent.entry(thread_of(&request)).or_default().push(request);
    }
    sent
}

/// Whether each thread has sent so much that it can be compared.
fn is_enough(server: &Scripted, threads: usize) -> bool {
    sent(server).values().filter(|requests| requests.len() >= 10).count() == threads
}

/// Runs `with` with a file that contains the script.
fn with_file<R>(script: &str, with: impl FnOnce(&Path) -> R) -> R {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), script).unwrap();
    with(file.path())
}

/// Runs wrk with `threads` threads and one connection for each.
fn wrk(script: &str, answers: Script, threads: usize) -> Recording {
    let server = Scripted::start(answers);
    let ran = with_file(script, |file| {
        let child = Command::new("wrk")
            .args([&format!("-t{threads}"), &format!("-c{threads}"), "-d5m", "-H", "X-Given: a: b", "-s"])
            .arg(file)
            .args([&server.url("/a?b=c"), "--", "argument"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("wrk cannot be run ({error}); install it with tools/setup.sh"));
        wait_until("wrk has sent enough", || is_enough(&server, threads));
        kill_process(Pid::from_child(&child), Signal::INT).unwrap();
        child.wait_with_output().unwrap()
    });
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    recorded(&server, String::from_utf8(ran.stdout).unwrap())
}

/// Runs klad bench in the same way.
fn klad(script: &str, answers: Script, threads: usize) -> Recording {
    let server = Scripted::start(answers);
    let options = format!("--closed --threads {threads} --connections {threads}");
    let bencher = Bencher::new(&server.url("/a?b=c"), &options);
    let run = with_file(script, |file| {
        let bencher = bencher.arg("--script", file).arg("--header", "X-Given: a: b").last("argument");
        bencher.run_until("klad bench has sent enough", || is_enough(&server, threads))
    });
    assert_eq!(run.ended.code, Some(0), "{}", run.ended.stderr);
    recorded(&server, run.ended.stdout)
}

/// Runs wrk and then klad bench.
fn both(script: &str, answers: Script, threads: usize) -> [Recording; 2] {
    [wrk(script, answers, threads), klad(script, answers, threads)]
}

/// Compares what both have sent, as far as both have sent it, and checks that it is enough.
fn agree([wrk, klad]: &[Recording; 2], threads: usize) -> Result<(), String> {
    if wrk.sent.len() != threads || klad.sent.len() != threads {
        return Err(format!("threads {:?} and {:?}", wrk.sent.keys(), klad.sent.keys()));
    }
    for (thread, theirs) in &wrk.sent {
        let Some(ours) = klad.sent.get(thread) else { return Err(format!("no thread {thread}")) };
        if theirs.len().min(ours.len()) < 10 {
            return Err(format!("only {} and {} requests", theirs.len(), ours.len()));
        }
        if let Some((theirs, ours)) = theirs.iter().zip(ours).find(|(theirs, ours)| theirs != ours) {
            return Err(format!("wrk sends {theirs:?}, klad bench {ours:?}"));
        }
    }
    Ok(())
}

#[test]
fn method_body_and_headers_are_sent_as_wrk_sends_them() {
    agree(&both(FIXED, Script::Answers, 1), 1).unwrap();
}

#[test]
fn functions_are_called_as_wrk_calls_them() {
    let recorded = both(COUNTER, Script::Answers, 2);
    agree(&recorded, 2).unwrap();
    for Recording { printed, sent, .. } in &recorded {
        let line = printed.lines().find(|line| line.starts_with("seen ")).unwrap_or_else(|| panic!("{printed}"));
        let words: Vec<_> = line.split([' ', ',']).filter(|word| !word.is_empty()).collect();
        let number = |index: usize| words[index].parse::<usize>().unwrap();
        let (seen, requests, bytes) = (number(1), number(3), number(5));
        let all: usize = sent.values().map(Vec::len).sum();
        // The server has received requests in flight at the end, but the script has not seen their answers.
        assert!(requests <= seen && seen <= all && requests + 10 >= all, "{line}; {all} were sent");
        assert!(bytes >= requests * "HTTP/1.1 200 Said\r\nContent-Length: 5\r\n\r\nhello".len(), "{line}");
        assert!(line.ends_with("errors 0, ordered true, threads 2"), "{line}");
    }
}

#[test]
fn a_token_of_an_answer_is_sent_from_then_on() {
    let recorded = both(TOKEN, Script::GivesToken, 1);
    agree(&recorded, 1).unwrap();
    let klad = &recorded[1].sent[""];
    assert!(klad[0].line.starts_with("GET /authenticate"), "{:?}", klad[0]);
    assert!(klad[5].line.starts_with("GET /resource") && klad[5].headers.contains(&"X-Token: t7".to_owned()));
}

#[test]
fn several_requests_may_be_sent_at_once() {
    let recorded = both(PIPELINE, Script::Answers, 1);
    agree(&recorded, 1).unwrap();
    let printed = &recorded[1].printed;
    assert!(printed.contains("Each start sends 3 requests in a pipeline"), "{printed}");
    let rate = |name: &str| -> f64 {
        let after = &printed[printed.find(name).unwrap() + name.len()..];
        after.trim_start().split(['/', '\n']).next().unwrap().parse().unwrap()
    };
    let (starts, requests) = (rate(", answered "), rate("Requests/sec:"));
    // Both have two decimals.
    assert!((requests - 3.0 * starts).abs() < 0.03, "{printed}");
}

#[test]
fn twin_a_script_that_sends_other_requests_is_noticed() {
    let other = FIXED.replace("the value", "a value");
    let found =
        agree(&[wrk(FIXED, Script::Answers, 1), klad(&other, Script::Answers, 1)], 1).expect_err("bodies differ");
    assert!(found.contains("klad bench"), "{found}");
    let other = COUNTER.replace("sent, seen, prefix = 0", "sent, seen, prefix = 1");
    agree(&[wrk(COUNTER, Script::Answers, 2), klad(&other, Script::Answers, 2)], 2)
        .expect_err("the counters differ by one");
}

/// Runs a script that fails or ends the run.
fn run_of(script: &str, options: &str) -> super::support::bencher::Ended {
    let server = Scripted::start(Script::Answers);
    with_file(script, |file| Bencher::new(&server.url("/"), options).arg("--script", file).start().wait())
}

#[test]
fn errors_of_a_script_end_the_run_and_show_their_position() {
    for (script, place) in [
        ("x = = 1", ":1:"),
        ("function init() error('not today') end", "not today"),
        ("n = 0; function request() n = n + 1; if n > 5 then error('at six') end; return wrk.format() end", "at six"),
        ("function response() error('seen enough') end", "seen enough"),
        ("function delay() return {} end", "delay() failed"),
        ("function done() error('at the end') end", "at the end"),
    ] {
        let ended = run_of(script, "--rate 100/s");
        assert_eq!(ended.code, Some(1), "{script}: {}", ended.stderr);
        assert!(ended.stderr.contains(place) && ended.stderr.contains("script"), "{script}: {}", ended.stderr);
    }
}

#[test]
fn a_thread_that_stops_itself_ends_its_part_and_the_last_one_ends_the_run() {
    let script = "n = 0; function response() n = n + 1; if n == 10 then wrk.thread:stop() end end
        function done(summary) print('answers ' .. summary.requests) end";
    let ended = run_of(script, "--closed --threads 2 --connections 2 --duration 1h");
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(ended.stdout.contains("Ended early") && ended.stdout.contains("answers 20\n"), "{}", ended.stdout);
}

#[test]
fn connections_pause_as_long_as_the_script_says() {
    let script = "function delay() return 100 end";
    let server = Scripted::start(Script::Answers);
    let run = with_file(script, |file| {
        let bencher = Bencher::new(&server.url("/"), "--closed --connections 1").arg("--script", file);
        bencher.run_until("it has paused", || server.record().requests.len() >= 5)
    });
    let (sent, length_s) = (run.measured("sent"), run.result["interrupted_s"].as_f64().unwrap());
    // At most one request for each 100 ms, however slow the machine is.
    assert!(f64::from(u32::try_from(sent).unwrap()) * 0.1 <= length_s + 0.1, "{sent} in {length_s} s");
}

/// The status of a start is the highest status in its pipeline, and each start has one status.
#[test]
fn a_pipeline_has_its_highest_status() {
    for (answers, status) in [(Script::AnswersWith(504), "504"), (Script::RefusesEveryTenth, "503")] {
        let server = Scripted::start(answers);
        // One connection, so that the requests arrive in their order.
        let bencher = Bencher::new(&server.url("/"), "--closed --connections 1");
        let run = with_file(PIPELINE, |file| {
            bencher.arg("--script", file).run_until("it has sent enough", || server.record().requests.len() >= 150)
        });
        assert_eq!(run.ended.code, Some(0), "{}", run.ended.stdout);
        let (bad, sent) = (run.measured(&format!("statuses/{status}")), run.measured("sent"));
        // Every tenth answer is rejected: that affects three of ten starts with three requests each.
        assert_eq!(bad, if status == "504" { sent } else { sent * 3 / 10 }, "of {sent}");
    }
}

#[test]
fn output_of_a_script_is_not_in_the_json() {
    let script = "print('at the start', nil, true); function done() io.stdout:write('at the end\\n') end";
    let ended = run_of(script, "--rate 100/s --json -");
    assert!(serde_json::from_str::<serde_json::Value>(&ended.stdout).is_ok(), "{}", ended.stdout);
    assert!(ended.stderr.contains("at the start") && ended.stderr.contains("at the end"), "{}", ended.stderr);
}
