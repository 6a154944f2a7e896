//! Responses that end before their client of HTTP/2 has room for them.

mod support;

use std::io::Write;
use std::net::TcpListener;

use bytes::Bytes;
use flatout_proxy::{Address, Server, Upstream};
use support::{Running, read_until};

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
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let received = runtime.block_on(async {
            let stream = tokio::net::TcpStream::connect(proxy.address).await.unwrap();
            let (mut sender, connection) = h2::client::Builder::new()
                .initial_window_size(WINDOW_BYTES)
                .handshake::<_, Bytes>(stream)
                .await
                .unwrap();
            let driver = tokio::spawn(connection);
            let request = http::Request::get("http://t/").body(()).unwrap();
            let (response, _) = sender.send_request(request, true).unwrap();
            let mut body = response.await.unwrap().into_body();
            // Its connection has ended before the client reads on.
            tokio::task::spawn_blocking(|| upstream.join().unwrap()).await.unwrap();
            let mut received = 0;
            while let Some(piece) = body.data().await {
                let bytes = piece.unwrap_or_else(|error| panic!("after {received} bytes: {error}")).len();
                received += bytes;
                body.flow_control().release_capacity(bytes).unwrap();
            }
            driver.abort();
            received
        });
        assert_eq!(received, BODY_BYTES, "{framing}");
    }
}
