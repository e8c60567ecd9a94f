//! What fjall knows of itself, as an [`Observation`]. Nothing of it is asked for that takes the journal's lock, which is held during
//! a sync: the size of the journals is left out for that. Called by `fjall.rs`.

use std::sync::Arc;

use fjall::{Database, Keyspace};

use crate::observation::{Holding, Measure, Observation, number};
use klad_base::clock;
use klad_base::metrics::text::Kind;
use klad_base::sync::Mutex;

/// The last look.
#[derive(Default)]
pub(super) struct Watch {
    latest: Mutex<Arc<Observation>>,
}

impl Watch {
    pub(super) fn latest(&self) -> Arc<Observation> {
        self.latest.lock().clone()
    }

    /// Looks at everything, and puts it beside what the engine has `kept`.
    pub(super) fn look(&self, db: &Database, keyspace: &Keyspace, kept: Vec<Measure>) {
        let taken = clock::now();
        let mut measures = kept;
        measures.extend(memory(db, keyspace));
        measures.extend(files(db, keyspace));
        let memory = vec![
            Holding { name: "block_cache", bytes: db.cache_size() },
            Holding { name: "memtables", bytes: db.write_buffer_size() },
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

fn memory(db: &Database, keyspace: &Keyspace) -> Vec<Measure> {
    vec![
        gauge("klad_fjall_block_cache_capacity_bytes", "What the block cache may hold.", db.cache_capacity()),
        gauge("klad_fjall_block_cache_used_bytes", "What the block cache holds.", db.cache_size()),
        gauge(
            "klad_fjall_memtable_bytes",
            "Size of the memtables, as fjall counts them: what it takes off after a flush is the table's size.",
            db.write_buffer_size(),
        ),
        gauge(
            "klad_fjall_memtables_sealed",
            "Full memtables that wait for their flush; with three of them writes wait.",
            keyspace.sealed_memtable_count() as u64,
        ),
    ]
}

fn files(db: &Database, keyspace: &Keyspace) -> Vec<Measure> {
    vec![
        gauge("klad_fjall_tables", "Tables.", keyspace.table_count() as u64),
        gauge("klad_fjall_level_0_tables", "Tables of level 0; with 24 writes wait.", keyspace.l0_table_count() as u64),
        gauge("klad_fjall_table_bytes", "Size of all tables.", keyspace.disk_space()),
        gauge("klad_fjall_journals", "Journals, of which one is written.", db.journal_count() as u64),
        gauge("klad_fjall_compactions_running", "Compactions that are being done.", db.active_compactions() as u64),
        counter(
            "klad_fjall_compactions_total",
            "Compactions that have ended.",
            number(db.compactions_completed() as u64),
        ),
        counter(
            "klad_fjall_compaction_seconds_total",
            "How long they took together.",
            db.time_compacting().as_secs_f64(),
        ),
    ]
}
