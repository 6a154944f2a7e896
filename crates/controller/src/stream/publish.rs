//! A controller without requests of its own: plans of the objects for data planes, and the statuses that follow from their answers.
//!
//! ```text
//! Store ── changed ──> translate ──> Publisher ──> Board ──> a session for each data plane
//!                                                    └─ acknowledged ──> statuses
//! ```

use std::net::TcpListener;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use flatout_engine::{Address, Severity, report, say};
use flatout_proxy::Server;
use flatout_server::{Failure, Started};

use super::acknowledge::{Board, Programming, with_programming};
use super::plan_server::{PlanListener, PlanServer};
use super::plane::READY;
use super::plane_session::LOOK;
use super::published::Published;
use crate::apply::{BasePlan, Foundation, Served};
use crate::condition::StatusUpdate;
use crate::data::{DataPlaneSettings, PlanData, ServerData};
use crate::run::{GATHER_TIME, StatusWriter, unready};
use crate::store::{Seen, Store};
use crate::translate::{Settings, Translation, Translator, servers_of};

/// How long statuses wait for data planes to apply a plan, before they say that it is pending.
const ACKNOWLEDGE_TIME: Duration = Duration::from_secs(2);

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
        metrics: vec![board.clone(), store.figures.clone()],
    };
    let own = DataPlaneSettings {
        addresses: Vec::new(),
        health: settings.health.take(),
        folder: settings.folder.clone(),
        refused: Default::default(),
    };
    let empty = PlanData::empty().translation(&own, READY).map_err(Failure::Run)?;
    let socket = TcpListener::bind(listener.address).map_err(|error| {
        Failure::Listen(format!("plans: {error}"), Address::Tcp(listener.address), error.kind())
    })?;
    let (served, started) = Served::start(&foundation, Arc::new(empty))?;
    let mut publisher = Publisher {
        board: board.clone(),
        served,
        translator: Translator::default(),
        translation: None,
        settings,
        write,
        statuses: None,
        written: None,
    };
    let seen = publisher.translate(&store);
    let server = Arc::new(PlanServer::new(board, listener));
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
    /// The pages for the state of this process.
    served: Served,
    translator: Translator,
    /// The translation that is published, with the servers of now; none if the last change could not be.
    translation: Option<Box<Translation>>,
    settings: Settings,
    write: StatusWriter,
    /// The statuses of the objects, and since when.
    statuses: Option<(Instant, Vec<Arc<StatusUpdate>>)>,
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
        let (work, seen) = store.read_changes(|objects, changed| match &self.translation {
            Some(known) if changed.are_endpoints() => {
                let servers = servers_of(objects, &known.backends, &changed.services);
                self.translator.note(changed);
                Work::Servers(servers)
            }
            _ => Work::All(Box::new(self.translator.translate(objects, changed, &self.settings))),
        });
        match work {
            Work::Servers(changes) => {
                let result = self.publish_servers(changes);
                self.report_result(store, seen, result);
            }
            Work::All(mut translation) => {
                self.settings.assigned.clone_from(&translation.assigned);
                self.statuses = Some((Instant::now(), std::mem::take(&mut translation.statuses)));
                let result = self.publish(translation);
                self.report_result(store, seen, result);
            }
        }
        seen.changes
    }

    /// What cannot be published leaves what was; the next change then publishes all.
    fn report_result(&mut self, store: &Store, seen: Seen, result: Result<(), String>) {
        store.figures.set_refused(result.is_err());
        let Err(why) = result else {
            self.served.show_readiness(READY);
            return store.figures.took_effect(seen.since);
        };
        self.served.show_readiness(&unready("data planes keep the last plan", &why));
        self.translation = None;
        let message = format_args!("objects have changed, but data planes keep the last plan: {why}");
        report(Severity::Error, message);
        self.board.set_fault(why);
    }

    fn publish_servers(&mut self, changes: Vec<(usize, Vec<Server>)>) -> Result<(), String> {
        let former = self.board.published();
        let mut plan = (*former.plan).clone();
        for (at, list) in changes {
            plan.set_servers_at(at, list.iter().map(ServerData::of).collect::<Result<_, _>>()?);
            let known = self.translation.as_mut().and_then(|it| it.sites.upstreams.get_mut(at));
            known.into_iter().for_each(|upstream| upstream.servers.clone_from(&list));
        }
        self.board.publish(Published::new(former.number + 1, former.plan_number, plan));
        Ok(())
    }

    fn publish(&mut self, translation: Box<Translation>) -> Result<(), String> {
        let former = self.board.published();
        let known = self.translation.as_deref();
        let plan = PlanData::of_next(
            &translation,
            &self.settings.addresses,
            known.map(|translation| (translation, &*former.plan)),
        )?;
        let number = former.number + 1;
        match known {
            Some(known) if known.is_alike(&translation) => {
                // Also if nothing has changed: a fault, if there was one, is over.
                let number = if plan == *former.plan { former.number } else { number };
                self.board.publish(Published::new(number, former.plan_number, plan));
            }
            _ => self.board.publish(Published::new(number, number, plan)),
        }
        self.translation = Some(translation);
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
