//! The tier on disk: restarts, purges, damage, unusable folders.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use flatout_wire::Status;
use flatout_wire::cache::Policy;

use super::DiskPlan;
use crate::entry::{Entry, Parts};
use crate::key::Key;
use crate::purge::Purge;
use crate::store::{DiskLoad, Store};

pub(super) const NOW_MS: u64 = 784_111_777_000;

pub(super) fn policy() -> Policy {
    Policy { stored_ms: NOW_MS, initial_age: 2, lifetime: 60, ..Policy::default() }
}

/// A folder that goes away with its test.
pub(super) struct Dir(PathBuf);

impl Dir {
    pub(super) fn new(name: &str) -> Dir {
        // Tests run at the same time, and two may have chosen one name.
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("flatout-disk-{name}-{}-{count}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Dir(path)
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    pub(super) fn plan(&self, bytes_max: u64) -> DiskPlan {
        DiskPlan { dir: self.0.clone(), bytes_max }
    }

    pub(super) fn open(&self) -> Store {
        self.open_with(16 << 20)
    }

    fn open_with(&self, bytes_max: u64) -> Store {
        let store = Store::new(1 << 20);
        store.open_disk(&self.plan(bytes_max), NOW_MS).unwrap();
        store.disk().unwrap().wait_until_ready();
        store
    }

    pub(super) fn segments(&self) -> Vec<PathBuf> {
        let files = fs::read_dir(&self.0).unwrap().map(|file| file.unwrap().path());
        let mut files: Vec<PathBuf> = files.filter(|path| path.extension().is_some()).collect();
        files.sort();
        files
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

pub(super) fn with_key<T>(store: &Store, url: &str, act: impl FnOnce(Key<'_>) -> T) -> T {
    act(Key::of(url.as_bytes(), url.len(), false, |bytes| store.hash(bytes)))
}

pub(super) fn put(store: &Store, url: &str, vary: &[u8], selected: &[u8], body: &[u8]) {
    with_key(store, url, |key| {
        let parts =
            Parts { key, vary, selected, lines: b"Cache-Tag: red\r\n", status: Status::OK, policy: policy() };
        store.insert(&key, Entry::new(&parts, body.to_vec()), store.moment());
    });
}

pub(super) fn get(store: &Store, url: &str, selected: &'static [u8]) -> Option<Arc<Entry>> {
    get_at(store, url, selected, NOW_MS)
}

pub(super) fn get_at(store: &Store, url: &str, selected: &'static [u8], now_ms: u64) -> Option<Arc<Entry>> {
    let select = |names: &[u8], out: &mut Vec<u8>| {
        if !names.is_empty() {
            out.extend_from_slice(selected);
        }
    };
    with_key(store, url, |key| {
        let found = store.find(&key, now_ms, select);
        if found.entry.is_some() {
            return found.entry;
        }
        match store.read_from_disk(&key, found.slot, now_ms, select, |_| false) {
            DiskLoad::Nothing | DiskLoad::Once(..) => None,
            DiskLoad::Here => store.find(&key, now_ms, select).entry,
            DiskLoad::Cold(slot) => store.read_from_disk_slowly(&key, slot, now_ms, store.moment()),
        }
    })
}

pub(super) fn body(store: &Store, url: &str) -> Option<Vec<u8>> {
    get(store, url, b"").map(|entry| entry.body().to_vec())
}

pub(super) fn purge(store: &Store, text: &str) {
    store.purge(&Purge::from_text(text).unwrap());
}

#[test]
fn a_restart_finds_written_entries() {
    let dir = Dir::new("restart");
    let store = dir.open();
    put(&store, "http://a/1", b"", b"", b"one");
    put(&store, "http://a/2", b"\nx", b",1\n", b"two of 1");
    put(&store, "http://a/2", b"\nx", b",2\n", b"two of 2");
    put(&store, "http://a/1", b"", b"", b"one again");
    drop(store);
    for _ in 0..2 {
        let store = dir.open();
        assert_eq!(body(&store, "http://a/1").unwrap(), b"one again");
        assert_eq!(get(&store, "http://a/2", b",1\n").unwrap().body(), b"two of 1");
        assert_eq!(get(&store, "http://a/2", b",2\n").unwrap().body(), b"two of 2");
        assert!(get(&store, "http://a/2", b",3\n").is_none() && body(&store, "http://a/3").is_none());
        assert_eq!(get(&store, "http://a/1", b"").unwrap().policy, policy());
    }
}

#[test]
fn purges_and_invalidations_outlast_a_restart() {
    let dir = Dir::new("purges");
    let urls = ["http://a/1", "http://a/2", "http://b/1", "http://b/2", "http://c/"];
    let store = dir.open();
    for url in urls {
        put(&store, url, b"", b"", b"old");
    }
    drop(store);
    // Memory is empty now.
    let store = dir.open();
    purge(&store, "hard prefix http://a/");
    purge(&store, "soft url http://c/");
    with_key(&store, "http://b/1", |key| store.invalidate(&key));
    for gone in ["http://a/1", "http://a/2", "http://b/1"] {
        assert_eq!(body(&store, gone), None, "{gone}");
    }
    put(&store, "http://a/2", b"", b"", b"new");
    drop(store);
    let store = dir.open();
    assert_eq!((body(&store, "http://a/1"), body(&store, "http://b/1")), (None, None));
    assert_eq!(body(&store, "http://a/2").unwrap(), b"new");
    assert_eq!(body(&store, "http://b/2").unwrap(), b"old");
    assert!(get(&store, "http://c/", b"").unwrap().is_expired());
    purge(&store, "hard all");
    drop(store);
    let store = dir.open();
    assert!(urls.iter().all(|url| body(&store, url).is_none()));
}

#[test]
fn damaged_records_are_dropped_and_the_others_kept() {
    let dir = Dir::new("damage");
    let store = dir.open();
    let bodies: Vec<Vec<u8>> = (0..50u8).map(|at| vec![at; 1000]).collect();
    for (at, body) in bodies.iter().enumerate() {
        put(&store, &format!("http://a/{at}"), b"", b"", body);
    }
    drop(store);
    let [segment] = &dir.segments()[..] else { panic!("one segment") };
    let good = fs::read(segment).unwrap();
    // Bits are flipped, and the file is truncated, as by a crash.
    for at in (0..good.len()).step_by(997) {
        let mut bytes = good.clone();
        bytes[at] ^= 16;
        bytes.truncate(good.len() - at % 5000);
        fs::write(segment, &bytes).unwrap();
        let store = dir.open();
        for (number, expected) in bodies.iter().enumerate() {
            if let Some(got) = body(&store, &format!("http://a/{number}")) {
                assert!(got == *expected, "a torn body of {number} was served");
            }
        }
        drop(store);
        dir.segments().iter().skip(1).for_each(|path| fs::remove_file(path).unwrap());
    }
}

#[test]
fn the_folder_does_not_grow_over_its_limit() {
    let dir = Dir::new("limit");
    let store = dir.open_with(4 << 20);
    for at in 0..3000 {
        put(&store, &format!("http://a/{at}"), b"", b"", &[b'x'; 4000]);
        if at % 500 == 0 {
            // A purge waits until everything before it is written, because the queue is bounded as well.
            purge(&store, "soft tag none");
        }
    }
    drop(store);
    let bytes: u64 = dir.segments().iter().map(|path| fs::metadata(path).unwrap().len()).sum();
    assert!(bytes <= 4 << 20, "{bytes}");
    let store = dir.open_with(4 << 20);
    assert!(body(&store, "http://a/0").is_none(), "the oldest made room");
}

#[test]
fn inactive_entries_are_removed_from_disk() {
    let dir = Dir::new("inactive");
    let urls: Vec<String> = (0..100).map(|at| format!("http://a/{at}")).collect();
    let (unused, used) = urls.split_at(50);
    let store = dir.open();
    for url in &urls {
        put(&store, url, b"", b"", &[b'x'; 30_000]);
    }
    // A purge waits until everything before it is written.
    let wait = || purge(&store, "soft tag none");
    wait();
    let segments = dir.segments().len();
    for url in used {
        assert!(get_at(&store, url, b"", NOW_MS + 5_000).is_some());
    }
    assert_eq!(store.sweep(NOW_MS + 10_000, 10, 1), 0);
    assert!(store.sweep(NOW_MS + 12_000, 10, 1) >= unused.len());
    wait();
    let has = |url: &String| get_at(&store, url, b"", NOW_MS + 12_000).is_some();
    assert!(!unused.iter().any(has) && used.iter().all(has));
    let left = dir.segments().len();
    assert!(left > 1 && left < segments - 3, "of {segments} segments {left} are left");
    // Entries used in memory are also in use on disk, after the next sweep has reported them.
    let last = used.last().unwrap();
    assert!(get_at(&store, last, b"", NOW_MS + 14_000).is_some());
    store.sweep(NOW_MS + 15_000, 10, 1);
    store.sweep(NOW_MS + 24_000, 10, 1);
    drop(store);
    let store = dir.open();
    assert!(body(&store, last).is_some() && body(&store, &unused[0]).is_none());
}

/// If the removal of segments is interrupted at any point, no replaced version comes back.
#[test]
fn stale_records_stay_hidden_after_old_segments_are_removed() {
    let dir = Dir::new("order");
    let urls: Vec<String> = (0..10).map(|at| format!("http://a/{at}")).collect();
    let store = dir.open();
    for version in 0..20u8 {
        for url in &urls {
            put(&store, url, b"", b"", &[version; 20_000]);
        }
        // Wait until it is written: a replaced entry would not be.
        purge(&store, "soft tag none");
    }
    drop(store);
    let segments = dir.segments();
    assert!(segments.len() > 10);
    for segment in segments {
        let store = dir.open();
        for url in &urls {
            assert!(body(&store, url).is_none_or(|body| body == [19; 20_000]), "{url}");
        }
        drop(store);
        fs::remove_file(segment).unwrap();
    }
}

#[test]
fn a_segment_that_cannot_be_removed_counts_still() {
    let dir = Dir::new("stays");
    let store = dir.open_with(4 << 20);
    put(&store, "http://a/", b"", b"", b"x");
    purge(&store, "soft tag none");
    // Replace it by a folder, which cannot be unlinked.
    let [segment] = &dir.segments()[..] else { panic!("one segment") };
    fs::remove_file(segment).unwrap();
    fs::create_dir(segment).unwrap();
    for at in 0..400 {
        put(&store, &format!("http://b/{at}"), b"", b"", &[b'x'; 30_000]);
    }
    purge(&store, "soft tag none");
    assert!(store.disk().unwrap().tally().errors.load(Ordering::Relaxed) > 0);
    assert!(dir.segments().contains(segment) && store.disk().unwrap().size().1 <= 4 << 20);
    assert_eq!(body(&store, "http://a/").unwrap(), b"x", "what is in it is there still");
}

#[test]
fn a_folder_that_cannot_be_used_is_an_error() {
    let dir = Dir::new("refused");
    let held = dir.open();
    let other = Store::new(1 << 20);
    let plan = dir.plan(1 << 20);
    assert!(other.open_disk(&plan, NOW_MS).is_err(), "somebody has it");
    drop(held);
    assert!(other.open_disk(&plan, NOW_MS).is_ok());
    let file = dir.0.join("file");
    fs::write(&file, "").unwrap();
    assert!(Store::new(1 << 20).open_disk(&DiskPlan { dir: file, bytes_max: 1 << 20 }, NOW_MS).is_err());
}

#[test]
fn a_disk_that_fails_is_counted_and_nothing_else() {
    let dir = Dir::new("fails");
    let store = dir.open();
    // Remove the folder, which has the effect of a folder without room for another file.
    fs::set_permissions(&dir.0, fs::Permissions::from_mode(0o700)).unwrap();
    fs::remove_dir_all(&dir.0).unwrap();
    put(&store, "http://a/", b"", b"", b"x");
    purge(&store, "soft tag none");
    assert_eq!(body(&store, "http://a/").unwrap(), b"x");
    assert!(store.disk().unwrap().tally().errors.load(Ordering::Relaxed) > 0);
}
