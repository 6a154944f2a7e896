//! The access log and the admin listener of `flatout serve`, from outside.

use std::collections::HashSet;
use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::scope;
use std::time::Duration;

use flatout_tests::browser::Browser;
use flatout_tests::terminal::Terminal;
use flatout_tests::{Folder, Server, Signal, program, until};

/// Ends the clients even if a test fails; otherwise it would wait for them.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A folder with one file, and its server with these flags.
fn served(folder: &Folder, flags: &[&str]) -> Server {
    folder.write("public/a.txt", "hello");
    Server::site(&folder.0.join("public"), flags)
}

/// Requests the file over one connection repeatedly, each time with a unique id.
fn ask_all(server: &Server, ids: impl Iterator<Item = u64>) -> u64 {
    let mut stream = server.connect();
    let mut answered = 0;
    for id in ids {
        let request = format!("GET /a.txt?id={id} HTTP/1.1\r\nHost: t\r\nUser-Agent: agent-{id}\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = Vec::new();
        while !answer.ends_with(b"hello") {
            let mut piece = [0; 4096];
            let count = stream.read(&mut piece).unwrap();
            assert!(count > 0, "closed after {answer:?}");
            answer.extend_from_slice(&piece[..count]);
        }
        assert!(answer.starts_with(b"HTTP/1.1 200 OK\r\n"));
        answered += 1;
    }
    answered
}

/// The ids in the lines; each line must be complete, and each id unique.
fn ids(files: &[PathBuf]) -> HashSet<u64> {
    let mut found = HashSet::new();
    for file in files {
        let text = fs::read_to_string(file).unwrap();
        assert!(text.is_empty() || text.ends_with('\n'), "{} ends in the middle of a line", file.display());
        for line in text.lines() {
            let id = line.split_once("?id=").and_then(|(_, rest)| rest.split_once(' ')).map(|(id, _)| id);
            let id: u64 = id.and_then(|id| id.parse().ok()).unwrap_or_else(|| panic!("torn: {line}"));
            let is_whole = line.starts_with("127.0.0.1 - - [")
                && line.ends_with(&format!("\"GET /a.txt?id={id} HTTP/1.1\" 200 5 \"-\" \"agent-{id}\""));
            assert!(is_whole, "torn: {line}");
            assert!(found.insert(id), "twice: {line}");
        }
    }
    found
}

#[test]
fn no_line_is_lost_or_torn_while_logs_are_rotated() {
    let folder = Folder::new();
    let log = folder.0.join("access.log");
    let path = log.display().to_string();
    let flags = ["--access-log", &path, "--log-buffer", "4KiB", "--log-flush", "20ms", "--workers", "2"];
    let mut server = served(&folder, &flags);
    let (asked, next, is_over) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
    let mut files = vec![log.clone()];
    scope(|scope| {
        let _over = Over(&is_over);
        for _ in 0..4 {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    let from = next.fetch_add(50, Ordering::Relaxed);
                    asked.fetch_add(ask_all(&server, from..from + 50), Ordering::Relaxed);
                }
            });
        }
        for rotation in 0..25 {
            let old = folder.0.join(format!("access.log.{rotation}"));
            // Wait for the first lines.
            until("a line", || fs::metadata(&log).is_ok_and(|found| found.len() > 0));
            fs::rename(&log, &old).unwrap();
            server.signal(Signal::USR1);
            until("a new file", || log.exists());
            files.push(old);
        }
        until("many requests", || asked.load(Ordering::Relaxed) > 500);
    });
    server.signal(Signal::TERM);
    assert!(server.wait().success());
    let asked = asked.into_inner();
    assert_eq!(ids(&files).len() as u64, asked, "{:?}", server.said());
}

#[test]
fn buffered_lines_are_written_when_the_server_ends() {
    let folder = Folder::new();
    let log = folder.0.join("access.log");
    let path = log.display().to_string();
    let mut server = served(&folder, &["--access-log", &path, "--log-flush", "1h"]);
    assert_eq!(ask_all(&server, 0..100), 100);
    assert_eq!(fs::metadata(&log).unwrap().len(), 0, "an hour has not passed");
    server.signal(Signal::TERM);
    assert!(server.wait().success());
    assert_eq!(ids(&[log]).len(), 100);
}

/// On a disk of 64 KiB: lines are lost and reported, but no request fails and no line is incomplete. When there is
/// room again, logging continues.
#[test]
fn a_full_disk_loses_lines_and_nothing_else() {
    let folder = Folder::new();
    folder.write("public/a.txt", "hello");
    let disk = folder.0.join("disk");
    fs::create_dir(&disk).unwrap();
    // A mount for this process only, which ends with it.
    let script = "mount -t tmpfs -o size=64k none \"$1\" || exit 127; head -c 40000 /dev/zero >\"$1/ballast\"; shift; exec \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", script, "sh"]).arg(&disk);
    command.arg(program("flatout")).arg("serve").arg(folder.0.join("public"));
    command.args(["--listen", "127.0.0.1:0", "--log-buffer", "2KiB", "--log-flush", "20ms", "--access-log"]);
    command.arg(disk.join("access.log"));
    if !Command::new("unshare").args(["--mount", "true"]).status().is_ok_and(|status| status.success()) {
        let _ = writeln!(std::io::stderr(), "skipped: no mount namespaces here; it needs root");
        return;
    }
    let mut server = Server::start(command);
    let inside = Path::new("/proc").join(server.pid().to_string()).join("root");
    let inside = |name: &str| inside.join(disk.join(name).strip_prefix("/").unwrap());
    assert_eq!(ask_all(&server, 0..2000), 2000);
    until("a word about it", || server.said().iter().any(|line| line.contains("No space left on device")));
    let before = ids(&[inside("access.log")]).len();
    assert!((10..2000).contains(&before), "{before}");
    fs::remove_file(inside("ballast")).unwrap();
    assert_eq!(ask_all(&server, 10_000..10_100), 100);
    until("new lines", || {
        let text = fs::read_to_string(inside("access.log")).unwrap();
        text.contains("id=10099 ")
    });
    let copy = folder.0.join("copy");
    fs::copy(inside("access.log"), &copy).unwrap();
    let found = ids(&[copy]);
    assert!((10_000..10_100).all(|id| found.contains(&id)));
    server.signal(Signal::TERM);
    assert!(server.wait().success());
    let told = server.said().join("\n");
    assert!(told.contains("access.log: ") && told.contains(" lines lost: "), "{told}");
}

#[test]
fn mistakes_are_reported_before_binding() {
    let folder = Folder::new();
    folder.write("public/a.txt", "hello");
    for (flags, status, expected) in [
        (
            &["--log-format", "$statos"][..],
            2,
            "--log-format: unknown log variable `$statos`; did you mean `$status`?",
        ),
        (&["--log-only", "size>1"], 2, "need a condition such as status>=500"),
        (&["--access-log", "/nonesuch/a", "--log-sample", "0"], 2, "log sample: got 0"),
        (
            &["--admin", "0.0.0.0:0"],
            2,
            "admin: other machines could reach the admin listener at http://0.0.0.0:0",
        ),
        (&["--access-log", "/nonesuch/a"], 1, "cannot open the access log `/nonesuch/a`"),
    ] {
        let mut command = Command::new(program("flatout"));
        command.arg("serve").arg(folder.0.join("public")).args(["--listen", "127.0.0.1:0"]).args(flags);
        let output = command.output().unwrap();
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(status) && told.contains(expected), "{flags:?}: {told}");
    }
}

/// The address of the admin listener on loopback, with a port chosen by the kernel.
fn with_admin(folder: &Folder) -> (Server, String) {
    let socket = folder.0.join("admin.sock").display().to_string();
    let server = served(folder, &["--admin", &format!("unix:{socket}"), "--workers", "1"]);
    (server, socket)
}

#[test]
fn top_shows_a_server_that_runs() {
    let folder = Folder::new();
    let (mut server, socket) = with_admin(&folder);
    let top = |flags: &[&str]| {
        let mut command = Command::new(program("flatout"));
        command.args(["top", &format!("unix:{socket}")]).args(flags);
        command
    };
    ask_all(&server, 0..50);
    let output = top(&["--json", "--count", "1"]).output().unwrap();
    let frame: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&frame["state"], &frame["requests"]), (&"serving".into(), &50.into()), "{frame}");
    let output = top(&["--count", "2"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.starts_with("  requests/s") && text.lines().count() == 3, "{text}");
    let mut terminal = Terminal::start(top(&[]));
    terminal.wait_for("Requests/s");
    terminal.wait_for("Workers");
    terminal.press("q");
    let (status, _) = terminal.end();
    assert!(status.success());
    // The end of the server is reported.
    let terminal = Terminal::start(top(&[]));
    terminal.wait_for("Workers");
    server.signal(Signal::TERM);
    assert!(server.wait().success());
    let (status, shown) = terminal.end();
    assert!(status.code() == Some(1) && shown.contains("the server has stopped"), "{shown}");
    let output = top(&[]).output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(told.contains("is a server running with --admin"), "{told}");
}

#[test]
fn the_status_has_sites_routes_and_messages() {
    let folder = Folder::new();
    folder.write("public/a.txt", "a");
    let status = |flags: &[&str]| -> serde_json::Value {
        let socket = folder.0.join("admin.sock").display().to_string();
        let mut command = Command::new(program("flatout"));
        command.current_dir(&folder.0).arg("serve").args(flags);
        let server = Server::start(command);
        if flags.contains(&"-c") {
            assert_eq!(server.get("/dead/x", "").status, 502);
        }
        let mut found = serde_json::Value::Null;
        until("a second", || {
            let mut stream = std::os::unix::net::UnixStream::connect(&socket).unwrap();
            stream.write_all(b"GET /status HTTP/1.0\r\nHost: localhost\r\n\r\n").unwrap();
            let mut text = String::new();
            stream.read_to_string(&mut text).unwrap();
            found = serde_json::from_str(text.split_once("\r\n\r\n").unwrap().1).unwrap();
            found["now"]["at"] != 0 && (!flags.contains(&"-c") || found["messages"][0].is_object())
        });
        found
    };
    let admin = format!("unix:{}", folder.0.join("admin.sock").display());
    let plain = status(&["public", "--listen", "127.0.0.1:0", "--admin", &admin, "--workers", "1"]);
    assert_eq!(plain["about"]["sites"], serde_json::json!(["*"]), "it is listed once");
    assert_eq!(plain["sites"][0]["routes"][0]["action"], "files public");
    folder.write(
        "site.kdl",
        format!("listen \"127.0.0.1:0\"\nworkers 1\nadmin \"{admin}\"\nsite \"*\" {{\n  route \"/dead\" {{ proxy \"http://127.0.0.1:9\"; cors \"*\"; }}\n  files public\n}}\n"),
    );
    let sites = status(&["-c", "site.kdl"]);
    let expected = serde_json::json!([
        { "name": "/dead", "action": "proxy http://127.0.0.1:9", "rules": ["cors"] },
        { "name": "/", "action": sites["sites"][0]["routes"][1]["action"], "rules": [] },
    ]);
    assert_eq!(sites["sites"][0]["routes"], expected);
    let message = &sites["messages"][0];
    assert!(message["text"].as_str().unwrap().contains("cannot connect to 127.0.0.1:9"), "{message}");
}

/// The live page: light and dark, wide and narrow, with changing figures, and without complaints.
#[test]
fn the_page_is_alive() {
    let folder = Folder::new();
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let admin = format!("127.0.0.1:{port}");
    let behind = served(&folder, &["--workers", "1"]);
    let site = format!(
        "listen \"127.0.0.1:0\"\nworkers 1\nadmin \"{admin}\"\n\
         upstream application {{\n  server \"{}\"\n  server \"127.0.0.1:9\" backup=on\n}}\n\
         site \"*\" {{\n  proxy application\n  cache \"1d\"\n  route \"/dead\" {{ proxy \"http://127.0.0.1:9\"; }}\n  route \"/live\" {{\n    push\n    push-token secret\n  }}\n}}\n",
        behind.address
    );
    folder.write("site.kdl", site);
    let mut command = Command::new(program("flatout"));
    command.arg("serve").arg("-c").arg(folder.0.join("site.kdl"));
    let server = Server::start(command);
    let mut subscriber = server.connect();
    subscriber.write_all(b"GET /live/a HTTP/1.1\r\nHost: t\r\n\r\n").unwrap();
    let is_over = AtomicBool::new(false);
    scope(|scope| {
        let _over = Over(&is_over);
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                ask_all(&server, 0..20);
                server.get("/nothing", "");
                server.get("/dead/x", "");
                let mut publisher = server.connect();
                let publish = "POST /live/a HTTP/1.1\r\nHost: t\r\nAuthorization: Bearer secret\r\n\
                               Content-Length: 1\r\nConnection: close\r\n\r\nx";
                publisher.write_all(publish.as_bytes()).unwrap();
                publisher.read_to_end(&mut Vec::new()).unwrap();
            }
        });
        scope.spawn(|| {
            subscriber.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
            while !is_over.load(Ordering::Relaxed) {
                let _ = subscriber.read(&mut [0; 4096]);
            }
        });
        for (width, is_dark) in [(1200, false), (1200, true), (390, false), (390, true)] {
            let Some(mut browser) = Browser::start(width, is_dark) else { break };
            browser.visit(&format!("http://{admin}/"));
            let what = format!("{width} px, dark: {is_dark}");
            let text = |browser: &mut Browser, id: &str| {
                let script = format!("document.querySelector('#{id}').textContent");
                browser.evaluate(&script).as_str().unwrap().to_owned()
            };
            until("the state", || text(&mut browser, "state") == "serving");
            let moves = |rate: String| !rate.is_empty() && !rate.starts_with("0 /s");
            until("requests", || moves(text(&mut browser, "rate")));
            until("messages", || moves(text(&mut browser, "delivered .figures")));
            // A line needs two seconds.
            until("a line", || browser.evaluate("document.querySelector('svg path[d*=L]') !== null") == true);
            assert!(text(&mut browser, "latency").contains("p99"), "{what}");
            assert!(text(&mut browser, "connections").contains("open"), "{what}");
            let online = text(&mut browser, "online");
            assert!(
                online.contains("1 subscriber1 channel") && online.contains("events"),
                "{what}: {online}"
            );
            let cache = text(&mut browser, "cache");
            assert!(cache.contains("hit ratio") && cache.contains(" %"), "{what}: {cache}");
            let upstreams = text(&mut browser, "upstreams");
            assert!(
                upstreams.contains("application") && upstreams.contains(&behind.address.to_string()),
                "{upstreams}"
            );
            assert!(upstreams.contains("not used yet"), "nobody has asked the backup: {upstreams}");
            let sites = text(&mut browser, "sites");
            assert!(sites.contains("/live → push") && sites.contains("proxy application"), "{sites}");
            until("an error with its reason", || {
                text(&mut browser, "messages").contains("cannot connect to 127.0.0.1:9")
            });
            assert!(text(&mut browser, "connections").contains("of them idle"), "{what}");
            let axis = browser.evaluate("document.querySelector('svg[data-of=rate]').textContent");
            assert!(
                axis.as_str().is_some_and(|axis| axis.contains("now") && axis.contains("s ago")),
                "{axis}"
            );
            let widths = browser.evaluate("[document.documentElement.scrollWidth, innerWidth]");
            assert!(widths[0].as_u64() <= widths[1].as_u64(), "{what}: wider than its window: {widths}");
            let is_cut = "[...document.querySelectorAll('section.wide')].some((it) => it.scrollWidth > it.clientWidth)";
            assert_eq!(browser.evaluate(is_cut), false, "{what}: a table is wider than its frame");
            let (colours, different) = browser.colours(&[(3.0, 3.0)]);
            assert!(different > 50, "{what}: a picture of {different} colours");
            assert_eq!(colours[0][0] < 100, is_dark, "{what}: the ground is {:?}", colours[0]);
            assert_eq!(browser.poor_contrasts(), serde_json::json!([]), "{what}");
            assert!(browser.complaints().is_empty(), "{what}: {:?}", browser.complaints());
        }
    });
}

/// The log shows the client that the rules of a site see: fields of others than its proxies are ignored.
#[test]
fn logs_show_the_clients_that_trusted_proxies_name() {
    let folder = Folder::new();
    folder.write(
        "site.kdl",
        "listen \"127.0.0.1:0\"\nworkers 1\nadmin \"unix:admin.sock\"\naccess-log \"a.log\" format=\"$remote_addr $host\"\nlog-flush \"10ms\"\n\
         site trusting t.test { trusted-proxies \"127.0.0.0/8\"; respond 200 \"$remote_addr\"; }\n\
         site other o.test { respond 200 \"$remote_addr\"; }\n",
    );
    let mut command = Command::new(program("flatout"));
    command.current_dir(&folder.0).args(["serve", "-c", "site.kdl"]);
    let server = Server::start(command);
    let mut expected = Vec::new();
    for (host, field, address) in [
        ("t.test", "X-Forwarded-For: 203.0.113.9, 192.0.2.7\r\n", "192.0.2.7"),
        ("o.test", "X-Forwarded-For: 192.0.2.7\r\n", "127.0.0.1"),
        ("t.test", "", "127.0.0.1"),
        ("t.test", "X-Forwarded-For: 2001:db8::1\r\n", "2001:db8::1"),
    ] {
        let mut stream = server.connect();
        let text = format!("GET / HTTP/1.1\r\nHost: {host}\r\n{field}Connection: close\r\n\r\n");
        stream.write_all(text.as_bytes()).unwrap();
        let answers = flatout_tests::answers(&flatout_tests::read_to_close(&mut stream), false);
        assert_eq!(answers[0].text(), address, "{text}");
        expected.push(format!("{address} {host}"));
    }
    let lines = || std::fs::read_to_string(folder.0.join("a.log")).unwrap_or_default();
    until("all lines are there", || lines().lines().count() == expected.len());
    assert_eq!(lines().lines().collect::<Vec<_>>(), expected);
}
