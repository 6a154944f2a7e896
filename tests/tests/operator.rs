//! docs/operator.md: each command of the guide works as it stands, one after the other, in an empty folder.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};

use flatout_tests::{Folder, program};

/// Ports of the guide.
const PORTS: [&str; 3] = ["8443", "8080", "8000"];

/// The commands of a page: all of its blocks for the shell.
fn commands(page: &str) -> String {
    let blocks = page.split("```sh\n").skip(1);
    let blocks = blocks.map(|rest| rest.split_once("```").unwrap().0);
    // Each line of the guide is one that a person types: the first that fails ends the test.
    blocks.map(|block| format!("echo '== commands'\n{block}")).collect()
}

/// The same with ports that are free.
fn with_free_ports(mut script: String) -> String {
    let listeners = PORTS.map(|_| TcpListener::bind("127.0.0.1:0").unwrap());
    let free = listeners.each_ref().map(|listener| listener.local_addr().unwrap().port().to_string());
    // In two steps: one of the new ones may contain an old one.
    for (at, port) in PORTS.iter().enumerate() {
        script = script.replace(port, &format!("<{at}>"));
    }
    free.iter().enumerate().fold(script, |script, (at, free)| script.replace(&format!("<{at}>"), free))
}

#[test]
fn the_commands_of_the_operators_guide_work_as_they_stand() {
    let page =
        std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/operator.md")).unwrap();
    let folder = Folder::new();
    let script = with_free_ports(commands(&page));
    // What is left when a command fails ends with the script.
    let script = format!("set -eo pipefail\ntrap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n{script}");
    let path = std::env::var("PATH").unwrap();
    let programs = Path::new(&program("flatout")).parent().unwrap().display().to_string();
    let mut shell = Command::new("timeout");
    shell.args(["--signal=TERM", "240", "bash", "-c", &script]).current_dir(&folder.0).stdin(Stdio::null());
    shell.env("PATH", format!("{programs}:{path}")).env("HOME", &folder.0);
    let output = shell.output().unwrap();
    let shown = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    let server = std::fs::read_to_string(folder.0.join("server.log")).unwrap_or_default();
    assert!(output.status.success(), "{}\n{}\nthe server:\n{server}", shown[0], shown[1]);
    for expected in ["<h1>Hello</h1>", "x-cache-status: HIT", "has taken over", "Requests/sec"] {
        assert!(shown[0].to_lowercase().contains(&expected.to_lowercase()), "{expected}: {}", shown[0]);
    }
    assert!(server.contains("reloaded site.kdl"), "{server}");
}
