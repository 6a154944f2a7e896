//! From tunings to what is to be done: how everything stands, and what applying one of them would change.

use crate::change::Change;
use crate::document::{Document, documents};
use crate::error::{Error, Unknown};
use crate::host::Host;
use crate::served::Served;
use crate::settings::Setting;
use crate::tuning::{About, Advice, Tuning};
use crate::tunings::TUNINGS;

/// How one tuning stands on this machine.
pub struct Finding {
    /// Which tuning.
    pub about: &'static About,
    /// How it is now.
    pub value: Result<String, Unknown>,
    /// What should be done about it.
    pub advice: Result<Advice, Unknown>,
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

/// How every tuning stands, those that are expected to gain most first.
pub fn survey(host: &Host, served: &Served) -> Vec<Finding> {
    let find = |tuning: &&'static dyn Tuning| Finding {
        about: tuning.about(),
        value: tuning.probe(host, served),
        advice: tuning.advice(host, served),
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
        .map_err(|Unknown(reason)| Error::Refused(format!("{}: not known here: {reason}", about.name)))?;
    match advice {
        Advice::Fine => Ok(None),
        Advice::ByHand(what) => Err(Error::Refused(format!("{}: not done from here: {what}", about.name))),
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
