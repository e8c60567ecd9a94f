//! Resident memory: the copies of large values, ranges that clients read slowly, and connections.

use std::time::Duration;

use super::support::planted::Defect;
use super::support::tls::Authority;
use super::support::{Client, DURABLE_ENGINES, ServerBuilder, random, resident_bytes, status_bytes};

/// Many clients request a large value at the same time. A few get it, and the others are rejected before it is copied
/// for them.
fn copies_only_with_permits(engine: &str, defect: Option<Defect>) -> Result<(), String> {
    const VALUE_BYTES: usize = 12 << 20;
    // The queue itself rejects nothing.
    let patient = ServerBuilder::new(engine).arg("--queue-target", "1h").arg("--queue-age-max", "1h");
    let server = patient.arg("--memory", "64MiB").defect(defect).start();
    let target = "/v0/entity?id=large";
    assert_eq!(server.client().put(target, &vec![0; VALUE_BYTES]).status, 201);
    let mut clients: Vec<_> = (0..200).map(|_| server.client()).collect();
    for client in &mut clients {
        client.send("GET", target, &[], None).unwrap();
    }
    // All copies that are made before a client reads exist at the same time.
    std::thread::sleep(Duration::from_millis(500));
    for client in &mut clients {
        // The clients read one after the other. A late one may have been disconnected to free its permit.
        let Ok(answer) = client.answer() else { continue };
        match answer.status {
            200 => assert_eq!(answer.body.len(), VALUE_BYTES),
            503 => assert!(answer.text().contains("no-room"), "{}", answer.text()),
            other => panic!("{other}"),
        }
    }
    // The bound of `cargo xtask memory`, and a value for each storage thread.
    let bound = (64 << 20) * 11 / 10 + (64 << 20) + 4 * VALUE_BYTES as u64;
    let peak = status_bytes(server.process(), "VmHWM:");
    if peak > bound { Err(format!("{peak} bytes were resident, bound {bound}")) } else { Ok(()) }
}

#[test]
fn large_values_are_copied_only_with_permits() {
    for engine in DURABLE_ENGINES {
        copies_only_with_permits(engine, None).unwrap_or_else(|found| panic!("{engine}: {found}"));
    }
}

#[cfg(feature = "rocksdb")]
#[test]
fn twin_copies_without_permits_are_noticed() {
    copies_only_with_permits("rocksdb", Some(Defect::CopiesWithoutPermit)).expect_err("planted");
}

#[test]
fn a_slow_client_of_a_range_larger_than_memory_is_served_with_constant_memory() {
    for engine in DURABLE_ENGINES {
        a_slow_client_needs_no_memory(engine);
    }
}

fn a_slow_client_needs_no_memory(engine: &str) {
    const MEMORY: u64 = 64 << 20;
    const ENTRIES: usize = 6_000;
    const VALUE_BYTES: usize = 32 << 10;
    let server = ServerBuilder::new(engine).arg("--memory", "64MiB").arg("--durability", "async").start();
    let mut client = server.client();
    let mut random = random();
    for n in 0..ENTRIES {
        let value: Vec<u8> = std::iter::repeat_with(|| random.u8(..)).take(VALUE_BYTES).collect();
        client.store(&format!("/v0/entity?id={n:06}"), &value);
    }
    assert!((ENTRIES * VALUE_BYTES) as u64 > 2 * MEMORY, "more data than memory");
    client.send("GET", "/v0/entities?start=0", &[], None).unwrap();
    assert_eq!(client.head().unwrap().0, 200);
    let mut most = 0;
    for n in 0..ENTRIES {
        let chunk = client.chunk().unwrap().expect("not the last chunk");
        assert_eq!(chunk.len(), 7 + VALUE_BYTES);
        assert_eq!(&chunk[..7], format!("{n:06}\n").as_bytes());
        if n % 100 == 0 {
            // Slower than the server, so that the kernel's buffers are full and the server waits.
            std::thread::sleep(Duration::from_millis(5));
            most = most.max(resident_bytes(server.process()));
        }
    }
    assert_eq!(client.chunk().unwrap(), None);
    println!("resident memory at most {} MiB with --memory 64MiB", most >> 20);
    assert!(most <= MEMORY + MEMORY / 10 + (64 << 20), "{most} bytes");
}

#[test]
fn the_memory_of_a_connection_is_not_more_than_its_part_of_the_budget() {
    let authority = Authority::new();
    let server = authority.server().arg("--memory", "1GiB").start();
    let ask = |client: &mut Client| assert_eq!(client.get("/v0/entity?id=k").status, 404);
    // The first connections allocate memory that all of them share.
    let mut clients: Vec<Client> = (0..50).map(|_| authority.client(&server)).collect();
    clients.iter_mut().for_each(ask);
    let before = resident_bytes(server.process());
    clients.extend((0..400).map(|_| authority.client(&server)));
    clients[50..].iter_mut().for_each(ask);
    let each = resident_bytes(server.process()).saturating_sub(before) / 400;
    println!("{each} bytes for each connection");
    assert!(
        each <= klad_server::limits::CONNECTION_BYTES + klad_server::limits::TLS_CONNECTION_BYTES,
        "{each} bytes each"
    );
}
