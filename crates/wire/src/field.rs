//! Field lines, the same in requests and answers (RFC 9112 section 5), and the bytes that names and values are of.
//!
//! The one trick is [`value_end`], which takes eight bytes of a value at a time; the byte-by-byte version is the test's
//! oracle.

/// One field line, as offsets from the start of the head's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Field {
    pub(crate) name_at: u16,
    pub(crate) name_bytes: u16,
    pub(crate) value_at: u16,
    pub(crate) value_bytes: u16,
}

impl Field {
    /// The name, in the bytes that the head was read from.
    pub fn name(self, bytes: &[u8]) -> &[u8] {
        span(bytes, self.name_at, self.name_bytes)
    }

    /// The value without white space around it, in the bytes that the head was read from.
    pub fn value(self, bytes: &[u8]) -> &[u8] {
        span(bytes, self.value_at, self.value_bytes)
    }
}

fn span(bytes: &[u8], at: u16, length: u16) -> &[u8] {
    bytes.get(usize::from(at)..usize::from(at) + usize::from(length)).unwrap_or_default()
}

/// Why a line was not read.
pub(crate) enum Stop {
    /// What there is is good so far, and goes on.
    Partial,
    /// Its name is none.
    Name,
    /// Its value has what no value has, or does not end as it should.
    Value,
}

/// One field line, as offsets.
pub(crate) struct FieldLine {
    name_at: usize,
    name_end: usize,
    pub(crate) value_at: usize,
    value_end: usize,
    /// Where the next line begins.
    pub(crate) end: usize,
}

impl FieldLine {
    /// The name in the bytes that the line was read from.
    #[inline]
    pub(crate) fn name<'b>(&self, bytes: &'b [u8]) -> &'b [u8] {
        &bytes[self.name_at..self.name_end]
    }

    /// The value in the bytes that the line was read from.
    #[inline]
    pub(crate) fn value<'b>(&self, bytes: &'b [u8]) -> &'b [u8] {
        &bytes[self.value_at..self.value_end]
    }

    /// As it is kept: no head is longer than [`HEAD_BYTES_CEILING`](crate::head::HEAD_BYTES_CEILING).
    #[inline]
    pub(crate) fn field(&self) -> Field {
        Field {
            name_at: self.name_at as u16,
            name_bytes: (self.name_end - self.name_at) as u16,
            value_at: self.value_at as u16,
            value_bytes: (self.value_end - self.value_at) as u16,
        }
    }
}

/// Reads one field line, which begins at `at`.
#[inline(always)]
pub(crate) fn field_line(bytes: &[u8], at: usize) -> Result<FieldLine, Stop> {
    let rest = &bytes[at..];
    // Names are too short for eight at a time.
    let name_bytes = rest.iter().position(|&byte| !is(byte, TOKEN)).unwrap_or(rest.len());
    match rest.get(name_bytes) {
        Some(b':') if name_bytes > 0 => {}
        Some(_) => return Err(Stop::Name),
        None => return Err(Stop::Partial),
    }
    let name_end = at + name_bytes;
    let mut value_at = name_end + 1;
    while let Some(b' ' | b'\t') = bytes.get(value_at) {
        value_at += 1;
    }
    let line_end = value_at + value_end(&bytes[value_at..]);
    match (bytes.get(line_end), bytes.get(line_end + 1)) {
        (Some(b'\r'), Some(b'\n')) => {}
        (None, _) | (Some(b'\r'), None) => return Err(Stop::Partial),
        _ => return Err(Stop::Value),
    }
    let mut value_end = line_end;
    while value_end > value_at && matches!(bytes[value_end - 1], b' ' | b'\t') {
        value_end -= 1;
    }
    Ok(FieldLine { name_at: at, name_end, value_at, value_end, end: line_end + 2 })
}

/// How many bytes of `text` may stand in a field value: all before the first control byte other than a tab.
///
/// Eight at a time: subtracting 0x20 from each byte borrows into its high bit exactly when the byte was below
/// 0x20 (or was over 0x7f, which `!word` takes out); xor with 0x7f turns DEL into zero, which subtracting 1
/// finds the same way. A lower byte's borrow can only raise a false alarm above a true one, so the first hit
/// is exact.
#[inline]
pub(crate) fn value_end(text: &[u8]) -> usize {
    const ONES: u64 = u64::from_ne_bytes([1; 8]);
    const HIGH: u64 = ONES << 7;
    let mut at = 0;
    while let Some(chunk) = text.get(at..).and_then(|rest| rest.first_chunk::<8>()) {
        let word = u64::from_le_bytes(*chunk);
        let control = word.wrapping_sub(ONES * 0x20) & !word;
        let delete = (word ^ (ONES * 0x7f)).wrapping_sub(ONES) & !(word ^ (ONES * 0x7f));
        let hits = (control | delete) & HIGH;
        if hits == 0 {
            at += 8;
            continue;
        }
        at += (hits.trailing_zeros() / 8) as usize;
        if text[at] != b'\t' {
            return at;
        }
        at += 1;
    }
    at + value_end_bytewise(text.get(at..).unwrap_or_default())
}

fn value_end_bytewise(text: &[u8]) -> usize {
    text.iter().position(|&byte| (byte < 0x20 && byte != b'\t') || byte == 0x7f).unwrap_or(text.len())
}

/// How many bytes of `text`, from its start, belong to a class.
///
/// Eight at a time: what all of them have in common still has the class's bit if each of them has it. Without a branch for
/// each byte this is twice as fast on names of usual length; the byte-by-byte version is the test's oracle.
#[inline]
pub(crate) fn span_end(text: &[u8], class: u8) -> usize {
    let mut at = 0;
    while let Some(chunk) = text.get(at..).and_then(|rest| rest.first_chunk::<8>()) {
        let common = chunk.iter().fold(class, |common, &byte| common & CLASSES[usize::from(byte)]);
        if common == 0 {
            break;
        }
        at += 8;
    }
    while let Some(&byte) = text.get(at)
        && is(byte, class)
    {
        at += 1;
    }
    at
}

pub(crate) const TOKEN: u8 = 1;
pub(crate) const TARGET: u8 = 2;
pub(crate) const HOST: u8 = 4;
/// Bytes of a target that mean nothing but themselves.
pub(crate) const PLAIN: u8 = 8;

/// Which classes each byte belongs to: token bytes (RFC 9110 section 5.6.2), bytes of a target (visible ASCII
/// without `#`: browsers send some that RFC 3986 does not list), bytes of a host name.
static CLASSES: [u8; 256] = {
    let mut classes = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let c = byte as u8;
        let alphanumeric = c.is_ascii_alphanumeric();
        if alphanumeric || holds(b"!#$%&'*+-.^_`|~", c) {
            classes[byte] |= TOKEN;
        }
        if c > 0x20 && c < 0x7f && c != b'#' {
            classes[byte] |= TARGET;
            if !holds(b"?%\\.", c) {
                classes[byte] |= PLAIN;
            }
        }
        if alphanumeric || holds(b"-._~!$&'()*+,;=", c) {
            classes[byte] |= HOST;
        }
        byte += 1;
    }
    classes
};

const fn holds(set: &[u8], byte: u8) -> bool {
    let mut at = 0;
    while at < set.len() {
        if set[at] == byte {
            return true;
        }
        at += 1;
    }
    false
}

/// Whether a byte belongs to a class.
#[inline(always)]
pub(crate) fn is(byte: u8, class: u8) -> bool {
    CLASSES[usize::from(byte)] & class != 0
}

/// Whether `text` is a token (RFC 9110 section 5.6.2): what methods and field names are.
pub fn is_token(text: &[u8]) -> bool {
    !text.is_empty() && text.iter().all(|&byte| is(byte, TOKEN))
}

/// `text` without the optional white space around it (RFC 9110 section 5.6.3): spaces and tabs, nothing else.
pub(crate) fn trim_ows(text: &[u8]) -> &[u8] {
    let is_ows = |byte: &u8| matches!(byte, b' ' | b'\t');
    let start = text.iter().take_while(|byte| is_ows(byte)).count();
    let (_, text) = text.split_at(start);
    let end = text.len() - text.iter().rev().take_while(|byte| is_ows(byte)).count();
    text.split_at(end).0
}

/// Whether `text` may stand as a field value: no control byte but tab.
#[inline]
pub fn is_field_value(text: &[u8]) -> bool {
    value_end(text) == text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eight_at_a_time_finds_what_one_at_a_time_finds() {
        let mut text = [b'a'; 21];
        for at in 0..text.len() {
            for byte in 0..=255 {
                for before in [b'a', b'\t', 0xff, 0x80, b' '] {
                    text[at] = byte;
                    if at > 0 {
                        text[at - 1] = before;
                    }
                    assert_eq!(value_end(&text), value_end_bytewise(&text), "{text:?}");
                }
            }
            text = [b'a'; 21];
        }
    }

    #[test]
    fn spans_of_a_class_end_where_the_first_other_byte_is() {
        for class in [TOKEN, TARGET, HOST, PLAIN] {
            for at in 0..21 {
                for byte in 0..=255 {
                    let mut text = [b'a'; 21];
                    text[at] = byte;
                    let expected = text.iter().position(|&byte| !is(byte, class)).unwrap_or(text.len());
                    assert_eq!(span_end(&text, class), expected, "{byte} at {at}");
                }
            }
        }
    }
}
