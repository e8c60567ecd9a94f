//! How klad ends: each reason has its code, and a last line for people with a word for programs.

use std::path::Path;
use std::process::Command;

use rustix::process::Signal;

use super::support::server::Failed;
use super::support::{ENGINES, ServerBuilder, wait_until};

/// The code, and that the last line ends in the word.
fn ended_with(failed: &Failed, code: i32, word: &str) {
    assert_eq!(failed.status.code(), Some(code), "{}", failed.log);
    let last = failed.log.lines().last().unwrap();
    assert!(last.starts_with("klad: ") && last.ends_with(&format!(" [{word}]")), "{last}");
}

fn refused(builder: &ServerBuilder) -> Failed {
    builder.try_start().err().expect("it cannot start")
}

#[test]
fn usage_is_2_and_a_bad_configuration_78() {
    let ended = Command::new(env!("CARGO_BIN_EXE_klad")).args(["serve", "--colour"]).output().unwrap();
    assert_eq!(ended.status.code(), Some(2));
    let said = String::from_utf8(ended.stderr).unwrap();
    assert!(said.contains("'--colour'") && said.trim_end().ends_with("[usage]"), "{said}");
    let help = Command::new(env!("CARGO_BIN_EXE_klad")).args(["serve", "--help"]).output().unwrap();
    assert_eq!((help.status.code(), help.stderr.len()), (Some(0), 0));
    ended_with(&refused(&ServerBuilder::new(ENGINES[0]).arg("--memory", "1MiB")), 78, "bad-configuration");
}

#[test]
fn a_busy_port_is_69_and_an_address_of_another_machine_68() {
    let server = ServerBuilder::new("memory").start();
    let busy = refused(&ServerBuilder::new(ENGINES[0]).listen(server.address));
    ended_with(&busy, 69, "port-in-use");
    let busy = refused(&ServerBuilder::new(ENGINES[0]).arg("--admin-listen", &server.address.to_string()));
    ended_with(&busy, 69, "port-in-use");
    // Of the addresses that stand for none (RFC 5737).
    let elsewhere = ServerBuilder::new(ENGINES[0]).listen("192.0.2.1:0".parse().unwrap()).flag("--insecure-listen");
    let elsewhere = refused(&elsewhere);
    ended_with(&elsewhere, 68, "address-unusable");
}

#[cfg(feature = "rocksdb")]
#[test]
fn a_directory_in_use_is_75() {
    let data = tempfile::tempdir().unwrap();
    let builder = ServerBuilder::new("rocksdb").data(data.path());
    let _server = builder.start();
    ended_with(&refused(&builder), 75, "data-locked");
}

#[cfg(feature = "rocksdb")]
#[test]
fn a_directory_that_cannot_be_made_is_74() {
    // Where the kernel lets nobody make one.
    ended_with(&refused(&ServerBuilder::new("rocksdb").data("/proc/klad/data".as_ref())), 74, "data-io");
}

/// A directory with one synced value, and the file `KLAD` in it.
#[cfg(feature = "rocksdb")]
fn used() -> (tempfile::TempDir, std::path::PathBuf, ServerBuilder) {
    let data = tempfile::tempdir().unwrap();
    let builder = ServerBuilder::new("rocksdb").data(data.path());
    let server = builder.start();
    assert_eq!(server.client().put("/v0/entity?id=k", b"value").status, 201);
    assert_eq!(server.stop().code(), Some(0));
    let manifest = data.path().join("KLAD");
    (data, manifest, builder)
}

#[cfg(feature = "rocksdb")]
fn is_intact(builder: &ServerBuilder) {
    assert_eq!(builder.start().client().get("/v0/entity?id=k").body, b"value");
}

#[cfg(feature = "rocksdb")]
#[test]
fn a_newer_directory_is_76_one_of_another_engine_66_and_a_damaged_one_65() {
    let (_data, manifest, builder) = used();
    let sound = std::fs::read_to_string(&manifest).unwrap();
    let changes = [("format = 1", "format = 2", 76, "data-newer"), ("rocksdb", "fjall", 66, "data-foreign")];
    for (from, to, code, word) in changes.into_iter().chain([("format = 1", "", 65, "data-damaged")]) {
        std::fs::write(&manifest, sound.replace(from, to)).unwrap();
        ended_with(&refused(&builder), code, word);
    }
    std::fs::write(&manifest, sound).unwrap();
    is_intact(&builder);
}

#[cfg(feature = "rocksdb")]
#[test]
fn a_directory_that_is_not_klads_is_66() {
    let data = tempfile::tempdir().unwrap();
    std::fs::write(data.path().join("holiday.jpg"), b"picture").unwrap();
    ended_with(&refused(&ServerBuilder::new("rocksdb").data(data.path())), 66, "data-foreign");
}

#[cfg(feature = "rocksdb")]
#[test]
fn files_of_rocksdb_that_are_missing_and_writes_that_are_lost_are_65() {
    let (data, _manifest, builder) = used();
    let current = data.path().join("rocksdb/CURRENT");
    let sound = std::fs::read(&current).unwrap();
    std::fs::write(&current, b"MANIFEST-garbage\n").unwrap();
    ended_with(&refused(&builder), 65, "data-damaged");
    std::fs::write(&current, sound).unwrap();
    is_intact(&builder);
    // More was synced, by the mark, than the log gives back.
    let mark = data.path().join("SYNCED");
    let before = std::fs::read(&mark).unwrap();
    std::fs::write(&mark, format!("synced_until = {0:020} {0:020}\n", 1_000_000)).unwrap();
    ended_with(&refused(&builder), 65, "data-damaged");
    std::fs::write(&mark, before).unwrap();
    is_intact(&builder);
}

#[test]
fn a_second_signal_is_1_at_once() {
    let mut server = ServerBuilder::new("memory").arg("--drain-timeout", "1h").start();
    // A request that keeps the stop waiting: its body comes, a byte at a time, but does not end.
    let mut client = server.client();
    client.send_raw(
        "PUT /v0/entity?id=k HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 1000000\r\n\r\n",
    );
    assert_eq!(client.any_answer().unwrap().status, 100);
    server.signal(Signal::TERM);
    wait_until("klad says that it stops", || {
        client.send_raw("v");
        server.log().contains("stopping")
    });
    server.signal(Signal::TERM);
    assert_eq!(server.wait().code(), Some(1));
    wait_until("the last word is there", || server.log().trim_end().ends_with("[second-signal]"));
}

#[test]
fn the_table_of_codes_is_the_one_in_the_documents() {
    let page = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/configuration.md")).unwrap();
    for exit in klad::exit::Exit::ALL {
        let row = format!("| {} | `{}` |", exit.code(), exit.word());
        assert!(page.contains(&row), "{row}");
    }
}
