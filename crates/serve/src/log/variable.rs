//! The values of a line, by the names that nginx gives them.

use std::io::Write;
use std::net::SocketAddr;

use flatout_engine::{Begun, Ended, Outcome};
use flatout_wire::head::Version;
use flatout_wire::{Head, target};

use super::escape::Escape;
use crate::observed::Upstream;

/// A value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Variable {
    Early(Early),
    Late(Late),
}

/// What is known when a request begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Early {
    RemoteAddr,
    RemotePort,
    RemoteUser,
    Request,
    Method,
    RequestUri,
    Uri,
    Args,
    IsArgs,
    Argument(String),
    Host,
    Protocol,
    Scheme,
    Field(String),
    Cookie(String),
    Pid,
}

/// What is known when it has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Late {
    Status,
    BodyBytesSent,
    BytesSent,
    RequestLength,
    RequestTime,
    Msec,
    TimeLocal,
    TimeIso,
    Completion,
    Outcome,
    UpstreamAddr,
    UpstreamStatus,
    UpstreamConnectTime,
    UpstreamHeaderTime,
    UpstreamResponseTime,
}

const EARLY: [(&str, Early); 15] = [
    ("remote_addr", Early::RemoteAddr),
    ("remote_port", Early::RemotePort),
    ("remote_user", Early::RemoteUser),
    ("request", Early::Request),
    ("request_method", Early::Method),
    ("request_uri", Early::RequestUri),
    ("uri", Early::Uri),
    ("document_uri", Early::Uri),
    ("args", Early::Args),
    ("query_string", Early::Args),
    ("is_args", Early::IsArgs),
    ("host", Early::Host),
    ("server_protocol", Early::Protocol),
    ("scheme", Early::Scheme),
    ("pid", Early::Pid),
];

const LATE: [(&str, Late); 15] = [
    ("status", Late::Status),
    ("body_bytes_sent", Late::BodyBytesSent),
    ("bytes_sent", Late::BytesSent),
    ("request_length", Late::RequestLength),
    ("request_time", Late::RequestTime),
    ("msec", Late::Msec),
    ("time_local", Late::TimeLocal),
    ("time_iso8601", Late::TimeIso),
    ("request_completion", Late::Completion),
    ("outcome", Late::Outcome),
    ("upstream_addr", Late::UpstreamAddr),
    ("upstream_status", Late::UpstreamStatus),
    ("upstream_connect_time", Late::UpstreamConnectTime),
    ("upstream_header_time", Late::UpstreamHeaderTime),
    ("upstream_response_time", Late::UpstreamResponseTime),
];

/// Names whose rest is the name of something in the request.
const PREFIXES: [(&str, fn(String) -> Early); 3] = [
    ("http_", |name| Early::Field(name.replace('_', "-"))),
    ("arg_", Early::Argument),
    ("cookie_", Early::Cookie),
];

impl Variable {
    pub(super) fn named(name: &str) -> Result<Variable, String> {
        if let Some((_, early)) = EARLY.iter().find(|(known, _)| *known == name) {
            return Ok(Variable::Early(early.clone()));
        }
        if let Some((_, late)) = LATE.iter().find(|(known, _)| *known == name) {
            return Ok(Variable::Late(*late));
        }
        let by_prefix = PREFIXES.iter().find_map(|(prefix, make)| {
            let rest = name.strip_prefix(prefix).filter(|rest| !rest.is_empty())?;
            Some(make(rest.to_owned()))
        });
        match (by_prefix, name) {
            (Some(early), _) => Ok(Variable::Early(early)),
            (None, "content_type" | "content_length") => {
                Ok(Variable::Early(Early::Field(name.replace('_', "-"))))
            }
            (None, _) => Err(unknown(name)),
        }
    }
}

fn unknown(name: &str) -> String {
    let names = EARLY.iter().map(|(name, _)| *name).chain(LATE.iter().map(|(name, _)| *name));
    let nearest = names.map(|known| (distance(known, name), known)).min();
    match nearest {
        Some((distance, known)) if distance <= 1 + name.len() / 4 => {
            format!("unknown log variable `${name}`; did you mean `${known}`?")
        }
        _ => format!("unknown log variable `${name}`; the known ones are in docs/observability.md"),
    }
}

/// How many letters have to be changed, left out or put in to make one of the other.
fn distance(one: &str, other: &str) -> usize {
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (at, letter) in one.bytes().enumerate() {
        let mut corner = at;
        let mut left = at + 1;
        for (place, same) in row.iter_mut().skip(1).zip(other.bytes().map(|other| other == letter)) {
            let above = *place;
            left = (corner + usize::from(!same)).min(above + 1).min(left + 1);
            corner = above;
            *place = left;
        }
        if let Some(first) = row.first_mut() {
            *first = at + 1;
        }
    }
    row.last().copied().unwrap_or(0)
}

impl Early {
    /// Adds the value of a request.
    #[inline]
    pub(super) fn write(&self, begun: &Begun<'_>, escape: Escape, out: &mut Vec<u8>) {
        match (self, begun.head) {
            (Early::RemoteAddr, _) => write_address(begun.peer, out),
            (Early::Request, Some(head)) => escape.write(head.request_line(), out),
            (Early::Field(name), Some(head)) => write_or_nothing(head.field(name), escape, out),
            _ => self.write_rare(begun, escape, out),
        }
    }

    fn write_rare(&self, begun: &Begun<'_>, escape: Escape, out: &mut Vec<u8>) {
        let Some(head) = begun.head else {
            return self.write_refused(begun, escape, out);
        };
        match self {
            Early::RemoteUser => write_or_nothing(user(head).as_deref(), escape, out),
            Early::Method => escape.write(head.method_name(), out),
            Early::RequestUri => escape.write(head.target(), out),
            Early::Uri => match target::normal_path(head.path(), &mut Vec::new()) {
                Ok(path) => escape.write(path, out),
                Err(_) => escape.write(head.path(), out),
            },
            Early::Args => write_or_nothing(head.query(), escape, out),
            Early::IsArgs => out.extend_from_slice(if head.query().is_some() { b"?" } else { b"" }),
            Early::Argument(name) => write_or_nothing(argument(head, name), escape, out),
            Early::Host => {
                let host = host(head.authority());
                write_or_nothing((!host.is_empty()).then_some(&host), escape, out);
            }
            Early::Protocol => out.extend_from_slice(match head.version {
                Version::Http10 => b"HTTP/1.0",
                Version::Http11 => b"HTTP/1.1",
            }),
            Early::Cookie(name) => write_or_nothing(cookie(head, name), escape, out),
            _ => self.write_common(begun, out),
        }
    }

    /// Of a request that was refused only its first line is known, or what has come of it.
    fn write_refused(&self, begun: &Begun<'_>, escape: Escape, out: &mut Vec<u8>) {
        match self {
            Early::Request => {
                let line = begun.refused.split(|&byte| byte == b'\n').next().unwrap_or_default();
                let line = line.strip_suffix(b"\r").unwrap_or(line);
                escape.write(line.get(..REFUSED_BYTES_MAX).unwrap_or(line), out);
            }
            Early::RemotePort | Early::Scheme | Early::Pid => self.write_common(begun, out),
            Early::IsArgs => {}
            _ => out.extend_from_slice(escape.nothing()),
        }
    }

    fn write_common(&self, begun: &Begun<'_>, out: &mut Vec<u8>) {
        match self {
            Early::RemotePort => write_number(begun.peer.map_or(0, |peer| u64::from(peer.port())), out),
            Early::Scheme => out.extend_from_slice(b"http"),
            Early::Pid => write_number(u64::from(std::process::id()), out),
            _ => {}
        }
    }
}

/// Bytes that are logged of what was refused.
const REFUSED_BYTES_MAX: usize = 1 << 10;

#[inline]
fn write_or_nothing(value: Option<&[u8]>, escape: Escape, out: &mut Vec<u8>) {
    match value {
        Some(value) => escape.write(value, out),
        None => out.extend_from_slice(escape.nothing()),
    }
}

#[inline]
fn write_address(peer: Option<SocketAddr>, out: &mut Vec<u8>) {
    match peer {
        Some(SocketAddr::V4(peer)) => {
            let mut text = [b'.'; 15];
            let mut at = 0;
            for octet in peer.ip().octets() {
                let mut digits = itoa::Buffer::new();
                let digits = digits.format(octet).as_bytes();
                if let Some(place) = text.get_mut(at..at + digits.len()) {
                    place.copy_from_slice(digits);
                }
                at += digits.len() + 1;
            }
            out.extend_from_slice(text.get(..at - 1).unwrap_or_default());
        }
        // Writing to a vector cannot fail.
        Some(SocketAddr::V6(peer)) => drop(write!(out, "{}", peer.ip())),
        None => out.extend_from_slice(b"unix:"),
    }
}

#[inline]
pub(super) fn write_number(number: u64, out: &mut Vec<u8>) {
    out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

/// The user of basic authentication, as nginx has it: whether the password is right is not looked at.
fn user(head: &Head<'_>) -> Option<Vec<u8>> {
    let value = head.field("authorization")?;
    let (scheme, token) = value.split_at_checked(6)?;
    if !scheme.eq_ignore_ascii_case(b"basic ") {
        return None;
    }
    let decoded = base64(token.trim_ascii());
    let end = decoded.iter().position(|&byte| byte == b':')?;
    decoded.get(..end).map(<[u8]>::to_vec).filter(|user| !user.is_empty())
}

/// Decodes as much as is base64.
fn base64(text: &[u8]) -> Vec<u8> {
    let (mut out, mut bits, mut held) = (Vec::new(), 0u32, 0u32);
    for &byte in text {
        let six = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => break,
        };
        bits = (bits << 6 | u32::from(six)) & 0xffff;
        held += 6;
        if held >= 8 {
            held -= 8;
            out.push((bits >> held) as u8);
        }
    }
    out
}

/// A host without its port, in lower case.
fn host(authority: &[u8]) -> Vec<u8> {
    let end = match authority.first() {
        Some(b'[') => authority.iter().position(|&byte| byte == b']').map(|at| at + 1),
        _ => authority.iter().position(|&byte| byte == b':'),
    };
    authority.get(..end.unwrap_or(authority.len())).unwrap_or(authority).to_ascii_lowercase()
}

fn argument<'b>(head: &Head<'b>, name: &str) -> Option<&'b [u8]> {
    head.query()?.split(|&byte| byte == b'&').find_map(|pair| {
        let (this, value) = pair.split_at_checked(pair.iter().position(|&byte| byte == b'=')?)?;
        this.eq_ignore_ascii_case(name.as_bytes()).then(|| value.get(1..).unwrap_or_default())
    })
}

fn cookie<'b>(head: &Head<'b>, name: &str) -> Option<&'b [u8]> {
    head.field_all("cookie").flat_map(|value| value.split(|&byte| byte == b';')).find_map(|pair| {
        let pair = pair.trim_ascii();
        let (this, value) = pair.split_at_checked(pair.iter().position(|&byte| byte == b'=')?)?;
        (this == name.as_bytes()).then(|| value.get(1..).unwrap_or_default())
    })
}

/// What a late value is written from.
pub(super) struct About<'a> {
    pub(super) ended: &'a Ended,
    pub(super) upstream: Option<&'a Upstream>,
    pub(super) local: &'a [u8],
    pub(super) iso: &'a [u8],
}

impl Late {
    /// Adds the value of a request.
    #[inline]
    pub(super) fn write(self, about: &About<'_>, escape: Escape, out: &mut Vec<u8>) {
        let ended = about.ended;
        match self {
            Late::Status => write_status(ended.status.map_or(0, |status| status.code()), escape, out),
            Late::BodyBytesSent => {
                write_number(ended.sent_bytes.saturating_sub(u64::from(ended.sent_head_bytes)), out);
            }
            Late::TimeLocal => out.extend_from_slice(about.local),
            Late::BytesSent => write_number(ended.sent_bytes, out),
            Late::RequestLength => write_number(ended.received_bytes, out),
            Late::RequestTime => write_seconds(ended.ended_ns.saturating_sub(ended.began_ns), out),
            Late::Msec => write_seconds(ended.unix_ns, out),
            Late::TimeIso => out.extend_from_slice(about.iso),
            Late::Completion if ended.outcome == Outcome::Sent => out.extend_from_slice(b"OK"),
            Late::Completion => {}
            Late::Outcome => out.extend_from_slice(ended.outcome.name().as_bytes()),
            _ => self.write_upstream(about.upstream, escape, out),
        }
    }

    fn write_upstream(self, upstream: Option<&Upstream>, escape: Escape, out: &mut Vec<u8>) {
        let Some(upstream) = upstream else {
            return out.extend_from_slice(escape.nothing());
        };
        let time = |ns: Option<u64>, out: &mut Vec<u8>| match ns {
            Some(ns) => write_seconds(ns, out),
            None => out.extend_from_slice(escape.nothing()),
        };
        match self {
            Late::UpstreamAddr => escape.write(upstream.address.as_bytes(), out),
            Late::UpstreamStatus => write_status(upstream.status, escape, out),
            Late::UpstreamConnectTime => time(upstream.connect_ns, out),
            Late::UpstreamHeaderTime => time(upstream.head_ns, out),
            _ => time(upstream.response_ns, out),
        }
    }
}

/// Three digits, as nginx has them; in JSON a number has no zeros before it.
#[inline]
fn write_status(code: u16, escape: Escape, out: &mut Vec<u8>) {
    match (code, escape) {
        (0, Escape::Json) => out.push(b'0'),
        _ => {
            let digit = |of: u16| b'0' + (of % 10) as u8;
            out.extend_from_slice(&[digit(code / 100), digit(code / 10), digit(code)]);
        }
    }
}

/// Seconds with their milliseconds.
#[inline]
fn write_seconds(ns: u64, out: &mut Vec<u8>) {
    let ms = ns / 1_000_000;
    write_number(ms / 1000, out);
    let digit = |of: u64| b'0' + (of % 10) as u8;
    out.extend_from_slice(&[b'.', digit(ms / 100), digit(ms / 10), digit(ms)]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_nginxs() {
        for name in ["status", "http_x_request_id", "arg_q", "cookie_session", "content_type", "http_host"] {
            assert!(Variable::named(name).is_ok(), "{name}");
        }
        assert_eq!(
            Variable::named("http_user_agent"),
            Ok(Variable::Early(Early::Field("user-agent".into())))
        );
        assert_eq!(Variable::named("http_host"), Ok(Variable::Early(Early::Field("host".into()))));
        assert!(Variable::named("http_").is_err());
        assert!(Variable::named("body_byte_sent").unwrap_err().contains("$body_bytes_sent"));
        assert!(Variable::named("nonesuch_at_all").unwrap_err().contains("docs/"));
    }

    #[test]
    fn parts_of_a_request_are_found() {
        assert_eq!(host(b"Example.ORG:8080"), b"example.org");
        assert_eq!(host(b"[::1]:80"), b"[::1]");
        assert_eq!(base64(b"dXNlcjpwYXNz"), b"user:pass");
        assert_eq!(base64(b"dTo="), b"u:");
        assert_eq!((distance("", "ab"), distance("status", "statos"), distance("a", "")), (2, 1, 1));
    }

    #[test]
    fn numbers_are_written_as_nginx_writes_them() {
        let written = |write: &dyn Fn(&mut Vec<u8>)| {
            let mut out = Vec::new();
            write(&mut out);
            String::from_utf8(out).unwrap()
        };
        assert_eq!(written(&|out| write_seconds(1_234_567_890, out)), "1.234");
        assert_eq!(written(&|out| write_status(0, Escape::Text, out)), "000");
        assert_eq!(written(&|out| write_status(0, Escape::Json, out)), "0");
        assert_eq!(written(&|out| write_address(Some("10.200.3.4:1".parse().unwrap()), out)), "10.200.3.4");
        assert_eq!(written(&|out| write_address(Some("[::1]:1".parse().unwrap()), out)), "::1");
    }
}
