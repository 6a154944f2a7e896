//! Programs that see every packet.

use crate::error::Unknown;
use crate::host::Host;
use crate::served::Served;
use crate::served::owners;
use crate::tuning::{About, Advice, Counter, Needs, Risk, Scope, Tuning};

/// Packet sockets, and who holds them.
pub(super) struct Taps;

const ABOUT: About = About {
    name: "taps",
    reason: "a packet socket copies every packet that is received or sent",
    detail: "dhclient, tcpdump, lldpd and intrusion detection hold them. Never stopped from here: that is \
             for whoever runs it.",
    source: "Richards 2021, step 7: +6 %; +8 to +20 % kernel time a request on loopback",
    scope: Scope::Namespace,
    risk: Risk::Medium,
    lost: "what the program was there for",
    gain_percent: 6.0,
    needs: Needs::AnyPath,
};

impl Tuning for Taps {
    fn about(&self) -> &About {
        &ABOUT
    }

    fn probe(&self, host: &Host, _: &Served) -> Result<String, Unknown> {
        let taps = taps(host)?;
        let holders: Vec<String> = taps.iter().map(|tap| holder(host, tap)).collect();
        Ok(if holders.is_empty() { "none".to_owned() } else { holders.join(", ") })
    }

    fn advice(&self, host: &Host, _: &Served) -> Result<Advice, Unknown> {
        let holders: Vec<String> = taps(host)?.iter().map(|tap| holder(host, tap)).collect();
        Ok(match holders.is_empty() {
            true => Advice::Fine,
            false => {
                Advice::ByHand(format!("stop {}, or have it listen to what it needs", holders.join(", ")))
            }
        })
    }

    fn effect(&self, host: &Host, _: &Served) -> Result<Counter, Unknown> {
        Ok(Counter { name: "packet sockets".to_owned(), value: taps(host)?.len() as u64 })
    }
}

/// The protocol of a socket that sees every packet, also those that are sent.
const ETH_P_ALL: &str = "0003";

/// The inodes of all sockets that see every packet.
fn taps(host: &Host) -> Result<Vec<u64>, Unknown> {
    let table = host.text("/proc/net/packet")?;
    let inode = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        (*fields.get(3)? == ETH_P_ALL).then(|| fields.get(8)?.parse().ok())?
    };
    Ok(table.lines().skip(1).filter_map(inode).collect())
}

/// Who holds a socket, by name and number.
fn holder(host: &Host, inode: &u64) -> String {
    let Some(&pid) = owners(host, &[*inode]).first() else {
        return "a process that is not to be seen from here".to_owned();
    };
    let name = host.text(&format!("/proc/{pid}/comm")).unwrap_or_default();
    format!("{name} (pid {pid})")
}
