//! `Range`, and the other field values used for responses with files: dates, `Accept-Encoding`.
//!
//! The first two bytes of the input are the length of the representation (0xffff is the largest possible one); the
//! rest is the field value.

use flatout_wire::accept::{Coding, choose};
use flatout_wire::date;
use flatout_wire::range::{RANGES_MAX, Ranges, parse};

pub fn run(input: &[u8]) {
    let Some((length, value)) = input.split_first_chunk::<2>() else { return };
    let length = match u16::from_be_bytes(*length) {
        u16::MAX => u64::MAX,
        length => u64::from(length),
    };
    ranges_lie_within(value, length);
    dates_are_read_back(value);
    codings_are_available(value);
}

fn ranges_lie_within(value: &[u8], length: u64) {
    let Ranges::Some(ranges) = parse(value, length, RANGES_MAX) else { return };
    assert!((1..=RANGES_MAX).contains(&ranges.len()));
    assert!(ranges.iter().all(|range| range.start < range.end && range.end <= length));
    for (at, one) in ranges.iter().enumerate() {
        for other in &ranges[at + 1..] {
            assert!(one.end < other.start || other.end < one.start, "{one:?} touches {other:?}");
        }
    }
    // Each byte near a border is sent if and only if a range asks for it.
    let asked = asked(value, length);
    for place in asked
        .iter()
        .flat_map(|range| [range.0.saturating_sub(1), range.0, range.1, range.1.saturating_add(1)])
    {
        let is_asked = asked.iter().any(|range| range.0 <= place && place <= range.1);
        assert_eq!(ranges.iter().any(|range| range.contains(&place)), is_asked && place < length, "{place}");
    }
}

/// The ranges of an accepted value: first and last byte, as saturating wide integers.
fn asked(value: &[u8], length: u64) -> Vec<(u64, u64)> {
    let text = std::str::from_utf8(&value[6..]).expect("an accepted value is ASCII");
    let number = |digits: &str| digits.parse::<u64>().unwrap_or(u64::MAX);
    text.split(',')
        .map(|spec| spec.trim_matches([' ', '\t']))
        .filter_map(|spec| match spec.split_once('-')? {
            ("", suffix) if number(suffix) == 0 || length == 0 => None,
            ("", suffix) => Some((length.saturating_sub(number(suffix)), length - 1)),
            (first, "") => Some((number(first), u64::MAX)),
            (first, last) => Some((number(first), number(last))),
        })
        .collect()
}

fn dates_are_read_back(value: &[u8]) {
    if let Some(seconds) = date::parse(value) {
        assert_eq!(date::parse(&date::format(seconds)), Some(seconds));
    }
}

fn codings_are_available(value: &[u8]) {
    let available = [Coding::Brotli, Coding::Gzip];
    assert!(choose(Some(value), &available).is_none_or(|coding| available.contains(&coding)));
    let with_identity = [Coding::Zstd, Coding::Identity];
    let refuses =
        value.contains(&b'*') || value.to_ascii_lowercase().windows(8).any(|name| name == b"identity");
    assert!(refuses || choose(Some(value), &with_identity).is_some(), "identity is always acceptable");
}
