//! Each worker process on its own CPU.

use crate::card;
use crate::change::Change;
use crate::error::Unknown;
use crate::host::Host;
use crate::served::Served;
use crate::settings::{Affinity, Process, status_field};
use crate::tuning::{About, Advice, Counter, Needs, Risk, Scope, Tuning};

/// The CPUs that the workers may run on.
pub(super) struct Pinning;

const ABOUT: About = About {
    name: "pinning",
    reason: "a worker that stays on one CPU keeps its caches warm and its interrupts close",
    detail: "For servers of several processes, such as nginx. Servers with threads pin them themselves; `flatout \
             serve` does if it has no more workers than CPUs.",
    source: "Richards 2021, step 5; libreactor",
    scope: Scope::Process,
    risk: Risk::Medium,
    lost: "workers cannot move away from a CPU that something else keeps busy",
    gain_percent: 6.0,
    needs: Needs::AnyPath,
};

impl Tuning for Pinning {
    fn about(&self) -> &About {
        &ABOUT
    }

    fn probe(&self, host: &Host, served: &Served) -> Result<String, Unknown> {
        let workers = Pinning::workers(host, served)?;
        let cpus = workers.iter().map(|&worker| status_field(host, worker, "Cpus_allowed_list"));
        Ok(cpus.collect::<Result<Vec<_>, _>>()?.join(" "))
    }

    fn advice(&self, host: &Host, served: &Served) -> Result<Advice, Unknown> {
        let (workers, cpus) = (Pinning::workers(host, served)?, card::cpus(host)?);
        if workers.len() > cpus.len() || cpus.len() == 1 {
            return Ok(Advice::Fine);
        }
        let mut changes = Vec::new();
        for (&worker, cpu) in workers.iter().zip(&cpus) {
            if status_field(host, worker, "Cpus_allowed_list")? != cpu.to_string() {
                let thread = Process::now(host, worker)?;
                changes.push(Change::text(Affinity { thread }, cpu));
            }
        }
        Ok(Advice::change("each worker on a CPU of its own", changes))
    }

    fn effect(&self, host: &Host, served: &Served) -> Result<Counter, Unknown> {
        let worker = Pinning::workers(host, served)?[0];
        let switches = status_field(host, worker, "nonvoluntary_ctxt_switches")?;
        Ok(Counter { name: "nonvoluntary_ctxt_switches".to_owned(), value: switches.parse().unwrap_or(0) })
    }
}

impl Pinning {
    /// The processes that serve: those that hold the socket, except parents of others that do. Never empty.
    fn workers(host: &Host, served: &Served) -> Result<Vec<u32>, Unknown> {
        let pids = served.pids()?;
        let parent = |pid: u32| status_field(host, pid, "PPid").ok()?.parse::<u32>().ok();
        let parents: Vec<u32> = pids.iter().filter_map(|&pid| parent(pid)).collect();
        let workers: Vec<u32> = pids.iter().copied().filter(|pid| !parents.contains(pid)).collect();
        match workers.len() {
            0 | 1 => Err(Unknown("the server is one process: it has to pin its threads itself".to_owned())),
            _ => Ok(workers),
        }
    }
}
