//! A server's response, and its differences from another server's.

use std::hash::{DefaultHasher, Hasher};
use std::io::Write;

use flate2::write::GzDecoder;
use flatout_wire::date;

use super::{Ask, Part, Policy};
use crate::site::hidden::is_hidden;

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

/// Types of files that nginx does not know.
const UNKNOWN: [&str; 2] = ["application/octet-stream", "text/plain"];

/// The body of php-fpm's response for a script that is missing.
const PHP_PAGE: &[u8] = b"File not found.\n";

/// Types by which nginx calls texts of `return`, by the ending of the path.
const TYPES: [(&str, &str); 12] = [
    ("html", "text/html"),
    ("htm", "text/html"),
    ("css", "text/css"),
    ("xml", "text/xml"),
    ("js", "application/javascript"),
    ("txt", "text/plain"),
    ("json", "application/json"),
    ("png", "image/png"),
    ("jpg", "image/jpeg"),
    ("gif", "image/gif"),
    ("svg", "image/svg+xml"),
    ("ico", "image/x-icon"),
];

/// A response.
#[derive(Debug)]
pub struct Answer {
    /// The status code.
    pub status: u16,
    fields: Vec<(String, String)>,
    sent_bytes: usize,
    body: Decoding,
}

/// A body on its way: what encoders made of the same text may differ.
#[derive(Debug)]
enum Decoding {
    Plain(Body),
    Gzip(Box<GzDecoder<Body>>),
}

/// A body.
#[derive(Debug, Default)]
struct Body {
    bytes: usize,
    hash: DefaultHasher,
    /// Its start.
    kept: Vec<u8>,
}

impl Write for Body {
    fn write(&mut self, data: &[u8]) -> std::io::Result<usize> {
        self.hash.write(data);
        let kept = KEPT_BYTES.saturating_sub(self.kept.len());
        self.kept.extend_from_slice(&data[..data.len().min(kept)]);
        self.bytes += data.len();
        Ok(data.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Answer {
    /// A response without a body so far; field names are in lower case.
    pub(super) fn new(status: u16, fields: Vec<(String, String)>) -> Answer {
        let mut answer = Answer { status, fields, sent_bytes: 0, body: Decoding::Plain(Body::default()) };
        // A range of an encoded body cannot be decoded alone.
        if answer.field("content-encoding") == "gzip" && status != 206 {
            answer.body = Decoding::Gzip(Box::new(GzDecoder::new(Body::default())));
        }
        answer
    }

    /// Adds to its body. Bytes beyond `bytes_max` are only counted.
    pub(super) fn take(&mut self, data: &[u8], bytes_max: usize) {
        let room = bytes_max.saturating_sub(self.sent_bytes);
        self.sent_bytes += data.len();
        let data = &data[..data.len().min(room)];
        let is_decoded = match &mut self.body {
            // It takes all.
            Decoding::Plain(body) => body.write_all(data).is_ok(),
            Decoding::Gzip(decoder) => decoder.write_all(data).is_ok(),
        };
        if !is_decoded {
            // What is no gzip is compared as it is.
            let mut body = Body::default();
            let _ = body.write_all(data);
            self.body = Decoding::Plain(body);
        }
    }

    /// Its body has ended.
    pub(super) fn end(&mut self) {
        if let Decoding::Gzip(decoder) = &mut self.body {
            let _ = decoder.try_finish();
        }
    }

    fn body(&self) -> &Body {
        match &self.body {
            Decoding::Plain(body) => body,
            Decoding::Gzip(decoder) => decoder.get_ref(),
        }
    }

    /// The differences: the name, and both values.
    pub(super) fn differs(&self, other: &Answer, names: &[String], scheme: &str, ask: &Ask) -> Vec<Part> {
        let mut what = Vec::new();
        // Methods of a file: nginx refuses the question, perhaps with a page of its site, and we name them.
        let is_refused = match self.status {
            405 => ask.method == "OPTIONS" || self.is_page_of_nginx(),
            404 => self.is_page_of_nginx(),
            _ => false,
        };
        if is_refused && other.status == 204 && other.field("allow") != "-" {
            return what;
        }
        if self.status != other.status {
            what.push(("status".to_owned(), self.status.to_string(), other.status.to_string()));
        }
        // Built-in pages say the same in different words.
        let is_own = other.status == self.status
            && (self.is_page_of_nginx() || self.may_be_page_without_body() || self.is_page_of_php());
        let (body, other_body) = (self.body(), other.body());
        let same_body = body.bytes == other_body.bytes && body.hash.finish() == other_body.hash.finish();
        for name in names {
            let (one, two) = (self.field(name), other.field(name));
            let same = match name.as_str() {
                "content-type" => {
                    is_own
                        || is_same_type(&one, &two)
                        // It knows fewer types of files, calls texts by the ending of the path, and empty bodies too.
                        || (self.is_file_of_nginx() && UNKNOWN.contains(&one.as_str()))
                        || (same_body && body.bytes == 0 && two == "-" && self.field("content-length") == "0")
                        || (same_body && is_type_of_ending(&ask.target, &one, &two))
                }
                // nginx says nothing of methods in its page.
                "allow" if is_own && one == "-" => true,
                // Its pages may be compressed.
                "content-encoding" if is_own => true,
                // It compresses what does not become shorter.
                "content-encoding" if two == "-" && same_body && other.sent_bytes <= self.sent_bytes => true,
                "www-authenticate" => without_charset(&one) == without_charset(&two),
                "expires" => one == two || is_same_time(&one, &two),
                "location" => {
                    let local = |url| normal_spelling(local(url, scheme, &ask.host));
                    local(&one) == local(&two)
                }
                _ => one == two,
            };
            if !same {
                what.push((name.clone(), one, two));
            }
        }
        if !same_body && !is_own && !self.repeats_spelling(other) {
            let lines = (self.is_kept() && other.is_kept()).then(|| self.first_other_line(other)).flatten();
            let (one, two) = lines.unwrap_or_else(|| (self.digest(), other.digest()));
            what.push(("body".to_owned(), one, two));
        }
        what
    }

    /// Why another response differs on purpose, if it does.
    pub(super) fn policy(&self, other: &Answer, ask: &Ask, what: &[Part]) -> Option<Policy> {
        let is_forwarded = |name: &str| {
            let name = name.to_ascii_lowercase();
            name == "forwarded" || name.starts_with("x-forwarded-")
        };
        if ask.fields.iter().any(|(name, _)| is_forwarded(name))
            && what.iter().all(|(name, ..)| name == "body")
        {
            return Some(Policy::ForwardedField);
        }
        let path = normal_spelling(ask.target.split('?').next().unwrap_or_default());
        let is_named = || path.split('/').any(is_hidden);
        let is_file = self.is_file_of_nginx() && !other.is_same_file(self);
        // It refuses other methods for them.
        let is_refused = self.status == 405 && self.is_page_of_nginx_or_none();
        if (is_file || is_refused) && is_named() {
            return Some(Policy::HiddenFile);
        }
        let is_refused = self.status == 403 && self.is_page_of_nginx_or_none();
        (is_refused && path.ends_with('/') && other.status == 404).then_some(Policy::FolderWithoutIndex)
    }

    /// All values of a field.
    fn field(&self, name: &str) -> String {
        let values = self.fields.iter().filter(|(known, _)| known == name);
        let values: Vec<String> = values.map(|(_, value)| value.clone()).collect();
        if values.is_empty() { "-".to_owned() } else { values.join(", ") }
    }

    fn is_page_of_nginx(&self) -> bool {
        self.status >= 300 && self.body().kept.windows(NGINX_PAGE.len()).any(|window| window == NGINX_PAGE)
    }

    fn is_page_of_nginx_or_none(&self) -> bool {
        self.is_page_of_nginx() || self.may_be_page_without_body()
    }

    fn is_page_of_php(&self) -> bool {
        self.status == 404 && self.body().kept == PHP_PAGE
    }

    /// Whether nginx has read it from a file: the tag is the time and the size of that.
    fn is_file_of_nginx(&self) -> bool {
        let tag = self.field("etag");
        let tag = tag.strip_prefix("W/").unwrap_or(&tag).trim_matches('"');
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        tag.split_once('-').is_some_and(|(time, bytes)| is_number(time) && is_number(bytes))
    }

    fn is_same_file(&self, other: &Answer) -> bool {
        self.status == other.status
            && self.field("content-range") == other.field("content-range")
            && self.body().hash.finish() == other.body().hash.finish()
    }

    /// Whether the bodies are the same but for the spelling of paths: applications get their normal form.
    fn repeats_spelling(&self, other: &Answer) -> bool {
        let text = |answer: &Answer| {
            let kept = String::from_utf8_lossy(&answer.body().kept);
            let words = kept.split_inclusive(char::is_whitespace);
            words
                .map(|word| if word.starts_with('/') { normal_spelling(word) } else { word.to_owned() })
                .collect::<String>()
        };
        self.is_kept() && other.is_kept() && text(self) == text(other)
    }

    /// Whether it is nginx's response for an error without the body, as for HEAD, or with a short one that is compressed, so that a page
    /// of its own cannot be told from another.
    fn may_be_page_without_body(&self) -> bool {
        let is_compressed = self.field("content-encoding") == "gzip" && self.sent_bytes <= SHORT_PAGE_BYTES;
        let kind = self.field("content-type");
        self.status >= 300
            && (self.sent_bytes == 0 || is_compressed)
            && self.field("server").starts_with("nginx")
            && kind.split(';').next() == Some("text/html")
    }

    /// Whether all of its body is there, as a text.
    fn is_kept(&self) -> bool {
        let Body { bytes, kept, .. } = self.body();
        *bytes == kept.len() && kept.iter().all(|byte| !byte.is_ascii_control() || b"\t\r\n".contains(byte))
    }

    /// The first line in which two texts differ, with its number.
    fn first_other_line(&self, other: &Answer) -> Option<(String, String)> {
        let lines = |answer: &Answer| -> Vec<String> {
            String::from_utf8_lossy(&answer.body().kept).lines().map(str::to_owned).collect()
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

    fn digest(&self) -> String {
        format!("{} bytes, {:016x}", self.body().bytes, self.body().hash.finish())
    }
}

/// A path with one slash where there are several, and without encodings of letters and digits.
fn normal_spelling(path: &str) -> String {
    let mut normal = String::with_capacity(path.len());
    let mut rest = path;
    while let Some(char) = rest.chars().next() {
        let encoded = rest.strip_prefix('%').and_then(|rest| u8::from_str_radix(rest.get(..2)?, 16).ok());
        match encoded.map(char::from).filter(char::is_ascii_alphanumeric) {
            Some(letter) => {
                normal.push(letter);
                rest = rest.get(3..).unwrap_or_default();
            }
            None => {
                if char != '/' || !normal.ends_with('/') {
                    normal.push(char);
                }
                rest = rest.get(char.len_utf8()..).unwrap_or_default();
            }
        }
    }
    normal
}

/// Whether the first type of a response is that of the path's ending, and others are the same.
fn is_type_of_ending(target: &str, one: &str, two: &str) -> bool {
    let path = target.split('?').next().unwrap_or_default();
    let ending = path.rsplit('/').next().and_then(|name| name.rsplit_once('.')).map(|(_, ending)| ending);
    let split = |types: &str| match types.split_once(", ") {
        Some((first, rest)) => (first.to_owned(), rest.to_owned()),
        None => (types.to_owned(), String::new()),
    };
    let ((first, rest), (_, other_rest)) = (split(one), split(two));
    let first = first.split(';').next().unwrap_or_default();
    rest == other_rest && TYPES.iter().any(|(known, kind)| Some(*known) == ending && *kind == first)
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
        has_port.map_or(authority, |(name, _)| name).trim_end_matches('.').to_ascii_lowercase()
    };
    let Some(rest) = location.strip_prefix(scheme) else { return location };
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    if name(authority) == name(host) && !path.is_empty() { path } else { location }
}
