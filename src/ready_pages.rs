//! Memory that is ready before it is asked for: the first touch of a huge page is not a request's.
//!
//! ```text
//!   jemalloc ── needs more ─▶ is so much touched? ── yes ─▶ it is used as it is
//!                                    └── no ─▶ as usual: mapped now, and cleared by the kernel when it is touched
//!   klad-ready ── woken by each taking ─▶ touches the next, with what others leave of a core
//!
//!   one mapping of the budget's size:  │ taken │ touched, READY_BYTES │ never touched: takes no memory │
//! ```
//!
//! The kernel clears 2 MiB when a huge page is touched first. On a virtual machine, whose host has to find the memory as well, that is 3 to 8 ms, in
//! which the thread that has touched it does nothing else: a worker whose cache of values grew stood still three times a second
//! (docs/decisions/2026-11-26-memory-is-ready-before-it-is-asked-for.md). jemalloc asks for what it has not had yet through
//! hooks (`extent_hooks_t`); what it has it keeps and uses again. Here it is handed what a thread of klad's has touched already.
//!
//! The hook runs under jemalloc's locks: it must not allocate, and waits for nobody. Called by `main` at the start of `serve`, where pages are huge, and
//! by `server`.

#![expect(unsafe_code, reason = "jemalloc's hooks, and memory that is nobody's yet")]

use std::ffi::{CStr, OsStr, c_char, c_uint, c_void};
use std::io;
use std::ptr::NonNull;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::Thread;

use tikv_jemalloc_ctl::raw;
use tikv_jemalloc_sys::extent_hooks_t;

use crate::limits::{READY_BYTES, READY_TAKEN_MAX};
use crate::scheduler::{self, Policy};
use crate::sync::{Mutex, try_spawn_thread};

/// What one touch brings.
const HUGE_PAGE: usize = 2 << 20;

/// And at least, where pages are not huge.
const PAGE: usize = 4 << 10;

/// From this version of Linux on a page fault locks the mapping that it is in, and not the process's memory. Before, all who map anything would wait
/// for a thread that gets no core.
const LINUX_MIN: (u32, u32) = (6, 4);

static SOURCE: OnceLock<&'static Source> = OnceLock::new();

/// Why memory is as it was.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel would lock too much.
    #[error("Linux {release} is older than {}.{}", LINUX_MIN.0, LINUX_MIN.1)]
    OldKernel {
        /// As it calls itself.
        release: String,
    },
    /// No address space, or no thread.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The allocator is another, or has no such hooks.
    #[error("the allocator refuses: {0}")]
    Allocator(tikv_jemalloc_ctl::Error),
    /// Somebody has set it up for what does not go together with hooks, or without huge pages.
    #[error("the allocator was started with other settings than klad's")]
    OtherSettings,
    /// Address space counts as memory.
    #[error("vm.overcommit_memory is 2: all of it would be charged at once")]
    NoOvercommit,
}

/// From now on some memory is touched before it is asked for, `budget_bytes` in the process's life at most. It is never given back, as arenas
/// would use it after that.
///
/// # Errors
/// Why not; then memory is touched by whoever needs it.
pub fn begin(budget_bytes: u64) -> Result<(), Error> {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    if !is_new_enough(&release) {
        return Err(Error::OldKernel { release });
    }
    if std::fs::read_to_string("/proc/sys/vm/overcommit_memory").is_ok_and(|mode| mode.trim() == "2") {
        return Err(Error::NoOvercommit);
    }
    if !has_usual_settings().map_err(Error::Allocator)? {
        return Err(Error::OtherSettings);
    }
    let source = Source::leaked(usize::try_from(budget_bytes).unwrap_or(usize::MAX))?;
    try_spawn_thread("klad-ready", move || {
        let _ = source.toucher.set(std::thread::current());
        // The first fault of a mapping may lock more than that, so it is not for somebody who gets no core.
        source.touch();
        if let Err(error) = scheduler::set_policy(rustix::thread::gettid(), Policy::Leftovers) {
            tracing::debug!(%error, "memory is touched beside requests");
        }
        loop {
            source.touch();
            std::thread::park();
        }
    })?;
    let _ = SOURCE.set(source);
    look();
    Ok(())
}

/// Threads may have begun arenas since the last look: called when the server's have been started, and once a second, as those of libraries come
/// when they like.
pub(crate) fn look() {
    if let Some(source) = SOURCE.get() {
        source.serve_new_arenas();
    }
}

/// Guard pages are put around allocations by jemalloc's own hooks only, and its other allocator of pages ends where hooks are.
fn has_usual_settings() -> tikv_jemalloc_ctl::Result<bool> {
    // jemalloc does not say how often it guards; where it reads that is in its manual.
    let asks_for_guards = |settings: &OsStr| settings.to_string_lossy().contains("san_guard");
    let guards = std::env::var_os("MALLOC_CONF").is_some_and(|settings| asks_for_guards(&settings))
        || std::fs::read_link("/etc/malloc.conf").is_ok_and(|settings| asks_for_guards(settings.as_os_str()));
    // SAFETY: it is a `bool`.
    let other = unsafe { raw::read::<bool>(b"opt.hpa\0") }?;
    // SAFETY: it is a C string that is there for good.
    let huge = unsafe { CStr::from_ptr(raw::read::<*const c_char>(b"opt.thp\0")?) };
    Ok(!guards && !other && huge == c"always")
}

/// How much is ready now, bytes.
pub(crate) fn ready_bytes() -> u64 {
    SOURCE.get().map_or(0, |source| {
        // In this order, or the difference could be below nothing.
        let taken = source.taken.load(Ordering::Relaxed);
        (source.touched.load(Ordering::Acquire) - taken) as u64
    })
}

fn is_new_enough(release: &str) -> bool {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    matches!((numbers.next(), numbers.next()), (Some(Ok(major)), Some(Ok(minor))) if (major, minor) >= LINUX_MIN)
}

/// Where arenas take their memory from. jemalloc has its address, as that of its first field.
#[repr(C)]
struct Source {
    hooks: extent_hooks_t,
    usual: NonNull<extent_hooks_t>,
    /// The mapping.
    base: NonNull<u8>,
    bytes: usize,
    /// Offsets: up to here it is taken, up to there touched.
    taken: AtomicUsize,
    touched: AtomicUsize,
    toucher: OnceLock<Thread>,
    /// The arenas that take from here, by their numbers.
    served: Mutex<Vec<bool>>,
}

// SAFETY: the hooks are read only after they are made, and what `base` points to is handed out once, by `take`.
unsafe impl Sync for Source {}
// SAFETY: nothing in it belongs to a thread.
unsafe impl Send for Source {}

impl Source {
    /// Of so many bytes, for good.
    fn leaked(bytes: usize) -> Result<&'static Source, Error> {
        // Arena 0 is there before `main` is.
        // SAFETY: `arena.<i>.extent_hooks` is a pointer to hooks.
        let usual = unsafe { raw::read::<*mut extent_hooks_t>(b"arena.0.extent_hooks\0") }.map_err(Error::Allocator)?;
        let usual = NonNull::new(usual).ok_or(io::Error::from(io::ErrorKind::Unsupported))?;
        let bytes = bytes / HUGE_PAGE * HUGE_PAGE;
        let base = map(bytes)?;
        // SAFETY: jemalloc's own hooks, which it never changes.
        let mut hooks = unsafe { std::ptr::read(usual.as_ptr()) };
        hooks.alloc = Some(alloc);
        let (taken, touched) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let (toucher, served) = (OnceLock::new(), Mutex::default());
        Ok(Box::leak(Box::new(Source { hooks, usual, base, bytes, taken, touched, toucher, served })))
    }

    /// The next so many bytes, if they are touched.
    fn take(&self, bytes: usize, alignment: usize) -> Option<NonNull<u8>> {
        let mut taken = self.taken.load(Ordering::Relaxed);
        loop {
            let end = taken.checked_add(bytes)?;
            let is_aligned = (self.base.addr().get() + taken).is_multiple_of(alignment);
            if end > self.touched.load(Ordering::Acquire) || !is_aligned {
                return None;
            }
            match self.taken.compare_exchange_weak(taken, end, Ordering::Relaxed, Ordering::Relaxed) {
                // SAFETY: within the mapping, as `touched` is.
                Ok(_) => return Some(unsafe { self.base.add(taken) }),
                Err(now) => taken = now,
            }
        }
    }

    /// Touches what is to be ready and is not, if there is so much; one thread does.
    fn touch(&self) {
        let mut touched = self.touched.load(Ordering::Relaxed);
        while touched < self.bytes && touched - self.taken.load(Ordering::Relaxed) < READY_BYTES {
            for page in (touched..touched + HUGE_PAGE).step_by(PAGE) {
                // SAFETY: within the mapping, whose length is a multiple of it, and nobody has it before `touched` says so.
                unsafe { self.base.add(page).write_volatile(0) };
            }
            touched += HUGE_PAGE;
            self.touched.store(touched, Ordering::Release);
        }
    }

    /// Arenas come with threads, and are never fewer. Which there are jemalloc says as of its last `epoch`.
    fn serve_new_arenas(&'static self) {
        // SAFETY: `arenas.narenas` is an `unsigned`.
        let arenas = unsafe { raw::read::<c_uint>(b"arenas.narenas\0") }.unwrap_or(0);
        let mut served = self.served.lock();
        served.resize(arenas as usize, false);
        for (arena, served) in (0..arenas).zip(served.iter_mut()).filter(|(_, served)| !**served) {
            let name = format!("arena.{arena}.initialized\0");
            // SAFETY: it is a `bool`.
            if unsafe { raw::read::<bool>(name.as_bytes()) } == Ok(true) {
                *served = true;
                if let Err(error) = self.serve(arena) {
                    tracing::debug!(%error, arena, "an arena touches its memory itself");
                }
            }
        }
    }

    /// An arena takes what it needs from here, from now on.
    fn serve(&'static self, arena: c_uint) -> tikv_jemalloc_ctl::Result<()> {
        // Or each piece would be larger than the one before, and none ready.
        let limit = format!("arena.{arena}.retain_grow_limit\0");
        // SAFETY: it is a `size_t`.
        unsafe { raw::write(limit.as_bytes(), READY_TAKEN_MAX) }?;
        let name = format!("arena.{arena}.extent_hooks\0");
        // Of all of it, as `alloc` reads more than the hooks.
        let hooks = std::ptr::from_ref(self).cast_mut().cast::<extent_hooks_t>();
        // SAFETY: a pointer to hooks that stay for good, and of which jemalloc only reads.
        unsafe { raw::write(name.as_bytes(), hooks) }
    }
}

/// So much address space, which takes no memory until it is touched. Nobody may touch what is around it, so that it is never one with what the
/// kernel maps beside it: who maps that would wait for who touches this.
fn map(bytes: usize) -> io::Result<NonNull<u8>> {
    let with_guards = bytes.checked_add(2 * HUGE_PAGE).ok_or(io::ErrorKind::OutOfMemory)?;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping, wherever the kernel likes.
    let mapped = unsafe { libc::mmap(std::ptr::null_mut(), with_guards, libc::PROT_NONE, flags, -1, 0) };
    if mapped == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // One page at least before it, and one behind.
    // SAFETY: within the mapping, which is so much longer.
    let base = unsafe {
        let first = mapped.cast::<u8>().add(PAGE);
        first.add(first.align_offset(HUGE_PAGE))
    };
    // SAFETY: a part of that mapping, which nobody has yet.
    if unsafe { libc::mprotect(base.cast(), bytes, libc::PROT_READ | libc::PROT_WRITE) } != 0 {
        return Err(io::Error::last_os_error());
    }
    #[cfg(target_os = "linux")]
    // SAFETY: advice about that part; without it pages are as the kernel likes.
    unsafe {
        libc::madvise(base.cast(), bytes, libc::MADV_HUGEPAGE);
    }
    NonNull::new(base).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
}

/// jemalloc's hook: `extent_alloc_t` in its manual.
unsafe extern "C" fn alloc(
    hooks: *mut extent_hooks_t,
    address: *mut c_void,
    bytes: usize,
    alignment: usize,
    zero: *mut bool,
    commit: *mut bool,
    arena: c_uint,
) -> *mut c_void {
    // SAFETY: an arena that calls this has the address of a source's first field, and the source stays for good.
    let source = unsafe { &*hooks.cast::<Source>() };
    if address.is_null()
        && bytes <= READY_TAKEN_MAX
        && let Some(taken) = source.take(bytes, alignment)
    {
        // SAFETY: jemalloc's own variables.
        unsafe { (*zero, *commit) = (true, true) };
        if let Some(toucher) = source.toucher.get() {
            toucher.unpark();
        }
        return taken.as_ptr().cast();
    }
    let usual = source.usual.as_ptr();
    // SAFETY: jemalloc's own hook, called as it would itself.
    unsafe {
        match (*usual).alloc {
            Some(alloc) => alloc(usual, address, bytes, alignment, zero, commit, arena),
            None => std::ptr::null_mut(),
        }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use tikv_jemalloc_sys::{MALLOCX_ARENA, MALLOCX_TCACHE_NONE, mallocx};

    use super::*;

    fn source(bytes: usize) -> &'static Source {
        Source::leaked(bytes).expect("address space")
    }

    #[test]
    fn what_is_touched_is_taken_once_and_in_order() {
        let source = source(4 * READY_BYTES);
        assert_eq!(source.take(PAGE, PAGE), None, "nothing is touched yet");
        source.touch();
        assert_eq!(source.touched.load(Ordering::Relaxed), READY_BYTES);
        let first = source.take(3 * PAGE, PAGE).expect("touched");
        let second = source.take(READY_BYTES - 3 * PAGE, PAGE).expect("touched");
        assert_eq!((first, second.as_ptr() as usize), (source.base, first.as_ptr() as usize + 3 * PAGE));
        assert_eq!(source.take(PAGE, PAGE), None);
        source.touch();
        assert_eq!(source.touched.load(Ordering::Relaxed), 2 * READY_BYTES);
    }

    #[test]
    fn one_that_is_used_up_gives_nothing() {
        let source = source(HUGE_PAGE);
        source.touch();
        assert!(source.take(HUGE_PAGE, PAGE).is_some());
        source.touch();
        assert_eq!(source.take(PAGE, PAGE), None);
    }

    #[test]
    fn what_asks_for_more_order_than_there_is_goes_the_usual_way() {
        let source = source(READY_BYTES);
        source.touch();
        source.take(PAGE, PAGE).expect("touched");
        assert_eq!(source.take(PAGE, HUGE_PAGE), None);
        assert!(source.take(PAGE, PAGE).is_some());
        // The address counts, and not where it lies in the mapping.
        let other = self::source(READY_BYTES);
        other.touch();
        let alignment = 1 << (other.base.addr().trailing_zeros() + 1);
        assert_eq!(other.take(PAGE, alignment), None);
    }

    #[test]
    fn versions_of_linux_are_told_apart() {
        for release in ["6.4.0", "6.18.44-fc-v669", "10.0-rc1"] {
            assert!(is_new_enough(release), "{release}");
        }
        for release in ["6.3.13", "5.15.0-91-generic", "6", ""] {
            assert!(!is_new_enough(release), "{release}");
        }
    }

    /// Page faults of this thread.
    fn faults() -> i64 {
        // SAFETY: zeros are a valid value, and the kernel writes it.
        let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
        // SAFETY: as above.
        assert_eq!(unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) }, 0);
        usage.ru_minflt
    }

    /// Pages are small unless somebody asks for huge ones, as jemalloc does not here.
    fn pages_are_small() -> bool {
        let enabled = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
        !enabled.contains("[always]")
    }

    /// Of whoever fills 32 MiB of an arena of its own; what is to be ready is touched each time before that, if `served` says so.
    fn faults_of_an_arena(served: bool) -> i64 {
        const PIECE: usize = 64 << 10;
        // SAFETY: `arenas.create` is an `unsigned`.
        let arena = unsafe { raw::read::<c_uint>(b"arenas.create\0") }.expect("one more arena");
        let source = source(64 << 20);
        if served {
            source.serve(arena).expect("jemalloc takes hooks");
        }
        let flags = MALLOCX_ARENA(arena as usize) | MALLOCX_TCACHE_NONE;
        let mut all = 0;
        for _ in 0..(32 << 20) / PIECE {
            source.touch();
            let before = faults();
            // SAFETY: a size, and flags as in jemalloc's manual.
            let piece = NonNull::new(unsafe { mallocx(PIECE, flags) }).expect("memory").cast::<u8>();
            // SAFETY: so much was asked for. It is not given back, as the arena is not.
            unsafe { std::ptr::write_bytes(piece.as_ptr(), 7, PIECE) };
            all += faults() - before;
        }
        all
    }

    #[test]
    fn an_arena_that_grows_meets_no_page_that_nobody_has_touched() {
        if !pages_are_small() {
            // Then there are too few faults to tell.
            return;
        }
        let faults = faults_of_an_arena(true);
        // What jemalloc keeps its books in is its own.
        assert!(faults < 200, "{faults}");
    }

    #[test]
    fn twin_an_arena_that_grows_as_usual_is_noticed() {
        if !pages_are_small() {
            return;
        }
        let faults = faults_of_an_arena(false);
        assert!(faults >= 8192, "{faults}: one for each 4 KiB");
    }
}
