//! Where tunings by name come from.

use flatout_tune::{Begun, Commands, Needs};
use serde::{Deserialize, Serialize};

/// Knows tunings: what their effect needs, how they are made and undone.
pub trait Tunings {
    /// What the effect of this tuning needs in order to show.
    ///
    /// # Errors
    /// There is no such tuning, or a consent is missing that it needs.
    fn needs(&self, name: &str) -> Result<Needs, String>;

    /// Whether the server has to be started again for it to take.
    fn is_restarting(&self, name: &str) -> bool;

    /// Whether it is about a burden of somebody else's, which stays: to apply it adds an equal one.
    fn is_burden(&self, name: &str) -> bool;

    /// Makes the change; it takes all of it or nothing.
    ///
    /// # Errors
    /// Why it cannot be, here and now.
    fn apply(&mut self, name: &str) -> Result<(), String>;

    /// Takes the change back.
    ///
    /// # Errors
    /// What could not be restored, and what to do.
    fn undo(&mut self, name: &str) -> Result<(), String>;

    /// Writes down that a change by commands is about to be made, so that it is undone whatever ends this process.
    ///
    /// # Errors
    /// It cannot be written down; then it must not be made.
    fn begin(&mut self, name: &str, commands: Commands) -> Result<Begun, String>;

    /// Notes that its first command has ended.
    ///
    /// # Errors
    /// It cannot be written down.
    fn made(&mut self, begun: &Begun) -> Result<(), String>;

    /// Forgets it: it was undone, or it stays because its user wanted that.
    ///
    /// # Errors
    /// It cannot be forgotten.
    fn forget(&mut self, begun: &Begun) -> Result<(), String>;

    /// The shell command that applies these tunings, and the one that undoes them.
    fn commands(&self, names: &[&str]) -> (String, String);

    /// Removes somebody else's burdens for good, if that was requested. For each it says what was done and how to get it
    /// back, or why it is still there; nothing if it was not requested.
    fn relieve(&mut self, name: &str) -> Vec<Result<String, String>>;

    /// Whose burden it is and how it could be removed, for people.
    fn holders(&self, name: &str) -> String;

    /// How a tuning stands that takes a reboot, and what there is to do for it.
    ///
    /// # Errors
    /// Why there is nothing to do, or nothing that is known.
    fn before_reboot(&self, name: &str) -> Result<(Reading, Vec<String>), String>;

    /// Whether it has taken with this boot.
    ///
    /// # Errors
    /// How it stands instead.
    fn has_taken(&self, name: &str, before: &Reading) -> Result<(), String>;

    /// What there is to do for it to be as it was with the next boot.
    fn back_at_reboot(&self, name: &str) -> Vec<String>;
}

/// How a tuning stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reading {
    /// For people.
    pub value: String,
    /// The counter that falls when it takes.
    pub count: u64,
}
