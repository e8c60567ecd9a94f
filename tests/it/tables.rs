//! Options of RocksDB's tables: `--compression`, `--direct-reads`, and huge pages.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::support::command::Klad;
use super::support::{Server, ServerBuilder, wait_until};

/// Number of entries of a store.
const KEYS: u32 = 4000;

/// Returns random words, which LZ4 compresses and ZSTD compresses further.
fn value(index: u32) -> Vec<u8> {
    const WORDS: [&str; 8] =
        ["treasure ", "hoard ", "cache ", "compaction ", "memtable ", "durability ", "overload ", "percentile "];
    let mut random = fastrand::Rng::with_seed(index.into());
    (0..50).flat_map(|_| WORDS[random.usize(0..WORDS.len())].bytes()).collect()
}

fn fill(server: &Server) {
    let mut client = server.client();
    for index in 0..KEYS {
        let put = client.put(&format!("/v0/entity?id={index:08}&durability=async"), &value(index));
        assert_eq!(put.status, 201);
    }
}

/// Rewrites all tables of the server.
fn compact(server: &Server) {
    compact_with(server, "?bottommost=true");
}

fn compact_with(server: &Server, query: &str) {
    assert_eq!(server.ask_admin("POST", &format!("/compact{query}")).status, 202);
    let running =
        || serde_json::from_str::<serde_json::Value>(&server.admin("/compact").text()).unwrap()["running"].clone();
    wait_until("the compaction has ended", || running().is_null());
}

/// Returns the tables of a data directory.
fn tables(data: &Path) -> BTreeSet<PathBuf> {
    let files = std::fs::read_dir(data.join("rocksdb")).unwrap().map(|entry| entry.unwrap().path());
    files.filter(|file| file.extension().is_some_and(|extension| extension == "sst")).collect()
}

/// Returns the size of all tables, bytes.
fn table_bytes(data: &Path) -> u64 {
    tables(data).iter().map(|table| table.metadata().unwrap().len()).sum()
}

/// Checks that each size is at least a tenth smaller than the one before.
fn shrinks(bytes: &[u64]) -> Result<(), String> {
    if bytes.windows(2).all(|pair| pair[1] * 10 < pair[0] * 9) { Ok(()) } else { Err(format!("{bytes:?}")) }
}

/// Returns the bytes of tables that a server with this compression writes.
fn written_with(compression: &str) -> u64 {
    let data = tempfile::tempdir().unwrap();
    let server = ServerBuilder::new("rocksdb").data(data.path()).arg("--compression", compression).start();
    fill(&server);
    compact(&server);
    assert!(server.stop().success());
    table_bytes(data.path())
}

#[test]
fn tables_have_the_configured_compression_and_lz4_is_the_default() {
    let bytes = ["none", "lz4", "zstd"].map(written_with);
    shrinks(&bytes).unwrap();
    let data = tempfile::tempdir().unwrap();
    let server = ServerBuilder::new("rocksdb").data(data.path()).start();
    fill(&server);
    compact(&server);
    assert!(server.stop().success());
    let default = table_bytes(data.path());
    assert!(default.abs_diff(bytes[1]) * 20 < bytes[1], "{default} {bytes:?}");

    // Tables with another compression can be read, and rewritten on request.
    Klad::new("compact --bottommost --compression zstd --data").arg(data.path()).succeeds();
    assert!(table_bytes(data.path()).abs_diff(bytes[2]) * 20 < bytes[2], "{} {bytes:?}", table_bytes(data.path()));
    let server = ServerBuilder::new("rocksdb").data(data.path()).arg("--compression", "none").start();
    for index in (0..KEYS).step_by(97) {
        assert_eq!(server.client().get(&format!("/v0/entity?id={index:08}")).body, value(index));
    }
}

/// Compacts a store that was compacted before, with this query. Returns the number of new tables.
fn new_after_another(query: &str) -> usize {
    let data = tempfile::tempdir().unwrap();
    let server = ServerBuilder::new("rocksdb").data(data.path()).start();
    fill(&server);
    compact(&server);
    let before = tables(data.path());
    assert!(!before.is_empty());
    compact_with(&server, query);
    tables(data.path()).difference(&before).count()
}

#[test]
fn a_compaction_rewrites_the_last_level_only_on_request() {
    assert_eq!(new_after_another(""), 0);
}

#[test]
fn twin_a_compaction_that_rewrites_the_last_level_is_noticed() {
    assert_ne!(new_after_another("?bottommost=true"), 0);
}

#[test]
fn twin_an_option_without_effect_is_noticed() {
    shrinks(&["lz4", "lz4"].map(written_with)).expect_err("both are the same");
}

/// Checks that the server has tables open, and that all of them bypass the page cache.
#[cfg(target_os = "linux")]
fn reads_directly(server: &Server) -> Result<(), String> {
    let process = format!("/proc/{}", server.process());
    let mut flags = Vec::new();
    for entry in std::fs::read_dir(format!("{process}/fd")).unwrap() {
        let number = entry.unwrap().file_name().into_string().unwrap();
        let Ok(target) = std::fs::read_link(format!("{process}/fd/{number}")) else { continue };
        if target.extension().is_some_and(|extension| extension == "sst") {
            let info = std::fs::read_to_string(format!("{process}/fdinfo/{number}")).unwrap();
            let word = info.lines().find_map(|line| line.strip_prefix("flags:")).expect("flags").trim().to_owned();
            flags.push(i32::from_str_radix(&word, 8).unwrap());
        }
    }
    let direct = i32::try_from(rustix::fs::OFlags::DIRECT.bits()).unwrap();
    if !flags.is_empty() && flags.iter().all(|flags| flags & direct != 0) { Ok(()) } else { Err(format!("{flags:?}")) }
}

#[cfg(target_os = "linux")]
#[test]
fn direct_reads_bypass_the_page_cache_and_find_everything() {
    let data = tempfile::tempdir().unwrap();
    let start = |switch: &str| {
        ServerBuilder::new("rocksdb").data(data.path()).arg("--direct-reads", switch).arg("--value-cache", "0").start()
    };
    let server = start("on");
    fill(&server);
    compact(&server);
    assert!(server.stop().success());
    let server = start("on");
    for index in (0..KEYS).step_by(97) {
        assert_eq!(server.client().get(&format!("/v0/entity?id={index:08}")).body, value(index));
    }
    assert_eq!(server.client().get("/v0/entity?id=absent").status, 404);
    reads_directly(&server).unwrap();
    assert!(server.stop().success());
    // Twin: the option is off.
    reads_directly(&start("off")).expect_err("reads use the page cache");
}

/// Returns whether the kernel may give the server huge pages.
#[cfg(target_os = "linux")]
fn may_have_huge_pages(memory: &str) -> bool {
    let server = ServerBuilder::new("rocksdb").arg("--memory", memory).start();
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.process())).unwrap();
    status.lines().find_map(|line| line.strip_prefix("THP_enabled:")).expect("of Linux 5.0").trim() == "1"
}

#[cfg(target_os = "linux")]
#[test]
fn huge_pages_are_used_only_with_a_large_memory_budget() {
    assert_eq!(["64MiB", "511MiB", "512MiB"].map(may_have_huge_pages), [false, false, true]);
}
