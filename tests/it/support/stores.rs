//! Data directories of a stopped klad: fills, checks, damages and repairs them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::ServerBuilder;

/// The result of a command of klad.
#[derive(Debug)]
pub(crate) struct CommandResult {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl CommandResult {
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

/// Runs `klad` with `arguments` and `--data data`.
pub(crate) fn klad(data: &Path, arguments: &[&str]) -> CommandResult {
    let mut command = Command::new(env!("CARGO_BIN_EXE_klad"));
    command.args(arguments).arg("--data").arg(data);
    let output = command.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    CommandResult { code: output.status.code(), out: text(&output.stdout), err: text(&output.stderr) }
}

/// Runs `klad check`.
pub(crate) fn check(data: &Path) -> CommandResult {
    klad(data, &["check"])
}

pub(crate) fn value(key: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(key as u64);
    std::iter::repeat_with(|| random.u8(..)).take(200).collect()
}

/// Stores `keys` keys and stops klad. If `tables`, compacts all of them into tables; otherwise they are in the log.
pub(crate) fn fill(data: &Path, keys: usize, tables: bool) -> ServerBuilder {
    let builder = ServerBuilder::new("rocksdb").data(data).arg("--threads", "1").arg("--memory", "64MiB");
    let server = builder.start();
    let mut client = server.client();
    for key in 0..keys {
        let target = format!("/v0/entity?id=key{key:05}&durability=async");
        assert_eq!(client.put(&target, &value(key)).status, 201);
    }
    assert_eq!(server.stop().code(), Some(0));
    if tables {
        let ran = klad(data, &["compact", "--disk-reserve", "1MiB"]);
        assert_eq!(ran.code, Some(0), "{ran:?}");
    }
    builder
}

/// Checks that everything that [`fill`] stored is present.
pub(crate) fn holds(builder: &ServerBuilder, keys: usize) -> Result<(), String> {
    let server = builder.try_start().map_err(|failed| failed.log)?;
    let mut client = server.client();
    for key in 0..keys {
        let answer = client.get(&format!("/v0/entity?id=key{key:05}"));
        if answer.status != 200 || answer.body != value(key) {
            return Err(format!("key {key} was answered {}", answer.status));
        }
    }
    Ok(())
}

/// Returns the largest of RocksDB's files with this extension.
pub(crate) fn largest(data: &Path, ending: &str) -> PathBuf {
    let files = std::fs::read_dir(data.join("rocksdb")).unwrap().map(|entry| entry.unwrap().path());
    let named = files.filter(|path| path.extension().is_some_and(|extension| extension == ending));
    named.max_by_key(|path| path.metadata().unwrap().len()).unwrap_or_else(|| panic!("no .{ending} file"))
}

/// Returns the only file whose name begins with `beginning`.
pub(crate) fn named(data: &Path, beginning: &str) -> PathBuf {
    let files = std::fs::read_dir(data.join("rocksdb")).unwrap().map(|entry| entry.unwrap().path());
    let mut named = files.filter(|path| path.file_name().unwrap().to_str().unwrap().starts_with(beginning));
    named.next().unwrap_or_else(|| panic!("no {beginning} file"))
}

/// Flips one bit of a file.
pub(crate) fn flip(path: &Path, position: u64, bit: u32) {
    let mut bytes = std::fs::read(path).unwrap();
    bytes[usize::try_from(position).unwrap()] ^= 1 << bit;
    std::fs::write(path, bytes).unwrap();
}

/// Returns every file below a directory with its bytes, except those that klad may write even if it refuses to start:
/// the process id, and RocksDB's info log.
pub(crate) fn contents(directory: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut open = vec![directory.to_owned()];
    while let Some(one) = open.pop() {
        for entry in std::fs::read_dir(one).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap();
            if path.is_dir() {
                open.push(path);
            } else if !name.starts_with("LOG") && name != "LOCK" {
                found.insert(path.clone(), std::fs::read(&path).unwrap());
            }
        }
    }
    found
}
