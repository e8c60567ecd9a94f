//! fjall's options, each with its reason. Unless a comment names another source, the source is fjall 3.1.13,
//! `src/builder.rs` and `src/keyspace/options.rs`. Called by `fjall::open`.
//!
//! fjall stores the options of a keyspace in the data when it creates the keyspace, and never changes them. So another
//! `--compression` has no effect on an existing directory, and an option that depends on `--memory` must not be a
//! keyspace option.

use std::path::Path;
use std::sync::Arc;

use fjall::compaction::filter::{CompactionFilter, CompactionFilterResult, Context, Factory, ItemAccessor, Verdict};
use fjall::config::{
    BloomConstructionPolicy, CompressionPolicy, FilterPolicy, FilterPolicyEntry, PartitioningPolicy, PinningPolicy,
};
use fjall::{CompressionType, Database, DatabaseBuilder, KeyspaceCreateOptions};

use crate::Compression;
use crate::disk::record;
use crate::fjall::{MARK_KEY, Options};
use klad_base::clock;

/// The maximum number of memtables: the active one, and the full ones that wait for their flush.
pub(super) const MEMTABLES: u64 = 1 + MEMTABLES_SEALED_MAX as u64;

/// The number of full memtables at which klad delays writes. fjall itself would delay writes at four, in a loop that
/// never ends if fjall's threads have failed (`src/keyspace/mod.rs`, `local_backpressure`).
pub(super) const MEMTABLES_SEALED_MAX: usize = 3;

/// The number of tables on level 0 at which klad delays writes. fjall itself slows writes down from twenty on, and
/// would stop them at thirty.
pub(super) const LEVEL_0_TABLES_MAX: usize = 24;

/// The minimum number of threads. With fewer, no memtable would be flushed during a compaction.
const THREADS_MIN: usize = 2;

/// The total size of the journals at which fjall flushes the memtables that still need the oldest journal. This size
/// bounds what a start has to read. 64 MiB is the smallest value that fjall accepts.
const JOURNALS_BYTES: u64 = 64 << 20;

/// The options of the database.
pub(super) fn database(files: &Path, options: &Options) -> DatabaseBuilder<Database> {
    Database::builder(files)
        .worker_threads(options.background_threads.max(THREADS_MIN))
        // fjall's cache holds blocks only; memtables are not charged to it.
        .cache_size(options.cache_bytes.saturating_sub(options.memtable_bytes))
        .max_journaling_size(JOURNALS_BYTES)
        .max_cached_files(Some(usize::try_from(options.open_files_max).expect("klad is built for 64-bit machines")))
        // The commit section writes the journal, and all writes would wait for the compression.
        .journal_compression(CompressionType::None)
        .with_compaction_filter_factories(Arc::new(|_| Some(Arc::new(DropExpired))))
}

/// The options of the only keyspace.
pub(super) fn keyspace(options: &Options) -> KeyspaceCreateOptions {
    let compression = match options.compression {
        Compression::None => CompressionPolicy::disabled(),
        // Tables of level 0 are short-lived, so they are not compressed.
        Compression::Lz4 | Compression::Zstd => CompressionPolicy::new([CompressionType::None, CompressionType::Lz4]),
    };
    KeyspaceCreateOptions::default()
        // klad seals memtables itself, at a limit that depends on --memory.
        .max_memtable_size(u64::MAX)
        .data_block_compression_policy(compression)
        // 10 bits per key on all levels, because reads of absent keys must be cheap too.
        .filter_policy(FilterPolicy::all(FilterPolicyEntry::Bloom(BloomConstructionPolicy::BitsPerKey(10.0))))
        // Filters and indexes are partitioned and not pinned, so that the cache's capacity bounds them too.
        .filter_block_partitioning_policy(PartitioningPolicy::all(true))
        .index_block_partitioning_policy(PartitioningPolicy::all(true))
        .filter_block_pinning_policy(PinningPolicy::all(false))
        .index_block_pinning_policy(PinningPolicy::all(false))
}

/// Drops expired entries in compactions.
struct DropExpired;

impl Factory for DropExpired {
    fn name(&self) -> &'static str {
        "klad-expiry"
    }

    fn make_filter(&self, _: &Context) -> Box<dyn CompactionFilter> {
        Box::new(DropExpired)
    }
}

impl CompactionFilter for DropExpired {
    fn filter_item(&mut self, item: ItemAccessor<'_>, _: &Context) -> CompactionFilterResult {
        let expired = **item.key() != *MARK_KEY && record::is_expired(&item.value()?, clock::unix_ms);
        Ok(if expired { Verdict::Remove } else { Verdict::Keep })
    }
}
