//! What exports and imports must not lose: random entries with all that `/v1` stores beside a value.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{Client, Server, encode, random};

/// The forms of an export.
pub(crate) const FORMATS: [&str; 2] = ["ndjson", "cbor"];

/// Everything that a server has, by key: value, content type and encoding, metadata, and whether the entry expires.
pub(crate) type Store = BTreeMap<Vec<u8>, (Vec<u8>, [Option<String>; 2], BTreeMap<String, Value>, bool)>;

/// Reads a server by single requests, so that neither scans nor batches are trusted.
pub(crate) fn store(server: &Server, keys: impl IntoIterator<Item = Vec<u8>>) -> Store {
    let mut client = server.client();
    let mut store = Store::new();
    for key in keys {
        let answer = client.get(&format!("/v1/kv/{}", encode(&key)));
        if answer.status == 404 {
            continue;
        }
        assert_eq!(answer.status, 200, "{key:?}");
        let meta = answer.headers.iter().filter_map(|(name, value)| {
            let name = name.to_ascii_lowercase();
            Some((name.strip_prefix("klad-meta-")?.to_owned(), json!(value)))
        });
        let described = ["content-type", "content-encoding"].map(|name| answer.header(name).map(str::to_owned));
        let entry = (answer.body.clone(), described, meta.collect(), answer.header("klad-ttl").is_some());
        store.insert(key, entry);
    }
    store
}

/// Stores random entries by single requests. Returns their keys.
pub(crate) fn fill_randomly(client: &mut Client, count: usize) -> Vec<Vec<u8>> {
    let mut random = random();
    let mut keys = Vec::new();
    for _ in 0..count {
        let mut bytes = |most: usize| -> Vec<u8> { (0..random.usize(0..most)).map(|_| random.u8(..)).collect() };
        let (key, value) = ([&b"k"[..], &bytes(8)].concat(), bytes(400));
        let mut headers = Vec::new();
        if random.bool() {
            headers.push(("Content-Type", "text/x-\"quoted\"; a=b"));
        }
        if random.bool() {
            headers.push(("Content-Encoding", "x-none, gzip"));
        }
        if random.bool() {
            headers.push(("Klad-Meta-One", "with \\ and \" and \t"));
            headers.push(("Klad-Meta-Two", "Grüße"));
        }
        let ttl = if random.bool() { "&ttl=1h" } else { "" };
        let target = format!("/v1/kv/{}?durability=async{ttl}", encode(&key));
        let status = client.request("PUT", &target, &headers, Some(&value)).status;
        assert!([201, 204].contains(&status), "{status}");
        keys.push(key);
    }
    keys
}

/// Stores a value whose metadata is not UTF-8.
pub(crate) fn put_latin1(client: &mut Client) -> Vec<u8> {
    client.send_raw(b"PUT /v1/kv/latin1 HTTP/1.1\r\nHost: h\r\nKlad-Meta-Name: caf\xe9\r\nContent-Length: 1\r\n\r\nx");
    assert_eq!(client.answer().unwrap().status, 201);
    b"latin1".to_vec()
}
