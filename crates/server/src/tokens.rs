//! The bearer tokens that klad takes, from a file: who may read, and who may write as well.
//!
//! Only digests are held. A token that a client sends is hashed and compared with every digest, each in full, so that the time
//! says neither which one was nearest nor how far it was right. Nothing here ever prints a token. Loaded by `config`, asked by
//! `http` for each request, reloaded by `main`.

use std::cell::{Cell, RefCell};
use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustls::crypto::ring::cipher_suite::TLS13_AES_128_GCM_SHA256;
use subtle::{ConditionallySelectable as _, ConstantTimeEq as _};

use klad_base::limits::{TOKEN_BYTES_MAX, TOKEN_BYTES_MIN, TOKEN_FILE_BYTES_MAX, TOKENS_MAX};
use klad_base::sync::RwLock;

/// What a token is good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Everything that changes nothing.
    ReadOnly,
    /// Everything.
    ReadWrite,
}

/// Why a file of tokens is not used. None of them quotes the file: it would quote a token.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum Error {
    /// The kernel gives no bytes, or they are no text.
    #[error("cannot read the tokens in {path}: {why}", path = path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What was said.
        why: String,
    },
    /// More than any such file holds.
    #[error(
        "{path} is larger than {TOKEN_FILE_BYTES_MAX} bytes, or holds more than {TOKENS_MAX} tokens: is it a file of tokens?",
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
        /// From 1.
        line: usize,
        /// What is wrong with it.
        why: LineError,
    },
    /// With no token nobody could do anything.
    #[error("{path} holds no token; a line is for example: read-write TOKEN", path = path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
}

/// What is wrong with a line.
#[derive(Clone, Copy, Debug, thiserror::Error, PartialEq, Eq)]
pub enum LineError {
    /// Unknown first word.
    #[error("a line begins with read-write or read-only")]
    Access,
    /// One word.
    #[error("a token is missing")]
    Missing,
    /// More than three words.
    #[error("there is more than an access, a token and a name, which has no spaces")]
    Words,
    /// Easily guessed.
    #[error("a token has at least {TOKEN_BYTES_MIN} characters")]
    Short,
    /// Would not fit comfortably into a header.
    #[error("a token has at most {TOKEN_BYTES_MAX} characters")]
    Long,
    /// No client could send it.
    #[error("a token is made of letters, digits and - . _ ~ + / =, as in RFC 6750")]
    Characters,
    /// Not a digest.
    #[error("after sha256: there are 64 hexadecimal digits")]
    Digest,
    /// It would be good for both.
    #[error("the same token stands in an earlier line")]
    Twice,
}

/// SHA-256.
type Digest = [u8; 32];

#[derive(Clone, Copy)]
struct Entry {
    digest: Digest,
    access: Access,
}

type Table = Arc<[Entry]>;

/// The tokens of a file, as of the last time it was read.
pub struct Tokens {
    path: PathBuf,
    current: RwLock<Table>,
    /// One more with each reload.
    generation: AtomicU64,
}

impl Tokens {
    /// Reads `path`.
    ///
    /// # Errors
    /// [`Error`].
    pub fn load(path: &Path) -> Result<Tokens, Error> {
        let table = read(path)?;
        Ok(Tokens { path: path.to_owned(), current: RwLock::new(table), generation: AtomicU64::new(0) })
    }

    /// Reads the file again; the next request of each connection meets the new tokens. Returns how many there are.
    ///
    /// # Errors
    /// [`Error`]; the tokens are then as they were.
    pub fn reload(&self) -> Result<usize, Error> {
        let table = read(&self.path)?;
        let count = table.len();
        *self.current.write() = table;
        // After the table: whoever sees this number finds that table or a newer one.
        self.generation.fetch_add(1, Ordering::Release);
        Ok(count)
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.current.read().len()
    }
}

/// Without the digests: short tokens could be found from them.
impl std::fmt::Debug for Tokens {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Tokens").field("path", &self.path).field("count", &self.count()).finish_non_exhaustive()
    }
}

/// One thread's copy: a request costs a look at the generation, and no lock but after a reload.
pub struct View {
    tokens: Arc<Tokens>,
    generation: Cell<u64>,
    table: RefCell<Table>,
}

impl View {
    /// Of `tokens`, for the calling thread.
    #[must_use]
    pub fn new(tokens: Arc<Tokens>) -> View {
        // Before the table: an older number than the table's costs one more look, a newer one would hide a table.
        let generation = tokens.generation.load(Ordering::Acquire);
        let table = tokens.current.read().clone();
        View { tokens, generation: Cell::new(generation), table: RefCell::new(table) }
    }

    /// What `token` is good for; `None`: nothing.
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

/// [`Access`] as a number, which can be chosen without a branch; 0 is none.
const READ_ONLY: u8 = 1;
const READ_WRITE: u8 = 2;

/// Looks at all entries, whichever is the right one.
fn find(table: &[Entry], token: &[u8]) -> Option<Access> {
    if token.len() > TOKEN_BYTES_MAX {
        // Whoever sent it knows how long it is.
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

/// With the hash of a cipher suite: there is no other way to SHA-256 among what klad is made of anyway.
fn digest(token: &[u8]) -> Digest {
    let suite = TLS13_AES_128_GCM_SHA256.tls13().expect("a suite of TLS 1.3, by its name");
    suite.common.hash_provider.hash(token).as_ref().try_into().expect("SHA-256 has 32 bytes")
}

/// The group may read: root owns the file and klad runs as another user, who is reached by the group.
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
        // Files that a container mounts are often like this, and cannot be helped.
        tracing::warn!(
            path = %path.display(), mode = %format!("{:o}", mode & 0o777),
            "others than its owner and group may use the file of tokens, or its group may change it; \
             chmod 640 or 600 keeps them out"
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

/// What to do about the kernel's answer, where that can be said: who made the file is often not who reads it.
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

/// `None` where a line holds nothing.
fn parse(line: &str) -> Result<Option<Entry>, LineError> {
    let mut words = line.split_whitespace();
    let Some(first) = words.next().filter(|first| !first.starts_with('#')) else { return Ok(None) };
    let access = match first {
        "read-write" => Access::ReadWrite,
        "read-only" => Access::ReadOnly,
        _ => return Err(LineError::Access),
    };
    let token = words.next().filter(|token| !token.starts_with('#')).ok_or(LineError::Missing)?;
    // A name is for people, who must find the line to remove.
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
    // Bytes and not characters: a digit is one byte, and what is none fails below.
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
        // Every prefix, an extension, a change of each bit, other case, nothing, and more than any token has.
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
