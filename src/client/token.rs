//! The token that is sent with each request. Called by `exchange`.

use std::path::Path;

use super::Error;

/// The token in `path`: the file holds it alone, or is one that a server reads, with `read-write TOKEN` and `read-only TOKEN`
/// lines. Lines that are empty or begin with `#` count for nothing.
///
/// # Errors
/// When the file cannot be read or holds no token.
pub(super) fn read(path: &Path) -> Result<String, Error> {
    let text = std::fs::read_to_string(path)
        .map_err(|why| Error::File { what: format!("cannot read the token file {}", path.display()), why })?;
    // What stands in the file stays out of the message.
    choose(&text).ok_or_else(|| Error::Usage(format!("{} holds no token, or a line that is none", path.display())))
}

fn choose(text: &str) -> Option<String> {
    let mut reads_only = None;
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    for line in lines {
        let words: Vec<_> = line.split_whitespace().collect();
        let token = match words[..] {
            ["read-write", token, ..] | [token] => token,
            ["read-only", token, ..] => {
                reads_only = reads_only.or(Some(token));
                continue;
            }
            _ => return None,
        };
        return valid(token);
    }
    valid(reads_only?)
}

/// A header can carry it.
fn valid(token: &str) -> Option<String> {
    token.bytes().all(|byte| byte.is_ascii_graphic()).then(|| token.to_owned())
}

#[cfg(test)]
mod tests {
    use super::choose;

    #[test]
    fn a_token_stands_alone_or_in_a_servers_file() {
        for (text, token) in [
            ("secret\n", Some("secret")),
            ("# comment\n\n  secret  \n", Some("secret")),
            ("read-only one\nread-write two name\n", Some("two")),
            ("read-only one reader\nread-only other\n", Some("one")),
            ("", None),
            ("two words\n", None),
            ("sécret\n", None),
        ] {
            assert_eq!(choose(text).as_deref(), token, "{text:?}");
        }
    }
}
