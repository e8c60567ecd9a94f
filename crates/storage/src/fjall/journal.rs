//! Reads fjall's journals before fjall does, which cuts off what it cannot read and never tells how much that was.
//!
//! ```text
//!   start  1 │ how many items 4 │ sequence number 8
//!   item   2 │ kind 1 │ compression 1 │ keyspace 8 │ key length 2 │ value length 4 │ stored length 4 │ key … │ stored value …
//!   clear  4 │ keyspace 8
//!   end    3 │ checksum of items and clears 8 │ "FJL" 3
//! ```
//!
//! All numbers are little-endian. A journal is made with 64 MiB of zeros, so zeros behind the last batch are its sound end; a start cuts
//! them off. A kill may leave a batch that is not whole, and a power cut anything, but only behind what was synced, and only
//! in the last journal: one is synced before the next is begun. Source: fjall 3.1.13, `src/journal/entry.rs`. Called by
//! `fjall_open`.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, Read, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::Xxh3Default;

const START: u8 = 1;
const ITEM: u8 = 2;
const END: u8 = 3;
const CLEAR: u8 = 4;

/// What ends a batch, behind its checksum.
const TRAILER: &[u8; 4] = b"FJL\x03";

/// What the name of a journal ends in; before it stands its number.
const ENDING: &str = ".jnl";

/// What the journals hold together.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Looked {
    /// How many there are.
    pub(super) journals: usize,
    /// The mark in the last whole batch of all.
    pub(super) last_mark: Option<u64>,
    /// What cannot have come from a crash.
    pub(super) oddity: Option<Oddity>,
    /// The last journal goes on behind its last whole batch.
    pub(super) torn: Option<Torn>,
}

/// What no crash leaves behind.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Oddity {
    /// There is a later journal and there are earlier ones, but not this.
    Missing {
        /// Its number.
        number: u64,
    },
    /// A journal that was synced and is not the last ends in something else than a batch.
    Broken {
        /// Which.
        journal: PathBuf,
        /// Where in it.
        position: u64,
    },
}

/// A batch that is not whole, at the end of the last journal.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Torn {
    pub(super) journal: PathBuf,
    /// Behind the last batch that is whole.
    pub(super) position: u64,
}

impl Torn {
    /// Leaves the whole batches; durable on return.
    pub(super) fn cut(&self) -> io::Result<()> {
        let file = OpenOptions::new().write(true).open(&self.journal)?;
        file.set_len(self.position)?;
        file.sync_all()
    }
}

/// One journal.
#[derive(Debug, Default, PartialEq, Eq)]
struct Walked {
    /// Behind the last whole batch.
    end: u64,
    last_mark: Option<u64>,
    last_sequence: Option<u64>,
    /// Something else than zeros stands there.
    goes_on: bool,
}

/// Reads all journals of `directory`; the value under `mark_key` in each batch is its mark. Changes nothing.
pub(super) fn look(directory: &Path, mark_key: &[u8]) -> io::Result<Looked> {
    let journals = list(directory)?;
    let mut looked = Looked { journals: journals.len(), ..Looked::default() };
    let (mut expected, mut sequence) = (None, None);
    for (position, (number, journal)) in journals.iter().enumerate() {
        if let Some(missing) = expected.filter(|expected| expected != number) {
            looked.oddity.get_or_insert(Oddity::Missing { number: missing });
        }
        expected = Some(number + 1);
        let walked = walk(journal, mark_key, sequence)?;
        sequence = walked.last_sequence;
        looked.last_mark = walked.last_mark.or(looked.last_mark);
        if walked.goes_on {
            let (journal, end) = (journal.clone(), walked.end);
            if position + 1 == journals.len() {
                looked.torn = Some(Torn { journal, position: end });
            } else {
                looked.oddity.get_or_insert(Oddity::Broken { journal, position: end });
            }
        }
    }
    Ok(looked)
}

/// By number.
fn list(directory: &Path) -> io::Result<Vec<(u64, PathBuf)>> {
    let mut journals = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.strip_suffix(ENDING)).and_then(|number| number.parse().ok());
        journals.extend(number.map(|number| (number, entry.path())));
    }
    journals.sort_unstable();
    Ok(journals)
}

/// Sequence numbers are not under the checksum, but each is greater than the `last`.
fn walk(journal: &Path, mark_key: &[u8], last: Option<u64>) -> io::Result<Walked> {
    let mut reader = BufReader::with_capacity(64 << 10, File::open(journal)?);
    let mut walked = Walked { last_sequence: last, ..Walked::default() };
    loop {
        let mut batch = Batch { reader: &mut reader, checksum: Xxh3Default::new(), bytes: 0, mark: None };
        match batch.read(mark_key) {
            Ok(Some(sequence)) if walked.last_sequence.is_none_or(|last| last < sequence) => {
                walked.last_sequence = Some(sequence);
                walked.end += batch.bytes;
                walked.last_mark = batch.mark.or(walked.last_mark);
            }
            Ok(_) => break,
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => break,
            Err(error) => return Err(error),
        }
    }
    reader.seek(SeekFrom::Start(walked.end))?;
    walked.goes_on = !is_zero(reader)?;
    Ok(walked)
}

fn is_zero(mut reader: impl Read) -> io::Result<bool> {
    const ZEROS: [u8; 16 << 10] = [0; 16 << 10];
    let mut chunk = ZEROS;
    loop {
        let count = reader.read(&mut chunk)?;
        if count == 0 || chunk[..count] != ZEROS[..count] {
            return Ok(count == 0);
        }
    }
}

/// One batch while it is read.
struct Batch<R> {
    reader: R,
    checksum: Xxh3Default,
    /// So many were taken.
    bytes: u64,
    mark: Option<u64>,
}

impl<R: Read> Batch<R> {
    /// The sequence number of the batch, if it is whole.
    fn read(&mut self, mark_key: &[u8]) -> io::Result<Option<u64>> {
        if self.take::<1>()? != [START] {
            return Ok(None);
        }
        let items = u32::from_le_bytes(self.take()?);
        let sequence = u64::from_le_bytes(self.take()?);
        for _ in 0..items {
            let known = match self.hash::<1>()? {
                [ITEM] => self.item(mark_key)?,
                [CLEAR] => self.hash::<8>().map(|_| true)?,
                _ => false,
            };
            if !known {
                return Ok(None);
            }
        }
        if self.take::<1>()? != [END] {
            return Ok(None);
        }
        let checksum = u64::from_le_bytes(self.take()?);
        let whole = self.take()? == *TRAILER && checksum == self.checksum.digest();
        Ok(whole.then_some(sequence))
    }

    /// What stands behind the tag.
    fn item(&mut self, mark_key: &[u8]) -> io::Result<bool> {
        let [_kind, _compression] = self.hash()?;
        let _keyspace: [u8; 8] = self.hash()?;
        let key_bytes = u16::from_le_bytes(self.hash()?);
        let _value_bytes: [u8; 4] = self.hash()?;
        let stored_bytes = u32::from_le_bytes(self.hash()?);
        if usize::from(key_bytes) != mark_key.len() {
            self.pass(u64::from(key_bytes) + u64::from(stored_bytes))?;
            return Ok(true);
        }
        let mut key = vec![0; mark_key.len()];
        self.reader.read_exact(&mut key)?;
        self.checksum.update(&key);
        self.bytes += u64::from(key_bytes);
        if key != mark_key {
            self.pass(u64::from(stored_bytes))?;
            return Ok(true);
        }
        if stored_bytes != 8 {
            return Ok(false);
        }
        self.mark = Some(u64::from_le_bytes(self.hash()?));
        Ok(true)
    }

    fn take<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.reader.read_exact(&mut bytes)?;
        self.bytes += N as u64;
        Ok(bytes)
    }

    /// As `take`, of what the checksum is over.
    fn hash<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let bytes = self.take()?;
        self.checksum.update(&bytes);
        Ok(bytes)
    }

    /// Values may be large: they are read in pieces.
    fn pass(&mut self, count: u64) -> io::Result<()> {
        let mut chunk = [0; 16 << 10];
        let mut left = count;
        while left > 0 {
            let part = left.min(chunk.len() as u64);
            let piece = &mut chunk[..usize::try_from(part).expect("at most a chunk")];
            self.reader.read_exact(piece)?;
            self.checksum.update(piece);
            left -= part;
        }
        self.bytes += count;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use fjall::{CompressionType, Database, KeyspaceCreateOptions};

    use super::*;

    const MARK: &[u8] = &[0];

    /// A database in which so many batches were written, of which each tenth is large; closed.
    fn filled(directory: &Path, batches: u64, compression: CompressionType) {
        let db = Database::builder(directory).journal_compression(compression).open().expect("opens");
        let keyspace = db.keyspace("data", KeyspaceCreateOptions::default).expect("opens");
        for number in 1..=batches {
            let mut batch = db.batch();
            let large = if number % 10 == 0 { 50_000 } else { 10 };
            batch.insert(&keyspace, format!("k{number}"), vec![b'v'; large]);
            batch.remove(&keyspace, [1]);
            batch.insert(&keyspace, MARK, number.to_le_bytes());
            batch.commit().expect("written");
        }
    }

    fn journal(directory: &Path) -> PathBuf {
        list(directory).expect("read").pop().expect("one").1
    }

    fn flip(path: &Path, position: u64) {
        let mut bytes = fs::read(path).expect("read");
        bytes[usize::try_from(position).expect("small")] ^= 1;
        fs::write(path, bytes).expect("written");
    }

    #[test]
    fn what_fjall_has_written_is_whole() {
        for compression in [CompressionType::None, CompressionType::Lz4] {
            let directory = tempfile::tempdir().expect("a directory");
            filled(directory.path(), 30, compression);
            let looked = look(directory.path(), MARK).expect("read");
            assert_eq!(looked, Looked { journals: 1, last_mark: Some(30), oddity: None, torn: None });
            // With its zeros cut off as well.
            drop(Database::builder(directory.path()).open().expect("opens"));
            assert_eq!(look(directory.path(), MARK).expect("read"), looked);
        }
    }

    /// Wherever a bit is wrong, what stands before is what is left, and fjall opens it once it is cut there.
    #[test]
    fn a_flipped_bit_ends_the_journal_there_and_the_rest_opens() {
        let whole = tempfile::tempdir().expect("a directory");
        filled(whole.path(), 12, CompressionType::None);
        // Without its zeros, which take time.
        drop(Database::builder(whole.path()).open().expect("opens"));
        let end = walk(&journal(whole.path()), MARK, None).expect("read").end;
        let mut random = fastrand::Rng::with_seed(7);
        let (mut least, mut most) = (u64::MAX, 0);
        for position in std::iter::repeat_with(|| random.u64(..end)).take(60).chain([0, end - 1]) {
            flip(&journal(whole.path()), position);
            let looked = look(whole.path(), MARK).expect("read");
            flip(&journal(whole.path()), position);
            let torn = looked.torn.expect("something stands behind the last whole batch");
            assert!(torn.position <= position, "{torn:?} behind {position}");
            let marked = looked.last_mark.unwrap_or(0);
            assert!(marked < 12);
            (least, most) = (least.min(marked), most.max(marked));
        }
        assert_eq!((least, most), (0, 11));
        // The checksum of a batch in the middle: fjall alone refuses to open.
        flip(&journal(whole.path()), end / 2);
        assert!(Database::builder(whole.path()).open().is_err(), "then the cut is not needed any more");
        let torn = look(whole.path(), MARK).expect("read").torn.expect("torn");
        torn.cut().expect("cut");
        let db = Database::builder(whole.path()).open().expect("opens");
        let keyspace = db.keyspace("data", KeyspaceCreateOptions::default).expect("opens");
        let mark = keyspace.get(MARK).expect("read").expect("there");
        assert_eq!(
            Some(u64::from_le_bytes((*mark).try_into().expect("eight"))),
            look(whole.path(), MARK).expect("read").last_mark
        );
    }

    #[test]
    fn journals_that_are_missing_or_broken_before_the_last_are_odd() {
        let directory = tempfile::tempdir().expect("a directory");
        filled(directory.path(), 5, CompressionType::None);
        let first = journal(directory.path());
        assert!(first.ends_with("0.jnl"));
        fs::copy(&first, directory.path().join("2.jnl")).expect("copied");
        let missing = Some(Oddity::Missing { number: 1 });
        assert_eq!(look(directory.path(), MARK).expect("read").oddity, missing);
        fs::rename(directory.path().join("2.jnl"), directory.path().join("1.jnl")).expect("renamed");
        assert_eq!(look(directory.path(), MARK).expect("read").oddity, None);
        flip(&first, 20);
        let broken = Some(Oddity::Broken { journal: first, position: 0 });
        assert_eq!(look(directory.path(), MARK).expect("read").oddity, broken);
    }
}
