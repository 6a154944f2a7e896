//! Replaced, removed and purged responses are not read from disk again.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex};

use flatout_wire::Status;

use super::index::{CHANGED_BITS, Index, RecordLocation};
use super::invalid::RecordState;
use super::lookup::READ_NOW_BYTES_MAX;
use super::tests::{Dir, NOW_MS, body, get, get_at, policy, purge, put, with_key};
use super::writer::{Write, Writer};
use super::{Disk, KeyHash, LATE_MAX, QUEUE_BYTES_MAX, Shared, Slots, VariantSlot};
use crate::entry::{Entry, Parts};
use crate::key::Key;
use crate::purge::Purge;
use crate::store::{DiskLoad, Store};

#[test]
fn entries_removed_or_expired_in_memory_are_not_read_from_disk() {
    let dir = Dir::new("everywhere");
    let store = dir.open();
    for (url, selected) in
        [("http://a/1", &b""[..]), ("http://a/2", b",1\n"), ("http://a/2", b",2\n"), ("http://a/3", b"")]
    {
        put(&store, url, if selected.is_empty() { b"" } else { b"\nx" }, selected, b"old");
    }
    purge(&store, "soft tag none");
    let first = get(&store, "http://a/1", b"").unwrap();
    with_key(&store, "http://a/1", |key| store.remove_everywhere(&key, key.hash, &first));
    let variant = get(&store, "http://a/2", b",2\n").unwrap();
    with_key(&store, "http://a/2", |key| {
        store.remove_everywhere(&key, store.slot_of(key.hash, b",2\n"), &variant);
    });
    let stale = get(&store, "http://a/3", b"").unwrap();
    store.expire_everywhere(&stale);
    assert!(get(&store, "http://a/3", b"").unwrap().is_expired());
    with_key(&store, "http://a/3", |key| store.remove(key.hash, &stale));
    let has = |store: &Store, url, selected| get(store, url, selected).is_some();
    let check = |store: &Store| {
        assert!(!has(store, "http://a/1", b"") && !has(store, "http://a/2", b",2\n"));
        assert!(!has(store, "http://a/3", b""), "a fresh record of a stale entry");
    };
    check(&store);
    assert!(has(&store, "http://a/2", b",1\n"), "another variant stays in memory");
    drop(store);
    check(&dir.open());
}

/// Removes from memory only.
pub(super) fn evict(store: &Store, url: &str, selected: &'static [u8]) {
    with_key(store, url, |key| {
        for slot in [key.hash, store.slot_of(key.hash, selected)] {
            store.peek(slot).into_iter().for_each(|entry| store.remove(slot, &entry));
        }
    });
}

#[test]
fn a_response_that_is_not_written_hides_older_records() {
    let dir = Dir::new("skipped");
    let store = dir.open();
    let urls = ["http://a/1", "http://a/2"];
    urls.iter().for_each(|url| put(&store, url, b"", b"", b"old"));
    purge(&store, "soft tag none");
    let queued_bytes = &store.disk().unwrap().shared.queued_bytes;
    queued_bytes.fetch_add(QUEUE_BYTES_MAX, Ordering::Relaxed);
    put(&store, urls[0], b"", b"", b"new");
    queued_bytes.fetch_sub(QUEUE_BYTES_MAX, Ordering::Relaxed);
    assert_eq!(body(&store, urls[0]).unwrap(), b"new");
    evict(&store, urls[0], b"");
    assert_eq!(body(&store, urls[0]), None);
    // Its text is longer than the limit for a record.
    with_key(&store, urls[1], |key| {
        let lines = [&b"A: "[..], &[b'x'; 2 << 20], b"\r\n"].concat();
        let parts =
            Parts { key, vary: b"", selected: b"", lines: &lines, status: Status::OK, policy: policy() };
        store.insert(&key, Entry::new(&parts, b"new".to_vec()), store.moment());
    });
    purge(&store, "soft tag none");
    evict(&store, urls[1], b"");
    assert_eq!(body(&store, urls[1]), None);
}

#[test]
fn responses_stored_while_segments_are_read_hide_older_records() {
    let mut index = Index::default();
    let place = RecordLocation { segment: 1, at: 0, bytes: 1, body_bytes: 0, number: 1 };
    index.set_reading(true);
    index.supersede(Slots { key: 1, at: [1, 2] });
    (1..4).for_each(|slot| index.insert_read([slot; 2], place, 0));
    assert_eq!((index.get(1), index.get(2), index.get(3)), (None, None, Some(place)));
    // Another slot with the same bit.
    index.supersede(Slots { key: 1, at: [3 + CHANGED_BITS; 2] });
    index.insert_read([3; 2], RecordLocation { number: 2, ..place }, 0);
    assert_eq!(index.get(3), None, "an older record");
    index.set_reading(false);
    index.insert_read([1; 2], place, 0);
    assert_eq!(index.get(1), Some(place));
}

#[test]
fn the_latest_version_of_a_former_first_variant_is_found() {
    let dir = Dir::new("variants");
    let (url, one, two) = ("http://a/", b",1\n", b",2\n");
    let store = dir.open();
    put(&store, url, b"\nx", one, b"old");
    drop(store);
    let store = dir.open();
    assert_eq!(get(&store, url, one).unwrap().body(), b"old");
    put(&store, url, b"\nx", one, b"new");
    purge(&store, "soft tag none");
    evict(&store, url, one);
    put(&store, url, b"\nx", two, b"other");
    purge(&store, "soft tag none");
    evict(&store, url, two);
    assert_eq!(get(&store, url, two).unwrap().body(), b"other");
    assert_eq!(get(&store, url, one).unwrap().body(), b"new");
}

/// A request during a purge must not read a purged response from disk.
#[test]
fn a_purge_applies_to_the_disk_first() {
    let dir = Dir::new("begun");
    let store = dir.open();
    put(&store, "http://a/", b"", b"", b"old");
    purge(&store, "soft tag none");
    evict(&store, "http://a/", b"");
    store.begin_purge(&Purge::from_text("hard url http://a/").unwrap());
    assert_eq!(body(&store, "http://a/"), None);
}

#[test]
fn keys_without_records_are_not_recorded_as_invalidated() {
    let dir = Dir::new("never");
    let store = dir.open();
    put(&store, "http://a/", b"", b"", b"x");
    let disk = store.disk().unwrap();
    // The purge waits until everything before it is written. Its own record always has the same size.
    let growth = |act: &dyn Fn()| {
        let before = disk.size().1;
        act();
        purge(&store, "soft tag none");
        disk.size().1 - before
    };
    growth(&|| ());
    let usual = growth(&|| ());
    let never = || {
        for at in 0..1000 {
            with_key(&store, &format!("http://b/{at}"), |key| store.invalidate(&key));
        }
    };
    assert_eq!(growth(&never), usual);
    assert!(growth(&|| with_key(&store, "http://a/", |key| store.invalidate(&key))) > usual);
    assert_eq!(body(&store, "http://a/"), None);
}

/// Its record is not listed any more, but still there.
#[test]
fn an_unlisted_record_of_an_invalidated_key_does_not_come_back() {
    let dir = Dir::new("unlisted");
    let store = dir.open();
    put(&store, "http://a/", b"", b"", b"old");
    purge(&store, "soft tag none");
    assert_eq!(store.sweep(NOW_MS + 60_000, 10, 1), 1);
    with_key(&store, "http://a/", |key| store.invalidate(&key));
    drop(store);
    assert_eq!(body(&dir.open(), "http://a/"), None);
}

#[test]
fn first_variants_count_once_and_stay_in_both_slots() {
    let place = |number| RecordLocation { segment: number as u32, at: 0, bytes: 1, body_bytes: 0, number };
    let mut index = Index::default();
    let one = Slots { key: 7, at: [7, 71] };
    let offer = index.queue(one);
    index.insert(one, offer, place(1), 0);
    index.unqueue(one);
    assert_eq!(index.len(), 1);
    // Another variant is the first.
    let two = Slots { key: 7, at: [7, 72] };
    let offer = index.queue(two);
    assert_eq!((index.len(), index.get(7)), (1, None));
    index.insert(two, offer, place(2), 0);
    index.unqueue(two);
    assert_eq!((index.len(), index.get(7), index.get(71)), (2, Some(place(2)), Some(place(1))));
    index.remove_segment(2);
    assert_eq!((index.len(), index.get(7)), (1, None));
    index.supersede(one);
    assert_eq!(index.len(), 0);

    let dir = Dir::new("twice");
    let store = dir.open();
    let (url, one) = ("http://a/", b",1\n");
    put(&store, url, b"\nx", one, b"x");
    purge(&store, "soft tag none");
    let disk = store.disk().unwrap();
    assert_eq!(disk.size().0, 1);
    assert!(get_at(&store, url, one, NOW_MS + 60_000).is_some());
    assert_eq!(store.sweep(NOW_MS + 60_000, 10, 1), 0);
    assert!(disk.sweep((NOW_MS / 1000) as u32 + 60, 10) == 0 && disk.size().0 == 1);
    with_key(&store, url, |key| {
        let own = store.slot_of(key.hash, one);
        assert!([key.hash, own].iter().all(|slot| disk.load(*slot, &key).is_some()));
        assert_eq!(store.sweep(NOW_MS + 90_000, 10, 1), 1);
        assert!([key.hash, own].iter().all(|slot| disk.load(*slot, &key).is_none()));
    });
    drop(store);
    assert_eq!(dir.open().disk().unwrap().size().0, 1);
}

/// It was evicted from memory before it was written, and a newer one was fetched meanwhile.
#[test]
fn a_response_written_late_is_not_listed_in_the_slots_of_a_newer_one() {
    let place = |number| RecordLocation { segment: 1, at: 0, bytes: 1, body_bytes: 0, number };
    let (one, two) = (Slots { key: 7, at: [7, 71] }, Slots { key: 7, at: [7, 72] });
    let mut index = Index::default();
    let old = index.queue(one);
    // The queue is full.
    index.queue(two);
    index.unqueue(two);
    index.insert(one, old, place(1), 0);
    index.unqueue(one);
    assert_eq!((index.get(7), index.get(71)), (None, Some(place(1))));
    let next = index.queue(one);
    index.insert(one, next, place(2), 0);
    index.unqueue(one);
    assert_eq!((index.get(7), index.get(71), index.len()), (Some(place(2)), Some(place(2)), 1));
}

/// The writer invalidates it after the job that it finishes next.
#[test]
fn keys_are_invalidated_also_while_the_queue_is_full() {
    for (count, is_other_there) in [(1, true), (LATE_MAX + 1, false)] {
        let dir = Dir::new(&format!("late-{count}"));
        let (queue, orders) = sync_channel(1);
        let shared = Arc::new(Shared::open(&dir.plan(1 << 20)).unwrap());
        let disk = Disk {
            shared,
            queue,
            writer: Mutex::default(),
            #[cfg(feature = "simulation")]
            steps: None,
            is_closed: AtomicBool::new(true),
        };
        let slots = Slots { key: 7, at: [7, 7] };
        disk.shared.index().queue(slots);
        disk.queue.send(Write::Stop).unwrap();
        let key = Key { url: b"http://a/", rest: b"", is_custom: false, hash: 7 };
        (0..count).for_each(|_| disk.forget(&key));
        let state = |url: &[u8], hash, number| {
            let key = Key { url, rest: b"", is_custom: false, hash };
            let parts =
                Parts { key, vary: b"", selected: b"", lines: b"", status: Status::OK, policy: policy() };
            let place = RecordLocation { segment: 1, at: 0, bytes: 1, body_bytes: 0, number };
            let entry = Entry::new(&parts, Vec::new());
            let (state, purges) = disk.shared.index().state_of(&entry, place, hash);
            purges.state_of(&entry, number, state)
        };
        assert_eq!(state(b"http://a/", 7, 99), RecordState::Gone);
        let (hash, slot): (KeyHash, VariantSlot) = (Box::new(|_| 7), Box::new(|_, _| 7));
        let shared = disk.shared.clone();
        Writer { shared, orders, now_s: 0, hash, slot, next: None, paused_until_ns: 0 }.run();
        assert_eq!(
            (state(b"http://a/", 7, 0), state(b"http://a/", 7, 99)),
            (RecordState::Gone, RecordState::Good)
        );
        assert_eq!(state(b"http://b/", 8, 0) == RecordState::Good, is_other_there);
        assert!(disk.shared.late().is_empty());
    }
}

#[test]
fn keys_are_known_while_segments_have_records_of_them() {
    let place = |segment, number| RecordLocation { segment, at: 0, bytes: 1, body_bytes: 0, number };
    let mut index = Index::default();
    index.note(place(1, 1), Some(7));
    index.note(place(2, 2), Some(7));
    let order = index.forget_now(7);
    assert!(index.forget(7, 3, order));
    index.remove_segment(1);
    assert!(index.may_have(7) && !index.may_have(8));
    index.remove_segment(2);
    assert!(!index.may_have(7));
    let slots = Slots { key: 7, at: [7, 7] };
    index.queue(slots);
    index.queue(slots);
    index.unqueue(slots);
    assert!(index.may_have(7), "one is to be written");
    index.unqueue(slots);
    assert!(!index.may_have(7));
    index.set_reading(true);
    index.forget_now(7);
    assert!(index.may_have(7), "nobody knows yet");
    index.set_reading(false);
    assert!(!index.may_have(7));
}

#[test]
fn long_records_are_not_read_on_a_worker() {
    let dir = Dir::new("long");
    let store = dir.open();
    let url = "http://a/";
    put(&store, url, b"", b"", &vec![b'x'; READ_NOW_BYTES_MAX as usize]);
    purge(&store, "soft tag none");
    evict(&store, url, b"");
    with_key(&store, url, |key| {
        let loaded = store.read_from_disk(&key, key.hash, NOW_MS, |_, _| (), |_| true);
        assert!(matches!(loaded, DiskLoad::Cold(slot) if slot == key.hash));
        let read = store.read_from_disk_slowly(&key, key.hash, NOW_MS, store.moment());
        assert!(read.is_none_or(|entry| entry.body().len() == READ_NOW_BYTES_MAX as usize));
    });
}

/// The snapshot of a reader does not change, and the next reader sees the purge.
#[test]
fn readers_use_a_snapshot_of_the_purges() {
    let store = Store::new(1 << 20);
    with_key(&store, "http://a/", |key| {
        let parts = Parts { key, vary: b"", selected: b"", lines: b"", status: Status::OK, policy: policy() };
        let entry = Entry::new(&parts, Vec::new());
        let (mut index, place) =
            (Index::default(), RecordLocation { segment: 1, at: 0, bytes: 1, body_bytes: 0, number: 1 });
        let (before, purges) = index.state_of(&entry, place, key.hash);
        index.purge_now(&Purge::from_text("hard prefix http://a/").unwrap());
        assert_eq!(purges.state_of(&entry, place.number, before), RecordState::Good);
        let (after, purges) = index.state_of(&entry, place, key.hash);
        assert_eq!(purges.state_of(&entry, place.number, after), RecordState::Gone);
    });
}
