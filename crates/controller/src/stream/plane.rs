//! What a data plane serves: plans are checked and applied, and the last good one stays.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use flatout_engine::{Address, Severity, report};
use flatout_proxy::Server;
use flatout_server::{Failure, Started};

use super::keeper::Keeper;
use super::kept_plan::StoredPlan;
use super::kept_term::KeptTerm;
use super::plan_figures::PlanFigures;
use super::{Acknowledgement, Message, shown};
use crate::apply::{Foundation, Served};
use crate::data::{DataPlaneSettings, PlanChanges, PlanData, ReadSites, ServerData};
use crate::run::{REFUSED_MAX, RETRY_TIME, report_refused};

/// After this time without a controller, `/readyz` says so. A controller that is replaced is back earlier.
const AWAY_TIME: Duration = Duration::from_secs(10);

/// The text of `/readyz` with a controller.
pub(super) const READY: &str = "ok\n";

/// The state of a data plane.
pub(super) struct Plane {
    pub(super) foundation: Foundation,
    pub(super) settings: DataPlaneSettings,
    pub(super) keeper: Keeper,
    pub(super) figures: Arc<PlanFigures>,
    /// The plan that is served, with its number.
    pub(super) plan: Option<(u64, PlanData)>,
    /// Its sites.
    pub(super) read: ReadSites,
    pub(super) term: KeptTerm,
    pub(super) served: Option<Served>,
    /// The text of `/readyz` that is served.
    pub(super) readiness: String,
    /// Why the last plan is not served.
    pub(super) refusal: Option<String>,
    /// Since when there is no controller.
    pub(super) alone_since: Option<Instant>,
    /// When addresses were refused last.
    pub(super) refused_at: Instant,
    /// Another process has taken over.
    pub(super) is_replaced: Arc<AtomicBool>,
    /// What was logged about controllers since one responded.
    pub(super) faults: BTreeSet<String>,
}

impl Plane {
    /// Applies a message. Returns its result, and the server if it has started.
    pub(super) fn handle(&mut self, message: Message) -> (Acknowledgement, Option<Started>) {
        let is_plan = !matches!(message, Message::Ping | Message::Goodbye { .. });
        if is_plan {
            self.refusal = None;
        }
        let result = match message {
            Message::Plan { number, plan } => self.handle_plan(number, plan),
            Message::Changes { number, since, changes } => self.change_plan(number, since, *changes),
            Message::Servers { number, upstreams } => self.set_servers(number, &upstreams).map(|()| None),
            Message::Welcome { .. } => Err("a second term on one connection".to_owned()),
            Message::Ping | Message::Goodbye { .. } => Ok(None),
        };
        if is_plan {
            self.refusal = result.as_ref().err().map(|why| shown(why));
        }
        self.show_readiness();
        if !self.settings.refused.is_empty() && self.refused_at.elapsed() > RETRY_TIME {
            self.settings.refused.clear();
            self.serve_again();
        }
        let disk = self.keeper.state();
        let refused = self.settings.refused.iter().map(|at| format!("listeners at {at} are not served"));
        let notes = disk.fault.into_iter().chain(self.term.fault()).chain(refused).collect();
        let is_writing = disk.is_writing;
        match result {
            Ok(started) => (Acknowledgement { refusal: None, notes, is_writing }, started),
            Err(why) => {
                self.figures.refused.fetch_add(1, Ordering::Relaxed);
                let stays = if self.plan.is_some() { "; the plan before stays in use" } else { "" };
                report(Severity::Error, format_args!("a plan is refused: {why}{stays}"));
                (Acknowledgement { refusal: Some(shown(&why)), notes, is_writing }, None)
            }
        }
    }

    fn handle_plan(&mut self, number: u64, plan: serde_json::Value) -> Result<Option<Started>, String> {
        let plan = PlanData::read(plan)?;
        self.served.iter_mut().for_each(Served::forget_servers);
        self.take_plan(number, plan)
    }

    fn change_plan(
        &mut self,
        number: u64,
        since: u64,
        changes: PlanChanges,
    ) -> Result<Option<Started>, String> {
        match &self.plan {
            Some((known, plan)) if *known == since => self.take_plan(number, plan.changed(changes)?),
            Some((known, _)) => Err(format!("changes since plan {since}, and this is plan {known}")),
            None => Err("there is no plan yet".to_owned()),
        }
    }

    fn take_plan(&mut self, number: u64, plan: PlanData) -> Result<Option<Started>, String> {
        let started = self.serve_plan(number, plan)?;
        self.figures.applied.fetch_add(1, Ordering::Relaxed);
        self.keep(Keeper::keep_plan);
        Ok(started)
    }

    /// Has the plan written to the disk.
    fn keep(&self, by: fn(&Keeper, StoredPlan)) {
        if let Some((number, plan)) = &self.plan {
            by(&self.keeper, StoredPlan { number: *number, plan: plan.clone() });
        }
    }

    /// Serves a plan. Addresses that the machine refuses are left out for now.
    ///
    /// # Errors
    /// It is wrong, or the machine refuses; the plan before is served on.
    pub(super) fn serve_plan(&mut self, number: u64, plan: PlanData) -> Result<Option<Started>, String> {
        let readiness = self.readiness_wanted(number);
        loop {
            let translation = plan.translation_after(&mut self.read, &self.settings, &readiness)?;
            let translation = Arc::new(translation);
            let result = match &mut self.served {
                Some(served) => served.apply(translation).map(|()| None),
                None => Served::start(&self.foundation, translation).and_then(|(served, started)| {
                    self.follow_upgrades(&served)?;
                    self.served = Some(served);
                    Ok(Some(started))
                }),
            };
            match result {
                Ok(started) => {
                    self.plan = Some((number, plan));
                    self.readiness = readiness;
                    self.figures.number.store(number, Ordering::Relaxed);
                    return Ok(started);
                }
                Err(Failure::Listen(why, Address::Tcp(at), _)) if self.may_leave_out(at) => {
                    report_refused(at, &why);
                    self.settings.refused.insert(at);
                    self.refused_at = Instant::now();
                }
                Err(failure) => return Err(failure.to_string()),
            }
        }
    }

    /// Stops following controllers and writing plans once another process has taken over.
    fn follow_upgrades(&self, served: &Served) -> Result<(), Failure> {
        let (is_replaced, keeper) = (self.is_replaced.clone(), self.keeper.clone());
        served.when_replaced(move || {
            is_replaced.store(true, Ordering::Relaxed);
            keeper.stop();
        })
    }

    pub(super) fn is_replaced(&self) -> bool {
        self.is_replaced.load(Ordering::Relaxed)
    }

    fn may_leave_out(&self, at: SocketAddr) -> bool {
        self.settings.health != Some(at)
            && self.settings.refused.len() < REFUSED_MAX
            && !self.settings.refused.contains(&at)
    }

    /// Serves the present plan again: with other addresses, or another text of `/readyz`.
    fn serve_again(&mut self) {
        let Some((number, plan)) = self.plan.clone() else { return };
        if let Err(why) = self.serve_plan(number, plan) {
            report(Severity::Error, format_args!("plan {number} could not be served anew: {why}"));
        }
    }

    fn set_servers(
        &mut self,
        number: u64,
        upstreams: &BTreeMap<String, Vec<ServerData>>,
    ) -> Result<(), String> {
        let (Some((_, plan)), Some(served)) = (&self.plan, &mut self.served) else {
            return Err("there is no plan yet".to_owned());
        };
        // All is checked before anything changes.
        let mut changed = plan.clone();
        changed.set_servers(upstreams)?;
        let folder = &self.settings.folder;
        let servers_of = |list: &Vec<ServerData>| list.iter().map(|it| it.server(folder)).collect();
        let lists: Vec<Vec<Server>> = upstreams.values().map(servers_of).collect::<Result<_, String>>()?;
        for (name, servers) in upstreams.keys().zip(lists) {
            served.set_servers(name, &servers, false).map_err(|failure| failure.to_string())?;
        }
        self.plan = Some((number, changed));
        self.figures.number.store(number, Ordering::Relaxed);
        self.keep(Keeper::keep_servers);
        Ok(())
    }

    /// The text of `/readyz` that is right now.
    fn readiness_wanted(&self, number: u64) -> String {
        let is_alone = self.alone_since.is_some_and(|since| since.elapsed() >= AWAY_TIME);
        match &self.refusal {
            _ if is_alone => format!(
                "ok: no controller for more than {} seconds, plan {number} stays in use\n",
                AWAY_TIME.as_secs()
            ),
            Some(why) => format!("ok: the last plan is refused, plan {number} stays in use: {why}\n"),
            None => READY.to_owned(),
        }
    }

    /// Changes the text of `/readyz`, if another one is right.
    pub(super) fn show_readiness(&mut self) {
        let Some((number, _)) = &self.plan else { return };
        if self.readiness_wanted(*number) != self.readiness {
            self.serve_again();
        }
    }
}
