//! The cache's folder goes from one configuration to the next, and from one process to the next.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering;

use flatout_tests::cached::{body_of, check_all, origin, purge};
use flatout_tests::upgrading::{Installed, Orphan, orphan, upgrade};
use flatout_tests::{Folder, Server, Signal, program, until};

/// A site with a cache, its folder, and its admin listener at `admin`.
struct Site {
    folder: Folder,
    origin: SocketAddr,
}

impl Site {
    fn new(origin: SocketAddr) -> Site {
        let site = Site { folder: Folder::new(), origin };
        site.set("");
        site
    }

    /// Writes its file, with more settings.
    fn set(&self, settings: &str) {
        let dir = self.folder.0.join("cache");
        self.set_all(&format!("cache \"0s\"\ncache-dir {:?}\n{settings}", dir.display().to_string()));
    }

    fn set_all(&self, settings: &str) {
        let (origin, admin) = (self.origin, self.admin());
        self.folder.write(
            "site.kdl",
            format!(
                "listen \"127.0.0.1:0\"\nworkers 1\nadmin \"unix:{}\"\nproxy \"http://{origin}\"\n{settings}",
                admin.display()
            ),
        );
    }

    fn admin(&self) -> PathBuf {
        self.folder.0.join("admin")
    }

    fn start(&self, program: &Path) -> Server {
        let mut command = Command::new(program);
        command.args(["serve", "-c"]).arg(self.folder.0.join("site.kdl")).stdin(Stdio::null());
        Server::start(command)
    }

    fn reload(&self) {
        let admin = format!("unix:{}", self.admin().display());
        let output = Command::new(program("flatout")).args(["reload", "--admin", &admin]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    /// The value of a metric.
    fn metric(&self, name: &str) -> u64 {
        let mut command = Command::new("curl");
        command.args(["-s", "--unix-socket"]).arg(self.admin()).arg("http://localhost/metrics");
        let text = String::from_utf8(command.output().unwrap().stdout).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("{name}: {text}"))
    }
}

fn has_said(server: &Server, what: &str) -> bool {
    server.said().iter().any(|line| line.contains(what))
}

const TAKEN: &str = "is free and is used from now on";

/// Waits until the folder was read, without storing anything.
fn wait_until_read(server: &Server) {
    let is_found = || server.get("/path/0", "Cache-Control: only-if-cached\r\n").status == 200;
    until("what is on disk is found", is_found);
}

/// The process that has taken over, from the log.
fn successor(server: &Server) -> Orphan {
    until("the upgrade", || has_said(server, "has taken over"));
    let said = server.said().into_iter().find(|line| line.contains("has taken over")).unwrap();
    orphan(&said)
}

/// A new server that has read the folder.
fn restarted(site: &Site) -> Server {
    let server = site.start(&program("flatout"));
    assert!(!has_said(&server, "another process"), "{:?}", server.said());
    wait_until_read(&server);
    server
}

#[test]
fn a_reload_with_other_settings_keeps_stored_responses() {
    let (origin, count) = origin();
    let site = Site::new(origin);
    let mut server = site.start(&program("flatout"));
    assert_eq!(check_all(&server), 0);
    for settings in ["cache-inactive \"1h\"\n", "cache-size \"8MiB\"\ncache-memory \"1MiB\"\n", ""] {
        site.set(settings);
        site.reload();
        assert_eq!(check_all(&server), 12, "{settings}");
    }
    assert_eq!(count.load(Ordering::SeqCst), 12);
    // Responses stored after the reload are on disk too: the purge is written after them.
    assert_eq!(server.get("/more", "").field("X-Cache-Status"), Some("MISS"));
    purge(&site.folder.0, &["--soft", "--tag", "none"]);
    server.signal(Signal::KILL);
    server.wait();
    let server = restarted(&site);
    assert_eq!(check_all(&server), 12);
    assert_eq!(server.get("/more", "").body, body_of("/more"));
    assert_eq!(count.load(Ordering::SeqCst), 13);
}

#[test]
fn a_reload_applies_the_new_settings() {
    let (origin, count) = origin();
    let site = Site::new(origin);
    let server = site.start(&program("flatout"));
    let ask_for_all =
        || (0..160).for_each(|at| assert_eq!(server.get(&format!("/many/{at}"), "").status, 200));
    ask_for_all();
    let memory = || site.metric("flatout_cache_bytes{tier=\"memory\"}");
    assert!(memory() > 1_400_000);
    purge(&site.folder.0, &["--soft", "--tag", "none"]);
    site.set("cache-memory \"1MiB\"\n");
    site.reload();
    until("the memory is smaller", || memory() <= 1 << 20);
    ask_for_all();
    assert_eq!(count.load(Ordering::SeqCst), 160, "the disk has them all");
    assert!(memory() <= 1 << 20);
    site.set("cache-inactive \"1s\"\n");
    site.reload();
    until("what is inactive is gone", || site.metric("flatout_cache_inactive_total") >= 160);
}

#[test]
fn an_unused_folder_is_released() {
    let (origin, count) = origin();
    let site = Site::new(origin);
    let server = site.start(&program("flatout"));
    assert_eq!(check_all(&server), 0);
    // Nothing is cached now. Its worker has seen no request since, and serves as before.
    site.set_all("");
    site.reload();
    site.set("");
    site.reload();
    wait_until_read(&server);
    assert_eq!((check_all(&server), count.load(Ordering::SeqCst)), (12, 12));
    assert!(!has_said(&server, "another process"), "{:?}", server.said());
}

#[test]
fn an_upgrade_hands_over_the_folder() {
    let (origin, count) = origin();
    let site = Site::new(origin);
    let mut server = site.start(&program("flatout"));
    assert_eq!(check_all(&server), 0);
    let mut next = upgrade(&site.admin()).map(|said| orphan(&said)).unwrap();
    assert!(server.wait().success());
    until("the folder is taken over", || has_said(&server, TAKEN));
    wait_until_read(&server);
    assert_eq!((check_all(&server), count.load(Ordering::SeqCst)), (12, 12));
    until("they were read from disk", || site.metric("flatout_cache_disk_reads_total") == 12);
    assert_eq!(purge(&site.folder.0, &["http://t/path/3"]), "purged 1 stored response\n");
    for _ in 0..2 {
        let former = std::mem::replace(&mut next, upgrade(&site.admin()).map(|said| orphan(&said)).unwrap());
        until("it ends", || !former.is_there());
        // A purge waits for the folder, if that is not there yet.
        purge(&site.folder.0, &["http://t/path/3"]);
        assert_eq!(server.get("/path/3", "").field("X-Cache-Status"), Some("MISS"));
        wait_until_read(&server);
        assert_eq!(check_all(&server), 12);
    }
    purge(&site.folder.0, &["http://t/path/5"]);
    next.signal(Signal::KILL);
    until("it ends", || !next.is_there());
    assert_eq!((check_all(&restarted(&site)), count.load(Ordering::SeqCst)), (11, 15));
}

/// The new process is killed as it tries to lock the folder, and as it writes to it for the first time.
#[test]
fn killing_the_new_process_leaves_the_folder_intact() {
    let (origin, _) = origin();
    for (call, takes_over) in [("flock", false), ("pwrite64", true)] {
        let (site, copy) = (Site::new(origin), Installed::new());
        let mut server = site.start(&copy.0);
        assert_eq!(check_all(&server), 0);
        // With -D the new process is the child of the former one.
        copy.replace(&format!(
            "#!/bin/sh\nexec strace -D -f -qq -o /dev/null -e trace={call} -e inject={call}:signal=KILL:when=1 {} \"$@\"\n",
            program("flatout").display()
        ));
        let said = upgrade(&site.admin());
        assert_eq!(said.is_ok(), takes_over, "{said:?}");
        if let Ok(said) = said {
            assert!(server.wait().success());
            let next = orphan(&said);
            // It has to write this.
            let mut stream = server.connect();
            let _ = stream.write_all(b"GET /more HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n");
            let _ = stream.read_to_end(&mut Vec::new());
            until("it is killed", || !next.is_there());
        } else {
            // The old process continues, and still has the folder.
            assert_eq!(check_all(&server), 12);
            purge(&site.folder.0, &["http://t/path/3"]);
            assert_eq!(check_all(&server), 11);
            purge(&site.folder.0, &["--soft", "--tag", "none"]);
            server.signal(Signal::KILL);
            server.wait();
        }
        assert_eq!(check_all(&restarted(&site)), 12, "{call}");
    }
}

/// The former process is killed as soon as the new one serves: whether it has freed the folder by then or not.
#[test]
fn killing_the_old_process_leaves_the_folder_to_the_new_one() {
    let (origin, _) = origin();
    for _ in 0..3 {
        let site = Site::new(origin);
        let mut server = site.start(&program("flatout"));
        assert_eq!(check_all(&server), 0);
        purge(&site.folder.0, &["--soft", "--tag", "none"]);
        server.signal(Signal::USR2);
        let next = successor(&server);
        server.signal(Signal::KILL);
        server.wait();
        until("the folder is taken over", || has_said(&server, TAKEN));
        wait_until_read(&server);
        assert_eq!(check_all(&server), 12);
        purge(&site.folder.0, &["http://t/path/3"]);
        next.signal(Signal::KILL);
        until("it ends", || !next.is_there());
        assert_eq!(check_all(&restarted(&site)), 11);
    }
}

/// The former process is killed before the new one has anything: that one gives up, and the folder is free.
#[test]
fn killing_the_old_process_during_an_upgrade_leaves_the_folder_intact() {
    let (origin, _) = origin();
    let (site, copy) = (Site::new(origin), Installed::new());
    let mut server = site.start(&copy.0);
    assert_eq!(check_all(&server), 0);
    purge(&site.folder.0, &["--soft", "--tag", "none"]);
    copy.replace(&format!("#!/bin/sh\nkill -9 $PPID\nexec {} \"$@\"\n", program("flatout").display()));
    assert!(upgrade(&site.admin()).is_err());
    server.wait();
    until("nobody has the folder", || !has_said(&site.start(&program("flatout")), "another process"));
    assert_eq!(check_all(&restarted(&site)), 12);
}

/// Two servers with one folder: the second one gets it when the first one has ended, and purges made
/// meanwhile are applied.
#[test]
fn a_second_server_waits_for_the_folder() {
    let (origin, _) = origin();
    let site = Site::new(origin);
    let mut first = site.start(&program("flatout"));
    assert_eq!(check_all(&first), 0);
    purge(&site.folder.0, &["--soft", "--tag", "none"]);
    let other = Folder::new();
    let admin = |folder: &Folder| folder.0.join("admin").display().to_string();
    let text = std::fs::read_to_string(site.folder.0.join("site.kdl")).unwrap();
    other.write("site.kdl", text.replace(&admin(&site.folder), &admin(&other)));
    let mut command = Command::new(program("flatout"));
    command.args(["serve", "-c"]).arg(other.0.join("site.kdl"));
    let mut second = Server::start(command);
    assert!(has_said(&second, "another process uses the cache's folder"), "{:?}", second.said());
    assert_eq!(second.get("/more", "").field("X-Cache-Status"), Some("MISS"));
    purge(&other.0, &["http://t/path/3"]);
    // Unsafe methods count too.
    second.one("DELETE /path/4 HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n");
    first.signal(Signal::KILL);
    first.wait();
    until("the folder is taken", || has_said(&second, TAKEN));
    wait_until_read(&second);
    assert_eq!(check_all(&second), 10);
    purge(&other.0, &["--soft", "--tag", "none"]);
    second.signal(Signal::KILL);
    second.wait();
    let third = restarted(&site);
    assert_eq!(check_all(&third), 12);
    assert_eq!(third.get("/more", "").field("X-Cache-Status"), Some("HIT"), "it was stored before");
}
