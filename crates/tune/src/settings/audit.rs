//! A rule of the audit subsystem, through `auditctl`.

use serde::{Deserialize, Serialize};

use super::{Kind, Lasting, Step};
use crate::change::Content;
use crate::error::Unknown;
use crate::host::Host;

/// A rule by list and action, such as `never,task`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditRule {
    /// What follows `-a`.
    pub rule: String,
}

impl Kind for AuditRule {
    fn name(&self) -> String {
        format!("audit rule {}", self.rule)
    }

    fn is_namespaced(&self) -> bool {
        false
    }

    fn read(&self, host: &Host) -> Result<Content, Unknown> {
        let line = format!("-a {}", self.rule);
        let rules = host.run("auditctl", &["-l"])?;
        Ok(if rules.lines().any(|rule| rule.trim() == line) { Content::Text(line) } else { Content::Absent })
    }

    fn steps(&self, to: &Content) -> Result<Vec<Step>, String> {
        let flag = if *to == Content::Absent { "-d" } else { "-a" };
        Ok(vec![Step::command("auditctl", &[flag, &self.rule])])
    }

    fn lasting(&self, to: &Content) -> Lasting {
        Lasting::by_unit(self.steps(to))
    }
}
