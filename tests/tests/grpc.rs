//! gRPC through the proxy, with the official library: calls of every kind, to a server without and with TLS.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use flatout_tests::authority::self_sign;
use flatout_tests::{Folder, Server, program};

/// Debian's Python, which has the library.
const PYTHON: &str = "/usr/bin/python3";

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/grpc").join(name)
}

/// A gRPC server and its ports, killed when it is dropped.
struct Grpc {
    child: Child,
    plain: u16,
    secure: u16,
    folder: Folder,
}

impl Grpc {
    fn start() -> Grpc {
        let folder = Folder::new();
        self_sign(&folder);
        let mut child = Command::new(PYTHON)
            .arg(script("server.py"))
            .args(["key.pem", "cert.pem"])
            .current_dir(&folder.0)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let mut ports = line.split_whitespace().map(|port| port.parse().unwrap());
        let (plain, secure) = (ports.next().expect("python3-grpcio is missing"), ports.next().unwrap());
        Grpc { child, plain, secure, folder }
    }
}

impl Drop for Grpc {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn calls_of_every_kind(arguments: &[&str]) {
    let mut command = Command::new(program("flatout"));
    command.args(["serve", "--listen", "127.0.0.1:0", "--workers", "1"]).args(arguments);
    let proxy = Server::start(command);
    let client =
        Command::new(PYTHON).arg(script("client.py")).arg(proxy.address.to_string()).output().unwrap();
    let said = String::from_utf8_lossy(&client.stdout);
    assert_eq!(said, "all went well\n", "{}\n{:?}", String::from_utf8_lossy(&client.stderr), proxy.said());
}

#[test]
fn calls_pass_to_a_server_without_tls() {
    let server = Grpc::start();
    let to = format!("http://127.0.0.1:{}", server.plain);
    calls_of_every_kind(&["--to", &to, "--protocol", "h2c"]);
}

#[test]
fn calls_pass_to_a_server_with_tls() {
    let server = Grpc::start();
    // By address: the name may resolve to one at which the server does not listen.
    let to = format!("https://127.0.0.1:{}", server.secure);
    let authority = server.folder.0.join("cert.pem");
    let authority = authority.to_str().unwrap();
    calls_of_every_kind(&[
        "--to",
        &to,
        "--protocol",
        "h2",
        "--upstream-ca",
        authority,
        "--upstream-name",
        "localhost",
    ]);
}
