//! The tunings of `flatout tune`, with its journal: however a climb ends, `flatout tune undo` restores everything.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use flatout_lane::process::{Ending, signal_process};
use flatout_lane::tap::Tap;
use flatout_tune::{
    Advice, Begun, Commands, Consent, Fate, Finding, Holder, Host, Needs, Planned, Risk, Served,
    ServerSelector, Session, TAPS, Unknown, find, holders, plan, quote, survey,
};

use serde::{Deserialize, Serialize};

use crate::lab::DEVICE as LAB_DEVICE;

/// Tunings of this machine. The journal is locked from the first change on.
pub struct Tuned<'h> {
    host: &'h Host,
    asked: ServerSelector,
    state: PathBuf,
    consent: Consent,
    session: Option<Session<'h>>,
    /// Holders of packet taps that may be stopped at the end.
    stops: Vec<u32>,
    /// A packet tap equal to another program's, while its cost is measured.
    tap: Option<Tap>,
}

/// The state of a tuning.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reading {
    /// As text.
    pub value: String,
    /// The counter that decreases when it is in effect.
    pub count: u64,
}

/// A smaller published gain cannot be seen in a climb of minutes.
const GAIN_PERCENT_MIN: f32 = 2.0;

/// How long a program may take to exit when it is asked to.
const END_TIME_MAX: Duration = Duration::from_secs(5);

/// How often to check whether it has.
const LOOK_TIME: Duration = Duration::from_millis(50);

impl<'h> Tuned<'h> {
    /// Tunings for this server, with the journal in `state`. A plan names tunings on behalf of the user;
    /// `accepts_risk` allows those that reduce protection.
    pub fn new(host: &'h Host, asked: ServerSelector, state: PathBuf, accepts_risk: bool) -> Tuned<'h> {
        let consent = Consent { is_named: true, accepts_risk };
        Tuned { host, asked, state, consent, session: None, stops: Vec::new(), tap: None }
    }

    /// The same, and these holders of packet taps may be stopped at the end of the climb if that helps.
    ///
    /// # Errors
    /// One of them holds no tap.
    pub fn stopping(self, stops: Vec<u32>) -> Result<Tuned<'h>, String> {
        if let Some(&pid) = stops.first() {
            let held = self.other_holders()?;
            if let Some(stranger) = stops.iter().find(|stop| held.iter().all(|holder| holder.pid() != **stop))
            {
                return Err(match held.is_empty() {
                    true => format!("got {pid}, but no process holds a packet tap"),
                    false => {
                        format!("got {stranger}, need a process that holds a packet tap: {}", listed(&held))
                    }
                });
            }
        }
        Ok(Tuned { stops, ..self })
    }

    /// All holders of packet taps except this process.
    fn other_holders(&self) -> Result<Vec<Holder>, String> {
        let mut held = holders(self.host).map_err(|Unknown(why)| why)?;
        held.retain(|holder| holder.pid() != std::process::id());
        Ok(held)
    }

    /// Stops one holder: its unit, which the journal can start again, or the process itself.
    fn stop(&mut self, holder: &Holder) -> Result<String, String> {
        let told = match holder.stopped() {
            Some(change) => {
                self.session()?.apply(TAPS, &[change]).map_err(|error| error.to_string())?;
                format!("{holder} was stopped with its unit; start it again: {}", self.undo_command(TAPS))
            }
            None => {
                signal_process(holder.pid(), Ending::Asked)
                    .map_err(|error| format!("{holder} could not be stopped: {error}"))?;
                let words: Vec<String> = holder.arguments.iter().map(|word| quote(word)).collect();
                let folder = quote(&holder.folder);
                format!("{holder} was stopped; start it again: cd {folder} && {}", words.join(" "))
            }
        };
        let deadline = Instant::now() + END_TIME_MAX;
        while self.other_holders()?.contains(holder) {
            if Instant::now() > deadline {
                return Err(format!("{told}; but it still holds its packet tap"));
            }
            std::thread::sleep(LOOK_TIME);
        }
        Ok(told)
    }

    fn undo_command(&self, names: &str) -> String {
        format!("flatout tune undo {names}{}", self.state_flag())
    }

    /// The flag that makes commands use the same journal.
    fn state_flag(&self) -> String {
        match self.state == self.host.state_default() {
            true => String::new(),
            false => format!(" --state {}", quote(&self.state.display().to_string())),
        }
    }

    /// The state of a tuning.
    fn reading(&self, name: &str) -> Result<Reading, String> {
        let (tuning, served) = (find(name).ok_or_else(|| unknown(name))?, self.served()?);
        let value = tuning.probe(self.host, &served).map_err(|Unknown(why)| why)?;
        let counter = tuning.effect(self.host, &served).map_err(|Unknown(why)| why)?;
        Ok(Reading { value, count: counter.value })
    }

    fn served(&self) -> Result<Served, String> {
        Served::find(self.host, &self.asked).map_err(|error| error.to_string())
    }

    /// The low-risk tunings that would change something here, the largest expected gain first.
    pub fn low_risk(&self) -> Vec<String> {
        let Ok(served) = Served::find(self.host, &self.asked) else { return Vec::new() };
        let findings = survey(self.host, &served).into_iter();
        findings
            .filter(|finding| finding.about.risk == Risk::Low)
            .filter(|finding| matches!(finding.advice, Ok(Advice::Change { .. })))
            .map(|finding| finding.about.name.to_owned())
            .collect()
    }

    /// What to try if the user names nothing: changes that `tune` suggests here for this server, that can be measured
    /// on this path, and whose expected gain is large enough to be seen; the largest expected gain first. More than
    /// low risk needs consent. Also returns how many were left out because their expected gain is too small.
    pub fn proposals(&self, accepts_risk: bool) -> (Vec<String>, usize) {
        let Ok(served) = Served::find(self.host, &self.asked) else { return (Vec::new(), 0) };
        let is_tried = |finding: &&Finding| {
            let about = finding.about;
            let is_taps = about.name == TAPS && matches!(finding.advice, Ok(Advice::ByHand(_)));
            let is_change = matches!(finding.advice, Ok(Advice::Change { .. }));
            let is_by_card = self.asked.device.as_deref().is_some_and(|device| device != "lo");
            let is_seen = match about.needs {
                Needs::AnyPath => true,
                Needs::Card => is_by_card,
                Needs::Reboot => false,
            };
            (is_change || is_taps) && is_seen && (about.risk == Risk::Low || accepts_risk)
        };
        let all = survey(self.host, &served);
        let (tried, small): (Vec<&Finding>, Vec<&Finding>) =
            all.iter().filter(is_tried).partition(|finding| finding.about.gain_percent >= GAIN_PERCENT_MIN);
        (tried.into_iter().map(|finding| finding.about.name.to_owned()).collect(), small.len())
    }

    /// The changes to make now. Planned each time, because the server's processes change, and other rungs change
    /// settings.
    fn planned(&self, name: &str) -> Result<Planned, String> {
        let tuning = find(name).ok_or_else(|| unknown(name))?;
        let planned = plan(self.host, &self.served()?, tuning).map_err(|error| error.to_string())?;
        planned.ok_or_else(|| AS_IT_SHOULD_BE.to_owned())
    }

    fn session(&mut self) -> Result<&Session<'h>, String> {
        if self.session.is_none() {
            self.session = Some(Session::open(self.host, &self.state).map_err(|error| error.to_string())?);
        }
        self.session.as_ref().ok_or_else(|| "the journal is not open".to_owned())
    }
}

/// By their names, for a climb.
impl Tuned<'_> {
    /// What the effect of this tuning needs to be measurable.
    ///
    /// # Errors
    /// There is no such tuning, or it needs consent that was not given.
    pub fn needs(&self, name: &str) -> Result<Needs, String> {
        let about = find(name).ok_or_else(|| unknown(name))?.about();
        self.consent.permits(about).map_err(|error| error.to_string())?;
        Ok(about.needs)
    }

    /// Whether it needs a restart of the server.
    pub(crate) fn is_restarting(&self, name: &str) -> bool {
        self.planned(name).is_ok_and(|planned| !planned.then.is_empty())
    }

    /// Whether it is about another program's burden, which stays: applying it adds an equal one.
    pub(crate) fn is_burden(&self, name: &str) -> bool {
        name == TAPS
    }

    /// Applies the change, all of it or nothing.
    ///
    /// # Errors
    /// Why it cannot be applied here and now.
    pub(crate) fn apply(&mut self, name: &str) -> Result<(), String> {
        if name == TAPS {
            if self.reading(name)?.count == 0 {
                return Err("nobody holds one".to_owned());
            }
            let tap = Tap::open().map_err(|error| format!("cannot hold a packet tap: {error}; run as root"));
            self.tap = Some(tap?);
            return Ok(());
        }
        let planned = self.planned(name)?;
        let made = self.session()?.apply(name, &planned.changes).map_err(|error| error.to_string())?;
        if made.is_empty() { Err(AS_IT_SHOULD_BE.to_owned()) } else { Ok(()) }
    }

    /// Undoes the change.
    ///
    /// # Errors
    /// What could not be restored, and what to do.
    pub(crate) fn undo(&mut self, name: &str) -> Result<(), String> {
        if name == TAPS {
            self.tap = None;
            return Ok(());
        }
        let (undone, broken) = self.session()?.undo_own(name).map_err(|error| error.to_string())?;
        let unsettled = undone.into_iter().filter_map(|undone| match undone.fate {
            Fate::Restored(_) | Fate::Already(_) | Fate::Gone(_) => None,
            Fate::LeftAlone { now, ours, .. } => Some(format!(
                "{} was set to {} here and is {} now: somebody else changed it, so it is left alone",
                undone.setting,
                ours.line(),
                now.line()
            )),
            Fate::Kept(why) => Some(format!("{}: {why}", undone.setting)),
        });
        let failed: Vec<String> = unsettled.chain(broken).collect();
        if failed.is_empty() { Ok(()) } else { Err(failed.join("; ")) }
    }

    /// Records in the journal that a change by commands is about to be applied, so that it is undone however this
    /// process ends.
    ///
    /// # Errors
    /// It cannot be recorded; then it must not be applied.
    pub(crate) fn begin(&mut self, name: &str, commands: Commands) -> Result<Begun, String> {
        self.session()?.begin(name, commands).map_err(|error| error.to_string())
    }

    /// Records that its first command has finished.
    ///
    /// # Errors
    /// It cannot be recorded.
    pub(crate) fn made(&mut self, begun: &Begun) -> Result<(), String> {
        self.session()?.made(begun).map_err(|error| error.to_string())
    }

    /// Removes the record: the change was undone, or stays because its user wanted that.
    ///
    /// # Errors
    /// It cannot be removed.
    pub(crate) fn forget(&mut self, begun: &Begun) -> Result<(), String> {
        self.session()?.forget(begun).map_err(|error| error.to_string())
    }

    /// The shell command that applies these tunings, and the one that undoes them.
    pub(crate) fn commands(&self, names: &[&str]) -> (String, String) {
        let is_grave = |name: &&&str| find(name).is_some_and(|tuning| tuning.about().risk == Risk::Grave);
        let risk = if names.iter().any(|name| is_grave(&name)) { " --accept-risk" } else { "" };
        let port = self.asked.port.map(|port| format!(" --port {port}")).unwrap_or_default();
        let pid = self.asked.pid.map(|pid| format!(" --pid {pid}")).unwrap_or_default();
        let names = names.join(" ");
        let state = self.state_flag();
        (format!("flatout tune apply {names}{port}{pid}{risk}{state}"), self.undo_command(&names))
    }

    /// Removes another program's burdens for good, if that was requested. For each one, returns what was done and how
    /// to undo it, or why it still exists; empty if it was not requested.
    pub(crate) fn relieve(&mut self, name: &str) -> Vec<Result<String, String>> {
        if name != TAPS || self.stops.is_empty() {
            return Vec::new();
        }
        let mut held = match self.other_holders() {
            Ok(held) => held,
            Err(why) => return vec![Err(why)],
        };
        held.retain(|holder| self.stops.contains(&holder.pid()));
        held.iter().map(|holder| self.stop(holder)).collect()
    }

    /// Whose burden it is and how it could be removed, as text.
    pub(crate) fn holders(&self, name: &str) -> String {
        let held = match self.other_holders() {
            Ok(held) if name == TAPS && !held.is_empty() => held,
            _ => return "held by a process that is not visible from here".to_owned(),
        };
        // In the lab there is nothing to stop for good.
        if self.asked.device.as_deref() == Some(LAB_DEVICE) {
            return format!("held by {}", listed(&held));
        }
        let flags: Vec<String> = held.iter().map(|holder| format!("--stop {}", holder.pid())).collect();
        let flags = flags.join(" ");
        format!("held by {}; to stop it at the end: {flags} --keep --accept-risk", listed(&held))
    }

    /// The state of a tuning that needs a reboot, and what to do for it.
    ///
    /// # Errors
    /// Why there is nothing to do, or nothing known.
    pub(crate) fn before_reboot(&self, name: &str) -> Result<(Reading, Vec<String>), String> {
        let tuning = find(name).ok_or_else(|| unknown(name))?;
        let advice = tuning.advice(self.host, &self.served()?).map_err(|Unknown(why)| why)?;
        let steps = match advice {
            Advice::Fine => return Err(AS_IT_SHOULD_BE.to_owned()),
            Advice::ByHand(what) => vec![what, "reboot".to_owned()],
            Advice::Change { what, changes, then } => {
                let files: Vec<String> = changes.iter().map(|change| change.setting.name()).collect();
                let state = self.state_flag();
                vec![
                    format!(
                        "{what}: flatout tune apply {name} --accept-risk{state} (writes {})",
                        files.join(", ")
                    ),
                    then,
                ]
            }
        };
        Ok((self.reading(name)?, steps))
    }

    /// Checks that it is in effect in this boot.
    ///
    /// # Errors
    /// Its state instead.
    pub(crate) fn has_taken(&self, name: &str, before: &Reading) -> Result<(), String> {
        let now = self.reading(name)?;
        match now.count < before.count {
            true => Ok(()),
            false => Err(format!(
                "`{name}` has not taken effect with this boot: it is {}, and was {} before",
                now.value, before.value
            )),
        }
    }

    /// What to do so that the next boot has the old state again.
    pub(crate) fn back_at_reboot(&self, name: &str) -> Vec<String> {
        vec![
            format!("{}, or restore what else was changed for this boot", self.undo_command(name)),
            "update the boot loader's configuration (update-grub), and reboot".to_owned(),
        ]
    }
}

/// Why a tuning that would change nothing is not tried.
const AS_IT_SHOULD_BE: &str = "it is already as suggested";

fn listed(holders: &[Holder]) -> String {
    holders.iter().map(Holder::to_string).collect::<Vec<_>>().join(", ")
}

fn unknown(name: &str) -> String {
    format!("no tuning `{name}`; `flatout tune --all` lists them")
}
