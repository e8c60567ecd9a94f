//! Compactions go no faster than they have to.
//!
//! ```text
//!   a compaction ─▶ each value ─▶ counted; every 32 KiB ─▶ ahead of the pace? ─▶ a pause
//!   a flush ─▶ how much comes      ┬─▶ the pace
//!   klad-upkeep ─▶ how much waits  ┘
//! ```
//!
//! Compactions take what requests leave of a core, and that has no end where requests wait for the disk: then a compaction has the core,
//! fills the disk, each sync of the log stands behind a megabyte of tables, and the longer requests wait, the more it has.
//! Seconds in which a compaction wrote 40 MiB had a fifth of the syncs of others, and p99.9 of half a second
//! (docs/decisions/2026-11-25-compactions-have-a-pace.md). What a pace costs is that level 0 holds some files more.
//!
//! RocksDB's own limiter (`rate_limiter.h`) would hold flushes up as well, which writes wait for, and its rate cannot be changed from C.
//! So a compaction filter, which keeps all that it is shown, and takes its time. It is shown no removals: a compaction of nothing else
//! has no pace. Called by `rocksdb.rs`.

use std::ffi::CStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rust_rocksdb::compaction_filter::CompactionFilter;
use rust_rocksdb::compaction_filter_factory::{CompactionFilterContext, CompactionFilterFactory};
use rust_rocksdb::event_listener::{EventListener, FlushJobInfo};
use rust_rocksdb::{CompactionDecision, Options as RocksDbOptions};

use super::observation::Measure;
use crate::clock;
use crate::limits::LEVEL_0_FILES;
use crate::metrics::Counter;
use crate::metrics::text::Kind;
use crate::sync::{Mutex, Signal};

/// The least, bytes of keys and values a second: what a store of small values that takes 10,000 writes a second needs.
const PACE_MIN: f64 = (8 << 20) as f64;

/// So many times what is flushed. To bring a file from level 0 to where it stays, a compaction writes it and as much again of what
/// is there, or twice as much.
const TIMES_FLUSHED: f64 = 4.0;

/// What is flushed is an average over so long, weighted towards now.
const FLUSHED_OVER: Duration = Duration::from_secs(10);

/// What waits to be compacted would be done in so long, if nothing came and tables held nothing compressed.
const DONE_IN: Duration = Duration::from_mins(1);

/// From so many files of level 0 on the pace doubles with each, and from so many there is none. RocksDB slows writes down at 20
/// (`level0_slowdown_writes_trigger`). It does so with 64 GiB that wait, too: by then the pace is 1 GiB a second. And for memtables that wait
/// for their flush, which no compaction makes quicker.
const LEVEL_0_MANY: u64 = LEVEL_0_FILES + 4;
const LEVEL_0_TOO_MANY: u64 = LEVEL_0_FILES + 8;

/// So much is done between two looks at the pace, bytes. At the least pace that is 4 ms.
const PIECE_BYTES: u64 = 32 << 10;

/// No pause is longer: the pace may be another by then. A value that would take longer goes faster than the pace.
const PAUSE_MAX: Duration = Duration::from_millis(100);

/// Who was kept from working makes up for so much of it.
const CREDIT: Duration = Duration::from_millis(10);

/// The pace of one database's compactions, until it is dropped; then there is none. To be dropped before the database, which waits for
/// them.
pub(super) struct Pace(Arc<Shared>);

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    closed: Signal,
    paused_ns: Counter,
}

/// What the pace follows from.
#[derive(Debug)]
struct State {
    /// Bytes a second.
    least: f64,
    level_0_files: u64,
    pending_bytes: u64,
    /// Writes are refused for want of space, which compactions may win back.
    full: bool,
    /// So many wait for what compactions do.
    hurried: u64,
    /// Of late, and when that was so.
    flushed_bytes: f64,
    flushed: Option<Instant>,
    /// What has been done so far is due then.
    due: Option<Instant>,
}

impl Default for State {
    fn default() -> State {
        let (flushed_bytes, flushed, due) = (0.0, None, None);
        let (level_0_files, pending_bytes, full, hurried) = (0, 0, false, 0);
        State { least: PACE_MIN, level_0_files, pending_bytes, full, hurried, flushed_bytes, flushed, due }
    }
}

impl State {
    fn flush(&mut self, bytes: u64, now: Instant) {
        self.flushed_bytes = self.flushed_of_late(now) + to_f64(bytes);
        self.flushed = Some(now);
        // Until the next look says it better.
        self.level_0_files += 1;
    }

    fn flushed_of_late(&self, now: Instant) -> f64 {
        let Some(then) = self.flushed else { return 0.0 };
        let passed = now.saturating_duration_since(then).as_secs_f64() / FLUSHED_OVER.as_secs_f64();
        self.flushed_bytes * (-passed).exp()
    }

    /// Bytes a second; `None`: as fast as can be.
    fn pace(&self, now: Instant) -> Option<f64> {
        if self.full || self.hurried > 0 || self.level_0_files >= LEVEL_0_TOO_MANY {
            return None;
        }
        let of_flushes = self.flushed_of_late(now) / FLUSHED_OVER.as_secs_f64() * TIMES_FLUSHED;
        let of_pending = to_f64(self.pending_bytes) / DONE_IN.as_secs_f64();
        let doublings = (self.level_0_files + 1).saturating_sub(LEVEL_0_MANY);
        Some(self.least.max(of_flushes).max(of_pending) * to_f64(1 << doublings))
    }

    /// So much is done; how long to wait now.
    fn pause(&mut self, bytes: u64, now: Instant) -> Duration {
        let Some(pace) = self.pace(now) else {
            self.due = None;
            return Duration::ZERO;
        };
        let earliest = now.checked_sub(CREDIT).unwrap_or(now);
        let from = self.due.map_or(now, |due| due.max(earliest));
        let takes = Duration::from_secs_f64(to_f64(bytes) / pace).min(PAUSE_MAX);
        let due = (from + takes).min(now + PAUSE_MAX);
        self.due = Some(due);
        due.saturating_duration_since(now)
    }
}

impl Pace {
    /// Compactions of the database that is opened with these options keep to it, but those that somebody has asked for.
    pub(super) fn new(options: &mut RocksDbOptions) -> Pace {
        // Where there is a filter RocksDB writes every table anew each 30 days, so that it sees all entries (`column_family.cc`).
        options.set_periodic_compaction_seconds(0);
        let shared = Arc::<Shared>::default();
        options.add_event_listener(Listener(Arc::clone(&shared)));
        options.set_compaction_filter_factory(Factory(Arc::clone(&shared)));
        Pace(shared)
    }

    /// What klad has seen. `full`: writes are refused for want of space.
    pub(super) fn look(&self, level_0_files: u64, pending_bytes: u64, full: bool) {
        let mut state = self.0.state.lock();
        (state.level_0_files, state.pending_bytes, state.full) = (level_0_files, pending_bytes, full);
    }

    /// Until the answer is dropped there is no pace.
    pub(super) fn hurry(&self) -> Hurry {
        self.0.state.lock().hurried += 1;
        Hurry(Arc::clone(&self.0))
    }

    /// For the metrics page.
    pub(super) fn measures(&self) -> [Measure; 2] {
        let pace = self.0.state.lock().pace(clock::now()).unwrap_or(0.0);
        [
            Measure::one(
                "klad_rocksdb_compaction_pace_bytes_per_second",
                Kind::Gauge,
                "Keys and values that compactions pass at most, together; 0: as many as they can.",
                pace.round(),
            ),
            Measure::one(
                "klad_rocksdb_compaction_paused_seconds_total",
                Kind::Counter,
                "How long they waited for that, each for itself.",
                Duration::from_nanos(self.0.paused_ns.get()).as_secs_f64(),
            ),
        ]
    }
}

/// Somebody waits for what compactions do.
pub(super) struct Hurry(Arc<Shared>);

impl Drop for Hurry {
    fn drop(&mut self) {
        self.0.state.lock().hurried -= 1;
    }
}

impl Drop for Pace {
    fn drop(&mut self) {
        self.0.closed.raise();
    }
}

/// Told by RocksDB, on its threads.
struct Listener(Arc<Shared>);

impl EventListener for Listener {
    fn on_flush_completed(&self, job: &FlushJobInfo) {
        let table = job.table_properties();
        let bytes = table.raw_key_size().saturating_add(table.raw_value_size());
        self.0.state.lock().flush(bytes, clock::now());
    }
}

/// Makes one for each compaction.
struct Factory(Arc<Shared>);

impl CompactionFilterFactory for Factory {
    type Filter = Paced;

    fn create(&mut self, compaction: CompactionFilterContext) -> Paced {
        let waits_for_nobody = !compaction.is_manual_compaction;
        Paced { shared: waits_for_nobody.then(|| Arc::clone(&self.0)), bytes: 0 }
    }

    fn name(&self) -> &CStr {
        c"klad.pace"
    }
}

/// One compaction. Runs inside of RocksDB, which no panic may enter.
struct Paced {
    /// `None`: somebody waits for its end.
    shared: Option<Arc<Shared>>,
    /// Since the last look.
    bytes: u64,
}

impl CompactionFilter for Paced {
    fn filter(&mut self, _level: u32, key: &[u8], value: &[u8]) -> CompactionDecision {
        self.bytes += (key.len() + value.len()) as u64;
        if self.bytes >= PIECE_BYTES
            && let Some(shared) = &self.shared
        {
            let pause = shared.state.lock().pause(self.bytes, clock::now());
            self.bytes = 0;
            if !pause.is_zero() && !shared.closed.wait_timeout(pause) {
                shared.paused_ns.add(u64::try_from(pause.as_nanos()).unwrap_or(u64::MAX));
            }
        }
        CompactionDecision::Keep
    }

    fn name(&self) -> &CStr {
        c"klad.pace"
    }
}

#[expect(clippy::cast_precision_loss, reason = "bytes, and small numbers")]
fn to_f64(number: u64) -> f64 {
    number as f64
}

#[cfg(test)]
mod tests {
    use rust_rocksdb::{DB, properties};

    use super::*;

    const MIB: u64 = 1 << 20;

    fn seconds(number: f64) -> Duration {
        Duration::from_secs_f64(number)
    }

    /// In MiB a second.
    fn mebibytes(pace: Option<f64>) -> Option<f64> {
        pace.map(|pace| (pace / to_f64(MIB) * 10.0).round() / 10.0)
    }

    #[test]
    fn the_pace_follows_what_is_flushed_and_what_waits() {
        let now = clock::now();
        let mut state = State::default();
        assert_eq!(mebibytes(state.pace(now)), Some(8.0), "where little happens");
        state.pending_bytes = 6000 * MIB;
        assert_eq!(mebibytes(state.pace(now)), Some(100.0), "what waits is done within a minute");
        state.pending_bytes = 0;
        // 12 MiB every 0.1 s, for a minute, are 120 MiB a second.
        let flushes = (0..600).map(|flush| now + seconds(0.1) * flush);
        flushes.for_each(|at| state.flush(12 * MIB, at));
        state.level_0_files = 0;
        let last = now + seconds(59.9);
        let pace = mebibytes(state.pace(last)).expect("there is one");
        assert!((470.0..500.0).contains(&pace), "four times what is flushed, but {pace}");
        assert_eq!(mebibytes(state.pace(last + seconds(60.0))), Some(8.0), "long after the last");
    }

    #[test]
    fn files_of_level_0_and_a_full_disk_end_the_pace() {
        let now = clock::now();
        let pace = |level_0_files, full| mebibytes(State { level_0_files, full, ..State::default() }.pace(now));
        let rising: Vec<_> = (10..20).map(|files| pace(files, false)).collect();
        let at = Some;
        assert_eq!(rising[..4], [at(8.0); 4]);
        assert_eq!(rising[4..], [at(16.0), at(32.0), at(64.0), at(128.0), None, None]);
        assert_eq!(pace(0, true), None);
    }

    #[test]
    fn a_flush_counts_as_a_file_until_the_next_look() {
        let mut state = State { level_0_files: LEVEL_0_TOO_MANY - 1, ..State::default() };
        let now = clock::now();
        assert!(state.pace(now).is_some());
        state.flush(1, now);
        assert_eq!(state.pace(now), None);
    }

    /// How long `pieces` take that are worked on for `work` each.
    fn taken(state: &mut State, pieces: u32, work: Duration) -> Duration {
        let begin = clock::now();
        let end = (0..pieces).fold(begin, |now, _| {
            let done = now + work;
            done + state.pause(PIECE_BYTES, done)
        });
        end.saturating_duration_since(begin)
    }

    #[test]
    fn pieces_keep_to_the_pace_whatever_work_they_are() {
        for work in [0.0, 0.001, 0.003] {
            let taken = taken(&mut State::default(), 2560, seconds(work)).as_secs_f64();
            assert!((9.9..10.1).contains(&taken), "80 MiB in pieces of {work} s take {taken} s");
        }
        let slow = taken(&mut State::default(), 100, seconds(0.02));
        assert_eq!(
            slow,
            seconds(0.02) * 100 + seconds(0.003_906_25),
            "who is slower has one pause, before that is known"
        );
        let none = taken(&mut State { full: true, ..State::default() }, 100, seconds(0.001));
        assert_eq!(none, seconds(0.1), "no pace");
    }

    #[test]
    fn who_was_kept_from_working_makes_up_for_a_little_of_it() {
        let (mut state, now) = (State::default(), clock::now());
        state.pause(PIECE_BYTES, now);
        let later = now + seconds(60.0);
        let ahead = (0..100).map(|_| state.pause(PIECE_BYTES, later)).take_while(Duration::is_zero).count();
        assert_eq!(ahead, 2, "10 ms, of pieces that take 3.9");
    }

    #[test]
    fn no_value_is_waited_for_longer_than_the_longest_pause() {
        let (mut state, now) = (State::default(), clock::now());
        assert_eq!(state.pause(1 << 40, now), PAUSE_MAX);
        assert_eq!(state.pause(1 << 40, now), PAUSE_MAX, "also where two compactions have one each");
        let pause = state.pause(PIECE_BYTES, now + PAUSE_MAX);
        assert_eq!(pause, Duration::from_secs_f64(to_f64(PIECE_BYTES) / PACE_MIN), "and is not paid for later");
    }

    #[test]
    fn who_asks_for_a_compaction_does_not_wait_for_the_pace() {
        let mut factory = Factory(Arc::default());
        let mut kept = |is_manual_compaction| {
            let context = CompactionFilterContext { is_full_compaction: false, is_manual_compaction };
            factory.create(context).shared.is_some()
        };
        assert_eq!([kept(false), kept(true)], [true, false]);
    }

    #[test]
    fn while_somebody_waits_there_is_no_pace() {
        let pace = Pace::new(&mut RocksDbOptions::default());
        let has_one = || pace.0.state.lock().pace(clock::now()).is_some();
        assert!(has_one());
        let hurries = [pace.hurry(), pace.hurry()];
        for hurry in hurries {
            assert!(!has_one());
            drop(hurry);
        }
        assert!(has_one());
    }

    /// How long a compaction pauses for 1 MB, before the database is closed or while it is.
    fn paused(closed: bool) -> Duration {
        let pace = Pace::new(&mut RocksDbOptions::default());
        let shared = Arc::clone(&pace.0);
        let mut compaction = Paced { shared: Some(Arc::clone(&shared)), bytes: 0 };
        let pace = (!closed).then_some(pace);
        // Some pieces, of one value after the other.
        for _ in 0..1000 {
            compaction.filter(0, b"key", &[0; 1000]);
        }
        drop(pace);
        Duration::from_nanos(shared.paused_ns.get())
    }

    #[test]
    fn who_closes_the_database_does_not_wait_for_a_pause() {
        assert_eq!(paused(true), Duration::ZERO);
    }

    #[test]
    fn twin_a_pause_that_is_waited_for_is_noticed() {
        assert_ne!(paused(false), Duration::ZERO);
    }

    /// Fills level 0 of a database, has it compacted, and answers how long the compaction was paused, and whether every entry is there
    /// and nothing else. `with`: what is done to the pace before.
    fn compacted(with: impl FnOnce(&Pace)) -> (Duration, bool) {
        const KEYS: u32 = 4000;
        const DONE_MAX: Duration = Duration::from_mins(2);
        let directory = tempfile::tempdir().expect("a directory");
        let mut options = RocksDbOptions::default();
        options.create_if_missing(true);
        options.set_level_zero_file_num_compaction_trigger(2);
        let pace = Pace::new(&mut options);
        with(&pace);
        let db = DB::open(&options, directory.path()).expect("opened");
        for round in 0..2_u8 {
            for key in 0..KEYS {
                db.put(key.to_be_bytes(), [round; 1000]).expect("written");
            }
            db.delete(KEYS.to_be_bytes()).expect("written");
            db.flush().expect("flushed");
        }
        let (level_0, begin) = (properties::num_files_at_level(0), clock::now());
        while db.property_int_value(&level_0).expect("known") != Some(0) {
            assert!(clock::now().saturating_duration_since(begin) < DONE_MAX, "not compacted");
            Signal::default().wait_timeout(Duration::from_millis(10));
        }
        let written = std::fs::read_dir(directory.path()).expect("there").flatten().map(|entry| entry.path());
        let settings = written.filter(|path| path.to_string_lossy().contains("OPTIONS-"));
        let settings: String = settings.map(|path| std::fs::read_to_string(path).expect("text")).collect();
        assert!(settings.contains("periodic_compaction_seconds=0\n"), "a filter has tables written anew: {settings}");
        let there = |key: u32| db.get(key.to_be_bytes()).expect("read").is_some_and(|value| value == [1; 1000]);
        let complete = (0..KEYS).all(there) && db.get(KEYS.to_be_bytes()).expect("read").is_none();
        (Duration::from_nanos(pace.0.paused_ns.get()), complete)
    }

    #[test]
    fn a_compaction_takes_its_time_and_keeps_everything() {
        // 4 MB take 4 s, of which the slowest machine does not need all.
        let (paused, complete) = compacted(|pace| pace.0.state.lock().least = to_f64(MIB));
        assert!(complete);
        assert_ne!(paused, Duration::ZERO);
    }

    #[test]
    fn twin_a_compaction_without_a_pace_is_noticed() {
        let (paused, complete) = compacted(|pace| pace.look(LEVEL_0_TOO_MANY, 0, false));
        assert!(complete);
        assert_eq!(paused, Duration::ZERO);
    }
}
