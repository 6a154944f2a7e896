//! Messages as both peers read them: framing by RFC 9112, heads by `httparse`, bodies by a decoder of our own that shares no line with
//! the server's.

use std::borrow::Cow;
use std::io::Read;
use std::sync::LazyLock;

use flate2::read::GzDecoder;

/// Fields that a head may have.
const FIELDS_MAX: usize = 64;

/// All bodies are parts of this: each begins elsewhere, and no place looks like those near it. So a comparison is one of two slices.
static BYTES: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let mut bytes = vec![0; PLACES + BODY_BYTES_MAX];
    fastrand::Rng::with_seed(1).fill(&mut bytes);
    // Half as long when they are compressed.
    bytes.iter_mut().for_each(|byte| *byte = b'a' + *byte % 16);
    bytes
});

/// Where bodies begin.
const PLACES: usize = 4 << 20;

/// The longest.
pub(crate) const BODY_BYTES_MAX: usize = 900_000;

/// The body of this number, as far as it may go.
fn endless_body(tag: u32) -> &'static [u8] {
    &BYTES[tag.wrapping_mul(0x9E37_79B1) as usize % PLACES..][..BODY_BYTES_MAX]
}

/// A body of this length.
pub(crate) fn body(tag: u32, length: usize) -> &'static [u8] {
    &endless_body(tag)[..length]
}

/// Whether these are bytes of a body, from this place on.
pub(crate) fn is_part_of_body(tag: u32, first: usize, bytes: &[u8]) -> bool {
    let rest = endless_body(tag).get(first..);
    rest.and_then(|rest| rest.get(..bytes.len())) == Some(bytes)
}

/// How the end of a body is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Framing {
    /// There is no body.
    None,
    /// It has this many bytes.
    Length(usize),
    /// It comes in chunks.
    Chunked,
    /// It ends with the connection.
    Close,
}

/// A request's or response's head.
#[derive(Debug, Clone)]
pub(crate) struct Head {
    /// Method and target, or status.
    pub(crate) start: Start,
    pub(crate) fields: Vec<(String, String)>,
}

#[derive(Debug, Clone)]
pub(crate) enum Start {
    Request { method: String, target: String },
    Response { status: u16 },
}

impl Head {
    /// Parses a request's head, and returns its length too; `None` if it is not complete.
    pub(crate) fn request(bytes: &[u8]) -> Result<Option<(Head, usize)>, String> {
        let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
        let mut request = httparse::Request::new(&mut fields);
        match request.parse(bytes).map_err(|error| error.to_string())? {
            httparse::Status::Partial => Ok(None),
            httparse::Status::Complete(length) => {
                let start = Start::Request {
                    method: request.method.unwrap_or_default().to_owned(),
                    target: request.path.unwrap_or_default().to_owned(),
                };
                Ok(Some((Head { start, fields: owned(request.headers) }, length)))
            }
        }
    }

    /// Parses a response's head, as [`Head::request`].
    pub(crate) fn response(bytes: &[u8]) -> Result<Option<(Head, usize)>, String> {
        let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
        let mut response = httparse::Response::new(&mut fields);
        match response.parse(bytes).map_err(|error| error.to_string())? {
            httparse::Status::Partial => Ok(None),
            httparse::Status::Complete(length) => {
                let start = Start::Response { status: response.code.unwrap_or_default() };
                Ok(Some((Head { start, fields: owned(response.headers) }, length)))
            }
        }
    }

    /// The value of the only field of this name. Two are a mistake of the sender.
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        let mut found = self.fields.iter().filter(|(it, _)| it.eq_ignore_ascii_case(name));
        let value = found.next().map(|(_, value)| value.as_str());
        assert!(found.next().is_none(), "two fields {name}");
        value
    }

    /// All fields, with their values.
    pub(crate) fn pairs(&self) -> impl Iterator<Item = (&str, &str)> {
        self.fields.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// How its body ends, if it has one at all.
    pub(crate) fn framing(&self, otherwise: Framing) -> Result<Framing, String> {
        let length = self
            .field("content-length")
            .map(|value| value.parse().map_err(|_| format!("Content-Length: {value}")));
        match (self.field("transfer-encoding"), length.transpose()?) {
            (Some("chunked"), None) => Ok(Framing::Chunked),
            (None, Some(length)) => Ok(Framing::Length(length)),
            (None, None) => Ok(otherwise),
            (coding, length) => Err(format!("Transfer-Encoding: {coding:?} with Content-Length: {length:?}")),
        }
    }
}

fn owned(fields: &[httparse::Header<'_>]) -> Vec<(String, String)> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    fields.iter().map(|field| (field.name.to_owned(), text(field.value))).collect()
}

/// Takes a body from what was received.
#[derive(Debug)]
pub(crate) struct Decoder {
    framing: Framing,
    pub(crate) body: Vec<u8>,
    pub(crate) is_complete: bool,
}

impl Decoder {
    pub(crate) fn new(framing: Framing) -> Decoder {
        let is_complete = matches!(framing, Framing::None | Framing::Length(0));
        Decoder { framing, body: Vec::new(), is_complete }
    }

    /// Takes what belongs to the body from the front of `input`.
    pub(crate) fn take(&mut self, input: &mut Vec<u8>) -> Result<(), String> {
        if self.is_complete {
            return Ok(());
        }
        match self.framing {
            Framing::None => {}
            Framing::Close => self.body.append(input),
            Framing::Length(length) => {
                let missing = length - self.body.len();
                let taken = missing.min(input.len());
                self.body.extend_from_slice(&input[..taken]);
                input.drain(..taken);
                self.is_complete = self.body.len() == length;
            }
            Framing::Chunked => {
                let mut taken = 0;
                let result = self.take_chunks(input, &mut taken);
                input.drain(..taken);
                result?;
            }
        }
        Ok(())
    }

    /// Takes whole chunks; `taken` grows by their bytes.
    fn take_chunks(&mut self, input: &[u8], taken: &mut usize) -> Result<(), String> {
        loop {
            let rest = &input[*taken..];
            let size = httparse::parse_chunk_size(rest).map_err(|_| "a malformed chunk".to_owned())?;
            let httparse::Status::Complete((start, size)) = size else { return Ok(()) };
            let end = start + size as usize;
            let Some(line_end) = rest.get(end..end + 2) else { return Ok(()) };
            match (line_end == b"\r\n", size) {
                (true, _) => {}
                // No trailers are sent in a simulation.
                (false, 0) => return Err("trailers that nobody sent".to_owned()),
                (false, _) => return Err("a chunk without its end".to_owned()),
            }
            self.body.extend_from_slice(&rest[start..end]);
            *taken += end + 2;
            if size == 0 {
                self.is_complete = true;
                return Ok(());
            }
        }
    }

    /// The connection has ended.
    pub(crate) fn end(&mut self) {
        self.is_complete |= self.framing == Framing::Close;
    }
}

/// A body in chunks whose sizes are drawn.
pub(crate) fn chunked(random: &mut fastrand::Rng, body: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(body.len() + 64);
    let mut rest = body;
    while !rest.is_empty() {
        let size = match random.u8(..4) {
            0 => 1,
            1 => random.usize(1..=64),
            2 => random.usize(1..=4096),
            _ => rest.len(),
        };
        let (chunk, behind) = rest.split_at(size.min(rest.len()));
        out.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
        out.extend_from_slice(chunk);
        out.extend_from_slice(b"\r\n");
        rest = behind;
    }
    out.extend_from_slice(b"0\r\n\r\n");
    out
}

/// A body without its coding, as far as it has come.
pub(crate) fn decoded<'b>(
    coding: Option<&str>,
    body: &'b [u8],
    is_complete: bool,
) -> Result<Cow<'b, [u8]>, String> {
    match coding {
        None => Ok(Cow::Borrowed(body)),
        // Of half a body, what can be decoded is compared.
        Some("gzip") => {
            let mut whole = Vec::new();
            match GzDecoder::new(body).read_to_end(&mut whole) {
                Err(error) if is_complete && !body.is_empty() => Err(format!("a body of gzip: {error}")),
                _ => Ok(Cow::Owned(whole)),
            }
        }
        Some(other) => Err(format!("Content-Encoding: {other}, for which nobody has asked")),
    }
}
