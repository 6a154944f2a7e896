//! The values of a line, with nginx's names.

use std::net::IpAddr;
use std::sync::Arc;

use flatout_engine::{Begun, Ended, Outcome, sent_request_id, write_request_id};
use flatout_wire::head::Version;
use flatout_wire::{Head, target};

use super::clock::Clock;
use super::escape::Escape;
use super::secret::{MASK, is_secret, masked_form, masked_query, masked_url};
use super::text;
use crate::notes::{Attempt, LoggedTexts, Notes, Upstream};

/// A value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Variable {
    Early(Early),
    Late(Late),
    /// One of the service.
    Named(Arc<str>),
}

/// Values known when a request starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Early {
    RemoteAddr,
    /// Its four or sixteen bytes.
    BinaryAddr,
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
    /// A field with a URL.
    Url(String),
    Cookie(String),
    Pid,
    Https,
    SslProtocol,
    SslCipher,
    RequestId,
}

/// Values known when it has ended.
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
    TimeIsoMs,
    TimeClock,
    RequestTimeUs,
    Duration,
    StatusColour,
    CacheStatus,
    Completion,
    Outcome,
    UpstreamAddr,
    UpstreamStatus,
    UpstreamConnectTime,
    UpstreamHeaderTime,
    UpstreamResponseTime,
    RequestBody,
}

const EARLY: [(&str, Early); 20] = [
    ("remote_addr", Early::RemoteAddr),
    ("binary_remote_addr", Early::BinaryAddr),
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
    ("https", Early::Https),
    ("ssl_protocol", Early::SslProtocol),
    ("ssl_cipher", Early::SslCipher),
    ("request_id", Early::RequestId),
];

const LATE: [(&str, Late); 22] = [
    ("status", Late::Status),
    ("body_bytes_sent", Late::BodyBytesSent),
    ("bytes_sent", Late::BytesSent),
    ("request_length", Late::RequestLength),
    ("request_time", Late::RequestTime),
    ("msec", Late::Msec),
    ("time_local", Late::TimeLocal),
    ("time_iso8601", Late::TimeIso),
    ("time_iso8601_ms", Late::TimeIsoMs),
    ("time_clock", Late::TimeClock),
    ("request_time_us", Late::RequestTimeUs),
    ("took", Late::Duration),
    ("status_colour", Late::StatusColour),
    ("upstream_cache_status", Late::CacheStatus),
    ("request_completion", Late::Completion),
    ("outcome", Late::Outcome),
    ("upstream_addr", Late::UpstreamAddr),
    ("upstream_status", Late::UpstreamStatus),
    ("upstream_connect_time", Late::UpstreamConnectTime),
    ("upstream_header_time", Late::UpstreamHeaderTime),
    ("upstream_response_time", Late::UpstreamResponseTime),
    ("request_body", Late::RequestBody),
];

/// Fields with URLs, in which secrets are masked.
const URL_FIELDS: [&str; 5] =
    ["referer", "x-original-url", "x-rewrite-url", "x-forwarded-uri", "x-original-uri"];

/// Makes a variable from a name in the request.
type Named = fn(String) -> Early;

/// Prefixes that are followed by a name in the request.
const PREFIXES: [(&str, Named); 3] = [
    ("http_", |name| {
        let name = name.replace('_', "-");
        if URL_FIELDS.contains(&&*name) { Early::Url(name) } else { Early::Field(name) }
    }),
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
        _ => format!("unknown log variable `${name}`; docs/observability.md lists all variables"),
    }
}

/// The edit distance of two names.
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
    /// Adds the value of a request as it was sent, or the placeholder.
    #[inline]
    pub(super) fn write(&self, begun: &Begun<'_>, escape: Escape, out: &mut Vec<u8>) {
        let Some(head) = begun.head else {
            return self.write_refused(begun, escape, out);
        };
        match self {
            Early::RemoteAddr => text::address(begun.peer, out),
            Early::Request if head.query().is_none() => text::value(head.request_line(), escape, out),
            Early::Request => text::value(&masked_url(head.request_line()), escape, out),
            Early::Url(name) => write(head.field(name).map(masked_url).as_deref(), escape, out),
            Early::Field(name) => write(head.field(name), escape, out),
            Early::RemoteUser => match head.field("authorization") {
                Some(credentials) => write(user(credentials).as_deref(), escape, out),
                None => text::nothing(escape, out),
            },
            _ => self.write_other(head, begun, escape, out),
        }
    }

    #[inline(never)]
    fn write_other(&self, head: &Head<'_>, begun: &Begun<'_>, escape: Escape, out: &mut Vec<u8>) {
        let value = match self {
            Early::Method => Some(head.method_name()),
            Early::RequestUri => return text::value(&masked_url(head.target()), escape, out),
            Early::Args => return write(head.query().map(masked_query).as_deref(), escape, out),
            Early::IsArgs => Some(head.query().map_or(&b""[..], |_| b"?")),
            Early::Argument(name) if is_secret(name.as_bytes()) => {
                argument(head, name).map(|secret| if secret.is_empty() { secret } else { MASK })
            }
            Early::Argument(name) => argument(head, name),
            Early::Cookie(name) => cookie(head, name),
            Early::Protocol => Some(match head.version {
                Version::Http10 => &b"HTTP/1.0"[..],
                Version::Http11 => b"HTTP/1.1",
                Version::Http2 => b"HTTP/2.0",
            }),
            Early::Host => return write(host(head.authority()).as_deref(), escape, out),
            Early::Uri => {
                let mut normal = Vec::new();
                let path = target::normal_path(head.path(), &mut normal).unwrap_or(head.path());
                return text::value(path, escape, out);
            }
            _ => return self.write_common(begun, escape, out),
        };
        write(value, escape, out);
    }

    /// A refused request has only its request line and its results.
    #[cold]
    fn write_refused(&self, begun: &Begun<'_>, escape: Escape, out: &mut Vec<u8>) {
        match self {
            Early::Request => {
                let line = begun.refused.split(|&byte| byte == b'\n').next().unwrap_or_default();
                let line = line.strip_suffix(b"\r").unwrap_or(line);
                let line = line.get(..REFUSED_BYTES_MAX).unwrap_or(line);
                text::value(&masked_url(line), escape, out);
            }
            _ => self.write_common(begun, escape, out),
        }
    }

    /// Values that do not depend on the head.
    fn write_common(&self, begun: &Begun<'_>, escape: Escape, out: &mut Vec<u8>) {
        match self {
            Early::RemoteAddr => text::address(begun.peer, out),
            Early::BinaryAddr => match begun.peer.map(|peer| peer.ip()) {
                Some(IpAddr::V4(ip)) => escape.write_escaped(&ip.octets(), out),
                Some(IpAddr::V6(ip)) => escape.write_escaped(&ip.octets(), out),
                None => text::nothing(escape, out),
            },
            Early::RemotePort => text::number(begun.peer.map_or(0, |peer| u64::from(peer.port())), out),
            Early::Pid => text::number(u64::from(std::process::id()), out),
            Early::Scheme => out.extend_from_slice(if begun.tls.is_some() { b"https" } else { b"http" }),
            Early::Https if begun.tls.is_some() => out.extend_from_slice(b"on"),
            Early::Https => {}
            Early::SslProtocol | Early::SslCipher => match (begun.tls.and_then(|tls| tls.cipher()), self) {
                (Some((protocol, _)), Early::SslProtocol) => out.extend_from_slice(protocol.as_bytes()),
                (Some((_, cipher)), _) => out.extend_from_slice(cipher.as_bytes()),
                (None, _) => text::nothing(escape, out),
            },
            Early::RequestId if begun.number != 0 => {
                write_request_id(begun.head.and_then(sent_request_id), begun.number, out);
            }
            Early::IsArgs => {}
            _ => text::nothing(escape, out),
        }
    }
}

/// Bytes that are logged of a refused request.
const REFUSED_BYTES_MAX: usize = 1 << 10;

#[inline]
fn write(value: Option<&[u8]>, escape: Escape, out: &mut Vec<u8>) {
    match value {
        Some(value) => text::value(value, escape, out),
        None => text::nothing(escape, out),
    }
}

/// The user name of basic authentication, like nginx: without checking the password.
#[cold]
fn user(credentials: &[u8]) -> Option<Vec<u8>> {
    let (scheme, token) = credentials.split_at_checked(6)?;
    if !scheme.eq_ignore_ascii_case(b"basic ") {
        return None;
    }
    let mut decoded = base64(token.trim_ascii());
    let end = decoded.iter().position(|&byte| byte == b':').filter(|end| *end > 0)?;
    decoded.truncate(end);
    Some(decoded)
}

/// Decodes the valid start of a base64 text.
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
fn host(authority: &[u8]) -> Option<Vec<u8>> {
    let end = match authority.first() {
        Some(b'[') => authority.iter().position(|&byte| byte == b']').map(|at| at + 1),
        _ => authority.iter().position(|&byte| byte == b':'),
    };
    let host = authority.get(..end.unwrap_or(authority.len())).unwrap_or(authority);
    (!host.is_empty()).then(|| host.to_ascii_lowercase())
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

/// The input for late values.
pub(super) struct About<'a> {
    pub(super) ended: &'a Ended,
    pub(super) upstream: Option<&'a Upstream>,
    /// What the service has noted.
    pub(super) texts: Option<&'a LoggedTexts>,
    pub(super) clock: &'a Clock,
}

impl About<'_> {
    fn body(&self) -> Option<&[u8]> {
        self.texts?.body.as_deref()
    }

    /// Adds the value of a variable of the service.
    pub(super) fn write_named(&self, name: &str, escape: Escape, out: &mut Vec<u8>) {
        let mut named = self.texts.into_iter().flat_map(|texts| &texts.named);
        let value = named.find(|(known, _)| **known == *name).map(|(_, value)| &value[..]);
        write(value, escape, out);
    }
}

impl Late {
    /// Adds the value of a request.
    #[inline]
    pub(super) fn write(self, about: &About<'_>, escape: Escape, out: &mut Vec<u8>) {
        let ended = about.ended;
        match self {
            Late::Status => text::status(ended.status.map_or(0, |status| status.code()), escape, out),
            Late::BodyBytesSent => {
                text::number(ended.sent_bytes.saturating_sub(u64::from(ended.sent_head_bytes)), out);
            }
            Late::TimeLocal => about.clock.local.write(out),
            _ => self.write_other(about, escape, out),
        }
    }

    /// Values that few formats use. If this were inlined, the digits of all of them would be computed for each line.
    #[inline(never)]
    fn write_other(self, about: &About<'_>, escape: Escape, out: &mut Vec<u8>) {
        let ended = about.ended;
        match self {
            Late::BytesSent => text::number(ended.sent_bytes, out),
            Late::RequestLength => text::number(ended.received_bytes, out),
            Late::RequestTime => text::seconds(ended.ended_ns.saturating_sub(ended.began_ns), out),
            Late::Msec => text::seconds(ended.unix_ns, out),
            Late::TimeIso => about.clock.iso.write(out),
            Late::TimeIsoMs => text::iso_milliseconds(&about.clock.iso, ended.unix_ns, out),
            Late::TimeClock => text::clock_milliseconds(&about.clock.iso, ended.unix_ns, out),
            Late::RequestTimeUs => text::number(ended.ended_ns.saturating_sub(ended.began_ns) / 1000, out),
            Late::Duration => text::duration(ended.ended_ns.saturating_sub(ended.began_ns), out),
            Late::StatusColour => text::coloured_status(ended.status.map_or(0, |status| status.code()), out),
            Late::CacheStatus => match Notes::cache_name(ended.note) {
                Some(name) => out.extend_from_slice(name.as_bytes()),
                None => text::nothing(escape, out),
            },
            Late::Completion if ended.outcome == Outcome::Sent => out.extend_from_slice(b"OK"),
            Late::Completion => {}
            Late::Outcome => out.extend_from_slice(ended.outcome.name().as_bytes()),
            Late::RequestBody => write(about.body().map(masked_form).as_deref(), escape, out),
            _ => self.write_upstream(about.upstream, escape, out),
        }
    }

    pub(super) fn is_of_upstream(self) -> bool {
        matches!(
            self,
            Late::UpstreamAddr
                | Late::UpstreamStatus
                | Late::UpstreamConnectTime
                | Late::UpstreamHeaderTime
                | Late::UpstreamResponseTime
        )
    }

    /// What was noted of an upstream: all servers that were tried, separated by commas.
    fn write_upstream(self, upstream: Option<&Upstream>, escape: Escape, out: &mut Vec<u8>) {
        let Some(upstream) = upstream else {
            return text::nothing(escape, out);
        };
        for (at, attempt) in upstream.attempts.iter().enumerate() {
            if at > 0 {
                out.extend_from_slice(b", ");
            }
            self.write_attempt(attempt, escape, out);
        }
    }

    fn write_attempt(self, attempt: &Attempt, escape: Escape, out: &mut Vec<u8>) {
        let time = match self {
            Late::UpstreamAddr => return text::value(attempt.address.as_bytes(), escape, out),
            Late::UpstreamStatus if attempt.status == 0 => None,
            Late::UpstreamStatus => return text::status(attempt.status, escape, out),
            Late::UpstreamConnectTime => attempt.connect_ns,
            Late::UpstreamHeaderTime => attempt.head_ns,
            _ => attempt.response_ns,
        };
        match time {
            Some(ns) => text::seconds(ns, out),
            // Also in JSON: each attempt keeps its position.
            None => out.extend_from_slice(b"-"),
        }
    }
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
        for (authority, expected) in [("Example.ORG:8080", "example.org"), ("[::1]:80", "[::1]")] {
            assert_eq!(host(authority.as_bytes()).unwrap(), expected.as_bytes());
        }
        assert_eq!(base64(b"dXNlcjpwYXNz"), b"user:pass");
        assert_eq!(base64(b"dTo="), b"u:");
        assert_eq!((distance("", "ab"), distance("status", "statos"), distance("a", "")), (2, 1, 1));
    }
}
