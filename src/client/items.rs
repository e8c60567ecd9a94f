//! Splits a stream of bytes into items: lines of NDJSON, or data items of a CBOR sequence (RFC 8742). The stream is an
//! answer, a file or the standard input. Called by `list`, `batch`, `watch`, `export` and `import`.
//!
//! ```text
//!   buffer:  consumed │ the next item │ bytes of later items │
//!                   begin            end                    len
//! ```

use std::io::{self, Read};

use clap::ValueEnum;

use crate::client::limits::CLIENT_ITEM_BYTES_MAX;

/// Number of bytes to read at a time, at least.
const READ_BYTES: usize = 64 << 10;

/// The form of a sequence of items.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// One JSON object on each line.
    Ndjson,
    /// A CBOR sequence (RFC 8742) of maps.
    Cbor,
}

impl Format {
    /// Returns the media type.
    pub(super) fn media_type(self) -> &'static str {
        match self {
            Format::Ndjson => "application/x-ndjson",
            Format::Cbor => "application/cbor-seq",
        }
    }
}

/// Why there is no next item.
#[derive(Debug, thiserror::Error)]
pub(super) enum ItemError {
    /// The stream cannot be read.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The stream ends in the middle of an item.
    #[error("the last item is incomplete")]
    Cut,
    /// The item is longer than any entry can be.
    #[error("an item is longer than a server can store")]
    TooLong,
    /// The bytes are not CBOR.
    #[error("the bytes are not a CBOR sequence: {0}")]
    NotCbor(String),
}

/// The items of a stream.
pub(super) struct Items<R> {
    source: R,
    format: Format,
    buffer: Vec<u8>,
    begin: usize,
    /// The end of the next item, if it is known. With NDJSON it is behind the line feed.
    end: Option<usize>,
    /// Where the search for the end continues.
    searched: usize,
    /// The number of bytes of all items that were returned, including the separators.
    offset: u64,
    source_ended: bool,
}

impl<R: Read> Items<R> {
    /// Starts before the first item of `source`.
    pub(super) fn new(source: R, format: Format) -> Items<R> {
        Items { source, format, buffer: Vec::new(), begin: 0, end: None, searched: 0, offset: 0, source_ended: false }
    }

    /// Starts before the first item of `source`, whose first byte tells the format: `{` and white space begin NDJSON.
    ///
    /// # Errors
    /// [`ItemError::Io`].
    pub(super) fn detect(source: R) -> Result<Items<R>, ItemError> {
        let mut items = Items::new(source, Format::Ndjson);
        while items.buffer.is_empty() && !items.source_ended {
            items.fill()?;
        }
        if items.buffer.first().is_some_and(|first| !first.is_ascii_whitespace() && *first != b'{') {
            items.format = Format::Cbor;
        }
        Ok(items)
    }

    pub(super) fn format(&self) -> Format {
        self.format
    }

    /// Returns the number of bytes of all items that were returned.
    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    /// Returns whether the next item was received completely, so that [`Items::next`] does not wait.
    ///
    /// # Errors
    /// [`ItemError`].
    pub(super) fn is_ready(&mut self) -> Result<bool, ItemError> {
        loop {
            if self.end.is_none() {
                self.end = match self.format {
                    Format::Ndjson => self.line_end(),
                    Format::Cbor => self.map_end()?,
                };
            }
            let Some(end) = self.end else { return Ok(false) };
            if self.format == Format::Cbor || !self.buffer[self.begin..end].trim_ascii().is_empty() {
                return Ok(true);
            }
            self.pass(end);
        }
    }

    /// Returns the next item without separators; `None` at the end. Empty lines are no items. The last line needs no
    /// line feed.
    ///
    /// # Errors
    /// [`ItemError`].
    pub(super) fn next(&mut self) -> Result<Option<&[u8]>, ItemError> {
        while !self.is_ready()? {
            if self.source_ended {
                if self.buffer[self.begin..].trim_ascii().is_empty() {
                    return Ok(None);
                }
                if self.format == Format::Cbor {
                    return Err(ItemError::Cut);
                }
                self.end = Some(self.buffer.len());
            } else {
                self.fill()?;
            }
        }
        let (begin, end) = (self.begin, self.end.expect("the item is complete"));
        self.pass(end);
        Ok(Some(match self.format {
            Format::Ndjson => self.buffer[begin..end].trim_ascii(),
            Format::Cbor => &self.buffer[begin..end],
        }))
    }

    /// Moves the begin of the next item to `end`.
    fn pass(&mut self, end: usize) {
        self.offset += (end - self.begin) as u64;
        (self.begin, self.searched, self.end) = (end, end, None);
    }

    fn line_end(&mut self) -> Option<usize> {
        let found = memchr::memchr(b'\n', &self.buffer[self.searched..]).map(|at| self.searched + at + 1);
        self.searched = self.buffer.len();
        found
    }

    fn map_end(&mut self) -> Result<Option<usize>, ItemError> {
        // The decoder starts at the begin of the item each time. This is fast, because it skips a member in one step,
        // whatever the length of the member is.
        let mut decoder = minicbor::Decoder::new(&self.buffer[self.begin..]);
        match decoder.skip() {
            Ok(()) => Ok(Some(self.begin + decoder.position())),
            Err(error) if error.is_end_of_input() => Ok(None),
            Err(error) => Err(ItemError::NotCbor(error.to_string())),
        }
    }

    fn fill(&mut self) -> Result<(), ItemError> {
        self.buffer.drain(..self.begin);
        self.searched -= self.begin;
        self.begin = 0;
        let before = self.buffer.len();
        if before as u64 > CLIENT_ITEM_BYTES_MAX {
            return Err(ItemError::TooLong);
        }
        self.buffer.resize(before + before.max(READ_BYTES), 0);
        let read = loop {
            match self.source.read(&mut self.buffer[before..]) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                read => break read,
            }
        };
        self.buffer.truncate(before + *read.as_ref().unwrap_or(&0));
        self.source_ended = read? == 0;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives one byte at a time, or all.
    struct Slow<'a>(&'a [u8], usize);

    impl Read for Slow<'_> {
        fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
            let count = self.1.min(self.0.len()).min(out.len());
            out[..count].copy_from_slice(&self.0[..count]);
            self.0 = &self.0[count..];
            Ok(count)
        }
    }

    fn all(bytes: &[u8], format: Format) -> (Vec<Vec<u8>>, u64, bool) {
        let mut results = [1, usize::MAX].into_iter().map(|step| {
            let mut items = Items::new(Slow(bytes, step), format);
            let mut found = Vec::new();
            loop {
                match items.next() {
                    Ok(Some(item)) => found.push(item.to_vec()),
                    Ok(None) => return (found, items.offset(), true),
                    Err(_) => return (found, items.offset(), false),
                }
            }
        });
        let (first, second) = (results.next().expect("two"), results.next().expect("two"));
        assert_eq!(first.0, second.0);
        second
    }

    #[test]
    fn lines_are_items() {
        let (items, offset, whole) = all(b"{}\n\n {\"a\":1}\r\n \n{}", Format::Ndjson);
        assert_eq!(items, [&b"{}"[..], b"{\"a\":1}", b"{}"]);
        assert!(whole && offset == 18, "{offset}");
        assert_eq!(all(b"", Format::Ndjson).0.len(), 0);
    }

    #[test]
    fn data_items_are_items() {
        // {"a": h'0a0a'}, {}, and the beginning of another one.
        let sequence = b"\xa1\x61a\x42\n\n\xa0";
        let (items, offset, whole) = all(sequence, Format::Cbor);
        assert_eq!(items, [&sequence[..6], b"\xa0"]);
        assert!(whole && offset == 7);
        let (items, offset, whole) = all(b"\xa0\xa1\x61a\x42\n", Format::Cbor);
        assert!(items.len() == 1 && offset == 1 && !whole);
    }

    #[test]
    fn the_first_byte_tells_the_format() {
        let format = |bytes: &[u8]| Items::detect(bytes).map(|items| items.format()).ok();
        assert_eq!(format(b"{}"), Some(Format::Ndjson));
        assert_eq!(format(b"\n{}"), Some(Format::Ndjson));
        assert_eq!(format(b""), Some(Format::Ndjson));
        assert_eq!(format(b"\xa0"), Some(Format::Cbor));
        assert_eq!(format(b"\xbf"), Some(Format::Cbor));
    }
}
