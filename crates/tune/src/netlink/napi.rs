//! NAPI instances of a device: the family `netdev`; Linux 6.13 and newer for the settings here.

use super::generic::{Family, replied};
use super::{ACK, Attributes, Fault, find, number, qdisc};
use crate::host::Host;

/// One instance, and how long interrupts stay suspended while its server polls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Napi {
    pub(crate) id: u32,
    pub(crate) suspend_ns: u64,
}

const GET: u8 = 11;
const SET: u8 = 14;

const INDEX: u16 = 1;
const ID: u16 = 2;
const SUSPEND_NS: u16 = 7;

/// The device's instances that report this time; empty if the kernel or the driver does not.
pub(crate) fn list(host: &Host, device: &str) -> Result<Vec<Napi>, Fault> {
    let Some(family) = Family::find(host, "netdev")? else { return Ok(Vec::new()) };
    let of_device = Attributes::new().with_number(INDEX, qdisc::index(host, device)?);
    let mut found = Vec::new();
    for message in family.list(host, GET, &of_device)? {
        let attributes = replied(&message)?;
        let value = |kind| find(&attributes, kind).and_then(number);
        if let (Some(id), Some(suspend_ns)) = (value(ID), value(SUSPEND_NS)) {
            found.push(Napi { id: id as u32, suspend_ns });
        }
    }
    found.sort_unstable_by_key(|napi| napi.id);
    Ok(found)
}

/// Sets this time.
pub(crate) fn set(host: &Host, napi: Napi) -> Result<(), Fault> {
    let Some(family) = Family::find(host, "netdev")? else {
        return Err(Fault::Refused(rustix::io::Errno::OPNOTSUPP));
    };
    let attributes =
        Attributes::new().with_number(ID, napi.id).with(SUSPEND_NS, &napi.suspend_ns.to_ne_bytes());
    family.ask(host, SET, ACK, &attributes).map(drop)
}
