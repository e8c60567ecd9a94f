//! Where options come from: the command line, before the environment, before a file, before the defaults, under one spelling.
//!
//! ```text
//!   --queue-limit 9  ─▶ ┐
//!   KLAD_QUEUE_LIMIT ─▶ ├─▶ one source for each option ─▶ a command line of all of them ─▶ clap ─▶ ServeArgs ─▶ Config
//!   queue-limit = 9  ─▶ ┘
//! ```
//!
//! clap's definition of [`ServeArgs`] is the only list of options: a new one has its variable and its key by itself. A value
//! is checked where it comes from, so that an error names that place.
//!
//! Called by `main`, at start and whenever the configuration is to be read again, and by `reference`.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::path::PathBuf;

use clap::parser::ValueSource;
use clap::{ArgMatches, FromArgMatches as _};

use crate::cli::ServeArgs;
use crate::config::{self, Config, LaidOut};
use klad_server::net::listen;

mod definitions;
mod environment;
mod file;
mod print;

pub use definitions::{Definitions, Kind, Opt};
pub use environment::variable;
pub use print::{json, text};

/// Options that a running klad takes up when its configuration is read again; all others need a restart.
pub const LIVE: &[&str] = &[
    "access-log",
    "body-rate-min",
    "body-timeout",
    "connections-max",
    "connections-per-peer",
    "disk-reserve",
    "drain-delay",
    "drain-timeout",
    "durability",
    "head-max",
    "head-timeout",
    "idle-timeout",
    "key-max",
    "log-level",
    "operations-max",
    "queue-age-max",
    "queue-limit",
    "queue-target",
    "scans-max",
    "slow-request",
    "turn-max",
    "value-max",
    "write-timeout",
];

/// What was on the command line, to be asked again at each [`load`].
#[derive(Clone, Debug, Default)]
pub struct CommandLine(BTreeMap<String, Vec<OsString>>);

/// Where a value comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// The command line.
    CommandLine,
    /// The environment.
    Environment {
        /// Such as `KLAD_QUEUE_LIMIT`.
        variable: String,
    },
    /// The file.
    File {
        /// As it was named.
        path: PathBuf,
        /// From 1.
        line: usize,
    },
    /// The admin listener, while klad serves.
    Admin,
    /// The program.
    Default,
}

/// One option's value.
#[derive(Clone, Debug)]
pub struct Setting {
    /// Such as `queue-limit`.
    pub name: String,
    /// As it was written, several joined by commas; `None`: nothing was given, and what follows from that is computed at start.
    pub value: Option<String>,
    /// Where the value was found.
    pub source: Source,
    /// Whether a running klad takes a new value up.
    pub live: bool,
    /// In a form that is the same for equal values, so that 1s and 1000ms do not differ.
    comparable: Option<String>,
    /// As the command line would have it; none: the default.
    words: Vec<OsString>,
}

/// The values of all options, and where each comes from.
#[derive(Clone, Debug)]
pub struct Resolved {
    settings: Vec<Setting>,
    args: ServeArgs,
}

/// An option whose value is not what it was.
#[derive(Clone, Debug)]
pub struct Difference<'r> {
    /// What it was.
    pub before: &'r Setting,
    /// What it is.
    pub after: &'r Setting,
}

/// Why there is no configuration.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A variable that is not an option.
    #[error("{variable}: there is no such option{}", hint(suggestion.as_deref()))]
    UnknownVariable {
        /// Its name.
        variable: String,
        /// The name that was meant, perhaps.
        suggestion: Option<String>,
    },
    /// A name that is not an option.
    #[error("there is no option {name}{}", hint(suggestion.as_deref()))]
    UnknownOption {
        /// As it was given.
        name: String,
        /// The name that was meant, perhaps.
        suggestion: Option<String>,
    },
    /// A key that is not an option.
    #[error("{} line {line}: there is no option {key}{}", path.display(), hint(suggestion.as_deref()))]
    UnknownKey {
        /// The file.
        path: PathBuf,
        /// From 1.
        line: usize,
        /// As it is written.
        key: String,
        /// The name that was meant, perhaps.
        suggestion: Option<String>,
    },
    /// A value that the option does not take.
    #[error("{place}: {problem}")]
    BadValue {
        /// Where it stands, and what it is.
        place: String,
        /// What is wrong with it.
        problem: String,
    },
    /// The file cannot be read.
    #[error("cannot read {}: {cause}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The kernel's answer.
        cause: std::io::Error,
    },
    /// The file is no TOML.
    #[error("{} line {line}, column {column}: {problem}", path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// From 1.
        line: usize,
        /// From 1, in characters.
        column: usize,
        /// The parser's words.
        problem: String,
    },
    /// Values that are each right, but not together.
    #[error("{0}")]
    Together(String),
    /// Values that `config` refuses.
    #[error("{problem}{origins}")]
    Impossible {
        /// Which, and why.
        problem: config::Error,
        /// Where those come from that are not from the command line.
        origins: String,
    },
    /// An address that is none.
    #[error("--{option}: {problem}{origins}")]
    Address {
        /// Without the dashes.
        option: &'static str,
        /// What is wrong with it.
        problem: listen::Error,
        /// Where it comes from, if not from the command line.
        origins: String,
    },
}

fn hint(suggestion: Option<&str>) -> String {
    suggestion.map_or_else(String::new, |name| format!("; did you mean {name}?"))
}

impl CommandLine {
    /// What `matches` of `klad serve`, or of another subcommand with its options, has from the command line.
    #[must_use]
    pub fn of(matches: &ArgMatches) -> CommandLine {
        let mut given = BTreeMap::new();
        for option in Definitions::of_serve().iter() {
            if matches.value_source(option.id()) != Some(ValueSource::CommandLine) {
                continue;
            }
            let values: Vec<_> = matches.get_raw(option.id()).into_iter().flatten().map(OsStr::to_owned).collect();
            let switched = option.is_switch() && values.is_empty();
            given.insert(option.name().to_owned(), if switched { vec!["true".into()] } else { values });
        }
        CommandLine(given)
    }
}

/// Looks for the value of every option: on the command line, in the environment, in the file, among the defaults.
///
/// # Errors
/// [`Error`]; it names the place that is wrong.
pub fn load(command_line: &CommandLine) -> Result<Resolved, Error> {
    resolve(command_line, std::env::vars_os())
}

/// Checks all that can be checked without the data directory and without listening; reads the files of tokens and certificates.
///
/// # Errors
/// [`Error::Impossible`] or [`Error::Address`].
pub fn check(resolved: &Resolved) -> Result<Config, Error> {
    let config = Config::new(resolved.args().clone()).map_err(|problem| resolved.impossible(problem))?;
    for (option, address) in [("listen", &config.listen), ("admin-listen", &config.admin_listen)] {
        listen::resolve(address).map_err(|problem| {
            let origins = resolved.origins_of_options_in(&format!("--{option}"));
            Error::Address { option, problem, origins }
        })?;
    }
    Ok(config)
}

/// What of it may change while klad serves, in the memory that was `laid_out` at its start; reads no file.
///
/// # Errors
/// [`Error::Impossible`].
pub fn check_live(resolved: &Resolved, laid_out: Option<&LaidOut>) -> Result<config::Live, Error> {
    config::Live::new(resolved.args(), laid_out).map_err(|problem| resolved.impossible(problem))
}

fn resolve(
    CommandLine(given): &CommandLine,
    environment: impl Iterator<Item = (OsString, OsString)>,
) -> Result<Resolved, Error> {
    let definitions = Definitions::of_serve();
    let mut environment = environment::read(&definitions, environment)?;
    let path = given.get(file::OPTION).and_then(|values| values.first()).or_else(|| environment.get(file::OPTION));
    let mut file = path.map_or_else(|| Ok(BTreeMap::new()), |path| file::read(PathBuf::from(path), &definitions))?;
    let mut settings = Vec::new();
    for option in definitions.iter() {
        let (source, values) = if let Some(values) = given.get(option.name()) {
            (Source::CommandLine, values.clone())
        } else if let Some(value) = environment.remove(option.name()) {
            let source = Source::Environment { variable: variable(option.name()) };
            (source, option.checked(&[value]).map_err(|(value, problem)| bad_variable(option, &value, problem))?)
        } else if let Some((source, values)) = file.remove(option.name()) {
            let place = format!("{source}: {}", option.name());
            let values = option
                .checked(&values)
                .map_err(|(value, problem)| Error::BadValue { place: format!("{place} = {value:?}"), problem })?;
            (source, values)
        } else {
            (Source::Default, Vec::new())
        };
        settings.push(Setting::new(option, values, source));
    }
    Resolved::new(definitions, settings)
}

fn bad_variable(option: Opt<'_>, value: &str, problem: String) -> Error {
    Error::BadValue { place: format!("{}={value}", variable(option.name())), problem }
}

impl Setting {
    fn new(option: Opt<'_>, words: Vec<OsString>, source: Source) -> Setting {
        let joined = |values: &[OsString]| values.join(OsStr::new(",")).to_string_lossy().into_owned();
        let value = if words.is_empty() { option.default_value() } else { Some(joined(&words)) };
        let comparable = value.as_deref().map(|value| option.comparable(value));
        let name = option.name().to_owned();
        let live = LIVE.contains(&option.name());
        Setting { name, value, source, live, comparable, words }
    }
}

impl Resolved {
    /// Of `settings`, which are in the order of `definitions`.
    fn new(definitions: Definitions, settings: Vec<Setting>) -> Result<Resolved, Error> {
        let mut arguments: Vec<OsString> = vec!["klad".into()];
        for (option, setting) in definitions.iter().zip(&settings) {
            option.push_arguments(&setting.words, &mut arguments);
        }
        let args = definitions
            .into_command()
            .try_get_matches_from(arguments)
            .and_then(|mut matches| ServeArgs::from_arg_matches_mut(&mut matches))
            .map_err(|error| Error::Together(definitions::problem(&error)))?;
        Ok(Resolved { settings, args })
    }

    /// The same with other values of some options, from the admin listener; `None` is the default.
    ///
    /// # Errors
    /// [`Error::UnknownOption`], [`Error::BadValue`], or [`Error::Together`].
    pub fn with(&self, changes: &BTreeMap<String, Option<OsString>>) -> Result<Resolved, Error> {
        let definitions = Definitions::of_serve();
        let mut settings = self.settings.clone();
        for (name, value) in changes {
            let Some(index) = definitions.iter().position(|option| option.name() == name && name != file::OPTION)
            else {
                let suggestion = definitions.suggestion(name).filter(|found| *found != file::OPTION).map(str::to_owned);
                return Err(Error::UnknownOption { name: name.clone(), suggestion });
            };
            let option = definitions.iter().nth(index).expect("it was just found");
            let words = option.checked(value.as_slice()).map_err(|(value, problem)| {
                let place = format!("{name} = {value:?}");
                Error::BadValue { place, problem }
            })?;
            settings[index] = Setting::new(option, words, Source::Admin);
        }
        Resolved::new(definitions, settings)
    }

    /// The same with the values that `other` has of those options that a running klad takes up.
    ///
    /// # Errors
    /// [`Error::Together`].
    pub fn with_live_of(&self, other: &Resolved) -> Result<Resolved, Error> {
        // Both lists are made from the same definitions.
        let pairs = self.settings.iter().zip(&other.settings);
        let settings = pairs.map(|(own, other)| if other.live { other } else { own }.clone()).collect();
        Resolved::new(Definitions::of_serve(), settings)
    }

    /// For [`Config::new`].
    #[must_use]
    pub fn args(&self) -> &ServeArgs {
        &self.args
    }

    /// Of every option, in the order of `klad serve --help`.
    #[must_use]
    pub fn settings(&self) -> &[Setting] {
        &self.settings
    }

    /// The options whose values are not what they are in `after`.
    #[must_use]
    pub fn differences<'r>(&'r self, after: &'r Resolved) -> Vec<Difference<'r>> {
        // Both lists are made from the same definitions.
        let pairs = self.settings.iter().zip(&after.settings);
        let differ = pairs.filter(|(before, after)| before.comparable != after.comparable);
        differ.map(|(before, after)| Difference { before, after }).collect()
    }

    fn impossible(&self, problem: config::Error) -> Error {
        let origins = self.origins_of_options_in(&problem.to_string());
        Error::Impossible { problem, origins }
    }

    /// Where the options come from that `message` names, as far as they are not on the command line.
    fn origins_of_options_in(&self, message: &str) -> String {
        let words: Vec<&str> = message
            .split(|c: char| !(c.is_ascii_alphanumeric() || c == '-'))
            .filter_map(|word| word.strip_prefix("--"))
            .collect();
        let origins: Vec<String> = self
            .settings
            .iter()
            .filter(|setting| words.contains(&setting.name.as_str()))
            .filter(|setting| matches!(setting.source, Source::Environment { .. } | Source::File { .. }))
            .map(|setting| format!("--{} is from {}", setting.name, setting.source))
            .collect();
        if origins.is_empty() { String::new() } else { format!(" ({})", origins.join(", ")) }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::CommandLine => f.write_str("command line"),
            Source::Environment { variable } => f.write_str(variable),
            Source::File { path, line } => write!(f, "{} line {line}", path.display()),
            Source::Admin => f.write_str("admin listener"),
            Source::Default => f.write_str("default"),
        }
    }
}

#[cfg(test)]
mod tests;
