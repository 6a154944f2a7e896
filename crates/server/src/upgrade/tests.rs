//! Two servers in one process, one of which replaces the other: they exchange the same as two processes.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use base64::Engine as _;
use flatout_cache::{Cache, KeyBuf};
use flatout_engine::{Address, Server, bind_inherited};
use flatout_lane::descriptors::SeqpacketSocket;
use flatout_proxy::{Proxy, Resolver, Watch};
use flatout_push::{About, Carry, ChannelName, History, Hub, Limits, Mark, Plan, Publication};
use flatout_site as site;
use flatout_site::plan::{Action, Host, PathMatch, Route, Site};
use proptest::prelude::*;

use super::format::{
    Channel, Data, FORMAT, HistoryRecord, Listed, Note, PARCELS_MAX, PUSH_FORMAT, Refusal, listed,
};
use super::link::Link;
use super::predecessor::{Predecessor, SuccessorProcess, hand_over};
use super::successor::{ListenerOwner, Successor};
use crate::live::{Live, Opened};

const WORKERS: usize = 2;

/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(60);

struct Running {
    address: SocketAddr,
    hub: Hub,
    live: Live,
    plan: Plan,
    server: Server,
}

fn plan() -> Plan {
    Plan {
        publish_token: Some("secret".to_owned()),
        history: History { count: 5000, ..History::default() },
        ..Plan::default()
    }
}

fn live(hub: &Hub) -> Live {
    let routes = vec![Route::new(PathMatch::prefix("/live"), Action::Push(Box::new(plan())))];
    let site = Site { hosts: vec![Host::Any], routes, ..Site::default() };
    let sites = site::open(&site::Plan { sites: vec![site.into()], ..site::Plan::default() }).unwrap();
    let proxy = Proxy::open(Vec::new(), &Resolver::System).unwrap();
    let cache = Some(Cache::open(flatout_cache::Plan { memory_bytes: 1 << 20, ..Default::default() }));
    Live::new(Opened { sites, proxy, hub: hub.clone(), cache, prerender: None })
}

impl Running {
    /// Starts a separate server, or one that replaces another.
    fn start(mut successor: Option<Successor>) -> Running {
        let listens = flatout_engine::Plan {
            listen: vec!["127.0.0.1:0".parse().unwrap()],
            workers: Some(WORKERS),
            drain_time_max: Duration::from_secs(10),
            ..flatout_engine::Plan::default()
        };
        let inherited = successor.as_mut().map(|it| it.listeners(ListenerOwner::Server)).unwrap_or_default();
        let bound = bind_inherited(listens, inherited).unwrap();
        let hub = Hub::new(Limits::default());
        let live = live(&hub);
        if let Some(successor) = &mut successor {
            successor.take_channels(&hub, None, true).unwrap();
        }
        let served = live.clone();
        let server = bound.start(move |worker| served.service(&worker, Watch::default())).unwrap();
        if let Some(successor) = successor {
            successor.take_subscribers((hub.clone(), live.clone()), WORKERS, || ()).unwrap();
        }
        let Some(Address::Tcp(address)) = server.addresses().first().cloned() else { panic!("no address") };
        Running { address, hub, live, plan: plan(), server }
    }

    fn former(&self) -> Predecessor {
        let (server, hub, live) = (self.server.handle(), self.hub.clone(), self.live.clone());
        Predecessor { server, admin: None, hub, relay: None, live }
    }

    fn publish(&self, channel: &str, text: String) {
        self.hub.publish(channel, text, &self.plan).unwrap();
    }

    fn subscribe(&self, target: &str, fields: &str) -> Reader {
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(format!("GET {target} HTTP/1.1\r\nHost: t\r\n{fields}\r\n").as_bytes()).unwrap();
        let mut reader = Reader { stream, held: Vec::new() };
        let head = reader.until(b"\r\n\r\n");
        if fields.is_empty() {
            assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
            assert!(reader.until(b"\n\n").starts_with("retry: "));
        } else {
            assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
        }
        reader
    }

    fn websocket(&self, target: &str) -> Reader {
        let fields = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
                      Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
        self.subscribe(target, fields)
    }

    fn has(&self, channel: &str, count: u32) {
        let began = Instant::now();
        while self.hub.subscribers("", channel) != count {
            assert!(began.elapsed() < PATIENCE, "{}", self.hub.subscribers("", channel));
            thread::yield_now();
        }
    }

    fn stop(self) {
        self.server.handle().stop();
        self.server.wait().unwrap();
    }
}

/// Is set when it is dropped, also by a panic.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A client.
struct Reader {
    stream: TcpStream,
    held: Vec<u8>,
}

impl Reader {
    fn until(&mut self, end: &[u8]) -> String {
        loop {
            if let Some(at) = self.held.windows(end.len()).position(|window| window == end) {
                let bytes: Vec<u8> = self.held.drain(..at + end.len()).collect();
                // Frames have headers.
                return String::from_utf8_lossy(&bytes).into_owned();
            }
            let mut piece = [0; 16 << 10];
            let count = self.stream.read(&mut piece).unwrap();
            assert!(count > 0, "closed after {:?}", String::from_utf8_lossy(&self.held));
            self.held.extend_from_slice(&piece[..count]);
        }
    }

    /// The numbers at the end of the next messages, up to this one.
    fn numbers(&mut self, is_websocket: bool, last: usize) -> Vec<usize> {
        let mut found = Vec::new();
        while found.last() != Some(&last) {
            let text = if is_websocket { self.until(b"\"}") } else { self.until(b"\n\n") };
            // A heartbeat is not a message.
            let Some((_, number)) = text.rsplit_once("n=") else { continue };
            found.push(number.trim_end_matches(['"', '}', '\n']).parse().unwrap());
        }
        found
    }
}

/// Replaces this server by another.
fn hand_over_to_another(running: &Running) -> (Result<String, String>, Running) {
    let (ours, theirs) = SeqpacketSocket::pair().unwrap();
    // A placeholder for the new process, which does nothing.
    let child = Command::new("true").spawn().unwrap();
    let former = running.former();
    thread::scope(|scope| {
        let given = scope.spawn(move || {
            hand_over(&former, SuccessorProcess::new(Some(child), ours), |_| ())
                .map(|replaced| replaced.message)
        });
        let next = match Successor::of(theirs, OsStr::new(&FORMAT.to_string())) {
            Ok(successor) => Running::start(Some(successor)),
            Err(why) => panic!("{why}: {:?}", given.join().unwrap()),
        };
        (given.join().unwrap(), next)
    })
}

/// Uses a scripted peer as the new process.
fn hand_over_to(running: &Running, script: impl FnOnce(&mut Link) + Send) -> Result<String, String> {
    let (ours, theirs) = SeqpacketSocket::pair().unwrap();
    let child = Command::new("true").spawn().unwrap();
    let former = running.former();
    thread::scope(|scope| {
        let given = scope.spawn(move || {
            hand_over(&former, SuccessorProcess::new(Some(child), ours), |_| ())
                .map(|replaced| replaced.message)
        });
        let mut link = Link::new(theirs);
        link.set_patience(Some(PATIENCE)).unwrap();
        script(&mut link);
        drop(link);
        given.join().unwrap()
    })
}

/// The script until the successor is ready to serve.
fn begin(link: &mut Link, push_format: u16) {
    link.send(&Note::Hello { format: FORMAT, push_format }, &[]).unwrap();
    while link.receive().unwrap().0 != Note::Open {}
    let ready = Note::Ready { takes_push: true, takes_invalidated: false, takes_upstreams: false, bus: None };
    link.send(&ready, &[]).unwrap();
    while link.receive().unwrap().0 != Note::Start {}
    link.send(&Note::Serving, &[]).unwrap();
}

#[test]
fn subscribers_go_on_where_they_were_and_publishes_are_not_lost() {
    let former = Running::start(None);
    // Few enough that a slow machine delivers to them and hands over in time.
    let mut events: Vec<Reader> = (0..4).map(|_| former.subscribe("/live/a", "")).collect();
    let mut several: Vec<Reader> = (0..2).map(|_| former.subscribe("/live/a,b", "")).collect();
    let mut websockets: Vec<Reader> = (0..4).map(|_| former.websocket("/live/a")).collect();
    former.has("a", 10);
    // Nobody reads meanwhile, so messages are in all states: sent, partly sent and not sent.
    let message = |n: usize| format!("{} n={n}", "x".repeat(n * 7919 % 60_000));
    let before = 200;
    for n in 1..=before {
        former.publish("a", message(n));
    }
    let (address, is_over) = (former.address, AtomicBool::new(false));
    let publish = |n: usize| {
        let body = message(n);
        let length = body.len();
        let head = format!(
            "POST /live/a HTTP/1.1\r\nHost: t\r\nAuthorization: Bearer secret\r\nConnection: close\r\n\
             Content-Length: {length}\r\n\r\n"
        );
        // A draining server closes a connection on which it has read nothing.
        let outcome = (0..3).find_map(|_| {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.write_all((head.clone() + &body).as_bytes()).ok()?;
            let mut outcome = String::new();
            stream.read_to_string(&mut outcome).ok().filter(|_| !outcome.is_empty()).map(|_| outcome)
        });
        assert!(outcome.as_ref().is_some_and(|outcome| outcome.starts_with("HTTP/1.1 200 ")), "{outcome:?}");
    };
    let (outcome, next, last) = thread::scope(|scope| {
        let publisher = scope.spawn(|| {
            let mut last = before;
            while !is_over.load(Ordering::Relaxed) {
                last += 1;
                publish(last);
            }
            last
        });
        let stop = Stop(&is_over);
        let (outcome, next) = hand_over_to_another(&former);
        drop(stop);
        (outcome, next, publisher.join().unwrap())
    });
    let outcome = outcome.unwrap();
    assert!(outcome.contains("; 10 subscribers were handed over, 0 were asked to reconnect"), "{outcome}");
    next.has("a", 10);
    former.server.wait().unwrap();
    for n in last + 1..=last + 20 {
        next.publish("a", message(n));
    }
    let expected: Vec<usize> = (1..=last + 20).collect();
    for (reader, is_websocket) in (events.iter_mut().chain(&mut several).map(|reader| (reader, false)))
        .chain(websockets.iter_mut().map(|reader| (reader, true)))
    {
        assert_eq!(reader.numbers(is_websocket, last + 20), expected);
    }
    next.stop();
}

#[test]
fn unfetched_subscribers_survive_the_death_of_the_successor() {
    let former = Running::start(None);
    let mut readers: Vec<Reader> = (0..3 * PARCELS_MAX).map(|_| former.subscribe("/live/a", "")).collect();
    former.has("a", readers.len() as u32);
    former.publish("a", "n=1".to_owned());
    let began = Instant::now();
    while former.hub.counted().delivered < readers.len() as u64 {
        assert!(began.elapsed() < PATIENCE);
        thread::yield_now();
    }
    let why = hand_over_to(&former, |link| {
        begin(link, PUSH_FORMAT);
        let (note, sockets) = link.receive().unwrap();
        assert!(matches!(note, Note::Batch(_)), "{note:?}");
        link.send(&Note::Got, &[]).unwrap();
        assert_eq!(link.receive().unwrap().0, Note::Yours);
        drop(sockets);
        let (note, _sockets) = link.receive().unwrap();
        assert!(matches!(note, Note::Batch(_)), "{note:?}");
    });
    let why = why.unwrap_err();
    assert!(why.contains("this one continues"), "{why}");
    let stay = readers.len() as u32 - PARCELS_MAX as u32;
    former.has("a", stay);
    former.publish("a", "n=2".to_owned());
    let mut stayed = 0;
    for reader in &mut readers {
        let mut text = String::new();
        while !text.contains("n=2") {
            let mut piece = [0; 1024];
            match reader.stream.read(&mut piece).unwrap() {
                // It belonged to the successor.
                0 => break,
                count => text.push_str(std::str::from_utf8(&piece[..count]).unwrap()),
            }
        }
        assert_eq!(text.matches("n=1\n").count(), 1, "{text}");
        stayed += text.matches("n=2\n").count() as u32;
        assert!(!text.contains("gap"), "{text}");
    }
    assert_eq!(stayed, stay);
    // The upgrade can be tried again.
    let (outcome, next) = hand_over_to_another(&former);
    assert!(outcome.unwrap().contains(&format!("; {stay} subscribers were handed over, 0 ")));
    former.server.wait().unwrap();
    next.stop();
}

#[test]
fn keys_invalidated_by_the_last_requests_are_passed_on() {
    let former = Running::start(None);
    let (outcome, next) = hand_over_to_another(&former);
    outcome.unwrap();
    let cache = |running: &Running| running.live.opened().cache.clone().unwrap();
    // What reaches the successor's store, it passes on in its turn.
    let passed_on = cache(&next).pass_on();
    let key = KeyBuf { bytes: b"http://t/a".to_vec(), url_ends: 10, is_custom: false };
    cache(&former).invalidate(&key);
    assert_eq!(passed_on.recv_timeout(PATIENCE), Ok(key));
    former.stop();
    next.stop();
}

#[test]
fn other_formats_are_a_restart() {
    let former = Running::start(None);
    let mut reader = former.subscribe("/live/a", "");
    former.has("a", 1);
    let why = hand_over_to(&former, |link| {
        link.send(&Note::Hello { format: FORMAT + 1, push_format: PUSH_FORMAT }, &[]).unwrap();
    });
    assert!(why.unwrap_err().contains("use a restart"));
    let why = hand_over_to(&former, |link| {
        link.send(&Note::Hello { format: FORMAT, push_format: PUSH_FORMAT }, &[]).unwrap();
        while link.receive().unwrap().0 != Note::Open {}
        link.send(&Note::Refused(Cow::Borrowed("a mistake in line 7")), &[]).unwrap();
    });
    assert_eq!(why.unwrap_err(), "a mistake in line 7");
    former.publish("a", "n=1".to_owned());
    assert!(reader.until(b"n=1\n\n").contains("data: n=1"));
    // Listeners are handed over nevertheless.
    let outcome = hand_over_to(&former, |link| {
        begin(link, PUSH_FORMAT + 1);
        assert_eq!(link.receive().unwrap().0, Note::Done);
    });
    assert!(outcome.unwrap().contains("; 0 subscribers were handed over, 1 were asked to reconnect"));
    assert!(reader.until(b"\n\n").starts_with("event: end\ndata: {\"code\":1012,"));
    former.server.wait().unwrap();
}

#[test]
fn notes_come_with_their_descriptors_and_nothing_else_is_a_note() {
    let (one, other) = SeqpacketSocket::pair().unwrap();
    let (here, _there) = UnixStream::pair().unwrap();
    let (link, mut end) = (Link::new(one), Link::new(other));
    let long = Note::Refused("x".repeat(300_000).into());
    // More than the kernel buffers at a time.
    let received = thread::scope(|scope| {
        let received = scope.spawn(|| end.receive().unwrap());
        link.send(&long, &[]).unwrap();
        received.join().unwrap()
    });
    assert_eq!(received.0, long);
    link.send(&Note::Got, &[here.as_fd()]).unwrap();
    assert!(end.receive().is_err(), "it has no descriptors");
    link.send(&Note::Listener { is_admin: false, asked: None, is_secure: false }, &[]).unwrap();
    assert!(end.receive().is_err(), "it has some");
    for text in
        ["", "{}", "null", "\"Nothing\"", "{\"Batch\":[]}", "{\"Channels\":[{\"name\":\"\"}]}", "[[[["]
    {
        assert!(Note::decode(text.as_bytes(), 0).is_err(), "{text}");
    }
}

fn text() -> impl Strategy<Value = Cow<'static, str>> {
    any::<String>().prop_map(Cow::Owned)
}

fn data() -> impl Strategy<Value = Data<'static>> {
    (text(), any::<bool>(), prop::option::of(text()), prop::option::of(text()))
        .prop_map(|(text, is_json, event, key)| Data { text, is_json, event, key })
}

fn history() -> impl Strategy<Value = HistoryRecord> {
    (any::<bool>(), any::<usize>(), any::<u32>()).prop_map(|(is_latest, count, seconds)| {
        let kind = if is_latest { flatout_push::Kind::Latest } else { flatout_push::Kind::Log };
        HistoryRecord::of(History { kind, count, age: Duration::from_secs(seconds.into()) })
    })
}

/// A bus that carries nothing.
struct NullCarrier;

impl Carry for NullCarrier {
    fn origin(&self) -> u64 {
        7
    }

    fn carry(&self, _: u64, _: ChannelName<'_>, _: &Publication, _: &History) {}

    fn sync(&self, _: Duration) {}

    fn misses_messages(&self) -> bool {
        false
    }

    fn has_unsent(&self) -> bool {
        false
    }
}

#[test]
fn messages_keep_their_identity_on_other_servers() {
    let hub = Hub::new(Limits::default());
    hub.carry_by(Box::new(NullCarrier));
    hub.publish("a", "1", &Plan::default()).unwrap();
    let channels = hub.snapshot(false).channels;
    let note = Note::Messages(listed(&channels).collect()).encode().unwrap();
    let Ok(Note::Messages(mut messages)) = Note::decode(&note, 0) else { panic!("messages") };
    let expected = Some(Mark { origin: 7, number: 1, is_late: false });
    assert_eq!(messages.remove(0).message().mark, expected);
}

fn about() -> impl Strategy<Value = About> {
    let terms = "\\{\"group\":\"[a-z /]{0,9}\",\"is_latest\":(true|false),\"count\":[1-9]{1,4},\"age_ms\":[1-9]{1,9},\"lag_max\":[1-9]{1,4},\"heartbeat_ms\":[1-9]{1,6}\\}";
    let names = prop::collection::hash_set("[a-zA-Z0-9.]{1,128}", 1..=64);
    let rest = prop::collection::vec(any::<u8>(), 0..300);
    let address = prop::option::of(any::<std::net::IpAddr>());
    (0..4usize, names, any::<u64>(), rest, address, terms).prop_map(
        |(transport, channels, cursor, rest, address, terms)| {
            let transports = ["Events", "NamedEvents", "Frames", "PackedFrames"];
            let count_max = if transport == 0 { 1 } else { 64 };
            let channels: Vec<String> = channels.into_iter().take(count_max).collect();
            let value = serde_json::json!({
                "transport": transports[transport], "channels": channels, "cursor": cursor,
                "rest": base64::engine::general_purpose::STANDARD.encode(&rest), "address": address, "expiry": 4_000_000_000u32,
                "terms": serde_json::from_str::<serde_json::Value>(&terms).unwrap(),
            });
            serde_json::from_value(value).unwrap()
        },
    )
}

fn note() -> impl Strategy<Value = (Note<'static>, usize)> {
    let channel = ("[a-zA-Z0-9.]{1,128}", history(), any::<u64>(), any::<u64>());
    let channel = channel.prop_map(|(name, history, last_id, lost_id)| {
        let name = Cow::Owned(name);
        Channel { group: Cow::Borrowed("* /live"), name, history, last_id, lost_id, holes: vec![lost_id] }
    });
    let mark = (any::<u64>(), any::<u64>(), any::<bool>());
    let mark = mark.prop_map(|(origin, number, is_late)| Mark { origin, number, is_late });
    let listed = (any::<usize>(), any::<u64>(), any::<u32>(), prop::option::of(mark), data());
    let listed = listed.prop_map(|(channel, id, published_at, mark, data)| Listed {
        channel,
        id,
        published_at,
        mark,
        data,
    });
    let entry = (text(), data());
    let refusal = prop::option::of(prop::sample::select(vec![Refusal::Full, Refusal::Moving, Refusal::Name]));
    prop_oneof![
        (any::<u16>(), any::<u16>())
            .prop_map(|(format, push_format)| (Note::Hello { format, push_format }, 0)),
        (any::<bool>(), any::<bool>(), 1..64usize).prop_map(|(is_admin, is_secure, count)| {
            (Note::Listener { is_admin, asked: Some("unix:/x".into()), is_secure }, count)
        }),
        prop::collection::vec(channel, 0..20).prop_map(|channels| (Note::Channels(channels), 0)),
        prop::collection::vec(listed, 0..20).prop_map(|messages| (Note::Messages(messages), 0)),
        prop::collection::vec(about().prop_map(Cow::Owned), 1..PARCELS_MAX).prop_map(|abouts| {
            let count = abouts.len();
            (Note::Batch(abouts), count)
        }),
        (history(), any::<usize>(), prop::collection::vec(entry, 0..9)).prop_map(
            |(history, message_bytes_max, entries)| {
                (Note::Publish { group: "g".into(), history, message_bytes_max, entries }, 0)
            }
        ),
        (prop::collection::vec(any::<u8>(), 0..99), any::<usize>(), any::<bool>())
            .prop_map(|(bytes, url_ends, is_custom)| (Note::Invalidated { bytes, url_ends, is_custom }, 0)),
        (prop::collection::vec(any::<String>(), 0..9), refusal)
            .prop_map(|(ids, refused)| (Note::Published { ids, refused }, 0)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn notes_are_read_as_they_were_written((note, descriptors) in note(), cut in any::<prop::sample::Index>(), other in any::<u8>()) {
        let bytes = note.encode().unwrap();
        prop_assert_eq!(&Note::decode(&bytes, descriptors).unwrap(), &note);
        if descriptors > 0 {
            prop_assert!(Note::decode(&bytes, 0).is_err());
        }
        // A partial note is invalid, and no input may crash the process.
        let at = cut.index(bytes.len());
        prop_assert!(Note::decode(&bytes[..at], descriptors).is_err());
        let mut changed = bytes;
        changed[at] = other;
        let _ = Note::decode(&changed, descriptors);
    }
}
