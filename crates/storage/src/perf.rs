//! What the engine had to do for an operation: plain data, so that nothing above storage knows which engine it is.
//!
//! Said through [`Reply::measured`](crate::Reply::measured) by engines that count it, kept by `execution`, shown by `http`.

/// What a figure is counted in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// How often.
    Count,
    /// How many bytes.
    Bytes,
    /// For how long, nanoseconds.
    Time,
}

/// Figures in their order, with names and units.
macro_rules! figures {
    ($($(#[$doc:meta])* $figure:ident = $name:literal, $unit:ident;)+) => {
        /// What is counted of an operation.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Figure { $($(#[$doc])* $figure,)+ }

        impl Figure {
            /// All, in order.
            pub const ALL: &'static [Figure] = &[$(Figure::$figure,)+];

            /// As it stands in answers, without its unit.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Figure::$figure => $name,)+ }
            }

            /// What it is counted in.
            #[must_use]
            pub const fn unit(self) -> Unit {
                match self { $(Figure::$figure => Unit::$unit,)+ }
            }
        }
    };
}

figures! {
    /// Blocks of tables that were found in the cache.
    BlockCacheHits = "block_cache_hits", Count;
    /// Blocks that were read from files.
    BlockReads = "block_reads", Count;
    /// Their size in the files.
    BlockReadBytes = "block_read", Bytes;
    /// In reading them.
    BlockReadTime = "block_read", Time;
    /// In unpacking them.
    DecompressTime = "block_decompress", Time;
    /// Tables that need not be looked into, because their filter said that the key is not in them.
    FiltersUseful = "filters_useful", Count;
    /// Tables whose filter said that the key may be in them.
    FiltersPassed = "filters_passed", Count;
    /// Memtables that were asked for a key.
    MemtablesAsked = "memtables_asked", Count;
    /// In asking them.
    MemtableReadTime = "memtable_read", Time;
    /// In looking into tables, reading blocks included.
    TableReadTime = "table_read", Time;
    /// Entries that a range went past: one for each that it gave, and older ones of keys that were overwritten.
    EntriesPassed = "entries_passed", Count;
    /// Marks of removed keys that a range went past.
    RemovalsSkipped = "removals_skipped", Count;
    /// In waiting until another batch was written, before this one was begun.
    CommitSectionWait = "commit_section_wait", Time;
    /// In writing the log, and syncing it if that was asked for.
    LogWriteTime = "log_write", Time;
    /// In filling the memtable.
    MemtableWriteTime = "memtable_write", Time;
    /// In which the engine held writes back, because flushes or compactions do not keep up.
    WriteDelayTime = "write_delay", Time;
    /// In waiting for the engine's own lock.
    MutexWaitTime = "mutex_wait", Time;
    /// In waiting for the engine's own threads.
    ConditionWaitTime = "condition_wait", Time;
}

const FIGURES: usize = Figure::ALL.len();

/// The figures of one operation, or of a request's operations together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Perf {
    /// So many operations did this together: the writes of a batch. 1: it is one's own.
    pub shared_by: u32,
    /// A bit for each figure: the others are not 0 but unknown.
    known: u32,
    values: [u64; FIGURES],
}

const _: () = assert!(FIGURES <= u32::BITS as usize);

impl Perf {
    /// Nothing is known yet.
    #[must_use]
    pub fn new(shared_by: u32) -> Perf {
        Perf { shared_by, known: 0, values: [0; FIGURES] }
    }

    /// With one figure more.
    #[must_use]
    pub fn with(mut self, figure: Figure, value: u64) -> Perf {
        self.known |= 1 << figure as u32;
        self.values[figure as usize] = value;
        self
    }

    /// One figure; nothing where it is unknown.
    #[must_use]
    pub fn get(&self, figure: Figure) -> Option<u64> {
        (self.known & (1 << figure as u32) != 0).then(|| self.values[figure as usize])
    }

    /// Another operation of the same request. What is not known of both is not known.
    pub fn add(&mut self, other: &Perf) {
        self.shared_by = self.shared_by.max(other.shared_by);
        self.known &= other.known;
        for (sum, value) in self.values.iter_mut().zip(other.values) {
            *sum = sum.saturating_add(value);
        }
    }

    /// What is known, with its value.
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
    fn figures_add_up_and_what_was_not_counted_is_unknown() {
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
