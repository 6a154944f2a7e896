//! Requests as HTTP/2 field blocks: encoded in advance, or filled from templates when they are sent.
//!
//! Our encoder uses no dynamic table, so a block is valid on every connection.

use std::rc::Rc;

use flatout_wire::Method;
use flatout_wire::h2::hpack::{
    encode_authority, encode_field, encode_field_never_indexed, encode_method, encode_path, encode_scheme,
};

use crate::request::Request;
use crate::template::{Filler, Piece, is_plain, pieces};

/// The requests of a thread.
pub(crate) struct Blocks {
    kinds: Vec<BlockKind>,
    weight_sum: u64,
    filler: Filler,
    /// The current block, if it comes from a template.
    block: Vec<u8>,
    /// The current field value.
    value: Vec<u8>,
}

struct BlockKind {
    /// Sum of the weights up to and including this one.
    weight_end: u64,
    is_head: bool,
    /// The finished block, if it has no markers.
    ready: Option<Vec<u8>>,
    method: String,
    is_secure: bool,
    authority: Vec<Piece>,
    path: Vec<Piece>,
    /// Names in lower case.
    fields: Vec<(String, Vec<Piece>)>,
    body: Option<Content>,
}

enum Content {
    Ready(Rc<[u8]>),
    Template(Vec<Piece>),
}

/// A request to send.
pub(super) struct QueuedRequest<'b> {
    pub(super) block: &'b [u8],
    pub(super) is_head: bool,
    /// `None` if it has no content.
    pub(super) body: Option<Rc<[u8]>>,
}

impl Blocks {
    /// The requests of thread `index` of `threads`.
    pub(crate) fn new(requests: &[Request], is_secure: bool, thread: (usize, usize), seed: u64) -> Blocks {
        let mut weight_sum = 0;
        let mut kinds = Vec::with_capacity(requests.len());
        for request in requests {
            weight_sum += u64::from(request.weight);
            kinds.push(BlockKind::new(request, is_secure, weight_sum));
        }
        let filler = Filler::new(thread, seed);
        Blocks { kinds, weight_sum, filler, block: Vec::new(), value: Vec::new() }
    }

    /// Picks a request by weight, and fills it in.
    pub(super) fn next(&mut self) -> QueuedRequest<'_> {
        let Blocks { kinds, filler, block, value, .. } = self;
        let at = match kinds.len() {
            1 => 0,
            _ => {
                let at = filler.below(self.weight_sum);
                kinds.partition_point(|kind| kind.weight_end <= at)
            }
        };
        let kind = &kinds[at];
        let body = kind.body.as_ref().map(|content| match content {
            Content::Ready(bytes) => bytes.clone(),
            Content::Template(pieces) => {
                value.clear();
                filler.fill(pieces, value);
                Rc::from(&value[..])
            }
        });
        let block = match &kind.ready {
            Some(ready) => &ready[..],
            None => {
                block.clear();
                kind.encode(body.as_deref().map(<[u8]>::len), filler, value, block);
                &block[..]
            }
        };
        QueuedRequest { block, is_head: kind.is_head, body: body.filter(|bytes| !bytes.is_empty()) }
    }
}

impl BlockKind {
    fn new(request: &Request, is_secure: bool, weight_end: u64) -> BlockKind {
        let is_host = |name: &str| name.eq_ignore_ascii_case("host");
        let host = request.fields.iter().find(|(name, _)| is_host(name)).map(|(_, value)| value);
        let fields = request.fields.iter().filter(|(name, _)| !is_host(name));
        let body = request.body.as_deref().map(|bytes| {
            let template = pieces(bytes);
            if is_plain(&template) { Content::Ready(bytes.into()) } else { Content::Template(template) }
        });
        let mut kind = BlockKind {
            weight_end,
            is_head: request.method == "HEAD",
            ready: None,
            method: request.method.clone(),
            is_secure,
            authority: pieces(host.unwrap_or(&request.host).as_bytes()),
            path: pieces(request.path.as_bytes()),
            fields: fields
                .map(|(name, value)| (name.to_ascii_lowercase(), pieces(value.as_bytes())))
                .collect(),
            body,
        };
        let is_ready = is_plain(&kind.authority)
            && is_plain(&kind.path)
            && kind.fields.iter().all(|(_, value)| is_plain(value))
            && !matches!(kind.body, Some(Content::Template(_)));
        if is_ready {
            let mut block = Vec::new();
            let length = request.body.as_ref().map(Vec::len);
            kind.encode(length, &mut Filler::new((0, 1), 0), &mut Vec::new(), &mut block);
            kind.ready = Some(block);
        }
        kind
    }

    /// Encodes the field block of a request with a body of this length.
    fn encode(&self, length: Option<usize>, filler: &mut Filler, value: &mut Vec<u8>, out: &mut Vec<u8>) {
        let mut filled = |pieces: &[Piece], value: &mut Vec<u8>| {
            value.clear();
            filler.fill(pieces, value);
        };
        encode_method(Method::from_token(self.method.as_bytes()), self.method.as_bytes(), out);
        encode_scheme(self.is_secure, out);
        filled(&self.authority, value);
        encode_authority(value, out);
        filled(&self.path, value);
        encode_path(value, out);
        for (name, pieces) in &self.fields {
            filled(pieces, value);
            match name.as_str() {
                "authorization" | "cookie" => encode_field_never_indexed(name.as_bytes(), value, out),
                _ => encode_field(name.as_bytes(), value, out),
            }
        }
        if let Some(length) = length {
            encode_field(b"content-length", length.to_string().as_bytes(), out);
        }
    }
}

#[cfg(test)]
mod tests {
    use flatout_wire::h2::hpack::{BlockLimits, Decoded, Decoder, Sink};

    use super::*;

    #[derive(Default)]
    struct Lines(Vec<u8>);

    impl Sink for Lines {
        fn text(&mut self) -> &mut Vec<u8> {
            &mut self.0
        }

        fn field(&mut self, _: Decoded) {}
    }

    fn lines(blocks: &mut Blocks) -> (String, Option<Rc<[u8]>>) {
        let asked = blocks.next();
        let mut lines = Lines::default();
        let limits = BlockLimits { bytes_max: 1 << 16, fields_max: 100 };
        Decoder::default().block(asked.block, limits, &mut lines).unwrap();
        (String::from_utf8(lines.0).unwrap(), asked.body)
    }

    #[test]
    fn requests_become_blocks() {
        let mut request = Request::get("h:1", "/a?b=1");
        let mut blocks = Blocks::new(&[request.clone()], false, (0, 1), 1);
        let expected = ":method: GET\r\n:scheme: http\r\n:authority: h:1\r\n:path: /a?b=1\r\n";
        assert_eq!(lines(&mut blocks), (expected.to_owned(), None));
        request.method = "PUT".to_owned();
        request.fields = vec![("Host".to_owned(), "other".to_owned()), ("X-A".to_owned(), "b".to_owned())];
        request.body = Some(b"{}".to_vec());
        let (text, body) = lines(&mut Blocks::new(&[request], true, (0, 1), 1));
        let expected = ":method: PUT\r\n:scheme: https\r\n:authority: other\r\n:path: /a?b=1\r\nx-a: b\r\ncontent-length: 2\r\n";
        assert_eq!((text.as_str(), body.as_deref()), (expected, Some(&b"{}"[..])));
    }

    #[test]
    fn templates_are_filled_in() {
        let mut request = Request::get("h", "/{counter}");
        request.body = Some(b"n={random:12-12}".to_vec());
        let mut blocks = Blocks::new(&[request], false, (1, 3), 1);
        let mut path = || {
            let (text, body) = lines(&mut blocks);
            assert!(text.ends_with("content-length: 4\r\n") && body.as_deref() == Some(b"n=12"), "{text}");
            text.lines().find_map(|line| line.strip_prefix(":path: ").map(str::to_owned)).unwrap()
        };
        assert_eq!((path(), path()), ("/1".to_owned(), "/4".to_owned()));
    }
}
