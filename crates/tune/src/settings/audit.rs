//! The audit rule that exempts new processes.

use serde::{Deserialize, Serialize};

use super::{Kind, Lasting, Step};
use crate::change::Content;
use crate::error::Unknown;
use crate::host::Host;
use crate::netlink::audit;

/// The rule `never,task`, as `auditctl` calls it: it exists or not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditRule;

impl AuditRule {
    /// The rule in `auditctl`'s syntax.
    pub(crate) const LINE: &str = "-a never,task";
}

impl Kind for AuditRule {
    fn name(&self) -> String {
        "audit rule never,task".to_owned()
    }

    fn is_namespaced(&self) -> bool {
        false
    }

    fn read(&self, host: &Host) -> Result<Content, Unknown> {
        let has =
            audit::has_never_task(host).map_err(|fault| Unknown(fault.describe("listing audit rules")))?;
        Ok(if has { Content::Text(AuditRule::LINE.to_owned()) } else { Content::Absent })
    }

    fn write(&self, host: &Host, to: &Content) -> Result<(), String> {
        let set = audit::set_never_task(host, *to != Content::Absent);
        set.map_err(|fault| fault.describe("changing audit rules"))
    }

    fn steps(&self, to: &Content) -> Result<Vec<Step>, String> {
        let flag = if *to == Content::Absent { "-d" } else { "-a" };
        Ok(vec![Step::command("auditctl", &[flag, "never,task"])])
    }

    fn lasting(&self, to: &Content) -> Lasting {
        Lasting::by_unit(self.steps(to))
    }
}
