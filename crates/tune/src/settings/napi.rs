//! For how long the NAPI instances of a device suspend interrupts while a server polls.

use serde::{Deserialize, Serialize};

use super::{Kind, Lasting, Step, device_gone};
use crate::change::Content;
use crate::error::Unknown;
use crate::host::Host;
use crate::netlink::napi::{self, Napi};

/// The instances of a device; it holds a line for each, such as `napi 8193 irq-suspend-timeout 0`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NapiSuspension {
    /// The device.
    pub device: String,
}

impl NapiSuspension {
    /// The device's instances; never none.
    pub(crate) fn now(&self, host: &Host) -> Result<Vec<Napi>, Unknown> {
        let device = &self.device;
        let listed = napi::list(host, device);
        let listed = listed
            .map_err(|fault| Unknown(fault.told(&format!("listing the NAPI instances of {device}"))))?;
        match listed.is_empty() {
            true => Err(Unknown(format!("{device} has no NAPI instance that netlink names"))),
            false => Ok(listed),
        }
    }

    /// What it is to hold.
    pub(crate) fn content(napis: &[Napi]) -> Content {
        let line = |napi: &Napi| format!("{NAPI} {} {KEY} {}", napi.id, napi.suspend_ns);
        Content::Text(napis.iter().map(line).collect::<Vec<_>>().join("\n"))
    }

    fn parse(&self, content: &Content) -> Result<Vec<Napi>, String> {
        let Content::Text(text) = content else { return Err(format!("{} always has a value", self.name())) };
        let napi = |line: &str| {
            let (id, suspend_ns) = line.strip_prefix(NAPI)?.split_once(KEY)?;
            Some(Napi { id: id.trim().parse().ok()?, suspend_ns: suspend_ns.trim().parse().ok()? })
        };
        let parsed: Option<Vec<Napi>> = text.lines().map(napi).collect();
        parsed.ok_or_else(|| format!("`{}` names no NAPI instances", content.line()))
    }
}

const NAPI: &str = "napi";
const KEY: &str = "irq-suspend-timeout";

impl Kind for NapiSuspension {
    fn name(&self) -> String {
        format!("{} {KEY}", self.device)
    }

    fn is_namespaced(&self) -> bool {
        true
    }

    fn read(&self, host: &Host) -> Result<Content, Unknown> {
        Ok(NapiSuspension::content(&self.now(host)?))
    }

    fn write(&self, host: &Host, to: &Content) -> Result<(), String> {
        let set = |wanted: Napi| napi::set(host, wanted).map_err(|fault| fault.told(&self.name()));
        self.parse(to)?.into_iter().try_for_each(set)
    }

    fn steps(&self, to: &Content) -> Result<Vec<Step>, String> {
        let step = |napi: &Napi| {
            let wanted = format!("{{\"id\": {}, \"{KEY}\": {}}}", napi.id, napi.suspend_ns);
            Step::command("ynl", &["--family", "netdev", "--do", "napi-set", "--json", &wanted])
        };
        Ok(self.parse(to)?.iter().map(step).collect())
    }

    fn lasting(&self, _: &Content) -> Lasting {
        Lasting::Not("the numbers of NAPI instances change from boot to boot")
    }

    fn gone(&self, host: &Host) -> Option<String> {
        device_gone(host, &self.device)
    }
}
