//! Open files of the process: how many there may be, and the kernel's table of them. Called by `config`, `main` and `bench`.

use crate::limits::DESCRIPTORS_KEPT;

/// Raises the limit of open files as far as it goes, and returns it.
#[must_use]
pub fn raise_limit() -> u64 {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// How many of `limit` are for connections: all but [`DESCRIPTORS_KEPT`], at least half.
#[must_use]
pub fn for_connections(limit: u64) -> u64 {
    limit.saturating_sub(DESCRIPTORS_KEPT).max(limit / 2)
}

/// Makes room for `count` descriptors in the process's table, before there are threads: the kernel doubles the table when it
/// is full, and a process with threads then waits 7 to 15 ms for all of them (measured at 256, 512, 1,024 and 2,048
/// connections opened on demand). The table never shrinks; an entry is 8 bytes of the kernel's. Where it fails the process is
/// only less smooth.
pub fn grow_table(count: u64) {
    let Ok(highest) = i32::try_from(count.saturating_sub(1)) else { return };
    drop(rustix::io::fcntl_dupfd_cloexec(std::io::stderr(), highest));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_are_kept_for_files() {
        assert_eq!(for_connections(20_000), 20_000 - DESCRIPTORS_KEPT);
        assert_eq!(for_connections(1_024), 512);
        assert_eq!(for_connections(0), 0);
    }
}
