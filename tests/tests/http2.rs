//! HTTP/2 of `flatout serve` with external clients and test suites: h2spec, curl, nghttp, h2load, Chromium.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use flatout_tests::authority::self_sign;
use flatout_tests::browser::Browser;
use flatout_tests::{Folder, Server, Signal, program, until};

/// The folder in which `./x test` builds external tools.
fn h2spec() -> PathBuf {
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/tools/bin/h2spec");
    assert!(built.exists(), "h2spec is missing; `./x test` builds it");
    built
}

fn run(command: &mut Command) -> Output {
    command.output().unwrap_or_else(|error| panic!("{:?}: {error}", command.get_program()))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A site with a small file, a large one, and a page.
fn folder() -> Folder {
    let folder = Folder::new();
    folder.write("index.html", "home");
    folder.write("large", vec![b'l'; 3_000_000]);
    folder.write("style.css", "a { color: red }\n".repeat(500));
    folder.write("app.js", "document.title = 'ready'");
    let page = "<link rel=stylesheet href=style.css><p id=p>hello</p><script src=app.js></script>";
    folder.write("page.html", page);
    folder
}

/// A certificate for this host, as `cert.pem` and `key.pem`.
fn certified() -> Folder {
    let folder = Folder::new();
    self_sign(&folder);
    folder
}

/// `flatout serve` with these arguments, with TLS and without.
fn serve(certified: &Folder, arguments: &[&str]) -> Server {
    let mut command = Command::new(program("flatout"));
    command.arg("serve").args(arguments).args(["--workers", "1"]);
    // The plain listener is last, where the test helper looks for it.
    command.args(["--listen", "127.0.0.1:0", "--listen-plain", "127.0.0.1:0", "--tls"]);
    command.args([certified.0.join("cert.pem"), certified.0.join("key.pem")]);
    Server::start(command)
}

fn site(arguments: &[&str]) -> (Folder, Folder, Server) {
    let (folder, certified) = (folder(), certified());
    let server = serve(&certified, &[&[folder.0.to_str().unwrap()], arguments].concat());
    (folder, certified, server)
}

/// The URLs of the site, plain and secure.
fn urls(server: &Server, path: &str) -> [String; 2] {
    let port = server.secure_port.expect("it speaks TLS");
    [format!("http://{}{path}", server.address), format!("https://127.0.0.1:{port}{path}")]
}

/// curl with HTTP/2: with prior knowledge, or negotiated by TLS.
fn curl(arguments: &[&str], url: &str) -> Command {
    let mut command = Command::new("curl");
    let how = if url.starts_with("https") { "--http2" } else { "--http2-prior-knowledge" };
    command.args(["--silent", "--insecure", how, "--max-time", "20"]).args(arguments).arg(url);
    command
}

fn curled(arguments: &[&str], url: &str) -> String {
    let output = run(&mut curl(arguments, url));
    assert!(output.status.success(), "{url}: {output:?}");
    text(&output.stdout)
}

fn judged(server: &Server, arguments: &[&str]) -> String {
    let mut judge = Command::new(h2spec());
    judge.args(["-h", "127.0.0.1", "--strict", "-o", "5"]).args(arguments);
    let port = if arguments.contains(&"--tls") { server.secure_port.unwrap() } else { server.address.port() };
    text(&run(judge.args(["-p", &port.to_string()])).stdout)
}

/// All tests of h2spec. The site waits for complete requests, like an application.
#[test]
fn h2spec_is_content() {
    let (origin, _) = origin("Cache-Control: no-store\r\n");
    let certified = certified();
    let server = serve(&certified, &["--to", &format!("http://{origin}")]);
    let said = judged(&server, &["--tls", "--insecure"]);
    assert!(said.contains("146 tests, 146 passed, 0 skipped, 0 failed"), "{said}");
    // Without TLS, an invalid preface is an HTTP/1 request, and gets an HTTP/1 response.
    let said = judged(&server, &[]);
    let failed: Vec<&str> = said.lines().map(str::trim).filter(|line| line.starts_with('×')).collect();
    assert!(failed.iter().all(|line| line.ends_with("2: Sends invalid connection preface")), "{said}");
    assert!(said.contains("146 tests, 145 passed, 0 skipped, 1 failed"), "{said}");
}

#[test]
fn curl_is_served() {
    let (_folder, _certified, server) = site(&[]);
    for url in urls(&server, "") {
        let curl = |arguments: &[&str], path: &str| curled(arguments, &format!("{url}{path}"));
        let head = curl(&["--include"], "/");
        assert!(head.starts_with("HTTP/2 200") && head.ends_with("home"), "{head}");
        assert_eq!(curl(&[], "/large").len(), 3_000_000);
        assert_eq!(curl(&["--range", "10-19"], "/large"), "llllllllll");
        assert!(curl(&["--head"], "/large").contains("content-length: 3000000"));
        // Without a body: curl 7.88 treats a response that arrives before the body was sent as an error (RFC 9113
        // section 8.1).
        assert!(curl(&["--include", "--request", "POST"], "/").starts_with("HTTP/2 405"));
        assert!(curl(&["--include"], "/nothing").starts_with("HTTP/2 404"));
        let packed = ["--include", "--header", "Accept-Encoding: gzip", "--output", "-"];
        until("the packed one", || curl(&packed, "/style.css").contains("content-encoding: gzip"));
        assert!(curl(&packed, "/style.css").len() < 2000);
        assert_eq!(curl(&["--compressed"], "/style.css").len(), 8500);
    }
    // HTTP/1 on the same ports.
    assert_eq!(server.get("/", "").status, 200);
    let [_, secure] = urls(&server, "/");
    let output = run(Command::new("curl").args(["-s", "-k", "-i", "--http1.1", &secure]));
    assert!(text(&output.stdout).starts_with("HTTP/1.1 200"));
}

#[test]
fn http2_can_be_turned_off() {
    let (_folder, _certified, server) = site(&["--http2", "off"]);
    let [plain, secure] = urls(&server, "/");
    assert!(!run(&mut curl(&[], &plain)).status.success());
    let head = curled(&["--include"], &secure);
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
}

#[test]
fn nghttp_and_h2load_are_served() {
    let (_folder, _certified, server) = site(&[]);
    for (large, small) in urls(&server, "/large").iter().zip(&urls(&server, "/")) {
        let output =
            run(Command::new("nghttp").args(["--stat", "--null-out", "--no-verify-peer", large, small]));
        let said = text(&output.stdout);
        assert!(output.status.success() && said.matches(" 200 ").count() == 2, "{said}");
        for (requests, url) in [("5000", small), ("100", large)] {
            let load = ["-n", requests, "-c", "4", "-m", "50", url];
            let said = text(&run(Command::new("h2load").args(load)).stdout);
            assert!(said.contains(&format!("{requests} succeeded, 0 failed, 0 errored")), "{said}");
        }
    }
}

/// A browser negotiates it, and fetches the whole page over one connection.
#[test]
fn a_browser_uses_it() {
    let (_folder, _certified, server) = site(&[]);
    let [_, url] = urls(&server, "/page.html");
    let Some(mut browser) = Browser::start(800, false) else { return };
    browser.visit(&url);
    let mut said = |script: &str| browser.evaluate(script).as_str().unwrap_or_default().to_owned();
    until("the page", || said("document.title") == "ready");
    let protocols =
        "performance.getEntries().filter(one => one.nextHopProtocol).map(one => one.nextHopProtocol).join()";
    let said = said(protocols);
    assert!(said.starts_with("h2,h2,h2") && !said.contains("http"), "{said}");
}

/// An HTTP/1 origin for proxies: responds with the request after it was received completely. Also returns a counter
/// of its requests.
fn origin(fields: &'static str) -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, count) = (listener.local_addr().unwrap(), Arc::new(AtomicUsize::new(0)));
    let counted = count.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let counted = counted.clone();
            std::thread::spawn(move || while answer(&stream, fields, &counted).is_some() {});
        }
    });
    (address, count)
}

fn answer(mut stream: &TcpStream, fields: &str, count: &AtomicUsize) -> Option<()> {
    let mut bytes = Vec::new();
    read_to(stream, &mut bytes, b"\r\n\r\n")?;
    let head = text(&bytes);
    let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: ")?.parse().ok());
    let mut body = vec![0; length.unwrap_or(0)];
    if head.contains("Transfer-Encoding: chunked") {
        loop {
            let mut line = Vec::new();
            read_to(stream, &mut line, b"\r\n")?;
            let size = usize::from_str_radix(text(&line).trim(), 16).ok()?;
            let mut chunk = vec![0; size + 2];
            if size == 0 {
                // Trailers, or the empty line that ends them.
                while line != b"\r\n" {
                    line.clear();
                    read_to(stream, &mut line, b"\r\n")?;
                }
                break;
            }
            stream.read_exact(&mut chunk).ok()?;
            body.extend_from_slice(&chunk[..size]);
        }
    } else {
        stream.read_exact(&mut body).ok()?;
    }
    count.fetch_add(1, Ordering::SeqCst);
    let said = format!("{}, {} bytes", head.lines().next()?, body.len());
    let length = said.len();
    let answer = format!("HTTP/1.1 200 OK\r\n{fields}Content-Length: {length}\r\n\r\n{said}");
    stream.write_all(answer.as_bytes()).ok()
}

fn read_to(mut stream: &TcpStream, bytes: &mut Vec<u8>, end: &[u8]) -> Option<()> {
    while !bytes.ends_with(end) {
        let mut byte = [0];
        stream.read_exact(&mut byte).ok()?;
        bytes.push(byte[0]);
    }
    Some(())
}

/// The upstream uses HTTP/1, and sees no difference.
#[test]
fn a_proxy_and_its_cache_serve_it() {
    let (origin, count) = origin("Cache-Control: max-age=60\r\n");
    let certified = certified();
    let server = serve(&certified, &["--to", &format!("http://{origin}"), "--cache", "0s"]);
    let [plain, secure] = urls(&server, "");
    // The first request goes to the upstream, the second is served from memory; over TLS it is another URL.
    for (at, url) in [&plain, &secure].into_iter().enumerate() {
        for hit in [false, true] {
            let head = curled(&["--include"], &format!("{url}/a?b"));
            assert!(head.starts_with("HTTP/2 200") && head.contains("\nage: ") == hit, "{head}");
            assert!(head.ends_with("GET /a?b HTTP/1.1, 0 bytes"), "{head}");
        }
        assert_eq!(count.load(Ordering::SeqCst), at + 1);
    }
    let upload = certified.0.join("upload");
    std::fs::write(&upload, vec![b'u'; 1_000_000]).unwrap();
    let file = upload.to_str().unwrap();
    for url in [&plain, &secure] {
        let said = curled(&["--data-binary", &format!("@{file}")], &format!("{url}/up"));
        assert_eq!(said, "POST /up HTTP/1.1, 1000000 bytes");
        // Without a length.
        let body = std::fs::File::open(&upload).unwrap();
        let put = ["--upload-file", "-", "--header", "Expect:"];
        let output = run(curl(&put, &format!("{url}/put")).stdin(body));
        assert_eq!(text(&output.stdout), "PUT /put HTTP/1.1, 1000000 bytes");
    }
}

/// Reads until the text ends with `end`.
fn read_until(child: &mut Child, end: &str) -> String {
    let out = child.stdout.as_mut().unwrap();
    let mut bytes = Vec::new();
    while !bytes.ends_with(end.as_bytes()) {
        let mut byte = [0];
        assert_eq!(out.read(&mut byte).unwrap(), 1, "{}", text(&bytes));
        bytes.push(byte[0]);
    }
    text(&bytes)
}

#[test]
fn subscribers_get_events_over_streams() {
    let certified = certified();
    let mut server = serve(&certified, &["--push", "/live", "--push-token", "secret"]);
    let mut subscribers: Vec<Child> = urls(&server, "/live/a")
        .iter()
        .map(|url| {
            let mut command = curl(&["--include", "--no-buffer", "--max-time", "60"], url);
            command.stdout(Stdio::piped()).spawn().unwrap()
        })
        .collect();
    for subscriber in &mut subscribers {
        let head = read_until(subscriber, "\r\n\r\n");
        assert!(head.starts_with("HTTP/2 200") && head.contains("text/event-stream"), "{head}");
        assert!(read_until(subscriber, "\n\n").starts_with("retry: "));
    }
    let long = "x".repeat(50_000);
    for message in ["one", "two", &long] {
        let published = Command::new(program("flatout"))
            .args(["publish", &format!("http://{}/live/a", server.address), "--token", "secret", message])
            .output()
            .unwrap();
        assert!(published.status.success(), "{published:?}");
        for subscriber in &mut subscribers {
            assert!(read_until(subscriber, "\n\n").ends_with(&format!("data: {message}\n\n")));
        }
    }
    // One subscriber disconnects. The other stays until the server drains: it gets the event `end` and a complete response.
    let mut gone = subscribers.remove(0);
    gone.kill().unwrap();
    gone.wait().unwrap();
    server.signal(Signal::TERM);
    assert!(read_until(&mut subscribers[0], "\n\n").starts_with("event: end\n"));
    assert!(subscribers[0].wait().unwrap().success());
    assert!(server.wait().success());
}

/// A browser opens its WebSocket on the connection that it has (RFC 8441): of a channel, and of an upstream that knows HTTP/1 alone.
#[test]
fn browsers_open_websockets_over_http2() {
    let upstream = {
        let mut command = Command::new(program("flatout"));
        command.args(["serve", "--push", "/live", "--push-token", "secret", "--listen", "127.0.0.1:0"]);
        Server::start(command)
    };
    let (certified, logs) = (certified(), Folder::new());
    let log = logs.0.join("access.log");
    let logged = ["--access-log", log.to_str().unwrap()];
    let to = format!("http://{}", upstream.address);
    let proxied = serve(&certified, &[&["--to", &to], &logged[..]].concat());
    let own = serve(&certified, &[&["--push", "/live", "--push-token", "secret"], &logged[..]].concat());
    for server in [&own, &proxied] {
        let Some(mut browser) = Browser::start(800, false) else { return };
        // Any document will do: only its origin matters.
        browser.visit(&urls(server, "/live/a?presence=1")[1]);
        browser.evaluate(
            "window.said = ''; window.socket = new WebSocket(`wss://${location.host}/live/a`);
             socket.onmessage = (message) => { said += message.data }; 0",
        );
        until("a subscriber", || server.get("/live/a?presence=1", "").text() == "{\"a\":1}");
        let url = format!("http://{}/live/a", server.address);
        let publish = ["publish", &url, "--token", "secret", "hello"];
        assert!(run(Command::new(program("flatout")).args(publish)).status.success());
        until("the message", || {
            let said = browser.evaluate("window.said");
            said.as_str().is_some_and(|said| said.contains("\"data\":\"hello\""))
        });
        browser.evaluate(
            "window.ending = ''; socket.onclose = (event) => { ending = `${event.code} ${event.wasClean}` };
             socket.close(1000); 0",
        );
        until("the end", || browser.evaluate("window.ending").as_str() == Some("1000 true"));
    }
    until("the log", || {
        let lines = std::fs::read_to_string(&log).unwrap_or_default();
        lines.matches("\"GET /live/a HTTP/2.0\" 200").count() == 2
    });
}

/// The access log has requests of both protocols, with the protocol.
#[test]
fn the_log_names_the_protocol() {
    let (folder, logs) = (folder(), Folder::new());
    let log = logs.0.join("access.log");
    let server = Server::site(&folder.0, &["--workers", "1", "--access-log", log.to_str().unwrap()]);
    assert_eq!(curled(&[], &format!("http://{}/", server.address)), "home");
    server.get("/", "");
    until("two lines", || {
        let lines = std::fs::read_to_string(&log).unwrap_or_default();
        lines.contains("\"GET / HTTP/2.0\" 200") && lines.contains("\"GET / HTTP/1.1\" 200")
    });
}

/// A server that drains under load loses nothing: each accepted request gets its complete response.
#[test]
fn draining_under_load_loses_nothing() {
    for at in 0..2 {
        let logs = Folder::new();
        let log = logs.0.join("access.log");
        let (_folder, _certified, mut server) = site(&["--access-log", log.to_str().unwrap()]);
        let lines = || std::fs::read_to_string(&log).unwrap_or_default().lines().count();
        let mut load = Command::new("h2load");
        load.args(["-n", "10000000", "-c", "4", "-m", "20", &urls(&server, "/style.css")[at]]);
        let load = load.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        until("a load", || lines() > 1000);
        server.signal(Signal::TERM);
        assert!(server.wait().success());
        let said = text(&load.wait_with_output().unwrap().stdout);
        let figures = said.lines().find(|line| line.starts_with("requests: ")).expect("figures");
        let succeeded =
            figures.split(", ").find_map(|part| part.strip_suffix(" succeeded")).expect("a figure");
        assert_eq!(succeeded.parse::<usize>().unwrap(), lines(), "{said}");
    }
}

/// What the log says of a response's body is without the heads of frames, as nginx's `$body_bytes_sent`.
#[test]
fn logged_bytes_of_bodies_are_those_of_http_1() {
    let folder = Folder::new();
    folder.write("site/small.bin", "x".repeat(49));
    folder.write("site/large.bin", "x".repeat(700_000));
    let log = folder.0.join("access.log");
    let mut command = Command::new(program("flatout"));
    command.arg("serve").arg(folder.0.join("site")).args([
        "--listen",
        "127.0.0.1:0",
        "--tls",
        "local",
        "--state",
    ]);
    command.arg(folder.0.join("state")).arg("--access-log").arg(&log);
    command.args(["--log-format", "$server_protocol $request_uri $body_bytes_sent", "--log-flush", "10ms"]);
    let server = Server::start(command);
    let port = server.secure_port.unwrap();
    for version in ["--http1.1", "--http2"] {
        for path in ["small.bin", "large.bin"] {
            let url = format!("https://127.0.0.1:{port}/{path}");
            let status = Command::new("curl").args(["-sk", version, "-o", "/dev/null", &url]).status();
            assert!(status.unwrap().success());
        }
    }
    let lines = || std::fs::read_to_string(&log).unwrap_or_default();
    until("four lines", || lines().lines().count() == 4);
    let expected = "HTTP/1.1 /small.bin 49\nHTTP/1.1 /large.bin 700000\nHTTP/2.0 /small.bin 49\nHTTP/2.0 /large.bin 700000\n";
    assert_eq!(lines(), expected);
}
