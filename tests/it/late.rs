//! An engine that answers from another thread, later and out of order: what the contract's tests do not ask of it, because
//! they have one client at a time.

use rustix::process::Signal;

use super::support::planted::Defect;
use super::support::{LATE_SETUPS, Server, ServerBuilder};

const CLIENTS: usize = 8;

const ROUNDS: usize = 20;

/// Clients that write and read keys of their own at the same time; what one of them was told that is not its own.
fn told_something_else(server: &Server) -> Option<String> {
    let told: Vec<Option<String>> = std::thread::scope(|scope| {
        let clients = (0..CLIENTS).map(|number| {
            let mut client = server.client();
            scope.spawn(move || {
                (0..ROUNDS).find_map(|round| {
                    let (target, value) = (format!("/v0/entity?id=key{number}"), format!("{number} in round {round}"));
                    let put = client.put(&target, value.as_bytes());
                    let got = client.get(&target);
                    let own = (put.status, got.status, &*got.body) == (201, 200, value.as_bytes())
                        && put.header("etag") == got.header("etag");
                    (!own).then(|| format!("{value}: {} {} {:?}", put.status, got.status, got.body))
                })
            })
        });
        let clients: Vec<_> = clients.collect();
        clients.into_iter().map(|client| client.join().unwrap()).collect()
    });
    told.into_iter().flatten().next()
}

#[test]
fn each_is_told_the_end_of_its_own_operation_in_every_strategy() {
    for setup in LATE_SETUPS {
        assert_eq!(told_something_else(&ServerBuilder::new(setup).start()), None, "{setup}");
    }
}

#[test]
fn twin_answers_that_were_swapped_are_noticed() {
    let server = ServerBuilder::new("memory").defect(Some(Defect::SwapsAnswers)).start();
    assert!(told_something_else(&server).is_some());
}

/// Whoever is gone leaves operations behind, which a stop lets end before the last sync.
#[test]
fn a_stop_waits_for_answers_that_nobody_else_waits_for() {
    for setup in LATE_SETUPS {
        let data = tempfile::tempdir().unwrap();
        let mut server = ServerBuilder::new(setup).data(data.path()).start();
        for number in 0..CLIENTS {
            let request = format!("PUT /v0/entity?id={number} HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\n\r\nv");
            server.client().send_raw(request);
        }
        server.signal(Signal::TERM);
        assert!(server.wait().success(), "{setup}: {}", server.log());
        assert!(!server.log().contains("has not answered these operations"), "{setup}: {}", server.log());
    }
}
