//! `klad top` on a terminal, which tmux emulates: keys, sizes, colours, and a server that comes back.

use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::process::Signal;
use tempfile::TempDir;

use super::support::clock::Clock;
use super::support::command::Klad;
use super::support::server::keep;
use super::support::{Client, Server, ServerBuilder, wait_until};

/// A terminal in which `klad top` runs. Dropping it ends both.
struct Terminal {
    /// The directory of the socket of this tmux, which no other uses.
    directory: TempDir,
}

impl Terminal {
    fn start(server: &Server, environment: &str) -> Terminal {
        let terminal = Terminal { directory: tempfile::tempdir().unwrap() };
        let klad = env!("CARGO_BIN_EXE_klad");
        let command = format!("env -u NO_COLOR {environment} {klad} top http://{}", server.admin);
        terminal.tmux(&["-f", "/dev/null", "new-session", "-d", "-x", "120", "-y", "50", &command]).unwrap();
        terminal
    }

    fn tmux(&self, arguments: &[&str]) -> Result<String, String> {
        let output = Command::new("tmux")
            .args(arguments)
            .env("TMUX_TMPDIR", self.directory.path())
            .env_remove("TMUX")
            .output()
            .unwrap_or_else(|error| panic!("tmux cannot be run ({error}): tools/setup.sh test installs it"));
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        if output.status.success() { Ok(said) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
    }

    fn screen(&self) -> String {
        self.tmux(&["capture-pane", "-p"]).unwrap_or_default()
    }

    /// The screen with its escape sequences.
    fn painted(&self) -> String {
        self.tmux(&["capture-pane", "-p", "-e"]).unwrap_or_default()
    }

    fn press(&self, key: &str) {
        self.tmux(&["send-keys", key]).unwrap();
    }

    fn wait_for(&self, text: &str) {
        wait_until(&format!("{text:?} is on the screen"), || self.screen().contains(text));
    }

    fn wait_for_end(&self) {
        wait_until("klad top has ended", || self.tmux(&["has-session"]).is_err());
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("the screen:\n{}", self.screen());
        }
        let _ = self.tmux(&["kill-server"]);
    }
}

/// Sends requests that klad rejects while `check` runs: lines that need attention.
fn while_requests_fail(server: &Server, check: impl FnOnce()) {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut client = server.client();
            while !stop.load(Ordering::Relaxed) {
                assert_eq!(client.get("/nothing").status, 400);
            }
        });
        let stopping = Raise(&stop);
        check();
        drop(stopping);
    });
}

/// Raises a flag when dropped, also by a panic.
struct Raise<'a>(&'a AtomicBool);

impl Drop for Raise<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn keys_choose_views_pause_help_and_quit() {
    let server = ServerBuilder::new("memory").start();
    let terminal = Terminal::start(&server, "");
    terminal.wait_for("Queues");
    for (key, text) in [("2", "Requests by outcome"), ("3", "RocksDB: tables"), ("1", "Queues"), ("Tab", "by outcome")]
    {
        terminal.press(key);
        terminal.wait_for(text);
    }
    terminal.press("?");
    terminal.wait_for("show or hide this help");
    terminal.press("?");
    terminal.wait_for("by outcome");
    terminal.press("p");
    terminal.wait_for("paused");
    terminal.press("p");
    wait_until("it goes on", || !terminal.screen().contains("paused"));
    terminal.press("q");
    terminal.wait_for_end();
}

#[test]
fn the_screen_follows_the_size_of_the_terminal() {
    let server = ServerBuilder::new("memory").start();
    let terminal = Terminal::start(&server, "");
    let both_in_a_line = |screen: &str| {
        let titles = ["Requests", "Queues", "Rejected", "Commits", "Connections", "CPU", "Memory"];
        let count =
            |line: &str| titles.iter().filter(|title| line.split_whitespace().any(|word| word == **title)).count();
        screen.lines().skip(1).any(|line| count(line) == 2)
    };
    wait_until("there are two columns", || both_in_a_line(&terminal.screen()));
    for (width, height) in [("60", "24"), ("20", "5"), ("120", "50")] {
        terminal.tmux(&["resize-window", "-x", width, "-y", height]).unwrap();
        wait_until("the last line has the keys", || {
            let screen = terminal.screen();
            let lines: Vec<&str> = screen.lines().collect();
            lines.len() == height.parse::<usize>().unwrap() && lines.last().is_some_and(|line| line.contains("[1 Now]"))
        });
        wait_until("columns fit the width", || both_in_a_line(&terminal.screen()) == (width == "120"));
    }
}

/// Returns whether escape sequences set a colour.
fn has_colour(painted: &str) -> bool {
    let sequences = painted.split("\x1b[").skip(1).filter_map(|text| text.split_once('m'));
    let mut codes = sequences.flat_map(|(codes, _)| codes.split(';'));
    codes.any(|code| code.parse().is_ok_and(|code: u32| matches!(code, 30..=38 | 40..=48 | 90..=107)))
}

/// Waits until a line that needs attention is marked. Returns the screen.
fn marked_screen(server: &Server, environment: &str) -> String {
    let mut painted = String::new();
    while_requests_fail(server, || {
        let terminal = Terminal::start(server, environment);
        wait_until("a line is marked", || {
            painted = terminal.painted();
            painted.lines().any(|line| line.contains("other") && line.contains("\x1b["))
        });
    });
    painted
}

#[test]
fn no_color_means_no_colour() {
    let painted = marked_screen(&ServerBuilder::new("memory").start(), "NO_COLOR=1");
    assert!(!has_colour(&painted), "{painted:?}");
}

#[test]
fn twin_colours_are_noticed() {
    assert!(has_colour(&marked_screen(&ServerBuilder::new("memory").start(), "NO_COLOR=")));
}

#[test]
fn a_server_that_comes_back_is_shown_again() {
    let server = ServerBuilder::new("memory").start();
    let terminal = Terminal::start(&server, "");
    terminal.wait_for("ready");
    let admin = server.admin;
    server.kill();
    let _kept = keep(admin);
    terminal.wait_for("does not answer since");
    let server = ServerBuilder::new("memory").arg("--admin-listen", &admin.to_string()).start();
    terminal.wait_for("  ready");
    server.signal(Signal::STOP);
    terminal.wait_for("has sent nothing for");
    server.signal(Signal::CONT);
    terminal.wait_for("  ready");
}

#[test]
fn a_clock_that_is_set_back_stops_nothing() {
    let clock = Clock::new();
    let server = clock.preload(ServerBuilder::new("memory")).start();
    let terminal = Terminal::start(&server, "");
    terminal.wait_for("  ready");
    clock.set_minutes(-120);
    wait_until("the new time is shown", || {
        let hour = std::time::SystemTime::now() - std::time::Duration::from_hours(2);
        let hour = humantime::format_rfc3339_seconds(hour).to_string()[..13].to_owned();
        let screen = terminal.screen();
        screen.contains(&hour) && screen.contains("  ready")
    });
}

#[test]
fn once_prints_the_figures_as_text() {
    let server = ServerBuilder::new("memory").start();
    Client::connect(server.address).put("/v1/kv/k", b"v");
    let text = Klad::new("top --once").arg(format!("http://{}", server.admin)).succeeds();
    let text = String::from_utf8(text).unwrap();
    for part in ["== Now ==", "== Storage ==", "Connections", "requests in flight", "worker"] {
        assert!(text.contains(part), "{part} is missing in:\n{text}");
    }
    assert!(!text.contains('\x1b'), "{text:?}");
    let admin = format!("http://{}", server.admin);
    assert!(Klad::new("top").arg(&admin).fails(2).contains("--once"), "the output is no terminal");
    server.kill();
    assert!(Klad::new("top --once").arg(&admin).fails(1).contains("refused"));
}
