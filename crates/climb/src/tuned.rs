//! The tunings of `flatout tune`, with its journal: whatever ends a climb, `flatout tune undo` puts everything back.

use std::path::PathBuf;

use flatout_tune::{
    Advice, Asked, Consent, Fate, Host, Needs as TuneNeeds, Planned, Risk, Served, Session, find, plan,
    survey,
};

use crate::plan::Needs;
use crate::tunings::Tunings;

/// Tunings of this machine. The journal is held from the first change on.
pub struct Tuned<'h> {
    host: &'h Host,
    asked: Asked,
    state: PathBuf,
    consent: Consent,
    session: Option<Session<'h>>,
}

impl<'h> Tuned<'h> {
    /// Tunings for what is asked for, with the journal in `state`. What is named in a plan is named by its user;
    /// `accepts_risk` is for those by which protection is lost.
    pub fn new(host: &'h Host, asked: Asked, state: PathBuf, accepts_risk: bool) -> Tuned<'h> {
        Tuned { host, asked, state, consent: Consent { is_named: true, accepts_risk }, session: None }
    }

    /// The tunings of low risk that would change something here, those that are expected to gain most first.
    pub fn low_risk(&self) -> Vec<String> {
        let Ok(served) = Served::find(self.host, &self.asked) else { return Vec::new() };
        let findings = survey(self.host, &served).into_iter();
        findings
            .filter(|finding| finding.about.risk == Risk::Low)
            .filter(|finding| matches!(finding.advice, Ok(Advice::Change { .. })))
            .map(|finding| finding.about.name.to_owned())
            .collect()
    }

    /// What would be done now. Each time anew: the server's processes change, and what other rungs do.
    fn planned(&self, name: &str) -> Result<Planned, String> {
        let tuning = find(name).ok_or_else(|| unknown(name))?;
        let served = Served::find(self.host, &self.asked).map_err(|error| error.to_string())?;
        let planned = plan(self.host, &served, tuning).map_err(|error| error.to_string())?;
        planned.ok_or_else(|| "it is as it should be already".to_owned())
    }

    fn session(&mut self) -> Result<&Session<'h>, String> {
        if self.session.is_none() {
            self.session = Some(Session::open(self.host, &self.state).map_err(|error| error.to_string())?);
        }
        self.session.as_ref().ok_or_else(|| "the journal is not open".to_owned())
    }
}

impl Tunings for Tuned<'_> {
    fn needs(&self, name: &str) -> Result<Needs, String> {
        let about = find(name).ok_or_else(|| unknown(name))?.about();
        self.consent.permits(about).map_err(|error| error.to_string())?;
        Ok(match about.needs {
            TuneNeeds::AnyPath => Needs::AnyPath,
            TuneNeeds::Card => Needs::Device,
            TuneNeeds::Reboot => Needs::Reboot,
        })
    }

    fn is_restarting(&self, name: &str) -> bool {
        self.planned(name).is_ok_and(|planned| !planned.then.is_empty())
    }

    fn apply(&mut self, name: &str) -> Result<(), String> {
        let planned = self.planned(name)?;
        let made = self.session()?.apply(name, &planned.changes).map_err(|error| error.to_string())?;
        if made.is_empty() { Err("it is as it should be already".to_owned()) } else { Ok(()) }
    }

    fn undo(&mut self, name: &str) -> Result<(), String> {
        let (undone, broken) = self.session()?.undo(&[name.to_owned()]).map_err(|error| error.to_string())?;
        let unsettled = undone.into_iter().filter_map(|undone| match undone.fate {
            Fate::Restored(_) | Fate::Already(_) | Fate::Gone(_) => None,
            Fate::LeftAlone { now, ours, .. } => Some(format!(
                "{} was set to {} here and is {} now: somebody else has changed it, so it is left alone",
                undone.setting,
                ours.line(),
                now.line()
            )),
            Fate::Kept(why) => Some(format!("{}: {why}", undone.setting)),
        });
        let failed: Vec<String> = unsettled.chain(broken).collect();
        if failed.is_empty() { Ok(()) } else { Err(failed.join("; ")) }
    }

    fn commands(&self, names: &[&str]) -> (String, String) {
        let is_grave = |name: &&&str| find(name).is_some_and(|tuning| tuning.about().risk == Risk::Grave);
        let risk = if names.iter().any(|name| is_grave(&name)) { " --accept-risk" } else { "" };
        let port = self.asked.port.map(|port| format!(" --port {port}")).unwrap_or_default();
        let names = names.join(" ");
        (format!("flatout tune apply {names}{port}{risk}"), format!("flatout tune undo {names}"))
    }
}

fn unknown(name: &str) -> String {
    format!("there is no tuning `{name}`; `flatout tune --all` tells which there are")
}
