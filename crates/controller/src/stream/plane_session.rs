//! A data plane that is connected: it gets whatever is new, as small as it can be said.

use std::io::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use flatout_engine::{Severity, report};

use super::credentials::ControllerStream;
use super::plan_server::{PlanServer, refuse};
use super::published::Published;
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

/// What a data plane gets next.
#[derive(Debug, PartialEq, Eq)]
enum Next {
    Difference,
    Whole,
    Ping,
    Nothing,
}

impl SentPlan {
    /// What comes next, if nothing was sent for this time.
    fn next(&self, published: &Published, is_writing: bool, quiet: Duration) -> Next {
        match self.applied {
            // A controller that cannot publish anything says only that it is there.
            _ if published.number == 0 && quiet > PING_TIME => Next::Ping,
            _ if published.number == 0 => Next::Nothing,
            Some(_) if published.number != self.number => Next::Difference,
            Some(_) if is_writing || quiet > PING_TIME => Next::Ping,
            None if published.plan_number != self.plan_number || quiet > RETRY_TIME => Next::Whole,
            // Of a plan that was refused, no servers are sent.
            _ => Next::Nothing,
        }
    }
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
                let why = "this controller is no longer the leader";
                refuse(&mut self.stream, why.to_owned());
                return Err(format!("disconnected: {why}"));
            }
            match self.sent.next(&published, self.is_writing, sent_at.elapsed()) {
                Next::Difference => self.send_difference(&published)?,
                Next::Whole => self.send_plan(&published)?,
                Next::Ping => {
                    let result = self.exchange(&frame(&Message::Ping, PLAN_BYTES_MAX)?)?;
                    self.acknowledged(&result);
                }
                Next::Nothing => {
                    self.sent.number = published.number;
                    continue;
                }
            }
            sent_at = Instant::now();
        }
    }

    /// Sends what is new since the plan that was applied. If that is refused or too long, the whole plan is sent at once.
    fn send_difference(&mut self, published: &Published) -> Result<(), String> {
        let Some(former) = self.sent.applied.clone() else { return self.send_plan(published) };
        if let Ok(message) = published.difference(self.sent.number, &former) {
            let result = self.exchange(&message)?;
            let Some(why) = &result.refusal else {
                self.was_sent(published, &result);
                return Ok(());
            };
            let number = published.number;
            report(Severity::Warning, format_args!("a data plane gets the whole plan {number}: {why}"));
        }
        self.send_plan(published)
    }

    fn send_plan(&mut self, published: &Published) -> Result<(), String> {
        let message = published.whole().inspect_err(|why| self.server.board.set_fault(why.clone()))?;
        let result = self.exchange(message)?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_message_depends_on_the_plan_that_was_applied() {
        let [now, later, long] = [0, 6, 11].map(Duration::from_secs);
        let sent = |number, plan_number, is_applied: bool| SentPlan {
            number,
            plan_number,
            applied: is_applied.then(|| Arc::new(PlanData::empty())),
        };
        let published = |number, plan_number| Published::new(number, plan_number, PlanData::empty());
        for (sent, published, is_writing, quiet, next) in [
            // Without a plan, data planes keep the one that they have.
            (sent(0, 0, false), Published::default(), false, now, Next::Nothing),
            (sent(0, 0, false), Published::default(), false, long, Next::Ping),
            (sent(0, 0, false), published(3, 2), false, now, Next::Whole),
            (sent(3, 2, true), published(3, 2), false, now, Next::Nothing),
            (sent(3, 2, true), published(3, 2), true, now, Next::Ping),
            (sent(3, 2, true), published(3, 2), false, later, Next::Ping),
            (sent(3, 2, true), published(4, 2), false, now, Next::Difference),
            (sent(3, 2, true), published(5, 5), true, now, Next::Difference),
            // It was refused.
            (sent(3, 2, false), published(4, 2), false, later, Next::Nothing),
            (sent(3, 2, false), published(4, 2), false, long, Next::Whole),
            (sent(3, 2, false), published(5, 5), false, now, Next::Whole),
        ] {
            assert_eq!(sent.next(&published, is_writing, quiet), next);
        }
    }
}
