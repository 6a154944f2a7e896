//! `flatout serve` with channels, from outside: flags, `flatout publish`, reloads, and the example page in a browser.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

use flatout_tests::browser::Browser;
use flatout_tests::{Folder, Server, Signal, program, until};
use rustix::process::{Pid, kill_process};

fn read_until(stream: &mut TcpStream, end: &str) -> String {
    let mut bytes = Vec::new();
    while !bytes.ends_with(end.as_bytes()) {
        let mut byte = [0];
        assert_eq!(stream.read(&mut byte).unwrap(), 1, "{}", String::from_utf8_lossy(&bytes));
        bytes.push(byte[0]);
    }
    String::from_utf8(bytes).unwrap()
}

fn subscribe(server: &Server, target: &str) -> TcpStream {
    let mut stream = server.connect();
    stream.write_all(format!("GET {target} HTTP/1.1\r\nHost: t\r\n\r\n").as_bytes()).unwrap();
    let head = read_until(&mut stream, "\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 200 ") && head.contains("\r\nConnection: close\r\n"), "{head}");
    assert!(read_until(&mut stream, "\n\n").starts_with("retry: "));
    stream
}

fn publish(server: &Server, target: &str, arguments: &[&str]) -> (bool, String) {
    let url = format!("http://{}{target}", server.address);
    let done = Command::new(program("flatout")).arg("publish").arg(url).args(arguments).output().unwrap();
    (done.status.success(), String::from_utf8_lossy(&[done.stdout, done.stderr].concat()).into_owned())
}

#[test]
fn flags_are_enough() {
    let mut command = Command::new(program("flatout"));
    command.args(["serve", "--push", "/live", "--push-token", "secret", "--listen", "127.0.0.1:0"]);
    let mut server = Server::start(command);
    let mut stream = subscribe(&server, "/live/NBA.1");
    let (is_done, said) =
        publish(&server, "/live/NBA.1", &["--token", "secret", "--event", "end of game", "12:10"]);
    assert!(is_done && said.starts_with("{\"id\":\""), "{said}");
    assert!(read_until(&mut stream, "\n\n").ends_with("event: end of game\ndata: 12:10\n\n"));
    let (is_done, said) = publish(&server, "/live/NBA.1", &["--token", "wrong", "x"]);
    assert!(!is_done && said.contains("401"), "{said}");
    assert_eq!(server.get("/", "").status, 404);
    server.signal(Signal::TERM);
    assert!(read_until(&mut stream, "\n\n").starts_with("event: end\ndata: {\"code\":1012,"));
    assert!(server.wait().success());
}

#[test]
fn subscribers_stay_over_a_reload() {
    let folder = Folder::new();
    let text = "listen \"127.0.0.1:0\"\nroute \"/live\" {\n    push\n    push-token secret\n}\n";
    folder.write("site.kdl", text);
    let mut command = Command::new(program("flatout"));
    command.arg("serve").arg("-c").arg(folder.0.join("site.kdl"));
    let server = Server::start(command);
    let mut stream = subscribe(&server, "/live/a");
    for round in 0..3 {
        folder.write("site.kdl", format!("{text}route \"/new{round}\" {{\n    respond 200 \"new\"\n}}\n"));
        server.signal(Signal::HUP);
        until("the reload", || server.get(&format!("/new{round}"), "").status == 200);
        let message = format!("message {round}");
        assert!(publish(&server, "/live/a", &["--token", "secret", &message]).0);
        assert!(read_until(&mut stream, "\n\n").ends_with(&format!("data: {message}\n\n")));
    }
}

/// One metric of an admin listener.
fn figure(socket: &Path, name: &str) -> Option<f64> {
    let mut stream = UnixStream::connect(socket).ok()?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
}

/// Bytes received but not read yet on either side of this port.
fn unread_bytes(port: u16) -> u64 {
    let text = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let of_port = format!(":{port:04X}");
    let unread = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let is_there = words[1..3].iter().any(|address| address.ends_with(&of_port));
        let (_, received) = words[4].split_once(':')?;
        is_there.then(|| u64::from_str_radix(received, 16).unwrap())
    };
    text.lines().skip(1).filter_map(unread).sum()
}

/// The counts of `flatout bench` for each transport equal what was published.
#[test]
fn bench_counts_received_messages() {
    let folder = Folder::new();
    let socket = folder.0.join("admin.sock");
    let mut command = Command::new(program("flatout"));
    command.args(["serve", "--push", "/live", "--push-token", "secret", "--listen", "127.0.0.1:0"]);
    command.args(["--admin", &format!("unix:{}", socket.display())]);
    let server = Server::start(command);
    let ways = [("http", "", "--events"), ("ws", "", "--events"), ("http", "?poll=1", "--long-poll")];
    let clients = ways.map(|(scheme, query, flag)| {
        let url = format!("{scheme}://{}/live/a{query}", server.address);
        let mut command = Command::new(program("flatout"));
        command.args(["bench", &url, flag, "-c20", "-d1m", "--json"]).stdout(Stdio::piped());
        command.spawn().unwrap()
    });
    until("sixty subscribers", || server.get("/live/a?presence=1", "").text() == "{\"a\":60}");
    let message = |number| {
        let at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros();
        format!("{{\"channel\":\"a\",\"data\":{{\"seq\":{number},\"at\":{at}}}}}")
    };
    for batch in 0..3 {
        let body = format!("[{}]", (batch * 10..batch * 10 + 10).map(message).collect::<Vec<_>>().join(","));
        let length = body.len();
        let head = "POST /live HTTP/1.1\r\nHost: t\r\nConnection: close\r\nAuthorization: Bearer secret";
        assert_eq!(server.one(&format!("{head}\r\nContent-Length: {length}\r\n\r\n{body}")).status, 200);
    }
    until("deliveries", || figure(&socket, "flatout_push_delivered_total ") == Some(60.0 * 30.0));
    until("all was read", || unread_bytes(server.address.port()) == 0);
    for client in clients {
        kill_process(Pid::from_raw(client.id() as i32).unwrap(), Signal::INT).unwrap();
        let output = client.wait_with_output().unwrap();
        let found: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(found["requests"], 20 * 30, "{found}");
        assert_eq!(found["sequence"], serde_json::json!({ "missed": 0, "repeated": 0, "gaps_reported": 0 }));
        assert!(found["latency_ns"]["max"].as_u64() > Some(0), "{found}");
    }
}

#[test]
fn values_that_are_polled_are_compressed() {
    let folder = Folder::new();
    let text = "listen \"127.0.0.1:0\"\nroute \"/quotes\" {\n    push\n    push-kind latest\n    push-token secret\n    \
                push-keys-line \"q.{key}={value};\" type=\"text/plain\"\n    encode gzip\n}\n";
    folder.write("site.kdl", text);
    let mut command = Command::new(program("flatout"));
    command.arg("serve").arg("-c").arg(folder.0.join("site.kdl"));
    let server = Server::start(command);
    let value = "1".repeat(3000);
    assert!(publish(&server, "/quotes/a", &["--token", "secret", "--key", "k", &value]).0);
    let plain = server.get("/quotes/a?keys=k", "");
    assert_eq!(String::from_utf8_lossy(&plain.body), format!("q.k=\"{value}\";\n"));
    let packed = server.get("/quotes/a?keys=k", "Accept-Encoding: gzip\r\n");
    assert_eq!(packed.field("content-encoding"), Some("gzip"));
    assert!(packed.body.len() < 100, "{}", packed.body.len());
    let same = format!("Accept-Encoding: gzip\r\nIf-None-Match: {}\r\n", packed.field("etag").unwrap());
    assert_eq!(server.get("/quotes/a?keys=k", &same).status, 304);
    // A stream of events is sent uncompressed.
    let mut stream = server.connect();
    stream.write_all(b"GET /quotes/a HTTP/1.1\r\nHost: t\r\nAccept-Encoding: gzip\r\n\r\n").unwrap();
    assert!(!read_until(&mut stream, "\r\n\r\n").contains("Content-Encoding"));
}

/// Quotes and scores arrive in the page by each transport.
#[test]
fn the_example_page_moves_by_all_three_transports() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/live");
    let mut command = Command::new(program("flatout"));
    command.arg("serve").arg("-c").arg(folder.join("site.kdl")).args(["--listen", "127.0.0.1:0"]);
    let server = Server::start(command);
    for (at, by) in ["events", "websocket", "poll"].into_iter().enumerate() {
        let Some(mut browser) = Browser::start(800, false) else { return };
        browser.visit(&format!("http://{}/?by={by}", server.address));
        let text = |browser: &mut Browser, id: &str| {
            let script = format!("document.querySelector('#{id}').textContent");
            browser.evaluate(&script).as_str().unwrap().to_owned()
        };
        until("a subscriber", || text(&mut browser, "online") == "1");
        for price in [10.5, 11.25] {
            let quote = format!("{{\"symbol\":\"s{at}\",\"price\":{price}}}");
            assert!(
                publish(
                    &server,
                    "/quotes/quotes",
                    &["--token", "demo", "--json", "--key", &format!("s{at}"), &quote]
                )
                .0
            );
            until("the price", || text(&mut browser, "quotes").contains(&format!("s{at}{price:.2}")));
        }
        let score = format!("{{\"game\":\"game {at}\",\"score\":[{at},7]}}");
        assert!(publish(&server, "/live/scores", &["--token", "demo", "--json", &score]).0);
        until("the score", || text(&mut browser, "scores").contains(&format!("game {at}{at} : 7")));
        assert_eq!(browser.poor_contrasts(), serde_json::json!([]), "{by}");
        // It sends requests to its own server only, as intended.
        let complaints = browser.complaints();
        let others: Vec<_> =
            complaints.iter().filter(|said| !said.starts_with("asks for http://127.0.0.1:")).collect();
        assert!(others.is_empty(), "{by}: {others:?}");
    }
}
