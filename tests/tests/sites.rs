//! `flatout serve -c`, `check`, `fmt`, `explain` and `reload`, from outside.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use flatout_tests::{Folder, Server, program, until};
use rustix::process::Signal;

fn flatout(arguments: &[&str]) -> Output {
    Command::new(program("flatout")).args(arguments).stdin(Stdio::null()).output().unwrap()
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// A server of the folder's `site.kdl`.
fn served(folder: &Folder, flags: &[&str]) -> Server {
    let mut command = Command::new(program("flatout"));
    command
        .arg("serve")
        .arg("-c")
        .arg(folder.0.join("site.kdl"))
        .args(["--listen", "127.0.0.1:0"])
        .args(flags);
    Server::start(command)
}

/// A request to a site by its name.
fn get(server: &Server, host: &str, target: &str) -> (u16, String) {
    let answer = server.one(&format!("GET {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"));
    (answer.status, answer.text())
}

#[test]
fn sites_are_served_by_their_names() {
    let (folder, behind) = (Folder::new(), Folder::new());
    behind.write("users.txt", "ann");
    let upstream = Server::site(&behind.0, &["--workers", "1"]);
    folder.write("public/index.html", "home");
    folder.write("pages/gone.html", "gone");
    let site = format!(
        "site \"a.test\" {{\n  files public\n  error-page 404 file=\"pages/gone.html\"\n  route \"/api/\" {{\n    proxy \"http://{}\"\n    \
         rewrite-prefix \"/api/\" \"/\"\n  }}\n  route \"/v[0-9]+/(.*)\" match=regex {{ redirect \"/new/$1\" status=301; }}\n}}\n\
         site \"*\" {{ respond 404 \"no such site\"; }}\n",
        upstream.address
    );
    folder.write("site.kdl", site);
    let server = served(&folder, &["--workers", "2"]);
    for (host, target, expected) in [
        ("a.test", "/", (200, "home")),
        ("A.test:80", "/", (200, "home")),
        ("a.test", "/none", (404, "gone")),
        ("a.test", "/api/users.txt", (200, "ann")),
        ("a.test", "/v1/x", (301, "")),
        ("b.test", "/", (404, "no such site")),
    ] {
        let (status, text) = get(&server, host, target);
        assert_eq!((status, text.as_str()), expected, "{host}{target}");
    }
    let file = folder.0.join("site.kdl").display().to_string();
    let told = said(&flatout(&["explain", "GET", "http://a.test/api/x?y", "-c", &file]));
    for line in
        ["site       a.test, line 1\n", "route      /api/, line 4\n", "path       /x\n", "asked for  /x?y\n"]
    {
        assert!(told.contains(line), "{told}");
    }
    let told = said(&flatout(&["explain", "GET", "http://a.test/%zz", "-c", &file]));
    assert!(told.contains("response   400: "), "{told}");
}

#[test]
fn upstreams_are_served_by_flags_alone() {
    let behind = Folder::new();
    behind.write("a.txt", "from behind");
    let upstream = Server::site(&behind.0, &["--workers", "1"]);
    let mut command = Command::new(program("flatout"));
    let to = format!("http://{}", upstream.address);
    command.args([
        "serve",
        "--to",
        &to,
        "--listen",
        "127.0.0.1:0",
        "--workers",
        "1",
        "--response-header",
        "set X-By flatout",
    ]);
    let server = Server::start(command);
    let answer = server.get("/a.txt", "");
    assert_eq!(
        (answer.status, answer.text().as_str(), answer.field("X-By")),
        (200, "from behind", Some("flatout"))
    );
}

#[test]
fn files_are_checked_and_formatted() {
    let folder = Folder::new();
    let write = |text: &str| folder.write("site.kdl", text);
    let file = folder.0.join("site.kdl").display().to_string();
    write("files   \"public\" // here\nsite a { respond 200 }");
    assert!(said(&flatout(&["check", &file])).ends_with("site.kdl: valid\n"));
    let output = flatout(&["fmt", "--check", &file]);
    assert_eq!((output.status.code(), said(&output).contains("not formatted: ")), (Some(1), true));
    assert_eq!(flatout(&["fmt", &file]).status.code(), Some(0));
    let formatted = "files \"public\" // here\nsite a {\n    respond 200\n}\n";
    assert_eq!(std::fs::read_to_string(&file).unwrap(), formatted);
    assert_eq!(flatout(&["fmt", "--check", &file]).status.code(), Some(0));
    write("files \"public\"\ncompres off\n");
    for arguments in [&["check", &file][..], &["serve", "-c", &file], &["reload", "-c", &file]] {
        let output = flatout(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        let told = said(&output);
        assert!(
            told.contains(":2:1: unknown setting `compres` at the top of the file; did you mean `compress`?\n  2 | compres off\n"),
            "{told}"
        );
    }
    assert!(said(&flatout(&["check", "--schema"])).contains("\"$schema\""));
}

/// Asks the admin listener to reload, as `flatout reload` does.
fn reload(socket: &std::path::Path) -> String {
    let mut stream = UnixStream::connect(socket).unwrap();
    stream
        .write_all(
            b"POST /reload HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
        )
        .unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

/// How often it is reloaded under load.
const RELOADS: usize = 200;

/// Clients that ask without a pause on connections that stay open lose nothing, however often the plan changes.
#[test]
fn nothing_is_lost_by_reloads() {
    let folder = Folder::new();
    folder.write("public/a.txt", "file");
    let socket = folder.0.join("admin.sock");
    let write = |word: &str| {
        let admin = format!("admin \"unix:{}\"\n", socket.display());
        folder.write("site.kdl", format!("{admin}files public\nroute \"/word\" {{ respond 200 {word}; }}\n"));
    };
    write("one");
    let server = served(&folder, &["--workers", "2"]);
    let (ends, count) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let clients: Vec<_> = (0..4)
        .map(|index| {
            let (mut stream, ends, count) = (server.connect(), ends.clone(), count.clone());
            std::thread::spawn(move || {
                let target = if index % 2 == 0 { "/word" } else { "/a.txt" };
                let request = format!("GET {target} HTTP/1.1\r\nHost: t\r\n\r\n");
                let mut bytes = vec![0; 4096];
                while !ends.load(Ordering::Relaxed) {
                    stream.write_all(request.as_bytes()).unwrap();
                    let mut text = String::new();
                    while !["one", "two", "file"].iter().any(|end| text.ends_with(end)) {
                        let read = stream.read(&mut bytes).unwrap();
                        assert!(read > 0, "the connection was closed after {text:?}");
                        text.push_str(std::str::from_utf8(&bytes[..read]).unwrap());
                    }
                    assert!(text.starts_with("HTTP/1.1 200 OK\r\n"), "{text}");
                    count.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    for index in 0..RELOADS {
        let word = ["two", "one"][index % 2];
        write(word);
        let text = reload(&socket);
        assert!(text.starts_with("HTTP/1.1 200 OK\r\n") && text.contains("1 site, 2 routes"), "{text}");
        assert_eq!(get(&server, "t", "/word"), (200, word.to_owned()), "what was reloaded is served");
    }
    let before = count.load(Ordering::Relaxed);
    until("clients go on", || count.load(Ordering::Relaxed) > before + 100);
    ends.store(true, Ordering::Relaxed);
    clients.into_iter().for_each(|client| client.join().unwrap());
}

#[test]
fn a_bad_file_is_refused_and_the_old_plan_stays() {
    let folder = Folder::new();
    folder.write("site.kdl", "respond 200 one\n");
    let server = served(&folder, &["--workers", "1"]);
    let waits_for = |text: &str| {
        until(text, || server.said().iter().any(|line| line.contains(text)));
    };
    folder.write("site.kdl", "respond 200 two three\n");
    server.signal(Signal::HUP);
    waits_for("not reloaded, the old configuration stays in use: ");
    waits_for(":1:17: `respond` takes 2 values");
    assert_eq!(get(&server, "t", "/"), (200, "one".to_owned()));
    folder.write("site.kdl", "files \"nowhere\"\n");
    server.signal(Signal::HUP);
    waits_for("nowhere` is not a folder");
    assert_eq!(get(&server, "t", "/"), (200, "one".to_owned()));
    // What belongs to the process says so.
    folder.write("site.kdl", "backlog 7\nrespond 200 three\n");
    server.signal(Signal::HUP);
    waits_for("need a restart");
    assert_eq!(get(&server, "t", "/"), (200, "three".to_owned()));
}
