//! A server's response, and its differences from another server's.

use std::hash::{DefaultHasher, Hasher};

use flatout_wire::date;

/// The end of nginx's built-in pages.
const NGINX_PAGE: &[u8] = b"<hr><center>nginx";

/// How much of the start of a body is kept for inspection.
const KEPT_BYTES: usize = 4096;

/// How much of a line is shown.
const SHOWN_CHARS_MAX: usize = 100;

/// The time between a request to one server and the same one to the other, where responses have dates.
const SECONDS_BETWEEN_MAX: u64 = 2;

/// A gzip body that is no longer than nginx's own pages are.
const SHORT_PAGE_BYTES: usize = 160;

/// A response.
#[derive(Debug, Clone)]
pub struct Answer {
    /// The status code.
    pub status: u16,
    fields: Vec<(String, String)>,
    body_bytes: usize,
    hash: DefaultHasher,
    kept: Vec<u8>,
}

impl Answer {
    /// A response without a body so far; field names are in lower case.
    pub(super) fn new(status: u16, fields: Vec<(String, String)>) -> Answer {
        Answer { status, fields, body_bytes: 0, hash: DefaultHasher::new(), kept: Vec::new() }
    }

    /// Adds to its body. Bytes beyond `bytes_max` are only counted.
    pub(super) fn take(&mut self, data: &[u8], bytes_max: usize) {
        let room = bytes_max.saturating_sub(self.body_bytes);
        self.hash.write(&data[..data.len().min(room)]);
        let kept = KEPT_BYTES.saturating_sub(self.kept.len());
        self.kept.extend_from_slice(&data[..data.len().min(kept)]);
        self.body_bytes += data.len();
    }

    /// The differences: the name, and both values.
    pub(super) fn differs(
        &self,
        other: &Answer,
        names: &[String],
        scheme: &str,
        host: &str,
    ) -> Vec<(String, String, String)> {
        let mut what = Vec::new();
        // Methods of a file: nginx refuses the question, and we name them.
        if [404, 405].contains(&self.status)
            && other.status == 204
            && self.is_page_of_nginx()
            && other.field("allow") != "-"
        {
            return what;
        }
        if self.status != other.status {
            what.push(("status".to_owned(), self.status.to_string(), other.status.to_string()));
        }
        // Built-in pages say the same in different words.
        let is_own =
            other.status == self.status && (self.is_page_of_nginx() || self.may_be_page_without_body());
        for name in names {
            let (one, two) = (self.field(name), other.field(name));
            let same = match name.as_str() {
                "content-type" => is_own || is_same_type(&one, &two),
                // nginx says nothing of methods in its page.
                "allow" if is_own && one == "-" => true,
                // Its pages may be compressed.
                "content-encoding" if is_own => true,
                "www-authenticate" => without_charset(&one) == without_charset(&two),
                "expires" => one == two || is_same_time(&one, &two),
                "location" => local(&one, scheme, host) == local(&two, scheme, host),
                _ => one == two,
            };
            if !same {
                what.push((name.clone(), one, two));
            }
        }
        let same_body = self.body_bytes == other.body_bytes && self.hash.finish() == other.hash.finish();
        if !same_body && !is_own {
            let lines = (self.is_kept() && other.is_kept()).then(|| self.first_other_line(other)).flatten();
            let (one, two) = lines.unwrap_or_else(|| (self.body(), other.body()));
            what.push(("body".to_owned(), one, two));
        }
        what
    }

    /// All values of a field.
    fn field(&self, name: &str) -> String {
        let values = self.fields.iter().filter(|(known, _)| known == name);
        let values: Vec<String> = values.map(|(_, value)| value.clone()).collect();
        if values.is_empty() { "-".to_owned() } else { values.join(", ") }
    }

    fn is_page_of_nginx(&self) -> bool {
        self.status >= 300 && self.kept.windows(NGINX_PAGE.len()).any(|window| window == NGINX_PAGE)
    }

    /// Whether it is nginx's response for an error without the body, as for HEAD, or with a short one that is compressed, so that a page
    /// of its own cannot be told from another.
    fn may_be_page_without_body(&self) -> bool {
        let is_compressed = self.field("content-encoding") == "gzip" && self.body_bytes <= SHORT_PAGE_BYTES;
        self.status >= 300
            && (self.body_bytes == 0 || is_compressed)
            && self.field("server").starts_with("nginx")
            && self.field("content-type") == "text/html"
    }

    /// Whether all of its body is there, as a text.
    fn is_kept(&self) -> bool {
        self.body_bytes == self.kept.len()
            && self.kept.iter().all(|byte| !byte.is_ascii_control() || b"\t\r\n".contains(byte))
    }

    /// The first line in which two texts differ, with its number.
    fn first_other_line(&self, other: &Answer) -> Option<(String, String)> {
        let lines = |answer: &Answer| -> Vec<String> {
            String::from_utf8_lossy(&answer.kept).lines().map(str::to_owned).collect()
        };
        let (one, other) = (lines(self), lines(other));
        let at = (0..one.len().max(other.len())).find(|at| one.get(*at) != other.get(*at))?;
        let line = |lines: &[String]| match lines.get(at) {
            Some(line) => {
                let start: String = line.chars().take(SHOWN_CHARS_MAX).collect();
                let rest = if start.len() < line.len() { "…" } else { "" };
                format!("line {}: {start}{rest}", at + 1)
            }
            None => format!("{} lines", lines.len()),
        };
        Some((line(&one), line(&other)))
    }

    fn body(&self) -> String {
        format!("{} bytes, {:016x}", self.body_bytes, self.hash.finish())
    }
}

/// A challenge without the charset of names and passwords, which nginx never sends (RFC 7617, 2.1).
fn without_charset(challenge: &str) -> String {
    challenge.replace(", charset=\"UTF-8\"", "")
}

/// Whether two dates are the same but for the time between two requests.
fn is_same_time(one: &str, two: &str) -> bool {
    let at = |text: &str| date::parse(text.as_bytes());
    matches!((at(one), at(two)), (Some(one), Some(two)) if one.abs_diff(two) <= SECONDS_BETWEEN_MAX)
}

/// Whether two types are the same: a charset counts if both give one, and scripts have two type names (RFC 9239).
fn is_same_type(one: &str, other: &str) -> bool {
    let parts = |text: &str| {
        let text =
            text.to_ascii_lowercase().replace("; ", ";").replace("application/javascript", "text/javascript");
        match text.split_once(";charset=") {
            Some((kind, charset)) => (kind.to_owned(), Some(charset.trim_matches('"').to_owned())),
            None => (text, None),
        }
    };
    let ((kind, charset), (other_kind, other_charset)) = (parts(one), parts(other));
    kind == other_kind && (charset == other_charset || charset.is_none() || other_charset.is_none())
}

/// A URL without the part that it shares with the request: `/a` leads clients to the same place.
fn local<'t>(location: &'t str, scheme: &str, host: &str) -> &'t str {
    let name = |authority: &str| {
        let has_port =
            authority.rsplit_once(':').filter(|(_, port)| port.bytes().all(|byte| byte.is_ascii_digit()));
        has_port.map_or(authority, |(name, _)| name).to_ascii_lowercase()
    };
    let Some(rest) = location.strip_prefix(scheme) else { return location };
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    if name(authority) == name(host) && !path.is_empty() { path } else { location }
}
