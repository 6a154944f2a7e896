//! Changes of what upstreams say about themselves: the addresses in `Location` and `Refresh`, and the attributes of cookies.

use flatout_engine::Response;
use flatout_wire::field::is_field_value;

use super::plan::{CookieFlag, CookieRule, LocationRule};

/// Cookies of one response that are changed.
const COOKIES_MAX: usize = 64;

/// The rules of a route.
#[derive(Debug, Clone, Default)]
pub(crate) struct UpstreamFields {
    locations: Vec<LocationRule>,
    cookies: Vec<CookieRule>,
}

impl UpstreamFields {
    pub(crate) fn new(locations: &[LocationRule], cookies: &[CookieRule]) -> UpstreamFields {
        UpstreamFields { locations: locations.to_vec(), cookies: cookies.to_vec() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.locations.is_empty() && self.cookies.is_empty()
    }

    /// Changes an upstream's response.
    pub(crate) fn apply(&self, response: &mut Response) {
        if !self.locations.is_empty() {
            for name in ["location", "refresh"] {
                let Some(value) = response.field(name) else { continue };
                if let Some(value) = self.location(value).filter(|value| is_field_value(value)) {
                    response.remove_header(name);
                    response.header(if name == "location" { "Location" } else { "Refresh" }, value);
                }
            }
        }
        if !self.cookies.is_empty() && response.field("set-cookie").is_some() {
            let values: Vec<Vec<u8>> = cookies(response).map(<[u8]>::to_vec).collect();
            response.remove_header("set-cookie");
            for (at, value) in values.into_iter().enumerate() {
                let value = if at < COOKIES_MAX { self.cookie(&value) } else { value };
                response.header("Set-Cookie", value);
            }
        }
    }

    /// The value with the first prefix that it has replaced; in `Refresh` it is behind `url=`.
    fn location(&self, value: &[u8]) -> Option<Vec<u8>> {
        let lower = value.to_ascii_lowercase();
        let start = lower.windows(4).position(|part| part == b"url=").map_or(0, |at| at + 4);
        let (before, url) = value.split_at_checked(start)?;
        self.locations.iter().find_map(|rule| {
            let rest = url.strip_prefix(rule.from.as_bytes())?;
            Some([before, rule.to.as_bytes(), rest].concat())
        })
    }

    fn cookie(&self, value: &[u8]) -> Vec<u8> {
        let mut parts: Vec<Vec<u8>> =
            value.split(|&byte| byte == b';').map(|part| part.trim_ascii().to_vec()).collect();
        for rule in &self.cookies {
            match rule {
                CookieRule::Domain { from, to } => replace(&mut parts, "domain", |domain| {
                    let domain = domain.strip_prefix(b".").unwrap_or(domain);
                    domain.eq_ignore_ascii_case(from.as_bytes()).then(|| to.clone().into_bytes())
                }),
                CookieRule::Path { from, to } => replace(&mut parts, "path", |path| {
                    Some([to.as_bytes(), path.strip_prefix(from.as_bytes())?].concat())
                }),
                CookieRule::Flags { name, flags } => {
                    let is_named = parts.first().is_some_and(|pair| {
                        let end = pair.iter().position(|&byte| byte == b'=').unwrap_or(pair.len());
                        pair.get(..end) == Some(name.as_bytes())
                    });
                    if is_named || name == "*" {
                        flags.iter().for_each(|flag| set_flag(&mut parts, *flag));
                    }
                }
            }
        }
        parts.join(&b"; "[..])
    }
}

fn cookies(response: &Response) -> impl Iterator<Item = &[u8]> {
    response.fields().filter(|(name, _)| name.eq_ignore_ascii_case(b"set-cookie")).map(|(_, value)| value)
}

/// The name of an attribute.
fn attribute(part: &[u8]) -> &[u8] {
    let end = part.iter().position(|&byte| byte == b'=').unwrap_or(part.len());
    part.get(..end).unwrap_or_default().trim_ascii()
}

/// Replaces the value of an attribute, if `change` returns one; an empty one removes it.
fn replace(parts: &mut Vec<Vec<u8>>, name: &str, change: impl Fn(&[u8]) -> Option<Vec<u8>>) {
    let Some(at) =
        parts.iter().skip(1).position(|part| attribute(part).eq_ignore_ascii_case(name.as_bytes()))
    else {
        return;
    };
    let Some(part) = parts.get_mut(at + 1) else { return };
    let value = part.iter().position(|&byte| byte == b'=').and_then(|equals| part.get(equals + 1..));
    match value.and_then(|value| change(value.trim_ascii())) {
        Some(value) if value.is_empty() => drop(parts.remove(at + 1)),
        Some(value) => *part = [name.as_bytes(), b"=", &value].concat(),
        None => {}
    }
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

    fn changed(rules: &UpstreamFields, name: &str, value: &str) -> String {
        let mut response = Response::new();
        response.header(name, value);
        rules.apply(&mut response);
        String::from_utf8(response.field(name).unwrap().to_vec()).unwrap()
    }

    #[test]
    fn prefixes_of_locations_are_replaced() {
        let rule = |from: &str, to: &str| LocationRule { from: from.to_owned(), to: to.to_owned() };
        let rules = UpstreamFields::new(
            &[rule("http://app:8000/", "/"), rule("http://app", "https://a.example")],
            &[],
        );
        for (name, value, expected) in [
            ("location", "http://app:8000/login?x=1", "/login?x=1"),
            ("location", "http://app/x", "https://a.example/x"),
            ("location", "https://other/", "https://other/"),
            ("refresh", "5; URL=http://app/x", "5; URL=https://a.example/x"),
        ] {
            assert_eq!(changed(&rules, name, value), expected);
        }
    }

    #[test]
    fn attributes_of_cookies_are_changed() {
        let rules = UpstreamFields::new(
            &[],
            &[
                CookieRule::Domain { from: "app.internal".to_owned(), to: "a.example".to_owned() },
                CookieRule::Path { from: "/app/".to_owned(), to: "/".to_owned() },
                CookieRule::Flags {
                    name: "id".to_owned(),
                    flags: vec![
                        CookieFlag::Secure(true),
                        CookieFlag::HttpOnly(false),
                        CookieFlag::SameSite(Some(SameSite::Lax)),
                    ],
                },
            ],
        );
        for (value, expected) in [
            ("id=1; Domain=.App.internal; HttpOnly", "id=1; domain=a.example; Secure; SameSite=Lax"),
            ("domain=x; path=/app/y", "domain=x; path=/y"),
            ("other=1; Path=/z; domain=b", "other=1; Path=/z; domain=b"),
        ] {
            assert_eq!(changed(&rules, "set-cookie", value), expected);
        }
    }
}
