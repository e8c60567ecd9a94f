//! Picks the subcommand, prints the error chain, sets the exit code: 0 clean, 1 failure, 2 usage; `klad bench` has 3 and
//! 4 beside them.

use std::io::{IsTerminal as _, Write as _};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context as _;
use bytesize::ByteSize;
use clap::Parser as _;
use klad::cli::{Cli, Command, EngineName};
use klad::config::Config;
use klad::descriptors;
use klad::limits::DESCRIPTORS_KEPT;
use klad::server::{Server, listen};
use klad::storage::Engine;
use klad::storage::delayed::Delayed;
use klad::storage::memory::MemoryEngine;
use tokio::signal::unix::{SignalKind, signal};

/// RocksDB allocates through it as well: `unprefixed_malloc` makes it the process's `malloc`.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// jemalloc's settings, read before `main`. Unused pages go back to the kernel within a second, by a thread of its own, so
/// that the resident set follows the memory budget.
#[expect(unsafe_code, reason = "jemalloc looks for this symbol")]
// SAFETY: no other symbol of the program has this name, and jemalloc reads it as a pointer to a C string, which it is.
#[unsafe(export_name = "malloc_conf")]
pub static MALLOC_CONF: Option<&'static std::ffi::c_char> =
    Some(c_str(c"background_thread:true,dirty_decay_ms:1000,muzzy_decay_ms:0"));

const fn c_str(text: &'static std::ffi::CStr) -> &'static std::ffi::c_char {
    #[expect(unsafe_code, reason = "a C string's address as jemalloc wants it")]
    // SAFETY: a `CStr` has at least its terminating zero, so its first byte can be referred to.
    unsafe {
        &*text.as_ptr()
    }
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false)
        .init();
    end_the_process_on_panic();
    let ended = match cli.command {
        Command::Serve(args) => serve(*args),
        #[cfg(target_os = "linux")]
        Command::Bench(args) => return bench(&args),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Not through the log: this is the last word to whoever started klad.
            let _ = writeln!(std::io::stderr(), "klad: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// A server that has lost a thread would answer some and hang others; a start recovers everything that was acknowledged.
fn end_the_process_on_panic() {
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        print(info);
        std::process::abort();
    }));
}

/// Exit codes of `klad bench` are for scripts: see docs/bench.md.
#[cfg(target_os = "linux")]
fn bench(args: &klad::bench::args::BenchArgs) -> ExitCode {
    use klad::bench::runner::{Error, Verdict, run};
    let (error, code) = match run(args) {
        Ok(Verdict::Met) => return ExitCode::SUCCESS,
        Ok(Verdict::Missed) => return ExitCode::from(3),
        Ok(Verdict::NotValid) => return ExitCode::from(4),
        Err(Error::Usage(error)) => (error, 2),
        Err(Error::Failed(error)) => (error, 1),
    };
    let _ = writeln!(std::io::stderr(), "klad bench: {error:#}");
    ExitCode::from(code)
}

fn serve(args: klad::cli::ServeArgs) -> anyhow::Result<()> {
    let config = Config::new(args)?;
    // Before there are threads.
    descriptors::grow_table(config.budget.connections_max + DESCRIPTORS_KEPT);
    // Both before the data directory is touched.
    let listener = listen::bind(&config.listen)?;
    let admin_listener = listen::bind(&config.admin_listen)?;
    let mut engine = open_engine(&config)?;
    if !config.engine_delay.is_zero() {
        engine = Arc::new(Delayed::new(engine, config.engine_delay));
    }
    let durability = engine.durability(config.server.service.durability);
    let name = engine.name();
    let server = Server::start(&config.server, engine, listener, admin_listener).context("cannot serve")?;
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        listen = %server.address(),
        admin = %server.admin_address(),
        engine = name,
        data = %config.data.display(),
        %durability,
        threads = config.server.threads,
        memory = %ByteSize(config.budget.total),
        cache = %ByteSize(config.budget.cache),
        connections_max = config.budget.connections_max,
        "serving"
    );
    for warning in &config.warnings {
        tracing::warn!("{warning}");
    }
    if durability == klad::operation::Durability::None {
        tracing::warn!("the memory engine keeps nothing: the data ends with this process");
    }
    reload_on_hangup(config.server.safety.clone())?;
    wait_for_stop()?;
    tracing::info!("stopping");
    server.stop().map_err(|why| anyhow::anyhow!("the last sync failed: {why}"))?;
    tracing::info!("stopped");
    Ok(())
}

#[cfg_attr(not(feature = "rocksdb"), expect(clippy::unnecessary_wraps, reason = "only RocksDB can fail to open"))]
fn open_engine(config: &Config) -> anyhow::Result<Arc<dyn Engine>> {
    Ok(match config.engine {
        #[cfg(feature = "rocksdb")]
        EngineName::Rocksdb => Arc::new(klad::storage::rocksdb::RocksDbEngine::open(
            &config.data,
            &klad::storage::rocksdb::Options {
                cache_bytes: config.budget.cache,
                memtable_bytes: config.budget.memtables,
                background_threads: config.server.threads,
                disk_reserve_bytes: config.disk_reserve_bytes,
                iterator_reads: config.iterator_reads,
            },
        )?),
        EngineName::Memory => Arc::new(MemoryEngine::new(config.budget.cache)),
    })
}

/// Reads tokens and certificate again at each SIGHUP.
fn reload_on_hangup(safety: klad::server::Safety) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let mut hangup = {
        let _inside = runtime.enter();
        signal(SignalKind::hangup())?
    };
    klad::sync::spawn_thread("klad-reload", move || {
        while runtime.block_on(hangup.recv()).is_some() {
            // The log says what was wrong; klad goes on as before.
            let _ = safety.reload();
        }
    });
    Ok(())
}

/// Waits for SIGTERM or SIGINT; a second one ends the process at once.
fn wait_for_stop() -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let (mut terminate, mut interrupt) = {
        let _inside = runtime.enter();
        (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?)
    };
    let next = async move |terminate: &mut tokio::signal::unix::Signal, interrupt: &mut tokio::signal::unix::Signal| {
        tokio::select! { _ = terminate.recv() => {} _ = interrupt.recv() => {} }
    };
    runtime.block_on(next(&mut terminate, &mut interrupt));
    klad::sync::spawn_thread("klad-signals", move || {
        runtime.block_on(next(&mut terminate, &mut interrupt));
        tracing::warn!("asked to stop a second time: ending at once");
        std::process::exit(1);
    });
    Ok(())
}
