//! Field lines, the same in requests and responses (RFC 9112 section 5), and the bytes allowed in names and values.
//!
//! The one trick is `value_end`, which processes eight bytes of a value at a time; the byte-by-byte version is the
//! test's oracle.

/// One field line, as offsets from the start of the head's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Field {
    pub(crate) name_at: u16,
    pub(crate) name_bytes: u16,
    pub(crate) value_at: u16,
    pub(crate) value_bytes: u16,
}

impl Field {
    /// A line at `at` whose value starts two bytes after its name, in a head within
    /// [`HEAD_BYTES_CEILING`](crate::head::HEAD_BYTES_CEILING).
    pub(crate) fn at(at: usize, name_bytes: usize, value_bytes: usize) -> Field {
        Field {
            name_at: at as u16,
            name_bytes: name_bytes as u16,
            value_at: (at + name_bytes + 2) as u16,
            value_bytes: value_bytes as u16,
        }
    }

    /// The name; `bytes` are those that the head was parsed from.
    pub fn name(self, bytes: &[u8]) -> &[u8] {
        span(bytes, self.name_at, self.name_bytes)
    }

    /// The value without surrounding white space; `bytes` are those that the head was parsed from.
    pub fn value(self, bytes: &[u8]) -> &[u8] {
        span(bytes, self.value_at, self.value_bytes)
    }
}

/// Writes field lines in normal form: name, colon, one space, value, CRLF. Adjacent lines that already have this form
/// are copied together.
pub struct Lines<'b, 'o> {
    bytes: &'b [u8],
    out: &'o mut Vec<u8>,
    /// Lines to copy.
    run: std::ops::Range<usize>,
}

impl<'b, 'o> Lines<'b, 'o> {
    /// Writes to `out`; `bytes` are those that the head was parsed from.
    pub fn new(bytes: &'b [u8], out: &'o mut Vec<u8>) -> Lines<'b, 'o> {
        Lines { bytes, out, run: 0..0 }
    }

    /// Writes the line of a field of that head.
    #[inline]
    pub fn write(&mut self, field: Field) {
        let at = usize::from(field.name_at);
        let colon = at + usize::from(field.name_bytes);
        let end = usize::from(field.value_at) + usize::from(field.value_bytes) + 2;
        let is_usual = usize::from(field.value_at) == colon + 2
            && matches!(self.bytes.get(colon..end), Some([b':', b' ', .., b'\r', b'\n']));
        if is_usual && self.run.end == at {
            self.run.end = end;
        } else {
            self.begin_run(field, if is_usual { at..end } else { 0..0 });
        }
    }

    fn begin_run(&mut self, field: Field, run: std::ops::Range<usize>) {
        self.copy();
        if run.is_empty() {
            write_line(field.name(self.bytes), field.value(self.bytes), self.out);
        }
        self.run = run;
    }

    fn copy(&mut self) {
        let run = std::mem::replace(&mut self.run, 0..0);
        self.out.extend_from_slice(self.bytes.get(run).unwrap_or_default());
    }
}

impl Drop for Lines<'_, '_> {
    fn drop(&mut self) {
        self.copy();
    }
}

/// Writes one field line.
pub fn write_line(name: &[u8], value: &[u8], out: &mut Vec<u8>) {
    out.reserve(name.len() + value.len() + 4);
    for part in [name, b": ", value, b"\r\n"] {
        out.extend_from_slice(part);
    }
}

fn span(bytes: &[u8], at: u16, length: u16) -> &[u8] {
    bytes.get(usize::from(at)..usize::from(at) + usize::from(length)).unwrap_or_default()
}

/// Why a line was not parsed.
pub(crate) enum LineStop {
    /// Valid so far, but incomplete.
    Partial,
    /// The name is invalid.
    Name,
    /// The value contains an invalid byte, or ends incorrectly.
    Value,
}

/// One field line.
pub(crate) struct FieldLine<'b> {
    /// The line, and everything after it.
    text: &'b [u8],
    name_bytes: usize,
    /// The value, and everything after it.
    value: &'b [u8],
    value_bytes: usize,
    /// Everything after the line.
    pub(crate) next: &'b [u8],
}

impl<'b> FieldLine<'b> {
    /// The name.
    #[inline]
    pub(crate) fn name(&self) -> &'b [u8] {
        &self.text[..self.name_bytes]
    }

    /// The first byte of the name.
    #[inline]
    pub(crate) fn first_byte(&self) -> u8 {
        self.text[0]
    }

    /// The value without surrounding white space.
    #[inline]
    pub(crate) fn value(&self) -> &'b [u8] {
        &self.value[..self.value_bytes]
    }

    /// The field's offsets in a head that fills, with what follows it, the last `bytes_all` bytes: no head is longer
    /// than [`HEAD_BYTES_CEILING`](crate::head::HEAD_BYTES_CEILING).
    #[inline]
    pub(crate) fn field(&self, bytes_all: usize) -> Field {
        Field {
            name_at: (bytes_all - self.text.len()) as u16,
            name_bytes: self.name_bytes as u16,
            value_at: (bytes_all - self.value.len()) as u16,
            value_bytes: self.value_bytes as u16,
        }
    }
}

/// Parses the field line at the start of `text`.
#[inline(always)]
pub(crate) fn field_line(text: &[u8]) -> Result<FieldLine<'_>, LineStop> {
    field_line_named(text, skip(text, TOKEN))
}

/// As [`field_line`], if the end of the name is known.
#[inline(always)]
pub(crate) fn field_line_named<'b>(text: &'b [u8], behind_name: &'b [u8]) -> Result<FieldLine<'b>, LineStop> {
    let name_bytes = text.len() - behind_name.len();
    let value = match behind_name {
        [b':', value @ ..] if name_bytes > 0 => value,
        [] => return Err(LineStop::Partial),
        _ => return Err(LineStop::Name),
    };
    // There is nearly always one space before the value, and none after it.
    let value = match value {
        [b' ', value @ ..] if value.first().is_some_and(|&byte| byte > b' ') => value,
        _ => skip_ows(value),
    };
    let end = skip_value(value);
    let next = match end {
        [b'\r', b'\n', next @ ..] => next,
        [] | [b'\r'] => return Err(LineStop::Partial),
        _ => return Err(LineStop::Value),
    };
    let value_bytes = value.len() - end.len();
    let value_bytes = match value.get(value_bytes.wrapping_sub(1)) {
        Some(b'!'..) => value_bytes,
        _ => value.get(..value_bytes).map_or(0, |value| trim_ows(value).len()),
    };
    Ok(FieldLine { text, name_bytes, value, value_bytes, next })
}

#[cold]
fn skip_ows(mut text: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', more @ ..] = text {
        text = more;
    }
    text
}

/// How many bytes of `text` are allowed in a field value: all before the first control byte other than a tab.
#[inline]
pub(crate) fn value_end(text: &[u8]) -> usize {
    text.len() - skip_value(text).len()
}

/// The rest after the bytes at the start of `text` that are allowed in a field value.
///
/// Eight at a time: subtracting 0x20 from each byte borrows into its high bit exactly if the byte was below 0x20 (or
/// above 0x7f, which `!word` removes); xor with 0x7f turns DEL into zero, which subtracting 1 finds in the same way.
/// A borrow from a lower byte can only cause a false hit above a true one, so the first hit is exact.
#[inline(always)]
fn skip_value(text: &[u8]) -> &[u8] {
    const ONES: u64 = u64::from_ne_bytes([1; 8]);
    const HIGH: u64 = ONES << 7;
    let mut rest = text;
    while let Some((chunk, behind)) = rest.split_first_chunk::<8>() {
        let word = u64::from_le_bytes(*chunk);
        let control = word.wrapping_sub(ONES * 0x20) & !word;
        let delete = (word ^ (ONES * 0x7f)).wrapping_sub(ONES) & !(word ^ (ONES * 0x7f));
        let hits = (control | delete) & HIGH;
        if hits == 0 {
            rest = behind;
            continue;
        }
        rest = &rest[(hits.trailing_zeros() / 8) as usize..];
        match rest {
            [b'\t', behind @ ..] => rest = behind,
            _ => return rest,
        }
    }
    skip_value_bytewise(rest)
}

fn skip_value_bytewise(mut rest: &[u8]) -> &[u8] {
    while let [b'\t' | 0x20..=0x7e | 0x80.., behind @ ..] = rest {
        rest = behind;
    }
    rest
}

/// How many bytes at the start of `text` belong to a class.
#[inline(always)]
pub(crate) fn span_end(text: &[u8], class: u8) -> usize {
    text.len() - skip(text, class).len()
}

/// The rest after the bytes of a class at the start of `text`.
///
/// The length is checked once per eight bytes, whose tests follow each other without a loop: three instructions per
/// byte instead of six. The byte-by-byte version is the test's oracle.
#[inline(always)]
pub(crate) fn skip(text: &[u8], class: u8) -> &[u8] {
    let mut rest = text;
    while let Some((chunk, behind)) = rest.split_first_chunk::<8>() {
        match chunk.iter().position(|&byte| !is(byte, class)) {
            Some(more) => return &rest[more..],
            None => rest = behind,
        }
    }
    while let [byte, behind @ ..] = rest
        && is(*byte, class)
    {
        rest = behind;
    }
    rest
}

pub(crate) const TOKEN: u8 = 1;
pub(crate) const TARGET: u8 = 2;
pub(crate) const HOST: u8 = 4;
/// Bytes of a target without a special meaning.
pub(crate) const PLAIN: u8 = 8;
/// Bytes of a token except capital letters.
pub(crate) const LOWER: u8 = 16;

/// The classes of each byte: token bytes (RFC 9110 section 5.6.2), bytes of a target (visible ASCII without `#`:
/// browsers send some that RFC 3986 does not list), bytes of a host name.
static CLASSES: [u8; 256] = {
    let mut classes = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let c = byte as u8;
        let alphanumeric = c.is_ascii_alphanumeric();
        if alphanumeric || holds(b"!#$%&'*+-.^_`|~", c) {
            classes[byte] |= TOKEN;
            if !c.is_ascii_uppercase() {
                classes[byte] |= LOWER;
            }
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

/// Whether two names of the same length are equal, ignoring case.
///
/// Compares eight bytes at a time. They may differ only in the case bit of letters. The byte-by-byte comparison is
/// the test's oracle.
#[inline]
pub(crate) fn is_same_name(one: &[u8], other: &[u8]) -> bool {
    if let (Some(one_end), Some(other_end)) = (one.last_chunk::<8>(), other.last_chunk::<8>()) {
        // The last word overlaps the previous one.
        let words = one.as_chunks::<8>().0.iter().zip(other.as_chunks::<8>().0);
        return is_same_word(one_end, other_end)
            && words.into_iter().all(|(one, other)| is_same_word(one, other));
    }
    one.eq_ignore_ascii_case(other)
}

#[inline(always)]
fn is_same_word(one: &[u8; 8], other: &[u8; 8]) -> bool {
    const EACH: u64 = u64::MAX / 255;
    const HIGH: u64 = 0x80 * EACH;
    const CASE: u64 = 0x20 * EACH;
    let (one, other) = (u64::from_ne_bytes(*one), u64::from_ne_bytes(*other));
    let different = one ^ other;
    if different == 0 {
        return true;
    }
    // No byte carries into the next: all are below 128.
    let lower = (one | CASE) & !HIGH;
    let from_a = lower + EACH * (0x80 - b'a' as u64);
    let beyond_z = lower + EACH * (0x7f - b'z' as u64);
    let letters = from_a & !beyond_z & !one & HIGH;
    different & !CASE == 0 && (different << 2) & !letters == 0
}

/// Whether `text` is a token (RFC 9110 section 5.6.2), such as a method or a field name.
pub fn is_token(text: &[u8]) -> bool {
    !text.is_empty() && text.iter().all(|&byte| is(byte, TOKEN))
}

/// Whether `text` is a token without capital letters, such as a field name in HTTP/2.
#[inline]
pub(crate) fn is_lower_token(text: &[u8]) -> bool {
    !text.is_empty() && skip(text, LOWER).is_empty()
}

/// `text` without surrounding optional white space (RFC 9110 section 5.6.3): spaces and tabs, nothing else.
#[cold]
pub(crate) fn trim_ows(text: &[u8]) -> &[u8] {
    let is_ows = |byte: &u8| matches!(byte, b' ' | b'\t');
    let start = text.iter().take_while(|byte| is_ows(byte)).count();
    let (_, text) = text.split_at(start);
    let end = text.len() - text.iter().rev().take_while(|byte| is_ows(byte)).count();
    text.split_at(end).0
}

/// Whether `text` is a valid field value: no control byte except tab.
#[inline]
pub fn is_field_value(text: &[u8]) -> bool {
    value_end(text) == text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fast_and_the_simple_search_agree() {
        let mut text = [b'a'; 21];
        for at in 0..text.len() {
            for byte in 0..=255 {
                for before in [b'a', b'\t', 0xff, 0x80, b' '] {
                    text[at] = byte;
                    if at > 0 {
                        text[at - 1] = before;
                    }
                    assert_eq!(skip_value(&text), skip_value_bytewise(&text), "{text:?}");
                }
            }
            text = [b'a'; 21];
        }
    }

    #[test]
    fn lines_are_written_as_one_by_one() {
        let lines = [
            "A: 1\r\n",
            "b:2\r\n",
            "C:  3\r\n",
            "D: 4 \r\n",
            "E: \r\n",
            "F: 6\r\n",
            "Gg:\t7\r\n",
            "H: 8\r\n",
        ];
        let text = lines.concat();
        let mut fields = Vec::new();
        let mut rest = text.as_bytes();
        while let Ok(line) = field_line(rest) {
            fields.push(line.field(text.len()));
            rest = line.next;
        }
        assert_eq!(fields.len(), lines.len());
        for chosen in 0u32..1 << lines.len() {
            let kept = || fields.iter().enumerate().filter(|(at, _)| chosen >> at & 1 == 1);
            let (mut one_by_one, mut written) = (Vec::new(), Vec::new());
            for (_, field) in kept() {
                write_line(field.name(text.as_bytes()), field.value(text.as_bytes()), &mut one_by_one);
            }
            let mut lines = Lines::new(text.as_bytes(), &mut written);
            kept().for_each(|(_, field)| lines.write(*field));
            drop(lines);
            assert_eq!(written, one_by_one, "{chosen:b}");
        }
    }

    #[test]
    fn names_are_compared_in_any_case() {
        for length in [0, 1, 7, 8, 9, 15, 16, 23] {
            let name: Vec<u8> = (0..length).map(|at| b"Content-Type-1"[at % 14]).collect();
            for at in 0..length {
                for byte in 0..=255 {
                    for before in [b'a', b'Z', b'-', b'~', b'^', 0xc1, 0xe1, name[at]] {
                        let (mut one, mut other) = (name.clone(), name.to_ascii_lowercase());
                        (one[at], other[at]) = (before, byte);
                        let expected = one.eq_ignore_ascii_case(&other);
                        assert_eq!(is_same_name(&one, &other), expected, "{one:?} {other:?}");
                    }
                }
            }
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
