//! What an operator meets first: the command line, refused addresses, the first lines.

use std::io::Write;
use std::net::TcpListener;
use std::process::{Command, Output, Stdio};

use flatout_tests::terminal::Terminal;
use flatout_tests::{Folder, Server, Signal, program, until};
use rustix::process::{Pid, kill_process};

fn folder() -> Folder {
    let folder = Folder::new();
    folder.write("public/a.txt", "hello");
    folder
}

fn command(folder: &Folder, arguments: &[&str]) -> Command {
    let mut command = Command::new(program("flatout"));
    command.current_dir(&folder.0).arg("serve").args(arguments);
    command
}

/// A port that nobody listens on.
fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn fails(folder: &Folder, arguments: &[&str]) -> String {
    let Output { status, stderr, .. } =
        command(folder, arguments).stdout(Stdio::null()).output().expect("it runs");
    let text = String::from_utf8(stderr).unwrap();
    assert!(!status.success(), "{text}");
    text
}

#[test]
fn a_port_alone_is_a_port_of_loopback() {
    let folder = folder();
    for flag in ["-p", "--port", "--listen"] {
        let port = free_port().to_string();
        let server = Server::start(command(&folder, &["public", flag, &port]));
        assert_eq!(server.address.to_string(), format!("127.0.0.1:{port}"), "{flag}");
        assert_eq!(server.get("/a.txt", "").text(), "hello");
    }
    let refused = fails(&folder, &["public", "-p", "99999"]);
    assert!(refused.contains("99999") && refused.contains("65535"), "{refused}");
    let refused = fails(&folder, &["public", "--listen", "99999"]);
    assert!(refused.contains("PORT (this machine only)"), "{refused}");
}

#[test]
fn a_site_file_is_served_without_a_flag() {
    let folder = folder();
    folder.write("site.kdl", "listen \"127.0.0.1:0\"\nfiles public\n");
    let mut server = Server::start(command(&folder, &["site.kdl"]));
    assert_eq!(server.get("/a.txt", "").text(), "hello");
    folder.write("site.kdl", "listen \"127.0.0.1:0\"\nrespond 200 new\n");
    server.signal(Signal::HUP);
    until("a reload", || server.get("/a.txt", "").text() == "new");
    server.signal(Signal::TERM);
    assert!(server.wait().success());
    assert!(fails(&folder, &["none.kdl"]).contains("none.kdl"));
}

#[test]
fn a_port_in_use_names_its_process_and_the_next_command() {
    let folder = folder();
    let holder = Server::site(&folder.0.join("public"), &[]);
    let port = holder.address.port();
    let refused = fails(&folder, &["public", "-p", &port.to_string()]);
    let (pid, next) = (holder.pid().to_string(), format!("--port {}", port + 1));
    for part in [
        format!("cannot listen on http://127.0.0.1:{port}"),
        format!("process {pid} ("),
        format!("kill {pid}"),
        next,
    ] {
        assert!(refused.contains(&part), "{part}: {refused}");
    }
    // With TLS the URL has its scheme.
    let state = folder.0.join("state");
    let mut secure = command(&folder, &["public", "--tls", "local", "-p", &port.to_string()]);
    let output = secure.env("XDG_STATE_HOME", &state).env("STATE_DIRECTORY", &state).output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains(&format!("cannot listen on https://127.0.0.1:{port}")), "{text}");
}

#[test]
fn an_address_of_another_machine_is_explained() {
    let refused = fails(&folder(), &["public", "--listen", "192.0.2.1:8080"]);
    assert!(refused.contains("no network interface of this machine has 192.0.2.1"), "{refused}");
}

#[test]
fn a_server_reports_its_start_and_its_end() {
    let folder = folder();
    let mut server = Server::start(command(
        &folder,
        &[
            "public",
            "--listen",
            "127.0.0.1:0",
            "--admin",
            "127.0.0.1:0",
            "--tls",
            "local",
            "--listen-plain",
            "127.0.0.1:0",
            "--state",
            "state",
        ],
    ));
    let path = folder.0.join("public").display().to_string();
    let has = |server: &Server, parts: &[&str]| {
        let lines = server.said();
        lines.iter().any(|line| parts.iter().all(|part| line.contains(part)))
    };
    for parts in [
        &["info: serves: folder ", &path, "(1 file, "][..],
        &["admin: http://127.0.0.1:"],
        &["state: ", "state"],
        &["requests: not logged; --access-log - shows them"],
    ] {
        assert!(has(&server, parts), "{parts:?}: {:?}", server.said());
    }
    assert!(server.said().len() <= 6, "{:?}", server.said());
    assert!(server.secure_port.is_some());
    assert_eq!(server.get("/a.txt", "").text(), "hello");
    assert_eq!(server.get("/b.txt", "").status, 404);
    server.signal(Signal::TERM);
    assert!(server.wait().success());
    until("the last line", || has(&server, &["info: ended by SIGTERM after ", ": 2 requests served"]));
    let lines = server.said();
    let time = lines[0].strip_prefix("flatout: ").unwrap();
    assert!(
        time.starts_with("20") && time.get(10..11) == Some("T") && time.get(23..24) == Some("Z"),
        "{time}"
    );
}

#[test]
fn messages_are_json_with_the_logs_and_follow_their_level() {
    let folder = folder();
    let log = folder.0.join("access.log").display().to_string();
    let mut server = Server::start(command(
        &folder,
        &["public", "--listen", "127.0.0.1:0", "--log-format", "json", "--access-log", &log],
    ));
    server.signal(Signal::INT);
    assert!(server.wait().success());
    until("the last line", || server.said().iter().any(|line| line.contains("ended by SIGINT")));
    for line in server.said() {
        let found: serde_json::Value = serde_json::from_str(&line).expect("JSON");
        assert_eq!(found["level"], "info");
        assert!(found["message"].is_string() && found["time"].as_str().unwrap().ends_with('Z'), "{line}");
    }
    let refused = fails(&folder, &["public", "--log-level", "loud"]);
    assert!(refused.contains("loud") && refused.contains("warning"), "{refused}");
}

#[test]
fn a_reload_logs_its_changes() {
    let folder = folder();
    let text = |more: &str| {
        format!(
            "listen \"127.0.0.1:0\"\nsite a.test {{\n    route \"/a\" {{\n        respond 200 {more}\n    }}\n}}\n"
        )
    };
    folder.write("site.kdl", text("one"));
    let server = Server::start(command(&folder, &["-c", "site.kdl"]));
    let reload = |content: String, expected: &str| {
        folder.write("site.kdl", content);
        server.signal(Signal::HUP);
        until(expected, || {
            server.said().iter().any(|line| line.contains("info: reloaded ") && line.contains(expected))
        });
    };
    reload(text("one"), "no setting has changed");
    reload(text("two"), "changed route /a of a.test");
    reload(format!("{}site b.test {{\n    respond 200 b\n}}\n", text("two")), "added route");
    reload(text("two"), "removed route");
    folder.write("site.kdl", "site {");
    server.signal(Signal::HUP);
    until("the refusal", || server.said().iter().any(|line| line.contains("error: not reloaded")));
}

/// The output of a server whose stdout is a file.
fn with_stdout(folder: &Folder, flags: &[&str]) -> (Server, std::path::PathBuf) {
    let path = folder.0.join("stdout");
    let mut child = Command::new("sh");
    let program = program("flatout").display().to_string();
    let script = format!("exec {program} serve public --listen 127.0.0.1:0 \"$@\" > {}", path.display());
    child.current_dir(&folder.0).args(["-c", &script, "sh"]).args(flags);
    (Server::start(child), path)
}

#[test]
fn requests_are_printed_to_a_standard_stream() {
    let folder = folder();
    for name in ["-", "stdout"] {
        let (server, path) = with_stdout(&folder, &["--access-log", name]);
        server.get("/a.txt", "");
        until("a line", || {
            std::fs::read_to_string(&path).is_ok_and(|text| text.contains("\"GET /a.txt HTTP/1.1\" 200 5"))
        });
    }
    let server =
        Server::start(command(&folder, &["public", "--listen", "127.0.0.1:0", "--access-log", "stderr"]));
    server.get("/a.txt", "");
    until("a line", || server.said().iter().any(|line| line.contains("\"GET /a.txt HTTP/1.1\" 200 5")));
}

#[test]
fn a_terminal_gets_short_coloured_lines() {
    let folder = folder();
    let port = free_port();
    let mut command = command(&folder, &["public", "-p", &port.to_string(), "--access-log", "-"]);
    command.env_remove("NO_COLOR");
    let terminal = Terminal::start(command);
    terminal.wait_for("Ctrl-C");
    let mut stream = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.write_all(b"GET /none HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n").unwrap();
    terminal.wait_for("\x1b[33m404\x1b[0m GET a.test/none");
    kill_process(Pid::from_raw(terminal.pid() as i32).unwrap(), Signal::TERM).unwrap();
    let (status, shown) = terminal.end();
    assert!(status.success() && shown.contains("ended by SIGTERM"), "{shown}");
}

#[test]
fn logs_name_the_cache_the_tls_session_and_times() {
    let folder = folder();
    let (origin, _) = flatout_tests::cached::origin();
    let log = folder.0.join("access.log");
    let format = "$upstream_cache_status $upstream_addr $ssl_protocol $ssl_cipher $scheme $time_iso8601_ms $request_time_us $upstream_response_time $request_uri";
    folder.write(
        "site.kdl",
        format!(
            "listen \"127.0.0.1:0\"\nlisten-plain \"127.0.0.1:0\"\ntls local\nstate state\naccess-log \"{}\" flush=\"20ms\"\nlog-format {format:?}\ncache \"60s\"\n\
             upstream api {{\n    server \"{origin}\"\n}}\nproxy api\n",
            log.display()
        ),
    );
    let server = Server::start(command(&folder, &["-c", "site.kdl"]));
    for _ in 0..3 {
        server.get("/a", "");
    }
    let url = format!("https://127.0.0.1:{}/tls", server.secure_port.unwrap());
    let fetched = Command::new("curl").args(["-sk", "--http2", "-o", "/dev/null", &url]).status().unwrap();
    assert!(fetched.success());
    let lines =
        || std::fs::read_to_string(&log).unwrap_or_default().lines().map(str::to_owned).collect::<Vec<_>>();
    until("four lines", || lines().len() == 4);
    // Lines of several workers are in no order.
    let lines = lines();
    let of = |start: &str| lines.iter().filter(|line| line.starts_with(start)).count();
    let missed = format!("MISS {origin} ");
    assert_eq!((of(&missed), of("HIT - - - http 20")), (2, 2), "{lines:?}");
    let secure = lines.iter().find(|line| line.ends_with(" /tls")).expect("a line");
    assert!(secure.contains(" TLSv1.3 TLS") && secure.contains(" https 20"), "{secure}");
    for line in &lines {
        let words: Vec<&str> = line.split(' ').collect();
        assert_eq!(words[5].len(), "2026-11-21T17:34:07.123+00:00".len(), "{line}");
        assert!(words[6].parse::<u64>().unwrap() > 0, "{line}");
    }
}

#[test]
fn error_pages_follow_accept_and_name_the_request() {
    let folder = folder();
    folder.write(
        "site.kdl",
        "listen \"127.0.0.1:0\"\nupstream dead {\n    server \"127.0.0.1:1\"\n}\nsite a.test {\n    files public\n    \
         route \"/dead\" {\n        proxy dead\n    }\n    route \"/own\" {\n        respond 404 mine\n    }\n}\n",
    );
    let sites = Server::start(command(&folder, &["-c", "site.kdl"]));
    let one = |server: &Server, method: &str, path: &str, host: &str, fields: &str| {
        server.one(&format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\n{fields}Connection: close\r\n\r\n"))
    };
    let single = Server::site(&folder.0.join("public"), &[]);
    for (server, path, status) in [(&sites, "/none", 404), (&sites, "/dead", 502), (&single, "/none", 404)] {
        let json = one(server, "GET", path, "a.test", "Accept: application/json\r\nX-Request-Id: id-7\r\n");
        let found: serde_json::Value = serde_json::from_slice(&json.body).expect("JSON");
        assert_eq!(
            (json.status, &found["status"], &found["request_id"]),
            (status, &status.into(), &"id-7".into())
        );
        assert_eq!(json.field("content-type"), Some("application/problem+json"));
        let html = one(server, "GET", path, "a.test", "Accept: text/html,*/*;q=0.8\r\nX-Request-Id: <b>\r\n");
        assert_eq!(html.field("content-type"), Some("text/html; charset=utf-8"));
        assert!(html.text().contains("light dark") && !html.text().contains("<b>"), "{}", html.text());
        let head = one(server, "HEAD", path, "a.test", "Accept: application/json\r\n");
        assert_eq!((head.status, head.field("content-type")), (status, Some("application/problem+json")));
        assert!(head.body.is_empty());
        let text = one(server, "GET", path, "a.test", "Accept: */*\r\n");
        assert_eq!(text.field("content-type"), Some("text/plain; charset=utf-8"));
    }
    assert_eq!(one(&sites, "GET", "/own", "a.test", "Accept: text/html\r\n").text(), "mine");
    let unknown = one(&sites, "GET", "/", "x.test:80", "Accept: text/html\r\n");
    assert!(
        unknown.status == 421 && unknown.text().contains("no site for host `x.test:80`"),
        "{}",
        unknown.text()
    );
}

#[test]
fn plain_http_on_a_port_with_tls_gets_a_readable_response() {
    let folder = folder();
    let secure =
        command(&folder, &["public", "--tls", "local", "--state", "state", "--listen", "127.0.0.1:0"]);
    let server = Server::start(secure);
    let port = server.secure_port.unwrap();
    let mut stream = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(flatout_tests::PATIENCE)).unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nHost: a.test\r\n\r\n").unwrap();
    let found = flatout_tests::answers(&flatout_tests::read_to_close(&mut stream), false);
    assert!(found[0].status == 400 && found[0].text().contains("use https://"), "{found:?}");
    let url = format!("https://127.0.0.1:{port}/a.txt");
    let served = Command::new("curl").args(["-sk", &url]).output().unwrap();
    assert_eq!(served.stdout, b"hello");
}

#[test]
fn a_hashed_password_opens_a_route() {
    let folder = folder();
    let hash = |password: &str| {
        let mut child = Command::new(program("flatout"))
            .arg("hash-password")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(format!("{password}\n").as_bytes()).unwrap();
        child.wait_with_output().unwrap()
    };
    let output = hash("secret");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.starts_with("$2b$11$") && !text.contains("secret"), "{text}");
    folder.write(
        "site.kdl",
        format!(
            "listen \"127.0.0.1:0\"\nbasic-auth \"inner\"\nauth-user ann {:?}\nfiles public\n",
            text.trim()
        ),
    );
    let server = Server::start(command(&folder, &["site.kdl"]));
    assert_eq!(server.get("/a.txt", "").status, 401);
    assert_eq!(server.get("/a.txt", "Authorization: Basic YW5uOnNlY3JldA==\r\n").text(), "hello");
    for refused in [String::new(), "a".repeat(73)] {
        let output = hash(&refused);
        assert_eq!(output.status.code(), Some(2), "{refused}");
        assert!(String::from_utf8(output.stderr).unwrap().contains("allowed 1 to 72"));
    }
    folder.write("bad.kdl", "basic-auth \"inner\"\nauth-user ann secret\nfiles public\n");
    assert!(fails(&folder, &["bad.kdl"]).contains("flatout hash-password"));
}

#[test]
fn commands_find_the_admin_listener_by_the_site_file() {
    let folder = folder();
    let (origin, count) = flatout_tests::cached::origin();
    folder.write(
        "site.kdl",
        format!(
            "listen \"127.0.0.1:0\"\nadmin \"unix:{}\"\ncache \"60s\"\nupstream api {{\n    server \"{origin}\"\n}}\nproxy api\n",
            folder.0.join("admin.sock").display()
        ),
    );
    let server = Server::start(command(&folder, &["site.kdl"]));
    let run = |arguments: &[&str]| {
        let output =
            Command::new(program("flatout")).current_dir(&folder.0).args(arguments).output().unwrap();
        (output.status.code(), String::from_utf8([output.stdout, output.stderr].concat()).unwrap())
    };
    let (code, text) = run(&["top", "-c", "site.kdl", "--json", "--count", "1"]);
    assert!(code == Some(0) && serde_json::from_str::<serde_json::Value>(text.trim()).is_ok(), "{text}");
    let asked = |host: &str| {
        assert_eq!(
            server.one(&format!("GET /p HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n")).status,
            200
        );
        count.load(std::sync::atomic::Ordering::SeqCst)
    };
    assert_eq!([asked("a.test"), asked("b.test"), asked("a.test")], [1, 2, 2]);
    let (code, text) = run(&["purge", "-c", "site.kdl", "--host", "A.test"]);
    assert_eq!(code, Some(0), "{text}");
    assert_eq!([asked("b.test"), asked("a.test")], [2, 3], "only one host was purged");
    let (code, text) = run(&["purge", "-c", "site.kdl", "--host", "a/b"]);
    assert!(code == Some(2) && text.contains("need a host name"), "{text}");
    folder.write("plain.kdl", "files public\n");
    let (code, text) = run(&["top", "-c", "plain.kdl"]);
    assert!(code == Some(2) && text.contains("has no admin listener"), "{text}");
}

#[test]
fn health_checks_see_whether_a_server_is_serving() {
    let folder = folder();
    let admin = format!("unix:{}", folder.0.join("admin.sock").display());
    folder.write("site.kdl", format!("listen \"127.0.0.1:0\"\nadmin \"{admin}\"\nfiles public\n"));
    let mut server = Server::start(command(&folder, &["site.kdl"]));
    let health = |arguments: &[&str]| {
        let mut command = Command::new(program("flatout"));
        let output = command.current_dir(&folder.0).arg("health").args(arguments).output().unwrap();
        (output.status.code(), String::from_utf8([output.stdout, output.stderr].concat()).unwrap())
    };
    assert_eq!(health(&["-c", "site.kdl"]), (Some(0), "serving\n".to_owned()));
    assert_eq!(health(&[&admin]), (Some(0), "serving\n".to_owned()));
    // A port of clients is no admin listener.
    let (code, text) = health(&[&server.address.to_string()]);
    assert!(code == Some(1) && text.contains("not an admin listener"), "{text}");
    let (code, text) = health(&["nowhere"]);
    assert!(code == Some(2) && text.contains("need unix:PATH or IP:PORT"), "{text}");
    server.signal(Signal::TERM);
    assert!(server.wait().success());
    let (code, text) = health(&[&admin]);
    assert!(code == Some(1) && text.contains("cannot reach"), "{text}");
}

#[test]
fn files_of_other_servers_are_recognised() {
    let folder = folder();
    folder.write(
        "nginx.conf",
        "server {\n    listen 80;\n    location / { proxy_pass http://127.0.0.1:1; }\n}\n",
    );
    folder.write("Caddyfile", "example.org {\n    root * /srv\n    reverse_proxy localhost:9000\n}\n");
    folder.write("ours.kdl", "filse public\n");
    let check = |name: &str| {
        let mut command = Command::new(program("flatout"));
        let output = command.current_dir(&folder.0).args(["check", name]).output().unwrap();
        assert!(!output.status.success());
        String::from_utf8(output.stderr).unwrap()
    };
    assert!(check("nginx.conf").contains("this looks like nginx; convert it: flatout import nginx.conf"));
    assert!(check("Caddyfile").contains("this looks like a Caddyfile"));
    assert!(!check("ours.kdl").contains("looks like"));
    folder.write("site.kdl", "upstream api {\n    server \"127.0.0.1:1\"\n}\nproxy api\n");
    let mut import = Command::new(program("flatout"));
    let output = import.current_dir(&folder.0).args(["import", "site.kdl"]).output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("site.kdl is a site file already: flatout check site.kdl"), "{text}");
}

#[test]
fn all_mistakes_and_lacks_of_a_file_are_shown() {
    let folder = folder();
    folder.write(
        "bad.kdl",
        "# mine\nlisten = \":8080\"\nworkers two\nupstream api {\n    server \"http://no-such-host.invalid:80\"\n}\nsite a {\n    compress true\n    route /api {\n        proxy api\n        request-header set X \"$remot_addr\"\n    }\n    files \"./nowhere\"\n}\n",
    );
    folder.write("open.kdl", "site a {\n    route \"/x\" {\n        files public\n}\n");
    folder.write(
        "good.kdl",
        "tls none.pem none.key\nupstream api { server \"http://no-such-host.invalid:80\"; }\nredirect \"https://a{uri}\"\nroute \"/x\" { files nowhere; }\nroute \"/y\" { proxy api; }\n",
    );
    let check = |names: &[&str]| {
        let output = Command::new(program("flatout"))
            .current_dir(&folder.0)
            .arg("check")
            .args(names)
            .output()
            .unwrap();
        (output.status.code(), String::from_utf8([output.stdout, output.stderr].concat()).unwrap())
    };
    let (code, text) = check(&["bad.kdl", "open.kdl"]);
    assert_eq!(code, Some(2), "{text}");
    for line in [
        "bad.kdl:1:1: comments begin with `//`",
        "bad.kdl:2:8: leave out this `=`",
        "bad.kdl:3:9: `workers` needs a whole number",
        "bad.kdl:8:14: got `true`, need on",
        "bad.kdl:9:11: this needs quotes: \"/api\"",
        "bad.kdl:11:30: request-header: unknown variable `$remot_addr`; did you mean `$remote_addr`?",
        "bad.kdl:13: warning: a server would not start here: ",
        "bad.kdl:4: warning: requests to this upstream would fail here: `no-such-host.invalid` ",
        "open.kdl:2:16: this `{` is not closed",
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
    let (code, text) = check(&["--elsewhere", "good.kdl"]);
    assert!(code == Some(0) && !text.contains("warning"), "{text}");
    let (code, text) = check(&["good.kdl"]);
    assert_eq!(code, Some(1), "{text}");
    for line in [
        "good.kdl: valid",
        "good.kdl:3: note: `{uri}` is plain text here; the variable is `$request_uri`",
        "good.kdl:4: warning: a server would not start here: ",
        "good.kdl:2: warning: requests to this upstream",
        "none.pem",
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
}

/// What `flatout check site.kdl` says.
fn check_site(folder: &Folder) -> String {
    let mut check = Command::new(program("flatout"));
    let output = check.current_dir(&folder.0).args(["check", "site.kdl"]).output().unwrap();
    String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
}

/// A setting without an effect is named, by `check` and at the start.
#[test]
fn hsts_without_tls_is_noted() {
    let folder = folder();
    let plain = "site a.test {\n  hsts \"365d\"\n  respond 200 x\n}\n";
    for (head, is_noted) in [("", true), ("trusted-proxies \"10.0.0.1\"\n", false)] {
        folder.write("site.kdl", format!("{head}{plain}"));
        let output = check_site(&folder);
        assert_eq!(output.contains("note: `hsts` has no effect"), is_noted, "{output}");
        assert!(!is_noted || output.contains("site.kdl:2: note"), "{output}");
    }
}

/// A folder that root can read, but not the user that serves it.
#[test]
fn a_folder_that_the_user_cannot_read_is_found() {
    use std::os::unix::fs::PermissionsExt;
    let folder = folder();
    std::fs::create_dir(folder.0.join("private")).unwrap();
    folder.write("site.kdl", "user nobody\nworkers 1\nfiles private\n");
    let set = |mode| {
        std::fs::set_permissions(folder.0.join("private"), std::fs::Permissions::from_mode(mode)).unwrap();
        std::fs::set_permissions(&folder.0, std::fs::Permissions::from_mode(0o755)).unwrap();
    };
    set(0o700);
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let text = check_site(&folder);
    assert!(text.contains("site.kdl:3: warning: a server would not start here: cannot read "), "{text}");
    assert!(text.contains("private` as user `nobody`"), "{text}");
    set(0o755);
    let text = check_site(&folder);
    assert!(!text.contains("warning"), "{text}");
}

/// What `serve` would refuse is said by `check`, with its line, and fails it.
#[test]
fn users_addresses_and_folders_that_are_missing_are_found() {
    let folder = folder();
    for (setting, why) in [
        ("user wwwdata-none", "the user `wwwdata-none`: no such user"),
        ("listen \"192.0.2.77:8080\"", "no network interface of this machine has 192.0.2.77"),
        ("access-log \"nolog/a.log\"", "nolog` is not a folder"),
        ("admin \"unix:nodir/a.sock\"", "nodir` is not a folder"),
    ] {
        folder.write("site.kdl", format!("workers 1\n{setting}\nfiles public\n"));
        let check = |more: &[&str]| {
            let mut command = Command::new(program("flatout"));
            command.current_dir(&folder.0).arg("check").args(more).arg("site.kdl");
            let output = command.output().unwrap();
            (output.status.code(), String::from_utf8([output.stdout, output.stderr].concat()).unwrap())
        };
        let (code, text) = check(&[]);
        assert_eq!(code, Some(1), "{text}");
        assert!(text.contains("site.kdl:2: warning: a server would not start here: "), "{text}");
        assert!(text.contains(why) && text.contains("would not start here with site.kdl"), "{text}");
        assert_eq!(check(&["--elsewhere"]).0, Some(0), "{setting}");
    }
    folder.write("ca.kdl", "upstream-ca none.pem\nupstream a { server \"https://127.0.0.1:1\"; }\nproxy a\n");
    let output =
        Command::new(program("flatout")).current_dir(&folder.0).args(["check", "ca.kdl"]).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(1) && said.contains("ca.kdl:1: warning: "), "{said}");
}

/// A site file is tried beside the server that it replaces: sites with addresses of their own move too.
#[test]
fn all_ports_can_be_moved() {
    let folder = folder();
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let (top, of_site) = (port / 2, port - port / 2);
    // Their sum is a free port.
    let site = format!("site t {{\n listen \"127.0.0.1:{of_site}\"\n files public\n}}\n");
    folder.write("site.kdl", site);
    let mut command = Command::new(program("flatout"));
    command.current_dir(&folder.0).args(["serve", "-c", "site.kdl", "--port-offset", &top.to_string()]);
    let server = Server::start(command);
    assert_eq!(server.address.port(), port);
    let output = Command::new(program("flatout"))
        .current_dir(&folder.0)
        .args(["serve", "-c", "site.kdl", "--port-offset", "65535"])
        .output()
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        output.status.code() == Some(2) && said.contains("--port-offset: 65535 would be above 65535"),
        "{said}"
    );
}

/// A certificate that has become unusable fails a reload also after the server has noticed it itself.
#[test]
fn a_reload_reports_a_key_that_others_may_read() {
    use std::os::unix::fs::PermissionsExt;
    let folder = folder();
    flatout_tests::authority::self_sign(&folder);
    folder.write(
        "site.kdl",
        "listen \"127.0.0.1:0\"\ntls cert.pem key.pem\nadmin \"unix:admin.sock\"\nfiles public\n",
    );
    let mut command = Command::new(program("flatout"));
    command.current_dir(&folder.0).args(["serve", "-c", "site.kdl"]);
    let server = Server::start(command);
    let reload = || {
        let mut command = Command::new(program("flatout"));
        let output =
            command.current_dir(&folder.0).args(["reload", "--admin", "unix:admin.sock"]).output().unwrap();
        (output.status.code(), String::from_utf8([output.stdout, output.stderr].concat()).unwrap())
    };
    let mode = |mode| {
        let key = folder.0.join("key.pem");
        std::fs::set_permissions(key, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    assert_eq!(reload().0, Some(0));
    mode(0o644);
    until("it is noticed", || {
        server.said().iter().any(|line| line.contains("certificates were not changed"))
    });
    let (code, text) = reload();
    assert!(code == Some(1) && text.contains("others may read or write it"), "{text}");
    mode(0o600);
    let (code, text) = reload();
    assert_eq!(code, Some(0), "{text}");
}

#[test]
fn a_missing_file_is_shown_where_it_is_named() {
    let folder = folder();
    for (setting, name) in [
        ("basic-auth \"Realm\" file=\"users.txt\"", "users.txt: No such file or directory"),
        ("error-page 404 file=\"none.html\"", "none.html: No such file or directory"),
    ] {
        folder.write(
            "site.kdl",
            format!("route \"/a\" {{\n    {setting}\n    files public\n}}\nfiles public\n"),
        );
        let output = Command::new(program("flatout"))
            .current_dir(&folder.0)
            .args(["check", "site.kdl"])
            .output()
            .unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        let column = 5 + setting.find("file=").unwrap();
        assert!(!output.status.success() && said.contains(name), "{said}");
        assert!(said.contains(&format!("site.kdl:2:{column}: ")), "{said}");
    }
}

#[test]
fn a_site_for_all_other_names_is_explained_and_no_help_is_repeated() {
    let folder = folder();
    folder.write(
        "site.kdl",
        "hide \"*.php\"\nhide \"*.bak\"\nsite a.test \"*\" {\n files public\n}\nsite \"*.b.test\" { respond 200 b; }\n",
    );
    let explained = |url: &str| {
        let mut command = Command::new(program("flatout"));
        let output = command.current_dir(&folder.0).args(["explain", "GET", url, "-c", "site.kdl"]).output();
        String::from_utf8(output.unwrap().stdout).unwrap()
    };
    let other = explained("http://other.test/");
    assert!(other.starts_with("site       a.test, line 3, for names that no site has\n"), "{other}");
    assert_eq!(other.matches("names of files and folders that are not served").count(), 1, "{other}");
    assert!(other.contains("setting    hide *.bak, line 2\n"), "{other}");
    for (url, site) in [("http://a.test:81/", "a.test, line 3\n"), ("http://x.b.test/", "*.b.test, line 6\n")]
    {
        let named = explained(url);
        assert!(named.starts_with(&format!("site       {site}")), "{named}");
    }
}

#[test]
fn every_rule_of_a_route_is_explained() {
    let folder = folder();
    folder.write(
        "site.kdl",
        "listen \"127.0.0.1:8080\"\nhead-bytes \"32KiB\"\nlog-format json\naccess-log log\nupstream api {\n    server \"http://127.0.0.1:1\"\n    read-time \"30s\"\n    failures 5\n}\nsite a.test {\n    encode br gzip\n    rewrite-prefix \"/old/\" \"/api/\"\n    route \"/api\" {\n        allow \"10.0.0.0/8\"\n        deny all\n        rate-limit \"5/s\" burst=2\n        cors \"https://app.example\" credentials=on max-age=\"1h\"\n        cache \"60s\"\n        cache-bypass \"$cookie_session\"\n        cache-ignore vary\n        request-header set X-A \"$host\"\n        response-header remove X-B\n        expires \"2h\"\n        error-page \"500-599\" text=sorry upstream=on\n        proxy-cookie-path \"/a\" \"/b\"\n        x-forwarded off\n        when \"method == 'POST'\" { deny unix; cache off; }\n        proxy api\n    }\n    files public\n}\n",
    );
    let output = Command::new(program("flatout"))
        .current_dir(&folder.0)
        .args(["explain", "GET", "http://a.test/old/1?q", "-c", "site.kdl", "--from", "10.1.2.3"])
        .output()
        .unwrap();
    let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    for line in [
        "rewrite    /old/ at the start becomes /api/\n",
        "path       /api/1\n",
        "access     allow 10.0.0.0/8, deny all\n",
        "rate       5 in 1s with a burst of 2, for each client address",
        "CORS       pages of https://app.example may read responses; methods GET, HEAD, POST; with cookies; preflights are kept for 1h\n",
        "request    X-A: $host\n",
        "upstream   api: 127.0.0.1:1\n",
        "cache      GET and HEAD; if the response does not say it: 200 for 1m\n",
        "cache      not used if $cookie_session is neither empty nor 0\n",
        "cache      ignores Vary\n",
        "cookies    /a at the start of Path becomes /b\n",
        "response   no X-B\n",
        "expires    2h after a successful response",
        "compress   br at level ",
        "page       for 500-599: the text \"sorry\"",
        "when       method == 'POST'\n",
        "setting    read-time 30s, line 7: maximum time in which a server sends no data of a response\n",
        "setting    failures 5, line 8: ",
        "setting    x-forwarded off, line 26: ",
        "setting    head-bytes 32KiB, line 2: largest request head\n",
        "setting    log-format json, line 3: ",
        "log        log\n",
        "client     10.1.2.3\n",
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
}
