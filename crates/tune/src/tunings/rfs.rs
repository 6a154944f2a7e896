//! Receive flow steering: RPS to the CPU where the flow is read.

use crate::card;
use crate::change::Change;
use crate::counters::softnet;
use crate::error::Unknown;
use crate::host::Host;
use crate::served::Served;
use crate::settings::Setting;
use crate::tuning::{About, Advice, Counter, Needs, Risk, Scope, Tuning};

/// The tables of the CPUs on which flows are read.
pub(super) struct Rfs;

const ABOUT: About = About {
    name: "rfs",
    reason: "RPS sends packets to the CPU that reads the connection",
    detail: "It matters only where RPS is on, which is with fewer receive queues than CPUs.",
    source: "networking/scaling",
    scope: Scope::Host,
    risk: Risk::Low,
    lost: "",
    gain_percent: 4.0,
    needs: Needs::Card,
};

impl Tuning for Rfs {
    fn about(&self) -> &About {
        &ABOUT
    }

    fn probe(&self, host: &Host, served: &Served) -> Result<String, Unknown> {
        let queues = card::queues(host, served.card(host)?, "rx")?;
        let flows = queues.iter().map(|queue| host.text(&format!("{queue}/rps_flow_cnt")));
        let flows = flows.collect::<Result<Vec<_>, _>>()?.join(" ");
        Ok(format!("{} flows, by queue {flows}", host.number::<u64>(ENTRIES)?))
    }

    fn advice(&self, host: &Host, served: &Served) -> Result<Advice, Unknown> {
        let queues = card::queues(host, served.card(host)?, "rx")?;
        if queues.len() >= card::cpus(host)?.len() {
            return Ok(Advice::Fine);
        }
        Ok(Advice::change(format!("remember the CPU of {FLOWS} flows"), flow_tables(host, &queues)?))
    }

    fn effect(&self, host: &Host, _: &Served) -> Result<Counter, Unknown> {
        softnet(host, 9, "received_rps")
    }
}

/// Changes that make the tables large enough: the host's, and each receive queue's share.
pub(super) fn flow_tables(host: &Host, queues: &[String]) -> Result<Vec<Change>, Unknown> {
    let mut wanted = vec![(ENTRIES.to_owned(), FLOWS)];
    wanted.extend(queues.iter().map(|queue| (format!("{queue}/rps_flow_cnt"), FLOWS / queues.len() as u64)));
    let mut changes = Vec::new();
    for (path, flows) in wanted {
        if host.number::<u64>(&path)? < flows {
            changes.push(Change::text(Setting::file(path), flows));
        }
    }
    Ok(changes)
}

/// Flows in the tables: what the kernel's documentation recommends for a busy server.
const FLOWS: u64 = 32_768;

const ENTRIES: &str = "/proc/sys/net/core/rps_sock_flow_entries";
