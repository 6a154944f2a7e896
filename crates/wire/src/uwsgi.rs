//! Requests of the uwsgi protocol.
//!
//! ```text
//! modifier1 = 0 | bytes of the variables, 16 bits | modifier2 = 0 | name length, 16 bits | name | value length, 16 bits | value | … body
//! ```
//! All numbers are little-endian.

/// The most bytes of variables, with their lengths.
pub const VARS_BYTES_MAX: usize = 65_535;

/// The variables are longer than [`VARS_BYTES_MAX`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LongVars;

/// Appends a variable to `vars`. One that is too long makes [`write_request`] fail.
pub fn write_var(name: &[u8], value: &[u8], vars: &mut Vec<u8>) {
    for part in [name, value] {
        vars.extend_from_slice(&(part.len() as u16).to_le_bytes());
        vars.extend_from_slice(part);
    }
}

/// Writes a whole request; `vars` are those of [`write_var`].
///
/// # Errors
/// The variables are too long; nothing is appended.
pub fn write_request(vars: &[u8], body: &[u8], out: &mut Vec<u8>) -> Result<(), LongVars> {
    // A variable whose own length does not fit is longer than the limit for all.
    let [low, high] = u16::try_from(vars.len()).map_err(|_| LongVars)?.to_le_bytes();
    for part in [&[0, low, high, 0], vars, body] {
        out.extend_from_slice(part);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_little_endian() {
        let (mut vars, mut out) = (Vec::new(), Vec::new());
        write_var(b"A", &[b'x'; 300], &mut vars);
        write_request(&vars, b"body", &mut out).unwrap();
        assert_eq!(out[..9], [0, 49, 1, 0, 1, 0, b'A', 44, 1]);
        assert_eq!((out.len(), &out[out.len() - 4..]), (4 + 305 + 4, &b"body"[..]));
    }

    #[test]
    fn variables_have_a_limit() {
        for (bytes, expected) in
            [(VARS_BYTES_MAX - 5, Ok(())), (VARS_BYTES_MAX - 4, Err(LongVars)), (1 << 17, Err(LongVars))]
        {
            let (mut vars, mut out) = (Vec::new(), Vec::new());
            write_var(b"A", &vec![b'x'; bytes], &mut vars);
            assert_eq!(write_request(&vars, b"", &mut out), expected, "{bytes}");
            assert_eq!(out.is_empty(), expected.is_err());
        }
    }
}
