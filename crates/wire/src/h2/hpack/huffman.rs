//! The Huffman code of HPACK (RFC 7541 appendix B).
//!
//! The code is canonical: codes of one length are consecutive in the order of their symbols, so the lengths alone
//! define it (the end-of-string symbol is the last of the longest). Codes of up to [`SHORT_BITS`] bits, which all
//! letters, digits and most punctuation have, are found by one lookup in a table of 2 KiB; longer ones by comparing
//! with the last code of each length. The tests compare with a bitwise decoder.

/// The padding is wrong, or the text contains the end-of-string symbol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Malformed;

const SHORT_BITS: u32 = 10;
const BITS_MAX: usize = 30;

#[rustfmt::skip]
const LENGTHS: [u8; 256] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28,
    28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 28,
    6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6,
    5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10,
    13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7,
    7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6,
    15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5,
    6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28,
    20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23,
    24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24,
    22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23,
    21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23,
    26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25,
    19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27,
    20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23,
    26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26,
];

/// The code of each symbol.
static CODES: [u32; 256] = {
    let mut codes = [0; 256];
    let mut at = 0;
    while at < 256 {
        let symbol = SYMBOLS[at] as usize;
        let bits = LENGTHS[symbol] as usize;
        codes[symbol] = FIRST[bits] + (at - BEFORE[bits]) as u32;
        at += 1;
    }
    codes
};

/// The symbols in the order of their codes.
const SYMBOLS: [u8; 256] = {
    let mut symbols = [0; 256];
    let (mut at, mut bits) = (0, 0);
    while bits <= BITS_MAX {
        let mut symbol = 0;
        while symbol < 256 {
            if LENGTHS[symbol] as usize == bits {
                symbols[at] = symbol as u8;
                at += 1;
            }
            symbol += 1;
        }
        bits += 1;
    }
    symbols
};

/// The number of symbols with codes shorter than this many bits.
const BEFORE: [usize; BITS_MAX + 2] = {
    let mut before = [0; BITS_MAX + 2];
    let mut symbol = 0;
    while symbol < 256 {
        let mut bits = LENGTHS[symbol] as usize + 1;
        while bits < before.len() {
            before[bits] += 1;
            bits += 1;
        }
        symbol += 1;
    }
    before
};

/// The first code of each length.
const FIRST: [u32; BITS_MAX + 2] = {
    let mut first = [0; BITS_MAX + 2];
    let mut bits = 1;
    while bits <= BITS_MAX {
        first[bits + 1] = (first[bits] + (BEFORE[bits + 1] - BEFORE[bits]) as u32) << 1;
        bits += 1;
    }
    first
};

/// By the first bits of a code: its length and its symbol, or 0 for a longer code.
static SHORT: [u16; 1 << SHORT_BITS] = {
    let mut short = [0; 1 << SHORT_BITS];
    let mut at = 0;
    while at < 256 {
        let symbol = SYMBOLS[at];
        let bits = LENGTHS[symbol as usize] as u32;
        if bits <= SHORT_BITS {
            let code = FIRST[bits as usize] + (at - BEFORE[bits as usize]) as u32;
            let first = (code << (SHORT_BITS - bits)) as usize;
            let mut more = 0;
            while more < 1 << (SHORT_BITS - bits) {
                short[first + more] = (bits as u16) << 8 | symbol as u16;
                more += 1;
            }
        }
        at += 1;
    }
    short
};

/// The maximum decoded length of `bytes` bytes: no symbol has fewer than 5 bits.
#[inline]
const fn decoded_bytes_max(bytes: usize) -> usize {
    bytes * 8 / 5
}

/// Decodes `text` and appends it to `out`.
///
/// # Errors
/// The padding does not follow RFC 7541 section 5.2. `out` may have grown.
pub fn decode(text: &[u8], out: &mut Vec<u8>) -> Result<(), Malformed> {
    let start = out.len();
    // Written by index and truncated afterwards: a push would check the capacity for each byte.
    out.resize(start + decoded_bytes_max(text.len()), 0);
    let decoded = decode_into(text, out.get_mut(start..).unwrap_or_default());
    out.truncate(start + decoded.unwrap_or(0));
    decoded.map(|_| ()).ok_or(Malformed)
}

/// The bits are at the top of `window`; below them are ones, like the padding at the end.
fn decode_into(text: &[u8], out: &mut [u8]) -> Option<usize> {
    let mut rest = text;
    let mut slots = out.iter_mut();
    let (mut window, mut bits) = (u64::MAX, 0u32);
    loop {
        if bits <= 32 {
            if let Some((chunk, behind)) = rest.split_first_chunk::<4>() {
                let more = u64::from(u32::from_be_bytes(*chunk)) << (32 - bits);
                window &= more | !(0xffff_ffff << (32 - bits));
                bits += 32;
                rest = behind;
            } else if let Some((&byte, behind)) = rest.split_first() {
                window &= u64::from(byte) << (56 - bits) | !(0xff << (56 - bits));
                bits += 8;
                rest = behind;
                // The last bytes are added one by one, all of them before the next symbol.
                continue;
            }
        }
        let found = SHORT[(window >> (64 - SHORT_BITS)) as usize];
        let (length, symbol) = match found {
            0 => match long(window) {
                Some(found) => found,
                None => break,
            },
            found => (u32::from(found >> 8), found as u8),
        };
        if length > bits {
            break;
        }
        *slots.next()? = symbol;
        window = window << length | ((1 << length) - 1);
        bits -= length;
    }
    // Fewer than eight ones: the start of the end-of-string symbol.
    (rest.is_empty() && bits < 8 && window == u64::MAX).then(|| out_len(text.len(), slots.len()))
}

#[inline]
fn out_len(text_bytes: usize, slots_left: usize) -> usize {
    decoded_bytes_max(text_bytes) - slots_left
}

/// The symbol whose long code is at the top of `window`; `None` for the end of the string.
#[cold]
fn long(window: u64) -> Option<(u32, u8)> {
    let top = (window >> 34) as u32;
    for bits in SHORT_BITS as usize + 1..=BITS_MAX {
        let code = top >> (BITS_MAX - bits);
        let at = (code.wrapping_sub(FIRST[bits])) as usize;
        if code >= FIRST[bits] && at < BEFORE[bits + 1] - BEFORE[bits] {
            return SYMBOLS.get(BEFORE[bits] + at).map(|&symbol| (bits as u32, symbol));
        }
    }
    None
}

/// The encoded length of `text`.
#[inline]
pub(super) fn encoded_bytes(text: &[u8]) -> usize {
    let bits: usize = text.iter().map(|&byte| usize::from(LENGTHS[usize::from(byte)])).sum();
    bits.div_ceil(8)
}

/// Encodes `text` and appends it to `out`.
pub fn encode(text: &[u8], out: &mut Vec<u8>) {
    let (mut window, mut bits) = (0u64, 0);
    for &byte in text {
        let length = u32::from(LENGTHS[usize::from(byte)]);
        window = window << length | u64::from(CODES[usize::from(byte)]);
        bits += length;
        while bits >= 8 {
            bits -= 8;
            out.push((window >> bits) as u8);
        }
    }
    if bits > 0 {
        let padding = 8 - bits;
        out.push((window << padding) as u8 | ((1 << padding) - 1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Decodes bit by bit.
    fn decode_bitwise(text: &[u8]) -> Option<Vec<u8>> {
        let (mut out, mut code, mut bits) = (Vec::new(), 0u32, 0);
        for at in 0..text.len() * 8 {
            code = code << 1 | u32::from(text[at / 8] >> (7 - at % 8) & 1);
            bits += 1;
            if bits == 30 && code == 0x3fff_ffff {
                return None;
            }
            let found = (0..256).find(|&symbol| u32::from(LENGTHS[symbol]) == bits && CODES[symbol] == code);
            if let Some(symbol) = found {
                out.push(symbol as u8);
                (code, bits) = (0, 0);
            }
        }
        (bits < 8 && code == (1 << bits) - 1).then_some(out)
    }

    fn decoded(text: &[u8]) -> Option<Vec<u8>> {
        let mut out = b"before".to_vec();
        decode(text, &mut out).ok()?;
        Some(out.split_off(6))
    }

    #[test]
    fn the_examples_of_the_specification() {
        let code = [0xf1, 0xe3, 0xc2, 0xe5, 0xf2, 0x3a, 0x6b, 0xa0, 0xab, 0x90, 0xf4, 0xff];
        assert_eq!(decoded(&code).unwrap(), b"www.example.com");
        let mut out = Vec::new();
        encode(b"www.example.com", &mut out);
        assert_eq!(out, code);
        assert_eq!(CODES[usize::from(b'0')], 0);
        assert_eq!((CODES[usize::from(b'\n')], LENGTHS[usize::from(b'\n')]), (0x3fff_fffc, 30));
        assert_eq!((CODES[249], LENGTHS[249]), (0xfff_fffe, 28));
    }

    #[test]
    fn every_symbol_beside_every_other() {
        for first in 0..=255u8 {
            for second in 0..=255u8 {
                let text = [first, second, first];
                let mut out = Vec::new();
                encode(&text, &mut out);
                assert_eq!(out.len(), encoded_bytes(&text));
                assert_eq!(decoded(&out).unwrap(), text);
            }
        }
    }

    #[test]
    fn bits_one_by_one_give_the_same() {
        let mut seed = 7u64;
        for _ in 0..20_000 {
            let mut bytes = [0; 12];
            for byte in &mut bytes {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                *byte = (seed >> 56) as u8 | if seed >> 40 & 3 == 0 { 0xfe } else { 0 };
            }
            let text = &bytes[..(seed >> 33) as usize % 13];
            assert_eq!(decoded(text), decode_bitwise(text), "{text:x?}");
        }
    }

    #[test]
    fn padding_is_ones_and_shorter_than_a_byte() {
        assert_eq!(decoded(&[]), Some(Vec::new()));
        for text in [&[0xff][..], &[0x07, 0xff], &[0xff; 4], &[0x00], &[0x06]] {
            assert_eq!(decoded(text), decode_bitwise(text), "{text:x?}");
        }
        assert_eq!(decoded(&[0xff]), None, "eight ones");
        assert_eq!(decoded(&[0xff, 0xff, 0xff, 0xfc]), None, "the end of the string");
        assert_eq!(decoded(&[0x06]), None, "padding of zeros");
    }
}
