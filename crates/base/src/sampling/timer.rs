//! A timer on the CPU time of one thread. It sends SIGPROF to that thread.
//!
//! The kernel checks these timers once per tick, so a thread has at most one sample per tick, at any sampling rate. The
//! overrun of the timer's signal counts the periods that have passed without a signal, so the total number of periods
//! is correct on average. The kernel's own work for a thread counts too, and is charged to the stack that called the
//! kernel. Called by `profile::cpu`.

#![expect(unsafe_code, reason = "system calls that only the C library wraps")]

use std::time::Duration;

/// The timer. Dropping it deletes it.
#[derive(Debug)]
pub struct ThreadTimer(libc::timer_t);

// SAFETY: a timer's number belongs to the process. Any thread may query the timer and delete it.
unsafe impl Send for ThreadTimer {}

impl ThreadTimer {
    /// Starts a timer that sends SIGPROF with the number `session` to thread `tid` of this process: first when the
    /// thread has used `first` of CPU time from now on, then after each `period` of CPU time. Neither may be zero.
    ///
    /// # Errors
    /// `EINVAL` or `ESRCH` if the thread does not exist (any more); `EAGAIN` if the user of the process has too
    /// many timers and pending signals (`RLIMIT_SIGPENDING`).
    pub fn start(tid: i32, first: Duration, period: Duration, session: u64) -> std::io::Result<ThreadTimer> {
        // The kernel's identifier of a thread's CPU clock (MAKE_THREAD_CPUCLOCK of `linux/posix-timers.h`).
        let clock: libc::clockid_t = ((!tid) << 3) | 6;
        // SAFETY: all zeros is a valid value: these are numbers and a pointer.
        let mut event: libc::sigevent = unsafe { std::mem::zeroed() };
        event.sigev_notify = libc::SIGEV_THREAD_ID;
        event.sigev_signo = libc::SIGPROF;
        event.sigev_notify_thread_id = tid;
        event.sigev_value =
            libc::sigval { sival_ptr: std::ptr::without_provenance_mut(usize::try_from(session).unwrap_or(0)) };
        let mut timer: libc::timer_t = std::ptr::null_mut();
        // SAFETY: both pointers are to this function's variables.
        if unsafe { libc::timer_create(clock, &raw mut event, &raw mut timer) } != 0 {
            return Err(std::io::Error::last_os_error());
        }
        let timer = ThreadTimer(timer);
        let when = libc::itimerspec { it_interval: timespec(period), it_value: timespec(first) };
        // SAFETY: the timer exists, and `when` is this function's.
        if unsafe { libc::timer_settime(timer.0, 0, &raw const when, std::ptr::null_mut()) } != 0 {
            return Err(std::io::Error::last_os_error());
        }
        Ok(timer)
    }

    /// Returns whether the timer's thread still lives. After a thread's end the kernel reports its timer as not set,
    /// even if a later thread has the same number.
    #[must_use]
    pub fn is_live(&self) -> bool {
        // SAFETY: all zeros is a valid value: these are numbers.
        let mut when: libc::itimerspec = unsafe { std::mem::zeroed() };
        // SAFETY: the timer exists, and `when` is this function's.
        let asked = unsafe { libc::timer_gettime(self.0, &raw mut when) };
        asked == 0 && (when.it_value.tv_sec, when.it_value.tv_nsec) != (0, 0)
    }
}

impl Drop for ThreadTimer {
    fn drop(&mut self) {
        // SAFETY: the timer exists, and is not used after this.
        let deleted = unsafe { libc::timer_delete(self.0) };
        debug_assert_eq!(deleted, 0, "`start` created the timer");
    }
}

fn timespec(duration: Duration) -> libc::timespec {
    libc::timespec {
        tv_sec: libc::time_t::try_from(duration.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: libc::c_long::from(duration.subsec_nanos().cast_signed()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn a_timer_knows_whether_its_thread_lives() {
        let (tid_sender, tid) = channel();
        let (end, ended) = channel::<()>();
        let thread = crate::sync::spawn_thread("test-timer", move || {
            tid_sender.send(rustix::thread::gettid().as_raw_nonzero().get()).expect("the test waits for it");
            let _ = ended.recv();
        });
        let tid = tid.recv().expect("the thread sends its number");
        // No profile has session 0, and the thread does not use an hour of CPU time.
        let hour = Duration::from_hours(1);
        let timer = ThreadTimer::start(tid, hour, hour, 0).expect("the thread lives");
        assert!(timer.is_live());
        drop(end);
        thread.join().expect("no panic");
        // The kernel still knows a joined thread for a moment.
        let deadline = crate::clock::now() + Duration::from_secs(30);
        while timer.is_live() {
            assert!(crate::clock::now() < deadline, "the thread does not end");
            std::thread::yield_now();
        }
        assert!(ThreadTimer::start(tid, hour, hour, 0).is_err(), "the thread has ended");
    }
}
