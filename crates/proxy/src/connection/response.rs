//! Rewrites the upstream's response head into ours.

use flatout_engine::Response;
use flatout_gateway::Forward;
use flatout_wire::Status;
use flatout_wire::field::{Field, Lines, write_line};

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

    /// The fields to pass on: not the connection's, nor those that frame the body.
    fn passed(&self) -> impl Iterator<Item = Field> + use<'a> {
        let this = *self;
        let names_options = self.field_all(b"connection").next().is_some();
        this.fields.iter().copied().filter(move |field| {
            let name = field.name(this.bytes);
            let is_named = || names_options && is_nominated(name, this.field_all(b"connection"));
            !is_ours(name) && !is_named()
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
    pub(crate) fn write(&self, via: Option<&str>, is_head: bool, response: &mut Response) {
        response.set_status(self.status);
        response.reserve_fields(self.fields.len(), self.head_bytes);
        response.parsed_fields(self.bytes, self.passed());
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
        self.passed().for_each(|field| lines.write(field));
        drop(lines);
        out
    }

    /// Writes our head for a protocol switch, with the upstream's new protocol.
    pub(crate) fn write_switching(&self, response: &mut Response) {
        self.write(None, false, response);
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
    received.write(job.via.as_deref(), job.sent.is_head, response);
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

/// Fields that concern one connection only (RFC 9110 section 7.6.1), those that the engine writes, and those for this proxy.
fn is_ours(name: &[u8]) -> bool {
    const NAMES: [&str; 7] = [
        "connection",
        "keep-alive",
        "proxy-connection",
        "transfer-encoding",
        "content-length",
        "upgrade",
        "x-accel-buffering",
    ];
    // The length alone excludes most names.
    NAMES.iter().any(|ours| ours.len() == name.len() && name.eq_ignore_ascii_case(ours.as_bytes()))
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
    fields.filter(move |(name, _)| !is_ours(name) && !is_never_trailer(name))
}
