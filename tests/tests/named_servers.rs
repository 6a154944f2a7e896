//! Servers that requests name (`named-servers`): only those of the list, by a scripted name server on loopback.

use std::collections::HashMap;
use std::io::Write;
use std::net::{SocketAddr, UdpSocket};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use flatout_tests::peers::free_port;
use flatout_tests::{Answer, Folder, Server, Signal, answers, program, read_to_close, until};

/// How often each name was asked for its IPv4 addresses.
type QueryCounts = Arc<Mutex<HashMap<String, u32>>>;

/// A name server: names that begin with `silent` get no response, those with `missing` have no address, those with `two` two, of which nobody
/// listens at one.
fn name_server() -> (SocketAddr, QueryCounts) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let (address, asked) = (socket.local_addr().unwrap(), QueryCounts::default());
    let counts = asked.clone();
    std::thread::spawn(move || {
        let mut buffer = [0; 1024];
        while let Ok((count, from)) = socket.recv_from(&mut buffer) {
            let query = &buffer[..count];
            let mut labels = Vec::new();
            let mut at = 12;
            while query[at] != 0 {
                let end = at + 1 + usize::from(query[at]);
                labels.push(String::from_utf8_lossy(&query[at + 1..end]).to_lowercase());
                at = end;
            }
            let (name, kind) = (labels.join("."), query[at + 2]);
            if kind == 1 {
                *counts.lock().unwrap().entry(name.clone()).or_default() += 1;
            }
            let addresses: &[[u8; 4]] = match () {
                () if name.starts_with("silent") => continue,
                () if kind != 1 || name.starts_with("missing") => &[],
                () if name.starts_with("two") => &[[127, 0, 0, 9], [127, 0, 0, 1]],
                () => &[[127, 0, 0, 1]],
            };
            let code = if name.starts_with("missing") { 3 } else { 0 };
            let head = [0x81, 0x80 | code, 0, 1, 0, addresses.len() as u8, 0, 0, 0, 0];
            let mut response = [&query[..2], &head, &query[12..at + 5]].concat();
            for address in addresses {
                response.extend_from_slice(&[0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4]);
                response.extend_from_slice(address);
            }
            let _ = socket.send_to(&response, from);
        }
    });
    (address, asked)
}

/// A server whose requests name others, and the port of one that they may name.
struct Named {
    folder: Folder,
    server: Server,
    port: u16,
    asked: QueryCounts,
}

fn started(hosts: &str) -> Named {
    let (folder, port, (dns, asked)) = (Folder::new(), free_port(), name_server());
    let front = free_port();
    folder.write(
        "site.kdl",
        format!(
            "workers 1\nupstream named {{ named-servers {hosts} resolver=\"{dns}\" time=\"500ms\"; }}\n\
             upstream inner {{ server \"http://127.0.0.1:{port}\"; }}\n\
             site front {{\n listen \"127.0.0.1:{front}\" default=on\n\
             route \"/host\" {{ proxy \"http://$arg_to:{port}\" others=named; proxy-host upstream; }}\n\
             route \"/kept\" {{ proxy \"http://$arg_to:{port}\" others=named; }}\n\
             route \"/any\" {{ proxy \"$arg_to\" others=named; proxy-host upstream; }}\n\
             route \"/among\" {{ proxy \"http://$arg_to\" among=inner others=named; }}\n\
             route \"/cached\" {{ proxy \"http://$arg_to:{port}\" others=named; cache \"1h\"; cache-key \"one\"; }}\n}}\n\
             site back {{\n listen \"127.0.0.1:{port}\" default=on\n\
             route \"/\" {{ respond 200 \"$http_host $request_uri $random_id\"; }}\n}}\n"
        ),
    );
    let mut command = Command::new(program("flatout"));
    command.arg("serve").arg("-c").arg(folder.0.join("site.kdl")).stdin(Stdio::null());
    Named { server: Server::start(command), folder, port, asked }
}

impl Named {
    fn got(&self, target: &str) -> Answer {
        self.server.get(target, "")
    }

    /// What the server saw: Host and target.
    fn seen(&self, target: &str) -> String {
        let answer = self.got(target);
        assert_eq!(answer.status, 200, "{target}: {}", answer.text());
        let text = answer.text();
        text.rsplit_once(' ').map_or(text.clone(), |(seen, _)| seen.to_owned())
    }
}

#[test]
fn requests_reach_only_servers_that_they_may_name() {
    let named = started("\"*.internal\" \"127.0.0.1\"");
    let port = named.port;
    assert_eq!(named.seen("/host?to=a.internal"), format!("a.internal:{port} /host?to=a.internal"));
    assert_eq!(named.seen("/host?to=A.Internal"), format!("A.Internal:{port} /host?to=A.Internal"));
    assert_eq!(named.seen("/host?to=127.0.0.1"), format!("127.0.0.1:{port} /host?to=127.0.0.1"));
    assert_eq!(named.seen("/kept?to=a.internal"), "t /kept?to=a.internal");
    assert_eq!(
        named.seen(&format!("/any?to=http://a.internal:{port}/x/y")),
        format!("a.internal:{port} /x/y")
    );
    assert_eq!(named.seen("/among?to=inner"), "t /among?to=inner");
    assert_eq!(named.got("/among?to=named").status, 502);
    for target in [
        "/host?to=b.example",
        "/host?to=internal",
        "/host?to=127.0.0.2",
        "/host?to=localhost",
        "/host?to=missing.internal",
        "/host?to=",
        "/host",
        "/host?to=a.internal:1",
        "/host?to=a.internal@b",
        "/host?to=a.internal%0d%0aX:%20y",
        "/any?to=unix:/run/app.sock",
        "/any?to=http://unix:/run/app.sock:/",
        "/any?to=ftp://a.internal",
        "/any?to=named",
        "/any?to=http://named",
        "/any?to=inner",
        "/any?to=http://inner",
    ] {
        let answer = named.got(target);
        assert_eq!(answer.status, 502, "{target}: {}", answer.text());
    }
    let asked = named.asked.lock().unwrap();
    assert_eq!(asked.get("a.internal"), Some(&1), "known for its time: {asked:?}");
    let others = ["b.example", "internal", "localhost"];
    assert!(others.iter().all(|name| !asked.contains_key(*name)), "never asked: {asked:?}");
}

#[test]
fn lookups_have_a_limit_and_all_addresses_are_tried() {
    let named = started("\"*\"");
    let began = Instant::now();
    assert_eq!(named.got("/host?to=silent.test").status, 502);
    assert!((Duration::from_millis(400)..Duration::from_secs(8)).contains(&began.elapsed()));
    // Each time, another address is the first.
    for _ in 0..4 {
        named.seen("/host?to=two.test");
    }
    // The cache does not mix servers, although the key of the operator is the same.
    let [a, again, b] =
        ["a.test", "a.test", "b.test"].map(|to| named.got(&format!("/cached?to={to}")).text());
    assert!(a == again && a != b, "{a} {again} {b}");
}

#[test]
fn uploads_that_began_before_a_reload_reach_the_servers_that_they_name() {
    let named = started("\"*.internal\"");
    let mut upload = named.server.connect();
    let head =
        "POST /host?to=late.internal HTTP/1.1\r\nHost: t\r\nConnection: close\r\nContent-Length: 10\r\n\r\n";
    upload.write_all(format!("{head}first").as_bytes()).unwrap();
    named.seen("/host?to=a.internal");
    let path = named.folder.0.join("site.kdl");
    let text = std::fs::read_to_string(&path).unwrap();
    named.folder.write("site.kdl", format!("{text}upstream more {{ server \"127.0.0.1:1\"; }}\n"));
    named.server.signal(Signal::HUP);
    until("it is reloaded", || named.server.said().iter().any(|line| line.contains("reloaded ")));
    // From here on, the worker serves the new configuration.
    named.seen("/host?to=a.internal");
    upload.write_all(b" last").unwrap();
    let found = answers(&read_to_close(&mut upload), false);
    assert_eq!(found[0].status, 200, "{}", found[0].text());
}

#[test]
fn servers_that_are_unused_are_forgotten() {
    let named = started("\"*.test\"");
    for round in 0..2 {
        for at in 0..300 {
            named.seen(&format!("/host?to=n{at}.test"));
        }
        assert!(named.asked.lock().unwrap().get("n0.test").is_some_and(|count| *count <= round + 1));
    }
}

#[test]
fn the_page_of_an_error_says_which_servers_were_asked() {
    let (folder, closed) = (Folder::new(), [free_port(), free_port()]);
    let [one, other] = closed;
    folder.write(
        "site.kdl",
        format!(
            "listen \"127.0.0.1:0\"\nworkers 1\n\
             upstream down {{ server \"127.0.0.1:{one}\"; server \"127.0.0.1:{other}\"; }}\n\
             route \"/down\" {{ proxy down; error-page 502 to=\"/page\"; }}\n\
             route \"/page\" {{ respond 200 \"$status|$upstream_status|$upstream_addr|$host\"; }}\n"
        ),
    );
    let mut command = Command::new(program("flatout"));
    command.arg("serve").arg("-c").arg(folder.0.join("site.kdl")).stdin(Stdio::null());
    let server = Server::start(command);
    let answer = server.get("/down", "");
    let text = answer.text();
    let either = [(one, other), (other, one)]
        .map(|(first, then)| format!("502|502, 502|127.0.0.1:{first}, 127.0.0.1:{then}|t"));
    assert!(answer.status == 502 && either.contains(&text), "{text}");
    let answer = server.get("/page", "");
    assert_eq!((answer.status, answer.text()), (200, "200|||t".to_owned()));
}
