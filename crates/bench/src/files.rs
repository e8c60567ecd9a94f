//! Writes results to files: JSON and its schema, `.hgrm` and `.hlog`. Called by `runner`, `compare` and `knee`.

use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, anyhow};
use hdrhistogram::serialization::V2DeflateSerializer;
use hdrhistogram::serialization::interval_log::{IntervalLogWriter, IntervalLogWriterBuilder, Tag};

use crate::recorder::Tally;
use crate::result::{Interval, RunResult};

/// Returns the JSON Schema of [`RunResult`].
#[must_use]
pub fn json_schema() -> String {
    let schema = schemars::schema_for!(RunResult);
    serde_json::to_string_pretty(&schema).expect("a schema is JSON")
}

/// Returns the result as JSON, with a line feed at the end.
#[must_use]
pub fn json(result: &RunResult) -> String {
    let mut text = serde_json::to_string_pretty(result).expect("all map keys are text or numbers");
    text.push('\n');
    text
}

/// A file that is being written, with its path.
pub type OutputFile = (PathBuf, BufWriter<File>);

/// Creates a file. `runner` and `knee` do this before the run, so that a wrong path is found before any load.
///
/// # Errors
/// If the operation fails. The error contains the path.
pub fn create(path: &Path) -> anyhow::Result<OutputFile> {
    let file = File::create(path).with_context(|| format!("cannot write {}", path.display()))?;
    Ok((path.to_owned(), BufWriter::new(file)))
}

/// An HdrHistogram log that is being written.
pub struct IntervalLog<'a> {
    path: &'a Path,
    writer: IntervalLogWriter<'a, 'a, BufWriter<File>, V2DeflateSerializer>,
}

impl<'a> IntervalLog<'a> {
    /// Writes the head of the log. The times in the log count from `start`.
    ///
    /// # Errors
    /// If the write fails.
    pub fn begin(
        (path, file): &'a mut OutputFile,
        serializer: &'a mut V2DeflateSerializer,
        start: SystemTime,
    ) -> anyhow::Result<IntervalLog<'a>> {
        let writer = IntervalLogWriterBuilder::new()
            .add_comment("[Histogram log format version 1.3]")
            .add_comment("klad bench: response times from the intended start, nanoseconds, tagged operation.outcome")
            .with_start_time(start)
            .with_base_time(start)
            // The log gives maxima in milliseconds, as the logs of the Java tools do.
            .with_max_value_divisor(1e6)
            .begin_log_with(file, serializer)
            .with_context(|| format!("cannot write {}", path.display()))?;
        Ok(IntervalLog { path, writer })
    }

    /// Writes the histograms of one interval.
    ///
    /// # Errors
    /// If the write fails.
    pub fn add(&mut self, interval: &Interval, tally: &Tally) -> anyhow::Result<()> {
        let start = Duration::from_secs_f64(interval.start_s);
        let length = Duration::from_secs_f64(interval.length_s);
        for (operation, outcome, cell) in tally.cells() {
            let name = format!("{}.{}", operation.name(), outcome.name());
            let written = self.writer.write_histogram(&cell.response, start, length, Tag::new(&name));
            written.map_err(|error| anyhow!("cannot write {}: {error}", self.path.display()))?;
        }
        Ok(())
    }
}

/// Writes the whole content of a file.
///
/// # Errors
/// If the operation fails. The error contains the path.
pub fn write((path, mut file): OutputFile, content: &str) -> anyhow::Result<()> {
    file.write_all(content.as_bytes()).with_context(|| format!("cannot write {}", path.display()))?;
    finish((path, file))
}

/// Writes what is left in a file's buffer.
///
/// # Errors
/// If the operation fails. The error contains the path.
pub fn finish((path, mut file): OutputFile) -> anyhow::Result<()> {
    file.flush().with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use hdrhistogram::serialization::Deserializer;
    use hdrhistogram::serialization::interval_log::{IntervalLogIterator, LogEntry};

    use super::*;
    use crate::recorder::{Operation, Outcome, Recorder, RequestEnd};

    #[test]
    fn an_interval_log_can_be_read_back() {
        let directory = tempfile::tempdir().expect("a directory");
        let mut file = create(&directory.path().join("log")).expect("created");
        let mut serializer = V2DeflateSerializer::new();
        let mut recorder = Recorder::new(1);
        let ended = RequestEnd {
            phase: 0,
            operation: Operation::Get,
            outcome: Outcome::Served,
            response: 5_000_000,
            service: None,
        };
        recorder.record(&ended, 0);
        let interval = Interval {
            start_s: 3.0,
            length_s: 1.0,
            warm_up: false,
            scheduled_per_s: None,
            sent: 0,
            outcomes: std::collections::BTreeMap::new(),
            good: 0,
            response: None,
            send_lag: None,
        };
        let mut log = IntervalLog::begin(&mut file, &mut serializer, SystemTime::UNIX_EPOCH).expect("begun");
        log.add(&interval, recorder.phase(0)).expect("written");
        let path = file.0.clone();
        finish(file).expect("written");
        let bytes = std::fs::read(path).expect("there");
        let entries: Vec<_> = IntervalLogIterator::new(&bytes).map(|entry| entry.expect("a line of a log")).collect();
        let Some(LogEntry::Interval(found)) = entries.last() else { panic!("{entries:?}") };
        assert_eq!(found.tag().map(|tag| tag.as_str()), Some("get.served"));
        assert_eq!(found.start_timestamp(), Duration::from_secs(3));
        assert!((found.max() - 5.0).abs() < 0.01);
        let encoded = base64::Engine::decode(&base64::engine::general_purpose::STANDARD, found.encoded_histogram());
        let histogram: hdrhistogram::Histogram<u64> =
            Deserializer::new().deserialize(&mut encoded.expect("base64").as_slice()).expect("a histogram");
        assert_eq!(histogram.len(), 1);
        assert!(histogram.equivalent(histogram.max(), 5_000_000));
    }
}
