//! `ack=A&from=F` and `replicas=A/F` on three klads over three Cassandra nodes, of which each has a copy of every key.

use std::sync::Barrier;

use super::support::Answer;
use super::support::cassandra::{self, Klads};
use super::support::one_key::document;

/// The requests of `/v0` for one key, with the status of their success.
pub(super) const REQUESTS: [(&str, u16, Option<&[u8]>); 3] =
    [("PUT", 201, Some(b"v")), ("GET", 200, None), ("DELETE", 202, None)];

pub(super) fn ask(klads: &Klads, klad: usize, method: &str, key: &str, more: &str, body: Option<&[u8]>) -> Answer {
    klads.client(klad).request(method, &format!("/v0/entity?id={key}{more}"), &[], body)
}

pub(super) fn put(klads: &Klads, klad: usize, key: &str, more: &str, value: &str) -> u16 {
    ask(klads, klad, "PUT", key, more, Some(value.as_bytes())).status
}

/// Returns the value that a klad reads; `None` if it reads that there is none.
pub(super) fn get(klads: &Klads, klad: usize, key: &str, more: &str) -> Option<String> {
    let answer = ask(klads, klad, "GET", key, more, None);
    match answer.status {
        200 => Some(answer.text()),
        404 => None,
        status => panic!("{key}{more}: {status} {}", answer.text()),
    }
}

#[test]
fn what_three_copies_cannot_do_is_400() {
    let Some(cluster) = cassandra::whole() else { return };
    let klads = Klads::start(&cluster);
    for more in [
        "&ack=0&from=3",
        "&ack=4&from=3",
        "&ack=3&from=2",
        "&ack=x&from=3",
        "&ack=&from=3",
        "&ack=1&from=4",
        "&ack=1&from=x",
        "&replicas=0/3",
        "&replicas=4/3",
        "&replicas=1/4",
        "&replicas=2",
    ] {
        for (method, _, body) in REQUESTS {
            let answer = ask(&klads, 0, method, "k", more, body);
            assert_eq!(answer.status, 400, "{method} {more}");
            let document = document(&answer);
            assert_eq!((&document["code"], &document["limit"]), (&"bad-replicas".into(), &3.into()), "{document}");
        }
    }
    assert_eq!(get(&klads, 0, "k", "&ack=3"), None, "nothing was stored");
}

#[test]
fn every_klad_answers_for_every_key() {
    let Some(cluster) = cassandra::whole() else { return };
    let klads = Klads::start(&cluster);
    for number in 0..30 {
        let (key, value) = (format!("key{number}"), format!("value{number}"));
        assert_eq!(put(&klads, number % 3, &key, "", &value), 201);
        for klad in 0..3 {
            assert_eq!(get(&klads, klad, &key, ""), Some(value.clone()), "{key} at klad {klad}");
        }
        assert_eq!(ask(&klads, (number + 1) % 3, "DELETE", &key, "", None).status, 202);
        assert_eq!(get(&klads, (number + 2) % 3, &key, ""), None);
    }
}

/// Two klads write a key at the same time. All reads at all levels must then agree.
#[test]
fn writes_of_two_klads_at_the_same_time_have_one_order() {
    let Some(cluster) = cassandra::whole() else { return };
    let klads = Klads::start(&cluster);
    for round in 0..50 {
        let (key, barrier) = (format!("raced{round}"), Barrier::new(2));
        std::thread::scope(|scope| {
            for klad in 0..2 {
                let (klads, key, barrier) = (&klads, &key, &barrier);
                scope.spawn(move || {
                    let mut client = klads.client(klad);
                    barrier.wait();
                    let target = format!("/v0/entity?id={key}&replicas=3/3");
                    let status = if klad == 1 && round % 3 == 0 {
                        client.delete(&target).status
                    } else {
                        client.put(&target, format!("{klad}").as_bytes()).status
                    };
                    assert!(matches!(status, 201 | 202), "{status}");
                });
            }
        });
        let first = get(&klads, 0, &key, "&ack=3&from=3");
        for more in ["&ack=3&from=3", "&ack=2&from=3", "&ack=1&from=3"] {
            for klad in 0..3 {
                assert_eq!(get(&klads, klad, &key, more), first, "{key} at klad {klad} {more}");
            }
        }
    }
}
