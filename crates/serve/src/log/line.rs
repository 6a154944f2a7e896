//! A line while it is written: values are copied and looked at in the same step, a register at a time.

use std::net::SocketAddr;

use super::escape::{Escape, is_odd};

/// Bytes of a value that are copied and looked at at a time: of a long one, and of a shorter one.
const LONG: usize = 32;
const SHORT: usize = 16;

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
/// It goes in pieces of a fixed size, which the compiler turns into vectors; the last piece overlaps the one before.
#[inline]
fn is_copied_plain(value: &[u8], room: &mut [u8]) -> bool {
    let Some(room) = room.get_mut(..value.len()) else { return false };
    match value.len() {
        LONG.. => copy_long(value, room),
        SHORT.. => copy_ends::<SHORT>(value, room),
        8.. => copy_ends::<8>(value, room),
        4.. => copy_ends::<4>(value, room),
        _ => {
            let mut is_plain = true;
            for (byte, room) in value.iter().zip(room) {
                *room = *byte;
                is_plain &= !is_odd(*byte);
            }
            is_plain
        }
    }
}

#[inline]
fn copy_long(value: &[u8], room: &mut [u8]) -> bool {
    let mut is_plain = copy_ends::<LONG>(value, room);
    for (piece, room) in value.as_chunks::<LONG>().0.iter().zip(room.as_chunks_mut::<LONG>().0).skip(1) {
        *room = *piece;
        is_plain &= is_piece_plain(piece);
    }
    is_plain
}

/// Copies the first and the last piece of a value; between them there is nothing where it is not longer than two.
#[inline]
fn copy_ends<const N: usize>(value: &[u8], room: &mut [u8]) -> bool {
    let (Some(first), Some(last)) = (value.first_chunk::<N>(), value.last_chunk::<N>()) else { return false };
    if let Some(room) = room.first_chunk_mut::<N>() {
        *room = *first;
    }
    if let Some(room) = room.last_chunk_mut::<N>() {
        *room = *last;
    }
    is_piece_plain(first) & is_piece_plain(last)
}

#[inline]
fn is_piece_plain<const N: usize>(piece: &[u8; N]) -> bool {
    let mut odd = 0;
    for &byte in piece {
        odd |= u8::from(is_odd(byte));
    }
    odd == 0
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
