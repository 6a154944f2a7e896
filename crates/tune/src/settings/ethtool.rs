//! ethtool's parameters: coalescing, rings, channels, features. Uses netlink; on kernels before 5.6, which lack the
//! family, the program `ethtool`.

use serde::{Deserialize, Serialize};

use super::{Kind, Lasting, Setting, Step, device_gone, queues};
use crate::change::Content;
use crate::error::Unknown;
use crate::host::Host;
use crate::netlink::Fault;
use crate::netlink::ethtool::{self, CommandPair, Feature};

/// One parameter of one device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ethtool {
    /// The device, such as `eth0`.
    pub device: String,
    /// The group of parameters.
    pub group: Group,
    /// The parameter's name in ethtool, such as `rx-usecs`.
    pub key: String,
}

/// A group of parameters, each with its own flags of ethtool.
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

/// A parameter in the family `ethtool`.
enum Known {
    /// A number of a group, and its maximum if there is one.
    Number { commands: CommandPair, kind: u16, maximum: Option<u16> },
    /// The same, but on or off.
    Switch { commands: CommandPair, kind: u16 },
}

/// Features by their names in the program and in the kernel: some stand for several, marked by `*`.
const FEATURES: &[(&str, &str)] = &[
    ("gro", "rx-gro"),
    ("rx-checksumming", "rx-checksum"),
    ("tx-checksumming", "tx-checksum-*"),
    ("tcp-segmentation-offload", "tx-tcp*-segmentation"),
    ("generic-segmentation-offload", "tx-generic-segmentation"),
    ("large-receive-offload", "rx-lro"),
    ("ntuple-filters", "rx-ntuple-filter"),
    ("rx-gro-hw", "rx-gro-hw"),
    ("tls-hw-tx-offload", "tls-hw-tx-offload"),
];

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

    /// Its current value; for several features with one name, whether any is on, as the program reports it.
    pub(crate) fn now(&self, host: &Host) -> Result<String, Unknown> {
        if self.group == Group::Feature {
            let features = self.features(host)?;
            let any = |is: fn(&Feature) -> bool| features.iter().any(is);
            return Ok(word(any(|feature| feature.is_active), any(|feature| feature.is_wanted)).to_owned());
        }
        match self.by_netlink(host, Moment::Now)? {
            Some(value) => Ok(value),
            None => self.by_program(host, Moment::Now),
        }
    }

    /// The device's maximum, for rings and channels.
    pub(crate) fn maximum(&self, host: &Host) -> Result<u32, Unknown> {
        let value = match self.by_netlink(host, Moment::Most)? {
            Some(value) => value,
            None => self.by_program(host, Moment::Most)?,
        };
        value.parse().map_err(|_| Unknown(format!("{} reports no maximum of {}", self.device, self.key)))
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
            (Group::Coalesce, "tx-usecs") => {
                let (commands, kind) = (ethtool::COALESCE, ethtool::COALESCE_TX_USECS);
                Known::Number { commands, kind, maximum: None }
            }
            (Group::Coalesce, "adaptive-rx") => {
                Known::Switch { commands: ethtool::COALESCE, kind: ethtool::COALESCE_ADAPTIVE_RX }
            }
            _ => return None,
        })
    }

    /// The value by netlink; `None` if the kernel lacks the family, or the parameter is not in our table.
    fn by_netlink(&self, host: &Host, moment: Moment) -> Result<Option<String>, Unknown> {
        let device = self.device.as_str();
        let unknown = |fault| self.not_read(&fault);
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
                Ok(number(commands, kind)?.map(|value| word(value != 0, value != 0).to_owned()))
            }
            (Some(_), Moment::Most) => Err(Unknown(format!("{} has no maximum", self.name()))),
        }
    }

    /// Sets it by netlink. Returns whether this kernel supports that.
    fn set(&self, host: &Host, value: &str) -> Result<bool, String> {
        let device = self.device.as_str();
        let wrong = || format!("{} cannot be `{value}`", self.name());
        let set = match self.known() {
            None if self.group == Group::Feature => return self.set_features(host, value),
            None => return Ok(false),
            Some(Known::Number { commands, kind, .. }) => {
                let value: u32 = value.parse().map_err(|_| wrong())?;
                ethtool::set_value(host, device, commands, kind, &value.to_ne_bytes())
            }
            Some(Known::Switch { commands, kind }) => {
                let is_on = wanted(value).ok_or_else(wrong)?;
                ethtool::set_value(host, device, commands, kind, &[u8::from(is_on)])
            }
        };
        set.map_err(|fault| self.not_set(value, &fault))
    }

    /// The same for its features.
    fn set_features(&self, host: &Host, value: &str) -> Result<bool, String> {
        let wishes = self.wishes(value)?;
        let Some(features) = self.features_asked(host).map_err(|Unknown(reason)| reason)? else {
            return Ok(false);
        };
        let wishes: Vec<(&str, bool)> = match wishes[..] {
            [(name, is_wanted)] if name == self.key => {
                features.iter().map(|feature| (feature.name.as_str(), is_wanted)).collect()
            }
            _ => wishes,
        };
        ethtool::set_features(host, &self.device, &wishes).map_err(|fault| self.not_set(value, &fault))
    }

    /// The features that it stands for and that the driver allows to change, never empty. The value is whether each
    /// is on and was requested.
    fn features(&self, host: &Host) -> Result<Vec<Feature>, Unknown> {
        match self.features_asked(host)? {
            Some(features) => Ok(features),
            None => self.features_said(host),
        }
    }

    /// By netlink; `None` if the kernel lacks the family.
    fn features_asked(&self, host: &Host) -> Result<Option<Vec<Feature>>, Unknown> {
        let known = FEATURES.iter().find(|(key, _)| *key == self.key);
        let (_, pattern) = known.ok_or_else(|| self.not_known())?;
        let (begin, end) = pattern.split_once('*').unwrap_or((pattern, ""));
        let is_meant = |name: &str| match pattern.contains('*') {
            true => name.strip_prefix(begin).is_some_and(|rest| rest.ends_with(end)),
            false => name == *pattern,
        };
        let features = ethtool::features(host, &self.device).map_err(|fault| self.not_read(&fault))?;
        let Some(mut features) = features else { return Ok(None) };
        features.retain(|feature| is_meant(&feature.name));
        self.changeable(features).map(Some)
    }

    /// From the program's output: a line, and below it one for each of several features.
    fn features_said(&self, host: &Host) -> Result<Vec<Feature>, Unknown> {
        let text = host.run("ethtool", &[self.group.flags().0, &self.device])?;
        let shown = if self.key == "gro" { "generic-receive-offload" } else { &self.key };
        let mut lines = text.lines().skip_while(|line| line.split(':').next() != Some(shown));
        let own = lines.next().ok_or_else(|| self.not_known())?;
        let several: Vec<&str> = lines.take_while(|line| line.starts_with('\t')).collect();
        let lines = if several.is_empty() { vec![own] } else { several };
        let feature = |line: &str| {
            let (name, value) = line.trim().split_once(": ")?;
            let name = if name == shown { &self.key } else { name };
            Some(Feature {
                name: name.to_owned(),
                is_active: value.starts_with(ON),
                is_wanted: wanted(value.trim_end_matches(FIXED).trim_end())?,
                is_fixed: value.ends_with(FIXED),
            })
        };
        let features: Option<Vec<Feature>> = lines.into_iter().map(feature).collect();
        self.changeable(features.ok_or_else(|| self.not_known())?)
    }

    fn changeable(&self, mut features: Vec<Feature>) -> Result<Vec<Feature>, Unknown> {
        let is_active = features.iter().any(|feature| feature.is_active);
        let is_any = !features.is_empty();
        features.retain(|feature| !feature.is_fixed);
        match (features.is_empty(), is_any) {
            (false, _) => Ok(features),
            (true, true) => Err(self.fixed(&format!("{} {FIXED}", word(is_active, is_active)))),
            (true, false) => Err(self.not_known()),
        }
    }

    /// The requests in a value: `on`, or the state of several features, one per line if they differ.
    fn wishes<'v>(&'v self, value: &'v str) -> Result<Vec<(&'v str, bool)>, String> {
        let wish = |line: &'v str| {
            let (name, state) = match wanted(line) {
                Some(_) => (self.key.as_str(), line),
                None => line.split_once(' ')?,
            };
            Some((name, wanted(state)?))
        };
        let wishes: Option<Vec<_>> = value.lines().map(wish).collect();
        let wishes = wishes.filter(|wishes| !wishes.is_empty());
        wishes.ok_or_else(|| format!("{} cannot be `{value}`", self.name()))
    }

    /// The value from the program, which works with older kernels too.
    fn by_program(&self, host: &Host, moment: Moment) -> Result<String, Unknown> {
        let text = host.run("ethtool", &[self.group.flags().0, &self.device])?;
        // For rings and channels, the maxima come first.
        let (could, now) = text.split_once(CURRENT_HEADING).unwrap_or((&text, &text));
        let part = if moment == Moment::Now { now } else { could };
        match part.lines().find_map(|line| value_in(line.trim(), &self.key)).as_deref() {
            Some("n/a") | None => Err(self.not_known()),
            Some(value) => Ok(value.split_whitespace().next().unwrap_or_default().to_owned()),
        }
    }

    fn not_read(&self, fault: &Fault) -> Unknown {
        match fault.is_absent() {
            true => self.not_known(),
            false => Unknown(fault.describe(&format!("reading {}", self.name()))),
        }
    }

    fn not_set(&self, value: &str, fault: &Fault) -> String {
        fault.describe(&format!("setting {} to {value}", self.name()))
    }

    fn not_known(&self) -> Unknown {
        Unknown(format!("the driver of {} does not support {}", self.device, self.key))
    }

    fn fixed(&self, value: &str) -> Unknown {
        let (key, device) = (&self.key, &self.device);
        Unknown(format!("{key} of {device} is {value}: the driver does not let it change"))
    }
}

/// Which value of a parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Moment {
    /// The current one.
    Now,
    /// The maximum.
    Most,
}

const CURRENT_HEADING: &str = "Current hardware settings:";

/// How the program reports features.
const ON: &str = "on";
pub(crate) const OFF: &str = "off";
const ON_UNASKED: &str = "on [requested off]";
/// Requested, but off because a feature that it needs is off.
pub(crate) const OFF_ASKED: &str = "off [requested on]";
const FIXED: &str = "[fixed]";

/// A feature's state in the program's words.
fn word(is_active: bool, is_wanted: bool) -> &'static str {
    match (is_active, is_wanted) {
        (true, true) => ON,
        (true, false) => ON_UNASKED,
        (false, true) => OFF_ASKED,
        (false, false) => OFF,
    }
}

/// Whether a feature was requested, from the program's words; `None` for other words.
fn wanted(word: &str) -> Option<bool> {
    match word {
        ON | OFF_ASKED => Some(true),
        OFF | ON_UNASKED => Some(false),
        _ => None,
    }
}

/// Parses `key: value`, and the one line with two: `Adaptive RX: off  TX: n/a`.
fn value_in(line: &str, key: &str) -> Option<String> {
    match key {
        "adaptive-rx" => line.strip_prefix("Adaptive RX:")?.split_whitespace().next().map(str::to_owned),
        _ => {
            let shown = match key {
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
        if self.group != Group::Feature {
            return self.now(host).map(Content::Text);
        }
        let features = self.features(host)?;
        let state = |feature: &Feature| word(feature.is_active, feature.is_wanted);
        let first = features.first().map(state).unwrap_or_default();
        Ok(Content::Text(match features.iter().all(|feature| state(feature) == first) {
            true => first.to_owned(),
            false => {
                let lines: Vec<String> =
                    features.iter().map(|feature| format!("{} {}", feature.name, state(feature))).collect();
                lines.join("\n")
            }
        }))
    }

    fn write(&self, host: &Host, to: &Content) -> Result<(), String> {
        match to {
            Content::Text(value) if self.set(host, value.trim())? => {}
            to => self.steps(to)?.iter().try_for_each(|step| step.run(host))?,
        }
        // The kernel stores a request even if another feature keeps it off.
        match to {
            Content::Text(value) if self.group == Group::Feature && [ON, OFF].contains(&value.as_str()) => {
                let now = self.now(host).map_err(|Unknown(reason)| reason)?;
                let stays = || {
                    format!("{} was set to {value} and is {now}: another offload keeps it there", self.name())
                };
                if now == *value { Ok(()) } else { Err(stays()) }
            }
            _ => Ok(()),
        }
    }

    fn steps(&self, to: &Content) -> Result<Vec<Step>, String> {
        let Content::Text(value) = to else { return Err(format!("{} always has a value", self.name())) };
        let flag = self.group.flags().1;
        let pairs = match self.group {
            Group::Feature => {
                let wishes = self.wishes(value.trim())?;
                wishes.into_iter().flat_map(|(name, is_wanted)| [name, word(is_wanted, is_wanted)]).collect()
            }
            _ => vec![self.key.as_str(), value.trim()],
        };
        Ok(vec![Step::command("ethtool", &[&[flag, self.device.as_str()], &pairs[..]].concat())])
    }

    /// A feature has its value if it was requested, even if another feature keeps it off.
    fn holds(&self, now: &Content, wanted: &Content) -> bool {
        match (self.group, now, wanted) {
            (Group::Feature, Content::Text(now), Content::Text(wanted)) => {
                match (self.wishes(now.trim()), self.wishes(wanted.trim()).as_deref()) {
                    (Ok(now), Ok([(_, is_wanted)])) => now.iter().all(|(_, wish)| wish == is_wanted),
                    _ => now == wanted,
                }
            }
            _ => now.means(wanted),
        }
    }

    fn lasting(&self, to: &Content) -> Lasting {
        Lasting::by_device(&self.device, self.steps(to))
    }

    fn resets(&self, host: &Host) -> Vec<Setting> {
        match self.group {
            Group::Channel | Group::Ring => queues::of(host, &self.device),
            Group::Coalesce | Group::Feature => Vec::new(),
        }
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
    fn output_of_ethtool_is_parsed() {
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
        let fixed = now(Group::Feature, "large-receive-offload").unwrap_err().0;
        assert!(fixed.contains("is off [fixed]: the driver does not let it change"), "{fixed}");
        assert!(now(Group::Feature, "rx-checksumming").unwrap_err().0.contains("does not support"));
    }

    /// Several features that are one to the program: each is restored, by the program or by netlink.
    #[test]
    fn grouped_features_are_parsed() {
        let fake = Fake::new();
        fake.answer(
            "ethtool -k eth0",
            "tx-checksumming: on\n\ttx-checksum-ipv4: on\n\ttx-checksum-ipv6: off [requested on]\n\t\
             tx-checksum-sctp: off [fixed]\nscatter-gather: on\ntcp-segmentation-offload: off\n\t\
             tx-tcp-segmentation: off\n\ttx-tcp6-segmentation: off\nrx-checksumming: off [requested on]\n\
             generic-segmentation-offload: maybe\n",
        );
        let host = fake.host();
        for (key, now, held, steps) in [
            (
                "tx-checksumming",
                "on",
                "tx-checksum-ipv4 on\ntx-checksum-ipv6 off [requested on]",
                "tx-checksum-ipv4 on tx-checksum-ipv6 on",
            ),
            ("tcp-segmentation-offload", "off", "off", "tcp-segmentation-offload off"),
            ("rx-checksumming", "off [requested on]", "off [requested on]", "rx-checksumming on"),
        ] {
            let feature = Ethtool::new("eth0", Group::Feature, key);
            assert_eq!(feature.now(&host).as_deref(), Ok(now));
            let content = feature.read(&host).unwrap();
            assert_eq!(content, Content::Text(held.to_owned()));
            let arguments = format!("-K eth0 {steps}");
            let arguments: Vec<&str> = arguments.split(' ').collect();
            assert_eq!(feature.steps(&content), Ok(vec![Step::command("ethtool", &arguments)]));
            let on = Content::Text(ON.to_owned());
            assert_eq!(feature.holds(&content, &on), key != "tcp-segmentation-offload", "{key}");
        }
        assert!(Ethtool::new("eth0", Group::Feature, "generic-segmentation-offload").now(&host).is_err());
        for wrong in ["", "yes", "tx-tcp-segmentation", "tx-tcp-segmentation maybe", "on\n\noff"] {
            let feature = Ethtool::new("eth0", Group::Feature, "tcp-segmentation-offload");
            assert!(feature.steps(&Content::Text(wrong.to_owned())).is_err(), "{wrong}");
        }
    }
}
