//! Walks the stack of a thread by its frame pointers. The thread itself does this, in a signal handler or in a lock
//! that waits. Only for a wait that has not ended, the thread of the lock profile walks the waiting thread's stack.
//!
//! ```text
//!   frame pointer ──▶ │ caller's frame pointer │ ──▶ │ its caller's │ ──▶ …    klad, std, RocksDB and jemalloc
//!                     │ return address         │     │ …            │          have them (`.cargo/config.toml`)
//! ```
//!
//! Debian's libc and libstdc++ have no frame pointers. In their code the register may hold anything, so the walk does
//! not read memory directly. It uses `process_vm_readv` on its own process, which returns an error for unreadable
//! memory, where a load would end the process. A call costs half a microsecond. So the walk does not make a call for
//! each frame, but reads a window of the stack at a time.
//!
//! Limits: if a signal interrupts a function before it has set up its frame, or after it has removed the frame, the
//! function's caller is missing from the stack, but not the caller's caller. If a function of libc uses the register
//! for other data, all callers are missing.
//!
//! All functions that a signal handler or a lock calls are async-signal-safe: no allocation, no lock, no thread-local,
//! and `errno` is preserved. Only `check` and `text_of` are for other callers. Called by `signal` and `waits`.

use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicI32, Ordering};

/// The maximum of frames that a stack keeps. If there are more, the outermost frames are cut. A request through hyper
/// and tokio to RocksDB has some 60 frames; `perf` keeps 127.
pub const FRAMES_MAX: usize = 128;

/// The bytes of the stack that one call of `process_vm_readv` reads. Most stacks of klad need two or three calls. A
/// larger window makes each call more expensive, a smaller one needs more calls.
const WINDOW_BYTES: usize = 2 << 10;

/// The size of a page, or a divisor of that size. Readable memory ends at a multiple of this number.
const PAGE_BYTES: u64 = 4 << 10;

/// The largest distance between a function's frame and its caller's, bytes: the default size of a whole stack.
const FRAME_DISTANCE_MAX: u64 = 8 << 20;

/// The alignment of frames. The ABI of x86-64 aligns the stack to 16 at every call; the ABI of `AArch64` does not
/// define where in a frame the frame record is.
const FRAME_ALIGNMENT: u64 = if cfg!(target_arch = "x86_64") { 16 } else { 8 };

/// The lowest possible address of code.
const CODE_MIN: u64 = 4096;

const WORDS: usize = WINDOW_BYTES / 8;

/// A window crosses at most one page boundary, so it needs at most two reads.
const _: () = assert!(WINDOW_BYTES as u64 <= PAGE_BYTES);

/// The stack of a thread: its position, and the calls that led there.
#[derive(Clone, Copy)]
pub struct Stack {
    len: u32,
    frames: [u64; FRAMES_MAX],
}

/// The registers with which a walk begins.
#[derive(Clone, Copy, Debug)]
pub struct Registers {
    /// The address of the next instruction.
    pub instruction: u64,
    /// The frame pointer of the running function, or of its caller.
    pub frame: u64,
    /// The stack pointer.
    pub stack: u64,
}

impl std::fmt::Debug for Stack {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_list().entries(self.frames()).finish()
    }
}

impl Stack {
    /// A stack without frames.
    pub const EMPTY: Stack = Stack { len: 0, frames: [0; FRAMES_MAX] };

    /// Returns one code address for each frame, the innermost first. For a caller, this is the return address minus 1,
    /// so that it lies within the call.
    #[must_use]
    pub fn frames(&self) -> &[u64] {
        &self.frames[..self.len as usize]
    }

    /// Returns the calling thread's stack, from the caller of this function on, without the first `skip` frames. With
    /// `skip` 1 the first frame is the caller's caller. Inlined functions have no frame.
    #[inline(never)]
    #[must_use]
    pub fn here(skip: usize) -> Stack {
        let frame = own_frame();
        let mut stack = Stack::EMPTY;
        stack.follow(frame, frame, skip);
        stack
    }

    /// Returns the stack of the thread that a signal has interrupted. `context` is the third argument of the signal
    /// handler.
    ///
    /// # Safety
    /// `context` comes from the kernel, and its handler is still running.
    #[expect(unsafe_code, reason = "the kernel passes a pointer")]
    #[must_use]
    pub unsafe fn of_context(context: *const libc::ucontext_t) -> Stack {
        // SAFETY: the caller promises that it points to the context.
        let context = unsafe { &*context };
        Stack::of(registers(context))
    }

    /// Returns the stack that begins with these registers. They may hold any values: a wrong frame pointer only makes
    /// the stack shorter.
    #[must_use]
    pub fn of(registers: Registers) -> Stack {
        let mut stack = Stack::EMPTY;
        stack.frames[0] = registers.instruction;
        stack.len = 1;
        stack.follow(registers.frame, registers.stack, 0);
        stack
    }

    /// Returns the callers of the function whose frame is at address `frame`. The frame may belong to another thread.
    #[must_use]
    pub fn above(frame: u64) -> Stack {
        let mut stack = Stack::EMPTY;
        stack.follow(frame, frame, 0);
        stack
    }

    /// Appends the frames of the chain that begins at `frame`, without the first `skip`.
    fn follow(&mut self, mut frame: u64, mut low: u64, mut skip: usize) {
        let mut window = Window { base: 0, words: 0, bytes: [MaybeUninit::uninit(); WORDS] };
        while (self.len as usize) < FRAMES_MAX {
            if !frame.is_multiple_of(FRAME_ALIGNMENT) || frame < low || frame - low > FRAME_DISTANCE_MAX {
                return;
            }
            let Some((caller, return_address)) = window.pair(frame) else { return };
            if return_address < CODE_MIN {
                return;
            }
            if skip > 0 {
                skip -= 1;
            } else {
                self.frames[self.len as usize] = return_address - 1;
                self.len += 1;
            }
            // A caller's frame is at a higher address. Otherwise the chain is a cycle, or this is no frame. The
            // addition cannot overflow: `frame` was readable, so it is far below the end of the address space.
            low = frame + 16;
            frame = caller;
        }
    }
}

/// A copied part of the stack.
struct Window {
    base: u64,
    words: usize,
    bytes: [MaybeUninit<u64>; WORDS],
}

impl Window {
    /// Returns the two words at address `at`, a multiple of eight, or `None` if they cannot be read.
    fn pair(&mut self, at: u64) -> Option<(u64, u64)> {
        let inside = |window: &Window| {
            let index = usize::try_from(at.checked_sub(window.base)? / 8).ok()?;
            (index + 1 < window.words).then_some(index)
        };
        let index = if let Some(index) = inside(self) {
            index
        } else {
            self.words = read(at, &mut self.bytes);
            self.base = at;
            inside(self)?
        };
        #[expect(unsafe_code, reason = "reads words that were written by the kernel")]
        // SAFETY: `read` has written the first `words`, and `index + 1` is below that.
        unsafe {
            Some((self.bytes[index].assume_init(), self.bytes[index + 1].assume_init()))
        }
    }
}

/// Reads the memory of this process that begins at address `from` into `into`, until `into` is full or the memory is
/// not readable. Returns the number of words that were read.
fn read(from: u64, into: &mut [MaybeUninit<u64>; WORDS]) -> usize {
    let Some(end) = from.checked_add(WINDOW_BYTES as u64) else { return 0 };
    // Readable memory may end between two pages, so each page is requested separately.
    let page_end = (from | (PAGE_BYTES - 1)).saturating_add(1).min(end);
    #[expect(clippy::cast_possible_truncation, reason = "addresses and parts of a page, as wide as pointers are here")]
    let part = |from: u64, to: u64| libc::iovec {
        iov_base: std::ptr::with_exposed_provenance_mut(from as usize),
        iov_len: (to - from) as usize,
    };
    let remote = [part(from, page_end), part(page_end, end)];
    let local = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: WINDOW_BYTES };
    #[expect(unsafe_code, reason = "a system call that the C library wraps")]
    // SAFETY: the kernel writes at most `WINDOW_BYTES` to `local`, which has that length, and returns an error if the
    // remote side is not readable. `errno` belongs to this thread, and is restored.
    let bytes = unsafe {
        let errno = libc::__errno_location();
        let before = *errno;
        let bytes = libc::process_vm_readv(own_process(), &raw const local, 1, remote.as_ptr(), 2, 0);
        *errno = before;
        bytes
    };
    usize::try_from(bytes).unwrap_or(0) / 8
}

/// Checks that this process may read its own memory through the kernel (`process_vm_readv`). Callers do this
/// before they record stacks, because without this permission no stack can be walked.
///
/// # Errors
/// The system's error. A filter of system calls, as containers have it, may deny the call.
pub fn check() -> std::io::Result<()> {
    let known = [0x6b6c_6164_u64, 1];
    let mut buffer = [MaybeUninit::uninit(); WORDS];
    if read(known.as_ptr().expose_provenance() as u64, &mut buffer) >= 2 {
        return Ok(());
    }
    // `read` discards the error, so this repeats the call to get it.
    let local = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: 16 };
    let remote = libc::iovec { iov_base: known.as_ptr().cast_mut().cast(), iov_len: 16 };
    #[expect(unsafe_code, reason = "a system call that the C library wraps")]
    // SAFETY: both sides are 16 bytes of this function's variables.
    let bytes = unsafe { libc::process_vm_readv(own_process(), &raw const local, 1, &raw const remote, 1, 0) };
    if bytes == 16 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

/// Returns the calling thread's name, at most 15 bytes, padded with zeros. The name comes from the kernel, so it is
/// available even while the thread ends.
#[must_use]
pub fn thread_name() -> [u8; 16] {
    let mut name = [0_u8; 16];
    #[expect(unsafe_code, reason = "a system call that the C library wraps")]
    // SAFETY: the kernel writes at most 16 bytes, the last of which is zero. The call cannot fail, so `errno` does
    // not change.
    unsafe {
        libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr());
    }
    name
}

/// Returns the same time as `clock::monotonic_ns`, which allocates at its first call and so cannot be used here.
pub(super) fn now_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    #[expect(unsafe_code, reason = "the clock function that never allocates has no safe form")]
    // SAFETY: the C library writes to `now`, and nothing else. It does not fail: Linux has this clock.
    unsafe {
        libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now);
    }
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}

/// Returns a name from [`thread_name`] as text.
#[must_use]
pub fn text_of(name: [u8; 16]) -> String {
    let end = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
    String::from_utf8_lossy(&name[..end]).into_owned()
}

/// Returns the process's number. It is cached, because `getpid` is a system call and the number never changes.
fn own_process() -> libc::pid_t {
    static OWN: AtomicI32 = AtomicI32::new(0);
    let known = OWN.load(Ordering::Relaxed);
    if known != 0 {
        return known;
    }
    #[expect(unsafe_code, reason = "the standard library does not promise that its function is async-signal-safe")]
    // SAFETY: it takes nothing and cannot fail.
    let own = unsafe { libc::getpid() };
    OWN.store(own, Ordering::Relaxed);
    own
}

#[cfg(target_arch = "x86_64")]
fn registers(context: &libc::ucontext_t) -> Registers {
    #[expect(clippy::cast_sign_loss, reason = "places in an array, small constants")]
    let at = |index: libc::c_int| context.uc_mcontext.gregs[index as usize].cast_unsigned();
    Registers { instruction: at(libc::REG_RIP), frame: at(libc::REG_RBP), stack: at(libc::REG_RSP) }
}

#[cfg(target_arch = "aarch64")]
fn registers(context: &libc::ucontext_t) -> Registers {
    let machine = &context.uc_mcontext;
    Registers { instruction: machine.pc, frame: machine.regs[29], stack: machine.sp }
}

/// Returns the frame pointer of the function into which this is inlined.
#[inline(always)]
#[expect(clippy::inline_always, reason = "without inlining, it would return its own frame")]
#[expect(unsafe_code, reason = "Rust cannot read a register")]
pub(super) fn own_frame() -> u64 {
    let frame: u64;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a register is read.
    unsafe {
        std::arch::asm!("mov {}, rbp", out(reg) frame, options(nomem, nostack, preserves_flags));
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a register is read.
    unsafe {
        std::arch::asm!("mov {}, x29", out(reg) frame, options(nomem, nostack, preserves_flags));
    }
    frame
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[inline(never)]
    fn inner(skip: usize) -> Stack {
        std::hint::black_box(Stack::here(std::hint::black_box(skip)))
    }

    #[inline(never)]
    fn outer(skip: usize) -> Stack {
        std::hint::black_box(inner(skip))
    }

    /// Returns whether `address` is in `function`, which is short, and not in the other function.
    fn is_in(address: u64, function: fn(usize) -> Stack) -> bool {
        let begin = |function: fn(usize) -> Stack| (function as *const ()).addr() as u64;
        let own = begin(function);
        let next = [inner as fn(usize) -> Stack, outer].map(begin).into_iter().filter(|other| *other > own).min();
        (own..next.unwrap_or(u64::MAX).min(own + 128)).contains(&address)
    }

    #[test]
    fn own_stack_begins_with_the_caller() {
        let stack = outer(0);
        assert!(is_in(stack.frames()[0], inner), "{stack:x?}");
        assert!(is_in(stack.frames()[1], outer), "{stack:x?}");
        assert!(is_in(outer(1).frames()[0], outer));
        assert!(stack.frames().len() > 4, "the test's own callers are missing: {stack:x?}");
        assert!(outer(FRAMES_MAX * 2).frames().is_empty());
    }

    #[test]
    fn twin_a_walk_without_its_first_frame_is_noticed() {
        assert!(!is_in(outer(1).frames()[0], inner));
    }

    #[test]
    fn a_deep_stack_is_cut_at_its_outer_end() {
        #[inline(never)]
        fn deep(left: usize) -> Stack {
            std::hint::black_box(if left == 0 { inner(0) } else { deep(std::hint::black_box(left - 1)) })
        }
        let stack = deep(FRAMES_MAX * 3);
        assert_eq!(stack.frames().len(), FRAMES_MAX);
        assert!(is_in(stack.frames()[0], inner));
    }

    fn walked(frame: u64, stack: u64) -> usize {
        Stack::of(Registers { instruction: 0x1234, frame, stack }).frames().len()
    }

    fn address_of(words: &[u64]) -> u64 {
        words.as_ptr().expose_provenance() as u64
    }

    #[test]
    fn a_walk_along_an_invalid_chain_ends() {
        #[repr(align(16))]
        struct Words([u64; 8]);
        let mut words = Words([0x5000; 8]);
        let base = address_of(&words.0);
        // A frame that is its own caller.
        words.0[0] = base;
        assert_eq!(walked(base, base), 2, "one return address, then a frame that is not above the last");
        // Two frames that are each other's caller.
        words.0[0] = base + 32;
        words.0[4] = base;
        assert_eq!(walked(base, base), 3);
        // A misaligned frame.
        words.0[0] = base + 33;
        assert_eq!(walked(base, base), 2);
        assert_eq!(walked(base + 1, base), 1);
        // Unreadable addresses.
        for nowhere in [0, 16, 1 << 46, 1 << 47, u64::MAX - 15, u64::MAX - 4095, !15] {
            assert_eq!(walked(nowhere, nowhere.saturating_sub(1 << 20)), 1, "{nowhere:x}");
        }
        // A frame below the stack pointer, and one far above it.
        assert_eq!(walked(base, base + 16), 1);
        assert_eq!(walked(base, base - FRAME_DISTANCE_MAX - 16), 1);
        // No return address.
        words.0[1] = 7;
        assert_eq!(walked(base, base), 1);
        std::hint::black_box(&words);
    }

    #[test]
    #[expect(unsafe_code, reason = "only system calls make a page unreadable")]
    fn a_stack_at_an_unreadable_page_is_walked_to_its_end() {
        let page = usize::try_from(PAGE_BYTES).expect("small");
        // SAFETY: a new mapping of two pages, of which the second is then made unreadable.
        let base = unsafe {
            let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            let base = libc::mmap(std::ptr::null_mut(), page * 2, access, flags, -1, 0);
            assert_ne!(base, libc::MAP_FAILED);
            assert_eq!(libc::mprotect(base.byte_add(page), page, libc::PROT_NONE), 0);
            base
        };
        let first = base.expose_provenance() as u64;
        let end = first + PAGE_BYTES;
        let words = base.cast::<u64>();
        // The last frame of the page is complete. It points to a frame of which half would be on the next page.
        for (index, word) in
            [(page / 8 - 2, end), (page / 8 - 1, 0x7001), (page / 8 - 4, end - 16), (page / 8 - 3, 0x7000)]
        {
            // SAFETY: within the first page.
            unsafe { words.add(index).write(word) };
        }
        let stack = Stack::of(Registers { instruction: 0x1234, frame: end - 32, stack: end - 64 });
        assert_eq!(stack.frames(), [0x1234, 0x6fff, 0x7000]);
        assert_eq!(walked(end - 16, end - 64), 2);
        assert_eq!(walked(end, end - 64), 1);
        // SAFETY: the mapping is not used after this.
        unsafe { libc::munmap(base, page * 2) };
    }

    #[test]
    #[expect(unsafe_code, reason = "Rust has no safe access to errno")]
    fn errno_is_preserved() {
        // SAFETY: errno is this thread's.
        unsafe { *libc::__errno_location() = 4711 };
        assert_eq!(walked(1 << 46, 1 << 46), 1);
        // SAFETY: as above.
        assert_eq!(unsafe { *libc::__errno_location() }, 4711);
    }

    #[test]
    fn this_process_may_read_itself() {
        check().expect("the test environment allows process_vm_readv");
    }

    #[test]
    fn a_thread_knows_its_name() {
        let named = crate::sync::spawn_thread("test-name", || text_of(thread_name()));
        assert_eq!(named.join().expect("no panic"), "test-name");
    }

    proptest! {
        #[test]
        fn any_registers_and_any_memory_give_a_stack(
            words in proptest::collection::vec(any::<u64>(), 64),
            links in proptest::collection::vec((0..63_usize, 0..70_u64), 0..40),
            frame in prop_oneof![any::<u64>(), (0..520_u64)],
            near in any::<bool>(),
        ) {
            let mut words = words;
            let base = address_of(&words);
            for (at, to) in links {
                words[at] = base + to * 8;
            }
            let frame = if near { base.wrapping_add(frame) } else { frame };
            let length = walked(frame, if near { base } else { frame });
            prop_assert!((1..=FRAMES_MAX).contains(&length));
            std::hint::black_box(&words);
        }
    }
}
