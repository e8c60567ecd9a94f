//! Tests of `settings` without a process: precedence of sources, differences, and ranges in help texts.

use clap::CommandFactory as _;

use crate::cli::Cli;
use crate::settings::*;

fn command_line(arguments: &[&str]) -> CommandLine {
    let all = ["klad", "serve"].into_iter().chain(arguments.iter().copied());
    let matches = Cli::command().try_get_matches_from(all).expect("valid");
    CommandLine::of(matches.subcommand().expect("serve").1)
}

fn resolved(arguments: &[&str], environment: &[(&str, &str)]) -> Resolved {
    let environment = environment.iter().map(|(name, value)| (OsString::from(name), OsString::from(value)));
    resolve(&command_line(arguments), environment).expect("valid")
}

fn setting<'r>(resolved: &'r Resolved, name: &str) -> &'r Setting {
    resolved.settings().iter().find(|setting| setting.name == name).expect("an option")
}

#[test]
fn equal_values_in_different_units_do_not_differ() {
    let before = resolved(&["--queue-age-max", "1s", "--memory", "1GiB"], &[]);
    let after = resolved(&["--queue-age-max", "1000ms"], &[("KLAD_MEMORY", "1024MiB"), ("KLAD_QUEUE_LIMIT", "7")]);
    let differences = before.differences(&after);
    let names: Vec<_> = differences.iter().map(|difference| difference.after.name.as_str()).collect();
    assert_eq!(names, ["queue-limit"]);
    assert_eq!(differences[0].before.value.as_deref(), Some("1024"));
    assert_eq!(differences[0].after.value.as_deref(), Some("7"));
    assert_eq!(after.args().queue_limit, 7);
}

#[test]
fn values_reach_the_program_with_their_sources() {
    let resolved = resolved(&["--data=-d"], &[("KLAD_ADMISSION", "false"), ("KLAD_DRAIN_TIMEOUT", "0s")]);
    assert_eq!(resolved.args().data, PathBuf::from("-d"));
    assert_eq!(resolved.args().admission, crate::cli::SwitchName::Off);
    assert_eq!(setting(&resolved, "data").source, Source::CommandLine);
    let variable = "KLAD_DRAIN_TIMEOUT".to_owned();
    assert_eq!(setting(&resolved, "drain-timeout").source, Source::Environment { variable });
    assert_eq!(setting(&resolved, "memory").value, None);
}

#[test]
fn every_live_option_exists() {
    for name in LIVE {
        assert!(Definitions::of_serve().iter().any(|option| option.name() == *name), "{name}");
    }
}

proptest::proptest! {
    #[test]
    fn no_text_makes_the_file_parser_panic(text in "(?s)([a-z-]{0,12}( = |=|\\[|\\.)[\\[{\"'a-zä0-9.,\\]}-]{0,8}\n?){0,5}.{0,20}") {
        // The result is values, or an error that names the file.
        if let Err(error) = file::parse(&text, "klad.toml".as_ref(), &Definitions::of_serve()) {
            proptest::prop_assert!(error.to_string().starts_with("klad.toml line "), "{}", error);
        }
    }
}

/// Returns the range in the help text of an option, if it is a range of plain numbers.
fn documented_range(option: Opt<'_>) -> Option<(u64, u64)> {
    let paragraphs = option.paragraphs();
    let range = paragraphs.iter().find_map(|text| text.strip_prefix("Range: "))?;
    let (low, high) = range.trim_end_matches('.').split_once(" to ")?;
    let number = |text: &str| text.replace(',', "").parse().ok();
    Some((number(low)?, number(high)?))
}

/// Returns the values for which the option contradicts the given range.
fn wrong_range(option: Opt<'_>, (low, high): (u64, u64)) -> Vec<String> {
    let accepts = |number: u64| option.checked(&[number.to_string().into()]).is_ok();
    let expected = [(low, true), (high, true), (low.wrapping_sub(1), false), (high + 1, false)];
    let wrong = expected.into_iter().filter(|(number, should)| accepts(*number) != *should);
    wrong.map(|(number, _)| format!("--{} {number}", option.name())).collect()
}

#[test]
fn ranges_in_help_texts_are_the_accepted_ones() {
    let definitions = Definitions::of_serve();
    let mut checked = 0;
    for option in definitions.iter().filter(|option| option.kind() == Kind::Number) {
        let range = documented_range(option).unwrap_or_else(|| panic!("--{} documents no range", option.name()));
        assert_eq!(wrong_range(option, range), Vec::<String>::new());
        checked += 1;
    }
    assert!(checked > 5, "{checked}");
    // Twin: a wrong range is found.
    let threads = definitions.iter().find(|option| option.name() == "threads").expect("an option");
    assert_eq!(wrong_range(threads, (1, 998)), ["--threads 999"]);
}
