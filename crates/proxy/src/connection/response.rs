//! Rewrites the upstream's response head into ours.

use flatout_engine::Response;
use flatout_gateway::private::is_private;
use flatout_gateway::{Forward, TrustedFields};
use flatout_lane::clock;
use flatout_wire::Status;
use flatout_wire::field::{Field, Lines, is_token, write_line};

use crate::receiver::Receiver;
use crate::request::fields::{is_never_trailer, is_nominated};
use crate::request::job::Job;
use crate::select::balance::Shares;
use crate::select::sticky;
use crate::upstream::LiveUpstream;
use crate::watch::Watch;

/// The most field lines in one response head.
pub(crate) const FIELDS_MAX: usize = 200;

/// Bytes of one response head.
pub(crate) const HEAD_BYTES_MAX: usize = 64 << 10;

/// An upstream's head: its bytes, and the positions of its fields.
#[derive(Clone, Copy)]
pub(crate) struct Received<'a> {
    pub(crate) status: Status,
    /// The upstream's HTTP version, for `Via`.
    pub(crate) version: &'static str,
    pub(crate) head_bytes: usize,
    pub(crate) bytes: &'a [u8],
    pub(crate) fields: &'a [Field],
}

impl<'a> Received<'a> {
    fn all(&self) -> impl Iterator<Item = (&'a [u8], &'a [u8])> + use<'a> {
        let Received { bytes, fields, .. } = *self;
        fields.iter().map(move |field| (field.name(bytes), field.value(bytes)))
    }

    pub(crate) fn field_all(&self, name: &'static [u8]) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        self.all().filter(move |(this, _)| this.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }

    /// The value of `Content-Length`, which the parser has checked.
    fn content_length(&self) -> Option<u64> {
        std::str::from_utf8(self.field_all(b"content-length").next()?).ok()?.parse().ok()
    }

    /// The fields to pass on: not the connection's, nor those that frame the body, nor instructions to this server, unless they are
    /// followed.
    fn passed(&self, private: TrustedFields) -> impl Iterator<Item = Field> + use<'a> {
        let this = *self;
        let names_options = self.field_all(b"connection").next().is_some();
        this.fields.iter().copied().filter(move |field| {
            let name = field.name(this.bytes);
            let is_named = || names_options && is_nominated(name, this.field_all(b"connection"));
            !is_ours(name) && !private.removes(name) && !is_named()
        })
    }

    /// Bytes that a file may take of this response, where the route's settings say `bytes_max`. Events and calls that stream are
    /// not spooled, and `X-Accel-Buffering` decides otherwise.
    pub(crate) fn spool_bytes_max(&self, bytes_max: u64) -> u64 {
        let mut bytes = bytes_max;
        for (name, value) in self.all() {
            if name.eq_ignore_ascii_case(b"x-accel-buffering") {
                return match value {
                    value if value.eq_ignore_ascii_case(b"no") => 0,
                    value if value.eq_ignore_ascii_case(b"yes") && bytes_max == 0 => {
                        Forward::BUFFER_RESPONSE_BYTES
                    }
                    _ => bytes_max,
                };
            }
            if name.eq_ignore_ascii_case(b"content-type") && is_streaming(value) {
                bytes = 0;
            }
        }
        bytes
    }

    /// Writes our head for it, without a body yet. If the upstream's head has a length without a body (HEAD, 304),
    /// ours has it too.
    pub(crate) fn write(
        &self,
        via: Option<&str>,
        is_head: bool,
        private: TrustedFields,
        response: &mut Response,
    ) {
        response.set_status(self.status);
        response.reserve_fields(self.fields.len(), self.head_bytes);
        response.parsed_fields(self.bytes, self.passed(private));
        if private.accel
            && let Some(charset) = self.field_all(b"x-accel-charset").next()
        {
            set_charset(charset, response);
        }
        if let Some(via) = via {
            response.header("Via", format!("{} {via}", self.version));
        }
        if (is_head || self.status.is_bodyless())
            && let Some(length) = self.content_length()
        {
            response.declare_length(length);
        }
    }

    /// The fields of an interim response.
    pub(crate) fn interim_lines(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let mut lines = Lines::new(self.bytes, &mut out);
        self.passed(TrustedFields::default()).for_each(|field| lines.write(field));
        drop(lines);
        out
    }

    /// Writes our head for a protocol switch, with the upstream's new protocol.
    pub(crate) fn write_switching(&self, response: &mut Response) {
        self.write(None, false, TrustedFields::default(), response);
        response.encoded_fields(b"Connection: upgrade\r\n");
        for value in self.field_all(b"upgrade") {
            response.parsed_field(b"Upgrade", value);
        }
        response.set_status(Status::SWITCHING_PROTOCOLS);
    }
}

/// Writes the head of a final response.
#[inline]
pub(crate) fn write_response(
    received: &Received<'_>,
    job: &mut Job,
    upstream: &LiveUpstream,
    (shares, server): (&Shares, usize),
    watch: &Watch,
    response: &mut Response,
) {
    if job.sent_ns != 0 {
        let time_ns = clock::nanoseconds().saturating_sub(job.sent_ns).max(1);
        shares.responded(server, received.status.code() >= 500, time_ns);
    }
    received.write(job.via.as_deref(), job.sent.is_head, job.private, response);
    // No sticky cookie in a response that may be stored.
    if job.stuck_to != Some(server) && !matches!(job.receiver, Receiver::Sink(_)) {
        sticky::set(&upstream.plan, shares, server, response);
    }
    job.trail.answered(watch, received.status, response);
}

/// Whether a type is of content whose parts have to arrive at once.
fn is_streaming(content_type: &[u8]) -> bool {
    const TYPES: [&[u8]; 2] = [b"text/event-stream", b"application/grpc"];
    let begins = |name: &[u8]| content_type.get(..name.len()).is_some_and(|it| it.eq_ignore_ascii_case(name));
    TYPES.into_iter().any(begins)
}

/// Fields that concern one connection only (RFC 9110 section 7.6.1), and those that the engine writes.
fn is_ours(name: &[u8]) -> bool {
    const NAMES: [&str; 6] =
        ["connection", "keep-alive", "proxy-connection", "transfer-encoding", "content-length", "upgrade"];
    // The length alone excludes most names.
    NAMES.iter().any(|ours| ours.len() == name.len() && name.eq_ignore_ascii_case(ours.as_bytes()))
}

/// Sets the charset of a text (`X-Accel-Charset`); `off` leaves it as it is.
fn set_charset(charset: &[u8], response: &mut Response) {
    let Some(content_type) = response.field("content-type").filter(|_| is_token(charset)) else { return };
    let end = content_type.iter().position(|&byte| byte == b';').unwrap_or(content_type.len());
    let media = content_type.get(..end).unwrap_or_default().trim_ascii();
    let is_text = media.get(..5).is_some_and(|start| start.eq_ignore_ascii_case(b"text/"));
    if is_text && !charset.eq_ignore_ascii_case(b"off") {
        let value = [media, b"; charset=", charset].concat();
        response.remove_header("content-type").header("Content-Type", value);
    }
}

/// Trailer fields as lines.
pub(crate) fn trailer_lines(trailers: &[(Vec<u8>, Vec<u8>)]) -> Vec<u8> {
    let mut lines = Vec::new();
    passed_trailers(trailers).for_each(|(name, value)| write_line(name, value, &mut lines));
    lines
}

/// The trailer fields that may follow the body of a response.
pub(crate) fn passed_trailers(trailers: &[(Vec<u8>, Vec<u8>)]) -> impl Iterator<Item = (&[u8], &[u8])> {
    let fields = trailers.iter().map(|(name, value)| (name.as_slice(), value.as_slice()));
    fields.filter(move |(name, _)| !is_ours(name) && !is_private(name) && !is_never_trailer(name))
}
