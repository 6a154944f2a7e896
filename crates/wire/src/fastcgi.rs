//! FastCGI records, for the side that sends requests (FastCGI specification 1.0).
//!
//! ```text
//! version 1 | kind | request id | content length | padding length | reserved    8 bytes
//! content …   padding …
//! ```
//! A connection carries one request at a time, whose id is always 1.

/// The longest content of a record.
pub const CONTENT_BYTES_MAX: usize = 65_535;

/// The longest content of a record of parameters. Some applications parse each record on its own and accept a little less than the
/// format allows.
pub const PARAMS_BYTES_MAX: usize = 65_000;

const HEADER_BYTES: usize = 8;
const VERSION: u8 = 1;
const REQUEST_ID: u16 = 1;
const BEGIN_REQUEST: u8 = 1;
const END_REQUEST: u8 = 3;
const PARAMS: u8 = 4;
const STDIN: u8 = 5;
const STDOUT: u8 = 6;
const STDERR: u8 = 7;
const ROLE_RESPONDER: u8 = 1;
const KEEP_CONNECTION: u8 = 1;

/// A parameter does not fit into a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LongParam;

/// Why the records of an application are not usable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordFault {
    /// Not version 1.
    Version(u8),
    /// A kind that an application does not send.
    Kind(u8),
    /// The id of another request.
    RequestId(u16),
    /// END_REQUEST with this many bytes instead of 8.
    EndBytes(u16),
    /// STDOUT after its end.
    AfterStdout,
    /// Anything after END_REQUEST.
    AfterEnd,
}

impl std::fmt::Display for RecordFault {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            RecordFault::Version(got) => write!(out, "FastCGI version {got} instead of 1"),
            RecordFault::Kind(got) => write!(out, "unexpected FastCGI record of type {got}"),
            RecordFault::RequestId(got) => write!(out, "FastCGI record for request {got} instead of 1"),
            RecordFault::EndBytes(got) => write!(out, "END_REQUEST of {got} bytes instead of 8"),
            RecordFault::AfterStdout => out.write_str("STDOUT record after the end of STDOUT"),
            RecordFault::AfterEnd => out.write_str("data after END_REQUEST"),
        }
    }
}

fn write_header(kind: u8, content_bytes: u16, out: &mut Vec<u8>) {
    let (id, length) = (REQUEST_ID.to_be_bytes(), content_bytes.to_be_bytes());
    out.extend_from_slice(&[VERSION, kind, id[0], id[1], length[0], length[1], 0, 0]);
}

/// Starts a request after which the connection stays open.
pub fn write_begin(out: &mut Vec<u8>) {
    write_header(BEGIN_REQUEST, 8, out);
    out.extend_from_slice(&[0, ROLE_RESPONDER, KEEP_CONNECTION, 0, 0, 0, 0, 0]);
}

/// Appends a parameter to `pairs`.
pub fn write_param(name: &[u8], value: &[u8], pairs: &mut Vec<u8>) {
    for length in [name.len(), value.len()] {
        match u8::try_from(length) {
            Ok(short @ 0..=127) => pairs.push(short),
            _ => pairs.extend_from_slice(&(length as u32 | 0x8000_0000).to_be_bytes()),
        }
    }
    pairs.extend_from_slice(name);
    pairs.extend_from_slice(value);
}

/// Writes all parameters; `pairs` are those of [`write_param`]. A pair is never divided: applications may parse each record
/// on its own.
///
/// # Errors
/// A pair does not fit into a record.
pub fn write_params(pairs: &[u8], out: &mut Vec<u8>) -> Result<(), LongParam> {
    let mut rest = pairs;
    while !rest.is_empty() {
        let mut bytes = 0;
        while let Some(pair) = rest.get(bytes..).and_then(pair_bytes) {
            if bytes + pair > PARAMS_BYTES_MAX {
                break;
            }
            bytes += pair;
        }
        let (Some(record), Some(after)) = (rest.get(..bytes), rest.get(bytes..)) else {
            return Err(LongParam);
        };
        if record.is_empty() {
            return Err(LongParam);
        }
        write_header(PARAMS, bytes as u16, out);
        out.extend_from_slice(record);
        rest = after;
    }
    write_header(PARAMS, 0, out);
    Ok(())
}

/// The length of the first pair.
fn pair_bytes(pairs: &[u8]) -> Option<usize> {
    let (name, after) = length(pairs)?;
    let (value, content) = length(after)?;
    Some(pairs.len() - content.len() + name + value)
}

fn length(bytes: &[u8]) -> Option<(usize, &[u8])> {
    match bytes {
        [short @ 0..=127, rest @ ..] => Some((usize::from(*short), rest)),
        [a, b, c, d, rest @ ..] => Some((u32::from_be_bytes([a & 127, *b, *c, *d]) as usize, rest)),
        _ => None,
    }
}

/// Writes the whole body of a request, and its end.
pub fn write_stdin(body: &[u8], out: &mut Vec<u8>) {
    write_stdin_part(body, out);
    write_stdin_end(out);
}

/// Writes a part of the body of a request.
pub fn write_stdin_part(part: &[u8], out: &mut Vec<u8>) {
    for part in part.chunks(CONTENT_BYTES_MAX) {
        write_header(STDIN, part.len() as u16, out);
        out.extend_from_slice(part);
    }
}

/// Writes the end of the body of a request.
pub fn write_stdin_end(out: &mut Vec<u8>) {
    write_header(STDIN, 0, out);
}

/// Reads the records of one response after another.
#[derive(Debug, Default)]
pub struct Records {
    header: [u8; HEADER_BYTES],
    header_bytes: usize,
    content_bytes: usize,
    padding_bytes: usize,
    end: [u8; 8],
    end_bytes: usize,
    has_stdout_ended: bool,
    has_ended: bool,
}

/// A part of a response.
#[derive(Debug, PartialEq, Eq)]
pub enum RecordEvent<'a> {
    /// More bytes are needed.
    NeedMore,
    /// A part of the response.
    Stdout(&'a [u8]),
    /// A part of the application's messages.
    Stderr(&'a [u8]),
    /// The response is complete.
    End {
        /// The exit status of the script.
        app_status: u32,
        /// 0, or 1 to 3 if the application has refused the request.
        protocol_status: u8,
    },
}

impl Records {
    /// Whether the connection can carry the next request.
    pub fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Reads from the start of `bytes`. Returns how many bytes were used, and what they are.
    ///
    /// # Errors
    /// The connection is not usable any more.
    pub fn next<'a>(&mut self, bytes: &'a [u8]) -> Result<(usize, RecordEvent<'a>), RecordFault> {
        let mut used = 0;
        loop {
            let rest = bytes.get(used..).unwrap_or_default();
            if self.has_ended {
                return if rest.is_empty() {
                    Ok((used, RecordEvent::NeedMore))
                } else {
                    Err(RecordFault::AfterEnd)
                };
            }
            if self.header_bytes < HEADER_BYTES {
                let Some(&byte) = rest.first() else { return Ok((used, RecordEvent::NeedMore)) };
                if let Some(place) = self.header.get_mut(self.header_bytes) {
                    *place = byte;
                }
                self.header_bytes += 1;
                used += 1;
                if self.header_bytes == HEADER_BYTES {
                    self.begin_record()?;
                }
                continue;
            }
            if self.content_bytes > 0 {
                let part = rest.get(..self.content_bytes.min(rest.len())).unwrap_or_default();
                if part.is_empty() {
                    return Ok((used, RecordEvent::NeedMore));
                }
                self.content_bytes -= part.len();
                used += part.len();
                match self.header[1] {
                    STDOUT => return Ok((used, RecordEvent::Stdout(part))),
                    STDERR => return Ok((used, RecordEvent::Stderr(part))),
                    _ => self.read_end(part),
                }
                continue;
            }
            let padding = self.padding_bytes.min(rest.len());
            self.padding_bytes -= padding;
            used += padding;
            if self.padding_bytes > 0 {
                return Ok((used, RecordEvent::NeedMore));
            }
            self.header_bytes = 0;
            if self.header[1] == END_REQUEST {
                self.has_ended = true;
                let [a, b, c, d, protocol_status, ..] = self.end;
                let app_status = u32::from_be_bytes([a, b, c, d]);
                return Ok((used, RecordEvent::End { app_status, protocol_status }));
            }
        }
    }

    fn read_end(&mut self, part: &[u8]) {
        for &byte in part {
            if let Some(place) = self.end.get_mut(self.end_bytes) {
                *place = byte;
            }
            self.end_bytes += 1;
        }
    }

    /// Checks the header of a record.
    fn begin_record(&mut self) -> Result<(), RecordFault> {
        let [version, kind, id_high, id_low, high, low, padding, _] = self.header;
        let (id, content_bytes) = (u16::from_be_bytes([id_high, id_low]), u16::from_be_bytes([high, low]));
        match kind {
            _ if version != VERSION => return Err(RecordFault::Version(version)),
            STDOUT | STDERR | END_REQUEST if id != REQUEST_ID => return Err(RecordFault::RequestId(id)),
            STDOUT if self.has_stdout_ended => return Err(RecordFault::AfterStdout),
            STDOUT => self.has_stdout_ended = content_bytes == 0,
            STDERR => {}
            END_REQUEST if content_bytes != 8 => return Err(RecordFault::EndBytes(content_bytes)),
            END_REQUEST => {}
            _ => return Err(RecordFault::Kind(kind)),
        }
        (self.content_bytes, self.padding_bytes) = (usize::from(content_bytes), usize::from(padding));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(kind: u8, id: u8, content: &[u8], padding: u8) -> Vec<u8> {
        let mut out = vec![1, kind, 0, id, 0, content.len() as u8, padding, 0];
        out.extend_from_slice(content);
        out.resize(out.len() + usize::from(padding), 0xff);
        out
    }

    fn read(bytes: &[u8], step: usize) -> Result<(Vec<u8>, Vec<u8>, bool), RecordFault> {
        let (mut records, mut out, mut err, mut ended) = (Records::default(), Vec::new(), Vec::new(), false);
        for mut part in bytes.chunks(step) {
            loop {
                let (used, event) = records.next(part)?;
                part = &part[used..];
                match event {
                    RecordEvent::NeedMore => break,
                    RecordEvent::Stdout(data) => out.extend_from_slice(data),
                    RecordEvent::Stderr(data) => err.extend_from_slice(data),
                    RecordEvent::End { .. } => ended = true,
                }
            }
        }
        Ok((out, err, ended))
    }

    #[test]
    fn records_are_read_in_any_parts_and_with_any_padding() {
        let bytes = [
            record(STDOUT, 1, b"he", 3),
            record(STDERR, 1, b"oops", 255),
            record(STDOUT, 1, b"llo", 0),
            record(STDOUT, 1, b"", 0),
            record(STDERR, 1, b"!", 0),
            record(END_REQUEST, 1, &[0; 8], 5),
        ]
        .concat();
        for step in 1..bytes.len() {
            let expected = (b"hello".to_vec(), b"oops!".to_vec(), true);
            assert_eq!(read(&bytes, step), Ok(expected), "{step}");
        }
    }

    #[test]
    fn bad_records_are_refused() {
        let end = record(END_REQUEST, 1, &[0; 8], 0);
        for (bytes, fault) in [
            (record(STDOUT, 2, b"a", 0), RecordFault::RequestId(2)),
            (record(STDIN, 1, b"a", 0), RecordFault::Kind(STDIN)),
            (vec![2; 8], RecordFault::Version(2)),
            (record(END_REQUEST, 1, &[0; 7], 0), RecordFault::EndBytes(7)),
            ([end.clone(), end.clone()].concat(), RecordFault::AfterEnd),
            ([record(STDOUT, 1, b"", 0), record(STDOUT, 1, b"a", 0)].concat(), RecordFault::AfterStdout),
        ] {
            assert_eq!(read(&bytes, bytes.len()), Err(fault));
            assert_eq!(read(&bytes, 1), Err(fault));
        }
    }

    #[test]
    fn params_are_divided_between_pairs_only() {
        let mut pairs = Vec::new();
        write_param(b"A", &[b'x'; 40_000], &mut pairs);
        write_param(b"B", &[b'y'; 40_000], &mut pairs);
        let mut out = Vec::new();
        write_params(&pairs, &mut out).unwrap();
        let first = usize::from(u16::from_be_bytes([out[4], out[5]]));
        assert_eq!(first, 1 + 4 + 1 + 40_000);
        assert_eq!(out[8 + first + 1], PARAMS);
        assert_eq!(out.len(), 8 + first + 8 + first + 8);
        write_param(b"C", &[0; PARAMS_BYTES_MAX], &mut pairs);
        assert_eq!(write_params(&pairs, &mut Vec::new()), Err(LongParam));
    }
}
