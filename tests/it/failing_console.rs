//! The console's view Cluster after a Cassandra node was killed.

use super::console_cluster::{nodes_are_shown, while_used};
use super::console_page::open;
use super::support::cassandra::{self, Klads};
use super::support::webdriver::Browser;

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
