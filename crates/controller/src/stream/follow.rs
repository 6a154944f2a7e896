//! A data plane: it serves the plans of a controller, and the last one while there is no controller.
//!
//! ```text
//! disk ── the last plan ──┐
//! controller ── Plan ─────┴──> check ──> Served ──> the server of this process
//!            ── Servers ─────────────────┘  └─ applied: kept on disk, acknowledged
//! ```

use std::collections::BTreeSet;
use std::hash::{BuildHasher, RandomState};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use flatout_engine::{Address, Severity, report, say};
use flatout_observe::metrics::{Family, Source};
use flatout_server::{Failure, Started};

use super::credentials::{DataPlaneCredentials, DataPlaneStream, Token};
use super::kept_plan::KeptPlan;
use super::socket::TimedSocket;
use super::{
    Acknowledgement, HELLO_TIME_MAX, Hello, Message, PLAN_BYTES_MAX, REPLY_BYTES_MAX, SILENCE_MAX,
    connection_fault, receive, send, shown,
};
use crate::apply::{BasePlan, Foundation, Served};
use crate::data::{DataPlaneSettings, FORMAT, PlanData, ServerData};
use crate::run::{REFUSED_MAX, RETRY_TIME, report_refused};

/// The pause after all controllers were tried; it doubles each time,
const PAUSE_MIN: Duration = Duration::from_millis(200);

/// up to this one.
const PAUSE_MAX: Duration = Duration::from_secs(10);

/// After this time without a controller, `/readyz` says so. A controller that is replaced is back earlier.
const AWAY_TIME: Duration = Duration::from_secs(10);

/// How often changes of endpoints are written to the disk, at most. All else is written at once.
const KEEP_TIME: Duration = Duration::from_secs(5);

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
        kept,
        figures,
        plan: None,
        served: None,
        readiness: READY.to_owned(),
        alone_since: Some(Instant::now()),
        unwritten_since: None,
        refused_at: Instant::now(),
        faults: BTreeSet::new(),
    };
    let mut connector = Connector { controllers, credentials, name, queue: Vec::new(), pause: PAUSE_MIN };
    let (started, session) = match plane.start_from_disk() {
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
    kept: KeptPlan,
    figures: Arc<PlanFigures>,
    /// The plan that is served, with its number.
    plan: Option<(u64, PlanData)>,
    served: Option<Served>,
    /// The text of `/readyz` that is served.
    readiness: String,
    /// Since when there is no controller.
    alone_since: Option<Instant>,
    /// Since when the plan on the disk is not the one that is served.
    unwritten_since: Option<Instant>,
    /// When addresses were refused last.
    refused_at: Instant,
    /// What was logged about controllers since one responded.
    faults: BTreeSet<String>,
}

impl Plane {
    /// Starts with the plan on the disk, if there is one that works.
    fn start_from_disk(&mut self) -> Option<Started> {
        let (number, plan) = match self.kept.read() {
            Ok(Some(kept)) => kept,
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

    /// Follows controllers for as long as the process lives.
    fn run(&mut self, connector: &mut Connector, first: Option<ControllerSession>) {
        let mut next = first.map(Ok);
        loop {
            let why = match next.take().unwrap_or_else(|| connector.connect()) {
                Ok(mut session) => {
                    let why = self.follow(&mut session).err().unwrap_or_default();
                    if session.is_accepted {
                        connector.pause = PAUSE_MIN;
                    }
                    format!("{}: {why}", session.shown)
                }
                Err(why) => why,
            };
            self.lost(why);
            self.write_changes(Duration::ZERO);
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
            self.found(session);
            let (result, started) = self.handle(message);
            session.acknowledge(&result)?;
            if let Some(started) = started {
                return Ok(started);
            }
        }
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
        let mut notes = Vec::new();
        let result = match message {
            Message::Plan { number, plan } => self.handle_plan(number, plan, &mut notes),
            Message::Servers { number, upstreams } => self.set_servers(number, &upstreams).map(|()| None),
            Message::Ping | Message::Goodbye { .. } => Ok(None),
        };
        self.show_readiness();
        if !self.settings.refused.is_empty() && self.refused_at.elapsed() > RETRY_TIME {
            self.settings.refused.clear();
            self.serve_again();
        }
        self.write_changes(KEEP_TIME);
        notes.extend(self.settings.refused.iter().map(|at| format!("listeners at {at} are not served")));
        match result {
            Ok(started) => (Acknowledgement { refusal: None, notes }, started),
            Err(why) => {
                self.figures.refused.fetch_add(1, Ordering::Relaxed);
                let stays = if self.plan.is_some() { "; the plan before stays in use" } else { "" };
                report(Severity::Error, format_args!("a plan is refused: {why}{stays}"));
                (Acknowledgement { refusal: Some(shown(&why)), notes }, None)
            }
        }
    }

    fn handle_plan(
        &mut self,
        number: u64,
        plan: serde_json::Value,
        notes: &mut Vec<String>,
    ) -> Result<Option<Started>, String> {
        let plan = PlanData::read(plan)?;
        let started = self.serve_plan(number, plan)?;
        self.figures.applied.fetch_add(1, Ordering::Relaxed);
        self.unwritten_since = Some(Instant::now());
        self.write_changes(Duration::ZERO);
        if self.unwritten_since.is_some() {
            notes.push("the plan could not be written to the disk".to_owned());
        }
        Ok(started)
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
        upstreams: &std::collections::BTreeMap<String, Vec<ServerData>>,
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
        self.unwritten_since.get_or_insert_with(Instant::now);
        Ok(())
    }

    /// Writes the plan to the disk, if it has differed from the one there for this time.
    fn write_changes(&mut self, after: Duration) {
        let is_due = self.unwritten_since.is_some_and(|since| since.elapsed() >= after);
        let (true, Some((number, plan))) = (is_due, &self.plan) else { return };
        match self.kept.write(*number, plan) {
            Ok(()) => self.unwritten_since = None,
            Err(why) => {
                report(Severity::Error, format_args!("plan {number} is not kept: {why}"));
                // Tried again after another while.
                self.unwritten_since = Some(Instant::now());
            }
        }
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

/// Connects to controllers in turn.
struct Connector {
    controllers: Vec<String>,
    credentials: DataPlaneCredentials,
    name: String,
    /// Addresses that are tried next, the last one first, with the names that certificates must have.
    queue: Vec<(SocketAddr, String)>,
    pause: Duration,
}

/// A connection to a controller.
struct ControllerSession {
    stream: DataPlaneStream,
    shown: String,
    /// It has sent something.
    is_accepted: bool,
}

impl Connector {
    /// Connects to the next address.
    ///
    /// # Errors
    /// It does not respond, or shows no certificate that is trusted.
    fn connect(&mut self) -> Result<ControllerSession, String> {
        if self.queue.is_empty() {
            self.queue = self.addresses()?;
        }
        let (at, host) = self.queue.pop().ok_or("no controller has an address")?;
        let shown = format!("{host} ({at})");
        self.connect_to(at, &host).map_err(|why| format!("{shown}: {why}")).map(|stream| ControllerSession {
            stream,
            shown,
            is_accepted: false,
        })
    }

    fn connect_to(&self, at: SocketAddr, host: &str) -> Result<DataPlaneStream, String> {
        let socket =
            TcpStream::connect_timeout(&at, HELLO_TIME_MAX).map_err(|error| connection_fault(&error))?;
        let mut stream = self.credentials.connect(host, TimedSocket::new(socket, HELLO_TIME_MAX))?;
        let token = Token::read(&self.credentials.token)?;
        let hello = Hello { formats: vec![FORMAT], name: self.name.clone(), token: token.text().to_owned() };
        send(&mut stream, &hello, REPLY_BYTES_MAX).map_err(|error| connection_fault(&error))?;
        Ok(stream)
    }

    /// All addresses of all controllers, in reverse order.
    fn addresses(&self) -> Result<Vec<(SocketAddr, String)>, String> {
        let (mut found, mut fault) = (Vec::new(), None);
        for controller in &self.controllers {
            let host = controller.rsplit_once(':').map_or(controller.as_str(), |(host, _)| host);
            match controller.to_socket_addrs() {
                Ok(all) => found.extend(all.map(|at| (at, host.to_owned()))),
                Err(error) => fault = Some(format!("{controller}: {error}")),
            }
        }
        found.reverse();
        fault.filter(|_| found.is_empty()).map_or(Ok(found), Err)
    }

    /// Waits, if all addresses were tried: for half of the pause, and a random part of the rest.
    fn wait(&mut self) {
        if self.queue.is_empty() {
            let random = RandomState::new().hash_one(0) as u32;
            thread::sleep(self.pause / 2 + self.pause.mul_f64(f64::from(random) / f64::from(u32::MAX) / 2.0));
            self.pause = (self.pause * 2).min(PAUSE_MAX);
        }
    }
}

impl ControllerSession {
    fn next(&mut self) -> Result<Message, String> {
        self.stream.sock.allow(SILENCE_MAX);
        receive(&mut self.stream, PLAN_BYTES_MAX).map_err(|error| connection_fault(&error))
    }

    fn acknowledge(&mut self, result: &Acknowledgement) -> Result<(), String> {
        self.stream.sock.allow(SILENCE_MAX);
        send(&mut self.stream, result, REPLY_BYTES_MAX).map_err(|error| connection_fault(&error))
    }
}

/// Figures of a data plane.
#[derive(Default)]
struct PlanFigures {
    is_connected: AtomicBool,
    number: AtomicU64,
    applied: AtomicU64,
    refused: AtomicU64,
}

impl Source for PlanFigures {
    fn collect(&self, into: &mut Vec<Family>) {
        let load = |it: &AtomicU64| it.load(Ordering::Relaxed);
        into.extend([
            Family::gauge(
                "flatout_plan_controller_connected",
                "1 if a controller is connected, 0 while the last plan is served without one",
                u64::from(self.is_connected.load(Ordering::Relaxed)),
            ),
            Family::gauge("flatout_plan_number", "The number of the plan that is served", load(&self.number)),
            Family::counter(
                "flatout_plans_applied",
                "Plans of a controller that were applied",
                load(&self.applied),
            ),
            Family::counter(
                "flatout_plans_refused",
                "Plans of a controller that were not applied",
                load(&self.refused),
            ),
        ]);
    }
}
