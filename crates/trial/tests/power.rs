//! Simulations of coverage and power: how often the method errs, and how small an effect it finds. Each has its seed.

use flatout_trial::compare::{Level, Word, is_first, judge, judge_look, judge_planned};
use flatout_trial::{
    Climbed, Go, INTERIM_PAIRS, Look, Objective, Plan, Progress, Random, Sample, Set, Status, Subject, climb,
};

fn normal(random: &mut Random) -> f64 {
    (-2.0 * random.fraction().ln()).sqrt() * (std::f64::consts::TAU * random.fraction()).cos()
}

/// The noise of a run, as a logarithm.
type Noise = fn(&mut Random, usize) -> f64;

/// Kinds of noise: normal; with other work in one run of ten; skewed; a period of four runs; a drift.
const NOISES: [(&str, Noise); 5] = [
    ("normal", |random, _| 0.03 * normal(random)),
    ("bursts", |random, _| {
        0.02 * normal(random) - if random.fraction() < 0.1 { 0.4 * random.fraction() } else { 0.0 }
    }),
    ("skewed", |random, _| 0.02 * random.fraction().ln()),
    ("period", |random, run| 0.01 * normal(random) + [0.05, -0.05, -0.05, 0.05][run % 4]),
    ("drift", |random, run| 0.02 * normal(random) - 0.001 * run as f64),
];

/// Pairs of runs in random order; the first candidate is this much faster, as a logarithm.
fn pairs(random: &mut Random, noise: Noise, count: usize, effect: f64) -> Vec<(f64, f64)> {
    let run = |pair: usize, first: usize| [2 * pair + first, 2 * pair + 1 - first];
    (0..count)
        .map(|pair| {
            let [with, without] = run(pair, random.below(2) as usize);
            ((effect + noise(random, with)).exp(), noise(random, without).exp())
        })
        .collect()
}

/// At each planned look the interval contains the truth, in 95 % of the comparisons at all looks together. Of 1000, 50 may
/// miss; three standard deviations of such a count are 21.
#[test]
fn planned_looks_hold_the_truth_together() {
    let mut random = Random::new(101);
    for (name, noise) in NOISES {
        for effect in [0.0, 0.05] {
            let missed = (0..1000).filter(|_| {
                let all = pairs(&mut random, noise, 80, effect);
                let looks = INTERIM_PAIRS.map(|count| (count, Look::Interim));
                let looks = looks.into_iter().chain([(40, Look::Last), (80, Look::Again)]);
                let truth = effect.exp();
                looks.into_iter().any(|(count, look)| {
                    let verdict = judge_look(&all[..count], Level::ONE, look);
                    !(verdict.low..=verdict.high).contains(&truth)
                })
            });
            let missed = missed.count();
            assert!(missed <= 50 + 21, "{missed} of 1000 with {name} noise, effect {effect}");
        }
    }
}

/// The reason for planned looks: the interval at the end is at most three quarters as wide as that which holds always.
#[test]
fn planned_looks_have_narrower_intervals() {
    let mut random = Random::new(103);
    for (name, noise) in NOISES {
        for count in [20, 40, 80] {
            let all = pairs(&mut random, noise, count, 0.0);
            let width = |verdict: flatout_trial::compare::Verdict| verdict.high - verdict.low;
            let (planned, always) =
                (width(judge_look(&all, Level::ONE, Look::Last)), width(judge(&all, Level::ONE)));
            assert!(planned < 0.75 * always, "{name}, {count} pairs: {planned} of {always}");
        }
    }
}

/// An order of A B B A coincides with a period of four runs; a random one does not.
#[test]
fn a_random_order_does_not_coincide_with_a_period() {
    let mut random = Random::new(107);
    let noise = NOISES[3].1;
    let is_wrong = |pairs: &[(f64, f64)]| judge_planned(pairs, Level::ONE).word != Word::NoDifference;
    let wrong = (0..500).filter(|_| is_wrong(&pairs(&mut random, noise, 40, 0.0))).count();
    assert!(wrong <= 25 + 15, "{wrong} of 500 in random order");
    let in_turn = |random: &mut Random| -> Vec<(f64, f64)> {
        let figure = |random: &mut Random, run| noise(random, run).exp();
        (0..40)
            .map(|pair| {
                let (one, other) = (figure(random, 2 * pair), figure(random, 2 * pair + 1));
                if is_first(2 * pair) { (one, other) } else { (other, one) }
            })
            .collect()
    };
    let wrong = (0..500).filter(|_| is_wrong(&in_turn(&mut random))).count();
    assert!(wrong > 400, "{wrong} of 500 in A B B A");
}

/// A server on a machine with this noise.
struct Simulated {
    effects: Vec<f64>,
    noise: Noise,
    random: Random,
    on: Vec<bool>,
    runs: usize,
}

impl Subject for Simulated {
    type Error = String;

    fn set(&mut self, on: &[bool]) -> Result<Set, String> {
        self.on = on.to_vec();
        Ok(Set::Done)
    }

    fn leave(&mut self, on: &[bool]) -> Result<(), String> {
        self.on = on.to_vec();
        Ok(())
    }

    fn measure(&mut self) -> Result<Sample, String> {
        let effect: f64 = self.on.iter().zip(&self.effects).filter(|(on, _)| **on).map(|(_, by)| by).sum();
        let figure = 1e4 * (effect + (self.noise)(&mut self.random, self.runs)).exp();
        self.runs += 1;
        // One error in 5000 requests, by chance.
        let errors = (0..4).filter(|_| self.random.fraction() < 0.5).count() as u64;
        Ok(Sample { requests_per_s: figure, requests: 10_000, errors, ..Sample::default() })
    }

    fn look(&mut self, _: &Progress) -> Go {
        Go::On
    }
}

fn climbed(effects: &[f64], noise: Noise, seed: u64, pairs_max: usize) -> Climbed<String> {
    let plan = Plan {
        rungs: effects.len(),
        objective: Objective::Throughput,
        width_max: 0.02,
        pairs_min: 5,
        pairs_max,
        orders: 0,
        seed,
        keep: false,
    };
    let random = Random::new(seed);
    let on = vec![false; effects.len()];
    climb(&mut Simulated { effects: effects.to_vec(), noise, random, on, runs: 0 }, &plan)
}

/// Of 100 climbs of 20 rungs without effect, 5 may keep one or call one worse, and 0.5 for errors; three standard deviations
/// of such a count are 7.
#[test]
fn twenty_rungs_without_effect_are_none() {
    for (name, noise) in NOISES {
        let wrong = (0..100).filter(|seed| {
            let found = climbed(&[0.0; 20], noise, 1000 + seed, 12);
            found.rungs.iter().any(|rung| rung.status != Status::None)
        });
        let wrong = wrong.count();
        assert!(wrong <= 12, "{wrong} of 100 climbs with {name} noise");
    }
}

/// A change of 5 % among six rungs is found in nine of ten climbs, with 3 % of noise in a run.
#[test]
fn five_per_cent_are_found_among_six_rungs() {
    let found = (0..40).filter(|seed| {
        let found = climbed(&[0.0, 0.0, 0.05, 0.0, 0.0, 0.0], NOISES[0].1, 2000 + seed, 40);
        found.rungs[2].status == Status::Kept
    });
    let found = found.count();
    assert!(found >= 36, "{found} of 40");
}
