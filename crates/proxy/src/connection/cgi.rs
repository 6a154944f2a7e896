//! CGI responses (RFC 3875 section 6), as of FastCGI, SCGI and uwsgi. Their bytes become those of an HTTP/1 response, which
//! everything behind reads as any other.
//!
//! ```text
//! "Status: 404 Not Found", fields, empty line, content ──> head with a length or chunked, content, its end
//! ```

use crate::connection::response::HEAD_BYTES_MAX;

/// A response that is read.
#[derive(Default)]
pub(crate) struct CgiResponse {
    /// The response to HEAD has no content, whatever the script writes.
    is_head: bool,
    /// It ends when the server closes the connection, or with its length; otherwise the records around it say when. Such a response may
    /// begin with a status line, as those of uwsgi do.
    is_until_close: bool,
    /// The start of a head.
    head: Vec<u8>,
    content: CgiContent,
}

/// How the content of a response is framed.
#[derive(Debug, Default)]
enum CgiContent {
    /// Its head has not ended.
    #[default]
    Head,
    /// It has none: its head waits for the end of its records.
    None(Vec<u8>),
    /// This many bytes are missing. The last one waits for the end of its records, so that the response does not end before them.
    Length {
        missing_bytes: u64,
        last: Option<u8>,
    },
    Chunked,
    /// It is complete; nothing after it counts.
    Over,
}

impl CgiResponse {
    /// One within records.
    pub(crate) fn new(is_head: bool) -> CgiResponse {
        CgiResponse { is_head, ..CgiResponse::default() }
    }

    /// One that the end of the connection ends.
    pub(crate) fn until_close(is_head: bool) -> CgiResponse {
        CgiResponse { is_head, is_until_close: true, ..CgiResponse::default() }
    }

    /// Appends what the next part of the response means in HTTP/1 to `out`.
    ///
    /// # Errors
    /// Why it is not usable.
    pub(crate) fn content(&mut self, data: &[u8], out: &mut Vec<u8>) -> Result<(), String> {
        match &mut self.content {
            _ if data.is_empty() => Ok(()),
            CgiContent::Head => self.read_head(data, out),
            CgiContent::None(_) | CgiContent::Over => Ok(()),
            CgiContent::Chunked => {
                out.extend_from_slice(format!("{:x}\r\n", data.len()).as_bytes());
                out.extend_from_slice(data);
                out.extend_from_slice(b"\r\n");
                Ok(())
            }
            CgiContent::Length { missing_bytes, .. } if self.is_until_close => {
                let count = usize::try_from(*missing_bytes).map_or(data.len(), |most| data.len().min(most));
                *missing_bytes -= count as u64;
                out.extend_from_slice(data.get(..count).unwrap_or_default());
                if *missing_bytes == 0 {
                    self.content = CgiContent::Over;
                }
                Ok(())
            }
            CgiContent::Length { missing_bytes, last } => {
                // What is longer than its Content-Length is dropped: the records say where the response ends.
                let count = usize::try_from(*missing_bytes).map_or(data.len(), |most| data.len().min(most));
                *missing_bytes -= count as u64;
                match data.get(..count).and_then(<[u8]>::split_last) {
                    Some((end, before)) if *missing_bytes == 0 => {
                        out.extend_from_slice(before);
                        *last = Some(*end);
                    }
                    Some(_) => out.extend_from_slice(data),
                    None => {}
                }
                Ok(())
            }
        }
    }

    /// Its records have ended.
    ///
    /// # Errors
    /// It is not complete.
    pub(crate) fn end(&mut self, out: &mut Vec<u8>) -> Result<(), String> {
        match &mut self.content {
            CgiContent::Head => return Err("the response ended within its head".to_owned()),
            CgiContent::None(head) => out.append(head),
            CgiContent::Length { missing_bytes: 0, last } => out.extend(last.take()),
            CgiContent::Length { missing_bytes, .. } => {
                return Err(format!("the response ended {missing_bytes} bytes before its Content-Length"));
            }
            CgiContent::Chunked => out.extend_from_slice(b"0\r\n\r\n"),
            CgiContent::Over => {}
        }
        Ok(())
    }

    /// The connection has ended. What is not complete stays so.
    pub(crate) fn closed(&mut self, out: &mut Vec<u8>) {
        if matches!(self.content, CgiContent::Chunked) {
            out.extend_from_slice(b"0\r\n\r\n");
            self.content = CgiContent::Over;
        }
    }

    fn read_head(&mut self, data: &[u8], out: &mut Vec<u8>) -> Result<(), String> {
        // The end may be divided between parts.
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
        self.content = self.write_head(head, out)?;
        self.content(rest, out)
    }

    /// Writes the head of an HTTP/1 response for the head of a CGI response (RFC 3875 section 6.3).
    fn write_head(&self, head: &[u8], out: &mut Vec<u8>) -> Result<CgiContent, String> {
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
        let mut rest =
            head.split(|&byte| byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line)).peekable();
        let status_line = rest.next_if(|line| self.is_until_close && line.starts_with(b"HTTP/1."));
        for line in rest {
            if line.is_empty() {
                continue;
            }
            let colon =
                line.iter().position(|&byte| byte == b':').ok_or("a line of the head has no colon")?;
            let (name, value) = line.split_at_checked(colon).unwrap_or_default();
            let value = value.get(1..).unwrap_or_default().trim_ascii();
            if name.eq_ignore_ascii_case(b"status") {
                status = Some(parse_status(value)?);
            } else if name.eq_ignore_ascii_case(b"content-length") {
                let parsed = std::str::from_utf8(value)
                    .ok()
                    .filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
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
        if let Some(line) = status_line {
            // As in nginx, it comes before the field.
            status = Some(parse_status(line.splitn(2, |&byte| byte == b' ').nth(1).unwrap_or_default())?);
        }
        let status = status.unwrap_or(if has_location { 302 } else { 200 });
        let mut text = format!("HTTP/1.1 {status} \r\n").into_bytes();
        text.append(&mut lines);
        let is_empty = self.is_head || matches!(status, 204 | 304) || length == Some(0);
        if let Some(bytes) = length.filter(|_| status != 204) {
            text.extend_from_slice(format!("Content-Length: {bytes}\r\n").as_bytes());
        } else if !is_empty {
            text.extend_from_slice(b"Transfer-Encoding: chunked\r\n");
        }
        if self.is_until_close {
            // No other request follows on this connection, also if the server leaves it open.
            text.extend_from_slice(b"Connection: close\r\n");
        }
        text.extend_from_slice(b"\r\n");
        if is_empty && !self.is_until_close {
            return Ok(CgiContent::None(text));
        }
        out.append(&mut text);
        if is_empty {
            return Ok(CgiContent::Over);
        }
        Ok(length
            .map_or(CgiContent::Chunked, |missing_bytes| CgiContent::Length { missing_bytes, last: None }))
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

/// `404` or `404 Not Found`.
fn parse_status(value: &[u8]) -> Result<u16, String> {
    let digits = value.split(|&byte| byte == b' ').next().unwrap_or_default();
    let status = std::str::from_utf8(digits).ok().and_then(|text| text.parse().ok());
    status
        .filter(|status| digits.len() == 3 && (200..=599).contains(status))
        .ok_or_else(|| format!("got Status `{}`, need 200 to 599", String::from_utf8_lossy(value)))
}
