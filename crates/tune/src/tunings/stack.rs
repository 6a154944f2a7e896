//! Facts about the network stack's own tables and programs, in the shape of [`super::facts`].

use super::facts::{Fact, OF_HOST, Reading};
use crate::card;
use crate::change::Change;
use crate::counters::{sockstat, softnet};
use crate::error::Unknown;
use crate::host::Host;
use crate::served::Served;
use crate::settings::{LinkSize, Setting};
use crate::tuning::{About, Needs, Proof, Risk, Scope};

pub(super) static STACK: &[Fact] = &[
    Fact {
        about: About {
            name: "bpf",
            reason: "BPF programs run for each packet, system call or function that they are attached to",
            detail: "Agents for monitoring and security load them. `sysctl -w kernel.bpf_stats_enabled=1` and `bpftool prog show` tell \
                     how often each ran and for how long; the sum by the number of requests is its cost. Counting costs too: \
                     switch it off afterwards.",
            source: "bpftool-prog(8); admin-guide/sysctl/kernel: bpf_stats_enabled",
            gain_percent: 4.1,
            ..OF_HOST
        },
        proof: Proof::Setting,
        counter: "BPF programs",
        read: bpf,
    },
    Fact {
        about: About {
            name: "tcp-hash",
            reason: "more connections than the kernel's table has buckets",
            detail: "The kernel then walks a list for each packet. The table is made at boot, by the size of the memory. A network namespace \
                     may get a table of its own (net.ipv4.tcp_child_ehash_entries, Linux 6.1).",
            source: "ip-sysctl: tcp_ehash_entries; admin-guide/kernel-parameters: thash_entries",
            scope: Scope::Reboot,
            needs: Needs::Reboot,
            gain_percent: 1.3,
            ..OF_HOST
        },
        proof: Proof::Setting,
        counter: "TCP sockets",
        read: tcp_hash,
    },
    Fact {
        about: About {
            name: "flow-limit",
            reason: "one connection that sends too much drops the packets of all others",
            detail: "When the queue between CPUs (`rps`) is half full, packets of the largest flows are dropped first. Off unless set. It \
                     also stops a flood from a few addresses before the server sees it.",
            source: "networking/scaling: RPS flow limit",
            needs: Needs::Card,
            gain_percent: 0.9,
            ..OF_HOST
        },
        proof: Proof::Counter,
        counter: "softnet_stat dropped",
        read: flow_limit,
    },
    Fact {
        about: About {
            name: "big-tcp",
            reason: "a large response passes through the network stack in pieces of 64 KiB, though the card takes larger ones",
            detail: "BIG TCP: up to 512 KiB at once (Linux 5.19 for IPv6, 6.3 for IPv4). Responses below 64 KiB gain nothing. Every device on \
                     the way inside this machine has to take them: some tunnels, filters and taps do not.",
            source: "ip-link(8): gso_max_size, gso_ipv4_max_size; docs.cilium.io: BIG TCP",
            risk: Risk::Medium,
            lost: "programs that cannot take packets beyond 64 KiB: some tunnels, filters and packet taps",
            scope: Scope::Device,
            needs: Needs::Card,
            gain_percent: 0.8,
        },
        proof: Proof::Measurement,
        counter: "gso_max_size",
        read: big_tcp,
    },
];

/// Kinds of programs that run for packets, system calls and functions; others run when a process or a device starts.
const BUSY_KINDS: [&str; 14] = [
    "cgroup_skb",
    "cgroup_sock_addr",
    "kprobe",
    "lsm",
    "perf_event",
    "raw_tracepoint",
    "sched_act",
    "sched_cls",
    "sk_msg",
    "sk_skb",
    "sock_ops",
    "tracepoint",
    "tracing",
    "xdp",
];

/// Programs that are named in one line.
const NAMED_MAX: usize = 4;

fn bpf(host: &Host, _: &Served) -> Result<Reading, Unknown> {
    let text = host.run("bpftool", &["prog", "show"])?;
    // `12: kprobe  name tcp_sendmsg  tag 0123…`, and lines with more, which are indented.
    let busy: Vec<&str> = text
        .lines()
        .filter_map(|line| {
            let mut words = line.split_once(": ")?.1.split_whitespace();
            let kind = words.next()?;
            let name = words.skip_while(|word| *word != "name").nth(1).unwrap_or(kind);
            (!line.starts_with(char::is_whitespace) && BUSY_KINDS.contains(&kind)).then_some(name)
        })
        .collect();
    let named = busy.iter().take(NAMED_MAX).copied().collect::<Vec<_>>().join(", ");
    let more = if busy.len() > NAMED_MAX { " and more" } else { "" };
    let advice = (!busy.is_empty()).then(|| {
        format!("{named}{more}: measure what they cost (bpf_stats_enabled), and ask whoever loaded them")
    });
    Ok(Reading::new(format!("{} programs", busy.len()), busy.len() as u64, advice))
}

fn tcp_hash(host: &Host, _: &Served) -> Result<Reading, Unknown> {
    // Negative in a namespace that uses the table of the first one.
    let buckets = host.number::<i64>("/proc/sys/net/ipv4/tcp_ehash_entries")?.unsigned_abs();
    let sockets = sockstat(host, "inuse")?.saturating_add(sockstat(host, "tw")?);
    let advice = (sockets > buckets).then(|| {
        let wanted = sockets.checked_next_power_of_two().unwrap_or(sockets);
        format!("boot with thash_entries={wanted}")
    });
    Ok(Reading::new(format!("{sockets} connections, {buckets} buckets"), sockets, advice))
}

fn flow_limit(host: &Host, served: &Served) -> Result<Reading, Unknown> {
    let queues = card::queues(host, served.card(host)?, "rx")?;
    let is_empty = |mask: &str| mask.chars().all(|digit| matches!(digit, '0' | ','));
    let is_spread =
        queues.iter().any(|queue| host.text(&format!("{queue}/rps_cpus")).is_ok_and(|mask| !is_empty(&mask)));
    let mask = host.text(MASK)?;
    let dropped = softnet(host, 1, "dropped")?.value;
    let advice =
        (is_spread && dropped > 0 && is_empty(&mask)).then(|| "all CPUs limit the largest flows".to_owned());
    let all = crate::cpus::mask(card::cpus(host).unwrap_or_default());
    Ok(Reading::new(if is_empty(&mask) { "off".to_owned() } else { mask }, dropped, advice)
        .with([Change::text(Setting::file(MASK), all)]))
}

/// The CPUs that limit flows.
const MASK: &str = "/proc/sys/net/core/flow_limit_cpu_bitmap";

/// What a device passes at once unless more was set, in bytes.
const PIECE_DEFAULT: u64 = 65536;

/// What is sent and what is received at once.
const SIZES: [&str; 4] = ["gso_max_size", "gro_max_size", "gso_ipv4_max_size", "gro_ipv4_max_size"];

/// What is suggested at most, in bytes: three pieces of before. Larger ones gain little, and need more memory at once.
const PIECE_MAX: u64 = 3 * PIECE_DEFAULT;

fn big_tcp(host: &Host, served: &Served) -> Result<Reading, Unknown> {
    let device = served.card(host)?;
    let size = |name: &str| LinkSize::new(device, name).now(host);
    let (now, most) = (size("gso_max_size")?, size("tso_max_size")?);
    let wanted = most.min(PIECE_MAX);
    let advice = (now <= PIECE_DEFAULT && wanted > PIECE_DEFAULT)
        .then(|| format!("pieces of {wanted} bytes, for IPv6, and for IPv4 if this kernel has sizes for it"));
    // Kernels before 6.3 have none for IPv4, and a size that somebody has raised stays.
    let changes = SIZES
        .iter()
        .filter(|name| size(name).is_ok_and(|now| now < wanted))
        .map(|name| Change::text(LinkSize::new(device, name), wanted));
    Ok(Reading::new(format!("{now} of {most} bytes"), now, advice).with(changes))
}
