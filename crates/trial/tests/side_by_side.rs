//! Simulations of two servers that are both alive: coverage and power of blocks of 50 ms in random order, on a machine whose
//! noise has no scale of time (1/f) and bursts. Each has its seed.

use flatout_trial::compare::{Level, judge_look, judge_planned};
use flatout_trial::{
    Both, Climbed, Go, Look, Objective, Plan, Progress, Random, Sample, Set, Stage, Status, Subject, Turn,
    climb, samples,
};

/// Seconds of a block.
const BLOCK_S: f64 = 0.05;

/// Pairs of blocks in a batch: a second.
const BATCH_PAIRS: usize = 10;

/// Batches in 82 s, the share of a rung in a climb of ten minutes.
const RUNG_BATCHES: usize = 82;

fn normal(random: &mut Random) -> f64 {
    (-2.0 * random.fraction().ln()).sqrt() * (std::f64::consts::TAU * random.fraction()).cos()
}

/// The logarithm of a block's cost, beside the server's own.
struct Noise {
    random: Random,
    /// Drifts that last 1, 8, 64 and 512 blocks: together about 1/f.
    drifts: [f64; 4],
    is_burst: bool,
}

impl Noise {
    fn new(seed: u64) -> Noise {
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
    fn turn(&mut self, cost: f64) -> Turn {
        let requests = 500;
        let cpu_s = requests as f64 * 50e-6 * (cost + self.next()).exp();
        Turn { requests, good: requests, errors: 0, elapsed_s: BLOCK_S, cpu_s: Some(cpu_s) }
    }

    fn pair(&mut self, costs: [f64; 2]) -> [Turn; 2] {
        let first = self.random.below(2) as usize;
        let mut pair = [Turn::default(); 2];
        for side in [first, 1 - first] {
            pair[side] = self.turn(costs[side]);
        }
        pair
    }

    /// A batch, as one pair of CPU times; more is better.
    fn batch(&mut self, costs: [f64; 2]) -> [Sample; 2] {
        let pairs: Vec<[Turn; 2]> = (0..BATCH_PAIRS).map(|_| self.pair(costs)).collect();
        samples(&pairs, [None, None])
    }
}

/// Figures of these batches, where the first server saves this much.
fn figures(noise: &mut Noise, batches: usize, saves: f64) -> Vec<(f64, f64)> {
    let figure = |sample: &Sample| Objective::Cpu.figure(sample).unwrap();
    (0..batches)
        .map(|_| {
            let [one, other] = noise.batch([-saves, 0.0]);
            (figure(&one), figure(&other))
        })
        .collect()
}

/// The noise is as measured: the logarithm of the ratio of two blocks has an rms of 0.28.
#[test]
fn the_noise_is_that_of_a_shared_machine() {
    let mut noise = Noise::new(11);
    let squares: f64 = (0..20_000)
        .map(|_| {
            let [one, other] = noise.pair([0.0, 0.0]);
            (one.cpu_s.unwrap() / other.cpu_s.unwrap()).ln().powi(2)
        })
        .sum();
    let rms = (squares / 20_000.0).sqrt();
    assert!((0.23..0.33).contains(&rms), "{rms}");
}

/// 95 % of the intervals contain the truth; three standard deviations of such a count of 400 are 13.
#[test]
fn intervals_of_batches_contain_the_truth() {
    for (saves, seed) in [(0.0, 301), (0.05, 302)] {
        let mut noise = Noise::new(seed);
        let missed = (0..400).filter(|_| {
            let verdict = judge_planned(&figures(&mut noise, 30, saves), Level::ONE);
            !(verdict.low..=verdict.high).contains(&saves.exp())
        });
        let missed = missed.count();
        assert!(missed <= 20 + 13, "{missed} of 400 at {saves}");
    }
}

/// The interval after 82 s, at the part of a last look and of one of six rungs, is within 3.5 %.
#[test]
fn an_interval_after_82_seconds_is_narrow() {
    let mut noise = Noise::new(303);
    let mut halves: Vec<f64> = (0..40)
        .map(|_| {
            let verdict = judge_look(&figures(&mut noise, RUNG_BATCHES, 0.05), Level::shared(6), Look::Last);
            (verdict.high - verdict.low) / 2.0
        })
        .collect();
    halves.sort_by(f64::total_cmp);
    assert!(halves[20] < 0.035, "the median is {}", halves[20]);
}

/// Blocks of half a second in the same time have intervals that are at least 1.3 times as wide.
#[test]
fn long_blocks_have_wider_intervals() {
    let mut noise = Noise::new(304);
    let width = |pairs: &[(f64, f64)]| {
        let verdict = judge_planned(pairs, Level::ONE);
        verdict.high - verdict.low
    };
    let mut wider = 0;
    for _ in 0..20 {
        let short = figures(&mut noise, 40, 0.0);
        let long: Vec<(f64, f64)> = (0..40)
            .map(|_| {
                let mut cost = || (0..10).map(|_| noise.turn(0.0).cpu_s.unwrap()).sum::<f64>();
                (1.0 / cost(), 1.0 / cost())
            })
            .collect();
        wider += usize::from(width(&long) > 1.3 * width(&short));
    }
    assert!(wider >= 15, "{wider} of 20");
}

/// A climb of servers on such a machine.
struct Simulated {
    saves: Vec<f64>,
    noise: Noise,
}

impl Subject for Simulated {
    type Error = String;

    fn set(&mut self, _: &[bool]) -> Result<Set, String> {
        Err("both are alive".to_owned())
    }

    fn leave(&mut self, _: &[bool]) -> Result<(), String> {
        Ok(())
    }

    fn measure(&mut self) -> Result<Sample, String> {
        Err("both are alive".to_owned())
    }

    fn measure_both(&mut self, one: &[bool], other: &[bool]) -> Result<Both, String> {
        let cost =
            |on: &[bool]| -on.iter().zip(&self.saves).filter(|(on, _)| **on).map(|(_, by)| by).sum::<f64>();
        let costs = [cost(one), cost(other)];
        Ok(Both::Samples(self.noise.batch(costs)))
    }

    fn look(&mut self, progress: &Progress) -> Go {
        // A tenth of the time is for the noise.
        match progress.stage {
            Stage::Noise if progress.pairs >= RUNG_BATCHES * 6 / 10 => Go::Next,
            _ => Go::On,
        }
    }
}

fn climbed(saves: &[f64], seed: u64, batches: usize) -> Climbed<String> {
    let plan = Plan {
        rungs: saves.len(),
        objective: Objective::Cpu,
        width_max: 0.02,
        pairs_min: 5,
        pairs_max: batches,
        orders: 0,
        seed,
        keep: false,
    };
    climb(&mut Simulated { saves: saves.to_vec(), noise: Noise::new(seed) }, &plan)
}

/// A change of 5 % among six rungs is found in at least 19 of 20 climbs of 82 s a rung.
#[test]
fn five_per_cent_are_found_in_82_seconds() {
    let found = (0..20).filter(|seed| {
        let found = climbed(&[0.0, 0.0, 0.05, 0.0, 0.0, 0.0], 400 + seed, RUNG_BATCHES);
        found.rungs[2].status == Status::Kept
    });
    let found = found.count();
    assert!(found >= 19, "{found} of 20");
}

/// Of 60 climbs of 20 rungs without effect, 3.3 may keep one or call one worse; three standard deviations are 5.3.
#[test]
fn rungs_without_effect_are_none_side_by_side() {
    let wrong = (0..60).filter(|seed| {
        let found = climbed(&[0.0; 20], 500 + seed, 16);
        found.rungs.iter().any(|rung| rung.status != Status::None)
    });
    let wrong = wrong.count();
    assert!(wrong <= 8, "{wrong} of 60");
}
