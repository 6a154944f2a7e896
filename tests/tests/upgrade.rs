//! `flatout upgrade` from outside: a new process replaces the old one, and connected clients do not notice.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use flatout_tests::authority::self_sign;
use flatout_tests::upgrading::{Installed, orphan, upgrade};
use flatout_tests::{Folder, PATIENCE, Server, Signal, program, until};
use rustix::process::{Pid, test_kill_process};

/// A site with channels below `/live` and an admin listener, and its folder.
fn site() -> (Folder, PathBuf) {
    let folder = Folder::new();
    let admin = folder.0.join("admin.sock");
    let text = format!(
        "listen \"127.0.0.1:0\"\nworkers 2\nadmin \"unix:{}\"\nroute \"/live\" {{\n    push\n    push-token secret\n    \
         push-history 4000\n}}\nroute \"/\" {{\n    respond 200 \"hello\"\n}}\n",
        admin.display()
    );
    folder.write("site.kdl", text);
    (folder, admin)
}

fn start(program: &Path, folder: &Folder) -> Server {
    let mut command = Command::new(program);
    command.arg("serve").arg("-c").arg(folder.0.join("site.kdl")).stdin(Stdio::null());
    Server::start(command)
}

/// A client that asks for channels.
fn subscribe(address: SocketAddr, target: &str, is_websocket: bool) -> BufReader<TcpStream> {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let fields = match is_websocket {
        true => {
            "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
             Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
        }
        false => "",
    };
    stream.write_all(format!("GET {target} HTTP/1.1\r\nHost: t\r\n{fields}\r\n").as_bytes()).unwrap();
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    while line != "\r\n" {
        line.clear();
        assert!(reader.read_line(&mut line).unwrap() > 0, "closed before the end of the head");
    }
    reader
}

/// The message numbers received on this connection, in order, up to and including `last`.
fn numbers(reader: &mut BufReader<TcpStream>, is_websocket: bool, last: usize) -> Vec<usize> {
    let (mut found, mut text) = (Vec::new(), Vec::new());
    while found.last() != Some(&last) {
        text.clear();
        if is_websocket {
            let mut header = [0; 2];
            reader.read_exact(&mut header).unwrap();
            let mut length = usize::from(header[1]);
            assert!(header[0] == 0x81 && length < 127, "{header:?} after {found:?}");
            if length == 126 {
                reader.read_exact(&mut header).unwrap();
                length = usize::from(u16::from_be_bytes(header));
            }
            text.resize(length, 0);
            reader.read_exact(&mut text).unwrap();
        } else {
            assert!(reader.read_until(b'\n', &mut text).unwrap() > 0, "closed after {:?}", found.last());
        }
        let text = String::from_utf8_lossy(&text);
        assert!(!text.contains("gap"), "{text}");
        if let Some((_, number)) = text.split_once("\"seq\":") {
            found.push(number.split('}').next().unwrap().parse().unwrap());
        }
    }
    found
}

/// Publishes messages over one connection, for as long as the server keeps it open.
struct Publisher {
    address: SocketAddr,
    stream: Option<BufReader<TcpStream>>,
}

impl Publisher {
    fn publish(&mut self, number: usize) {
        // A draining server closes connections that wait for a request, and does not read what arrives then.
        for _ in 0..3 {
            if self.try_publish(number).is_some() {
                return;
            }
            self.stream = None;
        }
        panic!("message {number} was not published");
    }

    fn try_publish(&mut self, number: usize) -> Option<()> {
        let stream = self.stream.get_or_insert_with(|| {
            let stream = TcpStream::connect(self.address).unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            BufReader::new(stream)
        });
        let body = format!("{{\"seq\":{number}}}");
        let length = body.len();
        let head = format!(
            "POST /live/a HTTP/1.1\r\nHost: t\r\nAuthorization: Bearer secret\r\nContent-Type: application/json\r\n\
             Content-Length: {length}\r\n\r\n"
        );
        stream.get_mut().write_all((head + &body).as_bytes()).ok()?;
        let (mut line, mut head) = (String::new(), String::new());
        while line != "\r\n" {
            line.clear();
            if stream.read_line(&mut line).unwrap_or(0) == 0 {
                assert!(head.is_empty(), "half a response: {head}");
                return None;
            }
            head.push_str(&line);
        }
        assert!(head.starts_with("HTTP/1.1 200 "), "message {number}: {head}");
        let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: ")).unwrap();
        let mut body = vec![0; length.parse().unwrap()];
        stream.read_exact(&mut body).unwrap();
        if head.contains("Connection: close") {
            self.stream = None;
        }
        Some(())
    }
}

fn wait_for_subscribers(server: &Server, count: usize) {
    until("subscribers", || server.get("/live/a?presence=1", "").text() == format!("{{\"a\":{count}}}"));
}

/// Ten new processes while messages keep coming: each subscriber gets every message once, on a single connection.
#[test]
fn ten_thousand_messages_over_ten_upgrades() {
    const MESSAGES: usize = 10_000;
    const UPGRADES: usize = 10;
    const EACH: usize = 20;
    let (folder, admin) = site();
    let mut server = start(&program("flatout"), &folder);
    let mut clients: Vec<(BufReader<TcpStream>, bool)> = Vec::new();
    for _ in 0..EACH {
        clients.push((subscribe(server.address, "/live/a", false), false));
        clients.push((subscribe(server.address, "/live/a,b", false), false));
        clients.push((subscribe(server.address, "/live/a", true), true));
    }
    wait_for_subscribers(&server, 3 * EACH);
    let (published, slowest) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let mut orphans = Vec::new();
    thread::scope(|scope| {
        let readers: Vec<_> = clients
            .iter_mut()
            .map(|(reader, is_websocket)| scope.spawn(move || numbers(reader, *is_websocket, MESSAGES)))
            .collect();
        let address = server.address;
        let (published, slowest) = (&published, &slowest);
        scope.spawn(move || {
            let mut publisher = Publisher { address, stream: None };
            for number in 1..=MESSAGES {
                let began = Instant::now();
                publisher.publish(number);
                slowest.fetch_max(began.elapsed().as_millis() as usize, Ordering::Relaxed);
                published.store(number, Ordering::Relaxed);
                // The pace: without it, everything would be published before the second upgrade.
                thread::sleep(Duration::from_millis(1));
            }
        });
        for round in 1..=UPGRADES {
            let due = round * MESSAGES / (UPGRADES + 1);
            until("messages", || published.load(Ordering::Relaxed) >= due);
            let said = upgrade(&admin).unwrap();
            let everybody = format!("; {} subscribers were handed over, 0 were asked to reconnect", 3 * EACH);
            assert!(said.contains(&everybody), "{said}");
            orphans.push(orphan(&said));
            if round == 1 {
                assert!(server.wait().success());
            } else {
                let former = &orphans[round - 2];
                until("the former process ends", || !former.is_there());
            }
        }
        let expected: Vec<usize> = (1..=MESSAGES).collect();
        for reader in readers {
            assert_eq!(reader.join().unwrap(), expected);
        }
    });
    let slowest = slowest.into_inner();
    assert!(slowest < 15_000, "a publish took {slowest} ms");
    assert_eq!(server.get("/live/a?presence=1", "").text(), format!("{{\"a\":{}}}", 3 * EACH));
    // The last one closes them, as any server does.
    orphans.last().unwrap().signal(Signal::TERM);
    for (reader, is_websocket) in &mut clients {
        let mut rest = Vec::new();
        reader.read_to_end(&mut rest).unwrap();
        let goodbye: &[u8] =
            if *is_websocket { b"\x03\xf4the server is restarting" } else { b"\"code\":1012" };
        assert!(rest.windows(goodbye.len()).any(|window| window == goodbye), "{rest:?}");
    }
}

/// Programs that are not successors: the old process reports why, and continues.
#[test]
fn a_program_that_does_not_take_over_changes_nothing() {
    let (folder, admin) = site();
    let copy = Installed::new();
    let server = start(&copy.0, &folder);
    let mut reader = subscribe(server.address, "/live/a", false);
    wait_for_subscribers(&server, 1);
    let mut publisher = Publisher { address: server.address, stream: None };
    copy.replace("#!/bin/sh\nexit 3\n");
    let why = upgrade(&admin).unwrap_err();
    assert!(why.contains("the new program did not take over: it has ended"), "{why}");
    publisher.publish(1);
    // A program that neither responds nor exits.
    copy.replace(&format!("#!/bin/sh\necho $$ > {}\nexec sleep 600\n", folder.0.join("pid").display()));
    let why = upgrade(&admin).unwrap_err();
    assert!(why.contains("the new program did not take over: it did not respond in time"), "{why}");
    let pid: i32 = fs::read_to_string(folder.0.join("pid")).unwrap().trim().parse().unwrap();
    assert!(test_kill_process(Pid::from_raw(pid).unwrap()).is_err(), "it was ended");
    publisher.publish(2);
    fs::remove_file(&copy.0).unwrap();
    let why = upgrade(&admin).unwrap_err();
    assert!(why.contains("the new process could not be started"), "{why}");
    publisher.publish(3);
    // The right program, but it rejects the file.
    fs::hard_link(program("flatout"), &copy.0).unwrap();
    let good = fs::read_to_string(folder.0.join("site.kdl")).unwrap();
    folder.write("site.kdl", "listne 1\n");
    let why = upgrade(&admin).unwrap_err();
    assert!(why.contains("listne"), "{why}");
    folder.write("site.kdl", good.replace("workers 2", "workers 3"));
    let why = upgrade(&admin).unwrap_err();
    assert!(why.contains("workers: got 3, but the process to be replaced has 2"), "{why}");
    publisher.publish(4);
    folder.write("site.kdl", good);
    let said = upgrade(&admin).unwrap();
    let orphan = orphan(&said);
    publisher.publish(5);
    assert_eq!(numbers(&mut reader, false, 5), [1, 2, 3, 4, 5]);
    drop(orphan);
}

/// Without an admin listener, a signal is used. The new process serves what the file says now, at the addresses in
/// it.
#[test]
fn a_signal_is_enough_and_the_new_process_reads_the_file() {
    let folder = Folder::new();
    let text = |response: &str| {
        format!("listen \"127.0.0.1:0\"\nroute \"/\" {{\n    respond 200 \"{response}\"\n}}\n")
    };
    folder.write("site.kdl", text("old"));
    let mut server = start(&program("flatout"), &folder);
    let mut idle = server.connect();
    assert_eq!(server.get("/", "").text(), "old");
    folder.write("site.kdl", text("new"));
    server.signal(Signal::USR2);
    until("the new process", || server.said().iter().any(|said| said.contains("has taken over")));
    assert!(server.wait().success());
    let said = server.said().into_iter().find(|said| said.contains("has taken over")).unwrap();
    let orphan = orphan(&said);
    assert_eq!(server.get("/", "").text(), "new");
    // A connection without a request was closed cleanly.
    assert_eq!(idle.read(&mut [0]).unwrap(), 0);
    orphan.signal(Signal::TERM);
    until("it ends", || !orphan.is_there());
    assert!(TcpStream::connect(server.address).is_err());
}

/// Subscribers over TLS are asked to reconnect, and miss nothing.
#[test]
fn encrypted_subscribers_come_back_without_a_gap() {
    let folder = Folder::new();
    let path = |name: &str| folder.0.join(name).display().to_string();
    self_sign(&folder);
    let admin = folder.0.join("admin.sock");
    let mut command = Command::new(program("flatout"));
    command.args(["serve", "--push", "/live", "--push-token", "secret", "--workers", "2"]);
    command.args(["--listen", "127.0.0.1:0", "--listen-plain", "127.0.0.1:0"]);
    command.args(["--tls", &path("cert.pem"), &path("key.pem")]);
    command.arg("--admin").arg(format!("unix:{}", admin.display()));
    let mut server = Server::start(command);
    let port = server.secure_port.unwrap();
    let curl = |fields: &[&str]| {
        let mut command = Command::new("curl");
        command.args(["--silent", "--no-buffer", "--insecure", "--http1.1", "--max-time", "30"]).args(fields);
        command.arg(format!("https://127.0.0.1:{port}/live/a")).stdout(Stdio::piped()).spawn().unwrap()
    };
    let client = curl(&[]);
    wait_for_subscribers(&server, 1);
    let mut publisher = Publisher { address: server.address, stream: None };
    publisher.publish(1);
    let said = upgrade(&admin).unwrap();
    assert!(said.contains("; 0 subscribers were handed over, 1 were asked to reconnect"), "{said}");
    let orphan = orphan(&said);
    publisher.publish(2);
    let output = client.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("event: end\ndata: {\"code\":1012,"), "{text}");
    assert!(text.contains("{\"seq\":1}") && !text.contains("{\"seq\":2}"), "{text}");
    assert!(server.wait().success());
    let id = text.lines().filter_map(|line| line.strip_prefix("id: ")).next_back().unwrap();
    let mut client = curl(&["--header", &format!("Last-Event-ID: {id}")]);
    let mut lines = BufReader::new(client.stdout.take().unwrap()).lines().map_while(Result::ok);
    let found = lines.find(|line| line.contains("seq") || line.contains("gap"));
    assert_eq!(found.unwrap(), "data: {\"seq\":2}");
    client.kill().unwrap();
    client.wait().unwrap();
    drop(orphan);
}

/// Streams of HTTP/2 cannot move: their subscribers hear of it, come back with the last id that they have, and miss nothing.
#[test]
fn subscribers_over_http2_reconnect_without_a_gap() {
    let (folder, admin) = site();
    let mut server = start(&program("flatout"), &folder);
    let url = format!("http://{}/live/a", server.address);
    let subscribe = |last: &str| {
        let mut command = Command::new("curl");
        command.args(["--silent", "--no-buffer", "--http2-prior-knowledge", "--max-time", "60"]);
        command.args(["--header", &format!("Last-Event-ID: {last}"), &url]);
        command.stdout(Stdio::piped()).spawn().unwrap()
    };
    let mut publisher = Publisher { address: server.address, stream: None };
    let mut first = subscribe("");
    wait_for_subscribers(&server, 1);
    publisher.publish(1);
    publisher.publish(2);
    let said = upgrade(&admin).unwrap();
    assert!(said.contains("; 0 subscribers were handed over, 1 were asked to reconnect"), "{said}");
    let _orphan = orphan(&said);
    publisher.publish(3);
    assert!(server.wait().success());
    // The response is whole, with a word, and with the time after which to come back.
    let mut text = String::new();
    first.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    assert!(first.wait().unwrap().success());
    assert!(text.starts_with("retry: ") && text.contains("\nevent: end\ndata: {\"code\":1012,"), "{text}");
    assert!(text.contains("{\"seq\":2}") && !text.contains("{\"seq\":3}"), "{text}");
    let last = text.lines().rev().find_map(|line| line.strip_prefix("id: ")).unwrap();
    let mut second = subscribe(last);
    let mut reader = BufReader::new(second.stdout.take().unwrap());
    let mut line = String::new();
    while !line.starts_with("data: ") {
        line.clear();
        assert!(reader.read_line(&mut line).unwrap() > 0);
    }
    assert_eq!(line, "data: {\"seq\":3}\n");
    second.kill().unwrap();
    second.wait().unwrap();
}
