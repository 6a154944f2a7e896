//! Checks before a site with TLS: requests without TLS are redirected, challenges of CAs are served (RFC
//! 8555, section 8.3), and only safe requests are served as early data (RFC 8470).

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use arc_swap::ArcSwap;
use flatout_engine::{Request, Response};
use flatout_wire::{Framing, Head, Method, Status};

use crate::live::Live;

/// The path prefix of HTTP challenges.
const CHALLENGE_PATH: &[u8] = b"/.well-known/acme-challenge/";

/// Responses to HTTP challenges, by token. Clones share the same map.
#[derive(Debug, Clone, Default)]
pub struct HttpChallenges(Arc<ArcSwap<HashMap<Vec<u8>, String>>>);

/// The port to which plain HTTP requests are redirected; clones share it, and a reload may change it.
#[derive(Debug, Clone, Default)]
pub struct SecurePort(Arc<AtomicU16>);

/// The port of HTTPS, for a server whose listeners with TLS have no port.
const PORT_DEFAULT: u16 = 443;

/// What to do before a request gets to its site.
#[derive(Debug, Clone, Default)]
pub struct Before {
    /// Redirect plain HTTP requests to this port.
    pub redirect: Option<SecurePort>,
    /// The sites whose hosts are redirected; requests for other hosts get 421. `None` redirects all.
    pub sites: Option<Live>,
    /// Respond to HTTP challenges, with TLS or without.
    pub challenges: Option<HttpChallenges>,
    /// Requests may come as early data.
    pub early_data: bool,
}

impl HttpChallenges {
    /// Replaces all tokens and their responses.
    pub fn set(&self, all: impl IntoIterator<Item = (String, String)>) {
        let all = all.into_iter().map(|(token, expected)| (token.into_bytes(), expected));
        self.0.store(Arc::new(all.collect()));
    }

    /// Responds if the token is known. Returns whether it did.
    fn answer(&self, target: &[u8], response: &mut Response) -> bool {
        let Some(token) = target.strip_prefix(CHALLENGE_PATH) else { return false };
        let all = self.0.load();
        let Some(expected) = all.get(token) else { return false };
        response.header("Content-Type", "application/octet-stream").header("Cache-Control", "no-store");
        response.buffer().extend_from_slice(expected.as_bytes());
        true
    }
}

impl SecurePort {
    /// This port; without one, 443.
    pub fn new(port: Option<u16>) -> SecurePort {
        let secure = SecurePort::default();
        secure.set(port);
        secure
    }

    /// Changes the port for requests from now on.
    pub fn set(&self, port: Option<u16>) {
        // Nothing else depends on it.
        self.0.store(port.unwrap_or(PORT_DEFAULT), Ordering::Relaxed);
    }

    fn port(&self) -> u16 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Before {
    /// Whether any check is needed.
    pub fn is_needed(&self) -> bool {
        self.redirect.is_some() || self.challenges.is_some() || self.early_data
    }

    /// Writes the response if one of these steps decides about the request; returns whether it did.
    #[inline]
    pub(crate) fn responds(&self, request: &Request<'_>, response: &mut Response) -> bool {
        if let Some(challenges) = &self.challenges
            && challenges.answer(request.head.target(), response)
        {
            return true;
        }
        if self.early_data && request.tls.is_some_and(|tls| tls.is_early()) && !may_be_repeated(&request.head)
        {
            // A client that sends early data knows this status, and tries again without (section 5.2). Nothing has to be kept of a request
            // whose client may not be there.
            response.set_status(Status::TOO_EARLY);
            return true;
        }
        let Some(port) = self.redirect.as_ref().filter(|_| request.tls.is_none()) else { return false };
        if let Some(live) = &self.sites
            && live.opened().sites.is_renderer(request.listener)
        {
            // What it requests has no TLS, and never leaves this machine.
            return false;
        }
        if let Some(live) = &self.sites
            && !live.opened().sites.has_host(request.listener, request.head.authority())
        {
            // A redirect would lead to a host that somebody else has chosen.
            response.set_status(Status::MISDIRECTED_REQUEST);
            return true;
        }
        match location(&request.head, port.port()) {
            Some(location) => {
                response.set_status(Status::PERMANENT_REDIRECT).header("Location", &location);
            }
            None => drop(response.set_status(Status::BAD_REQUEST)),
        }
        true
    }
}

/// Whether a request may be served without knowing that its client has sent it only once: its method changes nothing, and nothing
/// follows it that could.
fn may_be_repeated(head: &Head<'_>) -> bool {
    matches!(head.method, Method::Get | Method::Head | Method::Options)
        && head.framing == Framing::None
        && head.field("Upgrade").is_none()
}

/// The same with https. `None` where the request names no host, or asks for nothing that has a URL.
fn location(head: &Head<'_>, port: u16) -> Option<String> {
    let authority = std::str::from_utf8(head.authority()).ok()?;
    let host = match authority.rsplit_once(':') {
        Some((host, digits)) if digits.bytes().all(|byte| byte.is_ascii_digit()) => host,
        _ => authority,
    };
    let target = std::str::from_utf8(head.target()).ok()?;
    // In absolute form the path follows the authority.
    let target = match target.split_once("://") {
        Some((_, rest)) => rest.find('/').map_or("/", |at| &rest[at..]),
        None => target,
    };
    if host.is_empty() || !target.starts_with('/') {
        return None;
    }
    let port = if port == 443 { String::new() } else { format!(":{port}") };
    Some(format!("https://{host}{port}{target}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use flatout_engine::{RequestBody, Tls};
    use flatout_wire::head::{HeadLimits, parse};

    #[test]
    fn redirects_keep_host_path_and_query() {
        for (line, host, port, expected) in [
            ("GET /a?b HTTP/1.1", "a.test", 443, Some("https://a.test/a?b")),
            ("GET / HTTP/1.1", "a.test:80", 8443, Some("https://a.test:8443/")),
            ("GET / HTTP/1.1", "[::1]:80", 443, Some("https://[::1]/")),
            ("GET / HTTP/1.1", "[::1]", 443, Some("https://[::1]/")),
            ("GET http://b.test:80/x?y HTTP/1.1", "b.test:80", 443, Some("https://b.test/x?y")),
            ("OPTIONS * HTTP/1.1", "a.test", 443, None),
        ] {
            let text = format!("{line}\r\nHost: {host}\r\n\r\n");
            let mut fields = Vec::new();
            let head = parse(text.as_bytes(), &mut fields, &HeadLimits::default()).unwrap().unwrap();
            assert_eq!(location(&head, port).as_deref(), expected, "{line} {host}");
        }
    }

    /// The response of these steps; 404 if they let the request pass.
    fn response_of(before: &Before, request: &Request<'_>) -> (u16, String) {
        let mut response = Response::default();
        if !before.responds(request, &mut response) {
            response.set_status(Status::NOT_FOUND);
        }
        (response.status().code(), String::from_utf8(response.buffer().clone()).unwrap())
    }

    #[test]
    fn authorities_are_answered_before_anything_is_redirected() {
        let challenges = HttpChallenges::default();
        let before = Before {
            redirect: Some(SecurePort::new(None)),
            challenges: Some(challenges.clone()),
            ..Before::default()
        };
        let response_to = |target: &str| {
            let text = format!("GET {target} HTTP/1.1\r\nHost: a.test\r\n\r\n");
            let mut fields = Vec::new();
            let head = parse(text.as_bytes(), &mut fields, &HeadLimits::default()).unwrap().unwrap();
            response_of(&before, &Request::detached(head, target.as_bytes(), RequestBody::NONE))
        };
        let path = "/.well-known/acme-challenge/abc";
        assert_eq!(response_to(path).0, 308);
        challenges.set([("abc".to_owned(), "abc.key".to_owned())]);
        assert_eq!(response_to(path), (200, "abc.key".to_owned()));
        assert_eq!(response_to("/.well-known/acme-challenge/abcd").0, 308);
        assert_eq!(response_to("/.well-known/acme-challenge/").0, 308);
        challenges.set([]);
        assert_eq!(response_to(path).0, 308);
    }

    #[test]
    fn only_safe_requests_are_served_as_early_data() {
        let before = Before { early_data: true, ..Before::default() };
        let response_to = |method: &str, fields: &str, tls| {
            let text = format!("{method} / HTTP/1.1\r\nHost: a.test\r\n{fields}\r\n");
            let mut found = Vec::new();
            let head = parse(text.as_bytes(), &mut found, &HeadLimits::default()).unwrap().unwrap();
            let mut request = Request::detached(head, b"/", RequestBody::NONE);
            request.tls = tls;
            response_of(&before, &request).0
        };
        let (early, late) = (Some(Tls::EARLY), Some(Tls::UNKNOWN));
        for method in ["GET", "HEAD", "OPTIONS"] {
            assert_eq!(response_to(method, "", early), 404, "{method}");
            assert_eq!(response_to(method, "Content-Length: 3\r\n", early), 425, "{method} with a body");
        }
        assert_eq!(response_to("GET", "Transfer-Encoding: chunked\r\n", early), 425);
        assert_eq!(response_to("GET", "Connection: upgrade\r\nUpgrade: websocket\r\n", early), 425);
        for method in ["POST", "PUT", "DELETE", "PATCH", "TRACE", "SEARCH", "get"] {
            assert_eq!(response_to(method, "", early), 425, "{method}");
            assert_eq!(
                (response_to(method, "", late), response_to(method, "", None)),
                (404, 404),
                "{method}"
            );
        }
    }
}
