//! Requests for channels: subscribe, poll, publish.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use flatout_engine::websocket::{accept, refuse};
use flatout_engine::{Body, BodyPlan, ExchangeKey, Lane, Reply, Request, RequestBody, Response};
use flatout_lane::clock;
use flatout_wire::websocket::UpgradeOffer;
use flatout_wire::{Head, Method, Status};

use super::hub::{NotJoined, Refused};
use super::message::{Format, Publication, quoted};
use super::plan::{ChannelName, Kind, Plan};
use super::poll::LOOK_TIME;
use super::request::{Wanted, Who, allow_origin, listed_origin, may_come};
use super::token::{Expiry, allows, is_same};
use super::waiting_publishes::{Batch, WaitingPublish};
use super::worker::{StartPosition, Ticket, WorkerChannels};
use flatout_gateway::{Finish, ResponseOrigin};

/// The limit for a batch of messages.
const BATCH_BYTES_MAX: usize = 4 << 20;

/// Messages of a batch.
const BATCH_MAX: usize = 10_000;

/// One message of a batch.
#[derive(serde::Deserialize)]
struct Entry<'e> {
    channel: &'e str,
    #[serde(borrow)]
    data: &'e serde_json::value::RawValue,
    event: Option<Cow<'e, str>>,
    key: Option<Cow<'e, str>>,
}

/// A waiting publish, on its worker.
pub(super) struct DelayedResponse {
    /// The response is a list of ids, not a single id.
    is_list: bool,
    finish: Rc<dyn Finish>,
}

impl DelayedResponse {
    pub(super) fn finish(self, key: ExchangeKey, lane: &Lane, mut response: Box<Response>) {
        self.finish.finish(&mut response, ResponseOrigin::Here);
        lane.answer(key, response);
    }
}

impl WorkerChannels {
    /// How the body after this head is to be read.
    /// `bytes_max` is the route's limit.
    pub fn body(&self, head: &Head<'_>, plan: &Plan, bytes_max: Option<u64>) -> BodyPlan {
        let own = plan.message_bytes_max.max(BATCH_BYTES_MAX) as u64;
        match head.method {
            // A body without a publish request is not collected.
            Method::Post if is_publisher(head, plan) => {
                BodyPlan::Whole { bytes_max: Some(bytes_max.map_or(own, |bytes_max| bytes_max.min(own))) }
            }
            _ => BodyPlan::None,
        }
    }

    /// Handles one request. `finish` is called on a response that is sent later; for an immediate response, the
    /// caller has to call it.
    pub fn call(
        self: &Rc<Self>,
        request: &Request<'_>,
        plan: &Arc<Plan>,
        who: Who,
        finish: Rc<dyn Finish>,
        response: &mut Response,
    ) -> Reply {
        let wanted = match Wanted::of(&request.head, request.path, plan) {
            Ok(wanted) => wanted,
            Err(reason) => return respond_text(Status::BAD_REQUEST, reason, response),
        };
        match request.head.method {
            Method::Get | Method::Head => self.subscribe(request, plan, who, wanted, finish, response),
            Method::Post => self.publish(request, plan, &wanted, finish, response),
            _ => {
                response.header("Allow", "GET, HEAD, POST");
                respond_text(Status::METHOD_NOT_ALLOWED, "subscribe with GET, publish with POST", response)
            }
        }
    }

    fn subscribe(
        self: &Rc<Self>,
        request: &Request<'_>,
        plan: &Arc<Plan>,
        who: Who,
        wanted: Wanted,
        finish: Rc<dyn Finish>,
        response: &mut Response,
    ) -> Reply {
        let head = &request.head;
        let Some(first) = wanted.channels.first() else {
            return respond_text(Status::NOT_FOUND, "the path has no channel", response);
        };
        if !may_come(head, plan) {
            return respond_text(Status::FORBIDDEN, "pages of this origin may not subscribe", response);
        }
        let Some(expiry) = expiry_of(head, plan, &wanted) else {
            return respond_text(Status::FORBIDDEN, "no token for these channels", response);
        };
        if let Some(origin) = listed_origin(head, plan) {
            allow_origin(origin, response);
        }
        if wanted.presence {
            response.encoded_fields(b"Cache-Control: no-store\r\n");
            return json(&self.presence(plan, &wanted), response);
        }
        let upgrade = UpgradeOffer::of(head);
        if let (Some(keys), None) = (&wanted.keys, &upgrade) {
            let channel = ChannelName { group: &plan.group, name: first };
            self.write_latest(request, (channel, keys), plan.keys_line.as_ref(), response);
            return Reply::Now;
        }
        if head.method == Method::Head {
            response.encoded_fields(b"Content-Type: text/event-stream\r\nCache-Control: no-store\r\n");
            return Reply::Now;
        }
        let asked = match upgrade.transpose() {
            Ok(asked) => asked,
            Err(refusal) => {
                refuse(refusal, response);
                return Reply::Now;
            }
        };
        let ticket = match self.reserve(&wanted.channels, plan, who.address) {
            Ok(ticket) => ticket,
            Err(why) => return not_joined(why, response),
        };
        let (cursor, has_gap) = self.start_of(&ticket, plan, &wanted);
        if wanted.polls {
            return self.poll(request, ticket, plan, (cursor, has_gap, expiry), finish, response);
        }
        let format = format_of(asked.as_ref(), wanted.channels.len());
        match asked {
            Some(mut asked) => {
                asked.deflate = asked.deflate.filter(|_| format == Format::PackedFrames);
                accept(&asked, response);
            }
            None => {
                response.encoded_fields(
                    b"Content-Type: text/event-stream\r\nCache-Control: no-store\r\nX-Accel-Buffering: no\r\n",
                );
            }
        }
        let beginning = StartPosition { ticket, plan: plan.clone(), format, cursor, has_gap, expiry };
        let channels = self.clone();
        response.set_body(Body::Take(Box::new(move |taken| {
            channels.open(beginning, taken);
            Box::pin(std::future::ready(()))
        })));
        Reply::Now
    }

    /// The number of subscribers of each channel, as JSON.
    fn presence(&self, plan: &Plan, wanted: &Wanted) -> String {
        let counts = wanted.channels.iter().map(|name| (name, self.hub.subscribers(&plan.group, name)));
        let counts: Vec<String> = counts.map(|(name, count)| format!("{}:{count}", quoted(name))).collect();
        format!("{{{}}}", counts.join(","))
    }

    /// The cursor from which a subscriber gets messages, and whether some before it are lost.
    fn start_of(&self, ticket: &Ticket, plan: &Plan, wanted: &Wanted) -> (u64, bool) {
        let (cursor, has_gap) = match wanted.since.elsewhere(self.hub.epoch()) {
            Some(shared) => match self.hub.position_of(&ticket.channels, (shared.epoch, shared.id)) {
                Some(cursor) => (cursor, false),
                None => (0, true),
            },
            None => wanted.since.cursor(self.hub.epoch(), ticket.tip),
        };
        // New subscribers of latest values get the current ones.
        let gets_current =
            plan.history.kind == Kind::Latest && wanted.since == super::request::Since::Now && !wanted.polls;
        (if gets_current { 0 } else { cursor }, has_gap)
    }

    fn publish(
        &self,
        request: &Request<'_>,
        plan: &Plan,
        wanted: &Wanted,
        finish: Rc<dyn Finish>,
        response: &mut Response,
    ) -> Reply {
        if plan.publish_token.is_none() {
            return respond_text(
                Status::FORBIDDEN,
                "publishing needs a push-token, which is not set",
                response,
            );
        }
        if !is_publisher(&request.head, plan) {
            response.header("WWW-Authenticate", "Bearer");
            return respond_text(
                Status::UNAUTHORIZED,
                "publishing needs Authorization: Bearer TOKEN",
                response,
            );
        }
        let RequestBody::Whole { bytes, .. } = &request.body else {
            return respond_text(Status::BAD_REQUEST, "the message is incomplete", response);
        };
        if wanted.channels.is_empty() {
            return match batch(bytes) {
                Ok(entries) => self.publish_all(request, entries, plan, (true, finish), response),
                Err((status, reason)) => respond_text(status, reason, response),
            };
        }
        let is_json = request.head.field("content-type").is_some_and(|kind| {
            kind.split(|&byte| byte == b';')
                .next()
                .is_some_and(|kind| kind.trim_ascii().eq_ignore_ascii_case(b"application/json"))
        });
        if is_json && serde_json::from_slice::<serde::de::IgnoredAny>(bytes).is_err() {
            return respond_text(
                Status::BAD_REQUEST,
                "the Content-Type is JSON, but the message is not",
                response,
            );
        }
        let publication = Publication {
            data: bytes.to_vec().into(),
            is_json,
            event: wanted.event.as_deref().map(Into::into),
            key: wanted.key.as_deref().map(Into::into),
        };
        let entries = wanted.channels.iter().map(|channel| (channel.clone(), publication.clone())).collect();
        self.publish_all(request, entries, plan, (wanted.channels.len() > 1, finish), response)
    }

    /// Publishes up to the first message that is refused. While the channels move to another process, the request
    /// waits.
    fn publish_all(
        &self,
        request: &Request<'_>,
        entries: VecDeque<(String, Publication)>,
        plan: &Plan,
        (is_list, finish): (bool, Rc<dyn Finish>),
        response: &mut Response,
    ) -> Reply {
        let mut batch = Batch {
            entries,
            group: plan.group.clone(),
            history: plan.history,
            message_bytes_max: plan.message_bytes_max,
            ..Batch::default()
        };
        self.hub.publish_batch(&mut batch);
        let Some(ticker) = self.ticker.filter(|_| batch.refused == Some(Refused::Moving)) else {
            write_published(&batch, is_list, response);
            return Reply::Now;
        };
        let key = request.park();
        self.lane.attach(key, ticker);
        self.lane.set_deadline(ticker, Some(LOOK_TIME));
        self.state.borrow_mut().delayed_responses.insert(key, DelayedResponse { is_list, finish });
        let waiting = WaitingPublish { worker: self.worker, key, batch, since: clock::now().ticks };
        if let Some(mut waiting) = self.hub.hold(waiting) {
            // Publishing has resumed, or too many wait.
            self.hub.publish_batch(&mut waiting.batch);
            self.answer_publish(key, waiting.batch);
        }
        Reply::Parked
    }

    /// Responds to a publish that has waited.
    pub(super) fn answer_publish(&self, key: ExchangeKey, batch: Batch) {
        // Its client may have left, or have got a response when it had waited too long.
        let Some(delayed) = self.state.borrow_mut().delayed_responses.remove(&key) else { return };
        let mut response = self.lane.response();
        write_published(&batch, delayed.is_list, &mut response);
        delayed.finish(key, &self.lane, response);
    }

    /// Ends publishes that have waited too long.
    pub(super) fn end_overdue_publishes(&self) {
        let (overdue, has_others) = self.hub.overdue(self.worker);
        overdue.into_iter().for_each(|waiting| self.answer_publish(waiting.key, waiting.batch));
        if let (Some(ticker), true) = (self.ticker, has_others) {
            self.lane.set_deadline(ticker, Some(LOOK_TIME));
        }
    }

    /// A client that waited for its publish has disconnected. The message is published nevertheless.
    pub(super) fn forget_publish(&self, key: ExchangeKey) {
        let gone = self.state.borrow_mut().delayed_responses.remove(&key);
        drop(gone);
    }
}

/// Until when a request may subscribe to its channels; `None` if its token does not allow that.
fn expiry_of(head: &Head<'_>, plan: &Plan, wanted: &Wanted) -> Option<Expiry> {
    let Some(secret) = &plan.subscribe_secret else { return Some(Expiry::NEVER) };
    let token = bearer(head).map(String::from_utf8_lossy);
    let token = wanted.token.as_deref().or(token.as_deref()).unwrap_or_default();
    allows(token, secret, &wanted.channels, clock::now().unix_seconds)
}

/// The form of messages for a WebSocket, if it is one, or an event stream with this many channels.
fn format_of(upgrade: Option<&UpgradeOffer>, channels: usize) -> Format {
    match upgrade {
        Some(offer) if offer.deflate.is_some_and(|deflate| deflate.message_bytes_max() == usize::MAX) => {
            Format::PackedFrames
        }
        Some(_) => Format::Frames,
        None if channels > 1 => Format::NamedEvents,
        None => Format::Events,
    }
}

/// The messages of a batch, or why it is invalid.
fn batch(bytes: &[u8]) -> Result<VecDeque<(String, Publication)>, (Status, &'static str)> {
    let entries = serde_json::from_slice::<Vec<Entry<'_>>>(bytes).map_err(|_| {
        let reason =
            "a batch is JSON: [{\"channel\": NAME, \"data\": VALUE, \"event\": NAME, \"key\": NAME}, …]";
        (Status::BAD_REQUEST, reason)
    })?;
    if entries.len() > BATCH_MAX {
        return Err((Status::CONTENT_TOO_LARGE, "a batch has at most 10000 messages"));
    }
    let read = |entry: &Entry<'_>| {
        let text = serde_json::from_str::<String>(entry.data.get()).ok();
        let publication = Publication {
            is_json: text.is_none(),
            data: text.unwrap_or_else(|| entry.data.get().to_owned()).into(),
            event: entry.event.as_deref().map(Into::into),
            key: entry.key.as_deref().map(Into::into),
        };
        (entry.channel.to_owned(), publication)
    };
    Ok(entries.iter().map(read).collect())
}

/// Writes the result of a publish.
fn write_published(batch: &Batch, is_list: bool, response: &mut Response) {
    match (batch.refused, &batch.ids[..]) {
        (Some(refused), ids) => {
            not_published(refused, response);
            response.header("X-Published", ids.len().to_string());
        }
        (None, [id]) if !is_list => drop(json(&format!("{{\"id\":\"{id}\"}}"), response)),
        (None, []) => drop(json("{\"ids\":[]}", response)),
        (None, ids) => drop(json(&format!("{{\"ids\":[\"{}\"]}}", ids.join("\",\"")), response)),
    }
}

/// Whether the request may publish.
fn is_publisher(head: &Head<'_>, plan: &Plan) -> bool {
    match (&plan.publish_token, bearer(head)) {
        (Some(token), Some(received)) => is_same(token.as_bytes(), received),
        _ => false,
    }
}

fn bearer<'b>(head: &Head<'b>) -> Option<&'b [u8]> {
    let (scheme, token) = head.field("authorization")?.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| token.trim_ascii())
}

fn not_joined(why: NotJoined, response: &mut Response) -> Reply {
    if matches!(why, NotJoined::Full | NotJoined::Address) {
        response.header("Retry-After", "5");
    }
    match why {
        NotJoined::Full => respond_text(Status::SERVICE_UNAVAILABLE, "too many subscribers", response),
        NotJoined::Address => {
            respond_text(Status::TOO_MANY_REQUESTS, "too many subscribers from this address", response)
        }
        NotJoined::Kind => respond_text(Status::CONFLICT, &Refused::Kind.to_string(), response),
        NotJoined::Removed => respond_text(Status::NOT_FOUND, &Refused::Removed.to_string(), response),
    }
}

fn not_published(refused: Refused, response: &mut Response) -> Reply {
    let status = match refused {
        Refused::Name | Refused::Text => Status::BAD_REQUEST,
        Refused::TooLarge => Status::CONTENT_TOO_LARGE,
        Refused::Full => Status::SERVICE_UNAVAILABLE,
        Refused::Kind => Status::CONFLICT,
        Refused::Removed => Status::NOT_FOUND,
        Refused::Moving => {
            response.header("Retry-After", "1");
            Status::SERVICE_UNAVAILABLE
        }
    };
    respond_text(status, &refused.to_string(), response)
}

pub(super) fn respond_text(status: Status, reason: &str, response: &mut Response) -> Reply {
    response.set_status(status).encoded_fields(b"Content-Type: text/plain; charset=utf-8\r\n");
    let body = response.buffer();
    body.extend_from_slice(reason.as_bytes());
    body.push(b'\n');
    Reply::Now
}

fn json(text: &str, response: &mut Response) -> Reply {
    response.encoded_fields(b"Content-Type: application/json\r\n");
    response.buffer().extend_from_slice(text.as_bytes());
    Reply::Now
}
