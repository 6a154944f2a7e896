//! Requests to applications over SCGI and uwsgi: good ones and broken ones, beside caches, TLS and slow clients.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use flatout_tests::authority::Authority;
use flatout_tests::{Folder, Server, program, until};

use crate::fastcgi::{curl, fetch};

pub(crate) const PROTOCOLS: [&str; 2] = ["scgi", "uwsgi"];

/// A request, of which an application has read the head.
pub(crate) struct Received {
    vars: Vec<(String, String)>,
    pub(crate) stream: TcpStream,
}

impl Received {
    pub(crate) fn var(&self, name: &str) -> &str {
        self.vars.iter().find(|(this, _)| this == name).map_or("-", |(_, value)| value)
    }

    /// Reads the body, which has the length that the variables say.
    pub(crate) fn body(&mut self) -> Vec<u8> {
        let mut body = vec![0; self.var("CONTENT_LENGTH").parse().unwrap_or(0)];
        self.stream.read_exact(&mut body).unwrap();
        body
    }

    /// Responds, and closes the connection.
    pub(crate) fn respond(mut self, response: &[u8]) {
        self.body();
        let _ = self.stream.write_all(response);
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The pairs of a netstring; the first two are those that SCGI demands.
fn scgi_vars(stream: &mut TcpStream) -> Option<Vec<(String, String)>> {
    let mut digits = Vec::new();
    loop {
        let mut byte = [0];
        stream.read_exact(&mut byte).ok()?;
        match byte {
            [b':'] => break,
            [byte] => digits.push(byte),
        }
    }
    let mut headers = vec![0; text(&digits).parse::<usize>().unwrap() + 1];
    stream.read_exact(&mut headers).ok()?;
    assert_eq!(headers.pop(), Some(b','), "the end of the netstring");
    assert_eq!(headers.pop(), Some(0));
    let words: Vec<&[u8]> = headers.split(|&byte| byte == 0).collect();
    let vars: Vec<_> = words.chunks_exact(2).map(|pair| (text(pair[0]), text(pair[1]))).collect();
    assert_eq!((vars[0].0.as_str(), vars[1].0.as_str(), vars[1].1.as_str()), ("CONTENT_LENGTH", "SCGI", "1"));
    let mut names: Vec<_> = vars.iter().map(|(name, _)| name).collect();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), vars.len(), "no name twice");
    Some(vars)
}

fn uwsgi_vars(stream: &mut TcpStream) -> Option<Vec<(String, String)>> {
    let mut header = [0; 4];
    stream.read_exact(&mut header).ok()?;
    assert_eq!((header[0], header[3]), (0, 0), "the modifiers");
    let mut bytes = vec![0; usize::from(u16::from_le_bytes([header[1], header[2]]))];
    stream.read_exact(&mut bytes).ok()?;
    let (mut rest, mut words) = (&bytes[..], Vec::new());
    while !rest.is_empty() {
        let (word, after) = rest[2..].split_at(usize::from(u16::from_le_bytes([rest[0], rest[1]])));
        words.push(text(word));
        rest = after;
    }
    Some(words.chunks_exact(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect())
}

/// An application whose connections `serve` handles, after their head was read. Its connections are counted.
pub(crate) fn application(
    protocol: &'static str,
    serve: impl Fn(Received) + Send + Sync + 'static,
) -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (connections, serve) = (Arc::new(AtomicUsize::new(0)), Arc::new(serve));
    let count = connections.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, serve) = (stream.unwrap(), serve.clone());
            count.fetch_add(1, Ordering::SeqCst);
            std::thread::spawn(move || {
                let vars = if protocol == "scgi" { scgi_vars(&mut stream) } else { uwsgi_vars(&mut stream) };
                if let Some(vars) = vars {
                    serve(Received { vars, stream });
                }
            });
        }
    });
    (address, connections)
}

fn server(folder: &Folder, protocol: &str, address: SocketAddr, settings: &str, route: &str) -> Server {
    folder.write(
        "site.kdl",
        format!(
            "listen \"127.0.0.1:0\"\nworkers 1\nupstream \"app\" {{\n  server \"{address}\"\n  protocol {protocol}\n  \
             {protocol}-param \"APP_ENV\" \"test\"\n{settings}\n}}\nsite * {{ route \"/\" {{ proxy \"app\"\n{route} }} }}\n"
        ),
    );
    let mut command = Command::new(program("flatout"));
    command.args(["serve", "-c"]).arg(folder.0.join("site.kdl"));
    Server::start(command)
}

#[test]
fn applications_get_variables_and_bodies() {
    for protocol in PROTOCOLS {
        let (address, connections) = application(protocol, |mut received| {
            let body = received.body();
            let names =
                ["REQUEST_METHOD", "SCRIPT_NAME", "PATH_INFO", "QUERY_STRING", "REQUEST_URI", "APP_ENV"];
            let vars = names.map(|name| received.var(name)).join("|");
            let response = format!("Status: 201 Created\r\nX-Powered-By: test\r\n\r\n{vars}|{}", body.len());
            received.stream.write_all(response.as_bytes()).unwrap();
        });
        let folder = Folder::new();
        let server = server(&folder, protocol, address, "", "");
        let (status, head, body) = fetch(&server, "GET", "/a%20b.php/x?c=d", b"");
        assert_eq!(status, "201", "{protocol}");
        assert!(head.to_lowercase().contains("x-powered-by: test") && !head.contains("chunked"), "{head}");
        assert_eq!(text(&body), "GET||/a b.php/x|c=d|/a%20b.php/x?c=d|test|0");
        let (_, _, body) = fetch(&server, "POST", "/posts/1", &[b'x'; 300_000]);
        assert_eq!(text(&body), "POST||/posts/1||/posts/1|test|300000");
        let chunked = "POST /c HTTP/1.1\r\nHost: t\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n";
        assert_eq!(server.one(chunked).text(), "POST||/c||/c|test|5");
        let (status, _, body) = fetch(&server, "HEAD", "/", b"");
        assert_eq!((status.as_str(), body.len()), ("201", 0));
        assert_eq!(connections.load(Ordering::SeqCst), 4, "one for each request");
    }
}

#[test]
fn responses_arrive_complete_with_and_without_a_length() {
    let body: Vec<u8> = (0..3_000_000_u32).map(|at| (at % 251) as u8).collect();
    for protocol in PROTOCOLS {
        let expected = body.clone();
        let bytes = body.clone();
        let (address, _) = application(protocol, move |mut received| {
            let has_length = received.var("QUERY_STRING") != "close";
            let length =
                if has_length { format!("Content-Length: {}\r\n", bytes.len()) } else { String::new() };
            let head = format!("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n{length}\r\n");
            received.stream.write_all(&[head.as_bytes(), &bytes].concat()).unwrap();
            if has_length {
                // More than it has announced, and a connection that it leaves open until the other side closes it.
                let _ = received.stream.write_all(b"more");
                let _ = received.stream.read_to_end(&mut Vec::new());
            }
        });
        let folder = Folder::new();
        let server = server(&folder, protocol, address, "", "");
        for target in ["/?length", "/?close", "/?length"] {
            let (status, _, found) = fetch(&server, "GET", target, b"");
            assert_eq!(status, "200");
            assert!(found == expected, "{protocol} {target}: {} bytes", found.len());
        }
    }
}

#[test]
fn broken_applications_get_a_502_and_the_next_request_is_served() {
    for protocol in PROTOCOLS {
        let (address, _) = application(protocol, |received| {
            let response: &[u8] = match received.var("QUERY_STRING") {
                "nothing" => b"",
                "garbage" => b"\x16\x03\x01\x02\n\n",
                "half" => b"Status: 200 OK\r\nX-A:",
                "line" => b"HTTP/1.1 200 OK\r\n",
                "http2" => b"HTTP/2 200\r\n\r\n",
                "switch" => b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
                "interim" => b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n\r\nhi",
                "status" => b"Status: twelve\r\n\r\nhi",
                "negative" => b"Content-Length: -1\r\n\r\nhi",
                "both" => b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nhi",
                "long" => &[b'h'; 100_000],
                _ => b"Content-Length: 2\r\n\r\nok",
            };
            received.respond(response);
        });
        let folder = Folder::new();
        let server = server(&folder, protocol, address, "", "");
        let bad = [
            "nothing", "garbage", "half", "line", "http2", "switch", "interim", "status", "negative", "both",
            "long",
        ];
        // Each is followed by a good request, so the server is never considered down.
        for what in bad {
            assert_eq!(fetch(&server, "GET", &format!("/?{what}"), b"").0, "502", "{protocol} {what}");
            assert_eq!(fetch(&server, "GET", "/", b"").2, b"ok", "{protocol} after {what}");
        }
        let said = server.said().join("\n");
        assert!(said.contains("a line of the head has no colon"), "{said}");
    }
}

#[test]
fn half_a_response_never_looks_complete() {
    for protocol in PROTOCOLS {
        let (address, _) = application(protocol, |mut received| {
            received.stream.write_all(b"Content-Length: 9\r\n\r\nhalf").unwrap();
        });
        let folder = Folder::new();
        let server = server(&folder, protocol, address, "", "");
        let mut stream = server.connect();
        stream.write_all(b"GET / HTTP/1.1\r\nHost: t\r\n\r\n").unwrap();
        let mut bytes = Vec::new();
        let _ = stream.read_to_end(&mut bytes);
        let found = text(&bytes);
        assert!(found.ends_with("half") || found.starts_with("HTTP/1.1 502"), "{protocol}: {found}");
    }
}

#[test]
fn a_response_may_come_before_the_body_is_read() {
    for protocol in PROTOCOLS {
        let (address, _) = application(protocol, |mut received| {
            let response = b"Status: 413 Content Too Large\r\nContent-Length: 5\r\n\r\nlarge";
            received.stream.write_all(response).unwrap();
            if received.var("QUERY_STRING") == "slow" {
                received.stream.shutdown(Shutdown::Write).unwrap();
                let _ = received.stream.read_to_end(&mut Vec::new());
            }
        });
        let folder = Folder::new();
        let server = server(&folder, protocol, address, "", "body-bytes \"16MiB\"");
        // Closing with data that nobody has read resets the connection.
        for target in ["/?slow", "/?reset"] {
            let (status, _, body) = fetch(&server, "POST", target, &vec![b'x'; 8 << 20]);
            assert_eq!((status.as_str(), text(&body).as_str()), ("413", "large"), "{protocol} {target}");
        }
    }
}

#[test]
fn variables_over_the_limit_of_uwsgi_are_refused() {
    // Both limits: that of all variables, and that of the length of one.
    for bytes in [65_000, 70_000] {
        let setting = |protocol: &str| format!("{protocol}-param \"BIG\" \"{}\"", "a".repeat(bytes));
        for (protocol, expected) in [("uwsgi", "502"), ("scgi", "200")] {
            let (address, connections) = application(protocol, move |received| {
                let big = received.var("BIG").len();
                received.respond(format!("Status: 200\r\n\r\n{big}").as_bytes());
            });
            let folder = Folder::new();
            let server = server(&folder, protocol, address, &setting(protocol), "");
            let long = format!("X-Long: {}\r\n", "b".repeat(6000));
            let answer = server.get("/", &long);
            assert_eq!(answer.status.to_string(), expected, "{protocol}");
            if protocol == "scgi" {
                assert_eq!(answer.text(), bytes.to_string());
                continue;
            }
            until("the log says why", || {
                server.said().iter().any(|line| line.contains("the 65535 bytes that uwsgi allows"))
            });
            assert_eq!(fetch(&server, "GET", "/", b"").0, if bytes == 65_000 { "200" } else { "502" });
            assert!(connections.load(Ordering::SeqCst) > 0);
        }
    }
}

#[test]
fn responses_of_an_application_are_cached() {
    for protocol in PROTOCOLS {
        let runs = AtomicUsize::new(0);
        let (address, connections) = application(protocol, move |received| {
            let run = runs.fetch_add(1, Ordering::SeqCst);
            received
                .respond(format!("HTTP/1.0 200 OK\r\nCache-Control: max-age=60\r\n\r\nrun {run}").as_bytes());
        });
        let folder = Folder::new();
        let server = server(&folder, protocol, address, "", "cache \"1m\"");
        for _ in 0..3 {
            assert_eq!(fetch(&server, "GET", "/", b"").2, b"run 0");
        }
        assert_eq!(connections.load(Ordering::SeqCst), 1);
    }
}

#[test]
fn another_application_is_asked_in_place_of_one_that_closes() {
    for protocol in PROTOCOLS {
        let (bad, bad_connections) = application(protocol, |received| received.respond(b""));
        let (good, _) = application(protocol, |received| received.respond(b"Content-Length: 2\r\n\r\nhi"));
        let folder = Folder::new();
        let server = server(&folder, protocol, bad, &format!("server \"{good}\""), "");
        for _ in 0..4 {
            let (status, _, body) = fetch(&server, "GET", "/", b"");
            assert_eq!((status.as_str(), &body[..]), ("200", &b"hi"[..]), "{protocol}");
        }
        assert!(bad_connections.load(Ordering::SeqCst) > 0, "it was asked too");
    }
}

#[test]
fn clients_of_both_protocols_reach_an_application_and_slow_ones_do_not_hold_it() {
    // More than the sockets on the way take.
    const BYTES: usize = 24 << 20;
    for protocol in PROTOCOLS {
        let responses = Arc::new(AtomicUsize::new(0));
        let count = responses.clone();
        let (address, _) = application(protocol, move |mut received| {
            let body = received.body();
            let start = format!("X-A: b\r\n\r\n{}|{}|", received.var("HTTPS"), received.var("HTTP_HOST"));
            let response = match received.var("PATH_INFO") {
                "/large" => [&b"X-A: b\r\n\r\n"[..], &vec![b'x'; BYTES]].concat(),
                _ => [start.as_bytes(), &body].concat(),
            };
            received.stream.write_all(&response).unwrap();
            drop(received);
            count.fetch_add(1, Ordering::SeqCst);
        });
        let (folder, authority) = (Folder::new(), Authority::new());
        authority.sign("server", "localhost");
        std::fs::create_dir_all(folder.0.join("spool")).unwrap();
        folder.write(
            "site.kdl",
            format!(
                "buffer-dir \"spool\"\nlisten \"127.0.0.1:0\"\ntls \"{}\" \"{}\"\nupstream \"app\" {{\n  \
                 server \"{address}\"\n  protocol {protocol}\n}}\nsite * {{ route \"/\" {{ proxy \"app\" }} }}\n",
                authority.path("server.pem"),
                authority.path("server.key"),
            ),
        );
        let mut command = Command::new(program("flatout"));
        command.args(["serve", "-c"]).arg(folder.0.join("site.kdl")).stdin(Stdio::null());
        let server = Server::start(command);
        let port = server.secure_port.unwrap();
        folder.write("body", vec![b'b'; 200_000]);
        let body = format!("@{}", folder.0.join("body").display());
        for (number, version) in ["--http1.1", "--http2"].into_iter().enumerate() {
            let output = curl(&server, "/a", &[version, "--data-binary", &body]).wait_with_output().unwrap();
            let expected = format!("on|localhost:{port}|{}", "b".repeat(200_000));
            assert!(
                output.stdout == expected.as_bytes(),
                "{protocol} {version}: {} bytes",
                output.stdout.len()
            );
            // curl reads nothing while nobody reads its output.
            let stalled = curl(&server, "/large", &[version]);
            until("the application is free", || responses.load(Ordering::SeqCst) == 2 * (number + 1));
            let output = stalled.wait_with_output().unwrap();
            assert!(
                output.stdout == vec![b'x'; BYTES],
                "{protocol} {version}: {} bytes",
                output.stdout.len()
            );
        }
    }
}

#[test]
fn settings_that_cannot_work_are_refused() {
    let folder = Folder::new();
    for protocol in PROTOCOLS {
        for (settings, why) in [
            ("fastcgi-root \"/srv\"", "fastcgi-root is for protocol fastcgi"),
            ("health-check \"/\"", "only health-check tcp is possible"),
            ("health-check grpc", "needs protocol h2 or h2c"),
            ("send-proxy \"v1\"", "send-proxy is not possible"),
            ("uwsgi-param \"A B\" \"c\"", "letters, digits"),
        ] {
            let text = format!(
                "listen \"127.0.0.1:0\"\nupstream \"app\" {{\nserver \"127.0.0.1:1\"\nprotocol {protocol}\n{settings}\n}}\n\
                 site * {{ route \"/\" {{ proxy \"app\" }} }}\n"
            );
            folder.write("bad.kdl", text);
            let output =
                Command::new(program("flatout")).arg("check").arg(folder.0.join("bad.kdl")).output().unwrap();
            let message = String::from_utf8_lossy(&output.stderr);
            assert!(!output.status.success() && message.contains(why), "{protocol} {settings}: {message}");
        }
        // uWSGI has TLS (ssl-socket), SCGI has not.
        folder.write(
            "tls.kdl",
            format!(
                "listen \"127.0.0.1:0\"\nupstream \"app\" {{\nserver \"https://127.0.0.1:1\"\nprotocol {protocol}\n}}\n\
                 site * {{ route \"/\" {{ proxy \"app\" }} }}\n"
            ),
        );
        let output =
            Command::new(program("flatout")).arg("check").arg(folder.0.join("tls.kdl")).output().unwrap();
        assert_eq!(output.status.success(), protocol == "uwsgi", "{protocol}");
    }
}
