//! FastCGI records, and the CGI response that they carry.

use flatout_wire::fastcgi::{RecordEvent, Records};

use crate::connection::cgi::CgiResponse;

/// Messages of one response that are logged; the rest is dropped.
const STDERR_BYTES_MAX: usize = 4 << 10;

/// The state of a FastCGI connection: of its current response, which ends with END_REQUEST.
#[derive(Default)]
pub(crate) struct FastCgiSession {
    records: Records,
    response: CgiResponse,
    /// What the application has reported, and nobody has taken.
    messages: Vec<u8>,
    /// All that it has reported of this response.
    messages_bytes: usize,
}

impl FastCgiSession {
    /// Starts a request.
    pub(crate) fn begin(&mut self, is_head: bool) {
        *self = FastCgiSession { response: CgiResponse::new(is_head), ..FastCgiSession::default() };
    }

    /// Appends what `bytes` mean in HTTP/1 to `out`.
    ///
    /// # Errors
    /// Why the response is not usable.
    pub(crate) fn decode(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<(), String> {
        let mut used = 0;
        loop {
            let rest = bytes.get(used..).unwrap_or_default();
            let (count, event) = self.records.next(rest).map_err(|fault| fault.to_string())?;
            used += count;
            match event {
                RecordEvent::NeedMore => return Ok(()),
                RecordEvent::Stdout(data) => self.response.content(data, out)?,
                RecordEvent::Stderr(data) => {
                    let count = data.len().min(STDERR_BYTES_MAX - self.messages_bytes);
                    self.messages_bytes += count;
                    self.messages.extend_from_slice(data.get(..count).unwrap_or_default());
                }
                RecordEvent::End { protocol_status: 0, .. } => self.response.end(out)?,
                RecordEvent::End { protocol_status, .. } => {
                    let why = match protocol_status {
                        1 => "it cannot multiplex",
                        2 => "it is overloaded",
                        3 => "it does not support the role",
                        _ => "unknown status",
                    };
                    return Err(format!("the application refused the request: {why} ({protocol_status})"));
                }
            }
        }
    }

    /// What the application has reported: lines that are complete, and the rest if nothing follows.
    pub(crate) fn take_messages(&mut self, is_last: bool) -> Vec<u8> {
        let is_last = is_last || self.records.has_ended() || self.messages_bytes == STDERR_BYTES_MAX;
        let line_end = self.messages.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
        let rest = self.messages.split_off(if is_last { self.messages.len() } else { line_end });
        std::mem::replace(&mut self.messages, rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connection::response::HEAD_BYTES_MAX;

    fn record(kind: u8, content: &[u8]) -> Vec<u8> {
        let length = (content.len() as u16).to_be_bytes();
        [&[1, kind, 0, 1, length[0], length[1], 2, 0][..], content, b"xx"].concat()
    }

    fn decoded(is_head: bool, stdout: &[u8]) -> Result<String, String> {
        let start = if stdout.is_empty() { Vec::new() } else { record(6, stdout) };
        let bytes = [start, record(6, b""), record(3, &[0; 8])].concat();
        let decode = |step: usize| {
            let (mut session, mut out) = (FastCgiSession::default(), Vec::new());
            session.begin(is_head);
            bytes.chunks(step).try_for_each(|part| session.decode(part, &mut out))?;
            Ok(String::from_utf8(out).unwrap())
        };
        let whole = decode(bytes.len());
        let in_parts: Result<String, String> = decode(1);
        assert_eq!(whole.is_ok(), in_parts.is_ok());
        whole
    }

    #[test]
    fn cgi_responses_become_http() {
        for (is_head, stdout, expected) in [
            (false, "Content-Length: 2\n\nhi", "HTTP/1.1 200 \r\nContent-Length: 2\r\n\r\nhi"),
            (false, "Content-Length: 1\n\nhi", "HTTP/1.1 200 \r\nContent-Length: 1\r\n\r\nh"),
            (
                false,
                "Status: 404 Not Found\r\nX-A: b\r\n\r\nhi",
                "HTTP/1.1 404 \r\nX-A: b\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n",
            ),
            (true, "Content-Length: 9\r\n\r\nhi", "HTTP/1.1 200 \r\nContent-Length: 9\r\n\r\n"),
            (false, "Status: 304\r\n\r\n", "HTTP/1.1 304 \r\n\r\n"),
            (
                false,
                "Location: /a\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
                "HTTP/1.1 302 \r\nLocation: /a\r\nContent-Length: 0\r\n\r\n",
            ),
        ] {
            assert_eq!(decoded(is_head, stdout.as_bytes()).as_deref(), Ok(expected), "{stdout}");
        }
    }

    #[test]
    fn bad_responses_say_why() {
        for (stdout, why) in [
            ("", "ended within its head"),
            ("X-A: b\r\n", "ended within its head"),
            ("no colon\r\n\r\n", "no colon"),
            ("Status: 101\r\n\r\n", "got Status `101`"),
            ("Status: 99999\r\n\r\n", "got Status"),
            ("Content-Length: 3\r\n\r\nhi", "1 bytes before"),
            ("Content-Length: +1\r\n\r\nh", "not a number"),
            ("Content-Length: 1\r\nContent-Length: 2\r\n\r\nh", "several values"),
        ] {
            let found = decoded(false, stdout.as_bytes()).unwrap_err();
            assert!(found.contains(why), "{stdout}: {found}");
        }
    }

    #[test]
    fn complete_lines_of_stderr_are_passed_on() {
        let (mut session, mut out) = (FastCgiSession::default(), Vec::new());
        let mut after = |bytes: &[u8], is_last| {
            session.decode(bytes, &mut out).unwrap();
            String::from_utf8(session.take_messages(is_last)).unwrap()
        };
        assert_eq!(after(&record(7, b"one\ntw"), false), "one\n");
        assert_eq!(after(&record(7, b"o"), false), "");
        assert_eq!(after(&record(7, b"\nthree"), false), "two\n");
        assert_eq!(after(b"", true), "three");
    }

    #[test]
    fn endless_heads_and_messages_have_limits() {
        let (mut session, mut out) = (FastCgiSession::default(), Vec::new());
        let mut messages = Vec::new();
        for _ in 0..100 {
            session.decode(&record(7, &[b'e'; 1000]), &mut out).unwrap();
            messages.append(&mut session.take_messages(false));
        }
        assert_eq!(messages.len(), STDERR_BYTES_MAX);
        let endless = (0..100).try_for_each(|_| session.decode(&record(6, &[b'h'; 1000]), &mut out));
        assert!(endless.unwrap_err().contains("longer than"));
    }

    /// Whatever is wrong with records and heads, parts are read as the whole, and nothing unusual reaches those behind: what comes out is the
    /// start of a response that is either accepted or refused there.
    #[test]
    fn damaged_responses_are_read_in_parts_as_whole() {
        let mut seed = 1u64;
        let mut random = |below: usize| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) as usize % below
        };
        let heads = [
            "Content-Length: 7\r\n\r\n",
            "Status: 404\nX-A: b\n\n",
            "Location: /a\r\n\r\n",
            "Status: 204\r\n\r\n",
        ];
        let (mut accepted, mut refused) = (0, 0);
        for _ in 0..20_000 {
            let records = [
                (7, "a warning\n"),
                (6, heads[random(heads.len())]),
                (6, "content"),
                (6, ""),
                (3, "\0\0\0\0\0\0\0\0"),
            ];
            let mut bytes: Vec<u8> =
                records.iter().flat_map(|(kind, content)| record(*kind, content.as_bytes())).collect();
            for _ in 0..random(4) {
                let at = random(bytes.len());
                bytes[at] = random(256) as u8;
            }
            bytes.truncate(bytes.len() - random(2) * random(bytes.len()));
            let decode = |step: usize| {
                let (mut session, mut out) = (FastCgiSession::default(), Vec::new());
                session.begin(false);
                let result = bytes.chunks(step).try_for_each(|part| session.decode(part, &mut out));
                (result, session.take_messages(true), out)
            };
            let (whole, in_parts) = (decode(bytes.len().max(1)), decode(1 + random(9)));
            assert_eq!((&whole.0, &whole.1), (&in_parts.0, &in_parts.1));
            assert!(whole.1.len() <= STDERR_BYTES_MAX && whole.2.len() <= 4 * bytes.len() + 100);
            let parse = |out: &[u8]| flatout_wire::answer::parse(out, false, HEAD_BYTES_MAX).ok().flatten();
            assert_eq!(parse(&whole.2), parse(&in_parts.2));
            match parse(&whole.2) {
                Some(_) => accepted += 1,
                None => refused += 1,
            }
        }
        assert!(accepted > 5_000 && refused > 2_000, "{accepted} {refused}");
    }
}
