//! Figures of sites and upstreams for operators: in `/metrics`, in `flatout top` and in access logs, also after a
//! reload.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};

use flatout_tests::{Folder, Server, Signal, program, until};

/// A server of the folder's `site.kdl`.
fn served(folder: &Folder) -> Server {
    let mut command = Command::new(program("flatout"));
    command.arg("serve").arg("-c").arg(folder.0.join("site.kdl"));
    Server::start(command)
}

fn get(server: &Server, host: &str, target: &str) -> (u16, String) {
    let answer = server.one(&format!("GET {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"));
    (answer.status, answer.text())
}

/// The admin listener's response for a path.
fn admin(socket: &Path, path: &str) -> String {
    let mut stream = UnixStream::connect(socket).unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer.split_once("\r\n\r\n").unwrap().1.to_owned()
}

/// An address without a listener.
fn nobodys() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

/// Parses metrics with Prometheus's own library. Returns whether it is installed here.
fn is_read_by_prometheus(text: &str) -> bool {
    let script = "import sys\nfrom prometheus_client.openmetrics.parser import text_string_to_metric_families as parse\n\
                  families = list(parse(sys.stdin.read()))\nassert len(families) > 20, families\n";
    for python in ["python3", "/usr/bin/python3"] {
        let has_library = ["-c", "import prometheus_client.openmetrics.parser"];
        let found = Command::new(python).args(has_library).stderr(Stdio::null()).status();
        if !found.is_ok_and(|status| status.success()) {
            continue;
        }
        let mut child = Command::new(python)
            .args(["-c", script])
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{}\n{text}", String::from_utf8_lossy(&output.stderr));
        return true;
    }
    let _ = writeln!(std::io::stderr(), "skipped: no Python with prometheus_client here");
    false
}

#[test]
fn upstreams_and_sites_are_seen() {
    let (folder, behind) = (Folder::new(), Folder::new());
    behind.write("a.txt", "from behind");
    let upstream = Server::site(&behind.0, &["--workers", "1"]);
    let (good, bad) = (upstream.address, nobodys());
    let socket = folder.0.join("admin.sock");
    let top = format!(
        "listen \"127.0.0.1:0\"\nworkers 1\nadmin \"unix:{}\"\n\
         access-log \"all.log\" flush=\"20ms\" \
         format=\"$host $status|$upstream_addr|$upstream_status|$upstream_response_time|$upstream_connect_time\"\n\
         upstream api {{\n  server \"{good}\"\n  server \"{bad}\"\n  failures 3 window=\"1h\" down-time=\"1h\"\n}}\n",
        socket.display()
    );
    let first = "site \"a.test\" {\n  proxy api\n  access-log \"a.log\" flush=\"20ms\" format=\"$status $request_uri\"\n}\n";
    let second = "site \"b.test\" {\n  respond 200 b\n}\n";
    folder.write("site.kdl", format!("{top}{first}{second}"));
    let mut server = served(&folder);
    for _ in 0..20 {
        assert_eq!(get(&server, "a.test", "/a.txt"), (200, "from behind".to_owned()));
    }
    for _ in 0..3 {
        assert_eq!(get(&server, "b.test", "/").0, 200);
    }
    assert_eq!(get(&server, "c.test", "/").0, 421);

    let text = admin(&socket, "/metrics");
    let of = |server: SocketAddr, rest: &str| format!("{{upstream=\"api\",server=\"{server}\"{rest}}}");
    for expected in [
        "flatout_requests_total{site=\"a.test\",status=\"2xx\"} 20\n".to_owned(),
        "flatout_requests_total{site=\"b.test\",status=\"2xx\"} 3\n".to_owned(),
        "flatout_requests_total{site=\"none\",status=\"4xx\"} 1\n".to_owned(),
        format!("flatout_upstream_server_state{} 1\n", of(good, ",state=\"up\"")),
        format!("flatout_upstream_server_state{} 1\n", of(bad, ",state=\"down\"")),
        format!("flatout_upstream_requests_total{} 20\n", of(good, "")),
        format!("flatout_upstream_requests_total{} 0\n", of(bad, "")),
        format!("flatout_upstream_failures_total{} 3\n", of(bad, "")),
        format!("flatout_upstream_retries_total{} 3\n", of(bad, "")),
        format!("flatout_upstream_active_requests{} 0\n", of(good, "")),
        format!("flatout_upstream_connections{} 1\n", of(good, ",state=\"idle\"")),
        format!("flatout_upstream_response_duration_seconds_count{} 20\n", of(good, "")),
        "flatout_upstream_queued_requests{upstream=\"api\"} 0\n".to_owned(),
        "flatout_upstream_refused_requests_total{upstream=\"api\",reason=\"queue_full\"} 0\n".to_owned(),
        "flatout_upstream_refused_retries_total{upstream=\"api\"} 0\n".to_owned(),
    ] {
        assert!(text.contains(&expected), "{expected}{text}");
    }
    is_read_by_prometheus(&text);

    let output = Command::new(program("flatout"))
        .args(["top", &format!("unix:{}", socket.display()), "--json", "--count", "1"])
        .output()
        .unwrap();
    let frame: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let seen = &frame["upstreams"][0];
    assert_eq!((&seen["name"], &seen["queued"]), (&"api".into(), &0.into()), "{frame}");
    assert_eq!(seen["servers"][0]["state"], "up");
    assert_eq!(
        (&seen["servers"][1]["state"], &seen["servers"][1]["failures"]),
        (&"down".into(), &3.into()),
        "{frame}"
    );

    // Sites in another order, and without the server that is down: remaining figures keep their names.
    let fewer = top.replace(&format!("  server \"{bad}\"\n"), "");
    folder.write("site.kdl", format!("{fewer}{second}{first}"));
    server.signal(Signal::HUP);
    until("a reload", || server.said().iter().any(|line| line.contains("reloaded")));
    assert!(server.said().iter().all(|line| !line.contains("not reloaded")), "{:?}", server.said());
    assert_eq!(get(&server, "a.test", "/a.txt?again").0, 200);
    assert_eq!(get(&server, "b.test", "/").0, 200);
    let text = admin(&socket, "/metrics");
    for expected in [
        "flatout_requests_total{site=\"a.test\",status=\"2xx\"} 21\n".to_owned(),
        "flatout_requests_total{site=\"b.test\",status=\"2xx\"} 4\n".to_owned(),
        format!("flatout_upstream_requests_total{} 21\n", of(good, "")),
    ] {
        assert!(text.contains(&expected), "{expected}{text}");
    }
    assert!(!text.contains(&bad.to_string()), "{text}");

    server.signal(Signal::TERM);
    assert!(server.wait().success());
    let all = fs::read_to_string(folder.0.join("all.log")).unwrap();
    assert_eq!(all.lines().filter(|line| *line == "b.test 200|-|-|-|-").count(), 4, "{all}");
    // Behind these stand times, in seconds.
    let timed = |start: String| {
        let is = |line: &&str| line.strip_prefix(&start).is_some_and(|times| times.as_bytes()[1] == b'.');
        all.lines().filter(is).count()
    };
    assert_eq!(timed(format!("a.test 200|{bad}, {good}|502, 200|")), 3, "{all}");
    assert_eq!(timed(format!("a.test 200|{good}|200|")), 18, "{all}");
    let own = fs::read_to_string(folder.0.join("a.log")).unwrap();
    assert_eq!((own.lines().count(), own.lines().last()), (21, Some("200 /a.txt?again")), "{own}");
}
