//! A data plane: it serves the plans of a controller, and the last one while there is no controller.
//!
//! ```text
//! disk ── the last plan ───────┐
//! controller ── Plan, Changes ─┴──> check ──> Served ──> the server of this process
//!            ── Servers ───────────────────────┘  └─ applied: acknowledged, and kept on disk meanwhile
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use flatout_engine::{Address, Severity, report, say};
use flatout_server::{Failure, Started};

use super::connector::{Connector, ControllerSession};
use super::credentials::DataPlaneCredentials;
use super::keeper::Keeper;
use super::kept_plan::{KeptPlan, StoredPlan};
use super::plan_figures::PlanFigures;
use super::{Acknowledgement, Message, shown};
use crate::apply::{BasePlan, Foundation, Served};
use crate::data::{DataPlaneSettings, PlanChanges, PlanData, ServerData};
use crate::leader::LeaderTerm;
use crate::run::{REFUSED_MAX, RETRY_TIME, report_refused};

/// After this time without a controller, `/readyz` says so. A controller that is replaced is back earlier.
const AWAY_TIME: Duration = Duration::from_secs(10);

/// Faults of controllers that are logged once, until one responds.
const FAULTS_MAX: usize = 100;

/// What a data plane is.
pub struct DataPlane {
    /// Where controllers listen: `HOST:PORT`. All addresses of a name are tried in turn.
    pub controllers: Vec<String>,
    /// What it shows and expects.
    pub credentials: DataPlaneCredentials,
    /// Its name, for messages and statuses.
    pub name: String,
    /// What it adds to plans.
    pub settings: DataPlaneSettings,
}

/// Starts a data plane, with the plan on its disk, or with the first one of a controller: then it returns only when that has arrived.
///
/// # Errors
/// The credentials are wrong, the folder cannot be made, or there is no thread.
pub fn follow_controller(data_plane: DataPlane, base: BasePlan, version: &str) -> Result<Started, Failure> {
    let DataPlane { controllers, credentials, name, settings } = data_plane;
    credentials.check().map_err(Failure::Usage)?;
    let kept = KeptPlan::below(&settings.folder).map_err(Failure::Run)?;
    let stored = kept.read();
    let figures = Arc::new(PlanFigures::default());
    let foundation = Foundation {
        base: Arc::new(base),
        folder: settings.folder.clone(),
        version: version.to_owned(),
        name: "the plan",
        metrics: vec![figures.clone()],
    };
    let mut plane = Plane {
        foundation,
        settings,
        keeper: Keeper::start(kept).map_err(Failure::Run)?,
        figures,
        plan: None,
        term: None,
        served: None,
        readiness: READY.to_owned(),
        alone_since: Some(Instant::now()),
        refused_at: Instant::now(),
        faults: BTreeSet::new(),
    };
    let mut connector = Connector::new(controllers, credentials, name);
    let (started, session) = match plane.start_from_disk(stored) {
        Some(started) => (started, None),
        None => {
            let (started, session) = plane.first_plan(&mut connector);
            (started, Some(session))
        }
    };
    let run = move || plane.run(&mut connector, session);
    let spawned = thread::Builder::new().name("flatout-control".to_owned()).spawn(run);
    spawned.map_err(|error| Failure::Run(format!("cannot start the thread of the data plane: {error}")))?;
    Ok(started)
}

/// The text of `/readyz` with a controller.
const READY: &str = "ok\n";

/// The state of a data plane.
struct Plane {
    foundation: Foundation,
    settings: DataPlaneSettings,
    keeper: Keeper,
    figures: Arc<PlanFigures>,
    /// The plan that is served, with its number.
    plan: Option<(u64, PlanData)>,
    /// The latest term of a controller.
    term: Option<LeaderTerm>,
    served: Option<Served>,
    /// The text of `/readyz` that is served.
    readiness: String,
    /// Since when there is no controller.
    alone_since: Option<Instant>,
    /// When addresses were refused last.
    refused_at: Instant,
    /// What was logged about controllers since one responded.
    faults: BTreeSet<String>,
}

impl Plane {
    /// Starts with the plan on the disk, if there is one that works.
    fn start_from_disk(&mut self, stored: Result<Option<StoredPlan>, String>) -> Option<Started> {
        let StoredPlan { number, term, plan } = match stored {
            Ok(Some(stored)) => stored,
            Ok(None) => {
                say(format_args!("there is no plan on the disk: waiting for a controller"));
                return None;
            }
            Err(why) => {
                report(Severity::Error, format_args!("{why}; waiting for a controller"));
                return None;
            }
        };
        self.term = term;
        match self.serve_plan(number, plan) {
            Ok(started) => {
                say(format_args!("started with plan {number} from the disk"));
                started
            }
            Err(why) => {
                let message = format_args!(
                    "plan {number} on the disk cannot be served: {why}; waiting for a controller"
                );
                report(Severity::Error, message);
                None
            }
        }
    }

    /// Waits for the first plan that works.
    fn first_plan(&mut self, connector: &mut Connector) -> (Started, ControllerSession) {
        loop {
            let why = match connector.connect() {
                Ok(mut session) => match self.follow(&mut session) {
                    Ok(started) => return (started, session),
                    Err(why) => format!("{}: {why}", session.shown),
                },
                Err(why) => why,
            };
            self.lost(why);
            connector.wait();
        }
    }

    /// Follows controllers for as long as the process lives.
    fn run(&mut self, connector: &mut Connector, first: Option<ControllerSession>) {
        let mut next = first.map(Ok);
        loop {
            let why = match next.take().unwrap_or_else(|| connector.connect()) {
                Ok(mut session) => {
                    let why = self.follow(&mut session).err().unwrap_or_default();
                    if session.is_accepted {
                        connector.reset();
                    }
                    format!("{}: {why}", session.shown)
                }
                Err(why) => why,
            };
            self.lost(why);
            self.keeper.hurry();
            connector.wait();
            self.show_readiness();
        }
    }

    /// Follows a controller until the connection ends, or until the server has started.
    ///
    /// # Errors
    /// Why the connection has ended.
    fn follow(&mut self, session: &mut ControllerSession) -> Result<Started, String> {
        loop {
            let message = session.next()?;
            if let Message::Goodbye { reason } = message {
                return Err(shown(&reason));
            }
            if let Message::Welcome { term } = &message
                && let Err(why) = self.take_term(term.as_ref())
            {
                session.acknowledge(&Acknowledgement {
                    refusal: Some(why.clone()),
                    ..Acknowledgement::default()
                })?;
                return Err(why);
            }
            self.found(session);
            let (result, started) = self.handle(message);
            session.acknowledge(&result)?;
            if let Some(started) = started {
                return Ok(started);
            }
        }
    }

    /// Remembers the term of a controller. One that was paused, and is not the leader any more, does not know that by itself.
    ///
    /// # Errors
    /// Another one has led since.
    fn take_term(&mut self, term: Option<&LeaderTerm>) -> Result<(), String> {
        let Some(term) = term else { return Ok(()) };
        if let Some(known) = self.term.as_ref().filter(|known| term.is_before(known)) {
            let (number, known) = (term.number, known.number);
            return Err(format!(
                "it leads in the term {number}, and another controller has led in the term {known}"
            ));
        }
        self.term = Some(term.clone());
        Ok(())
    }

    /// A controller has sent something.
    fn found(&mut self, session: &mut ControllerSession) {
        if !session.is_accepted {
            session.is_accepted = true;
            say(format_args!("plans come from the controller {}", session.shown));
        }
        self.alone_since = None;
        self.faults.clear();
        self.figures.is_connected.store(true, Ordering::Relaxed);
    }

    /// A controller is away, or does not respond as it should.
    fn lost(&mut self, why: String) {
        self.alone_since.get_or_insert_with(Instant::now);
        self.figures.is_connected.store(false, Ordering::Relaxed);
        if self.faults.len() < FAULTS_MAX && !self.faults.contains(&why) {
            let effect = match &self.plan {
                Some((number, _)) => format!("plan {number} stays in use"),
                None => "there is no plan yet".to_owned(),
            };
            report(Severity::Warning, format_args!("controller {why}; {effect}"));
            self.faults.insert(why);
        }
    }

    /// Applies a message. Returns its result, and the server if it has started.
    fn handle(&mut self, message: Message) -> (Acknowledgement, Option<Started>) {
        let result = match message {
            Message::Plan { number, plan } => self.handle_plan(number, plan),
            Message::Changes { number, since, changes } => self.change_plan(number, since, *changes),
            Message::Servers { number, upstreams } => self.set_servers(number, &upstreams).map(|()| None),
            Message::Welcome { .. } | Message::Ping | Message::Goodbye { .. } => Ok(None),
        };
        self.show_readiness();
        if !self.settings.refused.is_empty() && self.refused_at.elapsed() > RETRY_TIME {
            self.settings.refused.clear();
            self.serve_again();
        }
        let disk = self.keeper.state();
        let refused = self.settings.refused.iter().map(|at| format!("listeners at {at} are not served"));
        let notes = disk.fault.into_iter().chain(refused).collect();
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
        self.take_plan(number, PlanData::read(plan)?)
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
        self.keep(Keeper::AT_ONCE);
        Ok(started)
    }

    /// Has the plan written to the disk.
    fn keep(&self, within: Duration) {
        if let Some((number, plan)) = &self.plan {
            let stored = StoredPlan { number: *number, term: self.term.clone(), plan: plan.clone() };
            self.keeper.keep(stored, within);
        }
    }

    /// Serves a plan. Addresses that the machine refuses are left out for now.
    ///
    /// # Errors
    /// It is wrong, or the machine refuses; the plan before is served on.
    fn serve_plan(&mut self, number: u64, plan: PlanData) -> Result<Option<Started>, String> {
        let readiness = self.readiness_wanted(number);
        loop {
            let translation = Arc::new(plan.translation(&self.settings, &readiness)?);
            let result = match &mut self.served {
                Some(served) => served.apply(translation).map(|()| None),
                None => Served::start(&self.foundation, translation).map(|(served, started)| {
                    self.served = Some(served);
                    Some(started)
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
        let (Some((plan_number, plan)), Some(served)) = (&mut self.plan, &mut self.served) else {
            return Err("there is no plan yet".to_owned());
        };
        plan.set_servers(upstreams)?;
        for (name, list) in upstreams {
            let servers = list.iter().map(|it| it.server(&self.settings.folder)).collect::<Result<_, _>>()?;
            served.set_servers(name, servers, false).map_err(|failure| failure.to_string())?;
        }
        *plan_number = number;
        self.figures.number.store(number, Ordering::Relaxed);
        self.keep(Keeper::SERVERS_TIME);
        Ok(())
    }

    /// The text of `/readyz` that is right now.
    fn readiness_wanted(&self, number: u64) -> String {
        match self.alone_since.is_some_and(|since| since.elapsed() >= AWAY_TIME) {
            true => format!(
                "ok: no controller for more than {} seconds, plan {number} stays in use\n",
                AWAY_TIME.as_secs()
            ),
            false => READY.to_owned(),
        }
    }

    /// Changes the text of `/readyz`, if another one is right.
    fn show_readiness(&mut self) {
        let Some((number, _)) = &self.plan else { return };
        if self.readiness_wanted(*number) != self.readiness {
            self.serve_again();
        }
    }
}
