//! The audit subsystem: whether it is on, and our one rule.

use super::{ACK, Attributes, Fault, Protocol, REQUEST, Request, cut, number};
use crate::host::Host;

const GET: u16 = 1000;
const ADD_RULE: u16 = 1011;
const DELETE_RULE: u16 = 1012;
const LIST_RULES: u16 = 1013;

/// Offset of `enabled` in the status: after a mask.
const STATUS_ENABLED: std::ops::Range<usize> = 4..8;

/// A rule starts with its list, its action and the number of its fields; then come masks and values of 64 fields.
const RULE_BYTES: usize = 4 * (3 + 64 + 3 * 64 + 1);
const LIST_TASK: u64 = 1;
const ACTION_NEVER: u64 = 0;

/// 0 off, 1 on, 2 on and locked until the next boot.
pub(crate) fn enabled(host: &Host) -> Result<u64, Fault> {
    let messages = ask(host, GET, REQUEST, &[])?;
    let status = messages.iter().find(|message| message.kind == GET).ok_or_else(cut)?;
    status.body.get(STATUS_ENABLED).and_then(number).ok_or_else(cut)
}

/// Whether the rule `never,task` exists.
pub(crate) fn has_never_task(host: &Host) -> Result<bool, Fault> {
    for message in ask(host, LIST_RULES, REQUEST, &[])? {
        let word = |at: usize| message.body.get(4 * at..4 * at + 4).and_then(number).ok_or_else(cut);
        if message.kind == LIST_RULES && (word(0)?, word(1)?, word(2)?) == (LIST_TASK, ACTION_NEVER, 0) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Adds or deletes the rule `never,task`.
pub(crate) fn set_never_task(host: &Host, is_there: bool) -> Result<(), Fault> {
    let kind = if is_there { ADD_RULE } else { DELETE_RULE };
    ask(host, kind, REQUEST | ACK, &never_task()).map(drop)
}

/// The rule that matches every new task, like `auditctl -a never,task`.
pub(crate) fn never_task() -> Vec<u8> {
    let mut rule = vec![0; RULE_BYTES];
    rule[..4].copy_from_slice(&(LIST_TASK as u32).to_ne_bytes());
    rule[4..8].copy_from_slice(&(ACTION_NEVER as u32).to_ne_bytes());
    rule
}

fn ask(host: &Host, kind: u16, flags: u16, body: &[u8]) -> Result<Vec<super::Message>, Fault> {
    host.ask(Protocol::Audit, &Request::new(kind, flags, body, &Attributes::new()))
}
