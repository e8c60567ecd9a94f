//! Memory that holds nothing: huge pages stay whole while a store's memory comes and goes, what is kept is bounded, and what is new was
//! touched before.

use std::time::Duration;

use serde_json::Value;

use super::support::metrics::Metrics;
use super::support::{Server, ServerBuilder, kernel, wait_until};

/// The least at which pages are huge and kept.
const MEMORY: &str = "512MiB";

/// What may be kept of it, as `docs/configuration.md` has it: a quarter.
const KEPT_MAX: u64 = 128 << 20;

/// For longer than the allocator keeps pages by itself, and than klad takes to look.
const LONG: Duration = Duration::from_secs(4);

/// An allocator that gives pages back by itself, little by little, and one that never does: what klad finds set it leaves so.
const LITTLE_BY_LITTLE: &str = "dirty_decay_ms:500";
const NEVER: &str = "dirty_decay_ms:-1";

fn start(engine: &str, malloc_conf: Option<&str>) -> Server {
    let builder = ServerBuilder::new(engine).arg("--memory", MEMORY).arg("--durability", "async");
    match malloc_conf {
        Some(conf) => builder.env("MALLOC_CONF", conf).start(),
        None => builder.start(),
    }
}

/// Where pages are never huge there is nothing to keep whole.
fn kernel_has_huge_pages() -> bool {
    let enabled = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
    enabled.contains("[always]") || enabled.contains("[madvise]")
}

/// Of the memory that is no file's, what is in huge pages that are whole, percent.
fn whole_percent(server: &Server) -> u64 {
    let rollup = std::fs::read_to_string(format!("/proc/{}/smaps_rollup", server.process())).unwrap();
    let kib = |name: &str| -> u64 {
        let line = rollup.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    };
    kib("AnonHugePages:") * 100 / kib("Anonymous:")
}

/// Memtables come and go, as does what flushes and a compaction take.
fn works_for_a_while(server: &Server) {
    let mut client = server.client();
    let flushes = || Metrics::scrape(server).sum("klad_rocksdb_flushes_total", &[]);
    let (before, mut round) = (flushes(), 0);
    wait_until("several flushes have ended", || {
        for key in 0..500 {
            client.store(&format!("/v0/entity?id={round}-{key}"), &[7; 8 << 10]);
        }
        round += 1;
        flushes() >= before + 6.0
    });
    std::thread::sleep(LONG);
}

#[cfg(feature = "rocksdb")]
#[test]
fn huge_pages_stay_whole_while_memtables_come_and_go() {
    if !kernel_has_huge_pages() {
        eprintln!("this kernel has no huge pages: nothing is shown");
        return;
    }
    let server = start("rocksdb", None);
    works_for_a_while(&server);
    let whole = whole_percent(&server);
    assert!(whole >= 60, "{whole} % of the memory is in huge pages that are whole");
    drop(server);
    let twin = start("rocksdb", Some(LITTLE_BY_LITTLE));
    // What is given back when a look comes is a matter of luck: the kernel may have put pages together again.
    wait_until("twin: pages that are given back little by little leave few that are whole", || {
        works_for_a_while(&twin);
        whole_percent(&twin) < 60
    });
}

/// What the allocator has and nobody uses, bytes.
fn free_bytes(server: &Server) -> u64 {
    let memory: Value = serde_json::from_slice(&server.admin("/debug/memory").body).unwrap();
    let allocator = &memory["allocator"];
    let bytes = |name: &str| allocator[name].as_u64().unwrap();
    bytes("resident_bytes").saturating_sub(bytes("active_bytes") + bytes("metadata_bytes"))
}

/// Twice as much as may be kept is stored and removed again.
fn stores_and_removes(server: &Server) {
    let mut client = server.client();
    let values = 2 * KEPT_MAX / (1 << 20);
    for key in 0..values {
        assert_eq!(client.put(&format!("/v0/entity?id={key}"), &vec![7; 1 << 20]).status, 201);
    }
    for key in 0..values {
        assert_eq!(client.delete(&format!("/v0/entity?id={key}")).status, 202);
    }
}

#[test]
fn more_free_memory_than_is_allowed_goes_back_to_the_kernel() {
    let server = start("memory", None);
    stores_and_removes(&server);
    wait_until("it goes back", || free_bytes(&server) <= KEPT_MAX);
    let twin = start("memory", Some(NEVER));
    stores_and_removes(&twin);
    std::thread::sleep(LONG);
    assert!(free_bytes(&twin) > KEPT_MAX, "twin: {} although none is given back", free_bytes(&twin));
}

/// Threads of the allocator's own.
fn allocator_threads(server: &Server) -> usize {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", server.process())).unwrap();
    let name = |task: std::path::PathBuf| std::fs::read_to_string(task.join("comm")).unwrap_or_default();
    tasks.flatten().filter(|task| name(task.path()).starts_with("jemalloc")).count()
}

#[test]
fn an_allocator_that_gives_nothing_back_has_no_thread_that_each_free_wakes() {
    let server = start("memory", None);
    assert_eq!(allocator_threads(&server), 0);
    let twin = start("memory", Some(LITTLE_BY_LITTLE));
    wait_until("twin: it is there, and has something to do", || allocator_threads(&twin) > 0);
}

/// Of the mapping from which memory is taken that was touched before, what is resident, bytes: it is as long as `MEMORY`.
fn ready_bytes(server: &Server) -> Option<u64> {
    let smaps = std::fs::read_to_string(format!("/proc/{}/smaps", server.process())).unwrap();
    let mut lines = smaps.lines();
    let kib = |line: &str| line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap();
    lines.find(|line| line.starts_with("Size:") && kib(line) == 512 << 10)?;
    lines.find(|line| line.starts_with("Rss:")).map(|line| kib(line) << 10)
}

#[test]
fn a_store_that_grows_takes_memory_that_was_touched_before() {
    /// Eight are touched before anybody has come.
    const GROWN: u64 = 24 << 20;
    if !kernel_has_huge_pages() || kernel() < (6, 4) {
        eprintln!("{:?}: without huge pages, or with faults that lock too much, nothing is touched before", kernel());
        return;
    }
    let fills = |server: &Server, round: u64| {
        let mut client = server.client();
        for key in 0..128 {
            client.store(&format!("/v0/entity?id={round}-{key}"), &[7; 8 << 10]);
        }
    };
    let server = start("memory", None);
    let mut round = 0;
    while ready_bytes(&server).unwrap() < GROWN {
        fills(&server, round);
        round += 1;
        assert!(round < 300, "{} of {round} MiB are where they were touched", ready_bytes(&server).unwrap() >> 20);
        // What touches gets what the other tests leave of the cores.
        std::thread::sleep(Duration::from_millis(30));
    }
    let twin = start("memory", Some(LITTLE_BY_LITTLE));
    fills(&twin, 0);
    assert_eq!(ready_bytes(&twin), None, "twin: it touches what it needs itself");
}
