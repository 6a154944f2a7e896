//! `busy-poll`: polling the network card before a worker sleeps.

use std::path::Path;
use std::process::Command;

use flatout_tests::{Folder, Server, program};

fn serve(folder: &Folder, time: &str) -> Command {
    folder.write("site.kdl", "listen \"127.0.0.1:0\"\nrespond 200 \"hello\"\n");
    let mut command = Command::new(program("flatout"));
    command.current_dir(&folder.0).args(["serve", "-c", "site.kdl", "--busy-poll", time]);
    command
}

/// With a kernel that can, it serves as before; another one is an error at the start.
#[test]
fn a_kernel_polls_or_refuses() {
    let folder = Folder::new();
    if Path::new("/proc/sys/net/core/busy_poll").exists() {
        let server = Server::start(serve(&folder, "50us"));
        assert_eq!(server.get("/", "").status, 200);
        return;
    }
    let output = serve(&folder, "50us").output().expect("it runs");
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains("busy-poll: this kernel cannot"), "{text}");
}

#[test]
fn mistakes_are_reported() {
    let folder = Folder::new();
    for time in ["50", "0us", "1001us", "50ms", "on", "99999999999999999999us"] {
        let output = serve(&folder, time).output().expect("it runs");
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{time}: {text}");
        assert!(text.contains("need off, or a time from 1us to 1000us"), "{time}: {text}");
    }
}
