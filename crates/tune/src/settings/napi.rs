//! How long a NAPI instance of a device suspends interrupts while a server polls. Each instance is a separate
//! setting: they come and go with the device's queues.

use serde::{Deserialize, Serialize};

use super::{Kind, Lasting, Step, device_gone};
use crate::change::Content;
use crate::error::Unknown;
use crate::host::Host;
use crate::netlink::napi::{self, Napi};

/// One instance of a device; its value is in nanoseconds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NapiSuspension {
    /// The device.
    pub device: String,
    /// The instance's number.
    pub id: u32,
}

impl NapiSuspension {
    /// The device's instances; never empty.
    pub(crate) fn all(host: &Host, device: &str) -> Result<Vec<Napi>, Unknown> {
        let listed = napi::list(host, device);
        let listed = listed
            .map_err(|fault| Unknown(fault.describe(&format!("listing the NAPI instances of {device}"))))?;
        match listed.is_empty() {
            true => Err(Unknown(format!("netlink lists no NAPI instance of {device}"))),
            false => Ok(listed),
        }
    }

    fn wanted(&self, to: &Content) -> Result<Napi, String> {
        let suspend_ns = match to {
            Content::Text(text) => text.trim().parse().ok(),
            _ => None,
        };
        let suspend_ns =
            suspend_ns.ok_or_else(|| format!("{} is not a number: `{}`", self.name(), to.line()))?;
        Ok(Napi { id: self.id, suspend_ns })
    }

    fn ended(&self) -> String {
        format!("{} no longer has the NAPI instance {}", self.device, self.id)
    }
}

const KEY: &str = "irq-suspend-timeout";

impl Kind for NapiSuspension {
    fn name(&self) -> String {
        format!("{} napi {} {KEY}", self.device, self.id)
    }

    fn is_namespaced(&self) -> bool {
        true
    }

    fn read(&self, host: &Host) -> Result<Content, Unknown> {
        let all = NapiSuspension::all(host, &self.device)?;
        let own = all.iter().find(|napi| napi.id == self.id).ok_or_else(|| Unknown(self.ended()))?;
        Ok(Content::Text(own.suspend_ns.to_string()))
    }

    fn write(&self, host: &Host, to: &Content) -> Result<(), String> {
        napi::set(host, self.wanted(to)?).map_err(|fault| fault.describe(&self.name()))
    }

    fn steps(&self, to: &Content) -> Result<Vec<Step>, String> {
        let Napi { id, suspend_ns } = self.wanted(to)?;
        let wanted = format!("{{\"id\": {id}, \"{KEY}\": {suspend_ns}}}");
        Ok(vec![Step::command("ynl", &["--family", "netdev", "--do", "napi-set", "--json", &wanted])])
    }

    fn lasting(&self, _: &Content) -> Lasting {
        Lasting::Not("the numbers of NAPI instances change from boot to boot")
    }

    /// A device that is down lists none; they come back with their values.
    fn gone(&self, host: &Host) -> Option<String> {
        let all = NapiSuspension::all(host, &self.device);
        let is_other = all.is_ok_and(|all| all.iter().all(|napi| napi.id != self.id));
        device_gone(host, &self.device).or_else(|| is_other.then(|| self.ended()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::change::Change;
    use crate::fake::{Fake, Folder};
    use crate::session::{Fate, Session};

    const VIRTIO: &str = include_str!("../../machines/linux-6.18-virtio.txt");
    const NAPIS: &str = "~ generic 1c0000001400010301000000000000000b0100000800010004000000";

    /// Gives the card of `VIRTIO` these instances.
    fn plant(fake: &Fake, ids: &[(&str, &str)]) {
        let (_, told) = VIRTIO.split_once(NAPIS).unwrap();
        let (one, end) = told.lines().nth(1).unwrap().split_at(0x44 * 2);
        let instance = |(id, suspend_ns): &(&str, &str)| {
            one.replace("0800020001010000", &format!("08000200{id}010000"))
                .replace("0800070000000000", &format!("08000700{suspend_ns}"))
        };
        fake.plant(NAPIS, &format!("{}{end}\n", ids.iter().map(instance).collect::<String>()));
    }

    /// With another number of queues instances disappear and new ones appear: what still exists is restored.
    #[test]
    fn instances_come_and_go() {
        const NONE: &str = "00000000";
        const OURS: &str = "002d3101";
        let (fake, state) = (Fake::recorded(VIRTIO), Folder::new());
        plant(&fake, &[("01", NONE), ("02", NONE)]);
        let (host, ids) = (fake.host(), [0x101, 0x102]);
        let setting = |id: u32| NapiSuspension { device: "eth0".to_owned(), id };
        let changes = ids.map(|id| Change::text(setting(id), 20_000_000));
        let session = Session::open(&host, &state.0).unwrap();
        session.apply("t", &changes).unwrap();
        plant(&fake, &[("01", OURS), ("03", OURS)]);
        let (undone, _) = session.undo(&[]).unwrap();
        assert!(
            matches!(&undone[0].fate, Fate::Gone(why) if why.contains("no longer has the NAPI instance 258")),
            "{undone:?}"
        );
        assert!(matches!(undone[1].fate, Fate::Restored(_)), "{undone:?}");
        let now: Vec<u64> =
            NapiSuspension::all(&host, "eth0").unwrap().iter().map(|napi| napi.suspend_ns).collect();
        assert_eq!(now, [0, 20_000_000]);
    }
}
