//! The known attacks on HTTP/2 against the state machine: the limits of each in frames, memory and work.

use flatout_wire::h2::hpack::{Decoder, encode_field, encode_status};
use flatout_wire::h2::{
    BLOCK_FRAMES_MAX, Code, Connection, ConnectionFault, Event, Limits, PREFACE, Room, SETTINGS_MAX, StreamId,
};
use flatout_wire::{Status, head};

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const PRIORITY: u8 = 2;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;
const PRIORITY_UPDATE: u8 = 16;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const PADDED: u8 = 8;

/// `:method: GET`, `:path: /`, `:scheme: http`, `:authority: a`.
const GET: &[u8] = &[0x82, 0x84, 0x86, 0x41, 1, b'a'];
/// The same with POST.
const POST: &[u8] = &[0x83, 0x84, 0x86, 0x41, 1, b'a'];

/// The most memory that one connection may take, whatever is tried: its table, its streams, a block in parts.
const MEMORY_BYTES_MAX: usize = 100 << 10;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let [_, a, b, c] = (payload.len() as u32).to_be_bytes();
    let mut frame = vec![a, b, c, kind, flags];
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

fn get(stream: u32) -> Vec<u8> {
    frame(HEADERS, END_STREAM | END_HEADERS, stream, GET)
}

fn reset(stream: u32) -> Vec<u8> {
    frame(RST_STREAM, 0, stream, &8u32.to_be_bytes())
}

/// The behaviour of the application.
#[derive(Clone, Copy, PartialEq)]
enum Application {
    /// Responds to each request at once.
    Serves,
    /// Slow: it never responds, and continues to work on streams that were reset.
    IsSlow,
    /// Responds with a large body, and sends as much as the windows allow.
    SendsMuch,
}

/// A server under attack.
struct Server {
    machine: Connection,
    application: Application,
    room: Room,
    out: Vec<u8>,
    /// Bytes that were received, and that were written.
    received_bytes: usize,
    written_bytes: usize,
    memory_bytes: usize,
    requests: usize,
    content_bytes: usize,
    fault: Option<ConnectionFault>,
}

impl Server {
    fn new(application: Application) -> Server {
        Server::with(application, Limits::default())
    }

    fn with(application: Application, limits: Limits) -> Server {
        let mut out = Vec::new();
        let machine = Connection::server(limits, &mut out);
        let mut server = Server {
            machine,
            application,
            room: Room::default(),
            out,
            received_bytes: 0,
            written_bytes: 0,
            memory_bytes: 0,
            requests: 0,
            content_bytes: 0,
            fault: None,
        };
        server.send(PREFACE);
        server.send(&frame(SETTINGS, 0, 0, &[]));
        server
    }

    /// Sends bytes to it. Returns whether it still listens.
    fn send(&mut self, bytes: &[u8]) -> bool {
        let mut at = 0;
        while self.fault.is_none() {
            match self.machine.receive(&bytes[at..], &mut self.room, &mut self.out) {
                Err(fault) => self.fault = Some(fault),
                Ok((_, Event::NeedMore)) => break,
                Ok((used, event)) => {
                    at += used;
                    let asked = match event {
                        Event::Request { stream, .. } => Some(stream),
                        Event::Data { stream, bytes } => {
                            let count = bytes.len();
                            self.content_bytes += count;
                            self.machine.consumed(stream, count, &mut self.out);
                            None
                        }
                        Event::Refused { stream, .. } => {
                            self.answer(stream, 0);
                            None
                        }
                        Event::Reset { stream, .. } if self.application != Application::IsSlow => {
                            self.machine.release(stream, &mut self.out);
                            None
                        }
                        _ => None,
                    };
                    if let Some(stream) = asked {
                        self.requests += 1;
                        match self.application {
                            Application::Serves => self.answer(stream, 0),
                            Application::IsSlow => {}
                            Application::SendsMuch => self.answer(stream, 1 << 30),
                        }
                    }
                    self.send_content();
                }
            }
            self.memory_bytes = self.memory_bytes.max(self.machine.memory_bytes());
        }
        self.received_bytes += bytes.len();
        self.written_bytes += self.out.len();
        self.out.clear();
        self.fault.is_none()
    }

    fn answer(&mut self, stream: StreamId, length: u64) {
        let encode = |block: &mut Vec<u8>| encode_status(Status::OK, block);
        self.machine.respond(stream, None, length == 0, encode, &mut self.out);
        match length {
            0 => self.machine.release(stream, &mut self.out),
            _ => self.machine.set_waiting(stream, true),
        }
    }

    fn send_content(&mut self) {
        while let Some(stream) = self.machine.next_turn() {
            let bytes = self.machine.room(stream);
            if !self.machine.content(stream, bytes, 1 << 20, false, &mut self.out) {
                break;
            }
            self.out.resize(self.out.len() + bytes, 0);
        }
        if self.machine.is_closed() {
            self.fault.get_or_insert(ConnectionFault { code: Code::ENHANCE_YOUR_CALM, reason: "by its own" });
        }
    }

    /// Sends the frames that `make` makes for 0, 1, ... until it listens no more: how many it took.
    fn flood(&mut self, most: usize, make: impl Fn(u32) -> Vec<u8>) -> usize {
        let took = (0..most).take_while(|&number| self.send(&make(number as u32))).count();
        assert!(self.memory_bytes <= MEMORY_BYTES_MAX, "{} bytes", self.memory_bytes);
        took
    }

    fn code(&self) -> Option<Code> {
        self.fault.map(|fault| fault.code)
    }
}

/// Frames that bring nothing, of which one at a time is fair.
#[test]
fn floods_of_frames_that_bring_nothing_end() {
    let limit = Limits::default().idle_frames_max as usize;
    let pad = [&[255][..], &[0; 255]].concat();
    type Make = Box<dyn Fn(u32) -> Vec<u8>>;
    let floods: Vec<(&str, Make)> = vec![
        ("ping, CVE-2019-9512", Box::new(|_| frame(PING, 0, 0, &[0; 8]))),
        ("answers to pings that nobody sent", Box::new(|_| frame(PING, 1, 0, &[0; 8]))),
        ("settings, CVE-2019-9515", Box::new(|_| frame(SETTINGS, 0, 0, &[0, 3, 0, 0, 0, 1]))),
        ("confirmed settings", Box::new(|_| frame(SETTINGS, 1, 0, &[]))),
        ("priority, CVE-2019-9513", Box::new(|_| frame(PRIORITY, 0, 1, &[0, 0, 0, 3, 9]))),
        ("priority updates", Box::new(|_| frame(PRIORITY_UPDATE, 0, 0, b"\0\0\0\x01u=1"))),
        ("empty content, CVE-2019-9518", Box::new(|_| frame(DATA, 0, 1, &[]))),
        ("tiny content", Box::new(|_| frame(DATA, 0, 1, b"x"))),
        ("padding", Box::new(move |_| frame(DATA, PADDED, 1, &pad))),
        ("unknown frames", Box::new(|_| frame(200, 0, 0, b"anything"))),
        ("windows of the connection", Box::new(|_| frame(WINDOW_UPDATE, 0, 0, &1u32.to_be_bytes()))),
        ("windows of a stream", Box::new(|_| frame(WINDOW_UPDATE, 0, 1, &1u32.to_be_bytes()))),
        ("GOAWAY", Box::new(|_| frame(7, 0, 0, &[0; 8]))),
    ];
    for (name, make) in floods {
        let mut server = Server::new(Application::IsSlow);
        server.send(&frame(HEADERS, END_HEADERS, 1, POST));
        let took = server.flood(10 * limit, make);
        assert!(took <= limit + 1, "{name}: {took} frames");
        assert_eq!(server.code(), Some(Code::ENHANCE_YOUR_CALM), "{name}");
        // No more comes back than was sent, twice over (a PING of 17 bytes for one).
        assert!(server.written_bytes < 2 * server.received_bytes + 300, "{name}");
    }
}

#[test]
fn changes_of_the_first_window_count_for_the_streams_that_they_go_over() {
    let mut server = Server::new(Application::IsSlow);
    (0..100).for_each(|number| assert!(server.send(&get(number * 2 + 1))));
    let took = server.flood(10_000, |number| frame(SETTINGS, 0, 0, &[0, 4, 0, 0, number as u8 & 1, 0]));
    assert!(took <= 100, "{took}");
}

#[test]
fn budgets_refill_with_time_and_served_requests() {
    let mut server = Server::new(Application::Serves);
    let ping = frame(PING, 0, 0, &[0; 8]);
    for number in 0..20_000 {
        assert!(server.send(&get(number * 2 + 1)) && server.send(&ping), "{:?}", server.fault);
    }
    for _ in 0..1000 {
        (0..50).for_each(|_| assert!(server.send(&ping)));
        server.machine.refill();
    }
}

#[test]
fn rapid_reset_cve_2023_44487_reset_flood_cve_2019_9514() {
    let limits = Limits::default();
    // Whatever the application is like, resets come to their end.
    for application in [Application::Serves, Application::IsSlow, Application::SendsMuch] {
        let mut server = Server::new(application);
        let pair =
            |number: u32| [frame(HEADERS, END_HEADERS, number * 2 + 1, POST), reset(number * 2 + 1)].concat();
        let took = server.flood(100_000, pair);
        if application == Application::Serves {
            // Those were served before their reset came: a response for each, as for any request.
            assert_eq!(server.requests, took.min(100_000));
            assert!(server.written_bytes >= took * 10);
        } else {
            assert!(took <= limits.resets_max as usize, "{took}");
            assert_eq!(server.code(), Some(Code::ENHANCE_YOUR_CALM));
        }
    }
    // One that works on still counts: no more are begun than there may be at a time.
    let mut server = Server::new(Application::IsSlow);
    server.flood(100_000, |number| [get(number * 2 + 1), reset(number * 2 + 1)].concat());
    assert!(server.requests <= limits.streams_max as usize, "{}", server.requests);
}

#[test]
fn made_you_reset_cve_2025_8671() {
    let limits = Limits::default();
    let faults: [fn(u32) -> Vec<u8>; 5] = [
        |stream| frame(WINDOW_UPDATE, 0, stream, &0u32.to_be_bytes()),
        |stream| frame(WINDOW_UPDATE, 0, stream, &i32::MAX.to_be_bytes()),
        |stream| {
            frame(PRIORITY, 0, stream, &stream.to_be_bytes().iter().chain(&[9]).copied().collect::<Vec<_>>())
        },
        |stream| frame(DATA, 0, stream, b"behind the end"),
        |stream| frame(HEADERS, END_HEADERS | END_STREAM, stream, GET),
    ];
    for make in faults {
        let mut server = Server::new(Application::IsSlow);
        let took = server.flood(100_000, |number| [get(number * 2 + 1), make(number * 2 + 1)].concat());
        assert!(took <= limits.resets_max as usize, "{took}");
        assert!(server.requests <= limits.streams_max as usize, "{}", server.requests);
        assert_eq!(server.code(), Some(Code::ENHANCE_YOUR_CALM));
    }
}

#[test]
fn streams_over_the_limit_are_refused_and_counted() {
    let limits = Limits::default();
    let mut server = Server::new(Application::IsSlow);
    let took = server.flood(100_000, |number| get(number * 2 + 1));
    assert_eq!(server.requests, limits.streams_max as usize);
    assert!(took <= (limits.streams_max + limits.resets_max) as usize, "{took}");
}

#[test]
fn continuation_floods_cve_2024_27316_cve_2026_33871() {
    for payload in [&[][..], &[0], &[0x10, 1, b'x', 0], &[b'x'; 16_384]] {
        let mut server = Server::new(Application::Serves);
        assert!(server.send(&frame(HEADERS, END_STREAM, 1, GET)));
        let took = server.flood(100_000, |_| frame(CONTINUATION, 0, 1, payload));
        assert!(took < BLOCK_FRAMES_MAX as usize, "{took}");
        assert_eq!(server.code(), Some(Code::ENHANCE_YOUR_CALM));
    }
}

/// A block that keeps a large field and then names it with a byte each.
fn bomb(name: &[u8], value: &[u8], times: usize) -> Vec<u8> {
    let mut block = GET.to_vec();
    block.push(0x40);
    for text in [name, value] {
        assert!(text.len() < 4000);
        match text.len() {
            bytes @ 0..127 => block.push(bytes as u8),
            bytes => block.extend([127, (bytes - 127) as u8 & 0x7f | 0x80, ((bytes - 127) >> 7) as u8]),
        }
        block.extend(text);
    }
    // The newest entry has index 62.
    block.extend(std::iter::repeat_n(0x80 | 62, times));
    block
}

#[test]
fn hpack_bombs_cve_2016_6581_cve_2026_49975() {
    let fields_max = head::HeadLimits::default().fields_max;
    for (name, value, times) in [
        (&b"x"[..], vec![b'v'; 3900], 8000),
        (b"x", Vec::new(), 16_000),
        (b"cookie", b"a".to_vec(), 16_000),
        (b"cookie", Vec::new(), 16_000),
    ] {
        let mut server = Server::new(Application::Serves);
        let block = bomb(name, &value, times);
        assert!(!server.send(&frame(
            HEADERS,
            END_HEADERS | END_STREAM,
            1,
            &block[..block.len().min(16_384)]
        )));
        assert_eq!(server.code(), Some(Code::ENHANCE_YOUR_CALM));
        assert!(server.memory_bytes <= MEMORY_BYTES_MAX && server.requests == 0);
    }
    // A little over the limit the request alone is refused, and the table is in step.
    let mut server = Server::new(Application::Serves);
    let block = bomb(b"x", b"", fields_max + 1);
    assert!(server.send(&frame(HEADERS, END_HEADERS | END_STREAM, 1, &block)));
    assert_eq!(server.requests, 0);
    assert!(server.send(&frame(HEADERS, END_HEADERS | END_STREAM, 3, &[GET, &[0x80 | 63]].concat())));
    assert_eq!(server.requests, 1, "the authority has come before it");
}

/// The decoder's output for a block is bounded by the block's length or by the limit, in bytes.
#[test]
fn decoding_is_linear_cve_2022_41723() {
    use flatout_wire::h2::hpack::{BlockLimits, Decoded, Sink};
    #[derive(Default)]
    struct Counting(Vec<u8>, usize);
    impl Sink for Counting {
        fn text(&mut self) -> &mut Vec<u8> {
            &mut self.0
        }
        fn field(&mut self, field: Decoded) {
            self.1 += self.0.len() - field.at;
            self.0.truncate(field.at);
        }
    }
    let limits = BlockLimits { bytes_max: 16 << 10, fields_max: 100 };
    let mut decoder = Decoder::default();
    // A long name, kept, and then fields by that name, each of which is kept in turn.
    let mut block = bomb(&[b'n'; 3000], b"v", 0);
    for _ in 0..4000 {
        block.extend([0x40 | 62, 1, b'v']);
    }
    let mut sink = Counting::default();
    let _ = decoder.block(&block, limits, &mut sink);
    assert!(sink.1 <= limits.bytes_max && sink.0.capacity() <= 64 << 10, "{} {}", sink.1, sink.0.capacity());
    // Integers and strings that do not end.
    for block in
        [&[0xff; 64][..], &[0x40, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 1], &[0x3f, 0xff, 0xff, 0xff, 0xff, 1]]
    {
        assert!(Decoder::default().block(block, limits, &mut Counting::default()).is_err());
    }
}

#[test]
fn zero_length_fields_cve_2019_9516() {
    let mut server = Server::new(Application::Serves);
    // An empty name is invalid; empty values count 32 bytes each, and as fields.
    assert!(server.send(&frame(HEADERS, END_HEADERS | END_STREAM, 1, &[GET, &[0, 0, 0]].concat())));
    assert_eq!(server.requests, 0);
    let empty: Vec<u8> = (0..5000).flat_map(|_| [0x00, 1, b'x', 0]).collect();
    assert!(!server.send(&frame(HEADERS, END_HEADERS | END_STREAM, 3, &[GET, &empty[..16_000]].concat())));
    assert_eq!((server.requests, server.code()), (0, Some(Code::ENHANCE_YOUR_CALM)));
}

#[test]
fn large_settings_cve_2020_11080_and_small_frames_cve_2026_33814() {
    let entries = [0, 9, 0, 0, 0, 1].repeat(SETTINGS_MAX);
    let mut server = Server::new(Application::Serves);
    assert!(server.send(&frame(SETTINGS, 0, 0, &entries)));
    // Found by the frame's head: its payload is not waited for.
    assert!(!server.send(&frame(SETTINGS, 0, 0, &[&entries[..], &[0; 6]].concat())[..9]));
    assert_eq!(server.code(), Some(Code::ENHANCE_YOUR_CALM));
    for size in [0u32, 1, 16_383, 1 << 24, u32::MAX] {
        let mut server = Server::new(Application::Serves);
        let [a, b, c, d] = size.to_be_bytes();
        assert!(!server.send(&frame(SETTINGS, 0, 0, &[0, 5, a, b, c, d])));
        assert_eq!(server.code(), Some(Code::PROTOCOL_ERROR));
    }
}

#[test]
fn content_goes_no_further_than_the_window_cve_2019_9511_9517() {
    // A window that is never opened: the responses wait in the application, and nothing is written.
    let mut server = Server::new(Application::SendsMuch);
    server.send(&frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0]));
    let before = server.written_bytes;
    (0..100).for_each(|number| assert!(server.send(&get(number * 2 + 1))));
    assert!(server.machine.is_stalled());
    assert!(server.written_bytes - before <= 100 * 12, "{}", server.written_bytes - before);
    assert!(server.memory_bytes <= MEMORY_BYTES_MAX);
    // A window opened one byte at a time causes frames of one byte, up to a limit.
    let took = server.flood(100_000, |_| frame(WINDOW_UPDATE, 0, 1, &1u32.to_be_bytes()));
    assert!(took <= Limits::default().idle_frames_max as usize, "{took}");
    assert_eq!(server.code(), Some(Code::ENHANCE_YOUR_CALM));
}

#[test]
fn windows_are_held_by_the_peer_too() {
    // More than a stream takes ends the stream, more than the connection takes the connection.
    let limits = Limits { stream_window: 1000, connection_window: 65_535, ..Limits::default() };
    let mut server = Server::with(Application::IsSlow, limits);
    server.send(&frame(HEADERS, END_HEADERS, 1, POST));
    assert!(server.send(&frame(DATA, 0, 1, &[0; 1001])));
    assert_eq!(server.content_bytes, 0);
    // 65 535 is the smallest window of a connection; data that is not consumed is not credited.
    let limits = Limits { stream_window: 1 << 20, connection_window: 65_535, ..Limits::default() };
    let mut out = Vec::new();
    let mut machine = Connection::server(limits, &mut out);
    let mut bytes =
        [PREFACE, &frame(SETTINGS, 0, 0, &[])[..], &frame(HEADERS, END_HEADERS, 1, POST)].concat();
    (0..5).for_each(|_| bytes.extend(frame(DATA, 0, 1, &[0; 16_000])));
    let (mut at, mut content, mut room) = (0, 0, Room::default());
    let fault = loop {
        match machine.receive(&bytes[at..], &mut room, &mut out) {
            Ok((used, event)) => {
                at += used;
                assert!(!matches!(event, Event::NeedMore), "it takes what it should not");
                content += if let Event::Data { bytes, .. } = event { bytes.len() } else { 0 };
            }
            Err(fault) => break fault,
        }
    };
    assert_eq!((fault.code, content), (Code::FLOW_CONTROL_ERROR, 64_000));
}

#[test]
fn windows_cannot_overflow() {
    for (id, bytes) in [(0, i32::MAX), (0, i32::MAX - 65_534)] {
        let mut server = Server::new(Application::Serves);
        assert!(!server.send(&frame(WINDOW_UPDATE, 0, id, &bytes.to_be_bytes())));
        assert_eq!(server.code(), Some(Code::FLOW_CONTROL_ERROR));
    }
    // By the first window, while streams have had their own.
    let mut server = Server::new(Application::IsSlow);
    server.send(&get(1));
    assert!(server.send(&frame(WINDOW_UPDATE, 0, 1, &(i32::MAX - 65_535).to_be_bytes())));
    assert!(!server.send(&frame(SETTINGS, 0, 0, &[0, 4, 0x7f, 0xff, 0xff, 0xff])));
    assert_eq!(server.code(), Some(Code::FLOW_CONTROL_ERROR));
}

#[test]
fn a_preface_that_dribbles_keeps_nothing_cve_2026_56853() {
    let mut out = Vec::new();
    let mut machine = Connection::server(Limits::default(), &mut out);
    let mut room = Room::default();
    for end in 0..PREFACE.len() {
        let received = machine.receive(&PREFACE[..end], &mut room, &mut out);
        assert!(matches!(received, Ok((0, Event::NeedMore))));
    }
    assert!(!machine.has_begun() && machine.memory_bytes() < 1024, "{}", machine.memory_bytes());
    for wrong in [&b"GET / HTTP/1.1\r\n\r\n"[..], b"PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n", b"P\0"] {
        let mut machine = Connection::server(Limits::default(), &mut out);
        assert!(machine.receive(wrong, &mut room, &mut out).is_err());
    }
}

/// Heads that would be something else in HTTP/1.
#[test]
fn nothing_is_smuggled() {
    let field = |name: &[u8], value: &[u8]| {
        let mut block = vec![0, name.len() as u8];
        block.extend(name);
        block.push(value.len() as u8);
        block.extend(value);
        block
    };
    let pseudo = |path: &[u8]| [&[0x82, 0x86, 0x41, 1, b'a', 4, path.len() as u8], path].concat();
    let bad: Vec<Vec<u8>> = vec![
        [GET, &field(b"x", b"a\r\nHost: b")].concat(),
        [GET, &field(b"x", b"a\nb")].concat(),
        [GET, &field(b"x", b"a\0b")].concat(),
        [GET, &field(b"x", b" a")].concat(),
        [GET, &field(b"x", b"a\t")].concat(),
        [GET, &field(b"x:y", b"a")].concat(),
        [GET, &field(b"x\r\ny", b"a")].concat(),
        [GET, &field(b"x y", b"a")].concat(),
        [GET, &field(b"X", b"a")].concat(),
        [GET, &field(b"", b"a")].concat(),
        [GET, &field(b"transfer-encoding", b"chunked")].concat(),
        [GET, &field(b"connection", b"close")].concat(),
        [GET, &field(b"keep-alive", b"1")].concat(),
        [GET, &field(b"upgrade", b"h2c")].concat(),
        [GET, &field(b"proxy-connection", b"close")].concat(),
        [GET, &field(b"te", b"gzip")].concat(),
        [GET, &field(b"host", b"b")].concat(),
        [GET, &field(b"content-length", b"5")].concat(),
        [POST, &field(b"content-length", b"5"), &field(b"content-length", b"6")].concat(),
        [POST, &field(b"content-length", b"+5")].concat(),
        [GET, &field(b":path", b"/b")].concat(),
        [GET, &field(b"x", b"a"), &field(b":method", b"PUT")].concat(),
        [GET, &field(b":status", b"200")].concat(),
        [GET, &field(b":unknown", b"a")].concat(),
        [GET, &field(b":protocol", b"websocket")].concat(),
        pseudo(b"/a HTTP/1.1\r\nHost: b"),
        pseudo(b"/a b"),
        pseudo(b"a"),
        pseudo(b"*"),
        pseudo(b""),
        pseudo(b"http://b/"),
        pseudo(b"/%zz"),
        [&[0x82, 0x84, 0x86, 0x41, 3], &b"u@a"[..]].concat(),
        [&[0x82, 0x84, 0x86, 0x41, 5], &b"a\r\nb:"[..]].concat(),
        [&[0x84, 0x86, 2, 5], &b"GET /"[..], &field(b"host", b"a")].concat(),
        [&[0x82, 0x84, 6, 3], &b"h p"[..], &field(b"host", b"a")].concat(),
    ];
    for (number, block) in bad.iter().enumerate() {
        let mut server = Server::new(Application::Serves);
        server.send(&frame(HEADERS, END_HEADERS | END_STREAM, 1, block));
        assert_eq!(server.requests, 0, "{number}: {:?}", String::from_utf8_lossy(block));
        assert!(server.fault.is_none(), "{number}: the stream alone is at fault");
    }
    let good: Vec<Vec<u8>> = vec![
        [GET, &field(b"te", b"trailers")].concat(),
        [GET, &field(b"host", b"A")].concat(),
        [&[0x82, 0x84, 0x86], &field(b"host", b"a")[..]].concat(),
        [GET, &field(b"cookie", b"a=1"), &field(b"x", b"y"), &field(b"cookie", b"b=2")].concat(),
    ];
    for block in &good {
        let mut server = Server::new(Application::Serves);
        server.send(&frame(HEADERS, END_HEADERS | END_STREAM, 1, block));
        assert_eq!(server.requests, 1, "{:?}", String::from_utf8_lossy(block));
    }
}

/// A length that lies: shorter or longer content than it said resets the stream, and is not handed on.
#[test]
fn content_must_match_content_length() {
    for (said, content, ends, events) in [
        ("5", &b"hello"[..], true, "data end"),
        ("5", b"hell", true, "reset"),
        ("5", b"hello!", true, "reset"),
        ("5", b"hello!", false, "reset"),
        ("0", b"x", true, "reset"),
        ("5", b"", true, "reset"),
    ] {
        let mut out = Vec::new();
        let mut machine = Connection::server(Limits::default(), &mut out);
        let mut block = POST.to_vec();
        encode_field(b"content-length", said.as_bytes(), &mut block);
        let end = if ends { END_STREAM } else { 0 };
        let frames = [
            PREFACE.to_vec(),
            frame(SETTINGS, 0, 0, &[]),
            frame(HEADERS, END_HEADERS, 1, &block),
            frame(DATA, end, 1, content),
        ];
        let (bytes, mut at, mut heard, mut room) = (frames.concat(), 0, Vec::new(), Room::default());
        loop {
            let (used, event) = machine.receive(&bytes[at..], &mut room, &mut out).unwrap();
            at += used;
            match event {
                Event::NeedMore => break,
                Event::Data { .. } => heard.push("data"),
                Event::End { .. } => heard.push("end"),
                Event::Reset { code, .. } => {
                    assert_eq!(code, Code::PROTOCOL_ERROR);
                    heard.push("reset");
                }
                _ => {}
            }
        }
        assert_eq!(heard.join(" "), events, "{said} {content:?}");
    }
}

/// Graceful shutdown in two steps: streams opened before the second GOAWAY are served, later ones are not.
#[test]
fn leaving_loses_nothing() {
    let mut server = Server::new(Application::IsSlow);
    assert!(server.send(&get(1)));
    let mut out = Vec::new();
    server.machine.leave(&mut out);
    let goaway = frame(7, 0, 0, &[&i32::MAX.to_be_bytes()[..], &[0; 4]].concat());
    assert!(out.starts_with(&goaway), "{out:?}");
    let ping = &out[goaway.len()..];
    assert_eq!(ping.len(), 17);
    assert!(server.send(&get(3)), "it was on its way");
    assert_eq!(server.requests, 2);
    let pong = frame(PING, 1, 0, &ping[9..]);
    let written = server.written_bytes;
    assert!(server.send(&pong));
    assert_eq!(server.written_bytes - written, 17, "the second GOAWAY");
    assert!(server.send(&get(5)));
    assert_eq!(server.requests, 2, "it came behind the second");
    assert!(!server.machine.is_done());
    let held: Vec<StreamId> = server.machine.held_streams().collect();
    assert_eq!(held.len(), 2);
    held.into_iter().for_each(|stream| server.answer(stream, 0));
    assert!(server.machine.is_done());
}

#[test]
fn an_idle_connection_is_small() {
    let mut server = Server::new(Application::Serves);
    assert!(server.send(&get(1)));
    for number in 1..1000 {
        let known = frame(HEADERS, END_STREAM | END_HEADERS, number * 2 + 1, &[0x82, 0x84, 0x86, 0x80 | 62]);
        assert!(server.send(&known));
    }
    assert!(server.machine.is_idle());
    server.machine.rest();
    assert!(server.machine.memory_bytes() <= 512, "{}", server.machine.memory_bytes());
    // A table that is full of small fields is the most that one can be made to keep.
    (1000..3000).for_each(|number| assert!(server.send(&get(number * 2 + 1))));
    server.machine.rest();
    assert!(server.machine.memory_bytes() <= 12 << 10, "{}", server.machine.memory_bytes());
}
