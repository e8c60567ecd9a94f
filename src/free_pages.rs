//! Pages that hold nothing any more, and that the allocator keeps for what comes next: how long, and how many.
//!
//! ```text
//!   freed ─▶ kept ─▶ used again: no page fault, and no huge page that is cut
//!              └─ too many, looked at once a second ─▶ all go back to the kernel
//! ```
//!
//! jemalloc gives unused pages back little by little. Out of huge pages that is harmful: who takes one small page out of a huge one
//! leaves 511 small ones, for good, and the kernel's books of them grow with their number. Where it watches which memory is in use
//! (DAMON) it took five times as long for that, a core for 4 ms at a time (docs/decisions/2026-11-24-huge-pages-stay-whole.md). A
//! store whose memtables come and go fills the same pages again within seconds anyway. So where pages are huge they stay, up to a
//! part of the memory budget. Where `MALLOC_CONF` says how long pages are kept, that holds. Called by `main` at the start of `serve`, and by `server`.

#![expect(unsafe_code, reason = "jemalloc's controls take values of the type that each is documented with")]

use std::sync::atomic::{AtomicU64, Ordering};

use tikv_jemalloc_ctl::{Result, raw};

use crate::limits::{FREE_PAGES_BYTES_MIN, FREE_PAGES_PARTS};

/// As `dirty_decay_ms` has it.
const FOR_EVER: isize = -1;
const NOT_AT_ALL: isize = 0;

/// The memory budget, bytes; 0: the allocator gives pages back by itself.
static BUDGET: AtomicU64 = AtomicU64::new(0);

/// From now on pages are kept, up to what a memory budget of so many bytes allows; unless jemalloc was started with another time for
/// them than `usual_ms`, as somebody has asked for who knows why: `false`.
///
/// # Errors
/// The allocator is another, or refuses; then it does as it did.
pub fn keep(budget_bytes: u64, usual_ms: isize) -> Result<bool> {
    // SAFETY: `opt.dirty_decay_ms` is an `ssize_t`.
    if unsafe { raw::read::<isize>(b"opt.dirty_decay_ms\0") }? != usual_ms {
        return Ok(false);
    }
    // SAFETY: `arenas.dirty_decay_ms`, which is for arenas to come, is an `ssize_t`.
    unsafe { raw::write(b"arenas.dirty_decay_ms\0", FOR_EVER) }?;
    for arena in 0..arenas()? {
        set_decay(arena, FOR_EVER);
    }
    // From here on somebody has to bound them, whatever else fails.
    BUDGET.store(budget_bytes, Ordering::Relaxed);
    // jemalloc's own thread would have nothing to do, and be woken for it by each page that is freed: who finds it asleep for good
    // wakes it up (`arena_background_thread_inactivity_check`).
    // SAFETY: `background_thread` is a `bool`.
    unsafe { raw::write(b"background_thread\0", false) }?;
    Ok(true)
}

/// Gives all pages back that hold nothing, if they are too many: called once a second, with how many bytes they are of how many that
/// the allocator has in RAM, by a thread that may wait.
pub(crate) fn look(free_bytes: u64, resident_bytes: u64) {
    let budget = BUDGET.load(Ordering::Relaxed);
    if budget == 0 || !are_too_many(free_bytes, resident_bytes, budget) {
        return;
    }
    for arena in 0..arenas().unwrap_or(0) {
        set_decay(arena, NOT_AT_ALL);
        set_decay(arena, FOR_EVER);
    }
    tracing::debug!(free_bytes, resident_bytes, "memory that holds nothing went back to the kernel");
}

fn are_too_many(free_bytes: u64, resident_bytes: u64, budget_bytes: u64) -> bool {
    free_bytes > FREE_PAGES_BYTES_MIN && (free_bytes > budget_bytes / FREE_PAGES_PARTS || resident_bytes > budget_bytes)
}

/// How many there can be.
fn arenas() -> Result<u32> {
    // SAFETY: `arenas.narenas` is an `unsigned`.
    unsafe { raw::read(b"arenas.narenas\0") }
}

/// How long an arena keeps pages that hold nothing. One that nobody has used yet refuses, and will have what is set for those to come.
fn set_decay(arena: u32, ms: isize) {
    let name = format!("arena.{arena}.dirty_decay_ms\0");
    // SAFETY: `arena.<i>.dirty_decay_ms` is an `ssize_t`.
    let _ = unsafe { raw::write(name.as_bytes(), ms) };
}

#[cfg(test)]
mod tests {
    use super::are_too_many;

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_quarter_is_kept_within_the_budget_and_hardly_anything_beyond_it() {
        assert!(!are_too_many(250 * MIB, 1000 * MIB, 1000 * MIB));
        assert!(are_too_many(251 * MIB, 1000 * MIB, 1000 * MIB), "more than a quarter");
        assert!(are_too_many(65 * MIB, 1001 * MIB, 1000 * MIB), "klad is beyond its budget");
        assert!(!are_too_many(64 * MIB, 1064 * MIB, 1000 * MIB), "too few to be worth it");
    }
}
