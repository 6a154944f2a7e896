//! The chains and rules of nftables, parsed as far as needed to know what packets pass through.

use rustix::io::Errno;

use super::{
    Attributes, DUMP, Fault, Message, Protocol, REQUEST, Request, attributes, cut, find, network_number, text,
};
use crate::host::Host;

/// A chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NftChain {
    pub(crate) family: u8,
    pub(crate) table: String,
    pub(crate) name: String,
    /// The hook of a base chain; `None` for a chain that is only jumped to.
    pub(crate) base: Option<Base>,
}

/// The hook of a base chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Base {
    pub(crate) kind: String,
    pub(crate) hook: u32,
    pub(crate) priority: i32,
    /// Whether its policy is to drop.
    pub(crate) drops: bool,
}

/// A rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Rule {
    pub(crate) family: u8,
    pub(crate) table: String,
    pub(crate) chain: String,
    /// Whether it uses connection tracking.
    pub(crate) asks_state: bool,
}

pub(crate) const FAMILY_INET: u8 = 1;
pub(crate) const FAMILY_IP: u8 = 2;
pub(crate) const FAMILY_IP6: u8 = 10;

const SUBSYSTEM: u16 = 10 << 8;
const NEW_CHAIN: u16 = SUBSYSTEM | 3;
const GET_CHAIN: u16 = SUBSYSTEM | 4;
const NEW_RULE: u16 = SUBSYSTEM | 6;
const GET_RULE: u16 = SUBSYSTEM | 7;

/// A family, a version, and a number that lists do not use.
const HEAD_BYTES: usize = 4;

const CHAIN_TABLE: u16 = 1;
const CHAIN_NAME: u16 = 3;
const CHAIN_HOOK: u16 = 4;
const CHAIN_POLICY: u16 = 5;
const CHAIN_KIND: u16 = 7;
const HOOK_NUMBER: u16 = 1;
const HOOK_PRIORITY: u16 = 2;
const POLICY_DROP: u32 = 0;

const RULE_TABLE: u16 = 1;
const RULE_CHAIN: u16 = 2;
const RULE_EXPRESSIONS: u16 = 4;
const EXPRESSION_NAME: u16 = 1;
const EXPRESSION_DATA: u16 = 2;
const EXTENSION_NAME: u16 = 1;

/// Expressions that do not use connection tracking; every other may, such as one that adds to a set with a connection
/// limit in it.
const PLAIN: &[&str] = &[
    "bitwise",
    "byteorder",
    "cmp",
    "counter",
    "dup",
    "exthdr",
    "fib",
    "fwd",
    "hash",
    "immediate",
    "last",
    "limit",
    "log",
    "lookup",
    "meta",
    "notrack",
    "numgen",
    "osf",
    "payload",
    "quota",
    "range",
    "reject",
    "rt",
    "socket",
];

/// Extensions of xtables that do not use it; every other may.
const NOT_OF_CONNECTIONS: &[&str] = &[
    "tcp",
    "udp",
    "icmp",
    "icmp6",
    "comment",
    "multiport",
    "addrtype",
    "limit",
    "mark",
    "set",
    "LOG",
    "REJECT",
];

/// All chains of all families; empty on a kernel without nftables.
pub(crate) fn chains(host: &Host) -> Result<Vec<NftChain>, Fault> {
    let messages = dump(host, GET_CHAIN)?;
    messages.iter().filter(|message| message.kind == NEW_CHAIN).map(chain).collect()
}

/// All rules of all families; empty on a kernel without nftables.
pub(crate) fn rules(host: &Host) -> Result<Vec<Rule>, Fault> {
    let messages = dump(host, GET_RULE)?;
    messages.iter().filter(|message| message.kind == NEW_RULE).map(rule).collect()
}

fn dump(host: &Host, kind: u16) -> Result<Vec<Message>, Fault> {
    let request = Request::new(kind, REQUEST | DUMP, &[0; HEAD_BYTES], &Attributes::new());
    match host.ask(Protocol::Netfilter, &request) {
        // netfilter's reply if it lacks a subsystem.
        Err(Fault::Refused(Errno::INVAL)) => Ok(Vec::new()),
        Err(fault) if fault.is_absent() => Ok(Vec::new()),
        answer => answer,
    }
}

fn chain(message: &Message) -> Result<NftChain, Fault> {
    let (head, attributes) = message.split(HEAD_BYTES)?;
    let base = find(&attributes, CHAIN_HOOK).map(|hook| base(hook, &attributes)).transpose()?;
    Ok(NftChain {
        family: *head.first().ok_or_else(cut)?,
        table: find(&attributes, CHAIN_TABLE).map(text).ok_or_else(cut)?,
        name: find(&attributes, CHAIN_NAME).map(text).ok_or_else(cut)?,
        base,
    })
}

fn base(hook: &[u8], chain: &[(u16, &[u8])]) -> Result<Base, Fault> {
    let hook = attributes(hook)?;
    let number = |list: &[(u16, &[u8])], kind| find(list, kind).and_then(network_number);
    Ok(Base {
        kind: find(chain, CHAIN_KIND).map(text).ok_or_else(cut)?,
        hook: number(&hook, HOOK_NUMBER).ok_or_else(cut)?,
        priority: number(&hook, HOOK_PRIORITY).ok_or_else(cut)?.cast_signed(),
        drops: number(chain, CHAIN_POLICY) == Some(POLICY_DROP),
    })
}

fn rule(message: &Message) -> Result<Rule, Fault> {
    let (head, found) = message.split(HEAD_BYTES)?;
    let mut asks_state = false;
    for (_, expression) in attributes(find(&found, RULE_EXPRESSIONS).unwrap_or_default())? {
        asks_state |= is_of_connections(&attributes(expression)?)?;
    }
    Ok(Rule {
        family: *head.first().ok_or_else(cut)?,
        table: find(&found, RULE_TABLE).map(text).ok_or_else(cut)?,
        chain: find(&found, RULE_CHAIN).map(text).ok_or_else(cut)?,
        asks_state,
    })
}

fn is_of_connections(expression: &[(u16, &[u8])]) -> Result<bool, Fault> {
    let name = find(expression, EXPRESSION_NAME).map(text).ok_or_else(cut)?;
    Ok(match name.as_str() {
        "match" | "target" => {
            let data = attributes(find(expression, EXPRESSION_DATA).unwrap_or_default())?;
            let extension = find(&data, EXTENSION_NAME).map(text).unwrap_or_default();
            !NOT_OF_CONNECTIONS.contains(&extension.as_str())
        }
        name => !PLAIN.contains(&name),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A connection limit may be inside an expression that adds to a set.
    #[test]
    fn unknown_expressions_may_need_connection_tracking() {
        let asks = |name: &[u8]| is_of_connections(&[(EXPRESSION_NAME, name)]).unwrap();
        assert!(asks(b"dynset\0") && asks(b"ct\0") && asks(b"synproxy\0"));
        assert!(!asks(b"payload\0") && !asks(b"counter\0"));
    }
}
