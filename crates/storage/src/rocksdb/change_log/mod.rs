//! The change feed: reads committed changes from RocksDB's write-ahead logs, and keeps old logs for that.
//!
//! ```text
//!   rocksdb/archive/000012.log   old logs: RocksDB moves them here instead of deleting them, klad deletes the oldest
//!   rocksdb/000019.log           logs that RocksDB still needs; the newest grows
//! ```
//!
//! A log has exactly what was committed, in commit order. So the feed is complete after a kill, and a put costs no more
//! than without feeds. `reader` reads a log; this module knows which logs there are and how far a feed may read each
//! log:
//!
//! * A feed does not read beyond the last committed sequence number, because it must not show a write whose sync is not
//!   complete.
//! * In each log but the last, a feed stops before the smallest sequence number with which a later log begins. At a
//!   start after a crash, RocksDB did not recover the writes from there on, and has used their numbers again.
//!
//! RocksDB numbers writes without gaps. A gap means that changes are missing. In this case the feed ends and says so.
//!
//! Storage threads and the housekeeping thread call this module. The commit section calls only `committed`.

mod reader;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::changes::{Bell, Changed, Changes, ChangesPage, ChangesStep, Place, Position, Retention};
use crate::limits::{CHANGES_LOG_BYTES_PER_STEP, CHECKPOINT_VERSIONS_AHEAD, SLOW_LOOK_INTERVAL};
use crate::operation::Error;
use crate::rocksdb::log_records;
use klad_base::clock;
use klad_base::sync::Mutex;

pub(super) use reader::note;
use reader::{BatchReader, Entry, Error as ReadError, Wanted};

/// The change feed of one database.
#[derive(Debug)]
pub(super) struct ChangeLog {
    files: PathBuf,
    retention: Retention,
    last: Mutex<Last>,
    bell: Bell,
    /// The beginning of each log, by the number of the log.
    logs: Mutex<BTreeMap<u64, Beginning>>,
    old: Mutex<OldLogs>,
}

/// The logs in the archive.
#[derive(Debug, Default)]
struct OldLogs {
    /// The size of each log and the time of its last write, by the number of the log.
    logs: BTreeMap<u64, (u64, SystemTime)>,
    /// The modification time of the archive at its last listing.
    changed: Option<SystemTime>,
    /// The time of the last listing.
    listed: Option<Instant>,
}

/// The last commit.
#[derive(Clone, Copy, Debug)]
struct Last {
    /// The sequence number of the commit's last write.
    sequence: u64,
    /// The version of the commit's last change.
    version: u64,
}

/// The beginning of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Beginning {
    /// No batch was found yet.
    Empty,
    /// The sequence number and the version of the first change.
    At { sequence: u64, version: u64 },
    /// The first change has no version that klad can read.
    Unreadable { sequence: u64 },
}

impl Beginning {
    fn sequence(self) -> Option<u64> {
        match self {
            Beginning::Empty => None,
            Beginning::At { sequence, .. } | Beginning::Unreadable { sequence } => Some(sequence),
        }
    }
}

/// What a step has found so far.
struct Found {
    page: Vec<Changed>,
    bytes_left: usize,
    after: u64,
    place: Place,
}

/// How the reading of one log ended.
enum LogEnd {
    /// The page is full, or the step has read enough. There are more changes.
    Pause,
    /// The next change alone is larger than the page.
    TooLarge(usize),
    /// The log has no more batches that may be read.
    Over,
    /// Changes before this sequence number are missing.
    Gap(u64),
}

impl ChangeLog {
    /// Opens the log of a database whose last committed write has the sequence number `sequence`. No write has a
    /// version above `version`.
    pub(super) fn new(files: &Path, retention: Retention, sequence: u64, version: u64) -> ChangeLog {
        let log = ChangeLog {
            files: files.to_owned(),
            retention,
            last: Mutex::new(Last { sequence, version }),
            bell: Bell::default(),
            logs: Mutex::default(),
            old: Mutex::default(),
        };
        log.retain();
        log
    }

    /// Whether old logs are kept for change feeds.
    pub(super) fn is_on(&self) -> bool {
        self.retention.bytes > 0
    }

    /// Records a commit. Called in the commit section, before any reply.
    pub(super) fn committed(&self, sequence: u64, version: u64) {
        *self.last.lock() = Last { sequence, version };
        self.bell.ring();
    }

    /// Deletes the oldest of the old logs that exceed the retention. It is called often, so it lists the archive only
    /// if the archive has changed or some seconds have passed.
    pub(super) fn retain(&self) {
        let archive = self.files.join("archive");
        let changed = archive.metadata().and_then(|metadata| metadata.modified()).ok();
        let mut old = self.old.lock();
        let now = clock::now();
        if changed == old.changed && old.listed.is_some_and(|listed| now - listed < SLOW_LOOK_INTERVAL) {
            return;
        }
        (old.changed, old.listed) = (changed, Some(now));
        let there = log_records::logs(&archive).unwrap_or_default();
        old.logs.retain(|number, _| there.iter().any(|(there, _)| there == number));
        for (number, log) in there {
            if !old.logs.contains_key(&number)
                && let Ok(metadata) = log.metadata()
                && let Ok(modified) = metadata.modified()
            {
                old.logs.insert(number, (metadata.len(), modified));
            }
        }
        self.delete_oldest(&archive, &mut old.logs);
    }

    fn delete_oldest(&self, archive: &Path, old: &mut BTreeMap<u64, (u64, SystemTime)>) {
        let mut bytes: u64 = old.values().map(|(bytes, _)| bytes).sum();
        let now = UNIX_EPOCH + Duration::from_millis(clock::unix_ms());
        while let Some((&number, &(own, modified))) = old.first_key_value() {
            let age = now.duration_since(modified).unwrap_or_default();
            if bytes <= self.retention.bytes && age <= self.retention.time {
                return;
            }
            let log = archive.join(name_of(number));
            // The lock ensures that no reader lists a log that is being deleted.
            let mut logs = self.logs.lock();
            if let Err(error) = fs::remove_file(&log) {
                tracing::warn!(%error, log = %log.display(), "cannot delete an old log; klad tries again");
                return;
            }
            logs.remove(&number);
            old.remove(&number);
            bytes -= own;
        }
    }

    /// Deletes the logs before `first_log`, so that no feed continues past changes that are in no log. The deletions
    /// are durable on return.
    pub(super) fn forget(&self, first_log: u64) -> io::Result<()> {
        // The archive comes last, because RocksDB may move a log there meanwhile.
        for directory in [self.files.clone(), self.files.join("archive")] {
            let there = match log_records::logs(&directory) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                there => there?,
            };
            for (_, log) in there.into_iter().filter(|(number, _)| *number < first_log) {
                match fs::remove_file(log) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                    _ => {}
                }
            }
            File::open(&directory)?.sync_all()?;
        }
        Ok(())
    }

    /// Reads one step of a feed.
    pub(super) fn step(&self, step: &ChangesStep) -> Result<ChangesPage, Error> {
        let committed = self.last.lock().sequence;
        let page = self.read(step, committed).and_then(|page| match page {
            // The step has met a gap before its position. The logs after the gap have all changes that the feed needs.
            ChangesPage::Gone { oldest } if step.position.after + 1 >= oldest => {
                let position = Position::after(step.position.after);
                self.read(&ChangesStep { position, ..step.clone() }, committed)
            }
            page => Ok(page),
        });
        page.map_err(|error| Error::ReadFailed { why: error.to_string() })
    }

    fn read(&self, step: &ChangesStep, committed: u64) -> io::Result<ChangesPage> {
        let Some(place) = self.place(step.position)? else { return self.gone() };
        let after = step.position.after;
        let mut found = Found { page: Vec::new(), bytes_left: step.bytes_max, after, place };
        let mut log_bytes_left = CHANGES_LOG_BYTES_PER_STEP;
        let mut relocated = false;
        while found.place.sequence <= committed {
            let Some(file) = self.open(found.place.log)? else {
                // Retention has overtaken the reader, or the log was deleted since it was listed. The next changes may
                // still be in another log.
                let next = self.log_of(found.place.sequence)?;
                match next.filter(|_| !relocated) {
                    Some(place) => (found.place, relocated) = (place, true),
                    None => return self.gone(),
                }
                continue;
            };
            let next = self.next_log(found.place.log);
            let end = next.map_or(committed, |(_, sequence)| committed.min(sequence - 1));
            match found.read_log(file, step, end, &mut log_bytes_left)? {
                LogEnd::TooLarge(bytes) if found.page.is_empty() => {
                    return Ok(ChangesPage::TooLarge { at: found.position(), bytes });
                }
                LogEnd::Gap(sequence) if found.page.is_empty() => return self.gap(sequence),
                LogEnd::Pause | LogEnd::TooLarge(_) | LogEnd::Gap(_) => return Ok(found.page(true)),
                LogEnd::Over if found.place.sequence > committed => break,
                LogEnd::Over => {}
            }
            self.refresh()?;
            match self.next_log(found.place.log) {
                Some((log, sequence)) if sequence == found.place.sequence => {
                    found.place = Place { log, offset: 0, sequence };
                }
                Some(_) | None if !found.page.is_empty() => return Ok(found.page(true)),
                Some((_, sequence)) => return self.gap(sequence),
                None => return Err(io::Error::other("the write-ahead log has less than was committed")),
            }
        }
        Ok(found.page(false))
    }

    /// The place to read from; `None` if not all changes after `position` are kept.
    fn place(&self, position: Position) -> io::Result<Option<Place>> {
        if let Some(place) = position.place {
            return Ok(Some(place));
        }
        self.refresh()?;
        let logs = self.logs.lock();
        let Last { sequence, version } = *self.last.lock();
        let usable = usable(&logs, version);
        let newest_before = usable.iter().rev().find(|(_, _, first)| *first <= position.after);
        let place = |&(log, sequence, _): &(u64, u64, u64)| Place { log, offset: 0, sequence };
        if let Some(log) = newest_before {
            return Ok(Some(place(log)));
        }
        let oldest = oldest(&usable, version);
        if position.after + 1 < oldest {
            return Ok(None);
        }
        // If there is no change yet, the next change comes in the newest log or in a later one.
        let newest = logs.keys().next_back().copied().unwrap_or(0);
        Ok(Some(usable.first().map_or(Place { log: newest, offset: 0, sequence: sequence + 1 }, place)))
    }

    /// The beginning of the log whose first batch has the sequence number `sequence`.
    fn log_of(&self, sequence: u64) -> io::Result<Option<Place>> {
        self.refresh()?;
        let logs = self.logs.lock();
        let log = logs.iter().rev().find(|(_, beginning)| beginning.sequence() == Some(sequence));
        Ok(log.map(|(log, _)| Place { log: *log, offset: 0, sequence }))
    }

    /// The log that continues `log`, and the sequence number of its first batch. After a crash that lost the end of
    /// several logs, the new log continues the first of these logs. The new log then begins with a smaller sequence
    /// number than the later lost logs.
    fn next_log(&self, log: u64) -> Option<(u64, u64)> {
        let logs = self.logs.lock();
        let later = logs.range(log + 1..).filter_map(|(log, beginning)| Some((*log, beginning.sequence()?)));
        later.min_by_key(|(log, sequence)| (*sequence, Reverse(*log)))
    }

    /// The answer if the changes that a feed needs are no longer kept.
    fn gone(&self) -> io::Result<ChangesPage> {
        self.refresh()?;
        let logs = self.logs.lock();
        let version = self.last.lock().version;
        Ok(ChangesPage::Gone { oldest: oldest(&usable(&logs, version), version) })
    }

    /// The answer if changes before `sequence` are missing.
    fn gap(&self, sequence: u64) -> io::Result<ChangesPage> {
        let mut logs = self.logs.lock();
        // No feed can use the logs before the gap.
        for (_, beginning) in logs.iter_mut() {
            if let Some(first) = beginning.sequence().filter(|first| *first < sequence) {
                *beginning = Beginning::Unreadable { sequence: first };
            }
        }
        drop(logs);
        self.gone()
    }

    /// Opens a log. RocksDB may move the log to the archive at the same time.
    fn open(&self, log: u64) -> io::Result<Option<File>> {
        let name = name_of(log);
        for path in [self.files.join(&name), self.files.join("archive").join(&name)] {
            match File::open(path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                opened => return opened.map(Some),
            }
        }
        Ok(None)
    }

    /// Finds new logs and their beginnings.
    fn refresh(&self) -> io::Result<()> {
        let mut logs = self.logs.lock();
        // The archive is listed last, so that a log that moves meanwhile is listed twice and not missed.
        let mut there = log_records::logs(&self.files)?;
        match log_records::logs(&self.files.join("archive")) {
            Ok(archived) => there.extend(archived),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        let numbers: BTreeSet<u64> = there.into_iter().map(|(number, _)| number).collect();
        logs.retain(|number, _| numbers.contains(number));
        for number in numbers {
            let known = logs.entry(number).or_insert(Beginning::Empty);
            if *known == Beginning::Empty
                && let Some(file) = self.open(number)?
            {
                *known = beginning(file)?;
            }
        }
        Ok(())
    }
}

impl Changes for ChangeLog {
    fn bell(&self) -> &Bell {
        &self.bell
    }

    fn last_version(&self) -> u64 {
        self.last.lock().version
    }
}

fn name_of(log: u64) -> String {
    format!("{log:06}.log")
}

/// The logs that feeds can use, oldest first, each with its number, first sequence number and first version. All
/// changes from the first of these logs up to now are kept.
fn usable(logs: &BTreeMap<u64, Beginning>, version_now: u64) -> Vec<(u64, u64, u64)> {
    let (mut usable, mut later) = (Vec::new(), version_now);
    for (log, beginning) in logs.iter().rev() {
        match *beginning {
            Beginning::Empty => {}
            // The store was started from a checkpoint, and this log is older. The original store may have continued
            // with other changes after this log.
            Beginning::At { version, .. } if later.saturating_sub(version) >= CHECKPOINT_VERSIONS_AHEAD / 2 => break,
            Beginning::At { sequence, version } => {
                usable.push((*log, sequence, version));
                later = version;
            }
            Beginning::Unreadable { .. } => break,
        }
    }
    usable.reverse();
    usable
}

/// The version of the oldest change that is kept, or of the next change if no change is kept.
fn oldest(usable: &[(u64, u64, u64)], version_now: u64) -> u64 {
    usable.first().map_or(version_now + 1, |(_, _, version)| *version)
}

fn beginning(file: File) -> io::Result<Beginning> {
    let mut reader = BatchReader::new(file, 0)?;
    let Some(batch) = reader.next_batch()? else { return Ok(Beginning::Empty) };
    let all = Wanted { after: u64::MAX, prefix: &[], values: false, bytes_max: 0 };
    match reader.next_entry(&all) {
        Ok(Some(Entry::Other(version))) => Ok(Beginning::At { sequence: batch.first, version }),
        Ok(_) => unreachable!("a batch has a change, and no version is greater than the greatest"),
        // RocksDB is still writing the batch.
        Err(ReadError::Incomplete) => Ok(Beginning::Empty),
        Err(ReadError::Io(error)) => Err(error),
        Err(ReadError::Unknown(_) | ReadError::NoVersion) => Ok(Beginning::Unreadable { sequence: batch.first }),
    }
}

impl Found {
    fn position(&self) -> Position {
        Position { after: self.after, place: Some(self.place) }
    }

    fn page(self, more: bool) -> ChangesPage {
        ChangesPage::Changes { next: self.position(), changes: self.page, more }
    }

    /// Reads a log from `place` on, up to the write with the sequence number `end`.
    fn read_log(&mut self, file: File, step: &ChangesStep, end: u64, log_bytes_left: &mut u64) -> io::Result<LogEnd> {
        let mut reader = BatchReader::new(file, self.place.offset)?;
        loop {
            if *log_bytes_left == 0 {
                return Ok(LogEnd::Pause);
            }
            let before = reader.position();
            let batch = match reader.next_batch()? {
                Some(batch) if batch.first <= end => batch,
                Some(_) | None => return Ok(LogEnd::Over),
            };
            if batch.first < self.place.sequence {
                continue;
            }
            if batch.first > self.place.sequence {
                return Ok(LogEnd::Gap(batch.first));
            }
            self.place = Place { offset: batch.start, sequence: batch.first, ..self.place };
            loop {
                let (after, bytes_max) = (self.after, self.bytes_left);
                let wanted = Wanted { after, prefix: &step.prefix, values: step.values, bytes_max };
                match reader.next_entry(&wanted) {
                    Ok(None) => break,
                    Ok(Some(Entry::Other(version))) => self.after = self.after.max(version),
                    Ok(Some(Entry::TooLarge(bytes))) => return Ok(LogEnd::TooLarge(bytes)),
                    Ok(Some(Entry::Wanted(changed))) => {
                        let Some(left) = self.bytes_left.checked_sub(changed.bytes()) else {
                            return Ok(LogEnd::TooLarge(changed.bytes()));
                        };
                        self.bytes_left = left;
                        self.after = changed.version.get();
                        self.page.push(changed);
                    }
                    Err(ReadError::Io(error)) => return Err(error),
                    Err(error) => {
                        tracing::warn!(%error, log = self.place.log, "a change feed cannot read this part of the log");
                        return Ok(LogEnd::Gap(batch.first + batch.count));
                    }
                }
            }
            self.place.offset = reader.position();
            self.place.sequence = batch.first + batch.count;
            *log_bytes_left = log_bytes_left.saturating_sub(reader.position() - before);
        }
    }
}

#[cfg(test)]
mod tests;
