//! Decodes gzip for clients that do not accept it.

use std::io::{self, ErrorKind, Write};

use bytes::Bytes;
use flate2::write::MultiGzDecoder;
use flatout_engine::{Body, BoxError, Filter, Response};
use flatout_wire::Status;
use flatout_wire::accept::{Coding, choose};

use super::rules::{add_vary, change_representation, is_untransformed};

/// The most bytes that one piece of a body, or a whole body in memory, may decode to. Text grows about tenfold, but zeros grow a thousandfold:
/// without a limit, a small response could fill the memory. Beyond it, the response is cut off, or replaced by 502 if it is in memory.
const DECODED_BYTES_MAX: usize = 16 << 20;

/// Decodes a response in gzip, unless the client accepts that. Other codings, parts of a body, and responses without a body stay as they are.
pub(crate) fn decode(is_head: bool, accept: Option<&[u8]>, response: &mut Response) {
    if !is_gzip(response) {
        return;
    }
    add_vary(response);
    // A client that sends no field may not know what gzip is.
    let is_accepted = accept.is_some_and(|accept| choose(Some(accept), &[Coding::Gzip]).is_some());
    if is_accepted || is_head {
        return;
    }
    match response.body_bytes() {
        Some(bytes) => {
            let mut decoder = Decoder::default();
            let decoded = decoder.piece_of(bytes).and_then(|mut plain| {
                plain.extend_from_slice(&decoder.end_of()?);
                Ok(plain)
            });
            // Like any malformed response of an upstream.
            let Ok(plain) = decoded else {
                *response = Response::with_status(Status::BAD_GATEWAY);
                return;
            };
            response.set_body(Body::Shared(plain.into()));
        }
        None if matches!(response.body(), Body::Pushed | Body::Stream(_)) => {
            response.set_filter(Box::new(Decoder::default()));
        }
        None => return,
    }
    response.remove_header("Content-Encoding");
    change_representation(response);
}

fn is_gzip(response: &Response) -> bool {
    let mut codings = response.field_all("content-encoding");
    let is_gzip =
        |coding: &[u8]| coding.eq_ignore_ascii_case(b"gzip") || coding.eq_ignore_ascii_case(b"x-gzip");
    let status = response.status();
    codings.next().is_some_and(is_gzip)
        && codings.next().is_none()
        && !status.is_bodyless()
        && status != Status::PARTIAL_CONTENT
        && !is_untransformed(response)
}

/// Decodes one body, of one or more members (RFC 1952, 2.2).
struct Decoder {
    inner: MultiGzDecoder<Bounded>,
    /// Whether it had any input: an empty body is not an incomplete one.
    has_begun: bool,
}

impl Default for Decoder {
    fn default() -> Decoder {
        Decoder { inner: MultiGzDecoder::new(Bounded::default()), has_begun: false }
    }
}

impl Decoder {
    fn piece_of(&mut self, bytes: &[u8]) -> io::Result<Vec<u8>> {
        self.has_begun |= !bytes.is_empty();
        self.inner.write_all(bytes)?;
        // All that is decoded, not only what fills the decoder's own buffer.
        self.inner.flush()?;
        Ok(std::mem::take(&mut self.inner.get_mut().0))
    }

    fn end_of(&mut self) -> io::Result<Vec<u8>> {
        if self.has_begun {
            self.inner.try_finish()?;
        }
        Ok(std::mem::take(&mut self.inner.get_mut().0))
    }
}

impl Filter for Decoder {
    fn piece(&mut self, bytes: Bytes) -> Result<Bytes, BoxError> {
        Ok(self.piece_of(&bytes)?.into())
    }

    fn end(&mut self) -> Result<Bytes, BoxError> {
        Ok(self.end_of()?.into())
    }
}

/// Holds at most [`DECODED_BYTES_MAX`] bytes.
#[derive(Default)]
struct Bounded(Vec<u8>);

impl Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.len() + bytes.len() > DECODED_BYTES_MAX {
            return Err(io::Error::new(ErrorKind::InvalidData, "a body in gzip decodes to too many bytes"));
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    fn response(coding: &str, body: &[u8]) -> Response {
        let mut response = Response::new();
        response.header("Content-Type", "text/plain").header("Content-Encoding", coding);
        response.header("ETag", "\"1\"").header("Accept-Ranges", "bytes");
        response.set_body(Body::Shared(Bytes::copy_from_slice(body)));
        response
    }

    /// All ways to cut a body into two pieces give the same.
    fn decoded(body: &[u8]) -> Option<Vec<u8>> {
        let whole = |cut: usize| {
            let mut decoder = Decoder::default();
            let (one, other) = body.split_at(cut);
            let mut all = decoder.piece(Bytes::copy_from_slice(one)).ok()?.to_vec();
            all.extend_from_slice(&decoder.piece(Bytes::copy_from_slice(other)).ok()?);
            all.extend_from_slice(&decoder.end().ok()?);
            Some(all)
        };
        let first = whole(0);
        assert!((1..=body.len()).all(|cut| whole(cut) == first));
        first
    }

    #[test]
    fn members_are_decoded_wherever_a_piece_ends() {
        let one = gzip(b"hello");
        assert_eq!(decoded(&one).as_deref(), Some(&b"hello"[..]));
        assert_eq!(decoded(&[&one[..], &gzip(b" you")].concat()).as_deref(), Some(&b"hello you"[..]));
        assert_eq!(decoded(&gzip(b"")).as_deref(), Some(&b""[..]));
        assert_eq!(decoded(b"").as_deref(), Some(&b""[..]));
        assert_eq!(decoded(&one[..one.len() - 1]), None);
        assert_eq!(decoded(b"hello"), None);
        assert_eq!(decoded(&[&one[..], &b"rubbish beyond the end"[..]].concat()), None);
    }

    #[test]
    fn a_body_of_zeros_does_not_fill_the_memory() {
        let bomb = gzip(&vec![0; 2 * DECODED_BYTES_MAX]);
        assert!(bomb.len() < 64 << 10);
        assert!(Decoder::default().piece(bomb.clone().into()).is_err());
        let mut response = response("gzip", &bomb);
        decode(false, None, &mut response);
        assert_eq!(response.status(), Status::BAD_GATEWAY);
    }

    #[test]
    fn clients_that_accept_gzip_get_it() {
        let body = gzip(b"hello");
        for (coding, accept, is_head, is_plain) in [
            ("gzip", None, false, true),
            ("X-Gzip", Some("br, identity"), false, true),
            ("gzip", Some("gzip;q=0"), false, true),
            ("gzip", Some("br, gzip;q=0.1"), false, false),
            ("gzip", Some("*"), false, false),
            ("gzip", None, true, false),
            ("br", None, false, false),
        ] {
            let mut response = response(coding, &body);
            decode(is_head, accept.map(str::as_bytes), &mut response);
            let expected = if is_plain { &b"hello"[..] } else { &body };
            assert_eq!(response.body_bytes(), Some(expected), "{coding} {accept:?} {is_head}");
            assert_eq!(response.field("content-encoding").is_none(), is_plain, "{coding} {accept:?}");
            assert_eq!(response.field("etag"), Some(if is_plain { &b"W/\"1\""[..] } else { b"\"1\"" }));
            assert_eq!(response.field("accept-ranges").is_none(), is_plain);
            assert_eq!(response.field("vary").is_some(), coding != "br");
        }
    }

    #[test]
    fn other_responses_stay_as_they_are() {
        let body = gzip(b"hello");
        let mut partial = response("gzip", &body);
        partial.set_status(Status::PARTIAL_CONTENT);
        let mut double = response("gzip", &body);
        double.header("Content-Encoding", "br");
        let mut fixed = response("gzip", &body);
        fixed.header("Cache-Control", "no-transform");
        for mut response in [partial, double, fixed] {
            decode(false, None, &mut response);
            assert_eq!(response.body_bytes(), Some(&body[..]));
            assert!(response.field("vary").is_none());
        }
        let mut pushed = response("gzip", &body);
        pushed.set_body(Body::Pushed);
        pushed.declare_length(30);
        decode(false, None, &mut pushed);
        assert_eq!((pushed.declared_length(), pushed.field("content-encoding")), (None, None));
    }
}
