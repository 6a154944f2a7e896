//! States that cannot be, unless this program is wrong.

use std::fmt;
use std::panic::Location;
use std::sync::atomic::{AtomicU64, Ordering};

use flatout_lane::clock;

/// The bugs of this process.
static BUGS: Bugs = Bugs::new();

/// What a process has found out about its own mistakes.
struct Bugs {
    count: AtomicU64,
    /// The second of the last line in the log.
    reported_at_s: AtomicU64,
}

/// Reports a state that cannot be: this program is wrong, not a client, a file or a setting. Then the caller goes on in
/// a safe way, such as 500 or dropping what it has; a bug must neither be hidden nor end a worker.
///
/// It counts the bug in the metric `flatout_bugs_total`, and logs the place and the message, at most once a second.
///
/// # Panics
/// In builds with debug assertions and in the simulator, so that tests find the bug.
///
/// ```no_run
/// use flatout_engine::bug;
///
/// # fn first(routes: &[u16]) -> u16 {
/// let Some(route) = routes.first() else {
///     bug!("a site without routes");
///     return 500;
/// };
/// # *route
/// # }
/// ```
#[macro_export]
macro_rules! bug {
    ($($message:tt)+) => {
        $crate::report_bug(::core::format_args!($($message)+))
    };
}

/// What [`bug!`] calls.
///
/// # Panics
/// See there.
#[cold]
#[inline(never)]
#[track_caller]
pub fn report_bug(message: fmt::Arguments<'_>) {
    let place = Location::caller();
    // A second panic in a destructor would end the process, and hide the first one.
    assert!(!panics() || std::thread::panicking(), "bug at {place}: {message}");
    if let Some(line) = BUGS.count(place, message, clock::nanoseconds() / 1_000_000_000) {
        crate::say::report(crate::say::Severity::Error, format_args!("{line}"));
    }
}

/// How many bugs this process has reported; the metric `flatout_bugs_total`.
pub fn bugs_total() -> u64 {
    BUGS.count.load(Ordering::Relaxed)
}

fn panics() -> bool {
    #[cfg(feature = "simulation")]
    if clock::simulated::is_set() {
        return true;
    }
    cfg!(debug_assertions)
}

impl Bugs {
    const fn new() -> Bugs {
        Bugs { count: AtomicU64::new(0), reported_at_s: AtomicU64::new(u64::MAX) }
    }

    /// Counts a bug; the line for the log if there was none yet in this second.
    fn count(&self, place: &Location<'_>, message: fmt::Arguments<'_>, now_s: u64) -> Option<String> {
        let count = self.count.fetch_add(1, Ordering::Relaxed) + 1;
        if self.reported_at_s.swap(now_s, Ordering::Relaxed) == now_s {
            return None;
        }
        Some(format!(
            "bug in flatout at {place}: {message}; flatout_bugs_total is {count}; please report this line"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The part of a release build, which a build for tests does not reach.
    #[test]
    fn bugs_are_counted_and_logged_once_a_second() {
        let bugs = Bugs::new();
        let place = Location::caller();
        let first = bugs.count(place, format_args!("no head"), 7).unwrap();
        assert!(first.contains(concat!(file!(), ":")) && first.contains(": no head; "), "{first}");
        assert_eq!(bugs.count(place, format_args!("no head"), 7), None);
        let third = bugs.count(place, format_args!("no body"), 8).unwrap();
        assert!(third.contains("no body; flatout_bugs_total is 3;"), "{third}");
    }

    #[test]
    #[cfg(debug_assertions)]
    fn bugs_panic_in_tests_with_the_place_and_the_message() {
        let line = line!() + 1;
        let panic = std::panic::catch_unwind(|| crate::bug!("route {} is missing", 3)).unwrap_err();
        let message = panic.downcast::<String>().unwrap();
        assert!(message.contains(&format!("{}:{line}:", file!())), "{message}");
        assert!(message.ends_with(": route 3 is missing"), "{message}");
    }

    #[test]
    #[cfg(not(debug_assertions))]
    fn bugs_do_not_panic_in_a_release() {
        let before = bugs_total();
        crate::bug!("route {} is missing", 3);
        assert!(bugs_total() > before);
    }

    #[test]
    #[cfg(feature = "simulation")]
    fn bugs_panic_in_the_simulator() {
        let panic = std::panic::catch_unwind(|| {
            clock::simulated::set(Some(0));
            crate::bug!("seen");
        });
        clock::simulated::set(None);
        assert!(panic.is_err());
    }

    #[test]
    fn bugs_in_destructors_do_not_end_the_process() {
        struct Broken;
        impl Drop for Broken {
            fn drop(&mut self) {
                crate::bug!("in a destructor");
            }
        }
        let before = bugs_total();
        let panic = std::panic::catch_unwind(|| {
            let _broken = Broken;
            panic!("the first");
        });
        assert_eq!(panic.unwrap_err().downcast_ref::<&str>(), Some(&"the first"));
        assert!(bugs_total() > before);
    }
}
