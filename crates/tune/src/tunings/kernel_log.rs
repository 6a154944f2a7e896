//! The kernel's log: messages about tables and queues that overflow. The counters of some of them are lost, or are in nobody's view.

use super::facts::{Fact, OF_HOST, Reading};
use crate::error::Unknown;
use crate::host::Host;
use crate::served::Served;
use crate::tuning::{About, Proof};

pub(super) static KERNEL_LOG: &[Fact] = &[Fact {
    about: About {
        name: "kernel-log",
        reason: "the kernel has logged that a table or a queue was full",
        detail: "Messages of the kernel since boot, as far as its log still has them. It logs each kind a few times a minute at most, so \
                 a message stands for many packets or connections. The advice names the setting.",
        source: "Documentation/ABI/testing/dev-kmsg; net/ipv4/tcp.c, net/core/neighbour.c, net/netfilter/nf_conntrack_core.c",
        gain_percent: 1.95,
        ..OF_HOST
    },
    proof: Proof::Setting,
    counter: "messages",
    read: kernel_log,
}];

/// A part of a message in lower case, what it means, and the tuning that is for it.
const MESSAGES: [(&str, &str, &str); 7] = [
    ("possible syn flooding on port", "a listening socket's queue was full", "somaxconn"),
    ("out of socket memory", "TCP had no memory left", "socket-memory"),
    ("tcp: out of memory", "TCP had no memory left", "socket-memory"),
    ("too many orphaned sockets", "too many closed connections still sent", "socket-memory"),
    ("time wait bucket table overflow", "too many connections waited for their end", "max-tw-buckets"),
    ("neighbour table overflow", "the table of neighbours (ARP) was full", "neighbour-table"),
    ("table full, dropping packet", "the table of tracked connections was full", "conntrack-max"),
];

fn kernel_log(host: &Host, _: &Served) -> Result<Reading, Unknown> {
    let log = host.log()?;
    let mut counts = [0_u64; MESSAGES.len()];
    for text in log.lines().filter_map(kernel_message) {
        // Both spellings occur: `neighbour: arp_cache: neighbor table overflow!`.
        let text = text.to_ascii_lowercase().replace("neighbor ", "neighbour ");
        if let Some(at) = MESSAGES.iter().position(|(part, ..)| text.contains(part)) {
            counts[at] = counts[at].saturating_add(1);
        }
    }
    let found = MESSAGES.iter().zip(counts).filter(|(_, count)| *count > 0);
    let told: Vec<String> = found
        .map(|((part, meaning, tuning), count)| {
            format!("{meaning} (\"{part}\", {count}×): flatout tune explain {tuning}")
        })
        .collect();
    let sum = counts.iter().sum();
    Ok(Reading::new(format!("{sum} messages"), sum, (!told.is_empty()).then(|| told.join("; "))))
}

/// The text of a record of the kernel itself, `4,1234,98765432,-;text`: the first number is its facility and priority, and programs
/// have another facility. Further lines of a record begin with a space.
fn kernel_message(line: &str) -> Option<&str> {
    const PRIORITIES: u32 = 8;
    let (head, text) = line.split_once(';')?;
    let kind: u32 = head.split(',').next()?.parse().ok()?;
    (kind < PRIORITIES).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::Fake;
    use crate::served::ServerSelector;

    const LOG: &str = "6,1,100,-;TCP: request_sock_TCP: Possible SYN flooding on port 0.0.0.0:8080. Sending cookies.\n\
                       4,2,200,-;neighbour: arp_cache: neighbor table overflow!\n SUBSYSTEM=net\n\
                       14,3,300,-;nf_conntrack: table full, dropping packet (of a program)\n\
                       4,4,400,-;TCP: out of memory -- consider tuning tcp_mem\n\
                       4,5,500,-;TCP: out of memory -- consider tuning tcp_mem\nbroken\n;\nx;y\n";

    fn reading(fake: &Fake) -> Result<Reading, Unknown> {
        let host = fake.host();
        let asked = ServerSelector { device: Some("eth0".to_owned()), ..ServerSelector::default() };
        let served = Served::find(&host, &asked).unwrap();
        kernel_log(&host, &served)
    }

    #[test]
    fn messages_of_the_kernel_alone_are_counted() {
        let fake = Fake::with(&[("/proc/net/dev", "a\nb\neth0: 0\n"), ("/dev/kmsg", LOG)]);
        let found = reading(&fake).unwrap();
        assert_eq!((found.count, found.value.as_str()), (4, "4 messages"));
        assert_eq!(
            found.advice.unwrap(),
            "a listening socket's queue was full (\"possible syn flooding on port\", 1×): flatout tune explain somaxconn; TCP had no \
             memory left (\"tcp: out of memory\", 2×): flatout tune explain socket-memory; the table of neighbours (ARP) was full \
             (\"neighbour table overflow\", 1×): flatout tune explain neighbour-table"
        );
        fake.file("/dev/kmsg", "6,1,100,-;all is well\n");
        assert_eq!(reading(&fake).unwrap().advice, None);
    }
}
