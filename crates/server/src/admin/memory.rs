//! `/debug/memory`: the resident memory in parts, each with its budget if the part has one.
//!
//! ```text
//!   resident set ─┬─ inside the allocator ─┬─ counted: the engine's memory, connections, queues, body budget
//!                 │                        ├─ other heap: allocated, but not counted
//!                 │                        └─ the allocator's own data, and unused pages
//!                 └─ outside: the program's pages, threads' stacks, other mappings
//! ```
//!
//! The parts are counted in different ways and not at the same moment, and some memory is reserved before it is
//! touched. To make the parts add up, klad subtracts one part after the other from the allocated bytes and from the
//! resident set. Each part is as large as counted, but at most what the earlier parts have left. If klad had to reduce
//! a part, the answer says so. `admin` calls this.

use std::fmt::Write as _;

use bytesize::ByteSize;
use serde_json::{Value, json};

use crate::admin::Admin;
use crate::admin::process::{self, Allocator, Process};
use crate::limits::CONNECTION_BYTES;
use klad_base::sync::Mutex;

/// The allocator's latest figures. A separate thread reads them, because reading may wait for the allocator's locks.
#[derive(Debug, Default)]
pub struct AllocatorFigures(Mutex<Allocator>);

impl AllocatorFigures {
    /// Reads the allocator's figures and stores them. May wait for the allocator's locks.
    pub fn refresh(&self) {
        // Read before locking: the admin thread takes this lock too, and must not wait for the allocator's locks.
        let now = Allocator::read().unwrap_or_default();
        *self.0.lock() = now;
    }

    /// Returns the figures that [`refresh`](Self::refresh) read last. klad usually reads them every
    /// [`ALLOCATOR_READ_INTERVAL`](crate::limits::ALLOCATOR_READ_INTERVAL).
    pub(super) fn latest(&self) -> Allocator {
        *self.0.lock()
    }
}

/// The parts of the memory budget, bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shares {
    /// The whole budget, `--memory`.
    pub total: u64,
    /// The part for buffers of idle connections.
    pub connections: u64,
    /// The part for request bodies and large answers.
    pub body_budget: u64,
    /// The part for pages of ranges in progress.
    pub scans: u64,
    /// The part for the engine: for block cache, value cache and memtables, or for the entries of an engine that keeps
    /// its data in memory.
    pub cache: u64,
    /// The part of `cache` for memtables.
    pub memtables: u64,
}

impl Shares {
    /// Returns each part with its name, the total first.
    pub(super) fn parts(&self) -> [(&'static str, u64); 6] {
        let Shares { total, connections, body_budget, scans, cache, memtables } = *self;
        [
            ("total", total),
            ("cache", cache),
            ("memtables", memtables),
            ("body_budget", body_budget),
            ("connections", connections),
            ("scans", scans),
        ]
    }
}

/// One part of the resident set.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Part {
    name: &'static str,
    /// The bytes of the part, as counted or reserved.
    counted: u64,
    /// How many of the `counted` bytes can be resident: at most what the earlier parts have left of the resident set.
    resident: u64,
    /// The part's budget.
    budget: Option<u64>,
    meaning: &'static str,
}

/// The resident set, split into parts.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Split {
    resident: u64,
    /// The allocated bytes that are in no part yet.
    heap_left: u64,
    /// The parts. Once the last part has taken the rest, the parts add up to `resident`.
    parts: Vec<Part>,
}

impl Split {
    /// Begins to split `resident` bytes, of which the allocator has allocated `heap`.
    fn new(resident: u64, heap: u64) -> Split {
        Split { resident, heap_left: heap, parts: Vec::new() }
    }

    fn left(&self) -> u64 {
        self.resident - self.parts.iter().map(|part| part.resident).sum::<u64>()
    }

    /// Adds a part that is outside the heap, and takes its bytes from what is left of the resident set.
    fn cut(&mut self, name: &'static str, counted: u64, meaning: &'static str) {
        let resident = counted.min(self.left());
        self.parts.push(Part { name, counted, resident, budget: None, meaning });
    }

    /// Adds a part of the heap, and takes its bytes from what is left of the heap and of the resident set.
    fn cut_heap(&mut self, name: &'static str, counted: u64, budget: Option<u64>, meaning: &'static str) {
        let allocated = counted.min(self.heap_left);
        self.heap_left -= allocated;
        self.parts.push(Part { name, counted, resident: allocated.min(self.left()), budget, meaning });
    }

    /// Whether klad had to reduce a part, because the part was counted larger than what was left.
    fn was_cut(&self) -> bool {
        self.parts.iter().any(|part| part.resident < part.counted)
    }
}

impl Admin {
    /// Returns the answer as JSON, or as text for people.
    pub(super) fn memory(&self, as_text: bool) -> Result<String, process::Error> {
        let process = Process::read()?;
        let allocator = self.allocator.latest();
        let split = self.split(&process, &allocator);
        let shares = &(self.shares)();
        Ok(if as_text {
            text(&split, &process, &allocator, shares)
        } else {
            format!("{}\n", json(&split, &process, &allocator, shares))
        })
    }

    fn split(&self, process: &Process, allocator: &Allocator) -> Split {
        let shares = &(self.shares)();
        let mut split = Split::new(process.resident_bytes, allocator.allocated);
        // In order of precision: the most precisely known part first.
        split.cut("program", process.resident_file_bytes, "pages of the program and its libraries");
        for holding in &self.executor.observe().memory {
            let (budget, meaning) = match holding.name {
                // Blocks and memtables share the cache's budget.
                "block_cache" => (shares.cache, "blocks of tables; shares its budget with the memtables"),
                "value_cache" => (shares.cache, "recently read values; part of the cache's budget"),
                "memtables" => (shares.memtables, "writes that are not in tables yet"),
                _ => (shares.cache, "keys and values"),
            };
            split.cut_heap(holding.name, holding.bytes, Some(budget), meaning);
        }
        let connections = (self.connections)() as u64 * CONNECTION_BYTES;
        let budget = self.executor.budget().all().used_bytes;
        let heap = [
            ("connections", connections, Some(shares.connections), "an estimate: 16 KiB for each open connection"),
            (
                "queues",
                self.executor.queues_bytes(),
                None,
                "operations that wait for storage or run in it: their places in queues, state and keys, without values",
            ),
            (
                "scans",
                self.executor.scans_bytes(),
                Some(shares.scans),
                "an estimate: two pages for each range in progress",
            ),
            ("body_budget", budget, Some(shares.body_budget), "reserved for request bodies and large answers"),
        ];
        for (name, bytes, budget, meaning) in heap {
            split.cut_heap(name, bytes, budget, meaning);
        }
        let other = split.heap_left;
        split.cut_heap("other_heap", other, None, "allocated, but none of the above");
        let slack = allocator.resident.saturating_sub(allocator.allocated + allocator.metadata);
        split.cut("allocator_slack", slack, "unused pages of the allocator");
        split.cut("allocator_books", allocator.metadata, "the allocator's own data structures");
        let rest = split.left();
        split.cut("rest", rest, "stacks of threads, and memory that was mapped without the allocator");
        split
    }
}

const CUT: &str = "The counted bytes are more than the resident bytes, so parts were cut to fit. Reserved budget, \
                   connections' buffers and the allocator's data count in full before they are touched, and the \
                   figures are of different moments.";

fn json(split: &Split, process: &Process, allocator: &Allocator, shares: &Shares) -> Value {
    let part = |part: &Part| {
        json!({
            "name": part.name,
            "resident_bytes": part.resident,
            "counted_bytes": part.counted,
            "budget_bytes": part.budget,
            "meaning": part.meaning,
        })
    };
    json!({
        "resident_bytes": split.resident,
        "resident_peak_bytes": process.resident_peak_bytes,
        "virtual_bytes": process.virtual_bytes,
        "budget_bytes": shares.total,
        "parts": split.parts.iter().map(part).collect::<Vec<_>>(),
        "cut": split.was_cut().then_some(CUT),
        "allocator": {
            "allocated_bytes": allocator.allocated,
            "active_bytes": allocator.active,
            "metadata_bytes": allocator.metadata,
            "resident_bytes": allocator.resident,
            "retained_bytes": allocator.retained,
        },
    })
}

fn text(split: &Split, process: &Process, allocator: &Allocator, shares: &Shares) -> String {
    let size = |bytes: u64| ByteSize(bytes).display().iec().to_string();
    let mut lines = String::new();
    let mut line = |name: &str, resident: &str, counted: &str, budget: &str, meaning: &str| {
        let all = format!("{name:<16} {resident:>12} {counted:>12} {budget:>12}  {meaning}");
        let _ = writeln!(lines, "{}", all.trim_end());
    };
    line("", "resident", "counted", "budget", "");
    for part in &split.parts {
        let budget = part.budget.map_or_else(|| "-".to_owned(), size);
        line(part.name, &size(part.resident), &size(part.counted), &budget, part.meaning);
    }
    line("all", &size(split.resident), "", &size(shares.total), "resident set; --memory");
    let _ = writeln!(
        lines,
        "\npeak {}, address space {}; allocator: {} allocated, {} in pages, {} resident, {} kept without memory",
        size(process.resident_peak_bytes),
        size(process.virtual_bytes),
        size(allocator.allocated),
        size(allocator.active),
        size(allocator.resident),
        size(allocator.retained),
    );
    if split.was_cut() {
        let _ = writeln!(lines, "\n{CUT}");
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_add_up_whatever_was_counted() {
        for (heap, counted) in
            [(60, [10, 20, 30]), (60, [0, 0, 0]), (90, [90, 90, 90]), (200, [100, 1, 0]), (0, [1, 2, 3])]
        {
            let mut split = Split::new(100, heap);
            split.cut("program", 5, "");
            for bytes in counted {
                split.cut_heap("part", bytes, None, "");
            }
            let other = split.heap_left;
            split.cut_heap("other", other, None, "");
            split.cut("rest", split.left(), "");
            assert_eq!(split.parts.iter().map(|part| part.resident).sum::<u64>(), 100, "{split:?}");
            let of_heap: u64 = split.parts[1..5].iter().map(|part| part.resident).sum();
            assert!(of_heap <= heap, "{split:?}");
            assert_eq!(split.was_cut(), counted.iter().sum::<u64>() > heap || heap > 95, "{split:?}");
        }
    }
}
