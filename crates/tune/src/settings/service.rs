//! Whether a systemd unit runs.

use serde::{Deserialize, Serialize};

use super::{Kind, Lasting, Step};
use crate::change::Content;
use crate::error::Unknown;
use crate::host::Host;
use crate::script::quote;

/// A unit by its name; its value is `active` or `inactive`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Service {
    /// The unit.
    pub unit: String,
}

impl Kind for Service {
    fn name(&self) -> String {
        format!("unit {}", self.unit)
    }

    fn is_namespaced(&self) -> bool {
        false
    }

    fn read(&self, host: &Host) -> Result<Content, Unknown> {
        let state = host.run("systemctl", &["show", "-p", "ActiveState", "--value", &self.unit])?;
        Ok(Content::Text(state.trim().to_owned()))
    }

    fn steps(&self, to: &Content) -> Result<Vec<Step>, String> {
        let verb = if *to == Content::Text("active".to_owned()) { "start" } else { "stop" };
        Ok(vec![Step::command("systemctl", &[verb, &self.unit])])
    }

    fn holds_in_shell(&self, ours: &Content) -> Option<String> {
        let state = format!("\"$(systemctl show -p ActiveState --value {})\"", quote(&self.unit));
        Some(format!("[ {state} = {} ]", quote(&ours.line())))
    }

    fn lasting(&self, to: &Content) -> Lasting {
        Lasting::by_unit(self.steps(to))
    }
}
