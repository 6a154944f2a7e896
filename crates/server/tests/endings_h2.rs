//! Responses to clients of HTTP/2 that have no room for them.

mod support;

use std::io::Write;
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use bytes::Bytes;
use flatout_proxy::{Address, Server, Upstream};
use h2::server::Builder;
use http::Response;
use support::h2::{ReceivedRequest, begin, serving};
use support::{Running, last, read_until};

/// Less than a stream may hold back, so that some of the response waits behind it.
const WINDOW_BYTES: u32 = 1000;

/// More than the server holds for a stream.
const BODY_BYTES: usize = 90_000;

/// The fields by which the end of the body is found, and whether it is in chunks.
const FRAMINGS: [(&str, bool); 2] = [("Transfer-Encoding: chunked\r\n", true), ("", false)];

#[test]
fn response_is_whole_although_its_upstream_has_closed_before_the_client_had_room() {
    for (framing, is_chunked) in FRAMINGS {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let upstream = std::thread::spawn(move || {
            let mut stream = listener.accept().unwrap().0;
            read_until(&mut stream, "\r\n\r\n");
            write!(stream, "HTTP/1.1 200 OK\r\nConnection: close\r\n{framing}\r\n").unwrap();
            for piece in vec![b'x'; BODY_BYTES].chunks(3000) {
                match is_chunked {
                    true => {
                        write!(stream, "{:x}\r\n", piece.len()).unwrap();
                        stream.write_all(piece).unwrap();
                        stream.write_all(b"\r\n").unwrap();
                    }
                    false => stream.write_all(piece).unwrap(),
                }
            }
            if is_chunked {
                stream.write_all(b"0\r\n\r\n").unwrap();
            }
        });
        let server = Server::new(Address::Socket(address));
        let proxy = Running::to(Upstream::new("t", vec![server]));
        // Its connection has ended before the client reads on.
        let received = read_slowly(proxy.address, || upstream.join().unwrap());
        assert_eq!(received, BODY_BYTES, "{framing}");
    }
}

#[test]
fn server_of_http2_is_not_slow_while_its_client_takes_nothing() {
    let upstream = serving(Builder::new(), None, |mut received: ReceivedRequest| async move {
        if received.request.uri().path() == "/silent" {
            std::future::pending::<()>().await;
        }
        let mut stream = begin(&mut received.respond, Response::new(()));
        stream.send_data(vec![b'x'; BODY_BYTES].into(), true).unwrap();
        let _ = std::future::poll_fn(|context| stream.poll_reset(context)).await;
    });
    let plan = Upstream { read_time_max: Duration::from_secs(1), retries_max: 0, ..upstream.upstream() };
    let proxy = Running::to(plan);
    let received = read_slowly(proxy.address, || {
        // When it is refused, the time to wait for a server is over for both.
        let response = proxy.all(last("/silent"));
        assert!(response.starts_with("HTTP/1.1 504"), "{response}");
    });
    assert_eq!(received, BODY_BYTES);
}

/// Requests `/` over HTTP/2, with a small window, and reads the response only when `wait` has returned. Returns the bytes of its body.
fn read_slowly(address: SocketAddr, wait: impl FnOnce()) -> usize {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let stream = tokio::net::TcpStream::connect(address).await.unwrap();
        let mut builder = h2::client::Builder::new();
        let handshake = builder.initial_window_size(WINDOW_BYTES).handshake::<_, Bytes>(stream);
        let (mut sender, connection) = handshake.await.unwrap();
        let driver = tokio::spawn(connection);
        let request = http::Request::get("http://t/").body(()).unwrap();
        let (response, _) = sender.send_request(request, true).unwrap();
        let mut body = response.await.unwrap().into_body();
        wait();
        let mut received = 0;
        while let Some(piece) = body.data().await {
            let bytes = piece.unwrap_or_else(|error| panic!("after {received} bytes: {error}")).len();
            received += bytes;
            body.flow_control().release_capacity(bytes).unwrap();
        }
        driver.abort();
        received
    })
}
