//! The options as data, read from clap's definition of `ServeArgs`: names, defaults, what values they take.

use std::ffi::{OsStr, OsString};
use std::time::Duration;

use bytesize::ByteSize;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, ArgAction, Args as _, Command};

use crate::cli::ServeArgs;

/// The options of `klad serve`.
pub struct Definitions(Command);

/// One of them.
#[derive(Clone, Copy)]
pub struct Opt<'d>(&'d Arg);

/// What an option's value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `--option` alone says yes.
    Switch,
    /// `on` or `off`.
    OnOff,
    /// A number.
    Number,
    /// A number of bytes, with a unit.
    Size,
    /// A number with a unit of time.
    Time,
    /// Any other word.
    Text,
}

impl Definitions {
    /// Read from clap.
    #[must_use]
    pub fn of_serve() -> Definitions {
        let mut command = ServeArgs::augment_args(Command::new("klad")).disable_help_flag(true);
        command.build();
        Definitions(command)
    }

    /// In the order of `klad serve --help`.
    pub fn iter(&self) -> impl Iterator<Item = Opt<'_>> {
        self.0.get_arguments().filter(|option| option.get_long().is_some()).map(Opt)
    }

    /// The name of an option that looks most like `name`, if any does.
    #[must_use]
    pub fn suggestion(&self, name: &str) -> Option<&str> {
        let similarity = |option: &Opt<'_>| strsim::jaro_winkler(option.name(), name);
        let nearest = self.iter().max_by(|one, other| similarity(one).total_cmp(&similarity(other)))?;
        // Where clap draws the line, too: below it suggestions are as good as drawn by lot.
        (similarity(&nearest) > 0.8).then(|| nearest.0.get_long().expect("those without were left out"))
    }

    /// For parsing a command line of all options.
    pub(super) fn into_command(self) -> Command {
        self.0
    }
}

impl<'d> Opt<'d> {
    /// Without the dashes.
    #[must_use]
    pub fn name(self) -> &'d str {
        self.0.get_long().expect("those without were left out")
    }

    /// The group under which `--help` shows it.
    #[must_use]
    pub fn heading(self) -> &'d str {
        self.0.get_help_heading().unwrap_or("Options")
    }

    /// Whether it is kept out of the documents.
    #[must_use]
    pub fn is_hidden(self) -> bool {
        self.0.is_hide_set()
    }

    /// Such as `--queue-limit N`.
    #[must_use]
    pub fn usage(self) -> String {
        match self.placeholder() {
            Some(placeholder) => format!("--{} {placeholder}", self.name()),
            None => format!("--{}", self.name()),
        }
    }

    /// What it is for: the paragraphs of its comment.
    #[must_use]
    pub fn paragraphs(self) -> Vec<String> {
        let help = self.0.get_long_help().or_else(|| self.0.get_help()).map(ToString::to_string).unwrap_or_default();
        help.split("\n\n").map(|paragraph| paragraph.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
    }

    /// The words that it takes, each with what it means, where they are few.
    #[must_use]
    pub fn choices(self) -> Vec<(String, String)> {
        let choices = if self.is_switch() { Vec::new() } else { self.0.get_possible_values() };
        let describe = |help: Option<&clap::builder::StyledStr>| help.map(ToString::to_string).unwrap_or_default();
        choices.iter().map(|choice| (choice.get_name().to_owned(), describe(choice.get_help()))).collect()
    }

    /// What kind of value it takes.
    #[must_use]
    pub fn kind(self) -> Kind {
        let choices = self.choices();
        let has = |word: &str| choices.iter().any(|(name, _)| name == word);
        match self.placeholder() {
            None => Kind::Switch,
            Some(_) if choices.len() == 2 && has("on") && has("off") => Kind::OnOff,
            Some("N") => Kind::Number,
            Some("SIZE") => Kind::Size,
            Some("TIME") => Kind::Time,
            Some(_) => Kind::Text,
        }
    }

    /// Its default, unless that is computed at start or nothing at all.
    #[must_use]
    pub fn default_value(self) -> Option<String> {
        if self.is_switch() {
            return Some("false".to_owned());
        }
        let values = self.0.get_default_values();
        let values: Vec<_> = values.iter().map(|value| value.to_string_lossy()).collect();
        (!values.is_empty()).then(|| values.join(","))
    }

    pub(super) fn id(self) -> &'d str {
        self.0.get_id().as_str()
    }

    pub(super) fn is_switch(self) -> bool {
        !self.0.get_action().takes_values()
    }

    /// Whether it may be given several times.
    pub(super) fn is_list(self) -> bool {
        matches!(self.0.get_action(), ArgAction::Append) || self.0.get_value_delimiter().is_some()
    }

    fn placeholder(self) -> Option<&'d str> {
        let names = self.0.get_value_names().unwrap_or_default();
        if self.is_switch() { None } else { Some(names.first().map_or("VALUE", |name| name.as_str())) }
    }

    /// `values` in the words of the command line, if the option takes them.
    ///
    /// # Errors
    /// The first that it does not take, and why.
    pub(super) fn checked(self, values: &[OsString]) -> Result<Vec<OsString>, (String, String)> {
        values.iter().map(|value| self.checked_one(value)).collect()
    }

    fn checked_one(self, value: &OsStr) -> Result<OsString, (String, String)> {
        let refused = |problem: &str| Err((value.to_string_lossy().into_owned(), problem.to_owned()));
        let word = match (self.kind(), value.to_str()) {
            (Kind::Switch, Some("true" | "on")) => return Ok("true".into()),
            (Kind::Switch, Some("false" | "off")) => return Ok("false".into()),
            (Kind::Switch, _) => return refused("it must be true or false"),
            (Kind::OnOff, Some("true")) => OsString::from("on"),
            (Kind::OnOff, Some("false")) => OsString::from("off"),
            _ if value.is_empty() => return refused("it is empty; remove it, or give it a value"),
            _ => value.to_owned(),
        };
        let parsed = Command::new("klad")
            .arg(self.0.clone().required(false))
            .try_get_matches_from([OsString::from("klad"), self.argument(&word)]);
        match parsed {
            // What it has to do with other options is looked at when all are there.
            Err(error) if concerns_the_value(&error) => refused(&problem(&error)),
            _ => Ok(word),
        }
    }

    fn argument(self, value: &OsStr) -> OsString {
        let mut argument = OsString::from(format!("--{}=", self.name()));
        argument.push(value);
        argument
    }

    /// Adds what a command line with these values has.
    pub(super) fn push_arguments(self, values: &[OsString], arguments: &mut Vec<OsString>) {
        for value in values {
            if !self.is_switch() {
                arguments.push(self.argument(value));
            } else if value == "true" {
                arguments.push(format!("--{}", self.name()).into());
            }
        }
    }

    /// `value` in a form that is the same for all ways of writing it.
    pub(super) fn comparable(self, value: &str) -> String {
        let same = match self.kind() {
            Kind::Size => value.parse::<ByteSize>().ok().map(|size| size.0.to_string()),
            Kind::Time => humantime::parse_duration(value).ok().map(|time: Duration| format!("{time:?}")),
            Kind::Number => value.parse::<u64>().ok().map(|number| number.to_string()),
            Kind::Switch | Kind::OnOff | Kind::Text => None,
        };
        same.unwrap_or_else(|| value.to_owned())
    }
}

fn concerns_the_value(error: &clap::Error) -> bool {
    use ErrorKind::{InvalidUtf8, InvalidValue, TooFewValues, TooManyValues, ValueValidation, WrongNumberOfValues};
    let kinds = [InvalidUtf8, InvalidValue, TooFewValues, TooManyValues, ValueValidation, WrongNumberOfValues];
    kinds.contains(&error.kind())
}

/// What clap has to say, without the words around it that speak of a command line.
pub(super) fn problem(error: &clap::Error) -> String {
    if let Some(cause) = std::error::Error::source(error) {
        return cause.to_string();
    }
    match error.get(ContextKind::ValidValue) {
        Some(ContextValue::Strings(words)) if !words.is_empty() => format!("it must be one of: {}", words.join(", ")),
        _ => {
            let rendered = error.render().to_string();
            let first = rendered.lines().next().unwrap_or_default();
            first.strip_prefix("error: ").unwrap_or(first).to_owned()
        }
    }
}
