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
use super::greeting;
use super::kept::{Kept, One, Seen};
use super::nats::Shared;
use super::outbox::{ACKNOWLEDGED_TIME_MAX, WINDOW};
use super::{Credentials, Joined, Member, Parcel, Plan, Server, State, Topic};

/// Until the server has let us in, and until what we send comes back for the first time.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(5);

/// How often a silent server is asked whether it is there. At the third time without an answer the connection is given up.
const PING_TIME: Duration = Duration::from_secs(2);

/// Parcels of others that wait to be taken; [`Backlog`] limits their bytes. What comes above that is lost, and noticed by its number.
const RECEIVED_MAX: usize = 64 << 10;

/// How often members are called without a parcel.
const BEAT: Duration = Duration::from_millis(250);

/// Characters that are shown of what a server says.
const SAID_MAX: usize = 200;

/// One connection.
pub(super) struct Session<'s> {
    pub(super) shared: &'s Shared,
    pub(super) member: &'s Weak<dyn Member>,
    pub(super) server: &'s Server,
    /// What nobody else sends.
    pub(super) nonce: u64,
    /// Since when the bus is not there, if an attempt has failed.
    pub(super) away_since: Option<Instant>,
    /// The last question for all that others had sent which was put.
    pub(super) synced: u64,
}

impl Session<'_> {
    /// Returns why it has ended.
    pub(super) async fn run(&mut self) -> String {
        let said = timeout(CONNECT_TIME_MAX, greeting::check(&self.server.host, self.server.port)).await;
        match said {
            Err(_) => return "it says nothing".to_owned(),
            Ok(Err(why)) => return why,
            Ok(Ok(())) => {}
        }
        let (ended, mut why_ended) = watch::channel(None);
        let connecting = connect(self.server.clone(), ended);
        // On a task of its own: what the library cannot stand in a server's words ends the task and not the thread.
        let client = match tokio::spawn(connecting).await {
            Ok(Ok(client)) => client,
            Ok(Err(why)) => return why,
            Err(_) => return "it does not say what a NATS server says".to_owned(),
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
        // What is kept comes from the stream, and nothing else does.
        let subject = if history.is_some() { format!("{group}.*") } else { format!("{group}.>") };
        let Ok(mut subscriber) = client.subscribe(subject).await else { return ended() };
        let seen = self.shared.lock().seen;
        let kept = match history {
            Some(age_max) => Kept::open(client, group, *age_max, seen).await,
            None => Ok(Kept::nothing()),
        };
        let mut kept = match kept {
            Ok(kept) => kept,
            Err(why) => return why,
        };
        // When that comes back, all that others send does.
        let marker = self.marker(0);
        if client.publish(format!("{group}.join"), marker.clone()).await.is_err() {
            return ended();
        }
        let mut beat = interval(BEAT);
        beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut waits_since, mut has_come_back, mut is_joined) = (Instant::now(), false, false);
        let (statistics, mut backlog) = (client.statistics(), Backlog::default());
        let received = || statistics.in_bytes.load(Ordering::Relaxed);
        loop {
            if backlog.is_over(received()) {
                return "more arrives than this server can take".to_owned();
            }
            let Some(member) = self.member.upgrade() else { return String::new() };
            if has_come_back && kept.pending == 0 && !is_joined {
                is_joined = true;
                self.join(&*member, kept.has_missed);
            }
            // In this order: what comes back last is behind all that was sent.
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
                one = kept.next() => match one {
                    Ok(one) => {
                        self.receive_kept(&one, kept.stream_ns);
                        waits_since = Instant::now();
                    }
                    Err(why) => return why,
                },
                () = self.shared.work.notified() => {}
                _ = beat.tick() => match (is_joined, self.member.upgrade()) {
                    (true, Some(member)) => {
                        member.beat();
                        if let Err(why) = self.check_acknowledged() {
                            return why;
                        }
                    }
                    (false, _) if waits_since.elapsed() <= CONNECT_TIME_MAX => {}
                    // What was to come has become too old meanwhile.
                    (false, _) if has_come_back => kept.pending = 0,
                    (false, _) => {
                        return format!("what is sent does not come back; the user needs the right to publish and subscribe to {group}.>");
                    }
                    _ => {}
                },
            }
        }
    }

    fn join(&self, member: &dyn Member, has_missed: bool) {
        let how = {
            let mut standing = self.shared.lock();
            standing.state = State::Joined;
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

    /// Has messages sent again that the stream has not stored: others came through meanwhile, so the connection is of use.
    ///
    /// # Errors
    /// Purges, or messages without a stream, were not acknowledged: the connection is of no use.
    fn check_acknowledged(&self) -> Result<(), String> {
        let mut standing = self.shared.lock();
        let Some(topic) = standing.outbox.stuck(Instant::now()) else { return Ok(()) };
        let seconds = ACKNOWLEDGED_TIME_MAX.as_secs();
        if topic == Topic::Purge || self.shared.plan.history.is_none() {
            return Err(format!("messages sent to the bus were not acknowledged for {seconds} s"));
        }
        standing.outbox.rewind_messages();
        if !std::mem::replace(&mut standing.has_said_unstored, true) {
            say(format_args!(
                "the bus has stored none of the messages sent to it for {seconds} s (is the stream {}_push full, or of other subjects?); \
                 they are sent again until it does",
                self.shared.plan.group
            ));
        }
        Ok(())
    }

    /// What is sent in order to come back.
    fn marker(&self, number: u64) -> Bytes {
        format!("{:x}-{number}", self.nonce).into()
    }

    /// Has something come back behind all that others have sent so far, if somebody waits for that. Returns whether the connection is still
    /// there.
    async fn put_sync(&mut self, client: &Client) -> bool {
        let asked = self.shared.lock().syncs;
        if asked == std::mem::replace(&mut self.synced, asked) {
            return true;
        }
        let subject = format!("{}.join", self.shared.plan.group);
        client.publish(subject, self.marker(asked)).await.is_ok()
    }

    fn receive_kept(&self, one: &One, stream_ns: i128) {
        self.receive(&one.bytes, one.age, true);
        self.shared.lock().seen = Seen { stream_ns, sequence: one.sequence };
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
                let carried = standing.outbox.settle(receipt, Instant::now());
                standing.sent += carried;
                if carried > 0 && receipt.topic == Topic::Push {
                    standing.has_said_unstored = false;
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

    /// Sends what waits. Returns whether the connection is still there.
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
        if !std::mem::replace(&mut standing.has_said_large, true) {
            let bytes = parcel.bytes.len();
            say(format_args!(
                "a message of {bytes} bytes was not sent to other servers: the bus takes {bytes_max} (max_payload)"
            ));
        }
    }
}

/// Why `ended` is told once the connection is of no use any more.
async fn connect(server: Server, ended: watch::Sender<Option<String>>) -> Result<Client, String> {
    let options = ConnectOptions::new()
        .name("flatout")
        // The first attempt counts.
        .max_reconnects(1)
        .ignore_discovered_servers()
        .connection_timeout(CONNECT_TIME_MAX)
        .ping_interval(PING_TIME)
        .subscription_capacity(RECEIVED_MAX)
        // So that publishing never waits: messages and purges on their way, and presence.
        .client_capacity(3 * WINDOW)
        .event_callback(move |event| {
            let why = match event {
                Event::Disconnected | Event::Closed => Some("the connection has ended".to_owned()),
                Event::ServerError(error) => Some(format!("it says `{}`", shown(&error.to_string()))),
                _ => None,
            };
            // The first reason is the right one.
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
                Some(_) => "it refuses the credentials".to_owned(),
                None => "it wants credentials".to_owned(),
            }
        }
        ConnectErrorKind::TimedOut => "it says nothing".to_owned(),
        ConnectErrorKind::Tls => format!("TLS: {}", shown(&error.to_string())),
        _ => shown(&error.to_string()),
    })
}

/// The next message. `emptied` is called when none waits.
async fn next(subscriber: &mut Subscriber, mut emptied: impl FnMut()) -> Option<Message> {
    poll_fn(|context| {
        let polled = Pin::new(&mut *subscriber).poll_next(context);
        // Without a budget a task is told that nothing waits, so that others get their turn.
        if polled.is_pending() && has_budget_remaining() {
            emptied();
        }
        polled
    })
    .await
}

/// What a server says, as far as it can be shown.
pub(super) fn shown(said: &str) -> String {
    said.chars().take(SAID_MAX).map(|char| if char.is_control() { '?' } else { char }).collect()
}
