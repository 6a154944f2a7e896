//! Text that is being written: parts of templates, and values that are copied and looked at in the same step.

use std::net::SocketAddr;
use std::ops::Range;

use super::escape::{Escape, is_odd};

/// Bytes of a value that are copied and looked at at a time.
const BLOCK: usize = 16;

/// Bytes that are copied at a time where more than was asked for does no harm: what comes next is written over it. Text of a
/// template up to this lies in one such piece.
const PIECE: usize = 32;

/// Text that grows at its end, and room for a piece behind it.
pub(super) struct TextBuffer {
    /// As long as there is room.
    bytes: Vec<u8>,
    at: usize,
}

/// Text of a template. What is short lies in one piece.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Text {
    piece: [u8; PIECE],
    bytes: usize,
    long: Box<[u8]>,
}

impl Default for Text {
    fn default() -> Text {
        Text::new(b"")
    }
}

impl Text {
    pub(super) fn new(text: &[u8]) -> Text {
        let mut piece = [0; PIECE];
        let long = match piece.get_mut(..text.len()) {
            Some(place) => {
                place.copy_from_slice(text);
                Box::default()
            }
            None => text.into(),
        };
        Text { piece, bytes: text.len(), long }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.bytes == 0
    }
}

impl TextBuffer {
    /// Takes no memory yet.
    pub(super) fn new() -> TextBuffer {
        TextBuffer { bytes: Vec::new(), at: 0 }
    }

    /// Forgets what was written behind so many bytes.
    #[inline]
    pub(super) fn truncate(&mut self, bytes: usize) {
        self.at = self.at.min(bytes);
    }

    /// Bytes that were written.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.at
    }

    /// Bytes of memory that it takes.
    #[inline]
    pub(super) fn bytes_kept(&self) -> usize {
        self.bytes.len()
    }

    /// What was written.
    #[inline]
    pub(super) fn written(&self) -> &[u8] {
        self.bytes.get(..self.at).unwrap_or_default()
    }

    /// Room for so many bytes and a piece.
    #[inline]
    fn room(&mut self, bytes: usize) -> &mut [u8] {
        let end = self.at + bytes + PIECE;
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
        match self.room(0).first_chunk_mut::<PIECE>() {
            Some(room) if text.bytes <= PIECE => {
                *room = text.piece;
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

    /// Adds a part of another text, piece by piece: mostly it is one or two, and a call costs more than they do.
    #[inline]
    pub(super) fn copy_of(&mut self, other: &TextBuffer, part: Range<usize>) {
        let bytes = part.len();
        let pieces = other.bytes.get(part.start..).unwrap_or_default().as_chunks::<PIECE>().0;
        let room = self.room(bytes).as_chunks_mut::<PIECE>().0;
        for (room, piece) in room.iter_mut().zip(pieces).take(bytes.div_ceil(PIECE)) {
            *room = *piece;
        }
        self.at += bytes;
    }

    /// Adds what stands for a value that is not there.
    #[inline]
    pub(super) fn nothing(&mut self, escape: Escape) {
        if escape == Escape::Text {
            self.short(*b"-   ", 1);
        }
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
        match number {
            0..10 => self.short([digit(number), 0, 0, 0], 1),
            10..100 => self.short([digit(number / 10), digit(number), 0, 0], 2),
            100..1000 => self.short([digit(number / 100), digit(number / 10), digit(number), 0], 3),
            _ => self.copy(itoa::Buffer::new().format(number).as_bytes()),
        }
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
/// It goes in blocks of one size, which the compiler turns into vectors; the last block overlaps the one before. A byte of
/// `odd` remembers what was seen at its place of each block.
#[inline]
fn is_copied_plain(value: &[u8], room: &mut [u8]) -> bool {
    let Some(room) = room.get_mut(..value.len()) else { return false };
    let mut odd = [0; BLOCK];
    if let (Some(last), Some(room_of_last)) = (value.last_chunk::<BLOCK>(), room.last_chunk_mut::<BLOCK>()) {
        *room_of_last = *last;
        note_odd(last, &mut odd);
        let blocks = value.as_chunks::<BLOCK>().0.iter().zip(room.as_chunks_mut::<BLOCK>().0);
        for (block, room) in blocks {
            *room = *block;
            note_odd(block, &mut odd);
        }
    } else if let Some(block) = copied_ends::<8>(value, room).or_else(|| copied_ends::<4>(value, room)) {
        note_odd(&block, &mut odd);
    } else {
        for (byte, room) in value.iter().zip(room) {
            *room = *byte;
            odd[0] |= u8::from(is_odd(*byte));
        }
    }
    let mut any = false;
    for odd in odd {
        any |= odd != 0;
    }
    !any
}

#[inline(always)]
fn note_odd(block: &[u8; BLOCK], odd: &mut [u8; BLOCK]) {
    for (odd, &byte) in odd.iter_mut().zip(block) {
        *odd |= if is_odd(byte) { 0xff } else { 0 };
    }
}

/// Copies the first and the last `N` bytes of a value that has no more than twice as many. Returns both in one block, whose rest
/// is not odd; `None` if the value is shorter than `N`.
#[inline(always)]
fn copied_ends<const N: usize>(value: &[u8], room: &mut [u8]) -> Option<[u8; BLOCK]> {
    let (first, last) = (value.first_chunk::<N>()?, value.last_chunk::<N>()?);
    *room.first_chunk_mut::<N>()? = *first;
    *room.last_chunk_mut::<N>()? = *last;
    let mut block = [b' '; BLOCK];
    *block.first_chunk_mut::<N>()? = *first;
    *block.last_chunk_mut::<N>()? = *last;
    Some(block)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(write: impl Fn(&mut TextBuffer)) -> String {
        let mut line = TextBuffer::new();
        line.text(&Text::new(b"<"));
        write(&mut line);
        line.text(&Text::new(b"> and a text that is longer than what is copied at a time"));
        let text = String::from_utf8(line.written().to_vec()).unwrap();
        text.strip_suffix(" and a text that is longer than what is copied at a time").unwrap().to_owned()
    }

    /// Wherever it stands, and however long what is around it is.
    #[test]
    fn no_odd_byte_is_overlooked() {
        for length in 0..100usize {
            let mut value: Vec<u8> = (0..length).map(|at| b'a' + at as u8 % 26).collect();
            let mut room = vec![0; length + 1];
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
            ("<1.234>", (&|line: &mut TextBuffer| line.seconds(1_234_567_890)) as &dyn Fn(&mut TextBuffer)),
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
    fn parts_are_copied() {
        let mut from = TextBuffer::new();
        from.copy(&(0..200).collect::<Vec<u8>>());
        for (start, end) in [(0, 0), (3, 3), (3, 4), (0, 32), (5, 38), (100, 200), (190, 200), (200, 200)] {
            let mut to = TextBuffer::new();
            to.copy(b"<");
            to.copy_of(&from, start..end);
            to.copy(b">");
            assert_eq!(to.written(), [b"<", &from.written()[start..end], b">"].concat());
        }
    }

    #[test]
    fn a_long_line_has_room() {
        let long = "x".repeat(100_000);
        let mut line = TextBuffer::new();
        line.value(long.as_bytes(), Escape::Text);
        line.value(b"\n", Escape::Text);
        assert_eq!(line.written().len(), 100_004);
        line.truncate(100_000);
        assert_eq!(line.written(), long.as_bytes());
        line.truncate(0);
        assert_eq!(line.written(), b"");
    }
}
