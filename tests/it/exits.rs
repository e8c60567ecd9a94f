//! Exit codes: each reason has its code, and the last line on stderr ends with its word.

use std::path::Path;
use std::process::Command;

use rustix::process::Signal;

use super::support::metrics::Metrics;
use super::support::server::Failed;
use super::support::{ENGINES, ServerBuilder, wait_until};

/// Checks the exit code, and the word at the end of the last line.
fn ended_with(failed: &Failed, code: i32, word: &str) {
    assert_eq!(failed.status.code(), Some(code), "{}", failed.log);
    let last = failed.log.lines().last().unwrap();
    assert!(last.starts_with("klad: ") && last.ends_with(&format!(" [{word}]")), "{last}");
}

fn refused(builder: &ServerBuilder) -> Failed {
    builder.try_start().err().expect("does not start")
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
    assert!(busy.log.contains("stop it, or choose another port with --listen"), "{}", busy.log);
    let busy = refused(&ServerBuilder::new(ENGINES[0]).arg("--admin-listen", &server.address.to_string()));
    ended_with(&busy, 69, "port-in-use");
    // A documentation address (RFC 5737), which no machine has.
    let elsewhere = ServerBuilder::new(ENGINES[0]).listen("192.0.2.1:0".parse().unwrap()).flag("--insecure-listen");
    let elsewhere = refused(&elsewhere);
    ended_with(&elsewhere, 68, "address-unusable");
}

#[cfg(feature = "rocksdb")]
#[test]
fn a_directory_in_use_is_75() {
    let data = tempfile::tempdir().unwrap();
    let builder = ServerBuilder::new("rocksdb").data(data.path());
    let server = builder.start();
    let locked = refused(&builder);
    ended_with(&locked, 75, "data-locked");
    let says = format!("(process id {}): stop it, or choose another directory [data-locked]\n", server.process());
    assert!(locked.log.ends_with(&says), "{}", locked.log);
}

#[cfg(feature = "rocksdb")]
#[test]
fn a_directory_that_cannot_be_created_is_74() {
    // The kernel allows no directory here.
    ended_with(&refused(&ServerBuilder::new("rocksdb").data("/proc/klad/data".as_ref())), 74, "data-io");
}

/// Returns a directory with one synced value and the file `KLAD`.
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
fn a_directory_of_another_program_is_66() {
    let data = tempfile::tempdir().unwrap();
    std::fs::write(data.path().join("holiday.jpg"), b"picture").unwrap();
    ended_with(&refused(&ServerBuilder::new("rocksdb").data(data.path())), 66, "data-foreign");
}

#[cfg(feature = "rocksdb")]
#[test]
fn missing_files_of_rocksdb_and_lost_writes_are_65() {
    let (data, _manifest, builder) = used();
    let current = data.path().join("rocksdb/CURRENT");
    let sound = std::fs::read(&current).unwrap();
    std::fs::write(&current, b"MANIFEST-garbage\n").unwrap();
    ended_with(&refused(&builder), 65, "data-damaged");
    std::fs::write(&current, sound).unwrap();
    is_intact(&builder);
    // By the mark, more was synced than the log contains.
    let mark = data.path().join("SYNCED");
    let before = std::fs::read(&mark).unwrap();
    std::fs::write(&mark, format!("synced_until = {0:020} {0:020}\n", 1_000_000)).unwrap();
    ended_with(&refused(&builder), 65, "data-damaged");
    std::fs::write(&mark, before).unwrap();
    is_intact(&builder);
}

#[test]
fn a_second_signal_ends_klad_at_once_with_1() {
    let mut server = ServerBuilder::new("memory").arg("--drain-timeout", "1h").arg("--engine-delay", "1h").start();
    // A request that keeps klad waiting for an hour, whatever the client does.
    let mut client = server.client();
    client.send("GET", "/v0/entity?id=k", &[], None).unwrap();
    wait_until("the request has begun", || Metrics::scrape(&server).in_flight() == 1);
    server.signal(Signal::TERM);
    wait_until("klad logs that it stops", || server.log().contains("stopping"));
    server.signal(Signal::TERM);
    assert_eq!(server.wait().code(), Some(1));
    wait_until("the last line is written", || server.log().trim_end().ends_with("[second-signal]"));
}

#[test]
fn the_table_of_codes_is_in_the_documents() {
    let page = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/configuration.md")).unwrap();
    for exit in klad::exit::Exit::ALL {
        let row = format!("| {} | `{}` |", exit.code(), exit.word());
        assert!(page.contains(&row), "{row}");
    }
}
