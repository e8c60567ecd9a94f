//! Runs the sessions in the documents and compares what they print.
//!
//! A `sh` block that calls curl runs against a new klad, one for each document. If a `text` block follows, it is the
//! expected output. `...` in it stands for any text within a line, or, as a whole line, for any number of lines.

use std::process::Command;

use super::support::{ENGINES, Server, ServerBuilder};

/// Documents with sessions, and the minimum number of their blocks.
const DOCUMENTS: &[(&str, usize)] = &[("README.md", 5), ("docs/http-api.md", 3), ("docs/operations.md", 4)];

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
        if kind != "sh" || !command.lines().any(|line| line.starts_with("curl ")) {
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

fn with_addresses(command: &str, server: &Server) -> String {
    let (address, admin) = (server.address.to_string(), server.admin.to_string());
    command.replace("localhost:8080", &address).replace("localhost:8081", &admin)
}

#[test]
fn sessions_print_what_the_documents_say() {
    for (path, at_least) in DOCUMENTS {
        // The operations page needs an engine on a disk.
        if cfg!(not(feature = "rocksdb")) && *path == "docs/operations.md" {
            continue;
        }
        let document = std::fs::read_to_string(format!("{}/{path}", env!("CARGO_MANIFEST_DIR"))).unwrap();
        let (complaints, ran) = complaints(&document, &ServerBuilder::new(ENGINES[0]).start());
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
    ];
    for document in wrong {
        let (complaints, ran) = complaints(document, &server);
        assert_eq!((complaints.len(), ran), (1, 1), "{document}");
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

/// Returns the lines without what differs between runs: the date, and without RocksDB also durability and versions.
fn comparable(text: &str) -> Vec<String> {
    text.trim_end()
        .lines()
        .filter(|line| !line.to_ascii_lowercase().starts_with("date:"))
        .map(|line| if cfg!(feature = "rocksdb") { line.to_owned() } else { without_engine(line) })
        .collect()
}

fn without_engine(line: &str) -> String {
    let lower = line.to_ascii_lowercase();
    for name in ["klad-durability:", "etag:", "klad-version:"] {
        if lower.starts_with(name) {
            return name.to_owned();
        }
    }
    line.to_owned()
}
