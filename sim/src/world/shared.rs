//! What all actors of a run see and change.

use super::BEGIN_NS;
use crate::model::Model;
use crate::model::cache::Moment;
use crate::scene::{Occasion, Scene};
use crate::secure::Clients;
use crate::trace::{Actor, Event, Trace};

/// What all actors see and change.
pub(crate) struct Shared<'s> {
    pub(crate) now_ns: u64,
    pub(crate) scene: &'s Scene,
    pub(crate) model: Model,
    pub(crate) trace: Trace,
    /// What clients need for TLS.
    pub(crate) secure: Option<Clients>,
    /// Something was sent to the server since its workers have done anything.
    pub(crate) has_unread: bool,
    /// An upstream has broken a rule.
    pub(crate) upstreams_failed: bool,
    /// A change of the server is likelier from this time on: something is in the middle.
    change_at_ns: Option<u64>,
    /// The configuration that is served.
    pub(super) served: usize,
    pub(super) requests: u32,
    /// Connections to the server.
    pub(super) opened: u64,
    /// How often servers were killed, and which connections each time.
    kills: Vec<Kill>,
    /// Subscribers that upgrades have moved to another server.
    pub(crate) moved: u64,
    /// Long polls on connections that had one before.
    pub(crate) polls: u64,
}

/// The connections that end when servers are killed.
#[derive(Debug, Clone, Copy)]
enum Kill {
    All,
    /// Those that may belong to a server that was replaced: opened by this time.
    OpenedUntil(u64),
}

impl<'s> Shared<'s> {
    pub(crate) fn new(scene: &'s Scene) -> Shared<'s> {
        Shared {
            now_ns: BEGIN_NS,
            scene,
            model: Model::new(scene),
            trace: Trace::default(),
            secure: scene.has_tls.then(Clients::new),
            has_unread: false,
            upstreams_failed: false,
            change_at_ns: None,
            served: 0,
            requests: 0,
            opened: 0,
            kills: Vec::new(),
            moved: 0,
            polls: 0,
        }
    }

    /// How often servers were killed.
    pub(crate) fn crashes(&self) -> u32 {
        self.kills.len() as u32
    }

    /// Whether the server of a connection may have been killed since then: it was opened at this time, after so many crashes.
    pub(crate) fn may_be_killed(&self, crashes: u32, opened_ns: u64) -> bool {
        let mut since = self.kills.iter().skip(crashes as usize);
        since.any(|kill| match kill {
            Kill::All => true,
            Kill::OpenedUntil(until_ns) => opened_ns <= *until_ns,
        })
    }

    /// All servers are killed, or the new one: nobody knows which connections belong to that one.
    pub(super) fn kill(&mut self) {
        self.kills.push(Kill::All);
        self.model.crash(self.moment());
    }

    /// The servers that were replaced are killed.
    pub(super) fn kill_formers(&mut self) {
        self.kills.push(Kill::OpenedUntil(self.now_ns));
    }

    /// Requests that were sent.
    pub(crate) fn requests(&self) -> u32 {
        self.requests
    }

    pub(crate) fn event(&mut self, actor: Actor, event: Event) {
        let is_client = matches!(actor, Actor::Client(_) | Actor::Subscriber(_) | Actor::Publisher);
        self.opened += u64::from(is_client && event == Event::Open);
        self.trace.add(self.now_ns, actor, event);
    }

    /// An actor pauses. Returns when it continues.
    pub(crate) fn pause(&mut self, actor: Actor, pause_ms: u64) -> u64 {
        self.event(actor, Event::Pause(pause_ms));
        self.now_ns + pause_ms * 1_000_000
    }

    /// A change of the server is likelier from this time on.
    pub(crate) fn invite_change(&mut self, at_ns: u64) {
        if matches!(self.scene.changes, Occasion::Any | Occasion::Invited) {
            self.invite(at_ns);
        }
    }

    /// The same while the body of a request is on its way.
    pub(crate) fn invite_in_body(&mut self, at_ns: u64) {
        self.invite_change(at_ns);
        self.invite_on(Occasion::BodyWaits, at_ns);
    }

    fn invite(&mut self, at_ns: u64) {
        self.change_at_ns = Some(self.change_at_ns.map_or(at_ns, |known_ns| known_ns.min(at_ns)));
    }

    /// A client leaves before it has its response. If an upstream still has such a request, others may wait for the response too.
    pub(crate) fn client_leaves(&mut self) {
        if self.model.awaited().is_some() {
            self.invite_on(Occasion::ClientLeaves, self.now_ns);
        }
    }

    /// The same in runs whose changes happen on such occasions.
    pub(crate) fn invite_on(&mut self, occasion: Occasion, at_ns: u64) {
        if self.scene.changes == occasion {
            self.invite(at_ns);
        }
    }

    /// Whether a change is likelier now. It was likelier only once.
    pub(super) fn take_invitation(&mut self) -> bool {
        self.change_at_ns.take_if(|at_ns| *at_ns <= self.now_ns).is_some()
    }

    /// Another configuration is served.
    pub(super) fn serve(&mut self, configuration: usize) {
        // Servers that the operator has set are used until a configuration with other servers is loaded.
        let servers = |at: usize| self.scene.configurations[at].planned_servers();
        let has_other_servers = !servers(self.served).eq(servers(configuration));
        self.served = configuration;
        self.model.heads.serve(configuration);
        if has_other_servers {
            self.model.serve_by(None, self.moment());
        }
    }

    /// The first byte of a request is sent, over a connection that was opened at this time.
    pub(crate) fn begin(&mut self, id: u32, opened_ns: u64) {
        self.model.begin(id, self.moment(), opened_ns);
        if self.model.has_own_head(id) && !self.may_be_of_former(opened_ns) {
            self.model.heads.begin(id, self.served);
        }
    }

    /// The last byte of a request's head was sent, on a connection where the server waits for it.
    pub(crate) fn sent_head(&mut self, id: u32) {
        self.model.heads.sent(id, self.served);
    }

    /// Whether a connection that was opened at this time may belong to a server that has been replaced since then.
    pub(crate) fn may_be_of_former(&self, opened_ns: u64) -> bool {
        self.model.may_be_of_former(opened_ns)
    }

    /// Now, after all events so far.
    pub(crate) fn moment(&self) -> Moment {
        Moment { order: self.trace.count(), ns: self.now_ns }
    }

    /// A number that no other request of the run has.
    pub(crate) fn next_id(&mut self) -> u32 {
        self.requests += 1;
        self.requests
    }
}
