//! Sites with addresses of their own: what is served at one is not served at another, over HTTP and TLS, through the cache, and
//! after reloads and upgrades.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;

use flatout_tests::authority::Authority;
use flatout_tests::peers::free_port;
use flatout_tests::upgrading::{Installed, orphan, upgrade};
use flatout_tests::{Answer, Folder, PATIENCE, Server, Signal, answers, read_to_close, until};

struct Site {
    folder: Folder,
    installed: Installed,
    ports: [u16; 3],
    server: Server,
}

impl Site {
    /// A server with this file, in which `{0}`, `{1}` and `{2}` stand for addresses.
    fn start(text: &str) -> Site {
        let (folder, installed) = (Folder::new(), Installed::new());
        let ports = [free_port(), free_port(), free_port()];
        write(&folder, ports, text);
        let mut command = Command::new(&installed.0);
        command.arg("serve").arg("-c").arg(folder.0.join("site.kdl")).stdin(Stdio::null());
        let server = Server::start(command);
        Site { folder, installed, ports, server }
    }

    fn reload(&self, text: &str) {
        write(&self.folder, self.ports, text);
        let reloads = || self.server.said().iter().filter(|line| line.contains("reloaded ")).count();
        let before = reloads();
        self.server.signal(Signal::HUP);
        until("the reload", || reloads() > before);
    }

    fn connect(&self, at: usize) -> TcpStream {
        let stream = TcpStream::connect(SocketAddr::from(([127, 0, 0, 1], self.ports[at]))).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    fn get(&self, at: usize, host: &str) -> Answer {
        let mut stream = self.connect(at);
        let request = format!("GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        answers(&read_to_close(&mut stream), false).remove(0)
    }

    fn text(&self, at: usize, host: &str) -> (u16, String) {
        let answer = self.get(at, host);
        (answer.status, if answer.status == 200 { answer.text() } else { String::new() })
    }

    fn admin(&self) -> PathBuf {
        self.folder.0.join("admin.sock")
    }
}

fn write(folder: &Folder, ports: [u16; 3], text: &str) {
    let mut text = text.to_owned();
    for (at, port) in ports.iter().enumerate() {
        text = text.replace(&format!("{{{at}}}"), &format!("\"127.0.0.1:{port}\""));
    }
    let admin = folder.0.join("admin.sock");
    folder.write("site.kdl", format!("workers 1\nadmin \"unix:{}\"\n{text}\n", admin.display()));
}

/// A request on a connection that stays open.
fn ask(stream: &mut TcpStream, host: &str) -> String {
    stream.write_all(format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n").as_bytes()).unwrap();
    let mut got = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let read = stream.read(&mut buffer).unwrap();
        assert!(read > 0, "the connection stays open");
        got.extend_from_slice(&buffer[..read]);
        let text = String::from_utf8_lossy(&got);
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: "));
            if length.is_some_and(|length| length.parse() == Ok(body.len())) {
                let status = head.split(' ').nth(1).unwrap_or_default();
                return format!("{status} {body}");
            }
        }
    }
}

const TWO: &str = "listen {0}\n\
    site a { listen {1}; respond 200 private; }\n\
    site a { respond 200 public; }\n\
    site b { listen {1} default=on; listen {2}; respond 200 b; }";

#[test]
fn a_site_is_served_at_its_own_addresses_only() {
    let site = Site::start(TWO);
    let found = |status: u16, text: &str| (status, text.to_owned());
    for (at, host, expected) in [
        (0, "a", found(200, "public")),
        (1, "a", found(200, "private")),
        (2, "a", found(421, "")),
        (0, "b", found(421, "")),
        (1, "b", found(200, "b")),
        (2, "b", found(200, "b")),
        // The default of that address.
        (1, "c", found(200, "b")),
        (2, "c", found(421, "")),
        (0, "c", found(421, "")),
    ] {
        assert_eq!(site.text(at, host), expected, "{at} {host}");
    }
    // HTTP/2 with prior knowledge.
    let h2 = |at: usize| {
        let url = format!("http://127.0.0.1:{}/", site.ports[at]);
        let arguments = ["--silent", "--http2-prior-knowledge", "--max-time", "30", "-H", "Host: a", &url];
        String::from_utf8(Command::new("curl").args(arguments).output().unwrap().stdout).unwrap()
    };
    assert_eq!((h2(0), h2(1)), ("public".to_owned(), "private".to_owned()));
}

#[test]
fn connections_stay_at_their_address_over_reloads_and_upgrades() {
    let site = Site::start(TWO);
    let (mut public, mut private) = (site.connect(0), site.connect(1));
    assert_eq!(
        (ask(&mut public, "a"), ask(&mut private, "a")),
        ("200 public".to_owned(), "200 private".to_owned())
    );
    // The sites change their places, and the third address is removed.
    site.reload(
        "listen {1}\nsite a { listen {0}; respond 200 now-private; }\nsite a { respond 200 now-public; }",
    );
    assert_eq!(ask(&mut public, "a"), "200 now-private");
    assert_eq!(ask(&mut private, "a"), "200 now-public");
    assert_eq!(
        (site.text(0, "a").1, site.text(1, "a").1),
        ("now-private".to_owned(), "now-public".to_owned())
    );
    // What is in use elsewhere is refused as a whole.
    write(
        &site.folder,
        site.ports,
        "listen {1}\nsite a { listen {0} default=on; respond 200 x; }\nsite b { listen {0} default=on; respond 200 y; }",
    );
    site.server.signal(Signal::HUP);
    until("the refusal", || site.server.said().iter().any(|line| line.contains("not reloaded")));
    assert_eq!(site.text(0, "a").1, "now-private");
    site.reload(TWO);
    let said = upgrade(&site.admin()).unwrap();
    let _successor = orphan(&said);
    assert_eq!((site.text(0, "a").1, site.text(1, "a").1), ("public".to_owned(), "private".to_owned()));
    assert_eq!((site.text(2, "b").1, site.text(0, "b").0), ("b".to_owned(), 421));
    drop(site.installed);
}

#[test]
fn responses_are_not_shared_by_sites_of_different_addresses() {
    // An upstream that says which of its addresses was asked.
    let origin = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = origin.local_addr().unwrap();
    thread::spawn(move || {
        for (stream, count) in origin.incoming().zip(1..) {
            let Ok(mut stream) = stream else { return };
            let mut head = Vec::new();
            let mut byte = [0];
            while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).is_ok_and(|read| read > 0) {
                head.extend_from_slice(&byte);
            }
            let text = format!("response {count}");
            let fields = "Cache-Control: max-age=60\r\nConnection: close";
            let _ =
                write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n{fields}\r\n\r\n{text}", text.len());
        }
    });
    let site = Site::start(&format!(
        "listen {{0}}\ncache \"1m\"\nsite a {{ listen {{1}}; proxy \"http://{address}\"; }}\n\
         site a {{ proxy \"http://{address}\"; }}\nsite b {{ listen {{2}}; cache-key \"one\"; proxy \"http://{address}\"; }}"
    ));
    let first: Vec<String> = [(0, "a"), (1, "a"), (2, "b")].map(|(at, host)| site.text(at, host).1).to_vec();
    assert_eq!(first, ["response 1", "response 2", "response 3"]);
    // Also when identical heads are answered by the head alone, on one connection and on new ones.
    for _ in 0..3 {
        let (mut public, mut private) = (site.connect(0), site.connect(1));
        for _ in 0..3 {
            assert_eq!(ask(&mut public, "a"), "200 response 1");
            assert_eq!(ask(&mut private, "a"), "200 response 2");
        }
    }
}

#[test]
fn sites_have_certificates_and_client_authorities_of_their_own() {
    let authority = Authority::new();
    for (file, name) in [("a", "a.test"), ("b", "b.test"), ("client", "client.test")] {
        authority.sign(file, name);
    }
    let file = |name: &str| format!("\"{}\"", authority.path(name));
    let tls = |name: &str| format!("tls {} {}", file(&format!("{name}.pem")), file(&format!("{name}.key")));
    let text = |of_b: &str| {
        format!(
            "site \"a.test\" {{ listen {{0}} default=on; {}; respond 200 \"public\"; }}\n\
             site \"b.test\" {{ listen {{0}}; {}; {of_b} respond 200 \"private\"; }}\n\
             site \"a.test\" \"b.test\" {{ listen {{1}}; redirect \"https://$host$request_uri\" status=301; }}\n",
            tls("a"),
            tls("b"),
        )
    };
    let site = Site::start(&text(&format!("tls-client-ca {};", file("ca.pem"))));
    let port = site.ports[0];
    let identity = ["--cert", &authority.path("client.pem"), "--key", &authority.path("client.key")];
    let status = ["--write-out", "%{http_code}", "--output", "/dev/null"];
    assert_eq!(authority.curl("a.test", port, "/", &[]).as_deref(), Ok("public"));
    assert_eq!(authority.curl("b.test", port, "/", &identity).as_deref(), Ok("private"));
    assert!(authority.curl("b.test", port, "/", &[]).is_err(), "a certificate is required");
    // The same port is plain for nobody, and the same names are redirected at the other.
    let moved = site.get(1, "b.test");
    assert_eq!((moved.status, moved.field("location")), (301, Some("https://b.test/")));
    // A connection that was opened for one site gets nothing of the other, over HTTP/1 and HTTP/2.
    for version in ["--http1.1", "--http2"] {
        for (name, other) in [("a.test", "Host: b.test"), ("b.test", "Host: a.test")] {
            let more = [&identity[..], &status[..], &["-H", other, version]].concat();
            assert_eq!(
                authority.curl(name, port, "/", &more).as_deref(),
                Ok("421"),
                "{name} {other} {version}"
            );
        }
    }
    // Without different rules for clients, the certificate alone may be another's.
    site.reload(&text(""));
    let more = [&status[..], &["-H", "Host: b.test"]].concat();
    assert_eq!(authority.curl("a.test", port, "/", &more).as_deref(), Ok("200"));
    // And with them again, nothing is left of that.
    site.reload(&text(&format!("tls-client-ca {} optional=on;", file("ca.pem"))));
    assert_eq!(authority.curl("a.test", port, "/", &more).as_deref(), Ok("421"));
    assert_eq!(authority.curl("b.test", port, "/", &[]).as_deref(), Ok("private"));
}

#[test]
fn an_open_connection_does_not_keep_rules_that_were_tightened() {
    let authority = Authority::new();
    authority.sign("a", "a.test");
    let file = |name: &str| format!("\"{}\"", authority.path(name));
    let text = |more: &str| {
        format!(
            "tls {} {}\nsite \"b.test\" {{ listen {{0}}; respond 200 b; }}\n\
             site \"a.test\" {{ listen {{0}} default=on; {more} respond 200 \"private\"; }}",
            file("a.pem"),
            file("a.key")
        )
    };
    let site = Site::start(&text(""));
    let mut client = Command::new("openssl");
    client.args(["s_client", "-quiet", "-no_ign_eof", "-servername", "a.test"]);
    client.args(["-connect", &format!("127.0.0.1:{}", site.ports[0])]);
    let mut client =
        client.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let (mut send, mut receive) = (client.stdin.take().unwrap(), client.stdout.take().unwrap());
    let mut ask = |more: &str| {
        write!(send, "GET / HTTP/1.1\r\nHost: a.test\r\n{more}\r\n").unwrap();
        let (mut got, mut buffer) = (Vec::new(), [0; 4096]);
        while !String::from_utf8_lossy(&got).contains("\r\n\r\n") {
            let read = receive.read(&mut buffer).unwrap();
            assert!(read > 0, "{}", String::from_utf8_lossy(&got));
            got.extend_from_slice(&buffer[..read]);
        }
        String::from_utf8_lossy(&got).split(' ').nth(1).unwrap_or_default().to_owned()
    };
    assert_eq!(ask(""), "200");
    site.reload(&text(&format!("tls-client-ca {};", file("ca.pem"))));
    assert_eq!(ask("Connection: close\r\n"), "421");
    let _ = client.kill();
    client.wait().unwrap();
}
