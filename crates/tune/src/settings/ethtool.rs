//! What ethtool reads and sets: coalescing, rings, channels, features.

use serde::{Deserialize, Serialize};

use super::{Kind, Lasting, Step, device_gone};
use crate::change::Content;
use crate::error::Unknown;
use crate::host::Host;

/// One parameter of one device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ethtool {
    /// The device, such as `eth0`.
    pub device: String,
    /// Which group of parameters.
    pub group: Group,
    /// The parameter as ethtool takes it, such as `rx-usecs`.
    pub key: String,
}

/// A group of parameters, each with its own pair of ethtool's flags.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Group {
    /// Interrupt moderation: `-c`, `-C`.
    Coalesce,
    /// Descriptor rings: `-g`, `-G`.
    Ring,
    /// Queues: `-l`, `-L`.
    Channel,
    /// Offloads: `-k`, `-K`.
    Feature,
}

impl Group {
    fn flags(self) -> (&'static str, &'static str) {
        match self {
            Group::Coalesce => ("-c", "-C"),
            Group::Ring => ("-g", "-G"),
            Group::Channel => ("-l", "-L"),
            Group::Feature => ("-k", "-K"),
        }
    }
}

impl Ethtool {
    /// A parameter of a device.
    pub(crate) fn new(device: &str, group: Group, key: &str) -> Ethtool {
        Ethtool { device: device.to_owned(), group, key: key.to_owned() }
    }

    /// What it is now.
    pub(crate) fn now(&self, host: &Host) -> Result<String, Unknown> {
        let text = self.ask(host)?;
        // Rings and channels first say what the device could do.
        let now = text.split_once(CURRENT_HEADING).map_or(text.as_str(), |(_, now)| now);
        self.find(now)
    }

    /// The most that the device can do, for rings and channels.
    pub(crate) fn maximum(&self, host: &Host) -> Result<u32, Unknown> {
        let text = self.ask(host)?;
        let (could, _) = text.split_once(CURRENT_HEADING).unwrap_or((&text, ""));
        let value = self.find(could)?;
        value.parse().map_err(|_| Unknown(format!("{} tells no maximum of {}", self.device, self.key)))
    }

    fn ask(&self, host: &Host) -> Result<String, Unknown> {
        host.run("ethtool", &[self.group.flags().0, &self.device])
    }

    /// The value in ethtool's own words; a driver without the parameter says `n/a`, or nothing.
    fn find(&self, text: &str) -> Result<String, Unknown> {
        let found = text.lines().find_map(|line| value_in(line.trim(), &self.key));
        match found.as_deref() {
            Some("n/a") | None => {
                Err(Unknown(format!("the driver of {} does not know {}", self.device, self.key)))
            }
            Some(value) if value.contains("[fixed]") => Err(Unknown(format!(
                "{} of {} is {value}: the driver does not let it change",
                self.key, self.device
            ))),
            Some(value) => Ok(value.split_whitespace().next().unwrap_or_default().to_owned()),
        }
    }
}

const CURRENT_HEADING: &str = "Current hardware settings:";

/// Reads `key: value`, and the one line that has two: `Adaptive RX: off  TX: n/a`.
fn value_in(line: &str, key: &str) -> Option<String> {
    match key {
        "adaptive-rx" => line.strip_prefix("Adaptive RX:")?.split_whitespace().next().map(str::to_owned),
        _ => {
            let shown = match key {
                "gro" => "generic-receive-offload",
                "rx" => "RX",
                "tx" => "TX",
                "combined" => "Combined",
                key => key,
            };
            let value = line.strip_prefix(shown)?.strip_prefix(':')?.trim();
            (!value.is_empty()).then(|| value.to_owned())
        }
    }
}

impl Kind for Ethtool {
    fn name(&self) -> String {
        format!("{} {}", self.device, self.key)
    }

    fn is_namespaced(&self) -> bool {
        true
    }

    fn read(&self, host: &Host) -> Result<Content, Unknown> {
        self.now(host).map(Content::Text)
    }

    fn steps(&self, to: &Content) -> Result<Vec<Step>, String> {
        let Content::Text(value) = to else { return Err(format!("{} always has a value", self.name())) };
        Ok(vec![Step::command("ethtool", &[self.group.flags().1, &self.device, &self.key, value.trim()])])
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

    const RINGS: &str = "Ring parameters for eth0:\nPre-set maximums:\nRX:\t\t4096\nRX Mini:\tn/a\nTX:\t\t4096\n\
                         Current hardware settings:\nRX:\t\t256\nRX Mini:\tn/a\nTX:\t\t256\n";
    const COALESCE: &str =
        "Coalesce parameters for eth0:\nAdaptive RX: off  TX: n/a\nrx-usecs: 50\ntx-usecs: n/a\n";
    const FEATURES: &str =
        "Features for eth0:\ngeneric-receive-offload: on\nlarge-receive-offload: off [fixed]\n";

    #[test]
    fn what_ethtool_says_is_read() {
        let fake = Fake::new();
        fake.answer("ethtool -g eth0", RINGS);
        fake.answer("ethtool -c eth0", COALESCE);
        fake.answer("ethtool -k eth0", FEATURES);
        let host = fake.host();
        let now = |group, key| Ethtool::new("eth0", group, key).now(&host);
        assert_eq!(now(Group::Ring, "rx"), Ok("256".to_owned()));
        assert_eq!(Ethtool::new("eth0", Group::Ring, "rx").maximum(&host), Ok(4096));
        assert_eq!(now(Group::Coalesce, "adaptive-rx"), Ok("off".to_owned()));
        assert_eq!(now(Group::Coalesce, "rx-usecs"), Ok("50".to_owned()));
        assert_eq!(now(Group::Feature, "gro"), Ok("on".to_owned()));
        assert!(now(Group::Coalesce, "tx-usecs").is_err());
        assert!(
            now(Group::Feature, "large-receive-offload").unwrap_err().0.contains("does not let it change")
        );
    }
}
