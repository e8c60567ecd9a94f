//! Reads the whole store in one range and compares every entry. Called by the chores.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context as _, Result, bail, ensure};

use crate::entries::Entries;
use crate::http::{Connection, Framing};

/// From the first possible key: an empty `start` is refused by the contract.
const WHOLE: &str = "/v0/entities?start=%00";

/// Checks that the range from the first key to the last is exactly `entries`: complete, ascending, each in a chunk of its
/// own with its value. Counts them in `done`.
pub(crate) fn check_whole(address: SocketAddr, entries: Entries, done: &AtomicU64) -> Result<()> {
    let mut connection = Connection::open(address)?;
    connection.send_get(WHOLE)?;
    let head = connection.head()?;
    ensure!(head.status == 200, "the range is answered {}", head.status);
    ensure!(head.framing == Framing::Chunked, "the range is not answered in chunks");
    let mut expected = Vec::new();
    for index in 0..entries.count {
        expected.clear();
        expected.extend_from_slice(entries.key(index).as_bytes());
        expected.push(b'\n');
        entries.push_value(index, &mut expected);
        let Some(chunk) = connection.chunk().with_context(|| format!("the range breaks off at entry {index}"))? else {
            bail!("the range ends after {index} of {} entries", entries.count);
        };
        if chunk != expected {
            let key = chunk.split(|byte| *byte == b'\n').next().unwrap_or_default();
            bail!("the range has {} where {} with its value belongs", key.escape_ascii(), entries.key(index));
        }
        done.fetch_add(1, Ordering::Relaxed);
    }
    ensure!(connection.chunk()?.is_none(), "the range goes on after {} entries", entries.count);
    Ok(())
}
