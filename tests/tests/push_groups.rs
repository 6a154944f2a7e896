//! Whose channels a route has: by its site and path, or by a group. Over reloads and upgrades too.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use flatout_tests::upgrading::{orphan, upgrade};
use flatout_tests::{Answer, Folder, PATIENCE, Server, Signal, program, until};

/// A server with these sites, and its admin listener.
struct Site {
    folder: Folder,
    server: Server,
    admin: PathBuf,
}

impl Site {
    fn start(text: &str) -> Site {
        let folder = Folder::new();
        let admin = folder.0.join("admin.sock");
        write(&folder, text);
        let mut command = Command::new(program("flatout"));
        command.arg("serve").arg("-c").arg(folder.0.join("site.kdl")).stdin(Stdio::null());
        Site { server: Server::start(command), admin, folder }
    }

    fn reload(&self, text: &str) {
        write(&self.folder, text);
        let mut command = Command::new(program("flatout"));
        command.arg("reload").arg("--admin").arg(format!("unix:{}", self.admin.display()));
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }

    fn ask(&self, host: &str, line: &str, fields: &str, body: &str) -> Answer {
        let length = body.len();
        self.server.one(&format!(
            "{line} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nContent-Length: {length}\r\n{fields}\r\n{body}"
        ))
    }

    fn publish(&self, host: &str, target: &str, text: &str) -> u16 {
        self.ask(host, &format!("POST {target}"), "Authorization: Bearer secret\r\n", text).status
    }

    /// The stored messages of a channel.
    fn stored(&self, host: &str, target: &str) -> Vec<String> {
        let answer = self.ask(host, &format!("GET {target}?poll=1&since=all"), "", "");
        let messages: Vec<serde_json::Value> =
            serde_json::from_slice(&answer.body).unwrap_or_else(|_| panic!("{answer:?}"));
        messages.iter().map(|message| message["data"].as_str().unwrap_or("gap").to_owned()).collect()
    }

    fn subscribe(&self, host: &str, target: &str, fields: &str) -> BufReader<TcpStream> {
        let mut stream = self.server.connect();
        stream.set_read_timeout(Some(PATIENCE * 2)).unwrap();
        write!(stream, "GET {target} HTTP/1.1\r\nHost: {host}\r\n{fields}\r\n").unwrap();
        let mut reader = BufReader::new(stream);
        let head = until_empty(&mut reader);
        assert!(head.starts_with("HTTP/1.1 200") || head.starts_with("HTTP/1.1 101"), "{head}");
        if head.starts_with("HTTP/1.1 200") {
            assert!(until_empty(&mut reader).starts_with("retry: "));
        }
        reader
    }
}

fn write(folder: &Folder, text: &str) {
    let admin = folder.0.join("admin.sock");
    let text = format!("listen \"127.0.0.1:0\"\nworkers 2\nadmin \"unix:{}\"\n{text}", admin.display());
    folder.write("site.kdl", text);
}

/// Lines up to an empty one, or to the end.
fn until_empty(reader: &mut impl BufRead) -> String {
    let (mut text, mut line) = (String::new(), String::new());
    while line != "\r\n" && line != "\n" {
        line.clear();
        if reader.read_line(&mut line).unwrap() == 0 {
            break;
        }
        text.push_str(&line);
    }
    text
}

/// The next event; heartbeats are left out.
fn event(reader: &mut impl BufRead) -> String {
    loop {
        let text = until_empty(reader);
        if text != ":\n\n" {
            return text;
        }
    }
}

/// A route with channels.
fn route(path: &str, settings: &str) -> String {
    format!("route \"{path}\" {{\n    push\n    push-token secret\n    {settings}\n}}\n")
}

const TWO_SITES: &str = "site a.example {\n    route \"/live\" {\n        push\n        push-token secret\n        push-secret key\n    }\n}\n\
                         site b.example {\n    route \"/live\" {\n        push\n        push-token secret\n    }\n}\n";

/// A JWT (HS256) for all channels with these claims, signed by openssl.
fn token(claims: &str) -> String {
    let script = "b() { base64 -w0 | tr '+/' '-_' | tr -d '='; }; h=$(printf %s '{\"alg\":\"HS256\"}' | b); \
                  c=$(printf %s \"$1\" | b); printf %s \"$h.$c.\"; printf %s \"$h.$c\" | openssl dgst -sha256 -hmac key -binary | b";
    let claims = format!("{{\"channels\":[\"*\"],{claims}}}");
    let output = Command::new("sh").args(["-c", script, "sh", &claims]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_route_without_a_secret_does_not_open_the_channels_of_another_site() {
    let site = Site::start(TWO_SITES);
    let secret = site.ask("a.example", "GET /live/a?poll=1&since=all", "", "");
    assert_eq!(secret.status, 403);
    let field = format!("Authorization: Bearer {}\r\n", token("\"exp\":4000000000"));
    let mut inside = site.subscribe("a.example", "/live/a", &field);
    let mut outside = site.subscribe("b.example", "/live/a", "");
    assert_eq!(site.publish("b.example", "/live/a", "from b"), 200);
    assert_eq!(site.publish("a.example", "/live/a", "from a"), 200);
    assert!(event(&mut outside).ends_with("data: from b\n\n"));
    assert!(event(&mut inside).ends_with("data: from a\n\n"), "nothing of the other site before");
    assert_eq!(site.stored("b.example", "/live/a"), ["from b"]);
    assert_eq!(site.ask("b.example", "GET /live/a?presence=1", "", "").text(), "{\"a\":1}");
    // The group is chosen by the URL, or by the site.
    for (host, id) in [("b.example", "b2"), ("a.example", "a2")] {
        let mut command = Command::new(program("flatout"));
        let url = format!("http://{}/live/a", site.server.address);
        let output =
            command.args(["publish", &url, "--host", host, "--token", "secret", id]).output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }
    assert!(event(&mut outside).ends_with("data: b2\n\n"));
    assert!(event(&mut inside).ends_with("data: a2\n\n"));
}

#[test]
fn routes_of_one_group_have_the_same_channels() {
    let text =
        format!("{}{}{}", route("/in", "push-group g"), route("/out", "push-group g"), route("/own", ""));
    let site = Site::start(&text);
    assert_eq!(site.publish("t", "/in/a", "1"), 200);
    assert_eq!(site.publish("t", "/own/a", "2"), 200);
    let found = ["/in/a", "/out/a", "/own/a"].map(|target| site.stored("t", target));
    assert_eq!(found, [["1"], ["1"], ["2"]]);
    let metrics = std::os::unix::net::UnixStream::connect(&site.admin).map(|mut stream| {
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
        std::io::read_to_string(stream).unwrap()
    });
    let metrics = metrics.unwrap();
    for line in
        ["flatout_push_group_channels{group=\"g\"} 1", "flatout_push_group_channels{group=\"* /own\"} 1"]
    {
        assert!(metrics.lines().any(|found| found == line), "{line}: {metrics}");
    }
}

#[test]
fn a_message_for_a_channel_of_another_kind_is_refused() {
    let text = format!(
        "{}{}",
        route("/log", "push-group g"),
        route("/latest", "push-group g\n    push-kind latest")
    );
    let site = Site::start(&text);
    assert_eq!(site.publish("t", "/log/a", "1"), 200);
    assert_eq!(site.publish("t", "/latest/a?key=k", "2"), 409);
    assert_eq!(site.ask("t", "GET /latest/a", "", "").status, 409);
    assert_eq!(site.publish("t", "/latest/b?key=k", "3"), 200);
    assert_eq!(site.publish("t", "/log/b", "4"), 409);
    assert_eq!(
        (site.stored("t", "/log/a"), site.stored("t", "/latest/b")),
        (vec!["1".into()], vec!["3".into()])
    );
}

#[test]
fn check_warns_of_routes_with_different_access_to_one_group() {
    let folder = Folder::new();
    let check = |text: &str| {
        folder.write("site.kdl", text);
        let output =
            Command::new(program("flatout")).arg("check").arg(folder.0.join("site.kdl")).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let two = |one: &str, other: &str| {
        check(&format!(
            "{}{}",
            route("/a", &format!("push-group g\n{one}")),
            route("/b", &format!("push-group g\n{other}"))
        ))
    };
    for (one, other, name) in [
        ("push-secret key", "", "push-secret"),
        ("push-secret key", "push-secret other", "push-secret"),
        ("", "push-origin \"*\"", "push-origin"),
        ("", "push-kind latest", "push-kind"),
    ] {
        let said = two(one, other);
        assert!(said.contains(&format!("but another {name};")) && said.contains("on line 1"), "{said}");
    }
    for said in [two("push-secret key", "push-secret key"), check(TWO_SITES)] {
        assert!(!said.contains("warning"), "{said}");
    }
    folder.write("site.kdl", route("/a", "push-group \"a b\""));
    let output =
        Command::new(program("flatout")).arg("check").arg(folder.0.join("site.kdl")).output().unwrap();
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("got `a b`, need 1 to 64 letters"),
        "{output:?}"
    );
}

#[test]
fn a_reload_ends_subscribers_of_removed_groups_and_no_others() {
    let keep = route("/keep", "");
    let site = Site::start(&format!("{keep}{}{}", route("/gone", ""), route("/moved", "push-group g")));
    let mut kept = site.subscribe("t", "/keep/a", "");
    let mut gone = site.subscribe("t", "/gone/a", "");
    let mut moved = site.subscribe("t", "/moved/a", "");
    for path in ["/keep/a", "/gone/a", "/moved/a"] {
        assert_eq!(site.publish("t", path, "1"), 200);
    }
    for reader in [&mut kept, &mut gone, &mut moved] {
        assert!(event(reader).ends_with("data: 1\n\n"));
    }
    let poll = std::thread::scope(|scope| {
        let poll = scope.spawn(|| site.ask("t", "GET /gone/b?poll=1", "", ""));
        until("the poll", || site.ask("t", "GET /gone/b?presence=1", "", "").text() == "{\"b\":1}");
        // The path of a route with a group may change.
        site.reload(&format!("{keep}{}", route("/new", "push-group g")));
        poll.join().unwrap()
    });
    assert_eq!(poll.status, 404, "{poll:?}");
    assert_eq!(
        event(&mut gone),
        "event: end\ndata: {\"code\":1001,\"reason\":\"these channels were removed\"}\n\n"
    );
    assert_eq!(event(&mut gone), "", "closed");
    assert_eq!(site.ask("t", "GET /gone/a", "", "").status, 404);
    for (path, reader) in [("/keep/a", &mut kept), ("/new/a", &mut moved)] {
        assert_eq!(site.publish("t", path, "2"), 200);
        assert!(event(reader).ends_with("data: 2\n\n"), "{path}");
    }
    // When the route comes back, its channels are empty.
    site.reload(&format!("{keep}{}", route("/gone", "")));
    assert_eq!(site.publish("t", "/gone/a", "3"), 200);
    assert_eq!(site.stored("t", "/gone/a"), ["3"]);
    assert_eq!(site.stored("t", "/keep/a"), ["1", "2"]);
}

#[test]
fn groups_keep_their_channels_over_an_upgrade() {
    let mut site = Site::start(&format!("{}{}", TWO_SITES, route("/gone", "")));
    let mut reader = site.subscribe("b.example", "/live/a", "");
    let field = format!("Authorization: Bearer {}\r\n", token("\"exp\":4000000000"));
    let mut inside = site.subscribe("a.example", "/live/a", &field);
    for (host, text) in [("a.example", "a1"), ("b.example", "b1")] {
        assert_eq!(site.publish(host, "/live/a", text), 200);
    }
    write(&site.folder, TWO_SITES);
    let said = upgrade(&site.admin).unwrap();
    assert!(said.contains("; 2 subscribers were handed over, 0 were asked to reconnect"), "{said}");
    let _next = orphan(&said);
    assert!(site.server.wait().success());
    for (host, text) in [("a.example", "a2"), ("b.example", "b2")] {
        assert_eq!(site.publish(host, "/live/a", text), 200);
    }
    for (reader, name) in [(&mut reader, "b"), (&mut inside, "a")] {
        for number in [1, 2] {
            let event = event(reader);
            assert!(event.ends_with(&format!("data: {name}{number}\n\n")), "{event}");
        }
    }
    assert_eq!(site.stored("b.example", "/live/a"), ["b1", "b2"]);
}

const WEBSOCKET: &str = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
                         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";

fn now() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs()
}

/// What a subscription with a token ends with, by every transport. Some subscribers are handed over to a new process before.
#[test]
fn a_subscription_ends_with_its_token() {
    for is_upgraded in [false, true] {
        // This client answers no pings.
        let settings = "push-poll-time \"5m\"\npush-heartbeat \"5m\"\n";
        let mut site = Site::start(&format!("{settings}{TWO_SITES}"));
        // Time to subscribe, and to upgrade, on a slow machine.
        let seconds = if is_upgraded { 40 } else { 15 };
        let (short, long) = (token(&format!("\"exp\":{}", now() + seconds)), token("\"exp\":4000000000"));
        let target = |token: &str| format!("/live/a?token={token}");
        let mut events = site.subscribe("a.example", &target(&short), "");
        let mut websocket = site.subscribe("a.example", &target(&short), WEBSOCKET);
        let mut stays = site.subscribe("a.example", &target(&long), "");
        let mut process = None;
        if is_upgraded {
            let said = upgrade(&site.admin).unwrap();
            assert!(said.contains("; 3 subscribers were handed over"), "{said}");
            process = Some(orphan(&said));
            assert!(site.server.wait().success());
        }
        let mut command = Command::new("curl");
        command.args(["--silent", "--no-buffer", "--http2-prior-knowledge", "--max-time", "120"]);
        command.args(["--header", "Host: a.example"]).stdout(Stdio::piped());
        let stream =
            command.arg(format!("http://{}{}", site.server.address, target(&short))).spawn().unwrap();
        let poll = site.ask("a.example", &format!("GET {}&poll=1", target(&short)), "", "");
        assert_eq!((poll.status, poll.text()), (403, "the token has expired\n".to_owned()));
        assert!(poll.field("last-event-id").is_some(), "a new token continues there: {poll:?}");
        let expected = "event: end\ndata: {\"code\":3000,\"reason\":\"the token has expired\"}\n\n";
        assert_eq!(event(&mut events), expected);
        assert_eq!(event(&mut events), "", "closed");
        let mut closed = Vec::new();
        std::io::Read::read_to_end(&mut websocket, &mut closed).unwrap();
        let mut frame = vec![0x88, 23, 0x0b, 0xb8];
        frame.extend_from_slice(b"the token has expired");
        assert!(closed.ends_with(&frame), "{closed:?}");
        let output = stream.wait_with_output().unwrap();
        assert!(output.status.success(), "{output:?}");
        assert!(String::from_utf8_lossy(&output.stdout).ends_with(expected), "{output:?}");
        assert_eq!(site.ask("a.example", &format!("GET {}", target(&short)), "", "").status, 403);
        assert_eq!(site.publish("a.example", "/live/a", "1"), 200);
        assert!(event(&mut stays).ends_with("data: 1\n\n"), "its token is still good");
        if let Some(process) = process {
            process.signal(Signal::TERM);
        }
    }
}
