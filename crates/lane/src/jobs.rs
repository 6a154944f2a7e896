//! Jobs that helper threads do elsewhere: the simulator does them one at a time on its own thread, in an order and at times that it chooses.
//! Also what their disk does wrong.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io;

use rustix::io::Errno;

type Job = Box<dyn FnOnce()>;

/// What a write to the disk does instead of writing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiskFault {
    /// There is no room.
    Full,
    /// A part is written; then the disk reports an error.
    Torn,
}

thread_local! {
    static WAITING: RefCell<Vec<Job>> = const { RefCell::new(Vec::new()) };
    static REFUSED: RefCell<Vec<Job>> = const { RefCell::new(Vec::new()) };
    static WAITING_MAX: Cell<usize> = const { Cell::new(usize::MAX) };
    static FAULT: Cell<Option<DiskFault>> = const { Cell::new(None) };
    static IS_COLD: Cell<bool> = const { Cell::new(false) };
    static HAS_CRASHED: Cell<bool> = const { Cell::new(false) };
    static SYNCED: RefCell<HashMap<u32, u64>> = RefCell::default();
}

/// Keeps a job until the simulator does it. Returns whether there was room for it.
pub fn defer(job: impl FnOnce() + 'static) -> bool {
    has_room() && defer_surely(job)
}

/// The same for a job whose owner would wait for room. Returns `false` at the end of the thread, when nothing is done any more.
pub fn defer_surely(job: impl FnOnce() + 'static) -> bool {
    WAITING.try_with(|waiting| waiting.borrow_mut().push(Box::new(job))).is_ok()
}

/// Whether one more may wait.
pub fn has_room() -> bool {
    WAITING.try_with(|waiting| waiting.borrow().len() < WAITING_MAX.get()).unwrap_or(false)
}

/// Calls this once when the next job has ended: there is room again for one that was refused.
pub fn when_room(call: impl FnOnce() + 'static) {
    REFUSED.with_borrow_mut(|refused| refused.push(Box::new(call)));
}

/// Drops all that wait: a run has ended.
pub fn clear() {
    WAITING_MAX.set(0);
    let waiting = (WAITING.take(), REFUSED.take());
    drop(waiting);
}

/// How many wait.
pub fn count() -> usize {
    WAITING.with_borrow(Vec::len)
}

/// Does one of them, the oldest being number 0. Returns whether there was one.
pub fn run(number: usize) -> bool {
    let job = WAITING.with_borrow_mut(|waiting| (number < waiting.len()).then(|| waiting.remove(number)));
    let Some(job) = job else { return false };
    job();
    REFUSED.take().into_iter().for_each(|call| call());
    true
}

/// How many may wait.
pub fn limit(waiting_max: usize) {
    WAITING_MAX.set(waiting_max);
}

/// From now on writes fail like this, or do not fail any more.
pub fn set_disk_fault(fault: Option<DiskFault>) {
    FAULT.set(fault);
}

/// What the next write does.
pub fn disk_fault() -> Option<DiskFault> {
    FAULT.get()
}

/// Before something is written to a file.
///
/// # Errors
/// The simulated disk fails.
pub fn check_disk() -> io::Result<()> {
    match FAULT.get() {
        None => Ok(()),
        Some(DiskFault::Full) => Err(Errno::NOSPC.into()),
        Some(DiskFault::Torn) => Err(Errno::IO.into()),
    }
}

/// Sets whether reads miss the page cache.
pub fn set_cold(is_cold: bool) {
    IS_COLD.set(is_cold);
}

/// Whether a read would block.
pub fn is_cold() -> bool {
    IS_COLD.get()
}

/// The process is killed: whatever its parts do while they are dropped, they write nothing. `false`: the next one begins.
pub fn set_crashed(has_crashed: bool) {
    HAS_CRASHED.set(has_crashed);
    if has_crashed {
        clear();
    }
}

/// Parts of a process are killed while others go on: whatever they do while they are dropped, they write nothing. Jobs that wait stay, because
/// nobody knows whose they are.
pub fn drop_killed(parts: impl FnOnce()) {
    HAS_CRASHED.set(true);
    parts();
    HAS_CRASHED.set(false);
}

/// Whether the process has been killed.
pub fn has_crashed() -> bool {
    HAS_CRASHED.get()
}

/// Records how many bytes of this file survive a loss of power.
pub fn note_synced(file: u32, bytes: u64) {
    SYNCED.with_borrow_mut(|synced| synced.insert(file, bytes));
}

/// The bytes of a file that survive a loss of power.
pub fn synced(file: u32) -> u64 {
    SYNCED.with_borrow(|synced| synced.get(&file).copied().unwrap_or(0))
}
