//! `--engine cassandra` through klad's socket: what only this engine does. The tests of every engine run on it, too.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::support::cassandra::{self, Cluster, Klads};
use super::support::history::History;
use super::support::one_key::verdict;
use super::support::scrape::Scrape;
use super::support::{Client, Server, ServerBuilder, random, wait_until};

/// Sends lines as a batch. Returns status and code, or the statuses of the items.
fn batch(client: &mut Client, parameters: &str, lines: &str) -> Result<Vec<u64>, (u16, String)> {
    let headers = [("Content-Type", "application/x-ndjson")];
    let answer = client.request("POST", &format!("/v1/batch{parameters}"), &headers, Some(lines.as_bytes()));
    if answer.status != 200 {
        return Err(verdict(&answer));
    }
    let status = |line: &str| serde_json::from_str::<serde_json::Value>(line).unwrap()["status"].as_u64().unwrap();
    Ok(answer.text().lines().map(status).collect())
}

#[test]
fn every_answer_says_how_many_copies_have_acknowledged_a_write() {
    let Some(cluster) = cassandra::whole() else { return };
    let klads = Klads::start(cluster);
    let mut client = klads.client(0);
    for (target, acks) in [
        ("/v0/entity?id=k", 2),
        ("/v0/entity?id=k&ack=1&from=3", 1),
        ("/v0/entity?id=k&ack=3", 3),
        ("/v1/kv/k", 2),
        ("/v1/kv/k?ack=3&from=3", 3),
    ] {
        let answer = client.put(target, b"v");
        let expected = format!("replicated; acks={acks}");
        assert_eq!(answer.header("klad-durability"), Some(expected.as_str()), "{target}");
    }
    let conditional = client.request("PUT", "/v1/kv/k?ack=1&from=3", &[("If-Match", "*")], Some(b"w"));
    assert_eq!(conditional.header("klad-durability"), Some("replicated; acks=2"), "a condition needs a majority");
}

#[test]
fn an_atomic_batch_is_possible_within_one_directory_only() {
    let Some(cluster) = cassandra::whole() else { return };
    let klads = Klads::start(cluster);
    let mut client = klads.client(0);
    let put = |key: &str| format!("{{\"op\":\"put\",\"key\":\"{key}\",\"value\":\"v\"}}\n");
    let apart: String = (0..20).map(|number| put(&format!("directory{number}/key"))).collect();
    assert_eq!(batch(&mut client, "?atomic=true", &apart), Err((501, "not-supported-by-engine".to_owned())));
    assert_eq!(client.get("/v1/kv/directory0/key").status, 404, "nothing was stored");
    assert_eq!(batch(&mut client, "", &apart), Ok(vec![200; 20]));
    let together: String = (0..20).map(|number| put(&format!("one/key{number}"))).collect();
    assert_eq!(batch(&mut client, "?atomic=true", &together), Ok(vec![200; 20]));
    // One item whose condition fails undoes the others.
    let fails = "{\"op\":\"put\",\"key\":\"one/key0\",\"value\":\"w\",\"if_none_match\":\"*\"}\n";
    let all = format!("{}{fails}", put("one/new"));
    assert_eq!(batch(&mut client, "?atomic=true", &all), Err((412, "precondition-failed".to_owned())));
    assert_eq!(client.get("/v1/kv/one/new").status, 404);
    let holds = fails.replace("one/key0", "one/other");
    let add = "{\"op\":\"add\",\"key\":\"one/counter\",\"by\":5}\n";
    let all = format!("{}{holds}{add}{{\"op\":\"get\",\"key\":\"one/counter\"}}\n", put("one/new"));
    assert_eq!(batch(&mut client, "?atomic=true", &all), Ok(vec![200; 4]));
    assert_eq!(klads.client(1).get("/v1/kv/one/counter").text(), "5");
}

#[test]
fn what_cassandra_has_not_is_501_with_its_name() {
    let Some(cluster) = cassandra::whole() else { return };
    let klads = Klads::start(cluster);
    let answer = klads.client(0).get("/v1/changes");
    assert_eq!(verdict(&answer), (501, "not-supported-by-engine".to_owned()));
    assert!(answer.text().contains("--engine cassandra has no changes"), "{}", answer.text());
    let limits: serde_json::Value = serde_json::from_slice(&klads.client(0).get("/v1/limits").body).unwrap();
    assert_eq!((&limits["engine"], &limits["copies"]), (&"cassandra".into(), &3.into()), "{limits}");
    for (capability, has) in [("conditions", true), ("expiry", true), ("changes", false), ("snapshots", false)] {
        assert_eq!(limits["capabilities"][capability], has, "{capability}");
    }
}

/// Returns how many additions to one counter were answered with a number, with an unknown outcome, and otherwise.
fn count(klads: &Klads, servers: usize, clients: usize, each: usize) -> [usize; 3] {
    let counted = std::sync::Mutex::new([0; 3]);
    std::thread::scope(|scope| {
        for number in 0..clients {
            let (klads, counted) = (&klads, &counted);
            scope.spawn(move || {
                let mut client = klads.client(number % servers);
                for _ in 0..each {
                    let kind = match client.request("POST", "/v1/kv/d/counter?op=add&by=1", &[], None).status {
                        200 => 0,
                        500 => 1,
                        _ => 2,
                    };
                    counted.lock().unwrap()[kind] += 1;
                }
            });
        }
    });
    counted.into_inner().unwrap()
}

#[test]
fn no_addition_to_a_counter_is_lost_or_done_twice() {
    let Some(cluster) = cassandra::whole() else { return };
    let klads = Klads::start(cluster);
    let total = |klads: &Klads| klads.client(0).get("/v1/kv/d/counter").text().parse::<usize>().unwrap();
    let mut counted = 0..=0;
    for (servers, clients, each) in [(1, 64, 4), (3, 12, 25)] {
        let [done, unknown, rejected] = count(&klads, servers, clients, each);
        // How many are unknown depends on the machine: `cargo xtask cluster` counts them.
        println!("{servers} klads: {done} done, {unknown} unknown, {rejected} rejected");
        assert!(done > 0, "{servers} klads");
        counted = counted.start() + done..=counted.end() + done + unknown;
        assert!(counted.contains(&total(&klads)), "{} is not in {counted:?}", total(&klads));
    }
}

#[test]
fn a_scan_of_all_buckets_is_in_key_order_through_every_klad() {
    let Some(cluster) = cassandra::whole() else { return };
    let klads = Klads::start(cluster);
    let mut expected = Vec::new();
    for part in 0..4 {
        let mut lines = String::new();
        for number in 0..500 {
            let key = if number % 2 == 0 { format!("flat{part}-{number}") } else { format!("d{part}/{number}") };
            lines.push_str(&format!("{{\"op\":\"put\",\"key\":\"{key}\",\"value\":\"{number}\"}}\n"));
            expected.push(key);
        }
        batch(&mut klads.client(0), "", &lines).unwrap();
    }
    expected.sort();
    for klad in 0..3 {
        let answer = klads.client(klad).request("GET", "/v0/entities?start=%00", &[], None);
        assert_eq!(answer.status, 200);
        let listed = klads.client(klad).request("GET", "/v1/kv", &[("Accept", "application/x-ndjson")], None);
        let key =
            |line: &str| serde_json::from_str::<serde_json::Value>(line).unwrap()["key"].as_str().map(str::to_owned);
        let keys: Vec<String> = listed.text().lines().filter_map(key).collect();
        assert_eq!(keys, expected, "klad {klad}");
    }
}

#[test]
fn large_and_expiring_values_are_stored_as_they_are() {
    let Some(cluster) = cassandra::whole() else { return };
    let klads = Klads::start(cluster);
    for bytes in [0, 1, 512, 513, 64 << 10, 5 << 20] {
        let value = vec![b'v'; bytes];
        assert!(matches!(klads.client(0).put("/v1/kv/d/large", &value).status, 201 | 204));
        assert_eq!(klads.client(1).get("/v1/kv/d/large").body, value);
        assert_eq!(klads.client(0).put("/v0/entity?id=large", &value).status, 201);
        assert_eq!(klads.client(2).get("/v0/entity?id=large").body, value);
    }
    assert_eq!(klads.client(0).put("/v1/kv/d/short?ttl=100ms", b"v").status, 201);
    wait_until("the value has expired", || klads.client(1).get("/v1/kv/d/short").status == 404);
    assert_eq!(klads.client(0).put("/v1/kv/d/long?ttl=36500d", b"v").status, 201);
    assert!(klads.client(1).get("/v1/kv/d/long").header("klad-ttl").is_some());
}

/// Runs clients that write with and without conditions, count, remove and read few keys through three klads.
fn history(cluster: &Cluster, level: &str) -> History {
    static KEYSPACES: AtomicUsize = AtomicUsize::new(0);
    let keyspace = format!("history{}", KEYSPACES.fetch_add(1, Ordering::Relaxed));
    let init = cluster.command("cluster init --replication datacenter1:3");
    init.arg("--keyspace").arg(&keyspace).succeeds();
    let start = || cluster.builder(&keyspace).arg("--consistency", level).start();
    let klads: Vec<Server> = (0..cassandra::NODES).map(|_| start()).collect();
    let (mut history, mut random, sent) = (History::new(), random(), AtomicUsize::new(0));
    let mut clients: Vec<_> = (0..6).map(|number| history.recorder(number, random.fork())).collect();
    std::thread::scope(|scope| {
        for (number, client) in clients.iter_mut().enumerate() {
            let (address, sent) = (klads[number % klads.len()].address, &sent);
            scope.spawn(move || client.run(address, 100, sent));
        }
    });
    for client in clients {
        history.add(client);
    }
    println!("{level}: {} requests, {} with an unknown outcome", history.len(), history.unknown());
    history
}

#[test]
fn at_the_level_serial_all_requests_of_a_key_are_linearizable() {
    let Some(cluster) = cassandra::whole() else { return };
    history(cluster, "serial").check().unwrap_or_else(|found| panic!("{found}"));
}

/// With one copy asked, reads are stale, and plain writes do not know of conditional ones.
#[test]
fn twin_at_the_level_one_they_are_not() {
    let Some(cluster) = cassandra::whole() else { return };
    let found = (0..20).find_map(|_| history(cluster, "one").check().err()).expect("not linearizable");
    assert!(found.starts_with("not linearizable"), "{found}");
}

#[test]
fn the_keyspace_is_checked_and_shown() {
    let Some(cluster) = cassandra::whole() else { return };
    let missing = cluster.builder("missing").try_start().err().expect("no keyspace");
    assert_eq!(missing.status.code(), Some(73), "{}", missing.log);
    let init = |buckets: &str| {
        let init = cluster.command("cluster init --replication datacenter1:3 --keyspace checked");
        init.arg("--buckets").arg(buckets)
    };
    let made = String::from_utf8(init("4").succeeds()).unwrap();
    assert!(made.contains("4 buckets, 3 copies in datacenter1"), "{made}");
    init("4").succeeds();
    assert_eq!(init("5").run().code, Some(73));
    let server: Server = cluster.builder("checked").start();
    let shown = cluster.command("cluster status --keyspace checked --json").succeeds();
    let shown: serde_json::Value = serde_json::from_slice(&shown).unwrap();
    assert_eq!(shown["nodes"].as_array().unwrap().len(), cassandra::NODES, "{shown}");
    assert_eq!((&shown["keyspace"]["buckets"], &shown["keyspace"]["starts"]), (&4.into(), &1.into()), "{shown}");
    for node in 0..cassandra::NODES {
        let line = format!("klad_cluster_node_connected{{node=\"{}\"}} 1", cluster.address(node));
        wait_until(&line, || Scrape::of(&server).text.lines().any(|found| found == line));
    }
    let elsewhere = ServerBuilder::new("cassandra")
        .arg("--contact-points", &cluster.contact_points())
        .arg("--request-timeout", "15s")
        .arg("--keyspace", "checked")
        .arg("--local-datacenter", "nowhere");
    let elsewhere = elsewhere.try_start().err().expect("no such data centre");
    assert_eq!(elsewhere.status.code(), Some(78), "{}", elsewhere.log);
}
