//! Clocks: a server's, read once per turn, and a load generator's, exact to the nanosecond.

use std::future::Future;
use std::io;
use std::num::NonZeroU64;
use std::time::Duration;

use rustix::time::{ClockId, Timespec, clock_gettime};
use tokio::time::error::Elapsed;

/// A point in time or a length of time, in steps of [`TICK`].
pub type Ticks = u32;

/// The precision of deadlines.
pub const TICK: Duration = Duration::from_millis(125);

/// A moment on both clocks that a server needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moment {
    /// Monotonic time since boot.
    pub ticks: Ticks,
    /// Seconds since 1970, for the `Date` field.
    pub unix_seconds: u64,
    /// Offset from [`nanoseconds`] to nanoseconds since 1970, as of the last tick.
    pub unix_offset_ns: u64,
}

const TICK_NS: u64 = TICK.as_nanos() as u64;

impl Moment {
    /// Advances to `now_ns`, a value of [`nanoseconds`]. The seconds since 1970 are read once per tick, and are at
    /// most one tick late: most turns do not call the vDSO.
    #[inline]
    pub fn advance(&mut self, now_ns: u64) {
        let ticks = (now_ns / TICK_NS) as Ticks;
        if ticks != self.ticks {
            let unix = read(ClockId::RealtimeCoarse);
            let unix_offset_ns = since(unix).saturating_sub(now_ns);
            *self = Moment { ticks, unix_seconds: unix.tv_sec as u64, unix_offset_ns };
        }
    }
}

/// Waits on the runtime of this thread, as [`tokio::time::sleep`]. In a simulation, the time is also known to who moves the clock.
pub async fn sleep(time: Duration) {
    #[cfg(feature = "simulation")]
    let _deadline = simulated::Deadline::after(time);
    tokio::time::sleep(time).await;
}

/// Limits the time of a future, as [`tokio::time::timeout`]. In a simulation, the limit is also known to who moves the clock.
///
/// # Errors
/// The time is over.
pub async fn timeout<F: Future>(time: Duration, future: F) -> Result<F::Output, Elapsed> {
    #[cfg(feature = "simulation")]
    let _deadline = simulated::Deadline::after(time);
    tokio::time::timeout(time, future).await
}

/// The simulator's clock, for the thread that runs it; other threads have the kernel's.
#[cfg(feature = "simulation")]
pub mod simulated {
    use std::cell::{Cell, RefCell};
    use std::collections::BTreeSet;
    use std::num::NonZeroU64;
    use std::time::Duration;

    use rustix::time::{ClockId, Timespec};

    /// Seconds since 1970 at which simulated time begins: 2026-01-01.
    pub const UNIX_SECONDS: u64 = 1_767_225_600;

    thread_local! {
        static NOW_NS: Cell<Option<u64>> = const { Cell::new(None) };
        static COUNT: Cell<u64> = const { Cell::new(0) };
        static UNIX_SHIFT_S: Cell<i64> = const { Cell::new(0) };
        static SLICE_LOOKS: Cell<Option<NonZeroU64>> = const { Cell::new(None) };
        static LOOKS: Cell<u64> = const { Cell::new(0) };

        /// The time and a number of each.
        static DEADLINES: RefCell<BTreeSet<(u64, u64)>> = const { RefCell::new(BTreeSet::new()) };
        static DEADLINES_COUNT: Cell<u64> = const { Cell::new(0) };
    }

    /// A time that a task of this thread waits for, as long as it does.
    pub(super) struct Deadline(u64, u64);

    impl Deadline {
        /// On a thread that has a clock of its own.
        pub(super) fn after(time: Duration) -> Option<Deadline> {
            let at_ns = NOW_NS.get()?.saturating_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
            DEADLINES_COUNT.set(DEADLINES_COUNT.get() + 1);
            let number = DEADLINES_COUNT.get();
            DEADLINES.with_borrow_mut(|all| all.insert((at_ns, number)));
            Some(Deadline(at_ns, number))
        }
    }

    impl Drop for Deadline {
        fn drop(&mut self) {
            // At the end of a thread it may be gone before its tasks.
            let _ = DEADLINES.try_with(|all| all.borrow_mut().remove(&(self.0, self.1)));
        }
    }

    /// The first time that a task of this thread waits for.
    pub fn next_deadline_ns() -> Option<u64> {
        DEADLINES.with_borrow(|all| all.first().map(|(at_ns, _)| *at_ns))
    }

    /// Sets the machine's clock forward or back by this many seconds. The time since boot does not change.
    pub fn shift_unix(seconds: i64) {
        UNIX_SHIFT_S.set(UNIX_SHIFT_S.get() + seconds);
    }

    /// Simulated time does not pass during a worker's turn, so no time slice would ever end. With `Some(n)`, every n-th check ends one;
    /// with `None`, none does.
    pub fn set_slices(looks: Option<NonZeroU64>) {
        SLICE_LOOKS.set(looks);
        LOOKS.set(0);
    }

    pub(super) fn ends_slice() -> bool {
        let Some(looks) = SLICE_LOOKS.get() else { return false };
        LOOKS.set(LOOKS.get() + 1);
        LOOKS.get() % looks == 0
    }

    /// What is a random number elsewhere: counted on this thread, so that a run can be repeated.
    pub fn next_number() -> u64 {
        COUNT.set(COUNT.get() + 1);
        COUNT.get()
    }

    /// Sets this thread's clock to nanoseconds since boot; `None` is the kernel's clock again.
    pub fn set(now_ns: Option<u64>) {
        NOW_NS.set(now_ns);
    }

    /// Whether this thread has a clock of its own.
    pub fn is_set() -> bool {
        NOW_NS.get().is_some()
    }

    pub(super) fn read(clock: ClockId) -> Option<Timespec> {
        let now_ns = NOW_NS.get()?;
        let is_unix = matches!(clock, ClockId::Realtime | ClockId::RealtimeCoarse);
        let unix_s = || UNIX_SECONDS.saturating_add_signed(UNIX_SHIFT_S.get());
        let seconds = now_ns / 1_000_000_000 + if is_unix { unix_s() } else { 0 };
        Some(Timespec { tv_sec: seconds as i64, tv_nsec: (now_ns % 1_000_000_000) as i64 })
    }
}

/// Reads a clock of the kernel; one call into the vDSO.
#[inline]
fn read(clock: ClockId) -> Timespec {
    #[cfg(feature = "simulation")]
    if let Some(time) = simulated::read(clock) {
        return time;
    }
    clock_gettime(clock)
}

/// Reads both clocks, the kernel's coarse ones (1 to 4 ms exact). Two calls into the vDSO, no system call.
#[inline]
pub fn now() -> Moment {
    let monotonic = read(ClockId::MonotonicCoarse);
    let milliseconds = monotonic.tv_sec as u64 * 1000 + monotonic.tv_nsec as u64 / 1_000_000;
    let unix = read(ClockId::RealtimeCoarse);
    Moment {
        ticks: (milliseconds / TICK.as_millis() as u64) as Ticks,
        unix_seconds: unix.tv_sec as u64,
        unix_offset_ns: since(unix).saturating_sub(since(monotonic)),
    }
}

/// Nanoseconds since boot. One call into the vDSO, some 20 ns.
#[inline]
pub fn nanoseconds() -> u64 {
    since(read(ClockId::Monotonic))
}

/// Whether a slice of time that ends at this value of [`nanoseconds`] is over.
#[inline]
pub fn is_over(ends_ns: u64) -> bool {
    is_over_at(nanoseconds(), ends_ns)
}

/// The same at this value of [`nanoseconds`].
#[inline]
pub fn is_over_at(now_ns: u64, ends_ns: u64) -> bool {
    #[cfg(feature = "simulation")]
    if simulated::ends_slice() {
        return true;
    }
    now_ns > ends_ns
}

/// Nanoseconds since 1970, for comparison with times of other programs.
pub fn unix_nanoseconds() -> u64 {
    since(read(ClockId::Realtime))
}

/// Milliseconds since 1970 from the kernel's coarse clock: at most 4 late. One call into the vDSO, the cheapest one.
#[inline]
pub fn unix_milliseconds() -> u64 {
    since(read(ClockId::RealtimeCoarse)) / 1_000_000
}

/// CPU time of this thread, user and kernel. Costs one system call.
pub fn thread_cpu() -> Duration {
    Duration::from_nanos(since(clock_gettime(ClockId::ThreadCPUTime)))
}

/// CPU time of a process with all its threads, including exited ones, user and kernel; exact to the nanosecond. Costs
/// one system call.
///
/// # Errors
/// There is no such process.
pub fn process_cpu(pid: u32) -> io::Result<Duration> {
    let mut clock: libc::clockid_t = 0;
    // SAFETY: it writes one clock id to the place it is given, which is ours.
    match unsafe { libc::clock_getcpuclockid(pid as libc::pid_t, &mut clock) } {
        0 => {}
        code => return Err(io::Error::from_raw_os_error(code)),
    }
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: it writes one time to the place it is given, which is ours.
    match unsafe { libc::clock_gettime(clock, &mut time) } {
        0 => Ok(Duration::new(time.tv_sec as u64, time.tv_nsec as u32)),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Makes this thread's timers fire on time, instead of up to 50 µs late (`PR_SET_TIMERSLACK`). If the kernel refuses,
/// they stay as they were.
pub fn sharpen_timers() {
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
}

/// The length of `time`, rounded up, at least one tick.
pub fn ticks(time: Duration) -> Ticks {
    let ticks = time.as_nanos().div_ceil(TICK.as_nanos());
    // A quarter of the range is 4 years: far enough for a deadline, and sums cannot wrap.
    ticks.clamp(1, (Ticks::MAX / 4) as u128) as Ticks
}

fn since(time: Timespec) -> u64 {
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_round_up() {
        assert_eq!(ticks(Duration::ZERO), 1);
        assert_eq!(ticks(Duration::from_millis(125)), 1);
        assert_eq!(ticks(Duration::from_millis(126)), 2);
        assert_eq!(ticks(Duration::MAX), Ticks::MAX / 4);
    }

    #[test]
    fn work_takes_cpu_time_and_waiting_does_not() {
        let (began, cpu) = (nanoseconds(), thread_cpu());
        std::thread::sleep(Duration::from_millis(20));
        let (waited, worked) = (nanoseconds() - began, thread_cpu() - cpu);
        assert!(waited >= 20_000_000 && worked < Duration::from_millis(15), "{waited} {worked:?}");
    }

    #[test]
    fn a_moment_follows_the_exact_clock() {
        let mut moment = Moment { ticks: 0, unix_seconds: 0, unix_offset_ns: 0 };
        moment.advance(nanoseconds());
        assert!(
            moment.ticks.abs_diff(now().ticks) <= 1 && moment.unix_seconds.abs_diff(now().unix_seconds) <= 1
        );
        let seconds = moment.unix_seconds;
        moment.advance((u64::from(moment.ticks) + 3) * TICK_NS);
        assert!(moment.unix_seconds.abs_diff(seconds) <= 1);
    }

    #[test]
    fn the_wall_clock_is_read() {
        let by_std = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
        assert!(now().unix_seconds.abs_diff(by_std) <= 1);
    }
}
