//! Changes of what upstreams say about themselves: the addresses in `Location` and `Refresh`, and the attributes of cookies.
//!
//! Texts that depend on the request are rendered when it begins, in the order of the rules; groups of a rule's own expression are
//! filled in when the response is there.

use std::borrow::Cow;

use flatout_engine::Response;
use flatout_expression::Regex;
use flatout_wire::field::is_field_value;
use regex::bytes::Captures as Found;

use super::fault::{Fault, Place};
use super::maps::TableCounts;
use super::plan::{CookieFlag, CookieRule, LocationRule, Matcher, Piece, Template, Variable};
use super::render::{Paths, Text, View};

/// Cookies of one response that are changed.
const COOKIES_MAX: usize = 64;

/// The rules of a route.
#[derive(Debug, Clone, Default)]
pub(crate) struct UpstreamFields {
    locations: Vec<Replacing>,
    /// What is in front of a path that has become `Location`.
    origin: Option<AnswerText>,
    cookies: Vec<CookieChange>,
}

/// What is looked for, and what replaces it.
#[derive(Debug, Clone)]
struct Replacing {
    from: Sought,
    to: AnswerText,
}

#[derive(Debug, Clone)]
enum CookieChange {
    Domain(Replacing),
    Path(Replacing),
    Flags { name: Sought, flags: Vec<CookieFlag> },
}

#[derive(Debug, Clone)]
enum Sought {
    Text(AnswerText),
    Pattern(Regex),
}

/// A text, apart from the groups of its rule's expression.
#[derive(Debug, Clone)]
enum AnswerText {
    /// The same for all requests.
    Fixed(Vec<AnswerPart>),
    OfRequest(Text, OwnGroups),
}

/// Whether `$1` is a group of the rule's own expression, or of the route's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OwnGroups {
    Yes,
    No,
}

/// A part of a text that is ready for a response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum AnswerPart {
    Bytes(Vec<u8>),
    Group(usize),
}

/// The texts of one request that depend on it, in the order of the rules.
pub(crate) type RenderedValues = Vec<Vec<AnswerPart>>;

impl UpstreamFields {
    /// # Errors
    /// An invalid expression, or a text with a variable that is unknown here.
    pub(crate) fn new(
        (locations, origin): (&[LocationRule], Option<&Template>),
        cookies: &[CookieRule],
        expression: Option<&Regex>,
        counts: TableCounts,
        place: Place,
    ) -> Result<UpstreamFields, Fault> {
        let text =
            |template: &Template, of: Option<&Regex>| Text::new(template, of.or(expression), counts, place);
        let from = |matcher: &Matcher| match matcher {
            Matcher::Text(template) => {
                Ok(Sought::Text(AnswerText::new(text(template, None)?, OwnGroups::No)))
            }
            Matcher::Pattern { pattern, ignore_case } => {
                Ok(Sought::Pattern(super::pattern::expression(pattern, *ignore_case, place)?))
            }
        };
        let replacing = |matcher: &Matcher, to: &Template| {
            let from = from(matcher)?;
            let to = match &from {
                Sought::Text(_) => AnswerText::new(text(to, None)?, OwnGroups::No),
                Sought::Pattern(regex) => AnswerText::new(text(to, Some(regex))?, OwnGroups::Yes),
            };
            Ok(Replacing { from, to })
        };
        let cookie = |rule: &CookieRule| {
            Ok(match rule {
                CookieRule::Domain { from, to } => CookieChange::Domain(replacing(from, to)?),
                CookieRule::Path { from, to } => CookieChange::Path(replacing(from, to)?),
                CookieRule::Flags { name, flags } => {
                    CookieChange::Flags { name: from(name)?, flags: flags.clone() }
                }
            })
        };
        Ok(UpstreamFields {
            locations: locations
                .iter()
                .map(|rule| replacing(&rule.from, &rule.to))
                .collect::<Result<_, Fault>>()?,
            origin: origin
                .filter(|_| !locations.is_empty())
                .map(|origin| Ok(AnswerText::new(text(origin, None)?, OwnGroups::No)))
                .transpose()?,
            cookies: cookies.iter().map(cookie).collect::<Result<_, Fault>>()?,
        })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.locations.is_empty() && self.cookies.is_empty()
    }

    /// All texts, in the order of the rules.
    fn values(&self) -> impl Iterator<Item = &AnswerText> {
        let locations = self.locations.iter().flat_map(Replacing::values);
        locations.chain(&self.origin).chain(self.cookies.iter().flat_map(CookieChange::values))
    }

    /// Whether no text depends on the request.
    pub(crate) fn is_constant(&self) -> bool {
        self.values().all(|value| matches!(value, AnswerText::Fixed(_)))
    }

    pub(crate) fn uses_captures(&self) -> bool {
        self.values().any(|value| match value {
            AnswerText::Fixed(_) => false,
            AnswerText::OfRequest(text, own) => *own == OwnGroups::No && text.uses_captures(),
        })
    }

    /// The texts that depend on a request.
    pub(crate) fn rendered(&self, view: &View<'_>) -> RenderedValues {
        self.values()
            .filter_map(|value| match value {
                AnswerText::Fixed(_) => None,
                AnswerText::OfRequest(text, own) => Some(rendered(text, *own, view)),
            })
            .collect()
    }

    /// Changes an upstream's response. `values` are from [`rendered`](UpstreamFields::rendered) for its request.
    pub(crate) fn apply(&self, values: &RenderedValues, response: &mut Response) {
        let mut values = values.iter();
        let mut next = |value: &'_ AnswerText| -> Vec<AnswerPart> {
            match value {
                AnswerText::Fixed(parts) => parts.clone(),
                AnswerText::OfRequest(..) => values.next().cloned().unwrap_or_default(),
            }
        };
        let has_location = response.field("location").is_some() || response.field("refresh").is_some();
        let has_cookie = !self.cookies.is_empty() && response.field("set-cookie").is_some();
        if !has_location && !has_cookie {
            return;
        }
        let locations: Vec<ReadyChange<'_>> = self.locations.iter().map(|it| it.ready(&mut next)).collect();
        let origin = self.origin.as_ref().map(&mut next);
        for name in ["location", "refresh"] {
            let Some(value) = response.field(name).filter(|_| has_location) else { continue };
            let changed = location(&locations, value).map(|value| match &origin {
                Some(origin) if name == "location" && value.starts_with(b"/") => {
                    [&joined(origin, None), value.as_slice()].concat()
                }
                _ => value,
            });
            if let Some(value) = changed.filter(|value| is_field_value(value)) {
                response.remove_header(name);
                response.header(if name == "location" { "Location" } else { "Refresh" }, value);
            }
        }
        if has_cookie {
            let changes: Vec<ReadyCookie<'_>> = self.cookies.iter().map(|it| it.ready(&mut next)).collect();
            let values: Vec<Vec<u8>> = cookies(response).map(<[u8]>::to_vec).collect();
            response.remove_header("set-cookie");
            for (at, value) in values.into_iter().enumerate() {
                let changed = cookie(&changes, &value).filter(|it| at < COOKIES_MAX && is_field_value(it));
                response.header("Set-Cookie", changed.unwrap_or(value));
            }
        }
    }
}

/// A rule with its texts for one response.
struct ReadyChange<'r> {
    from: ReadySought<'r>,
    to: Vec<AnswerPart>,
}

enum ReadySought<'r> {
    Text(Vec<u8>),
    Pattern(&'r Regex),
}

enum ReadyCookie<'r> {
    Domain(ReadyChange<'r>),
    Path(ReadyChange<'r>),
    Flags(ReadySought<'r>, &'r [CookieFlag]),
}

impl Replacing {
    fn values(&self) -> impl Iterator<Item = &AnswerText> {
        self.from.value().into_iter().chain([&self.to])
    }

    fn ready(&self, next: &mut impl FnMut(&AnswerText) -> Vec<AnswerPart>) -> ReadyChange<'_> {
        ReadyChange { from: self.from.ready(next), to: next(&self.to) }
    }
}

impl Sought {
    fn value(&self) -> Option<&AnswerText> {
        match self {
            Sought::Text(value) => Some(value),
            Sought::Pattern(_) => None,
        }
    }

    fn ready(&self, next: &mut impl FnMut(&AnswerText) -> Vec<AnswerPart>) -> ReadySought<'_> {
        match self {
            Sought::Text(value) => ReadySought::Text(joined(&next(value), None).into_owned()),
            Sought::Pattern(regex) => ReadySought::Pattern(regex),
        }
    }
}

impl CookieChange {
    fn values(&self) -> impl Iterator<Item = &AnswerText> {
        let (from, to) = match self {
            CookieChange::Domain(replacing) | CookieChange::Path(replacing) => {
                (replacing.from.value(), Some(&replacing.to))
            }
            CookieChange::Flags { name, .. } => (name.value(), None),
        };
        from.into_iter().chain(to)
    }

    fn ready(&self, next: &mut impl FnMut(&AnswerText) -> Vec<AnswerPart>) -> ReadyCookie<'_> {
        match self {
            CookieChange::Domain(replacing) => ReadyCookie::Domain(replacing.ready(next)),
            CookieChange::Path(replacing) => ReadyCookie::Path(replacing.ready(next)),
            CookieChange::Flags { name, flags } => ReadyCookie::Flags(name.ready(next), flags),
        }
    }
}

impl AnswerText {
    fn new(text: Text, own: OwnGroups) -> AnswerText {
        let is_fixed = text.variables().all(|variable| is_own(variable, own));
        match is_fixed {
            true => AnswerText::Fixed(text.pieces().iter().map(AnswerPart::of_fixed).collect()),
            false => AnswerText::OfRequest(text, own),
        }
    }
}

/// Whether a variable is a group of the rule's own expression.
fn is_own(variable: &Variable, own: OwnGroups) -> bool {
    own == OwnGroups::Yes && matches!(variable, Variable::Capture(_))
}

impl AnswerPart {
    fn of_fixed(piece: &Piece) -> AnswerPart {
        match piece {
            Piece::Variable(Variable::Capture(at)) => AnswerPart::Group(*at),
            Piece::Text(text) => AnswerPart::Bytes(text.clone().into_bytes()),
            Piece::Variable(_) => AnswerPart::Bytes(Vec::new()),
        }
    }
}

fn rendered(text: &Text, own: OwnGroups, view: &View<'_>) -> Vec<AnswerPart> {
    let part = |piece: &Piece| match piece {
        Piece::Variable(variable) if !is_own(variable, own) => {
            let mut bytes = Vec::new();
            view.write(variable, Paths::Decoded, 0, &mut bytes);
            AnswerPart::Bytes(bytes)
        }
        piece => AnswerPart::of_fixed(piece),
    };
    text.pieces().iter().map(part).collect()
}

/// The whole text.
fn joined<'p>(parts: &'p [AnswerPart], found: Option<&Found<'_>>) -> Cow<'p, [u8]> {
    if let [AnswerPart::Bytes(only)] = parts {
        return Cow::Borrowed(only);
    }
    let mut whole = Vec::new();
    for part in parts {
        match part {
            AnswerPart::Bytes(bytes) => whole.extend_from_slice(bytes),
            AnswerPart::Group(at) => {
                let group = found.and_then(|found| found.get(*at));
                whole.extend_from_slice(group.map_or(&b""[..], |group| group.as_bytes()));
            }
        }
    }
    Cow::Owned(whole)
}

impl ReadyChange<'_> {
    /// `value` with its beginning replaced, or all of it if it is found by an expression.
    fn with_start_replaced(&self, value: &[u8]) -> Option<Vec<u8>> {
        match &self.from {
            ReadySought::Text(from) => {
                Some([&joined(&self.to, None), value.strip_prefix(from.as_slice())?].concat())
            }
            ReadySought::Pattern(regex) => {
                regex.captures(value).map(|found| joined(&self.to, Some(&found)).into_owned())
            }
        }
    }

    /// What replaces `value`, if that is looked for, whatever its case.
    fn replacing_all(&self, value: &[u8]) -> Option<Vec<u8>> {
        match &self.from {
            ReadySought::Text(from) => {
                let from = from.strip_prefix(b".").unwrap_or(from);
                value.eq_ignore_ascii_case(from).then(|| joined(&self.to, None).into_owned())
            }
            ReadySought::Pattern(_) => self.with_start_replaced(value),
        }
    }
}

impl ReadySought<'_> {
    fn is_name(&self, name: &[u8]) -> bool {
        match self {
            ReadySought::Text(text) => text == b"*" || text == name,
            ReadySought::Pattern(regex) => regex.is_match(name),
        }
    }
}

/// The value as the first rule that fits changes it; in `Refresh` the URL is behind `url=`.
fn location(rules: &[ReadyChange<'_>], value: &[u8]) -> Option<Vec<u8>> {
    let lower = value.to_ascii_lowercase();
    let start = lower.windows(4).position(|part| part == b"url=").map_or(0, |at| at + 4);
    let (before, url) = value.split_at_checked(start)?;
    let changed = rules.iter().find_map(|rule| rule.with_start_replaced(url))?;
    Some([before, &changed].concat())
}

/// The cookie as the rules change it; `None` if none fits.
fn cookie(changes: &[ReadyCookie<'_>], value: &[u8]) -> Option<Vec<u8>> {
    let mut parts: Vec<Vec<u8>> =
        value.split(|&byte| byte == b';').map(|part| part.trim_ascii().to_vec()).collect();
    // As many rules as there are for an attribute: the first that fits changes it.
    let (mut has_domain, mut has_path, mut has_flags) = (false, false, false);
    for change in changes {
        match change {
            ReadyCookie::Domain(rule) if !has_domain => {
                has_domain = replace(&mut parts, "domain", |domain| {
                    // A dot at its beginning means nothing, and stays.
                    let (dot, name) =
                        domain.strip_prefix(b".").map_or((&b""[..], domain), |name| (b".", name));
                    let changed = rule.replacing_all(name)?;
                    Some(if changed.is_empty() { changed } else { [dot, &changed].concat() })
                });
            }
            ReadyCookie::Path(rule) if !has_path => {
                has_path = replace(&mut parts, "path", |path| rule.with_start_replaced(path));
            }
            ReadyCookie::Domain(_) | ReadyCookie::Path(_) => {}
            ReadyCookie::Flags(name, flags) => {
                let is_named = parts.first().is_some_and(|pair| {
                    let end = pair.iter().position(|&byte| byte == b'=').unwrap_or(pair.len());
                    pair.get(..end).is_some_and(|given| name.is_name(given))
                });
                if is_named {
                    flags.iter().for_each(|flag| set_flag(&mut parts, *flag));
                    has_flags = true;
                }
            }
        }
    }
    (has_domain || has_path || has_flags).then(|| parts.join(&b"; "[..]))
}

fn cookies(response: &Response) -> impl Iterator<Item = &[u8]> {
    response.fields().filter(|(name, _)| name.eq_ignore_ascii_case(b"set-cookie")).map(|(_, value)| value)
}

/// The name of an attribute.
fn attribute(part: &[u8]) -> &[u8] {
    let end = part.iter().position(|&byte| byte == b'=').unwrap_or(part.len());
    part.get(..end).unwrap_or_default().trim_ascii()
}

/// Replaces the value of an attribute, if `change` returns one; an empty one removes it. Returns whether it did.
fn replace(parts: &mut Vec<Vec<u8>>, name: &str, change: impl Fn(&[u8]) -> Option<Vec<u8>>) -> bool {
    let Some(at) =
        parts.iter().skip(1).position(|part| attribute(part).eq_ignore_ascii_case(name.as_bytes()))
    else {
        return false;
    };
    let Some(part) = parts.get_mut(at + 1) else { return false };
    let Some(equals) = part.iter().position(|&byte| byte == b'=') else { return false };
    let (before, value) = part.split_at(equals + 1);
    // It would end the attribute.
    let changed = change(value.trim_ascii()).filter(|value| !value.contains(&b';'));
    match changed {
        Some(value) if value.is_empty() => drop(parts.remove(at + 1)),
        Some(value) => *part = [before, &value].concat(),
        None => return false,
    }
    true
}

fn set_flag(parts: &mut Vec<Vec<u8>>, flag: CookieFlag) {
    let (name, text) = match flag {
        CookieFlag::Secure(_) => ("secure", "Secure"),
        CookieFlag::HttpOnly(_) => ("httponly", "HttpOnly"),
        CookieFlag::SameSite(value) => ("samesite", value.map_or("", |site| site.text())),
    };
    let mut at = 0;
    parts.retain(|part| {
        at += 1;
        at == 1 || !attribute(part).eq_ignore_ascii_case(name.as_bytes())
    });
    let is_set = match flag {
        CookieFlag::Secure(is_set) | CookieFlag::HttpOnly(is_set) => is_set,
        CookieFlag::SameSite(value) => value.is_some(),
    };
    if is_set {
        parts.push(text.as_bytes().to_vec());
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan::SameSite;
    use super::*;

    fn text(text: &str) -> Template {
        Template::parse(text, |_| None).unwrap()
    }

    fn plain(of: &str) -> Matcher {
        Matcher::Text(text(of))
    }

    fn pattern(pattern: &str) -> Matcher {
        Matcher::Pattern { pattern: pattern.to_owned(), ignore_case: false }
    }

    fn rules(locations: &[LocationRule], cookies: &[CookieRule]) -> UpstreamFields {
        UpstreamFields::new((locations, None), cookies, None, TableCounts::default(), Place::Plan).unwrap()
    }

    fn changed(rules: &UpstreamFields, name: &str, value: &str) -> String {
        let mut response = Response::new();
        response.header(name, value);
        rules.apply(&Vec::new(), &mut response);
        String::from_utf8(response.field(name).unwrap().to_vec()).unwrap()
    }

    #[test]
    fn beginnings_of_locations_are_replaced() {
        let rule = |from: Matcher, to: &str| LocationRule { from, to: text(to) };
        let rules = rules(
            &[
                rule(plain("http://app:8000/"), "/"),
                rule(plain("http://app"), "https://a.example"),
                rule(pattern("^http://([a-z]+)\\.internal(/.*)$"), "https://$1.example$2"),
            ],
            &[],
        );
        assert!(rules.is_constant());
        for (name, value, expected) in [
            ("location", "http://app:8000/login?x=1", "/login?x=1"),
            ("location", "http://app/x", "https://a.example/x"),
            ("location", "https://other/", "https://other/"),
            ("location", "http://b.internal/x?y", "https://b.example/x?y"),
            ("refresh", "5; URL=http://app/x", "5; URL=https://a.example/x"),
        ] {
            assert_eq!(changed(&rules, name, value), expected);
        }
    }

    #[test]
    fn attributes_of_cookies_are_changed() {
        let rules = rules(
            &[],
            &[
                CookieRule::Domain { from: plain("app.internal"), to: text("a.example") },
                CookieRule::Domain { from: pattern("^(.+)\\.internal$"), to: text("$1.example") },
                CookieRule::Path { from: plain("/app/"), to: text("/") },
                CookieRule::Path { from: pattern("^/v[0-9]+/(.*)$"), to: text("/$1") },
                CookieRule::Flags {
                    name: plain("id"),
                    flags: vec![
                        CookieFlag::Secure(true),
                        CookieFlag::HttpOnly(false),
                        CookieFlag::SameSite(Some(SameSite::Lax)),
                    ],
                },
                CookieRule::Flags { name: pattern("^session"), flags: vec![CookieFlag::HttpOnly(true)] },
            ],
        );
        for (value, expected) in [
            ("id=1; Domain=.App.internal; HttpOnly", "id=1; Domain=.a.example; Secure; SameSite=Lax"),
            ("domain=x; path=/app/y", "domain=x; path=/y"),
            ("a=b; path=/v12/v1/", "a=b; path=/v1/"),
            ("a=b; Domain=x.internal", "a=b; Domain=x.example"),
            ("other=1; Path=/z; domain=b", "other=1; Path=/z; domain=b"),
            ("session-2=x", "session-2=x; HttpOnly"),
            ("a=b;Secure ; x=y;", "a=b;Secure ; x=y;"),
        ] {
            assert_eq!(changed(&rules, "set-cookie", value), expected);
        }
    }

    #[test]
    fn a_value_that_would_be_invalid_is_not_used() {
        let rule = CookieRule::Path { from: pattern("(.*)"), to: text("/\u{1}$1") };
        assert_eq!(changed(&rules(&[], &[rule]), "set-cookie", "a=b; path=/x"), "a=b; path=/x");
    }

    #[test]
    fn an_invalid_expression_is_refused() {
        let rule = LocationRule { from: pattern("("), to: text("") };
        assert!(
            UpstreamFields::new((&[rule], None), &[], None, TableCounts::default(), Place::Plan).is_err()
        );
    }

    #[test]
    fn a_path_that_becomes_location_gets_the_origin() {
        let rules = [LocationRule { from: Matcher::Text(text("http://app/")), to: text("/a/") }];
        let origin = text("https://a.test");
        let rules =
            UpstreamFields::new((&rules, Some(&origin)), &[], None, TableCounts::default(), Place::Plan)
                .unwrap();
        for (name, value, expected) in [
            ("Location", "http://app/b", "https://a.test/a/b"),
            ("Location", "/b", "/b"),
            ("Refresh", "0; url=http://app/b", "0; url=/a/b"),
        ] {
            assert_eq!(changed(&rules, name, value), expected);
        }
    }
}
