//! Our rule at the head of an iptables chain.

use serde::{Deserialize, Serialize};

use super::{Kind, Lasting, Step};
use crate::change::Content;
use crate::error::Unknown;
use crate::host::Host;

/// A complete rule: it exists or not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IptablesRule {
    /// Whether it is for IPv6.
    pub v6: bool,
    /// The table.
    pub table: String,
    /// The chain.
    pub chain: String,
    /// Its matches and target, in iptables' syntax.
    pub rule: String,
}

impl IptablesRule {
    fn program(&self) -> &'static str {
        if self.v6 { "ip6tables" } else { "iptables" }
    }

    /// The arguments for an action such as `-I`. `-w` waits for iptables' own lock.
    fn arguments<'s>(&'s self, action: &'s str) -> Vec<&'s str> {
        let mut arguments = vec!["-w", "-t", &self.table, action, &self.chain];
        arguments.extend(self.rule.split_whitespace());
        arguments
    }
}

impl Kind for IptablesRule {
    fn name(&self) -> String {
        format!("{} {} {}", self.program(), self.table, self.chain)
    }

    fn is_namespaced(&self) -> bool {
        true
    }

    fn read(&self, host: &Host) -> Result<Content, Unknown> {
        Ok(match host.agrees(self.program(), &self.arguments("-C"))? {
            true => Content::Text(self.rule.clone()),
            false => Content::Absent,
        })
    }

    fn steps(&self, to: &Content) -> Result<Vec<Step>, String> {
        let action = if *to == Content::Absent { "-D" } else { "-I" };
        Ok(vec![Step::command(self.program(), &self.arguments(action))])
    }

    fn lasting(&self, to: &Content) -> Lasting {
        Lasting::by_unit(self.steps(to))
    }
}
