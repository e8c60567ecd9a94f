//! The README's session is run as it stands, and must print what it says.

use std::process::Command;

use super::support::ServerBuilder;

/// Code blocks with the word behind their fence.
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

#[test]
fn the_readmes_session_prints_what_it_says() {
    let readme = include_str!("../../README.md");
    let server = ServerBuilder::new(super::support::ENGINES[0]).start();
    let mut compared = 0;
    for pair in blocks(readme).windows(2) {
        let [(kind, command), (next, expected)] = pair else { unreachable!() };
        if kind != "sh" || next != "text" || !command.starts_with("curl ") {
            continue;
        }
        let here = command.replace("localhost:8080", &server.address.to_string());
        assert_ne!(&here, command, "it speaks to the server: {command}");
        let output = Command::new("sh").args(["-c", &here]).output().unwrap();
        let printed = String::from_utf8_lossy(&output.stdout).replace("\r\n", "\n");
        assert_eq!(comparable(&printed), comparable(expected), "{command}");
        compared += 1;
    }
    assert!(compared >= 5, "the README shows a session of at least five steps, found {compared}");
}

/// Without what differs from run to run: the date, and which durability this engine can give.
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
