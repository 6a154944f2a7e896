//! Each probe on machines with different kernels: `machines/*.txt` contains their files, command output and netlink
//! replies. `linux-6.18-virtio` was recorded; the others are modelled on real machines.

use std::collections::BTreeMap;

use super::*;
use crate::error::Unknown;
use crate::fake::{Fake, Folder};
use crate::host::Host;
use crate::netlink::{Request, audit, ethtool, napi, nftables, qdisc};
use crate::plan::plan;
use crate::script::{Part, script};
use crate::served::{Served, ServerSelector};
use crate::session::Session;
use crate::tuning::{Needs, Risk};

pub(super) const VIRTIO: &str = include_str!("../../machines/linux-6.18-virtio.txt");
pub(super) const ENA: &str = include_str!("../../machines/linux-4.14-ena.txt");
pub(super) const TWO_NODES: &str = include_str!("../../machines/linux-6.1-two-nodes.txt");
const CONTAINER: &str = include_str!("../../machines/container.txt");

/// A machine and its server.
fn machine(text: &str, port: Option<u16>) -> (Fake, Host, Served) {
    let fake = Fake::recorded(text);
    let host = fake.host();
    let served = Served::find(&host, &ServerSelector { port, ..ServerSelector::default() }).unwrap();
    (fake, host, served)
}

/// The state of each tuning: its value, and after an arrow the advice.
fn assert_stands(text: &str, port: Option<u16>, expected: &[(&str, &str)]) {
    let (_fake, host, served) = machine(text, port);
    for (name, expected) in expected {
        let tuning = find(name).unwrap();
        let value = tuning.probe(&host, &served).unwrap_or_else(|Unknown(why)| format!("? {why}"));
        let stands = match tuning.advice(&host, &served) {
            Ok(advice) => advice.text().map_or(value.clone(), |advice| format!("{value} -> {advice}")),
            Err(Unknown(why)) => format!("{value} ? {why}"),
        };
        assert_eq!(stands, *expected, "{name}");
    }
}

#[test]
fn a_recorded_virtual_machine_with_one_queue() {
    assert_stands(
        VIRTIO,
        None,
        &[
            (
                "mitigations",
                "mitigated: indirect_target_selection (no figure), spectre_v1 (1-2 %), spectre_v2 (15-20 %) -> boot with \
                 mitigations=auto,no_guest_host,no_guest_guest,no_user_kernel,no_user_user: opens \
                 indirect_target_selection, spectre_v1, spectre_v2; set it where this machine's boot loader is \
                 configured",
            ),
            ("firewall", "no rules"),
            ("conntrack", "0 of 262144 tracked"),
            ("taps", "none"),
            ("irq-affinity", "38:0-1 39:0-1"),
            ("rps", "0 -> spread the packets of each receive queue over all CPUs"),
            ("rfs", "0 flows, by queue 0 -> remember the CPU of 32768 flows"),
            ("rss", "one receive queue"),
            ("xps", "one transmit queue"),
            ("channels", "1 of 1"),
            ("rings", "256 of 256 ? there is no /sys/class/net/eth0/statistics/rx_missed_errors here"),
            ("coalescing", "adaptive off -> adaptive moderation"),
            ("static-moderation", "0 us"),
            ("gro", "on"),
            ("defer-interrupts", "0 polls, 0 ns -> 10 polls of 20000 ns"),
            ("busy-poll", "0 us -> net.core.busy_poll = 1"),
            ("qdisc", "pfifo_fast -> no qdisc"),
            ("congestion", "bbr -> net.ipv4.tcp_congestion_control = reno"),
            (
                "irq-suspension",
                "0 ns -> only for a server that polls its epoll (EPIOCSPARAMS), and none was found here",
            ),
            ("audit", "off"),
            ("c-states", "0 of 0 deep states in use"),
            ("huge-pages", "madvise"),
            ("clocksource", "tsc"),
            ("swap", "no swap"),
            ("tcp-mem", "287901 383869 575802 pages ? this kernel does not count TCPMemoryPressures"),
            ("default-qdisc", "pfifo_fast"),
            ("checksums", "tx-checksumming on"),
            ("conntrack-hash", "262144 buckets for 262144"),
            ("tw-reuse", "2 -> net.ipv4.tcp_tw_reuse = 1"),
            ("tcp-rmem", "4096 131072 33554432"),
            ("port-range", "32768 60999 -> net.ipv4.ip_local_port_range = 10000 65535"),
        ],
    );
}

#[test]
fn the_server_of_the_nine_steps() {
    assert_stands(
        ENA,
        Some(8080),
        &[
            ("workers", "4 for 4 CPUs"),
            ("locality", "listeners: 4, receive queues: 4"),
            (
                "mitigations",
                "mitigated: mds (6 % with tsx_async_abort), meltdown (6 %), spectre_v1 (1-2 %), spectre_v2 (15-20 %) \
                 -> boot with mitigations=off: opens mds, meltdown, spectre_v1, spectre_v2",
            ),
            ("audit", "on -> do not audit processes that start from now on"),
            (
                "seccomp",
                "1 filters -> start it without one: docker run --security-opt seccomp=unconfined, or seccompProfile \
                 of the pod",
            ),
            ("firewall", "iptables nat filter -> `iptables` is not installed: install the package iptables"),
            (
                "conntrack",
                "256 of 65536 tracked -> addresses are translated, which needs tracking: serve without NAT",
            ),
            (
                "taps",
                "dhclient (pid 2800) -> stop dhclient (pid 2800), or limit what it listens to; unlike dhclient, \
                 systemd-networkd and NetworkManager hold a tap only while they request an address",
            ),
            (
                "irq-affinity",
                "27:0-3 28:0-3 29:0-3 30:0-3 -> irqbalance manages these interrupts: stop it first (irqbalance), or \
                 ban them in its configuration",
            ),
            ("irqbalance", "running -> stop irqbalance"),
            ("xps", "0 0 0 0 -> give each CPU a transmit queue of its own"),
            ("rps", "0 0 0 0"),
            ("rfs", "0 flows, by queue 0 0 0 0"),
            ("rss", "128 entries, by queue 32 32 32 32"),
            ("allowances", "0"),
            ("conntrack-room", "256 of 65536 (0 %)"),
            (
                "arfs",
                "? the driver of eth0 does not support ntuple-filters ? the driver of eth0 does not support ntuple-filters",
            ),
            (
                "card-drops",
                "? the driver of eth0 has no counters of drops ? the driver of eth0 has no counters of drops",
            ),
            ("coalescing", "adaptive off -> adaptive moderation"),
            ("channels", "4 of 4"),
            ("rings", "1024 of 8192"),
            (
                "qdisc",
                "mq -> the kernel attached pfifo_fast to eth0, and would attach fq_codel now: set net.core.default_qdisc \
                 to pfifo_fast first (`flatout tune undo default-qdisc` if it was set by that)",
            ),
            ("congestion", "cubic -> net.ipv4.tcp_congestion_control = reno"),
            (
                "defer-interrupts",
                "? there is no /sys/class/net/eth0/napi_defer_hard_irqs here ? there is no \
                 /sys/class/net/eth0/napi_defer_hard_irqs here",
            ),
            ("irq-suspension", "? needs Linux 6.13, this is 4.14 ? needs Linux 6.13, this is 4.14"),
            ("descriptors", "1024:524288 -> 65536 open files"),
            ("clocksource", "xen -> clock source tsc"),
            ("huge-pages", "always"),
            ("cpu-quota", "3.5 CPUs, throttled 7 times -> no CPU quota"),
            ("conntrack-hash", "16384 buckets for 65536 -> 65536 buckets"),
            ("default-qdisc", "fq_codel -> net.core.default_qdisc = pfifo_fast"),
            ("checksums", "rx-checksumming on, tx-checksumming on"),
            (
                "segmentation",
                "generic-segmentation-offload on, tcp-segmentation-offload off -> tcp-segmentation-offload on",
            ),
            (
                "lro",
                "? large-receive-offload of eth0 is off [fixed]: the driver does not let it change ? \
                 large-receive-offload of eth0 is off [fixed]: the driver does not let it change",
            ),
            ("somaxconn", "128 -> net.core.somaxconn = 32768"),
        ],
    );
}

/// Which mitigations are dropped, by the request and by who still needs protection.
#[test]
fn mitigations_go_by_attack_vector() {
    let (fake, host, served) = machine(VIRTIO, None);
    let mitigations = find("mitigations").unwrap();
    let advice = || mitigations.advice(&host, &served).unwrap().text().map(str::to_owned).unwrap_or_default();
    // A machine that can run guests keeps its protection from them.
    fake.file("/dev/kvm", "");
    fake.file("/proc/cmdline", "quiet mitigations=auto,nosmt");
    let said = advice();
    assert!(said.contains("mitigations=auto,nosmt,no_user_kernel,no_user_user: opens spectre_v1;"), "{said}");
    assert!(said.contains("indirect_target_selection, spectre_v2 stay mitigated"), "{said}");
    fake.file("/proc/cmdline", "mitigations=auto,nosmt,no_user_user,no_user_kernel");
    assert_eq!(advice(), "");
    // Nothing that a shell would execute gets into the file.
    fake.file("/proc/cmdline", "mitigations=$(reboot),nosmt,`id`");
    assert!(
        advice().contains("boot with mitigations=auto,nosmt,no_user_kernel,no_user_user:"),
        "{}",
        advice()
    );
    // Without the controls: an older kernel, or another architecture.
    fake.file("/proc/cmdline", "quiet");
    fake.file("/proc/cpuinfo", "processor : 0\nBogoMIPS : 50.00\n");
    assert!(advice().contains("mitigations=off: opens indirect_target_selection, spectre_v1, spectre_v2"));
    fake.file("/proc/cmdline", "mitigations=off");
    assert_eq!(advice(), "");
}

#[test]
fn a_server_with_two_nodes_a_firewall_and_a_quota() {
    assert_stands(
        TWO_NODES,
        Some(8080),
        &[
            ("workers", "3 for 8 CPUs -> start it with 8 workers"),
            ("pinning", "0-7 0-7 -> each worker on a CPU of its own"),
            (
                "locality",
                "listeners: 1, receive queues: 2 -> one listener for each worker (flatout serve --locality on)",
            ),
            ("mitigations", "none mitigated"),
            ("audit", "on and locked -> locked until the next boot: audit=0 on the kernel's command line"),
            ("seccomp", "no filter"),
            ("firewall", "2 nftables rules from inet input 0, inet output 0 -> accept port 8080 first"),
            (
                "conntrack",
                "4211 of 262144 tracked -> rules match the state of connections: see `flatout tune explain firewall`",
            ),
            ("irq-affinity", "40:0 41:1 -> the interrupt of queue n on the nth CPU near the card"),
            ("irqbalance", "not running"),
            ("xps", "55 aa"),
            ("rps", "0 0 -> spread the packets of each receive queue over all CPUs"),
            ("channels", "2 of 63 -> 8 queues"),
            ("rings", "1024 of 8192 -> a receive ring of 8192"),
            ("coalescing", "adaptive on"),
            ("static-moderation", "8 us -> at most one interrupt in 256 us"),
            (
                "qdisc",
                "htb -> the qdisc of eth0 was configured by somebody (qdisc htb 1: root): change it where that is done",
            ),
            ("threaded-napi", "0 -> a thread for each queue"),
            ("governor", "performance powersave -> governor performance"),
            ("c-states", "8 of 8 deep states in use -> no idle state that takes over 20 us to leave"),
            ("numa", "2 nodes, card on 1 -> start it with numactl --cpunodebind=1 --membind=1"),
            ("huge-pages", "never -> huge pages on request (madvise)"),
            ("tcp-mem", "764988 1019986 1529976 pages -> net.ipv4.tcp_mem = 2048000 3072000 4096000"),
            ("swap", "swappiness 60 -> vm.swappiness = 10"),
            ("cpu-quota", "2 CPUs, throttled 42 times -> no CPU quota"),
            ("somaxconn", "65535"),
            ("tcp-rmem", "4096 131072 6291456 -> net.ipv4.tcp_rmem = 4096 131072 16777216"),
        ],
    );
}

/// The rules can be read without the program that writes them; what to install is reported.
#[test]
fn without_nft_the_rules_are_still_known() {
    let without = TWO_NODES.replace("=== $ nft --version\n", "=== $ nothing\n");
    let install = "`nft` is not installed: install the package nftables";
    assert_stands(
        &without,
        Some(8080),
        &[("firewall", &format!("2 nftables rules from inet input 0, inet output 0 -> {install}"))],
    );
}

/// In a container, without a server, or without any readable file: every probe returns, and says why it has no
/// result.
#[test]
fn unknown_values_give_a_reason() {
    for text in [CONTAINER, ""] {
        let (_fake, host, served) = machine(text, None);
        let mut unknown = 0;
        for tuning in TUNINGS.iter() {
            for answer in [tuning.probe(&host, &served).err(), tuning.effect(&host, &served).err()] {
                assert!(answer.as_ref().is_none_or(|why| !why.0.is_empty()), "{}", tuning.about().name);
                unknown += usize::from(answer.is_some());
            }
            let _ = tuning.advice(&host, &served);
        }
        assert!(unknown > TUNINGS.len(), "{unknown}");
    }
}

/// Any file and any command output may be anything: nothing panics if one that a tuning reads is missing, empty,
/// truncated, too large, or garbage.
#[test]
fn answers_of_any_content_are_survived() {
    let mut mutants = 0;
    for text in [VIRTIO, ENA, TWO_NODES] {
        let entries: BTreeMap<&str, &str> =
            text.split("=== ").skip(1).filter_map(|entry| entry.split_once('\n')).collect();
        let (fake, host, _) = machine(text, None);
        let told = fake.replies();
        for tuning in TUNINGS.iter() {
            let _ = (fake.take_asked(), fake.take_asked_by_netlink());
            look(&host, *tuning);
            for asked in fake.take_asked() {
                let Some(whole) = entries.get(asked.as_str()) else { continue };
                for hostile in hostile(whole.as_bytes()) {
                    match asked.strip_prefix("$ ") {
                        Some(line) => fake.answer(line, &String::from_utf8_lossy(&hostile)),
                        None => fake.file(&asked, hostile),
                    }
                    look(&host, *tuning);
                    mutants += 1;
                }
                fake.plant(&asked, whole);
            }
            for (protocol, request) in fake.take_asked_by_netlink() {
                let Some(whole) = told.get(&(protocol, request.clone())) else { continue };
                for hostile in hostile(&whole.concat()) {
                    fake.set_reply(protocol, &request, &[hostile]);
                    look(&host, *tuning);
                    mutants += 1;
                }
                fake.set_reply(protocol, &request, whole);
            }
        }
    }
    assert!(mutants > 5000, "{mutants}");
}

/// The same with everything hostile at once.
#[test]
fn a_machine_of_nothing_but_garbage_is_survived() {
    for text in [VIRTIO, ENA, TWO_NODES] {
        let entries = || text.split("=== ").skip(1).filter_map(|entry| entry.split_once('\n'));
        for kind in 0..hostile(b"").len() {
            let (fake, host, _) = machine("", None);
            for ((protocol, request), whole) in Fake::recorded(text).replies() {
                fake.set_reply(protocol, &request, &[hostile(&whole.concat()).swap_remove(kind)]);
            }
            for (name, whole) in entries().filter(|(name, _)| !name.starts_with(['@', '~'])) {
                let content = hostile(whole.as_bytes()).swap_remove(kind);
                match name.strip_prefix("$ ") {
                    Some(line) => fake.answer(line, &String::from_utf8_lossy(&content)),
                    None => fake.file(name, content),
                }
            }
            TUNINGS.iter().for_each(|tuning| look(&host, *tuning));
        }
    }
}

/// Calls everything on a tuning, for a server on a port and for none.
fn look(host: &Host, tuning: &'static dyn Tuning) {
    for port in [Some(8080), None] {
        let served = Served::find(host, &ServerSelector { port, ..ServerSelector::default() }).unwrap();
        let _ = tuning.probe(host, &served);
        let _ = tuning.effect(host, &served);
        if let Ok(Some(planned)) = plan(host, &served, tuning) {
            let _ = planned.all_changes(true);
            let _ = Part::of(host, planned).map(|part| script(&[part]));
        }
    }
}

/// Hostile variants of a file.
fn hostile(whole: &[u8]) -> Vec<Vec<u8>> {
    let with = |from: char, to: &str| String::from_utf8_lossy(whole).replace(from, to).into_bytes();
    let mut contents = vec![
        Vec::new(),
        whole[..whole.len() / 2].to_vec(),
        whole[..whole.len() - whole.len().min(2)].to_vec(),
        [whole, whole].concat(),
        with('0', "18446744073709551615"),
        with('1', "99999999999999999999999"),
        with(' ', "\u{e9}"),
        with(':', ""),
        vec![0xff, 0, 0xfe, b'\n', 0x80],
        b"9 ".repeat(10_000),
    ];
    contents.extend(["-1", "0", "[", "a:b:c\n: :\n=", "{}", "[[]]"].map(|text| text.as_bytes().to_vec()));
    contents
}

/// Any reply from the kernel: truncated at any byte it is an error; with a matching length, or with any byte changed,
/// nothing panics.
#[test]
fn netlink_answers_of_any_bytes_are_survived() {
    for text in [VIRTIO, ENA, TWO_NODES, CONTAINER] {
        let (fake, host, _) = machine(text, None);
        for ((protocol, request), whole) in fake.replies() {
            for (at, datagram) in whole.iter().enumerate() {
                let told = |changed: &[u8]| {
                    let mut all = whole.clone();
                    all[at] = changed.to_vec();
                    fake.set_reply(protocol, &request, &all);
                };
                for end in 0..datagram.len() {
                    told(&datagram[..end]);
                    // Cut between two messages, only the rest of a list is missing, if its end is then missing too.
                    let is_whole = whole.len() > 1 && is_between_messages(datagram, end);
                    let asked = host.ask(protocol, &Request::of(&request));
                    assert!(is_whole || asked.is_err(), "{protocol:?} cut at {end}");
                    let mut short = datagram[..end].to_vec();
                    if let Some(length) = short.get_mut(..4) {
                        length.copy_from_slice(&(end as u32).to_ne_bytes());
                    }
                    told(&short);
                    read_netlink(&host);
                    let mut other = datagram.clone();
                    other[end] ^= 0xff;
                    told(&other);
                    read_netlink(&host);
                }
            }
            fake.set_reply(protocol, &request, &whole);
        }
    }
}

fn is_between_messages(datagram: &[u8], end: usize) -> bool {
    let mut at = 0;
    while at < end {
        at += u32::from_ne_bytes(datagram[at..at + 4].try_into().unwrap()) as usize;
    }
    at == end
}

/// Reads everything that uses netlink.
fn read_netlink(host: &Host) {
    let _ = (audit::enabled(host), audit::has_never_task(host));
    let _ = (nftables::chains(host), nftables::rules(host));
    let _ =
        (qdisc::list(host, "eth0"), qdisc::filters_count(host, "eth0", 0x1_0000), napi::list(host, "eth0"));
    for group in [ethtool::CHANNELS, ethtool::COALESCE, ethtool::RINGS] {
        let _ = ethtool::values(host, "eth0", group);
    }
    let _ = (ethtool::features(host, "eth0"), ethtool::indirection(host, "eth0"));
}

/// Changes of files are made with their persistent files and undone, on each machine.
#[test]
fn every_change_of_files_is_undone() {
    for text in [VIRTIO, ENA, TWO_NODES] {
        let (fake, host, served) = machine(text, Some(8080));
        let (state, before) = (Folder::new(), fake.snapshot());
        let session = Session::open(&host, &state.0).unwrap();
        let mut applied = 0;
        for tuning in TUNINGS.iter() {
            let Ok(Some(planned)) = plan(&host, &served, *tuning) else { continue };
            applied += usize::from(session.apply(tuning.about().name, &planned.all_changes(true)).is_ok());
        }
        assert!(applied >= 5, "{applied}");
        let (undone, _) = session.undo(&[]).unwrap();
        assert!(undone.iter().all(|one| one.fate.is_settled()), "{undone:?}");
        assert_eq!(fake.snapshot(), before);
    }
}

/// On the current machine, read-only: every probe returns.
#[test]
fn this_machine_is_read_without_harm() {
    let host = Host::live();
    let served = Served::find(&host, &ServerSelector::default()).unwrap();
    for tuning in TUNINGS.iter() {
        let _ = (tuning.probe(&host, &served), tuning.advice(&host, &served), tuning.effect(&host, &served));
    }
    assert!(find("file-max").unwrap().probe(&host, &served).is_ok());
}

#[test]
fn tunings_describe_themselves() {
    let mut names: Vec<&str> = TUNINGS.iter().map(|tuning| tuning.about().name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), TUNINGS.len());
    for about in TUNINGS.iter().map(|tuning| tuning.about()) {
        let named = |letter: char| letter.is_ascii_lowercase() || letter == '-';
        assert!(about.name.chars().all(named), "{}", about.name);
        assert!(
            !about.reason.is_empty() && !about.detail.is_empty() && !about.source.is_empty(),
            "{}",
            about.name
        );
        assert_eq!(about.lost.is_empty(), about.risk == Risk::Low, "{}: what is lost?", about.name);
    }
    assert_eq!(find("mitigations").unwrap().about().needs, Needs::Reboot);
}
