//! A server on its own port, and a raw client.
#![allow(dead_code, reason = "each test file uses its own part")]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use flatout::engine::Address;
use flatout::{App, Server};

/// The timeout of clients, which only a broken server reaches.
pub(crate) const TIME_MAX: Duration = Duration::from_secs(30);

/// A server with one worker; drained when dropped.
pub(crate) struct Served {
    pub(crate) address: String,
    pub(crate) server: Option<Server>,
}

pub(crate) fn serve(app: App) -> Served {
    let server = app.listen("127.0.0.1:0").workers(1).start().unwrap();
    let Address::Tcp(address) = server.addresses()[0].clone() else { panic!("no address") };
    Served { address: address.to_string(), server: Some(server) }
}

impl Drop for Served {
    fn drop(&mut self) {
        if let Some(server) = self.server.take() {
            server.handle().drain();
            server.wait().unwrap();
        }
    }
}

pub(crate) fn connect(server: &Served) -> TcpStream {
    let stream = TcpStream::connect(&server.address).unwrap();
    stream.set_read_timeout(Some(TIME_MAX)).unwrap();
    stream
}

/// Sends this and reads to the end of the connection.
pub(crate) fn ask(server: &Served, request: &str) -> String {
    let mut stream = connect(server);
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = Vec::new();
    // A connection that is cut may end in a reset.
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8(answer).unwrap()
}

/// The last request of a connection.
pub(crate) fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n")
}
