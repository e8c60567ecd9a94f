//! The process's limit of open files, the division of this limit among clients and engine, and the kernel's descriptor
//! table. Called by `config`, `offline`, `main` and `klad-bench`.

use crate::limits::{
    ADMIN_CONNECTIONS_MAX, DESCRIPTORS_KEPT, DESCRIPTORS_OF_WORKER, DESCRIPTORS_OWN, ENGINE_FILES_MAX,
    ENGINE_FILES_MIN, REFUSED_LINGERING_MAX,
};

/// Raises the soft limit of open files to the hard limit. Returns the resulting soft limit, which is the old one if the
/// kernel rejects the change.
#[must_use]
pub fn raise_limit() -> u64 {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// The division of the limit of open files. Clients must not take the descriptors that the engine needs for a large
/// store, because an engine that cannot open a file stops writing. The engine must not take those of clients either.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shares {
    limit: u64,
    /// The number of descriptors that are reserved for klad itself and its workers.
    own: u64,
    /// The maximum of open connections of the admin listener.
    pub admin: u64,
    /// The maximum of rejected connections that klad keeps open until their clients have seen the answer.
    pub lingering: u64,
}

impl Shares {
    /// Divides `limit` for a klad with `workers` workers.
    #[must_use]
    pub fn new(limit: u64, workers: u64) -> Shares {
        let few = |most: usize| (limit / 16).min(most as u64);
        let own = DESCRIPTORS_OWN + workers.saturating_mul(DESCRIPTORS_OF_WORKER);
        Shares { limit, own, admin: few(ADMIN_CONNECTIONS_MAX), lingering: few(REFUSED_LINGERING_MAX) }
    }

    /// Returns the limit that is divided.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.limit
    }

    fn reserved(&self) -> u64 {
        self.own + self.admin + self.lingering
    }

    /// Returns how many connections fit beside `files` files of the engine.
    #[must_use]
    pub fn connections_beside(&self, files: u64) -> u64 {
        self.limit.saturating_sub(self.reserved() + files)
    }

    /// Returns the number of connections that klad accepts by default, as far as descriptors limit it: the limit less
    /// [`DESCRIPTORS_KEPT`], but at least half of the limit, and at most what fits beside [`ENGINE_FILES_MIN`] files of
    /// the engine. If nothing fits beside them, this is 0.
    #[must_use]
    pub fn connections(&self) -> u64 {
        let some = self.limit.saturating_sub(DESCRIPTORS_KEPT).max(self.limit / 2);
        some.min(self.connections_beside(ENGINE_FILES_MIN))
    }

    /// Returns how many files the engine may keep open beside `connections` connections: the rest of the limit, but at
    /// most half of the limit, and at least [`ENGINE_FILES_MIN`].
    #[must_use]
    pub fn files_beside(&self, connections: u64) -> u64 {
        let rest = self.limit.saturating_sub(self.reserved() + connections);
        rest.min(self.limit / 2).clamp(ENGINE_FILES_MIN, ENGINE_FILES_MAX)
    }

    /// Returns the smallest limit with which klad can serve a client.
    #[must_use]
    pub fn limit_min(&self) -> u64 {
        let workers = (self.own - DESCRIPTORS_OWN) / DESCRIPTORS_OF_WORKER;
        // `admin` and `lingering` take one sixteenth each.
        let most = (self.own + ENGINE_FILES_MIN + 1) * 2;
        let too_few = |limit: &u64| Shares::new(*limit, workers).connections() == 0;
        (self.own..most).rev().find(too_few).map_or(self.own, |limit| limit + 1)
    }
}

/// Grows the kernel's descriptor table to `count` entries. Call this before many threads run: the kernel doubles a full
/// table when a descriptor is opened, and if the process has several threads, the opening thread waits 7 to 15 ms each
/// time (measured at 256, 512, 1,024 and 2,048 connections opened on demand). The table never shrinks; an entry takes
/// 8 bytes of kernel memory. If the call fails, later growth causes these waits.
pub fn grow_table(count: u64) {
    let Ok(highest) = i32::try_from(count.saturating_sub(1)) else { return };
    drop(rustix::io::fcntl_dupfd_cloexec(std::io::stderr(), highest));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_may_be_open_at_once_is_within_the_limit() {
        for workers in [1, 2, 8, 128] {
            for limit in (0..4_096).chain([20_000, 1 << 20, 1 << 40]) {
                let shares = Shares::new(limit, workers);
                let connections = shares.connections();
                assert!(connections > 0 || limit < shares.limit_min(), "{workers} workers, limit {limit}");
                if connections == 0 {
                    continue;
                }
                let files = shares.files_beside(connections);
                let all = shares.reserved() + files + connections;
                assert!(
                    files >= ENGINE_FILES_MIN && all <= limit,
                    "{shares:?}, {files} files, {connections} connections"
                );
                assert!(shares.connections_beside(files) >= connections);
            }
        }
    }

    #[test]
    fn most_of_a_large_limit_is_for_connections() {
        let connections = |limit| Shares::new(limit, 2).connections();
        assert_eq!(
            (connections(20_000), connections(4_096), connections(1_024), connections(256)),
            (18_976, 3_072, 512, 128)
        );
    }
}
