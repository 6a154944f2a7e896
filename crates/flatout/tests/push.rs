//! Channels of an application, over real sockets.

mod socket;

use std::io::{Read, Write};
use std::net::TcpStream;

use flatout::App;
use flatout::push::{Plan, Publication, Publisher};
use socket::{Served, ask, connect, serve};

fn read_until(stream: &mut TcpStream, end: &str) -> String {
    let mut bytes = Vec::new();
    while !bytes.ends_with(end.as_bytes()) {
        let mut byte = [0];
        assert_eq!(stream.read(&mut byte).unwrap(), 1, "{}", String::from_utf8_lossy(&bytes));
        bytes.push(byte[0]);
    }
    String::from_utf8(bytes).unwrap()
}

fn subscribe(server: &Served, target: &str) -> TcpStream {
    let mut stream = connect(server);
    stream.write_all(format!("GET {target} HTTP/1.1\r\nHost: t\r\n\r\n").as_bytes()).unwrap();
    let head = read_until(&mut stream, "\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 200 ") && head.contains("text/event-stream"), "{head}");
    assert!(read_until(&mut stream, "\n\n").starts_with("retry: "));
    stream
}

#[test]
fn a_program_publishes_to_its_subscribers() {
    let publisher = Publisher::with(Plan { publish_token: Some("secret".to_owned()), ..Plan::default() });
    let inner = App::new().push("/live/{channel}", &publisher);
    let server = serve(App::new().get("/own", || "own").nest("/v1", inner));
    let mut stream = subscribe(&server, "/v1/live/NBA.1234");
    while publisher.subscribers("NBA.1234") == 0 {
        std::thread::yield_now();
    }
    let id = publisher.publish("NBA.1234", "12:10").unwrap();
    assert_eq!(read_until(&mut stream, "\n\n"), format!("id: {id}\ndata: 12:10\n\n"));
    let goal = Publication { event: Some("end".into()), ..Publication::from("13:10") };
    publisher.publish("NBA.1234", goal).unwrap();
    assert!(read_until(&mut stream, "\n\n").ends_with("event: end\ndata: 13:10\n\n"));
    let post = "POST /v1/live/NBA.1234 HTTP/1.1\r\nHost: t\r\nConnection: close\r\nContent-Length: 1\r\n";
    assert!(ask(&server, &format!("{post}\r\nx")).starts_with("HTTP/1.1 401 "));
    assert!(
        ask(&server, &format!("{post}Authorization: Bearer secret\r\n\r\nx")).starts_with("HTTP/1.1 200 ")
    );
    assert!(read_until(&mut stream, "\n\n").ends_with("data: x\n\n"));
    assert!(ask(&server, &socket::get("/own")).ends_with("own"));
}
