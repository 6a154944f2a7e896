//! The client of authors' tests, with and without a socket: both see the same.

use std::panic::AssertUnwindSafe;

use flatout::test::{Client, ServerMessage};
use flatout::{
    App, Event, Headers, Json, LastEventId, Message, Problem, Respond, Response, Sse, Status, Streamed,
    Streaming,
};
use http_body_util::BodyExt;

fn both(app: fn() -> App) -> [Client; 2] {
    [Client::new(app()).unwrap(), Client::over_socket(app()).unwrap()]
}

#[test]
fn answers_are_the_same_with_and_without_a_socket() {
    fn app() -> App {
        App::new()
            .post("/echo", async |Streamed(body): Streamed| body.collect().await.unwrap().to_bytes())
            .put("/json", |Json(number): Json<u32>| Json(number + 1))
            .get("/empty", || ())
            .get("/pieces", || {
                let pieces = ["one ", "two ", "three"].map(|text| Ok::<_, std::io::Error>(text.into()));
                Streaming(futures_util::stream::iter(pieces))
            })
            .delete("/refused", || Problem::new(Status::CONFLICT).detail("no"))
            .get("/hinted", || {
                let mut response = flatout::Response::new();
                response.hint("Link", "</a>").header("X-A", "1").header("X-A", "2");
                response.buffer().extend_from_slice(b"late");
                response
            })
    }
    for client in both(app) {
        assert_eq!(client.post("/echo").body("x".repeat(300_000)).send().bytes().len(), 300_000);
        assert_eq!(client.put("/json").json(&41).send().json::<u32>(), 42);
        let empty = client.get("/empty").send();
        assert_eq!((empty.status(), empty.text()), (Status::NO_CONTENT, ""));
        assert_eq!(client.get("/pieces").send().text(), "one two three");
        assert_eq!(client.delete("/refused").send().json::<serde_json::Value>()["detail"], "no");
        let hinted = client.get("/hinted").send();
        assert_eq!((hinted.text(), hinted.all("x-a").collect::<Vec<_>>()), ("late", vec!["1", "2"]));
    }
}

#[test]
fn cookies_come_back_where_they_belong() {
    fn app() -> App {
        App::new()
            .get("/login", || ([("Set-Cookie", "session=7; Path=/; HttpOnly")], "in"))
            .get("/logout", || ([("Set-Cookie", "session=; Path=/; Max-Age=0")], "out"))
            .get("/me", |Headers(headers): Headers| {
                headers.get("cookie").map(|value| value.to_str().unwrap().to_owned())
            })
    }
    for client in both(app).map(Client::keep_cookies) {
        assert_eq!(client.get("/me").send().status(), Status::NOT_FOUND);
        client.get("/login").send();
        assert_eq!(client.get("/me").send().text(), "session=7");
        client.get("/logout").send();
        assert_eq!(client.get("/me").send().status(), Status::NOT_FOUND);
    }
    let forgetful = Client::new(app()).unwrap();
    forgetful.get("/login").send();
    assert_eq!(forgetful.get("/me").send().status(), Status::NOT_FOUND);
}

#[test]
fn events_are_read_one_by_one_from_streams_without_end() {
    fn app() -> App {
        App::new().get("/ticks", |LastEventId(last): LastEventId| {
            let first = last.and_then(|id| id.parse().ok()).unwrap_or(0) + 1;
            Sse::new(futures_util::stream::unfold(first, async |n: u32| {
                tokio::task::yield_now().await;
                Some((Event::data(format!("tick\n{n}")).id(n.to_string()), n + 1))
            }))
        })
    }
    for client in both(app) {
        let events = client.get("/ticks").events(3);
        let data: Vec<&str> = events.iter().map(|event| event.data.as_str()).collect();
        assert_eq!(data, ["tick\n1", "tick\n2", "tick\n3"]);
        let id = events[2].id.clone().unwrap();
        assert_eq!(client.get("/ticks").header("Last-Event-ID", &id).events(1)[0].data, "tick\n4");
    }
}

#[test]
fn websockets_have_messages_of_all_kinds_and_an_end() {
    let app = App::new()
        .get("/plain", || "plain")
        .websocket("/echo", |socket, message| match message {
            Message::Text("end") => socket.close(4001, "as asked"),
            message => socket.send(message),
        })
        .before(|context| match context.header("cookie") {
            Some(b"user=ada") => Ok(()),
            _ => Err(([("Set-Cookie", "user=ada; Path=/")], Status::FORBIDDEN)),
        });
    let client = Client::over_socket(app).unwrap().keep_cookies();
    let refused =
        || std::panic::catch_unwind(AssertUnwindSafe(|| client.get("/echo").websocket().close(1000)));
    assert!(refused().is_err());
    // With the cookie that the refusal has set.
    let mut socket = client.get("/echo").websocket();
    let long = "κόσμε ".repeat(50_000);
    for text in ["", "hello", &long] {
        socket.send(Message::Text(text));
        assert_eq!(socket.receive(), ServerMessage::Text(text.to_owned()));
    }
    socket.send(Message::Binary(&[0, 255]));
    assert_eq!(socket.receive(), ServerMessage::Binary(vec![0, 255]));
    socket.send(Message::Text("end"));
    assert_eq!(socket.receive(), ServerMessage::Closed(4001, "as asked".to_owned()));
    assert_eq!(client.get("/echo").websocket().close(1000), ServerMessage::Closed(1000, String::new()));
    assert_eq!(client.patch("/plain").send().status(), Status::METHOD_NOT_ALLOWED);
}

#[test]
#[should_panic(expected = "a WebSocket needs Client::over_socket")]
fn websockets_need_a_socket() {
    let client = Client::new(App::new().websocket("/", |_, _| ())).unwrap();
    client.get("/").websocket();
}

/// What a socket would not carry, a test without one does not see either.
#[test]
fn responses_are_as_over_a_socket() {
    let app = || {
        App::new()
            .get("/204", || (Status::NO_CONTENT, "not sent"))
            .get("/304", || (Status::NOT_MODIFIED, "not sent"))
            .get("/103", || (Status::EARLY_HINTS, "not sent"))
            .get("/text", || "text")
    };
    for client in [Client::new(app()).unwrap(), Client::over_socket(app()).unwrap()] {
        for (path, status) in [("/204", 204), ("/304", 304), ("/103", 500)] {
            let answer = client.get(path).send();
            assert_eq!((answer.status().code(), answer.text()), (status, ""), "{path}");
        }
        assert_eq!(client.call("HEAD", "/text").send().text(), "");
    }
}

#[test]
fn a_wrong_length_fails_the_test_with_and_without_a_socket() {
    struct Lies(u64);
    impl Respond for Lies {
        fn respond(self, response: &mut Response) {
            let pieces = [Ok::<_, std::io::Error>(flatout::Bytes::from_static(b"hello"))];
            Streaming(futures_util::stream::iter(pieces)).respond(response);
            response.declare_length(self.0);
        }
    }
    let app = || App::new().get("/short", || Lies(9)).get("/long", || Lies(2)).get("/right", || Lies(5));
    for client in [Client::new(app()).unwrap(), Client::over_socket(app()).unwrap()] {
        for path in ["/short", "/long"] {
            let call = std::panic::AssertUnwindSafe(|| client.get(path).send());
            let panic = std::panic::catch_unwind(call).map(|_| ()).unwrap_err();
            let message = panic.downcast_ref::<String>().unwrap();
            assert!(message.contains("a server aborts its connection"), "{message}");
        }
        assert_eq!(client.get("/right").send().text(), "hello");
    }
}
