//! fjall's options, each with its reason. Source, where none is named: fjall 3.1.13, `src/builder.rs`, `src/keyspace/options.rs`.
//! Called by `fjall_open`.
//!
//! Those of the keyspace are kept in the data and hold for ever: another `--compression` changes nothing of a directory that is
//! there. What depends on `--memory` is therefore none of them.

use std::path::Path;

use fjall::config::{
    BloomConstructionPolicy, CompressionPolicy, FilterPolicy, FilterPolicyEntry, PartitioningPolicy, PinningPolicy,
};
use fjall::{CompressionType, Database, DatabaseBuilder, KeyspaceCreateOptions};

use crate::Compression;
use crate::fjall::Options;

/// Memtables of one store: one that fills, and those that wait for their flush.
pub(super) const MEMTABLES: u64 = 1 + MEMTABLES_SEALED_MAX as u64;

/// With so many full memtables klad waits before it writes. fjall itself would wait with four, in a loop that nothing ends
/// where its threads have failed (`src/keyspace/mod.rs`, `local_backpressure`).
pub(super) const MEMTABLES_SEALED_MAX: usize = 3;

/// The same with so many tables on level 0; fjall would wait with thirty.
pub(super) const LEVEL_0_TABLES_MAX: usize = 24;

/// At least so many threads, or no memtable would be flushed during a compaction.
const THREADS_MIN: usize = 2;

/// From so many bytes of journals on, fjall flushes what the oldest is still needed for: what a start may have to read. The
/// least that it takes.
const JOURNALS_BYTES: u64 = 64 << 20;

/// How many threads the database has.
pub(super) fn threads(options: &Options) -> usize {
    options.background_threads.max(THREADS_MIN)
}

/// Of the database.
pub(super) fn database(files: &Path, options: &Options) -> DatabaseBuilder<Database> {
    Database::builder(files)
        .worker_threads(threads(options))
        // Blocks alone: memtables are beside it.
        .cache_size(options.cache_bytes.saturating_sub(options.memtable_bytes))
        .max_journaling_size(JOURNALS_BYTES)
        .max_cached_files(Some(usize::try_from(options.open_files_max).expect("klad is built for 64-bit machines")))
        // The commit section writes it: compressing would keep all writes waiting.
        .journal_compression(CompressionType::None)
}

/// Of the one keyspace.
pub(super) fn keyspace(options: &Options) -> KeyspaceCreateOptions {
    let compression = match options.compression {
        Compression::None => CompressionPolicy::disabled(),
        // Level 0 lives shortly.
        Compression::Lz4 | Compression::Zstd => CompressionPolicy::new([CompressionType::None, CompressionType::Lz4]),
    };
    KeyspaceCreateOptions::default()
        // klad rotates them itself, by a limit that follows --memory.
        .max_memtable_size(u64::MAX)
        .data_block_compression_policy(compression)
        // 10 bits a key on all levels, because 404 must be cheap too.
        .filter_policy(FilterPolicy::all(FilterPolicyEntry::Bloom(BloomConstructionPolicy::BitsPerKey(10.0))))
        // In pieces and not pinned, so that the cache's bound holds for them as well.
        .filter_block_partitioning_policy(PartitioningPolicy::all(true))
        .index_block_partitioning_policy(PartitioningPolicy::all(true))
        .filter_block_pinning_policy(PinningPolicy::all(false))
        .index_block_pinning_policy(PinningPolicy::all(false))
}
