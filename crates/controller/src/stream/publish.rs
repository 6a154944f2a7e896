//! A controller without requests of its own: plans of the objects for data planes, and the statuses that follow from their answers.
//!
//! ```text
//! Store ── changed ──> translate ──> Publisher ──> Board ──> a session for each data plane
//!                                                    └─ acknowledged ──> statuses
//! ```

use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use flatout_engine::{Address, Severity, report, say};
use flatout_proxy::Server;
use flatout_server::{Failure, Started};
use serde::Serialize;

use super::acknowledge::{Board, Programming, Published, ServerLists, with_programming};
use super::credentials::{ControllerCredentials, ControllerStream, Token};
use super::socket::TimedSocket;
use super::{
    APPLY_TIME_MAX, Acknowledgement, HELLO_TIME_MAX, Hello, Message, PING_TIME, PLAN_BYTES_MAX,
    REPLY_BYTES_MAX, connection_fault, frame, receive, send, shown,
};
use crate::apply::{BasePlan, Foundation, Served, shape};
use crate::condition::StatusUpdate;
use crate::data::{DataPlaneSettings, FORMAT, PlanData, ServerData};
use crate::run::{GATHER_TIME, RETRY_TIME, StatusWriter};
use crate::store::Store;
use crate::translate::{Settings, Translation, UpstreamBackend, servers_of, translate};

/// How long statuses wait for data planes to apply a plan, before they say that it is pending.
const ACKNOWLEDGE_TIME: Duration = Duration::from_secs(2);

/// How often a session looks whether this controller still leads, and statuses for acknowledgements.
const LOOK: Duration = Duration::from_millis(100);

/// Connections that have not shown a token yet; more are closed.
const UNKNOWN_MAX: usize = 64;

/// The time between two lines about connections that were refused.
const COMPLAINT_TIME: Duration = Duration::from_secs(1);

/// Where and to whom plans are given.
pub struct PlanListener {
    /// Where data planes connect.
    pub address: SocketAddr,
    /// Who may.
    pub credentials: ControllerCredentials,
    /// Whether this controller is the one that data planes follow.
    pub leads: Arc<AtomicBool>,
}

/// Starts a controller that gives plans of a store's objects to data planes. The server of this process has `/healthz` and `/readyz` only.
///
/// # Errors
/// The base or the credentials are wrong, or the machine refuses.
pub fn publish(
    store: Arc<Store>,
    mut settings: Settings,
    base: BasePlan,
    write: StatusWriter,
    version: &str,
    listener: PlanListener,
) -> Result<Started, Failure> {
    listener.credentials.check().map_err(Failure::Usage)?;
    let board = Arc::new(Board::default());
    let foundation = Foundation {
        base: Arc::new(base),
        folder: settings.folder.clone(),
        version: version.to_owned(),
        name: "the controller",
        metrics: vec![board.clone()],
    };
    let own = DataPlaneSettings {
        addresses: Vec::new(),
        health: settings.health.take(),
        folder: settings.folder.clone(),
        refused: Default::default(),
    };
    let empty = PlanData::empty().translation(&own, "ok\n").map_err(Failure::Run)?;
    let socket = TcpListener::bind(listener.address).map_err(|error| {
        Failure::Listen(format!("plans: {error}"), Address::Tcp(listener.address), error.kind())
    })?;
    let (_, started) = Served::start(&foundation, Arc::new(empty))?;
    let mut publisher = Publisher {
        board: board.clone(),
        shape: None,
        backends: Vec::new(),
        names: Vec::new(),
        settings,
        write,
        statuses: None,
        written: None,
    };
    let seen = publisher.translate(&store);
    let server =
        Arc::new(PlanServer { board, listener, unknown: AtomicUsize::new(0), complained: Mutex::default() });
    say(format_args!("data planes get their plans at {}", server.listener.address));
    let named = |name: &str| thread::Builder::new().name(name.to_owned());
    let no_thread = |error| Failure::Run(format!("cannot start a thread of the controller: {error}"));
    named("flatout-plans").spawn(move || server.run(&socket)).map_err(no_thread)?;
    named("flatout-control").spawn(move || publisher.follow(&store, seen)).map_err(no_thread)?;
    Ok(started)
}

/// Publishes translations.
struct Publisher {
    board: Arc<Board>,
    /// What was published last, apart from servers.
    shape: Option<u64>,
    /// Where the servers of its upstreams come from, and the names of these.
    backends: Vec<UpstreamBackend>,
    names: Vec<String>,
    settings: Settings,
    write: StatusWriter,
    /// The statuses of the objects, and since when.
    statuses: Option<(Instant, Vec<StatusUpdate>)>,
    /// What the statuses were written with.
    written: Option<(Instant, Programming)>,
}

impl Publisher {
    fn follow(&mut self, store: &Store, mut seen: u64) {
        loop {
            if store.wait(seen, LOOK) {
                thread::sleep(GATHER_TIME);
                seen = self.translate(store);
            }
            self.write_statuses();
        }
    }

    /// Publishes the current objects. Returns how often they had changed.
    fn translate(&mut self, store: &Store) -> u64 {
        let is_good = self.shape.is_some();
        let (work, seen) = store.read_changes(|objects, changed| {
            match is_good && !changed.is_other && !changed.services.is_empty() {
                true => Work::Servers(servers_of(objects, &self.backends, &changed.services)),
                false => Work::All(Box::new(translate(objects, &self.settings))),
            }
        });
        match work {
            Work::Servers(changes) => {
                let result = self.publish_servers(changes);
                self.report_failure(result);
            }
            Work::All(mut translation) => {
                self.settings.assigned.clone_from(&translation.assigned);
                let result = self.publish(&translation);
                self.report_failure(result);
                self.statuses = Some((Instant::now(), std::mem::take(&mut translation.statuses)));
            }
        }
        seen
    }

    /// What cannot be published leaves what was; the next change then publishes all.
    fn report_failure(&mut self, result: Result<(), String>) {
        if let Err(why) = result {
            self.shape = None;
            let message = format_args!("objects have changed, but data planes keep the last plan: {why}");
            report(Severity::Error, message);
            self.board.set_fault(why);
        }
    }

    fn publish_servers(&mut self, changes: Vec<(usize, Vec<Server>)>) -> Result<(), String> {
        let former = self.board.published();
        let mut servers = (*former.servers).clone();
        for (at, list) in changes {
            let Some(name) = self.names.get(at) else { continue };
            let list: Vec<ServerData> = list.iter().map(ServerData::of).collect::<Result<_, _>>()?;
            servers.insert(name.clone(), Arc::new(list));
        }
        self.board.publish(Published { number: former.number + 1, servers: Arc::new(servers), ..former });
        Ok(())
    }

    fn publish(&mut self, translation: &Translation) -> Result<(), String> {
        let former = self.board.published();
        let shape = shape(translation);
        let servers = Arc::new(server_lists(translation, &former.servers)?);
        let mut next = Published { servers: servers.clone(), ..former.clone() };
        if self.shape != Some(shape) {
            let number = former.number + 1;
            let plan = PlanData::of(translation, &self.settings.addresses)?;
            let frame = Arc::new(frame(&PlanMessage::Plan { number, plan: &plan }, PLAN_BYTES_MAX)?);
            next = Published { number, plan_number: number, frame, plan_servers: servers.clone(), servers };
        } else if *servers != *former.servers {
            next.number += 1;
        }
        self.shape = Some(shape);
        self.backends.clone_from(&translation.backends);
        self.names = translation.sites.upstreams.iter().map(|it| it.name.clone()).collect();
        self.board.publish(next);
        Ok(())
    }

    /// Writes statuses, once all data planes have answered or should have.
    fn write_statuses(&mut self) {
        let Some((since, statuses)) = &self.statuses else { return };
        let programming = self.board.programming();
        let is_due = matches!(programming, Programming::Done(_)) || since.elapsed() > ACKNOWLEDGE_TIME;
        let state = (*since, programming);
        if is_due && self.written.as_ref() != Some(&state) {
            (self.write)(&with_programming(statuses, &state.1));
            self.written = Some(state);
        }
    }
}

/// What a change of objects demands.
enum Work {
    /// Other servers of these upstreams.
    Servers(Vec<(usize, Vec<Server>)>),
    /// Perhaps anything.
    All(Box<Translation>),
}

/// [`Message::Plan`], without copying the plan.
#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum PlanMessage<'p> {
    Plan { number: u64, plan: &'p PlanData },
}

/// The servers of all upstreams; lists that have not changed are the former ones.
fn server_lists(translation: &Translation, former: &ServerLists) -> Result<ServerLists, String> {
    let mut lists = ServerLists::new();
    for upstream in &translation.sites.upstreams {
        let list: Vec<ServerData> = upstream.servers.iter().map(ServerData::of).collect::<Result<_, _>>()?;
        let known = former.get(&upstream.name).filter(|known| ***known == list);
        lists.insert(upstream.name.clone(), known.cloned().unwrap_or_else(|| Arc::new(list)));
    }
    Ok(lists)
}

/// Accepts data planes.
struct PlanServer {
    board: Arc<Board>,
    listener: PlanListener,
    /// Connections that have not shown a token yet.
    unknown: AtomicUsize,
    complained: Mutex<Option<Instant>>,
}

impl PlanServer {
    fn run(self: &Arc<Self>, socket: &TcpListener) {
        loop {
            let (connection, peer) = match socket.accept() {
                Ok(accepted) => accepted,
                Err(error) => {
                    self.complain(format_args!("data planes are not accepted for now: {error}"));
                    thread::sleep(LOOK);
                    continue;
                }
            };
            if self.unknown.fetch_add(1, Ordering::Relaxed) >= UNKNOWN_MAX {
                self.unknown.fetch_sub(1, Ordering::Relaxed);
                self.complain(format_args!(
                    "{peer}: refused: {UNKNOWN_MAX} connections have not shown a token"
                ));
                continue;
            }
            let server = self.clone();
            let spawned = thread::Builder::new()
                .name("flatout-plane".to_owned())
                .spawn(move || server.serve(connection, peer));
            if let Err(error) = spawned {
                self.unknown.fetch_sub(1, Ordering::Relaxed);
                self.complain(format_args!("{peer}: refused: there is no thread: {error}"));
            }
        }
    }

    /// Serves a connection until it ends.
    fn serve(&self, connection: TcpStream, peer: SocketAddr) {
        let greeted = self.greet(connection);
        self.unknown.fetch_sub(1, Ordering::Relaxed);
        let (mut stream, name) = match greeted {
            Ok(greeted) => greeted,
            Err(why) => return self.complain(format_args!("{peer}: no data plane: {why}")),
        };
        let Some(id) = self.board.join(&name, peer) else {
            let why = "this controller has as many data planes as it can have".to_owned();
            return refuse(&mut stream, why);
        };
        say(format_args!("data plane {name} ({peer}): connected"));
        let mut session = PlaneSession { stream, id, server: self, sent: SentPlan::default() };
        let why = session.run().err().unwrap_or_default();
        self.board.leave(id);
        say(format_args!("data plane {name} ({peer}): {why}; it goes on with the plan that it has"));
    }

    /// Reads the first message, and checks who sends it.
    fn greet(&self, connection: TcpStream) -> Result<(ControllerStream, String), String> {
        let credentials = &self.listener.credentials;
        let mut stream = credentials.accept(TimedSocket::new(connection, HELLO_TIME_MAX))?;
        let hello: Hello = receive(&mut stream, REPLY_BYTES_MAX).map_err(|error| connection_fault(&error))?;
        let fault = if !Token::read(&credentials.token)?.is(&hello.token) {
            Some("the token is wrong".to_owned())
        } else if !hello.formats.contains(&FORMAT) {
            Some(format!(
                "it knows plans of the formats {:?}; this controller makes those of the format {FORMAT}",
                hello.formats.iter().take(16).collect::<Vec<_>>()
            ))
        } else if !self.listener.leads.load(Ordering::Relaxed) {
            // Each data plane tries all controllers: that is no fault.
            refuse(&mut stream, "another controller leads".to_owned());
            return Err("this controller does not lead".to_owned());
        } else {
            None
        };
        match fault {
            Some(why) => {
                refuse(&mut stream, why.clone());
                Err(why)
            }
            None => Ok((stream, shown(&hello.name))),
        }
    }

    /// Logs a line, unless there was one just before.
    fn complain(&self, message: std::fmt::Arguments<'_>) {
        let mut complained = self.complained.lock().unwrap_or_else(PoisonError::into_inner);
        if complained.is_none_or(|at| at.elapsed() > COMPLAINT_TIME) {
            *complained = Some(Instant::now());
            report(Severity::Warning, message);
        }
    }
}

/// Ends a connection, with the reason.
fn refuse(stream: &mut ControllerStream, reason: String) {
    stream.sock.allow(HELLO_TIME_MAX);
    // Whoever has left already does not need it.
    let _ = send(stream, &Message::Goodbye { reason }, PLAN_BYTES_MAX);
    stream.conn.send_close_notify();
    let _ = stream.flush();
}

/// A data plane.
struct PlaneSession<'a> {
    stream: ControllerStream,
    id: u64,
    server: &'a PlanServer,
    sent: SentPlan,
}

/// What a data plane has.
#[derive(Default)]
struct SentPlan {
    number: u64,
    /// The plan, and whether it was applied.
    plan_number: u64,
    is_applied: bool,
    servers: Arc<ServerLists>,
}

impl PlaneSession<'_> {
    /// Sends whatever is new, until the connection ends.
    ///
    /// # Errors
    /// Always: why it has ended.
    fn run(&mut self) -> Result<(), String> {
        let mut sent_at = Instant::now();
        loop {
            let published = self.server.board.wait(self.sent.number, LOOK);
            if !self.server.listener.leads.load(Ordering::Relaxed) {
                refuse(&mut self.stream, "this controller leads no more".to_owned());
                return Err("it was sent away: this controller leads no more".to_owned());
            }
            let is_retried = !self.sent.is_applied && sent_at.elapsed() > RETRY_TIME;
            if published.plan_number != self.sent.plan_number || is_retried {
                self.send_plan(&published)?;
            } else if published.number != self.sent.number && self.sent.is_applied {
                self.send_servers(&published)?;
            } else if sent_at.elapsed() > PING_TIME && self.sent.is_applied {
                self.exchange(&frame(&Message::Ping, PLAN_BYTES_MAX)?)?;
            } else {
                // Of a plan that was refused, no servers are sent.
                self.sent.number = published.number;
                continue;
            }
            sent_at = Instant::now();
        }
    }

    fn send_plan(&mut self, published: &Published) -> Result<(), String> {
        let result = self.exchange(&published.frame)?;
        self.sent = SentPlan {
            // Servers that have changed since are sent next.
            number: published.plan_number,
            plan_number: published.plan_number,
            is_applied: result.refusal.is_none(),
            servers: published.plan_servers.clone(),
        };
        self.acknowledged(&result);
        Ok(())
    }

    fn send_servers(&mut self, published: &Published) -> Result<(), String> {
        let has_changed = |name: &String, list: &Arc<Vec<ServerData>>| {
            self.sent.servers.get(name).is_none_or(|known| !Arc::ptr_eq(known, list) && known != list)
        };
        let changed = published.servers.iter().filter(|(name, list)| has_changed(name, list));
        let upstreams = changed.map(|(name, list)| (name.clone(), list.to_vec())).collect();
        let message = Message::Servers { number: published.number, upstreams };
        let result = self.exchange(&frame(&message, PLAN_BYTES_MAX)?)?;
        self.sent.number = published.number;
        self.sent.servers = published.servers.clone();
        // Its plan is not the one that these servers are of: it gets the whole one.
        self.sent.is_applied = result.refusal.is_none();
        self.acknowledged(&result);
        Ok(())
    }

    fn acknowledged(&self, result: &Acknowledgement) {
        if let Some(why) = &result.refusal {
            report(
                Severity::Error,
                format_args!("a data plane refuses plan {}: {why}", self.sent.plan_number),
            );
        }
        for note in &result.notes {
            report(Severity::Warning, format_args!("a data plane: {note}"));
        }
        self.server.board.acknowledge(self.id, self.sent.plan_number, result);
    }

    /// Sends a message, and waits for its result.
    fn exchange(&mut self, bytes: &[u8]) -> Result<Acknowledgement, String> {
        self.stream.sock.allow(APPLY_TIME_MAX);
        let written = self.stream.write_all(bytes).and_then(|()| self.stream.flush());
        written.map_err(|error| connection_fault(&error))?;
        let mut result: Acknowledgement =
            receive(&mut self.stream, REPLY_BYTES_MAX).map_err(|error| connection_fault(&error))?;
        result.refusal = result.refusal.as_deref().map(shown);
        result.notes.iter_mut().for_each(|note| *note = shown(note));
        Ok(result)
    }
}
