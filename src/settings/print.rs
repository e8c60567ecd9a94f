//! The output of `klad config print`: each value with its source, the computed defaults, and the parts of the memory
//! budget.

use std::thread;

use bytesize::ByteSize;
use serde_json::{Value, json};

use crate::config::{self, Config};
use crate::os::memory_limit;
use crate::settings::{Resolved, Setting, Source};

/// A default that klad computed on this machine.
struct Computed {
    option: &'static str,
    exact: u64,
    /// The value for people.
    value: String,
    /// How klad computed it, for people.
    how: String,
}

/// Returns one aligned line for each option, with name, value and source, and then the parts of the memory budget.
/// `config` is `None` if the configuration is invalid.
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

/// Returns the content of [`text`] as JSON. Each item of `options` has `name`, `value` (`null` if no value was given
/// and there is no fixed default), `source` and `live`. If klad computed the default, the item also has `effective` (a
/// number; sizes in bytes) and `how`. `memory` has the parts of the memory budget, bytes; it is `null` without
/// `config`.
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
        let (bytes, owner) = memory_limit::memory_limit();
        let how = format!("half of the {} of {owner}", ByteSize(bytes));
        let exact = config.budget.total;
        computed.push(Computed { option: "memory", exact, value: ByteSize(exact).to_string(), how });
    }
    if args.connections_max.is_none() {
        let how = config::connections_max_reason(config.budget.total, config.server.threads).to_owned();
        let exact = config.budget.connections_max;
        computed.push(Computed { option: "connections-max", exact, value: exact.to_string(), how });
    }
    computed
}

/// Returns the parts of the memory budget: name, bytes, and use.
fn shares(config: &Config) -> impl Iterator<Item = (&'static str, u64, String)> {
    let budget = &config.budget;
    let connection_bytes = budget.connections / budget.connections_max;
    let connections = format!("{} connections of {connection_bytes} bytes", budget.connections_max);
    [
        ("connections", budget.connections, connections),
        ("bodies", budget.bodies, "request bodies, and large values being sent".to_owned()),
        ("ranges", budget.scans, "pages of range scans".to_owned()),
        ("cache", budget.cache, "caches and memtables, or the data of the memory engine".to_owned()),
        ("memtables", budget.memtables, "the maximum part of the cache for memtables".to_owned()),
    ]
    .into_iter()
}
