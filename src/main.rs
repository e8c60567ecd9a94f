//! Runs the subcommand, prints why it failed, and sets the exit code. `exit` has the codes. `klad bench`, `klad lab`
//! and the client commands have their own codes.

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
use klad_base::limits::DESCRIPTORS_KEPT;
use klad_base::os::descriptors;
use klad_base::os::output;
use klad_base::sync;
use klad_server::Server;
use klad_server::admin::control::Control;
#[cfg(feature = "rocksdb")]
use klad_server::limits::THREADS_OWN;
use klad_server::limits::{HUGE_PAGES_MEMORY_MIN, LOG_FLUSH_TIMEOUT};
use klad_server::logs;
use klad_server::net::listen;
use klad_storage::Engine;
use klad_storage::delayed::Delayed;
use klad_storage::memory::MemoryEngine;
use klad_storage::operation::Durability;

/// The allocator of Rust and of RocksDB: the feature `unprefixed_malloc` makes it the `malloc` of the process.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// jemalloc's settings, which it reads before `main`. The environment variable `MALLOC_CONF` overrides them
/// (docs/configuration.md).
///
/// * Unused pages go back to the kernel after 10 s, jemalloc's default. `serve` starts jemalloc's background thread
///   for this, so that the resident set follows the memory in use.
/// * Heap profiles need `prof` and `prof_accum` from the start. Sampling begins when `serve` has read `--heap-sample`.
/// * Huge pages save a sixteenth of the CPU time of a GET in a large store (`docs/decisions/2026-11-21-puts.md`).
///   `serve` disables them if the memory budget is less than 512 MiB ([`HUGE_PAGES_MEMORY_MIN`]).
const SETTINGS: &std::ffi::CStr = if cfg!(target_os = "linux") {
    c"thp:always,prof:true,prof_active:false,prof_accum:true,lg_prof_sample:19"
} else {
    c"prof:true,prof_active:false,prof_accum:true,lg_prof_sample:19"
};

#[expect(unsafe_code, reason = "jemalloc looks for this symbol")]
// SAFETY: no other symbol of the program has this name. jemalloc reads it as a pointer to a C string, and it is one.
#[unsafe(export_name = "malloc_conf")]
/// [`SETTINGS`] under the name that jemalloc looks for.
pub static MALLOC_CONF: Option<&'static std::ffi::c_char> = Some(c_str(SETTINGS));

const fn c_str(text: &'static std::ffi::CStr) -> &'static std::ffi::c_char {
    #[expect(unsafe_code, reason = "jemalloc needs the address of a C string")]
    // SAFETY: a `CStr` has at least its terminating zero, so the reference to its first byte is valid.
    unsafe {
        &*text.as_ptr()
    }
}

#[cfg(target_os = "linux")]
#[expect(unsafe_code, reason = "runs before Rust's library")]
// SAFETY: the C library calls the function in this section once, before `main`. The function takes no arguments, uses
// nothing that Rust's library initialises, and does not panic.
#[unsafe(link_section = ".init_array")]
#[used]
static BEFORE_MAIN: extern "C" fn() = check_stdout;

#[cfg(target_os = "linux")]
extern "C" fn check_stdout() {
    #[expect(unsafe_code, reason = "the descriptor may not exist")]
    // SAFETY: `F_GETFD` only reads a flag, and fails if the descriptor does not exist.
    if unsafe { libc::fcntl(libc::STDOUT_FILENO, libc::F_GETFD) } == -1 {
        output::mark_closed();
    }
}

fn main() -> ExitCode {
    let matches = match Cli::command().try_get_matches() {
        Ok(matches) => matches,
        Err(error) => return usage(&error),
    };
    let cli = match Cli::from_arg_matches(&matches) {
        Ok(cli) => cli,
        Err(error) => return usage(&error),
    };
    logs::end_the_process_on_panic();
    let command_line = || CommandLine::of(innermost(&matches));
    #[cfg(feature = "rocksdb")]
    if matches!(cli.command, Command::Check(_) | Command::Compact(_))
        || matches!(&cli.command, Command::Client(command) if command.opens_data())
    {
        // RocksDB opens a file for each table, and there may be thousands of tables.
        let _ = descriptors::raise_limit();
        if let Err(failure) = can_start_threads(THREADS_OWN) {
            return failed(&failure);
        }
    }
    let result = match cli.command {
        Command::Serve(_) => serve(&command_line()),
        Command::Config(ConfigCommand::Print { json, .. }) => print_config(&command_line(), json),
        Command::Config(ConfigCommand::Check { .. }) => check_config(&command_line()),
        Command::Config(ConfigCommand::Reference { page }) => print_reference(page.as_deref()),
        #[cfg(target_os = "linux")]
        Command::Bench(args) => return klad_bench::runner::run_to_exit_code(&args, "klad bench"),
        #[cfg(target_os = "linux")]
        Command::Lab(command) => return lab(&command),
        #[cfg(feature = "rocksdb")]
        Command::Check(args) => klad::offline::check(&args).map_err(Failure::from),
        #[cfg(feature = "rocksdb")]
        Command::Compact(args) => klad::offline::compact(&args).map_err(Failure::from),
        #[cfg(feature = "cassandra")]
        Command::Cluster(command) => klad::cluster::run(&command).map_err(Failure::from),
        Command::Client(command) => match klad::client::run(&command) {
            Ok(code) => return code,
            Err(error) => Err(Failure::from(error)),
        },
        Command::Manual(command) => klad::manual::write(&command).map_err(|error| Failure::Other(format!("{error:#}"))),
    };
    match result {
        Ok(()) => {
            let _ = logs::flush(LOG_FLUSH_TIMEOUT);
            ExitCode::SUCCESS
        }
        Err(failure) => failed(&failure),
    }
}

fn failed(failure: &Failure) -> ExitCode {
    // Not a log line: this is the last message to the process that started klad. If stderr is blocked, nothing reads
    // the message, and the exit must not wait for it.
    if logs::flush(LOG_FLUSH_TIMEOUT) {
        let _ = writeln!(std::io::stderr(), "{}", failure.last_line());
    }
    ExitCode::from(failure.exit().code())
}

fn can_start_threads(count: usize) -> Result<(), Failure> {
    sync::try_threads(count).map_err(|cause| Failure::Threads { count, cause })
}

/// Prints clap's message. Requests for help and for the version come here too, and succeed.
fn usage(error: &clap::Error) -> ExitCode {
    let _ = error.print();
    if error.exit_code() == 0 {
        return ExitCode::SUCCESS;
    }
    let _ = writeln!(std::io::stderr(), "\n{}", Exit::Usage.last_line("the command line is invalid"));
    ExitCode::from(Exit::Usage.code())
}

/// Returns the matches of the innermost subcommand.
fn innermost(matches: &clap::ArgMatches) -> &clap::ArgMatches {
    matches.subcommand().map_or(matches, |(_, inner)| innermost(inner))
}

/// Runs `klad lab`. docs/lab.md has its exit codes.
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

fn print_config(command_line: &CommandLine, as_json: bool) -> Result<(), Failure> {
    let resolved = settings::load(command_line)?;
    let config = settings::check(&resolved);
    // klad also prints an invalid configuration, before the error, because the values help to find the mistake.
    let valid = config.as_ref().ok();
    let text =
        if as_json { format!("{:#}\n", settings::json(&resolved, valid)) } else { settings::text(&resolved, valid) };
    print(&text)?;
    config.map(|_| ()).map_err(Failure::from)
}

fn check_config(command_line: &CommandLine) -> Result<(), Failure> {
    validate(command_line)?;
    print("the configuration is valid\n")
}

fn print_reference(page: Option<&Path>) -> Result<(), Failure> {
    let Some(page) = page else { return print(&reference::example_file()) };
    let text = std::fs::read_to_string(page)
        .map_err(|cause| Failure::Io { action: format!("read {}", page.display()), cause })?;
    print(&reference::page(&text).map_err(|error| Failure::Other(format!("{}: {error}", page.display())))?)
}

fn print(text: &str) -> Result<(), Failure> {
    output::stdout()
        .and_then(|mut stdout| stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()))
        .map_err(|cause| Failure::Io { action: "write to stdout".to_owned(), cause })
}

/// Reads and checks the whole configuration. Returns the value of each option, and the configuration made from them.
/// Starts the log before it reads the files of tokens and certificates, because reading them may log warnings.
fn validate(command_line: &CommandLine) -> Result<(Resolved, Config), Failure> {
    let resolved = settings::load(command_line)?;
    logs::start(&settings::check_live(&resolved, None)?.logs);
    let config = settings::check(&resolved)?;
    Ok((resolved, config))
}

fn serve(command_line: &CommandLine) -> Result<(), Failure> {
    let (resolved, config) = validate(command_line)?;
    can_start_threads(config.threads)?;
    if !std::env::var("MALLOC_CONF").is_ok_and(|settings| settings.contains("background_thread:"))
        && let Err(error) = tikv_jemalloc_ctl::background_thread::write(true)
    {
        tracing::warn!(%error, "jemalloc's background thread did not start: unused memory returns to the kernel late");
    }
    // The profiler starts before any allocation that a profile should contain.
    #[cfg(target_os = "linux")]
    if let Err(error) = klad_profile::heap::Heap::sample_every(config.heap_sample_bytes) {
        tracing::warn!(%error, "the heap profiler did not start: heap profiles are not available");
    }
    #[cfg(target_os = "linux")]
    if config.budget.total < HUGE_PAGES_MEMORY_MIN
        && let Err(error) = rustix::thread::disable_transparent_huge_pages(true)
    {
        tracing::debug!(%error, "could not disable huge pages, which waste memory with a small memory budget");
    }
    // The table grows before threads start, because then the kernel does not wait.
    descriptors::grow_table(config.budget.connections_max + DESCRIPTORS_KEPT);
    // klad takes the signals before it does anything that a signal must not interrupt.
    let signals = Signals::take(end_at_once).map_err(Failure::Serve)?;
    // klad binds the addresses before it opens the data directory, so that a port in use changes no data.
    let listener = listen::bind(&config.listen)?;
    let admin_listener = listen::bind(&config.admin_listen)?;
    let mut engine = open_engine(&config)?;
    if !config.engine_delay.is_zero() {
        engine = Arc::new(Delayed::new(engine, config.engine_delay, config.engine_delay_every));
    }
    let durability = engine.durability(config.server.limits.service.durability);
    let controller = OnceLock::new();
    let control = |limits| -> Arc<dyn Control> {
        controller
            .get_or_init(|| Controller::new(command_line.clone(), resolved, config.clone(), limits, engine.clone()))
            .clone()
    };
    let server =
        Server::start(&config.server, engine.clone(), listener, admin_listener, control).map_err(Failure::Serve)?;
    for warning in &config.warnings {
        tracing::warn!("{warning}");
    }
    log_start(&config, &server, &*engine, durability);
    if durability == Durability::None {
        tracing::warn!("the memory engine does not store data on disk: all data is lost when this process ends");
    }
    let status = format!("serving {} on {}", config.data.display(), server.address());
    supervisor::ready(&status);
    let mut pulse = server.pulse();
    let watchdog = Watchdog::start(move || pulse.beats());
    signals.wait_for_stop(|| {
        supervisor::reloading();
        // A failed reload has logged its errors. The part that failed is unchanged.
        let succeeded = controller.get().is_none_or(|controller| controller.reload().is_ok());
        supervisor::ready(if succeeded { &status } else { "serving; the last reload failed, see the log" });
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

/// Ends the process at a second signal to stop, without waiting for requests.
fn end_at_once() -> ! {
    let exit = Exit::SecondSignal;
    if logs::flush(LOG_FLUSH_TIMEOUT) {
        let _ = writeln!(std::io::stderr(), "{}", exit.last_line("second signal to stop: klad ended at once"));
    }
    std::process::exit(exit.code().into());
}

/// Logs the main facts about this process, for people who read the log later.
fn log_start(config: &Config, server: &Server, engine: &dyn Engine, durability: Durability) {
    let limits = &config.server.limits;
    let safety = &config.server.safety;
    let admin_scheme = if safety.tls.is_some() && safety.admin_tls { "https" } else { "http" };
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        pid = std::process::id(),
        listen = %server.address(),
        admin = %server.admin_address(),
        console = format_args!("{admin_scheme}://{}/console", server.admin_address()),
        engine = engine.name(),
        capabilities = engine.capabilities().names(),
        copies = engine.copies(),
        data = %config.data.display(),
        %durability,
        execution = config.server.execution.strategy.name(),
        threads = config.server.threads,
        memory = %ByteSize(config.budget.total),
        cache = %ByteSize(config.budget.cache),
        body_budget = %ByteSize(config.budget.bodies),
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
    not(any(feature = "cassandra", feature = "fjall", feature = "rocksdb")),
    expect(clippy::unnecessary_wraps, reason = "the memory engine cannot fail to open")
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
                changes: config.changes,
                open_files_max: config.budget.files,
                bulk_load: false,
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
        #[cfg(feature = "cassandra")]
        EngineName::Cassandra => {
            let (contact, ask) = config.cluster.as_ref().expect("config demands it for this engine");
            Arc::new(klad_storage::cassandra::CassandraEngine::open(contact, *ask)?)
        }
        EngineName::Memory => Arc::new(MemoryEngine::new(config.budget.cache)),
    })
}
