//! The response cache of `flatout serve`: restarts, kills, disk errors, and purges from outside.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering;

use flatout_tests::cached::{body_of, check_all, origin, paths, purge};
use flatout_tests::{Folder, Server, program, until};
use rustix::process::Signal;

fn command(origin: SocketAddr, dir: &Path, strace: &[&str]) -> Command {
    sized(origin, dir, strace, "64MiB")
}

fn sized(origin: SocketAddr, dir: &Path, strace: &[&str], size: &str) -> Command {
    let program = program("flatout");
    let mut command = match strace {
        [] => Command::new(program),
        arguments => {
            let mut command = Command::new("strace");
            // With -D the server is the child, which is ended with the test.
            command.args(["-D", "-f", "-qq", "-o", "/dev/null"]).args(arguments).arg(program);
            command
        }
    };
    command.args(["serve", "--to", &format!("http://{origin}"), "--cache", "0s", "--listen", "127.0.0.1:0"]);
    command.args(["--workers", "1", "--cache-size", size, "--cache-dir"]).arg(dir.join("cache"));
    command.arg("--admin").arg(format!("unix:{}", dir.join("admin").display()));
    command
}

#[test]
fn stored_responses_and_purges_survive_a_restart() {
    let (origin, count) = origin();
    let folder = Folder::new();
    let mut server = Server::start(command(origin, &folder.0, &[]));
    assert_eq!((check_all(&server), count.load(Ordering::SeqCst)), (0, 12));
    server.signal(Signal::TERM);
    assert!(server.wait().success());

    let mut server = Server::start(command(origin, &folder.0, &[]));
    // The index is read while the server is already serving.
    until("what is on disk is found", || check_all(&server) == 12);
    assert_eq!(purge(&folder.0, &["http://t/path/3"]), "purged 1 stored response\n");
    assert_eq!(server.get("/path/3", "").field("X-Cache-Status"), Some("MISS"));
    purge(&folder.0, &["--prefix", "http://t/path/1"]);
    server.signal(Signal::KILL);
    server.wait();

    let asked = count.load(Ordering::SeqCst);
    let server = Server::start(command(origin, &folder.0, &[]));
    until("the others are found", || server.get("/path/2", "").field("X-Cache-Status") == Some("HIT"));
    let before = count.load(Ordering::SeqCst);
    // /path/1, /path/10 and /path/11 were purged.
    assert_eq!(check_all(&server), 9);
    assert_eq!(count.load(Ordering::SeqCst) - before, 3, "{asked}");
    purge(&folder.0, &["--tag", "all"]);
    assert_eq!(check_all(&server), 0);
    assert_eq!(purge(&folder.0, &["--all", "--soft"]), "marked stale 12 stored responses\n");
}

#[test]
fn a_kill_at_any_write_leaves_entries_whole_or_gone() {
    let (origin, _) = origin();
    let mut found = Vec::new();
    for nth in [1, 2, 3, 5, 8, 12] {
        let folder = Folder::new();
        let inject = format!("inject=pwrite64:signal=KILL:when={nth}");
        let mut server = Server::start(command(origin, &folder.0, &["-e", "trace=pwrite64", "-e", &inject]));
        for path in paths() {
            // It is killed during these requests.
            let Ok(mut stream) = TcpStream::connect(server.address) else { break };
            let request = format!("GET {path} HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n");
            let _ = stream.write_all(request.as_bytes());
            let _ = stream.read_to_end(&mut Vec::new());
        }
        server.wait();
        let server = Server::start(command(origin, &folder.0, &[]));
        found.push(check_all(&server));
        until("all of it is stored again", || check_all(&server) == 12);
    }
    // After each kill more is found, up to what was read of the index by the first check.
    assert!(found.iter().any(|&hits| hits > 0), "{found:?}");
}

/// Requests far more than the 4 MiB that can be stored, until the server dies or all were requested.
fn ask_for_many(server: &Server) {
    for at in 0..1000 {
        let Ok(mut stream) = TcpStream::connect(server.address) else { return };
        let request = format!("GET /many/{at} HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n");
        let _ = stream.write_all(request.as_bytes());
        let _ = stream.read_to_end(&mut Vec::new());
    }
}

fn segment_bytes(folder: &Path) -> u64 {
    segments(folder).iter().map(|path| fs::metadata(path).unwrap().len()).sum()
}

#[test]
fn a_kill_while_room_is_made_leaves_entries_whole_or_gone() {
    const LIMIT: &str = "4MiB";
    let (origin, _) = origin();
    // Segments are removed in the order of their numbers.
    for nth in [1, 2, 5, 9] {
        let folder = Folder::new();
        let oldest = folder.0.join(format!("cache/{nth:08}.segment")).display().to_string();
        let strace =
            ["-P", &oldest, "-e", "trace=unlink,unlinkat", "-e", "inject=unlink,unlinkat:signal=KILL"];
        let mut server = Server::start(sized(origin, &folder.0, &strace, LIMIT));
        ask_for_many(&server);
        assert!(!server.wait().success(), "it was killed");
        let server = Server::start(sized(origin, &folder.0, &[], LIMIT));
        let is_hit = |at: usize| {
            let path = format!("/many/{at}");
            let answer = server.get(&path, "");
            assert!(answer.body == body_of(&path), "the body of {path} is not the origin's");
            answer.field("X-Cache-Status") == Some("HIT")
        };
        // An entry that is in no removed segment and was stored before the kill. A request that comes before the
        // index is read stores its response.
        let mut kept = 300..420;
        until("what was kept is found", || kept.next().is_some_and(is_hit));
        ask_for_many(&server);
        assert!((0..1000).step_by(50).all(is_hit));
        assert!(segment_bytes(&folder.0) <= 4 << 20, "{} bytes", segment_bytes(&folder.0));
    }
}

#[test]
fn room_that_cannot_be_made_fails_no_request() {
    let (origin, _) = origin();
    let folder = Folder::new();
    let oldest = folder.0.join("cache/00000001.segment").display().to_string();
    let strace = ["-P", &oldest, "-e", "trace=unlink,unlinkat", "-e", "inject=unlink,unlinkat:error=EIO"];
    let server = Server::start(sized(origin, &folder.0, &strace, "4MiB"));
    ask_for_many(&server);
    until("it is said", || server.said().iter().any(|line| line.contains("the cache's folder: write: ")));
    assert_eq!((check_all(&server), check_all(&server)), (0, 12));
    assert!(segment_bytes(&folder.0) <= 4 << 20, "{} bytes", segment_bytes(&folder.0));
}

/// A purge that cannot be written to disk removes all segments instead.
#[test]
fn a_kill_while_segments_are_purged_leaves_entries_whole_or_gone() {
    let (origin, _) = origin();
    for nth in [1, 2, 3] {
        let folder = Folder::new();
        for _ in 0..2 {
            // Each server starts a new segment.
            let mut server = Server::start(command(origin, &folder.0, &[]));
            purge(&folder.0, &["--all"]);
            assert_eq!(check_all(&server), 0);
            server.signal(Signal::TERM);
            assert!(server.wait().success());
        }
        let name = |at: u32| folder.0.join(format!("cache/{at:08}.segment")).display().to_string();
        let (killed, last) = (name(nth), name(3));
        let kill = "inject=unlink,unlinkat:signal=KILL:when=1";
        let mut strace = vec!["-P", &killed, "-e", "trace=fdatasync,unlink,unlinkat"];
        if killed != last {
            strace.extend(["-P", &last]);
        }
        strace.extend(["-e", kill, "-e", "inject=fdatasync:error=EIO"]);
        let mut server = Server::start(command(origin, &folder.0, &strace));
        until("what is on disk is found", || check_all(&server) == 12);
        let admin = format!("unix:{}", folder.0.join("admin").display());
        let arguments = ["purge", "--admin", &admin, "--all"];
        let purged = Command::new(program("flatout")).args(arguments).output().unwrap();
        assert!(!purged.status.success(), "it did not say that it has purged");
        server.wait();
        let server = Server::start(command(origin, &folder.0, &[]));
        until("all of it is stored again", || check_all(&server) == 12);
    }
}

#[test]
fn a_disk_that_fails_fails_no_request() {
    let (origin, _) = origin();
    for error in ["ENOSPC", "EIO"] {
        let folder = Folder::new();
        let inject = format!("inject=pwrite64:error={error}");
        let server = Server::start(command(origin, &folder.0, &["-e", "trace=pwrite64", "-e", &inject]));
        assert_eq!((check_all(&server), check_all(&server)), (0, 12), "{error}");
        until("it is said", || server.said().iter().any(|line| line.contains("the cache's folder: write: ")));
        let lines = server.said().iter().filter(|line| line.contains("the cache's folder")).count();
        assert_eq!(lines, 1, "{:?}", server.said());
    }
}

/// Also where a read fails: the upstream has it.
#[test]
fn read_errors_of_the_disk_fail_no_request() {
    let (origin, count) = origin();
    let folder = Folder::new();
    let mut server = Server::start(command(origin, &folder.0, &[]));
    assert_eq!(check_all(&server), 0);
    server.signal(Signal::TERM);
    assert!(server.wait().success());
    let strace = ["-e", "trace=preadv2", "-e", "inject=preadv2:error=EIO"];
    let server = Server::start(command(origin, &folder.0, &strace));
    until("it is said", || {
        // This stores nothing.
        server.get("/path/0", "Cache-Control: only-if-cached\r\n");
        server.said().iter().any(|line| line.contains("the cache's folder: read: "))
    });
    assert_eq!((check_all(&server), check_all(&server)), (0, 12));
    assert_eq!(count.load(Ordering::SeqCst), 24);
}

/// Segments of a server that has ended.
fn segments(folder: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(folder.join("cache")).unwrap().map(|file| file.unwrap().path());
    files.filter(|path| path.extension().is_some_and(|extension| extension == "segment")).collect()
}

#[test]
fn damaged_records_are_not_served() {
    let (origin, _) = origin();
    let folder = Folder::new();
    for round in 0..5 {
        let mut server = Server::start(command(origin, &folder.0, &[]));
        until("all of it is stored again", || check_all(&server) == 12);
        server.signal(Signal::TERM);
        assert!(server.wait().success());
        for segment in segments(&folder.0) {
            let mut bytes = fs::read(&segment).unwrap();
            match round {
                // A head, a text or a body, of some records.
                0..3 => {
                    bytes.iter_mut().skip(40 + 700 * round).step_by(11_000).for_each(|byte| *byte ^= 0x40)
                }
                3 => bytes.truncate(bytes.len() / 2 + 100),
                _ => bytes.fill(0xff),
            }
            fs::write(&segment, bytes).unwrap();
        }
    }
    let server = Server::start(command(origin, &folder.0, &[]));
    until("all of it is stored again", || check_all(&server) == 12);
}

#[test]
fn a_kill_while_a_purge_is_written_leaves_entries_whole_or_gone() {
    let (origin, _) = origin();
    let folder = Folder::new();
    let strace = ["-e", "trace=fdatasync", "-e", "inject=fdatasync:signal=KILL:when=1"];
    let mut server = Server::start(command(origin, &folder.0, &strace));
    assert_eq!(check_all(&server), 0);
    let admin = format!("unix:{}", folder.0.join("admin").display());
    let purge =
        Command::new(program("flatout")).args(["purge", "--admin", &admin, "--all"]).output().unwrap();
    assert!(!purge.status.success(), "it did not say that it has purged");
    server.wait();
    let server = Server::start(command(origin, &folder.0, &[]));
    until("all of it is stored again", || check_all(&server) == 12);
}

/// The same command with a file system with these options mounted at its cache; `None` if that is not allowed.
fn with_file_system(command: &Command, folder: &Path, options: &str) -> Option<Command> {
    let cache = folder.join("cache");
    fs::create_dir(&cache).unwrap();
    let mount = format!("mount -t tmpfs -o {options} none \"$0\"");
    let mut tried = Command::new("unshare");
    tried.args(["-rm", "sh", "-c", &mount]).arg(&cache).stderr(Stdio::null());
    if !tried.status().is_ok_and(|status| status.success()) {
        let _ = writeln!(std::io::stderr(), "skipped: no mounts of one's own here");
        return None;
    }
    let mut all = Command::new("unshare");
    all.args(["-rm", "sh", "-c", &format!("{mount} && exec \"$@\"")]).arg(&cache);
    all.arg(command.get_program()).args(command.get_args());
    Some(all)
}

#[test]
fn a_full_or_read_only_file_system_fails_no_request() {
    let (origin, _) = origin();
    for (options, expected) in [
        ("size=64k", "the cache's folder: write: No space left on device"),
        ("ro", "cannot be used: Read-only file system"),
    ] {
        let folder = Folder::new();
        let Some(command) = with_file_system(&command(origin, &folder.0, &[]), &folder.0, options) else {
            return;
        };
        let server = Server::start(command);
        assert_eq!((check_all(&server), check_all(&server)), (0, 12), "{options}");
        until("it is said", || server.said().iter().any(|line| line.contains(expected)));
        let lines = server.said().iter().filter(|line| line.contains("the cache's folder")).count();
        assert_eq!(lines, 1, "{:?}", server.said());
    }
}

#[test]
fn a_key_does_not_depend_on_the_case_of_a_fields_name() {
    let (origin, count) = origin();
    let folder = Folder::new();
    let site = format!(
        "listen \"127.0.0.1:0\"\nproxy \"http://{origin}\"\ncache \"0s\"\ncache-key \"$request_uri$http_accept_language\"\n"
    );
    fs::write(folder.0.join("site.kdl"), site).unwrap();
    let mut command = Command::new(program("flatout"));
    command.args(["serve", "-c"]).arg(folder.0.join("site.kdl"));
    let server = Server::start(command);
    for (field, expected) in [
        ("Accept-Language: de\r\n", "MISS"),
        ("ACCEPT-LANGUAGE: de\r\n", "HIT"),
        ("accept-language:  de \r\n", "HIT"),
        // Values are compared byte for byte.
        ("Accept-Language: DE\r\n", "MISS"),
        ("", "MISS"),
    ] {
        assert_eq!(server.get("/path/1", field).field("X-Cache-Status"), Some(expected), "{field:?}");
    }
    assert_eq!(count.load(Ordering::SeqCst), 3);
}

/// Two routes that rewrite to the same path ask one upstream for two sites.
#[test]
fn routes_with_different_upstream_hosts_share_no_responses() {
    let (origin, count) = origin();
    let folder = Folder::new();
    let route = |name: &str, host: &str| {
        format!(
            "route \"/{name}/\" {{\n  rewrite-prefix \"/{name}/\" \"/\"\n  proxy \"http://{origin}\"\n  {host}\n}}\n"
        )
    };
    let routes = [route("a", "proxy-host a.test"), route("b", "proxy-host b.test"), route("c", "")].concat();
    fs::write(folder.0.join("site.kdl"), format!("listen \"127.0.0.1:0\"\ncache \"0s\"\n{routes}")).unwrap();
    let mut command = Command::new(program("flatout"));
    command.args(["serve", "-c"]).arg(folder.0.join("site.kdl"));
    let server = Server::start(command);
    for status in ["MISS", "HIT"] {
        for name in ["a", "b", "c"] {
            let response = server.get(&format!("/{name}/x"), "");
            assert_eq!((response.status, response.field("X-Cache-Status")), (200, Some(status)), "{name}");
        }
    }
    assert_eq!(count.load(Ordering::SeqCst), 3);
}
