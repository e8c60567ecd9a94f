//! An engine that answers from another thread, late and out of order, with several clients at a time.

use rustix::process::Signal;

use super::support::planted::Defect;
use super::support::{LATE_SETUPS, Server, ServerBuilder};

const CLIENTS: usize = 8;

const ROUNDS: usize = 20;

/// Clients write and read their own keys at the same time. Returns an answer that belongs to another client's
/// operation.
fn find_wrong_answer(server: &Server) -> Option<String> {
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
fn each_client_gets_the_answer_of_its_own_operation_in_every_strategy() {
    for setup in LATE_SETUPS {
        assert_eq!(find_wrong_answer(&ServerBuilder::new(setup).start()), None, "{setup}");
    }
}

#[test]
fn twin_swapped_answers_are_noticed() {
    let server = ServerBuilder::new("memory").defect(Some(Defect::SwapsAnswers)).start();
    assert!(find_wrong_answer(&server).is_some());
}

/// Clients that have disconnected leave operations in progress. A stop waits for them before the last sync.
#[test]
fn a_stop_waits_for_operations_without_clients() {
    for setup in LATE_SETUPS {
        let data = tempfile::tempdir().unwrap();
        let mut server = ServerBuilder::new(setup).data(data.path()).start();
        // Few, because klad waits for 10 s at most, and a slow disk takes seconds for each.
        for number in 0..2 {
            let request = format!("PUT /v0/entity?id={number} HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\n\r\nv");
            server.client().send_raw(request);
        }
        server.signal(Signal::TERM);
        assert!(server.wait().success(), "{setup}: {}", server.log());
        assert!(!server.log().contains("has not answered these operations"), "{setup}: {}", server.log());
    }
}
