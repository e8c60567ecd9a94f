//! Batches of `/v1` in both formats.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use minicbor::data::Type;
use minicbor::{Decoder, Encoder};
use serde_json::{Value, json};

use super::{Answer, Client};

pub(crate) const NDJSON: &str = "application/x-ndjson";
pub(crate) const CBOR: &str = "application/cbor-seq";

/// Sends a batch as lines of JSON.
pub(crate) fn batch(client: &mut Client, query: &str, items: &[Value]) -> Answer {
    send(client, query, &[("Content-Type", NDJSON)], &lines(items))
}

pub(crate) fn send(client: &mut Client, query: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
    client.request("POST", &format!("/v1/batch{query}"), headers, Some(body))
}

pub(crate) fn lines(items: &[Value]) -> Vec<u8> {
    items.iter().flat_map(|item| format!("{item}\n").into_bytes()).collect()
}

/// The results of an answer, from both formats.
pub(crate) fn results(answer: &Answer) -> Vec<Value> {
    assert_eq!(answer.status, 200, "{}", answer.text());
    match answer.header("content-type") {
        Some(NDJSON) => answer.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect(),
        Some(CBOR) => {
            let mut decoder = Decoder::new(&answer.body);
            let mut results = Vec::new();
            while decoder.position() < answer.body.len() {
                results.push(from_cbor(&mut decoder));
            }
            results
        }
        other => panic!("{other:?}"),
    }
}

/// Does a batch, and returns its results without their members `etag`.
pub(crate) fn done(client: &mut Client, query: &str, items: &[Value]) -> Vec<Value> {
    let mut results = results(&batch(client, query, items));
    for result in &mut results {
        result.as_object_mut().unwrap().remove("etag");
    }
    results
}

/// The maps of a CBOR sequence. `key64` and `value64` become byte strings.
pub(crate) fn sequence(items: &[Value]) -> Vec<u8> {
    let mut out = Vec::new();
    for item in items {
        to_cbor(&mut Encoder::new(&mut out), item);
    }
    out
}

fn to_cbor(to: &mut Encoder<&mut Vec<u8>>, value: &Value) {
    match value {
        Value::Null => drop(to.null().unwrap()),
        Value::Bool(switch) => drop(to.bool(*switch).unwrap()),
        Value::Number(number) => match number.as_i64() {
            Some(number) => drop(to.i64(number).unwrap()),
            None => drop(to.f64(number.as_f64().unwrap()).unwrap()),
        },
        Value::String(text) => drop(to.str(text).unwrap()),
        Value::Array(all) => {
            to.array(all.len() as u64).unwrap();
            for one in all {
                to_cbor(to, one);
            }
        }
        Value::Object(object) => {
            to.map(object.len() as u64).unwrap();
            for (name, value) in object {
                match name.strip_suffix("64") {
                    Some(name) => {
                        let bytes = BASE64_STANDARD.decode(value.as_str().unwrap()).unwrap();
                        to.str(name).unwrap().bytes(&bytes).unwrap();
                    }
                    None => to_cbor(to.str(name).unwrap(), value),
                }
            }
        }
    }
}

fn from_cbor(decoder: &mut Decoder<'_>) -> Value {
    match decoder.datatype().unwrap() {
        Type::Null => {
            decoder.null().unwrap();
            Value::Null
        }
        Type::String => decoder.str().unwrap().into(),
        Type::F64 => decoder.f64().unwrap().into(),
        Type::Bytes => {
            let bytes = decoder.bytes().unwrap();
            std::str::from_utf8(bytes).map_or_else(|_| json!({ "bytes": bytes }), Value::from)
        }
        Type::Map => {
            let mut object = json!({});
            for _ in 0..decoder.map().unwrap().unwrap() {
                let name = decoder.str().unwrap();
                object[name] = from_cbor(decoder);
            }
            object
        }
        _ => decoder.i64().unwrap().into(),
    }
}
