//! Scans of `/v1` as a client does them: in three formats, and from cursor to cursor.

use base64::Engine as _;
use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD};
use minicbor::data::Type;
use minicbor::decode::Decoder;
use serde_json::{Map, Value};

use super::conformance::on_cassandra;
use super::{Answer, Client, Server, ServerBuilder, encode, wait_until};

/// What a scan lists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Listed {
    /// A key, and its value; without one, the value's length.
    Entry(Vec<u8>, Result<Vec<u8>, usize>),
    Prefix(Vec<u8>),
}

/// The format of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    Page,
    JsonLines,
    CborSequence,
}

pub(crate) const FORMATS: [Format; 3] = [Format::Page, Format::JsonLines, Format::CborSequence];

/// One answer to a scan.
#[derive(Debug)]
pub(crate) struct Scanned {
    pub(crate) listed: Vec<Listed>,
    /// The items as JSON; bytes of CBOR became texts.
    pub(crate) items: Vec<Map<String, Value>>,
    pub(crate) next: Option<String>,
}

impl Format {
    pub(crate) fn accept(self) -> &'static str {
        match self {
            Format::Page => "application/json",
            Format::JsonLines => "application/x-ndjson",
            Format::CborSequence => "application/cbor-seq",
        }
    }
}

/// Encodes as base64url without padding.
pub(crate) fn base64url(bytes: &[u8]) -> String {
    BASE64_URL_SAFE_NO_PAD.encode(bytes)
}

/// Does one scan. `query` has no question mark.
pub(crate) fn scan(client: &mut Client, query: &str, format: Format) -> Result<Scanned, String> {
    let target = format!("/v1/kv?{query}");
    let answer = client.request("GET", &target, &[("Accept", format.accept())], None);
    if answer.status != 200 {
        return Err(format!("{target}: {} {}", answer.status, answer.text()));
    }
    assert_eq!(answer.header("content-type"), Some(format.accept()), "{target}");
    read(&answer, format).map_err(|why| format!("{target}: {why}"))
}

/// Follows the cursors of a scan until it is complete. `query` is repeated with each cursor. It may end with a cursor,
/// which the next ones replace.
pub(crate) fn scan_all(client: &mut Client, query: &str, format: Format) -> Result<(Vec<Listed>, usize), String> {
    let repeated = query.split("&cursor=").next().unwrap_or_default();
    let (mut all, mut pages, mut query) = (Vec::new(), 0, query.to_owned());
    loop {
        let scanned = scan(client, &query, format)?;
        all.extend(scanned.listed);
        pages += 1;
        if pages > 10_000 {
            return Err("the scan does not end".to_owned());
        }
        match scanned.next {
            Some(cursor) => query = format!("{repeated}&cursor={cursor}"),
            None => return Ok((all, pages)),
        }
    }
}

/// Reads an answer.
pub(crate) fn read(answer: &Answer, format: Format) -> Result<Scanned, String> {
    let (items, end) = match format {
        Format::Page => {
            let mut page: Map<String, Value> = parse(&answer.body)?;
            let mut items = objects(page.remove("entries"));
            items.extend(objects(page.remove("prefixes")));
            if let Some(next) = page["next"].as_str() {
                let link = answer.header("link").ok_or("no Link")?;
                if !link.contains(&format!("cursor={next}")) || !link.ends_with("; rel=\"next\"") {
                    return Err(format!("Link {link}"));
                }
            }
            (items, page)
        }
        Format::JsonLines => {
            let mut lines = answer.body.split_inclusive(|byte| *byte == b'\n').map(parse);
            let end = lines.next_back().ok_or("an empty answer")??;
            (lines.collect::<Result<Vec<_>, _>>()?, end)
        }
        Format::CborSequence => {
            let mut items = sequence(&answer.body).map_err(|error| error.to_string())?;
            let end = items.pop().ok_or("an empty answer")?;
            (items, end)
        }
    };
    let next = end.get("next").ok_or("no end")?.as_str().map(str::to_owned);
    if end["complete"] != Value::Bool(next.is_none()) || end.len() != 2 {
        return Err(format!("the end is {end:?}"));
    }
    Ok(Scanned { listed: items.iter().map(listed).collect(), items, next })
}

fn parse(bytes: &[u8]) -> Result<Map<String, Value>, String> {
    serde_json::from_slice(bytes).map_err(|error| format!("{error}: {}", String::from_utf8_lossy(bytes)))
}

fn objects(array: Option<Value>) -> Vec<Map<String, Value>> {
    let array = array.map(|array| array.as_array().expect("an array").clone()).unwrap_or_default();
    array.into_iter().map(|item| item.as_object().expect("an object").clone()).collect()
}

fn listed(item: &Map<String, Value>) -> Listed {
    let bytes = |name: &str| {
        let text = |value: &Value| value.as_str().expect("a text").to_owned();
        if let Some(plain) = item.get(name) {
            return Some(text(plain).into_bytes());
        }
        let encoded = text(item.get(&format!("{name}64"))?);
        let url = BASE64_URL_SAFE_NO_PAD.decode(&encoded);
        Some(url.or_else(|_| BASE64_STANDARD.decode(&encoded)).expect("base64"))
    };
    if let Some(prefix) = bytes("prefix") {
        return Listed::Prefix(prefix);
    }
    let length = || usize::try_from(item["bytes"].as_u64().expect("a length")).expect("small");
    Listed::Entry(bytes("key").expect("a key"), bytes("value").ok_or_else(length))
}

/// Reads a CBOR sequence. Byte strings become base64 under the names that JSON has for them.
fn sequence(mut bytes: &[u8]) -> Result<Vec<Map<String, Value>>, minicbor::decode::Error> {
    let mut items = Vec::new();
    while !bytes.is_empty() {
        let mut decoder = Decoder::new(bytes);
        items.push(map(&mut decoder)?);
        bytes = &bytes[decoder.position()..];
    }
    Ok(items)
}

fn map(decoder: &mut Decoder<'_>) -> Result<Map<String, Value>, minicbor::decode::Error> {
    let mut read = Map::new();
    for _ in 0..decoder.map()?.expect("a definite length") {
        let mut name = decoder.str()?.to_owned();
        let value = match decoder.datatype()? {
            Type::Bytes => {
                name += "64";
                BASE64_STANDARD.encode(decoder.bytes()?).into()
            }
            Type::String => decoder.str()?.into(),
            Type::Bool => decoder.bool()?.into(),
            Type::Null => decoder.null().map(|()| Value::Null)?,
            Type::F64 => decoder.f64()?.into(),
            Type::Map => map(decoder)?.into(),
            _ => decoder.u64()?.into(),
        };
        assert!(read.insert(name, value).is_none(), "a member twice");
    }
    Ok(read)
}

pub(crate) fn each(setups: &[&str], check: impl Fn(&Server, &mut Client)) {
    for setup in setups {
        println!("setup {setup}");
        let server = ServerBuilder::new(setup).start();
        check(&server, &mut server.client());
    }
    on_cassandra(check);
}

pub(crate) fn store(client: &mut Client, key: &[u8], value: &[u8]) {
    let target = format!("/v1/kv/{}?durability=async", encode(key));
    wait_until("the value is stored", || {
        let status = client.put(&target, value).status;
        assert!([201, 204, 503].contains(&status), "{status}");
        status != 503
    });
}

pub(crate) fn store_all(client: &mut Client, keys: &[&str]) {
    for key in keys {
        store(client, key.as_bytes(), key.as_bytes());
    }
}

pub(crate) fn keys(listed: &[Listed]) -> Vec<String> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let one = |item: &Listed| match item {
        Listed::Entry(key, _) => text(key),
        Listed::Prefix(prefix) => format!("{}*", text(prefix)),
    };
    listed.iter().map(one).collect()
}

pub(crate) fn code(answer: &Answer) -> (u16, String) {
    let document: Value = serde_json::from_slice(&answer.body).unwrap();
    (answer.status, document["code"].as_str().unwrap().to_owned())
}
