//! Servers on one bus, from outside: messages, purges, and a bus that goes, stops, lies or wants a password.

#[path = "bus/listeners.rs"]
mod listeners;
#[path = "bus/upgrades.rs"]
mod upgrades;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use flatout_tests::nats::Nats;
use flatout_tests::{Folder, PATIENCE, Server, Signal, program, until};
use rustix::process::{Pid, kill_process};

use listeners::{Listener, Place, WAYS, Way, check};

/// A server with channels, on this bus.
fn pusher(folder: &Folder, name: &str, bus: &str) -> Server {
    let mut command = Command::new(program("flatout"));
    command.args(["serve", "--push", "/live", "--push-token", "secret", "--push-history", "20000"]);
    // Slow readers are not tested here.
    command.args(["--push-lag", "100000", "--listen", "127.0.0.1:0", "--workers", "2", "--bus", bus]);
    command.arg("--admin").arg(format!("unix:{}", folder.0.join(name).display()));
    Server::start(command)
}

fn place(server: &Server) -> Place {
    Place::Tcp(server.address)
}

fn has_said(server: &Server, text: &str) -> usize {
    server.said().iter().filter(|line| line.contains(text)).count()
}

fn wait_joined(server: &Server, times: usize) {
    until("the bus", || has_said(server, "joined the bus") >= times);
}

/// One figure of the admin listener at this socket.
fn figure(socket: &Path, name: &str) -> f64 {
    let (_, _, text) =
        Place::unix(socket).ask("GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    let found = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    found.and_then(|value| value.trim().parse().ok()).unwrap_or_else(|| panic!("{name}: {text}"))
}

fn texts(publisher: &str, numbers: std::ops::Range<usize>) -> Vec<String> {
    numbers.map(|number| format!("{publisher} {number}")).collect()
}

#[test]
fn messages_are_delivered_once_and_in_order_on_every_server() {
    const COUNT: usize = 3000;
    let (folder, nats) = (Folder::new(), Nats::start());
    let servers = ["a", "b", "c"].map(|name| pusher(&folder, name, &nats.url()));
    servers.iter().for_each(|server| wait_joined(server, 1));
    let listeners: Vec<Listener> = servers
        .iter()
        .flat_map(|server| WAYS.map(|way| Listener::start(&place(server), "NBA.1", way, "")))
        .collect();
    thread::scope(|scope| {
        for (server, publisher) in servers.iter().zip(["one", "two", "three"]) {
            scope.spawn(move || {
                for from in (0..COUNT).step_by(50) {
                    place(server).publish("NBA.1", &texts(publisher, from..from + 50));
                }
            });
        }
    });
    let publishers = [("one", COUNT), ("two", COUNT), ("three", COUNT)];
    for listener in &listeners {
        check(&listener.wait(3 * COUNT), &publishers, &format!("{:?}", listener.way));
    }
    for name in ["a", "b", "c"] {
        let socket = folder.0.join(name);
        assert_eq!(figure(&socket, "flatout_bus_joined"), 1.0);
        until("all is carried", || figure(&socket, "flatout_bus_sent_total") == COUNT as f64);
        assert_eq!(figure(&socket, "flatout_bus_received_total"), 2.0 * COUNT as f64);
        assert_eq!(figure(&socket, "flatout_bus_queued"), 0.0);
        assert_eq!(figure(&socket, "flatout_bus_missed_total"), 0.0);
    }
    until("the live figures", || {
        let request = "GET /status HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        let status: serde_json::Value =
            serde_json::from_str(&Place::unix(&folder.0.join("a")).ask(request).2).expect("JSON");
        let expected = serde_json::json!({ "state": "joined", "queued": 0, "dropped": 0, "missed": 0 });
        status["now"]["bus"] == expected
    });
}

#[test]
fn groups_on_one_bus_are_isolated() {
    let (folder, nats) = (Folder::new(), Nats::start());
    let here = pusher(&folder, "a", &format!("{} group=here", nats.url()));
    let there = pusher(&folder, "b", &format!("{} group=there", nats.url()));
    let more = pusher(&folder, "c", &format!("{} group=here", nats.url()));
    [&here, &there, &more].into_iter().for_each(|server| wait_joined(server, 1));
    let listeners = [&there, &more].map(|server| Listener::start(&place(server), "a", Way::Events, ""));
    place(&here).publish("a", &texts("one", 0..10));
    place(&there).publish("a", &texts("two", 0..10));
    check(&listeners[1].wait(10), &[("one", 10)], "the same group");
    check(&listeners[0].wait(10), &[("two", 10)], "another group");
}

/// Messages published while the bus is disconnected are delivered locally at once, and on the other servers
/// after the reconnect.
#[test]
fn a_lost_bus_is_rejoined() {
    let (folder, mut nats) = (Folder::new(), Nats::start());
    let servers = ["a", "b"].map(|name| pusher(&folder, name, &nats.url()));
    servers.iter().for_each(|server| wait_joined(server, 1));
    let listeners: Vec<Listener> = servers
        .iter()
        .flat_map(|server| WAYS.map(|way| Listener::start(&place(server), "a", way, "")))
        .collect();
    let [here, there] = &servers;
    place(here).publish("a", &texts("one", 0..100));
    listeners.iter().for_each(|listener| drop(listener.wait(100)));
    nats.end();
    until("that it is lost", || servers.iter().all(|server| has_said(server, "was lost") == 1));
    place(here).publish("a", &texts("one", 100..200));
    for listener in &listeners[..3] {
        check(&listener.wait(200), &[("one", 200)], "local ones go on");
    }
    let socket = folder.0.join("a");
    assert_eq!(figure(&socket, "flatout_bus_joined"), 0.0);
    assert_eq!(figure(&socket, "flatout_bus_queued"), 100.0);
    assert_eq!(figure(&socket, "flatout_bus_lost_total"), 1.0);
    place(there).publish("a", &texts("two", 0..100));
    nats.restart();
    servers.iter().for_each(|server| wait_joined(server, 2));
    place(here).publish("a", &texts("one", 200..300));
    for listener in &listeners {
        // The server that reconnects first sends its queue; subscribers of a server that reconnects later get
        // a gap.
        until("the last message, and all or a gap", || {
            let heard = listener.heard();
            let has_last = heard.iter().any(|text| text == "one 299");
            has_last && (heard.len() == 400 || heard.iter().any(|text| text == "gap"))
        });
        check_rest(&listener.heard(), &[("one", 300), ("two", 100)]);
    }
    for server in &servers {
        assert_eq!(has_said(server, "cannot be joined"), 0, "it is told once: {:?}", server.said());
        assert_eq!(has_said(server, "was lost"), 1, "{:?}", server.said());
    }
}

/// The queue overflows while the bus is disconnected: the oldest messages are dropped, counted and logged,
/// and receivers report a gap.
#[test]
fn a_full_queue_drops_messages_and_reports_gaps() {
    const ROOM: usize = 65_536;
    const COUNT: usize = 70_000;
    let (folder, mut nats) = (Folder::new(), Nats::start());
    let servers = ["a", "b"].map(|name| pusher(&folder, name, &nats.url()));
    servers.iter().for_each(|server| wait_joined(server, 1));
    let listener = Listener::start(&place(&servers[1]), "a", Way::Events, "");
    place(&servers[0]).publish("a", &texts("one", 0..1));
    listener.wait(1);
    until("all is carried", || figure(&folder.0.join("a"), "flatout_bus_queued") == 0.0);
    nats.end();
    until("that it is lost", || servers.iter().all(|server| has_said(server, "was lost") == 1));
    for from in (1..=COUNT).step_by(10_000) {
        place(&servers[0]).publish("a", &texts("one", from..from + 10_000));
    }
    let socket = folder.0.join("a");
    assert_eq!(figure(&socket, "flatout_bus_queued"), ROOM as f64);
    assert_eq!(figure(&socket, "flatout_bus_dropped_total"), (COUNT - ROOM) as f64);
    until("that it is told", || has_said(&servers[0], "the oldest messages are dropped") == 1);
    nats.restart();
    servers.iter().for_each(|server| wait_joined(server, 2));
    place(&servers[0]).publish("a", &texts("one", COUNT + 1..COUNT + 2));
    let last = format!("one {}", COUNT + 1);
    until("the last message", || listener.heard().last() == Some(&last));
    assert!(listener.heard().iter().any(|text| text == "gap"));
    check_rest(&listener.heard(), &[("one", COUNT + 2)]);
}

/// A bus that stalls briefly loses nothing. Neither does one that stalls until the connection is given up,
/// and then continues.
#[test]
fn a_stalled_bus_loses_no_messages() {
    let (folder, nats) = (Folder::new(), Nats::start());
    let servers = ["a", "b"].map(|name| pusher(&folder, name, &nats.url()));
    servers.iter().for_each(|server| wait_joined(server, 1));
    let listeners = WAYS.map(|way| Listener::start(&place(&servers[1]), "a", way, ""));
    let publish = |from| place(&servers[0]).publish("a", &texts("one", from..from + 100));
    publish(0);
    nats.signal(Signal::STOP);
    publish(100);
    nats.signal(Signal::CONT);
    publish(200);
    for listener in &listeners {
        check(&listener.wait(300), &[("one", 300)], "a moment");
    }
    nats.signal(Signal::STOP);
    publish(300);
    until("that it is lost", || servers.iter().all(|server| has_said(server, "was lost") == 1));
    nats.signal(Signal::CONT);
    servers.iter().for_each(|server| wait_joined(server, 2));
    publish(400);
    for listener in &listeners {
        until("the last message", || listener.heard().iter().any(|text| text == "one 499"));
        check_rest(&listener.heard(), &[("one", 500)]);
    }
}

/// Checks that these messages are from these publishers, each at most once and in order, and complete unless
/// a gap was reported.
fn check_rest(heard: &[String], publishers: &[(&str, usize)]) {
    let has_gap = heard.iter().any(|text| text == "gap");
    let texts: Vec<String> = heard.iter().filter(|text| *text != "gap").cloned().collect();
    if !has_gap {
        return check(&texts, publishers, "without a gap");
    }
    for (publisher, _) in publishers {
        let of = texts.iter().filter_map(|text| text.strip_prefix(publisher)?.trim().parse().ok());
        let numbers: Vec<usize> = of.collect();
        assert!(numbers.is_sorted_by(|one, next| one < next), "{publisher}: {numbers:?}");
    }
}

/// An origin that counts its requests, and responds with the count.
fn origin() -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, count) = (listener.local_addr().unwrap(), Arc::new(AtomicUsize::new(0)));
    let counted = count.clone();
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let counted = counted.clone();
            thread::spawn(move || {
                let (mut bytes, mut byte) = (Vec::new(), [0]);
                while stream.read(&mut byte).is_ok_and(|read| read == 1) {
                    bytes.push(byte[0]);
                    if bytes.ends_with(b"\r\n\r\n") {
                        bytes.clear();
                        let body = counted.fetch_add(1, Ordering::SeqCst).to_string();
                        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len());
                        if stream.write_all(head.as_bytes()).is_err() {
                            return;
                        }
                    }
                }
            });
        }
    });
    (format!("http://{address}"), count)
}

fn cacher(folder: &Folder, name: &str, origin: &str, bus: &str) -> Server {
    let mut command = Command::new(program("flatout"));
    command.args(["serve", "--to", origin, "--cache", "1d", "--listen", "127.0.0.1:0", "--bus", bus]);
    command.arg("--admin").arg(format!("unix:{}", folder.0.join(name).display()));
    Server::start(command)
}

fn purge(folder: &Folder, name: &str, arguments: &[&str]) -> String {
    let mut command = Command::new(program("flatout"));
    command.arg("purge").arg("--admin").arg(format!("unix:{}", folder.0.join(name).display()));
    said(command.args(arguments).output().unwrap())
}

fn said(output: Output) -> String {
    String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
}

fn status(server: &Server, path: &str) -> String {
    server.get(path, "").field("x-cache-status").unwrap_or("none").to_owned()
}

#[test]
fn a_purge_applies_to_all_servers() {
    let (folder, mut nats) = (Folder::new(), Nats::start());
    let (origin, _) = origin();
    let servers = ["a", "b"].map(|name| cacher(&folder, name, &origin, &nats.url()));
    servers.iter().for_each(|server| wait_joined(server, 1));
    for server in &servers {
        for path in ["/x/1", "/x/2", "/y"] {
            until("a hit", || status(server, path) == "HIT");
        }
    }
    let answer = purge(&folder, "a", &["--prefix", "http://t/x/"]);
    assert_eq!(answer, "purged 2 stored responses; sent to the other servers\n");
    until("the purge", || figure(&folder.0.join("b"), "flatout_cache_purged_total") >= 2.0);
    for server in &servers {
        assert_eq!(["/x/1", "/x/2", "/y"].map(|path| status(server, path)), ["MISS", "MISS", "HIT"]);
    }

    // While the bus is away, purges are done here, and wait for it.
    nats.end();
    until("that it is lost", || servers.iter().all(|server| has_said(server, "was lost") == 1));
    let answer = purge(&folder, "a", &["http://t/y"]);
    assert_eq!(
        answer,
        "purged 1 stored response; the bus is disconnected; other servers get it when it is joined again, \
         unless this server ends before\n"
    );
    assert_eq!(["/x/1", "/y"].map(|path| status(&servers[0], path)), ["HIT", "MISS"]);
    assert_eq!(status(&servers[1], "/y"), "HIT");
    nats.restart();
    servers.iter().for_each(|server| wait_joined(server, 2));
    // Purges may have been missed: all stored responses are validated.
    until("the purge", || {
        status(&servers[1], "/y") == "HIT" && figure(&folder.0.join("a"), "flatout_bus_queued") == 0.0
    });
    for server in &servers {
        assert_eq!(status(server, "/x/2"), "EXPIRED");
        assert_eq!(status(server, "/x/2"), "HIT");
    }
}

/// Sends these bytes on each connection, and counts the connections. With `goes_on`, it sends them without
/// end.
fn liar(says: &'static [u8], goes_on: bool) -> (u16, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (port, count) = (listener.local_addr().unwrap().port(), Arc::new(AtomicUsize::new(0)));
    let counted = count.clone();
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            counted.fetch_add(1, Ordering::SeqCst);
            thread::spawn(move || {
                while stream.write_all(says).is_ok() && goes_on {}
                let mut rest = Vec::new();
                let _ = stream.read_to_end(&mut rest);
            });
        }
    });
    (port, count)
}

#[test]
fn servers_that_do_not_speak_nats_are_rejected() {
    let lies: [(&[u8], bool); 9] = [
        (b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n", false),
        (b"INFO {}\r\n-ERR\r\n", false),
        (b"INFO {\"max_payload\":-1}\r\n", false),
        (b"INFO {\"server_id\":\"x\",\"max_payload\":18446744073709551615}\r\nMSG a 1 18446744073709551615\r\n", false),
        (b"INFO {}\r\nPONG\r\nMSG \xff\xfe 1 2\r\n", false),
        (b"INFO [[[[\r\n", false),
        (b"\0\0\0\0\0\0\0\0", true),
        (b"INFO {\"a\":\"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", true),
        (b"", false),
    ];
    let liars: Vec<_> = lies.iter().map(|(says, goes_on)| liar(says, *goes_on)).collect();
    let (folder, nats) = (Folder::new(), Nats::start());
    let servers: Vec<String> = liars.iter().map(|(port, _)| format!("nats://127.0.0.1:{port}")).collect();
    let server = pusher(&folder, "a", &format!("{},{}", servers.join(","), nats.url()));
    let listener = Listener::start(&place(&server), "a", Way::Events, "");
    place(&server).publish("a", &texts("one", 0..10));
    check(&listener.wait(10), &[("one", 10)], "it serves meanwhile");
    for (at, (_, count)) in liars.iter().enumerate() {
        until("the next server", || count.load(Ordering::SeqCst) > 0);
        assert!(fs::metadata(format!("/proc/{}", server.pid())).is_ok(), "{at}");
    }
    wait_joined(&server, 1);
    assert_eq!(
        has_said(&server, "cannot be joined: not a NATS server: it sent `HTTP/1.1 400 Bad Request`"),
        1
    );
    assert_eq!(has_said(&server, "cannot be joined"), 1, "{:?}", server.said());
    until("what was published before", || figure(&folder.0.join("a"), "flatout_bus_queued") == 0.0);
    let peak = fs::read_to_string(format!("/proc/{}/status", server.pid())).unwrap();
    let peak = peak.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let peak_kb: u64 = peak.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(peak_kb < 200 << 10, "{peak}");
}

#[test]
fn credentials_are_used_and_never_printed() {
    let nats = Nats::with("authorization { user: \"app\", password: \"hidden-right\" }");
    let folder = Folder::new();
    let place_of = nats.url().replace("nats://", "");
    let wrong = pusher(&folder, "a", &format!("nats://app:hidden-wrong@{place_of}"));
    until("that it is refused", || has_said(&wrong, "it refused the credentials") == 1);
    let without = pusher(&folder, "b", &nats.url());
    until("that it is refused", || has_said(&without, "it requires credentials") == 1);
    folder.write("credentials", "app:hidden-right\n");
    let file = folder.0.join("credentials");
    let right = pusher(&folder, "c", &format!("{} auth={}", nats.url(), file.display()));
    let also = pusher(&folder, "d", &format!("nats://app:hidden%2Dright@{place_of}"));
    [&right, &also].into_iter().for_each(|server| wait_joined(server, 1));
    let listener = Listener::start(&place(&also), "a", Way::Events, "");
    place(&right).publish("a", &texts("one", 0..10));
    check(&listener.wait(10), &[("one", 10)], "let in");
    for server in [&wrong, &without, &right, &also] {
        assert!(!server.said().join(" ").contains("hidden"), "{:?}", server.said());
    }
}

/// A user without permission for the group's subjects is reported.
#[test]
fn missing_permissions_are_reported() {
    let config =
        "authorization { users: [{ user: app, password: word, permissions: { subscribe: \"other\" } }] }";
    let (folder, nats) = (Folder::new(), Nats::with(config));
    let server = pusher(&folder, "a", &nats.url().replace("nats://", "nats://app:word@"));
    until("the reason", || has_said(&server, "cannot be joined") == 1);
    assert!(server.said().join(" ").to_lowercase().contains("permissions violation"), "{:?}", server.said());
}

#[test]
fn errors_do_not_contain_secrets() {
    let folder = Folder::new();
    let run = |arguments: &[&str]| {
        let mut command = Command::new(program("flatout"));
        let output = command.arg("serve").args(arguments).output().unwrap();
        (output.status.code(), said(output))
    };
    for (bus, expected) in [
        ("127.0.0.1:4222", "--bus: got `127.0.0.1:4222`, need nats://HOST:PORT or tls://HOST:PORT"),
        ("http://u:hidden@h", "--bus: got `http://…@h`, need nats://"),
        ("nats://u:hidden@h:port", "got `nats://…@h:port`, need"),
        ("nats://h group=a.b", "--bus: got `a.b`, need 1 to 64 letters, digits, - or _"),
        ("nats://h auth=/nowhere/at/all", "cannot read `/nowhere/at/all`"),
    ] {
        let (code, text) = run(&["--push", "/live", "--bus", bus]);
        assert!(code == Some(2) && text.contains(expected) && !text.contains("hidden"), "{bus}: {text}");
    }
    folder.write("site.kdl", "bus \"nats://u:hidden@h\" grup=a\nroute \"/live\" {\n    push\n}\n");
    let (code, text) = run(&["-c", &folder.0.join("site.kdl").display().to_string()]);
    assert!(code == Some(2) && text.contains("grup") && !text.contains("hidden"), "{text}");
    assert!(text.contains("nats://********@h"), "{text}");
}

/// The response to a long poll after this position: texts, with `gap` for lost messages, and the next
/// position.
fn poll(server: &Server, channel: &str, position: &str) -> (Vec<String>, String) {
    let field = format!("Last-Event-ID: {position}\r\n");
    let answer = server.get(&format!("/live/{channel}?poll=1"), &field);
    let messages: Vec<serde_json::Value> = serde_json::from_slice(&answer.body).expect("JSON");
    let texts = messages.iter().map(|message| match message["gap"] == true {
        true => "gap".to_owned(),
        false => message["data"].as_str().expect("a text").to_owned(),
    });
    (texts.collect(), answer.field("last-event-id").expect("a position").to_owned())
}

#[test]
fn a_client_can_resume_on_another_server() {
    let (folder, nats) = (Folder::new(), Nats::start());
    let servers = ["a", "b"].map(|name| pusher(&folder, name, &nats.url()));
    servers.iter().for_each(|server| wait_joined(server, 1));
    let [here, there] = &servers;
    let listener = Listener::start(&place(there), "a,b", Way::Events, "");
    place(here).publish("a", &texts("one", 0..20));
    listener.wait(20);
    let (heard, position) = poll(here, "a,b", "all");
    check(&heard, &[("one", 20)], "here");
    place(here).publish("b", &texts("one", 20..30));
    listener.wait(30);
    let (heard, next) = poll(there, "a,b", &position);
    assert_eq!(heard, texts("one", 20..30), "neither more nor less");
    // And back again, from a position that the other one has given.
    place(there).publish("c", &texts("two", 0..1));
    place(here).publish("a", &texts("one", 30..40));
    listener.wait(40);
    assert_eq!(poll(here, "a,b", &next).0, texts("one", 30..40));
    // If the order may differ, the client gets a gap and the whole history.
    place(there).publish("a", &texts("two", 0..5));
    until("those of the other", || poll(here, "a", "all").0.len() == 35);
    let (_, mixed) = poll(here, "a", "all");
    place(here).publish("a", &texts("one", 40..41));
    until("the last one", || poll(there, "a", "all").0.len() == 36);
    let (heard, _) = poll(there, "a", &mixed);
    assert_eq!((heard.len(), heard[0].as_str()), (37, "gap"));
    // On its own server a position is exact.
    assert_eq!(poll(here, "a", &mixed).0, texts("one", 40..41));
}

#[test]
fn a_new_server_reads_the_history() {
    let (folder, mut nats) = (Folder::new(), Nats::keeping());
    let bus = format!("{} history=1h", nats.url());
    let mut here = pusher(&folder, "a", &bus);
    wait_joined(&here, 1);
    place(&here).publish("NBA.1", &texts("one", 0..30));
    let (heard, position) = poll(&here, "NBA.1", "all");
    check(&heard, &[("one", 30)], "here");
    place(&here).publish("NBA.1", &texts("one", 30..50));
    until("all is kept", || figure(&folder.0.join("a"), "flatout_bus_sent_total") == 50.0);
    here.signal(Signal::TERM);
    assert!(here.wait().success());
    nats.restart();
    let there = pusher(&folder, "b", &bus);
    // The history is read before the first client is served.
    check(&poll(&there, "NBA.1", "all").0, &[("one", 50)], "kept");
    assert_eq!(poll(&there, "NBA.1", &position).0, texts("one", 30..50), "neither more nor less");
    place(&there).publish("NBA.1", &texts("two", 0..5));
    let again = pusher(&folder, "c", &bus);
    until("all of both", || poll(&again, "NBA.1", "all").0.len() == 55);
    check(&poll(&again, "NBA.1", "all").0, &[("one", 50), ("two", 5)], "kept of both");
}

/// With a history nothing is lost while the bus is disconnected, whichever server reconnects first.
#[test]
fn a_history_prevents_loss_while_disconnected() {
    let (folder, mut nats) = (Folder::new(), Nats::keeping());
    let bus = format!("{} history=1h", nats.url());
    let servers = ["a", "b"].map(|name| pusher(&folder, name, &bus));
    servers.iter().for_each(|server| wait_joined(server, 1));
    let listeners: Vec<Listener> = servers
        .iter()
        .flat_map(|server| WAYS.map(|way| Listener::start(&place(server), "a", way, "")))
        .collect();
    for round in 0..3 {
        let from = round * 200;
        place(&servers[0]).publish("a", &texts("one", from..from + 100));
        nats.end();
        until("that it is lost", || servers.iter().all(|server| has_said(server, "was lost") == round + 1));
        place(&servers[0]).publish("a", &texts("one", from + 100..from + 200));
        place(&servers[1]).publish("a", &texts("two", round * 10..round * 10 + 10));
        nats.restart();
        servers.iter().for_each(|server| wait_joined(server, round + 2));
    }
    for listener in &listeners {
        check(&listener.wait(630), &[("one", 600), ("two", 30)], &format!("{:?}", listener.way));
    }
}

/// Subscribes to a subject as a plain NATS client. The messages are among the lines.
fn subscribed(nats: &Nats, subject: &str) -> BufReader<TcpStream> {
    let mut stream = BufReader::new(TcpStream::connect(("127.0.0.1", nats.port)).unwrap());
    stream.get_ref().set_read_timeout(Some(PATIENCE)).unwrap();
    let hello = format!("CONNECT {{\"verbose\":false}}\r\nSUB {subject} 1\r\nPING\r\n");
    stream.get_mut().write_all(hello.as_bytes()).unwrap();
    let mut line = String::new();
    while line != "PONG\r\n" {
        line.clear();
        assert!(stream.read_line(&mut line).unwrap() > 0, "closed");
    }
    stream
}

/// Sends a request to the API of JetStream.
fn ask_jetstream(nats: &Nats, subject: &str, body: &str) {
    let mut stream = subscribed(nats, "answer");
    let asked = format!("PUB $JS.API.{subject} answer {}\r\n{body}\r\n", body.len());
    stream.get_mut().write_all(asked.as_bytes()).unwrap();
    let said = stream.lines().map_while(Result::ok).find(|line| line.starts_with('{')).unwrap();
    assert!(said.contains("\"config\"") && !said.contains("\"error\""), "{said}");
}

/// The configuration of a stream that refuses messages above this number.
fn stream_of(room: usize) -> String {
    format!(
        r#"{{"name":"flatout_push","subjects":["flatout.push.>"],"storage":"file","discard":"new","max_msgs":{room}}}"#
    )
}

/// Messages that a full stream refuses arrive after it has room, and purges do not wait for them.
#[test]
fn messages_refused_by_the_stream_are_sent_again() {
    let (folder, nats) = (Folder::new(), Nats::keeping());
    ask_jetstream(&nats, "STREAM.CREATE.flatout_push", &stream_of(5));
    let bus = format!("{} history=1h", nats.url());
    let servers = ["a", "b"].map(|name| pusher(&folder, name, &bus));
    servers.iter().for_each(|server| wait_joined(server, 1));
    let listener = Listener::start(&place(&servers[1]), "a", Way::Events, "");
    place(&servers[0]).publish("a", &texts("one", 0..2000));
    check(&listener.wait(5), &[("one", 5)], "as many as the stream takes");
    assert_eq!(purge(&folder, "a", &["--all"]), "no responses are stored here; sent to the other servers\n");
    until("that it is said", || has_said(&servers[0], "the bus has stored none of the messages") == 1);
    ask_jetstream(&nats, "STREAM.UPDATE.flatout_push", &stream_of(100_000));
    until("the last message", || listener.heard().iter().any(|text| text == "one 1999"));
    check_rest(&listener.heard(), &[("one", 2000)]);
    assert_eq!(has_said(&servers[0], "was lost"), 0, "{:?}", servers[0].said());
}

/// Other servers then know that nothing was lost.
#[test]
fn a_server_announces_its_end() {
    let (folder, nats) = (Folder::new(), Nats::start());
    let mut server = pusher(&folder, "a", &nats.url());
    wait_joined(&server, 1);
    let presence = subscribed(&nats, "flatout.presence");
    server.signal(Signal::TERM);
    assert!(server.wait().success());
    let mut said = presence.lines().map_while(Result::ok);
    assert!(said.any(|line| line.contains("\"leaves\":true")));
}

#[test]
fn a_bus_without_jetstream_is_reported() {
    let (folder, nats) = (Folder::new(), Nats::start());
    let server = pusher(&folder, "a", &format!("{} history=1h", nats.url()));
    until("the reason", || has_said(&server, "cannot be joined: JetStream cannot store messages") == 1);
}

/// A new process takes a server's place while others publish: its subscribers get each message once.
#[test]
fn an_upgrade_loses_no_messages_of_the_bus() {
    let (folder, nats) = (Folder::new(), Nats::start());
    let admin = folder.0.join("admin");
    folder.write(
        "site.kdl",
        format!(
            "listen \"127.0.0.1:0\"\nworkers 2\nadmin \"unix:{}\"\nbus \"{}\"\nroute \"/live\" {{\n    push\n    \
             push-token secret\n    push-history 20000\n    push-lag 100000\n}}\n",
            admin.display(),
            nats.url()
        ),
    );
    let mut command = Command::new(program("flatout"));
    command.arg("serve").arg("-c").arg(folder.0.join("site.kdl"));
    let server = Server::start(command);
    let other = pusher(&folder, "b", &nats.url());
    [&server, &other].into_iter().for_each(|server| wait_joined(server, 1));
    let listeners = [Way::Events, Way::WebSocket].map(|way| Listener::start(&place(&server), "a", way, ""));
    let is_over = Arc::new(AtomicUsize::new(0));
    let (over, publishing) = (is_over.clone(), place(&other));
    let publisher = thread::spawn(move || {
        let mut from = 0;
        while over.load(Ordering::SeqCst) == 0 {
            publishing.publish("a", &texts("one", from..from + 10));
            from += 10;
        }
        from
    });
    listeners.iter().for_each(|listener| drop(listener.wait(200)));
    let mut command = Command::new(program("flatout"));
    let upgraded = said(
        command.arg("upgrade").arg("--admin").arg(format!("unix:{}", admin.display())).output().unwrap(),
    );
    let pid = upgraded.split_whitespace().nth(1).and_then(|pid| pid.parse().ok()).and_then(Pid::from_raw);
    let _next = Orphan(pid.unwrap_or_else(|| panic!("{upgraded}")));
    let heard = listeners[0].heard().len();
    listeners[0].wait(heard + 200);
    is_over.store(1, Ordering::SeqCst);
    let count = publisher.join().unwrap();
    for listener in &listeners {
        check(&listener.wait(count), &[("one", count)], &format!("{:?}", listener.way));
    }
}

/// A process that replaced another one and is not a child of the test; killed on drop.
struct Orphan(Pid);

impl Drop for Orphan {
    fn drop(&mut self) {
        let _ = kill_process(self.0, Signal::KILL);
    }
}

/// The link to one server is cut: both sides continue, and agree again afterwards.
#[test]
fn a_broken_link_is_detected_and_recovered() {
    let Some(link) = Link::new() else { return };
    let (folder, nats) = (Folder::new(), Nats::at("198.18.9.1", ""));
    let here = pusher(&folder, "a", &nats.url());
    let socket = folder.0.join("b.http");
    let mut command = Command::new("ip");
    command.args(["netns", "exec", &link.0]).arg(program("flatout"));
    command.args(["serve", "--push", "/live", "--push-token", "secret", "--push-history", "20000"]);
    command.args(["--push-lag", "100000", "--bus", &nats.url(), "--admin"]);
    command.arg(format!("unix:{}", folder.0.join("b").display()));
    command.arg("--listen").arg(format!("unix:{}", socket.display()));
    let there = Server::start(command);
    [&here, &there].into_iter().for_each(|server| wait_joined(server, 1));
    let places = [place(&here), Place::unix(&socket)];
    let listeners = places.each_ref().map(|place| WAYS.map(|way| Listener::start(place, "a", way, "")));
    places[0].publish("a", &texts("one", 0..50));
    places[1].publish("a", &texts("two", 0..50));
    listeners.iter().flatten().for_each(|listener| drop(listener.wait(100)));
    link.ip(&["link", "set", "v9", "down"]);
    places[1].publish("a", &texts("two", 50..100));
    until("that it is lost", || has_said(&there, "was lost") == 1);
    for listener in &listeners[1] {
        assert_eq!(listener.wait(150).len(), 150, "local ones go on");
    }
    link.ip(&["link", "set", "v9", "up"]);
    wait_joined(&there, 2);
    places[0].publish("a", &texts("one", 50..100));
    // The server at this side was not cut off: it gets all.
    for listener in &listeners[0] {
        check(&listener.wait(200), &[("one", 100), ("two", 100)], "here");
    }
    for listener in &listeners[1] {
        check(&listener.wait(200), &[("one", 100), ("two", 100)], "nothing was published here meanwhile");
    }
}

#[expect(clippy::print_stderr, reason = "a test tells why it tests nothing")]
fn left_out(reason: &str) {
    eprintln!("left out: {reason}");
}

/// A network namespace joined to this one by a veth pair; removed on drop.
struct Link(String);

impl Link {
    /// `None` without the rights for it, which is said.
    fn new() -> Option<Link> {
        let link = Link(format!("flatout-bus-{}", std::process::id()));
        let made = Command::new("ip").args(["netns", "add", &link.0]).output();
        if !made.is_ok_and(|made| made.status.success()) {
            left_out("no network namespace can be made here");
            return None;
        }
        let inside = |arguments: &[&str]| link.ip(&[&["-n", link.0.as_str()][..], arguments].concat());
        link.ip(&["link", "add", "v9", "type", "veth", "peer", "name", "v9p", "netns", &link.0]);
        link.ip(&["address", "add", "198.18.9.1/30", "dev", "v9"]);
        link.ip(&["link", "set", "v9", "up"]);
        inside(&["link", "set", "lo", "up"]);
        inside(&["address", "add", "198.18.9.2/30", "dev", "v9p"]);
        inside(&["link", "set", "v9p", "up"]);
        Some(link)
    }

    fn ip(&self, arguments: &[&str]) {
        let done = Command::new("ip").args(arguments).output().unwrap();
        assert!(done.status.success(), "{arguments:?}: {}", said(done));
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["link", "del", "v9"]).output();
        let _ = Command::new("ip").args(["netns", "del", &self.0]).output();
    }
}
