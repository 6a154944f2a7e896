//! Cookies as a browser stores them for one server.

use std::time::{SystemTime, UNIX_EPOCH};

use flatout_wire::date;

/// Cookies, the newest last.
#[derive(Default)]
pub(super) struct Jar(Vec<StoredCookie>);

struct StoredCookie {
    name: String,
    value: String,
    path: String,
}

impl Jar {
    /// Stores or deletes the cookie of a `Set-Cookie` (RFC 6265 section 5.3).
    pub(super) fn set(&mut self, asked: &str, cookie: &str) {
        let mut parts = cookie.split(';').map(str::trim);
        let Some((name, value)) = parts.next().and_then(|pair| pair.split_once('=')) else { return };
        // That of the request, up to its last slash.
        let mut path = asked.rsplit_once('/').map_or("/", |(folder, _)| folder).to_owned();
        let (mut max_age, mut expires) = (None, None);
        for (attribute, value) in parts.map(|part| part.split_once('=').unwrap_or((part, ""))) {
            match attribute.to_ascii_lowercase().as_str() {
                "path" if value.starts_with('/') => path = value.to_owned(),
                "max-age" => max_age = value.parse::<i64>().ok(),
                "expires" => expires = date::parse(value.as_bytes()),
                _ => {}
            }
        }
        let has_ended = match max_age {
            Some(seconds) => seconds <= 0,
            None => expires.is_some_and(|at| at <= now_s()),
        };
        self.0.retain(|kept| kept.name != name || kept.path != path);
        if !has_ended {
            self.0.push(StoredCookie { name: name.to_owned(), value: value.to_owned(), path });
        }
    }

    /// The value of `Cookie` for this path.
    pub(super) fn header(&self, path: &str) -> Option<String> {
        let sent = self.0.iter().filter(|kept| is_below(path, &kept.path));
        let pairs: Vec<String> = sent.map(|kept| format!("{}={}", kept.name, kept.value)).collect();
        (!pairs.is_empty()).then(|| pairs.join("; "))
    }
}

fn is_below(path: &str, prefix: &str) -> bool {
    let rest = path.strip_prefix(prefix);
    rest.is_some_and(|rest| {
        rest.is_empty() || prefix.ends_with('/') || prefix.is_empty() || rest.starts_with('/')
    })
}

fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cookies_are_sent_where_they_belong_until_they_end() {
        let mut jar = Jar::default();
        jar.set("/a/b", "one=1");
        jar.set("/a/b", "two=2; Path=/; HttpOnly");
        jar.set("/a/b", "three=3; Path=/a/b; Max-Age=60");
        assert_eq!(jar.header("/a/b").as_deref(), Some("one=1; two=2; three=3"));
        assert_eq!(jar.header("/a/bc").as_deref(), Some("one=1; two=2"));
        assert_eq!(jar.header("/").as_deref(), Some("two=2"));
        jar.set("/x", "two=4; Path=/");
        jar.set("/a/b", "one=; Max-Age=0");
        jar.set("/a/b", "three=; Path=/a/b; Expires=Thu, 01 Jan 1970 00:00:00 GMT");
        assert_eq!(jar.header("/a/b").as_deref(), Some("two=4"));
    }
}
