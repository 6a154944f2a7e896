//! Qdiscs of a device, with their options as the kernel reports them.

use rustix::io::Errno;

use super::{
    ACK, Attributes, CREATE, DUMP, Fault, Message, Protocol, REPLACE, REQUEST, Request, attributes, cut,
    find, number, text,
};
use crate::host::Host;

/// A qdisc of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KernelQdisc {
    pub(crate) kind: String,
    pub(crate) handle: u32,
    pub(crate) parent: u32,
    pub(crate) options: Option<Vec<u8>>,
    /// Whether it has a size table, and so counts other packet lengths.
    pub(crate) has_size_table: bool,
}

/// The parent of a root qdisc.
pub(crate) const ROOT: u32 = u32::MAX;

/// Parents of ingress qdiscs, which are separate from the root and stay when it changes.
const INGRESS_MIN: u32 = 0xffff_0000;

const NEW_LINK: u16 = 16;
const GET_LINK: u16 = 18;
const NEW: u16 = 36;
const DELETE: u16 = 37;
const GET: u16 = 38;
const NEW_FILTER: u16 = 44;
const GET_FILTER: u16 = 46;

/// A family, three zero bytes, and four numbers: index, handle, parent, information.
const TC_HEAD_BYTES: usize = 20;
/// A family, a type, the index, flags and a mask of changed flags.
const LINK_HEAD_BYTES: usize = 16;
const INDEX: std::ops::Range<usize> = 4..8;

const LINK_NAME: u16 = 3;
const LINK_EXTENDED: u16 = 29;
const LINK_SKIP_STATISTICS: u32 = 8;

const TC_KIND: u16 = 1;
const TC_OPTIONS: u16 = 2;
const TC_SIZE_TABLE: u16 = 8;

/// The qdiscs below a device's root; empty if there is no such device.
pub(crate) fn list(host: &Host, device: &str) -> Result<Vec<KernelQdisc>, Fault> {
    let index = index(host, device)?;
    let messages = ask(host, GET, DUMP, tc_head(index, 0, 0), &Attributes::new())?;
    let mut found = Vec::new();
    for message in messages.iter().filter(|message| message.kind == NEW) {
        let (head, attributes) = message.split(TC_HEAD_BYTES)?;
        let word = |at: usize| head.get(at..at + 4).and_then(number).ok_or_else(cut);
        let (of, handle, parent) = (word(4)?, word(8)? as u32, word(12)? as u32);
        if of != u64::from(index) || (INGRESS_MIN..ROOT).contains(&parent) {
            continue;
        }
        found.push(KernelQdisc {
            kind: find(&attributes, TC_KIND).map(text).ok_or_else(cut)?,
            handle,
            parent,
            options: find(&attributes, TC_OPTIONS).map(<[u8]>::to_vec),
            has_size_table: find(&attributes, TC_SIZE_TABLE).is_some(),
        });
    }
    Ok(found)
}

/// The number of filters of a qdisc.
pub(crate) fn filters_count(host: &Host, device: &str, handle: u32) -> Result<usize, Fault> {
    let head = tc_head(index(host, device)?, 0, handle);
    let messages = ask(host, GET_FILTER, DUMP, head, &Attributes::new())?;
    Ok(messages.iter().filter(|message| message.kind == NEW_FILTER).count())
}

/// Replaces a device's root qdisc, with options as the kernel reported them. Handle 0 lets the kernel choose one.
pub(crate) fn set_root(
    host: &Host,
    device: &str,
    kind: &str,
    handle: u32,
    options: Option<&[u8]>,
) -> Result<(), Fault> {
    let named = Attributes::new().with_text(TC_KIND, kind);
    let attributes = match options {
        Some(options) => named.with(TC_OPTIONS, &returned(kind, options)?),
        None => named,
    };
    let head = tc_head(index(host, device)?, handle, ROOT);
    ask(host, NEW, ACK | CREATE | REPLACE, head, &attributes).map(drop)
}

/// Removes a device's root qdisc; the kernel attaches one of its own.
pub(crate) fn remove_root(host: &Host, device: &str) -> Result<(), Fault> {
    ask(host, DELETE, ACK, tc_head(index(host, device)?, 0, ROOT), &Attributes::new()).map(drop)
}

/// A device's number in our network namespace, whatever sysfs shows.
pub(super) fn index(host: &Host, device: &str) -> Result<u32, Fault> {
    let attributes =
        Attributes::new().with_text(LINK_NAME, device).with_number(LINK_EXTENDED, LINK_SKIP_STATISTICS);
    let head = [0; LINK_HEAD_BYTES];
    let messages = host.ask(Protocol::Route, &Request::new(GET_LINK, REQUEST, &head, &attributes))?;
    let link =
        messages.iter().find(|message| message.kind == NEW_LINK).ok_or(Fault::Refused(Errno::NODEV))?;
    let index = link.body.get(INDEX).and_then(number).ok_or_else(cut)?;
    Ok(index as u32)
}

/// The options to set so that the kernel reports these. It stores codel's times in units of 1024 ns, rounded down
/// from microseconds, and rounded down again when it reports them: one more gives the original value. Some qdiscs
/// make 1 of any batch size (`min(1U, …)`), so that the default can only be restored by leaving it out.
fn returned(kind: &str, options: &[u8]) -> Result<Vec<u8>, Fault> {
    const BATCH_SIZE: u16 = 8;
    const BATCH_SIZE_DEFAULT: u64 = 64;
    let (times, is_fair) = match kind {
        "codel" => ([1, 3, 5], false),
        "fq_codel" => ([1, 3, 7], true),
        _ => return Ok(options.to_vec()),
    };
    let mut returned = Attributes::new();
    for (kind, value) in attributes(options)? {
        returned = match (kind, number(value)) {
            (BATCH_SIZE, Some(BATCH_SIZE_DEFAULT)) if is_fair => returned,
            (kind, Some(time)) if times.contains(&kind) => {
                returned.with_number(kind, (time as u32).saturating_add(1))
            }
            (kind, _) => returned.with(kind, value),
        };
    }
    Ok(returned.into_bytes())
}

fn tc_head(index: u32, handle: u32, parent: u32) -> [u8; TC_HEAD_BYTES] {
    let mut head = [0; TC_HEAD_BYTES];
    for (at, word) in [(4, index), (8, handle), (12, parent)] {
        head[at..at + 4].copy_from_slice(&word.to_ne_bytes());
    }
    head
}

fn ask(
    host: &Host,
    kind: u16,
    flags: u16,
    head: [u8; TC_HEAD_BYTES],
    attributes: &Attributes,
) -> Result<Vec<Message>, Fault> {
    host.ask(Protocol::Route, &Request::new(kind, REQUEST | flags, &head, attributes))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As the kernel's `codel_change` and `codel_time_to_us` compute.
    #[test]
    fn times_of_codel_come_back_as_they_were() {
        let set = |us: u64| (us * 1000) >> 10;
        let told = |kept: u64| (kept << 10) / 1000;
        for asked in (0..20_000).chain([4_000_000, 4_294_966]) {
            let now = told(set(asked)) as u32;
            for (kind, time) in [("fq_codel", 7), ("codel", 5)] {
                let options = Attributes::new().with_number(time, now).with_number(2, 10);
                let returned = returned(kind, &options.into_bytes()).unwrap();
                let returned = attributes(&returned).unwrap();
                let again = find(&returned, time).and_then(number).unwrap();
                assert_eq!((told(set(again)) as u32, set(again)), (now, set(asked)), "{asked}");
                assert_eq!(find(&returned, 2).and_then(number), Some(10));
            }
        }
    }

    #[test]
    fn exact_values_are_returned_unchanged() {
        assert_eq!(returned("pfifo", &[77, 0, 0, 0]), Ok(vec![77, 0, 0, 0]));
        assert!(returned("fq_codel", &[77, 0, 0, 0]).is_err());
        let options = Attributes::new().with_number(8, 64).with_number(9, 64).into_bytes();
        let kept = Attributes::new().with_number(9, 64).into_bytes();
        assert_eq!(returned("fq_codel", &options), Ok(kept));
    }
}
