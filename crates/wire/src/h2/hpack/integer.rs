//! Integers with a prefix (RFC 7541 section 5.1).

/// Bytes that may follow the prefix: four hold 28 bits, more than any length here.
const BYTES_MAX: usize = 4;

/// The integer is incomplete or too large.
#[derive(Debug)]
pub(super) struct NoInteger;

/// Parses the integer at the start of `bytes`, whose first byte holds it in its last `prefix_bits` bits. Returns it
/// with the rest.
#[inline(always)]
pub(super) fn read(bytes: &[u8], prefix_bits: u32) -> Result<(usize, &[u8]), NoInteger> {
    let (&first, rest) = bytes.split_first().ok_or(NoInteger)?;
    let most = (1 << prefix_bits) - 1;
    let value = usize::from(first) & most;
    if value < most { Ok((value, rest)) } else { read_long(most, rest) }
}

fn read_long(most: usize, mut rest: &[u8]) -> Result<(usize, &[u8]), NoInteger> {
    let mut value = most;
    for at in 0..BYTES_MAX {
        let (&byte, behind) = rest.split_first().ok_or(NoInteger)?;
        rest = behind;
        value += usize::from(byte & 0x7f) << (7 * at);
        if byte & 0x80 == 0 {
            return Ok((value, rest));
        }
    }
    Err(NoInteger)
}

/// Writes an integer into the bits after those of `first`.
#[inline]
pub(super) fn write(value: usize, prefix_bits: u32, first: u8, out: &mut Vec<u8>) {
    let most = (1 << prefix_bits) - 1;
    if value < most {
        return out.push(first | value as u8);
    }
    out.push(first | most as u8);
    let mut left = value - most;
    while left >= 0x80 {
        out.push(left as u8 | 0x80);
        left >>= 7;
    }
    out.push(left as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_examples_of_the_specification() {
        for (value, prefix, bytes) in [(10, 5, &[10][..]), (1337, 5, &[31, 154, 10]), (42, 8, &[42])] {
            let mut out = Vec::new();
            write(value, prefix, 0, &mut out);
            assert_eq!(out, bytes);
            assert_eq!(read(bytes, prefix).unwrap(), (value, &[][..]));
        }
    }

    #[test]
    fn written_integers_can_be_parsed_and_prefixes_cannot() {
        for value in (0..300).chain([16_383, 16_384, 1 << 20, (1 << 28) - 1]) {
            for prefix in 1..=8 {
                let mut out = Vec::new();
                write(value, prefix, 0, &mut out);
                assert_eq!(read(&out, prefix).unwrap(), (value, &[][..]));
                assert!(read(&out[..out.len() - 1], prefix).is_err());
            }
        }
    }

    #[test]
    fn an_integer_ends() {
        for bytes in [&[255, 0x80, 0x80, 0x80, 0x80, 0][..], &[255; 20], &[255, 0x80], &[]] {
            assert!(read(bytes, 8).is_err(), "{bytes:?}");
        }
    }
}
