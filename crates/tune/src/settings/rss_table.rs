//! The receive table of a card: the queue of each hash of a connection. It is written back entry by entry by netlink
//! (Linux 6.17 and newer), or with the program `ethtool`, which can write tables that take turns (`equal`) and tables in
//! blocks (`weight`), but no others.

use std::fmt::Write;

use serde::{Deserialize, Serialize};

use super::{Kind, Lasting, Step, device_gone};
use crate::change::Content;
use crate::error::Unknown;
use crate::host::Host;
use crate::netlink::ethtool;

/// The receive table of a device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RssTable {
    /// The device, such as `eth0`.
    pub device: String,
}

/// The first kernel that sets a table by netlink.
const NETLINK_KERNEL: (u32, u32) = (6, 17);

/// Larger entries are not queues of any card.
const QUEUES_MAX: u32 = 4096;

impl RssTable {
    /// Its entries.
    pub(crate) fn entries(&self, host: &Host) -> Result<Vec<u32>, Unknown> {
        let device = self.device.as_str();
        let entries = match ethtool::indirection(host, device) {
            Ok(Some(entries)) => entries,
            // Before 6.3 there is no netlink message for it; the program uses another interface.
            Ok(None) => entries_of(&host.run("ethtool", &["-x", device])?),
            Err(fault) => {
                return Err(Unknown(fault.describe(&format!("reading the receive table of {device}"))));
            }
        };
        match entries.is_empty() {
            true => {
                Err(Unknown(format!("the driver of {device} does not report how it spreads connections")))
            }
            false => Ok(entries),
        }
    }

    fn entries_in(&self, content: &Content) -> Result<Vec<u32>, String> {
        let wrong = || format!("{} cannot be `{}`", self.name(), content.line());
        let Content::Text(text) = content else { return Err(wrong()) };
        let entries: Result<Vec<u32>, _> = text.split_whitespace().map(str::parse).collect();
        entries
            .ok()
            .filter(|entries| !entries.is_empty() && entries.iter().all(|queue| *queue < QUEUES_MAX))
            .ok_or_else(wrong)
    }
}

/// Parses the program's output: lines such as `    8:      0     1     2     3`, after a heading.
fn entries_of(text: &str) -> Vec<u32> {
    let lines = text.lines().skip(1).map_while(|line| line.split_once(':'));
    let entries = lines.take_while(|(at, _)| at.trim().parse::<u32>().is_ok());
    entries.flat_map(|(_, queues)| queues.split_whitespace().map_while(|queue| queue.parse().ok())).collect()
}

/// The program's arguments for a table; `None` if it cannot write it.
fn arguments(entries: &[u32]) -> Option<Vec<String>> {
    let queues = entries.iter().max()?.checked_add(1)?;
    if entries.iter().zip((0..queues).cycle()).all(|(entry, turn)| *entry == turn) {
        return Some(vec!["equal".to_owned(), queues.to_string()]);
    }
    entries.is_sorted().then(|| {
        let weight = |queue| entries.iter().filter(|entry| **entry == queue).count().to_string();
        std::iter::once("weight".to_owned()).chain((0..queues).map(weight)).collect()
    })
}

impl Kind for RssTable {
    fn name(&self) -> String {
        format!("receive table of {}", self.device)
    }

    fn is_namespaced(&self) -> bool {
        true
    }

    fn read(&self, host: &Host) -> Result<Content, Unknown> {
        let mut text = String::new();
        for queue in self.entries(host)? {
            let _ = write!(text, "{}{queue}", if text.is_empty() { "" } else { " " });
        }
        Ok(Content::Text(text))
    }

    fn write(&self, host: &Host, to: &Content) -> Result<(), String> {
        let entries = self.entries_in(to)?;
        match ethtool::set_indirection(host, &self.device, &entries) {
            Ok(true) => Ok(()),
            // An older kernel.
            Ok(false) => self.steps(to)?.iter().try_for_each(|step| step.run(host)),
            Err(fault) => Err(fault.describe(&format!("setting the {}", self.name()))),
        }
    }

    fn can_return(&self, host: &Host, to: &Content) -> Result<(), String> {
        match host.kernel() {
            Ok(version) if version >= NETLINK_KERNEL => self.entries_in(to).map(drop),
            _ => self.steps(to).map(drop),
        }
    }

    fn steps(&self, to: &Content) -> Result<Vec<Step>, String> {
        let arguments = arguments(&self.entries_in(to)?).ok_or_else(|| {
            let (major, minor) = NETLINK_KERNEL;
            format!(
                "the {} has an order that ethtool cannot write back (Linux {major}.{minor} and newer can)",
                self.name()
            )
        })?;
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        Ok(vec![Step::command("ethtool", &[&["-X", self.device.as_str()], &arguments[..]].concat())])
    }

    fn lasting(&self, to: &Content) -> Lasting {
        Lasting::by_device(&self.device, self.steps(to))
    }

    fn gone(&self, host: &Host) -> Option<String> {
        device_gone(host, &self.device)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::Fake;
    use crate::netlink::fake::card;

    #[test]
    fn the_program_writes_tables_in_turns_and_in_blocks() {
        for (entries, expected) in [
            (&[0, 1, 2, 0, 1, 2, 0, 1][..], Some("equal 3")),
            (&[0, 0, 0, 0], Some("equal 1")),
            (&[0, 0, 0, 1], Some("weight 3 1")),
            (&[1, 1, 3, 3], Some("weight 0 2 0 2")),
            (&[1, 0, 1, 0], None),
            (&[u32::MAX, 0], None),
            (&[], None),
        ] {
            assert_eq!(arguments(entries).map(|words| words.join(" ")).as_deref(), expected, "{entries:?}");
        }
    }

    /// A kernel of this year writes any table; with an older one, a table that cannot be restored is refused.
    #[test]
    fn any_table_is_restored_by_netlink() {
        let fake = Fake::with(&[("/proc/sys/kernel/osrelease", "6.17.0\n")]);
        fake.tell_all(card());
        let (host, table) = (fake.host(), RssTable { device: "eth0".to_owned() });
        assert_eq!(table.read(&host), Ok(Content::Text("0 0 0 0 0 0 0 0".to_owned())));
        let mixed = Content::Text("1 0 0 1 1 0 1 0".to_owned());
        table.can_return(&host, &mixed).unwrap();
        table.write(&host, &mixed).unwrap();
        assert_eq!(table.read(&host), Ok(mixed.clone()));
        fake.file("/proc/sys/kernel/osrelease", "6.12.1\n");
        assert!(table.can_return(&host, &mixed).unwrap_err().contains("cannot write back"));
        for wrong in ["", "x", "1 -1", "4096"] {
            assert!(table.can_return(&host, &Content::Text(wrong.to_owned())).is_err(), "{wrong}");
        }
    }
}
