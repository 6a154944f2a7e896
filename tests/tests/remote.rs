//! Folders on a volume that may hang. The volume is one of bindfs: a process stopped by a signal answers no more, as a server of NFS
//! does that is gone.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use flatout_tests::{Folder, Server, program, until};
use rustix::process::{Pid, Signal, kill_process};

/// Larger than what is kept in memory, and several pieces.
const LARGE_BYTES: usize = 1_000_001;

/// A mounted volume, and the process that serves it.
struct Volume {
    behind: Folder,
    place: Folder,
    process: Child,
}

impl Volume {
    /// `None`, with a message, if this machine cannot mount one.
    fn mount() -> Option<Volume> {
        if !rustix::process::geteuid().is_root() || !PathBuf::from("/dev/fuse").exists() {
            left_out("a volume in user space needs root and /dev/fuse");
            return None;
        }
        let (behind, place) = (Folder::new(), Folder::new());
        behind.write("small.txt", "small");
        behind.write("large.bin", (0..LARGE_BYTES).map(|at| (at * 7 % 251) as u8).collect::<Vec<_>>());
        let mut command = Command::new("bindfs");
        // Nothing is remembered by the kernel: each question reaches the process.
        command.args(["-f", "-o", "attr_timeout=0,entry_timeout=0,direct_io"]).arg(&behind.0).arg(&place.0);
        let process = command.stdout(Stdio::null()).spawn().expect("bindfs, which `./x test` installs");
        let volume = Volume { behind, place, process };
        until("the volume is mounted", || volume.place.0.join("small.txt").exists());
        Some(volume)
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process), signal).unwrap();
        if signal == Signal::STOP {
            until("all its threads have stopped", || self.has_stopped());
        }
    }

    fn has_stopped(&self) -> bool {
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.process.id())).unwrap();
        threads.flatten().all(|thread| is_in_state(&thread.path().join("stat"), 'T'))
    }

    fn large(&self) -> Vec<u8> {
        std::fs::read(self.behind.0.join("large.bin")).unwrap()
    }

    fn server(&self, flags: &[&str]) -> Server {
        self.server_with("sweep=200ms", flags)
    }

    /// A server that looks for changes in this way.
    fn server_with(&self, changes: &str, flags: &[&str]) -> Server {
        let server =
            Server::site(&self.place.0, &[&["--workers", "1", "--changes", changes], flags].concat());
        until("the folder is scanned", || server.get("/nothing", "").status == 404);
        server
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        let _ = kill_process(Pid::from_child(&self.process), Signal::CONT);
        let _ = Command::new("umount").arg("--lazy").arg(&self.place.0).status();
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[expect(clippy::print_stderr, reason = "a test tells why it tests nothing")]
fn left_out(reason: &str) {
    eprintln!("left out: {reason}");
}

#[test]
fn files_of_a_volume_are_served_as_others_are() {
    let Some(volume) = Volume::mount() else { return };
    let server = volume.server(&[]);
    let large = server.get("/large.bin", "");
    assert_eq!((large.status, large.body == volume.large()), (200, true));
    assert_eq!(large.field("content-length"), Some("1000001"));
    let etag = format!("If-None-Match: {}\r\n", large.field("etag").unwrap());
    assert_eq!(server.get("/large.bin", &etag).status, 304);
    let part = server.get("/large.bin", "Range: bytes=300000-700000\r\n");
    assert_eq!((part.status, part.body == volume.large()[300_000..=700_000]), (206, true));
    let parts = server.get("/large.bin", "Range: bytes=0-1,5-6\r\n");
    assert_eq!((parts.status, parts.body.len()), (200, LARGE_BYTES));
    assert_eq!(server.get("/large.bin", "Range: bytes=2000000-\r\n").status, 416);
    let head = server.one("HEAD /large.bin HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n");
    assert_eq!((head.field("content-length"), head.body.len()), (Some("1000001"), 0));
    // A new version of it.
    volume.behind.write("new.bin", vec![b'x'; LARGE_BYTES + 1]);
    std::fs::rename(volume.behind.0.join("new.bin"), volume.behind.0.join("large.bin")).unwrap();
    until("the new version is served", || server.get("/large.bin", "").body == volume.large());
    std::fs::remove_file(volume.behind.0.join("large.bin")).unwrap();
    until("it is gone", || server.get("/large.bin", "").status == 404);
}

#[test]
fn a_request_waits_for_a_volume_as_long_as_was_set() {
    let Some(volume) = Volume::mount() else { return };
    let server = volume.server_with("sweep=200ms open-time=700ms", &[]);
    volume.signal(Signal::STOP);
    let began = Instant::now();
    assert_eq!(server.get("/large.bin", "").status, 503);
    let took = began.elapsed();
    assert!(took >= Duration::from_millis(700) && took < Duration::from_secs(8), "{took:?}");
    volume.signal(Signal::CONT);
    until("the volume is read again", || server.get("/large.bin", "").body == volume.large());
}

#[test]
fn a_volume_that_hangs_stops_no_worker() {
    let Some(volume) = Volume::mount() else { return };
    let mut server = volume.server(&[]);
    until("the small file is in memory", || {
        volume.signal(Signal::STOP);
        let is_served = server.get("/small.txt", "").text() == "small";
        if !is_served {
            volume.signal(Signal::CONT);
        }
        is_served
    });
    let refused = std::thread::scope(|scope| {
        let late = scope.spawn(|| server.get("/large.bin", ""));
        let began = Instant::now();
        for _ in 0..20 {
            assert_eq!(server.get("/small.txt", "").text(), "small");
        }
        assert!(began.elapsed() < Duration::from_secs(9), "the only worker waited for the volume");
        late.join().unwrap()
    });
    assert_eq!((refused.status, refused.field("retry-after")), (503, Some("1")));
    volume.signal(Signal::CONT);
    until("the large file is served again", || server.get("/large.bin", "").body == volume.large());
    // A server whose threads wait for the volume ends as others do.
    volume.signal(Signal::STOP);
    let mut stream = server.connect();
    std::io::Write::write_all(&mut stream, b"GET /large.bin HTTP/1.1\r\nHost: t\r\n\r\n").unwrap();
    until("a thread waits", || server.get("/small.txt", "").status == 200);
    drop(stream);
    server.signal(Signal::TERM);
    // For a request that the volume has read, the kernel waits even when the process has ended.
    let stat = format!("/proc/{}/stat", server.pid());
    until("the server has ended", || is_in_state(stat.as_ref(), 'Z'));
    volume.signal(Signal::CONT);
    server.wait();
}

/// Whether a thread is in this state, or gone.
fn is_in_state(stat: &std::path::Path, state: char) -> bool {
    let text = std::fs::read_to_string(stat).unwrap_or_default();
    text.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with(state))
}

#[test]
fn sites_wait_for_a_volume_at_a_step() {
    let Some(volume) = Volume::mount() else { return };
    let site = Folder::new();
    volume.behind.write("first/large.bin", vec![b'1'; LARGE_BYTES]);
    site.write(
        "site.kdl",
        format!(
            "listen \"127.0.0.1:0\"\nworkers 1\nchanges \"sweep=200ms\"\nresponse-header set X-Rule \"applied\"\n\
             route \"/first\" {{\n    try-files \"{0}\"\n    respond 200 \"second\"\n}}\n\
             route \"/\" {{\n    files \"{0}\"\n}}\n",
            volume.place.0.display()
        ),
    );
    let mut command = Command::new(program("flatout"));
    command.arg("serve").arg("-c").arg(site.0.join("site.kdl"));
    let server = Server::start(command);
    until("the folder is scanned", || server.get("/nothing", "").status == 404);
    let large = server.get("/large.bin", "");
    assert_eq!(
        (large.status, large.field("x-rule"), large.body == volume.large()),
        (200, Some("applied"), true)
    );
    let first = server.get("/first/large.bin", "");
    assert_eq!((first.field("x-rule"), first.body == vec![b'1'; LARGE_BYTES]), (Some("applied"), true));
    assert_eq!(server.get("/first/nothing", "").text(), "second");
    // What is asked for after a wait: the file went, and the route's text is sent.
    std::fs::remove_file(volume.behind.0.join("first/large.bin")).unwrap();
    until("the text is sent", || server.get("/first/large.bin", "").text() == "second");
}
