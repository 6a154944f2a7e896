//! The head of a request: request line and field lines, parsed strictly (RFC 9112 sections 2 to 6).
//!
//! ```text
//! GET /quotes?day=1 HTTP/1.1\r\n        method, target, version
//! Host: example.org\r\n                 field lines, as spans into the same bytes
//! \r\n                                  end: what follows is body or the next request
//! ```
//!
//! Nothing is copied or allocated: a [`Head`] borrows the bytes it was parsed from, and a table of [`Field`]s that
//! the caller reuses for each request. [`field`] parses the field lines.
//!
//! Request smuggling needs two parsers that disagree. This one accepts a single spelling of everything that frames a
//! message, and rejects the rest with a [`Fault`].

pub use crate::field::Field;
use crate::field::{
    self, FieldLine, HOST, PLAIN, TARGET, TOKEN, field_line_named, is_same_name, skip, span_end,
};
use crate::framing;
use crate::{Method, Status};

/// The limits of one head. Beyond them the response is 431 (or 414 for the target).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeadLimits {
    /// Bytes of the whole head, final CRLF included; at most [`HEAD_BYTES_CEILING`].
    pub head_bytes_max: usize,
    /// Bytes of the request target.
    pub target_bytes_max: usize,
    /// Field lines.
    pub fields_max: usize,
}

/// The largest possible head, whatever is configured: spans are 16 bits wide.
pub const HEAD_BYTES_CEILING: usize = u16::MAX as usize;

/// Empty lines skipped before a request line: RFC 9112 section 2.2 asks for at least one.
const EMPTY_LINES_MAX: usize = 2;

impl Default for HeadLimits {
    fn default() -> Self {
        HeadLimits { head_bytes_max: 16 << 10, target_bytes_max: 8 << 10, fields_max: 100 }
    }
}

/// The HTTP versions that this parser accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// HTTP/1.0
    Http10,
    /// HTTP/1.1
    Http11,
    /// HTTP/2: its head was assembled by [`h2`](crate::h2).
    Http2,
}

/// How the body that follows a head is delimited (RFC 9112 section 6.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Framing {
    /// No body follows.
    None,
    /// This many bytes follow, at least one.
    Length(u64),
    /// Chunked transfer coding.
    Chunked,
}

impl Framing {
    /// The bytes of the body, if they are known from the head.
    pub fn length(self) -> Option<u64> {
        match self {
            Framing::None => Some(0),
            Framing::Length(length) => Some(length),
            Framing::Chunked => None,
        }
    }
}

/// The head of one request.
#[derive(Debug, Clone, Copy)]
pub struct Head<'b> {
    bytes: &'b [u8],
    fields: &'b [Field],
    spans: Spans,
    /// The method; the token itself is [`Head::method_name`].
    pub method: Method,
    /// The version in the request line.
    pub version: Version,
    /// What follows the head.
    pub framing: Framing,
    /// Whether the client wants to keep the connection after the response (RFC 9112 section 9.3).
    pub keep_alive: bool,
    /// Whether the client waits for `100 Continue` before it sends the body.
    pub expects_continue: bool,
    /// Whether the path contains a byte for which [`crate::target::normal_path`] must run: `%`, `\` or a segment that
    /// starts with a dot.
    pub path_needs_care: bool,
}

/// The positions of the parts of a request line; those of a path or an authority may be empty.
#[derive(Debug, Clone, Copy)]
struct Spans {
    method_bytes: u16,
    target_at: u16,
    target_bytes: u16,
    path_at: u16,
    path_bytes: u16,
    /// Of an absolute target, otherwise of Host.
    authority_at: u16,
    authority_bytes: u16,
}

/// What is wrong with a head. The response is [`Fault::status`], and the connection is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The method is empty or contains a byte that is not a token byte.
    Method,
    /// The target contains a byte that no URI has, or has none of the four forms of RFC 9112 section 3.2.
    Target,
    /// The target is longer than its limit.
    TargetTooLong,
    /// The request line does not end in ` HTTP/1.0` or ` HTTP/1.1` and CRLF.
    RequestLine,
    /// A well-formed version of another major number.
    Version,
    /// A field line without a colon, with an empty name, or with white space before the colon.
    FieldName,
    /// A bare CR, bare LF, NUL or other control byte in a field line, or a folded line.
    FieldValue,
    /// Too many field lines.
    TooManyFields,
    /// The head is longer than its limit.
    HeadTooLong,
    /// No Host in HTTP/1.1, two of them, or one that is not `host[:port]`.
    Host,
    /// Content-Length is not one number, is repeated, or comes together with Transfer-Encoding.
    ContentLength,
    /// A Content-Length over 2^63.
    ContentLengthTooLarge,
    /// Transfer-Encoding in HTTP/1.0, twice, or malformed.
    TransferEncoding,
    /// A transfer coding other than `chunked`.
    TransferCoding,
    /// An expectation other than `100-continue`.
    Expectation,
    /// HTTP/2 asks for a protocol other than WebSocket (`:protocol`).
    Protocol,
}

impl Fault {
    /// The status of the response.
    pub fn status(self) -> Status {
        match self {
            Fault::TargetTooLong => Status::URI_TOO_LONG,
            Fault::Version => Status::HTTP_VERSION_NOT_SUPPORTED,
            Fault::TooManyFields | Fault::HeadTooLong => Status::REQUEST_HEADER_FIELDS_TOO_LARGE,
            Fault::ContentLengthTooLarge => Status::CONTENT_TOO_LARGE,
            Fault::TransferCoding | Fault::Protocol => Status::NOT_IMPLEMENTED,
            Fault::Expectation => Status::EXPECTATION_FAILED,
            _ => Status::BAD_REQUEST,
        }
    }

    /// One line for the client's developer, without any of the client's text.
    pub fn reason(self) -> &'static str {
        match self {
            Fault::Method => "the method is not a token",
            Fault::Target => "the request target is malformed",
            Fault::TargetTooLong => "the request target is too long",
            Fault::RequestLine => "the request line is not `METHOD target HTTP/1.1` and CRLF",
            Fault::Version => "only HTTP/1.0 and HTTP/1.1 are supported",
            Fault::FieldName => "a field name is malformed",
            Fault::FieldValue => "a field value is malformed",
            Fault::TooManyFields => "too many header fields",
            Fault::HeadTooLong => "the head of the request is too long",
            Fault::Host => "exactly one Host field with host[:port] is needed",
            Fault::ContentLength => {
                "Content-Length is malformed, repeated, or combined with Transfer-Encoding"
            }
            Fault::ContentLengthTooLarge => "Content-Length is too large",
            Fault::TransferEncoding => "Transfer-Encoding is malformed, repeated or not allowed here",
            Fault::TransferCoding => "chunked is the only supported transfer coding",
            Fault::Expectation => "100-continue is the only supported expectation",
            Fault::Protocol => "WebSocket is the only protocol that a stream can change to",
        }
    }
}

impl<'b> Head<'b> {
    /// Bytes of the head, including leading empty lines and the final CRLF.
    #[inline]
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Never true: a head has a request line.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The bytes that the head was parsed from.
    pub fn bytes(&self) -> &'b [u8] {
        self.bytes
    }

    /// The request line as sent, without the line end.
    #[inline]
    pub fn request_line(&self) -> &'b [u8] {
        let target_at = usize::from(self.spans.target_at);
        let start = target_at - 1 - usize::from(self.spans.method_bytes);
        let end = target_at + usize::from(self.spans.target_bytes) + " HTTP/1.1".len();
        self.bytes.get(start..end).unwrap_or_default()
    }

    /// The method's token: as sent, unless [`Head::method`] was changed since.
    pub fn method_name(&self) -> &'b [u8] {
        if self.method != Method::Other {
            return self.method.name().as_bytes();
        }
        let end = usize::from(self.spans.target_at) - 1;
        &self.bytes[end - usize::from(self.spans.method_bytes)..end]
    }

    /// A copy of the bytes, from which [`parse_kept`] makes this head again: with the method that it has now.
    pub fn kept_bytes(&self) -> Vec<u8> {
        let end = usize::from(self.spans.target_at) - 1;
        let (before, rest) = self.bytes.split_at(end);
        let (before, sent) = before.split_at(end - usize::from(self.spans.method_bytes));
        match self.method_name() {
            name if name == sent => self.bytes.to_vec(),
            name => [before, name, rest].concat(),
        }
    }

    /// The request target as sent.
    pub fn target(&self) -> &'b [u8] {
        self.span(self.spans.target_at, self.spans.target_bytes)
    }

    /// The path as sent, without the query: `/` if an absolute form has none, `*` or the authority for the other two
    /// forms.
    #[inline]
    pub fn path(&self) -> &'b [u8] {
        if self.spans.path_bytes == 0 { b"/" } else { self.span(self.spans.path_at, self.spans.path_bytes) }
    }

    /// The query as sent: what follows the first `?` of the target.
    pub fn query(&self) -> Option<&'b [u8]> {
        let path_end = usize::from(self.spans.path_at) + usize::from(self.spans.path_bytes);
        let target_end = usize::from(self.spans.target_at) + usize::from(self.spans.target_bytes);
        (path_end < target_end).then(|| &self.bytes[path_end + 1..target_end])
    }

    /// Writes the path and the query as sent: the target in origin form, whatever form it was sent in.
    pub fn write_origin_form(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.path());
        if let Some(query) = self.query() {
            out.push(b'?');
            out.extend_from_slice(query);
        }
    }

    /// `host[:port]`: of an absolute target, otherwise of Host; empty only if an HTTP/1.0 request has none.
    pub fn authority(&self) -> &'b [u8] {
        self.span(self.spans.authority_at, self.spans.authority_bytes)
    }

    /// The field lines in order: name as sent, value without surrounding white space.
    pub fn fields(&self) -> impl Iterator<Item = (&'b [u8], &'b [u8])> + use<'b> {
        let head = *self;
        self.fields.iter().map(move |field| {
            (head.span(field.name_at, field.name_bytes), head.span(field.value_at, field.value_bytes))
        })
    }

    /// The same as spans in [`Head::bytes`].
    pub fn lines(&self) -> &'b [Field] {
        self.fields
    }

    /// The value of the first field with this name, ignoring case. Costs a pass over the fields.
    pub fn field(&self, name: &str) -> Option<&'b [u8]> {
        // Most names already differ in length, which is cheap to compare.
        let mut fields = self.fields.iter().filter(|field| usize::from(field.name_bytes) == name.len());
        let name = name.as_bytes();
        let found = fields.find(|field| is_same_name(self.span(field.name_at, field.name_bytes), name))?;
        Some(self.span(found.value_at, found.value_bytes))
    }

    /// The values of all fields with this name.
    pub fn field_all<'n>(&self, name: &'n str) -> impl Iterator<Item = &'b [u8]> + use<'b, 'n> {
        self.fields()
            .filter(move |(this, _)| this.eq_ignore_ascii_case(name.as_bytes()))
            .map(|(_, value)| value)
    }

    fn span(&self, at: u16, bytes: u16) -> &'b [u8] {
        &self.bytes[usize::from(at)..usize::from(at) + usize::from(bytes)]
    }
}

/// Parses one head at the start of `bytes`; `fields` is cleared and filled with the spans.
///
/// `Ok(None)` means that the head is incomplete: call again with more bytes. Errors are reported as soon as they are
/// certain, including a head that cannot end within its limit.
///
/// # Errors
/// The first [`Fault`] in the order of the bytes; faults of framing come last.
pub fn parse<'b>(
    bytes: &'b [u8],
    fields: &'b mut Vec<Field>,
    limits: &HeadLimits,
) -> Result<Option<Head<'b>>, Fault> {
    let head_bytes_max = limits.head_bytes_max.min(HEAD_BYTES_CEILING);
    let whole = bytes;
    let bytes = &bytes[..bytes.len().min(head_bytes_max)];
    match parse_within::<false>(bytes, fields, limits) {
        Ok(head) => Ok(Some(head)),
        Err(Stop::Partial) if whole.len() >= head_bytes_max => Err(Fault::HeadTooLong),
        Err(Stop::Partial) => Ok(None),
        Err(Stop::Fault(fault)) => Err(fault),
    }
}

/// Parses a stored head again ([`Head::kept_bytes`]), of any version. `framing` is its original framing, if known: the
/// text of an HTTP/2 head does not say whether a body without a length follows it. Returns `None` if it is not a
/// head.
pub fn parse_kept<'b>(
    bytes: &'b [u8],
    fields: &'b mut Vec<Field>,
    framing: Option<Framing>,
) -> Option<Head<'b>> {
    const LIMITS: HeadLimits = HeadLimits {
        head_bytes_max: HEAD_BYTES_CEILING,
        target_bytes_max: HEAD_BYTES_CEILING,
        fields_max: HEAD_BYTES_CEILING,
    };
    let head = parse_within::<true>(bytes, fields, &LIMITS).ok()?;
    Some(Head { framing: framing.unwrap_or(head.framing), ..head })
}

/// Parses the HTTP/2 request line at the start of `text`, which was assembled from pseudo-header fields, by the rules
/// of HTTP/1.
pub(crate) fn line_of_h2(text: &[u8], limits: &HeadLimits) -> Result<RequestLine, Fault> {
    match request_line::<true>(text.len(), text, limits) {
        Ok((line, [])) if line.version == Version::Http2 => Ok(line),
        Ok(_) | Err(Stop::Partial) => Err(Fault::RequestLine),
        Err(Stop::Fault(fault)) => Err(fault),
    }
}

/// An HTTP/2 head: the line parsed by [`line_of_h2`], and the fields after it. Its authority is in the field `host`.
pub(crate) fn of_h2<'b>(
    bytes: &'b [u8],
    fields: &'b [Field],
    line: RequestLine,
    host: Option<Field>,
    framing: Framing,
    expects_continue: bool,
) -> Head<'b> {
    let mut spans = line.spans;
    if let Some(host) = host {
        (spans.authority_at, spans.authority_bytes) = (host.value_at, host.value_bytes);
    }
    Head {
        bytes,
        fields,
        spans,
        method: line.method,
        version: Version::Http2,
        framing,
        keep_alive: true,
        expects_continue: expects_continue && framing != Framing::None,
        path_needs_care: line.path_needs_care,
    }
}

/// Why parsing stopped.
enum Stop {
    /// Valid so far, but incomplete.
    Partial,
    Fault(Fault),
}

impl From<field::LineStop> for Stop {
    fn from(stop: field::LineStop) -> Stop {
        match stop {
            field::LineStop::Partial => Stop::Partial,
            field::LineStop::Name => Stop::Fault(Fault::FieldName),
            field::LineStop::Value => Stop::Fault(Fault::FieldValue),
        }
    }
}

impl From<framing::FramingFault> for Fault {
    fn from(fault: framing::FramingFault) -> Fault {
        match fault {
            framing::FramingFault::Length => Fault::ContentLength,
            framing::FramingFault::LengthTooLarge => Fault::ContentLengthTooLarge,
            framing::FramingFault::Encoding => Fault::TransferEncoding,
            framing::FramingFault::Coding => Fault::TransferCoding,
        }
    }
}

impl From<Fault> for Stop {
    fn from(fault: Fault) -> Stop {
        Stop::Fault(fault)
    }
}

#[inline(always)]
fn parse_within<'b, const KEPT: bool>(
    bytes: &'b [u8],
    fields: &'b mut Vec<Field>,
    limits: &HeadLimits,
) -> Result<Head<'b>, Stop> {
    fields.clear();
    let (request, lines) = request_line::<KEPT>(bytes.len(), skip_empty_lines(bytes)?, limits)?;
    let mut seen = Framed::default();
    let behind = field_lines(bytes.len(), lines, fields, limits.fields_max, &mut seen)?;
    seen.finish(&bytes[..bytes.len() - behind.len()], fields, request)
}

/// Parses the field lines at the start of `rest`, which is the end of `bytes_all` bytes, and the empty line after
/// them. Returns what follows the head.
#[inline(never)]
fn field_lines<'b>(
    bytes_all: usize,
    mut rest: &'b [u8],
    fields: &mut Vec<Field>,
    fields_max: usize,
    seen: &mut Framed,
) -> Result<&'b [u8], Stop> {
    loop {
        let behind_name = skip(rest, TOKEN);
        if behind_name.len() == rest.len() {
            match rest {
                [b'\r', b'\n', behind @ ..] => return Ok(behind),
                [] | [b'\r'] => return Err(Stop::Partial),
                [b'\r', ..] => return Err(Fault::FieldName.into()),
                _ => {}
            }
        }
        if fields.len() == fields_max {
            return Err(Fault::TooManyFields.into());
        }
        let line = field_line_named(rest, behind_name)?;
        let field = line.field(bytes_all);
        seen.note(&line, field)?;
        fields.push(field);
        rest = line.next;
    }
}

fn skip_empty_lines(bytes: &[u8]) -> Result<&[u8], Stop> {
    let mut rest = bytes;
    for _ in 0..=EMPTY_LINES_MAX {
        match rest {
            [b'\r', b'\n', behind @ ..] => rest = behind,
            [] | [b'\r'] => return Err(Stop::Partial),
            [b'\r' | b'\n', ..] => return Err(Fault::RequestLine.into()),
            _ => return Ok(rest),
        }
    }
    Err(Fault::RequestLine.into())
}

/// A request line.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RequestLine {
    spans: Spans,
    method: Method,
    version: Version,
    path_needs_care: bool,
}

/// Parses the request line at the start of `text`, which is the end of `bytes_all` bytes. Returns it, and what
/// follows it. `KEPT`: also an HTTP/2 line, which no client may send as text.
#[inline(always)]
fn request_line<'b, const KEPT: bool>(
    bytes_all: usize,
    text: &'b [u8],
    limits: &HeadLimits,
) -> Result<(RequestLine, &'b [u8]), Stop> {
    let (method, method_bytes, text) = method(text)?;
    let target_at = bytes_all - text.len();
    let Scanned { behind, path_bytes, care } = scan_target(text);
    let target_bytes = text.len() - behind.len();
    if target_bytes > limits.target_bytes_max {
        return Err(Fault::TargetTooLong.into());
    }
    let line_end = match behind {
        [b' ', line_end @ ..] => line_end,
        [] => return Err(Stop::Partial),
        [b'\r' | b'\n', ..] => return Err(Fault::RequestLine.into()),
        _ => return Err(Fault::Target.into()),
    };
    let target = &text[..target_bytes];
    let (version, lines) = match line_end.strip_prefix(b"HTTP/2.0\r\n") {
        Some(lines) if KEPT => (Version::Http2, lines),
        _ => version(line_end)?,
    };
    let has_query = path_bytes.is_some();
    let path_bytes = path_bytes.unwrap_or(target_bytes);

    // No head is longer than 16 bits can express.
    let mut spans = Spans {
        method_bytes: method_bytes as u16,
        target_at: target_at as u16,
        target_bytes: target_bytes as u16,
        path_at: target_at as u16,
        path_bytes: path_bytes as u16,
        authority_at: target_at as u16,
        authority_bytes: 0,
    };
    match target.first() {
        // Extended CONNECT (RFC 8441) has a path.
        _ if method == Method::Connect && !(KEPT && target.first() == Some(&b'/')) => {
            if !is_authority(target) {
                return Err(Fault::Target.into());
            }
            spans.authority_bytes = target_bytes as u16;
        }
        Some(b'/') => {}
        Some(b'*') if target_bytes == 1 && method == Method::Options => {}
        _ => absolute_form(target, &mut spans)?,
    }
    // A plain path without a query has none.
    if (care || has_query) && !escapes_are_whole(target) {
        return Err(Fault::Target.into());
    }
    Ok((RequestLine { spans, method, version, path_needs_care: care }, lines))
}

/// The method at the start of a request line, its length, and what follows the space after it.
#[inline(always)]
fn method(line: &[u8]) -> Result<(Method, usize, &[u8]), Stop> {
    if let Some((b"GET ", behind)) = line.split_first_chunk() {
        return Ok((Method::Get, 3, behind));
    }
    other_method(line)
}

fn other_method(line: &[u8]) -> Result<(Method, usize, &[u8]), Stop> {
    let end = span_end(line, TOKEN);
    match line.split_at(end) {
        (name, [b' ', behind @ ..]) if end > 0 => Ok((Method::from_token(name), end, behind)),
        (_, [_, ..]) => Err(Fault::Method.into()),
        (_, []) => Err(Stop::Partial),
    }
}

/// The parts of a target.
struct Scanned<'b> {
    /// The text after the target.
    behind: &'b [u8],
    /// Where its query starts, if it has one.
    path_bytes: Option<usize>,
    /// Whether its path contains a byte with a special meaning.
    care: bool,
}

/// Scans a target, from one byte with a special meaning to the next.
#[inline(always)]
fn scan_target(text: &[u8]) -> Scanned<'_> {
    let mut care = false;
    let mut rest = text;
    loop {
        let at_byte = skip(rest, PLAIN);
        rest = match at_byte {
            [b' ', ..] => return Scanned { behind: at_byte, path_bytes: None, care },
            [b'?', ..] => {
                let path_bytes = Some(text.len() - at_byte.len());
                return Scanned { behind: skip(at_byte, TARGET), path_bytes, care };
            }
            [b'%' | b'\\', rest @ ..] => {
                care = true;
                rest
            }
            [b'.', rest @ ..] => {
                let before = (text.len() - at_byte.len()).wrapping_sub(1);
                care |= text.get(before) == Some(&b'/');
                rest
            }
            _ => return Scanned { behind: at_byte, path_bytes: None, care },
        };
    }
}

/// `HTTP/1.1` and CRLF.
const VERSION_LINE_BYTES: usize = 10;

/// The version, and the text after the line.
#[inline(always)]
fn version(text: &[u8]) -> Result<(Version, &[u8]), Stop> {
    let Some((line, behind)) = text.split_first_chunk::<VERSION_LINE_BYTES>() else {
        return Err(no_version(text));
    };
    // Compared as numbers; patterns would be compared byte by byte.
    if line == b"HTTP/1.1\r\n" {
        return Ok((Version::Http11, behind));
    }
    if line == b"HTTP/1.0\r\n" {
        return Ok((Version::Http10, behind));
    }
    Err(no_version(line))
}

/// The fault at the end of a request line, or that it is incomplete.
#[cold]
fn no_version(version: &[u8]) -> Stop {
    // Checked byte by byte, so that errors are reported before the rest has arrived. The version itself is only
    // checked when the line is complete, so that the result does not depend on how the input is split.
    for (at, &byte) in version.iter().enumerate() {
        let fits = match at {
            0..=4 => byte == b"HTTP/"[at],
            5 | 7 => byte.is_ascii_digit(),
            6 => byte == b'.',
            8 => byte == b'\r',
            _ => byte == b'\n',
        };
        if !fits {
            return Fault::RequestLine.into();
        }
    }
    match version.get(5) {
        _ if version.len() < VERSION_LINE_BYTES => Stop::Partial,
        // A minor version above 1 was never defined; it is rejected like an undefined version of HTTP/1.
        Some(b'1') => Fault::RequestLine.into(),
        _ => Fault::Version.into(),
    }
}

/// `http://authority[/path][?query]`; its authority replaces Host (RFC 9112 section 3.2.2).
#[cold]
fn absolute_form(target: &[u8], spans: &mut Spans) -> Result<(), Fault> {
    let scheme_bytes = [&b"http://"[..], b"https://"]
        .into_iter()
        .find(|scheme| target.get(..scheme.len()).is_some_and(|start| start.eq_ignore_ascii_case(scheme)))
        .ok_or(Fault::Target)?
        .len();
    let rest = &target[scheme_bytes..];
    let authority_bytes = rest.iter().position(|byte| matches!(byte, b'/' | b'?')).unwrap_or(rest.len());
    if !is_authority(&rest[..authority_bytes]) {
        return Err(Fault::Target);
    }
    let skipped = scheme_bytes + authority_bytes;
    spans.authority_at += scheme_bytes as u16;
    spans.authority_bytes = authority_bytes as u16;
    spans.path_at += skipped as u16;
    spans.path_bytes -= skipped as u16;
    Ok(())
}

fn escapes_are_whole(target: &[u8]) -> bool {
    let mut rest = target;
    while let Some(at) = rest.iter().position(|&byte| byte == b'%') {
        match crate::target::escape(&rest[at + 1..]) {
            Some((_, tail)) => rest = tail,
            None => return false,
        }
    }
    true
}

/// Whether `text` is `host[:port]`: a name, an IPv4 address or an IPv6 address in brackets. Escapes in a name, which
/// RFC 3986 allows but no client sends, are rejected, and so are an empty first label and more than one dot at the end.
pub fn is_authority(text: &[u8]) -> bool {
    let port = skip(text, HOST);
    match text {
        [b'[', rest @ ..] => is_ip_literal(rest),
        [b'.', ..] => false,
        _ => {
            let name = &text[..text.len() - port.len()];
            !name.is_empty() && is_port(port) && !name.ends_with(b"..")
        }
    }
}

/// An IPv6 address, its closing bracket, and an optional port.
#[inline(never)]
fn is_ip_literal(rest: &[u8]) -> bool {
    let Some(end) = rest.iter().position(|&byte| byte == b']') else { return false };
    let literal = std::str::from_utf8(&rest[..end]).unwrap_or_default();
    literal.parse::<std::net::Ipv6Addr>().is_ok() && is_port(&rest[end + 1..])
}

/// Nothing, or a colon and a number up to 65535 of at most five digits.
#[inline]
fn is_port(text: &[u8]) -> bool {
    match text {
        [] => true,
        [b':', digits @ ..] => {
            let fits = digits.len() < 5 || (digits.len() == 5 && digits <= b"65535");
            fits && digits.iter().all(u8::is_ascii_digit)
        }
        _ => false,
    }
}

/// Whether a name is `Host`, ignoring case. One comparison: setting this bit lowers a letter, and turns no other byte
/// into a lower-case letter.
#[inline]
fn is_host(name: &[u8]) -> bool {
    let lower =
        name.first_chunk().map(|&letters| u32::from_ne_bytes(letters) | u32::from_ne_bytes([0x20; 4]));
    name.len() == 4 && lower == Some(u32::from_ne_bytes(*b"host"))
}

/// The fields that frame and route the request, collected while the lines are parsed.
#[derive(Default)]
struct Framed {
    host: Option<Field>,
    framing: framing::FramingFields,
    expects_continue: bool,
}

impl Framed {
    /// Checks one field; most are skipped by the first letter of their names, at the cost of one branch.
    #[inline(always)]
    fn note(&mut self, line: &FieldLine<'_>, field: Field) -> Result<(), Fault> {
        match line.first_byte() | 0x20 {
            b'c' | b'e' | b'h' | b't' => self.note_known(line.name(), line.value(), field),
            _ => Ok(()),
        }
    }

    #[inline(never)]
    #[allow(clippy::collapsible_match, reason = "a guard that notes something would hide that it does")]
    fn note_known(&mut self, name: &[u8], value: &[u8], field: Field) -> Result<(), Fault> {
        match name.len() {
            4 if is_host(name) => {
                if self.host.replace(field).is_some() || !is_authority(value) {
                    return Err(Fault::Host);
                }
            }
            6 if name.eq_ignore_ascii_case(b"expect") => {
                if !value.eq_ignore_ascii_case(b"100-continue") {
                    return Err(Fault::Expectation);
                }
                self.expects_continue = true;
            }
            _ => self.framing.note(name, value)?,
        }
        Ok(())
    }

    #[inline]
    fn finish<'b>(self, bytes: &'b [u8], fields: &'b [Field], line: RequestLine) -> Result<Head<'b>, Stop> {
        let framing = match (self.framing.length, self.framing.chunked) {
            (Some(_), true) => return Err(Fault::ContentLength.into()),
            (_, true) if line.version == Version::Http10 => return Err(Fault::TransferEncoding.into()),
            (_, true) => Framing::Chunked,
            (None | Some(0), false) => Framing::None,
            (Some(length), false) => Framing::Length(length),
        };
        let mut spans = line.spans;
        match self.host {
            None if line.version != Version::Http10 => return Err(Fault::Host.into()),
            Some(host) if spans.authority_bytes == 0 => {
                (spans.authority_at, spans.authority_bytes) = (host.value_at, host.value_bytes);
            }
            _ => {}
        }
        Ok(Head {
            bytes,
            fields,
            spans,
            method: line.method,
            version: line.version,
            framing,
            keep_alive: self.framing.keeps_alive(line.version != Version::Http10),
            expects_continue: self.expects_continue
                && line.version != Version::Http10
                && framing != Framing::None,
            path_needs_care: line.path_needs_care,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(text: &str) -> Fault {
        fault_of(text.as_bytes())
    }

    fn fault_of(bytes: &[u8]) -> Fault {
        parse(bytes, &mut Vec::new(), &HeadLimits::default()).expect_err("a fault")
    }

    #[test]
    fn a_usual_request() {
        let text = b"POST /a/b?x=1&y HTTP/1.1\r\nHost: example.org:80\r\nContent-Length: 5\r\nA:  b c \t\r\n\r\nhello";
        let mut fields = Vec::new();
        let head = parse(text, &mut fields, &HeadLimits::default()).unwrap().unwrap();
        assert_eq!(head.len(), text.len() - 5);
        assert_eq!((head.method, head.method_name()), (Method::Post, &b"POST"[..]));
        assert_eq!((head.path(), head.query()), (&b"/a/b"[..], Some(&b"x=1&y"[..])));
        assert_eq!(head.target(), b"/a/b?x=1&y");
        assert_eq!(head.authority(), b"example.org:80");
        assert_eq!(head.framing, Framing::Length(5));
        assert_eq!(head.field("a"), Some(&b"b c"[..]));
        assert!(head.keep_alive && !head.expects_continue && !head.path_needs_care);
        assert_eq!(head.fields().count(), 3);
    }

    #[test]
    fn a_head_that_is_kept_has_the_method_that_it_had() {
        for method in ["GET", "POST", "PURGE", "OPTIONS"] {
            let text = format!("\r\n{method} /a?b HTTP/1.1\r\nHost: t\r\nContent-Length: 5\r\n\r\n");
            let (mut fields, mut kept_fields) = (Vec::new(), Vec::new());
            let mut head = parse(text.as_bytes(), &mut fields, &HeadLimits::default()).unwrap().unwrap();
            assert_eq!(head.kept_bytes(), head.bytes());
            head.method = Method::Get;
            let bytes = head.kept_bytes();
            let kept = parse_kept(&bytes, &mut kept_fields, None).unwrap();
            assert_eq!((kept.method, kept.method_name()), (Method::Get, &b"GET"[..]), "{method}");
            assert_eq!((kept.target(), kept.framing), (&b"/a?b"[..], Framing::Length(5)));
            assert_eq!((kept.authority(), kept.field("content-length")), (&b"t"[..], Some(&b"5"[..])));
        }
    }

    #[test]
    fn every_prefix_of_a_good_head_goes_on() {
        let text = b"\r\nGET http://[::1]:8080?q HTTP/1.0\r\nHost: a\r\nConnection: x, Keep-Alive\r\n\r\n";
        for end in 0..text.len() {
            let got = parse(&text[..end], &mut Vec::new(), &HeadLimits::default()).map(|head| head.is_some());
            assert_eq!(got, Ok(false), "{end}");
        }
        let mut fields = Vec::new();
        let head = parse(text, &mut fields, &HeadLimits::default()).unwrap().unwrap();
        assert_eq!(
            (head.path(), head.query(), head.authority()),
            (&b"/"[..], Some(&b"q"[..]), &b"[::1]:8080"[..])
        );
        assert_eq!(head.method_name(), b"GET");
        assert!(head.keep_alive);
    }

    #[test]
    fn request_lines_that_are_refused() {
        for (text, expected) in [
            ("GET  / HTTP/1.1\r\n", Fault::RequestLine),
            ("GET / HTTP/1.1 \r\n", Fault::RequestLine),
            ("GET /  HTTP/1.1\r\n", Fault::RequestLine),
            ("GET\t/ HTTP/1.1\r\n", Fault::Method),
            ("GET /\r\n", Fault::RequestLine),
            ("GET / HTTP/2.0\r\n", Fault::Version),
            ("GET / HTTP/0.9\r\n", Fault::Version),
            ("GET / HTTP/2.0\r\r", Fault::RequestLine),
            ("GET / HTTP/2x", Fault::RequestLine),
            ("GET / HTTP/1.2\r\n", Fault::RequestLine),
            ("GET / http/1.1\r\n", Fault::RequestLine),
            ("GET / HTTP/1.1\n", Fault::RequestLine),
            ("GET / HTTP/1.1\rX", Fault::RequestLine),
            ("G@T / HTTP/1.1\r\n", Fault::Method),
            (" GET / HTTP/1.1\r\n", Fault::Method),
            ("\nGET / HTTP/1.1\r\n", Fault::RequestLine),
            ("GET x HTTP/1.1\r\n", Fault::Target),
            ("GET * HTTP/1.1\r\n", Fault::Target),
            ("GET /% HTTP/1.1\r\n", Fault::Target),
            ("GET /a#b HTTP/1.1\r\n", Fault::Target),
            ("GET ftp://a/ HTTP/1.1\r\n", Fault::Target),
            ("GET http:///a HTTP/1.1\r\n", Fault::Target),
            ("GET http://u@h/a HTTP/1.1\r\n", Fault::Target),
            ("CONNECT /a HTTP/1.1\r\n", Fault::Target),
            ("GET /\u{80} HTTP/1.1\r\n", Fault::Target),
        ] {
            assert_eq!(fault(text), expected, "{text:?}");
        }
    }

    #[test]
    fn field_lines_that_are_refused() {
        for (line, expected) in [
            ("Host : a\r\n", Fault::FieldName),
            (" Host: a\r\n", Fault::FieldName),
            ("Host\r\n", Fault::FieldName),
            (": a\r\n", Fault::FieldName),
            ("A\u{e9}: b\r\n", Fault::FieldName),
            ("A: b\nC: d\r\n", Fault::FieldValue),
            ("A: b\rC: d\r\n", Fault::FieldValue),
            ("A: b\0\r\n", Fault::FieldValue),
            ("A: b\r\n folded\r\n", Fault::FieldName),
            ("Host: a\r\nHost: a\r\n", Fault::Host),
            ("Host: \r\n", Fault::Host),
            ("Host: a b\r\n", Fault::Host),
            ("Host: a/b\r\n", Fault::Host),
            ("Host: a:b\r\n", Fault::Host),
            ("Host: u@a\r\n", Fault::Host),
            ("Host: a%20b\r\n", Fault::Host),
            ("Host: [::1\r\n", Fault::Host),
            ("Host: a..\r\n", Fault::Host),
            ("Host: a..:80\r\n", Fault::Host),
            ("Host: .\r\n", Fault::Host),
            ("Host: .a\r\n", Fault::Host),
            ("Host: a:65536\r\n", Fault::Host),
            ("Host: a:99999\r\n", Fault::Host),
            ("Host: a:000080\r\n", Fault::Host),
            ("Host: [::1]:65536\r\n", Fault::Host),
            ("Expect: 200-ok\r\n", Fault::Expectation),
        ] {
            assert_eq!(fault(&format!("GET / HTTP/1.1\r\n{line}\r\n")), expected, "{line:?}");
        }
        assert_eq!(fault("GET / HTTP/1.1\r\nA: b\r\n\r\n"), Fault::Host);
    }

    #[test]
    fn framings_that_are_refused() {
        for (lines, expected) in [
            ("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", Fault::ContentLength),
            ("Transfer-Encoding: chunked\r\nContent-Length: 5\r\n", Fault::ContentLength),
            ("Content-Length: 5\r\nContent-Length: 6\r\n", Fault::ContentLength),
            ("Content-Length: 5\r\nContent-Length: 5\r\n", Fault::ContentLength),
            ("Content-Length: 5, 5\r\n", Fault::ContentLength),
            ("Content-Length: +5\r\n", Fault::ContentLength),
            ("Content-Length: -5\r\n", Fault::ContentLength),
            ("Content-Length: 5 5\r\n", Fault::ContentLength),
            ("Content-Length: 0x5\r\n", Fault::ContentLength),
            ("Content-Length:\r\n", Fault::ContentLength),
            ("Content-Length: 99999999999999999999\r\n", Fault::ContentLengthTooLarge),
            ("Content-Length: 9223372036854775809\r\n", Fault::ContentLengthTooLarge),
            ("Transfer-Encoding: xchunked\r\n", Fault::TransferCoding),
            ("Transfer-Encoding: chunked, identity\r\n", Fault::TransferEncoding),
            ("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", Fault::TransferEncoding),
            ("Transfer-Encoding: \"chunked\"\r\n", Fault::TransferEncoding),
            ("Transfer-Encoding: \u{b}chunked\r\n", Fault::FieldValue),
            ("Transfer-Encoding:\r\n", Fault::TransferEncoding),
        ] {
            assert_eq!(fault(&format!("POST / HTTP/1.1\r\nHost: a\r\n{lines}\r\n")), expected, "{lines:?}");
        }
        assert_eq!(fault("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n"), Fault::TransferEncoding);
    }

    #[test]
    fn limits_hold_to_the_byte() {
        let limits = HeadLimits { head_bytes_max: 64, target_bytes_max: 16, fields_max: 2 };
        let try_parse =
            |text: &str| parse(text.as_bytes(), &mut Vec::new(), &limits).map(|head| head.is_some());
        let head = |filler: usize| format!("GET / HTTP/1.1\r\nHost: a\r\nA: {}\r\n\r\n", "x".repeat(filler));
        let fit = 64 - head(0).len();
        assert_eq!(try_parse(&head(fit)), Ok(true));
        assert_eq!(try_parse(&head(fit + 1)), Err(Fault::HeadTooLong));
        assert_eq!(try_parse("GET /aaaaaaaaaaaaaaa HTTP/1.1\r\nHost: a\r\n\r\n"), Ok(true));
        assert_eq!(try_parse("GET /aaaaaaaaaaaaaaaa HTTP/1.1\r\n"), Err(Fault::TargetTooLong));
        assert_eq!(try_parse("GET / HTTP/1.1\r\nHost: a\r\nB: c\r\n\r\n"), Ok(true));
        assert_eq!(try_parse("GET / HTTP/1.1\r\nHost: a\r\nB: c\r\nD: e\r\n"), Err(Fault::TooManyFields));
    }
}
