//! TLS of `flatout serve`, from outside: curl and openssl as clients, certificates that change, and mistakes.

use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt;
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

/// A client must not be shown the certificate of another domain: it would learn of it, and report a wrong cause.
#[test]
fn a_domain_without_a_certificate_is_refused_and_others_are_served() {
    let (authority, site, state) = (Authority::new(), Folder::new(), Folder::new());
    site.write("index.html", "hello");
    fs::set_permissions(&state.0, Permissions::from_mode(0o700)).unwrap();
    authority.sign("a", "a.test");
    let state = state.0.display().to_string();
    let (server, port) = served(
        &site.0,
        &[
            &["--tls", &authority.path("a.pem"), &authority.path("a.key"), "--domain", "b.test"][..],
            &["--acme-directory", "https://127.0.0.1:1/", "--https-redirect", "off", "--state", &state],
        ]
        .concat(),
    );
    let said = server.said();
    assert!(said.iter().any(|line| line.contains("TLS connections to it are refused until")), "{said:?}");
    assert_eq!(authority.curl("a.test", port, "/", &[]).as_deref(), Ok("hello"));
    for version in ["1.2", "1.3"] {
        let flags = ["--insecure", "--tls-max", version];
        assert_eq!(authority.curl("b.test", port, "/", &flags), Err(35), "TLS {version}");
    }
    let output = Command::new("openssl")
        .args(["s_client", "-servername", "b.test", "-connect", &format!("127.0.0.1:{port}")])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(told.contains("unrecognized name") && !told.contains("BEGIN CERTIFICATE"), "{told}");
    assert_eq!(
        authority.curl("c.test", port, "/", &["--insecure"]).as_deref(),
        Ok("hello"),
        "any other name"
    );
}

#[test]
fn changed_certificates_are_loaded() {
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

/// The output of openssl for a connection. It sends `sent`, and reads until the server closes.
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
fn must_staple_certificates_are_sent_with_an_ocsp_response() {
    let (authority, site) = (Authority::new(), Folder::new());
    site.write("index.html", "hello");
    authority.sign_with("a", "a.test", "tlsfeature=status_request\n");
    authority.sign("other", "a.test");
    let (server, port) = served(&site.0, &["--tls", &authority.path("a.pem"), &authority.path("a.key")]);
    let says = |what: &str| server.said().iter().any(|line| line.contains(what));
    assert!(
        says("requires a stapled OCSP response") && says("a.pem.ocsp: cannot be read"),
        "{:?}",
        server.said()
    );
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
fn early_data_is_served_for_safe_requests() {
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
    // A proxy sends `Early-Data: 1` to its upstream.
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
    // Rules may depend on it, before a route is chosen and in texts.
    let text = format!(
        "listen \"127.0.0.1:0\"\ntls \"{certificate}\" \"{key}\"\nearly-data on\nsite \"*\" {{\n\
         when \"$ssl_early_data == '1' && path == '/'\" {{ redirect \"/later\" status=307; }}\n\
         response-header set X-Early \"[$ssl_early_data]\"\nrespond 200 hello\n}}\n"
    );
    site.write("site.kdl", text);
    let mut command = Command::new(program("flatout"));
    command.args(["serve", "-c"]).arg(site.0.join("site.kdl"));
    let server = Server::start(command);
    let port = server.secure_port.unwrap();
    let said = again(port, LAST);
    assert!(said.contains("HTTP/1.1 307") && said.contains("X-Early: [1]"), "{said}");
    let said = connected(port, &[], LAST);
    assert!(said.contains("HTTP/1.1 200") && said.contains("X-Early: []"), "{said}");
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
fn metrics_show_handshakes_and_remaining_days() {
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

/// Upstreams learn what was verified of a client, also where an auth service is asked first, and nothing that it claims itself.
#[test]
fn upstreams_get_fields_of_the_client_certificate() {
    let (authority, folder) = (Authority::new(), Folder::new());
    authority.sign("server", "a.test");
    authority.sign("client", "ann.test");
    let site = format!(
        "listen \"127.0.0.1:0\"\nlisten-plain \"127.0.0.1:0\"\nworkers 1\ntls \"{}\" \"{}\"\ntls-client-ca \"{}\" optional=on\n\
         upstream echo {{\n  server \"unix:{echo}\"\n}}\n\
         site \"*\" {{\n  proxy echo\n  request-header set X-Verify \"$ssl_client_verify\"\n  request-header set X-Name \"$ssl_client_s_dn\"\n\
         request-header set X-Issuer \"$ssl_client_i_dn\"\n  request-header set X-Serial \"$ssl_client_serial\"\n\
         request-header set X-Print \"$ssl_client_fingerprint\"\n  request-header set X-Pem \"$ssl_client_escaped_cert\"\n\
         route \"/later\" {{\n    proxy echo\n    forward-auth echo path=\"/auth\"\n  }}\n}}\n",
        authority.path("server.pem"),
        authority.path("server.key"),
        authority.path("ca.pem"),
        echo = folder.0.join("echo").display(),
    );
    folder.write("site.kdl", site);
    let echo = format!(
        "listen \"unix:{}\"\nworkers 1\nsite \"*\" {{\n  respond 200 \"$http_x_verify|$http_x_name|$http_x_issuer|$http_x_serial|$http_x_print|$http_x_pem\"\n}}\n",
        folder.0.join("echo").display()
    );
    folder.write("echo.kdl", echo);
    let serve = |file: &str| {
        let mut command = Command::new(program("flatout"));
        command.args(["serve", "-c"]).arg(folder.0.join(file));
        Server::start(command)
    };
    let _echo = serve("echo.kdl");
    let server = serve("site.kdl");
    let port = server.secure_port.unwrap();
    let openssl = |arguments: &str| {
        let path = authority.path("client.pem");
        let command = format!("openssl x509 -noout -in {path} {arguments}");
        let output = Command::new("sh").args(["-c", &command]).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        text.trim().split_once('=').unwrap().1.to_owned()
    };
    let (serial, print) = (openssl("-serial"), openssl("-fingerprint -sha1").replace(':', "").to_lowercase());
    let pem = std::fs::read_to_string(authority.path("client.pem")).unwrap();
    let pem = pem[pem.find("-----BEGIN").unwrap()..].to_owned();
    let escape = |byte: u8| match byte {
        b'-' | b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => char::from(byte).to_string(),
        byte => format!("%{byte:02X}"),
    };
    let pem: String = pem.bytes().map(escape).collect();
    let expected = format!("SUCCESS|CN=ann.test|CN=ca|{serial}|{print}|{pem}");
    let shown = ["--cert", &authority.path("client.pem"), "--key", &authority.path("client.key")];
    let forged = ["-H", "X-Verify: SUCCESS", "-H", "X-Name: CN=root", "-H", "X_Name: CN=root"];
    for path in ["/", "/later"] {
        for version in ["--http1.1", "--http2"] {
            let curl =
                |arguments: &[&str]| authority.curl("a.test", port, path, &[&[version], arguments].concat());
            assert_eq!(curl(&[&shown[..], &forged].concat()).as_deref(), Ok(&*expected), "{path} {version}");
            assert_eq!(curl(&forged).as_deref(), Ok("NONE|||||"), "{path} {version}");
        }
    }
}

/// The site for all other names has no certificate for them.
#[test]
fn handshakes_for_the_names_of_a_site_are_refused() {
    let (authority, folder) = (Authority::new(), Folder::new());
    authority.sign("a", "a.test");
    authority.sign("b", "b.test");
    let file = |name: &str| authority.path(name);
    let text = format!(
        "listen \"127.0.0.1:0\"\nlisten-plain \"127.0.0.1:0\"\n\
         site a.test {{ tls {:?} {:?}; respond 200 hello; }}\n\
         site b.test {{ tls refuse; respond 200 plain; }}\n\
         site \"*\" {{ tls refuse; respond 200 others; }}\n",
        file("a.pem"),
        file("a.key"),
    );
    folder.write("site.kdl", &text);
    let mut command = Command::new(program("flatout"));
    command.arg("serve").arg("-c").arg(folder.0.join("site.kdl")).stdin(Stdio::null());
    let server = Server::start(command);
    let port = server.secure_port.expect("it speaks TLS");
    assert_eq!(authority.curl("a.test", port, "/", &[]).as_deref(), Ok("hello"));
    for version in ["1.2", "1.3"] {
        for name in ["b.test", "c.test"] {
            assert_eq!(authority.curl(name, port, "/", &["--tls-max", version]), Err(35), "{name} {version}");
        }
        let unnamed = Command::new("openssl")
            .args(["s_client", "-noservername", &format!("-tls{}", version.replace('.', "_"))])
            .args(["-connect", &format!("127.0.0.1:{port}")])
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&unnamed.stderr);
        assert!(said.contains("unrecognized name"), "{version} {said}");
    }
    // A connection for another name is not for these sites.
    let host = ["-H", "Host: b.test", "-w", " %{http_code}"];
    let other = authority.curl("a.test", port, "/", &host).unwrap();
    assert!(other.ends_with(" 421"), "{other}");
    let plain = server.one("GET / HTTP/1.1\r\nHost: b.test\r\nConnection: close\r\n\r\n");
    assert_eq!(plain.text(), "plain");
    for wrong in [
        "listen \"127.0.0.1:0\"\ntls refuse\nrespond 200 x\n".to_owned(),
        text.replace(
            "tls refuse; respond 200 plain",
            &format!("tls refuse; tls {:?} {:?}; respond 200 plain", file("b.pem"), file("b.key")),
        ),
    ] {
        folder.write("wrong.kdl", wrong);
        let checked =
            Command::new(program("flatout")).arg("check").arg(folder.0.join("wrong.kdl")).output().unwrap();
        let said = String::from_utf8_lossy(&checked.stderr);
        assert!(said.contains("`tls refuse`"), "{said}");
    }
}
