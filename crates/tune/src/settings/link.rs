//! Sizes that a device passes at once, by the program `ip`: `gso_max_size` and the like.

use serde::{Deserialize, Serialize};

use super::{Kind, Lasting, Setting, Step, device_gone};
use crate::change::Content;
use crate::counters::number_after;
use crate::error::Unknown;
use crate::host::Host;

/// A size of a device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkSize {
    /// The device, such as `eth0`.
    pub device: String,
    /// Its name for `ip link`.
    pub key: String,
}

/// Sizes, and those for IPv4 that the kernel sets with them if they are at most 64 KiB (`netif_set_gso_max_size`).
const WITH_IPV4: [(&str, &str); 2] =
    [("gso_max_size", "gso_ipv4_max_size"), ("gro_max_size", "gro_ipv4_max_size")];

impl LinkSize {
    pub(crate) fn new(device: &str, key: &str) -> LinkSize {
        LinkSize { device: device.to_owned(), key: key.to_owned() }
    }

    /// Its value.
    pub(crate) fn now(&self, host: &Host) -> Result<u64, Unknown> {
        let text = host.run("ip", &["-details", "link", "show", "dev", &self.device])?;
        number_after(&text, &self.key)
            .ok_or_else(|| Unknown(format!("ip link does not tell {} of {}", self.key, self.device)))
    }
}

impl Kind for LinkSize {
    fn name(&self) -> String {
        format!("{} {}", self.device, self.key)
    }

    fn is_namespaced(&self) -> bool {
        true
    }

    fn read(&self, host: &Host) -> Result<Content, Unknown> {
        self.now(host).map(|size| Content::Text(size.to_string()))
    }

    fn steps(&self, to: &Content) -> Result<Vec<Step>, String> {
        let wrong = || format!("{} cannot be `{}`", self.name(), to.line());
        let size = to.bytes().and_then(|bytes| std::str::from_utf8(bytes).ok()?.trim().parse::<u64>().ok());
        let size = size.ok_or_else(wrong)?.to_string();
        Ok(vec![Step::command("ip", &["link", "set", "dev", &self.device, &self.key, &size])])
    }

    fn resets(&self, _: &Host) -> Vec<Setting> {
        let others = WITH_IPV4.iter().filter(|(key, _)| *key == self.key);
        others.map(|(_, other)| LinkSize::new(&self.device, other).into()).collect()
    }

    fn lasting(&self, to: &Content) -> Lasting {
        Lasting::by_device(&self.device, self.steps(to))
    }

    fn gone(&self, host: &Host) -> Option<String> {
        device_gone(host, &self.device)
    }
}
