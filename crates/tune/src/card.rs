//! What there is to know of a network card: its queues, its interrupts, its memory node.

use crate::counters;
use crate::error::Unknown;
use crate::host::Host;
use crate::tuning::Counter;

/// Interrupts of a card that serve no queue.
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

/// The numbers of the interrupts that a card's queues raise, with their names.
pub(crate) fn interrupts(host: &Host, device: &str) -> Result<Vec<(u32, String)>, Unknown> {
    let folder = format!("/sys/class/net/{device}/device");
    // A virtio card hangs on a PCI device that has the interrupts.
    let of_device = [format!("{folder}/msi_irqs"), format!("{folder}/../msi_irqs")];
    let listed: Vec<String> = of_device.iter().filter_map(|path| host.list(path).ok()).flatten().collect();
    let table = host.text("/proc/interrupts")?;
    let found: Vec<(u32, String)> = table
        .lines()
        .filter_map(|line| {
            let (number, rest) = line.split_once(':')?;
            let (number, name) = (number.trim(), rest.split_whitespace().last()?);
            let is_ours = listed.iter().any(|listed| listed == number) || name.contains(device);
            let is_queue = !OTHER_INTERRUPTS.iter().any(|other| name.contains(other));
            (is_ours && is_queue).then_some((number.parse().ok()?, name.to_owned()))
        })
        .collect();
    match found.is_empty() {
        true => Err(Unknown(format!("{device} has no interrupts that /proc/interrupts names"))),
        false => Ok(found),
    }
}

/// The CPUs that are online.
pub(crate) fn cpus(host: &Host) -> Result<Vec<usize>, Unknown> {
    let cpus = crate::cpus::of_list(&host.text("/sys/devices/system/cpu/online")?);
    match cpus.is_empty() {
        true => Err(Unknown("/sys/devices/system/cpu/online names no CPU".to_owned())),
        false => Ok(cpus),
    }
}

/// How often the card's queues have interrupted.
pub(crate) fn interrupt_count(host: &Host, device: &str) -> Result<Counter, Unknown> {
    let numbers: Vec<u32> = interrupts(host, device)?.into_iter().map(|(number, _)| number).collect();
    counters::interrupts(host, &numbers)
}

/// One of the counters that every device has, such as `rx_packets`.
pub(crate) fn statistic(host: &Host, device: &str, name: &str) -> Result<Counter, Unknown> {
    counters::file(host, &format!("/sys/class/net/{device}/statistics/{name}"))
}
