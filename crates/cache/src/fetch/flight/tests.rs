use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};

use flatout_wire::cache::Policy;
use http_body::Body;

use super::*;
use crate::entry::Parts;
use crate::key::Key;
use crate::store::Store;

fn read(body: &mut FlightBody) -> Poll<Option<Result<Bytes, String>>> {
    let mut context = Context::from_waker(Waker::noop());
    let polled = Pin::new(body).poll_frame(&mut context);
    polled.map(|frame| {
        frame.map(|frame| {
            frame.map(|frame| frame.into_data().unwrap_or_default()).map_err(|error| error.to_string())
        })
    })
}

#[test]
fn late_readers_get_the_whole_body() {
    let flight = Arc::new(Flight::new(0, Moment::default()));
    flight.settle(Outcome::Released);
    let mut first = flight.reader(Some(4)).unwrap();
    assert_eq!(read(&mut first), Poll::Pending);
    flight.push(Bytes::from_static(b"ab"));
    let mut late = flight.reader(None).unwrap();
    assert_eq!(read(&mut first), Poll::Ready(Some(Ok(Bytes::from_static(b"ab")))));
    assert_eq!(first.size_hint().exact(), Some(2));
    flight.push(Bytes::from_static(b"cd"));
    flight.end(true);
    for body in [&mut first, &mut late] {
        while let Poll::Ready(Some(Ok(_))) = read(body) {}
        assert_eq!(read(body), Poll::Ready(None));
    }
    assert_eq!(flight.body(), b"abcd");
}

#[test]
fn incomplete_bodies_end_in_an_error() {
    let flight = Arc::new(Flight::new(0, Moment::default()));
    flight.settle(Outcome::Released);
    let mut body = flight.reader(None).unwrap();
    flight.push(Bytes::from_static(b"ab"));
    flight.end(false);
    flight.end(true);
    assert!(matches!(read(&mut body), Poll::Ready(Some(Ok(_)))));
    assert!(matches!(read(&mut body), Poll::Ready(Some(Err(_)))));
}

#[test]
fn bodies_that_are_not_stored_wait_for_the_slowest_reader() {
    let flight = Arc::new(Flight::new(0, Moment::default()));
    flight.settle(Outcome::Released);
    let (mut fast, mut slow) = (flight.reader(None).unwrap(), flight.reader(None).unwrap());
    flight.keep_no_more();
    let resumed = Arc::new(AtomicUsize::new(0));
    let resume = || -> Resume {
        let resumed = resumed.clone();
        Box::new(move || {
            let _ = resumed.fetch_add(1, Ordering::Relaxed);
        })
    };
    assert!(flight.has_room(resume));
    for _ in 0..2 {
        flight.push(Bytes::from(vec![0; AHEAD_BYTES_MAX as usize]));
    }
    assert!(read(&mut fast).is_ready() && read(&mut fast).is_ready());
    assert!(!flight.has_room(resume) && !flight.has_room(resume));
    assert!(read(&mut slow).is_ready());
    assert_eq!(resumed.load(Ordering::Relaxed), 0);
    drop(slow);
    assert_eq!(resumed.load(Ordering::Relaxed), 1);
    assert!(flight.has_room(resume) && flight.reader(None).is_none());
}

#[test]
fn bytes_kept_for_slow_readers_count_and_are_shared() {
    let store = Store::new(1 << 20);
    let flight = Arc::new(Flight::new(0, Moment::default()));
    flight.settle(Outcome::Released);
    let mut slow = flight.reader(None).unwrap();
    for piece in [&b"ab"[..], b"", b"cde"] {
        flight.push(Bytes::from_static(piece));
    }
    let (some, rest) = (store.hold(2).0, store.hold((256 << 10) - 2).0);
    flight.count(some);
    flight.count(rest);
    let key = Key { url: b"http://a/", rest: b"", is_custom: false, hash: 0 };
    let (status, policy) = (Status::OK, Policy::default());
    let parts = Parts { key, vary: b"", selected: b"", lines: b"", status, policy };
    let entry = Arc::new(Entry::new(&parts, flight.body()));
    flight.end_stored(&entry);
    drop(flight);
    assert!(!store.hold(1).1, "its reader keeps it still");
    for (at, expected) in [(0, &b"ab"[..]), (2, b""), (2, b"cde")] {
        let Poll::Ready(Some(Ok(got))) = read(&mut slow) else { panic!("the body has {expected:?}") };
        assert_eq!(got, expected);
        assert!(got.is_empty() || std::ptr::eq(&got[0], &entry.body()[at]));
    }
    assert_eq!(read(&mut slow), Poll::Ready(None));
    drop(slow);
    assert!(store.hold(1).1);
}

#[test]
fn dropped_bytes_do_not_count() {
    let store = Store::new(16);
    let flight = Arc::new(Flight::new(0, Moment::default()));
    flight.settle(Outcome::Released);
    let mut reader = flight.reader(None).unwrap();
    flight.push(Bytes::from_static(b"abcd"));
    flight.count(store.hold(4).0);
    flight.keep_no_more();
    assert!(!store.hold(1).1);
    // The leader has ended.
    flight.settle(Outcome::Released);
    assert!(read(&mut reader).is_ready() && store.hold(4).1);
}

#[test]
fn waiters_and_readers_reuse_their_places() {
    let flight = Arc::new(Flight::new(0, Moment::default()));
    let mut context = Context::from_waker(Waker::noop());
    let mut followers: Vec<_> = (0..3).map(|_| Box::pin(flight.outcome())).collect();
    for _ in 0..2 {
        assert!(followers.iter_mut().all(|follower| follower.as_mut().poll(&mut context).is_pending()));
    }
    assert_eq!(flight.state().waiting.len(), 3);
    flight.settle(Outcome::Released);
    assert!(followers.iter_mut().all(|follower| follower.as_mut().poll(&mut context).is_ready()));
    flight.push(Bytes::from_static(b"ab"));
    let mut stays = flight.reader(None).unwrap();
    for _ in 0..100 {
        let mut leaves = flight.reader(None).unwrap();
        assert!(read(&mut leaves).is_ready() && read(&mut leaves).is_pending());
    }
    assert_eq!(flight.state().readers.len(), 2);
    flight.keep_no_more();
    assert!(read(&mut stays).is_ready() && flight.state().chunks.is_empty());
    assert!(flight.has_readers());
    drop(stays);
    assert!(!flight.has_readers() && flight.state().readers_at_end == 0);
}
