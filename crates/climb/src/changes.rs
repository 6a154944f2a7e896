//! The changes that are in effect: applied one on top of the other, and undone in reverse.

use std::time::Duration;

use flatout_trial::Set;
use flatout_tune::{Begun, Commands};

use crate::command;
use crate::plan::{Attempt, Error, Rung, Variant};
use crate::tuned::Tuned;
use flatout_tune::Needs;

/// All rungs, and which of them are applied.
pub(crate) struct Changes<'p, 'h> {
    pub(crate) tunings: &'p mut Tuned<'h>,
    rungs: &'p [Rung],
    on: Vec<bool>,
    /// Journal records of applied changes by commands.
    begun: Vec<Option<Begun>>,
}

/// The environment variables of commands.
pub(crate) type Environment = [(&'static str, String)];

/// Time limit of a command that applies or undoes a change.
const CHANGE_TIME_MAX: Duration = Duration::from_secs(30);

impl<'p, 'h> Changes<'p, 'h> {
    /// With no change applied.
    pub(crate) fn new(rungs: &'p [Rung], tunings: &'p mut Tuned<'h>) -> Changes<'p, 'h> {
        let begun = rungs.iter().map(|_| None).collect();
        Changes { tunings, rungs, on: vec![false; rungs.len()], begun }
    }

    /// Which rungs are applied, one `bool` each.
    pub(crate) fn on(&self) -> &[bool] {
        &self.on
    }

    /// Whether none is applied.
    pub(crate) fn are_none(&self) -> bool {
        !self.on.contains(&true)
    }

    /// Applies exactly these changes. To change an early one, later ones are undone and applied again, so that each
    /// finds the same state as the first time.
    ///
    /// # Errors
    /// What could not be undone.
    pub(crate) fn change_to(&mut self, on: &[bool], environment: &Environment) -> Result<Set, Error> {
        let Some(first) = self.on.iter().zip(on).position(|(is, to)| is != to) else { return Ok(Set::Done) };
        self.take_back_from(first, environment)?;
        let rungs = self.rungs;
        for (at, rung) in rungs.iter().enumerate().skip(first) {
            if on[at] {
                match self.make(at, rung, environment) {
                    Set::Done => self.on[at] = true,
                    refused => return Ok(refused),
                }
            }
        }
        Ok(Set::Done)
    }

    /// What the effect of a rung needs to be measurable.
    pub(crate) fn needs(&self, rung: &Rung) -> Needs {
        match &rung.change {
            Attempt::Tuning => self.tunings.needs(&rung.name).unwrap_or(rung.needs),
            Attempt::Variant(_) | Attempt::Edit(_) | Attempt::Skip(_) => rung.needs,
        }
    }

    /// Applies one rung. A change that needs a reboot was applied by the boot, and the next boot undoes it.
    fn make(&mut self, at: usize, rung: &Rung, environment: &Environment) -> Set {
        if self.needs(rung) == Needs::Reboot {
            return Set::Done;
        }
        let variant = match &rung.change {
            Attempt::Tuning => {
                return self.tunings.apply(&rung.name).map_or_else(Set::Refused, |()| Set::Done);
            }
            Attempt::Skip(why) => return Set::Refused(why.clone()),
            // It is applied when the server is started.
            Attempt::Edit(_) => return Set::Done,
            Attempt::Variant(variant) => variant,
        };
        let Some(set) = &variant.set else { return Set::Done };
        let unset = variant.unset.clone().unwrap_or_else(|| ":".to_owned());
        let begun =
            match commands(set, &unset, environment).and_then(|all| self.tunings.begin(&rung.name, all)) {
                Ok(begun) => begun,
                Err(why) => return Set::Refused(why),
            };
        let made =
            command::succeed(set, environment, CHANGE_TIME_MAX).and_then(|()| self.tunings.made(&begun));
        let Err(why) = made else {
            self.begun[at] = Some(begun);
            return Set::Done;
        };
        // It may be half applied. Undoing what was not applied may fail.
        let _ = command::succeed(&unset, environment, CHANGE_TIME_MAX);
        match self.tunings.forget(&begun) {
            Ok(()) => Set::Refused(why),
            Err(forgotten) => Set::Refused(format!("{why}; {forgotten}")),
        }
    }

    /// Forgets changes that stay for good: the user was told how to undo them.
    pub(crate) fn keep(&mut self) -> Result<(), Error> {
        let begun: Vec<Begun> = self.begun.iter_mut().filter_map(Option::take).collect();
        begun.iter().try_for_each(|begun| self.tunings.forget(begun)).map_err(Error::Change)
    }

    /// Undoes one rung.
    fn take_back(&mut self, at: usize, rung: &Rung, environment: &Environment) -> Result<(), String> {
        if self.needs(rung) == Needs::Reboot {
            return Ok(());
        }
        match &rung.change {
            Attempt::Tuning => self.tunings.undo(&rung.name),
            Attempt::Variant(Variant { unset: Some(unset), .. }) => {
                command::succeed(unset, environment, CHANGE_TIME_MAX).and_then(|()| {
                    let begun = self.begun[at].take();
                    begun.map_or(Ok(()), |begun| self.tunings.forget(&begun))
                })
            }
            Attempt::Variant(_) | Attempt::Edit(_) | Attempt::Skip(_) => Ok(()),
        }
        .map_err(|why| format!("`{}` could not be undone: {why}", rung.name))
    }

    /// Undoes everything applied from `first` on, in reverse order. Continues after a failure, and reports all
    /// failures.
    fn take_back_from(&mut self, first: usize, environment: &Environment) -> Result<(), Error> {
        let mut failed = Vec::new();
        let rungs = self.rungs;
        for (at, rung) in rungs.iter().enumerate().skip(first).rev() {
            if self.on[at] {
                match self.take_back(at, rung, environment) {
                    Ok(()) => self.on[at] = false,
                    Err(why) => failed.push(why),
                }
            }
        }
        if failed.is_empty() { Ok(()) } else { Err(Error::Change(failed.join("; "))) }
    }
}

/// The journal entry of a change by commands.
fn commands(set: &str, unset: &str, environment: &Environment) -> Result<Commands, String> {
    let folder =
        std::env::current_dir().map_err(|error| format!("cannot find the current folder: {error}"))?;
    let variables = environment.iter().map(|(name, value)| ((*name).to_owned(), value.clone()));
    Ok(Commands {
        set: set.to_owned(),
        unset: unset.to_owned(),
        folder: folder.display().to_string(),
        variables: variables.collect(),
    })
}
