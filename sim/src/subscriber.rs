//! Publishers of messages, and subscribers that get them over any transport: they come, read slowly, break off, and come back over the same
//! transport or another.

use std::path::Path;

use flatout_push::{History, Hub, Kind, Plan};

use crate::bus::Bus;
use crate::client::connect;
use crate::event_stream::EventStream;
use crate::model::push::{CHANNELS, CHANNELS_PATH, KEYS, Position, channel_name, key_name};
use crate::publication::{Progress, Publication};
use crate::scene::{Channels, Occasion};
use crate::socket::{Received, Sent, Socket};
use crate::subscriber_event::{self, Inbox, SubscriberEvent, Transport};
use crate::token;
use crate::trace::{Actor, Event};
use crate::world::Shared;

/// The longest usual time between two messages, and the longest in rare cases.
const PUBLISH_PAUSE_NS_MAX: u64 = 1_000_000_000;
const PUBLISH_PAUSE_NS_LONG: u64 = 60_000_000_000;

/// The longest time between two messages of a busy channel, and how its subscribers read: at most so much at once, with such a pause at one
/// of so many steps.
const BUSY_PAUSE_NS_MAX: u64 = 40_000_000;
const BUSY_READ_BYTES_MAX: usize = 6_000;
const BUSY_READS_PER_PAUSE: u8 = 8;

/// At one of so many steps such a subscriber pauses for longer, or breaks off.
const BUSY_INTERRUPT_STEPS: u8 = 255;

/// Messages that are published at once.
const BURST_MAX: u32 = 40;

/// The longest pause of a subscriber.
const PAUSE_NS_MAX: u64 = 10_000_000_000;

/// The longest body of a long poll. It is short enough that the server discards it and keeps the connection open.
const UNWANTED_BYTES_MAX: usize = 100_000;

/// At one of so many steps it pauses, or breaks off.
const INTERRUPT_STEPS: u8 = 32;

/// How long a message may be on its way to a subscriber that reads.
const ARRIVAL_NS_MAX: u64 = 10_000_000_000;

/// The channels of all routes are the same.
pub(crate) const GROUP: &str = "channels";

/// What a route with channels is served by.
pub(crate) fn plan(channels: Channels) -> Plan {
    Plan {
        prefix: CHANNELS_PATH.to_owned(),
        group: GROUP.to_owned(),
        history: match channels.is_latest {
            true => History { kind: Kind::Latest, count: KEYS, age: channels.age },
            false => History { kind: Kind::Log, count: channels.history, age: channels.age },
        },
        lag_max: channels.lag_max,
        publish_token: Some(token::PUBLISHER.to_owned()),
        subscribe_secret: channels.has_tokens.then(|| token::SECRET.to_owned()),
        ..Plan::default()
    }
}

pub(crate) struct Publisher {
    random: fastrand::Rng,
    hub: Hub,
    /// The bus that delivers messages of another server.
    bus: Bus,
    /// The connection over which it publishes.
    over_http: Option<Publication>,
    left: u32,
    at_ns: u64,
}

impl Publisher {
    pub(crate) fn new(hub: Hub, channels: Option<Channels>, random: fastrand::Rng) -> Publisher {
        Publisher {
            random,
            hub,
            bus: Bus::default(),
            over_http: None,
            left: channels.map_or(0, |channels| channels.messages),
            at_ns: 0,
        }
    }

    /// Publishes to another server from now on.
    pub(crate) fn publish_to(&mut self, hub: Hub) {
        self.hub = hub;
    }

    pub(crate) fn wakes_at_ns(&self) -> Option<u64> {
        (self.left > 0).then_some(self.at_ns)
    }

    /// Publishes some messages, if it is time.
    pub(crate) fn step(&mut self, folder: &Path, shared: &mut Shared<'_>) -> Result<bool, String> {
        if let Some(publication) = self.over_http.take_if(|it| !it.is_idle()) {
            return self.go_on(publication, shared);
        }
        let Some(channels) = shared.scene.channels.filter(|_| self.left > 0) else { return Ok(false) };
        if shared.now_ns < self.at_ns {
            return Ok(false);
        }
        let count = if self.random.u8(..6) == 0 { self.random.u32(1..=BURST_MAX) } else { 1 }.min(self.left);
        if channels.is_over_http && self.random.u8(..3) == 0 {
            return self.send(channels, folder, shared);
        }
        let plan = plan(channels);
        for _ in 0..count {
            let channel = if channels.is_single { 0 } else { self.random.usize(..CHANNELS) };
            let comes_from_other = channels.has_bus && self.random.bool();
            if comes_from_other && self.random.u8(..8) == 0 {
                self.bus.lose(channel);
                continue;
            }
            if comes_from_other && self.random.u8(..12) == 0 {
                // The bus was without its server for a while, and is back.
                let lost = self.bus.take_lost();
                self.bus.report_tip(&self.hub, !lost.is_empty())?;
                lost.into_iter()
                    .for_each(|channel| shared.model.channels.publish_lost(channel, shared.now_ns));
                continue;
            }
            let lost = if comes_from_other { self.bus.take_lost() } else { Vec::new() };
            let has_lost = !lost.is_empty();
            lost.into_iter().for_each(|channel| shared.model.channels.publish_lost(channel, shared.now_ns));
            let text = shared.model.channels.next_text(&mut self.random);
            shared.event(Actor::Operator, Event::Publish(channel, text.len()));
            let name = channel_name(channel);
            let id = if comes_from_other {
                let again = self.random.u8(..8) == 0;
                self.bus.deliver(&self.hub, &name, &text, &plan, (has_lost, again))?;
                None
            } else {
                shared.model.channels.note_own(&text);
                let key = channels.is_latest.then(|| key_name(shared.model.channels.next_number()).into());
                let publication = flatout_push::Publication { key, ..text.into() };
                let id = self.hub.publish(&name, publication, &plan);
                Some(id.map_err(|refused| format!("a message was not published: {refused}"))?)
            };
            shared.model.channels.publish(channel, id, shared.now_ns);
        }
        if shared.scene.upgrades > 0 && self.random.u8(..4) == 0 {
            shared.invite_change(shared.now_ns);
        }
        self.left -= count;
        shared.model.channels.has_ended = self.left == 0;
        self.pause(channels, shared);
        Ok(true)
    }

    /// Sends messages over HTTP.
    fn send(&mut self, channels: Channels, folder: &Path, shared: &mut Shared<'_>) -> Result<bool, String> {
        let count = if self.random.u8(..4) == 0 { self.random.u32(1..=3) } else { 1 }.min(self.left);
        let has_token = self.random.u8(..8) > 0;
        let draw_channel =
            |random: &mut fastrand::Rng| if channels.is_single { 0 } else { random.usize(..CHANNELS) };
        let mut messages = Vec::new();
        for at in 0..count as usize {
            let channel = draw_channel(&mut self.random);
            let text = shared.model.channels.next_text_behind(at, &mut self.random);
            shared.event(Actor::Publisher, Event::Publish(channel, text.len()));
            messages.push((channel, text));
        }
        let mut publication = match self.over_http.take() {
            Some(publication) => publication,
            None => Publication::connect(folder, &mut self.random, shared)?,
        };
        let first = channels.is_latest.then(|| shared.model.channels.next_number());
        publication.begin(&messages, first, has_token, &mut self.random);
        shared.polls += 1;
        if has_token {
            shared.model.channels.send(messages.iter().map(|(channel, _)| *channel), shared.now_ns);
            self.left -= count;
        }
        if shared.scene.upgrades > 0 && self.random.u8(..4) == 0 {
            shared.invite_change(shared.now_ns);
        }
        self.over_http = Some(publication);
        Ok(true)
    }

    /// Goes on with what is published over HTTP.
    fn go_on(&mut self, mut publication: Publication, shared: &mut Shared<'_>) -> Result<bool, String> {
        let ids = match publication.step(&mut self.random, shared)? {
            progress @ (Progress::Nothing | Progress::Something) => {
                self.over_http = Some(publication);
                return Ok(progress == Progress::Something);
            }
            Progress::Published(ids) => Some(ids),
            Progress::Refused | Progress::Unknown => None,
        };
        match &ids {
            Some(_) => publication.texts().for_each(|text| shared.model.channels.note_own(text)),
            None if publication.has_token() => shared.model.channels.forget_own(),
            None => {}
        }
        shared.model.channels.arrive(ids, shared.now_ns);
        shared.model.channels.has_ended = self.left == 0;
        // A connection of its own for each of some.
        if self.left > 0 && self.random.bool() && publication.is_idle() {
            self.over_http = Some(publication);
        } else {
            shared.event(Actor::Publisher, Event::Close);
        }
        let Some(channels) = shared.scene.channels else { return Ok(true) };
        self.pause(channels, shared);
        Ok(true)
    }

    /// Waits until the next messages.
    fn pause(&mut self, channels: Channels, shared: &Shared<'_>) {
        let most = match self.random.u8(..24) {
            _ if channels.is_busy => BUSY_PAUSE_NS_MAX,
            0 => PUBLISH_PAUSE_NS_LONG,
            _ => PUBLISH_PAUSE_NS_MAX,
        };
        self.at_ns = shared.now_ns + self.random.u64(..most);
    }
}

pub(crate) struct Subscriber {
    number: usize,
    random: fastrand::Rng,
    position: Position,
    /// The id of the last event or the position that the server gave, sent back when it subscribes again.
    cursor: Option<String>,
    /// What it sends with its request.
    token: &'static str,
    connection: Option<Connection>,
    is_done: bool,
    wakes_at_ns: u64,
    /// It reads since then: before, messages could not arrive.
    reads_since_ns: u64,
}

struct Connection {
    link: Link,
    transport: Transport,
    output: Vec<u8>,
    inbox: Inbox,
    /// When it was first seen that its request is sent.
    asked_ns: Option<u64>,
    opened_ns: u64,
    /// It never pauses and never breaks off.
    is_steady: bool,
    /// It has paused, or one burst of messages is more than it may be behind: the server may find it too slow.
    is_slow: bool,
    /// Its token is wrong.
    is_refused: bool,
}

/// What it gets its messages over.
enum Link {
    Http1(Socket),
    Http2(Box<EventStream>),
}

impl Link {
    /// Whether the header of a proxy is not sent yet.
    fn is_announcing(&self) -> bool {
        match self {
            Link::Http1(socket) => socket.is_announcing(),
            Link::Http2(stream) => stream.is_announcing(),
        }
    }

    /// Whether something that was taken from the caller is still to be sent.
    fn has_unsent(&mut self) -> bool {
        match self {
            Link::Http1(socket) => socket.has_unsent(),
            Link::Http2(_) => false,
        }
    }
}

impl Subscriber {
    pub(crate) fn new(number: usize, is_single: bool, mut random: fastrand::Rng) -> Subscriber {
        let mut channels: Vec<usize> = (0..CHANNELS).collect();
        random.shuffle(&mut channels);
        channels.truncate(random.usize(1..=CHANNELS));
        if is_single {
            channels = vec![0];
        }
        Subscriber {
            number,
            position: crate::model::push::Channels::default().ask(channels),
            cursor: None,
            token: token::RIGHT,
            random,
            connection: None,
            is_done: false,
            wakes_at_ns: 0,
            reads_since_ns: 0,
        }
    }

    pub(crate) fn is_done(&self) -> bool {
        self.is_done
    }

    pub(crate) fn wakes_at_ns(&self) -> Option<u64> {
        (!self.is_done).then_some(self.wakes_at_ns)
    }

    /// Does one thing. Returns whether there was one.
    pub(crate) fn step(&mut self, folder: &Path, shared: &mut Shared<'_>) -> Result<bool, String> {
        if self.is_done || shared.now_ns < self.wakes_at_ns {
            return Ok(false);
        }
        let actor = Actor::Subscriber(self.number);
        let Some(connection) = &mut self.connection else {
            self.connect(folder, shared)?;
            return Ok(true);
        };
        if let Link::Http1(socket) = &mut connection.link
            && !connection.output.is_empty()
        {
            let piece = socket.draw_piece(&mut self.random, connection.output.len());
            match socket.send(&connection.output[..piece]) {
                Sent::Bytes(bytes) => {
                    connection.output.drain(..bytes);
                    shared.event(actor, Event::Sent(bytes));
                    return Ok(true);
                }
                Sent::Full => {}
                Sent::Broken => return self.end(shared),
            }
        }
        let is_busy = shared.scene.channels.is_some_and(|channels| channels.is_busy);
        let steps = if is_busy { BUSY_INTERRUPT_STEPS } else { INTERRUPT_STEPS };
        if !connection.is_steady && self.random.u8(..steps) == 0 && !connection.link.is_announcing() {
            return Ok(self.interrupt(shared));
        }
        self.receive(shared)
    }

    /// Pauses, or breaks off.
    fn interrupt(&mut self, shared: &mut Shared<'_>) -> bool {
        let actor = Actor::Subscriber(self.number);
        let pause_ns = self.random.u64(1..=PAUSE_NS_MAX);
        self.wakes_at_ns = shared.now_ns + pause_ns;
        self.reads_since_ns = self.wakes_at_ns;
        if self.random.bool() {
            shared.event(actor, Event::Close);
            self.connection = None;
        } else if let Some(connection) = &mut self.connection {
            connection.is_slow = true;
            shared.event(actor, Event::Pause(pause_ns / 1_000_000));
            // It may be behind then.
            shared.invite_on(Occasion::SubscriberIsBehind, shared.now_ns + pause_ns / 2);
        }
        true
    }

    fn connect(&mut self, folder: &Path, shared: &mut Shared<'_>) -> Result<(), String> {
        let actor = Actor::Subscriber(self.number);
        let transports = [Transport::Events, Transport::Events, Transport::Socket, Transport::Poll];
        let transport = *self.random.choice(&transports).expect("some");
        // Those of HTTP/2 do not move to another server.
        let may_stay = shared.scene.changes != Occasion::SubscriberIsBehind;
        let is_http2 = transport == Transport::Events && may_stay && self.random.bool();
        let socket = connect(folder, is_http2, &mut self.random, shared, actor)?;
        if self.cursor.is_none() {
            let gets_current = transport != Transport::Poll
                && shared.scene.channels.is_some_and(|channels| channels.is_latest);
            let channels = self.position.channels.clone();
            self.position = match gets_current {
                true => shared.model.channels.ask_current(channels),
                false => shared.model.channels.ask(channels),
            };
        }
        self.reads_since_ns = shared.now_ns;
        let has_tokens = shared.scene.channels.is_some_and(|channels| channels.has_tokens);
        let wrong = [token::OTHER, token::FORGED, "a.b.c"];
        let is_refused = has_tokens && self.random.u8(..8) == 0;
        self.token = match is_refused {
            true => *self.random.choice(&wrong).expect("some"),
            false => token::RIGHT,
        };
        let (link, output) = match is_http2 {
            true => {
                let (path, cursor) = (self.path(), self.cursor.as_deref());
                let stream = EventStream::new(socket, &path, (cursor, self.token), &mut self.random);
                (Link::Http2(Box::new(stream)), Vec::new())
            }
            false => (Link::Http1(socket), self.request(transport)),
        };
        self.connection = Some(Connection {
            link,
            transport,
            output,
            inbox: Inbox::new(transport),
            asked_ns: None,
            opened_ns: shared.now_ns,
            is_steady: self.random.u8(..3) == 0,
            is_slow: shared.scene.channels.is_some_and(|channels| channels.lag_max < BURST_MAX),
            is_refused,
        });
        Ok(())
    }

    fn path(&self) -> String {
        let names: Vec<String> =
            self.position.channels.iter().map(|channel| channel_name(*channel)).collect();
        format!("{CHANNELS_PATH}/{}", names.join(","))
    }

    fn request(&mut self, transport: Transport) -> Vec<u8> {
        let path = self.path();
        let has_body = transport == Transport::Poll && self.random.u8(..4) == 0;
        let body_length = if has_body { self.random.usize(1..=UNWANTED_BYTES_MAX) } else { 0 };
        transport.request(&path, (self.cursor.as_deref(), self.token), body_length)
    }

    fn receive(&mut self, shared: &mut Shared<'_>) -> Result<bool, String> {
        let actor = Actor::Subscriber(self.number);
        let Some(connection) = &mut self.connection else { return Ok(false) };
        let (input, random) = (&mut connection.inbox.input, &mut self.random);
        let is_busy = shared.scene.channels.is_some_and(|channels| channels.is_busy);
        let is_http2 = matches!(connection.link, Link::Http2(_));
        let received = match &mut connection.link {
            Link::Http1(socket) => {
                let most = match is_busy {
                    true => random.usize(1..=BUSY_READ_BYTES_MAX),
                    false => socket.draw_room(random),
                };
                let received = socket.receive(input, most);
                if let Received::Bytes(bytes) = received {
                    shared.event(actor, Event::Received(bytes));
                }
                received
            }
            Link::Http2(stream) => stream.step(input, random, shared, actor),
        };
        match received {
            Received::Nothing => return self.rest(shared),
            Received::Bytes(_) => {}
            // With TLS the last bytes come together with the end.
            Received::End | Received::Reset => {}
        }
        let all = connection.inbox.take();
        let all = all.map_err(|message| format!("subscriber {}: {message}", self.number))?;
        for event in all {
            self.take(event, shared).map_err(|message| format!("subscriber {}: {message}", self.number))?;
        }
        match received {
            Received::End | Received::Reset => self.end(shared),
            Received::Nothing | Received::Bytes(_) => {
                // With the smallest windows, streams of HTTP/2 have many more steps.
                if is_busy && !is_http2 && self.random.u8(..BUSY_READS_PER_PAUSE) == 0 {
                    self.wakes_at_ns = shared.now_ns + self.random.u64(1..=BUSY_PAUSE_NS_MAX);
                }
                Ok(true)
            }
        }
    }

    fn take(&mut self, event: SubscriberEvent, shared: &mut Shared<'_>) -> Result<(), String> {
        let Some(connection) = &mut self.connection else { return Ok(()) };
        if connection.is_refused && !matches!(event, SubscriberEvent::End(403 | 408 | 503)) {
            return Err(format!("a subscriber with a wrong token got {event:?}"));
        }
        match event {
            SubscriberEvent::End(403) if connection.is_refused => {
                shared.event(Actor::Subscriber(self.number), Event::Close);
                self.connection = None;
            }
            // One that goes on somewhere gets all from there.
            SubscriberEvent::Joined if self.cursor.is_some() => {}
            SubscriberEvent::Joined => shared.model.channels.joined(&mut self.position),
            SubscriberEvent::Gap => shared.model.channels.lose(&mut self.position, shared.now_ns),
            SubscriberEvent::Message { id, data } => {
                if self.cursor.is_none() && connection.transport == Transport::Poll {
                    // If it was not seen that its request is sent, that was only now. The server may have had it at any time until the clock has
                    // moved.
                    let asked_ns = connection.asked_ns.filter(|_| shared.scene.accepts_at_once());
                    let asked_ns = asked_ns.unwrap_or(shared.now_ns);
                    shared.model.channels.joined_until(&mut self.position, asked_ns);
                }
                shared.model.channels.received(&mut self.position, &id, &data)?;
                self.cursor = Some(id);
            }
            SubscriberEvent::Polled { position, closes } => {
                if self.cursor.replace(position).is_none() {
                    if shared.may_be_of_former(connection.opened_ns) {
                        shared.model.channels.joined_former(&mut self.position);
                    }
                    shared.model.channels.joined(&mut self.position);
                }
                let request = self.request(Transport::Poll);
                if closes {
                    shared.event(Actor::Subscriber(self.number), Event::Close);
                    self.connection = None;
                } else if let Some(connection) = &mut self.connection {
                    shared.polls += 1;
                    // The end of the last request's body may still be unsent.
                    connection.output.extend(request);
                    connection.asked_ns = None;
                }
            }
            SubscriberEvent::Ping(payload) => {
                connection.output.extend(subscriber_event::frame(subscriber_event::PONG, &payload))
            }
            // 1013: it is too slow. 1012: it was not moved to the server that has taken over.
            SubscriberEvent::End(code)
                if code == 1013 && connection.is_slow
                    || code == 1012 && shared.may_be_of_former(connection.opened_ns) =>
            {
                if connection.transport == Transport::Socket {
                    let close = subscriber_event::frame(subscriber_event::CLOSE, &code.to_be_bytes());
                    connection.output.extend(close);
                }
            }
            SubscriberEvent::End(408) if connection.is_slow => {}
            SubscriberEvent::End(503) if shared.may_be_of_former(connection.opened_ns) => {
                shared.event(Actor::Subscriber(self.number), Event::Close);
                self.connection = None;
            }
            SubscriberEvent::End(code) => return Err(format!("the server ends the subscription: {code}")),
        }
        Ok(())
    }

    /// There is nothing to receive.
    fn rest(&mut self, shared: &mut Shared<'_>) -> Result<bool, String> {
        // The clock moves only when nobody has anything to do: then the server has had the request.
        if let Some(connection) = &mut self.connection
            && connection.transport == Transport::Poll
            && self.cursor.is_none()
        {
            if connection.output.is_empty() && !connection.link.has_unsent() {
                connection.asked_ns.get_or_insert(shared.now_ns);
            }
            let is_asking = connection.asked_ns.is_none_or(|asked_ns| asked_ns == shared.now_ns);
            if is_asking || !shared.scene.accepts_at_once() {
                shared.model.channels.joined(&mut self.position);
            }
        }
        let Some((awaited, published_ns)) = shared.model.channels.awaited(&self.position) else {
            if !shared.model.channels.has_ended {
                return Ok(false);
            }
            shared.event(Actor::Subscriber(self.number), Event::Close);
            (self.connection, self.is_done) = (None, true);
            return Ok(true);
        };
        // With a limit on connections, this one may wait long until it is accepted.
        if shared.scene.connections_max.is_none()
            && shared.now_ns > published_ns.max(self.reads_since_ns) + ARRIVAL_NS_MAX
        {
            let seconds = ARRIVAL_NS_MAX / 1_000_000_000;
            return Err(format!(
                "subscriber {}: message {awaited} has not come within {seconds} s",
                self.number
            ));
        }
        Ok(false)
    }

    /// The server has ended the connection.
    fn end(&mut self, shared: &mut Shared<'_>) -> Result<bool, String> {
        shared.event(Actor::Subscriber(self.number), Event::Closed);
        // A slow subscriber may be closed without a reason. After a long poll with `Connection: close` there is no connection any more.
        let is_excused = self
            .connection
            .take()
            .is_none_or(|connection| connection.is_slow || shared.may_be_of_former(connection.opened_ns));
        if !is_excused {
            return Err(format!(
                "subscriber {}: the server has ended the stream of one that reads",
                self.number
            ));
        }
        Ok(true)
    }
}
