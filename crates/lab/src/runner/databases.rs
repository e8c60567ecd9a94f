//! The databases of an experiment. The lab fills one database for each engine and compression, and one for each variant
//! with a program of its own. The stage says whether all runs read this database, each run gets a copy of it, or each
//! run starts with an empty one. Servers of the engine `memory` and peers have no such database: the lab fills them
//! before each run that needs data, except peers with `fill = false`. Called by `runner`.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::Duration;

use anyhow::{Context as _, ensure};

use crate::load;
use crate::process::RunningProcess;
use crate::runner::{Experiment, value_of};
use crate::scenario::{Data, Stage, Start, Variant};
use crate::server::RunningServer;
use klad_base::clock;
use klad_bench::interrupt;

/// The longest load or compaction of filled data.
const COMMAND_MAX: Duration = Duration::from_hours(2);

/// The exit codes of `klad import --into` if the engine has no bulk loads, and if the program has no engine that stores
/// data on a disk.
const WRONG_USAGE: i32 = 2;
const OTHER_ENGINE: i32 = 66;

/// The time between two looks whether a signal has interrupted the experiment.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Options of a variant that its files depend on, or that a fill may need.
const FILE_OPTIONS: [&str; 7] =
    ["--engine", "--compression", "--memory", "--key-max", "--value-max", "--head-max", "--disk-reserve"];

/// The number of connections that fill a database for several runs.
const CONNECTIONS: usize = 64;

/// Options of a klad that is started only to fill a database: the fill is not measured, and klad must not refuse its
/// requests.
const FILL_OPTIONS: [&str; 4] = ["--durability", "async", "--admission", "off"];

impl Experiment {
    /// Returns the data directory that a run of a stage starts with.
    pub(super) fn database(&mut self, stage: &Stage, variant: &Variant) -> anyhow::Result<PathBuf> {
        let own = self.databases.path().join("run");
        remove(&own)?;
        if stage.data == Start::Empty || self.is_filled_per_run(variant) {
            return Ok(own);
        }
        let filled = self.filled(variant)?;
        if stage.data == Start::Filled {
            return Ok(filled);
        }
        copy(&filled, &own)?;
        Ok(own)
    }

    /// Returns the directory of a filled database for the variant. A fill that failed once is not tried again.
    fn filled(&mut self, variant: &Variant) -> anyhow::Result<PathBuf> {
        let key = files_key(&self.result.scenario.options_of(variant), variant);
        if let Some(known) = self.filled.get(&key) {
            return known.clone().map_err(anyhow::Error::msg);
        }
        let made = self.make_filled(variant, &key);
        self.filled.insert(key, made.as_ref().map(Clone::clone).map_err(|why| format!("{why:#}")));
        made
    }

    fn make_filled(&mut self, variant: &Variant, key: &str) -> anyhow::Result<PathBuf> {
        let options = self.result.scenario.options_of(variant);
        let directory = self.databases.path().join(format!("filled-{key}"));
        // Another program may not have the command, and its files may differ.
        let may_load = variant.program.is_none() && matches!(value_of(&options, "--engine"), None | Some("rocksdb"));
        if may_load && self.load_tables(value_of(&options, "--compression"), key, &directory)? {
            return Ok(directory);
        }
        let mut fill_options: Vec<&str> = FILL_OPTIONS.to_vec();
        for name in FILE_OPTIONS {
            fill_options.extend(value_of(&options, name).into_iter().flat_map(|value| [name, value]));
        }
        self.note.say(&format!("filling {} keys for {key}", self.data.keys));
        // On all cores: this is not measured.
        let server = self.serve(variant, &fill_options, &directory, &format!("fill-{key}"), &[])?;
        let filled = self.fill(&server, key, CONNECTIONS);
        let stopped = self.stop(server);
        filled.and(stopped)?;
        let is_compacted = self.compact(variant, &directory)?;
        if !is_compacted {
            let engine =
                value_of(&self.result.scenario.options_of(variant), "--engine").unwrap_or("default").to_owned();
            self.result.remarks.push(format!(
                "Filled data of the engine {engine} is not compacted, because it has no command for that; that of \
                 RocksDB is."
            ));
        }
        Ok(directory)
    }

    /// Whether a server of this variant is filled again for each run: its data ends with its process (engine `memory`),
    /// or it is a peer.
    pub(super) fn is_filled_per_run(&self, variant: &Variant) -> bool {
        variant.peer.is_some() || value_of(&self.result.scenario.options_of(variant), "--engine") == Some("memory")
    }

    /// Stores all keys through the server. The load's result is written into `runs/fill-{name}.json`.
    pub(super) fn fill(&self, server: &RunningServer, name: &str, connections: usize) -> anyhow::Result<()> {
        let file = self.out.join(format!("runs/fill-{name}.json"));
        load::fill(&self.program, &self.data, server, connections, &file, &self.watch)
    }

    /// Compacts filled data, so that the compactions of the fill do not run beside the first runs. Returns `false`
    /// for an engine that has no such command.
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
        let status = self.run_command("klad compact", command, "logs/compact.log")?;
        ensure!(status.success(), "klad compact failed, {status}: see logs/compact.log");
        Ok(true)
    }

    /// Loads all keys into a new directory without a server. The tables are those of a compaction. Returns `false` if
    /// the default engine of this program has no bulk loads.
    fn load_tables(&self, compression: Option<&str>, key: &str, directory: &Path) -> anyhow::Result<bool> {
        self.note.say(&format!("loading {} keys for {key}", self.data.keys));
        let mut command = Command::new(&self.program);
        command.args(["import", "--generate", &self.data.keys.to_string(), "--key-format", &self.data.key_format]);
        let Data { value_format, value_size, .. } = &self.data;
        for (name, value) in [
            ("--value-format", value_format.as_deref()),
            ("--value-size", value_size.as_deref()),
            ("--compression", compression),
        ] {
            command.args(value.into_iter().flat_map(|value| [name, value]));
        }
        command.arg("--into").arg(directory);
        let log = format!("logs/fill-{key}.log");
        let status = self.run_command("klad import --into", command, &log)?;
        if matches!(status.code(), Some(WRONG_USAGE | OTHER_ENGINE)) {
            remove(directory)?;
            return Ok(false);
        }
        ensure!(status.success(), "klad import --into failed, {status}: see {log}");
        Ok(true)
    }

    /// Runs a command on a database to its end.
    fn run_command(&self, what: &str, mut command: Command, log: &str) -> anyhow::Result<ExitStatus> {
        let log = self.out.join(log);
        let log = File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
        command.stdout(log.try_clone()?).stderr(log);
        let mut running = RunningProcess::start(command, &[], &self.watch)?;
        let deadline = clock::now() + COMMAND_MAX;
        loop {
            if let Some(status) = running.wait(POLL_INTERVAL)? {
                return Ok(status);
            }
            ensure!(!interrupt::asked(), "interrupted");
            ensure!(clock::now() < deadline, "{what} did not end within {COMMAND_MAX:?}");
        }
    }
}

/// Returns what the files of a database depend on: engine, compression, and the variant where it has another program.
fn files_key(options: &[&str], variant: &Variant) -> String {
    let [engine, compression, ..] = FILE_OPTIONS.map(|name| value_of(options, name).unwrap_or("default"));
    let own = variant.program.as_ref().map_or_else(String::new, |_| format!("-{}", variant.name));
    format!("{engine}-{compression}{own}")
}

/// Copies a directory and syncs it, so that the kernel does not write it during the run.
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

/// Returns the kind of file system of a directory, such as `ext4`.
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
    fn variants_share_files_with_the_same_engine_compression_and_program() {
        let variant: Variant = toml::from_str("name = 'a'").expect("valid");
        let other = Variant { program: Some("other/klad".into()), ..variant.clone() };
        let of = |options: &str| files_key(&options.split(' ').collect::<Vec<_>>(), &variant);
        assert_eq!(of("--execution inline --engine rocksdb"), of("--engine rocksdb --memory 2GiB"));
        assert_ne!(of("--engine rocksdb"), of("--engine=fjall"));
        assert_ne!(of("--compression none"), of("--compression zstd"));
        assert_ne!(files_key(&[], &variant), files_key(&[], &other));
    }

    #[test]
    fn a_copy_has_all_files_and_is_independent() {
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
