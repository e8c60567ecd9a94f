//! Picks the subcommand, says why it ended, sets the exit code (`exit`; `klad bench` has codes of its own).

use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;
use std::sync::{Arc, OnceLock};

use bytesize::ByteSize;
use clap::{CommandFactory as _, FromArgMatches as _};
use klad::cli::{Cli, Command, ConfigCommand, EngineName};
use klad::config::Config;
use klad::control::Controller;
use klad::exit::{Exit, Failure};
use klad::os::signals::Signals;
use klad::os::supervisor::{self, Watchdog};
use klad::reference;
use klad::settings::{self, CommandLine, Resolved};
#[cfg(feature = "rocksdb")]
use klad_base::limits::THREADS_OWN;
use klad_base::limits::{DESCRIPTORS_KEPT, HUGE_PAGES_MEMORY_MIN, LOG_FLUSH_TIMEOUT};
use klad_base::os::descriptors;
use klad_base::os::output;
use klad_base::sync;
use klad_server::Server;
use klad_server::admin::control::Control;
use klad_server::logs;
use klad_server::net::listen;
use klad_storage::Engine;
use klad_storage::delayed::Delayed;
use klad_storage::memory::MemoryEngine;
use klad_storage::operation::Durability;

/// RocksDB allocates through it as well: `unprefixed_malloc` makes it the process's `malloc`.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// jemalloc's settings, read before `main`; the variable `MALLOC_CONF` goes before them (docs/configuration.md). Unused pages go
/// back to the kernel in the time that is jemalloc's default, 10 s, by a thread of its own, which `serve` starts, so that the resident set follows what is
/// in use, and what is used again soon stays. What a heap profile needs must be there from the start, `prof_accum` for
/// what has been freed as well; it samples nothing until `--heap-sample` is read. Huge pages spare a GET of a large store a
/// sixteenth of its time (`docs/decisions/2026-11-21-puts.md`); `serve` turns them off where the budget is small.
const SETTINGS: &std::ffi::CStr = if cfg!(target_os = "linux") {
    c"thp:always,prof:true,prof_active:false,prof_accum:true,lg_prof_sample:19"
} else {
    c"prof:true,prof_active:false,prof_accum:true,lg_prof_sample:19"
};

#[expect(unsafe_code, reason = "jemalloc looks for this symbol")]
// SAFETY: no other symbol of the program has this name, and jemalloc reads it as a pointer to a C string, which it is.
#[unsafe(export_name = "malloc_conf")]
/// [`SETTINGS`], as jemalloc looks for them.
pub static MALLOC_CONF: Option<&'static std::ffi::c_char> = Some(c_str(SETTINGS));

const fn c_str(text: &'static std::ffi::CStr) -> &'static std::ffi::c_char {
    #[expect(unsafe_code, reason = "a C string's address as jemalloc wants it")]
    // SAFETY: a `CStr` has at least its terminating zero, so its first byte can be referred to.
    unsafe {
        &*text.as_ptr()
    }
}

#[cfg(target_os = "linux")]
#[expect(unsafe_code, reason = "runs before Rust's library does")]
// SAFETY: the C library calls what this section points to, once, before `main`; the function takes no arguments, needs nothing that
// Rust's library makes ready, and does not panic.
#[unsafe(link_section = ".init_array")]
#[used]
static BEFORE_MAIN: extern "C" fn() = look_at_stdout;

#[cfg(target_os = "linux")]
extern "C" fn look_at_stdout() {
    #[expect(unsafe_code, reason = "a number that may be no descriptor")]
    // SAFETY: `F_GETFD` reads a flag, and fails where there is no such descriptor.
    if unsafe { libc::fcntl(libc::STDOUT_FILENO, libc::F_GETFD) } == -1 {
        output::was_closed();
    }
}

fn main() -> ExitCode {
    let matches = match Cli::command().try_get_matches() {
        Ok(matches) => matches,
        Err(error) => return not_understood(&error),
    };
    let cli = match Cli::from_arg_matches(&matches) {
        Ok(cli) => cli,
        Err(error) => return not_understood(&error),
    };
    logs::end_the_process_on_panic();
    let given = || CommandLine::of(innermost(&matches));
    #[cfg(feature = "rocksdb")]
    if matches!(cli.command, Command::Check(_) | Command::Compact(_)) {
        // One for each table, of which there may be thousands.
        let _ = descriptors::raise_limit();
        if let Err(failure) = can_start_threads(THREADS_OWN) {
            return failed(&failure);
        }
    }
    let ended = match cli.command {
        Command::Serve(_) => serve(&given()),
        Command::Config(ConfigCommand::Print { json, .. }) => print_config(&given(), json),
        Command::Config(ConfigCommand::Check { .. }) => check_config(&given()),
        Command::Config(ConfigCommand::Reference { page }) => print_reference(page.as_deref()),
        #[cfg(target_os = "linux")]
        Command::Bench(args) => return klad_bench::runner::run_to_exit_code(&args, "klad bench"),
        #[cfg(target_os = "linux")]
        Command::Lab(command) => return lab(&command),
        #[cfg(feature = "rocksdb")]
        Command::Check(args) => klad::offline::check(&args).map_err(Failure::from),
        #[cfg(feature = "rocksdb")]
        Command::Compact(args) => klad::offline::compact(&args).map_err(Failure::from),
        Command::Client(command) => return klad::client::run(&command),
        Command::Manual(command) => klad::manual::write(&command).map_err(|error| Failure::Other(format!("{error:#}"))),
    };
    match ended {
        Ok(()) => {
            let _ = logs::flush(LOG_FLUSH_TIMEOUT);
            ExitCode::SUCCESS
        }
        Err(failure) => failed(&failure),
    }
}

fn failed(failure: &Failure) -> ExitCode {
    // Not through the log: this is the last word to whoever started klad. Where stderr takes no more lines, nobody reads
    // this one either, and the end must not wait for it.
    if logs::flush(LOG_FLUSH_TIMEOUT) {
        let _ = writeln!(std::io::stderr(), "{}", failure.exit().last_line(&failure.to_string()));
    }
    ExitCode::from(failure.exit().code())
}

fn can_start_threads(count: usize) -> Result<(), Failure> {
    sync::try_threads(count).map_err(|cause| Failure::Threads { count, cause })
}

/// Help and versions go this way too.
fn not_understood(error: &clap::Error) -> ExitCode {
    let _ = error.print();
    if error.exit_code() == 0 {
        return ExitCode::SUCCESS;
    }
    let _ = writeln!(std::io::stderr(), "\n{}", Exit::Usage.last_line("the command line is not understood"));
    ExitCode::from(Exit::Usage.code())
}

/// The matches of the subcommand of the subcommand.
fn innermost(matches: &clap::ArgMatches) -> &clap::ArgMatches {
    matches.subcommand().map_or(matches, |(_, inner)| innermost(inner))
}

/// Exit codes of `klad lab`: see docs/lab.md.
#[cfg(target_os = "linux")]
fn lab(command: &klad_lab::args::LabCommand) -> ExitCode {
    use klad_bench::runner::Error;
    use klad_lab::{Completion, run};
    let (error, code) = match run(command) {
        Ok(Completion::Complete) => return ExitCode::SUCCESS,
        Ok(Completion::Partial) => return ExitCode::from(3),
        Err(Error::Usage(error)) => (error, 2),
        Err(Error::Failed(error)) => (error, 1),
    };
    let _ = writeln!(std::io::stderr(), "klad lab: {error:#}");
    ExitCode::from(code)
}

fn print_config(given: &CommandLine, as_json: bool) -> Result<(), Failure> {
    let resolved = settings::load(given)?;
    let config = settings::check(&resolved);
    // What does not fit is printed as well, and then said: the values are what it is found out with.
    let known = config.as_ref().ok();
    say(&if as_json { format!("{:#}\n", settings::json(&resolved, known)) } else { settings::text(&resolved, known) })?;
    config.map(|_| ()).map_err(Failure::from)
}

fn check_config(given: &CommandLine) -> Result<(), Failure> {
    validate(given)?;
    say("the configuration is valid\n")
}

fn print_reference(page: Option<&Path>) -> Result<(), Failure> {
    let Some(page) = page else { return say(&reference::example_file()) };
    let text = std::fs::read_to_string(page)
        .map_err(|cause| Failure::Io { action: format!("read {}", page.display()), cause })?;
    say(&reference::page(&text).map_err(|error| Failure::Other(format!("{}: {error}", page.display())))?)
}

fn say(text: &str) -> Result<(), Failure> {
    output::stdout()
        .and_then(|mut stdout| stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()))
        .map_err(|cause| Failure::Io { action: "write to stdout".to_owned(), cause })
}

/// The configuration, checked. The log begins before files are read, because there may be something to say of them.
fn validate(given: &CommandLine) -> Result<(Resolved, Config), Failure> {
    let resolved = settings::load(given)?;
    logs::start(&settings::check_live(&resolved, None)?.logs);
    let config = settings::check(&resolved)?;
    Ok((resolved, config))
}

fn serve(given: &CommandLine) -> Result<(), Failure> {
    let (resolved, config) = validate(given)?;
    can_start_threads(config.threads)?;
    if !std::env::var("MALLOC_CONF").is_ok_and(|settings| settings.contains("background_thread:"))
        && let Err(error) = tikv_jemalloc_ctl::background_thread::write(true)
    {
        tracing::warn!(%error, "memory that is free goes back to the kernel only when memory is asked for");
    }
    // Before there is anything that would be missing in it.
    #[cfg(target_os = "linux")]
    if let Err(error) = klad_profile::heap::Heap::sample_every(config.heap_sample_bytes) {
        tracing::warn!(%error, "there will be no heap profiles");
    }
    #[cfg(target_os = "linux")]
    if config.budget.total < HUGE_PAGES_MEMORY_MIN
        && let Err(error) = rustix::thread::disable_transparent_huge_pages(true)
    {
        tracing::debug!(%error, "pages are huge although the memory budget is small");
    }
    // Before there are threads.
    descriptors::grow_table(config.budget.connections_max + DESCRIPTORS_KEPT);
    // Before anything that a signal could interrupt.
    let signals = Signals::take(end_at_once).map_err(Failure::Serve)?;
    // Both before the data directory is touched.
    let listener = listen::bind(&config.listen)?;
    let admin_listener = listen::bind(&config.admin_listen)?;
    let mut engine = open_engine(&config)?;
    if !config.engine_delay.is_zero() {
        engine = Arc::new(Delayed::new(engine, config.engine_delay, config.engine_delay_every));
    }
    let durability = engine.durability(config.server.limits.service.durability);
    let name = engine.name();
    let controller = OnceLock::new();
    let control = |limits| -> Arc<dyn Control> {
        controller
            .get_or_init(|| Controller::new(given.clone(), resolved, config.clone(), limits, engine.clone()))
            .clone()
    };
    let server =
        Server::start(&config.server, engine.clone(), listener, admin_listener, control).map_err(Failure::Serve)?;
    for warning in &config.warnings {
        tracing::warn!("{warning}");
    }
    say_what_serves(&config, &server, name, durability);
    if durability == Durability::None {
        tracing::warn!("the memory engine keeps nothing: the data ends with this process");
    }
    let status = format!("serving {} on {}", config.data.display(), server.address());
    supervisor::ready(&status);
    let mut pulse = server.pulse();
    let watchdog = Watchdog::start(move || pulse.beats());
    signals.wait_for_stop(|| {
        supervisor::reloading();
        // What could not be read again is in the log, and is as it was.
        let well = controller.get().is_none_or(|controller| controller.reload().is_ok());
        supervisor::ready(if well { &status } else { "serving; the last reload failed, see the log" });
    });
    tracing::info!("stopping");
    let drain = server.limits().get().drain.clone();
    supervisor::stopping(drain.delay + drain.timeout);
    let synced = server.stop();
    watchdog.stop();
    synced.map_err(Failure::Sync)?;
    tracing::info!("stopped");
    Ok(())
}

/// A second signal: whoever sent it does not want to wait.
fn end_at_once() -> ! {
    let exit = Exit::SecondSignal;
    if logs::flush(LOG_FLUSH_TIMEOUT) {
        let _ = writeln!(std::io::stderr(), "{}", exit.last_line("asked to stop a second time: ended at once"));
    }
    std::process::exit(exit.code().into());
}

/// The one line at start: what a person who reads a log later, on another machine, will want to know.
fn say_what_serves(config: &Config, server: &Server, engine: &str, durability: Durability) {
    let limits = &config.server.limits;
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        pid = std::process::id(),
        listen = %server.address(),
        admin = %server.admin_address(),
        engine,
        data = %config.data.display(),
        %durability,
        execution = config.server.execution.strategy.name(),
        threads = config.server.threads,
        memory = %ByteSize(config.budget.total),
        cache = %ByteSize(config.budget.cache),
        room = %ByteSize(config.budget.room),
        disk_reserve = %ByteSize(config.disk_reserve_bytes),
        connections_max = config.budget.connections_max,
        operations_max = limits.operations.operations_max,
        scans_max = limits.operations.scans_max,
        key_max = %ByteSize(limits.service.key_bytes_max),
        value_max = %ByteSize(limits.service.value_bytes_max),
        log_level = config.logs.level.as_str(),
        access_log = config.logs.access_log,
        slow_request = ?config.logs.slow_request,
        "serving"
    );
}

#[cfg_attr(
    not(any(feature = "fjall", feature = "rocksdb")),
    expect(clippy::unnecessary_wraps, reason = "only an engine on a disk can fail to open")
)]
fn open_engine(config: &Config) -> Result<Arc<dyn Engine>, Failure> {
    Ok(match config.engine {
        #[cfg(feature = "rocksdb")]
        EngineName::Rocksdb => Arc::new(klad_storage::rocksdb::RocksDbEngine::open(
            &config.data,
            &klad_storage::rocksdb::Options {
                cache_bytes: config.budget.cache,
                memtable_bytes: config.budget.memtables,
                value_cache_percent: config.value_cache_percent,
                background_threads: config.server.threads,
                disk_reserve_bytes: config.disk_reserve_bytes,
                iterator_reads: config.iterator_reads,
                compression: config.compression,
                direct_reads: config.direct_reads,
                log_preallocation: config.log_preallocation,
                compaction_rate_bytes: config.compaction_rate_bytes,
                delete_rate_bytes: config.delete_rate_bytes,
                open_files_max: config.budget.files,
            },
        )?),
        #[cfg(feature = "fjall")]
        EngineName::Fjall => Arc::new(klad_storage::fjall::FjallEngine::open(
            &config.data,
            &klad_storage::fjall::Options {
                cache_bytes: config.budget.cache,
                memtable_bytes: config.budget.memtables,
                background_threads: config.server.threads,
                disk_reserve_bytes: config.disk_reserve_bytes,
                compression: config.compression,
                open_files_max: config.budget.files,
            },
        )?),
        EngineName::Memory => Arc::new(MemoryEngine::new(config.budget.cache)),
    })
}
