//! Counters that show whether a change is needed, and whether it works.

use crate::error::Unknown;
use crate::host::Host;
use crate::tuning::Counter;

/// A counter of `/proc/net/netstat` or `/proc/net/snmp`, such as `ListenOverflows`.
pub(crate) fn netstat(host: &Host, name: &str) -> Result<Counter, Unknown> {
    let tables = [host.text("/proc/net/netstat"), host.text("/proc/net/snmp")];
    let found = tables.iter().flatten().find_map(|table| in_pairs(table, name));
    let value = found.ok_or_else(|| Unknown(format!("this kernel does not count {name}")))?;
    Ok(Counter { name: name.to_owned(), value })
}

/// A number of the line for TCP in `/proc/net/sockstat`, such as `inuse` or `mem`.
pub(crate) fn sockstat(host: &Host, name: &str) -> Result<u64, Unknown> {
    let text = host.text("/proc/net/sockstat")?;
    let tcp = text.lines().find_map(|line| line.strip_prefix("TCP: ")).unwrap_or_default();
    number_after(tcp, name).ok_or_else(|| Unknown(format!("/proc/net/sockstat does not report TCP's {name}")))
}

/// The number after this word.
pub(crate) fn number_after(text: &str, word: &str) -> Option<u64> {
    text.split_whitespace().skip_while(|found| *found != word).nth(1)?.parse().ok()
}

/// A column of `/proc/net/softnet_stat`, over all CPUs.
pub(crate) fn softnet(host: &Host, column: usize, name: &str) -> Result<Counter, Unknown> {
    let table = host.text("/proc/net/softnet_stat")?;
    let values = table.lines().filter_map(|line| {
        let word = line.split_whitespace().nth(column)?;
        u64::from_str_radix(word, 16).ok()
    });
    Ok(Counter { name: format!("softnet_stat {name}"), value: values.fold(0, u64::wrapping_add) })
}

/// A column of `/proc/net/stat/nf_conntrack`, over all CPUs, by its heading.
pub(crate) fn conntrack(host: &Host, name: &str) -> Result<Counter, Unknown> {
    of_table(host, "nf_conntrack", name)
}

/// The same of any table of `/proc/net/stat`.
pub(crate) fn of_table(host: &Host, kind: &str, name: &str) -> Result<Counter, Unknown> {
    let table = host.text(&format!("/proc/net/stat/{kind}"))?;
    let mut lines = table.lines().map(str::split_whitespace);
    let column = lines.next().and_then(|mut heading| heading.position(|word| word == name));
    let column = column.ok_or_else(|| Unknown(format!("this kernel does not count {kind}'s {name}")))?;
    let values = lines.filter_map(|mut line| u64::from_str_radix(line.nth(column)?, 16).ok());
    Ok(Counter { name: format!("{kind} {name}"), value: values.fold(0, u64::wrapping_add) })
}

/// Connections that found no room in the table, or evicted others, from the columns that this kernel has.
pub(crate) fn conntrack_dropped(host: &Host) -> Result<Counter, Unknown> {
    const COLUMNS: [&str; 3] = ["insert_failed", "drop", "early_drop"];
    let found: Vec<Counter> = COLUMNS.iter().filter_map(|column| conntrack(host, column).ok()).collect();
    let value = found.iter().fold(0, |sum: u64, counter| sum.saturating_add(counter.value));
    match found.is_empty() {
        true => conntrack(host, COLUMNS[0]),
        false => Ok(Counter { name: format!("nf_conntrack {}", COLUMNS.join(" + ")), value }),
    }
}

/// Interrupts of these numbers, over all CPUs.
pub(crate) fn interrupts(host: &Host, numbers: &[u32]) -> Result<Counter, Unknown> {
    let table = host.text("/proc/interrupts")?;
    let value = table
        .lines()
        .filter_map(|line| {
            let (number, rest) = line.split_once(':')?;
            numbers.contains(&number.trim().parse().ok()?).then_some(rest)
        })
        .flat_map(|rest| rest.split_whitespace().map_while(|word| word.parse::<u64>().ok()))
        .fold(0, u64::wrapping_add);
    Ok(Counter { name: "interrupts of the card".to_owned(), value })
}

/// A counter of `/proc/vmstat`.
pub(crate) fn vmstat(host: &Host, name: &str) -> Result<Counter, Unknown> {
    let table = host.text("/proc/vmstat")?;
    let value = table.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
    let value = value.ok_or_else(|| Unknown(format!("this kernel does not count {name}")))?;
    Ok(Counter { name: name.to_owned(), value })
}

/// A file that holds one number.
pub(crate) fn file(host: &Host, path: &str) -> Result<Counter, Unknown> {
    Ok(Counter { name: path.to_owned(), value: host.number(path)? })
}

/// Parses pairs of lines, the first with names, the second with values.
fn in_pairs(table: &str, name: &str) -> Option<u64> {
    let lines: Vec<&str> = table.lines().collect();
    lines.chunks_exact(2).find_map(|pair| {
        let at = pair[0].split_whitespace().position(|word| word == name)?;
        pair[1].split_whitespace().nth(at)?.parse().ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::Fake;

    #[test]
    fn counters_are_found() {
        let fake = Fake::with(&[
            ("/proc/net/netstat", "TcpExt: A ListenOverflows\nTcpExt: 1 7\nIpExt: B\nIpExt: 2\n"),
            ("/proc/net/softnet_stat", "00000010 00000001\n00000020 00000002\n"),
            ("/proc/net/stat/nf_conntrack", "entries found\n00000007 0000000a\n00000007 00000001\n"),
            ("/proc/interrupts", "  CPU0 CPU1\n 38:  5  7  PCI-MSIX 1-edge  virtio2-input.0\n 39: 1 1 x\n"),
        ]);
        let host = fake.host();
        assert_eq!(netstat(&host, "ListenOverflows").unwrap().value, 7);
        assert_eq!(netstat(&host, "B").unwrap().value, 2);
        assert!(netstat(&host, "C").is_err());
        assert_eq!(softnet(&host, 0, "processed").unwrap().value, 0x30);
        assert_eq!(conntrack(&host, "found").unwrap().value, 11);
        assert!(conntrack(&host, "chainlength").is_err());
        assert_eq!(interrupts(&host, &[38]).unwrap().value, 12);
    }
}
