//! How connections are closed (RFC 6455 section 7.4, and the codes that IANA has added).

use super::frame::CONTROL_BYTES_MAX;
use super::reader::FrameFault;

/// Bytes of the reason in a close frame.
pub const CLOSE_REASON_BYTES_MAX: usize = CONTROL_BYTES_MAX - 2;

/// The content of a close frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Close<'b> {
    /// The code; `None` if the frame is empty.
    pub code: Option<u16>,
    /// The reason, as text.
    pub reason: &'b str,
}

impl<'b> Close<'b> {
    /// Parses the payload of a close frame.
    pub(super) fn parse(payload: &'b [u8]) -> Result<Close<'b>, FrameFault> {
        match payload {
            [] => Ok(Close { code: None, reason: "" }),
            [_] => Err(FrameFault::Close),
            [high, low, reason @ ..] => {
                let code = u16::from_be_bytes([*high, *low]);
                if !may_be_sent(code) {
                    return Err(FrameFault::Close);
                }
                let reason = std::str::from_utf8(reason).map_err(|_| FrameFault::Utf8)?;
                Ok(Close { code: Some(code), reason })
            }
        }
    }
}

/// Whether a code may be sent: 1004 to 1006 and 1015 only have a meaning if there was no frame.
fn may_be_sent(code: u16) -> bool {
    matches!(code, 1000..=1003 | 1007..=1014 | 3000..=4999)
}

/// The payload of a close frame; a reason that is too long is cut at a character boundary.
pub fn close_payload(code: u16, reason: &str) -> Vec<u8> {
    debug_assert!(may_be_sent(code), "{code}");
    let mut bytes = reason.len().min(CLOSE_REASON_BYTES_MAX);
    while !reason.is_char_boundary(bytes) {
        bytes -= 1;
    }
    let mut payload = code.to_be_bytes().to_vec();
    payload.extend_from_slice(&reason.as_bytes()[..bytes]);
    payload
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_and_reasons_are_checked() {
        let read = |code: u16, reason: &[u8]| {
            let payload = [&code.to_be_bytes()[..], reason].concat();
            Close::parse(&payload).map(|close| close.code)
        };
        for code in [1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 1012, 1013, 3000, 3999, 4000, 4999]
        {
            assert_eq!(read(code, b"why"), Ok(Some(code)));
        }
        for code in [0, 999, 1004, 1005, 1006, 1015, 1016, 1100, 2000, 2999, 5000, 65_535] {
            assert_eq!(read(code, b""), Err(FrameFault::Close));
        }
        assert_eq!(read(1000, b"\xff"), Err(FrameFault::Utf8));
        assert_eq!(Close::parse(&[]).map(|close| close.code), Ok(None));
        assert_eq!(Close::parse(&[3]), Err(FrameFault::Close));
    }

    #[test]
    fn a_long_reason_is_cut_at_a_character() {
        let payload = close_payload(1000, &"é".repeat(100));
        assert_eq!(payload.len(), 2 + 122);
        assert!(Close::parse(&payload).is_ok());
    }
}
