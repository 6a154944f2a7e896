//! From tunings to changes: the state of all tunings, and what applying one would change.

use std::collections::BTreeMap;

use crate::change::Change;
use crate::document::{Document, documents};
use crate::error::{Error, Unknown};
use crate::host::Host;
use crate::served::Served;
use crate::settings::Setting;
use crate::tuning::{About, Advice, Proof, Tuning};
use crate::tunings::TUNINGS;

/// The state of one tuning on this machine.
pub struct Finding {
    /// The tuning.
    pub about: &'static About,
    /// Its current value.
    pub value: Result<String, Unknown>,
    /// What should be done about it.
    pub advice: Result<Advice, Unknown>,
    /// The evidence that it needs to be suggested.
    pub proof: Proof,
    /// Its counter: the change per second while it was watched, or the total since boot.
    pub moved: Option<Movement>,
    /// Whether an effect can be measured on the path to this server.
    pub is_measurable: bool,
}

/// The effect of applying one tuning.
pub struct Planned {
    /// The tuning.
    pub about: &'static About,
    /// A one-line description.
    pub what: String,
    /// The changes.
    pub changes: Vec<Change>,
    /// The files that would make them persistent.
    pub documents: Vec<Document>,
    /// Which of them cannot be persistent, and why.
    pub not_kept: Vec<String>,
    /// What to do afterwards for them to take effect; empty if nothing.
    pub then: String,
}

/// The change of a counter.
#[derive(Debug, Clone, PartialEq)]
pub struct Movement {
    /// Its name in the kernel.
    pub counter: String,
    /// The difference.
    pub by: f64,
    /// Whether it is per second of the time it was watched.
    pub is_rate: bool,
}

/// The counters of all tunings at one time.
pub type Counts = BTreeMap<&'static str, u64>;

impl Finding {
    /// Whether the evidence supports it: a wrong setting, or a counter that shows a shortage.
    pub fn is_shown_to_cost(&self) -> bool {
        let has_advice = self.advice.as_ref().is_ok_and(|advice| *advice != Advice::Fine);
        let is_proven = match self.proof {
            Proof::Setting => true,
            Proof::Counter => self.moved.as_ref().is_some_and(|moved| moved.by > 0.0),
            Proof::Measurement | Proof::Asking => false,
        };
        has_advice && is_proven
    }

    /// Whether it is possible, but nothing shows that it is needed.
    pub fn is_merely_possible(&self) -> bool {
        let has_advice = self.advice.as_ref().is_ok_and(|advice| *advice != Advice::Fine);
        has_advice && !self.is_shown_to_cost()
    }
}

/// The current counters of all tunings.
pub fn counts(host: &Host, served: &Served) -> Counts {
    let count =
        |tuning: &&'static dyn Tuning| Some((tuning.about().name, tuning.effect(host, served).ok()?.value));
    TUNINGS.iter().filter(|tuning| tuning.proof() == Proof::Counter).filter_map(count).collect()
}

/// The same as [`survey`], with the counters from some seconds ago.
pub fn survey_since(host: &Host, served: &Served, before: &Counts, seconds: f64) -> Vec<Finding> {
    let mut findings = survey(host, served);
    for finding in &mut findings {
        let then = before.get(finding.about.name);
        if let (Some(moved), Some(then)) = (&mut finding.moved, then) {
            moved.by = (moved.by - *then as f64).max(0.0) / seconds.max(1e-3);
            moved.is_rate = true;
        }
    }
    findings
}

/// The state of every tuning, the largest expected gain first.
pub fn survey(host: &Host, served: &Served) -> Vec<Finding> {
    let find = |tuning: &&'static dyn Tuning| Finding {
        about: tuning.about(),
        value: tuning.probe(host, served),
        advice: tuning.advice(host, served),
        proof: tuning.proof(),
        moved: Some(tuning)
            .filter(|tuning| tuning.proof() == Proof::Counter)
            .and_then(|tuning| tuning.effect(host, served).ok())
            .map(|counter| Movement { counter: counter.name, by: counter.value as f64, is_rate: false }),
        is_measurable: tuning.about().needs.are_met(served),
    };
    TUNINGS.iter().map(find).collect()
}

/// What applying a tuning would do; `None` if nothing is to be changed.
///
/// # Errors
/// It is not known here, or only someone else can do it.
pub fn plan(host: &Host, served: &Served, tuning: &'static dyn Tuning) -> Result<Option<Planned>, Error> {
    let about = tuning.about();
    let advice = tuning.advice(host, served);
    let advice = advice
        .map_err(|Unknown(reason)| Error::Refused(format!("{}: unknown here: {reason}", about.name)))?;
    match advice {
        Advice::Fine => Ok(None),
        Advice::ByHand(what) => {
            Err(Error::Refused(format!("{}: cannot be changed from here: {what}", about.name)))
        }
        Advice::Change { what, changes, then } => {
            let (documents, not_kept) = documents(host, about.name, &changes, served.unit(host).as_deref());
            Ok(Some(Planned { about, what, changes, documents, not_kept, then }))
        }
    }
}

impl Planned {
    /// The changes, and with `keep` also those that write the files.
    pub fn all_changes(&self, keep: bool) -> Vec<Change> {
        let files = self.documents.iter().filter(|_| keep);
        let files = files.map(|document| Change::text(Setting::file(&document.path), &document.text));
        self.changes.iter().cloned().chain(files).collect()
    }
}
