//! Ranges: they agree with a model, and end without a last chunk if they fail.

use std::collections::BTreeMap;
use std::ops::Bound;

use super::support::planted::Defect;
use super::support::{Client, ENGINES, LATE_SETUPS, ServerBuilder, encode, random};

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn chunk(key: &[u8], value: &[u8]) -> Vec<u8> {
    [key, b"\n", value].concat()
}

fn expected(model: &Model, start: &[u8], end: Option<&[u8]>) -> Vec<Vec<u8>> {
    if end.is_some_and(|end| end <= start) {
        return Vec::new();
    }
    let end = end.map_or(Bound::Unbounded, |end| Bound::Excluded(end.to_vec()));
    model.range((Bound::Included(start.to_vec()), end)).map(|(key, value)| chunk(key, value)).collect()
}

fn range(client: &mut Client, start: &[u8], end: Option<&[u8]>) -> Result<Vec<Vec<u8>>, String> {
    let end = end.map_or_else(String::new, |end| format!("&end={}", encode(end)));
    let target = format!("/v0/entities?start={}{end}", encode(start));
    let answer = client.try_request("GET", &target, &[], None).map_err(|error| error.to_string())?;
    if answer.status != 200 {
        return Err(format!("status {}", answer.status));
    }
    answer.chunks.ok_or_else(|| "the body is not chunked".to_owned())
}

/// Fills a server with random entries, overwrites and removes some, and compares random ranges with a model.
fn agrees_with_model(builder: &ServerBuilder) -> Result<(), String> {
    let mut random = random();
    let server = builder.start();
    let mut client = server.client();
    let mut model = Model::new();
    // Few distinct bytes, so that keys are prefixes of each other and ranges begin and end at keys. Enough entries
    // for several steps, and some larger than a step.
    let key = |random: &mut fastrand::Rng| -> Vec<u8> {
        (0..random.usize(1..6)).map(|_| *random.choice(b"\0\n/az\xff").unwrap()).collect()
    };
    for n in 0..2_500 {
        let key = key(&mut random);
        let target = format!("/v0/entity?id={}&durability=async", encode(&key));
        if n % 7 == 0 {
            client.delete(&target);
            model.remove(&key);
        } else {
            let length = if n % 500 == 1 { 200_000 } else { random.usize(0..100) };
            let value: Vec<u8> = (0..length).map(|_| random.u8(..)).collect();
            client.put(&target, &value);
            model.insert(key, value);
        }
    }
    assert!(model.len() > 600, "several steps");
    for n in 0..150 {
        let start = if n == 0 { vec![0] } else { key(&mut random) };
        let end = (n % 3 != 0).then(|| key(&mut random));
        let got = range(&mut client, &start, end.as_deref())?;
        if got != expected(&model, &start, end.as_deref()) {
            return Err(format!("the range from {start:?} to {end:?} differs from the model"));
        }
    }
    // Ranges between neighbouring keys.
    for pair in model.keys().collect::<Vec<_>>().windows(2) {
        let got = range(&mut client, pair[0], Some(pair[1]))?;
        if got != [chunk(pair[0], &model[pair[0]])] {
            return Err(format!("between neighbours {pair:?}: {} entries", got.len()));
        }
    }
    Ok(())
}

#[test]
fn ranges_agree_with_a_model() {
    for engine in ENGINES.iter().chain(&LATE_SETUPS[..1]) {
        agrees_with_model(&ServerBuilder::new(engine)).unwrap();
    }
}

#[test]
fn twin_an_inclusive_end_is_noticed() {
    let planted = ServerBuilder::new("memory").defect(Some(Defect::InclusiveEnd));
    agrees_with_model(&planted).expect_err("the end is not part of a range");
}

#[test]
fn twin_an_entry_lost_between_steps_is_noticed() {
    let planted = ServerBuilder::new("memory").defect(Some(Defect::SkipsAtSteps));
    agrees_with_model(&planted).expect_err("no entry is lost between steps");
}

#[test]
fn range_parameters_are_checked() {
    for engine in ENGINES {
        let server = ServerBuilder::new(engine).start();
        let mut client = server.client();
        client.put("/v0/entity?id=k", b"v");
        for target in [
            "/v0/entities",
            "/v0/entities?start=",
            "/v0/entities?end=z",
            "/v0/entities?start=a&end=",
            "/v0/entities?start=%zz",
        ] {
            assert_eq!(client.get(target).status, 400, "{target}");
        }
        for target in ["/v0/entities?start=z", "/v0/entities?start=z&end=a", "/v0/entities?start=k&end=k"] {
            let answer = client.get(target);
            assert_eq!((answer.status, answer.body.len()), (200, 0), "{target}");
        }
        let answer = client.get("/v0/entities?start=%00");
        assert_eq!(answer.header("transfer-encoding"), Some("chunked"));
        assert_eq!(answer.chunks.unwrap(), [b"k\nv"]);
    }
}

#[test]
fn a_range_that_fails_in_the_middle_has_no_last_chunk() {
    let server = ServerBuilder::new("memory").defect(Some(Defect::FailsInMidRange)).start();
    let mut client = server.client();
    for n in 0..1_000 {
        client.put(&format!("/v0/entity?id={n:04}"), &[b'v'; 1 << 10]);
    }
    client.send("GET", "/v0/entities?start=0", &[], None).unwrap();
    assert_eq!(client.head().unwrap().0, 200);
    let mut entries = 0;
    let ended = loop {
        match client.chunk() {
            Ok(Some(_)) => entries += 1,
            Ok(None) => break Ok(()),
            Err(error) => break Err(error),
        }
    };
    assert!(ended.is_err(), "a last chunk would mean that {entries} entries are all");
    assert!(entries < 1_000);
}

#[test]
fn ranges_beyond_the_maximum_are_503_and_the_others_continue() {
    let server = ServerBuilder::new("memory").arg("--scans-max", "1").start();
    let mut client = server.client();
    for n in 0..40 {
        client.put(&format!("/v0/entity?id={n:04}"), &vec![b'v'; 1 << 20]);
    }
    client.send("GET", "/v0/entities?start=0", &[], None).unwrap();
    assert_eq!(client.head().unwrap().0, 200);
    let mut other = server.client();
    let answer = other.get("/v0/entities?start=0");
    assert_eq!(answer.status, 503);
    assert_eq!(answer.header("retry-after"), Some("1"));
    assert_eq!(other.get("/v0/entity?id=0001").status, 200, "points are not ranges");
    let mut entries = 0;
    while client.chunk().unwrap().is_some() {
        entries += 1;
    }
    assert_eq!(entries, 40);
    super::support::wait_until("the place is free again", || other.get("/v0/entities?start=0038").status == 200);
}
