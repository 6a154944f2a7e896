//! Renders templates for a request.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use flatout_engine::bug;
use flatout_wire::Head;
use flatout_wire::target::encode_path;
use regex::bytes::Regex;

use super::fault::{Fault, Place};
use super::hosts::name_of;
use super::plan::{Map, OfCertificate, Piece, Template, Variable};
use flatout_gateway::Client;

/// Groups of an expression that templates can use.
const GROUPS_MAX: usize = 32;

/// Maps that one map may use in turn.
const MAPS_DEEP_MAX: usize = 8;

/// A template whose variables have all been resolved.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Text(Vec<Piece>);

/// The maps, with lower-case keys.
#[derive(Debug, Clone, Default)]
pub(crate) struct Maps(Vec<MapTable>);

#[derive(Debug, Clone)]
struct MapTable {
    source: Text,
    cases: std::collections::HashMap<Vec<u8>, String, foldhash::fast::RandomState>,
    default: String,
}

/// What an expression matched.
#[derive(Debug, Clone, Default)]
pub(crate) struct Captures(Vec<Vec<u8>>);

/// The parts of a request that templates use.
#[derive(Clone, Copy)]
pub(crate) struct View<'a> {
    pub(crate) head: &'a Head<'a>,
    pub(crate) path: &'a [u8],
    pub(crate) query: Option<&'a [u8]>,
    pub(crate) client: Client,
    pub(crate) peer: Option<std::net::IpAddr>,
    pub(crate) user: &'a [u8],
    /// The client's verified certificate (DER).
    pub(crate) certificate: Option<&'a [u8]>,
    pub(crate) captured: &'a Captures,
    pub(crate) maps: &'a Maps,
}

/// How paths are written in a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Paths {
    /// As they are.
    Decoded,
    /// Percent-encoded, as in a URI.
    Encoded,
}

impl Text {
    /// # Errors
    /// An unknown group or map.
    pub(crate) fn new(
        template: &Template,
        expression: Option<&Regex>,
        maps_count: usize,
        place: Place,
    ) -> Result<Text, Fault> {
        let resolve = |piece: &Piece| match piece {
            Piece::Variable(Variable::NamedCapture(name)) => {
                let mut names = expression.map(Regex::capture_names).into_iter().flatten();
                let at = names.position(|this| this == Some(name));
                at.map(|at| Piece::Variable(Variable::Capture(at)))
                    .ok_or_else(|| place.fault(format!("the expression has no group named `{name}`")))
            }
            Piece::Variable(Variable::Map(map)) if *map >= maps_count => {
                Err(place.fault(format!("no map {map}, of {maps_count}")))
            }
            piece => Ok(piece.clone()),
        };
        Ok(Text(template.0.iter().map(resolve).collect::<Result<_, Fault>>()?))
    }

    /// The text, if it is the same for every request.
    pub(crate) fn constant(&self) -> Option<&str> {
        match self.0.as_slice() {
            [] => Some(""),
            [Piece::Text(text)] => Some(text),
            _ => None,
        }
    }

    /// Whether its literal text starts with this.
    pub(crate) fn begins_with(&self, text: &str) -> bool {
        matches!(self.0.first(), Some(Piece::Text(first)) if first.starts_with(text))
    }

    /// Whether it uses captures.
    pub(crate) fn uses_captures(&self) -> bool {
        self.0.iter().any(|piece| matches!(piece, Piece::Variable(Variable::Capture(_) | Variable::Map(_))))
    }

    pub(crate) fn render(&self, view: &View<'_>, paths: Paths, out: &mut Vec<u8>) {
        self.render_at(view, paths, 0, out);
    }

    fn render_at(&self, view: &View<'_>, paths: Paths, depth: usize, out: &mut Vec<u8>) {
        for piece in &self.0 {
            match piece {
                Piece::Text(text) => out.extend_from_slice(text.as_bytes()),
                Piece::Variable(variable) => view.write(variable, paths, depth, out),
            }
        }
    }
}

impl Maps {
    /// # Errors
    /// A map uses itself or a later one.
    pub(crate) fn new(maps: &[Map]) -> Result<Maps, Fault> {
        let table = |(at, map): (usize, &Map)| {
            Ok(MapTable {
                source: Text::new(&map.source, None, at, Place::Map(at))?,
                cases: map
                    .cases
                    .iter()
                    .map(|(from, to)| (from.to_ascii_lowercase().into_bytes(), to.clone()))
                    .collect(),
                default: map.default.clone(),
            })
        };
        Ok(Maps(maps.iter().enumerate().map(table).collect::<Result<_, Fault>>()?))
    }
}

impl Captures {
    /// Matches an expression; `None` if it does not match.
    pub(crate) fn of(expression: &Regex, text: &[u8]) -> Option<Captures> {
        let captures = expression.captures(text)?;
        let group = |group: Option<regex::bytes::Match<'_>>| {
            group.map_or(Vec::new(), |group| group.as_bytes().to_vec())
        };
        Some(Captures(captures.iter().take(GROUPS_MAX).map(group).collect()))
    }
}

impl View<'_> {
    fn write(&self, variable: &Variable, paths: Paths, depth: usize, out: &mut Vec<u8>) {
        let head = self.head;
        match variable {
            Variable::Scheme => out.extend_from_slice(if self.client.is_https { b"https" } else { b"http" }),
            Variable::Host => {
                let at = out.len();
                out.extend_from_slice(name_of(head.authority()));
                out.get_mut(at..).unwrap_or_default().make_ascii_lowercase();
            }
            Variable::Authority => out.extend_from_slice(head.authority()),
            Variable::Method => out.extend_from_slice(head.method_name()),
            Variable::Path => write_path(self.path, paths, out),
            Variable::Query => out.extend_from_slice(self.query.unwrap_or_default()),
            Variable::QuestionMark if self.query.is_some_and(|query| !query.is_empty()) => out.push(b'?'),
            Variable::QuestionMark => {}
            Variable::Target => write_target(head, out),
            Variable::Argument(name) => out.extend_from_slice(argument(self.query, name).unwrap_or_default()),
            Variable::Header(name) => out.extend_from_slice(head.field(name).unwrap_or_default()),
            Variable::Cookie(name) => out.extend_from_slice(cookie(head, name).unwrap_or_default()),
            Variable::Client => write_address(self.client.address, out),
            Variable::Peer => write_address(self.peer, out),
            Variable::User => out.extend_from_slice(self.user),
            Variable::Certificate(property) => write_property(*property, self.certificate, out),
            Variable::Capture(at) => {
                write_path(self.captured.0.get(*at).map(Vec::as_slice).unwrap_or_default(), paths, out);
            }
            Variable::NamedCapture(name) => {
                bug!("the group `{name}` was not resolved when its text was made");
            }
            Variable::Map(at) => self.write_mapped(*at, depth, out),
        }
    }

    fn write_mapped(&self, map: usize, depth: usize, out: &mut Vec<u8>) {
        let Some(map) = self.maps.0.get(map).filter(|_| depth < MAPS_DEEP_MAX) else { return };
        let mut source = Vec::new();
        map.source.render_at(self, Paths::Decoded, depth + 1, &mut source);
        source.make_ascii_lowercase();
        let found = map.cases.get(&source).unwrap_or(&map.default);
        out.extend_from_slice(found.as_bytes());
    }
}

/// Path and query as the client sent them, without the scheme and host of an absolute target.
pub(crate) fn write_target(head: &Head<'_>, out: &mut Vec<u8>) {
    out.extend_from_slice(head.path());
    if let Some(query) = head.query() {
        out.push(b'?');
        out.extend_from_slice(query);
    }
}

/// Escapes bytes that a request target must not contain: a variable's value must not end it.
pub(crate) fn escape_unsafe(text: &mut Vec<u8>) {
    let is_unsafe = |byte: &u8| !byte.is_ascii_graphic() || matches!(byte, b'#' | b'"' | b'<' | b'>' | b'\\');
    if !text.iter().any(is_unsafe) {
        return;
    }
    let escape = |byte: u8| if is_unsafe(&byte) { format!("%{byte:02X}").into_bytes() } else { vec![byte] };
    *text = std::mem::take(text).into_iter().flat_map(escape).collect();
}

fn write_path(path: &[u8], paths: Paths, out: &mut Vec<u8>) {
    match paths {
        Paths::Decoded => out.extend_from_slice(path),
        Paths::Encoded => encode_path(path, out),
    }
}

fn write_address(address: Option<std::net::IpAddr>, out: &mut Vec<u8>) {
    use std::io::Write;
    // Writing to memory does not fail.
    let _ = match address {
        Some(address) => write!(out, "{address}"),
        None => write!(out, "unix:"),
    };
}

fn write_property(property: OfCertificate, certificate: Option<&[u8]>, out: &mut Vec<u8>) {
    match (property, certificate) {
        (OfCertificate::Verify, None) => out.extend_from_slice(b"NONE"),
        (_, None) => {}
        // A connection whose certificate cannot be verified is refused in its handshake.
        (OfCertificate::Verify, Some(_)) => out.extend_from_slice(b"SUCCESS"),
        (OfCertificate::Pem, Some(certificate)) => write_escaped_pem(certificate, out),
        (OfCertificate::Property(property), Some(certificate)) => {
            out.extend_from_slice(property.of(certificate).unwrap_or_default().as_bytes());
        }
    }
}

/// Writes a certificate in PEM (RFC 7468), percent-encoded: it has line ends, which no field may have.
fn write_escaped_pem(certificate: &[u8], out: &mut Vec<u8>) {
    let text = BASE64_STANDARD.encode(certificate);
    let lines = text.as_bytes().chunks(64).flat_map(|line| [line, b"\n"]);
    let begin = &b"-----BEGIN CERTIFICATE-----\n"[..];
    for piece in [begin].into_iter().chain(lines).chain([&b"-----END CERTIFICATE-----\n"[..]]) {
        for &byte in piece {
            match byte {
                b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' => out.push(byte),
                _ => out.extend_from_slice(format!("%{byte:02X}").as_bytes()),
            }
        }
    }
}

fn argument<'q>(query: Option<&'q [u8]>, name: &str) -> Option<&'q [u8]> {
    query?.split(|&byte| byte == b'&').find_map(|pair| {
        let at = pair.iter().position(|&byte| byte == b'=')?;
        let (this, value) = pair.split_at(at);
        this.eq_ignore_ascii_case(name.as_bytes()).then(|| value.get(1..).unwrap_or_default())
    })
}

fn cookie<'h>(head: &Head<'h>, name: &str) -> Option<&'h [u8]> {
    let mut pairs = head.field_all("cookie").flat_map(|line| line.split(|&byte| byte == b';'));
    pairs.find_map(|pair| {
        let pair = pair.trim_ascii();
        let value = pair.strip_prefix(name.as_bytes())?.strip_prefix(b"=")?;
        Some(value)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use flatout_wire::head::{HeadLimits, parse};

    fn rendered(template: &str, paths: Paths) -> String {
        let maps = [Map {
            name: "backend".to_owned(),
            source: Template::parse("$http_x_kind", |_| None).unwrap(),
            cases: vec![("Blue".to_owned(), "b".to_owned())],
            default: "other".to_owned(),
        }];
        let known = |name: &str| match name {
            "backend" => Some(Variable::Map(0)),
            "rest" => Some(Variable::NamedCapture("rest".to_owned())),
            _ => None,
        };
        let expression = Regex::new("^/(a)/(?P<rest>.*)$").unwrap();
        let maps = Maps::new(&maps).unwrap();
        let template = Template::parse(template, known).unwrap();
        let text = Text::new(&template, Some(&expression), 1, Place::Plan).unwrap();
        let request = b"GET http://Example.ORG:81/a/b%20c?x=1&Y=2&x=3 HTTP/1.1\r\nHost: example.org:81\r\n\
            X-Kind: BLUE\r\nCookie: a=1; b=2\r\nCookie: c=3\r\n\r\n";
        let mut fields = Vec::new();
        let head = parse(request, &mut fields, &HeadLimits::default()).unwrap().unwrap();
        let path = b"/a/b c";
        let view = View {
            head: &head,
            path,
            query: head.query(),
            client: Client {
                address: Some([192, 0, 2, 1].into()),
                is_https: true,
                is_early: false,
                is_from_proxy: true,
            },
            peer: None,
            user: b"ann",
            certificate: None,
            captured: &Captures::of(&expression, path).unwrap(),
            maps: &maps,
        };
        let mut out = Vec::new();
        text.render(&view, paths, &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn variables_are_filled_from_the_request() {
        for (template, expected) in [
            ("$scheme://$host$request_uri", "https://example.org/a/b%20c?x=1&Y=2&x=3"),
            ("$http_host", "Example.ORG:81"),
            ("$uri$is_args$args", "/a/b c?x=1&Y=2&x=3"),
            ("$arg_x,$arg_y,$arg_z", "1,2,"),
            ("$cookie_b$cookie_c$cookie_d", "23"),
            ("$remote_addr $realip_remote_addr $remote_user", "192.0.2.1 unix: ann"),
            ("$1|$rest|$2|$3", "a|b c|b c|"),
            ("$backend", "b"),
            ("$request_method", "GET"),
        ] {
            assert_eq!(rendered(template, Paths::Decoded), expected, "{template}");
        }
        assert_eq!(rendered("$uri $rest", Paths::Encoded), "/a/b%20c b%20c");
    }

    #[test]
    fn unknown_captures_and_maps_are_refused() {
        let named = Template(vec![Piece::Variable(Variable::NamedCapture("x".to_owned()))]);
        assert!(Text::new(&named, None, 0, Place::Plan).is_err());
        let map = Template(vec![Piece::Variable(Variable::Map(0))]);
        assert!(Text::new(&map, None, 0, Place::Plan).is_err());
        // A map that uses itself would recurse for ever.
        let of_itself = Map { name: "m".to_owned(), source: map, cases: Vec::new(), default: String::new() };
        assert_eq!(Maps::new(&[of_itself]).unwrap_err().place, Place::Map(0));
    }
}
