//! The charts of the console: `docs/metrics.md` has exactly them, and they draw only metrics that exist.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::Value;

const HEADING: &str = "## Charts of the console";

fn file(path: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

fn charts() -> Value {
    serde_json::from_str(&file("crates/server/src/admin/console/assets/charts.json")).unwrap()
}

/// Returns the rows that the document must have: title, families, and what to do when the chart looks bad.
fn rows(charts: &Value) -> Vec<String> {
    let row = |chart: &Value| {
        let mut families: Vec<String> = Vec::new();
        for part in chart["what"].as_array().unwrap() {
            let family = format!("`{}`", part["family"].as_str().unwrap());
            if !families.contains(&family) {
                families.push(family);
            }
        }
        let text = |name: &str| chart[name].as_str().unwrap().to_owned();
        format!("| {} | {} | {} |", text("title"), families.join(", "), text("bad"))
    };
    charts["charts"].as_array().unwrap().iter().map(row).collect()
}

/// Returns the rows of the document that are missing or wrong.
fn differences(document: &str, charts: &Value) -> Vec<String> {
    let section = document.split_once(HEADING).map_or("", |(_, after)| after.split("\n## ").next().unwrap());
    let shown: BTreeSet<&str> = section.lines().filter(|line| line.starts_with("| ")).skip(1).collect();
    let wanted = rows(charts);
    let missing = wanted.iter().filter(|row| !shown.contains(row.as_str())).cloned();
    let gone = shown.iter().filter(|row| !wanted.iter().any(|own| own == *row)).map(|row| format!("remove: {row}"));
    missing.chain(gone).collect()
}

/// Returns the families of `charts.json` that are no metric of klad.
fn unknown_families(charts: &Value, document: &str) -> Vec<String> {
    let known = |name: &str| document.contains(&format!("\n| `{name}` | "));
    let whole = |name: &str| {
        let part = ["_bucket", "_sum", "_count"].iter().find_map(|part| name.strip_suffix(part));
        known(name) || part.is_some_and(known)
    };
    let sampled = charts["families"].as_array().unwrap().iter().map(|family| &family["name"]);
    let of_charts = charts["charts"].as_array().unwrap().iter().flat_map(|chart| chart["what"].as_array().unwrap());
    let names = sampled.chain(of_charts.map(|part| &part["family"])).map(|name| name.as_str().unwrap());
    names.filter(|name| !whole(name)).map(str::to_owned).collect()
}

#[test]
fn the_documented_charts_are_exactly_the_existing_ones() {
    let found = differences(&file("docs/metrics.md"), &charts());
    assert_eq!(found, Vec::<String>::new(), "docs/metrics.md, {HEADING}:\n{}", found.join("\n"));
}

#[test]
fn twin_an_undocumented_chart_is_noticed() {
    let (document, mut charts) = (file("docs/metrics.md"), charts());
    charts["charts"][0]["bad"] = "Do something else.".into();
    let found = differences(&document, &charts);
    assert_eq!(found.len(), 2, "one is missing and one is too many: {found:?}");
}

#[test]
fn charts_draw_only_metrics_that_exist() {
    assert_eq!(unknown_families(&charts(), &file("docs/metrics.md")), Vec::<String>::new());
}

#[test]
fn twin_a_chart_of_an_unknown_metric_is_noticed() {
    let mut charts = charts();
    charts["families"][0]["name"] = "klad_redy".into();
    assert_eq!(unknown_families(&charts, &file("docs/metrics.md")), ["klad_redy"]);
}
