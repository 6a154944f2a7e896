//! The requests: encoded in advance, templates filled in when they are sent, and the mix that picks among them.

use crate::template::{Filler, Piece, is_plain, pieces};

/// A request of the mix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// The method's token.
    pub method: String,
    /// Path and query.
    pub path: String,
    /// The Host field.
    pub host: String,
    /// Further fields, in order; one named Host replaces [`Request::host`].
    pub fields: Vec<(String, String)>,
    /// The body; without one, no Content-Length is sent.
    pub body: Option<Vec<u8>>,
    /// Its weight, relative to the weights of the others.
    pub weight: u32,
}

/// Requests as a thread sends them.
#[derive(Debug, Clone)]
pub struct Mix {
    kinds: Vec<Kind>,
    weight_sum: u64,
    filler: Filler,
    scratch: Vec<u8>,
}

#[derive(Debug, Clone)]
struct Kind {
    /// Sum of the weights up to and including this one.
    weight_end: u64,
    is_head: bool,
    /// The bytes of a whole batch, if there are no markers.
    ready: Option<Vec<u8>>,
    head: Vec<Piece>,
    body: Option<Vec<Piece>>,
}

impl Request {
    /// A GET of `path`.
    pub fn get(host: &str, path: &str) -> Request {
        Request {
            method: "GET".to_owned(),
            path: path.to_owned(),
            host: host.to_owned(),
            fields: Vec::new(),
            body: None,
            weight: 1,
        }
    }

    /// # Errors
    /// A method or field that would break the message, or that HTTP/2 does not allow.
    pub(crate) fn check(&self, is_http2: bool) -> Result<(), String> {
        let is_token = |text: &str| {
            !text.is_empty()
                && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte))
        };
        if !is_token(&self.method) {
            return Err(format!("method: got `{}`, need a token such as GET or POST", self.method));
        }
        for (name, value) in &self.fields {
            if !is_token(name) || value.bytes().any(|byte| byte.is_ascii_control() && byte != b'\t') {
                return Err(format!("header: got `{name}: {}`, need `Name: value`", value.escape_debug()));
            }
            if ["content-length", "transfer-encoding"].contains(&name.to_ascii_lowercase().as_str()) {
                return Err(format!("header: {name} is set by the body; leave it out"));
            }
            if is_http2 && !is_http2_field(name, value) {
                return Err(format!("header: HTTP/2 has no `{name}: {value}`; leave it out"));
            }
        }
        if is_http2 && self.method == "CONNECT" {
            return Err("method: CONNECT over HTTP/2 is not supported".to_owned());
        }
        let has_blank = self.path.bytes().any(|byte| !byte.is_ascii_graphic());
        if has_blank || self.host.bytes().any(|byte| !byte.is_ascii_graphic()) {
            return Err(format!("got path `{}`, need one without white space", self.path.escape_debug()));
        }
        if self.weight == 0 {
            return Err(format!("`{}`: got weight 0, need at least 1", self.path));
        }
        Ok(())
    }

    fn head(&self, close: bool) -> Vec<u8> {
        let mut head = format!("{} {} HTTP/1.1\r\n", self.method, self.path);
        let is = |name: &str, wanted: &str| name.eq_ignore_ascii_case(wanted);
        if !self.fields.iter().any(|(name, _)| is(name, "host")) {
            head.push_str(&format!("Host: {}\r\n", self.host));
        }
        for (name, value) in &self.fields {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        if close {
            head.push_str("Connection: close\r\n");
        }
        head.into_bytes()
    }
}

impl Mix {
    /// The mix of thread `index` of `threads`; `depth` copies of a request are sent at once.
    pub fn new(requests: &[Request], depth: usize, close: bool, thread: (usize, usize), seed: u64) -> Mix {
        let mut weight_end = 0;
        let kinds: Vec<Kind> = requests
            .iter()
            .map(|request| {
                weight_end += u64::from(request.weight);
                Kind::new(request, depth, close, weight_end)
            })
            .collect();
        Mix { kinds, weight_sum: weight_end, filler: Filler::new(thread, seed), scratch: Vec::new() }
    }

    /// Picks a request by weight.
    #[inline]
    pub fn pick(&mut self) -> usize {
        if self.kinds.len() == 1 {
            return 0;
        }
        let at = self.filler.below(self.weight_sum);
        self.kinds.partition_point(|kind| kind.weight_end <= at)
    }

    /// Whether this request is HEAD, whose responses have no body.
    #[inline]
    pub fn is_head(&self, kind: usize) -> bool {
        self.kinds[kind].is_head
    }

    /// The bytes of `depth` copies of this request.
    #[inline]
    pub fn bytes(&mut self, kind: usize, depth: usize) -> &[u8] {
        let kind = &self.kinds[kind];
        if let Some(ready) = &kind.ready {
            return ready;
        }
        self.scratch.clear();
        for _ in 0..depth {
            let body = kind.body.as_ref().map(|pieces| {
                let mut body = Vec::new();
                self.filler.fill(pieces, &mut body);
                body
            });
            self.filler.fill(&kind.head, &mut self.scratch);
            end_message(body.as_deref(), &mut self.scratch);
        }
        &self.scratch
    }
}

impl Kind {
    fn new(request: &Request, depth: usize, close: bool, weight_end: u64) -> Kind {
        let head = pieces(&request.head(close));
        let body = request.body.as_deref().map(pieces);
        let is_ready = is_plain(&head) && body.as_deref().is_none_or(is_plain);
        let ready = is_ready.then(|| {
            let mut once = request.head(close);
            end_message(request.body.as_deref(), &mut once);
            once.repeat(depth)
        });
        Kind { weight_end, is_head: request.method == "HEAD", ready, head, body }
    }
}

/// HTTP/2 has no connection-specific fields (RFC 9113 section 8.2.2).
fn is_http2_field(name: &str, value: &str) -> bool {
    let name = name.to_ascii_lowercase();
    let is_of_connection =
        ["connection", "keep-alive", "proxy-connection", "upgrade"].contains(&name.as_str());
    !is_of_connection && (name != "te" || value.eq_ignore_ascii_case("trailers"))
}

fn end_message(body: Option<&[u8]>, out: &mut Vec<u8>) {
    if let Some(body) = body {
        out.extend_from_slice(format!("Content-Length: {}\r\n", body.len()).as_bytes());
    }
    out.extend_from_slice(b"\r\n");
    out.extend_from_slice(body.unwrap_or_default());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(request: &Request, depth: usize) -> String {
        let mut mix = Mix::new(std::slice::from_ref(request), depth, false, (0, 1), 1);
        String::from_utf8(mix.bytes(0, depth).to_vec()).unwrap()
    }

    #[test]
    fn requests_are_encoded_beforehand() {
        let mut request = Request::get("h:1", "/a");
        assert_eq!(text(&request, 2), "GET /a HTTP/1.1\r\nHost: h:1\r\n\r\n".repeat(2));
        request.method = "POST".to_owned();
        request.fields = vec![("host".to_owned(), "other".to_owned())];
        request.body = Some(b"{}".to_vec());
        assert_eq!(text(&request, 1), "POST /a HTTP/1.1\r\nhost: other\r\nContent-Length: 2\r\n\r\n{}");
    }

    #[test]
    fn templates_are_filled_in() {
        let mut request = Request::get("h", "/{counter}/{pick:a}/{random:7-7}?{other}");
        request.body = Some(b"{\"n\":{counter}}".to_vec());
        let expected = "GET /1/a/7?{other} HTTP/1.1\r\nHost: h\r\nContent-Length: 7\r\n\r\n{\"n\":0}";
        assert_eq!(text(&request, 1), expected);
        let mut mix = Mix::new(&[Request::get("h", "/{counter}")], 1, true, (1, 3), 1);
        let mut line = || String::from_utf8(mix.bytes(0, 1)[..8].to_vec()).unwrap();
        assert_eq!((line(), line()), ("GET /1 H".to_owned(), "GET /4 H".to_owned()));
    }

    #[test]
    fn weights_are_kept() {
        let kinds = [1, 3].map(|weight| Request { weight, ..Request::get("h", "/") });
        let mut mix = Mix::new(&kinds, 1, false, (0, 1), 1);
        let second = (0..10_000).filter(|_| mix.pick() == 1).count();
        assert!((7_300..7_700).contains(&second), "{second}");
    }

    #[test]
    fn values_that_would_break_the_message_are_refused() {
        let with = |name: &str, value: &str| Request {
            fields: vec![(name.to_owned(), value.to_owned())],
            ..Request::get("h", "/")
        };
        for (request, expected) in [
            (with("A", "b\r\nC: d"), "need `Name: value`"),
            (with("A b", "c"), "need `Name: value`"),
            (with("Content-Length", "1"), "is set by the body"),
            (Request { method: "GE T".to_owned(), ..Request::get("h", "/") }, "need a token"),
            (Request::get("h", "/a b"), "without white space"),
            (Request { weight: 0, ..Request::get("h", "/") }, "got weight 0"),
        ] {
            let message = request.check(false).unwrap_err();
            assert!(message.contains(expected), "{message}");
        }
        assert_eq!(with("A", "b").check(true), Ok(()));
        for request in [
            with("Connection", "close"),
            with("TE", "gzip"),
            Request { method: "CONNECT".to_owned(), ..Request::get("h", "/") },
        ] {
            assert_eq!(request.check(false), Ok(()));
            assert!(request.check(true).is_err_and(|message| message.contains("HTTP/2")));
        }
    }
}
