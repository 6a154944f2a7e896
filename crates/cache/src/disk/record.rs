//! The records of a segment, each with checksums that show whether it is complete.
//!
//! ```text
//! head (80 bytes, own checksum) | url | rest | vary | selected | lines | body
//! ```

use flatout_wire::Status;
use flatout_wire::cache::Policy;

use crate::entry::{Entry, Parts};
use crate::key::Key;

/// Bytes of a record's head.
pub(super) const HEAD_BYTES: usize = 80;

const MAGIC: [u8; 4] = *b"FLC1";

/// The limit for the text of a record: a URL, a key, fields.
const TEXT_BYTES_MAX: u64 = 1 << 20;

/// The kind of record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// A response.
    Entry = 1,
    /// A purge; its text is in place of the lines.
    Purge = 2,
    /// A key that was invalidated.
    Forget = 3,
}

/// The head of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) kind: Kind,
    pub(super) is_custom: bool,
    /// Later records have larger numbers.
    pub(super) number: u64,
    status: u16,
    /// Lengths of url, rest, vary, selected and lines.
    lengths: [u32; 5],
    pub(super) body_bytes: u32,
    policy: Policy,
    text_sum: u32,
    body_sum: u32,
}

impl Head {
    /// Parses a head; `None` if there is none, or it is damaged.
    pub(super) fn read(bytes: &[u8]) -> Option<Head> {
        let (head, sum) = bytes.get(..HEAD_BYTES)?.split_last_chunk::<4>()?;
        if u32::from_le_bytes(*sum) != crc32fast::hash(head) {
            return None;
        }
        let mut from = Fields(head);
        if from.take::<4>()? != MAGIC {
            return None;
        }
        let [kind, flags] = from.take::<2>()?;
        let kind = match kind {
            1 => Kind::Entry,
            2 => Kind::Purge,
            3 => Kind::Forget,
            _ => return None,
        };
        let status = u16::from_le_bytes(from.take()?);
        let mut lengths = [0; 5];
        for length in &mut lengths {
            *length = from.u32()?;
        }
        let body_bytes = from.u32()?;
        let number = u64::from_le_bytes(from.take()?);
        let policy = Policy {
            stored_ms: u64::from_le_bytes(from.take()?),
            initial_age: from.u32()?,
            lifetime: from.u32()?,
            stale_while_revalidate: from.u32()?,
            stale_if_error: from.u32()?,
            is_validated_always: flags & 1 != 0,
            is_never_stale: flags & 2 != 0,
            is_stale_where_said: flags & 4 != 0,
        };
        let (text_sum, body_sum) = (from.u32()?, from.u32()?);
        let head = Head {
            kind,
            is_custom: flags & 8 != 0,
            number,
            status,
            lengths,
            body_bytes,
            policy,
            text_sum,
            body_sum,
        };
        (head.text_bytes() <= TEXT_BYTES_MAX).then_some(head)
    }

    fn write(&self, out: &mut Vec<u8>) {
        let at = out.len();
        let Policy { is_validated_always, is_never_stale, is_stale_where_said, .. } = self.policy;
        let flags = [is_validated_always, is_never_stale, is_stale_where_said, self.is_custom];
        let flags =
            flags.iter().enumerate().fold(0u8, |flags, (bit, &is_set)| flags | u8::from(is_set) << bit);
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&[self.kind as u8, flags]);
        out.extend_from_slice(&self.status.to_le_bytes());
        for number in self.lengths.iter().chain([&self.body_bytes]) {
            out.extend_from_slice(&number.to_le_bytes());
        }
        out.extend_from_slice(&self.number.to_le_bytes());
        out.extend_from_slice(&self.policy.stored_ms.to_le_bytes());
        let Policy { initial_age, lifetime, stale_while_revalidate, stale_if_error, .. } = self.policy;
        for number in
            [initial_age, lifetime, stale_while_revalidate, stale_if_error, self.text_sum, self.body_sum]
        {
            out.extend_from_slice(&number.to_le_bytes());
        }
        out.resize(at + HEAD_BYTES - 4, 0);
        let sum = crc32fast::hash(out.get(at..).unwrap_or_default());
        out.extend_from_slice(&sum.to_le_bytes());
    }

    pub(super) fn text_bytes(&self) -> u64 {
        self.lengths.iter().map(|&length| u64::from(length)).sum()
    }

    /// Bytes of the whole record.
    pub(super) fn record_bytes(&self) -> u64 {
        HEAD_BYTES as u64 + self.text_bytes() + u64::from(self.body_bytes)
    }

    /// The parts of a record's text, if it is complete.
    pub(super) fn text<'t>(&self, text: &'t [u8]) -> Option<Text<'t>> {
        if text.len() as u64 != self.text_bytes() || crc32fast::hash(text) != self.text_sum {
            return None;
        }
        let mut from = text;
        let mut piece = |at: usize| {
            let (piece, rest) = from.split_at_checked(*self.lengths.get(at)? as usize)?;
            from = rest;
            Some(piece)
        };
        Some(Text { url: piece(0)?, rest: piece(1)?, vary: piece(2)?, selected: piece(3)?, lines: piece(4)? })
    }

    /// The entry of a record, if it is complete. `text` starts with the head. The checksum of a body that is verified is
    /// not computed again.
    pub(super) fn entry(&self, text: &[u8], body: Vec<u8>, is_verified: bool) -> Option<Entry> {
        let has_sum = || is_verified || crc32fast::hash(&body) == self.body_sum;
        if body.len() != self.body_bytes as usize || !has_sum() {
            return None;
        }
        let Text { url, rest, vary, selected, lines } = self.text(text.get(HEAD_BYTES..)?)?;
        let key = Key { url, rest, is_custom: self.is_custom, hash: 0 };
        let status = Status::from_code(self.status)?;
        let parts = Parts { key, vary, selected, lines, status, policy: self.policy };
        Some(Entry::new(&parts, body))
    }
}

/// The parts of a record's text.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Text<'t> {
    pub(super) url: &'t [u8],
    pub(super) rest: &'t [u8],
    pub(super) vary: &'t [u8],
    pub(super) selected: &'t [u8],
    pub(super) lines: &'t [u8],
}

impl<'t> Text<'t> {
    pub(super) fn of(entry: &'t Entry) -> Text<'t> {
        Text {
            url: entry.url(),
            rest: entry.rest(),
            vary: entry.vary(),
            selected: entry.selected(),
            lines: entry.lines(),
        }
    }
}

/// Writes a record. Returns whether it can be read back.
pub(super) fn write(
    kind: Kind,
    number: u64,
    is_custom: bool,
    text: Text<'_>,
    entry: Option<&Entry>,
    out: &mut Vec<u8>,
) -> bool {
    let pieces = [text.url, text.rest, text.vary, text.selected, text.lines];
    let body = entry.map_or(&[][..], Entry::body);
    let Ok(body_bytes) = u32::try_from(body.len()) else { return false };
    let text = pieces.concat();
    if text.len() as u64 > TEXT_BYTES_MAX {
        return false;
    }
    let head = Head {
        kind,
        is_custom,
        number,
        status: entry.map_or(0, |entry| entry.status.code()),
        lengths: pieces.map(|piece| piece.len() as u32),
        body_bytes,
        policy: entry.map_or_else(Policy::default, |entry| entry.policy),
        text_sum: crc32fast::hash(&text),
        body_sum: crc32fast::hash(body),
    };
    out.reserve(HEAD_BYTES + text.len() + body.len());
    head.write(out);
    out.extend_from_slice(&text);
    out.extend_from_slice(body);
    true
}

/// The rest of a head.
struct Fields<'b>(&'b [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (field, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*field)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> Vec<u8> {
        let key = Key { url: b"http://a/", rest: b"\0up", is_custom: true, hash: 0 };
        let policy = Policy { stored_ms: 7, lifetime: 9, is_never_stale: true, ..Policy::default() };
        let parts =
            Parts { key, vary: b"\nx", selected: b",1\n", lines: b"A: b\r\n", status: Status::OK, policy };
        let entry = Entry::new(&parts, b"the body".to_vec());
        let text = Text::of(&entry);
        let mut out = Vec::new();
        assert!(write(Kind::Entry, 42, true, text, Some(&entry), &mut out));
        out
    }

    /// The entry of a record made by [`record`], whose body has eight bytes.
    fn entry(bytes: &[u8]) -> Option<Entry> {
        let (text, body) = bytes.split_at(bytes.len().saturating_sub(8));
        Head::read(text)?.entry(text, body.to_vec(), false)
    }

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let bytes = record();
        let head = Head::read(&bytes).unwrap();
        assert_eq!((head.kind, head.number, head.is_custom), (Kind::Entry, 42, true));
        assert_eq!(head.record_bytes(), bytes.len() as u64);
        assert_eq!(head.body_bytes, 8);
        let entry = entry(&bytes).unwrap();
        assert_eq!((entry.url(), entry.rest(), entry.vary()), (&b"http://a/"[..], &b"\0up"[..], &b"\nx"[..]));
        assert_eq!(
            (entry.selected(), entry.lines(), entry.body()),
            (&b",1\n"[..], &b"A: b\r\n"[..], &b"the body"[..])
        );
        assert_eq!((entry.policy.stored_ms, entry.policy.lifetime), (7, 9));
        assert!(entry.policy.is_never_stale && !entry.policy.is_stale_where_said);
    }

    #[test]
    fn damaged_records_are_refused() {
        let good = record();
        for at in 0..good.len() {
            for bit in [1, 128] {
                let mut bytes = good.clone();
                bytes[at] ^= bit;
                assert!(entry(&bytes).is_none(), "a flipped bit at {at}");
            }
            assert!(entry(&good[..at]).is_none(), "cut at {at}");
        }
    }
}
