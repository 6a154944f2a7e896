//! Renders templates for a request.

use flatout_engine::Request;
use flatout_engine::tls::PeerCertificate;
use flatout_expression::Regex;
use flatout_wire::Head;

use super::facts::{Noted, Uses};
use super::fault::{Fault, Place};
use super::limit_status::LimitStatuses;
use super::maps::{TableCounts, Tables};
use super::plan::{Piece, Template, Variable};
pub(crate) use super::values::escape_unsafe;
use flatout_gateway::Client;

/// Groups of an expression that templates can use.
const GROUPS_MAX: usize = 32;

/// A template whose variables have all been resolved.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Text(Vec<Piece>);

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
    /// The number of the connection's listener, and the addresses of all.
    pub(crate) listener: (u16, &'a [(u16, std::net::SocketAddr)]),
    pub(crate) user: &'a [u8],
    /// Fields of the auth service's response.
    pub(crate) auth_fields: &'a [(String, Vec<u8>)],
    /// What limits have decided, for rules of responses.
    pub(crate) limits: LimitStatuses,
    /// The request's body, for rules of responses.
    pub(crate) body: &'a [u8],
    pub(crate) certificate: Option<&'a PeerCertificate>,
    pub(crate) captured: &'a Captures,
    pub(crate) tables: &'a Tables,
    pub(crate) noted: &'a Noted,
    /// `None`: its connection is not known.
    pub(crate) request: Option<&'a Request<'a>>,
    pub(crate) site_name: &'a str,
}

/// How paths are written in a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Paths {
    /// As they are.
    Decoded,
    /// Percent-encoded, as in a URI. Behind a `?` of the text itself, as in `Query`.
    Encoded,
    /// Percent-encoded in the query of a URI.
    Query,
}

impl Text {
    /// # Errors
    /// An unknown group, map or variable, or a variable that only rules of responses know.
    pub(crate) fn new(
        template: &Template,
        expression: Option<&Regex>,
        counts: TableCounts,
        place: Place,
    ) -> Result<Text, Fault> {
        let text = Text::of_response(template, expression, counts, place)?;
        if text.variables().any(Variable::is_of_response) {
            return Err(
                place.fault("a variable of the response is used here; only response-header has those")
            );
        }
        Ok(text)
    }

    /// The same for a rule of responses, which may also use what is known of them.
    ///
    /// # Errors
    /// An unknown group, map or variable.
    pub(crate) fn of_response(
        template: &Template,
        expression: Option<&Regex>,
        counts: TableCounts,
        place: Place,
    ) -> Result<Text, Fault> {
        let resolve = |piece: &Piece| match piece {
            Piece::Variable(Variable::NamedCapture(name)) => {
                let mut names = expression.map(Regex::capture_names).into_iter().flatten();
                let at = names.position(|this| this == Some(name));
                at.map(|at| Piece::Variable(Variable::Capture(at)))
                    .ok_or_else(|| place.fault(format!("the expression has no group named `{name}`")))
            }
            Piece::Variable(Variable::Map(map) | Variable::ResponseMap(map)) if *map >= counts.maps => {
                Err(place.fault(format!("no map {map}, of {}", counts.maps)))
            }
            Piece::Variable(Variable::Set(set)) if *set >= counts.sets => {
                Err(place.fault(format!("no variable {set}, of {}", counts.sets)))
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
        let uses = |variable: &Variable| {
            matches!(variable, Variable::Capture(_) | Variable::Map(_) | Variable::Set(_))
        };
        self.variables().any(uses)
    }

    /// Whether it has what is known of the attempts at an upstream's servers. A map may have it.
    pub(crate) fn uses_attempts(&self) -> bool {
        self.variables().any(|variable| {
            matches!(variable, Variable::Upstream(_) | Variable::UpstreamStatus | Variable::ResponseMap(_))
        })
    }

    /// Whether it has nothing but variables of the file, which always have a value.
    pub(crate) fn is_of_tables(&self) -> bool {
        let is_of_table =
            |it: &Variable| matches!(it, Variable::Map(_) | Variable::ResponseMap(_) | Variable::Set(_));
        self.variables().all(is_of_table)
    }

    /// Its variables.
    pub(crate) fn variables(&self) -> impl Iterator<Item = &Variable> {
        self.0.iter().filter_map(|piece| match piece {
            Piece::Variable(variable) => Some(variable),
            Piece::Text(_) => None,
        })
    }

    pub(crate) fn pieces(&self) -> &[Piece] {
        &self.0
    }

    /// What it depends on.
    pub(crate) fn uses(&self, tables: &Tables) -> Uses {
        self.variables().fold(Uses::NOTHING, |all, variable| all.and(Uses::of(variable, tables)))
    }

    pub(crate) fn render(&self, view: &View<'_>, paths: Paths, out: &mut Vec<u8>) {
        self.render_at(view, paths, 0, out);
    }

    pub(super) fn render_at(&self, view: &View<'_>, mut paths: Paths, depth: usize, out: &mut Vec<u8>) {
        for piece in &self.0 {
            match piece {
                Piece::Text(text) => {
                    out.extend_from_slice(text.as_bytes());
                    if paths == Paths::Encoded && text.contains('?') {
                        paths = Paths::Query;
                    }
                }
                Piece::Variable(variable) => view.write(variable, paths, depth, out),
            }
        }
    }
}

impl Captures {
    /// What a group matched.
    pub(super) fn group(&self, at: usize) -> &[u8] {
        self.0.get(at).map(Vec::as_slice).unwrap_or_default()
    }

    /// Matches an expression; `None` if it does not match.
    pub(crate) fn of(expression: &Regex, text: &[u8]) -> Option<Captures> {
        let captures = expression.captures(text)?;
        let group = |group: Option<regex::bytes::Match<'_>>| {
            group.map_or(Vec::new(), |group| group.as_bytes().to_vec())
        };
        Some(Captures(captures.iter().take(GROUPS_MAX).map(group).collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan::{Map, MapKey};
    use super::*;
    use flatout_wire::head::{HeadLimits, parse};

    fn rendered(template: &str, paths: Paths) -> String {
        let maps = [Map {
            name: "backend".to_owned(),
            source: Template::parse("$http_x_kind", |_| None).unwrap(),
            cases: vec![(MapKey::Exact("Blue".to_owned()), Template::text("b"))],
            default: Template::text("other"),
            file: None,
            proxies: None,
        }];
        let known = |name: &str| match name {
            "backend" => Some(Variable::Map(0)),
            "rest" => Some(Variable::NamedCapture("rest".to_owned())),
            _ => None,
        };
        let expression = Regex::new("^/(a)/(?P<rest>.*)$", false).unwrap();
        let tables = Tables::new(&maps, &[], &[]).unwrap();
        let template = Template::parse(template, known).unwrap();
        let text =
            Text::new(&template, Some(&expression), TableCounts { maps: 1, sets: 0 }, Place::Plan).unwrap();
        let request = b"GET http://Example.ORG:81/a/b%20c?x=1&Y=2&x=3 HTTP/1.1\r\nHost: example.org:81\r\n\
            X-Kind: BLUE\r\nX-Twice: one\r\nX-Twice: two\r\nX-Forwarded-For: 198.51.100.7\r\nCookie: a=1; b=2\r\nCookie: c=3\r\n\r\n";
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
            listener: (2, &[(1, ([0, 0, 0, 0], 80).into()), (2, ([192, 0, 2, 9], 8080).into())]),
            user: b"ann",
            auth_fields: &[("X-Groups".to_owned(), b"staff".to_vec())],
            limits: LimitStatuses::default(),
            body: b"",
            certificate: None,
            captured: &Captures::of(&expression, path).unwrap(),
            tables: &tables,
            noted: &Noted::default(),
            request: None,
            site_name: "a",
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
            ("$auth_http_x_groups$auth_http_x_other", "staff"),
            ("$request_method$server_port $server_addr", "GET8080 192.0.2.9"),
            ("$http_cookie", "a=1; b=2; c=3"),
            ("$http_x_twice", "one, two"),
            ("$proxy_add_x_forwarded_for", "198.51.100.7, 192.0.2.1"),
        ] {
            assert_eq!(rendered(template, Paths::Decoded), expected, "{template}");
        }
        assert_eq!(rendered("$uri $rest", Paths::Encoded), "/a/b%20c b%20c");
    }

    #[test]
    fn unknown_captures_and_maps_are_refused() {
        let named = Template(vec![Piece::Variable(Variable::NamedCapture("x".to_owned()))]);
        assert!(Text::new(&named, None, TableCounts::default(), Place::Plan).is_err());
        let map = Template(vec![Piece::Variable(Variable::Map(0))]);
        assert!(Text::new(&map, None, TableCounts::default(), Place::Plan).is_err());
        // A map that uses itself would recurse for ever.
        let of_itself = Map { name: "m".to_owned(), source: map, ..Map::default() };
        assert_eq!(Tables::new(&[of_itself], &[], &[]).unwrap_err().place, Place::Map(0));
    }
}
