//! A machine for every tuning on which it finds something: a recorded one, with a planted burden. Changes that we can
//! make are made, and undone byte for byte.

use std::collections::BTreeSet;
use std::path::Path;

use super::tests::{ENA, TWO_NODES, VIRTIO};
use super::{TUNINGS, find};
use crate::change::{Change, Content};
use crate::fake::{Answers, Fake, Folder};
use crate::host::Host;
use crate::plan::plan;
use crate::served::{Served, ServerSelector};
use crate::session::Session;
use crate::system::RunError;
use crate::tuning::{Advice, Tuning};

/// Entries of a machine, as in `machines/*.txt`.
type MachineEntries = &'static [(&'static str, &'static str)];

/// A tuning, a machine, what is planted there, and what removes the burden if we cannot, or not at once.
type Burden = (&'static str, &'static str, MachineEntries, MachineEntries);

const NGINX: &str = "Name:	nginx\nPid:	7002\nPPid:	7000\nSeccomp:	0\n";

/// nftables with one base chain, `inet raw pre`, without rules.
const CHAINS: &str = "~ netfilter 14000000040a0103010000000000000000000000";
const ONE_CHAIN: &str = "4c000000030a020001000000000000000100000008000100726177000800030070726500140004800800010000000000\
                         08000200fffffed408000500000000010b00070066696c7465720000\n1400000003000200010000000000000000000000";
const RULES: &str = "~ netfilter 14000000070a0103010000000000000000000000";
const NO_RULES: &str = "1400000003000200010000000000000000000000";

/// Features of a card that has only rx-lro, off.
const FEATURES: &str = "~ generic 240000001500010001000000000000000b01000010000180090002006574683000000000";
const LRO_OFF: &str = "940000001500000001000000000000000b0100001800018008000100040000000900020065746830000000002c0002800800\
                       020040000000200003801c000180080001000f0000000b00020072782d6c726f000004000300140003800400010008000200\
                       400000000400038014000480040001000800020040000000040003801400058004000100080002004000000004000380";

/// A NAPI instance that suspends interrupts for 20 ms.
const NAPIS: &str = "~ generic 1c0000001400010301000000000000000b0100000800010004000000";
const SUSPENDS: &str = "4400000014000000010000006d6c00000b010000080002000101000008000100040000000800080000000000080005000000\
                        000008000700002d310108000600000000001400000003000200010000006d6c000000000000";

const BURDENS: &[Burden] = &[
    ("workers", TWO_NODES, &[], &[("/sys/devices/system/cpu/online", "0-2")]),
    ("pinning", TWO_NODES, &[], &[]),
    (
        "locality",
        TWO_NODES,
        &[],
        &[(
            "/proc/net/tcp",
            "sl local_address rem_address st tx_queue:rx_queue tr:when retrnsmt uid timeout inode\n\
             0: 00000000:1F90 00000000:0000 0A 0:0 0:0 0 0 0 5000\n\
             1: 00000000:1F90 00000000:0000 0A 0:0 0:0 0 0 0 5001\n",
        )],
    ),
    (
        "mitigations",
        ENA,
        &[],
        &[
            ("/proc/cmdline", "root=/dev/sda1 mitigations=off"),
            ("/etc/default/grub.d/90-flatout-mitigations.cfg", ""),
        ],
    ),
    ("audit", ENA, &[], &[]),
    (
        "seccomp",
        ENA,
        &[("/proc/4000/cgroup", "0::/system.slice/web.service")],
        &[("/proc/4000/status", "Name:	libreactor\nSeccomp:	0\n")],
    ),
    ("firewall", TWO_NODES, &[], &[]),
    ("firewall", ENA, &[("$ iptables --version", "iptables v1.8.4\n")], &[]),
    ("conntrack", TWO_NODES, &[(CHAINS, ONE_CHAIN), (RULES, NO_RULES)], &[]),
    ("conntrack-hash", ENA, &[], &[]),
    ("taps", ENA, &[], &[("/proc/net/packet", "sk RefCnt Type Proto Iface R Rmem User Inode\n")]),
    ("irq-affinity", ENA, &[("/proc/2900/comm", "sshd\n")], &[]),
    (
        "steal",
        ENA,
        &[("/proc/stat", "cpu  10 0 10 60 0 0 0 20 0 0\n")],
        &[("/proc/stat", "cpu  10 0 10 80 0 0 0 0 0 0\n")],
    ),
    (
        "pressure",
        ENA,
        &[
            ("/proc/pressure/cpu", "some avg10=45.00 avg60=1.00 avg300=0.00 total=1\n"),
            ("/proc/pressure/memory", "some avg10=0.00 avg60=0.00 avg300=0.00 total=1\n"),
            ("/proc/pressure/io", "some avg10=0.00 avg60=0.00 avg300=0.00 total=1\n"),
        ],
        &[("/proc/pressure/cpu", "some avg10=1.00 avg60=1.00 avg300=0.00 total=1\n")],
    ),
    (
        "softirq-balance",
        ENA,
        &[("/proc/net/softnet_stat", "00100000 0 0\n00000010 0 0\n00000010 0 0\n00000010 0 0\n")],
        &[("/proc/net/softnet_stat", "00100000 0 0\n00100000 0 0\n00100000 0 0\n00100000 0 0\n")],
    ),
    (
        "card-node",
        ENA,
        &[
            ("/sys/class/net/eth0/device/numa_node", "1\n"),
            ("/sys/devices/system/node/node1/distance", "21 10\n"),
        ],
        &[("/sys/devices/system/node/node1/distance", "10\n")],
    ),
    ("mtu", ENA, &[("/sys/class/net/eth0/mtu", "1400\n")], &[("/sys/class/net/eth0/mtu", "1500\n")]),
    ("managed", ENA, &[("/proc/3100/comm", "tuned\n")], &[("/proc/3100/comm", "sshd\n")]),
    ("numa-balancing", ENA, &[("/proc/sys/kernel/numa_balancing", "1\n")], &[]),
    ("notsent-lowat", ENA, &[("/proc/sys/net/ipv4/tcp_notsent_lowat", "4294967295\n")], &[]),
    ("limit-output", ENA, &[("/proc/sys/net/ipv4/tcp_limit_output_bytes", "262144\n")], &[]),
    ("irqbalance", ENA, &[], &[]),
    ("xps", ENA, &[], &[]),
    ("rps", TWO_NODES, &[], &[]),
    ("rfs", TWO_NODES, &[], &[]),
    ("arfs", ENA, &[("$ ethtool -k eth0", "Features for eth0:\nntuple-filters: off\n")], &[]),
    (
        "rss",
        ENA,
        &[("$ ethtool -x eth0", "RX flow hash\n 0: 0 1 0 1 0 1\n")],
        &[("$ ethtool -x eth0", "RX flow hash\n 0: 0 1 2 3 0\n")],
    ),
    (
        "card-drops",
        ENA,
        &[("$ ethtool -S eth0", "NIC statistics:\n     rx_drops: 12\n")],
        &[("$ ethtool -S eth0", "NIC statistics:\n     rx_drops: 0\n")],
    ),
    (
        "allowances",
        ENA,
        &[("$ ethtool -S eth0", "NIC statistics:\n     pps_allowance_exceeded: 12\n")],
        &[("$ ethtool -S eth0", "NIC statistics:\n     pps_allowance_exceeded: 0\n")],
    ),
    (
        "retransmits",
        ENA,
        &[("/proc/net/snmp", "Tcp: OutSegs RetransSegs\nTcp: 1000 50\n")],
        &[("/proc/net/snmp", "Tcp: OutSegs RetransSegs\nTcp: 100000 50\n")],
    ),
    (
        "conntrack-room",
        ENA,
        &[("/proc/sys/net/netfilter/nf_conntrack_count", "60000\n")],
        &[("/proc/sys/net/netfilter/nf_conntrack_count", "600\n")],
    ),
    ("channels", TWO_NODES, &[], &[]),
    ("rings", TWO_NODES, &[], &[]),
    ("coalescing", ENA, &[], &[]),
    ("static-moderation", TWO_NODES, &[], &[]),
    ("gro", ENA, &[("$ ethtool -k eth0", "Features for eth0:\ngeneric-receive-offload: off\n")], &[]),
    ("checksums", TWO_NODES, &[], &[]),
    ("segmentation", ENA, &[], &[]),
    ("lro", VIRTIO, &[(FEATURES, LRO_OFF)], &[("/proc/sys/net/ipv4/ip_forward", "1\n")]),
    ("busy-poll", ENA, &[], &[]),
    ("irq-suspension", VIRTIO, &[("/proc/net/netstat", "TcpExt: BusyPollRxPackets\nTcpExt: 7\n")], &[]),
    // Useless without busy polling.
    ("irq-suspension", VIRTIO, &[], &[(NAPIS, SUSPENDS)]),
    ("defer-interrupts", TWO_NODES, &[], &[]),
    ("threaded-napi", TWO_NODES, &[], &[]),
    ("qdisc", ENA, &[("/proc/sys/net/core/default_qdisc", "pfifo_fast\n")], &[]),
    ("default-qdisc", ENA, &[], &[]),
    ("congestion", ENA, &[], &[]),
    ("tcp-mem", TWO_NODES, &[], &[NO_PRESSURE]),
    // More than the memory of the machine, and less than anything could be served with.
    (
        "tcp-mem",
        TWO_NODES,
        &[TOO_MUCH_TCP_MEM, NO_PRESSURE],
        &[("/proc/sys/net/ipv4/tcp_mem", "768000\t1024000\t1536000\n")],
    ),
    ("tcp-mem", TWO_NODES, &[("/proc/sys/net/ipv4/tcp_mem", "1\t2\t3\n"), NO_PRESSURE], &[]),
    ("descriptors", ENA, &[], &[]),
    ("governor", TWO_NODES, &[], &[]),
    ("c-states", TWO_NODES, &[], &[]),
    ("huge-pages", TWO_NODES, &[], &[]),
    (
        "numa",
        TWO_NODES,
        &[],
        &[
            ("/proc/7000/status", "Name:	nginx\nSeccomp:	0\nCpus_allowed_list:	4-7\n"),
            ("/proc/7002/status", NGINX),
        ],
    ),
    ("clocksource", ENA, &[], &[]),
    ("swap", TWO_NODES, &[], &[]),
    ("cpu-quota", TWO_NODES, &[], &[]),
    ("cpu-quota", ENA, &[], &[]),
    ("somaxconn", ENA, &[("/proc/sys/net/core/somaxconn", "128\n")], &[]),
    (
        "syn-backlog",
        ENA,
        &[("/proc/sys/net/ipv4/tcp_max_syn_backlog", "512\n"), ("/proc/sys/net/ipv4/tcp_syncookies", "0\n")],
        &[("/proc/sys/net/ipv4/tcp_syncookies", "1\n")],
    ),
    ("synack-retries", ENA, &[("/proc/sys/net/ipv4/tcp_synack_retries", "5\n")], &[]),
    ("port-range", ENA, &[("/proc/sys/net/ipv4/ip_local_port_range", "32768\t60999\n")], &[]),
    ("tw-reuse", ENA, &[("/proc/sys/net/ipv4/tcp_tw_reuse", "2\n")], &[]),
    ("rmem-max", ENA, &[("/proc/sys/net/core/rmem_max", "212992\n")], &[]),
    ("wmem-max", ENA, &[("/proc/sys/net/core/wmem_max", "212992\n")], &[]),
    ("tcp-rmem", ENA, &[("/proc/sys/net/ipv4/tcp_rmem", "4096\t131072\t6291456\n")], &[]),
    ("tcp-wmem", ENA, &[("/proc/sys/net/ipv4/tcp_wmem", "4096\t16384\t4194304\n")], &[]),
    ("autocorking", ENA, &[("/proc/sys/net/ipv4/tcp_autocorking", "1\n")], &[]),
    ("slow-start-after-idle", ENA, &[("/proc/sys/net/ipv4/tcp_slow_start_after_idle", "1\n")], &[]),
    ("fastopen", ENA, &[("/proc/sys/net/ipv4/tcp_fastopen", "1\n")], &[]),
    ("netdev-backlog", ENA, &[("/proc/sys/net/core/netdev_max_backlog", "1000\n")], &[]),
    ("netdev-budget", ENA, &[("/proc/sys/net/core/netdev_budget", "300\n")], &[]),
    ("netdev-budget-usecs", ENA, &[("/proc/sys/net/core/netdev_budget_usecs", "2000\n")], &[]),
    ("busy-read", ENA, &[("/proc/sys/net/core/busy_read", "0\n")], &[]),
    (
        "neighbour-table",
        ENA,
        &[
            ("/proc/sys/net/ipv4/neigh/default/gc_thresh3", "1024\n"),
            ("/proc/net/stat/arp_cache", "entries table_fulls\n00000400 0000000a\n"),
        ],
        &[],
    ),
    ("bpf-stats", ENA, &[("/proc/sys/kernel/bpf_stats_enabled", "1\n")], &[]),
    (
        "kernel-log",
        ENA,
        &[("/dev/kmsg", "4,1,2,-;nf_conntrack: nf_conntrack: table full, dropping packet\n")],
        &[("/dev/kmsg", "6,1,2,-;eth0: link up\n")],
    ),
    ("max-tw-buckets", ENA, &[("/proc/sys/net/ipv4/tcp_max_tw_buckets", "65536\n")], &[]),
    ("max-orphans", ENA, &[("/proc/sys/net/ipv4/tcp_max_orphans", "4096\n")], &[]),
    ("conntrack-max", ENA, &[("/proc/sys/net/netfilter/nf_conntrack_max", "65536\n")], &[]),
    ("file-max", ENA, &[("/proc/sys/fs/file-max", "98304\n")], &[]),
    ("nr-open", ENA, &[("/proc/sys/fs/nr_open", "65536\n")], &[]),
    ("sack", ENA, &[("/proc/sys/net/ipv4/tcp_sack", "0\n")], &[]),
    ("window-scaling", ENA, &[("/proc/sys/net/ipv4/tcp_window_scaling", "0\n")], &[]),
    ("timestamps", ENA, &[("/proc/sys/net/ipv4/tcp_timestamps", "0\n")], &[]),
    ("syncookies", ENA, &[("/proc/sys/net/ipv4/tcp_syncookies", "0\n")], &[]),
    ("abort-on-overflow", ENA, &[("/proc/sys/net/ipv4/tcp_abort_on_overflow", "1\n")], &[]),
    ("syn-retries", ENA, &[("/proc/sys/net/ipv4/tcp_syn_retries", "6\n")], &[]),
    (
        "smt",
        ENA,
        &[("/sys/devices/system/cpu/smt/control", "off\n")],
        &[("/sys/devices/system/cpu/smt/control", "on\n")],
    ),
    (
        "turbo",
        ENA,
        &[("/sys/devices/system/cpu/intel_pstate/no_turbo", "1\n")],
        &[("/sys/devices/system/cpu/intel_pstate/no_turbo", "0\n")],
    ),
    (
        "energy-preference",
        ENA,
        &[("/sys/devices/system/cpu/cpu0/cpufreq/energy_performance_preference", "balance_power\n")],
        &[("/sys/devices/system/cpu/cpu0/cpufreq/energy_performance_preference", "performance\n")],
    ),
    (
        "isolated-cpus",
        ENA,
        &[("/sys/devices/system/cpu/isolated", "62-63\n")],
        &[("/sys/devices/system/cpu/isolated", "\n")],
    ),
    (
        "nohz-full",
        ENA,
        &[("/sys/devices/system/cpu/nohz_full", "1-63\n")],
        &[("/sys/devices/system/cpu/nohz_full", "(null)\n")],
    ),
    (
        "tracing",
        ENA,
        &[
            ("/sys/kernel/tracing/tracing_on", "1\n"),
            ("/sys/kernel/tracing/current_tracer", "function\n"),
            ("/sys/kernel/tracing/set_event", "net:netif_receive_skb\nkprobes:tcp\n"),
            ("/sys/kernel/tracing/events/net/netif_receive_skb/enable", "1\n"),
            ("/sys/kernel/tracing/events/kprobes/tcp/enable", "1\n"),
        ],
        &[("/sys/kernel/tracing/current_tracer", "nop\n"), ("/sys/kernel/tracing/set_event", "")],
    ),
    (
        "link",
        ENA,
        &[("/sys/class/net/eth0/speed", "100\n"), ("/sys/class/net/eth0/duplex", "half\n")],
        &[("/sys/class/net/eth0/speed", "25000\n"), ("/sys/class/net/eth0/duplex", "full\n")],
    ),
    (
        "bond",
        ENA,
        &[("/sys/class/net/eth0/bonding/slaves", "eth1 eth2\n")],
        &[("/sys/class/net/eth0/bonding/slaves", "\n")],
    ),
    (
        "socket-memory",
        ENA,
        &[
            ("/proc/net/sockstat", "sockets: used 9\nTCP: inuse 9 orphan 1 tw 0 alloc 9 mem 90\n"),
            ("/proc/sys/net/ipv4/tcp_mem", "50 75 100\n"),
        ],
        &[("/proc/net/sockstat", "sockets: used 9\nTCP: inuse 9 orphan 1 tw 0 alloc 9 mem 9\n")],
    ),
    (
        "cpuset",
        TWO_NODES,
        &[("/sys/fs/cgroup/cpuset.cpus.effective", "0-3\n")],
        &[("/sys/fs/cgroup/cpuset.cpus.effective", "0-7\n")],
    ),
    (
        "cpu-weight",
        TWO_NODES,
        &[
            ("/sys/fs/cgroup/cpu.weight", "20\n"),
            ("/proc/pressure/cpu", "some avg10=35.00 avg60=20.00 avg300=1.00 total=7\n"),
        ],
        &[("/proc/pressure/cpu", "some avg10=1.00 avg60=1.00 avg300=1.00 total=7\n")],
    ),
    ("cpu-burst", TWO_NODES, &[(BURST, "0\n")], &[(BURST, "200000\n")]),
    ("huge-page-defrag", ENA, &[(DEFRAG, "[always] defer defer+madvise madvise never\n")], &[]),
    (
        "huge-page-text",
        ENA,
        &[
            (
                "/proc/4000/maps",
                "400000-1800000 r-xp 00000000 fe:00 7 /usr/bin/web\n7ff0-7ff1 rw-p 0 00:00 0 [heap]\n",
            ),
            (
                "/proc/4000/smaps_rollup",
                "400000-7ff1 ---p 00000000 00:00 0 [rollup]\nFilePmdMapped:         0 kB\n",
            ),
            ("/proc/sys/kernel/osrelease", "6.8.0-test\n"),
            ("/boot/config-6.8.0-test", "CONFIG_TRANSPARENT_HUGEPAGE=y\nCONFIG_READ_ONLY_THP_FOR_FS=y\n"),
        ],
        &[("/proc/4000/smaps_rollup", "FilePmdMapped:     18432 kB\n")],
    ),
    (
        "bpf",
        ENA,
        &[(
            "$ bpftool prog show",
            "3: cgroup_device  name sd_devices  tag 01\n12: kprobe  name tcp_sendmsg  tag 02  gpl\n\tloaded_at 1\n",
        )],
        &[("$ bpftool prog show", "3: cgroup_device  name sd_devices  tag 01\n")],
    ),
    (
        "tcp-hash",
        ENA,
        &[
            ("/proc/sys/net/ipv4/tcp_ehash_entries", "-8192\n"),
            ("/proc/net/sockstat", "sockets: used 9\nTCP: inuse 9000 orphan 1 tw 90 alloc 9 mem 90\n"),
        ],
        &[("/proc/sys/net/ipv4/tcp_ehash_entries", "16384\n")],
    ),
    (
        "flow-limit",
        ENA,
        &[
            ("/proc/sys/net/core/flow_limit_cpu_bitmap", "0\n"),
            ("/sys/class/net/eth0/queues/rx-0/rps_cpus", "f\n"),
            ("/proc/net/softnet_stat", "00100000 0000000a 0\n"),
        ],
        &[("/proc/sys/net/core/flow_limit_cpu_bitmap", "f\n")],
    ),
    (
        "big-tcp",
        ENA,
        &[(
            "$ ip -details link show dev eth0",
            "2: eth0: mtu 9001\n gso_max_size 65536 gso_max_segs 65535 tso_max_size 524280 gro_max_size 65536\n",
        )],
        &[(
            "$ ip -details link show dev eth0",
            "2: eth0: mtu 9001\n gso_max_size 65536 gso_max_segs 65535 tso_max_size 65536\n",
        )],
    ),
    ("hardware-gro", ENA, &[("$ ethtool -k eth0", "Features for eth0:\nrx-gro-hw: off\n")], &[]),
    (
        "tls-offload",
        ENA,
        &[
            ("$ ethtool -k eth0", "Features for eth0:\ntls-hw-tx-offload: off\n"),
            ("/proc/net/tls_stat", "TlsCurrTxSw\t7\nTlsTxSw \t7\nTlsTxDevice \t0\n"),
        ],
        &[("/proc/net/tls_stat", "TlsTxSw \t0\nTlsTxDevice \t0\n")],
    ),
];

const BURST: &str = "/sys/fs/cgroup/system.slice/nginx.service/cpu.max.burst";
const DEFRAG: &str = "/sys/kernel/mm/transparent_hugepage/defrag";

const NO_PRESSURE: (&str, &str) = ("/proc/net/netstat", "TcpExt: TCPMemoryPressures\nTcpExt: 0\n");
const TOO_MUCH_TCP_MEM: (&str, &str) = ("/proc/sys/net/ipv4/tcp_mem", "786432\t1048576\t26777216\n");

/// Tunings that lower a value on purpose.
const LOWERING: &[&str] = &[
    "abort-on-overflow",
    "bpf-stats",
    "tracing",
    // The file says that it is off.
    "turbo",
    "numa-balancing",
    "notsent-lowat",
    "synack-retries",
    "syn-retries",
    "swap",
    "tw-reuse",
    "autocorking",
    "slow-start-after-idle",
    // Only what is more than half of the memory.
    "tcp-mem",
];

fn machine(text: &str, planted: MachineEntries) -> Fake {
    let fake = Fake::recorded(text);
    fake.handle(kernel);
    planted.iter().for_each(|(name, content)| fake.plant(name, content));
    fake
}

fn served(host: &Host) -> Served {
    Served::find(host, &ServerSelector { port: Some(8080), ..ServerSelector::default() }).unwrap()
}

fn advice(host: &Host, tuning: &dyn Tuning) -> Advice {
    tuning.advice(host, &served(host)).unwrap_or_else(|why| panic!("{}: {why}", tuning.about().name))
}

#[test]
fn each_planted_burden_is_found_and_undone() {
    for (name, text, planted, relief) in BURDENS {
        let tuning = find(name).unwrap();
        let (fake, state) = (machine(text, planted), Folder::new());
        let (host, before) = (fake.host(), fake.snapshot());
        let found = advice(&host, tuning);
        assert_ne!(found, Advice::Fine, "{name}");
        if matches!(found, Advice::Change { .. }) {
            let planned = plan(&host, &served(&host), tuning).unwrap().unwrap();
            let session = Session::open(&host, &state.0).unwrap();
            let made = session.apply(name, &planned.all_changes(true)).unwrap();
            assert!(!made.is_empty(), "{name}");
            match advice(&host, tuning) {
                Advice::Change { what, .. } => panic!("{name}: done, and still: {what}"),
                Advice::ByHand(what) => assert!(!planned.then.is_empty(), "{name}: {what}"),
                Advice::Fine => {}
            }
            let (undone, broken) = session.undo(&[]).unwrap();
            assert!(broken.is_empty() && undone.iter().all(|one| one.fate.is_settled()), "{undone:?}");
            assert_eq!(fake.snapshot(), before, "{name}");
            assert_eq!(advice(&host, tuning), found, "{name}");
        } else {
            assert!(!relief.is_empty(), "{name}: what ends it?");
        }
        if !relief.is_empty() {
            relief.iter().for_each(|(name, content)| fake.plant(name, content));
            assert_eq!(advice(&host, tuning), Advice::Fine, "{name}");
        }
    }
}

/// An event with a trigger reads `1*`, which the kernel does not accept back.
#[test]
fn events_with_triggers_stay_on() {
    let (_, text, planted, _) = BURDENS.iter().find(|(name, ..)| *name == "tracing").unwrap();
    let fake = machine(text, planted);
    fake.plant("/sys/kernel/tracing/events/net/netif_receive_skb/enable", "1*\n");
    let host = fake.host();
    let planned = plan(&host, &served(&host), find("tracing").unwrap()).unwrap().unwrap();
    let changes = planned.all_changes(true);
    let events: Vec<String> =
        changes.iter().map(|change| change.setting.name()).filter(|name| name.ends_with("/enable")).collect();
    assert_eq!(events, ["/sys/kernel/tracing/events/kprobes/tcp/enable"]);
}

#[test]
fn texts_have_no_runs_of_blanks() {
    for tuning in TUNINGS.iter() {
        let about = tuning.about();
        for text in [about.reason, about.detail, about.source, about.lost] {
            assert!(!text.contains("  "), "{}: {text}", about.name);
        }
    }
}

#[test]
fn each_tuning_has_a_burden() {
    let planted: BTreeSet<&str> = BURDENS.iter().map(|(name, ..)| *name).collect();
    let all: BTreeSet<&str> = TUNINGS.iter().map(|tuning| tuning.about().name).collect();
    assert_eq!(planted, all);
}

/// No number is lowered, unless that is the purpose: neither on the machines as they are, nor where someone has
/// already set ten times as much.
#[test]
fn no_value_is_lowered() {
    let mut compared = 0;
    let everything =
        [VIRTIO, ENA, TWO_NODES].map(|text| TUNINGS.iter().map(move |tuning| (*tuning, text, [].as_slice())));
    let planted = BURDENS.iter().map(|(name, text, planted, _)| (find(name).unwrap(), *text, *planted));
    for (tuning, text, planted) in everything.into_iter().flatten().chain(planted) {
        if LOWERING.contains(&tuning.about().name) {
            continue;
        }
        let fake = machine(text, planted);
        let host = fake.host();
        for change in changes(&host, tuning) {
            compared += assert_raises(&host, tuning, &change);
            let Some(wanted) = numbers(&change.to) else { continue };
            let higher = wanted.iter().map(|number| (number * 10).to_string()).collect::<Vec<_>>();
            let separator = if text_of(&change.to).contains(':') { ":" } else { " " };
            // A card refuses more than its maximum.
            let _ = change.setting.kind().write(&host, &Content::Text(higher.join(separator)));
        }
        compared +=
            changes(&host, tuning).iter().map(|change| assert_raises(&host, tuning, change)).sum::<usize>();
    }
    assert!(compared > 50, "{compared}");
}

fn changes(host: &Host, tuning: &'static dyn Tuning) -> Vec<Change> {
    let planned = plan(host, &served(host), tuning).ok().flatten();
    planned.map_or(Vec::new(), |planned| planned.changes)
}

fn assert_raises(host: &Host, tuning: &dyn Tuning, change: &Change) -> usize {
    let now = change.setting.kind().read(host).unwrap_or(Content::Absent);
    let (Some(now), Some(wanted)) = (numbers(&now), numbers(&change.to)) else { return 0 };
    let name = tuning.about().name;
    match change.setting.name() {
        // CPU masks and queues are not amounts.
        setting
            if setting.ends_with("_cpus")
                || setting.ends_with("_list")
                || setting.starts_with("CPUs of")
                || setting.starts_with("receive table") =>
        {
            0
        }
        // A range starts with its lower end.
        setting if setting.ends_with("port_range") => {
            assert!(wanted[0] <= now[0] && wanted[1] >= now[1], "{name}: from {now:?} to {wanted:?}");
            1
        }
        setting => {
            let is_lower = now.iter().zip(&wanted).any(|(now, wanted)| wanted < now);
            assert!(!is_lower, "{name}: {setting} from {now:?} to {wanted:?}");
            1
        }
    }
}

fn text_of(content: &Content) -> &str {
    content.bytes().and_then(|bytes| std::str::from_utf8(bytes).ok()).unwrap_or_default()
}

/// The numbers of a value that consists of numbers.
fn numbers(content: &Content) -> Option<Vec<u64>> {
    let words = text_of(content).split([' ', '\t', '\n', ':']).filter(|word| !word.is_empty());
    let numbers: Vec<u64> = words.map(|word| word.parse().ok()).collect::<Option<_>>()?;
    (!numbers.is_empty()).then_some(numbers)
}

/// The effects of commands on these machines. Netlink requests are handled by `netlink::fake`.
fn kernel(answers: &mut Answers, root: &Path, line: &str, input: &str) -> Result<(), RunError> {
    let words: Vec<&str> = line.split(' ').collect();
    match words.as_slice() {
        ["ethtool", "-X", device, "equal", queues] => {
            let answer = answers.get_mut(&format!("ethtool -x {device}")).ok_or(RunError::Missing)?;
            let (head, table) = answer.split_once('\n').unwrap();
            let queues: usize = queues.parse().unwrap();
            let entries = table.split_whitespace().count() - 1;
            let even: Vec<String> = (0..entries).map(|entry| (entry % queues).to_string()).collect();
            *answer = format!("{head}\n 0: {}\n", even.join(" "));
        }
        ["ethtool", flag, device, key, value] => {
            let shown = format!("ethtool {} {device}", flag.to_lowercase());
            let answer = answers.get_mut(&shown).ok_or(RunError::Missing)?;
            *answer = ethtool_set(answer, key, value);
        }
        ["ip", "link", "set", "dev", device, key, value] => {
            let shown = format!("ip -details link show dev {device}");
            let answer = answers.get_mut(&shown).ok_or(RunError::Missing)?;
            let mut words = answer.split(' ').map(str::to_owned).collect::<Vec<_>>();
            let at = words.iter().position(|word| word == key).ok_or(RunError::Missing)? + 1;
            let end = if words[at].ends_with('\n') { "\n" } else { "" };
            words[at] = format!("{value}{end}");
            *answer = words.join(" ");
        }
        ["taskset", "-pc", cpus, thread] => {
            let line = |old: &str| {
                old.starts_with("Cpus_allowed_list").then(|| format!("Cpus_allowed_list:\t{cpus}"))
            };
            edit(root, &format!("proc/{thread}/status"), line);
        }
        ["prlimit", "--pid", pid, limit] => {
            let (soft, hard) = limit.trim_start_matches("--nofile=").split_once(':').unwrap();
            let line = |old: &str| {
                old.starts_with("Max open files")
                    .then(|| format!("Max open files            {soft:<20} {hard:<20} files     "))
            };
            edit(root, &format!("proc/{pid}/limits"), line);
        }
        ["systemctl", verb, unit] => {
            let state = if *verb == "start" { "active\n" } else { "inactive\n" };
            answers.insert(format!("systemctl show -p ActiveState --value {unit}"), state.to_owned());
            let name = if *verb == "start" { unit.trim_end_matches(".service") } else { "ended" };
            std::fs::write(root.join("proc/2900/comm"), format!("{name}\n")).unwrap();
        }
        ["iptables" | "ip6tables", "-w", "-t", table, action, rule @ ..] => {
            let check = format!("{} -w -t {table} -C {}", words[0], rule.join(" "));
            match *action {
                "-C" => return Err(RunError::Failed(Some(1), String::new())),
                "-I" => answers.insert(check, String::new()),
                _ => answers.remove(&check),
            };
        }
        ["nft", "-f", "-"] => nft(answers, input),
        ["nft", "delete", "table", family, table] => {
            answers.remove(&format!("nft -s list table {family} {table}"));
            let tables = answers.entry("nft list tables".to_owned()).or_default();
            *tables = tables.replace(&format!("table {family} {table}\n"), "");
        }
        // Our rule is removed by its handle, which only a listing shows.
        ["sh", "-c", .., family, table, chain] => {
            let chain = answers
                .get_mut(&format!("nft -s list chain {family} {table} {chain}"))
                .ok_or(RunError::Missing)?;
            let others = chain.lines().filter(|line| !line.contains("comment \"flatout tune\""));
            *chain = others.map(|line| format!("{line}\n")).collect();
        }
        _ => return Err(RunError::Missing),
    }
    Ok(())
}

fn ethtool_set(answer: &str, key: &str, value: &str) -> String {
    let shown = match key {
        "gro" => "generic-receive-offload",
        key => key,
    };
    let mut is_meant = false;
    let line = |line: &str| match (key, line.split_once(':')) {
        ("adaptive-rx", Some(("Adaptive RX", rest))) => {
            let rest = rest.trim_start().split_once(' ').map_or("", |(_, rest)| rest);
            format!("Adaptive RX: {value} {rest}\n")
        }
        (_, Some((name, _))) => {
            // The name for several features is above them.
            is_meant = name == shown || (is_meant && name.starts_with('\t'));
            if is_meant { format!("{name}: {value}\n") } else { format!("{line}\n") }
        }
        _ => format!("{line}\n"),
    };
    answer.lines().map(line).collect()
}

fn nft(answers: &mut Answers, input: &str) {
    match input.strip_prefix("insert rule ") {
        Some(rule) => {
            let words: Vec<&str> = rule.trim().splitn(4, ' ').collect();
            let listed = answers.get_mut(&format!("nft -s list chain {}", words[..3].join(" "))).unwrap();
            *listed = listed.replacen("policy drop;\n", &format!("policy drop;\n\t\t{}\n", words[3]), 1);
        }
        None => {
            let (name, text) = input.split_once('\n').unwrap();
            let text = text.split_once('\n').unwrap().1;
            answers.insert(format!("nft -s list {name}"), text.to_owned());
            answers.entry("nft list tables".to_owned()).or_default().push_str(&format!("{name}\n"));
        }
    }
}

/// Replaces the lines of a file for which `line` returns something.
fn edit(root: &Path, path: &str, line: impl Fn(&str) -> Option<String>) {
    let text = std::fs::read_to_string(root.join(path)).unwrap();
    let lines = text.lines().map(|old| line(old).unwrap_or_else(|| old.to_owned()) + "\n");
    std::fs::write(root.join(path), lines.collect::<String>()).unwrap();
}
