//! The orders of a climb: puts rungs in place one after the other, for their Shapley values.

use super::{Climber, Halt};
use crate::found::Found;
use crate::random::Random;
use crate::shapley::{balanced, share};
use crate::subject::{Set, Stage, Subject};

impl<S: Subject> Climber<'_, S> {
    /// Applies rungs in balanced orders and undoes them again, one after the other; averages what each adds.
    pub(super) fn orders(&mut self) -> Result<(), Halt<S::Error>> {
        let is_harmless = |found: &Found| found.forward.as_ref().is_some_and(|e| e.errors_rose.is_none());
        let players: Vec<usize> = (0..self.plan.rungs)
            .filter(|&rung| is_harmless(&self.climbed.rungs[rung]) && !self.subject.is_burden(rung))
            .collect();
        let mut random = Random::new(self.plan.seed);
        let mut added: Vec<Vec<f64>> = vec![Vec::new(); self.plan.rungs];
        let mut over = Ok(());
        for (number, players) in balanced(&players, self.plan.orders, &mut random).iter().enumerate() {
            match self.order(number, players) {
                Ok(Some(of_order)) => {
                    players.iter().zip(of_order).for_each(|(&rung, ratio)| added[rung].push(ratio.ln()));
                }
                // One order that cannot be measured is no reason to drop the others.
                Ok(None) => {}
                Err(halt @ Halt::Over) => {
                    over = Err(halt);
                    break;
                }
                Err(halt) => return Err(halt),
            }
        }
        for (found, added) in self.climbed.rungs.iter_mut().zip(&added) {
            found.shapley = share(added, &mut random);
        }
        over
    }

    /// The ratio that each rung of one order adds. Up and down again, so that a drift of the machine cancels out.
    fn order(&mut self, number: usize, players: &[usize]) -> Result<Option<Vec<f64>>, Halt<S::Error>> {
        let mut on = vec![false; self.plan.rungs];
        let mut sets = vec![on.clone()];
        for &rung in players {
            on[rung] = true;
            sets.push(on.clone());
        }
        self.subject.compare(Stage::Order(number), &sets[0], &on);
        let mut figures = vec![1.0; sets.len()];
        let there_and_back = (0..sets.len()).chain((0..sets.len()).rev());
        for at in there_and_back {
            self.look(Stage::Order(number), 0, None)?;
            if self.set(&sets[at])? != Set::Done {
                return Ok(None);
            }
            let sample = self.subject.measure().map_err(Halt::Failed)?;
            if self.subject.death().is_some() {
                return Ok(None);
            }
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
}
