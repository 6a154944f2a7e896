//! What requests must have in common to get the same response.

use flatout_wire::Head;

use flatout_gateway::{Caching, Forwarded};
use flatout_proxy::Host;

/// The key of a request: its URL, and further parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Key<'a> {
    /// `http://example.org/a?b`, the URL that purges use: scheme and host are the client's, path and query those that the upstream gets.
    pub(crate) url: &'a [u8],
    /// The operator's key, or the lines that the site adds to the request; the upstream, and the `Host` that it gets if that is not
    /// the URL's; with an operator's key, the URL's port; the site's space.
    pub(crate) rest: &'a [u8],
    /// The operator's key replaces the URL.
    pub(crate) is_custom: bool,
    pub(crate) hash: u64,
}

/// Writes a URL, with the host in its usual spelling. Returns whether it names a port.
pub(crate) fn write_url(is_https: bool, authority: &[u8], target: &[u8], out: &mut Vec<u8>) -> bool {
    out.extend_from_slice(if is_https { b"https://" } else { b"http://" });
    let (at, (host, port)) = (out.len(), usual(is_https, authority));
    out.extend_from_slice(host);
    if !port.is_empty() {
        out.push(b':');
        out.extend_from_slice(port);
    }
    out.get_mut(at..).unwrap_or_default().make_ascii_lowercase();
    out.extend_from_slice(target);
    !port.is_empty()
}

/// The host of an authority without the dot at the end of a full name, and the port unless it is that of the scheme.
fn usual(is_https: bool, authority: &[u8]) -> (&[u8], &[u8]) {
    let digits = authority.iter().rev().take_while(|byte| byte.is_ascii_digit()).count();
    let colon_at = authority.len().wrapping_sub(digits + 1);
    let (host, port) = match authority.split_at_checked(colon_at) {
        Some((host, [b':', port @ ..])) => (host, port),
        _ => (authority, &b""[..]),
    };
    let zeros = port.iter().take_while(|&&byte| byte == b'0').count();
    let port = port.get(zeros..).unwrap_or_default();
    let is_default = port == if is_https { &b"443"[..] } else { b"80" };
    (host.strip_suffix(b".").unwrap_or(host), if is_default { b"" } else { port })
}

/// Fields with a value for each request, by which it is found in logs.
const REQUEST_NAMES: [&[u8]; 2] = [b"x-request-id", b"traceparent"];

/// Writes the key of a request into `out`: the URL, then the rest. Returns the end of the URL.
///
/// Lines that the site adds and clients cannot choose, such as a user's name, may change the response, so they are
/// part of the key; fields that clients can choose are not forwarded, or are in `Vary`.
pub(crate) fn write_key(
    head: &Head<'_>,
    forwarded: &Forwarded<'_>,
    caching: &Caching<'_>,
    upstream: &str,
    out: &mut Vec<u8>,
) -> usize {
    let names_port = write_url(forwarded.client.is_https, head.authority(), forwarded.target, out);
    let url_ends = out.len();
    match caching.key {
        Some(key) => out.extend_from_slice(key),
        None => write_lines(forwarded.edits.lines, out),
    }
    // No field value contains this byte, so two keys cannot be confused.
    out.push(0);
    out.extend_from_slice(upstream.as_bytes());
    // The URL already contains the client's host, in the spelling that the upstream gets ([`Key::authority`]). A
    // different `Host` sent to the upstream selects another site there, so it is part of the key.
    match &forwarded.forward.host {
        Host::Kept => {}
        Host::Upstream => out.push(0),
        Host::Set(host) => {
            out.push(0);
            out.extend_from_slice(host.as_bytes());
        }
    }
    if let Some(server) = &forwarded.forward.server {
        out.extend_from_slice(b"\0\x03");
        out.extend_from_slice(server.as_bytes());
    }
    if let Some(method) = forwarded.edits.method {
        out.extend_from_slice(b"\0\x04");
        out.extend_from_slice(method);
    }
    // The upstream may build URLs of the port that it sees, and `$host` of an operator's key has none.
    if names_port && caching.key.is_some() {
        let (_, port) = usual(forwarded.client.is_https, head.authority());
        out.extend_from_slice(b"\0\x01");
        out.extend_from_slice(port);
    }
    if !caching.space.is_empty() {
        out.extend_from_slice(b"\0\x02");
        out.extend_from_slice(caching.space);
    }
    url_ends
}

/// Writes the lines that the site adds, without those that name the request: each would have a key of its own.
fn write_lines(lines: &[u8], out: &mut Vec<u8>) {
    let names_request = |line: &&[u8]| {
        let name = line.split(|&byte| byte == b':').next().unwrap_or_default();
        REQUEST_NAMES.iter().any(|known| name.eq_ignore_ascii_case(known))
    };
    let lines = lines.split_inclusive(|&byte| byte == b'\n');
    lines.filter(|line| !names_request(line)).for_each(|line| out.extend_from_slice(line));
}

/// A key with its own memory, for what outlives the request, or for another process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyBuf {
    /// The URL, then the rest.
    pub bytes: Vec<u8>,
    /// The length of the URL.
    pub url_ends: usize,
    /// Whether it is a configured key.
    pub is_custom: bool,
}

impl KeyBuf {
    pub(crate) fn key(&self, hash: impl FnOnce(&[u8]) -> u64) -> Key<'_> {
        Key::of(&self.bytes, self.url_ends, self.is_custom, hash)
    }
}

impl<'a> Key<'a> {
    /// Host and port of the URL, which ends with this target. The upstream gets them in this spelling, because it may
    /// build what it responds with of them.
    pub(crate) fn authority(&self, target: &[u8]) -> &'a [u8] {
        let after = |scheme: &[u8]| self.url.strip_prefix(scheme);
        let rest = after(b"http://").or_else(|| after(b"https://")).unwrap_or_default();
        rest.strip_suffix(target).unwrap_or_default()
    }

    pub(crate) fn to_buf(self) -> KeyBuf {
        let Key { url, rest, is_custom, .. } = self;
        KeyBuf { bytes: [url, rest].concat(), url_ends: url.len(), is_custom }
    }

    pub(crate) fn of(
        bytes: &'a [u8],
        url_ends: usize,
        is_custom: bool,
        hash: impl FnOnce(&[u8]) -> u64,
    ) -> Key<'a> {
        let (url, rest) = bytes.split_at_checked(url_ends).unwrap_or((bytes, b""));
        let hash = hash(if is_custom { rest } else { bytes });
        Key { url, rest, is_custom, hash }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_requests_are_not_in_the_key() {
        let mut out = Vec::new();
        write_lines(b"X-User: a\r\nX-Request-Id: 1\r\nTraceparent: 2\r\nX-Request-Idx: 3\r\n", &mut out);
        assert_eq!(out, b"X-User: a\r\nX-Request-Idx: 3\r\n");
    }

    #[test]
    fn one_host_has_one_spelling() {
        for (is_https, authority, expected) in [
            (false, "h", "http://h/"),
            (false, "H.example:80", "http://h.example/"),
            (false, "h:443", "http://h:443/"),
            (true, "h:443", "https://h/"),
            (true, "h:80", "https://h:80/"),
            (true, "h.", "https://h/"),
            (true, "h.:443", "https://h/"),
            (false, "h.:8080", "http://h:8080/"),
            (false, "h:", "http://h/"),
            (false, "h:0080", "http://h/"),
            (false, "127.0.0.1", "http://127.0.0.1/"),
            (false, "127.0.0.1:8080", "http://127.0.0.1:8080/"),
            (false, "[::80]:80", "http://[::80]/"),
            (false, "[::80]", "http://[::80]/"),
            (false, "80", "http://80/"),
            (false, "", "http:///"),
        ] {
            let mut out = Vec::new();
            let names_port = write_url(is_https, authority.as_bytes(), b"/", &mut out);
            let url = String::from_utf8(out).unwrap();
            assert_eq!(url, expected, "{authority}");
            let key = Key::of(url.as_bytes(), url.len(), false, |_| 0);
            let authority = String::from_utf8(key.authority(b"/").to_vec()).unwrap();
            assert!(expected.ends_with(&format!("//{authority}/")), "{authority}");
            let has_port = authority.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
            assert_eq!(names_port, has_port, "{authority}");
        }
    }
}
