//! Opens a data directory that no process serves, with the same checks as `klad serve`. Called by `offline`, and by
//! `client` for `klad export --data`, `klad import --data` and `--into`.

use std::path::Path;
use std::sync::Arc;

#[cfg(any(feature = "fjall", feature = "rocksdb"))]
use klad_base::limits::ENGINE_FILES_MAX;
#[cfg(any(feature = "fjall", feature = "rocksdb"))]
use klad_base::os::descriptors;
use klad_server::limits::DISK_RESERVE_BYTES;
use klad_storage::changes::Retention;
use klad_storage::disk::directory::{self, Error as DirectoryError};
#[cfg(feature = "fjall")]
use klad_storage::fjall::{FjallEngine, OpenError as FjallError, Options as FjallOptions};
#[cfg(any(feature = "fjall", feature = "rocksdb"))]
#[cfg(feature = "rocksdb")]
use klad_storage::rocksdb::{OpenError as RocksDbError, Options as RocksDbOptions, RocksDbEngine};
use klad_storage::{Compression, Engine};

/// The engines of this build that keep data on a disk, the default first.
pub const ENGINES: &[&str] = &[
    #[cfg(feature = "rocksdb")]
    "rocksdb",
    #[cfg(feature = "fjall")]
    "fjall",
];

/// How a command opens a data directory.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Free disk space that the engine does not use, bytes.
    pub disk_reserve_bytes: u64,
    /// Compression of new tables.
    pub compression: Compression,
    /// How many old changes the engine keeps for change feeds.
    pub changes: Retention,
    /// Whether the engine is opened for a bulk load, if it has bulk loads.
    pub bulk_load: bool,
}

impl Default for Options {
    /// The defaults of `klad serve`, except that the engine deletes no old changes: a command that only reads must not
    /// delete any.
    fn default() -> Options {
        let compression = Compression::Lz4;
        let changes = Retention::EVERYTHING;
        Options { disk_reserve_bytes: DISK_RESERVE_BYTES, compression, changes, bulk_load: false }
    }
}

/// Why a data directory did not open.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The directory cannot be used.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    /// RocksDB did not open.
    #[cfg(feature = "rocksdb")]
    #[error(transparent)]
    RocksDb(RocksDbError),
    /// Fjall did not open.
    #[cfg(feature = "fjall")]
    #[error(transparent)]
    Fjall(FjallError),
}

#[cfg(feature = "rocksdb")]
impl From<RocksDbError> for OpenError {
    fn from(error: RocksDbError) -> OpenError {
        match error {
            RocksDbError::Directory(error) => OpenError::Directory(error),
            other => OpenError::RocksDb(other),
        }
    }
}

#[cfg(feature = "fjall")]
impl From<FjallError> for OpenError {
    fn from(error: FjallError) -> OpenError {
        match error {
            FjallError::Directory(error) => OpenError::Directory(error),
            other => OpenError::Fjall(other),
        }
    }
}

/// Opens an existing data directory with the engine that wrote it.
///
/// # Errors
/// [`OpenError`].
pub fn open(path: &Path, options: Options) -> Result<Arc<dyn Engine>, OpenError> {
    open_with(path, &directory::engine_of(path)?, options)
}

/// Like [`open`], but creates the data directory if `path` is missing or empty. A new directory gets `engine`, or the
/// default engine for `None`.
///
/// # Errors
/// [`OpenError`]. This includes a directory that another engine than `engine` wrote.
pub fn open_or_create(path: &Path, engine: Option<&str>, options: Options) -> Result<Arc<dyn Engine>, OpenError> {
    let found = match directory::engine_of(path) {
        Err(DirectoryError::Missing { .. }) => None,
        found => Some(found?),
    };
    let engine = engine.map(str::to_owned).or(found);
    open_with(path, engine.as_deref().or(ENGINES.first().copied()).unwrap_or_default(), options)
}

#[cfg_attr(
    not(any(feature = "fjall", feature = "rocksdb")),
    expect(unused_variables, reason = "this build has no engine on a disk")
)]
fn open_with(path: &Path, engine: &str, options: Options) -> Result<Arc<dyn Engine>, OpenError> {
    match engine {
        #[cfg(feature = "rocksdb")]
        "rocksdb" => Ok(Arc::new(RocksDbEngine::open(path, &rocksdb_options(options))?)),
        #[cfg(feature = "fjall")]
        "fjall" => Ok(Arc::new(FjallEngine::open(path, &fjall_options(options))?)),
        other => {
            let (found, asked) = (other.to_owned(), ENGINES.join(" or "));
            Err(DirectoryError::OtherEngine { path: path.to_owned(), found, asked }.into())
        }
    }
}

/// The options of RocksDB for a command.
#[cfg(feature = "rocksdb")]
#[must_use]
pub fn rocksdb_options(options: Options) -> RocksDbOptions {
    RocksDbOptions {
        background_threads: threads(),
        disk_reserve_bytes: options.disk_reserve_bytes,
        compression: options.compression,
        changes: options.changes,
        bulk_load: options.bulk_load,
        open_files_max: files(),
        ..RocksDbOptions::default()
    }
}

#[cfg(feature = "fjall")]
fn fjall_options(options: Options) -> FjallOptions {
    FjallOptions {
        background_threads: threads(),
        disk_reserve_bytes: options.disk_reserve_bytes,
        compression: options.compression,
        open_files_max: files(),
        ..FjallOptions::default()
    }
}

/// Raises the limit of open files, and returns the share of the engine.
#[cfg(any(feature = "fjall", feature = "rocksdb"))]
fn files() -> u64 {
    (descriptors::raise_limit() / 2).min(ENGINE_FILES_MAX)
}

#[cfg(any(feature = "fjall", feature = "rocksdb"))]
fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}
