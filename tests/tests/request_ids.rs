//! The id of a request in the log, in error pages, in variables and in what the upstream gets; traces.

use std::collections::HashSet;
use std::fs;
use std::io::Write;
use std::net::UdpSocket;
use std::os::unix::net::UnixDatagram;
use std::process::Command;
use std::time::Duration;

use flatout_tests::upgrading::{orphan, upgrade};
use flatout_tests::{Folder, Server, answers, program, read_to_close, until};

fn start(folder: &Folder) -> Server {
    let mut command = Command::new(program("flatout"));
    command.current_dir(&folder.0).args(["serve", "-c", "site.kdl"]);
    Server::start(command)
}

/// An upstream that responds with the id and the trace that it got, and a server in front of it with a log of ids.
fn served(folder: &Folder, behind: &Folder) -> (Server, Server) {
    let text = "$http_x_request_id $http_traceparent";
    behind
        .write("site.kdl", format!("listen \"127.0.0.1:0\"\nsite \"*\" {{\n  respond 200 \"{text}\"\n}}\n"));
    let upstream = start(behind);
    folder.write("public/a.txt", "hello");
    folder.write(
        "site.kdl",
        format!(
            "listen \"127.0.0.1:0\"\nworkers 2\n\
             access-log \"all.log\" flush=\"20ms\" format=\"$request_uri|$request_id\"\n\
             site \"*\" {{\n  files public\n  \
             route \"/app/\" {{\n    request-header set \"X-Request-Id\" \"$request_id\"\n    \
             request-header set \"traceparent\" \"$traceparent\"\n    proxy \"{0}\"\n  }}\n  \
             route \"/plain/\" {{\n    proxy \"{0}\"\n  }}\n  \
             route \"/dead\" {{\n    request-header set \"X-Request-Id\" \"$request_id\"\n    \
             proxy \"http://127.0.0.1:1\"\n  }}\n  \
             route \"/own\" {{\n    response-header set \"X-Id\" \"$request_id\"\n    respond 200 \"$request_id\"\n  }}\n}}\n",
            format_args!("http://{}", upstream.address)
        ),
    );
    (start(folder), upstream)
}

/// The id in the log for this target.
fn logged(folder: &Folder, target: &str) -> String {
    let mut found = None;
    until("the line is logged", || {
        let log = fs::read_to_string(folder.0.join("all.log")).unwrap_or_default();
        let line = log.lines().find_map(|line| line.strip_prefix(target)?.strip_prefix('|'));
        found = line.map(str::to_owned);
        found.is_some()
    });
    found.unwrap()
}

fn is_made(id: &str) -> bool {
    id.len() == 32 && id.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

#[test]
fn the_log_the_pages_and_the_upstream_have_the_same_id() {
    let (folder, behind) = (Folder::new(), Folder::new());
    let (server, _upstream) = served(&folder, &behind);
    let mut ids = HashSet::new();
    for target in ["/app/1", "/app/2", "/own?1", "/own?2"] {
        let response = server.get(target, "");
        let text = response.text();
        let id = text.split(' ').next().unwrap();
        assert!(is_made(id), "{target}: {text}");
        assert_eq!(logged(&folder, target), id);
        if target.starts_with("/own") {
            assert_eq!(response.field("x-id"), Some(id));
        }
        assert!(ids.insert(id.to_owned()));
    }
    for (target, status) in [("/none", 404), ("/dead", 502)] {
        let page = server.get(target, "Accept: application/json\r\n");
        let page_json: serde_json::Value = serde_json::from_slice(&page.body).expect("JSON");
        let id = page_json["request_id"].as_str().expect("an id");
        assert_eq!((page.status, logged(&folder, target)), (status, id.to_owned()));
        assert!(is_made(id) && ids.insert(id.to_owned()), "{id}");
    }
    let html = server.get("/none?html", "Accept: text/html\r\n").text();
    assert!(html.contains(&logged(&folder, "/none?html")), "{html}");
    assert_eq!(server.get("/none?text", "").text(), "Not Found\n");
}

#[test]
fn ids_stay_over_http2_behind_a_guard_and_are_unique_over_an_upgrade() {
    let (folder, behind) = (Folder::new(), Folder::new());
    behind
        .write("site.kdl", "listen \"127.0.0.1:0\"\nsite \"*\" {\n  respond 200 \"$http_x_request_id\"\n}\n");
    let upstream = start(&behind);
    let address = upstream.address;
    let admin = folder.0.join("admin.sock");
    folder.write(
        "site.kdl",
        format!(
            "admin \"unix:{}\"\nlisten \"127.0.0.1:0\"\nworkers 1\n\
             access-log \"all.log\" flush=\"20ms\" format=\"$request_uri|$request_id\"\n\
             site \"*\" {{\n  request-header set \"X-Request-Id\" \"$request_id\"\n  \
             forward-auth \"http://{address}\" path=\"/auth\"\n  proxy \"http://{address}\"\n}}\n",
            admin.display()
        ),
    );
    let server = start(&folder);
    let body = "b".repeat(100_000);
    let ask = |target: &str| {
        let url = format!("http://{}{target}", server.address);
        let mut command = Command::new("curl");
        command.args(["--silent", "--http2-prior-knowledge", "--max-time", "60", "--data", &body, &url]);
        String::from_utf8(command.output().unwrap().stdout).unwrap()
    };
    let mut ids = HashSet::new();
    let mut check = |from: usize| {
        for number in from..from + 20 {
            let id = ask(&format!("/{number}"));
            assert!(is_made(&id), "{number}: {id}");
            assert_eq!(logged(&folder, &format!("/{number}")), id);
            assert!(ids.insert(id), "an id is used twice");
        }
    };
    check(0);
    let successor = orphan(&upgrade(&admin).unwrap());
    check(20);
    drop(successor);
}

#[test]
fn ids_do_not_keep_responses_from_the_cache() {
    let (folder, behind) = (Folder::new(), Folder::new());
    behind.write(
        "site.kdl",
        "listen \"127.0.0.1:0\"\nsite \"*\" {\n  response-header set \"Cache-Control\" \"max-age=60\"\n  \
         respond 200 \"$http_x_request_id\"\n}\n",
    );
    let upstream = start(&behind);
    folder.write(
        "site.kdl",
        format!(
            "listen \"127.0.0.1:0\"\nworkers 1\nsite \"*\" {{\n  request-header set \"X-Request-Id\" \"$request_id\"\n  \
             cache \"1m\"\n  proxy \"http://{}\"\n}}\n",
            upstream.address
        ),
    );
    let server = start(&folder);
    let first = server.get("/", "");
    assert!(is_made(&first.text()), "{}", first.text());
    assert_eq!(server.get("/", "").text(), first.text(), "the stored response");
}

#[test]
fn a_single_folder_shows_ids_too() {
    let folder = Folder::new();
    folder.write("public/a.txt", "hello");
    let log = folder.0.join("all.log").display().to_string();
    let flags = ["--access-log", &log, "--log-flush", "20ms", "--log-format", "$request_uri|$request_id"];
    let server = Server::site(&folder.0.join("public"), &flags);
    let html = server.get("/none", "Accept: text/html\r\n").text();
    let id = logged(&folder, "/none");
    assert!(is_made(&id) && html.contains(&id), "{id} {html}");
}

#[test]
fn an_id_of_the_client_is_used_if_it_is_harmless() {
    let (folder, behind) = (Folder::new(), Folder::new());
    let (server, _upstream) = served(&folder, &behind);
    let sent = |id: &str| format!("X-Request-Id: {id}\r\n");
    assert!(server.get("/app/x", &sent("from-edge:7")).text().starts_with("from-edge:7 "));
    assert_eq!(logged(&folder, "/app/x"), "from-edge:7");
    for (at, id) in ["<b>", "a b", "\"", &"x".repeat(129)].iter().enumerate() {
        let target = format!("/app/bad{at}");
        let text = server.get(&target, &sent(id)).text();
        let forwarded = text.split(' ').next().unwrap();
        assert!(is_made(forwarded), "{id}: {text}");
        assert_eq!(logged(&folder, &target), forwarded);
    }
}

#[test]
fn traces_are_passed_on_or_made() {
    let (folder, behind) = (Folder::new(), Folder::new());
    let (server, _upstream) = served(&folder, &behind);
    let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let traced = |target: &str, trace: &str| {
        let text = server.get(target, &format!("traceparent: {trace}\r\n")).text();
        text.split_once(' ').unwrap().1.to_owned()
    };
    assert_eq!(traced("/app/t", trace), trace);
    // Without the rule it is a field as any other.
    assert_eq!(traced("/plain/t", trace), trace);
    let zero = "00-00000000000000000000000000000000-b7ad6b7169203331-01";
    for (at, bad) in
        ["", "00-1-2-3", zero, &trace.to_uppercase(), &format!("ff{}", &trace[2..])].iter().enumerate()
    {
        let target = format!("/app/bad{at}");
        let made = traced(&target, bad);
        let parts: Vec<&str> = made.split('-').collect();
        assert_eq!((parts.len(), parts[0], parts[2].len(), parts[3]), (4, "00", 16, "01"), "{bad}: {made}");
        assert_eq!(parts[1], logged(&folder, &target), "the trace has the digits of the id");
    }
}

#[test]
fn ids_stay_with_their_requests_on_one_connection() {
    let (folder, behind) = (Folder::new(), Folder::new());
    let (server, _upstream) = served(&folder, &behind);
    // The first request's body arrives after the second connection's requests.
    let mut slow = server.connect();
    slow.write_all(b"POST /app/slow HTTP/1.1\r\nHost: t\r\nContent-Length: 2\r\nConnection: close\r\n\r\n1")
        .unwrap();
    let mut pipelined = server.connect();
    pipelined
        .write_all(
            b"GET /own?a HTTP/1.1\r\nHost: t\r\n\r\nPOST /own?b HTTP/1.1\r\nHost: t\r\nContent-Length: 1\r\n\r\n1\
              GET /own?c HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n",
        )
        .unwrap();
    let texts: Vec<String> =
        answers(&read_to_close(&mut pipelined), false).iter().map(|it| it.text()).collect();
    slow.write_all(b"2").unwrap();
    let slow = answers(&read_to_close(&mut slow), false).remove(0).text();
    let expected = ["/own?a", "/own?b", "/own?c"].map(|target| logged(&folder, target));
    assert_eq!(texts, expected);
    assert_eq!(slow.split(' ').next(), Some(&*logged(&folder, "/app/slow")));
    assert_eq!(expected.iter().collect::<HashSet<_>>().len(), 3);
}

#[test]
fn a_system_log_gets_a_message_for_each_request() {
    let folder = Folder::new();
    folder.write("public/a.txt", "hello");
    let unix = UnixDatagram::bind(folder.0.join("log")).unwrap();
    let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
    unix.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    udp.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    folder.write(
        "site.kdl",
        format!(
            "listen \"127.0.0.1:0\"\nlog-flush \"20ms\"\nlog-format \"$request_uri|$request_id\"\n\
             access-log \"syslog:{}\"\naccess-log \"syslog:{}\"\nsite \"*\" {{\n  files public\n}}\n",
            folder.0.join("log").display(),
            udp.local_addr().unwrap()
        ),
    );
    let server = start(&folder);
    assert_eq!(server.get("/a.txt?1", "X-Request-Id: one\r\n").status, 200);
    assert_eq!(server.get("/a.txt?2", "X-Request-Id: two\r\n").status, 200);
    let mut buffer = [0; 4096];
    for _ in 0..2 {
        for is_unix in [true, false] {
            let received = if is_unix { unix.recv(&mut buffer) } else { udp.recv(&mut buffer) };
            let length = received.unwrap();
            let message = String::from_utf8(buffer[..length].to_vec()).unwrap();
            assert!(message.starts_with("<190>1 20"), "{message}");
            assert!(message.contains(" flatout ") && message.contains(" access - /a.txt?"), "{message}");
            let (line, _) = message.rsplit_once('|').unwrap();
            assert!(message.ends_with(if line.ends_with('1') { "|one" } else { "|two" }), "{message}");
        }
    }
    folder.write(
        "bad.kdl",
        "listen \"127.0.0.1:0\"\naccess-log \"syslog:nowhere\"\nsite \"*\" {\n  respond 200\n}\n",
    );
    let output =
        Command::new(program("flatout")).args(["check", "bad.kdl"]).current_dir(&folder.0).output().unwrap();
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(!output.status.success() && text.contains("got `syslog:nowhere`, need"), "{text}");
}
