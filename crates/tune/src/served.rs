//! The server to tune for: its port, process and network device.

use std::net::IpAddr;

use flatout_owner::Listening;

use crate::error::{Error, Unknown};
use crate::host::Host;

/// What the user said about the server.
#[derive(Debug, Clone, Default)]
pub struct ServerSelector {
    /// The TCP port.
    pub port: Option<u16>,
    /// The server's process.
    pub pid: Option<u32>,
    /// The network device on which requests arrive.
    pub device: Option<String>,
}

/// What is known about the server.
#[derive(Debug, Clone, Default)]
pub struct Served {
    port: Option<u16>,
    pids: Vec<u32>,
    /// Why no listener of the port, or not every one, was found.
    missing: Option<String>,
    device: Option<String>,
    listeners: usize,
}

/// The loopback device, on which requests pass no network card.
const LOOPBACK: &str = "lo";

impl Served {
    /// Completes the user's input from the machine: who listens on the port, and on which device requests arrive.
    ///
    /// # Errors
    /// There is no such process or device.
    pub fn find(host: &Host, asked: &ServerSelector) -> Result<Served, Error> {
        if let Some(pid) = asked.pid.filter(|pid| !host.has(&format!("/proc/{pid}/status"))) {
            return Err(Error::Usage(format!("there is no process {pid}")));
        }
        if let Some(device) = &asked.device {
            let known = devices(host);
            if !known.is_empty() && !known.contains(device) {
                let known = known.join(", ");
                return Err(Error::Usage(format!(
                    "there is no network device `{device}`; there are {known}"
                )));
            }
        }
        let mut served = Served { port: asked.port, ..Served::default() };
        let mut address = None;
        match asked.port.map(|port| Listening::find(host, port)) {
            None => {}
            Some(Err(error)) => served.missing = Some(format!("/proc: {error}")),
            Some(Ok(found)) => {
                served.missing = found.missing();
                served.listeners = found.sockets.len();
                served.pids = found.pids;
                address = found.sockets.first().map(|socket| socket.address);
            }
        }
        if let Some(pid) = asked.pid {
            served.pids = vec![pid];
        }
        served.device = asked.device.clone().or_else(|| device_of(host, address));
        Ok(served)
    }

    /// The served port.
    pub(crate) fn port(&self) -> Result<u16, Unknown> {
        self.port.ok_or_else(|| Unknown("no port given: use --port".to_owned()))
    }

    /// Why no process was found for the given port.
    pub fn why_no_process(&self) -> Option<&str> {
        self.missing.as_deref().filter(|_| self.pids.is_empty())
    }

    /// Whether a socket listens on the given port, whosoever it is.
    pub fn is_listening(&self) -> bool {
        self.listeners > 0
    }

    /// The server's processes, the oldest first; never empty.
    pub(crate) fn pids(&self) -> Result<&[u32], Unknown> {
        match (self.pids.as_slice(), &self.missing) {
            ([], None) => Err(Unknown("no server given: use --port or --pid".to_owned())),
            ([], Some(why)) => Err(Unknown(format!("{why}; or use --pid"))),
            (pids, _) => Ok(pids),
        }
    }

    /// The server's first process.
    pub(crate) fn pid(&self) -> Result<u32, Unknown> {
        let first = self.pids()?.first().copied();
        first.ok_or_else(|| Unknown("no server given: use --port or --pid".to_owned()))
    }

    /// All threads of the server's processes.
    pub(crate) fn threads(&self, host: &Host) -> Result<Vec<u32>, Unknown> {
        let mut threads = Vec::new();
        for pid in self.pids()? {
            let names = host.list(&format!("/proc/{pid}/task"))?;
            threads.extend(names.iter().filter_map(|name| name.parse::<u32>().ok()));
        }
        Ok(threads)
    }

    /// The systemd unit that the server runs in.
    pub(crate) fn unit(&self, host: &Host) -> Option<String> {
        unit_of(host, self.pid().ok()?)
    }

    /// Sockets that listen on the port: several share it by `SO_REUSEPORT`.
    pub(crate) fn listeners_count(&self) -> usize {
        self.listeners
    }

    /// The network card on which requests arrive.
    pub(crate) fn card<'s>(&'s self, host: &Host) -> Result<&'s str, Unknown> {
        match self.device.as_deref() {
            None => Err(Unknown("no default route: use --interface".to_owned())),
            Some(LOOPBACK) => {
                Err(Unknown("requests arrive over loopback, which has no network card".to_owned()))
            }
            Some(device) if is_foreign(host, device) => Err(Unknown(format!(
                "/sys shows the {device} of another network namespace: enter this one with `ip netns exec`"
            ))),
            Some(device) => Ok(device),
        }
    }

    /// Whether requests pass a network card, as far as known.
    pub(crate) fn is_by_card(&self) -> bool {
        self.port.is_some() && self.device.as_deref().is_some_and(|device| device != LOOPBACK)
    }
}

/// The systemd unit that a process runs in.
pub(crate) fn unit_of(host: &Host, pid: u32) -> Option<String> {
    let cgroup = host.text(&format!("/proc/{pid}/cgroup")).ok()?;
    let unit = cgroup.lines().next()?.rsplit('/').next()?;
    unit.ends_with(".service").then(|| unit.to_owned())
}

/// The network devices of our namespace.
fn devices(host: &Host) -> Vec<String> {
    let text = host.text("/proc/net/dev").unwrap_or_default();
    text.lines().skip(2).filter_map(|line| Some(line.split_once(':')?.0.trim().to_owned())).collect()
}

/// Whether sysfs was mounted in another network namespace: then a device with the same name is a different one.
fn is_foreign(host: &Host, device: &str) -> bool {
    let ours = devices(host);
    let Ok(shown) = host.list("/sys/class/net") else { return false };
    let foreign = |name: &String| name != "bonding_masters" && !ours.contains(name);
    !ours.is_empty() && (!ours.iter().any(|name| name == device) || shown.iter().any(foreign))
}

/// The processes that hold one of these sockets.
pub(crate) fn owners(host: &Host, inodes: &[u64]) -> Vec<u32> {
    flatout_owner::owners(host, inodes)
}

/// The device on the route to an address; for the unspecified address, that of the default route.
fn device_of(host: &Host, address: Option<IpAddr>) -> Option<String> {
    match address {
        Some(address) if address.is_loopback() => Some(LOOPBACK.to_owned()),
        Some(IpAddr::V4(address)) if !address.is_unspecified() => {
            route(host, u32::from_ne_bytes(address.octets()))
        }
        Some(IpAddr::V6(address)) if !address.is_unspecified() => {
            let hex: String = address.octets().iter().map(|byte| format!("{byte:02x}")).collect();
            let table = host.text("/proc/net/if_inet6").ok()?;
            let line = table.lines().find(|line| line.starts_with(&hex))?;
            line.split_whitespace().last().map(str::to_owned)
        }
        _ => route(host, 0),
    }
}

/// The device of the most specific IPv4 route to an address, in native byte order like the table.
fn route(host: &Host, address: u32) -> Option<String> {
    let table = host.text("/proc/net/route").ok()?;
    let routes = table.lines().skip(1).filter_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let number = |at: usize| u32::from_str_radix(fields.get(at)?, 16).ok();
        let (destination, mask) = (number(1)?, number(7)?);
        let device = (*fields.first()?).to_owned();
        (address & mask == destination).then_some((mask.count_ones(), device))
    });
    routes.max_by_key(|(width, _)| *width).map(|(_, device)| device)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::Fake;

    const TCP: &str = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n   \
        0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4242 1 0 100 0 0 10 0\n   \
        1: 00000000:0050 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4343 1 0 100 0 0 10 0\n";
    const ROUTE: &str = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n\
        eth0\t00000000\t010011AC\t0003\t0\t0\t0\t00000000\t0\t0\t0\n\
        eth1\t0000000A\t00000000\t0001\t0\t0\t0\t000000FF\t0\t0\t0\n";

    fn machine() -> Fake {
        let fake = Fake::with(&[
            ("/proc/net/tcp", TCP),
            ("/proc/net/route", ROUTE),
            ("/proc/net/dev", "a\nb\n  lo: 0\neth0: 0\neth1: 0\n"),
            ("/proc/77/status", "Name: x\n"),
        ]);
        fake.link("/proc/77/fd/3", "socket:[4242]");
        fake
    }

    #[test]
    fn a_port_identifies_process_and_device() {
        let fake = machine();
        let host = fake.host();
        let served =
            Served::find(&host, &ServerSelector { port: Some(8080), ..ServerSelector::default() }).unwrap();
        assert_eq!((served.pids.as_slice(), served.device.as_deref()), (&[77][..], Some("lo")));
        assert!(!served.is_by_card() && served.card(&host).is_err());
        let served =
            Served::find(&host, &ServerSelector { port: Some(80), ..ServerSelector::default() }).unwrap();
        assert_eq!((served.card(&host), served.listeners_count()), (Ok("eth0"), 1));
        assert!(served.is_by_card());
        assert!(
            served.pids().unwrap_err().0.starts_with("1 of 1 sockets that listen on port 80 have no process")
        );
        let served =
            Served::find(&host, &ServerSelector { port: Some(81), ..ServerSelector::default() }).unwrap();
        assert!(served.pids().unwrap_err().0.contains("nothing listens on port 81"));
    }

    #[test]
    fn the_narrowest_route_counts() {
        let fake = machine();
        let address = |text: &str| Some(text.parse::<IpAddr>().unwrap());
        assert_eq!(device_of(&fake.host(), address("10.1.2.3")).as_deref(), Some("eth1"));
        assert_eq!(device_of(&fake.host(), address("192.0.2.1")).as_deref(), Some("eth0"));
    }

    #[test]
    fn missing_processes_and_devices_are_reported() {
        let fake = machine();
        let host = fake.host();
        let asked = ServerSelector { device: Some("eth9".to_owned()), ..ServerSelector::default() };
        let Err(Error::Usage(message)) = Served::find(&host, &asked) else { panic!() };
        let gone = Served::find(&host, &ServerSelector { pid: Some(1), ..ServerSelector::default() });
        assert!(gone.is_err());
        assert!(message.contains("eth9"), "{message}");
    }

    /// In `unshare -n` without a new mount of sysfs, `/sys/class/net` still shows the devices outside.
    #[test]
    fn another_namespaces_sysfs_is_noticed() {
        let fake = machine();
        fake.file("/sys/class/net/eth0/mtu", "1500");
        fake.file("/sys/class/net/eth7/mtu", "1500");
        let host = fake.host();
        let served = Served::find(
            &host,
            &ServerSelector { device: Some("eth0".to_owned()), ..ServerSelector::default() },
        )
        .unwrap();
        assert!(served.card(&host).unwrap_err().0.contains("another network namespace"));
    }
}
