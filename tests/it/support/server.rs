//! Starts one klad for each test: the built binary, or this test binary with a planted defect.

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::JoinHandle;

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::planted::{self, Defect};
use super::{Client, PATIENCE, wait_until};

/// What to start.
#[derive(Clone, Default)]
pub(crate) struct ServerBuilder {
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
    data: Option<PathBuf>,
    defect: Option<Defect>,
    listen: Option<SocketAddr>,
    under: Vec<String>,
}

/// A running klad. Dropping it kills the process.
pub(crate) struct Server {
    child: Child,
    pub(crate) address: SocketAddr,
    pub(crate) admin: SocketAddr,
    log: Log,
    /// Reads the log.
    reader: Option<JoinHandle<()>>,
    /// The data directory, if the builder has none.
    _temporary: Option<TempDir>,
}

/// The end of a server that did not start.
#[derive(Debug)]
pub(crate) struct Failed {
    pub(crate) status: ExitStatus,
    pub(crate) log: String,
}

impl ServerBuilder {
    /// Sets engine and strategy from `engine` or `engine/strategy`. `late` is the default engine with late answers.
    pub(crate) fn new(setup: &str) -> ServerBuilder {
        let (engine, strategy) = setup.split_once('/').unwrap_or((setup, "adaptive"));
        let builder = ServerBuilder::default().arg("--execution", strategy);
        match engine {
            "late" => builder.defect(Some(Defect::AnswersLate)),
            engine => builder.arg("--engine", engine),
        }
    }

    pub(crate) fn arg(mut self, name: &str, value: &str) -> ServerBuilder {
        self.arguments.extend([name.to_owned(), value.to_owned()]);
        self
    }

    /// Adds an option without a value.
    pub(crate) fn flag(mut self, name: &str) -> ServerBuilder {
        self.arguments.push(name.to_owned());
        self
    }

    pub(crate) fn env(mut self, name: &str, value: &str) -> ServerBuilder {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Preloads a library, behind those of earlier calls.
    pub(crate) fn preload(mut self, library: &str) -> ServerBuilder {
        match self.environment.iter_mut().find(|(name, _)| name == "LD_PRELOAD") {
            Some((_, libraries)) => *libraries = format!("{libraries}:{library}"),
            None => return self.env("LD_PRELOAD", library),
        }
        self
    }

    pub(crate) fn data(mut self, path: &Path) -> ServerBuilder {
        self.data = Some(path.to_owned());
        self
    }

    pub(crate) fn listen(mut self, address: SocketAddr) -> ServerBuilder {
        self.listen = Some(address);
        self
    }

    pub(crate) fn defect(mut self, defect: Option<Defect>) -> ServerBuilder {
        self.defect = defect;
        self
    }

    /// Starts klad with this program, which must replace its process by klad.
    pub(crate) fn under(mut self, command: &[&str]) -> ServerBuilder {
        self.under = command.iter().map(|&word| word.to_owned()).collect();
        self
    }

    pub(crate) fn start(&self) -> Server {
        self.try_start().unwrap_or_else(|failed| panic!("klad did not start: {failed:?}"))
    }

    pub(crate) fn try_start(&self) -> Result<Server, Failed> {
        let temporary = self.data.is_none().then(|| tempfile::tempdir().unwrap());
        let data = self.data.clone().unwrap_or_else(|| temporary.as_ref().unwrap().path().to_owned());
        let mut child = self.spawn(&data);
        let (log, reader, serving) = follow(&mut child);
        // The channel closes when the process ends before it serves.
        if let Ok((address, admin)) = serving.recv_timeout(PATIENCE) {
            return Ok(Server { child, address, admin, log, reader: Some(reader), _temporary: temporary });
        }
        let _ = child.kill();
        let status = child.wait().unwrap();
        let log = log.lock().unwrap().clone();
        Err(Failed { status, log })
    }

    /// Starts the process without waiting until it serves.
    pub(crate) fn spawn(&self, data: &Path) -> Child {
        let mut arguments = vec!["serve".to_owned()];
        let listen = self.listen.map_or_else(|| "127.0.0.1:0".to_owned(), |address| address.to_string());
        for (name, value) in [
            ("--listen", listen.as_str()),
            ("--admin-listen", "127.0.0.1:0"),
            ("--data", data.to_str().unwrap()),
            ("--disk-reserve", "1MiB"),
            // On a busy machine a write may wait longer than the default. Tests of this limit set it themselves.
            ("--queue-age-max", "1m"),
            // The default is JSON if stderr is not a terminal.
            ("--log-format", "text"),
        ] {
            if !self.arguments.iter().any(|argument| argument == name) {
                arguments.extend([name.to_owned(), value.to_owned()]);
            }
        }
        arguments.extend(self.arguments.clone());
        let mut command = match self.defect {
            None => {
                let mut words = self.under.iter().map(String::as_str).chain([env!("CARGO_BIN_EXE_klad")]);
                let mut command = Command::new(words.next().expect("klad itself"));
                command.args(words).args(&arguments);
                command
            }
            Some(defect) => planted::command(defect, &arguments),
        };
        command.envs(self.environment.clone()).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        command.spawn().unwrap()
    }
}

type Log = Arc<Mutex<String>>;

/// Collects the log of the process, and finds the line with its addresses. The thread ends with the process.
fn follow(child: &mut Child) -> (Log, JoinHandle<()>, mpsc::Receiver<(SocketAddr, SocketAddr)>) {
    let log = Log::default();
    let (sender, receiver) = mpsc::channel();
    let lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let shared = log.clone();
    let reader = std::thread::spawn(move || {
        for line in lines.map_while(Result::ok) {
            // First the log, so that it has this line when the receiver gets the addresses.
            let mut log = shared.lock().unwrap();
            log.push_str(&line);
            log.push('\n');
            drop(log);
            if let Some(found) = addresses(&line) {
                let _ = sender.send(found);
            }
        }
    });
    (log, reader, receiver)
}

/// Returns the addresses of the client and the admin listener if `line` contains them, in text or JSON.
pub(crate) fn addresses(line: &str) -> Option<(SocketAddr, SocketAddr)> {
    let field = |name: &str| {
        let json = line.split_once(&format!("\"{name}\":\"")).and_then(|(_, after)| after.split('"').next());
        let text = || line.split_once(&format!("{name}="))?.1.split_whitespace().next();
        json.or_else(text).map(|address| address.parse().unwrap())
    };
    Some((field("listen")?, field("admin")?))
}

/// Keeps the address of a server that was killed, until the server listens there again. Meanwhile no other program gets
/// the address, and the kernel refuses connections to it.
pub(crate) fn keep(address: SocketAddr) -> socket2::Socket {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.set_reuse_address(true).unwrap();
    socket.bind(&address.into()).unwrap();
    socket
}

impl Server {
    pub(crate) fn client(&self) -> Client {
        Client::connect(self.address)
    }

    pub(crate) fn admin(&self, target: &str) -> super::Answer {
        Client::connect(self.admin).get(target)
    }

    /// Sends a request with a method to the admin address.
    pub(crate) fn ask_admin(&self, method: &str, target: &str) -> super::Answer {
        Client::connect(self.admin).request(method, target, &[], None)
    }

    pub(crate) fn process(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Sends SIGTERM and waits for the end of the process.
    pub(crate) fn stop(mut self) -> ExitStatus {
        self.signal(Signal::TERM);
        self.wait()
    }

    /// Kills the process.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub(crate) fn wait(&mut self) -> ExitStatus {
        let mut status = None;
        wait_until("klad has ended", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        // From here on the log is complete.
        let _ = self.reader.take().map(JoinHandle::join);
        status.unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            // What klad said last may not have been read yet.
            let _ = self.reader.take().map(JoinHandle::join);
            println!("klad said:\n{}", self.log());
        }
    }
}
