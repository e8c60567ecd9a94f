//! What RocksDB knows of itself, as an [`Observation`].
//!
//! ```text
//!   klad-upkeep ─▶ Watch::look    properties, files: may wait for RocksDB's mutex and the disk
//!   RocksDB's threads ─▶ Events   stalls, flushes, compactions, as they happen
//!   klad-admin ─▶ Watch::latest   what the last look has found: never waits
//! ```
//!
//! RocksDB's own `Statistics` stay off: they count on the path of every read and write. What of them is missed most, how
//! many reads memory has answered, klad counts itself (`klad_reads_total`). Called by `rocksdb.rs`.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rust_rocksdb::event_listener::{
    CompactionJobInfo, DBWriteStallCondition, EventListener, FlushJobInfo, WriteStallInfo,
};
use rust_rocksdb::{ColumnFamilyMetaDataOptions, DB, Options as RocksDbOptions, properties};

use crate::observation::{Holding, Measure, Observation, number};
use crate::rocksdb::options::Shared;
use crate::rocksdb::value_cache::Figures;
use klad_base::clock;
use klad_base::limits::SLOW_LOOK_INTERVAL;
use klad_base::metrics::Counter;
use klad_base::metrics::text::Kind;
use klad_base::sync::Mutex;

/// RocksDB's default, which klad does not change.
const LEVELS: usize = 7;

/// Looks at one database.
pub(super) struct Watch {
    shared: Shared,
    events: Arc<Events>,
    /// RocksDB's directory.
    files: PathBuf,
    slow: Mutex<Slow>,
    latest: Mutex<Arc<Observation>>,
}

/// What costs time for each file, and is looked at more seldom.
#[derive(Clone, Default)]
struct Slow {
    looked: Option<Instant>,
    /// Flushes and compactions by then: without another nothing of it has changed.
    events: Option<u64>,
    level_bytes: [u64; LEVELS],
    live_data_bytes: f64,
    wal_bytes: u64,
}

/// Counted by RocksDB's threads, as it happens.
#[derive(Default)]
struct Events {
    flushes: Counter,
    compactions: Counter,
    compaction_read_bytes: Counter,
    compaction_written_bytes: Counter,
    compaction_us: Counter,
    /// By [`Stall`].
    stalls_begun: [Counter; 2],
    /// What batches have waited for, nanoseconds.
    waits_ns: Counter,
    held: Mutex<Held>,
}

/// RocksDB's ways of holding writes up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stall {
    Delayed,
    Stopped,
}

const STALLS: [(Stall, &str); 2] = [(Stall::Delayed, "delayed"), (Stall::Stopped, "stopped")];

/// For how long writes were held up, by [`Stall`], as far as looks see.
///
/// RocksDB's notices do not say it: they come in no order, and that of a stop which a writer has brought about itself when it is over, as
/// RocksDB tells when the writer has let go of what it holds.
#[derive(Clone, Copy, Default)]
struct Held {
    looked: Option<Instant>,
    lengths: [Duration; 2],
}

impl Held {
    /// Writes are held up so at `now`: as they were since the look before, as far as is known.
    fn look(&mut self, stall: Option<Stall>, now: Instant) {
        let passed = self.looked.map_or(Duration::ZERO, |looked| now.saturating_duration_since(looked));
        if let Some(stall) = stall {
            self.lengths[stall as usize] += passed;
        }
        self.looked = Some(now);
    }
}

impl Events {
    fn count(&self) -> u64 {
        self.flushes.get() + self.compactions.get()
    }
}

/// What RocksDB calls; an `Arc` cannot have a foreign trait.
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
        let begun = match stall.cur() {
            DBWriteStallCondition::KDelayed => Stall::Delayed,
            DBWriteStallCondition::KStopped => Stall::Stopped,
            DBWriteStallCondition::KNormal => return,
        };
        self.0.stalls_begun[begun as usize].add(1);
    }
}

impl Watch {
    /// For the database in `files` that is to be opened with `options`.
    pub(super) fn new(shared: Shared, files: &Path, options: &mut RocksDbOptions) -> Watch {
        let events = Arc::<Events>::default();
        options.add_event_listener(Listener(events.clone()));
        Watch { shared, events, files: files.to_owned(), slow: Mutex::default(), latest: Mutex::default() }
    }

    /// Changes what the cache may hold, memtables included.
    pub(super) fn set_cache_bytes(&self, bytes: u64) {
        let bytes = usize::try_from(bytes).expect("klad is built for 64-bit machines");
        // A handle: the cache itself is shared with the database.
        self.shared.cache.clone().set_capacity(bytes);
    }

    /// A batch has waited for so long, as RocksDB held writes up.
    pub(super) fn waited(&self, nanoseconds: u64) {
        self.events.waits_ns.add(nanoseconds);
    }

    /// What the last look has found.
    pub(super) fn latest(&self) -> Arc<Observation> {
        self.latest.lock().clone()
    }

    /// Looks at everything, and puts it beside what the engine has `kept` and what its cache of values holds. May wait for
    /// RocksDB's mutex, and for the disk.
    pub(super) fn look(&self, db: &DB, kept: Vec<Measure>, values: &Figures) {
        let taken = clock::now();
        let slow = self.look_slowly(db, taken);
        let charged = self.shared.memtables.get_dummy_entries_in_cache_usage() as u64;
        let used = self.shared.cache.get_usage() as u64;
        let mut measures = self.memory(db, used, charged);
        measures.extend(background(db));
        measures.extend(self.happened(db, taken));
        measures.extend(files(db, &slow));
        measures.extend(kept);
        measures.extend(of_values(values));
        let memory = vec![
            Holding { name: "block_cache", bytes: used.saturating_sub(charged) },
            Holding { name: "memtables", bytes: self.shared.memtables.get_usage() as u64 },
            Holding { name: "value_cache", bytes: values.bytes },
        ];
        *self.latest.lock() = Arc::new(Observation { taken: Some(taken), measures, memory });
    }

    fn look_slowly(&self, db: &DB, now: Instant) -> Slow {
        let mut slow = self.slow.lock();
        if slow.looked.is_some_and(|looked| now.saturating_duration_since(looked) < SLOW_LOOK_INTERVAL) {
            return slow.clone();
        }
        slow.looked = Some(now);
        slow.wal_bytes = log_bytes(&self.files);
        // Before the look: what happens meanwhile is looked at the next time.
        let events = self.events.count();
        if slow.events != Some(events) {
            slow.events = Some(events);
            slow.level_bytes = [0; LEVELS];
            for level in db.get_column_family_metadata_with_options(&ColumnFamilyMetaDataOptions::new()) {
                if let Some(bytes) = usize::try_from(level.level()).ok().and_then(|at| slow.level_bytes.get_mut(at)) {
                    *bytes = level.size();
                }
            }
            slow.live_data_bytes = property(db, properties::ESTIMATE_LIVE_DATA_SIZE);
        }
        slow.clone()
    }

    /// Without what of the cache is pinned: RocksDB walks through all of it to say that.
    fn memory(&self, db: &DB, used: u64, charged: u64) -> Vec<Measure> {
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
                "What the block cache may hold, memtables included.",
                property(db, properties::BLOCK_CACHE_CAPACITY),
            ),
            gauge(
                "klad_rocksdb_block_cache_used_bytes",
                "What the block cache holds, the charge of the memtables included.",
                number(used),
            ),
            gauge(
                "klad_rocksdb_block_cache_memtable_charge_bytes",
                "What of the block cache is the charge of the memtables.",
                number(charged),
            ),
            Measure::each("klad_rocksdb_memtable_bytes", Kind::Gauge, "Size of the memtables.", "state", sizes),
            Measure::each("klad_rocksdb_memtable_entries", Kind::Gauge, "Entries in the memtables.", "state", entries),
            gauge(
                "klad_rocksdb_memtable_allocated_bytes",
                "What is allocated for memtables, those that reads still hold included.",
                number(memtables.get_usage() as u64),
            ),
            gauge(
                "klad_rocksdb_memtable_limit_bytes",
                "From here on memtables are flushed.",
                number(memtables.get_buffer_size() as u64),
            ),
            gauge(
                "klad_rocksdb_memtables_immutable",
                "Full memtables that wait for their flush; with fewer than three there is none yet.",
                property(db, properties::NUM_IMMUTABLE_MEM_TABLE),
            ),
            gauge(
                "klad_rocksdb_table_reader_bytes",
                "Memory of open tables outside of the block cache.",
                property(db, properties::ESTIMATE_TABLE_READERS_MEM),
            ),
        ]
    }

    /// What was counted as it happened, and what holds writes up.
    fn happened(&self, db: &DB, now: Instant) -> Vec<Measure> {
        let Events {
            flushes,
            compactions,
            compaction_read_bytes,
            compaction_written_bytes,
            compaction_us,
            stalls_begun,
            waits_ns,
            held,
        } = &*self.events;
        let delayed_rate = property(db, properties::ACTUAL_DELAYED_WRITE_RATE);
        let stall = if property(db, properties::IS_WRITE_STOPPED) > 0.0 {
            Some(Stall::Stopped)
        } else {
            (delayed_rate > 0.0).then_some(Stall::Delayed)
        };
        let lengths = {
            let mut held = held.lock();
            held.look(stall, now);
            held.lengths
        };
        let of_stalls = |value: &dyn Fn(usize) -> f64| STALLS.map(|(stall, name)| (name, value(stall as usize)));
        let is = |number| f64::from(u8::from(stall.is_some_and(|stall| stall as usize == number)));
        let counter = |name, help, counter: &Counter| Measure::one(name, Kind::Counter, help, number(counter.get()));
        vec![
            Measure::each(
                "klad_rocksdb_write_stall",
                Kind::Gauge,
                "1 while RocksDB slows writes down or has stopped them.",
                "state",
                of_stalls(&is),
            ),
            Measure::each(
                "klad_rocksdb_write_stalls_total",
                Kind::Counter,
                "Times that RocksDB has begun to hold writes up; a stop that a write has brought about itself counts when it is over.",
                "state",
                of_stalls(&|of| number(stalls_begun[of].get())),
            ),
            Measure::each(
                "klad_rocksdb_write_stall_seconds_total",
                Kind::Counter,
                "Time for which RocksDB has held writes up, as far as looks see, of which there are four a second.",
                "state",
                of_stalls(&|of| lengths[of].as_secs_f64()),
            ),
            Measure::one(
                "klad_rocksdb_write_wait_seconds_total",
                Kind::Counter,
                "Time that batches have waited for that, those that are written by now.",
                Duration::from_nanos(waits_ns.get()).as_secs_f64(),
            ),
            Measure::one(
                "klad_rocksdb_delayed_write_bytes_per_second",
                Kind::Gauge,
                "What RocksDB lets writes have while it slows them down; 0 while it does not.",
                delayed_rate,
            ),
            counter("klad_rocksdb_flushes_total", "Flushes of memtables that have ended.", flushes),
            counter("klad_rocksdb_compactions_total", "Compactions that have ended.", compactions),
            counter("klad_rocksdb_compaction_read_bytes_total", "What they have read.", compaction_read_bytes),
            counter("klad_rocksdb_compaction_written_bytes_total", "What they have written.", compaction_written_bytes),
            Measure::one(
                "klad_rocksdb_compaction_seconds_total",
                Kind::Counter,
                "How long they took together.",
                Duration::from_micros(compaction_us.get()).as_secs_f64(),
            ),
        ]
    }
}

/// Work that waits, or is being done.
fn background(db: &DB) -> Vec<Measure> {
    let of = |name, kind, help, from| Measure::one(name, kind, help, property(db, from));
    vec![
        of(
            "klad_rocksdb_flush_pending",
            Kind::Gauge,
            "1 while a memtable waits for its flush.",
            properties::MEM_TABLE_FLUSH_PENDING,
        ),
        of(
            "klad_rocksdb_flushes_running",
            Kind::Gauge,
            "Flushes that are being done.",
            properties::NUM_RUNNING_FLUSHES,
        ),
        of(
            "klad_rocksdb_compaction_pending",
            Kind::Gauge,
            "1 while a compaction waits.",
            properties::COMPACTION_PENDING,
        ),
        of(
            "klad_rocksdb_compactions_running",
            Kind::Gauge,
            "Compactions that are being done.",
            properties::NUM_RUNNING_COMPACTIONS,
        ),
        of(
            "klad_rocksdb_pending_compaction_bytes",
            Kind::Gauge,
            "What compactions would have to rewrite for every level to be within its target.",
            properties::ESTIMATE_PENDING_COMPACTION_BYTES,
        ),
        of(
            "klad_rocksdb_background_errors_total",
            Kind::Counter,
            "Errors of flushes and compactions.",
            properties::BACKGROUND_ERRORS,
        ),
    ]
}

/// What lies on the disk.
fn files(db: &DB, slow: &Slow) -> Vec<Measure> {
    let files = (0..LEVELS).map(|level| (level, property(db, &properties::num_files_at_level(level))));
    let bytes = slow.level_bytes.iter().enumerate().map(|(level, bytes)| (level, number(*bytes)));
    let gauge = |name, help, value| Measure::one(name, Kind::Gauge, help, value);
    vec![
        Measure::each("klad_rocksdb_level_files", Kind::Gauge, "Tables of each level.", "level", files),
        Measure::each("klad_rocksdb_level_bytes", Kind::Gauge, "Size of each level's tables.", "level", bytes),
        gauge(
            "klad_rocksdb_table_bytes",
            "Size of all tables of the current version.",
            property(db, properties::LIVE_SST_FILES_SIZE),
        ),
        gauge(
            "klad_rocksdb_live_data_bytes",
            "Estimate of what of the tables would be left if all were compacted.",
            slow.live_data_bytes,
        ),
        gauge(
            "klad_rocksdb_keys_estimated",
            "Estimate of the keys in memtables and tables; overwritten ones count until they are compacted.",
            property(db, properties::ESTIMATE_NUM_KEYS),
        ),
        gauge("klad_rocksdb_wal_bytes", "Size of the log's files.", number(slow.wal_bytes)),
    ]
}

fn of_values(values: &Figures) -> Vec<Measure> {
    let one = |name, kind, help, value| Measure::one(name, kind, help, number(value));
    vec![
        one("klad_value_cache_hits_total", Kind::Counter, "Reads that the cache of values has answered.", values.hits),
        one(
            "klad_value_cache_misses_total",
            Kind::Counter,
            "Looks into the cache of values in vain. A read that goes to the disk looks twice.",
            values.misses,
        ),
        one("klad_value_cache_entries", Kind::Gauge, "Values in the cache of values.", values.entries),
        one(
            "klad_value_cache_used_bytes",
            Kind::Gauge,
            "What the cache of values holds, overhead included.",
            values.bytes,
        ),
        one("klad_value_cache_capacity_bytes", Kind::Gauge, "What it may hold.", values.capacity_bytes),
    ]
}

/// A number that RocksDB does not know is none.
fn property(db: &DB, name: &properties::PropName) -> f64 {
    db.property_int_value(name).ok().flatten().map_or(f64::NAN, number)
}

/// Of the log's files in `directory`; what cannot be read, or is being removed, counts nothing.
fn log_bytes(directory: &Path) -> u64 {
    let Ok(files) = std::fs::read_dir(directory) else { return 0 };
    files
        .filter_map(Result::ok)
        .filter(|file| file.path().extension().is_some_and(|extension| extension == "log"))
        .filter_map(|file| file.metadata().ok())
        .map(|file| file.len())
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stall_has_the_time_before_each_look_that_sees_it() {
        let start = clock::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut held = Held::default();
        let looks = [(Some(Stall::Stopped), 0), (Some(Stall::Delayed), 1), (Some(Stall::Delayed), 3), (None, 4)];
        for (stall, seconds) in looks.into_iter().chain([(Some(Stall::Stopped), 9)]) {
            held.look(stall, at(seconds));
        }
        assert_eq!(held.lengths, [3, 5].map(Duration::from_secs));
    }

    #[test]
    fn only_files_of_the_log_are_the_log() {
        let directory = tempfile::tempdir().expect("a directory");
        for (name, bytes) in [("000004.log", 10), ("000007.log", 5), ("000005.sst", 100), ("LOG", 1000)] {
            std::fs::write(directory.path().join(name), vec![0; bytes]).expect("written");
        }
        assert_eq!(log_bytes(directory.path()), 15);
        assert_eq!(log_bytes(&directory.path().join("nowhere")), 0);
    }
}
