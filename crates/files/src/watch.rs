//! Detects changes: with inotify, or a sweep if there is no inotify.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use flatout_engine::say;

use super::inbox::Inbox;
use super::inotify::Inotify;
use super::{Plan, Watch};

/// The sweep interval if inotify is unavailable.
const FALLBACK_SWEEP: Duration = Duration::from_secs(5);

/// When inotify is tried again.
const RETRY_TIME: Duration = Duration::from_secs(60);

/// How changes are detected at the moment.
pub(crate) struct Watching {
    how: How,
    inbox: Arc<Inbox>,
    next_sweep: Option<Instant>,
    /// When inotify is tried again.
    next_try: Option<Instant>,
    /// Whether the loss of inotify was reported.
    is_lost: bool,
}

enum How {
    Events(Inotify),
    Sweep(Duration),
    Off,
}

impl Watching {
    /// Starts to watch, as the plan says. The following scan adds the folders.
    pub(crate) fn start(plan: &Plan, root: &Path, inbox: Arc<Inbox>) -> Watching {
        let mut watching =
            Watching { how: How::Off, inbox, next_sweep: None, next_try: None, is_lost: false };
        watching.restart(plan, root);
        watching
    }

    /// Restarts, at the same or another root.
    pub(crate) fn restart(&mut self, plan: &Plan, root: &Path) {
        self.next_try = None;
        match plan.watch {
            Watch::Off => self.how = How::Off,
            Watch::Sweep(time) => self.sweep(time),
            Watch::Inotify => match Inotify::start(root, self.inbox.clone()) {
                Ok(inotify) => {
                    self.how = How::Events(inotify);
                    self.next_sweep = None;
                }
                Err(error) => self.lose(root, &error.to_string()),
            },
        }
    }

    fn sweep(&mut self, time: Duration) {
        self.how = How::Sweep(time);
        self.next_sweep = Some(Instant::now() + time);
    }

    /// inotify misses changes: sweeps until it works again, and reports that once.
    pub(crate) fn lose(&mut self, root: &Path, reason: &str) {
        if !self.is_lost {
            let (sweep, retry) = (FALLBACK_SWEEP.as_secs(), RETRY_TIME.as_secs());
            let root = root.display();
            say(format_args!(
                "cannot use inotify for {root}: {reason}; scanning it every {sweep} s instead, and trying inotify again every {retry} s"
            ));
        }
        self.is_lost = true;
        self.sweep(FALLBACK_SWEEP);
        self.next_try = Some(Instant::now() + RETRY_TIME);
    }

    /// A complete scan has ended without lost events.
    pub(crate) fn note_whole_look(&mut self, root: &Path) {
        if self.is_lost && matches!(self.how, How::Events(_)) {
            self.is_lost = false;
            say(format_args!("using inotify for {} again", root.display()));
        }
    }

    /// Handles timers: returns whether everything is to be scanned.
    pub(crate) fn on_time(&mut self, plan: &Plan, root: &Path) -> bool {
        let now = Instant::now();
        if self.next_try.is_some_and(|due| due <= now) {
            self.restart(plan, root);
            return true;
        }
        let How::Sweep(time) = self.how else { return false };
        let is_due = self.next_sweep.is_some_and(|due| due <= now);
        if is_due {
            self.next_sweep = Some(now + time);
        }
        is_due
    }

    /// The time of the next timer.
    pub(crate) fn due(&self) -> Option<Instant> {
        [self.next_sweep, self.next_try].into_iter().flatten().min()
    }

    /// inotify, if it is in use.
    pub(crate) fn inotify(&self) -> Option<&Inotify> {
        match &self.how {
            How::Events(inotify) => Some(inotify),
            How::Sweep(_) | How::Off => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inotify_is_lost_and_found() {
        let inbox = Arc::new(Inbox::default());
        let plan = Plan::default();
        let mut watching = Watching::start(&plan, Path::new("/"), inbox);
        assert!(watching.inotify().is_some() && watching.due().is_none());
        watching.lose(Path::new("/"), "a test");
        assert!(watching.inotify().is_none() && watching.due().is_some());
        assert!(!watching.on_time(&plan, Path::new("/")), "not at once");
        watching.next_sweep = Some(Instant::now());
        assert!(watching.on_time(&plan, Path::new("/")), "the sweep");
        watching.next_try = Some(Instant::now());
        assert!(watching.on_time(&plan, Path::new("/")), "another try");
        assert!(watching.inotify().is_some() && watching.is_lost, "not before it has seen everything");
        watching.note_whole_look(Path::new("/"));
        assert!(!watching.is_lost);
    }
}
