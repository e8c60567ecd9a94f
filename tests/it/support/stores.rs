//! Data directories on the disk of a klad that has stopped: made, looked at, broken and put right again.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::ServerBuilder;

/// How a command of klad ended.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Ran {
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

/// Runs `klad` with `arguments`, and `--data` of `data`.
pub(crate) fn klad(data: &Path, arguments: &[&str]) -> Ran {
    let mut command = Command::new(env!("CARGO_BIN_EXE_klad"));
    command.args(arguments).arg("--data").arg(data);
    let output = command.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ran { code: output.status.code(), out: text(&output.stdout), err: text(&output.stderr) }
}

/// `klad check`.
pub(crate) fn check(data: &Path) -> Ran {
    klad(data, &["check"])
}

pub(crate) fn value(key: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(key as u64);
    std::iter::repeat_with(|| random.u8(..)).take(200).collect()
}

/// Stores `keys` keys and stops; everything lies in tables afterwards if `tables`, else in the log.
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

/// Everything that [`fill`] has stored is there.
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

/// The largest of RocksDB's files with this ending.
pub(crate) fn largest(data: &Path, ending: &str) -> PathBuf {
    let files = std::fs::read_dir(data.join("rocksdb")).unwrap().map(|entry| entry.unwrap().path());
    let named = files.filter(|path| path.extension().is_some_and(|extension| extension == ending));
    named.max_by_key(|path| path.metadata().unwrap().len()).unwrap_or_else(|| panic!("no .{ending} file"))
}

/// The one file whose name begins so.
pub(crate) fn named(data: &Path, beginning: &str) -> PathBuf {
    let files = std::fs::read_dir(data.join("rocksdb")).unwrap().map(|entry| entry.unwrap().path());
    let mut named = files.filter(|path| path.file_name().unwrap().to_str().unwrap().starts_with(beginning));
    named.next().unwrap_or_else(|| panic!("no {beginning} file"))
}

/// Flips one bit.
pub(crate) fn flip(path: &Path, position: u64, bit: u32) {
    let mut bytes = std::fs::read(path).unwrap();
    bytes[usize::try_from(position).unwrap()] ^= 1 << bit;
    std::fs::write(path, bytes).unwrap();
}

/// Every file below a directory, with its bytes, but what klad may write when it refuses: the process id, and RocksDB's own
/// notes.
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
