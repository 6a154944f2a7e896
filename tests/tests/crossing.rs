//! Commands and signals that meet an upgrade: what was acknowledged stays done, and a service that is stopped stops.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread;

use flatout_tests::upgrading::{Installed, Orphan, orphan, upgrade};
use flatout_tests::{Folder, PATIENCE, Server, Signal, program, until};

/// A server whose next process waits before it starts, until the test lets it.
struct Site {
    folder: Folder,
    admin: PathBuf,
    installed: Installed,
    server: Server,
}

impl Site {
    fn start(text: &str) -> Site {
        let (folder, installed) = (Folder::new(), Installed::new());
        let admin = folder.0.join("admin.sock");
        write(&folder, &admin, text);
        let mut command = Command::new(&installed.0);
        command.arg("serve").arg("-c").arg(folder.0.join("site.kdl")).stdin(Stdio::null());
        let server = Server::start(command);
        Site { folder, admin, installed, server }
    }

    fn write(&self, text: &str) {
        write(&self.folder, &self.admin, text);
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.0.join(name)
    }

    /// Makes the next process wait. A signal reaches the program itself.
    fn hold(&self) {
        let (held, go) = (self.path("held"), self.path("go"));
        self.installed.replace(&format!(
            "#!/bin/sh\necho $$ >{0}.new && mv {0}.new {0}\nwhile [ ! -e {1} ]; do sleep 0.05; done\nexec {2} \"$@\"\n",
            held.display(),
            go.display(),
            program("flatout").display()
        ));
    }

    /// The id of the next process, once it waits.
    fn held(&self) -> u32 {
        until("the next process", || self.path("held").exists());
        fs::read_to_string(self.path("held")).unwrap().trim().parse().unwrap()
    }

    fn release(&self) {
        fs::write(self.path("go"), "").unwrap();
    }

    fn command(&self, arguments: &[&str]) -> Output {
        let admin = format!("unix:{}", self.admin.display());
        Command::new(program("flatout")).args(arguments).args(["--admin", &admin]).output().unwrap()
    }

    fn body(&self) -> String {
        self.server.get("/", "").text()
    }
}

fn write(folder: &Folder, admin: &Path, text: &str) {
    let admin = admin.display();
    folder.write("site.kdl", format!("listen \"127.0.0.1:0\"\nworkers 1\nadmin \"unix:{admin}\"\n{text}\n"));
}

fn text_of(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr].concat()).into_owned()
}

fn is_there(pid: u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

/// A process that a test does not start itself; killed on drop.
fn owned(pid: u32) -> Orphan {
    orphan(&format!("process {pid}"))
}

#[test]
fn a_command_during_an_upgrade_is_refused_and_the_reload_can_be_tried_again() {
    let site = Site::start("respond 200 one");
    site.hold();
    let admin = site.admin.clone();
    let upgrading = thread::spawn(move || upgrade(&admin));
    site.held();
    site.write("respond 200 two");
    for command in [&["reload"][..], &["purge", "--all"], &["upgrade"]] {
        let output = site.command(command);
        assert_eq!(output.status.code(), Some(1), "{command:?}");
        assert!(text_of(&output).contains("an upgrade is under way"), "{command:?}: {}", text_of(&output));
    }
    assert_eq!(site.body(), "one", "what was refused is not done");
    site.release();
    let _successor = orphan(&upgrading.join().unwrap().unwrap());
    until("the new process reads the file that is there now", || site.body() == "two");
    site.write("respond 200 three");
    until("a reload of the new process", || site.command(&["reload"]).status.success());
    assert_eq!(site.body(), "three");
}

/// Nobody sees the answer to a signal: the reload is done by the process that serves in the end.
#[test]
fn a_reload_by_signal_during_an_upgrade_is_not_lost() {
    for succeeds in [true, false] {
        let site = Site::start("respond 200 one");
        let slow = if succeeds { "bus \"nats://127.0.0.1:1\"\n" } else { "" };
        site.write(&format!("{slow}route \"/live\" {{\n push\n}}\nrespond 200 two"));
        site.hold();
        let admin = site.admin.clone();
        let upgrading = thread::spawn(move || upgrade(&admin));
        let held = owned(site.held());
        if succeeds {
            site.release();
            // The new process has read the file, and waits for its bus.
            until("the new process has the listeners", || {
                fs::read_to_string(format!("/proc/{}/comm", held_pid(&site)))
                    .is_ok_and(|name| name.trim() == "flatout")
            });
        }
        site.write(&format!("{slow}route \"/live\" {{\n push\n}}\ndeny all\nrespond 200 three"));
        site.server.signal(Signal::HUP);
        if !succeeds {
            held.signal(Signal::KILL);
        }
        assert_eq!(upgrading.join().unwrap().is_ok(), succeeds);
        until("the last file is in force", || site.server.get("/", "").status == 403);
    }
}

fn held_pid(site: &Site) -> String {
    fs::read_to_string(site.path("held")).unwrap().trim().to_owned()
}

#[test]
fn logs_that_are_rotated_during_an_upgrade_are_reopened_by_the_new_process() {
    let site = Site::start("route \"/live\" {\n push\n}\nrespond 200 one");
    let log = site.path("access.log");
    // The new process waits for its bus, after it has opened its log.
    site.write(
        "bus \"nats://127.0.0.1:1\"\naccess-log \"access.log\" flush=\"10ms\"\nroute \"/live\" {\n push\n}\nrespond 200 two",
    );
    site.hold();
    let admin = site.admin.clone();
    let upgrading = thread::spawn(move || upgrade(&admin));
    let pid = site.held();
    site.release();
    let has_opened = || {
        let files = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        files.filter_map(|file| fs::read_link(file.path()).ok()).any(|file| file == log)
    };
    until("the new process has opened its log", has_opened);
    fs::rename(&log, site.path("access.log.1")).unwrap();
    site.server.signal(Signal::USR1);
    let _successor = orphan(&upgrading.join().unwrap().unwrap());
    until("a new log", || {
        site.body();
        fs::read_to_string(&log).is_ok_and(|text| !text.is_empty())
    });
}

#[test]
fn a_service_that_is_stopped_during_an_upgrade_stops() {
    let mut site = Site::start("route \"/live\" {\n push\n}\nrespond 200 one");
    let mut subscriber = subscribe(&site);
    site.hold();
    let admin = site.admin.clone();
    let upgrading = thread::spawn(move || upgrade(&admin));
    let pid = site.held();
    site.server.signal(Signal::TERM);
    let why = upgrading.join().unwrap().unwrap_err();
    assert!(why.contains("the server was told to stop, so the upgrade was given up"), "{why}");
    assert!(site.server.wait().success());
    until("the next process ends", || !is_there(pid));
    assert!(TcpStream::connect(site.server.address).is_err());
    let mut told = String::new();
    subscriber.read_to_string(&mut told).unwrap();
    assert_eq!(told.matches("event: end").count(), 1, "{told}");
}

/// A next process that is ready must not be started by a process that was told to stop.
#[test]
fn a_service_that_is_stopped_while_the_next_process_starts_leaves_nothing_behind() {
    for round in 0..8 {
        let mut site = Site::start("route \"/live\" {\n push\n}\nrespond 200 one");
        let admin = site.admin.clone();
        let upgrading = thread::spawn(move || upgrade(&admin));
        // Each round at another moment of the upgrade.
        for _ in 0..round {
            let _ = site.server.connect();
            thread::yield_now();
        }
        site.server.signal(Signal::TERM);
        let said = upgrading.join().unwrap();
        assert!(site.server.wait().success());
        match &said {
            // It came before the new process served, or before the command.
            Err(why) => assert!(
                why.contains("given up")
                    || why.contains("ended")
                    || why.contains("refused")
                    || why.contains("No such file"),
                "{why}"
            ),
            Ok(said) => {
                let pid: u32 = said.split_whitespace().nth(1).unwrap().parse().unwrap();
                let _successor = owned(pid);
                assert!(said.contains("the new process stops too"), "{said}");
                until("it stops", || !is_there(pid));
            }
        }
        until("nobody listens", || TcpStream::connect(site.server.address).is_err());
    }
}

#[test]
fn a_new_process_goes_on_if_the_old_one_is_killed_before_it_starts() {
    // The new process waits for its bus before it is ready, with the listeners in its hands.
    let mut site = Site::start("route \"/live\" {\n push\n}\nrespond 200 one");
    site.write("bus \"nats://127.0.0.1:1\"\nroute \"/live\" {\n push\n}\nrespond 200 two");
    site.hold();
    let mut command = Command::new(program("flatout"));
    command.arg("upgrade").arg("--admin").arg(format!("unix:{}", site.admin.display()));
    let mut upgrading = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let pid = site.held();
    let successor = owned(pid);
    site.release();
    // Its sockets: the connection to the old process, and its listeners.
    let listens = || {
        let sockets = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        let is_socket = |path: &PathBuf| path.to_string_lossy().starts_with("socket:");
        let named = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        named.trim() == "flatout"
            && sockets.filter_map(|entry| fs::read_link(entry.path()).ok()).filter(is_socket).count() >= 4
    };
    until("it has the listeners", listens);
    site.server.signal(Signal::KILL);
    assert!(!site.server.wait().success());
    until("it serves", || {
        let mut said = String::new();
        TcpStream::connect(site.server.address).is_ok_and(|mut stream| {
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            let asked = stream.write_all(b"GET / HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n");
            asked.is_ok() && stream.read_to_string(&mut said).is_ok() && said.ends_with("two")
        })
    });
    let mut why = String::new();
    upgrading.stderr.take().unwrap().read_to_string(&mut why).unwrap();
    assert_eq!(upgrading.wait().unwrap().code(), Some(1));
    assert!(why.contains("the server has ended before it responded"), "{why}");
    // It takes commands as any server does.
    site.write("bus \"nats://127.0.0.1:1\"\nroute \"/live\" {\n push\n}\nrespond 200 three");
    until("a reload", || site.command(&["reload"]).status.success());
    assert_eq!(site.body(), "three");
    successor.signal(Signal::TERM);
    until("it ends", || !successor.is_there());
}

/// A subscriber, after the head of its response.
fn subscribe(site: &Site) -> BufReader<TcpStream> {
    let mut stream = site.server.connect();
    stream.write_all(b"GET /live/a HTTP/1.1\r\nHost: t\r\n\r\n").unwrap();
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    while line != "\r\n" {
        line.clear();
        assert!(reader.read_line(&mut line).unwrap() > 0, "closed before the end of the head");
    }
    reader
}
