use flatout_wire::Status;
use flatout_wire::cache::Policy;

use super::inflight::PASS_TIME_MS;
use super::*;
use crate::entry::{Content, Parts};
use crate::purge::Purge;

const NOW_MS: u64 = 784_111_777_000;

fn policy() -> Policy {
    Policy { stored_ms: NOW_MS, lifetime: 60, ..Policy::default() }
}

fn key<'a>(store: &Store, url: &'a str) -> Key<'a> {
    Key::of(url.as_bytes(), url.len(), false, |bytes| store.hash(bytes))
}

fn entry(key: Key<'_>, vary: &[u8], selected: &[u8], body: usize) -> Entry {
    let parts = Parts { key, vary, selected, lines: b"A: b\r\n", status: Status::OK, policy: policy() };
    Entry::new(&parts, vec![b'x'; body])
}

fn put(store: &Store, url: &str, vary: &[u8], selected: &[u8]) -> Arc<Entry> {
    let key = key(store, url);
    store.insert(&key, entry(key, vary, selected, 100), store.moment()).0
}

fn find(store: &Store, url: &str, value: &[u8]) -> Found {
    store.find(&key(store, url), NOW_MS, |_, out| out.extend_from_slice(value))
}

#[test]
fn variants_are_found_by_their_selecting_fields() {
    let store = Store::new(1 << 20);
    let one = put(&store, "http://a/", b"\nx", b"1");
    let two = put(&store, "http://a/", b"\nx", b"2");
    let is = |found: Found, entry: &Arc<Entry>| found.entry.is_some_and(|it| Arc::ptr_eq(&it, entry));
    assert!(is(find(&store, "http://a/", b"1"), &one) && is(find(&store, "http://a/", b"2"), &two));
    let other = find(&store, "http://a/", b"3");
    assert!(other.entry.is_none() && other.is_other_variant);
    // The first one is replaced, and the other remains.
    let again = put(&store, "http://a/", b"\nx", b"1");
    assert!(!one.is_live() && is(find(&store, "http://a/", b"1"), &again));
    assert!(is(find(&store, "http://a/", b"2"), &two));
    // From now on it varies by another field.
    put(&store, "http://a/", b"\ny", b"7");
    assert!(find(&store, "http://a/", b"2").entry.is_none());
}

#[test]
fn invalidation_removes_all_variants() {
    let store = Store::new(1 << 20);
    put(&store, "http://a/", b"\nx", b"1");
    put(&store, "http://a/", b"\nx", b"2");
    let before = store.moment();
    let late = key(&store, "http://a/");
    store.invalidate(&late);
    assert!(!store.insert(&late, entry(late, b"", b"", 1), before).1, "it was asked for before");
    assert!(find(&store, "http://a/", b"1").entry.is_none());
    put(&store, "http://a/", b"\nx", b"1");
    let found = find(&store, "http://a/", b"2");
    assert!(found.entry.is_none(), "it is of another family");
    let joined = store.join(&key(&store, "http://a/"), found.slot, None);
    assert!(matches!(joined, FlightRole::Leads(_)), "nor is it taken for one that has just been stored");
}

/// A request whose variant was stored between its lookup and its turn gets it.
#[test]
fn a_variant_that_has_just_been_stored_is_served() {
    let store = Store::new(1 << 20);
    put(&store, "http://a/", b"\nx", b"1");
    let slot = find(&store, "http://a/", b"2").slot;
    let stored = put(&store, "http://a/", b"\nx", b"2");
    let joined = store.join(&key(&store, "http://a/"), slot, None);
    assert!(matches!(joined, FlightRole::Here(entry) if Arc::ptr_eq(&entry, &stored)));
}

#[test]
fn purges_apply_to_stored_and_arriving_responses() {
    let store = Store::new(1 << 20);
    let (one, other) = (put(&store, "http://a/1", b"", b""), put(&store, "http://b/", b"", b""));
    let before = store.moment();
    let purge = |text| store.purge(&Purge::from_text(text).unwrap());
    assert_eq!(purge("hard prefix http://a/"), 1);
    assert!(!one.is_live() && other.is_live() && find(&store, "http://a/1", b"").entry.is_none());
    let late = key(&store, "http://a/1");
    let (_, is_stored) = store.insert(&late, entry(late, b"", b"", 1), before);
    assert!(!is_stored && find(&store, "http://a/1", b"").entry.is_none());
    assert_eq!(purge("soft all"), 1);
    assert!(other.is_live() && other.is_expired());
    assert_eq!(purge("hard all"), 1);
    assert_eq!(store.table.len(), 0);
}

/// The record of a purge must come after those of entries that it did not find because they were evicted.
#[test]
fn entries_are_queued_for_the_disk_before_a_purge_can_begin() {
    let store = Store::new(1 << 20);
    let key = key(&store, "http://a/");
    let mut was_kept = false;
    store.admit_at(
        &key,
        entry(key, b"", b"", 1),
        store.moment(),
        |_| (key.hash, None),
        |_, slot| {
            was_kept = slot == key.hash;
            assert!(store.purges.try_write().is_err(), "a purge waits");
            assert_eq!(store.stripes.iter().filter(|stripe| stripe.try_lock().is_err()).count(), 1);
        },
    );
    assert!(was_kept);
}

#[test]
fn encodings_are_removed_with_their_entry() {
    let store = Store::new(1 << 20);
    let first = put(&store, "http://a/", b"", b"");
    let key = key(&store, "http://a/");
    let [at, ..] = store.encoding_slots(key.hash).collect::<Vec<_>>()[..] else { panic!("no codings") };
    let form = || Arc::new(entry(key, b"\0br", b"", 10));
    let insert = |plain: &Arc<Entry>, form: &Arc<Entry>| {
        store.insert_beside(plain, key.hash, key.hash, at, form.clone());
        store.peek(at).is_some_and(|known| Arc::ptr_eq(&known, form))
    };
    let one = form();
    assert!(one.is_encoding() && insert(&first, &one) && one.is_live());
    let second = put(&store, "http://a/", b"", b"");
    assert!(!one.is_live() && store.peek(at).is_none());
    // This form was made too late.
    assert!(!insert(&first, &form()) && insert(&second, &form()));
    let two = store.peek(at).unwrap();
    assert_eq!(store.purge(&Purge::from_text("hard all").unwrap()), 1);
    assert!(!two.is_live() && store.totals().entries == 0);
    let third = put(&store, "http://a/", b"", b"");
    assert!(insert(&third, &form()));
    store.invalidate(&key);
    assert!(store.peek(at).is_none());
}

#[test]
fn encodings_stay_when_a_response_is_updated() {
    let store = Store::new(1 << 20);
    let first = put(&store, "http://a/", b"", b"");
    let key = key(&store, "http://a/");
    let [at, other, ..] = store.encoding_slots(key.hash).collect::<Vec<_>>()[..] else {
        panic!("no codings")
    };
    let form = || Arc::new(entry(key, b"\0br", b"", 10));
    store.insert_beside(&first, key.hash, key.hash, at, form());
    let parts =
        Parts { key, vary: b"", selected: b"", lines: b"A: c\r\n", status: Status::OK, policy: policy() };
    let update = || Entry::new(&parts, Content::Of(first.owner().clone()));
    store.insert(&key, update(), store.moment());
    assert!(!first.is_live() && store.peek(at).is_some_and(|form| form.is_live()));
    // A form of the earlier entry that was completed after the update.
    store.insert_beside(&first, key.hash, key.hash, other, form());
    assert!(store.peek(other).is_some());
    put(&store, "http://a/", b"", b"");
    assert!(store.peek(at).is_none() && store.peek(other).is_none());
}

#[test]
fn memory_including_overhead_is_bounded() {
    let store = Store::new(1 << 20);
    for at in 0..20_000 {
        put(&store, &format!("http://a/{at}"), b"", b"");
    }
    let totals = store.totals();
    assert!(totals.bytes <= 1 << 20 && totals.bytes > (1 << 20) * 9 / 10, "{totals:?}");
    assert!(totals.evicted > 10_000 && totals.entries < 4000, "{totals:?}");
    let big = key(&store, "http://a/big");
    store.insert(&big, entry(big, b"", b"", 900 << 10), store.moment());
    assert!(store.totals().bytes <= 1 << 20);
}

#[test]
fn inactive_entries_are_removed() {
    let store = Store::new(1 << 20);
    let [used, unused] = ["http://a/used", "http://a/unused"].map(|url| put(&store, url, b"", b""));
    let first = put(&store, "http://a/", b"\nx", b"1");
    let variants = [b"2", b"3"].map(|selected| put(&store, "http://a/", b"\nx", selected));
    let form = Arc::new(entry(key(&store, "http://a/unused"), b"\0br", b"", 10));
    let slot = key(&store, "http://a/unused").hash;
    let at = store.encoding_slots(slot).next().unwrap();
    store.insert_beside(&unused, slot, slot, at, form.clone());

    assert_eq!(store.sweep(NOW_MS + 10_000, 10, 1), 0, "not before the time is over");
    let later = NOW_MS + 8_000;
    for (url, value) in [("http://a/used", &b""[..]), ("http://a/", b"2")] {
        assert!(store.find(&key(&store, url), later, |_, out| out.extend_from_slice(value)).entry.is_some());
    }
    // If the clock goes back, nothing is removed.
    assert_eq!(store.sweep(NOW_MS - 20_000, 10, 1), 0);
    assert_eq!(store.sweep(NOW_MS + 11_000, 10, 1), 2);
    assert!(!unused.is_live() && !form.is_live() && !variants[1].is_live());
    assert!(used.is_live() && first.is_live() && variants[0].is_live(), "the first variant leads to others");
    assert_eq!(store.sweep(later + 11_000, 10, 1), 3);
    assert_eq!(store.totals().entries, 0);
}

#[test]
fn one_request_leads_and_the_others_follow() {
    let store = Store::new(1 << 20);
    let key = key(&store, "http://a/");
    let FlightRole::Leads(flight) = store.join(&key, key.hash, None) else { panic!("nobody was before") };
    assert!(
        matches!(store.join(&key, key.hash, None), FlightRole::Follows(same) if Arc::ptr_eq(&same, &flight))
    );
    store.land(&flight);
    let stored = put(&store, "http://a/", b"", b"");
    assert!(
        matches!(store.join(&key, key.hash, None), FlightRole::Here(entry) if Arc::ptr_eq(&entry, &stored))
    );
    assert!(matches!(store.join(&key, key.hash, Some(&stored)), FlightRole::Leads(_)));
}

#[test]
fn requests_are_counted_until_an_entry_may_be_stored() {
    let store = Store::new(1 << 20);
    assert!(store.is_used_enough(1, 1) && !store.is_used_enough(1, 3) && !store.is_used_enough(1, 3));
    assert!(store.is_used_enough(1, 3));
    store.pass(5, 1000);
    assert!(store.is_passed(5, 1000 + PASS_TIME_MS - 1) && !store.is_passed(5, 1000 + PASS_TIME_MS));
}
