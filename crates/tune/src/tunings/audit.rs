//! System calls seen by the audit subsystem.

use crate::change::Change;
use crate::change::Content;
use crate::error::Unknown;
use crate::host::Host;
use crate::netlink::audit;
use crate::served::Served;
use crate::settings::{AuditRule, Kind};
use crate::tuning::{About, Advice, Counter, Needs, Risk, Scope, Tuning};

/// Whether new processes are audited.
pub(super) struct Audit;

const ABOUT: About = About {
    name: "audit",
    reason: "every system call of an audited process is inspected on entry and on exit",
    detail: "Whether a process is audited is decided when it is created, so restart the server after the rule is \
             added. A configuration locked with `-e 2` stays until the next boot.",
    source: "Richards 2021, step 3: +11 % with seccomp",
    scope: Scope::Host,
    risk: Risk::Grave,
    lost: "processes started from now on are not recorded: compliance rules may forbid that",
    gain_percent: 6.5,
    needs: Needs::AnyPath,
};

impl Tuning for Audit {
    fn about(&self) -> &About {
        &ABOUT
    }

    fn probe(&self, host: &Host, _: &Served) -> Result<String, Unknown> {
        let enabled = enabled(host)?;
        let state = ["off", "on", "on and locked"].get(enabled as usize).copied().unwrap_or("on");
        Ok(match enabled == 0 || AuditRule.read(host)? == Content::Absent {
            true => state.to_owned(),
            false => format!("{state}, but not for new processes"),
        })
    }

    fn advice(&self, host: &Host, _: &Served) -> Result<Advice, Unknown> {
        Ok(match enabled(host)? {
            0 => Advice::Fine,
            2 => {
                Advice::ByHand("locked until the next boot: audit=0 on the kernel's command line".to_owned())
            }
            _ if AuditRule.read(host)? != Content::Absent => Advice::Fine,
            _ => Advice::Change {
                what: "do not audit processes that start from now on".to_owned(),
                changes: vec![Change::text(AuditRule, AuditRule::LINE)],
                then: "restart the server".to_owned(),
            },
        })
    }

    fn effect(&self, host: &Host, _: &Served) -> Result<Counter, Unknown> {
        Ok(Counter { name: "audit enabled".to_owned(), value: enabled(host)? })
    }
}

/// 0 off, 1 on, 2 on and locked until the next boot.
fn enabled(host: &Host) -> Result<u64, Unknown> {
    if !host.has("/proc/self/loginuid") {
        return Ok(0);
    }
    audit::enabled(host).map_err(|fault| Unknown(fault.describe("reading the status of audit")))
}
