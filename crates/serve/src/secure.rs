//! Requests that come without TLS where there is TLS: they are redirected.

use flatout_engine::{Begun, BodyPlan, Ended, Reply, Request, Response, Service};
use flatout_wire::target::PathForm;
use flatout_wire::{Head, Status};

/// Redirects what comes without TLS, and hands on what comes with it.
pub struct Redirecting<S> {
    inner: S,
    /// Where TLS is; `None` is 443, which a URL does not name.
    port: Option<u16>,
}

impl<S: Service> Redirecting<S> {
    /// To this port.
    pub fn to(port: u16, inner: S) -> Redirecting<S> {
        Redirecting { inner, port: (port != 443).then_some(port) }
    }
}

impl<S: Service> Service for Redirecting<S> {
    fn body(&self, head: &Head<'_>, path: &[u8]) -> BodyPlan {
        self.inner.body(head, path)
    }

    #[inline]
    fn call(&self, request: Request<'_>, response: &mut Response) -> Reply {
        if request.tls.is_some() {
            return self.inner.call(request, response);
        }
        match location(&request.head, self.port) {
            Some(location) => {
                response.set_status(Status::PERMANENT_REDIRECT).header("Location", &location);
            }
            None => drop(response.set_status(Status::BAD_REQUEST)),
        }
        Reply::Now
    }

    fn path_form(&self) -> PathForm {
        self.inner.path_form()
    }

    fn wants_ended(&self) -> bool {
        self.inner.wants_ended()
    }

    fn wants_begun(&self) -> bool {
        self.inner.wants_begun()
    }

    fn begun(&self, begun: &Begun<'_>) -> u64 {
        self.inner.begun(begun)
    }

    fn ended(&self, ended: &Ended) {
        self.inner.ended(ended);
    }
}

/// The same with https. `None` where the request names no host, or asks for nothing that has a URL.
fn location(head: &Head<'_>, port: Option<u16>) -> Option<String> {
    let authority = std::str::from_utf8(head.authority()).ok()?;
    let host = match authority.rsplit_once(':') {
        Some((host, digits)) if digits.bytes().all(|byte| byte.is_ascii_digit()) => host,
        _ => authority,
    };
    let target = std::str::from_utf8(head.target()).ok()?;
    // An absolute form has the path behind its authority.
    let target = match target.split_once("://") {
        Some((_, rest)) => rest.find('/').map_or("/", |at| &rest[at..]),
        None => target,
    };
    if host.is_empty() || !target.starts_with('/') {
        return None;
    }
    let port = port.map_or_else(String::new, |port| format!(":{port}"));
    Some(format!("https://{host}{port}{target}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use flatout_wire::head::{HeadLimits, parse};

    #[test]
    fn it_leads_to_the_same_page() {
        for (line, host, port, expected) in [
            ("GET /a?b HTTP/1.1", "a.test", None, Some("https://a.test/a?b")),
            ("GET / HTTP/1.1", "a.test:80", Some(8443), Some("https://a.test:8443/")),
            ("GET / HTTP/1.1", "[::1]:80", None, Some("https://[::1]/")),
            ("GET / HTTP/1.1", "[::1]", None, Some("https://[::1]/")),
            ("GET http://b.test:80/x?y HTTP/1.1", "b.test:80", None, Some("https://b.test/x?y")),
            ("OPTIONS * HTTP/1.1", "a.test", None, None),
        ] {
            let text = format!("{line}\r\nHost: {host}\r\n\r\n");
            let mut fields = Vec::new();
            let head = parse(text.as_bytes(), &mut fields, &HeadLimits::default()).unwrap().unwrap();
            assert_eq!(location(&head, port).as_deref(), expected, "{line} {host}");
        }
    }
}
