//! The console's view Cluster of a klad in front of a real Cassandra.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::console_page::{assert_well_drawn, open};
use super::support::cassandra::{self, Cluster, Klads, NODES};
use super::support::webdriver::Browser;
use super::support::{Over, Server};

/// Runs `work` while a client writes and reads values.
fn while_used(server: &Server, work: impl FnOnce()) {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _over = Over(&over);
        scope.spawn(|| {
            let mut client = server.client();
            for number in (0_u64..).take_while(|_| !over.load(Ordering::Relaxed)) {
                client.put(&format!("/v1/kv/{number}"), &[7; 1024]);
                client.get(&format!("/v1/kv/{number}"));
                std::thread::sleep(Duration::from_millis(10));
            }
        });
        work();
    });
}

/// Returns a condition: there are the nodes, all connected but `lost`, and all others with answers and a mean time.
fn nodes_are_shown(cluster: &Cluster, lost: Option<usize>) -> String {
    let row = |node: usize| {
        let figure = r"0*(\\.0*)?[1-9][\\d.,]*k?";
        let state = if lost == Some(node) {
            "✕ lost .*".to_owned()
        } else {
            format!(r"✓ connected {figure}/s [\\d.,k]+/s {figure} [mµ]?s")
        };
        format!("{} {state}", cluster.address(node))
    };
    let rows = (0..NODES).map(row).collect::<Vec<_>>().join("\\n");
    format!(
        "new RegExp('^{rows}$').test(Array.from(document.querySelectorAll('main tbody tr')) \
         .map((row) => row.innerText.trim().replace(/\\s+/g, ' ')).join('\\n')) \
         && document.querySelector('#chart-node-requests canvas') \
         && document.querySelector('#chart-node-latency canvas') \
         && document.body.innerText.includes('keeps {NODES} copies of each key')"
    )
}

/// With `KLAD_TEST_PICTURES=docs/console` this also makes the picture of the document.
#[test]
fn the_nodes_of_a_real_cluster_are_shown_with_their_state_latency_and_copies() {
    let Some(cluster) = cassandra::whole() else { return };
    let klads = Klads::start(cluster);
    let (server, browser) = (klads.server(0), Browser::start());
    let all_are_shown = nodes_are_shown(cluster, None);
    while_used(server, || {
        for (width, dark) in [(390, true), (390, false), (1280, true), (1280, false)] {
            browser.look(width, 900, dark);
            open(&browser, server, "cluster");
            browser.wait(&all_are_shown);
            assert_well_drawn(&browser, "cluster", width, dark);
        }
        if let Some(directory) = std::env::var_os("KLAD_TEST_PICTURES") {
            // Time for enough samples.
            std::thread::sleep(Duration::from_mins(1));
            browser.look(1280, 630, false);
            browser.click(".switch button", "2 min");
            browser.wait(&all_are_shown);
            let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(directory).join("cluster.png");
            std::fs::write(file, browser.picture()).unwrap();
        }
    });
}

#[test]
fn twin_a_node_that_is_killed_is_shown_as_lost() {
    let Some(cluster) = cassandra::alone() else { return };
    let klads = Klads::start(&cluster);
    let (server, browser) = (klads.server(0), Browser::start());
    while_used(server, || {
        open(&browser, server, "cluster");
        browser.wait(&nodes_are_shown(&cluster, None));
        cluster.kill(2);
        browser.wait(&nodes_are_shown(&cluster, Some(2)));
    });
}
