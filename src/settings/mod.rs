//! The values of all options and their sources. The command line overrides the environment, which overrides the file,
//! which overrides the defaults. An option has the same name in all these sources.
//!
//! ```text
//!   --queue-limit 9  ─▶ ┐
//!   KLAD_QUEUE_LIMIT ─▶ ├─▶ one value for each option ─▶ a full command line ─▶ clap ─▶ ServeArgs ─▶ Config
//!   queue-limit = 9  ─▶ ┘
//! ```
//!
//! clap's definition of [`ServeArgs`] is the only list of options: a new option gets its variable and its key
//! automatically. Each value is checked together with its source, so that an error names the source.
//!
//! Called by `main` at start, by `control` for each reload and change, and by `reference`.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::path::PathBuf;

use clap::parser::ValueSource;
use clap::{ArgMatches, FromArgMatches as _};

use crate::cli::ServeArgs;
use crate::config::{self, Config, FixedSizes, LiveConfig};
use klad_server::net::listen;

mod definitions;
mod environment;
mod file;
mod print;

pub use definitions::{Definitions, Kind, Opt};
pub use environment::variable;
pub use print::{json, text};

/// Options that can change while klad serves. All others need a restart.
pub const LIVE: &[&str] = &[
    "access-log",
    "body-rate-min",
    "body-timeout",
    "changes-heartbeat",
    "connections-max",
    "connections-per-peer",
    "disk-reserve",
    "drain-delay",
    "drain-timeout",
    "durability",
    "head-max",
    "head-timeout",
    "idle-timeout",
    "iteration-max",
    "key-max",
    "log-level",
    "operations-max",
    "queue-age-max",
    "queue-limit",
    "queue-target",
    "scans-max",
    "slow-request",
    "value-max",
    "watchers-max",
    "write-timeout",
];

/// The options given on the command line, kept for each [`load`].
#[derive(Clone, Debug, Default)]
pub struct CommandLine(BTreeMap<String, Vec<OsString>>);

/// The source of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// The command line.
    CommandLine,
    /// The environment.
    Environment {
        /// Name of the variable, for example `KLAD_QUEUE_LIMIT`.
        variable: String,
    },
    /// The file.
    File {
        /// The path as given.
        path: PathBuf,
        /// Line number, from 1.
        line: usize,
    },
    /// A change through the admin listener (`PATCH /config`) while klad serves.
    Admin,
    /// The default of the program.
    Default,
}

/// The value of an option, and its source.
#[derive(Clone, Debug)]
pub struct Setting {
    /// Name of the option, for example `queue-limit`.
    pub name: String,
    /// The given value, or the default if no value was given. Several values are joined by commas. `None` if no value
    /// was given and the option has no default, or a default that klad computes at start.
    pub value: Option<String>,
    /// The source of the value.
    pub source: Source,
    /// Whether the option can change while klad serves.
    pub live: bool,
    /// The value in a form that is the same for equal values: 1s and 1000ms are equal.
    comparable: Option<String>,
    /// The value as words of the command line; empty if the option has its default.
    words: Vec<OsString>,
}

/// The values of all options, and their sources.
#[derive(Clone, Debug)]
pub struct Resolved {
    settings: Vec<Setting>,
    args: ServeArgs,
}

/// An option with a changed value.
#[derive(Clone, Debug)]
pub struct Difference<'r> {
    /// The old value.
    pub before: &'r Setting,
    /// The new value.
    pub after: &'r Setting,
}

/// Why the configuration cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A variable of the environment that begins with `KLAD_` and is not an option.
    #[error("{variable}: there is no such option{}", hint(suggestion.as_deref()))]
    UnknownVariable {
        /// Name of the variable.
        variable: String,
        /// The most similar name, if one is similar enough.
        suggestion: Option<String>,
    },
    /// A name that is not an option.
    #[error("there is no option {name}{}", hint(suggestion.as_deref()))]
    UnknownOption {
        /// The given name.
        name: String,
        /// The most similar name, if one is similar enough.
        suggestion: Option<String>,
    },
    /// A key in the file that is not an option.
    #[error("{} line {line}: there is no option {key}{}", path.display(), hint(suggestion.as_deref()))]
    UnknownKey {
        /// The file.
        path: PathBuf,
        /// Line number, from 1.
        line: usize,
        /// The key as written.
        key: String,
        /// The most similar name, if one is similar enough.
        suggestion: Option<String>,
    },
    /// A value that the option does not accept.
    #[error("{place}: {problem}")]
    BadValue {
        /// The option or its environment variable, with the value. If the value is from the file, the file and the line
        /// come first.
        place: String,
        /// Why the option does not accept it.
        problem: String,
    },
    /// The file cannot be read.
    #[error("cannot read {}: {cause}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The error of the kernel.
        cause: std::io::Error,
    },
    /// The file is not valid TOML.
    #[error("{} line {line}, column {column}: {problem}", path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// Line number, from 1.
        line: usize,
        /// Column, from 1, in characters.
        column: usize,
        /// The message of the parser.
        problem: String,
    },
    /// Values that are valid alone, but contradict each other.
    #[error("{0}")]
    Contradiction(String),
    /// Values that `config` rejects.
    #[error("{problem}{origins}")]
    Invalid {
        /// The option, and the reason.
        problem: config::Error,
        /// The sources of the options that are not from the command line.
        origins: String,
    },
    /// A value that is not an address.
    #[error("--{option}: {problem}{origins}")]
    Address {
        /// Name of the option, without the dashes.
        option: &'static str,
        /// Why it is not an address.
        problem: listen::Error,
        /// The source of the option, if it is not the command line.
        origins: String,
    },
}

fn hint(suggestion: Option<&str>) -> String {
    suggestion.map_or_else(String::new, |name| format!("; did you mean {name}?"))
}

impl CommandLine {
    /// Returns the options that were given on the command line. `matches` are clap's matches of a subcommand that has
    /// the options of `klad serve`.
    #[must_use]
    pub fn of(matches: &ArgMatches) -> CommandLine {
        let mut given = BTreeMap::new();
        for option in Definitions::of_serve().iter() {
            if matches.value_source(option.id()) != Some(ValueSource::CommandLine) {
                continue;
            }
            let values: Vec<_> = matches.get_raw(option.id()).into_iter().flatten().map(OsStr::to_owned).collect();
            let bare_switch = option.is_switch() && values.is_empty();
            given.insert(option.name().to_owned(), if bare_switch { vec!["true".into()] } else { values });
        }
        CommandLine(given)
    }
}

/// Finds the value of every option, from the command line, the environment, the file and the defaults.
///
/// # Errors
/// [`Error`], which names the source of the wrong value.
pub fn load(command_line: &CommandLine) -> Result<Resolved, Error> {
    resolve(command_line, std::env::vars_os())
}

/// Makes all checks that need neither the data directory nor a listener, and returns the configuration. Reads the files
/// of tokens and certificates.
///
/// # Errors
/// [`Error::Invalid`] or [`Error::Address`].
pub fn check(resolved: &Resolved) -> Result<Config, Error> {
    let config = Config::new(resolved.args().clone()).map_err(|problem| resolved.invalid(problem))?;
    for (option, address) in [("listen", &config.listen), ("admin-listen", &config.admin_listen)] {
        listen::resolve(address).map_err(|problem| {
            let origins = resolved.origins_of_options_in(&format!("--{option}"));
            Error::Address { option, problem, origins }
        })?;
    }
    Ok(config)
}

/// Validates `memory`, `heap-sample`, and the options that can change while klad serves. `fixed` has the sizes of the
/// running process; `None` at start. Reads no file.
///
/// # Errors
/// [`Error::Invalid`].
pub fn check_live(resolved: &Resolved, fixed: Option<&FixedSizes>) -> Result<LiveConfig, Error> {
    LiveConfig::new(resolved.args(), fixed).map_err(|problem| resolved.invalid(problem))
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
    /// Parses `settings`, which are in the order of `definitions`, with clap.
    fn new(definitions: Definitions, settings: Vec<Setting>) -> Result<Resolved, Error> {
        let mut arguments: Vec<OsString> = vec!["klad".into()];
        for (option, setting) in definitions.iter().zip(&settings) {
            option.push_arguments(&setting.words, &mut arguments);
        }
        let args = definitions
            .into_command()
            .try_get_matches_from(arguments)
            .and_then(|mut matches| ServeArgs::from_arg_matches_mut(&mut matches))
            .map_err(|error| Error::Contradiction(definitions::problem(&error)))?;
        Ok(Resolved { settings, args })
    }

    /// Returns a copy with new values of some options, which come from the admin listener. `None` resets an option to
    /// its default.
    ///
    /// # Errors
    /// [`Error::UnknownOption`], [`Error::BadValue`], or [`Error::Contradiction`].
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

    /// Returns a copy in which the live options have the values of `other`.
    ///
    /// # Errors
    /// [`Error::Contradiction`].
    pub fn with_live_of(&self, other: &Resolved) -> Result<Resolved, Error> {
        // Both lists are made from the same definitions.
        let pairs = self.settings.iter().zip(&other.settings);
        let settings = pairs.map(|(own, other)| if other.live { other } else { own }.clone()).collect();
        Resolved::new(Definitions::of_serve(), settings)
    }

    /// Returns the options as clap parsed them, for [`Config::new`].
    #[must_use]
    pub fn args(&self) -> &ServeArgs {
        &self.args
    }

    /// Returns the settings of all options, in the order of `klad serve --help`.
    #[must_use]
    pub fn settings(&self) -> &[Setting] {
        &self.settings
    }

    /// Returns the options that have another value in `after`.
    #[must_use]
    pub fn differences<'r>(&'r self, after: &'r Resolved) -> Vec<Difference<'r>> {
        // Both lists are made from the same definitions.
        let pairs = self.settings.iter().zip(&after.settings);
        let differ = pairs.filter(|(before, after)| before.comparable != after.comparable);
        differ.map(|(before, after)| Difference { before, after }).collect()
    }

    fn invalid(&self, problem: config::Error) -> Error {
        let origins = self.origins_of_options_in(&problem.to_string());
        Error::Invalid { problem, origins }
    }

    /// Finds the options that `message` names, and returns the sources of their values as text in brackets. The text
    /// has only sources in the environment and the file; it is empty if there is none.
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
