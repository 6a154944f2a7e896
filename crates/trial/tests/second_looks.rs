//! Simulations of climbs whose rungs have different noise, with a clock: where the time goes, how wide intervals are at the end, and how
//! often they err. Each has its seed.

use flatout_trial::compare::Word;
use flatout_trial::{
    Both, Climbed, Go, Objective, Plan, Progress, Random, Sample, Set, Stage, Status, Subject, climb,
};

/// Seconds of a climb.
const BUDGET_S: f64 = 600.0;

/// The share of it for each of two kinds of A/A runs.
const NOISE_SHARE: f64 = 0.05;

/// Rungs as in the lab: the standard deviation that a pair adds to the logarithm of the ratio, and the seconds of a pair.
const LAB: [(f64, f64); 7] =
    [(0.013, 1.6), (0.013, 1.6), (0.013, 1.6), (0.055, 1.3), (0.086, 1.7), (0.055, 1.5), (0.067, 1.3)];

fn normal(random: &mut Random) -> f64 {
    (-2.0 * random.fraction().ln()).sqrt() * (std::f64::consts::TAU * random.fraction()).cos()
}

/// A machine on which one run in ten of every rung meets other work.
struct Simulated {
    /// The gain of each rung, as a logarithm.
    gains: Vec<f64>,
    random: Random,
    now_s: f64,
    stage: Option<(Stage, f64)>,
    second_looks: Vec<usize>,
}

impl Subject for Simulated {
    type Error = String;

    fn compare(&mut self, stage: Stage, _: &[bool], _: &[bool]) {
        if let Stage::SecondLook(rung) = stage {
            self.second_looks.push(rung);
        }
    }

    fn set(&mut self, _: &[bool]) -> Result<Set, String> {
        Ok(Set::Done)
    }

    fn leave(&mut self, _: &[bool]) -> Result<(), String> {
        Ok(())
    }

    fn measure(&mut self) -> Result<Sample, String> {
        Err("all changes are switched".to_owned())
    }

    fn measure_both(&mut self, one: &[bool], other: &[bool]) -> Result<Both, String> {
        let rung = one.iter().zip(other).position(|(one, other)| one != other);
        let (spread, seconds) = LAB[rung.unwrap_or(LAB.len() - 1)];
        self.now_s += seconds;
        let samples = [one, other].map(|on| {
            let gain: f64 = on.iter().zip(&self.gains).filter(|(is_on, _)| **is_on).map(|(_, by)| by).sum();
            let noise = spread / 2f64.sqrt() * normal(&mut self.random);
            let burst =
                if self.random.fraction() < 0.1 { -2.0 * spread * self.random.fraction() } else { 0.0 };
            let requests_per_s = 1e4 * (gain + noise + burst).exp();
            Sample { requests_per_s, requests: 10_000, ..Sample::default() }
        });
        Ok(Both::Switched(samples))
    }

    fn seconds_left(&self) -> f64 {
        BUDGET_S - self.now_s
    }

    fn look(&mut self, progress: &Progress) -> Go {
        if self.seconds_left() <= 0.0 {
            return Go::Over;
        }
        let ends_s = match self.stage {
            Some((stage, ends_s)) if stage == progress.stage => ends_s,
            _ => {
                let share = if progress.stage == Stage::Noise { NOISE_SHARE } else { progress.share };
                self.now_s + share * self.seconds_left()
            }
        };
        self.stage = Some((progress.stage, ends_s));
        if self.now_s >= ends_s { Go::Next } else { Go::On }
    }
}

/// A climb, and the rungs that had a second look.
fn climbed(gains: [f64; 7], seed: u64) -> (Climbed<String>, Vec<usize>) {
    let plan = Plan {
        rungs: gains.len(),
        objective: Objective::Throughput,
        width_max: 0.03,
        pairs_min: 5,
        pairs_max: 200,
        orders: 0,
        seed,
        keep: false,
    };
    let (random, gains) = (Random::new(seed), gains.to_vec());
    let mut subject = Simulated { gains, random, now_s: 0.0, stage: None, second_looks: Vec::new() };
    let climbed = climb(&mut subject, &plan);
    assert!(subject.now_s < BUDGET_S + 5.0, "{}", subject.now_s);
    (climbed, subject.second_looks)
}

/// Half the width of each rung's interval.
fn halves(climbed: &Climbed<String>) -> Vec<f64> {
    let estimate = |at: usize| climbed.rungs[at].forward.as_ref().and_then(|effect| effect.throughput);
    (0..LAB.len()).map(|at| estimate(at).map_or(1.0, |estimate| estimate.width() / 2.0)).collect()
}

/// In ten minutes the widest interval of the lab's rungs is at most ±3.5 % in the median of climbs, also if one of them is kept.
#[test]
fn the_time_goes_to_the_widest_intervals() {
    for gains in [[0.0; 7], [0.0, 0.0, 0.0, 0.09, 0.0, 0.0, 0.0]] {
        let mut widest: Vec<f64> = (0..40)
            .map(|seed| {
                let (climbed, looks) = climbed(gains, 3000 + seed);
                assert!(!looks.iter().any(|rung| *rung < 3), "the servers are known precisely: {looks:?}");
                halves(&climbed).into_iter().fold(0.0, f64::max)
            })
            .collect();
        widest.sort_by(f64::total_cmp);
        assert!(widest[20] <= 0.035, "the median is {} with {gains:?}", widest[20]);
    }
}

/// Of 400 climbs without effect 20 may show one somewhere; three standard deviations of such a count are 13. The only kept rung is
/// measured again, so fewer keep one.
#[test]
fn early_ends_and_second_looks_do_not_keep_more() {
    let (mut shown, mut kept) = (0, 0);
    for seed in 0..400 {
        let (climbed, _) = climbed([0.0; 7], 4000 + seed);
        let has = |is: fn(Status) -> bool| u32::from(climbed.rungs.iter().any(|rung| is(rung.status)));
        shown += has(|status| status != Status::None);
        kept += has(|status| status == Status::Kept);
    }
    assert!(shown <= 20 + 13 && kept <= 10, "{shown} and {kept} of 400");
}

/// All intervals of a climb contain the truth at once in 95 % of the climbs, at whatever look each of them ended, and of whichever of
/// two looks each of them is; three standard deviations of a count of 300 are 11. Shares of the probability that
/// significant rungs have left to the others are used up by these.
#[test]
fn intervals_of_either_look_contain_the_truth() {
    for gains in [[0.0, 0.01, -0.02, 0.09, 0.02, -0.03, 0.05], [0.01, 0.0, 0.0, 0.0, 0.02, 0.01, 0.12]] {
        let missed = (0..300).filter(|seed| {
            let (climbed, _) = climbed(gains, 5000 + seed);
            (0..LAB.len()).any(|at| {
                let estimate = climbed.rungs[at].forward.as_ref().unwrap().throughput.unwrap();
                !(estimate.low..=estimate.high).contains(&gains[at].exp_m1())
            })
        });
        let missed = missed.count();
        assert!(missed <= 15 + 11, "{missed} of 300 with {gains:?}");
    }
}

/// A rung that is kept last leaves no time to measure all others again on top of it: their first results stay, and say so.
#[test]
fn a_precise_result_is_not_replaced_by_a_poor_one() {
    for seed in 0..40 {
        let (climbed, looks) = climbed([0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.15], 6000 + seed);
        if climbed.noise.as_ref().is_some_and(|noise| noise.effect.word != Word::NoDifference) {
            // By chance in one climb of 20: then all intervals are wide.
            continue;
        }
        let pairs: Vec<usize> =
            climbed.rungs.iter().map(|rung| rung.forward.as_ref().unwrap().pairs).collect();
        assert!(pairs.iter().all(|pairs| *pairs >= 8), "{pairs:?} after {looks:?}");
        let first = &climbed.rungs[0];
        assert!(first.status != Status::None || first.reason.ends_with("kept after it"), "{}", first.reason);
        assert!(halves(&climbed)[0] < 0.02, "{:?}", halves(&climbed));
    }
}
