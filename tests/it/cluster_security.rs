//! `--engine cassandra` against a node that asks for TLS and for a user name with a password.

use super::support::cassandra;
use super::support::tls::Authority;
use super::support::wait_until;

#[test]
fn a_cluster_with_tls_and_passwords_is_reached_with_both_only() {
    let (authority, other) = (Authority::new(), Authority::new());
    let Some(cluster) = cassandra::secured(&authority) else { return };
    let (password, wrong) = (authority.path("password"), authority.path("wrong"));
    std::fs::write(&password, "cassandra\n").unwrap();
    std::fs::write(&wrong, "guessed\n").unwrap();
    let init = |options: &[(&str, &std::path::Path)]| {
        let mut init = cluster.command("cluster init --replication datacenter1:1 --keyspace secured");
        for (option, value) in options {
            init = init.arg(option).arg(value);
        }
        init.arg("--cluster-user").arg("cassandra")
    };
    let (ca, foreign) = (authority.path("ca.pem"), other.path("ca.pem"));
    // The user exists a moment after the start.
    let right = [("--cluster-ca", ca.as_path()), ("--cluster-password-file", password.as_path())];
    wait_until("the user can log in", || init(&right).run().code == Some(0));
    for (options, why) in [
        ([("--cluster-ca", ca.as_path()), ("--cluster-password-file", wrong.as_path())], "password"),
        ([("--cluster-ca", foreign.as_path()), ("--cluster-password-file", password.as_path())], "certificate"),
    ] {
        let line = init(&options).fails(72);
        assert!(line.contains("cannot connect") && line.contains(why), "{line}");
    }
    assert!(init(&right[1..]).fails(72).contains("cannot connect"), "without TLS");

    let server = cluster.builder("secured").arg("--cluster-ca", ca.to_str().unwrap());
    let server = server.arg("--cluster-user", "cassandra").arg("--cluster-password-file", password.to_str().unwrap());
    let server = server.arg("--consistency", "one").start();
    let mut client = server.client();
    assert_eq!(client.put("/v1/kv/k", b"v").status, 201);
    assert_eq!(client.get("/v1/kv/k").body, b"v");
}
