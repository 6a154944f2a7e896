use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;

use flatout_engine::{Address, Reply, Request, Response, Server, Service};
use flatout_wire::Status;

use super::*;
use crate::observed::{Attempt, Notes, Observers, Upstream};

/// Responds with the status in the path, and notes an upstream if asked to.
struct Named(std::rc::Rc<Notes>);

impl Service for Named {
    fn call(&self, request: Request<'_>, response: &mut Response) -> Reply {
        let code = request.path.get(1..4).and_then(|code| std::str::from_utf8(code).ok()?.parse().ok());
        response.set_status(code.and_then(Status::from_code).unwrap_or(Status::OK));
        response.buffer().extend_from_slice(b"hello");
        if request.path.ends_with(b"/upstream") {
            let failed = Attempt {
                address: "10.0.0.1:80".into(),
                status: 0,
                connect_ns: None,
                head_ns: None,
                response_ns: None,
            };
            let last = Attempt {
                address: "unix:/run/\"api\".sock".into(),
                status: 502,
                connect_ns: Some(1_000_000),
                head_ns: Some(12_000_000),
                response_ns: None,
            };
            let upstream = Upstream { attempts: vec![failed, last] };
            response.set_note(self.0.upstream(0, upstream));
        }
        if request.path.ends_with(b"/later") {
            let mut answer = Response::new();
            answer.buffer().extend_from_slice(b"later");
            return Reply::Later(Box::pin(async move { answer }));
        }
        Reply::Now
    }
}

/// A server with a log.
struct Logged {
    server: Option<Server>,
    log: Log,
    folder: PathBuf,
    address: SocketAddr,
}

impl Logged {
    fn new(change: impl FnOnce(&mut Plan)) -> Logged {
        static COUNT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("flatout-log-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let mut plan = Plan::new(folder.join("access.log"));
        change(&mut plan);
        let log = Log::open(plan).unwrap();
        let observers = Observers { logs: vec![log.clone()], metrics: None };
        let plan = flatout_engine::Plan {
            listen: vec!["127.0.0.1:0".parse().unwrap()],
            workers: Some(1),
            ..flatout_engine::Plan::default()
        };
        let make = move |_| observers.wrap(|notes| Box::new(Named(notes)));
        let server = flatout_engine::start(plan, make).unwrap();
        let Some(Address::Tcp(address)) = server.addresses().first().cloned() else { panic!("no address") };
        Logged { server: Some(server), log, folder, address }
    }

    /// Sends bytes and waits until the server closes.
    fn send(&self, bytes: impl AsRef<[u8]>) {
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.write_all(bytes.as_ref()).unwrap();
        stream.read_to_end(&mut Vec::new()).unwrap();
    }

    fn get(&self, target: &str, fields: &str) {
        self.send(format!(
            "GET {target} HTTP/1.1\r\nHost: Example.org:80\r\n{fields}Connection: close\r\n\r\n"
        ));
    }

    /// Ends the server, and returns its log.
    fn end(mut self) -> String {
        self.stop();
        self.log.close();
        let bytes = std::fs::read(self.folder.join("access.log")).unwrap();
        String::from_utf8(bytes).unwrap()
    }

    fn stop(&mut self) {
        if let Some(server) = self.server.take() {
            server.handle().stop();
            server.wait().unwrap();
        }
    }
}

impl Drop for Logged {
    fn drop(&mut self) {
        self.stop();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

#[test]
fn a_line_equals_the_one_of_nginx() {
    let logged = Logged::new(|_| ());
    logged
        .get("/a%20b?x=1", "Referer: http://r/\r\nUser-Agent: me/1\r\nAuthorization: Basic dXNlcjpwYXNz\r\n");
    let lines = logged.end();
    let (front, rest) = lines.split_once(" [").unwrap();
    let (time, back) = rest.split_once("] ").unwrap();
    assert_eq!(front, "127.0.0.1 - user");
    assert!(time.ends_with(" +0000") && time.len() == 26, "{time}");
    assert_eq!(back, "\"GET /a%20b?x=1 HTTP/1.1\" 200 5 \"http://r/\" \"me/1\"\n");
}

#[test]
fn a_template_has_its_variables() {
    let logged = Logged::new(|plan| {
        plan.format = Format::parse(
            "$status|$request_method|$request_uri|$uri|$args|$is_args|$arg_b|$host|$server_protocol|$cookie_c|\
             $http_x_y|$remote_user|${request_length}|$bytes_sent|$body_bytes_sent|$request_completion|$outcome|\
             $upstream_addr|$upstream_status|$upstream_connect_time|$upstream_response_time|$scheme",
        )
        .unwrap();
    });
    logged.get("/404/%41?a=1&B=2", "Cookie: x=1; c=d\r\nX-Y: z\r\n");
    logged.get("/200/upstream", "");
    logged.get("/later", "");
    let lines = logged.end();
    let lines: Vec<&str> = lines.lines().collect();
    assert!(
        lines[0].starts_with("404|GET|/404/%41?a=1&B=2|/404/A|a=1&B=2|?|2|example.org|HTTP/1.1|d|z|-|100|"),
        "{}",
        lines[0]
    );
    assert!(lines[0].ends_with("|5|OK|sent|-|-|-|-|http"), "{}", lines[0]);
    assert!(
        lines[1].ends_with("|10.0.0.1:80, unix:/run/\\x22api\\x22.sock|-, 502|-, 0.001|-, -|http"),
        "{}",
        lines[1]
    );
    assert!(lines[2].starts_with("200|GET|/later|/later|-||-|"), "{}", lines[2]);
}

#[test]
fn hostile_values_stay_in_their_field() {
    let logged = Logged::new(|_| ());
    logged.get("/\\evil", "User-Agent: a\"b\\ \x7f\x08\r\n");
    logged.get("/", "User-Agent: \"quoted\" \\ back\tslash \u{e9}\r\n");
    logged.send(b"GET /\x1b[31m\"\n\xff HTTP/1.1\r\n\r\n");
    logged.send(b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n");
    logged.send(format!("GET /{} HTTP/1.1\r\n\r\n", "a".repeat(9000)));
    let lines = logged.end();
    assert!(lines.bytes().all(|byte| byte == b'\n' || matches!(byte, b' '..=b'~')), "{lines}");
    let lines: Vec<&str> = lines.lines().collect();
    assert_eq!(lines.len(), 5, "{lines:#?}");
    assert!(lines[0].contains("400"), "{}", lines[0]);
    assert!(lines[1].ends_with("\"\\x22quoted\\x22 \\x5C back\\x09slash \\xC3\\xA9\""), "{}", lines[1]);
    assert!(lines[2].contains("\"GET /\\x1B[31m\\x22\" 400 "), "{}", lines[2]);
    assert!(lines[3].contains("\"\\x16\\x03\\x01\\x02\\x00\\x01\\x00\" 400 "), "{}", lines[3]);
    assert!(lines[4].contains(" 414 ") && lines[4].len() < 1300, "{}", lines[4]);
}

/// Whatever a client sends, each line is one JSON object that contains what was sent.
#[test]
fn json_lines_are_json() {
    let logged = Logged::new(|plan| plan.format = Format::json());
    let mut seed = 88_172_645_463_325_252u64;
    let mut sent = Vec::new();
    for _ in 0..500 {
        let mut agent = Vec::new();
        for _ in 0..seed % 60 {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            // Characters allowed in a field value: all but control characters, and tabs.
            match (seed >> 16) as u8 {
                byte @ (b'\t' | b' '..=0x7e | 0x80..) => agent.push(byte),
                _ => agent.extend_from_slice("é€😀\"\\".as_bytes()),
            }
        }
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let request = [b"GET /?q=\\ HTTP/1.1\r\nHost: t\r\nUser-Agent: x", &agent[..], b"x\r\n\r\n"].concat();
        sent.extend_from_slice(&request);
    }
    sent.extend_from_slice(b"\xff\xfe\"\r\n\r\n");
    logged.send(sent);
    let lines = logged.end();
    assert_eq!(lines.lines().count(), 501);
    for line in lines.lines() {
        let value: serde_json::Value =
            serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        match value["status"].as_u64() {
            Some(200) => {
                let agent = value["user_agent"].as_str().unwrap();
                assert!(agent.starts_with('x') && agent.ends_with('x'), "{line}");
                assert_eq!((&value["uri"], &value["method"]), (&"/?q=\\".into(), &"GET".into()));
            }
            other => assert_eq!((other, value["outcome"].as_str()), (Some(400), Some("refused")), "{line}"),
        }
        assert!(value["request_time"].is_f64(), "{line}");
    }
}

#[test]
fn conditions_and_samples_choose() {
    let logged = Logged::new(|plan| plan.only = vec!["status>=500".parse().unwrap()]);
    ["/200", "/404", "/500", "/503"].iter().for_each(|path| logged.get(path, ""));
    let lines = logged.end();
    assert_eq!((lines.lines().count(), lines.contains("/500"), lines.contains("/503")), (2, true, true));

    let logged = Logged::new(|plan| plan.sample = 10);
    (0..40).for_each(|_| logged.get("/200", ""));
    (0..7).for_each(|_| logged.get("/404", ""));
    logged.send("nonsense\r\n\r\n");
    let lines = logged.end();
    assert_eq!(lines.matches("/200 ").count(), 4, "{lines}");
    assert_eq!(lines.matches("/404 ").count(), 7, "all errors are there");
    assert_eq!(lines.matches("nonsense").count(), 1);
}

#[test]
fn a_full_disk_costs_lines_and_no_request() {
    let log = Log::open(Plan { buffer_bytes: 1 << 10, ..Plan::new("/dev/full") }).unwrap();
    let observers = Observers { logs: vec![log.clone()], metrics: None };
    let plan = flatout_engine::Plan {
        listen: vec!["127.0.0.1:0".parse().unwrap()],
        workers: Some(1),
        ..flatout_engine::Plan::default()
    };
    let server =
        flatout_engine::start(plan, move |_| observers.wrap(|notes| Box::new(Named(notes)))).unwrap();
    let Some(Address::Tcp(address)) = server.addresses().first().cloned() else { panic!("no address") };
    let mut stream = TcpStream::connect(address).unwrap();
    let request = "GET /200 HTTP/1.1\r\nHost: t\r\n\r\n";
    stream.write_all(request.repeat(299).as_bytes()).unwrap();
    stream.write_all(request.replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n").as_bytes()).unwrap();
    let mut all = String::new();
    stream.read_to_string(&mut all).unwrap();
    assert_eq!(all.matches("HTTP/1.1 200 OK").count(), 300);
    server.handle().stop();
    server.wait().unwrap();
    log.close();
    assert_eq!(log.tally(), Tally { lines: 0, bytes: 0, lost: 300 });
}

/// While the writer cannot write, lines over the limit are lost, each of them completely.
#[test]
fn a_slow_disk_costs_whole_lines() {
    use std::os::unix::fs::OpenOptionsExt;
    let path = std::env::temp_dir().join(format!("flatout-fifo-{}", std::process::id()));
    let _ = std::fs::remove_file(&path);
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &path,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o600),
        0,
    )
    .unwrap();
    // An open pipe without a reader.
    let flags = rustix::fs::OFlags::NONBLOCK.bits() as i32;
    let mut reader = std::fs::File::options().read(true).custom_flags(flags).open(&path).unwrap();
    let plan = Plan { buffer_bytes: 4 << 10, format: Format::common(), ..Plan::new(&path) };
    let log = Log::open(plan).unwrap();
    let lines = Lines::new(std::slice::from_ref(&log));
    let mut ended = ended();
    let count = 20_000;
    for at in 0..count {
        ended.sent_bytes = at;
        lines.ended(&ended, 0, (None, None));
    }
    let lost = log.tally().lost;
    assert!(lost > 0, "a pipe has room for 64 KiB and the queue for a little more");
    let reading = std::thread::spawn(move || {
        let mut all = Vec::new();
        loop {
            let mut piece = [0; 65536];
            match reader.read(&mut piece) {
                Ok(0) => return all,
                Ok(count) => all.extend_from_slice(&piece[..count]),
                // Nothing was written yet.
                Err(_) => std::thread::sleep(std::time::Duration::from_millis(1)),
            }
        }
    });
    log.close();
    let tally = log.tally();
    drop((lines, log));
    let all = String::from_utf8(reading.join().unwrap()).unwrap();
    assert_eq!(tally.lines + tally.lost, count);
    assert_eq!(all.lines().count() as u64, tally.lines);
    let mut before = None;
    for line in all.lines() {
        let number: u64 = line.rsplit(' ').next().unwrap().parse().unwrap();
        assert!(line.starts_with("unix: - - [06/Nov/1994:"), "{line}");
        assert!(line.ends_with(&format!("] \"\" 200 {number}")) && before < Some(number), "{line}");
        before = Some(number);
    }
    std::fs::remove_file(path).unwrap();
}

/// A request whose start was not seen.
fn ended() -> flatout_engine::Ended {
    flatout_engine::Ended {
        status: Some(Status::OK),
        received_bytes: 0,
        sent_bytes: 0,
        sent_head_bytes: 0,
        began_ns: 0,
        first_byte_ns: None,
        ended_ns: 0,
        unix_ns: 784_111_777_000_000_000,
        outcome: flatout_engine::Outcome::Sent,
        mark: 0,
        note: 0,
    }
}

#[test]
fn lines_are_written_when_their_time_has_come() {
    let logged = Logged::new(|plan| plan.flush = Duration::from_millis(50));
    logged.get("/200", "");
    let began = std::time::Instant::now();
    while std::fs::metadata(logged.log.path()).unwrap().len() == 0 {
        assert!(began.elapsed() < Duration::from_secs(30), "never written");
        std::thread::yield_now();
    }
}

#[test]
fn plans_are_checked() {
    assert_eq!(Plan::new("/a").check(), Ok(()));
    for (plan, expected) in [
        (Plan { buffer_bytes: 1, ..Plan::new("/a") }, "log buffer: got 1 bytes"),
        (Plan { flush: Duration::ZERO, ..Plan::new("/a") }, "log flush"),
        (Plan { sample: 0, ..Plan::new("/a") }, "log sample: got 0"),
    ] {
        assert!(plan.check().unwrap_err().contains(expected), "{plan:?}");
        assert!(Log::open(plan).is_err());
    }
}
