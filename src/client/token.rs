//! The token that the client commands send. Called by `exchange`.

use std::path::Path;

use crate::client::Error;

/// Returns the token in `path`. The file contains the token alone, or it is a server's token file with lines
/// `read-write TOKEN` and `read-only TOKEN`; then the result is the first token that may write, or the first token if
/// none may write. Digests, empty lines and lines that begin with `#` are skipped.
///
/// # Errors
/// The file cannot be read or contains no token.
pub(super) fn read(path: &Path) -> Result<String, Error> {
    let text = std::fs::read_to_string(path)
        .map_err(|why| Error::File { what: format!("cannot read the token file {}", path.display()), why })?;
    // The message contains nothing from the file, which is secret.
    choose(&text).map_err(|why| Error::Usage(format!("{} {why}", path.display())))
}

/// Why a file has no token to send.
#[derive(Clone, Copy, Debug, thiserror::Error, PartialEq, Eq)]
enum Unusable {
    #[error("contains no token, or an invalid line")]
    NoToken,
    #[error("contains only digests of tokens, and a digest cannot be sent")]
    OnlyDigests,
}

fn choose(text: &str) -> Result<String, Unusable> {
    let mut reads_only = None;
    let mut absent = Unusable::NoToken;
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    for line in lines {
        let words: Vec<_> = line.split_whitespace().collect();
        let token = match words[..] {
            // A server would reject a digest.
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

/// Checks that a header can contain `token`.
fn valid(token: &str) -> Result<String, Unusable> {
    if token.bytes().all(|byte| byte.is_ascii_graphic()) { Ok(token.to_owned()) } else { Err(Unusable::NoToken) }
}

#[cfg(test)]
mod tests {
    use super::{Unusable, choose};

    #[test]
    fn a_file_contains_a_token_alone_or_is_a_servers_token_file() {
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
