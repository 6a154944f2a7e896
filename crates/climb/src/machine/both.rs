//! Comparisons of two servers that are both alive.

use std::sync::atomic::Ordering;

use flatout_load::side_by_side::Batch;
use flatout_load::{self as load, Latency, Remote};
use flatout_trial::{Both, Sample, Set, Stage, samples};

use super::Machine;
use crate::generator::Run;
use crate::lab::Lab;
use crate::plan::{Error, Generator, Rung};
use crate::server::{Start, is_here};
use crate::side_by_side::{Pair, Places};

impl Machine<'_, '_> {
    /// A batch of blocks on both, if both can be alive. Otherwise their runs alternate: for the rest of the comparison, or of
    /// the climb if two unchanged servers cannot be started here.
    pub(super) fn side_by_side(&mut self, one: &[bool], other: &[bool]) -> Result<Both, Error> {
        let Some(starts) = self.starts_of_both(one, other) else { return Ok(Both::Alternate) };
        let Generator::Own(plan) = &self.load.generator else { return Ok(Both::Alternate) };
        let plan = load::Plan { kernel_work: self.load.kernel_work.clone().ok(), ..(**plan).clone() };
        // They change places, so that neither always starts first or has the same port.
        let is_swapped = self.starts_count.is_multiple_of(2);
        let starts = if is_swapped { [starts[1].clone(), starts[0].clone()] } else { starts };
        if !self.pair.as_ref().is_some_and(|pair| pair.is_of(&starts)) {
            // What is set on the machine then is in effect for both servers.
            if self.changes.change_to(one, &self.served.environment())? != Set::Done {
                return Ok(Both::Alternate);
            }
            self.served.end();
            self.pair = None;
            let changes = match self.copies.place("changes") {
                Ok(changes) => changes,
                Err(_) => return Ok(Both::Alternate),
            };
            let places = Places {
                changes,
                server: &self.plan.server,
                target: self.target.clone(),
                url: self.load.url.clone(),
                stop: self.load.stop,
                is_lab: self.load.lab.is_some(),
                is_port_in_command: self.edits(one).is_empty() && self.edits(other).is_empty(),
            };
            match Pair::start(&places, starts, &mut self.own_folders) {
                Ok(pair) => self.pair = Some(pair),
                Err(_) if self.is_stopped() => return Ok(Both::Samples([Sample::default(); 2])),
                Err(_) => {
                    // If the change is to blame, its own start reports that, and other changes are measured.
                    self.is_one_at_a_time = true;
                    self.are_all_one_at_a_time |= one == other;
                    return Ok(Both::Alternate);
                }
            }
        }
        self.batch(&plan, one, other, is_swapped)
    }

    fn batch(
        &mut self,
        plan: &load::Plan,
        one: &[bool],
        other: &[bool],
        is_swapped: bool,
    ) -> Result<Both, Error> {
        let Some(pair) = &mut self.pair else { return Ok(Both::Alternate) };
        let client = self.load.lab.as_ref().map(Lab::client);
        let mut batch = pair.measure(plan, client, self.load.seed_of_batch(plan), self.load.stop)?;
        if is_swapped {
            batch.pairs.iter_mut().for_each(|pair| pair.reverse());
            batch.latencies.reverse();
            batch.disturbances.reverse();
        }
        let is_stopped = self.load.stop.load(Ordering::Relaxed);
        if !is_stopped && let Some((place, why)) = pair.death() {
            self.pair = None;
            return Ok(Both::Died(if is_swapped { 1 - place } else { place }, why));
        }
        let samples = samples_of(&batch);
        // Alone it responds without errors, or the climb would have ended: it needs what is not in its new network.
        if !is_stopped && !other.contains(&true) && samples[1].errors * 2 > samples[1].requests {
            self.pair = None;
            (self.is_one_at_a_time, self.are_all_one_at_a_time) = (true, true);
            return Ok(Both::Alternate);
        }
        self.gather_both([one, other], samples, batch);
        Ok(Both::Samples(samples))
    }

    /// Adds a batch to the figures of both sets.
    pub(super) fn gather_both(&mut self, sets: [&[bool]; 2], samples: [Sample; 2], batch: Batch) {
        for ((on, sample), latency) in sets.into_iter().zip(samples).zip(batch.latencies) {
            let run = Run {
                sample,
                p50_ns: percentile(&latency, 50.0),
                latency: Some(latency),
                generator_share: Some(batch.generator_share),
            };
            self.gather(on, &run);
        }
    }

    /// Whether two sets are compared in this stage: others have runs of their own kind.
    pub(super) fn is_comparing(&self) -> bool {
        matches!(
            self.stage,
            Some(
                Stage::Noise
                    | Stage::NoiseOfServers
                    | Stage::Forward(_)
                    | Stage::SecondLook(_)
                    | Stage::LeaveOneOut(_)
                    | Stage::Total
            )
        )
    }

    /// Whether a kept change of the machine is in effect for both servers: in the lab they are behind one device.
    fn is_for_both(&self, rung: &Rung) -> bool {
        let Remote::Tcp(address) = &self.target.remote else { return false };
        self.load.lab.is_some() && rung.is_for_all_servers(address.port())
    }

    /// How to start both servers; `None` if they cannot both be alive.
    fn starts_of_both(&self, one: &[bool], other: &[bool]) -> Option<[Start; 2]> {
        let is_here = self.load.lab.is_some()
            || matches!(&self.target.remote, Remote::Tcp(address) if address.ip().is_loopback())
                && is_here(&self.target.remote);
        let is_plain = matches!(&self.load.generator, Generator::Own(plan) if plan.subscribe.is_none());
        let is_compared = self.is_comparing() && self.stage != Some(Stage::Noise);
        let is_one_at_a_time = self.is_one_at_a_time || self.are_all_one_at_a_time;
        if !is_here || !is_plain || !is_compared || is_one_at_a_time {
            return None;
        }
        let mut rungs = self.plan.rungs.iter().enumerate().filter(|(at, _)| one[*at] || other[*at]);
        if !rungs.all(|(at, rung)| rung.is_in_the_server() || one[at] == other[at] && self.is_for_both(rung))
        {
            return None;
        }
        let starts = [self.start(one)?, self.start(other)?];
        (self.stage == Some(Stage::NoiseOfServers) || starts[0] != starts[1]).then_some(starts)
    }
}

/// One run of each from its blocks.
pub(super) fn samples_of(batch: &Batch) -> [Sample; 2] {
    let p99_ns = batch.latencies.each_ref().map(|latency| percentile(latency, 99.0));
    let mut samples = samples(&batch.pairs, p99_ns);
    samples.iter_mut().zip(batch.disturbances).for_each(|(sample, lost)| sample.disturbance = lost);
    samples
}

fn percentile(latency: &Latency, percent: f64) -> Option<f64> {
    (latency.count() > 0).then(|| latency.percentile(percent) as f64)
}
