//! An application as a server, over real sockets.

use std::io::{Read, Write};
use std::net::TcpStream;

use flatout::engine::Address;
use flatout::{App, Local, Peer};

fn ask(address: &str, request: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(std::time::Duration::from_secs(30))).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n")
}

#[test]
fn an_app_serves_axum_and_its_own_over_sockets_with_state_for_each_worker() {
    async fn stream(body: axum::body::Body) -> axum::body::Body {
        body
    }
    let router = axum::Router::new().route("/echo", axum::routing::post(stream));
    let server = App::new()
        .local(std::thread::current)
        .get("/worker", |Local(thread): Local<std::thread::Thread>| thread.name().map(str::to_owned))
        .get("/peer", |Peer(peer): Peer| format!("{}", peer.unwrap().ip()))
        .post("/small", |body: String| body)
        .body_limit(4)
        .mount("/axum", router)
        .listen("127.0.0.1:0")
        .workers(2)
        .start()
        .unwrap();
    let Address::Tcp(address) = server.addresses()[0].clone() else { panic!("no address") };
    let address = address.to_string();
    let mut names: Vec<String> =
        (0..40).map(|_| ask(&address, &get("/worker")).rsplit_once("\r\n").unwrap().1.to_owned()).collect();
    names.sort();
    names.dedup();
    assert_eq!(names, ["flatout-0", "flatout-1"]);
    assert!(ask(&address, &get("/peer")).ends_with("127.0.0.1"));

    let head = "HTTP/1.1\r\nHost: t\r\nConnection: close\r\n";
    let chunked = format!("POST /axum/echo {head}Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n");
    let answer = ask(&address, &chunked);
    assert!(answer.contains("transfer-encoding: chunked") || answer.contains("Transfer-Encoding: chunked"));
    assert!(answer.ends_with("3\r\nabc\r\n0\r\n\r\n"), "{answer}");

    let post = |body: &str| format!("POST /small {head}Content-Length: {}\r\n\r\n{body}", body.len());
    assert!(ask(&address, &post("abcd")).ends_with("abcd"));
    assert!(ask(&address, &post("abcde")).starts_with("HTTP/1.1 413 "));

    server.handle().drain();
    server.wait().unwrap();
}
