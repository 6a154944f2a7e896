//! Request bodies that somebody reads after the response, and bodies whose clients wait for `100 Continue`.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::{Mutex, mpsc};
use std::time::Duration;

mod support;

use flatout_engine::{
    BodyFault, BodyPlan, BodyStream, Limits, Prepared, Reply, Request, RequestBody, Response, Service,
};
use flatout_wire::h2::{Code, StreamId};
use flatout_wire::{Head, Method, Status};
use http_body_util::BodyExt;
use support::h2::H2Client;
use support::{Running, get, last, read_until, rest};

/// Gives bodies to the test.
struct Bodies(mpsc::Sender<BodyStream>);

impl Service for Bodies {
    fn prepare(&self, _: &Head<'_>, path: &[u8], _: u16) -> Prepared {
        match path {
            b"/whole" => BodyPlan::Whole { bytes_max: None },
            _ => BodyPlan::Stream { bytes_max: Some(64 << 20) },
        }
        .into()
    }

    fn call(&self, request: Request<'_>, response: &mut Response) -> Reply {
        response.buffer().extend_from_slice(b"answered");
        match (request.path, request.body) {
            (b"/given", RequestBody::Stream(body)) => self.0.send(body).unwrap(),
            (b"/refused", _) => drop(response.set_status(Status::UNAUTHORIZED)),
            (b"/read", RequestBody::Stream(body)) => {
                return Reply::Later(Box::pin(async move {
                    let bytes = body.collect().await.map_or(0, |whole| whole.to_bytes().len());
                    let mut response = Response::new();
                    response.buffer().extend_from_slice(format!("{bytes} bytes").as_bytes());
                    response
                }));
            }
            _ => {}
        }
        Reply::Now
    }
}

fn serving() -> (Running, mpsc::Receiver<BodyStream>) {
    let (sender, receiver) = mpsc::channel();
    let sender = Mutex::new(sender);
    let make = move |_| Box::new(Bodies(sender.lock().unwrap().clone())) as Box<dyn Service>;
    (Running::serving(Limits::default(), make), receiver)
}

/// What can be read of a body, and how it ends.
fn read(mut body: BodyStream) -> (Vec<u8>, Result<(), BodyFault>) {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let mut bytes = Vec::new();
        loop {
            match body.frame().await {
                Some(Ok(frame)) => bytes.extend(frame.into_data().unwrap_or_default()),
                Some(Err(fault)) => return (bytes, Err(fault)),
                None => return (bytes, Ok(())),
            }
        }
    })
}

fn post(path: &str, fields: &str) -> String {
    format!("POST {path} HTTP/1.1\r\nHost: t\r\n{fields}\r\n")
}

/// Sends a request with the start of its body, and waits for the response.
fn begin(stream: &mut TcpStream, fields: &str, start: &[u8]) {
    stream.write_all(&[post("/given", fields).as_bytes(), start].concat()).unwrap();
    assert!(read_until(stream, "answered").starts_with("HTTP/1.1 200 OK"));
}

fn begin_h2(client: &mut H2Client, start: &[u8]) -> StreamId {
    let stream = client.upload(Method::Post, "/given", &[]);
    client.say(stream, start);
    client.until(|client| client.got[&stream].is_over);
    send_all(client, stream);
    stream
}

/// Sends what waits of a body, as the windows allow.
fn send_all(client: &mut H2Client, stream: StreamId) {
    loop {
        client.send();
        // Behind the last byte, the server may have nothing to say.
        if client.unsent_bytes(stream) == 0 {
            return;
        }
        client.turn();
    }
}

#[test]
fn body_can_be_read_after_its_response() {
    let (server, bodies) = serving();
    let large = vec![b'x'; 3 << 20];
    for (start, behind) in [(&b"hello"[..], &b""[..]), (b"", b"hello"), (b"he", b"llo"), (b"", &large)] {
        let whole = [start, behind].concat();
        let mut stream = server.connect();
        begin(&mut stream, &format!("Content-Length: {}\r\n", whole.len()), start);
        let reading = std::thread::spawn({
            let body = bodies.recv().unwrap();
            move || read(body)
        });
        stream.write_all(behind).unwrap();
        assert_eq!(reading.join().unwrap(), (whole.clone(), Ok(())), "{} bytes", whole.len());
        // The connection is used again.
        stream.write_all(last("/").as_bytes()).unwrap();
        assert!(rest(&mut stream).starts_with("HTTP/1.1 200 OK"));

        let mut client = H2Client::new(server.connect());
        let stream = begin_h2(&mut client, start);
        let reading = std::thread::spawn({
            let body = bodies.recv().unwrap();
            move || read(body)
        });
        client.say(stream, behind);
        client.end(stream);
        send_all(&mut client, stream);
        assert_eq!(reading.join().unwrap(), (whole, Ok(())));
        let next = client.get("/");
        assert_eq!(client.finish(next).status, 200);
        assert_eq!(client.got[&stream].reset, None);
    }
}

#[test]
fn body_can_be_read_after_the_last_response() {
    let (server, bodies) = serving();
    let mut stream = server.connect();
    begin(&mut stream, "Connection: close\r\nTransfer-Encoding: chunked\r\n", b"2\r\nhe\r\n");
    stream.write_all(b"3\r\nllo\r\n0\r\n\r\n").unwrap();
    assert_eq!(read(bodies.recv().unwrap()), (b"hello".to_vec(), Ok(())));
    assert_eq!(rest(&mut stream), "");
}

#[test]
fn small_rest_of_an_http2_body_is_skipped_and_a_large_one_is_reset() {
    let (server, _bodies) = serving();
    for (length, is_small) in [(100_000, true), (2 << 20, false)] {
        let mut client = H2Client::new(server.connect());
        let stream = client.upload(Method::Post, "/refused", &[("content-length", &length.to_string())]);
        client.until(|client| client.got[&stream].is_over);
        assert_eq!(client.got[&stream].status, 401);
        let next = client.get("/");
        assert_eq!(client.finish(next).status, 200);
        assert_eq!(client.got[&stream].reset, (!is_small).then_some(Code::NO_ERROR));
        if is_small {
            client.say(stream, &vec![b'x'; length]);
            client.end(stream);
            send_all(&mut client, stream);
            let next = client.get("/");
            assert_eq!(client.finish(next).status, 200);
            assert_eq!(client.got[&stream].reset, None);
        }
    }
}

#[test]
fn client_that_does_not_send_the_small_rest_of_a_body_is_reset() {
    let limits = Limits { rate_window: Duration::from_millis(50), ..Limits::default() };
    let server = Running::serving(limits, |_| Box::new(Bodies(mpsc::channel().0)) as Box<dyn Service>);
    let mut client = H2Client::new(server.connect());
    let stream = client.upload(Method::Post, "/refused", &[("content-length", "100000")]);
    client.until(|client| client.got[&stream].is_over);
    client.until(|client| client.got[&stream].reset.is_some());
    assert_eq!(client.got[&stream].reset, Some(Code::NO_ERROR));
}

#[test]
fn body_dropped_after_its_response_is_skipped() {
    let (server, bodies) = serving();
    let mut stream = server.connect();
    begin(&mut stream, "Content-Length: 5\r\n", b"he");
    drop(bodies.recv().unwrap());
    stream.write_all(("llo".to_owned() + &last("/")).as_bytes()).unwrap();
    assert!(rest(&mut stream).starts_with("HTTP/1.1 200 OK"));

    let mut client = H2Client::new(server.connect());
    let stream = begin_h2(&mut client, b"he");
    assert_eq!(client.got[&stream].reset, None);
    drop(bodies.recv().unwrap());
    client.until(|client| client.got[&stream].reset.is_some());
    assert_eq!(client.got[&stream].reset, Some(Code::NO_ERROR));
}

#[test]
fn received_bytes_stay_readable_and_the_error_names_the_cause() {
    let (server, bodies) = serving();
    let mut stream = server.connect();
    begin(&mut stream, "Content-Length: 5\r\n", b"he");
    drop(stream);
    assert_eq!(read(bodies.recv().unwrap()), (b"he".to_vec(), Err(BodyFault::Aborted)));
    // A client that waits for 100, and gets another response.
    let mut stream = server.connect();
    begin(&mut stream, "Expect: 100-continue\r\nContent-Length: 5\r\n", b"");
    let (bytes, end) = read(bodies.recv().unwrap());
    assert_eq!((bytes, end), (Vec::new(), Err(BodyFault::Responded)));
    assert_eq!(BodyFault::Responded.to_string(), "the response was sent before the request body had arrived");

    let mut client = H2Client::new(server.connect());
    begin_h2(&mut client, b"he");
    client.socket.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(read(bodies.recv().unwrap()), (b"he".to_vec(), Err(BodyFault::Aborted)));
    let mut client = H2Client::new(server.connect());
    let stream = client.upload(Method::Post, "/given", &[("expect", "100-continue")]);
    client.until(|client| client.got[&stream].is_over);
    assert_eq!(read(bodies.recv().unwrap()), (Vec::new(), Err(BodyFault::Responded)));
}

#[test]
fn stopped_server_fails_open_bodies() {
    let (server, bodies) = serving();
    let mut stream = server.connect();
    begin(&mut stream, "Content-Length: 5\r\n", b"he");
    let body = bodies.recv().unwrap();
    server.handle.stop();
    assert_eq!(read(body), (b"he".to_vec(), Err(BodyFault::Stopped)));
}

#[test]
fn continue_is_sent_on_first_read() {
    let (server, _bodies) = serving();
    let waits = "Expect: 100-continue\r\nContent-Length: 5\r\n";
    for path in ["/read", "/whole"] {
        let mut stream = server.connect();
        stream.write_all(post(path, waits).as_bytes()).unwrap();
        assert_eq!(read_until(&mut stream, "\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
        stream.write_all(("hello".to_owned() + &last("/")).as_bytes()).unwrap();
        let answers = rest(&mut stream);
        assert_eq!(answers.matches("HTTP/1.1 200 OK").count(), 2, "{answers}");
        assert_eq!(answers.contains("5 bytes"), path == "/read");

        let mut client = H2Client::new(server.connect());
        let stream = client.upload(Method::Post, path, &[("expect", "100-continue")]);
        client.until(|client| client.got[&stream].interims == [100]);
        client.say(stream, b"hello");
        client.end(stream);
        assert_eq!(client.finish(stream).status, 200);
    }
}

#[test]
fn refused_request_gets_no_continue() {
    let (server, _bodies) = serving();
    let mut stream = server.connect();
    let waits = "Expect: 100-continue\r\nContent-Length: 5\r\n";
    stream.write_all(post("/refused", waits).as_bytes()).unwrap();
    let answer = rest(&mut stream);
    assert!(answer.starts_with("HTTP/1.1 401 ") && answer.contains("\r\nConnection: close\r\n"), "{answer}");

    let mut client = H2Client::new(server.connect());
    let stream = client.upload(Method::Post, "/refused", &[("expect", "100-continue")]);
    client.until(|client| client.got[&stream].is_over);
    assert_eq!((client.got[&stream].status, &client.got[&stream].interims[..]), (401, &[][..]));
}

/// A reader catches up while the client does not read: window updates sent meanwhile must not reach another client.
#[test]
fn window_update_of_a_stalled_client_stays_on_its_connection() {
    let (server, bodies) = serving();
    let mut client = H2Client::new(server.connect_with_small_buffer());
    begin_h2(&mut client, &vec![b'x'; 60 << 10]);
    // Pings whose answers are not read fill the socket.
    let ping = [&[0, 0, 8, 6, 0, 0, 0, 0, 0][..], &[7; 8]].concat().repeat(500);
    client.socket.set_write_timeout(Some(std::time::Duration::from_millis(300))).unwrap();
    while client.socket.write_all(&ping).is_ok() {}
    let body = bodies.recv().unwrap();
    let reading = std::thread::spawn(move || read(body));
    for _ in 0..20 {
        let mut other = server.connect();
        other.write_all(get("/").as_bytes()).unwrap();
        let mut first = [0; 8];
        other.read_exact(&mut first).unwrap();
        assert_eq!(&first, b"HTTP/1.1", "bytes of another connection");
    }
    drop(client);
    let _ = reading.join().unwrap();
}
