//! Clients whose receiver is dropped.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use flatout_engine::{Address, Plan, Reply, Request, Service, start};

use super::*;

struct Unchanged;

impl Finish for Unchanged {
    fn finish(&self, _: &mut Response, _: ResponseOrigin) {}
}

/// Drops the receiver of each request: before the response for `/`, and otherwise after its head.
struct Dropping(Lane);

impl Service for Dropping {
    fn call(&self, request: Request<'_>, _: &mut Response) -> Reply {
        let parked = ParkedClient { exchange: request.park(), finish: Rc::new(Unchanged) };
        let mut receiver = Receiver::client(&self.0, parked);
        if request.path != b"/" {
            let mut response = self.0.response();
            response.set_body(Body::Pushed);
            assert!(receiver.answer(&self.0, None, response, ResponseOrigin::Upstream));
            assert!(receiver.push(&self.0, Bytes::from_static(b"part")));
        }
        if request.path == b"/end" {
            receiver.end(&self.0, b"", &mut PendingDecisions::new());
        }
        Reply::Parked
    }
}

#[test]
fn a_client_whose_receiver_is_dropped_gets_502_or_a_cut_response() {
    let plan = Plan { listen: vec!["127.0.0.1:0".parse().unwrap()], workers: Some(1), ..Plan::default() };
    let server = start(plan, |worker| Box::new(Dropping(worker.lane.clone()))).unwrap();
    let Some(Address::Tcp(address)) = server.addresses().first().cloned() else { panic!("no address") };
    for (path, status, end) in [
        ("/", "502", "\r\n\r\n"),
        ("/cut", "200", "\r\n\r\n4\r\npart\r\n"),
        ("/end", "200", "\r\n\r\n4\r\npart\r\n0\r\n\r\n"),
    ] {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n").unwrap();
        let (mut bytes, mut byte) = (Vec::new(), [0]);
        // A response that is cut may end with a reset.
        while let Ok(1) = stream.read(&mut byte) {
            bytes.push(byte[0]);
        }
        let text = String::from_utf8(bytes).unwrap();
        assert!(text.starts_with(&format!("HTTP/1.1 {status} ")) && text.ends_with(end), "{path}: {text}");
    }
    server.handle().stop();
    server.wait().unwrap();
}
