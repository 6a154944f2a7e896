//! All tunings: one file each, and one each for the sysctls, the offloads and the facts, which are tables.

mod arfs;
mod audit;
mod busy_poll;
mod channels;
mod clocksource;
mod coalescing;
mod congestion;
mod conntrack;
mod conntrack_hash;
mod copied;
mod cpu_quota;
mod cstates;
mod default_qdisc;
mod defer_interrupts;
mod descriptors;
mod drops;
mod facts;
mod firewall;
mod governor;
mod gro;
mod hardware;
mod huge_pages;
mod irq_affinity;
mod irq_suspension;
mod irqbalance;
mod kernel_log;
mod locality;
mod mitigations;
mod numa;
mod offloads;
mod pinning;
mod qdisc;
mod rfs;
mod rings;
mod rps;
mod rss;
mod seccomp;
mod shares;
mod stack;
mod static_moderation;
mod swap;
mod sysctls;
mod taps;
mod tcp_mem;
mod threaded_napi;
mod workers;
mod xps;

#[cfg(test)]
mod burdens;
#[cfg(test)]
mod tests;

use std::sync::LazyLock;

use crate::tuning::Tuning;

pub use copied::without_effect;
pub use taps::{Holder, NAME as TAPS, holders};

const OF_THEIR_OWN: &[&dyn Tuning] = &[
    &workers::Workers,
    &pinning::Pinning,
    &locality::Locality,
    &mitigations::Mitigations,
    &audit::Audit,
    &seccomp::Seccomp,
    &firewall::Firewall,
    &conntrack::Conntrack,
    &conntrack_hash::ConntrackHash,
    &taps::Taps,
    &irq_affinity::IrqAffinity,
    &irqbalance::Irqbalance,
    &xps::Xps,
    &rps::Rps,
    &rfs::Rfs,
    &arfs::Arfs,
    &rss::Rss,
    &channels::Channels,
    &rings::Rings,
    &coalescing::Coalescing,
    &static_moderation::StaticModeration,
    &gro::Gro,
    &busy_poll::BusyPoll,
    &irq_suspension::IrqSuspension,
    &defer_interrupts::DeferInterrupts,
    &threaded_napi::ThreadedNapi,
    &qdisc::QdiscTuning,
    &default_qdisc::DefaultQdisc,
    &congestion::Congestion,
    &tcp_mem::TcpMem,
    &descriptors::Descriptors,
    &governor::Governor,
    &cstates::CStates,
    &huge_pages::HugePages,
    &huge_pages::Defrag,
    &numa::Numa,
    &clocksource::Clocksource,
    &swap::Swap,
    &cpu_quota::CpuQuota,
];

/// Every tuning, the largest expected gain first.
pub static TUNINGS: LazyLock<Vec<&'static dyn Tuning>> = LazyLock::new(|| {
    let sysctls = sysctls::SYSCTLS.iter().chain(copied::COPIED).map(|sysctl| sysctl as &dyn Tuning);
    let facts = [
        facts::FACTS,
        hardware::HARDWARE,
        drops::DROPS,
        shares::SHARES,
        stack::STACK,
        kernel_log::KERNEL_LOG,
    ];
    let facts = facts.into_iter().flatten().map(|fact| fact as &dyn Tuning);
    let offloads = offloads::OFFLOADS.iter().map(|offload| offload as &dyn Tuning);
    let mut all: Vec<&dyn Tuning> =
        OF_THEIR_OWN.iter().copied().chain(sysctls).chain(offloads).chain(facts).collect();
    all.sort_by(|one, other| other.about().gain_percent.total_cmp(&one.about().gain_percent));
    all
});

/// The tuning with this name, or of the kernel parameter with this name, whole or its last part.
pub fn find(name: &str) -> Option<&'static dyn Tuning> {
    let is_of = |tuning: &&dyn Tuning| {
        tuning.about().name == name || tuning.parameter().is_some_and(|key| copied::is_named(key, name))
    };
    TUNINGS.iter().copied().find(is_of)
}
