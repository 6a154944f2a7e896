//! From tunings to what is to be done: how everything stands, and what applying one of them would change.

use std::collections::BTreeMap;

use crate::change::Change;
use crate::document::{Document, documents};
use crate::error::{Error, Unknown};
use crate::host::Host;
use crate::served::Served;
use crate::settings::Setting;
use crate::tuning::{About, Advice, Proof, Tuning};
use crate::tunings::TUNINGS;

/// How one tuning stands on this machine.
pub struct Finding {
    /// Which tuning.
    pub about: &'static About,
    /// How it is now.
    pub value: Result<String, Unknown>,
    /// What should be done about it.
    pub advice: Result<Advice, Unknown>,
    /// What it takes for it to be advised.
    pub proof: Proof,
    /// Its counter: how much it moved in a second while it was watched, or since the boot where it was not.
    pub moved: Option<Movement>,
    /// Whether the path by which the server is reached can show an effect.
    pub is_measurable: bool,
}

/// What applying one tuning would do.
pub struct Planned {
    /// Which tuning.
    pub about: &'static About,
    /// What is to become of it, in a line.
    pub what: String,
    /// The changes.
    pub changes: Vec<Change>,
    /// What would keep them over a reboot.
    pub documents: Vec<Document>,
    /// Which of them cannot be kept, and why.
    pub not_kept: Vec<String>,
    /// What has to be done afterwards for them to take; empty where nothing has.
    pub then: String,
}

/// How much a counter moved.
#[derive(Debug, Clone, PartialEq)]
pub struct Movement {
    /// What the kernel calls it.
    pub counter: String,
    /// By how much.
    pub by: f64,
    /// Whether that is for each second of the time in which it was watched.
    pub is_rate: bool,
}

/// Counters of all tunings at one time.
pub type Counts = BTreeMap<&'static str, u64>;

impl Finding {
    /// Whether it is advised by what is known: something that is set wrongly, or that a counter shows to be short.
    pub fn is_shown_to_cost(&self) -> bool {
        let has_advice = self.advice.as_ref().is_ok_and(|advice| *advice != Advice::Fine);
        let is_proven = match self.proof {
            Proof::Setting => true,
            Proof::Counter => self.moved.as_ref().is_some_and(|moved| moved.by > 0.0),
            Proof::Measurement | Proof::Asking => false,
        };
        has_advice && is_proven
    }

    /// Whether it could be done, and nothing shows that it is needed.
    pub fn is_merely_possible(&self) -> bool {
        let has_advice = self.advice.as_ref().is_ok_and(|advice| *advice != Advice::Fine);
        has_advice && !self.is_shown_to_cost()
    }
}

/// The counters by which tunings are judged, as they are now.
pub fn counts(host: &Host, served: &Served) -> Counts {
    let count =
        |tuning: &&'static dyn Tuning| Some((tuning.about().name, tuning.effect(host, served).ok()?.value));
    TUNINGS.iter().filter(|tuning| tuning.proof() == Proof::Counter).filter_map(count).collect()
}

/// The same as [`survey`], where counters were so many some seconds ago.
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

/// How every tuning stands, those that are expected to gain most first.
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

/// What applying a tuning would do; nothing where all is fine.
///
/// # Errors
/// It is not known here, or only somebody else can do it.
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
    /// The changes, and with `keep` also those that write the documents.
    pub fn all_changes(&self, keep: bool) -> Vec<Change> {
        let files = self.documents.iter().filter(|_| keep);
        let files = files.map(|document| Change::text(Setting::file(&document.path), &document.text));
        self.changes.iter().cloned().chain(files).collect()
    }
}
