//! Reads the runs of each side from files. Errors name the file and the problem. Called by `compare`.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow, bail, ensure};
use serde_json::Value;
use serde_json::error::Category;

use crate::result::{RunResult, SCHEMA};

/// One run.
#[derive(Clone, Debug)]
pub struct Run {
    /// The file of the run.
    pub path: PathBuf,
    /// The result in the file.
    pub result: RunResult,
}

/// The runs of one side; at least one.
#[derive(Clone, Debug)]
pub struct Side {
    /// The runs in the order of the command line. The runs of a directory are sorted by file name.
    pub runs: Vec<Run>,
}

impl Side {
    /// Reads a side from `given`: a file, a directory of `.json` files, or several of these separated by commas.
    ///
    /// # Errors
    /// If a file cannot be read or is not a result with this version's schema, if a directory has no result, or if
    /// the same run is given twice.
    pub fn read(given: &str) -> anyhow::Result<Side> {
        let mut paths = Vec::new();
        // The name of a file may contain a comma.
        let names = if Path::new(given).exists() { vec![given] } else { given.split(',').collect() };
        for name in names {
            ensure!(!name.is_empty(), "{given:?} has no file name between two commas");
            let path = Path::new(name);
            if path.is_dir() { paths.extend(results_in(path)?) } else { paths.push(path.to_owned()) }
        }
        let read = |path: PathBuf| {
            let result = read(&path).with_context(|| path.display().to_string())?;
            Ok(Run { path, result })
        };
        let side = Side { runs: paths.into_iter().map(read).collect::<anyhow::Result<_>>()? };
        side.check_distinct()?;
        Ok(side)
    }

    fn check_distinct(&self) -> anyhow::Result<()> {
        for (index, run) in self.runs.iter().enumerate() {
            if let Some(other) = self.runs[..index].iter().find(|other| other.is_same_as(run)) {
                let (one, two) = (other.path.display(), run.path.display());
                bail!("{one} and {two} are the same run; a run cannot be a repeat of itself");
            }
        }
        Ok(())
    }
}

impl Run {
    /// Returns `true` if `other` is the same run, even if it was read from another file.
    #[must_use]
    pub fn is_same_as(&self, other: &Run) -> bool {
        let identity = |run: &Run| {
            let (started, machine) = (&run.result.started, &run.result.machine);
            (started.utc.clone(), started.monotonic_ns, machine.host.clone(), run.result.target.address.clone())
        };
        identity(self) == identity(other)
    }
}

/// Lists the `.json` files of a directory, sorted by name.
fn results_in(directory: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let cannot = || format!("cannot read {}", directory.display());
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).with_context(cannot)? {
        let path = entry.with_context(cannot)?.path();
        if path.extension().is_some_and(|extension| extension == "json") {
            found.push(path);
        }
    }
    ensure!(!found.is_empty(), "{}: the directory has no .json file", directory.display());
    found.sort();
    Ok(found)
}

fn read(path: &Path) -> anyhow::Result<RunResult> {
    parse(&std::fs::read(path).context("cannot be read")?)
}

fn parse(bytes: &[u8]) -> anyhow::Result<RunResult> {
    ensure!(!bytes.is_empty(), "is empty: was the run ended before its result was written?");
    let value: Value = serde_json::from_slice(bytes).map_err(|error| match error.classify() {
        Category::Eof => anyhow!("is truncated: {error}"),
        Category::Io | Category::Syntax | Category::Data => anyhow!("is not JSON: {error}"),
    })?;
    match value.get("schema").map(Value::as_str) {
        None => bail!("is JSON, but not a result of klad bench: it has no schema"),
        Some(Some(SCHEMA)) => {}
        Some(Some(other)) => bail!("has the schema {other}, but only {SCHEMA} can be compared"),
        Some(None) => bail!("has a schema that is not text; {SCHEMA} was expected"),
    }
    serde_json::from_value(value).map_err(|error| anyhow!("does not follow its schema {SCHEMA}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::trials::run_of;

    fn written(directory: &Path, name: &str, bytes: &[u8]) -> String {
        let path = directory.join(name);
        std::fs::write(&path, bytes).expect("written");
        path.to_str().expect("plain").to_owned()
    }

    fn complaint(given: &str) -> String {
        format!("{:#}", Side::read(given).expect_err("it is wrong"))
    }

    #[test]
    fn a_file_several_files_and_a_directory_are_read() {
        let directory = tempfile::tempdir().expect("a directory");
        let json = |second: u64| serde_json::to_vec(&run_of(second, vec![])).expect("json");
        let one = written(directory.path(), "b,1.json", &json(1));
        let two = written(directory.path(), "a2.json", &json(2));
        written(directory.path(), "notes.txt", b"not a result");
        assert_eq!(Side::read(&one).expect("a name with a comma").runs.len(), 1);
        let three = written(directory.path(), "c.json", &json(3));
        assert_eq!(Side::read(&format!("{two},{three}")).expect("two").runs.len(), 2);
        let side = Side::read(directory.path().to_str().expect("plain")).expect("three");
        let names: Vec<_> = side.runs.iter().filter_map(|run| run.path.file_name()?.to_str()).collect();
        assert_eq!(names, ["a2.json", "b,1.json", "c.json"]);
    }

    #[test]
    fn a_wrong_file_is_named_with_its_problem() {
        let directory = tempfile::tempdir().expect("a directory");
        let whole = serde_json::to_vec(&run_of(1, vec![])).expect("json");
        let mut other: Value = serde_json::from_slice(&whole).expect("json");
        other["schema"] = "klad.bench/2".into();
        let newer = serde_json::to_vec(&other).expect("json");
        other["schema"] = SCHEMA.into();
        other["measured"]["sent"] = "many".into();
        let odd = serde_json::to_vec(&other).expect("json");
        for (name, bytes, words) in [
            ("empty.json", &b""[..], "is empty"),
            ("cut.json", &whole[..whole.len() / 2], "is truncated"),
            ("wrk.json", b"Running 30s test", "is not JSON"),
            ("list.json", b"[1]", "not a result of klad bench"),
            ("newer.json", &newer, "klad.bench/2"),
            ("odd.json", &odd, "many"),
        ] {
            let path = written(directory.path(), name, bytes);
            let complaint = complaint(&path);
            assert!(complaint.contains(&path) && complaint.contains(words), "{name}: {complaint}");
        }
        assert!(complaint("/nowhere/at.json").contains("/nowhere/at.json"));
        assert!(complaint("a.json,,b.json").contains("no file name"), "{}", complaint("a.json,,b.json"));
        let empty = tempfile::tempdir().expect("a directory");
        assert!(complaint(empty.path().to_str().expect("plain")).contains("no .json"));
    }

    #[test]
    fn a_run_given_twice_is_rejected() {
        let directory = tempfile::tempdir().expect("a directory");
        let json = serde_json::to_vec(&run_of(1, vec![])).expect("json");
        let (one, copy) = (written(directory.path(), "1.json", &json), written(directory.path(), "2.json", &json));
        assert!(complaint(&format!("{one},{copy}")).contains("the same run"));
        assert!(complaint(&format!("{one},{one}")).contains("the same run"));
    }
}
