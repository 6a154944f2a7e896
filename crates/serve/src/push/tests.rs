//! Messages of other servers in the hub: nothing is lost without a gap, and no gap is told where nothing is lost.

use std::sync::Arc;
use std::time::Duration;

use flatout_lane::poll::Wake;

use super::carrying::{Arrived, Incoming};
use super::hub::{Hub, Refused};
use super::plan::{History, Limits, Plan};

/// A server with channels.
fn hub(limits: Limits) -> (Hub, usize) {
    let hub = Hub::new(limits);
    let worker = hub.enroll(Arc::new(Wake::new().unwrap()));
    (hub, worker)
}

/// Somebody subscribes. Returns the channel and the position.
fn join(hub: &Hub, worker: usize, channel: &str) -> (Vec<u32>, u64) {
    hub.join(worker, &[channel.to_owned()], &Plan::default(), None).unwrap()
}

/// A message of server 1.
fn arrive(hub: &Hub, number: u64, channel: &str, age: Duration) -> Arrived {
    hub.arrive(Incoming {
        origin: 1,
        number,
        channel,
        publication: "x".into(),
        history: History::default(),
        age,
        is_late: false,
    })
}

#[test]
fn what_the_bus_has_kept_for_long_is_delivered_to_those_who_are_there() {
    let (hub, worker) = hub(Limits::default());
    let (joined, from) = join(&hub, worker, "a");
    for number in 1..=50 {
        assert_eq!(arrive(&hub, number, "a", History::default().age * 2), Arrived::Taken);
    }
    let fetched = hub.fetch(&joined, from, u64::MAX, usize::MAX);
    assert_eq!((fetched.messages.len(), fetched.has_gap), (50, false));
}

/// The bus is joined again while the channels of the former process are taken over.
#[test]
fn a_loss_during_an_upgrade_is_told_afterwards() {
    let (former, worker) = hub(Limits::default());
    let (joined, _) = join(&former, worker, "a");
    former.publish("a", "1", &Plan::default()).unwrap();
    let seen = former.fetch(&joined, 0, u64::MAX, usize::MAX).up_to;
    former.freeze();
    let snapshot = former.snapshot();
    former.report_loss();

    let (next, worker) = hub(Limits::default());
    next.freeze();
    next.report_loss();
    next.begin_at(snapshot.tip);
    snapshot.channels.iter().for_each(|channel| assert!(next.restore(channel)));
    let (joined, _) = join(&next, worker, "a");
    assert!(!next.fetch(&joined, seen, u64::MAX, usize::MAX).has_gap, "not before they are there");
    next.thaw();
    assert!(next.fetch(&joined, seen, u64::MAX, usize::MAX).has_gap);
    former.thaw();
    assert!(former.fetch(&joined, seen, u64::MAX, usize::MAX).has_gap, "also if it fails");
}

#[test]
fn who_was_there_before_the_first_message_is_told_of_its_loss() {
    let (hub, worker) = hub(Limits::default());
    let (joined, from) = join(&hub, worker, "a");
    assert!(from > 0, "0 stands for no position");
    hub.report_loss();
    assert!(hub.fetch(&joined, from, u64::MAX, usize::MAX).has_gap);
}

#[test]
fn a_message_that_there_is_no_channel_for_is_a_gap_of_the_channel_that_is_made_later() {
    let (hub, worker) = hub(Limits { channels_max: 1, ..Limits::default() });
    let (others, from) = join(&hub, worker, "b");
    assert_eq!(arrive(&hub, 1, "a", Duration::ZERO), Arrived::Refused(Refused::Full));
    assert!(!hub.fetch(&others, from, u64::MAX, usize::MAX).has_gap, "of another channel");
    hub.leave(worker, others, None);
    let (joined, _) = join(&hub, worker, "a");
    assert!(hub.fetch(&joined, from, u64::MAX, usize::MAX).has_gap);
}
