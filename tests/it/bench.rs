//! The requests that `klad bench` sends: keys, values and operations as klad stores them, and fixed requests byte for
//! byte.

use std::collections::BTreeSet;

use super::support::bencher::{Bencher, Run, together};
use super::support::scripted::{Script, Scripted};
use super::support::{Server, ServerBuilder, encode};

fn klad() -> Server {
    ServerBuilder::new("memory").start()
}

fn bencher(server: &Server, options: &str) -> Bencher {
    Bencher::new(&format!("http://{}", server.address), options)
}

/// Returns the value of a key in klad; `None` if it has none.
fn value(server: &Server, key: &str) -> Option<Vec<u8>> {
    let answer = server.client().get(&format!("/v0/entity?id={}", encode(key.as_bytes())));
    assert!(matches!(answer.status, 200 | 404), "{answer:?}");
    (answer.status == 200).then_some(answer.body)
}

/// Returns the number of keys with the numbers from 0 on that exist without a gap. No key may follow the first gap.
fn keys_in_sequence(server: &Server, name: impl Fn(u64) -> String) -> u64 {
    let count = (0..10_000).find(|number| value(server, &name(*number)).is_none()).unwrap();
    for after in count + 1..count + 20 {
        assert_eq!(value(server, &name(after)), None, "key {after} is there, and {count} is not");
    }
    count
}

#[test]
fn put_writes_keys_of_the_given_format_with_values_of_the_given_size() {
    let server = klad();
    let run =
        bencher(&server, "--workload put --key-format key{:07} --value-size 64B --threads 3 --connections 50").run();
    let count = keys_in_sequence(&server, |number| format!("key{number:07}"));
    assert_eq!((count, run.measured("sent")), (50, 50), "each key is sent once");
    assert_eq!((run.measured("outcomes/served"), run.measured("statuses/201")), (count, count));
    let values: BTreeSet<_> = (0..count).map(|number| value(&server, &format!("key{number:07}")).unwrap()).collect();
    assert!(values.iter().all(|value| value.len() == 64));
    assert_eq!(values.len() as u64, count, "all values differ");
}

#[test]
fn values_may_have_a_range_of_sizes_or_be_made_from_the_number_of_the_key() {
    let (range, format) = (klad(), klad());
    let runs = together(&[
        bencher(&range, "--workload put --value-size 10B..20B --key-start 7"),
        bencher(&format, "--workload put --value-format <{:04}>"),
    ]);
    runs.iter().for_each(Run::assert_all_served);
    assert_eq!(value(&range, "key6"), None);
    let sizes: BTreeSet<_> = (7..57).map(|number| value(&range, &format!("key{number}")).unwrap().len()).collect();
    assert!(sizes.iter().all(|size| (10..=20).contains(size)) && sizes.len() > 3, "{sizes:?}");
    assert_eq!(value(&format, "key42").unwrap(), b"<0042>");
}

/// Finds key numbers that were sent more than once, or that are missing below the highest one.
fn sequence_faults(requests: &[Vec<u8>]) -> Vec<String> {
    let number = |request: &Vec<u8>| {
        let text = String::from_utf8_lossy(request).into_owned();
        let rest = text.strip_prefix("PUT /v0/entity?id=key").unwrap_or_else(|| panic!("{text}"));
        rest.split_whitespace().next().unwrap().parse::<usize>().unwrap()
    };
    let mut times = vec![0; requests.len()];
    let mut faults = Vec::new();
    for number in requests.iter().map(number) {
        match times.get_mut(number) {
            Some(times) => *times += 1,
            None => faults.push(format!("key {number} was sent, but there are only {} requests", requests.len())),
        }
    }
    let wrong = times.iter().enumerate().filter(|(_, times)| **times != 1);
    faults.extend(wrong.map(|(number, times)| format!("key {number} was sent {times} times")));
    faults
}

#[test]
fn each_key_is_sent_once_over_all_threads_and_connections() {
    for load in ["--rate 2k/s", "--closed"] {
        let server = Scripted::start(Script::Answers);
        let options = format!("--workload put --threads 3 --connections 7 --value-size 1B {load}");
        let run = Bencher::new(&server.url(""), &options)
            .run_until("the connections are used again", || server.record().requests.len() > 300);
        let record = server.record();
        assert_eq!(record.requests.len() as u64, run.measured("sent"));
        assert_eq!(record.accepted, 7);
        assert_eq!(record.too_early, 0, "a connection carries one request at a time");
        assert_eq!(sequence_faults(&record.requests), Vec::<String>::new());
    }
}

#[test]
fn twin_a_key_that_is_sent_twice_is_noticed() {
    let put = |key: &u8| format!("PUT /v0/entity?id=key{key} HTTP/1.1").into_bytes();
    let found = |keys: &[u8]| sequence_faults(&keys.iter().map(put).collect::<Vec<_>>()).len();
    assert_eq!(found(&[0, 2, 1]), 0);
    assert_eq!(found(&[0, 0, 1]), 2, "one key twice, one key missing");
    assert_eq!(found(&[0, 1, 3]), 2);
}

#[test]
fn get_finds_every_filled_key() {
    let servers = [klad(), klad(), klad()];
    let orders = ["sequential --keys 60", "uniform", "zipfian"];
    let runs: Vec<_> = orders
        .iter()
        .zip(&servers)
        .map(|(order, server)| {
            bencher(server, &format!("--workload get --fill 60 --warm-up 100ms --key-order {order}"))
        })
        .collect();
    for (run, server) in together(&runs).iter().zip(&servers) {
        run.assert_all_served();
        assert_eq!((run.measured("statuses/200"), run.count("/warm_up/statuses/200")), (50, 10));
        assert_eq!(keys_in_sequence(server, |number| format!("key{number}")), 60);
    }
    // The twin: one key more than was filled.
    let run = bencher(&servers[0], "--workload get --keys 61 --rate 200/s").run();
    assert_eq!((run.measured("outcomes/not_found"), run.measured("statuses/404")), (1, 1));
}

#[test]
fn a_fill_keeps_to_the_limit_of_a_batch_s_length() {
    let server = ServerBuilder::new("memory").arg("--batch-bytes-max", "64KiB").start();
    bencher(&server, "--workload get --fill 10 --value-size 20KiB").run().assert_all_served();
    assert_eq!(keys_in_sequence(&server, |number| format!("key{number}")), 10);
}

#[test]
fn delete_removes_filled_keys() {
    let server = klad();
    let run = bencher(&server, "--workload delete --fill 60").run();
    run.assert_all_served();
    assert_eq!(run.measured("outcomes/served"), 50);
    let left: Vec<_> = (0..60).filter(|number| value(&server, &format!("key{number}")).is_some()).collect();
    assert_eq!(left, (50..60).collect::<Vec<_>>());
}

/// The number of served requests of one operation.
fn served(run: &Run, operation: &str) -> u64 {
    let cells = run.result["measured"]["cells"].as_array().unwrap();
    let own = cells.iter().filter(|cell| cell["operation"] == operation && cell["outcome"] == "served");
    own.map(|cell| cell["response"]["count"].as_u64().unwrap()).sum()
}

#[test]
fn mixed_workloads_send_both_operations_and_find_filled_keys() {
    let server = klad();
    let names = ["mixed:70/30", "ycsb-a", "ycsb-b", "ycsb-c"];
    let runs =
        names.map(|name| bencher(&server, &format!("--workload {name} --fill 50 --rate 600/s --connections 300")));
    let shares = together(&runs).into_iter().map(|run| {
        run.assert_all_served();
        (served(&run, "get"), served(&run, "put"))
    });
    // Each bound is more than five standard deviations away. The seed is fixed, so a run repeats.
    for ((gets, puts), (name, within)) in shares.zip(names.iter().zip([40..=140, 90..=210, 1..=45, 0..=0])) {
        assert_eq!(gets + puts, 300);
        assert!(within.contains(&puts), "{name}: {puts} of 300 are puts");
    }
    assert_eq!(keys_in_sequence(&server, |number| format!("key{number}")), 50, "puts replaced values and added no key");
}

#[test]
fn latest_adds_keys_and_never_reads_a_missing_key() {
    let server = klad();
    let options = "--workload mixed:50/50 --key-order latest --fill 20 --rate 600/s --threads 2 --connections 300";
    let run = bencher(&server, options).run();
    run.assert_all_served();
    let puts = served(&run, "put");
    assert!(puts > 50 && run.measured("outcomes/not_found") == 0);
    assert_eq!(keys_in_sequence(&server, |number| format!("key{number}")), 20 + puts);
}

#[test]
fn keys_of_a_file_may_have_any_bytes() {
    let server = klad();
    let file = tempfile::NamedTempFile::new().unwrap();
    let keys = ["plain", "two words", "a&b=c%20?#/", "Käse", "{key}", "50%"];
    std::fs::write(file.path(), keys.join("\r\n") + "\n\n").unwrap();
    let run = bencher(&server, "--workload put --value-format v{}").arg("--key-file", file.path()).run();
    run.assert_all_served();
    for (number, key) in keys.iter().enumerate() {
        assert_eq!(value(&server, key).unwrap(), format!("v{number}").into_bytes(), "{key}");
    }
    bencher(&server, "--workload get --fill 6").arg("--key-file", file.path()).run().assert_all_served();
}

#[test]
fn a_fixed_request_arrives_unchanged_each_time() {
    let server = Scripted::start(Script::Answers);
    let body = tempfile::NamedTempFile::new().unwrap();
    let bytes: Vec<u8> = (0..=255).chain(*b"\r\n\r\nGET / HTTP/1.1\r\n\r\n").collect();
    std::fs::write(body.path(), &bytes).unwrap();
    let file = format!("@{}", body.path().display());
    let run = Bencher::new(
        &server.url("/a/b?c=d&e=%2F"),
        "--method POST --threads 2 --connections 50 --rate 20/s --duration 2500ms",
    )
    .arg("--body", file)
    .arg("-H", "X-A: b")
    .arg("--header", "x-empty:")
    .run();
    run.assert_all_served();
    let head = format!(
        "POST /a/b?c=d&e=%2F HTTP/1.1\r\nHost: {}\r\nX-A: b\r\nx-empty: \r\nContent-Length: {}\r\n\r\n",
        server.address,
        bytes.len()
    );
    let expected = [head.as_bytes(), &bytes].concat();
    let record = server.record();
    assert_eq!(record.requests.len(), 50);
    for request in &record.requests {
        assert_eq!(String::from_utf8_lossy(request), String::from_utf8_lossy(&expected));
        assert_eq!(*request, expected);
    }
    assert_eq!(run.measured("bytes_sent"), expected.len() as u64 * 50);
}

#[test]
fn host_is_the_authority_of_the_url_unless_a_header_sets_it() {
    for (host, header, expected) in [
        ("localhost", None, "localhost:PORT"),
        ("127.0.0.1", Some("Host: other.example"), "other.example"),
        ("127.0.0.1", Some("HOST:third"), "third"),
    ] {
        let server = Scripted::start(Script::Answers);
        let bencher = Bencher::new(&format!("http://{host}:{}/x", server.address.port()), "--duration 100ms");
        let run = if let Some(header) = header { bencher.arg("-H", header).run() } else { bencher.run() };
        run.assert_all_served();
        let expected = expected.replace("PORT", &server.address.port().to_string());
        for request in &server.record().requests {
            let text = String::from_utf8_lossy(request);
            let hosts: Vec<_> = text.lines().filter(|line| line.to_ascii_lowercase().starts_with("host:")).collect();
            assert_eq!(hosts.len(), 1, "{text}");
            assert_eq!(hosts[0].split_once(':').unwrap().1.trim(), expected);
        }
    }
}

#[test]
fn an_answer_to_head_has_a_length_but_no_body() {
    let server = Scripted::start(Script::Answers);
    // With a schedule, a busy machine may leave the last requests without a free connection.
    let run = Bencher::new(&server.url("/"), "--method HEAD --connections 3 --closed")
        .run_until("the connections are used again", || server.record().requests.len() > 30);
    run.assert_all_served();
    assert_eq!(server.record().accepted, 3, "the connections stay open");
    let head = b"HTTP/1.1 200 Said\r\nContent-Length: 5\r\n\r\n".len() as u64;
    assert_eq!(run.measured("bytes_received"), run.measured("sent") * head);
}

#[test]
fn every_placeholder_in_the_url_is_replaced() {
    let server = Scripted::start(Script::Answers);
    Bencher::new(&server.url("/kv/{key}/x?k={key}"), "--workload get --keys 2 --key-format k{} --duration 100ms").run();
    let record = server.record();
    let mut lines: Vec<_> =
        record.requests.iter().map(|request| request.split(|byte| *byte == b'\r').next().unwrap()).collect();
    lines.sort_unstable();
    lines.dedup();
    assert_eq!(lines, [b"GET /kv/k0/x?k=k0 HTTP/1.1".as_slice(), b"GET /kv/k1/x?k=k1 HTTP/1.1"]);
}
