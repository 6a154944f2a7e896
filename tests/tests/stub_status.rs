//! `stub-status`: the figures of all workers in nginx's form, over HTTP/1 and HTTP/2, behind guards, and after a reload.

use std::io::Write;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use flatout_tests::{Answer, Folder, Server, program};

const SITE: &str = r#"
listen "127.0.0.1:0"
workers 2
route "/status" { stub-status; }
route "/guarded" { deny all; stub-status; }
when "arg['status'] == '1'" { stub-status; }
respond 200 "other"
"#;

/// How long the workers may take to see what a client has done.
const TIME_MAX: Duration = Duration::from_secs(20);

fn served(folder: &Folder, more: &str) -> Server {
    folder.write("site.kdl", format!("{more}{SITE}"));
    let mut command = Command::new(program("flatout"));
    command.arg("serve").arg("-c").arg(folder.0.join("site.kdl")).stdin(Stdio::null());
    Server::start(command)
}

fn got(server: &Server, method: &str, path: &str) -> Answer {
    server.one(&format!("{method} {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"))
}

/// All numbers: active; accepted, handled, requests; reading, writing, waiting.
fn numbers(text: &str) -> [u64; 7] {
    let found: Vec<u64> = text.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    found.try_into().unwrap_or_else(|_| panic!("{text}"))
}

fn figures(server: &Server) -> [u64; 7] {
    let answer = got(server, "GET", "/status");
    assert_eq!((answer.status, answer.field("content-type")), (200, Some("text/plain")));
    numbers(&answer.text())
}

/// Waits until the numbers of connections that read, write and wait are these.
fn wait_for(server: &Server, states: [u64; 3]) {
    let began = Instant::now();
    loop {
        let [.., reading, writing, waiting] = figures(server);
        if [reading, writing, waiting] == states {
            return;
        }
        assert!(began.elapsed() < TIME_MAX, "{reading} {writing} {waiting}, expected {states:?}");
    }
}

#[test]
fn connections_and_requests_of_all_workers_are_counted() {
    let folder = Folder::new();
    let server = served(&folder, "");
    let text = got(&server, "GET", "/status").text();
    let names: Vec<&str> =
        text.split(|char: char| !char.is_ascii_alphabetic()).filter(|word| !word.is_empty()).collect();
    let expected = [
        "Active",
        "connections",
        "server",
        "accepts",
        "handled",
        "requests",
        "Reading",
        "Writing",
        "Waiting",
    ];
    assert_eq!((names, text.lines().count()), (expected.to_vec(), 4), "{text}");
    let before = figures(&server);
    for _ in 0..5 {
        assert_eq!(got(&server, "GET", "/").text(), "other");
    }
    let after = figures(&server);
    assert_eq!([after[1] - before[1], after[2] - before[2], after[3] - before[3]], [6, 6, 6]);
    wait_for(&server, [0, 1, 0]);
    // Eight connections wait, at whichever worker.
    let mut idle: Vec<_> = (0..8).map(|_| server.connect()).collect();
    wait_for(&server, [0, 1, 8]);
    idle[0].write_all(b"GET / HT").unwrap();
    wait_for(&server, [1, 1, 7]);
    drop(idle);
    wait_for(&server, [0, 1, 0]);
}

#[test]
fn only_get_and_head_are_served_after_the_guards() {
    let folder = Folder::new();
    let server = served(&folder, "");
    let head = got(&server, "HEAD", "/status");
    assert_eq!((head.status, head.text().as_str()), (200, ""));
    let post = got(&server, "POST", "/status");
    assert_eq!((post.status, post.field("allow")), (405, Some("GET, HEAD")));
    assert_eq!(got(&server, "GET", "/guarded").status, 403);
    assert!(got(&server, "GET", "/?status=1").text().starts_with("Active connections: "));
    let url = format!("http://{}/status", server.address);
    let output = Command::new("curl").args(["-s", "--http2-prior-knowledge", &url]).output().unwrap();
    numbers(&String::from_utf8_lossy(&output.stdout));
}

#[test]
fn the_counts_go_on_after_a_reload() {
    let folder = Folder::new();
    let admin = format!("unix:{}/a.sock", folder.0.display());
    let server = served(&folder, &format!("admin {admin:?}\n"));
    let before = figures(&server);
    let text = std::fs::read_to_string(folder.0.join("site.kdl")).unwrap();
    folder.write("site.kdl", text.replace("\"/status\"", "\"/other\""));
    let reloaded = Command::new(program("flatout")).args(["reload", "--admin", &admin]).output().unwrap();
    assert!(reloaded.status.success(), "{}", String::from_utf8_lossy(&reloaded.stderr));
    assert_eq!(got(&server, "GET", "/status").text(), "other");
    let after = numbers(&got(&server, "GET", "/other").text());
    assert!(after[1] >= before[1] + 2 && after[3] >= before[3] + 2, "{before:?} {after:?}");
    let explained = Command::new(program("flatout"))
        .args(["explain", "-c"])
        .arg(folder.0.join("site.kdl"))
        .args(["GET", "http://a/other"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&explained.stdout);
    assert!(
        said.contains("the figures of this server"),
        "{said}{}",
        String::from_utf8_lossy(&explained.stderr)
    );
}
