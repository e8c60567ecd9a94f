//! Tests of the words of the page and of Markdown. `tests/it/lab_report.rs` tests how a browser shows the page.

use crate::conclusion::conclude;
use crate::report::*;
use crate::result::{LabResult, TakenProfile};
use crate::scenario::ProfileKind;
use crate::testing::{FakeServer, experiment, profile, variant};
use klad_profile::pprof;

fn taken(file: &str) -> TakenProfile {
    TakenProfile {
        kind: ProfileKind::Cpu,
        file: file.to_owned(),
        events: 500,
        goodput_per_s: 1_900.0,
        p99_us: Some(700.0),
        server_cpu_us_per_served: Some(21.0),
    }
}

fn sample() -> LabResult {
    let other = FakeServer { seed: 2, refused: 600, sleeps_every: 100, ..FakeServer::default() };
    experiment(vec![variant("plain", &FakeServer::default(), 3), variant("other", &other, 3)], "")
}

fn page(result: &LabResult, directory: &std::path::Path) -> String {
    html(result, &conclude(result), directory)
}

#[test]
fn the_page_has_all_sentences_of_the_conclusion_and_warnings_come_first() {
    let mut result = sample();
    result.scale = 0.1;
    let page = page(&result, std::path::Path::new("nowhere"));
    let conclusion = conclude(&result);
    for sentence in conclusion.stages[0].sentences.iter().chain(&conclusion.remarks) {
        let escaped = sentence.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
        assert!(page.replace('\u{a0}', " ").contains(&escaped), "{sentence}");
    }
    let places = ["<h1>", "Scaled to 0.1", "class=\"tiles\"", "id=\"s0\"", "s0-spectrum", "s0-latency", "s0-goodput"];
    let places = places.iter().chain(&["The slowest requests", "Is it valid?", "The experiment"]);
    let found: Vec<_> = places.map(|words| page.find(words).unwrap_or_else(|| panic!("{words}"))).collect();
    assert!(found.is_sorted(), "{found:?}");
    assert!(page.contains("queue 66.7 %, engine 33.3 %"), "parts are added up");
}

#[test]
fn flame_graphs_open_in_place_and_missing_or_broken_profiles_are_named() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut result = sample();
    for (index, functions) in [(0, 5), (1, 7)] {
        let file = format!("{index}.pb.gz");
        std::fs::write(directory.path().join(&file), pprof::encode(&profile(functions))).expect("written");
        result.stages[0].variants[index].profiles = vec![taken(&file)];
    }
    let whole = page(&result, directory.path());
    assert_eq!(whole.matches("<details class=\"embedded\">").count(), 3, "two, and their difference");
    assert!(whole.contains("difference of other from plain") && !whole.contains("are not shown"));
    result.stages[0].variants[0].profiles[0].file = "gone.pb.gz".to_owned();
    std::fs::write(directory.path().join("1.pb.gz"), "broken").expect("written");
    let without = page(&result, directory.path());
    assert_eq!(without.matches("<details class=\"embedded\">").count(), 0);
    assert!(without.contains("CPU time of plain in get is not shown: gone.pb.gz: "));
    assert!(without.contains("CPU time of other in get is not shown: 1.pb.gz: this is not a valid profile"));
}

#[test]
fn names_and_texts_are_escaped() {
    let evil = "</script><script>alert(1)</script><img src=x>";
    let clean = page(&sample(), std::path::Path::new("nowhere"));
    let mut result = sample();
    evil.clone_into(&mut result.scenario.title);
    evil.clone_into(&mut result.scenario.about);
    evil.clone_into(&mut result.machine.host);
    evil.clone_into(&mut result.stages[0].variants[1].name);
    evil.clone_into(&mut result.stages[0].about);
    result.command = vec![evil.to_owned()];
    let page = page(&result, std::path::Path::new("nowhere"));
    assert_eq!(page.matches("<script").count(), clean.matches("<script").count());
    assert_eq!((page.matches("<img").count(), page.matches("&lt;img").count() >= 5), (0, true));
    let text = markdown(&result, &conclude(&result));
    assert!(!text.replace("    klad", "").lines().any(|line| !line.starts_with("    ") && line.contains("<img")));
}

#[test]
fn markdown_has_the_same_sentences_and_valid_tables() {
    let result = sample();
    let conclusion = conclude(&result);
    let text = markdown(&result, &conclusion);
    for heading in ["# Fake", "## Conclusion", "## get", "### Spread over the repeats", "### other against plain"] {
        assert!(text.lines().any(|line| line == heading), "{heading} in {text}");
    }
    // Sentences are broken into lines.
    let plain = text.replace('\\', "").replace("&lt;", "<").split_whitespace().collect::<Vec<_>>().join(" ");
    for sentence in &conclusion.stages[0].sentences {
        assert!(plain.contains(sentence), "{sentence}");
    }
    assert!(text.ends_with('\n') && !text.ends_with("\n\n") && !text.contains('\u{a0}'));
    let widths = |line: &str| line.replace("\\|", "").matches('|').count();
    let mut rows = text.lines().map(|line| line.starts_with('|').then(|| widths(line))).collect::<Vec<_>>();
    rows.dedup();
    assert!(
        rows.windows(2).all(|pair| pair[0].is_none() || pair[1].is_none()),
        "rows have as many cells as their heads"
    );
}
