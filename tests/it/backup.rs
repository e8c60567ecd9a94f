//! Runs the commands of docs/backup-and-repair.md unchanged.

use std::process::Command;

use super::support::ServerBuilder;

/// Returns the commands in the shell blocks.
fn commands(text: &str) -> Vec<String> {
    let mut commands = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if line == "```sh" {
            commands.extend(lines.by_ref().take_while(|line| *line != "```").map(str::to_owned));
        }
    }
    commands
}

#[test]
fn the_commands_of_the_page_do_what_the_page_says() {
    let place = tempfile::tempdir().unwrap();
    let server = ServerBuilder::new("rocksdb").data(&place.path().join("data")).start();
    let mut client = server.client();
    for key in ["a", "b", "c"] {
        assert_eq!(client.put(&format!("/v0/entity?id={key}"), b"all").status, 201);
    }
    let mut copied = false;
    let commands = commands(include_str!("../../docs/backup-and-repair.md"));
    for command in &commands {
        let run = |command: &str| {
            let program = format!("{} ", env!("CARGO_BIN_EXE_klad"));
            let here = command.replace("localhost:8081", &server.admin.to_string()).replace("klad ", &program);
            let output = Command::new("sh").args(["-c", &here]).current_dir(place.path()).output().unwrap();
            (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
        };
        if command.starts_with("cp ") {
            // An earlier command of the page has removed the checkpoint.
            let again = server.ask_admin("POST", "/checkpoint?name=before-upgrade");
            assert_eq!(again.status, 201, "{}", again.text());
            copied = true;
        }
        if command.starts_with("klad serve ") {
            let served = ServerBuilder::new("rocksdb").data(&place.path().join("backup")).start();
            assert_eq!(served.client().get("/v0/entity?id=c").body, b"all");
            assert_eq!(served.stop().code(), Some(0));
            continue;
        }
        let (code, out) = run(command);
        assert_eq!(code, Some(0), "{command}: {out}");
        let expected = match command.as_str() {
            "curl http://localhost:8081/checkpoints" => "\"name\": \"before-upgrade\"",
            "curl http://localhost:8081/compact" => "\"last\": \"",
            // The compaction may have ended already.
            "curl -X DELETE http://localhost:8081/compact" => "\"",
            one if one.contains("POST") && one.contains("checkpoint") => "\"versions_begin\": ",
            one if one.contains("DELETE") => "\"removed\": \"before-upgrade\"",
            one if one.contains("/compact") => "\"running\": ",
            one if one.starts_with("klad check") => {
                "backup is sound\nread 3 entries (0 expired), 3 B of keys and 9 B of values, "
            }
            one if one.starts_with("klad compact") => "backup is compacted: from ",
            _ => "",
        };
        assert!(out.contains(expected), "{command}: {out}");
    }
    assert!(copied && commands.len() >= 11, "{commands:?}");
}
