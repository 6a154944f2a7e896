//! The number of workers, compared with the number of CPUs.

use crate::card;
use crate::counters::netstat;
use crate::error::Unknown;
use crate::host::Host;
use crate::served::Served;
use crate::server::Processes;
use crate::settings::status_field;
use crate::tuning::{About, Advice, Counter, Needs, Risk, Scope, Tuning};

/// The number of workers.
pub(super) struct Workers;

const ABOUT: About = About {
    name: "workers",
    reason: "a worker for each CPU, hyper-threads too",
    detail: "All hardware threads gained 25 % as the first step and 40 % as the last one. Set it where the server is \
             started: `flatout serve --workers N`, `worker_processes auto` of nginx.",
    source: "Richards 2021, step 1: +55 % with compiler flags and recv/send",
    scope: Scope::Process,
    risk: Risk::Low,
    lost: "",
    gain_percent: 55.0,
    needs: Needs::AnyPath,
};

impl Tuning for Workers {
    fn about(&self) -> &About {
        &ABOUT
    }

    fn probe(&self, host: &Host, served: &Served) -> Result<String, Unknown> {
        let (workers, cpus) = (Workers::count(host, served)?, card::cpus(host)?.len());
        Ok(format!("{workers} for {cpus} CPUs"))
    }

    fn advice(&self, host: &Host, served: &Served) -> Result<Advice, Unknown> {
        let (workers, cpus) = (Workers::count(host, served)?, card::cpus(host)?.len());
        let threads = served.threads(host)?.len();
        // Any thread may be a worker if threads are not pinned: with enough of them nothing is suggested.
        let is_short =
            workers < cpus && (workers > 1 || Workers::pinned(host, served)? > 0 || threads < cpus);
        Ok(match is_short {
            true => Advice::ByHand(Processes::of(host, served).software.workers(cpus)),
            false => Advice::Fine,
        })
    }

    fn effect(&self, host: &Host, _: &Served) -> Result<Counter, Unknown> {
        netstat(host, "PassiveOpens")
    }
}

impl Workers {
    /// Sockets that share the port, processes that share a socket, or pinned threads.
    fn count(host: &Host, served: &Served) -> Result<usize, Unknown> {
        // Of nginx's eight processes one is the master.
        let processes = Processes::of(host, served).workers.len().min(served.pids()?.len());
        Ok(processes.max(served.listeners_count()).max(Workers::pinned(host, served)?))
    }

    fn pinned(host: &Host, served: &Served) -> Result<usize, Unknown> {
        let threads = served.threads(host)?;
        let has_its_own = |thread: &&u32| {
            let cpus = status_field(host, **thread, "Cpus_allowed_list");
            cpus.is_ok_and(|cpus| !cpus.is_empty() && !cpus.contains([',', '-']))
        };
        Ok(threads.iter().filter(has_its_own).count())
    }
}
