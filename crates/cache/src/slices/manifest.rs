//! A response whose body is stored in slices, aligned pieces of the same size.
//!
//! ```text
//! in the slot of the key:      manifest   206, fields; its body is 1048576:52428800:"etag"
//! in a slot of its marks:      slice      206, fields; 3:1048576:52428800:"etag" stands for what selects it; 1 MiB of the body
//! ```
//!
//! Slices are found only through the manifest: they have the number of its family, and the same length and validator.
//! So removing or replacing the manifest hides them too.

use std::ops::Range;
use std::sync::Arc;

use flatout_wire::range::content_range;
use flatout_wire::{Status, date};

use crate::entry::{Entry, Parts};
use crate::key::Key;
use crate::store::Store;

/// The mark of a slice in place of the names in `Vary`; no name starts like this.
const MARK: &[u8] = b"\x01slice";

/// Whether this value in place of the names in `Vary` marks a slice.
pub(crate) fn is_slice(vary: &[u8]) -> bool {
    vary == MARK
}

impl Entry {
    /// Whether it is the manifest of a body stored in slices.
    pub(crate) fn is_manifest(&self) -> bool {
        self.status == Status::PARTIAL_CONTENT && !is_slice(self.vary())
    }
}

/// The description of a body stored in slices.
#[derive(Clone)]
pub(crate) struct Representation {
    /// The manifest, or one of the slices.
    pub(crate) entry: Arc<Entry>,
    pub(crate) slice_bytes: u64,
    pub(crate) length: u64,
    /// The slice size, the length of the body, and its validator, which together identify the representation.
    marks: Vec<u8>,
}

impl Representation {
    /// From a manifest or a slice; `None` for any other entry.
    pub(crate) fn of(entry: &Arc<Entry>) -> Option<Representation> {
        let marks = match is_slice(entry.vary()) {
            true => behind_colon(entry.selected())?.1,
            false if entry.is_manifest() => entry.body(),
            false => return None,
        };
        let (slice_bytes, rest) = behind_colon(marks)?;
        let (length, _) = behind_colon(rest)?;
        let (slice_bytes, length) = (number(slice_bytes)?, number(length)?);
        (slice_bytes > 0).then(|| Representation {
            entry: entry.clone(),
            slice_bytes,
            length,
            marks: marks.to_vec(),
        })
    }

    /// The byte range of a slice.
    pub(crate) fn part(&self, index: u64) -> Range<u64> {
        let part = part(self.slice_bytes, index);
        part.start.min(self.length)..part.end.min(self.length)
    }

    /// The selection value of a slice, in place of request fields.
    pub(crate) fn selected(&self, index: u64) -> Vec<u8> {
        selected(index, &self.marks)
    }

    /// The slot of a slice, and its family.
    pub(crate) fn place(&self, key: &Key<'_>, index: u64, store: &Store) -> (u64, u64) {
        (store.slot_of(key.hash, &self.selected(index)), self.entry.family)
    }

    /// What a slice must belong to.
    pub(crate) fn expected(&self) -> ExpectedSlice {
        ExpectedSlice { marks: self.marks.clone(), family: self.entry.family }
    }
}

/// What a slice must belong to.
pub(crate) struct ExpectedSlice {
    pub(crate) marks: Vec<u8>,
    pub(crate) family: u64,
}

impl ExpectedSlice {
    /// Whether this is the expected slice.
    pub(crate) fn is(&self, slice: &Entry, index: u64) -> bool {
        slice.family == self.family && slice.selected() == selected(index, &self.marks)
    }
}

/// The byte range of a slice, in a body of any length.
pub(crate) fn part(slice_bytes: u64, index: u64) -> Range<u64> {
    let start = slice_bytes.saturating_mul(index);
    start..start.saturating_add(slice_bytes)
}

/// The head of a received slice.
pub(crate) struct SliceHead {
    pub(crate) marks: Vec<u8>,
    pub(crate) bytes: u64,
}

impl SliceHead {
    /// Parses the fields of a 206 response. `None` if it is not the complete requested range, or if no validator
    /// distinguishes its representation from a later one.
    pub(crate) fn read<'f>(
        fields: impl Iterator<Item = (&'f [u8], &'f [u8])> + Clone,
        slice_bytes: u64,
        index: u64,
    ) -> Option<SliceHead> {
        let asked = part(slice_bytes, index);
        let value = |name: &[u8]| {
            let mut values = fields.clone().filter(|(this, _)| this.eq_ignore_ascii_case(name));
            let (_, first) = values.next()?;
            values.next().is_none().then_some(first)
        };
        let (got, length) = content_range(value(b"content-range")?)?;
        if got.start != asked.start || got.end != asked.end.min(length) {
            return None;
        }
        let validator = validator(value(b"etag"), value(b"last-modified"), value(b"date"))?;
        let mut marks = format!("{slice_bytes}:{length}:").into_bytes();
        marks.extend_from_slice(validator);
        Some(SliceHead { marks, bytes: got.end - got.start })
    }
}

/// The validator that the parts of one representation share (RFC 9110 section 13.1.5): a strong entity tag, otherwise
/// a modification time that was in the past when the response was generated.
fn validator<'v>(
    etag: Option<&'v [u8]>,
    modified: Option<&'v [u8]>,
    date: Option<&'v [u8]>,
) -> Option<&'v [u8]> {
    if let Some(etag) = etag {
        return (etag.len() >= 2 && etag.starts_with(b"\"") && etag.ends_with(b"\"")).then_some(etag);
    }
    let (changed, made) = (date::parse(modified?)?, date::parse(date?)?);
    if changed < made { modified } else { None }
}

/// The slot for keys whose responses cannot be sliced. It differs from the key's own slot, which is used for
/// responses too large to be stored completely.
pub(crate) fn pass_slot(key: &Key<'_>, store: &Store) -> u64 {
    store.slot_of(key.hash, MARK)
}

/// The manifest of a body.
pub(crate) fn manifest(parts: Parts<'_>, marks: &[u8]) -> Entry {
    let parts = Parts { vary: b"", selected: b"", status: Status::PARTIAL_CONTENT, ..parts };
    Entry::new(&parts, marks.to_vec())
}

/// A slice of a body.
pub(crate) fn slice(parts: Parts<'_>, index: u64, marks: &[u8], body: Vec<u8>) -> Entry {
    let selected = selected(index, marks);
    let parts = Parts { vary: MARK, selected: &selected, status: Status::PARTIAL_CONTENT, ..parts };
    Entry::new(&parts, body)
}

/// The selection value of a slice, in place of request fields.
pub(crate) fn selected(index: u64, marks: &[u8]) -> Vec<u8> {
    let mut selected = format!("{index}:").into_bytes();
    selected.extend_from_slice(marks);
    selected
}

fn behind_colon(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let at = text.iter().position(|&byte| byte == b':')?;
    Some((text.get(..at)?, text.get(at + 1..)?))
}

fn number(digits: &[u8]) -> Option<u64> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use flatout_wire::cache::Policy;

    const DATE: &str = "Sun, 06 Nov 1994 08:49:37 GMT";

    fn parts() -> Parts<'static> {
        let key = Key { url: b"http://a/", rest: b"", is_custom: false, hash: 1 };
        let policy = Policy::default();
        Parts { key, vary: b"", selected: b"", lines: b"ETag: \"x:y\"\r\n", status: Status::OK, policy }
    }

    fn read(lines: &[(&str, &str)], index: u64) -> Option<(String, u64)> {
        let fields = lines.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes()));
        let arrived = SliceHead::read(fields, 100, index)?;
        Some((String::from_utf8(arrived.marks).unwrap(), arrived.bytes))
    }

    #[test]
    fn a_slice_is_the_requested_range_with_a_validator() {
        let tag = ("ETag", "\"x\"");
        let range = |value| ("Content-Range", value);
        for (lines, index, expected) in [
            (vec![range("bytes 100-199/1000"), tag], 1, Some(("100:1000:\"x\"", 100))),
            (vec![range("bytes 900-949/950"), tag], 9, Some(("100:950:\"x\"", 50))),
            (vec![range("bytes 100-149/1000"), tag], 1, None),
            (vec![range("bytes 0-199/1000"), tag], 1, None),
            (vec![range("bytes 100-199/*"), tag], 1, None),
            (vec![range("bytes 100-199/1000"), range("bytes 100-199/1000"), tag], 1, None),
            (vec![range("bytes 100-199/1000"), ("ETag", "W/\"x\"")], 1, None),
            (vec![range("bytes 100-199/1000")], 1, None),
            (
                vec![
                    range("bytes 0-99/100"),
                    ("Last-Modified", "Sun, 06 Nov 1994 08:49:36 GMT"),
                    ("Date", DATE),
                ],
                0,
                Some(("100:100:Sun, 06 Nov 1994 08:49:36 GMT", 100)),
            ),
            (vec![range("bytes 0-99/100"), ("Last-Modified", DATE), ("Date", DATE)], 0, None),
            (vec![tag], 0, None),
        ] {
            let expected = expected.map(|(marks, bytes)| (marks.to_owned(), bytes));
            assert_eq!(read(&lines, index), expected, "{lines:?}");
        }
    }

    #[test]
    fn manifest_and_slices_describe_the_representation() {
        let marks = b"100:250:\"x:y\"";
        let of = |entry: Entry| Representation::of(&Arc::new(entry));
        for entry in [manifest(parts(), marks), slice(parts(), 2, marks, vec![0; 50])] {
            let whole = of(entry).unwrap();
            assert_eq!((whole.slice_bytes, whole.length, &whole.marks[..]), (100, 250, &marks[..]));
            assert_eq!((whole.part(0), whole.part(2), whole.part(3)), (0..100, 200..250, 250..250));
            assert_eq!(whole.part(u64::MAX), 250..250);
            assert_eq!(whole.selected(2), b"2:100:250:\"x:y\"");
        }
        assert!(
            manifest(parts(), marks).is_manifest() && !slice(parts(), 0, marks, Vec::new()).is_manifest()
        );
        assert!(!slice(parts(), 0, marks, Vec::new()).is_encoding(), "it is purged as others are");
        assert!(of(Entry::new(&parts(), marks.to_vec())).is_none(), "it is no manifest");
        for broken in [&b""[..], b"100", b"100:250", b"0:250:x", b"a:250:x", b"100:99999999999999999999:x"] {
            assert!(of(manifest(parts(), broken)).is_none());
        }
    }
}
