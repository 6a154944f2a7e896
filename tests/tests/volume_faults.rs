//! Files of a volume that others write to as well: two mounts of one folder, delays, errors, clocks that differ.

use std::fs::{self, OpenOptions};
use std::io::{Read, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use flatout_tests::faulty_volume::{Faults, FaultyVolume, Operation};
use flatout_tests::{Folder, Server, until};
use rustix::io::Errno;

/// Larger than what is kept in memory, and several pieces.
const LARGE_BYTES: usize = 1_000_001;

fn large(seed: usize) -> Vec<u8> {
    (0..LARGE_BYTES).map(|at| ((at * 7 + seed) % 251) as u8).collect()
}

/// A server of a mount of this folder; `None`, if this machine cannot mount it.
fn serving(behind: &Folder) -> Option<(FaultyVolume, Server)> {
    let volume = FaultyVolume::mount(&behind.0)?;
    let server = server(volume.path());
    Some((volume, server))
}

fn server(folder: &Path) -> Server {
    let server = Server::site(folder, &["--workers", "1", "--changes", "sweep=200ms"]);
    until("the folder is scanned", || server.get("/nothing", "").status == 404);
    server
}

fn error(operation: Operation, error: Errno) -> Faults {
    Faults { error: Some((operation, error.raw_os_error())), ..Faults::default() }
}

#[test]
fn files_of_another_mount_are_served_once_they_are_whole() {
    let behind = Folder::new();
    let Some((_volume, server)) = serving(&behind) else { return };
    let Some(writer) = FaultyVolume::mount(&behind.0) else { return };
    let content = large(0);
    let mut file =
        OpenOptions::new().create(true).write(true).truncate(true).open(writer.path().join("a.bin")).unwrap();
    for piece in content.chunks(100_000) {
        file.write_all(piece).unwrap();
        let answer = server.get("/a.bin", "");
        assert!(answer.status != 200 || answer.body == content, "{} bytes of it", answer.body.len());
    }
    drop(file);
    until("it is served", || {
        let answer = server.get("/a.bin", "");
        assert!(answer.status != 200 || answer.body == content, "{} bytes of it", answer.body.len());
        answer.status == 200
    });
    // Another version in its place: either is served, and never a mixture.
    let next = large(1);
    fs::write(writer.path().join("b.bin"), &next).unwrap();
    fs::rename(writer.path().join("b.bin"), writer.path().join("a.bin")).unwrap();
    until("the next version is served", || {
        let answer = server.get("/a.bin", "");
        assert!(answer.body == content || answer.body == next, "{} {}", answer.status, answer.body.len());
        answer.body == next
    });
    fs::remove_file(writer.path().join("a.bin")).unwrap();
    until("it is gone", || server.get("/a.bin", "").status == 404);
}

#[test]
fn a_compressed_file_that_is_gone_leaves_the_plain_one() {
    let folder = Folder::new();
    folder.write("a.js", large(0));
    let compressed = &large(1)[..LARGE_BYTES / 2];
    folder.write("a.js.gz", compressed);
    // Nobody looks again during the test.
    let server = Server::site(&folder.0, &["--workers", "1", "--changes", "sweep=1h"]);
    until("the folder is scanned", || server.get("/nothing", "").status == 404);
    let get = || server.get("/a.js", "Accept-Encoding: gzip\r\n");
    assert_eq!((get().field("content-encoding"), &*get().body), (Some("gzip"), compressed));
    fs::remove_file(folder.0.join("a.js.gz")).unwrap();
    for _ in 0..3 {
        let answer = get();
        assert_eq!((answer.status, answer.field("content-encoding")), (200, None));
        assert!(answer.body == large(0));
    }
}

#[test]
fn a_slow_volume_delays_no_file_in_memory() {
    let behind = Folder::new();
    behind.write("small.txt", "small");
    behind.write("large.bin", large(0));
    let Some((volume, server)) = serving(&behind) else { return };
    const DELAY: Duration = Duration::from_millis(200);
    assert_eq!(server.get("/small.txt", "").text(), "small");
    volume.set(Faults { delay: DELAY, ..Faults::default() });
    std::thread::scope(|scope| {
        let slow = scope.spawn(|| {
            let began = Instant::now();
            (server.get("/large.bin", "").body == large(0), began.elapsed())
        });
        let began = Instant::now();
        for _ in 0..20 {
            assert_eq!(server.get("/small.txt", "").text(), "small");
        }
        let hot = began.elapsed();
        let (is_right, cold) = slow.join().unwrap();
        assert!(is_right && cold >= DELAY, "{cold:?}");
        assert!(hot < DELAY * 10, "20 files in memory took {hot:?}: they waited for the volume");
    });
}

/// The status of the large file, and as much of it as is sent.
fn cut_short(server: &Server) -> (u16, Vec<u8>) {
    let mut stream = server.connect();
    stream.write_all(b"GET /large.bin HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n").unwrap();
    let mut bytes = Vec::new();
    // A reset ends it too.
    let _ = stream.read_to_end(&mut bytes);
    let end = bytes.windows(4).position(|it| it == b"\r\n\r\n").expect("a head");
    let status = std::str::from_utf8(&bytes[9..12]).unwrap().parse().unwrap();
    (status, bytes.split_off(end + 4))
}

#[test]
fn errors_of_a_volume_are_reported_and_pass() {
    let behind = Folder::new();
    behind.write("small.txt", "small");
    behind.write("large.bin", large(0));
    let Some((volume, server)) = serving(&behind) else { return };
    assert_eq!(server.get("/small.txt", "").text(), "small");
    for (operation, errno) in [
        (Operation::Read, Errno::IO),
        (Operation::Read, Errno::STALE),
        (Operation::Open, Errno::IO),
        (Operation::Open, Errno::STALE),
        (Operation::Look, Errno::IO),
    ] {
        volume.set(error(operation, errno));
        for _ in 0..3 {
            let (status, body) = cut_short(&server);
            let is_whole = status == 200 && body == large(0);
            // A response whose head was sent ends early; the client sees that its length is wrong.
            let is_cut = status == 200 && body.len() < LARGE_BYTES && large(0).starts_with(&body);
            let is_refused = matches!(status, 404 | 500..=599);
            assert!(is_whole || is_cut || is_refused, "{operation:?} {errno}: {status}");
            assert!(operation != Operation::Read || !is_whole, "{operation:?} {errno}: nothing can be read");
        }
        assert_eq!(server.get("/small.txt", "").text(), "small", "{operation:?} {errno}: it is in memory");
        volume.set(Faults::default());
        until("it is served again", || {
            let answer = server.get("/large.bin", "");
            answer.status == 200 && answer.body == large(0)
        });
    }
}

#[test]
fn a_volume_whose_clock_differs_serves_new_versions() {
    for ahead_s in [7200, -7200] {
        let behind = Folder::new();
        let Some((volume, server)) = serving(&behind) else { return };
        volume.set(Faults { ahead_s, ..Faults::default() });
        let mut etags = Vec::new();
        for version in ["one", "two", "three"] {
            behind.write("new.tmp", version);
            fs::rename(behind.0.join("new.tmp"), behind.0.join("new.txt")).unwrap();
            until(version, || server.get("/new.txt", "").text() == version);
            let answer = server.get("/new.txt", "");
            let etag = answer.field("etag").unwrap().to_owned();
            assert_eq!(
                server.get("/new.txt", &format!("If-None-Match: {etag}\r\n")).status,
                304,
                "{ahead_s}"
            );
            assert!(!etags.contains(&etag), "{ahead_s} {version}");
            etags.push(etag);
        }
    }
}
