//! Messages of other servers in the hub: a loss is a gap, and nothing else is.

use std::sync::Arc;
use std::time::Duration;

use flatout_lane::poll::Wake;

use super::carrier::{Arrival, Incoming};
use super::hub::{Hub, Refused};
use super::plan::{ChannelName, History, Limits, Plan};

/// A server with channels.
fn hub(limits: Limits) -> (Hub, usize) {
    let hub = Hub::new(limits);
    let worker = hub.enroll(Arc::new(Wake::new().unwrap()));
    (hub, worker)
}

/// Adds a subscriber. Returns its channel and its position.
fn join(hub: &Hub, worker: usize, channel: &str) -> (Vec<u32>, u64) {
    hub.join(worker, &[channel.to_owned()], &Plan::default(), None).unwrap()
}

/// A message of server 1.
fn arrive(hub: &Hub, number: u64, channel: &str, age: Duration) -> Arrival {
    hub.arrive(Incoming {
        origin: 1,
        number,
        channel: ChannelName { group: "", name: channel },
        publication: "x".into(),
        history: History::default(),
        age,
        is_late: false,
    })
}

#[test]
fn old_messages_of_a_history_are_delivered_to_subscribers() {
    let (hub, worker) = hub(Limits::default());
    let (joined, from) = join(&hub, worker, "a");
    for number in 1..=50 {
        assert_eq!(arrive(&hub, number, "a", History::default().age * 2), Arrival::Accepted);
    }
    let fetched = hub.fetch(&joined, from, u64::MAX, usize::MAX);
    assert_eq!((fetched.messages.len(), fetched.has_gap), (50, false));
}

#[test]
fn expired_messages_without_subscribers_take_no_room() {
    let (hub, _) = hub(Limits { history_bytes_max: 8000, ..Limits::default() });
    for number in 1..=1000 {
        let channel = ChannelName { group: "", name: &number.to_string() };
        // The clock begins when the machine boots.
        let history = History { age: Duration::from_secs(3), ..History::default() };
        let (publication, age) = ("x".into(), 2 * history.age);
        let arrived =
            hub.arrive(Incoming { origin: 1, number, channel, publication, history, age, is_late: false });
        assert_eq!(arrived, Arrival::Accepted, "{number}");
    }
    assert_eq!(hub.totals().channels, 1, "the others are dropped");
}

/// The bus is joined again while a new process takes over the channels.
#[test]
fn a_loss_during_an_upgrade_is_reported_afterwards() {
    let (former, worker) = hub(Limits::default());
    let (joined, _) = join(&former, worker, "a");
    former.publish("a", "1", &Plan::default()).unwrap();
    let seen = former.fetch(&joined, 0, u64::MAX, usize::MAX).up_to;
    former.freeze();
    let snapshot = former.snapshot(false);
    former.report_loss();

    let (next, worker) = hub(Limits::default());
    next.freeze();
    next.begin_at(snapshot.tip);
    next.report_loss();
    snapshot.channels.iter().for_each(|channel| assert!(next.restore(channel)));
    let (joined, _) = join(&next, worker, "a");
    assert!(!next.fetch(&joined, seen, u64::MAX, usize::MAX).has_gap, "not before");
    next.thaw();
    assert!(next.fetch(&joined, seen, u64::MAX, usize::MAX).has_gap);
    former.thaw();
    assert!(former.fetch(&joined, seen, u64::MAX, usize::MAX).has_gap, "also if it fails");
}

/// The new process joins the bus late, while the old one still receives all messages.
#[test]
fn a_loss_before_an_upgrade_is_reported_only_if_the_former_process_had_it() {
    for had_loss in [false, true] {
        let (former, worker) = hub(Limits::default());
        let (joined, _) = join(&former, worker, "a");
        former.publish("a", "1", &Plan::default()).unwrap();
        let seen = former.fetch(&joined, 0, u64::MAX, usize::MAX).up_to;
        former.freeze();
        if had_loss {
            former.report_loss();
        }
        let snapshot = former.snapshot(false);

        let (next, worker) = hub(Limits::default());
        next.await_channels();
        next.report_loss();
        next.begin_at(snapshot.tip);
        snapshot.channels.iter().for_each(|channel| assert!(next.restore(channel)));
        let (joined, _) = join(&next, worker, "a");
        next.thaw();
        assert_eq!(next.fetch(&joined, seen, u64::MAX, usize::MAX).has_gap, had_loss);
    }
}

#[test]
fn the_loss_of_the_first_message_is_reported() {
    let (hub, worker) = hub(Limits::default());
    let (joined, from) = join(&hub, worker, "a");
    assert!(from > 0, "0 stands for no position");
    hub.report_loss();
    assert!(hub.fetch(&joined, from, u64::MAX, usize::MAX).has_gap);
}

#[test]
fn a_message_without_room_for_its_channel_is_a_gap_of_that_channel() {
    let (hub, worker) = hub(Limits { channels_max: 1, ..Limits::default() });
    let (others, from) = join(&hub, worker, "b");
    assert_eq!(arrive(&hub, 1, "a", Duration::ZERO), Arrival::Refused(Refused::Full));
    assert!(!hub.fetch(&others, from, u64::MAX, usize::MAX).has_gap, "of another channel");
    hub.leave(worker, others, None);
    let (joined, _) = join(&hub, worker, "a");
    assert!(hub.fetch(&joined, from, u64::MAX, usize::MAX).has_gap);
}

#[test]
fn messages_of_other_servers_above_the_local_limit_are_a_gap() {
    let (hub, worker) = hub(Limits::default());
    let large = |number| {
        let history = History::default();
        let (publication, age) = (vec![b'x'; 1001].into(), Duration::ZERO);
        hub.arrive(Incoming {
            origin: 1,
            number,
            channel: ChannelName { group: "", name: "a" },
            publication,
            history,
            age,
            is_late: false,
        })
    };
    assert_eq!(large(1), Arrival::Accepted, "nobody has set a limit");
    let (joined, from) = join(&hub, worker, "a");
    hub.limit_messages(1000);
    assert_eq!(large(2), Arrival::Refused(Refused::TooLarge));
    let fetched = hub.fetch(&joined, from, u64::MAX, usize::MAX);
    assert!(fetched.has_gap && fetched.messages.is_empty());
    hub.limit_messages(1001);
    assert_eq!(large(3), Arrival::Accepted, "the limit was raised by a reload");
    hub.limit_messages(1000);
    hub.publish("b", "x", &Plan { message_bytes_max: 1001, ..Plan::default() }).unwrap();
    assert_eq!(large(4), Arrival::Accepted, "a program publishes with a larger limit");
}
