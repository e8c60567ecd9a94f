//! What the kernel and the allocator know of this process: memory, descriptors, CPU time, threads.
//!
//! The kernel's figures wait for no lock that memory management holds: `/proc/self/status` and `stat` read counters, where
//! `smaps` would walk the address space. They are read by the admin thread when somebody asks; the allocator's by a thread
//! that may wait.

use rustix::process::{Resource, getrlimit};

use klad_base::clock;
use klad_base::metrics::text::{Kind, Page};

/// What the kernel says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Process {
    /// In RAM now, and the most that it was.
    pub resident_bytes: u64,
    /// The most that it was since the start.
    pub resident_peak_bytes: u64,
    /// Of it, pages of files: the program itself.
    pub resident_file_bytes: u64,
    /// Address space.
    pub virtual_bytes: u64,
    /// Threads, those of RocksDB and the allocator included.
    pub threads: u64,
    /// CPU time of all threads, seconds.
    pub cpu_seconds: f64,
    /// Since 1970, seconds.
    pub start_seconds: f64,
}

/// What the allocator says, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Allocator {
    /// In use by the program.
    pub allocated: u64,
    /// Pages that hold some of it.
    pub active: u64,
    /// Its own books.
    pub metadata: u64,
    /// Pages that may be in RAM: active ones, books, and those that hold nothing and were not given back.
    pub resident: u64,
    /// Address space that was given back to the kernel, and is kept for the next use.
    pub retained: u64,
}

/// Why nothing could be read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// `/proc` is not there, or is not as expected.
    #[error("cannot read /proc/self: {0}")]
    Proc(#[from] procfs::ProcError),
}

impl Process {
    /// As of now.
    ///
    /// # Errors
    /// Where there is no `/proc`.
    pub fn read() -> Result<Process, Error> {
        let own = procfs::process::Process::myself()?;
        let (status, stat) = (own.status()?, own.stat()?);
        // In KiB, whatever the kernel calls it.
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
        page.gauge("process_resident_memory_bytes", "Memory in RAM.", number(self.resident_bytes));
        page.gauge(
            "process_resident_memory_peak_bytes",
            "The most that it was since the start.",
            number(self.resident_peak_bytes),
        );
        page.gauge("process_virtual_memory_bytes", "Address space.", number(self.virtual_bytes));
        page.gauge("process_threads", "Threads, those of RocksDB and the allocator included.", number(self.threads));
        page.gauge("process_start_time_seconds", "Start of the process, since 1970.", self.start_seconds);
    }
}

impl Allocator {
    /// As of now; `None` where the allocator is another. Waits for every lock of the allocator in turn: where one is held by a
    /// thread of low priority that has lost its core, for as long as it gets none.
    #[must_use]
    pub fn read() -> Option<Allocator> {
        use tikv_jemalloc_ctl::{epoch, stats};
        // Its figures are as of the last time that this was called.
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

    /// Puts it on the page.
    pub fn write(&self, page: &mut Page) {
        for (name, help, value) in [
            ("klad_allocator_allocated_bytes", "In use by the program.", self.allocated),
            ("klad_allocator_active_bytes", "Pages that hold some of what is allocated.", self.active),
            ("klad_allocator_metadata_bytes", "The allocator's own books.", self.metadata),
            ("klad_allocator_resident_bytes", "Pages of the allocator that may be in RAM.", self.resident),
            (
                "klad_allocator_retained_bytes",
                "Address space that holds nothing, kept for the next use; hardly any of it has memory.",
                self.retained,
            ),
        ] {
            page.gauge(name, help, number(value));
        }
    }
}

/// Open descriptors of this process: sockets, files, epoll instances.
#[must_use]
pub fn open_descriptors() -> Option<u64> {
    // Since Linux 6.2 the directory's size is their number, without a look at each of thousands.
    let size = rustix::fs::stat("/proc/self/fd").ok()?.st_size;
    match u64::try_from(size) {
        Ok(count @ 1..) => Some(count),
        // Less the one that the directory itself is read through.
        _ => std::fs::read_dir("/proc/self/fd").ok().map(|open| (open.count() as u64).saturating_sub(1)),
    }
}

/// Puts what the kernel says on the page; what cannot be read is left out.
pub fn write(page: &mut Page) {
    if let Ok(process) = Process::read() {
        process.write(page);
    }
    if let Some(open) = open_descriptors() {
        page.gauge("process_open_fds", "Open descriptors.", number(open));
    }
    let limit = |resource| getrlimit(resource).current.map_or(f64::INFINITY, number);
    page.gauge("process_max_fds", "As many descriptors there may be.", limit(Resource::Nofile));
    page.gauge("process_virtual_memory_max_bytes", "As much address space there may be.", limit(Resource::As));
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
        // Others open and close some meanwhile: only that one is noticed among many is asked for.
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
