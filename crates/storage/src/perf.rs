//! The engine's work for one operation as plain data, so that no code above storage depends on the engine.
//!
//! Engines that count their work pass the figures to [`Reply::measured`](crate::Reply::measured). `execution` keeps
//! them, and `http` shows them.

/// The unit of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// A number of events.
    Count,
    /// A number of bytes.
    Bytes,
    /// A duration in nanoseconds.
    Time,
}

/// Defines the figures in their order, with names and units.
macro_rules! figures {
    ($($(#[$doc:meta])* $figure:ident = $name:literal, $unit:ident;)+) => {
        /// One measured quantity of an operation.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Figure { $($(#[$doc])* $figure,)+ }

        impl Figure {
            /// All figures in their order.
            pub const ALL: &'static [Figure] = &[$(Figure::$figure,)+];

            /// The name in responses, without the unit.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Figure::$figure => $name,)+ }
            }

            /// The unit of the value.
            #[must_use]
            pub const fn unit(self) -> Unit {
                match self { $(Figure::$figure => Unit::$unit,)+ }
            }
        }
    };
}

figures! {
    /// Table blocks that were found in the block cache.
    BlockCacheHits = "block_cache_hits", Count;
    /// Table blocks that were read from files.
    BlockReads = "block_reads", Count;
    /// The size of the blocks that were read, as they are in the files.
    BlockReadBytes = "block_read", Bytes;
    /// Time to read blocks from files.
    BlockReadTime = "block_read", Time;
    /// Time to decompress blocks.
    DecompressTime = "block_decompress", Time;
    /// Tables that were skipped because their filter excluded the key.
    FiltersUseful = "filters_useful", Count;
    /// Tables whose filter did not exclude the key.
    FiltersPassed = "filters_passed", Count;
    /// Memtables that were searched for a key.
    MemtablesAsked = "memtables_asked", Count;
    /// Time to search memtables.
    MemtableReadTime = "memtable_read", Time;
    /// Time to search tables, including the reads of blocks.
    TableReadTime = "table_read", Time;
    /// Entries that a range read passed: each entry that it returned, and older entries of overwritten keys.
    EntriesPassed = "entries_passed", Count;
    /// Deletion marks (tombstones) that a range read skipped.
    RemovalsSkipped = "removals_skipped", Count;
    /// Time that the batch waited for the commit section while another batch was in it.
    CommitSectionWait = "commit_section_wait", Time;
    /// Time to write the log, including the sync if there was one.
    LogWriteTime = "log_write", Time;
    /// Time to insert the batch into the memtable.
    MemtableWriteTime = "memtable_write", Time;
    /// Time that the engine delayed the write because flushes or compactions did not keep up.
    WriteDelayTime = "write_delay", Time;
    /// Time that the operation waited for the engine's mutex.
    MutexWaitTime = "mutex_wait", Time;
    /// Time that the operation waited for the engine's other threads (condition variables).
    ConditionWaitTime = "condition_wait", Time;
}

const FIGURES: usize = Figure::ALL.len();

/// The figures of one operation, or their sum over the operations of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Perf {
    /// The number of operations that shared this work: the writes of one batch. 1 if the work was for one operation
    /// only.
    pub shared_by: u32,
    /// A bit for each figure that is known. The values of the other figures have no meaning.
    known: u32,
    values: [u64; FIGURES],
}

const _: () = assert!(FIGURES <= u32::BITS as usize);

impl Perf {
    /// Makes a set of figures that are all unknown.
    #[must_use]
    pub fn new(shared_by: u32) -> Perf {
        Perf { shared_by, known: 0, values: [0; FIGURES] }
    }

    /// Sets one figure.
    #[must_use]
    pub fn with(mut self, figure: Figure, value: u64) -> Perf {
        self.known |= 1 << figure as u32;
        self.values[figure as usize] = value;
        self
    }

    /// Returns the value of a figure; `None` if it is unknown.
    #[must_use]
    pub fn get(&self, figure: Figure) -> Option<u64> {
        (self.known & (1 << figure as u32) != 0).then(|| self.values[figure as usize])
    }

    /// Adds the figures of another operation of the same request. A figure that is unknown in one of the two becomes
    /// unknown. `shared_by` becomes the larger of both.
    pub fn add(&mut self, other: &Perf) {
        self.shared_by = self.shared_by.max(other.shared_by);
        self.known &= other.known;
        for (sum, value) in self.values.iter_mut().zip(other.values) {
            *sum = sum.saturating_add(value);
        }
    }

    /// Iterates over the known figures and their values.
    pub fn figures(&self) -> impl Iterator<Item = (Figure, u64)> {
        let known = self.known;
        let all = Figure::ALL.iter().copied().zip(self.values);
        all.filter(move |(figure, _)| known & (1 << *figure as u32) != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sum_has_only_the_figures_that_both_operands_have() {
        let mut sum =
            Figure::ALL.iter().fold(Perf::new(1), |perf, figure| perf.with(*figure, 1)).with(Figure::BlockReads, 3);
        assert_eq!(sum.figures().count(), FIGURES);
        sum.add(&Perf::new(7).with(Figure::BlockReads, 3).with(Figure::BlockCacheHits, 1));
        assert_eq!(sum.shared_by, 7);
        let known: Vec<_> = sum.figures().collect();
        assert_eq!(known, [(Figure::BlockCacheHits, 2), (Figure::BlockReads, 6)]);
        assert_eq!([Figure::BlockReads, Figure::WriteDelayTime].map(|figure| sum.get(figure)), [Some(6), None]);
    }
}
