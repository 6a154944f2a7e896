//! The climb: finds out which of several changes help, alone and together.
//!
//! ```text
//! noise       nothing against nothing: how large an effect is by chance
//! forward     each rung on top of those that were kept before it
//! second look those again that are not known exactly enough to call them nothing, in the time that is left (`again.rs`)
//! leave out   all that was kept against all but one: what each is worth among the others
//! total       all that was kept against nothing
//! block       (if a rung takes a reboot) all that was kept against itself; `resume` does it again in the next boot
//! orders      (if asked) rungs put in place in balanced orders: Shapley's share of each
//! ```
//!
//! Forward alone depends on the order: of two rungs with the same effect, the first gets all of it, and a rung that
//! needs another has no effect before it. So each rung that forward kept is judged again among all others, and stays
//! only if it is worth something there.
//!
//! Of many rungs without effect, some seem to have one. So the error probability of 1 in 20 applies to all rungs
//! together, by Holm's method ("A simple sequentially rejective multiple test procedure", Scandinavian Journal of
//! Statistics 6, 1979): of `m` rungs each is tried at a level of 5 % / m; once one has shown an effect, the others
//! share its part, and those that were tried before are judged again. Each is reported with the interval of the level
//! at which it was judged last, and that interval decides.

mod again;
mod comparison;
mod orders;

use crate::across::{Block, Resumed, across};
use crate::compare::{Level, Word};
use crate::effect::{Effect, Estimate};
use crate::foresight::Foresight;
use crate::found::{Climbed, End, Found, How, Noise, Status};
use crate::judged::{as_burden, judged, second_thought};
use crate::looks::Look;
use crate::random::Random;
use crate::sample::Objective;
use crate::starts::Pairs;
use crate::subject::{Go, Progress, Set, Stage, Subject};

use again::{Planned, Undecided};
use comparison::{Compared, Runs};

/// What to find out, and how precisely.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The number of rungs.
    pub rungs: usize,
    /// The objective that rungs are kept for.
    pub objective: Objective,
    /// A comparison ends when its interval is no wider than this share.
    pub width_max: f64,
    /// Fewest pairs of runs of a comparison; never fewer than the first finite interval needs.
    pub pairs_min: usize,
    /// Most pairs of runs of a comparison.
    pub pairs_max: usize,
    /// Orders for Shapley values: none, or at least [`crate::ORDERS_MIN`].
    pub orders: usize,
    /// The random seed of the orders.
    pub seed: u64,
    /// Whether changes that helped stay at the end.
    pub keep: bool,
}

/// Why a stage stopped early.
enum Halt<E> {
    Over,
    Interrupted,
    Failed(E),
}

/// Runs with and without a rung, and the rungs below it.
#[derive(Clone, Default)]
struct Tried {
    base: Vec<bool>,
    pairs: Pairs,
    /// How they were made.
    how: How,
    /// The look at which these runs are judged.
    look: Option<Look>,
    /// The time that each of the last of them took.
    seconds_of_pair: f64,
    /// Whether it has shown a significant effect, positive or negative.
    is_significant: bool,
}

struct Climber<'s, S: Subject> {
    subject: &'s mut S,
    plan: &'s Plan,
    climbed: Climbed<S::Error>,
    /// The runs by which each rung was last judged.
    tried: Vec<Tried>,
    /// The rung that waits for a reboot.
    waiting: Option<usize>,
    /// The current second look.
    second_look: Option<Planned>,
    /// Number of rungs that are tried, which share the error probability.
    family: usize,
    /// The order within pairs. A fixed order can coincide with a period of the machine.
    order: Random,
}

/// Runs a climb. However it ends, everything is undone, except what helped if the plan says so and nothing failed.
pub fn climb<S: Subject>(subject: &mut S, plan: &Plan) -> Climbed<S::Error> {
    let mut climber = Climber::new(subject, plan);
    let end = climber.stages().map_or_else(Halt::end, |()| End::Done);
    climber.finish(end)
}

/// Continues after the reboot for `rung`: measures a second block with the rungs in `kept` and this one, and compares
/// it with `before`.
pub fn resume<S: Subject>(
    subject: &mut S,
    plan: &Plan,
    before: &Block,
    kept: &[bool],
    rung: usize,
) -> Resumed<S::Error> {
    // The same number of runs.
    let pairs = before.pairs().max(Level::ONE.pairs_min());
    let same = Plan { pairs_min: pairs, pairs_max: pairs, orders: 0, ..plan.clone() };
    let level = Level::shared(plan.rungs);
    let mut climber = Climber::new(subject, &same);
    let (found, end, refused) = match climber.block(&with(kept, rung, true)) {
        Ok(Compared::Done(after)) => (Some(across(before, &after, plan.objective, level)), End::Done, None),
        Ok(Compared::Refused(why) | Compared::Died(_, why)) => (None, End::Done, Some(why)),
        Err(halt) => (None, halt.end(), None),
    };
    let is_kept = found.as_ref().is_some_and(|found| found.status == Status::Kept);
    let stays = plan.keep && found.is_some();
    let last = if stays { with(kept, rung, is_kept) } else { vec![false; plan.rungs] };
    Resumed { found, end, refused, left_behind: subject.leave(&last).err() }
}

impl<E> Halt<E> {
    fn end(self) -> End<E> {
        match self {
            Halt::Over => End::Over,
            Halt::Interrupted => End::Interrupted,
            Halt::Failed(error) => End::Failed(error),
        }
    }
}

impl<'s, S: Subject> Climber<'s, S> {
    fn new(subject: &'s mut S, plan: &'s Plan) -> Climber<'s, S> {
        let tried = vec![Tried::default(); plan.rungs];
        let climbed = Climbed::begin(plan.rungs);
        Climber {
            subject,
            plan,
            climbed,
            tried,
            waiting: None,
            second_look: None,
            family: plan.rungs,
            order: Random::new(plan.seed),
        }
    }

    fn stages(&mut self) -> Result<(), Halt<S::Error>> {
        for (rung, found) in self.climbed.rungs.iter_mut().enumerate() {
            if let Some(why) = self.subject.obstacle(rung) {
                (found.status, found.reason) = (Status::NotMeasurable, why);
            }
            if let Some(why) = self.subject.omission(rung) {
                (found.status, found.reason) = (Status::Skipped, why);
            }
        }
        self.set_apart();
        let is_tried = |found: &&Found| found.status == Status::Skipped && found.reason.is_empty();
        self.family =
            self.climbed.rungs.iter().filter(is_tried).count() + usize::from(self.waiting.is_some());
        let (of_servers, others) = self.kinds();
        let first = if of_servers && !others { Stage::NoiseOfServers } else { Stage::Noise };
        let Some(noise) = self.noise(first)? else { return Ok(()) };
        self.climbed.noise = Some(noise);
        if of_servers && others {
            self.climbed.noise_of_servers = self.noise(Stage::NoiseOfServers)?;
        }
        let compared = self.each();
        if let Err(Halt::Over) = compared {
            self.judge_again();
            // The subject may have kept time for this.
            self.total()?;
        }
        compared?;
        self.total()?;
        let kept = self.climbed.kept();
        if let Some(rung) = self.waiting
            && let Compared::Done(block) = self.block(&kept)?
        {
            self.climbed.rungs[rung].reason = WAITING.to_owned();
            self.climbed.waiting = Some((rung, block));
        }
        self.orders()
    }

    /// Each rung on top of those kept, second looks, and each kept one left out.
    fn each(&mut self) -> Result<(), Halt<S::Error>> {
        for rung in 0..self.plan.rungs {
            if self.climbed.rungs[rung].reason.is_empty() {
                self.forward(Stage::Forward(rung), rung)?;
            }
        }
        self.judge_again();
        self.second_looks()?;
        self.judge_again();
        self.leave_out()
    }

    /// The unchanged server against itself; `None` if it cannot be measured.
    fn noise(&mut self, stage: Stage) -> Result<Option<Noise>, Halt<S::Error>> {
        let nothing = vec![false; self.plan.rungs];
        let compared = self.pairs(stage, &nothing, &nothing, Pairs::default(), Level::ONE)?;
        let Compared::Done(Runs { pairs, look, .. }) = compared else { return Ok(None) };
        let objective = self.plan.objective;
        let effect = pairs.effect_at(objective, Level::ONE, look);
        if let Some(foresight) = Foresight::of(&pairs, objective, Level::shared(self.family)) {
            self.subject.foresee(&foresight);
        }
        let floor = effect.on(objective).map(|estimate| estimate.far_end());
        Ok(Some(Noise { effect, floor }))
    }

    /// Whether rungs that will be tried change the server, and whether some change something else.
    fn kinds(&self) -> (bool, bool) {
        let is_tried = |rung: &usize| self.climbed.rungs[*rung].reason.is_empty();
        let has = |is_in_the_server: bool| {
            let mut tried = (0..self.plan.rungs).filter(is_tried);
            tried.any(|rung| self.subject.is_in_the_server(rung) == is_in_the_server)
        };
        (has(true), has(false))
    }

    /// The A/A difference, if it is significant: an error that the variance does not show. In a comparison in which
    /// everything that differs is in the server, it is that of servers.
    fn bias(&self, is_in_the_server: bool) -> f64 {
        let Climbed { noise, noise_of_servers, .. } = &self.climbed;
        let noise = noise_of_servers.as_ref().filter(|_| is_in_the_server).or(noise.as_ref());
        let significant = noise.filter(|noise| noise.effect.word != Word::NoDifference);
        significant.and_then(|noise| noise.floor).unwrap_or(0.0)
    }

    /// Whether everything that differs between two sets is in the server.
    fn differ_in_the_server(&self, one: &[bool], other: &[bool]) -> bool {
        let mut differ = (0..self.plan.rungs).filter(|&rung| one[rung] != other[rung]);
        differ.all(|rung| self.subject.is_in_the_server(rung))
    }

    /// Sets aside the rungs that need a reboot; only the first one gets it.
    fn set_apart(&mut self) {
        for (rung, found) in self.climbed.rungs.iter_mut().enumerate() {
            if !found.reason.is_empty() || !self.subject.takes_reboot(rung) {
                continue;
            }
            if self.waiting.is_none() {
                (found.reason, self.waiting) = (NOT_WAITING.to_owned(), Some(rung));
            } else {
                let why = "it needs a reboot, and another rung already waits for one: climb it afterwards";
                (found.status, found.reason) = (Status::NotMeasurable, why.to_owned());
            }
        }
    }

    /// The block of this boot with these rungs.
    fn block(&mut self, on: &[bool]) -> Result<Compared<Block>, Halt<S::Error>> {
        Ok(match self.pairs(Stage::Block, on, on, Pairs::default(), Level::ONE)? {
            Compared::Done(runs) => Compared::Done(Block::of(runs.pairs.runs(), self.plan.objective)),
            Compared::Refused(why) => Compared::Refused(why),
            Compared::Died(set, why) => Compared::Died(set, why),
        })
    }

    /// Gives the time that is left to the rungs whose effect is the least known. Each look can change what is known and kept, so the
    /// others are planned again after it.
    fn second_looks(&mut self) -> Result<(), Halt<S::Error>> {
        let mut has_had_one = vec![false; self.plan.rungs];
        loop {
            let kept = self.climbed.kept();
            let undecided: Vec<Undecided> = (0..self.plan.rungs)
                .filter(|&rung| !has_had_one[rung] && self.is_undecided(rung))
                .filter_map(|rung| {
                    let (tried, width) = (&self.tried[rung], self.width(rung)?);
                    let is_same_base = tried.base == kept;
                    let (pairs, seconds_of_pair) = (tried.pairs.len(), tried.seconds_of_pair);
                    Some(Undecided { rung, width, pairs, is_same_base, seconds_of_pair })
                })
                .collect();
            let later = self.after_second_looks() as f64 * LATER_WEIGHT;
            let part = undecided.len() as f64 / (undecided.len() as f64 + later);
            let seconds = part * self.subject.seconds_left();
            let looks = again::divided(&undecided, seconds, self.plan.width_max, self.plan.pairs_max);
            let Some(look) = looks.first() else { return Ok(()) };
            has_had_one[look.rung] = true;
            self.second_look = Some(*look);
            self.forward(Stage::SecondLook(look.rung), look.rung)?;
        }
    }

    /// The width of the interval by which a rung was judged last.
    fn width(&self, rung: usize) -> Option<f64> {
        let effect = self.climbed.rungs[rung].forward.as_ref()?;
        effect.on(self.plan.objective).map(|estimate| estimate.width())
    }

    /// Comparisons and orders after the second looks, if they keep nothing more.
    fn after_second_looks(&self) -> usize {
        let kept = self.climbed.kept().iter().filter(|is_kept| **is_kept).count();
        let left_out = if kept > 1 { kept } else { 0 };
        left_out + usize::from(kept > 0) + usize::from(self.waiting.is_some()) + self.plan.orders
    }

    /// The number of pairs at which a comparison of this stage ends.
    fn pairs_max(&self, stage: Stage) -> usize {
        let look = self.second_look.filter(|look| stage == Stage::SecondLook(look.rung));
        look.map_or(self.plan.pairs_max, |look| look.pairs)
    }

    /// The share of the time that is left for a comparison of this stage.
    fn share(&self, stage: Stage) -> f64 {
        let look = self.second_look.filter(|look| stage == Stage::SecondLook(look.rung));
        let (equal, left) = (1.0 / self.left(stage).max(1) as f64, self.subject.seconds_left());
        look.filter(|_| left.is_finite() && left > 0.0).map_or(equal, |look| (look.seconds / left).min(1.0))
    }

    /// Whether a rung without a known effect may still have one: its interval is wider than requested.
    fn is_undecided(&self, rung: usize) -> bool {
        let found = &self.climbed.rungs[rung];
        found.status == Status::None
            && self.tried[rung].pairs.len() < self.plan.pairs_max
            && self.width(rung).is_some_and(|width| width > self.plan.width_max)
    }

    /// Tries a rung on top of those kept so far. Earlier runs on top of the same rungs count.
    fn forward(&mut self, stage: Stage, rung: usize) -> Result<(), Halt<S::Error>> {
        let base = self.climbed.kept();
        let changed = with(&base, rung, true);
        let is_burden = self.subject.is_burden(rung);
        let (better, worse) = if is_burden { (&base, &changed) } else { (&changed, &base) };
        let tried = std::mem::take(&mut self.tried[rung]);
        self.tried[rung].how = tried.how;
        let before = if tried.base == base { tried.pairs.clone() } else { Pairs::default() };
        let (left, had) = (self.subject.seconds_left(), before.len());
        let compared = self.pairs(stage, better, worse, before, self.level(rung))?;
        let seconds = left - self.subject.seconds_left();
        let found = &mut self.climbed.rungs[rung];
        match compared {
            Compared::Refused(_) if found.forward.is_some() => self.tried[rung] = tried,
            Compared::Refused(reason) => {
                found.reason = reason;
                self.subject.found(rung, found);
            }
            Compared::Died(set, why) => {
                (found.status, found.reason) = match set[rung] {
                    true => (Status::Worse, format!("the server died: {why}")),
                    false => (found.status, format!("the server died without it: {why}")),
                };
                self.subject.found(rung, found);
            }
            Compared::Done(Runs { pairs, look, how }) => {
                let made = pairs.len().saturating_sub(had).max(1) as f64;
                // Without a clock, pairs take no time.
                let seconds_of_pair = if seconds.is_finite() { seconds / made } else { 0.0 };
                let last =
                    Tried { base, pairs, how, look: Some(look), seconds_of_pair, is_significant: false };
                let chosen = if self.is_better_known(rung, &tried, &last) { tried } else { last };
                self.climbed.rungs[rung].how = chosen.how;
                self.tried[rung] = chosen;
                self.judge(rung);
            }
        }
        Ok(())
    }

    /// Whether earlier runs, which the last ones do not continue, show more than these: neither shows an effect, and the interval of the
    /// earlier ones is narrower. Each look has its own part of the error probability, so both intervals hold.
    fn is_better_known(&self, rung: usize, earlier: &Tried, last: &Tried) -> bool {
        let effect = |tried: &Tried| {
            let look = tried.look.unwrap_or(Look::Last);
            tried.pairs.effect_at(self.plan.objective, self.level(rung), look)
        };
        let width = |effect: &Effect| {
            let estimate = effect.on(self.plan.objective);
            estimate.map_or(f64::INFINITY, |estimate| estimate.width())
        };
        let is_continued = earlier.base == last.base && earlier.pairs.len() < last.pairs.len();
        if earlier.pairs.len() == 0 || is_continued {
            return false;
        }
        let (earlier, last) = (effect(earlier), effect(last));
        last.word == Word::NoDifference && last.errors_rose.is_none() && width(&earlier) < width(&last)
    }

    /// Judges a rung by the existing runs, at its current level.
    fn judge(&mut self, rung: usize) {
        let objective = self.plan.objective;
        let tried = &self.tried[rung];
        let effect = tried.pairs.effect_at(objective, self.level(rung), tried.look.unwrap_or(Look::Last));
        let effect = effect.widened(self.bias(self.subject.is_in_the_server(rung)), objective);
        let is_base_older = tried.base != with(&self.climbed.kept(), rung, false);
        let found = &mut self.climbed.rungs[rung];
        (found.status, found.reason) = judged(&effect, objective);
        if self.subject.is_burden(rung) {
            found.how = How::FromTheOtherSide;
            (found.status, found.reason) = as_burden(found, &effect, objective);
        }
        if found.status == Status::None && is_base_older {
            found.reason.push_str(MEASURED_EARLIER);
        }
        self.tried[rung].is_significant = effect.word != Word::NoDifference || effect.errors_rose.is_some();
        let was = (found.status, found.forward.replace(effect));
        // Holm's steps judge all rungs again: most results are unchanged.
        if was != (found.status, found.forward.clone()) {
            self.subject.found(rung, found);
        }
    }

    /// The rung's part of the error probability: an equal share of what rungs with an effect have not used up.
    fn level(&self, rung: usize) -> Level {
        let others = self.tried.iter().enumerate().filter(|(at, _)| *at != rung);
        let significant = others.filter(|(_, tried)| tried.is_significant).count();
        Level::shared(self.family.saturating_sub(significant))
    }

    /// Holm's steps: as long as another rung shows an effect, the others are judged at a less strict level.
    fn judge_again(&mut self) {
        loop {
            let undecided: Vec<usize> = (0..self.plan.rungs)
                .filter(|&rung| !self.tried[rung].is_significant && self.tried[rung].pairs.len() > 0)
                .collect();
            undecided.iter().for_each(|&rung| self.judge(rung));
            if undecided.iter().all(|&rung| !self.tried[rung].is_significant) {
                return;
            }
        }
    }

    /// Judges each kept rung again among all others. One that has no effect there, or harms, is undone for good.
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
            // The total measures the only rung again.
            if kept.iter().filter(|is_kept| **is_kept).count() == 1 {
                continue;
            }
            let Compared::Done(effect) = self.compare(Stage::LeaveOneOut(rung), &kept, &without)? else {
                continue;
            };
            let found = &mut self.climbed.rungs[rung];
            found.leave_one_out = effect.on(self.plan.objective);
            if let Some((status, reason)) = second_thought(found, &effect, self.plan.objective) {
                (found.status, found.reason) = (status, reason);
            }
            self.subject.found(rung, found);
        }
        Ok(())
    }

    /// Measures everything kept against the unchanged server. For the only kept rung this is the second measurement that
    /// the others had among each other: without it, one climb in 40 would keep a rung that was only lucky.
    fn total(&mut self) -> Result<(), Halt<S::Error>> {
        let kept = self.climbed.kept();
        let Some(first) = kept.iter().position(|is_kept| *is_kept) else { return Ok(()) };
        let nothing = vec![false; self.plan.rungs];
        let Compared::Done(Runs { pairs, look, .. }) =
            self.pairs(Stage::Total, &kept, &nothing, Pairs::default(), Level::ONE)?
        else {
            return Ok(());
        };
        let objective = self.plan.objective;
        let bias = self.bias(self.differ_in_the_server(&kept, &nothing));
        let at = |level: Level| pairs.effect_at(objective, level, look).widened(bias, objective);
        let total = at(Level::ONE);
        if kept[first + 1..].contains(&true) {
            self.climbed.total = Some(total);
            return Ok(());
        }
        let found = &mut self.climbed.rungs[first];
        found.leave_one_out = total.on(objective);
        match second_thought(found, &at(Level::AGAIN), objective) {
            Some((status, reason)) => {
                (found.status, found.reason) = (status, reason);
                self.subject.found(first, found);
            }
            None => self.climbed.total = Some(total),
        }
        Ok(())
    }

    fn set(&mut self, on: &[bool]) -> Result<Set, Halt<S::Error>> {
        self.subject.set(on).map_err(Halt::Failed)
    }

    fn look(&mut self, stage: Stage, pairs: usize, estimate: Option<Estimate>) -> Result<Go, Halt<S::Error>> {
        match self.subject.look(&Progress {
            stage,
            pairs,
            estimate,
            left: self.left(stage),
            share: self.share(stage),
        }) {
            Go::Interrupted => Err(Halt::Interrupted),
            Go::Over if matches!(stage, Stage::Order(_)) => Err(Halt::Over),
            go => Ok(go),
        }
    }

    /// Remaining comparisons and orders from this stage on.
    fn left(&self, stage: Stage) -> usize {
        let rungs = &self.climbed.rungs;
        let kept_from =
            |from: usize| rungs.iter().skip(from).filter(|found| found.status == Status::Kept).count();
        let untried_from = |from: usize| {
            let is_untried = |found: &&Found| found.status == Status::Skipped && found.reason.is_empty();
            rungs.iter().skip(from).filter(is_untried).count()
        };
        let undecided_from =
            |from: usize| (from..rungs.len()).filter(|&rung| self.is_undecided(rung)).count();
        let forward = |from: usize| untried_from(from) + untried_from(from).div_ceil(2) + kept_from(0) + 1;
        let block = usize::from(self.waiting.is_some());
        let last = block + self.plan.orders;
        match stage {
            Stage::Noise => 1 + usize::from(self.kinds().0) + forward(0) + last,
            Stage::NoiseOfServers => 1 + forward(0) + last,
            Stage::Forward(at) => forward(at) + last,
            // If nothing is kept, there is no total.
            Stage::SecondLook(at) => {
                // It is undecided until the second look.
                undecided_from(at + 1) + 1 + kept_from(0) + usize::from(kept_from(0) > 0) + last
            }
            Stage::LeaveOneOut(at) => kept_from(at) + 1 + last,
            Stage::Total => 1 + last,
            Stage::Block => 1 + self.plan.orders,
            Stage::Order(at) => self.plan.orders - at,
        }
    }

    /// Undoes everything, or leaves what helped, and gives the reasons for rungs that were not measured.
    fn finish(self, end: End<S::Error>) -> Climbed<S::Error> {
        let Climber { subject, plan, mut climbed, .. } = self;
        // A climb that waits for a reboot is not complete.
        let stays = plan.keep && matches!(end, End::Done | End::Over) && climbed.waiting.is_none();
        let last = if stays { climbed.kept() } else { vec![false; plan.rungs] };
        climbed.left_behind = subject.leave(&last).err();
        let why = match &end {
            End::Done => "nothing could be measured",
            End::Over => "the budget ran out before it was measured",
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

/// What later comparisons weigh beside second looks when the time is divided: they confirm what is known.
const LATER_WEIGHT: f64 = 0.5;

/// The addition to a rung without a known effect that was measured in another state than the final one.
const MEASURED_EARLIER: &str = "; measured without the changes that were kept after it";

/// The reason of a rung that needs a reboot, after the runs of this boot.
const WAITING: &str = "it needs a reboot: the runs before it are done, those after it are still to come";

/// The same, before these runs.
const NOT_WAITING: &str = "it needs a reboot: the climb ended before the runs that precede it";

fn with(set: &[bool], rung: usize, is_on: bool) -> Vec<bool> {
    set.iter().enumerate().map(|(at, &was_on)| if at == rung { is_on } else { was_on }).collect()
}

#[cfg(test)]
mod tests;
