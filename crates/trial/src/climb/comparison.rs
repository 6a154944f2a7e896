//! One comparison: runs with two sets, side by side or in turn, until they are enough.

use super::{Climber, Halt};
use crate::compare::{Level, Word};
use crate::effect::{Effect, Estimate};
use crate::found::How;
use crate::looks::{INTERIM_PAIRS, Look};
use crate::sample::Sample;
use crate::starts::{Pairs, STARTS_IN_TURN, STARTS_MIN, STARTS_SIDE_BY_SIDE};
use crate::subject::{Both, Go, Set, Stage, Subject};

/// Fewest runs after a start while there is time: one alone does not show whether starts differ or runs do, and a start takes
/// longer than a run.
const RUNS_OF_START_MIN: usize = 2;

/// An interval that excludes 0 may be so many times as wide as one that does not: the decision is made, and the effect is known well.
const DECIDED_WIDTHS: f64 = 2.0;

/// The result of a comparison.
pub(super) enum Compared<T> {
    Done(T),
    Refused(String),
    /// The subject died with this set.
    Died(Vec<bool>, String),
}

/// The runs of a comparison, and the look that ended it.
pub(super) struct Runs {
    pub(super) pairs: Pairs,
    pub(super) look: Look,
    /// How all of them were made.
    pub(super) how: How,
}

/// Two sets, and where their comparison is.
#[derive(Clone, Copy)]
struct Place<'c> {
    stage: Stage,
    sets: [&'c [bool]; 2],
    /// Starts of earlier looks at the same sets.
    starts_before: usize,
    /// The estimate so far.
    estimate: Option<Estimate>,
}

/// How one step of a comparison ended.
enum Step {
    Measured,
    /// The budget ended before it was complete.
    Over,
    Refused(String),
    Died(Vec<bool>, String),
}

/// How the runs of one set after a start ended.
enum Series {
    Measured(Vec<Sample>),
    Failed(Step),
}

impl<S: Subject> Climber<'_, S> {
    /// Compares two sets.
    pub(super) fn compare(
        &mut self,
        stage: Stage,
        changed: &[bool],
        base: &[bool],
    ) -> Result<Compared<Effect>, Halt<S::Error>> {
        Ok(match self.pairs(stage, changed, base, Pairs::default(), Level::ONE)? {
            Compared::Done(Runs { pairs, look, .. }) => {
                let effect = pairs.effect_at(self.plan.objective, Level::ONE, look);
                let bias = self.bias(self.differ_in_the_server(changed, base));
                Compared::Done(effect.widened(bias, self.plan.objective))
            }
            Compared::Refused(why) => Compared::Refused(why),
            Compared::Died(set, why) => Compared::Died(set, why),
        })
    }

    /// Runs with two sets, added to the existing ones, until the difference is known precisely enough or the comparison's
    /// share is used up.
    pub(super) fn pairs(
        &mut self,
        stage: Stage,
        changed: &[bool],
        base: &[bool],
        mut pairs: Pairs,
        level: Level,
    ) -> Result<Compared<Runs>, Halt<S::Error>> {
        self.subject.compare(stage, changed, base);
        let look = if matches!(stage, Stage::SecondLook(_)) { Look::Again } else { Look::Last };
        let objective = self.plan.objective;
        let estimate = pairs.effect(objective, level).on(objective);
        let mut at = Place { stage, sets: [changed, base], starts_before: pairs.starts(), estimate };
        // Of earlier runs of this rung.
        let mut how = match stage {
            Stage::SecondLook(rung) if pairs.len() > 0 => self.tried[rung].how,
            _ => How::SideBySide,
        };
        loop {
            let step = match self.look(stage, pairs.len(), at.estimate)? {
                Go::Over => Step::Over,
                go => self.step(&mut at, &mut pairs, &mut how, go)?,
            };
            match step {
                Step::Measured => {}
                Step::Refused(why) => return Ok(Compared::Refused(why)),
                Step::Died(set, why) => return Ok(Compared::Died(set, why)),
                Step::Over if pairs.are_enough(level) => {
                    return Ok(Compared::Done(Runs { pairs, look, how }));
                }
                Step::Over => return Err(Halt::Over),
            }
            at.estimate = pairs.effect(objective, level).on(objective);
            let go = self.look(stage, pairs.len(), at.estimate)?;
            if let Some(look) = self.ending(&pairs, level, (stage, look), go) {
                return Ok(Compared::Done(Runs { pairs, look, how }));
            }
        }
    }

    /// The look at which a comparison ends now, if it does.
    fn ending(&self, pairs: &Pairs, level: Level, (stage, last): (Stage, Look), go: Go) -> Option<Look> {
        let (count, is_enough) = (pairs.len(), pairs.are_enough(level));
        let is_last = count >= self.pairs_max(stage)
            || go == Go::Over
            || go == Go::Next && count >= self.plan.pairs_min;
        if is_enough && is_last {
            return Some(last);
        }
        // Starts are few: an earlier look at them would need too large a part of the error probability.
        let is_interim = pairs.starts() == 0 && INTERIM_PAIRS.contains(&count);
        if !is_interim || !is_enough || count < self.plan.pairs_min {
            return None;
        }
        let interim = pairs.effect_at(self.plan.objective, level, Look::Interim).on(self.plan.objective);
        let is_known = |estimate: &Estimate| match estimate.word() {
            Word::NoDifference => estimate.width() <= self.plan.width_max,
            Word::Faster | Word::Slower => estimate.width() <= DECIDED_WIDTHS * self.plan.width_max,
        };
        interim.filter(is_known).map(|_| Look::Interim)
    }

    /// Adds runs: a pair; or if each set is started anew for them in turn, those of one start of each.
    fn step(
        &mut self,
        at: &mut Place<'_>,
        pairs: &mut Pairs,
        how: &mut How,
        go: Go,
    ) -> Result<Step, Halt<S::Error>> {
        let is_restarting = self.subject.is_restarting();
        let is_due = *how == How::SideBySide && self.is_start_due(at, pairs, go);
        if is_due {
            self.subject.restart();
        }
        let both = self.subject.measure_both(at.sets[0], at.sets[1]).map_err(Halt::Failed)?;
        let made = match &both {
            Both::Samples(_) => How::SideBySide,
            Both::Switched(_) => How::Switched,
            Both::Alternate => How::InTurn,
            Both::Died(place, why) => return Ok(Step::Died(at.sets[*place].to_vec(), why.clone())),
        };
        if made != *how {
            // Runs of two designs are not mixed.
            (*how, *pairs, at.starts_before) = (made, Pairs::default(), 0);
        }
        match both {
            Both::Samples([with, without]) => {
                if is_due || pairs.starts() == 0 {
                    pairs.begin_start();
                }
                pairs.push(with, without);
                Ok(Step::Measured)
            }
            Both::Switched([with, without]) => {
                pairs.push(with, without);
                Ok(Step::Measured)
            }
            _ if is_restarting => self.start_of_each(at, pairs),
            _ => self.run_of_each(at, pairs),
        }
    }

    /// Whether the next runs need servers that are started for them: the last ones had their share of the time.
    fn is_start_due(&self, at: &Place<'_>, pairs: &Pairs, go: Go) -> bool {
        let planned = self.starts_planned(STARTS_SIDE_BY_SIDE);
        let done = pairs.starts().saturating_sub(at.starts_before);
        let is_full = pairs.of_last_start() >= self.plan.pairs_max.div_ceil(planned);
        let is_short = pairs.of_last_start() < RUNS_OF_START_MIN;
        let is_time = is_full || !is_short && self.subject.spent() >= done as f64 / planned as f64;
        done == 0 || go != Go::On || is_time
    }

    /// The number of starts that the time of a comparison is divided into; fewer if it has few runs.
    fn starts_planned(&self, most: usize) -> usize {
        (self.plan.pairs_max / 2).clamp(STARTS_MIN, most)
    }

    /// Starts the server with each set, in random order, and measures the same number of runs after both.
    fn start_of_each(&mut self, at: &Place<'_>, pairs: &mut Pairs) -> Result<Step, Halt<S::Error>> {
        let planned = self.starts_planned(STARTS_IN_TURN);
        let (done, spent) = (pairs.starts() - at.starts_before, self.subject.spent());
        // The first of them has half of this start's time.
        let until = spent + ((done + 1) as f64 / planned as f64 - spent).max(0.0) / 2.0;
        let most = self.plan.pairs_max.div_ceil(planned).max(1);
        let first = self.order.below(2) as usize;
        let one = match self.series(at, first, pairs.len(), (most, until))? {
            Series::Measured(samples) => samples,
            Series::Failed(step) => return Ok(step),
        };
        if self.look(at.stage, pairs.len(), at.estimate)? == Go::Over {
            return Ok(Step::Over);
        }
        let other = match self.series(at, 1 - first, pairs.len(), (one.len(), f64::INFINITY))? {
            Series::Measured(samples) => samples,
            Series::Failed(step) => return Ok(step),
        };
        pairs.begin_start();
        for (one, other) in one.into_iter().zip(other) {
            if first == 0 { pairs.push(one, other) } else { pairs.push(other, one) }
        }
        Ok(Step::Measured)
    }

    /// Runs after one start: at most this many, until this share of the comparison's time is over.
    fn series(
        &mut self,
        at: &Place<'_>,
        place: usize,
        pairs: usize,
        (most, until): (usize, f64),
    ) -> Result<Series, Halt<S::Error>> {
        let mut samples = Vec::new();
        if let Set::Refused(reason) = self.set(at.sets[place])? {
            return Ok(Series::Failed(Step::Refused(reason)));
        }
        loop {
            samples.push(self.subject.measure().map_err(Halt::Failed)?);
            if let Some(why) = self.subject.death() {
                return Ok(Series::Failed(Step::Died(at.sets[place].to_vec(), why)));
            }
            if samples.len() >= most || self.subject.spent() >= until {
                return Ok(Series::Measured(samples));
            }
            if self.look(at.stage, pairs, at.estimate)? == Go::Over {
                return Ok(Series::Measured(samples));
            }
        }
    }

    /// A run of each set, in random order, without a start for it.
    fn run_of_each(&mut self, at: &Place<'_>, pairs: &mut Pairs) -> Result<Step, Halt<S::Error>> {
        let mut samples = [Sample::default(); 2];
        let first = self.order.below(2) as usize;
        for place in [first, 1 - first] {
            if place != first && self.look(at.stage, pairs.len(), at.estimate)? == Go::Over {
                return Ok(Step::Over);
            }
            if let Set::Refused(reason) = self.set(at.sets[place])? {
                return Ok(Step::Refused(reason));
            }
            samples[place] = self.subject.measure().map_err(Halt::Failed)?;
            if let Some(why) = self.subject.death() {
                return Ok(Step::Died(at.sets[place].to_vec(), why));
            }
        }
        pairs.push(samples[0], samples[1]);
        Ok(Step::Measured)
    }
}
