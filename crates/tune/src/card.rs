//! Facts about a network card: its queues, its interrupts, its memory node.

use crate::counters;
use crate::error::Unknown;
use crate::host::Host;
use crate::tuning::Counter;

/// Interrupts of a card that do not belong to a queue.
const OTHER_INTERRUPTS: &[&str] = &["config", "control", "async", "mgmnt", "event", "cmd", "pages"];

/// The paths of a card's queues, `rx` or `tx`.
pub(crate) fn queues(host: &Host, device: &str, direction: &str) -> Result<Vec<String>, Unknown> {
    let folder = format!("/sys/class/net/{device}/queues");
    let mut numbered: Vec<(u32, String)> = host
        .list(&folder)?
        .into_iter()
        .filter_map(|name| {
            let number = name.strip_prefix(direction)?.strip_prefix('-')?.parse().ok()?;
            Some((number, format!("{folder}/{name}")))
        })
        .collect();
    numbered.sort_unstable();
    Ok(numbered.into_iter().map(|(_, path)| path).collect())
}

/// The cards that a device joins (bonding); empty if it is a card itself.
pub(crate) fn members(host: &Host, device: &str) -> Vec<String> {
    let members = host.text(&format!("/sys/class/net/{device}/bonding/slaves")).unwrap_or_default();
    // A name that is a path would lead elsewhere.
    let is_name = |name: &&str| !name.contains('/') && !name.starts_with('.');
    members.split_whitespace().filter(is_name).take(MEMBERS_MAX).map(str::to_owned).collect()
}

/// Members of one device that are examined.
const MEMBERS_MAX: usize = 32;

/// The interrupts of a card's queues, or of those of all cards that a device joins: numbers and names.
pub(crate) fn interrupts(host: &Host, device: &str) -> Result<Vec<(u32, String)>, Unknown> {
    match members(host, device).as_slice() {
        [] => interrupts_of_card(host, device),
        members => {
            let of_members = members.iter().filter_map(|member| interrupts_of_card(host, member).ok());
            let found: Vec<(u32, String)> = of_members.flatten().collect();
            match found.is_empty() {
                true => {
                    Err(Unknown(format!("/proc/interrupts lists no interrupts of the cards behind {device}")))
                }
                false => Ok(found),
            }
        }
    }
}

fn interrupts_of_card(host: &Host, device: &str) -> Result<Vec<(u32, String)>, Unknown> {
    let folder = format!("/sys/class/net/{device}/device");
    // A virtio card belongs to a PCI device, which has the interrupts.
    let of_device = [format!("{folder}/msi_irqs"), format!("{folder}/../msi_irqs")];
    let listed: Vec<String> = of_device.iter().filter_map(|path| host.list(path).ok()).flatten().collect();
    let table = host.text("/proc/interrupts")?;
    let found: Vec<(u32, String)> = table
        .lines()
        .filter_map(|line| {
            let (number, rest) = line.split_once(':')?;
            let (number, name) = (number.trim(), rest.split_whitespace().last()?);
            let is_ours = listed.iter().any(|listed| listed == number) || is_named_after(name, device);
            let is_queue = !OTHER_INTERRUPTS.iter().any(|other| name.contains(other));
            (is_ours && is_queue).then_some((number.parse().ok()?, name.to_owned()))
        })
        .collect();
    match found.is_empty() {
        true => Err(Unknown(format!("/proc/interrupts lists no interrupts of {device}"))),
        false => Ok(found),
    }
}

/// Whether an interrupt's name contains a device's name as a word: `eth1` in `eth1-TxRx-0`, not in `eth10-TxRx-0`.
fn is_named_after(interrupt: &str, device: &str) -> bool {
    let is_edge = |char: Option<char>| char.is_none_or(|char| !char.is_ascii_alphanumeric());
    interrupt.match_indices(device).any(|(at, _)| {
        let (before, behind) = (&interrupt[..at], &interrupt[at + device.len()..]);
        is_edge(before.chars().next_back()) && is_edge(behind.chars().next())
    })
}

/// The CPUs that are online.
pub(crate) fn cpus(host: &Host) -> Result<Vec<usize>, Unknown> {
    let cpus = crate::cpus::of_list(&host.text("/sys/devices/system/cpu/online")?);
    match cpus.is_empty() {
        true => Err(Unknown("/sys/devices/system/cpu/online names no CPU".to_owned())),
        false => Ok(cpus),
    }
}

/// The number of interrupts of the card's queues.
pub(crate) fn interrupt_count(host: &Host, device: &str) -> Result<Counter, Unknown> {
    let numbers: Vec<u32> = interrupts(host, device)?.into_iter().map(|(number, _)| number).collect();
    counters::interrupts(host, &numbers)
}

/// The driver's own counters, by name. There is no netlink message for them: `ethtool` uses the old interface.
pub(crate) fn driver_counters(host: &Host, device: &str) -> Result<Vec<(String, u64)>, Unknown> {
    let text = host.run("ethtool", &["-S", device])?;
    let counter = |line: &str| {
        let (name, value) = line.rsplit_once(':')?;
        Some((name.trim().to_owned(), value.trim().parse().ok()?))
    };
    Ok(text.lines().skip(1).filter_map(counter).collect())
}

/// A counter that every device has, such as `rx_packets`.
pub(crate) fn statistic(host: &Host, device: &str, name: &str) -> Result<Counter, Unknown> {
    counters::file(host, &format!("/sys/class/net/{device}/statistics/{name}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::Fake;

    #[test]
    fn a_bond_has_the_interrupts_of_its_members() {
        let table = " CPU0\n 30: 1 PCI-MSI eth0-0\n 31: 1 PCI-MSI eth1-0\n 32: 1 PCI-MSI eth2-0\n";
        let fake = Fake::with(&[
            ("/proc/interrupts", table),
            ("/sys/class/net/bond0/bonding/slaves", "eth0 eth2 ../eth1\n"),
        ]);
        let numbers: Vec<u32> =
            interrupts(&fake.host(), "bond0").unwrap().into_iter().map(|(number, _)| number).collect();
        assert_eq!(numbers, [30, 32]);
        fake.file("/sys/class/net/bond0/bonding/slaves", "eth7\n");
        assert!(interrupts(&fake.host(), "bond0").unwrap_err().0.contains("the cards behind bond0"));
    }

    #[test]
    fn a_card_has_its_own_interrupts_only() {
        let table = " CPU0\n 30: 1 PCI-MSI eth1-TxRx-0\n 31: 1 PCI-MSI eth10-TxRx-0\n 32: 1 PCI-MSI mlx5_comp0@eth1\n 33: 1 \
                     PCI-MSI veth1-0\n 34: 1 PCI-MSI eth1\n 35: 1 PCI-MSI eth1.5\n";
        let fake = Fake::with(&[("/proc/interrupts", table)]);
        let numbers = |device: &str| -> Vec<u32> {
            interrupts(&fake.host(), device).unwrap().into_iter().map(|(number, _)| number).collect()
        };
        assert_eq!((numbers("eth1"), numbers("eth10")), (vec![30, 32, 34, 35], vec![31]));
    }
}
