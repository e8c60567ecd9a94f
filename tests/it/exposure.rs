//! klad listens on addresses that other machines can reach only with tokens, or with `--insecure-listen`.

use std::ffi::OsStr;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::support::rights::klad_without_rights;
use super::support::server::Failed;
use super::support::tls::Authority;
use super::support::{Client, ServerBuilder};

/// The exit code of an invalid configuration.
const BAD_CONFIGURATION: i32 = 78;

const TOKEN: &str = "0123456789abcdefghij";

fn token_file(directory: &Path, text: &str) -> String {
    let path = directory.join("tokens");
    std::fs::write(&path, text).unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
    path.to_str().unwrap().to_owned()
}

fn refused(builder: &ServerBuilder) -> Result<Failed, String> {
    let failed = builder.try_start().err().ok_or("it serves")?;
    assert_eq!(failed.status.code(), Some(BAD_CONFIGURATION), "{}", failed.log);
    Ok(failed)
}

/// Checks that klad refuses to listen on such addresses without tokens, and that the message has advice.
fn refuses_exposed_addresses(builder: &ServerBuilder) -> Result<(), String> {
    let data = tempfile::tempdir().unwrap();
    let data = data.path().join("data");
    for (option, what) in [("--listen", "read and write"), ("--admin-listen", "operate")] {
        for address in ["0.0.0.0:0", "[::]:0", "192.0.2.1:0", "[::ffff:0.0.0.0]:0"] {
            let failed = refused(&builder.clone().data(&data).arg(option, address))?;
            for part in [option, address, what, "--token-file", "--insecure-listen"] {
                assert!(failed.log.contains(part), "{part} is missing in: {}", failed.log);
            }
            assert!(!data.exists(), "the data directory was not created");
        }
    }
    Ok(())
}

#[test]
fn addresses_beyond_loopback_are_rejected_without_tokens() {
    refuses_exposed_addresses(&ServerBuilder::new("memory")).unwrap();
    // TLS alone does not restrict who can connect.
    refuses_exposed_addresses(&Authority::new().server()).unwrap();
}

#[test]
fn twin_an_exposed_address_is_noticed() {
    let found = refuses_exposed_addresses(&ServerBuilder::new("memory").flag("--insecure-listen"));
    assert_eq!(found.expect_err("--insecure-listen allows it"), "it serves");
}

/// Returns one address of this machine for an unspecified one.
fn nearby(address: SocketAddr) -> SocketAddr {
    assert!(address.ip().is_unspecified());
    ([127, 0, 0, 1], address.port()).into()
}

#[test]
fn insecure_listen_serves_with_a_warning() {
    let builder = ServerBuilder::new("memory").flag("--insecure-listen");
    let server = builder.clone().arg("--listen", "0.0.0.0:0").arg("--admin-listen", "0.0.0.0:0").start();
    for address in [server.address, server.admin] {
        assert!(server.log().contains("every client that reaches 0.0.0.0"), "{}", server.log());
        let target = if address == server.admin { "/livez" } else { "/v0/status" };
        assert_eq!(Client::connect(nearby(address)).get(target).status, 200);
    }
    // On loopback there is no warning.
    let log = builder.start().log();
    assert!(!log.contains("reaches"), "{log}");
}

#[test]
fn tokens_are_enough_and_unencrypted_ones_cause_a_warning() {
    let directory = tempfile::tempdir().unwrap();
    let tokens = token_file(directory.path(), &format!("read-write {TOKEN}\n"));
    let authority = Authority::new();
    let clear = "travel unencrypted";
    for (builder, listen, warned) in [
        (ServerBuilder::new("memory"), "0.0.0.0:0", true),
        (ServerBuilder::new("memory"), "127.0.0.1:0", false),
        (authority.server(), "0.0.0.0:0", false),
    ] {
        let server = builder.arg("--token-file", &tokens).arg("--listen", listen).start();
        assert_eq!(server.log().contains(clear), warned, "{}", server.log());
        assert!(!server.log().contains(TOKEN), "the log contains no token");
    }
    let admin = authority.server().arg("--token-file", &tokens).arg("--admin-tls", "off");
    assert!(admin.arg("--admin-listen", "0.0.0.0:0").start().log().contains(clear));
}

#[test]
fn errors_in_token_files_name_the_line_and_contain_no_token() {
    let directory = tempfile::tempdir().unwrap();
    let start = |tokens: &str| ServerBuilder::new("memory").arg("--token-file", tokens);
    let missing = directory.path().join("missing");
    let failed = refused(&start(missing.to_str().unwrap())).unwrap();
    assert!(failed.log.contains("missing") && failed.log.contains("No such file"), "{}", failed.log);
    let good = format!("read-write {TOKEN} somebody # comment\n\n# comment\nread-only sha256:{}\n", "0".repeat(64));
    for (line, words) in [
        (String::new(), ""),
        (format!("admin {TOKEN}x"), "line 5: a line must begin with read-write or read-only"),
        ("read-only".to_owned(), "line 5: a token is missing"),
        ("read-only secret".to_owned(), "line 5: a token must have at least 16"),
        (format!("read-only {TOKEN}$secret"), "line 5: a token may have only"),
        (format!("read-only {TOKEN}"), "line 5: the same token"),
        ("x".repeat(2 << 20), "larger than"),
        ((0..300).map(|n| format!("read-only {TOKEN}{n:03}\n")).collect(), "more than 256 tokens"),
    ] {
        let tokens = token_file(directory.path(), &format!("{good}{line}"));
        if words.is_empty() {
            start(&tokens).start();
            continue;
        }
        let failed = refused(&start(&tokens)).unwrap();
        assert!(failed.log.contains(words) && failed.log.contains("tokens"), "{words}: {}", failed.log);
        assert!(!failed.log.contains(TOKEN) && !failed.log.contains("secret"), "a token in the log: {}", failed.log);
    }
    let empty = token_file(directory.path(), "# nobody\n");
    assert!(refused(&start(&empty)).unwrap().log.contains("holds no token"));
}

#[test]
fn a_token_file_that_others_can_read_causes_a_warning() {
    let directory = tempfile::tempdir().unwrap();
    let tokens = token_file(directory.path(), &format!("read-write {TOKEN}\n"));
    let start = || ServerBuilder::new("memory").arg("--token-file", &tokens).start().log();
    // A group may read it: root can give a file to klad's user this way.
    for (mode, warned) in [(0o600, false), (0o640, false), (0o400, false), (0o660, true), (0o644, true), (0o601, true)]
    {
        std::fs::set_permissions(&tokens, PermissionsExt::from_mode(mode)).unwrap();
        assert_eq!(start().contains("chmod 640 or 600"), warned, "{mode:o}");
    }
}

#[test]
fn a_token_file_that_klad_cannot_read_names_its_user() {
    let directory = tempfile::Builder::new().permissions(PermissionsExt::from_mode(0o755)).tempdir().unwrap();
    let tokens = token_file(directory.path(), &format!("read-write {TOKEN}\n"));
    let check = |mode: u32| {
        std::fs::set_permissions(&tokens, PermissionsExt::from_mode(mode)).unwrap();
        let arguments = ["config", "check", "--engine", "memory", "--token-file", &tokens].map(OsStr::new);
        let ended = klad_without_rights(&arguments);
        (ended.status.code(), String::from_utf8(ended.stderr).unwrap())
    };
    let (code, said) = check(0o000);
    assert_eq!(code, Some(BAD_CONFIGURATION), "{said}");
    for part in [tokens.as_str(), "Permission denied", "klad runs as user", "chmod 640"] {
        assert!(said.contains(part), "{part} is missing in: {said}");
    }
    let (code, said) = check(0o644);
    assert_eq!(code, Some(0), "{said}");
}
