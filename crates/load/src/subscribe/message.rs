//! The send time and the number in a message.

/// What a message's data contains.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Data {
    /// When it was sent, in nanoseconds since 1970.
    pub(super) sent_ns: Option<u64>,
    /// Its number.
    pub(super) number: Option<u64>,
}

/// The name of a message's number.
const NUMBER_NAME: &[u8] = b"\"seq\"";

/// The name of the data in a JSON message: ids and names are not send times.
const DATA_NAME: &[u8] = b"\"data\":";

/// Parses a message's data, or JSON with a `data` member.
pub(super) fn read(text: &[u8]) -> Data {
    let data = behind(text, DATA_NAME).unwrap_or(text);
    Data { sent_ns: sent_ns(data), number: number(data) }
}

fn sent_ns(data: &[u8]) -> Option<u64> {
    data.split(|byte| !byte.is_ascii_digit()).find_map(|digits| {
        let unit_ns = match digits.len() {
            13 => 1_000_000,
            16 => 1_000,
            19 => 1,
            _ => return None,
        };
        parsed(digits)?.checked_mul(unit_ns)
    })
}

fn number(data: &[u8]) -> Option<u64> {
    let value = behind(data, NUMBER_NAME)?.trim_ascii_start().strip_prefix(b":")?.trim_ascii_start();
    parsed(value.split(|byte| !byte.is_ascii_digit()).next()?)
}

fn parsed(digits: &[u8]) -> Option<u64> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

fn behind<'t>(text: &'t [u8], name: &[u8]) -> Option<&'t [u8]> {
    let at = text.windows(name.len()).position(|bytes| bytes == name)?;
    text.get(at + name.len()..)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn send_times_and_numbers_are_found() {
        let ns = 1_700_000_000_123_000_000;
        for (text, sent_ns, number) in [
            ("{\"at\":1700000000123,\"seq\":7}", Some(ns), Some(7)),
            (
                "{\"id\":\"1700000000999-1\",\"data\":{\"seq\" : 8,\"at\":1700000000123456}}",
                Some(ns + 456_000),
                Some(8),
            ),
            ("1700000000123456789", Some(ns + 456_789), None),
            ("{\"seq\":\"9\",\"phone\":123456789012}", None, None),
            ("{\"seq\":99999999999999999999999}", None, None),
            ("", None, None),
        ] {
            assert_eq!(read(text.as_bytes()), Data { sent_ns, number }, "{text}");
        }
    }
}
