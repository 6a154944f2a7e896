//! One worker's lines: what of the head they need is kept when a request begins; they are written when it has ended, and left
//! in the worker's buffers.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::sync::Arc;

use flatout_engine::{Begun, Ended, Outcome};

use super::escape::Escape;
use super::line::{Line, Text};
use super::template::{Format, Part};
use super::variable::{About, Early, Late, Variable};
use super::writer::{Buffer, Shared};
use super::{Log, Plan};
use crate::observed::Upstream;

/// Requests of one worker that are under way and of which something is kept; lines of those over it lack what their heads
/// said.
const OPEN_MAX: usize = 64 << 10;

/// Capacity of what is kept of a request that stays for the next.
const OPEN_BYTES_KEPT: usize = 4 << 10;

/// One worker's lines, of all logs.
pub(crate) struct Lines {
    logs: Vec<OneLog>,
    /// What is kept of a head, for all logs.
    wanted: Vec<Early>,
    state: RefCell<State>,
}

struct OneLog {
    shared: Arc<Shared>,
    buffer: Arc<Buffer>,
    parts: Vec<Step>,
    escape: Escape,
}

/// A part of a line: text, and what comes behind it.
struct Step {
    text: Text,
    value: Value,
}

/// What comes behind a text: of early values, where among those that are kept.
#[derive(Clone, Copy)]
enum Value {
    RemoteAddr,
    Kept(usize),
    Late(Late),
    Nothing,
}

struct State {
    open: Vec<Open>,
    free: Vec<u32>,
    /// What lines are made of whose requests nobody has seen begin.
    unseen: Open,
    line: Line,
    clock: Clock,
    /// Requests that were not logged since the last that was, for sampling, by log.
    skipped: Vec<u32>,
}

/// What is kept of a request that is under way.
#[derive(Default)]
struct Open {
    peer: Option<SocketAddr>,
    /// All that is kept of its head, one after another.
    bytes: Vec<u8>,
    /// Where each of them ends; one that is not there has [`ABSENT`] instead.
    ends: Vec<u32>,
    /// The mark of the service that is observed.
    inner: u64,
}

/// No value. A head is smaller by far.
const ABSENT: u32 = u32::MAX;

impl Lines {
    pub(crate) fn new(logs: &[Log]) -> Lines {
        let mut wanted = Vec::new();
        let one = |log: &Log| OneLog {
            shared: log.shared.clone(),
            buffer: log.shared.buffer(),
            parts: steps(&log.shared.plan.format, &mut wanted),
            escape: log.shared.plan.format.escape,
        };
        let logs: Vec<OneLog> = logs.iter().map(one).collect();
        let mut unseen = Open::default();
        unseen.keep(&Begun { head: None, refused: b"", peer: None }, &wanted);
        let state = State {
            open: Vec::new(),
            free: Vec::new(),
            unseen,
            line: Line::new(),
            clock: Clock::new(),
            skipped: vec![0; logs.len()],
        };
        Lines { logs, wanted, state: RefCell::new(state) }
    }

    /// Keeps what is wanted of a request. Returns the mark by which it is found when that has ended.
    #[inline]
    pub(crate) fn begun(&self, begun: &Begun<'_>, inner: u64) -> u64 {
        let state = &mut *self.state.borrow_mut();
        let slot = match state.free.pop() {
            Some(slot) => slot,
            None if state.open.len() >= OPEN_MAX => return 0,
            None => {
                state.open.push(Open::default());
                (state.open.len() - 1) as u32
            }
        };
        let Some(open) = state.open.get_mut(slot as usize) else { return 0 };
        open.inner = inner;
        open.keep(begun, &self.wanted);
        u64::from(slot) + 1
    }

    /// Writes the lines of a request into the buffers of those logs that want it. Returns the mark of the service that is
    /// observed.
    pub(crate) fn ended(&self, ended: &Ended, site: u16, upstream: Option<&Upstream>) -> u64 {
        let state = &mut *self.state.borrow_mut();
        let State { open, free, unseen, line, clock, skipped } = state;
        clock.follow(ended.unix_ns / 1_000_000_000);
        let slot = ended.mark.wrapping_sub(1) as usize;
        let open = match open.get_mut(slot) {
            Some(open) => {
                free.push(slot as u32);
                open
            }
            None => unseen,
        };
        let about = About { ended, upstream, clock };
        for (log, skipped) in self.logs.iter().zip(skipped) {
            if is_wanted(&log.shared.plan, ended, site, skipped) {
                log.write(open, &about, line);
                log.buffer.add(&log.shared, line.written());
            }
        }
        if open.bytes.capacity() > OPEN_BYTES_KEPT && ended.mark != 0 {
            *open = Open { inner: open.inner, ..Open::default() };
        }
        open.inner
    }
}

impl OneLog {
    #[inline]
    fn write(&self, open: &Open, about: &About<'_>, line: &mut Line) {
        line.clear();
        for part in &self.parts {
            line.text(&part.text);
            match part.value {
                Value::Kept(index) => match open.value(index) {
                    Some(value) => line.value(value, self.escape),
                    None => line.nothing(self.escape),
                },
                Value::Late(late) => late.write(about, self.escape, line),
                Value::RemoteAddr => line.address(open.peer),
                Value::Nothing => {}
            }
        }
    }
}

impl Open {
    #[inline]
    fn keep(&mut self, begun: &Begun<'_>, wanted: &[Early]) {
        self.peer = begun.peer;
        self.bytes.clear();
        self.ends.clear();
        for early in wanted {
            let is_there = early.keep(begun, &mut self.bytes);
            self.ends.push(if is_there { self.bytes.len() as u32 } else { ABSENT });
        }
    }

    /// One of what is kept, if it was there.
    #[inline]
    fn value(&self, index: usize) -> Option<&[u8]> {
        let end = self.ends.get(index).copied().filter(|end| *end != ABSENT)?;
        let before = self.ends.get(..index).unwrap_or_default();
        let start = before.iter().rev().find(|end| **end != ABSENT).copied().unwrap_or(0);
        self.bytes.get(start as usize..end as usize)
    }
}

/// What is written for each part of a format; what that needs of a head is added to `wanted`, once for all.
fn steps(format: &Format, wanted: &mut Vec<Early>) -> Vec<Step> {
    let step = |part: &Part| Step {
        text: part.text.clone(),
        value: match &part.value {
            None => Value::Nothing,
            Some(Variable::RemoteAddr) => Value::RemoteAddr,
            Some(Variable::Late(late)) => Value::Late(*late),
            Some(Variable::Early(early)) => Value::Kept(match wanted.iter().position(|one| one == early) {
                Some(index) => index,
                None => {
                    wanted.push(early.clone());
                    wanted.len() - 1
                }
            }),
        },
    };
    format.parts.iter().map(step).collect()
}

/// Whether a log wants this request. Of what is sampled, errors are logged always.
#[inline]
fn is_wanted(plan: &Plan, ended: &Ended, site: u16, skipped: &mut u32) -> bool {
    if plan.sample == 1 && plan.only.is_empty() && plan.site.is_none() {
        return true;
    }
    let status = ended.status.map_or(0, |status| status.code());
    let time_ns = ended.ended_ns.saturating_sub(ended.began_ns);
    if plan.site.is_some_and(|wanted| wanted != site)
        || !plan.only.iter().all(|condition| condition.holds(status, time_ns))
    {
        return false;
    }
    if !(100..400).contains(&status) || !matches!(ended.outcome, Outcome::Sent | Outcome::Taken) {
        return true;
    }
    *skipped += 1;
    if *skipped < plan.sample {
        return false;
    }
    *skipped = 0;
    true
}

/// The time as text, made anew once a second. UTC.
pub(super) struct Clock {
    unix_seconds: u64,
    /// `21/Nov/2026:17:34:07 +0000`
    pub(super) local: Text,
    /// `2026-11-21T17:34:07+00:00`
    pub(super) iso: Text,
}

impl Clock {
    fn new() -> Clock {
        let mut clock = Clock { unix_seconds: 0, local: Text::new(b""), iso: Text::new(b"") };
        clock.set(0);
        clock
    }

    #[inline]
    fn follow(&mut self, unix_seconds: u64) {
        if unix_seconds != self.unix_seconds {
            self.set(unix_seconds);
        }
    }

    #[cold]
    fn set(&mut self, unix_seconds: u64) {
        // `Sun, 06 Nov 1994 08:49:37 GMT` has all that both need.
        let date = flatout_wire::date::format(unix_seconds);
        let text = String::from_utf8_lossy(&date);
        let mut words = text.split_ascii_whitespace().skip(1);
        let mut word = || words.next().unwrap_or_default();
        let (day, month, year, time) = (word(), word(), word(), word());
        const MONTHS: [&str; 12] =
            ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
        let number = 1 + MONTHS.iter().position(|name| *name == month).unwrap_or_default();
        self.unix_seconds = unix_seconds;
        self.local = Text::new(format!("{day}/{month}/{year}:{time} +0000").as_bytes());
        self.iso = Text::new(format!("{year}-{number:02}-{day}T{time}+00:00").as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_nginx_writes_them() {
        let mut clock = Clock::new();
        clock.follow(784_111_777);
        assert_eq!(clock.local, Text::new(b"06/Nov/1994:08:49:37 +0000"));
        assert_eq!(clock.iso, Text::new(b"1994-11-06T08:49:37+00:00"));
    }
}
