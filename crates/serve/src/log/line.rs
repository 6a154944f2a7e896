//! A line while it is written: values are copied and looked at in the same step, a register at a time.

use std::net::SocketAddr;

use super::escape::{Escape, is_odd};

/// Bytes of a value that are copied and looked at at a time.
const BLOCK: usize = 16;

/// Text of a template up to this is copied with what stands behind it, which what follows is written over.
const TEXT: usize = 32;

/// Room that is kept for the next line.
const ROOM_KEPT: usize = 4 << 10;

/// A line, and room for more behind it.
pub(super) struct Line {
    /// As long as there is room.
    bytes: Vec<u8>,
    at: usize,
}

/// Text of a template. What is short lies in a block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Text {
    block: [u8; TEXT],
    bytes: usize,
    long: Box<[u8]>,
}

impl Text {
    pub(super) fn new(text: &[u8]) -> Text {
        let mut block = [0; TEXT];
        let long = match block.get_mut(..text.len()) {
            Some(place) => {
                place.copy_from_slice(text);
                Box::default()
            }
            None => text.into(),
        };
        Text { block, bytes: text.len(), long }
    }
}

impl Line {
    pub(super) fn new() -> Line {
        Line { bytes: vec![0; ROOM_KEPT], at: 0 }
    }

    /// Begins the next line.
    #[inline]
    pub(super) fn clear(&mut self) {
        self.at = 0;
        if self.bytes.len() > ROOM_KEPT {
            *self = Line::new();
        }
    }

    /// What was written.
    #[inline]
    pub(super) fn written(&self) -> &[u8] {
        self.bytes.get(..self.at).unwrap_or_default()
    }

    /// Room for so many bytes and a text.
    #[inline]
    fn room(&mut self, bytes: usize) -> &mut [u8] {
        let end = self.at + bytes + TEXT;
        if end > self.bytes.len() {
            self.grow(end);
        }
        self.bytes.get_mut(self.at..end).unwrap_or_default()
    }

    #[cold]
    fn grow(&mut self, end: usize) {
        self.bytes.resize(end.next_power_of_two(), 0);
    }

    /// Adds a part of the template.
    #[inline]
    pub(super) fn text(&mut self, text: &Text) {
        match self.room(0).first_chunk_mut::<TEXT>() {
            Some(room) if text.bytes <= TEXT => {
                *room = text.block;
                self.at += text.bytes;
            }
            _ => self.copy(&text.long),
        }
    }

    /// Adds the beginning of a few bytes.
    #[inline]
    fn short(&mut self, text: [u8; 4], bytes: usize) {
        if let Some(room) = self.room(0).first_chunk_mut::<4>() {
            *room = text;
        }
        self.at += bytes;
    }

    /// Adds bytes as they are.
    #[inline]
    pub(super) fn copy(&mut self, bytes: &[u8]) {
        if let Some(room) = self.room(bytes.len()).get_mut(..bytes.len()) {
            room.copy_from_slice(bytes);
        }
        self.at += bytes.len();
    }

    /// Adds what a client sent.
    #[inline]
    pub(super) fn value(&mut self, value: &[u8], escape: Escape) {
        if is_copied_plain(value, self.room(value.len())) {
            self.at += value.len();
        } else {
            self.escaped(value, escape);
        }
    }

    #[cold]
    fn escaped(&mut self, value: &[u8], escape: Escape) {
        let mut out = Vec::with_capacity(2 * value.len());
        escape.write_escaped(value, &mut out);
        self.copy(&out);
    }

    #[inline]
    pub(super) fn number(&mut self, number: u64) {
        let mut digits = itoa::Buffer::new();
        let digits = digits.format(number).as_bytes();
        is_copied_plain(digits, self.room(digits.len()));
        self.at += digits.len();
    }

    /// Adds seconds with their milliseconds.
    #[inline]
    pub(super) fn seconds(&mut self, ns: u64) {
        let ms = ns / 1_000_000;
        self.number(ms / 1000);
        self.short([b'.', digit(ms / 100), digit(ms / 10), digit(ms)], 4);
    }

    /// Adds three digits, as nginx has them for a status; in JSON a number has no zeros before it.
    #[inline]
    pub(super) fn status(&mut self, code: u16, escape: Escape) {
        if code == 0 && escape == Escape::Json {
            return self.copy(b"0");
        }
        let code = u64::from(code);
        self.short([digit(code / 100), digit(code / 10), digit(code), 0], 3);
    }

    /// Adds an address.
    #[inline]
    pub(super) fn address(&mut self, peer: Option<SocketAddr>) {
        match peer {
            Some(SocketAddr::V4(peer)) => {
                for octet in peer.ip().octets() {
                    let (text, bytes) = OCTETS.get(usize::from(octet)).copied().unwrap_or_default();
                    self.short(text, usize::from(bytes));
                }
                // Without the dot behind the last.
                self.at -= 1;
            }
            Some(SocketAddr::V6(peer)) => self.copy(peer.ip().to_string().as_bytes()),
            None => self.copy(b"unix:"),
        }
    }
}

#[inline]
fn digit(number: u64) -> u8 {
    b'0' + (number % 10) as u8
}

/// Each octet with a dot behind it, and how long that is.
static OCTETS: [([u8; 4], u8); 256] = {
    let mut all = [([b'.'; 4], 2); 256];
    let mut octet = 0;
    while octet < 256 {
        let [a, b, c] = [octet / 100, octet / 10 % 10, octet % 10];
        let [a, b, c] = [b'0' + a as u8, b'0' + b as u8, b'0' + c as u8];
        all[octet] = match octet {
            0..10 => ([c, b'.', b'.', b'.'], 2),
            10..100 => ([b, c, b'.', b'.'], 3),
            _ => ([a, b, c, b'.'], 4),
        };
        octet += 1;
    }
    all
};

/// Copies a value to the start of `room`, which is longer than it. Whether nothing of it is odd: printable ASCII without `"`
/// and `\`.
///
/// Long ones go in blocks, which the compiler turns into vectors. The last block, or word, overlaps the one before.
#[inline]
fn is_copied_plain(value: &[u8], room: &mut [u8]) -> bool {
    let Some(room) = room.get_mut(..value.len()) else { return false };
    if let (Some(last), Some(last_room)) = (value.last_chunk::<BLOCK>(), room.last_chunk_mut::<BLOCK>()) {
        *last_room = *last;
        let mut odd = odd_of(last);
        for (block, room) in value.as_chunks::<BLOCK>().0.iter().zip(room.as_chunks_mut::<BLOCK>().0) {
            *room = *block;
            let more = odd_of(block);
            odd = std::array::from_fn(|at| odd[at] | more[at]);
        }
        return u128::from_ne_bytes(odd) == 0;
    }
    if let (Some(first), Some(last)) = (value.first_chunk::<8>(), value.last_chunk::<8>()) {
        room.first_chunk_mut::<8>().into_iter().for_each(|room| *room = *first);
        room.last_chunk_mut::<8>().into_iter().for_each(|room| *room = *last);
        return odd_of_word(u64::from_ne_bytes(*first)) | odd_of_word(u64::from_ne_bytes(*last)) == 0;
    }
    if let (Some(first), Some(last)) = (value.first_chunk::<4>(), value.last_chunk::<4>()) {
        room.first_chunk_mut::<4>().into_iter().for_each(|room| *room = *first);
        room.last_chunk_mut::<4>().into_iter().for_each(|room| *room = *last);
        let word = u64::from(u32::from_ne_bytes(*first)) << 32 | u64::from(u32::from_ne_bytes(*last));
        return odd_of_word(word) == 0;
    }
    let mut is_plain = true;
    for (byte, room) in value.iter().zip(room) {
        *room = *byte;
        is_plain &= !is_odd(*byte);
    }
    is_plain
}

#[inline]
fn odd_of(block: &[u8; BLOCK]) -> [u8; BLOCK] {
    std::array::from_fn(|at| u8::from(is_odd(block[at])))
}

/// Not 0 if a byte of it is odd (Mycroft's way to find bytes in words).
#[inline]
fn odd_of_word(word: u64) -> u64 {
    const ONES: u64 = u64::MAX / 255;
    const HIGH: u64 = ONES << 7;
    let is = |byte: u8| {
        let rest = word ^ (ONES * byte as u64);
        rest.wrapping_sub(ONES) & !rest
    };
    let control = word.wrapping_sub(ONES * 0x20) & !word;
    (control | word | is(0x7f) | is(b'"') | is(b'\\')) & HIGH
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(write: impl Fn(&mut Line)) -> String {
        let mut line = Line::new();
        line.text(&Text::new(b"<"));
        write(&mut line);
        line.text(&Text::new(b"> and a text that is longer than what is copied at a time"));
        let text = String::from_utf8(line.written().to_vec()).unwrap();
        text.strip_suffix(" and a text that is longer than what is copied at a time").unwrap().to_owned()
    }

    /// Wherever it stands, and however long what is around it is.
    #[test]
    fn no_odd_byte_is_overlooked() {
        for length in 0..70usize {
            let mut value: Vec<u8> = (0..length).map(|at| b'a' + at as u8 % 26).collect();
            let mut room = vec![0; length + BLOCK];
            assert!(is_copied_plain(&value, &mut room));
            assert_eq!(room[..length], value);
            for at in 0..length {
                let plain = value[at];
                for byte in 0..=255u8 {
                    value[at] = byte;
                    let expected = matches!(byte, b' '..=b'~') && !b"\"\\".contains(&byte);
                    assert_eq!(is_copied_plain(&value, &mut room), expected, "{byte} at {at} of {length}");
                }
                value[at] = plain;
            }
        }
    }

    #[test]
    fn numbers_are_written_as_nginx_writes_them() {
        for (expected, write) in [
            ("<1.234>", (&|line: &mut Line| line.seconds(1_234_567_890)) as &dyn Fn(&mut Line)),
            ("<000>", &|line| line.status(0, Escape::Text)),
            ("<0>", &|line| line.status(0, Escape::Json)),
            ("<503>", &|line| line.status(503, Escape::Text)),
            ("<18446744073709551615>", &|line| line.number(u64::MAX)),
            ("<10.200.3.45>", &|line| line.address(Some("10.200.3.45:1".parse().unwrap()))),
            ("<::1>", &|line| line.address(Some("[::1]:1".parse().unwrap()))),
            ("<unix:>", &|line| line.address(None)),
            ("<a\\x22>", &|line| line.value(b"a\"", Escape::Text)),
        ] {
            assert_eq!(written(write), expected);
        }
    }

    #[test]
    fn a_long_line_has_room_and_gives_it_back() {
        let long = "x".repeat(100_000);
        let mut line = Line::new();
        line.value(long.as_bytes(), Escape::Text);
        line.value(b"\n", Escape::Text);
        assert_eq!(line.written().len(), 100_004);
        line.clear();
        assert_eq!((line.written().len(), line.bytes.len()), (0, ROOM_KEPT));
    }
}
