//! The bearer tokens of a token file, and the access of each: read-only or read-write.
//!
//! klad keeps only digests of tokens. It hashes the token of a request and compares this hash with every digest
//! completely, so that the time reveals neither the nearest digest nor how much of it matched. This module never prints
//! a token. `config` loads the tokens, `http` looks up the token of each request, `Safety` reloads the tokens.

use std::cell::{Cell, RefCell};
use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustls::crypto::ring::cipher_suite::TLS13_AES_128_GCM_SHA256;
use subtle::{ConditionallySelectable as _, ConstantTimeEq as _};

use crate::limits::{TOKEN_BYTES_MAX, TOKEN_BYTES_MIN, TOKEN_FILE_BYTES_MAX, TOKENS_MAX};
use klad_base::sync::RwLock;

/// What a token allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// All requests that change nothing.
    ReadOnly,
    /// All requests.
    ReadWrite,
}

/// Why a token file is unusable. No error quotes the file, because that would reveal a token.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum Error {
    /// The file cannot be read, or is not text.
    #[error("cannot read the tokens in {path}: {why}", path = path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The reason.
        why: String,
    },
    /// The file has too many bytes or too many tokens for a token file.
    #[error(
        "{path} is larger than {TOKEN_FILE_BYTES_MAX} bytes, or has more than {TOKENS_MAX} tokens; is it a token file?",
        path = path.display()
    )]
    TooLarge {
        /// The file.
        path: PathBuf,
    },
    /// A line is neither empty, nor a comment, nor a token.
    #[error("{path}, line {line}: {why}", path = path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// The number of the line, from 1.
        line: usize,
        /// What is wrong with the line.
        why: LineError,
    },
    /// The file has no token, so no client could do anything.
    #[error("{path} holds no token; a line is for example: read-write TOKEN", path = path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
}

/// What is wrong with a line of a token file.
#[derive(Clone, Copy, Debug, thiserror::Error, PartialEq, Eq)]
pub enum LineError {
    /// The first word of the line is unknown.
    #[error("a line must begin with read-write or read-only")]
    Access,
    /// The line has only one word.
    #[error("a token is missing")]
    Missing,
    /// The line has more than three words.
    #[error("a line has an access, a token and at most one name, which has no spaces")]
    Words,
    /// The token has fewer than [`TOKEN_BYTES_MIN`] characters, so it is easy to guess.
    #[error("a token must have at least {TOKEN_BYTES_MIN} characters")]
    Short,
    /// The token has more than [`TOKEN_BYTES_MAX`] characters.
    #[error("a token must have at most {TOKEN_BYTES_MAX} characters")]
    Long,
    /// The token has characters that a client may not send in a token.
    #[error("a token may have only letters, digits and - . _ ~ + / = (RFC 6750)")]
    Characters,
    /// The text after `sha256:` is not a digest.
    #[error("sha256: must be followed by 64 hexadecimal digits")]
    Digest,
    /// The token is in two lines, so it could have two access levels.
    #[error("the same token is in an earlier line")]
    Twice,
}

/// The SHA-256 of a token.
type Digest = [u8; 32];

#[derive(Clone, Copy)]
struct Entry {
    digest: Digest,
    access: Access,
}

type Table = Arc<[Entry]>;

/// The tokens of a file, as of the last reading.
pub struct Tokens {
    path: PathBuf,
    current: RwLock<Table>,
    /// The number of reloads.
    generation: AtomicU64,
}

impl Tokens {
    /// Reads the tokens from `path`.
    ///
    /// # Errors
    /// [`Error`].
    pub fn load(path: &Path) -> Result<Tokens, Error> {
        let table = read(path)?;
        Ok(Tokens { path: path.to_owned(), current: RwLock::new(table), generation: AtomicU64::new(0) })
    }

    /// Reads the file again. The next request of each connection uses the new tokens. Returns the number of tokens.
    ///
    /// # Errors
    /// [`Error`] if the file is unusable. Then the previous tokens remain in use.
    pub fn reload(&self) -> Result<usize, Error> {
        let table = read(&self.path)?;
        let count = table.len();
        *self.current.write() = table;
        // Changes after the table, so that a thread that sees the new generation finds this table or a newer one.
        self.generation.fetch_add(1, Ordering::Release);
        Ok(count)
    }

    /// The number of tokens.
    #[must_use]
    pub fn count(&self) -> usize {
        self.current.read().len()
    }
}

/// Omits the digests, because a short token can be found from its digest.
impl std::fmt::Debug for Tokens {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Tokens").field("path", &self.path).field("count", &self.count()).finish_non_exhaustive()
    }
}

/// One thread's copy of the tokens. A look-up reads the number of reloads, and takes a lock only after a reload.
pub struct View {
    tokens: Arc<Tokens>,
    generation: Cell<u64>,
    table: RefCell<Table>,
}

impl View {
    /// Creates a copy for the calling thread.
    #[must_use]
    pub fn new(tokens: Arc<Tokens>) -> View {
        // Reads the generation before the table. If the generation is older than the table, the thread only reads the
        // table once more. If it were newer, the thread would not notice a new table.
        let generation = tokens.generation.load(Ordering::Acquire);
        let table = tokens.current.read().clone();
        View { tokens, generation: Cell::new(generation), table: RefCell::new(table) }
    }

    /// Returns what `token` allows. `None`: the token is unknown.
    #[must_use]
    pub fn access(&self, token: &[u8]) -> Option<Access> {
        let generation = self.tokens.generation.load(Ordering::Acquire);
        if generation != self.generation.get() {
            *self.table.borrow_mut() = self.tokens.current.read().clone();
            self.generation.set(generation);
        }
        find(&self.table.borrow(), token)
    }
}

/// [`Access::ReadOnly`] as a number, because a number can be selected without a branch. 0 means no access.
const READ_ONLY: u8 = 1;
const READ_WRITE: u8 = 2;

/// Returns what `token` allows. Compares with all entries, so that the time does not depend on which entry matches.
fn find(table: &[Entry], token: &[u8]) -> Option<Access> {
    if token.len() > TOKEN_BYTES_MAX {
        // This reveals nothing: the sender knows the length.
        return None;
    }
    let digest = digest(token);
    let mut found = 0_u8;
    for entry in table {
        let access = match entry.access {
            Access::ReadOnly => READ_ONLY,
            Access::ReadWrite => READ_WRITE,
        };
        found = u8::conditional_select(&found, &access, entry.digest.ct_eq(&digest));
    }
    match found {
        READ_ONLY => Some(Access::ReadOnly),
        READ_WRITE => Some(Access::ReadWrite),
        _ => None,
    }
}

/// Returns the SHA-256 of a token. It takes the hash of a cipher suite, because klad's dependencies have no other
/// SHA-256.
fn digest(token: &[u8]) -> Digest {
    let suite = TLS13_AES_128_GCM_SHA256.tls13().expect("a suite of TLS 1.3, by its name");
    suite.common.hash_provider.hash(token).as_ref().try_into().expect("SHA-256 has 32 bytes")
}

/// The permission bits that a token file should not have. The group may read the file: often root owns it, and klad
/// runs as another user in the file's group.
const TOO_OPEN: u32 = 0o027;

fn read(path: &Path) -> Result<Table, Error> {
    let unreadable =
        |why: io::Error| Error::Unreadable { path: path.to_owned(), why: format!("{why}{}", advice(&why)) };
    let mut file = File::open(path).map_err(unreadable)?;
    let mode = file.metadata().map_err(unreadable)?.permissions().mode();
    let mut text = String::new();
    file.by_ref().take(TOKEN_FILE_BYTES_MAX + 1).read_to_string(&mut text).map_err(unreadable)?;
    if text.len() as u64 > TOKEN_FILE_BYTES_MAX {
        return Err(Error::TooLarge { path: path.to_owned() });
    }
    if mode & TOO_OPEN != 0 {
        // Files that a container mounts often have such a mode, and the operator cannot change it.
        tracing::warn!(
            path = %path.display(), mode = %format!("{:o}", mode & 0o777),
            "users other than the owner and group can read or change the token file, or its group can change it; \
             chmod 640 or 600 prevents that"
        );
    }
    let mut table: Vec<Entry> = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let at = |why| Error::Line { path: path.to_owned(), line: number + 1, why };
        let Some(entry) = parse(line).map_err(at)? else { continue };
        if table.iter().any(|other| other.digest == entry.digest) {
            return Err(at(LineError::Twice));
        }
        if table.len() == TOKENS_MAX {
            return Err(Error::TooLarge { path: path.to_owned() });
        }
        table.push(entry);
    }
    if table.is_empty() {
        return Err(Error::Empty { path: path.to_owned() });
    }
    Ok(table.into())
}

/// Returns advice to append to the message of the error; an empty text if there is none. Often one user creates the
/// file and another one reads it.
fn advice(cause: &io::Error) -> String {
    match cause.kind() {
        io::ErrorKind::PermissionDenied => format!(
            "; klad runs as user {}, group {}: let that user or group read it, as chown root:klad and chmod 640 do",
            rustix::process::geteuid().as_raw(),
            rustix::process::getegid().as_raw()
        ),
        _ => String::new(),
    }
}

/// Parses a line of a token file. `None`: the line is empty or a comment.
fn parse(line: &str) -> Result<Option<Entry>, LineError> {
    let mut words = line.split_whitespace();
    let Some(first) = words.next().filter(|first| !first.starts_with('#')) else { return Ok(None) };
    let access = match first {
        "read-write" => Access::ReadWrite,
        "read-only" => Access::ReadOnly,
        _ => return Err(LineError::Access),
    };
    let token = words.next().filter(|token| !token.starts_with('#')).ok_or(LineError::Missing)?;
    // The name helps people to find the line of a token that they want to remove.
    let name = words.next().filter(|name| !name.starts_with('#'));
    if name.is_some() && words.next().is_some_and(|more| !more.starts_with('#')) {
        return Err(LineError::Words);
    }
    let digest = match token.strip_prefix("sha256:") {
        Some(digits) => from_hexadecimal(digits).ok_or(LineError::Digest)?,
        None => digest(well_formed(token)?.as_bytes()),
    };
    Ok(Some(Entry { digest, access }))
}

fn well_formed(token: &str) -> Result<&str, LineError> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~+/=".contains(&byte);
    match token.len() {
        _ if !token.bytes().all(allowed) => Err(LineError::Characters),
        length if length < TOKEN_BYTES_MIN => Err(LineError::Short),
        length if length > TOKEN_BYTES_MAX => Err(LineError::Long),
        _ => Ok(token),
    }
}

fn from_hexadecimal(digits: &str) -> Option<Digest> {
    let mut digest = Digest::default();
    // Splits bytes, not characters, because a digit is one byte, and the next check rejects all other characters.
    let pairs = digits.as_bytes().chunks_exact(2);
    if digits.len() != 2 * digest.len() || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    for (byte, pair) in digest.iter_mut().zip(pairs) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(digest)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: &str = "0123456789abcdefghij";
    /// `printf 0123456789abcdefghij | sha256sum`
    const DIGITS: &str = "6bc14bdc4517a7a682c6910de2e2946eb8e1ecd04090728fef6d092a7ceb62c5";

    fn table(lines: &[&str]) -> Vec<Entry> {
        lines.iter().map(|line| parse(line).expect("well-formed").expect("a token")).collect()
    }

    #[test]
    fn a_token_is_found_whole_or_not_at_all() {
        let other = TOKEN.replace('0', "x");
        let table = table(&[&format!("read-only {other} reports"), &format!("read-write {TOKEN}")]);
        assert_eq!(find(&table, TOKEN.as_bytes()), Some(Access::ReadWrite));
        assert_eq!(find(&table, other.as_bytes()), Some(Access::ReadOnly));
        // Every prefix, an extension, a change of each bit, another case, nothing, and a token that is too long.
        for length in 0..TOKEN.len() {
            assert_eq!(find(&table, &TOKEN.as_bytes()[..length]), None, "{length}");
        }
        for bit in 0..TOKEN.len() * 8 {
            let mut changed = TOKEN.as_bytes().to_vec();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(find(&table, &changed), None, "bit {bit}");
        }
        assert_eq!(find(&table, format!("{TOKEN}k").as_bytes()), None);
        assert_eq!(find(&table, format!("{TOKEN}\0").as_bytes()), None);
        assert_eq!(find(&table, TOKEN.to_uppercase().as_bytes()), None);
        assert_eq!(find(&table, &[b'a'; TOKEN_BYTES_MAX + 1]), None);
        assert_eq!(find(&[], TOKEN.as_bytes()), None);
    }

    #[test]
    fn a_digest_stands_for_its_token() {
        let digits = digest(TOKEN.as_bytes()).iter().fold(String::new(), |digits, byte| format!("{digits}{byte:02x}"));
        for digits in [digits.clone(), digits.to_uppercase()] {
            let table = table(&[&format!("read-only sha256:{digits}")]);
            assert_eq!(find(&table, TOKEN.as_bytes()), Some(Access::ReadOnly));
            assert_eq!(find(&table, digits.as_bytes()), None, "the digest is no token");
        }
        assert_eq!(digits, DIGITS, "as sha256sum says");
    }

    #[test]
    fn lines_are_read_as_documented() {
        for nothing in ["", "   ", "# read-write 0123456789abcdefghij", "\t#"] {
            assert!(matches!(parse(nothing), Ok(None)), "{nothing:?}");
        }
        for (line, why) in [
            (format!("readwrite {TOKEN}"), LineError::Access),
            (TOKEN.to_owned(), LineError::Access),
            ("read-only".to_owned(), LineError::Missing),
            ("read-only # none".to_owned(), LineError::Missing),
            (format!("read-only {TOKEN} two words"), LineError::Words),
            ("read-only short".to_owned(), LineError::Short),
            (format!("read-only {}", "a".repeat(TOKEN_BYTES_MAX + 1)), LineError::Long),
            (format!("read-only {TOKEN},"), LineError::Characters),
            (format!("read-only sha256:{TOKEN}"), LineError::Digest),
            (format!("read-only sha256:{}", "é".repeat(32)), LineError::Digest),
        ] {
            assert_eq!(parse(&line).err(), Some(why), "{line}");
            assert!(!why.to_string().contains(TOKEN));
        }
        assert!(parse(&format!("  read-only\t{TOKEN} name # words about it")).expect("fine").is_some());
    }
}
