//! What an operator meets first: the command line, refused addresses, the first lines.

use std::net::TcpListener;
use std::process::{Command, Output, Stdio};

use flatout_tests::{Folder, Server, Signal, program};

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
    flatout_tests::until("a reload", || server.get("/a.txt", "").text() == "new");
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
