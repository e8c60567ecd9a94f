//! Options from the environment: `KLAD_QUEUE_LIMIT` for `--queue-limit`.

use std::collections::BTreeMap;
use std::ffi::OsString;

use crate::settings::{Definitions, Error};

const PREFIX: &str = "KLAD_";

/// Prefix of the variables that klad's own tests use. No option's name begins with it.
const TESTS: &str = "KLAD_TEST_";

/// Returns the name of the variable for the option `name`.
#[must_use]
pub fn variable(name: &str) -> String {
    format!("{PREFIX}{}", name.to_ascii_uppercase().replace('-', "_"))
}

/// Returns the options that `variables` sets, by their names.
///
/// # Errors
/// [`Error::UnknownVariable`] for an unknown variable with klad's prefix: ignoring it would hide a misspelt option.
pub(super) fn read(
    definitions: &Definitions,
    variables: impl Iterator<Item = (OsString, OsString)>,
) -> Result<BTreeMap<String, OsString>, Error> {
    let names: BTreeMap<String, &str> = definitions.iter().map(|opt| (variable(opt.name()), opt.name())).collect();
    let mut found = BTreeMap::new();
    let mut unknown = Vec::new();
    for (name, value) in variables {
        let name = name.to_string_lossy();
        if let Some(option) = names.get(name.as_ref()) {
            found.insert((*option).to_owned(), value);
        } else if name.starts_with(PREFIX)
            && !name.starts_with(TESTS)
            && !crate::client::VARIABLES.contains(&name.as_ref())
            && !is_kubernetes(&name, &value.to_string_lossy())
        {
            unknown.push(name.into_owned());
        }
    }
    // The error names the first variable by name, because the environment has no stable order.
    match unknown.into_iter().min() {
        None => Ok(found),
        Some(variable_name) => {
            let option = variable_name[PREFIX.len()..].to_ascii_lowercase().replace('_', "-");
            let suggestion = definitions.suggestion(&option).map(variable);
            Err(Error::UnknownVariable { variable: variable_name, suggestion })
        }
    }
}

/// Returns whether Kubernetes sets this variable in containers. For each service, such as one named klad or
/// klad-something, it sets variables with host and port, and the same facts in the format of Docker links.
fn is_kubernetes(name: &str, value: &str) -> bool {
    if name.ends_with("_SERVICE_HOST") || name.ends_with("_SERVICE_PORT") || name.contains("_SERVICE_PORT_") {
        return true;
    }
    if name.ends_with("_PORT") && value.contains("://") {
        return true;
    }
    let Some((_, after)) = name.split_once("_PORT_") else { return false };
    let mut words = after.split('_');
    let is_port = words.next().is_some_and(|word| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit()));
    let is_protocol = words.next().is_some_and(|word| ["TCP", "UDP", "SCTP"].contains(&word));
    let is_fact = words.next().is_none_or(|word| ["PROTO", "PORT", "ADDR"].contains(&word));
    is_port && is_protocol && is_fact && words.next().is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_of_other_commands_are_ignored() {
        let read = |name: &str| read(&Definitions::of_serve(), [(name.into(), "x".into())].into_iter());
        // KLAD_TOKEN_FILE is also an option of `klad serve`.
        for name in crate::client::VARIABLES.into_iter().filter(|name| *name != "KLAD_TOKEN_FILE") {
            assert!(read(name).expect("ignored").is_empty(), "{name}");
        }
        read("KLAD_URI").expect_err("not a variable of klad");
    }

    #[test]
    fn variables_of_kubernetes_are_ignored_and_misspelt_ones_are_not() {
        for (name, value) in [
            ("KLAD_SERVICE_HOST", "10.0.0.11"),
            ("KLAD_SERVICE_PORT", "8080"),
            ("KLAD_SERVICE_PORT_HTTP", "8080"),
            ("KLAD_PORT", "tcp://10.0.0.11:8080"),
            ("KLAD_PORT_8080_TCP", "tcp://10.0.0.11:8080"),
            ("KLAD_PORT_8080_TCP_PROTO", "tcp"),
            ("KLAD_PORT_8080_TCP_PORT", "8080"),
            ("KLAD_PORT_8080_TCP_ADDR", "10.0.0.11"),
            ("KLAD_ADMIN_SERVICE_HOST", "10.0.0.12"),
            ("KLAD_ADMIN_PORT_8081_TCP", "tcp://10.0.0.12:8081"),
        ] {
            assert!(is_kubernetes(name, value), "{name}");
        }
        for (name, value) in
            [("KLAD_PORT", "8080"), ("KLAD_SERVICE", "x"), ("KLAD_PORT_HTTP", "8080"), ("KLAD_PORT_8080_TCP_NAME", "x")]
        {
            assert!(!is_kubernetes(name, value), "{name}");
        }
    }
}
