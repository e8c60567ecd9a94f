//! The page of `klad bench --html` in a browser: it draws its charts in light and dark, on a phone and on a wide
//! screen, and loads nothing but the file.

use std::sync::OnceLock;

use serde_json::Value;

use super::support::ServerBuilder;
use super::support::bencher::{Bencher, Run};
use super::support::pages::{WIDTHS, faults, look};
use super::support::scripted::{Script, Scripted};

/// The charts of every page, in their order.
const FIGURES: [&str; 6] = ["percentiles", "rate", "latency", "heat", "outcomes", "send-lag"];

/// Makes a run that writes a page.
fn with_page(bencher: &Bencher) -> (Run, String) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("page.html");
    let run = bencher.clone().arg("--html", &path).run();
    (run, std::fs::read_to_string(path).unwrap())
}

/// As [`with_page`], of a run whose intervals all have these figures. If the machine stalls, an interval has none, and
/// the cursor has no value there.
fn with_full_page(bencher: &Bencher, figures: &[&str]) -> (Run, String) {
    let has_all = |interval: &Value| figures.iter().all(|figure| interval[figure].is_object());
    let is_full = |(run, _): &(Run, String)| run.result["intervals"].as_array().unwrap().iter().all(has_all);
    (0..5).map(|_| with_page(bencher)).find(is_full).expect("a run with requests in each interval")
}

/// A run of two seconds with a warm-up and two stages, in which half of the first gets find nothing.
fn sample() -> &'static (Run, String) {
    static SAMPLE: OnceLock<(Run, String)> = OnceLock::new();
    SAMPLE.get_or_init(|| {
        let server = ServerBuilder::new("memory").start();
        let options = "--workload mixed:50/50 --keys 200 --stages 200/s:1s,100/s..400/s:1s --warm-up 500ms";
        let bencher = Bencher::new(&format!("http://{}", server.address), options).arg("--slo", "p99<1h");
        with_full_page(&bencher, &["response", "send_lag"])
    })
}

/// Changes the data of a chart.
fn with_data(page: &str, id: &str, change: impl FnOnce(&mut Value)) -> String {
    let figure = page.find(&format!("<figure class=\"chart\" id=\"{id}\"")).unwrap();
    let begin = figure + page[figure..].find("application/json\">").unwrap() + "application/json\">".len();
    let end = begin + page[begin..].find("</script>").unwrap();
    let mut data: Value = serde_json::from_str(&page[begin..end]).unwrap();
    change(&mut data);
    format!("{}{data}{}", &page[..begin], &page[end..])
}

#[test]
fn every_chart_is_drawn_in_light_and_dark_on_a_phone_and_on_a_wide_screen() {
    let (run, page) = sample();
    assert_eq!(run.measured("scheduled"), 450);
    for dark in [false, true] {
        assert_eq!(faults(&look(page, dark), dark, &FIGURES), Vec::<String>::new(), "dark: {dark}");
    }
    assert!(page.len() < 300 << 10, "{} bytes", page.len());
    for words in ["SLO met", "warm-up (not included)", "stage 2: 100/s to 400/s", "not found", "The run"] {
        assert!(page.contains(words), "{words}");
    }
}

#[test]
fn a_run_of_a_second_has_charts_and_a_run_without_an_answer_says_so_instead() {
    let second = Scripted::start(Script::RefusesEveryTenth);
    let bencher = Bencher::new(&second.url("/"), "--duration 1s --connections 100");
    let (_, page) = with_full_page(&bencher, &["response"]);
    let mut found = faults(&look(&page, false), false, &FIGURES);
    // On a busy machine the last answers arrive in the next second, in which nothing was sent.
    found.retain(|fault| !fault.contains("\"send-lag\": the cursor says {\"at\":\"1.5"));
    assert_eq!(found, Vec::<String>::new());
    assert!(page.contains("10.000\u{a0}%"), "every tenth is refused");

    let refusing = Scripted::start(Script::AnswersWith(503));
    // A connection for each request, so that none is left without one, and unfinished, on a busy machine.
    let (_, page) = with_page(&Bencher::new(&refusing.url("/"), "--duration 1s --connections 100"));
    assert!(page.contains("no request was served (statuses: 503)"));
    for seen in look(&page, false) {
        let states: Vec<_> =
            seen["figures"].as_array().unwrap().iter().map(|one| one["state"].as_str().unwrap()).collect();
        assert_eq!(states, ["empty", "drawn", "empty", "empty", "drawn", "drawn"]);
        assert!(seen["figures"][0]["words"].as_str().unwrap().contains("nothing to draw"), "{seen}");
        assert_eq!((&seen["errors"], seen["wider"].as_u64()), (&serde_json::json!([]), Some(0)));
    }
}

#[test]
fn without_scripts_the_page_shows_its_tables_and_says_what_is_missing() {
    let (run, page) = sample();
    let script = page.split("<script>").next().unwrap();
    assert!(script.contains("<noscript>") && script.contains("The charts need JavaScript"));
    let p50 = run.result["measured"]["response"]["percentiles"][0]["samples_above"].as_u64().unwrap();
    assert!(script.contains(&format!(">{p50}<")), "the table of percentiles is in the page before any script");
}

/// Returns the faults of a page in light colours.
fn wrong(page: &str) -> Vec<String> {
    faults(&look(page, false), false, &FIGURES)
}

/// Asserts that faults with each of these words are found in each width.
fn assert_noticed(page: &str, all: &[&str]) {
    let found = wrong(page);
    for (width, words) in WIDTHS.into_iter().flat_map(|width| all.iter().map(move |words| (width, words))) {
        let noticed = found.iter().any(|fault| fault.starts_with(&format!("{width}: ")) && fault.contains(words));
        assert!(noticed, "{words} at {width}: {found:?}");
    }
}

#[test]
fn twin_a_chart_that_is_not_drawn_is_noticed_and_says_so_itself() {
    let (_, page) = sample();
    // Three charts of one page.
    let damaged = with_data(page, "rate", |data| data["series"] = Value::Null);
    let damaged = with_data(&damaged, "heat", |data| data["columns"] = serde_json::json!([]));
    assert_noticed(
        &damaged.replacen("{\"x\":{", "{\"x\":{{", 1),
        &[
            "\"percentiles\": \"failed\": \"This chart could not be drawn",
            "\"rate\": \"failed\"",
            "\"heat\": \"empty\"",
        ],
    );
    let cut = page.replacen("const root = document", "const root = = document", 1);
    assert_noticed(&cut, &["Not drawn: the script of this page has not run."]);
    assert_noticed(&page.replacen("var uPlot=", "var otherPlot=", 1), &["uPlot is not in this page"]);
}

#[test]
fn twin_a_chart_without_visible_data_is_noticed() {
    let (_, page) = sample();
    let all_null = with_data(page, "latency", |data| {
        for series in data["series"].as_array_mut().unwrap() {
            series["values"].as_array_mut().unwrap().fill(Value::Null);
        }
    });
    let elsewhere = with_data(&all_null, "rate", |data| data["y"]["range"] = serde_json::json!([1e9, 2e9]));
    assert_noticed(&elsewhere, &["\"latency\": \"empty\"", "\"rate\": no series is seen"]);
}

#[test]
fn twin_a_page_that_is_too_wide_has_small_text_or_loads_files_is_noticed() {
    let (_, page) = sample();
    let heading = "<img src=\"http://127.0.0.1:1/x.png\"><h1 style=\"width:1500px;font-size:9px\">";
    assert_noticed(&page.replacen("<h1>", heading, 1), &["wider than its window", "small text", "refused: "]);
    assert_noticed(&page.replacen("\"use strict\";\n\nconst", "nothing.here();\nconst", 1), &["errors: "]);
    assert_noticed(
        &page.replacen("schemes.addEventListener", "window.addEventListener", 1),
        &["do not change with the colour scheme"],
    );
    let seen_dark = look(&page.replacen("color-scheme: light dark;", "color-scheme: light;", 1), true);
    assert!(faults(&seen_dark, true, &FIGURES).iter().any(|fault| fault.contains("background")));
}
