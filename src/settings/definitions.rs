//! The options of `klad serve` as data, read from clap's definition of `ServeArgs`: names, defaults, and accepted
//! values. Called by `settings` and `reference`.

use std::ffi::{OsStr, OsString};
use std::time::Duration;

use bytesize::ByteSize;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, ArgAction, Args as _, Command};

use crate::cli::ServeArgs;

/// The options of `klad serve`.
pub struct Definitions(Command);

/// An option.
#[derive(Clone, Copy)]
pub struct Opt<'d>(&'d Arg);

/// The kind of value that an option takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// No value: `--option` alone turns it on.
    Switch,
    /// `on` or `off`.
    OnOff,
    /// A number.
    Number,
    /// A number of bytes, with a unit.
    Size,
    /// A number with a unit of time.
    Time,
    /// Any other text.
    Text,
}

impl Definitions {
    /// Reads the definitions from clap.
    #[must_use]
    pub fn of_serve() -> Definitions {
        let mut command = ServeArgs::augment_args(Command::new("klad")).disable_help_flag(true);
        command.build();
        Definitions(command)
    }

    /// Iterates over the options in the order of `klad serve --help`.
    pub fn iter(&self) -> impl Iterator<Item = Opt<'_>> {
        self.0.get_arguments().filter(|option| option.get_long().is_some()).map(Opt)
    }

    /// Returns the name of the option that is most similar to `name`, if one is similar enough.
    #[must_use]
    pub fn suggestion(&self, name: &str) -> Option<&str> {
        let similarity = |option: &Opt<'_>| strsim::jaro_winkler(option.name(), name);
        let nearest = self.iter().max_by(|one, other| similarity(one).total_cmp(&similarity(other)))?;
        // clap uses the same threshold. Below it, suggestions are no better than random ones.
        (similarity(&nearest) > 0.8).then(|| nearest.0.get_long().expect("those without were left out"))
    }

    /// Returns clap's command, which parses a command line of all options.
    pub(super) fn into_command(self) -> Command {
        self.0
    }
}

impl<'d> Opt<'d> {
    /// Returns the name without the dashes.
    #[must_use]
    pub fn name(self) -> &'d str {
        self.0.get_long().expect("those without were left out")
    }

    /// Returns the heading under which `--help` shows the option.
    #[must_use]
    pub fn heading(self) -> &'d str {
        self.0.get_help_heading().unwrap_or("Options")
    }

    /// Returns whether the option is absent from the documents.
    #[must_use]
    pub fn is_hidden(self) -> bool {
        self.0.is_hide_set()
    }

    /// Returns the usage, for example `--queue-limit N`.
    #[must_use]
    pub fn usage(self) -> String {
        match self.placeholder() {
            Some(placeholder) => format!("--{} {placeholder}", self.name()),
            None => format!("--{}", self.name()),
        }
    }

    /// Returns the paragraphs of the option's description.
    #[must_use]
    pub fn paragraphs(self) -> Vec<String> {
        let help = self.0.get_long_help().or_else(|| self.0.get_help()).map(ToString::to_string).unwrap_or_default();
        help.split("\n\n").map(|paragraph| paragraph.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
    }

    /// Returns the words that the option accepts, each with its meaning; empty if it accepts other values.
    #[must_use]
    pub fn choices(self) -> Vec<(String, String)> {
        let choices = if self.is_switch() { Vec::new() } else { self.0.get_possible_values() };
        let describe = |help: Option<&clap::builder::StyledStr>| help.map(ToString::to_string).unwrap_or_default();
        choices.iter().map(|choice| (choice.get_name().to_owned(), describe(choice.get_help()))).collect()
    }

    /// Returns the kind of value that the option takes.
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

    /// Returns the default; `None` if there is none, or if klad computes it at start.
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

    /// Returns whether the option can be given several times.
    pub(super) fn is_list(self) -> bool {
        matches!(self.0.get_action(), ArgAction::Append) || self.0.get_value_delimiter().is_some()
    }

    fn placeholder(self) -> Option<&'d str> {
        let names = self.0.get_value_names().unwrap_or_default();
        if self.is_switch() { None } else { Some(names.first().map_or("VALUE", |name| name.as_str())) }
    }

    /// Returns `values` as words of the command line, after checking each.
    ///
    /// # Errors
    /// The first value that the option does not accept, and the reason.
    pub(super) fn checked(self, values: &[OsString]) -> Result<Vec<OsString>, (String, String)> {
        values.iter().map(|value| self.checked_one(value)).collect()
    }

    fn checked_one(self, value: &OsStr) -> Result<OsString, (String, String)> {
        let rejected = |problem: &str| Err((value.to_string_lossy().into_owned(), problem.to_owned()));
        let word = match (self.kind(), value.to_str()) {
            (Kind::Switch, Some("true" | "on")) => return Ok("true".into()),
            (Kind::Switch, Some("false" | "off")) => return Ok("false".into()),
            (Kind::Switch, _) => return rejected("it must be true or false"),
            (Kind::OnOff, Some("true")) => OsString::from("on"),
            (Kind::OnOff, Some("false")) => OsString::from("off"),
            _ if value.is_empty() => return rejected("it is empty; remove it, or give it a value"),
            _ => value.to_owned(),
        };
        let parsed = Command::new("klad")
            .arg(self.0.clone().required(false))
            .try_get_matches_from([OsString::from("klad"), self.argument(&word)]);
        match parsed {
            // Relations to other options are checked when all values are known.
            Err(error) if concerns_the_value(&error) => rejected(&self.problem_with(&value.to_string_lossy(), &error)),
            _ => Ok(word),
        }
    }

    /// Returns what is wrong with `value`. For numbers and sizes, the words are plainer than those of the parser.
    fn problem_with(self, value: &str, error: &clap::Error) -> String {
        match self.kind() {
            Kind::Number if value.parse::<u64>().is_err() => "it must be a whole number".to_owned(),
            Kind::Size => "it must be a number of bytes or a size, for example 64KiB".to_owned(),
            _ => problem(error),
        }
    }

    fn argument(self, value: &OsStr) -> OsString {
        let mut argument = OsString::from(format!("--{}=", self.name()));
        argument.push(value);
        argument
    }

    /// Appends the option with `values` to a command line.
    pub(super) fn push_arguments(self, values: &[OsString], arguments: &mut Vec<OsString>) {
        for value in values {
            if !self.is_switch() {
                arguments.push(self.argument(value));
            } else if value == "true" {
                arguments.push(format!("--{}", self.name()).into());
            }
        }
    }

    /// Returns `value` in a form that is the same for equal values, such as `1s` and `1000ms`.
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

/// Returns clap's message without the parts about the command line.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_switch_accepts_true_false_on_and_off() {
        let mut command = Command::new("klad").arg(Arg::new("loud").long("loud").action(ArgAction::SetTrue));
        command.build();
        let definitions = Definitions(command);
        let option = definitions.iter().find(|option| option.name() == "loud").expect("defined");
        assert_eq!((option.kind(), option.default_value().as_deref()), (Kind::Switch, Some("false")));
        for (word, expected) in [("true", &["--loud"][..]), ("on", &["--loud"]), ("false", &[]), ("off", &[])] {
            let values = option.checked(&[word.into()]).expect("accepted");
            let mut arguments = Vec::new();
            option.push_arguments(&values, &mut arguments);
            assert_eq!(arguments, expected, "{word}");
        }
        assert!(option.checked(&["perhaps".into()]).is_err());
        let matches = definitions.0.clone().try_get_matches_from(["klad", "--loud"]).expect("valid");
        // `CommandLine::of` relies on this: a switch has no raw value, or "true".
        assert!(matches.get_raw("loud").into_iter().flatten().all(|value| value == "true"));
    }
}
