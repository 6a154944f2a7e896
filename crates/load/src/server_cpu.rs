//! The CPU time of a server on this machine: finds its processes, and reads what the kernel says they used.
//!
//! The sum comes from each process's own clock, exact to the nanosecond, so that even short runs can be compared. The
//! split into user and kernel time comes from `/proc/PID/stat`, in ticks of 10 ms.
//!
//! A server costs more than its processes: packets are also handled in interrupts, by `ksoftirqd`, and by the threads
//! of threaded NAPI, on whatever CPU RPS sends them to. So the machine's CPU time is read too (see
//! [`crate::machine`]).

use std::sync::Arc;
use std::time::Duration;

use flatout_lane::clock;
use flatout_lane::connect::Remote;
use flatout_owner::{Here, Stat, listeners};

use crate::disturbance::Lost;
use crate::kernel_work::{KernelWork, Work, WorkTimes};
use crate::machine::MachineCpu;
use crate::outcome::ServerCpu;
use crate::plan::Plan;

/// A server's processes.
#[derive(Debug)]
pub struct ServerProcesses {
    pids: Vec<u32>,
    work: Option<Arc<KernelWork>>,
}

/// Times so far.
#[derive(Debug, Clone)]
pub struct Used {
    pids: Vec<u32>,
    total: Duration,
    user_ticks: u64,
    kernel_ticks: u64,
    /// Of the whole machine, which takes long to read.
    beside: Option<OutsideTimes>,
}

#[derive(Debug, Clone)]
struct OutsideTimes {
    machine: Option<MachineCpu>,
    lost: Lost,
    work: Option<(Arc<KernelWork>, WorkTimes)>,
}

impl ServerProcesses {
    /// The processes with these ids; if none are given, those that listen on the remote's port on this machine.
    pub fn find(pids: &[u32], remote: &Remote) -> Option<ServerProcesses> {
        let pids = match (pids, remote) {
            ([], Remote::Tcp(address)) if address.ip().is_loopback() => listeners(&Here, address.port()),
            (pids, _) => pids.to_vec(),
        };
        (!pids.is_empty()).then_some(ServerProcesses { pids, work: None })
    }

    /// Those of a plan, with its clock of the kernel's work.
    pub(crate) fn of(plan: &Plan) -> Option<ServerProcesses> {
        let found = ServerProcesses::find(&plan.server_pids, &plan.remote);
        found.map(|found| found.with(plan.kernel_work.as_ref()))
    }

    /// The same, with a clock of the kernel's work.
    pub fn with(self, work: Option<&Arc<KernelWork>>) -> ServerProcesses {
        if let Some(work) = work {
            work.assign(&self.pids);
        }
        ServerProcesses { work: work.cloned(), ..self }
    }

    /// What its processes have used so far; `None` if none of them can be read.
    pub fn used(&self) -> Option<Used> {
        let work = self.work.as_ref().and_then(|work| Some((work.clone(), work.now(true)?)));
        self.used_beside(Some(OutsideTimes { machine: MachineCpu::now(), lost: Lost::now(&self.pids), work }))
    }

    /// The same without what takes long to read: the machine's time, and what disturbed.
    pub fn used_by_processes(&self) -> Option<Used> {
        self.used_beside(None)
    }

    /// What its processes have lost so far.
    pub(crate) fn lost(&self) -> Lost {
        Lost::now(&self.pids)
    }

    fn used_beside(&self, beside: Option<OutsideTimes>) -> Option<Used> {
        let mut used =
            Used { pids: Vec::new(), total: Duration::ZERO, user_ticks: 0, kernel_ticks: 0, beside };
        for &pid in &self.pids {
            if let Ok(stat) = Stat::read(&Here, pid)
                && let Ok(total) = clock::process_cpu(pid)
            {
                used.pids.push(pid);
                used.total += total;
                used.user_ticks += stat.user_ticks;
                used.kernel_ticks += stat.kernel_ticks;
            }
        }
        (!used.pids.is_empty()).then_some(used)
    }
}

impl Used {
    /// What was used since `before`; `None` if a process has exited.
    pub fn since(&self, before: &Used) -> Option<ServerCpu> {
        let total = self.total.saturating_sub(before.total);
        let user_ticks = self.user_ticks.saturating_sub(before.user_ticks);
        let ticks = user_ticks + self.kernel_ticks.saturating_sub(before.kernel_ticks);
        // Less than a tick cannot be split. Count it as kernel time, which is most of a server's time.
        let user = if ticks == 0 { Duration::ZERO } else { total.mul_f64(user_ticks as f64 / ticks as f64) };
        let beside = self.beside.as_ref().zip(before.beside.as_ref());
        let work = beside.and_then(|(now, before)| {
            let ((work, now), (_, before)) = (now.work.as_ref()?, before.work.as_ref()?);
            Some(work.between(before, now))
        });
        let in_generator = work.map_or(Duration::ZERO, |work| work.in_generator);
        let machine = beside.and_then(|(now, before)| now.machine?.since(&before.machine?));
        (self.pids == before.pids).then(|| ServerCpu {
            pids: self.pids.clone(),
            user,
            kernel: total.saturating_sub(user),
            // Reading all processes takes a while on a busy machine, and they continue to run. The total is a lower
            // bound.
            machine: machine.map(|machine| machine.max(total) + in_generator),
            softirqs: work.map(|work: Work| work.softirqs),
            kernel_threads: work.map(|work| work.threads),
            disturbance: beside.map(|(now, before)| now.lost.since(&before.lost)),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_listener_is_found_by_its_port() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let remote = Remote::Tcp(listener.local_addr().unwrap());
        let server = ServerProcesses::find(&[], &remote).unwrap();
        assert_eq!(server.pids, [std::process::id()]);
        let before = server.used().unwrap();
        let burnt = clock::thread_cpu();
        while clock::thread_cpu() - burnt < Duration::from_millis(3) {}
        let used = server.used().unwrap().since(&before).unwrap();
        assert!(
            (Duration::from_millis(3)..Duration::from_secs(1)).contains(&(used.user + used.kernel)),
            "{used:?}"
        );
        drop(listener);
        assert!(ServerProcesses::find(&[], &remote).is_none());
    }
}
