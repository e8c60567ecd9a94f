//! Completions and manual pages: shells load them, viewers render them, and they are complete.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use super::support::command::Klad;

fn text(arguments: &str) -> String {
    String::from_utf8(Klad::new(arguments).succeeds()).unwrap()
}

/// Returns whether this machine has a program, and prints a line if not.
fn there_is(program: &str) -> bool {
    let there = Command::new("sh").args(["-c", &format!("command -v {program}")]).output().unwrap().status.success();
    if !there {
        println!("{program} is not installed: its checks are skipped");
    }
    there
}

/// Runs a program with `input`. Returns its output and its error output.
fn run(program: &str, arguments: &[&str], input: &[u8]) -> (String, String) {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let binary = Path::new(env!("CARGO_BIN_EXE_klad")).parent().unwrap();
    let path = format!("{}:{}", binary.display(), std::env::var("PATH").unwrap());
    let mut child = command.env("PATH", path).env("LC_ALL", "C.UTF-8").spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_vec();
    let writer = std::thread::spawn(move || drop(stdin.write_all(&input)));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    let said = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    (said(output.stdout), said(output.stderr))
}

/// Returns the commands that the help lists.
fn commands() -> Vec<String> {
    let help = text("--help");
    let list = help.split("Commands:\n").nth(1).unwrap();
    let lines = list.lines().take_while(|line| !line.is_empty());
    let names = lines.filter(|line| !line.starts_with("   ")).filter_map(|line| line.split_whitespace().next());
    let names: Vec<_> = names.map(str::to_owned).collect();
    assert!(names.len() >= 8 && names.contains(&"serve".to_owned()), "{names:?}");
    names
}

/// Returns the long options of a command.
fn options(command: &str) -> Vec<String> {
    let help = text(&format!("{command} --help"));
    let lines = help.lines().map(str::trim_start).filter(|line| line.starts_with('-'));
    let words = lines.flat_map(str::split_whitespace).filter(|word| word.starts_with("--"));
    words.map(|word| word.trim_end_matches([',', '.', ';', ':']).to_owned()).collect()
}

/// Returns the commands and options that `text` does not contain.
fn missing(text: &str) -> Vec<String> {
    let plain = text.replace('\\', "");
    let all = commands().into_iter().chain(commands().into_iter().flat_map(|command| options(&command)));
    all.filter(|name| !plain.contains(name.trim_start_matches("--"))).collect()
}

#[test]
fn completions_name_every_command_and_every_option() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        assert_eq!(missing(&text(&format!("completions {shell}"))), Vec::<String>::new(), "{shell}");
    }
}

#[test]
fn twin_a_missing_command_is_noticed() {
    let bash = text("completions bash");
    let without = bash.replace("scan", "").replace("key-hex", "");
    assert!(missing(&without).contains(&"scan".to_owned()));
    assert!(missing(&without).contains(&"--key-hex".to_owned()));
}

#[test]
fn bash_loads_its_completions_and_completes() {
    let (said, complaint) = run("bash", &["-c", "source <(klad completions bash) && complete -p klad"], b"");
    assert!(said.contains("klad") && said.starts_with("complete ") && complaint.is_empty(), "{said} {complaint}");
    // What bash does for the tab key after `klad sc` and after `klad put --key`.
    let script = r#"
        source <(klad completions bash)
        ask() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=(); _klad klad "${COMP_WORDS[-1]}" "${COMP_WORDS[-2]}"; echo "${COMPREPLY[@]}"; }
        ask klad sc
        ask klad put --key
        ask klad completions z
    "#;
    let (said, complaint) = run("bash", &["-c", script], b"");
    assert_eq!((said.as_str(), complaint.as_str()), ("scan\n--key-hex --key-base64\nzsh\n", ""));
}

#[test]
fn other_installed_shells_load_their_completions() {
    if there_is("zsh") {
        let script = "autoload -U compinit && compinit -u -D && source <(klad completions zsh) && echo ${_comps[klad]}";
        assert_eq!(run("zsh", &["-f", "-c", script], b""), ("_klad\n".to_owned(), String::new()));
    }
    if there_is("fish") {
        let script = "klad completions fish | source; complete -C 'klad sc'";
        let (said, complaint) = run("fish", &["--no-config", "-c", script], b"");
        assert!(said.starts_with("scan\t") && complaint.is_empty(), "{said} {complaint}");
    }
}

#[test]
fn every_command_has_a_page_that_renders_and_names_its_options() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path().to_str().unwrap();
    Klad::new("man --dir").arg(at).succeeds();
    let names = commands();
    let files = std::fs::read_dir(at).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let files: Vec<_> = files.collect();
    for name in &names {
        assert!(files.contains(&format!("klad-{name}.1")), "{files:?}");
    }
    let readers = [("groff", &["-Kutf8", "-man", "-Tutf8", "-ww", "-rHY=0"][..]), ("mandoc", &["-W", "warning"])];
    let readers: Vec<_> = readers.into_iter().filter(|(reader, _)| there_is(reader)).collect();
    for file in files {
        let name = file.strip_prefix("klad").unwrap().strip_suffix(".1").unwrap().replace('-', " ");
        let page = std::fs::read(directory.path().join(&file)).unwrap();
        assert_eq!(page, Klad::new(&format!("man {name}")).succeeds());
        for (reader, arguments) in &readers {
            let (rendered, complaint) = run(reader, arguments, &page);
            // The page has no date on purpose, and extra blank lines do not matter.
            let known = ["missing date", "skipping paragraph macro", "see above the output"];
            let faults = complaint.lines().filter(|line| !known.iter().any(|known| line.contains(known)));
            assert_eq!(faults.collect::<Vec<_>>(), Vec::<&str>::new(), "{reader} {file}");
            // Some viewers print bold characters twice, with a backspace between.
            assert!(
                rendered.contains("S\u{8}SY\u{8}Y") || rendered.contains("SYNOPSIS"),
                "{reader} {file}: {rendered}"
            );
        }
        let plain = String::from_utf8(page).unwrap().replace('\\', "");
        for option in options(&name) {
            assert!(plain.contains(&option), "{file} does not name {option}");
        }
    }
    let main = std::fs::read_to_string(directory.path().join("klad.1")).unwrap();
    assert!(main.contains("KLAD_URL") && main.contains(env!("CARGO_PKG_VERSION")));
    assert_eq!(text("--version"), format!("klad {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn errors_name_the_command_or_the_directory() {
    assert!(Klad::new("man nothing").fails(1).contains("nothing"));
    assert!(Klad::new("man --dir /nowhere/at/all").fails(1).contains("/nowhere/at/all"));
    assert_eq!(Klad::new("completions tcsh").run().code, Some(2));
}
