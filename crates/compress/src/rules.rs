//! Decides which responses are compressed, and changes their heads.

use std::sync::Arc;

use bytes::Bytes;
use flatout_engine::{Body, Response};
use flatout_wire::Status;
use flatout_wire::accept::{Coding, choose};

use super::decode::decode;
use super::encoder::Encoder;
use super::filter::{Filtered, UnderWay};

/// The settings for compression.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Compress {
    /// The codings with their levels, in order of preference. If empty, nothing is compressed.
    pub levels: Vec<Level>,
    /// Content types, without parameters: `text/html`, `text/*`, `*/*`.
    pub types: Vec<String>,
    /// Bodies known to be shorter are not compressed.
    pub bytes_min: u64,
    /// Whether gzip is decoded for clients that do not accept it.
    pub decodes: bool,
}

/// A coding and its level.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Level {
    /// The coding.
    pub coding: Coding,
    /// Gzip: 1 to 9, Brotli: 0 to 11, Zstandard: 1 to 19.
    pub level: u8,
}

/// Among codings of equal weight to a client, the first is used. The levels cost about the same time, some 15 ns per
/// byte.
pub(crate) const DEFAULT_LEVELS: [Level; 3] = [
    Level { coding: Coding::Brotli, level: 4 },
    Level { coding: Coding::Zstd, level: 3 },
    Level { coding: Coding::Gzip, level: 5 },
];

/// Textual content types.
const DEFAULT_TYPES: [&str; 11] = [
    "text/*",
    "application/json",
    "application/*+json",
    "application/javascript",
    "application/wasm",
    "application/xml",
    "application/*+xml",
    "image/svg+xml",
    "application/x-ndjson",
    "application/vnd.ms-fontobject",
    "font/ttf",
];

/// A body in memory up to this size is compressed synchronously, in about a millisecond; a larger one is sent
/// uncompressed.
const AT_ONCE_BYTES_MAX: usize = 64 << 10;

/// A smaller response fits one packet anyway.
const DEFAULT_BYTES_MIN: u64 = 1 << 10;

impl Default for Compress {
    fn default() -> Self {
        Compress {
            levels: DEFAULT_LEVELS.to_vec(),
            types: DEFAULT_TYPES.map(str::to_owned).to_vec(),
            bytes_min: DEFAULT_BYTES_MIN,
            decodes: false,
        }
    }
}

impl Level {
    /// The levels that a coding has.
    pub fn range(coding: Coding) -> std::ops::RangeInclusive<u8> {
        match coding {
            Coding::Identity => 0..=0,
            Coding::Gzip => 1..=9,
            Coding::Brotli => 0..=11,
            Coding::Zstd => 1..=19,
        }
    }
}

/// Like [`Compress`], prepared for use with each response.
#[derive(Debug, Clone)]
pub struct Rules {
    plan: Compress,
    /// The codings only.
    available: Vec<Coding>,
    under_way: Arc<UnderWay>,
}

/// Whether a response is compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It is not compressed for any client.
    Never,
    /// It is not compressed for this client, but would be for others: it needs `Vary`.
    Plain,
    /// It is compressed.
    As(Level),
}

impl Rules {
    /// The rules of one route.
    pub fn new(plan: Compress) -> Rules {
        let codings = plan.levels.iter().map(|level| level.coding);
        Rules { available: codings.chain([Coding::Identity]).collect(), plan, under_way: Arc::default() }
    }

    /// Compresses a response if the rules allow it. `stored` finds the body in a coding, if it was compressed in
    /// advance.
    pub fn apply(
        &self,
        is_head: bool,
        accept: Option<&[u8]>,
        stored: impl FnOnce(Coding, &[u8]) -> Option<Bytes>,
        response: &mut Response,
    ) {
        if self.plan.decodes {
            decode(is_head, accept, response);
        }
        let verdict = self.verdict(is_head, accept, response);
        let is_done = match verdict {
            Verdict::Never => return,
            Verdict::Plain => false,
            Verdict::As(level) => match response.body_bytes().and_then(|plain| stored(level.coding, plain)) {
                Some(bytes) => {
                    response.set_body(Body::Shared(bytes));
                    true
                }
                None => self.compress(level, response),
            },
        };
        if is_done { verdict } else { Verdict::Plain }.write(response);
    }

    /// Compresses a body now, or while it is sent. Returns whether that is possible.
    fn compress(&self, level: Level, response: &mut Response) -> bool {
        let Some(bytes) = response.body_bytes() else {
            let filter = self.under_way.begin().and_then(|seat| Filtered::new(level, seat));
            return filter.map(|filter| response.set_filter(Box::new(filter))).is_some();
        };
        if bytes.len() > AT_ONCE_BYTES_MAX {
            return false;
        }
        let Some(Ok(bytes)) = Encoder::new(level).map(|encoder| encoder.end(bytes)) else { return false };
        response.set_body(Body::Shared(bytes.into()));
        true
    }

    /// The verdict on a response to a request with this `Accept-Encoding`.
    pub(crate) fn verdict(&self, is_head: bool, accept: Option<&[u8]>, response: &Response) -> Verdict {
        if !self.fits(response) {
            return Verdict::Never;
        }
        let coding = match is_head {
            // There is nothing to compress, and the compressed length is not known.
            true => Coding::Identity,
            false => choose(accept, &self.available).unwrap_or(Coding::Identity),
        };
        match self.plan.levels.iter().find(|level| level.coding == coding) {
            Some(level) => Verdict::As(*level),
            None => Verdict::Plain,
        }
    }

    fn fits(&self, response: &Response) -> bool {
        let status = response.status();
        let has_text = !status.is_bodyless() && status != Status::PARTIAL_CONTENT;
        has_text
            && !self.plan.levels.is_empty()
            && self.is_long_enough(response)
            && response.field("content-type").is_some_and(|value| self.has_type(value))
            && response.field("content-encoding").is_none()
            && !is_untransformed(response)
    }

    fn is_long_enough(&self, response: &Response) -> bool {
        let length = match response.body() {
            Body::Pushed | Body::Empty => response.declared_length(),
            Body::Stream(body) => body.size_hint().exact().or(response.declared_length()),
            _ => response.body_bytes().map(|bytes| bytes.len() as u64),
        };
        // The length of a body that is sent as it arrives may be unknown.
        match (length, response.body()) {
            (Some(length), _) => length >= self.plan.bytes_min,
            (None, body) => matches!(body, Body::Pushed | Body::Stream(_)),
        }
    }

    fn has_type(&self, value: &[u8]) -> bool {
        let end = value.iter().position(|&byte| byte == b';').unwrap_or(value.len());
        let Some(this) = value.get(..end).map(<[u8]>::trim_ascii) else { return false };
        self.plan.types.iter().any(|wanted| is_of_type(this, wanted.as_bytes()))
    }
}

impl Verdict {
    /// Changes a response's head accordingly. The caller handles the body.
    pub(crate) fn write(self, response: &mut Response) {
        if self == Verdict::Never {
            return;
        }
        add_vary(response);
        if let Verdict::As(level) = self {
            response.header("Content-Encoding", level.coding.token());
            change_representation(response);
        }
    }
}

/// Adds `Vary: Accept-Encoding`, unless the response has it.
pub(crate) fn add_vary(response: &mut Response) {
    let names_it = |(name, value): (&[u8], &[u8])| {
        name.eq_ignore_ascii_case(b"vary")
            && (has_option(value, b"accept-encoding") || has_option(value, b"*"))
    };
    if !response.fields().any(names_it) {
        response.header("Vary", "Accept-Encoding");
    }
}

/// Changes the fields of a response that is another representation now, whose ranges and checksums differ.
pub(crate) fn change_representation(response: &mut Response) {
    for name in ["Accept-Ranges", "Content-MD5", "Digest", "Content-Digest", "Repr-Digest"] {
        if response.field(name).is_some() {
            response.remove_header(name);
        }
    }
    let etag = response.field("etag").filter(|etag| etag.starts_with(b"\"")).map(<[u8]>::to_vec);
    if let Some(etag) = etag {
        response.remove_header("ETag").header("ETag", [b"W/", &etag[..]].concat());
    }
}

/// Whether a response has to stay as it is: a part of a body, or one that says so (RFC 9111, 5.2.2.6).
pub(crate) fn is_untransformed(response: &Response) -> bool {
    response.field("content-range").is_some()
        || response.fields().any(|(name, value)| {
            name.eq_ignore_ascii_case(b"cache-control") && has_option(value, b"no-transform")
        })
}

/// Whether a list of options contains this one.
fn has_option(value: &[u8], option: &[u8]) -> bool {
    value.split(|&byte| byte == b',').any(|this| this.trim_ascii().eq_ignore_ascii_case(option))
}

/// Whether a media type matches a pattern in which `*` stands for either half.
fn is_of_type(this: &[u8], wanted: &[u8]) -> bool {
    let Some(star) = wanted.iter().position(|&byte| byte == b'*') else {
        return this.eq_ignore_ascii_case(wanted);
    };
    let (before, behind) = wanted.split_at(star);
    let behind = behind.get(1..).unwrap_or_default();
    if behind.starts_with(b"/") {
        return behind == b"/*";
    }
    this.len() >= before.len() + behind.len()
        && this.get(..before.len()).is_some_and(|start| start.eq_ignore_ascii_case(before))
        && this.get(this.len() - behind.len()..).is_some_and(|end| end.eq_ignore_ascii_case(behind))
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use flatout_engine::BoxError;
    use http_body::{Frame, SizeHint};

    use super::*;

    fn response(fields: &[(&str, &str)], body: usize) -> Response {
        let mut response = Response::new();
        for (name, value) in fields {
            response.header(name, value);
        }
        response.buffer().resize(body, b'x');
        response
    }

    fn head(response: &Response) -> Vec<String> {
        let line =
            |(name, value)| format!("{}: {}", String::from_utf8_lossy(name), String::from_utf8_lossy(value));
        response.fields().map(line).collect()
    }

    fn verdict(accept: &str, response: &Response) -> Verdict {
        Rules::new(Compress::default()).verdict(false, Some(accept.as_bytes()), response)
    }

    #[test]
    fn the_client_chooses_among_the_offered_codings() {
        let page = response(&[("Content-Type", "text/html; charset=utf-8")], 2000);
        let [brotli, zstd, gzip] = DEFAULT_LEVELS;
        for (accept, expected) in [
            ("gzip, deflate, br, zstd", Verdict::As(brotli)),
            ("gzip;q=1, br;q=0.5", Verdict::As(gzip)),
            ("zstd", Verdict::As(zstd)),
            ("identity", Verdict::Plain),
            ("", Verdict::Plain),
            ("identity;q=0", Verdict::Plain),
        ] {
            assert_eq!(verdict(accept, &page), expected, "{accept}");
        }
        let rules = Rules::new(Compress::default());
        assert_eq!(rules.verdict(false, None, &page), Verdict::Plain);
        assert_eq!(rules.verdict(true, Some(b"br"), &page), Verdict::Plain);
        let only = Rules::new(Compress { levels: vec![gzip], ..Compress::default() });
        assert_eq!(only.verdict(false, Some(b"br, gzip;q=0.1"), &page), Verdict::As(gzip));
    }

    #[test]
    fn unsuitable_responses_are_not_compressed() {
        let text = ("Content-Type", "text/plain");
        for (fields, bytes, status) in [
            (vec![("Content-Type", "image/png")], 2000, 200),
            (vec![("Content-Type", "text")], 2000, 200),
            (vec![], 2000, 200),
            (vec![text], 1023, 200),
            (vec![text], 2000, 206),
            (vec![text], 2000, 304),
            (vec![text, ("Content-Range", "bytes 0-1/2")], 2000, 200),
            (vec![text, ("Content-Encoding", "gzip")], 2000, 200),
            (vec![text, ("Cache-Control", "public, No-Transform")], 2000, 200),
            (vec![text, ("Cache-Control", "public"), ("Cache-Control", "no-transform")], 2000, 200),
        ] {
            let mut response = response(&fields, bytes);
            response.set_status(Status::from_code(status).unwrap());
            assert_eq!(verdict("br", &response), Verdict::Never, "{fields:?} {bytes} {status}");
            let before = head(&response);
            Verdict::Never.write(&mut response);
            assert_eq!(head(&response), before);
        }
    }

    #[test]
    fn pushed_bodies_count_with_their_declared_length() {
        let pushed = |length: Option<u64>| {
            let mut response = response(&[("Content-Type", "text/plain")], 0);
            response.set_body(Body::Pushed);
            if let Some(length) = length {
                response.declare_length(length);
            }
            verdict("gzip", &response)
        };
        let gzip = Verdict::As(DEFAULT_LEVELS[2]);
        assert_eq!([pushed(None), pushed(Some(1024)), pushed(Some(1023))], [gzip, gzip, Verdict::Never]);
    }

    #[test]
    fn streamed_bodies_count_with_their_length() {
        let streamed = |hint: SizeHint| {
            let mut response = response(&[("Content-Type", "text/plain")], 0);
            response.set_body(Body::Stream(Box::pin(Streamed(hint))));
            verdict("gzip", &response)
        };
        let gzip = Verdict::As(DEFAULT_LEVELS[2]);
        let of = |bytes| streamed(SizeHint::with_exact(bytes));
        assert_eq!([streamed(SizeHint::default()), of(1024), of(1023)], [gzip, gzip, Verdict::Never]);
    }

    struct Streamed(SizeHint);

    impl http_body::Body for Streamed {
        type Data = Bytes;
        type Error = BoxError;

        fn poll_frame(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
            Poll::Ready(None)
        }

        fn size_hint(&self) -> SizeHint {
            self.0
        }
    }

    #[test]
    fn heads_describe_the_compression() {
        let fields = [
            ("Content-Type", "text/css"),
            ("ETag", "\"v1\""),
            ("Accept-Ranges", "bytes"),
            ("Vary", "Origin"),
        ];
        let mut compressed = response(&fields, 2000);
        verdict("gzip", &compressed).write(&mut compressed);
        let expected = [
            "Content-Type: text/css",
            "Vary: Origin",
            "Vary: Accept-Encoding",
            "Content-Encoding: gzip",
            "ETag: W/\"v1\"",
        ];
        assert_eq!(head(&compressed), expected);
        let mut plain = response(&[fields[0], fields[1], ("Vary", "accept-encoding, Origin")], 2000);
        let before = head(&plain);
        verdict("identity", &plain).write(&mut plain);
        assert_eq!(head(&plain), before);
    }

    #[test]
    fn types_may_have_stars() {
        for (this, wanted, expected) in [
            ("text/html", "text/*", true),
            ("TEXT/HTML", "text/html", true),
            ("application/hal+json", "application/*+json", true),
            ("application/json", "application/*+json", false),
            ("image/png", "*/*", true),
            ("image/png", "text/*", false),
            ("text", "text/*", false),
        ] {
            assert_eq!(is_of_type(this.as_bytes(), wanted.as_bytes()), expected, "{this} {wanted}");
        }
    }
}
