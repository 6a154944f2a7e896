//! Where tunings by name come from.

use crate::plan::Needs;

/// Whoever knows tunings: says what their effect needs, and makes and takes back changes.
pub trait Tunings {
    /// What the effect of this tuning needs in order to show.
    ///
    /// # Errors
    /// There is no such tuning, or a consent is missing that it needs.
    fn needs(&self, name: &str) -> Result<Needs, String>;

    /// Whether the server has to be started again for it to take.
    fn is_restarting(&self, name: &str) -> bool;

    /// Makes the change; it takes all of it or nothing.
    ///
    /// # Errors
    /// Why it cannot be, here and now.
    fn apply(&mut self, name: &str) -> Result<(), String>;

    /// Takes the change back.
    ///
    /// # Errors
    /// What could not be put back, and what to do.
    fn undo(&mut self, name: &str) -> Result<(), String>;

    /// The shell command that applies these tunings, and the one that takes them back.
    fn commands(&self, names: &[&str]) -> (String, String);
}
