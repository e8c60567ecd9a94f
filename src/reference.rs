//! Generated documents: the marked blocks of docs/configuration.md, and deploy/klad.toml. They are made from the
//! definitions of options and exit codes.
//!
//! ```text
//!   <!-- generated: options: Memory -->     the options under one heading of `klad serve --help`
//!   <!-- generated: options -->             the options of all headings without their own block
//!   <!-- generated: exit codes -->
//!   ...
//!   <!-- end of generated -->
//! ```
//!
//! The text between the blocks is written by hand. Called by `main` for `klad config reference`, which `make docs`
//! runs.

use std::fmt::Write as _;

use crate::exit::Exit;
use crate::settings::{Definitions, Kind, LIVE, Opt, variable};

const BEGIN: &str = "<!-- generated: ";
const BEGIN_END: &str = " -->";
const END: &str = "<!-- end of generated -->";
const OPTIONS: &str = "options";
const OPTIONS_OF: &str = "options: ";
const EXIT_CODES: &str = "exit codes";

/// Why a page cannot be generated.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum Error {
    /// A block has no end.
    #[error("the block {0:?} has no line {END:?}")]
    NoEnd(String),
    /// A block has an unknown name.
    #[error("nothing is generated for {0:?}")]
    UnknownBlock(String),
}

/// Returns `page` with its blocks generated anew.
///
/// # Errors
/// [`Error`].
pub fn page(page: &str) -> Result<String, Error> {
    let definitions = Definitions::of_serve();
    let blocks: Vec<&str> = page.lines().filter_map(block).collect();
    let mut text = String::new();
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        let _ = writeln!(text, "{line}");
        let Some(name) = block(line) else { continue };
        text.push_str(&content(name, &blocks, &definitions)?);
        if !lines.by_ref().any(|line| line == END) {
            return Err(Error::NoEnd(name.to_owned()));
        }
        let _ = writeln!(text, "{END}");
    }
    Ok(text)
}

fn block(line: &str) -> Option<&str> {
    line.strip_prefix(BEGIN)?.strip_suffix(BEGIN_END)
}

fn content(name: &str, blocks: &[&str], definitions: &Definitions) -> Result<String, Error> {
    let headings = headings(definitions);
    if name == EXIT_CODES {
        return Ok(exit_codes());
    }
    if name == OPTIONS {
        let is_elsewhere = |heading: &str| blocks.contains(&format!("{OPTIONS_OF}{heading}").as_str());
        let mut text = String::new();
        for heading in headings.iter().filter(|heading| !is_elsewhere(heading)) {
            let _ = write!(text, "\n## {heading}\n{}", options(heading, definitions));
        }
        return Ok(text + "\n");
    }
    match name.strip_prefix(OPTIONS_OF) {
        Some(heading) if headings.contains(&heading) => Ok(options(heading, definitions) + "\n"),
        _ => Err(Error::UnknownBlock(name.to_owned())),
    }
}

fn headings(definitions: &Definitions) -> Vec<&str> {
    let mut headings: Vec<&str> = Vec::new();
    for option in definitions.iter().filter(|option| !option.is_hidden()) {
        if !headings.contains(&option.heading()) {
            headings.push(option.heading());
        }
    }
    headings
}

fn options(heading: &str, definitions: &Definitions) -> String {
    let shown = definitions.iter().filter(|option| option.heading() == heading && !option.is_hidden());
    shown.map(section).collect()
}

fn section(option: Opt<'_>) -> String {
    let facts = Facts::of(option);
    let mut text = format!("\n### `{}`\n\n", option.usage());
    let range = facts.range.as_ref().map_or_else(String::new, |range| format!("Range: {range}. "));
    let file = match option.name() {
        "config" => "Not in the file.".to_owned(),
        name => format!("File: `{name}`."),
    };
    let variable = variable(option.name());
    text += &wrapped("", &format!("Default: {}. {range}Environment: `{variable}`. {file}", facts.default));
    if LIVE.contains(&option.name()) {
        let _ = writeln!(text, "Changes while klad runs.");
    }
    let choices = option.choices();
    for (number, paragraph) in facts.paragraphs.iter().enumerate() {
        let _ = write!(text, "\n{}", wrapped("", &linked(paragraph)));
        if number == 0 && !choices.is_empty() {
            text.push('\n');
            for (name, meaning) in &choices {
                let _ = writeln!(text, "* `{name}`: {}", uncapitalised(meaning));
            }
        }
    }
    text
}

/// The parts of an option's description.
struct Facts {
    /// The paragraphs without the range and without a computed default.
    paragraphs: Vec<String>,
    default: String,
    range: Option<String>,
    /// The default in the syntax of the file; `None` if it is computed at start.
    example: Option<String>,
}

impl Facts {
    fn of(option: Opt<'_>) -> Facts {
        let mut paragraphs = option.paragraphs();
        let first = paragraphs[0].trim_end_matches('.').to_owned();
        let (first, computed) = match first.strip_suffix(']').and_then(|text| text.rsplit_once(" [default: ")) {
            Some((before, default)) => (before.to_owned(), Some(default.to_owned())),
            None => (first, None),
        };
        paragraphs[0] = first + ".";
        let range =
            paragraphs.iter().find_map(|text| text.strip_prefix("Range: ")).map(|range| range.trim_end_matches('.'));
        let range = range.map(str::to_owned);
        paragraphs.retain(|text| !text.starts_with("Range: "));
        let value = option.default_value();
        let example = value.as_deref().map(|value| toml_value(option, value));
        let default = match (&value, computed) {
            (Some(value), _) => format!("`{value}`"),
            (None, Some(computed)) => computed,
            (None, None) => "none".to_owned(),
        };
        Facts { paragraphs, default, range, example }
    }
}

fn toml_value(option: Opt<'_>, value: &str) -> String {
    match option.kind() {
        Kind::Number | Kind::Switch => value.to_owned(),
        Kind::OnOff => (value == "on").to_string(),
        Kind::Size | Kind::Time | Kind::Text => format!("{value:?}"),
    }
}

/// Replaces words such as `docs/execution.md` by links from a page in docs/.
fn linked(paragraph: &str) -> String {
    let link = |word: &str| {
        let name = word.trim_end_matches(['.', ',', ';', ')']);
        let rest = &word[name.len()..];
        match name.strip_prefix("docs/") {
            Some(page) => format!("[{page}]({page}){rest}"),
            None => word.to_owned(),
        }
    };
    paragraph.split(' ').map(link).collect::<Vec<_>>().join(" ")
}

fn uncapitalised(sentence: &str) -> String {
    let mut letters = sentence.chars();
    // Names stay as they are: RocksDB, TLS.
    match (letters.next(), letters.as_str()) {
        (Some(first), rest) if !rest.starts_with("ocksDB") && !rest.starts_with(char::is_uppercase) => {
            first.to_lowercase().chain(rest.chars()).collect()
        }
        _ => sentence.to_owned(),
    }
}

fn exit_codes() -> String {
    let mut text = "\n| Code | Word | Means |\n|---|---|---|\n".to_owned();
    for exit in Exit::ALL {
        let _ = writeln!(text, "| {} | `{}` | {} |", exit.code(), exit.word(), exit.meaning());
    }
    text + "\n"
}

/// Returns the text of `deploy/klad.toml`: every key with its default, commented out.
#[must_use]
pub fn example_file() -> String {
    let definitions = Definitions::of_serve();
    let mut text = "# Options of `klad serve`, for --config or KLAD_CONFIG. Each key is commented out and has its default: to\n\
                    # change one, remove its #. The command line and the environment override this file.\n\
                    # `klad config check --config FILE` checks it, `klad config print --config FILE` prints the values in\n\
                    # use. Generated by `make docs`; see also docs/configuration.md.\n"
        .to_owned();
    for heading in headings(&definitions) {
        let keys = definitions.iter().filter(|option| option.heading() == heading && !option.is_hidden());
        let keys: Vec<_> = keys.filter(|option| option.name() != "config").collect();
        if keys.is_empty() {
            continue;
        }
        let _ = writeln!(text, "\n# --- {heading} {}", "-".repeat(110 - heading.chars().count()));
        for option in keys {
            text.push_str(&entry(option));
        }
    }
    text
}

fn entry(option: Opt<'_>) -> String {
    let facts = Facts::of(option);
    let mut words = facts.paragraphs[0].clone();
    let choices: Vec<String> = option.choices().into_iter().map(|(name, _)| name).collect();
    if option.kind() == Kind::Text && !choices.is_empty() {
        let _ = write!(words, " One of: {}.", choices.join(", "));
    }
    if let Some(range) = &facts.range {
        let _ = write!(words, " Range: {range}.");
    }
    if facts.example.is_none() {
        let _ = write!(words, " Default: {}.", facts.default);
    }
    let key = match &facts.example {
        Some(value) => format!("#{} = {value}\n", option.name()),
        // The line has no value, because a value would look like the default.
        None => format!("#{} =\n", option.name()),
    };
    format!("\n{}{key}", wrapped("# ", &words))
}

/// Returns `text` in lines of at most 118 characters that begin with `mark`.
fn wrapped(mark: &str, text: &str) -> String {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= 118 => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(format!("{mark}{word}")),
        }
    }
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_generated_anew_and_other_text_stays() {
        let before = "one\n<!-- generated: exit codes -->\nold\n<!-- end of generated -->\ntwo\n";
        let after = page(before).expect("well-formed");
        assert!(after.starts_with("one\n") && after.ends_with("two\n") && !after.contains("old"), "{after}");
        assert!(after.contains("| 69 | `port-in-use` |"), "{after}");
        assert_eq!(page(&after).expect("well-formed"), after);
        assert_eq!(page("<!-- generated: exit codes -->\n"), Err(Error::NoEnd("exit codes".to_owned())));
        let unknown = "options: Weather";
        let text = format!("<!-- generated: {unknown} -->\n<!-- end of generated -->\n");
        assert_eq!(page(&text), Err(Error::UnknownBlock(unknown.to_owned())));
    }

    #[test]
    fn every_option_is_on_a_page_with_a_block_for_the_rest() {
        let text = page("<!-- generated: options -->\n<!-- end of generated -->\n").expect("well-formed");
        for option in Definitions::of_serve().iter().filter(|option| !option.is_hidden()) {
            assert!(text.contains(&format!("### `{}`\n", option.usage())), "{}", option.name());
        }
    }

    #[test]
    fn documents_become_links() {
        assert_eq!(linked("See docs/execution.md."), "See [execution.md](execution.md).");
    }
}
