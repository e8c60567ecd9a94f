//! `klad put`, `get`, `del`, `scan` and `health`: values survive byte for byte, exit codes are right, and unknown
//! outcomes are reported as such. `v1_client` has conditions, batches, exports and imports.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::ffi::OsStringExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use super::support::command::Klad;
use super::support::planted::Defect;
use super::support::scripted::{Script, Scripted};
use super::support::server::keep;
use super::support::{ENGINES, Server, ServerBuilder, random};

fn server() -> Server {
    ServerBuilder::new(ENGINES[0]).start()
}

/// Starts a server that reads `enough` bytes of its first connection, answers with `bytes`, and closes.
fn answers(enough: usize, bytes: &'static str) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let mut stream = listener.accept().unwrap().0;
        let mut request = Vec::new();
        let mut some = [0; 4096];
        while request.len() < enough || !request.windows(4).any(|four| four == b"\r\n\r\n") {
            match stream.read(&mut some) {
                Ok(0) | Err(_) => return,
                Ok(count) => request.extend_from_slice(&some[..count]),
            }
        }
        let _ = stream.write_all(bytes.as_bytes());
        linger(&stream);
    });
    address
}

/// Closes a connection in a way that the sent bytes arrive even if received ones were not read.
fn linger(mut stream: &TcpStream) {
    let _ = stream.shutdown(std::net::Shutdown::Write);
    let _ = std::io::copy(&mut stream, &mut std::io::sink());
}

#[test]
fn values_from_every_source_come_back_byte_for_byte() {
    for engine in ENGINES {
        let server = ServerBuilder::new(engine).start();
        let mut random = random();
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("value");
        // Around the size from which a put waits for 100 Continue.
        for length in [0, 1, 65_536, 65_537, 1_000_000] {
            let value: Vec<u8> = (0..length).map(|_| random.u8(..)).collect();
            std::fs::write(&file, &value).unwrap();
            let puts = [
                Klad::new("put --quiet key").input(&value),
                Klad::new("put --quiet key -").input(&value),
                Klad::new("put --quiet key --file -").input(&value),
                Klad::new("put --quiet key --file").arg(&file),
                Klad::new("put --quiet key --file /dev/stdin").input(&value),
            ];
            for put in puts {
                assert_eq!(put.at(server.address).succeeds(), b"");
                assert_eq!(Klad::new("get key").at(server.address).succeeds(), value);
                Klad::new("del --quiet key").at(server.address).succeeds();
            }
        }
        Klad::new("put --quiet key -5").at(server.address).succeeds();
        assert_eq!(Klad::new("get key").at(server.address).succeeds(), b"-5");
    }
}

#[test]
fn any_key_can_be_written_in_four_ways() {
    let server = server();
    let key: Vec<u8> = (0..=u8::MAX).collect();
    let hex: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
    let percent: String = key.iter().map(|byte| format!("%{byte:02X}")).collect();
    let base64 = {
        use base64::Engine as _;
        base64::prelude::BASE64_URL_SAFE_NO_PAD.encode(&key)
    };
    Klad::new("put --quiet --key-hex").arg(&hex).arg("found").at(server.address).succeeds();
    for (form, key) in [("--key-hex", &hex), ("--key-base64", &base64), ("--percent", &percent)] {
        assert_eq!(Klad::new("get").arg(form).arg(key).at(server.address).succeeds(), b"found", "{form}");
    }
    // An argument can contain every byte except zero.
    let literal = OsString::from_vec(key[1..].to_vec());
    Klad::new("put --quiet").arg(&literal).arg("other").at(server.address).succeeds();
    assert_eq!(Klad::new("get --percent").arg(&percent[3..]).at(server.address).succeeds(), b"other");
    assert!(Klad::new("get a --key-hex --percent").run().stderr.contains("cannot be used with"));
}

#[test]
fn writes_print_their_version_and_durability() {
    let server = server();
    let echoed = |asked: &str| if ENGINES[0] == "memory" { "none".to_owned() } else { asked.to_owned() };
    let mut versions = Vec::new();
    for (command, asked) in [
        ("put a 1", "sync"),
        ("put a 1 --durability async", "async"),
        ("del a", "sync"),
        ("put a 1 --durability async", "async"),
        ("del a --durability async", "async"),
    ] {
        let line = String::from_utf8(Klad::new(command).at(server.address).succeeds()).unwrap();
        let rest = line.strip_prefix("version ").unwrap();
        let (version, rest) = rest.split_once(", durability ").unwrap();
        versions.push(version.parse::<u64>().unwrap());
        assert_eq!(rest, format!("{}\n", echoed(asked)), "{command}");
    }
    assert!(versions.is_sorted_by(|a, b| a < b), "{versions:?}");
    assert_eq!(Klad::new("del a").at(server.address).succeeds(), b"absent\n");
}

#[test]
fn exit_codes_tell_what_happened() {
    let server = server();
    let at = server.address;
    let kept = keep(SocketAddr::from(([127, 0, 0, 1], 0)));
    let gone = kept.local_addr().unwrap().as_socket().unwrap();

    assert!(Klad::new("get absent").at(at).fails(4).contains("not-found"));
    assert_eq!(Klad::new("del absent --quiet").at(at).succeeds(), b"");
    for usage in ["get --key-hex 0", "put --key-base64 a b", "scan --percent %", "del --key-hex", "scan a --prefix a"] {
        assert_eq!(Klad::new(usage).at(at).run().code, Some(2), "{usage}");
    }
    assert!(Klad::new("get").arg("").at(at).fails(2).contains("at least one byte"));
    assert!(Klad::new("scan a").arg("").at(at).fails(2).contains("END"));
    assert!(Klad::new("get a --url ftp://h").fails(2).contains("ftp://h"));
    assert!(Klad::new("get a").env("KLAD_URL", "h:1").fails(2).contains("KLAD_URL"));
    assert_eq!(Klad::new("get a --timeout 2h").at(at).run().code, Some(2));

    let refused = Klad::new("put").arg("k".repeat(5_000)).arg("v").at(at).fails(1);
    assert!(refused.contains("key-too-long: ") && refused.contains("nothing has happened"), "{refused}");
    for command in ["put a b", "get a", "del a", "scan", "health --url http://127.0.0.1:1"] {
        let line = Klad::new(command).at(gone).fails(1);
        assert!(line.contains("cannot connect to 127.0.0.1"), "{line}");
    }
    assert!(Klad::new("get a --file").run().stderr.contains("--file"));
    assert!(Klad::new("put a --file /nowhere/at/all").at(at).fails(1).contains("/nowhere/at/all"));
    assert!(Klad::new("put a --file /").at(at).fails(1).contains("directory"));
    assert!(Klad::new("get a --token-file /nowhere/at/all").at(at).fails(1).contains("/nowhere/at/all"));
}

/// A write without an answer, or with an answer that does not come from klad, has an unknown outcome.
#[test]
fn an_unknown_outcome_is_never_reported_as_failure_or_success() {
    for answer in [
        "",
        "HTTP/1.1 20",
        "HTTP/1.1 500 No\r\nContent-Type: application/problem+json\r\nContent-Length: 38\r\n\r\n{\"code\":\"undetermined\",\"detail\":\"why\"}\n",
        "HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 302 Found\r\nLocation: /\r\nContent-Length: 0\r\n\r\n",
        "SSH-2.0-OpenSSH_9.6\r\n",
    ] {
        for command in ["put a b", "del a"] {
            let line = Klad::new(command).at(answers(1, answer)).fails(3);
            assert!(line.contains("undetermined") && line.contains("may or may not"), "{answer:?}: {line}");
        }
        // A failed read has changed nothing.
        let line = Klad::new("get a").at(answers(1, answer)).run();
        assert!(line.code == Some(1) || answer.contains("200"), "{answer:?}: {line:?}");
    }
    let silent = Scripted::start(Script::Silent);
    // Enough time to send the request on a busy machine. Each waits, so they run side by side.
    std::thread::scope(|scope| {
        for (command, code) in [("put a b --timeout 7s", 3), ("get a --timeout 7s", 1)] {
            let at = silent.address;
            scope.spawn(move || assert!(Klad::new(command).at(at).fails(code).contains("--timeout (7s)"), "{command}"));
        }
    });
}

#[test]
fn a_rejection_is_one_line_with_code_reason_and_wait() {
    let problem = "{\"code\":\"overloaded\",\"detail\":\"too\\u001b[2J much\\n\",\"status\":503}";
    let answer = format!("HTTP/1.1 503 No\r\nRetry-After: 7\r\nContent-Length: {}\r\n\r\n{problem}", problem.len());
    let answer: &'static str = answer.leak();
    let line = Klad::new("put a b").at(answers(1, answer)).fails(1);
    assert_eq!(line, "klad put: overloaded: too?[2J much? (status 503); nothing has happened; try again after 7 s\n");
    // Before the value was sent, and in the middle of it.
    let value = vec![0; 2_000_000];
    for enough in [1, 100_000] {
        let line = Klad::new("put a").input(&value).at(answers(enough, answer)).fails(1);
        assert!(line.contains("overloaded"), "{line}");
    }
}

/// The server's time for a body begins with its head, so klad reads the start of the value before it sends the head.
#[test]
fn a_slow_writer_of_a_value_does_not_run_into_the_servers_timeout() {
    let server = ServerBuilder::new(ENGINES[0]).arg("--body-timeout", "3s").arg("--head-timeout", "3s").start();
    let command = format!("{{ printf slow; sleep 5; printf ly; }} | '{}' put --quiet a", env!("CARGO_BIN_EXE_klad"));
    let mut shell = Command::new("sh");
    let status = shell.args(["-c", &command]).env("KLAD_URL", format!("http://{}", server.address)).status().unwrap();
    assert!(status.success());
    assert_eq!(Klad::new("get a").at(server.address).succeeds(), b"slowly");
}

#[test]
fn a_value_that_was_not_sent_completely_was_not_stored() {
    for length in [8 << 20, 64 << 20] {
        fails_while_sending(&vec![0; length]);
    }
}

fn fails_while_sending(value: &[u8]) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let server = std::thread::spawn(move || {
        let mut stream = listener.accept().unwrap().0;
        stream.read_exact(&mut vec![0; 100_000]).unwrap();
        // Closed with unread bytes, which resets the connection.
    });
    // More than the kernel buffers for a server that does not read.
    let line = Klad::new("put a").input(value).at(address).fails(1);
    assert!(line.contains("nothing has happened"), "{line}");
    server.join().unwrap();
}

#[test]
fn the_server_gets_a_shorter_timeout_so_that_its_answer_arrives_in_time() {
    let scripted = Scripted::start(Script::AnswersWith(404));
    Klad::new("get a --timeout 10s").at(scripted.address).run();
    Klad::new("get a").at(scripted.address).run();
    let requests = scripted.record().requests.clone();
    let sent = |n: usize| {
        let text = String::from_utf8(requests[n].clone()).unwrap();
        text.lines().find_map(|line| line.strip_prefix("Klad-Timeout: ")).map(str::to_owned)
    };
    let sent_ms: u64 = sent(0).unwrap().strip_suffix("ms").unwrap().parse().unwrap();
    assert!((1..=9_000).contains(&sent_ms), "{sent_ms}");
    assert_eq!(sent(1), None);
}

#[test]
fn the_token_is_sent_and_never_printed() {
    let scripted = Scripted::start(Script::AnswersWith(401));
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = directory.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let own = file("own", "# mine\nsecret-of-mine\n");
    let servers = file("servers", "read-only reads-only reader\nread-write may-write writer\n");
    let wrong = file("wrong", "secret and more\n");
    let runs = [
        (Klad::new("get a --token-file").arg(&own), "secret-of-mine"),
        (Klad::new("get a").env("KLAD_TOKEN_FILE", &servers), "may-write"),
        (Klad::new("get a --token-file").arg(&own).env("KLAD_TOKEN_FILE", &servers), "secret-of-mine"),
    ];
    for (number, (run, token)) in runs.into_iter().enumerate() {
        let line = run.at(scripted.address).fails(1);
        assert!(line.contains("401") && !line.contains(token), "{line}");
        let request = String::from_utf8(scripted.record().requests[number].clone()).unwrap();
        assert!(request.contains(&format!("\r\nAuthorization: Bearer {token}\r\n")), "{request}");
    }
    let line = Klad::new("get a --token-file").arg(&wrong).at(scripted.address).fails(2);
    assert!(line.contains("contains no token") && !line.contains("secret"), "{line}");
}

#[test]
fn an_incomplete_value_replaces_no_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("value");
    std::fs::write(&path, "before").unwrap();
    let cut = [
        "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhello",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
        "HTTP/1.1 200 OK\r\n\r\nhello",
    ];
    for answer in cut {
        let line = Klad::new("get a --output").arg(&path).at(answers(1, answer)).fails(1);
        assert!(line.contains("the value is incomplete"), "{line}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "before");
        assert_eq!(Klad::new("get a").at(answers(1, answer)).run().code, Some(1));
    }
    let whole = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2;x=y\r\nhe\r\n3\r\nllo\r\n0\r\nT: u\r\n\r\n";
    Klad::new("get a --output").arg(&path).at(answers(1, whole)).succeeds();
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "hello");
    Klad::new("get a --output /dev/null").at(answers(1, whole)).succeeds();
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1, "no other file is left");
}

#[test]
fn writing_to_a_symbolic_link_replaces_its_target() {
    let answer = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    std::fs::create_dir(at("below")).unwrap();
    std::fs::write(at("below/value"), "before").unwrap();
    // A chain of links, a link to a file that does not exist, and a file in a directory behind a link.
    let links = [("link", "below/again"), ("below/again", "value"), ("fresh", "below/new"), ("directory", "below")];
    for (link, target) in links {
        std::os::unix::fs::symlink(target, at(link)).unwrap();
    }
    for (given, written) in [("link", "below/value"), ("fresh", "below/new"), ("directory/again", "below/value")] {
        let _ = std::fs::remove_file(at(written));
        Klad::new("get a --output").arg(at(given)).at(answers(1, answer)).succeeds();
        assert_eq!(std::fs::read_to_string(at(written)).unwrap(), "hello", "{given}");
    }
    for (link, target) in links {
        assert_eq!(std::fs::read_link(at(link)).unwrap(), Path::new(target), "{link} is not a link any more");
    }
    std::os::unix::fs::symlink("round", at("round")).unwrap();
    let line = Klad::new("get a --output").arg(at("round")).at(answers(1, answer)).fails(1);
    assert!(line.contains("cannot write") && line.contains("symbolic link"), "{line}");
    assert_eq!(std::fs::read_dir(at("below")).unwrap().count(), 3, "no other file is left");
}

/// The inverse of the escapes of `klad scan`.
fn unescape(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        if *first != b'\\' {
            bytes.push(*first);
            continue;
        }
        let (kind, after) = rest.split_first().unwrap();
        rest = after;
        bytes.push(match kind {
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            b'\\' => b'\\',
            b'x' => {
                let digits = std::str::from_utf8(&rest[..2]).unwrap();
                rest = &rest[2..];
                u8::from_str_radix(digits, 16).unwrap()
            }
            other => panic!("\\{other} in {text}"),
        });
    }
    bytes
}

/// Stores random entries, lists them as text and as JSON, and compares.
fn lists_all_entries(builder: &ServerBuilder) -> Result<(), String> {
    let mut random = random();
    let server = builder.start();
    let mut client = server.client();
    let mut model = BTreeMap::new();
    // More than a scan reads in three steps.
    for _ in 0..4_000 {
        let mut bytes = |most: usize| -> Vec<u8> { (0..random.usize(1..most)).map(|_| random.u8(..)).collect() };
        let (key, value) = ([b"k".to_vec(), bytes(8)].concat(), bytes(40));
        client.put(&format!("/v0/entity?id={}&durability=async", super::support::encode(&key)), &value);
        model.insert(key, value);
    }
    let run = |options: &str| {
        let said = Klad::new(options).at(server.address).run();
        if said.code == Some(0) { Ok(String::from_utf8(said.stdout).unwrap()) } else { Err(said.stderr) }
    };
    let lines: BTreeMap<_, _> = run("scan")?
        .lines()
        .map(|line| line.split_once('\t').expect("key and value"))
        .map(|(key, value)| (unescape(key), unescape(value)))
        .collect();
    if lines != model {
        return Err(format!("{} entries are listed, {} are stored", lines.len(), model.len()));
    }
    let from_json: BTreeMap<_, _> = run("scan --json")?.lines().map(json_entry).collect();
    if from_json != model {
        return Err("the JSON differs".to_owned());
    }
    let border = model.keys().nth(350).unwrap();
    let border: String = border.iter().map(|byte| format!("{byte:02x}")).collect();
    let keys = |text: String| text.lines().map(unescape).collect::<Vec<_>>();
    let before = keys(run(&format!("scan --key-hex --keys 6b {border}"))?);
    let from = keys(run(&format!("scan --key-hex --keys {border} --limit 9"))?);
    let all = keys(run("scan --prefix k --keys")?);
    if before != model.keys().take(350).cloned().collect::<Vec<_>>()
        || from != model.keys().skip(350).take(9).cloned().collect::<Vec<_>>()
        || all.len() != model.len()
        || !run("scan --prefix l")?.is_empty()
    {
        return Err("a part of the list is wrong".to_owned());
    }
    Ok(())
}

fn json_entry(line: &str) -> (Vec<u8>, Vec<u8>) {
    use base64::Engine as _;
    let object: Value = serde_json::from_str(line).unwrap();
    let bytes = |name: &str| match (&object[name], &object[&format!("{name}64")]) {
        (Value::String(text), Value::Null) => text.clone().into_bytes(),
        (Value::Null, Value::String(text)) if name == "key" => {
            base64::prelude::BASE64_URL_SAFE_NO_PAD.decode(text).unwrap()
        }
        (Value::Null, Value::String(text)) => base64::prelude::BASE64_STANDARD.decode(text).unwrap(),
        other => panic!("{other:?}"),
    };
    (bytes("key"), bytes("value"))
}

#[test]
fn the_output_of_a_scan_can_be_read_back_without_loss() {
    for engine in ENGINES {
        lists_all_entries(&ServerBuilder::new(engine)).unwrap();
    }
}

#[test]
fn twin_an_incomplete_scan_is_noticed() {
    for defect in [Defect::SkipsAtSteps, Defect::InclusiveEnd, Defect::FailsInMidRange] {
        let found = lists_all_entries(&ServerBuilder::new("memory").defect(Some(defect)));
        let why = found.expect_err("the check must find the defect");
        assert_eq!(why.contains("the connection ended"), defect == Defect::FailsInMidRange, "{defect:?}: {why}");
    }
}

/// An answer to a scan, as one chunk, up to the end of its last chunk if `whole` is set.
fn list(lines: &str, whole: bool) -> &'static str {
    let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    let end = if whole { "0\r\n\r\n" } else { "" };
    format!("{head}{:x}\r\n{lines}\r\n{end}", lines.len()).leak()
}

#[test]
fn an_incomplete_scan_prints_its_entries_and_an_error() {
    let entries = "{\"key\":\"a\",\"value\":\"1\"}\n{\"key\":\"b\",\"value\":\"2\"}\n";
    let end = "{\"next\":null,\"complete\":true}\n";
    for (answer, word) in [
        (list(&format!("{entries}{{\"key\":"), false), "the connection ended"),
        (list(entries, true), "without its last item"),
        (list(&format!("{entries}{{\"key\":\"c\",\"va"), true), "an invalid item"),
        (list(&format!("{entries}nothing\n{end}"), true), "an invalid item"),
        (list(&format!("{entries}{{\"key\":\"c\",\"colour\":1}}\n{end}"), true), "unknown field"),
    ] {
        let said = Klad::new("scan").at(answers(1, answer)).run();
        assert_eq!((said.code, said.stdout.as_slice()), (Some(1), &b"a\t1\nb\t2\n"[..]), "{answer:?}: {said:?}");
        let incomplete = said.stderr.contains("the list is incomplete: it ends after 2 entries");
        assert!(incomplete && said.stderr.contains(word), "{answer:?}: {said:?}");
    }
    for (answer, word) in [
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\na\n1xx0\r\n\r\n", "invalid item"),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\na\n1", "without a size"),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n{}1xx0\r\n\r\n", "does not end where it should"),
    ] {
        let said = Klad::new("scan").at(answers(1, answer)).run();
        assert!(said.code == Some(1) && said.stderr.contains(word), "{answer:?}: {said:?}");
    }
    assert_eq!(Klad::new("scan").at(answers(1, list(end, true))).succeeds(), b"");
}

#[test]
fn a_reader_that_closes_the_pipe_ends_a_scan_without_an_error() {
    let server = server();
    let mut client = server.client();
    for n in 0..2_000 {
        client.put(&format!("/v0/entity?id={n:04}&durability=async"), &[b'x'; 1_000]);
    }
    let pipe = format!("exec 3>&1; {{ '{}' scan; echo \"code $?\" >&3; }} | head -c 4", env!("CARGO_BIN_EXE_klad"));
    let mut command = Command::new("sh");
    command.args(["-c", &pipe]).env("KLAD_URL", format!("http://{}", server.address)).stdin(Stdio::null());
    let output = command.output().unwrap();
    let (stdout, stderr) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert!(stdout.contains("0000") && stdout.contains("code 0") && stderr.is_empty(), "{stdout} {stderr}");
}

#[test]
fn a_server_starts_with_the_environment_of_a_client() {
    let builder = ServerBuilder::new(ENGINES[0]).env("KLAD_URL", "http://127.0.0.1:1");
    let server = builder.env("KLAD_ADMIN_URL", "http://127.0.0.1:1").start();
    assert_eq!(Klad::new("get a").at(server.address).run().code, Some(4));
}

#[test]
fn health_reports_the_answer_of_the_admin_address() {
    let server = server();
    let at = |arguments: &str| Klad::new(arguments).env("KLAD_ADMIN_URL", format!("http://{}", server.admin));
    assert_eq!(at("health").succeeds(), b"ready\n");
    assert_eq!(at("health --live").succeeds(), b"alive\n");
    assert_eq!(at("health --quiet").succeeds(), b"");
    let unready = Scripted::start(Script::AnswersWith(503));
    assert!(Klad::new("health --url").arg(unready.url("")).fails(1).contains("503"));
}

#[test]
fn the_session_in_the_document_runs_unchanged() {
    let document = include_str!("../../docs/command-line.md");
    let session = document.split("```sh\n").nth(1).unwrap().split("```").next().unwrap();
    assert!(session.lines().count() >= 5 && session.lines().all(|line| line.starts_with("klad ")), "{session}");
    let server = server();
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("cat.jpg"), b"\xff\xd8 cat").unwrap();
    let program = Path::new(env!("CARGO_BIN_EXE_klad")).parent().unwrap();
    let mut command = Command::new("sh");
    command.args(["-e", "-c", session]).current_dir(directory.path()).stdin(Stdio::null());
    command.env("PATH", format!("{}:{}", program.display(), std::env::var("PATH").unwrap()));
    let output = command.env("KLAD_URL", format!("http://{}", server.address)).output().unwrap();
    let said = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert!(output.status.success() && said.1.is_empty(), "{said:?}");
    assert!(said.0.contains("greeting\thello\n"), "{said:?}");
    assert_eq!(std::fs::read(directory.path().join("cat-again.jpg")).unwrap(), b"\xff\xd8 cat");
}

#[test]
fn every_option_of_the_commands_is_documented() {
    let document = include_str!("../../docs/command-line.md");
    let commands = ["put", "get", "del", "add", "expire", "scan", "batch", "watch", "export", "import", "health"];
    for command in commands.into_iter().chain(["completions", "man"]) {
        assert!(document.contains(&format!("`klad {command}")), "{command}");
        let help = Klad::new(command).arg("--help").succeeds();
        let help = String::from_utf8(help).unwrap();
        let options = help.split_whitespace().filter_map(|word| word.strip_prefix("--"));
        for option in options.map(|option| option.trim_end_matches([',', ';', '.', ':', ']', ')'])) {
            assert!(option == "help" || document.contains(&format!("--{option}")), "{command} --{option}");
        }
    }
}
