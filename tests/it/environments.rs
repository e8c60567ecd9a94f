//! Machines with tight limits, and unusual programs and files: problems that users reported.

use std::io::{Error, ErrorKind};
use std::os::unix::fs::{DirBuilderExt as _, symlink};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::support::command::Klad;
use super::support::rights;
use super::support::{Client, DURABLE_ENGINES, ENGINES, Server, ServerBuilder, wait_until};

const KLAD: &str = env!("CARGO_BIN_EXE_klad");

fn key(number: usize) -> String {
    format!("/v0/entity?id=k{number:08}&durability=async")
}

/// Returns a different, incompressible value for each key.
fn value(number: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(number as u64);
    std::iter::repeat_with(|| random.u8(..)).take(64 << 10).collect()
}

/// Returns the number of tables of the store.
fn tables(files: &Path) -> usize {
    let is_table = |entry: &std::fs::DirEntry| entry.path().extension().is_some_and(|ending| ending == "sst");
    std::fs::read_dir(files).map_or(0, |entries| entries.flatten().filter(is_table).count())
}

/// Stores keys in order, which makes many small tables because none is rewritten. Returns the number of stored keys,
/// and stops at the first failure.
fn store_until(server: &Server, enough: impl Fn(usize) -> bool) -> Result<usize, String> {
    let mut client = server.client();
    for number in 0.. {
        if number % 100 == 0 && enough(number) {
            return Ok(number);
        }
        let value = value(number);
        // klad answers 503 while RocksDB stalls writes.
        loop {
            let answer = client.put(&key(number), &value);
            match answer.status {
                201 => break,
                503 if answer.text().contains("\"stalled\"") => std::thread::sleep(Duration::from_millis(2)),
                _ => return Err(format!("{number}: {} {}", answer.status, answer.text())),
            }
        }
    }
    unreachable!("numbers do not end")
}

const DESCRIPTORS: usize = 128;

#[test]
fn a_store_of_more_tables_than_open_files_accepts_writes_and_reads() {
    for engine in DURABLE_ENGINES {
        let data = tempfile::tempdir().unwrap();
        let builder = ServerBuilder::new(engine).data(data.path()).under(&["prlimit", "--nofile=128:128"]);
        let builder = builder.arg("--threads", "1").arg("--memory", "64MiB").arg("--connections-max", "16");
        let mut server = builder.start();
        let files = data.path().join("rocksdb");
        let enough = |number| if files.is_dir() { tables(&files) > DESCRIPTORS } else { number >= 5_000 };
        let stored = store_until(&server, enough).unwrap();
        // Again after a start, which opens the tables again.
        for _ in 0..2 {
            let mut client = server.client();
            for number in (0..stored).step_by(stored / 300) {
                assert_eq!(client.get(&key(number)).body, value(number), "{engine}: {number}");
            }
            client.store("/v0/entity?id=after", b"v");
            server.signal(Signal::TERM);
            assert!(server.wait().success(), "{engine}: {}", server.log());
            server = builder.start();
        }
    }
}

#[test]
fn clients_beyond_the_limit_wait_and_are_served_when_others_leave() {
    let builder = ServerBuilder::new(ENGINES[0]).under(&["prlimit", "--nofile=128:128"]).arg("--threads", "1");
    let server = builder.start();
    let mut all: Vec<Client> = (0..200).map(|_| server.client()).collect();
    for client in &mut all {
        client.send("PUT", "/v0/entity?id=k", &[], Some(b"v")).unwrap();
    }
    // Each client that has its answer leaves its place to the next.
    for client in &mut all {
        assert_eq!(client.answer().unwrap().status, 201);
        client.stream.shutdown(std::net::Shutdown::Both).unwrap();
    }
    assert_eq!(server.admin("/readyz").status, 200);
}

#[test]
fn a_limit_of_open_files_that_is_too_low_is_reported() {
    for limit in [16, 20, 32, 64] {
        let data = tempfile::tempdir().unwrap();
        let limits = format!("--nofile={limit}:{limit}");
        let started = ServerBuilder::new(ENGINES[0]).data(data.path()).under(&["prlimit", &limits]).try_start();
        let failed = started.err().expect("too few");
        assert_eq!(failed.status.code(), Some(78), "{}", failed.log);
        assert_eq!(failed.log.lines().count(), 1, "{}", failed.log);
        let parts = [format!("open files is {limit}"), "ulimit -n".to_owned(), "[bad-configuration]".to_owned()];
        assert!(parts.iter().all(|part| failed.log.contains(part)), "{}", failed.log);
        assert_eq!(std::fs::read_dir(data.path()).unwrap().count(), 0, "nothing was created");
    }
}

#[test]
fn too_little_address_space_is_reported() {
    for limit in [100_000_000_u64, 300_000_000] {
        let limits = format!("--as={limit}:{limit}");
        let builder = ServerBuilder::new(ENGINES[0]).arg("--memory", "256MiB").under(&["prlimit", &limits]);
        let failed = builder.try_start().err().expect("too little");
        assert_eq!(failed.status.code(), Some(78), "{failed:?}");
        let part = format!("address space is {limit} bytes");
        assert!(failed.log.lines().count() == 1 && failed.log.contains(&part), "{}", failed.log);
    }
}

/// A user without other processes, because the limit counts all processes of a user.
const USER: u32 = 61_897;

/// Runs `klad serve` with this limit of processes, and stops it when it serves. Returns the exit code and the output.
fn serve_with_processes(program: &Path, limit: u32, data: &Path) -> (Option<i32>, String) {
    let mut command = Command::new("setpriv");
    command.args(["--reuid", &USER.to_string(), "--regid", &USER.to_string(), "--clear-groups"]);
    command.args(["--bounding-set=-all", "--inh-caps=-all", "prlimit", &format!("--nproc={limit}")]);
    command.arg(program).args(["serve", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"]);
    command.args(["--log-format", "text", "--threads", "2", "--data"]).arg(data);
    let mut child = command.current_dir("/").stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(child.stderr.take().unwrap()));
    let mut said = String::new();
    while let Some(Ok(line)) = lines.next() {
        if line.contains("serving") {
            kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
        }
        said += &format!("{line}\n");
    }
    (child.wait().unwrap().code(), said)
}

#[test]
fn with_too_few_processes_klad_reports_it_or_serves() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("only root can become another user");
        return;
    }
    let (place, program) = rights::reachable();
    let place = place.path().join("data");
    std::fs::DirBuilder::new().mode(0o777).create(&place).unwrap();
    std::os::unix::fs::chown(&place, Some(USER), Some(USER)).unwrap();
    let mut served = 0;
    for limit in (3..=25).chain([28, 31, 34, 37, 40, 60]) {
        let (code, said) = serve_with_processes(&program, limit, &place.join("store"));
        if code == Some(0) {
            served += 1;
            continue;
        }
        assert_eq!(code, Some(71), "{limit}: {said}");
        assert!(said.lines().count() == 1 && said.trim_end().ends_with("[too-few-threads]"), "{limit}: {said}");
        assert_eq!(served, 0, "{limit}: more are not less: {said}");
    }
    assert!(served > 0, "60 are enough");
}

/// Some files have more bytes than their size says.
#[test]
fn a_file_is_stored_to_its_end_in_spite_of_its_size() {
    let server = ServerBuilder::new(ENGINES[0]).start();
    for file in ["/proc/version", "/sys/kernel/mm/transparent_hugepage/enabled"] {
        let bytes = std::fs::read(file).unwrap();
        assert_ne!(std::fs::metadata(file).unwrap().len(), bytes.len() as u64, "its size is different");
        Klad::new("put --quiet k --file").arg(file).at(server.address).succeeds();
        assert_eq!(Klad::new("get k").at(server.address).succeeds(), bytes, "{file}");
    }
}

#[test]
fn a_closed_output_is_an_error() {
    let server = ServerBuilder::new(ENGINES[0]).start();
    Klad::new("put --quiet k v").at(server.address).succeeds();
    let run = |command: &str| {
        let command = format!("exec {KLAD} {command} >&-");
        let mut ended = Command::new("sh");
        ended.args(["-c", &command]).env("KLAD_URL", format!("http://{}", server.address));
        let output = ended.stdin(Stdio::null()).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    for command in ["get k", "scan", "put other v", "del k", "config print", "completions bash", "config reference"] {
        let (code, said) = run(command);
        assert!(code == Some(1) && said.contains("Bad file descriptor"), "{command}: {code:?} {said}");
    }
    assert_eq!(Klad::new("get k").at(server.address).succeeds(), b"v", "no write happened without a report");
    assert!(Klad::new("get other").at(server.address).fails(4).contains("not-found"));
    // A command without output, or with another output, succeeds.
    let file = tempfile::NamedTempFile::new().unwrap();
    for command in ["put --quiet other v".to_owned(), format!("get k --output {}", file.path().display())] {
        assert_eq!(run(&command), (Some(0), String::new()), "{command}");
    }
}

#[test]
fn a_file_that_is_a_mount_point_can_be_written() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("only root can mount");
        return;
    }
    let server = ServerBuilder::new(ENGINES[0]).start();
    Klad::new("put --quiet k v").at(server.address).succeeds();
    let directory = tempfile::tempdir().unwrap();
    let (own, mounted) = (directory.path().join("own"), directory.path().join("mounted"));
    std::fs::write(&own, "what was there before, and longer").unwrap();
    std::fs::write(&mounted, "").unwrap();
    // In a mount namespace, so that nothing stays mounted.
    let script = format!("mount --bind {0} {1} && {KLAD} get k --output {1}", own.display(), mounted.display());
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", &script]).env("KLAD_URL", format!("http://{}", server.address));
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(std::fs::read(&own).unwrap(), b"v");
    let names: Vec<_> = std::fs::read_dir(directory.path()).unwrap().flatten().map(|entry| entry.file_name()).collect();
    assert_eq!(names.len(), 2, "{names:?}");
}

#[test]
fn a_data_directory_that_is_a_dangling_link_is_rejected_with_a_clear_message() {
    for engine in DURABLE_ENGINES {
        let directory = tempfile::tempdir().unwrap();
        let (link, target) = (directory.path().join("data"), directory.path().join("disk").join("klad"));
        symlink(&target, &link).unwrap();
        let failed = ServerBuilder::new(engine).data(&link).try_start().err().expect("does not start");
        assert_eq!(failed.status.code(), Some(66), "{}", failed.log);
        let said = format!("is a link to {}, and nothing is there", target.display());
        assert!(failed.log.contains(&said) && failed.log.contains("[data-foreign]"), "{}", failed.log);
        assert!(!target.exists());
        std::fs::create_dir_all(&target).unwrap();
        let server = ServerBuilder::new(engine).data(&link).start();
        assert_eq!(server.client().put("/v0/entity?id=k", b"v").status, 201);
    }
}

#[cfg(feature = "rocksdb")]
#[test]
fn checkpoints_without_names_get_different_names() {
    let server = ServerBuilder::new("rocksdb").start();
    for _ in 0..4 {
        let answer = server.ask_admin("POST", "/checkpoint");
        assert_eq!(answer.status, 201, "{}", answer.text());
    }
    assert_eq!(server.admin("/checkpoints").text().matches("\"name\"").count(), 4);
}

/// A process that is stopped and continued, as in a paused container, serves the requests that arrived meanwhile.
#[test]
fn requests_that_arrived_while_klad_was_paused_are_answered() {
    let check = |setup: &str| {
        let builder = ServerBuilder::new(setup).arg("--head-timeout", "3s").arg("--body-timeout", "3s");
        let server = builder.arg("--fast-path", if setup == "late" { "off" } else { "on" }).start();
        let (mut idle, mut head, mut body, mut late) =
            (server.client(), server.client(), server.client(), server.client());
        assert_eq!(idle.put("/v0/entity?id=k", b"v").status, 201);
        let begun = Instant::now();
        head.send_raw("PUT /v0/entity?id=head HTTP/1.1\r\nHost: h\r\nContent-");
        let value = vec![b'v'; 2 << 20];
        let (first, rest) = value.split_at(10);
        let (most, last) = rest.split_at(rest.len() - 10);
        body.send_raw(format!("PUT /v0/entity?id=body HTTP/1.1\r\nHost: h\r\nContent-Length: {}\r\n\r\n", value.len()));
        body.send_raw(first);
        late.send_raw("PUT /v0/entity?id=late HTTP/1.1\r\nHost: h\r\nContent-Length: 8\r\n\r\nhalf");
        // All of it has been read when another client is answered.
        assert_eq!(server.client().get("/v0/entity?id=k").status, 200);
        server.signal(Signal::STOP);
        // Both timeouts are 3 s. An attempt in which this test itself keeps klad waiting for 2 s says nothing.
        let most_waited = Duration::from_secs(2);
        let before = begun.elapsed();
        if before > most_waited {
            return None;
        }
        head.send_raw("Length: 4\r\n\r\nhead");
        idle.send("GET", "/v0/entity?id=k", &[], None).unwrap();
        let (continued, sent) = std::thread::scope(|scope| {
            // More than the buffers between client and server hold.
            let sending = scope.spawn(|| body.try_send_raw(most));
            std::thread::sleep(Duration::from_secs(4));
            let continued = Instant::now();
            server.signal(Signal::CONT);
            (continued, sending.join().unwrap())
        });
        // The time of the pause does not count against its deadline.
        std::thread::sleep(Duration::from_millis(500));
        let sent = sent.and_then(|()| body.try_send_raw(last));
        let never_read = |error: &Error| matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut);
        assert!(!sent.as_ref().is_err_and(never_read), "{setup}: klad does not read the body");
        if before + continued.elapsed() > most_waited {
            return None;
        }
        sent.expect("klad reads");
        assert_eq!(head.answer().unwrap().status, 201, "{setup}");
        assert_eq!(body.answer().unwrap().status, 201, "{setup}");
        assert_eq!(idle.answer().unwrap().body, b"v", "{setup}");
        assert_eq!(server.client().get("/v0/entity?id=body").body, value, "{setup}");
        // Twin: a client that sends nothing more is late from now on.
        assert_eq!(late.answer().unwrap().status, 408, "{setup}");
        Some(())
    };
    // Each waits, so they run side by side.
    std::thread::scope(|scope| {
        for setup in ["late", ENGINES[0]] {
            scope.spawn(move || (0..5).find_map(|_| check(setup)).expect("one of the attempts is in time"));
        }
    });
}

#[cfg(target_os = "linux")]
#[test]
fn a_supervisor_with_an_abstract_socket_is_notified() {
    use std::os::linux::net::SocketAddrExt as _;
    use std::os::unix::net::{SocketAddr, UnixDatagram};
    let name = format!("klad-test-{}", std::process::id());
    let socket = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
    socket.set_read_timeout(Some(super::support::PATIENCE)).unwrap();
    let server = ServerBuilder::new("memory").env("NOTIFY_SOCKET", &format!("@{name}")).start();
    let mut said = [0; 4096];
    let count = socket.recv(&mut said).expect("a notification");
    assert!(said[..count].starts_with(b"READY=1\nSTATUS=serving "), "{}", String::from_utf8_lossy(&said[..count]));
    drop(server);
}

#[test]
fn the_admin_listener_checks_framing_as_strictly() {
    let server = ServerBuilder::new("memory").start();
    for (headers, code) in [
        ("", "bad-host"),
        ("Host: a\r\nHost: b\r\n", "bad-host"),
        ("Host: a\r\nContent-Type: a\r\nTransfer-Encoding: gzip, chunked\r\n", "bad-transfer-encoding"),
    ] {
        let mut client = Client::connect(server.admin);
        client.send_raw(format!("GET /config HTTP/1.1\r\n{headers}\r\n"));
        let answer = client.answer().unwrap();
        assert!(answer.status == 400 && answer.text().contains(code), "{headers:?}: {}", answer.text());
        assert!(client.is_closed_silently(), "{headers:?}");
    }
    wait_until("it answers other requests", || server.admin("/livez").status == 200);
}
