//! A bulk load: the entries of an import become whole tables of a data directory that no process serves. The engine
//! runs in this process. Called by `import`.

use std::path::Path;
use std::sync::Arc;

use crate::client::Error;
use crate::client::directory::{in_words, value};
use crate::client::entry::Entry;
use crate::client::import::{Batch, Target};
use crate::client::limits::{LOAD_BYTES, LOAD_ENTRIES};
use crate::client::list_args::ImportArgs;
use crate::disk;
use klad_storage::Engine;
use klad_storage::bulk_load::{BulkLoad, LoadEntry};
use klad_storage::maintenance;

/// A load into a data directory.
pub(super) struct Load {
    engine: Arc<dyn Engine>,
    if_absent: bool,
}

impl Load {
    /// Opens a data directory, or creates it.
    ///
    /// # Errors
    /// [`Error::Directory`]; [`Error::Usage`] if the engine has no bulk loads.
    pub(super) fn open(path: &Path, args: &ImportArgs) -> Result<Load, Error> {
        let options = disk::Options { bulk_load: true, ..disk::Options::default() };
        let compression = args.compression.unwrap_or(options.compression);
        let engine = disk::open_or_create(path, None, disk::Options { compression, ..options })?;
        let load = Load { engine, if_absent: args.if_absent };
        if load.tables().is_none() {
            return Err(Error::Usage(format!(
                "--into needs a directory of the engine rocksdb, and {} has the engine {}: use --data",
                path.display(),
                load.engine.name()
            )));
        }
        Ok(load)
    }

    fn tables(&self) -> Option<&dyn BulkLoad> {
        self.engine.local_disk()?.bulk_load()
    }
}

impl Target for Load {
    type Item = LoadEntry;

    fn is_full(&self, items: u64, bytes: u64, next_bytes: u64) -> bool {
        items >= LOAD_ENTRIES || bytes + next_bytes > LOAD_BYTES
    }

    fn item(&self, entry: &Entry<'_>, expires_at_ms: Option<u64>) -> Result<LoadEntry, String> {
        let value = value(entry, expires_at_ms).map_err(|error| in_words(&error))?;
        Ok(LoadEntry::new(&entry.key, &value))
    }

    fn bytes(entry: &LoadEntry) -> usize {
        entry.bytes()
    }

    fn store(&mut self, batch: Batch<LoadEntry>) -> Result<u64, Error> {
        self.tables().expect("it was checked").load(batch.items, self.if_absent).map_err(|error| failed(&error))
    }

    fn finish(&mut self) -> Result<(), Error> {
        self.tables().expect("it was checked").finish().map_err(|error| failed(&error))
    }
}

fn failed(error: &maintenance::Error) -> Error {
    Error::Failed(format!("cannot load the entries: {error}"))
}
