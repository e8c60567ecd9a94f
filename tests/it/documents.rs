//! Runs the sessions in the documents and compares what they print.
//!
//! The `sh` blocks of a document that call curl run in order against a new klad. If a `text` block follows, it is the
//! expected output: statuses, all headers but the date, and bodies. `...` in it stands for any text within a line, or,
//! as a whole line, for any number of lines. curl is called in no other kind of block.

use std::process::Command;

#[cfg(feature = "rocksdb")]
use super::support::ENGINES;
use super::support::{Server, ServerBuilder};

/// Documents with sessions, and the minimum number of their blocks.
const DOCUMENTS: &[(&str, usize)] = &[("README.md", 6), ("docs/http-api.md", 16), ("docs/operations.md", 4)];

/// Returns the code blocks, with the word after their fence.
fn blocks(text: &str) -> Vec<(String, String)> {
    let mut blocks = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if let Some(kind) = line.strip_prefix("```") {
            let body: Vec<_> = lines.by_ref().take_while(|line| !line.starts_with("```")).collect();
            blocks.push((kind.to_owned(), body.join("\n")));
        }
    }
    blocks
}

/// Runs the session of `document`. Returns what differs, and the number of blocks that ran.
fn complaints(document: &str, server: &Server) -> (Vec<String>, usize) {
    let (mut complaints, mut ran) = (Vec::new(), 0);
    let blocks = blocks(document);
    for (number, (kind, command)) in blocks.iter().enumerate() {
        if !command.lines().any(calls_curl) {
            continue;
        }
        if kind != "sh" {
            complaints.push(format!("a block of the kind {kind:?} is not run: {command}"));
            continue;
        }
        ran += 1;
        let here = with_addresses(command, server);
        if &here == command {
            complaints.push(format!("no address of klad in: {command}"));
            continue;
        }
        let output = Command::new("sh").args(["-ec", &here]).output().unwrap();
        let printed = String::from_utf8_lossy(&output.stdout).replace("\r\n", "\n");
        if !output.status.success() {
            complaints.push(format!("{command}\nended with {}", output.status));
        }
        if let Some((next, expected)) = blocks.get(number + 1).filter(|(kind, _)| kind == "text") {
            debug_assert_eq!(next, "text");
            let (printed, expected) = (comparable(&printed), comparable(expected));
            if !matches(&printed, &expected) {
                complaints.push(format!(
                    "{command}\nprinted\n{}\ninstead of\n{}",
                    printed.join("\n"),
                    expected.join("\n")
                ));
            }
        }
    }
    (complaints, ran)
}

fn calls_curl(line: &str) -> bool {
    line.trim_start_matches(['$', ' ']).starts_with("curl ")
}

fn with_addresses(command: &str, server: &Server) -> String {
    let (address, admin) = (server.address.to_string(), server.admin.to_string());
    let command = command.replace("localhost:8080", &address).replace("localhost:8081", &admin);
    // Of the klads of `make cluster`. One server stands for all of them.
    (1..=3).fold(command, |command, klad| command.replace(&format!("127.0.7.{klad}:8080"), &address))
}

// The documents show the versions of an engine on a disk.
#[cfg(feature = "rocksdb")]
#[test]
fn sessions_print_what_the_documents_say() {
    for (path, at_least) in DOCUMENTS {
        let document = std::fs::read_to_string(format!("{}/{path}", env!("CARGO_MANIFEST_DIR"))).unwrap();
        let (complaints, ran) =
            complaints(&document, &ServerBuilder::new(ENGINES[0]).arg("--changes-heartbeat", "1s").start());
        assert!(complaints.is_empty(), "{path}: {}", complaints.join("\n\n"));
        assert!(ran >= *at_least, "{path} shows a session of {ran} blocks");
    }
}

#[test]
fn twin_a_session_that_prints_something_else_is_noticed() {
    let server = ServerBuilder::new("memory").start();
    let wrong = [
        "```sh\ncurl -w '%{http_code}\\n' 'localhost:8080/v0/status'\n```\n```text\n201\n```\n",
        "```sh\ncurl --fail 'localhost:8080/v0/nothing'\n```\n",
        "```sh\ncurl --version\n```\n",
        "```console\n$ curl 'localhost:8080/v0/status'\n```\n",
    ];
    for document in wrong {
        let (complaints, _) = complaints(document, &server);
        assert_eq!(complaints.len(), 1, "{document}");
    }
}

/// Returns whether `printed` is `expected`, in which `...` stands for anything.
fn matches(printed: &[String], expected: &[String]) -> bool {
    let Some((first, rest)) = expected.split_first() else { return printed.is_empty() };
    if first == "..." {
        return (0..=printed.len()).any(|skipped| matches(&printed[skipped..], rest));
    }
    printed.split_first().is_some_and(|(line, others)| line_matches(line, first) && matches(others, rest))
}

fn line_matches(line: &str, pattern: &str) -> bool {
    let mut parts = pattern.split("...");
    let begin = parts.next().expect("at least one part");
    let Some(mut rest) = line.strip_prefix(begin) else { return false };
    let mut last = None;
    for part in parts {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
        last = Some(part);
    }
    match last {
        None => rest.is_empty(),
        Some(part) => part.is_empty() || line.ends_with(part),
    }
}

#[test]
fn only_dots_stand_for_anything() {
    let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
    let fits = |printed: &str, expected: &str| matches(&lines(printed), &lines(expected));
    assert!(fits("a 1 b\nc", "a ... b\nc") && fits("x\ny\nlast", "...\nlast") && fits("last", "...\nlast"));
    assert!(fits("a b", "a ...") && !fits("a 1 b 2", "a ... b") && !fits("a\nb", "a") && !fits("a", "a\nb"));
}

/// Returns the lines without the date.
fn comparable(text: &str) -> Vec<String> {
    let lines = text.trim_end().lines();
    lines.filter(|line| !line.to_ascii_lowercase().starts_with("date:")).map(str::to_owned).collect()
}
