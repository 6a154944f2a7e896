//! The folder goes from one store to the next, as it does from one process to the next.

use std::fs::OpenOptions;
use std::process::Command;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use super::tests::{Dir, body, purge, put, with_key};
use crate::purge::Purge;
use crate::store::Store;

/// A store that waits for a folder.
fn waiting(dir: &Dir) -> Arc<Store> {
    let store = Arc::new(Store::new(1 << 20));
    store.use_folder(&dir.plan(16 << 20));
    assert!(store.disk().is_none());
    store
}

fn wait_until_taken(store: &Store) {
    while store.disk().is_none() {
        std::thread::yield_now();
    }
    store.disk().into_iter().for_each(|disk| disk.wait_until_ready());
}

#[test]
fn changes_during_the_wait_are_applied_to_the_folder() {
    let dir = Dir::new("meanwhile");
    let former = dir.open();
    for url in ["http://a/1", "http://a/2", "http://b/1", "http://c/"] {
        put(&former, url, b"", b"", b"old");
    }
    let latter = waiting(&dir);
    put(&latter, "http://a/1", b"", b"", b"of no use");
    put(&latter, "http://c/", b"", b"", b"new");
    with_key(&latter, "http://b/1", |key| latter.invalidate(&key));
    // It returns once this is on disk.
    std::thread::scope(|scope| {
        let purged = scope.spawn(|| purge(&latter, "hard prefix http://a/"));
        while body(&latter, "http://a/1").is_some() {
            std::thread::yield_now();
        }
        former.leave_folder();
        purged.join().unwrap();
    });
    wait_until_taken(&latter);
    // The former store serves what it has in memory, and leaves the folder alone.
    put(&former, "http://b/2", b"", b"", b"not written");
    former.leave_folder();
    assert!(former.disk().is_none() && body(&former, "http://b/2").is_some());
    drop(former);
    let check = |store: &Store| {
        for gone in ["http://a/1", "http://a/2", "http://b/1", "http://b/2"] {
            assert_eq!(body(store, gone), None, "{gone}");
        }
        assert_eq!(body(store, "http://c/").unwrap(), b"new");
    };
    check(&latter);
    // The thread that has taken the folder may still refer to the store, so dropping it is not enough.
    latter.leave_folder();
    check(&dir.open());
}

/// A disk that hangs: the first segment is a named pipe, and opening it blocks until it has a writer.
#[test]
fn requests_do_not_wait_while_a_folder_is_opened() {
    let dir = Dir::new("hangs");
    let pipe = dir.plan(0).dir.join("00000001.segment");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let store = Arc::new(Store::new(1 << 20));
    let of_opener = store.clone();
    let plan = dir.plan(16 << 20);
    let opener = std::thread::spawn(move || of_opener.open_disk(&plan, 0));
    while !dir.plan(0).dir.join("lock").exists() {
        std::thread::yield_now();
    }
    let (done, is_done) = channel();
    let of_request = store.clone();
    let request = std::thread::spawn(move || {
        with_key(&of_request, "http://a/", |key| of_request.invalidate(&key));
        let _ = done.send(());
    });
    let was_held_up = is_done.recv_timeout(Duration::from_secs(20)).is_err();
    drop(OpenOptions::new().write(true).open(&pipe).unwrap());
    opener.join().unwrap().unwrap();
    request.join().unwrap();
    assert!(!was_held_up && store.disk().is_some());
}

#[test]
fn too_many_pending_purges_purge_everything() {
    for (count, is_there) in [(1, true), (1500, false)] {
        let dir = Dir::new(&format!("missed-{count}"));
        let former = dir.open();
        put(&former, "http://a/", b"", b"", b"old");
        let latter = waiting(&dir);
        for at in 0..count {
            with_key(&latter, &format!("http://b/{at}"), |key| latter.invalidate(&key));
        }
        drop(former);
        wait_until_taken(&latter);
        assert_eq!(body(&latter, "http://a/").is_some(), is_there);
        put(&latter, "http://c/", b"", b"", b"new");
        latter.leave_folder();
        assert_eq!(body(&dir.open(), "http://c/").unwrap(), b"new");
    }
}

#[test]
fn waiting_for_a_folder_does_not_keep_the_store_alive() {
    let dir = Dir::new("kept");
    let former = dir.open();
    let latter = waiting(&dir);
    let has_ended = Arc::downgrade(&latter);
    latter.leave_folder();
    drop(latter);
    while has_ended.strong_count() > 0 {
        std::thread::yield_now();
    }
    assert!(former.disk().is_some());
}

/// They are written in the background, and another process may be the next to read the folder.
#[test]
fn purges_that_wait_hold_after_the_folder_was_left() {
    for text in ["hard url http://a/1", "soft url http://a/1", "hard prefix http://a/"] {
        let dir = Dir::new("left");
        let former = Arc::new(dir.open());
        put(&former, "http://a/1", b"", b"", b"purged");
        former.hold_purges();
        former.purge_soon(&Purge::from_text(text).unwrap());
        former.leave_folder();
        assert_eq!(body(&dir.open(), "http://a/1"), None, "{text}");
    }
}

/// The wait for the folder does not start again with each purge.
#[test]
fn purges_wait_for_the_folder_together() {
    let dir = Dir::new("together");
    let _former = dir.open();
    let latter = waiting(&dir);
    latter.hold_purges();
    for at in 0..15 {
        latter.purge_soon(&Purge::from_text(&format!("hard url http://a/{at}")).unwrap());
    }
    let began = Instant::now();
    latter.write_purges();
    assert!(!latter.has_purges_to_write() && began.elapsed() < Duration::from_secs(20));
}

/// The marks of those that are not written end.
#[test]
fn responses_are_read_from_disk_after_too_many_purges() {
    let dir = Dir::new("too-many");
    let store = Arc::new(dir.open());
    let url = "http://a/0";
    put(&store, url, b"", b"", b"old");
    purge(&store, "soft tag none");
    store.hold_purges();
    for at in 0..3000 {
        store.purge_soon(&Purge::from_text(&format!("hard url http://a/{at}")).unwrap());
    }
    assert_eq!(body(&store, url), None);
    store.write_purges();
    put(&store, url, b"", b"", b"new");
    purge(&store, "soft tag none");
    with_key(&store, url, |key| store.peek(key.hash).into_iter().for_each(|it| store.remove(key.hash, &it)));
    assert_eq!(body(&store, url).unwrap(), b"new");
}

#[test]
fn a_purge_in_the_background_does_not_wait_for_the_folder() {
    let dir = Dir::new("soon");
    let former = dir.open();
    for url in ["http://a/1", "http://a/2"] {
        put(&former, url, b"", b"", b"old");
    }
    let latter = waiting(&dir);
    latter.purge_soon(&Purge::from_text("hard url http://a/1").unwrap());
    assert!(latter.has_purges_to_write(), "it waits for the folder, in the background");
    former.leave_folder();
    wait_until_taken(&latter);
    assert_eq!(body(&latter, "http://a/1"), None);
    latter.purge_soon(&Purge::from_text("hard url http://a/2").unwrap());
    assert_eq!(body(&latter, "http://a/2"), None);
    latter.wait_for_purges();
    assert!(!latter.has_purges_to_write());
    latter.leave_folder();
    let again = dir.open();
    assert_eq!((body(&again, "http://a/1"), body(&again, "http://a/2")), (None, None));
}
