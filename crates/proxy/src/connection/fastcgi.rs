//! Responses over FastCGI: records to the bytes of an HTTP/1 response, which everything behind reads as any other.
//!
//! ```text
//! STDOUT "Status: 404 Not Found", fields, empty line, content ──> head with a length or chunked, content, its end at END_REQUEST
//! ```

use flatout_wire::fastcgi::{RecordEvent, Records};

use crate::connection::response::HEAD_BYTES_MAX;

/// Messages of one response that are logged; the rest is dropped.
const STDERR_BYTES_MAX: usize = 4 << 10;

/// The state of a FastCGI connection: of its current response.
#[derive(Default)]
pub(crate) struct FastCgiSession {
    records: Records,
    /// The response to HEAD has no content, whatever the script writes.
    is_head: bool,
    /// The start of a head.
    head: Vec<u8>,
    content: RecordContent,
    /// What the application has reported, and nobody has taken.
    messages: Vec<u8>,
    /// All that it has reported of this response.
    messages_bytes: usize,
}

/// How the content of the response is framed.
#[derive(Debug, Default)]
enum RecordContent {
    /// Its head has not ended.
    #[default]
    Head,
    /// It has none: its head waits for END_REQUEST.
    None(Vec<u8>),
    /// This many bytes are missing. The last one waits for END_REQUEST, so that the response does not end before its records.
    Length {
        missing_bytes: u64,
        last: Option<u8>,
    },
    Chunked,
}

impl FastCgiSession {
    /// Starts a request.
    pub(crate) fn begin(&mut self, is_head: bool) {
        *self = FastCgiSession { is_head, ..FastCgiSession::default() };
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
                RecordEvent::Stdout(data) => self.content(data, out)?,
                RecordEvent::Stderr(data) => {
                    let count = data.len().min(STDERR_BYTES_MAX - self.messages_bytes);
                    self.messages_bytes += count;
                    self.messages.extend_from_slice(data.get(..count).unwrap_or_default());
                }
                RecordEvent::End { protocol_status: 0, .. } => self.end(out)?,
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

    fn content(&mut self, data: &[u8], out: &mut Vec<u8>) -> Result<(), String> {
        match &mut self.content {
            _ if data.is_empty() => Ok(()),
            RecordContent::Head => self.read_head(data, out),
            RecordContent::None(_) => Ok(()),
            RecordContent::Chunked => {
                out.extend_from_slice(format!("{:x}\r\n", data.len()).as_bytes());
                out.extend_from_slice(data);
                out.extend_from_slice(b"\r\n");
                Ok(())
            }
            RecordContent::Length { missing_bytes, last } => {
                let too_long = || "the response is longer than its Content-Length".to_owned();
                *missing_bytes = missing_bytes.checked_sub(data.len() as u64).ok_or_else(too_long)?;
                match data.split_last() {
                    Some((end, before)) if *missing_bytes == 0 => {
                        out.extend_from_slice(before);
                        *last = Some(*end);
                    }
                    _ => out.extend_from_slice(data),
                }
                Ok(())
            }
        }
    }

    fn end(&mut self, out: &mut Vec<u8>) -> Result<(), String> {
        match &mut self.content {
            RecordContent::Head => return Err("the response ended within its head".to_owned()),
            RecordContent::None(head) => out.append(head),
            RecordContent::Length { missing_bytes: 0, last } => out.extend(last.take()),
            RecordContent::Length { missing_bytes, .. } => {
                return Err(format!("the response ended {missing_bytes} bytes before its Content-Length"));
            }
            RecordContent::Chunked => out.extend_from_slice(b"0\r\n\r\n"),
        }
        Ok(())
    }

    fn read_head(&mut self, data: &[u8], out: &mut Vec<u8>) -> Result<(), String> {
        // The end may be divided between records.
        let from = self.head.len().saturating_sub(3);
        self.head.extend_from_slice(data);
        let Some(end) = end_of_head(&self.head, from) else {
            return match self.head.len() > HEAD_BYTES_MAX {
                true => Err(format!("the head of the response is longer than {HEAD_BYTES_MAX} bytes")),
                false => Ok(()),
            };
        };
        let whole = std::mem::take(&mut self.head);
        let (head, rest) = whole.split_at_checked(end).unwrap_or_default();
        self.content = write_head(head, self.is_head, out)?;
        self.content(rest, out)
    }
}

/// Where the content begins: after an empty line.
fn end_of_head(head: &[u8], from: usize) -> Option<usize> {
    if head.starts_with(b"\n") || head.starts_with(b"\r\n") {
        return None;
    }
    (from..head.len()).find_map(|at| match head.get(at..)? {
        [b'\n', b'\r', b'\n', ..] => Some(at + 3),
        [b'\n', b'\n', ..] => Some(at + 2),
        _ => None,
    })
}

/// Writes the head of an HTTP/1 response for the head of a CGI response (RFC 3875 section 6.3).
fn write_head(head: &[u8], is_head: bool, out: &mut Vec<u8>) -> Result<RecordContent, String> {
    const DROPPED: [&[u8]; 7] = [
        b"status",
        b"connection",
        b"keep-alive",
        b"transfer-encoding",
        b"trailer",
        b"upgrade",
        b"content-length",
    ];
    let (mut status, mut length, mut has_location) = (None, None, false);
    let mut lines = Vec::with_capacity(head.len() + 64);
    for line in head.split(|&byte| byte == b'\n') {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.is_empty() {
            continue;
        }
        let colon = line.iter().position(|&byte| byte == b':').ok_or("a line of the head has no colon")?;
        let (name, value) = line.split_at_checked(colon).unwrap_or_default();
        let value = value.get(1..).unwrap_or_default().trim_ascii();
        if name.eq_ignore_ascii_case(b"status") {
            status = Some(parse_status(value)?);
        } else if name.eq_ignore_ascii_case(b"content-length") {
            let parsed =
                std::str::from_utf8(value).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
            let bytes: u64 =
                parsed.and_then(|text| text.parse().ok()).ok_or("Content-Length is not a number")?;
            if length.replace(bytes).is_some_and(|earlier| earlier != bytes) {
                return Err("several values of Content-Length".to_owned());
            }
        }
        has_location |= name.eq_ignore_ascii_case(b"location");
        if !DROPPED.iter().any(|dropped| name.eq_ignore_ascii_case(dropped)) {
            for part in [name, b": ", value, b"\r\n"] {
                lines.extend_from_slice(part);
            }
        }
    }
    let status = status.unwrap_or(if has_location { 302 } else { 200 });
    let mut text = format!("HTTP/1.1 {status} \r\n").into_bytes();
    text.append(&mut lines);
    let is_empty = is_head || matches!(status, 204 | 304) || length == Some(0);
    if let Some(bytes) = length.filter(|_| status != 204) {
        text.extend_from_slice(format!("Content-Length: {bytes}\r\n").as_bytes());
    } else if !is_empty {
        text.extend_from_slice(b"Transfer-Encoding: chunked\r\n");
    }
    text.extend_from_slice(b"\r\n");
    if is_empty {
        return Ok(RecordContent::None(text));
    }
    out.append(&mut text);
    Ok(length
        .map_or(RecordContent::Chunked, |missing_bytes| RecordContent::Length { missing_bytes, last: None }))
}

/// `404` or `404 Not Found`.
fn parse_status(value: &[u8]) -> Result<u16, String> {
    let digits = value.split(|&byte| byte == b' ').next().unwrap_or_default();
    let status = std::str::from_utf8(digits).ok().and_then(|text| text.parse().ok());
    status
        .filter(|status| digits.len() == 3 && (200..=599).contains(status))
        .ok_or_else(|| format!("got Status `{}`, need 200 to 599", String::from_utf8_lossy(value)))
}

#[cfg(test)]
mod tests {
    use super::*;

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
            ("Content-Length: 1\r\n\r\nhi", "longer than its Content-Length"),
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
}
