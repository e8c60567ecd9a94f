//! Allocation profiles, from the dumps of jemalloc's own sampling.
//!
//! ```text
//!   malloc ─▶ jemalloc keeps one stack per N bytes on average ─▶ prof.dump into a memfd ─▶ Profile<Address>
//! ```
//!
//! jemalloc counts from the moment when sampling is switched on, so earlier allocations are missing. It counts its
//! size classes, which for requests above 64 bytes are up to a quarter larger than the requested sizes. RocksDB's
//! memory is included, as klad's own is. Called by `main`, which sets the rate, and by the admin listener of
//! `klad-server`, on a thread that may wait.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::os::fd::AsRawFd as _;
use std::sync::OnceLock;
use std::time::Duration;

use rustix::fs::{MemfdFlags, memfd_create};
use tikv_jemalloc_ctl::{Access as _, AsName as _};

use crate::{Address, Error, Name, Profile, Sample, ValueType};
use klad_base::clock;
use klad_base::sync::Mutex;

/// The average number of bytes between two samples while a [`Window`] is open, if sampling is off otherwise. It is
/// jemalloc's default.
const HEAP_WINDOW_SAMPLE_BYTES: u64 = 512 << 10;

/// The state of sampling. Its lock is held during each switch and each dump, so they run one at a time.
static STATE: Mutex<State> = Mutex::new(State { since_unix_ms: None, for_good: false, windows: 0 });

struct State {
    /// When sampling was last switched on, in milliseconds since 1970; `None` if it is off.
    since_unix_ms: Option<u64>,
    /// Whether [`Heap::sample_every`] has switched sampling on. Otherwise sampling is on only while a window is open.
    for_good: bool,
    /// The number of open windows.
    windows: usize,
}

/// Which allocations a profile shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum View {
    /// Memory in use.
    Live,
    /// All allocations since sampling was switched on, including freed ones.
    Allocated,
}

/// The sampling of this process's allocations.
#[derive(Debug)]
pub struct Heap(());

/// An allocation profile of a time window, which is being taken. It is the difference between the window's end and its
/// start. Dropping it ends the window.
#[derive(Debug)]
pub struct Window {
    before: Dump,
    view: View,
}

impl Heap {
    /// Samples one allocation per `bytes` bytes on average from now on, and discards earlier samples. Rounds `bytes`
    /// down to a power of two. With 0, ends sampling, or leaves it on until the last open [`Window`] ends.
    ///
    /// # Errors
    /// [`Error::Refused`] if jemalloc was started without `prof:true`, as in programs that only link klad's library.
    pub fn sample_every(bytes: u64) -> Result<(), Error> {
        let mut state = STATE.lock();
        if bytes == 0 {
            state.for_good = false;
            return if state.windows == 0 { switch(&mut state, false) } else { Ok(()) };
        }
        state.for_good = true;
        reset(bytes)?;
        switch(&mut state, true)
    }

    /// Returns a profile of the samples since sampling was last switched on, even if it is off again. The profile has
    /// the values of memory in use and of all allocations; `view` selects which of them flame graphs and tables show.
    ///
    /// # Errors
    /// [`Error::Refused`] if jemalloc cannot write the dump, or klad cannot read it. [`Error::Malformed`] if the dump
    /// has another format.
    pub fn now(view: View) -> Result<Profile<Address>, Error> {
        let dump = dump(&STATE.lock())?;
        Ok(dump.profile(view, None))
    }
}

impl Window {
    /// Starts a window, and switches sampling on for at least its duration.
    ///
    /// # Errors
    /// [`Error::Refused`] if jemalloc cannot sample; otherwise as [`Heap::now`].
    pub fn start(view: View) -> Result<Window, Error> {
        let mut state = STATE.lock();
        if !state.for_good && state.windows == 0 {
            reset(HEAP_WINDOW_SAMPLE_BYTES)?;
            switch(&mut state, true)?;
        }
        let before = match dump(&state) {
            Ok(before) => before,
            Err(error) => {
                // There is no window that would switch sampling off. An error here means that it was not on.
                if !state.for_good && state.windows == 0 {
                    let _ = switch(&mut state, false);
                }
                return Err(error);
            }
        };
        state.windows += 1;
        Ok(Window { before, view })
    }

    /// Ends the window. Returns what changed: values of memory in use are negative if more was freed than allocated.
    ///
    /// # Errors
    /// As [`Heap::now`].
    pub fn finish(self) -> Result<Profile<Address>, Error> {
        let after = dump(&STATE.lock())?;
        Ok(after.profile(self.view, Some(&self.before)))
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        let mut state = STATE.lock();
        state.windows -= 1;
        if state.windows == 0 && !state.for_good {
            // An error means that sampling was not on.
            let _ = switch(&mut state, false);
        }
    }
}

fn refused(action: &str) -> impl Fn(tikv_jemalloc_ctl::Error) -> Error {
    move |error| Error::Refused(format!("jemalloc: {action}: {error}"))
}

fn switch(state: &mut State, active: bool) -> Result<(), Error> {
    "prof.active\0".name().write(active).map_err(refused("prof.active"))?;
    state.since_unix_ms = active.then(clock::unix_ms);
    Ok(())
}

/// Discards all samples, and sets the average number of bytes between two samples. `prof.reset` takes the base-2
/// logarithm of this number.
fn reset(bytes: u64) -> Result<(), Error> {
    let lg_sample = bytes.max(1).ilog2() as usize;
    "prof.reset\0".name().write(lg_sample).map_err(refused("prof.reset"))
}

/// Excludes the calling thread's future allocations from sampling. Use it for threads that end soon: jemalloc keeps
/// the samples of a thread as long as the process lives, so a server that is scraped for a year would grow.
pub fn leave_this_thread_out() {
    // An allocator without profiling returns an error, and then has no samples of this thread.
    let _ = "thread.prof.active\0".name().write(false);
}

/// Returns a file in memory that jemalloc writes to, and its path. The file exists as long as the process.
fn file_for_dumps() -> std::io::Result<&'static (File, &'static str)> {
    static FILE: OnceLock<(File, &'static str)> = OnceLock::new();
    if let Some(made) = FILE.get() {
        return Ok(made);
    }
    let file = File::from(memfd_create("klad-heap", MemfdFlags::CLOEXEC)?);
    let path = format!("/proc/self/fd/{}\0", file.as_raw_fd());
    Ok(FILE.get_or_init(|| (file, path.leak())))
}

/// Makes jemalloc write a dump, and reads it. The caller holds the lock of the state, so dumps run one at a time.
fn dump(state: &State) -> Result<Dump, Error> {
    let io = |error: std::io::Error| Error::Refused(format!("a file in memory for jemalloc's dump: {error}"));
    let (mut file, path) = file_for_dumps().map(|(file, path)| (file, *path)).map_err(io)?;
    let began_unix_ms = clock::unix_ms();
    "prof.dump\0".name().write(path).map_err(refused("prof.dump"))?;
    let mut text = String::new();
    file.seek(SeekFrom::Start(0)).and_then(|_| file.read_to_string(&mut text)).map_err(io)?;
    file.set_len(0).map_err(io)?;
    let mut dump = Dump::parse(&text)?;
    dump.taken_unix_ms = began_unix_ms;
    dump.since_unix_ms = state.since_unix_ms;
    Ok(dump)
}

/// jemalloc's counts of a stack, in its order: objects and bytes in use, then objects and bytes of all allocations.
type Counts = [i64; 4];

/// A dump of jemalloc.
#[derive(Debug, Default)]
struct Dump {
    taken_unix_ms: u64,
    since_unix_ms: Option<u64>,
    /// The average number of bytes between two samples.
    rate: u64,
    /// The number of samples since sampling began.
    samples: i64,
    /// The counts of each stack, scaled up from the samples.
    stacks: HashMap<Vec<Address>, Counts>,
}

impl Dump {
    /// Parses the format `heap_v2`:
    ///
    /// ```text
    ///   heap_v2/524288
    ///     t*: 28: 5604480 [30: 5700000]
    ///   @ 0x55… 0x55…
    ///     t*: 13: 6688 [13: 6688]
    ///     t0: …
    /// ```
    fn parse(text: &str) -> Result<Dump, Error> {
        let malformed = || Error::Malformed("jemalloc's dump is not in the form heap_v2".to_owned());
        let mut lines = text.lines();
        let rate = lines.next().and_then(|line| line.strip_prefix("heap_v2/")?.parse().ok()).ok_or_else(malformed)?;
        let mut dump = Dump { rate, ..Dump::default() };
        let mut stack: Option<Vec<Address>> = None;
        for line in lines {
            let line = line.trim_start();
            if let Some(addresses) = line.strip_prefix("@ ") {
                let hex = |word: &str| u64::from_str_radix(word.strip_prefix("0x")?, 16).ok();
                // The addresses are return addresses.
                let parsed = addresses.split_whitespace().map(|word| Some(hex(word)?.saturating_sub(1)));
                stack = Some(parsed.collect::<Option<_>>().ok_or_else(malformed)?);
            } else if let Some(figures) = line.strip_prefix("t*: ") {
                // The first such line has the sums of all stacks.
                let Some(stack) = stack.take() else { continue };
                let seen = figures_of(figures).ok_or_else(malformed)?;
                dump.samples += seen[2].max(seen[0]);
                let [objects, bytes] = scaled(seen[0], seen[1], rate);
                let [all_objects, all_bytes] = scaled(seen[2], seen[3], rate);
                let sum = dump.stacks.entry(stack).or_default();
                for (sum, more) in sum.iter_mut().zip([objects, bytes, all_objects, all_bytes]) {
                    *sum += more;
                }
            } else if line.starts_with("MAPPED_LIBRARIES") {
                break;
            }
        }
        Ok(dump)
    }

    /// Returns the counts as a profile, or their difference from `before`.
    fn profile(self, view: View, before: Option<&Dump>) -> Profile<Address> {
        // If sampling began anew in between, the two dumps have nothing in common.
        let before = before.filter(|before| before.since_unix_ms == self.since_unix_ms);
        let none = HashMap::new();
        let earlier = before.map_or(&none, |before| &before.stacks);
        let mut samples = Vec::with_capacity(self.stacks.len());
        for (stack, seen) in &self.stacks {
            let was = earlier.get(stack).copied().unwrap_or_default();
            let [live_objects, live_bytes, all_objects, all_bytes] =
                [0, 1, 2, 3].map(|figure| seen[figure] - was[figure]);
            let values = vec![all_objects, all_bytes, live_objects, live_bytes];
            if values.iter().any(|value| *value != 0) {
                samples.push(Sample { thread: String::new(), frames: stack.clone(), values });
            }
        }
        // Without `prof_accum`, jemalloc forgets a stack once it has no live allocations. The allocations that were
        // live in `before` have then been freed.
        for (stack, was) in earlier.iter().filter(|(stack, was)| !self.stacks.contains_key(*stack) && was[0] != 0) {
            samples.push(Sample { thread: String::new(), frames: stack.clone(), values: vec![0, 0, -was[0], -was[1]] });
        }
        samples.sort_by(|one, other| one.frames.cmp(&other.frames));
        let (title, shown) = match view {
            View::Live => ("Memory in use", 3),
            View::Allocated => ("Memory allocated", 1),
        };
        let title = if before.is_some() { format!("{title}, difference") } else { title.to_owned() };
        let mut facts = self.facts(before);
        let less: Vec<i64> =
            samples.iter().map(|sample: &Sample<Address>| sample.values[shown]).filter(|value| *value < 0).collect();
        if !less.is_empty() {
            let bytes = less.iter().fold(0_i64, |sum, value| sum.saturating_sub(*value));
            let text = format!("decreases of {bytes} bytes in {} stacks: they have no width", less.len());
            facts.push(("not drawn".to_owned(), text));
        }
        let began_unix_ms = before.map_or(self.taken_unix_ms, |before| before.taken_unix_ms);
        Profile {
            title,
            values: vec![
                ValueType::new("alloc_objects", "count"),
                ValueType::new("alloc_space", "bytes"),
                ValueType::new("inuse_objects", "count"),
                ValueType::new("inuse_space", "bytes"),
            ],
            shown,
            samples,
            period: Some((ValueType::new("space", "bytes"), i64::try_from(self.rate).unwrap_or(i64::MAX))),
            began_unix_ns: began_unix_ms.saturating_mul(1_000_000),
            duration: Duration::from_millis(self.taken_unix_ms.saturating_sub(began_unix_ms)),
            facts,
        }
    }

    fn facts(&self, before: Option<&Dump>) -> Vec<(String, String)> {
        let samples = self.samples - before.map_or(0, |before| before.samples);
        let since = match self.since_unix_ms {
            Some(since) => {
                let ago = Duration::from_secs(self.taken_unix_ms.saturating_sub(since) / 1_000);
                let mut text = String::new();
                let _ = write!(text, "{} ago; earlier allocations are missing", humantime::format_duration(ago));
                text
            }
            None => "never: --heap-sample is 0, so only a profile with ?seconds= has samples".to_owned(),
        };
        [
            ("events", format!("{samples} sampled allocations")),
            ("sampling rate", format!("1 in {} bytes on average", self.rate)),
            ("not sampled", "the threads that take profiles".to_owned()),
            ("counted since", since),
            ("sizes", "jemalloc's size classes, scaled up from the samples".to_owned()),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .to_vec()
    }
}

/// Parses `13: 6688 [13: 6688]`.
fn figures_of(text: &str) -> Option<Counts> {
    let mut numbers = text.split([' ', ':', '[', ']']).filter(|word| !word.is_empty()).map(str::parse::<i64>);
    let mut next = || numbers.next()?.ok();
    Some([next()?, next()?, next()?, next()?])
}

/// Scales sampled counts up, with jeprof's formula: jemalloc samples a share of 1 - exp(-size / rate) of the objects,
/// which have `bytes / objects` bytes on average.
#[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, reason = "an estimate from samples")]
fn scaled(objects: i64, bytes: i64, rate: u64) -> [i64; 2] {
    if objects <= 0 || bytes <= 0 || rate == 0 {
        return [0, 0];
    }
    let size = bytes as f64 / objects as f64;
    let scale = 1.0 / (1.0 - (-size / rate as f64).exp());
    [(objects as f64 * scale).round() as i64, (bytes as f64 * scale).round() as i64]
}

/// Returns how many frames at the leaf belong to the allocator. The next frame is the function that allocates.
pub(super) fn allocator_frames(frames: &[Name]) -> usize {
    frames.iter().take_while(|name| is_of_allocator(name)).count()
}

fn is_of_allocator(name: &str) -> bool {
    const EXACT: &[&str] = &[
        "malloc",
        "calloc",
        "realloc",
        "memalign",
        "aligned_alloc",
        "posix_memalign",
        "valloc",
        "reallocarray",
        "mallocx",
        "rallocx",
        "operator new",
        "operator new[]",
        "__posix_memalign",
        "__libc_memalign",
    ];
    const BEGINNINGS: &[&str] = &[
        "prof_",
        "_rjem_je_",
        "je_",
        "malloc_default",
        "imalloc",
        "ialloc",
        "irallocx",
        "do_rallocx",
        "fallback_alloc",
        "__rust_",
        "__rdl_",
        "__rg_",
        "__rustc::__r",
        "alloc::alloc::",
        "<alloc::alloc::Global as ",
        "std::alloc::",
        "<std::alloc::System as ",
        "std::sys::alloc::",
        "alloc::raw_vec::",
        "<alloc::raw_vec::",
        "tikv_jemallocator::",
        "<tikv_jemallocator::Jemalloc as ",
        "__gnu_cxx::new_allocator",
        "std::allocator_traits",
        "std::__new_allocator",
        "core::alloc::global::GlobalAlloc",
    ];
    EXACT.contains(&name) || BEGINNINGS.iter().any(|beginning| name.starts_with(beginning))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::symbols::Symbols;

    const DUMP: &str = "heap_v2/524288\n  t*: 3: 3000 [9: 1000000]\n  t0: 3: 3000 [9: 1000000]\n@ 0x10 0x20\n  \
                        t*: 2: 1048576 [4: 2097152]\n  t0: 2: 1048576 [4: 2097152]\n@ 0x30\n  t*: 0: 0 [1: 1024]\n\n\
                        MAPPED_LIBRARIES:\n@ 0x99\n";

    #[test]
    fn the_samples_of_a_dump_are_scaled_up() {
        let dump = Dump::parse(DUMP).expect("well formed");
        assert_eq!((dump.rate, dump.samples, dump.stacks.len()), (524_288, 5, 2));
        let large = dump.stacks[&vec![0xf, 0x1f]];
        // The scale is 1 / (1 - 1/e) for objects of 512 KiB.
        assert_eq!(large, [3, 1_658_823, 6, 3_317_646]);
        let small = dump.stacks[&vec![0x2f]];
        assert_eq!((small[0], small[1], small[2]), (0, 0, 513));
        let profile = dump.profile(View::Live, None);
        assert_eq!(profile.values[profile.shown].kind, "inuse_space");
        assert_eq!(profile.samples[0].values, [6, 3_317_646, 3, 1_658_823]);
        for bad in ["", "heap_v1/1\n", "heap_v2/x\n", "heap_v2/1\n@ 0xzz\n", "heap_v2/1\n@ 0x1\n  t*: 1: 2\n"] {
            assert!(Dump::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_difference_is_the_later_dump_minus_the_earlier() {
        let before = Dump::parse("heap_v2/1\n@ 0x10\n  t*: 5: 500 [5: 500]\n@ 0x50\n  t*: 1: 100 [1: 100]\n");
        let after = Dump::parse("heap_v2/1\n@ 0x10\n  t*: 2: 200 [7: 700]\n@ 0x20\n  t*: 1: 100 [1: 100]\n");
        let difference = after.expect("well formed").profile(View::Allocated, Some(&before.expect("well formed")));
        let values: Vec<&[i64]> = difference.samples.iter().map(|sample| &sample.values[..]).collect();
        assert_eq!(values, [&[2, 200, -3, -300][..], &[1, 100, 1, 100], &[0, 0, -1, -100]]);
        assert_eq!(difference.title, "Memory allocated, difference");
    }

    #[inline(never)]
    fn planted_keep(pieces: usize, size: usize) -> Vec<Box<[u8]>> {
        let mut kept = Vec::with_capacity(pieces);
        for piece in 0..pieces {
            kept.push(std::hint::black_box(vec![u8::try_from(piece % 251).expect("small"); size].into_boxed_slice()));
        }
        kept
    }

    /// Runs the test in a process of its own, because jemalloc takes `prof:true` only at start. Returns whether this
    /// is that process.
    fn in_own_process(test: &str) -> bool {
        if std::env::var_os("KLAD_TEST_HEAP").is_some() {
            return true;
        }
        let run = std::process::Command::new(std::env::current_exe().expect("a path"))
            .args(["--exact", &format!("heap::tests::{test}"), "--nocapture"])
            .env("KLAD_TEST_HEAP", "1")
            .env("MALLOC_CONF", "prof:true,prof_active:false,prof_accum:true,lg_prof_sample:19")
            .output()
            .expect("the test binary starts");
        let said = String::from_utf8_lossy(&run.stdout);
        assert!(run.status.success() && said.contains("1 passed"), "{said}{}", String::from_utf8_lossy(&run.stderr));
        false
    }

    /// Returns the bytes of the stacks that contain `function`.
    fn bytes_of(profile: Profile<Address>, function: &str) -> i64 {
        let named = Symbols::of_this_process().expect("there is /proc").name(profile);
        let has = |sample: &&Sample<Name>| sample.frames.iter().any(|frame| frame.contains(function));
        named.samples.iter().filter(has).map(|sample| sample.values[named.shown]).sum()
    }

    #[test]
    fn memory_in_use_is_found_at_its_function_within_a_tenth() {
        if !in_own_process("memory_in_use_is_found_at_its_function_within_a_tenth") {
            return;
        }
        // 4,096 samples: the average error is 1.6 %, so a tenth is six times as much.
        Heap::sample_every(16 << 10).expect("profiling is compiled in");
        let kept = planted_keep(64 << 10, 1_024);
        let found = bytes_of(Heap::now(View::Live).expect("it samples"), "planted_keep");
        let truth = (64 << 20) + (64 << 10) * 16;
        assert!(found.abs_diff(truth).cast_signed() * 10 <= truth, "{found} of {truth}");
        // The twin: freed memory is not in use any more, but still counts as allocated.
        drop(kept);
        let live = bytes_of(Heap::now(View::Live).expect("it samples"), "planted_keep");
        assert!(live < truth / 10, "{live}");
        let all = bytes_of(Heap::now(View::Allocated).expect("it samples"), "planted_keep");
        assert!(all > truth / 10 * 9, "{all}");
        let named = Symbols::of_this_process().expect("/proc").name(Heap::now(View::Allocated).expect("it samples"));
        let largest = named.samples.iter().max_by_key(|sample| sample.values[1]).expect("some");
        assert!(largest.frames[0].contains("planted_keep") || largest.frames[0].starts_with("alloc::"), "{largest:?}");
    }

    /// Sets its flag when it is dropped, even if the test fails: otherwise the other threads would run on, and the
    /// failure would not be reported.
    struct SetOnDrop<'f>(&'f AtomicBool);

    impl Drop for SetOnDrop<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    #[test]
    fn sampling_can_be_switched_while_other_threads_allocate() {
        if !in_own_process("sampling_can_be_switched_while_other_threads_allocate") {
            return;
        }
        let ended = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let over = SetOnDrop(&ended);
            let load = || {
                while !ended.load(Ordering::Relaxed) {
                    std::hint::black_box(planted_keep(100, 5_000));
                }
            };
            scope.spawn(load);
            scope.spawn(load);
            for round in 0..200 {
                let window = Window::start(View::Allocated).expect("it begins");
                if round % 3 == 0 {
                    drop(window);
                } else if round % 20 == 1 {
                    // Waits until there is more than at the window's start: samples before its first dump do not
                    // belong to it.
                    let seen = || bytes_of(Heap::now(View::Allocated).expect("it samples"), "planted_keep");
                    let before = seen();
                    let deadline = clock::now() + Duration::from_mins(1);
                    while seen() == before {
                        assert!(clock::now() < deadline, "sampling has stopped in round {round}");
                    }
                    assert!(bytes_of(window.finish().expect("it ends"), "planted_keep") > 0, "round {round}");
                } else {
                    window.finish().expect("it ends");
                }
            }
            drop(over);
        });
        let state = STATE.lock();
        assert_eq!((state.windows, state.since_unix_ms), (0, None));
    }
}
