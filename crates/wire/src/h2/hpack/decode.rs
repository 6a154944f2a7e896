//! Decodes a field block to lines.

use super::fixed::{FIXED_COUNT, fixed};
use super::huffman;
use super::integer::{self, NoInteger};
use super::kind::{FieldKind, is_value};
use super::table::{ENTRY_BYTES, Line, Table};

/// The size of the peer's table: the initial value (RFC 9113 section 6.5.2), which is never changed.
pub const TABLE_BYTES: usize = 4096;

/// A line is kept with lengths of 16 bits.
const _: () = assert!(TABLE_BYTES <= u16::MAX as usize);

/// A block is decoded up to this many times its limit, to keep the table in sync, so that only the request is refused
/// and not the connection.
pub const FLOOD_FACTOR: usize = 4;

/// The limits for a block.
#[derive(Debug, Clone, Copy)]
pub struct BlockLimits {
    /// Bytes of all names and values, and 32 for each field.
    pub bytes_max: usize,
    /// Fields, where each part of a cookie counts.
    pub fields_max: usize,
}

/// A decoded field: the line at the end of the sink's text.
#[derive(Debug, Clone, Copy)]
pub struct Decoded {
    /// Its position.
    pub at: usize,
    /// Bytes of the name.
    pub name_bytes: usize,
    /// Bytes of the value, which follows the name after two bytes.
    pub value_bytes: usize,
    /// Which field it is.
    pub kind: FieldKind,
    /// Whether the value is valid in a field.
    pub has_good_value: bool,
}

/// Receives the fields of a block.
pub trait Sink {
    /// The buffer for the next line.
    fn text(&mut self) -> &mut Vec<u8>;

    /// A field was written to it. The sink may remove it.
    fn field(&mut self, field: Decoded);
}

/// Why a block cannot be decoded. Nothing after it can be decoded either, because the tables differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockFault {
    /// It is not HPACK, has an invalid index, or changes the table's size where it must not.
    Malformed,
    /// It is many times larger than a block may be.
    Flood,
}

impl From<NoInteger> for BlockFault {
    fn from(_: NoInteger) -> BlockFault {
        BlockFault::Malformed
    }
}

/// The decoder for the peer's direction.
#[derive(Debug)]
pub struct Decoder {
    table: Table,
}

impl Default for Decoder {
    fn default() -> Self {
        Decoder { table: Table::new(TABLE_BYTES) }
    }
}

/// The size of a block so far.
struct Count {
    limits: BlockLimits,
    bytes: usize,
    fields: usize,
}

impl Count {
    /// Counts a field. Returns whether it is within the limits.
    #[inline]
    fn add(&mut self, bytes: usize) -> Result<bool, BlockFault> {
        self.bytes += bytes + ENTRY_BYTES;
        self.fields += 1;
        if self.bytes <= self.limits.bytes_max && self.fields <= self.limits.fields_max {
            return Ok(true);
        }
        let is_flood = self.bytes > self.limits.bytes_max.saturating_mul(FLOOD_FACTOR)
            || self.fields > self.limits.fields_max.saturating_mul(FLOOD_FACTOR);
        if is_flood { Err(BlockFault::Flood) } else { Ok(false) }
    }

    fn is_over(&self) -> bool {
        self.bytes > self.limits.bytes_max || self.fields > self.limits.fields_max
    }
}

impl Decoder {
    /// Decodes a complete block. Returns whether all its fields were passed on: fields beyond a limit are not, but
    /// they are still added to the table.
    ///
    /// # Errors
    /// It cannot be decoded.
    pub fn block(
        &mut self,
        block: &[u8],
        limits: BlockLimits,
        sink: &mut impl Sink,
    ) -> Result<bool, BlockFault> {
        let mut count = Count { limits, bytes: 0, fields: 0 };
        let mut rest = self.sizes(block)?;
        while let Some(&first) = rest.first() {
            rest = if first & 0x80 != 0 {
                let (index, behind) = integer::read(rest, 7)?;
                self.indexed(index, &mut count, sink)?;
                behind
            } else if first & 0x40 != 0 {
                self.literal(rest, 6, true, &mut count, sink)?
            } else if first & 0x20 != 0 {
                // A size update must precede all fields (RFC 7541 section 4.2).
                return Err(BlockFault::Malformed);
            } else {
                self.literal(rest, 4, false, &mut count, sink)?
            };
        }
        Ok(!count.is_over())
    }

    /// Size updates at the start of a block.
    fn sizes<'b>(&mut self, block: &'b [u8]) -> Result<&'b [u8], BlockFault> {
        let mut rest = block;
        while rest.first().is_some_and(|first| first & 0xe0 == 0x20) {
            let (size, behind) = integer::read(rest, 5)?;
            if size > TABLE_BYTES {
                return Err(BlockFault::Malformed);
            }
            self.table.resize(size);
            rest = behind;
        }
        Ok(rest)
    }

    #[inline]
    fn line(&self, index: usize) -> Result<Line<'_>, BlockFault> {
        match index {
            0..=FIXED_COUNT => fixed(index),
            index => self.table.line(index - FIXED_COUNT - 1),
        }
        .ok_or(BlockFault::Malformed)
    }

    #[inline]
    fn indexed(&self, index: usize, count: &mut Count, sink: &mut impl Sink) -> Result<(), BlockFault> {
        let Line { text, name_bytes, value_bytes, kind, has_good_value } = self.line(index)?;
        let (name_bytes, value_bytes) = (usize::from(name_bytes), usize::from(value_bytes));
        if count.add(name_bytes + value_bytes)? {
            let out = sink.text();
            let at = out.len();
            out.extend_from_slice(text);
            sink.field(Decoded { at, name_bytes, value_bytes, kind, has_good_value });
        }
        Ok(())
    }

    fn literal<'b>(
        &mut self,
        bytes: &'b [u8],
        prefix_bits: u32,
        is_kept: bool,
        count: &mut Count,
        sink: &mut impl Sink,
    ) -> Result<&'b [u8], BlockFault> {
        let (index, rest) = integer::read(bytes, prefix_bits)?;
        let out = sink.text();
        let at = out.len();
        let (kind, rest) = match index {
            0 => {
                let rest = string(rest, out)?;
                (FieldKind::of(out.get(at..).unwrap_or_default()), rest)
            }
            index => {
                let line = self.line(index)?;
                out.extend_from_slice(line.name());
                (line.kind, rest)
            }
        };
        let name_bytes = out.len() - at;
        out.extend_from_slice(b": ");
        let value_at = out.len();
        let rest = string(rest, out)?;
        let value = out.get(value_at..).unwrap_or_default();
        let (value_bytes, has_good_value) = (value.len(), is_value(value));
        out.extend_from_slice(b"\r\n");
        if is_kept {
            self.keep(out.get(at..).unwrap_or_default(), name_bytes, value_bytes, kind, has_good_value);
        }
        if count.add(name_bytes + value_bytes)? {
            sink.field(Decoded { at, name_bytes, value_bytes, kind, has_good_value });
        } else {
            sink.text().truncate(at);
        }
        Ok(rest)
    }

    fn keep(
        &mut self,
        text: &[u8],
        name_bytes: usize,
        value_bytes: usize,
        kind: FieldKind,
        has_good_value: bool,
    ) {
        match (u16::try_from(name_bytes), u16::try_from(value_bytes)) {
            (Ok(name_bytes), Ok(value_bytes)) => {
                self.table.insert(Line { text, name_bytes, value_bytes, kind, has_good_value });
            }
            // Larger than any table: it empties the table.
            _ => self.table.insert(Line {
                text: b"",
                name_bytes: u16::MAX,
                value_bytes: u16::MAX,
                kind,
                has_good_value,
            }),
        }
    }

    /// The memory of its table.
    pub fn memory_bytes(&self) -> usize {
        self.table.memory_bytes()
    }
}

/// Decodes the string at the start of `bytes` and appends it to `out`; returns the rest.
#[inline]
fn string<'b>(bytes: &'b [u8], out: &mut Vec<u8>) -> Result<&'b [u8], BlockFault> {
    let is_huffman = bytes.first().is_some_and(|first| first & 0x80 != 0);
    let (length, rest) = integer::read(bytes, 7)?;
    let (text, rest) = rest.split_at_checked(length).ok_or(BlockFault::Malformed)?;
    if is_huffman {
        huffman::decode(text, out).map_err(|_| BlockFault::Malformed)?;
    } else {
        out.extend_from_slice(text);
    }
    Ok(rest)
}
