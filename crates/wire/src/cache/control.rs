//! `Cache-Control`: the directives of requests and of responses (RFC 9111 section 5.2, RFC 5861).

use super::SECONDS_MAX;
use crate::field::{is_token, trim_ows};

/// One directive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Directive<'a> {
    /// Its name, as sent; case is ignored.
    pub name: &'a [u8],
    /// Its argument.
    pub argument: Argument<'a>,
}

/// The argument of a directive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Argument<'a> {
    /// Nothing.
    None,
    /// A token, or a quoted string without its quotes.
    Value(&'a [u8]),
    /// Anything else.
    Bad,
}

/// The directives of one field line. Anything without a name is skipped up to the next comma; an unterminated quoted
/// string takes the rest of the line.
pub fn directives(line: &[u8]) -> impl Iterator<Item = Directive<'_>> {
    let mut rest = line;
    std::iter::from_fn(move || {
        loop {
            let empty = rest.iter().take_while(|byte| matches!(byte, b',' | b' ' | b'\t')).count();
            rest = rest.get(empty..).unwrap_or_default();
            if rest.is_empty() {
                return None;
            }
            let (element, next) = element(rest);
            rest = next;
            if let Some(directive) = directive(element) {
                return Some(directive);
            }
        }
    })
}

/// Splits at the first comma outside of quotes.
fn element(text: &[u8]) -> (&[u8], &[u8]) {
    let (mut is_quoted, mut is_escaped) = (false, false);
    for (at, byte) in text.iter().enumerate() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if is_quoted => is_escaped = true,
            b'"' => is_quoted = !is_quoted,
            b',' if !is_quoted => {
                return (text.get(..at).unwrap_or_default(), text.get(at + 1..).unwrap_or_default());
            }
            _ => {}
        }
    }
    (text, b"")
}

fn directive(element: &[u8]) -> Option<Directive<'_>> {
    let element = trim_ows(element);
    let name_bytes = element.iter().take_while(|&&byte| is_token(&[byte])).count();
    let (name, behind) = element.split_at_checked(name_bytes).filter(|(name, _)| !name.is_empty())?;
    let argument = match behind {
        [] => Argument::None,
        [b'=', b'"', quoted @ ..] => match quoted.iter().position(|&byte| byte == b'"') {
            Some(end) if end + 1 == quoted.len() => Argument::Value(quoted.get(..end).unwrap_or_default()),
            _ => Argument::Bad,
        },
        [b'=', value @ ..] if is_token(value) => Argument::Value(value),
        _ => Argument::Bad,
    };
    Some(Directive { name, argument })
}

impl Directive<'_> {
    /// Whether this is its name; `name` is in lower case.
    pub fn is(&self, name: &str) -> bool {
        self.name.eq_ignore_ascii_case(name.as_bytes())
    }

    /// Its argument in seconds.
    pub fn seconds(&self) -> Option<u32> {
        match self.argument {
            Argument::Value(digits) => seconds(digits),
            Argument::None | Argument::Bad => None,
        }
    }
}

/// Decimal digits, and nothing else.
pub(super) fn seconds(digits: &[u8]) -> Option<u32> {
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let add = |sum: u32, digit: &u8| sum.saturating_mul(10).saturating_add(u32::from(digit - b'0'));
    Some(digits.iter().fold(0, add).min(SECONDS_MAX))
}

/// The directives of a response.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "they are called as the directives are")]
pub struct Control {
    /// Whether there is any directive.
    pub is_said: bool,
    pub no_store: bool,
    pub no_cache: bool,
    pub private: bool,
    pub public: bool,
    pub must_revalidate: bool,
    pub proxy_revalidate: bool,
    pub must_understand: bool,
    pub no_transform: bool,
    /// 0 if it is malformed, or repeated with different values.
    pub max_age: Option<u32>,
    /// As `max_age`.
    pub s_maxage: Option<u32>,
    pub stale_while_revalidate: Option<u32>,
    pub stale_if_error: Option<u32>,
    /// Names of fields that are not to be stored (`no-cache="a"`, `private="b"`), in lower case.
    pub withheld: Vec<Vec<u8>>,
}

impl Control {
    /// The directives in all lines of `Cache-Control`.
    pub fn of<'a>(lines: impl Iterator<Item = &'a [u8]>) -> Control {
        let mut control = Control::default();
        for directive in lines.flat_map(directives) {
            control.note(&directive);
        }
        control
    }

    /// Adds a directive.
    pub(super) fn note(&mut self, directive: &Directive<'_>) {
        self.is_said = true;
        let name = directive.name;
        let is_plain = directive.argument == Argument::None;
        match name.to_ascii_lowercase().as_slice() {
            b"no-store" => self.no_store = true,
            b"no-cache" => self.no_cache |= !self.withholds(directive.argument),
            b"private" => self.private |= !self.withholds(directive.argument),
            b"public" => self.public |= is_plain,
            b"must-revalidate" => self.must_revalidate = true,
            b"proxy-revalidate" => self.proxy_revalidate = true,
            b"must-understand" => self.must_understand |= is_plain,
            b"no-transform" => self.no_transform = true,
            b"max-age" => note_lifetime(&mut self.max_age, directive),
            b"s-maxage" => note_lifetime(&mut self.s_maxage, directive),
            b"stale-while-revalidate" => note_allowance(&mut self.stale_while_revalidate, directive),
            b"stale-if-error" => note_allowance(&mut self.stale_if_error, directive),
            _ => {}
        }
    }

    /// Collects the fields that an argument lists. Returns whether there are any: otherwise the directive applies to
    /// the whole response.
    fn withholds(&mut self, argument: Argument<'_>) -> bool {
        let Argument::Value(list) = argument else { return false };
        let names: Vec<&[u8]> = list.split(|&byte| byte == b',').map(trim_ows).collect();
        if names.iter().any(|name| !is_token(name)) {
            return false;
        }
        self.withheld.extend(names.iter().map(|name| name.to_ascii_lowercase()));
        true
    }
}

/// If two values differ, neither counts: the response is stale at once (RFC 9111 section 4.2.1).
fn note_lifetime(known: &mut Option<u32>, directive: &Directive<'_>) {
    let seconds = directive.seconds().unwrap_or(0);
    *known = match *known {
        Some(known) if known != seconds => Some(0),
        _ => Some(seconds),
    };
}

/// Of two values, the smaller one counts; a malformed one allows nothing.
fn note_allowance(known: &mut Option<u32>, directive: &Directive<'_>) {
    let seconds = directive.seconds().unwrap_or(0);
    *known = Some(known.map_or(seconds, |known| known.min(seconds)));
}

/// The cache directives of a request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "they are called as the directives are")]
pub struct RequestDirectives {
    pub no_cache: bool,
    pub no_store: bool,
    pub only_if_cached: bool,
    /// 0 if it is malformed.
    pub max_age: Option<u32>,
    pub min_fresh: Option<u32>,
    /// Without a number it is [`SECONDS_MAX`].
    pub max_stale: Option<u32>,
    pub stale_if_error: Option<u32>,
}

impl RequestDirectives {
    /// The directives in a request's fields. Costs a pass over the fields; nearly all are skipped by the length of
    /// their names.
    #[inline]
    pub fn of<'a>(fields: impl Iterator<Item = (&'a [u8], &'a [u8])>) -> RequestDirectives {
        let (mut request, mut pragma, mut has_cache_control) = (RequestDirectives::default(), false, false);
        for (name, value) in fields {
            match name.len() {
                13 if name.eq_ignore_ascii_case(b"cache-control") => {
                    has_cache_control = true;
                    directives(value).for_each(|directive| request.note(&directive));
                }
                6 if name.eq_ignore_ascii_case(b"pragma") => {
                    pragma |= directives(value).any(|directive| directive.is("no-cache"));
                }
                _ => {}
            }
        }
        // HTTP/1.0 clients have no other way to ask (RFC 9111 section 5.4).
        request.no_cache |= pragma && !has_cache_control;
        request
    }

    fn note(&mut self, directive: &Directive<'_>) {
        let of = |known: Option<u32>, bad: u32, better: fn(u32, u32) -> u32| {
            let seconds = directive.seconds().unwrap_or(bad);
            Some(known.map_or(seconds, |known| better(known, seconds)))
        };
        match directive.name.to_ascii_lowercase().as_slice() {
            b"no-cache" => self.no_cache = true,
            b"no-store" => self.no_store = true,
            b"only-if-cached" => self.only_if_cached = true,
            b"max-age" => self.max_age = of(self.max_age, 0, u32::min),
            b"min-fresh" => self.min_fresh = of(self.min_fresh, SECONDS_MAX, u32::max),
            b"max-stale" if directive.argument == Argument::None => {
                self.max_stale = Some(self.max_stale.unwrap_or(SECONDS_MAX));
            }
            b"max-stale" => self.max_stale = of(self.max_stale, 0, u32::min),
            b"stale-if-error" => self.stale_if_error = of(self.stale_if_error, 0, u32::min),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn control(lines: &[&str]) -> Control {
        Control::of(lines.iter().map(|line| line.as_bytes()))
    }

    #[test]
    fn directives_are_found_between_malformed_ones() {
        let read = |line: &'static str| -> Vec<(String, Argument<'static>)> {
            let name = |name: &[u8]| String::from_utf8(name.to_vec()).unwrap();
            directives(line.as_bytes()).map(|it| (name(it.name), it.argument)).collect()
        };
        let value = |text: &'static str| Argument::Value(text.as_bytes());
        for (line, expected) in [
            ("max-age=3", vec![("max-age", value("3"))]),
            (
                " , a ,, b=\"c, d\" ,e=\t",
                vec![("a", Argument::None), ("b", value("c, d")), ("e", Argument::Bad)],
            ),
            ("a=\"x\\\",max-age=9\", b", vec![("a", Argument::Bad), ("b", Argument::None)]),
            ("a=\"b, max-age=9", vec![("a", Argument::Bad)]),
            (
                "=3, ;x, a b, c =3, d= 3",
                vec![("a", Argument::Bad), ("c", Argument::Bad), ("d", Argument::Bad)],
            ),
            ("", vec![]),
        ] {
            let expected: Vec<_> = expected.into_iter().map(|(name, arg)| (name.to_owned(), arg)).collect();
            assert_eq!(read(line), expected, "{line}");
        }
    }

    #[test]
    fn lifetimes_are_read_strictly() {
        for (lines, expected) in [
            (&["max-age=3600"][..], Some(3600)),
            (&["MAX-age=\"3600\""], Some(3600)),
            (&["max-age=003600"], Some(3600)),
            (&["max-age=99999999999999999999"], Some(SECONDS_MAX)),
            (&["max-age=-1"], Some(0)),
            (&["max-age=3600.5"], Some(0)),
            (&["max-age='3600'"], Some(0)),
            (&["max-age =3600"], Some(0)),
            (&["max-age"], Some(0)),
            (&["max-age=5, max-age=5"], Some(5)),
            (&["max-age=5", "max-age=6"], Some(0)),
            (&["x=\"max-age=5\""], None),
            (&["s-maxage=5"], None),
        ] {
            assert_eq!(control(lines).max_age, expected, "{lines:?}");
        }
    }

    #[test]
    fn fields_that_are_listed_are_withheld_and_the_response_is_not() {
        let said = control(&["no-cache=\"Set-Cookie, X-A\", private=b"]);
        assert!(!said.no_cache && !said.private);
        assert_eq!(said.withheld, [&b"set-cookie"[..], b"x-a", b"b"]);
        for line in ["no-cache", "no-cache=\"\"", "no-cache=\"a b\"", "no-cache=", "No-Cache=\"a,\""] {
            assert!(control(&[line]).no_cache, "{line}");
        }
    }

    #[test]
    fn permitting_directives_must_be_well_formed() {
        let said = control(&["public=1, must-understand=x, no-store=1, stale-if-error=x, must-revalidate=9"]);
        assert!(!said.public && !said.must_understand && said.no_store && said.must_revalidate);
        assert_eq!(said.stale_if_error, Some(0));
        assert!(!control(&[" ,"]).is_said && control(&["x"]).is_said);
    }

    #[test]
    fn requests_ask() {
        let request = |lines: &[(&'static str, &'static str)]| {
            RequestDirectives::of(lines.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes())))
        };
        assert!(request(&[("Pragma", "no-cache")]).no_cache);
        assert!(!request(&[("Pragma", "no-cache"), ("Cache-Control", "max-age=5")]).no_cache);
        assert!(!request(&[("Pragma", "x")]).no_cache);
        let all =
            request(&[("cache-control", "max-age=5, MIN-FRESH=3"), ("Cache-Control", "max-stale, no-store")]);
        assert_eq!((all.max_age, all.min_fresh, all.max_stale), (Some(5), Some(3), Some(SECONDS_MAX)));
        assert!(all.no_store && !all.only_if_cached);
        assert_eq!(request(&[("Cache-Control", "max-age=x")]).max_age, Some(0));
        assert_eq!(request(&[("Cache-Control", "max-stale=x")]).max_stale, Some(0));
        assert_eq!(request(&[("Cache-Control", "min-fresh=x")]).min_fresh, Some(SECONDS_MAX));
    }
}
