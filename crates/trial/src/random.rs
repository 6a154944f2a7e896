//! Pseudo-random numbers for arrivals, picks and orders: fast, seeded, and not suitable for secrets.

/// Numbers from a seed, by SplitMix64 (Steele, Lea and Flood, 2014): one addition and three mixes each.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// The same seed gives the same numbers.
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    #[inline]
    fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `end`, which must not be 0. The bias is `end` in 2^64.
    #[inline]
    pub fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.draw()) * u128::from(end)) >> 64) as u64
    }

    /// A number above 0 and up to 1.
    #[inline]
    pub fn fraction(&mut self) -> f64 {
        ((self.draw() >> 11) + 1) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_spread_evenly() {
        let mut random = Random::new(1);
        let mut counts = [0u32; 10];
        let mut sum = 0.0;
        for _ in 0..10_000 {
            counts[random.below(10) as usize] += 1;
            sum += random.fraction();
        }
        assert!(counts.iter().all(|count| (900..1100).contains(count)), "{counts:?}");
        assert!((4900.0..5100.0).contains(&sum), "{sum}");
    }
}
