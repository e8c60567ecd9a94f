//! The databases of an experiment: one for each kind of files is filled, and read by all runs or copied for each; others begin
//! empty. Called by `runner`.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};

use crate::load;
use crate::process::RunningProcess;
use crate::runner::{Experiment, value_of};
use crate::scenario::{Stage, Start, Variant};
use crate::server::RunningServer;
use klad_base::clock;
use klad_bench::interrupt;

/// For a compaction of filled data.
const COMPACTION_MAX: Duration = Duration::from_hours(2);

/// Between two looks whether somebody has had enough.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);

/// Options of a variant that its files depend on, or whether they can be made.
const OF_FILES: [&str; 7] =
    ["--engine", "--compression", "--memory", "--key-max", "--value-max", "--head-max", "--disk-reserve"];

/// Keys are filled over so many connections.
const CONNECTIONS: usize = 64;

/// However a variant serves: a fill is no load that anything is learnt of, and must not be refused.
const FILLING: [&str; 4] = ["--durability", "async", "--admission", "off"];

impl Experiment {
    /// The directory that a run of a stage begins with.
    pub(super) fn database(&mut self, stage: &Stage, variant: &Variant) -> anyhow::Result<PathBuf> {
        let own = self.databases.path().join("run");
        remove(&own)?;
        if stage.data == Start::Empty || self.forgets(variant) {
            return Ok(own);
        }
        let filled = self.filled(variant)?;
        if stage.data == Start::Filled {
            return Ok(filled);
        }
        copy(&filled, &own)?;
        Ok(own)
    }

    /// The directory of a database with all keys, of the variant's engine. What has failed once fails again, without being tried.
    fn filled(&mut self, variant: &Variant) -> anyhow::Result<PathBuf> {
        let kind = kind_of_files(&self.result.scenario.options_of(variant), variant);
        if let Some(known) = self.filled.get(&kind) {
            return known.clone().map_err(anyhow::Error::msg);
        }
        let made = self.make(variant, &kind);
        self.filled.insert(kind, made.as_ref().map(Clone::clone).map_err(|why| format!("{why:#}")));
        made
    }

    fn make(&mut self, variant: &Variant, kind: &str) -> anyhow::Result<PathBuf> {
        let options = self.result.scenario.options_of(variant);
        let directory = self.databases.path().join(format!("filled-{kind}"));
        let mut neutral: Vec<&str> = FILLING.to_vec();
        for name in OF_FILES {
            neutral.extend(value_of(&options, name).into_iter().flat_map(|value| [name, value]));
        }
        self.note.say(&format!("filling {} keys for {kind}", self.data.keys));
        // Nobody measures this: wherever there is a core.
        let served = self.serve(variant, &neutral, &directory, &format!("fill-{kind}"), &[])?;
        let filled = self.fill(&served, kind, CONNECTIONS);
        let stopped = self.stop(served);
        filled.and(stopped)?;
        let is_compacted = self.compact(variant, &directory)?;
        if !is_compacted {
            let engine =
                value_of(&self.result.scenario.options_of(variant), "--engine").unwrap_or("default").to_owned();
            self.result.remarks.push(format!(
                "Filled data of the engine {engine} is as the fill left it: it has no compaction to be asked for. That of \
                 RocksDB is compacted."
            ));
        }
        Ok(directory)
    }

    /// Whether the data ends with the process, or lies where only a peer finds it: then it is filled anew for each run.
    pub(super) fn forgets(&self, variant: &Variant) -> bool {
        variant.peer.is_some() || value_of(&self.result.scenario.options_of(variant), "--engine") == Some("memory")
    }

    /// PUTs all keys; the result of the load is kept under `name`.
    pub(super) fn fill(&self, served: &RunningServer, name: &str, connections: usize) -> anyhow::Result<()> {
        let file = self.out.join(format!("runs/fill-{name}.json"));
        load::fill(&self.program, &self.data, served, connections, &file, &self.watch)
    }

    /// All that was filled on its last level, or the first runs would be beside what the fill has left to do. `false` for engines
    /// that have no such thing: they begin as they are.
    fn compact(&self, variant: &Variant, directory: &Path) -> anyhow::Result<bool> {
        if !directory.join("rocksdb").is_dir() {
            return Ok(false);
        }
        let options = self.result.scenario.options_of(variant);
        let mut command = Command::new(variant.program.as_ref().unwrap_or(&self.program));
        command.args(["compact", "--data"]).arg(directory);
        if let Some(compression) = value_of(&options, "--compression") {
            command.args(["--compression", compression]);
        }
        let log = self.out.join("logs/compact.log");
        let log = File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
        command.stdout(log.try_clone()?).stderr(log);
        let mut running = RunningProcess::start(command, &[], &self.watch)?;
        let deadline = clock::now() + COMPACTION_MAX;
        loop {
            match running.wait(LOOK_INTERVAL)? {
                Some(status) if status.success() => return Ok(true),
                Some(status) => bail!("klad compact has failed, {status}: see logs/compact.log"),
                None => ensure!(!interrupt::asked(), "interrupted"),
            }
            ensure!(clock::now() < deadline, "klad compact has not ended");
        }
    }
}

/// What the files of a database depend on: engine, compression, and the program where it is another.
fn kind_of_files(options: &[&str], variant: &Variant) -> String {
    let [engine, compression, ..] = OF_FILES.map(|name| value_of(options, name).unwrap_or("default"));
    let own = variant.program.as_ref().map_or_else(String::new, |_| format!("-{}", variant.name));
    format!("{engine}-{compression}{own}")
}

/// A directory as it is on the disk, so that no run begins with the kernel writing its data.
fn copy(from: &Path, to: &Path) -> anyhow::Result<()> {
    let cannot = || format!("cannot copy {}", from.display());
    std::fs::create_dir(to).with_context(cannot)?;
    for entry in std::fs::read_dir(from).with_context(cannot)? {
        ensure!(!interrupt::asked(), "interrupted");
        let entry = entry.with_context(cannot)?;
        let target = to.join(entry.file_name());
        if entry.file_type().with_context(cannot)?.is_dir() {
            copy(&entry.path(), &target)?;
        } else {
            std::fs::copy(entry.path(), &target).with_context(cannot)?;
            File::open(&target).and_then(|file| file.sync_all()).with_context(cannot)?;
        }
    }
    Ok(())
}

fn remove(directory: &Path) -> anyhow::Result<()> {
    match std::fs::remove_dir_all(directory) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", directory.display()))
        }
        _ => Ok(()),
    }
}

/// The kind of file system that a directory is on, such as `ext4`.
pub(super) fn file_system(directory: &Path) -> Option<String> {
    let directory = directory.canonicalize().ok()?;
    let mounts = procfs::process::Process::myself().ok()?.mountinfo().ok()?;
    let holds = mounts.into_iter().filter(|mount| directory.starts_with(&mount.mount_point));
    Some(holds.max_by_key(|mount| mount.mount_point.as_os_str().len())?.fs_type)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variants_that_share_files_are_told_from_those_that_do_not() {
        let variant: Variant = toml::from_str("name = 'a'").expect("one");
        let other = Variant { program: Some("other/klad".into()), ..variant.clone() };
        let of = |options: &str| kind_of_files(&options.split(' ').collect::<Vec<_>>(), &variant);
        assert_eq!(of("--execution inline --engine rocksdb"), of("--engine rocksdb --memory 2GiB"));
        assert_ne!(of("--engine rocksdb"), of("--engine=fjall"));
        assert_ne!(of("--compression none"), of("--compression zstd"));
        assert_ne!(kind_of_files(&[], &variant), kind_of_files(&[], &other));
    }

    #[test]
    fn a_copy_has_all_files_and_is_another() {
        let place = tempfile::tempdir().expect("a directory");
        let (from, to) = (place.path().join("from"), place.path().join("to"));
        std::fs::create_dir_all(from.join("inner")).expect("made");
        std::fs::write(from.join("inner/a"), "1").expect("written");
        copy(&from, &to).expect("copied");
        std::fs::write(to.join("inner/a"), "2").expect("written");
        assert_eq!(std::fs::read(from.join("inner/a")).expect("there"), b"1");
        remove(&to).expect("removed");
        remove(&to).expect("nothing to do");
        assert!(copy(&place.path().join("nowhere"), &to).is_err());
    }

    #[test]
    fn the_file_system_of_a_directory_is_known() {
        assert_eq!(file_system(Path::new("/proc")).as_deref(), Some("proc"));
        assert_eq!(file_system(Path::new("/nowhere")), None);
    }
}
