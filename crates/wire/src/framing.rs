//! The fields that frame a message, the same in requests and responses (RFC 9112 section 6, 9.3).
//!
//! Request smuggling needs two parsers that disagree about these, so each is accepted in a single spelling, and only
//! once.

use crate::field::is_token;

/// What is wrong with the framing of a message: the start of the next one is unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FramingFault {
    /// Content-Length is not one number, or is repeated.
    Length,
    /// A Content-Length over 2^63.
    LengthTooLarge,
    /// Transfer-Encoding is malformed or repeated.
    Encoding,
    /// A transfer coding other than `chunked`.
    Coding,
}

/// The framing fields of a message, collected while its lines are parsed.
#[derive(Default)]
pub(crate) struct FramingFields {
    pub(crate) length: Option<u64>,
    pub(crate) chunked: bool,
    close: bool,
    keep_alive: bool,
}

impl FramingFields {
    /// Checks one field; most are skipped by the length of their names, at the cost of one branch.
    #[inline(always)]
    pub(crate) fn note(&mut self, name: &[u8], value: &[u8]) -> Result<(), FramingFault> {
        // Other names of the same length, such as User-Agent, differ in their first letter.
        match (name.len(), name.first()) {
            (10 | 14, Some(b'C' | b'c')) | (17, Some(b'T' | b't')) => self.note_known(name, value),
            _ => Ok(()),
        }
    }

    #[inline(never)]
    #[allow(clippy::collapsible_match, reason = "a guard that notes something would hide that it does")]
    fn note_known(&mut self, name: &[u8], value: &[u8]) -> Result<(), FramingFault> {
        match name.len() {
            10 if name.eq_ignore_ascii_case(b"connection") => {
                for option in value.split(|&byte| byte == b',') {
                    let option = option.trim_ascii();
                    self.close |= option.eq_ignore_ascii_case(b"close");
                    self.keep_alive |= option.eq_ignore_ascii_case(b"keep-alive");
                }
            }
            14 if name.eq_ignore_ascii_case(b"content-length") => {
                if self.length.replace(content_length(value)?).is_some() {
                    return Err(FramingFault::Length);
                }
            }
            17 if name.eq_ignore_ascii_case(b"transfer-encoding") => {
                if self.chunked {
                    return Err(FramingFault::Encoding);
                }
                if !value.eq_ignore_ascii_case(b"chunked") {
                    // A single well-formed coding is merely unsupported; anything else is an attack.
                    return Err(if is_token(value) { FramingFault::Coding } else { FramingFault::Encoding });
                }
                self.chunked = true;
            }
            _ => {}
        }
        Ok(())
    }

    /// Whether the peer keeps the connection open (RFC 9112 section 9.3); `by_default` is its version's default.
    #[inline]
    pub(crate) fn keeps_alive(&self, by_default: bool) -> bool {
        !self.close && (by_default || self.keep_alive)
    }
}

pub(crate) fn content_length(value: &[u8]) -> Result<u64, FramingFault> {
    if value.is_empty() || !value.iter().all(u8::is_ascii_digit) {
        return Err(FramingFault::Length);
    }
    value
        .iter()
        .try_fold(0u64, |sum, digit| sum.checked_mul(10)?.checked_add(u64::from(digit - b'0')))
        .filter(|&length| length <= 1 << 63)
        .ok_or(FramingFault::LengthTooLarge)
}
