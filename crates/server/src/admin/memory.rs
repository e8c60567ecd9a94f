//! `/debug/memory`: where the resident memory is, beside what the budget allows for it.
//!
//! ```text
//!   resident set ─┬─ inside the allocator ─┬─ what is counted: the engine's holdings, connections, queues, body room
//!                 │                        ├─ other heap: allocated, and none of these
//!                 │                        └─ the allocator's books, and its slack
//!                 └─ outside: the program's pages, threads' stacks, what was mapped without the allocator
//! ```
//!
//! What is counted is counted in different ways at different moments, and some of it is reserved before it is touched. So the
//! parts of the heap are cut out of what is allocated, and all parts out of the resident set, one after the other, each as
//! large as it is counted but never larger than what is left: they always add up, and where one was cut the answer says so.
//! Called by `admin`.

use std::fmt::Write as _;

use bytesize::ByteSize;
use serde_json::{Value, json};

use crate::admin::Admin;
use crate::admin::process::{self, Allocator, Process};
use klad_base::limits::CONNECTION_BYTES;
use klad_base::sync::Mutex;

/// What the allocator said when it was last asked: by a thread of its own, because asking may wait.
#[derive(Debug, Default)]
pub struct AllocatorWatch(Mutex<Allocator>);

impl AllocatorWatch {
    /// Asks, and keeps the answer for others; may wait.
    pub fn look(&self) {
        // Before the lock: the admin thread must not wait for what this waits for.
        let now = Allocator::read().unwrap_or_default();
        *self.0.lock() = now;
    }

    /// What it said, at most [`ALLOCATOR_LOOK_INTERVAL`](klad_base::limits::ALLOCATOR_LOOK_INTERVAL) ago.
    pub(super) fn latest(&self) -> Allocator {
        *self.0.lock()
    }
}

/// How the memory budget is shared out, bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shares {
    /// `--memory`.
    pub total: u64,
    /// Buffers of idle connections.
    pub connections: u64,
    /// Request bodies and large values on their way out.
    pub body_budget: u64,
    /// Pages of ranges in progress.
    pub scans: u64,
    /// Block cache with memtables, or the entries of an engine that has them in memory.
    pub cache: u64,
    /// Of the cache, for memtables.
    pub memtables: u64,
}

impl Shares {
    /// Each with its name, the whole first.
    pub(super) fn parts(&self) -> [(&'static str, u64); 6] {
        let Shares { total, connections, body_budget, scans, cache, memtables } = *self;
        [
            ("total", total),
            ("cache", cache),
            ("memtables", memtables),
            ("body_room", body_budget),
            ("connections", connections),
            ("scans", scans),
        ]
    }
}

/// One part of the resident set.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Part {
    name: &'static str,
    /// As it is counted, or reserved.
    counted: u64,
    /// As much of it as can be resident.
    resident: u64,
    /// What the budget allows for it.
    budget: Option<u64>,
    meaning: &'static str,
}

/// The resident set and its parts.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Split {
    resident: u64,
    /// Allocated, and in none of the parts yet.
    heap_left: u64,
    /// They add up to `resident`, when the last has taken what was left.
    parts: Vec<Part>,
}

impl Split {
    /// Nothing is cut out yet of `resident` bytes, nor of the `heap` among them.
    fn new(resident: u64, heap: u64) -> Split {
        Split { resident, heap_left: heap, parts: Vec::new() }
    }

    fn left(&self) -> u64 {
        self.resident - self.parts.iter().map(|part| part.resident).sum::<u64>()
    }

    /// Cuts a part out of the resident set.
    fn cut(&mut self, name: &'static str, counted: u64, meaning: &'static str) {
        let resident = counted.min(self.left());
        self.parts.push(Part { name, counted, resident, budget: None, meaning });
    }

    /// Cuts a part out of the heap, and hence out of the resident set.
    fn cut_heap(&mut self, name: &'static str, counted: u64, budget: Option<u64>, meaning: &'static str) {
        let allocated = counted.min(self.heap_left);
        self.heap_left -= allocated;
        self.parts.push(Part { name, counted, resident: allocated.min(self.left()), budget, meaning });
    }

    /// Whether a part was larger than what was left for it.
    fn was_cut(&self) -> bool {
        self.parts.iter().any(|part| part.resident < part.counted)
    }
}

impl Admin {
    /// The answer, as JSON, or as text for people.
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
        // From what is known best to what is known least.
        split.cut("program", process.resident_file_bytes, "pages of the program and its libraries");
        for holding in &self.executor.observe().memory {
            let (budget, meaning) = match holding.name {
                // The cache's capacity is for both.
                "block_cache" => (shares.cache, "blocks of tables; its budget is for the memtables as well"),
                "value_cache" => (shares.cache, "values that were read lately; part of the cache's budget"),
                "memtables" => (shares.memtables, "writes that are not yet in tables"),
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
                "operations that wait for or are in storage: their places, tickets and keys, not their values",
            ),
            (
                "scans",
                self.executor.scans_bytes(),
                Some(shares.scans),
                "an estimate: two pages for each range in progress",
            ),
            ("body_room", budget, Some(shares.body_budget), "reserved for request bodies and large answers"),
        ];
        for (name, bytes, budget, meaning) in heap {
            split.cut_heap(name, bytes, budget, meaning);
        }
        let other = split.heap_left;
        split.cut_heap("other_heap", other, None, "allocated, and none of the above");
        let slack = allocator.resident.saturating_sub(allocator.allocated + allocator.metadata);
        split.cut("allocator_slack", slack, "pages of the allocator that nobody uses now");
        split.cut("allocator_books", allocator.metadata, "what the allocator needs to know where everything is");
        let rest = split.left();
        split.cut("rest", rest, "stacks of threads, and what was mapped without the allocator");
        split
    }
}

const CUT: &str = "What is counted is more than what is resident: reserved room, connections' buffers and the allocator's books \
                   count in full before they are touched, and the figures are not of one moment. The parts were cut to fit.";

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
