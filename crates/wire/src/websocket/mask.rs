//! Masking (RFC 6455 section 5.3): each byte of a payload is xored with one of the four bytes of a key.
//!
//! Eight bytes at a time, with the key twice in one word; compilers use wider instructions for it. The byte-by-byte
//! version is the test's oracle.

/// Masks or unmasks `bytes`, which start at offset `at` of the payload.
#[inline]
pub fn mask(bytes: &mut [u8], key: [u8; 4], at: usize) {
    let key: [u8; 4] = std::array::from_fn(|index| key[(index + at) % 4]);
    let [a, b, c, d] = key;
    let word = u64::from_ne_bytes([a, b, c, d, a, b, c, d]);
    let (eights, rest) = bytes.as_chunks_mut::<8>();
    for eight in eights {
        *eight = (u64::from_ne_bytes(*eight) ^ word).to_ne_bytes();
    }
    for (byte, key) in rest.iter_mut().zip([a, b, c, d, a, b, c, d]) {
        *byte ^= key;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn oracle(bytes: &mut [u8], key: [u8; 4], at: usize) {
        for (index, byte) in bytes.iter_mut().enumerate() {
            *byte ^= key[(index + at) % 4];
        }
    }

    #[test]
    fn the_fast_and_the_simple_mask_agree() {
        let bytes: Vec<u8> = (0..100).collect();
        for from in 0..9 {
            for to in from..bytes.len() {
                for at in 0..5 {
                    let (mut fast, mut slow) = (bytes[from..to].to_vec(), bytes[from..to].to_vec());
                    mask(&mut fast, [7, 77, 177, 250], at);
                    oracle(&mut slow, [7, 77, 177, 250], at);
                    assert_eq!(fast, slow, "{from} {to} {at}");
                }
            }
        }
    }
}
