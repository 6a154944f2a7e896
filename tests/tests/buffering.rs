//! Upstreams are let go before slow clients have read their responses, whatever lies between.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use flatout_tests::authority::Authority;
use flatout_tests::upgrading::{orphan, upgrade};
use flatout_tests::{Folder, Server, program, until};

/// More than the sockets on the way take.
const BYTES: usize = 24 << 20;

const PATIENCE: Duration = Duration::from_secs(60);

/// A body that no encoder makes smaller.
fn body() -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    (0..BYTES / 8).flat_map(|_| next()).collect()
}

/// An upstream, and when it is rid of a response.
fn upstream(lines: &'static str) -> (SocketAddr, Receiver<bool>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (sender, done) = channel();
    std::thread::spawn(move || {
        let body = body();
        for stream in listener.incoming() {
            let (mut stream, sender, body) = (stream.unwrap(), sender.clone(), body.clone());
            std::thread::spawn(move || {
                let (mut head, mut byte) = (Vec::new(), [0]);
                loop {
                    head.clear();
                    while !head.ends_with(b"\r\n\r\n") {
                        if stream.read(&mut byte).unwrap_or(0) == 0 {
                            return;
                        }
                        head.push(byte[0]);
                    }
                    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {BYTES}\r\n{lines}\r\n");
                    let sent = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&body));
                    let _ = sender.send(sent.is_ok());
                }
            });
        }
    });
    (address, done)
}

/// A client that reads nothing until its output is read.
struct Stalled(Child);

impl Stalled {
    fn get(url: &str, flags: &[&str]) -> Stalled {
        let mut command = Command::new("curl");
        command.args(["--silent", "--show-error", "--insecure", "--max-time", "120", url]).args(flags);
        Stalled(command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap())
    }

    fn read(mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.0.stdout.take().unwrap().read_to_end(&mut bytes).unwrap();
        assert!(self.0.wait().unwrap().success());
        bytes
    }
}

fn metric(admin: &Path, name: &str) -> u64 {
    flatout_tests::metric(admin, name).unwrap_or_else(|| panic!("there is no {name}"))
}

fn assert_nothing_is_kept(admin: &Path) {
    for name in ["flatout_spooling_responses", "flatout_spooled_bytes{place=\"file\"}"] {
        until("nothing is kept", || metric(admin, name) == 0);
    }
    assert_eq!(metric(admin, "flatout_spooled_bytes{place=\"memory\"}"), 0);
}

fn serve(folder: &Folder, text: &str) -> Command {
    std::fs::create_dir_all(folder.0.join("spool")).unwrap();
    folder.write("site.kdl", text);
    let mut command = Command::new(program("flatout"));
    command.arg("serve").arg("-c").arg(folder.0.join("site.kdl")).stdin(Stdio::null());
    command
}

#[test]
fn clients_of_every_kind_get_a_spooled_response_whole() {
    let authority = Authority::new();
    authority.sign("server", "localhost");
    let (address, done) = upstream("Content-Type: text/plain\r\nCache-Control: private\r\n");
    let folder = Folder::new();
    let admin = folder.0.join("admin.sock");
    let text = format!(
        "admin \"unix:{}\"\nbuffer-dir \"spool\"\nlisten \"127.0.0.1:0\"\ntls \"{}\" \"{}\"\n\
         site * {{\n  route \"/gzip/\" {{ encode gzip; proxy \"http://{address}\" }}\n  \
         route \"/cached/\" {{ cache \"1m\"; proxy \"http://{address}\" }}\n  \
         route \"/\" {{ proxy \"http://{address}\" }}\n}}\n",
        admin.display(),
        authority.path("server.pem"),
        authority.path("server.key"),
    );
    let server = Server::start(serve(&folder, &text));
    let port = server.secure_port.unwrap();
    let url = |path: &str| format!("https://localhost:{port}{path}");
    let stalled = [
        Stalled::get(&url("/"), &["--http1.1"]),
        Stalled::get(&url("/"), &["--http2"]),
        Stalled::get(&url("/gzip/"), &["--http1.1", "--compressed"]),
        Stalled::get(&url("/gzip/"), &["--http2", "--compressed"]),
        Stalled::get(&url("/cached/"), &["--http1.1"]),
    ];
    for _ in &stalled {
        assert_eq!(done.recv_timeout(PATIENCE), Ok(true));
    }
    assert_eq!(metric(&admin, "flatout_spooling_responses"), stalled.len() as u64);
    assert!(metric(&admin, "flatout_spooled_bytes{place=\"file\"}") > BYTES as u64);
    let body = body();
    for (number, client) in stalled.into_iter().enumerate() {
        assert!(client.read() == body, "client {number}");
    }
    assert_nothing_is_kept(&admin);
    assert_eq!(metric(&admin, "flatout_spooled_responses_total"), 5);
    assert_eq!(std::fs::read_dir(folder.0.join("spool")).unwrap().count(), 0);
}

#[test]
fn a_disk_that_fills_makes_the_upstream_wait_and_loses_nothing() {
    let (address, done) = upstream("");
    let folder = Folder::new();
    let admin = folder.0.join("admin.sock");
    let text = format!(
        "admin \"unix:{}\"\nbuffer-dir \"spool\"\nlisten \"127.0.0.1:0\"\nsite * {{ route \"/\" {{ proxy \"http://{address}\" }} }}\n",
        admin.display()
    );
    let site = serve(&folder, &text);
    // Writes beyond this size of a file fail, as they do on a full disk.
    let mut command = Command::new("sh");
    command.arg("-c").arg("trap '' XFSZ; ulimit -f 2048; exec \"$0\" \"$@\"");
    command.arg(site.get_program()).args(site.get_args()).stdin(Stdio::null());
    let server = Server::start(command);
    let client = Stalled::get(&format!("http://{}/", server.address), &[]);
    until("the disk has failed", || metric(&admin, "flatout_spool_errors_total") > 0);
    assert!(done.try_recv().is_err(), "the upstream waits");
    assert!(client.read() == body());
    assert_eq!(done.recv_timeout(PATIENCE), Ok(true));
    assert_nothing_is_kept(&admin);
}

#[test]
fn responses_that_are_kept_outlive_a_reload_and_an_upgrade() {
    let (address, done) = upstream("");
    let folder = Folder::new();
    let admin = folder.0.join("admin.sock");
    let text = |size: &str| {
        format!(
            "admin \"unix:{}\"\nbuffer-dir \"spool\"\nbuffer-size \"{size}\"\nlisten \"127.0.0.1:0\"\n\
             site * {{ route \"/\" {{ proxy \"http://{address}\" }} }}\n",
            admin.display()
        )
    };
    let server = Server::start(serve(&folder, &text("1GiB")));
    let client = Stalled::get(&format!("http://{}/", server.address), &[]);
    assert_eq!(done.recv_timeout(PATIENCE), Ok(true));
    folder.write("site.kdl", text("2GiB"));
    let reload = |admin: &Path| {
        let admin = format!("unix:{}", admin.display());
        Command::new(program("flatout")).args(["reload", "--admin", &admin]).output().unwrap()
    };
    assert!(reload(&admin).status.success());
    assert_eq!(metric(&admin, "flatout_spooling_responses"), 1, "the new plan counts what the former keeps");
    let successor = orphan(&upgrade(&admin).unwrap());
    let other = Stalled::get(&format!("http://{}/", server.address), &[]);
    assert_eq!(done.recv_timeout(PATIENCE), Ok(true));
    let body = body();
    assert!(client.read() == body && other.read() == body);
    assert_nothing_is_kept(&admin);
    drop(successor);
}
