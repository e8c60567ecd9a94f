//! `klad profile`: its requests, its output, and the direction of differences.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use klad_profile::{Name, Profile, Sample, ValueType, pprof};

use super::support::command::Klad;
use super::support::server::keep;

/// Returns a profile of stacks with their CPU time, the leaf first.
fn profile(stacks: &[(&str, i64)]) -> Profile<Name> {
    let sample = |(stack, value): &(&str, i64)| Sample {
        thread: "klad-worker".to_owned(),
        frames: stack.split_whitespace().map(Name::from).collect(),
        values: vec![1, *value],
    };
    Profile {
        title: "CPU time".to_owned(),
        values: vec![ValueType::new("samples", "count"), ValueType::new("cpu", "nanoseconds")],
        shown: 1,
        samples: stacks.iter().map(sample).collect(),
        period: Some((ValueType::new("cpu", "nanoseconds"), 10_000_000)),
        began_unix_ns: 1_700_000_000_000_000_000,
        duration: Duration::from_secs(1),
        facts: vec![("lost samples".to_owned(), "3".to_owned())],
    }
}

/// Starts a server that answers one request with `head` and `body`, and passes on the first line of the request.
fn answers(head: &str, body: Vec<u8>) -> (SocketAddr, Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (told, asked) = channel();
    let head = head.to_owned();
    std::thread::spawn(move || {
        let mut stream = listener.accept().unwrap().0;
        let mut request = Vec::new();
        let mut some = [0; 4096];
        while !request.windows(4).any(|four| four == b"\r\n\r\n") {
            match stream.read(&mut some) {
                Ok(0) | Err(_) => return,
                Ok(count) => request.extend_from_slice(&some[..count]),
            }
        }
        let request = String::from_utf8(request).unwrap();
        // Not every test reads the request.
        let _ = told.send(request.lines().next().unwrap().to_owned());
        let _ = stream.write_all(head.as_bytes());
        let _ = stream.write_all(&body);
    });
    (address, asked)
}

fn gives(profile: &Profile<Name>) -> (SocketAddr, Receiver<String>) {
    let body = pprof::encode(profile);
    answers(&format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len()), body)
}

fn taken() -> Profile<Name> {
    profile(&[("read get main", 30_000_000), ("write main", 10_000_000)])
}

#[test]
fn each_event_requests_its_own_profile() {
    for (arguments, target) in [
        ("", "/debug/pprof/profile?seconds=10&hz=99"),
        ("--event cpu --interval 2ms --duration 500ms", "/debug/pprof/profile?seconds=0.5&hz=500"),
        ("--event alloc --duration 1m", "/debug/pprof/allocs?seconds=60"),
        ("--event heap", "/debug/pprof/heap"),
        ("--event threads -o - --format collapsed", "/debug/pprof/threads?format=pprof"),
        ("--event threads", "/debug/pprof/threads"),
        ("--event lock --interval 500us", "/debug/pprof/mutex?seconds=10&threshold=500us"),
        ("--event lock", "/debug/pprof/mutex?seconds=10"),
        ("--event block --interval 0s", "/debug/pprof/block?seconds=10&threshold=0us"),
    ] {
        let (address, asked) = gives(&taken());
        Klad::new(&format!("profile http://{address} {arguments}")).succeeds();
        assert_eq!(asked.recv().unwrap(), format!("GET {target} HTTP/1.1"), "{arguments}");
    }
}

#[test]
fn a_shorter_interval_than_the_minimum_is_taken_as_the_minimum() {
    let (address, asked) = gives(&taken());
    let said = Klad::new(&format!("profile http://{address} --event cpu --interval 500us")).run();
    assert_eq!(asked.recv().unwrap(), "GET /debug/pprof/profile?seconds=10&hz=1000 HTTP/1.1");
    assert!(said.code == Some(0) && said.stderr.ends_with("is taken as 1ms\n") && !said.stdout.is_empty(), "{said:?}");
}

#[test]
fn wrong_arguments_are_rejected_before_anything_is_sent() {
    for (arguments, word) in [
        ("--event alloc --interval 1ms", "--heap-sample"),
        ("--event heap --duration 1s", "moment"),
        ("--event threads --duration 1s", "moment"),
        ("--event threads --interval 1ms", "at once"),
        ("--event cpu --interval 2s", "1s at most"),
        ("--event lock --interval 2s", "0s to 1s"),
        ("--timeout 1s", "must be longer"),
        ("-o out.png", ".collapsed"),
    ] {
        let line = Klad::new(&format!("profile http://127.0.0.1:1 {arguments}")).fails(2);
        assert!(line.contains(word), "{arguments}: {line}");
    }
    for arguments in ["--event nothing", "--duration 6m", "--duration 0s", "--format svg", "diff one"] {
        assert_eq!(Klad::new(&format!("profile {arguments}")).run().code, Some(2), "{arguments}");
    }
}

#[test]
fn help_is_short_and_has_examples() {
    let short = String::from_utf8(Klad::new("profile -h").succeeds()).unwrap();
    assert!(short.contains("\nExamples:\n  klad profile "), "{short}");
    assert!(short.lines().count() <= 40, "the help does not fit a screen: {short}");
}

#[test]
fn without_a_file_facts_and_functions_are_printed() {
    let text = String::from_utf8(Klad::new(&format!("profile http://{}", gives(&taken()).0)).succeeds()).unwrap();
    assert!(text.starts_with("CPU time: 40.00 ms in 2 stacks\n"), "{text}");
    assert!(text.contains("lost samples: 3\n") && text.contains("75.0%     30.00 ms   75.0%  read\n"), "{text}");
}

#[test]
fn the_extension_selects_the_format_unless_an_option_does() {
    let directory = tempfile::tempdir().unwrap();
    let to = |name: &str, more: &str| {
        let path = directory.path().join(name);
        let command = format!("profile http://{} {more} -o", gives(&taken()).0);
        assert_eq!(Klad::new(&command).arg(&path).succeeds(), b"");
        std::fs::read(path).unwrap()
    };
    let is_page = |bytes: &[u8]| String::from_utf8_lossy(bytes).to_lowercase().contains("<html");
    assert!(is_page(&to("out.html", "")));
    let svg = to("out.svg", "");
    assert!(String::from_utf8_lossy(&svg).contains("<svg") && !is_page(&svg));
    assert_eq!(to("out.pb.gz", ""), pprof::encode(&taken()));
    assert_eq!(to("out.pprof", ""), pprof::encode(&taken()));
    for name in ["out.collapsed", "out.folded", "out.txt"] {
        assert!(String::from_utf8(to(name, "")).unwrap().contains("main;get;read 30000000"), "{name}");
    }
    assert!(is_page(&to("out.svg", "--format html")));
    let command = format!("profile http://{} -o -", gives(&taken()).0);
    assert_eq!(Klad::new(&command).succeeds(), pprof::encode(&taken()));
    // No other file is left.
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 7);
}

#[test]
fn an_incomplete_profile_leaves_the_file_unchanged() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("out.pb.gz");
    std::fs::write(&path, "before").unwrap();
    let body = pprof::encode(&taken());
    let length = body.len();
    let half = body[..length / 2].to_vec();
    for (head, body) in [
        (format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n"), half.clone()),
        (format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", half.len()), half),
    ] {
        Klad::new(&format!("profile http://{} -o", answers(&head, body).0)).arg(&path).fails(1);
        assert_eq!(std::fs::read(&path).unwrap(), b"before");
    }
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
}

#[test]
fn a_rejection_has_advice() {
    for (status, body, words) in [
        (404, "", "older"),
        (409, r#"{"code":"busy","detail":"one is\u001b[2J being taken"}"#, "busy: one is?[2J being taken"),
        (503, r#"{"code":"refused","detail":"no timers"}"#, "no timers"),
    ] {
        let head = format!("HTTP/1.1 {status} No\r\nContent-Length: {}\r\n\r\n", body.len());
        let line = Klad::new(&format!("profile http://{}", answers(&head, body.into()).0)).fails(1);
        assert!(line.contains(words), "{line}");
    }
    let kept = keep(SocketAddr::from(([127, 0, 0, 1], 0)));
    let unreachable = kept.local_addr().unwrap().as_socket().unwrap();
    assert!(Klad::new(&format!("profile http://{unreachable}")).fails(1).contains("cannot connect"));
}

fn compare(before: &Path, after: &Path) -> String {
    String::from_utf8(Klad::new("profile diff").arg(before).arg(after).succeeds()).unwrap()
}

/// Returns a fault unless `read` has grown by 60 ms.
fn wrong_direction(text: &str) -> Option<String> {
    let line = text.lines().find(|line| line.ends_with("  read")).unwrap_or_default();
    let grew = line.split_whitespace().next() == Some("+60.00");
    (!grew).then(|| format!("read has not grown: {text}"))
}

#[test]
fn a_difference_goes_from_before_to_after_and_twin_swapped_files_are_noticed() {
    let directory = tempfile::tempdir().unwrap();
    let [before, after] = ["before.pb.gz", "after.pb.gz"].map(|name| directory.path().join(name));
    std::fs::write(&before, pprof::encode(&taken())).unwrap();
    std::fs::write(&after, pprof::encode(&profile(&[("read get main", 90_000_000)]))).unwrap();
    assert_eq!(wrong_direction(&compare(&before, &after)), None);
    assert!(wrong_direction(&compare(&after, &before)).is_some());
    let page = directory.path().join("diff.html");
    Klad::new("profile diff --normalize").arg(&before).arg(&after).arg("-o").arg(&page).succeeds();
    assert!(std::fs::read_to_string(page).unwrap().contains("<svg"));
}

/// Returns why these profiles cannot be compared, in any format; `None` if they can be compared in one of them.
fn rejection(directory: &Path, before: &Path, after: &Path, option: &str) -> Option<String> {
    let mut whys = Vec::new();
    for name in ["", "d.html", "d.svg", "d.collapsed"] {
        let command = Klad::new(&format!("profile diff {option}")).arg(before).arg(after);
        let command = if name.is_empty() { command } else { command.arg("-o").arg(directory.join(name)) };
        let ended = command.run();
        if ended.code != Some(1) || directory.join(name).is_file() {
            return None;
        }
        whys.push(ended.stderr);
    }
    whys.dedup();
    assert_eq!(whys.len(), 1, "the reason depends on the format");
    whys.pop()
}

#[test]
fn profiles_that_cannot_be_compared_are_rejected_in_each_format() {
    let directory = tempfile::tempdir().unwrap();
    let [cpu, waits, nothing, endless, long] =
        ["cpu", "waits", "nothing", "endless", "long"].map(|name| directory.path().join(name));
    std::fs::write(&cpu, pprof::encode(&taken())).unwrap();
    // In nanoseconds too.
    let mut delay = taken();
    delay.values[1] = ValueType::new("delay", "nanoseconds");
    std::fs::write(&waits, pprof::encode(&delay)).unwrap();
    std::fs::write(&nothing, pprof::encode(&profile(&[]))).unwrap();
    std::fs::write(&endless, format!("a {0}\nb {0}\n", i64::MAX)).unwrap();
    std::fs::File::create(&long).unwrap().set_len((64 << 20) + 1).unwrap();
    let reason = |before, after, option| rejection(directory.path(), before, after, option).unwrap_or_default();
    assert!(reason(&cpu, &waits, "").contains("different kinds"));
    assert!(reason(&cpu, &nothing, "--normalize").contains("cannot be scaled"));
    assert!(reason(&nothing, &cpu, "--normalize").contains("cannot be scaled"));
    assert!(reason(&endless, &endless, "").contains("63 bits"));
    assert!(reason(&cpu, &long, "").contains("more than 64 MiB"));
    // Twins: comparable profiles are accepted.
    assert_eq!((reason(&cpu, &cpu, "--normalize"), reason(&cpu, &nothing, "")), (String::new(), String::new()));
}

#[test]
fn collapsed_stacks_of_other_programs_are_compared_as_well() {
    let directory = tempfile::tempdir().unwrap();
    let [before, after] = ["one", "other"].map(|name| directory.path().join(name));
    std::fs::write(&before, "main;a 10\nmain;b 5\n").unwrap();
    std::fs::write(&after, "main;a 4\nmain;b 5\n").unwrap();
    let text = compare(&before, &after);
    assert!(text.contains("-6            -6  a\n") && !text.contains("  b\n"), "{text}");
    std::fs::write(&after, b"\x1f\x8bnonsense").unwrap();
    Klad::new("profile diff").arg(&before).arg(&after).fails(1);
    Klad::new("profile diff /nowhere/at/all").arg(&before).fails(1);
}
