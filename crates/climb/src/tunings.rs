//! The interface to tunings by name.

use flatout_tune::{Begun, Commands, Needs};
use serde::{Deserialize, Serialize};

/// Knows what tunings need, how to apply and how to undo them.
pub trait Tunings {
    /// What the effect of this tuning needs to be measurable.
    ///
    /// # Errors
    /// There is no such tuning, or it needs consent that was not given.
    fn needs(&self, name: &str) -> Result<Needs, String>;

    /// Whether it needs a restart of the server.
    fn is_restarting(&self, name: &str) -> bool;

    /// Whether it is about another program's burden, which stays: applying it adds an equal one.
    fn is_burden(&self, name: &str) -> bool;

    /// Applies the change, all of it or nothing.
    ///
    /// # Errors
    /// Why it cannot be applied here and now.
    fn apply(&mut self, name: &str) -> Result<(), String>;

    /// Undoes the change.
    ///
    /// # Errors
    /// What could not be restored, and what to do.
    fn undo(&mut self, name: &str) -> Result<(), String>;

    /// Records in the journal that a change by commands is about to be applied, so that it is undone however this
    /// process ends.
    ///
    /// # Errors
    /// It cannot be recorded; then it must not be applied.
    fn begin(&mut self, name: &str, commands: Commands) -> Result<Begun, String>;

    /// Records that its first command has finished.
    ///
    /// # Errors
    /// It cannot be recorded.
    fn made(&mut self, begun: &Begun) -> Result<(), String>;

    /// Removes the record: the change was undone, or stays because its user wanted that.
    ///
    /// # Errors
    /// It cannot be removed.
    fn forget(&mut self, begun: &Begun) -> Result<(), String>;

    /// The shell command that applies these tunings, and the one that undoes them.
    fn commands(&self, names: &[&str]) -> (String, String);

    /// Removes another program's burdens for good, if that was requested. For each one, returns what was done and how
    /// to undo it, or why it still exists; empty if it was not requested.
    fn relieve(&mut self, name: &str) -> Vec<Result<String, String>>;

    /// Whose burden it is and how it could be removed, as text.
    fn holders(&self, name: &str) -> String;

    /// The state of a tuning that needs a reboot, and what to do for it.
    ///
    /// # Errors
    /// Why there is nothing to do, or nothing known.
    fn before_reboot(&self, name: &str) -> Result<(Reading, Vec<String>), String>;

    /// Checks that it is in effect in this boot.
    ///
    /// # Errors
    /// Its state instead.
    fn has_taken(&self, name: &str, before: &Reading) -> Result<(), String>;

    /// What to do so that the next boot has the old state again.
    fn back_at_reboot(&self, name: &str) -> Vec<String>;
}

/// The state of a tuning.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reading {
    /// As text.
    pub value: String,
    /// The counter that decreases when it is in effect.
    pub count: u64,
}
