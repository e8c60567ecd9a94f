//! `klad check` and `klad compact`, which read or rewrite a data directory that no process serves.
//!
//! The work runs on its own thread, while the main thread draws the progress. Results go to stdout, as text or JSON;
//! everything else goes to stderr. Called by `main`.

use std::io::{self, IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytesize::ByteSize;
use clap::Args;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::disk;
use klad_base::clock;
use klad_base::os::output;
use klad_base::sync::{self, Signal};
use klad_server::limits::DISK_RESERVE_BYTES;
use klad_storage::disk::directory;
use klad_storage::maintenance::{self, Compaction};
use klad_storage::rocksdb::check::{self, Kind, Progress, Report};
use klad_storage::rocksdb::{OpenError, RocksDbEngine};
use klad_storage::{Compression, LocalDisk as _};

/// Options of `klad check`.
#[derive(Args, Clone, Debug)]
pub struct CheckArgs {
    /// Data directory or checkpoint to check. klad changes nothing in the directory except the process id in the file
    /// LOCK.
    #[arg(long, value_name = "DIR", default_value = "./data")]
    pub data: PathBuf,
    /// Print the result as JSON.
    #[arg(long)]
    pub json: bool,
}

/// Options of `klad compact`.
#[derive(Args, Clone, Debug)]
pub struct CompactArgs {
    /// Data directory or checkpoint to compact.
    #[arg(long, value_name = "DIR", default_value = "./data")]
    pub data: PathBuf,
    /// Also rewrite tables on the last level, for example after a change of --compression.
    #[arg(long)]
    pub bottommost: bool,
    /// Free disk space that the compaction must not use.
    #[arg(long, value_name = "SIZE", default_value_t = ByteSize(DISK_RESERVE_BYTES))]
    pub disk_reserve: ByteSize,
    /// Compression of the written tables. Use the same value as for klad serve, otherwise the next compactions of klad
    /// serve change the compression again.
    #[arg(long, value_enum, value_name = "NAME", default_value_t = Compression::Lz4)]
    pub compression: Compression,
    /// Print the result as JSON.
    #[arg(long)]
    pub json: bool,
}

/// Why a command failed. `exit` has the code and the word of each error.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The data is damaged. The report is on stdout.
    #[error("{} is damaged: {}", data.display(), counted(*findings))]
    Damaged {
        /// The directory.
        data: PathBuf,
        /// Number of findings.
        findings: u64,
    },
    /// The check failed.
    #[error(transparent)]
    Check(check::Error),
    /// The data directory did not open.
    #[error(transparent)]
    Open(OpenError),
    /// The compaction failed.
    #[error(transparent)]
    Compact(maintenance::Error),
    /// The report could not be printed.
    #[error("cannot write the output: {0}")]
    NotPrinted(io::Error),
}

fn counted(findings: u64) -> String {
    format!("{findings} finding{}", if findings == 1 { "" } else { "s" })
}

/// Runs `klad check`.
///
/// # Errors
/// [`Error`]. Damaged data is an error too.
pub fn check(args: &CheckArgs) -> Result<(), Error> {
    let progress = Arc::new(Progress::default());
    let done = while_drawing(
        {
            let (data, progress) = (args.data.clone(), progress.clone());
            move || check::check(&data, &progress)
        },
        || {
            let total = progress.records_total.load(Ordering::Relaxed);
            (if total == 0 { "checksums" } else { "records" }, progress.records.load(Ordering::Relaxed), total)
        },
    );
    let report = done.map_err(Error::Check)?;
    let printed = if args.json { print_json(&report) } else { print(&in_words(&report)) };
    if report.sound {
        printed
    } else {
        Err(Error::Damaged { data: args.data.clone(), findings: report.findings_total })
    }
}

/// Runs `klad compact`.
///
/// # Errors
/// [`Error`].
pub fn compact(args: &CompactArgs) -> Result<(), Error> {
    let (done, pieces) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let begun = clock::now();
    let compacted = while_drawing(
        {
            let (args, done, pieces) = (args.clone(), done.clone(), pieces.clone());
            move || {
                let engine = open(&args).map_err(Error::Open)?;
                let compacted = engine.compact(args.bottommost, &|piece, of| {
                    done.store(piece, Ordering::Relaxed);
                    pieces.store(of, Ordering::Relaxed);
                    true
                });
                engine.sync().map_err(|why| Error::Compact(maintenance::Error::Engine { why }))?;
                compacted.map_err(Error::Compact)
            }
        },
        || ("compacting", done.load(Ordering::Relaxed), pieces.load(Ordering::Relaxed)),
    );
    let seconds = clock::now().duration_since(begun).as_secs_f64();
    let compaction = compacted?;
    if args.json {
        print_json(&serde_json::json!({ "data": args.data, "compaction": compaction, "seconds": seconds }))
    } else {
        print(&compaction_in_words(&args.data, &compaction, seconds))
    }
}

/// Opens the directory with the same checks as `klad serve`, but never creates a directory.
fn open(args: &CompactArgs) -> Result<RocksDbEngine, OpenError> {
    drop(directory::DataDirectory::open_existing(&args.data, "rocksdb")?);
    let (disk_reserve_bytes, compression) = (args.disk_reserve.0, args.compression);
    let options = disk::Options { disk_reserve_bytes, compression, ..disk::Options::default() };
    RocksDbEngine::open(&args.data, &disk::rocksdb_options(options))
}

/// Runs `work` on its own thread and returns its result. Meanwhile draws a progress bar, if stderr is a terminal.
/// `look` returns what the bar shows: a word, the amount of work done, and the total amount.
fn while_drawing<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
    look: impl Fn() -> (&'static str, u64, u64),
) -> T {
    let ended = Arc::new(Signal::default());
    let thread = sync::spawn_thread("klad-offline", {
        let ended = ended.clone();
        move || {
            let done = work();
            ended.raise();
            done
        }
    });
    if io::stderr().is_terminal() {
        let style = ProgressStyle::with_template("{prefix} {elapsed} [{bar:20}] {human_pos}/{human_len}")
            .expect("the template is ours")
            .progress_chars("=> ");
        let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr()).with_style(style);
        while !ended.wait_timeout(Duration::from_millis(200)) {
            let (word, done, total) = look();
            bar.set_prefix(word);
            bar.set_length(total.max(done));
            bar.set_position(done);
            bar.tick();
        }
        bar.finish_and_clear();
    }
    thread.join().expect("a thread that panics ends the process")
}

fn in_words(report: &Report) -> String {
    let data = report.data.display();
    let mut lines = vec![match report.findings_total {
        0 => format!("{data} is sound"),
        count => format!("{data} is damaged: {}", counted(count)),
    }];
    for finding in &report.findings {
        lines.push(format!("  {:<9}{}", kind_word(finding.kind), finding.detail));
    }
    let omitted = report.findings_total - report.findings.len() as u64;
    if omitted > 0 {
        lines.push(format!("  and {omitted} more"));
    }
    lines.push(format!(
        "read {} entries ({} expired), {} of keys and {} of values, in {} tables of {} and {} logs of {}, in {:.1} s",
        report.entries,
        report.expired,
        ByteSize(report.key_bytes),
        ByteSize(report.value_bytes),
        report.tables,
        ByteSize(report.table_bytes),
        report.logs,
        ByteSize(report.log_bytes),
        report.seconds,
    ));
    if let (Some(min), Some(max)) = (report.version_min, report.version_max) {
        lines.push(format!("versions {min} to {max}, reserved until {}", report.versions_reserved_until));
    }
    let synced = report
        .synced_until
        .map_or("which were synced is not known".to_owned(), |number| format!("all up to {number} had been synced"));
    lines.push(format!("a start gives back writes up to number {}; {synced}", report.recovered_until));
    if let Some(end) = &report.log_end {
        lines.push(format!("the end of the log is not whole, which is damage only if it was synced: {end}"));
    }
    if report.findings_total > 0 {
        let advice =
            "restore the data from a checkpoint or a copy; docs/backup-and-repair.md describes other ways to repair it";
        lines.push(advice.to_owned());
    }
    lines.push(String::new());
    lines.join("\n")
}

fn kind_word(kind: Kind) -> &'static str {
    match kind {
        Kind::Files => "files",
        Kind::Table => "table",
        Kind::Filter => "filter",
        Kind::Log => "log",
        Kind::Record => "record",
        Kind::Version => "version",
    }
}

fn compaction_in_words(data: &Path, compaction: &Compaction, seconds: f64) -> String {
    let Compaction { before, after, .. } = compaction;
    format!(
        "{} is compacted: from {} in {} tables to {} in {} tables, in {seconds:.1} s\n",
        data.display(),
        ByteSize(before.bytes),
        before.tables,
        ByteSize(after.bytes),
        after.tables,
    )
}

fn print_json(value: &impl serde::Serialize) -> Result<(), Error> {
    let text = serde_json::to_string_pretty(value).expect("numbers, strings and lists always serialize");
    print(&format!("{text}\n"))
}

/// Prints `text`. A closed pipe, as with `| head`, is not an error.
fn print(text: &str) -> Result<(), Error> {
    let printed = output::stdout().and_then(|mut out| out.write_all(text.as_bytes()));
    match printed {
        Err(cause) if cause.kind() != io::ErrorKind::BrokenPipe => Err(Error::NotPrinted(cause)),
        _ => Ok(()),
    }
}
