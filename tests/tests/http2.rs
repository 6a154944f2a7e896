//! HTTP/2 with prior knowledge, by clients and judges that others wrote: h2spec, curl, nghttp, h2load.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use flatout_tests::{Folder, Server, program};

/// Where `./x test` puts what it builds of others' tools.
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

/// A site with a small file and a large one.
fn site() -> (Folder, Server) {
    let folder = Folder::new();
    folder.write("index.html", "home");
    folder.write("large", vec![b'l'; 3_000_000]);
    let server = Server::site(&folder.0, &["--workers", "1"]);
    (folder, server)
}

fn url(server: &Server, path: &str) -> String {
    format!("http://{}{path}", server.address)
}

/// All of it but one: a preface that is none is a request of HTTP/1 on a port that has both, and answered so. It asks for a server
/// that waits for the whole of each request.
#[test]
fn h2spec_is_content() {
    let mut hello = Command::new(program("examples/hello"));
    hello.arg("127.0.0.1:0");
    let server = Server::start(hello);
    let port = server.address.port().to_string();
    let output = run(Command::new(h2spec()).args(["-h", "127.0.0.1", "-p", &port, "--strict", "-o", "5"]));
    let said = text(&output.stdout);
    let failed: Vec<&str> = said.lines().map(str::trim).filter(|line| line.starts_with('×')).collect();
    assert!(failed.iter().all(|line| line.ends_with("2: Sends invalid connection preface")), "{said}");
    assert!(said.contains("146 tests, 145 passed, 0 skipped, 1 failed"), "{said}");
}

#[test]
fn curl_is_served() {
    let (_folder, server) = site();
    let curl = |arguments: &[&str], path: &str| {
        let mut command = Command::new("curl");
        command.args(["--silent", "--http2-prior-knowledge", "--max-time", "20"]).args(arguments);
        let output = run(command.arg(url(&server, path)));
        assert!(output.status.success(), "{path}: {output:?}");
        text(&output.stdout)
    };
    let head = curl(&["--include"], "/");
    assert!(head.starts_with("HTTP/2 200") && head.ends_with("home"), "{head}");
    assert_eq!(curl(&[], "/large").len(), 3_000_000);
    assert_eq!(curl(&["--range", "10-19"], "/large"), "llllllllll");
    assert!(curl(&["--head"], "/large").contains("content-length: 3000000"));
    assert!(curl(&["--include", "--data", "x"], "/").starts_with("HTTP/2 405"));
    assert!(curl(&["--include"], "/nothing").starts_with("HTTP/2 404"));
    // HTTP/1 on the same port.
    assert_eq!(server.get("/", "").status, 200);
}

#[test]
fn nghttp_and_h2load_are_served() {
    let (_folder, server) = site();
    let output = run(Command::new("nghttp").args([
        "--stat",
        "--null-out",
        &url(&server, "/large"),
        &url(&server, "/"),
    ]));
    let said = text(&output.stdout);
    assert!(output.status.success() && said.matches(" 200 ").count() == 2, "{said}");
    for (requests, path) in [("5000", "/"), ("100", "/large")] {
        let load = ["-n", requests, "-c", "4", "-m", "50", &url(&server, path)];
        let said = text(&run(Command::new("h2load").args(load)).stdout);
        assert!(said.contains(&format!("{requests} succeeded, 0 failed, 0 errored")), "{said}");
    }
}

/// Requests by both protocols stand in the access log with their protocol.
#[test]
fn the_log_names_the_protocol() {
    let (folder, logs) = (Folder::new(), Folder::new());
    folder.write("index.html", "home");
    let log = logs.0.join("access.log");
    let server = Server::site(&folder.0, &["--workers", "1", "--access-log", log.to_str().unwrap()]);
    let output = run(Command::new("curl").args(["-s", "--http2-prior-knowledge", &url(&server, "/")]));
    assert_eq!(text(&output.stdout), "home");
    server.get("/", "");
    flatout_tests::until("two lines", || {
        let lines = std::fs::read_to_string(&log).unwrap_or_default();
        lines.contains("\"GET / HTTP/2.0\" 200") && lines.contains("\"GET / HTTP/1.1\" 200")
    });
}
