//! What each view shows, as tables of words: the screen draws them, and `--once` prints them. Called by `top`.

use std::fmt::Write as _;

use bytesize::ByteSize;

use crate::client::top::figures::{Figures, Quantile, Series};

/// How a cell looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Look {
    #[default]
    Plain,
    /// Needs attention.
    Bad,
}

/// One table.
#[derive(Debug)]
pub(super) struct Table {
    pub(super) title: &'static str,
    pub(super) head: &'static [&'static str],
    pub(super) rows: Vec<(Look, Vec<String>)>,
}

/// A view: a key and a name.
pub(super) const VIEWS: [(char, &str); 3] = [('1', "Now"), ('2', "Requests"), ('3', "Storage")];

const DURATION: &str = "klad_http_request_duration_seconds";
const COUNT: &str = "klad_http_request_duration_seconds_count";

/// Outcomes of requests that klad carried out, or that asked for an absent key.
const GOOD: [&str; 2] = ["ok", "not_found"];

/// Returns the tables of a view.
pub(super) fn tables(view: usize, figures: &Figures) -> Vec<Table> {
    match view {
        0 => vec![
            operations(figures),
            queues(figures),
            refusals(figures),
            commits(figures),
            connections(figures),
            cpu(figures),
            memory(figures),
        ],
        1 => vec![outcomes(figures), refusals(figures), phases(figures)],
        _ => vec![commits(figures), stalls(figures), levels(figures), memory(figures)],
    }
}

fn is(label: &'static str, word: &str) -> impl Fn(&Series) -> bool {
    move |series| series.label(label) == word
}

fn any(_: &Series) -> bool {
    true
}

/// A change feed lasts as long as its client wants, so its time is not a latency.
fn is_latency(series: &Series) -> bool {
    series.label("op") != "changes"
}

fn operations(figures: &Figures) -> Table {
    let mut rows = Vec::new();
    let mut row = |name: &str, counted: &dyn Fn(&Series) -> bool, timed: &dyn Fn(&Series) -> bool| {
        let rate = figures.rate(COUNT, counted).unwrap_or(0.0);
        let bad = |series: &Series| counted(series) && !GOOD.contains(&series.label("outcome"));
        let bad = figures.rate(COUNT, bad).unwrap_or(0.0);
        let quantile = |fraction| latency(figures.quantile(DURATION, fraction, timed));
        let look = if bad > 0.0 { Look::Bad } else { Look::Plain };
        if rate > 0.0 {
            let cells = [name.to_owned(), count(rate), count(bad), quantile(0.5), quantile(0.99), quantile(0.999)];
            rows.push((look, cells.into()));
        }
    };
    for op in figures.words(COUNT, "op") {
        row(&op, &is("op", &op), &is("op", &op));
    }
    row("all", &any, &is_latency);
    let head = &["operation", "per s", "failed per s", "p50", "p99", "p99.9"];
    Table { title: "Requests", head, rows }
}

fn outcomes(figures: &Figures) -> Table {
    let mut rows = Vec::new();
    for op in figures.words(COUNT, "op") {
        for outcome in figures.words(COUNT, "outcome") {
            let chosen = |series: &Series| series.label("op") == op && series.label("outcome") == outcome;
            let rate = figures.rate(COUNT, chosen).unwrap_or(0.0);
            if rate > 0.0 {
                let look = if GOOD.contains(&outcome.as_str()) { Look::Plain } else { Look::Bad };
                rows.push((look, vec![op.clone(), outcome, count(rate)]));
            }
        }
    }
    Table { title: "Requests by outcome", head: &["operation", "outcome", "per s"], rows }
}

fn phases(figures: &Figures) -> Table {
    let name = "klad_http_request_phase_seconds_sum";
    let requests = figures.rate(COUNT, is_latency).unwrap_or(0.0);
    // Seconds of requests per second: the mean number of requests that are in progress.
    let all = figures.rate(&format!("{DURATION}_sum"), is_latency).unwrap_or(0.0);
    let mut rest = all;
    let row = |phase: String, seconds: f64| {
        let (mean, share) = (time((requests > 0.0).then(|| seconds / requests)), percent(seconds / all.max(1e-9)));
        (Look::Plain, vec![phase, format!("{seconds:.2}"), share, mean])
    };
    let mut rows = Vec::new();
    for phase in figures.words(name, "phase") {
        let of_phase = |series: &Series| series.label("phase") == phase && is_latency(series);
        let seconds = figures.rate(name, of_phase).unwrap_or(0.0);
        rest -= seconds;
        rows.push(row(phase.clone(), seconds));
    }
    rows.push(row("worker".to_owned(), rest.max(0.0)));
    let head = &["phase", "requests in it", "of the time", "mean time of a request"];
    Table { title: "Where requests spend their time", head, rows }
}

fn queues(figures: &Figures) -> Table {
    let row = |queue: &String| {
        let value = |name: &str| figures.value(name, is("queue", queue));
        let (depth, limit) = (value("klad_queue_depth"), value("klad_queue_limit"));
        let is_half_full = depth.zip(limit).is_some_and(|(depth, limit)| depth * 2.0 > limit);
        let oldest = time(value("klad_queue_oldest_seconds"));
        let look = if is_half_full { Look::Bad } else { Look::Plain };
        (look, vec![queue.clone(), whole(depth), whole(limit), oldest])
    };
    let mut rows: Vec<_> = figures.words("klad_queue_depth", "queue").iter().map(row).collect();
    let value = |name: &str| figures.value(name, any);
    let operations = [value("klad_operations_in_use"), value("klad_operations_limit")];
    rows.push((
        Look::Plain,
        vec!["all operations".to_owned(), whole(operations[0]), whole(operations[1]), String::new()],
    ));
    Table { title: "Queues", head: &["queue", "waiting", "limit", "oldest"], rows }
}

fn refusals(figures: &Figures) -> Table {
    let name = "klad_refused_total";
    let rate = |reason: &String| figures.rate(name, is("reason", reason)).filter(|rate| *rate > 0.0);
    let row = |reason: String| rate(&reason).map(|rate| (Look::Bad, vec![reason, count(rate)]));
    let rows = figures.words(name, "reason").into_iter().filter_map(row).collect();
    Table { title: "Rejected", head: &["reason", "per s"], rows }
}

fn commits(figures: &Figures) -> Table {
    let rate = |name: &str| figures.rate(name, any).unwrap_or(0.0);
    let (commits, writes) = (rate("klad_commit_batch_writes_count"), rate("klad_commit_batch_writes_sum"));
    let sync = |fraction| latency(figures.quantile("klad_wal_sync_seconds", fraction, any));
    let rows = [
        ("commits per s", count(commits)),
        ("writes per commit", if commits > 0.0 { format!("{:.1}", writes / commits) } else { "-".to_owned() }),
        ("sync p50", sync(0.5)),
        ("sync p99", sync(0.99)),
    ];
    named("Commits", rows)
}

fn connections(figures: &Figures) -> Table {
    let value = |name: &str| whole(figures.value(name, any));
    let rows = [
        ("open", value("klad_connections_open")),
        ("limit", value("klad_connections_limit")),
        ("requests in flight", value("klad_http_requests_in_flight")),
    ];
    named("Connections", rows)
}

fn cpu(figures: &Figures) -> Table {
    let name = "klad_thread_cpu_seconds_total";
    let row = |group: String| {
        let cores = figures.rate(name, is("group", &group)).unwrap_or(0.0);
        (Look::Plain, vec![group, percent(cores)])
    };
    let rows = figures.words(name, "group").into_iter().map(row).collect();
    Table { title: "CPU", head: &["threads", "of one core"], rows }
}

fn memory(figures: &Figures) -> Table {
    let value = |name: &str| bytes(figures.value(name, any));
    let rows = [
        ("resident", value("process_resident_memory_bytes")),
        ("budget (--memory)", bytes(figures.value("klad_memory_budget_bytes", is("part", "total")))),
        ("block cache", value("klad_rocksdb_block_cache_used_bytes")),
        ("memtables", value("klad_rocksdb_memtable_allocated_bytes")),
        ("value cache", value("klad_value_cache_used_bytes")),
        ("bodies", bytes(figures.value("klad_body_budget_used_bytes", is("share", "all")))),
    ];
    named("Memory", rows)
}

fn stalls(figures: &Figures) -> Table {
    let mut rows = Vec::new();
    for state in figures.words("klad_rocksdb_write_stall", "state") {
        let stalled = figures.value("klad_rocksdb_write_stall", is("state", &state)) == Some(1.0);
        let share = figures.rate("klad_rocksdb_write_stall_seconds_total", is("state", &state));
        let share = share.map_or("-".to_owned(), percent);
        let (look, word) = if stalled { (Look::Bad, "yes") } else { (Look::Plain, "no") };
        rows.push((look, vec![state, word.to_owned(), share]));
    }
    Table { title: "RocksDB: writes are", head: &["state", "now", "of the time"], rows }
}

fn levels(figures: &Figures) -> Table {
    let row = |level: String| {
        let files = whole(figures.value("klad_rocksdb_level_files", is("level", &level)));
        let size = bytes(figures.value("klad_rocksdb_level_bytes", is("level", &level)));
        (Look::Plain, vec![format!("level {level}"), files, size])
    };
    let mut rows: Vec<_> = figures.words("klad_rocksdb_level_files", "level").into_iter().map(row).collect();
    let pending = bytes(figures.value("klad_rocksdb_pending_compaction_bytes", any));
    let running = whole(figures.value("klad_rocksdb_compactions_running", any));
    rows.push((Look::Plain, vec!["to compact".to_owned(), running, pending]));
    Table { title: "RocksDB: tables", head: &["", "files", "size"], rows }
}

fn named<const N: usize>(title: &'static str, rows: [(&str, String); N]) -> Table {
    let known = rows.into_iter().filter(|(_, value)| value != "-");
    let rows = known.map(|(name, value)| (Look::Plain, vec![name.to_owned(), value])).collect();
    Table { title, head: &[], rows }
}

fn count(value: f64) -> String {
    match value {
        ..0.05 => "0".to_owned(),
        0.05..10.0 => format!("{value:.1}"),
        10.0..1e4 => format!("{value:.0}"),
        1e4..1e6 => format!("{:.1}k", value / 1e3),
        _ => format!("{:.1}M", value / 1e6),
    }
}

fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

fn whole(value: Option<f64>) -> String {
    value.map_or("-".to_owned(), |value| format!("{value:.0}"))
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "sizes are whole and not negative")]
fn bytes(value: Option<f64>) -> String {
    value.map_or("-".to_owned(), |value| ByteSize(value.max(0.0) as u64).display().iec().to_string())
}

fn time(seconds: Option<f64>) -> String {
    match seconds {
        None => "-".to_owned(),
        Some(seconds @ ..1e-3) => format!("{:.0} µs", seconds * 1e6),
        Some(seconds @ ..1.0) => format!("{:.1} ms", seconds * 1e3),
        Some(seconds) => format!("{seconds:.1} s"),
    }
}

fn latency(quantile: Option<Quantile>) -> String {
    match quantile {
        Some(Quantile::Above(bound)) => format!("> {}", time(Some(bound))),
        Some(Quantile::At(seconds)) => time(Some(seconds)),
        None => time(None),
    }
}

impl Table {
    /// The head, and then the rows. An empty head is left out.
    fn lines(&self) -> impl Iterator<Item = Vec<&str>> {
        let rows = self.rows.iter().map(|(_, row)| row.iter().map(String::as_str).collect());
        std::iter::once(self.head.to_vec()).chain(rows).filter(|line| !line.is_empty())
    }

    /// The width of each column, characters.
    pub(super) fn widths(&self) -> Vec<usize> {
        let mut widths = Vec::new();
        for line in self.lines() {
            widths.resize(line.len().max(widths.len()), 0);
            for (width, cell) in widths.iter_mut().zip(line) {
                *width = cell.chars().count().max(*width);
            }
        }
        widths
    }
}

/// Returns the tables as text.
pub(super) fn text(tables: &[Table]) -> String {
    let mut lines = String::new();
    for table in tables {
        let widths = table.widths();
        let _ = writeln!(lines, "{}", table.title);
        for row in table.lines() {
            let mut line = String::new();
            for (position, (cell, width)) in row.iter().zip(&widths).enumerate() {
                let _ = if position == 0 { write!(line, "  {cell:<width$}") } else { write!(line, "  {cell:>width$}") };
            }
            let _ = writeln!(lines, "{}", line.trim_end());
        }
        if table.rows.is_empty() {
            lines += "  none\n";
        }
        lines.push('\n');
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_few_digits() {
        let counts = [0.0, 0.04, 3.26, 4321.4, 43_210.0, 4_321_000.0].map(count);
        assert_eq!(counts, ["0", "0", "3.3", "4321", "43.2k", "4.3M"]);
        let times = [Some(25e-6), Some(0.0025), Some(2.5), None].map(time);
        assert_eq!(times, ["25 µs", "2.5 ms", "2.5 s", "-"]);
        let latencies = [Some(Quantile::At(2.5)), Some(Quantile::Above(60.0)), None].map(latency);
        assert_eq!(latencies, ["2.5 s", "> 60.0 s", "-"]);
        assert_eq!(bytes(Some(3.0 * 1024.0 * 1024.0)), "3.0 MiB");
    }

    #[test]
    fn a_table_is_aligned() {
        let rows =
            vec![(Look::Plain, vec!["get".to_owned(), "7".to_owned()]), (Look::Bad, vec!["a".into(), "12".into()])];
        let table = Table { title: "T", head: &["op", "n"], rows };
        assert_eq!(text(&[table]), "T\n  op    n\n  get   7\n  a    12\n\n");
    }
}
