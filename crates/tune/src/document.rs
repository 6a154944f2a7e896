//! Makes changes persistent: files for sysctl.d, tmpfiles.d, modprobe.d, udev and systemd. Each tuning has its own
//! files, so that each can be undone separately.

use crate::change::Change;
use crate::host::Host;
use crate::script::shell;
use crate::settings::{Lasting, Step};

/// A file that makes something persistent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Document {
    /// Its path.
    pub path: String,
    /// Its content.
    pub text: String,
}

/// The files that make a tuning's changes persistent, and the reason for each change that cannot be. `unit` is the
/// server's own systemd unit, if it has one.
pub(crate) fn documents(
    host: &Host,
    tuning: &str,
    changes: &[Change],
    unit: Option<&str>,
) -> (Vec<Document>, Vec<String>) {
    let mut kept = DocumentLines::default();
    let mut reasons = Vec::new();
    for change in changes {
        let lasting = change.setting.kind().lasting(&change.to);
        if let Some(reason) = lasting.program().and_then(|program| host.lacks(program)) {
            reasons.push(format!("{}: it needs a program at boot: {reason}", change.setting.name()));
            continue;
        }
        match (lasting, unit) {
            (Lasting::Sysctl { key, value }, _) => {
                if key.starts_with(CONNTRACK_SYSCTLS) {
                    kept.udev.push(CONNTRACK_RULE.to_owned());
                }
                kept.sysctl.push(format!("{key} = {value}"));
            }
            (Lasting::Module { module, parameter, path, value }, _) => {
                // If the table's size is set when it is created, it tracks eight times as many connections, unless
                // the maximum is set.
                if path == CONNTRACK_BUCKETS
                    && let Ok(max) = host.number::<u64>(CONNTRACK_MAX)
                {
                    kept.udev.push(CONNTRACK_RULE.to_owned());
                    kept.sysctl.push(format!("{CONNTRACK_SYSCTLS}max = {max}"));
                }
                kept.modprobe.push(format!("options {module} {parameter}={value}"));
                kept.tmpfiles.push(format!("w {path} - - - - {value}"));
            }
            (Lasting::Tmpfile { path, value }, _) => kept.tmpfiles.push(format!("w {path} - - - - {value}")),
            (Lasting::Attribute { device, attribute, value }, _) => {
                kept.udev.push(rule(&device, &format!("ATTR{{{attribute}}}=\"{value}\"")));
            }
            (Lasting::Device { device, step }, _) => {
                let command = shell(&step).replace('\'', "");
                kept.udev.push(rule(&device, &format!("RUN+=\"/usr/bin/env {PATH} {command}\"")));
            }
            (Lasting::Unit { step }, _) => kept.commands.push(step),
            (Lasting::Server { line }, Some(unit)) => kept.server.push((unit.to_owned(), line)),
            (Lasting::Server { line }, None) => {
                reasons.push(format!(
                    "{}: the server runs in no systemd unit: set {line} where it is started",
                    change.setting.name()
                ));
            }
            (Lasting::Not(reason), _) => reasons.push(format!("{}: {reason}", change.setting.name())),
            (Lasting::Already, _) => {}
        }
    }
    (kept.documents(tuning), reasons)
}

/// Sysctls that exist only while their module is loaded, which may be long after sysctl.d was read.
const CONNTRACK_SYSCTLS: &str = "net.netfilter.nf_conntrack_";

/// The size of the connection table.
const CONNTRACK_BUCKETS: &str = "/sys/module/nf_conntrack/parameters/hashsize";
const CONNTRACK_MAX: &str = "/proc/sys/net/netfilter/nf_conntrack_max";

/// Reads sysctl.d again when the module is loaded, as described in sysctl.d(5).
const CONNTRACK_RULE: &str = "ACTION==\"add\", SUBSYSTEM==\"module\", KERNEL==\"nf_conntrack\", \
                              RUN+=\"/usr/lib/systemd/systemd-sysctl --prefix=/net/netfilter\"";

/// Lines by destination file.
#[derive(Default)]
struct DocumentLines {
    sysctl: Vec<String>,
    tmpfiles: Vec<String>,
    modprobe: Vec<String>,
    udev: Vec<String>,
    commands: Vec<Step>,
    server: Vec<(String, String)>,
}

impl DocumentLines {
    fn documents(self, tuning: &str) -> Vec<Document> {
        let head = format!("# flatout tune: {tuning}; `flatout tune undo {tuning}` removes it\n");
        let lined = |path: String, lines: &[String]| {
            (!lines.is_empty()).then(|| Document { path, text: format!("{head}{}\n", lines.join("\n")) })
        };
        let mut documents: Vec<Document> = [
            lined(format!("/etc/sysctl.d/zz-flatout-{tuning}.conf"), &self.sysctl),
            lined(format!("/etc/tmpfiles.d/flatout-{tuning}.conf"), &self.tmpfiles),
            lined(format!("/etc/modprobe.d/flatout-{tuning}.conf"), &self.modprobe),
            lined(format!("/etc/udev/rules.d/90-flatout-{tuning}.rules"), &self.udev),
        ]
        .into_iter()
        .flatten()
        .collect();
        if !self.commands.is_empty() {
            documents.extend(unit(tuning, &head, &self.commands));
        }
        for (unit, line) in self.server {
            let path = format!("/etc/systemd/system/{unit}.d/zz-flatout-{tuning}.conf");
            documents.push(Document { path, text: format!("{head}[Service]\n{line}\n") });
        }
        documents
    }
}

/// Programs run by udev have no PATH, and the C library's default lacks the folders of `ethtool` and `tc`.
const PATH: &str = "PATH=/usr/sbin:/usr/bin:/sbin:/bin";

/// Two lines: a card that is renamed has its new name as NAME when it is added, a card that is not has no NAME.
fn rule(device: &str, action: &str) -> String {
    ["NAME==\"{}\"", "NAME==\"\", KERNEL==\"{}\""]
        .map(|name| format!("ACTION==\"add\", SUBSYSTEM==\"net\", {}, {action}", name.replace("{}", device)))
        .join("\n")
}

/// A unit that runs commands once at boot, and a file that enables it, where `systemctl enable` would create a link.
fn unit(tuning: &str, head: &str, commands: &[Step]) -> [Document; 2] {
    // In a unit `%` starts a specifier and `$` a variable; in quotes systemd interprets C escapes.
    let escapes = [("\\", "\\\\"), ("\"", "\\\""), ("%", "%%"), ("$", "$$"), ("\n", "\\n"), ("\t", "\\t")];
    let escaped = |line: String| escapes.iter().fold(line, |line, (from, to)| line.replace(from, to));
    let line = |step: &Step| format!("ExecStart=/bin/sh -c \"{}\"\n", escaped(shell(step)));
    let lines: String = commands.iter().map(line).collect();
    let service = format!("flatout-{tuning}.service");
    [
        Document {
            path: format!("/etc/systemd/system/{service}"),
            text: format!(
                "{head}[Unit]\nDescription=flatout tune: {tuning}\nAfter=network.target\n\n\
                 [Service]\nType=oneshot\nRemainAfterExit=yes\n{lines}"
            ),
        },
        Document {
            path: format!("/etc/systemd/system/multi-user.target.d/flatout-{tuning}.conf"),
            text: format!("{head}[Unit]\nWants={service}\n"),
        },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::Fake;
    use crate::settings::{Ethtool, Group, NftTable, OpenFiles, Process, Setting};

    /// A machine with the programs that are needed at boot.
    fn machine() -> Fake {
        let fake = Fake::new();
        ["ethtool --version", "nft --version"].iter().for_each(|line| fake.answer(line, ""));
        fake
    }

    /// A change for which a program would be missing at boot is not written to a file, and is reported.
    #[test]
    fn missing_programs_are_reported() {
        let gro = Change::text(Ethtool::new("eth0", Group::Feature, "gro"), "off");
        let (documents, reasons) = documents(&Fake::new().host(), "t", &[gro], None);
        assert!(documents.is_empty() && reasons[0].contains("install the package ethtool"), "{reasons:?}");
    }

    fn kept(change: Change) -> Vec<Document> {
        documents(&machine().host(), "t", &[change], Some("web.service")).0
    }

    #[test]
    fn each_kind_goes_where_it_is_read_at_boot() {
        let process = Process { id: 7, started_ticks: 1 };
        for (change, path, line) in [
            (
                Change::text(Setting::sysctl("net.core.somaxconn"), 9),
                "/etc/sysctl.d/zz-flatout-t.conf",
                "net.core.somaxconn = 9",
            ),
            (
                Change::text(Setting::file("/sys/kernel/mm/transparent_hugepage/enabled"), "madvise"),
                "/etc/tmpfiles.d/flatout-t.conf",
                "w /sys/kernel/mm/transparent_hugepage/enabled - - - - madvise",
            ),
            (
                Change::text(Setting::file("/sys/class/net/eth0/threaded"), 1),
                "/etc/udev/rules.d/90-flatout-t.rules",
                "KERNEL==\"eth0\", ATTR{threaded}=\"1\"",
            ),
            (
                Change::text(Ethtool::new("eth0", Group::Feature, "gro"), "off"),
                "/etc/udev/rules.d/90-flatout-t.rules",
                "RUN+=\"/usr/bin/env PATH=/usr/sbin:/usr/bin:/sbin:/bin ethtool -K eth0 gro off\"",
            ),
            (
                Change::text(Setting::sysctl("net.netfilter.nf_conntrack_max"), 9),
                "/etc/udev/rules.d/90-flatout-t.rules",
                "KERNEL==\"nf_conntrack\"",
            ),
            (
                Change::text(Setting::file("/sys/module/nf_conntrack/parameters/hashsize"), 9),
                "/etc/modprobe.d/flatout-t.conf",
                "options nf_conntrack hashsize=9",
            ),
            (
                Change::text(Setting::file("/sys/module/nf_conntrack/parameters/hashsize"), 9),
                "/etc/tmpfiles.d/flatout-t.conf",
                "w /sys/module/nf_conntrack/parameters/hashsize - - - - 9",
            ),
            (
                Change::text(OpenFiles { process }, "9:9"),
                "/etc/systemd/system/web.service.d/zz-flatout-t.conf",
                "[Service]\nLimitNOFILE=9:9",
            ),
        ] {
            let documents = kept(change);
            let there = documents.iter().find(|document| document.path == path);
            assert!(there.is_some_and(|document| document.text.contains(line)), "{documents:?}");
        }
    }

    /// A command with input becomes one line of its unit, without anything special to systemd.
    #[test]
    fn a_unit_runs_the_same_command() {
        let table = NftTable { table: "x".to_owned() };
        let documents = kept(Change::text(table, "table inet x {\n\t# 5 % of \"$1\"\n}\n"));
        let line = documents[0].text.lines().find(|line| line.starts_with("ExecStart")).unwrap();
        assert!(line.contains("table inet x {\\n\\t# 5 %% of \\\"$$1\\\"\\n}"), "{line}");
        assert!(documents[1].text.contains("Wants=flatout-t.service"));
    }

    #[test]
    fn settings_that_cannot_persist_give_a_reason() {
        let irq = Change::text(Setting::file("/proc/irq/40/smp_affinity_list"), 1);
        let (documents, reasons) = documents(&machine().host(), "t", &[irq], None);
        assert!(documents.is_empty() && reasons[0].contains("from boot to boot"), "{reasons:?}");
    }
}
