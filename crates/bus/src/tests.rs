//! Several servers on the bus of one process.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use flatout_lane::poll::Wake;
use proptest::prelude::*;

use super::*;
use flatout_cache::Purge;
use flatout_push::{Hub, Limits, Publication};

/// A server with channels, and a cache that notes what is purged.
struct Site {
    hub: Hub,
    relay: Arc<Relay>,
    purged: Arc<Mutex<Vec<String>>>,
}

impl Site {
    fn new() -> Site {
        let hub = Hub::new(Limits::default());
        hub.enroll(Arc::new(Wake::new().unwrap()));
        let purged: Arc<Mutex<Vec<String>>> = Arc::default();
        let notes = purged.clone();
        let purging = move |purge: &Purge| {
            notes.lock().unwrap().push(purge.to_text());
            Some(1)
        };
        Site { relay: Relay::new(&hub, Box::new(purging)), hub, purged }
    }

    fn on(bus: &Local) -> Site {
        let (site, seat) = (Site::new(), bus.seat());
        site.relay.connect(seat.clone());
        seat.start(Arc::downgrade(&site.relay)).unwrap();
        site
    }

    fn publish(&self, channel: &str, text: String) {
        self.hub.publish(channel, text, &flatout_push::Plan::default()).unwrap();
    }

    /// The messages of a channel, in their order here.
    fn texts(&self, channel: &str) -> Vec<String> {
        let snapshot = self.hub.snapshot(false);
        let found = snapshot.channels.iter().find(|found| &*found.name == channel);
        found.map_or_else(Vec::new, |found| {
            found.messages.iter().map(|message| message.text().to_owned()).collect()
        })
    }

    fn purged(&self) -> Vec<String> {
        self.purged.lock().unwrap().clone()
    }
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !is_so() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Collects parcels instead of delivering them.
#[derive(Default)]
struct RecordingBus(Mutex<Vec<Parcel>>);

impl Bus for RecordingBus {
    fn send(&self, parcel: Parcel) {
        self.0.lock().unwrap().push(parcel);
    }

    fn counted(&self) -> Counted {
        Counted::default()
    }
}

#[test]
fn messages_are_delivered_once_on_every_server() {
    // Few enough that the history keeps all of them.
    const COUNT: usize = 300;
    let bus = Local::default();
    let sites: Vec<Site> = (0..3).map(|_| Site::on(&bus)).collect();
    std::thread::scope(|scope| {
        for (at, site) in sites.iter().enumerate() {
            scope.spawn(move || (0..COUNT).for_each(|number| site.publish("a.1", format!("{at} {number}"))));
        }
    });
    for site in &sites {
        until("all messages", || site.texts("a.1").len() == 3 * COUNT);
        let texts = site.texts("a.1");
        for at in 0..3 {
            let of: Vec<_> = texts.iter().filter_map(|text| text.strip_prefix(&format!("{at} "))).collect();
            let expected: Vec<String> = (0..COUNT).map(|number| number.to_string()).collect();
            assert_eq!(of, expected, "those of one server are in its order");
        }
        assert_eq!(site.relay.counted().missed, 0);
    }
}

#[test]
fn purges_reach_all_servers() {
    let bus = Local::default();
    let (here, there) = (Site::on(&bus), Site::on(&bus));
    until("the bus", || !here.purged().is_empty() && !there.purged().is_empty());
    let purge = Purge::from_text("hard url http://a/b").unwrap();
    let (count, receipt) = here.relay.purge(&purge).unwrap();
    assert_eq!((count, receipt), (Some(1), Receipt { topic: Topic::Purge, number: 1 }));
    until("the purge", || there.purged().last() == Some(&purge.to_text()));
    // Everything stored before they joined is marked stale first.
    assert_eq!(here.purged(), ["soft all", "hard url http://a/b"]);
    assert_eq!(there.purged(), ["soft all", "hard url http://a/b"]);
}

#[test]
fn everything_is_marked_stale_after_a_lost_purge() {
    let (here, sent) = (Site::new(), Arc::new(RecordingBus::default()));
    here.relay.connect(sent.clone());
    for text in ["hard url http://a/1", "hard tag 2", "hard all"] {
        here.relay.purge(&Purge::from_text(text).unwrap()).unwrap();
    }
    let sent = sent.0.lock().unwrap();
    let there = Site::new();
    there.relay.complete();
    there.relay.receive(&sent[0].bytes, Duration::ZERO);
    there.relay.receive(&sent[0].bytes, Duration::ZERO);
    assert_eq!(there.purged(), ["hard url http://a/1"], "once");
    there.relay.receive(&sent[2].bytes, Duration::ZERO);
    assert_eq!(there.purged(), ["hard url http://a/1", "soft all", "hard all"]);
    assert_eq!(there.relay.counted().missed, 1);
    assert_eq!(
        here.relay.receive(&sent[2].bytes, Duration::ZERO),
        Some(Receipt { topic: Topic::Purge, number: 3 })
    );
    assert_eq!(here.purged().len(), 3, "its own come back and do nothing");
}

#[test]
fn messages_are_held_while_channels_move() {
    let (here, sent) = (Site::new(), Arc::new(RecordingBus::default()));
    here.relay.connect(sent.clone());
    (1..=5).for_each(|number| here.publish("a", number.to_string()));
    let sent = sent.0.lock().unwrap();
    let there = Site::new();
    there.hub.freeze();
    for parcel in &sent[..3] {
        there.relay.receive(&parcel.bytes, Duration::ZERO);
    }
    assert!(there.texts("a").is_empty());
    there.hub.thaw();
    there.relay.receive(&sent[3].bytes, Duration::ZERO);
    assert_eq!(there.texts("a"), ["1", "2", "3", "4"]);
    there.hub.freeze();
    there.relay.receive(&sent[4].bytes, Duration::ZERO);
    there.hub.thaw();
    there.relay.tick();
    assert_eq!(there.texts("a"), ["1", "2", "3", "4", "5"]);
    assert_eq!(there.relay.counted().missed, 0);
}

#[test]
fn held_messages_keep_their_age() {
    let (here, sent) = (Site::new(), Arc::new(RecordingBus::default()));
    here.relay.connect(sent.clone());
    here.publish("a", "old".to_owned());
    here.publish("a", "new".to_owned());
    let sent = sent.0.lock().unwrap();
    let there = Site::new();
    there.hub.freeze();
    there.relay.receive(&sent[0].bytes, Duration::from_secs(60));
    there.relay.receive(&sent[1].bytes, Duration::ZERO);
    there.hub.thaw();
    there.relay.tick();
    let snapshot = there.hub.snapshot(false);
    let [old, new] = &snapshot.channels[0].messages[..] else { panic!("two") };
    let apart = new.published_at - old.published_at;
    assert!(apart >= flatout_lane::clock::ticks(Duration::from_secs(59)), "{apart}");
    let is_late = |message: &flatout_push::Message| message.mark.unwrap().is_late;
    assert!(is_late(old) && !is_late(new));
}

#[test]
fn heartbeats_reveal_lost_messages() {
    let (here, sent) = (Site::new(), Arc::new(RecordingBus::default()));
    here.relay.connect(sent.clone());
    (1..=4).for_each(|number| here.publish("a", number.to_string()));
    here.relay.joined(Joined::AtOnce);
    let sent = sent.0.lock().unwrap();
    let [.., fourth, presence] = &sent[..] else { panic!("{sent:?}") };
    assert_eq!(presence.topic, Topic::Presence);
    for (taken, missed) in [(2, 1), (4, 0)] {
        let (there, answers) = (Site::new(), Arc::new(RecordingBus::default()));
        there.relay.connect(answers.clone());
        there.relay.complete();
        for parcel in &sent[..taken] {
            there.relay.receive(&parcel.bytes, Duration::ZERO);
        }
        there.relay.receive(&presence.bytes, Duration::ZERO);
        assert_eq!(there.relay.counted().missed, missed, "{taken}");
        there.relay.tick();
        let answer = answers.0.lock().unwrap().pop().unwrap();
        assert_eq!(answer.topic, Topic::Presence, "who asks is answered");
        there.relay.receive(&fourth.bytes, Duration::ZERO);
        assert_eq!(
            there.texts("a").len(),
            if missed == 0 { 4 } else { 2 },
            "what counts as lost does not come late"
        );
    }
}

#[test]
fn silent_servers_count_as_a_loss() {
    let presence_parcel = |origin, fields: &str| {
        let head =
            format!(r#"{{"origin":{origin},"number":0,"presence":{{"messages":0,"purges":0,{fields}}}}}"#);
        Bytes::from(format!("{head}\n"))
    };
    let presence = |origin, leaves| presence_parcel(origin, &format!(r#""asks":false,"leaves":{leaves}"#));
    let other = Site::new();
    other.relay.connect(Arc::new(RecordingBus::default()));
    other.relay.joined(Joined::AtOnce);
    for (origin, what) in [(1, r#""asks":true,"leaves":false"#), (2, r#""asks":false"#)] {
        other.relay.receive(&presence_parcel(origin, what), Duration::ZERO);
    }
    other.relay.joined(Joined::Again);
    let site = Site::new();
    site.relay.connect(Arc::new(RecordingBus::default()));
    site.relay.joined(Joined::AtOnce);
    for (origin, leaves) in [(1, false), (2, false), (2, true)] {
        site.relay.receive(&presence(origin, leaves), Duration::ZERO);
    }
    // Running servers have a few seconds to send a heartbeat.
    site.relay.joined(Joined::Again);
    until("that one is missing", || {
        site.relay.tick();
        site.relay.counted().missed == 1
    });
    assert_eq!(site.purged(), ["soft all"; 3], "once for each join, and once for the silent server");
    other.relay.tick();
    assert_eq!(other.relay.counted().missed, 0, "one has failed to start, the other is of an older version");
    site.relay.receive(&presence(3, false), Duration::ZERO);
    assert_eq!(site.relay.counted().missed, 2, "it may be the same server, restarted");
    assert_eq!(site.purged().len(), 4);
    site.relay.receive(&presence(4, false), Duration::ZERO);
    site.relay.tick();
    assert_eq!((site.relay.counted().missed, site.purged().len()), (2, 4));
}

#[test]
fn many_requests_for_a_heartbeat_get_one() {
    let (site, sent) = (Site::new(), Arc::new(RecordingBus::default()));
    site.relay.connect(sent.clone());
    site.relay.joined(Joined::AtOnce);
    for origin in 1..=50 {
        let head =
            format!(r#"{{"origin":{origin},"number":0,"presence":{{"messages":0,"purges":0,"asks":true}}}}"#);
        site.relay.receive(&Bytes::from(format!("{head}\n")), Duration::ZERO);
    }
    let count = || sent.0.lock().unwrap().len();
    assert_eq!(count(), 1, "its own heartbeat when it joined");
    site.relay.tick();
    site.relay.tick();
    assert_eq!(count(), 2, "one answer for all");
}

#[test]
fn a_process_that_may_never_serve_sends_no_heartbeats() {
    let (site, sent) = (Site::new(), Arc::new(RecordingBus::default()));
    site.hub.await_channels();
    site.relay.connect(sent.clone());
    site.relay.joined(Joined::AtOnce);
    let asks = r#"{"origin":1,"number":0,"presence":{"messages":0,"purges":0,"asks":true}}"#;
    site.relay.receive(&Bytes::from(format!("{asks}\n")), Duration::ZERO);
    site.relay.tick();
    let count = || sent.0.lock().unwrap().len();
    assert_eq!(count(), 1, "only its request for those of others");
    site.hub.thaw();
    site.relay.tick();
    assert_eq!(count(), 2, "it has taken over");
}

#[test]
fn the_last_heartbeat_announces_the_end() {
    let (here, sent) = (Site::new(), Arc::new(RecordingBus::default()));
    here.relay.connect(sent.clone());
    here.publish("a", "1".to_owned());
    here.relay.leave();
    here.relay.joined(Joined::Again);
    here.relay.tick();
    let sent = sent.0.lock().unwrap();
    assert_eq!(sent.len(), 2, "{sent:?}");
    let (head, _) = parcel::decode(&sent[1].bytes).unwrap();
    assert_eq!(
        head.what,
        parcel::ParcelKind::Presence { messages: 1, purges: 0, asks: false, leaves: Some(true) }
    );
    // Servers of an older version do not have this field.
    let old = br#"{"origin":1,"number":0,"presence":{"messages":0,"purges":0,"asks":true}}"#;
    let bytes = Bytes::from([&old[..], b"\n"].concat());
    let (head, _) = parcel::decode(&bytes).unwrap();
    assert_eq!(head.what, parcel::ParcelKind::Presence { messages: 0, purges: 0, asks: true, leaves: None });
}

/// A new process goes on with the number of the old one, and fails: the old one does not use the numbers that it may have used.
#[test]
fn numbers_that_a_failed_process_has_used_are_not_used_again() {
    let (here, sent) = (Site::new(), Arc::new(RecordingBus::default()));
    here.relay.connect(sent.clone());
    here.publish("a", "1".to_owned());
    here.hub.freeze();
    let (identity, _) = here.relay.freeze();
    let purge = Purge::from_text("hard tag 1").unwrap();
    assert_eq!(here.relay.purge(&purge), Err(flatout_push::Refused::Moving));
    let (next, its) = (Site::new(), Arc::new(RecordingBus::default()));
    next.relay.connect(its.clone());
    next.relay.take_over(identity, sent.0.lock().unwrap().clone());
    next.publish("a", "2".to_owned());
    here.relay.thaw(true);
    here.hub.thaw();
    here.publish("a", "3".to_owned());
    here.relay.purge(&purge).unwrap();
    let (sent, its) = (sent.0.lock().unwrap(), its.0.lock().unwrap());
    let there = Site::new();
    for parcel in its.iter().chain(&*sent) {
        there.relay.receive(&parcel.bytes, Duration::ZERO);
    }
    assert_eq!(there.texts("a"), ["1", "2", "3"], "once, although both have sent the first");
    assert_eq!(there.relay.counted().missed, 1, "the numbers left out");
}

#[test]
fn one_wrong_number_does_not_mute_a_server() {
    let (here, sent) = (Site::new(), Arc::new(RecordingBus::default()));
    here.relay.connect(sent.clone());
    here.relay.purge(&Purge::from_text("hard tag 1").unwrap()).unwrap();
    here.publish("a", "1".to_owned());
    here.publish("a", "2".to_owned());
    let sent = sent.0.lock().unwrap();
    let there = Site::new();
    for parcel in &sent[..2] {
        there.relay.receive(&parcel.bytes, Duration::ZERO);
    }
    let origin = parcel::decode(&sent[0].bytes).unwrap().0.origin;
    let presence =
        r#""presence":{"messages":18446744073709551615,"purges":18446744073709551615,"asks":false}"#;
    for what in [
        r#""published":{"group":"","channel":"a","count":9,"age_ms":9000}"#,
        r#""purge":"hard all""#,
        presence,
    ] {
        let head = format!("{{\"origin\":{origin},\"number\":18446744073709551615,{what}}}\n");
        there.relay.receive(&Bytes::from(head), Duration::ZERO);
    }
    there.relay.receive(&sent[2].bytes, Duration::ZERO);
    assert_eq!(
        (there.texts("a"), there.purged()),
        (vec!["1".to_owned(), "2".to_owned()], vec!["hard tag 1".to_owned()])
    );
    let counted = there.relay.counted();
    assert_eq!((counted.refused, counted.missed), (2, 0));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn arbitrary_bytes_do_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200), text in "\\PC{0,40}") {
        let site = Site::new();
        site.relay.receive(&Bytes::from(bytes.clone()), Duration::ZERO);
        let heads = [
            format!(r#"{{"origin":1,"number":18446744073709551615,"published":{{"group":{text:?},"channel":{text:?},"count":0,"age_ms":18446744073709551615}}}}"#),
            r#"{"origin":1,"number":0,"published":{"group":"","channel":"a","count":18446744073709551615,"age_ms":0,"is_latest":true,"is_json":true}}"#.to_owned(),
            r#"{"origin":2,"number":7,"presence":{"messages":18446744073709551615,"purges":18446744073709551615,"asks":true}}"#.to_owned(),
            format!(r#"{{"origin":3,"number":7,"purge":{text:?}}}"#),
        ];
        for head in heads {
            let parcel = [head.as_bytes(), b"\n", &bytes].concat();
            site.relay.receive(&Bytes::from(parcel), Duration::ZERO);
        }
        site.relay.receive(&Bytes::from(text.into_bytes()), Duration::ZERO);
        prop_assert!(site.hub.counted().channels <= 2);
    }
}

#[test]
fn invalid_json_is_not_embedded() {
    let site = Site::new();
    let head = r#"{"origin":1,"number":1,"published":{"group":"","channel":"a","count":9,"age_ms":9000,"is_json":true}}"#;
    site.relay.receive(&Bytes::from(format!("{head}\n{{\"a\":1}},{{")), Duration::ZERO);
    assert_eq!((site.texts("a").len(), site.relay.counted().refused), (0, 1));
    let fine = Publication { is_json: true, ..Publication::from("{\"a\":1}") };
    site.relay.receive(&Bytes::from(format!("{head}\n{{\"a\":1}}")), Duration::ZERO);
    assert_eq!(site.hub.snapshot(false).channels[0].messages[0].publication, fine);
}

#[test]
fn a_process_that_is_not_joined_owes_its_subscribers_a_gap() {
    let owes_gap = |site: &Site| site.hub.snapshot(false).tip.owes_gap;
    let (bus, site) = (Local::default(), Site::new());
    assert!(!owes_gap(&site), "there is no bus");
    site.relay.connect(Arc::new(RecordingBus::default()));
    assert!(owes_gap(&site), "this bus is never joined");
    assert!(!owes_gap(&Site::on(&bus)));
}
