//! Test oracle: writes lines in a simple way, directly from the template, to compare with the fast implementation.

use std::net::SocketAddr;

use flatout_engine::{Begun, Ended, Outcome};
use flatout_wire::Status;
use flatout_wire::head::{HeadLimits, parse};

use super::escape::Escape;
use super::{Format, Lines, Log, Plan};
use crate::notes::{Attempt, Upstream};

/// The variables that the oracle knows, and texts between them.
const PARTS: [&str; 26] = [
    "$remote_addr",
    "$remote_port",
    "$request",
    "$request_method",
    "$request_uri",
    "$args",
    "$is_args",
    "$server_protocol",
    "$http_user_agent",
    "$http_x_y",
    "$http_host",
    "$status",
    "$bytes_sent",
    "$body_bytes_sent",
    "$request_length",
    "$request_time",
    "$msec",
    "$time_local",
    "$time_iso8601",
    "$outcome",
    "$upstream_addr",
    "$upstream_status",
    "$upstream_response_time",
    " ",
    "\" \"",
    " a text that is longer than what is copied at a time, and then some ",
];

/// The data of a request.
struct Case<'a> {
    request: &'a str,
    fields: &'a [(&'a str, Vec<u8>)],
    peer: Option<SocketAddr>,
    ended: Ended,
    upstream: Option<Upstream>,
}

fn field<'a>(case: &'a Case<'_>, name: &str) -> Option<&'a [u8]> {
    case.fields.iter().find(|(this, _)| this.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_slice())
}

fn simple(parts: &[&str], escape: Escape, case: &Case<'_>) -> Vec<u8> {
    let mut line = Vec::new();
    for part in parts {
        match part.strip_prefix('$') {
            None => line.extend_from_slice(part.as_bytes()),
            Some(name) => match value(name, escape, case) {
                Some(value) => escape.write_escaped(&value, &mut line),
                None if escape == Escape::Text => line.push(b'-'),
                None => {}
            },
        }
    }
    line.push(b'\n');
    line
}

fn value(name: &str, escape: Escape, case: &Case<'_>) -> Option<Vec<u8>> {
    let ended = &case.ended;
    let words: Vec<&str> = case.request.split(' ').collect();
    let query = words[1].split_once('?').map(|(_, query)| query);
    let seconds = |ns: u64| format!("{}.{:03}", ns / 1_000_000_000, ns / 1_000_000 % 1000);
    let tries = |of: &dyn Fn(&Attempt) -> Option<String>| {
        let all = case.upstream.as_ref()?.attempts.iter().map(|it| of(it).unwrap_or("-".to_owned()));
        Some(all.collect::<Vec<_>>().join(", "))
    };
    let text = match name {
        "remote_addr" => case.peer.map_or("unix:".to_owned(), |peer| peer.ip().to_string()),
        "remote_port" => case.peer.map_or(0, |peer| peer.port()).to_string(),
        "request" => case.request.to_owned(),
        "request_method" => words[0].to_owned(),
        "request_uri" => words[1].to_owned(),
        "args" => query?.to_owned(),
        "is_args" => query.map_or("", |_| "?").to_owned(),
        "server_protocol" => words[2].to_owned(),
        "status" => match (ended.status, escape) {
            (Some(status), _) => format!("{:03}", status.code()),
            (None, Escape::Text | Escape::Plain) => "000".to_owned(),
            (None, Escape::Json) => "0".to_owned(),
        },
        "bytes_sent" => ended.sent_bytes.to_string(),
        "body_bytes_sent" => ended.sent_bytes.saturating_sub(u64::from(ended.sent_head_bytes)).to_string(),
        "request_length" => ended.received_bytes.to_string(),
        "request_time" => seconds(ended.ended_ns.saturating_sub(ended.began_ns)),
        "msec" => seconds(ended.unix_ns),
        "time_local" => "06/Nov/1994:08:49:37 +0000".to_owned(),
        "time_iso8601" => "1994-11-06T08:49:37+00:00".to_owned(),
        "outcome" => ended.outcome.name().to_owned(),
        "upstream_addr" => tries(&|it| Some(it.address.to_string()))?,
        "upstream_status" => tries(&|it| (it.status > 0).then(|| it.status.to_string()))?,
        "upstream_response_time" => tries(&|it| it.response_ns.map(seconds))?,
        _ => return field(case, &name.strip_prefix("http_")?.replace('_', "-")).map(<[u8]>::to_vec),
    };
    Some(text.into_bytes())
}

struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % end
    }

    fn one<T: Clone>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())].clone()
    }

    /// A random field value, often without bytes to escape.
    fn value(&mut self) -> Vec<u8> {
        let is_plain = self.below(3) > 0;
        let length = self.below(70);
        let mut value: Vec<u8> = (0..length)
            .map(|_| match self.below(256) as u8 {
                byte @ (b'!' | b'#'..=b'[' | b']'..=b'~') => byte,
                byte @ (b'\t' | b' '..=0x7e | 0x80..) if !is_plain => byte,
                _ => b'x',
            })
            .collect();
        value.push(b'.');
        value.insert(0, b'.');
        value
    }
}

#[test]
fn the_fast_and_the_simple_version_agree() {
    let path = std::env::temp_dir().join(format!("flatout-oracle-{}", std::process::id()));
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    for round in 0..150 {
        let _ = std::fs::remove_file(&path);
        let escape = random.one(&[Escape::Text, Escape::Json]);
        let begin = if escape == Escape::Json { "{ $msec " } else { "<$msec " };
        let count = random.below(12);
        let chosen: Vec<&str> = (0..count).map(|_| random.one(&PARTS)).collect();
        let text = [&[begin], &chosen[..]].concat().join("|");
        let format = Format::parse(&text).unwrap();
        assert_eq!(format.escape, escape);
        let mut parts = vec![begin.split_at(begin.len() - 6).0, "$msec", " "];
        for part in &chosen {
            parts.extend(["|", part]);
        }
        let log = Log::open(Plan { format, ..Plan::new(&path) }).unwrap();
        let lines = Lines::new(std::slice::from_ref(&log));
        let mut expected = Vec::new();
        let mut open = Vec::new();
        // Requests end in a different order than they begin.
        for _ in 0..20 {
            let fields: Vec<(&str, Vec<u8>)> =
                [("Host", b"a.example".to_vec()), ("User-Agent", random.value())]
                    .into_iter()
                    .chain((random.below(2) == 0).then(|| ("x-Y", random.value())))
                    .collect();
            let case = Case {
                request: random.one(&[
                    "GET / HTTP/1.1",
                    "POST /a\"b?c=d HTTP/1.1",
                    "DELETE /a/long/path/of/it?x HTTP/1.0",
                ]),
                fields: &fields,
                peer: random.one(&[
                    None,
                    Some("127.0.0.1:80".parse().unwrap()),
                    Some("[2001:db8::1]:9".parse().unwrap()),
                ]),
                ended: Ended {
                    status: random.one(&[None, Some(Status::OK), Some(Status::NOT_FOUND)]),
                    received_bytes: random.below(100_000) as u64,
                    sent_bytes: random.below(2000) as u64,
                    sent_head_bytes: random.below(400) as u32,
                    began_ns: 1_000_000,
                    first_byte_ns: None,
                    ended_ns: 1_000_000 + (random.below(100_000) * 54_321) as u64,
                    unix_ns: 784_111_777_000_000_000 + random.below(1_000_000_000) as u64,
                    outcome: random.one(&Outcome::ALL),
                    mark: 0,
                    note: 0,
                },
                upstream: (random.below(2) == 0).then(|| {
                    let attempt = |status, ns: Option<u64>| Attempt {
                        address: "unix:/a b".into(),
                        status,
                        connect_ns: None,
                        head_ns: None,
                        response_ns: ns,
                    };
                    let mut attempts = vec![attempt(0, None); random.below(3)];
                    attempts.push(attempt(200, Some(12_345_678)));
                    Upstream { attempts }
                }),
            };
            let mut bytes = format!("{}\r\n", case.request).into_bytes();
            for (name, value) in &fields {
                bytes.extend_from_slice(&[name.as_bytes(), b": ", value, b"\r\n"].concat());
            }
            bytes.extend_from_slice(b"\r\n");
            let mut spans = Vec::new();
            let head = parse(&bytes, &mut spans, &HeadLimits::default()).unwrap().unwrap();
            let begun =
                Begun { head: Some(&head), refused: b"", peer: case.peer, tls: None, listener: 0, number: 1 };
            let mark = lines.begun(&begun, 0);
            open.push((simple(&parts, escape, &case), Ended { mark, ..case.ended }, case.upstream));
            if open.len() > 3 || random.below(2) == 0 {
                let (line, ended, upstream) = open.swap_remove(random.below(open.len()));
                lines.ended(&ended, 0, (upstream.as_ref(), None));
                expected.extend(line);
            }
        }
        log.close();
        let written = std::fs::read(&path).unwrap();
        assert_eq!(
            String::from_utf8_lossy(&written),
            String::from_utf8_lossy(&expected),
            "round {round}: {text}"
        );
    }
    let _ = std::fs::remove_file(&path);
}
