//! fjall's metrics as an [`Observation`]. The observation leaves out the size of the journals, because reading the size
//! takes the journal's lock, which fjall holds during a sync. Called by `fjall`.

use std::sync::Arc;

use fjall::{Database, Keyspace};

use crate::observation::{Measure, MemoryUse, Observation, number};
use klad_base::clock;
use klad_base::metrics::text::Kind;
use klad_base::sync::Mutex;

/// Holds the latest observation.
#[derive(Default)]
pub(super) struct Monitor {
    latest: Mutex<Arc<Observation>>,
}

impl Monitor {
    pub(super) fn latest(&self) -> Arc<Observation> {
        self.latest.lock().clone()
    }

    /// Takes a new observation of fjall and adds the engine's own `measures`.
    pub(super) fn update(&self, db: &Database, keyspace: &Keyspace, mut measures: Vec<Measure>) {
        let taken = clock::now();
        measures.extend(memory_measures(db, keyspace));
        measures.extend(file_measures(db, keyspace));
        let memory = vec![
            MemoryUse { name: "block_cache", bytes: db.cache_size() },
            MemoryUse { name: "memtables", bytes: db.write_buffer_size() },
        ];
        *self.latest.lock() = Arc::new(Observation { taken: Some(taken), measures, memory });
    }
}

fn gauge(name: &'static str, help: &'static str, value: u64) -> Measure {
    Measure::one(name, Kind::Gauge, help, number(value))
}

fn counter(name: &'static str, help: &'static str, value: f64) -> Measure {
    Measure::one(name, Kind::Counter, help, value)
}

fn memory_measures(db: &Database, keyspace: &Keyspace) -> Vec<Measure> {
    vec![
        gauge("klad_fjall_block_cache_capacity_bytes", "Capacity of the block cache.", db.cache_capacity()),
        gauge("klad_fjall_block_cache_used_bytes", "Size of the blocks in the block cache.", db.cache_size()),
        gauge(
            "klad_fjall_memtable_bytes",
            "Size of the memtables as fjall counts it: after a flush it subtracts the size of the new table.",
            db.write_buffer_size(),
        ),
        gauge(
            "klad_fjall_memtables_sealed",
            "Number of full memtables that wait for their flush. At three, writes wait.",
            keyspace.sealed_memtable_count() as u64,
        ),
    ]
}

fn file_measures(db: &Database, keyspace: &Keyspace) -> Vec<Measure> {
    let level_0_tables = keyspace.l0_table_count() as u64;
    vec![
        gauge("klad_fjall_tables", "Number of tables.", keyspace.table_count() as u64),
        gauge("klad_fjall_level_0_tables", "Number of tables on level 0. At 24, writes wait.", level_0_tables),
        gauge("klad_fjall_table_bytes", "Size of all tables.", keyspace.disk_space()),
        gauge("klad_fjall_journals", "Number of journals, including the active one.", db.journal_count() as u64),
        gauge("klad_fjall_compactions_running", "Number of running compactions.", db.active_compactions() as u64),
        counter(
            "klad_fjall_compactions_total",
            "Number of finished compactions.",
            number(db.compactions_completed() as u64),
        ),
        counter(
            "klad_fjall_compaction_seconds_total",
            "Total time of compactions.",
            db.time_compacting().as_secs_f64(),
        ),
    ]
}
