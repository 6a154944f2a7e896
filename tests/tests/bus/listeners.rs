//! Subscribers of all transports, each on its own thread, which record their messages.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use flatout_tests::PATIENCE;

/// How a subscriber gets its messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    Events,
    WebSocket,
    Poll,
}

pub(crate) const WAYS: [Way; 3] = [Way::Events, Way::WebSocket, Way::Poll];

/// Somewhere that requests can be sent to.
#[derive(Debug, Clone)]
pub(crate) enum Place {
    Tcp(SocketAddr),
    Unix(std::path::PathBuf),
}

pub(crate) trait Stream: Read + Write + Send {}
impl<T: Read + Write + Send> Stream for T {}

impl Place {
    pub(crate) fn unix(path: &Path) -> Place {
        Place::Unix(path.to_owned())
    }

    pub(crate) fn connect(&self) -> Box<dyn Stream> {
        match self {
            Place::Tcp(address) => {
                let stream = TcpStream::connect(address).expect("a connection");
                stream.set_read_timeout(Some(PATIENCE * 2)).expect("a timeout");
                Box::new(stream)
            }
            Place::Unix(path) => {
                let stream = UnixStream::connect(path).expect("a connection");
                stream.set_read_timeout(Some(PATIENCE * 2)).expect("a timeout");
                Box::new(stream)
            }
        }
    }

    /// The status, the head and the body that a request gets.
    pub(crate) fn ask(&self, request: &str) -> (u16, String, String) {
        let mut stream = self.connect();
        stream.write_all(request.as_bytes()).expect("room");
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).expect("a response");
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let (head, body) = text.split_once("\r\n\r\n").expect("a head");
        (head[9..12].parse().expect("a status"), head.to_owned(), body.to_owned())
    }

    /// Publishes texts in one batch.
    pub(crate) fn publish(&self, channel: &str, texts: &[String]) {
        let entries = texts.iter().map(|text| format!("{{\"channel\":{channel:?},\"data\":{text:?}}}"));
        let body = format!("[{}]", entries.collect::<Vec<_>>().join(","));
        let head = "POST /live HTTP/1.1\r\nHost: t\r\nConnection: close\r\nAuthorization: Bearer secret";
        let (status, _, said) = self.ask(&format!("{head}\r\nContent-Length: {}\r\n\r\n{body}", body.len()));
        assert_eq!(status, 200, "{said}");
    }
}

/// A subscriber.
pub(crate) struct Listener {
    pub(crate) way: Way,
    heard: Arc<Mutex<Vec<String>>>,
}

impl Listener {
    /// Subscribes, and returns when that is done. A reported loss is recorded as the text `gap`.
    pub(crate) fn start(place: &Place, channel: &str, way: Way, since: &str) -> Listener {
        let heard: Arc<Mutex<Vec<String>>> = Arc::default();
        let (notes, place, channel) = (heard.clone(), place.clone(), channel.to_owned());
        let mut since = if since.is_empty() { String::new() } else { format!("since={since}") };
        if way == Way::Poll && since.is_empty() {
            // A poll without a position would miss messages published between two polls.
            since = "since=all".to_owned();
        }
        let mut reader = match way {
            Way::Poll => None,
            way => Some(subscribe(&place, &format!("/live/{channel}?{since}"), way)),
        };
        thread::spawn(move || {
            let mut position = String::new();
            while let Some(texts) = match (&mut reader, way) {
                (Some(reader), Way::Events) => event(reader),
                (Some(reader), _) => frame(reader),
                (None, _) => poll(&place, &channel, &since, &mut position),
            } {
                notes.lock().unwrap().extend(texts);
            }
        });
        Listener { way, heard }
    }

    pub(crate) fn heard(&self) -> Vec<String> {
        self.heard.lock().unwrap().clone()
    }

    /// Waits until this many texts have arrived.
    pub(crate) fn wait(&self, count: usize) -> Vec<String> {
        let (mut seen, mut deadline) = (0, Instant::now() + PATIENCE);
        loop {
            let heard = self.heard();
            if heard.len() >= count {
                return heard;
            }
            if heard.len() != std::mem::replace(&mut seen, heard.len()) {
                deadline = Instant::now() + PATIENCE;
            }
            let gaps = heard.iter().filter(|text| *text == "gap").count();
            let last = heard.last();
            let way = self.way;
            assert!(
                Instant::now() < deadline,
                "{count} by {way:?}: {seen} with {gaps} gaps, the last {last:?}"
            );
            thread::sleep(Duration::from_millis(10));
        }
    }
}

fn subscribe(place: &Place, target: &str, way: Way) -> BufReader<Box<dyn Stream>> {
    let fields = match way {
        Way::WebSocket => {
            "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
             Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
        }
        _ => "",
    };
    let mut stream = place.connect();
    stream.write_all(format!("GET {target} HTTP/1.1\r\nHost: t\r\n{fields}\r\n").as_bytes()).expect("room");
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    while line != "\r\n" {
        line.clear();
        assert!(reader.read_line(&mut line).expect("a line") > 0, "closed before the end of the head");
    }
    reader
}

/// The next event or other line; `None` at the end.
fn event(reader: &mut BufReader<Box<dyn Stream>>) -> Option<Vec<String>> {
    let (mut name, mut data) = (String::new(), None);
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        match line.trim_end().split_once(": ") {
            Some(("event", event)) => event.clone_into(&mut name),
            Some(("data", text)) => data = Some(text.to_owned()),
            _ if line == "\n" => break,
            _ => {}
        }
    }
    Some(match name.as_str() {
        "gap" => vec!["gap".to_owned()],
        _ => data.into_iter().collect(),
    })
}

fn frame(reader: &mut BufReader<Box<dyn Stream>>) -> Option<Vec<String>> {
    let mut header = [0; 2];
    reader.read_exact(&mut header).ok()?;
    let mut length = usize::from(header[1]);
    if length == 126 {
        let mut more = [0; 2];
        reader.read_exact(&mut more).ok()?;
        length = usize::from(u16::from_be_bytes(more));
    }
    let mut text = vec![0; length];
    reader.read_exact(&mut text).ok()?;
    match header[0] {
        0x81 => Some(vec![text_of(&serde_json::from_slice(&text).expect("JSON"))]),
        // Respond to pings, to keep the connection open.
        0x89 => {
            reader.get_mut().write_all(&[0x8a, 0x80, 0, 0, 0, 0]).ok()?;
            Some(Vec::new())
        }
        _ => None,
    }
}

fn text_of(message: &serde_json::Value) -> String {
    match message["gap"] == true {
        true => "gap".to_owned(),
        false => message["data"].as_str().expect("a text").to_owned(),
    }
}

fn poll(place: &Place, channel: &str, since: &str, position: &mut String) -> Option<Vec<String>> {
    let (query, field) = match position.as_str() {
        "" => (format!("poll=1&{since}"), String::new()),
        position => ("poll=1".to_owned(), format!("Last-Event-ID: {position}\r\n")),
    };
    let mut stream = place.connect();
    let request =
        format!("GET /live/{channel}?{query} HTTP/1.1\r\nHost: t\r\nConnection: close\r\n{field}\r\n");
    stream.write_all(request.as_bytes()).ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    let (head, body) = text.split_once("\r\n\r\n")?;
    let found = head.lines().find_map(|line| line.strip_prefix("Last-Event-ID: "))?;
    found.clone_into(position);
    let messages: Vec<serde_json::Value> = match body {
        "" => Vec::new(),
        body => serde_json::from_str(body).expect("JSON"),
    };
    Some(messages.iter().map(text_of).collect())
}

/// Checks that these are all messages of all publishers, each once, and those of one publisher in its order.
pub(crate) fn check(texts: &[String], publishers: &[(&str, usize)], what: &str) {
    for (publisher, count) in publishers {
        let mut found = texts.iter().filter_map(|text| text.strip_prefix(publisher)?.strip_prefix(' '));
        for number in 0..*count {
            let next = found.next().and_then(|text| text.parse().ok());
            assert_eq!(next, Some(number), "{what}: {publisher}");
        }
        assert_eq!(found.next(), None, "{what}: {publisher} has sent no more");
    }
    let all: usize = publishers.iter().map(|(_, count)| count).sum();
    assert_eq!(texts.len(), all, "{what}: {:?}", texts.iter().filter(|text| *text == "gap").count());
}
