//! Files that RocksDB removes give their space back a piece at a time.
//!
//! ```text
//!   a flush, a compaction is done ─▶ klad opens what nobody needs any more
//!   RocksDB removes it            ─▶ its name is gone, its space is not: somebody has it open
//!   klad-shrink, once nobody else has: ─▶ a piece off its end ─▶ a pause ─▶ … ─▶ closed
//! ```
//!
//! A file system that tells the disk which blocks are free (`discard`) has a table of 32 MiB given back in one request. Disks were seen to
//! take 5 to 10 ms for it, in which they did nothing else; a compaction removes a dozen tables, one after the other, and each sync of the log
//! stood behind one of them (docs/decisions/2026-11-24-files-go-in-pieces.md). A piece takes 0.2 ms. And a kernel that cannot be
//! interrupted frees the pages of a piece, not of a file, in one go.
//!
//! RocksDB can do so itself (`NewSstFileManager`, `bytes_max_delete_chunk`), but C has no call for it, and it would rename files first.
//! Called by `rocksdb.rs`.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rust_rocksdb::Options as RocksDbOptions;
use rust_rocksdb::event_listener::{CompactionJobInfo, EventListener, FlushJobInfo};

use super::background::make_way_here;
use crate::clock;
use crate::sync::{Cause, Condvar, Mutex, try_spawn_thread};

/// So much goes at a time, bytes. The disk takes some 0.2 ms for it.
const PIECE_BYTES: u64 = 1 << 20;

/// Between two pieces: 250 MiB go in a second.
const PAUSE: Duration = Duration::from_millis(4);

/// Of what is removed, so many bytes may go in pieces at once, and so many more with each second; the rest goes as RocksDB removes it. A
/// compaction of small values removes 300 MiB, now and then. Large values remove hundreds each second, and pieces would take a quarter
/// of their rate. It bounds what holds nothing and still fills the disk, too.
const ALLOWANCE_BYTES: u64 = 512 << 20;
const ALLOWANCE_BYTES_PER_SECOND: u64 = 32 << 20;

/// A file that is still there is looked at so often for [`SOON`], and then so often as that.
const LOOK: Duration = Duration::from_millis(20);

/// RocksDB removes files within milliseconds after it has said so, except a log that the next flush needs.
const SOON: Duration = Duration::from_secs(1);

/// And for so long. An iterator may keep it there for longer; then it goes in one piece.
const LOOKS_FOR: Duration = Duration::from_mins(1);

/// So many files are looked after at a time. One more goes in one piece; a compaction of large levels reads some dozens.
const FILES_MAX: usize = 1024;

/// Files of a database in `files` that is opened with these options go in pieces from now on, until it is closed.
pub(super) fn in_pieces(options: &mut RocksDbOptions, files: &Path) {
    let desk = Arc::new(Desk::default());
    let at_work = Arc::clone(&desk);
    // Without the thread files go as RocksDB removes them.
    if let Err(error) = try_spawn_thread("klad-shrink", move || run(&at_work)) {
        tracing::debug!(%error, "files that are removed go in one piece");
        return;
    }
    options.add_event_listener(Listener { files: files.to_owned(), desk });
}

/// Where RocksDB's threads leave files for the one that looks after them.
#[derive(Debug, Default)]
struct Desk {
    state: Mutex<Left>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Left {
    files: Vec<Opened>,
    closed: bool,
}

impl Desk {
    /// What was left since the last time, after at most `pause`; `None`: the database is closed.
    fn take(&self, pause: Option<Duration>) -> Option<Vec<Opened>> {
        let mut left = self.state.lock();
        if left.files.is_empty() && !left.closed && pause != Some(Duration::ZERO) {
            left = match pause {
                None => self.changed.wait(left, Cause::Idle),
                Some(pause) => self.changed.wait_timeout(left, pause, Cause::Idle),
            };
        }
        (!left.closed).then(|| std::mem::take(&mut left.files))
    }
}

/// Is told by RocksDB, on its threads, before it removes what it needs no more. Goes with the database.
struct Listener {
    files: PathBuf,
    desk: Arc<Desk>,
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.desk.state.lock().closed = true;
        self.desk.changed.notify_one();
    }
}

impl EventListener for Listener {
    /// Its log may be superfluous now. Another thread of RocksDB's may just have removed it: then it went as a whole.
    fn on_flush_completed(&self, _job: &FlushJobInfo) {
        let entries = fs::read_dir(&self.files).into_iter().flatten().flatten().map(|entry| entry.path());
        let mut logs: Vec<PathBuf> = entries.filter(|path| path.extension() == Some(OsStr::new("log"))).collect();
        // Names have one length, so this is the order in which they were begun. The last is the one that is written.
        logs.sort();
        logs.pop();
        self.look_at(logs);
    }

    /// The tables that it has read are superfluous now, except those that it has only moved to another level.
    fn on_compaction_completed(&self, job: &CompactionJobInfo) {
        if job.status().is_err() {
            return;
        }
        let path = |bytes: &[u8]| PathBuf::from(OsStr::from_bytes(bytes));
        let kept: Vec<PathBuf> = job.output_files().map(path).collect();
        self.look_at(job.input_files().map(path).filter(|table| !kept.contains(table)).collect());
    }
}

impl Listener {
    fn look_at(&self, paths: Vec<PathBuf>) {
        let mut opened: Vec<Opened> = paths.into_iter().filter_map(Opened::new).collect();
        let mut left = self.desk.state.lock();
        opened.truncate(FILES_MAX.saturating_sub(left.files.len()));
        left.files.append(&mut opened);
        drop(left);
        self.desk.changed.notify_one();
    }
}

/// A file that will be removed, or has been.
#[derive(Debug)]
struct Opened {
    path: PathBuf,
    file: File,
    since: Instant,
}

/// What has become of a file.
#[derive(Debug, PartialEq, Eq)]
enum Fate {
    /// Its name is still there.
    Listed,
    /// Only whoever has it open has it: so many bytes.
    Removed(u64),
    /// Somebody has it under another name, as a checkpoint does.
    Elsewhere,
}

impl Opened {
    /// `None`: small enough to go in one piece, or not to be had.
    fn new(path: PathBuf) -> Option<Opened> {
        let file = OpenOptions::new().write(true).open(&path).ok()?;
        (file.metadata().ok()?.len() > PIECE_BYTES).then(|| Opened { path, file, since: clock::now() })
    }

    fn fate(&self) -> Fate {
        match self.file.metadata() {
            Ok(metadata) if metadata.nlink() == 0 => Fate::Removed(metadata.len()),
            Ok(_) if self.path.exists() => Fate::Listed,
            _ => Fate::Elsewhere,
        }
    }
}

/// The files that klad has open because of this.
#[derive(Debug)]
struct Files {
    listed: Vec<Opened>,
    /// And how many bytes of each are left.
    removed: VecDeque<(File, u64)>,
    /// As it was then, bytes.
    allowance: (u64, Instant),
}

impl Files {
    fn new(now: Instant) -> Files {
        Files { listed: Vec::new(), removed: VecDeque::new(), allowance: (ALLOWANCE_BYTES, now) }
    }

    /// Whether so many bytes may go in pieces.
    fn allow(&mut self, bytes: u64, now: Instant) -> bool {
        let (left, then) = self.allowance;
        let ms = u64::try_from(now.saturating_duration_since(then).as_millis()).unwrap_or(u64::MAX);
        let left = left.saturating_add((ALLOWANCE_BYTES_PER_SECOND / 1000).saturating_mul(ms)).min(ALLOWANCE_BYTES);
        self.allowance = (left.checked_sub(bytes).unwrap_or(left), now);
        bytes <= left
    }

    fn take(&mut self, opened: Opened) {
        // A log that another flush could not remove comes again.
        self.listed.retain(|other| other.path != opened.path);
        if self.listed.len() < FILES_MAX {
            self.listed.push(opened);
        }
    }

    /// Looks what has become of those that were there.
    fn look(&mut self, now: Instant) {
        for opened in std::mem::take(&mut self.listed) {
            match opened.fate() {
                Fate::Removed(bytes) if self.allow(bytes, now) => self.removed.push_back((opened.file, bytes)),
                Fate::Listed if now.saturating_duration_since(opened.since) < LOOKS_FOR => self.listed.push(opened),
                Fate::Removed(_) | Fate::Listed | Fate::Elsewhere => {}
            }
        }
    }

    /// One piece goes.
    fn cut(&mut self) {
        let Some((file, bytes)) = self.removed.front_mut() else { return };
        *bytes = bytes.saturating_sub(PIECE_BYTES);
        if file.set_len(*bytes).is_err() || *bytes == 0 {
            // What cannot be cut goes as a whole.
            self.removed.pop_front();
        }
    }

    fn left_bytes(&self) -> u64 {
        self.removed.iter().map(|(_, bytes)| bytes).sum()
    }

    /// Until there is something to do; `None`: until another file comes.
    fn pause(&self, now: Instant) -> Option<Duration> {
        match self.left_bytes() {
            0 => {
                let newest = self.listed.iter().map(|opened| opened.since).max()?;
                Some(if now.saturating_duration_since(newest) < SOON { LOOK } else { SOON })
            }
            _ => Some(PAUSE),
        }
    }
}

/// Until the database is closed, when what is left goes as a whole.
fn run(desk: &Desk) {
    make_way_here();
    let mut files = Files::new(clock::now());
    while let Some(left) = desk.take(files.pause(clock::now())) {
        for opened in left {
            files.take(opened);
        }
        files.look(clock::now());
        files.cut();
    }
}

#[cfg(test)]
mod tests {
    use rust_rocksdb::{BottommostLevelCompaction, CompactOptions, DB, DBCompressionType};

    use super::*;

    const MIB: u64 = 1 << 20;

    /// A file of so many bytes that is looked after, and another descriptor of it.
    fn looked_after(files: &mut Files, path: &Path, bytes: u64) -> File {
        File::create(path).and_then(|file| file.set_len(bytes)).expect("made");
        files.take(Opened::new(path.to_owned()).expect("large enough"));
        File::open(path).expect("there")
    }

    fn len(file: &File) -> u64 {
        file.metadata().expect("open").len()
    }

    #[test]
    fn a_file_that_is_removed_goes_from_its_end_in_pieces() {
        let directory = tempfile::tempdir().expect("a directory");
        let (path, mut files) = (directory.path().join("000007.sst"), Files::new(clock::now()));
        let file = looked_after(&mut files, &path, 3 * MIB + 7);
        fs::remove_file(&path).expect("removed");
        files.look(clock::now());
        assert_eq!((files.left_bytes(), files.pause(clock::now())), (3 * MIB + 7, Some(PAUSE)));
        let lens: Vec<u64> = (0..4)
            .map(|_| {
                files.cut();
                len(&file)
            })
            .collect();
        assert_eq!(lens, [2 * MIB + 7, MIB + 7, 7, 0]);
        assert_eq!((files.left_bytes(), files.pause(clock::now())), (0, None), "closed");
    }

    #[test]
    fn what_somebody_has_under_a_name_is_never_cut() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = |name: &str| directory.path().join(name);
        let mut files = Files::new(clock::now());
        let there = looked_after(&mut files, &path("000008.sst"), 2 * MIB);
        let linked = looked_after(&mut files, &path("000009.sst"), 2 * MIB);
        fs::hard_link(path("000009.sst"), path("of a checkpoint")).expect("linked");
        fs::remove_file(path("000009.sst")).expect("removed");
        files.look(clock::now());
        files.cut();
        assert_eq!([len(&there), len(&linked)], [2 * MIB; 2]);
        assert_eq!(files.listed.len(), 1, "the one with another name is not RocksDB's any more");
        let now = files.listed[0].since;
        assert_eq!(files.pause(now), Some(LOOK), "the other may be removed yet");
        assert_eq!(files.pause(now + SOON), Some(SOON), "which is less likely later");
        files.look(now + LOOKS_FOR);
        assert_eq!(files.pause(now + LOOKS_FOR), None, "and not waited for without end");
    }

    #[test]
    fn twin_a_file_that_is_cut_under_its_name_is_noticed() {
        let directory = tempfile::tempdir().expect("a directory");
        let mut files = Files::new(clock::now());
        let there = looked_after(&mut files, &directory.path().join("000008.sst"), 2 * MIB);
        files.removed.extend(files.listed.pop().map(|opened| (opened.file, 2 * MIB)));
        files.cut();
        assert_ne!(len(&there), 2 * MIB);
    }

    #[test]
    fn small_files_and_those_that_are_gone_are_left_to_rocksdb() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("000010.sst");
        assert!(Opened::new(path.clone()).is_none());
        File::create(&path).and_then(|file| file.set_len(PIECE_BYTES)).expect("made");
        assert!(Opened::new(path).is_none());
    }

    #[test]
    fn who_removes_much_has_it_go_as_a_whole() {
        let directory = tempfile::tempdir().expect("a directory");
        let (path, start) = (directory.path().join("000011.sst"), clock::now());
        let mut files = Files::new(start);
        let mut left_after = |bytes: u64, now: Instant| {
            let before = files.left_bytes();
            // Sparse: it takes no space.
            looked_after(&mut files, &path, bytes);
            fs::remove_file(&path).expect("removed");
            files.look(now);
            files.left_bytes() - before
        };
        assert_eq!(left_after(ALLOWANCE_BYTES - MIB, start), ALLOWANCE_BYTES - MIB);
        assert_eq!(left_after(2 * MIB, start), 0, "it was closed, and is gone");
        let second = Duration::from_secs(1);
        assert_eq!(left_after(32 * MIB, start + second), 32 * MIB);
        assert_eq!(left_after(32 * MIB, start + second), 0);
        let later = start + 1000 * second;
        assert_eq!(left_after(ALLOWANCE_BYTES + 1, later), 0, "it does not grow without end");
        assert_eq!(left_after(ALLOWANCE_BYTES, later), ALLOWANCE_BYTES);
    }

    /// Of five files so many at least: what one thread of RocksDB's removes before another has told klad goes as a whole, and where
    /// flushes and compactions take milliseconds that happens.
    const CUT_MIN: usize = 2;

    fn cut(lens: &[u64]) -> usize {
        lens.iter().filter(|len| **len == 0).count()
    }

    /// Lengths of the logs and tables that a store had and that it has removed, while somebody else has them open.
    fn left_of_removed(in_pieces: bool) -> Vec<u64> {
        const KEYS: u32 = 8_000;
        let directory = tempfile::tempdir().expect("a directory");
        let mut options = RocksDbOptions::default();
        options.create_if_missing(true);
        options.set_compression_type(DBCompressionType::None);
        if in_pieces {
            super::in_pieces(&mut options, directory.path());
        }
        let db = DB::open(&options, directory.path()).expect("opened");
        let mut held = Vec::new();
        let mut rewriting = CompactOptions::default();
        rewriting.set_bottommost_level_compaction(BottommostLevelCompaction::Force);
        for round in 0..3 {
            for key in 0..KEYS {
                db.put(key.to_be_bytes(), [round; 500]).expect("written");
            }
            let paths = fs::read_dir(directory.path()).expect("listed").flatten().map(|entry| entry.path());
            let large = paths.filter(|path| {
                path.extension().is_some_and(|extension| extension == "sst" || extension == "log")
                    && path.metadata().is_ok_and(|metadata| metadata.len() > PIECE_BYTES)
            });
            held.extend(large.flat_map(File::open));
            db.compact_range_opt(None::<&[u8]>, None::<&[u8]>, &rewriting);
        }
        let removed = |file: &&File| file.metadata().is_ok_and(|metadata| metadata.nlink() == 0);
        let lens = |held: &[File]| held.iter().filter(removed).map(len).collect::<Vec<_>>();
        // Three logs and two tables, removed by a thread of RocksDB's after it has said that it is done.
        let all = |lens: &[u64]| lens.len() >= 5 && (!in_pieces || cut(lens) >= CUT_MIN);
        let deadline = clock::now() + Duration::from_secs(10);
        while !all(&lens(&held)) && clock::now() < deadline {
            std::thread::park_timeout(LOOK);
        }
        lens(&held)
    }

    #[test]
    fn logs_and_tables_that_rocksdb_removes_are_cut() {
        let lens = left_of_removed(true);
        assert!(lens.len() >= 5 && cut(&lens) >= CUT_MIN, "{lens:?}");
    }

    #[test]
    fn twin_files_that_go_as_a_whole_are_noticed() {
        let lens = left_of_removed(false);
        assert!(lens.len() >= 5 && lens.iter().all(|len| *len > PIECE_BYTES), "{lens:?}");
    }
}
