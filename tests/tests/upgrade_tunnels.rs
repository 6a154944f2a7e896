//! WebSockets of upstreams outlive an upgrade: the old process carries them until they end.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use flatout_tests::authority::self_sign;
use flatout_tests::browser::Browser;
use flatout_tests::upgrading::{Orphan, orphan, upgrade};
use flatout_tests::{Folder, PATIENCE, Server, Signal, program, until};

/// The time for requests; tunnels outlive it.
const DRAIN: Duration = Duration::from_secs(1);

pub(crate) const HANDSHAKE: &str = "GET /echo HTTP/1.1\r\nHost: t\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
     Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n";

/// An upstream that switches protocols and sends back what it receives. A request for another path gets one byte, and then nothing.
pub(crate) fn echo() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            std::thread::spawn(move || {
                let head = head(&mut stream);
                if !head.contains("/echo") {
                    stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n1").unwrap();
                    return drop(stream.read(&mut [0]));
                }
                let switched = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
                     Sec-WebSocket-Accept: ICX+Yqv66kxgM0FcWaLWlFLwTAI=\r\n\r\n";
                stream.write_all(switched.as_bytes()).unwrap();
                let mut buffer = [0; 4096];
                while let Ok(count @ 1..) = stream.read(&mut buffer) {
                    if stream.write_all(&buffer[..count]).is_err() {
                        return;
                    }
                }
            });
        }
    });
    address
}

pub(crate) fn head(stream: &mut impl Read) -> String {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).unwrap_or(0) == 1 {
        head.push(byte[0]);
    }
    String::from_utf8(head).unwrap()
}

/// A server in front of an upstream, with TLS and without.
fn proxy(folder: &Folder, to: &str, flags: &[&str]) -> Server {
    self_sign(folder);
    let mut command = Command::new(program("flatout"));
    command.args(["serve", "--to", to, "--workers", "2", "--drain-time", "1s"]).args(flags);
    command.arg("--admin").arg(format!("unix:{}", folder.0.join("admin.sock").display()));
    command.args(["--listen", "127.0.0.1:0", "--listen-plain", "127.0.0.1:0", "--tls"]);
    command.args([folder.0.join("cert.pem"), folder.0.join("key.pem")]);
    Server::start(command)
}

fn upgraded(folder: &Folder) -> Orphan {
    orphan(&upgrade(&folder.0.join("admin.sock")).unwrap())
}

fn connect(server: &Server) -> TcpStream {
    let stream = TcpStream::connect(server.address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// A WebSocket of the upstream.
fn tunnel(server: &Server) -> TcpStream {
    let mut stream = connect(server);
    stream.write_all(HANDSHAKE.as_bytes()).unwrap();
    assert!(head(&mut stream).starts_with("HTTP/1.1 101 "));
    stream
}

/// What comes back for a text.
pub(crate) fn echoed(write: &mut impl Write, read: &mut impl Read, text: &str) -> String {
    write.write_all(text.as_bytes()).unwrap();
    write.flush().unwrap();
    let mut back = vec![0; text.len()];
    read.read_exact(&mut back).unwrap();
    String::from_utf8(back).unwrap()
}

/// A WebSocket over TLS, by another program.
struct SecureTunnel(Child);

impl SecureTunnel {
    fn open(server: &Server) -> SecureTunnel {
        let address = format!("127.0.0.1:{}", server.secure_port.unwrap());
        let mut client = Command::new("openssl");
        client.args(["s_client", "-quiet", "-no_ign_eof", "-connect", &address]);
        let client =
            client.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut tunnel = SecureTunnel(client);
        tunnel.0.stdin.as_mut().unwrap().write_all(HANDSHAKE.as_bytes()).unwrap();
        assert!(head(tunnel.0.stdout.as_mut().unwrap()).starts_with("HTTP/1.1 101 "));
        tunnel
    }

    fn echoed(&mut self, text: &str) -> String {
        echoed(self.0.stdin.as_mut().unwrap(), self.0.stdout.as_mut().unwrap(), text)
    }
}

impl Drop for SecureTunnel {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Waits until requests of the old process have had their time.
fn wait_for_the_end_of_requests(began: Instant) {
    std::thread::sleep((DRAIN + Duration::from_millis(1500)).saturating_sub(began.elapsed()));
}

#[test]
fn websockets_of_upstreams_outlive_an_upgrade() {
    let folder = Folder::new();
    let mut server = proxy(&folder, &format!("http://{}", echo()), &[]);
    let (mut plain, mut secure) = (tunnel(&server), SecureTunnel::open(&server));
    assert_eq!(
        (echoed(&mut plain.try_clone().unwrap(), &mut plain, "one"), secure.echoed("one")),
        ("one".into(), "one".into())
    );
    // A request whose response does not end in time.
    let mut slow = connect(&server);
    slow.write_all(b"GET /slow HTTP/1.1\r\nHost: t\r\n\r\n").unwrap();
    assert!(head(&mut slow).starts_with("HTTP/1.1 200 "));
    let began = Instant::now();
    let successor = upgraded(&folder);
    let mut rest = Vec::new();
    let _ = slow.read_to_end(&mut rest);
    assert_eq!(rest, b"1", "the request was cut at the end of its time");
    assert!(began.elapsed() >= DRAIN / 2);
    wait_for_the_end_of_requests(began);
    for text in ["two", "three"] {
        assert_eq!(echoed(&mut plain.try_clone().unwrap(), &mut plain, text), text);
        assert_eq!(secure.echoed(text), text);
    }
    // New ones are carried by the new process, and outlive the next upgrade too.
    let mut newer = tunnel(&server);
    assert_eq!(echoed(&mut newer.try_clone().unwrap(), &mut newer, "four"), "four");
    let last = upgraded(&folder);
    assert_eq!(echoed(&mut newer.try_clone().unwrap(), &mut newer, "five"), "five");
    assert_eq!(secure.echoed("five"), "five");
    // Each process ends with its last tunnel.
    drop((plain, secure));
    assert!(server.wait().success());
    assert!(successor.is_there());
    drop(newer);
    until("the end of the second process", || !successor.is_there());
    assert!(last.is_there());
}

#[test]
fn a_signal_or_its_time_ends_a_process_with_tunnels() {
    for (flags, signals) in [(&["--tunnel-drain-time", "2s"][..], false), (&[], true)] {
        let folder = Folder::new();
        let mut server = proxy(&folder, &format!("http://{}", echo()), flags);
        let mut tunnel = tunnel(&server);
        let began = Instant::now();
        let _successor = upgraded(&folder);
        wait_for_the_end_of_requests(began);
        if signals {
            assert_eq!(echoed(&mut tunnel.try_clone().unwrap(), &mut tunnel, "on"), "on");
            server.signal(Signal::TERM);
        }
        assert_eq!(tunnel.read(&mut [0]).unwrap_or(0), 0);
        assert!(server.wait().success());
    }
}

/// A browser's WebSocket is a stream of its HTTP/2 connection.
#[test]
fn websockets_over_http2_outlive_an_upgrade() {
    let upstream = {
        let mut command = Command::new(program("flatout"));
        command.args(["serve", "--push", "/live", "--push-token", "secret", "--listen", "127.0.0.1:0"]);
        Server::start(command)
    };
    let folder = Folder::new();
    let mut server = proxy(&folder, &format!("http://{}", upstream.address), &[]);
    let Some(mut browser) = Browser::start(800, false) else { return };
    browser.visit(&format!("https://127.0.0.1:{}/live/a?presence=1", server.secure_port.unwrap()));
    browser.evaluate(
        "window.received = ''; window.ending = ''; window.socket = new WebSocket(`wss://${location.host}/live/a`);
         socket.onmessage = (message) => { received += message.data };
         socket.onclose = (event) => { ending = `${event.code}` }; 0",
    );
    until("a subscriber", || upstream.get("/live/a?presence=1", "").text() == "{\"a\":1}");
    let began = Instant::now();
    let _successor = upgraded(&folder);
    wait_for_the_end_of_requests(began);
    let url = format!("http://{}/live/a", upstream.address);
    let publish = ["publish", &url, "--token", "secret", "hello"];
    assert!(Command::new(program("flatout")).args(publish).output().unwrap().status.success());
    until("the message", || {
        browser.evaluate("window.received").as_str().is_some_and(|text| text.contains("hello"))
    });
    assert_eq!(browser.evaluate("window.ending").as_str(), Some(""));
    browser.evaluate("socket.close(1000); 0");
    assert!(server.wait().success());
}
