//! Work that the card can do for the CPU. All have the same shape, so they are a table; GRO depends on the load, and
//! has its own file.

use crate::card;
use crate::change::Change;
use crate::error::Unknown;
use crate::host::Host;
use crate::served::Served;
use crate::settings::{Ethtool, Group, OFF, OFF_ASKED};
use crate::tuning::{About, Advice, Counter, Needs, Proof, Risk, Scope, Tuning};

/// An offload: suggested if it is off and the driver allows the change.
pub(super) struct Offload {
    about: About,
    /// The evidence that it needs to be suggested.
    proof: Proof,
    /// Names in ethtool.
    features: &'static [&'static str],
    /// Why it is wrong on this device, in a line.
    unfit: fn(&Host, &str) -> Option<&'static str>,
    effect: fn(&Host, &str) -> Result<Counter, Unknown>,
}

pub(super) static OFFLOADS: &[Offload] = &[
    Offload {
        about: About {
            name: "checksums",
            reason: "the card computes and checks checksums instead of the CPU",
            detail: "On by default where the driver supports it. If it is off, somebody turned it off, mostly while \
                     looking for an error. Segmentation offload needs it.",
            source: "networking/checksum-offloads; ethtool(8)",
            risk: Risk::Medium,
            lost: "the problem that it was turned off for may return: a fault of this card or tunnel",
            gain_percent: 2.1,
            ..BY_CARD
        },
        proof: Proof::Setting,
        features: &["rx-checksumming", "tx-checksumming"],
        unfit: |_, _| None,
        effect: |_, _| {
            Err(Unknown("no counter shows it; the share of csum_partial in a profile does".to_owned()))
        },
    },
    Offload {
        about: About {
            name: "segmentation",
            reason: "a large response passes through the network stack as one packet and is split at the end",
            detail: "TSO: by the card; GSO: by the kernel just before the driver. A response that fits in one packet \
                     gains nothing. tx_packets counts what the driver was given.",
            source: "networking/segmentation-offloads; ethtool(8)",
            risk: Risk::Medium,
            lost: "the problem that it was turned off for may return: a fault of this card or tunnel",
            gain_percent: 1.4,
            ..BY_CARD
        },
        proof: Proof::Setting,
        features: &["generic-segmentation-offload", "tcp-segmentation-offload"],
        unfit: |_, _| None,
        effect: |host, device| card::statistic(host, device, "tx_packets"),
    },
    Offload {
        about: About {
            name: "lro",
            reason: "the card merges packets of uploads before the kernel sees them",
            detail: "For large requests only. It gains more than `gro`, which does the same in the kernel: apply one \
                     of the two. A host that forwards packets must not use it.",
            source: "networking/scaling; ethtool(8)",
            risk: Risk::Medium,
            lost: "merged packets no longer look as they did on the wire; a bridge or router behind this card breaks",
            gain_percent: 0.2,
            ..BY_CARD
        },
        proof: Proof::Setting,
        features: &["large-receive-offload"],
        unfit: forwards,
        effect: |host, device| card::statistic(host, device, "rx_packets"),
    },
    Offload {
        about: About {
            name: "hardware-gro",
            reason: "the card merges packets of uploads, and they can still be forwarded",
            detail: "As `lro`, but by rules that let the kernel split the packets again as they were. For large requests. Needs `gro`. Few \
                     drivers have it (mlx5, bnxt, virtio-net with guest offloads).",
            source: "networking/segmentation-offloads; ethtool(8): rx-gro-hw",
            risk: Risk::Medium,
            lost: "a card that merges wrongly corrupts what clients send; watch RcvPruned and checksum errors",
            gain_percent: 0.25,
            ..BY_CARD
        },
        proof: Proof::Measurement,
        features: &["rx-gro-hw"],
        unfit: |_, _| None,
        effect: |host, device| card::statistic(host, device, "rx_packets"),
    },
    Offload {
        about: About {
            name: "tls-offload",
            reason: "the card encrypts instead of the CPU",
            detail: "Only for programs that leave TLS to the kernel (kTLS: nginx with `ssl_conf_command Options KTLS`). flatout encrypts by \
                     itself, and gains nothing. /proc/net/tls_stat counts connections.",
            source: "networking/tls-offload; ethtool(8): tls-hw-tx-offload",
            risk: Risk::Medium,
            lost: "connections whose packets were lost are encrypted by the CPU again, at a higher cost",
            gain_percent: 0.6,
            ..BY_CARD
        },
        proof: Proof::Measurement,
        features: &["tls-hw-tx-offload"],
        unfit: |host, _| {
            let stat = host.text("/proc/net/tls_stat").unwrap_or_default();
            let is_used = stat
                .lines()
                .filter(|line| line.starts_with("TlsTx"))
                .any(|line| line.split_whitespace().nth(1).is_some_and(|count| count != "0"));
            (!is_used).then_some("no program leaves TLS to the kernel")
        },
        effect: |host, device| card::statistic(host, device, "tx_packets"),
    },
];

/// Why a device must not merge packets: the kernel switches this off for devices that forward.
fn forwards(host: &Host, device: &str) -> Option<&'static str> {
    let folder = format!("/sys/class/net/{device}");
    if host.has(&format!("{folder}/brport")) || host.has(&format!("{folder}/master")) {
        return Some("it is part of a bridge or a bond");
    }
    let knobs = ["all", device]
        .map(|name| ["ipv4", "ipv6"].map(|family| format!("/proc/sys/net/{family}/conf/{name}/forwarding")));
    let is_on = |path: &String| host.has(path) && host.number::<u8>(path) != Ok(0);
    if knobs.as_flattened().iter().any(is_on) {
        return Some("packets are forwarded here");
    }
    match host.number::<u8>("/proc/sys/net/ipv4/ip_forward") {
        Ok(0) => None,
        Ok(_) => Some("packets are forwarded here"),
        Err(_) => Some("it is not known whether packets are forwarded here"),
    }
}

/// What they have in common.
const BY_CARD: About = About {
    name: "",
    reason: "",
    detail: "",
    source: "",
    scope: Scope::Device,
    risk: Risk::Low,
    lost: "",
    gain_percent: 0.0,
    needs: Needs::Card,
};

impl Tuning for Offload {
    fn about(&self) -> &About {
        &self.about
    }

    fn probe(&self, host: &Host, served: &Served) -> Result<String, Unknown> {
        let states = self.states(host, served)?;
        let states: Vec<String> =
            states.iter().map(|(feature, now)| format!("{} {now}", feature.key)).collect();
        Ok(states.join(", "))
    }

    fn advice(&self, host: &Host, served: &Served) -> Result<Advice, Unknown> {
        let states = self.states(host, served)?;
        let held = states.iter().find(|(_, now)| now == OFF_ASKED).map(|(feature, _)| feature.key.clone());
        let off: Vec<Ethtool> =
            states.into_iter().filter(|(_, now)| now == OFF).map(|(feature, _)| feature).collect();
        if (self.unfit)(host, served.card(host)?).is_some() {
            return Ok(Advice::Fine);
        }
        if off.is_empty() {
            let told = |key| format!("{key} is requested, but the driver or another offload keeps it off");
            return Ok(held.map(told).map_or(Advice::Fine, Advice::ByHand));
        }
        let what = off.iter().map(|feature| format!("{} on", feature.key)).collect::<Vec<_>>().join(", ");
        Ok(Advice::change(what, off.into_iter().map(|feature| Change::text(feature, "on")).collect()))
    }

    fn proof(&self) -> Proof {
        self.proof
    }

    fn effect(&self, host: &Host, served: &Served) -> Result<Counter, Unknown> {
        (self.effect)(host, served.card(host)?)
    }
}

impl Offload {
    /// The features that the driver allows to change, with their states; or why there are none.
    fn states(&self, host: &Host, served: &Served) -> Result<Vec<(Ethtool, String)>, Unknown> {
        let device = served.card(host)?;
        let features = self.features.iter().map(|key| Ethtool::new(device, Group::Feature, key));
        let (mut states, mut fixed) = (Vec::new(), None);
        for feature in features {
            match feature.now(host) {
                Ok(now) => states.push((feature, now)),
                Err(unknown) => fixed = Some(unknown),
            }
        }
        match fixed {
            Some(unknown) if states.is_empty() => Err(unknown),
            _ => Ok(states),
        }
    }
}
