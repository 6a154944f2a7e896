//! The server on the memory node of its card.

use crate::cpus;
use crate::error::Unknown;
use crate::host::Host;
use crate::served::Served;
use crate::settings::status_field;
use crate::tuning::{About, Advice, Counter, Needs, Risk, Scope, Tuning};

/// Whether the server runs on the memory node of its card.
pub(super) struct Numa;

const ABOUT: About = About {
    name: "numa",
    reason: "each access to a packet on another memory node is a slow remote access",
    detail: "Set it where the server is started: numactl, or CPUAffinity= and NUMAPolicy= of its unit.",
    source: "admin-guide/mm/numa_memory_policy",
    scope: Scope::Process,
    risk: Risk::Low,
    lost: "",
    gain_percent: 5.5,
    needs: Needs::Card,
};

impl Tuning for Numa {
    fn about(&self) -> &About {
        &ABOUT
    }

    fn probe(&self, host: &Host, served: &Served) -> Result<String, Unknown> {
        let nodes = cpus::of_list(&host.text("/sys/devices/system/node/online")?).len();
        let node = card_node(host, served.card(host)?);
        Ok(format!(
            "{nodes} node{}, card on {}",
            if nodes == 1 { "" } else { "s" },
            node.map_or("any".to_owned(), |node| node.to_string())
        ))
    }

    fn advice(&self, host: &Host, served: &Served) -> Result<Advice, Unknown> {
        let nodes = cpus::of_list(&host.text("/sys/devices/system/node/online")?);
        let Some(node) = card_node(host, served.card(host)?).filter(|_| nodes.len() > 1) else {
            return Ok(Advice::Fine);
        };
        let near = cpus::of_list(&host.text(&format!("/sys/devices/system/node/node{node}/cpulist"))?);
        let allowed = cpus::of_list(&status_field(host, served.pid()?, "Cpus_allowed_list")?);
        Ok(match allowed.iter().all(|cpu| near.contains(cpu)) {
            true => Advice::Fine,
            false => Advice::ByHand(format!("start it with numactl --cpunodebind={node} --membind={node}")),
        })
    }

    fn effect(&self, host: &Host, _: &Served) -> Result<Counter, Unknown> {
        let table = host.text("/sys/devices/system/node/node0/numastat")?;
        let value =
            table.lines().find_map(|line| line.strip_prefix("other_node ")?.trim().parse().ok()).unwrap_or(0);
        Ok(Counter { name: "numastat other_node".to_owned(), value })
    }
}

/// The card's memory node; a card that belongs to none says -1.
fn card_node(host: &Host, device: &str) -> Option<u32> {
    host.number(&format!("/sys/class/net/{device}/device/numa_node")).ok()
}
