//! What `klad config print` says: each value with its source, and what follows from the values that were not given.

use std::thread;

use bytesize::ByteSize;
use serde_json::{Value, json};

use crate::config::{self, Config};
use crate::os::memory_limit;
use crate::settings::{Resolved, Setting, Source};
use klad_base::limits::CONNECTION_BYTES;

/// A value that was not given, as it is at this start.
struct Computed {
    option: &'static str,
    exact: u64,
    /// For people.
    value: String,
    how: String,
}

/// Lines of name, value and source, aligned; then how the memory is shared out. `config` is `None` where the values do not
/// fit each other.
#[must_use]
pub fn text(resolved: &Resolved, config: Option<&Config>) -> String {
    let computed = config.map(|config| computed(resolved, config)).unwrap_or_default();
    let rows: Vec<[String; 3]> = resolved.settings().iter().map(|setting| row(setting, &computed)).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or_default();
    let (names, values) = (width(0), width(1));
    let mut lines: Vec<String> =
        rows.iter().map(|[name, value, source]| format!("{name:names$}  {value:values$}  {source}")).collect();
    if let Some(config) = config {
        lines.push(format!("\nof {} for --memory:", ByteSize(config.budget.total)));
        lines.extend(shares(config).map(|(part, bytes, what)| format!("{part:names$}  {bytes:>values$}  {what}")));
    }
    lines.join("\n") + "\n"
}

fn row(setting: &Setting, computed: &[Computed]) -> [String; 3] {
    let computed = computed.iter().find(|computed| computed.option == setting.name);
    let (value, source) = match (&setting.value, computed) {
        (Some(value), _) => (value.clone(), setting.source.to_string()),
        (None, Some(computed)) => (computed.value.clone(), format!("{}: {}", setting.source, computed.how)),
        (None, None) => ("-".to_owned(), setting.source.to_string()),
    };
    [setting.name.clone(), value, source]
}

/// The same as JSON: `options`, each with `name`, `value` (`null` where nothing was given), `source`, `live`, and, where it was
/// computed, `effective` (a number; of bytes) and `how`; and `memory`, the shares in bytes.
#[must_use]
pub fn json(resolved: &Resolved, config: Option<&Config>) -> Value {
    let computed = config.map(|config| computed(resolved, config)).unwrap_or_default();
    let options: Vec<Value> = resolved.settings().iter().map(|setting| object(setting, &computed)).collect();
    let memory = config.map(|config| {
        let shares = shares(config).map(|(part, bytes, _)| (part.to_owned(), json!(bytes)));
        Value::Object(shares.collect())
    });
    json!({ "options": options, "memory": memory })
}

fn object(setting: &Setting, computed: &[Computed]) -> Value {
    let source = match &setting.source {
        Source::CommandLine => json!({ "kind": "command-line" }),
        Source::Environment { variable } => json!({ "kind": "environment", "variable": variable }),
        Source::File { path, line } => json!({ "kind": "file", "path": path.to_string_lossy(), "line": line }),
        Source::Admin => json!({ "kind": "admin" }),
        Source::Default => json!({ "kind": "default" }),
    };
    let Setting { name, value, live, .. } = setting;
    let mut object = json!({ "name": name, "value": value, "source": source, "live": live });
    if let Some(computed) = computed.iter().find(|computed| computed.option == name) {
        object["effective"] = json!(computed.exact);
        object["how"] = json!(computed.how);
    }
    object
}

fn computed(resolved: &Resolved, config: &Config) -> Vec<Computed> {
    let args = resolved.args();
    let mut computed = Vec::new();
    if args.threads.is_none() {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let how = format!("one for each of {cores} cores");
        let threads = config.server.threads;
        computed.push(Computed { option: "threads", exact: threads as u64, value: threads.to_string(), how });
    }
    if args.memory.is_none() {
        let (bytes, whose) = memory_limit::memory_limit();
        let how = format!("half of the {} of {whose}", ByteSize(bytes));
        let exact = config.budget.total;
        computed.push(Computed { option: "memory", exact, value: ByteSize(exact).to_string(), how });
    }
    if args.connections_max.is_none() {
        let how = config::how_connections_max(config.budget.total, config.server.threads).to_owned();
        let exact = config.budget.connections_max;
        computed.push(Computed { option: "connections-max", exact, value: exact.to_string(), how });
    }
    computed
}

/// Parts of the memory, bytes of each, and what they are for.
fn shares(config: &Config) -> impl Iterator<Item = (&'static str, u64, String)> {
    let budget = &config.budget;
    let connections = format!("{} connections of {CONNECTION_BYTES} bytes", budget.connections_max);
    [
        ("connections", budget.connections, connections),
        ("bodies", budget.room, "requests' bodies, and large values on their way out".to_owned()),
        ("ranges", budget.scans, "pages of ranges".to_owned()),
        ("cache", budget.cache, "block cache, memtables included; the memory engine's data".to_owned()),
        ("memtables", budget.memtables, "of the cache, at most".to_owned()),
    ]
    .into_iter()
}
