//! `klad top`: what a server does now, on a terminal. Called by `client::run`.
//!
//! ```text
//!   klad-top-feed: feed (stream of samples) ─▶ figures ─▶ State ─▶ main thread: views (tables) ─▶ screen, or text
//!                                                                  keys ──────────┘
//! ```
//!
//! The command shows the same samples as the console, and lets the server compute nothing.

use std::io::{IsTerminal as _, Write as _};
use std::sync::Arc;
use std::time::Duration;

use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use crate::client::args::TopArgs;
use crate::client::exchange::url_from;
use crate::client::output::{lock, not_written};
use crate::client::{ADMIN_URL_VARIABLE, Error};
use feed::{Feed, State};
use figures::Figures;
use klad_base::clock;
use klad_base::sync::{Mutex, try_spawn_thread};
use screen::Screen;
use views::VIEWS;

mod feed;
mod figures;
mod screen;
mod views;

/// How often the screen looks for new samples.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);

/// If no sample has come for this long, the status says so.
const SILENCE_MAX: Duration = Duration::from_secs(3);

/// Shows what a server does.
///
/// # Errors
/// [`Error`].
pub(super) fn run(args: &TopArgs) -> Result<(), Error> {
    let url = url_from(args.url.as_deref(), ADMIN_URL_VARIABLE, "http://127.0.0.1:8081")?;
    if args.once {
        return print_once(&Feed { url: &url, transport: &args.transport });
    }
    if args.transport.timeout.is_some() {
        return Err(Error::Usage("--timeout is for --once: without it klad top has no end".to_owned()));
    }
    if !std::io::stdout().is_terminal() {
        return Err(Error::Usage("the standard output is not a terminal; --once prints the figures once".to_owned()));
    }
    // The stream is opened before the screen is taken, so that a wrong URL or token is reported as by the other
    // commands.
    let lines = Feed { url: &url, transport: &args.transport }.open()?;
    let state = Arc::<Mutex<State>>::default();
    let server = url.authority.clone();
    let started = {
        let (state, transport) = (state.clone(), args.transport.clone());
        try_spawn_thread("klad-top-feed", move || {
            Feed { url: &url, transport: &transport }.follow(lines, &state);
        })
    };
    // The thread may wait for the server, so the end of the program does not wait for the thread.
    drop(started.map_err(|why| Error::File { what: "cannot start a thread".to_owned(), why })?);
    let not_drawn = |why| Error::File { what: "cannot use the terminal".to_owned(), why };
    let mut terminal = ratatui::try_init().map_err(not_drawn)?;
    let ended = Top::new(server).show(&mut terminal, &state);
    ratatui::restore();
    ended.map_err(not_drawn)
}

/// Prints all views as text, as soon as there are rates.
fn print_once(feed: &Feed<'_>) -> Result<(), Error> {
    let mut lines = feed.open()?;
    let lost = |why: String| Error::Failed(format!("{}: {why}", feed.url.authority));
    let mut figures = Figures::default();
    while !figures.has_rates() {
        match feed::event(&mut lines) {
            Ok(Some((name, data))) => feed::take(&mut figures, &name, &data),
            Ok(None) => return Err(lost("the server has ended the stream".to_owned())),
            Err(error) => return Err(lost(error.to_string())),
        }
    }
    let mut out = lock()?;
    for (view, (_, name)) in VIEWS.iter().enumerate() {
        let text = views::text(&views::tables(view, &figures));
        write!(out, "== {name} ==\n\n{text}").map_err(not_written)?;
    }
    out.flush().map_err(not_written)
}

/// The state of the screen.
struct Top {
    server: String,
    view: usize,
    shows_help: bool,
    /// What was shown when the user paused.
    paused: Option<State>,
    colours: bool,
}

impl Top {
    fn new(server: String) -> Top {
        // https://no-color.org
        let colours = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        Top { server, view: 0, shows_help: false, paused: None, colours }
    }

    /// Draws and reads keys until the user quits.
    fn show(&mut self, terminal: &mut ratatui::DefaultTerminal, state: &Mutex<State>) -> std::io::Result<()> {
        loop {
            let current = self.paused.clone().unwrap_or_else(|| state.lock().clone());
            let (status, is_bad) = self.status(&current);
            let known = current.figures.has_rates();
            let tables = if known { views::tables(self.view, &current.figures) } else { Vec::new() };
            let (view, shows_help, colours) = (self.view, self.shows_help, self.colours);
            let screen = Screen { status: &status, is_bad, view, tables: &tables, shows_help, colours };
            terminal.draw(|frame| screen.draw(frame))?;
            if event::poll(LOOK_INTERVAL)?
                && let Event::Key(key) = event::read()?
                && key.kind == KeyEventKind::Press
                && self.quits(key, current)
            {
                return Ok(());
            }
        }
    }

    /// Does what a key asks for. Returns whether the key asks to quit.
    fn quits(&mut self, key: KeyEvent, current: State) -> bool {
        match key.code {
            KeyCode::Char('q') | KeyCode::Esc => return true,
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return true,
            KeyCode::Char('p') => self.paused = if self.paused.is_some() { None } else { Some(current) },
            KeyCode::Char('?') => self.shows_help = !self.shows_help,
            KeyCode::Tab => self.view = (self.view + 1) % VIEWS.len(),
            KeyCode::Char(key) => {
                self.view = VIEWS.iter().position(|(own, _)| *own == key).unwrap_or(self.view);
            }
            _ => {}
        }
        false
    }

    /// Returns the first line, and whether it is bad news.
    fn status(&self, current: &State) -> (String, bool) {
        let server = &self.server;
        let Some(last_ms) = current.figures.unix_ms().filter(|_| current.figures.has_rates()) else {
            let why = current.lost.as_ref().map_or("waiting for the first two samples", |(why, _)| why);
            return (format!("klad {server}: {why}"), current.lost.is_some());
        };
        let at = humantime::format_rfc3339_seconds(std::time::UNIX_EPOCH + Duration::from_millis(last_ms));
        if self.paused.is_some() {
            return (format!("klad {server}  {at}  paused: p continues"), false);
        }
        if let Some((why, since_ms)) = &current.lost {
            let since = humantime::format_rfc3339_seconds(std::time::UNIX_EPOCH + Duration::from_millis(*since_ms));
            return (format!("klad {server} does not answer since {since}, trying again: {why}"), true);
        }
        let silence = current.heard.map_or(Duration::ZERO, |heard| clock::now() - heard);
        if silence > SILENCE_MAX {
            return (format!("klad {server} has sent nothing for {} s", silence.as_secs()), true);
        }
        let is_ready = current.figures.value("klad_ready", |_| true) != Some(0.0);
        let word = if is_ready { "ready" } else { "not ready: see /readyz?verbose" };
        (format!("klad {server}  {at}  {word}"), !is_ready)
    }
}
