//! Long polls, and requests for latest values.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use flatout_engine::{ExchangeKey, Reply, Request, Response, bug};
use flatout_lane::clock::{self, Ticks};
use flatout_lane::slab::Key;
use flatout_wire::Status;
use flatout_wire::condition::{Decision, evaluate};

use super::line::Line;
use super::message::{Format, Id, Message, Name};
use super::plan::{ChannelName, Kind, Plan};
use super::request::{allow_origin, listed_origin};
use super::serve::respond_text;
use super::token::Expiry;
use super::worker::{TOKEN_EXPIRED, Ticket, WorkerChannels, WorkerState};
use flatout_gateway::{Finish, ResponseOrigin};

/// Bytes of messages in one response.
const RESPONSE_BYTES_MAX: usize = 256 << 10;

/// How often polls are checked for their timeout.
pub(super) const LOOK_TIME: Duration = Duration::from_secs(1);

/// A request that waits for a message.
pub(super) struct Poller {
    key: ExchangeKey,
    pub(super) ticket: Ticket,
    plan: Arc<Plan>,
    cursor: u64,
    ends_at: Ticks,
    /// When its token expires.
    expiry: Expiry,
    /// The listed origin of the page that asks.
    origin: Option<Box<[u8]>>,
    finish: Rc<dyn Finish>,
}

impl WorkerChannels {
    /// Responds with the messages after `cursor`, or waits for one.
    pub(super) fn poll(
        &self,
        request: &Request<'_>,
        ticket: Ticket,
        plan: &Arc<Plan>,
        (cursor, has_gap, expiry): (u64, bool, Expiry),
        finish: Rc<dyn Finish>,
        response: &mut Response,
    ) -> Reply {
        if self.write_news(&ticket.channels, plan, cursor, has_gap, response).is_ok() {
            return Reply::Now;
        }
        let Some(ticker) = self.ticker else {
            bug!("a place was reserved at a worker that cannot serve channels");
            response.reset();
            response.set_status(Status::INTERNAL_SERVER_ERROR);
            return Reply::Now;
        };
        let key = request.park();
        self.lane.attach(key, ticker);
        let now = clock::now();
        let ends_at = now.ticks + clock::ticks(expiry.within(plan.poll_time, now.unix_seconds));
        let mut state = self.state.borrow_mut();
        if state.pollers.is_empty() {
            self.lane.set_deadline(ticker, Some(LOOK_TIME));
        }
        let origin = listed_origin(&request.head, plan).map(Box::from);
        let poller = Poller { key, ticket, plan: plan.clone(), cursor, ends_at, expiry, origin, finish };
        let at = state.pollers.insert(poller);
        state.pollers_by_exchange.insert(key, at);
        self.hub.0.figures.polls.add(1);
        self.wait(&mut state, at);
        Reply::Parked
    }

    /// Lists a poll in its channels.
    fn wait(&self, state: &mut WorkerState, at: Key) {
        let Some(poller) = state.pollers.get_mut(at) else {
            return bug!("a long poll has ended before it began to wait");
        };
        let (channels, plan, tip) = (poller.ticket.channels.clone(), poller.plan.clone(), poller.ticket.tip);
        for channel in channels {
            state.local(channel, &plan, tip).pollers.insert(at);
        }
        self.schedule_tick();
    }

    /// Responds to a poll, if there is a message for it.
    pub(super) fn answer_poll(&self, state: &mut WorkerState, at: Key) {
        // It may have ended since it was due.
        let Some(poller) = state.pollers.get_mut(at) else { return };
        let mut response = self.lane.response();
        let (channels, plan, cursor) = (&poller.ticket.channels, &poller.plan, poller.cursor);
        match self.write_news(channels, plan, cursor, false, &mut response) {
            Ok(()) => self.end_poll(state, at, response),
            Err(up_to) => {
                (poller.cursor, poller.ticket.tip) = (up_to, up_to);
                self.wait(state, at);
            }
        }
    }

    /// Responds to a poll with an error, and with its position.
    pub(super) fn refuse_poll(&self, state: &mut WorkerState, at: Key, status: Status, reason: &str) {
        // One with several channels may be refused twice.
        let Some(poller) = state.pollers.get_mut(at) else { return };
        let mut response = self.lane.response();
        self.write_position(&poller.ticket.channels, poller.cursor, &mut response);
        respond_text(status, reason, &mut response);
        self.end_poll(state, at, response);
    }

    fn end_poll(&self, state: &mut WorkerState, at: Key, mut response: Box<Response>) {
        if let Some(poller) = self.take_poll(state, at) {
            poller.origin.iter().for_each(|origin| allow_origin(origin, &mut response));
            poller.finish.finish(&mut response, ResponseOrigin::Here);
            self.lane.answer(poller.key, response);
        }
    }

    fn take_poll(&self, state: &mut WorkerState, at: Key) -> Option<Poller> {
        let poller = state.pollers.remove(at)?;
        state.pollers_by_exchange.remove(&poller.key);
        for channel in &poller.ticket.channels {
            // Those of a poll that is due are not listed any more, and their channel may be gone.
            let Some(local) = state.locals.get_mut(channel) else { continue };
            local.pollers.remove(&at);
            if local.is_unused() && local.walk.is_none() && !local.is_queued {
                state.locals.remove(channel);
            }
        }
        self.hub.0.figures.polls.take(1);
        Some(poller)
    }

    /// A client has disconnected, or its response was sent.
    pub(super) fn forget_poll(&self, key: ExchangeKey) {
        let mut state = self.state.borrow_mut();
        let gone = state.pollers_by_exchange.get(&key).copied().and_then(|at| self.take_poll(&mut state, at));
        drop(state);
        drop(gone);
    }

    /// Ends polls that have waited long enough, or all polls.
    pub(super) fn end_polls(&self, all: bool) {
        let now = clock::now();
        let mut state = self.state.borrow_mut();
        let ended: Vec<(Key, u64, Vec<u32>, bool)> = state
            .pollers
            .iter()
            .filter(|(_, poller)| all || poller.ends_at <= now.ticks)
            .map(|(at, poller)| {
                let is_over = poller.expiry.is_over(now.unix_seconds);
                (at, poller.cursor, poller.ticket.channels.clone(), is_over)
            })
            .collect();
        for (at, cursor, channels, is_over) in ended {
            if is_over {
                self.refuse_poll(&mut state, at, Status::FORBIDDEN, TOKEN_EXPIRED);
                continue;
            }
            let mut response = self.lane.response();
            response.set_status(Status::NO_CONTENT);
            self.write_position(&channels, cursor, &mut response);
            self.end_poll(&mut state, at, response);
        }
        if !state.pollers.is_empty()
            && let Some(ticker) = self.ticker
        {
            self.lane.set_deadline(ticker, Some(LOOK_TIME));
        }
    }

    /// The worker ends: clients that still wait get a response.
    pub(super) fn refuse_waiting(&self, state: &mut WorkerState) {
        const REASON: &str = "the server is shutting down";
        let pollers: Vec<Key> = state.pollers.iter().map(|(at, _)| at).collect();
        for at in pollers {
            self.refuse_poll(state, at, Status::SERVICE_UNAVAILABLE, REASON);
        }
        for (key, delayed) in std::mem::take(&mut state.delayed_responses) {
            let mut response = self.lane.response();
            respond_text(Status::SERVICE_UNAVAILABLE, REASON, &mut response);
            delayed.finish(key, &self.lane, response);
        }
    }

    fn write_position(&self, channels: &[u32], id: u64, response: &mut Response) {
        let name = Name { id: Id { epoch: self.hub.epoch(), id }, mark: self.hub.mark_at(channels, id) };
        response.encoded_fields(b"Cache-Control: no-store\r\n").header("Last-Event-ID", name.to_string());
    }

    /// Writes the messages of these channels after `cursor`; returns the last id examined if there are none.
    fn write_news(
        &self,
        channels: &[u32],
        plan: &Plan,
        cursor: u64,
        has_gap: bool,
        response: &mut Response,
    ) -> Result<(), u64> {
        let fetched = self.hub.fetch(channels, cursor, u64::MAX, RESPONSE_BYTES_MAX);
        let is_lost = fetched.has_gap && cursor > 0 && plan.history.kind == Kind::Log;
        let has_gap = has_gap || is_lost;
        if fetched.messages.is_empty() && !has_gap {
            return Err(fetched.up_to);
        }
        response.encoded_fields(b"Content-Type: application/json\r\n");
        self.write_position(channels, fetched.up_to, response);
        let body = response.buffer();
        body.push(b'[');
        if has_gap {
            self.hub.0.figures.gaps.add(1);
            body.extend_from_slice(b"{\"gap\":true},");
        }
        for (name, message) in &fetched.messages {
            message.write(Format::Json, name, self.hub.epoch(), body);
            body.push(b',');
        }
        if body.last() == Some(&b',') {
            body.pop();
        }
        body.push(b']');
        self.hub.0.figures.delivered.add(fetched.messages.len() as u64);
        Ok(())
    }

    /// Responds with the latest values of these keys, from the encodings made when they were published.
    pub(super) fn write_latest(
        &self,
        request: &Request<'_>,
        (channel, keys): (ChannelName<'_>, &[String]),
        line: Option<&Line>,
        response: &mut Response,
    ) {
        self.hub.0.figures.keys.add(keys.len() as u64);
        let found = self.hub.latest(channel, keys);
        // Ids only grow, so the highest one changes whenever a value changes.
        let newest = found.iter().flatten().map(|message| message.id).max().unwrap_or(0);
        let id = Id { epoch: self.hub.epoch(), id: newest };
        let tag = match line {
            Some(line) => format!("\"{id}-{:x}\"", line.tag()),
            None => format!("\"{id}\""),
        };
        response.encoded_fields(b"Cache-Control: no-cache\r\n").header("ETag", &tag);
        if evaluate(&request.head, tag.as_bytes(), None) == Decision::NotModified {
            response.set_status(Status::NOT_MODIFIED);
            return;
        }
        let found = keys.iter().zip(&found).filter_map(|(key, message)| Some((key, message.as_ref()?)));
        let Some(line) = line else { return write_object(found.map(|(_, message)| message), response) };
        response.header("Content-Type", line.content_type());
        let body = response.buffer();
        found.for_each(|(key, message)| line.write(key, message.as_value(), body));
    }
}

/// Values as one JSON object.
fn write_object<'m>(found: impl Iterator<Item = &'m Arc<Message>>, response: &mut Response) {
    response.encoded_fields(b"Content-Type: application/json\r\n");
    let body = response.buffer();
    body.push(b'{');
    for message in found {
        body.extend_from_slice(message.as_member());
        body.push(b',');
    }
    if body.last() == Some(&b',') {
        body.pop();
    }
    body.push(b'}');
}
