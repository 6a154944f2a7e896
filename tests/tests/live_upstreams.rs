//! `flatout upstream`: servers of a running upstream are added, drained, weighted and removed, under load, over a reload, a
//! restart and an upgrade.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use flatout_tests::peers::free_port;
use flatout_tests::upgrading::{orphan, upgrade};
use flatout_tests::{Folder, Server, Signal, program, until};

/// The number of clients, each with one connection.
const CLIENTS: usize = 8;

/// How long the load lasts at most.
const LOAD_TIME_MAX: Duration = Duration::from_secs(60);

/// A server whose responses are JSON.
pub(crate) fn json(port: u16) -> Server {
    let mut command = Command::new(program("hello-json"));
    command.args(["--listen", &format!("127.0.0.1:{port}"), "--workers", "1"]);
    Server::start(command)
}

/// A proxy with an admin listener in a folder.
pub(crate) struct Site {
    pub(crate) folder: Folder,
    pub(crate) server: Server,
}

impl Site {
    /// A proxy whose upstream `app` has these servers, and these further settings.
    pub(crate) fn of(servers: &[u16], settings: &str) -> Site {
        Site::in_folder(Folder::new(), servers, settings)
    }

    /// The same in a folder that has files already.
    pub(crate) fn in_folder(folder: Folder, servers: &[u16], settings: &str) -> Site {
        write(&folder, servers, settings);
        let server = start(&folder);
        Site { folder, server }
    }

    pub(crate) fn admin(&self) -> PathBuf {
        self.folder.0.join("admin.sock")
    }

    /// What `flatout upstream` prints, or why it fails.
    pub(crate) fn upstream(&self, arguments: &[&str]) -> Result<String, String> {
        let mut command = Command::new(program("flatout"));
        command
            .arg("upstream")
            .args(arguments)
            .arg("--admin")
            .arg(format!("unix:{}", self.admin().display()));
        let output = command.env("USER", "tester").env_remove("SUDO_USER").output().unwrap();
        let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        if output.status.success() { Ok(text) } else { Err(text) }
    }

    pub(crate) fn reload(&self) -> String {
        let mut command = Command::new(program("flatout"));
        let output = command.args(["reload", "-c"]).arg(self.folder.0.join("site.kdl")).output().unwrap();
        let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert!(output.status.success(), "{text}");
        text
    }

    /// The line about a server in the list.
    pub(crate) fn line(&self, port: u16) -> Option<String> {
        let list = self.upstream(&["list", "app"]).unwrap();
        list.lines().find(|line| line.contains(&format!("127.0.0.1:{port} "))).map(str::to_owned)
    }

    pub(crate) fn has_logged(&self, text: &str) -> bool {
        self.server.said().iter().any(|line| line.contains(text))
    }

    /// The admin listener's response.
    pub(crate) fn page(&self, path: &str) -> String {
        let mut stream = std::os::unix::net::UnixStream::connect(self.admin()).unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    }
}

/// Writes the site file.
pub(crate) fn write(folder: &Folder, servers: &[u16], settings: &str) {
    let servers: String = servers.iter().map(|port| format!("    server \"127.0.0.1:{port}\"\n")).collect();
    let admin = folder.0.join("admin.sock");
    let text = format!(
        "listen \"127.0.0.1:0\"\nworkers 1\nadmin \"unix:{}\"\n\
         upstream app {{\n{servers}{settings}\n}}\nproxy app\n",
        admin.display()
    );
    folder.write("site.kdl", text);
}

/// Starts a server with the site file in this folder.
pub(crate) fn start(folder: &Folder) -> Server {
    let mut command = Command::new(program("flatout"));
    command.args(["serve", "-c"]).arg(folder.0.join("site.kdl"));
    Server::start(command)
}

/// The status of one GET on a persistent connection.
pub(crate) fn status(stream: &mut TcpStream) -> String {
    stream.write_all(b"GET /json HTTP/1.1\r\nHost: t\r\n\r\n").unwrap();
    let mut bytes = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let count = stream.read(&mut buffer).unwrap();
        assert_ne!(count, 0, "the client's connection ended after {:?}", String::from_utf8_lossy(&bytes));
        bytes.extend_from_slice(&buffer[..count]);
        let text = String::from_utf8_lossy(&bytes);
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let length =
            head.lines().find_map(|line| line.to_lowercase().strip_prefix("content-length: ")?.parse().ok());
        if length.is_none_or(|length: usize| body.len() >= length) {
            return head[9..12].to_owned();
        }
    }
}

#[test]
fn servers_come_and_go_under_load_and_no_request_fails() {
    let ports = [free_port(), free_port(), free_port()];
    let mut servers: Vec<Option<Server>> = ports.iter().map(|&port| Some(json(port))).collect();
    let site = Site::of(&ports[..2], "    retries 0");
    let name = |at: usize| format!("127.0.0.1:{}", ports[at]);
    let (served, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|_| {
                scope.spawn(|| {
                    let mut stream = site.server.connect();
                    let mut failed = Vec::new();
                    while !is_over.load(Ordering::Relaxed) {
                        let status = status(&mut stream);
                        served.fetch_add(1, Ordering::Relaxed);
                        if status != "200" {
                            failed.push(status);
                        }
                    }
                    failed
                })
            })
            .collect();
        let some_more = || {
            let from = served.load(Ordering::Relaxed);
            until("clients are served", || served.load(Ordering::Relaxed) >= from + 200);
        };
        let run = |arguments: &[&str]| {
            site.upstream(arguments).unwrap();
            some_more();
        };
        let began = Instant::now();
        for _ in 0..3 {
            if began.elapsed() > LOAD_TIME_MAX {
                break;
            }
            run(&["add", "app", &name(2), "--weight", "3"]);
            // A deployment of the first server.
            run(&["drain", "app", &name(0)]);
            until("it has finished its requests", || {
                site.line(ports[0]).is_some_and(|line| line.contains("  draining  0       0"))
            });
            drop(servers[0].take());
            some_more();
            servers[0] = Some(json(ports[0]));
            run(&["up", "app", &name(0)]);
            run(&["weight", "app", &name(1), "5"]);
            run(&["remove", "app", &name(2)]);
            run(&["set", "app", &name(2), &name(0)]);
            site.reload();
            some_more();
            run(&["set", "app", &name(0), &name(1)]);
        }
        is_over.store(true, Ordering::Relaxed);
        for client in clients {
            assert_eq!(client.join().unwrap(), Vec::<String>::new());
        }
    });
}

#[test]
fn operators_get_clear_messages_and_the_log_has_their_names() {
    let ports = [free_port(), free_port()];
    let _servers = [json(ports[0]), json(ports[1])];
    let site = Site::of(&ports, "");
    let [first, second] = ports.map(|port| format!("127.0.0.1:{port}"));
    let message = site.upstream(&["drain", "app", &first]).unwrap();
    assert!(message.contains("is draining and gets no more requests; 0 requests in progress"), "{message}");
    let again = site.upstream(&["drain", "app", &first]).unwrap();
    assert!(again.contains("nothing to do") && again.contains("already (by tester (uid "), "{again}");
    let line = format!("upstream app: server {first} is draining and gets no more requests");
    until("the log has it", || site.has_logged(&line) && site.has_logged("; by tester (uid "));
    let warned = site.upstream(&["down", "app", &second]).unwrap();
    assert!(warned.contains("no server is left: requests get 503"), "{warned}");
    assert!(site.server.get("/json", "").status == 503);

    let metrics = site.page("/metrics");
    let draining =
        format!("flatout_upstream_server_state{{upstream=\"app\",server=\"{first}\",state=\"draining\"}} 1");
    let set_down =
        format!("flatout_upstream_server_state{{upstream=\"app\",server=\"{second}\",state=\"set_down\"}} 1");
    assert!(metrics.contains(&draining) && metrics.contains(&set_down), "{metrics}");
    until("the live page has it", || site.page("/status").contains("\"state\":\"draining\""));
    let changed = site.line(ports[0]).unwrap();
    assert!(changed.contains("draining") && changed.contains("(by tester (uid "), "{changed}");

    let message = site.upstream(&["up", "app", &first]).unwrap();
    assert!(message.contains("(it was draining)"), "{message}");
    until("it gets requests again", || site.server.get("/json", "").status == 200);
    for (arguments, reason) in [
        (&["drain", "web", &first][..], "there is no upstream `web`; there are app"),
        (&["drain", "app", "127.0.0.1:1"], "upstream app has no server 127.0.0.1:1; it has 127.0.0.1:"),
        (&["drain", "app", "http://127.0.0.1:1/path"], "an upstream cannot have a path"),
        (&["add", "app", &first], "already (by tester (uid "),
        (&["add", "app", "127.0.0.1:1", "--weight", "0"], "got the weight 0, allowed are 1 to 1000000"),
        (&["weight", "app", &first, "many"], "got the weight `many`"),
        (&["weight", "app", &first], "weight needs UPSTREAM SERVER WEIGHT"),
        (&["drain", "app"], "drain needs UPSTREAM SERVER"),
        (&["drain", "app", &first, "--backup"], "--weight and --backup are for add"),
        (&["set", "app", &first, &first], "is listed twice"),
    ] {
        let refused = site.upstream(arguments).unwrap_err();
        assert!(refused.contains(reason), "{arguments:?}: {refused}");
    }
}

#[test]
fn changes_stay_over_a_reload_until_the_file_has_other_servers() {
    let ports = [free_port(), free_port(), free_port()];
    let _servers = ports.map(json);
    let site = Site::of(&ports[..2], "");
    let name = |at: usize| format!("127.0.0.1:{}", ports[at]);
    site.upstream(&["drain", "app", &name(0)]).unwrap();
    site.upstream(&["add", "app", &name(2), "--weight", "7"]).unwrap();
    let are_changed = |site: &Site| {
        site.line(ports[0]).is_some_and(|line| line.contains("  draining"))
            && site.line(ports[2]).is_some_and(|line| line.contains("  7  "))
    };
    // Another setting of the same upstream.
    write(&site.folder, &ports[..2], "    read-time \"3s\"");
    site.reload();
    assert!(are_changed(&site), "{:?}", site.upstream(&["list"]));

    let replaced = orphan(&upgrade(&site.admin()).unwrap());
    until("the new process has the changes", || site.upstream(&["list"]).is_ok() && are_changed(&site));
    assert_eq!(site.server.get("/json", "").status, 200);

    write(&site.folder, &ports[1..], "");
    site.reload();
    assert!(site.line(ports[0]).is_none());
    assert!(site.line(ports[2]).is_some_and(|line| line.contains("  1  ")), "the file wins");
    drop(replaced);
}

#[test]
fn all_changes_of_an_upstream_are_undone_at_once() {
    let ports = [free_port(), free_port(), free_port()];
    let _servers = ports.map(json);
    let folder = Folder::new();
    let file = folder.0.join("app.json");
    let mut site = Site::of(&ports[..2], &format!("    upstream-state \"{}\"", file.display()));
    let name = |at: usize| format!("127.0.0.1:{}", ports[at]);
    let state = |site: &Site| {
        ports.map(|port| {
            site.line(port).map(|line| line.split_whitespace().take(4).collect::<Vec<_>>().join(" "))
        })
    };
    let before = state(&site);
    assert!(
        site.upstream(&["undo", "app"]).unwrap().contains("nothing to do, nobody has changed its servers")
    );
    for command in [
        &["drain", "app", &name(0)][..],
        &["weight", "app", &name(0), "7"],
        &["remove", "app", &name(1)],
        &["add", "app", &name(2)],
    ] {
        site.upstream(command).unwrap();
    }
    assert_ne!(state(&site), before);
    let message = site.upstream(&["undo", "app"]).unwrap();
    for part in [
        format!("added {}", name(1)),
        format!("removed {}", name(2)),
        format!("new weight for {}", name(0)),
        "it has 2 now".to_owned(),
    ] {
        assert!(message.contains(&part), "{part}: {message}");
    }
    assert_eq!(state(&site), before);
    assert!(site.line(ports[0]).unwrap().contains("by tester"));
    // A server that is to go gets no requests first, and one that was added with another weight is as planned again.
    for command in [
        &["add", "app", &name(2)][..],
        &["down", "app", &name(2)],
        &["remove", "app", &name(1)],
        &["add", "app", &name(1), "--weight", "5"],
    ] {
        site.upstream(command).unwrap();
    }
    let message = site.upstream(&["undo", "app"]).unwrap();
    assert!(!message.contains("gets requests"), "{message}");
    assert_eq!(state(&site), before);
    assert!(site.upstream(&["undo", "app"]).unwrap().contains("nothing to do"));
    // A restart finds nothing to restore.
    site.server.signal(Signal::TERM);
    site.server.wait();
    site.server = start(&site.folder);
    assert_eq!(state(&site), before);
    for wrong in [&["undo"][..], &["undo", "app", &name(0)], &["undo", "other"]] {
        assert!(site.upstream(wrong).is_err(), "{wrong:?}");
    }
}

#[test]
fn a_state_file_keeps_changes_over_a_restart() {
    let ports = [free_port(), free_port(), free_port()];
    let _servers = ports.map(json);
    let folder = Folder::new();
    let file = folder.0.join("app.json");
    let setting = format!("    upstream-state \"{}\"", file.display());
    let mut site = Site::of(&ports[..2], &setting);
    let name = |at: usize| format!("127.0.0.1:{}", ports[at]);
    site.upstream(&["drain", "app", &name(0)]).unwrap();
    let message = site.upstream(&["add", "app", &name(2), "--backup"]).unwrap();
    assert!(!message.contains("restarted"), "{message}");
    let stop = |site: &mut Site| {
        site.server.signal(Signal::TERM);
        site.server.wait();
    };
    stop(&mut site);
    site.server = start(&site.folder);
    assert!(site.line(ports[0]).is_some_and(|line| line.contains("  draining")));
    assert!(site.line(ports[2]).is_some_and(|line| line.contains(", backup")));
    assert!(site.has_logged("changes of its servers were restored"));

    // The file of the site wins.
    stop(&mut site);
    write(&site.folder, &ports[..1], &setting);
    site.server = start(&site.folder);
    assert!(site.line(ports[0]).is_some_and(|line| line.contains("  up")) && site.line(ports[2]).is_none());
    assert!(site.has_logged("the site file has other servers than before"));

    // A broken file is not guessed at.
    stop(&mut site);
    fs::write(&file, "{\"upstream\":").unwrap();
    let mut command = Command::new(program("flatout"));
    let output = command.args(["serve", "-c"]).arg(site.folder.0.join("site.kdl")).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && text.contains("app.json: not a state file"), "{text}");
    fs::remove_file(&file).unwrap();

    // A file that cannot be written is reported, and the change is made.
    let missing = folder.0.join("missing");
    let setting = format!("    upstream-state \"{}\"", missing.join("app.json").display());
    write(&site.folder, &ports[..2], &setting);
    site.server = start(&site.folder);
    fs::write(&missing, "a file in place of the folder").unwrap();
    let message = site.upstream(&["drain", "app", &name(0)]).unwrap_err();
    assert!(message.contains("but it was not written to the upstream's state file: "), "{message}");
    assert!(site.line(ports[0]).is_some_and(|line| line.contains("  draining")));
}
