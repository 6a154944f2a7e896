//! Hashes by which servers are chosen.

/// Scatters the bits of a number (the finaliser of SplitMix64).
pub(crate) fn mix(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// In place of the hash of a key that a request does not have.
pub(crate) const NO_KEY: u64 = 0;

/// The hash of a key: the same on every worker, every host and after every start (FNV-1a).
pub(crate) fn hash(key: &[u8]) -> u64 {
    key.iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}
