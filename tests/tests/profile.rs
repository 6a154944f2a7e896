//! `flatout profile` on a real server under load: its findings, its files, its comparisons, and what it refuses.

use std::io::{Read, Write};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use flatout_tests::{Folder, Server, Signal, program, until};
use rustix::process::{Pid, kill_process};
use serde_json::Value;

/// A client that sends the same request until it is dropped, and counts the responses.
struct Load {
    ended: Arc<AtomicBool>,
    answered: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Load {
    fn on(server: &Server) -> Load {
        let (ended, answered) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let mut stream = server.connect();
        let (end, count) = (ended.clone(), answered.clone());
        let thread = std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while !end.load(Ordering::Relaxed) {
                stream.write_all(b"GET /json HTTP/1.1\r\nHost: t\r\n\r\n").unwrap();
                assert!(stream.read(&mut buffer).unwrap() > 0, "the server closed");
                count.fetch_add(1, Ordering::Relaxed);
            }
        });
        Load { ended, answered, thread: Some(thread) }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        let result = self.thread.take().map(JoinHandle::join);
        assert!(std::thread::panicking() || matches!(result, Some(Ok(()))), "the load failed");
    }
}

fn profile(arguments: &[&str]) -> Output {
    Command::new(program("flatout")).arg("profile").args(arguments).output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Whether this host forbids sampling; then the test is that this is reported.
fn refused(output: &Output) -> bool {
    let message = said(output);
    let refused = message.contains("does not let us sample") || message.contains("no perf_event_open");
    assert!(!refused || output.status.code() == Some(1), "{message}");
    refused
}

#[test]
fn a_loaded_server_is_found_by_its_port_and_shown() {
    let server = Server::json();
    let load = Load::on(&server);
    let folder = Folder::new();
    let path = |name: &str| folder.0.join(name).to_string_lossy().into_owned();
    let (page, json, folded, speedscope) =
        (path("p.html"), path("p.json"), path("p.folded"), path("p.speedscope"));
    let before = load.answered.load(Ordering::Relaxed);
    let port = server.address.port().to_string();
    #[rustfmt::skip]
    let output = profile(&[
        "--port", &port, "--duration", "2s", "--frequency", "997", "--requests-per-s", "10000",
        "--report", &page, "--json", &json, "--folded", &folded, "--speedscope", &speedscope,
    ]);
    if refused(&output) {
        return;
    }
    assert!(output.status.success(), "{}", said(&output));
    assert!(load.answered.load(Ordering::Relaxed) > before, "the server went on meanwhile");
    let table = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(table.starts_with(&format!("hello-json (process {})", server.pid())), "{table}");
    assert!(table.contains("µs/request") && table.contains("\nall "), "{table}");
    let text = |path: &str| std::fs::read_to_string(path).unwrap();
    let stacks = text(&folded);
    assert!(stacks.lines().all(|line| line.rsplit(' ').next().unwrap().parse::<u64>().is_ok()), "{stacks}");
    assert!(stacks.contains("flatout_engine::"), "the server's own functions have names: {stacks}");
    if !table.contains("note: ") {
        assert!(stacks.contains("tcp_sendmsg_[k]"), "the kernel's have too: {stacks}");
        assert!(table.contains("TCP send") && table.contains("TCP receive"), "{table}");
    }
    assert!(text(&page).contains("flatout_engine::") && text(&speedscope).contains("\"sampled\""));

    let difference = profile(&["--diff", &json, &json, "--report", &page]);
    assert!(difference.status.success(), "{}", said(&difference));
    let table = String::from_utf8_lossy(&difference.stdout).into_owned();
    let all = table.lines().find(|line| line.starts_with("all ")).unwrap();
    assert!(all.ends_with(" 0.000"), "a profile does not differ from itself: {table}");
    assert!(text(&page).contains("\"before\""));
}

#[test]
fn the_end_of_the_server_is_the_end_of_the_sampling() {
    let mut server = Server::json();
    let pid = server.pid().to_string();
    let sampling = std::thread::spawn(move || profile(&["--pid", &pid, "--duration", "600s"]));
    // Sampling may or may not have started: it ends in both cases, with a message.
    server.signal(Signal::TERM);
    server.wait();
    let output = sampling.join().unwrap();
    let ended_early = said(&output).contains("there is no process");
    assert!(output.status.success() || ended_early || refused(&output), "{}", said(&output));
}

#[test]
fn failures_to_sample_are_reported() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    for (arguments, code, expected) in [
        (&["--port", &free.to_string()][..], 1, "listens on port"),
        (&["--pid", "4194305"], 1, "there is no process 4194305"),
        (&["--frequency", "0"], 2, "need 1 to 10000"),
        (&["--diff", "a.json"], 2, "2 values required for '--diff <BEFORE> <AFTER>'"),
    ] {
        let output = profile(arguments);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}");
        assert!(said(&output).contains(expected), "{}", said(&output));
    }
}

#[test]
fn files_other_than_profiles_are_reported() {
    let folder = Folder::new();
    let path = |name: &str| folder.0.join(name).to_string_lossy().into_owned();
    for content in ["", "{", "[]", "{\"format\":\"flatout-profile-1\"}", "\u{0}\u{1}"] {
        folder.write("bad.json", content);
        let output = profile(&["--diff", &path("bad.json"), &path("bad.json")]);
        assert_eq!(output.status.code(), Some(2), "{content}");
        assert!(said(&output).contains("bad.json: not a profile: "), "{}", said(&output));
    }
    let output = profile(&["--diff", "/dev/zero", &path("bad.json")]);
    assert_eq!(output.status.code(), Some(2));
    assert!(said(&output).contains("`/dev/zero` is larger than"), "{}", said(&output));
}

/// Starts to sample for ten minutes, and waits for its start; `None` if this host forbids it.
fn sampling(server: &Server, arguments: &[&str]) -> Option<Child> {
    let mut command = Command::new(program("flatout"));
    command.args(["profile", "--pid", &server.pid().to_string(), "--duration", "600s"]).args(arguments);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let folder = format!("/proc/{}/fd", child.id());
    let is_event = |entry: std::fs::DirEntry| {
        std::fs::read_link(entry.path()).is_ok_and(|link| link.to_string_lossy().contains("perf_event"))
    };
    let mut is_over = false;
    until("sampling has begun", || {
        is_over = child.try_wait().unwrap().is_some();
        is_over || std::fs::read_dir(&folder).is_ok_and(|entries| entries.flatten().any(is_event))
    });
    if is_over {
        let output = child.wait_with_output().unwrap();
        assert!(refused(&output), "{}", said(&output));
        return None;
    }
    Some(child)
}

fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

#[test]
fn an_interrupted_sampling_writes_its_samples() {
    let server = Server::json();
    let load = Load::on(&server);
    let folder = Folder::new();
    for end in [Signal::INT, Signal::TERM] {
        let json = folder.0.join(format!("{}.json", end.as_raw()));
        let Some(child) = sampling(&server, &["--frequency", "997", "--json", &json.to_string_lossy()])
        else {
            return;
        };
        let before = load.answered.load(Ordering::Relaxed);
        until("the server works", || load.answered.load(Ordering::Relaxed) > before + 1000);
        signal(&child, end);
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", said(&output));
        let table = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(table.contains("\nall "), "{table}");
        let result: Value = serde_json::from_str(&std::fs::read_to_string(&json).unwrap()).unwrap();
        assert!(result["sample_count"].as_u64().unwrap() > 0, "{result}");
        assert!(result["seconds"].as_f64().unwrap() < 600.0, "the time is what was sampled: {result}");
    }
}

#[test]
fn a_second_signal_ends_at_once() {
    let server = Server::json();
    let folder = Folder::new();
    let json = folder.0.join("p.json");
    let Some(mut child) = sampling(&server, &["--json", &json.to_string_lossy()]) else { return };
    // Both signals arrive while it is stopped, so that neither is handled before the other is pending.
    for each in [Signal::STOP, Signal::INT, Signal::TERM, Signal::CONT] {
        signal(&child, each);
    }
    let code = child.wait().unwrap().code();
    assert!(code == Some(128 + 2) || code == Some(128 + 15), "{code:?}");
    assert!(!json.exists());
}

#[test]
fn a_server_in_another_network_is_named() {
    if !Command::new("unshare").args(["--net", "true"]).status().is_ok_and(|status| status.success()) {
        let _ = writeln!(std::io::stderr(), "skipped: no network namespace may be made here");
        return;
    }
    let mut command = Command::new("unshare");
    command.arg("--net").arg(program("hello-json")).args(["--listen", "0.0.0.0:0", "--workers", "1"]);
    let server = Server::start(command);
    let output = profile(&["--port", &server.address.port().to_string()]);
    assert_eq!(output.status.code(), Some(1));
    let expected = format!("process {} does in another one; or give --pid", server.pid());
    assert!(said(&output).contains(&expected), "{}", said(&output));
}

/// Root can become nobody, who may not sample another user's process.
#[test]
fn missing_permissions_are_reported_with_advice() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let server = Server::json();
    let folder = Folder::new();
    // The user nobody cannot read the build folder.
    let copy = folder.0.join("flatout");
    std::fs::copy(program("flatout"), &copy).unwrap();
    let (pid, port) = (server.pid().to_string(), server.address.port().to_string());
    for (flag, value, expected) in
        [("--pid", &pid, "run as root"), ("--port", &port, "cannot be inspected: run as root")]
    {
        let mut command = Command::new("setpriv");
        command.args([
            "--reuid=65534",
            "--regid=65534",
            "--clear-groups",
            "--inh-caps=-all",
            "--bounding-set=-all",
        ]);
        let output = command.arg(&copy).args(["profile", "--duration", "1s", flag, value]).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{}", said(&output));
        assert!(said(&output).contains(expected), "{}", said(&output));
    }
}
