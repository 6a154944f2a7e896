//! How each kind of setting is read, written and made persistent. One file per kind, all with the same shape.

mod audit;
mod command;
mod ethtool;
mod file;
mod interrupt;
mod iptables;
mod link;
mod napi;
mod nft;
mod process;
mod qdisc;
mod queues;
mod rss_table;
mod service;

pub(crate) use audit::AuditRule;
pub use command::Commands;
pub(crate) use ethtool::{Ethtool, Group, OFF, OFF_ASKED};
pub(crate) use file::FileSetting;
pub(crate) use interrupt::{Interrupt, affinity};
pub(crate) use iptables::IptablesRule;
pub(crate) use link::LinkSize;
pub(crate) use napi::NapiSuspension;
pub(crate) use nft::{NftRule, NftTable, RULE_COMMENT};
pub(crate) use process::{Affinity, OpenFiles, Process, status_field};
pub(crate) use qdisc::{Qdisc, Root};
pub(crate) use rss_table::RssTable;
pub(crate) use service::Service;

use serde::{Deserialize, Serialize};

use crate::change::Content;
use crate::error::Unknown;
use crate::host::Host;

/// Something that can be read, written and restored. The journal stores it, so it is plain data.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Setting {
    /// A file: in procfs, in sysfs, or on a disk.
    File(FileSetting),
    /// A parameter of a network device that ethtool sets.
    Ethtool(Ethtool),
    /// A network device's root qdisc.
    Qdisc(Qdisc),
    /// How long a device's NAPI instances suspend interrupts.
    NapiSuspension(NapiSuspension),
    /// The CPUs that a thread may run on.
    Affinity(Affinity),
    /// How many files a process may open.
    OpenFiles(OpenFiles),
    /// A rule of the audit subsystem.
    AuditRule(AuditRule),
    /// Our own nftables table.
    NftTable(NftTable),
    /// Our rule in an existing nftables chain.
    NftRule(NftRule),
    /// Our rule in an existing iptables chain.
    IptablesRule(IptablesRule),
    /// Whether a systemd unit runs.
    Service(Service),
    /// The CPUs that handle an interrupt.
    Interrupt(Interrupt),
    /// The queue of each hash of a connection.
    RssTable(RssTable),
    /// How much a device passes at once.
    LinkSize(LinkSize),
    /// A change by commands of the user.
    Commands(Commands),
}

/// One step of a change; a list of them is run here, or printed as a script. Changes by netlink also have equivalent
/// commands here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    /// Write bytes to a file.
    Write { path: String, bytes: Vec<u8> },
    /// Remove a file.
    Remove { path: String },
    /// Run a command.
    Run { program: &'static str, arguments: Vec<String>, input: String },
}

/// How a setting is made persistent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Lasting {
    /// A line in sysctl.d.
    Sysctl { key: String, value: String },
    /// A line in tmpfiles.d.
    Tmpfile { path: String, value: String },
    /// An attribute set by a udev rule when the device appears.
    Attribute { device: String, attribute: String, value: String },
    /// An option of a module in modprobe.d, and a line in tmpfiles.d in case it is built in.
    Module { module: String, parameter: String, path: String, value: String },
    /// A command run by a udev rule when the device appears.
    Device { device: String, step: Step },
    /// A command run by a systemd unit.
    Unit { step: Step },
    /// A line in the server's own systemd unit.
    Server { line: String },
    /// It is a file on disk and already persistent.
    Already,
    /// It cannot be persistent, and why.
    Not(&'static str),
}

/// The interface of every kind of setting.
pub(crate) trait Kind {
    /// Its standard name.
    fn name(&self) -> String;
    /// Whether each network namespace has its own one.
    fn is_namespaced(&self) -> bool;
    /// Its value.
    fn read(&self, host: &Host) -> Result<Content, Unknown>;
    /// Sets its value.
    fn write(&self, host: &Host, to: &Content) -> Result<(), String> {
        self.steps(to)?.iter().try_for_each(|step| step.run(host))
    }
    /// Whether a value could be restored on the machine as it is now.
    fn can_return(&self, _host: &Host, to: &Content) -> Result<(), String> {
        self.steps(to).map(drop)
    }
    /// The files and commands that set a value. An error is a value that these cannot set.
    fn steps(&self, to: &Content) -> Result<Vec<Step>, String>;
    /// How it is made persistent.
    fn lasting(&self, to: &Content) -> Lasting;
    /// Whether it has the wanted value, in the kernel's formatting.
    fn holds(&self, now: &Content, wanted: &Content) -> bool {
        now.means(wanted)
    }
    /// A shell condition that is true while it still has the value that was set; `None` if that does not fit in a
    /// line. The script itself compares files.
    fn holds_in_shell(&self, _ours: &Content) -> Option<String> {
        None
    }
    /// Whether the current value may be what the kernel or the driver made of the wanted one, since both round
    /// numbers.
    fn may_be_rounded(&self, now: &Content, wanted: &Content) -> bool {
        match (now, wanted) {
            (Content::Text(now), Content::Text(wanted)) => {
                match (now.trim().parse::<u64>(), wanted.trim().parse::<u64>()) {
                    (Ok(now), Ok(wanted)) => now / 2 <= wanted && wanted / 2 <= now,
                    _ => false,
                }
            }
            _ => false,
        }
    }
    /// Removes what a kill in the middle of a write may have left behind.
    fn tidy(&self, _host: &Host) {}
    /// Other settings that the kernel or the driver may reset when this one is written. They are recorded and restored with it.
    fn resets(&self, _host: &Host) -> Vec<Setting> {
        Vec::new()
    }
    /// Why there is nothing left to restore, if so.
    fn gone(&self, _host: &Host) -> Option<String> {
        None
    }
}

impl Lasting {
    /// The program that it needs at boot.
    pub(crate) fn program(&self) -> Option<&'static str> {
        match self {
            Lasting::Device { step: Step::Run { program, .. }, .. }
            | Lasting::Unit { step: Step::Run { program, .. } } => Some(program),
            _ => None,
        }
    }

    /// Persistence by running the same command when the device appears.
    fn by_device(device: &str, steps: Result<Vec<Step>, String>) -> Lasting {
        match steps.ok().and_then(|mut steps| steps.pop()) {
            Some(step) => Lasting::Device { device: device.to_owned(), step },
            None => Lasting::Already,
        }
    }

    /// Persistence by running the same command at boot.
    fn by_unit(steps: Result<Vec<Step>, String>) -> Lasting {
        match steps.ok().and_then(|mut steps| steps.pop()) {
            Some(step) => Lasting::Unit { step },
            None => Lasting::Already,
        }
    }
}

impl Setting {
    pub(crate) fn kind(&self) -> &dyn Kind {
        match self {
            Setting::File(kind) => kind,
            Setting::Ethtool(kind) => kind,
            Setting::Qdisc(kind) => kind,
            Setting::NapiSuspension(kind) => kind,
            Setting::Affinity(kind) => kind,
            Setting::OpenFiles(kind) => kind,
            Setting::AuditRule(kind) => kind,
            Setting::NftTable(kind) => kind,
            Setting::NftRule(kind) => kind,
            Setting::IptablesRule(kind) => kind,
            Setting::Service(kind) => kind,
            Setting::Interrupt(kind) => kind,
            Setting::RssTable(kind) => kind,
            Setting::LinkSize(kind) => kind,
            Setting::Commands(kind) => kind,
        }
    }

    /// Its standard name.
    pub fn name(&self) -> String {
        self.kind().name()
    }
}

impl Step {
    /// A command without input.
    pub(crate) fn command(program: &'static str, arguments: &[&str]) -> Step {
        let arguments = arguments.iter().map(|&argument| argument.to_owned()).collect();
        Step::Run { program, arguments, input: String::new() }
    }

    fn run(&self, host: &Host) -> Result<(), String> {
        match self {
            Step::Write { path, bytes } => host.write(path, bytes),
            Step::Remove { path } => host.remove(path),
            Step::Run { program, arguments, input } => {
                let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
                host.act(program, &arguments, input)
            }
        }
    }
}

/// Why a network device's settings are gone, if the device is.
fn device_gone(host: &Host, device: &str) -> Option<String> {
    let known = host.text("/proc/net/dev").ok()?;
    let there = known.lines().any(|line| line.split(':').next().is_some_and(|name| name.trim() == device));
    (!there).then(|| format!("network device {device} no longer exists"))
}

macro_rules! from_kinds {
    ($($kind:ident($inner:ty)),*) => {
        $(impl From<$inner> for Setting {
            fn from(kind: $inner) -> Setting {
                Setting::$kind(kind)
            }
        })*
    };
}

from_kinds!(
    File(FileSetting),
    Ethtool(Ethtool),
    Qdisc(Qdisc),
    NapiSuspension(NapiSuspension),
    Affinity(Affinity),
    OpenFiles(OpenFiles),
    AuditRule(AuditRule),
    NftTable(NftTable),
    NftRule(NftRule),
    IptablesRule(IptablesRule),
    Service(Service),
    Interrupt(Interrupt),
    RssTable(RssTable),
    LinkSize(LinkSize),
    Commands(Commands)
);
