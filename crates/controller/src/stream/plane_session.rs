//! A data plane that is connected: it gets whatever is new, as small as it can be said.

use std::io::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use flatout_engine::{Severity, report};

use super::acknowledge::Published;
use super::credentials::ControllerStream;
use super::plan_server::{PlanServer, refuse};
use super::{
    APPLY_TIME_MAX, Acknowledgement, Message, PING_TIME, PLAN_BYTES_MAX, REPLY_BYTES_MAX, connection_fault,
    frame, receive, shown,
};
use crate::data::PlanData;
use crate::leader::LeaderTerm;
use crate::run::RETRY_TIME;

/// How often a session looks whether this controller still leads, and whether the data plane has written its plan.
pub(super) const LOOK: Duration = Duration::from_millis(100);

/// A data plane.
pub(super) struct PlaneSession<'a> {
    stream: ControllerStream,
    id: u64,
    server: &'a PlanServer,
    /// The term in which it was greeted.
    term: Option<LeaderTerm>,
    sent: SentPlan,
    /// It has said that it writes the plan to its disk.
    is_writing: bool,
    /// What it has said about its listeners and its disk.
    notes: Vec<String>,
}

/// What a data plane has.
#[derive(Default)]
struct SentPlan {
    number: u64,
    plan_number: u64,
    /// The plan of that number, if it was applied.
    applied: Option<Arc<PlanData>>,
}

impl PlaneSession<'_> {
    pub(super) fn new(
        stream: ControllerStream,
        id: u64,
        server: &PlanServer,
        term: Option<LeaderTerm>,
    ) -> PlaneSession<'_> {
        PlaneSession {
            stream,
            id,
            server,
            term,
            sent: SentPlan::default(),
            is_writing: false,
            notes: Vec::new(),
        }
    }

    /// Sends whatever is new, until the connection ends.
    ///
    /// # Errors
    /// Always: why it has ended.
    pub(super) fn run(&mut self) -> Result<(), String> {
        let welcome = Message::Welcome { term: self.term.clone() };
        if let Some(why) = self.exchange(&frame(&welcome, PLAN_BYTES_MAX)?)?.refusal {
            report(Severity::Warning, format_args!("a data plane refuses this controller: {why}"));
            return Err(why);
        }
        let mut sent_at = Instant::now();
        loop {
            let published = self.server.board.wait(self.sent.number, LOOK);
            if self.server.listener.leader.term().as_ref() != Ok(&self.term) {
                refuse(&mut self.stream, "this controller leads no more".to_owned());
                return Err("it was sent away: this controller leads no more".to_owned());
            }
            let is_due = published.plan_number != self.sent.plan_number || sent_at.elapsed() > RETRY_TIME;
            match self.sent.applied.clone() {
                Some(plan) if published.plan_number != self.sent.plan_number => {
                    self.send_changes(&plan, &published)?;
                }
                Some(plan) if published.number != self.sent.number => self.send_servers(&plan, &published)?,
                Some(_) if self.is_writing || sent_at.elapsed() > PING_TIME => {
                    let result = self.exchange(&frame(&Message::Ping, PLAN_BYTES_MAX)?)?;
                    self.acknowledged(&result);
                }
                None if is_due => self.send_plan(&published)?,
                _ => {
                    // Of a plan that was refused, no servers are sent.
                    self.sent.number = published.number;
                    continue;
                }
            }
            sent_at = Instant::now();
        }
    }

    fn send_plan(&mut self, published: &Published) -> Result<(), String> {
        let message = published.whole().inspect_err(|why| self.server.board.set_fault(why.clone()))?;
        let result = self.exchange(message)?;
        self.was_sent(published, &result);
        Ok(())
    }

    /// Sends what has changed since a plan that was applied. If that is refused, the whole one is sent.
    fn send_changes(&mut self, since: &PlanData, published: &Published) -> Result<(), String> {
        let changes = Box::new(since.changes_to(&published.plan));
        let message = Message::Changes { number: published.number, since: self.sent.number, changes };
        let result = match frame(&message, PLAN_BYTES_MAX) {
            Ok(message) => self.exchange(&message)?,
            Err(_) => return self.send_plan(published),
        };
        self.was_sent(published, &result);
        if result.refusal.is_some() {
            return self.send_plan(published);
        }
        Ok(())
    }

    fn send_servers(&mut self, since: &PlanData, published: &Published) -> Result<(), String> {
        let upstreams = since.servers_in(&published.plan);
        let message = Message::Servers { number: published.number, upstreams };
        let result = self.exchange(&frame(&message, PLAN_BYTES_MAX)?)?;
        // If it is refused, the plan there is not the one that these servers are of: it gets the whole one.
        self.was_sent(published, &result);
        Ok(())
    }

    fn was_sent(&mut self, published: &Published, result: &Acknowledgement) {
        self.sent = SentPlan {
            number: published.number,
            plan_number: published.plan_number,
            applied: result.refusal.is_none().then(|| published.plan.clone()),
        };
        self.acknowledged(result);
    }

    fn acknowledged(&mut self, result: &Acknowledgement) {
        if let Some(why) = &result.refusal {
            let number = self.sent.plan_number;
            report(Severity::Error, format_args!("a data plane refuses plan {number}: {why}"));
        }
        for note in result.notes.iter().filter(|note| !self.notes.contains(note)) {
            report(Severity::Warning, format_args!("a data plane: {note}"));
        }
        self.notes.clone_from(&result.notes);
        self.is_writing = result.is_writing;
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
