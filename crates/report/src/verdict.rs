//! The verdict on a measurement: who was the limit, and why.

use std::time::Duration;

use flatout_load::{CLIENT_CPU_SHARE_MAX, Outcome, Pacing, ThreadUse};

use crate::text::several;
use crate::unit::count;
use crate::{Measured, search};

/// Above this share of all CPUs' time, the machine has nothing left.
const MACHINE_SHARE_MAX: f64 = 0.95;

/// A server whose CPU time is this close to a whole number of CPUs has busy workers.
const WHOLE_CPUS: f64 = 0.08;

/// An open loop that got this share of its rate was served.
const RATE_SHARE_MIN: f64 = 0.98;

/// Other programs that use more CPUs than this are named.
const OTHERS_CPUS_MIN: f64 = 0.2;

/// Who or what kept the figures from being higher.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limit {
    /// `rate`, `generator`, `server`, `machine`, `connections`, `unknown`.
    pub who: &'static str,
    /// Why, in a sentence that begins with who it was.
    pub reason: String,
}

/// What limited a measurement.
pub fn limit(measured: &Measured) -> Limit {
    let outcome = &measured.outcome;
    let found = |who, reason: String| Limit { who, reason };
    if outcome.requests == 0 {
        return found("unknown", "unknown: no response arrived".to_owned());
    }
    if measured.plan.subscribe.is_some() {
        let reason = "the publishers: subscribers get what is published, and this client sends no requests";
        return found("rate", reason.to_owned());
    }
    if let Some(reason) = search::limit_reason(measured).or_else(|| of_rate(measured)) {
        return found("rate", reason);
    }
    let busiest = outcome.threads.iter().map(ThreadUse::share).fold(0.0, f64::max);
    if busiest > CLIENT_CPU_SHARE_MAX {
        let reason = format!(
            "the load generator: one of its threads used its CPU {:.0} % of the time; the server may be faster (--threads)",
            100.0 * busiest
        );
        return found("generator", reason);
    }
    match cpus(outcome) {
        Some(used) => of_cpus(measured, &used),
        None => {
            let reason = format!(
                "the server or the network: this client used {:.0} % of a CPU, and the server's use is not known here",
                100.0 * busiest
            );
            found("server", reason)
        }
    }
}

/// The rate that was asked for, if all of it was served.
fn of_rate(measured: &Measured) -> Option<String> {
    let outcome = &measured.outcome;
    let is_served = outcome.unsent == 0;
    match measured.plan.pacing {
        Pacing::Closed => None,
        Pacing::Staged { .. } => {
            is_served.then(|| "the stages of the plan: all their requests were sent".to_owned())
        }
        Pacing::Open { per_s, .. } => {
            let is_reached = outcome.requests_per_s() >= RATE_SHARE_MIN * per_s;
            (is_served && is_reached).then(|| {
                format!("the rate that was asked for (-R {}), and it was met", count(per_s.round() as u64))
            })
        }
    }
}

/// CPUs used on this machine.
struct UsedCpus {
    server: f64,
    client: f64,
    /// Everything but the server and this client, the kernel's threads included; `None` if it is not known.
    others: Option<f64>,
}

fn cpus(outcome: &Outcome) -> Option<UsedCpus> {
    let used = outcome.server_cpu.as_ref()?;
    let seconds = outcome.elapsed.as_secs_f64().max(1e-9);
    let client: Duration = outcome.threads.iter().map(|thread| thread.cpu).sum();
    let server = (used.user + used.kernel).as_secs_f64() / seconds;
    let others = used.machine.map(|machine| (machine.as_secs_f64() / seconds - server).max(0.0));
    Some(UsedCpus { server, client: client.as_secs_f64() / seconds, others })
}

fn of_cpus(measured: &Measured, used: &UsedCpus) -> Limit {
    let UsedCpus { server, client, others } = used;
    let all = measured.machine.cpus.max(1) as f64;
    let share = (server + client + others.unwrap_or(0.0)) / all;
    let several_cpus = several(measured.machine.cpus.max(1), "CPU");
    if share >= MACHINE_SHARE_MAX {
        let others = match others {
            Some(others) if *others >= OTHERS_CPUS_MIN => {
                format!(", other programs and the kernel {others:.1}")
            }
            _ => String::new(),
        };
        let reason = format!(
            "this machine: its {several_cpus} were {:.0} % busy (the server used {server:.1}, this client {client:.1}{others})",
            100.0 * share.min(1.0)
        );
        return Limit { who: "machine", reason };
    }
    let whole = server.round();
    if whole >= 1.0 && (server - whole).abs() <= WHOLE_CPUS {
        let workers = if whole > 1.0 {
            format!("{whole} of its threads were")
        } else {
            "one of its threads was".to_owned()
        };
        let reason = format!(
            "the server: it used {server:.2} CPUs, as if {workers} always busy; this machine has {several_cpus}"
        );
        return Limit { who: "server", reason };
    }
    let reason = format!(
        "{}: each waited for its response, while the server used {server:.2} CPUs and this client {client:.2} of {several_cpus}; \
         more may be served (-c)",
        several(measured.plan.connections, "connection")
    );
    Limit { who: "connections", reason }
}

#[cfg(test)]
mod tests {
    use flatout_load::ServerCpu;

    use super::*;
    use crate::require::tests::measured;

    #[test]
    fn the_limit_is_named_with_its_reason() {
        let second = Duration::from_secs(1);
        let with = |client: f64, server: f64, machine: Option<f64>| {
            let mut measured = measured();
            measured.machine.cpus = 4;
            measured.outcome.elapsed = second;
            measured.outcome.threads = vec![ThreadUse { cpu: second.mul_f64(client), elapsed: second }];
            let machine = machine.map(|machine| second.mul_f64(machine));
            let (user, kernel) = (second.mul_f64(server / 2.0), second.mul_f64(server / 2.0));
            measured.outcome.server_cpu = Some(ServerCpu {
                pids: vec![1],
                user,
                kernel,
                machine,
                softirqs: None,
                kernel_threads: None,
                disturbance: None,
            });
            measured
        };
        for (client, server, machine, expected) in [
            (0.95, 1.0, Some(1.1), "the load generator: one of its threads used its CPU 95 %"),
            (0.5, 1.0, Some(1.1), "the server: it used 1.00 CPUs, as if one of its threads was always busy"),
            (0.5, 1.98, None, "the server: it used 1.98 CPUs, as if 2 of its threads were"),
            (
                0.8,
                1.0,
                Some(3.1),
                "this machine: its 4 CPUs were 98 % busy (the server used 1.0, this client 0.8, other programs and the kernel 2.1)",
            ),
            (0.3, 0.4, Some(0.5), "1 connection: each waited for its response, while the server used 0.40"),
        ] {
            let reason = limit(&with(client, server, machine)).reason;
            assert!(reason.starts_with(expected), "{reason}");
        }
        let mut remote = with(0.15, 0.0, None);
        remote.outcome.server_cpu = None;
        assert!(limit(&remote).reason.contains("this client used 15 % of a CPU"));
        remote.outcome.requests = 0;
        assert_eq!(limit(&remote).who, "unknown");
    }
}
