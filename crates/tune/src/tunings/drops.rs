//! Packets and connections that were dropped, as counted by the card, the cloud, the connection table and TCP. By
//! evidence: each is suggested only if its counter increases.

use super::facts::{Fact, OF_HOST, Reading};
use crate::card;
use crate::counters::{conntrack_dropped, netstat};
use crate::error::Unknown;
use crate::host::Host;
use crate::served::Served;
use crate::tuning::{About, Needs, Proof, Scope};

pub(super) static DROPS: &[Fact] = &[
    Fact {
        about: About {
            name: "card-drops",
            reason: "the card or its driver drops packets, and clients wait until they are sent again",
            detail: "Counters of the driver (ethtool -S) whose names say that something received was dropped or missed. Totals where \
                     the driver has any, otherwise the sum over its queues; some drivers count one packet in two of them. A full ring: \
                     `rings`, `irq-affinity`; no memory for a buffer: `pressure`.",
            source: "ethtool(8): -S; the driver's own documentation",
            scope: Scope::Device,
            needs: Needs::Card,
            gain_percent: 1.75,
            ..OF_HOST
        },
        proof: Proof::Counter,
        counter: "ethtool -S drops",
        read: card_drops,
    },
    Fact {
        about: About {
            name: "allowances",
            reason: "the cloud drops or delays packets beyond what this size of instance may send and receive",
            detail: "Counters of the ENA driver: bw_in, bw_out, pps, conntrack and linklocal allowance exceeded. No setting of the machine \
                     helps against the first three: a larger instance does, or more of them. The connection table of a security group \
                     is left out by rules that allow everything in both directions (untracked connections).",
            source: "docs.aws.amazon.com: monitor network performance for ENA settings",
            scope: Scope::Device,
            needs: Needs::Card,
            gain_percent: 1.95,
            ..OF_HOST
        },
        proof: Proof::Counter,
        counter: "allowances exceeded",
        read: allowances,
    },
    Fact {
        about: About {
            name: "conntrack-room",
            reason: "a connection that finds no room in the table of tracked connections is dropped",
            detail: "How full the table is, and what was dropped for that since boot: insert_failed, drop and early_drop. With some \
                     room left nothing is lost; `conntrack-max` makes the table larger, `conntrack` leaves the served port out of it.",
            source: "nf_conntrack-sysctl; conntrack(8): -S",
            scope: Scope::Namespace,
            gain_percent: 0.71,
            ..OF_HOST
        },
        proof: Proof::Setting,
        counter: "nf_conntrack_count",
        read: conntrack_room,
    },
    Fact {
        about: About {
            name: "retransmits",
            reason: "segments are sent again because nobody acknowledged them in time",
            detail: "RetransSegs and OutSegs of the network namespace. A client far away loses some on any path. More than 1 % of \
                     all means that something drops packets: see `card-drops`, `allowances` and `qdisc`.",
            source: "RFC 4022; proc(5): /proc/net/snmp",
            scope: Scope::Namespace,
            gain_percent: 0.72,
            ..OF_HOST
        },
        proof: Proof::Counter,
        counter: "RetransSegs",
        read: retransmits,
    },
];

/// Parts of the names of drivers' drop counters.
const DROPPED: [&str; 9] =
    ["drop", "missed", "no_buf", "out_of_buf", "nobuf", "no_dma", "overrun", "fifo_err", "discard"];

/// The driver's counters of dropped received packets; those of all queues together if it has them.
fn lost(counters: Vec<(String, u64)>) -> Vec<(String, u64)> {
    // XDP programs drop packets on purpose.
    let is_lost = |name: &str| {
        name.contains("rx") && !name.contains("xdp") && DROPPED.iter().any(|word| name.contains(word))
    };
    let lost: Vec<_> = counters.into_iter().filter(|(name, _)| is_lost(&name.to_ascii_lowercase())).collect();
    let (of_queues, totals): (Vec<_>, Vec<_>) =
        lost.into_iter().partition(|(name, _)| name.bytes().any(|byte| byte.is_ascii_digit()));
    if totals.is_empty() { of_queues } else { totals }
}

/// The names and values of counters that are not 0, and their sum.
fn summed(counters: &[(String, u64)]) -> (u64, String) {
    let sum = counters.iter().fold(0, |sum: u64, (_, value)| sum.saturating_add(*value));
    let moved: Vec<String> = counters
        .iter()
        .filter(|(_, value)| *value > 0)
        .take(NAMED_MAX)
        .map(|(name, value)| format!("{name} {value}"))
        .collect();
    (sum, if moved.is_empty() { "0".to_owned() } else { moved.join(", ") })
}

/// Counters that are named in one line.
const NAMED_MAX: usize = 4;

/// A driver's drops so far.
pub(super) fn counted(host: &Host, device: &str) -> Result<u64, Unknown> {
    Ok(summed(&lost(card::driver_counters(host, device)?)).0)
}

fn card_drops(host: &Host, served: &Served) -> Result<Reading, Unknown> {
    let device = served.card(host)?;
    let lost = lost(card::driver_counters(host, device)?);
    if lost.is_empty() {
        return Err(Unknown(format!("the driver of {device} has no counters of drops")));
    }
    let (count, value) = summed(&lost);
    let advice = format!("{device} drops packets: see rings and irq-affinity");
    Ok(Reading::new(value, count, (count > 0).then_some(advice)))
}

/// The suffix of ENA's counters.
const EXCEEDED: &str = "_allowance_exceeded";

fn allowances(host: &Host, served: &Served) -> Result<Reading, Unknown> {
    let device = served.card(host)?;
    let counters = card::driver_counters(host, device)?.into_iter();
    let exceeded: Vec<(String, u64)> =
        counters.filter_map(|(name, value)| Some((name.strip_suffix(EXCEEDED)?.to_owned(), value))).collect();
    if exceeded.is_empty() {
        return Err(Unknown(format!("the driver of {device} has no allowances; ENA has")));
    }
    let (count, value) = summed(&exceeded);
    let is_over = |wanted: &str| exceeded.iter().any(|(name, value)| name == wanted && *value > 0);
    let mut advice = Vec::new();
    if ["bw_in", "bw_out", "pps"].into_iter().any(is_over) {
        advice.push("more traffic than this instance may have: a larger instance, or several");
    }
    if is_over("conntrack") {
        advice.push("more connections than this instance may track: let security groups not track them");
    }
    if is_over("linklocal") {
        advice.push(
            "too many requests to the cloud's own services: cache what DNS and the metadata service return",
        );
    }
    if count > 0 && advice.is_empty() {
        advice.push("more than this instance may have: see the instance's limits");
    }
    Ok(Reading::new(value, count, (!advice.is_empty()).then(|| advice.join("; "))))
}

const COUNT: &str = "/proc/sys/net/netfilter/nf_conntrack_count";
const MAX: &str = "/proc/sys/net/netfilter/nf_conntrack_max";

/// Percentage from which the table counts as nearly full.
const FULL_PERCENT: u64 = 80;

fn conntrack_room(host: &Host, _: &Served) -> Result<Reading, Unknown> {
    let (count, max) = (host.number::<u64>(COUNT)?, host.number::<u64>(MAX)?);
    let percent = (u128::from(count) * 100 / u128::from(max.max(1))) as u64;
    let dropped = conntrack_dropped(host).map(|counter| counter.value);
    let dropped = dropped.map_or(String::new(), |dropped| format!(", {dropped} dropped since boot"));
    let advice = format!(
        "{percent} % of the table is in use: see conntrack-max, or leave the served port untracked (conntrack)"
    );
    Ok(Reading::new(
        format!("{count} of {max} ({percent} %){dropped}"),
        count,
        (percent >= FULL_PERCENT).then_some(advice),
    ))
}

/// Retransmitted segments that are worth reporting, in percent of all.
const RETRANSMITTED_PERCENT: f64 = 1.0;

fn retransmits(host: &Host, _: &Served) -> Result<Reading, Unknown> {
    let (again, all) = (netstat(host, "RetransSegs")?.value, netstat(host, "OutSegs")?.value);
    let percent = again as f64 / all.max(1) as f64 * 100.0;
    let advice =
        format!("{percent:.1} % of the segments are sent again: see card-drops, allowances and qdisc");
    Ok(Reading::new(
        format!("{again} of {all} segments ({percent:.1} %)"),
        again,
        (percent > RETRANSMITTED_PERCENT).then_some(advice),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::Fake;
    use crate::plan::{counts, survey_since};
    use crate::served::ServerSelector;
    use crate::tuning::Advice;

    fn machine(driver: &str) -> Fake {
        let fake = Fake::with(&[("/proc/net/dev", "a\nb\neth0: 0\n")]);
        fake.answer("ethtool -S eth0", &format!("NIC statistics:\n{driver}"));
        fake
    }

    fn served(host: &Host) -> Served {
        let asked =
            ServerSelector { device: Some("eth0".to_owned()), port: Some(80), ..ServerSelector::default() };
        Served::find(host, &asked).unwrap()
    }

    fn reading(
        read: fn(&Host, &Served) -> Result<Reading, Unknown>,
        fake: &Fake,
    ) -> (String, Option<String>) {
        let host = fake.host();
        let reading = read(&host, &served(&host)).unwrap();
        (reading.value, reading.advice)
    }

    /// Names in ixgbe, mlx5, virtio, veth and ENA.
    #[test]
    fn drops_are_known_by_their_names() {
        for (driver, value, is_bad) in [
            (
                "     rx_packets: 900\n     rx_missed_errors: 7\n     rx_no_dma_resources: 0\n",
                "rx_missed_errors 7",
                true,
            ),
            (
                "     rx_out_of_buffer: 3\n     rx0_wqe_err: 9\n     rx1_xdp_drop: 8\n",
                "rx_out_of_buffer 3",
                true,
            ),
            (
                "     rx0_drops: 1\n     rx1_drops: 2\n     rx0_xdp_drops: 9\n",
                "rx0_drops 1, rx1_drops 2",
                true,
            ),
            ("     peer_ifindex: 3\n     rx_queue_0_drops: 0\n", "0", false),
            ("     tx_drops: 5\n     rx_drops: 0\n     rx_overruns: 0\n", "0", false),
        ] {
            let (found, advice) = reading(card_drops, &machine(driver));
            assert_eq!((found.as_str(), advice.is_some()), (value, is_bad), "{driver}");
        }
        let fake = machine("     rx_packets: 1\n");
        assert!(
            card_drops(&fake.host(), &served(&fake.host())).err().unwrap().0.contains("no counters of drops")
        );
    }

    #[test]
    fn drops_of_allowances_have_advice() {
        let driver = |counters: [u64; 5]| {
            let names = ["bw_in", "bw_out", "pps", "conntrack", "linklocal"];
            let lines = names
                .iter()
                .zip(counters)
                .map(|(name, count)| format!("     {name}_allowance_exceeded: {count}\n"));
            machine(&lines.collect::<String>())
        };
        assert_eq!(reading(allowances, &driver([0; 5])), ("0".to_owned(), None));
        let (value, advice) = reading(allowances, &driver([0, 12, 0, 3, 0]));
        assert_eq!(value, "bw_out 12, conntrack 3");
        let advice = advice.unwrap();
        assert!(advice.contains("a larger instance") && advice.contains("security groups"), "{advice}");
    }

    /// An overflow since boot is no reason today: while counters are watched, only those that increase count, as a
    /// rate.
    #[test]
    fn only_counters_that_change_are_evidence() {
        let fake = machine("     rx_drops: 100\n     pps_allowance_exceeded: 50\n");
        let host = fake.host();
        let served = served(&host);
        let before = counts(&host, &served);
        fake.answer(
            "ethtool -S eth0",
            "NIC statistics:\n     rx_drops: 140\n     pps_allowance_exceeded: 50\n",
        );
        let findings = survey_since(&host, &served, &before, 10.0);
        let finding = |name: &str| findings.iter().find(|finding| finding.about.name == name).unwrap();
        let drops = finding("card-drops");
        let moved = drops.moved.as_ref().unwrap();
        assert_eq!((moved.counter.as_str(), moved.by, moved.is_rate), ("ethtool -S drops", 4.0, true));
        assert!(drops.is_shown_to_cost());
        assert!(finding("allowances").is_merely_possible());
    }

    #[test]
    fn a_nearly_full_table_is_reported() {
        let fake = Fake::with(&[(COUNT, "50000\n"), (MAX, "65536\n")]);
        assert_eq!(reading(conntrack_room, &fake), ("50000 of 65536 (76 %)".to_owned(), None));
        fake.file(COUNT, "60000\n");
        fake.file(
            "/proc/net/stat/nf_conntrack",
            "entries insert_failed drop early_drop\n0000ea60 00000001 0000000a 00000002\n0000ea60 00000000 00000000 00000000\n",
        );
        let (value, advice) = reading(conntrack_room, &fake);
        assert_eq!(value, "60000 of 65536 (91 %), 13 dropped since boot");
        assert!(advice.unwrap().starts_with("91 % of the table is in use"));
        fake.file(MAX, "0\n");
        assert!(reading(conntrack_room, &fake).1.is_some());
    }

    #[test]
    fn retransmits_are_a_share_of_all_segments() {
        let fake = Fake::with(&[("/proc/net/snmp", "Tcp: InSegs OutSegs RetransSegs\nTcp: 900 1000 10\n")]);
        assert_eq!(reading(retransmits, &fake), ("10 of 1000 segments (1.0 %)".to_owned(), None));
        fake.file("/proc/net/snmp", "Tcp: InSegs OutSegs RetransSegs\nTcp: 900 1000 30\n");
        assert!(reading(retransmits, &fake).1.unwrap().starts_with("3.0 % of the segments"));
    }

    #[test]
    fn facts_are_done_by_hand() {
        let fake = machine("     rx_drops: 1\n");
        let host = fake.host();
        let drops = super::super::find("card-drops").unwrap();
        assert!(matches!(drops.advice(&host, &served(&host)), Ok(Advice::ByHand(_))));
    }
}
