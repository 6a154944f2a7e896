//! Programs that see every packet.

use crate::change::Change;
use crate::error::Unknown;
use crate::host::Host;
use crate::served::{Served, owners, unit_of};
use crate::settings::{Process, Service};
use crate::tuning::{About, Advice, Counter, Needs, Risk, Scope, Tuning};

/// Packet sockets, and who holds them.
pub(super) struct Taps;

/// The name of the tuning.
pub const NAME: &str = "taps";

const ABOUT: About = About {
    name: NAME,
    reason: "a packet socket gets a copy of every packet that is received or sent",
    detail: "dhclient, tcpdump, lldpd and intrusion detection use them. `tune` never stops them: that is up to \
             whoever runs them. `flatout climb taps` measures what one costs by adding an equal one, and stops a \
             holder at the end on request (--stop PID).",
    source: "Richards 2021, step 7: +6 %; +8 to +20 % kernel time a request on loopback",
    scope: Scope::Namespace,
    risk: Risk::Medium,
    lost: "whatever the program does",
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
                let known =
                    KNOWN.iter().filter(|(name, _)| holders.iter().any(|holder| holder.starts_with(name)));
                let known: String = known.map(|(_, instead)| format!("; {instead}")).collect();
                Advice::ByHand(format!("stop {}, or limit what it listens to{known}", holders.join(", ")))
            }
        })
    }

    fn effect(&self, host: &Host, _: &Served) -> Result<Counter, Unknown> {
        Ok(Counter { name: "packet sockets".to_owned(), value: taps(host)?.len() as u64 })
    }
}

/// Known programs with a tap, and alternatives without.
const KNOWN: [(&str, &str); 6] = [
    (
        "dhclient",
        "unlike dhclient, systemd-networkd and NetworkManager hold a tap only while they request an address",
    ),
    ("dhcpcd", "dhcpcd needs none once it has an address: run it with --oneshot, or use systemd-networkd"),
    ("udhcpc", "udhcpc -q exits once it has an address"),
    ("lldpd", "lldpd -I limits it to some cards"),
    ("tcpdump", "somebody is looking at packets with tcpdump"),
    ("suricata", "give suricata a mirror of the port, or use XDP bypass"),
];

/// The protocol of a socket that sees every packet, including sent ones.
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

/// A process that holds a packet tap.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// Its id and start time.
    process: Process,
    /// Its name.
    pub name: String,
    /// Its command line.
    pub arguments: Vec<String>,
    /// Its working directory.
    pub folder: String,
    /// Its systemd unit.
    pub unit: Option<String>,
}

/// The visible processes that hold packet taps.
///
/// # Errors
/// The taps cannot be listed.
pub fn holders(host: &Host) -> Result<Vec<Holder>, Unknown> {
    let pids = owners(host, &taps(host)?);
    // One that has exited meanwhile holds nothing.
    Ok(pids.into_iter().filter_map(|pid| Holder::of(host, pid).ok()).collect())
}

impl Holder {
    fn of(host: &Host, pid: u32) -> Result<Holder, Unknown> {
        let line = host.text(&format!("/proc/{pid}/cmdline"))?;
        Ok(Holder {
            process: Process::now(host, pid)?,
            name: host.text(&format!("/proc/{pid}/comm"))?,
            arguments: line.split_terminator('\0').map(str::to_owned).collect(),
            folder: host.link(&format!("/proc/{pid}/cwd")).unwrap_or_else(|| "/".to_owned()),
            unit: unit_of(host, pid),
        })
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.process.id
    }

    /// The change that stops its unit and can be undone; `None` if it runs in no unit.
    pub fn stopped(&self) -> Option<Change> {
        Some(Change::text(Service { unit: self.unit.clone()? }, "inactive"))
    }
}

impl std::fmt::Display for Holder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} (pid {})", self.name, self.process.id)
    }
}

/// The holder of a socket, by name and id.
fn holder(host: &Host, inode: &u64) -> String {
    let Some(&pid) = owners(host, &[*inode]).first() else {
        return "a process that is not visible from here".to_owned();
    };
    let name = host.text(&format!("/proc/{pid}/comm")).unwrap_or_default();
    format!("{name} (pid {pid})")
}
