//! A kernel for tests. Its state is the table of its replies: a change modifies these, so that it can be read back
//! and compared byte for byte.

use std::collections::BTreeMap;

use rustix::io::Errno;

use super::ethtool::RSS_SET;
use super::{
    Attributes, DONE, DUMP, ERROR, KINDS_OF_OUR_OWN_MIN, List, MULTI, NESTED, Protocol, REQUEST, Request,
    aligned, attributes, find, number, text,
};

/// Replies to requests: the datagrams.
pub(crate) type Datagrams = BTreeMap<(Protocol, Vec<u8>), Vec<Vec<u8>>>;

/// Bytes before the attributes of a message: a header, and the head of a generic family or of a qdisc.
const GENERIC_BYTES: usize = 20;
const QDISC_BYTES: usize = 36;

const NEW_LINK: u16 = 16;
const NEW_QDISC: u16 = 36;
const DELETE_QDISC: u16 = 37;
const GET_QDISC: u16 = 38;
const NEW_FILTER: u16 = 44;
const GET_FILTER: u16 = 46;
const ADD_RULE: u16 = 1011;
const DELETE_RULE: u16 = 1012;
const LIST_RULES: u16 = 1013;
/// In `ethtool`, each SET command but one follows its GET command; `netdev` has no such rule.
const GET_FEATURES: u8 = 11;
const RSS_GET: u8 = 38;
const SET_NAPI: u8 = 14;
const LIST_NAPI: u8 = 11;

/// The reply to a request that is not in the table, and its effect; `None` if there is no such family.
pub(crate) fn answer(told: &mut Datagrams, protocol: Protocol, request: &[u8]) -> Option<Vec<u8>> {
    let kind = u16::from_ne_bytes([request[4], request[5]]);
    let done = match (protocol, kind) {
        (Protocol::Route, GET_FILTER) => return Some(list_end()),
        (Protocol::Route, NEW_QDISC) => set_qdisc(told, request),
        (Protocol::Route, DELETE_QDISC) => delete_qdisc(told, request),
        (Protocol::Audit, ADD_RULE | DELETE_RULE) => change_rules(told, kind, request),
        (Protocol::Generic, KINDS_OF_OUR_OWN_MIN..) => change_generic(told, kind, request),
        _ => None,
    }?;
    let code = done.map_or_else(|errno| -errno.raw_os_error(), |()| 0);
    Some(message(ERROR, 0, &code.to_ne_bytes(), &Attributes::new()))
}

/// A card: 3 microseconds between its interrupts, 256 of 4096 descriptors, a table of 8 entries that all name its
/// first queue, and segmentation that is requested but off, because checksums are off. The numbers are attribute
/// numbers.
pub(crate) fn card() -> Datagrams {
    const ETHTOOL: u16 = 20;
    const COALESCE: u8 = 19;
    const RINGS: u8 = 15;
    let none = Attributes::new();
    let mut told = Datagrams::new();
    let link = Attributes::new().with_text(3, "eth0").with_number(29, 8);
    let mut tell = |protocol, request: Request, answer: Vec<u8>| {
        told.insert((protocol, request.bytes().to_vec()), vec![answer]);
    };
    tell(
        Protocol::Route,
        Request::new(18, REQUEST, &[0; 16], &link),
        message(NEW_LINK, 0, &[[0; 4], INDEX.to_ne_bytes(), [0; 4], [0; 4]].concat(), &none),
    );
    tell(
        Protocol::Generic,
        Request::new(16, REQUEST, &[3, 2, 0, 0], &Attributes::new().with_text(2, "ethtool")),
        message(16, 0, &[1, 2, 0, 0], &Attributes::new().with(1, &ETHTOOL.to_ne_bytes())),
    );
    let device = Attributes::new().with_nested(1, &Attributes::new().with_text(2, "eth0"));
    let get = |command: u8| Request::new(ETHTOOL, REQUEST, &[command, 1, 0, 0], &device);
    let coalesce = Attributes::new().with_number(2, 3).with(11, &[0]);
    tell(Protocol::Generic, get(COALESCE), message(ETHTOOL, 0, &[COALESCE, 1, 0, 0], &coalesce));
    let rings = Attributes::new().with_number(2, 4096).with_number(6, 256);
    tell(Protocol::Generic, get(RINGS), message(ETHTOOL, 0, &[RINGS, 1, 0, 0], &rings));
    let table = Attributes::new().with(4, &[0; 32]);
    tell(Protocol::Generic, get(RSS_GET), message(ETHTOOL, 0, &[RSS_GET, 1, 0, 0], &table));
    let names = ["tx-checksum-ipv4", "tx-tcp-segmentation", "tx-tcp6-segmentation"];
    let all: Vec<Bit> =
        names.iter().enumerate().map(|(at, name)| (at as u32, (*name).to_owned(), true)).collect();
    let asked: Vec<Bit> = vec![all[1].clone()];
    let features = Attributes::new()
        .with_nested(2, &bitset(&all, true))
        .with_nested(3, &bitset(&asked, false))
        .with_nested(4, &bitset(&[], false));
    tell(Protocol::Generic, get(GET_FEATURES), message(ETHTOOL, 0, &[GET_FEATURES, 1, 0, 0], &features));
    told
}

/// Whether a request sets rings.
pub(crate) fn sets_rings(request: &[u8]) -> bool {
    const SET_RINGS: u8 = 16;
    request[16] == SET_RINGS && request[GENERIC_BYTES..].len() > aligned(header_bytes(request))
}

/// A driver that makes its queues anew names the second one in each entry of its receive table.
pub(crate) fn reset_table(told: &mut Datagrams) {
    const ENTRIES_BYTES: usize = 32;
    let replies = told.values_mut().flatten().filter(|reply| reply.get(16) == Some(&RSS_GET));
    for reply in replies {
        let begin = reply.len() - ENTRIES_BYTES;
        reply[begin..].chunks_exact_mut(4).for_each(|entry| entry.copy_from_slice(&1_u32.to_ne_bytes()));
    }
}

/// The card's root qdisc, and its number of filters.
pub(crate) fn qdisc(kind: &str, handle: u32, options: &[u8], filters_count: usize) -> Datagrams {
    let named = Attributes::new().with_text(1, kind).with(2, options);
    let request = Request::new(GET_FILTER, REQUEST | DUMP, &tc_head(INDEX, 0, handle), &Attributes::new());
    let filter = message(NEW_FILTER, MULTI, &tc_head(INDEX, 0, 0), &Attributes::new());
    let filters = [filter.repeat(filters_count), list_end()].concat();
    Datagrams::from([
        (qdiscs_key(INDEX), vec![qdisc_list(INDEX, handle, &named)]),
        ((Protocol::Route, request.bytes().to_vec()), vec![filters]),
    ])
}

/// What the kernel attaches to that card when its root qdisc is removed.
pub(crate) fn qdisc_to_attach(kind: &str, options: &[u8]) -> Datagrams {
    let named = Attributes::new().with_text(1, kind).with(2, options);
    Datagrams::from([(own_key(INDEX), vec![qdisc_list(INDEX, 0, &named)])])
}

/// That card's number.
const INDEX: u32 = 2;

/// A change, done or refused; `None` if nothing like it exists.
type Done = Option<Result<(), Errno>>;

/// The kernel's own qdisc comes back when another is removed.
fn set_qdisc(told: &mut Datagrams, request: &[u8]) -> Done {
    const HANDLE_CHOSEN: u32 = 0x8001_0000;
    let word = |at: usize| u32::from_ne_bytes(request[at..at + 4].try_into().unwrap());
    let (index, handle) = (word(20), word(24));
    let named = Attributes(request[QDISC_BYTES..].to_vec());
    let list = qdisc_list(index, if handle == 0 { HANDLE_CHOSEN } else { handle }, &named);
    let before = told.insert(qdiscs_key(index), vec![list])?;
    if root_handle(&before.concat(), index) == Some(0) {
        told.insert(own_key(index), before);
    }
    Some(Ok(()))
}

fn delete_qdisc(told: &mut Datagrams, request: &[u8]) -> Done {
    let index = u32::from_ne_bytes(request[20..24].try_into().unwrap());
    let Some(own) = told.remove(&own_key(index)) else { return Some(Err(Errno::NOENT)) };
    told.insert(qdiscs_key(index), own);
    Some(Ok(()))
}

fn change_rules(told: &mut Datagrams, kind: u16, request: &[u8]) -> Done {
    let list = Request::new(LIST_RULES, REQUEST, &[], &Attributes::new());
    let rules = told.get_mut(&(Protocol::Audit, list.bytes().to_vec()))?;
    let rule = message(LIST_RULES, MULTI, &request[16..], &Attributes::new());
    let at = rules.iter().position(|known| *known == rule);
    match (kind, at) {
        (ADD_RULE, None) => rules.insert(0, rule),
        (DELETE_RULE, Some(at)) => drop(rules.remove(at)),
        (ADD_RULE, Some(_)) => return Some(Err(Errno::EXIST)),
        _ => return Some(Err(Errno::NOENT)),
    }
    Some(Ok(()))
}

fn change_generic(told: &mut Datagrams, kind: u16, request: &[u8]) -> Done {
    let command = request[16];
    let wanted = attributes(&request[GENERIC_BYTES..]).unwrap();
    // Every change of ethtool starts with the device, like the query.
    let header = Attributes(request[GENERIC_BYTES..][..aligned(header_bytes(request))].to_vec());
    let get = if command == RSS_SET { RSS_GET } else { command - 1 };
    let question = Request::new(kind, REQUEST, &[get, request[17], 0, 0], &header);
    if let Some(known) = told.get_mut(&(Protocol::Generic, question.bytes().to_vec())) {
        return Some(match get {
            GET_FEATURES => set_features(&mut known[0], &wanted),
            _ => set_value(&mut known[0], &wanted),
        });
    }
    (command == SET_NAPI).then(|| set_napi(told, kind, &wanted))
}

fn header_bytes(request: &[u8]) -> usize {
    usize::from(u16::from_ne_bytes([request[GENERIC_BYTES], request[GENERIC_BYTES + 1]]))
}

/// A number: one must already exist, and the new one must not exceed the card's maximum.
fn set_value(known: &mut [u8], wanted: &List) -> Result<(), Errno> {
    const COALESCE: u8 = 19;
    const ADAPTIVE_RX: u16 = 11;
    const ADAPTIVE_TX: u16 = 12;
    const MOST: &[(u16, u16)] = &[(6, 2), (9, 5)];
    let (kind, value) = wanted[1];
    let has = attributes(&known[GENERIC_BYTES..]).unwrap();
    let now = find(&has, kind).filter(|now| now.len() == value.len()).ok_or(Errno::OPNOTSUPP)?;
    // The reply to a query for moderation may carry the number of the query.
    let is_moderation = known[16] == COALESCE || known[16] == COALESCE + 1;
    if is_moderation && kind == ADAPTIVE_RX && find(&has, ADAPTIVE_TX).is_none() {
        // A driver that accepts it and ignores it.
        return Ok(());
    }
    let most = MOST.iter().find(|(of, _)| !is_moderation && *of == kind);
    let most = most.and_then(|(_, most)| find(&has, *most)).and_then(number);
    if most.is_some_and(|most| number(value) > Some(most)) {
        return Err(Errno::INVAL);
    }
    let at = now.as_ptr().addr() - known.as_ptr().addr();
    known[at..at + value.len()].copy_from_slice(value);
    Ok(())
}

fn set_napi(told: &mut Datagrams, kind: u16, wanted: &List) -> Result<(), Errno> {
    const ID: u16 = 2;
    const SUSPEND_NS: u16 = 7;
    let is_list = |request: &[u8]| {
        let flags = u16::from_ne_bytes([request[6], request[7]]);
        request[4..6] == kind.to_ne_bytes() && flags & DUMP == DUMP && request[16] == LIST_NAPI
    };
    let lists =
        told.iter_mut().filter(|((protocol, request), _)| *protocol == Protocol::Generic && is_list(request));
    for datagram in lists.flat_map(|(_, datagrams)| datagrams) {
        let mut begin = 0;
        while begin < datagram.len() {
            let length = number(&datagram[begin..begin + 4]).unwrap() as usize;
            let has = attributes(&datagram[begin..begin + length][GENERIC_BYTES..]).unwrap_or_default();
            if find(&has, ID).is_some() && find(&has, ID) == find(wanted, ID) {
                let now = find(&has, SUSPEND_NS).ok_or(Errno::OPNOTSUPP)?;
                let (at, bytes) = (now.as_ptr().addr() - datagram.as_ptr().addr(), now.len());
                let value = &find(wanted, SUSPEND_NS).ok_or(Errno::INVAL)?[..bytes];
                datagram[at..at + bytes].copy_from_slice(value);
                return Ok(());
            }
            begin += aligned(length);
        }
    }
    Err(Errno::NOENT)
}

/// A bit of a set: its number, its name, and whether it is set.
type Bit = (u32, String, bool);

/// Requests are stored; whether a feature is on depends on the features it needs, as in `netdev_fix_features`.
fn set_features(known: &mut Vec<u8>, wanted: &List) -> Result<(), Errno> {
    const CHANGEABLE: u16 = 2;
    const WANTED: u16 = 3;
    const ACTIVE: u16 = 4;
    let has = attributes(&known[GENERIC_BYTES..]).unwrap();
    let set = |kind: u16| bits(find(&has, kind).unwrap_or_default());
    let all = set(CHANGEABLE);
    let is_in = |bits: &[Bit], name: &str| bits.iter().any(|(_, found, is_set)| *is_set && found == name);
    let wishes = bits(find(wanted, WANTED).ok_or(Errno::INVAL)?);
    if wishes.iter().any(|(_, name, _)| !all.iter().any(|(_, known, _)| known == name)) {
        return Err(Errno::INVAL);
    }
    let (before, active) = (set(WANTED), set(ACTIVE));
    let mut asked: Vec<Bit> = all.clone();
    for (_, name, is_set) in &mut asked {
        let wish = wishes.iter().find(|(_, wished, _)| wished == name).map(|(.., is_on)| *is_on);
        *is_set = match wish {
            Some(is_on) if is_in(&all, name) => is_on,
            _ => is_in(&before, name),
        };
    }
    let mut so: Vec<Bit> = all.clone();
    for (_, name, is_set) in &mut so {
        *is_set = if is_in(&all, name) { is_in(&asked, name) } else { is_in(&active, name) };
    }
    let sums = so.iter().any(|(_, name, is_set)| *is_set && name.starts_with("tx-checksum-ip"));
    for (_, name, is_set) in &mut so {
        *is_set &= sums || !name.starts_with("tx-tcp");
    }
    let mut rest = Attributes::new();
    for (kind, value) in has {
        rest = match kind {
            WANTED => rest.with_nested(kind, &bitset(&asked, false)),
            ACTIVE => rest.with_nested(kind, &bitset(&so, false)),
            // In a reply with features, each attribute is a list.
            kind => rest.with(kind | NESTED, value),
        };
    }
    let mut changed = message(0, 0, &known[16..GENERIC_BYTES], &rest);
    changed[4..16].copy_from_slice(&known[4..16]);
    *known = changed;
    Ok(())
}

fn bits(set: &[u8]) -> Vec<Bit> {
    let set = attributes(set).unwrap();
    let is_list = find(&set, 1).is_some();
    let listed = attributes(find(&set, 3).unwrap_or_default()).unwrap();
    let bit = |bit: &[u8]| {
        let bit = attributes(bit).unwrap();
        let index = find(&bit, 1).and_then(number).unwrap_or_default();
        (index as u32, find(&bit, 2).map(text).unwrap(), is_list || find(&bit, 3).is_some())
    };
    listed.iter().map(|(_, value)| bit(value)).collect()
}

/// A bit set as the kernel reports it: with a mask all bits and which are set, without one only those that are.
fn bitset(bits: &[Bit], has_mask: bool) -> Attributes {
    const BITS_COUNT: u32 = 64;
    let mut listed = Attributes::new();
    for (index, name, is_set) in bits.iter().filter(|(.., is_set)| has_mask || *is_set) {
        let bit = Attributes::new().with_number(1, *index).with_text(2, name);
        let bit = if has_mask && *is_set { bit.with(3, &[]) } else { bit };
        listed = listed.with_nested(1, &bit);
    }
    let set = if has_mask { Attributes::new() } else { Attributes::new().with(1, &[]) };
    set.with_number(2, BITS_COUNT).with_nested(3, &listed)
}

fn message(kind: u16, flags: u16, head: &[u8], attributes: &Attributes) -> Vec<u8> {
    Request::new(kind, flags, head, attributes).bytes().to_vec()
}

fn list_end() -> Vec<u8> {
    message(DONE, MULTI, &[0; 4], &Attributes::new())
}

fn qdisc_list(index: u32, handle: u32, named: &Attributes) -> Vec<u8> {
    [message(NEW_QDISC, MULTI, &tc_head(index, handle, u32::MAX), named), list_end()].concat()
}

fn qdiscs_key(index: u32) -> (Protocol, Vec<u8>) {
    let request = Request::new(GET_QDISC, REQUEST | DUMP, &tc_head(index, 0, 0), &Attributes::new());
    (Protocol::Route, request.bytes().to_vec())
}

/// Where a device's own qdiscs are kept while another replaces them; no request has this key.
fn own_key(index: u32) -> (Protocol, Vec<u8>) {
    (Protocol::Route, index.to_ne_bytes().to_vec())
}

/// The handle of a device's root qdisc.
fn root_handle(mut list: &[u8], index: u32) -> Option<u32> {
    while list.len() >= QDISC_BYTES {
        let word = |at: usize| u32::from_ne_bytes(list[at..at + 4].try_into().unwrap());
        if (word(20), word(28)) == (index, u32::MAX) {
            return Some(word(24));
        }
        list = &list[aligned(word(0) as usize)..];
    }
    None
}

fn tc_head(index: u32, handle: u32, parent: u32) -> Vec<u8> {
    [0, index, handle, parent, 0].map(u32::to_ne_bytes).concat()
}
