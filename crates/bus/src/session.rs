//! One connection to a NATS server, from the greeting to its end.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Weak;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use async_nats::{Client, ConnectErrorKind, ConnectOptions, Event, Message, Subscriber};
use bytes::Bytes;
use flatout_engine::say;
use futures_core::Stream;
use tokio::sync::watch;
use tokio::task::coop::has_budget_remaining;
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::backlog::Backlog;
use super::history::{StoredMessage, StreamHistory, StreamPosition};
use super::nats::Shared;
use super::outbox::{ACKNOWLEDGED_TIME_MAX, WINDOW};
use super::server_info;
use super::{BusState, Credentials, Joined, Parcel, Plan, Relay, Server, Topic};

/// Time limit to connect, and for the first marker to come back.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(5);

/// The interval of pings to a silent server. After the third without a response the connection is closed.
const PING_TIME: Duration = Duration::from_secs(2);

/// Maximum number of received parcels in the queue; [`Backlog`] limits their bytes. Above it, parcels are lost, which
/// is detected by their numbers.
const RECEIVED_MAX: usize = 64 << 10;

/// How often [`Relay::tick`] is called.
const TICK_TIME: Duration = Duration::from_millis(250);

/// Above this time between two ticks, the process was suspended.
const TICK_LATE_TIME: Duration = Duration::from_secs(2);

/// Maximum number of characters shown of a server's text.
const SHOWN_MAX: usize = 200;

/// One connection.
pub(super) struct Session<'s> {
    pub(super) shared: &'s Shared,
    pub(super) member: &'s Weak<Relay>,
    pub(super) server: &'s Server,
    /// A random number that identifies the markers of this session.
    pub(super) nonce: u64,
    /// Since when the bus has been disconnected, if an attempt has failed.
    pub(super) away_since: Option<Instant>,
    /// The last sync that was sent.
    pub(super) synced: u64,
}

impl Session<'_> {
    /// Runs the session. Returns why it ended.
    pub(super) async fn run(&mut self) -> String {
        let greeting =
            timeout(CONNECT_TIME_MAX, server_info::check(&self.server.host, self.server.port)).await;
        match greeting {
            Err(_) => return "it did not respond in time".to_owned(),
            Ok(Err(why)) => return why,
            Ok(Ok(())) => {}
        }
        let (ended, mut why_ended) = watch::channel(None);
        let connecting = connect(self.server.clone(), ended);
        // In a separate task: if the library panics on a server's data, only the task ends.
        let client = match tokio::spawn(connecting).await {
            Ok(Ok(client)) => client,
            Ok(Err(why)) => return why,
            Err(_) => return "it violates the NATS protocol".to_owned(),
        };
        self.shared.lock().outbox.rewind();
        tokio::select! {
            why = self.serve(&client) => why,
            why = why_ended.wait_for(Option::is_some) => match why {
                Ok(why) => why.clone().unwrap_or_default(),
                Err(_) => "the connection has ended".to_owned(),
            },
        }
    }

    async fn serve(&mut self, client: &Client) -> String {
        let Plan { group, history, .. } = &self.shared.plan;
        let ended = || "the connection has ended".to_owned();
        // With a history, messages come from the stream only; other topics come from this subscription.
        let subject = if history.is_some() { format!("{group}.*") } else { format!("{group}.>") };
        let Ok(mut subscriber) = client.subscribe(subject).await else { return ended() };
        let seen = self.shared.lock().seen;
        let stream = match history {
            Some(age_max) => StreamHistory::open(client, group, *age_max, seen).await,
            None => Ok(StreamHistory::nothing()),
        };
        let mut stream = match stream {
            Ok(stream) => stream,
            Err(why) => return why,
        };
        // When the marker comes back, the subscription is active.
        let marker = self.marker(0);
        if client.publish(format!("{group}.join"), marker.clone()).await.is_err() {
            return ended();
        }
        let mut ticks = interval(TICK_TIME);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut tick_at = Instant::now();
        let (mut waits_since, mut has_come_back, mut is_joined) = (Instant::now(), false, false);
        let (statistics, mut backlog) = (client.statistics(), Backlog::default());
        let received = || statistics.in_bytes.load(Ordering::Relaxed);
        loop {
            if backlog.is_over(received()) {
                return "more arrives than this server can take".to_owned();
            }
            let Some(member) = self.member.upgrade() else { return String::new() };
            if has_come_back && stream.pending == 0 && !is_joined {
                is_joined = true;
                self.join(&member, stream.has_missed);
            }
            // In this order: the marker follows everything that was sent.
            if is_joined && !(self.pump(client).await && self.put_sync(client).await) {
                return ended();
            }
            drop(member);
            tokio::select! {
                message = next(&mut subscriber, || backlog.clear(received())) => match message {
                    Some(message) if message.payload == marker => has_come_back = true,
                    Some(message) => {
                        self.receive_live(&message);
                        backlog.take(message.length);
                    }
                    None => return ended(),
                },
                stored = stream.next() => match stored {
                    Ok(stored) => {
                        self.receive_stored(&stored, stream.stream_ns);
                        waits_since = Instant::now();
                    }
                    Err(why) => return why,
                },
                () = self.shared.work.notified() => {}
                _ = ticks.tick() => match (is_joined, self.member.upgrade()) {
                    (true, Some(member)) => {
                        member.tick();
                        let now = Instant::now();
                        if now.duration_since(std::mem::replace(&mut tick_at, now)) >= TICK_LATE_TIME {
                            self.shared.lock().outbox.restart_clock(now);
                        } else if let Err(why) = self.check_acknowledged() {
                            return why;
                        }
                    }
                    (false, _) if waits_since.elapsed() <= CONNECT_TIME_MAX => {}
                    // The remaining messages have expired meanwhile.
                    (false, _) if has_come_back => stream.pending = 0,
                    (false, _) => {
                        return format!("own messages do not come back; the user needs permission to publish and subscribe to {group}.>");
                    }
                    _ => {}
                },
            }
        }
    }

    fn join(&self, member: &Relay, has_missed: bool) {
        let how = {
            let mut standing = self.shared.lock();
            standing.state = BusState::Joined;
            match self.away_since {
                _ if standing.lost > 0 => Joined::Again,
                Some(_) => Joined::Late,
                None => Joined::AtOnce,
            }
        };
        if has_missed {
            member.missed();
        }
        member.joined(how);
        match self.away_since {
            Some(since) => {
                let away_s = since.elapsed().as_secs_f64();
                say(format_args!("joined the bus at {} after {away_s:.1} s", self.server));
            }
            None => say(format_args!("joined the bus at {}", self.server)),
        }
        self.shared.news.notify_all();
    }

    /// Sends messages again that the stream does not store. The connection stays, because purges are still carried.
    ///
    /// # Errors
    /// Purges, or messages of a bus without a history, are not acknowledged: the connection is not usable.
    fn check_acknowledged(&self) -> Result<(), String> {
        let mut standing = self.shared.lock();
        let Some(topic) = standing.outbox.stuck(Instant::now()) else { return Ok(()) };
        let seconds = ACKNOWLEDGED_TIME_MAX.as_secs();
        if topic == Topic::Purge || self.shared.plan.history.is_none() {
            return Err(format!("messages sent to the bus were not acknowledged for {seconds} s"));
        }
        standing.outbox.rewind_messages();
        if !std::mem::replace(&mut standing.has_reported_unstored, true) {
            say(format_args!(
                "the bus has stored none of the messages sent to it for {seconds} s (is the stream {}_push full, or of other subjects?); \
                 they are sent again until it does",
                self.shared.plan.group
            ));
        }
        Ok(())
    }

    /// A marker: a message that this session sends to itself.
    fn marker(&self, number: u64) -> Bytes {
        format!("{:x}-{number}", self.nonce).into()
    }

    /// If a sync is requested, sends a marker: it comes back after everything that others have sent so far.
    /// Returns whether the connection is still open.
    async fn put_sync(&mut self, client: &Client) -> bool {
        let asked = self.shared.lock().syncs;
        if asked == std::mem::replace(&mut self.synced, asked) {
            return true;
        }
        let subject = format!("{}.join", self.shared.plan.group);
        client.publish(subject, self.marker(asked)).await.is_ok()
    }

    fn receive_stored(&self, stored: &StoredMessage, stream_ns: i128) {
        self.receive(&stored.bytes, stored.age, true);
        self.shared.lock().seen = StreamPosition { stream_ns, sequence: stored.sequence };
    }

    fn receive_live(&self, message: &Message) {
        let topic = message.subject.as_str().strip_prefix(self.shared.plan.group.as_str());
        let topic = topic.and_then(|rest| rest.strip_prefix('.')?.split('.').next());
        let is_numbered = match topic {
            Some("push" | "purge") => true,
            Some("presence") => false,
            Some("join") if self.synced > 0 && message.payload == self.marker(self.synced) => {
                self.shared.lock().synced = self.synced;
                return self.shared.news.notify_all();
            }
            _ => return,
        };
        self.receive(&message.payload, Duration::ZERO, is_numbered);
    }

    fn receive(&self, bytes: &Bytes, age: Duration, is_numbered: bool) {
        let Some(member) = self.member.upgrade() else { return };
        match member.receive(bytes, age) {
            Some(receipt) => {
                let mut standing = self.shared.lock();
                let carried = standing.outbox.acknowledge(receipt, Instant::now());
                standing.sent += carried;
                if carried > 0 && receipt.topic == Topic::Push {
                    standing.has_reported_unstored = false;
                }
                let is_news = receipt.topic == Topic::Purge || standing.outbox.len() == 0;
                drop(standing);
                if is_news {
                    self.shared.news.notify_all();
                }
            }
            None if is_numbered => {
                self.shared.received.fetch_add(1, Ordering::Relaxed);
            }
            None => {}
        }
    }

    /// Sends the queue. Returns whether the connection is still open.
    async fn pump(&self, client: &Client) -> bool {
        loop {
            let Some(parcel) = self.shared.lock().outbox.next(Instant::now()) else { return true };
            let bytes_max = client.max_payload();
            if parcel.bytes.len() > bytes_max {
                self.discard(&parcel, bytes_max);
                continue;
            }
            let (group, topic, place) = (&self.shared.plan.group, parcel.topic.name(), &parcel.place);
            let subject = match place.is_empty() {
                true => format!("{group}.{topic}"),
                false => format!("{group}.{topic}.{place}"),
            };
            if client.publish(subject, parcel.bytes).await.is_err() {
                return false;
            }
        }
    }

    fn discard(&self, parcel: &Parcel, bytes_max: usize) {
        let mut standing = self.shared.lock();
        standing.outbox.discard(parcel.topic, parcel.number);
        standing.dropped += 1;
        self.shared.news.notify_all();
        if !std::mem::replace(&mut standing.has_reported_large, true) {
            let bytes = parcel.bytes.len();
            say(format_args!(
                "a message of {bytes} bytes was not sent to other servers: the limit of the bus is {bytes_max} (max_payload)"
            ));
        }
    }
}

/// Connects. `ended` receives the reason when the connection ends.
async fn connect(server: Server, ended: watch::Sender<Option<String>>) -> Result<Client, String> {
    let options = ConnectOptions::new()
        .name("flatout")
        // A single attempt: the caller starts a new session.
        .max_reconnects(1)
        .ignore_discovered_servers()
        .connection_timeout(CONNECT_TIME_MAX)
        .ping_interval(PING_TIME)
        .subscription_capacity(RECEIVED_MAX)
        // Room for two full windows and presence, so that publishing never waits.
        .client_capacity(3 * WINDOW)
        .event_callback(move |event| {
            let why = match event {
                Event::Disconnected | Event::Closed => Some("the connection has ended".to_owned()),
                Event::ServerError(error) => Some(format!("it reports `{}`", shown(&error.to_string()))),
                _ => None,
            };
            // The first reason is the cause.
            if why.is_some() {
                ended.send_if_modified(|first| {
                    first.is_none() && {
                        *first = why.clone();
                        true
                    }
                });
            }
            std::future::ready(())
        });
    let options = match server.credentials.clone() {
        Some(Credentials::Password(user, password)) => options.user_and_password(user, password),
        Some(Credentials::Token(token)) => options.token(token),
        None => options,
    };
    options.connect(server.url()).await.map_err(|error| match error.kind() {
        ConnectErrorKind::AuthorizationViolation | ConnectErrorKind::Authentication => {
            match server.credentials {
                Some(_) => "it refused the credentials".to_owned(),
                None => "it requires credentials".to_owned(),
            }
        }
        ConnectErrorKind::TimedOut => "it did not respond in time".to_owned(),
        ConnectErrorKind::Tls => format!("TLS: {}", shown(&error.to_string())),
        _ => shown(&error.to_string()),
    })
}

/// The next message. Calls `emptied` when the queue is empty.
async fn next(subscriber: &mut Subscriber, mut emptied: impl FnMut()) -> Option<Message> {
    poll_fn(|context| {
        let polled = Pin::new(&mut *subscriber).poll_next(context);
        // A task that has used up its budget gets `Pending` even if there are messages.
        if polled.is_pending() && has_budget_remaining() {
            emptied();
        }
        polled
    })
    .await
}

/// A server's text, shortened and without control characters.
pub(super) fn shown(said: &str) -> String {
    said.chars().take(SHOWN_MAX).map(|char| if char.is_control() { '?' } else { char }).collect()
}
