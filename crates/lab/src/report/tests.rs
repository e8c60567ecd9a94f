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
fn the_page_has_all_sentences_and_leads_with_the_question_and_the_answer() {
    let mut result = sample();
    result.scale = 0.1;
    let page = page(&result, std::path::Path::new("nowhere"));
    let conclusion = conclude(&result);
    let only = &conclusion.stages[0];
    for sentence in only.sentences.iter().chain(&only.pairs).chain([&only.headline]).chain(&conclusion.remarks) {
        let escaped = sentence.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
        assert!(page.replace('\u{a0}', " ").contains(&escaped), "{sentence}");
    }
    let places = ["<h1>", &only.headline[..20], "Scaled to 0.1", "class=\"bars\"", "Ratio to the next", "id=\"s0\""];
    let places = [&places[..], &["s0-spectrum", "s0-latency", "s0-goodput"]].concat();
    let places = places.iter().chain(&["The slowest requests", "Is it valid?", "The experiment"]);
    let found: Vec<_> = places.map(|words| page.find(words).unwrap_or_else(|| panic!("{words}"))).collect();
    assert!(found.is_sorted(), "{found:?}");
    assert!(page.contains("queue 66.7 %, engine 33.3 %"), "parts are added up");
}

/// Returns the part of the page before the first fold or stage, and what is inside of folds.
fn shown_and_folded(page: &str) -> (String, String) {
    let parts: Vec<_> = page.split("<details class=\"more\">").map(|part| part.split_once("</details>")).collect();
    let folded = parts.iter().flatten().map(|(folded, _)| *folded).collect::<String>();
    let first = page.split("<details").next().unwrap_or_default();
    (first.to_owned(), folded)
}

#[test]
fn sentences_about_pairs_are_folded_away_and_a_tie_is_a_tie() {
    let equal = FakeServer { seed: 2, ..FakeServer::default() };
    let result = experiment(vec![variant("plain", &FakeServer::default(), 5), variant("other", &equal, 5)], "");
    let (shown, folded) = shown_and_folded(&page(&result, std::path::Path::new("nowhere")));
    assert!(shown.contains("No difference told by p99.9 between "), "{shown}");
    assert!(folded.contains("other against plain: ") && !shown.contains("other against plain"), "{folded}");
    let text = markdown(&result, &conclude(&result));
    let (before, after) = text.split_once("<details>").expect("a fold");
    assert!(before.contains("## Answer\n\n**No difference told by p99.9 between "), "{before}");
    assert!(after.contains("* other against plain: ") && !before.contains("other against plain: "), "{text}");
    assert!(before.contains("| p50 | no difference told |"), "{before}");
}

#[test]
fn what_is_left_out_stands_below_the_answer() {
    let mut result = sample();
    result.stages[0].variants.push(variant("gone", &FakeServer::default(), 0));
    let line = "Left out: gone has no run.";
    let page = page(&result, std::path::Path::new("nowhere"));
    let [answer, left_out, picture] =
        ["plain wins by p99.9 with ", line, "class=\"bars\""].map(|words| page.find(words).expect(words));
    assert!(answer < left_out && left_out < picture);
    assert!(markdown(&result, &conclude(&result)).contains(line));
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
    for heading in ["# Fake", "## Answer", "## get", "### Spread over the repeats", "### other against plain"] {
        assert!(text.lines().any(|line| line == heading), "{heading} in {text}");
    }
    // Sentences are broken into lines.
    let plain = text.replace('\\', "").replace("&lt;", "<").split_whitespace().collect::<Vec<_>>().join(" ");
    let only = &conclusion.stages[0];
    for sentence in only.sentences.iter().chain(&only.pairs).chain([&only.headline]) {
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
