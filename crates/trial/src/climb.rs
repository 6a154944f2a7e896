//! The climb: which of several changes help, alone and together.
//!
//! ```text
//! noise       nothing against nothing: how large an effect is by chance
//! forward     each rung on top of those that were kept before it
//! leave out   all that was kept against all but one: what each is worth among the others
//! total       all that was kept against nothing
//! orders      (if asked) rungs put in place in random orders: Shapley's share of each
//! ```
//!
//! Forward alone is a question of order: of two rungs that do the same, the first has it all, and one that needs
//! another has nothing before it. So what forward kept is judged again among all others.

use crate::compare::{PAIRS_MIN, Word, is_first, judge};
use crate::effect::{Effect, Estimate};
use crate::found::{Climbed, End, Found, Status};
use crate::random::Random;
use crate::sample::{Objective, Sample};
use crate::subject::{Go, Progress, Set, Stage, Subject};

/// What is to be found out, and how exactly.
#[derive(Debug, Clone)]
pub struct Plan {
    /// How many rungs there are.
    pub rungs: usize,
    /// What a rung is kept for.
    pub objective: Objective,
    /// A comparison ends when its 95 % interval is no wider than this share.
    pub width_max: f64,
    /// Pairs of runs of a comparison, at least; 3 or more.
    pub pairs_min: usize,
    /// The same, at most.
    pub pairs_max: usize,
    /// Random orders for Shapley's shares: none, or 3 and more.
    pub orders: usize,
    /// What the orders begin with.
    pub seed: u64,
    /// Whether what helped stays in place at the end.
    pub keep: bool,
}

/// What ends a stage before its time.
enum Halt<E> {
    Over,
    Interrupted,
    Failed(E),
}

/// What came of a comparison.
enum Compared {
    Effect(Effect),
    Refused(String),
}

struct Climber<'s, S: Subject> {
    subject: &'s mut S,
    plan: &'s Plan,
    climbed: Climbed<S::Error>,
}

/// Climbs. However it ends, nothing stays in place, or what helped if the plan says so and nothing failed.
pub fn climb<S: Subject>(subject: &mut S, plan: &Plan) -> Climbed<S::Error> {
    let mut climber = Climber { subject, plan, climbed: Climbed::begin(plan.rungs) };
    let end = match climber.stages() {
        Ok(()) => End::Done,
        Err(Halt::Over) => End::Over,
        Err(Halt::Interrupted) => End::Interrupted,
        Err(Halt::Failed(error)) => End::Failed(error),
    };
    climber.finish(end)
}

impl<S: Subject> Climber<'_, S> {
    fn stages(&mut self) -> Result<(), Halt<S::Error>> {
        for (rung, found) in self.climbed.rungs.iter_mut().enumerate() {
            if let Some(why) = self.subject.obstacle(rung) {
                (found.status, found.reason) = (Status::NotMeasurable, why);
            }
            if let Some(why) = self.subject.omission(rung) {
                (found.status, found.reason) = (Status::Skipped, why);
            }
        }
        let nothing = vec![false; self.plan.rungs];
        let Compared::Effect(noise) = self.compare(Stage::Noise, &nothing, &nothing)? else { return Ok(()) };
        let floor = noise.on(self.plan.objective).map(|estimate| estimate.far_end());
        self.climbed.noise = Some(noise);
        self.climbed.noise_floor = floor;
        for rung in 0..self.plan.rungs {
            if self.climbed.rungs[rung].reason.is_empty() {
                self.forward(rung, floor.unwrap_or(0.0))?;
            }
        }
        self.leave_out()?;
        let kept = self.climbed.kept();
        if kept.contains(&true)
            && let Compared::Effect(total) = self.compare(Stage::Total, &kept, &nothing)?
        {
            self.climbed.total = Some(total);
        }
        self.orders()
    }

    /// Tries a rung on top of those kept so far.
    fn forward(&mut self, rung: usize, floor: f64) -> Result<(), Halt<S::Error>> {
        let base = self.climbed.kept();
        let changed = with(&base, rung, true);
        let is_burden = self.subject.is_burden(rung);
        let (better, worse) = if is_burden { (&base, &changed) } else { (&changed, &base) };
        let compared = self.compare(Stage::Forward(rung), better, worse)?;
        let found = &mut self.climbed.rungs[rung];
        match compared {
            Compared::Refused(reason) => found.reason = reason,
            Compared::Effect(effect) => {
                let judgement = judged(&effect, self.plan.objective, floor);
                (found.status, found.reason) = if is_burden { as_burden(judgement) } else { judgement };
                found.forward = Some(effect);
            }
        }
        Ok(())
    }

    /// Judges each kept rung again among all others; one that has nothing left, or harms, is taken back for good.
    fn leave_out(&mut self) -> Result<(), Halt<S::Error>> {
        for rung in 0..self.plan.rungs {
            let kept = self.climbed.kept();
            if !kept[rung] {
                continue;
            }
            let without = with(&kept, rung, false);
            if self.subject.is_same(&kept, &without) {
                self.climbed.rungs[rung].reason =
                    "a later rung replaces it, so it cannot be left out alone".to_owned();
                continue;
            }
            // Alone it is what it was alone.
            if kept.iter().filter(|is_kept| **is_kept).count() == 1
                && self.climbed.rungs.iter().all(|found| found.leave_one_out.is_none())
            {
                let found = &mut self.climbed.rungs[rung];
                found.leave_one_out =
                    found.forward.as_ref().and_then(|effect| effect.on(self.plan.objective));
                continue;
            }
            let Compared::Effect(effect) = self.compare(Stage::LeaveOneOut(rung), &kept, &without)? else {
                continue;
            };
            let found = &mut self.climbed.rungs[rung];
            found.leave_one_out = effect.on(self.plan.objective);
            if let Some((status, reason)) = second_thought(found, &effect, self.plan.objective) {
                (found.status, found.reason) = (status, reason);
            }
        }
        Ok(())
    }

    /// Puts rungs in place in random orders and takes them away again, one after the other; what each adds, averaged.
    fn orders(&mut self) -> Result<(), Halt<S::Error>> {
        let is_harmless = |found: &Found| found.forward.as_ref().is_some_and(|e| e.errors_rose.is_none());
        let mut players: Vec<usize> = (0..self.plan.rungs)
            .filter(|&rung| is_harmless(&self.climbed.rungs[rung]) && !self.subject.is_burden(rung))
            .collect();
        let mut random = Random::new(self.plan.seed);
        let mut shares: Vec<Vec<(f64, f64)>> = vec![Vec::new(); self.plan.rungs];
        let mut over = Ok(());
        for order in 0..self.plan.orders {
            shuffle(&mut players, &mut random);
            match self.order(order, &players) {
                Ok(Some(added)) => {
                    players.iter().zip(added).for_each(|(&rung, ratio)| shares[rung].push((ratio, 1.0)));
                }
                Ok(None) => return Ok(()),
                Err(halt @ Halt::Over) => {
                    over = Err(halt);
                    break;
                }
                Err(halt) => return Err(halt),
            }
        }
        for (found, shares) in self.climbed.rungs.iter_mut().zip(&shares) {
            found.shapley = Estimate::of(&judge(shares));
        }
        over
    }

    /// The ratio that each rung of one order adds. Up and down again, so that a drift of the machine cancels out.
    fn order(&mut self, order: usize, players: &[usize]) -> Result<Option<Vec<f64>>, Halt<S::Error>> {
        let mut on = vec![false; self.plan.rungs];
        let mut sets = vec![on.clone()];
        for &rung in players {
            on[rung] = true;
            sets.push(on.clone());
        }
        let mut figures = vec![1.0; sets.len()];
        let there_and_back = (0..sets.len()).chain((0..sets.len()).rev());
        for at in there_and_back {
            self.look(Stage::Order(order), &[])?;
            if self.set(&sets[at])? != Set::Done {
                return Ok(None);
            }
            let sample = self.subject.measure().map_err(Halt::Failed)?;
            figures[at] *= self.plan.objective.figure(&sample).unwrap_or(0.0);
        }
        if figures.iter().any(|figure| *figure <= 0.0) {
            return Ok(None);
        }
        let added = sets.windows(2).zip(figures.windows(2)).map(|(sets, figures)| {
            if self.subject.is_same(&sets[0], &sets[1]) { 1.0 } else { (figures[1] / figures[0]).sqrt() }
        });
        Ok(Some(added.collect()))
    }

    /// Compares two sets by runs in turn, until it is known exactly enough or enough was spent on it.
    fn compare(&mut self, stage: Stage, changed: &[bool], base: &[bool]) -> Result<Compared, Halt<S::Error>> {
        let mut pairs: Vec<(Sample, Sample)> = Vec::new();
        loop {
            let mut samples = [Sample::default(); 2];
            for run in [2 * pairs.len(), 2 * pairs.len() + 1] {
                if self.look(stage, &pairs)? == Go::Over {
                    return self.early(&pairs);
                }
                let (set, place) = if is_first(run) { (changed, 0) } else { (base, 1) };
                match self.set(set)? {
                    Set::Done => {}
                    Set::Refused(reason) => return Ok(Compared::Refused(reason)),
                }
                samples[place] = self.subject.measure().map_err(Halt::Failed)?;
            }
            pairs.push((samples[0], samples[1]));
            let go = self.look(stage, &pairs)?;
            let effect = Effect::of(&pairs, self.plan.objective);
            let is_exact = effect.on(self.plan.objective).is_some_and(|e| e.width() <= self.plan.width_max);
            if pairs.len() >= self.plan.pairs_max
                || pairs.len() >= self.plan.pairs_min && (is_exact || go == Go::Next)
                || go == Go::Over && pairs.len() >= PAIRS_MIN
            {
                return Ok(Compared::Effect(effect));
            }
        }
    }

    /// What a comparison says whose budget ended within a pair.
    fn early(&mut self, pairs: &[(Sample, Sample)]) -> Result<Compared, Halt<S::Error>> {
        match pairs.len() >= PAIRS_MIN {
            true => Ok(Compared::Effect(Effect::of(pairs, self.plan.objective))),
            false => Err(Halt::Over),
        }
    }

    fn set(&mut self, on: &[bool]) -> Result<Set, Halt<S::Error>> {
        self.subject.set(on).map_err(Halt::Failed)
    }

    fn look(&mut self, stage: Stage, pairs: &[(Sample, Sample)]) -> Result<Go, Halt<S::Error>> {
        let estimate = Effect::of(pairs, self.plan.objective).on(self.plan.objective);
        match self.subject.look(&Progress { stage, pairs: pairs.len(), estimate, left: self.left(stage) }) {
            Go::Interrupted => Err(Halt::Interrupted),
            Go::Over if matches!(stage, Stage::Order(_)) => Err(Halt::Over),
            go => Ok(go),
        }
    }

    /// Comparisons and orders to go from this stage on.
    fn left(&self, stage: Stage) -> usize {
        let rungs = &self.climbed.rungs;
        let kept_from =
            |from: usize| rungs.iter().skip(from).filter(|found| found.status == Status::Kept).count();
        let untried_from = |from: usize| {
            let is_untried = |found: &&Found| found.status == Status::Skipped && found.reason.is_empty();
            rungs.iter().skip(from).filter(is_untried).count()
        };
        let forward = |from: usize| untried_from(from) + untried_from(from).div_ceil(2) + kept_from(0) + 1;
        match stage {
            Stage::Noise => 1 + forward(0) + self.plan.orders,
            Stage::Forward(at) => forward(at) + self.plan.orders,
            Stage::LeaveOneOut(at) => kept_from(at) + 1 + self.plan.orders,
            Stage::Total => 1 + self.plan.orders,
            Stage::Order(at) => self.plan.orders - at,
        }
    }

    /// Takes everything back, or leaves what helped, and says why what was not measured was not.
    fn finish(self, end: End<S::Error>) -> Climbed<S::Error> {
        let Climber { subject, plan, mut climbed, .. } = self;
        let stays = plan.keep && matches!(end, End::Done | End::Over);
        let last = if stays { climbed.kept() } else { vec![false; plan.rungs] };
        climbed.left_behind = subject.leave(&last).err();
        let why = match &end {
            End::Done => "nothing could be measured",
            End::Over => "the budget was used up before it",
            End::Interrupted => "interrupted before it was measured",
            End::Failed(_) => "the climb failed before it was measured",
        };
        for found in &mut climbed.rungs {
            if found.status == Status::Skipped && found.reason.is_empty() {
                found.reason = why.to_owned();
            }
        }
        climbed.end = end;
        climbed
    }
}

/// What an effect on top of those kept means.
fn judged(effect: &Effect, objective: Objective, floor: f64) -> (Status, String) {
    if let Some((with, without)) = effect.errors_rose {
        let reason =
            format!("errors rose from {:.3} % to {:.3} % of the requests", without * 1e2, with * 1e2);
        return (Status::Worse, reason);
    }
    match (effect.on(objective), effect.word) {
        (None, _) => (Status::None, format!("the runs do not tell {}", objective.name())),
        (Some(estimate), Word::Faster | Word::Slower) if estimate.is_within(floor) => {
            (Status::None, format!("no more than the noise floor of {:.1} %", floor * 100.0))
        }
        (_, Word::NotToldApart) => (Status::None, "not told apart from no effect".to_owned()),
        (_, Word::Faster) => (Status::Kept, String::new()),
        (_, Word::Slower) => (Status::Worse, String::new()),
    }
}

/// What is said of a burden whose absence was judged.
fn as_burden((status, reason): (Status, String)) -> (Status, String) {
    match status {
        Status::Kept => {
            (Status::Skipped, "what an equal burden costs; it is somebody else's, so it stays".to_owned())
        }
        Status::Worse if reason.is_empty() => (Status::None, "an equal burden costs nothing".to_owned()),
        status => (status, reason),
    }
}

/// What leaving a kept rung out changes about it: nothing, unless it harms the others or has nothing left beside them.
fn second_thought(found: &Found, among: &Effect, objective: Objective) -> Option<(Status, String)> {
    let (alone, among_all) = (found.forward.as_ref()?.on(objective)?, among.on(objective)?);
    let told = format!(
        "{:+.1} % when it was tried, {:+.1} % among those kept after it",
        alone.gain * 100.0,
        among_all.gain * 100.0
    );
    match among.word {
        Word::Slower => Some((Status::Worse, told)),
        Word::NotToldApart if among_all.high < alone.low => Some((Status::None, told)),
        _ => None,
    }
}

fn with(set: &[bool], rung: usize, is_on: bool) -> Vec<bool> {
    set.iter().enumerate().map(|(at, &was_on)| if at == rung { is_on } else { was_on }).collect()
}

/// Fisher and Yates: every order is as likely.
fn shuffle(items: &mut [usize], random: &mut Random) {
    for at in (1..items.len()).rev() {
        items.swap(at, random.below(at as u64 + 1) as usize);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server whose speed follows from what is in place, on a machine that is noisy and drifts.
    struct Simulated {
        speed: fn(&[bool]) -> f64,
        noise: f64,
        random: Random,
        on: Vec<bool>,
        runs: usize,
        fails_at: usize,
        go: fn(usize, &Progress) -> Go,
        errors: fn(&[bool]) -> u64,
        refused: Option<usize>,
        obstacle: Option<usize>,
        omission: Option<usize>,
        burden: Option<usize>,
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
            refused: None,
            obstacle: None,
            omission: None,
            burden: None,
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
                requests: 100_000,
                errors: (self.errors)(&self.on),
                ..Sample::default()
            })
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
    fn what_does_nothing_is_called_none() {
        for noise in [0.005, 0.03, 0.10] {
            let none = (0..200).filter(|&seed| {
                let mut same = Simulated { noise, ..simulated(1, seed, |_| 1.0) };
                statuses(&climb(&mut same, &plan(1))) == [Status::None]
            });
            let none = none.count();
            assert!(none >= 195, "{none} of 200 at noise {noise}");
        }
    }

    /// To end once the interval is narrow makes it a little too narrow: 95 % are 92 % or so.
    #[test]
    fn intervals_hold_the_truth() {
        let within = (0..500).filter(|&seed| {
            let mut subject = simulated(1, seed, |on| if on[0] { 1.2 } else { 1.0 });
            let climbed = climb(&mut subject, &plan(1));
            let estimate = climbed.rungs[0].forward.as_ref().unwrap().throughput.unwrap();
            (estimate.low..=estimate.high).contains(&0.2)
        });
        let within = within.count();
        assert!(within >= 450, "{within} of 500");
    }

    #[test]
    fn what_helps_is_kept_and_what_harms_is_not() {
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

    /// Either of two rungs gives 30 %, both together no more: forward gives it all to the first, and has nothing left
    /// for the second. Shapley divides it evenly.
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

    /// The first rung's 15 % are within the second's 40 %. Forward keeps both; leaving one out shows that the first has
    /// nothing left.
    #[test]
    fn what_a_later_rung_makes_useless_is_taken_back() {
        let speed = |on: &[bool]| match (on[0], on[1]) {
            (_, true) => 1.4,
            (true, false) => 1.15,
            (false, false) => 1.0,
        };
        let climbed = climb(&mut simulated(2, 7, speed), &Plan { orders: 40, ..plan(2) });
        assert!((forward(&climbed, 0) - 0.15).abs() < 0.04);
        assert_eq!(statuses(&climbed), [Status::None, Status::Kept]);
        assert!(climbed.rungs[0].leave_one_out.unwrap().gain.abs() < 0.04);
        assert!(climbed.rungs[0].reason.contains("among those kept after it"), "{}", climbed.rungs[0].reason);
        let total = climbed.total.unwrap().throughput.unwrap();
        assert!((total.gain - 0.4).abs() < 0.06, "{total:?}");
        // By hand: the mean of ln 1.15 and 0, and what is left of ln 1.4.
        let share = climbed.rungs[0].shapley.unwrap().gain;
        assert!((share - (1.15_f64.ln() / 2.0).exp_m1()).abs() < 0.05, "{share}");
    }

    /// The first rung gives 5 % alone and 25 % once the second is there: forward tells the 5 %, leaving it out the 25.
    #[test]
    fn what_needs_another_is_worth_more_among_all() {
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

    /// Good alone, bad beside what comes later.
    #[test]
    fn what_harms_the_others_is_taken_back() {
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

    #[test]
    fn nothing_is_kept_at_the_price_of_errors() {
        let mut subject = simulated(1, 3, |on| if on[0] { 2.0 } else { 1.0 });
        subject.errors = |on| u64::from(on[0]) * 5;
        let climbed = climb(&mut subject, &plan(1));
        assert_eq!(statuses(&climbed), [Status::Worse]);
        assert!(climbed.rungs[0].reason.contains("errors rose"), "{}", climbed.rungs[0].reason);
    }

    #[test]
    fn a_failure_anywhere_takes_everything_back() {
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
    fn an_interrupt_keeps_what_is_known() {
        let mut subject = simulated(2, 19, |on| if on[0] { 1.5 } else { 1.0 });
        subject.go = |_, progress| match progress.stage {
            Stage::Forward(1) if progress.pairs == 2 => Go::Interrupted,
            _ => Go::On,
        };
        let climbed = climb(&mut subject, &Plan { keep: true, ..plan(2) });
        assert_eq!(statuses(&climbed), [Status::Kept, Status::Skipped]);
        assert_eq!((climbed.end, subject.on), (End::Interrupted, vec![false; 2]));
    }

    #[test]
    fn a_budget_is_not_exceeded() {
        let mut subject = simulated(2, 23, |on| if on[0] { 1.5 } else { 1.0 });
        subject.noise = 0.5;
        subject.go = |runs, progress| match runs {
            runs if runs >= 60 => Go::Over,
            _ if progress.pairs >= 3 => Go::Next,
            _ => Go::On,
        };
        let climbed = climb(&mut subject, &plan(2));
        assert!(subject.runs <= 60, "{}", subject.runs);
        assert_eq!(climbed.rungs[0].forward.as_ref().unwrap().pairs, 5, "five are asked for at least");
        subject.runs = 0;
        subject.go = |runs, _| if runs >= 13 { Go::Over } else { Go::On };
        let climbed = climb(&mut subject, &Plan { pairs_max: 5, ..plan(2) });
        assert_eq!((statuses(&climbed), climbed.end), (vec![Status::Skipped; 2], End::Over));
        assert!(climbed.rungs[0].reason.contains("budget"), "{}", climbed.rungs[0].reason);
    }

    #[test]
    fn what_cannot_be_is_told_and_the_rest_is_measured() {
        let mut subject = simulated(4, 29, |on| if on[1] { 1.5 } else { 1.0 });
        (subject.refused, subject.obstacle, subject.omission) = (Some(0), Some(2), Some(3));
        let climbed = climb(&mut subject, &Plan { orders: 3, ..plan(4) });
        assert_eq!(
            statuses(&climbed),
            [Status::Skipped, Status::Kept, Status::NotMeasurable, Status::Skipped]
        );
        assert_eq!(climbed.rungs[3].reason, "nobody wants it");
        assert_eq!(climbed.rungs[0].reason, "no root");
        assert_eq!(climbed.rungs[2].reason, "loopback has no card");
        assert!(climbed.rungs[1].shapley.is_some() && climbed.rungs[2].shapley.is_none());
    }

    /// A packet tap of somebody else's: one more of them costs what that one does.
    #[test]
    fn a_burden_is_estimated_from_the_other_side() {
        for (cost, status, gain) in [(0.8, Status::Skipped, 0.25), (1.0, Status::None, 0.0)] {
            let speed =
                if cost < 1.0 { |on: &[bool]| if on[0] { 0.8 } else { 1.0 } } else { |_: &[bool]| 1.0 };
            let mut subject = Simulated { burden: Some(0), ..simulated(1, 37, speed) };
            let climbed = climb(&mut subject, &Plan { orders: 3, keep: true, ..plan(1) });
            assert_eq!((statuses(&climbed), subject.on), (vec![status], vec![false]));
            assert!((forward(&climbed, 0) - gain).abs() < 0.04, "{:?}", climbed.rungs[0]);
            assert!(climbed.rungs[0].shapley.is_none() && climbed.total.is_none());
        }
    }

    #[test]
    fn what_is_left_counts_down() {
        let mut subject = simulated(3, 31, |on| if on[0] { 1.5 } else { 1.0 });
        subject.go = |runs, progress| {
            assert!(progress.left > 0 && (runs > 0 || progress.left == 1 + 3 + 2 + 1 + 3), "{progress:?}");
            assert!(!matches!(progress.stage, Stage::Order(2)) || progress.left == 1);
            Go::On
        };
        assert_eq!(climb(&mut subject, &Plan { orders: 3, ..plan(3) }).end, End::Done);
    }
}
