//! TLS of `flatout serve`, from outside: curl and openssl as clients, certificates that change, and mistakes.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};

use flatout_tests::authority::Authority;
use flatout_tests::{Folder, Server, program, until};

/// A server with additional flags, and its TLS port.
fn served(root: &Path, flags: &[&str]) -> (Server, u16) {
    let mut command = Command::new(program("flatout"));
    // The plain listener is last, where the test helper looks for it.
    command.arg("serve").arg(root).args(["--listen", "127.0.0.1:0", "--listen-plain", "127.0.0.1:0"]);
    command.args(["--workers", "2"]).args(flags);
    let server = Server::start(command);
    let port = server.secure_port.expect("it speaks TLS");
    (server, port)
}

fn refused(flags: &[&str]) -> String {
    let output: Output =
        Command::new(program("flatout")).arg("serve").args(flags).stdin(Stdio::null()).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn the_name_chooses_the_certificate_and_versions_are_limited() {
    let (authority, site) = (Authority::new(), Folder::new());
    site.write("index.html", "hello");
    authority.sign("a", "a.test");
    authority.sign("b", "b.test");
    let file = |name: &str| authority.path(name);
    let (server, port) = served(
        &site.0,
        &[
            "--tls",
            &file("a.pem"),
            &file("a.key"),
            "--tls",
            &file("b.pem"),
            &file("b.key"),
            "--https-redirect",
            "on",
        ],
    );
    for name in ["a.test", "b.test"] {
        assert_eq!(authority.curl(name, port, "/", &[]).as_deref(), Ok("hello"));
        assert_eq!(authority.curl(name, port, "/", &["--tls-max", "1.2"]).as_deref(), Ok("hello"));
    }
    assert_eq!(authority.curl("c.test", port, "/", &[]), Err(60), "no certificate for that name");
    assert_eq!(authority.curl("a.test", port, "/", &["--tls-max", "1.1"]), Err(35));
    let moved = server.one("GET /x?y HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n");
    let location = format!("https://a.test:{port}/x?y");
    assert_eq!((moved.status, moved.field("location")), (308, Some(location.as_str())));
    drop(server);
    let (_server, port) =
        served(&site.0, &["--tls", &file("a.pem"), &file("a.key"), "--tls-min-version", "1.3"]);
    assert_eq!(authority.curl("a.test", port, "/", &[]).as_deref(), Ok("hello"));
    assert_eq!(authority.curl("a.test", port, "/", &["--tls-max", "1.2"]), Err(35));
}

#[test]
fn certificates_that_change_are_taken_on() {
    let (authority, site) = (Authority::new(), Folder::new());
    site.write("index.html", "hello");
    authority.sign("a", "old.test");
    let (server, port) = served(&site.0, &["--tls", &authority.path("a.pem"), &authority.path("a.key")]);
    assert_eq!(authority.curl("old.test", port, "/", &[]).as_deref(), Ok("hello"));
    let says = |what: &str| server.said().iter().any(|line| line.contains(what));
    authority.0.write("a.pem", "broken");
    until("the mistake is said", || says("no certificate in it"));
    assert_eq!(authority.curl("old.test", port, "/", &[]).as_deref(), Ok("hello"), "the old one stays");
    authority.sign("a", "new.test");
    until("they are taken on", || says("certificates have changed"));
    assert_eq!(authority.curl("new.test", port, "/", &[]).as_deref(), Ok("hello"));
    assert_eq!(authority.curl("old.test", port, "/", &[]), Err(60));
}

/// What openssl says of a connection. It sends `sent`, and reads until the server closes.
fn connected(port: u16, arguments: &[&str], sent: &str) -> String {
    let mut child = Command::new("openssl")
        .args(["s_client", "-connect", &format!("127.0.0.1:{port}"), "-servername", "a.test", "-ign_eof"])
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(sent.as_bytes()).unwrap();
    String::from_utf8_lossy(&child.wait_with_output().unwrap().stdout).into_owned()
}

const LAST: &str = "GET / HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n";

/// A server without TLS that tells the heads of requests.
fn listening() -> (SocketAddr, Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (tell, heads) = channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = BufReader::new(stream.unwrap());
            let mut head = String::new();
            while !head.ends_with("\r\n\r\n") {
                if stream.read_line(&mut head).unwrap() == 0 {
                    break;
                }
            }
            if tell.send(head).is_err() {
                return;
            }
            let response = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok";
            stream.get_mut().write_all(response).unwrap();
        }
    });
    (address, heads)
}

#[test]
fn an_ocsp_response_goes_with_a_certificate_that_asks_for_it() {
    let (authority, site) = (Authority::new(), Folder::new());
    site.write("index.html", "hello");
    authority.sign_with("a", "a.test", "tlsfeature=status_request\n");
    authority.sign("other", "a.test");
    let (server, port) = served(&site.0, &["--tls", &authority.path("a.pem"), &authority.path("a.key")]);
    let says = |what: &str| server.said().iter().any(|line| line.contains(what));
    assert!(says("asks for an OCSP response") && says("a.pem.ocsp: cannot be read"), "{:?}", server.said());
    assert!(connected(port, &["-status"], LAST).contains("OCSP response: no response sent"));
    authority.staple("other");
    std::fs::rename(authority.path("other.pem.ocsp"), authority.path("a.pem.ocsp")).unwrap();
    until("another one's is found out", || says("it is for another certificate"));
    authority.staple("a");
    until("it is taken on", || {
        let said = connected(port, &["-status"], LAST);
        said.contains("OCSP Response Status: successful") && said.contains("Cert Status: good")
    });
    // The other one asks for none, and gets none.
    authority.staple("other");
    let (server, port) =
        served(&site.0, &["--tls", &authority.path("other.pem"), &authority.path("other.key")]);
    assert!(connected(port, &["-status"], LAST).contains("OCSP response: no response sent"));
    assert!(!server.said().iter().any(|line| line.contains("OCSP")), "{:?}", server.said());
}

#[test]
fn early_data_is_served_where_it_may_be_repeated() {
    let (authority, site) = (Authority::new(), Folder::new());
    site.write("index.html", "hello");
    authority.sign("a", "a.test");
    let (certificate, key) = (authority.path("a.pem"), authority.path("a.key"));
    let (session, request) = (authority.path("session"), authority.path("request"));
    let again = |port, sent: &str| {
        connected(port, &["-sess_out", &session], LAST);
        authority.0.write("request", sent);
        connected(port, &["-sess_in", &session, "-early_data", &request], "")
    };
    let post = LAST.replace("GET", "POST");
    let (_server, port) = served(&site.0, &["--tls", &certificate, &key, "--early-data", "on"]);
    let said = again(port, LAST);
    assert!(said.contains("Early data was accepted") && said.contains("hello"), "{said}");
    let said = again(port, &post);
    assert!(said.contains("Early data was accepted") && said.contains("HTTP/1.1 425 Too Early"), "{said}");
    assert!(
        connected(port, &[], &post).contains("HTTP/1.1 405"),
        "without early data it is for the site to say"
    );
    // Through a proxy the server behind it is told.
    let (upstream, heads) = listening();
    let mut command = Command::new(program("flatout"));
    command.args(["serve", "--listen", "127.0.0.1:0", "--tls", &certificate, &key, "--early-data", "on"]);
    command.args(["--to", &format!("http://{upstream}")]);
    let server = Server::start(command);
    let said = again(server.secure_port.unwrap(), LAST);
    assert!(said.contains("Early data was accepted"), "{said}");
    let heads: Vec<String> = heads.try_iter().collect();
    let [first, early] = &heads[..] else { panic!("{heads:?}") };
    assert!(!first.contains("Early-Data") && early.contains("\r\nEarly-Data: 1\r\n"), "{heads:?}");
    // Off by default.
    let (_server, port) = served(&site.0, &["--tls", &certificate, &key]);
    connected(port, &["-sess_out", &session], LAST);
    let said = connected(port, &["-sess_in", &session, "-early_data", &request], LAST);
    assert!(said.contains("hello") && !said.contains("Early data was accepted"), "{said}");
}

#[test]
fn clients_show_certificates_where_that_is_asked() {
    let (authority, site) = (Authority::new(), Folder::new());
    site.write("index.html", "hello");
    authority.sign("a", "a.test");
    authority.sign("me", "me.test");
    let file = |name: &str| authority.path(name);
    let (cert, key) = (file("me.pem"), file("me.key"));
    let shown = ["--cert", cert.as_str(), "--key", key.as_str()];
    let tls = [file("a.pem"), file("a.key"), file("ca.pem")];
    let (_server, port) = served(&site.0, &["--tls", &tls[0], &tls[1], "--tls-client-ca", &tls[2]]);
    assert_eq!(authority.curl("a.test", port, "/", &shown).as_deref(), Ok("hello"));
    assert!(authority.curl("a.test", port, "/", &[]).is_err());
    let optional = format!("{} optional=on", tls[2]);
    let (_server, port) = served(&site.0, &["--tls", &tls[0], &tls[1], "--tls-client-ca", &optional]);
    assert_eq!(authority.curl("a.test", port, "/", &[]).as_deref(), Ok("hello"));
}

#[test]
fn a_proxy_speaks_tls_on_both_sides() {
    let (authority, site) = (Authority::new(), Folder::new());
    let big: String = (0..400_000).map(|at| char::from(b'a' + (at / 7 % 26) as u8)).collect();
    site.write("big.txt", &big);
    authority.sign("a", "a.test");
    let file = |name: &str| authority.path(name);
    let (_behind, inner) = served(&site.0, &["--tls", &file("a.pem"), &file("a.key")]);
    let mut command = Command::new(program("flatout"));
    command.args(["serve", "--listen", "127.0.0.1:0", "--to", &format!("https://127.0.0.1:{inner}")]);
    command.args(["--upstream-name", "a.test", "--upstream-ca", &file("ca.pem")]);
    command.args(["--tls", &file("a.pem"), &file("a.key")]);
    let server = Server::start(command);
    let port = server.secure_port.expect("it speaks TLS");
    assert!(authority.curl("a.test", port, "/big.txt", &[]).is_ok_and(|text| text == big));
}

#[test]
fn figures_tell_of_handshakes_and_days() {
    let (authority, site) = (Authority::new(), Folder::new());
    site.write("index.html", "hello");
    authority.sign("a", "a.test");
    let admin = site.0.join("admin.sock").display().to_string();
    let flags =
        ["--tls", &authority.path("a.pem"), &authority.path("a.key"), "--admin", &format!("unix:{admin}")];
    let (_server, port) = served(&site.0, &flags);
    authority.curl("a.test", port, "/", &[]).unwrap();
    let output =
        Command::new("curl").args(["-s", "--unix-socket", &admin, "http://x/metrics"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("flatout_tls_handshakes_total{result=\"full\"} 1\n"), "{text}");
    assert!(text.contains("flatout_tls_certificate_days_left{names=\"a.test 127.0.0.1\"} 8"), "{text}");
}

#[test]
fn mistakes_are_found_before_anything_is_bound() {
    let authority = Authority::new();
    authority.sign("a", "a.test");
    authority.sign("b", "b.test");
    let file = |name: &str| authority.path(name);
    for (flags, expected) in [
        (vec!["--tls".to_owned(), file("none.pem"), file("a.key")], "none.pem: cannot be read"),
        (vec!["--tls".to_owned(), file("a.pem"), file("b.key")], "does not belong to the certificate"),
        (vec!["--tls".to_owned(), file("a.pem"), file("a.pem")], "others may read or write it"),
        (vec!["--https-redirect".to_owned(), "on".to_owned()], "https-redirect: there is no certificate"),
    ] {
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let message = refused(&flags);
        assert!(message.contains(expected), "{message}");
    }
}
