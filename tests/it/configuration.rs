//! The four sources of options, errors that name the wrong source, and generated documents.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

use super::support::ServerBuilder;

/// The end of `klad` with these arguments and variables, and its output.
struct Ended {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

fn klad(arguments: &[&str], variables: &[(&str, &str)]) -> Ended {
    // A klad that serves although it should refuse is killed.
    let mut command = Command::new("timeout");
    let output = command
        .args(["60", env!("CARGO_BIN_EXE_klad")])
        .args(arguments)
        .envs(variables.iter().copied())
        .output()
        .unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Ended { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
}

/// Creates a file of options, which is deleted with the directory.
fn file(text: &str) -> (TempDir, String) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("klad.toml");
    std::fs::write(&path, text).unwrap();
    let path = path.to_str().unwrap().to_owned();
    (directory, path)
}

/// Returns value and source of `option` as `config print` prints them.
fn printed(arguments: &[&str], variables: &[(&str, &str)], option: &str) -> (String, String) {
    let ended = klad(&[&["config", "print"], arguments].concat(), variables);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let line = ended.stdout.lines().find(|line| line.split_whitespace().next() == Some(option)).unwrap();
    let (value, source) = line[option.len()..].trim_start().split_once("  ").unwrap();
    (value.to_owned(), source.trim().to_owned())
}

#[test]
fn flag_overrides_environment_overrides_file_overrides_default() {
    let (_directory, path) = file("# comment\nqueue-limit = 3\n");
    let source = |line: &str| format!("{path} line {line}");
    let (with_file, variable) = (["--config", path.as_str()], [("KLAD_QUEUE_LIMIT", "2")]);
    let all = ["--config", path.as_str(), "--queue-limit", "1"];
    let said = |value: &str, source: &str| (value.to_owned(), source.to_owned());
    assert_eq!(printed(&[], &[], "queue-limit"), said("1024", "default"));
    assert_eq!(printed(&with_file, &[], "queue-limit"), said("3", &source("2")));
    assert_eq!(printed(&with_file, &variable, "queue-limit"), said("2", "KLAD_QUEUE_LIMIT"));
    assert_eq!(printed(&all, &variable, "queue-limit"), said("1", "command line"));
    // The file itself can be given like any other option.
    let named = [("KLAD_CONFIG", path.as_str())];
    assert_eq!(printed(&[], &named, "queue-limit"), said("3", &source("2")));
    assert_eq!(printed(&[], &named, "config"), said(&path, "KLAD_CONFIG"));
}

#[test]
fn a_server_uses_the_values_of_each_source() {
    let (_directory, path) = file("key-max = 3\nvalue-max = \"4B\"\nhead-max = \"2KiB\"\n");
    let server = ServerBuilder::new("memory").arg("--config", &path).env("KLAD_KEY_MAX", "2").start();
    let mut client = server.client();
    assert_eq!(client.put("/v0/entity?id=ab", b"1234").status, 201);
    assert_eq!(client.put("/v0/entity?id=abc", b"1").status, 414, "the environment goes before the file");
    assert_eq!(client.put("/v0/entity?id=ab", b"12345").status, 413, "the file goes before the default");
}

#[test]
fn a_file_takes_strings_numbers_and_booleans() {
    let (_directory, path) =
        file("admission = false\nmemory = 1_073_741_824\nvalue-max = '1MiB'\nqueue-target = \"7ms\"\n");
    let arguments = ["--config", path.as_str()];
    for (option, value) in
        [("admission", "off"), ("memory", "1073741824"), ("value-max", "1MiB"), ("queue-target", "7ms")]
    {
        assert_eq!(printed(&arguments, &[], option).0, value, "{option}");
    }
}

#[test]
fn unknown_options_are_rejected_with_a_suggestion() {
    for (text, words) in [
        ("queue-limt = 1\n", "line 1: there is no option queue-limt; did you mean queue-limit?"),
        ("\n\nqueue_limit = 1\n", "line 3: there is no option queue_limit; did you mean queue-limit?"),
        ("[queue]\nlimit = 1\n", "line 1: there is no option queue.limit; did you mean queue-limit?"),
        ("config = \"x\"\n", "line 1: there is no option config ["),
        ("zzzz = 1\n", "line 1: there is no option zzzz ["),
    ] {
        let (_directory, path) = file(text);
        let ended = klad(&["config", "check", "--config", &path], &[]);
        assert_eq!(ended.code, Some(78), "{text}: {}", ended.stderr);
        assert!(ended.stderr.contains(words) && ended.stderr.contains(&path), "{text}: {}", ended.stderr);
    }
    let ended = klad(&["config", "print"], &[("KLAD_QUEUELIMIT", "1")]);
    let expected =
        "klad: KLAD_QUEUELIMIT: there is no such option; did you mean KLAD_QUEUE_LIMIT? [bad-configuration]\n";
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(78), expected));
}

#[test]
fn variables_of_a_kubernetes_service_are_ignored() {
    let kubernetes = [
        ("KLAD_SERVICE_HOST", "10.0.0.11"),
        ("KLAD_SERVICE_PORT", "8080"),
        ("KLAD_SERVICE_PORT_HTTP", "8080"),
        ("KLAD_PORT", "tcp://10.0.0.11:8080"),
        ("KLAD_PORT_8080_TCP", "tcp://10.0.0.11:8080"),
        ("KLAD_PORT_8080_TCP_PROTO", "tcp"),
        ("KLAD_PORT_8080_TCP_PORT", "8080"),
        ("KLAD_PORT_8080_TCP_ADDR", "10.0.0.11"),
    ];
    let ended = klad(&["config", "check"], &kubernetes);
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""));
    // Twin: other variables are checked.
    assert_eq!(klad(&["config", "check"], &[("KLAD_PORT", "8080")]).code, Some(78));
}

#[test]
fn a_bad_value_is_reported_with_its_source() {
    let ended = klad(&["serve", "--queue-limit", "x"], &[]);
    assert_eq!(ended.code, Some(2));
    assert!(ended.stderr.contains("--queue-limit") && ended.stderr.contains("'x'"), "{}", ended.stderr);

    let directory = tempfile::tempdir().unwrap();
    let fresh = directory.path().join("data");
    let fresh = fresh.to_str().unwrap();
    for (variable, value, words) in [
        ("KLAD_QUEUE_LIMIT", "x", "KLAD_QUEUE_LIMIT=x: it must be a whole number"),
        ("KLAD_THREADS", "0", "KLAD_THREADS=0: 0 is not in 1..=999"),
        ("KLAD_MEMORY", "lots", "KLAD_MEMORY=lots: it must be a number of bytes or a size"),
        ("KLAD_DURABILITY", "perhaps", "KLAD_DURABILITY=perhaps: it must be one of: sync, async"),
        ("KLAD_HEAD_TIMEOUT", "0s", "KLAD_HEAD_TIMEOUT=0s: must be more than 0s"),
        ("KLAD_ENGINE", "", "KLAD_ENGINE=: it is empty"),
        // Each value is valid alone. The error names options, so it also has their sources.
        ("KLAD_KEY_MAX", "20KiB", "--key-max 20480 is more than 16384 bytes (--key-max is from KLAD_KEY_MAX)"),
        ("KLAD_ADMIN_LISTEN", "nowhere", "--admin-listen: \"nowhere\" is not an address"),
        ("KLAD_CONFIG", "/nowhere/klad.toml", "cannot read /nowhere/klad.toml"),
    ] {
        for command in [&["serve", "--data", fresh, "--listen", "127.0.0.1:0"][..], &["config", "check"]] {
            let ended = klad(command, &[(variable, value)]);
            assert_eq!(ended.code, Some(78), "{variable}: {}", ended.stderr);
            let is_last_word = ended.stderr.lines().count() == 1 && ended.stderr.ends_with(" [bad-configuration]\n");
            assert!(ended.stderr.contains(words) && is_last_word, "{variable}: {}", ended.stderr);
        }
    }
    assert!(!Path::new(fresh).exists(), "nothing was created");

    for (text, words) in [
        ("\nqueue-limit = \"x\"\n", "line 2: queue-limit = \"x\": it must be a whole number"),
        ("execution = \"fast\"\n", "line 1: execution = \"fast\": it must be one of: adaptive, inline, pool, stealing"),
        ("memory = 2001-01-01\n", "line 1: memory: a date is not the value"),
        ("memory = [1]\n", "line 1: memory: the option takes one value"),
        ("a = 1\nmemory 5\n", "line 2, column 8: "),
        ("memory = 1\nmemory = 2\n", "line 2, column 1: duplicate key"),
        ("head-max = 5\n", "(--head-max is from "),
    ] {
        let (_directory, path) = file(text);
        let ended = klad(&["config", "check", "--config", &path], &[]);
        assert_eq!(ended.code, Some(78), "{text}: {}", ended.stderr);
        let is_last_word = ended.stderr.lines().count() == 1 && ended.stderr.ends_with(" [bad-configuration]\n");
        assert!(
            ended.stderr.contains(words) && ended.stderr.contains(&path) && is_last_word,
            "{text}: {}",
            ended.stderr
        );
    }
    let (_directory, path) = file(&"#".repeat((1 << 20) + 1));
    let ended = klad(&["config", "check", "--config", &path], &[]);
    assert!(ended.stderr.contains("larger than 1048576 bytes"), "{}", ended.stderr);
}

#[test]
fn a_check_uses_neither_data_nor_ports() {
    let server = ServerBuilder::new("memory").start();
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("data");
    let address = server.address.to_string();
    let ended = klad(&["config", "check", "--listen", &address, "--data", data.to_str().unwrap()], &[]);
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(0), "the configuration is valid\n"), "{}", ended.stderr);
    assert!(!data.exists());
}

#[test]
fn the_json_of_print_has_values_sources_and_computed_defaults() {
    let (_directory, path) = file("scans-max = 9\n");
    let ended =
        klad(&["config", "print", "--json", "--config", &path, "--listen", "[::1]:0"], &[("KLAD_MEMORY", "1GiB")]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let document: Value = serde_json::from_str(&ended.stdout).unwrap();
    let option = |name: &str| {
        let options = document["options"].as_array().unwrap();
        options.iter().find(|option| option["name"] == name).unwrap().clone()
    };
    assert_eq!(
        (&option("listen")["value"], &option("listen")["source"]["kind"]),
        (&"[::1]:0".into(), &"command-line".into())
    );
    assert_eq!(option("memory")["source"], serde_json::json!({"kind": "environment", "variable": "KLAD_MEMORY"}));
    assert_eq!(option("scans-max")["source"], serde_json::json!({"kind": "file", "path": path, "line": 1}));
    assert_eq!(option("data")["source"], serde_json::json!({"kind": "default"}));
    let threads = option("threads");
    let cores = std::thread::available_parallelism().unwrap().get();
    assert!(threads["value"].is_null() && threads["effective"] == cores, "{threads}");
    assert!(option("connections-max")["effective"].is_u64(), "{document}");
    assert_eq!(document["memory"]["bodies"], (1_u64 << 30) / 8);
}

#[test]
fn every_option_can_be_a_variable() {
    let options = |variables: &[(&str, &str)]| {
        let document: Value = serde_json::from_str(&klad(&["config", "print", "--json"], variables).stdout).unwrap();
        document["options"].as_array().unwrap().clone()
    };
    let defaults: Vec<(String, String)> = options(&[])
        .iter()
        .filter_map(|option| Some((option["name"].as_str()?.to_owned(), option["value"].as_str()?.to_owned())))
        .collect();
    assert!(defaults.len() > 25, "{defaults:?}");
    let variables: Vec<_> = defaults
        .iter()
        .map(|(name, value)| (format!("KLAD_{}", name.to_uppercase().replace('-', "_")), value.as_str()))
        .collect();
    let variables: Vec<_> = variables.iter().map(|(name, value)| (name.as_str(), *value)).collect();
    for option in options(&variables).iter().filter(|option| !option["value"].is_null()) {
        let name = option["name"].as_str().unwrap();
        let value = defaults.iter().find(|(default, _)| default == name).map(|(_, value)| value.as_str());
        assert_eq!(
            (option["value"].as_str(), option["source"]["kind"].as_str()),
            (value, Some("environment")),
            "{name}"
        );
    }
}

#[test]
fn an_invalid_configuration_is_printed_before_the_error() {
    let ended = klad(&["config", "print"], &[("KLAD_MEMORY", "1MiB")]);
    assert_eq!(ended.code, Some(78));
    assert!(ended.stdout.contains("1MiB") && ended.stderr.contains("is from KLAD_MEMORY"), "{}", ended.stderr);
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Generates the page, or the example file.
fn generated(page: Option<&Path>) -> String {
    let mut arguments = vec!["config", "reference"];
    arguments.extend(page.iter().flat_map(|page| ["--page", page.to_str().unwrap()]));
    let ended = klad(&arguments, &[]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    ended.stdout
}

/// Returns the first line in which a document differs from the generated one.
fn outdated(document: &str, generated: &str) -> Option<String> {
    let lines = document.lines().map(Some).chain(std::iter::repeat(None));
    let pairs = lines.zip(generated.lines().map(Some).chain([None]));
    let differs = pairs.into_iter().find(|(is, should)| is != should);
    differs.map(|(is, should)| format!("{is:?} should be {should:?}; run make docs"))
}

// Without one of these engines its name and its options are missing from the generated text.
#[cfg(all(feature = "cassandra", feature = "fjall", feature = "rocksdb"))]
#[test]
fn the_generated_documents_are_up_to_date() {
    let page = root().join("docs/configuration.md");
    assert_eq!(outdated(&std::fs::read_to_string(&page).unwrap(), &generated(Some(&page))), None);
    let example = std::fs::read_to_string(root().join("deploy/klad.toml")).unwrap();
    assert_eq!(outdated(&example, &generated(None)), None);
}

#[test]
fn twin_a_changed_default_is_noticed() {
    let directory = tempfile::tempdir().unwrap();
    let page: PathBuf = directory.path().join("configuration.md");
    let text = generated(Some(&root().join("docs/configuration.md")));
    let changed = text.replacen("Default: `1024`.", "Default: `1025`.", 1);
    assert_ne!(text, changed);
    std::fs::write(&page, &changed).unwrap();
    let found = outdated(&changed, &generated(Some(&page))).expect("noticed");
    assert!(found.contains("`1025`") && found.contains("`1024`"), "{found}");
    let example = generated(None);
    let changed = example.replacen("#queue-limit = 1024", "#queue-limit = 1025", 1);
    assert!(outdated(&changed, &example).is_some_and(|found| found.contains("queue-limit = 1025")));
    let shorter = example.rsplit_once("\n#").unwrap().0;
    assert!(outdated(shorter, &example).is_some(), "a missing end");
}

/// Returns the example file with every key that has a value, uncommented.
fn uncommented(example: &str) -> (String, usize) {
    let mut keys = 0;
    let line = |line: &str| match line.strip_prefix('#') {
        Some(entry) if !entry.starts_with(' ') && !entry.is_empty() && !entry.ends_with('=') => {
            keys += 1;
            entry.to_owned()
        }
        _ => line.to_owned(),
    };
    let text = example.lines().map(line).collect::<Vec<_>>().join("\n");
    (text, keys)
}

#[test]
fn the_example_file_is_accepted_with_every_key() {
    let (text, keys) = uncommented(&generated(None));
    assert!(keys > 25, "{text}");
    let (_directory, path) = file(&text);
    let ended = klad(&["config", "check", "--config", &path], &[]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    // It contains the defaults.
    let values = |arguments: &[&str]| {
        let document: Value = serde_json::from_str(&klad(arguments, &[]).stdout).unwrap();
        let options = document["options"].as_array().unwrap().clone();
        options.into_iter().filter(|option| option["name"] != "config").map(|option| option["value"].clone()).collect()
    };
    let with: Vec<Value> = values(&["config", "print", "--json", "--config", &path]);
    assert_eq!(with, values(&["config", "print", "--json"]));
}
