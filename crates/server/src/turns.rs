//! Commands of operators and upgrades take turns: while two processes serve, a command would reach one of them only.
//!
//! ```text
//!            begin            upgrade             replaced
//! Starting ────────> Serving ────────> Upgrading ──────────> Takeover
//!                       ^                  │ failed
//!                       └──────────────────┘
//! ```
//!
//! A command runs while the process is `Serving`, and an upgrade waits until commands in progress have ended. So a new
//! process reads its configuration after every reload that was acknowledged.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::upgrade::{Predecessor, Takeover};

/// How long an upgrade waits for commands in progress, such as a reload that looks up names.
const COMMANDS_TIME_MAX: Duration = Duration::from_secs(30);

/// How long a command of a program waits for a start or an upgrade to end. Meanwhile the program does nothing else.
const TURN_TIME_MAX: Duration = Duration::from_secs(5);

/// How long a process that got a signal to stop waits for an upgrade to end: more than all its steps take by then.
const UPGRADE_END_TIME_MAX: Duration = Duration::from_secs(60);

/// Whose turn it is.
#[derive(Default)]
pub(crate) struct Turns {
    state: Mutex<State>,
    has_changed: Condvar,
}

#[derive(Default)]
struct State {
    phase: Phase,
    /// Commands in progress.
    commands_count: usize,
    /// Signals that wait for their turn, or are handled.
    signals_count: usize,
    /// An upgrade was tried: whoever asked for it may still wait for the response.
    has_tried: bool,
}

#[derive(Default)]
enum Phase {
    /// It does not serve yet, or still takes over from another process.
    #[default]
    Starting,
    /// It is the only process that serves.
    Serving(Predecessor),
    /// Another process is taking over.
    Upgrading,
    /// The process with this id has taken over.
    Takeover(u32),
}

/// The turn of a command, until it is dropped.
pub(crate) struct Turn<'t>(&'t Turns);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.lock().commands_count -= 1;
        self.0.has_changed.notify_all();
    }
}

impl Turns {
    /// From now on, this process is the only one that serves.
    pub(crate) fn begin(&self, former: Predecessor) {
        self.set(Phase::Serving(former));
    }

    /// The turn of a command.
    ///
    /// # Errors
    /// Another process takes over, or has taken over.
    pub(crate) fn take(&self) -> Result<Turn<'_>, String> {
        self.take_now(self.lock())
    }

    /// The turn of a command of a program: waits for a while for the end of a start or of an upgrade.
    ///
    /// # Errors
    /// Another process still takes over, or has taken over.
    pub(crate) fn take_in_time(&self) -> Result<Turn<'_>, String> {
        let is_busy = |state: &mut State| matches!(state.phase, Phase::Starting | Phase::Upgrading);
        let waited = self.has_changed.wait_timeout_while(self.lock(), TURN_TIME_MAX, is_busy);
        self.take_now(waited.unwrap_or_else(PoisonError::into_inner).0)
    }

    fn take_now(&self, mut state: MutexGuard<'_, State>) -> Result<Turn<'_>, String> {
        match state.phase {
            Phase::Serving(_) => Ok(self.begin_command(&mut state)),
            Phase::Starting => Err("the server has not started yet; try again".to_owned()),
            Phase::Upgrading | Phase::Takeover(_) => {
                Err("an upgrade is under way: another process takes over; try again".to_owned())
            }
        }
    }

    /// The turn of a command that nobody can try again, such as one by a signal: waits for the end of a start or of an
    /// upgrade. `act` gets the turn, or the id of the process that has taken over; this process does not end before it
    /// has returned.
    pub(crate) fn take_by_signal(&self, act: impl FnOnce(Result<Turn<'_>, u32>)) {
        let mut state = self.lock();
        state.signals_count += 1;
        let turn = loop {
            match state.phase {
                Phase::Serving(_) => break Ok(self.begin_command(&mut state)),
                Phase::Takeover(pid) => break Err(pid),
                Phase::Starting | Phase::Upgrading => {
                    state = self.has_changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
            }
        };
        drop(state);
        act(turn);
        self.lock().signals_count -= 1;
        self.has_changed.notify_all();
    }

    /// Upgrades: when no command is in progress any more, `replace` is called.
    ///
    /// # Errors
    /// Why this process continues.
    pub(crate) fn upgrade(
        &self,
        replace: impl FnOnce(&Predecessor) -> Result<Takeover, String>,
    ) -> Result<String, String> {
        let mut state = self.lock();
        let former = match std::mem::replace(&mut state.phase, Phase::Upgrading) {
            Phase::Serving(former) => {
                state.has_tried = true;
                former
            }
            other => {
                let why = match other {
                    Phase::Upgrading => "an upgrade is under way already",
                    _ => "the server has not started yet, or has been replaced already",
                };
                state.phase = other;
                return Err(why.to_owned());
            }
        };
        let waited =
            self.has_changed.wait_timeout_while(state, COMMANDS_TIME_MAX, |it| it.commands_count > 0);
        let (state, waited) = waited.unwrap_or_else(PoisonError::into_inner);
        drop(state);
        let result = match waited.timed_out() {
            true => Err("another command, such as a reload, is still in progress; try again".to_owned()),
            false => replace(&former),
        };
        self.set(match &result {
            Ok(replaced) => Phase::Takeover(replaced.pid),
            Err(_) => Phase::Serving(former),
        });
        result.map(|replaced| replaced.message)
    }

    /// Waits until another process has taken over, which may be never.
    pub(crate) fn wait_for_successor(&self) {
        let is_first = |state: &mut State| !matches!(state.phase, Phase::Takeover(_));
        drop(self.has_changed.wait_while(self.lock(), is_first));
    }

    /// Waits for the end of an upgrade, if one is under way, before this process ends: it reports the result, and has
    /// the other process stop too. After an upgrade it waits until the other process has the signals that came here. Returns whether one was tried, so that its response may still be on its way.
    pub(crate) fn end(&self) -> bool {
        let is_busy = |state: &mut State| match state.phase {
            Phase::Upgrading => true,
            Phase::Takeover(_) => state.signals_count > 0,
            Phase::Starting | Phase::Serving(_) => false,
        };
        let waited = self.has_changed.wait_timeout_while(self.lock(), UPGRADE_END_TIME_MAX, is_busy);
        waited.unwrap_or_else(PoisonError::into_inner).0.has_tried
    }

    fn begin_command(&self, state: &mut State) -> Turn<'_> {
        state.commands_count += 1;
        Turn(self)
    }

    fn set(&self, phase: Phase) {
        self.lock().phase = phase;
        self.has_changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic leaves no state incomplete.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
