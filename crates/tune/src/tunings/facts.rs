//! Facts about a machine: each is read, and if it costs performance, advice is given. Few of them can be changed here. All have the
//! same shape, so they are a table.

use crate::card;
use crate::change::Change;
use crate::error::Unknown;
use crate::host::Host;
use crate::served::Served;
use crate::server::Processes;
use crate::tuning::{About, Advice, Counter, Needs, Proof, Risk, Scope, Tuning};

/// A fact: its value, and what to do if that is bad.
pub(super) struct Fact {
    pub(super) about: About,
    /// The evidence that it needs to be suggested.
    pub(super) proof: Proof,
    /// The name of its counter; empty if that is the fact's name.
    pub(super) counter: &'static str,
    pub(super) read: fn(&Host, &Served) -> Result<Reading, Unknown>,
}

/// The value of a fact.
pub(super) struct Reading {
    pub(super) value: String,
    pub(super) count: u64,
    pub(super) advice: Option<String>,
    /// What follows the advice; empty if only the user can.
    pub(super) changes: Vec<Change>,
}

impl Reading {
    /// A value with advice that only the user can follow, if it is bad.
    pub(super) fn new(value: impl Into<String>, count: u64, advice: Option<String>) -> Reading {
        Reading { value: value.into(), count, advice, changes: Vec::new() }
    }

    /// The same with changes that follow the advice.
    pub(super) fn with(self, changes: impl IntoIterator<Item = Change>) -> Reading {
        let changes = if self.advice.is_some() { changes.into_iter().collect() } else { Vec::new() };
        Reading { changes, ..self }
    }
}

/// What most of them have in common.
pub(super) const OF_HOST: About = About {
    name: "",
    reason: "",
    detail: "",
    source: "",
    scope: Scope::Host,
    risk: Risk::Low,
    lost: "",
    gain_percent: 0.0,
    needs: Needs::AnyPath,
};

pub(super) static FACTS: &[Fact] = &[
    Fact {
        about: About {
            name: "steal",
            reason: "time in which the hypervisor gave this machine's CPUs to others",
            detail: "No setting of the machine helps: use another size or kind of instance, or another host. Figures \
                     measured meanwhile scatter more. Counted since boot, or over --watch.",
            source: "proc_stat(5)",
            gain_percent: 1.9,
            ..OF_HOST
        },
        proof: Proof::Setting,
        counter: "",
        read: steal,
    },
    Fact {
        about: About {
            name: "pressure",
            reason: "tasks wait for a CPU, for memory or for a disk",
            detail: "The share of the last ten seconds in which at least one task waited (PSI). For the CPU it means \
                     that other programs compete with the server, or that there are too few CPUs.",
            source: "accounting/psi",
            gain_percent: 1.8,
            ..OF_HOST
        },
        proof: Proof::Setting,
        counter: "",
        read: pressure,
    },
    Fact {
        about: About {
            name: "softirq-balance",
            reason: "one CPU handles most packets while the others wait",
            detail: "Packets handled by each CPU, from softnet_stat. With a queue for each CPU see `irq-affinity` \
                     and `rss`; with one queue see `rps`.",
            source: "networking/scaling",
            needs: Needs::Card,
            gain_percent: 1.7,
            ..OF_HOST
        },
        proof: Proof::Setting,
        counter: "",
        read: softirq_balance,
    },
    Fact {
        about: About {
            name: "card-node",
            reason: "the card is farther from some CPUs than from others",
            detail: "Distances as the firmware reports them: 10 is local. Where all CPUs are on one node there is \
                     nothing to do.",
            source: "admin-guide/mm/numa_memory_policy",
            needs: Needs::Card,
            gain_percent: 1.6,
            ..OF_HOST
        },
        proof: Proof::Setting,
        counter: "",
        read: card_node,
    },
    Fact {
        about: About {
            name: "mtu",
            reason: "a large response is split into more packets than this network may need",
            detail: "Every switch on the way has to support jumbo frames. Clouds support them within a network (9001 \
                     at AWS, 8896 at GCP). Over the internet the MTU stays at 1500.",
            source: "ip-link(8)",
            scope: Scope::Device,
            needs: Needs::Card,
            gain_percent: 0.3,
            ..OF_HOST
        },
        proof: Proof::Setting,
        counter: "",
        read: mtu,
    },
    Fact {
        about: About {
            name: "managed",
            reason: "another program controls what is suggested here, and will set it again",
            detail: "tuned, irqbalance, Cilium and other XDP programs: change the setting in their configuration, or \
                     it does not last.",
            source: "tuned(8), irqbalance(1), docs.cilium.io",
            gain_percent: 1.5,
            ..OF_HOST
        },
        proof: Proof::Setting,
        counter: "",
        read: managed,
    },
];

impl Tuning for Fact {
    fn about(&self) -> &About {
        &self.about
    }

    fn probe(&self, host: &Host, served: &Served) -> Result<String, Unknown> {
        Ok((self.read)(host, served)?.value)
    }

    fn advice(&self, host: &Host, served: &Served) -> Result<Advice, Unknown> {
        let Reading { advice, changes, .. } = (self.read)(host, served)?;
        Ok(match advice {
            None => Advice::Fine,
            Some(what) if changes.is_empty() => Advice::ByHand(what),
            Some(what) => Advice::change(what, changes),
        })
    }

    fn proof(&self) -> Proof {
        self.proof
    }

    fn effect(&self, host: &Host, served: &Served) -> Result<Counter, Unknown> {
        let name = if self.counter.is_empty() { self.about.name } else { self.counter };
        Ok(Counter { name: name.to_owned(), value: (self.read)(host, served)?.count })
    }
}

/// Steal time that is worth reporting, in percent of all.
const STEAL_PERCENT_MAX: f64 = 2.0;

fn steal(host: &Host, _: &Served) -> Result<Reading, Unknown> {
    let stat = host.text("/proc/stat")?;
    let all = stat.lines().find_map(|line| line.strip_prefix("cpu ")).unwrap_or_default();
    let fields: Vec<u64> = all.split_whitespace().map_while(|field| field.parse().ok()).collect();
    let stolen =
        *fields.get(7).ok_or_else(|| Unknown("/proc/stat does not report stolen time".to_owned()))?;
    // Guest time is already included in user time.
    let total = fields.iter().take(8).fold(0u64, |sum, field| sum.saturating_add(*field));
    let percent = stolen as f64 / total.max(1) as f64 * 100.0;
    let advice = format!(
        "{percent:.1} % of the CPU time goes to other guests of this host: use another instance or host"
    );
    Ok(Reading::new(format!("{percent:.1} %"), stolen, (percent > STEAL_PERCENT_MAX).then_some(advice)))
}

/// Pressure that is worth reporting, in percent of the last ten seconds.
pub(super) const PRESSURE_PERCENT_MAX: f64 = 10.0;

/// The share of the last ten seconds in which at least one task waited for `name`.
pub(super) fn pressure_percent(host: &Host, name: &str) -> Result<f64, Unknown> {
    let text = host.text(&format!("/proc/pressure/{name}"))?;
    let some = text.lines().find_map(|line| line.strip_prefix("some avg10=")?.split_whitespace().next());
    Ok(some.and_then(|percent| percent.parse().ok()).unwrap_or(0.0))
}

fn pressure(host: &Host, _: &Served) -> Result<Reading, Unknown> {
    let mut values = Vec::new();
    for name in ["cpu", "memory", "io"] {
        values.push((name, pressure_percent(host, name)?));
    }
    let shown: Vec<String> = values.iter().map(|(name, percent)| format!("{name} {percent:.1} %")).collect();
    let (worst, percent) =
        values.iter().copied().fold(("", 0.0), |worst, one| if one.1 > worst.1 { one } else { worst });
    let advice = match worst {
        "cpu" => "tasks wait for a CPU: run fewer other programs here, or add CPUs",
        "memory" => "tasks wait for memory: use a smaller cache, or add memory",
        _ => "tasks wait for a disk: find out what reads or writes while the server runs",
    };
    Ok(Reading::new(
        shown.join(", "),
        percent as u64,
        (percent > PRESSURE_PERCENT_MAX).then(|| advice.to_owned()),
    ))
}

/// A CPU that handles this many times its share of packets is worth reporting.
const IMBALANCE_MAX: f64 = 1.8;

/// Fewest packets for meaningful shares.
const PACKETS_MIN: u64 = 100_000;

fn softirq_balance(host: &Host, served: &Served) -> Result<Reading, Unknown> {
    served.card(host)?;
    let table = host.text("/proc/net/softnet_stat")?;
    let packets = |line: &str| u64::from_str_radix(line.split_whitespace().next()?, 16).ok();
    let counts: Vec<u64> = table.lines().filter_map(packets).collect();
    let (all, most) = (counts.iter().sum::<u64>(), counts.iter().copied().max().unwrap_or(0));
    let times = most as f64 * counts.len() as f64 / all.max(1) as f64;
    let percent = most as f64 / all.max(1) as f64 * 100.0;
    let mut advice = format!(
        "one of {} CPUs handles {percent:.0} % of the packets: see rps, irq-affinity and xps",
        counts.len()
    );
    // One row for each CPU that is online, in their order.
    let busiest = counts
        .iter()
        .position(|count| *count == most)
        .and_then(|row| card::cpus(host).ok()?.get(row).copied());
    if let Some(setting) = busiest.and_then(|cpu| without(host, served, cpu)) {
        advice += &format!("; or leave that CPU to them ({setting})");
    }
    let is_bad = counts.len() > 1 && all >= PACKETS_MIN && times > IMBALANCE_MAX;
    Ok(Reading::new(format!("{percent:.0} % on one of {}", counts.len()), most, is_bad.then_some(advice)))
}

/// Fewer CPUs cannot do without one.
const SPARING_CPUS_MIN: usize = 4;

/// The setting that keeps a server off one CPU.
fn without(host: &Host, served: &Served, cpu: usize) -> Option<String> {
    let others: Vec<usize> = card::cpus(host).ok()?.into_iter().filter(|other| *other != cpu).collect();
    (others.len() + 1 >= SPARING_CPUS_MIN).then(|| Processes::of(host, served).software.on_cpus(&others))
}

fn card_node(host: &Host, served: &Served) -> Result<Reading, Unknown> {
    let device = served.card(host)?;
    let node = host.number::<i32>(&format!("/sys/class/net/{device}/device/numa_node")).unwrap_or(-1);
    let Ok(node) = u32::try_from(node) else {
        return Ok(Reading::new("no node".to_owned(), 0, None));
    };
    let distances = host.text(&format!("/sys/devices/system/node/node{node}/distance"))?;
    let far =
        distances.split_whitespace().filter_map(|distance| distance.parse::<u64>().ok()).max().unwrap_or(10);
    let advice = format!(
        "CPUs of other nodes reach {device} at a distance of {far} (10 is local): serve from node {node}"
    );
    Ok(Reading::new(format!("node {node}, distances {distances}"), far, (far > 10).then_some(advice)))
}

/// The MTU of a network without jumbo frames.
const MTU_PLAIN: u64 = 1500;

fn mtu(host: &Host, served: &Served) -> Result<Reading, Unknown> {
    let mtu = host.number::<u64>(&format!("/sys/class/net/{}/mtu", served.card(host)?))?;
    let advice = format!("{mtu} bytes is less than the usual 1500: check whether a tunnel needs that");
    Ok(Reading::new(mtu.to_string(), mtu, (mtu < MTU_PLAIN).then_some(advice)))
}

/// Programs that manage the same settings, by process name.
const MANAGERS: [(&str, &str); 4] = [
    ("tuned", "tuned sets sysctls and governors from its profile: see tuned-adm active"),
    ("cilium-agent", "Cilium handles packets with XDP and tc: it owns firewall, conntrack and qdiscs"),
    ("calico-node", "Calico owns the firewall rules"),
    ("kubelet", "the kubelet sets sysctls of pods: securityContext.sysctls"),
];

fn managed(host: &Host, served: &Served) -> Result<Reading, Unknown> {
    let mut found: Vec<&str> = Vec::new();
    let mut advice: Vec<&str> = Vec::new();
    for pid in host.list("/proc")?.iter().filter(|name| name.bytes().all(|byte| byte.is_ascii_digit())) {
        let name = host.text(&format!("/proc/{pid}/comm")).unwrap_or_default();
        for (manager, what) in MANAGERS.iter().filter(|(manager, _)| name == *manager) {
            if !found.contains(manager) {
                found.push(manager);
                advice.push(what);
            }
        }
    }
    let has_xdp = served.card(host).is_ok_and(|device| {
        host.number::<u64>(&format!("/sys/class/net/{device}/xdp/prog_id")).is_ok_and(|id| id > 0)
    });
    if has_xdp {
        found.push("XDP");
        advice.push(
            "an XDP program sees packets before the network stack: settings of the stack may not matter",
        );
    }
    let value = if found.is_empty() { "no such program".to_owned() } else { found.join(", ") };
    Ok(Reading::new(value, found.len() as u64, (!advice.is_empty()).then(|| advice.join("; "))))
}

/// Whether this is a Kubernetes node.
pub(super) fn is_kubernetes_node(host: &Host) -> bool {
    let names = host.list("/proc").unwrap_or_default();
    names.iter().any(|pid| host.text(&format!("/proc/{pid}/comm")).is_ok_and(|name| name == "kubelet"))
}

/// The CPUs near a card, in the order in which queues are assigned to them: one of each core before its
/// hyper-threads. All CPUs if the card belongs to no node.
pub(super) fn near_cpus(host: &Host, device: &str) -> Result<Vec<usize>, Unknown> {
    let online = card::cpus(host)?;
    let node = host.number::<i32>(&format!("/sys/class/net/{device}/device/numa_node")).unwrap_or(-1);
    let near = match u32::try_from(node) {
        Ok(node) => {
            let list = host.text(&format!("/sys/devices/system/node/node{node}/cpulist")).unwrap_or_default();
            crate::cpus::of_list(&list).into_iter().filter(|cpu| online.contains(cpu)).collect()
        }
        Err(_) => Vec::new(),
    };
    let near = if near.is_empty() { online } else { near };
    let is_first = |cpu: &usize| {
        let siblings = host.text(&format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"));
        siblings.is_ok_and(|siblings| {
            crate::cpus::of_list(&siblings).iter().filter(|other| near.contains(other)).min() != Some(cpu)
        })
    };
    let (later, first): (Vec<usize>, Vec<usize>) = near.iter().copied().partition(|cpu| is_first(cpu));
    Ok(first.into_iter().chain(later).collect())
}
