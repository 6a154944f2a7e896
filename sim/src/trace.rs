//! What happened, in order: for the hash by which two runs are compared, and for a person who looks for the cause of a failure.

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};

/// Events that are kept for a failure; older ones are dropped, but stay in the hash.
const EVENTS_MAX: usize = 20_000;

/// One of those who act.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Actor {
    /// A client, by its number.
    Client(usize),
    /// A connection of an upstream: the upstream's number, and how many connections it has accepted before.
    Upstream(usize, usize),
    /// A subscriber of channels, by its number.
    Subscriber(usize),
    /// The connection of a publisher.
    Publisher,
    /// Who changes the configuration, and publishes by calls.
    Operator,
}

/// What an actor did or saw.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Event {
    /// A connection was opened, or accepted.
    Open,
    /// A connection was closed by the actor.
    Close,
    /// The actor sends nothing more.
    CloseWrite,
    /// The other side has closed.
    Closed,
    /// The other side has reset the connection.
    Reset,
    /// Bytes were sent.
    Sent(usize),
    /// Bytes were received.
    Received(usize),
    /// A request begins: its number, and method, target and what else matters.
    Request(u32, String),
    /// An upstream has read the head of a request.
    SeenHead(u32),
    /// An upstream has read a whole request.
    SeenRequest(u32),
    /// An upstream responds to a request with this status.
    Responds(u32, u16),
    /// A client has the whole response to a request.
    Response(u32, u16),
    /// A client resets the stream of a request.
    Cancel(u32),
    /// The actor does nothing for this many milliseconds.
    Pause(u64),
    /// Another configuration is served, by its number.
    Reload(usize),
    /// A message of this length is published to a channel.
    Publish(usize, usize),
    /// A server is killed.
    Crash(Crash),
    /// Another server takes over, with this configuration and so many subscribers. `None`: the upgrade failed.
    Upgrade(usize, Option<usize>),
    /// The clock of the machine is moved by so many seconds.
    ClockStep(i64),
    /// The application has these servers from now on, by their numbers.
    Servers(Vec<usize>),
    /// The responses of a resource are purged, or marked stale.
    Purge(u8, bool),
}

/// What is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Crash {
    /// All servers. One starts again.
    All,
    /// The same, with the power of their machine.
    Machine,
    /// Those that were replaced.
    Formers,
    /// The one that has replaced another. It starts again, while the former one drains.
    Latest,
}

/// The events of a run.
#[derive(Debug, Default)]
pub struct Trace {
    hasher: DefaultHasher,
    events: Vec<(u64, Actor, Event)>,
    count: u64,
}

impl Trace {
    /// Adds an event.
    pub(crate) fn add(&mut self, now_ns: u64, actor: Actor, event: Event) {
        (now_ns, actor, &event).hash(&mut self.hasher);
        self.count += 1;
        if self.events.len() == EVENTS_MAX {
            self.events.drain(..EVENTS_MAX / 2);
        }
        self.events.push((now_ns, actor, event));
    }

    /// The hash of all events so far.
    pub(crate) fn hash(&self) -> u64 {
        self.hasher.finish()
    }

    /// How many events there were.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }
}

/// A ladder: clients on the left, upstreams on the right, and the time in milliseconds.
impl fmt::Display for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some((began_ns, ..)) = self.events.first() else { return Ok(()) };
        for (at_ns, actor, event) in &self.events {
            let at_ms = (at_ns - began_ns) as f64 / 1e6;
            match actor {
                Actor::Client(number) => {
                    writeln!(f, "{at_ms:>10.3}  client {number:<3} {}", Words(event))
                }
                Actor::Subscriber(number) => {
                    writeln!(f, "{at_ms:>10.3}  subscriber {number:<3} {}", Words(event))
                }
                Actor::Publisher => writeln!(f, "{at_ms:>10.3}  publisher      {}", Words(event)),
                Actor::Operator => writeln!(f, "{at_ms:>10.3}  {:>36}", Words(event).to_string()),
                Actor::Upstream(number, connection) => {
                    writeln!(
                        f,
                        "{at_ms:>10.3}  {:>48}  upstream {number}.{connection}",
                        Words(event).to_string()
                    )
                }
            }?;
        }
        Ok(())
    }
}

struct Words<'e>(&'e Event);

impl fmt::Display for Words<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Event::Open => f.write_str("opens a connection"),
            Event::Close => f.write_str("closes"),
            Event::CloseWrite => f.write_str("closes its sending side"),
            Event::Closed => f.write_str("sees the end"),
            Event::Reset => f.write_str("sees a reset"),
            Event::Sent(bytes) => write!(f, "sends {bytes} bytes"),
            Event::Received(bytes) => write!(f, "receives {bytes} bytes"),
            Event::Request(id, text) => write!(f, "begins request {id}: {text}"),
            Event::SeenHead(id) => write!(f, "has the head of request {id}"),
            Event::SeenRequest(id) => write!(f, "has all of request {id}"),
            Event::Responds(id, status) => write!(f, "responds to request {id}: {status}"),
            Event::Response(id, status) => write!(f, "has the response to request {id}: {status}"),
            Event::Cancel(id) => write!(f, "resets the stream of request {id}"),
            Event::Pause(ms) => write!(f, "pauses for {ms} ms"),
            Event::Publish(channel, bytes) => write!(f, "publishes {bytes} bytes to channel {channel}"),
            Event::Purge(resource, false) => write!(f, "purge of resource {resource}"),
            Event::Purge(resource, true) => write!(f, "soft purge of resource {resource}"),
            Event::Crash(Crash::All) => f.write_str("kills the server, and starts it again"),
            Event::Crash(Crash::Machine) => f.write_str("loses power, and starts the server again"),
            Event::Crash(Crash::Formers) => f.write_str("kills the servers that drain"),
            Event::Crash(Crash::Latest) => f.write_str("kills the new server, and starts it again"),
            Event::Upgrade(number, Some(moved)) => {
                write!(f, "upgrade: configuration {number}, {moved} subscribers")
            }
            Event::Upgrade(number, None) => write!(f, "an upgrade to configuration {number} fails"),
            Event::ClockStep(seconds) => write!(f, "the clock is set by {seconds} s"),
            Event::Servers(servers) => write!(f, "the servers of the application are {servers:?}"),
            Event::Reload(number) => write!(f, "reload: configuration {number}"),
        }
    }
}
