//! The response cache with a folder: replaced responses are not read from disk again.

mod support;

use std::io::Write;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

use flatout_cache::{DiskPlan, Plan, Rules};
use support::cached::{Cached, is};
use support::{body_of, one, read_request, upstream};

/// A folder that is removed with its test.
struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Dir {
        Dir(std::env::temp_dir().join(format!("flatout-cache-{name}-{}", std::process::id())))
    }

    fn plan(&self) -> Plan {
        let disk = DiskPlan { dir: self.0.clone(), bytes_max: 16 << 20 };
        Plan { memory_bytes: 4 << 20, disk: Some(disk), ..Plan::default() }
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A server whose upstream sends these responses, one after the other.
fn scripted(dir: &Dir, responses: &[&'static str]) -> Cached {
    let (responses, count) = (responses.to_vec(), AtomicUsize::new(0));
    let address = upstream(move |_, mut stream| {
        while read_request(&mut stream).is_some() {
            let response = responses[count.fetch_add(1, Ordering::SeqCst)];
            if stream.write_all(response.as_bytes()).is_err() {
                return;
            }
        }
    });
    let server = Cached::with_plan(one(address), Rules::default(), dir.plan());
    // It returns once the folder was read.
    server.purge("soft tag none");
    server
}

const OLD: &str =
    "HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\nETag: \"a\"\r\nContent-Length: 3\r\n\r\nold";

const NEW: &str = "HTTP/1.1 200 OK\r\nCache-Control: no-store\r\nContent-Length: 3\r\n\r\nnew";

#[test]
fn entries_replaced_by_an_unstored_response_are_not_read_from_disk() {
    let not_modified = "HTTP/1.1 304 Not Modified\r\nCache-Control: no-store\r\n\r\n";
    for (name, responses) in [("replaced", &[OLD, NEW, NEW]), ("withdrawn", &[OLD, not_modified, NEW])] {
        let dir = Dir::new(name);
        let server = scripted(&dir, responses);
        assert!(is(&server.get("/", ""), "MISS"));
        // Written by now.
        server.purge("soft tag none");
        assert!(is(&server.get("/", ""), "HIT"));
        server.get("/", "Cache-Control: no-cache\r\n");
        let again = server.get("/", "");
        assert!(is(&again, "MISS") && body_of(&again) == "new", "{name}: {again}");
    }
}

#[test]
fn entries_that_a_head_has_expired_are_not_fresh_on_disk() {
    let dir = Dir::new("compared");
    let changed = "HTTP/1.1 200 OK\r\nETag: \"b\"\r\nContent-Length: 3\r\n\r\n";
    let server = scripted(&dir, &[OLD, changed, NEW]);
    assert!(is(&server.get("/", ""), "MISS"));
    server.purge("soft tag none");
    server.ask("HEAD / HTTP/1.1\r\nHost: t\r\nCache-Control: no-cache\r\nConnection: close\r\n\r\n");
    drop(server);
    let again = scripted(&dir, &[NEW]).get("/", "");
    assert_eq!(body_of(&again), "new", "{again}");
}
