//! A failing run without what its failure does not need.

use std::fmt;

use crate::run::{Report, run_reduced};
use crate::scene::Scene;

/// What is left of a run. Every actor draws from its own generator, so that the others do the same without it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reduction {
    /// The clients that do something; `None`: all of them.
    pub clients: Option<Vec<usize>>,
    /// Connections of a client, at most.
    pub connections: Option<usize>,
    /// Requests of a connection, at most.
    pub requests: Option<usize>,
    /// Workers, at most.
    pub workers: Option<usize>,
    /// Configurations, at most: one less than reloads.
    pub configurations: Option<usize>,
    /// Nothing is purged.
    pub has_no_purges: bool,
    /// Nobody subscribes to channels.
    pub has_no_subscribers: bool,
    /// No server takes over from another one.
    pub has_no_upgrades: bool,
    /// No slice of a turn ends early.
    pub has_no_slices: bool,
}

impl Reduction {
    pub(crate) fn apply(&self, scene: &mut Scene) {
        let limit = |value: usize, most: Option<usize>| most.map_or(value, |most| value.min(most.max(1)));
        scene.workers = limit(scene.workers, self.workers);
        scene.configurations.truncate(limit(scene.configurations.len(), self.configurations));
        if scene.configurations.len() == 1 {
            scene.reloads = 0;
        }
        if self.has_no_purges {
            scene.purges = 0;
        }
        if self.has_no_upgrades {
            scene.upgrades = 0;
        }
        if self.has_no_slices {
            scene.slice_looks = None;
        }
    }

    /// Smaller ones, the smallest first.
    fn smaller(&self, clients: usize) -> Vec<Reduction> {
        let all: Vec<usize> = self.clients.clone().unwrap_or_else(|| (0..clients).collect());
        let with = |clients: Vec<usize>| Reduction { clients: Some(clients), ..self.clone() };
        let mut found = Vec::new();
        if all.len() > 2 {
            let (first, second) = all.split_at(all.len() / 2);
            found.extend([with(first.to_vec()), with(second.to_vec())]);
        }
        if all.len() > 1 {
            found.extend((0..all.len()).map(|at| {
                let mut others = all.clone();
                others.remove(at);
                with(others)
            }));
        }
        let most = |of: Option<usize>| (1..of.unwrap_or(6)).rev();
        found.extend(
            most(self.configurations).take(1).map(|_| Reduction { configurations: Some(1), ..self.clone() }),
        );
        found.extend(most(self.workers).take(1).map(|_| Reduction { workers: Some(1), ..self.clone() }));
        found.extend(
            (!self.has_no_subscribers).then(|| Reduction { has_no_subscribers: true, ..self.clone() }),
        );
        found.extend((!self.has_no_purges).then(|| Reduction { has_no_purges: true, ..self.clone() }));
        found.extend((!self.has_no_upgrades).then(|| Reduction { has_no_upgrades: true, ..self.clone() }));
        found.extend((!self.has_no_slices).then(|| Reduction { has_no_slices: true, ..self.clone() }));
        found
            .extend(most(self.connections).map(|most| Reduction { connections: Some(most), ..self.clone() }));
        found.extend(most(self.requests).map(|most| Reduction { requests: Some(most), ..self.clone() }));
        found
    }
}

/// The flags that repeat it.
impl fmt::Display for Reduction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(clients) = &self.clients {
            let clients: Vec<String> = clients.iter().map(usize::to_string).collect();
            write!(f, " --clients {}", clients.join(","))?;
        }
        let numbers = [
            ("connections", self.connections),
            ("requests", self.requests),
            ("workers", self.workers),
            ("configurations", self.configurations),
        ];
        for (name, value) in numbers {
            if let Some(value) = value {
                write!(f, " --{name} {value}")?;
            }
        }
        f.write_str(if self.has_no_purges { " --no-purges" } else { "" })?;
        f.write_str(if self.has_no_subscribers { " --no-subscribers" } else { "" })?;
        f.write_str(if self.has_no_upgrades { " --no-upgrades" } else { "" })?;
        f.write_str(if self.has_no_slices { " --no-slices" } else { "" })
    }
}

/// The smallest run of a seed that was found to fail, and its report. Any failure counts: a smaller run may break another rule first,
/// for the same reason.
pub fn reduce(seed: u64, reduction: Reduction, report: Report) -> (Reduction, Report) {
    let (mut best, mut report) = (reduction, report);
    // One that hangs costs a thread each time.
    while !report.hangs {
        let next = best.smaller(report.clients).into_iter().find_map(|smaller| {
            let report = run_reduced(seed, &smaller);
            report.failure.is_some().then_some((smaller, report))
        });
        match next {
            Some(next) => (best, report) = next,
            None => break,
        }
    }
    (best, report)
}
