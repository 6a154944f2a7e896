//! Sysctls: all have the same shape, so they are a table.

use std::collections::BTreeSet;

use super::facts::is_kubernetes_node;
use crate::change::Change;
use crate::counters::{conntrack_dropped, file, netstat, of_table, softnet, vmstat};
use crate::error::Unknown;
use crate::host::Host;
use crate::netlink::diag::listening;
use crate::served::Served;
use crate::server::Processes;
use crate::settings::Setting;
use crate::tuning::{About, Advice, Counter, Needs, Proof, Risk, Scope, Tuning};

/// A sysctl and its wanted value.
pub(super) struct Sysctl {
    pub(super) about: About,
    /// The evidence that it needs to be suggested.
    pub(super) proof: Proof,
    pub(super) key: &'static str,
    pub(super) aim: Aim,
    pub(super) effect: fn(&Host, &Served) -> Result<Counter, Unknown>,
}

/// The wanted value of a sysctl. All but `AtMost` and `Exactly` only raise: a larger value of the user stays.
#[derive(Debug, Clone, Copy)]
pub(super) enum Aim {
    /// A number that is at least this.
    AtLeast(u64),
    /// A number that is at most this: lowering it is the purpose.
    AtMost(u64),
    /// Three numbers of which the last, a maximum, is at least this.
    MaximumAtLeast(u64),
    /// A range of two numbers that includes at least this one.
    Range(u64, u64),
    /// These bits are set.
    Bits(u64),
    /// This value.
    Exactly(u64),
}

pub(super) static SYSCTLS: &[Sysctl] = &[
    Sysctl {
        about: About {
            name: "somaxconn",
            reason: "a burst of new connections waits instead of being dropped",
            detail: "It limits the backlog of every listening socket. A server has to listen again to get a larger \
                     one. The kernel counts the connections that each socket drops, and ListenOverflows those of all.",
            source: "Yang Jian 2008: 32768; listen(2)",
            gain_percent: 1.0,
            ..PER_NAMESPACE
        },
        proof: Proof::Counter,
        key: "net.core.somaxconn",
        aim: Aim::AtLeast(32_768),
        effect: connections_dropped,
    },
    Sysctl {
        about: About {
            name: "syn-backlog",
            reason: "half-open connections wait instead of being dropped",
            detail: "The kernel reads it only while tcp_syncookies is 0. With cookies, as by default, the backlog of the \
                     listening socket is the limit, and `somaxconn` is its limit.",
            source: "Yang Jian 2008: 65536; tcp(7); tcp_conn_request in net/ipv4/tcp_input.c",
            gain_percent: 0.6,
            ..PER_NAMESPACE
        },
        proof: Proof::Counter,
        key: SYN_BACKLOG,
        aim: Aim::AtLeast(65_536),
        effect: |host, _| netstat(host, "ListenDrops"),
    },
    Sysctl {
        about: About {
            name: "synack-retries",
            reason: "peers that never answer are forgotten after 7 s instead of 63",
            detail: "A half-open connection is kept during all retries, and the time between them doubles.",
            source: "Yang Jian 2008: 2; tcp(7)",
            lost: "a peer on a very lossy path may fail to connect",
            risk: Risk::Medium,
            gain_percent: 0.1,
            ..PER_NAMESPACE
        },
        proof: Proof::Asking,
        key: "net.ipv4.tcp_synack_retries",
        aim: Aim::AtMost(2),
        effect: |host, _| netstat(host, "TCPTimeouts"),
    },
    Sysctl {
        about: About {
            name: "port-range",
            reason: "a proxy or a load generator has more ports to connect from",
            detail: "Each connection to one address needs a port of its own. Ports below 10000 stay free for \
                     services.",
            source: "ip(7); admin-guide/sysctl/net",
            gain_percent: 0.5,
            ..PER_NAMESPACE
        },
        proof: Proof::Asking,
        key: "net.ipv4.ip_local_port_range",
        aim: Aim::Range(10_000, 65_535),
        effect: |host, _| netstat(host, "ActiveOpens"),
    },
    Sysctl {
        about: About {
            name: "tw-reuse",
            reason: "a port in TIME-WAIT is reused for an outgoing connection after one second",
            detail: "Safe if both sides send timestamps, as Linux does by default. Only outgoing connections gain.",
            source: "Yang Jian 2008: 1; ip-sysctl",
            gain_percent: 0.5,
            ..PER_NAMESPACE
        },
        proof: Proof::Asking,
        key: "net.ipv4.tcp_tw_reuse",
        aim: Aim::Exactly(1),
        effect: |host, _| netstat(host, "TWRecycled"),
    },
    Sysctl {
        about: About {
            name: "rmem-max",
            reason: "a program may ask for a large receive buffer",
            detail: "It limits SO_RCVBUF. TCP sizes its own buffers by tcp_rmem. No counter proves that a program was \
                     held back: RcvPruned counts packets dropped by full buffers of any kind.",
            source: "Yang Jian 2008: 16 MiB; socket(7)",
            gain_percent: 0.3,
            ..PER_NAMESPACE
        },
        proof: Proof::Asking,
        key: "net.core.rmem_max",
        aim: Aim::AtLeast(16 << 20),
        effect: |host, _| netstat(host, "RcvPruned"),
    },
    Sysctl {
        about: About {
            name: "wmem-max",
            reason: "a program may ask for a large send buffer",
            detail: "It limits SO_SNDBUF. TCP sizes its own buffers by tcp_wmem.",
            source: "Yang Jian 2008: 16 MiB; socket(7)",
            gain_percent: 0.3,
            ..PER_NAMESPACE
        },
        proof: Proof::Counter,
        key: "net.core.wmem_max",
        aim: Aim::AtLeast(16 << 20),
        effect: |host, _| netstat(host, "TCPWqueueTooBig"),
    },
    Sysctl {
        about: About {
            name: "tcp-rmem",
            reason: "uploads over long paths are not held back by a small window",
            detail: "The third number is how far TCP lets a receive buffer grow; the memory is used only \
                     when needed.",
            source: "Yang Jian 2008: 16 MiB; tcp(7)",
            gain_percent: 0.3,
            ..PER_NAMESPACE
        },
        proof: Proof::Counter,
        key: "net.ipv4.tcp_rmem",
        aim: Aim::MaximumAtLeast(16 << 20),
        effect: |host, _| netstat(host, "TCPRcvCollapsed"),
    },
    Sysctl {
        about: About {
            name: "tcp-wmem",
            reason: "large responses over long paths are not held back by a small buffer",
            detail: "The third number is how far TCP lets a send buffer grow; the memory is used only when \
                     needed. No counter proves that it is too small. If TCPMemoryPressures grows, the machine has too \
                     little memory for its buffers (tcp_mem), and larger ones make that worse.",
            source: "Yang Jian 2008: 16 MiB; tcp(7)",
            gain_percent: 0.3,
            ..PER_NAMESPACE
        },
        proof: Proof::Asking,
        key: "net.ipv4.tcp_wmem",
        aim: Aim::MaximumAtLeast(16 << 20),
        effect: |host, _| netstat(host, "TCPMemoryPressures"),
    },
    Sysctl {
        about: About {
            name: "autocorking",
            reason: "a small response is not held back while another is on its way through the card",
            detail: "The kernel delays small writes to merge them. A server that sends each response with one write \
                     gains nothing from that; one that writes in pieces may send more packets without it.",
            source: "tcp_autocorking in ip-sysctl",
            lost: "programs that write in small pieces send more packets",
            risk: Risk::Medium,
            gain_percent: 0.8,
            ..PER_NAMESPACE
        },
        proof: Proof::Asking,
        key: "net.ipv4.tcp_autocorking",
        aim: Aim::Exactly(0),
        effect: |host, _| netstat(host, "TCPAutoCorking"),
    },
    Sysctl {
        about: About {
            name: "slow-start-after-idle",
            reason: "a kept-alive connection sends at full speed after a pause",
            detail: "After an idle time of one retransmission timeout the window falls back to its initial size. \
                     Responses over 14 KB on kept-alive connections then take more round trips.",
            source: "RFC 5681 section 4.1; ip-sysctl",
            gain_percent: 0.9,
            ..PER_NAMESPACE
        },
        proof: Proof::Asking,
        key: "net.ipv4.tcp_slow_start_after_idle",
        aim: Aim::Exactly(0),
        effect: |host, _| netstat(host, "OutSegs"),
    },
    Sysctl {
        about: About {
            name: "fastopen",
            reason: "a returning client's first request comes with its SYN",
            detail: "Bit 2 lets servers take data in a SYN; the server must also set TCP_FASTOPEN on its \
                     listener.",
            source: "RFC 7413; ip-sysctl",
            lost: "a request in a SYN may be delivered twice: safe for GET, not for what changes something",
            risk: Risk::Medium,
            gain_percent: 0.2,
            ..PER_NAMESPACE
        },
        proof: Proof::Asking,
        key: "net.ipv4.tcp_fastopen",
        aim: Aim::Bits(3),
        effect: |host, _| netstat(host, "TCPFastOpenPassive"),
    },
    Sysctl {
        about: About {
            name: "netdev-backlog",
            reason: "a burst of packets for another CPU is queued instead of dropped",
            detail: "It bounds the queue of each CPU that RPS, loopback and virtual devices use; the second column of \
                     softnet_stat counts what was dropped.",
            source: "Yang Jian 2008: 32768; admin-guide/sysctl/net",
            scope: Scope::Host,
            gain_percent: 0.4,
            ..PER_NAMESPACE
        },
        proof: Proof::Counter,
        key: "net.core.netdev_max_backlog",
        aim: Aim::AtLeast(32_768),
        effect: |host, _| softnet(host, 1, "dropped"),
    },
    Sysctl {
        about: About {
            name: "netdev-budget",
            reason: "a softirq handles more packets before it yields",
            detail: "The third column of softnet_stat counts how often the budget ran out with packets left.",
            source: "admin-guide/sysctl/net",
            scope: Scope::Host,
            needs: Needs::Card,
            gain_percent: 0.4,
            ..PER_NAMESPACE
        },
        proof: Proof::Counter,
        key: "net.core.netdev_budget",
        aim: Aim::AtLeast(600),
        effect: |host, _| softnet(host, 2, "time_squeeze"),
    },
    Sysctl {
        about: About {
            name: "netdev-budget-usecs",
            reason: "a softirq works longer before it yields",
            detail: "The counter is that of `netdev-budget`: whichever limit is reached first ends a round. The \
                     kernel's default is two ticks of its clock, so only kernels with a fast clock need more.",
            source: "admin-guide/sysctl/net",
            scope: Scope::Host,
            needs: Needs::Card,
            gain_percent: 0.4,
            ..PER_NAMESPACE
        },
        proof: Proof::Counter,
        key: "net.core.netdev_budget_usecs",
        aim: Aim::AtLeast(4000),
        effect: |host, _| softnet(host, 2, "time_squeeze"),
    },
    Sysctl {
        about: About {
            name: "busy-read",
            reason: "a program polls the card before it sleeps in recv()",
            detail: "For servers that block in recv() or read() with a thread for each connection; for epoll_wait() \
                     see `busy-poll`. A program that sets SO_BUSY_POLL on its sockets needs no setting of the host.",
            source: "socket(7): SO_BUSY_POLL; admin-guide/sysctl/net: 50",
            scope: Scope::Host,
            lost: "programs use CPU while they wait",
            risk: Risk::Medium,
            needs: Needs::Card,
            gain_percent: 0.15,
        },
        proof: Proof::Asking,
        key: "net.core.busy_read",
        aim: Aim::AtLeast(50),
        effect: |host, _| netstat(host, "BusyPollRxPackets"),
    },
    Sysctl {
        about: About {
            name: "max-tw-buckets",
            reason: "connections in TIME-WAIT are kept under load instead of being dropped early",
            detail: "The side that closes first keeps one for a minute. If it is dropped early, a late packet may \
                     get into a new connection. TCPTimeWaitOverflow counts them.",
            source: "ip-sysctl",
            gain_percent: 0.1,
            ..PER_NAMESPACE
        },
        proof: Proof::Counter,
        key: "net.ipv4.tcp_max_tw_buckets",
        aim: Aim::AtLeast(262_144),
        effect: |host, _| netstat(host, "TCPTimeWaitOverflow"),
    },
    Sysctl {
        about: About {
            name: "neighbour-table",
            reason: "a full table of neighbours (ARP) drops packets to the others",
            detail: "Each machine of the same network that is talked to takes an entry, and so does each pod of a bridge. table_fulls counts \
                     the entries that found no room; the kernel logs \"neighbor table overflow\" then.",
            source: "ip-sysctl: neigh/default/gc_thresh3; net/core/neighbour.c",
            scope: Scope::Host,
            gain_percent: 0.1,
            ..PER_NAMESPACE
        },
        proof: Proof::Counter,
        key: "net.ipv4.neigh.default.gc_thresh3",
        aim: Aim::AtLeast(8192),
        effect: |host, _| of_table(host, "arp_cache", "table_fulls"),
    },
    Sysctl {
        about: About {
            name: "bpf-stats",
            reason: "the kernel measures each run of a BPF program, which costs as much as a short one",
            detail: "Two readings of the clock for each run, while kernel.bpf_stats_enabled is 1. It is for measurements, and often left on \
                     after one.",
            source: "admin-guide/sysctl/kernel: bpf_stats_enabled",
            scope: Scope::Host,
            risk: Risk::Medium,
            lost: "run times of BPF programs, if somebody reads them (bpftool prog show)",
            gain_percent: 0.35,
            ..PER_NAMESPACE
        },
        proof: Proof::Setting,
        key: "kernel.bpf_stats_enabled",
        aim: Aim::Exactly(0),
        effect: |host, _| file(host, "/proc/sys/kernel/bpf_stats_enabled"),
    },
    Sysctl {
        about: About {
            name: "max-orphans",
            reason: "closed connections that still send are not reset under load",
            detail: "Each may hold up to 64 KiB of memory that cannot be swapped.",
            source: "ip-sysctl",
            scope: Scope::Host,
            gain_percent: 0.1,
            ..PER_NAMESPACE
        },
        proof: Proof::Counter,
        key: "net.ipv4.tcp_max_orphans",
        aim: Aim::AtLeast(65_536),
        effect: |host, _| netstat(host, "TCPAbortOnMemory"),
    },
    Sysctl {
        about: About {
            name: "conntrack-max",
            reason: "a full connection table drops new connections",
            detail: "Each entry takes about 320 bytes. Leaving the served port untracked (`conntrack`) is better.",
            source: "nf_conntrack-sysctl",
            gain_percent: 0.7,
            ..PER_NAMESPACE
        },
        proof: Proof::Counter,
        key: "net.netfilter.nf_conntrack_max",
        aim: Aim::AtLeast(262_144),
        effect: |host, _| conntrack_dropped(host),
    },
    Sysctl {
        about: About {
            name: "file-max",
            reason: "the whole host may have a million files and sockets open",
            detail: "Each process also has a limit of its own: `descriptors`.",
            source: "proc_sys_fs(5)",
            scope: Scope::Host,
            gain_percent: 0.1,
            ..PER_NAMESPACE
        },
        proof: Proof::Asking,
        key: "fs.file-max",
        aim: Aim::AtLeast(1 << 20),
        effect: |host, _| {
            let table = host.text("/proc/sys/fs/file-nr")?;
            let value = table.split_whitespace().next().and_then(|word| word.parse().ok()).unwrap_or(0);
            Ok(Counter { name: "fs.file-nr".to_owned(), value })
        },
    },
    Sysctl {
        about: About {
            name: "numa-balancing",
            reason: "the kernel unmaps memory now and then to see which node uses it",
            detail: "It helps programs that are not bound to a node. A server that is bound, or a machine with one \
                     node, only pays for it. numa_pages_migrated in /proc/vmstat counts what it moves.",
            source: "admin-guide/sysctl/kernel",
            scope: Scope::Host,
            risk: Risk::Medium,
            lost: "programs that are not bound to a node keep memory far from them",
            gain_percent: 0.9,
            ..PER_NAMESPACE
        },
        proof: Proof::Asking,
        key: "kernel.numa_balancing",
        aim: Aim::Exactly(0),
        effect: |host, _| vmstat(host, "numa_pages_migrated"),
    },
    Sysctl {
        about: About {
            name: "notsent-lowat",
            reason: "a server that produces faster than a client reads fills the kernel with unsent bytes",
            detail: "With a limit, a connection is writable only while less than this is unsent. That takes less \
                     memory, and HTTP/2 and streams send newer bytes first. A server can set it for its sockets: \
                     TCP_NOTSENT_LOWAT.",
            source: "tcp(7); ip-sysctl",
            risk: Risk::Medium,
            lost: "programs that write in large pieces wake up more often",
            gain_percent: 0.2,
            ..PER_NAMESPACE
        },
        proof: Proof::Asking,
        key: "net.ipv4.tcp_notsent_lowat",
        aim: Aim::AtMost(131_072),
        effect: |host, _| netstat(host, "TCPMemoryPressures"),
    },
    Sysctl {
        about: About {
            name: "limit-output",
            reason: "a connection holds bytes back until the card has sent the earlier ones",
            detail: "TCP small queues: 1 MiB for a connection by default. Older kernels had 256 KiB, which is too \
                     little for large responses on fast cards.",
            source: "ip-sysctl: tcp_limit_output_bytes",
            needs: Needs::Card,
            gain_percent: 0.2,
            ..PER_NAMESPACE
        },
        proof: Proof::Asking,
        key: "net.ipv4.tcp_limit_output_bytes",
        aim: Aim::AtLeast(1 << 20),
        effect: |host, _| netstat(host, "TCPAutoCorking"),
    },
    Sysctl {
        about: About {
            name: "nr-open",
            reason: "one process may be allowed a million files and sockets",
            detail: "The upper limit of RLIMIT_NOFILE, also for root.",
            source: "proc_sys_fs(5)",
            scope: Scope::Host,
            gain_percent: 0.1,
            ..PER_NAMESPACE
        },
        proof: Proof::Asking,
        key: "fs.nr_open",
        aim: Aim::AtLeast(1 << 20),
        effect: |host, _| file(host, "/proc/sys/fs/nr_open"),
    },
];

/// What most of them have in common: per network namespace, without risk, measurable on any path.
pub(super) const PER_NAMESPACE: About = About {
    name: "",
    reason: "",
    detail: "",
    source: "",
    scope: Scope::Namespace,
    risk: Risk::Low,
    lost: "",
    gain_percent: 0.0,
    needs: Needs::AnyPath,
};

impl Tuning for Sysctl {
    fn about(&self) -> &About {
        &self.about
    }

    fn probe(&self, host: &Host, _: &Served) -> Result<String, Unknown> {
        Ok(self.numbers(host)?.iter().map(u64::to_string).collect::<Vec<_>>().join(" "))
    }

    fn advice(&self, host: &Host, served: &Served) -> Result<Advice, Unknown> {
        if self.about.needs == Needs::Card {
            served.card(host)?;
        }
        let now = self.numbers(host)?;
        let Some(mut wanted) = self.aim.wanted(&now) else {
            return Err(Unknown(format!("{} holds {} numbers", self.key, now.len())));
        };
        if let (Aim::Range(..), [low, _], [wanted_low, _]) = (self.aim, now.as_slice(), wanted.as_mut_slice())
        {
            // A port that was chosen for a connection is not available when its service restarts.
            *wanted_low =
                taken_ports(host).range(*wanted_low..*low).next_back().map_or(*wanted_low, |taken| taken + 1);
        }
        if wanted == now || self.key == SYN_BACKLOG && has_cookies(host) {
            return Ok(Advice::Fine);
        }
        if matches!(self.aim, Aim::Range(..)) && is_kubernetes_node(host) {
            let why = format!(
                "{} is left alone on a Kubernetes node: services use ports from 30000 on (NodePort)",
                self.key
            );
            return Ok(Advice::ByHand(why));
        }
        let text = wanted.iter().map(u64::to_string).collect::<Vec<_>>().join(" ");
        let mut what = format!("{} = {text}", self.key);
        if self.about.name == "somaxconn" {
            let words = Processes::of(host, served).software.backlog();
            if let Some(backlog) = backlog_of(host, served).filter(|backlog| *backlog < now[0]) {
                return Ok(Advice::ByHand(format!(
                    "the server listens with a backlog of {backlog}, which is less than {} allows ({}): {}",
                    self.key,
                    now[0],
                    words.unwrap_or("give it a larger one")
                )));
            }
            if let Some(words) = words {
                what.push_str(&format!("; then {words}"));
            }
        }
        Ok(Advice::change(what, vec![Change::text(Setting::sysctl(self.key), text)]))
    }

    fn parameter(&self) -> Option<&'static str> {
        Some(self.key)
    }

    fn proof(&self) -> Proof {
        self.proof
    }

    fn effect(&self, host: &Host, served: &Served) -> Result<Counter, Unknown> {
        (self.effect)(host, served)
    }
}

impl Sysctl {
    fn numbers(&self, host: &Host) -> Result<Vec<u64>, Unknown> {
        let text = host.text(&format!("/proc/sys/{}", self.key.replace('.', "/")))?;
        let numbers: Result<Vec<u64>, _> = text.split_whitespace().map(str::parse).collect();
        numbers.map_err(|_| Unknown(format!("{} holds `{text}`, which is not a number", self.key)))
    }
}

/// The smallest backlog of the sockets that listen on the served port, if the kernel names them.
fn backlog_of(host: &Host, served: &Served) -> Option<u64> {
    let sockets = listening(host, served.port().ok()?).ok()?;
    sockets.iter().map(|it| it.backlog).min()
}

/// Connections that the served sockets have dropped, or, if these are not known, all sockets of the namespace because a queue was full.
fn connections_dropped(host: &Host, served: &Served) -> Result<Counter, Unknown> {
    let sockets = served.port().ok().and_then(|port| listening(host, port).ok()).unwrap_or_default();
    match sockets.is_empty() {
        true => netstat(host, "ListenOverflows"),
        false => Ok(Counter {
            name: "connections dropped by the sockets of the port".to_owned(),
            value: sockets.iter().map(|it| it.drops).sum(),
        }),
    }
}

const SYN_BACKLOG: &str = "net.ipv4.tcp_max_syn_backlog";

/// Whether the kernel sends SYN cookies when a backlog is full; it does by default.
fn has_cookies(host: &Host) -> bool {
    host.text("/proc/sys/net/ipv4/tcp_syncookies").is_ok_and(|text| text.trim() != "0")
}

/// Ports that are listened on or reserved.
fn taken_ports(host: &Host) -> BTreeSet<u64> {
    let mut taken = BTreeSet::new();
    for table in ["/proc/net/tcp", "/proc/net/tcp6"] {
        let text = host.text(table).unwrap_or_default();
        taken.extend(text.lines().filter_map(|line| {
            let mut fields = line.split_whitespace().skip(1);
            let port = fields.next()?.rsplit_once(':')?.1;
            (fields.nth(1)? == "0A").then(|| u64::from_str_radix(port, 16).ok())?
        }));
    }
    let reserved = host.text("/proc/sys/net/ipv4/ip_local_reserved_ports").unwrap_or_default();
    taken.extend(
        reserved
            .trim()
            .split(',')
            .filter_map(|part| {
                let (first, last) = part.split_once('-').unwrap_or((part, part));
                Some(first.trim().parse::<u16>().ok()?..=last.trim().parse::<u16>().ok()?)
            })
            .flatten()
            .map(u64::from),
    );
    taken
}

impl Aim {
    /// The wanted numbers; `None` if there are too few now.
    fn wanted(self, now: &[u64]) -> Option<Vec<u64>> {
        Some(match (self, now) {
            (Aim::AtLeast(least), [now]) => vec![least.max(*now)],
            (Aim::AtMost(most), [now]) => vec![most.min(*now)],
            (Aim::MaximumAtLeast(least), [low, middle, high]) => vec![*low, *middle, least.max(*high)],
            (Aim::Range(first, last), [low, high]) => vec![first.min(*low), last.max(*high)],
            (Aim::Bits(bits), [now]) => vec![bits | now],
            (Aim::Exactly(value), [_]) => vec![value],
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::Fake;

    /// Nothing is lowered, unless that is the purpose of the tuning.
    #[test]
    fn aims_only_raise() {
        assert_eq!(Aim::AtLeast(10).wanted(&[5]), Some(vec![10]));
        assert_eq!(Aim::AtLeast(10).wanted(&[50]), Some(vec![50]));
        assert_eq!(Aim::MaximumAtLeast(10).wanted(&[1, 2, 30]), Some(vec![1, 2, 30]));
        assert_eq!(Aim::Range(10_000, 65_535).wanted(&[32_768, 60_999]), Some(vec![10_000, 65_535]));
        assert_eq!(Aim::Range(10_000, 65_535).wanted(&[1024, 60_999]), Some(vec![1024, 65_535]));
        assert_eq!(Aim::Bits(3).wanted(&[0x404]), Some(vec![0x407]));
        assert_eq!(Aim::AtMost(2).wanted(&[0]), Some(vec![0]));
        assert_eq!(Aim::AtLeast(1).wanted(&[1, 2]), None);
    }

    #[test]
    fn ports_of_services_are_left_alone() {
        let range = "/proc/sys/net/ipv4/ip_local_port_range";
        let fake = Fake::with(&[
            (range, "32768\t60999\n"),
            (
                "/proc/net/tcp",
                "sl local rem st\n 0: 00000000:2EE0 00000000:0000 0A 0:0 0 0 0 0 1\n 1: 0:2F44 0:0 01 0:0 0 0 0 0 2\n",
            ),
            ("/proc/sys/net/ipv4/ip_local_reserved_ports", "13000-13005\n"),
        ]);
        let port_range = SYSCTLS.iter().find(|sysctl| sysctl.about.name == "port-range").unwrap();
        let advice = || port_range.advice(&fake.host(), &Served::default()).unwrap();
        assert_eq!(advice().text(), Some("net.ipv4.ip_local_port_range = 13006 65535"));
        fake.file("/proc/sys/net/ipv4/ip_local_reserved_ports", "\n");
        assert_eq!(advice().text(), Some("net.ipv4.ip_local_port_range = 12001 65535"));
        fake.file("/proc/7/comm", "kubelet\n");
        assert!(matches!(advice(), Advice::ByHand(why) if why.contains("NodePort")));
    }

    #[test]
    fn files_of_any_content_are_answered() {
        for (text, known) in
            [("4096\n", true), ("18446744073709551615\n", true), ("", false), ("x", false), ("-1", false)]
        {
            let fake = Fake::with(&[("/proc/sys/net/core/somaxconn", text)]);
            let advice = SYSCTLS[0].advice(&fake.host(), &Served::default());
            assert_eq!(advice.is_ok(), known, "{text:?}");
        }
        let missing = SYSCTLS[0].probe(&Fake::new().host(), &Served::default()).unwrap_err();
        assert!(missing.0.contains("/proc/sys/net/core/somaxconn"), "{missing}");
    }
}
