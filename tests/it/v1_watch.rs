//! `klad watch`: prints changes in their order, says why a feed ended, and continues after a lost connection.

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, ChildStdout};

use serde_json::Value;

use super::support::command::{Klad, Output};
use super::support::scripted::{answers, whole_answer};
use super::support::server::keep;
use super::support::{Server, ServerBuilder};

fn server() -> Server {
    ServerBuilder::new("rocksdb").start()
}

fn text(command: Klad, server: &Server) -> String {
    String::from_utf8(command.at(server.address).succeeds()).unwrap()
}

/// The version of the last change.
fn put(key: &str, server: &Server) -> String {
    let said = text(Klad::new(&format!("put {key} v")), server);
    said.strip_prefix("version ").and_then(|rest| rest.split(',').next()).unwrap().to_owned()
}

/// The columns of each line behind the version. The versions rise.
fn columns(said: &str) -> Vec<Vec<String>> {
    let versions: Vec<u64> = said.lines().map(|line| line.split('\t').next().unwrap().parse().unwrap()).collect();
    assert!(versions.is_sorted_by(|a, b| a < b), "{versions:?}");
    said.lines().map(|line| line.split('\t').skip(1).map(str::to_owned).collect()).collect()
}

#[test]
fn changes_are_printed_in_their_order() {
    let server = server();
    let from = put("before", &server);
    for key in ["w/0", "w/1", "other"] {
        put(key, &server);
    }
    text(Klad::new("del w/0"), &server);
    let items =
        concat!("{\"op\":\"put\",\"key\":\"w/2\",\"value\":\"v\"}\n", "{\"op\":\"add\",\"key\":\"w/n\",\"by\":5}");
    text(Klad::new("batch").input(items.as_bytes()), &server);
    let mut client = server.client();
    let mut remove = |range: &str| assert_eq!(client.delete(&format!("/v1/kv?{range}")).status, 204);
    remove("prefix=w/");
    remove("start=a&end=b");
    put("w/z", &server);
    remove("all=true");
    let watch = |options: &str| text(Klad::new(&format!("watch --from {from} {options}")), &server);
    let expected = [
        &["put", "w/0", "v"][..],
        &["put", "w/1", "v"],
        &["delete", "w/0"],
        &["put", "w/2", "v"],
        &["put", "w/n", "5"],
        &["delete_range", "w/", "w0"],
        &["put", "w/z", "v"],
        // It has no end.
        &["delete_range", ""],
    ];
    assert_eq!(columns(&watch("--prefix w/ --values --limit 8")), expected);
    let lines: Vec<Value> =
        watch("--limit 10 --json").lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((&lines[7]["start"], &lines[7]["end"]), (&"a".into(), &"b".into()), "{lines:?}");
    assert_eq!((&lines[9]["start"], lines[9].get("end")), (&"".into(), None), "{lines:?}");
}

/// A watch in another process.
struct Watching {
    child: Child,
    out: BufReader<ChildStdout>,
}

impl Watching {
    fn start(server: &Server, options: &str) -> Watching {
        let mut child = Klad::new(&format!("watch {options}")).at(server.address).spawn();
        let out = BufReader::new(child.stdout.take().unwrap());
        Watching { child, out }
    }

    /// Waits for the next change, and returns its key.
    fn key(&mut self) -> String {
        let mut line = String::new();
        self.out.read_line(&mut line).unwrap();
        line.trim_end().split('\t').nth(2).unwrap_or_else(|| panic!("{line:?}")).to_owned()
    }

    /// Waits for the end. Returns the exit code, and what follows on both outputs.
    fn end(mut self) -> (Option<i32>, String, String) {
        let (mut rest, mut said) = (String::new(), String::new());
        self.out.read_to_string(&mut rest).unwrap();
        self.child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        (self.child.wait().unwrap().code(), rest, said)
    }
}

#[test]
fn the_reason_for_the_end_of_a_feed_is_printed() {
    let server = ServerBuilder::new("rocksdb").arg("--drain-timeout", "5m").start();
    let last = put("a", &server);
    let mut watch = Watching::start(&server, "--from 0");
    assert_eq!(watch.key(), "a");
    assert!(server.stop().success());
    let (code, rest, said) = watch.end();
    assert_eq!((code, rest.as_str(), said.lines().count()), (Some(1), "", 1), "{said}");
    assert!(said.starts_with("klad watch: the server ended the stream: stopping: "), "{said}");
    assert!(said.ends_with(&format!("; --from {last} continues after the last change\n")), "{said}");
}

#[test]
fn a_watch_continues_after_the_server_was_killed() {
    let data = tempfile::tempdir().unwrap();
    let builder = ServerBuilder::new("rocksdb").data(data.path());
    let server = builder.start();
    put("before", &server);
    let mut watch = Watching::start(&server, "--from 0 --limit 5");
    assert_eq!(watch.key(), "before");
    put("a", &server);
    put("b", &server);
    let address = server.address;
    server.kill();
    let _kept = keep(address);
    let server = builder.listen(address).start();
    put("c", &server);
    put("d", &server);
    let keys: Vec<String> = (0..4).map(|_| watch.key()).collect();
    assert_eq!(keys, ["a", "b", "c", "d"], "each once");
    let (code, rest, said) = watch.end();
    assert_eq!((code, rest.as_str()), (Some(0), ""), "{said}");
    assert!(said.contains("; connecting again after version "), "{said}");
}

/// The answer of a feed that is cut behind `lines`.
fn cut(lines: &str) -> String {
    format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{:x}\r\n{lines}\r\n", lines.len())
}

fn change(version: u64) -> String {
    format!("{{\"op\":\"put\",\"key\":\"k\",\"version\":{version}}}\n")
}

/// Runs a watch against the answers. Returns what it said, and the targets of its requests.
fn run(options: &str, all: Vec<String>) -> (Output, Vec<String>) {
    let (address, thread) = answers(all);
    let said = Klad::new(&format!("watch {options}")).at(address).run();
    let requests = thread.join().unwrap();
    (said, requests.iter().map(|request| request.split(' ').nth(1).unwrap().to_owned()).collect())
}

#[test]
fn a_lost_connection_is_replaced_from_the_last_version_on() {
    let busy = whole_answer("503 Busy", "Klad-Retry-After-Ms: 1\r\n", "{\"code\":\"overloaded\"}");
    let proxies = ["502 Bad Gateway", "504 Gateway Timeout"].map(|status| whole_answer(status, "", "none answered"));
    let gone = whole_answer("410 Gone", "", "{\"code\":\"version-gone\",\"detail\":\"too late\"}");
    let error = "{\"error\":{\"code\":\"read-failed\",\"detail\":\"why\"}}\n";
    let feeds = vec![
        // Cut within a line, after a heartbeat, and before the first line.
        cut(&format!("{{\"heartbeat\":4}}\n{}{{\"op\":\"pu", change(5))),
        busy,
        proxies[0].clone(),
        proxies[1].clone(),
        cut("{\"heartbeat\":9}\n"),
        cut(""),
        cut(&format!("{}{error}", change(12))),
    ];
    let (said, targets) = run("--prefix k", feeds);
    assert_eq!(said.stdout, b"5\tput\tk\n12\tput\tk\n", "{said:?}");
    let from = |version: u64| format!("/v1/changes?prefix64=aw&from={version}");
    assert_eq!(targets, ["/v1/changes?prefix64=aw".to_owned(), from(5), from(5), from(5), from(5), from(9), from(9)]);
    let lines: Vec<_> = said.stderr.lines().collect();
    assert_eq!((said.code, lines.len()), (Some(1), 4), "{said:?}");
    assert!(lines[..3].iter().all(|line| line.contains("; connecting again after version ")), "{said:?}");
    let end = "klad watch: the server ended the stream: read-failed: why; --from 12 continues after the last change";
    assert_eq!(lines[3], end);

    let (said, _) = run("", vec![cut(&change(5)), gone.clone()]);
    assert_eq!((said.code, said.stderr.lines().count()), (Some(1), 2), "{said:?}");
    assert!(said.stderr.contains("version-gone: too late (status 410)"), "{said:?}");
    // The first connection is not repeated, and neither is a feed of which klad does not know the position.
    let (said, targets) = run("--from 3", vec![gone]);
    assert_eq!((said.code, targets.len(), said.stderr.lines().count()), (Some(1), 1, 1), "{said:?}");
    let (said, targets) = run("", vec![cut("")]);
    assert_eq!((said.code, targets.len(), said.stderr.lines().count()), (Some(1), 1, 1), "{said:?}");
}
