//! Figures of this process, from the kernel and the allocator: memory, descriptors, CPU time, threads.
//!
//! Reading the kernel's figures waits for no lock of the kernel's memory management, because `/proc/self/status` and
//! `stat` have counters. `smaps` would walk the address space. The admin thread reads the kernel's figures for each
//! request for `/metrics` or `/debug/memory`, and for each sample of the console. Another thread, which may wait, reads
//! the allocator's figures.

use rustix::process::{Resource, getrlimit};

use crate::admin::thread_groups;
use klad_base::clock;
use klad_base::metrics::text::{Kind, Page};

/// The kernel's figures of this process.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Process {
    /// The resident memory.
    pub resident_bytes: u64,
    /// The largest resident memory since the start.
    pub resident_peak_bytes: u64,
    /// The part of the resident memory that is pages of files, mainly of the program itself, and shared memory.
    pub resident_file_bytes: u64,
    /// The size of the address space.
    pub virtual_bytes: u64,
    /// The number of threads, including those of RocksDB and the allocator.
    pub threads: u64,
    /// CPU time of all threads, seconds.
    pub cpu_seconds: f64,
    /// The start of the process, seconds since 1970.
    pub start_seconds: f64,
}

/// The allocator's figures, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Allocator {
    /// Memory that the program has allocated and not freed.
    pub allocated: u64,
    /// Pages with at least one allocation.
    pub active: u64,
    /// The allocator's own data structures.
    pub metadata: u64,
    /// Pages that may be in RAM: active pages, the allocator's data, and free pages that were not returned to the
    /// kernel.
    pub resident: u64,
    /// Address space that the allocator keeps for later use. It has returned the memory of this address space to the
    /// kernel.
    pub retained: u64,
}

/// Why the figures could not be read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// `/proc` is missing or has an unexpected format.
    #[error("cannot read /proc/self: {0}")]
    Proc(#[from] procfs::ProcError),
}

impl Process {
    /// Reads the current figures.
    ///
    /// # Errors
    /// [`Error::Proc`] if there is no `/proc`, or if it has an unexpected format.
    pub fn read() -> Result<Process, Error> {
        let own = procfs::process::Process::myself()?;
        let (status, stat) = (own.status()?, own.stat()?);
        // The unit is KiB, although the kernel calls it kB.
        let bytes = |kib: Option<u64>| kib.unwrap_or_default() << 10;
        let ticks = stat.starttime / procfs::ticks_per_second();
        Ok(Process {
            resident_bytes: bytes(status.vmrss),
            resident_peak_bytes: bytes(status.vmhwm),
            resident_file_bytes: bytes(status.rssfile) + bytes(status.rssshmem),
            virtual_bytes: bytes(status.vmsize),
            threads: status.threads,
            cpu_seconds: seconds(clock::process_cpu_ns()),
            start_seconds: number(procfs::boot_time_secs()? + ticks),
        })
    }

    fn write(&self, page: &mut Page) {
        page.family("process_cpu_seconds_total", Kind::Counter, "CPU time of all threads.")
            .sample(&[], self.cpu_seconds);
        page.gauge("process_resident_memory_bytes", "Resident memory.", number(self.resident_bytes));
        page.gauge(
            "process_resident_memory_peak_bytes",
            "The largest resident memory since the start.",
            number(self.resident_peak_bytes),
        );
        page.gauge("process_virtual_memory_bytes", "Address space.", number(self.virtual_bytes));
        page.gauge("process_threads", "Threads, including those of RocksDB and the allocator.", number(self.threads));
        page.gauge("process_start_time_seconds", "Start of the process, in seconds since 1970.", self.start_seconds);
    }
}

impl Allocator {
    /// Reads the current figures. Returns `None` if the process has another allocator than jemalloc. Waits for each of
    /// the allocator's locks in turn. If a thread with a low CPU priority holds a lock and has no core, the call waits
    /// until that thread runs.
    #[must_use]
    pub fn read() -> Option<Allocator> {
        use tikv_jemalloc_ctl::{epoch, stats};
        // jemalloc updates its figures only when this is called.
        epoch::advance().ok()?;
        let bytes = |figure: Result<usize, tikv_jemalloc_ctl::Error>| figure.ok().map(|bytes| bytes as u64);
        Some(Allocator {
            allocated: bytes(stats::allocated::read())?,
            active: bytes(stats::active::read())?,
            metadata: bytes(stats::metadata::read())?,
            resident: bytes(stats::resident::read())?,
            retained: bytes(stats::retained::read())?,
        })
    }

    /// Writes the figures to the metrics page.
    pub fn write(&self, page: &mut Page) {
        for (name, help, value) in [
            ("klad_allocator_allocated_bytes", "Bytes in use by the program.", self.allocated),
            ("klad_allocator_active_bytes", "Pages with at least one allocation.", self.active),
            ("klad_allocator_metadata_bytes", "The allocator's own data structures.", self.metadata),
            ("klad_allocator_resident_bytes", "Pages of the allocator that may be in RAM.", self.resident),
            (
                "klad_allocator_retained_bytes",
                "Address space that is kept for later use; almost none of it takes memory.",
                self.retained,
            ),
        ] {
            page.gauge(name, help, number(value));
        }
    }
}

/// Returns the number of open descriptors of this process: sockets, files, epoll instances. Returns `None` if there is
/// no `/proc`.
#[must_use]
pub fn open_descriptors() -> Option<u64> {
    // Since Linux 6.2 the directory's size is the number of descriptors, so klad need not list thousands of entries.
    let size = rustix::fs::stat("/proc/self/fd").ok()?.st_size;
    match u64::try_from(size) {
        Ok(count @ 1..) => Some(count),
        // Subtract the descriptor through which klad reads the directory.
        _ => std::fs::read_dir("/proc/self/fd").ok().map(|open| (open.count() as u64).saturating_sub(1)),
    }
}

/// Writes the kernel's figures to the metrics page. Leaves out what cannot be read.
pub fn write(page: &mut Page) {
    if let Ok(process) = Process::read() {
        process.write(page);
    }
    if let Some(open) = open_descriptors() {
        page.gauge("process_open_fds", "Open descriptors.", number(open));
    }
    let limit = |resource| getrlimit(resource).current.map_or(f64::INFINITY, number);
    page.gauge("process_max_fds", "The limit of open descriptors.", limit(Resource::Nofile));
    thread_groups::write(page);
    page.gauge("process_virtual_memory_max_bytes", "The limit of the address space.", limit(Resource::As));
}

fn seconds(ns: u64) -> f64 {
    std::time::Duration::from_nanos(ns).as_secs_f64()
}

#[expect(clippy::cast_precision_loss, reason = "Prometheus itself holds every value as a double")]
fn number(value: u64) -> f64 {
    value as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_memory_threads_and_descriptors() {
        let process = Process::read().expect("/proc");
        assert!(process.resident_bytes > 1 << 20 && process.resident_bytes <= process.virtual_bytes, "{process:?}");
        assert!(process.resident_file_bytes <= process.resident_bytes && process.threads >= 1, "{process:?}");
        assert!(process.cpu_seconds > 0.0 && process.start_seconds > 1e9, "{process:?}");
        // Other tests open and close some meanwhile, so only a large number is checked.
        let files: Vec<_> = (0..200).map(|_| std::fs::File::open("/dev/null").expect("there")).collect();
        let with = open_descriptors().expect("/proc");
        drop(files);
        assert!(with >= 200, "{with}");
    }

    #[test]
    fn what_is_allocated_is_counted() {
        let held = std::hint::black_box(vec![1_u8; 64 << 20]);
        let allocator = Allocator::read().expect("jemalloc");
        assert!(allocator.allocated >= held.len() as u64, "{allocator:?}");
        assert!(allocator.allocated <= allocator.active && allocator.active <= allocator.resident, "{allocator:?}");
        assert!(allocator.metadata > 0 && held[1 << 20] == 1, "{allocator:?}");
    }
}
