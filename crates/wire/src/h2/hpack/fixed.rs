//! The static table (RFC 7541 appendix A), as lines.

use super::kind::FieldKind;
use super::table::Line;

macro_rules! entries {
    ($($name:literal $value:literal,)*) => {
        /// The entries, from index 1 on.
        static ENTRIES: [Line<'static>; FIXED_COUNT] = [$(entry(concat!($name, ": ", $value, "\r\n"), $name, $value),)*];
    };
}

/// The number of entries; the dynamic table starts after them.
pub(super) const FIXED_COUNT: usize = 61;

const fn entry(text: &'static str, name: &str, value: &str) -> Line<'static> {
    let kind = match FieldKind::known(name.as_bytes()) {
        Some(kind) => kind,
        None => FieldKind::Plain,
    };
    let (name_bytes, value_bytes) = (name.len() as u16, value.len() as u16);
    Line { text: text.as_bytes(), name_bytes, value_bytes, kind, has_good_value: true }
}

/// The entry with this index, which counts from 1.
#[inline]
pub(super) fn fixed(index: usize) -> Option<Line<'static>> {
    ENTRIES.get(index.wrapping_sub(1)).copied()
}

/// The index of the first entry with this name, in any case. Compares only with the few names of the same length.
pub(super) fn index_of_name(name: &[u8]) -> Option<usize> {
    let candidates: &[usize] = match name.len() {
        3 => &[21, 60],
        4 => &[33, 34, 37, 38, 45, 59],
        5 => &[22, 50],
        6 => &[19, 32, 35, 54],
        7 => &[36, 51, 52],
        8 => &[39, 42, 46],
        10 => &[55, 58],
        11 => &[53],
        12 => &[31, 47],
        13 => &[18, 23, 24, 30, 41, 44],
        14 => &[15, 28],
        15 => &[16, 17],
        16 => &[26, 27, 29, 61],
        17 => &[40, 57],
        18 => &[48],
        19 => &[25, 43, 49],
        25 => &[56],
        27 => &[20],
        _ => &[],
    };
    candidates
        .iter()
        .copied()
        .find(|&index| fixed(index).is_some_and(|line| line.name().eq_ignore_ascii_case(name)))
}

#[rustfmt::skip]
entries! {
    ":authority" "",
    ":method" "GET",
    ":method" "POST",
    ":path" "/",
    ":path" "/index.html",
    ":scheme" "http",
    ":scheme" "https",
    ":status" "200",
    ":status" "204",
    ":status" "206",
    ":status" "304",
    ":status" "400",
    ":status" "404",
    ":status" "500",
    "accept-charset" "",
    "accept-encoding" "gzip, deflate",
    "accept-language" "",
    "accept-ranges" "",
    "accept" "",
    "access-control-allow-origin" "",
    "age" "",
    "allow" "",
    "authorization" "",
    "cache-control" "",
    "content-disposition" "",
    "content-encoding" "",
    "content-language" "",
    "content-length" "",
    "content-location" "",
    "content-range" "",
    "content-type" "",
    "cookie" "",
    "date" "",
    "etag" "",
    "expect" "",
    "expires" "",
    "from" "",
    "host" "",
    "if-match" "",
    "if-modified-since" "",
    "if-none-match" "",
    "if-range" "",
    "if-unmodified-since" "",
    "last-modified" "",
    "link" "",
    "location" "",
    "max-forwards" "",
    "proxy-authenticate" "",
    "proxy-authorization" "",
    "range" "",
    "referer" "",
    "refresh" "",
    "retry-after" "",
    "server" "",
    "set-cookie" "",
    "strict-transport-security" "",
    "transfer-encoding" "",
    "user-agent" "",
    "vary" "",
    "via" "",
    "www-authenticate" "",
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_where_they_are() {
        for index in 15..=FIXED_COUNT {
            let line = fixed(index).unwrap();
            let upper = line.name().to_ascii_uppercase();
            assert_eq!(index_of_name(&upper), Some(index), "{index}");
            assert_eq!(index_of_name(line.name()), Some(index));
        }
        assert_eq!(index_of_name(b"x-nothing"), None);
        assert!(fixed(0).is_none() && fixed(62).is_none());
    }

    #[test]
    fn entries_match_their_names() {
        for index in 1..=FIXED_COUNT {
            let line = fixed(index).unwrap();
            assert_eq!(FieldKind::of(line.name()), line.kind, "{index}");
            assert_eq!(line.text, [line.name(), b": ", line.value(), b"\r\n"].concat());
        }
    }
}
