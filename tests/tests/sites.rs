//! `flatout serve -c`, `check`, `fmt`, `explain` and `reload`, from outside.

#[path = "../../crates/engine/tests/support/attempts.rs"]
mod attempts;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use attempts::attempts;
use flatout_tests::{Folder, Server, program, until};
use rustix::process::Signal;

fn flatout(arguments: &[&str]) -> Output {
    Command::new(program("flatout")).args(arguments).stdin(Stdio::null()).output().unwrap()
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// A server of the folder's `site.kdl`.
fn served(folder: &Folder, flags: &[&str]) -> Server {
    let mut command = Command::new(program("flatout"));
    command
        .arg("serve")
        .arg("-c")
        .arg(folder.0.join("site.kdl"))
        .args(["--listen", "127.0.0.1:0"])
        .args(flags);
    Server::start(command)
}

/// A request to a site by name.
fn get(server: &Server, host: &str, target: &str) -> (u16, String) {
    let answer = server.one(&format!("GET {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"));
    (answer.status, answer.text())
}

#[test]
fn sites_are_served_by_their_names() {
    let (folder, behind) = (Folder::new(), Folder::new());
    behind.write("users.txt", "ann");
    let upstream = Server::site(&behind.0, &["--workers", "1"]);
    folder.write("public/index.html", "home");
    folder.write("pages/gone.html", "gone");
    let site = format!(
        "site \"a.test\" {{\n  files public\n  error-page 404 file=\"pages/gone.html\"\n  route \"/api/\" {{\n    proxy \"http://{}\"\n    \
         rewrite-prefix \"/api/\" \"/\"\n  }}\n  route \"/v[0-9]+/(.*)\" match=regex {{ redirect \"/new/$1\" status=301; }}\n}}\n\
         site \"*\" {{ respond 404 \"no such site\"; }}\n",
        upstream.address
    );
    folder.write("site.kdl", site);
    let server = served(&folder, &["--workers", "2"]);
    for (host, target, expected) in [
        ("a.test", "/", (200, "home")),
        ("A.test:80", "/", (200, "home")),
        ("a.test", "/none", (404, "gone")),
        ("a.test", "/api/users.txt", (200, "ann")),
        ("a.test", "/v1/x", (301, "")),
        ("b.test", "/", (404, "no such site")),
    ] {
        let (status, text) = get(&server, host, target);
        assert_eq!((status, text.as_str()), expected, "{host}{target}");
    }
    let file = folder.0.join("site.kdl").display().to_string();
    let told = said(&flatout(&["explain", "GET", "http://a.test/api/x?y", "-c", &file]));
    for line in
        ["site       a.test, line 1\n", "route      /api/, line 4\n", "path       /x\n", "target     /x?y\n"]
    {
        assert!(told.contains(line), "{told}");
    }
    let told = said(&flatout(&["explain", "GET", "http://a.test/%zz", "-c", &file]));
    assert!(told.contains("response   400: "), "{told}");
}

#[test]
fn upstreams_are_served_by_flags_alone() {
    let behind = Folder::new();
    behind.write("a.txt", "from behind");
    let upstream = Server::site(&behind.0, &["--workers", "1"]);
    let mut command = Command::new(program("flatout"));
    let to = format!("http://{}", upstream.address);
    command.args([
        "serve",
        "--to",
        &to,
        "--listen",
        "127.0.0.1:0",
        "--workers",
        "1",
        "--response-header",
        "set X-By flatout",
    ]);
    let server = Server::start(command);
    let answer = server.get("/a.txt", "");
    assert_eq!(
        (answer.status, answer.text().as_str(), answer.field("X-By")),
        (200, "from behind", Some("flatout"))
    );
}

#[test]
fn files_are_checked_and_formatted() {
    let folder = Folder::new();
    let write = |text: &str| folder.write("site.kdl", text);
    let file = folder.0.join("site.kdl").display().to_string();
    write("files   \"public\" // here\nsite a { respond 200 }");
    let elsewhere = flatout(&["check", "--elsewhere", &file]);
    assert_eq!((elsewhere.status.code(), said(&elsewhere).contains("here")), (Some(0), false));
    let checked = flatout(&["check", &file]);
    assert_eq!(checked.status.code(), Some(1));
    assert!(said(&checked).contains("site.kdl: valid\n"));
    assert!(
        said(&checked).contains("a server would not start here: `")
            && said(&checked).contains("is not a folder")
    );
    let output = flatout(&["fmt", "--check", &file]);
    assert_eq!((output.status.code(), said(&output).contains("not formatted: ")), (Some(1), true));
    assert_eq!(flatout(&["fmt", &file]).status.code(), Some(0));
    let formatted = "files \"public\" // here\nsite a {\n    respond 200\n}\n";
    assert_eq!(std::fs::read_to_string(&file).unwrap(), formatted);
    assert_eq!(flatout(&["fmt", "--check", &file]).status.code(), Some(0));
    write("files \"public\"\ncompres off\n");
    for arguments in [&["check", &file][..], &["serve", "-c", &file], &["reload", "-c", &file]] {
        let output = flatout(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        let told = said(&output);
        assert!(
            told.contains(":2:1: unknown setting `compres` at the top of the file; did you mean `compress`?\n  2 | compres off\n"),
            "{told}"
        );
    }
    assert!(said(&flatout(&["check", "--schema"])).contains("\"$schema\""));
}

/// The same, with the listeners of the file.
fn served_as_it_says(folder: &Folder) -> Server {
    let mut command = Command::new(program("flatout"));
    command.arg("serve").arg("-c").arg(folder.0.join("site.kdl"));
    Server::start(command)
}

/// Asks the admin listener to reload, as `flatout reload` does.
fn reload(socket: &Path) -> String {
    admin(socket, "POST", "/reload")
}

/// The response of an admin listener.
fn admin(socket: &Path, method: &str, path: &str) -> String {
    let mut stream = UnixStream::connect(socket).unwrap();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

/// Reloads under load, if they do not take longer than [`RELOADING_TIME_MAX`] on a busy machine; but always two hundred.
const RELOADS: usize = 1000;
const RELOADS_MIN: usize = 200;
const RELOADING_TIME_MAX: Duration = Duration::from_secs(20);

/// After this many, a listener is added or removed.
const RELOADS_PER_LISTENER: usize = 50;

/// Clients that send requests continuously on persistent connections lose nothing, however often the plan changes:
/// neither responses from memory, nor from files, nor from an upstream. Clients and server both count every request.
#[test]
fn nothing_is_lost_by_reloads() {
    let (folder, behind) = (Folder::new(), Folder::new());
    folder.write("public/a.txt", "file");
    behind.write("behind.txt", "behind");
    let behind_admin = behind.0.join("admin.sock");
    let admin_flag = format!("unix:{}", behind_admin.display());
    let upstream = Server::site(&behind.0, &["--workers", "1", "--admin", &admin_flag]);
    let socket = folder.0.join("admin.sock");
    let other = folder.0.join("other.sock");
    let write = |word: &str, has_other: bool| {
        let other = if has_other { format!("listen \"unix:{}\"\n", other.display()) } else { String::new() };
        folder.write(
            "site.kdl",
            format!(
                "listen \"127.0.0.1:0\"\n{other}admin \"unix:{}\"\nworkers 2\nfiles public\nupstream u {{ server \"{}\"; }}\n\
                 route \"/word\" {{ respond 200 {word}; }}\nroute \"/behind.txt\" {{ proxy u; }}\n",
                socket.display(),
                upstream.address
            ),
        );
    };
    write("one", false);
    let server = served_as_it_says(&folder);
    let (ends, count) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let clients: Vec<_> = ["/word", "/a.txt", "/behind.txt", "/behind.txt"]
        .into_iter()
        .map(|target| {
            let (mut stream, ends, count) = (server.connect(), ends.clone(), count.clone());
            std::thread::spawn(move || {
                let request = format!("GET {target} HTTP/1.1\r\nHost: t\r\n\r\n");
                let mut bytes = vec![0; 4096];
                while !ends.load(Ordering::Relaxed) {
                    stream.write_all(request.as_bytes()).unwrap();
                    let mut text = String::new();
                    while !["one", "two", "file", "behind"].iter().any(|end| text.ends_with(end)) {
                        let read = stream.read(&mut bytes).unwrap();
                        assert!(read > 0, "the connection was closed after {text:?}");
                        text.push_str(std::str::from_utf8(&bytes[..read]).unwrap());
                    }
                    assert!(text.starts_with("HTTP/1.1 200 OK\r\n"), "{text}");
                    count.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    let mut asked = 0;
    let began = Instant::now();
    for index in (0..RELOADS).take_while(|&index| index < RELOADS_MIN || began.elapsed() < RELOADING_TIME_MAX)
    {
        let word = ["two", "one"][index % 2];
        let (had_other, has_other) = (index > 0 && has(index - 1), has(index));
        write(word, has_other);
        let text = reload(&socket);
        assert!(text.starts_with("HTTP/1.1 200 OK\r\n") && text.contains("1 site, 3 routes"), "{text}");
        assert_eq!(text.contains("; now listening on unix:"), has_other && !had_other, "{text}");
        assert_eq!(text.contains("; no longer listening on unix:"), had_other && !has_other, "{text}");
        assert_eq!(get(&server, "t", "/word"), (200, word.to_owned()), "what was reloaded is served");
        asked += 1;
        if has_other {
            let mut stream = UnixStream::connect(&other).unwrap();
            stream.write_all(b"GET /word HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n").unwrap();
            let mut text = String::new();
            stream.read_to_string(&mut text).unwrap();
            assert!(text.ends_with(word), "{text}");
            asked += 1;
        }
    }
    let before = count.load(Ordering::Relaxed);
    until("clients go on", || count.load(Ordering::Relaxed) > before + 100);
    ends.store(true, Ordering::Relaxed);
    clients.into_iter().for_each(|client| client.join().unwrap());
    let expected = count.load(Ordering::Relaxed) + asked;
    let counted = || sum_of(&admin(&socket, "GET", "/metrics"), "flatout_requests_total{");
    until("metrics count over all reloads", || counted() == expected);
    // Connections to the upstream outlive reloads: there are only a few, not some for each reload.
    let connections = sum_of(&admin(&behind_admin, "GET", "/metrics"), "flatout_connections_accepted_total{");
    assert!(connections < 20, "{connections} connections to the upstream");
}

/// Whether the second listener exists after this reload.
fn has(index: usize) -> bool {
    index / RELOADS_PER_LISTENER % 2 == 1
}

/// The sum of all samples that start with `name`.
fn sum_of(text: &str, name: &str) -> u64 {
    let samples = text.lines().filter(|line| line.starts_with(name));
    samples.filter_map(|line| line.rsplit_once(' ')?.1.parse::<u64>().ok()).sum()
}

#[test]
fn a_bad_file_is_refused_and_the_old_plan_stays() {
    let folder = Folder::new();
    folder.write("site.kdl", "respond 200 one\n");
    let server = served(&folder, &["--workers", "1"]);
    let waits_for = |text: &str| {
        until(text, || server.said().iter().any(|line| line.contains(text)));
    };
    folder.write("site.kdl", "respond 200 two three\n");
    server.signal(Signal::HUP);
    waits_for("not reloaded, the old configuration stays in use: ");
    waits_for(":1:17: `respond` takes 2 values");
    assert_eq!(get(&server, "t", "/"), (200, "one".to_owned()));
    folder.write("site.kdl", "files \"nowhere\"\n");
    server.signal(Signal::HUP);
    waits_for("nowhere` is not a folder");
    assert_eq!(get(&server, "t", "/"), (200, "one".to_owned()));
    // Settings of the process are refused, and named.
    folder.write("site.kdl", "backlog 7\nworkers 1\nconnections-per-address 9\nrespond 200 three\n");
    server.signal(Signal::HUP);
    waits_for("changes to `connections-per-address` (default to 9), `backlog` (");
    waits_for(" to 7) need a restart");
    assert_eq!(get(&server, "t", "/"), (200, "one".to_owned()));
    // Other settings are not.
    folder.write("site.kdl", "server-name other\nuri-bytes 5\nrespond 200 four\n");
    server.signal(Signal::HUP);
    waits_for("reloaded ");
    assert_eq!(get(&server, "t", "/"), (200, "four".to_owned()));
    until("the limit holds", || get(&server, "t", "/long-path").0 == 414);
}

#[test]
fn listeners_change_by_reload() {
    let folder = Folder::new();
    let foreign = TcpListener::bind("127.0.0.1:0").unwrap();
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    folder.write("site.kdl", "listen \"127.0.0.1:0\"\nrespond 200 one\n");
    let server = served_as_it_says(&folder);
    let says = |text: &str| until(text, || server.said().iter().any(|line| line.contains(text)));
    let mut stays = server.connect();
    // The address is in use: nothing changes, not even other settings.
    let taken = foreign.local_addr().unwrap();
    folder.write("site.kdl", format!("listen \"{free}\"\nlisten \"{taken}\"\nrespond 200 two\n"));
    server.signal(Signal::HUP);
    says(&format!("not reloaded, the old configuration stays in use: cannot listen on http://{taken}: "));
    assert_eq!(get(&server, "t", "/"), (200, "one".to_owned()));
    assert!(TcpStream::connect(free).is_err());
    folder.write("site.kdl", format!("listen \"{free}\"\nrespond 200 three\n"));
    server.signal(Signal::HUP);
    says(&format!("; now listening on http://{free}; no longer listening on http://{}", server.address));
    let ask = |stream: &mut TcpStream| {
        stream.write_all(b"GET / HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n").unwrap();
        flatout_tests::answers(&flatout_tests::read_to_close(stream), false)[0].text()
    };
    assert_eq!(ask(&mut TcpStream::connect(free).unwrap()), "three");
    assert_eq!(ask(&mut stays), "three", "who was connected is served on");
    until("the old one is closed", || TcpStream::connect(server.address).is_err());
    // `flatout reload` finds the server by an address that exists already.
    folder.write("site.kdl", format!("listen \"127.0.0.1:0\"\nlisten \"{free}\"\nrespond 200 four\n"));
    let file = folder.0.join("site.kdl").display().to_string();
    assert!(said(&flatout(&["reload", "-c", &file])).contains(" was asked to reload"));
    // Its message is not enough, because the previous reload logged the same.
    until("the last reload", || ask(&mut TcpStream::connect(free).unwrap()) == "four");
}

/// `[::]` accepts IPv4 clients too, except at addresses that are listed.
#[test]
fn addresses_beside_one_for_all_come_and_go_by_reload() {
    let folder = Folder::new();
    let port = TcpListener::bind("[::]:0").unwrap().local_addr().unwrap().port();
    let site = |address: &str, text: &str| {
        format!("site {text} {{ listen \"{address}:{port}\" default=on; respond 200 {text}; }}\n")
    };
    let (all, ipv4, one) = (site("[::]", "all"), site("0.0.0.0", "ipv4"), site("127.0.0.1", "one"));
    folder.write("site.kdl", format!("workers 2\n{all}"));
    let server = served_as_it_says(&folder);
    let seen = |host: &str| {
        let mut stream = TcpStream::connect((host, port)).ok()?;
        stream.write_all(b"GET / HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n").ok()?;
        Some(flatout_tests::answers(&flatout_tests::read_to_close(&mut stream), false).first()?.text())
    };
    let reloaded = |text: String, expected: [Option<&str>; 3]| {
        folder.write("site.kdl", format!("workers 2\n{text}"));
        server.signal(Signal::HUP);
        until(&format!("{expected:?} of:\n{text}"), || {
            // Each worker has its own sockets.
            (0..4).all(|_| {
                ["127.0.0.1", "127.0.0.2", "::1"].map(seen) == expected.map(|text| text.map(str::to_owned))
            })
        });
    };
    reloaded(format!("{all}{ipv4}"), [Some("ipv4"), Some("ipv4"), Some("all")]);
    reloaded(format!("{one}{ipv4}{all}"), [Some("one"), Some("ipv4"), Some("all")]);
    reloaded(format!("{one}{all}"), [Some("one"), Some("all"), Some("all")]);
    reloaded(all.clone(), [Some("all"), Some("all"), Some("all")]);
    reloaded(ipv4.clone(), [Some("ipv4"), Some("ipv4"), None]);
    reloaded(format!("{ipv4}{all}"), [Some("ipv4"), Some("ipv4"), Some("all")]);
}

/// A reload must keep the counts of limits, and the state of a server that is down.
#[test]
fn state_is_kept_over_reloads() {
    let folder = Folder::new();
    let dead = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let alive = Folder::new();
    alive.write("a.txt", "alive");
    let upstream = Server::site(&alive.0, &["--workers", "1"]);
    let write = |word: &str, rate: &str| {
        folder.write(
            "site.kdl",
            format!(
                "upstream u {{ server \"{dead}\"; server \"{}\"; failures 1 window=\"1h\" down-time=\"1h\"; retries 0; }}\n\
                 respond 200 {word}\nroute \"/a.txt\" {{ proxy u; }}\n\
                 route \"/limited\" {{ respond 200 {word}; rate-limit \"{rate}\" name=few; }}\n",
                upstream.address
            ),
        );
    };
    write("one", "1/h");
    let server = served(&folder, &["--workers", "1"]);
    let reloaded = |word: &str| {
        server.signal(Signal::HUP);
        until("it is reloaded", || get(&server, "t", "/") == (200, word.to_owned()));
    };
    assert_eq!(get(&server, "t", "/limited").0, 200);
    assert_eq!(get(&server, "t", "/limited").0, 429);
    // The first request notices the dead server, but only while it counts as up.
    until("the dead server was tried", || get(&server, "t", "/a.txt").0 == 502);
    write("two", "1/h");
    reloaded("two");
    assert_eq!(get(&server, "t", "/limited").0, 429, "what was counted counts");
    for _ in 0..4 {
        assert_eq!(get(&server, "t", "/a.txt"), (200, "alive".to_owned()), "the dead server is known to be");
    }
    write("three", "2/h");
    reloaded("three");
    assert_eq!(get(&server, "t", "/limited").0, 200, "another limit counts anew");
}

/// Sites with folders and expressions of their own: more of them than threads, than instances of inotify and than a worker frees itself.
#[test]
fn a_thousand_sites_have_folders_of_their_own() {
    const SITES: usize = 1000;
    let folder = Folder::new();
    for at in 0..SITES {
        folder.write(&format!("{at}/a.txt"), format!("file {at}"));
    }
    let write = |word: &str, count: usize| {
        let site = |at: usize| {
            format!(
                "site \"s{at}.test\" {{ files \"{at}\"; route \"^/([a-z]+)/{at}$\" match=regex {{ respond 200 \"$1 {word} {at}\"; }}; }}\n"
            )
        };
        folder.write("site.kdl", (0..count).map(site).collect::<String>());
    };
    write("one", SITES);
    let server = served(&folder, &["--workers", "2"]);
    let is_right = |word: &str, at: usize| {
        let (host, path) = (format!("s{at}.test"), format!("/the/{at}"));
        get(&server, &host, "/a.txt") == (200, format!("file {at}"))
            && get(&server, &host, &path) == (200, format!("the {word} {at}"))
    };
    assert!((0..SITES).step_by(37).all(|at| is_right("one", at)));
    let threads = std::fs::read_dir(format!("/proc/{}/task", server.pid())).unwrap().count();
    assert!(threads < 64, "{threads} threads");
    // Some go, the others change.
    let reloaded = |word: &str, count: usize| {
        write(word, count);
        server.signal(Signal::HUP);
        until("it is reloaded", || is_right(word, 0));
    };
    reloaded("two", SITES - 400);
    assert!((0..SITES - 400).step_by(37).all(|at| is_right("two", at)));
    assert_eq!(get(&server, "s999.test", "/a.txt").0, 421);
    reloaded("three", SITES);
    assert!((0..SITES).step_by(37).all(|at| is_right("three", at)));
    for at in [1, 500, 999] {
        folder.write(&format!("{at}/b.txt"), format!("new {at}"));
        until("a change is found", || {
            get(&server, &format!("s{at}.test"), "/b.txt") == (200, format!("new {at}"))
        });
    }
}

/// A request that has waited, here for the check of its password, is closed like another.
#[test]
fn connections_are_closed_without_a_response_behind_guards_that_wait() {
    let folder = Folder::new();
    let hash = "$2y$05$abcdefghijklmnopqrstuuJ5oJ8pHWiK6GxCfX1GDZwm4mwHcvGZa";
    let site = format!(
        "route \"/\" {{ basic-auth Staff; auth-user a \"{hash}\"; error-page 401 to=\"@drop\"; respond 200 inside; }}\n\
         route \"@drop\" {{ close; }}\n"
    );
    folder.write("site.kdl", site);
    let server = served(&folder, &["--workers", "1"]);
    for fields in ["", "Authorization: Basic YTp3cm9uZw==\r\n"] {
        let said = server.exchange(format!("GET / HTTP/1.1\r\nHost: t\r\n{fields}\r\n"));
        assert!(said.is_empty(), "{fields} {:?}", said[0].text());
    }
}

#[test]
fn names_by_expression_silence_and_bursts_that_wait() {
    attempts(bursts_that_wait);
}

fn bursts_that_wait() {
    let folder = Folder::new();
    let hash = "$2y$05$abcdefghijklmnopqrstuuJ5oJ8pHWiK6GxCfX1GDZwm4mwHcvGZa";
    let site = "site \"~^www[0-9]+\\\\.\" { respond 200 numbered; }\nsite \"*.a.test\" { respond 200 below; }\n\
                site \"*\" {\n  route \"/closed\" { close; basic-auth Staff; auth-user a \"HASH\"; }\n  \
                route \"/paced\" { respond 200 paced; rate-limit \"5/s\" burst=2 delay=0; }\n  respond 404 none\n}\n";
    folder.write("site.kdl", site.replace("HASH", hash));
    let server = served(&folder, &["--workers", "1"]);
    for (host, expected) in [
        ("www7.b.test", "numbered"),
        ("WWW7.b.test:80", "numbered"),
        ("www7.a.test", "below"),
        ("www.b.test", "none"),
    ] {
        assert_eq!(get(&server, host, "/").1, expected, "{host}");
    }
    assert!(
        server.exchange("GET /closed HTTP/1.1\r\nHost: t\r\n\r\n").is_empty(),
        "nothing, and the connection is closed"
    );
    let began = std::time::Instant::now();
    let times: Vec<_> = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..5)
            .map(|_| {
                let server = &server;
                scope.spawn(move || (get(server, "t", "/paced").0, began.elapsed().as_millis()))
            })
            .collect();
        clients.into_iter().map(|client| client.join().unwrap()).collect()
    });
    let mut served: Vec<_> = times.iter().filter(|(status, _)| *status == 200).map(|(_, at)| *at).collect();
    served.sort_unstable();
    // One at once, two that wait; on a slow host another one may be let in.
    assert!((3..=4).contains(&served.len()), "{times:?}");
    assert!(served[1] >= 200 && served[2] >= 400, "an even pace: {times:?}");
}
