//! RocksDB's metrics as an [`Observation`].
//!
//! ```text
//!   klad-monitor ─▶ Monitor::update   reads properties and files; may wait for RocksDB's mutex and the disk
//!   RocksDB's threads ─▶ Events       count stalls, flushes and compactions as they happen
//!   klad-admin ─▶ Monitor::latest     returns the last observation; never waits
//! ```
//!
//! RocksDB's own `Statistics` stay off, because they add cost to every read and write. klad itself counts the most
//! useful of them, the reads that were answered from memory (`klad_reads_total`). Called by `rocksdb`.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rust_rocksdb::event_listener::{
    CompactionJobInfo, DBWriteStallCondition, EventListener, FlushJobInfo, WriteStallInfo,
};
use rust_rocksdb::{ColumnFamilyMetaDataOptions, DB, Options as RocksDbOptions, properties};

use crate::limits::SLOW_LOOK_INTERVAL;
use crate::observation::{Measure, MemoryUse, Observation, number};
use crate::rocksdb::log_records;
use crate::rocksdb::options::SharedMemory;
use crate::rocksdb::value_cache::Stats;
use klad_base::clock;
use klad_base::metrics::Counter;
use klad_base::metrics::text::Kind;
use klad_base::sync::Mutex;

/// The number of levels: RocksDB's default, which klad does not change.
const LEVELS: usize = 7;

/// Observes one database.
pub(super) struct Monitor {
    shared: SharedMemory,
    events: Arc<Events>,
    /// RocksDB's directory.
    files: PathBuf,
    file_stats: Mutex<FileStats>,
    latest: Mutex<Arc<Observation>>,
}

/// Metrics whose cost grows with the number of files. klad updates these metrics less often.
#[derive(Clone, Default)]
struct FileStats {
    updated: Option<Instant>,
    /// The number of flushes and compactions at the last update. While this number is the same, the tables are the
    /// same.
    events: Option<u64>,
    level_bytes: [u64; LEVELS],
    live_data_bytes: f64,
    wal_bytes: u64,
}

/// Counters that RocksDB's threads update.
#[derive(Default)]
struct Events {
    flushes: Counter,
    compactions: Counter,
    compaction_read_bytes: Counter,
    compaction_written_bytes: Counter,
    compaction_us: Counter,
    /// The number of stalls of each kind ([`Stall`]).
    stalls: [Counter; 2],
    /// The total time that batches have waited in stalls, nanoseconds.
    write_waits_ns: Counter,
    stall_times: Mutex<StallTimes>,
}

/// The kinds of RocksDB's write stalls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stall {
    Delayed,
    Stopped,
}

const STALLS: [(Stall, &str); 2] = [(Stall::Delayed, "delayed"), (Stall::Stopped, "stopped")];

/// The total time of stalls of each kind ([`Stall`]), estimated from samples.
///
/// RocksDB's events do not give this time. The events arrive in no particular order. If a writer itself caused a stop,
/// the event of the stop arrives only after the stop, because RocksDB sends it after the writer has released its locks.
#[derive(Clone, Copy, Default)]
struct StallTimes {
    sampled: Option<Instant>,
    times: [Duration; 2],
}

impl StallTimes {
    /// Adds a sample at `now`: the whole time since the last sample counts as `stall`.
    fn sample(&mut self, stall: Option<Stall>, now: Instant) {
        let passed = self.sampled.map_or(Duration::ZERO, |sampled| now.saturating_duration_since(sampled));
        if let Some(stall) = stall {
            self.times[stall as usize] += passed;
        }
        self.sampled = Some(now);
    }
}

impl Events {
    fn flushes_and_compactions(&self) -> u64 {
        self.flushes.get() + self.compactions.get()
    }
}

/// Receives RocksDB's events.
struct Listener(Arc<Events>);

impl EventListener for Listener {
    fn on_flush_completed(&self, _: &FlushJobInfo) {
        self.0.flushes.add(1);
    }

    fn on_compaction_completed(&self, job: &CompactionJobInfo) {
        self.0.compaction_read_bytes.add(job.total_input_bytes());
        self.0.compaction_written_bytes.add(job.total_output_bytes());
        self.0.compaction_us.add(job.elapsed_micros());
        self.0.compactions.add(1);
    }

    fn on_stall_conditions_changed(&self, stall: &WriteStallInfo) {
        let stall = match stall.cur() {
            DBWriteStallCondition::KDelayed => Stall::Delayed,
            DBWriteStallCondition::KStopped => Stall::Stopped,
            DBWriteStallCondition::KNormal => return,
        };
        self.0.stalls[stall as usize].add(1);
    }
}

impl Monitor {
    /// Makes a monitor for the database in `files`, which the caller will open with `options`.
    pub(super) fn new(shared: SharedMemory, files: &Path, options: &mut RocksDbOptions) -> Monitor {
        let events = Arc::<Events>::default();
        options.add_event_listener(Listener(events.clone()));
        Monitor { shared, events, files: files.to_owned(), file_stats: Mutex::default(), latest: Mutex::default() }
    }

    /// Changes the capacity of the block cache, including the memtables.
    pub(super) fn set_cache_bytes(&self, bytes: u64) {
        let bytes = usize::try_from(bytes).expect("klad is built for 64-bit machines");
        // The clone is a handle of the same cache; `set_capacity` needs `&mut`.
        self.shared.cache.clone().set_capacity(bytes);
    }

    /// Adds the time that a batch has waited in a stall.
    pub(super) fn add_write_wait(&self, nanoseconds: u64) {
        self.events.write_waits_ns.add(nanoseconds);
    }

    /// Returns the last observation.
    pub(super) fn latest(&self) -> Arc<Observation> {
        self.latest.lock().clone()
    }

    /// Reads RocksDB's figures and stores them for the readers of this monitor, together with klad's own figures:
    /// `engine_measures`, and those of the value cache. May wait for RocksDB's mutex and for the disk.
    pub(super) fn update(&self, db: &DB, engine_measures: Vec<Measure>, values: &Stats) {
        let taken = clock::now();
        let file_stats = self.update_file_stats(db, taken);
        let charged = self.shared.memtables.get_dummy_entries_in_cache_usage() as u64;
        let used = self.shared.cache.get_usage() as u64;
        let mut measures = self.memory_measures(db, used, charged);
        measures.extend(background_measures(db));
        measures.extend(self.stall_measures(db, taken));
        measures.extend(self.event_measures());
        measures.extend(file_measures(db, &file_stats));
        measures.extend(engine_measures);
        measures.extend(value_cache_measures(values));
        let memory = vec![
            MemoryUse { name: "block_cache", bytes: used.saturating_sub(charged) },
            MemoryUse { name: "memtables", bytes: self.shared.memtables.get_usage() as u64 },
            MemoryUse { name: "value_cache", bytes: values.bytes },
        ];
        *self.latest.lock() = Arc::new(Observation { taken: Some(taken), measures, memory });
    }

    /// Updates the file statistics if the last update is old enough, and returns them.
    fn update_file_stats(&self, db: &DB, now: Instant) -> FileStats {
        let mut stats = self.file_stats.lock();
        if stats.updated.is_some_and(|updated| now.saturating_duration_since(updated) < SLOW_LOOK_INTERVAL) {
            return stats.clone();
        }
        stats.updated = Some(now);
        stats.wal_bytes = log_records::log_bytes(&self.files);
        // This number is read first, so that an event during the update leads to another update next time.
        let events = self.events.flushes_and_compactions();
        if stats.events != Some(events) {
            stats.events = Some(events);
            stats.level_bytes = [0; LEVELS];
            for level in db.get_column_family_metadata_with_options(&ColumnFamilyMetaDataOptions::new()) {
                if let Some(bytes) = usize::try_from(level.level()).ok().and_then(|at| stats.level_bytes.get_mut(at)) {
                    *bytes = level.size();
                }
            }
            stats.live_data_bytes = property(db, properties::ESTIMATE_LIVE_DATA_SIZE);
        }
        stats.clone()
    }

    /// The metrics of block cache, memtables and tables in memory. These metrics leave out the pinned part of the
    /// cache, because RocksDB would iterate over the whole cache to compute that part.
    fn memory_measures(&self, db: &DB, used: u64, charged: u64) -> Vec<Measure> {
        let memtables = &self.shared.memtables;
        let active = property(db, properties::CUR_SIZE_ACTIVE_MEM_TABLE);
        let sizes = [("active", active), ("immutable", property(db, properties::CUR_SIZE_ALL_MEM_TABLES) - active)];
        let entries = [
            ("active", property(db, properties::NUM_ENTRIES_ACTIVE_MEM_TABLE)),
            ("immutable", property(db, properties::NUM_ENTRIES_IMM_MEM_TABLES)),
        ];
        let gauge = |name, help, value| Measure::one(name, Kind::Gauge, help, value);
        vec![
            gauge(
                "klad_rocksdb_block_cache_capacity_bytes",
                "Capacity of the block cache, including the memtables.",
                property(db, properties::BLOCK_CACHE_CAPACITY),
            ),
            gauge(
                "klad_rocksdb_block_cache_used_bytes",
                "Size of the block cache, including the charge of the memtables.",
                number(used),
            ),
            gauge(
                "klad_rocksdb_block_cache_memtable_charge_bytes",
                "Part of the block cache's size that is the charge of the memtables.",
                number(charged),
            ),
            Measure::each("klad_rocksdb_memtable_bytes", Kind::Gauge, "Size of the memtables.", "state", sizes),
            Measure::each(
                "klad_rocksdb_memtable_entries",
                Kind::Gauge,
                "Number of memtable entries.",
                "state",
                entries,
            ),
            gauge(
                "klad_rocksdb_memtable_allocated_bytes",
                "Memory allocated for memtables, including those that only reads still use.",
                number(memtables.get_usage() as u64),
            ),
            gauge(
                "klad_rocksdb_memtable_limit_bytes",
                "Size of the memtables at which RocksDB flushes them.",
                number(memtables.get_buffer_size() as u64),
            ),
            gauge(
                "klad_rocksdb_memtables_immutable",
                "Number of full memtables that wait for their flush. A flush starts at three.",
                property(db, properties::NUM_IMMUTABLE_MEM_TABLE),
            ),
            gauge(
                "klad_rocksdb_table_reader_bytes",
                "Memory of open tables outside the block cache.",
                property(db, properties::ESTIMATE_TABLE_READERS_MEM),
            ),
        ]
    }

    /// The metrics of write stalls.
    fn stall_measures(&self, db: &DB, now: Instant) -> Vec<Measure> {
        let Events { stalls, write_waits_ns, stall_times, .. } = &*self.events;
        let delayed_rate = property(db, properties::ACTUAL_DELAYED_WRITE_RATE);
        let stall = if property(db, properties::IS_WRITE_STOPPED) > 0.0 {
            Some(Stall::Stopped)
        } else {
            (delayed_rate > 0.0).then_some(Stall::Delayed)
        };
        let times = {
            let mut stall_times = stall_times.lock();
            stall_times.sample(stall, now);
            stall_times.times
        };
        let each_stall = |value: &dyn Fn(usize) -> f64| STALLS.map(|(stall, name)| (name, value(stall as usize)));
        let is_current = |index| f64::from(u8::from(stall.is_some_and(|stall| stall as usize == index)));
        vec![
            Measure::each(
                "klad_rocksdb_write_stall",
                Kind::Gauge,
                "1 while RocksDB delays or stops writes.",
                "state",
                each_stall(&is_current),
            ),
            Measure::each(
                "klad_rocksdb_write_stalls_total",
                Kind::Counter,
                "Number of write stalls. A stop that a write itself has caused is counted when it ends.",
                "state",
                each_stall(&|index| number(stalls[index].get())),
            ),
            Measure::each(
                "klad_rocksdb_write_stall_seconds_total",
                Kind::Counter,
                "Total time of write stalls, estimated from four samples per second.",
                "state",
                each_stall(&|index| times[index].as_secs_f64()),
            ),
            Measure::one(
                "klad_rocksdb_write_wait_seconds_total",
                Kind::Counter,
                "Total time that batches have waited in write stalls, without batches that still wait.",
                Duration::from_nanos(write_waits_ns.get()).as_secs_f64(),
            ),
            Measure::one(
                "klad_rocksdb_delayed_write_bytes_per_second",
                Kind::Gauge,
                "Rate limit of writes while RocksDB delays them; 0 while it does not.",
                delayed_rate,
            ),
        ]
    }

    /// The metrics of finished flushes and compactions.
    fn event_measures(&self) -> Vec<Measure> {
        let events = &*self.events;
        let counter = |name, help, counter: &Counter| Measure::one(name, Kind::Counter, help, number(counter.get()));
        vec![
            counter("klad_rocksdb_flushes_total", "Number of finished memtable flushes.", &events.flushes),
            counter("klad_rocksdb_compactions_total", "Number of finished compactions.", &events.compactions),
            counter(
                "klad_rocksdb_compaction_read_bytes_total",
                "Bytes that finished compactions have read.",
                &events.compaction_read_bytes,
            ),
            counter(
                "klad_rocksdb_compaction_written_bytes_total",
                "Bytes that finished compactions have written.",
                &events.compaction_written_bytes,
            ),
            Measure::one(
                "klad_rocksdb_compaction_seconds_total",
                Kind::Counter,
                "Total time of finished compactions.",
                Duration::from_micros(events.compaction_us.get()).as_secs_f64(),
            ),
        ]
    }
}

/// The metrics of pending and running flushes and compactions.
fn background_measures(db: &DB) -> Vec<Measure> {
    let measure = |name, kind, help, source| Measure::one(name, kind, help, property(db, source));
    vec![
        measure(
            "klad_rocksdb_flush_pending",
            Kind::Gauge,
            "1 while a memtable waits for its flush.",
            properties::MEM_TABLE_FLUSH_PENDING,
        ),
        measure(
            "klad_rocksdb_flushes_running",
            Kind::Gauge,
            "Number of running flushes.",
            properties::NUM_RUNNING_FLUSHES,
        ),
        measure(
            "klad_rocksdb_compaction_pending",
            Kind::Gauge,
            "1 while a compaction waits to start.",
            properties::COMPACTION_PENDING,
        ),
        measure(
            "klad_rocksdb_compactions_running",
            Kind::Gauge,
            "Number of running compactions.",
            properties::NUM_RUNNING_COMPACTIONS,
        ),
        measure(
            "klad_rocksdb_pending_compaction_bytes",
            Kind::Gauge,
            "Bytes that compactions would have to rewrite until every level is within its target size.",
            properties::ESTIMATE_PENDING_COMPACTION_BYTES,
        ),
        measure(
            "klad_rocksdb_background_errors_total",
            Kind::Counter,
            "Number of errors of flushes and compactions.",
            properties::BACKGROUND_ERRORS,
        ),
    ]
}

/// The metrics of files on disk.
fn file_measures(db: &DB, stats: &FileStats) -> Vec<Measure> {
    let files = (0..LEVELS).map(|level| (level, property(db, &properties::num_files_at_level(level))));
    let bytes = stats.level_bytes.iter().enumerate().map(|(level, bytes)| (level, number(*bytes)));
    let gauge = |name, help, value| Measure::one(name, Kind::Gauge, help, value);
    vec![
        Measure::each("klad_rocksdb_level_files", Kind::Gauge, "Number of tables on each level.", "level", files),
        Measure::each("klad_rocksdb_level_bytes", Kind::Gauge, "Size of the tables on each level.", "level", bytes),
        gauge("klad_rocksdb_table_bytes", "Size of all live tables.", property(db, properties::LIVE_SST_FILES_SIZE)),
        gauge(
            "klad_rocksdb_live_data_bytes",
            "Estimated size of the tables after a compaction of all data.",
            stats.live_data_bytes,
        ),
        gauge(
            "klad_rocksdb_keys_estimated",
            "Estimated number of keys, including overwritten entries until they are compacted.",
            property(db, properties::ESTIMATE_NUM_KEYS),
        ),
        gauge("klad_rocksdb_wal_bytes", "Size of the log files.", number(stats.wal_bytes)),
    ]
}

fn value_cache_measures(stats: &Stats) -> Vec<Measure> {
    let measure = |name, kind, help, value| Measure::one(name, kind, help, number(value));
    vec![
        measure("klad_value_cache_hits_total", Kind::Counter, "Lookups that found the value.", stats.hits),
        measure(
            "klad_value_cache_misses_total",
            Kind::Counter,
            "Lookups that did not find the value. A read that goes to the disk does two lookups.",
            stats.misses,
        ),
        measure("klad_value_cache_entries", Kind::Gauge, "Number of values in the value cache.", stats.entries),
        measure(
            "klad_value_cache_used_bytes",
            Kind::Gauge,
            "Size of the value cache, including overhead.",
            stats.bytes,
        ),
        measure("klad_value_cache_capacity_bytes", Kind::Gauge, "Capacity of the value cache.", stats.capacity_bytes),
    ]
}

/// Reads a numeric property of RocksDB; NaN if RocksDB has no value.
fn property(db: &DB, name: &properties::PropName) -> f64 {
    db.property_int_value(name).ok().flatten().map_or(f64::NAN, number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stall_counts_the_time_before_each_sample_of_it() {
        let start = clock::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut stall_times = StallTimes::default();
        let samples = [(Some(Stall::Stopped), 0), (Some(Stall::Delayed), 1), (Some(Stall::Delayed), 3), (None, 4)];
        for (stall, seconds) in samples.into_iter().chain([(Some(Stall::Stopped), 9)]) {
            stall_times.sample(stall, at(seconds));
        }
        assert_eq!(stall_times.times, [3, 5].map(Duration::from_secs));
    }
}
