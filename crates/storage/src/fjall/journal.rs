//! Reads fjall's journals before fjall does. fjall truncates a journal at the first entry that it cannot read, and
//! does not report how much it removed.
//!
//! ```text
//!   start  1 │ number of items 4 │ sequence number 8
//!   item   2 │ kind 1 │ compression 1 │ keyspace 8 │ key length 2 │ value length 4 │ stored length 4
//!            │ key … │ stored value …
//!   clear  4 │ keyspace 8
//!   end    3 │ checksum of items and clears 8 │ "FJL" 3
//! ```
//!
//! A batch is one start, its items, and one end. All numbers are little-endian. fjall creates a journal with 64 MiB of
//! zeros, so zeros after the last batch are a valid end; a start removes them. A kill may leave an incomplete batch,
//! and a power cut may leave any bytes, but only after the last sync and only in the last journal: fjall syncs a
//! journal before it starts the next. Source: fjall 3.1.13, `src/journal/entry.rs`. Called by `fjall::open`.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, Read, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::Xxh3Default;

const START: u8 = 1;
const ITEM: u8 = 2;
const END: u8 = 3;
const CLEAR: u8 = 4;

/// The bytes after the checksum, which end a batch.
const TRAILER: &[u8; 4] = b"FJL\x03";

/// The extension of a journal's name. The rest of the name is its number.
const EXTENSION: &str = ".jnl";

/// The result of reading all journals.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct JournalScan {
    /// The number of journals.
    pub(super) journals: usize,
    /// The mark in the last complete batch (see [`scan`]).
    pub(super) last_mark: Option<u64>,
    /// The first defect that a crash cannot cause.
    pub(super) defect: Option<JournalDefect>,
    /// The incomplete batch at the end of the last journal.
    pub(super) torn_tail: Option<TornTail>,
}

/// A defect that a crash cannot cause.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum JournalDefect {
    /// A journal between two others is missing.
    Missing {
        /// The number of the missing journal.
        number: u64,
    },
    /// A journal before the last one does not end in a complete batch, although fjall has synced that journal.
    Broken {
        /// The journal.
        journal: PathBuf,
        /// The position at which the last complete batch of the journal ends, bytes.
        position: u64,
    },
}

/// An incomplete batch at the end of the last journal.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TornTail {
    pub(super) journal: PathBuf,
    /// The position at which the last complete batch ends, bytes.
    pub(super) position: u64,
}

impl TornTail {
    /// Truncates the journal after its last complete batch; durable on return.
    pub(super) fn truncate(&self) -> io::Result<()> {
        let file = OpenOptions::new().write(true).open(&self.journal)?;
        file.set_len(self.position)?;
        file.sync_all()
    }
}

/// The result of reading one journal.
#[derive(Debug, Default, PartialEq, Eq)]
struct JournalFileScan {
    /// The position at which the last complete batch ends, bytes.
    end: u64,
    last_mark: Option<u64>,
    last_sequence: Option<u64>,
    /// Whether there are bytes other than zero after `end`.
    has_torn_tail: bool,
}

/// Reads all journals of `directory`. The value of `mark_key` in a batch is the batch's mark. Changes nothing.
pub(super) fn scan(directory: &Path, mark_key: &[u8]) -> io::Result<JournalScan> {
    let journals = list(directory)?;
    let mut scan = JournalScan { journals: journals.len(), ..JournalScan::default() };
    let (mut expected, mut sequence) = (None, None);
    for (index, (number, journal)) in journals.iter().enumerate() {
        if let Some(missing) = expected.filter(|expected| expected != number) {
            scan.defect.get_or_insert(JournalDefect::Missing { number: missing });
        }
        expected = Some(number + 1);
        let file = scan_file(journal, mark_key, sequence)?;
        sequence = file.last_sequence;
        scan.last_mark = file.last_mark.or(scan.last_mark);
        if file.has_torn_tail {
            let (journal, position) = (journal.clone(), file.end);
            if index + 1 == journals.len() {
                scan.torn_tail = Some(TornTail { journal, position });
            } else {
                scan.defect.get_or_insert(JournalDefect::Broken { journal, position });
            }
        }
    }
    Ok(scan)
}

/// Lists the journals in `directory`, sorted by number.
fn list(directory: &Path) -> io::Result<Vec<(u64, PathBuf)>> {
    let mut journals = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.strip_suffix(EXTENSION)).and_then(|number| number.parse().ok());
        journals.extend(number.map(|number| (number, entry.path())));
    }
    journals.sort_unstable();
    Ok(journals)
}

/// Reads one journal. The checksum does not cover sequence numbers. So this function checks that each number is greater
/// than the one before, and that the first is greater than `last`.
fn scan_file(journal: &Path, mark_key: &[u8], last: Option<u64>) -> io::Result<JournalFileScan> {
    let mut reader = BufReader::with_capacity(64 << 10, File::open(journal)?);
    let mut scan = JournalFileScan { last_sequence: last, ..JournalFileScan::default() };
    loop {
        let mut batch = Batch { reader: &mut reader, checksum: Xxh3Default::new(), bytes: 0, mark: None };
        match batch.read(mark_key) {
            Ok(Some(sequence)) if scan.last_sequence.is_none_or(|last| last < sequence) => {
                scan.last_sequence = Some(sequence);
                scan.end += batch.bytes;
                scan.last_mark = batch.mark.or(scan.last_mark);
            }
            Ok(_) => break,
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => break,
            Err(error) => return Err(error),
        }
    }
    reader.seek(SeekFrom::Start(scan.end))?;
    scan.has_torn_tail = !is_zero(reader)?;
    Ok(scan)
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

/// The state of reading one batch.
struct Batch<R> {
    reader: R,
    checksum: Xxh3Default,
    /// The number of bytes read so far.
    bytes: u64,
    mark: Option<u64>,
}

impl<R: Read> Batch<R> {
    /// Reads the batch and returns its sequence number; `None` if the batch is not complete.
    fn read(&mut self, mark_key: &[u8]) -> io::Result<Option<u64>> {
        if self.take::<1>()? != [START] {
            return Ok(None);
        }
        let items = u32::from_le_bytes(self.take()?);
        let sequence = u64::from_le_bytes(self.take()?);
        for _ in 0..items {
            let valid = match self.hash::<1>()? {
                [ITEM] => self.item(mark_key)?,
                [CLEAR] => self.hash::<8>().map(|_| true)?,
                _ => false,
            };
            if !valid {
                return Ok(None);
            }
        }
        if self.take::<1>()? != [END] {
            return Ok(None);
        }
        let checksum = u64::from_le_bytes(self.take()?);
        let complete = self.take()? == *TRAILER && checksum == self.checksum.digest();
        Ok(complete.then_some(sequence))
    }

    /// Reads an item after its tag. Returns whether the item is valid.
    fn item(&mut self, mark_key: &[u8]) -> io::Result<bool> {
        let [_kind, _compression] = self.hash()?;
        let _keyspace: [u8; 8] = self.hash()?;
        let key_bytes = u16::from_le_bytes(self.hash()?);
        let _value_bytes: [u8; 4] = self.hash()?;
        let stored_bytes = u32::from_le_bytes(self.hash()?);
        if usize::from(key_bytes) != mark_key.len() {
            self.skip(u64::from(key_bytes) + u64::from(stored_bytes))?;
            return Ok(true);
        }
        let mut key = vec![0; mark_key.len()];
        self.reader.read_exact(&mut key)?;
        self.checksum.update(&key);
        self.bytes += u64::from(key_bytes);
        if key != mark_key {
            self.skip(u64::from(stored_bytes))?;
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

    /// As `take`, and adds the bytes to the checksum.
    fn hash<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let bytes = self.take()?;
        self.checksum.update(&bytes);
        Ok(bytes)
    }

    /// Skips `count` bytes and adds them to the checksum. Reads in pieces, because values may be large.
    fn skip(&mut self, count: u64) -> io::Result<()> {
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

    /// Writes `batches` to a new database and closes it. Every tenth batch is large.
    fn fill(directory: &Path, batches: u64, compression: CompressionType) {
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
    fn a_journal_that_fjall_has_closed_is_complete() {
        for compression in [CompressionType::None, CompressionType::Lz4] {
            let directory = tempfile::tempdir().expect("a directory");
            fill(directory.path(), 30, compression);
            let found = scan(directory.path(), MARK).expect("read");
            assert_eq!(found, JournalScan { journals: 1, last_mark: Some(30), defect: None, torn_tail: None });
            // fjall removes the zeros at the end when it opens the journal; the scan then finds the same.
            drop(Database::builder(directory.path()).open().expect("opens"));
            assert_eq!(scan(directory.path(), MARK).expect("read"), found);
        }
    }

    /// Wherever a bit is flipped, the scan finds all batches before it, and fjall opens the truncated journal.
    #[test]
    fn a_journal_ends_before_a_flipped_bit_and_opens_after_truncation() {
        let whole = tempfile::tempdir().expect("a directory");
        fill(whole.path(), 12, CompressionType::None);
        // This removes the zeros at the end, which take time to read.
        drop(Database::builder(whole.path()).open().expect("opens"));
        let end = scan_file(&journal(whole.path()), MARK, None).expect("read").end;
        let mut random = fastrand::Rng::with_seed(7);
        let (mut least, mut most) = (u64::MAX, 0);
        for position in std::iter::repeat_with(|| random.u64(..end)).take(60).chain([0, end - 1]) {
            flip(&journal(whole.path()), position);
            let found = scan(whole.path(), MARK).expect("read");
            flip(&journal(whole.path()), position);
            let torn_tail = found.torn_tail.expect("there are bytes after the last complete batch");
            assert!(torn_tail.position <= position, "{torn_tail:?} after {position}");
            let mark = found.last_mark.unwrap_or(0);
            assert!(mark < 12);
            (least, most) = (least.min(mark), most.max(mark));
        }
        assert_eq!((least, most), (0, 11));
        // fjall itself fails to open a journal with a wrong checksum in the middle.
        flip(&journal(whole.path()), end / 2);
        assert!(Database::builder(whole.path()).open().is_err(), "if fjall opens it, klad need not truncate it");
        let torn_tail = scan(whole.path(), MARK).expect("read").torn_tail.expect("torn");
        torn_tail.truncate().expect("truncated");
        let db = Database::builder(whole.path()).open().expect("opens");
        let keyspace = db.keyspace("data", KeyspaceCreateOptions::default).expect("opens");
        let mark = keyspace.get(MARK).expect("read").expect("there");
        assert_eq!(
            Some(u64::from_le_bytes((*mark).try_into().expect("eight"))),
            scan(whole.path(), MARK).expect("read").last_mark
        );
    }

    #[test]
    fn a_missing_or_broken_journal_before_the_last_is_a_defect() {
        let directory = tempfile::tempdir().expect("a directory");
        fill(directory.path(), 5, CompressionType::None);
        let first = journal(directory.path());
        assert!(first.ends_with("0.jnl"));
        fs::copy(&first, directory.path().join("2.jnl")).expect("copied");
        let missing = Some(JournalDefect::Missing { number: 1 });
        assert_eq!(scan(directory.path(), MARK).expect("read").defect, missing);
        fs::rename(directory.path().join("2.jnl"), directory.path().join("1.jnl")).expect("renamed");
        assert_eq!(scan(directory.path(), MARK).expect("read").defect, None);
        flip(&first, 20);
        let broken = Some(JournalDefect::Broken { journal: first, position: 0 });
        assert_eq!(scan(directory.path(), MARK).expect("read").defect, broken);
    }
}
