//! What ethtool reads and sets: coalescing, rings, channels, features. By netlink; through the program of that name on
//! kernels before 5.6, which do not have the family.

use serde::{Deserialize, Serialize};

use super::{Kind, Lasting, Step, device_gone};
use crate::change::Content;
use crate::error::Unknown;
use crate::host::Host;
use crate::netlink::Fault;
use crate::netlink::ethtool::{self, Commands};

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

/// A parameter as the family `ethtool` knows it.
enum Known {
    /// A number of a group, where a group has such, and the most that it can be.
    Number { commands: Commands, kind: u16, maximum: Option<u16> },
    /// The same, but on or off.
    Switch { commands: Commands, kind: u16 },
    /// A feature by the kernel's name of it.
    Feature(&'static str),
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
        match self.asked(host, Moment::Now)? {
            Some(value) => Ok(value),
            None => self.said(host, Moment::Now),
        }
    }

    /// The most that the device can do, for rings and channels.
    pub(crate) fn maximum(&self, host: &Host) -> Result<u32, Unknown> {
        let value = match self.asked(host, Moment::Most)? {
            Some(value) => value,
            None => self.said(host, Moment::Most)?,
        };
        value.parse().map_err(|_| Unknown(format!("{} tells no maximum of {}", self.device, self.key)))
    }

    fn known(&self) -> Option<Known> {
        let pair = |commands, (kind, maximum)| Known::Number { commands, kind, maximum: Some(maximum) };
        Some(match (self.group, self.key.as_str()) {
            (Group::Channel, "combined") => pair(ethtool::CHANNELS, ethtool::CHANNELS_COMBINED),
            (Group::Ring, "rx") => pair(ethtool::RINGS, ethtool::RINGS_RX),
            (Group::Coalesce, "rx-usecs") => {
                let (commands, kind) = (ethtool::COALESCE, ethtool::COALESCE_RX_USECS);
                Known::Number { commands, kind, maximum: None }
            }
            (Group::Coalesce, "adaptive-rx") => {
                Known::Switch { commands: ethtool::COALESCE, kind: ethtool::COALESCE_ADAPTIVE_RX }
            }
            (Group::Feature, "gro") => Known::Feature("rx-gro"),
            _ => return None,
        })
    }

    /// The value by netlink; nothing where the kernel is older than the family, or the parameter is not in our table.
    fn asked(&self, host: &Host, moment: Moment) -> Result<Option<String>, Unknown> {
        let device = self.device.as_str();
        let unknown = |fault: Fault| match fault.is_absent() {
            true => self.not_known(),
            false => Unknown(fault.told(&format!("reading {}", self.name()))),
        };
        let number = |commands, kind| -> Result<Option<u64>, Unknown> {
            let Some(values) = ethtool::values(host, device, commands).map_err(unknown)? else {
                return Ok(None);
            };
            let value = values.iter().find(|(found, _)| *found == kind).map(|(_, value)| *value);
            value.map(Some).ok_or_else(|| self.not_known())
        };
        match (self.known(), moment) {
            (None, _) => Ok(None),
            (Some(Known::Number { commands, maximum: Some(kind), .. }), Moment::Most)
            | (Some(Known::Number { commands, kind, .. }), Moment::Now) => {
                Ok(number(commands, kind)?.map(|value| value.to_string()))
            }
            (Some(Known::Switch { commands, kind }), Moment::Now) => {
                Ok(number(commands, kind)?.map(|value| on_off(value != 0)))
            }
            (Some(Known::Feature(name)), Moment::Now) => {
                match ethtool::feature(host, device, name).map_err(unknown)? {
                    Some(feature) if feature.is_fixed => Err(self.fixed(&on_off(feature.is_active))),
                    feature => Ok(feature.map(|feature| on_off(feature.is_active))),
                }
            }
            (Some(_), Moment::Most) => Err(Unknown(format!("{} has no maximum", self.name()))),
        }
    }

    /// Sets it by netlink; says whether that is how it is done on this kernel.
    fn set(&self, host: &Host, value: &str) -> Result<bool, String> {
        let device = self.device.as_str();
        let wrong = || format!("{} cannot be `{value}`", self.name());
        let switch = || match value {
            "on" => Ok(true),
            "off" => Ok(false),
            _ => Err(wrong()),
        };
        let set = match self.known() {
            None => return Ok(false),
            Some(Known::Number { commands, kind, .. }) => {
                let value: u32 = value.parse().map_err(|_| wrong())?;
                ethtool::set_value(host, device, commands, kind, &value.to_ne_bytes())
            }
            Some(Known::Switch { commands, kind }) => {
                ethtool::set_value(host, device, commands, kind, &[u8::from(switch()?)])
            }
            Some(Known::Feature(name)) => ethtool::set_feature(host, device, name, switch()?),
        };
        set.map_err(|fault| fault.told(&format!("setting {} to {value}", self.name())))
    }

    /// The value in the words of the program, which speaks to older kernels too.
    fn said(&self, host: &Host, moment: Moment) -> Result<String, Unknown> {
        let text = host.run("ethtool", &[self.group.flags().0, &self.device])?;
        // Rings and channels first say what the device could do.
        let (could, now) = text.split_once(CURRENT_HEADING).unwrap_or((&text, &text));
        let part = if moment == Moment::Now { now } else { could };
        match part.lines().find_map(|line| value_in(line.trim(), &self.key)).as_deref() {
            Some("n/a") | None => Err(self.not_known()),
            Some(value) if value.contains("[fixed]") => Err(self.fixed(value)),
            Some(value) => Ok(value.split_whitespace().next().unwrap_or_default().to_owned()),
        }
    }

    fn not_known(&self) -> Unknown {
        Unknown(format!("the driver of {} does not know {}", self.device, self.key))
    }

    fn fixed(&self, value: &str) -> Unknown {
        let (key, device) = (&self.key, &self.device);
        Unknown(format!("{key} of {device} is {value}: the driver does not let it change"))
    }
}

/// Which of a parameter's two values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Moment {
    /// What it is.
    Now,
    /// The most that it can be.
    Most,
}

const CURRENT_HEADING: &str = "Current hardware settings:";

fn on_off(is_on: bool) -> String {
    if is_on { "on" } else { "off" }.to_owned()
}

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

    fn write(&self, host: &Host, to: &Content) -> Result<(), String> {
        match to {
            Content::Text(value) if self.set(host, value.trim())? => Ok(()),
            to => self.steps(to)?.iter().try_for_each(|step| step.run(host)),
        }
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
