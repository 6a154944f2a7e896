//! The noise of a shared machine, as measured: drifts on all scales and bursts of other work.

use flatout_trial::{Random, Sample, Turn, samples};

/// Seconds of a block.
pub(crate) const BLOCK_S: f64 = 0.05;

/// Pairs of blocks in a batch: a second.
pub(crate) const BATCH_PAIRS: usize = 10;

pub(crate) fn normal(random: &mut Random) -> f64 {
    (-2.0 * random.fraction().ln()).sqrt() * (std::f64::consts::TAU * random.fraction()).cos()
}

/// The logarithm of a block's cost, beside the server's own.
pub(crate) struct Noise {
    pub(crate) random: Random,
    /// Drifts that last 1, 8, 64 and 512 blocks: together about 1/f.
    drifts: [f64; 4],
    is_burst: bool,
}

impl Noise {
    pub(crate) fn new(seed: u64) -> Noise {
        Noise { random: Random::new(seed), drifts: [0.0; 4], is_burst: false }
    }

    fn next(&mut self) -> f64 {
        for (at, drift) in self.drifts.iter_mut().enumerate() {
            let stays = (-1.0 / 8f64.powi(at as i32)).exp();
            *drift = stays * *drift + 0.08 * (1.0 - stays * stays).sqrt() * normal(&mut self.random);
        }
        // Other work begins in 2 % of the blocks, and lasts four of them.
        self.is_burst = self.random.fraction() < if self.is_burst { 0.75 } else { 0.02 };
        let burst = if self.is_burst { 0.4 } else { 0.0 };
        0.15 * normal(&mut self.random) + self.drifts.iter().sum::<f64>() + burst
    }

    /// A block of a server that costs this much more, as a logarithm.
    pub(crate) fn turn(&mut self, cost: f64) -> Turn {
        let requests = 500;
        let cpu_s = requests as f64 * 50e-6 * (cost + self.next()).exp();
        Turn { requests, good: requests, errors: 0, elapsed_s: BLOCK_S, cpu_s: Some(cpu_s), machine_s: None }
    }

    pub(crate) fn pair(&mut self, costs: [f64; 2]) -> [Turn; 2] {
        let first = self.random.below(2) as usize;
        let mut pair = [Turn::default(); 2];
        for side in [first, 1 - first] {
            pair[side] = self.turn(costs[side]);
        }
        pair
    }

    /// A batch, as one pair of CPU times; more is better.
    pub(crate) fn batch(&mut self, costs: [f64; 2]) -> [Sample; 2] {
        let pairs: Vec<[Turn; 2]> = (0..BATCH_PAIRS).map(|_| self.pair(costs)).collect();
        samples(&pairs, [None, None])
    }
}
