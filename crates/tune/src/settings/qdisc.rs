//! A device's root qdisc. Of those that the kernel attached itself any can be brought back, by removing ours; one that
//! somebody configured has parameters, classes and filters that `tc` cannot replay, so it is never replaced.

use serde::{Deserialize, Serialize};

use super::{Kind, Lasting, Step, device_gone};
use crate::change::Content;
use crate::error::Unknown;
use crate::host::Host;

/// The root qdisc of a device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Qdisc {
    /// The device.
    pub device: String,
}

impl Qdisc {
    /// The kind of the root qdisc in `tc`'s answer, and whether the kernel attached it: its handle is then 0.
    pub(crate) fn root(text: &str) -> Option<(&str, bool)> {
        let line = text.lines().find(|line| line.contains(" root "))?;
        let mut words = line.split_whitespace().skip(1);
        Some((words.next()?, words.next()? == "0:"))
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
        host.run("tc", &["qdisc", "show", "dev", &self.device]).map(Content::Text)
    }

    fn steps(&self, to: &Content) -> Result<Vec<Step>, String> {
        let Content::Text(text) = to else { return Err(format!("{} always has a value", self.name())) };
        if !text.starts_with("qdisc ") {
            return Ok(vec![Step::command("tc", &["qdisc", "replace", "dev", &self.device, "root", text])]);
        }
        match Qdisc::root(text) {
            Some((_, true)) => Ok(vec![Step::command("tc", &["qdisc", "del", "dev", &self.device, "root"])]),
            _ => Err(format!(
                "the qdisc of {} was configured by somebody ({}): change it where that is done",
                self.device,
                to.line()
            )),
        }
    }

    fn lasting(&self, to: &Content) -> Lasting {
        Lasting::by_device(&self.device, self.steps(to))
    }

    fn holds(&self, now: &Content, wanted: &Content) -> bool {
        match (now, wanted) {
            (Content::Text(now), Content::Text(wanted)) if !wanted.starts_with("qdisc ") => {
                Qdisc::root(now).is_some_and(|(kind, _)| kind == wanted)
            }
            (now, wanted) => now.means(wanted),
        }
    }

    fn gone(&self, host: &Host) -> Option<String> {
        device_gone(host, &self.device)
    }
}
