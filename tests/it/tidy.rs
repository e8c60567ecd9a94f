//! Rules that the compiler does not check: imports point downwards, files are reachable and not too long, and
//! documents name only files that exist. The rules are data in this file.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Modules of each source directory in rows, from the top. A module imports only from rows below its own. The
/// compiler checks imports between crates.
const ROWS: &[(&str, &[&[&str]])] = &[
    (
        "src",
        &[
            &["main", "lib"],
            &["reference"],
            &["control", "exit", "manual"],
            &["settings"],
            &["config"],
            &["cli", "os"],
            &["cluster"],
            &["client", "offline"],
            &["disk"],
        ],
    ),
    (
        "crates/server/src",
        &[
            &["lib"],
            &["admin"],
            &["connection"],
            &["http"],
            &["exchange"],
            &["observe"],
            &["execution", "logs", "net"],
            &["request_metrics", "tokens"],
            &["limits"],
        ],
    ),
    (
        "crates/storage/src",
        &[
            &["lib"],
            &["cassandra", "delayed", "fjall", "memory", "rocksdb"],
            &["bulk_load"],
            &["maintenance"],
            &["page"],
            &["disk", "perf"],
            &["changes", "commits", "observation", "plan"],
            &["operation"],
            &["limits"],
        ],
    ),
    ("crates/base/src", &[&["lib"], &["sync"], &["metrics", "sampling"], &["clock", "os"], &["limits"]]),
];

/// Files that may contain unsafe code.
const UNSAFE: &[&str] = &[
    "crates/base/src/os/scheduler.rs",
    "crates/base/src/sampling/pthread.rs",
    "crates/base/src/sampling/ring.rs",
    "crates/base/src/sampling/signal.rs",
    "crates/base/src/sampling/timer.rs",
    "crates/base/src/sampling/walk.rs",
    "crates/bench/src/script.rs",
    "crates/profile/src/cpu_tests.rs",
    "crates/profile/src/locks/tests/answers.rs",
    "crates/profile/src/locks/tests/posix.rs",
    "src/main.rs",
];

/// Directories of the sources.
const SOURCES: &[&str] = &["src", "crates"];

/// Maximum number of lines of a file.
const LINES_MAX: usize = 600;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn files(below: &str, ending: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut open: Vec<PathBuf> = vec![root().join(below)];
    while let Some(directory) = open.pop() {
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                open.push(path);
            } else if path.extension().is_some_and(|extension| extension == ending) {
                let name = path.strip_prefix(root()).unwrap().to_str().unwrap().to_owned();
                found.push((name, std::fs::read_to_string(&path).unwrap()));
            }
        }
    }
    assert!(!found.is_empty(), "no .{ending} below {below}");
    found.sort();
    found
}

/// Returns the rows of the directory of `file`, and its module there.
fn place(file: &str) -> Option<(&'static [&'static [&'static str]], &str)> {
    ROWS.iter().find_map(|(directory, rows)| {
        let inside = file.strip_prefix(directory)?.strip_prefix('/')?;
        Some((*rows, inside.split(['/', '.']).next()?))
    })
}

/// Returns the modules that `text` names as `crate::x`.
fn imports(text: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (position, prefix) in text.match_indices("crate::") {
        let before = text[..position].chars().next_back();
        if before.is_some_and(|before| before.is_alphanumeric() || before == '_' || before == ':') {
            continue;
        }
        let after = &text[position + prefix.len()..];
        let names = after.strip_prefix('{').map_or(after, |list| list.split('}').next().unwrap());
        let list = if names.len() < after.len() { names.split(',').collect() } else { vec![names] };
        for name in list {
            let name: String = name.trim().chars().take_while(|c| c.is_ascii_lowercase() || *c == '_').collect();
            if !name.is_empty() {
                found.insert(name);
            }
        }
    }
    found
}

fn wrong_imports(file: &str, text: &str) -> Vec<String> {
    let Some((rows, own)) = place(file) else { return Vec::new() };
    let row = |module: &str| rows.iter().position(|row| row.contains(&module));
    let own_row = row(own).unwrap_or_else(|| panic!("{own} has no row in ROWS: add it"));
    imports(text)
        .into_iter()
        .filter(|name| name != own)
        .filter(|name| row(name).is_some_and(|its| its <= own_row && own != "main"))
        .collect()
}

#[test]
fn imports_point_down() {
    for below in SOURCES {
        for (file, text) in files(below, "rs") {
            // Imports of tests do not count.
            let text = text.split("#[cfg(test)]").next().unwrap();
            assert_eq!(wrong_imports(&file, text), Vec::<String>::new(), "{file} imports upwards or sideways");
        }
    }
}

#[test]
fn twin_an_upward_import_is_noticed() {
    let (storage, http) = ("crates/storage/src/disk/record.rs", "crates/server/src/http/mod.rs");
    assert_eq!(wrong_imports(storage, "use crate::rocksdb::Options;"), ["rocksdb"]);
    assert_eq!(wrong_imports(http, "fn f() { crate::connection::run() }"), ["connection"]);
    assert_eq!(wrong_imports(http, "use crate::{execution, admin};"), ["admin"]);
    assert!(wrong_imports(http, "use crate::execution::Executor; use crate::http::x;").is_empty());
}

/// Returns whether `text` names the crate, and not klad's own module of that name.
fn names_fjall(text: &str) -> bool {
    let own = ["storage::", "super::", "crate::"];
    text.match_indices("fjall::").any(|(position, _)| !own.iter().any(|own| text[..position].ends_with(own)))
}

#[test]
fn twin_a_file_that_names_the_fjall_crate_is_noticed() {
    assert!(names_fjall("use fjall::Database;") && names_fjall("let db: fjall::Database;"));
    assert!(!names_fjall("use klad_storage::fjall::FjallEngine;\nuse super::fjall::Options;\npub mod fjall;"));
}

#[test]
fn only_engines_name_their_crates_and_unsafe_code_is_only_in_listed_files() {
    let (rocksdb, fjall) = ("crates/storage/src/rocksdb/", "crates/storage/src/fjall/");
    let cassandra = "crates/storage/src/cassandra/";
    for below in SOURCES {
        for (file, text) in files(below, "rs") {
            assert!(!names_fjall(&text) || file.starts_with(fjall), "{file} names the fjall crate");
            assert!(!text.contains("rust_rocksdb") || file.starts_with(rocksdb), "{file} names the RocksDB crate");
            assert!(!text.contains("scylla::") || file.starts_with(cassandra), "{file} names the CQL driver");
            let has_unsafe = text.contains("unsafe {") || text.contains("unsafe fn") || text.contains("#[unsafe");
            assert!(!has_unsafe || UNSAFE.contains(&file.as_str()), "{file} has unsafe code");
        }
    }
    assert!(UNSAFE.iter().all(|file| root().join(file).exists()), "UNSAFE contains a file that does not exist");
}

#[test]
fn every_source_file_is_reachable_and_not_too_long() {
    for below in ["src", "crates", "tests", "xtask/src"] {
        let all = files(below, "rs");
        for (file, text) in &all {
            let lines = text.lines().count();
            assert!(lines <= LINES_MAX, "{file} has {lines} lines: split it");
            let path = Path::new(file);
            let stem = path.file_stem().unwrap().to_str().unwrap();
            if ["main", "lib"].contains(&stem) {
                continue;
            }
            let name = if stem == "mod" { path.parent().unwrap().file_name().unwrap().to_str().unwrap() } else { stem };
            let declaration = format!("mod {name};");
            assert!(all.iter().any(|(_, text)| text.contains(&declaration)), "{file} is not declared in any file");
        }
    }
}

#[test]
fn no_marks_of_unfinished_work_are_left() {
    // In two parts, so that this file is not found.
    let marks =
        [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X"), concat!("dbg", "!("), concat!("#[ig", "nore")];
    for below in ["src", "crates", "tests", "xtask/src"] {
        for (file, text) in files(below, "rs") {
            for mark in marks {
                assert!(!text.contains(mark), "{file} contains {mark}");
            }
        }
    }
}

/// Returns the words in backticks that look like files of this project.
fn named_files(document: &str) -> BTreeSet<String> {
    document
        .split('`')
        .skip(1)
        .step_by(2)
        .filter(|word| !word.contains(char::is_whitespace) && !word.contains(['<', '*', '$', '{']))
        .filter(|word| {
            let starts = ["src/", "crates/", "tests/", "docs/", "xtask/", "tools/", "deploy/", ".ci/", ".cargo/"];
            let top = [
                "README.md",
                "ARCHITECTURE.md",
                "CONTRIBUTING.md",
                "CHANGELOG.md",
                "LICENSE",
                "Makefile",
                "Cargo.toml",
            ];
            starts.iter().any(|start| word.starts_with(start)) || top.contains(word)
        })
        .map(str::to_owned)
        .collect()
}

#[test]
fn documents_name_only_files_that_exist() {
    let mut documents = files("docs", "md");
    for name in ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"] {
        documents.push((name.to_owned(), std::fs::read_to_string(root().join(name)).unwrap()));
    }
    let mut named = 0;
    for (document, text) in documents {
        for file in named_files(&text) {
            assert!(root().join(&file).exists(), "{document} names {file}, which does not exist");
            named += 1;
        }
    }
    assert!(named > 20, "only {named} file names were found");
}

/// Lines of a document that are longer than a reader's window, by number. A row of a table cannot be broken.
fn long_lines(document: &str) -> Vec<usize> {
    let is_long = |line: &str| line.chars().count() > 120 && !line.trim_start().starts_with('|');
    document.lines().enumerate().filter(|(_, line)| is_long(line)).map(|(index, _)| index + 1).collect()
}

#[test]
fn lines_of_documents_have_at_most_120_characters() {
    let mut documents = files("docs", "md");
    for name in ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"] {
        documents.push((name.to_owned(), std::fs::read_to_string(root().join(name)).unwrap()));
    }
    for (document, text) in documents {
        assert_eq!(long_lines(&text), Vec::<usize>::new(), "{document} has lines of more than 120 characters");
    }
}

#[test]
fn twin_a_long_line_is_noticed() {
    let (long, row) = ("x".repeat(121), format!("| {} |", "x".repeat(121)));
    assert_eq!(long_lines(&format!("short\n{long}\n{row}\n")), [2]);
}

#[test]
fn twin_a_missing_file_is_noticed() {
    let named = named_files("see `src/nowhere.rs` and `src/<module>` and `cargo test`");
    assert_eq!(named.into_iter().collect::<Vec<_>>(), ["src/nowhere.rs"]);
}

#[test]
fn every_option_is_documented() {
    options_are_documented("serve", "docs/configuration.md");
    options_are_documented("bench", "docs/bench.md");
}

#[test]
fn the_schemas_in_the_documents_are_up_to_date() {
    for (command, document) in
        [("bench --json-schema", "docs/bench.schema.json"), ("lab schema", "docs/lab.schema.json")]
    {
        let printed = std::process::Command::new(env!("CARGO_BIN_EXE_klad")).args(command.split(' ')).output().unwrap();
        let text = std::fs::read_to_string(root().join(document)).unwrap();
        let is_same = String::from_utf8(printed.stdout).unwrap() == text;
        assert!(is_same, "{document} is out of date; run: klad {command} > {document}");
    }
}

fn options_are_documented(subcommand: &str, document_path: &str) {
    let help = std::process::Command::new(env!("CARGO_BIN_EXE_klad")).args([subcommand, "--help"]).output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    let document = std::fs::read_to_string(root().join(document_path)).unwrap();
    let options: Vec<_> = help
        .split_whitespace()
        .filter_map(|word| word.strip_prefix("--"))
        .map(|option| option.trim_end_matches([',', ';', '.', ':', ']']))
        .filter(|option| *option != "help" && *option != "help'")
        .collect();
    assert!(options.len() > 15, "{options:?}");
    for option in options {
        assert!(document.contains(&format!("`--{option}")), "{document_path} does not explain --{option}");
    }
}
