//! Calls over a socket, one connection each.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use flatout_engine::Address;
use flatout_wire::Status;

use super::{Answer, check_length};
use crate::{App, Error, Result, Server};

/// How long a response may take; only a broken server makes a test wait that long.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(30);

/// A started application.
pub(super) struct TestServer {
    address: SocketAddr,
    server: Option<Server>,
}

impl TestServer {
    pub(super) fn new(app: App) -> Result<TestServer> {
        let app = app.listen("127.0.0.1:0").plan(|plan| plan.workers = plan.workers.or(Some(1)));
        let server = app.start()?;
        let found = server.addresses().iter().rev().find_map(|address| match address {
            Address::Tcp(address) => Some(*address),
            Address::Unix(_) => None,
        });
        let address = found.ok_or_else(|| Error::Start("there is no TCP address to call".to_owned()))?;
        Ok(TestServer { address, server: Some(server) })
    }

    pub(super) fn drain(&self) {
        if let Some(server) = &self.server {
            server.handle().drain();
        }
    }

    pub(super) fn send(&self, head: &str, body: &[u8]) -> Answer {
        let mut whole = Vec::new();
        let mut answer = self.read(head, body, &mut |piece| {
            whole.extend_from_slice(piece);
            false
        });
        answer.body = whole.into();
        answer
    }

    /// Sends a request head, and keeps the connection.
    pub(super) fn open(&self, head: &str) -> (BufReader<TcpStream>, Answer) {
        let mut stream = self.connect();
        stream.write_all(head.as_bytes()).expect("the server reads the request");
        let mut reader = BufReader::new(stream);
        let (status, fields) = final_head(&mut reader);
        (reader, Answer { status, fields, body: bytes::Bytes::new() })
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).expect("the server can be reached");
        stream.set_read_timeout(Some(ANSWER_TIME_MAX)).expect("a socket has a time limit");
        stream
    }

    /// Passes the body on piece by piece, until `take` has enough.
    pub(super) fn read(&self, head: &str, body: &[u8], take: &mut dyn FnMut(&[u8]) -> bool) -> Answer {
        let mut stream = self.connect();
        let head = head.replacen("\r\n", "\r\nConnection: close\r\n", 1);
        // A server that rejects a request may close before it has read everything; its response is still valid.
        let _ = stream.write_all(&[head.as_bytes(), body].concat());
        let mut reader = BufReader::new(stream);
        let (status, fields) = final_head(&mut reader);
        let answer = Answer { status, fields, body: bytes::Bytes::new() };
        let is_bodyless = head.starts_with("HEAD ") || status.is_bodyless();
        let length = answer.header("content-length").and_then(|length| length.parse().ok());
        let is_chunked =
            answer.header("transfer-encoding").is_some_and(|value| value.eq_ignore_ascii_case("chunked"));
        if is_chunked {
            read_chunks(&mut reader, take);
            return answer;
        }
        let (mut bytes, mut has_enough) = (0, false);
        read_to_end(&mut reader, &mut |piece| {
            bytes += piece.len() as u64;
            has_enough = take(piece);
            has_enough
        });
        if let Some(length) = length.filter(|_| !is_bodyless && !has_enough) {
            check_length(length, bytes);
        }
        answer
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        if let Some(server) = self.server.take() {
            server.handle().drain();
            // A worker that failed has reported it; a second panic would hide that of the test.
            let _ = server.wait();
        }
    }
}

/// The head of the final response, after the interim ones.
fn final_head(reader: &mut impl BufRead) -> (Status, Vec<u8>) {
    loop {
        let status_line = line(reader);
        let code = status_line.split(' ').nth(1).and_then(|code| code.parse().ok());
        let status = code.and_then(Status::from_code).expect("the answer has a status");
        let mut fields = Vec::new();
        loop {
            let field = line(reader);
            if field.is_empty() {
                break;
            }
            fields.extend_from_slice(format!("{field}\r\n").as_bytes());
        }
        if status.code() >= 200 || status.code() == 101 {
            return (status, fields);
        }
    }
}

fn read_to_end(reader: &mut impl BufRead, take: &mut dyn FnMut(&[u8]) -> bool) {
    loop {
        // The connection was closed: this is all that was received.
        let Ok(piece) = reader.fill_buf() else { return };
        if piece.is_empty() || take(piece) {
            return;
        }
        let bytes = piece.len();
        reader.consume(bytes);
    }
}

fn read_chunks(reader: &mut impl BufRead, take: &mut dyn FnMut(&[u8]) -> bool) {
    loop {
        let bytes = usize::from_str_radix(&line(reader), 16).expect("a chunk has a size");
        let mut chunk = vec![0; bytes];
        reader.read_exact(&mut chunk).expect("a chunk is whole");
        if bytes == 0 || take(&chunk) {
            return;
        }
        line(reader);
    }
}

fn line(reader: &mut impl BufRead) -> String {
    let mut line = String::new();
    reader.read_line(&mut line).expect("an answer within the time limit");
    line.trim_end_matches(['\r', '\n']).to_owned()
}
