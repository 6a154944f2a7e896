//! `flatout serve` with channels, from outside: flags, `flatout publish`, reloads, and the example page in a browser.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;

use flatout_tests::browser::Browser;
use flatout_tests::{Folder, Server, Signal, program, until};

fn read_until(stream: &mut TcpStream, end: &str) -> String {
    let mut bytes = Vec::new();
    while !bytes.ends_with(end.as_bytes()) {
        let mut byte = [0];
        assert_eq!(stream.read(&mut byte).unwrap(), 1, "{}", String::from_utf8_lossy(&bytes));
        bytes.push(byte[0]);
    }
    String::from_utf8(bytes).unwrap()
}

fn subscribe(server: &Server, target: &str) -> TcpStream {
    let mut stream = server.connect();
    stream.write_all(format!("GET {target} HTTP/1.1\r\nHost: t\r\n\r\n").as_bytes()).unwrap();
    let head = read_until(&mut stream, "\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 200 ") && head.contains("\r\nConnection: close\r\n"), "{head}");
    assert!(read_until(&mut stream, "\n\n").starts_with("retry: "));
    stream
}

fn publish(server: &Server, target: &str, arguments: &[&str]) -> (bool, String) {
    let url = format!("http://{}{target}", server.address);
    let done = Command::new(program("flatout")).arg("publish").arg(url).args(arguments).output().unwrap();
    (done.status.success(), String::from_utf8_lossy(&[done.stdout, done.stderr].concat()).into_owned())
}

#[test]
fn flags_are_enough() {
    let mut command = Command::new(program("flatout"));
    command.args(["serve", "--push", "/live", "--push-token", "secret", "--listen", "127.0.0.1:0"]);
    let mut server = Server::start(command);
    let mut stream = subscribe(&server, "/live/NBA.1");
    let (is_done, said) =
        publish(&server, "/live/NBA.1", &["--token", "secret", "--event", "end of game", "12:10"]);
    assert!(is_done && said.starts_with("{\"id\":\""), "{said}");
    assert!(read_until(&mut stream, "\n\n").ends_with("event: end of game\ndata: 12:10\n\n"));
    let (is_done, said) = publish(&server, "/live/NBA.1", &["--token", "wrong", "x"]);
    assert!(!is_done && said.contains("401"), "{said}");
    assert_eq!(server.get("/", "").status, 404);
    server.signal(Signal::TERM);
    assert!(read_until(&mut stream, "\n\n").starts_with("event: end\ndata: {\"code\":1012,"));
    assert!(server.wait().success());
}

#[test]
fn subscribers_stay_over_a_reload() {
    let folder = Folder::new();
    let text = "listen \"127.0.0.1:0\"\nroute \"/live\" {\n    push\n    push-token secret\n}\n";
    folder.write("site.kdl", text);
    let mut command = Command::new(program("flatout"));
    command.arg("serve").arg("-c").arg(folder.0.join("site.kdl"));
    let server = Server::start(command);
    let mut stream = subscribe(&server, "/live/a");
    for round in 0..3 {
        folder.write("site.kdl", format!("{text}route \"/new{round}\" {{\n    respond 200 \"new\"\n}}\n"));
        server.signal(Signal::HUP);
        until("the reload", || server.get(&format!("/new{round}"), "").status == 200);
        let message = format!("message {round}");
        assert!(publish(&server, "/live/a", &["--token", "secret", &message]).0);
        assert!(read_until(&mut stream, "\n\n").ends_with(&format!("data: {message}\n\n")));
    }
}

/// Quotes and scores arrive in the page by each transport.
#[test]
fn the_example_page_moves_by_all_three_transports() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/live");
    let mut command = Command::new(program("flatout"));
    command.arg("serve").arg("-c").arg(folder.join("site.kdl")).args(["--listen", "127.0.0.1:0"]);
    let server = Server::start(command);
    for (at, by) in ["events", "websocket", "poll"].into_iter().enumerate() {
        let Some(mut browser) = Browser::start(800, false) else { return };
        browser.visit(&format!("http://{}/?by={by}", server.address));
        let text = |browser: &mut Browser, id: &str| {
            let script = format!("document.querySelector('#{id}').textContent");
            browser.evaluate(&script).as_str().unwrap().to_owned()
        };
        until("a subscriber", || text(&mut browser, "online") == "1");
        for price in [10.5, 11.25] {
            let quote = format!("{{\"symbol\":\"s{at}\",\"price\":{price}}}");
            assert!(
                publish(
                    &server,
                    "/quotes/quotes",
                    &["--token", "demo", "--json", "--key", &format!("s{at}"), &quote]
                )
                .0
            );
            until("the price", || text(&mut browser, "quotes").contains(&format!("s{at}{price:.2}")));
        }
        let score = format!("{{\"game\":\"game {at}\",\"score\":[{at},7]}}");
        assert!(publish(&server, "/live/scores", &["--token", "demo", "--json", &score]).0);
        until("the score", || text(&mut browser, "scores").contains(&format!("game {at}{at} : 7")));
        assert_eq!(browser.poor_contrasts(), serde_json::json!([]), "{by}");
        // It asks its own server, which is what the page is for.
        let complaints = browser.complaints();
        let others: Vec<_> =
            complaints.iter().filter(|said| !said.starts_with("asks for http://127.0.0.1:")).collect();
        assert!(others.is_empty(), "{by}: {others:?}");
    }
}
