//! Options from a TOML file: one key for each option, no tables.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::settings::{Definitions, Error, Opt, Source};
use klad_server::limits::CONFIG_FILE_BYTES_MAX;

/// The option that names the file. It is the only option that cannot be in the file.
pub(super) const OPTION: &str = "config";

type Values = BTreeMap<String, (Source, Vec<OsString>)>;

/// Returns the options that the file sets, by their names.
///
/// # Errors
/// [`Error`], with the line number.
pub(super) fn read(path: PathBuf, definitions: &Definitions) -> Result<Values, Error> {
    match text_of(&path) {
        Ok(text) => parse(&text, &path, definitions),
        Err(cause) => Err(Error::Unreadable { path, cause }),
    }
}

fn text_of(path: &Path) -> io::Result<String> {
    let mut bytes = Vec::new();
    File::open(path)?.take(CONFIG_FILE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > CONFIG_FILE_BYTES_MAX {
        return Err(io::Error::other(format!("it is larger than {CONFIG_FILE_BYTES_MAX} bytes")));
    }
    String::from_utf8(bytes).map_err(|_| io::Error::other("it is not UTF-8"))
}

pub(super) fn parse(text: &str, path: &Path, definitions: &Definitions) -> Result<Values, Error> {
    let table = DeTable::parse(text).map_err(|error| {
        let (line, column) = position(text, error.span().map_or(0, |span| span.start));
        // The parser's message may have several lines; klad's errors have one line.
        let problem = error.message().lines().collect::<Vec<_>>().join("; ");
        Error::Syntax { path: path.to_owned(), line, column, problem }
    })?;
    // In the order of the file, so that the error is about the first mistake.
    let mut entries: Vec<_> = table.into_inner().into_iter().collect();
    entries.sort_by_key(|(key, _)| key.span().start);
    let mut values = Values::new();
    for (key, value) in entries {
        let (line, _) = position(text, key.span().start);
        let name = key.get_ref().as_ref();
        let option = definitions.iter().find(|option| option.name() == name && name != OPTION);
        let Some(option) = option else { return Err(unknown(path, line, name, value.get_ref(), definitions)) };
        let words = words(option, &value).map_err(|problem| {
            let place = format!("{} line {line}: {name}", path.display());
            Error::BadValue { place, problem }
        })?;
        values.insert(name.to_owned(), (Source::File { path: path.to_owned(), line }, words));
    }
    Ok(values)
}

/// Returns the error for an unknown key. If the key is a table, the error names its first inner key.
fn unknown(path: &Path, line: usize, key: &str, value: &DeValue<'_>, definitions: &Definitions) -> Error {
    let mut names = vec![key.to_owned()];
    let mut inner = value;
    while let DeValue::Table(table) = inner
        && let Some((name, value)) = table.iter().min_by_key(|(name, _)| name.span().start)
    {
        names.push(name.get_ref().to_string());
        inner = value.get_ref();
    }
    // Tables are common in other TOML files: a user who writes `[queue] limit` means queue-limit.
    let joined = names.join("-").to_ascii_lowercase().replace('_', "-");
    let last = names.last().map(String::as_str).unwrap_or_default();
    let suggestion =
        definitions.suggestion(&joined).or_else(|| definitions.suggestion(last)).filter(|name| *name != OPTION);
    let (path, suggestion) = (path.to_owned(), suggestion.map(str::to_owned));
    Error::UnknownKey { path, line, key: names.join("."), suggestion }
}

/// Returns `value` as words of the command line.
fn words(option: Opt<'_>, value: &Spanned<DeValue<'_>>) -> Result<Vec<OsString>, String> {
    match value.get_ref() {
        DeValue::Array(items) if option.is_list() => {
            let words = items.iter().map(|item| word(item.get_ref()));
            words.map(|word| word.map(OsString::from)).collect()
        }
        single => Ok(vec![word(single)?.into()]),
    }
}

fn word(value: &DeValue<'_>) -> Result<String, String> {
    match value {
        DeValue::String(text) => Ok(text.to_string()),
        DeValue::Integer(number) => i64::from_str_radix(number.as_str(), number.radix())
            .map(|number| number.to_string())
            .map_err(|error| error.to_string()),
        DeValue::Float(number) => Ok(number.as_str().to_owned()),
        DeValue::Boolean(yes) => Ok(yes.to_string()),
        DeValue::Datetime(_) => Err("a date is not the value of an option".to_owned()),
        DeValue::Array(_) => Err("the option takes one value, not a list".to_owned()),
        DeValue::Table(_) => Err("the option takes one value, not a table".to_owned()),
    }
}

/// Returns line and column of the byte at `offset`, each from 1.
fn position(text: &str, offset: usize) -> (usize, usize) {
    let before = text.get(..offset).unwrap_or(text);
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
    (line, column)
}
