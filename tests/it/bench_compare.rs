//! `klad bench compare`, from result files to exit codes. The runs are real. Where a test needs a verdict about pieces
//! of runs, it replaces their times and outcomes, because a busy machine can change them. The trials in
//! `crates/bench/src/compare/trials.rs` measure how often the judgement errs in close cases.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use klad_bench::recorder::{Outcome, histogram};
use klad_bench::result::{Distribution, RunResult};
use serde_json::{Value, json};

use super::support::bencher::{Bencher, Ended, klad, together};
use super::support::pages::{faults, look};
use super::support::results;
use super::support::scripted::{Script, Scripted};

/// A directory with result files.
struct ResultFiles {
    directory: tempfile::TempDir,
}

impl ResultFiles {
    fn new() -> ResultFiles {
        ResultFiles { directory: tempfile::tempdir().unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn write(&self, name: &str, result: &Value) -> String {
        self.write_bytes(name, &serde_json::to_vec(result).unwrap())
    }

    fn write_bytes(&self, name: &str, bytes: &[u8]) -> String {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, bytes).unwrap();
        path.to_str().unwrap().to_owned()
    }
}

fn compare(a: &str, b: &str, options: &str) -> Ended {
    klad(&["bench", "compare", a, b].into_iter().chain(options.split_whitespace()).collect::<Vec<_>>())
}

/// Returns the comparison as JSON, from a standard output with nothing else, and the exit code.
fn compared(a: &str, b: &str, options: &str) -> (Value, Option<i32>) {
    let ended = compare(a, b, &format!("{options} --json -"));
    let found = serde_json::from_str(&ended.stdout).unwrap_or_else(|error| panic!("{error}: {ended:?}"));
    (found, ended.code)
}

/// Returns one figure of a comparison.
fn figure<'f>(found: &'f Value, name: &str) -> &'f Value {
    let figures = found["figures"].as_array().unwrap();
    figures.iter().find(|figure| figure["figure"] == name).unwrap_or_else(|| panic!("{name} in {found}"))
}

/// Makes one run for each script, all at the same time. A run has ten seconds of measurement after two of warm-up, and
/// so ten pieces.
fn results_of(scripts: &[Script]) -> Vec<Value> {
    let servers: Vec<_> = scripts.iter().map(|script| Scripted::start(*script)).collect();
    let options = "--rate 300/s --connections 128 --warm-up 2s --duration 10s";
    let runs: Vec<_> = servers.iter().map(|server| Bencher::new(&server.url("/"), options)).collect();
    together(&runs).into_iter().map(|run| called_valid(run.result)).collect()
}

/// Marks a result as valid. These tests must not depend on the load of the machine.
fn called_valid(mut result: Value) -> Value {
    result["valid"] = json!(true);
    result["checks"].as_array_mut().unwrap().iter_mut().for_each(|check| check["passed"] = json!(true));
    result
}

/// Three runs against a server that answers at once, and one against a server that refuses every tenth request. All at
/// the same time.
fn runs() -> &'static [Value] {
    static RUNS: OnceLock<Vec<Value>> = OnceLock::new();
    RUNS.get_or_init(|| results_of(&[Script::Answers, Script::Answers, Script::Answers, Script::RefusesEveryTenth]))
}

/// Two runs with equal response times of 50 ms, one in which every tenth request takes forty times as long, and one in
/// which every tenth request is rejected.
fn sample() -> &'static [Value] {
    static SAMPLE: OnceLock<Vec<Value>> = OnceLock::new();
    SAMPLE.get_or_init(|| {
        let times = [Some(50), Some(50), Some(2_000), None];
        runs().iter().zip(times).map(|(run, tenth)| with_times(run, tenth, 50)).collect()
    })
}

/// Replaces the response times of a run, milliseconds: of every tenth request, which is rejected if it has none, and of
/// the others. In each piece all requests take some microseconds longer than in the one before.
fn with_times(run: &Value, tenth: Option<u64>, others: u64) -> Value {
    let mut run: RunResult = serde_json::from_value(run.clone()).unwrap();
    let (refused, good) = if tenth.is_some() { (0, 300.0) } else { (30, 270.0) };
    let mut all = histogram();
    for (number, piece) in (0..).zip(&mut run.pieces) {
        let mut response = histogram();
        for (time, count) in tenth.map(|tenth| (tenth, 30)).into_iter().chain([(others, 270)]) {
            response.record_n(time * 1_000_000 + number * 10_000, count).unwrap();
        }
        all.add(&response).unwrap();
        piece.outcomes = [(Outcome::Served, response.len()), (Outcome::Refused, refused)].into();
        piece.goodput_per_s = good / piece.length_s;
        piece.response = Distribution::of(&response);
    }
    run.measured.outcomes = [(Outcome::Served, all.len()), (Outcome::Refused, 10 * refused)].into();
    run.measured.goodput_per_s = 10.0 * good / run.measured.duration_s;
    run.measured.response = Distribution::of(&all);
    serde_json::to_value(run).unwrap()
}

#[test]
fn a_slower_tail_is_named_with_its_figures_and_has_exit_code_3() {
    let files = ResultFiles::new();
    let [a, b] = [0, 2].map(|index| files.write(&format!("{index}.json"), &sample()[index]));
    let (found, code) = compared(&a, &b, "--tolerance 100%");
    assert_eq!((code, &found["verdict"]), (Some(3), &json!("slower")), "{found:#}");
    assert_eq!(
        (&found["repeats"]["kind"], &found["repeats"]["a"], &found["repeats"]["b"]),
        (&json!("pieces"), &json!(10), &json!(10))
    );
    for (name, verdict) in [("p50", "no_difference"), ("p95", "worse"), ("p99", "not_judged"), ("max", "not_judged")] {
        assert_eq!(figure(&found, name)["verdict"], verdict, "{name}: {found:#}");
    }
    let p95 = figure(&found, "p95");
    assert!((p95["b"].as_f64().unwrap() - 2e6).abs() < 2e4, "{p95}");
    let [low, by, high] = ["low", "difference", "high"].map(|end| p95[format!("{end}_percent")].as_f64().unwrap());
    assert!(100.0 < by && low < by && by < high, "{p95}");

    let ended = compare(&a, &b, "--tolerance 100%");
    let text = &ended.stdout;
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(3), ""));
    let said = text.lines().find(|line| line.starts_with("B is slower: ")).unwrap_or_else(|| panic!("{text}"));
    assert!(said.contains("p95 ") && !said.contains("p50 "), "{said}");
    assert_eq!(said, found["sentence"], "the text and the JSON agree");
    assert!(text.contains("how two starts of a server differ"), "{text}");

    // In the other direction.
    let (found, code) = compared(&b, &a, "--tolerance 100%");
    assert_eq!((code, &found["verdict"]), (Some(0), &json!("faster")), "{found:#}");
}

#[test]
fn twin_equal_servers_have_no_difference_and_exit_code_0() {
    let files = ResultFiles::new();
    let [a, b] = [0, 1].map(|index| files.write(&format!("{index}.json"), &sample()[index]));
    let ended = compare(&a, &b, "--tolerance 100%");
    assert_eq!(ended.code, Some(0), "{}", ended.stdout);
    assert!(ended.stdout.contains("\nNo difference beyond the noise.\n"), "{}", ended.stdout);
    // A run equals itself at any tolerance.
    let ended = compare(&a, &a, "--tolerance 0%");
    assert_eq!(ended.code, Some(0), "{}", ended.stdout);
    assert!(ended.stdout.contains("WARNING: a run is on both sides"), "{}", ended.stdout);
}

#[test]
fn rejections_are_worse_although_they_are_quick() {
    let files = ResultFiles::new();
    let [a, b] = [0, 3].map(|index| files.write(&format!("{index}.json"), &sample()[index]));
    let (found, code) = compared(&a, &b, "--tolerance 100%");
    assert_eq!((code, &figure(&found, "refused")["verdict"]), (Some(3), &json!("worse")), "{found:#}");
    let by = figure(&found, "refused")["difference_percent"].as_f64().unwrap();
    assert!((by - 10.0).abs() < 0.5, "{by}");
    let sentence = found["sentence"].as_str().unwrap();
    assert!(sentence.contains("refused ") && sentence.contains(" points more"), "{sentence}");
}

/// Makes four runs against a quick server, in the directory `a` of `files`, and four against a slow one. Returns their
/// paths.
fn repeats(files: &ResultFiles) -> Vec<String> {
    let servers = [20, 1_000].map(|milliseconds| Scripted::start(Script::Takes(milliseconds)));
    let run = |server: &Scripted| Bencher::new(&server.url("/"), "--duration 1s --connections 256");
    let runs: Vec<_> = servers.iter().flat_map(|server| [run(server), run(server), run(server), run(server)]).collect();
    let runs = together(&runs);
    runs.iter()
        .zip(["a/1.json", "a/2.json", "a/3.json", "a/4.json", "b1.json", "b2.json", "b3.json", "b4.json"])
        .map(|(run, name)| {
            // Without pieces, as in results of older versions.
            let mut result = called_valid(run.result.clone());
            result.as_object_mut().unwrap().remove("pieces");
            files.write(name, &result)
        })
        .collect()
}

#[test]
fn several_files_and_a_directory_are_repeats() {
    let files = ResultFiles::new();
    let a = files.path("a").to_str().unwrap().to_owned();
    let (mut names, mut b, mut found, mut code, mut back) = (Vec::new(), String::new(), Value::Null, None, None);
    // A busy machine may slow down one of four runs so much that the others prove nothing. Or it may stall at the end of
    // all runs, which makes the tail of the quick server the slower one.
    for _ in 0..5 {
        names = repeats(&files);
        b = names[4..].join(",");
        (found, code) = compared(&a, &b, "");
        back = compared(&b, &a, "").1;
        if figure(&found, "p50")["verdict"] == "worse" && back == Some(0) {
            break;
        }
    }
    assert_eq!(
        (code, &found["verdict"], &found["repeats"]["kind"]),
        (Some(3), &json!("slower"), &json!("runs")),
        "{found:#}"
    );
    assert_eq!((found["a"].as_array().unwrap().len(), figure(&found, "p50")["verdict"].as_str()), (4, Some("worse")));
    assert_eq!(found["a"][1]["path"], names[1].as_str());
    assert_eq!(back, Some(0));

    // One run of each side cannot be judged, which is not the same as "no difference".
    let ended = compare(&names[0], &names[4], "");
    assert_eq!(ended.code, Some(1));
    assert!(ended.stderr.contains(&names[0]) && ended.stderr.contains("has no pieces"), "{}", ended.stderr);
    assert!(ended.stderr.contains("give several runs") && ended.stdout.contains("p50"), "{ended:?}");
    // The same run given twice is not a repeat.
    let ended = compare(&format!("{},{}", names[0], names[0]), &b, "");
    assert_eq!(ended.code, Some(1));
    assert!(ended.stderr.contains("the same run"), "{}", ended.stderr);
}

/// Returns a result with another value at `pointer`.
fn changed(result: &Value, pointer: &str, value: Value) -> Value {
    let mut result = result.clone();
    *result.pointer_mut(pointer).unwrap_or_else(|| panic!("{pointer}")) = value;
    result
}

#[test]
fn invalid_runs_are_named_first_and_have_exit_code_4_unless_allowed() {
    let files = ResultFiles::new();
    let wrong = changed(&sample()[1], "/valid", json!(false));
    let wrong = changed(&wrong, "/checks/0/passed", json!(false));
    let (a, b) = (files.write("a.json", &sample()[0]), files.write("wrong.json", &wrong));
    for (one, other) in [(&a, &b), (&b, &a)] {
        let ended = compare(one, other, "--tolerance 100%");
        assert_eq!(ended.code, Some(4), "{}", ended.stdout);
        assert!(ended.stdout.starts_with(&format!("NOT VALID: {b}: send_lag\n")), "{}", ended.stdout);
    }
    let ended = compare(&a, &b, "--tolerance 100% --allow-invalid");
    assert_eq!(ended.code, Some(0), "{}", ended.stdout);
    assert!(ended.stdout.starts_with("NOT VALID: "), "the text still says so: {}", ended.stdout);
}

#[test]
fn other_differences_cause_warnings() {
    let files = ResultFiles::new();
    let a = files.write("a.json", &sample()[0]);
    for (pointer, value, words) in [
        ("/load/connections", json!(129), "WARNING: different connections: A 128; B 129 to 128"),
        (
            "/load/stages/0/from_per_s",
            json!(100.0),
            "WARNING: different rate and length: A 300/s for 10s; B 100..300/s",
        ),
        ("/load/workload", json!("another"), "WARNING: different workload: "),
        ("/load/mode", json!("closed"), "WARNING: different load: A open; B closed"),
        ("/machine/host", json!("elsewhere"), "WARNING: different machine: "),
        ("/machine/kernel", json!("Linux 1.0"), "WARNING: different kernel: "),
        ("/klad_version", json!("0.0.9"), "WARNING: different version of the generator: "),
        ("/interrupted_s", json!(2.5), "was ended early, 2.5s after the start"),
    ] {
        let b = files.write("b.json", &changed(&sample()[1], pointer, value));
        let ended = compare(&a, &b, "--tolerance 100%");
        assert!(ended.stdout.contains(words), "{words:?} is not in {}", ended.stdout);
        assert_eq!(ended.code, Some(0), "a warning does not change the verdict");
    }
    let b = files.write("b.json", &sample()[1]);
    assert!(!compare(&a, &b, "").stdout.contains("WARNING"), "nothing else differs");
}

#[test]
fn a_wrong_file_is_named_with_its_problem_and_has_exit_code_1() {
    let files = ResultFiles::new();
    let good = files.write("good.json", &sample()[0]);
    let whole = std::fs::read(Path::new(&good)).unwrap();
    let damaged = changed(&sample()[0], "/pieces/1/response/histogram", json!("aGVsbG8="));
    for (name, bytes, words) in [
        ("empty.json", Vec::new(), "is empty"),
        ("cut.json", whole[..whole.len() - 100].to_vec(), "is truncated"),
        ("wrk.txt", b"Running 30s test @ http://127.0.0.1\n".to_vec(), "is not JSON"),
        ("other.json", b"{\"requests\": 5}".to_vec(), "not a result of klad bench"),
        (
            "newer.json",
            serde_json::to_vec(&changed(&sample()[0], "/schema", json!("klad.bench/2"))).unwrap(),
            "klad.bench/2",
        ),
        (
            "odd.json",
            serde_json::to_vec(&changed(&sample()[0], "/measured", json!(5))).unwrap(),
            "does not follow its schema",
        ),
        ("damaged.json", serde_json::to_vec(&damaged).unwrap(), "histogram"),
    ] {
        let wrong = files.write_bytes(name, &bytes);
        for (a, b) in [(&good, &wrong), (&wrong, &good)] {
            let ended = compare(a, b, "");
            assert_eq!((ended.code, ended.stdout.as_str()), (Some(1), ""), "{name}: {ended:?}");
            assert!(ended.stderr.contains(&wrong) && ended.stderr.contains(words), "{name}: {}", ended.stderr);
        }
    }
    for (given, words) in [("/nowhere/at.json", "/nowhere/at.json"), ("a.json,,b.json", "between two commas")] {
        let ended = compare(&good, given, "");
        assert_eq!(ended.code, Some(1));
        assert!(ended.stderr.contains(words), "{}", ended.stderr);
    }
    for option in ["--json", "--html"] {
        let ended = compare(&good, &good, &format!("{option} /nowhere/at/all"));
        assert_eq!(ended.code, Some(1));
        assert!(ended.stderr.contains("/nowhere/at/all"), "{}", ended.stderr);
    }
}

#[test]
fn wrong_usage_has_exit_code_2() {
    for (arguments, words) in [
        (&["a.json"][..], "B.json"),
        (&["a.json", "b.json", "c.json"], "c.json"),
        (&["a.json", "b.json", "--tolerance", "-1%"], "-1"),
        (&["a.json", "b.json", "--tolerance", "much"], "much"),
        (&["a.json", "b.json", "--rate", "5/s"], "--rate"),
    ] {
        let ended = klad(&[&["bench", "compare"], arguments].concat());
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(2), ""), "{arguments:?}: {}", ended.stderr);
        assert!(ended.stderr.contains(words), "{arguments:?}: {}", ended.stderr);
    }
}

#[test]
fn every_option_and_field_is_documented() {
    let files = ResultFiles::new();
    let a = files.write("a.json", &sample()[0]);
    let document = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/bench.md")).unwrap();
    let help = klad(&["bench", "compare", "--help"]).stdout;
    let options: Vec<_> = help.split_whitespace().filter(|word| word.starts_with("--") && *word != "--help").collect();
    assert!(options.len() >= 3, "{help}");
    for option in options {
        assert!(document.contains(&format!("`{option}")), "docs/bench.md does not explain {option}");
    }
    let file = files.path("found.json");
    let ended = compare(&a, &a, &format!("--json {}", file.display()));
    assert!(ended.stdout.contains("No difference"), "a file does not replace the text");
    let found: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    let mut fields: Vec<_> = found.as_object().unwrap().keys().collect();
    for inner in ["/a/0", "/repeats", "/confidence", "/figures/0"] {
        fields.extend(found.pointer(inner).unwrap().as_object().unwrap().keys());
    }
    for field in fields {
        assert!(document.contains(&format!("`{field}`")), "docs/bench.md does not explain {field}");
    }
}

#[test]
fn a_page_shows_both_distributions_and_their_differences() {
    let files = ResultFiles::new();
    let [a, b] = [0, 2].map(|index| files.write(&format!("{index}.json"), &sample()[index]));
    let path = files.path("page.html");
    let ended = compare(&a, &b, &format!("--tolerance 100% --html {}", path.display()));
    assert_eq!(ended.code, Some(3), "{}", ended.stderr);
    let page = std::fs::read_to_string(path).unwrap();
    assert!(page.contains("B is slower") && page.contains("each repeat of A"));
    let wrong = |page: &str, dark| faults(&look(page, dark), dark, &["percentiles", "differences"]);
    for dark in [false, true] {
        assert_eq!(wrong(&page, dark), Vec::<String>::new(), "dark: {dark}");
    }
    // The twin: a chart without its lines.
    let cut = page.replacen("\"style\":\"thin\"", "\"style\":", 1);
    assert_ne!(cut, page);
    assert!(!wrong(&cut, false).is_empty());
}

#[test]
fn twin_pieces_that_differ_from_their_intervals_are_noticed() {
    let result = &runs()[2];
    assert_eq!(results::faults(result), Vec::<String>::new());
    assert_eq!(result["pieces"].as_array().unwrap().len(), 10);
    let second = result.pointer("/pieces/1").unwrap().clone();
    // If the machine stalls, no request ends in some pieces.
    let has_some = |number: &usize| result["pieces"][*number]["outcomes"]["served"].as_u64() > Some(7);
    let number = (0..10).find(has_some).expect("a piece with requests");
    let of_it = |field: &str| format!("/pieces/{number}/{field}");
    for (pointer, value) in [
        ("/pieces/0/start_s".to_owned(), json!(0.0)),
        ("/pieces/0/length_s".to_owned(), json!(2.0)),
        ("/pieces/1/start_s".to_owned(), json!(9.0)),
        (of_it("goodput_per_s"), json!(1.0)),
        (of_it("outcomes/served"), json!(7)),
        (of_it("response/count"), json!(7)),
        (of_it("response/percentiles/3/value_us"), json!(1.0)),
        ("/pieces/3".to_owned(), second),
    ] {
        assert!(!results::faults(&changed(result, &pointer, value)).is_empty(), "{pointer}");
    }
}
