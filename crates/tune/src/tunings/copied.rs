//! Parameters that lists of tunings change for the worse, and those that have no effect: what is found on servers whose settings were
//! copied from a list. The defaults of Linux are right.

use super::sysctls::{Aim, PER_NAMESPACE, Sysctl};
use crate::counters::{file, netstat};
use crate::tuning::{About, Proof, Risk};

/// Sysctls that are put back to their default.
pub(super) static COPIED: &[Sysctl] = &[
    Sysctl {
        about: About {
            name: "sack",
            reason: "after one lost packet only that one is sent again, not all after it",
            detail: "Lists switch selective acknowledgements off to save their work in the CPU, or because of a defect that was \
                     repaired in 2019 (CVE-2019-11477). Each loss then costs a round trip for every packet.",
            source: "RFC 2018; ip-sysctl",
            gain_percent: 0.5,
            ..PER_NAMESPACE
        },
        proof: Proof::Setting,
        key: "net.ipv4.tcp_sack",
        aim: Aim::AtLeast(1),
        effect: |host, _| netstat(host, "TCPSlowStartRetrans"),
    },
    Sysctl {
        about: About {
            name: "window-scaling",
            reason: "more than 64 KiB may be on the way to a client",
            detail: "Without it a connection over 50 ms carries at most 1.3 MB a second, whatever the line can do.",
            source: "RFC 7323; ip-sysctl",
            gain_percent: 0.5,
            ..PER_NAMESPACE
        },
        proof: Proof::Setting,
        key: "net.ipv4.tcp_window_scaling",
        aim: Aim::AtLeast(1),
        effect: |host, _| file(host, "/proc/sys/net/ipv4/tcp_window_scaling"),
    },
    Sysctl {
        about: About {
            name: "timestamps",
            reason: "round trips are measured, old packets recognised, and ports in TIME-WAIT can be reused",
            detail: "They take 12 bytes of each packet. Lists switch them off for that; `tw-reuse` then has no effect, and a sequence \
                     number that has wrapped around on a fast line is taken for a new one.",
            source: "RFC 7323; ip-sysctl",
            gain_percent: 0.2,
            ..PER_NAMESPACE
        },
        proof: Proof::Setting,
        key: "net.ipv4.tcp_timestamps",
        aim: Aim::AtLeast(1),
        effect: |host, _| netstat(host, "PAWSEstab"),
    },
    Sysctl {
        about: About {
            name: "syncookies",
            reason: "a flood of connection attempts keeps no real client out",
            detail: "A cookie is sent only while the queue of half-open connections is full, so it costs nothing before. Without cookies \
                     a full queue drops (TCPReqQFullDrop).",
            source: "Yang Jian 2008: 1; tcp(7)",
            gain_percent: 0.2,
            ..PER_NAMESPACE
        },
        proof: Proof::Setting,
        key: "net.ipv4.tcp_syncookies",
        aim: Aim::AtLeast(1),
        effect: |host, _| netstat(host, "TCPReqQFullDrop"),
    },
    Sysctl {
        about: About {
            name: "abort-on-overflow",
            reason: "in a burst, connections wait for a moment instead of being reset",
            detail: "With it, a client whose connection finds the backlog full gets an error; without, its last packet is dropped and sent \
                     again a second later. See `somaxconn` for a larger backlog.",
            source: "ip-sysctl",
            lost: "clients of an overloaded server wait, where they would have known at once",
            risk: Risk::Low,
            gain_percent: 0.1,
            ..PER_NAMESPACE
        },
        proof: Proof::Setting,
        key: "net.ipv4.tcp_abort_on_overflow",
        aim: Aim::AtMost(0),
        effect: |host, _| netstat(host, "ListenOverflows"),
    },
    Sysctl {
        about: About {
            name: "syn-retries",
            reason: "a proxy is told after 7 s that a server does not answer, not after two minutes",
            detail: "For outgoing connections of programs without a time limit of their own; flatout has one (`connect-time`).",
            source: "tcp(7)",
            lost: "a connection over a very lossy path may fail",
            risk: Risk::Medium,
            gain_percent: 0.05,
            ..PER_NAMESPACE
        },
        proof: Proof::Asking,
        key: "net.ipv4.tcp_syn_retries",
        aim: Aim::AtMost(2),
        effect: |host, _| netstat(host, "TCPTimeouts"),
    },
];

/// Parameters of such lists that are no tunings, and why.
const WITHOUT_EFFECT: &[(&str, &str)] = &[
    (
        "net.ipv4.tcp_tw_recycle",
        "it is gone since Linux 4.12, because it dropped clients behind one address; remove the line, and see `tw-reuse`",
    ),
    (
        "net.core.rmem_default",
        "TCP does not use it: its buffers begin with the second number of tcp_rmem; it is for UDP and Unix sockets",
    ),
    (
        "net.core.wmem_default",
        "TCP does not use it: its buffers begin with the second number of tcp_wmem; it is for UDP and Unix sockets",
    ),
    ("net.ipv4.tcp_low_latency", "it has no effect since Linux 4.14; remove the line"),
    ("net.ipv4.tcp_fack", "it has no effect since Linux 4.15; remove the line"),
    (
        "net.ipv4.tcp_fin_timeout",
        "it is the time of FIN-WAIT-2, not of TIME-WAIT, which is always a minute; a server that closes well has few of these",
    ),
    (
        "net.ipv4.tcp_keepalive_time",
        "it is for programs that ask for keep-alive probes without a time; flatout sets its own",
    ),
];

/// Why a parameter is no tuning; `None` if nothing is known about it. The name may be its last part.
pub fn without_effect(parameter: &str) -> Option<&'static str> {
    WITHOUT_EFFECT.iter().find(|(key, _)| is_named(key, parameter)).map(|(_, why)| *why)
}

/// Whether a parameter is called this, whole or by its last part.
pub(super) fn is_named(key: &str, name: &str) -> bool {
    key == name || key.rsplit_once('.').is_some_and(|(_, last)| last == name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::Fake;
    use crate::served::Served;
    use crate::tuning::Tuning;

    #[test]
    fn defaults_are_fine_and_other_values_are_put_back() {
        for (name, file, default, copied, wanted) in [
            ("sack", "tcp_sack", "1\n", "0\n", "net.ipv4.tcp_sack = 1"),
            ("window-scaling", "tcp_window_scaling", "1\n", "0\n", "net.ipv4.tcp_window_scaling = 1"),
            ("timestamps", "tcp_timestamps", "2\n", "0\n", "net.ipv4.tcp_timestamps = 1"),
            ("syncookies", "tcp_syncookies", "2\n", "0\n", "net.ipv4.tcp_syncookies = 1"),
            (
                "abort-on-overflow",
                "tcp_abort_on_overflow",
                "0\n",
                "1\n",
                "net.ipv4.tcp_abort_on_overflow = 0",
            ),
        ] {
            let path = format!("/proc/sys/net/ipv4/{file}");
            let fake = Fake::with(&[(path.as_str(), default)]);
            let tuning = COPIED.iter().find(|sysctl| sysctl.about.name == name).unwrap();
            let advice = || tuning.advice(&fake.host(), &Served::default()).unwrap();
            assert_eq!(advice().text(), None, "{name}");
            fake.file(&path, copied);
            assert_eq!(advice().text(), Some(wanted));
        }
    }

    #[test]
    fn parameters_without_effect_are_known_by_either_name() {
        assert!(without_effect("net.ipv4.tcp_tw_recycle").is_some_and(|why| why.contains("4.12")));
        assert_eq!(without_effect("rmem_default"), without_effect("net.core.rmem_default"));
        assert_eq!(without_effect("tcp_sack"), None);
    }
}
