//! `klad profile` with a server under load: each event in each format, the difference of two profiles, and Ctrl-C
//! during a profile.

use std::io::Read as _;
use std::net::TcpListener;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use super::support::command::Klad;
use super::support::loaded::loaded;
use super::support::tools::top;
use super::support::{Server, ServerBuilder, wait_until};

const HAS_ROCKSDB: bool = cfg!(feature = "rocksdb");

fn server() -> Server {
    let engine = if HAS_ROCKSDB { "rocksdb" } else { "memory" };
    ServerBuilder::new(engine).arg("--heap-sample", "4KiB").start()
}

fn profile(server: &Server, arguments: &str) -> Klad {
    Klad::new(&format!("profile http://{} {arguments}", server.admin))
}

/// Each event, with words that every format of it must contain under load.
const EVENTS: [(&str, &[&str]); 5] = [
    ("cpu", &["klad_", "rocksdb::"]),
    ("alloc", &["klad_", "rocksdb::"]),
    ("heap", &["klad_", "rocksdb::"]),
    ("lock", &[]),
    ("block", &["klad_"]),
];

/// Extensions, and the start of each format.
const FORMS: [(&str, &str); 4] =
    [("html", "<!DOCTYPE html>"), ("svg", "<?xml"), ("pb.gz", ""), ("collapsed", "# title: ")];

/// Returns what is wrong with a file of this extension.
fn wrong_with(bytes: &[u8], ending: &str, begins: &str, names: &[&str]) -> Option<String> {
    let text = match ending {
        "pb.gz" => match top(bytes) {
            Ok(said) => said,
            Err(why) => return Some(format!("go does not read it: {why}")),
        },
        _ => String::from_utf8_lossy(bytes).into_owned(),
    };
    if !text.starts_with(begins) {
        return Some(format!("it does not begin with {begins}: {text}"));
    }
    let missing = names.iter().find(|name| !text.contains(*name) && (HAS_ROCKSDB || **name != "rocksdb::"))?;
    Some(format!("no {missing} in {text}"))
}

/// Takes `event` in this format, with a longer duration on a busy machine. Returns what is wrong with the last attempt.
fn take(
    server: &Server,
    directory: &Path,
    event: &str,
    (ending, begins): (&str, &str),
    names: &[&str],
) -> Option<String> {
    let mut wrong = None;
    for seconds in [1, 5, 15] {
        let arguments = match event {
            "heap" => String::new(),
            "cpu" => format!("--interval 2ms --duration {seconds}s"),
            _ => format!("--duration {seconds}s"),
        };
        let path = directory.join(format!("{event}.{ending}"));
        assert_eq!(profile(server, &format!("--event {event} {arguments} -o")).arg(&path).succeeds(), b"");
        wrong = wrong_with(&std::fs::read(&path).unwrap(), ending, begins, names);
        if wrong.is_none() {
            break;
        }
    }
    wrong
}

#[test]
fn each_event_is_taken_of_a_live_server_in_each_form() {
    let server = server();
    let directory = tempfile::tempdir().unwrap();
    loaded(&server, Duration::ZERO, || {
        for (event, names) in EVENTS {
            std::thread::scope(|scope| {
                for form in FORMS {
                    let (server, directory) = (&server, directory.path());
                    scope.spawn(move || {
                        assert_eq!(take(server, directory, event, form, names), None, "{event} {form:?}");
                    });
                }
            });
        }
    });
    // The facts must be visible in the picture, not in a comment of it.
    let picture = std::fs::read_to_string(directory.path().join("cpu.svg")).unwrap();
    let line = picture.split("<text").find(|text| text.contains(">events: ")).unwrap_or_default();
    for fact in ["clock: CPU time of each thread", "sampling rate: ", "lost samples: ", "duration: ", "version: "] {
        assert!(line.contains(fact), "{fact} is missing in {line}");
    }
    let files = EVENTS.len() * FORMS.len();
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), files, "no other file is left");
}

#[test]
fn twin_files_of_other_formats_or_without_names_are_noticed() {
    let page = b"<!DOCTYPE html>\n<p>rocksdb::DBImpl::Write klad_server::run</p>";
    assert_eq!(wrong_with(page, "html", FORMS[0].1, EVENTS[0].1), None);
    assert!(wrong_with(page, "svg", FORMS[1].1, EVENTS[0].1).unwrap().contains("does not begin"));
    assert!(wrong_with(page, "pb.gz", "", &[]).unwrap().contains("go does not read it"));
    assert!(wrong_with(b"<!DOCTYPE html>\n::poll", "html", FORMS[0].1, EVENTS[0].1).unwrap().contains("no klad_"));
}

/// Returns what is wrong with the table of a profile. Each name must have its module.
fn wrong_with_table(text: &str) -> Option<String> {
    if !text.starts_with("CPU time: ") || !text.contains("\nsampling rate: ") {
        return Some(format!("no facts: {text}"));
    }
    let rows: Vec<&str> = text.lines().filter(|line| line.contains("%  ")).collect();
    if !rows.iter().any(|row| row.contains("  klad_")) {
        return Some(format!("no function of klad is among the first: {text}"));
    }
    let nameless = rows.iter().find(|row| row.contains("  ::") || row.contains("  {") || row.contains("  _ZN"))?;
    Some(format!("a name without its module: {nameless}"))
}

#[test]
fn the_table_names_the_most_expensive_functions() {
    let server = server();
    let take = |seconds: u64| {
        let arguments = format!("--interval 2ms --duration {seconds}s");
        String::from_utf8(profile(&server, &arguments).succeeds()).unwrap()
    };
    // With a longer duration on a busy machine.
    let text = loaded(&server, Duration::ZERO, || {
        let short = take(2);
        if wrong_with_table(&short).is_none() { short } else { take(15) }
    });
    assert_eq!(wrong_with_table(&text), None);
    let rows: Vec<&str> = text.lines().filter(|line| line.contains("%  ")).collect();
    let nameless = text.replace(rows.last().unwrap(), "    1.00 ms    1.0%      1.00 ms    1.0%  ::poll");
    assert!(wrong_with_table(&nameless).unwrap().contains("without its module"));
}

/// Returns a fault unless klad does more than before.
fn wrong_direction(text: &str) -> Option<String> {
    let rows = text.split("  function\n").nth(1).unwrap_or_default();
    (!rows.trim_start().starts_with('+')).then(|| format!("nothing has grown: {text}"))
}

#[test]
fn a_difference_of_two_live_profiles_has_a_direction() {
    let server = server();
    let directory = tempfile::tempdir().unwrap();
    let [before, after] = ["before.pb.gz", "after.pb.gz"].map(|name| directory.path().join(name));
    assert_eq!(profile(&server, "-d 1s -i 1ms -o").arg(&before).succeeds(), b"");
    let compare =
        |one: &Path, other: &Path| String::from_utf8(Klad::new("profile diff").arg(one).arg(other).succeeds()).unwrap();
    let take = |seconds: u64| {
        let taken = profile(&server, &format!("-d {seconds}s -i 1ms -o")).arg(&after);
        loaded(&server, Duration::ZERO, || assert_eq!(taken.succeeds(), b""));
        wrong_direction(&compare(&before, &after))
    };
    // With a longer duration on a busy machine.
    assert_eq!(take(3).and_then(|_| take(15)), None);
    assert!(wrong_direction(&compare(&after, &before)).is_some(), "the twin: swapped");
    let page = directory.path().join("diff.html");
    assert_eq!(Klad::new("profile diff").arg(&before).arg(&after).arg("-o").arg(&page).succeeds(), b"");
    let page = std::fs::read_to_string(page).unwrap();
    let names = [&before, &after].map(|path| path.to_string_lossy());
    assert!(page.contains(&format!("more in {} than in {}", names[1], names[0])), "{page}");
    assert!(page.contains("<svg") && page.contains("klad_"));
}

#[test]
fn threads_are_listed_and_drawn() {
    let server = server();
    let taken = |options: &str| String::from_utf8(profile(&server, options).succeeds()).unwrap();
    // A thread that does not answer within 80 ms is listed without its stack.
    wait_until("the worker is listed with its stack", || {
        let list = taken("--event threads");
        assert!(list.lines().next().unwrap().ends_with(" threads") && list.contains(" klad-worker-0 ("), "{list}");
        list.contains("    klad_")
    });
    wait_until("the worker is drawn with its stack", || {
        let text = taken("--event threads -o - --format collapsed");
        assert!(text.starts_with("# title: Threads\n"), "{text}");
        text.contains("\nklad-worker-0;")
    });
}

/// Returns the files in a directory other than those with these names.
fn left(directory: &Path, names: &[&str]) -> Vec<String> {
    let entries = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name());
    entries.map(|name| name.into_string().unwrap()).filter(|name| !names.contains(&name.as_str())).collect()
}

#[test]
fn ctrl_c_during_a_profile_leaves_the_file_unchanged_and_no_other_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("out.html");
    std::fs::write(&path, "before").unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    // Background jobs of a script, as tests may be, ignore Ctrl-C, and their children inherit this.
    let child = Command::new("env")
        .args([
            "--default-signal=INT",
            env!("CARGO_BIN_EXE_klad"),
            "profile",
            &format!("http://{}", listener.local_addr().unwrap()),
            "-o",
        ])
        .arg(&path)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // The request has arrived, and the command waits.
    let mut stream = listener.accept().unwrap().0;
    assert!(stream.read(&mut [0; 4096]).unwrap() > 0);
    let process = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(process, rustix::process::Signal::INT).unwrap();
    let ended = child.wait_with_output().unwrap();
    // A shell reports 130.
    assert_eq!(ended.status.signal(), Some(rustix::process::Signal::INT.as_raw()));
    assert!(ended.stdout.is_empty() && ended.stderr.is_empty(), "{ended:?}");
    assert_eq!(std::fs::read(&path).unwrap(), b"before");
    assert_eq!(left(directory.path(), &["out.html"]), Vec::<String>::new());
    // Twin: another file is noticed.
    std::fs::write(directory.path().join(".out.html.7.part"), "half").unwrap();
    assert_eq!(left(directory.path(), &["out.html"]), [".out.html.7.part"]);
}
