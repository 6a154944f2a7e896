//! Simulations of two servers that are both alive, within one start: how narrow the intervals of batches are, and how often they
//! err. Starts are in `starts.rs`.

#[path = "support/noise.rs"]
mod noise;

use flatout_trial::compare::{Level, judge_look, judge_planned};
use flatout_trial::{Look, Objective, Sample, Turn, samples};

use noise::Noise;

/// Batches in 82 s, the share of a rung in a climb of ten minutes.
const RUNG_BATCHES: usize = 82;

fn figure(sample: &Sample) -> f64 {
    Objective::Cpu.figure(sample).unwrap()
}

/// Figures of these batches, where the first server saves this much.
fn figures(noise: &mut Noise, batches: usize, saves: f64) -> Vec<(f64, f64)> {
    (0..batches)
        .map(|_| {
            let [one, other] = noise.batch([-saves, 0.0]);
            (figure(&one), figure(&other))
        })
        .collect()
}

/// A block of `length` turns, after `lost` turns that a switch or a warm-up takes.
fn block(noise: &mut Noise, lost: usize, length: usize) -> Turn {
    let turns: Vec<Turn> = (0..lost + length).map(|_| noise.turn(0.0)).skip(lost).collect();
    let sum = |of: fn(&Turn) -> f64| turns.iter().map(of).sum::<f64>();
    let requests = turns.iter().map(|turn| turn.requests).sum();
    let cpu_s = sum(|turn| turn.cpu_s.unwrap_or(f64::NAN));
    Turn {
        requests,
        good: requests,
        errors: 0,
        elapsed_s: sum(|turn| turn.elapsed_s),
        cpu_s: Some(cpu_s),
        machine_s: None,
    }
}

/// The figures of a batch of pairs of such blocks.
fn batch(noise: &mut Noise, pairs: usize, lost: usize, length: usize) -> (f64, f64) {
    let pairs: Vec<[Turn; 2]> =
        (0..pairs).map(|_| [block(noise, lost, length), block(noise, lost, length)]).collect();
    let [one, other] = samples(&pairs, [None, None]);
    (figure(&one), figure(&other))
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

/// A change of the machine that is switched every 100 ms, with half a block lost to each switch, against whole runs of half a
/// second with a warm-up of a tenth: a minute of either.
#[test]
fn switching_a_change_narrows_intervals() {
    let mut noise = Noise::new(305);
    let width = |pairs: &[(f64, f64)]| {
        let verdict = judge_planned(pairs, Level::ONE);
        verdict.high - verdict.low
    };
    let mut shares: Vec<f64> = (0..40)
        .map(|_| {
            let switched: Vec<(f64, f64)> = (0..40).map(|_| batch(&mut noise, 5, 1, 2)).collect();
            let whole: Vec<(f64, f64)> = (0..50).map(|_| batch(&mut noise, 1, 2, 10)).collect();
            width(&switched) / width(&whole)
        })
        .collect();
    shares.sort_by(f64::total_cmp);
    assert!(shares[20] < 0.75, "the median is {}", shares[20]);
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
