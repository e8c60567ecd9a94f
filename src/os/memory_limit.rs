//! The memory available to klad: the smallest limit of its control groups (version 1 or 2), or the memory of the
//! machine if that is less. Called by `config` and `settings`.

use std::fs;
use std::path::Path;

/// Returns the memory available to klad, bytes, and what limits it, as words for messages.
#[must_use]
pub(crate) fn memory_limit() -> (u64, &'static str) {
    let machine = machine_bytes(&fs::read_to_string("/proc/meminfo").unwrap_or_default()).unwrap_or(1 << 30);
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    match group_limit(Path::new("/sys/fs/cgroup"), &groups) {
        Some(limit) if limit < machine => (limit, "the control group"),
        _ => (machine, "the machine"),
    }
}

fn machine_bytes(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes * 1024)
}

/// Returns the smallest memory limit, bytes, of the process's control group and of all groups above it; `None` if none
/// of them has a limit. `groups` is the content of `/proc/self/cgroup`. In a container, the path of the group may not
/// exist below the mount; the root is then the container's own group.
fn group_limit(mount: &Path, groups: &str) -> Option<u64> {
    let mut smallest: Option<u64> = None;
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(_number), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next()) else {
            continue;
        };
        let (root, file) = if controllers.is_empty() {
            (mount.to_owned(), "memory.max")
        } else if controllers.split(',').any(|controller| controller == "memory") {
            (mount.join("memory"), "memory.limit_in_bytes")
        } else {
            continue;
        };
        for ancestor in Path::new(path.trim_start_matches('/')).ancestors() {
            // "max" (version 2) is not a number, so there is no limit. Version 1 has a number larger than any machine.
            let limit =
                fs::read_to_string(root.join(ancestor).join(file)).ok().and_then(|text| text.trim().parse().ok());
            smallest = match (smallest, limit) {
                (Some(one), Some(other)) => Some(one.min(other)),
                (one, other) => one.or(other),
            };
        }
    }
    smallest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machine_memory_is_read() {
        assert_eq!(machine_bytes("MemTotal:       24689152 kB\nMemFree: 1 kB\n"), Some(24_689_152 * 1024));
        assert_eq!(machine_bytes("nothing"), None);
    }

    #[test]
    fn the_smallest_limit_of_a_group_and_its_ancestors_counts() {
        let mount = tempfile::tempdir().expect("a temporary directory");
        let write = |path: &str, text: &str| {
            let path = mount.path().join(path);
            fs::create_dir_all(path.parent().expect("a parent")).expect("made");
            fs::write(path, text).expect("written");
        };
        write("a/b/memory.max", "max\n");
        write("a/memory.max", "1000\n");
        assert_eq!(group_limit(mount.path(), "0::/a/b\n"), Some(1000));
        assert_eq!(group_limit(mount.path(), "0::/elsewhere\n"), None);
        write("memory/x/memory.limit_in_bytes", "500\n");
        assert_eq!(group_limit(mount.path(), "4:cpu,memory:/x\n0::/a/b\n"), Some(500));
        assert_eq!(group_limit(mount.path(), "4:cpu:/x\n"), None);
    }
}
