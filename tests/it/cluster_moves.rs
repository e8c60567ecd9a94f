//! Moves from a single machine to a cluster and back, by `klad export` and `klad import`, while both serve.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::support::cassandra::{self, Klads};
use super::support::command::Klad;
use super::support::exports::{FORMATS, fill_randomly, put_latin1, store};
use super::support::{Over, Server, ServerBuilder, wait_until};

/// Exports one server into another one.
fn move_all(from: &Server, to: &Server, format: &str) {
    let exported = Klad::new("export --prefix k --format").arg(format).at(from.address).succeeds();
    let said = Klad::new("import").at(to.address).input(&exported).run();
    assert_eq!(said.code, Some(0), "{said:?}");
    let latin = Klad::new("export --prefix latin1 --format").arg(format).at(from.address).succeeds();
    assert_eq!(Klad::new("import").at(to.address).input(&latin).run().code, Some(0));
}

/// Writes and reads keys of its own until the test is over.
fn serve_others(server: &Server, over: &AtomicBool, written: &AtomicUsize) {
    let mut client = server.client();
    for number in 0.. {
        if over.load(Ordering::SeqCst) {
            return;
        }
        let target = format!("/v1/kv/other/{}", number % 50);
        let value = number.to_string();
        assert!(matches!(client.put(&target, value.as_bytes()).status, 201 | 204));
        assert_eq!(client.get(&target).text(), value);
        written.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn nothing_is_lost_on_the_way_to_a_cluster_and_back_while_both_serve() {
    let Some(cluster) = cassandra::whole() else { return };
    for (format, engine) in FORMATS.into_iter().zip(["rocksdb", "fjall"]) {
        let (single, klads, back) =
            (ServerBuilder::new(engine).start(), Klads::start(cluster), ServerBuilder::new("memory").start());
        let mut keys = fill_randomly(&mut single.client(), 300);
        keys.push(put_latin1(&mut single.client()));
        for bytes in [512, 513, 3_000_000] {
            let value: Vec<u8> = (0..bytes).map(|number: u32| number.to_le_bytes()[0]).collect();
            assert_eq!(single.client().put(&format!("/v1/kv/k{bytes}"), &value).status, 201);
            keys.push(format!("k{bytes}").into_bytes());
        }
        let before = store(&single, keys.clone());
        let (over, written) = (AtomicBool::new(false), [const { AtomicUsize::new(0) }; 2]);
        std::thread::scope(|scope| {
            let _over = Over(&over);
            for (server, written) in [&single, klads.server(0)].into_iter().zip(&written) {
                let over = &over;
                scope.spawn(move || serve_others(server, over, written));
            }
            let served = || written.iter().all(|count| count.swap(0, Ordering::SeqCst) > 0);
            wait_until("both serve", served);
            move_all(&single, klads.server(1), format);
            assert!(store(klads.server(2), keys.clone()) == before, "{engine} to the cluster as {format}");
            move_all(klads.server(0), &back, format);
            assert!(store(&back, keys.clone()) == before, "the cluster to memory as {format}");
            wait_until("both still serve", served);
        });
    }
}
