//! The dynamic table (RFC 7541 section 2.3): the fields that the peer has added.
//!
//! ```text
//! lines    ....:name: value\r\nname: value\r\nname: value\r\n     oldest first; dots are lines that were evicted
//! entries      ^0              ^1             ^2
//! ```
//!
//! Lines are consecutive in one buffer, each as long as its name, its value and 4. An entry counts 32 more than its
//! name and value, so the valid lines are never longer than the table's size, and the buffer never longer than twice
//! that.

use std::collections::VecDeque;

use super::kind::FieldKind;

/// What an entry counts in addition to its name and value (RFC 7541 section 4.1).
pub(super) const ENTRY_BYTES: usize = 32;

/// A field as a line, with its properties.
#[derive(Debug, Clone, Copy)]
pub(super) struct Line<'t> {
    /// `name: value` and CRLF.
    pub(super) text: &'t [u8],
    pub(super) name_bytes: u16,
    pub(super) value_bytes: u16,
    pub(super) kind: FieldKind,
    pub(super) has_good_value: bool,
}

impl<'t> Line<'t> {
    pub(super) fn name(&self) -> &'t [u8] {
        self.text.get(..usize::from(self.name_bytes)).unwrap_or_default()
    }

    #[cfg(test)]
    pub(super) fn value(&self) -> &'t [u8] {
        let at = usize::from(self.name_bytes) + 2;
        self.text.get(at..at + usize::from(self.value_bytes)).unwrap_or_default()
    }
}

/// The table of one direction of a connection.
#[derive(Debug)]
pub(super) struct Table {
    lines: Vec<u8>,
    /// Oldest first.
    entries: VecDeque<Entry>,
    /// The position of the start of `lines`, as entries count.
    base: u32,
    /// The size of the entries.
    size: usize,
    size_max: usize,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    at: u32,
    name_bytes: u16,
    value_bytes: u16,
    kind: FieldKind,
    has_good_value: bool,
}

impl Entry {
    fn size(self) -> usize {
        usize::from(self.name_bytes) + usize::from(self.value_bytes) + ENTRY_BYTES
    }

    fn line_bytes(self) -> usize {
        usize::from(self.name_bytes) + usize::from(self.value_bytes) + 4
    }
}

impl Table {
    pub(super) fn new(size_max: usize) -> Table {
        Table { lines: Vec::new(), entries: VecDeque::new(), base: 0, size: 0, size_max }
    }

    /// The entry with this index, which counts from 0, newest first.
    #[inline]
    pub(super) fn line(&self, index: usize) -> Option<Line<'_>> {
        let entry = *self.entries.get(self.entries.len().checked_sub(index + 1)?)?;
        let at = entry.at.wrapping_sub(self.base) as usize;
        Some(Line {
            text: self.lines.get(at..at + entry.line_bytes())?,
            name_bytes: entry.name_bytes,
            value_bytes: entry.value_bytes,
            kind: entry.kind,
            has_good_value: entry.has_good_value,
        })
    }

    /// Adds a line. One that is larger than the table empties it, which is not an error.
    pub(super) fn insert(&mut self, line: Line<'_>) {
        let at = self.base.wrapping_add(self.lines.len() as u32);
        let Line { text, name_bytes, value_bytes, kind, has_good_value } = line;
        let entry = Entry { at, name_bytes, value_bytes, kind, has_good_value };
        if entry.size() > self.size_max {
            return self.evict_to(0);
        }
        self.evict_to(self.size_max - entry.size());
        self.lines.extend_from_slice(text);
        self.entries.push_back(entry);
        self.size += entry.size();
        self.compact();
    }

    /// Changes the size, as the peer requested.
    pub(super) fn resize(&mut self, size_max: usize) {
        self.size_max = size_max;
        self.evict_to(size_max);
        if self.entries.is_empty() {
            self.forget();
        }
    }

    fn evict_to(&mut self, size: usize) {
        while self.size > size
            && let Some(entry) = self.entries.pop_front()
        {
            self.size -= entry.size();
        }
    }

    /// Removes evicted lines once they take more than the table may: so each byte is moved at most once.
    fn compact(&mut self) {
        let Some(oldest) = self.entries.front() else { return };
        let dead = oldest.at.wrapping_sub(self.base) as usize;
        if dead >= self.size_max {
            self.lines.drain(..dead);
            self.base = oldest.at;
        }
    }

    fn forget(&mut self) {
        self.lines = Vec::new();
        self.entries = VecDeque::new();
    }

    /// The memory that it uses.
    pub(super) fn memory_bytes(&self) -> usize {
        self.lines.capacity() + self.entries.capacity() * size_of::<Entry>()
    }

    #[cfg(test)]
    pub(super) fn size(&self) -> usize {
        self.size
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn insert(table: &mut Table, name: &str, value: &str) {
        let text = format!("{name}: {value}\r\n");
        let (name_bytes, value_bytes) = (name.len() as u16, value.len() as u16);
        table.insert(Line {
            text: text.as_bytes(),
            name_bytes,
            value_bytes,
            kind: FieldKind::Plain,
            has_good_value: true,
        });
    }

    #[test]
    fn the_oldest_make_room() {
        let mut table = Table::new(100);
        for value in ["1", "2", "3", "4"] {
            insert(&mut table, "name", value);
        }
        assert_eq!(table.size(), 2 * (5 + ENTRY_BYTES));
        assert_eq!(table.line(0).unwrap().text, b"name: 4\r\n");
        assert_eq!(table.line(1).unwrap().text, b"name: 3\r\n");
        assert!(table.line(2).is_none());
        table.resize(40);
        assert_eq!(table.line(0).unwrap().value(), b"4");
        assert!(table.line(1).is_none());
        insert(&mut table, "name", "much too long for a table");
        assert!(table.line(0).is_none());
    }

    #[test]
    fn memory_stays_within_three_times_its_size() {
        let mut table = Table::new(4096);
        for count in 0..100_000 {
            insert(&mut table, "n", &"x".repeat(count * 7 % 500));
            assert!(table.size() <= 4096);
        }
        assert!(table.memory_bytes() <= 3 * 4096 + 1024, "{}", table.memory_bytes());
        table.resize(0);
        assert_eq!(table.memory_bytes(), 0);
    }
}
