//! Comparisons of changes that are switched on and off between short blocks of load, while the server keeps running.

use std::time::{Duration, Instant};

use flatout_load::side_by_side::Batch;
use flatout_load::{self as load, Latency};
use flatout_trial::{Both, Disturbance, Random, Sample, Set, Subject};

use super::Machine;
use super::both::samples_of;
use crate::generator::Block;
use crate::plan::{Error, Generator};

/// Length of a block: the machine's CPU time is known in steps of 10 ms. Its connections are new, because some settings only
/// affect new ones.
const BLOCK: Duration = Duration::from_millis(100);

/// Changes that take longer to apply or to undo, in the mean of both, are not switched: most of the time would go to that.
const SWITCH_TIME_MAX: Duration = BLOCK;

/// The end of a batch before its last block.
enum Halted {
    /// A set cannot be applied; its run in turn reports why.
    Refused,
    Interrupted,
    /// The server died with this set, and why.
    Died(usize, String),
    Failed(Error),
}

impl From<Error> for Halted {
    fn from(error: Error) -> Halted {
        Halted::Failed(error)
    }
}

impl Machine<'_, '_> {
    /// A batch of blocks with both sets, if the running server can have both and they can be switched quickly. Otherwise
    /// whole runs alternate.
    pub(super) fn switched(&mut self, one: &[bool], other: &[bool]) -> Result<Both, Error> {
        let sets = [one, other];
        let Generator::Own(plan) = &self.load.generator else { return Ok(Both::Alternate) };
        let pairs = (plan.duration.as_nanos() / BLOCK.as_nanos()) as usize;
        let is_possible = pairs >= 2 && plan.subscribe.is_none() && !self.is_starting && self.is_comparing();
        let plan = plan.clone();
        if !is_possible || !self.is_switched_quickly(sets)? {
            return Ok(Both::Alternate);
        }
        let batch = match self.pairs_of_blocks(&plan, sets, pairs) {
            Ok(pairs) => batch_of(pairs),
            Err(Halted::Refused) => return Ok(Both::Alternate),
            Err(Halted::Interrupted) => return Ok(Both::Switched([Sample::default(); 2])),
            Err(Halted::Died(place, why)) => return Ok(Both::Died(place, why)),
            Err(Halted::Failed(error)) => return Err(error),
        };
        let samples = samples_of(&batch);
        for (_, sample) in sets.into_iter().zip(&samples).filter(|(set, _)| !set.contains(&true)) {
            self.check(sample)?;
        }
        self.gather_both(sets, samples, batch);
        Ok(Both::Switched(samples))
    }

    /// Whether a set can be applied within [`SWITCH_TIME_MAX`] while the other one is in effect: tried once in each comparison.
    fn is_switched_quickly(&mut self, sets: [&[bool]; 2]) -> Result<bool, Error> {
        if let Some(is_quick) = self.is_switched {
            return Ok(is_quick);
        }
        // This may start the server.
        let mut is_done = self.set(sets[0])? == Set::Done;
        let begun = Instant::now();
        for set in [sets[1], sets[0]] {
            is_done = is_done && self.set(set)? == Set::Done;
        }
        let is_quick = is_done && begun.elapsed() <= 2 * SWITCH_TIME_MAX;
        self.is_switched = Some(is_quick);
        Ok(is_quick)
    }

    /// Blocks with both sets, in random order within pairs, which have the same times of arrival.
    fn pairs_of_blocks(
        &mut self,
        plan: &load::Plan,
        sets: [&[bool]; 2],
        count: usize,
    ) -> Result<Vec<[Block; 2]>, Halted> {
        let seed = self.load.seed_of_batch(plan);
        let mut random = Random::new(seed);
        let mut pairs = Vec::with_capacity(count);
        for at in 0..count {
            let plan = load::Plan { seed: seed.wrapping_add(at as u64), ..plan.clone() };
            let is_reversed = random.below(2) == 1;
            let first = usize::from(is_reversed);
            let block = self.block(&plan, sets, first)?;
            let mut pair = [block, self.block(&plan, sets, 1 - first)?];
            if is_reversed {
                pair.reverse();
            }
            pairs.push(pair);
        }
        Ok(pairs)
    }

    fn block(&mut self, plan: &load::Plan, sets: [&[bool]; 2], place: usize) -> Result<Block, Halted> {
        if self.set(sets[place])? != Set::Done {
            return Err(Halted::Refused);
        }
        let block = self.load.block(plan, BLOCK, self.served.processes());
        match block.and_then(|block| self.served.look_after().map(|()| block)) {
            Ok(Some(block)) => Ok(block),
            Ok(None) => Err(Halted::Interrupted),
            Err(error) => Err(Halted::Died(place, self.death_by_changes(error)?)),
        }
    }
}

fn batch_of(blocks: Vec<[Block; 2]>) -> Batch {
    let count = blocks.len().max(1) as f64;
    let mut latencies = [Latency::new(), Latency::new()];
    for pair in &blocks {
        latencies.iter_mut().zip(pair).for_each(|(all, block)| all.merge(&block.latency));
    }
    Batch {
        pairs: blocks.iter().map(|pair| pair.each_ref().map(|block| block.turn)).collect(),
        latencies,
        generator_share: blocks.iter().flatten().map(|block| block.generator_share).sum::<f64>()
            / (2.0 * count),
        warmup: Vec::new(),
        disturbances: [0, 1].map(|side| Disturbance::mean(blocks.iter().map(|pair| pair[side].disturbance))),
    }
}
