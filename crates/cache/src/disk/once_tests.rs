//! Responses that are read from disk without a place in memory: what is served, what is verified, and what is kept.

use std::fs;

use super::index::READS_PER_KEEP;
use super::older_tests::evict;
use super::tests::{Dir, NOW_MS, purge, put, with_key};
use crate::entry::Entry;
use crate::store::{DiskLoad, Store};

const URL: &str = "http://a/";

/// How a response was found.
#[derive(Debug, PartialEq, Eq)]
enum Found {
    Nothing,
    /// In memory, or read into memory.
    InMemory(Vec<u8>),
    Once(Vec<u8>),
}

fn found(store: &Store, url: &str, is_fresh: impl Fn(&Entry) -> bool) -> Found {
    let select = |_: &[u8], _: &mut Vec<u8>| ();
    let in_memory = |entry: &Entry| Found::InMemory(entry.body().to_vec());
    with_key(store, url, |key| {
        if let Some(entry) = store.find(&key, NOW_MS, select).entry {
            return in_memory(&entry);
        }
        match store.read_from_disk(&key, key.hash, NOW_MS, select, is_fresh) {
            DiskLoad::Nothing => Found::Nothing,
            DiskLoad::Here => {
                store.find(&key, NOW_MS, select).entry.map_or(Found::Nothing, |entry| in_memory(&entry))
            }
            DiskLoad::Once(entry, reservation, slot) => {
                assert_eq!(slot, key.hash);
                assert!(store.find(&key, NOW_MS, select).entry.is_none(), "it takes no room in memory");
                Found::Once(reservation.body(entry).to_vec())
            }
            DiskLoad::Cold(slot) => {
                let entry = store.read_from_disk_slowly(&key, slot, NOW_MS, store.moment());
                entry.map_or(Found::Nothing, |entry| in_memory(&entry))
            }
        }
    })
}

/// A store in which this body is on disk only, and was verified.
fn verified(dir: &Dir, body: &[u8]) -> Store {
    let store = dir.open();
    put(&store, URL, b"", b"", body);
    // A purge waits until everything before it is written.
    purge(&store, "soft tag none");
    evict(&store, URL, b"");
    assert_eq!(found(&store, URL, |_| true), Found::InMemory(body.to_vec()), "the first read verifies");
    evict(&store, URL, b"");
    store
}

#[test]
fn a_response_that_is_read_often_gets_a_place_in_memory() {
    let dir = Dir::new("often");
    let store = verified(&dir, b"body");
    for _ in 0..2 {
        for _ in 1..READS_PER_KEEP {
            assert_eq!(found(&store, URL, |_| true), Found::Once(b"body".to_vec()));
        }
        assert_eq!(found(&store, URL, |_| true), Found::InMemory(b"body".to_vec()));
        evict(&store, URL, b"");
    }
    assert_eq!(found(&store, URL, |_| false), Found::InMemory(b"body".to_vec()), "a stale one is validated");
    evict(&store, URL, b"");
    with_key(&store, URL, |key| store.disk().unwrap().keep_next(key.hash));
    assert_eq!(found(&store, URL, |_| true), Found::InMemory(b"body".to_vec()), "it gets encodings");
}

#[test]
fn long_bodies_and_those_beyond_the_budget_are_shared_in_memory() {
    let dir = Dir::new("budget");
    let store = verified(&dir, &[b'x'; 60_000]);
    let read =
        || with_key(&store, URL, |key| store.read_from_disk(&key, key.hash, NOW_MS, |_, _| (), |_| true));
    // The store has a mebibyte.
    let (first, second) = (read(), read());
    assert!(matches!((&first, &second), (DiskLoad::Once(..), DiskLoad::Once(..))));
    assert!(matches!(read(), DiskLoad::Here), "slow clients hold no more than an eighth of the memory");
    drop((first, second));
    evict(&store, URL, b"");
    assert!(matches!(read(), DiskLoad::Once(..)), "they are gone");
    let dir = Dir::new("shared");
    let store = verified(&dir, &[b'x'; 65_537]);
    assert!(matches!(found(&store, URL, |_| true), Found::InMemory(_)));
}

#[test]
fn a_verified_response_that_is_replaced_or_purged_is_not_read() {
    let dir = Dir::new("verified");
    let store = verified(&dir, b"old");
    put(&store, URL, b"", b"", b"new");
    purge(&store, "soft tag none");
    evict(&store, URL, b"");
    assert_eq!(
        found(&store, URL, |_| true),
        Found::InMemory(b"new".to_vec()),
        "another record, verified anew"
    );
    evict(&store, URL, b"");
    assert_eq!(found(&store, URL, |_| true), Found::Once(b"new".to_vec()));
    purge(&store, "hard url http://a/");
    assert_eq!(found(&store, URL, |_| true), Found::Nothing);
}

/// What a crash or a disk has damaged is noticed at the first read after the start, and never served.
#[test]
fn a_damaged_body_is_never_served() {
    let dir = Dir::new("never");
    let body: Vec<u8> = (0..5000u32).map(|at| at as u8).collect();
    drop(verified(&dir, &body));
    let [segment] = &dir.segments()[..] else { panic!("one segment") };
    let good = fs::read(segment).unwrap();
    for at in (0..good.len()).step_by(311) {
        let mut bytes = good.clone();
        bytes[at] ^= 4;
        fs::write(segment, &bytes).unwrap();
        let store = dir.open();
        for _ in 0..3 {
            match found(&store, URL, |_| true) {
                Found::Nothing => {}
                Found::InMemory(read) | Found::Once(read) => assert!(read == body, "damaged at {at}"),
            }
            evict(&store, URL, b"");
        }
        drop(store);
        dir.segments().iter().skip(1).for_each(|path| fs::remove_file(path).unwrap());
    }
    // One that is cut while the server runs is noticed by its length.
    fs::write(segment, &good).unwrap();
    let store = dir.open();
    found(&store, URL, |_| true);
    evict(&store, URL, b"");
    fs::OpenOptions::new().write(true).open(segment).unwrap().set_len(200).unwrap();
    assert_eq!(found(&store, URL, |_| true), Found::Nothing);
}
