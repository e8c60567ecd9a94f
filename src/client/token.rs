//! The token that is sent with each request. Called by `exchange`.

use std::path::Path;

use crate::client::Error;

/// The token in `path`: the file holds it alone, or is one that a server reads, with `read-write TOKEN` and `read-only TOKEN`
/// lines. Lines that are empty or begin with `#` count for nothing.
///
/// # Errors
/// When the file cannot be read or holds no token.
pub(super) fn read(path: &Path) -> Result<String, Error> {
    let text = std::fs::read_to_string(path)
        .map_err(|why| Error::File { what: format!("cannot read the token file {}", path.display()), why })?;
    // What stands in the file stays out of the message.
    choose(&text).map_err(|why| Error::Usage(format!("{} {why}", path.display())))
}

/// What a file holds instead of a token.
#[derive(Clone, Copy, Debug, thiserror::Error, PartialEq, Eq)]
enum Unusable {
    #[error("holds no token, or a line that is none")]
    NoToken,
    #[error("holds only digests, from which no token can be had")]
    OnlyDigests,
}

fn choose(text: &str) -> Result<String, Unusable> {
    let mut reads_only = None;
    let mut absent = Unusable::NoToken;
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    for line in lines {
        let words: Vec<_> = line.split_whitespace().collect();
        let token = match words[..] {
            // What a server's file holds instead of a token is not one: it would be sent, and refused.
            ["read-write" | "read-only", digest, ..] | [digest] if digest.starts_with("sha256:") => {
                absent = Unusable::OnlyDigests;
                continue;
            }
            ["read-write", token, ..] | [token] => token,
            ["read-only", token, ..] => {
                reads_only = reads_only.or(Some(token));
                continue;
            }
            _ => return Err(Unusable::NoToken),
        };
        return valid(token);
    }
    valid(reads_only.ok_or(absent)?)
}

/// A header can carry it.
fn valid(token: &str) -> Result<String, Unusable> {
    if token.bytes().all(|byte| byte.is_ascii_graphic()) { Ok(token.to_owned()) } else { Err(Unusable::NoToken) }
}

#[cfg(test)]
mod tests {
    use super::{Unusable, choose};

    #[test]
    fn a_token_stands_alone_or_in_a_servers_file() {
        for (text, token) in [
            ("secret\n", Ok("secret")),
            ("# comment\n\n  secret  \n", Ok("secret")),
            ("read-only one\nread-write two name\n", Ok("two")),
            ("read-only one reader\nread-only other\n", Ok("one")),
            ("read-write sha256:00 shop\nread-only one\n", Ok("one")),
            ("read-only sha256:00\nread-write sha256:11\nread-write two\n", Ok("two")),
            ("read-write sha256:00 shop\nread-only sha256:11\n", Err(Unusable::OnlyDigests)),
            ("sha256:00\n", Err(Unusable::OnlyDigests)),
            ("", Err(Unusable::NoToken)),
            ("two words\n", Err(Unusable::NoToken)),
            ("sécret\n", Err(Unusable::NoToken)),
        ] {
            assert_eq!(choose(text), token.map(str::to_owned), "{text:?}");
        }
    }
}
