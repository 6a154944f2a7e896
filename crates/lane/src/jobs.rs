//! Jobs that helper threads do elsewhere: the simulator does them one at a time on its own thread, in an order and at times that it chooses.

use std::cell::{Cell, RefCell};
use std::io;

use rustix::io::Errno;

type Job = Box<dyn FnOnce()>;

thread_local! {
    static WAITING: RefCell<Vec<Job>> = const { RefCell::new(Vec::new()) };
    static WAITING_MAX: Cell<usize> = const { Cell::new(usize::MAX) };
    static IS_DISK_FULL: Cell<bool> = const { Cell::new(false) };
}

/// Keeps a job until the simulator does it. Returns whether there was room for it.
pub fn defer(job: impl FnOnce() + 'static) -> bool {
    let deferred = WAITING.try_with(|waiting| {
        let mut waiting = waiting.borrow_mut();
        let has_room = waiting.len() < WAITING_MAX.get();
        if has_room {
            waiting.push(Box::new(job));
        }
        has_room
    });
    // At the end of its thread nothing is done any more.
    deferred.unwrap_or(false)
}

/// Drops all that wait: a run has ended.
pub fn clear() {
    WAITING_MAX.set(0);
    let waiting = WAITING.take();
    drop(waiting);
}

/// How many wait.
pub fn count() -> usize {
    WAITING.with_borrow(Vec::len)
}

/// Does one of them, the oldest being number 0. Returns whether there was one.
pub fn run(number: usize) -> bool {
    let job = WAITING.with_borrow_mut(|waiting| (number < waiting.len()).then(|| waiting.remove(number)));
    job.map(|job| job()).is_some()
}

/// How many may wait.
pub fn limit(waiting_max: usize) {
    WAITING_MAX.set(waiting_max);
}

/// From now on the disk is full, or not any more.
pub fn fill_disk(is_full: bool) {
    IS_DISK_FULL.set(is_full);
}

/// Before something is written to a file.
///
/// # Errors
/// The simulated disk is full.
pub fn check_disk() -> io::Result<()> {
    if IS_DISK_FULL.get() { Err(Errno::NOSPC.into()) } else { Ok(()) }
}
