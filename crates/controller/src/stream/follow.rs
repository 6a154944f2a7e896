//! A data plane: it serves the plans of a controller, and the last one while there is no controller.
//!
//! ```text
//! disk ── the last plan ───────┐
//! controller ── Plan, Changes ─┴──> check ──> Served ──> the server of this process
//!            ── Servers ───────────────────────┘  └─ applied: acknowledged, and kept on disk meanwhile
//! ```

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Instant;

use flatout_engine::{Severity, report, say};
use flatout_server::{Failure, Started};

use super::connector::{Connector, ControllerSession};
use super::credentials::DataPlaneCredentials;
use super::keeper::Keeper;
use super::kept_plan::{KeptPlan, StoredPlan};
use super::kept_term::KeptTerm;
use super::plan_figures::PlanFigures;
use super::plane::{Plane, READY};
use super::{Acknowledgement, Message, shown};
use crate::apply::{BasePlan, Foundation};
use crate::data::{DataPlaneSettings, ReadSites};

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
    let term = KeptTerm::below(&settings.folder);
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
        read: ReadSites::default(),
        term,
        served: None,
        readiness: READY.to_owned(),
        refusal: None,
        alone_since: Some(Instant::now()),
        refused_at: Instant::now(),
        is_replaced: Arc::default(),
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

impl Plane {
    /// Starts with the plan on the disk, if there is one that works.
    fn start_from_disk(&mut self, stored: Result<Option<StoredPlan>, String>) -> Option<Started> {
        let StoredPlan { number, plan } = match stored {
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

    /// Follows controllers for as long as this process serves: one that has taken over follows them itself.
    fn run(&mut self, connector: &mut Connector, first: Option<ControllerSession>) {
        let mut next = first.map(Ok);
        while !self.is_replaced() {
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
            if self.is_replaced() {
                break;
            }
            self.lost(why);
            self.keeper.hurry();
            connector.wait();
            self.show_readiness();
        }
        say(format_args!("process {} was replaced, and leaves plans to its successor", std::process::id()));
    }

    /// Follows a controller until the connection ends, or until the server has started.
    ///
    /// # Errors
    /// Why the connection has ended.
    fn follow(&mut self, session: &mut ControllerSession) -> Result<Started, String> {
        loop {
            let message = session.next()?;
            if self.is_replaced() {
                return Err("another process has taken over".to_owned());
            }
            if let Message::Goodbye { reason } = message {
                return Err(shown(&reason));
            }
            if !session.is_welcomed {
                self.welcome(session, message)?;
                continue;
            }
            self.found(session);
            let (result, started) = self.handle(message);
            session.acknowledge(&result)?;
            if let Some(started) = started {
                return Ok(started);
            }
        }
    }

    /// Checks the first message, which has the term of the controller. It is no sign yet that plans follow.
    ///
    /// # Errors
    /// The controller is not the leader any more, or does not begin as it should.
    fn welcome(&mut self, session: &mut ControllerSession, message: Message) -> Result<(), String> {
        let Message::Welcome { term } = message else {
            return Err("its first message has no term".to_owned());
        };
        let refusal = term.and_then(|term| self.term.follow(&term).err());
        session.acknowledge(&Acknowledgement { refusal: refusal.clone(), ..Acknowledgement::default() })?;
        session.is_welcomed = true;
        refusal.map_or(Ok(()), Err)
    }

    /// A controller has sent something after its welcome.
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
}
