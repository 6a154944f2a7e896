//! Byte ranges (RFC 9110 section 14).

use std::ops::Range;

use crate::field::trim_ows;

/// The ranges that a `Range` field requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ranges {
    /// All of it: another unit, malformed, or more ranges than allowed. The field is ignored.
    Whole,
    /// These parts: none is empty, none touches another; in the requested order.
    Some(Vec<Range<u64>>),
    /// Only parts that do not exist: 416.
    Unsatisfiable,
}

/// Default limit of ranges per request; with more the field is ignored.
pub const RANGES_MAX: usize = 16;

/// Parses a `Range` field for a representation of `length` bytes.
///
/// Ranges that overlap or touch are merged into the first of them, so at most `length` bytes are sent.
pub fn parse(value: &[u8], length: u64, ranges_max: usize) -> Ranges {
    let Some(set) = value.split_at_checked(6).filter(|(unit, _)| unit.eq_ignore_ascii_case(b"bytes=")) else {
        return Ranges::Whole;
    };
    let mut ranges: Vec<Range<u64>> = Vec::new();
    let mut asked_count = 0;
    for spec in set.1.split(|&byte| byte == b',') {
        let spec = trim_ows(spec);
        if spec.is_empty() {
            continue;
        }
        asked_count += 1;
        if asked_count > ranges_max {
            return Ranges::Whole;
        }
        match range(spec, length) {
            None => return Ranges::Whole,
            Some(range) if range.is_empty() => {}
            Some(range) => merge(&mut ranges, range),
        }
    }
    match (asked_count, ranges.is_empty()) {
        (0, _) => Ranges::Whole,
        (_, true) => Ranges::Unsatisfiable,
        (_, false) => Ranges::Some(ranges),
    }
}

/// Where a range starts, if its field alone says so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// At this byte.
    At(u64),
    /// At an offset from an end that is not known.
    Suffix,
}

/// Where the range of a `Range` field starts, before the length of the representation is known. `None` for several
/// ranges, another unit, and malformed values.
pub fn start(value: &[u8]) -> Option<Start> {
    let (_, spec) = value.split_at_checked(6).filter(|(unit, _)| unit.eq_ignore_ascii_case(b"bytes="))?;
    let spec = trim_ows(spec);
    // With the largest length every valid range can be satisfied, so only malformed ones fail.
    range(spec, u64::MAX)?;
    match spec.iter().position(|&byte| byte == b'-')? {
        0 => Some(Start::Suffix),
        dash => number(spec.get(..dash)?).map(Start::At),
    }
}

/// Parses a `Content-Range` field: the range, and the complete length. `None` for another unit, an unknown length,
/// and a range beyond the length.
pub fn content_range(value: &[u8]) -> Option<(Range<u64>, u64)> {
    let (_, said) = value.split_at_checked(6).filter(|(unit, _)| unit.eq_ignore_ascii_case(b"bytes "))?;
    let slash = said.iter().position(|&byte| byte == b'/')?;
    let (part, length) = (said.get(..slash)?, number(said.get(slash + 1..)?)?);
    let dash = part.iter().position(|&byte| byte == b'-')?;
    let (first, last) = (number(part.get(..dash)?)?, number(part.get(dash + 1..)?)?);
    (first <= last && last < length).then_some((first..last.saturating_add(1), length))
}

/// One of `first-last`, `first-`, `-suffix`; empty if it is outside, `None` if it is malformed.
fn range(spec: &[u8], length: u64) -> Option<Range<u64>> {
    let dash = spec.iter().position(|&byte| byte == b'-')?;
    let (first, last) = (spec.get(..dash)?, spec.get(dash + 1..)?);
    if first.is_empty() {
        return Some(length.saturating_sub(number(last)?)..length);
    }
    let first = number(first)?;
    let last = if last.is_empty() { u64::MAX } else { number(last)? };
    if last < first {
        return None;
    }
    let end = last.saturating_add(1);
    Some(first..end.min(length).max(first))
}

/// Decimal digits; a number that does not fit counts as infinite.
fn number(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    Some(
        digits.iter().fold(0u64, |sum, digit| sum.saturating_mul(10).saturating_add(u64::from(digit - b'0'))),
    )
}

/// Adds a range, merged with all that it overlaps or touches.
fn merge(ranges: &mut Vec<Range<u64>>, mut added: Range<u64>) {
    let mut place = None;
    let mut at = 0;
    while let Some(range) = ranges.get(at) {
        if range.start <= added.end && added.start <= range.end {
            added = range.start.min(added.start)..range.end.max(added.end);
            place.get_or_insert(at);
            ranges.remove(at);
            // Earlier ranges may touch the larger range.
            at = 0;
        } else {
            at += 1;
        }
    }
    let place = place.unwrap_or(ranges.len()).min(ranges.len());
    ranges.insert(place, added);
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init, reason = "lists of one range are meant as such")]
mod tests {
    use super::*;

    fn some(ranges: &[Range<u64>]) -> Ranges {
        Ranges::Some(ranges.to_vec())
    }

    #[test]
    fn single_ranges() {
        for (value, expected) in [
            ("bytes=0-0", some(&[0..1])),
            ("bytes=0-", some(&[0..10])),
            ("Bytes=5-100", some(&[5..10])),
            ("bytes=-3", some(&[7..10])),
            ("bytes=-30", some(&[0..10])),
            ("bytes=3-99999999999999999999999", some(&[3..10])),
            ("bytes=10-", Ranges::Unsatisfiable),
            ("bytes=-0", Ranges::Unsatisfiable),
            ("bytes=99999999999999999999-", Ranges::Unsatisfiable),
            ("bytes=99999999999999999999-99999999999999999999", Ranges::Unsatisfiable),
            ("bytes=5-4", Ranges::Whole),
            ("bytes=a-b", Ranges::Whole),
            ("bytes=+1-2", Ranges::Whole),
            ("bytes=1", Ranges::Whole),
            ("bytes=-", Ranges::Whole),
            ("bytes=0-\u{c}", Ranges::Whole),
            ("bytes=0-1,\u{c}", Ranges::Whole),
            ("bytes=", Ranges::Whole),
            ("lines=0-1", Ranges::Whole),
            ("", Ranges::Whole),
        ] {
            assert_eq!(parse(value.as_bytes(), 10, RANGES_MAX), expected, "{value}");
        }
        assert_eq!(parse(b"bytes=0-", 0, RANGES_MAX), Ranges::Unsatisfiable);
    }

    #[test]
    fn a_single_range_begins_where_it_says() {
        for (value, expected) in [
            ("bytes=7-", Some(Start::At(7))),
            ("BYTES= 7-9 ", Some(Start::At(7))),
            ("bytes=-7", Some(Start::Suffix)),
            ("bytes=9-7", None),
            ("bytes=1-2,4-5", None),
            ("bytes=-", None),
            ("bytes=", None),
            ("bytes=a-", None),
            ("lines=1-2", None),
            ("", None),
        ] {
            assert_eq!(start(value.as_bytes()), expected, "{value}");
        }
    }

    #[test]
    fn parts_are_within_the_representation() {
        for (value, expected) in [
            ("bytes 0-0/1", Some((0..1, 1))),
            ("Bytes 5-9/100", Some((5..10, 100))),
            ("bytes 5-9/9", None),
            ("bytes 9-5/100", None),
            ("bytes 5-9/*", None),
            ("bytes */100", None),
            ("bytes=5-9/100", None),
            ("bytes 5-9", None),
            ("bytes -9/100", None),
            ("bytes 0-99999999999999999999999/999999999999999999999999", None),
            ("", None),
        ] {
            assert_eq!(content_range(value.as_bytes()), expected, "{value}");
        }
    }

    #[test]
    fn many_ranges_are_merged_or_ignored() {
        assert_eq!(parse(b"bytes=5-6, 0-1", 10, 16), some(&[5..7, 0..2]));
        assert_eq!(parse(b"bytes=0-1,2-3,8-9", 10, 16), some(&[0..4, 8..10]));
        assert_eq!(parse(b"bytes=0-1,4-5,1-4", 10, 16), some(&[0..6]));
        assert_eq!(parse(b"bytes=0-1,20-30", 10, 16), some(&[0..2]));
        assert_eq!(parse(b"bytes=0-0,2-2,4-4", 10, 2), Ranges::Whole);
        let thousands = format!("bytes={}", "0-,".repeat(1300));
        assert_eq!(parse(thousands.as_bytes(), 10, 16), Ranges::Whole);
    }
}
