//! The climb on simulated servers whose effects are known.

use super::*;
use crate::{Both, Sample};

/// A server whose speed depends on the applied rungs, on a machine with noise and drift.
struct Simulated {
    speed: fn(&[bool]) -> f64,
    noise: f64,
    random: Random,
    on: Vec<bool>,
    runs: usize,
    fails_at: usize,
    go: fn(usize, &Progress) -> Go,
    errors: fn(&[bool]) -> u64,
    /// The set with which the server dies.
    deadly: fn(&[bool]) -> bool,
    refused: Option<usize>,
    obstacle: Option<usize>,
    omission: Option<usize>,
    burden: Option<usize>,
    reboots: Vec<usize>,
    compared: Vec<(Vec<bool>, Vec<bool>)>,
    /// Rungs that cannot be switched quickly.
    slow: Option<Vec<usize>>,
}

fn simulated(rungs: usize, seed: u64, speed: fn(&[bool]) -> f64) -> Simulated {
    Simulated {
        speed,
        noise: 0.03,
        random: Random::new(seed),
        on: vec![false; rungs],
        runs: 0,
        fails_at: usize::MAX,
        go: |_, _| Go::On,
        errors: |_| 0,
        deadly: |_| false,
        refused: None,
        obstacle: None,
        omission: None,
        burden: None,
        reboots: Vec::new(),
        compared: Vec::new(),
        slow: None,
    }
}

impl Subject for Simulated {
    type Error = &'static str;

    fn obstacle(&self, rung: usize) -> Option<String> {
        (self.obstacle == Some(rung)).then(|| "loopback has no card".to_owned())
    }

    fn omission(&self, rung: usize) -> Option<String> {
        (self.omission == Some(rung)).then(|| "nobody wants it".to_owned())
    }

    fn is_burden(&self, rung: usize) -> bool {
        self.burden == Some(rung)
    }

    fn takes_reboot(&self, rung: usize) -> bool {
        self.reboots.contains(&rung)
    }

    fn compare(&mut self, _stage: Stage, one: &[bool], other: &[bool]) {
        self.compared.push((one.to_vec(), other.to_vec()));
    }

    fn set(&mut self, on: &[bool]) -> Result<Set, Self::Error> {
        if self.refused.is_some_and(|rung| on[rung]) {
            return Ok(Set::Refused("no root".to_owned()));
        }
        assert!(self.obstacle.is_none_or(|rung| !on[rung]) && self.omission.is_none_or(|rung| !on[rung]));
        self.on = on.to_vec();
        Ok(Set::Done)
    }

    fn leave(&mut self, on: &[bool]) -> Result<(), Self::Error> {
        self.on = on.to_vec();
        Ok(())
    }

    fn measure(&mut self) -> Result<Sample, Self::Error> {
        self.runs += 1;
        if self.runs == self.fails_at {
            return Err("the server died");
        }
        let radius = (-2.0 * self.random.fraction().ln()).sqrt();
        let normal = radius * (std::f64::consts::TAU * self.random.fraction()).cos();
        let drift = 1.0 + 0.0005 * self.runs as f64;
        let requests_per_s = 1e5 * (self.speed)(&self.on) * (1.0 + self.noise * normal) * drift;
        Ok(Sample {
            requests_per_s,
            p99_ns: Some(1e11 / requests_per_s),
            cpu_us_per_request: Some(1e6 / requests_per_s),
            machine_us_per_request: None,
            requests: 100_000,
            errors: (self.errors)(&self.on),
            disturbance: None,
        })
    }

    fn measure_both(&mut self, one: &[bool], other: &[bool]) -> Result<Both, Self::Error> {
        let Some(slow) = &self.slow else { return Ok(Both::Alternate) };
        if slow.iter().any(|rung| one[*rung] != other[*rung]) {
            return Ok(Both::Alternate);
        }
        let mut samples = [Sample::default(); 2];
        for (sample, set) in samples.iter_mut().zip([one, other]) {
            self.set(set)?;
            *sample = self.measure()?;
        }
        Ok(Both::Switched(samples))
    }

    fn death(&mut self) -> Option<String> {
        (self.deadly)(&self.on).then(|| "signal: 11".to_owned())
    }

    fn look(&mut self, progress: &Progress) -> Go {
        (self.go)(self.runs, progress)
    }
}

fn plan(rungs: usize) -> Plan {
    Plan {
        rungs,
        objective: Objective::Throughput,
        width_max: 0.03,
        pairs_min: 5,
        pairs_max: 60,
        orders: 0,
        seed: 1,
        keep: false,
    }
}

fn statuses<E>(climbed: &Climbed<E>) -> Vec<Status> {
    climbed.rungs.iter().map(|found| found.status).collect()
}

fn forward<E>(climbed: &Climbed<E>, rung: usize) -> f64 {
    climbed.rungs[rung].forward.as_ref().unwrap().throughput.unwrap().gain
}

#[test]
fn rungs_without_effect_are_none() {
    for noise in [0.005, 0.03, 0.10] {
        let none = (0..200).filter(|&seed| {
            let mut same = Simulated { noise, ..simulated(1, seed, |_| 1.0) };
            statuses(&climb(&mut same, &plan(1))) == [Status::None]
        });
        let none = none.count();
        assert!(none >= 195, "{none} of 200 at noise {noise}");
    }
}

/// A comparison ends once its interval is narrow, or when the clock says so. Of 200 intervals 190 are expected to contain
/// the truth; three standard deviations of such a count are 9.
#[test]
fn intervals_hold_the_truth() {
    let go: [fn(usize, &Progress) -> Go; 2] =
        [|_, _| Go::On, |runs, _| if runs % 3 == 0 { Go::Next } else { Go::On }];
    for go in go {
        let within = (0..200).filter(|&seed| {
            let subject = simulated(1, seed, |on| if on[0] { 1.2 } else { 1.0 });
            let climbed = climb(&mut Simulated { go, ..subject }, &plan(1));
            let effect = climbed.rungs[0].forward.as_ref().unwrap();
            let estimate = effect.throughput.unwrap();
            assert!((effect.confidence - 0.95).abs() < 1e-12);
            (estimate.low..=estimate.high).contains(&0.2)
        });
        let within = within.count();
        assert!(within >= 190 - 9, "{within} of 200");
    }
}

/// Of eight rungs without effect none is reported to have one, in 19 of 20 climbs; and of eight rungs of which two
/// have an effect, both are found.
#[test]
fn the_chance_to_err_is_that_of_all_rungs_together() {
    let none = (0..200).filter(|&seed| {
        let climbed = climb(&mut simulated(8, seed, |_| 1.0), &Plan { pairs_max: 20, ..plan(8) });
        statuses(&climbed) == [Status::None; 8]
    });
    let none = none.count();
    assert!(none >= 190, "{none} of 200");
    for seed in 0..20 {
        let speed = |on: &[bool]| [1.0, 1.15][usize::from(on[3])] * [1.0, 0.9][usize::from(on[6])];
        let climbed = climb(&mut simulated(8, seed, speed), &plan(8));
        let mut expected = [Status::None; 8];
        (expected[3], expected[6]) = (Status::Kept, Status::Worse);
        assert_eq!(statuses(&climbed), expected, "seed {seed}");
        // The first rung to show an effect shows it at an eighth of the level, and leaves that part to the others.
        let confidence = |rung: usize| climbed.rungs[rung].forward.as_ref().unwrap().confidence;
        assert!((confidence(3) - (1.0 - 0.05 / 8.0)).abs() < 1e-12, "{}", confidence(3));
        assert!((confidence(6) - (1.0 - 0.05 / 7.0)).abs() < 1e-12, "{}", confidence(6));
        assert!((confidence(0) - (1.0 - 0.05 / 6.0)).abs() < 1e-12, "{}", confidence(0));
    }
}

/// The verdict on a rung matches its interval: it is on one side of zero, or there is no significant difference.
#[test]
fn the_reported_interval_decides() {
    let speed = |on: &[bool]| {
        on.iter().zip([1.0, 1.02, 1.04, 0.97, 1.06]).filter(|(is_on, _)| **is_on).map(|(_, by)| by).product()
    };
    for seed in 0..40 {
        let climbed = climb(&mut simulated(5, seed, speed), &Plan { pairs_max: 25, ..plan(5) });
        for found in &climbed.rungs {
            let estimate = found.forward.as_ref().unwrap().throughput.unwrap();
            let among = found.leave_one_out;
            match found.status {
                Status::Kept => assert!(estimate.low > 0.0 && among.unwrap().low > 0.0, "{found:?}"),
                Status::Worse if among.is_none() => assert!(estimate.high < 0.0, "{found:?}"),
                Status::None if among.is_none() => {
                    assert!(estimate.low <= 0.0 && estimate.high >= 0.0, "{found:?}")
                }
                Status::None => {
                    assert!(among.unwrap().low <= 0.0 && found.reason.ends_with("no significant difference"))
                }
                _ => assert!(among.unwrap().high < 0.0, "{found:?}"),
            }
        }
    }
}

/// Before, after and the total gain come from the same runs.
#[test]
fn before_and_after_are_as_far_apart_as_the_total() {
    let mut subject = simulated(1, 3, |on| if on[0] { 1.3 } else { 1.0 });
    subject.noise = 0.1;
    let total = climb(&mut subject, &plan(1)).total.unwrap();
    for objective in Objective::ALL {
        let (after, before) = total.levels(objective).unwrap();
        let times = if objective == Objective::Throughput { after / before } else { before / after };
        let gain = total.on(objective).unwrap().gain;
        assert!((times - 1.0 - gain).abs() < 1e-9, "{} {times} {gain}", objective.name());
    }
}

/// The first candidate's run of each pair is always slower, because the order is drawn like that of the climb. With a rung in the
/// server, only where the machine's are measured.
struct Biased {
    same: Simulated,
    order: Random,
    first: u64,
    in_the_server: Option<usize>,
    is_biased: bool,
}

impl Biased {
    fn new(same: Simulated, plan: &Plan, in_the_server: Option<usize>) -> Biased {
        Biased { same, order: Random::new(plan.seed), first: 0, in_the_server, is_biased: true }
    }
}

impl Subject for Biased {
    type Error = &'static str;

    fn is_in_the_server(&self, rung: usize) -> bool {
        self.in_the_server == Some(rung)
    }

    fn compare(&mut self, stage: Stage, one: &[bool], other: &[bool]) {
        let mut differ = (0..one.len()).filter(|&rung| one[rung] != other[rung]);
        self.is_biased = self.in_the_server.is_none()
            || stage == Stage::Noise
            || differ.any(|rung| !self.is_in_the_server(rung));
    }

    fn set(&mut self, on: &[bool]) -> Result<Set, Self::Error> {
        self.same.set(on)
    }

    fn leave(&mut self, on: &[bool]) -> Result<(), Self::Error> {
        self.same.leave(on)
    }

    fn measure(&mut self) -> Result<Sample, Self::Error> {
        let is_second_run = self.same.runs % 2 == 1;
        if !is_second_run {
            self.first = self.order.below(2);
        }
        let is_slower = self.is_biased && (self.first == 0) != is_second_run;
        let sample = self.same.measure()?;
        let times = if is_slower { 0.9 } else { 1.0 };
        Ok(Sample { requests_per_s: sample.requests_per_s * times, ..sample })
    }

    fn look(&mut self, _: &Progress) -> Go {
        Go::On
    }
}

/// A difference although nothing was changed comes from the measurement; it is no effect of a rung.
#[test]
fn a_bias_of_nothing_against_nothing_widens_all_intervals() {
    let same = Simulated { noise: 0.01, ..simulated(1, 3, |_| 1.0) };
    let climbed = climb(&mut Biased::new(same, &plan(1), None), &plan(1));
    assert_eq!(climbed.noise.as_ref().unwrap().effect.word, Word::Slower);
    assert_eq!(statuses(&climbed), [Status::None], "{climbed:?}");
}

/// The first rung changes the server, the second the machine. The bias of runs in turn widens only the intervals of the machine's.
#[test]
fn changes_of_the_server_have_their_own_noise() {
    let speed = |on: &[bool]| if on[0] { 1.05 } else { 1.0 };
    let same = Simulated { noise: 0.005, ..simulated(2, 3, speed) };
    let climbed = climb(&mut Biased::new(same, &plan(2), Some(0)), &plan(2));
    let floor = |noise: &Option<Noise>| noise.as_ref().unwrap().floor.unwrap();
    assert!(floor(&climbed.noise) > 0.09 && floor(&climbed.noise_of_servers) < 0.02, "{climbed:?}");
    assert_eq!(statuses(&climbed), [Status::Kept, Status::None], "{climbed:?}");
    let width = |rung: usize| climbed.rungs[rung].forward.as_ref().unwrap().throughput.unwrap().width();
    assert!(width(0) < 0.06 && width(1) > 0.15, "{} {}", width(0), width(1));
}

/// The second measurement, as the total, decides about a rung that was only lucky in its first.
#[test]
fn the_only_kept_rung_is_measured_again() {
    struct Lucky(Simulated, bool);
    impl Subject for Lucky {
        type Error = &'static str;

        fn compare(&mut self, stage: Stage, _: &[bool], _: &[bool]) {
            self.1 = stage == Stage::Total;
        }

        fn set(&mut self, on: &[bool]) -> Result<Set, Self::Error> {
            self.0.set(on)
        }

        fn leave(&mut self, on: &[bool]) -> Result<(), Self::Error> {
            self.0.leave(on)
        }

        fn measure(&mut self) -> Result<Sample, Self::Error> {
            if self.1 {
                self.0.speed = |_| 1.0;
            }
            self.0.measure()
        }

        fn look(&mut self, _: &Progress) -> Go {
            Go::On
        }
    }
    let lucky = simulated(2, 5, |on| if on[1] { 1.2 } else { 1.0 });
    let climbed = climb(&mut Lucky(lucky, false), &plan(2));
    assert_eq!(statuses(&climbed), [Status::None; 2]);
    assert!(forward(&climbed, 1) > 0.15 && climbed.total.is_none());
    let found = &climbed.rungs[1];
    assert!(found.leave_one_out.unwrap().gain.abs() < 0.03, "{found:?}");
    assert!(
        found.reason.contains("with everything kept") && found.reason.ends_with("no significant difference")
    );
}

#[test]
fn helpful_rungs_are_kept_and_harmful_ones_undone() {
    for seed in 0..20 {
        let speed = |on: &[bool]| [1.0, 1.3][usize::from(on[0])] * [1.0, 0.8][usize::from(on[1])];
        let mut subject = simulated(3, seed, speed);
        let climbed = climb(&mut subject, &plan(3));
        assert_eq!(statuses(&climbed), [Status::Kept, Status::Worse, Status::None], "seed {seed}");
        let gain = climbed.rungs[0].leave_one_out.unwrap().gain;
        assert!((gain - 0.3).abs() < 0.05, "seed {seed}: {gain}");
        let total = climbed.total.unwrap().throughput.unwrap();
        assert!((total.gain - 0.3).abs() < 0.05, "seed {seed}: {total:?}");
        assert_eq!((subject.on, climbed.end), (vec![false; 3], End::Done), "all is taken back");
    }
}

/// Each of two rungs gains 30 %, both together no more: forward attributes it all to the first, and nothing to the
/// second. Shapley divides it evenly.
#[test]
fn of_two_that_do_the_same_each_has_half() {
    let speed = |on: &[bool]| if on[0] || on[1] { 1.3 } else { 1.0 };
    let climbed = climb(&mut simulated(2, 5, speed), &Plan { orders: 40, ..plan(2) });
    assert_eq!(statuses(&climbed), [Status::Kept, Status::None]);
    assert!((forward(&climbed, 0) - 0.3).abs() < 0.05 && forward(&climbed, 1).abs() < 0.05);
    let half = 1.3_f64.sqrt() - 1.0;
    for found in &climbed.rungs {
        let share = found.shapley.unwrap();
        assert!((share.gain - half).abs() < 0.06, "{share:?}");
    }
}

/// The first rung's 15 % are within the second's 40 %. Forward keeps both; leaving one out shows that the first adds
/// nothing.
#[test]
fn rungs_made_useless_by_later_ones_are_undone() {
    let speed = |on: &[bool]| match (on[0], on[1]) {
        (_, true) => 1.4,
        (true, false) => 1.15,
        (false, false) => 1.0,
    };
    let climbed = climb(&mut simulated(2, 7, speed), &Plan { orders: 40, ..plan(2) });
    assert!((forward(&climbed, 0) - 0.15).abs() < 0.04);
    assert_eq!(statuses(&climbed), [Status::None, Status::Kept]);
    assert!(climbed.rungs[0].leave_one_out.unwrap().gain.abs() < 0.04);
    let reason = &climbed.rungs[0].reason;
    assert!(
        reason.contains("with everything kept") && reason.ends_with("no significant difference"),
        "{reason}"
    );
    let total = climbed.total.unwrap().throughput.unwrap();
    assert!((total.gain - 0.4).abs() < 0.06, "{total:?}");
    // By hand: the mean of ln 1.15 and 0, and the rest of ln 1.4.
    let share = climbed.rungs[0].shapley.unwrap().gain;
    assert!((share - (1.15_f64.ln() / 2.0).exp_m1()).abs() < 0.05, "{share}");
}

/// The first rung gains 5 % alone and 25 % with the second: forward reports 5 %, leaving it out 25 %.
#[test]
fn rungs_that_need_each_other_gain_together() {
    let speed = |on: &[bool]| match (on[0], on[1]) {
        (true, true) => 1.5,
        (false, true) => 1.2,
        (true, false) => 1.05,
        (false, false) => 1.0,
    };
    let precise = Plan { width_max: 0.01, ..plan(2) };
    let climbed = climb(&mut Simulated { noise: 0.01, ..simulated(2, 11, speed) }, &precise);
    assert_eq!(statuses(&climbed), [Status::Kept, Status::Kept]);
    assert!((forward(&climbed, 0) - 0.05).abs() < 0.02);
    assert!((climbed.rungs[0].leave_one_out.unwrap().gain - 0.25).abs() < 0.03);
}

/// Good alone, bad together with a later one.
#[test]
fn rungs_that_harm_others_are_undone() {
    let speed = |on: &[bool]| match (on[0], on[1]) {
        (true, true) => 1.3,
        (false, true) => 1.5,
        (true, false) => 1.1,
        (false, false) => 1.0,
    };
    let climbed = climb(&mut simulated(2, 13, speed), &plan(2));
    assert_eq!(statuses(&climbed), [Status::Worse, Status::Kept]);
    assert!(climbed.rungs[0].leave_one_out.unwrap().high < 0.0);
}

/// The climb continues with the next rung, and a later one that helps is found.
#[test]
fn a_rung_with_which_the_server_dies_is_worse() {
    let mut subject = simulated(3, 19, |on| if on[2] { 1.3 } else { 1.0 });
    subject.deadly = |on| on[0];
    let climbed = climb(&mut subject, &Plan { orders: 12, ..plan(3) });
    assert_eq!(statuses(&climbed), [Status::Worse, Status::None, Status::Kept]);
    assert_eq!(climbed.rungs[0].reason, "the server died: signal: 11");
    assert_eq!((climbed.end, climbed.rungs[0].shapley), (End::Done, None));
    assert!(climbed.rungs[2].shapley.is_some(), "the others have orders without it");
}

/// The shares of all rungs together are the gain of all of them: Shapley's efficiency, with interactions.
#[test]
fn shapley_values_add_up_to_the_whole() {
    let speed = |on: &[bool]| {
        let one = |at: usize| on.get(at).copied().unwrap_or(false);
        let alone: f64 = (0..on.len()).filter(|at| one(*at)).map(|at| 1.0 + 0.02 * at as f64).product();
        alone * if one(0) && one(1) { 1.07 } else { 1.0 } * if one(1) && one(2) { 0.95 } else { 1.0 }
    };
    for rungs in 2..=8 {
        // Every order adds up, so the means do, with noise and without.
        for noise in [0.0, 0.03] {
            let mut subject = Simulated { noise, ..simulated(rungs, 23, speed) };
            let climbed = climb(&mut subject, &Plan { orders: 30, pairs_max: 6, ..plan(rungs) });
            let sum: f64 = climbed.rungs.iter().map(|found| (1.0 + found.shapley.unwrap().gain).ln()).sum();
            let whole = speed(&vec![true; rungs]).ln();
            let error = if noise > 0.0 { 4.0 * noise / 30_f64.sqrt() } else { 1e-3 };
            assert!((sum - whole).abs() < error, "{rungs} rungs: {sum} of {whole}");
        }
    }
}

/// Half of an interaction of two rungs belongs to each, also after few orders.
#[test]
fn interactions_are_divided_between_two() {
    let speed = |on: &[bool]| if on[0] && on[1] { 1.2 } else { 1.0 };
    for rungs in 2..=8 {
        let mut subject = Simulated { noise: 0.0, ..simulated(rungs, 29, speed) };
        let climbed = climb(&mut subject, &Plan { orders: 6, pairs_max: 6, ..plan(rungs) });
        for (rung, found) in climbed.rungs.iter().enumerate() {
            let share = found.shapley.unwrap();
            let truth = if rung < 2 { 1.2_f64.sqrt() - 1.0 } else { 0.0 };
            assert!((share.gain - truth).abs() < 1e-3, "{rung} of {rungs}: {share:?}");
        }
    }
}

#[test]
fn nothing_is_kept_at_the_price_of_errors() {
    let mut subject = simulated(1, 3, |on| if on[0] { 2.0 } else { 1.0 });
    subject.errors = |on| u64::from(on[0]) * 50;
    let climbed = climb(&mut subject, &plan(1));
    assert_eq!(statuses(&climbed), [Status::Worse]);
    assert!(climbed.rungs[0].reason.contains("errors rose"), "{}", climbed.rungs[0].reason);
}

#[test]
fn any_failure_undoes_everything() {
    let speed = |on: &[bool]| 1.0 + 0.2 * on.iter().filter(|is_on| **is_on).count() as f64;
    for fails_at in 1.. {
        let mut subject = Simulated { fails_at, noise: 0.01, ..simulated(3, 17, speed) };
        let keeping = Plan { keep: true, orders: 3, pairs_max: 6, ..plan(3) };
        let climbed = climb(&mut subject, &keeping);
        if climbed.end == End::Done {
            assert_eq!(subject.on, [true; 3], "what helped stays when asked for");
            break;
        }
        assert_eq!((subject.on, climbed.end), (vec![false; 3], End::Failed("the server died")));
        for found in climbed.rungs.iter().filter(|found| found.status == Status::Skipped) {
            assert!(found.reason.contains("failed"), "{}", found.reason);
        }
    }
}

#[test]
fn an_interrupted_climb_has_partial_results() {
    let mut subject = simulated(2, 19, |on| if on[0] { 1.5 } else { 1.0 });
    subject.go = |_, progress| match progress.stage {
        Stage::Forward(1) if progress.pairs == 2 => Go::Interrupted,
        _ => Go::On,
    };
    let climbed = climb(&mut subject, &Plan { keep: true, ..plan(2) });
    assert_eq!(statuses(&climbed), [Status::Kept, Status::Skipped]);
    assert_eq!((climbed.end, subject.on), (End::Interrupted, vec![false; 2]));
}

/// An undecided rung gets a second look in the remaining time, and its earlier runs count.
#[test]
fn undecided_rungs_are_measured_again() {
    let mut subject = simulated(2, 41, |on| if on[1] { 1.02 } else { 1.0 });
    subject.noise = 0.02;
    subject.go = |_, progress| match progress.stage {
        Stage::Forward(_) if progress.pairs >= 5 => Go::Next,
        Stage::SecondLook(1) if progress.pairs < 5 => panic!("the runs of the first look are gone"),
        _ => Go::On,
    };
    let plan = Plan { width_max: 0.012, pairs_max: 200, ..plan(2) };
    let climbed = climb(&mut subject, &plan);
    assert_eq!((statuses(&climbed), climbed.end.clone()), (vec![Status::None, Status::Kept], End::Done));
    let pairs = |rung: usize| climbed.rungs[rung].forward.as_ref().unwrap().pairs;
    assert!(pairs(0) > 5 && pairs(1) > 5, "{climbed:?}");
}

#[test]
fn a_budget_is_not_exceeded() {
    let mut subject = simulated(2, 23, |on| if on[0] { 1.5 } else { 1.0 });
    subject.noise = 0.5;
    subject.go = |runs, progress| match runs {
        runs if runs >= 60 => Go::Over,
        _ if progress.pairs >= 4 => Go::Next,
        _ => Go::On,
    };
    let climbed = climb(&mut subject, &plan(2));
    assert!(subject.runs <= 60, "{}", subject.runs);
    let pairs = climbed.rungs[0].forward.as_ref().unwrap().pairs;
    assert_eq!(pairs, 5 + 1, "five are asked for at least, and a second look is one more");
    subject.runs = 0;
    subject.go = |runs, _| if runs >= 13 { Go::Over } else { Go::On };
    let climbed = climb(&mut subject, &Plan { pairs_max: 5, ..plan(2) });
    assert_eq!((statuses(&climbed), climbed.end), (vec![Status::Skipped; 2], End::Over));
    assert!(climbed.rungs[0].reason.contains("budget"), "{}", climbed.rungs[0].reason);
}

/// A subject that keeps time for it gets the figures of everything kept, although the budget ends before.
#[test]
fn everything_kept_is_measured_in_the_reserved_time() {
    let mut subject = simulated(3, 23, |on| [1.0, 1.5][usize::from(on[0])] * [1.0, 1.4][usize::from(on[1])]);
    subject.go = |runs, progress| match progress.stage {
        Stage::Total => Go::On,
        _ if runs >= 60 => Go::Over,
        _ => Go::On,
    };
    let climbed = climb(&mut subject, &Plan { pairs_max: 8, ..plan(3) });
    assert_eq!(climbed.end, End::Over);
    assert_eq!(statuses(&climbed)[..2], [Status::Kept; 2]);
    let total = climbed.total.unwrap().throughput.unwrap();
    assert!((1.5..2.8).contains(&(1.0 + total.gain)), "{total:?}");
}

#[test]
fn impossible_rungs_are_reported_and_the_rest_measured() {
    let mut subject = simulated(4, 29, |on| if on[1] { 1.5 } else { 1.0 });
    (subject.refused, subject.obstacle, subject.omission) = (Some(0), Some(2), Some(3));
    let climbed = climb(&mut subject, &Plan { orders: 8, ..plan(4) });
    assert_eq!(statuses(&climbed), [Status::Skipped, Status::Kept, Status::NotMeasurable, Status::Skipped]);
    assert_eq!(climbed.rungs[3].reason, "nobody wants it");
    assert_eq!(climbed.rungs[0].reason, "no root");
    assert_eq!(climbed.rungs[2].reason, "loopback has no card");
    assert!(climbed.rungs[1].shapley.is_some() && climbed.rungs[2].shapley.is_none());
}

/// Another program's packet tap: one more of them costs the same. Of five requests one is missing, which is a quarter
/// more CPU and time for each of the others.
#[test]
fn a_burden_is_estimated_from_the_other_side() {
    let costs: fn(&[bool]) -> f64 = |on| if on[0] { 0.8 } else { 1.0 };
    for (objective, cost, what) in [
        (Objective::Throughput, 20.0, "of the requests per second; it stays"),
        (Objective::P99, 25.0, "more latency (p99); it stays"),
        (Objective::Cpu, 25.0, "more CPU per request; it stays"),
    ] {
        let mut subject = Simulated { burden: Some(0), ..simulated(1, 37, costs) };
        let climbed = climb(&mut subject, &Plan { objective, orders: 3, keep: true, ..plan(1) });
        assert_eq!((statuses(&climbed), subject.on), (vec![Status::Skipped], vec![false]));
        let found = &climbed.rungs[0];
        assert_eq!(found.how, How::FromTheOtherSide);
        let gain = found.forward.as_ref().unwrap().on(objective).unwrap().gain;
        assert!((gain - 0.25).abs() < 0.04, "what taking it away would gain: {gain}");
        let told = found.reason.strip_prefix("an equal one costs ").unwrap();
        let figure: f64 = told.split_once(" % (").unwrap().0.parse().unwrap();
        assert!((figure - cost).abs() < 4.0 && told.contains(what), "{told}");
        assert!(found.shapley.is_none() && climbed.total.is_none());
    }
}

#[test]
fn a_burden_that_costs_nothing_says_so() {
    for (speed, expected) in [
        ((|_| 1.0) as fn(&[bool]) -> f64, "what an equal one costs: n"),
        (|on| if on[0] { 1.3 } else { 1.0 }, "an equal one costs nothing here"),
    ] {
        let mut subject = Simulated { burden: Some(0), ..simulated(1, 37, speed) };
        let climbed = climb(&mut subject, &plan(1));
        assert_eq!(statuses(&climbed), [Status::None]);
        assert!(climbed.rungs[0].reason.starts_with(expected), "{}", climbed.rungs[0].reason);
    }
}

/// The second rung needs a reboot: the first is climbed now, and a block of runs with it is made.
#[test]
fn rungs_that_need_a_reboot_wait_for_it() {
    let speed = |on: &[bool]| if on[0] { 1.3 } else { 1.0 };
    let mut subject = Simulated { reboots: vec![1, 2], ..simulated(3, 41, speed) };
    let climbed = climb(&mut subject, &Plan { keep: true, ..plan(3) });
    assert_eq!(statuses(&climbed), [Status::Kept, Status::Skipped, Status::NotMeasurable]);
    assert_eq!(climbed.rungs[1].reason, WAITING);
    let (rung, block) = climbed.waiting.unwrap();
    assert_eq!((rung, block.samples.len()), (1, 2 * block.pairs()));
    let mean = block.samples.iter().map(|sample| sample.requests_per_s).sum::<f64>() / 2.0;
    let times = mean / block.pairs() as f64 / 1e5;
    assert!((1.25..1.6).contains(&times), "with what was kept, and the drift: {times}");
    assert_eq!(subject.on, [false; 3], "what is to be kept is kept when the climb is at its end");
    let kept = vec![true, false, false];
    assert_eq!(subject.compared.last(), Some(&(kept.clone(), kept)));

    let mut subject = Simulated { reboots: vec![0], ..simulated(1, 41, |_| 1.0) };
    subject.go = |runs, _| if runs >= 12 { Go::Over } else { Go::On };
    let climbed = climb(&mut subject, &Plan { pairs_max: 5, ..plan(1) });
    assert_eq!((climbed.waiting, climbed.rungs[0].reason.as_str()), (None, NOT_WAITING));
}

/// The block of another boot, in which the machine is this many times as fast.
fn rebooted(before: &Block, times: f64, noise: f64, seed: u64) -> (Resumed<&'static str>, Vec<bool>) {
    let mut subject = Simulated { noise, ..simulated(2, seed, |on| [1.0, 1.3][usize::from(on[0])]) };
    subject.noise = noise;
    let scaled = |sample: &Sample| Sample { requests_per_s: sample.requests_per_s / times, ..*sample };
    let before =
        Block { samples: before.samples.iter().map(scaled).collect(), noise_floor: before.noise_floor };
    let resumed = resume(&mut subject, &Plan { keep: true, ..plan(2) }, &before, &[true, false], 1);
    (resumed, subject.on)
}

fn block(noise: f64, seed: u64) -> Block {
    let speed = |on: &[bool]| if on[0] { 1.3 } else { 1.0 };
    let mut subject = Simulated { noise, reboots: vec![1], ..simulated(2, seed, speed) };
    let plan = Plan { pairs_min: 8, pairs_max: 8, ..plan(2) };
    let mut climber = Climber::new(&mut subject, &plan);
    match climber.block(&[true, false]) {
        Ok(Compared::Done(block)) => block,
        _ => panic!("no block"),
    }
}

#[test]
fn equal_boots_show_no_difference() {
    for noise in [0.005, 0.03, 0.10] {
        let none = (0..200).filter(|&seed| {
            let found = rebooted(&block(noise, seed), 1.0, noise, seed + 1000).0.found.unwrap();
            found.status == Status::None
        });
        let none = none.count();
        assert!(none >= 195, "{none} of 200 at noise {noise}");
    }
}

#[test]
fn the_effect_of_a_reboot_is_found() {
    for (times, status, stays) in [(1.2, Status::Kept, true), (0.8, Status::Worse, false)] {
        let before = block(0.02, 5);
        let (resumed, on) = rebooted(&before, times, 0.02, 6);
        let found = resumed.found.unwrap();
        assert_eq!((found.status, found.how), (status, How::AcrossReboot));
        let estimate = found.forward.unwrap().throughput.unwrap();
        assert!((estimate.gain - (times - 1.0)).abs() < 0.03, "{estimate:?}");
        assert!(found.reason.contains("measured across a reboot"), "{}", found.reason);
        assert_eq!((on, resumed.end), (vec![true, stays], End::Done), "what helped stays when asked for");
    }
}

/// The noise floor of either boot widens the interval: an effect within it does not count.
#[test]
fn the_larger_floor_of_two_boots_decides() {
    let before = Block { noise_floor: 0.5, ..block(0.02, 5) };
    let found = rebooted(&before, 1.2, 0.02, 6).0.found.unwrap();
    assert_eq!(found.status, Status::None);
    assert!(found.reason.starts_with("no significant difference; measured"), "{}", found.reason);
    let estimate = found.forward.unwrap().throughput.unwrap();
    assert!(estimate.low < -0.19 && estimate.high > 0.8, "{estimate:?}");
}

#[test]
fn a_block_that_does_not_come_to_its_end_is_no_result() {
    let before = block(0.02, 5);
    let mut subject = Simulated { fails_at: 7, ..simulated(2, 6, |_| 1.0) };
    let resumed = resume(&mut subject, &plan(2), &before, &[true, false], 1);
    assert_eq!((resumed.found, resumed.end), (None, End::Failed("the server died")));
    let mut subject = Simulated { refused: Some(0), ..simulated(2, 6, |_| 1.0) };
    let resumed = resume(&mut subject, &plan(2), &before, &[true, false], 1);
    assert_eq!((resumed.found, resumed.refused.as_deref()), (None, Some("no root")));
    assert_eq!(subject.on, [false; 2]);
}

/// A subject that has to treat both sets alike is notified of them before each comparison.
#[test]
fn the_subject_is_notified_of_comparisons() {
    let mut subject = simulated(2, 43, |on| if on[0] { 1.3 } else { 1.0 });
    climb(&mut subject, &Plan { orders: 3, ..plan(2) });
    let on = |text: &str| -> Vec<bool> { text.chars().map(|rung| rung == '1').collect() };
    let told: Vec<_> = ["00/00", "10/00", "11/10", "10/00", "00/11", "00/11", "00/11"]
        .iter()
        .map(|sets| sets.split_once('/').unwrap())
        .map(|(one, other)| (on(one), on(other)))
        .collect();
    assert_eq!(subject.compared, told);
}

#[test]
fn remaining_time_counts_down() {
    let mut subject = simulated(3, 31, |on| if on[0] { 1.5 } else { 1.0 });
    subject.go = |runs, progress| {
        assert!(progress.left > 0 && (runs > 0 || progress.left == 1 + 3 + 2 + 1 + 3), "{progress:?}");
        assert!(!matches!(progress.stage, Stage::Order(2)) || progress.left == 1);
        Go::On
    };
    assert_eq!(climb(&mut subject, &Plan { orders: 3, ..plan(3) }).end, End::Done);
}

/// Pairs of one running server need no starts, also at a second look at a rung that was measured by an equal burden.
#[test]
fn changes_are_switched_where_that_is_quick() {
    let speed = |on: &[bool]| if on[0] { 1.2 } else { 1.0 } * if on[1] { 0.9 } else { 1.0 };
    let mut server = Simulated { slow: Some(vec![2]), burden: Some(1), ..simulated(3, 7, speed) };
    let climbed = climb(&mut server, &plan(3));
    let hows: Vec<How> = climbed.rungs.iter().map(|found| found.how).collect();
    assert_eq!(hows, [How::Switched, How::FromTheOtherSide, How::InTurn]);
    assert_eq!(statuses(&climbed), [Status::Kept, Status::Skipped, Status::None]);
    assert!((forward(&climbed, 0) - 0.2).abs() < 0.03, "{}", forward(&climbed, 0));
    assert!(climbed.rungs.iter().all(|found| found.forward.as_ref().unwrap().starts == 0));
}
