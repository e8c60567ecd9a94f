//! `/metrics`: Prometheus accepts it, the documents have exactly its metrics, and the dashboard and the alerts use
//! only existing ones.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::Value;

#[cfg(feature = "cassandra")]
use super::support::cassandra::{self, Klads};
use super::support::programs::promtool;
use super::support::scrape::{Family, Scrape};
use super::support::{ENGINES, SETUPS, ServerBuilder};

/// Labels that Prometheus adds, and the label of buckets.
const OTHER_LABELS: &[&str] = &["job", "instance", "le"];

/// How the names of the metrics of `--engine cassandra` begin.
const OF_A_CLUSTER: &str = "klad_cluster_";

/// Returns the families of all setups together.
fn everything() -> Scrape {
    let mut all = Scrape::default();
    for setup in SETUPS {
        all.merge(Scrape::of(&ServerBuilder::new(setup).start()));
    }
    all
}

fn file(path: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

#[test]
fn prometheus_accepts_every_page() {
    for setup in SETUPS {
        let server = ServerBuilder::new(setup).start();
        let mut client = server.client();
        client.put("/v0/entity?id=k", b"v");
        client.get("/v0/entity?id=k");
        let page = Scrape::of(&server);
        // promtool prints advice on style.
        assert_eq!(promtool(&["check", "metrics"], &page.text).as_deref(), Ok(""), "{setup}");
    }
}

#[test]
fn twin_an_invalid_page_is_noticed() {
    let page = Scrape::of(&ServerBuilder::new("memory").start()).text;
    let untyped = page.replacen(
        "# TYPE klad_connections_accepted_total counter",
        "# TYPE klad_connections_accepted_total gauge",
        1,
    );
    assert_ne!(untyped, page);
    let said = promtool(&["check", "metrics"], &untyped).expect_err("a gauge with the name of a counter");
    assert!(said.contains("klad_connections_accepted_total"), "{said}");
    promtool(&["check", "metrics"], &page.replacen(" counter\n", " cuonter\n", 1)).expect_err("an unknown kind");
}

/// Returns the rows of a document's tables with a metric in their first cell: name, then kind, labels and meaning.
fn documented(document: &str) -> BTreeMap<String, Family> {
    let mut rows = BTreeMap::new();
    for line in document.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = line.trim_matches('|').split(" | ").map(str::trim).collect();
        let [name, kind, labels, help] = cells[..] else { panic!("a row of four cells: {line}") };
        let labels = labels.split(", ").filter(|label| *label != "-").map(|label| label.trim_matches('`').to_owned());
        let family = Family { kind: kind.to_owned(), help: help.to_owned(), labels: labels.collect() };
        assert!(rows.insert(name.trim_matches('`').to_owned(), family).is_none(), "{name} is there twice");
    }
    rows
}

/// Returns the rows in which the document must change to match the pages.
fn differences(document: &BTreeMap<String, Family>, shown: &Scrape) -> Vec<String> {
    let row = |name: &str, family: &Family| {
        let labels: Vec<String> = family.labels.iter().map(|label| format!("`{label}`")).collect();
        let labels = if labels.is_empty() { "-".to_owned() } else { labels.join(", ") };
        format!("| `{name}` | {} | {labels} | {} |", family.kind, family.help)
    };
    let missing = shown.families.iter().filter(|(name, family)| document.get(*name) != Some(family));
    let missing = missing.map(|(name, family)| row(name, family));
    // In a build without an engine some metrics are missing, or have no sample.
    let of_this_build = |name: &str| {
        (cfg!(feature = "rocksdb") || !name.starts_with("klad_rocksdb_") && !name.starts_with("klad_value_cache_"))
            && (cfg!(feature = "fjall") || !name.starts_with("klad_fjall_"))
            // Another test checks these, where there is a cluster.
            && !name.starts_with(OF_A_CLUSTER)
            && (ENGINES.len() > 1 || !name.starts_with("klad_storage_"))
    };
    let gone = document.keys().filter(|name| !shown.families.contains_key(*name) && of_this_build(name));
    missing.chain(gone.map(|name| format!("{name} does not exist"))).collect()
}

#[cfg(any(feature = "fjall", feature = "rocksdb"))]
#[test]
fn the_documented_metrics_are_exactly_the_existing_ones() {
    let found = differences(&documented(&file("docs/metrics.md")), &everything());
    assert_eq!(found, Vec::<String>::new(), "docs/metrics.md must be:\n{}", found.join("\n"));
}

#[cfg(feature = "cassandra")]
#[test]
fn the_documented_metrics_of_a_cluster_are_exactly_the_existing_ones() {
    let Some(cluster) = cassandra::whole() else { return };
    let klads = Klads::start(cluster);
    assert_eq!(klads.client(0).put("/v1/kv/k", b"v").status, 201);
    let mut page = Scrape::of(klads.server(0));
    assert_eq!(promtool(&["check", "metrics"], &page.text).as_deref(), Ok(""));
    let mut document = documented(&file("docs/metrics.md"));
    document.retain(|name, _| name.starts_with(OF_A_CLUSTER));
    page.families.retain(|name, _| name.starts_with(OF_A_CLUSTER));
    assert!(document == page.families, "docs/metrics.md must be:\n{:#?}", page.families);
}

#[cfg(any(feature = "fjall", feature = "rocksdb"))]
#[test]
fn twin_a_wrong_document_is_noticed() {
    let shown = everything();
    let document = file("docs/metrics.md");
    for (right, wrong) in [
        ("`klad_queue_depth`", "`klad_queue_depht`"),
        ("| `klad_ready` | gauge |", "| `klad_ready` | counter |"),
        ("| `queue`, `reason` |", "| `queue` |"),
        ("Open descriptors.", "Descriptors."),
    ] {
        let wrong = document.replacen(right, wrong, 1);
        assert_ne!(wrong, document);
        assert!(!differences(&documented(&wrong), &shown).is_empty(), "{right}");
    }
}

/// Returns every query of the dashboard, including those of variables and annotations.
fn queries(dashboard: &Value) -> Vec<String> {
    let mut found = Vec::new();
    let mut open = vec![dashboard];
    while let Some(value) = open.pop() {
        match value {
            Value::Array(values) => open.extend(values),
            Value::Object(fields) => {
                found.extend(
                    ["expr", "definition", "legendFormat"]
                        .iter()
                        .filter_map(|name| fields.get(*name)?.as_str())
                        .map(str::to_owned),
                );
                open.extend(fields.values());
            }
            _ => {}
        }
    }
    found
}

/// Returns the words of `text` that could be a metric or a label.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').filter(|word| !word.is_empty())
}

/// Returns the metrics in `text` that do not exist.
fn unknown_metrics(text: &str, shown: &Scrape) -> BTreeSet<String> {
    words(text)
        .filter(|word| word.starts_with("klad_") || word.starts_with("process_"))
        .filter(|word| shown.family_of(word).is_none())
        .map(str::to_owned)
        .collect()
}

/// Returns the labels in `text` (in matchers, groupings and legends) that do not exist.
fn unknown_labels(text: &str, shown: &Scrape) -> BTreeSet<String> {
    let known: BTreeSet<&str> = shown
        .families
        .values()
        .flat_map(|family| &family.labels)
        .map(String::as_str)
        .chain(OTHER_LABELS.iter().copied())
        .collect();
    let mut used = BTreeSet::new();
    for opening in ["by (", "on (", "{{"] {
        for part in text.split(opening).skip(1) {
            let list = part.split([')', '}']).next().unwrap();
            used.extend(words(list.trim_start_matches("$labels.").trim_start_matches(" $labels.")));
        }
    }
    for (position, _) in text.match_indices("=\"").chain(text.match_indices("=~\"")) {
        used.extend(words(&text[..position]).last());
    }
    used.remove("value");
    used.into_iter()
        .filter(|label| !known.contains(label) && !label.starts_with("humanize"))
        .map(str::to_owned)
        .collect()
}

fn dashboard() -> Value {
    serde_json::from_str(&file("deploy/grafana.json")).expect("JSON")
}

/// Returns a query without Grafana's variables.
fn plain(query: &str) -> String {
    query.replace("$__rate_interval", "5m").replace("$job", ".*").replace("$instance", ".*")
}

#[cfg(feature = "rocksdb")]
#[test]
fn the_dashboard_and_the_alerts_use_existing_metrics_and_labels() {
    let mut shown = everything();
    let documented = documented(&file("docs/metrics.md")).into_iter();
    shown.families.extend(documented.filter(|(name, _)| name.starts_with(OF_A_CLUSTER)));
    let queries = queries(&dashboard());
    assert!(queries.len() > 80, "{}", queries.len());
    let alerts = file("deploy/prometheus-alerts.yml");
    let expressions: Vec<String> = queries.iter().map(|query| plain(query)).collect();
    for text in
        expressions.iter().map(String::as_str).chain(alerts.lines().filter(|line| !line.trim_start().starts_with('#')))
    {
        assert_eq!(unknown_metrics(text, &shown), BTreeSet::new(), "{text}");
        if !text.contains("severity:") && !text.contains("summary:") {
            assert_eq!(unknown_labels(text, &shown), BTreeSet::new(), "{text}");
        }
    }
}

#[test]
fn twin_a_misspelt_metric_or_label_is_noticed() {
    let shown = Scrape::of(&ServerBuilder::new("memory/pool").start());
    let right = r#"sum by (queue) (rate(klad_queue_refused_total{reason="full",instance=~"$instance"}[5m]))"#;
    assert!(unknown_metrics(right, &shown).is_empty() && unknown_labels(right, &shown).is_empty());
    assert_eq!(unknown_metrics("klad_queue_refsed_total > 0", &shown).len(), 1);
    assert_eq!(unknown_metrics("rate(klad_queue_depth_bucket[5m])", &shown).len(), 1, "no histogram");
    assert!(unknown_metrics("rate(klad_worker_iteration_seconds_bucket[5m])", &shown).is_empty());
    for wrong in [r#"x{quue="a"}"#, "sum by (quue, reason) (x)", "{{quue}} of {{queue}}", r#"x{queue=~"a",quue=~"b"}"#]
    {
        assert_eq!(unknown_labels(wrong, &shown), BTreeSet::from(["quue".to_owned()]), "{wrong}");
    }
}

#[test]
fn prometheus_accepts_the_alerts_and_every_query_of_the_dashboard() {
    let directory = tempfile::tempdir().unwrap();
    let alerts = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/prometheus-alerts.yml");
    promtool(&["check", "rules", alerts.to_str().unwrap()], "").unwrap_or_else(|said| panic!("{said}"));
    // Queries become rules, because promtool checks rules.
    let mut rules = "groups:\n- name: dashboard\n  rules:\n".to_owned();
    let queries: Vec<String> = queries(&dashboard()).iter().map(|query| plain(query)).collect();
    let queries = queries
        .iter()
        .filter(|query| !query.starts_with("label_values") && (query.contains("klad_") || query.contains("process_")));
    for (number, query) in queries.enumerate() {
        rules += &format!("  - record: query:{number}\n    expr: '{query}'\n");
    }
    let path = directory.path().join("rules.yml");
    std::fs::write(&path, &rules).unwrap();
    promtool(&["check", "rules", path.to_str().unwrap()], "").unwrap_or_else(|said| panic!("{said}"));
    std::fs::write(&path, rules.replacen("sum by", "sum bye", 1)).unwrap();
    promtool(&["check", "rules", path.to_str().unwrap()], "").expect_err("no query");
}

#[test]
fn every_alert_has_advice() {
    let alerts = file("deploy/prometheus-alerts.yml");
    let rules: Vec<&str> = alerts.split("- alert: ").skip(1).collect();
    assert!(rules.len() >= 15, "{}", rules.len());
    for rule in rules {
        let name = rule.lines().next().unwrap();
        for part in ["expr: ", "labels: {severity: ", "summary: \"", "runbook: \""] {
            assert_eq!(rule.matches(part).count(), 1, "{name} has {part}");
        }
        let runbook = rule.split("runbook: \"").nth(1).unwrap().split('"').next().unwrap();
        assert!(runbook.len() > 40 && runbook.ends_with('.'), "{name}: {runbook}");
    }
}

#[test]
fn the_dashboard_has_the_current_schema_of_grafana() {
    let dashboard = dashboard();
    // 36 is the schema of Grafana 9.0. Grafana migrates older ones and may lose parts of them.
    assert!(dashboard["schemaVersion"].as_u64().unwrap() >= 36);
    let variables = dashboard["templating"]["list"].as_array().unwrap();
    assert!(variables.iter().any(|variable| variable["type"] == "datasource" && variable["name"] == "datasource"));
    let panels = dashboard["panels"].as_array().unwrap();
    let rows: Vec<_> =
        panels.iter().filter(|panel| panel["type"] == "row").map(|row| row["title"].as_str().unwrap()).collect();
    assert_eq!(
        rows,
        ["Overview", "Latency by phase", "Overload", "Durability", "RocksDB", "Cassandra cluster", "Process"]
    );
    let mut identities = BTreeSet::new();
    for panel in panels {
        assert!(identities.insert(panel["id"].as_u64().unwrap()), "each panel has a unique id");
        if panel["type"] == "row" {
            continue;
        }
        assert_eq!(panel["datasource"]["uid"], "${datasource}", "{panel}");
        assert!(!panel["targets"].as_array().unwrap().is_empty(), "{panel}");
        let place = &panel["gridPos"];
        assert!(place["x"].as_u64().unwrap() + place["w"].as_u64().unwrap() <= 24, "{panel}");
    }
}
