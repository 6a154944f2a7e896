//! A device's root qdisc. Two kinds can be restored: the kernel's own one, by removing ours, if it would attach the
//! same again; and one without classes and filters, by its options as the kernel reported them. Any other was
//! configured in many steps, and is never replaced.

use serde::{Deserialize, Serialize};

use super::{Kind, Lasting, Step, device_gone};
use crate::change::Content;
use crate::error::Unknown;
use crate::host::Host;
use crate::netlink::{Fault, qdisc};

/// The root qdisc of a device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Qdisc {
    /// The device.
    pub device: String,
}

/// A device's root qdisc, parsed from the setting's value.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Root<'c> {
    pub(crate) kind: &'c str,
    handle: u32,
    /// Its options, byte for byte; an error if it has more than options.
    options: Result<Option<Vec<u8>>, ()>,
    /// The kinds of the queues: of the root itself, or of each queue below it if there are several.
    leaves: Vec<&'c str>,
}

/// Qdiscs that are completely described by their options: they have no classes, their options contain no counters,
/// and the kernel accepts the options as it reports them, or as `netlink::qdisc` corrects them.
const LEAVES: &[&str] =
    &["bfifo", "codel", "fq", "fq_codel", "noqueue", "pfifo", "pfifo_fast", "pfifo_head_drop"];

/// The root that the kernel attaches to a multi-queue device; each queue has its own qdisc below it.
const MULTIQUEUE: &str = "mq";

/// What the kernel attaches to a device that needs no queue, whatever its default is.
const NONE: &str = "noqueue";

/// The kind that the kernel attaches to any other device.
const DEFAULT: &str = "net.core.default_qdisc";
const DEFAULT_PATH: &str = "/proc/sys/net/core/default_qdisc";

/// Attached for a moment, so that there is something to remove.
const PLACEHOLDER: &str = "pfifo";

/// The start of a value that was read; a value to set is only a kind.
const BEGIN: &str = "qdisc ";

/// The low half of a handle: a class.
const MINOR_BITS: u32 = 16;

impl<'c> Root<'c> {
    /// The root qdisc in what was read, such as `qdisc fq 8001: root options 0800…`.
    pub(crate) fn parse(text: &'c str) -> Option<Root<'c>> {
        let mut words = text.lines().next()?.strip_prefix(BEGIN)?.split(' ');
        let (kind, handle) = (words.next()?, words.next()?.strip_suffix(':')?);
        let handle = u32::from_str_radix(handle, 16).ok()?.checked_shl(MINOR_BITS)?;
        let rest: Vec<&str> = words.collect();
        let is_whole = LEAVES.contains(&kind) && text.lines().count() == 1;
        let options = match rest[..] {
            ["root"] if is_whole => Ok(None),
            ["root", "options", hex] if is_whole => unhex(hex).map(Some).ok_or(()),
            _ => Err(()),
        };
        let leaves = match kind {
            MULTIQUEUE => text.lines().skip(1).filter_map(|line| line.split(' ').nth(1)).collect(),
            kind => vec![kind],
        };
        Some(Root { kind, handle, options, leaves })
    }

    /// Whether the kernel attached it: then it attaches one again when another is removed.
    fn is_kernels(&self) -> bool {
        self.handle == 0
    }
}

impl Qdisc {
    fn list(&self, host: &Host) -> Result<Content, Fault> {
        let mut found = qdisc::list(host, &self.device)?;
        found.sort_by_key(|qdisc| (qdisc.parent != qdisc::ROOT, qdisc.parent));
        let mut lines: Vec<String> = found.iter().map(line).collect();
        if let Some(root) = found.first().filter(|root| root.handle != 0) {
            let filters = qdisc::filters_count(host, &self.device, root.handle)?;
            lines.extend((filters > 0).then(|| format!("{filters} filters")));
        }
        Ok(if lines.is_empty() { Content::Absent } else { Content::Text(lines.join("\n")) })
    }

    /// Makes the kernel attach its own again, which it does when another is removed.
    fn have_attached(&self, host: &Host) -> Result<(), Fault> {
        let is_kernels = |found: &qdisc::KernelQdisc| found.parent == qdisc::ROOT && found.handle == 0;
        if qdisc::list(host, &self.device)?.iter().any(is_kernels) {
            qdisc::set_root(host, &self.device, PLACEHOLDER, 0, None)?;
        }
        qdisc::remove_root(host, &self.device)
    }

    /// Whether the kernel would attach it again, which depends on its default at that time. Network namespaces other
    /// than the initial one do not show the default, and it cannot be changed there.
    fn is_attached_again(&self, host: &Host, root: &Root) -> Result<(), String> {
        let device = &self.device;
        let Some(default) = host.bytes(DEFAULT_PATH).map_err(|Unknown(reason)| reason)? else {
            return Ok(());
        };
        let default = String::from_utf8_lossy(&default);
        let default = default.trim_end();
        match root.leaves.iter().find(|leaf| **leaf != NONE && **leaf != default) {
            None => Ok(()),
            Some(leaf) => Err(format!(
                "the kernel attached {leaf} to {device}, and would attach {default} now: set {DEFAULT} to {leaf} first \
                 (`flatout tune undo default-qdisc` if it was set by that)"
            )),
        }
    }

    fn configured(&self, to: &Content) -> String {
        let device = &self.device;
        format!(
            "the qdisc of {device} was configured by somebody ({}): change it where that is done",
            to.line()
        )
    }
}

impl Kind for Qdisc {
    fn name(&self) -> String {
        format!("{} qdisc", self.device)
    }

    fn is_namespaced(&self) -> bool {
        true
    }

    fn read(&self, host: &Host) -> Result<Content, Unknown> {
        let listed = self.list(host);
        listed.map_err(|fault| Unknown(fault.describe(&format!("listing the qdiscs of {}", self.device))))
    }

    fn write(&self, host: &Host, to: &Content) -> Result<(), String> {
        let Content::Text(text) = to else { return Err(format!("{} always has a value", self.name())) };
        let device = &self.device;
        let written = match Root::parse(text) {
            None => qdisc::set_root(host, device, text.trim(), 0, None),
            Some(root) if root.is_kernels() => self.have_attached(host),
            Some(Root { kind, handle, options: Ok(options), .. }) => {
                qdisc::set_root(host, device, kind, handle, options.as_deref())
            }
            Some(_) => return Err(self.configured(to)),
        };
        written.map_err(|fault| fault.describe(&format!("changing the qdisc of {device}")))
    }

    fn can_return(&self, host: &Host, to: &Content) -> Result<(), String> {
        let Content::Text(text) = to else { return Err(self.configured(to)) };
        match Root::parse(text) {
            Some(root) if root.is_kernels() => self.is_attached_again(host, &root),
            Some(Root { options: Ok(_), .. }) => Ok(()),
            _ => Err(self.configured(to)),
        }
    }

    fn steps(&self, to: &Content) -> Result<Vec<Step>, String> {
        let Content::Text(text) = to else { return Err(format!("{} always has a value", self.name())) };
        let device = self.device.as_str();
        match Root::parse(text) {
            None => Ok(vec![Step::command("tc", &["qdisc", "replace", "dev", device, "root", text])]),
            Some(root) if root.is_kernels() => {
                Ok(vec![Step::command("tc", &["qdisc", "del", "dev", device, "root"])])
            }
            Some(Root { kind, options: Ok(_), .. }) => Err(format!(
                "a script cannot restore the parameters of {kind} on {device}; `flatout tune apply` and `undo` can"
            )),
            Some(_) => Err(self.configured(to)),
        }
    }

    fn lasting(&self, to: &Content) -> Lasting {
        Lasting::by_device(&self.device, self.steps(to))
    }

    fn holds(&self, now: &Content, wanted: &Content) -> bool {
        match (now, wanted) {
            (Content::Text(now), Content::Text(wanted)) if !wanted.starts_with(BEGIN) => {
                Root::parse(now).is_some_and(|root| root.kind == wanted)
            }
            (now, wanted) => now == wanted,
        }
    }

    fn gone(&self, host: &Host) -> Option<String> {
        device_gone(host, &self.device)
    }
}

/// A qdisc as `tc` shows it, but with its options as the kernel reports them.
fn line(qdisc: &qdisc::KernelQdisc) -> String {
    let (major, minor) = (|handle: u32| handle >> MINOR_BITS, |handle: u32| handle & 0xffff);
    let parent = match (qdisc.parent, major(qdisc.parent)) {
        (qdisc::ROOT, _) => "root".to_owned(),
        (parent, 0) => format!("parent :{:x}", minor(parent)),
        (parent, major) => format!("parent {major:x}:{:x}", minor(parent)),
    };
    let table = if qdisc.has_size_table { " with a size table" } else { "" };
    // Others have counters in their options, which would change the value each time.
    let options = qdisc
        .options
        .as_deref()
        .filter(|options| !options.is_empty() && LEAVES.contains(&qdisc.kind.as_str()));
    let options = options.map(|options| format!(" options {}", hex(options))).unwrap_or_default();
    format!("{BEGIN}{} {:x}: {parent}{table}{options}", qdisc.kind, major(qdisc.handle))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let pairs = text.as_bytes().chunks(2).map(|pair| {
        let pair = std::str::from_utf8(pair).ok().filter(|pair| pair.len() == 2)?;
        u8::from_str_radix(pair, 16).ok()
    });
    pairs.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::Fake;

    #[test]
    fn restorable_qdiscs_are_recognized() {
        for (text, can) in [
            ("qdisc pfifo_fast 0: root options 03000000", true),
            ("qdisc fq_codel 0: root options 00", false),
            ("qdisc mq 0: root\nqdisc pfifo_fast 0: parent :1 options 00", true),
            (
                "qdisc mq 0: root\nqdisc pfifo_fast 0: parent :1\nqdisc fq_codel 0: parent :2 options 00",
                false,
            ),
            ("qdisc mq 0: root\n1 filters", false),
            ("qdisc noqueue 0: root", true),
            ("qdisc fq 8001: root options 0800010010270000", true),
            ("qdisc noqueue 8001: root", true),
            ("qdisc htb 1: root", false),
            ("qdisc fq 8001: root options 08zz", false),
            ("qdisc fq 8001: root options 080", false),
            ("qdisc fq 8001: root with a size table options 00", false),
            ("qdisc fq_codel 8001: root options 00\n1 filters", false),
            ("qdisc mq 1: root\nqdisc fq 2: parent 1:1", false),
            ("qdisc x ffffffff0: root", false),
            ("qdisc ", false),
            ("", false),
        ] {
            let fake = Fake::with(&[(DEFAULT_PATH, "pfifo_fast\n")]);
            let qdisc = Qdisc { device: "eth0".to_owned() };
            let told = qdisc.can_return(&fake.host(), &Content::Text(text.to_owned()));
            assert_eq!(told.is_ok(), can, "{text}: {told:?}");
        }
    }
}
