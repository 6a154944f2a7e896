//! FastCGI 1.0 as an application reads and writes it: records, and the streams that they carry. Shares no line with the server.

use crate::message::{Head, Start};

const HEADER_BYTES: usize = 8;
const BEGIN_REQUEST: u8 = 1;
const END_REQUEST: u8 = 3;
const PARAMS: u8 = 4;
const STDIN: u8 = 5;
const STDOUT: u8 = 6;
const STDERR: u8 = 7;

/// The first byte of each record, which no request of HTTP begins with.
pub(super) const VERSION: u8 = 1;

/// A request that is being read.
#[derive(Debug, Default)]
pub(super) struct Records {
    pairs: Vec<u8>,
    has_all_pairs: bool,
    pub(super) body: Vec<u8>,
    pub(super) is_complete: bool,
    has_begun: bool,
}

impl Records {
    /// Takes whole records from the front of `input`; with `until_head`, none behind the parameters.
    pub(super) fn take(&mut self, input: &mut Vec<u8>, until_head: bool) -> Result<(), String> {
        while !(self.is_complete || until_head && self.has_all_pairs) {
            let Some(header) = input.first_chunk::<HEADER_BYTES>() else { return Ok(()) };
            let [version, kind, id_high, id_low, length_high, length_low, padding, _] = *header;
            let length = usize::from(u16::from_be_bytes([length_high, length_low]));
            let end = HEADER_BYTES + length + usize::from(padding);
            if input.len() < end {
                return Ok(());
            }
            if (version, id_high, id_low) != (VERSION, 0, 1) {
                return Err(format!(
                    "a record of FastCGI of version {version} and request {id_high}:{id_low}"
                ));
            }
            let content = input[HEADER_BYTES..HEADER_BYTES + length].to_vec();
            input.drain(..end);
            self.record(kind, &content)?;
        }
        Ok(())
    }

    fn record(&mut self, kind: u8, content: &[u8]) -> Result<(), String> {
        match (kind, self.has_begun, self.has_all_pairs) {
            // A responder, and the connection stays open.
            (BEGIN_REQUEST, false, _) if content == [0, 1, 1, 0, 0, 0, 0, 0] => self.has_begun = true,
            (PARAMS, true, false) if content.is_empty() => self.has_all_pairs = true,
            (PARAMS, true, false) => self.pairs.extend_from_slice(content),
            (STDIN, true, true) if content.is_empty() => self.is_complete = true,
            (STDIN, true, true) => self.body.extend_from_slice(content),
            _ => return Err(format!("a record of FastCGI of kind {kind} and {} bytes", content.len())),
        }
        Ok(())
    }

    /// The parameters as the head of a request, when all are there.
    pub(super) fn head(&self) -> Result<Option<Head>, String> {
        if !self.has_all_pairs {
            return Ok(None);
        }
        let mut pairs = Vec::new();
        let mut rest = self.pairs.as_slice();
        while !rest.is_empty() {
            let lengths = (length(&mut rest), length(&mut rest));
            let (Some(name), Some(value)) = lengths else { return Err("half a parameter".to_owned()) };
            if rest.len() < name + value {
                return Err("a parameter that ends behind all".to_owned());
            }
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            pairs.push((text(&rest[..name]), text(&rest[name..name + value])));
            rest = &rest[name + value..];
        }
        let value = |name: &str| pairs.iter().find(|(it, _)| it == name).map(|(_, value)| value.clone());
        let (Some(method), Some(target)) = (value("REQUEST_METHOD"), value("REQUEST_URI")) else {
            return Err("a request of FastCGI without REQUEST_METHOD or REQUEST_URI".to_owned());
        };
        let fields = pairs.iter().filter_map(|(name, value)| {
            let is_own = matches!(name.as_str(), "CONTENT_LENGTH" | "REMOTE_ADDR");
            let field = if is_own { name } else { name.strip_prefix("HTTP_")? };
            Some((field.replace('_', "-"), value.clone()))
        });
        Ok(Some(Head { start: Start::Request { method, target }, fields: fields.collect() }))
    }
}

/// Takes the length of a name or value.
fn length(rest: &mut &[u8]) -> Option<usize> {
    let (first, behind) = rest.split_first()?;
    if *first < 128 {
        *rest = behind;
        return Some(usize::from(*first));
    }
    let [first, second, third, fourth] = *rest.first_chunk::<4>()?;
    *rest = &rest[4..];
    Some(u32::from_be_bytes([first & 127, second, third, fourth]) as usize)
}

/// A response in records of drawn sizes, and where its end begins: the record that says that it is whole.
pub(super) fn written(random: &mut fastrand::Rng, response: &[u8]) -> (Vec<u8>, usize) {
    let mut out = Vec::with_capacity(response.len() + 256);
    let mut rest = response;
    while !rest.is_empty() {
        if random.u8(..8) == 0 {
            record(random, STDERR, b"a warning that is not for clients", &mut out);
        }
        let most = *random.choice(&[1, 100, 8_192, 65_535]).expect("some");
        let (piece, behind) = rest.split_at(random.usize(1..=most).min(rest.len()));
        record(random, STDOUT, piece, &mut out);
        rest = behind;
    }
    if random.bool() {
        record(random, STDOUT, b"", &mut out);
    }
    let end = out.len();
    record(random, END_REQUEST, &[0; 8], &mut out);
    (out, end)
}

fn record(random: &mut fastrand::Rng, kind: u8, content: &[u8], out: &mut Vec<u8>) {
    let padding = if random.bool() { 0 } else { random.u8(..8) };
    let [high, low] = (content.len() as u16).to_be_bytes();
    out.extend_from_slice(&[VERSION, kind, 0, 1, high, low, padding, 0]);
    out.extend_from_slice(content);
    out.extend(std::iter::repeat_n(0, padding.into()));
}
