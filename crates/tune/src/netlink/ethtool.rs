//! The family `ethtool`, Linux 5.6 and newer: the parameters of the program with that name.

use std::collections::BTreeSet;

use super::generic::{Family, replied};
use super::{ACK, Attributes, Fault, REQUEST, attributes, cut, find, number, text};
use crate::host::Host;

/// A group of parameters, by the commands that get and set it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CommandPair {
    get: u8,
    set: u8,
}

pub(crate) const FEATURES: CommandPair = CommandPair { get: 11, set: 12 };
pub(crate) const RINGS: CommandPair = CommandPair { get: 15, set: 16 };
pub(crate) const CHANNELS: CommandPair = CommandPair { get: 17, set: 18 };
pub(crate) const COALESCE: CommandPair = CommandPair { get: 19, set: 20 };

/// Attributes of all groups except features, by their names in the program: the value, and its maximum.
pub(crate) const CHANNELS_COMBINED: (u16, u16) = (9, 5);
pub(crate) const RINGS_RX: (u16, u16) = (6, 2);
pub(crate) const COALESCE_RX_USECS: u16 = 2;
pub(crate) const COALESCE_TX_USECS: u16 = 6;
pub(crate) const COALESCE_ADAPTIVE_RX: u16 = 11;

/// The value of a parameter as the kernel reports it.
pub(crate) type Values = Vec<(u16, u64)>;

/// A feature of a device, by the kernel's name of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Feature {
    pub(crate) name: String,
    pub(crate) is_active: bool,
    /// Whether it was requested; it stays off while a feature that it needs is off.
    pub(crate) is_wanted: bool,
    /// Whether the driver does not allow changes.
    pub(crate) is_fixed: bool,
}

/// The distribution of connections over queues; it can be set since 6.17.
const RSS_GET: u8 = 38;
pub(super) const RSS_SET: u8 = 48;
const RSS_TABLE: u16 = 4;

const HEADER: u16 = 1;
const HEADER_DEVICE: u16 = 2;

const FEATURES_CHANGEABLE: u16 = 2;
const FEATURES_WANTED: u16 = 3;
const FEATURES_ACTIVE: u16 = 4;
const FEATURES_FIXED: u16 = 5;

const BITSET_NO_MASK: u16 = 1;
const BITSET_BITS: u16 = 3;
const BITS_BIT: u16 = 1;
const BIT_NAME: u16 = 2;
const BIT_VALUE: u16 = 3;

/// The values of a device in a group; `None` on a kernel without the family.
pub(crate) fn values(host: &Host, device: &str, group: CommandPair) -> Result<Option<Values>, Fault> {
    let Some(family) = family(host)? else { return Ok(None) };
    let messages = family.ask(host, group.get, REQUEST, &header(device))?;
    let found = replied(messages.first().ok_or_else(cut)?)?;
    Ok(Some(found.iter().filter_map(|(kind, value)| Some((*kind, number(value)?))).collect()))
}

/// All features of a device; `None` on a kernel without the family.
pub(crate) fn features(host: &Host, device: &str) -> Result<Option<Vec<Feature>>, Fault> {
    let Some(family) = family(host)? else { return Ok(None) };
    let messages = family.ask(host, FEATURES.get, REQUEST, &header(device))?;
    let found = replied(messages.first().ok_or_else(cut)?)?;
    let set = |kind: u16| bits(find(&found, kind).unwrap_or_default());
    let listed = |kind: u16| -> Result<BTreeSet<String>, Fault> {
        Ok(set(kind)?.into_iter().filter_map(|(name, is_set)| is_set.then_some(name)).collect())
    };
    let (wanted, active, fixed) =
        (listed(FEATURES_WANTED)?, listed(FEATURES_ACTIVE)?, listed(FEATURES_FIXED)?);
    // The first set has all names.
    let features = set(FEATURES_CHANGEABLE)?.into_iter().map(|(name, is_changeable)| Feature {
        is_active: active.contains(&name),
        is_wanted: wanted.contains(&name),
        is_fixed: !is_changeable || fixed.contains(&name),
        name,
    });
    Ok(Some(features.collect()))
}

/// The queue of each hash of a connection; `None` on kernels before 6.3, and for cards without such a table.
pub(crate) fn indirection(host: &Host, device: &str) -> Result<Option<Vec<u32>>, Fault> {
    let Some(family) = family(host)? else { return Ok(None) };
    let messages = match family.ask(host, RSS_GET, REQUEST, &header(device)) {
        Err(fault) if fault.is_absent() => return Ok(None),
        messages => messages?,
    };
    let found = replied(messages.first().ok_or_else(cut)?)?;
    let table = find(&found, RSS_TABLE).unwrap_or_default();
    Ok(Some(table.chunks_exact(4).filter_map(|entry| Some(number(entry)? as u32)).collect()))
}

/// Sets the queue of each hash. Returns whether this kernel can do that.
pub(crate) fn set_indirection(host: &Host, device: &str, entries: &[u32]) -> Result<bool, Fault> {
    let Some(family) = family(host)? else { return Ok(false) };
    let table: Vec<u8> = entries.iter().flat_map(|queue| queue.to_ne_bytes()).collect();
    match family.ask(host, RSS_SET, ACK, &header(device).with(RSS_TABLE, &table)) {
        Err(fault) if fault.is_absent() => Ok(false),
        asked => asked.map(|_| true),
    }
}

/// Sets a value of a group. Returns whether this kernel has the family.
pub(crate) fn set_value(
    host: &Host,
    device: &str,
    group: CommandPair,
    kind: u16,
    value: &[u8],
) -> Result<bool, Fault> {
    set(host, group, &header(device).with(kind, value))
}

/// Requests features on or off, all at once. Returns whether this kernel has the family.
pub(crate) fn set_features(host: &Host, device: &str, wanted: &[(&str, bool)]) -> Result<bool, Fault> {
    let bits = wanted.iter().fold(Attributes::new(), |bits, (name, is_wanted)| {
        let bit = Attributes::new().with_text(BIT_NAME, name);
        let bit = if *is_wanted { bit.with(BIT_VALUE, &[]) } else { bit };
        bits.with_nested(BITS_BIT, &bit)
    });
    let wanted = Attributes::new().with_nested(BITSET_BITS, &bits);
    set(host, FEATURES, &header(device).with_nested(FEATURES_WANTED, &wanted))
}

fn set(host: &Host, group: CommandPair, attributes: &Attributes) -> Result<bool, Fault> {
    let Some(family) = family(host)? else { return Ok(false) };
    family.ask(host, group.set, ACK, attributes).map(|_| true)
}

fn family(host: &Host) -> Result<Option<Family>, Fault> {
    Family::find(host, "ethtool")
}

fn header(device: &str) -> Attributes {
    Attributes::new().with_nested(HEADER, &Attributes::new().with_text(HEADER_DEVICE, device))
}

/// The names in a bit set, and whether each is set. Without a mask the kernel lists only those that are.
fn bits(set: &[u8]) -> Result<Vec<(String, bool)>, Fault> {
    let set = attributes(set)?;
    let is_list = find(&set, BITSET_NO_MASK).is_some();
    let listed = attributes(find(&set, BITSET_BITS).unwrap_or_default())?;
    let mut bits = Vec::new();
    for (_, bit) in listed.iter().filter(|(kind, _)| *kind == BITS_BIT) {
        let bit = attributes(bit)?;
        let name = find(&bit, BIT_NAME).map(text).ok_or_else(cut)?;
        bits.push((name, is_list || find(&bit, BIT_VALUE).is_some()));
    }
    Ok(bits)
}
