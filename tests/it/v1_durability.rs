//! Batches and removals of ranges with a log whose syncs are held or fail: no client sees a change, or gets its answer,
//! before its sync, and after a failed sync klad takes no change until the next start.

use std::time::Duration;

use serde_json::{Value, json};

use super::support::batches::{NDJSON, batch, lines, results};
use super::support::planted::Defect;
use super::support::scanning::{Format, keys, scan};
use super::support::shim::Shim;
use super::support::{
    Client, DURABLE_ENGINES, PATIENCE, ServerBuilder, durable_setups, durable_strategies, wait_until,
};

const KEYS: [&str; 3] = ["k1", "k2", "k3"];

fn puts(value: &str) -> Vec<Value> {
    KEYS.iter().map(|key| json!({"op": "put", "key": key, "value": value})).collect()
}

/// The values of all keys, each read by itself.
fn values(client: &mut Client) -> Vec<String> {
    KEYS.iter().map(|key| client.get(&format!("/v1/kv/{key}"))).map(|answer| answer.text()).collect()
}

/// Holds the sync of a request that changes all keys. Returns an error if the change can be seen, or is answered.
fn waits_for_its_sync(
    setup: &str,
    method: &str,
    target: &str,
    body: &[u8],
    defect: Option<Defect>,
) -> Result<(), String> {
    let shim = Shim::new();
    // One worker for each client, because `inline` blocks that of the writer.
    let server = shim.preload(ServerBuilder::new(setup).arg("--threads", "4").defect(defect)).start();
    let mut reader = server.client();
    for key in KEYS {
        // The planted defects give no results, without which a PUT of `/v1` has no answer.
        assert_eq!(reader.put(&format!("/v0/entity?id={key}"), b"old").status, 201);
    }
    wait_until("the first values are synced; a defective server may have answered before", || {
        values(&mut reader) == ["old"; 3]
    });
    shim.hold();
    let mut writer = server.client();
    writer.send(method, target, &[("Content-Type", NDJSON)], Some(body)).unwrap();
    shim.wait_until_held();
    // With this defect the answer arrives, however late on a busy machine.
    let answers = defect == Some(Defect::AcknowledgesBeforeSync);
    let silent = writer.is_silent_for(if answers { PATIENCE } else { Duration::from_millis(200) });
    let seen = (values(&mut reader), keys(&scan(&mut reader, "", Format::JsonLines)?.listed).len());
    shim.pass();
    if !silent {
        return Err("it was answered before its sync".to_owned());
    }
    if seen != (vec!["old".to_owned(); 3], 3) {
        return Err(format!("it was seen before its sync: {seen:?}"));
    }
    let answer = writer.answer().unwrap();
    assert!(answer.status < 300, "{}", answer.text());
    assert!(values(&mut reader).iter().all(|value| value != "old"), "{setup} {method} {target}");
    Ok(())
}

#[test]
fn a_change_of_many_keys_is_answered_and_seen_only_after_its_sync() {
    let check = |setup: &str, method: &str, target: &str, body: &[u8]| {
        waits_for_its_sync(setup, method, target, body, None)
            .unwrap_or_else(|found| panic!("{setup} {target}: {found}"));
    };
    let conditional: Vec<Value> = KEYS.iter().map(|key| json!({"op":"expire","key":key,"ttl":0.001})).collect();
    for setup in durable_setups() {
        check(setup, "POST", "/v1/batch", &lines(&puts("new")));
        check(setup, "DELETE", "/v1/kv?prefix=k", b"");
    }
    for engine in DURABLE_ENGINES {
        check(engine, "POST", "/v1/batch?atomic=true", &lines(&puts("new")));
        check(engine, "POST", "/v1/batch", &lines(&conditional));
        check(engine, "DELETE", "/v1/kv?all=true&durability=sync", b"");
    }
}

#[test]
fn twin_a_batch_that_is_answered_or_seen_before_its_sync_is_noticed() {
    for engine in DURABLE_ENGINES {
        let check = |setup: &str, defect| {
            waits_for_its_sync(setup, "POST", "/v1/batch", &lines(&puts("new")), Some(defect)).expect_err("planted")
        };
        let found = check(&format!("{engine}/pool"), Defect::AcknowledgesBeforeSync);
        assert_eq!(found, "it was answered before its sync", "{engine}");
        assert!(check(engine, Defect::VisibleBeforeSync).starts_with("it was seen before its sync"), "{engine}");
    }
}

#[test]
fn after_a_failed_sync_no_change_of_many_keys_is_taken() {
    for setup in durable_strategies() {
        println!("setup {setup}");
        let (shim, data) = (Shim::new(), tempfile::tempdir().unwrap());
        let builder = ServerBuilder::new(setup).data(data.path());
        let server = shim.preload(builder.clone()).start();
        let mut client = server.client();
        assert_eq!(results(&batch(&mut client, "", &puts("old"))).len(), 3);
        shim.fail_syncs();
        let failed = batch(&mut client, "?atomic=true", &puts("new"));
        let document: Value = serde_json::from_slice(&failed.body).unwrap();
        assert_eq!((failed.status, &document["code"]), (500, &"undetermined".into()), "{document}");
        shim.pass();
        let add = json!({"op": "add", "key": "n", "by": 1});
        for (method, target, body) in [
            ("POST", "/v1/batch", lines(&puts("later"))),
            ("POST", "/v1/batch?durability=async", lines(&[json!({"op": "get", "key": "k1"}), add])),
            ("DELETE", "/v1/kv?prefix=k", Vec::new()),
            ("POST", "/v1/kv/n?op=add&by=1", Vec::new()),
            ("POST", "/v1/kv/k1?op=expire&ttl=1ms", Vec::new()),
        ] {
            let answer = client.request(method, target, &[("Content-Type", NDJSON)], Some(&body));
            let document: Value = serde_json::from_slice(&answer.body).unwrap();
            let told = (answer.status, document["code"].as_str(), answer.header("retry-after"));
            assert_eq!(told, (503, Some("writes-stopped"), Some("30")), "{setup} {target}: {document}");
        }
        // Reads go on, with the state before.
        let gets: Vec<Value> = KEYS.iter().map(|key| json!({"op": "get", "key": key})).collect();
        let read = results(&batch(&mut client, "", &gets));
        assert!(read.iter().all(|result| result["value"] == "old"), "{setup}: {read:?}");
        assert_eq!(values(&mut client), ["old"; 3], "{setup}");
        server.kill();
        let found = values(&mut builder.start().client());
        assert!(found == ["old"; 3] || found == ["new"; 3], "{setup}: whole or absent, not {found:?}");
    }
}
