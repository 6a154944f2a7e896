//! The terminal output for people, which must not appear anywhere else.

use std::process::Command;

use flatout_tests::terminal::Terminal;
use flatout_tests::{Folder, Server, Signal, program};
use rustix::process::{Pid, kill_process};

/// Switches to the alternate screen and back.
const SCREEN: &str = "\x1b[?1049h";
const BACK: &str = "\x1b[?1049l";

fn flatout(arguments: &[&str]) -> Command {
    let mut command = Command::new(program("flatout"));
    command.args(arguments).env("TERM", "xterm-256color");
    // Variables of the shell that enable or disable colour.
    for asked in ["NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "CI"] {
        command.env_remove(asked);
    }
    command
}

#[test]
fn colour_is_for_terminals_that_want_it() {
    for arguments in [&["--help"][..], &["bench", "--help"], &["bench"], &["bench", "ftp://x"]] {
        let shown = |name: &str, value: &str| {
            let mut command = flatout(arguments);
            command.env(name, value);
            Terminal::start(command).end().1
        };
        assert!(shown("TERM", "xterm").contains('\x1b'), "{arguments:?}");
        assert!(!shown("NO_COLOR", "1").contains('\x1b'), "{arguments:?}");
        assert!(!shown("TERM", "dumb").contains('\x1b'), "{arguments:?}");
    }
}

#[test]
fn serve_prints_a_useful_summary() {
    let folder = Folder::new();
    folder.write("index.html", "0123456789");
    let path = folder.0.to_str().unwrap();
    let terminal = Terminal::start(flatout(&[
        "serve",
        path,
        "--listen",
        "127.0.0.1:0",
        "--workers",
        "1",
        "--compress",
        "off",
    ]));
    terminal.wait_for("Ctrl-C");
    kill_process(Pid::from_raw(terminal.pid() as i32).unwrap(), Signal::TERM).unwrap();
    let (status, shown) = terminal.end();
    assert!(status.success(), "{shown}");
    for expected in [
        "http://127.0.0.1:",
        path,
        "(1 file, ",
        "1 workers",
        "stop     Ctrl-C",
        "requests not logged; --access-log - shows them",
    ] {
        assert!(shown.contains(expected), "{expected}: {shown}");
    }
}

#[test]
fn bench_is_live_and_gives_the_terminal_back() {
    let server = Server::json();
    let url = format!("http://{}/json", server.address);
    // Its own end, a key, Ctrl-C, and a signal.
    for (duration, ending) in
        [("4s", None), ("60s", Some("q")), ("60s", Some("\x03")), ("60s", Some("signal"))]
    {
        let mut terminal = Terminal::start(flatout(&["bench", &url, "-c4", "-d", duration]));
        terminal.wait_for("p99.9");
        match ending {
            Some("signal") => {
                kill_process(Pid::from_raw(terminal.pid() as i32).unwrap(), Signal::INT).unwrap()
            }
            Some(key) => terminal.press(key),
            None => {}
        }
        let (status, shown) = terminal.end();
        assert!(status.success(), "{ending:?}: {shown}");
        let (live, rest) = shown.split_once(BACK).unwrap_or_else(|| panic!("{ending:?}: {shown}"));
        assert!(live.contains(SCREEN) && live.contains("Requests/s") && !rest.contains(SCREEN), "{shown}");
        assert!(rest.contains("Requests/sec:") && rest.contains("Status codes: 200 × "), "{rest}");
        assert_eq!(rest.contains("stopped early"), ending.is_some(), "{rest}");
    }
}

#[test]
fn tune_shows_how_long_it_watches() {
    let arguments = ["tune", "--watch", "600ms"];
    let (status, shown) = Terminal::start(flatout(&arguments)).end();
    assert!(status.success() && shown.contains("1 s left · watching the kernel's counters"), "{shown}");
    let output = flatout(&arguments).output().unwrap();
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(!told.contains('\x1b') && told.is_empty(), "{told}");
}

#[test]
fn bench_shows_nothing_to_programs() {
    let server = Server::json();
    let url = format!("http://{}/json", server.address);
    let terminal = Terminal::start(flatout(&["bench", &url, "-c1", "-d", "200ms", "--json"]));
    let (status, shown) = terminal.end();
    assert!(status.success() && !shown.contains('\x1b'), "{shown}");
    let output = flatout(&["bench", &url, "-c1", "-d", "200ms"]).output().unwrap();
    assert!(output.stderr.is_empty() && !output.stdout.contains(&0x1b));
}

#[test]
fn the_terminal_is_restored_after_a_failed_measurement() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let (status, shown) = Terminal::start(flatout(&["bench", &format!("http://{free}/")])).end();
    assert_eq!(status.code(), Some(1));
    let (_, rest) = shown.rsplit_once(BACK).unwrap_or(("", &shown));
    assert!(rest.contains("Connection refused") && !rest.contains(SCREEN), "{shown}");
}
